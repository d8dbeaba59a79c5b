"""Averages, moments, covariance, histograms and decayed sums."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Context, Decimal
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from monoids.base import MonoidError, Summary
from monoids.codec import Array, DataType, Mask, Rows, naming, null_where, valid
from monoids.containers import Fields
from monoids.nested import Checked, ListCodec, RecordCodec, entries_of, offsets_of, with_null_entries
from monoids.numeric import Count, Sum, as_int64, close
from monoids.scalars import Scalar

T = TypeVar("T", bound=tuple[Any, ...])
A = TypeVar("A")
C = TypeVar("C")

_DIGITS = Context(prec=38)
# What has more digits is NaN to it.
_ROUNDED = Context(prec=38, traps=[])
_NO_MEAN = Decimal("NaN")

Columns = list[NDArray[Any]]

_BLOCK = 1 << 15

_FINITE, _FLOAT = Scalar(pa.float64(), "finite"), Scalar(pa.float64())


def _too_few(fields: list[Array]) -> Mask:
    return np.asarray(pc.less(fields[0], 0).fill_null(False))


def _no_spread(fields: list[Array]) -> Mask:
    misfits: Mask = _too_few(fields) | np.asarray(pc.less(fields[2], 0.0).fill_null(False))
    return misfits


def _counted(kind: Any, makes_no_sense: Callable[[list[Array]], Mask]) -> RecordCodec:
    """Return the codec of records of a count, n, and floats."""
    return RecordCodec(kind, {"n": Scalar(pa.int64()), **dict.fromkeys(kind._fields[1:], _FLOAT)}, makes_no_sense)


class Averaged(NamedTuple):
    """The count of numbers, and their sum."""

    n: int
    sum: Any


class Average(Fields[Averaged], Summary[Averaged, Any, Any]):
    """The arithmetic mean of numbers, kept as their count and sum; None of no numbers.

    >>> Average().aggregator([1.0, 2.0, 6.0])
    3.0

    Sums are those of `Sum(type)`: exact for decimals, modulo 2**64 for integers, rounded for floats. In Arrow a struct of 16 or
    24 bytes. Means of decimals are presented with 38 digits; a column of them is rounded as in Spark, to four more after the
    point than the decimals have, but no more than six where they have fewer, and one too large for that is null.
    """

    def __init__(self, type: DataType = _FLOAT.type) -> None:
        with naming(self.name):
            total: Sum[Any] = Sum(type)
        super().__init__({"n": Count(), "sum": total}, lambda parts: RecordCodec(Averaged, parts, _too_few))
        self.items = total

    @property
    def parameters(self) -> dict[str, Any]:
        return {"of": str(self.items.type)}

    def present(self, value: Averaged) -> Any:
        if not value[0]:
            return None
        return _DIGITS.divide(value[1], value[0]) if isinstance(value[1], Decimal) else value[1] / value[0]

    @property
    def presented(self) -> DataType:
        if not pa.types.is_decimal(self.items.type):
            return _FLOAT.type
        scale = self.items.type.scale
        return pa.decimal128(38, max(scale, min(scale + 4, 6)))

    def present_column(self, column: Array) -> Array:
        if pa.types.is_decimal(self.items.type):
            place = Decimal(1).scaleb(-self.presented.scale)
            said = (None if value is None else self.present(value) for value in self.from_arrow(column))
            rounded = [_ROUNDED.quantize(_NO_MEAN if mean is None else mean, place) for mean in said]
            return pa.array([mean if mean.is_finite() else None for mean in rounded], self.presented)
        n, total = (np.asarray(pc.fill_null(field, 0)) for field in column.flatten())
        has_values = n != 0
        means = np.divide(total, n, out=np.zeros(len(n)), where=has_values)
        if total.dtype == np.int64:
            # Python divides integers that are no floats and rounds once.
            for i in np.flatnonzero(has_values & ((total < -(2**53)) | (total > 2**53))):
                means[i] = int(total[i]) / int(n[i])
        return pa.array(means, mask=~has_values)

    def _lift(self, items: Array) -> Array:
        return self.codec.array([pa.array(np.ones(len(items), np.int64)), items], valid(items))


class _Numbers(Summary[T, A, C]):
    """Summaries that are records of numbers, put together by arithmetic on whole columns."""

    exact = False
    codec: RecordCodec

    def plus(self, a: T, b: T) -> T:
        columns = [np.array(pair) for pair in zip(a, b, strict=True)]
        with np.errstate(all="ignore"):
            sums = self._sums(columns, np.zeros(1, np.int64))
        record: T = self.codec.value(tuple(column.item() for column in sums))
        return record

    def reduce(self, values: Array, starts: Rows) -> Array:
        columns = [np.asarray(field) for field in values.flatten()]
        ends = np.append(starts, len(values))
        # A block of segments at a time, so that what is worked out on the way stays in the processor's cache.
        blocks = np.unique(np.append(np.searchsorted(starts, np.arange(0, len(values), _BLOCK)), len(starts)))
        with np.errstate(all="ignore"):
            sums = [
                self._sums([column[ends[i] : ends[j]] for column in columns], starts[i:j] - ends[i])
                for i, j in pairwise(blocks.tolist())
            ]
        fields = [np.concatenate(parts) for parts in zip(*sums, strict=True)] if sums else columns
        return self.codec.array([pa.array(field) for field in fields], np.ones(len(starts), bool))

    @abstractmethod
    def _sums(self, columns: Columns, starts: Rows) -> Columns:
        """Return the fields of the sum of each segment, from the fields of all rows."""


class Spread(NamedTuple):
    """The spread of numbers: their count, their mean, and sums of the second to fourth powers of their distances from it.

    A property that needs more numbers, or numbers that differ, is NaN.
    """

    n: int
    mean: float
    m2: float
    m3: float
    m4: float

    @property
    def variance(self) -> float:
        """The variance of these numbers. If they are a sample, m2 / (n - 1) estimates that of the population."""
        return self.m2 / self.n if self.n else math.nan

    @property
    def deviation(self) -> float:
        return math.sqrt(self.variance)

    @property
    def skewness(self) -> float:
        return math.sqrt(self.n) * self.m3 / self.m2 / math.sqrt(self.m2) if self.m2 else math.nan

    @property
    def kurtosis(self) -> float:
        """In excess of a normal distribution's."""
        return self.n * self.m4 / self.m2 / self.m2 - 3 if self.m2 else math.nan


