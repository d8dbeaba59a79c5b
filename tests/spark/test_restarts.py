"""Starts that change things, on a real Spark: what may be changed is changed between two starts over one store."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter

from monoids import Monoid, Sum
from persistent_state import (
    Application,
    FileSource,
    InvalidInputError,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    RunningValues,
    SqlSink,
    StateError,
    TaskFailedError,
    ValuesAtClock,
    application,
    read_state,
)
from persistent_state.drive import backoff
from persistent_state.engine.run import queries
from persistent_state.store import kept_entries
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests import core
from tests.spark import stream
from tests.spark.stream import NAME, Balance, Journal, Stream, aside, check_cut, check_end, state
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from persistent_state.run.progress import Progress

SECOND = 1_000_000


class Account(PersistentTask):
    """`Balance` in another class, written otherwise."""

    name = "Balance"
    key = ("key",)

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        if message["amount"] is not None:
            state.update(message.timestamp, int(str(message["amount"])))


def highest_of(module: str) -> PersistentTask:
    """A task whose monoid is the user's own, as if it came from a module of this name."""

    class Highest(Monoid[int]):
        type = pa.int64()

        @property
        def zero(self) -> int:
            return -1

        def plus(self, a: int, b: int) -> int:
            return max(a, b)

    Highest.__module__ = module

    class HighestId(PersistentTask):
        key = "key"

        def persistent_state(self) -> NonWindowState[int]:
            return NonWindowState(Highest())

        def process_message(self, state: PersistentState[int], message: Message) -> None:
            state.update(message.timestamp, message["id"])

    return HighestId()


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_what_may_change_between_starts_changes_and_nothing_is_lost_or_counted_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    sent = Stream(tmp_path / "stream", seed=4)

    def run(tasks: Sequence[PersistentTask], shards: int, interval: str, delay: str, drain: bool = False) -> None:
        # The stream grows while nobody reads it.
        sent.grow()
        app = Application(
            NAME,
            str(tmp_path / "store"),
            checkpoint_interval=interval,
            allowed_delay=delay,
            retained_checkpoints=99,
            shards=shards,
        )
        for task in tasks:
            app.add(task, FileSource(sent.folder, timestamp="ts", schema=stream.SCHEMA, max_files_per_batch=2))
        app.run(spark, drain=drain)
        if Journal in map(type, tasks):
            check_cut(tmp_path, sent)

    run([Balance(), Journal()], 1, "10 seconds", "30 seconds")
    left_at = newest(tmp_path).clock
    # More shards, another interval, other code, another task.
    run([Account(), Journal(), highest_of("accounts.v1")], 3, "15 seconds", "30 seconds")
    # Fewer shards, another delay, a task less, and the monoid's module has another name.
    run([Account(), highest_of("accounts.v2")], 2, "15 seconds", "60 seconds")
    run([Account(), highest_of("accounts.v2")], 2, "20 seconds", "30 seconds")
    gone = newest(tmp_path)
    assert not gone.tasks["Journal"].active
    assert left_at < gone.flow_of("Journal").progress.clock < gone.clock
    # The task that was gone is back, and reads what it has missed.
    run([Account(), Journal(), highest_of("accounts.v2")], 4, "10 seconds", "30 seconds", drain=True)
    check_end(tmp_path, sent)
    highest = highest_of("anywhere")
    late = aside(tmp_path, highest).late
    kept = [m for m in sent.sent if m.id not in late and m.problem(highest) is None]
    assert state(tmp_path, highest) == {key: max(m.id for m in kept if m.key == key) for key in {m.key for m in kept}}
    # What is older than the clock at which a task was new is late to it.
    born = newest(tmp_path).tasks["HighestId"].born
    assert {m.id for m in sent.sent if m.ts is not None and m.ts < born} <= late


def newest(folder: Path, application: str = NAME) -> Any:
    entry = Log(open_files(str(folder / "store")), application).newest()
    assert entry is not None
    return entry


