"""What each sink has after a rewind: all that its task gave up to the clock, in one life, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import FencedError, InvalidInputError, NonWindowState, PersistentTask, TumblingWindow, WindowState
from persistent_state.batch.plan import AT_LEAST_ONCE, Plan
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import full_clock
from persistent_state.partials.since import Since
from persistent_state.protocol import deliver, naming, rewind
from persistent_state.protocol.deliver import Due, Giver
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.next_entry import amend
from persistent_state.protocol.rewind_plan import AGAIN, RETRACT, OutputPlan
from persistent_state.run import running
from persistent_state.store.entry import Entry, Owed
from persistent_state.store.log import Log
from persistent_state.store.output_state import RETIRED
from persistent_state.store.state_at import state_at
from tests import core
from tests.protocol.test_rewind import SCHEMA, Total, World


class PerTen(PersistentTask):
    """Windows of ten microseconds."""

    value, name = "n", "total"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(Sum(), TumblingWindow(timedelta(microseconds=10)))


def windows() -> World:
    """A world whose task has windows: one closes at each clock."""
    world = World()
    world.files = core.memory()
    world.log = Log(world.files, "app")
    world.plan = core.plan_of(PerTen(), SCHEMA, files=world.files, shards=2)
    world.start(world.plan)
    return world


class Sink:
    """A table with a row for each value at a clock, and a record; or, if it keeps none, what a function has done."""

    def __init__(self, keeps_record: bool = True) -> None:
        self.rows: list[tuple[int, tuple[Any, ...]]] = []
        self.keeps_record = keeps_record
        self.timeline, self.clock, self.opened = 0, BEGINNING, 0
        self.backs: list[int] = []

    @property
    def clocks(self) -> list[int]:
        return list(dict.fromkeys(clock for clock, _ in self.rows))

    @property
    def newest(self) -> tuple[int, int]:
        """The last clock and its total."""
        clock, values = self.rows[-1]
        return clock, values[-1]

    def twice(self) -> list[tuple[Any, ...]]:
        """The windows that were given more than once."""
        return [window for window, count in Counter(values[:-1] for _, values in self.rows).items() if count > 1]

    def open(self, timeline: int) -> int | None:
        self.opened = timeline
        return self.clock if self.keeps_record else None

    def write(self, clock: int, values: Sequence[tuple[Any, ...]]) -> None:
        if not self.keeps_record or self.clock < clock:
            self.rows += [(clock, each) for each in values]
            self.timeline, self.clock = self.opened, clock

    def back(self, then: Entry | None, clock: int) -> None:
        self.backs.append(clock)
        if not self.keeps_record or self.timeline < self.opened:
            self.rows = [(at, each) for at, each in self.rows if at <= clock]
            self.timeline, self.clock = self.opened, min(self.clock, clock)


def giver_of(world: World, plan: Plan, sink: Sink, output: str = "sink", goes_back: bool = True) -> Giver:
    def write(entry: Entry, due: Due) -> None:
        since = Since(due.since, recent=due.recent)
        state = state_at(world.files, "app", entry, plan.name, plan.layout, due.clock, since)
        sink.write(due.clock, [tuple(row.values()) for row in state.read().to_pylist()])

    back = sink.back if goes_back else None
    return Giver(world.log, plan.name, output, sink.open, write, lambda: 0, plan.delivery, back)


def deliver_all(world: World, plan: Plan, sink: Sink, output: str = "sink", most: int = 99) -> None:
    giver = giver_of(world, plan, sink, output)
    while most and giver.give_next(world.newest.epoch):
        most -= 1


def back(world: World, to: int, action: str = RETRACT) -> tuple[OutputPlan, ...]:
    planned = core.plan_rewind(world.log, to, action)
    rewind.rewind(world.log, planned, writer=f"r{world.newest.number}", now=0)
    return planned.outputs


def give_unrecorded(monkeypatch: pytest.MonkeyPatch, world: World, plan: Plan, sink: Sink) -> None:
    """Give a sink the next clock by a driver that dies before the log says so."""

    def die(*of: object) -> None:
        raise KeyboardInterrupt

    giver, epoch = giver_of(world, plan, sink), world.newest.epoch
    with monkeypatch.context() as patch:
        patch.setattr(deliver, "record", die)
        with pytest.raises(KeyboardInterrupt):
            giver.give_next(epoch)


def with_sink(world: World, *outputs: str) -> Plan:
    """The world's plan with these outputs, started."""
    plan = replace(world.plan, outputs=outputs)
    world.start(plan)
    return plan


