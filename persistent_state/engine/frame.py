"""What a store holds as DataFrames: executors read its files, and only the list of them goes through the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from persistent_state.engine.sessions import check_store, use_this_python
from persistent_state.errors import InvalidInput
from persistent_state.plain import plain, to_json
from persistent_state.reader import StateAt, read_side
from persistent_state.store.base import Files
from persistent_state.store.entry import SideFile

LATE_ROWS = "reason string, timestamp bigint, strand string, channel string, position bigint, record string, row string"

ROWS = 10_000
"""How many rows an Arrow batch that Spark is handed has at the most."""


def of_state(spark: SparkSession, state: StateAt) -> DataFrame:
    """A task's state; each part of it is read and folded by one Spark task, and is no larger than a shard."""
    try:
        schema = from_arrow_schema(state.schema)
        # Spark's own Arrow types: of times a finer unit than the store's.
        shown = to_arrow_schema(schema, timezone="UTC")
    except Exception as error:
        raise InvalidInput(
            f"task={state.task}: Spark has no type for one of {', '.join(map(str, state.schema.types))} ({error}); "
            "open it with read_state."
        ) from error
    parts = max(_parallelism(spark, state.files), state.shards)

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from state.part(number, parts).read().cast(shown).to_batches(ROWS)

    return spark.range(0, parts, 1, parts).mapInArrow(read, schema)


def of_late_rows(spark: SparkSession, files: Files, found: Sequence[SideFile]) -> DataFrame:
    """Late and bad rows; `row` is JSON."""
    parts = max(1, min(len(found), _parallelism(spark, files)))

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for side in found[number::parts]:
                    yield from _late_rows(files, side).to_batches(ROWS)

    return spark.range(0, parts, 1, parts).mapInArrow(read, LATE_ROWS)


def _late_rows(files: Files, side: SideFile) -> pa.Table:
    table = read_side(files, side)
    rows = pa.array([to_json(plain(row)) for row in table["row"]], pa.string())
    return table.set_column(table.schema.get_field_index("row"), "row", rows)


def _parallelism(spark: SparkSession, files: Files) -> int:
    check_store(spark, files)
    use_this_python(spark)
    return spark.sparkContext.defaultParallelism
