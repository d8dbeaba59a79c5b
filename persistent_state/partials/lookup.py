"""The current values of keys: looked up where a run holds them, and folded from all runs where none does.

Beside its partial sums a run may hold, in the column `current`, at the last row of each key the fold of all the key's rows in
it and in older runs; null where it was not worked out. So what a key is now is one look at the newest run that has it, however
many intervals its rows are kept apart in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.partials import fold, keys, sort
from persistent_state.partials.layout import CURRENT, Layout, RowOrder, as_numpy, one_chunk, with_values


def add_current(new: pa.Table, levels: Sequence[pa.Table], layout: Layout) -> tuple[pa.Table, pa.Table]:
    """Return new partial sums with their column `current`, and one row per key with its current value.

    `levels` are the older runs, the oldest first, with theirs where they have it; the monoid commutes.
    """
    _, first = sort.sort(new, layout)
    keyed = fold.reduce(new, None, first, layout)
    values = plus(current(keyed, levels, layout), one_chunk(keyed["value"]), keyed, None, layout)
    is_last = np.append(first[1:], True)
    column = values.take(pa.array(np.cumsum(first) - 1, mask=~is_last)) if not is_last.all() else values
    return new.append_column(CURRENT, column), with_values(keyed, values)


def current(asked: pa.Table, levels: Sequence[pa.Table], layout: Layout) -> pa.Array:
    """Return the current value of each key of a sorted table; null if the key has no row in any level."""
    if layout.is_ordered:
        return folded(asked, levels, layout)
    found, unknown = _looked_up(asked, levels, layout)
    if len(unknown) == 0:
        return found
    rest = folded(asked.take(pa.array(unknown)), levels, layout)
    place = np.arange(len(found))
    place[unknown] = len(found) + np.arange(len(unknown))
    return pa.concat_arrays([found, rest]).take(pa.array(place))


def _looked_up(asked: pa.Table, levels: Sequence[pa.Table], layout: Layout) -> tuple[pa.Array, NDArray[np.intp]]:
    """Return the current value of each key by the newest level that has it, and the keys whose levels have none."""
    hashes, rows = as_numpy(asked, "hash"), np.arange(asked.num_rows)
    values, of, unknown = [pa.array([], layout.monoid.type)], [rows[:0]], [rows[:0]]
    for level in reversed(levels):
        stored = as_numpy(level, "hash")
        if len(stored) == 0 or len(rows) == 0:
            continue
        at = np.searchsorted(stored, hashes[rows], side="right") - 1
        is_met = stored[at] == hashes[rows]
        met, at, rows = rows[is_met], at[is_met], rows[~is_met]
        if CURRENT not in level.column_names:
            unknown.append(met)
            continue
        is_same = keys.equal(_keys(asked, met, layout), _keys(level, at, layout), len(met))
        # A key whose hash another has too stands somewhere among its rows.
        unknown.append(met[~is_same])
        some = sort.taken(one_chunk(level[CURRENT]), at[is_same])
        values.append(some)
        of.append(met[is_same])
        if some.null_count:
            unknown.append(of[-1][some.is_null().to_numpy(zero_copy_only=False)])
    place = np.full(asked.num_rows, -1)
    place[np.concatenate(of)] = np.arange(sum(map(len, of)))
    return pa.concat_arrays(values).take(pa.array(place, mask=place < 0)), np.sort(np.concatenate(unknown))


def _keys(table: pa.Table, rows: NDArray[np.intp], layout: Layout) -> list[pa.Array]:
    return [sort.taken(one_chunk(table[name]), rows) for name in layout.key_names]


def folded(asked: pa.Table, levels: Sequence[pa.Table], layout: Layout) -> pa.Array:
    """Return the fold of all rows of each key of a sorted table; null if the key has none."""
    stored = fold.fold_keys([fold.touched(level, asked) for level in levels], layout)
    lows, highs = _spans(asked, stored, layout)
    return one_chunk(stored["value"]).take(pa.array(lows, mask=lows == highs))


def each_once(columns: Sequence[pa.Array], count: int) -> tuple[pa.Table, list[int]]:
    """Return `count` keys as a sorted table with their hashes, each key once, and the row of each given key in it.

    `columns` are normalised.
    """
    names = [f"key{i}" for i in range(len(columns))]
    table = pa.table([keys.hash_keys(columns, count), *columns, np.arange(count)], names=["hash", *names, "number"])
    table = table.sort_by([(name, "ascending") for name in table.column_names]).combine_chunks()
    begins = ~keys.same_as_previous([one_chunk(table[name]) for name in ["hash", *names]])
    places = np.empty(count, np.intp)
    places[as_numpy(table, "number")] = np.cumsum(begins) - 1
    return table.filter(pa.array(begins)).drop_columns(["number"]).combine_chunks(), places.tolist()


def rows_of(asked: pa.Table, stored: pa.Table, layout: Layout) -> list[tuple[int, int]]:
    """Return the numbers [low, high) of the rows of each key of a sorted table in another one, whose keys stand together."""
    lows, highs = _spans(asked, stored, layout)
    return [*zip(lows.tolist(), highs.tolist(), strict=True)]


def _spans(asked: pa.Table, stored: pa.Table, layout: Layout) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    names, count = ["hash", *layout.key_names], stored.num_rows
    # Keys and stored rows side by side: the stored rows of a key are followed by the key that asks for them, or by none.
    known = stored.select(names).append_column("row", pa.array(np.arange(count)))
    wanted = asked.select(names).append_column("row", pa.array(np.arange(asked.num_rows) + count))
    both = pa.concat_tables([known, wanted]).combine_chunks()
    both = both.sort_by([(name, "ascending") for name in [*names, "row"]])
    is_same = keys.same_as_previous([one_chunk(both[name]) for name in names])
    order = as_numpy(both, "row")
    answered = np.flatnonzero(is_same & (order >= count))
    firsts = np.maximum.accumulate(np.where(is_same, 0, np.arange(len(order))))
    lows, highs = np.zeros((2, asked.num_rows), np.intp)
    lows[order[answered] - count] = order[firsts[answered]]
    highs[order[answered] - count] = order[answered - 1] + 1
    return lows, highs


def plus(before: pa.Array, more: pa.Array, table: pa.Table, rows: RowOrder, layout: Layout) -> pa.Array:
    """Return two columns of values row by row together; where there is no value before, the other alone.

    The keys of the values are those of these `rows` of a table (None: of its own).
    """

    def together(first: int, end: int) -> pa.Array:
        return _plus(before.slice(first, end - first), more.slice(first, end - first), layout)

    return fold.of_keys(together, np.arange(len(more)), len(more), table, rows, layout)


def _plus(before: pa.Array, more: pa.Array, layout: Layout) -> pa.Array:
    known = before.is_valid().to_numpy(zero_copy_only=False)
    if not known.any():
        return more
    count = len(known)
    begins = np.arange(count) + np.cumsum(known) - known
    order = np.empty(count + int(known.sum()), np.intp)
    order[begins] = np.arange(count) + count * ~known
    order[begins[known] + 1] = count + np.flatnonzero(known)
    return fold.sums(sort.taken(pa.concat_arrays([before, more]), order), begins, layout)
