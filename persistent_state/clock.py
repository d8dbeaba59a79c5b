"""Event time as pure functions: upstream min clocks, checkpoint clocks, cuts, and what a replay has already seen.

Timestamps and clocks are microseconds UTC, as Python integers. Ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

BEGINNING = -(2**63)
"""The clock before every message."""

END = 2**63 - 1
"""The clock above every message."""

MOST_CUTS = 8
"""How many clocks a task that is ahead of the global clock keeps apart."""

MOST_IN_BATCH = 2
"""How many clocks one micro-batch keeps apart below its horizon: each is another row for nearly every key."""

MOST_SPANS = 64
"""How many spans of a strand are remembered for finding where a replay may start."""


@dataclass(frozen=True)
class Settings:
    """How event time moves, per application; everything in microseconds.

    `interval` is the checkpoint interval, `delay` the allowed delay. A channel silent for `idle_after` of batch time stops
    holding the clock (None: never). A timestamp more than `ahead` beyond the batch time is a bad row; so is one more than
    `jump` beyond its channel (None: no limit), until `believe` messages in a row are.
    """

    interval: int
    delay: int = 0
    idle_after: int | None = None
    ahead: int = 86_400_000_000
    jump: int | None = None
    believe: int = 100


@dataclass(frozen=True)
class Channel:
    """One independently ordered strand of event time, as of this start of the application.

    `newest` is the greatest timestamp it delivered since the start (None: nothing yet), `active` the batch time at which it
    last delivered, `beyond` how many of its last messages in a row were over the jump limit. `before` is a timestamp that it
    had reached when the start cut it back: a jump is measured from there. It is `BEGINNING` if the channel has been heard of
    and no more is known, and None if it is only said to come.
    """

    newest: int | None
    active: int
    ended: bool = False
    beyond: int = 0
    before: int | None = None

    def cut_back(self, clock: int, now: int) -> Channel:
        """The channel at a start that cuts its task back to `clock`."""
        return Channel(None, now, before=self.before if self.newest is None else min(self.newest, clock))


@dataclass(frozen=True)
class Coarse:
    """Between `low` and `high` messages were folded into intervals of `step`: only its multiples can be clocks there."""

    low: int
    high: int
    step: int

    def straddles(self, clock: int) -> bool:
        return self.low < clock < self.high and clock % self.step != 0


@dataclass(frozen=True)
class Position:
    """How far a strand of a source was read, and what earlier starts accounted for.

    Everything before `next` is accounted for. So is a message before `position` and below `clock` for each pair of
    `accounted`: earlier starts had read up to `position` when they were cut back to `clock`. `spans` are pairs (first
    position, newest timestamp) of what was delivered; both rise, so the first span that reaches a clock is where its
    replay may start. At least once a start cuts nothing back: its pair has the clock `END`, as all before its position is in
    the state, whatever its time.
    """

    next: int = 0
    accounted: tuple[tuple[int, int], ...] = ()
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def known(self) -> int:
        """The first position that no start of the application has ever committed."""
        return max([self.next, *(position for position, _ in self.accounted)])

    @property
    def taken(self) -> int:
        """The position before which nothing has been cut back."""
        return max([self.next, *(position for position, below in self.accounted if below == END)])


def checkpoint_clock(upstream_min: int, interval: int) -> int:
    """Largest multiple of the interval at or below the upstream min clock."""
    return upstream_min // interval * interval


def is_idle(channel: Channel, now: int, idle_after: int | None) -> bool:
    return idle_after is not None and now - channel.active >= idle_after


def live_channels(channels: Mapping[str, Channel], now: int, idle_after: int | None) -> list[Channel]:
    """The channels that hold the clock: neither ended nor idle."""
    return [c for c in channels.values() if not c.ended and not is_idle(c, now, idle_after)]


def upstream_min(live: Iterable[Channel], clock: int, delay: int) -> int:
    """Min over live channels of (newest timestamp - delay). A channel that has delivered nothing holds it at `clock`."""
    return min(clock if c.newest is None else max(clock, c.newest - delay) for c in live)


def next_multiple(timestamp: int, interval: int) -> int:
    """First multiple of the interval above the timestamp."""
    return (timestamp // interval + 1) * interval


def grid_step(low: int, high: int, interval: int, most: int = MOST_CUTS) -> int:
    """The least interval * 2**j of which at most `most` multiples lie strictly between low and high.

    Such grids are counted from the epoch and nest, so tasks of different speed keep clocks in common.
    """
    step = interval
    while (high - 1) // step - low // step > most:
        step *= 2
    return step


def clean_clock(clock: int, coarse: Iterable[Coarse]) -> int:
    """The latest clock at or below `clock` that straddles nothing stored."""
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
    timestamps: NDArray[np.int64], clock: int, horizon: int, interval: int
) -> tuple[NDArray[np.int64], Coarse | None]:
    """The start of each message's interval, and how coarse the intervals below `horizon` had to be.

    `horizon` is how far the clock could move by what the caller knows. Below it few clocks will ever be asked for, so one
    batch that spans hundreds of intervals keeps at most `MOST_IN_BATCH` of them; above it every clock is still possible.
    """
    if len(timestamps) == 0:
        return timestamps, None
    # A clock that was fixed under another interval need not be on today's grid: no interval starts before it.
    low = max(clock, int(timestamps.min()) // interval * interval)
    high = horizon // interval * interval
    fine = _on_grid(timestamps, low, interval)
    if high <= low or (step := grid_step(low, high, interval, MOST_IN_BATCH)) == interval:
        return fine, None
    return np.where(timestamps < high, _on_grid(timestamps, low, step), fine), Coarse(low, high, step)


def _on_grid(timestamps: NDArray[np.int64], low: int, step: int) -> NDArray[np.int64]:
    """The beginning of each timestamp's step, `low` where that is before it."""
    first = int(timestamps.min()) // step * step
    if int(timestamps.max()) - first < step:
        return np.full(len(timestamps), max(first, low))
    starts: NDArray[np.int64] = timestamps // step
    starts *= step
    return np.maximum(starts, low, out=starts)


