"""Nexmark's query 5 on Spark: files are read, windows given to a table that keeps the hottest, as DuckDB finds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.nexmark import events
from benchmarks.nexmark.queries import application, differences, results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_hottest_items_are_those_that_duckdb_finds(spark: SparkSession, tmp_path: Path) -> None:
    events.write(tmp_path / "events", 3_000, rate=20, seed=1, per_file=500)
    app, tables = application(["q5"], tmp_path / "events", tmp_path, "57 seconds", max_files_per_batch=3)
    app.run(spark, drain=True)
    found, clocks = results(tables["q5"]), tables["q5"].clocks()
    assert len(clocks) > 2
    assert found.num_rows > 10
    assert differences("q5", tmp_path / "events", found, clocks[-1]) == []
