"""The data source `persistent-state`: a store's states, changes, late rows and lists for Spark, in batch and as a stream.

Spark makes the source in one process, plans its reader in another one and reads the partitions in workers. What goes between
them are options, in which the clocks are settled, and partitions. So nothing here needs a session, and Spark Connect is no
case of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from persistent_state.engine.data_source import store_listing
from persistent_state.engine.data_source.named_state import NamedState
from persistent_state.engine.data_source.source_options import CHANGES, LATE, LATEST, STATE, SourceOptions, read_options
from persistent_state.engine.data_source.store_rows import (
    LATE_ROWS,
    StorePart,
    TablePart,
    changes_schema,
    filters_of,
    keys_of_json,
    parts_of_changes,
    parts_of_keys,
    parts_of_late_rows,
    parts_of_snapshot,
    parts_of_state,
)
from persistent_state.engine.data_source.store_stream import MOST_CLOCKS, Offset, StoreStream
from persistent_state.engine.spark.schemas import types_of
from persistent_state.engine.spark.versions import ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow, arrow_types
from persistent_state.errors import InvalidInputError
from persistent_state.open_state import OpenState, OpenTask, open_store
from persistent_state.store.files import Files, MemoryFiles
from persistent_state.store.state_at import find_sides

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter as SparkFilter

NAME = "persistent-state"

READ_STATE = "open it with read_state"


class StoreSource(DataSource):
    """The data source. Which clock is meant is settled when a DataFrame or a view is made."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._asked = read_options(options)
        self._schema: StructType | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark finds the source."""
        return NAME

    def schema(self) -> StructType:
        """Return the columns, and settle the clocks."""
        if self._schema is None:
            self._asked, columns = settled(self._asked)
            self._schema = types_of(self._asked.task, columns, READ_STATE)[0]
        return self._schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads a batch."""
        if schema != self.schema():
            raise InvalidInputError(f"the schema is not {self.schema().simpleString()}; leave .schema(...) out.")
        if not self._asked.push_filters:
            return StoreReader(self._asked, arrow_types(schema))
        if not hasattr(DataSourceReader, "pushFilters"):
            raise InvalidInputError("pushFilters=true needs PySpark 4.1 or newer; name keys by key=... instead.")
        return FilteredReader(self._asked, arrow_types(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what plans and reads a stream."""
        if self._asked.what != CHANGES:
            raise InvalidInputError(
                "changes=... is not true, and a stream is one of changes; add .option('changes', 'true')."
            )
        if self._asked.is_ended:
            raise InvalidInputError("endClock=... says nothing of a stream; leave it out, or read a batch.")
        return StoreStreamReader(self._asked, arrow_types(schema))


class StoreReader(DataSourceReader):
    """The planner of a batch. In a worker it has no options, and reads partitions."""

    def __init__(self, asked: SourceOptions, types: pa.Schema) -> None:
        self._asked = asked
        self._types = types
        self._filters: Sequence[tuple[str, Sequence[Any]]] = ()

    def __getstate__(self) -> dict[str, Any]:
        return {"_types": self._types}

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions."""
        return [InputPartition(part) for part in planned(self._asked, self._filters)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        return _read(partition, self._types)


class FilteredReader(StoreReader):
    """The planner of a batch of the keys that filters leave. Spark refuses it where its push-down is switched off.

    Spark up to 4.3 keeps the partitions of the last filter for all that is made of what was loaded once. So only who asks for
    it gets it.
    """

    def pushFilters(self, filters: list[SparkFilter]) -> list[SparkFilter]:
        """Remember filters of columns, and return all of them, since Spark is to look at each row again."""
        self._filters = [wanted for each in filters if (wanted := _wanted(each)) is not None]
        return filters


class StoreStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The planner of the micro-batches of a stream. In a worker it has no options, and reads partitions."""

    def __init__(self, asked: SourceOptions, types: pa.Schema) -> None:
        self._asked = asked
        self._types = types
        self._stream: StoreStream | None = None
        self._last: Offset | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_types": self._types}

    def initialOffset(self) -> Offset:
        """Return where a new stream begins."""
        return self._opened().first()

    def prepareForTriggerAvailableNow(self) -> None:
        """Go up to the clock that is the newest now, and no further."""
        self._last = self._opened().newest()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return how many clocks a micro-batch has at the most. Spark knows no limit of clocks: each counts as a file."""
        return ReadMaxFiles(MOST_CLOCKS)

    # Before PySpark 4.2 it is called without arguments. Then it is unknown where the micro-batch begins, so it has all clocks.
    def latestOffset(self, start: Mapping[str, Any] | None = None, limit: object = None) -> Offset:
        """Return the newest clock, or the one up to which the limit lets a micro-batch read."""
        stream = self._opened()
        newest = stream.newest() if self._last is None else self._last
        if start is None or not isinstance(limit, ReadMaxFiles):
            return newest
        if self._last is not None:
            newest = stream.reachable(start, newest)
        return stream.within(start, newest, limit.max_files)

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a micro-batch."""
        return [InputPartition(part) for part in self._opened().parts(start, end)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        return _read(partition, self._types)

    def _opened(self) -> StoreStream:
        if self._stream is None:

            def check(state: OpenState) -> None:
                _check_types(state, self._types)

            self._stream = StoreStream(_task(self._asked), self._asked.start, check)
        return self._stream


def settled(asked: SourceOptions) -> tuple[SourceOptions, pa.Schema]:
    """Return the options with the clocks that are meant now, and the columns.

    Raises:
        InvalidInputError: What is asked for is not there.
    """
    files = _files(asked)
    if asked.what == LATE:
        find_sides(files, asked.application, asked.task)
        return asked, LATE_ROWS
    if asked.what in store_listing.SCHEMAS:
        return asked, store_listing.SCHEMAS[asked.what]
    state = _task(asked).at(asked.clock)
    found = replace(asked, named=NamedState.of(state))
    if asked.what == CHANGES:
        # A stream that goes on does not need the clock at which it began.
        return found, changes_schema(state.state)
    if asked.keys is not None:
        parts_of_keys(state.state, keys_of_json(state.state, asked.keys))
    return found, state.schema


def planned(asked: SourceOptions, filters: Sequence[tuple[str, Sequence[Any]]] = ()) -> list[StorePart]:
    """Return the partitions of a batch.

    Args:
        asked: Options in which the clocks are settled.
        filters: Names of columns, each with the values of which a row's value must be one.

    Raises:
        InvalidInputError: A clock is no longer retained.
    """
    files = _files(asked)
    if asked.what == LATE:
        sides = find_sides(files, asked.application, asked.task)
        return parts_of_late_rows(files, asked.application, asked.task, sides)
    if asked.what == CHANGES:
        return _changed(asked)
    if asked.what != STATE:
        return [TablePart(store_listing.listed(files, asked.what, asked.application))]
    state = _settled_state(asked, _task(asked)).state
    if asked.keys is not None:
        return parts_of_keys(state, keys_of_json(state, asked.keys))
    return parts_of_state(state, filters_of(state, filters))


def _changed(asked: SourceOptions) -> list[StorePart]:
    task = _task(asked)
    until = _settled_state(asked, task)
    if asked.start is None:
        return parts_of_snapshot(until.state)
    since = until if asked.start == LATEST else task.at(asked.start)
    return parts_of_changes(task.changes(since, until).changes)


def _settled_state(asked: SourceOptions, task: OpenTask) -> OpenState:
    assert asked.named is not None, "the clock is settled"
    return asked.named.open(task)


def _read(partition: InputPartition | None, types: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in Spark's types. Without partitions Spark makes one of None, before PySpark 4.2 None."""
    part: StorePart | None = None if partition is None else partition.value
    for batch in () if part is None else part.batches():
        yield from pa.Table.from_batches([batch]).cast(types).to_batches()


def _check_types(state: OpenState, types: pa.Schema) -> None:
    """Refuse a state whose types are no longer those of a stream.

    Raises:
        InvalidInputError: They are not.
    """
    if types_of(state.state.task, changes_schema(state.state), READ_STATE)[1] != types:
        raise InvalidInputError(
            f"the state of task={state.state.task} has other types than the stream; load the stream again, with a new "
            "checkpoint, and leave .schema(...) out."
        )


def _files(asked: SourceOptions) -> Files:
    files = open_store(asked.store, storage_options=asked.storage).files
    if isinstance(files, MemoryFiles):
        raise InvalidInputError("store=memory:// can't be reached by Spark's workers; use a folder.")
    return files


def _task(asked: SourceOptions) -> OpenTask:
    found = open_store(asked.store, storage_options=asked.storage).application(asked.application)
    return found.task(asked.task, monoids=asked.found_monoids(), presented=asked.presented)


def _wanted(filter: SparkFilter) -> tuple[str, Sequence[Any]] | None:
    """Return the column of a filter, and the values of which one must be there; None if it says nothing of the kind."""
    kind = type(filter).__name__
    path: tuple[str, ...] = getattr(filter, "attribute", ())
    if len(path) != 1:
        return None
    name = path[0]
    if kind == "IsNull":
        return name, [None]
    if kind in ("EqualTo", "EqualNullSafe"):
        return name, [filter.value]  # type: ignore[attr-defined]
    if kind == "In":
        return name, [*filter.value]  # type: ignore[attr-defined]
    return None
