"""Start an application, and give the user a handle on the run."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType

from persistent_state.batch.plan import Plan
from persistent_state.errors import InvalidInputError, StateError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import full_clock
from persistent_state.protocol import deliver, evolution, refusals, restore
from persistent_state.protocol.fates import LEFT_OUT, REBUILT, Fates, Words, decide, is_made_of_state
from persistent_state.run import deliveries, start_checks
from persistent_state.run.commit import is_committing
from persistent_state.run.deliveries import Deliveries, Delivery
from persistent_state.run.feeds import equal_sources
from persistent_state.run.monitor import Monitor
from persistent_state.run.progress import Progress
from persistent_state.run.setup import Setup
from persistent_state.run.supervisor import Supervisor
from persistent_state.store.entry import Entry

POLL_SECONDS = 0.05
"""Time between two looks at whether a run has ended while a thread waits for that."""

_logger = logging.getLogger("persistent_state")
_outer: Asked | None = None


class Asked(threading.Event):
    """The event that a signal sets. `number` is the signal, and `handler` what it would have called without this event."""

    number: int | None = None
    handler: Callable[[int, FrameType | None], object] | int | None = None


class Running:
    """A started application. `Application.start` returns it.

    Wait for it with `await_termination`, and end it with `stop` or `drain`.

    After a failure all flows start again from the global clock. Four kinds of failure end the run instead: a newer driver
    owns the application, the set-up is wrong, user code raised, or the store is damaged.

    Attributes:
        was_asked_to_stop: Whether SIGINT or SIGTERM ended the run, or a query of it was stopped through Spark.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self.was_asked_to_stop = False
        self._supervisor = supervisor

    def __repr__(self) -> str:
        return f"Running(is_active={self.is_active}, clock={self.clock})"

    @property
    def is_active(self) -> bool:
        """Return whether the run has not ended."""
        return self._supervisor.is_alive

    @property
    def restarts(self) -> int:
        """The number of starts after failures in this run."""
        return self._supervisor.restarts

    @property
    def metrics_url(self) -> str | None:
        """The URL of the run's metrics until it ends, with `/health` and `/ready` beside it; None if it has none."""
        monitor = self._supervisor.monitor
        return None if monitor is None or monitor.url is None else f"{monitor.url}/metrics"

    @property
    def progress(self) -> Mapping[str, Progress]:
        """The newest progress of each task that has committed in this run, by the task's name."""
        return dict(self._supervisor.reports.newest)

    @property
    def clock(self) -> int | None:
        """The global clock (microseconds UTC) as this run knows it, or None while there is no checkpoint."""
        committed = (newest.global_clock for newest in self.progress.values())
        clock = max(self._supervisor.entry.clock, *committed, BEGINNING)
        return None if clock == BEGINNING else clock

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended. SIGINT and SIGTERM end it as `stop` does.

        Args:
            timeout: Seconds to wait at most; None waits without a limit.

        Returns:
            True if the run has ended, False if the time ran out.

        Raises:
            StateError: The run failed. The error is of the class that says what to do.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with asked_to_stop() as asked:
            while self.is_active:
                if asked.is_set():
                    self.was_asked_to_stop = True
                    self.stop()
                    break
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                asked.wait(POLL_SECONDS)
        self._supervisor.join()
        if self._supervisor.error is not None:
            # The traceback of the supervisor's thread does not help a user.
            raise self._supervisor.error.with_traceback(None)
        self.was_asked_to_stop = self.was_asked_to_stop or self._supervisor.was_flow_stopped
        return True

    def stop(self) -> None:
        """End the run, and wait for that.

        Everything that was committed stays. The next start replays what was not, and delivers the clocks that sinks still
        lack. If a sink or a function of progress calls `stop`, it returns at once and the run ends afterwards.
        """
        self._supervisor.stop()
        if not _is_called_back():
            self._supervisor.join()

    def drain(self) -> int | None:
        """Stop, then checkpoint all messages at one clock above the newest, and deliver all clocks to the sinks.

        Messages below that clock which arrive afterwards are late, also those of transactions that are open, which a warning
        names. Drain when the sources have been read to their end.

        Returns:
            The clock above the newest message (microseconds UTC), or None if there was no message.

        Raises:
            InvalidInputError: A sink or a function of progress called `drain`.
            StateError: The run failed before it had read all messages, or a sink did not take all clocks.
        """
        if _is_called_back():
            raise InvalidInputError(
                f"a sink or a function of progress called drain(), in thread {threading.current_thread().name!r}. Call stop() "
                "there, and drain() after the run has ended."
            )
        self.stop()
        if self._supervisor.error is not None:
            raise self._supervisor.error
        self._supervisor.drain()
        return self.clock