class Moments(_Numbers[Spread, float, Spread]):
    """Count, mean, variance, skewness and kurtosis of numbers.

    >>> spread = Moments().aggregator([1.0, 2.0, 3.0, 4.0])
    >>> spread.mean, spread.variance, spread.skewness, round(spread.kurtosis, 2)
    (2.5, 1.25, 0.0, -1.36)

    Central moments, put together as in P. Pebay, Formulas for Robust, One-Pass Parallel Computation of Covariances and
    Arbitrary-Order Statistical Moments (2008): no digits are lost where the mean is large and the spread is not. In Arrow a
    struct of 40 bytes. A moment beyond all floats is infinite or NaN.
    """

    items = _FINITE
    codec = _counted(Spread, _no_spread)
    type = codec.type
    zero = Spread(0, 0.0, 0.0, 0.0, 0.0)

    def near(self, a: Spread, b: Spread) -> bool:
        width = abs(a.mean) + (a.deviation if a.n else 0.0)
        sides = zip(a[1:], b[1:], strict=True)
        return a.n == b.n and all(
            _alike(ours, theirs, 1e-9 * a.n * math.prod([width] * power))
            for power, (ours, theirs) in enumerate(sides, start=1)
        )

    def _sums(self, columns: Columns, starts: Rows) -> Columns:
        n, mean, m2, m3, m4 = columns
        count, middle, away = _middle(n, mean, starts)
        far = away * away
        ends = [
            m2 + n * far,
            m3 + away * (3 * m2 + n * far),
            m4 + away * (4 * m3) + far * (6 * m2 + n * far),
        ]
        return [count, middle, *(np.add.reduceat(power, starts) for power in ends)]

    def _lift(self, items: Array) -> Array:
        nothing = pa.array(np.zeros(len(items)))
        return self.codec.array([_ones(items), items, nothing, nothing, nothing], valid(items))


