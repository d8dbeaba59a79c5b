"""The columns of a task, as Spark has them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import StructType

from persistent_state.engine.spark.versions import arrow_types, spark_types
from persistent_state.errors import InvalidInputError


def types_of(task: str, schema: pa.Schema, instead: str) -> tuple[StructType, pa.Schema]:
    """Return a schema in Spark's types, and in the Arrow types in which Spark takes it: its times have a finer unit."""
    try:
        types = spark_types(schema)
        return types, arrow_types(types)
    except Exception as error:
        raise InvalidInputError(
            f"task={task}: Spark has no type for one of {', '.join(map(str, schema.types))} ({error}); {instead}."
        ) from error
