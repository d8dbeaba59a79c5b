"""Sorting and folding tables of partial sums: the one operation of every stage.

A table of partial sums has the columns `hash` (uint64), `key0`… (the normalised key columns), `start` (int64, the start of
the interval) and `value` (the monoid's type), sorted by hash. No interval reaches over the edge of a pane, where there are
windows. Where there are sessions, a row is a part of one, and `first` and `last` (int64) are its first and last timestamps.
Where messages count once, a row with an `id` is one message at its `time` (int64). A monoid that does not commute adds the
order of its updates: `time` (int64), `channel` (string), `position` (int64), `partition` (string) and `number` (int32).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from monoids import Monoid, MonoidError
from persistent_state.errors import TaskFailedError, raised
from persistent_state.event_time import clocks
from persistent_state.partials import keys, sizes
from persistent_state.windows import TIME, SlidingWindow, Windowing, window_columns

SLICE = 1 << 20
"""About how many rows are folded at a time, and are a run: what a process needs of memory does not grow with the state."""

SLICE_BYTES = 256 << 20
"""About how many bytes they are at the most: Arrow's texts, lists and maps hold no more than 2 GiB at a time."""

CURRENT = "current"
"""A column that runs may have, of the monoid's type: see `persistent_state.partials.lookup`."""

HEAD, TAIL = "head", "tail"
"""Columns that runs may have, of the monoid's type: see `persistent_state.partials.sliding`."""

WIDE = 16
"""How many steps a window has at the most that is summed up again each time one closes."""

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
    """What a task's tables of partial sums hold: the types of its key columns, its monoid, and what bounds it in time."""

    key_types: tuple[pa.DataType, ...]
    monoid: Monoid[Any]
    windowing: Windowing | None = None
    once: Once | None = None

    @property
    def is_ordered(self) -> bool:
        return not self.monoid.commutative

    @property
    def panes(self) -> SlidingWindow | None:
        """The windows whose panes are kept apart."""
        return self.windowing if isinstance(self.windowing, SlidingWindow) else None

    @property
    def is_wide(self) -> bool:
        """Whether runs hold sums from which a window is put together, however many panes it has.

        Only numbers are summed up in advance: what grows, as sets do, would take room for each pane's sum again.
        """
        if self.panes is None or self.is_ordered or not _is_number(self.monoid.type):
            return False
        return self.panes.size > WIDE * self.panes.slide

    @property
    def gap(self) -> int | None:
        """How long after a message a session ends that has no other."""
        return None if self.windowing is None or isinstance(self.windowing, SlidingWindow) else self.windowing.gap

    @property
    def window_fields(self) -> list[pa.Field]:
        """The columns that tell users which window a value is of, if there are windows."""
        return [pa.field(name, TIME) for name in window_columns(self.windowing)]

    @property
    def key_names(self) -> list[str]:
        return [f"key{i}" for i in range(len(self.key_types))]

    @property
    def in_time(self) -> str:
        """The column that the rows of a key are sorted by."""
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
    """Whether values are numbers or times, or structs of them, of which no sum is out of range."""
    if pa.types.is_struct(type):
        return all(_is_number(field.type) for field in type)
    return bool(pa.types.is_primitive(type) and not pa.types.is_decimal(type))


def as_numpy(table: pa.Table | pa.RecordBatch, name: str) -> NDArray[Any]:
    """A column without nulls as an array, without a copy where it is one chunk."""
    column = table.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    result: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return result


