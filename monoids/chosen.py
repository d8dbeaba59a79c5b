"""Some of the values themselves: the first, the last, those with the least or greatest of something, the range of all."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from monoids.base import Monoid, Summary, within
from monoids.codec import Array, Codec, DataType, Mask, Rows, naming, segments, sort_within
from monoids.containers import singletons
from monoids.nested import Checked, ListCodec, RecordCodec, codec_of, entries_of, offsets_of
from monoids.numeric import Extreme, Max, Min
from monoids.scalars import Scalar


class _End(Monoid[Any]):
    """First or Last."""

    commutative = False
    zero = None

    def __init__(self, type: DataType) -> None:
        with naming(self.name):
            self.codec = codec_of(type)
        self.type = self.codec.type


class First(_End):
    """The first value: as the state of a task that of the least timestamp, of equal ones the first to arrive.

    >>> First(pa.string()).sum(["a", "b"])
    'a'

    Values are of any primitive, list, struct or map type; none at all (None) is the zero. It does not commute. A task keeps
    beside each value its message's place in the order, which a `MinBy` does without.
    """

    def plus(self, a: Any, b: Any) -> Any:
        return b if a is None else a

    def reduce(self, values: Array, starts: Rows) -> Array:
        return values.take(pa.array(starts))


class Last(_End):
    """The last value: as the state of a task that of the greatest timestamp, of equal ones the last to arrive.

    >>> Last(pa.string()).sum(["a", "b"])
    'b'

    Otherwise as First. In sessions, and with a time to live, a task keeps single messages until its clock has passed them.
    """

    def plus(self, a: Any, b: Any) -> Any:
        return a if b is None else b

    def reduce(self, values: Array, starts: Rows) -> Array:
        return values.take(pa.array(np.append(starts, len(values))[1:] - 1))


class By(NamedTuple):
    """A value and what it is chosen by."""

    by: Any
    value: Any


class _ExtremeBy(Monoid[Any]):
    """MinBy or MaxBy."""

    zero = None
    _extreme: type[Extreme[Any]]

    def __init__(self, by: DataType, value: DataType) -> None:
        with naming(self.name):
            self.by, self.value = self._extreme(by), self._extreme(value)
            self.codec: RecordCodec = RecordCodec(By, {"by": self.by, "value": self.value})
        self.type = self.codec.type

    @property
    def parameters(self) -> dict[str, Any]:
        return {"by": str(self.by.type), "value": str(self.value.type)}

    def plus(self, a: Any, b: Any) -> Any:
        if a is None or b is None:
            return b if a is None else a
        if a[0] == b[0]:
            return By(a[0], self.value.plus(a[1], b[1]))
        return By(*(a if self.by.plus(a[0], b[0]) == a[0] else b))

    def reduce(self, values: Array, starts: Rows) -> Array:
        by, value = values.flatten()
        best = self.by.reduce(by, starts)
        segment = segments(starts, len(values))
        rows = np.flatnonzero(np.asarray(pc.equal(by, best.take(pa.array(segment)))))
        firsts = np.searchsorted(segment[rows], np.arange(len(starts)))
        return self.codec.array([best, self.value.reduce(value.take(pa.array(rows)), firsts)], np.ones(len(best), bool))


class MinBy(_ExtremeBy):
    """The value that has the least of something, as the earliest price: pairs (by, value).

    >>> MinBy(pa.int64(), pa.string()).sum([By(3, "c"), By(1, "z"), By(1, "a")])
    By(by=1, value='a')

    Both are of types that `Min` takes. Among equals it is the least value, so that it commutes. None is the zero. In Arrow a
    struct of both.
    """

    _extreme = Min


class MaxBy(_ExtremeBy):
    """The value that has the greatest of something, as a ship's newest position: pairs (by, value).

    >>> MaxBy(pa.int64(), pa.string()).sum([By(3, "c"), By(1, "z"), By(3, "d")])
    By(by=3, value='d')

    Among equals it is the greatest value; otherwise as MinBy.
    """

    _extreme = Max


class _TopCodec(Checked[list[Any]], ListCodec):
    """Lists of at most k items, the greatest first."""

    def __init__(self, item: Codec[Any], k: int) -> None:
        super().__init__(item)
        self._k = k
        self.taken = f"lists of at most {k} items, the greatest first"

    def misfits(self, array: Array) -> Mask:
        return np.array([value is not None and not self._is_top(value) for value in self.from_arrow(array)], bool)

    def _is_top(self, value: list[Any]) -> bool:
        return None not in value and len(value) <= self._k and value == sorted(value, reverse=True)


class TopK(Summary[list[Any], Any, list[Any]]):
    """The k greatest values, the greatest first, each as often as it came.

    >>> TopK(2, pa.int64()).aggregator([3, 9, 5])
    [9, 5]
    >>> TopK(1, pa.float64(), pa.string()).aggregator([(0.5, "a"), (2.5, "b")])
    [By(by=2.5, value='b')]

    Values are of a type that `Max` takes, or pairs (by, value) of two such. At most k of them are kept. In Arrow a list.
    """

    def __init__(self, k: int, type: DataType, value: DataType | None = None) -> None:
        self.k = within(self.name, "k", k, 1, 2**31 - 1)
        with naming(self.name):
            self._scalars = [Scalar(each, "ordered") for each in (type, value) if each is not None]
            (self.items,) = (
                self._scalars if value is None else [RecordCodec(By, dict(zip(By._fields, self._scalars, strict=True)))]
            )
            self.codec: ListCodec = _TopCodec(self.items, self.k)
        self.type = self.codec.type

    @property
    def zero(self) -> list[Any]:
        return []

    @property
    def parameters(self) -> dict[str, Any]:
        return {"k": self.k, "of": [str(scalar.type) for scalar in self._scalars]}

    def plus(self, a: list[Any], b: list[Any]) -> list[Any]:
        return sorted([*a, *b], reverse=True)[: self.k]

    def reduce(self, values: Array, starts: Rows) -> Array:
        offsets, stretch = entries_of(values)
        items, segment = values.values[stretch], np.repeat(segments(starts, len(values)), np.diff(offsets))
        order = sort_within(segment, *(items.flatten() if len(self._scalars) == 2 else [items]))
        counts = np.bincount(segment, minlength=len(starts))
        kept = np.minimum(counts, self.k)
        place = np.arange(int(kept.sum())) - np.repeat(np.cumsum(kept) - kept, kept)
        greatest = order[np.repeat(np.cumsum(counts) - 1, kept) - place]
        return pa.ListArray.from_arrays(offsets_of(kept), items.take(pa.array(greatest)))

    def _lift(self, items: Array) -> Array:
        return singletons(items)


class Ends(NamedTuple):
    """The least and the greatest of some values."""

    low: Any
    high: Any


def _upside_down(ends: list[Array]) -> Mask:
    return np.asarray(pc.greater(*ends).fill_null(False))


class Interval(Summary[Ends | None, Any, Ends | None]):
    """From the least to the greatest value.

    >>> Interval(pa.int64()).aggregator([3, 9, 5])
    Ends(low=3, high=9)

    Values are of a type that `Min` takes; None is the zero. In Arrow a struct of both ends. (What several intervals have in
    common is `Struct(low=Max(type), high=Min(type))`.)
    """

    zero = None

    def __init__(self, type: DataType) -> None:
        with naming(self.name):
            self.items: Scalar = Scalar(type, "ordered")
            self.codec: RecordCodec = RecordCodec(Ends, {"low": self.items, "high": self.items}, _upside_down)
        self.type = self.codec.type

    @property
    def parameters(self) -> dict[str, Any]:
        return {"of": str(self.items.type)}

    def plus(self, a: Ends | None, b: Ends | None) -> Ends | None:
        if a is None or b is None:
            return b if a is None else a
        return Ends(min(a[0], b[0]), max(a[1], b[1]))

    def reduce(self, values: Array, starts: Rows) -> Array:
        low, high = values.flatten()
        of = self.items.type
        return self.codec.array([Min(of).reduce(low, starts), Max(of).reduce(high, starts)], np.ones(len(starts), bool))

    def _lift(self, items: Array) -> Array:
        return self.codec.array([items, items], np.asarray(items.is_valid()))
