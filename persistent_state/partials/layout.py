"""The columns of a table of partial sums, and how rows of it are picked.

A table of partial sums has the columns `hash` (uint64), `key0`, `key1` and so on (the normalised key columns), `start` (int64,
the start of the interval) and `value` (the monoid's type). It is sorted by the hash. Some states have more columns:

- With windows, no interval reaches over the edge of a pane.
- With sessions, a row is a part of one, and `first` and `last` (int64) are its first and last timestamps.
- Where messages count once, a row with an `id` is one message at its `time` (int64).
- A monoid that does not commute adds the order of its updates: `time` (int64), `channel` (string), `position` (int64), `strand`
  (string, the partition of the source) and `number` (int32).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from monoids import Monoid
from persistent_state.partials import sizes
from persistent_state.windows import TIME, SlidingWindow, Windowing, window_columns

CURRENT = "current"
"""A column that runs may have, of the monoid's type: see `persistent_state.partials.lookup`."""

HEAD, TAIL = "head", "tail"
"""Columns that runs may have, of the monoid's type: see `persistent_state.partials.sliding`."""

WIDE = 16
"""The most slides in a window whose panes are summed up each time a window closes; wider windows keep sums in runs."""

ID = "id"
"""A column that says which message a row is, where messages count once; null if it is of several, or of one without an id."""

ORDER = ("time", "channel", "position", "strand", "number")
ORDER_TYPES = (pa.int64(), pa.string(), pa.int64(), pa.string(), pa.int32())


@dataclass(frozen=True)
class Once:
    """Messages of a key with the same id, of this type, count once if they are at most `horizon` microseconds apart."""

    type: pa.DataType
    horizon: int


@dataclass(frozen=True)
class Layout:
    """The layout of a task's tables of partial sums: the types of its key columns, its monoid, and what bounds it in time."""

    key_types: tuple[pa.DataType, ...]
    monoid: Monoid[Any]
    windowing: Windowing | None = None
    once: Once | None = None

    @property
    def is_ordered(self) -> bool:
        return not self.monoid.commutative

    @property
    def panes(self) -> SlidingWindow | None:
        """Return the windows whose panes are kept apart, if there are any."""
        return self.windowing if isinstance(self.windowing, SlidingWindow) else None

    @property
    def is_wide(self) -> bool:
        """Return whether runs hold sums from which a window is put together, however many panes it has.

        Only numbers are summed up in advance: what grows, as sets do, would take room for each pane's sum again.
        """
        if self.panes is None or self.is_ordered or not _is_number(self.monoid.type):
            return False
        return self.panes.size > WIDE * self.panes.slide

    @property
    def gap(self) -> int | None:
        """Return how long after its last message a session or a state that expires ends, in microseconds."""
        return None if self.windowing is None or isinstance(self.windowing, SlidingWindow) else self.windowing.gap

    @property
    def window_fields(self) -> list[pa.Field]:
        """Return the columns that tell users which window a value is of, if there are windows."""
        return [pa.field(name, TIME) for name in window_columns(self.windowing)]

    @property
    def key_names(self) -> list[str]:
        return [f"key{i}" for i in range(len(self.key_types))]

    @property
    def in_time(self) -> str:
        """Return the name of the column by which the rows of a key are sorted."""
        return "start" if self.gap is None else "first"

    @property
    def schema(self) -> pa.Schema:
        columns = [("hash", pa.uint64()), *zip(self.key_names, self.key_types, strict=True), ("start", pa.int64())]
        columns += [("first", pa.int64()), ("last", pa.int64())] if self.gap is not None else []
        order = list(zip(ORDER, ORDER_TYPES, strict=True)) if self.is_ordered else []
        if self.once is not None:
            order = [(ID, self.once.type), *(order or [("time", pa.int64())])]
        return pa.schema([*columns, ("value", self.monoid.type), *order])


def _is_number(type: pa.DataType) -> bool:
    """Return whether values are numbers or times, or structs of them, of which no sum is out of range."""
    if pa.types.is_struct(type):
        return all(_is_number(field.type) for field in type)
    return bool(pa.types.is_primitive(type) and not pa.types.is_decimal(type))


def as_numpy(table: pa.Table | pa.RecordBatch, name: str) -> NDArray[Any]:
    """Return a column without nulls as an array. Nothing is copied where the column is one chunk."""
    column = table.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    result: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return result


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    with sizes.within_arrow():
        return pa.concat_arrays([*column.chunks, pa.array([], column.type)])


def between(table: pa.Table, low: int, high: int) -> pa.Table:
    """Return the rows of a sorted table with low <= hash < high."""
    hashes = as_numpy(table, "hash")
    begin = int(np.searchsorted(hashes, np.uint64(low)))
    end = len(hashes) if high >= 2**64 else int(np.searchsorted(hashes, np.uint64(high)))
    return table.slice(begin, end - begin)


def below(table: pa.Table, clock: int | None) -> pa.Table:
    """Return the rows whose interval starts below the clock (None: all rows)."""
    if clock is None:
        return table
    starts = as_numpy(table, "start")
    return table if len(starts) == 0 or starts.max() < clock else table.filter(pa.array(starts < clock))


def from_clock(table: pa.Table, clock: int) -> pa.Table:
    """Return the rows whose interval starts at or above the clock."""
    return table.filter(pa.array(as_numpy(table, "start") >= clock))