def one_chunk(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    with sizes.within_arrow():
        return pa.concat_arrays([*column.chunks, pa.array([], column.type)])


def sort(table: pa.Table, layout: Layout) -> tuple[NDArray[np.intp] | None, NDArray[np.bool_]]:
    """The order of the rows by (hash, key, time), or for an ordered monoid by (hash, key, order), and which begin another key.

    None: they are in order.
    """
    if not layout.is_ordered:
        hashes, starts = as_numpy(table, "hash"), as_numpy(table, layout.in_time)
        order = None if _is_in_order(hashes, starts) else _order(hashes, starts, layout)
        same_hash = _same_hashes(hashes if order is None else hashes[order])
        same_key = same_hash & _same_keys(table, order, layout)
        # Equal hashes are not equal keys. They almost never differ, so the keys themselves are sorted only where they do.
        if np.array_equal(same_key, same_hash):
            return order, ~same_key
    by = ["hash", *layout.key_names, *(ORDER if layout.is_ordered else [layout.in_time])]
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in by]).to_numpy().astype(np.intp)
    return order, ~(_same_hashes(as_numpy(table, "hash")[order]) & _same_keys(table, order, layout))


def _order(hashes: NDArray[np.uint64], times: NDArray[np.int64], layout: Layout) -> NDArray[np.intp]:
    if layout.gap is None:
        return order_by_hash(hashes, times)
    # Of sessions nearly all times differ: it is several times faster to sort by them first.
    by_time = order_by_time(times)
    return by_time[order_by_hash(hashes[by_time], times[by_time])]


def order_by_time(times: NDArray[np.int64]) -> NDArray[np.intp]:
    """The rows by time, those of one time as they came."""
    row_bits = max(0, len(times) - 1).bit_length()
    first = int(times.min())
    if (int(times.max()) - first).bit_length() + row_bits > 64:
        return np.argsort(times, kind="stable")
    packed = (times - first).astype(np.uint64) << np.uint64(row_bits)
    packed |= np.arange(len(times), dtype=np.uint64)
    packed.sort()
    packed &= np.uint64((1 << row_bits) - 1)
    return packed.view(np.intp)


def _is_in_order(hashes: NDArray[np.uint64], starts: NDArray[np.int64]) -> bool:
    rises = hashes[1:] > hashes[:-1]
    return bool(rises.all() or np.all(rises | (hashes[1:] == hashes[:-1]) & (starts[1:] >= starts[:-1])))


def _same_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    same = np.zeros(len(hashes), dtype=np.bool_)
    np.equal(hashes[1:], hashes[:-1], out=same[1:])
    return same


def _same_keys(table: pa.Table, order: NDArray[np.intp] | None, layout: Layout) -> NDArray[np.bool_]:
    columns = [taken(one_chunk(table[name]), order) for name in layout.key_names]
    return keys.same_as_previous(columns, table.num_rows)


def taken(column: pa.Array, order: NDArray[np.intp] | None) -> pa.Array:
    """A column in another order, None as it is."""
    if order is None:
        return column
    with sizes.within_arrow():
        return column.take(pa.array(order))


def order_by_hash(hashes: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.intp]:
    """The rows by (hash, start), those equal in both as they came.

    Numbers are sorted several times faster than what they belong to is put in their order. So one number of 64 bits holds
    as many of the hash's first bits as there is room for, the start's place among all starts, and the row's.
    """
    # Starts that rise with the rows, as those of sessions often do, need no place of their own.
    some = starts[:1] if np.all(starts[1:] >= starts[:-1]) else np.sort(pc.unique(pa.array(starts)).to_numpy())
    row_bits, start_bits = (max(0, len(of) - 1).bit_length() for of in (hashes, some))
    hash_bits = 64 - row_bits - start_bits
    if hash_bits < 1:
        return np.lexsort((starts, hashes))
    below = np.uint64(64 - hash_bits)
    packed = np.arange(len(hashes), dtype=np.uint64)
    packed |= hashes & ~((np.uint64(1) << below) - np.uint64(1))
    if start_bits:
        packed |= np.searchsorted(some, starts).astype(np.uint64) << np.uint64(row_bits)
    packed.sort()
    packed &= np.uint64((1 << row_bits) - 1)
    order = packed.view(np.intp)
    in_order = hashes[order]
    wrong = np.flatnonzero(in_order[1:] < in_order[:-1])
    if len(wrong):
        # Of the rows that share their first bits with another hash's, all bits decide.
        in_order >>= below
        first = np.unique(np.searchsorted(in_order, in_order[wrong]))
        rows = ranges(first, np.searchsorted(in_order, in_order[first], side="right") - first)
        some_rows = order[rows]
        order[rows] = some_rows[np.lexsort((starts[some_rows], hashes[some_rows]))]
    return order


def ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers of many ranges, one after the other."""
    offsets = np.cumsum(lengths) - lengths
    numbers: NDArray[np.int64] = np.arange(int(lengths.sum())) + np.repeat(begins - offsets, lengths)
    return numbers


def _together(tables: Sequence[pa.Table], layout: Layout, with_current: bool = False) -> pa.Table:
    some = []
    for table in tables:
        if table.num_rows and with_current and CURRENT not in table.column_names:
            unknown = pa.nulls(table.num_rows, layout.monoid.type)
            some.append(table.select(layout.schema.names).append_column(CURRENT, unknown))
        elif table.num_rows:
            some.append(table.select([*layout.schema.names, *([CURRENT] if with_current else [])]))
    return pa.concat_tables(some).combine_chunks() if some else layout.schema.empty_table()


def fold(
    tables: Sequence[pa.Table],
    layout: Layout,
    cuts: Sequence[int] = (),
    clock: int = clocks.BEGINNING,
    apart_from: int | None = None,
    with_current: bool = False,
    ids_from: int | None = None,
) -> pa.Table:
    """One table of the partial sums of all: one row per key and interval, or per part of a session in it.

    Below `clock` only the intervals between `cuts` stay apart. Rows of an ordered monoid that start at or after `apart_from`
    stay single messages: others may still have to go between them. So do messages with an id from the time `ids_from` on; what
    is before it loses its id.

    With the column `current` a key's is that of the newest table which has the key; the oldest comes first.
    """
    table = _together(tables, layout, with_current)
    if table.num_rows == 0:
        return table
    starts = as_numpy(table, "start")
    folded = clocks.fold_starts(starts, cuts, clock)
    if layout.panes:
        folded = np.maximum(folded, layout.panes.pane(starts))
    table = table.set_column(table.schema.get_field_index("start"), "start", pa.array(folded))
    singles = 0
    if ids_from is not None and layout.once is not None:
        table, singles = _forget_ids(table, layout.once, ids_from)
        folded = as_numpy(table, "start")
    order, first = sort(table, layout)
    begins_key = first.copy()
    if folded.min() < folded.max() or apart_from is not None:
        starts = folded if order is None else folded[order]
        first[1:] |= starts[1:] != starts[:-1]
        if apart_from is not None and layout.is_ordered:
            first |= starts >= apart_from
    first = _sessions(table, order, first, layout)
    if singles:
        is_single = (np.arange(len(first)) if order is None else order) >= len(first) - singles
        first |= is_single
        first[1:] |= is_single[:-1]
    if not with_current:
        return reduce(table, order, first, layout)
    current = _newest(one_chunk(table[CURRENT]), order, begins_key, first)
    return reduce(table.drop_columns([CURRENT]), order, first, layout).append_column(CURRENT, current)


def _forget_ids(table: pa.Table, once: Once, ids_from: int) -> tuple[pa.Table, int]:
    """The rows with those last that keep their id, and how many do: those of equal place stay apart behind what is folded."""
    keeps = np.asarray(one_chunk(table[ID]).is_valid()) & (as_numpy(table, "time") >= ids_from)
    rest = table.filter(pa.array(~keeps))
    rest = rest.set_column(rest.schema.get_field_index(ID), ID, pa.nulls(len(rest), once.type))
    singles = table.filter(pa.array(keeps))
    return pa.concat_tables([rest, singles]).combine_chunks(), len(singles)


def _newest(
    current: pa.Array, order: NDArray[np.intp] | None, begins_key: NDArray[np.bool_], first: NDArray[np.bool_]
) -> pa.Array:
    """At the last of the rows that each key folds to, what the last of its rows in the newest table said; else null."""
    rows = np.arange(len(first)) if order is None else order
    newest = np.maximum.reduceat(rows, np.flatnonzero(begins_key))
    is_last = np.append(begins_key[first][1:], True)
    place = np.zeros(len(is_last), np.intp)
    place[is_last] = newest
    return current.take(pa.array(place, mask=~is_last))


def fold_keys(tables: Sequence[pa.Table], layout: Layout) -> pa.Table:
    """One row per key: the fold of all its rows, its start that of the first. One per session, where there are sessions."""
    table = _together(tables, layout)
    if table.num_rows == 0:
        return table
    order, first = sort(table, layout)
    return reduce(table, order, _sessions(table, order, first, layout), layout)


def _sessions(
    table: pa.Table, order: NDArray[np.intp] | None, first: NDArray[np.bool_], layout: Layout
) -> NDArray[np.bool_]:
    """Which of the rows in this order begin a session, or one of the segments that begin at `first`."""
    if layout.gap is None:
        return first
    firsts, lasts = (as_numpy(table, name) for name in ("first", "last"))
    if order is not None:
        firsts, lasts = firsts[order], lasts[order]
    begins = first.copy()
    begins[1:] |= firsts[1:] >= _running_max(lasts, first)[:-1] + layout.gap
    return begins


def _running_max(values: NDArray[np.int64], first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The greatest value so far within each segment."""
    if np.all((values[1:] >= values[:-1]) | first[1:]):
        return values
    # Numbers that rise from segment to segment: the value's rank within, the segment's number before it.
    ranked, count = np.argsort(values, kind="stable"), len(values)
    rank = np.empty(count, np.int64)
    rank[ranked] = np.arange(count)
    before = (np.cumsum(first) - 1) * count
    greatest: NDArray[np.int64] = values[ranked[np.maximum.accumulate(before + rank) - before]]
    return greatest


