"""Tasks whose code is any program: it gets the messages of a key one after the other, in the order of event time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import pyarrow as pa

from monoids import MonoidError
from monoids.nested import codec_of, kept_type
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import Duration
from persistent_state.task import BaseTask, Message, PersistentTask, check_function
from persistent_state.windows import MOMENT, length

TAKEN = (MOMENT, "clock")
"""The columns that the library adds to an emitted row for outputs and for other tasks."""


TimerTime: TypeAlias = "int | datetime | timedelta"
"""The time of a timer: microseconds UTC, a `datetime` with a zone, or a `timedelta` that is added to the moment in hand."""


@dataclass(frozen=True, order=True)
class Timer:
    """A timer of a key. Two timers of one name are two if their times differ.

    Args:
        timestamp: When it is due: microseconds UTC.
        name: Its name.

    Example:
        >>> Timer(1_000_000, "silent").name
        'silent'
    """

    timestamp: int
    name: str = ""


class Context(ABC):
    """The acts of an `OrderedTask` beside returning a state.

    Attributes:
        key: The key in hand: its value, a tuple of several columns' values, or `()` for one global state.
        timestamp: The moment in hand: the timestamp of the message or of the timer, in microseconds UTC.
    """

    key: Any
    timestamp: int

    @abstractmethod
    def emit(self, **columns: Any) -> None:
        """Emit a row. Its timestamp is the moment in hand.

        Args:
            columns: The columns of `emits` by name. One that is left out is null.

        Raises:
            InvalidInputError: `emits` lacks a column of this name.
        """

    @abstractmethod
    def set_timer(self, timestamp: TimerTime, name: str = "") -> None:
        """Have `on_timer` called at a time, before the messages of this time. Set twice, it is called once.

        A timer is its time and its name: a timer of the same name and another time is a second one, and both are called.
        `replace_timer` moves a timer.

        A timer for the moment in hand, or for an earlier one, is due at the moment, as soon as `process` has returned.

        The timers of a key may set 100,000 timers for one checkpoint interval, without a message between, and up to a clock
        they may set 100,000 timers more than are called. More fail the task, as they would never end. Timers that `process`
        sets do not count, however many are due at a time.

        Args:
            timestamp: When it is due: microseconds UTC, a `datetime` with a zone, or a `timedelta` from the moment in hand. A
                timer that a timer sets must be later than that.
            name: Its name.

        Raises:
            InvalidInputError: The timestamp is no whole number of 64 bits, is over a year before the moment in hand, is beyond
                the year 9999, or has no zone, the name is no Unicode text, or a timer sets one that is not later.

        Example:
            >>> from datetime import timedelta
            >>> class Unanswered(OrderedTask):
            ...     key, state, emits = "user", pa.string(), pa.schema([("question", pa.string())])
            ...
            ...     def process(self, state, message, context):
            ...         context.set_timer(timedelta(minutes=5))
            ...         return message["question"]
            ...
            ...     def on_timer(self, state, timer, context):
            ...         context.emit(question=state)
            >>> ann, bob = {"user": "ann", "question": "why?"}, {"user": "bob", "question": "how?"}
            >>> run_local(Unanswered(), [Message(0, ann), Message(600_000_000, bob)]).emitted
            [{'user': 'ann', 'question': 'why?', 'timestamp': 300000000}]
        """

    @abstractmethod
    def replace_timer(self, name: str, timestamp: TimerTime) -> None:
        """Set a timer, and forget all others of its name that the key has: the timer moves.

        Args:
            name: Its name.
            timestamp: When it is due, as for `set_timer`.

        Raises:
            InvalidInputError: As for `set_timer`.

        Example:
            >>> from datetime import timedelta
            >>> class Silent(OrderedTask):
            ...     key, state, emits = "user", pa.int64(), pa.schema([("messages", pa.int64())])
            ...
            ...     def process(self, state, message, context):
            ...         context.replace_timer("silent", timedelta(minutes=60))
            ...         return (state or 0) + 1
            ...
            ...     def on_timer(self, state, timer, context):
            ...         context.emit(messages=state)
            ...         return state
            >>> minutes = [Message(minute * 60_000_000, {"user": "ann"}) for minute in (0, 30, 200)]
            >>> [row["timestamp"] // 60_000_000 for row in run_local(Silent(), minutes).emitted]
            [90]
        """

    @abstractmethod
    def delete_timer(self, timestamp: TimerTime | None = None, name: str = "") -> None:
        """Forget a timer, or all timers of a name. A timer that does not exist is ignored.

        Args:
            timestamp: The time that it was set for. A time before the moment in hand finds what is due at the moment, as
                `set_timer` has it. Left out, or None: all timers of the name are forgotten.
            name: Its name.

        Raises:
            InvalidInputError: The timestamp is no whole number of 64 bits, is near the moment in hand in another unit than
                microseconds, or has no zone, or the name is no Unicode text.

        Example:
            >>> class Rings(OrderedTask):
            ...     key, state, emits = "user", pa.int64(), pa.schema([("rang", pa.string())])
            ...
            ...     def process(self, state, message, context):
            ...         for seconds in (60, 120):
            ...             context.set_timer(message.timestamp + seconds * 1_000_000, "bell")
            ...             context.set_timer(message.timestamp + seconds * 1_000_000, "horn")
            ...         context.delete_timer(message.timestamp + 60_000_000, "bell")
            ...         context.delete_timer(name="horn")
            ...         return 1
            ...
            ...     def on_timer(self, state, timer, context):
            ...         context.emit(rang=timer.name)
            ...         return state
            >>> run_local(Rings(), [Message(0, {"user": "ann"}), Message(600_000_000, {"user": "bob"})]).emitted
            [{'user': 'ann', 'rang': 'bell', 'timestamp': 120000000}]
        """


class InOrderTask(BaseTask):
    """The base of tasks whose messages wait until the clock has passed them.

    Attributes:
        state: The Arrow type of the state of a key.
        emits: The columns of the rows that the task emits; None if it emits none.
    """

    state: pa.DataType | None = None
    emits: pa.Schema | None = None


class OrderedTask(InOrderTask):
    """The base of tasks whose code is any program: give it a `key`, the type of its `state`, and `process`.

    Messages wait until the clock has passed them. Then `process` gets those of a key one after the other, in the order of their
    timestamps; those of one moment in the order of inputs, channels and positions. So the state at a clock depends on nothing
    but the messages below it: not on batches, arrival, shards or retries.

    A message after which the state or a row does not fit its type is a bad row: state, timers and rows are as before it.

    Attributes:
        name: The task's name in the store, by default the name of its class.
        key: The key column, several columns, or None for one global state.
        state: The Arrow type of the state of a key.
        emits: The columns of the rows that the task emits; None if it emits none. The moment of a row comes with it, as
            the column `timestamp`.
        ttl: For how long a key may be silent before it is forgotten, with its timers: a text such as "30 days", or a
            `timedelta`. By default keys are kept for ever.
        message_id: The column of the messages' ids, if messages may come again.
        horizon: How far apart in event time two messages with one id may be.

    Raises:
        InvalidInputError: A subclass has an attribute whose name is nearly that of one of these; it would have no effect.

    Example:
        >>> class Visits(OrderedTask):
        ...     key = "user"
        ...     state = pa.struct([("since", pa.int64()), ("clicks", pa.int64())])
        ...     emits = pa.schema([("user", pa.string()), ("clicks", pa.int64())])
        ...
        ...     def process(self, state, message, context):
        ...         state = state or {"since": message.timestamp, "clicks": 0}
        ...         context.set_timer(state["since"] + 60_000_000)
        ...         return {**state, "clicks": state["clicks"] + 1}
        ...
        ...     def on_timer(self, state, timer, context):
        ...         context.emit(user=context.key, clicks=state["clicks"])
        ...         return None
    """

    ttl: Duration | None = None

    def process(self, state: Any, message: Message, context: Context) -> Any:
        """Return the state of a key after a message.

        Args:
            state: The state before it; None if the key has none.
            message: The row and its timestamp.
            context: It emits rows and sets timers.

        Returns:
            A value of the type `state`. None forgets the key and its timers.
        """
        raise InvalidInputError(f"task={self.task_name} does nothing with its messages; define process().")

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        """Return the state of a key after a timer.

        Args:
            state: The state before it.
            timer: The timer that is due.
            context: It emits rows and sets timers.

        Returns:
            A value of the type `state`. None forgets the key and its timers.
        """
        raise InvalidInputError(f"task={self.task_name} sets timers, and has no on_timer(); define it.")

    def check(self) -> None:
        """Refuse a task that can never work.

        Raises:
            InvalidInputError: An attribute has a value that a task can't have.
        """
        name = self.task_name
        self._check_attributes()
        if not isinstance(self.state, pa.DataType):
            raise InvalidInputError(f"task={name} has state={self.state!r}; say the Arrow type of a key's state.")
        _check_kept(f"task={name}: state", self.state)
        if type(self).process is OrderedTask.process:
            raise InvalidInputError(f"task={name} does nothing with its messages; define process().")
        instead = "return the state, and emit rows by context.emit()"
        check_function(f"task={name}: process()", self.process, ("state", "message", "context"), instead)
        check_function(f"task={name}: on_timer()", self.on_timer, ("state", "timer", "context"), instead)
        if self.ttl is not None:
            length("ttl", self.ttl)
        if self.emits is None:
            return
        if not isinstance(self.emits, pa.Schema):
            raise InvalidInputError(f"task={name} has emits={self.emits!r}; give a pyarrow.schema, or None.")
        if not self.emits.names:
            raise InvalidInputError(
                f"task={name} has emits=pa.schema([]), which has no column; name some, or say None."
            )
        for column in self.emits.names:
            if column in TAKEN:
                raise InvalidInputError(
                    f"task={name}: emits has a column {column!r}, which the library adds to each row; give yours another name."
                )
            if self.emits.names.count(column) > 1:
                raise InvalidInputError(f"task={name}: emits has two columns {column!r}; give one another name.")
        for field in self.emits:
            if not field.nullable:
                raise InvalidInputError(
                    f"task={name}: column {field.name!r} of emits is {field.type} not null, and any may be null; leave "
                    "nullable=False out."
                )
            _check_kept(f"task={name}: column {field.name!r} of emits", field.type)

    def _check_attributes(self) -> None:
        """Refuse what would have no effect.

        Raises:
            InvalidInputError: The task has that.
        """
        if self.version is not None:
            raise InvalidInputError(
                f"task={self.task_name} has version={self.version!r}, and it can't be made again from the state of others; "
                "leave it out, and name the task in rebuild of start or run when its code changes."
            )
        for attribute in sorted({*vars(PersistentTask)} - {*vars(object)}):
            if not attribute.startswith("_") and hasattr(self, attribute):
                raise InvalidInputError(
                    f"task={self.task_name} has {attribute}, which has no effect on an OrderedTask; define process(), which "
                    "gets whole messages and the state, or give it another name."
                )


def _check_kept(what: str, type: pa.DataType) -> None:
    """Refuse a type in which values can't be kept.

    Raises:
        InvalidInputError: It is one.
    """
    try:
        kept = codec_of(kept_type(type)).type
    except MonoidError:
        raise InvalidInputError(
            f"{what} is {type}, which can't be kept; use types such as int64, float64, string or timestamp of us, and lists, "
            "structs and maps of these."
        ) from None
    if kept != type:
        raise InvalidInputError(f"{what} is {type}, which can't be kept as it is; say {kept}.")
