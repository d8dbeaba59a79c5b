"""Let a run hear of the commits of its queries, which Spark calls."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Watcher(Protocol):
    """The listener to which a commit reports how a micro-batch of a flow fares."""

    def begin(self, flow: str) -> None:
        """Report that a micro-batch of a flow begins."""

    def fail(self, flow: str, error: Exception) -> None:
        """Report that the commit of a flow failed."""

    def finish(self, flow: str) -> None:
        """Report that a micro-batch of a flow was committed and handed to its outputs."""


class Watch:
    """The meeting point of the commits of one start and the supervisor that watches them.

    A commit that fails says so here, and waits until its query is about to end; if it raised, Spark would log pages of text.
    In another process, where there is no supervisor, a copy of a watch is None.
    """

    def __init__(self) -> None:
        self.failed: tuple[str, Exception] | None = None
        self.finished: set[str] = set()
        self.under_way: dict[str, float] = {}
        self.is_stopping = False
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def begin(self, flow: str) -> None:
        """Report that a micro-batch of a flow begins."""
        self.under_way[flow] = time.monotonic()

    def fail(self, flow: str, error: Exception) -> None:
        """Report that the commit of a flow failed, and wait until its query can begin no other micro-batch."""
        with self._lock:
            if self.failed is None and not self.is_stopping:
                self.failed = flow, error
        self._ended.wait()

    def finish(self, flow: str) -> None:
        """Report that a micro-batch of a flow was committed and handed to its outputs."""
        self.finished.add(flow)
        self.under_way.pop(flow, None)

    def stop(self) -> None:
        """Ignore commits that fail from now on: their queries are being stopped."""
        with self._lock:
            self.is_stopping = True

    def end(self) -> None:
        """Let the commits that failed return: Spark knows that their queries have ended."""
        self._ended.set()
