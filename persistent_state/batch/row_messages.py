"""Rows as the messages that user code is handed. A column is converted when a message is first asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from persistent_state.task import Message


def row_messages(columns: Mapping[str, pa.Array], timestamps: Iterable[int], input: str) -> Iterator[Message]:
    """Yield the rows of these columns as messages of an input."""
    lists = _Lists(columns)
    return (_RowMessage(timestamp, lists, i, input) for i, timestamp in enumerate(timestamps))


class _Lists(dict[str, list[Any]]):
    """The values of columns, once they were asked for."""

    def __init__(self, columns: Mapping[str, pa.Array]) -> None:
        self.columns = columns

    def __missing__(self, name: str) -> list[Any]:
        column = self.columns[name]
        # NumPy is ten times as fast, and gives the same numbers.
        is_plain = (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)) and not column.null_count
        values: list[Any] = column.to_numpy().tolist() if is_plain else column.to_pylist()
        self[name] = values
        return values


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
        return f"Message({self.timestamp}, { {name: self[name] for name in self}!r})"
