"""Views of a task's partial sums: its state at a clock, and its values at a clock since another.

`levels` are tables of partial sums of the same hashes, the oldest first, of rows below the clock. What comes out has the
columns `hash`, `key0`…, `window_start` and `window_end` (int64, microseconds UTC) where there are windows, and `value`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import fold, sliding
from persistent_state.partials.keys import same_as_previous
from persistent_state.partials.layout import HEAD, Layout, as_numpy, from_clock, one_chunk
from persistent_state.partials.lookup import folded
from persistent_state.windows import FINAL, WINDOW, SlidingWindow, TimeToLive

LAST = 2**63 - 1
"""After every message."""

Levels = Sequence[pa.Table]


@dataclass(frozen=True)
class Since:
    """A question for values at a clock: those that changed since an earlier clock, `clock`.

    Of a state without windows these are the values of the keys that changed, with `all` of every key; a key whose state
    has expired has the zero. Of windows and sessions they are those that closed since; with `early` also windows that are open
    and changed since `recent`, a clock that is retained, and a column `final` (bool) tells them apart.
    """

    clock: int = BEGINNING
    all: bool = False
    early: bool = False
    recent: int = BEGINNING


def windows_per_row(layout: Layout, clock: int, since: Since | None, floor: int) -> int:
    """In how many windows that are asked for a row may be."""
    if layout.panes is None:
        return 1
    most = layout.panes.size // layout.panes.slide + 1
    if since is None or since.early:
        return most
    return min(most, (clock - max(since.clock, floor)) // layout.panes.slide + 1)


def state(levels: Levels, layout: Layout, clock: int) -> pa.Table:
    """Return the value of each key at a clock, or of each window that is open at the clock."""
    if layout.panes:
        return _windows(levels, layout, clock, None)[0]
    rows = fold.fold_keys(levels, layout)
    if layout.gap is not None:
        rows = _where(rows, as_numpy(rows, "last") + layout.gap > clock)
    return _shown(rows, layout)


def values(levels: Levels, layout: Layout, since: Since, clock: int, floor: int = BEGINNING) -> pa.Table:
    """Return the values at a clock that are asked for. What expired by the clock `floor` may be gone."""
    if layout.panes:
        return _closed_windows(levels, layout, since, clock, floor)
    if isinstance(layout.windowing, TimeToLive):
        return _living(levels, layout, since, clock)
    if layout.gap is not None:
        return _closed_sessions(levels, layout, since, clock, floor)
    if since.all or since.clock == BEGINNING:
        return state(levels, layout, clock)
    changed = fold.fold_keys([from_clock(level, since.clock) for level in levels], layout)
    return _shown(_with_values(changed, folded(changed, levels, layout), layout), layout)


def running(new: pa.Table, levels: Levels, layout: Layout, clock: int) -> pa.Table:
    """Return the values so far, above the clock too, of the keys of new rows, or of their open windows."""
    touched = [*(fold.touched(level, new) for level in levels), new]
    if not isinstance(layout.windowing, TimeToLive):
        return state(touched, layout, clock)
    rows = fold.fold_keys(touched, layout)
    return _shown(_where(rows, _is_last(rows, layout)), layout)


def _closed_windows(levels: Levels, layout: Layout, since: Since, clock: int, floor: int) -> pa.Table:
    closed, _ = _windows(levels, layout, max(since.clock, floor), clock)
    if not since.early:
        return closed
    changed = [as_numpy(from_clock(level, since.recent), "hash") for level in levels]
    opened, is_recent = _windows(_with_hashes(levels, changed), layout, clock, None, since.recent)
    opened = _where(opened, is_recent)
    is_final = np.repeat([True, False], [len(closed), len(opened)])
    both = pa.concat_tables([closed, opened])
    return both.add_column(both.num_columns - 1, FINAL, pa.array(is_final))


def _closed_sessions(levels: Levels, layout: Layout, since: Since, clock: int, floor: int) -> pa.Table:
    rows, ends = _sessions(levels, layout, since, clock)
    return _shown(_where(rows, (ends > max(since.clock, floor)) & (ends <= clock)), layout)


def _living(levels: Levels, layout: Layout, since: Since, clock: int) -> pa.Table:
    rows, ends = _sessions(levels, layout, since, clock)
    is_open, same = ends > clock, _same_keys(rows, layout)
    changed = is_open & (since.all | (as_numpy(rows, "last") >= since.clock))
    was_there = (as_numpy(rows, "first") < since.clock) & (ends > since.clock)
    # A key has at most one session that is open at a clock.
    keys = np.cumsum(~same) - 1
    expired = was_there & ~np.isin(keys, keys[is_open])
    some = np.flatnonzero(changed | expired)
    rows, expired = rows.take(pa.array(some)), expired[some]
    known = one_chunk(rows["value"])
    known_and_zero = pa.concat_arrays([known, layout.monoid.to_arrow([layout.monoid.zero])])
    place = np.where(expired, len(known), np.arange(len(known)))
    return _shown(_with_values(rows, known_and_zero.take(pa.array(place)), layout), layout)


def _sessions(levels: Levels, layout: Layout, since: Since, clock: int) -> tuple[pa.Table, NDArray[np.int64]]:
    """All sessions of keys that have one which ended since, and when each ends.

    Where keys live and expire, also of those that have had a message since, or of all.
    """
    gap, lives = layout.gap or 0, isinstance(layout.windowing, TimeToLive)
    asked = []
    for level in levels:
        lasts = as_numpy(level, "last")
        ended = (lasts + gap > since.clock) & (lasts + gap <= clock)
        asked.append(as_numpy(level, "hash")[ended | (lives & ((lasts >= since.clock) | since.all))])
    rows = fold.fold_keys(_with_hashes(levels, asked), layout)
    return rows, as_numpy(rows, "last") + gap


def _with_hashes(levels: Levels, asked: Sequence[NDArray[np.uint64]]) -> list[pa.Table]:
    """Return the rows of each level whose hash is asked for."""
    # Sorted is enough, and takes a fiftieth of the time of numpy's unique.
    hashes = pa.table({"hash": np.sort(np.concatenate([np.array([], np.uint64), *asked]))})
    return [fold.touched(level, hashes) for level in levels]


def _is_last(rows: pa.Table, layout: Layout) -> NDArray[np.bool_]:
    """Return which rows of a sorted table are the last of their key."""
    return np.append(~_same_keys(rows, layout)[1:], True)[: len(rows)]


def _same_keys(rows: pa.Table, layout: Layout) -> NDArray[np.bool_]:
    return same_as_previous([one_chunk(rows[name]) for name in layout.key_names], len(rows))


def _windows(
    levels: Levels, layout: Layout, after: int, upto: int | None, recent: int = BEGINNING
) -> tuple[pa.Table, NDArray[np.bool_]]:
    """Each window of each key that has rows and ends in (after, upto], and whether one starts at `recent` or later."""
    window = layout.panes
    assert window is not None
    size, some = window.size, []
    for level in levels:
        starts = as_numpy(level, "start")
        is_met = window.last(starts) + size > after
        some.append(_where(level, is_met if upto is None else is_met & (window.first(starts) + size <= upto)))
    if upto is None or layout.is_ordered:
        found, is_recent = _windows_of(fold.fold(some, layout, (recent,), LAST), layout, window, after, upto, recent)
    else:
        parts = [_windows_of(rows, layout, window, after, upto, recent)[0] for rows in some]
        found, is_recent = fold.fold(parts, Layout(layout.key_types, layout.monoid)), np.zeros(0, np.bool_)
    ends = pa.array(as_numpy(found, "start") + size)
    place = found.schema.get_field_index("value")
    return found.add_column(place, WINDOW[1], ends).rename_columns({"start": WINDOW[0]}), is_recent


def _windows_of(
    rows: pa.Table, layout: Layout, window: SlidingWindow, after: int, upto: int | None, recent: int
) -> tuple[pa.Table, NDArray[np.bool_]]:
    """Return the same of sorted rows, each window by its `start`."""
    size, step = window.size, window.slide
    starts, same = as_numpy(rows, "start"), _same_keys(rows, layout)
    first, last = window.first(starts), window.last(starts)
    # A window is found at the first row of its key: the others know those that hold the row before them.
    first[1:] = np.where(same[1:], np.maximum(first[1:], last[:-1] + step), first[1:])
    first = np.maximum(first, max(BEGINNING, ((after - size) // step + 1) * step))
    if upto is not None:
        last = np.minimum(last, max(BEGINNING, (upto - size) // step * step))
    counts = np.maximum(0, (last - first) // step + 1)
    lows = np.repeat(np.arange(len(rows)), counts)
    begins = np.repeat(first - (np.cumsum(counts) - counts) * step, counts) + np.arange(len(lows)) * step
    keys = np.append(np.flatnonzero(~same), len(rows))
    ends = keys[np.cumsum(~same)][lows] if len(rows) else lows
    highs = _first_from(starts, begins + size, lows, ends)
    if HEAD in rows.column_names and upto is not None:
        sums = sliding.of_edges(rows, begins, lows, highs, size, layout)
    else:
        sums = sliding.fold_ranges(one_chunk(rows["value"]), lows, highs, layout)
    found = rows.select(["hash", *layout.key_names]).take(pa.array(lows)).append_column("start", pa.array(begins))
    return found.append_column(layout.schema.field("value"), sums), starts[highs - 1] >= recent


def _first_from(
    times: NDArray[np.int64], wanted: NDArray[np.int64], lows: NDArray[np.intp], highs: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the first of the rows [low, high) at or after the wanted time, or `high`. The times of the rows rise."""
    while (lows < highs).any():
        middle = (lows + highs) // 2
        is_before = (lows < highs) & (times[np.minimum(middle, len(times) - 1)] < wanted)
        lows, highs = np.where(is_before, middle + 1, lows), np.where(is_before, highs, middle)
    return lows


def _with_values(rows: pa.Table, found: pa.Array, layout: Layout) -> pa.Table:
    return rows.set_column(rows.schema.get_field_index("value"), layout.schema.field("value"), found)


def _where(rows: pa.Table, where: NDArray[np.bool_]) -> pa.Table:
    return rows if where.all() else rows.filter(pa.array(where))


def _shown(rows: pa.Table, layout: Layout) -> pa.Table:
    shown = rows.select(["hash", *layout.key_names])
    if layout.window_fields:
        ends = as_numpy(rows, "last") + (layout.gap or 0)
        shown = shown.append_column(WINDOW[0], rows["first"]).append_column(WINDOW[1], pa.array(ends))
    return shown.append_column(layout.schema.field("value"), rows["value"])
