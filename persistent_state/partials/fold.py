"""Fold tables of partial sums: the one operation of every stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from monoids import Monoid, MonoidError
from persistent_state.errors import TaskFailedError, at_definition, raised
from persistent_state.event_time import clocks
from persistent_state.formatting import plain, shortened
from persistent_state.partials import sizes
from persistent_state.partials.layout import (
    CURRENT,
    ID,
    ORDER,
    Layout,
    Levels,
    Once,
    RowOrder,
    as_numpy,
    has_id,
    one_chunk,
)
from persistent_state.partials.sort import ranges, rows_of, sort, taken

SLICE = 1 << 20
"""About how many rows are folded at a time, and are a run: what a process needs of memory does not grow with the state."""

SLICE_BYTES = 256 << 20
"""About how many bytes they are at the most: Arrow's texts, lists and maps hold no more than 2 GiB at a time."""


TOO_LARGE = (
    "Every start meets these messages again: leave out the ones that are too large in the task's code, or change the type and "
    "name the task in rebuild or reset of run or start."
)
"""The ways out for a task with a sum that its type does not hold."""


def together(tables: Sequence[pa.Table], layout: Layout, with_current: bool = False) -> pa.Table:
    """Return the rows of all tables as one, with the column `current` if that is asked for."""
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
    """Return one table of the partial sums of all: one row per key and interval, or per part of a session in it.

    Below `clock` only the intervals between `cuts` stay apart. Rows that start at or after `apart_from` stay single messages
    (None: none do): others may still have to go between them. So do messages with an id from the time `ids_from` on; what
    is before it loses its id.

    With the column `current` a key's is that of the newest table which has the key; the oldest comes first.
    """
    table = together(tables, layout, with_current)
    if table.num_rows == 0:
        return table
    starts = as_numpy(table, "start")
    folded = clocks.fold_starts(starts, cuts, clock)
    folded = layout.kind.begin_apart(folded, starts)
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
        if apart_from is not None:
            first |= starts >= apart_from
    first = layout.kind.segments(table, order, first)
    if singles:
        is_single = (np.arange(len(first)) if order is None else order) >= len(first) - singles
        first |= is_single
        first[1:] |= is_single[:-1]
    if not with_current:
        return reduce(table, order, first, layout)
    current = _newest(one_chunk(table[CURRENT]), order, begins_key, first)
    return reduce(table.drop_columns([CURRENT]), order, first, layout).append_column(CURRENT, current)


def _forget_ids(table: pa.Table, once: Once, ids_from: int) -> tuple[pa.Table, int]:
    """Return the rows, those that keep their id at the end, and how many keep it.

    These are not folded: each stays a row of its own, after the folded row of its key and interval.
    """
    keeps = has_id(table) & (as_numpy(table, "time") >= ids_from)
    rest = table.filter(pa.array(~keeps))
    rest = rest.set_column(rest.schema.get_field_index(ID), ID, pa.nulls(len(rest), once.type))
    singles = table.filter(pa.array(keeps))
    return pa.concat_tables([rest, singles]).combine_chunks(), len(singles)


def _newest(current: pa.Array, order: RowOrder, begins_key: NDArray[np.bool_], first: NDArray[np.bool_]) -> pa.Array:
    """At the last of the rows that each key folds to, what the last of its rows in the newest table said; else null."""
    rows = np.arange(len(first)) if order is None else order
    newest = np.maximum.reduceat(rows, np.flatnonzero(begins_key))
    is_last = np.append(begins_key[first][1:], True)
    place = np.zeros(len(is_last), np.intp)
    place[is_last] = newest
    return current.take(pa.array(place, mask=~is_last))


def fold_keys(tables: Sequence[pa.Table], layout: Layout) -> pa.Table:
    """Return one row per key, or per session of a key: the fold of all its rows, with the start of the first."""
    table = together(tables, layout)
    if table.num_rows == 0:
        return table
    order, first = sort(table, layout)
    return reduce(table, order, layout.kind.segments(table, order, first), layout)


def reduce(table: pa.Table, order: RowOrder, first: NDArray[np.bool_], layout: Layout) -> pa.Table:
    """Return one row per segment of a table's rows in this order (None: their own); `first` marks where segments begin.

    Raises:
        TaskFailedError: a sum is no value of the monoid any more, as a decimal of too many digits.
    """
    begins = np.flatnonzero(first)
    if order is None and len(begins) == table.num_rows:
        return table
    values = taken(one_chunk(table["value"]), order)
    if len(begins) < table.num_rows:
        values = of_keys(
            lambda low, high: sums(values.slice(low, high - low), np.flatnonzero(first[low:high]), layout),
            begins,
            table.num_rows,
            table,
            order,
            layout,
        )
    place = table.schema.get_field_index("value")
    heads = layout.kind.with_span(_heads(table.remove_column(place), order, begins, layout), table, order, begins)
    return heads.add_column(place, layout.schema.field("value"), values)


