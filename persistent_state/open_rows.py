"""Rows of an open store, by Arrow's streams: a task's state at a clock, and what changed between two clocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from persistent_state.formatting import full_clock, readable, values_in_python
from persistent_state.show import html
from persistent_state.store.asked import asked_keys
from persistent_state.store.net_changes import NetChanges, change_rows, schema_of_changes
from persistent_state.store.state_at import Answer, StateAt

if TYPE_CHECKING:
    import pandas

PART = 1 << 18
"""About how many stored rows are opened at a time where rows are given batch by batch."""

BYTES = 64 << 20
"""About how many bytes of them are opened at the most, and are in a batch."""

ROWS = 1 << 16
"""The most rows of a batch."""


class _Rows(ABC):
    """Rows of an open store, which Arrow's stream interface gives to DuckDB, polars and others, batch by batch."""

    _title: ClassVar[str]
    """The title of them in a notebook."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns and their types."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, within bounded memory."""

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table, in no particular order.

        Raises:
            NotThereError: A clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.
        """
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a pandas DataFrame, as `to_arrow().to_pandas()`.

        A column with a date that Python lacks, as one beyond the year 9999, is text.

        Raises:
            NotThereError: A clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.
        """
        table = self.to_arrow()
        with suppress(OverflowError, ValueError):
            return table.to_pandas()
        return pa.table([readable(column.combine_chunks()) for column in table.columns], table.column_names).to_pandas()

    @abstractmethod
    def _facts(self) -> dict[str, str]:
        """Return whose rows these are, and of when, by name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={fact}' for name, fact in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html.rows(self._title, self._facts())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Give the batches to a library that reads Arrow's streams."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)


@dataclass(repr=False)
class OpenState(_Rows):
    """A task's state at a clock. DuckDB, polars and all that reads Arrow's streams can read it as a table.

    As long as the clock is retained or kept, it is answered exactly, also while the application commits, collects what it has
    rewritten, or is taken back to a clock at or above this one. After that a question is answered exactly, or refused.

    The columns are the key columns and `value`. A `WindowState` gives a row for each key and window that is open at the clock
    and holds a message; `window_start` and `window_end`, timestamps in UTC, stand before `value`.

    Args:
        state: Where it is stored.

    Example:
        >>> state = open_store("tests/fixtures/store-v1").application("app").task("Totals").at(160)
        >>> state.clock, state.timeline, state.schema.names
        (160, 0, ['shop', 'item', 'value'])
        >>> sum(batch.num_rows for batch in state.batches()) == state.to_arrow().num_rows
        True
    """

    _title = "State"

    state: StateAt

    @property
    def clock(self) -> int:
        """The clock, in microseconds UTC."""
        return self.state.clock

    @property
    def timeline(self) -> int:
        """The application's timeline. Together with the clock it names the state, for ever unless the task is rebuilt."""
        return self.state.timeline

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types: the key columns, those of the window if there are windows, and `value`."""
        return self.state.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the state in batches, within bounded memory: a range of the keys' hash is read at a time.

        Raises:
            NotThereError: The clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.
        """
        count = _parts(self.state)
        for number in range(count):
            for table in self._answer(partial(_tables_of_part, number=number, parts=count)):
                yield from batches_of(table)

    def to_arrow(self) -> pa.Table:
        """Return the state as a table, a row per key or per window of a key, in no particular order.

        Raises:
            NotThereError: The clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.
        """
        return self._answer(StateAt.table)

    def get(self, key: Any = ()) -> Any:
        """Return the value of a key, as `to_arrow().to_pylist()` has it. Only the blocks of the runs that may hold it are read.

        A date or time that Python lacks, as one beyond the year 9999, is ISO text: `10000-01-01T00:00:00.000000Z`. A key is
        taken so, too.

        Args:
            key: The value of the key column; of several columns a tuple in their order, or a mapping by their names. Without
                key columns leave it out.

        Returns:
            The value; None if the key is not there, or has expired. For a `WindowState` a dictionary of the windows that are
            open and hold a message, the earliest first. The key of a window is its start and end in microseconds UTC.

        Raises:
            InvalidInputError: The key is not of the types of the key columns, or the clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.

        Example:
            >>> state = open_store("tests/fixtures/store-v1").application("app").task("Totals").at(160)
            >>> state.get(("Bergen", 1)) == state.get({"item": 1, "shop": "Bergen"})
            True
            >>> state.get(("Oslo", 1)) is None
            True
        """
        return self.get_many([key])[0]

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """Return the values of keys. A block that several of them need is read once.

        Args:
            keys: The keys, each as `get` takes it.

        Returns:
            What `get` returns of each key, in their order.

        Raises:
            InvalidInputError: As `get`.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.

        Example:
            >>> state = open_store("tests/fixtures/store-v1").application("app").task("Notes").at(160)
            >>> [notes and notes[0] for notes in state.get_many(["Bergen", "Oslo", None])]
            ['n1', None, 'n2']
        """
        asked, places = asked_keys(self.state, [*keys])
        table, spans = self._answer(lambda state: state.of_keys(asked))
        values = values_in_python(table["value"])
        windows = self.state.layout.kind.window_columns
        if not windows:
            return [values[spans[place][0]] if spans[place][0] < spans[place][1] else None for place in places]
        edges = [*zip(*(table[name].cast(pa.int64()).to_pylist() for name in windows), strict=True)]
        return [dict(zip(edges[slice(*spans[place])], values[slice(*spans[place])], strict=True)) for place in places]

    def _facts(self) -> dict[str, str]:
        return {**_names(self.state), "clock": full_clock(self.clock), "timeline": str(self.timeline)}

    def _answer(self, ask: Callable[[StateAt], Answer]) -> Answer:
        """Return the answer of the state, whose runs may have been rewritten since, and remember those that hold it now."""
        answer, self.state = self.state.answer(ask)
        return answer


