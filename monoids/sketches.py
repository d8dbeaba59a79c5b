"""Summaries of bounded size and known error: distinct counts, quantiles, frequent items and samples, by Apache DataSketches.

Values are the bytes that DataSketches writes, which its other libraries read. It comes with
the extra `sketches`.
"""

from __future__ import annotations

import math
import struct
from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any, Generic, TypeVar

import pyarrow as pa

from monoids.base import MonoidError, within
from monoids.codec import Array, DataType, naming
from monoids.packed import PackedSummary, plain

C = TypeVar("C")

_TEXT = pa.string()
_EMPTY = "\ufdd0"
"""The text that stands for an empty one: a code point that is not a character."""
_FORGOTTEN = struct.Struct("<bqq")


def datasketches() -> ModuleType:
    """Import the package datasketches.

    Raises:
        MonoidError: It is not installed.
    """
    try:
        import datasketches
    except ImportError:
        raise MonoidError("package='datasketches' is missing; pip install 'persistent-state[sketches]'.") from None
    module: ModuleType = datasketches
    return module


class Sketch(PackedSummary[C], Generic[C]):
    """A summary that DataSketches makes of items, and puts together.

    Values are its bytes. Those that are no such sketch, or one of other parameters, do not fit; they do not say of which items
    they are, and bytes that were made to break DataSketches may do so.
    """

    exact = False

    def __init__(self, items: DataType) -> None:
        super().__init__(items)
        self._empty = self.write(self.new())

    @property
    def _lib(self) -> ModuleType:
        return datasketches()

    @property
    def zero(self) -> bytes:
        return self._empty

    @abstractmethod
    def new(self) -> Any:
        """Make an empty sketch."""

    @abstractmethod
    def write(self, sketch: Any) -> bytes:
        """Return the bytes of a sketch."""

    @abstractmethod
    def read(self, data: bytes) -> Any:
        """Return the sketch of DataSketches with these bytes."""

    @abstractmethod
    def _fits(self, sketch: Any) -> bool:
        """Return True if a sketch has this monoid's parameters."""

    def is_own(self, value: object) -> bool:
        # What DataSketches raises for bytes that it did not write is anything.
        try:
            return isinstance(value, bytes) and self._fits(self.read(value))
        except Exception:
            return False

    def _opened(self, value: bytes) -> Any:
        return self.read(self.checked(value))

    def _lift(self, items: Array) -> Array:
        return pa.array([None if item is None else self._one(item) for item in plain(items)], self.type)

    def _one(self, item: Any) -> bytes:
        sketch = self.new()
        sketch.update(item)
        return self.write(sketch)

    def _united(self, union: Any, parts: Sequence[bytes]) -> Any:
        """Return a union of DataSketches, updated with these parts."""
        for part in parts:
            union.update(self.read(part))
        return union


class _Distinct(Sketch[float]):
    """HyperLogLog or Theta."""

    presented = pa.float64()
    _bits: tuple[int, int]
    """Between which `lg_k` is."""

    def __init__(self, items: DataType = _TEXT, lg_k: int = 12) -> None:
        self._lg_k = within(self.name, "lg_k", lg_k, *self._bits)
        super().__init__(items)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"items": str(self.items.type), "lg_k": self._lg_k}

    @abstractmethod
    def _counter(self, value: bytes) -> Any:
        """Return the object of DataSketches that estimates a value's count."""

    def bounds(self, value: bytes, deviations: int = 2) -> tuple[float, float]:
        """Between which numbers the count is, with the certainty of 1, 2 or 3 standard deviations."""
        counter = self._counter(value)
        return counter.get_lower_bound(deviations), counter.get_upper_bound(deviations)

    def _one(self, item: Any) -> bytes:
        # An empty text is no item to DataSketches here.
        return super()._one(_EMPTY if item == "" else item)


class HyperLogLog(_Distinct):
    """About how many distinct items there are, in 2**lg_k bytes.

    >>> HyperLogLog(pa.string()).aggregator(["a", "b", "a"])
    2.0

    The standard error is 1.04 / sqrt(2**lg_k): 1.6 % with the 4 kB of lg_k = 12 (7 to 21 are possible). Fewer items take
    fewer bytes. Estimates are those of a union even of one sketch, so that they do not depend on grouping; the bytes may.
    Flajolet et al., HyperLogLog (2007), as DataSketches has it (HLL_8, compact).
    """

    _bits = 7, 21

    def new(self) -> Any:
        return self._lib.hll_sketch(self._lg_k, self._lib.HLL_8)

    def write(self, sketch: Any) -> bytes:
        data: bytes = sketch.serialize_compact()
        return data

    def read(self, data: bytes) -> Any:
        return self._lib.hll_sketch.deserialize(data)

    def present(self, value: bytes) -> float:
        # Counts of few are whole up to what the estimator rounds.
        estimate: float = round(self._counter(value).get_estimate(), 3)
        return estimate

    def near(self, a: bytes, b: bytes) -> bool:
        return self.present(a) == self.present(b)

    def _counter(self, value: bytes) -> Any:
        # A union with itself: only what two have become one of is counted without regard to what came first.
        return self._union([self.checked(value), value])

    def _union(self, parts: Sequence[bytes]) -> Any:
        return self._united(self._lib.hll_union(self._lg_k), parts)

    def _merged(self, parts: Sequence[bytes]) -> bytes:
        return self.write(self._union(parts).get_result(self._lib.HLL_8))

    def _fits(self, sketch: Any) -> bool:
        return bool(sketch.lg_config_k == self._lg_k and sketch.tgt_type == self._lib.HLL_8)


