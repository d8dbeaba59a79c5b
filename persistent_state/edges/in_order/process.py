"""Process the messages of a key in the order of event time, up to a clock: its state, its timers, and the rows that it emits.

A timer comes before the messages of its time. What a key has at a clock depends on nothing but its messages below the clock and
what it had before: so it is the same in however many steps the clock has come there.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cache
from heapq import heappop, heappush
from typing import Any

from monoids import MonoidError
from persistent_state.batch.row_messages import as_they_came, unreadable
from persistent_state.edges.in_order.as_stored import AsStored
from persistent_state.errors import InvalidInputError, TaskFailedError, at_definition, at_line, places, raised
from persistent_state.event_time.clocks import BEGINNING, END
from persistent_state.event_time.durations import UNITS
from persistent_state.formatting import COARSER_UNITS, read_clock, show_clock
from persistent_state.ordered import Context, OrderedTask, Timer, TimerTime
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.store.late_rows import UNFIT
from persistent_state.task import Message

_logger = logging.getLogger("persistent_state")

MOST_TIMERS = 100_000
"""The most timers that the timers of a key set for one checkpoint interval, without a message. More are taken for endless.

Timers that messages set do not count, however many are due. As steps end at multiples of the interval, those that set too many
do so in however many steps the clock comes there.

In a step, without a message, the timers that a key has may also grow by this number at most. This stops timers that set several
each before they fill the memory. A chain goes on, and so do many timers that each set one.
"""

YEAR = 366 * UNITS["day"]
"""A timer that is further before the moment in hand, in microseconds, was not meant so."""

LAST = read_clock(datetime.max.replace(tzinfo=timezone.utc))
"""The last time, in microseconds, that Python can show. A timer is beyond it only if the messages are."""

OF_TIMER = -1
"""The rank of rows that a due timer emits: they come before those of the moment's messages."""


@dataclass(frozen=True)
class KeyState:
    """All that a step leaves of a key for the next. `newest` is the timestamp of its newest message.

    Where the state is None, the key is forgotten, and has no timers.
    """

    state: Any = None
    timers: tuple[Timer, ...] = ()
    newest: int = BEGINNING

    def differs(self, before: KeyState) -> bool:
        """Return whether a reader sees another state than before, or the next step does."""
        return self != before and not (self.state is None and before.state is None)


@dataclass(frozen=True)
class Program:
    """The task, and how its values come back from the store.

    Attributes:
        task: The task.
        as_state: Returns a state as the store would give it back.
        as_row: Returns an emitted row as the store would give it back.
        ranks: The places of the task's inputs in their order.
        ttl: For how long a key may be silent, in microseconds; None: for ever.
        interval: The checkpoint interval in microseconds.
    """

    task: OrderedTask
    as_state: AsStored
    as_row: AsStored
    ranks: dict[str, int] = field(default_factory=lambda: {"": 0})
    ttl: int | None = None
    interval: int = 60_000_000


@dataclass(frozen=True)
class Emitted:
    """A row that a task emitted for a key at a moment. `rank` is its place among the rows of the moment."""

    moment: int
    rank: int
    row: Any


@dataclass(frozen=True)
class Bad:
    """The reason for which a message was a bad row, and what did not fit, if something did not."""

    reason: str
    misfit: str


@dataclass(frozen=True)
class Outcome:
    """The outcome for a key. `bad` has the numbers of the messages that were bad rows.

    `acted` is False if the key had no state at any time, and no row was emitted.
    """

    kept: KeyState
    rows: list[Emitted]
    bad: dict[int, Bad]
    acted: bool


def process(program: Program, key: Any, kept: KeyState, messages: Sequence[Message], upto: int) -> Outcome:
    """Process the messages and timers of a key up to a clock.

    Args:
        program: The task.
        key: The key as user code is given it.
        kept: What the last step has left of it.
        messages: Its messages since then, in order, all below the clock.
        upto: The clock.

    Raises:
        TaskFailedError: User code raised, or a timer did what it may not do.
    """
    try:
        return _Turn(program, key, kept, hands_copies=False).take(messages, upto)
    except _SpoiltError:
        return _Turn(program, key, kept, hands_copies=True).take(as_they_came(messages), upto)


class _SpoiltError(Exception):
    """A message was bad, and user code may have changed the state from before it in its place, and values of messages."""


class _Over:
    """The task and the wishes of a context, once the turn of its key is over: what is asked of them is an error."""

    @property
    def emits(self) -> Any:
        self.append(None)

    def append(self, wish: Any) -> None:
        """Raise the error that user code has kept a context."""
        raise InvalidInputError(
            "no context has an effect after the turn of its key; use the one that this call is given."
        )


_OVER: Any = _Over()


