"""Event time as pure functions: upstream min clocks, checkpoint clocks, cuts, and what a replay has already seen.

Timestamps and clocks are microseconds UTC, as Python integers. Ranges are half-open.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

BEGINNING = -(2**63)
"""The clock before every message."""

END = 2**63 - 1
"""The clock above every message."""

FURTHEST = 2**62
"""The furthest a timestamp may be from the epoch, in microseconds: 146,000 years."""

MOST_CUTS = 8
"""The most clocks that a task ahead of the global clock keeps apart."""

MOST_IN_BATCH = 2
"""The most clocks that one micro-batch keeps apart below its horizon: each costs a row for nearly every key."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of an input: of what its source has, only messages from `since` on and below `below` are its own.

    With `keep` rows outside are kept aside; without it, they are only counted. Times are microseconds UTC.
    """

    since: int = BEGINNING
    below: int = END
    keep: bool = False

    @property
    def times(self) -> tuple[int, int]:
        """Both bounds."""
        return self.since, self.below


@dataclass(frozen=True)
class Settings:
    """An application's settings of event time, in microseconds.

    Attributes:
        interval: The checkpoint interval.
        delay: The allowed delay.
        idle_after: A channel that is silent for this long, in batch time, stops holding the clock. None: it always holds.
        ahead: A timestamp more than this beyond the batch time makes a bad row.
        jump: A timestamp more than this beyond its channel makes a bad row. None: there is no limit.
        believe: After this many messages in a row that jump, the channel is believed.
        alignment: A channel this far ahead of the slowest live one is not read on. None: there is no limit.
        every: Each multiple of this stays apart above the global clock, as tasks are fed what changes between two of them. A
            divisor of the interval. None: only some clocks stay apart.
        bounds: Which messages of the source count.
        inputs: By input of a task: its own settings, where they differ from these.
    """

    interval: int
    delay: int = 0
    idle_after: int | None = None
    ahead: int = 86_400_000_000
    jump: int | None = None
    believe: int = 100
    alignment: int | None = None
    every: int | None = None
    bounds: Bounds = field(default_factory=Bounds)
    inputs: Mapping[str, Settings] = field(default_factory=dict)

    def of(self, input: str) -> Settings:
        """Return the settings of an input."""
        return self.inputs.get(input, self)

    @property
    def grid(self) -> int:
        """The multiples over which no interval of messages above the clock reaches."""
        return self.every or self.interval


@dataclass(frozen=True)
class Coarse:
    """A range of time in which messages were folded into intervals of `step`: only its multiples can be clocks there."""

    low: int
    high: int
    step: int

    def straddles(self, clock: int) -> bool:
        return self.low < clock < self.high and clock % self.step != 0


def is_among(ascending: Sequence[int], clock: int) -> bool:
    """Return whether a clock is one of these clocks, which ascend. They may be many, and few of them are looked at."""
    place = bisect_left(ascending, clock)
    return place < len(ascending) and ascending[place] == clock


def with_more(ascending: tuple[int, ...], more: Iterable[int]) -> tuple[int, ...]:
    """Return clocks that ascend with more clocks among them: the same object if it has these already."""
    new = {clock for clock in more if not is_among(ascending, clock)}
    return tuple(sorted((*ascending, *new))) if new else ascending


def or_none(clock: int) -> int | None:
    """Return the clock, or None if it is `BEGINNING`: the form in which a clock leaves the library."""
    return None if clock == BEGINNING else clock


def checkpoint_clock(upstream_min: int, interval: int) -> int:
    """Return the largest multiple of the interval at or below the upstream min clock."""
    return upstream_min // interval * interval


def next_multiple(timestamp: int, interval: int) -> int:
    """Return the first multiple of the interval above the timestamp."""
    return (timestamp // interval + 1) * interval


def grid_step(low: int, high: int, interval: int, most: int = MOST_CUTS) -> int:
    """Return the least interval * 2**j of which at most `most` multiples lie strictly between low and high.

    Such grids are counted from the epoch and nest, so tasks of different speed keep clocks in common.
    """
    step = interval
    while (high - 1) // step - low // step > most:
        step *= 2
    return step


def clean_clock(clock: int, coarse: Iterable[Coarse]) -> int:
    """Return the latest clock at or below `clock` that straddles nothing stored."""
    segments = list(coarse)
    while blocking := [s for s in segments if s.straddles(clock)]:
        clock = min(max(s.low, clock // s.step * s.step) for s in blocking)
    return clock


def joined(coarse: Iterable[Coarse]) -> list[Coarse]:
    """Return fewer segments that keep the same clocks apart: of one step those that overlap are one.

    A clock that is held while a backlog is read would gather one for each part of each micro-batch.
    """
    found: list[Coarse] = []
    for segment in sorted(set(coarse), key=lambda s: (s.step, s.low)):
        if found and found[-1].step == segment.step and segment.low < found[-1].high:
            found[-1] = replace(found[-1], high=max(found[-1].high, segment.high))
        else:
            found.append(segment)
    return found


def split_intervals(
    timestamps: NDArray[np.int64], clock: int, horizon: int, settings: Settings
) -> tuple[NDArray[np.int64], Coarse | None]:
    """Return the start of each message's interval, and how coarse the intervals below `horizon` had to be.

    `horizon` is how far the clock could move by what the caller knows. Below it few clocks will ever be asked for, so one
    batch that spans hundreds of intervals keeps at most `MOST_IN_BATCH` of them; above it every clock is still possible.
    """
    interval = settings.grid
    if len(timestamps) == 0:
        return timestamps, None
    # A clock that was fixed under another interval need not be on today's grid: no interval starts before it.
    least, most = int(timestamps.min()), int(timestamps.max())
    low = max(clock, least // interval * interval)
    high = horizon // interval * interval
    if least < clock:
        # Other tasks give messages below the clock, up to which sources were read. They are folded with what is there.
        return np.where(timestamps < clock, timestamps, _on_grid(timestamps, low, interval)), None
    if settings.every or high <= low or (step := grid_step(low, high, interval, MOST_IN_BATCH)) == interval:
        return _on_grid(timestamps, low, interval), None
    starts = _on_grid(timestamps, low, step)
    if most >= high:
        above = timestamps >= high
        starts[above] = _on_grid(timestamps[above], low, interval)
    return starts, Coarse(low, high, step)


def _on_grid(timestamps: NDArray[np.int64], low: int, step: int) -> NDArray[np.int64]:
    """Return the beginning of each timestamp's step, or `low` where the step begins before `low`."""
    first = int(timestamps.min()) // step * step
    if int(timestamps.max()) - first < step:
        return np.full(len(timestamps), max(first, low))
    starts: NDArray[np.int64] = timestamps // step
    starts *= step
    return starts if low <= first else np.maximum(starts, low, out=starts)


