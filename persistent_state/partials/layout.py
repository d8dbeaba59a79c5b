"""The columns of a table of partial sums, and how rows of it are picked.

A table of partial sums has the columns `hash` (uint64), `key0`, `key1` and so on (the normalised key columns), `start` (int64,
the start of the interval) and `value` (the monoid's type). It is sorted by the hash. Some states have more columns:

- With windows, no interval reaches over the edge of a pane.
- With sessions, a row is a part of one, and `first` and `last` (int64) are its first and last timestamps.
- Where messages count once, a row with an `id` is one message at its `time` (int64).
- A monoid that does not commute adds the order of its updates: `time` (int64), `channel` (string), `position` (int64), `strand`
  (string, the partition of the source) and `number` (int32). A row of several messages has the place of the first of them; if
  `Layout.places_last`, that of the last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from monoids import First, Last, Monoid
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import sizes
from persistent_state.partials.since import Since
from persistent_state.partials.so_far import SoFar
from persistent_state.windows import TIME

CURRENT = "current"
"""A column that runs may have, of the monoid's type: see `persistent_state.partials.lookup`."""

HEAD, TAIL = "head", "tail"
"""Columns that runs may have, of the monoid's type: see `persistent_state.partials.sliding`."""

DUE = "due"
"""A column that some states have: the time of the key's first timer (int64)."""

ID = "id"
"""A column that says which message a row is, where messages count once; null if it is of several, or of one without an id."""

ORDER = ("time", "channel", "position", "strand", "number")
NAMES = ("channel", "strand")
"""The columns of `ORDER` that are names, of which many rows have the same."""
ORDER_TYPES = (pa.int64(), pa.string(), pa.int64(), pa.string(), pa.int32())


@dataclass(frozen=True)
class Once:
    """Messages of a key with the same id, of this type, count once if they are at most `horizon` microseconds apart."""

    type: pa.DataType
    horizon: int


Levels: TypeAlias = Sequence[pa.Table]
"""Tables of partial sums of the same hashes, the oldest first."""

RowOrder: TypeAlias = NDArray[np.intp] | None
"""The numbers of a table's rows in another order; None is their own."""


