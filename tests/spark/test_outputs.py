"""Values at clocks on a real Spark: what sinks are given, in which order, and that nothing waits for one that fails."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from monoids import Aggregator, Average, Sum
from persistent_state import (
    Application,
    FileSource,
    InvalidInputError,
    NonWindowState,
    PersistentTask,
    RunningValues,
    SqlSink,
    StateError,
    ValuesAtClock,
    open_store,
    read_state,
)
from persistent_state.cli.commands import main as command
from persistent_state.drive import backoff
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.sinks import Origin, RecordingSink, Values
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests import page_code
from tests.spark.files import write
from tests.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
SCHEMA = pa.schema([("key", pa.string()), ("amount", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
Row = tuple[str, int, int]


def rows_of(file: int) -> list[Row]:
    """Key, amount and time of the rows of a file, which spans ten seconds."""
    return [("abcde"[(file + i) % (2 + file % 4)], 10 * file + i, START + (10 * file + i) * SECOND) for i in range(10)]


def grow(folder: Path, first: int, last: int) -> None:
    for file in range(first, last):
        rows = [dict(zip(SCHEMA.names, row, strict=True)) for row in rows_of(file)]
        write(folder / "in", file, rows, SCHEMA)


class Means(PersistentTask):
    key, value = "key", "amount"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Average(pa.int64()))


class Totals(PersistentTask):
    key, value = "key", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def application(folder: Path, sink: Any, task: PersistentTask | None = None, **more: Any) -> Application:
    app = Application(
        "told", str(folder / "store"), checkpoint_interval="10 seconds", retained_checkpoints=2, shards=2, **more
    )
    return app.add(task or Totals(), FileSource(folder / "in", timestamp="ts", max_files_per_batch=1), sink)


def means(rows: Sequence[Row]) -> dict[str, float]:
    return {
        key: sum(r[1] for r in rows if r[0] == key) / sum(r[0] == key for r in rows) for key in {r[0] for r in rows}
    }


def totals(rows: Sequence[Row]) -> dict[str, int]:
    return {key: sum(r[1] for r in rows if r[0] == key) for key in {r[0] for r in rows}}


def expected(files: int, fold: Callable[[Sequence[Row]], dict[str, Any]], all: bool = False) -> dict[int, Any]:
    """What a sink is given at each clock, of so many files that were there and the close after them."""
    rows = [row for file in range(files) for row in rows_of(file)]
    # The first micro-batch lets the clock come to its first message: there is nothing below.
    found: dict[int, Any] = {START: {}}
    for file in range(files):
        clock = START + 10 * (file + 1) * SECOND
        state = fold([row for row in rows if row[2] < clock])
        found[clock] = {key: state[key] for key in state if all or any(row[0] == key for row in rows_of(file))}
    return found


@dataclass
class Given:
    """A function of values at clocks, and what it was given."""

    calls: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    problem: Callable[[int], None] = lambda clock: None
    types: list[Any] = field(default_factory=list)

    def __call__(self, values: DataFrame, clock: int) -> None:
        self.problem(clock)
        rows = values.selectExpr("*", "unix_micros(clock) AS at").collect()
        assert {row["at"] for row in rows} <= {clock}
        assert len({row["key"] for row in rows}) == len(rows)
        self.types = values.dtypes
        self.calls.append((clock, {row["key"]: row["value"] for row in rows}))


@dataclass
class Place(RecordingSink):
    """A sink with a record of its own, in memory; it may be out of order."""

    place: str = "place"
    applied: int = BEGINNING
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    problem: Callable[[], None] = lambda: None
    origins: list[Origin] = field(default_factory=list)
    asked: list[tuple[int, dict[str, Any]]] = field(default_factory=list)

    def __copy__(self) -> Place:
        return self

    @property
    def name(self) -> str:
        return self.place

    def open(self, origin: Origin) -> int | None:
        self.origins.append(origin)
        self.problem()
        return self.applied

    def write_values(self, values: Values, clock: int) -> None:
        self.problem()
        found = {row["key"]: row["value"] for batch in values.batches() for row in batch.to_pylist()}
        self.asked.append((clock, found))
        if clock > self.applied:
            self.applied = clock
            self.values[clock] = found


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "LONGEST_WAIT", 0.05)


def newest(folder: Path) -> Entry:
    entry = Log(open_files(str(folder / "store")), "told").newest()
    assert entry is not None
    return entry


def test_sinks_are_given_each_clock_in_order_what_changed_or_all_and_what_the_state_presents(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grow(tmp_path, 0, 5)
    changes, everything, so_far, place = Given(), Given(), [], Place()
    outputs = [
        changes,
        ValuesAtClock(everything, all=True, name="everything"),
        RunningValues(lambda values, batch: so_far.append({row["key"]: row["value"] for row in values.collect()})),
        place,
    ]
    told = []
    application(tmp_path, outputs, Means()).run(spark, drain=True, on_progress=told.append)
    assert changes.calls == list(expected(5, means).items())
    assert everything.calls == list(expected(5, means, all=True).items())
    assert place.values == expected(5, means)
    assert changes.types == [("key", "string"), ("clock", "timestamp"), ("value", "double")]
    (origin,) = place.origins
    assert (origin.application, origin.task, origin.key_columns) == ("told", "Means", ("key",))
    assert origin.schema == pa.schema(
        [("key", pa.string()), ("clock", pa.timestamp("us", "UTC")), ("value", pa.float64())]
    )
    # Running values are presented too, and of the keys of the micro-batch.
    assert so_far == [
        {key: means([r for f in range(file + 1) for r in rows_of(f)])[key] for key in means(rows_of(file))}
        for file in range(5)
    ]
    assert all(set(progress.outputs) == {"function Given", "everything", "place"} for progress in told)
    assert told[0].outputs["place"].clock is None
    assert command(["show", str(tmp_path / "store"), "told"]) == 0
    assert re.search(rf"Means +everything +\S+ \({START + 50 * SECOND}\) +0\n", capsys.readouterr().out)


def test_the_state_does_not_wait_for_a_sink_that_fails_and_the_sink_catches_up_clock_by_clock(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grow(tmp_path, 0, 6)

    def fail(clock: int) -> None:
        if clock > START + 10 * SECOND:
            raise ValueError("the other side is down")

    failing, place, told = Given(problem=fail), Place(), []
    app = application(tmp_path, [ValuesAtClock(failing, name="failing"), place], max_restarts=2)
    with pytest.raises(StateError, match=r"sink='failing': it raised ValueError\('the other side is down'\)"):
        app.run(spark, on_progress=told.append)
    assert [progress.batch for progress in told] == [1, 2, 3, 4, 5, 6]
    assert "is tried again in" in caplog.text
    all_clocks = [START + 10 * i * SECOND for i in range(6)]
    assert list(place.values) == all_clocks
    # Two are kept anyway; the others since this sink lacks them, and the last one that it has.
    assert open_store(app.store).application("told").clocks() == all_clocks[1:]
    assert told[-1].outputs["failing"].clock in (None, *all_clocks[:2])
    assert told[-1].outputs["failing"].behind >= 2
    # It is up again, and the next start has other code and another number of shards.
    mended = Given()
    app = application(tmp_path, [ValuesAtClock(mended, name="failing"), place])
    app.shards = 3
    app.run(spark, drain=True)
    assert failing.calls + mended.calls == list(expected(6, totals).items())
    assert place.values == expected(6, totals)
    # Nothing waits any more: two are kept, as was said.
    grow(tmp_path, 6, 7)
    application(tmp_path, [ValuesAtClock(Given(), name="failing"), place]).run(spark, drain=True)
    assert len(open_store(app.store).application("told").clocks()) == 2


def test_a_sink_that_lost_all_or_is_new_is_given_the_whole_state_first(spark: SparkSession, tmp_path: Path) -> None:
    grow(tmp_path, 0, 4)
    application(tmp_path, SqlSink(str(tmp_path / "out.db"), "totals")).run(spark, drain=True)
    (tmp_path / "out.db").unlink()
    oldest = open_store(str(tmp_path / "store")).application("told").clocks()[0]
    grow(tmp_path, 4, 6)
    fresh = Given()
    lost = SqlSink(str(tmp_path / "out.db"), "totals")
    app = application(tmp_path, [lost, fresh])
    app.run(spark, drain=True)
    every = [row for file in range(6) for row in rows_of(file)]
    assert table_of(tmp_path) == totals(every)
    first, *others = fresh.calls
    assert first == (oldest, expected(6, totals, all=True)[oldest])
    assert others == [(clock, values) for clock, values in expected(6, totals).items() if clock > oldest]
    # One that is of another store knows a clock that this one has never come to.
    foreign = Place(applied=START + 10_000 * SECOND)
    with pytest.raises(InvalidInputError, match=r"sink='place': it holds clock=.* of another store"):
        application(tmp_path, foreign).run(spark)


def table_of(folder: Path) -> dict[str, int]:
    import sqlite3

    with sqlite3.connect(folder / "out.db") as database:
        return dict(database.execute("SELECT key, value FROM totals").fetchall())


def test_a_driver_that_was_fenced_in_the_middle_of_a_delivery_does_no_harm(spark: SparkSession, tmp_path: Path) -> None:
    grow(tmp_path, 0, 3)
    is_in, may_go_on = threading.Event(), threading.Event()

    def sleep() -> None:
        name = threading.current_thread().name
        if name.startswith("persistent-state") and not name.endswith("opens"):
            is_in.set()
            assert may_go_on.wait(PATIENCE)

    place = Place()
    slow = Place(problem=sleep)
    first = application(tmp_path, slow).start(spark)
    assert is_in.wait(PATIENCE)
    until(lambda: len(open_store(str(tmp_path / "store")).application("told").clocks()) == 2, "two clocks")
    second = application(tmp_path, place).run(spark, drain=True)
    assert place.values == expected(3, totals)
    entry = newest(tmp_path)
    may_go_on.set()
    with pytest.raises(StateError, match="newer driver"):
        first.await_termination()
    # It finishes what it was in the middle of, with the checkpoint's own values, and begins nothing more.
    until(lambda: slow.asked, "the delivery")
    assert slow.asked == list(expected(3, totals).items())[:1]
    assert newest(tmp_path) == entry
    assert entry.tasks["Totals"].outputs.delivered == {"place": place.applied}
    assert second._supervisor.entry.epoch == first._supervisor.entry.epoch + 1


def test_a_sink_may_be_away_at_the_start_and_one_that_can_never_take_the_values_is_refused(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(tmp_path, 0, 2)

    def refuse() -> None:
        raise InvalidInputError("the place has other columns; name another.")

    with pytest.raises(InvalidInputError, match="other columns"):
        application(tmp_path, Place(problem=refuse)).run(spark)
    assert not (tmp_path / "store").exists()
    monkeypatch.setattr(backoff, "LONGEST_WAIT", 0)
    # Away for longer than powers of two can be told.
    is_down = iter(range(1100))

    def stumble() -> None:
        if next(is_down, None) is not None:
            raise ConnectionRefusedError("nobody is there")

    place = Place(problem=stumble)
    run = application(tmp_path, place).start(spark)
    until(lambda: len(place.values) == 2, "two clocks")
    run.drain()
    assert place.values == expected(2, totals)
    assert "sink='place': it raised ConnectionRefusedError('nobody is there') at " in caplog.text
    assert "The sink is opened again later." in caplog.text


def test_a_sink_may_stop_the_application(spark: SparkSession, tmp_path: Path) -> None:
    grow(tmp_path, 0, 3)
    started: list[Any] = []

    def stop(values: DataFrame, clock: int) -> None:
        until(lambda: started, "the start")
        with pytest.raises(InvalidInputError, match=r"Call stop\(\) there"):
            started[0].drain()
        started[0].stop()

    started.append(application(tmp_path, stop).start(spark))
    assert started[0].await_termination(PATIENCE)
    # What is under way is finished, and more is not begun.
    assert newest(tmp_path).tasks["Totals"].outputs.delivered == {
        "function " + stop.__qualname__.replace("<locals>.", ""): START
    }


class Loud(PersistentTask):
    key, value = "clock", "amount"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


class Untyped(Totals):
    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Aggregator(int, Sum(), str))


def test_outputs_that_can_not_work_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    grow(tmp_path, 0, 1)
    for sink, said in [
        (3, "sink=3 is not an output"),
        (SqlSink, "is not an output"),
        (RunningValues(3), "sink=3 is not an output"),  # type: ignore[arg-type]
        ([Given(), Given()], "2 outputs are named 'function Given'"),
    ]:
        with pytest.raises(InvalidInputError, match=said):
            application(tmp_path, sink)
    with pytest.raises(InvalidInputError, match="what is presented is not known"):
        application(tmp_path, Given(), Untyped()).run(spark)
    source = FileSource(
        tmp_path / "in",
        timestamp="ts",
        transform=lambda rows: rows.rename_columns(["clock", "amount", "ts"]),
    )
    app = Application("told", str(tmp_path / "store"), checkpoint_interval="10 seconds").add(Loud(), source, Given())
    with pytest.raises(InvalidInputError, match="'clock' is there twice but for case"):
        app.run(spark)
    assert not (tmp_path / "store").exists()


def test_the_sink_of_the_guide_works(spark: SparkSession, tmp_path: Path) -> None:
    code, _, test = page_code.blocks_of(page_code.text_of("docs/write-a-sink.md"))
    names: dict[str, Any] = {}
    exec(code, names)
    exec(test, names)
    names["test_a_clock_that_comes_again_changes_nothing"](tmp_path / "test")
    grow(tmp_path, 0, 2)
    for _ in range(2):
        application(tmp_path, names["JsonLines"](tmp_path / "out")).run(spark, drain=True)
        grow(tmp_path, 2, 4)
    application(tmp_path, names["JsonLines"](tmp_path / "out")).run(spark, drain=True)
    import json

    found = {
        int(file.stem): {row["key"]: row["value"] for row in map(json.loads, file.read_text().splitlines())}
        for file in (tmp_path / "out").glob("*.json")
    }
    assert found == expected(4, totals)
    assert read_state(str(tmp_path / "store"), "told", Totals()).num_rows == 5
    assert not list((tmp_path / "out").glob(".*"))
