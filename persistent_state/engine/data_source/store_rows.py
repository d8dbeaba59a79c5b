"""Say which rows of a store each partition of the data source gives, and read them. Nothing here needs Spark.

A partition is a range of the keys' hash, or some keys, or some files. It names the files that it reads, so that a worker asks
the log nothing, unless a file was rewritten meanwhile.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from persistent_state.errors import InvalidInputError
from persistent_state.formatting import plain, to_json
from persistent_state.open_rows import batches_of
from persistent_state.store.asked import asked_keys, key_column, key_value
from persistent_state.store.files.base import Files
from persistent_state.store.named_files import Run, SideFile, length_of, rows_of
from persistent_state.store.net_changes import CHANGE_TYPES, NetChanges, change_rows, schema_of_changes
from persistent_state.store.state_at import StateAt, read_listed_side
from persistent_state.windows import TIME

CLOCK = "_clock"
"""The column of changes that says at which clock a change is seen."""

ROWS_OF_A_PART = 1 << 16
"""The number of stored rows for which one more partition pays."""

BYTES_OF_A_PART = 16 << 20
"""The number of their bytes for which one does."""

KEYS_OF_A_PART = 1000
"""The most keys that one partition looks up."""

MOST_KEYS = 10_000
"""The most keys that filters are turned into. With more, the whole state is read."""


LATE_ROWS = pa.schema(
    [
        ("reason", pa.string()),
        ("timestamp", pa.int64()),
        ("partition", pa.string()),
        ("channel", pa.string()),
        ("position", pa.int64()),
        ("record", pa.binary()),
        ("origin", pa.string()),
        ("row", pa.string()),
    ]
)
"""The columns of late and bad rows. `origin` and `row` are JSON, since they may differ from version to version of a source."""


class StorePart(ABC):
    """The rows of one partition. It goes to the worker that reads it."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, within bounded memory.

        Raises:
            InvalidInputError: A clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.
        """


@dataclass(frozen=True)
class Filter:
    """The values that the key column at a place may have, in their stored form. Other rows need not be given."""

    place: int
    values: pa.Array


@dataclass(frozen=True)
class StatePart(StorePart):
    """A range of a state. A row that a filter does not let through is left out."""

    state: StateAt
    filters: Sequence[Filter] = ()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        tables, _ = self.state.answer(StateAt.tables)
        for table in tables:
            for filter in self.filters:
                table = table.filter(pc.is_in(table.column(filter.place), value_set=filter.values))
            yield from batches_of(table)


@dataclass(frozen=True)
class KeysPart(StorePart):
    """The rows of some keys of a state. `asked` has them as `StateAt.of_keys` takes them."""

    state: StateAt
    asked: pa.Table

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        (table, spans), _ = self.state.answer(lambda state: state.of_keys(self.asked))
        rows = [np.arange(low, high) for low, high in spans]
        yield from batches_of(table.take(pa.array(np.concatenate([np.arange(0), *rows]))))


@dataclass(frozen=True)
class ChangesPart(StorePart):
    """A range of the net changes between two clocks."""

    changes: NetChanges

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows. The two of an update stand one behind the other."""
        until = self.changes.until
        for some in self.changes.read():
            yield from map(_with_clock(until), batches_of(change_rows(some, until)))


@dataclass(frozen=True)
class SnapshotPart(StorePart):
    """A range of a state as changes since there was nothing."""

    state: StateAt

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        schema = schema_of_changes(self.state)
        for batch in StatePart(self.state).batches():
            kinds = pa.array([CHANGE_TYPES[0]] * len(batch), pa.string())
            yield _with_clock(self.state)(pa.RecordBatch.from_arrays([*batch.columns, kinds], schema=schema))


@dataclass(frozen=True)
class LatePart(StorePart):
    """Some files of late and bad rows."""

    files: Files
    application: str
    task: str
    sides: Sequence[SideFile]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        for side in self.sides:
            yield from batches_of(late_rows(self.files, self.application, self.task, side))


@dataclass(frozen=True)
class TablePart(StorePart):
    """Rows that are known already."""

    table: pa.Table

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        yield from batches_of(self.table)


def changes_schema(state: StateAt) -> pa.Schema:
    """Return the columns of changes: those of the state, `_change_type` and `_clock`."""
    return schema_of_changes(state).append(pa.field(CLOCK, TIME))


def parts_of_state(state: StateAt, filters: Sequence[Filter] = ()) -> list[StorePart]:
    """Return the partitions of a state. If the filters leave only some keys, only these are looked up."""
    if (
        filters
        and len(filters) == len(state.key_columns)
        and prod(len(filter.values) for filter in filters) <= MOST_KEYS
    ):
        values = (filter.values.to_pylist() for filter in filters)
        return parts_of_keys(state, [dict(zip(state.key_columns, key, strict=True)) for key in product(*values)])
    return [StatePart(part, filters) for part in _ranges(state)]


