"""Tells people how the tasks of a run fare, on the logger `persistent_state`, and programs by their function."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from persistent_state.batch.plan import Plan
from persistent_state.engine.causes import naming
from persistent_state.engine.micro_batch import Progress
from persistent_state.engine.notices import EVERY, Notices
from persistent_state.errors import TaskFailedError
from persistent_state.store.entry import Entry

_logger = logging.getLogger("persistent_state")
_runs: dict[str, Telling] = {}


class Telling:
    """The teller of the run of this id: it hears of each commit. `newest` is the newest progress of each task."""

    def __init__(self, run: str, plans: Sequence[Plan], entry: Entry, is_to_the_end: bool) -> None:
        # A run that ends by itself tells all then.
        first = time.monotonic() + (EVERY if is_to_the_end else 0.0)
        self._run = run
        self._notices = {plan.name: Notices(plan, entry, first) for plan in plans}
        self.newest: dict[str, Progress] = {}
        _runs[run] = self

    def hear(self, progress: Progress) -> None:
        self.newest[progress.task] = progress
        notices = self._notices[progress.task]
        if warning := notices.note(progress.messages - progress.replayed, progress.reasons, time.monotonic()):
            _logger.warning("%s", warning)

    def end(self, entry: Entry | None, is_whole: bool) -> None:
        """Tell how each task ended, by the newest entry, if the store gives one."""
        if entry is None:
            return
        for notices in self._notices.values():
            level, line = notices.end(entry, is_whole)
            _logger.log(level, "%s", line)

    def close(self) -> None:
        """Hear no more."""
        _runs.pop(self._run, None)


@dataclass(frozen=True)
class Listener:
    """A function of progress that can be pickled: it tells the run of this id, if that is in this process, and the user."""

    run: str
    on_progress: Callable[[Progress], None] | None

    def __call__(self, progress: Progress) -> None:
        if (run := _runs.get(self.run)) is not None:
            run.hear(progress)
        if self.on_progress is not None:
            with naming("on_progress", TaskFailedError):
                self.on_progress(progress)