def test_an_output_that_came_later_is_not_given_windows_twice() -> None:
    world, sink = windows(), Sink()
    world.read(12)
    plan = with_sink(world, "sink")
    world.read(14, plan=plan)
    deliver_all(world, plan, sink)
    assert sink.clocks[0] < 60 < world.newest.tasks["total"].stored.cuts[-1]
    assert [(each.output, each.action, each.clock) for each in back(world, 60)] == [("sink", RETRACT, 60)]
    world.start(plan)
    world.read(14, plan=plan)
    deliver_all(world, plan, sink)
    assert sink.twice() == []
    assert len(sink.rows) == sum(1 for row in world.rows(14) if 0 < row["ts"] < 130)


def test_an_output_that_began_above_the_clock_gives_all_back_and_is_new() -> None:
    world, sink = World(Keeping(2)), Sink()
    world.read(12)
    world.keeping = Keeping(20)
    kept = [*world.newest.kept]
    world.read(20)
    naming.keep(world.log, kept[0], "low", 0)
    world.keeping = Keeping(2)
    world.read(30)
    plan = with_sink(world, "sink")
    deliver_all(world, plan, sink)
    assert min(sink.clocks) > kept[0]
    assert [(each.action, each.clock) for each in back(world, kept[0])] == [(RETRACT, None)]
    world.start(plan)
    deliver_all(world, plan, sink)
    assert sink.backs == [BEGINNING]
    assert sink.newest == (kept[0], world.value(kept[0]))


def test_a_rewind_across_a_rebuild_leaves_nothing_of_the_life_that_is_void() -> None:
    world, old, new = World(), Sink(), Sink()
    plan = with_sink(world, "old")
    world.read(12, plan=plan)
    deliver_all(world, plan, old, "old", most=3)
    rebuilt = replace(world.plan, outputs=("new",))
    world.start(rebuilt, rebuild=("total",))
    world.read(12, value=7, plan=rebuilt)
    deliver_all(world, rebuilt, new, "new")
    assert new.clocks[0] < 60
    assert {each.output: each.clock for each in back(world, 60)} == {"new": None, "old": None}
    plan = with_sink(world, "old", "new")
    for sink, output in ((old, "old"), (new, "new")):
        deliver_all(world, plan, sink, output)
        assert sink.newest == (60, world.value(60))
        assert {values[-1] % 7 for _, values in sink.rows} != {0}


def test_a_task_that_came_later_and_read_history_gives_all_back() -> None:
    world, sink = World(), Sink()
    world.read(12)
    other = replace(core.plan_of(Total("other"), SCHEMA, files=world.files, shards=2), outputs=("sink",))
    world.start(world.plan, other, rebuild=("other",))
    for plan in (world.plan, other):
        world.read(14, plan=plan)
    deliver_all(world, other, sink)
    assert min(sink.clocks) < 60
    planned = core.plan_rewind(world.log, 60, RETRACT)
    assert planned.later_tasks == ("other",)
    back(world, 60)
    world.start(world.plan, other)
    for plan in (world.plan, other):
        world.read(9, value=100, plan=plan)
    deliver_all(world, other, sink)
    assert [clock for clock in sink.clocks if clock <= 60] == []
    assert sink.newest == (world.newest.clock, world.value(task="other"))


@pytest.mark.parametrize("make", [World, windows])
def test_a_rewind_across_a_reset_gives_the_clocks_that_the_sink_had_not_been_given(make: Any) -> None:
    world, sink = make(), Sink()
    plan = with_sink(world, "sink")
    world.read(3, plan=plan)
    deliver_all(world, plan, sink)
    world.read(12, plan=plan)
    deliver_all(world, plan, sink, most=4)
    world.start(plan, reset=("total",))
    world.read(14, plan=plan)
    deliver_all(world, plan, sink)
    planned = core.plan_rewind(world.log, 100, RETRACT)
    assert planned.earlier_lives == ("total",)
    back(world, 100)
    world.start(plan)
    world.read(14, plan=plan)
    deliver_all(world, plan, sink)
    if make is World:
        assert sink.clocks == [clock for clock in world.newest.retained if clock > 0]
        assert sink.newest == (world.newest.clock, world.value())
    else:
        assert sink.twice() == []
        assert len(sink.rows) == sum(1 for row in world.rows(14) if 0 < row["ts"] < 130)


