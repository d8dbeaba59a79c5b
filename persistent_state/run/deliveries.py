"""Deliver values at clocks: a thread for each output gives its sink one clock after another, at the sink's own pace."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from functools import partial

from persistent_state.batch.plan import AT_LEAST_ONCE, AT_MOST_ONCE, Plan
from persistent_state.drive.backoff import Backoff
from persistent_state.drive.output_sink import OutputSink
from persistent_state.errors import FencedError, InvalidInputError, StateError, StoreUnavailableError, raised
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.outputs import ValuesAtClock
from persistent_state.protocol.deliver import Due
from persistent_state.run.failures import NOT_RETRIED, of_engine
from persistent_state.run.progress import Progress
from persistent_state.run.setup import Engine
from persistent_state.run.wall_clock import now_us
from persistent_state.store.entry import Entry
from persistent_state.store.log import RECENT, Log

POLL_SECONDS = 5.0
"""Time between two looks at the log while no commit of this process wakes the delivery."""

OPEN_SECONDS = 10.0
"""The time that a start waits for all its sinks to open. A sink that takes longer is opened while the application runs."""

STOP_SECONDS = 45.0
"""The time in which sinks complete what they write, from the request to stop on. It is 15 s less than that of the command."""

END_SECONDS = 60.0
"""The time that a drain waits for a sink that does not open."""

_logger = logging.getLogger("persistent_state")
_here = threading.local()


def is_delivering() -> bool:
    """Return whether this thread is the thread of a delivery."""
    return getattr(_here, "is_delivering", False)


class State(Enum):
    """The order that the thread of a delivery follows."""

    RUNNING = "deliver every clock, and wait for more"
    DRAINING = "deliver every clock that is committed by now, then end"
    STOPPING = "end as soon as the sink has returned"
    STOPPED = "there is no thread"


class Delivery:
    """One output of a task on its way to its sink. Call `open` first, then `start`, `stop`, and `drain` if wanted.

    A running delivery tries a sink that fails again without end. A draining one gives up after `tries` more failures in a row,
    and `error` is then what the sink failed with. `on_given` is called for each clock that the sink has: with the task, the
    output and the seconds that it took. The thread is not a `LogWorker`, because its waits grow with the failures of
    the sink, and because it ends by itself when a drain has delivered everything.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        output: ValuesAtClock,
        log: Log,
        tries: int,
        on_given: Callable[[str, str, float], None] = lambda task, output, seconds: None,
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._place = OutputSink(plan, output)
        self._tries = tries
        self._on_given = on_given
        self._giver = self._place.giver(log, self._write, now_us)
        engine.check_output(plan, output)
        self._thread = threading.Thread()
        self._epoch: Callable[[], int] = lambda: 0
        self.error: StateError | None = None
        # The fields below are read and changed under this condition. It is notified of each change.
        self._changed = threading.Condition()
        self._state = State.STOPPED
        self._news = 0
        self._is_opening = False
        self._refusal: BaseException | None = None

    @property
    def task(self) -> str:
        """The task of the output."""
        return self._plan.name

    @property
    def waits_for_all(self) -> bool:
        """Return whether the sink gets a clock only when the global clock has come to it."""
        return self._plan.delivery != AT_LEAST_ONCE

    @property
    def is_alive(self) -> bool:
        """Return whether the delivery has a thread."""
        return self._thread.is_alive()

    def open(self) -> None:
        """Begin to open the sink in a thread of its own, so that nothing else waits for a sink that does not answer."""
        self._is_opening = True
        threading.Thread(target=self._open, name=f"{self._title} opens", daemon=True).start()

    def await_open(self, timeout: float) -> None:
        """Wait so many seconds for the sink to open. A sink that does not open by then is opened while the delivery runs.

        Raises:
            StateError: The sink can't take the values of this task, or its `open` raised an error that is not an OSError.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._is_opening, timeout)
            if self._is_opening:
                _logger.warning(
                    "%s: the sink did not open within %g s. The application starts without it; it gets its clocks later.",
                    self._of,
                    OPEN_SECONDS,
                )
                return
        error = self._take_refusal()
        if isinstance(error, (StoreUnavailableError, OSError)):
            _logger.warning("%s The sink is opened again later.", self._as_own(error))
        elif error is not None:
            raise self._as_own(error) from error

    def check_empty(self, tasks: Collection[str]) -> None:
        """Refuse to rebuild the task of this output, if it is one of `tasks`, while the sink holds rows.

        Raises:
            InvalidInputError: The sink holds rows, or did not open.
        """
        if self._plan.name in tasks and (why := self._giver.not_empty):
            raise InvalidInputError(f"{self._of}: the task is rebuilt, and the sink {why}")

    def start(self, epoch: Callable[[], int]) -> None:
        """Deliver from now on. `epoch` returns the epoch of this driver's newest start."""
        self._epoch = epoch
        self._enter(State.RUNNING)

    def drain(self) -> None:
        """Deliver all clocks that are committed by now, and then end. `is_alive` says when."""
        self._enter(State.DRAINING)

    def stop(self) -> None:
        """Deliver no further clock. A clock that the sink is being given now is completed."""
        with self._changed:
            if self._state is not State.STOPPED:
                self._state = State.STOPPING
                self._changed.notify_all()

    def wake(self) -> None:
        """Look at the log now: something was committed."""
        with self._changed:
            self._news += 1
            self._changed.notify_all()

    def join(self, timeout: float) -> None:
        """Wait so many seconds for the thread to end, but not in the thread itself."""
        if self.is_alive and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _enter(self, state: State) -> None:
        with self._changed:
            if self._state is State.STOPPED:
                self._thread = threading.Thread(target=self._run, name=self._title, daemon=True)
                self._thread.start()
            self._state = state
            self._news += 1
            self._changed.notify_all()

    def _run(self) -> None:
        _here.is_delivering = True
        backoff, drain_began = Backoff(), None
        while True:
            with self._changed:
                state, news, is_opening = self._state, self._news, self._is_opening
                if state is State.STOPPING:
                    self._state = State.STOPPED
                    return
            is_draining = state is State.DRAINING
            if is_draining and drain_began is None:
                backoff, drain_began = Backoff(), time.monotonic()
            if is_opening:
                # Give no clock now, because the Giver would open the sink a second time. A stop does not wait for the first
                # opening, and a drain waits `END_SECONDS`.
                seconds = None if drain_began is None else drain_began + END_SECONDS - time.monotonic()
                if not self._wait(state, seconds, lambda: not self._is_opening):
                    text = f"the sink did not open within {END_SECONDS:g} s. Make it answer, then run again."
                    self._give_up(StoreUnavailableError(text))
                    return
                continue
            try:
                is_done = not self._give_next(is_draining)
                backoff.succeed()
            except BaseException as error:
                # Panics of libraries that are written in Rust are not Exceptions.
                seconds = backoff.fail()
                if is_draining and (backoff.failures > self._tries or isinstance(error, NOT_RETRIED)):
                    self._give_up(error)
                    return
                lost = ", except for a clock that is recorded as given" if self._plan.delivery == AT_MOST_ONCE else ""
                _logger.warning("%s The delivery is tried again in %g s%s.", self._as_own(error), seconds, lost)
                self._wait(state, seconds)
                continue
            if is_done and is_draining:
                with self._changed:
                    # A commit or another drain may have come after the look at the log.
                    if self._news == news:
                        self._state = State.STOPPED
                        return
            elif is_done:
                self._wait(state, POLL_SECONDS, partial(self._has_news_since, news))

    def _wait(self, state: State, seconds: float | None, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Wait so many seconds, or until `is_over` or the state is another one; return False if the time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state is not state or is_over(), seconds)

    def _has_news_since(self, news: int) -> bool:
        return self._news != news

    def _give_up(self, error: BaseException) -> None:
        # Not under the condition: the text of an error of Spark's comes from the JVM, which may hang.
        own = self._as_own(error)
        with self._changed:
            self.error, self._state = own, State.STOPPED

    def _give_next(self, is_draining: bool) -> bool:
        """Give the sink the next clock, and return whether there was one."""
        if (error := self._take_refusal()) is not None:
            raise error
        began = time.monotonic()
        try:
            # A drain ends by what it finds.
            is_given = self._giver.give_next(self._epoch(), 0.0 if is_draining else RECENT)
        except FencedError:
            # This driver itself may have fenced the epoch, by a restart: then the same clock is due in the new epoch. If
            # another driver did, the supervisor finds out and stops this delivery.
            if is_draining:
                raise
            return False
        if is_given:
            self._on_given(self._plan.name, self._giver.output, time.monotonic() - began)
        return is_given

    def _open(self) -> None:
        _here.is_delivering = True
        refusal: BaseException | None = None
        try:
            self._giver.open()
        except BaseException as error:
            # Panics of libraries that are written in Rust are not Exceptions.
            refusal = error
        with self._changed:
            self._refusal, self._is_opening = refusal, False
            self._changed.notify_all()

    def _take_refusal(self) -> BaseException | None:
        """Return the error of `open`, if there was one, and forget it."""
        with self._changed:
            error, self._refusal = self._refusal, None
        return error

    def _write(self, entry: Entry, due: Due) -> None:
        self._place.sink.write_values(self._engine.values(self._place.state(entry, due), self._plan), due.clock)

    @property
    def _title(self) -> str:
        return f"persistent-state {self._plan.application} {self._plan.name} {self._giver.output}"

    @property
    def _of(self) -> str:
        return f"task={self._plan.named}, sink={self._giver.output!r}"

    def _as_own(self, error: BaseException) -> StateError:
        """Return the error as one of this package that names the task and the sink."""
        if isinstance(error, StateError):
            cause = error
        elif (known := of_engine(error, "its values")) is not None:
            cause = known
        else:
            cause = StateError(f"it raised {raised(error)}; nothing is lost. Fix the sink.")
        own = type(cause)(f"{self._of}: {cause}")
        own.__cause__ = error
        return own


