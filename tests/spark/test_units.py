"""Timestamps that are integers, where Spark hands over the rows or computes the updates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from monoids import Sum
from persistent_state import (
    Application,
    DataFrameSource,
    FileSource,
    NonWindowState,
    PersistentTask,
    clocks,
    read_late_rows,
    read_state,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

BEGIN = 1_767_225_600


class ByValue(PersistentTask):
    key, value = "k", "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class ByColumn(PersistentTask):
    key = "k"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_column(self, rows: DataFrame) -> Column:
        return rows.n + 0


def write(folder: Path, per_second: int) -> str:
    folder.mkdir()
    rows = {"ts": [BEGIN * per_second, (BEGIN + 5) * per_second, 2**63 - 1], "k": ["a", "a", "b"], "n": [1, 2, 4]}
    pq.write_table(pa.table(rows), folder / "0.parquet")
    return str(folder)


def test_a_unit_is_that_of_rows_from_spark_and_of_those_that_go_through_it(spark: SparkSession, tmp_path: Path) -> None:
    seconds, millis = write(tmp_path / "s", 1), write(tmp_path / "ms", 1_000)
    rows = spark.readStream.schema("ts bigint, k string, n bigint").parquet(millis)
    app = Application("units", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1)
    app.add(ByValue(), DataFrameSource(rows, timestamp="ts", timestamp_unit="ms"))
    app.add(ByColumn(), FileSource(seconds, timestamp="ts", timestamp_unit="s"))
    app.run(spark, drain=True)
    assert clocks(app.store, app.name)[-1] == (BEGIN + 10) * 1_000_000
    for task in (ByValue(), ByColumn()):
        assert read_state(app.store, app.name, task).to_pylist() == [{"k": "a", "value": 3}]
        (late,) = read_late_rows(app.store, app.name, task.task_name)
        assert late["reason"].to_pylist() == ["no timestamp"]