class _Turn(Context):
    """The turn of one key, and the context that user code is handed in it.

    With `hands_copies` a call gets a copy of the state. Without, a bad message spoils the turn, which is to be taken again.
    """

    def __init__(self, program: Program, key: Any, kept: KeyState, hands_copies: bool) -> None:
        self.key, self.timestamp = key, BEGINNING
        self._program, self._task, self._hands_copies = program, program.task, hands_copies
        # What is asked for with each message, without a way through the program.
        self._ttl, self._as_state = program.ttl, program.as_state
        self._state = program.as_state(kept.state)
        self._newest = kept.newest
        # Those that are set, and a heap of these and of some that are not any more.
        # What is in order is a heap.
        self._heap = [(timer.timestamp, timer.name) for timer in kept.timers] if kept.timers else []
        self._set = set(self._heap)
        self._rows: list[Emitted] = []
        self._bad: dict[int, Bad] = {}
        self._had_state = kept.state is not None
        # What timers have set since the last message for times before the end of the interval in hand, and how many timers
        # there were then.
        self._chained, self._end, self._before = 0, BEGINNING, 0
        # The rank of the call in hand. A timer that a message sets for its moment has the message's rank.
        self._rank = OF_TIMER
        self._timer: Timer | None = None
        # Whether a timer is to be set, or deleted, with its time and name. One without a time stands for all of its name.
        self._wishes: list[tuple[bool, int | None, str]] = []
        # What did not fit of what the call returned or emitted, and the reason if it asked for a value beyond Python's.
        self._misfit = self._unread = ""

    def take(self, messages: Sequence[Message], upto: int) -> Outcome:
        """Process all messages and timers below a clock."""
        ranks = self._program.ranks
        for number, message in enumerate(messages):
            if self._heap:
                self._rank = OF_TIMER
                self._call_timers(message.timestamp)
            self._rank = ranks[message.input]
            if not self._process(message):
                if not self._hands_copies:
                    raise _SpoiltError
                self._bad[number] = Bad(self._unread or UNFIT, self._misfit)
            if self._heap:
                self._call_timers(message.timestamp)
        if self._heap:
            self._rank = OF_TIMER
            self._call_timers(upto - 1)
        timers = tuple(Timer(*timer) for timer in sorted(self._set)) if self._set else ()
        # What user code calls later, of a context that it has kept, is an error.
        self._task = self._wishes = _OVER
        acted = self._had_state or bool(self._rows)
        return Outcome(KeyState(self._state, timers, self._newest), self._rows, self._bad, acted)

    # What user code calls

    def emit(self, *unnamed: Any, **columns: Any) -> None:
        emits = self._task.emits
        if emits is None:
            raise InvalidInputError(f"task={self._task.task_name} emits a row; name its columns in emits.")
        if unnamed:
            raise InvalidInputError(
                f"context.emit() was given {unnamed[0]!r} without a name; give columns by name, {emits.names[0]}=..."
                f"{', or **{...} for a dictionary' if isinstance(unnamed[0], dict) else ''}."
            )
        if wrong := columns.keys() - emits.names:
            if TIMESTAMP in wrong:
                raise InvalidInputError(
                    f"context.emit({TIMESTAMP}=...): the row gets {TIMESTAMP!r} by itself; leave it out."
                )
            if keys := wrong.intersection(self._task.key_columns):
                raise InvalidInputError(
                    f"context.emit({min(keys)}=...): the row gets the key columns by itself; leave it out, or name it in emits."
                )
            raise InvalidInputError(f"emits has no column {min(wrong)!r}, but {', '.join(emits.names)}; add it there.")
        try:
            row = self._program.as_row(columns)
        except MonoidError as error:
            self._misfit = self._misfit or f"emitted{at_line(sys._getframe(1))}: {str(error).rstrip('.')}"
            return
        self._rows.append(Emitted(self.timestamp, self._rank, row))

    def set_timer(self, timestamp: TimerTime, name: str = "") -> None:
        timestamp = self._time_to_set(timestamp, name)
        self._wishes.append((True, max(timestamp, self.timestamp), name))

    def replace_timer(self, name: str, timestamp: TimerTime) -> None:
        timestamp = self._time_to_set(timestamp, name)
        self._wishes.append((False, None, name))
        self._wishes.append((True, max(timestamp, self.timestamp), name))

    def delete_timer(self, timestamp: TimerTime | None = None, name: str = "") -> None:
        if timestamp is None:
            _check_name(name)
            self._wishes.append((False, None, name))
            return
        given: Any = timestamp
        if isinstance(given, str):
            raise InvalidInputError(f"delete_timer({given!r}) was given a name for a time; write name={given!r}.")
        timestamp = _time_of(timestamp, name, self.timestamp)
        # A time of long ago may be that of a timer that was called.
        if (unlikely := _unlikely(timestamp, self.timestamp)) and _meant(timestamp, self.timestamp):
            raise _refused(timestamp, unlikely, self.timestamp)
        self._wishes.append((False, max(timestamp, self.timestamp), name))

    def _time_to_set(self, given: TimerTime, name: str) -> int:
        """Return the time that a timer is to be set for, in microseconds UTC.

        Raises:
            InvalidInputError: It can't be set for this time.
        """
        timestamp, moment = _time_of(given, name, self.timestamp), self.timestamp
        if unlikely := _unlikely(timestamp, moment):
            raise _refused(timestamp, unlikely, moment)
        if self._timer is not None and timestamp <= moment:
            raise InvalidInputError(
                f"{self._timer!r} sets a timer for {timestamp}, which is no later time; add to timer.timestamp."
            )
        if isinstance(given, int) and 0 < timestamp - moment < UNITS["second"]:
            _warn_of_unit(self._program.task.task_name)
        if self._timer is None and self._ttl is not None and timestamp - moment > self._ttl:
            _warn_of_ttl(self._program.task.task_name)
        return timestamp

    # What is called of user code

    def _process(self, message: Message) -> bool:
        """Let the task process a message. Return False if it is a bad row: then all is as before it."""
        moment, ttl = message.timestamp, self._ttl
        self.timestamp, self._timer, rows, before = moment, None, len(self._rows), None
        if ttl is not None and moment - self._newest > ttl:
            before = self._state, self._set, self._heap
            self._state, self._set, self._heap = None, set(), []
        if not self._call(self._task.process, message):
            if before is not None:
                self._state, self._set, self._heap = before
            del self._rows[rows:]
            return False
        self._newest = moment
        return True

    def _call_timers(self, last: int) -> None:
        """Call the timers up to a time, in their order. There are some."""
        ttl = self._ttl
        last = last if ttl is None else min(last, self._newest + ttl)
        if self._heap[0][0] > last:
            return
        self._chained, self._before = 0, len(self._set)
        while self._heap and self._heap[0][0] <= last:
            due = heappop(self._heap)
            if due not in self._set:
                continue
            self._set.remove(due)
            self.timestamp, self._timer = due[0], Timer(*due)
            if self.timestamp >= self._end:
                interval = self._program.interval
                self._chained, self._end = 0, (self.timestamp // interval + 1) * interval
            timer = self._timer
            if not self._call(self._task.on_timer, timer):
                raise TaskFailedError(
                    f"on_timer of task={self._task.task_name} returned or emitted what does not fit, at key={self.key!r} "
                    f"{timer!r}: {self._misfit}."
                )

    def _call(self, function: Callable[[Any, Any, Context], Any], given: Message | Timer) -> bool:
        """Call user code, and keep what it returns and asks for. Return False if that does not fit: then nothing is kept."""
        if self._wishes:
            self._wishes = []
        self._misfit = self._unread = ""
        handed = self._as_state(self._state) if self._hands_copies else self._state
        try:
            returned = function(handed, given, self)
        except Exception as error:
            if self._timer is not None or (cause := unreadable(error)) is None:
                raise self._failed(given, error) from error
            self._unread = str(cause)
            return False
        try:
            state = self._as_state(returned)
        except MonoidError as error:
            self._misfit = self._misfit or f"returned{at_definition(function)}: {str(error).rstrip('.')}"
        if self._misfit:
            return False
        self._state = state
        if state is None:
            self._set, self._heap = set(), []
            return True
        self._had_state = True
        for is_set, at, name in self._wishes:
            if at is None:
                self._set = {timer for timer in self._set if timer[1] != name}
                continue
            timer = (at, name)
            if not is_set:
                if timer not in self._set and not name:
                    self._warn_of_names(at)
                self._set.discard(timer)
            elif timer not in self._set:
                self._set.add(timer)
                heappush(self._heap, timer)
                if self._timer is not None:
                    self._count_chained(timer)
        return True

    def _warn_of_names(self, at: int) -> None:
        """Log a warning if the timers of a time, of which one without a name was to be forgotten, have names."""
        if names := sorted(name for time, name in self._set if time == at):
            _warn_of_name(self._task.task_name, names[0])

    def _count_chained(self, timer: tuple[int, str]) -> None:
        """Count a timer that a timer has set.

        Raises:
            TaskFailedError: There are too many: they would never end.
        """
        if len(self._set) > self._before + MOST_TIMERS:
            raise TaskFailedError(
                f"task={self._task.task_name} key={self.key!r}: without a message, on_timer set over {MOST_TIMERS} timers more "
                f"than were called, up to {self._timer!r}; let each call set one timer at most, or none for ever."
            )
        if timer[0] >= self._end:
            return
        self._chained += 1
        if self._chained > MOST_TIMERS:
            raise TaskFailedError(
                f"task={self._task.task_name} key={self.key!r}: timers set more than {MOST_TIMERS} timers for one checkpoint "
                f"interval, without a message, the last of them {self._timer!r}; let on_timer set timers that are further "
                "apart, or none for ever."
            )

    def _failed(self, given: Message | Timer, error: Exception) -> TaskFailedError:
        """Return the error that says what user code raised, and where."""
        name, where = ("on_timer", repr(given)) if self._timer is not None else ("process", f"message={given!r}")
        of = f"{name} of task={self._task.task_name}"
        moment = f"at key={self.key!r} {where} timestamp={self.timestamp}"
        if isinstance(error, InvalidInputError):
            return TaskFailedError(f"{of}{places(error)}, {moment}: {error}")
        lacks_state = (
            self._state is None and isinstance(error, (TypeError, AttributeError)) and "NoneType" in str(error)
        )
        hint = " The state is None, as the key has none: let process return the first one." if lacks_state else ""
        return TaskFailedError(f"{of} raised {raised(error)}, {moment}.{hint}")


@cache
def _warn_of_name(task: str, name: str) -> None:
    """Log the warning once."""
    _logger.warning(
        "task=%s: delete_timer() of a time forgot nothing, as the timer of this time has name=%r; give the name, too.",
        task,
        name,
    )


@cache
def _warn_of_unit(task: str) -> None:
    """Log the warning once."""
    _logger.warning(
        "task=%s: a timer is set for less than a second after the moment in hand. A number is microseconds: give a timedelta, "
        "such as timedelta(hours=1), or timedelta(microseconds=5) if that is meant.",
        task,
    )


@cache
def _warn_of_ttl(task: str) -> None:
    """Log the warning once."""
    _logger.warning(
        "task=%s: a timer is set for later than the ttl after its message. Unless another message of the key comes before the "
        "ttl is over, the timer is forgotten with the key. Make the ttl longer if the timer is to be called all the same.",
        task,
    )


def _time_of(given: TimerTime, name: str, moment: int) -> int:
    """Return the time of a timer in microseconds UTC; a timedelta is from the moment.

    Raises:
        InvalidInputError: It is no time, has no zone or is beyond 64 bits, or the name is not a text.
    """
    _check_name(name)
    if isinstance(given, datetime) and given.tzinfo is None:
        raise InvalidInputError(f"a timer has timestamp={given!r}, which has no zone; give one, such as timezone.utc.")
    if isinstance(given, datetime):
        found = read_clock(given)
    elif isinstance(given, timedelta):
        found = moment + given // timedelta(microseconds=1)
    elif isinstance(given, int) and not isinstance(given, bool):
        found = given
    else:
        raise InvalidInputError(
            f"a timer has timestamp={given!r} and name={name!r}; give whole microseconds, a datetime or a timedelta, and a "
            "text."
        )
    if not BEGINNING <= found <= END:
        raise InvalidInputError(f"a timer has timestamp={found}, which is beyond 64 bits; give microseconds UTC.")
    return found


def _check_name(name: str) -> None:
    if not isinstance(name, str):
        raise InvalidInputError(f"a timer has name={name!r}, which is not a text; give one.")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidInputError(f"a timer has name={name!r}, which is not Unicode text; give a text.") from None


def _unlikely(timestamp: int, moment: int) -> str:
    """Return what makes a time unlikely for a timer that is set at a moment, or nothing."""
    # A moment near 1970 is that of a test with small numbers.
    if timestamp < moment - YEAR and moment > YEAR:
        return f"over a year before the moment in hand, {show_clock(moment)}"
    return "beyond the year 9999" if timestamp > LAST >= moment else ""


def _refused(timestamp: int, unlikely: str, moment: int) -> InvalidInputError:
    """Return the error that refuses a time at a moment."""
    return InvalidInputError(
        f"a timer has timestamp={timestamp}, which is {unlikely}; give microseconds UTC, or a timedelta from the "
        f"moment{_meant(timestamp, moment)}."
    )


def _meant(timestamp: int, moment: int) -> str:
    """Return in parentheses what a time would be in another unit, if that is within a year of the moment, or nothing."""
    in_other_units = {unit: timestamp * factor for unit, factor in COARSER_UNITS.items()}
    for unit, time in {**in_other_units, "nanoseconds": timestamp // 1_000}.items():
        if abs(time - moment) <= YEAR:
            return f" (in {unit} this would be {show_clock(time)})"
    return ""
