"""Summaries of hashed items: counts of each, whether one was there, how alike two sets are.

While items are few, a summary is their hashes themselves, sorted. So a summary of few items is short and exact, and which form
it has depends on the items alone, not on grouping. Bytes begin with four that stand for the parameters. Hashes are of 64 bits:
of numbers by the finalizer of splitmix64, of others by BLAKE2b.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from monoids.base import MonoidError, within
from monoids.codec import Array, DataType, naming
from monoids.packed import PackedSummary
from monoids.scalars import family, numbers
from monoids.sketches import datasketches

C = TypeVar("C")
Hashes = NDArray[np.uint64]

_TEXT = pa.string()
_TAG = 4
_LONGEST = 2**28


def mixed(numbers: Hashes) -> Hashes:
    """Well spread 64-bit hashes of 64-bit numbers: the finalizer of splitmix64 (Steele, Lea, Flood, 2014)."""
    hashes = numbers + np.uint64(0x9E3779B97F4A7C15)
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def hashed(items: Array) -> Hashes:
    """Return the hash of each item of a primitive column. The hash of null means nothing."""
    kind = family(items.type)
    assert kind is not None
    if kind.ticks or kind.name == "float":
        return mixed(numbers(items).astype(np.int64 if kind.ticks else np.float64).view(np.uint64))
    texts = [b"" if text is None else text.encode() for text in items.cast(pa.string()).to_pylist()]
    return np.array([int.from_bytes(hashlib.blake2b(t, digest_size=8).digest(), "little") for t in texts], np.uint64)


class _Hashed(PackedSummary[C], Generic[C]):
    """A summary in one of two forms: entries of few items, or all in a form whose length is fixed."""

    _entry: Any
    _length: int

    def __init__(self, items: DataType) -> None:
        super().__init__(items)
        if self._length > _LONGEST:
            raise MonoidError(f"{self.name}: a value of {self.parameters} would have {self._length} bytes. Use less.")
        self._tag = hashlib.blake2b(json.dumps(self.parameters).encode(), digest_size=_TAG).digest()

    @property
    def zero(self) -> bytes:
        return self._tag

    @abstractmethod
    def _together(self, entries: NDArray[Any]) -> NDArray[Any]:
        """Entries in order, one for each hash."""

    @abstractmethod
    def _full(self, entries: NDArray[Any], others: Sequence[bytes]) -> bytes:
        """Merge these entries and values of the fixed length, in that form."""

    def _lift(self, items: Array) -> Array:
        entries = self._entries(items)
        rows = zip(entries, items.is_valid().to_pylist(), strict=True)
        return pa.array([self._tag + one.tobytes() if is_one else None for one, is_one in rows], self.type)

    @abstractmethod
    def _entries(self, items: Array) -> NDArray[Any]:
        """Return the entry of each item."""

    def _parts(self, value: bytes) -> tuple[NDArray[Any], bytes | None]:
        """Return a value's entries, or its bytes if it has the other form."""
        if len(value) - _TAG == self._length:
            return np.zeros(0, self._entry), value[_TAG:]
        return np.frombuffer(value, self._entry, offset=_TAG), None

    def _opened(self, value: bytes) -> tuple[NDArray[Any], bytes | None]:
        return self._parts(self.checked(value))

    def _merged(self, parts: Sequence[bytes]) -> bytes:
        entries, others = zip(*map(self._parts, parts), strict=True)
        few, full = self._together(np.concatenate(entries)), [other for other in others if other is not None]
        return self._tag + (self._full(few, full) if full or few.nbytes >= self._length else few.tobytes())

    def _hash(self, item: Any) -> Hashes:
        return hashed(self.column_of(item))

    def is_own(self, value: object) -> bool:
        if not isinstance(value, bytes) or value[:_TAG] != self._tag:
            return False
        length = len(value) - _TAG
        if length == self._length:
            return self._is_full(value[_TAG:])
        return length < self._length and length % np.dtype(self._entry).itemsize == 0 and self._are_entries(value)

    def _are_entries(self, value: bytes) -> bool:
        few, _ = self._parts(value)
        return self._together(few).tobytes() == few.tobytes()

    def _is_full(self, data: bytes) -> bool:
        return True


class _HashSet(_Hashed[C], Generic[C]):
    """A summary of the set of hashes."""

    _entry = np.uint64

    def _together(self, entries: NDArray[Any]) -> NDArray[Any]:
        return np.unique(entries)

    def _entries(self, items: Array) -> NDArray[Any]:
        return hashed(items)


