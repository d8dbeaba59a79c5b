"""The wait between two tries of something that fails: the same for the flows of an application and for its sinks."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_WAIT = 60.0
"""Seconds between two tries, at most."""

SHORTEST_WAIT_OF_BUSY = 5.0
"""The first wait, in seconds, after a machine was too slow: a try at once would only add to its load."""

PATIENCE = 600.0
"""The time, in seconds, for which a machine may be too slow without a success in between."""


class Backoff:
    """The failures in a row of one thing, and the time to wait after each.

    The first wait is one second. Each later wait is twice the one before it, up to `LONGEST_WAIT`.
    """

    def __init__(self) -> None:
        self.failures = 0

    def fail(self) -> float:
        """Count a failure, and return the seconds to wait before the next try."""
        self.failures += 1
        # The exponent is bounded, because a sink may fail more often than a float can count in powers of two.
        return min(2.0 ** min(self.failures - 1, 10), LONGEST_WAIT)

    def succeed(self) -> None:
        """Forget the failures: the next one is the first again."""
        self.failures = 0


class Patience:
    """The tries of what this machine was too slow for. They go on for `PATIENCE` seconds, however many they are.

    `was_needed` is whether the machine was ever too slow. The first wait is `SHORTEST_WAIT_OF_BUSY` seconds. Each later wait is
    twice the one before it, up to `LONGEST_WAIT`. Failures during a wait are of the tries before it, and make it no longer.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.was_needed = False
        self._now = now
        self._since: float | None = None
        self._until = now()
        self._backoff = Backoff()

    def fail(self) -> float | None:
        """Count a failure, and return the seconds to wait before the next try; None if there is to be no further try."""
        now, self.was_needed = self._now(), True
        self._since = now if self._since is None else self._since
        if now > self._since + PATIENCE:
            return None
        if now >= self._until:
            self._until = now + min(SHORTEST_WAIT_OF_BUSY * self._backoff.fail(), LONGEST_WAIT)
        return self._until - now

    def succeed(self) -> None:
        """Forget the failures: the next one is the first again."""
        self._since = None
        self._backoff.succeed()

    @property
    def is_waiting(self) -> bool:
        """Return whether the wait after the newest failure is not over."""
        return self._now() < self._until