def run(setup: Setup, reset: Sequence[str], rebuild: Sequence[str]) -> Running:
    """Do as `start` does, and wait until the run has ended. A signal that comes between the two ends the run as well.

    A signal that has ended the run then does what it does without a run.

    Raises:
        InvalidInputError: The set-up can't work. Nothing was changed.
        StateError: The run failed, or a signal came before the takeover, or a flow was stopped, and not by the run.
        KeyboardInterrupt: SIGINT has ended the run, and the program has no handler of its own.
        SystemExit: SIGTERM has, with the exit status 143.
    """
    with asked_to_stop() as asked:
        running = start(setup, reset, rebuild)
        running.await_termination()
    if asked.number is not None:
        hand_on(asked)
    elif running.was_asked_to_stop:
        stopped = setup.engine.stopped(f"application={setup.application}")
        raise StateError(f"{stopped} before all was read; the next run goes on from there.")
    return running


def hand_on(asked: Asked) -> None:
    """Let a signal that has ended a run do what it does without a run.

    A program without a handler for SIGTERM would die of it at once. It gets SystemExit instead, and its `finally` blocks run.
    """
    assert asked.number is not None
    if callable(asked.handler):
        asked.handler(asked.number, sys._getframe())
    elif asked.number == signal.SIGTERM and asked.handler == signal.SIG_DFL:
        raise SystemExit(128 + asked.number)
    elif asked.handler == signal.SIG_DFL:
        raise KeyboardInterrupt


def start(setup: Setup, reset: Sequence[str], rebuild: Sequence[str]) -> Running:
    """Check the set-up, open the sinks, take the application over and start its flows.

    A SIGINT or SIGTERM before the takeover prevents it; one that comes later stops the run again.

    Raises:
        InvalidInputError: The set-up can't work. Nothing was changed.
        StateError: The store, a source or a sink failed, or a signal came before the takeover.
    """
    title, engine = f"application={setup.application}", setup.engine
    with asked_to_stop() as asked, engine.naming_a_loss(), engine.naming_errors(title), ExitStack() as undo:
        undo.callback(engine.close)
        engine.check(setup)
        monitor = Monitor(setup.log, setup.settings, setup.metrics)
        undo.callback(monitor.close)
        monitor.serve()
        newest = setup.log.newest()
        table = decide(newest, [feed.plan for feed in setup.feeds], Words(reset, rebuild))
        start_checks.check_start(setup, newest, table)
        all_deliveries = Deliveries(
            [
                Delivery(engine, part.plan, output, setup.log, setup.max_restarts, monitor.hear_delivery)
                for part in setup.parts
                for output in part.outputs.at_clock
            ]
        )
        all_deliveries.open()
        all_deliveries.check_empty(table.names(REBUILT))
        if asked.is_set():
            raise StateError(f"application={setup.application} was asked to stop before it began; nothing was changed.")
        entry = setup.take_over(reset=reset, rebuild=rebuild)
        _warn_of_absent_tasks(newest, table)
        _warn_of_dropped_fields(newest, entry)
        _warn_of_gaps(newest, entry)
        _warn_of_lost_late_messages(newest, [plan for feed in setup.feeds for plan in feed.plan.tasks])
        _tell_of_fed_tasks(newest, setup, table)
        for parts in equal_sources(setup.parts):
            _logger.warning(
                "tasks=%s have equal sources, each of which is read on its own; give the tasks one source object, and it is "
                "read once for all.",
                ", ".join(part.plan.name for part in parts),
            )
        running = Running(Supervisor(setup, entry, all_deliveries, asked, monitor))
        # From now on the run closes it.
        undo.pop_all()
    # From here on signals do again what they did before. One that came earlier has set the event.
    if asked.is_set():
        running.was_asked_to_stop = True
        running.stop()
    return running


