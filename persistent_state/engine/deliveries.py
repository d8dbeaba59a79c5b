"""Delivery of values at clocks: for each output a thread gives its sink one clock after the other, at its own pace."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from persistent_state.batch.plan import AT_MOST_ONCE, Plan
from persistent_state.engine import frames
from persistent_state.engine.arrow_source import now_us
from persistent_state.engine.failures import as_own_error
from persistent_state.errors import (
    DamagedError,
    FencedError,
    InvalidInputError,
    StateError,
    StoreUnavailableError,
    TaskFailedError,
    raised,
)
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.outputs import ValuesAtClock
from persistent_state.partials.at_clock import Since
from persistent_state.protocol.deliver import Due, Giver
from persistent_state.sinks.base import RecordingSink
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.state_at import state_at

POLL_SECONDS = 5.0
"""How often the log is looked at where no commit of this process says that there is news."""

OPENING_POLL_SECONDS = 0.2
"""How often a delivery whose sink is being opened looks whether it is to stop."""

LONGEST_WAIT = 60.0
"""Seconds between two tries of a sink, at the most; the first is one second, and each is twice the one before."""

OPEN_SECONDS = 10.0
"""For how long a start waits for its sinks to open, all at once. One that takes longer is opened beside the state."""

STOP_SECONDS = 60.0
"""For how long a stop waits for what sinks are in the middle of."""

END_SECONDS = 60.0
"""For how long the end of a run waits for a sink that does not open."""

_FINAL = (FencedError, InvalidInputError, TaskFailedError, DamagedError)
"""What another try would meet again: to the end it is not waited for."""

_logger = logging.getLogger("persistent_state")
_here = threading.local()
_news = threading.Condition()
_told = 0


def tell() -> None:
    """Let the deliveries of this process know that something was committed."""
    global _told
    with _news:
        _told += 1
        _news.notify_all()


def is_delivering() -> bool:
    """Whether this thread is that of a delivery."""
    return getattr(_here, "is_delivering", False)


class Delivery:
    """One output of a task on its way to its sink. `open` comes first, then `start`, `stop`, and perhaps `end`.

    `error` is what kept it from its end: to it, a sink that fails is asked again so many times (`tries`), before that for ever.
    """

    def __init__(self, spark: SparkSession, plan: Plan, output: ValuesAtClock, tries: int) -> None:
        self._spark = spark
        self._plan = plan
        self._output = output
        # Of its own: what it was told when it was opened is of this output.
        self._sink = copy.copy(output.place)
        self._tries = tries
        self._giver = Giver(
            Log(plan.files, plan.application),
            plan.name,
            output.output_name,
            self._open_sink,
            self._write,
            now_us,
            plan.delivery,
        )
        self._is_ending = False
        self._is_at_work = False
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        self._thread = threading.Thread()
        self._opening = threading.Thread()
        self._refusal: BaseException | None = None
        self._epoch: Callable[[], int] = lambda: 0
        self.error: StateError | None = None

    @property
    def _title(self) -> str:
        return f"persistent-state {self._plan.application} {self._plan.name} {self._giver.output}"

    @property
    def _of(self) -> str:
        return f"task={self._plan.name}, sink={self._giver.output!r}"

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def open(self) -> None:
        """Begin to open the sink, in a thread of its own: one that does not answer is waited for by nobody else."""
        self._opening = threading.Thread(target=self._open, name=f"{self._title} opens", daemon=True)
        self._opening.start()

    def await_open(self, timeout: float) -> None:
        """Wait until the sink is open. One that is away is opened later, and one that does not answer when it does.

        Raises:
            StateError: the sink can't take the values of this task, or its `open` raised what nobody knows.
        """
        self._opening.join(timeout)
        if self._opening.is_alive():
            _logger.warning(
                "%s: it has not answered within %g s. The start goes on without it; it is given its clocks once it answers.",
                self._of,
                OPEN_SECONDS,
            )
            return
        error = self._take_refusal()
        if isinstance(error, (StoreUnavailableError, OSError)):
            self._warn("opened", 0, error)
        elif error is not None:
            raise self._as_own(error) from error

    def check_empty(self, tasks: Sequence[str]) -> None:
        """Refuse a place that has rows already, if its task is one of these.

        Raises:
            InvalidInputError: it has some, or it does not answer.
        """
        if self._plan.name in tasks and (why := self._giver.not_empty):
            raise InvalidInputError(f"{self._of}: the task is built again, and the sink {why}")

    def start(self, epoch: Callable[[], int]) -> None:
        """Deliver from now on, whatever comes; `epoch` says which start of the application is this driver's now."""
        self._epoch = epoch
        self._begin()

    def end(self) -> None:
        """Deliver what there is, and then no more."""
        with _news:
            self._is_ending = True
            self._stopped.clear()
            self._hurried.set()
            if not self._is_at_work:
                self._begin()
        tell()

    def stop(self) -> None:
        """Deliver no more, but for what is under way."""
        self._stopped.set()
        self._hurried.set()
        tell()

    def join(self, timeout: float) -> None:
        if self.is_alive and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _begin(self) -> None:
        self._is_at_work = True
        self._thread = threading.Thread(target=self._run, name=self._title, daemon=True)
        self._thread.start()

    def _open(self) -> None:
        _here.is_delivering = True
        try:
            self._giver.open()
        except BaseException as error:
            # Also what is no Exception, as the panics of libraries written in Rust are not.
            self._refusal = error

    def _open_sink(self) -> int | None:
        """Open the sink, and return the last clock that it has by its own record; None if it keeps none."""
        last = self._sink.open(frames.origin(self._plan, self._output))
        if isinstance(self._sink, RecordingSink):
            return BEGINNING if last is None else last
        if last is not None:
            raise InvalidInputError(
                f"open() of sink={self._sink.name!r} returned {last!r}; a sink that knows its last clock is a subclass of "
                "RecordingSink."
            )
        return None

    def _take_refusal(self) -> BaseException | None:
        """What kept the sink from opening, if something did; told once."""
        error, self._refusal = self._refusal, None
        return error

    def _run(self) -> None:
        _here.is_delivering = True
        failures, ends_since = 0, None
        while True:
            told = _told
            # Before the log is looked at: its last entry may come in between.
            is_ending = self._is_ending
            if is_ending and ends_since is None:
                failures, ends_since = 0, time.monotonic()
            if self._stopped.is_set():
                if self._has_left():
                    return
                continue
            if self._opening.is_alive():
                # Its sink is not opened a second time meanwhile, and a stop does not wait for it.
                self._opening.join(OPENING_POLL_SECONDS)
                if ends_since is not None and time.monotonic() > ends_since + END_SECONDS:
                    self.error = StoreUnavailableError(f"{self._of}: it does not answer; mend it, then run again.")
                    self._is_at_work = False
                    return
                continue
            try:
                is_done = not self._give_next(is_ending)
                failures = 0
            except BaseException as error:
                # Also what is no Exception, as the panics of libraries written in Rust are not.
                failures += 1
                if is_ending and (failures > self._tries or isinstance(error, _FINAL)):
                    self.error = self._as_own(error)
                    self._is_at_work = False
                    return
                wait = min(2.0 ** min(failures - 1, 10), LONGEST_WAIT)
                again = "tried again"
                if self._plan.delivery == AT_MOST_ONCE:
                    again += ", but for a clock that is recorded as given,"
                self._warn(again, wait, error)
                (self._stopped if is_ending else self._hurried).wait(wait)
                continue
            if is_done and is_ending:
                self._is_at_work = False
                return
            if is_done:
                with _news:
                    if _told == told:
                        _news.wait(POLL_SECONDS)

    def _has_left(self) -> bool:
        """Whether there is no more to do: unless someone has asked for the end since."""
        with _news:
            self._is_at_work = not self._stopped.is_set()
            return not self._is_at_work

    def _give_next(self, is_ending: bool) -> bool:
        if (error := self._take_refusal()) is not None:
            raise error
        try:
            return self._giver.give_next(self._epoch())
        except FencedError:
            # Perhaps by this driver itself, which is about to start again: the same clock comes then.
            if is_ending:
                raise
            return False

    def _write(self, entry: Entry, due: Due) -> None:
        plan, output = self._plan, self._output
        since = Since(due.since, output.all, output.early, due.recent)
        state = state_at(plan.files, plan.application, entry, plan.name, plan.layout, due.clock, since)
        self._sink.write(frames.of_values(self._spark, state, plan), due.clock)

    def _warn(self, what: str, wait: float, error: BaseException) -> None:
        _logger.warning("%s It is %s %s.", self._as_own(error), what, f"in {wait:g} s" if wait else "later")

    def _as_own(self, error: BaseException) -> StateError:
        if isinstance(error, (PySparkException, Py4JError)):
            found = as_own_error(error, "its query")
        elif isinstance(error, StateError):
            found = error
        else:
            found = StateError(f"it raised {raised(error)}; mend it, nothing is lost.")
        own = type(found)(f"{self._of}: {found}")
        own.__cause__ = error
        return own


