"""`Application.plan_rewind` tells what a rewind would do, and `rewind` does it, with sources and sinks and without Spark."""

from __future__ import annotations

import concurrent.futures
import copy
import json
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persistent_state import (
    Application,
    Changes,
    ConsoleSink,
    DamagedError,
    DeltaSink,
    FencedError,
    FileSource,
    InvalidInputError,
    NotThereError,
    ParquetSink,
    PersistentTask,
    SqlSink,
    StoreRefusedError,
    StoreUnavailableError,
    ValuesAtClock,
    open_store,
    read_state,
)
from persistent_state.batch.plan import AT_MOST_ONCE
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol import deliver
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.naming import keep
from persistent_state.protocol.next_entry import amend
from persistent_state.protocol.rewind_plan import OutputPlan, ReadAgain, made
from persistent_state.run import rewinds
from persistent_state.show.summary import summary
from persistent_state.show.text import application as application_text
from persistent_state.sinks import Origin, RecordingSink
from persistent_state.sinks.values import LocalValues
from persistent_state.sources import Chunk, Reach, TimeReplayableSource
from persistent_state.store import kept_entries, lists, runs
from persistent_state.store.entry import Entry, Owed
from persistent_state.store.files import cache, open_files
from tests import core
from tests.local_application import LocalApplication, compiled
from tests.protocol.test_graph import EVENTS, Graph, Other, PerRegion, PerShop
from tests.protocol.test_rewind import SCHEMA, Total, World
from tests.sentences import problem
from tests.soak import soak_or
from tests.waiting import PATIENCE


@dataclass
class Numbers(TimeReplayableSource):
    """What a `World` plays, as a source."""

    end: int
    oldest: int = 0
    timestamp = "ts"
    schema = SCHEMA

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        pass

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        if start.get("", 0) < self.oldest:
            raise InvalidInputError(f"position={start.get('', 0)} is gone; the oldest is {self.oldest}.")
        return Reach({"": self.end if everything else start.get("", 0)})

    def amount(self, start: Mapping[str, int], end: Mapping[str, int]) -> tuple[int, str]:
        return end[""] - start[""], "numbers"

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        return []

    def read(self, split: Any) -> Iterator[Chunk]:
        yield from ()


@dataclass
class Table(RecordingSink):
    """A sink that has a record of (timeline, clock), and goes back."""

    record: list[int]
    backs: list[Any] = field(default_factory=list)
    is_away: bool = False
    counted: list[int] = field(default_factory=list)
    name = "table"

    def open(self, origin: Origin) -> int | None:
        if self.is_away:
            raise StoreUnavailableError("it does not answer; wait.")
        self.origin = origin
        return self.record[1]

    def write_values(self, values: Any, clock: int) -> None:
        raise AssertionError

    def rewind(self, clock: int, values: Any) -> None:
        if self.record[0] < self.origin.timeline:
            rows = [row for batch in values.batches() for row in batch.to_pylist()]
            self.backs.append((self.origin.timeline, clock, rows))
            self.record[:] = [self.origin.timeline, min(self.record[1], clock)]

    def rows_above(self, clock: int, origin: Origin) -> int:
        self.counted.append(clock)
        return 7


class Stubborn(RecordingSink):
    """A sink of the user's that knows nothing of rewinds."""

    name = "stubborn"

    def open(self, origin: Origin) -> int | None:
        return 110

    def write_values(self, values: Any, clock: int) -> None:
        raise AssertionError


def played(output: str, delivered: int | None = 110) -> World:
    """An application that has come to clock 110, and has given its output that much."""
    world = World()
    world.plan = replace(world.plan, outputs=(output,))
    world.start(world.plan)
    world.read(12)
    if delivered is not None:
        deliver.record(world.log, world.newest.epoch, "total", output, delivered, 0)
    return world


def application(world: World, sink: Any, source: Numbers | None = None, **options: Any) -> Application:
    app = Application("app", world.files.url, checkpoint_interval="10 seconds", **options)
    return app.add(Total(), source or Numbers(20), sink)


def nothing(values: Any, clock: int) -> None:
    pass


def never(*given: Any) -> None:
    raise AssertionError


def test_a_plan_tells_what_a_rewind_does_and_changes_nothing() -> None:
    world = played("table")
    before = world.newest
    table = Table([0, 110])
    plan = application(world, table).plan_rewind("1970-01-01T00:00:00.000065")
    assert (plan.application, plan.clock, plan.epoch, plan.timeline) == ("app", 60, before.epoch, before.epoch + 1)
    assert (plan.tasks, plan.later_tasks) == (("total",), ())
    assert plan.reads == (ReadAgain(("total",), repr(Numbers(20)), {"": 6}, 14, "numbers"),)
    assert plan.outputs == (OutputPlan("total", "table", "retract", 110, 60, rows=7),)
    assert (world.newest, table.record, table.backs) == (before, [0, 110], [])
    at = datetime.fromtimestamp(65e-6, tz=timezone.utc)
    assert application(world, table).plan_rewind(at).clock == application(world, table).plan_rewind(65).clock == 60