def back_and_again(world: World, sink: Sink) -> Plan:
    """Give a sink all clocks, and start at 60 again: it keeps what it has, and is to be given the clocks above again."""
    plan = with_sink(world, "sink")
    world.read(12, plan=plan)
    deliver_all(world, plan, sink)
    back(world, 60, AGAIN)
    world.start(plan)
    return plan


def test_a_sink_that_is_given_clocks_again_is_given_what_only_the_void_timeline_changed() -> None:
    world, sink = World(), Sink(keeps_record=False)
    plan = back_and_again(world, sink)
    assert world.newest.owes == {}
    world.read(12, plan=plan)
    assert deliver.due(world.newest, "total", "sink") == Due(70, BEGINNING, BEGINNING)


def test_windows_that_are_given_again_are_those_above_the_clock() -> None:
    world, sink = windows(), Sink(keeps_record=False)
    plan = back_and_again(world, sink)
    world.read(12, plan=plan)
    assert deliver.due(world.newest, "total", "sink") == Due(70, 60, BEGINNING)


def test_a_sink_that_is_given_clocks_again_may_still_have_those_of_the_void_timeline() -> None:
    world, sink = World(), Sink(keeps_record=False)
    plan = back_and_again(world, sink)
    world.read(9, value=100, plan=plan)
    deliver_all(world, plan, sink)
    with pytest.raises(InvalidInputError, match=r"at clock=.*\(110\), and none above clock=.*\(60\) holds any more"):
        core.plan_rewind(world.log, 70)
    world.read(20, value=100, plan=plan)
    deliver_all(world, plan, sink)
    assert [(each.action, each.furthest) for each in back(world, 90, AGAIN)] == [(AGAIN, 190)]


def test_a_sink_that_owes_a_rewind_is_asked_again_whether_it_can_go_back() -> None:
    world, sink = World(), Sink()
    plan = with_sink(world, "sink")
    world.read(12, plan=plan)
    deliver_all(world, plan, sink)
    back(world, 60)
    assert world.newest.owes == {"total": {"sink": Owed(world.newest.timeline, 60)}}
    with pytest.raises(InvalidInputError, match="owes to take back since an earlier rewind"):
        core.plan_rewind(world.log, 60)
    world.start(plan)
    world.read(14, plan=plan)
    # The rows that go are those above the lower clock.
    planned = core.plan_rewind(world.log, 90, RETRACT)
    assert [(each.furthest, each.clock) for each in planned.outputs] == [(None, 60)]
    # Whoever says that it is to be given clocks again has it given those above the lower clock.
    back(world, 90, AGAIN)
    assert (world.newest.owes, world.newest.tasks["total"].outputs.delivered) == ({}, {"sink": 60})


def test_the_debt_of_an_output_of_a_life_before_stays() -> None:
    world, old = World(), Sink()
    plan = with_sink(world, "old")
    world.read(12, plan=plan)
    deliver_all(world, plan, old, "old")
    back(world, 60)
    rebuilt = replace(world.plan, outputs=("new",))
    world.start(rebuilt, rebuild=("total",))
    world.read(12, value=7, plan=rebuilt)
    back(world, 90)
    assert world.newest.owes["total"]["old"] == Owed(world.newest.timeline, 60)


def test_under_at_least_once_a_clock_below_what_a_sink_has_may_come_to_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.files = core.memory()
    world.log = Log(world.files, "app")
    fast = core.plan_of(Total("fast"), SCHEMA, files=world.files, delivery=AT_LEAST_ONCE)
    fast = replace(fast, outputs=("sink",))
    slow, sink = core.plan_of(Total("slow"), SCHEMA, files=world.files), Sink(keeps_record=False)
    world.start(fast, slow)
    core.play(world.log, fast, pa.RecordBatch.from_pylist([{"ts": ts, "n": 1} for ts in (107, 125)], SCHEMA))
    give_unrecorded(monkeypatch, world, fast, sink)
    core.play(world.log, slow, pa.RecordBatch.from_pylist([{"ts": 75, "n": 1}], SCHEMA))
    assert (sink.clocks, world.newest.clock) == ([110], 70)
    with pytest.raises(InvalidInputError, match=r"may have values at clock=.*\(110\)"):
        core.plan_rewind(world.log, 70)