def reduce(table: pa.Table, order: NDArray[np.intp] | None, first: NDArray[np.bool_], layout: Layout) -> pa.Table:
    """One row per segment of a table's rows in this order (None: their own); `first` marks where segments begin.

    Raises:
        TaskFailedError: a sum is no value of the monoid any more, as a decimal of too many digits.
    """
    begins = np.flatnonzero(first)
    if order is None and len(begins) == table.num_rows:
        return table
    values = taken(one_chunk(table["value"]), order)
    if len(begins) < table.num_rows:
        values = sums(values, begins, layout)
    place = table.schema.get_field_index("value")
    heads = table.remove_column(place).take(pa.array(begins if order is None else order[begins]))
    if layout.gap is not None:
        lasts = as_numpy(table, "last")
        lasts = np.maximum.reduceat(lasts if order is None else lasts[order], begins)
        heads = heads.set_column(heads.schema.get_field_index("last"), "last", pa.array(lasts))
    return heads.add_column(place, layout.schema.field("value"), values)


def sums(values: pa.Array, begins: NDArray[np.intp], layout: Layout) -> pa.Array:
    """The monoid's sum of each segment of a column.

    Raises:
        TaskFailedError: a sum is no value of the monoid any more, or the monoid raised.
    """
    try:
        with sizes.within_arrow():
            return layout.monoid.reduce(values, begins)
    except TaskFailedError:
        raise
    except MonoidError as error:
        raise TaskFailedError(str(error)) from error
    except Exception as error:
        raise TaskFailedError(
            f"monoid {layout.monoid.name} raised {raised(error)}, for values that it made; mend it."
        ) from error


