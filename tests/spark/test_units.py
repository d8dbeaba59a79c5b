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
    open_store,
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
    assert open_store(app.store).application(app.name).clocks()[-1] == (BEGIN + 10) * 1_000_000
    for task in (ByValue(), ByColumn()):
        assert read_state(app.store, app.name, task).to_pylist() == [{"k": "a", "value": 3}]
        (late,) = open_store(app.store).application(app.name).late_rows(task.task_name)
        assert late["reason"].to_pylist() == ["timestamp out of range"]


def test_rows_of_a_file_without_a_column_step_aside_by_its_name_where_spark_computes_the_updates(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    rows = pa.table({"ts": [BEGIN, BEGIN + 5], "k": ["a", "b"], "n": [1, 2], "c": ["x", "x"]})
    # A whole file comes after each that lacks a column.
    for i, missing in enumerate([["c"], [], ["k"], []]):
        pq.write_table(rows.drop(missing), tmp_path / "in" / f"{i}.parquet")
    schema = "ts bigint, k string, n bigint, c string"
    source = FileSource(tmp_path / "in", timestamp="ts", timestamp_unit="s", schema=schema, channel="c")
    app = Application("lacks", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1)
    app.add(ByValue(), source)
    app.add(ByColumn(), source)
    app.run(spark, drain=True)
    for task in (ByValue(), ByColumn()):
        state = sorted((row["k"], row["value"]) for row in read_state(app.store, app.name, task).to_pylist())
        assert state == [("a", 2), ("b", 4)]
        late = [
            row
            for table in open_store(app.store).application(app.name).late_rows(task.task_name)
            for row in table.to_pylist()
        ]
        assert sorted((row["reason"], row["origin"]["file"], row["row"]["n"]) for row in late) == [
            ("its file has no column 'c'", "0.parquet", 1),
            ("its file has no column 'c'", "0.parquet", 2),
            ("its file has no column 'k'", "2.parquet", 1),
            ("its file has no column 'k'", "2.parquet", 2),
        ]
