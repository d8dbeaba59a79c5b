"""Opening a store in a Spark session: a task's state at a clock, and its late and bad rows, as DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from monoids import Aggregator, Monoid
from persistent_state.reader import find_sides, find_state
from persistent_state.store.files import open_files
from persistent_state.task import PersistentTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def state_frame(
    spark: SparkSession,
    store: str,
    application: str,
    task: PersistentTask | str,
    clock: int | None = None,
    *,
    monoids: Sequence[Monoid[Any] | Aggregator[Any, Any, Any]] = (),
    presented: bool = False,
    **storage_options: Any,
) -> DataFrame:
    """What `read_state` gives, as a DataFrame: the key columns and `value`, one row per key; `presented` means the same.

    The clock is settled now; the executors read the store when the DataFrame is used, each some ranges of the keys' hash.
    When the clock is no longer retained by then, Spark's error says so. Key columns are of their stored types: integers are
    bigint, floats double, times timestamp or timestamp_ntz.

    Raises:
        InvalidInput: as `read_state`; or Spark has no type for a column, or the executors can't reach the store.
    """
    from persistent_state.engine import frame

    files = open_files(store, **storage_options)
    return frame.of_state(spark, find_state(files, application, task, clock, monoids, presented))


def late_rows_frame(spark: SparkSession, store: str, application: str, task: str, **storage_options: Any) -> DataFrame:
    """The late and bad rows of a task as a DataFrame, each once, as the newest log entry knows them now.

    The columns are always `reason`, `timestamp` (microseconds UTC, as a bigint: a bad one may be beyond what Spark shows),
    `strand`, `channel`, `position`, `record` (the bytes as they came, where the source has them), `origin` (where the record
    stood, such as its file and line) and `row`: the source's own columns. These two are JSON text, since they may differ from
    version to version of the source, and bytes are base64 in it; `from_json` makes structs of them.

    Raises:
        InvalidInput: there is no such application or task, or the executors can't reach the store.
    """
    from persistent_state.engine import frame

    files = open_files(store, **storage_options)
    return frame.of_late_rows(spark, files, find_sides(files, application, task))
