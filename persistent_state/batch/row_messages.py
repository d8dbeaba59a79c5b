"""Rows as the messages that user code is handed. A column is converted when a message is first asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from typing import Any

import pyarrow as pa

from persistent_state.errors import StateError
from persistent_state.store.late_rows import UNREADABLE
from persistent_state.task import Message


def row_messages(columns: Mapping[str, pa.Array], timestamps: Iterable[int], input: str) -> Iterator[Message]:
    """Return an iterator of the rows of these columns as messages of an input."""
    return map(_RowMessage, timestamps, repeat(_Lists(columns)), count(), repeat(input))


def as_they_came(messages: Sequence[Message]) -> list[Message]:
    """Return these messages with values that no user code has changed in their place."""
    fresh: dict[int, _OneByOne] = {}
    return [message.fresh(fresh) if isinstance(message, _RowMessage) else message for message in messages]


class UnreadableError(StateError):
    """Python has no object for a value of a message. User code that lets the error pass makes the message a bad row."""


def unreadable(error: BaseException) -> UnreadableError | None:
    """Return the error of a value that Python has no object for, if an error is one or was raised at one."""
    cause: BaseException | None = error
    while not (cause is None or isinstance(cause, UnreadableError)):
        cause = cause.__cause__ or cause.__context__
    return cause


class _Lists(dict[str, "list[Any] | _Values"]):
    """The values of columns, once they were asked for."""

    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        self.columns = columns

    def column(self, name: str) -> pa.Array:
        """Return a column.

        Raises:
            KeyError: There is no column of this name. The error lists those that there are.
        """
        if name not in self.columns:
            raise KeyError(f"the message has no column {name!r}, but {', '.join(self.columns) or 'none'}")
        return self.columns[name]

    def __missing__(self, name: str) -> list[Any] | _Values:
        column = self.column(name)
        # NumPy is ten times as fast, and gives the same numbers.
        is_plain = (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) and not column.null_count
        values: list[Any] | _Values
        try:
            values = column.to_numpy().tolist() if is_plain else column.to_pylist()
        except Exception:
            # Python has no object for one of them, such as a time beyond the year 9999. Only its own message is to fail.
            values = _Values(name, column)
        self[name] = values
        return values


class _OneByOne(_Lists):
    """The values of columns, of which few are asked for."""

    def __missing__(self, name: str) -> _Values:
        self[name] = values = _Values(name, self.column(name))
        return values


class _Values(dict[int, Any]):
    """The values of a column by row, once they were asked for."""

    def __init__(self, name: str, column: pa.Array) -> None:
        self._name, self._column = name, column

    def __missing__(self, row: int) -> Any:
        try:
            self[row] = value = self._column[row].as_py()
        except (OverflowError, ValueError) as error:
            raise UnreadableError(f"{UNREADABLE}: column {self._name}") from error
        return value


class _RowMessage(Message):
    __slots__ = ("_i", "_lists")

    def __init__(self, timestamp: int, lists: _Lists, i: int, input: str) -> None:
        self.timestamp, self.input = timestamp, input
        self._lists = lists
        self._i = i

    def __getitem__(self, column: str) -> Any:
        return self._lists[column][self._i]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lists.columns)

    def __len__(self) -> int:
        return len(self._lists.columns)

    def __repr__(self) -> str:
        row = ", ".join(f"{name!r}: {self._shown(name)}" for name in self)
        return f"Message({self.timestamp}, {{{row}}})"

    def _shown(self, column: str) -> str:
        try:
            return repr(self[column])
        except Exception:
            return f"<{self._lists.columns[column].type}>"

    def fresh(self, known: dict[int, _OneByOne]) -> _RowMessage:
        """Return the message with fresh values. `known` has what was read again for other messages of the same rows."""
        columns = self._lists.columns
        lists = known.setdefault(id(columns), _OneByOne(columns))
        return _RowMessage(self.timestamp, lists, self._i, self.input)
