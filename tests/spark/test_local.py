"""Spark and this machine alone take turns on one store: each goes on from what the other has written, exactly."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from persistent_state import Local, ParquetSink, RunningValues, ValuesAtClock
from persistent_state.sinks import Values
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests import core
from tests.local import driver
from tests.local.test_engine import application, expected, state, write
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


def test_a_switch_of_engine_keeps_the_number_of_shards(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parallelism, shards = spark.sparkContext.defaultParallelism, []
    assert parallelism != 3
    for file, engine in enumerate((Local(3), spark, spark, Local(3))):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
        application(tmp_path).run(engine, drain=True)
        shards.append(core.newest(Log(open_files(str(tmp_path / "store")), "shops")).shards)
        assert state(tmp_path) == expected(10 * file + 10)
    assert shards == [3, 3, parallelism, parallelism]
    assert [text[:54] for text in caplog.messages if "keeps shards" in text] == [
        "application shops keeps shards=3, which it has from it"
    ]


def test_a_graph_that_one_engine_has_begun_is_stepped_on_by_the_other(spark: SparkSession, tmp_path: Path) -> None:
    for file, engine in enumerate((spark, Local(2), spark)):
        pipeline.grow(tmp_path, file, range(40 * file, 40 * file + 40))
        driver.of_graph(tmp_path).run(engine, drain=file == 2)
        assert pipeline.check(tmp_path, 40 * file + 40)


def test_functions_are_given_the_same_values_in_arrow_under_both_engines(spark: SparkSession, tmp_path: Path) -> None:
    given: list[list[tuple[str, int, pa.Schema, list[Any]]]] = []
    for number, engine in enumerate((spark, Local(2))):
        calls: list[tuple[str, int, pa.Schema, list[Any]]] = []
        given.append(calls)

        def take(kind: str, values: Values, at: int, calls: list[Any] = calls) -> None:
            rows = [row for batch in values.batches() for row in batch.to_pylist()]
            calls.append((kind, at, values.schema, sorted(rows, key=repr)))

        place = tmp_path / str(number)
        Stream(place / "stream", seed=13).grow(files=2)
        app = stream.application(place, shards=2, interval="10 seconds", tasks=())
        source = stream.FileSource(place / "stream", timestamp="ts", schema=stream.SCHEMA, max_files_per_batch=1)
        sinks = [
            RunningValues(partial(take, "running"), as_="arrow"),
            ValuesAtClock(partial(take, "at a clock"), as_="arrow", name="taken"),
        ]
        app.add(stream.Balance(), source, sinks).run(engine, drain=True)
        calls.sort(key=lambda call: call[:2])
    by_spark, by_local = given
    assert len(by_spark) > 3
    assert by_spark == by_local
