"""Values before and after: the keys, or the windows of keys, that changed between two clocks, and how.

With `every` each multiple of it between the clocks is looked at, too. A key that changed between several of them comes several
times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persistent_state.event_time.clocks import END
from persistent_state.partials import fold, keys
from persistent_state.partials.layout import Layout, Levels, as_numpy, below, from_clock, one_chunk
from persistent_state.partials.lookup import folded, plus
from persistent_state.partials.sort import same_keys, taken

Times = NDArray[np.int64]

MANY = 10_000
"""The rows of a table of changes from which on it is not put together with the next."""


@dataclass(frozen=True)
class Changed:
    """Rows of `hash`, the key and its window, each with its value before and after; null where it was not, or is not, there.

    `clocks` are the clocks at which the changes are seen.
    """

    rows: pa.Table
    before: pa.Array
    after: pa.Array
    clocks: Times

    def take(self, picked: NDArray[np.bool_]) -> Changed:
        """Return those that a mask picks."""
        mask = pa.array(picked)
        return Changed(self.rows.filter(mask), self.before.filter(mask), self.after.filter(mask), self.clocks[picked])


def changed(levels: Levels, layout: Layout, since: int, clock: int, every: int | None) -> Iterator[Changed]:
    """Yield what changed in `(since, clock]`. The changes of one key or window are in their order.

    Args:
        levels: All rows below the clock of the keys that may have changed, the oldest table first.
        layout: Their layout.
        since: The clock before.
        clock: A multiple of `every`.
        every: Microseconds; None looks at the two clocks only.
    """
    held, count = list[Changed](), 0
    for some in (_of_windows if layout.kind.expires else _of_keys)(levels, layout, since, clock, every):
        held.append(some)
        count += len(some.rows)
        # What is done with each table takes longer than with many rows.
        if count >= MANY:
            yield _together(held)
            held, count = [], 0
    if held:
        yield _together(held)


def _together(some: Sequence[Changed]) -> Changed:
    return Changed(
        pa.concat_tables([each.rows for each in some]).combine_chunks(),
        pa.concat_arrays([each.before for each in some]),
        pa.concat_arrays([each.after for each in some]),
        np.concatenate([each.clocks for each in some]),
    )


def _of_keys(levels: Levels, layout: Layout, since: int, clock: int, every: int | None) -> Iterator[Changed]:
    """Yield the changes of keys that never expire: all first ones, all second ones, and so on."""
    new = [from_clock(level, since) for level in levels]
    starts = np.concatenate([as_numpy(level, "start") for level in new])
    if len(starts) == 0:
        return
    edges = () if every is None else np.unique(starts // every * every).tolist()
    rows = fold.fold(new, layout, edges, END)
    names = ["hash", *layout.key_names]
    ends, values = _seen_at(as_numpy(rows, "start"), clock, every), one_chunk(rows["value"])
    begins_key = ~same_keys(rows, layout)
    first = np.flatnonzero(begins_key)
    was = folded(rows.take(pa.array(first)), [below(level, since) for level in levels], layout)
    some = first
    while len(some):
        now = plus(was, taken(values, some), rows, some, layout)
        yield Changed(rows.select(names).take(pa.array(some)), was, now, ends[some])
        goes_on = ~np.append(begins_key, True)[some + 1]
        was, some = now.filter(pa.array(goes_on)), some[goes_on] + 1


def _of_windows(levels: Levels, layout: Layout, since: int, clock: int, every: int | None) -> Iterator[Changed]:
    """Yield the changes of keys with windows, or with a time to live, clock after clock: what ended counts, too."""
    hashes, seen = [np.array([], np.uint64)], [np.array([], np.int64)]
    for level in levels:
        starts = as_numpy(level, "start")
        came = np.flatnonzero(starts >= since)
        ended, ends = layout.kind.ends(level, since, clock)
        hashes += [as_numpy(level, "hash")[came], as_numpy(level, "hash")[ended]]
        # The state at a clock lacks what ended by then.
        seen += [_seen_at(starts[came], clock, every), _seen_at(ends - 1, clock, every)]
    asked, at = np.concatenate(hashes), np.concatenate(seen)
    order = np.lexsort((asked, at))
    asked, at = asked[order], at[order]
    edges = np.flatnonzero(np.append(True, at[1:] != at[:-1])[: len(at)])
    for low, high in pairwise([*edges.tolist(), len(at)]):
        now = int(at[low])
        before = since if every is None else max(since, now - every)
        some = [fold.touched(level, pa.table({"hash": asked[low:high]})) for level in levels]
        was, is_now = (layout.kind.state([below(level, at) for level in some], layout, at) for at in (before, now))
        yield paired(was, is_now, now)


def _seen_at(times: Times, clock: int, every: int | None) -> Times:
    """Return the first clock that is looked at above each time."""
    return np.full(len(times), clock) if every is None else (times // every + 1) * every


def paired(before: pa.Table, after: pa.Table, clock: int) -> Changed:
    """Return what stands in two tables of values, as a `Kind` returns them, side by side by key and window."""
    names = before.column_names[:-1]
    counts = len(before), len(after)
    both = pa.concat_tables([before.select(names), after.select(names)]).combine_chunks()
    both = both.append_column("row", pa.array(np.arange(sum(counts))))
    both = both.sort_by([(name, "ascending") for name in [*names, "row"]])
    begins = np.flatnonzero(~keys.same_as_previous([one_chunk(both[name]) for name in names]))
    row, last = as_numpy(both, "row"), np.append(begins, len(both))[1:] - 1
    old, new = row[begins], row[last] - counts[0]
    return Changed(
        both.take(pa.array(begins)).select(names),
        _at(before["value"], old, old < counts[0]),
        _at(after["value"], new, new >= 0),
        np.full(len(begins), clock),
    )


def _at(values: pa.ChunkedArray, rows: NDArray[np.intp], there: NDArray[np.bool_]) -> pa.Array:
    return one_chunk(values).take(pa.array(rows, mask=~there))


def are_equal(one: pa.Array, other: pa.Array, signed_zeros: bool = False) -> NDArray[np.bool_]:
    """Return for each row whether two columns of one type have the same value there. Nulls are equal, and so are NaNs.

    With `signed_zeros` 0.0 and -0.0 are two values, as user code can distinguish them.
    """
    type = one.type
    if pa.types.is_struct(type):
        same: NDArray[np.bool_] = np.asarray(one.is_valid()) == np.asarray(other.is_valid())
        for mine, others in zip(one.flatten(), other.flatten(), strict=True):
            same &= are_equal(mine, others, signed_zeros)
        return same
    if pa.types.is_list(type):
        return _are_equal_lists(one, other, signed_zeros)
    if pa.types.is_floating(type) and signed_zeros:
        signs = [np.signbit(each.fill_null(0).to_numpy(zero_copy_only=False)) for each in (one, other)]
        has_signs = ~np.asarray(pc.is_nan(one).fill_null(False))
        alike: NDArray[np.bool_] = are_equal(one, other) & ~(has_signs & (signs[0] != signs[1]))
        return alike
    if pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_boolean(type) or pa.types.is_string(type):
        equal: NDArray[np.bool_] = keys.equal([keys.normalise(one)], [keys.normalise(other)], len(one))
        return equal
    # A text of a value says the sign of a zero, within tuples, maps and sets of values too.
    same_value = _are_same_texts if signed_zeros else _same
    found: NDArray[np.bool_] = np.fromiter(map(same_value, one.to_pylist(), other.to_pylist()), np.bool_, len(one))
    return found


def _are_same_texts(one: Any, other: Any) -> bool:
    return repr(one) == repr(other)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (one != one and other != other)


def _are_equal_lists(one: pa.Array, other: pa.Array, signed_zeros: bool) -> NDArray[np.bool_]:
    """Return the same of two columns of lists: those of one length are compared entry by entry."""
    counts = [np.asarray(pc.list_value_length(each).fill_null(-1)) for each in (one, other)]
    same: NDArray[np.bool_] = counts[0] == counts[1]
    rows = pa.array(np.flatnonzero(same & (counts[0] > 0)))
    mine, others = (each.take(rows).flatten() for each in (one, other))
    of_rows = np.repeat(np.asarray(rows), counts[0][np.asarray(rows)])
    same[of_rows[~are_equal(mine, others, signed_zeros)]] = False
    return same
