"""Combine the rows of a streaming DataFrame in mapInArrow, and check the DataFrame before it starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StringType, StructField, StructType
from pyspark.taskcontext import TaskContext

from persistent_state.batch.groups import Groups
from persistent_state.batch.packets import FIRST, Basis, Blob, Report
from persistent_state.batch.plan import COLUMN, UNFIT_COLUMN, FlowPlan, Plan, needs_order
from persistent_state.batch.rows import MixedChunk
from persistent_state.drive.turn import Part
from persistent_state.engine.read.arrow_source import BATCH_BYTES, SCHEMA, blob_batches, load
from persistent_state.engine.read.idle_source import IdleReader
from persistent_state.engine.spark import failures
from persistent_state.engine.spark.versions import arrow_types, spark_types
from persistent_state.errors import InvalidInputError, StateError, TaskFailedError, places, raised
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.positions import NO_POSITION
from persistent_state.protocol import commits
from persistent_state.run.wall_clock import now_us
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource, Opener
from persistent_state.sources.formats import one_batch
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from persistent_state.task import PersistentTask

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_NOW = "_persistent_state_now"

GATHERED = 1 << 20
"""The number of rows that are lifted at a time, unless they are large."""

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


_LASTING = (
    AnalysisException,
    IllegalArgumentException,
    *(TypeError, ValueError, AttributeError, NameError, LookupError, ImportError, AssertionError, ArithmeticError),
)
"""The errors of a DataFrameSource's function that do not pass. Others may, as those of a network."""


def opened(spark: SparkSession, source: DataFrameSource, clock: int = BEGINNING) -> DataFrame:
    """Return the DataFrame of a source, to be replayed from a clock.

    Raises:
        InvalidInputError: It is not a streaming DataFrame that can be replayed, or lacks a column that the source names, or the
            function that makes it raised what would come again.
        StateError: The function that makes the DataFrame raised what may pass.
    """
    rows = _stream_of(source.stream, spark, None if clock == BEGINNING else clock)
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


def _stream_of(stream: DataFrame | Opener, spark: SparkSession, clock: int | None) -> object:
    if not callable(stream):
        return stream
    try:
        return stream(spark, clock)
    except StateError:
        raise
    except Exception as error:
        raise of_opener(error) from error


def of_opener(error: Exception) -> StateError:
    """Return the error of this package for one that the function of a DataFrameSource raised.

    It is an InvalidInputError if the function would raise the same at the next start.
    """
    # Spark wraps what Hive's metastore does not answer as an error of the query.
    lasts = isinstance(error, _LASTING) and "HiveException" not in str(error)
    kind = InvalidInputError if lasts else StateError
    if isinstance(error, PySparkException):
        # Its repr has nothing of what Spark says.
        text = f"{type(error).__name__}: {failures.without_trace(str(error)).rstrip('.')}{places(error)}"
    else:
        text = raised(error)
    return kind(f"the function of DataFrameSource raised {text}; fix it.")


def _check_streams(rows: DataFrame) -> None:
    """Let Spark check the DataFrame now. When the query starts is too late: another driver would be fenced by then."""
    jvm = rows.sparkSession._jvm
    assert jvm is not None
    mode = jvm.org.apache.spark.sql.streaming.OutputMode.Update()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode)


def _check_position(rows: DataFrame, position: str) -> None:
    types = {field.name: field.dataType for field in rows.schema}
    if not isinstance(types.get(position), IntegralType):
        kind = types[position].simpleString() if position in types else "not in it"
        raise InvalidInputError(
            f"DataFrameSource has position={position!r}, which is {kind}; name a column of integers."
        )


def _stateful(plan: JavaObject) -> str | None:
    """Return the name of an operator of the plan that keeps state between micro-batches, or None."""
    children = [plan.children().apply(i) for i in range(plan.children().size())]
    streams = [child for child in children if child.isStreaming()]
    name = str(plan.nodeName())
    if streams and (name in _STATEFUL or (len(streams) > 1 and name == "Join")):
        return name
    return next((found for child in streams if (found := _stateful(child))), None)