def test_a_rewind_lets_each_sink_go_back_at_once_and_in_a_session_s_absence() -> None:
    world, table = played("table"), Table([0, 110])
    app = application(world, table)
    plan = app.rewind(app.plan_rewind(60))
    assert plan.outputs == (OutputPlan("total", "table", "retract", 110, 60, rows=7, is_done=True),)
    (back,) = table.backs
    assert back == (plan.timeline, 60, [{"clock": us(60), "value": 5}])
    assert table.record == [plan.timeline, 60]
    entry = world.newest
    assert (entry.timeline, entry.clock, entry.owes) == (plan.timeline, 60, {})
    assert entry.tasks["total"].outputs.delivered == {"table": 60}
    with pytest.raises(FencedError, match="plan again"):
        app.rewind(plan)


def us(clock: int) -> datetime:
    return datetime.fromtimestamp(clock / 1e6, tz=timezone.utc)


def test_a_sink_that_does_not_answer_goes_back_later_to_the_lowest_clock_in_the_newest_timeline() -> None:
    world, table = played("table"), Table([0, 110], is_away=True)
    app = application(world, table)
    first = app.rewind(90)
    assert [each.is_done for each in first.outputs] == [False]
    assert world.newest.owes == {"total": {"table": Owed(first.timeline, 90)}}
    second = app.rewind(50)
    # By a sink that may have had nothing above the clock since.
    world.start(world.plan)
    world.read(9, value=100)
    third = app.rewind(70)
    assert world.newest.owes == {"total": {"table": Owed(third.timeline, 50)}}
    assert first.timeline < second.timeline < third.timeline
    table.is_away = False
    given: list[int] = []
    world.start(world.plan)
    giver = giver_of(world, table, given)
    assert giver.give_next(world.newest.epoch)
    assert (table.record, given) == ([third.timeline, 50], [60])
    assert world.newest.owes == {}


def opened(table: Table, timeline: int) -> int | None:
    return table.open(Origin("app", "total", (), pa.schema([]), timeline=timeline))


def giver_of(world: World, table: Table, given: list[int]) -> deliver.Giver:
    """What a driver gives the table its clocks by; they are added to `given`."""
    return deliver.Giver(
        world.log,
        "total",
        "table",
        lambda timeline: opened(table, timeline),
        lambda entry, due: given.append(due.clock),
        lambda: 0,
        go_back=lambda then, clock: table.rewind(clock, LocalValues(pa.schema([]), ())),
    )


def test_outputs_that_can_t_go_back_are_refused_before_anything_changes() -> None:
    for sink, output, way in (
        (Stubborn(), "stubborn", "go back to a later clock, or give it a place of its own."),
        (nothing, "function nothing", 'say outputs={"function nothing": "again"} to have them again'),
        (ConsoleSink(), "console", 'say outputs={"console": "again"} to have them again'),
    ):
        world = played(output)
        before = world.newest
        with pytest.raises(InvalidInputError, match="and can't take them back") as raised:
            application(world, sink).rewind(60)
        assert way in str(raised.value)
        assert world.newest == before
    with pytest.raises(InvalidInputError, match="by its record it would leave out clocks that come again"):
        application(played("table"), Table([0, 110])).rewind(60, outputs={"table": "again"})
    with pytest.raises(InvalidInputError, match="gives no clock twice"):
        application(played("function nothing"), nothing, delivery=AT_MOST_ONCE).rewind(
            60, outputs={"function nothing": "again"}
        )
    with pytest.raises(InvalidInputError, match=r"'tables', and there is no such output; there are table\."):
        application(world, Table([0, 110])).plan_rewind(60, outputs={"tables": "retract"})
    with pytest.raises(InvalidInputError, match="say 'retract' or 'again'"):
        application(world, Table([0, 110])).plan_rewind(60, outputs={"table": "leave"})


def test_a_plan_names_every_output_that_can_t_go_back_and_no_rewind_is_made_by_it() -> None:
    world = World()
    names = ("stubborn", "function nothing", "table")
    world.plan = replace(world.plan, outputs=names)
    world.start(world.plan)
    world.read(12)
    for name in names:
        deliver.record(world.log, world.newest.epoch, "total", name, 110, 0)
    before, table = world.newest, Table([0, 110])
    app = Application("app", world.files.url, checkpoint_interval="10 seconds")
    app.add(Total(), Numbers(20), [Stubborn(), nothing, table])
    plan = app.plan_rewind(60)
    assert {(each.output, each.action, each.again_by) for each in plan.outputs} == {
        ("stubborn", "refuse", ""),
        ("function nothing", "refuse", "function nothing"),
        ("table", "retract", ""),
    }
    assert repr(plan).count("can't go back") == 2
    said = problem(lambda: app.rewind(plan))
    at = "may have values at clock=1970-01-01T00:00:00.000110Z (110), which is above the clock to go back to"
    assert sorted(said.split(". ")) == [
        f"task=total: sink='function nothing' {at}, and can't take them back; go back to a later clock, or give "
        'it on_rewind by ValuesAtClock, or say outputs={"function nothing": "again"} to have them again',
        f"task=total: sink='stubborn' {at}, and can't take them back; go back to a later clock, or give it a place of its own.",
    ]
    assert (world.newest, table.record) == (before, [0, 110])


