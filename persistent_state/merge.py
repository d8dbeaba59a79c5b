"""Sorting and folding tables of partial sums: the one operation of every stage.

A table of partial sums has the columns `hash` (uint64), `key0`… (the normalised key columns), `start` (int64, the start of
the interval) and `value` (the monoid's type), sorted by hash. A monoid that does not commute adds the order of its updates:
`time` (int64), `channel` (string), `position` (int64), `strand` (string) and `number` (int32).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from monoids import Monoid, MonoidError
from persistent_state import clock as clocks
from persistent_state import keys
from persistent_state.errors import TaskFailed

ORDER = ("time", "channel", "position", "strand", "number")
ORDER_TYPES = (pa.int64(), pa.string(), pa.int64(), pa.string(), pa.int32())


@dataclass(frozen=True)
class Layout:
    """What a task's tables of partial sums hold: the types of its key columns and its monoid."""

    key_types: tuple[pa.DataType, ...]
    monoid: Monoid[Any]

    @property
    def is_ordered(self) -> bool:
        return not self.monoid.commutative

    @property
    def key_names(self) -> list[str]:
        return [f"key{i}" for i in range(len(self.key_types))]

    @property
    def schema(self) -> pa.Schema:
        columns = [("hash", pa.uint64()), *zip(self.key_names, self.key_types, strict=True), ("start", pa.int64())]
        order = list(zip(ORDER, ORDER_TYPES, strict=True)) if self.is_ordered else []
        return pa.schema([*columns, ("value", self.monoid.type), *order])


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
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([*column.chunks, pa.array([], column.type)])


def sort(table: pa.Table, layout: Layout) -> tuple[pa.Table, NDArray[np.bool_]]:
    """The rows by (hash, key, start), or for an ordered monoid by (hash, key, order), and which begin another key."""
    order = np.argsort(as_numpy(table, "hash"), kind="stable")
    result = table.take(pa.array(order))
    hashes, starts = as_numpy(result, "hash"), as_numpy(result, "start")
    same_hash = np.zeros(len(hashes), dtype=np.bool_)
    same_hash[1:] = hashes[1:] == hashes[:-1]
    same_key = same_hash
    if layout.key_types:
        same_key = same_hash & keys.same_as_previous([one_chunk(result[name]) for name in layout.key_names])
    # Equal hashes are not equal keys. They almost never differ, so the keys themselves are sorted only where they do.
    if layout.is_ordered or not np.array_equal(same_key, same_hash):
        by = ["hash", *layout.key_names, *(ORDER if layout.is_ordered else ["start"])]
        result = table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in by]))
        same_key = keys.same_as_previous([one_chunk(result[name]) for name in ("hash", *layout.key_names)])
    elif np.any(same_key[1:] & (starts[1:] < starts[:-1])):
        result = table.take(pa.array(np.lexsort((as_numpy(table, "start"), as_numpy(table, "hash")))))
    return result, ~same_key


def fold(
    tables: Sequence[pa.Table],
    layout: Layout,
    cuts: Sequence[int] = (),
    clock: int = clocks.BEGINNING,
    apart_from: int | None = None,
) -> pa.Table:
    """One table of the partial sums of all: one row per key and interval.

    Below `clock` only the intervals between `cuts` stay apart. Rows of an ordered monoid that start at or after `apart_from`
    stay single messages: others may still have to go between them.
    """
    table = pa.concat_tables([layout.schema.empty_table(), *tables])
    if table.num_rows == 0:
        return table
    folded = clocks.fold_starts(as_numpy(table, "start"), cuts, clock)
    table, first = sort(table.set_column(table.schema.get_field_index("start"), "start", pa.array(folded)), layout)
    starts = as_numpy(table, "start")
    first[1:] |= starts[1:] != starts[:-1]
    if apart_from is not None and layout.is_ordered:
        first |= starts >= apart_from
    return reduce(table, first, layout)


def fold_keys(tables: Sequence[pa.Table], layout: Layout) -> pa.Table:
    """One row per key: the fold of all its rows, its start that of the first."""
    table = pa.concat_tables([layout.schema.empty_table(), *tables])
    if table.num_rows == 0:
        return table
    table, first = sort(table, layout)
    return reduce(table, first, layout)


def reduce(table: pa.Table, first: NDArray[np.bool_], layout: Layout) -> pa.Table:
    """One row per segment of a sorted table; `first` marks where segments begin.

    Raises:
        TaskFailed: a sum is no value of the monoid any more, as a decimal of too many digits.
    """
    if first.all():
        return table.combine_chunks()
    begins = np.flatnonzero(first)
    try:
        values = layout.monoid.reduce(one_chunk(table["value"]), begins)
    except MonoidError as error:
        raise TaskFailed(str(error)) from error
    except Exception as error:
        raise TaskFailed(f"monoid {layout.monoid.name} raised {error!r} for values that it made; mend it.") from error
    result = table.take(pa.array(begins))
    return result.set_column(result.schema.get_field_index("value"), layout.schema.field("value"), values)


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
