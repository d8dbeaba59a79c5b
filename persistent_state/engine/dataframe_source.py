"""Rows that Spark hands over, combined in mapInArrow: any streaming DataFrame, and any source whose update is a Column."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from py4j.java_gateway import JavaObject
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import IntegralType

from persistent_state.batch.combine import combine_in_pieces
from persistent_state.batch.judge import key_columns, unfit_keys
from persistent_state.batch.messages import Basis, Blob, to_ipc
from persistent_state.batch.plan import COLUMN, Plan
from persistent_state.batch.rows import microseconds
from persistent_state.engine import failures
from persistent_state.engine.arrow_source import BATCH_BYTES, SCHEMA, ArrowReader, blob_batches, load, now_us
from persistent_state.engine.idle_source import IdleReader
from persistent_state.errors import InvalidInputError, StateError, TaskFailedError, places, raised
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.positions import NO_POSITION
from persistent_state.protocol import commits
from persistent_state.sources.base import BadRecord, Chunk, Originals, Reach, TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource, Opener
from persistent_state.sources.formats import one_batch
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from persistent_state.task import PersistentTask

_NOW, _HEADER, _PARTITION, _POSITION, _REPLAY, _UNFIT, _REASON, _ORIGINALS = (
    f"_persistent_state_{name}"
    for name in ("now", "header", "strand", "position", "replay", "unfit", "reason", "originals")
)
_BESIDE = pa.schema(
    [
        (_HEADER, pa.binary()),
        (_PARTITION, pa.string()),
        (_POSITION, pa.int64()),
        (_REPLAY, pa.int64()),
        (_UNFIT, pa.bool_()),
        (_REASON, pa.string()),
        (_ORIGINALS, pa.binary()),
    ]
)
"""What goes through Spark beside the rows of a source: what the part starts from, and each row's place.