def parts_of_keys(state: StateAt, keys: Sequence[Mapping[str, Any]]) -> list[StorePart]:
    """Return the partitions that look these keys up, none twice. Each names the runs that may hold its keys.

    Raises:
        InvalidInputError: A key is not of the types of the key columns.
    """
    asked, _ = asked_keys(state, keys)
    some = [asked.slice(first, KEYS_OF_A_PART) for first in range(0, len(asked), KEYS_OF_A_PART)]
    return [KeysPart(_within(state, part), part.combine_chunks()) for part in some]


def parts_of_changes(changes: NetChanges) -> list[StorePart]:
    """Return the partitions of what changed between two clocks; none if nothing is stored that may have."""
    if not changes.rows:
        return []
    runs = changes.until.runs
    count = _count(changes.rows, changes.rows * _bytes(runs) // max(1, rows_of(runs)), changes.until)
    return [ChangesPart(changes.part(number, count)) for number in range(count)]


def parts_of_snapshot(state: StateAt) -> list[StorePart]:
    """Return the partitions of a state as changes since there was nothing."""
    return [SnapshotPart(part) for part in _ranges(state)]


def parts_of_late_rows(files: Files, application: str, task: str, sides: Sequence[SideFile]) -> list[StorePart]:
    """Return the partitions of the late and bad rows of a task: whole files, some together where they are small."""
    groups: list[list[SideFile]] = []
    size = BYTES_OF_A_PART
    for side in sides:
        if size >= BYTES_OF_A_PART:
            groups.append([])
            size = 0
        groups[-1].append(side)
        size += side.file.length
    return [LatePart(files, application, task, group) for group in groups]


def late_rows(files: Files, application: str, task: str, side: SideFile) -> pa.Table:
    """Return the late and bad rows of one file as Spark reads them.

    Raises:
        NotThereError: Its rows are in another file now.
        DamagedError: It is not what was written, or is missing.
    """
    table = read_listed_side(files, application, task, side)
    if "origin" not in table.column_names:
        table = table.add_column(table.num_columns - 1, "origin", pa.nulls(len(table)))
    for name in ("origin", "row"):
        shown = [to_json(plain(value)) if value.is_valid else None for value in table[name]]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(shown, pa.string()))
    return table.cast(LATE_ROWS)


def filters_of(state: StateAt, wanted: Iterable[tuple[str, Sequence[Any]]]) -> list[Filter]:
    """Return what key columns must be as filters, in their order: of a column one, the one with the fewest values.

    Args:
        state: The state that is read.
        wanted: Names of columns, and the values of which a row's value must be one.
    """
    found: dict[int, pa.Array] = {}
    for name, values in wanted:
        if name not in state.key_columns:
            continue
        place = state.key_columns.index(name)
        try:
            column = key_column(state, place, values)
        except InvalidInputError:
            # Spark compares values of two types in a way of its own.
            continue
        if place not in found or len(column) < len(found[place]):
            found[place] = column
    return [Filter(place, column) for place, column in sorted(found.items(), key=itemgetter(0))]


def keys_of_json(state: StateAt, keys: Collection[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return keys that were JSON objects with values of the types of the key columns, as far as JSON has no such values.

    Raises:
        InvalidInputError: A value is not of the type of its column.
    """
    types = dict(zip(state.key_columns, state.layout.key_types, strict=True))
    return [
        {
            name: key_value(state.task, name, value, types[name]) if name in types else value
            for name, value in key.items()
        }
        for key in keys
    ]


def _with_clock(state: StateAt) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that gives a batch the column of the clock."""
    schema = changes_schema(state)

    def with_clock(batch: pa.RecordBatch) -> pa.RecordBatch:
        clock = pa.array(np.full(len(batch), state.clock)).cast(TIME)
        return pa.RecordBatch.from_arrays([*batch.columns, clock], schema=schema)

    return with_clock


def _ranges(state: StateAt) -> list[StateAt]:
    count = _count(rows_of(state.runs), _bytes(state.runs), state)
    return [state.part(number, count) for number in range(count)]


def _count(rows: int, size: int, state: StateAt) -> int:
    """Return the number of partitions for `rows` rows and `size` bytes. Where there are many, none reads two shards."""
    count = 1 + max(rows // ROWS_OF_A_PART, size // BYTES_OF_A_PART)
    return count if count <= state.shards else -(-count // state.shards) * state.shards


def _bytes(runs: Iterable[Run]) -> int:
    return length_of({run.file for run in runs})


def _within(state: StateAt, asked: pa.Table) -> StateAt:
    """Return the part of a state that may hold some keys, sorted by their hashes."""
    hashes = asked["hash"]
    return replace(state, low=hashes[0].as_py(), high=hashes[-1].as_py() + 1).of(state.runs)
