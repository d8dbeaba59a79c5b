"""Quantiles of numbers in little space, by Apache DataSketches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from monoids.base import MonoidError, within
from monoids.codec import naming
from monoids.sketches import Sketch


class _Quantiles(Sketch[tuple[Any, ...]]):
    """KLL or REQ."""

    presented = pa.list_(pa.float64())
    _k: int
    _ranks: Sequence[float]

    def present(self, value: bytes) -> tuple[Any, ...]:
        return self.quantiles(value, self._ranks)

    def quantiles(self, value: bytes, ranks: Sequence[float]) -> tuple[Any, ...]:
        """Return the items below which these shares of all are, from 0 (the least) to 1 (the greatest); None without items."""
        sketch = self._opened(value)
        with naming(self.name):
            if not all(0 <= rank <= 1 for rank in ranks):
                raise MonoidError(f"ranks={list(ranks)} are not from 0 to 1. Use shares such as 0.5 for the median.")
        if sketch.is_empty():
            return (None,) * len(ranks)
        ends: dict[float, Any] = {0: sketch.get_min_value(), 1: sketch.get_max_value()}
        return tuple(ends[rank] if rank in ends else sketch.get_quantile(rank) for rank in ranks)

    def rank(self, value: bytes, item: float) -> float | None:
        """Return the share of the items that are not greater; None if there are no items."""
        sketch = self._opened(value)
        return None if sketch.is_empty() else sketch.get_rank(self.item(item), True)

    def near(self, a: bytes, b: bytes) -> bool:
        """Return True if both have as many items, the same ends, and medians within what the error allows."""
        ours, theirs = self.read(a), self.read(b)
        if ours.n != theirs.n or ours.is_empty():
            return bool(ours.n == theirs.n)
        if (ours.get_min_value(), ours.get_max_value()) != (theirs.get_min_value(), theirs.get_max_value()):
            return False
        median, off = theirs.get_quantile(0.5), 2 * self._error(ours) + 1 / ours.n
        # The ranks of equal items are all between these.
        return bool(ours.get_rank(median, False) - off <= 0.5 <= ours.get_rank(median, True) + off)

    @abstractmethod
    def _error(self, sketch: Any) -> float:
        """Return a bound of the error of the median's rank that holds nearly always."""

    def _merged(self, parts: Sequence[bytes]) -> bytes:
        first, *others = map(self.read, parts)
        for other in others:
            first.merge(other)
        return self.write(first)


class KLL(_Quantiles):
    """Quantiles of floats: ranks are off by 1.33 % of all (99 % certain) with k = 200, in some 5 kB of a million.

    >>> KLL().aggregator(float(i) for i in range(101))
    (50.0, 95.0, 99.0)

    What is kept is chosen at random, so sketches of the same items differ, and merging is not deterministic. `ranks` are those
    of what it presents. Karnin, Lang, Liberty, Optimal Quantile Approximation in Streams (2016), as DataSketches has it
    (doubles).
    """

    def __init__(self, k: int = 200, ranks: Sequence[float] = (0.5, 0.95, 0.99)) -> None:
        self._k, self._ranks = within(self.name, "k", k, 8, 65535), ranks
        super().__init__(pa.float64())

    @property
    def parameters(self) -> dict[str, Any]:
        return {"k": self._k}

    def new(self) -> Any:
        return self._lib.kll_doubles_sketch(self._k)

    def write(self, sketch: Any) -> bytes:
        data: bytes = sketch.serialize()
        return data

    def read(self, data: bytes) -> Any:
        return self._lib.kll_doubles_sketch.deserialize(data)

    def _fits(self, sketch: Any) -> bool:
        return bool(sketch.k == self._k)

    def _error(self, sketch: Any) -> float:
        error: float = sketch.normalized_rank_error(False)
        return 2 * error


class REQ(_Quantiles):
    """Quantiles of floats whose ranks are nearly exact at the high end, or the low end, for tails as of latencies.

    >>> REQ().aggregator(float(i) for i in range(101))
    (50.0, 95.0, 99.0)

    The distance from that end has a standard error of 1.1 % of itself with k = 12; some 16 kB of a million. Random like KLL, so
    that merging is not deterministic. Cormode et al., Relative Error Streaming Quantiles (2021), as DataSketches has it (items,
    each a double of 8 bytes).
    """

    def __init__(self, k: int = 12, is_high: bool = True, ranks: Sequence[float] = (0.5, 0.95, 0.99)) -> None:
        self._k, self._is_high, self._ranks = within(self.name, "k", k, 4, 1024), is_high, ranks
        with naming(self.name):
            if self._k % 2:
                raise MonoidError(f"k={k} is odd. Use an even number.")
        super().__init__(pa.float64())

    @property
    def parameters(self) -> dict[str, Any]:
        return {"k": self._k, "is_high": self._is_high}

    def new(self) -> Any:
        return self._lib.req_items_sketch(self._k, self._is_high)

    def write(self, sketch: Any) -> bytes:
        data: bytes = sketch.serialize(self._lib.PyDoublesSerDe())
        return data

    def read(self, data: bytes) -> Any:
        return self._lib.req_items_sketch.deserialize(data, self._lib.PyDoublesSerDe())

    def _fits(self, sketch: Any) -> bool:
        return bool(sketch.k == self._k and sketch.is_hra() == self._is_high)

    def _error(self, sketch: Any) -> float:
        above: float = sketch.get_rank_upper_bound(0.5, 3) - 0.5
        return above
