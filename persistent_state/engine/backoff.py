"""The wait between two tries of something that fails: the same for the queries of an application and for its sinks."""

from __future__ import annotations

LONGEST_WAIT = 60.0
"""Seconds between two tries, at most."""


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
