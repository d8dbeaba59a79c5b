"""Positions of a source: what was read, which of it is accounted for, and from where a replay starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from persistent_state.event_time.clocks import END

MOST_SPANS = 64
"""The most spans of a partition that are kept for finding where a replay may start."""


@dataclass(frozen=True)
class Position:
    """The progress of a partition of a source: how far it was read, and what earlier starts accounted for.

    Attributes:
        next: Every message before this position is accounted for.
        accounted: Pairs (position, clock): a message before the position and below the clock is accounted for too. An earlier
            start had read up to the position when it was cut back to the clock.
        spans: Pairs (first position, newest timestamp) of what was delivered. Both rise, so a replay from a clock may start at
            the first span that reaches the clock.

    Under at-least-once delivery a start cuts nothing back: its pair has the clock `END`, as all
    messages before its position are in the state, whatever their timestamps.
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


def is_accounted(
    known: Sequence[Position],
    of: NDArray[np.intp] | int,
    positions: NDArray[np.int64],
    timestamps: NDArray[np.int64],
    again: int = END,
) -> NDArray[np.bool_]:
    """Return True for each message that an earlier batch or start accounted for: in the state, or counted as late or bad.

    Args:
        known: How far each partition was read.
        of: The number of the partition of each message, or of all.
        positions: The position of each message.
        timestamps: The timestamp of each message.
        again: From this clock on, messages that earlier starts accounted for count once more.
    """
    done: NDArray[np.bool_] = positions < np.array([position.next for position in known])[of]
    for pair in range(max(len(position.accounted) for position in known)):
        pairs = [position.accounted[pair] if pair < len(position.accounted) else (0, 0) for position in known]
        before, below = np.array(pairs, np.int64).T
        done |= (positions < before[of]) & (timestamps < np.minimum(below, again)[of])
    return done


def replay_from(position: Position, clock: int) -> int:
    """Return the lowest position that may hold a message at or above the clock."""
    return next((first for first, newest in position.spans if newest >= clock), position.next)


def rewind_position(position: Position, clock: int) -> Position:
    """Return the position of a start that cuts its task back to `clock`.

    No message at or above `clock` is in the state any more.
    """
    first = replay_from(position, clock)
    pairs = {(before, min(below, clock)) for before, below in position.accounted}
    return Position(first, _needed(first, {*pairs, (position.next, clock)}))


def reread_position(position: Position, clock: int) -> Position:
    """Return the position of a start that reads again from `clock` on, though the state keeps all that was read."""
    first = replay_from(position, clock)
    # The spans stay, as do the rows that they stand for.
    spans = forget_spans(position, clock).spans
    return Position(first, _needed(first, {*position.accounted, (position.next, END)}), spans)


def _needed(first: int, pairs: Collection[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the pairs (position, clock) that neither `first` nor another pair makes needless."""
    return tuple(
        (before, below)
        for before, below in sorted(pairs)
        if before > first and not any(b >= before and c >= below and (b, c) != (before, below) for b, c in pairs)
    )


def move_position(position: Position, end: int, spans: Iterable[tuple[int, int]]) -> Position:
    """Return the position after a batch that read up to `end` and delivered these spans."""
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
    """Return the position without the spans that no start at or above the clock has to read again."""
    return replace(position, spans=tuple(span for span in position.spans if span[1] >= clock))


def newest_read(positions: Iterable[Position]) -> int | None:
    """Return the newest timestamp that was delivered, or None. Forgotten spans are left out: no start goes back to them."""
    return max((newest for position in positions for _, newest in position.spans[-1:]), default=None)


NO_POSITION = 2**63 - 1
"""The position of a row whose source has none: it stands behind all that was ever read."""

LAST_POSITION = NO_POSITION - 1
"""The greatest position of a row. A partition that is read no more, as its input has left, counts as read up to it."""
