"""Sort tables of partial sums by the hash of the key, and by the order of updates where it counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persistent_state.partials import keys, sizes
from persistent_state.partials.layout import NAMES, ORDER, Layout, RowOrder, as_numpy, one_chunk


def sort(table: pa.Table, layout: Layout) -> tuple[RowOrder, NDArray[np.bool_]]:
    """Return the order of the rows, and which of them begin another key.

    The order is (hash, key, time), or for an ordered monoid (hash, key, order).

    The order is None where the rows stand in it.
    """
    hashes, times = as_numpy(table, "hash"), as_numpy(table, ORDER[0] if layout.is_ordered else layout.kind.in_time)
    order = None if _is_in_order(hashes, times) else _order(hashes, times, layout)
    same_hash = _same_hashes(hashes if order is None else hashes[order])
    same_key = same_hash & same_keys(table, layout, order)
    # Equal hashes are not equal keys. They almost never differ, so the keys themselves are sorted only where they do.
    if np.array_equal(same_key, same_hash):
        return (_by_place(table, order, same_key, times) if layout.is_ordered else order), ~same_key
    by = ["hash", *layout.key_names, *(ORDER if layout.is_ordered else [layout.kind.in_time])]
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in by]).to_numpy().astype(np.intp)
    return order, ~(_same_hashes(as_numpy(table, "hash")[order]) & same_keys(table, layout, order))


def _by_place(table: pa.Table, order: RowOrder, same_key: NDArray[np.bool_], times: NDArray[np.int64]) -> RowOrder:
    """Return rows in order of their keys and times so that those of one key and time stand by the rest of their places.

    Most often few messages of a key have the same time, or they came in their order.
    """
    rows = np.arange(len(times)) if order is None else order
    tied = same_key.copy()
    tied[1:] &= times[rows[1:]] == times[rows[:-1]]
    some = np.flatnonzero(tied | np.append(tied[1:], False))
    if len(some) == 0:
        return order
    of = rows[some]
    begins = ~tied[some]
    places = [_ranks(taken(one_chunk(table[name]), of)) for name in ORDER[1:]]
    places = [place for place in places if place.min() < place.max()]
    is_before = begins[1:].copy()
    is_equal = ~is_before
    for place in places:
        is_before |= is_equal & (place[:-1] < place[1:])
        is_equal &= place[:-1] == place[1:]
    if (is_before | is_equal).all():
        return order
    rows = rows.copy()
    rows[some] = of[np.lexsort([*reversed(places), np.cumsum(begins)])]
    return rows


def _ranks(column: pa.Array) -> NDArray[np.int64]:
    """Return numbers that are in order as the values of a column are."""
    if not pa.types.is_string(column.type):
        numbers: NDArray[np.int64] = column.to_numpy()
        return numbers
    return _places(column)[0]


def _places(column: pa.Array) -> tuple[NDArray[np.int64], int]:
    """Return the place of each value of a column among its different values in their order, and how many these are."""
    encoded = pc.dictionary_encode(column)
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places[encoded.indices.to_numpy()], len(order)


def _order(hashes: NDArray[np.uint64], times: NDArray[np.int64], layout: Layout) -> NDArray[np.intp]:
    if layout.kind.in_time == "start" and not layout.is_ordered:
        return order_by_hash(hashes, times)
    if _is_of_few_runs(hashes) and (order := merged(hashes, times)) is not None:
        return order
    # Starts of intervals are few; times of messages nearly all differ, and it is several times faster to sort by them first.
    by_time = order_by_time(times)
    return by_time[order_by_hash(hashes[by_time], times[by_time])]


def merged(hashes: NDArray[np.uint64], times: NDArray[np.int64]) -> NDArray[np.intp] | None:
    """Return the rows of sorted tables by (hash, time), those equal in both as they came; None if there is no room for it."""
    by_hash = order_by_hash(hashes, np.zeros(len(hashes), np.int64))
    number = np.cumsum(~_same_hashes(hashes[by_hash]))
    first, bits = int(times.min()), (int(times.max()) - int(times.min())).bit_length()
    if int(number[-1]).bit_length() + bits > 63:
        return None
    places = number << bits | (times - first)[by_hash]
    if np.all(places[1:] >= places[:-1]):
        return by_hash
    return by_hash[np.argsort(places, kind="stable")]


def _is_of_few_runs(numbers: NDArray[Any]) -> bool:
    """Return whether numbers are so few that rise, one behind the other, that it is faster to merge than to sort them."""
    return int(np.count_nonzero(numbers[1:] < numbers[:-1])) < len(numbers) >> 8


def _sort(numbers: NDArray[np.uint64]) -> None:
    """Sort numbers where they stand. Those that rise in few runs are merged, several times as fast as others are sorted."""
    numbers.sort(kind="stable" if _is_of_few_runs(numbers) else None)


def order_by_time(times: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the rows by time, those of one time as they came."""
    row_bits = max(0, len(times) - 1).bit_length()
    first = int(times.min())
    if (int(times.max()) - first).bit_length() + row_bits > 64:
        return np.argsort(times, kind="stable")
    packed = (times - first).astype(np.uint64) << np.uint64(row_bits)
    packed |= np.arange(len(times), dtype=np.uint64)
    _sort(packed)
    packed &= np.uint64((1 << row_bits) - 1)
    return packed.view(np.intp)


