"""What users subclass: a task says which state it keeps and how a message updates it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import Duration
from persistent_state.state import KeptState, PersistentState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


class Message(Mapping[str, Any]):
    """A row with its event timestamp (microseconds UTC); its columns are read by name."""

    __slots__ = ("_row", "timestamp")

    timestamp: int

    def __init__(self, timestamp: int | datetime, row: Mapping[str, Any]) -> None:
        # Where a task gets it, it is a number: `run_local` makes one of a datetime.
        self.timestamp = timestamp  # type: ignore[assignment]
        self._row = row

    def __getitem__(self, column: str) -> Any:
        return self._row[column]

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def __repr__(self) -> str:
        return f"Message({self.timestamp}, {dict(self._row)!r})"


class PersistentTask:
    """Base of all tasks. Give it a `key`, a `persistent_state`, and say the update in exactly one of four ways.

    `key` is a column, several, or None for one global state. The update is `process_message`, any Python, message by
    message; or `value`, the name of a column that holds each row's update; or `process_batch`, a function of an Arrow
    batch; or `process_column`, a Spark `Column`. All give the same state. `name` is what the store knows the task by
    (default: the class's name). A task that sets `reads_state` may call `state.get()` in `process_message`.

    A task whose messages may come again names the column of their ids, `message_id`, and a `horizon` such as "1 day": of the
    messages of a key with the same id and timestamps no further apart, the first that is accepted counts, across restarts too.
    One whose id is null always counts.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _check_attributes(cls)

    name: str = ""
    key: str | Sequence[str] | None = None
    value: str | None = None
    message_id: str | None = None
    horizon: Duration | None = None
    reads_state: ClassVar[bool] = False

    def persistent_state(self) -> KeptState[Any]:
        """The state this task keeps."""
        raise InvalidInputError(f"task={self.task_name} keeps no state; define persistent_state().")

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        """Update the state of the message's key: `state.update(message.timestamp, value)`, as often as needed."""
        raise NotImplementedError

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        """One update per row of the batch, of the monoid's Arrow type or one that fits it; null is no update."""
        raise NotImplementedError

    def process_column(self, rows: DataFrame) -> Column:
        """The update of each row as a Spark `Column` of the source's rows; null is no update. Called once per start."""
        raise NotImplementedError

    @property
    def task_name(self) -> str:
        return self.name or type(self).__name__

    @property
    def key_columns(self) -> tuple[str, ...]:
        if self.key is None:
            return ()
        return (self.key,) if isinstance(self.key, str) else tuple(self.key)

    @property
    def update_way(self) -> str:
        """Which of the four ways says the update: "value", "batch", "column" or "message".

        Raises:
            InvalidInputError: none or several do.
        """
        ways = [
            way
            for way, said in (
                ("value", self.value is not None),
                ("batch", type(self).process_batch is not PersistentTask.process_batch),
                ("column", type(self).process_column is not PersistentTask.process_column),
                ("message", type(self).process_message is not PersistentTask.process_message),
            )
            if said
        ]
        if len(ways) != 1:
            raise InvalidInputError(
                f"task={self.task_name} says its update in {len(ways)} ways; "
                "define exactly one of process_message, process_batch, process_column and value."
            )
        if self.reads_state and ways != ["message"]:
            raise InvalidInputError(f"task={self.task_name} reads its state; say its update in process_message.")
        return ways[0]


_KNOWN = sorted(name for name in vars(PersistentTask) if not name.startswith("_"))


def _check_attributes(task: type[PersistentTask]) -> None:
    """Refuse attributes whose names are almost those that a task has: nobody would read them.

    Raises:
        InvalidInputError: There is such an attribute.
    """
    for name in vars(task):
        meant = get_close_matches(name, _KNOWN, 1, 0.8)
        if meant and name not in _KNOWN:
            raise InvalidInputError(
                f"task={task.__qualname__} has {name}, which means nothing here; write {meant[0]}, or give it another name."
            )
