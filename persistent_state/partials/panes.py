"""Windows: a key has a row for each pane and interval, and a window is put together from the panes in it when it is asked for.

A pane is a stretch of time in which no window begins or ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.event_time.clocks import BEGINNING, END
from persistent_state.partials import fold, sliding
from persistent_state.partials.layout import HEAD, Kind, Layout, Levels, as_numpy, one_chunk, where
from persistent_state.partials.lookup import rows_of
from persistent_state.partials.since import Since
from persistent_state.partials.so_far import OfWindows
from persistent_state.partials.sort import same_keys
from persistent_state.partials.unbounded import Unbounded
from persistent_state.windows import FINAL, WINDOW, SlidingWindow

WIDE = 16
"""The most slides in a window whose panes are summed up each time a window closes; wider windows keep sums in runs."""


@dataclass(frozen=True)
class Panes(Kind):
    """A state in windows that tumble or slide."""

    windows: SlidingWindow

    window_columns: ClassVar[tuple[str, ...]] = WINDOW
    expires: ClassVar[bool] = True
    gives_early: ClassVar[bool] = True

    def holds(self, updates: pa.Table) -> NDArray[np.bool_]:
        if self.windows.slide <= self.windows.size:
            return super().holds(updates)
        return self.windows.is_met(as_numpy(updates, "start"))

    def begin_apart(self, starts: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.maximum(starts, self.windows.pane(times))

    def expiry(self, table: pa.Table, layout: Layout) -> NDArray[np.int64]:
        return self.windows.last(as_numpy(table, "start")) + self.windows.size

    def ends(self, table: pa.Table, after: int, upto: int) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        starts, size, step = as_numpy(table, "start"), self.windows.size, self.windows.slide
        first = np.maximum(self.windows.first(starts), max(BEGINNING, ((after - size) // step + 1) * step))
        last = np.minimum(self.windows.last(starts), (upto - size) // step * step)
        counts = np.maximum(0, (last - first) // step + 1)
        begins = np.repeat(first - (np.cumsum(counts) - counts) * step, counts) + np.arange(counts.sum()) * step
        return np.repeat(np.arange(len(starts)), counts), begins + size

    def may_end(self, first: int, last: int, after: int, upto: int) -> bool:
        size, step = self.windows.size, self.windows.slide
        lowest = max((first - size) // step, (after - size) // step) + 1
        return lowest <= min(last // step, (upto - size) // step)

    def with_sums(self, table: pa.Table, layout: Layout) -> pa.Table:
        """Return the rows. If windows are wide, add the sums from which a window is put together, however many panes it has."""
        # Only numbers are summed up in advance: what grows, as sets do, would take room for each pane's sum again.
        if self.windows.size <= WIDE * self.windows.slide or layout.is_ordered or not _is_number(layout.monoid.type):
            return table
        return sliding.with_edges(table, self.windows.size, layout)

    def windows_per_row(self, clock: int, since: Since | None, floor: int) -> int:
        most = self.windows.size // self.windows.slide + 1
        if since is None or since.early:
            return most
        return min(most, (clock - max(since.clock, floor)) // self.windows.slide + 1)

    def state(self, levels: Levels, layout: Layout, clock: int) -> pa.Table:
        return self._ending(levels, layout, clock, None)[0]

    def values(self, levels: Levels, layout: Layout, since: Since, clock: int, floor: int) -> pa.Table:
        closed, _ = self._ending(levels, layout, max(since.clock, floor), clock)
        if not since.early:
            return closed
        changed = fold.of_keys_with(levels, [as_numpy(level, "start") >= since.recent for level in levels])
        opened, is_recent = self._ending(changed, layout, clock, None, since.recent)
        opened = where(opened, is_recent)
        is_final = np.repeat([True, False], [len(closed), len(opened)])
        both = pa.concat_tables([closed, opened])
        return both.add_column(both.num_columns - 1, FINAL, pa.array(is_final))

    def so_far(self, asked: pa.Table, levels: Levels, layout: Layout, lowest: int) -> OfWindows:
        some = [fold.touched(level, asked) for level in levels]
        rows = fold.fold([where(level, self.expiry(level, layout) > lowest) for level in some], layout, (), END)
        values = layout.monoid.from_arrow(one_chunk(rows["value"]))
        starts = as_numpy(rows, "start").tolist()
        return OfWindows(
            rows_of(asked, rows, layout), starts, values, layout.monoid, self.windows.size, self.windows.slide
        )

    def _ending(
        self, levels: Levels, layout: Layout, after: int, upto: int | None, recent: int = BEGINNING
    ) -> tuple[pa.Table, NDArray[np.bool_]]:
        """Return each window of a key that has rows and ends in (after, upto], and whether one starts at `recent` or later."""
        windows, some = self.windows, []
        for level in levels:
            starts = as_numpy(level, "start")
            is_met = windows.last(starts) + windows.size > after
            some.append(
                where(level, is_met if upto is None else is_met & (windows.first(starts) + windows.size <= upto))
            )
        if upto is None or layout.is_ordered:
            rows = fold.fold(some, layout, (recent,), END)
            found, is_recent = _windows_of(rows, layout, windows, after, upto, recent)
        else:
            parts = [_windows_of(rows, layout, windows, after, upto, recent)[0] for rows in some]
            found = fold.fold(parts, replace(layout, kind=Unbounded(), once=None))
            is_recent = np.zeros(0, np.bool_)
        ends = pa.array(as_numpy(found, "start") + windows.size)
        place = found.schema.get_field_index("value")
        return found.add_column(place, WINDOW[1], ends).rename_columns({"start": WINDOW[0]}), is_recent


def _is_number(type: pa.DataType) -> bool:
    """Return whether values are numbers or times, or structs of them, of which no sum is out of range."""
    if pa.types.is_struct(type):
        return all(_is_number(field.type) for field in type)
    return bool(pa.types.is_primitive(type) and not pa.types.is_decimal(type))


def _windows_of(
    rows: pa.Table, layout: Layout, window: SlidingWindow, after: int, upto: int | None, recent: int
) -> tuple[pa.Table, NDArray[np.bool_]]:
    """Return the windows of sorted rows, each by its `start`, and which have a row that starts at `recent` or later."""
    size, step = window.size, window.slide
    starts, same = as_numpy(rows, "start"), same_keys(rows, layout)
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
        values = one_chunk(rows["value"])
        sums = fold.of_keys(
            lambda first, end: sliding.fold_ranges(values, lows[first:end], highs[first:end], layout),
            np.arange(len(lows)),
            len(lows),
            rows,
            lows,
            layout,
        )
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