def test_a_sink_that_lacks_values_of_its_clock_is_not_given_its_windows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world, sink = windows(), Sink()
    plan = with_sink(world, "sink")
    world.read(12, plan=plan)
    deliver_all(world, plan, sink)
    back(world, 60)
    world.start(plan)
    world.read(14, plan=plan)
    # Nobody knows any more what was at the clock.
    giver = giver_of(world, plan, sink)
    monkeypatch.setattr(giver, "_entry_at", lambda clock: None)
    giver.follow(world.newest.epoch)
    assert deliver.due(world.newest, "total", "sink") == Due(70, 60, BEGINNING)
    # A driver gives it the next clock, and dies before the log says so.
    give_unrecorded(monkeypatch, world, plan, sink)
    world.start(plan)
    deliver_all(world, plan, sink)
    assert sink.twice() == []
    assert all(record.is_right for record in world.newest.tasks["total"].outputs.records.values())


def test_names_of_clocks_above_are_told() -> None:
    world = World()
    world.read(12)
    naming.keep(world.log, 100, "before the sale", 0)
    naming.keep(world.log, 30, "low", 0)
    planned = core.plan_rewind(world.log, 60)
    assert planned.names_gone == {"before the sale": 100}
    entry = rewind.rewind(world.log, planned, writer="somebody", now=0)
    assert {name for kept in entry.kept.values() for name in kept.names} == {"low"}


def test_what_an_output_that_left_owes_is_to_the_last_clock_that_the_log_of_then_says() -> None:
    world, sink = World(), Sink()
    plan = with_sink(world, "sink")
    world.read(6, plan=plan)
    deliver_all(world, plan, sink)
    world.read(12, plan=plan)
    with_sink(world)
    (output,) = back(world, 90)
    assert output.clock is not None
    assert output.clock <= sink.clocks[-1]
    plan = with_sink(world, "sink")
    deliver_all(world, plan, sink)
    assert sink.clocks == [clock for clock in world.newest.retained if clock > 0]
    assert isinstance(plan.task.persistent_state(), NonWindowState)


def with_other(world: World) -> Plan:
    """A second task of the world, with a sink. Both are started."""
    other = replace(core.plan_of(Total("other"), SCHEMA, files=world.files, shards=2), outputs=("sink",))
    world.start(world.plan, other)
    return other


def check_history(world: World, sink: Sink, task: str = "other") -> None:
    """A sink has the values at each clock that it has, and at the newest."""
    assert sink.clocks[-1] == world.newest.clock
    has = {clock: total for clock, (total,) in sink.rows if clock in world.newest.readable}
    assert has == {clock: world.value(clock, task) for clock in has}


def play_both(world: World, other: Plan, end: int, value: int = 1) -> None:
    for plan in (world.plan, other):
        world.read(end, value=value, plan=plan)


def test_a_sink_goes_back_to_where_its_task_stood_at_the_clock() -> None:
    world, sink = World(), Sink()
    other = with_other(world)
    play_both(world, other, 5)
    deliver_all(world, other, sink)
    world.start(world.plan)
    world.read(9)
    world.start(world.plan, other)
    play_both(world, other, 12)
    deliver_all(world, other, sink)
    assert sink.clocks[-3:] == [90, 100, 110]
    planned = back(world, 70)
    assert [(each.task, each.clock) for each in planned] == [("other", 30)]
    world.start(world.plan, other)
    play_both(world, other, 12, value=100)
    deliver_all(world, other, sink)
    assert sink.backs == [30]
    check_history(world, sink)


def test_a_sink_does_not_go_back_into_a_gap_that_was_left_while_its_task_was_away() -> None:
    world, sink = World(), Sink()
    other = with_other(world)
    play_both(world, other, 5)
    deliver_all(world, other, sink)
    play_both(world, other, 9)
    naming.keep(world.log, 60, "in the gap", 0)
    world.start(world.plan)
    world.keeping = Keeping(2)
    world.read(10)
    world.start(world.plan, other)
    play_both(world, other, 16)
    deliver_all(world, other, sink)
    assert [clock for clock in sink.clocks if 30 < clock < 70] == []
    (planned,) = back(world, 60)
    assert planned.clock == 30
    world.start(world.plan, other)
    play_both(world, other, 16, value=100)
    deliver_all(world, other, sink)
    check_history(world, sink)


@pytest.mark.parametrize("keeps_record", [True, False])
def test_a_sink_that_was_away_with_its_output_does_not_go_back_into_the_gap(keeps_record: bool) -> None:
    world, sink = World(Keeping(20)), Sink(keeps_record)
    plan = with_sink(world, "sink")
    world.read(5, plan=plan)
    deliver_all(world, plan, sink)
    with_sink(world)
    world.read(9)
    naming.keep(world.log, 60, "in the gap", 0)
    world.keeping = Keeping(2)
    world.read(20)
    plan = with_sink(world, "sink")
    deliver_all(world, plan, sink)
    assert [clock for clock in sink.clocks if 30 < clock < 150] == []
    (planned,) = back(world, 60)
    assert planned.clock == 30
    plan = with_sink(world, "sink")
    world.read(20, value=100, plan=plan)
    deliver_all(world, plan, sink)
    assert sink.backs == [30]
    check_history(world, sink, "total")