class Joint(NamedTuple):
    """The spread of pairs of numbers: their count, both means, and the sums of the products of their distances from them.

    A property that needs more pairs, or pairs that differ, is NaN.
    """

    n: int
    mean_x: float
    mean_y: float
    xx: float
    yy: float
    xy: float

    @property
    def covariance(self) -> float:
        """The covariance of these pairs. If they are a sample, xy / (n - 1) estimates that of the population."""
        return self.xy / self.n if self.n else math.nan

    @property
    def correlation(self) -> float:
        return self.xy / math.sqrt(self.xx) / math.sqrt(self.yy) if self.xx and self.yy else math.nan

    @property
    def slope(self) -> float:
        """The slope of the line of least squares, y over x."""
        return self.xy / self.xx if self.xx else math.nan


class Covariance(_Numbers[Joint, tuple[float, float], Joint]):
    """Covariance and correlation of pairs (x, y) of numbers.

    >>> round(Covariance().aggregator([(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]).correlation, 9)
    1.0

    Central moments, as Moments are. In Arrow a struct of 48 bytes; a column of structs of x and y is taken.
    """

    items = RecordCodec(lambda x, y: (x, y), {"x": _FINITE, "y": _FINITE})
    codec = _counted(Joint, _too_few)
    type = codec.type
    zero = Joint(0, 0.0, 0.0, 0.0, 0.0, 0.0)

    def near(self, a: Joint, b: Joint) -> bool:
        wide = [abs(mean) + math.sqrt(max(m2, 0.0) / max(a.n, 1)) for mean, m2 in zip(a[1:3], a[3:5], strict=True)]
        scales = [*wide, wide[0] * wide[0], wide[1] * wide[1], wide[0] * wide[1]]
        return a.n == b.n and all(
            _alike(ours, theirs, 1e-9 * a.n * scale) for scale, ours, theirs in zip(scales, a[1:], b[1:], strict=True)
        )

    def _sums(self, columns: Columns, starts: Rows) -> Columns:
        n, mean_x, mean_y, xx, yy, xy = columns
        count, middle_x, x = _middle(n, mean_x, starts)
        _, middle_y, y = _middle(n, mean_y, starts)
        ends = [xx + n * x * x, yy + n * y * y, xy + n * x * y]
        return [count, middle_x, middle_y, *(np.add.reduceat(product, starts) for product in ends)]

    def _lift(self, items: Array) -> Array:
        nothing = pa.array(np.zeros(len(items)))
        x, y = (items.field(name) for name in ("x", "y"))
        return self.codec.array([_ones(items), x, y, nothing, nothing, nothing], valid(items))


def _alike(a: float, b: float, tolerance: float) -> bool:
    # Beyond all floats grouping decides whether it is infinite or NaN.
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=tolerance) or (not math.isfinite(a) and not math.isfinite(b))


def _middle(n: NDArray[Any], mean: NDArray[Any], starts: Rows) -> Columns:
    """Return the count of each segment, its mean, and the distance of each row's mean from it."""
    lengths = np.diff(np.append(starts, len(n)))
    count = np.add.reduceat(n, starts)
    # Subtract the greatest mean first, so that equal means stay exactly equal.
    greatest = np.maximum.reduceat(np.where(n > 0, mean, -np.inf), starts)
    greatest[count == 0] = 0.0
    away = mean - np.repeat(greatest, lengths)
    away[n == 0] = 0.0
    shift = np.add.reduceat(n * away, starts)
    np.divide(shift, count, out=shift, where=count != 0)
    away -= np.repeat(shift, lengths)
    away[n == 0] = 0.0
    return [count, greatest + shift, away]


def _ones(items: Array) -> Array:
    return pa.array(np.ones(len(items), np.int64))


class Decayed(NamedTuple):
    """A sum as it is at a time, in microseconds UTC."""

    at: int
    value: float