class Counting(Table):
    def rows_above(self, clock: int, origin: Origin) -> int:
        raise InvalidInputError("the version of then is gone; go back to a later clock.")


def test_a_sink_that_finds_that_it_can_t_go_back_is_shown_in_the_plan() -> None:
    app = application(played("table"), Counting([0, 110]))
    (output,) = app.plan_rewind(60).outputs
    assert (output.action, output.rows, output.again_by) == ("refuse", None, "")
    assert problem(lambda: app.rewind(60)) == (
        "task=total: sink='table': the version of then is gone; go back to a later clock."
    )


class Unpermitted(Table):
    def rows_above(self, clock: int, origin: Origin) -> int:
        raise StoreRefusedError("the token has expired. Renew it.")


def test_a_sink_whose_place_refuses_its_credentials_holds_no_rewind(caplog: pytest.LogCaptureFixture) -> None:
    table = Unpermitted([0, 110])
    app = application(played("table"), table)
    plan = app.plan_rewind(60)
    assert [(each.action, each.rows) for each in plan.outputs] == [("retract", None)]
    assert [record.getMessage() for record in caplog.records] == [
        "task=total, sink='table': it does not tell its rows: the token has expired. Renew it."
    ]
    assert app.rewind(plan).clock == 60
    assert table.record == [plan.timeline, 60]


def test_a_plan_is_its_text_and_explains_what_its_tables_do_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "persistent_state")
    world, table = World(), Table([0, 110], is_away=True)
    world.plan = replace(world.plan, outputs=("table",))
    other = core.plan_of(Total("other"), SCHEMA, files=world.files, shards=2)
    world.start(world.plan, other)
    for plan in (world.plan, other):
        world.read(16, plan=plan)
    deliver.record(world.log, world.newest.epoch, "total", "table", 110, 0)
    keep(world.log, 140, "later", 0)
    app = application(world, table)
    planned = app.plan_rewind(80)
    rewound = app.rewind(planned)
    text = repr(rewound)
    assert (planned.is_made, rewound.is_made) == (False, True)
    assert text == "\n".join([repr(replace(rewound, is_made=False)), *made(rewound)])
    assert "is back at" not in repr(planned)
    assert "application=app is back at clock=1970-01-01T00:00:00.000080Z (80), in timeline 3" in text
    assert [each.getMessage() for each in caplog.records if each.levelname == "INFO"] == [
        "application=app is back at clock=1970-01-01T00:00:00.000080Z (80), in timeline 3"
    ]
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "tasks other, which the application leaves out, and which goes back as well" in lines
    assert "rows: how many rows of the sink go or change" in lines
    assert "names that go later, of 1970-01-01T00:00:00.000140Z (140)" in lines
    assert "which is the newest" not in text
    # The sink has yet to follow that, and the newest clock is gone back to.
    plan = app.plan_rewind(2**62)
    assert (plan.clock, plan.newest, plan.left_out) == (80, 80, ("other",))
    text = repr(plan)
    assert "clock        1970-01-01T00:00:00.000080Z (80), which is the newest" in text
    assert "The clock is the newest, so none is void. A driver that runs is stopped all the same" in text
    assert "A sink that goes back further" not in text
    plan = app.rewind(60)
    world.start(world.plan, other)
    for each in (world.plan, other):
        world.read(14, plan=each)
    text = repr(app.plan_rewind(100))
    assert "takes back what is above 1970-01-01T00:00:00.000060Z, and is given every clock above that again" in text
    assert "A sink that goes back further than to the clock is right no further." in text


@pytest.mark.parametrize("history", [False, True])
def test_nothing_stays_in_the_table_of_an_output_that_came_with_a_reset_since_the_clock(
    tmp_path: Path, history: bool
) -> None:
    sink, other = (SqlSink(tmp_path / "values.db", table, history=history) for table in ("totals", "others"))
    schema = pa.schema([("clock", pa.timestamp("us", "UTC")), ("value", pa.int64())])
    origin = Origin("app", "total", (), schema)
    world = World()
    world.plan = replace(world.plan, outputs=(other.name,))
    world.start(world.plan)
    world.read(6)
    deliver.record(world.log, world.newest.epoch, "total", other.name, 50, 0)
    world.read(8)
    world.plan = replace(world.plan, outputs=(sink.name, other.name))
    world.start(world.plan, reset=("total",))
    world.read(12)
    for each in (sink, other):
        each.open(origin)
        for clock in (50, 110):
            given = LocalValues.of(pa.Table.from_pylist([{"clock": us(clock), "value": 5}], schema))
            each.write_values(given, clock)
        deliver.record(world.log, world.newest.epoch, "total", each.name, 110, 0)
    app = application(world, [sink, other])
    plan = app.plan_rewind(60)
    assert {each.output: (each.clock, each.rows) for each in plan.outputs} == {
        sink.name: (None, 1 + history), other.name: (50, 1),
    }  # fmt: skip
    assert all(each.is_done for each in app.rewind(plan).outputs)
    of_now = replace(origin, timeline=plan.timeline)
    assert [each.open(of_now) for each in (sink, other)] == [None, 50]
    assert [each.rows_above(BEGINNING, of_now) for each in (sink, other)] == [0, 1]