def _heads(table: pa.Table, order: RowOrder, begins: NDArray[np.intp], layout: Layout) -> pa.Table:
    """Return the first row of each segment, with the place in the order of messages that the whole segment has."""
    if not layout.places_last:
        return rows_of(table, begins if order is None else order[begins])
    lasts = np.append(begins[1:], table.num_rows) - 1
    first, last = (pa.array(rows if order is None else order[rows]) for rows in (begins, lasts))
    return pa.table({name: table[name].take(last if name in ORDER else first) for name in table.column_names})


def of_keys(
    work: Callable[[int, int], pa.Array],
    begins: NDArray[np.intp],
    count: int,
    table: pa.Table,
    rows: RowOrder,
    layout: Layout,
) -> pa.Array:
    """Return what `work` makes of the values [0, count).

    Args:
        work: Makes a column of the values [low, high), which begin a segment at `low`.
        begins: The first value of each segment.
        count: How many values there are.
        table: A table with the key columns.
        rows: The row of the table that each value is of; None if each is of its own.
        layout: The layout of the table.

    Raises:
        TaskFailedError: `work` raises. The error names the task, and the key of a segment for which `work` raises.
    """
    try:
        return work(0, count)
    except TaskFailedError as error:
        place = f"task={layout.task}" if layout.task else ""
        bounds, low, high = [*begins.tolist(), count], 0, len(begins)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _fails(work, bounds[low], bounds[middle]) else (middle, high)
        if layout.key_types and _fails(work, bounds[low], bounds[high]):
            row = bounds[low] if rows is None else int(rows[bounds[low]])
            key = [plain(table[name][row]) for name in layout.key_names]
            place += f" key={shortened(repr(key[0] if len(key) == 1 else tuple(key)))}"
        raise TaskFailedError(f"{place}: {error}" if place else str(error)) from error


def _fails(work: Callable[[int, int], pa.Array], low: int, high: int) -> bool:
    try:
        work(low, high)
    except TaskFailedError:
        return True
    return False


def sums(values: pa.Array, begins: NDArray[np.intp], layout: Layout) -> pa.Array:
    """Return the monoid's sum of each segment of a column.

    Raises:
        TaskFailedError: a sum is no value of the monoid any more, or the monoid raised.
    """
    with _naming_errors(layout.monoid, "plus"), sizes.within_arrow():
        return layout.monoid.reduce(values, begins)


def inverses(values: pa.Array, layout: Layout) -> pa.Array:
    """Return the inverse of each value of a column, by the task's group.

    Raises:
        TaskFailedError: An inverse is no value of the group, or the group raised.
    """
    with _naming_errors(layout.monoid, "minus"):
        return layout.monoid.inverses(values)


@contextmanager
def _naming_errors(monoid: Monoid[Any], method: str) -> Iterator[None]:
    """Raise an error of this method of the user's as one that names the monoid and the place."""
    try:
        yield
    except TaskFailedError:
        raise
    except MonoidError as error:
        at = at_definition(getattr(monoid, method))
        made = f"{method}{at} made a value that does not fit: " if at else ""
        raise TaskFailedError(f"{made}{str(error).rstrip('.')}. {TOO_LARGE}") from error
    except Exception as error:
        raise TaskFailedError(
            f"monoid {monoid.name} raised {raised(error)}, for values that it made; correct the monoid."
        ) from error


def slices(
    tables: Sequence[pa.Table],
    low: int = 0,
    high: int = 1 << 64,
    share: int = 1,
    asked: Sequence[pa.Table] = (),
    levels: Sequence[pa.Table] = (),
) -> list[tuple[int, int]]:
    """Return ranges of the hash from `low` to `high` that hold few of the rows of these sorted tables each.

    About SLICE of them, or SLICE_BYTES where that is less, or a `share` of both. What `levels` hold of the hashes that are
    `asked` for counts as bytes too.
    """
    most, size = max(1, SLICE // share), max(1, SLICE_BYTES // share)
    pieces = []
    if sum(map(len, tables)) > most or sizes.are_more(tables, size):
        pieces += [sizes.pieces(batch, most, size) for table in tables for batch in table.to_batches() if len(batch)]
    if asked and sizes.are_more(levels, size):
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


def touched(table: pa.Table, fresh: pa.Table) -> pa.Table:
    """Return the rows of a sorted table whose hash is among those of another, which is sorted too."""
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


def of_keys_with(levels: Levels, masks: Sequence[NDArray[np.bool_]]) -> list[pa.Table]:
    """Return the rows of each level whose hash is that of a row which these masks pick, one mask for each level."""
    picked = [as_numpy(level, "hash")[mask] for level, mask in zip(levels, masks, strict=True)]
    # Sorted is enough, and takes a fiftieth of the time of numpy's unique.
    hashes = pa.table({"hash": np.sort(np.concatenate([np.array([], np.uint64), *picked]))})
    return [touched(level, hashes) for level in levels]