def test_a_sink_whose_place_was_emptied_gives_back_all_that_it_was_given_then() -> None:
    world, sink = World(Keeping(20)), Sink()
    plan = with_sink(world, "sink")
    world.read(9, plan=plan)
    naming.keep(world.log, 60, "below", 0)
    world.keeping = Keeping(2)
    world.read(20, plan=plan)
    deliver_all(world, plan, sink)
    world.read(22, plan=plan)
    sink.rows, sink.clock = [], BEGINNING
    world.start(plan)
    deliver_all(world, plan, sink)
    assert min(sink.clocks) > 60
    assert [each.clock for each in back(world, 60)] == [None]
    world.start(plan)
    deliver_all(world, plan, sink)
    check_history(world, sink, "total")
    # The same in the new timeline, when the place has all again.
    world.read(12, plan=plan)
    deliver_all(world, plan, sink)
    assert [each.clock for each in back(world, 100)] == [100]


def test_an_output_that_left_before_the_clock_keeps_what_it_had() -> None:
    world, sink = windows(), Sink()
    plan = with_sink(world, "sink")
    world.read(6, plan=plan)
    deliver_all(world, plan, sink)
    had, last = [*sink.rows], sink.clock
    with_sink(world)
    world.read(12)
    plan = with_sink(world, "sink")
    world.read(14, plan=plan)
    deliver_all(world, plan, sink)
    (planned,) = back(world, 90)
    assert planned.clock == last
    plan = with_sink(world, "sink")
    deliver_all(world, plan, sink)
    assert sink.rows[: len(had)] == had
    assert sink.twice() == []
    assert len(sink.rows) == sum(1 for row in world.rows(14) if 0 < row["ts"] < 90)


def test_what_had_left_to_a_life_before_owes_nothing() -> None:
    world, old = World(), Sink()
    plan = with_sink(world, "old")
    world.read(6, plan=plan)
    deliver_all(world, plan, old, "old")
    rebuilt = replace(world.plan, outputs=("new",))
    world.start(rebuilt, rebuild=("total",))
    world.read(14, plan=rebuilt)
    assert [each.output for each in back(world, 90)] == ["new"]
    assert [*world.newest.tasks["total"].outputs.with_status(RETIRED)] == ["old"]


def test_a_place_of_a_void_life_can_be_taken_again_at_once() -> None:
    world, old, new = World(), Sink(), Sink()
    plan = with_sink(world, "old")
    world.read(12, plan=plan)
    deliver_all(world, plan, old, "old")
    rebuilt = replace(world.plan, outputs=("new",))
    world.start(rebuilt, rebuild=("total",))
    world.read(12, value=7, plan=rebuilt)
    deliver_all(world, rebuilt, new, "new")
    for goes_back_first in (False, True):
        back(world, 60)
        if goes_back_first:
            giver_of(world, rebuilt, new, "new").follow(world.newest.epoch)
        world.start(rebuilt, rebuild=("total",))
        world.read(12, value=9, plan=rebuilt)
        deliver_all(world, rebuilt, new, "new")
        check_history(world, new, "total")
    with pytest.raises(InvalidInputError, match="is rebuilt, and sink='new' has what it was before"):
        world.start(rebuilt, rebuild=("total",))


def at_least_once(name: str) -> tuple[World, Plan]:
    world = World()
    world.files = core.memory()
    world.log = Log(world.files, "app")
    plan = core.plan_of(Total(name), SCHEMA, files=world.files, delivery=AT_LEAST_ONCE)
    return world, replace(plan, outputs=("sink",))