class Kind(ABC):
    """The way in which a state lies in time. `persistent_state.partials.kinds` lists them all.

    The methods here that are not abstract do what a state without bounds needs. The tables that `state`, `values` and `running`
    return have the columns `hash`, `key0`…, `window_start` and `window_end` (int64, microseconds UTC) where there are windows,
    and `value`.

    Attributes:
        columns: The columns beside `start` that say where a row lies in time. In an update they all hold the message's time.
        in_time: The column by which the rows of a key are sorted.
        window_columns: The columns that show users which window a value is of.
        expires: Whether time bounds the state: what has expired is dropped.
        expires_by_key: Whether expiry is known only where all rows of a key are together.
        gives_early: Whether windows can be given while they are open.
    """

    columns: ClassVar[tuple[str, ...]] = ()
    in_time: ClassVar[str] = "start"
    window_columns: ClassVar[tuple[str, ...]] = ()
    expires: ClassVar[bool] = False
    expires_by_key: ClassVar[bool] = False
    gives_early: ClassVar[bool] = False

    def holds(self, updates: pa.Table) -> NDArray[np.bool_]:
        """Return which updates have a `start` that is in the state."""
        return np.ones(len(updates), np.bool_)

    def in_state(self, updates: pa.Table) -> pa.Table:
        """Return the updates whose `start` is in the state."""
        return where(updates, self.holds(updates))

    def begin_apart(self, starts: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the starts of intervals that hold these times, moved so that none reaches over an edge of a window."""
        return starts

    def segments(self, table: pa.Table, order: RowOrder, first: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which rows in this order begin a segment to fold; those at `first` do."""
        return first

    def with_span(self, heads: pa.Table, table: pa.Table, order: RowOrder, begins: NDArray[np.intp]) -> pa.Table:
        """Return the first rows of the segments of a table in this order, with the time that the whole segment spans."""
        return heads

    def expiry(self, table: pa.Table, layout: Layout) -> NDArray[np.int64] | None:
        """Return the clock by which each row has expired; None if none ever does."""
        return None

    def has_expired(self, last: int, floor: int) -> bool:
        """Return whether all rows of a run whose last row starts at `last` have certainly expired by the clock `floor`."""
        return False

    def ends(self, table: pa.Table, after: int, upto: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return clocks in (after, upto] at which a row, or a window that it is in, may end, with the number of the row."""
        return np.array([], np.intp), np.array([], np.int64)

    def may_end(self, first: int, last: int, after: int, upto: int) -> bool:
        """Return whether `ends` may give anything for rows of which the least start is `first` and the greatest is `last`."""
        return self.expires

    def all_ended(self, clock: int) -> int:
        """Return the latest time such that everything made of messages below it has ended by `clock`."""
        return BEGINNING

    def with_sums(self, table: pa.Table, layout: Layout) -> pa.Table:
        """Return rows of a run with the sums that a run keeps beside them."""
        return table

    def windows_per_row(self, clock: int, since: Since | None, floor: int) -> int:
        """Return the greatest number of windows that one row may be in, of those asked for.

        Without `since` the windows that are open at the clock are asked for.
        """
        return 1

    @abstractmethod
    def state(self, levels: Levels, layout: Layout, clock: int) -> pa.Table:
        """Return the value of each key at a clock, or of each window that is open then. The rows are below the clock."""

    @abstractmethod
    def values(self, levels: Levels, layout: Layout, since: Since, clock: int, floor: int) -> pa.Table:
        """Return the values at a clock that are asked for. What expired by the clock `floor` may be gone."""

    def running(self, levels: Levels, layout: Layout, clock: int) -> pa.Table:
        """Return the values so far of the keys of the rows, or of their windows that are open. Rows may be above the clock."""
        return self.state(levels, layout, clock)

    def so_far(self, asked: pa.Table, levels: Levels, layout: Layout, lowest: int) -> SoFar:
        """Return what messages of these keys read, which come in the order of the keys; none is before `lowest`.

        Args:
            asked: The keys, each once, as a table that is sorted by hash and key.
            levels: The rows that runs hold of these keys; perhaps others too.
            layout: The layout of the rows.
            lowest: The lowest timestamp of the messages.
        """
        raise NotImplementedError(f"{type(self).__name__} is not read while messages are processed.")


@dataclass(frozen=True)
class Layout:
    """The layout of a task's tables of partial sums: the types of its key columns, its monoid, and how it lies in time.

    Errors name the task.
    """

    key_types: tuple[pa.DataType, ...]
    monoid: Monoid[Any]
    kind: Kind
    once: Once | None = None
    task: str = field(default="", compare=False)

    @property
    def is_ordered(self) -> bool:
        return not self.monoid.commutative

    @property
    def folds_early(self) -> bool:
        """Return whether rows may be folded before all messages that go between them have come.

        `First` and `Last` commute where rows have places: their sum is the value of one message, and keeps that message's
        place. A subclass may add otherwise. The parts of a session are in the order of their first messages, so there a `Last`
        could not keep the place of its last.
        """
        return not self.is_ordered or (type(self.monoid) in (First, Last) and not self.kind.expires_by_key)

    @property
    def places_last(self) -> bool:
        """Return whether a row has the place of its last message, and not of its first."""
        return type(self.monoid) is Last and self.folds_early

    @property
    def window_fields(self) -> list[pa.Field]:
        """Return the columns that show users which window a value is of, if there are windows."""
        return [pa.field(name, TIME) for name in self.kind.window_columns]

    @property
    def key_names(self) -> list[str]:
        return [f"key{i}" for i in range(len(self.key_types))]

    @property
    def schema(self) -> pa.Schema:
        columns = [("hash", pa.uint64()), *zip(self.key_names, self.key_types, strict=True)]
        columns += [(name, pa.int64()) for name in ("start", *self.kind.columns)]
        order = list(zip(ORDER, ORDER_TYPES, strict=True)) if self.is_ordered else []
        if self.once is not None:
            order = [(ID, self.once.type), *(order or [("time", pa.int64())])]
        return pa.schema([*columns, ("value", self.monoid.type), *order])


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
    begin, end = rows_below(table, low), rows_below(table, high)
    return table.slice(begin, end - begin)


def rows_below(table: pa.Table, hash: int) -> int:
    """Return how many rows of a sorted table have a lower hash."""
    # To search by numpy would copy the hashes of all rows, where they stand in several chunks.
    return bisect_left(table["hash"], hash, key=lambda found: found.as_py())


def below(table: pa.Table, clock: int | None) -> pa.Table:
    """Return the rows whose interval starts below the clock (None: all rows)."""
    if clock is None:
        return table
    starts = as_numpy(table, "start")
    return table if len(starts) == 0 or starts.max() < clock else table.filter(pa.array(starts < clock))


def from_clock(table: pa.Table, clock: int) -> pa.Table:
    """Return the rows whose interval starts at or above the clock."""
    return where(table, as_numpy(table, "start") >= clock)


def those_within(times: NDArray[np.int64], after: int, upto: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
    """Return the rows whose times are in (after, upto], and these times."""
    rows = np.flatnonzero((times > after) & (times <= upto))
    return rows, times[rows]


def where(table: pa.Table, mask: NDArray[np.bool_]) -> pa.Table:
    """Return the rows that a mask picks."""
    return table if mask.all() else table.filter(pa.array(mask))


def has_id(table: pa.Table) -> NDArray[np.bool_]:
    """Return which rows are one message with an id."""
    return np.asarray(one_chunk(table[ID]).is_valid())


def with_values(table: pa.Table, values: pa.Array) -> pa.Table:
    """Return the rows with other values."""
    return table.set_column(table.schema.get_field_index("value"), "value", values)
