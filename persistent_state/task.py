"""The class that users subclass: a task says which state it keeps and how a message updates it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from persistent_state.errors import InvalidInputError, at_definition
from persistent_state.event_time.durations import Duration
from persistent_state.state import KeptState, PersistentState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


LOCAL_TIMESTAMP = "_persistent_state_timestamp"
"""The column in which `run_local` puts the timestamps of messages. User code is not handed it as one of a message's."""


class Message(Mapping[str, Any]):
    """A row with its event timestamp. It is a mapping from column names to values.

    Args:
        timestamp: Microseconds UTC. For `run_local` it may also be a `datetime`.
        row: The columns by name.
        input: The name of the input that it came from, where the task has several.

    Example:
        >>> message = Message(1_000_000, {"word": "to"})
        >>> message.timestamp, message["word"]
        (1000000, 'to')
    """

    __slots__ = ("_row", "input", "timestamp")

    timestamp: int
    input: str

    def __init__(self, timestamp: int | datetime, row: Mapping[str, Any], input: str = "") -> None:
        # A task is always given a number: `run_local` makes one of a datetime.
        self.timestamp = timestamp  # type: ignore[assignment]
        self._row = row
        self.input = input

    def __getattr__(self, name: str) -> Any:
        """Raise the error that a message has no such attribute, and name the way to a column."""
        raise AttributeError(f"a message has no attribute {name!r}; write message[{name!r}]", name=name, obj=self)

    def __getitem__(self, column: str) -> Any:
        return self._row[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def __repr__(self) -> str:
        return f"Message({self.timestamp}, {dict(self._row)!r})"


def _check_attributes(task: type) -> None:
    """Refuse an attribute whose name is nearly one that the library reads: it would have no effect.

    Names that begin with an underscore, and the attributes of a mixin that is not a task, are the user's own.

    Raises:
        InvalidInputError: There is such an attribute.
    """
    library = [each for each in task.__mro__ if each.__module__.startswith("persistent_state.")]
    known = sorted({name for each in library for name in vars(each) if not name.startswith("_")})
    for name in vars(task):
        meant = [] if name.startswith("_") or name in known else _near(name, known)
        if meant:
            raise InvalidInputError(
                f"task={task.__qualname__} has {name}, which has no effect; write {meant[0]}, or give it another name."
            )


def _near(name: str, known: Sequence[str]) -> list[str]:
    """Return the known name that is nearly this one, if there is one."""
    if "emits" in known and get_close_matches(name, ["emitted"], 1, 0.9):
        return ["emits"]
    # In short names one letter is much.
    same_letters = [other for other in known if (len(name), {*name}, name[0]) == (len(other), {*other}, other[0])]
    # In capitals alone a name is a constant.
    other_case = [other for other in known if other == name.lower() and not name.isupper()]
    return other_case or get_close_matches(name, known, 1, 0.8) or same_letters[:1]


def check_function(what: str, function: Callable[..., Any], given: Sequence[str], instead: str) -> None:
    """Refuse a function of a task that can't be called with what it is given, or of which nothing would run.

    Args:
        what: The task and the function, as the error names them.
        function: The function, without `self`.
        given: What it is called with, by the names of the parameters.
        instead: What a function does that neither yields nor is async.

    Raises:
        InvalidInputError: It is such a function.
    """
    which = f"{what}{at_definition(function)}"
    if inspect.isgeneratorfunction(function):
        raise InvalidInputError(f"{which} yields; {instead}.")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInputError(f"{which} is async, and nothing awaits it; define it by def alone.")
    try:
        # What a decorator has wrapped is not what is called.
        signature = inspect.signature(function, follow_wrapped=False)
    except ValueError:
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        *first, last = [f"{'an' if name[0] in 'aeiou' else 'a'} {name}" for name in given]
        name = what.rpartition(" ")[2].removesuffix("()")
        raise InvalidInputError(
            f"{which} can't be called with {', '.join(first)} and {last}: {error}; define {name}(self, {', '.join(given)})."
        ) from None


def check_process_message(task: PersistentTask) -> None:
    """Refuse a `process_message` that could make no update.

    Raises:
        InvalidInputError: It is one.
    """
    if type(task).process_message is not PersistentTask.process_message:
        check_function(
            f"task={task.task_name}: process_message()",
            task.process_message,
            ("state", "message"),
            "call state.update(message.timestamp, value) for each update",
        )


def instance_of(task: object) -> str:
    """Return what to write where an instance of a task is wanted, and this was given."""
    return f"{task.__name__}()" if isinstance(task, type) else "MessageCount()"


def name_of_messages(task: str) -> str:
    """Return the name of the task of the graph in which the messages of an ordered task wait."""
    return f"{task}.messages"


def name_of_rows(task: str) -> str:
    """Return the name of the task of the graph that has the rows which an ordered task emits."""
    return f"{task}.rows"


def names_of_parts(task: str) -> list[str]:
    """Return the names of the tasks of the graph that an ordered task is. That which has the states has its own name."""
    return [name_of_messages(task), task, name_of_rows(task)]


class BaseTask:
    """The base of all tasks: a name, a key, and the ids of messages that may come again."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _check_attributes(cls)

    name: str = ""
    key: str | Sequence[str] | None = None
    message_id: str | None = None
    horizon: Duration | None = None
    version: str | int | None = None

    @property
    def task_name(self) -> str:
        """The task's name in the store."""
        return self.name or type(self).__name__

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The key columns; none for one global state."""
        if self.key is None:
            return ()
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)


class PersistentTask(BaseTask):
    """The base of all tasks: give it a `key`, a `persistent_state`, and exactly one way to update the state.

    The four ways give the same state: `process_message`, any Python, message by message; `value`, the name of a column that
    holds each row's update; `process_batch`, a function of an Arrow batch; `process_column`, a Spark `Column`.

    If messages may come again, name the column of their ids in `message_id`, and a `horizon`. If messages of a key have the
    same id, and timestamps no further apart than the horizon, the first that is accepted counts, across restarts too. A message
    whose id is null always counts.

    Attributes:
        name: The task's name in the store, by default the name of its class.
        key: The key column, several columns, or None for one global state.
        value: The column that holds each row's update, if the task has no method for it.
        message_id: The column of the messages' ids, if messages may come again.
        horizon: How far apart in event time two messages with one id may be: a text such as "1 day", or a `timedelta`.
        reads_state: True if `process_message` calls `state.get()`.
        version: The version of the code of a task on `Changes`. Change it with what the task makes of a row: then the task is
            rebuilt from the state of its upstream tasks, as new code can't take back what older code added. A task that can't
            be built from state, such as one on `ClosedWindows`, must be named in `reset` then, and loses what it has.

    Raises:
        InvalidInputError: A subclass has an attribute whose name is nearly that of one of these; it would have no effect.

    Example:
        >>> from monoids import Count
        >>> class WordCount(PersistentTask):
        ...     key = "word"
        ...
        ...     def persistent_state(self):
        ...         return NonWindowState(Count())
        ...
        ...     def process_message(self, state, message):
        ...         state.update(message.timestamp, 1)
        >>> run_local(WordCount(), [Message(1, {"word": "to"}), Message(2, {"word": "be"}), Message(3, {"word": "to"})]).state
        {'to': 2, 'be': 1}
    """

    value: str | None = None
    reads_state: ClassVar[bool] = False

    def persistent_state(self) -> KeptState[Any]:
        """Return the state that this task keeps: a `NonWindowState` or a `WindowState`.

        Raises:
            InvalidInputError: The task does not define it.
        """
        raise InvalidInputError(f"task={self.task_name} keeps no state; define persistent_state().")

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        """Update the state of the message's key: call `state.update(message.timestamp, value)` as often as needed.

        Args:
            state: The state of the key.
            message: The row and its timestamp.
        """
        raise NotImplementedError

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        """Return an update for each row of a batch.

        Args:
            batch: Rows of the source.

        Returns:
            An array as long as the batch, of the monoid's Arrow type or one that fits it; null is no update.
        """
        raise NotImplementedError

    def process_column(self, rows: DataFrame) -> Column:
        """Return the update of each row as a Spark `Column`. The library calls it once per start.

        Args:
            rows: The source's rows as a DataFrame.

        Returns:
            A column of the monoid's type or one that fits it; null is no update.
        """
        raise NotImplementedError

    @property
    def update_way(self) -> str:
        """The way in which the task updates its state: "value", "batch", "column" or "message".

        Raises:
            InvalidInputError: The task has none of the ways, or several.
        """
        ways = [
            way
            for way, is_used in (
                ("value", self.value is not None),
                ("batch", type(self).process_batch is not PersistentTask.process_batch),
                ("column", type(self).process_column is not PersistentTask.process_column),
                ("message", type(self).process_message is not PersistentTask.process_message),
            )
            if is_used
        ]
        if len(ways) != 1:
            raise InvalidInputError(
                f"task={self.task_name} says its update in {len(ways)} ways; "
                "define exactly one of process_message, process_batch, process_column and value."
            )
        if self.reads_state and ways != ["message"]:
            raise InvalidInputError(f"task={self.task_name} reads its state; say its update in process_message.")
        return ways[0]
