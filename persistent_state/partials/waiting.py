"""Rows that wait until the clock has passed them: messages that are to be processed in order, and rows that were given out.

A row is never folded with another. It is given once, at the first clock above its time, and takes no room after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from monoids.codec import null_where
from monoids.nested import codec_of
from persistent_state.partials import fold
from persistent_state.partials.evolve import Evolving, plain
from persistent_state.partials.layout import Kind, Layout, Levels, RowOrder, as_numpy, below, from_clock, those_within
from persistent_state.partials.since import Since
from persistent_state.partials.sort import rows_of, sort
from persistent_state.windows import MOMENT


class Rows(Evolving):
    """Rows of one type, in their order. Each stays apart, so that there is no `plus`."""

    commutative = False
    zero = None

    def __init__(self, type: pa.DataType) -> None:
        self.type = plain(type)

    def plus(self, a: Any, b: Any) -> Any:
        raise NotImplementedError("Rows stay apart.")

    def _cast(self, column: pa.Array) -> tuple[pa.Array, NDArray[np.bool_]]:
        fitted, misfits = _fitted(column, self.type)
        return null_where(fitted, misfits), misfits

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return list(array.to_pylist())


def _fitted(column: pa.Array, type: pa.DataType) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return a column as one of this type, and which of its rows have a value that does not fit. Null structs stay null."""
    if column.type == type:
        return column, np.zeros(len(column), np.bool_)
    if not (pa.types.is_struct(type) and pa.types.is_struct(column.type)):
        return codec_of(type).cast(column)
    parts = [_fitted(column.field(place), field.type) for place, field in enumerate(type)]
    misfits = np.logical_or.reduce([misfits for _, misfits in parts]) & np.asarray(column.is_valid())
    return pa.StructArray.from_arrays([part for part, _ in parts], fields=list(type), mask=column.is_null()), misfits


@dataclass(frozen=True)
class Waiting(Kind):
    """Rows whose `start` is their own time, not that of an interval. They stay for `back` microseconds after it."""

    back: int = 0

    window_columns: ClassVar[tuple[str, ...]] = (MOMENT,)
    expires: ClassVar[bool] = True

    def begin_apart(self, starts: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
        return times

    def segments(self, table: pa.Table, order: RowOrder, first: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.ones(len(first), np.bool_)

    def expiry(self, table: pa.Table, layout: Layout) -> NDArray[np.int64]:
        return self._ends(table)

    def has_expired(self, last: int, floor: int) -> bool:
        return last + self.back < floor

    def ends(self, table: pa.Table, after: int, upto: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        return those_within(self._ends(table), after, upto)

    def may_end(self, first: int, last: int, after: int, upto: int) -> bool:
        stay = 1 + self.back
        return first + stay <= upto and last + stay > after

    def state(self, levels: Levels, layout: Layout, clock: int) -> pa.Table:
        """Return no row: at a clock, none that is below it waits."""
        return _shown(layout.schema.empty_table(), layout)

    def values(self, levels: Levels, layout: Layout, since: Since, clock: int, floor: int) -> pa.Table:
        """Return the rows that the clock has passed since, by key, those of a key in their order."""
        return _shown(rows_passed(levels, layout, max(since.clock, floor), clock), layout)

    def _ends(self, table: pa.Table) -> NDArray[np.int64]:
        """Return the first clock at which each row is not needed any more."""
        clocks: NDArray[np.int64] = as_numpy(table, "start") + (1 + self.back)
        return clocks


def passed(levels: Levels, layout: Layout, low: int, high: int) -> pa.Table:
    """Return the rows of a span of time with all their columns, by key, those of a key in their order."""
    return _passed(levels, layout, low, high, layout.schema.names)


def rows_passed(levels: Levels, layout: Layout, low: int, high: int) -> pa.Table:
    """Return what `passed` does, without the columns that only say what the order is."""
    return _passed(levels, layout, low, high, _row_columns(layout))


def _passed(levels: Levels, layout: Layout, low: int, high: int, columns: Sequence[str]) -> pa.Table:
    table = fold.together([below(from_clock(level, low), high) for level in levels], layout)
    order = sort(table, layout)[0] if len(table) else None
    table = table.select(columns)
    return table if order is None else rows_of(table, order)


def _row_columns(layout: Layout) -> list[str]:
    return ["hash", *layout.key_names, "start", "value"]


def _shown(rows: pa.Table, layout: Layout) -> pa.Table:
    names = _row_columns(layout)
    return rows.select(names).rename_columns([MOMENT if name == "start" else name for name in names])
