"""Channels of a source: how far each has come, when it is idle, and the upstream min clock of those that are live."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from persistent_state.event_time.clocks import BEGINNING


@dataclass(frozen=True)
class Channel:
    """One independently ordered partition of event time, as of this start of the application.

    Attributes:
        newest: The greatest timestamp that it has delivered since the start; None if it has delivered nothing.
        active: The batch time at which it last delivered, in microseconds UTC.
        ended: True if the source says that nothing more will come.
        beyond: How many of its last messages in a row were over the jump limit.
        before: The timestamp that it had reached when the start cut it back: a jump is measured from there. `BEGINNING` if the
            channel exists and no timestamp of it is known, None if the source only announces it.
    """

    newest: int | None
    active: int
    ended: bool = False
    beyond: int = 0
    before: int | None = None

    @property
    def has_delivered(self) -> bool:
        """Return whether the channel is more than a name: it has ever delivered a message."""
        return (self.newest, self.before) != (None, None)

    @property
    def reached(self) -> int:
        """The timestamp that the channel has come to, before a start perhaps; `BEGINNING` if none is known."""
        known = self.before if self.newest is None else self.newest
        return BEGINNING if known is None else known

    def cut_back(self, clock: int, now: int) -> Channel:
        """Return the channel as it is after a start has cut its task back to `clock`."""
        return Channel(None, now, before=self.before if self.newest is None else min(self.newest, clock))


def is_idle(channel: Channel, now: int, idle_after: int | None) -> bool:
    """Return True if the channel has been silent for so long that it stops holding the clock."""
    return idle_after is not None and now - channel.active >= idle_after


def live_channels(channels: Mapping[str, Channel], now: int, idle_after: int | None) -> dict[str, Channel]:
    """Return the channels that hold the clock: neither ended nor idle."""
    return {name: c for name, c in channels.items() if not c.ended and not is_idle(c, now, idle_after)}


def held_back(reached: Mapping[str, int], alignment: int, exhausted: Collection[str]) -> frozenset[str]:
    """Return the live channels that are to wait: they are more than `alignment` ahead of the slowest that others wait for.

    No channel waits for one that is `exhausted`: read to an end that does not move any more. The slowest never waits. How far a
    channel has come is measured between channels: by the clock none might ever go on.

    Args:
        reached: By live channel: how far it has come.
        alignment: How far ahead one may be, in microseconds.
        exhausted: The channels for which no other waits.
    """
    reached = {name: at for name, at in reached.items() if name not in exhausted}
    slowest = min(reached.values(), default=BEGINNING)
    return frozenset(name for name, at in reached.items() if at > slowest + alignment)


def upstream_min(live: Iterable[Channel], clock: int, delay: int) -> int:
    """Min over live channels of (newest timestamp - delay). None holds it below `clock`, where one without messages stands."""
    return min(clock if c.newest is None else max(clock, c.newest - delay) for c in live)


def beyond_limit(
    timestamps: NDArray[np.int64], newest: int | None, streak: int, jump: int, believe: int
) -> tuple[NDArray[np.bool_], int]:
    """Find the messages of a channel, in its order, that jump too far ahead of it, and count those in a row at the end.

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
    """Return the channels that count, once the source has listed them and those that have ended.

    None: channels appear with their messages, but for those `known` to come. One that is no longer listed has disappeared.
    """
    if listed is None:
        return {**{name: Channel(None, now) for name in known}, **channels}
    return {name: replace(channels.get(name, Channel(None, now)), ended=ended) for name, ended in listed.items()}


def deliver(
    channels: Mapping[str, Channel], seen: Iterable[tuple[str, int | None, int]], now: int
) -> dict[str, Channel]:
    """Return the channels after a batch.

    `seen` is what each part of the batch saw: (channel, newest timestamp or None, jumps in a row).
    """
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