class Theta(_Distinct):
    """About how many distinct items there are, in up to 8 * 2**lg_k bytes, also in what two sets share or do not.

    >>> theta = Theta(pa.string())
    >>> a, b = (theta.sum(map(theta.of, items)) for items in ("abc", "bcd"))
    >>> theta.present(theta.intersection(a, b)), theta.present(theta.difference(a, b))
    (2.0, 1.0)

    The standard error is 1 / sqrt(2**lg_k): 1.6 % with lg_k = 12 (5 to 26 are possible), more for what is shared. Bytes do not
    depend on grouping. A sketch of fewer bits fits, and takes its error along; one with more than 2**lg_k hashes does not.
    Dasgupta et al., A Framework for Estimating Stream Expression Cardinalities (2016), as DataSketches has it (compact and
    ordered).
    """

    exact = True
    _bits = 5, 26

    def __init__(self, items: DataType = _TEXT, lg_k: int = 12) -> None:
        super().__init__(items, lg_k)
        self._seed = self.new().get_seed_hash()

    def new(self) -> Any:
        return self._lib.update_theta_sketch(self._lg_k)

    def write(self, sketch: Any) -> bytes:
        compact = sketch if isinstance(sketch, self._lib.compact_theta_sketch) else sketch.compact()
        data: bytes = compact.serialize()
        return data

    def read(self, data: bytes) -> Any:
        return self._lib.compact_theta_sketch.deserialize(data)

    def present(self, value: bytes) -> float:
        estimate: float = self._counter(value).get_estimate()
        return estimate

    def _counter(self, value: bytes) -> Any:
        return self._opened(value)

    def intersection(self, a: bytes, b: bytes) -> bytes:
        """Return a sketch of the items that are in both."""
        both = self._lib.theta_intersection()
        both.update(self._opened(a))
        both.update(self._opened(b))
        return self.write(both.get_result())

    def difference(self, a: bytes, b: bytes) -> bytes:
        """Return a sketch of the items of a that are not in b."""
        return self.write(self._lib.theta_a_not_b().compute(self._opened(a), self._opened(b)))

    def _merged(self, parts: Sequence[bytes]) -> bytes:
        return self.write(self._united(self._lib.theta_union(self._lg_k), parts).get_result())

    def _fits(self, sketch: Any) -> bool:
        return bool(
            sketch.is_ordered() and sketch.num_retained <= 1 << self._lg_k and sketch.get_seed_hash() == self._seed
        )


class FrequentItems(Sketch[list[tuple[str, int, int]]]):
    """The items of text that come most often, as (item, least count, most count), the most frequent first.

    >>> FrequentItems().aggregator(["a", "b", "a"])
    [('a', 2, 2), ('b', 1, 1)]

    Counts are exact up to 0.75 * 2**lg_max items that differ; then each is off by at most 3.5 / 2**lg_max of all, and all items
    that come more often than that are there. Which others are depends on grouping, not on chance. Misra, Gries, Finding
    Repeated Elements (1982); Anderson et al., A High-Performance Algorithm for Identifying Frequent Items (2017), as
    DataSketches has it. One that has forgotten all its items is written with 17 bytes before it: 0, how many they were, and by
    how much counts are off.
    """

    presented = pa.list_(pa.struct([("item", _TEXT), ("low", pa.int64()), ("high", pa.int64())]))

    def __init__(self, lg_max: int = 10) -> None:
        self._lg_max = within(self.name, "lg_max", lg_max, 3, 26)
        super().__init__(_TEXT)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"lg_max": self._lg_max}

    def new(self) -> Any:
        return self._lib.frequent_strings_sketch(self._lg_max)

    def write(self, sketch: Any) -> bytes:
        return self._write(sketch, 0, 0)

    def read(self, data: bytes) -> Any:
        return self._lib.frequent_strings_sketch.deserialize(data[_FORGOTTEN.size if data[:1] == b"\0" else 0 :])

    def present(self, value: bytes) -> list[tuple[str, int, int]]:
        sketch, _, off = self._parts(self.checked(value))
        frequent = sketch.get_frequent_items(self._lib.NO_FALSE_NEGATIVES)
        return sorted(((item, low, high + off) for item, _, low, high in frequent), key=lambda row: (-row[2], row[0]))

    def count(self, value: bytes, item: str) -> tuple[int, int]:
        """Return how often an item came at the least, and at the most."""
        sketch, _, off = self._parts(self.checked(value))
        known = self.item(item)
        return sketch.get_lower_bound(known), sketch.get_upper_bound(known) + off

    def near(self, a: bytes, b: bytes) -> bool:
        """Return True if both have as many items, and their bounds for each item overlap."""
        (ours, weight, off), (theirs, other_weight, other_off) = map(self._parts, (a, b))
        items = {item for item, *_ in [*self.present(a), *self.present(b)]}
        return bool(ours.total_weight + weight == theirs.total_weight + other_weight) and all(
            ours.get_lower_bound(item) <= theirs.get_upper_bound(item) + other_off
            and theirs.get_lower_bound(item) <= ours.get_upper_bound(item) + off
            for item in items
        )

    def _parts(self, data: bytes) -> tuple[Any, int, int]:
        """Return a sketch, how many items earlier sketches have forgotten, and by how much its counts are off for that."""
        weight, off = _FORGOTTEN.unpack(data[: _FORGOTTEN.size])[1:] if data[:1] == b"\0" else (0, 0)
        return self.read(data), weight, off

    def _write(self, sketch: Any, weight: int, off: int) -> bytes:
        if sketch.is_empty():
            # DataSketches would write that there never was an item.
            weight, off = weight + sketch.total_weight, off + sketch.get_upper_bound("")
        data: bytes = sketch.serialize()
        return (_FORGOTTEN.pack(0, weight, off) if weight else b"") + data

    def _merged(self, parts: Sequence[bytes]) -> bytes:
        (first, weight, off), *others = map(self._parts, parts)
        for other, more, further in others:
            first.merge(other)
            weight, off = weight + more, off + further
        return self._write(first, weight, off)

    def is_own(self, value: object) -> bool:
        return super().is_own(value) and min(self._parts(bytes(value))[1:]) >= 0  # type: ignore[call-overload]

    def _fits(self, sketch: Any) -> bool:
        return bool(sketch.epsilon == self.new().epsilon)