class DecayedValue(_Numbers[Decayed, tuple[int, float], float]):
    """A sum of numbers of which each loses half of itself every so often: pairs (at, value), at in microseconds UTC.

    >>> hourly = DecayedValue(timedelta(hours=1))
    >>> hourly.aggregator([(0, 8.0), (3_600_000_000, 1.0)])
    5.0

    A value is the sum at the newest time of all, `at_clock` what it is at another. In Arrow a struct of 16 bytes; ages are
    exact between the years 1684 and 2255, and nearly so beyond.
    """

    items = RecordCodec(Decayed, {"at": Scalar(pa.int64()), "value": _FINITE})
    codec = RecordCodec(Decayed, {"at": Scalar(pa.int64()), "value": _FLOAT})
    type = codec.type
    zero = Decayed(-(2**63), 0.0)
    presented = pa.float64()

    def __init__(self, half_life: timedelta) -> None:
        self._half_life = half_life // timedelta(microseconds=1) if isinstance(half_life, timedelta) else 0
        if self._half_life <= 0:
            raise MonoidError(
                f"{self.name}: half_life={half_life} is no positive timedelta. Use a time after which half is left."
            )

    @property
    def parameters(self) -> dict[str, Any]:
        return {"half_life": self._half_life}

    def present(self, value: Decayed) -> float:
        return value[1]

    def present_column(self, column: Array) -> Array:
        return column.flatten()[1]

    def at_clock(self, value: Decayed, clock: int) -> float:
        """Return what is left of a value at a clock in microseconds UTC."""
        with np.errstate(all="ignore"):
            return float(value[1] * np.exp2((value[0] - clock) / self._half_life)) if value[1] else 0.0

    def near(self, a: Decayed, b: Decayed) -> bool:
        return a[0] == b[0] and close(a[1], b[1])

    def _sums(self, columns: Columns, starts: Rows) -> Columns:
        at, value = columns
        newest = np.maximum.reduceat(at, starts)
        age = np.repeat(newest.astype(np.float64), np.diff(np.append(starts, len(at)))) - at.astype(np.float64)
        return [newest, np.add.reduceat(value * np.exp2(-age / self._half_life), starts)]

    def _lift(self, items: Array) -> Array:
        return items


class _CountsCodec(Checked[list[Any]], ListCodec):
    """Lists of a fixed number of integers."""

    def __init__(self, length: int) -> None:
        super().__init__(Scalar(pa.int64()))
        self._length = length
        self.taken = f"lists of {length} integers"

    def misfits(self, array: Array) -> Mask:
        offsets, _ = entries_of(array)
        wrong: Mask = (valid(array) & (np.diff(offsets) != self._length)) | with_null_entries(array)
        return wrong


class Histogram(Summary[list[int], float, list[int]]):
    """The counts of numbers between given edges: below the first, from each to below the next, from the last on.

    >>> Histogram([0.0, 10.0, 100.0]).aggregator([-1.0, 0.0, 5.0, 10.0, 1e9])
    [1, 2, 1, 1]

    Counts add up as Sum does. In Arrow a list of one int64 more than there are edges, also for one number of a column: many
    edges take much memory on the way.
    """

    def __init__(self, edges: Sequence[float]) -> None:
        with naming(self.name):
            self._edges = _FINITE.to_arrow(list(edges)).to_numpy(zero_copy_only=False)
            if len(edges) == 0 or not np.isfinite(self._edges).all() or (np.diff(self._edges) <= 0).any():
                raise MonoidError(
                    f"edges={list(edges)} do not rise. Use one finite number or more, each above the last."
                )
        self.items: Scalar = _FINITE
        self.codec: ListCodec = _CountsCodec(len(edges) + 1)
        self.type = self.codec.type

    @property
    def parameters(self) -> dict[str, Any]:
        return {"edges": self._edges.tolist()}

    @property
    def zero(self) -> list[int]:
        return [0] * (len(self._edges) + 1)

    def plus(self, a: list[int], b: list[int]) -> list[int]:
        return [as_int64(ours + theirs) for ours, theirs in zip(a, b, strict=True)]

    def reduce(self, values: Array, starts: Rows) -> Array:
        _, stretch = entries_of(values)
        return self._column(np.add.reduceat(np.asarray(values.values[stretch]).reshape(-1, len(self.zero)), starts))

    def _column(self, counts: NDArray[np.int64]) -> Array:
        return pa.ListArray.from_arrays(offsets_of(np.full(len(counts), counts.shape[1])), pa.array(counts.ravel()))

    def _lift(self, items: Array) -> Array:
        place = np.searchsorted(self._edges, np.asarray(items.fill_null(0.0)), side="right")
        counts = place[:, None] == np.arange(len(self._edges) + 1)
        return null_where(self._column(counts.astype(np.int64)), ~valid(items))
