"""The commit of a flow's micro-batches and steps, and the report of each to the run. Every engine commits by it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Protocol

from persistent_state.batch.packets import Advance, Answers, Descriptor, new_notes
from persistent_state.batch.plan import FlowPlan
from persistent_state.event_time.clocks import Settings
from persistent_state.metrics.of_run import Work
from persistent_state.protocol import commits, holding
from persistent_state.protocol.gathered import GatheringLog
from persistent_state.protocol.global_clock import Keeping
from persistent_state.run.progress import Progress, hand_on, progress_of
from persistent_state.run.wall_clock import new_id, now_us
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log

_logger = logging.getLogger("persistent_state")
_here = threading.local()


def is_committing() -> bool:
    """Return whether this thread runs a commit, or a function that a commit calls."""
    return getattr(_here, "is_committing", False)


@contextmanager
def committing() -> Iterator[None]:
    """Let `is_committing` be true in this block."""
    _here.is_committing = True
    try:
        yield
    finally:
        _here.is_committing = False


class Hears(Protocol):
    """A listener of commits: it is called with the progress of each task."""

    def __call__(self, progress: Progress) -> None: ...

    def measure(self, work: Work) -> None:
        """Take in what a commit took."""


class Committer:
    """A committer of one flow's micro-batches and steps, of which each is reported to a listener.

    It can be pickled, and reaches the rest of the application only through the store. Others in this process that write to the
    same `log` take it in `turn`.
    """

    def __init__(
        self,
        flow: FlowPlan,
        epoch: int,
        keeping: Keeping,
        settings: Mapping[str, Settings],
        listener: Hears,
        log: Log | None = None,
        turn: AbstractContextManager[object] | None = None,
        to_the_end: bool = False,
    ) -> None:
        self.flow = flow
        self._epoch = epoch
        self._keeping = keeping
        # The settings of all tasks: the global clock may wait for any of them.
        self._settings = settings
        self._listener = listener
        self._log = log or Log(flow.first.files, flow.first.application)
        self._turn = turn or nullcontext()
        self._to_the_end = to_the_end
        self._noted: dict[tuple[str, str], list[str]] = {}

    def commit(self, answers: Answers) -> tuple[Advance, dict[str, list[Descriptor]]]:
        """Commit what the parts and shards of a micro-batch or step have answered, and report it.

        Returns:
            What the flow has come to, and by task what its shards have made.

        Raises:
            StateError: It was not committed, or the user's function of progress raised.
        """
        with self._turn:
            began = time.monotonic()
            entry, after = self._commit(answers)
        self._report(entry, after, answers, time.monotonic() - began)
        return after, _by_task(self.flow, answers)

    def _commit(self, answers: Answers, gathers: bool = False) -> tuple[Entry, Advance]:
        return commits.commit(
            self._log,
            self._epoch,
            self.flow.first.settings,
            answers,
            now=now_us(),
            new_id=new_id,
            keeping=self._keeping,
            to_the_end=self._to_the_end,
            gathers=gathers,
        )

    def _report(self, entry: Entry, after: Advance, answers: Answers, seconds: float) -> None:
        """Report what was committed within these seconds."""
        for note in new_notes(answers.reports, self._noted):
            _logger.warning("%s", note)
        self._listener.measure(_work(self.flow, answers, after, now_us(), seconds))
        holder = holding.holder(entry, self._settings)
        waits_for = holding.sentence(holding.among_pending(holder, self.flow.id, after.pending or ()))
        for name, made in _by_task(self.flow, answers).items():
            copies = sum(descriptor.copies for descriptor in made)
            # What is new in a shard is in its runs.
            made_updates = any(descriptor.runs for descriptor in made)
            hand_on(progress_of(entry, after, name, waits_for, copies, made_updates), self._listener)


class GatheringCommitter(Committer):
    """A committer that gathers micro-batches in a `GatheringLog`, and commits them together."""

    def __init__(
        self, flow: FlowPlan, epoch: int, keeping: Keeping, settings: Mapping[str, Settings], listener: Hears, log: Log
    ) -> None:
        self.log = GatheringLog(log, epoch)
        super().__init__(flow, epoch, keeping, settings, listener, self.log)
        self._gathered: list[tuple[Advance, Answers]] = []

    def gather(self, answers: Answers) -> tuple[Advance, dict[str, list[Descriptor]]]:
        """Take in a micro-batch, and return what `commit` returns. It is reported when it is in the log.

        Raises:
            StateError: It does not follow from those that were gathered before.
        """
        _, after = self._commit(answers, gathers=True)
        self._gathered.append((after, answers))
        return after, _by_task(self.flow, answers)

    def write(self) -> None:
        """Commit what was gathered, and report it as one micro-batch.

        Raises:
            StateError: It was not committed, or the user's function of progress raised.
        """
        gathered, self._gathered = self._gathered, []
        if not gathered:
            return
        began, counts = time.monotonic(), Counter[str]()
        entry = self.log.write()
        for after, _ in gathered:
            counts.update(after.counts)
        together = Answers(
            [report for _, answers in gathered for report in answers.reports],
            [descriptor for _, answers in gathered for descriptor in answers.descriptors],
        )
        self._report(entry, replace(gathered[-1][0], counts=counts), together, time.monotonic() - began)


def _by_task(flow: FlowPlan, answers: Answers) -> dict[str, list[Descriptor]]:
    by_task: dict[str, list[Descriptor]] = {plan.name: [] for plan in flow.tasks}
    for descriptor in answers.descriptors:
        by_task[descriptor.task].append(descriptor)
    return by_task


def _work(flow: FlowPlan, answers: Answers, after: Advance, now: int, commit_seconds: float) -> Work:
    """Return what a micro-batch or a step has taken that was committed now."""
    planned = min(report.now for report in answers.reports)
    return Work(
        flow=flow.id,
        is_step=all(report.reach is None for report in answers.reports),
        messages=after.counts.get("messages", 0),
        replayed=after.counts.get("replayed", 0),
        seconds=max(0, now - planned) / 1e6,
        commit_seconds=commit_seconds,
        inputs=tuple(flow.first.source_inputs),
        lag=after.lag,
    )