def rows_of(*stamps: int, n: int | None = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"ts": ts, "n": n} for ts in stamps], SCHEMA)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_under_at_least_once_a_void_value_at_the_clock_goes(monkeypatch: pytest.MonkeyPatch, is_recorded: bool) -> None:
    world, fast = at_least_once("fast")
    slow, sink = core.plan_of(Total("slow"), SCHEMA, files=world.files), Sink()
    world.start(fast, slow)
    core.play(world.log, slow, rows_of(45))
    core.play(world.log, fast, rows_of(7, 45))
    deliver_all(world, fast, sink)
    core.play(world.log, fast, rows_of(47, 65))
    give = deliver_all if is_recorded else lambda *of: give_unrecorded(monkeypatch, *of)
    give(world, fast, sink)
    assert (sink.newest[0], world.newest.clock) == (50, 40)
    # A start under exactly-once delivery takes back what is above the global clock.
    exact = replace(fast, delivery="exactly-once")
    world.start(exact, slow)
    core.play(world.log, slow, rows_of(65))
    core.play(world.log, exact, rows_of(47, 47, 65))
    assert 60 in world.newest.kept
    core.play(world.log, slow, rows_of(85))
    core.play(world.log, exact, rows_of(85))
    deliver_all(world, exact, sink)
    assert [each.clock for each in back(world, 60)] == [40]
    world.start(exact, slow)
    deliver_all(world, exact, sink)
    assert sink.newest == (60, world.value(60, "fast"))


def test_a_task_that_stores_nothing_may_have_given_each_clock_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    world, fast = at_least_once("fast")
    slow, sink = core.plan_of(Total("slow"), SCHEMA, files=world.files), Sink()
    world.start(fast, slow)
    # Rows of which the task keeps nothing move its clock.
    core.play(world.log, fast, rows_of(107, 125, n=None))
    assert world.newest.tasks["fast"].stored.first is None
    give_unrecorded(monkeypatch, world, fast, sink)
    core.play(world.log, slow, rows_of(75))
    with pytest.raises(InvalidInputError, match="may have values at clock="):
        core.plan_rewind(world.log, 70)


def test_a_sink_is_not_open_for_a_later_timeline_when_it_goes_back_for_an_earlier_one() -> None:
    world, sink = World(), Sink()
    plan = with_sink(world, "sink")
    world.read(12, plan=plan)
    deliver_all(world, plan, sink)
    back(world, 90)
    epoch = world.newest.epoch
    giver = giver_of(world, plan, sink)
    opens = giver.open_sink
    late = [lambda: back(world, 60)]

    def open_sink(timeline: int) -> int | None:
        # The application is rewound again while the sink opens.
        for each in [*late]:
            late.remove(each)
            each()
        return opens(timeline)

    giver.open_sink = open_sink
    with pytest.raises(FencedError):
        giver.follow(epoch)
    assert sink.backs == []
    giver_of(world, plan, sink).follow(world.newest.epoch)
    assert (sink.backs, sink.clock) == ([60], 60)


def test_a_sink_is_given_the_values_of_then_though_its_task_was_reset_meanwhile() -> None:
    world, sink = World(), Sink()
    plan = with_sink(world, "sink")
    world.read(12, plan=plan)
    deliver_all(world, plan, sink)
    back(world, 60)
    total = world.value(60)
    world.start(plan, reset=("total",))
    values: list[int] = []

    def go_back(then: Entry | None, clock: int) -> None:
        assert then is not None
        (row,) = state_at(world.files, "app", then, plan.name, plan.layout, clock, Since()).read().to_pylist()
        values.append(row["value"])

    giver = giver_of(world, plan, sink)
    giver.go_back = go_back
    giver.follow(world.newest.epoch)
    assert values == [total]


def test_a_place_that_is_emptied_again_does_not_go_back_to_what_it_had_between() -> None:
    world, sink = World(Keeping(20)), Sink()
    plan = with_sink(world, "sink")
    for end, name in ((9, "before"), (20, "between"), (28, "after")):
        # It is given nothing while clocks come and go.
        world.keeping = Keeping(20)
        world.read(end, plan=plan)
        naming.keep(world.log, world.newest.clock, name, 0)
        deliver_all(world, plan, sink)
        world.keeping = Keeping(2)
        for more in (3, 5):
            world.read(end + more, plan=plan)
            deliver_all(world, plan, sink)
        sink.rows, sink.clock = [], BEGINNING
        world.start(plan)
        deliver_all(world, plan, sink)
    kept = {name: clock for clock, kept in world.newest.kept.items() for name in kept.names}
    for name in ("after", "between", "before"):
        assert [each.clock for each in back(world, kept[name])] == [None]
        world.start(plan)
        deliver_all(world, plan, sink)
        check_history(world, sink, "total")


