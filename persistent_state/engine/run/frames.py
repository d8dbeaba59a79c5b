"""Return what a store holds as DataFrames or as values. Executors read the files; only their names go through the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from persistent_state.batch.plan import Plan
from persistent_state.drive.output_values import ROWS, ROWS_OF_A_PART, with_clock
from persistent_state.edges.output_rows import output_rows
from persistent_state.engine.run.values import SparkValues
from persistent_state.engine.spark import connect
from persistent_state.engine.spark.schemas import types_of
from persistent_state.engine.spark.session import check_store, use_this_python
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.outputs import ValuesAtClock
from persistent_state.partials import fold
from persistent_state.sinks.given_types import given_types
from persistent_state.store.files.base import Files
from persistent_state.store.state_at import StateAt

NO_SINK = "leave the sink out"

BYTES = 64 << 20
"""About the largest number of bytes in a batch that an executor reads."""


def of_values(spark: SparkSession, state: StateAt, plan: Plan) -> SparkValues:
    """Return the values that an output shows of a task's state at a clock, which Spark's workers read."""
    schema = output_rows(plan).schema_at_clock(state.since is not None and state.since.early)

    since = state.since.clock if state.since is not None and not plan.layout.kind.expires else BEGINNING
    changed = sum(run.rows for run in state.runs if run.last >= since)
    # One task reads few rows faster than several do.
    parts = min(max(_parallelism(spark, state.files), state.shards), 1 + changed // ROWS_OF_A_PART)
    frame = _of_parts(spark, state, parts, changed, schema, lambda part: with_clock(part, plan, schema))
    return SparkValues(frame, given_types(schema))


def check_types(plan: Plan, output: ValuesAtClock) -> None:
    """Refuse an output at clocks if Spark has no type for what it gives.

    Raises:
        InvalidInputError: Spark has no type for a key column or for the value.
    """
    types_of(plan.name, output_rows(plan).schema_at_clock(output.early), NO_SINK)


def _of_parts(
    spark: SparkSession,
    state: StateAt,
    parts: int,
    rows: int,
    schema: pa.Schema,
    show: Callable[[StateAt], pa.Table],
) -> DataFrame:
    """Return the values of a state with about so many rows, read in so many parts. Memory does not grow with a part."""
    types, wanted = types_of(state.task, schema, NO_SINK)
    pieces = 1 + rows // (parts * fold.SLICE)

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for piece in (number * pieces + i for number in batch.column(0).to_pylist() for i in range(pieces)):
                table = show(state.part(piece, parts * pieces)).cast(wanted)
                yield from table.to_batches(max(1, min(ROWS, BYTES * len(table) // max(1, table.nbytes))))

    return spark.range(0, parts, 1, parts).mapInArrow(read, types)


def _parallelism(spark: SparkSession, files: Files) -> int:
    check_store(spark, files)
    use_this_python(spark)
    return connect.parallelism(spark)