def columns_of(
    spark: SparkSession, task: PersistentTask, source: TimeReplayableSource | DataFrameSource
) -> tuple[pa.Schema, pa.DataType | None]:
    """Return the Arrow columns of the rows that a task sees, and the type of its `process_column`; None if it has none.

    Raises:
        InvalidInputError: Spark or Arrow has no type for a column, or `process_column` failed or returned no Column.
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
            # To check the Column, any stream with these columns will do.
            nulls = [F.lit(None).cast(f.dataType).alias(f.name) for f in spark_types(source.schema)]
            rows = spark.readStream.format("rate").load().select(*nulls)
    except PySparkException as error:
        raise InvalidInputError(
            f"task={task.task_name}: a column of its source can't go through both Spark and Arrow: {error}; cast it."
        ) from error
    schema = pa.schema([_arrow_field(task, field) for field in rows.schema])
    _check_collations(task, rows.schema)
    if not is_column:
        return schema, None
    update = rows.select(update_column(task, rows))
    return schema, arrow_types(update.schema).field(0).type


def _arrow_field(task: PersistentTask, column: StructField) -> pa.Field:
    """Return the Arrow field of a column.

    Raises:
        InvalidInputError: Arrow has no type for it, or it has a struct with two fields of one name.
    """
    where = f"task={task.task_name}: column {column.name!r} of its source"
    try:
        (field,) = arrow_types(StructType([column]))
    except PySparkException as error:
        raise InvalidInputError(
            f"{where} is {column.dataType.simpleString()}, which can't go through both Spark and Arrow: {error}; cast it, or "
            "leave it out."
        ) from error
    if twice := _field_twice(field.type):
        raise InvalidInputError(f"{where} has a struct with two fields named {twice!r}; rename one, or leave it out.")
    # Every column may be null: the rows that column_source adds are.
    return field.with_nullable(True)


def _field_twice(type: pa.DataType) -> str | None:
    """Return a name that two fields of a struct have, in a type and within it; None if all names differ."""
    if not pa.types.is_nested(type):
        return None
    fields = [type.field(i) for i in range(type.num_fields)]
    names: list[str] = [field.name for field in fields] if pa.types.is_struct(type) else []
    if len(set(names)) < len(names):
        return next(name for name in names if names.count(name) > 1)
    return next(filter(None, (_field_twice(field.type) for field in fields)), None)


def _check_collations(task: PersistentTask, columns: StructType) -> None:
    """Refuse a key, or an id of messages, of texts that Spark compares loosely: here they are their bytes.

    Raises:
        InvalidInputError: There is one.
    """
    roles: dict[str | None, str] = {task.message_id: "message id", **dict.fromkeys(task.key_columns, "key")}
    for column in columns:
        type = column.dataType
        if column.name in roles and isinstance(type, StringType) and not type.isUTF8BinaryCollation():
            raise InvalidInputError(
                f"task={task.task_name}: its {roles[column.name]} {column.name!r} has the collation {type.collation}, by which "
                "Spark takes different texts for equal, while here they are equal if their bytes are. Make equal texts the "
                f"same, for example by F.lower, and take F.collate({column.name!r}, 'UTF8_BINARY')."
            )


def are_small(flow: FlowPlan) -> bool:
    """Return whether the types of all columns and of the updates have a fixed width, so that a row has few bytes."""
    types = [*flow.first.only.schema.types, *(plan.layout.monoid.type for plan in with_column(flow))]
    return all(_has_width(type) for type in types)


def with_column(flow: FlowPlan) -> list[Plan]:
    """Return the tasks whose updates Spark computes."""
    return [plan for plan in flow.tasks if plan.update_way == "column"]


def _has_width(type: pa.DataType) -> bool:
    try:
        return bool(type.bit_width)
    except ValueError:
        return False


def update_column(task: PersistentTask, rows: DataFrame) -> Column:
    """Return the Column of the task's `process_column`.

    Raises:
        InvalidInputError: `process_column` raised, or returned something that is no value for each row.
    """
    try:
        column = task.process_column(rows)
        if isinstance(column, Column):
            # One value for each row: Spark refuses an aggregate and an explode here.
            _check_streams(rows.select("*", F.when(F.lit(True), column)))
            return column
    except PySparkException as error:
        where = places(error)
        raise InvalidInputError(
            f"process_column of task={task.task_name} can't be worked out{where}: {str(error).rstrip('.')}. Its rows have the "
            f"columns {', '.join(rows.columns)}."
        ) from error
    except Exception as error:
        raise InvalidInputError(f"process_column of task={task.task_name} raised {raised(error)}; fix it.") from error
    raise InvalidInputError(
        f"process_column of task={task.task_name} gave {column!r}, not a Spark Column; make it one."
    )


def blobs_of_dataframe(
    rows: DataFrame,
    flow: FlowPlan,
    source: DataFrameSource,
    epoch: int,
    restored: int,
    labels: Sequence[int],
    attempts: int,
    journal: tuple[str, ...],
    to_the_end: bool,
) -> DataFrame:
    """Return a flow's blobs, from rows that Spark reads, as a streaming DataFrame.

    `journal` goes with the first micro-batch. A stream that is read to its end waits for no channel, and so needs no
    micro-batch of its own when all are idle.
    """
    beside = [F.current_timestamp().alias(_NOW)]
    beside += [update_column(plan.task, rows).alias(plan.only.column) for plan in with_column(flow)]
    reach = Reach({}, {"": False} if source.channel is None else None, known=tuple(source.channels))
    place = source.channel, source.position
    files, application = flow.first.files, flow.first.application

    def basis_of(entry: Entry, part: int) -> Basis:
        first = replace(reach, journal=journal if commits.flow_by(entry, flow).progress.batch == 0 else ())
        planned = commits.plan_batch if part <= FIRST else commits.plan_part
        return replace(planned(entry, flow, first, now=0), restored=restored)

    def combined(batches: Iterable[pa.RecordBatch]) -> Iterator[Blob | Report]:
        context = TaskContext.get()
        assert context is not None, "Spark runs this in a task"
        part = context.partitionId()
        basis = basis_of(commits.wake(_log(files, application), epoch, flow.id, now_us()), part)
        full = (batch for batch in batches if batch.num_rows)
        first = next(full, None)
        chunks: Iterator[Chunk] = iter(())
        if first is not None:
            # A part without rows has no batch time: the driver learns it from Spark.
            basis = replace(basis, now=first.column(_NOW)[0].value)
            chunks = chunks_of(chain([first], full), flow, *place)
        yield from Part(part, None, basis).combine(flow, chunks)

    def step(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from blob_batches(combined(batches), labels, attempts)

    blobs = map_batches(rows.select("*", *beside), step)
    if to_the_end or flow.first.settings.idle_after is None:
        return blobs
    return blobs.union(load(rows.sparkSession, flow, IdleReader(flow, epoch, basis_of, labels)))


def map_batches(rows: DataFrame, step: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> DataFrame:
    """Return the blobs that `step` makes of rows. PySpark sees other column names, because it takes names for expressions."""
    names = rows.columns

    def renamed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return step(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*(f"c{i}" for i in range(len(names)))).mapInArrow(renamed, SCHEMA)


@lru_cache(maxsize=16)
def _log(files: Files, application: str) -> Log:
    """Return a log that a worker keeps for many micro-batches, so that it reads no entry twice."""
    return Log(files, application)


def source_rows(batch: pa.RecordBatch, flow: FlowPlan) -> pa.RecordBatch:
    """Return the columns of the source, as planned, and those beside them that are for a task."""
    fields = [*flow.first.only.schema]
    columns = [batch.column(field.name).cast(field.type) for field in fields]
    for name in batch.schema.names:
        if name.startswith((COLUMN, UNFIT_COLUMN)):
            columns.append(batch.column(name))
            fields.append(pa.field(name, columns[-1].type))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def chunks_of(
    batches: Iterable[pa.RecordBatch], flow: FlowPlan, channel: str | None, position: str | None
) -> Iterator[Chunk]:
    """Yield the rows of a DataFrame as chunks. If there are positions, each channel is a partition."""
    # Something is done for each chunk, and for each key and channel that it has, so a chunk should have many rows of each.
    for batch in _gathered(batches):
        if position is None:
            yield Chunk("", 0, source_rows(batch, flow), at=np.full(batch.num_rows, NO_POSITION))
            continue
        rows, positions = source_rows(batch, flow), _positions(batch, flow, position)
        if channel is None:
            yield Chunk("", int(positions.min()), rows, at=positions)
            continue
        channels = Groups.of_column(batch.column(channel))
        yield MixedChunk("", int(positions.min()), rows, at=positions, partitions=channels, channels=channels)


def _positions(batch: pa.RecordBatch, flow: FlowPlan, position: str) -> NDArray[np.int64]:
    ordered = next((plan for plan in flow.tasks if plan.layout.is_ordered), None)
    if ordered is not None and batch.column(position).null_count:
        raise TaskFailedError(
            f"task={ordered.named}: {needs_order(ordered)}, and a row has no position={position!r}; leave such rows out."
        )
    positions: NDArray[np.int64] = batch.column(position).cast(pa.int64()).fill_null(NO_POSITION).to_numpy()
    if (lowest := int(positions.min())) < 0:
        raise TaskFailedError(f"{flow.title}: position={lowest} of column {position!r} is negative; count from 0.")
    return positions


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches."""
    some, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        some.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GATHERED or size >= BATCH_BYTES:
            yield one_batch(some, some[0].schema)
            some, rows, size = [], 0, 0
    if some:
        yield one_batch(some, some[0].schema)
