"""Opening a store: a task's state at a clock and its late and bad rows, as Arrow tables or as Spark DataFrames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from monoids import Aggregator, Monoid
from persistent_state.store.files import open_files
from persistent_state.store.state_at import find_sides, find_state, newest_entry, read_side
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
    from persistent_state.engine import frames

    files = open_files(store, **storage_options)
    return frames.of_state(spark, find_state(files, application, task, clock, monoids, presented))


def late_rows_frame(spark: SparkSession, store: str, application: str, task: str, **storage_options: Any) -> DataFrame:
    """The late and bad rows of a task as a DataFrame, each once, as the newest log entry knows them now.

    The columns are always `reason`, `timestamp` (microseconds UTC, as a bigint: a bad one may be beyond what Spark shows),
    `strand`, `channel`, `position`, `record` (the bytes as they came, where the source has them), `origin` (where the record
    stood, such as its file and line) and `row`: the source's own columns. These two are JSON text, since they may differ from
    version to version of the source, and bytes are base64 in it; `from_json` makes structs of them.

    Raises:
        InvalidInput: there is no such application or task, or the executors can't reach the store.
    """
    from persistent_state.engine import frames

    files = open_files(store, **storage_options)
    return frames.of_late_rows(spark, files, find_sides(files, application, task))


def read_state(
    store: str,
    application: str,
    task: PersistentTask | str,
    clock: int | None = None,
    *,
    monoids: Sequence[Monoid[Any] | Aggregator[Any, Any, Any]] = (),
    presented: bool = False,
    **storage_options: Any,
) -> pa.Table:
    """A task's state at a clock, by default the newest global one: its key columns and `value`, one row per key.

    Of a `WindowState` there is a row for each key and window that is open at the clock and holds a message: between the key
    columns and `value` stand `window_start` and `window_end`, timestamps in UTC.

    `clock` is microseconds UTC and must be one of `clocks`. The rows are in no particular order. Nothing of the store is
    executed: the monoid is that of `task`, and must be the one that the store was written with. Of a task that is only
    named, it is one of the `monoids` package or of your own `monoids`: the one with the identity that the log holds.

    With `presented`, `value` is what outputs show: what a Summary says, or what an Aggregator makes of it, which is known of
    a `task`, and of a name if the Aggregator is among `monoids`.

    Raises:
        InvalidInput: there is no such application or task, the clock is not retained, or the monoid is not known, or not the
            type of what is presented.
        Damaged: a file is not what was written.
        TaskFailed: what presents the values raised.
    """
    return find_state(open_files(store, **storage_options), application, task, clock, monoids, presented).read()


def read_late_rows(store: str, application: str, task: str, **storage_options: Any) -> list[pa.Table]:
    """The late and bad rows of a task, each once.

    Columns are `reason`, `timestamp`, `strand`, `channel`, `position`, `record` (the bytes as they came, where the source has
    them), `origin` (a struct of where the record stood, such as its file and line; not there if the source tells nothing) and
    `row` (a struct of the source's own columns; null for a record that could not be decoded). There is a table per file;
    tables of different versions of the source may have different columns.
    """
    files = open_files(store, **storage_options)
    return [read_side(files, side) for side in find_sides(files, application, task)]


def clocks(store: str, application: str, **storage_options: Any) -> list[int]:
    """The retained checkpoint clocks of an application, ascending; the last is the global one. At first there is none."""
    return list(newest_entry(open_files(store, **storage_options), application).retained)
