"""Collecting an application's garbage while it runs, in a thread of its own, for which no commit waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from persistent_state.engine.arrow_source import now_us
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.commits import Keeping
from persistent_state.store.files import Files
from persistent_state.store.log import Log

EVERY_SECONDS = 10.0
"""Time between two collections."""

STOP_SECONDS = 60.0
"""For how long a stop waits for a collection that is under way."""

_logger = logging.getLogger("persistent_state")


class GarbageCollection:
    """The collections of a run. `start` comes first, then `stop`, and perhaps `collect` for a last one."""

    def __init__(self, files: Files, application: str, keeping: Keeping) -> None:
        self._collector = Collector(Log(files, application))
        self._keeping = keeping
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"persistent-state {application} collects", daemon=True)
        self._epoch: Callable[[], int] = lambda: 0

    def start(self, epoch: Callable[[], int]) -> None:
        """Collect now and then; `epoch` says which start of the application is this driver's now."""
        self._epoch = epoch
        self._thread.start()

    def stop(self) -> None:
        """Collect no more; what is under way is waited for, but not for ever."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def collect(self, epoch: int) -> None:
        """Collect once more, after a run that was perhaps too short to come to it."""
        self.stop()
        if not self._thread.is_alive():
            self._collect(epoch)

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_SECONDS):
            self._collect(self._epoch())

    def _collect(self, epoch: int) -> None:
        try:
            self._collector.collect(epoch, now=now_us(), keeping=self._keeping)
        except Exception as error:
            # Whatever it is: this thread goes on, or nothing is collected any more, and nobody is told.
            _logger.warning("nothing more is collected now: %s: %s", type(error).__name__, error)
