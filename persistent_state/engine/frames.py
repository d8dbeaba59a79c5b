"""What a store holds as DataFrames: executors read its files, and only the list of them goes through the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from persistent_state.batch.plan import Plan
from persistent_state.engine.session import check_store, use_this_python
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import plain, to_json
from persistent_state.outputs import ValuesAtClock
from persistent_state.sinks.base import CLOCK, VALUE, Origin
from persistent_state.store.entry import SideFile
from persistent_state.store.files.base import Files
from persistent_state.store.state_at import StateAt, read_side, with_presented
from persistent_state.windows import FINAL, TIME

LATE_ROWS = (
    "reason string, timestamp bigint, partition string, channel string, position bigint, record binary, "
    "origin string, row string"
)

NO_SINK = "leave the sink out"

ROWS_OF_A_PART = 50_000
"""How many rows of an output are worth a Spark task more."""

ROWS = 10_000
"""How many rows an Arrow batch that Spark is handed has at the most; fewer where they are large."""

BYTES = 64 << 20
"""About how many bytes such a batch has at the most."""


def of_state(spark: SparkSession, state: StateAt) -> DataFrame:
    """A task's state; each part of it is read and folded by one Spark task, and is no larger than a shard."""
    parts = max(_parallelism(spark, state.files), state.shards)
    return _of_parts(spark, state, parts, state.schema, "open it with read_state", lambda table: table)


def of_values(spark: SparkSession, state: StateAt, plan: Plan) -> DataFrame:
    """What an output shows of a task's state at a clock."""

    schema = output_schema(plan, state.since is not None and state.since.early)

    def show(table: pa.Table) -> pa.Table:
        clock = pa.array(np.full(table.num_rows, state.clock)).cast(TIME)
        return shown(plan, table).add_column(schema.get_field_index(CLOCK), CLOCK, clock)

    since = state.since.clock if state.since is not None and plan.layout.windowing is None else BEGINNING
    changed = sum(run.rows for run in state.runs if run.last >= since)
    # Few rows are read sooner by one task than by several.
    parts = min(max(_parallelism(spark, state.files), state.shards), 1 + changed // ROWS_OF_A_PART)
    return _of_parts(spark, state, parts, schema, NO_SINK, show)


def shown(plan: Plan, table: pa.Table) -> pa.Table:
    """A table whose last column is `value`, with what outputs show of its values."""
    return with_presented(table, plan.present)


def values_schema(plan: Plan) -> pa.Schema:
    """The columns of running values: the key columns, those of the window if there are windows, and `value`."""
    keys = map(pa.field, plan.task.key_columns, plan.layout.key_types)
    return pa.schema([*keys, *plan.layout.window_fields, (VALUE, plan.state.presented)])


def output_schema(plan: Plan, early: bool = False) -> pa.Schema:
    """The columns of values at a clock: those of running values, and before `value` the clock.

    With `early` values there is also `final` (bool).
    """
    schema = values_schema(plan)
    more = [pa.field(CLOCK, TIME), *([pa.field(FINAL, pa.bool_())] if early else [])]
    return pa.schema([*list(schema)[:-1], *more, schema.field(VALUE)])


def origin(plan: Plan, output: ValuesAtClock) -> Origin:
    """What a sink is told of the values that it will be given.

    Raises:
        InvalidInputError: Spark has no type for them, or a key column has the name of another, or the output asks of the task's
            state what it can't say.
    """
    if plan.layout.window_fields and output.all:
        raise InvalidInputError(
            f"task={plan.name}: all=True asks for every key at each clock, and a window is given once, when it closes; leave "
            "it out."
        )
    if output.early and not plan.layout.panes:
        raise InvalidInputError(
            f"task={plan.name}: early=True asks for windows that are open, and sessions are not known before they close; "
            "leave it out, or take RunningValues."
        )
    wanted = output_schema(plan, output.early)
    columns = [name.lower() for name in wanted.names]
    for name in plan.task.key_columns:
        # Where tables are kept, names that differ in case alone are one.
        if columns.count(name.lower()) > 1:
            raise InvalidInputError(
                f"task={plan.name}: outputs have the columns {', '.join(wanted.names)}, and {name!r} is there twice but for "
                "case; rename it in the source's transform."
            )
    _, schema = types_of(plan.name, wanted, NO_SINK)
    window = tuple(field.name for field in plan.layout.window_fields)
    return Origin(plan.application, plan.name, (*plan.task.key_columns, *window), schema, window)


def types_of(task: str, schema: pa.Schema, instead: str) -> tuple[StructType, pa.Schema]:
    """A schema as Spark knows it, and the Arrow types that Spark hands on: of times a finer unit than the store's."""
    try:
        found = from_arrow_schema(schema)
        return found, to_arrow_schema(found, timezone="UTC")
    except Exception as error:
        raise InvalidInputError(
            f"task={task}: Spark has no type for one of {', '.join(map(str, schema.types))} ({error}); {instead}."
        ) from error


def _of_parts(
    spark: SparkSession,
    state: StateAt,
    parts: int,
    schema: pa.Schema,
    instead: str,
    show: Callable[[pa.Table], pa.Table],
) -> DataFrame:
    types, handed_on = types_of(state.task, schema, instead)

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                table = show(state.part(number, parts).read()).cast(handed_on)
                yield from table.to_batches(max(1, min(ROWS, BYTES * len(table) // max(1, table.nbytes))))

    return spark.range(0, parts, 1, parts).mapInArrow(read, types)


def of_late_rows(spark: SparkSession, files: Files, found: Sequence[SideFile]) -> DataFrame:
    """Late and bad rows; `origin` and `row` are JSON."""
    parts = max(1, min(len(found), _parallelism(spark, files)))

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for side in found[number::parts]:
                    yield from _late_rows(files, side).to_batches(ROWS)

    return spark.range(0, parts, 1, parts).mapInArrow(read, LATE_ROWS)


def _late_rows(files: Files, side: SideFile) -> pa.Table:
    table = read_side(files, side)
    if "origin" not in table.column_names:
        table = table.add_column(table.num_columns - 1, "origin", pa.nulls(len(table)))
    for name in ("origin", "row"):
        shown = [to_json(plain(value)) if value.is_valid else None for value in table[name]]
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(shown, pa.string()))
    return table.set_column(table.schema.get_field_index("record"), "record", table["record"].cast(pa.binary()))


def _parallelism(spark: SparkSession, files: Files) -> int:
    check_store(spark, files)
    use_this_python(spark)
    return spark.sparkContext.defaultParallelism
