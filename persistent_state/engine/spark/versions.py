"""The differences between the versions of PySpark that the library runs on. All other code is the same for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import getsource, signature
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from persistent_state.errors import InvalidInputError

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    # PySpark before 4.2 has none of them, and asks a source for its newest offset without a limit.
    class ReadLimit:  # type: ignore[no-redef]
        """A limit of a micro-batch."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """No limit."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """A number of rows."""

        max_rows: int

    @dataclass
    class ReadMaxFiles(ReadLimit):  # type: ignore[no-redef]
        """A number of files."""

        max_files: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """The mark of a source that can be read to its end in several micro-batches."""


__all__ = ["ReadAllAvailable", "ReadLimit", "ReadMaxFiles", "ReadMaxRows", "SupportsTriggerAvailableNow"]

NOTHING_TO_READ = "Waiting for data to arrive"
"""A query's message after it has asked its sources and none had anything new, on all versions."""


def version_of(spark: SparkSession) -> tuple[int, int]:
    """Return the major and the minor version of Spark, which a Connect client may not share."""
    found = re.match(r"(\d+)\.(\d+)", spark.version)
    assert found is not None, spark.version
    return int(found[1]), int(found[2])


def check_pyarrow(pyspark: str, pyarrow: str, serializer: Callable[[], str | None]) -> None:
    """Refuse a PySpark and a PyArrow that do not go together.

    Early patches of PySpark 4.0 and 4.1 cut the batches of `applyInPandasWithState` at floats. PyArrow 26 takes whole numbers
    only, so every worker would fail.

    Args:
        pyspark: The version of PySpark.
        pyarrow: The version of PyArrow.
        serializer: Returns the source text of what cuts the batches; None if it is unknown, which refuses nothing.

    Raises:
        InvalidInputError: They don't go together.
    """
    if int(pyarrow.partition(".")[0]) < 26 or not pyspark.startswith(("4.0.", "4.1.")):
        return
    text = serializer()
    if text is not None and 'int(state_info_col["numRows"])' not in text:
        raise InvalidInputError(
            f"pyspark={pyspark} does not work with pyarrow={pyarrow}; install 'pyarrow<26', or the newest patch of PySpark."
        )


def state_serializer() -> str | None:
    """Return the source text of what cuts the batches of `applyInPandasWithState`, of PySpark before 4.2.

    It is None on a platform that ships PySpark without its source text.
    """
    from pyspark.sql.pandas.serializers import ApplyInPandasWithStateSerializer  # type: ignore[attr-defined, unused-ignore]

    try:
        return getsource(ApplyInPandasWithStateSerializer)
    except OSError:
        return None


def ends_at_the_end(spark: SparkSession) -> bool:
    """Return whether a query with the trigger `availableNow` reads a Python source to its end.

    Before Spark 4.2 such a query has one micro-batch. There a query goes on instead until it has nothing to read
    (`has_nothing_to_read`), and is stopped: another query for each micro-batch would take seconds each time.
    """
    return version_of(spark) >= (4, 2)


def has_nothing_to_read(status: Mapping[str, Any]) -> bool:
    """Return whether a query, by its status, has just asked its sources and none had anything new."""
    return str(status["message"]) == NOTHING_TO_READ


def checkpoint_manager(spark: SparkSession) -> str:
    """Return the name of Spark's class that writes the files of a checkpoint without any of their checksums."""
    package = "streaming.checkpointing" if version_of(spark) >= (4, 1) else "streaming"
    return f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"


def spark_types(schema: pa.Schema) -> StructType:
    """Return Spark's types of Arrow columns. A time without a zone has none in Spark either."""
    # Before PySpark 4.2 it would be one of UTC by default.
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def arrow_types(types: StructType) -> pa.Schema:
    """Return the Arrow types of Spark's columns, whose times are in UTC."""
    # Before PySpark 4.2 the zone is not an argument, and is UTC.
    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(types, **zone)