class BloomFilter(_HashSet[float]):
    """A set that knows if an item was surely not added, or probably was. It presents about how many items there are.

    >>> bloom = BloomFilter(pa.string(), capacity=1000, error=0.01)
    >>> seen = bloom.sum(map(bloom.of, ["a", "b"]))
    >>> bloom.contains(seen, "a"), bloom.contains(seen, "z")
    (True, False)

    It finds every item that is there. Once there are `capacity` items, it takes a share of `error` of the others for items that
    are there. It takes 1.2 kB for each 1,000 of capacity with one error in 100, and 8 bytes an item while that is less. Bloom,
    Space/Time Trade-offs in Hash Coding with Allowable Errors (1970); Kirsch, Mitzenmacher, Less Hashing, Same Performance
    (2006).
    """

    presented = pa.float64()

    def __init__(self, items: DataType = _TEXT, capacity: int = 10_000, error: float = 0.01) -> None:
        self._capacity = within(self.name, "capacity", capacity, 1, 2**32)
        with naming(self.name):
            if not 0 < error < 1:
                raise MonoidError(f"error={error} is no share. Use one between 0 and 1, such as 0.01.")
        self._error = float(error)
        # Two entries at the least, so that one is not as long as all bits.
        self._bits = max(128, 64 * math.ceil(-capacity * math.log(error) / math.log(2) ** 2 / 64))
        self._probes = max(1, round(self._bits / capacity * math.log(2)))
        self._length = self._bits // 8
        super().__init__(items)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"items": str(self.items.type), "capacity": self._capacity, "error": self._error}

    def contains(self, value: bytes, item: Any) -> bool:
        """Return False if the item was surely not added, True if it was, or by error."""
        one = self._hash(item)
        few, full = self._opened(value)
        if full is None:
            return bool(np.isin(one, few)[0])
        (places,) = self._places(one)
        return bool((np.frombuffer(full, np.uint8)[places // 8] & (128 >> places % 8) > 0).all())

    def present(self, value: bytes) -> float:
        few, full = self._opened(value)
        if full is None:
            return float(len(few))
        share = np.unpackbits(np.frombuffer(full, np.uint8)).mean()
        return float("inf") if share == 1 else -self._bits / self._probes * math.log(1 - share)

    def _places(self, hashes: Hashes) -> NDArray[np.int64]:
        step = mixed(hashes) | np.uint64(1)
        places = hashes[:, None] + step[:, None] * np.arange(self._probes, dtype=np.uint64)
        return (places % np.uint64(self._bits)).astype(np.int64)

    def _full(self, entries: NDArray[Any], others: Sequence[bytes]) -> bytes:
        bits = np.zeros(self._bits, np.uint8)
        bits[self._places(entries)] = 1
        words = np.packbits(bits)
        for other in others:
            words |= np.frombuffer(other, np.uint8)
        return words.tobytes()


class MinHash(_HashSet[float]):
    """The similarity of sets (Jaccard: the shared items among all items). It presents about how many items there are.

    >>> alike = MinHash(pa.string())
    >>> a, b = (alike.sum(map(alike.of, items)) for items in ("abc", "bcd"))
    >>> alike.similarity(a, b)
    0.5

    The standard error is at most 0.5 / sqrt(k): 4.4 % with k = 128, which takes 1 kB. With fewer than k items in all there is
    no error. Broder, On the Resemblance and Containment of Documents (1997).
    """

    presented = pa.float64()

    def __init__(self, items: DataType = _TEXT, k: int = 128) -> None:
        self._k = within(self.name, "k", k, 2, 2**20)
        self._length = 8 * self._k
        self._seeds = mixed(np.arange(self._k, dtype=np.uint64))
        super().__init__(items)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"items": str(self.items.type), "k": self._k}

    def similarity(self, a: bytes, b: bytes) -> float | None:
        """Estimate the share that two sets have in common; None for two empty sets."""
        (ours, full), (theirs, other) = self._opened(a), self._opened(b)
        if full is None and other is None:
            either = len(np.union1d(ours, theirs))
            return len(np.intersect1d(ours, theirs)) / either if either else None
        if self.zero in (a, b):
            return 0.0
        parts = ((ours, full), (theirs, other))
        least = [np.frombuffer(self._full(entries, []) if all is None else all, np.uint64) for entries, all in parts]
        return float((least[0] == least[1]).mean())

    def present(self, value: bytes) -> float:
        few, full = self._opened(value)
        if full is None:
            return float(len(few))
        return (self._k - 1) / float((np.frombuffer(full, np.uint64) / 2.0**64).sum())

    def _full(self, entries: NDArray[Any], others: Sequence[bytes]) -> bytes:
        least = [np.frombuffer(other, np.uint64) for other in others]
        # A few items at a time, since there is a number for each of them and each seed.
        for first in range(0, len(entries), 1024):
            part = entries[first : first + 1024]
            least.append(mixed(part[:, None] ^ self._seeds).min(axis=0))
        return bytes(np.minimum.reduce(least))


class CountMin(_Hashed[int]):
    """About how often each item came: never less than it did. It presents how many items there are.

    >>> often = CountMin(pa.string())
    >>> seen = often.sum(map(often.of, ["a", "b", "a"]))
    >>> often.count(seen, "a"), often.count(seen, "z")
    (2, 0)

    A count is too high by at most 2.72 / buckets of all, with the certainty of 1 - exp(-hashes): 0.27 % and 98.2 % with
    1,000 and 4, which take 32 kB; counts of few items are exact, at 16 bytes an item. Counts to 2**53. Cormode,
    Muthukrishnan, An Improved Data Stream Summary (2005), as DataSketches has it, of the hashes of items.
    """

    presented = pa.int64()
    _entry = np.dtype([("hash", np.uint64), ("weight", np.int64)])

    def __init__(self, items: DataType = _TEXT, hashes: int = 4, buckets: int = 1000) -> None:
        self._hashes = within(self.name, "hashes", hashes, 1, 255)
        self._buckets = within(self.name, "buckets", buckets, 3, 2**30 // hashes)
        one = self._new()
        one.update(1)
        self._length = len(one.serialize())
        super().__init__(items)

    @property
    def parameters(self) -> dict[str, Any]:
        return {"items": str(self.items.type), "hashes": self._hashes, "buckets": self._buckets}

    def weighted(self, item: Any, weight: int) -> bytes:
        """Return the summary of an item that came `weight` times."""
        if not (isinstance(weight, int) and 0 < weight <= 2**53):
            raise MonoidError(f"{self.name}: weight={weight} is no count. Use an integer from 1 to 2**53.")
        return self._tag + np.array([(self._hash(item)[0], weight)], self._entry).tobytes()

    def count(self, value: bytes, item: Any) -> int:
        """Return how often an item came, or somewhat more."""
        few, full = self._opened(value)
        one = self._hash(item)[0]
        if full is None:
            return int(few["weight"][few["hash"] == one].sum())
        return int(datasketches().count_min_sketch.deserialize(full).get_estimate(_signed(one)))

    def present(self, value: bytes) -> int:
        few, full = self._opened(value)
        if full is None:
            return int(few["weight"].sum())
        return int(datasketches().count_min_sketch.deserialize(full).total_weight)

    def _new(self) -> Any:
        return datasketches().count_min_sketch(self._hashes, self._buckets)

    def _together(self, entries: NDArray[Any]) -> NDArray[Any]:
        hashes, of = np.unique(entries["hash"], return_inverse=True)
        together = np.zeros(len(hashes), self._entry)
        together["hash"] = hashes
        np.add.at(together["weight"], of, entries["weight"])
        return together

    def _full(self, entries: NDArray[Any], others: Sequence[bytes]) -> bytes:
        sketch = self._new()
        for one, weight in entries.tolist():
            sketch.update(_signed(one), weight)
        for other in others:
            sketch.merge(datasketches().count_min_sketch.deserialize(other))
        data: bytes = sketch.serialize()
        return data

    def _entries(self, items: Array) -> NDArray[Any]:
        entries = np.ones(len(items), self._entry)
        entries["hash"] = hashed(items)
        return entries

    def _are_entries(self, value: bytes) -> bool:
        few, _ = self._parts(value)
        return super()._are_entries(value) and bool((few["weight"] > 0).all())

    def _is_full(self, data: bytes) -> bool:
        try:
            sketch = datasketches().count_min_sketch.deserialize(data)
        except Exception:
            return False
        return bool(
            (sketch.num_hashes, sketch.num_buckets, sketch.seed) == (self._hashes, self._buckets, self._new().seed)
        )


def _signed(number: int) -> int:
    return int(np.uint64(number).view(np.int64))
