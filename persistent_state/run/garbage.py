"""Collect an application's garbage while it runs, in a thread of its own, so that no commit waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from persistent_state.drive.worker import LogWorker
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.global_clock import Keeping
from persistent_state.run.wall_clock import now_us
from persistent_state.store.log import Log

EVERY_SECONDS = 60.0
"""Time between two collections."""

STOP_SECONDS = 60.0
"""The time that the end of a run waits for a collection that is under way."""

_logger = logging.getLogger("persistent_state")


class GarbageCollection:
    """The garbage collection of a run. Call `start` first, then `stop`, and `collect` if one more is wanted."""

    def __init__(self, log: Log, keeping: Keeping) -> None:
        self._collector = Collector(log)
        self._keeping = keeping
        self._epoch: Callable[[], int] = lambda: 0
        self._worker = LogWorker(f"persistent-state {log.application} collects", self._collect, EVERY_SECONDS)

    def start(self, epoch: Callable[[], int]) -> None:
        """Collect every `EVERY_SECONDS`. `epoch` returns the epoch of this driver's newest start."""
        self._epoch = epoch
        self._worker.start()

    def stop(self, patience: float = STOP_SECONDS) -> bool:
        """Collect no more, wait `patience` seconds for a collection that is under way, and return whether it has ended."""
        return self._worker.stop(patience)

    def collect(self, epoch: int) -> None:
        """Stop, and collect once more: the run may have been too short for a collection."""
        if self.stop():
            self._epoch = lambda: epoch
            self._collect()

    def _collect(self) -> None:
        try:
            self._collector.collect(self._epoch(), now=now_us(), keeping=self._keeping)
        except Exception as error:
            # Any error: a thread that ended here would leave all later garbage, without a word.
            _logger.warning(
                "garbage collection failed, the next is in %g s: %s: %s",
                EVERY_SECONDS,
                type(error).__name__,
                error,
            )