class Deliveries:
    """All deliveries of an application."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._all = deliveries
        self._clock = BEGINNING
        self._clocks: dict[str, int] = {}

    def open(self) -> None:
        """Open all sinks at the same time, and wait for them for `OPEN_SECONDS` at most.

        Raises:
            StateError: A sink can't take the values of its task, or its `open` raised an error that is not an OSError.
        """
        for each in self._all:
            each.open()
        until = time.monotonic() + OPEN_SECONDS
        for each in self._all:
            each.await_open(max(0.0, until - time.monotonic()))

    def check_empty(self, tasks: Collection[str]) -> None:
        """Refuse to rebuild `tasks` while a sink of theirs holds rows from before.

        Raises:
            InvalidInputError: A sink holds rows, or did not open.
        """
        for each in self._all:
            each.check_empty(tasks)

    def start(self, epoch: Callable[[], int]) -> None:
        """Start all deliveries. `epoch` returns the epoch of this driver's newest start."""
        for each in self._all:
            each.start(epoch)

    def wake(self) -> None:
        """Let all deliveries look at the log now: something was committed."""
        for each in self._all:
            each.wake()

    def hear(self, progress: Progress) -> None:
        """Let the deliveries for which a commit may have made a clock due look at the log.

        These are all, if the global clock has moved. If not, they are those of the commit's task, and only where its sinks do
        not wait for the global clock, or where the task was behind it: it passes clocks then that its sinks lack.
        """
        has_moved, self._clock = progress.global_clock > self._clock, max(self._clock, progress.global_clock)
        before, self._clocks[progress.task] = self._clocks.get(progress.task, BEGINNING), progress.clock
        for each in self._all:
            is_ahead = each.task == progress.task and (not each.waits_for_all or before < progress.global_clock)
            if has_moved or is_ahead:
                each.wake()

    def stop(self, patience: float) -> None:
        """Stop all deliveries, and wait so many seconds for what their sinks are in the middle of."""
        for each in self._all:
            each.stop()
        deadline = time.monotonic() + patience
        for each in self._all:
            each.join(max(0.0, deadline - time.monotonic()))

    def drain(self, asked_to_stop: threading.Event) -> None:
        """Deliver all clocks that are committed, and wait for that unless a stop is asked for.

        Raises:
            StateError: A sink did not take a clock.
        """
        for each in self._all:
            each.drain()
        while any(each.is_alive for each in self._all) and not asked_to_stop.wait(0.05):
            pass
        for each in self._all:
            if each.error is not None:
                raise each.error
