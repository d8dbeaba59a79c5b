"""Sessions: a row is a part of one, and two rows of a key are of one session if they are less than the gap apart.

A state with a time to live is kept as sessions too: it is the newest one, as long as that goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.partials import fold, sort
from persistent_state.partials.layout import (
    Kind,
    Layout,
    Levels,
    RowOrder,
    as_numpy,
    one_chunk,
    those_within,
    where,
    with_values,
)
from persistent_state.partials.lookup import rows_of
from persistent_state.partials.since import Since
from persistent_state.partials.so_far import OfLives, OfSessions
from persistent_state.windows import WINDOW

Times = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Sessions(Kind):
    """A state in sessions. `first` and `last` are the first and the last timestamp of a row."""

    gap: int

    columns: ClassVar[tuple[str, ...]] = ("first", "last")
    in_time: ClassVar[str] = "first"
    window_columns: ClassVar[tuple[str, ...]] = WINDOW
    expires: ClassVar[bool] = True
    expires_by_key: ClassVar[bool] = True

    reading: ClassVar[type[OfSessions]] = OfSessions

    def segments(self, table: pa.Table, order: RowOrder, first: Mask) -> Mask:
        firsts, lasts = (as_numpy(table, name) for name in ("first", "last"))
        if order is not None:
            firsts, lasts = firsts[order], lasts[order]
        begins = first.copy()
        begins[1:] |= firsts[1:] >= sort.running_max(lasts, first)[:-1] + self.gap
        return begins

    def with_span(self, heads: pa.Table, table: pa.Table, order: RowOrder, begins: NDArray[np.intp]) -> pa.Table:
        lasts = as_numpy(table, "last")
        lasts = np.maximum.reduceat(lasts if order is None else lasts[order], begins)
        return heads.set_column(heads.schema.get_field_index("last"), "last", pa.array(lasts))

    def ends(self, table: pa.Table, after: int, upto: int) -> tuple[NDArray[np.intp], Times]:
        return those_within(self._ends(table), after, upto)

    def may_end(self, first: int, last: int, after: int, upto: int) -> bool:
        # No message is before the start of its row. A run does not say how far one may be behind it.
        return first + self.gap <= upto

    def all_ended(self, clock: int) -> int:
        return clock - self.gap + 1

    def expiry(self, table: pa.Table, layout: Layout) -> Times:
        ends = self._ends(table)
        if layout.once is None or len(table) == 0:
            return ends
        # Messages with an id are rows of their own below every clock, and each is needed until its session ends.
        order, first = sort.sort(table, layout)
        begins = np.flatnonzero(self.segments(table, order, first))
        order = np.arange(len(table)) if order is None else order
        of_sessions = np.empty(len(table), np.int64)
        lengths = np.diff(np.append(begins, len(table)))
        of_sessions[order] = np.repeat(np.maximum.reduceat(ends[order], begins), lengths)
        return of_sessions

    def state(self, levels: Levels, layout: Layout, clock: int) -> pa.Table:
        rows = fold.fold_keys(levels, layout)
        return self._shown(where(rows, self._ends(rows) > clock), layout)

    def values(self, levels: Levels, layout: Layout, since: Since, clock: int, floor: int) -> pa.Table:
        rows = self._sessions(levels, layout, since, clock)
        ends = self._ends(rows)
        return self._shown(where(rows, (ends > max(since.clock, floor)) & (ends <= clock)), layout)

    def so_far(self, asked: pa.Table, levels: Levels, layout: Layout, lowest: int) -> OfSessions:
        rows = fold.fold_keys([fold.touched(level, asked) for level in levels], layout)
        rows = where(rows, self._ends(rows) > lowest)
        firsts, lasts = (as_numpy(rows, name).tolist() for name in ("first", "last"))
        values = layout.monoid.from_arrow(one_chunk(rows["value"]))
        return self.reading(rows_of(asked, rows, layout), firsts, lasts, values, layout.monoid, self.gap)

    def _ends(self, rows: pa.Table) -> Times:
        """Return the clock by which each row has ended, unless its session goes on in another row."""
        return as_numpy(rows, "last") + self.gap

    def _sessions(self, levels: Levels, layout: Layout, since: Since, clock: int) -> pa.Table:
        """Return all sessions of the keys that have a row which is asked for."""
        some = fold.of_keys_with(levels, [self._is_asked(level, since, clock) for level in levels])
        return fold.fold_keys(some, layout)

    def _is_asked(self, rows: pa.Table, since: Since, clock: int) -> Mask:
        """Return which rows have ended since."""
        ends = self._ends(rows)
        return (ends > since.clock) & (ends <= clock)

    def _shown(self, rows: pa.Table, layout: Layout) -> pa.Table:
        """Return sessions as windows."""
        windows = rows.select(["hash", *layout.key_names]).append_column(WINDOW[0], rows["first"])
        windows = windows.append_column(WINDOW[1], pa.array(self._ends(rows)))
        return windows.append_column(layout.schema.field("value"), rows["value"])


@dataclass(frozen=True)
class Living(Sessions):
    """A state with a time to live. At a clock a key has at most one session that goes on: that is its state."""

    window_columns: ClassVar[tuple[str, ...]] = ()
    reading: ClassVar[type[OfSessions]] = OfLives

    def values(self, levels: Levels, layout: Layout, since: Since, clock: int, floor: int) -> pa.Table:
        rows = self._sessions(levels, layout, since, clock)
        ends, begins_key = self._ends(rows), ~sort.same_keys(rows, layout)
        is_open = ends > clock
        changed = is_open & (since.all | (as_numpy(rows, "last") >= since.clock))
        was_there = (as_numpy(rows, "first") < since.clock) & (ends > since.clock)
        keys = np.cumsum(begins_key) - 1
        expired = was_there & ~np.isin(keys, keys[is_open])
        some = np.flatnonzero(changed | expired)
        rows, expired = rows.take(pa.array(some)), expired[some]
        known = one_chunk(rows["value"])
        known_and_zero = pa.concat_arrays([known, layout.monoid.to_arrow([layout.monoid.zero])])
        place = np.where(expired, len(known), np.arange(len(known)))
        return self._shown(with_values(rows, known_and_zero.take(pa.array(place))), layout)

    def running(self, levels: Levels, layout: Layout, clock: int) -> pa.Table:
        rows = fold.fold_keys(levels, layout)
        is_last = np.append(~sort.same_keys(rows, layout)[1:], True)[: len(rows)]
        return self._shown(where(rows, is_last), layout)

    def _is_asked(self, rows: pa.Table, since: Since, clock: int) -> Mask:
        """Return which rows have ended or come since; all, if all are asked for."""
        ends, lasts = self._ends(rows), as_numpy(rows, "last")
        return (ends > since.clock) & (ends <= clock) | (lasts >= since.clock) | since.all

    def _shown(self, rows: pa.Table, layout: Layout) -> pa.Table:
        return rows.select(["hash", *layout.key_names, "value"])