def owes_everything(world: World, output: str) -> None:
    """Say of an output that its sink has yet to go back so far that nothing may stay."""

    def owe(entry: Entry) -> Entry:
        return entry.with_owed("total", output, Owed(entry.timeline, BEGINNING))

    amend(world.log, world.newest.epoch, owe, 0)


def test_a_function_is_told_of_what_may_not_stay_by_a_clock_below_all() -> None:
    world, backs = played("function nothing"), list[int]()

    def fail(clock: int) -> None:
        raise OSError("the page is not there")

    assert not application(world, ValuesAtClock(nothing, on_rewind=fail)).rewind(90).outputs[0].is_done
    owes_everything(world, "function nothing")
    assert application(world, ValuesAtClock(nothing, on_rewind=backs.append)).rewind(60).outputs[0].is_done
    assert (backs, world.newest.owes) == ([-(2**63)], {})
    world.start(world.plan)
    world.read(12)
    assert deliver.due(world.newest, "total", "function nothing") == deliver.Due(70, BEGINNING, BEGINNING)


def test_a_sink_that_may_keep_nothing_is_told_so_and_is_given_everything_with_the_next_clock() -> None:
    world, table = played("table"), Table([0, 110], is_away=True)
    app = application(world, table)
    app.rewind(90)
    owes_everything(world, "table")
    assert "has yet to go back to the beginning" in "\n".join(application_text(summary(world.files, "app")))
    table.is_away = False
    plan = app.plan_rewind(60)
    assert (plan.outputs[0].rows, table.counted) == (7, [90, BEGINNING])
    timeline = app.rewind(plan).timeline
    assert (table.backs, table.record) == ([(timeline, BEGINNING, [])], [timeline, BEGINNING])
    assert world.newest.owes == {}
    entry, given = world.start(world.plan), list[int]()
    first = min(entry.retained)
    assert deliver.due(entry, "total", "table") == deliver.Due(first, BEGINNING, BEGINNING)
    assert giver_of(world, table, given).give_next(entry.epoch)
    assert (given, deliver.due(world.newest, "total", "table")) == ([first], deliver.Due(first + 10, first, first))


@pytest.mark.parametrize("kind", ["sql", "parquet", "delta"])
def test_an_application_that_a_sink_would_refuse_at_the_next_start_does_not_go_back(tmp_path: Path, kind: str) -> None:
    others: dict[str, tuple[RecordingSink, RecordingSink]] = {
        "sql": (SqlSink(tmp_path / "a.db", "totals", history=True), SqlSink(tmp_path / "a.db", "totals")),
        "parquet": (ParquetSink(tmp_path / "table"), ParquetSink(tmp_path / "table")),
        "delta": (DeltaSink(tmp_path / "table"), DeltaSink(tmp_path / "table")),
    }
    of_another, sink = others[kind]
    schema = pa.schema([("clock", pa.timestamp("us", "UTC")), ("value", pa.int64())])
    of_another.open(Origin("app" if kind == "sql" else "another", "total", (), schema))
    world = played(sink.name)
    before, app = world.newest, application(world, sink)
    with pytest.raises(InvalidInputError) as at_start:
        sink.open(Origin("app", "total", (), schema))
    (output,) = app.plan_rewind(60).outputs
    assert (output.action, output.rows, output.again_by) == ("refuse", None, "")
    assert problem(lambda: app.rewind(60)) == f"task=total: sink={sink.name!r}: {at_start.value}"
    assert world.newest == before


@dataclass
class Hung(Table):
    """A table whose place does not answer until it is told to."""

    answers: threading.Event = field(default_factory=threading.Event)
    name = "hung"

    def open(self, origin: Origin) -> int | None:
        assert self.answers.wait(PATIENCE)
        return super().open(origin)

    def rows_above(self, clock: int, origin: Origin) -> int:
        assert self.answers.wait(PATIENCE)
        return 7