def begin_apart(starts: NDArray[np.int64], timestamps: NDArray[np.int64], clocks: Sequence[int]) -> NDArray[np.int64]:
    """Return the starts of intervals, moved so that no interval reaches over one of these clocks."""
    edges = np.unique(np.array([BEGINNING, *clocks], dtype=np.int64))
    return np.maximum(starts, edges[np.searchsorted(edges, timestamps, side="right") - 1])


def new_cuts(old: int, new: int, interval: int, coarse: Sequence[Coarse]) -> tuple[int, ...]:
    """Return the clocks in (old, new] to keep apart when a task moves from old to new. They straddle nothing stored."""
    if new <= old:
        return ()
    step = grid_step(old, new, interval)
    points = range(next_multiple(old, step), new, step)
    return (*(p for p in points if clean_clock(p, coarse) == p), new)


def thin_cuts(cuts: Iterable[int], global_clock: int, clock: int, interval: int) -> tuple[int, ...]:
    """Return the few clocks between the global clock and a task's own that stay apart, both included."""
    between = sorted(c for c in cuts if global_clock < c < clock)
    if between:
        low = global_clock if global_clock != BEGINNING else between[0]
        step = grid_step(low, clock, interval)
        between = [c for c in between if c % step == 0]
    return tuple(sorted({global_clock, clock, *between}))


def last_of_periods(visited: Collection[int], every: int, span: int) -> set[int]:
    """Return the last clock of each period of `every`, as far as it lies no more than `span` below the newest clock.

    Periods are counted from the epoch. A multiple of `every` ends one: what is below it is the whole period.
    """
    last = {-(-clock // every): clock for clock in sorted(visited)}
    newest = max(visited, default=BEGINNING)
    return {clock for clock in last.values() if newest - clock <= span}


def fold_starts(starts: NDArray[np.int64], cuts: Sequence[int], clock: int) -> NDArray[np.int64]:
    """Return the starts of intervals after folding: below `clock` only `cuts` stay apart. The first of all starts is kept."""
    if clock <= starts.min():
        return starts
    edges = np.unique(np.array([starts.min(), *cuts], dtype=np.int64))
    folded = edges[np.searchsorted(edges, starts, side="right") - 1]
    return np.where(starts < clock, folded, starts)