class VarOpt(Sketch[list[tuple[str, float]]]):
    """A sample of at most k weighted items of text, as (item, weight): of weights that add up to those of all items.

    >>> sample = VarOpt(10)
    >>> sample.present(sample.plus(sample.of("a"), sample.weighted("b", 3.0)))
    [('a', 1.0), ('b', 3.0)]

    Heavy items are in it for sure, others at random, so merging is not deterministic; an estimate of any share from it
    has the least variance that one can have. A column's items weigh 1. Cohen et al., Efficient Stream Sampling for
    Variance-Optimal Estimation of Subset Sums (2009), as DataSketches has it.
    """

    presented = pa.list_(pa.struct([("item", _TEXT), ("weight", pa.float64())]))

    def __init__(self, k: int = 100) -> None:
        self._k = within(self.name, "k", k, 1, 2**31 - 2)
        super().__init__(_TEXT)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"k": self._k}

    def weighted(self, item: str, weight: float) -> bytes:
        """Return the sample of one item with a weight above 0."""
        with naming(self.name):
            if not 0 < weight < math.inf:
                raise MonoidError(f"weight={weight} is not positive and finite. Leave the item out.")
        sketch = self.new()
        sketch.update(self.item(item), weight)
        return self.write(sketch)

    def new(self) -> Any:
        return self._lib.var_opt_sketch(self._k)

    def write(self, sketch: Any) -> bytes:
        data: bytes = sketch.serialize(_utf8())
        return data

    def read(self, data: bytes) -> Any:
        return self._lib.var_opt_sketch.deserialize(data, _utf8())

    def present(self, value: bytes) -> list[tuple[str, float]]:
        return sorted(self._opened(value))

    def near(self, a: bytes, b: bytes) -> bool:
        """Return True if both have as many items, keep as many, and have the same total weight."""
        ours, theirs = self.read(a), self.read(b)
        if (ours.n, ours.num_samples) != (theirs.n, theirs.num_samples):
            return False
        weights = [sum(weight for _, weight in sketch) for sketch in (ours, theirs)]
        return math.isclose(*weights)

    def _merged(self, parts: Sequence[bytes]) -> bytes:
        return self.write(self._united(self._lib.var_opt_union(self._k), parts).get_result())

    def _fits(self, sketch: Any) -> bool:
        return bool(sketch.k == self._k)


@cache
def _utf8() -> Any:
    """Return a writer of text in samples: four bytes of length, then UTF-8. That of DataSketches needs ASCII."""

    class Utf8(datasketches().PyObjectSerDe):  # type: ignore[misc]
        def get_size(self, item: str) -> int:
            return 4 + len(item.encode())

        def to_bytes(self, item: str) -> bytes:
            text = item.encode()
            return len(text).to_bytes(4, "little") + text

        def from_bytes(self, data: bytes, offset: int) -> tuple[str, int]:
            end = offset + 4 + int.from_bytes(data[offset : offset + 4], "little")
            if end > len(data):
                raise IndexError(end)
            return data[offset + 4 : end].decode(), end - offset

    return Utf8()
