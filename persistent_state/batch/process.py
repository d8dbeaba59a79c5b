"""Process the messages of a key in the order of event time, up to a clock: its state, its timers, and the rows that it emits.

A timer comes before the messages of its time. What a key has at a clock depends on nothing but its messages below the clock and
what it had before: so it is the same in however many steps the clock has come there.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from monoids import MonoidError
from persistent_state.batch.as_stored import AsStored
from persistent_state.errors import InvalidInputError, TaskFailedError, places, raised
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.ordered import Context, OrderedTask, Timer
from persistent_state.task import Message

MOST_TIMERS = 100_000
"""The most timers of a key that one step calls. More are taken for timers that set each other for ever."""

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


@dataclass(frozen=True)
class Program:
    """The task, and how its values come back from the store.

    Attributes:
        task: The task.
        as_state: Returns a state as the store would give it back.
        as_row: Returns an emitted row as the store would give it back.
        ranks: The places of the task's inputs in their order.
        ttl: For how long a key may be silent, in microseconds; None: for ever.
    """

    task: OrderedTask
    as_state: AsStored
    as_row: AsStored
    ranks: dict[str, int] = field(default_factory=lambda: {"": 0})
    ttl: int | None = None


@dataclass(frozen=True)
class Emitted:
    """A row that a task emitted for a key at a moment. `rank` is its place among the rows of the moment."""

    moment: int
    rank: int
    row: Any


@dataclass(frozen=True)
class Outcome:
    """The outcome for a key. `bad` has the numbers of the messages that were bad rows."""

    kept: KeyState
    rows: list[Emitted]
    bad: list[int]


def process(program: Program, key: Any, kept: KeyState, messages: Sequence[Message], upto: int) -> Outcome:
    """Process the messages and timers of a key up to a clock.

    Args:
        program: The task.
        key: The key as user code is told it.
        kept: What the last step has left of it.
        messages: Its messages since then, in order, all below the clock.
        upto: The clock.

    Raises:
        TaskFailedError: User code raised, or a timer did what it may not do.
    """
    try:
        return _Turn(program, key, kept, hands_copies=False).take(messages, upto)
    except _SpoiltError:
        return _Turn(program, key, kept, hands_copies=True).take(messages, upto)


class _SpoiltError(Exception):
    """A message was bad, and user code may have changed the state from before it in its place."""


class _Turn(Context):
    """The turn of one key, and the context that user code is handed in it.

    With `hands_copies` a call gets a copy of the state. Without, a bad message spoils the turn, which is to be taken again.
    """

    def __init__(self, program: Program, key: Any, kept: KeyState, hands_copies: bool) -> None:
        self.key, self.timestamp = key, BEGINNING
        self._program, self._task, self._hands_copies = program, program.task, hands_copies
        self._state = program.as_state(kept.state)
        self._timers, self._newest = [*kept.timers], kept.newest
        self._rows: list[Emitted] = []
        self._bad: list[int] = []
        self._calls = 0
        # Of the call in hand. A timer that a message sets for its moment has the message's rank.
        self._rank = OF_TIMER
        self._timer: Timer | None = None
        self._wishes: list[tuple[bool, Timer]] = []
        self._misfit: MonoidError | None = None

    def take(self, messages: Sequence[Message], upto: int) -> Outcome:
        """Process all messages and timers below a clock."""
        for number, message in enumerate(messages):
            if self._timers:
                self._rank = OF_TIMER
                self._call_timers(message.timestamp)
            self._rank = self._program.ranks[message.input]
            if not self._process(message):
                if not self._hands_copies:
                    raise _SpoiltError
                self._bad.append(number)
            if self._timers:
                self._call_timers(message.timestamp)
        self._rank = OF_TIMER
        self._call_timers(upto - 1)
        return Outcome(KeyState(self._state, tuple(self._timers), self._newest), self._rows, self._bad)

    # What user code calls

    def emit(self, **columns: Any) -> None:
        emits = self._task.emits
        if emits is None:
            raise InvalidInputError(f"task={self._task.task_name} emits a row; name its columns in emits.")
        if wrong := columns.keys() - emits.names:
            raise InvalidInputError(f"emits has no column {min(wrong)!r}, but {', '.join(emits.names)}; add it there.")
        try:
            row = self._program.as_row({**dict.fromkeys(emits.names), **columns})
        except MonoidError as error:
            self._misfit = error
            return
        self._rows.append(Emitted(self.timestamp, self._rank, row))

    def set_timer(self, timestamp: int, name: str = "") -> None:
        timer = _timer(timestamp, name)
        if timer.timestamp <= self.timestamp:
            if self._timer is not None:
                raise InvalidInputError(
                    f"{self._timer!r} sets a timer for {timestamp}, which is no later time; add to timer.timestamp."
                )
            timer = Timer(self.timestamp, name)
        self._wishes.append((True, timer))

    def delete_timer(self, timestamp: int, name: str = "") -> None:
        self._wishes.append((False, _timer(timestamp, name)))

    # What is called of user code

    def _process(self, message: Message) -> bool:
        """Let the task process a message. Return False if it is a bad row: then all is as before it."""
        moment, ttl = message.timestamp, self._program.ttl
        self.timestamp, self._timer = moment, None
        before = self._state, self._timers, len(self._rows)
        if ttl is not None and moment - self._newest > ttl:
            self._state, self._timers = None, []
        if not self._call(self._task.process, message):
            self._state, self._timers, rows = before
            del self._rows[rows:]
            return False
        self._newest = moment
        return True

    def _call_timers(self, last: int) -> None:
        """Call the timers up to a time, in their order."""
        ttl = self._program.ttl
        last = last if ttl is None else min(last, self._newest + ttl)
        while self._timers and self._timers[0].timestamp <= last:
            timer = self._timers.pop(0)
            self.timestamp, self._timer = timer.timestamp, timer
            self._calls += 1
            if self._calls > MOST_TIMERS:
                raise TaskFailedError(
                    f"task={self._task.task_name} key={self.key!r}: more than {MOST_TIMERS} timers were due in one step, the "
                    f"last {timer!r}; let on_timer set timers that are further apart, or none for ever."
                )
            if not self._call(self._task.on_timer, timer):
                raise TaskFailedError(
                    f"on_timer of task={self._task.task_name} returned or emitted what does not fit, at key={self.key!r} "
                    f"{timer!r}: {self._misfit}"
                ) from self._misfit

    def _call(self, function: Callable[[Any, Any, Context], Any], given: Message | Timer) -> bool:
        """Call user code, and keep what it returns and asks for. Return False if that does not fit: then nothing is kept."""
        if self._wishes:
            self._wishes = []
        self._misfit = None
        handed = self._program.as_state(self._state) if self._hands_copies else self._state
        try:
            returned = function(handed, given, self)
        except Exception as error:
            raise self._failed(given, error) from error
        try:
            state = self._program.as_state(returned)
        except MonoidError as error:
            self._misfit = error
        if self._misfit is not None:
            return False
        self._state = state
        if state is None:
            self._timers.clear()
            return True
        for is_set, timer in self._wishes:
            if is_set != (timer in self._timers):
                (insort(self._timers, timer) if is_set else self._timers.remove(timer))
        return True

    def _failed(self, given: Message | Timer, error: Exception) -> TaskFailedError:
        """Return the error that says what user code raised, and where."""
        name, where = ("on_timer", repr(given)) if self._timer is not None else ("process", f"message={given!r}")
        is_ours = isinstance(error, InvalidInputError)
        said = f": {str(error).removesuffix('.')}{places(error)}" if is_ours else f" raised {raised(error)}"
        return TaskFailedError(
            f"{name} of task={self._task.task_name}{said}, at key={self.key!r} {where} timestamp={self.timestamp}."
        )


def _timer(timestamp: int, name: str) -> Timer:
    if isinstance(timestamp, bool) or not isinstance(timestamp, int) or not isinstance(name, str):
        raise InvalidInputError(
            f"a timer has timestamp={timestamp!r} and name={name!r}; give whole microseconds and a text."
        )
    return Timer(timestamp, name)
