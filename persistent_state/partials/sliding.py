"""Folding many ranges of a column that overlap, as those of sliding windows do, with few additions for each of its values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.partials import fold, sort
from persistent_state.partials.layout import HEAD, TAIL, Layout, as_numpy, one_chunk

Rows = NDArray[np.int64]


def fold_ranges(values: pa.Array, lows: Rows, highs: Rows, layout: Layout) -> pa.Array:
    """Return the sum of the values of each range [low, high), in the order of the ranges. No range is empty.

    Where ranges overlap little each is summed up by itself. Where they overlap much, sums of 2, 4, 8... neighbours are
    made once, and a range is put together from those: log(length of the longest) additions per value and per range.
    """
    lengths = highs - lows
    if len(lengths) == 0 or lengths.max() == 1:
        return values.take(pa.array(lows))
    doublings = int(lengths.max()).bit_length() - 1
    if int(lengths.sum()) <= doublings * (len(values) + len(lengths)):
        rows = sort.ranges(lows, lengths)
        return fold.sums(values.take(pa.array(rows)), np.cumsum(lengths) - lengths, layout)
    return _by_doubling(values, lows, highs, layout)


def _by_doubling(values: pa.Array, lows: Rows, highs: Rows, layout: Layout) -> pa.Array:
    """From the left, each range takes a block of the width of its length's lowest bit, then one of the next bit's."""
    count, lengths, blocks, width = len(values), highs - lows, values, 1
    # Only what is within a range is ever summed up: of more there need not be a sum.
    reach = np.zeros(count, np.int64)
    np.maximum.at(reach, lows, highs)
    reach = np.maximum.accumulate(reach)
    rows = place = np.arange(count)
    taken, of = [], []
    while True:
        takes = np.flatnonzero(lengths & width)
        taken.append(blocks.take(pa.array(place[lows[takes]])))
        of.append(takes)
        lows = lows + (lengths & width)
        if lengths.max() < 2 * width:
            break
        rows = rows[rows + 2 * width <= reach[rows]]
        blocks = _pairs(blocks, place[rows], blocks, place[rows + width], layout)
        place = np.full(count, -1)
        place[rows] = np.arange(len(rows))
        width *= 2
    ranges = np.concatenate(of)
    order = np.argsort(ranges, kind="stable")
    begins = np.searchsorted(ranges[order], np.arange(len(lengths)))
    return fold.sums(pa.concat_arrays(taken).take(pa.array(order)), begins, layout)


def scan(values: pa.Array, first: NDArray[np.bool_], layout: Layout) -> pa.Array:
    """Return the sum so far within each segment. That takes at most two additions a value, however long the segments are.

    Neighbours are put together, the sums so far of those are found in the same way, and from them those between.
    """
    begins = np.flatnonzero(first)
    rank = np.arange(len(values)) - np.repeat(begins, np.diff(np.append(begins, len(values))))
    odd = np.flatnonzero(rank % 2)
    if len(odd) == 0:
        return values
    at_odd = scan(_pairs(values, odd - 1, values, odd, layout), rank[odd] == 1, layout)
    # Where a row's sum is found: those of odd rank, then those between, and the first of each segment is its own.
    between = np.flatnonzero((rank % 2 == 0) & (rank > 0))
    at_between = _pairs(at_odd, np.searchsorted(odd, between - 1), values, between, layout)
    place = np.arange(len(values))
    place[odd] = len(values) + np.arange(len(odd))
    place[between] = len(values) + len(odd) + np.arange(len(between))
    return pa.concat_arrays([values, at_odd, at_between]).take(pa.array(place))


def _pairs(left: pa.Array, lefts: Rows, right: pa.Array, rights: Rows, layout: Layout) -> pa.Array:
    """Return the sums of values of one column and of another, two by two."""
    if len(lefts) == 0:
        return right.slice(0, 0)
    pairs = np.column_stack([lefts, len(left) + rights]).ravel()
    values = pa.concat_arrays([left, right]).take(pa.array(pairs))
    return fold.sums(values, 2 * np.arange(len(lefts)), layout)


def with_edges(table: pa.Table, size: int, layout: Layout) -> pa.Table:
    """Return sorted partial sums with the columns `head` and `tail`, for windows of this size.

    Time is cut into blocks as long as a window, so a window is the tail of one block and the head of the next. At each row
    stands the sum of its key's rows from the beginning of the block up to it, and from it to the block's end (van Herk's
    and Gil and Werman's algorithm).
    """
    if len(table) == 0:
        return table
    blocks, same = as_numpy(table, "start") // size, sort.same_keys(table, layout)
    first = np.append(True, ~same[1:] | (blocks[1:] != blocks[:-1]))
    values = one_chunk(table["value"])
    back = pa.array(np.arange(len(table))[::-1])
    head = scan(values, first, layout)
    tail = scan(values.take(back), np.append(first[1:], True)[::-1], layout).take(back)
    return table.append_column(HEAD, head).append_column(TAIL, tail)


def of_edges(rows: pa.Table, begins: Rows, lows: Rows, highs: Rows, size: int, layout: Layout) -> pa.Array:
    """Return the sum of the rows [low, high) of each window, from the heads and tails of its rows."""
    blocks, ends = as_numpy(rows, "start") // size, highs - 1
    heads, tails = (one_chunk(rows[name]) for name in (HEAD, TAIL))
    # Its rows are of the block that it begins in, of the next one, or of both.
    is_two = blocks[lows] != blocks[ends]
    is_head = ~is_two & (blocks[ends] > begins // size)
    both = pa.concat_arrays([tails, heads])
    place = np.where(is_head, len(rows) + ends, lows)
    two = np.flatnonzero(is_two)
    sums = _pairs(tails, lows[two], heads, ends[two], layout)
    place[two] = 2 * len(rows) + np.arange(len(two))
    return pa.concat_arrays([both, sums]).take(pa.array(place))