def test_a_sink_that_never_answers_holds_neither_a_plan_nor_a_rewind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wait(futures: Sequence[Future[Any]], seconds: float) -> Any:
        # However slow the machine is, the sink that answers has the time for it.
        concurrent.futures.wait(futures, PATIENCE, FIRST_COMPLETED)
        return concurrent.futures.wait(futures, seconds)

    monkeypatch.setattr(rewinds, "SINK_SECONDS", 0.2)
    monkeypatch.setattr(rewinds, "wait", wait)
    world = World()
    world.plan = replace(world.plan, outputs=("hung", "table"))
    world.start(world.plan)
    world.read(12)
    for output in ("hung", "table"):
        deliver.record(world.log, world.newest.epoch, "total", output, 110, 0)
    hung, table = Hung([0, 110]), Table([0, 110])
    app = application(world, [hung, table])
    plan = app.plan_rewind(60)
    assert [(each.output, each.rows) for each in plan.outputs] == [("hung", None), ("table", 7)]
    done = app.rewind(plan)
    assert [(each.output, each.is_done) for each in done.outputs] == [("hung", False), ("table", True)]
    assert world.newest.owes == {"total": {"hung": Owed(done.timeline, 60)}}
    assert [record.getMessage() for record in caplog.records] == [
        "task=total, sink='hung': the sink did not tell its rows within 0.2 s. The plan is made without them.",
        "task=total, sink='hung': the sink did not go back within 0.2 s. If it has not by then, it does so at the next start.",
    ]
    waiting = [each for each in threading.enumerate() if each.name == "persistent-state total hung rewinds"]
    assert [each.daemon for each in waiting] == [True, True], "a process ends without them"
    # It answers after all, and is back before a start.
    hung.answers.set()
    for each in waiting:
        each.join(PATIENCE)
    assert (hung.record, world.newest.owes) == ([done.timeline, 60], {})


def test_outputs_of_one_name_are_told_apart_by_their_tasks() -> None:
    world, name = World(), "function nothing"
    plans = [core.changed(world.plan, task=Total(task), outputs=(name,)) for task in ("total", "other")]
    world.start(*plans)
    for plan in plans:
        world.read(12, plan=plan)
    for plan in plans:
        deliver.record(world.log, world.newest.epoch, plan.name, name, 110, 0)
    backs = list[int]()
    app = application(world, nothing)
    app.add(Total("other"), Numbers(20), ValuesAtClock(nothing, on_rewind=backs.append))
    assert problem(lambda: app.plan_rewind(60, outputs={name: "again"})) == (
        f"outputs names '{name}', which several tasks have; say 'total/{name}' or 'other/{name}'."
    )
    assert f'say outputs={{"total/{name}": "again"}} to have them again' in problem(lambda: app.rewind(60))
    assert "there are other/function nothing, total/function nothing." in problem(
        lambda: app.plan_rewind(60, outputs={"none/function nothing": "again"})
    )
    done = app.rewind(60, outputs={f"total/{name}": "again"})
    assert {(each.task, each.action) for each in done.outputs} == {("total", "again"), ("other", "retract")}
    assert backs == [60]
    # A name that is alone may have its task's, too.
    alone = application(played(name), nothing)
    assert [each.action for each in alone.rewind(60, outputs={f"total/{name}": "again"}).outputs] == ["again"]


def test_a_clock_whose_bad_rows_are_collected_while_it_is_gone_back_to_is_kept_no_more() -> None:
    """A driver that runs goes on meanwhile, and joins files of bad rows."""
    world = World(Keeping(2))
    world.read(7)

    def play_bad_rows(*timestamps: int | None) -> None:
        """A micro-batch that has a row without a timestamp, too."""
        rows = [{"ts": at, "n": 1} for at in (*timestamps, None)]
        core.play(world.log, world.plan, pa.RecordBatch.from_pylist(rows, SCHEMA), keeping=world.keeping)

    play_bad_rows(75)
    app, clock = application(world, None), max(world.newest.kept)
    plan, read_table = app.plan_rewind(clock), runs.read_table
    path = world.newest.flow_of("total").late_rows.sides[-1].file.path
    collector, came = Collector(world.log), threading.Event()

    def read(*arguments: Any, **more: Any) -> pa.Table:
        if not came.is_set():
            came.set()
            while path in world.newest.files():
                play_bad_rows()
            for at in range(85, 500, 10):
                play_bad_rows(at)
                collector.collect(world.newest.epoch, now=10**12, keeping=world.keeping)
        return read_table(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "read_table", read)
        # This process has not read the file before.
        patch.setattr(cache, "find", lambda *which: None)
        said = problem(lambda: app.rewind(plan))
    assert came.is_set()
    assert f"({clock}) is kept no more; plan again. Nothing changed." in said
    assert world.newest.timeline == 0
    # Of a clock that is still kept it is damage.
    play_bad_rows(505)
    plan = app.plan_rewind(max(world.newest.kept))
    world.files.delete(world.newest.flow_of("total").late_rows.sides[-1].file.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "find", lambda *which: None)
        assert "names is gone" in problem(lambda: app.rewind(plan), DamagedError)


def test_an_output_that_is_given_clocks_again_by_word() -> None:
    world = played("function nothing")
    plan = application(world, nothing).rewind(60, outputs={"function nothing": "again"})
    assert [each.action for each in plan.outputs] == ["again"]
    entry = world.start(world.plan)
    assert entry.owes == {}
    world.read(12)
    assert deliver.due(world.newest, "total", "function nothing") == deliver.Due(70, -(2**63), -(2**63))