def test_a_place_that_owes_all_and_is_taken_by_another_life_goes_back_with_that_life() -> None:
    world, a, b = World(Keeping(2)), Sink(), Sink()
    world.read(6)
    naming.keep(world.log, 50, "low", 0)
    world.read(12)
    plan = with_sink(world, "a")
    world.read(14, plan=plan)
    deliver_all(world, plan, a, "a")
    back(world, 50)
    world.keeping = Keeping(20)
    assert world.newest.owes["total"]["a"].clock == BEGINNING
    with_b, with_a = (replace(world.plan, outputs=(name,)) for name in "ba")
    world.start(with_b, rebuild=("total",))
    world.read(14, value=3, plan=with_b)
    deliver_all(world, with_b, b, "b")
    naming.keep(world.log, 70, "of the second life", 0)
    world.start(with_a, rebuild=("total",))
    world.read(14, value=5, plan=with_a)
    deliver_all(world, with_a, a, "a")
    assert a.clocks[0] < 70
    assert {each.output: each.clock for each in back(world, 70)} == {"a": None, "b": None}
    both = with_sink(world, "a", "b")
    for sink, output in ((a, "a"), (b, "b")):
        deliver_all(world, both, sink, output)
        check_history(world, sink, "total")


@pytest.mark.parametrize("keeps_record", [True, False])
def test_a_sink_that_has_no_more_than_the_clock_has_nothing_to_do_after_a_restart(keeps_record: bool) -> None:
    world, sink = World(), Sink(keeps_record)
    plan = with_sink(world, "sink")
    world.read(6, plan=plan)
    deliver_all(world, plan, sink)
    world.start(plan)
    world.read(8, plan=plan)
    deliver_all(world, plan, sink)
    (planned,) = core.plan_rewind(world.log, world.newest.clock).outputs
    assert (planned.action, planned.clock) == ("none", world.newest.clock)


def test_a_function_that_left_before_the_clock_can_come_back() -> None:
    world, sink = World(), Sink(keeps_record=False)
    plan = with_sink(world, "sink")
    world.read(6, plan=plan)
    deliver_all(world, plan, sink)
    with_sink(world)
    world.read(14)
    assert [each.action for each in core.plan_rewind(world.log, 90).outputs] == ["none"]
    back(world, 90)
    plan = with_sink(world, "sink")
    giver_of(world, plan, sink, goes_back=False).open()
    # Had it been above the clock when it left, nobody could say so.
    world.read(14, plan=plan)
    deliver_all(world, plan, sink)
    with_sink(world)
    with pytest.raises(InvalidInputError, match="may have values at clock="):
        core.plan_rewind(world.log, 90)


def test_what_a_writer_of_the_old_timeline_gives_at_the_last_moment_is_known() -> None:
    world, sink = World(Keeping(2)), Sink()
    world.read(6)
    world.read(7)
    plan = with_sink(world, "sink")
    back(world, 50)
    first, clock = world.newest.retained[-2:]
    world.start(plan)
    epoch, timeline = world.newest.epoch, world.newest.timeline
    amend(world.log, epoch, lambda entry: entry.with_owed("total", "sink", Owed(timeline, clock)), 0)
    giver = giver_of(world, plan, sink)
    giver.open()
    # A writer that does not know that it is fenced gives the only clock that it knew, before the sink has gone back.
    sink.opened = 0
    sink.write(clock, [(world.value(clock),)])
    sink.opened = timeline
    while giver.give_next(epoch):
        pass
    assert (first, sink.backs, sink.clocks) == (30, [50], [50])
    # So the sink can't go back to the clock before, which it never got.
    outputs = world.newest.tasks["total"].outputs
    assert {name: (each.delivered, each.begun) for name, each in outputs.records.items()} == {"sink": (50, 50)}


def test_a_sibling_of_an_output_that_is_given_clocks_again_has_no_more_than_it_was_given() -> None:
    world, a, b = World(), Sink(keeps_record=False), Sink(keeps_record=False)
    plan = with_sink(world, "a", "b")
    world.read(6, plan=plan)
    for sink, output in ((a, "a"), (b, "b")):
        deliver_all(world, plan, sink, output)
    world.read(12, plan=plan)
    deliver_all(world, plan, a, "a")
    assert (a.clocks[-1], b.clocks[-1]) == (110, 50)
    back(world, 60, AGAIN)
    world.start(plan)
    deliver_all(world, plan, b, "b")
    world.read(8, plan=plan)
    for sink, output in ((a, "a"), (b, "b")):
        deliver_all(world, plan, sink, output)
    # What is void is in the one sink only, until it has been given as much again.
    assert {each.output: (each.action, each.furthest) for each in back(world, 70, AGAIN)} == {
        "a": (AGAIN, 110),
        "b": ("none", 70),
    }
    world.start(plan)
    for end in (12, 14):
        world.read(end, plan=plan)
        for sink, output in ((a, "a"), (b, "b")):
            deliver_all(world, plan, sink, output)
    assert [each.action for each in core.plan_rewind(world.log, 130).outputs] == ["none", "none"]