A row of its own holds, before those of a chunk, such of its records as they came as are known to be put aside.
"""

DAY = 86_400_000_000

GATHERED = 1 << 18
"""How many rows of many channels are sorted by them at a time."""

_STATEFUL = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "Distinct",
    "CoGroup",
    "FlatMapCoGroupsInArrow",
    "FlatMapCoGroupsInPandas",
    "FlatMapGroupsInArrow",
    "FlatMapGroupsInPandas",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "GlobalLimit",
    "LocalLimit",
    "MapGroups",
    "TransformWithState",
    "TransformWithStateInPandas",
    "TransformWithStateInPySpark",
}


def opened(spark: SparkSession, source: DataFrameSource, clock: int = BEGINNING) -> DataFrame:
    """The DataFrame of a source that is to be replayed from a clock.

    Raises:
        InvalidInputError: it is not a streaming one, or keeps state of its own.
    """
    rows = _made(source.stream, spark, None if clock == BEGINNING else clock)
    if not isinstance(rows, DataFrame) or not rows.isStreaming:
        raise InvalidInputError(
            f"DataFrameSource has {rows!r}, not a streaming DataFrame; make one with spark.readStream."
        )
    if found := _stateful(rows._jdf.queryExecution().analyzed()):
        raise InvalidInputError(
            f"DataFrameSource has a stateful {found} before the task: what it makes of a row depends on rows that a restart "
            "does not bring again; do that in a task, with a monoid."
        )
    try:
        _check_streams(rows)
    except PySparkException as error:
        raise InvalidInputError(f"DataFrameSource has a DataFrame that Spark can't run as a stream: {error}") from error
    if len(set(rows.columns)) < len(rows.columns):
        raise InvalidInputError(f"DataFrameSource has columns of the same name, {rows.columns}; rename them.")
    if source.position is not None:
        _check_position(rows, source.position)
    if source.channels and source.channel is None:
        raise InvalidInputError(f"DataFrameSource has channels={list(source.channels)} and no channel column; name it.")
    if isinstance(source.channels, str) or not all(isinstance(name, str) for name in source.channels):
        raise InvalidInputError(f"DataFrameSource has channels={source.channels!r}; make it a list of texts.")
    return rows


def _made(stream: DataFrame | Opener, spark: SparkSession, clock: int | None) -> object:
    if not callable(stream):
        return stream
    try:
        return stream(spark, clock)
    except StateError:
        raise
    except Exception as error:
        raise StateError(f"the function of DataFrameSource raised {raised(error)}; mend it.") from error


def _check_streams(rows: DataFrame) -> None:
    """Ask Spark now what it would ask when the query starts, after another driver has been fenced."""
    jvm = rows.sparkSession._jvm
    assert jvm is not None
    mode = jvm.org.apache.spark.sql.streaming.OutputMode.Update()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)


def _check_position(rows: DataFrame, position: str) -> None:
    types = {field.name: field.dataType for field in rows.schema}
    if not isinstance(types.get(position), IntegralType):
        found = types[position].simpleString() if position in types else "not in it"
        raise InvalidInputError(
            f"DataFrameSource has position={position!r}, which is {found}; name a column of integers."
        )


def _stateful(plan: JavaObject) -> str | None:
    """The name of an operator that keeps state between micro-batches, if the plan has one."""
    children = [plan.children().apply(i) for i in range(plan.children().size())]
    streams = [child for child in children if child.isStreaming()]
    name = str(plan.nodeName())
    if streams and (name in _STATEFUL or (len(streams) > 1 and name == "Join")):
        return name
    return next((found for child in streams if (found := _stateful(child))), None)


def columns_of(
    spark: SparkSession, task: PersistentTask, source: TimeReplayableSource | DataFrameSource
) -> tuple[pa.Schema, pa.DataType | None]:
    """The Arrow columns of the rows that a task sees, and the type of the Column that says its update, if one does.

    Raises:
        InvalidInputError: Spark or Arrow has no type for a column that has to go through both, or the Column is none.
    """
    is_column = task.update_way == "column"
    if isinstance(source, TimeReplayableSource) and not is_column:
        return source.schema, None
    try:
        if isinstance(source, DataFrameSource):
            rows = opened(spark, source)
        else:
            if len({name.lower() for name in source.schema.names}) < len(source.schema):
                raise InvalidInputError(
                    f"task={task.task_name}: process_column can't tell columns={source.schema.names} apart, as Spark takes no "
                    "notice of case; rename them by transform=."
                )
            # Any stream of such rows will do.
            nulls = [F.lit(None).cast(f.dataType).alias(f.name) for f in from_arrow_schema(source.schema)]
            rows = spark.readStream.format("rate").load().select(*nulls)
        # A row that goes before those of the source has nulls.
        schema = pa.schema([field.with_nullable(True) for field in to_arrow_schema(rows.schema, timezone="UTC")])
    except PySparkException as error:
        raise InvalidInputError(
            f"task={task.task_name}: a column of its source can't go through both Spark and Arrow: {error}; cast it."
        ) from error
    if not is_column:
        return schema, None
    said = rows.select(_said(task, rows))
    return schema, to_arrow_schema(said.schema, timezone="UTC").field(0).type


def are_small(plan: Plan) -> bool:
    """Whether all columns of a task's rows, and its updates, have a width that their type tells: a row has few bytes."""
    types = [*plan.schema.types, *([plan.layout.monoid.type] if plan.task.update_way == "column" else [])]
    return all(_has_width(type) for type in types)


def _has_width(type: pa.DataType) -> bool:
    try:
        return bool(type.bit_width)
    except ValueError:
        return False


def _said(task: PersistentTask, rows: DataFrame) -> Column:
    try:
        column = task.process_column(rows)
        if isinstance(column, Column):
            # As one value for each row: no aggregate, no explode.
            _check_streams(rows.select("*", F.when(F.lit(True), column)))
            return column
    except PySparkException as error:
        where = places(error)
        raise InvalidInputError(
            f"process_column of task={task.task_name} can't be worked out{where}: {error}"
        ) from error
    except Exception as error:
        raise InvalidInputError(f"process_column of task={task.task_name} raised {raised(error)}; mend it.") from error
    raise InvalidInputError(
        f"process_column of task={task.task_name} gave {column!r}, not a Spark Column; make it one."
    )