def test_a_function_with_on_rewind_goes_back() -> None:
    world, backs = played("function nothing"), list[int]()
    plan = application(world, ValuesAtClock(nothing, on_rewind=backs.append)).rewind(60)
    assert (backs, plan.outputs[0].is_done, world.newest.owes) == ([60], True, {})
    with pytest.raises(InvalidInputError, match="on_rewind"):
        ValuesAtClock(Stubborn(), on_rewind=backs.append)


def test_a_source_that_has_no_longer_what_is_to_be_read_again_is_refused() -> None:
    world = played("table")
    app = application(world, Table([0, 110]), Numbers(20, oldest=8))
    assert app.plan_rewind(90).clock == 90
    with pytest.raises(InvalidInputError, match="position=6 is gone; the oldest is 8"):
        app.plan_rewind(60)


class Folder:
    """An application that has read a file for each message, up to clock 110, and whose last two files came later."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.path, self.world = path, World()
        self.source = FileSource(
            path, timestamp="ts", timestamp_unit="us", schema=SCHEMA, max_files_per_batch=1, **options
        )
        for some in (range(10), range(10, 12)):
            for number in some:
                self.write(number)
            self.read()

    def read(self) -> None:
        """Start, and read all files."""
        self.world.sources["total"] = copy.deepcopy(self.source)
        self.world.start()
        while self.world.turn("total"):
            pass

    def write(self, number: int, value: int = 1) -> None:
        row = {**self.world.rows(number + 1)[number], "n": value}
        (self.path / f"{number:02}.json").write_text(json.dumps(row) + "\n")

    def journal(self) -> list[str]:
        return lists.read_journals(self.world.files, self.world.newest.flows["total"])[""]

    def app(self) -> Application:
        return Application("app", self.world.files.url, checkpoint_interval="10 seconds").add(Total(), self.source)


def test_a_rewind_is_refused_if_files_are_gone_that_were_read_since_the_clock(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    before = folder.world.newest
    assert before.clock == 110
    # Of what is below the clock, nothing is read again.
    (tmp_path / "03.json").unlink()
    (reads,) = folder.app().plan_rewind(60).reads
    assert (reads.count, reads.unit, reads.begins) == (6, "files", {"": "06.json"})
    assert repr(folder.app().plan_rewind(60)).endswith("  06.json   6 files")
    for number in (7, 8, 10, 11):
        (tmp_path / f"{number:02}.json").unlink()
    said = problem(lambda: folder.app().rewind(60))
    assert said == (
        f"4 of the 6 files of FileSource({str(tmp_path)!r}) that are to be read again are gone: '07.json', '08.json', "
        "'10.json' and 1 more. Bring back what they were, put files without rows in their place, or go back to a later clock."
    )
    assert folder.world.newest == before
    # A plan is no promise of what is there later.
    for number in (7, 8, 10, 11):
        folder.write(number)
    plan = folder.app().plan_rewind(60)
    for number in (7, 8, 10, 11):
        (tmp_path / f"{number:02}.json").unlink()
    assert problem(lambda: folder.app().rewind(plan)) == said
    assert folder.world.newest == before
    # Those that were first read after the clock are read as they are.
    for number in (7, 8, 10, 11):
        folder.write(number, value=100)
    assert folder.app().plan_rewind(60).clock == 60
    (tmp_path / "11.json").unlink()
    for clock in (60, 100, 110):
        assert "1 of the" in problem(lambda clock=clock: folder.app().plan_rewind(clock))
    folder.write(11)
    folder.app().rewind(60)
    assert folder.world.newest.clock == 60


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(soak_or(ci=2, soak=12)))
def test_whatever_files_go_no_rewind_loses_a_row(tmp_path: Path, seed: int) -> None:
    """Play an application whose files are deleted at any moment, and take it back at any moment, to any kept clock."""
    chance, world = random.Random(seed), World()
    source = FileSource(tmp_path, timestamp="ts", timestamp_unit="us", schema=SCHEMA, max_files_per_batch=1)
    app = Application("app", world.files.url, checkpoint_interval="10 seconds").add(Total(), source)
    read, gone, written, refused, back = set[int](), set[int](), 0, 0, 0

    def run() -> None:
        world.sources["total"] = copy.deepcopy(source)
        world.start()
        while world.turn("total"):
            pass
        read.update({*range(written)} - gone)
        newest = world.newest.clock
        assert world.value() == sum(1 for number in read if 10 * number + 5 < newest)

    for _ in range(30):
        for _ in range(chance.randrange(3)):
            (tmp_path / f"{written:03}.json").write_text(json.dumps({"ts": 10 * written + 5, "n": 1}) + "\n")
            written += 1
        if chance.random() < 0.5:
            run()
        # What a start would read again stays.
        unread, newest = {*range(written)} - read, world.newest.clock
        free = {number for number in range(written) if number in unread or 10 * number + 5 < newest} - gone
        if chance.random() < 0.4 and free:
            gone.add(number := chance.choice(sorted(free)))
            (tmp_path / f"{number:03}.json").unlink()
        if chance.random() < 0.4 and world.newest.kept:
            clock = chance.choice([*world.newest.kept])
            if missing := sorted(number for number in read & gone if 10 * number + 5 >= clock):
                assert f"{missing[0]:03}.json" in problem(lambda clock=clock: app.rewind(clock))
                refused += 1
                if chance.random() < 0.5:
                    # They are brought back.
                    for number in missing:
                        (tmp_path / f"{number:03}.json").write_text(json.dumps({"ts": 10 * number + 5, "n": 1}) + "\n")
                    gone -= {*missing}
            else:
                assert app.rewind(clock).clock == clock
                back += 1
                run()
    assert refused
    assert back


def test_a_rewind_compares_with_the_files_of_the_newest_timeline(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.app().rewind(60)
    folder.write(12)
    folder.read()
    assert folder.world.newest.clock == 110
    (tmp_path / "12.json").unlink()
    assert "are gone: '12.json'. Bring back" in problem(lambda: folder.app().plan_rewind(30))


def test_the_file_of_which_the_state_at_the_clock_may_have_rows_is_read_again_as_it_was(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    # Its position is above that of the clock 50, and the clock's entry knows it.
    number = folder.world.newest.flow_of("total").source.next_positions[""] >> 32
    entry = kept_entries.read(folder.world.log, folder.world.newest.kept[50].entry)
    known = lists.read_journals(folder.world.files, entry.flow_of("total"))[""]
    again = entry.flow_of("total").source.replays_from(50)[""] >> 32
    assert again < len(known) < number
    folder.write(again, value=1000)
    said = problem(lambda: folder.app().plan_rewind(50))
    assert f"have another size than they had: '{again:02}.json'. Bring back" in said


def test_an_output_whose_sink_can_t_go_back_any_more_is_refused_when_it_comes_back() -> None:
    world = played("stubborn")
    app = Application("app", world.files.url).add(Total(), Numbers(20))
    plan = app.rewind(60)
    assert plan.outputs == (OutputPlan("total", "stubborn", "retract", 110, 60, is_left_out=True),)
    left = "left out; goes back, or is refused, when it is added again"
    assert left in repr(plan)
    assert [*made(plan)][-1] == f"task=total sink='stubborn' is {left}"
    giver = deliver.Giver(world.log, "total", "stubborn", lambda timeline: 110, never, lambda: 0)
    with pytest.raises(InvalidInputError, match=r"was rewound to clock=.*, and it can't take back what is above that"):
        giver.open()


def test_the_state_at_the_clock_stays_readable_until_a_sink_that_is_down_for_long_has_gone_back() -> None:
    world, table = played("table"), Table([0, 110], is_away=True)
    application(world, table).rewind(60)
    world.start(world.plan)
    world.keeping = Keeping(1, 0)
    world.read(40, value=100)
    core.collect(world.log, world.newest.epoch, now=10**12, keeping=world.keeping)
    assert 60 in world.newest.retained
    assert [*world.newest.kept] == [390]
    table.is_away = False
    # Whoever plans now finds that it has yet to follow, and a rewind lets it.
    app = application(world, table)
    assert app.plan_rewind(390).outputs == (OutputPlan("total", "table", "retract", None, 60, rows=7),)
    assert app.rewind(390).outputs[0].is_done
    assert table.backs == [(world.newest.timeline, 60, [{"clock": us(60), "value": 5}])]
    assert world.newest.tasks["total"].outputs.delivered == {"table": 60}


def test_a_driver_that_opened_a_sink_before_the_application_was_rewound_opens_it_again() -> None:
    world, table, given = played("table"), Table([0, 110]), list[int]()
    giver = giver_of(world, table, given)
    giver.open()
    plan = application(world, Table([0, 110], is_away=True)).rewind(60)
    entry = world.start(world.plan)
    assert not giver.give_next(entry.epoch)
    assert (table.record, given, world.newest.owes) == ([plan.timeline, 60], [], {})
    world.read(12)
    assert giver.give_next(entry.epoch)
    assert given == [70]


def test_a_place_under_another_name_is_not_believed_to_have_what_is_void() -> None:
    world, table = played("table"), Table([0, 110], is_away=True)
    application(world, table).rewind(60)
    table.is_away = False
    world.plan = replace(world.plan, outputs=("other name",))
    world.start(world.plan)
    giver = deliver.Giver(world.log, "total", "other name", lambda timeline: opened(table, timeline), never, lambda: 0)
    with pytest.raises(InvalidInputError, match=r"it holds clock=.* \(110\), to which application=app has never come"):
        giver.give_next(world.newest.epoch)


def test_the_name_of_a_kept_clock_stands_for_it_in_python() -> None:
    world = played("table")
    app = application(world, Table([0, 110]))
    keep(world.log, 60, "before the sale", 0)
    assert read_state(world.files.url, "app", "total", "before the sale").equals(
        read_state(world.files.url, "app", "total", 60)
    )
    task = open_store(world.files.url).application("app").task("total")
    assert task.at("before the sale").clock == 60
    assert app.plan_rewind("before the sale").clock == 60
    assert open_store(world.files.url).application("app").keep("of May", "before the sale") == 60
    assert open_store(world.files.url).application("app").branch("green", "of May") == 60
    for ask in (task.at, app.plan_rewind, app.rewind):
        said = problem(lambda ask=ask: ask("Christmas"), NotThereError)
        assert "clock='Christmas' is not a time, and keeps no clock of app; give" in said
        assert "or the name of a kept clock; there are before the sale, of May." in said
    assert app.rewind("of May").clock == 60


@dataclass
class Shops(Numbers):
    """What a `Graph` plays, as a source."""

    schema = EVENTS


def regions(world: Graph, task: PersistentTask, sink: Any = None) -> Application:
    """An application of the shops of a graph and of one task that they feed."""
    app = Application("app", world.files.url, checkpoint_interval="10 seconds")
    return app.add(PerShop(), Shops(2)).add(task, Changes("PerShop"), sink)


def with_regions(output: str | None = None) -> Graph:
    world = Graph()
    world.wanted = ["PerShop", "PerRegion"]
    world.plans["PerRegion"] = replace(world.plans["PerRegion"], outputs=(output,) if output else ())
    world.start()
    for row in ((12, 2, 20), (25, 1, 7), (45, 1, 7)):
        world.play("PerShop", [row])
        world.steps()
        if output and world.newest.clock > BEGINNING:
            deliver.record(world.log, world.newest.epoch, "PerRegion", output, world.newest.clock, 0)
    return world


def test_a_rewind_with_a_new_version_of_a_derived_task_says_that_the_next_start_rebuilds_it() -> None:
    world = with_regions()
    to = world.newest.retained[0]
    plan = regions(world, Other()).plan_rewind(to)
    assert plan.rebuilt == ("PerRegion",)
    assert "rebuilt      PerRegion, by the next start, from the state that feeds it" in repr(plan).splitlines()
    assert regions(world, PerRegion()).plan_rewind(to).rebuilt == ()
    app = regions(world, Other())
    app.rewind(plan)
    plans = [world.plans["PerShop"], core.changed(world.plans["PerRegion"], task=Other())]
    # The other code makes something else of the shops.
    world.check = lambda: None  # type: ignore[method-assign]
    world.start(*plans)
    assert len(world.due()) == 1
    world.steps()
    assert world.newest.clock == to
    shops = core.state_at(world.newest, plans[0], to)
    assert core.state_at(world.newest, plans[1], to) == {
        (shop["region"],): {"total": 0, "shops": shop["revenue"]} for shop in shops.values()
    }


def test_a_rewind_refuses_the_place_of_an_output_of_a_task_that_the_next_start_rebuilds() -> None:
    world = with_regions("table")
    to = world.newest.retained[0]
    with pytest.raises(
        InvalidInputError, match="task=PerRegion is rebuilt, and sink='table' has what it was before; give"
    ):
        regions(world, Other(), Table([0, to])).plan_rewind(to)
    table = Table([0, BEGINNING])
    table.name = "another"
    assert regions(world, Other(), table).plan_rewind(to).rebuilt == ("PerRegion",)


def test_what_the_page_says_of_a_message_from_the_future(tmp_path: Path) -> None:
    ten = 10_000_000
    source = FileSource(tmp_path, timestamp="ts", timestamp_unit="us", schema=SCHEMA, max_files_per_batch=1)

    def app(max_jump: str | None) -> Application:
        made = Application("app", str(tmp_path / ".apps"), checkpoint_interval="10 seconds", max_jump=max_jump)
        return made.add(Total(), source)

    def read(app: Application) -> LocalApplication:
        files = open_files(str(tmp_path / ".apps"))
        played = LocalApplication(*compiled(app, files), Keeping(2, retain=((ten, 10 * ten),)))
        played.start()
        while played.turn("total"):
            pass
        return played

    def write(number: int, at: int) -> None:
        (tmp_path / f"{number}.json").write_text(json.dumps({"ts": at, "n": 1}) + "\n")

    for number in range(6):
        write(number, number * ten + 5)
    before = read(app(None))
    assert (before.clock, {*before.newest.kept}) == (5 * ten, {ten * i for i in range(6)})
    keep(before.log, 2 * ten, "before", now=0)
    # An hour and more ahead, and within what `max_ahead` takes for right.
    write(6, 1000 * ten + 5)
    write(7, 6 * ten + 5)
    after = read(app(None))
    assert (after.clock, after.newest.late_counts_of("total")) == (1000 * ten, {"late": 1})
    # The rule counts in event time; the newest two, and the one with a name, stay.
    assert {*after.newest.kept} == {2 * ten, 5 * ten, 1000 * ten}
    app("1 hour").rewind(5 * ten)
    again = read(app("1 hour"))
    assert (again.clock, again.newest.late_counts_of("total")) == (
        6 * ten,
        {"timestamp too far ahead of its channel": 1},
    )
    assert again.state("total") == {(): 6}
