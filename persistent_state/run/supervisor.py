"""Watch the flows and steps of an application, and start them again after a failure."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from persistent_state.drive.backoff import PATIENCE, Backoff, Patience
from persistent_state.errors import FencedError, StateError, naming_cells
from persistent_state.protocol import commits
from persistent_state.protocol.next_entry import newest_own
from persistent_state.run import lines
from persistent_state.run.deliveries import STOP_SECONDS, Deliveries
from persistent_state.run.failures import NOT_RETRIED, TooSlowError
from persistent_state.run.feeds import pending
from persistent_state.run.garbage import GarbageCollection
from persistent_state.run.lines import Lines
from persistent_state.run.monitor import Monitor
from persistent_state.run.passed import PassedPositions
from persistent_state.run.progress import Progress
from persistent_state.run.reports import Reports
from persistent_state.run.setup import Setup
from persistent_state.run.steps import Stepper
from persistent_state.run.wall_clock import now_us
from persistent_state.store.entry import Entry
from persistent_state.store.log import RECENT, fenced

POLL_SECONDS = 0.05
"""Time between two looks at the flows."""

LOOK_SECONDS = 5.0
"""Time between two looks at the log for another driver that owns the application."""

_logger = logging.getLogger("persistent_state")


class Supervisor:
    """A thread that keeps the flows of an application running until they come to their end or `stop` is called.

    After a failure of a flow or a step the supervisor stops all of them, waits, takes the application over again and starts
    them from the global clock. An error of `NOT_RETRIED` ends the run, and so do more than `max_restarts` failures in a row.

    A machine that is too slow to start a flow is no such failure: only that flow starts again, as long as it has committed
    nothing since the start. The run ends when the machine was too slow for `PATIENCE` seconds without a success.

    Before the thread begins, `asked_before` asks for a stop. `entry` is the entry of the newest start, or that of the drain.
    `restarts` counts the starts after failures, `reports` knows the progress, and `error` is what ended the run if it failed.
    `failure` is the newest failure while the run waits to start again; None while the flows run. `was_flow_stopped` says
    that the run ended because a flow was stopped, and not by this run. The `monitor` is closed when the run ends.
    """

    def __init__(
        self,
        setup: Setup,
        entry: Entry,
        deliveries: Deliveries,
        asked_before: threading.Event,
        monitor: Monitor | None = None,
    ) -> None:
        self.entry = entry
        self.restarts = 0
        self.error: StateError | None = None
        self.failure: StateError | None = None
        self.was_flow_stopped = False
        self.monitor = monitor
        on_work = None if monitor is None else monitor.hear
        self.reports = Reports(setup.writer, setup.plans, entry, setup.to_the_end, self._hear, on_work)
        self._steps = Stepper(setup)
        self._patience = Patience()
        self._engine = setup.engine
        self._engine.open(setup)
        self.flows = self._engine.flows(setup, self._wake, self._patience)
        self._setup = setup
        self._log = setup.log
        self._deliveries = deliveries
        self._passed = PassedPositions(setup)
        self._garbage = GarbageCollection(setup.log, setup.keeping)
        self._had_committed = False
        self._lines: Lines | None = None
        self._backoff, self._clock_before = Backoff(), entry.clock
        self._asked = threading.Event()
        self._asked_at: float | None = None
        self._first_failure: StateError | None = None
        try:
            # The caller waits for a run that ends by itself.
            self._lines = lines.begin(setup.application, setup.plans, setup.show_progress, is_awaited=setup.to_the_end)
            self.entry = self._together(entry, asked_before)
            self.flows.start(self.entry)
            self._steps.start(self.entry.epoch, self.flows.active_flows)
        except BaseException as error:
            if not isinstance(error, Exception) or self._engine.is_lost(error) or not self._engine.may_pass(error):
                self._end()
                raise
            self._first_failure = self._engine.own_error(error, f"application={setup.application}")
        if monitor is not None:
            monitor.watch(self)
        self._deliveries.start(lambda: self.entry.epoch)
        self._passed.start(lambda: self.entry.epoch)
        self._garbage.start(lambda: self.entry.epoch)
        self._thread = threading.Thread(target=self._run, name=f"persistent-state {setup.application}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether the run has not ended."""
        return self._thread.is_alive()

    @property
    def under_way(self) -> Mapping[str, float]:
        """By the name of a micro-batch or a step that is under way: since when."""
        batches, steps = self.flows.under_way, {**self._steps.under_way}
        return {
            **{f"the micro-batch of {self._title(flow)}": since for flow, since in batches.items()},
            **{f"the step of {self._title(flow)}": since for flow, since in steps.items()},
        }

    @property
    def idle(self) -> Mapping[str, bool]:
        """By flow: whether it waits for messages, or for its trigger."""
        return self.flows.idle

    @property
    def unheard(self) -> list[str]:
        """The flows that have neither committed since the start nor found that there is nothing to read."""
        return [self._title(flow) for flow in self.flows.unheard]

    def _title(self, flow: str) -> str:
        return self._setup.title_of(self.entry, flow)

    def stop(self) -> None:
        """Ask the run to end. `join` waits for that."""
        self._asked_at = self._asked_at or time.monotonic()
        self._asked.set()

    def join(self) -> None:
        """Wait until the run has ended."""
        self._thread.join()

    def drain(self) -> None:
        """Commit a clock above all messages that were read, after the run has ended, and deliver all clocks.

        What fails is tried again, as often as a failed run is.

        Raises:
            StateError: The store did not take the entry, a step failed, or a sink did not take its clocks.
        """
        self._engine.open(self._setup)
        try:
            self.reports.warn_of_drain(self.entry.epoch, self._pending())
            self._backoff = Backoff()
            while (failure := self._step_to_the_end()) is not None:
                seconds = self._seconds_after(failure)
                _logger.warning(
                    "application %s goes on to drain in %g s: %s", self._setup.application, seconds, failure
                )
                time.sleep(seconds)
            self._deliveries.drain(threading.Event())
            self._passed.tell()
        finally:
            self._engine.close()

    def _pending(self) -> dict[str, Mapping[str, float]]:
        """Return by task what its source holds back now. A task whose source does not answer is left out."""
        found: dict[str, Mapping[str, float]] = {}
        for feed in self._setup.feeds:
            with suppress(StateError):
                held_back = pending(feed, self.entry, self._setup.files)
                found |= {plan.name: held_back for plan in feed.plan.tasks}
        return found

    def _step_to_the_end(self) -> StateError | None:
        """Commit a clock above all messages and take all steps to it. Return what prevented it, or None.

        This is no new start, which would go back to the global clock and so need the flows again.
        """
        try:
            self._close()
            self._steps.start(self.entry.epoch, ())
            try:
                while self._steps.failed is None and not self._steps.is_settled:
                    time.sleep(POLL_SECONDS)
            finally:
                self._steps.stop()
            if self._steps.failed is not None:
                return self._cause(*self._steps.failed)
            self.entry = newest_own(self._log, self.entry.epoch)
        except StateError as error:
            return error
        return None

    def _hear(self, progress: Progress) -> None:
        if self._lines is not None:
            self._lines.hear(progress)
        self._steps.wake()
        self._deliveries.hear(progress)
        self._passed.wake()

    def _wake(self) -> None:
        """Let all look at the log that wait for a commit: another process has made one."""
        self._steps.wake()
        self._deliveries.wake()
        self._passed.wake()

    def _stop_working(self) -> None:
        self.flows.stop()
        self._steps.stop()

    def _close(self) -> None:
        self.entry = commits.close(self._log, self.entry.epoch, now=now_us(), keeping=self._setup.keeping)

    def _run(self) -> None:
        name = self._setup.application
        try:
            with self._engine.naming_a_loss():
                self._keep_running()
                if self._asked.is_set():
                    self._tell_to_stop()
                self._stop_working()
                if not self._asked.is_set():
                    self._deliveries.drain(self._asked)
            if self._asked.is_set():
                self._tell_to_stop()
            else:
                self._garbage.collect(self.entry.epoch)
            self._show_summary()
            self.reports.end(self._newest(), is_whole=self._setup.to_the_end and not self._asked.is_set())
        except StateError as error:
            self.error = error
            if isinstance(error, NOT_RETRIED):
                _logger.error("application %s has ended: %s", name, error)
        except BaseException as error:
            self.error = StateError(f"application {name} stopped at {error!r}. Fix the cause, then start it again.")
            self.error.__cause__ = error
        finally:
            self._end()

    def _tell_to_stop(self) -> None:
        """Let sinks be given no further clock, and nothing more be collected. `_end` waits for what is under way."""
        self._deliveries.stop(0.0)
        self._garbage.stop(0.0)

    def _keep_running(self) -> None:
        """Return when flows and steps come to their end or a stop is asked for, and raise what ends the run."""
        failure = self._first_failure or self._await_failure()
        while failure is not None:
            seconds = self._seconds_after(failure)
            self.failure = failure
            if self.monitor is not None:
                self.monitor.fail()
            _logger.warning("application %s starts again in %g s: %s", self._setup.application, seconds, failure)
            if self._asked.wait(seconds):
                return
            failure = self._start_again()
            if failure is None:
                self.failure = None
                failure = self._await_failure()

    def _seconds_after(self, failure: StateError) -> float:
        """Return the seconds to wait after a failure. If nothing is to be tried again after it, raise it."""
        if isinstance(failure, NOT_RETRIED):
            raise failure
        if isinstance(failure, TooSlowError):
            if (wait := self._patience.fail()) is None:
                raise failure
            return wait
        # Only a new global clock since the last failure is a success. A start alone is not, as the store may fail again.
        before, self._clock_before = self._clock_before, self._global_clock(self._clock_before)
        if self._clock_before > before and self._had_committed:
            self._backoff.succeed()
        seconds = self._backoff.fail()
        if self._backoff.failures > self._setup.max_restarts:
            raise failure
        return seconds

    def _await_failure(self) -> StateError | None:
        """Wait for a failure and return it, or None if all flows and steps came to their end or a stop was asked for.

        A run that drains is closed when its flows have come to their end, unless messages are in a transaction that is open:
        they would be late. Derived tasks then step to the last clock.
        """
        looked, has_ended = time.monotonic(), False
        while not self._asked.is_set():
            active = self.flows.active_flows
            if time.monotonic() > looked + LOOK_SECONDS:
                looked = time.monotonic()
                if fenced := self._fenced(RECENT):
                    return fenced
            if (failed := self.flows.failed_commit) is not None:
                flow, error = failed
                if not isinstance(error, StateError) and flow not in self.flows.active_flows:
                    # The flow was stopped, which interrupted the commit, and not by this run: the whole run is to end.
                    self._end_with_stopped_flow()
                    break
                return self._cause(flow, error)
            if (failed := self.flows.failed_flow) is not None and self._starts_alone(*failed):
                continue
            if (ended := failed or self._steps.failed) is not None:
                return self._cause(*ended)
            if (failure := self._tried(self.flows.start_more)) is not None:
                return failure
            if self.flows.is_one_stopped:
                # To close the run would pass messages that were not read.
                self._end_with_stopped_flow()
                break
            self._steps.leave_to_flows(active)
            if not active and not has_ended:
                try:
                    if self._setup.drains and not self.reports.pending(self.entry.epoch):
                        self._close()
                except StateError as error:
                    return error
                # The commits of another process wake no thread here.
                self._steps.wake()
                self._deliveries.wake()
                has_ended = True
            elif not active and self._steps.is_settled:
                break
            self._asked.wait(POLL_SECONDS)
        return None

    def _end_with_stopped_flow(self) -> None:
        _logger.warning("application %s ends, as %s.", self._setup.application, self._engine.stopped("it"))
        self.was_flow_stopped = True
        self._asked.set()

    def _starts_alone(self, flow: str, error: Exception) -> bool:
        """Let a flow start again by itself if the machine was too slow for it, and return whether that is enough.

        It is enough if the log has nothing of the flow since this start: then it starts where it was to start before.
        """
        slow = self._engine.own_error(error, self._title(flow))
        if not isinstance(slow, TooSlowError):
            return False
        try:
            known = newest_own(self._log, self.entry.epoch).flows[flow]
        except StateError:
            return False
        if known.progress.batch or any(source.planned for source in known.inputs.values()):
            return False
        seconds = self.flows.start_again(flow)
        if seconds is None:
            return False
        _logger.warning(
            "%s. It starts again in %g s, and other flows go on; the run ends if none starts within %g minutes.",
            str(slow).rstrip("."),
            seconds,
            PATIENCE / 60,
        )
        return True

    def _tried(self, work: Callable[[], None]) -> StateError | None:
        """Do some work of a start, and return what prevented it, or None. The loss of the engine is raised."""
        try:
            work()
        except StateError as error:
            return error
        except Exception as error:
            if self._engine.is_lost(error):
                raise
            return self._engine.own_error(error, f"application={self._setup.application}")
        return None

    def _start_again(self) -> StateError | None:
        """Start all flows again from the global clock, and return what prevented it, or None."""
        self._stop_working()
        self.restarts += 1
        if self.monitor is not None:
            self.monitor.restart()

        def start() -> None:
            self.entry = self._together(self._setup.take_over(after=self.entry.epoch), self._asked)
            self.flows = self._engine.flows(self._setup, self._wake, self._patience)
            self.flows.start(self.entry)
            self._steps.start(self.entry.epoch, self.flows.active_flows)
            # What they looked at may have been fenced by this start, and no commit need come that wakes them.
            self._deliveries.wake()

        return self._tried(start)

    def _together(self, entry: Entry, asked: threading.Event) -> Entry:
        """Return the entry of a start in which flows that need only read on to be where others of their source are, are there.

        Each has one micro-batch for that, unless a stop is `asked` for. Then the application is taken over once more.
        """
        self.entry, meeting = entry, self._engine.flows(self._setup, lambda: None, self._patience)
        try:
            if not meeting.start_to_meet(entry):
                return entry
            while meeting.are_waited_for and meeting.failed_commit is None and not asked.is_set():
                meeting.start_more()
                asked.wait(POLL_SECONDS)
            if (failed := meeting.failed_commit or meeting.failed_flow) is not None:
                flow, error = failed
                own = self._own(error, "its flow")
                if isinstance(own, TooSlowError):
                    self._patience.fail()
                _logger.warning(
                    "task=%s did not come to where others of its source are, and goes on alone: %s", flow, own
                )
        finally:
            meeting.stop()
        return self._setup.take_over(after=entry.epoch)

    def _global_clock(self, clock: int) -> int:
        """Return the global clock, or `clock` if the store does not answer."""
        newest = self._newest()
        return clock if newest is None else newest.clock

    def _newest(self, within: float = 0.0) -> Entry | None:
        """Return the newest entry, or None if the store does not answer."""
        with suppress(StateError):
            return self._log.newest(within)
        return None

    def _cause(self, flow: str | None, error: Exception) -> StateError:
        """Return why a flow failed: FencedError if a newer driver owns the application, because it may be in the way.

        The flow is None if what failed is of no flow.
        """
        has_committed = flow is not None and self.flows.has_committed(flow)
        self._had_committed = has_committed or self._steps.has_committed(flow)
        title = f"application={self._setup.application}" if flow is None else self._title(flow)
        own = self._own(error, title)
        # Workers and other processes name a cell of this notebook by a file that no one knows.
        own.args = tuple(naming_cells(text) for text in own.args)
        if type(own) is StateError and own is not error:
            # If the error has a class of its own, the engine's error would only add the way that it took through the engine.
            own.__cause__ = error
        return own if isinstance(own, FencedError) else self._fenced() or own

    def _own(self, error: Exception, of: str) -> StateError:
        return error if isinstance(error, StateError) else self._engine.own_error(error, of)

    def _fenced(self, within: float = 0.0) -> FencedError | None:
        """Return a FencedError if a newer driver owns the application, by a look of the last `within` seconds."""
        newest = self._newest(within)
        if newest is None or newest.epoch == self.entry.epoch:
            return None
        return fenced(self._log.application, self.entry.epoch)

    def _show_summary(self) -> None:
        if self._lines is not None:
            self._lines.close(self._newest())

    def _end(self) -> None:
        # A fenced driver does not wait for its sinks: the newer driver delivers to them now. If the engine is out of reach,
        # nothing more comes.
        is_away = self.error is not None and self._engine.is_out_of_reach(self.error.__cause__ or self.error)
        patience = 0.0 if is_away or isinstance(self.error, FencedError) else STOP_SECONDS
        # What is waited for ends in time all together, as the one who asked for the stop may kill a process that takes longer.
        # A micro-batch may have taken a part of the time.
        until = (self._asked_at or time.monotonic()) + STOP_SECONDS

        def left(most: float) -> float:
            return max(0.0, min(most, until - time.monotonic()))

        ends: list[Callable[[], object]] = [
            self._show_summary,
            self._stop_working,
            lambda: self._deliveries.stop(left(patience)),
            self._passed.stop,
            lambda: self._garbage.stop(left(STOP_SECONDS)),
            self.reports.close,
            self._engine.close,
        ]
        for end in ends if self.monitor is None else [*ends, self.monitor.close]:
            # If one of these fails, as without a JVM, do the others all the same.
            with suppress(Exception):
                end()