@dataclass(repr=False)
class OpenChanges(_Rows):
    """The net changes of a task's state between two clocks, in the words of Delta's change data feed.

    The columns are those of the state, and `_change_type`, a text. A key, or a window of a key, that is there at the later
    clock only has one row, `insert`; one that is there at the earlier clock only has one row, `delete`, with the value that it
    had. One whose value is another has two rows, one behind the other: `update_preimage` with the value at the earlier clock,
    and `update_postimage` with that at the later one. A window that closed between the clocks, and a key that expired, is
    deleted.

    Args:
        changes: Where they are stored.

    Example:
        >>> totals = open_store("tests/fixtures/store-v1").application("app").task("Totals")
        >>> changes = totals.changes(160)
        >>> changes.since.clock, changes.until.clock, changes.schema.names
        (160, 220, ['shop', 'item', 'value', '_change_type'])
    """

    _title = "Changes"

    changes: NetChanges

    @property
    def since(self) -> OpenState:
        """The state at the earlier clock."""
        return OpenState(self.changes.since)

    @property
    def until(self) -> OpenState:
        """The state at the later clock."""
        return OpenState(self.changes.until)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the state and their types, and `_change_type`."""
        return schema_of_changes(self.changes.until)

    def _facts(self) -> dict[str, str]:
        since, until = self.changes.since, self.changes.until
        clocks = {"since": full_clock(since.clock), "until": full_clock(until.clock)}
        return {**_names(until), **clocks, "timeline": str(until.timeline)}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes in batches, within bounded memory: a range of the keys' hash is read at a time.

        Raises:
            NotThereError: A clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.
        """
        count = 1 + self.changes.rows // PART
        for number in range(count):
            for some in self.changes.part(number, count).read():
                yield from batches_of(change_rows(some, self.changes.until))


def _names(state: StateAt) -> dict[str, str]:
    return {"application": state.application, "task": state.task}


def _parts(state: StateAt) -> int:
    """Return the number of parts in which a state is read within bounded memory."""
    # Starts cut a file into many runs, each of which counts the rows of the whole file.
    of_files = {run.file: run for run in state.runs}.values()
    return 1 + max(sum(run.rows for run in of_files) // PART, sum(run.file.length for run in of_files) // BYTES)


def _tables_of_part(state: StateAt, number: int, parts: int) -> Iterator[pa.Table]:
    return state.part(number, parts).tables()


def batches_of(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Return the rows of a table in batches that are not too large."""
    rows = max(1, min(ROWS, BYTES * len(table) // max(1, table.nbytes)))
    return iter(table.to_batches(rows))
