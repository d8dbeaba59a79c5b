"""Read a store: a task's state at a clock and its late and bad rows, as Arrow tables or as Spark DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from persistent_state.formatting import Clock
from persistent_state.open_state import Monoids, open_store
from persistent_state.store.files import open_files
from persistent_state.store.state_at import find_sides, read_sides
from persistent_state.task import BaseTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def clocks(store: str, application: str, *, storage_options: Mapping[str, Any] | None = None) -> list[int]:
    """Return the clocks at which the state of an application can be read.

    Args:
        store: The store's folder or URL.
        application: The application's name.
        storage_options: What fsspec needs to open the store.

    Returns:
        The retained and the kept checkpoint clocks in microseconds UTC, ascending. The last is the global clock. At first there
        is none.

    Raises:
        InvalidInputError: There is no such application.

    Example:
        >>> clocks("tests/fixtures/store-v1", "app")
        [160, 200, 220]
    """
    return open_store(store, storage_options=storage_options).application(application).clocks()


def read_state(
    store: str,
    application: str,
    task: BaseTask | str,
    clock: Clock | None = None,
    *,
    monoids: Monoids = (),
    presented: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Return a task's state at a clock, a row per key.

    Nothing of the store is executed. The monoid is that of `task`, and must be the one that the store was written with. If the
    task is only named, the monoid is one of the `monoids` package or of the argument `monoids`: the one whose identity the log
    has.

    Args:
        store: The store's folder or URL.
        application: The application's name.
        task: The task, or its name.
        clock: One of `clocks`, or the name of a kept clock; by default the newest, which is the global clock.
        monoids: Your own monoids and aggregators, where the task is only named.
        presented: True for values as outputs show them: as a Summary or an Aggregator presents them. If the task is only named,
            give its Aggregator in `monoids`.
        storage_options: What fsspec needs to open the store.

    Returns:
        The key columns and `value`, in no particular order. Of a `WindowState` there is a row for each key and window that is
        open at the clock and holds a message; `window_start` and `window_end`, timestamps in UTC, stand before `value`.

    Raises:
        InvalidInputError: There is no such application or task, the clock is not retained, the monoid is not known, or its
            values are not of the type that is presented.
        DamagedError: A file is not what was written.
        TaskFailedError: What presents the values raised.

    Example:
        >>> totals = read_state("tests/fixtures/store-v1", "app", "Totals", clock=160)
        >>> totals.column_names
        ['shop', 'item', 'value']
        >>> [row["value"] for row in totals.to_pylist() if (row["shop"], row["item"]) == ("Bergen", 1)]
        [{'sales': 4, 'total': 488}]
    """
    found = open_store(store, storage_options=storage_options).application(application)
    return found.task(task, monoids=monoids, presented=presented).at(clock).to_arrow()


def read_late_rows(
    store: str, application: str, task: BaseTask | str, *, storage_options: Mapping[str, Any] | None = None
) -> list[pa.Table]:
    """Return the late and bad rows of a task, each once.

    Args:
        store: The store's folder or URL.
        application: The application's name.
        task: The task, or its name.
        storage_options: What fsspec needs to open the store.

    Returns:
        A table per file. Columns are `reason`, `timestamp` (microseconds UTC), `partition`, `channel`, `position`, `record`
        (the bytes as they came, where the source has them), `origin` (a struct of where the record stood, such as its file
        and line; missing if the source tells nothing) and `row` (a struct of the source's own columns; null for a record that
        could not be decoded). Tables of different versions of the source may have different columns.

    Raises:
        InvalidInputError: There is no such application or task.
        DamagedError: A file is not what was written.

    Example:
        >>> tables = read_late_rows("tests/fixtures/store-v1", "app", "Totals")
        >>> sorted((row["reason"], row["position"]) for table in tables for row in table.to_pylist())
        [('late', 25), ('no timestamp', 13), ('no timestamp', 47)]
    """
    files = open_files(store, storage_options)
    return read_sides(files, application, task)


def late_rows_frame(
    spark: SparkSession,
    store: str,
    application: str,
    task: BaseTask | str,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Return the late and bad rows of a task as a DataFrame, each once, as the newest log entry knows them now.

    Args:
        spark: The session.
        store: The store's folder or URL, as the executors reach it too.
        application: The application's name.
        task: The task, or its name.
        storage_options: What fsspec needs to open the store.

    Returns:
        Always the columns `reason`, `timestamp` (microseconds UTC, as a bigint: a bad one may be beyond what Spark shows),
        `partition`, `channel`, `position`, `record` (the bytes as they came, where the source has them), `origin` (where the
        record stood) and `row` (the source's own columns). The last two are JSON text, since they may differ from version to
        version of the source. Bytes are base64 there; `from_json` makes structs of the text.

    Raises:
        InvalidInputError: There is no such application or task, or the executors can't reach the store.

    Example:
        >>> late = late_rows_frame(spark, "tests/fixtures/store-v1", "app", "Totals")
        >>> late.groupBy("reason").count().orderBy("reason").toArrow().to_pylist()
        [{'reason': 'late', 'count': 1}, {'reason': 'no timestamp', 'count': 2}]
    """
    from persistent_state.engine import frames

    files = open_files(store, storage_options)
    name = task if isinstance(task, str) else task.task_name
    return frames.of_late_rows(spark, files, application, name, find_sides(files, application, name))
