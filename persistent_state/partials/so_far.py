"""The values of keys so far, as `get()` reads them: the sums that runs hold, and the updates of this micro-batch.

The messages of a micro-batch come key by key, and those of a key in order of time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from monoids import Monoid

Rows = Sequence[tuple[int, int]]
"""For each key the numbers [low, high) of the rows that runs hold of it."""


class SoFar(ABC):
    """The values of keys so far. `turn_to` says which message the other methods are about."""

    @abstractmethod
    def turn_to(self, key: int, timestamp: int) -> None:
        """Go on with a message at this time of the key of this number."""

    @abstractmethod
    def get(self) -> object:
        """Return what the message's task reads."""

    @abstractmethod
    def add(self, value: object) -> None:
        """Add an update of the message."""

    @abstractmethod
    def undo(self) -> None:
        """Take back all updates of the message."""


class OfKeys(SoFar):
    """One value for each key, over all time. `values` are those that runs hold; None where they hold no value."""

    def __init__(self, values: Sequence[object], monoid: Monoid[Any]) -> None:
        self._values, self._monoid = values, monoid
        self._key = -1
        self._value: object = None

    def turn_to(self, key: int, timestamp: int) -> None:
        if key != self._key:
            known = self._values[key]
            # A zero for each key, as user code may change the one that it is given.
            self._key, self._value = key, self._monoid.zero if known is None else known
        self._before = self._value

    def get(self) -> object:
        return self._value

    def add(self, value: object) -> None:
        self._value = self._monoid.plus(self._value, value)

    def undo(self) -> None:
        self._value = self._before


class OfWindows(SoFar):
    """The values of the windows that a message is in, by their start and end.

    `starts` and `values` are those of the rows that runs hold, one for each key and pane.
    """

    def __init__(
        self, rows: Rows, starts: Sequence[int], values: Sequence[object], monoid: Monoid[Any], size: int, slide: int
    ) -> None:
        self._rows, self._starts, self._values, self._monoid = rows, starts, values, monoid
        self._size, self._slide = size, slide
        self._key, self._timestamp = -1, 0
        # By their starts, the windows of the newest message that was asked about.
        self._windows: Mapping[int, object] = {}

    def turn_to(self, key: int, timestamp: int) -> None:
        if key != self._key:
            self._key, self._windows = key, {}
        self._timestamp, self._before = timestamp, self._windows

    def get(self) -> dict[tuple[int, int], object]:
        self._windows = self._of_message()
        return {(start, start + self._size): value for start, value in self._windows.items()}

    def add(self, value: object) -> None:
        self._windows = {start: self._monoid.plus(known, value) for start, known in self._of_message().items()}

    def undo(self) -> None:
        self._windows = self._before

    def _of_message(self) -> Mapping[int, object]:
        """Return the values of the windows that the message is in, by their starts.

        Windows that an earlier message was in and this one is not hold no later message. So they are not kept.
        """
        first = ((self._timestamp - self._size) // self._slide + 1) * self._slide
        starts = range(first, self._timestamp + 1, self._slide)
        unknown = [start for start in starts if start not in self._windows]
        found = {**self._windows, **dict(zip(unknown, self._stored(unknown), strict=True))}
        return {start: found[start] for start in starts}

    def _stored(self, windows: Sequence[int]) -> Sequence[object]:
        """Return what runs hold of windows that all have the message in them, by at most two additions for each pane."""
        low, high = self._rows[self._key]
        lows = [bisect_left(self._starts, start, low, high) for start in windows]
        highs = [bisect_left(self._starts, start + self._size, low, high) for start in windows]
        if not windows or lows[0] == highs[-1]:
            return [self._monoid.zero for _ in windows]
        # Each window is the rows from its first one up to the middle, and those from there on.
        plus, middle = self._monoid.plus, lows[-1]
        before, after = self._values[lows[0] : middle], self._values[middle : highs[-1]]
        # Not as `initial`: there None, which is the zero of some monoids, means that no value is there.
        heads = [*accumulate([self._monoid.zero, *reversed(before)], lambda sum, value: plus(value, sum))][::-1]
        tails = [*accumulate([self._monoid.zero, *after], plus)]
        pairs = zip(lows, highs, strict=True)
        return [plus(heads[low - lows[0]], tails[high - middle]) for low, high in pairs]


class _Session(NamedTuple):
    """A session or a life: its first and last timestamp, what runs hold of it, and what this micro-batch has added."""

    first: int
    last: int
    stored: object
    added: object


class OfSessions(SoFar):
    """The value of the session that a message joins, by the start and end that the session has with the message.

    `firsts`, `lasts` and `values` are those of the rows that runs hold, one for each session of a key.
    """

    def __init__(
        self,
        rows: Rows,
        firsts: Sequence[int],
        lasts: Sequence[int],
        values: Sequence[object],
        monoid: Monoid[Any],
        gap: int,
    ) -> None:
        self._rows, self._firsts, self._lasts, self._values, self._monoid = rows, firsts, lasts, values, monoid
        self._gap = gap
        self._key, self._timestamp = -1, 0

    def turn_to(self, key: int, timestamp: int) -> None:
        if key != self._key:
            self._key = key
            self._next, self._end = self._rows[key]
            # The session that this micro-batch has added to last.
            self._newest: _Session | None = None
        self._timestamp = timestamp
        # What has ended by now, no later message joins.
        while self._next < self._end and self._lasts[self._next] + self._gap <= timestamp:
            self._next += 1
        self._before = self._next, self._newest

    def get(self) -> object:
        session, _ = self._joined()
        return {(session.first, session.last + self._gap): self._value(session)}

    def add(self, value: object) -> None:
        session, self._next = self._joined()
        self._newest = session._replace(added=self._monoid.plus(session.added, value))

    def undo(self) -> None:
        self._next, self._newest = self._before

    def _value(self, session: _Session) -> object:
        return self._monoid.plus(session.stored, session.added)

    def _joined(self) -> tuple[_Session, int]:
        """Return the session that the message joins, with the message in it, and the first row that is not of it."""
        time, at = self._timestamp, self._next
        session = self._newest
        if session is None or session.last + self._gap <= time:
            session = _Session(time, time, self._monoid.zero, self._monoid.zero)
        first, last, stored = min(session.first, time), max(session.last, time), session.stored
        # The message may stand between two sessions: then they are one.
        while at < self._end and self._firsts[at] < time + self._gap:
            first, last = min(first, self._firsts[at]), max(last, self._lasts[at])
            stored = self._monoid.plus(stored, self._values[at])
            at += 1
        return _Session(first, last, stored, session.added), at


class OfLives(OfSessions):
    """The value of the life that a message is in. In a life no message is further from the one before than the time to live."""

    def get(self) -> object:
        return self._value(self._joined()[0])