def _is_in_order(hashes: NDArray[np.uint64], times: NDArray[np.int64]) -> bool:
    rises = hashes[1:] > hashes[:-1]
    return bool(rises.all() or np.all(rises | (hashes[1:] == hashes[:-1]) & (times[1:] >= times[:-1])))


def _same_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    same = np.zeros(len(hashes), dtype=np.bool_)
    np.equal(hashes[1:], hashes[:-1], out=same[1:])
    return same


def same_keys(table: pa.Table, layout: Layout, order: RowOrder = None) -> NDArray[np.bool_]:
    """Return which rows in this order have the key of the row before."""
    columns = [taken(one_chunk(table[name]), order) for name in layout.key_names]
    return keys.same_as_previous(columns, table.num_rows)


def taken(column: pa.Array, order: RowOrder) -> pa.Array:
    """Return a column in another order, None as it is."""
    if order is None:
        return column
    with sizes.within_arrow():
        return column.take(pa.array(order))


def rows_of(table: pa.Table, rows: NDArray[np.intp]) -> pa.Table:
    """Return rows of a table, by their numbers."""
    numbers = pa.array(rows)
    with sizes.within_arrow():
        columns = [
            _names_taken(one_chunk(column), numbers) if name in NAMES else column.take(numbers)
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
    return pa.table(columns, schema=table.schema)


def _names_taken(column: pa.Array, numbers: pa.Array) -> pa.Array:
    """Return values of a column that has few different ones. To move texts takes ten times as long as to move numbers."""
    if len(column) and pc.all(pc.equal(column, column[0])).as_py():
        return pa.repeat(column[0], len(numbers))
    return column.dictionary_encode().take(numbers).cast(column.type)


def order_by_hash(hashes: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the rows by (hash, start), those equal in both as they came.

    Numbers are sorted several times faster than what they belong to is put in their order. So one number of 64 bits holds
    as many of the hash's first bits as there is room for, the start's place among all starts, and the row's.
    """
    # Starts that rise with the rows, as those of sessions often do, need no place of their own.
    rise = np.all(starts[1:] >= starts[:-1])
    places, count = (starts, 1) if rise else _places(pa.array(starts))
    row_bits, start_bits = (max(0, number - 1).bit_length() for number in (len(hashes), count))
    hash_bits = 64 - row_bits - start_bits
    if hash_bits < 1:
        return np.lexsort((starts, hashes))
    below = np.uint64(64 - hash_bits)
    packed = np.arange(len(hashes), dtype=np.uint64)
    packed |= hashes & ~((np.uint64(1) << below) - np.uint64(1))
    if start_bits:
        packed |= places.view(np.uint64) << np.uint64(row_bits)
    _sort(packed)
    packed &= np.uint64((1 << row_bits) - 1)
    order = packed.view(np.intp)
    in_order = hashes[order]
    wrong = np.flatnonzero(in_order[1:] < in_order[:-1])
    if len(wrong):
        # Where hashes share their first bits, all bits decide.
        in_order >>= below
        first = np.unique(np.searchsorted(in_order, in_order[wrong]))
        rows = ranges(first, np.searchsorted(in_order, in_order[first], side="right") - first)
        some_rows = order[rows]
        order[rows] = some_rows[np.lexsort((starts[some_rows], hashes[some_rows]))]
    return order


def ranges(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of many ranges, one after the other."""
    offsets = np.cumsum(lengths) - lengths
    numbers: NDArray[np.int64] = np.arange(int(lengths.sum())) + np.repeat(begins - offsets, lengths)
    return numbers


def running_max(values: NDArray[np.int64], first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the greatest value so far within each segment."""
    if np.all((values[1:] >= values[:-1]) | first[1:]):
        return values
    # Numbers that rise from segment to segment: the value's rank within, the segment's number before it.
    ranked, count = np.argsort(values, kind="stable"), len(values)
    rank = np.empty(count, np.int64)
    rank[ranked] = np.arange(count)
    before = (np.cumsum(first) - 1) * count
    greatest: NDArray[np.int64] = values[ranked[np.maximum.accumulate(before + rank) - before]]
    return greatest
