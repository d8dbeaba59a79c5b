"""Values under Spark are those without Spark, read by Spark's workers."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from persistent_state import ConsoleSink, ParquetSink, SqlSink
from persistent_state.errors import InvalidInputError, StoreUnavailableError
from persistent_state.sinks import LocalValues, Origin, Values
from tests.sentences import problem
from tests.sinks import test_parquet, test_sql
from tests.sinks.test_parquet import USERS, in_order, of_every_type, opened, origin, read, rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def values_of(spark: SparkSession, table: pa.Table, parts: int = 2) -> Values:
    """The rows of a table in any order, as Spark gives them in so many partitions."""
    from persistent_state.engine.run.values import SparkValues
    from persistent_state.engine.spark.session import use_this_python
    from persistent_state.engine.spark.versions import spark_types

    use_this_python(spark)
    order = pa.array(random.Random(0).sample(range(len(table)), len(table)), pa.int64())
    schema = spark_types(table.schema)
    frame = (
        spark.createDataFrame(table.take(order), schema).repartition(parts)
        if len(table)
        else spark.createDataFrame([], schema).repartition(parts)
    )
    return SparkValues(frame, table.schema)


def by_key(part: int, batches: Iterator[pa.RecordBatch]) -> tuple[int, int, list[str]]:
    # NaN is not equal to itself, and its text is.
    return part, os.getpid(), sorted(repr(row) for batch in batches for row in batch.to_pylist())


@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_rows_of_every_type_are_read_as_they_are(spark: SparkSession, zone: str) -> None:
    _, table = of_every_type()
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for number, (kind, of_kind) in enumerate(test_sql.TYPES):
            table = table.append_column(f"value {number}", pa.array((of_kind * 4)[:4], kind))
        values = values_of(spark, table)
        found = pa.Table.from_batches(values.batches())
        assert (found.schema, rows_in_order(found)) == (table.schema, rows_in_order(table))
        mapped = values.map_parts(by_key)
        assert sorted(row for _, _, part in mapped for row in part) == rows_in_order(table)
        (alone,) = values.map_parts(by_key, parts=1)
        assert alone[2] == rows_in_order(table)
        columns = table.column_names[:9]
        parted = values.map_parts(by_key, parts=3, by=columns)
        assert [part for part, *_ in parted] == [0, 1, 2]
        local = LocalValues.of(table).map_parts(by_key, parts=3, by=columns)
        assert [part for *_, part in parted] == [part for *_, part in local]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")


def rows_in_order(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def test_workers_are_called_for_parts_that_have_rows_and_by_a_key_for_each(spark: SparkSession) -> None:
    values = values_of(spark, rows(10, 1), parts=4)
    assert [len(part) for *_, part in values.map_parts(by_key)] == [1]
    assert sorted(len(part) for *_, part in values.map_parts(by_key, parts=5, by=["user"])) == [0, 0, 0, 0, 1]
    none = values_of(spark, rows(10, 0))
    assert (none.map_parts(by_key), [*none.batches()]) == ([], [])
    assert os.getpid() not in [process for _, process, _ in values.map_parts(by_key)]
    # Rows without a key have one key in common.
    assert [len(part) for *_, part in values.map_parts(by_key, parts=2, by=[])] == [1, 0]


def test_an_error_of_ours_in_a_worker_is_raised_as_it_is(spark: SparkSession) -> None:
    def fail(part: int, batches: Iterator[pa.RecordBatch]) -> None:
        if part == 1:
            raise StoreUnavailableError("the disk is on fire. Put it right, then try again.")

    values = values_of(spark, rows(10, 50), parts=3)
    for options in ({}, {"parts": 3, "by": ["user"]}):
        said = problem(lambda options=options: values.map_parts(fail, **options), StoreUnavailableError)
        assert said == "the disk is on fire. Put it right, then try again."
    with pytest.raises(Exception, match="ZeroDivisionError"):
        values.map_parts(lambda part, batches: 1 / 0)


def test_a_table_of_parquet_is_written_by_workers_and_read_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    what, table = of_every_type()
    sink = opened(tmp_path / "table", what, files=2)
    sink.write_values(values_of(spark, table, parts=5), 7)
    assert (len(sink.paths()), read(tmp_path / "table")) == (2, in_order(table))
    by_spark = spark.read.parquet(*sink.paths()).toArrow().cast(what.schema)
    assert in_order(by_spark) == in_order(table)
    any_name = opened(tmp_path / "other", origin(task="_a/b*é " + "x" * 300))
    any_name.write_values(values_of(spark, rows(10, 3)), 10)
    assert spark.read.parquet(*any_name.paths()).count() == 3


def test_a_place_that_workers_do_not_share_is_told(spark: SparkSession) -> None:
    sink = ParquetSink("memory://test-parquet")
    sink.open(USERS)
    with pytest.raises(
        InvalidInputError, match="is not where the workers wrote; give it a place that all of them reach"
    ):
        sink.write_values(values_of(spark, rows(10, 3)), 10)
    assert sink.clocks() == []


def test_values_that_break_off_in_a_worker_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    from persistent_state.engine.run.values import SparkValues

    path = str(tmp_path / "values.db")
    sink = SqlSink(path, "balances")
    sink.open(Origin("bank", "Balance", ("user",), USERS.schema))
    sink.write_values(values_of(spark, rows(10, 3)), 10)
    values = values_of(spark, rows(20, 9))

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        raise ValueError("the second half is not to be had")

    frame = values.to_spark()
    with pytest.raises(Exception, match="the second half is not to be had"):
        sink.write_values(SparkValues(frame.mapInArrow(fail, frame.schema), values.schema), 20)
    assert sink.open(Origin("bank", "Balance", ("user",), USERS.schema)) == 10
    sink.write_values(values, 20)
    assert sink.open(Origin("bank", "Balance", ("user",), USERS.schema)) == 20


@pytest.mark.parametrize("kind", [SqlSink, ParquetSink])
def test_a_subclass_of_a_sink_of_the_library_may_hand_its_data_frame_on(
    spark: SparkSession, tmp_path: Path, kind: Any
) -> None:
    with pytest.warns(DeprecationWarning, match=r"write\(\) is given a DataFrame, which is deprecated"):

        class Large(kind):  # type: ignore[misc]
            def write(self, values: DataFrame, clock: int) -> None:
                super().write(values.where("value >= 10007"), clock)

    path = str(tmp_path / "out")
    sink = Large(path, "balances") if kind is SqlSink else Large(path)
    sink.open(Origin("bank", "Balance", ("user",), USERS.schema))
    sink.write_values(values_of(spark, rows(10, 9)), 10)
    if kind is SqlSink:
        with closing(sqlite3.connect(path)) as database:
            written = database.execute("SELECT value FROM balances").fetchall()
    else:
        written = [(row["value"],) for row in read(tmp_path / "out").to_pylist()]
    large = [row["value"] for row in rows(10, 9).to_pylist() if row["value"] >= 10_007]
    assert (sorted(value for (value,) in written), 0 < len(large) < 9) == (sorted(large), True)


def test_the_console_shows_the_same_under_spark(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    for what, table in ((USERS, rows(5, 200)), of_every_type(), (USERS, rows(5, 0)), (origin({}), ONE)):
        by_spark, by_itself = (
            test_parquet.printed(capsys, ConsoleSink(rows=3), what, values, 5)
            for values in (values_of(spark, table, parts=4), LocalValues.of(table, parts=3))
        )
        assert by_spark == by_itself


ONE = pa.table([[5], [70]], schema=origin({}).schema)