def begin_apart(starts: NDArray[np.int64], timestamps: NDArray[np.int64], clocks: Sequence[int]) -> NDArray[np.int64]:
    """Starts of intervals of which none reaches over one of these clocks."""
    edges = np.unique(np.array([BEGINNING, *clocks], dtype=np.int64))
    return np.maximum(starts, edges[np.searchsorted(edges, timestamps, side="right") - 1])


def new_cuts(old: int, new: int, interval: int, coarse: Sequence[Coarse]) -> tuple[int, ...]:
    """Clocks in (old, new] to keep apart when a task moves from old to new, which straddle nothing stored."""
    if new <= old:
        return ()
    step = grid_step(old, new, interval)
    points = range(next_multiple(old, step), new, step)
    return (*(p for p in points if clean_clock(p, coarse) == p), new)


def thin_cuts(cuts: Iterable[int], global_clock: int, clock: int, interval: int) -> tuple[int, ...]:
    """The handful of clocks between the global clock and a task's own that stay apart, both included."""
    between = sorted(c for c in cuts if global_clock < c < clock)
    if between:
        low = global_clock if global_clock != BEGINNING else between[0]
        step = grid_step(low, clock, interval)
        between = [c for c in between if c % step == 0]
    return tuple(sorted({global_clock, clock, *between}))


def fold_starts(starts: NDArray[np.int64], cuts: Sequence[int], clock: int) -> NDArray[np.int64]:
    """Starts of intervals after folding: below `clock` only `cuts` stay apart. The first start of all stays what it is."""
    if clock == BEGINNING:
        return starts
    edges = np.unique(np.array([starts.min(), *cuts], dtype=np.int64))
    folded = edges[np.searchsorted(edges, starts, side="right") - 1]
    return np.where(starts < clock, folded, starts)


def is_accounted(
    position: Position, positions: NDArray[np.int64], timestamps: NDArray[np.int64], again: int = END
) -> NDArray[np.bool_]:
    """Which messages an earlier batch or start has accounted for: in the state, or counted as late or bad.

    From the clock `again` on what earlier starts have accounted for counts once more.
    """
    done = positions < position.next
    for before, below in position.accounted:
        done |= (positions < before) & (timestamps < min(below, again))
    return done


