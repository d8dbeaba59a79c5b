"""Take derived tasks from clock to clock: each step is a job of the engine, which one log entry commits."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

from persistent_state.batch.packets import Step
from persistent_state.drive import turn
from persistent_state.drive.turn import DueStep
from persistent_state.drive.worker import LogWorker
from persistent_state.metrics.of_run import Work
from persistent_state.protocol import commits, holding
from persistent_state.protocol.next_entry import newest_own
from persistent_state.run.commit import committing
from persistent_state.run.failures import as_exception
from persistent_state.run.progress import hand_on, progress_of
from persistent_state.run.reports import Listener
from persistent_state.run.setup import Setup
from persistent_state.run.wall_clock import now_us
from persistent_state.store.entry import Entry

POLL_SECONDS = 5.0
"""Time between two looks at the log while no commit of this process wakes the stepper."""

CANCEL_SECONDS = 0.1
"""Time between two tries to cancel the jobs of steps while a stop waits for them: a step may have been about to begin one."""

AT_ONCE = 4
"""The most steps that are under way at a time. A step of few changes is mostly waiting for the engine."""

KEEP_SECONDS = 300.0
"""Time between two calls that keep alive what the steps need."""


class Stepper:
    """A worker that takes the steps of a run's derived tasks as soon as they are due, several at a time.

    `failed` is the flow whose step failed and the error; None if none failed. The flow is None if it was a look at the log that
    failed. After a failure no further step is begun. `under_way` has, by flow, since when its step is under way.
    """

    def __init__(self, setup: Setup) -> None:
        self.failed: tuple[str | None, Exception] | None = None
        self._setup = setup
        # One step at a time is committed, as one entry at a time is the next.
        self._log, self._turn = setup.log, threading.Lock()
        self._flows = [feed.plan for feed in setup.feeds if feed.plan.first.upstream]
        self._jobs = setup.engine.jobs(setup)
        self._is_open = False
        self._listener = Listener(setup.writer, setup.on_progress)
        self._epoch = 0
        self._committed: set[str] = set()
        self.under_way: dict[str, float] = {}
        self._numbers = itertools.count(1)
        self._woken = self._settled = 0
        self._is_stopping = False
        self._active: Collection[str] = ()
        self._kept = 0.0
        self._worker = LogWorker("persistent-state steps", self._look, POLL_SECONDS)
        self._pool, self._begun = ThreadPoolExecutor(AT_ONCE), list[Future[None]]()

    def start(self, epoch: int, active: Collection[str]) -> None:
        """Take the steps of this driver's start from now on. Those that change `active` flows are left to these flows."""
        self.failed, self._epoch, self._is_stopping, self._active = None, epoch, False, active
        self._committed, self.under_way = set(), {}
        if self._flows:
            self._jobs.open()
            self._is_open, self._kept = True, time.monotonic()
            self._pool, self._begun = ThreadPoolExecutor(AT_ONCE, "persistent-state step"), []
            self._worker.start()
            self.wake()

    def leave_to_flows(self, active: Collection[str]) -> None:
        """Leave no steps but their own to these flows from now on. All other flows have come to their end."""
        if active != self._active:
            self._active = active
            self.wake()

    def wake(self) -> None:
        """Look at the log now: something was committed."""
        self._woken = next(self._numbers)
        self._worker.wake()

    @property
    def is_settled(self) -> bool:
        """Return whether the log was looked at since `wake` was last called, and no step was due or under way."""
        return not self._flows or self._settled == self._woken

    def has_committed(self, flow: str | None) -> bool:
        """Return whether a step of the flow was committed since this start; with None, of any flow."""
        return flow in self._committed if flow is not None else bool(self._committed)

    def stop(self) -> None:
        """Take no further step. One that is under way is cancelled, unless it is being committed already."""
        self._is_stopping = True
        while self._worker.is_alive:
            self._jobs.cancel()
            self._worker.stop(CANCEL_SECONDS)
        self._pool.shutdown(wait=False, cancel_futures=True)
        # Those that never ran are done too, but `wait` waits for them.
        while wait([step for step in self._begun if not step.done()], CANCEL_SECONDS).not_done:
            self._jobs.cancel()
        if self._is_open:
            self._jobs.close()
            self._is_open = False

    def _look(self) -> None:
        if self.failed is not None:
            return
        woken = self._woken
        try:
            if self._begin_due():
                self._settled = woken
        except BaseException as error:
            self._fail(None, as_exception(error))
        if time.monotonic() > self._kept + KEEP_SECONDS:
            self._kept = time.monotonic()
            # If it fails, the engine is lost, and the next step says so.
            with suppress(Exception):
                self._jobs.keep()

    def _begin_due(self) -> bool:
        """Begin the steps that are due. Return whether no step is due or under way."""
        # Before the look at the log: a step that ends in between is committed in the log, and not due there.
        under_way = {*self.under_way}
        with self._turn:
            entry = newest_own(self._log, self._epoch)
        active = self._active
        steps = turn.due_steps(entry, self._flows, under_way)
        # An active flow takes along the steps that change something. It need not be waited for with the others.
        unchanged = [due.step for due in steps if due.asks_nothing]
        changed = [due for due in steps if not due.asks_nothing and due.step.flow not in active]
        if unchanged:
            self._commit_unchanged(unchanged)
        self._begun = [step for step in self._begun if not step.done()]
        for due in changed:
            self.under_way[due.step.flow] = time.monotonic()
            self._begun.append(self._pool.submit(self._take, entry, due))
        return not unchanged and not changed and not under_way

    def _commit_unchanged(self, steps: Sequence[Step]) -> None:
        with self._turn:
            began = time.monotonic()
            entry, taken = commits.commit_unchanged(
                self._log, self._epoch, steps, now=now_us(), keeping=self._setup.keeping
            )
        seconds = time.monotonic() - began
        for step, _ in taken:
            self._listener.measure(Work(step.flow, True, 0, 0, seconds, seconds))
        self._committed.update(step.flow for step, _ in taken)
        self.wake()
        with committing():
            waits_for = holding.sentence(holding.holder(entry, self._setup.settings))
            for step, after in taken:
                for name in entry.tasks_of(step.flow):
                    hand_on(progress_of(entry, after, name, waits_for), self._listener)

    def _take(self, entry: Entry, due: DueStep) -> None:
        try:
            committer = self._setup.committer(due.flow, entry.epoch, self._listener, self._turn)
            self._jobs.take(entry, due, committer)
            self._committed.add(due.step.flow)
        except BaseException as error:
            self._fail(due.step.flow, as_exception(error))
        finally:
            self.under_way.pop(due.step.flow, None)
            self.wake()

    def _fail(self, flow: str | None, error: Exception) -> None:
        # A stop cancels steps, and what they raise then is no failure. The first of several failures is the cause.
        if self.failed is None and not self._is_stopping:
            self.failed = flow, error
