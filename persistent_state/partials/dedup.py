"""Messages that come again: of the messages of a key with one id, the first that was accepted counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from monoids import Count
from persistent_state.partials import fold, keys, sort
from persistent_state.partials.layout import ID, ORDER, Layout, Once, as_numpy, has_id, one_chunk
from persistent_state.partials.unbounded import Unbounded

Rows = NDArray[np.intp]


def without_copies(fresh: Sequence[pa.Table], levels: Sequence[pa.Table], layout: Layout) -> tuple[pa.Table, int]:
    """Return the rows of tables, sorted by hash and without copies of other messages; and how many copies there were.

    A message is a copy if one of its key with its id, in `levels` or before it in time, is no further from it than the
    horizon. One without an id never is, nor one in no window.
    """
    assert layout.once is not None
    table = pa.concat_tables(fresh).combine_chunks()
    # Where rows have an order, it is that of those of one time too.
    by = ["hash", *(name for name in ORDER if name in table.column_names)]
    table = table.sort_by([(name, "ascending") for name in by])
    rows = np.flatnonzero(has_id(table) & layout.kind.holds(table))
    if len(rows) == 0:
        return table, 0
    asked = table.take(pa.array(rows))
    # A key may have many messages: look only at those with these ids.
    wanted = pc.unique(one_chunk(asked[ID]))
    known = [fold.touched(level.select(_columns(layout)), asked) for level in levels]
    ids = _ids([*(level.filter(pc.is_in(level[ID], wanted)) for level in known), asked], layout, layout.once)
    copies = rows[_copies(ids, len(ids) - len(rows), layout, layout.once)]
    keep = np.ones(len(table), np.bool_)
    keep[copies] = False
    return table.filter(pa.array(keep)), len(copies)


def _columns(layout: Layout) -> list[str]:
    return ["hash", *layout.key_names, ID, "time"]


def _ids(tables: Sequence[pa.Table], layout: Layout, once: Once) -> pa.Table:
    """Messages as rows whose key is theirs and their id."""
    table = pa.concat_tables([table.select(_columns(layout)) for table in tables]).combine_chunks()
    columns = [one_chunk(table[name]) for name in (*layout.key_names, ID)]
    named = {f"key{i}": column for i, column in enumerate(columns)}
    return pa.table({"hash": keys.hash_keys(columns, len(table)), **named, "start": table["time"]})


def _copies(ids: pa.Table, known: int, layout: Layout, once: Once) -> Rows:
    """Return which messages after the first `known` ones are copies."""
    order, first = sort.sort(ids, Layout((*layout.key_types, once.type), Count(), Unbounded()))
    order = np.arange(len(ids)) if order is None else order
    times, is_known, places = as_numpy(ids, "start")[order], order < known, np.arange(len(ids))
    begins = np.flatnonzero(first)[np.cumsum(first) - 1]
    ends = np.append(np.flatnonzero(first), len(ids))[np.cumsum(first)]
    before = np.maximum.accumulate(np.where(is_known, places, -1))
    after = np.minimum.accumulate(np.where(is_known, places, len(ids))[::-1])[::-1]
    is_copy = (before >= begins) & (times <= times[before] + once.horizon)
    is_copy |= (after < ends) & (times[np.minimum(after, len(ids) - 1)] <= times + once.horizon)
    is_copy &= ~is_known
    left = np.flatnonzero(~is_known & ~is_copy)
    accepted = times[left]
    is_near = (np.diff(accepted) <= once.horizon) & (np.diff(begins[left]) == 0)
    # One that is near the one before it is a copy, unless that is a copy itself of one further away.
    for i in (np.flatnonzero(is_near) + 1).tolist():
        if accepted[i] - accepted[i - 1] <= once.horizon:
            accepted[i] = accepted[i - 1]
            is_copy[left[i]] = True
    return np.sort(order[is_copy]) - known