@contextmanager
def asked_to_stop() -> Iterator[Asked]:
    """Let SIGINT and SIGTERM set an event in this block, instead of ending the process.

    A second signal does what it does outside the block. A block within another one has the event of that. A signal that the
    program ignores, as a shell lets its background jobs ignore SIGINT, stays ignored. Python handles signals in the main thread
    only; in another thread nothing sets the event.
    """
    global _outer
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    if _outer is not None:
        yield _outer
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            signal.signal(number, before[signal.Signals(number)])
            os.kill(os.getpid(), number)
        else:
            asked.number, asked.handler = number, before[signal.Signals(number)]
        asked.set()

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None is a handler that was not set from Python, and that Python could not set again.
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    _outer = asked
    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        _outer = None
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_called_back() -> bool:
    """Return whether a sink or a function of progress runs in this thread, which then can't wait for the run to end."""
    return is_committing() or deliveries.is_delivering()


def _tell_of_fed_tasks(before: Entry | None, setup: Setup, table: Fates) -> None:
    """Log which derived tasks are rebuilt and from what, and which of all begin without what their upstream tasks once gave."""
    if before is None or before.clock == BEGINNING:
        return
    flows = (feed.plan for feed in setup.feeds if feed.plan.is_derived and not feed.plan.is_in_order)
    for plan in (plan for flow in flows for plan in flow.tasks):
        is_rebuilt, is_new = table.of[plan.name].kind == REBUILT, plan.name not in before.tasks
        beginning = refusals.begins_with(plan, before.clock)
        if is_rebuilt and is_made_of_state(plan):
            _logger.info("task=%s is rebuilt from %s", plan.named, beginning)
        elif is_rebuilt:
            _logger.warning("task=%s loses what it had, and begins with %s", plan.named, beginning)
        elif is_new and not is_made_of_state(plan):
            _logger.info("task=%s begins with %s", plan.named, beginning)


def _warn_of_dropped_fields(before: Entry | None, entry: Entry) -> None:
    """Log a warning for each ordered task whose states have lost fields at this start."""
    for name, fields in (evolution.dropped_from_states(before, entry) if before is not None else {}).items():
        _logger.warning(
            "task=%s: its state has no field %s any more, and the states of all keys have lost what stood there. If a later "
            "start has the field again, it is null in the states of now.",
            name,
            ", ".join(map(repr, fields)),
        )


def _warn_of_absent_tasks(before: Entry | None, table: Fates) -> None:
    """Log a warning for each output that still lacks clocks and whose task is not part of this start."""
    if before is None:
        return
    for name in table.names(LEFT_OUT):
        if not before.tasks[name].active:
            continue
        for output, count in deliver.behind(before, name).items():
            if count:
                _logger.warning(
                    "task=%s is not part of this start. Its sink=%r still lacks %d clocks; clocks that are collected before "
                    "the task returns are lost to it.",
                    name,
                    output,
                    count,
                )


def _warn_of_lost_late_messages(before: Entry | None, plans: Sequence[Plan]) -> None:
    """Log a warning for each task that lacks late messages since a rewind or a branch, and does not count them again."""
    for plan in restore.without_late(before, plans) if before is not None else ():
        _logger.warning(
            "task=%s: a rewind or a branch took away late messages that at-least-once delivery had taken in, and under "
            "delivery=%r they do not come again. If you want them, go back once more, and first start with "
            "delivery='at-least-once' until all is read.",
            plan.named,
            plan.delivery,
        )


def _warn_of_gaps(before: Entry | None, entry: Entry) -> None:
    """Log a warning for each output that comes back and lacks what has gone while it was left out."""
    named = entry.part_of
    for task, output, clock in deliver.gone_meanwhile(before, entry) if before is not None else ():
        _logger.warning(
            "task=%s: sink=%r comes back, and is not given what closed, expired or was emitted up to clock=%s while it was "
            "left out: that is gone. To have it whole, rebuild the task with a new place for each output.",
            named.get(task, task),
            output,
            full_clock(clock),
        )