SCHEMA = pa.schema([("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


class Total(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def numbers(folder: Path, *files: Sequence[int]) -> FileSource:
    """A source of one file a micro-batch; a number's time is ten times as many seconds."""
    folder.mkdir()
    for i, values in enumerate(files):
        times = [10 * SECOND * n for n in values]
        pq.write_table(pa.table([list(values), times], schema=SCHEMA), folder / f"{i}.parquet")
    return FileSource(folder, timestamp="ts", max_files_per_batch=1)


def total(app: Application) -> list[int]:
    return [row["value"] for row in read_state(app.store, app.name, Total()).to_pylist()]


class Stumbling:
    """A sink that raises, each time that it is asked to."""

    def __init__(self, stumbles: Callable[[int], bool]) -> None:
        self.stumbles = stumbles
        self.calls = 0

    def __call__(self, values: DataFrame, batch: int) -> None:
        self.calls += 1
        if self.stumbles(self.calls):
            raise RuntimeError(f"stumbled at call {self.calls}")


def test_a_run_that_always_fails_starts_again_so_often_and_then_tells_why(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backoff, "LONGEST_WAIT", 0.1)
    sink = Stumbling(lambda call: True)
    app = Application("stumbles", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1, max_restarts=2)
    app.add(Total(), numbers(tmp_path / "in", [1], [1]), RunningValues(sink))
    with (
        caplog.at_level(logging.WARNING, "persistent_state"),
        pytest.raises(StateError, match=r"stumbled at call 3"),
    ):
        app.run(spark)
    assert sink.calls == 3
    warned = [record.getMessage() for record in caplog.records if record.name == "persistent_state"]
    assert [text.split(" s: ")[0] for text in warned] == ["application stumbles starts again in 0.1"] * 2


def test_failures_with_progress_between_them_do_not_add_up(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "LONGEST_WAIT", 0.1)
    sink = Stumbling(lambda call: call in (1, 3, 5))
    app = Application("stumbles", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1, max_restarts=1)
    app.add(Total(), numbers(tmp_path / "in", [1], [2], [3], [4]), RunningValues(sink))
    run = app.run(spark, drain=True)
    assert run.restarts == 3
    assert total(app) == [10]


class Renamed(FileSource):
    """A source of which the second file has another name when it is first read."""

    def read(self, split: Any) -> Any:
        old = Path(self.path) / "1.parquet"
        if old.exists() and any(path == old.name for _, path, *_ in split):
            old.rename(old.with_name("2.parquet"))
        return super().read(split)


def test_a_file_that_is_gone_between_its_listing_and_its_reading_is_listed_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backoff, "LONGEST_WAIT", 0.1)
    numbers(tmp_path / "in", [1], [2])
    app = Application("renamed", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1, max_restarts=1)
    app.add(Total(), Renamed(tmp_path / "in", timestamp="ts", max_files_per_batch=1))
    run = app.run(spark, drain=True)
    assert run.restarts == 1
    assert total(app) == [3]


TOO_LATE = """#!/bin/sh
case "$*" in
*python_streaming_source_runner*)
    # The first query gets through. The next tries come too late for Spark's ten seconds.
    for call in 1 2 3; do
        if mkdir "{folder}/$call" 2>/dev/null; then
            test $call = 1 || sleep 12
            break
        fi
    done ;;
esac
exec "{python}" "$@"
"""


class Other(Total):
    name = "Other"


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_query_that_the_machine_is_too_slow_for_starts_again_and_the_other_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    python = tmp_path / "python"
    python.write_text(TOO_LATE.format(folder=tmp_path, python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    monkeypatch.setattr(queries, "AT_ONCE", 1)
    monkeypatch.setattr(backoff, "SHORTEST_WAIT_OF_BUSY", 1.0)
    app = Application("busy", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1, max_restarts=0)
    app.add(Total(), numbers(tmp_path / "in", [1], [2]))
    app.add(Other(), numbers(tmp_path / "others", [3], [4]))
    with caplog.at_level(logging.WARNING, "persistent_state"):
        run = app.start(spark)
        try:
            seen: list[dict[str, Any]] = []
            while len(run.progress) < 2:
                assert not run.await_termination(timeout=0.1)
                seen.append({**run._supervisor.flows.by_flow})
        finally:
            run.stop()
    assert [(tmp_path / str(call)).exists() for call in (1, 2, 3)] == [True] * 3
    assert (run.restarts, run._supervisor.entry.epoch) == (0, 1)
    assert len({id(each["Total"]) for each in seen if "Total" in each}) == 1, "it was kept"
    assert len({id(each["Other"]) for each in seen if "Other" in each}) == 3
    warned = [text for text in caplog.messages if "ten seconds to connect" in text]
    assert len(warned) == 2
    assert all(text.startswith("task=Other: this machine is too slow") for text in warned)
    app.run(spark, drain=True)
    assert [read_state(app.store, app.name, task)["value"].to_pylist() for task in ("Total", "Other")] == [[3], [7]]


def test_a_python_that_is_not_there_is_refused_in_a_sentence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nowhere/python")
    app = Application("nowhere", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1)
    app.add(Total(), numbers(tmp_path / "in", [1]))
    words = (
        "application=nowhere: Spark can't run python='/nowhere/python' (No such file or directory); let PYSPARK_PYTHON"
    )
    with pytest.raises(InvalidInputError, match=f"^{re.escape(words)}") as refused:
        app.run(spark)
    assert "\n" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


class Thirteen(Total):
    name = "Total"
    value = None

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        raise ValueError("thirteen")


class ByZero(Total):
    name = "Total"
    value = None

    def process_column(self, rows: DataFrame) -> Column:
        from pyspark.sql import functions as F

        return F.expr("100 div (n - 1)")


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (Thirteen(), "ValueError('thirteen')"),
        (ByZero(), "task=Total: Spark could not work out a value: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide`"),
    ],
    ids=["Python", "Spark"],
)
def test_what_another_start_would_meet_again_is_not_tried_again(
    spark: SparkSession, tmp_path: Path, task: PersistentTask, words: str
) -> None:
    app = Application("final", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1)
    app.add(task, numbers(tmp_path / "in", [1]))
    run = app.start(spark)
    with pytest.raises(TaskFailedError, match=re.escape(words)):
        run.await_termination()
    assert (run.restarts, run._supervisor.entry.epoch, run.is_active) == (0, 1, False)
    with pytest.raises(InvalidInputError, match=r"^max_restarts=-1; say 0 for none"):
        Application("final", str(tmp_path / "store"), max_restarts=-1)


def test_runs_of_a_few_micro_batches_leave_nothing_behind_that_nobody_needs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "Keeping", core.keeping_at_once)
    source = numbers(tmp_path / "in", [1], [2])
    for _ in range(3):
        app = Application(
            "short", str(tmp_path / "store"), checkpoint_interval="10 seconds", retained_checkpoints=2, shards=1
        )
        app.add(Total(), source).run(spark)
    log = Log(open_files(app.store), app.name)
    entries = [log.read(number) for number in log.numbers()]
    # A kept clock needs what its entry names.
    kept = [kept_entries.read(log, each.entry) for each in entries[-1].kept.values()]
    named = {path for entry in (*entries, *kept) for path in entry.files()}
    assert named == {f"short/runs/Total/{file}" for file in log.files.list("short/runs/Total")}
    assert len(log.numbers()) < 2 * 3


def test_a_continuous_run_has_its_trigger_and_tells_each_batch_twice_alike(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Progress] = []
    app = Application("tells", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1)
    app.add(Total(), numbers(tmp_path / "in", [1], [2, 0], [3]))
    with (
        caplog.at_level(logging.INFO, "persistent_state.progress"),
        mock.patch.object(DataStreamWriter, "trigger", autospec=True, side_effect=DataStreamWriter.trigger) as trigger,
    ):
        run = app.start(spark, trigger="1 second", on_progress=told.append)
        until(lambda: len(told) >= 3, "micro-batches", lambda: not run.await_termination(0))
        run.stop()
    assert trigger.call_args.kwargs == {"processingTime": "1.000000 seconds"}
    assert [(p.batch, p.messages, p.late, p.reasons) for p in told] == [
        (1, 1, 0, {}),
        (2, 2, 1, {"late": 1}),
        (3, 1, 1, {"late": 1}),
    ]
    lines = [record.getMessage() for record in caplog.records if record.name == "persistent_state.progress"]
    assert [json.loads(line) for line in lines] == [asdict(progress) for progress in told]
    assert run.await_termination()


class DoubleTotal(PersistentTask):
    """`Total` with another monoid."""

    name = "Total"
    value = "n"

    def persistent_state(self) -> NonWindowState[float]:
        return NonWindowState(Sum(pa.float64()))


class OtherTotal(Total):
    name = "Other"


def test_a_task_is_built_again_beside_one_that_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    source = numbers(tmp_path / "in", [1, 2], [3], [4], [5])
    database = str(tmp_path / "sinks.db")

    def app(task: PersistentTask, table: str, *more: Any) -> Application:
        app = Application("built", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1, max_restarts=0)
        app.add(task, source, [SqlSink(database, table, history=True), *more])
        return app.add(OtherTotal(), source, SqlSink(database, "other", history=True))

    def given(table: str) -> list[float]:
        with closing(sqlite3.connect(database)) as connection:
            found = connection.execute(f"SELECT value FROM {table} ORDER BY clock").fetchall()
        return [value for (value,) in found]

    app(Total(), "total").run(spark)
    clock = newest(tmp_path, "built").clock
    with pytest.raises(
        InvalidInputError, match=r"was written with monoid=Sum\(int64\), the task has Sum\(double\)\. Name it in"
    ):
        app(DoubleTotal(), "total").run(spark)
    with pytest.raises(InvalidInputError, match=r"task=Total is rebuilt, and sink=.* has what it was before; give it"):
        app(DoubleTotal(), "total").run(spark, rebuild=["Total"])
    renamed = Application("built", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1)
    renamed.add(Total(), source, ValuesAtClock(SqlSink(database, "total", history=True), name="renamed"))
    with pytest.raises(
        InvalidInputError,
        match=r"the task is rebuilt, and the sink holds clock=.* already: name a place of its own",
    ):
        renamed.run(spark, rebuild=["Total"])
    # It dies while it catches up; the next start knows where it stands.
    with pytest.raises(StateError, match="stumbled at call 2"):
        app(DoubleTotal(), "doubled", RunningValues(Stumbling(lambda call: call == 2))).run(spark, rebuild=["Total"])
    entry = newest(tmp_path, "built")
    assert (entry.clock, entry.flow_of("Total").progress.clock < clock) == (clock, True)
    with pytest.raises(InvalidInputError, match="task=Total is rebuilt and has reached clock="):
        read_state(str(tmp_path / "store"), "built", DoubleTotal(), clock)
    numbers(tmp_path / "more", [6], [7])
    for file in (tmp_path / "more").iterdir():
        file.rename(tmp_path / "in" / f"x{file.name}")
    app(DoubleTotal(), "doubled").run(spark, drain=True)
    assert given("doubled") == given("other") == given("total") + given("other")[len(given("total")) :]
    assert given("doubled")[-1] == 28