class Deliveries:
    """All deliveries of an application."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._all = deliveries

    def open(self) -> None:
        """Open all sinks, each in a thread of its own, and wait for them, but not for long.

        Raises:
            StateError: a sink can't take the values of its task, or its `open` raised what nobody knows.
        """
        for each in self._all:
            each.open()
        until = time.monotonic() + OPEN_SECONDS
        for each in self._all:
            each.await_open(max(0.0, until - time.monotonic()))

    def check_empty(self, tasks: Sequence[str]) -> None:
        """Refuse a task of these, which are built again, whose sink still has rows of its life before.

        Raises:
            InvalidInputError: it has some, or nobody knows, as it does not answer.
        """
        for each in self._all:
            each.check_empty(tasks)

    def start(self, epoch: Callable[[], int]) -> None:
        for each in self._all:
            each.start(epoch)

    def stop(self, patience: float) -> None:
        """Deliver no more; what is under way is waited for so many seconds."""
        for each in self._all:
            each.stop()
        deadline = time.monotonic() + patience
        for each in self._all:
            each.join(max(0.0, deadline - time.monotonic()))

    def end(self, asked: threading.Event) -> None:
        """Deliver all that there is, unless it is asked to stop.

        Raises:
            StateError: a sink did not take it.
        """
        for each in self._all:
            each.end()
        while any(each.is_alive for each in self._all) and not asked.wait(0.05):
            pass
        for each in self._all:
            if each.error is not None:
                raise each.error
