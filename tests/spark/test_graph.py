"""Tasks that feed tasks on a real Spark: at every clock each is made of what feeds it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monoids import Count
from persistent_state import (
    Application,
    Changes,
    FencedError,
    FileSource,
    NonWindowState,
    ParquetSink,
    RunningValues,
    SqlSink,
    StoreUnavailableError,
    TaskFailedError,
    ValuesAtClock,
)
from persistent_state.drive import backoff
from persistent_state.engine import Progress, Running
from persistent_state.formatting import read_clock
from persistent_state.run import steps
from tests.spark.beside import Story
from tests.spark.pipeline import (
    SCHEMA,
    SECOND,
    PerRegion,
    Rare,
    application,
    check,
    grow,
    newest,
    per_region,
    per_shop,
    sale,
    state,
    watched,
)
from tests.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Regions(PerRegion):
    """How many shops are in a region now."""

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Count())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([1] * len(batch))


class Other(Regions):
    """How many messages there are of a region, from a source of its own."""


class Raising(PerRegion):
    name = "PerRegion"

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        raise ValueError("no such region")


class Waiting(PerRegion):
    """Waits while there is a file, and leaves another where it did."""

    name = "PerRegion"

    def __init__(self, file: Path) -> None:
        self._file = file

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        while self._file.exists():
            self._file.with_suffix(".met").touch()
            time.sleep(0.05)
        return super().process_batch(batch)


def goes_on(running: Running) -> bool:
    """Return whether a run goes on, or raise what has ended it."""
    return not running.await_termination(0)


def await_clock(running: Running, seconds: int) -> None:
    until(lambda: (running.clock or 0) >= seconds * SECOND, f"the clock {seconds}", lambda: goes_on(running))


def test_outputs_beside_derived_tasks_have_each_clock_once_and_a_new_task_is_right_at_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    given: list[tuple[int, dict[Any, Any]]] = []
    told: list[Progress] = []
    running_totals: list[int] = []

    def take(values: DataFrame, clock: int) -> None:
        given.append((clock, {(row["region"],): row["value"].asDict() for row in values.collect()}))

    def run(values: DataFrame, batch: int) -> None:
        running_totals.extend(row["value"] for row in values.collect())

    def outputs() -> dict[str, Any]:
        return {
            "PerRegion": [ValuesAtClock(take, all=True), SqlSink(str(tmp_path / "out.db"), "regions")],
            "Total": [ParquetSink(str(tmp_path / "totals")), RunningValues(run)],
            "Watch": SqlSink(str(tmp_path / "out.db"), "watched", history=True),
        }

    for file in range(3):
        grow(tmp_path, file, range(file * 60, file * 60 + 60))
    application(tmp_path, outputs=outputs()).run(spark, on_progress=told.append)
    assert newest(tmp_path).clock == 170 * SECOND
    assert check(tmp_path, 180) > 1
    grow(tmp_path, 3, range(180, 215))
    running = application(tmp_path, outputs=outputs()).run(spark, drain=True, on_progress=told.append)
    assert running.clock == newest(tmp_path).clock == 220 * SECOND
    assert check(tmp_path, 215) > 1

    clocks = [clock for clock, _ in given]
    assert clocks == sorted({*clocks})
    assert clocks[-1] == 220 * SECOND
    for clock, values in given:
        shops = per_shop([sale(second) for second in range(min(clock // SECOND, 215))])
        assert {key: value for key, value in values.items() if value["shops"]} == per_region(shops)
    with sqlite3.connect(tmp_path / "out.db") as database:
        rows = database.execute("SELECT region, value FROM regions").fetchall()
        emitted = database.execute("SELECT what, number, timestamp FROM watched").fetchall()
    assert {(region,): json.loads(value) for region, value in rows} == given[-1][1]
    _, wanted = watched([sale(second) for second in range(215)], 220 * SECOND)
    assert sorted((what, number, read_clock(at)) for what, number, at in emitted) == sorted(wanted)
    totals = pq.read_table(tmp_path / "totals").to_pylist()
    assert max(Counter(row["clock"] for row in totals).values()) == 1
    for row in totals:
        sent = range(min(int(row["clock"].timestamp()), 215))
        assert row["value"] == sum(sale(second).amount for second in sent)
    assert running_totals[-1] == sum(sale(second).amount for second in range(215))

    by_task = {name: [each for each in told if each.task == name] for name in newest(tmp_path).tasks}
    for name in ("PerRegion", "Revenue", "Total", "Best", "Rares", "Watch", "Said"):
        visited = [each.clock for each in by_task[name]]
        assert visited == sorted({*visited})
        assert {*clocks} <= {*visited}
        assert all(each.late == each.bad == each.replayed == 0 for each in by_task[name])
        assert sum(each.messages for each in by_task[name]) > 0

    for file in (tmp_path / "in").iterdir():
        file.unlink()
    told.clear()
    regions = (Regions(), Changes("PerShop"))
    application(tmp_path, tasks=[regions]).run(spark, on_progress=told.append)
    assert {each.task: each.messages for each in told}["Regions"] == len(state(tmp_path, "PerShop"))
    assert {key: value["shops"] for key, value in state(tmp_path, "PerRegion").items()} == state(tmp_path, "Regions")
    assert not any(each.messages for each in told if each.task == "PerShop")


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_graph_follows_its_sources_through_rescales_and_other_intervals(spark: SparkSession, tmp_path: Path) -> None:
    file = 0
    (tmp_path / "in").mkdir()
    for shards, interval in ((2, "10 seconds"), (3, "15 seconds"), (1, "10 seconds")):
        running = application(tmp_path, shards, interval).start(spark)
        for _ in range(3):
            file += 1
            grow(tmp_path, file, range(file * 30 - 30, file * 30))
            await_clock(running, file * 30 - 15)
        if shards > 1:
            running.stop()
        else:
            assert running.drain() == newest(tmp_path).clock == file * 30 * SECOND
        assert running.restarts == 0
        assert check(tmp_path, file * 30) > 0
    assert all(newest(tmp_path).is_at(name, file * 30 * SECOND) for name in newest(tmp_path).tasks)


def test_user_code_that_raises_in_a_step_ends_the_run_and_a_store_that_fails_does_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(tmp_path, 0, range(60))
    with pytest.raises(
        TaskFailedError, match=r"task=PerRegion raised ValueError\('no such region'\) at .*test_graph.py:\d+"
    ):
        application(tmp_path, tasks=[(Raising(), Changes("PerShop"))]).run(spark, drain=True)
    monkeypatch.setattr(backoff, "LONGEST_WAIT", 0.1)
    plan_batch, failures = steps.commits.plan_batch, []

    def plan(*arguments: Any) -> Any:
        if len(failures) < 2:
            failures.append(arguments)
            raise StoreUnavailableError("the store is away")
        return plan_batch(*arguments)

    monkeypatch.setattr(steps.commits, "plan_batch", plan)
    running = application(tmp_path).run(spark, drain=True)
    # Two steps may fail side by side.
    assert 0 < running.restarts <= 2
    assert newest(tmp_path).clock == 60 * SECOND
    assert check(tmp_path, 60) > 0


def test_a_stop_cancels_a_step_and_so_does_a_newer_driver(spark: SparkSession, tmp_path: Path) -> None:
    grow(tmp_path, 0, range(60))
    flag = tmp_path / "flag"

    def start() -> Running:
        flag.touch()
        flag.with_suffix(".met").unlink(missing_ok=True)
        running = application(tmp_path, tasks=[(Waiting(flag), Changes("PerShop"))]).start(spark)
        until(flag.with_suffix(".met").exists, "the step", lambda: goes_on(running))
        return running

    start().stop()
    assert flag.exists(), "the stop did not wait for the step"
    first = start()
    application(tmp_path).run(spark, drain=True)
    with pytest.raises(FencedError):
        first.await_termination(PATIENCE)
    flag.unlink()
    assert newest(tmp_path).clock == 60 * SECOND
    assert check(tmp_path, 60) > 0


def test_an_idle_source_and_a_task_that_was_away_hold_nothing_back_for_long(
    spark: SparkSession, tmp_path: Path
) -> None:
    def app(*without: str) -> Application:
        return application(
            tmp_path,
            idle_after="1 second",
            without=without,
            tasks=[(Other(), FileSource(str(tmp_path / "other"), timestamp="ts", schema=SCHEMA))],
        )

    (tmp_path / "other").mkdir()
    grow(tmp_path, 0, range(60))
    (tmp_path / "other" / "0000.parquet").hardlink_to(tmp_path / "in" / "0000.parquet")
    running = app().start(spark)
    await_clock(running, 50)
    # Only one of the two sources goes on.
    grow(tmp_path, 1, range(60, 120))
    await_clock(running, 110)
    running.stop()
    assert check(tmp_path, 120) > 0
    grow(tmp_path, 2, range(120, 150))
    app("PerShop", "PerRegion", "Revenue", "Total").run(spark, drain=True)
    assert newest(tmp_path).clock == 150 * SECOND
    grow(tmp_path, 3, range(150, 180))
    app().run(spark, drain=True)
    assert newest(tmp_path).clock == 180 * SECOND
    assert check(tmp_path, 180) > 0


def test_a_step_without_changes_waits_for_no_micro_batch(spark: SparkSession, tmp_path: Path) -> None:
    # None of these sales is rare, so nothing changes in the task that feeds the other one.
    grow(tmp_path, 0, range(10, 60))
    source = FileSource(str(tmp_path / "in"), timestamp="ts", schema=SCHEMA)
    app = Application("graph", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=2)
    app.add(Rare(), source)
    app.add(Story(), {"sales": source, "rare": Changes("Rare", every="10 seconds")})
    running = app.start(spark, trigger="1 hour")
    await_clock(running, 50)
    running.stop()
    flow = newest(tmp_path).flow_of("Story")
    assert (flow.progress.batch, flow.stepped) == (1, 50 * SECOND)
    assert state(tmp_path, "Story") == {
        (shop,): [f"{sale(second).amount}" for second in range(10, 50) if sale(second).shop == shop]
        for shop in range(7)
    }
