"""The pace of a flow on this machine: how soon a micro-batch or commit may follow another, and how long an idle flow waits."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from persistent_state.sources.base import TimeReplayableSource
from persistent_state.store.files import Files

NEAR_SECONDS = 0.1
"""The least time from one commit to the next on a local disk: each takes an entry of the log, and files."""

FAR_SECONDS = 1.0
"""The same where each entry and file is a request to a store behind a network."""

GATHERED_SECONDS = 0.01
"""The least time from one micro-batch to the next where those between two commits are gathered in memory."""

LOOK_SECONDS = 0.2
"""The time between two looks at a source that has nothing to read, unless it says that there is news."""

NEWS_SECONDS = 0.02
"""The least time between two such looks, also if a source says so each time."""

OPEN_SECONDS = 10.0
"""The time for which a source keeps open what it is read by."""


def seconds_between(files: Files, trigger: int | None) -> float:
    """Return the least seconds from the beginning of a micro-batch to that of the next. A `trigger` (microseconds) decides."""
    if trigger is not None:
        return trigger / 1e6
    return NEAR_SECONDS if files.near else FAR_SECONDS


class Pace:
    """The waits of a flow between its micro-batches. `stopping` ends them.

    Args:
        files: The store.
        trigger: The microseconds between two micro-batches; None leaves that to the store.
        stopping: Is set when the flow is to end.
        now: Returns seconds of any one clock.
        gathers: Whether micro-batches are gathered between commits.
    """

    def __init__(
        self,
        files: Files,
        trigger: int | None,
        stopping: threading.Event,
        now: Callable[[], float] = time.monotonic,
        gathers: bool = False,
    ) -> None:
        self._commit_seconds = seconds_between(files, trigger)
        self._seconds = GATHERED_SECONDS if gathers else self._commit_seconds
        self._news_seconds = GATHERED_SECONDS if gathers else NEWS_SECONDS
        self._idle_seconds = LOOK_SECONDS if files.near else FAR_SECONDS
        self._always = trigger is not None
        self._stopping, self._now = stopping, now
        self._due, self._next_due = math.inf, -math.inf

    @property
    def is_commit_due(self) -> bool:
        """Return whether what was gathered is to be committed now."""
        return self._now() >= self._due

    def has_gathered(self) -> None:
        """Note that there is something to commit."""
        self._due = self._next_due

    def has_committed(self) -> None:
        """Note that it was committed."""
        self._due, self._next_due = math.inf, self._now() + self._commit_seconds

    def await_look(self, source: TimeReplayableSource) -> None:
        """Wait until a source that had nothing to read is to be looked at again, or a commit is due. A look costs requests."""
        begun = self._now()
        source.await_news(min(self._idle_seconds, max(0.0, self._due - begun)), self._stopping)
        self._stopping.wait(max(0.0, begun + self._news_seconds - self._now()))

    def await_next(self, begun: float, is_behind: bool) -> None:
        """Wait until the next micro-batch may begin, after one that began at the time `begun`.

        Where the source has more than one micro-batch holds, the next one begins at once, unless there is a trigger.
        """
        if self._always or not is_behind:
            self._stopping.wait(max(0.0, begun + self._seconds - self._now()))
