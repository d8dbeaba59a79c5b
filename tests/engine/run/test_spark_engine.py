"""The number of shards that a start on Spark takes where the user gives none, by what the log says of the start before it."""

from __future__ import annotations

import json
import logging
from typing import Any

import pyarrow as pa
import pytest

from persistent_state.batch.plan import FlowPlan
from persistent_state.engine.run import spark_engine
from persistent_state.engine.run.spark_engine import SparkEngine
from persistent_state.protocol import rewind, takeover
from persistent_state.store.entry import LOCAL
from persistent_state.store.log import Log
from tests import core
from tests.words import SCHEMA, Words

CORES = 200


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SparkEngine:
    monkeypatch.setattr(spark_engine.connect, "parallelism", lambda spark: CORES)
    session: Any = object()
    return SparkEngine(session)


def start(log: Log, writer: str, shards: int) -> None:
    plan = core.plan_of(Words(), SCHEMA, shards=shards, files=log.files)
    takeover.take_over(log, [FlowPlan((plan,))], interval=10, shards=shards, writer=writer, now=0)


def log_of(*writers: str) -> Log:
    """The log of an application with a start by each of these, in three shards."""
    log = Log(core.memory(), "app")
    for writer in writers:
        start(log, writer, 3)
    return log


def test_spark_takes_its_parallelism_at_a_first_start_and_where_spark_ran_last(
    engine: SparkEngine, caplog: pytest.LogCaptureFixture
) -> None:
    for writers in ((), ("5f0c",), (f"{LOCAL}5f0c", "77ab")):
        assert engine.shards(log_of(*writers)) == CORES
    assert caplog.messages == []


def test_spark_keeps_the_shards_of_a_store_that_ran_on_local_last_and_says_how_to_change_them(
    engine: SparkEngine, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_of("77ab", f"{LOCAL}5f0c")
    with caplog.at_level(logging.WARNING, "persistent_state"):
        assert engine.shards(log) == 3
    assert caplog.messages == [
        "application app keeps shards=3, which it has from its runs on Local; Spark's parallelism is 200. Give "
        "Application(..., shards=200) to change it. Without shards= the next start on Spark takes its parallelism."
    ]
    caplog.clear()
    start(log, f"{LOCAL}12cd", CORES)
    assert engine.shards(log) == CORES
    assert caplog.messages == [], "nothing differs"


@pytest.mark.parametrize(("mark", "shards"), [(LOCAL, 3), ("", CORES)])
def test_a_rewind_is_no_switch_of_engine(engine: SparkEngine, mark: str, shards: int) -> None:
    plan = core.plan_of(Words(), SCHEMA, shards=3)
    log = Log(plan.files, plan.application)
    start(log, f"{mark}5f0c", 3)
    for seconds in ((5, 25), (35, 45)):
        core.play(log, plan, pa.RecordBatch.from_pylist([{"ts": at, "word": "a"} for at in seconds], SCHEMA))
    planned = core.plan_rewind(log, 20)
    entry = rewind.rewind(log, planned, writer="77ab", now=0)
    assert (entry.writer, entry.clock, engine.shards(log)) == (f"{mark}77ab", 20, shards)
    assert rewind.rewind(log, planned, writer="77ab", now=0) == entry, "an answer that was lost"


def test_a_start_on_local_writes_no_field_that_an_older_version_would_refuse() -> None:
    def fields(writer: str) -> dict[str, Any]:
        log = log_of(writer)
        whole: dict[str, Any] = json.loads(bytes(log.files.read(log.path(1))).partition(b"\n")[0])
        return whole

    local, spark = fields(f"{LOCAL}5f0c"), fields("5f0c")
    assert {name for name in local if local[name] != spark[name]} == {"writer"}
    assert local.keys() == spark.keys()
