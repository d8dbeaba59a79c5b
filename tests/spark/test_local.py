"""Spark and this machine alone take turns on one store: each goes on from what the other has written, exactly."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from persistent_state import Local, ParquetSink
from tests.local import driver
from tests.spark import pipeline, stream
from tests.spark.stream import Stream


def test_both_engines_go_on_from_what_the_other_has_written(spark: SparkSession, tmp_path: Path) -> None:
    sent = Stream(tmp_path / "stream", seed=11)
    for engine in (Local(2), spark, Local(1), spark, Local(2)):
        sent.grow()
        driver.of_stream(tmp_path).run(engine)
        stream.check_cut(tmp_path, sent)
        assert stream.check_clocks(tmp_path, sent)
    driver.of_stream(tmp_path).run(spark, drain=True)
    stream.check_end(tmp_path, sent)
    newest = ParquetSink(tmp_path / "out" / "Newest").latest()
    given = dict(zip(newest["key"].to_pylist(), newest["value"].to_pylist(), strict=True))
    assert given == stream.state(tmp_path, stream.Newest())


def test_a_graph_that_one_engine_has_begun_is_stepped_on_by_the_other(spark: SparkSession, tmp_path: Path) -> None:
    for file, engine in enumerate((spark, Local(2), spark)):
        pipeline.grow(tmp_path, file, range(40 * file, 40 * file + 40))
        driver.of_graph(tmp_path).run(engine, drain=file == 2)
        assert pipeline.check(tmp_path, 40 * file + 40)