def slices(
    tables: Sequence[pa.Table],
    low: int = 0,
    high: int = 1 << 64,
    share: int = 1,
    asked: Sequence[pa.Table] = (),
    levels: Sequence[pa.Table] = (),
) -> list[tuple[int, int]]:
    """Ranges of the hash from `low` to `high` that hold few of the rows of these sorted tables each.

    About SLICE of them, or SLICE_BYTES where that is less, or a `share` of both. What `levels` hold of the hashes that are
    `asked` for counts as bytes too.
    """
    most, size = max(1, SLICE // share), max(1, SLICE_BYTES // share)
    pieces = []
    if sum(map(len, tables)) > most or sum(table.nbytes for table in tables) > size:
        pieces += [sizes.pieces(batch, most, size) for table in tables for batch in table.to_batches() if len(batch)]
    if sum(level.nbytes for level in levels if len(asked)) > size:
        pieces += [(hashes, touched / size) for hashes, touched in (sizes.touched(table, levels) for table in asked)]
    if not pieces:
        return [(low, high)]
    hashes, weights = (np.concatenate(some) for some in zip(*pieces, strict=True))
    order = np.argsort(hashes, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    count = int(np.ceil(weights.sum()))
    found = np.searchsorted(before, weights.sum() * np.arange(1, count) / max(1, count))
    bounds = {int(hash) for hash in hashes[order[found[found < len(order)]]]}
    return list(pairwise([low, *sorted(bounds - {low}), high]))


def between(table: pa.Table, low: int, high: int) -> pa.Table:
    """The rows of a sorted table with low <= hash < high."""
    hashes = as_numpy(table, "hash")
    begin = int(np.searchsorted(hashes, np.uint64(low)))
    end = len(hashes) if high >= 2**64 else int(np.searchsorted(hashes, np.uint64(high)))
    return table.slice(begin, end - begin)


def below(table: pa.Table, clock: int | None) -> pa.Table:
    """The rows whose interval starts below the clock (None: all)."""
    if clock is None:
        return table
    starts = as_numpy(table, "start")
    return table if len(starts) == 0 or starts.max() < clock else table.filter(pa.array(starts < clock))


def from_clock(table: pa.Table, clock: int) -> pa.Table:
    """The rows whose interval starts at or above the clock."""
    return table.filter(pa.array(as_numpy(table, "start") >= clock))


def expiry(table: pa.Table, layout: Layout) -> NDArray[np.int64] | None:
    """The clock by which each row has expired: no window that is open then, and no session that goes on, needs it."""
    if layout.panes:
        return layout.panes.last(as_numpy(table, "start")) + layout.panes.size
    if layout.gap is None:
        return None
    ends = as_numpy(table, "last") + layout.gap
    if layout.once is None or len(table) == 0:
        return ends
    # Messages with an id are rows of their own below every clock, and each is needed until its session ends.
    order, first = sort(table, layout)
    order = np.arange(len(table)) if order is None else order
    begins = np.flatnonzero(_sessions(table, order, first, layout))
    of_sessions = np.empty(len(table), np.int64)
    of_sessions[order] = np.repeat(np.maximum.reduceat(ends[order], begins), np.diff(np.append(begins, len(table))))
    return of_sessions


def fading(table: pa.Table, layout: Layout) -> NDArray[np.int64] | None:
    """The clock by which each row has expired, or is no single message any more; None if none ever does."""
    expired = expiry(table, layout)
    if layout.once is None:
        return expired
    expired = np.full(len(table), np.iinfo(np.int64).max) if expired is None else expired
    forgotten = as_numpy(table, "time") + (layout.once.horizon + 1)
    return np.where(one_chunk(table[ID]).is_valid(), forgotten, expired)


def touched(table: pa.Table, fresh: pa.Table) -> pa.Table:
    """The rows of a sorted table whose hash is among those of another, which is sorted too."""
    hashes, stored = as_numpy(fresh, "hash"), as_numpy(table, "hash")
    if len(stored) == 0:
        return table
    hashes = hashes[np.searchsorted(hashes, stored[0]) : np.searchsorted(hashes, stored[-1], side="right")]
    hashes = hashes[np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]]
    begin = np.searchsorted(stored, hashes)
    end, more = begin.copy(), np.arange(len(hashes))
    # Most keys have few rows: to look at the next is faster than to search for the last.
    for _ in range(4):
        more = more[end[more] < len(stored)]
        more = more[stored[end[more]] == hashes[more]]
        end[more] += 1
    end[more] = np.searchsorted(stored, hashes[more], side="right")
    return table.take(pa.array(ranges(begin, end - begin)))