def replay_from(position: Position, clock: int) -> int:
    """The lowest position that may hold a message at or above the clock."""
    return next((first for first, newest in position.spans if newest >= clock), position.next)


def rewind_position(position: Position, clock: int) -> Position:
    """The position of a start that cuts its task back to `clock`: nothing at or above that is in the state any more."""
    first = replay_from(position, clock)
    pairs = {(before, min(below, clock)) for before, below in position.accounted}
    return Position(first, _needed(first, {*pairs, (position.next, clock)}))


def reread_position(position: Position, clock: int) -> Position:
    """The position of a start that reads again from `clock` on, though the state keeps all that was read."""
    first = replay_from(position, clock)
    # The spans stay, as does what they tell of.
    spans = forget_spans(position, clock).spans
    return Position(first, _needed(first, {*position.accounted, (position.next, END)}), spans)


def _needed(first: int, pairs: Collection[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The pairs (position, clock) that say something which neither `first` nor another pair does."""
    return tuple(
        (before, below)
        for before, below in sorted(pairs)
        if before > first and not any(b >= before and c >= below and (b, c) != (before, below) for b, c in pairs)
    )


def move_position(position: Position, end: int, spans: Iterable[tuple[int, int]]) -> Position:
    """The position after a batch that read up to `end` and delivered these spans."""
    rising: list[tuple[int, int]] = []
    for first, newest in sorted([*position.spans, *spans]):
        if rising and rising[-1][0] == first:
            rising[-1] = (first, newest)
        elif not rising or newest > rising[-1][1]:
            rising.append((first, newest))
    while len(rising) > MOST_SPANS:
        # Joining two neighbours only makes a replay start earlier than it must.
        rising = [(a[0], b[1]) for a, b in zip(rising[::2], [*rising[1::2], rising[-1]], strict=False)]
    accounted = tuple(pair for pair in position.accounted if pair[0] > end)
    return Position(end, accounted, tuple(rising))


def forget_spans(position: Position, clock: int) -> Position:
    """The position without the spans that no start at or above the clock has to read again."""
    return replace(position, spans=tuple(span for span in position.spans if span[1] >= clock))


def newest_read(positions: Iterable[Position]) -> int | None:
    """The greatest timestamp that was delivered, but for what is below every clock that a start may go back to."""
    return max((newest for position in positions for _, newest in position.spans[-1:]), default=None)


def beyond_limit(
    timestamps: NDArray[np.int64], newest: int | None, streak: int, jump: int, believe: int
) -> tuple[NDArray[np.bool_], int]:
    """Which messages of a channel, in its order, jump too far ahead of it, and how many in a row do at the end.

    A jump is measured from the newest message believed so far. After `believe` in a row beyond the limit the channel is
    believed: that one and those after it count.
    """
    bad = np.zeros(len(timestamps), dtype=np.bool_)
    for i, timestamp in enumerate(timestamps.tolist()):
        if newest is not None and timestamp > newest + jump:
            streak += 1
            bad[i] = streak < believe
        else:
            streak = 0
        if not bad[i]:
            streak = 0
            newest = timestamp if newest is None else max(newest, timestamp)
    return bad, streak


def listed_channels(
    channels: Mapping[str, Channel], listed: Mapping[str, bool] | None, known: Iterable[str], now: int
) -> dict[str, Channel]:
    """The channels to reckon with, once the source has said which there are and whether each has ended.

    None: channels appear with their messages, but for those `known` to come. One that is no longer listed has disappeared.
    """
    if listed is None:
        return {**{name: Channel(None, now) for name in known}, **channels}
    return {name: replace(channels.get(name, Channel(None, now)), ended=ended) for name, ended in listed.items()}


def deliver(
    channels: Mapping[str, Channel], seen: Iterable[tuple[str, int | None, int]], now: int
) -> dict[str, Channel]:
    """The channels after a batch, from what each part of it saw: (channel, newest timestamp or None, jumps in a row)."""
    after = dict(channels)
    for name, newest, beyond in seen:
        known = after.get(name, Channel(None, now))
        if known.before is None:
            known = replace(known, before=BEGINNING)
        if newest is not None:
            newest = newest if known.newest is None else max(known.newest, newest)
            known = replace(known, newest=newest, active=now)
        after[name] = replace(known, beyond=beyond)
    return after