def blobs_of_dataframe(
    rows: DataFrame,
    plan: Plan,
    source: DataFrameSource,
    epoch: int,
    restored: int,
    labels: Sequence[int],
    attempts: int,
    journal: tuple[str, ...] = (),
) -> DataFrame:
    """A streaming DataFrame of a task's blobs, from rows that Spark reads; `journal` goes with the first micro-batch."""
    beside = [F.current_timestamp().alias(_NOW)]
    if plan.task.update_way == "column":
        beside.append(_said(plan.task, rows).alias(COLUMN))
    reach = Reach({}, {"": False} if source.channel is None else None, known=tuple(source.channels))
    place = source.channel, source.position

    def basis_of(entry: Entry) -> Basis:
        first = replace(reach, journal=journal if entry.tasks[plan.name].batch == 0 else ())
        return replace(commits.plan_batch(entry, plan.name, first, now=0), restored=restored)

    def made(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Blob]]:
        basis = basis_of(commits.wake(_log(plan.files, plan.application), epoch, plan.name, now_us()))
        full = (batch for batch in batches if batch.num_rows)
        first = next(full, None)
        chunks: Iterator[Chunk] = iter(())
        at_time = basis
        if first is not None:
            at_time = replace(basis, now=first.column(_NOW)[0].value)
            chunks = _placed(_all(first, full), plan, *place)
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        pieces = combine_in_pieces(plan, at_time, context.partitionId(), None, chunks)
        # A part without rows is not told the time, and all must say the same: a shard knows it.
        yield from ((shard, replace(blob, basis=basis)) for shard, blob in pieces)

    def step(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from blob_batches(made(batches), labels, attempts)

    blobs = _mapped(rows.select("*", *beside), step)
    if plan.settings.idle_after is None:
        return blobs
    return blobs.union(load(rows.sparkSession, plan, IdleReader(plan, epoch, basis_of, labels)))


def _mapped(rows: DataFrame, step: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> DataFrame:
    """The blobs that `step` makes of rows. PySpark takes the names of their columns for expressions, so it sees others."""
    names = rows.columns

    def renamed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return step(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*(f"c{i}" for i in range(len(names)))).mapInArrow(renamed, SCHEMA)


@lru_cache(maxsize=16)
def _log(files: Files, application: str) -> Log:
    """A worker serves many micro-batches, and need not read again what it knows."""
    return Log(files, application)


def _all(first: pa.RecordBatch, rest: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _rows(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """The columns of the source, as planned, and the update if Spark has computed it."""
    columns = [batch.column(field.name).cast(field.type) for field in plan.schema]
    schema = plan.schema
    if plan.task.update_way == "column":
        columns.append(batch.column(COLUMN))
        schema = schema.append(pa.field(COLUMN, columns[-1].type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _placed(
    batches: Iterable[pa.RecordBatch], plan: Plan, channel: str | None, position: str | None
) -> Iterator[Chunk]:
    """Rows of a DataFrame as chunks: a partition for each channel, where there are positions."""
    if position is None:
        for batch in batches:
            yield Chunk("", 0, _rows(batch, plan), at=np.full(batch.num_rows, NO_POSITION))
        return
    # A chunk costs something whatever it holds, and of many channels each batch has few rows.
    for batch in batches if channel is None else _gathered(batches):
        rows, positions = _rows(batch, plan), _positions(batch, plan, position)
        if channel is None:
            yield Chunk("", int(positions.min()), rows, at=positions)
            continue
        codes = pc.dictionary_encode(batch.column(channel).cast(pa.string()).fill_null(""))
        index = codes.indices.to_numpy()
        order = np.argsort(index, kind="stable")
        rows, positions = rows.take(pa.array(order)), positions[order]
        begins = np.searchsorted(index[order], np.arange(len(codes.dictionary) + 1)).tolist()
        for partition, (begin, end) in zip(codes.dictionary.to_pylist(), pairwise(begins), strict=True):
            at = positions[begin:end]
            yield Chunk(partition, int(at.min()), rows.slice(begin, end - begin), at=at)


def _positions(batch: pa.RecordBatch, plan: Plan, position: str) -> NDArray[np.int64]:
    if plan.layout.is_ordered and batch.column(position).null_count:
        raise TaskFailedError(
            f"task={plan.name}: {plan.layout.monoid.name} does not commute, and a row has no position={position!r}; "
            "leave such rows out."
        )
    positions: NDArray[np.int64] = batch.column(position).cast(pa.int64()).fill_null(NO_POSITION).to_numpy()
    if (lowest := int(positions.min())) < 0:
        raise TaskFailedError(f"task={plan.name}: position={lowest} of column {position!r} is negative; count from 0.")
    return positions


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches."""
    some: list[pa.RecordBatch] = []
    for batch in batches:
        some.append(batch)
        if sum(b.num_rows for b in some) >= GATHERED or sum(b.nbytes for b in some) >= BATCH_BYTES:
            yield one_batch(some, some[0].schema)
            some = []
    if some:
        yield one_batch(some, some[0].schema)


def blobs_of_source(session: SparkSession, reader: RowReader) -> DataFrame:
    """A streaming DataFrame of a task's blobs, from a source whose updates Spark computes."""
    plan = reader.plan
    rows = load(session, plan, reader, from_arrow_schema(pa.schema([*plan.schema, *_BESIDE])))
    said = _said(plan.task, rows.select(*(_quoted(name) for name in plan.schema.names)))
    # Null for the rows that are none of the source's.
    is_row = F.coalesce(*(F.col(name) for name in (_HEADER, _REASON, _ORIGINALS))).isNull()
    update = F.when(is_row, said)

    def blobs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Blob]]:
        full = (batch for batch in batches if batch.num_rows)
        first = next(full)
        header = first.column(_HEADER)[0].as_py()
        if error := failures.error_of(header):
            raise error
        chunks = _replaced(_all(first.slice(1), full), plan)
        basis, part, parts = pickle.loads(header)
        yield from combine_in_pieces(plan, basis, part, parts, chunks)

    def step(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from blob_batches(blobs(batches), reader.labels, reader.attempts)

    return _mapped(rows.select("*", update.alias(COLUMN)), step)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _replaced(batches: Iterable[pa.RecordBatch], plan: Plan) -> Iterator[Chunk]:
    """The chunks that a reader has sent through Spark as rows, up to an error that came in their place."""
    originals: dict[str, Originals] = {}
    for batch in batches:
        for header in batch.column(_HEADER).drop_null().to_pylist():
            raise failures.error_of(header) or AssertionError("one row tells what a part starts from")
        kind = np.stack([_is_valid(batch, _REASON), _is_valid(batch, _ORIGINALS)])
        partitions = pc.dictionary_encode(batch.column(_PARTITION))
        replays = batch.column(_REPLAY).fill_null(0).to_numpy()
        place = np.stack([*kind, partitions.indices.to_numpy(), replays])
        begins = np.flatnonzero(np.any(place[:, 1:] != place[:, :-1], axis=0)) + 1
        unfit = batch.column(_UNFIT).fill_null(False).to_numpy(zero_copy_only=False)
        rows, positions = _rows(batch, plan), batch.column(_POSITION).fill_null(0).to_numpy()
        for begin, end in pairwise([0, *begins.tolist(), batch.num_rows] if batch.num_rows else []):
            partition, at = batch.column(_PARTITION)[begin].as_py(), positions[begin:end]
            is_bad, are_originals = kind[:, begin]
            if are_originals:
                known = pa.ipc.open_stream(batch.column(_ORIGINALS)[end - 1].as_buffer()).read_all()
                originals = {partition: partial(_looked_up, known)}
            elif is_bad:
                reasons = batch.column(_REASON).slice(begin, end - begin).to_pylist()
                records = tuple(BadRecord(*record) for record in zip(at.tolist(), reasons, strict=True))
                yield Chunk(
                    partition, int(at[0]), rows.slice(0, 0), records, at=at[:0], originals=originals.get(partition)
                )
            else:
                some, replay = rows.slice(begin, end - begin), int(replays[begin])
                came = originals.get(partition)
                yield Chunk(partition, int(at[0]), some, replay=replay, at=at, unfit=unfit[begin:end], originals=came)


def _is_valid(batch: pa.RecordBatch, column: str) -> NDArray[np.bool_]:
    return np.asarray(batch.column(column).is_valid())


def _looked_up(known: pa.Table, positions: NDArray[np.int64]) -> pa.RecordBatch:
    """The known records at these positions, nulls for others."""
    return one_batch(known.take(pc.index_in(positions, value_set=known["position"])).to_batches(), known.schema)


class RowReader(ArrowReader):
    """Reads a source's rows, for Spark to compute the updates: what the part starts from comes as a row before them."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        schema = pa.schema([*self.plan.schema, *_BESIDE])

        def row(header: bytes) -> pa.RecordBatch:
            return _record_batch(schema, 1, {_HEADER: pa.array([header], pa.binary())})

        if isinstance(partition.value, StateError):
            yield row(failures.as_row(partition.value, 1))
            return
        basis, part, parts, split = partition.value
        yield row(pickle.dumps((basis, part, parts)))
        try:
            for chunk in self.source.read(split) if split is not None else ():
                yield from self._sent(chunk, basis, schema)
        except StateError as error:
            yield row(failures.as_row(error, self.attempts))

    def _sent(self, chunk: Chunk, basis: Basis, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        replay = chunk.first if chunk.replay is None else chunk.replay
        count, bad = chunk.rows.num_rows, chunk.bad
        # Of what Spark has had this can't be seen any more.
        columns = [chunk.rows.column(name) for name in key_columns(self.plan)]
        unfit = unfit_keys(columns, count)
        if (originals := self._originals(chunk, basis, unfit)) is not None:
            partition = pa.array([chunk.partition], pa.string())
            yield _record_batch(schema, 1, {_PARTITION: partition, _ORIGINALS: pa.array([originals], pa.binary())})
        yield _record_batch(
            schema,
            count,
            {
                **{field.name: self._column(chunk.rows, field) for field in self.plan.schema},
                _PARTITION: pa.repeat(pa.scalar(chunk.partition, pa.string()), count),
                _POSITION: pa.array(chunk.positions),
                _REPLAY: pa.repeat(pa.scalar(replay, pa.int64()), count),
                _UNFIT: pa.array(unfit),
            },
        )
        if bad:
            yield _record_batch(
                schema,
                len(bad),
                {
                    _PARTITION: pa.repeat(pa.scalar(chunk.partition, pa.string()), len(bad)),
                    _POSITION: pa.array([record.position for record in bad], pa.int64()),
                    _REASON: pa.array([record.reason for record in bad], pa.string()),
                },
            )

    def _originals(self, chunk: Chunk, basis: Basis, unfit: NDArray[np.bool_]) -> bytes | None:
        """The records that a chunk will put aside whatever their updates are, with their positions, if it has any."""
        if chunk.originals is None:
            return None
        stamps, valid = microseconds(chunk.rows.column(self.plan.timestamp), self.plan.timestamp_unit)
        aside = chunk.positions[~valid | (stamps < basis.clock) | unfit]
        aside = np.union1d(aside, np.array([record.position for record in chunk.bad], np.int64))
        if len(aside) == 0:
            return None
        table = pa.Table.from_batches([chunk.originals(aside)])
        return to_ipc(table.append_column("position", pa.array(aside)))

    def _column(self, rows: pa.RecordBatch, field: pa.Field) -> pa.Array:
        column = rows.column(field.name)
        if field.name != self.plan.timestamp or pa.types.is_int64(field.type):
            return _carried(column, field.type)
        # As every other way reads it: a cast would cut off towards zero, and wrap.
        stamps, valid = microseconds(column, None)
        if pa.types.is_date(field.type):
            return pa.array(stamps // DAY, pa.int32(), mask=~valid).cast(field.type)
        return pa.array(stamps, mask=~valid).cast(field.type)


def _carried(column: pa.Array, type: pa.DataType) -> pa.Array:
    """A column as Spark can hold it: of times what is finer than its unit is cut off, and one beyond its range is null."""
    try:
        return column.cast(type)
    except pa.ArrowInvalid:
        carried = column.cast(type, safe=False)
        if not pa.types.is_timestamp(column.type) or column.type.unit == "ns":
            return carried
        is_same = pc.equal(carried.cast(column.type, safe=False), column)
        return pc.if_else(is_same, carried, pa.scalar(None, type))


def _record_batch(schema: pa.Schema, count: int, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    arrays = [columns[f.name] if f.name in columns else pa.nulls(count, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