def test_a_sink_that_never_followed_a_rewind_and_is_given_clocks_again_may_have_those_of_before() -> None:
    world, sink = World(), Sink(keeps_record=False)
    plan = with_sink(world, "sink")
    world.read(12, plan=plan)
    deliver_all(world, plan, sink)
    back(world, 60)
    world.start(plan)
    world.read(9, plan=plan)
    back(world, 80, AGAIN)
    world.start(plan)
    world.read(11, plan=plan)
    deliver_all(world, plan, sink)
    assert sink.clocks[-1] == 110
    assert sink.newest[0] == 100
    with pytest.raises(InvalidInputError, match=r"may have values at clock=.*\(110\)"):
        core.plan_rewind(world.log, 100)


def test_a_sink_that_has_gone_back_has_nothing_above_the_clock() -> None:
    world, sink = World(), Sink(keeps_record=False)
    plan = with_sink(world, "sink")
    world.read(12, plan=plan)
    deliver_all(world, plan, sink)
    back(world, 60)
    world.start(plan)
    deliver_all(world, plan, sink)
    assert all(record.had is None for record in world.newest.tasks["total"].outputs.records.values())
    assert [each.action for each in core.plan_rewind(world.log, 60).outputs] == ["none"]


@pytest.mark.parametrize("is_away", [False, True])
def test_a_sink_that_a_fenced_writer_gave_a_later_clock_is_not_believed_to_have_those_before(is_away: bool) -> None:
    world, sink = World(Keeping(2)), Sink()
    world.read(6)
    naming.keep(world.log, 30, "low", 0)
    world.read(7)
    plan = with_sink(world, "sink")
    # The first clock that a driver of this timeline gives is 50.
    assert world.newest.retained[0] == 50
    assert [each.action for each in back(world, 50)] == ["none"]
    if is_away:
        with_sink(world)
    world.start(plan)
    first, clock = world.newest.retained
    assert (first, clock) == (30, 50)
    epoch, giver = world.newest.epoch, giver_of(world, plan, sink)
    giver.open()
    # After the sink was asked what it has, such a driver gives it 50, as nothing fences it yet.
    sink.write(50, [(world.value(50),)])
    # So the sink takes 30 for a clock that it has.
    assert giver.give_next(epoch)
    assert (sink.clocks, world.newest.tasks["total"].outputs.delivered) == ([50], {"sink": 30})
    assert [(each.action, each.clock) for each in back(world, 30)] == [(RETRACT, None)]
    world.start(plan)
    deliver_all(world, plan, sink)
    assert sink.rows == [(each, (world.value(each),)) for each in world.newest.retained]
    assert sink.clocks[-1] == 30


def test_an_output_that_comes_back_is_known_to_lack_windows_that_closed_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world, sink = windows(), Sink()
    plan = with_sink(world, "sink")
    world.read(6, plan=plan)
    deliver_all(world, plan, sink)
    with_sink(world)
    # No window has gone as long as the clock that it had is retained.
    before = world.newest
    with_sink(world, "sink")
    assert [*deliver.gone_meanwhile(before, world.newest)] == []
    with_sink(world)
    world.keeping = Keeping(2)
    world.read(20)
    before = world.newest
    plan = with_sink(world, "sink")
    floor = world.newest.tasks["total"].stored.floor
    assert floor > sink.clocks[-1]
    assert [*deliver.gone_meanwhile(before, world.newest)] == [("total", "sink", floor)]
    running._warn_of_gaps(before, world.newest)
    assert "task=total: sink='sink' comes back, and is not given what closed" in caplog.text
    assert f"up to clock={full_clock(floor)}" in caplog.text
    deliver_all(world, plan, sink)
    starts = {values[0] for _, values in sink.rows}
    assert len(starts) < sum(1 for row in world.rows(20) if 0 < row["ts"] < 190)
    # Of a plain state it lacks nothing.
    plain = World(Keeping(2))
    with_sink(plain, "sink")
    with_sink(plain)
    plain.read(20)
    before = plain.newest
    with_sink(plain, "sink")
    assert [*deliver.gone_meanwhile(before, plain.newest)] == []
