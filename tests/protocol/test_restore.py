"""What is taken in, kept and read again at least once and at most once, case by case."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from monoids import List, Sum
from persistent_state import (
    Application,
    InvalidInputError,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    StoreUnavailableError,
    TumblingWindow,
    WindowState,
)
from persistent_state.batch.plan import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, Plan
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.protocol import branch, commits, restore, rewind
from persistent_state.protocol.deliver import Due, Giver, due, record
from persistent_state.sources.base import Reach
from persistent_state.store import codec, lists
from persistent_state.store.entry import Entry, Owed
from persistent_state.store.log import Log
from tests import core
from tests.protocol.test_deliver import entry_of, log_with

SCHEMA = pa.schema([("ts", pa.int64()), ("id", pa.int64())])


class Ids(PersistentTask):
    """The ids of messages in their order."""

    name = "ids"

    def persistent_state(self) -> NonWindowState[list[int]]:
        return NonWindowState(List(pa.int64()))

    def process_message(self, state: PersistentState[list[int]], message: Message) -> None:
        state.update(message.timestamp, [message["id"]])


class Times(PersistentTask):
    """The timestamps that user code was shown, added up."""

    name = "times"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        state.update(message.timestamp, message.timestamp)


class ReadTimes(Times):
    reads_state: ClassVar[bool] = True


class Windowed(Times):
    name = "windowed"

    def persistent_state(self) -> Any:
        return WindowState(Sum(), TumblingWindow(core.us(10)))


class Remembered(Times):
    name = "remembered"
    message_id, horizon = "id", "1 second"


def planned(
    task: PersistentTask, delivery: str, log: Log | None = None, *, by_spark: bool = False, interval: int = 10
) -> Plan:
    files = core.memory() if log is None else log.files
    plan = core.plan_of(task, SCHEMA, files=files, settings=Settings(interval, ahead=2**62))
    return replace(plan, delivery=delivery, by_spark=by_spark)


def rows(*sent: tuple[int, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"ts": ts, "id": id} for ts, id in sent], SCHEMA)


def started(plan: Plan) -> Log:
    log = Log(plan.files, "app")
    core.start(log, [plan])
    return log


def state(entry: Entry, plan: Plan, clock: int | None = None) -> Any:
    return core.state_at(entry, plan, clock).get(())


def newest(log: Log) -> Entry:
    found = log.newest()
    assert found is not None
    return found


def test_at_least_once_a_late_message_is_behind_all_that_the_clock_has_passed() -> None:
    plan = planned(Ids(), AT_LEAST_ONCE)
    log = started(plan)
    core.play(log, plan, rows((5, 1), (12, 2), (31, 3)))
    entry = core.play(log, plan, rows((7, 4), (2, 5), (44, 6)))
    assert state(entry, plan, 30) == [1, 2]
    assert state(entry, plan, 40) == [1, 2, 4, 5, 3]
    assert state(entry, plan) == [1, 2, 4, 5, 3, 6]
    assert entry.late_rows_of("ids").counts() == {}


@pytest.mark.parametrize("task", [Times(), ReadTimes()])
def test_user_code_is_shown_a_late_message_with_its_own_timestamp(task: PersistentTask) -> None:
    plan = planned(task, AT_LEAST_ONCE)
    log = started(plan)
    core.play(log, plan, rows((31, 1)))
    entry = core.play(log, plan, rows((7, 2)))
    assert (state(entry, plan, 30), state(entry, plan)) == (None, 38)


@pytest.mark.parametrize("task", [Windowed(), Remembered()])
def test_at_least_once_what_is_told_apart_by_its_time_takes_nothing_late(task: PersistentTask) -> None:
    plan = planned(task, AT_LEAST_ONCE)
    log = started(plan)
    core.play(log, plan, rows((31, 1)))
    entry = core.play(log, plan, rows((7, 2)))
    assert entry.late_rows_of(plan.name).counts() == {"late": 1}


def test_at_least_once_all_that_is_above_the_global_clock_counts_twice_after_a_start() -> None:
    plan, other = planned(Ids(), AT_LEAST_ONCE), planned(Times(), AT_LEAST_ONCE)
    other = replace(other, files=plan.files)
    log = Log(plan.files, "app")
    core.start(log, [plan, other])
    core.play(log, other, rows((21, 1)))
    core.play(log, plan, rows((5, 1), (15, 2), (25, 3), (47, 4)))
    entry = core.start(log, [plan, other])
    flow = entry.flow_of("ids")
    assert (entry.clock, flow.progress.clock) == (20, 40)
    assert state(entry, plan) == [1, 2, 3, 4]
    assert flow.source.positions[""].next == 0
    entry = core.play(log, plan, rows((5, 1), (15, 2), (25, 3), (47, 4)))
    assert state(entry, plan) == [1, 2, 3, 3, 4, 4]


def test_a_task_that_leaves_at_least_once_reads_again_what_it_took_in_late() -> None:
    plan, other = planned(Ids(), AT_LEAST_ONCE), planned(Times(), AT_LEAST_ONCE)
    other = replace(other, files=plan.files)
    log = Log(plan.files, "app")
    core.start(log, [plan, other])
    for each in (plan, other):
        core.play(log, each, rows((31, 1)))
    core.play(log, plan, rows((7, 2)))
    assert core.start(log, [other]).flow_of("ids").source.positions[""].next == 0
    core.start(log, [plan, other])
    assert state(core.play(log, plan, rows((31, 1), (7, 2))), plan) == [2, 1]


def rewound(log: Log, clock: int) -> Log:
    rewind.rewind(log, core.plan_rewind(log, clock), writer="somebody", now=0)
    return log


def branched(log: Log, clock: int) -> Log:
    files = core.memory()
    branch.branch(log, Log(files, "app"), clock, now=0, new_id=core.new_id)
    return Log(files, "app")


def with_a_late_message_above_the_clock() -> tuple[Log, list[Plan]]:
    """Two flows at the global clock 30. The first is at 30, too, and has taken in a late message, which counts above it."""
    plan, slow = planned(Ids(), AT_LEAST_ONCE), planned(Times(), AT_LEAST_ONCE)
    slow = replace(slow, files=plan.files)
    log = Log(plan.files, "app")
    core.start(log, [plan, slow])
    core.play(log, plan, rows((5, 1), (31, 2)))
    core.play(log, plan, rows((33, 3), (7, 4), (8, 5)))
    core.play(log, slow, rows((31, 1)))
    return log, [plan, slow]


SENT = (5, 1), (31, 2), (33, 3), (7, 4), (8, 5)


@pytest.mark.parametrize("back", [rewound, branched])
@pytest.mark.parametrize("is_killed", [False, True])
def test_at_least_once_a_late_message_that_a_rewind_or_a_branch_cuts_away_counts_again(
    back: Any, is_killed: bool
) -> None:
    log, plans = with_a_late_message_above_the_clock()
    assert (newest(log).clock, state(newest(log), plans[0], 30)) == (30, [1])
    log = back(log, 30)
    ids, slow = (replace(plan, files=log.files) for plan in plans)
    entry = core.start(log, [ids, slow])
    if is_killed:
        # Some starts end before they have read all that they read again.
        core.start(log, [ids, slow])
        core.play(log, ids, rows(*SENT[entry.flow_of("ids").source.positions[""].next : 4]))
        entry = core.start(log, [ids, slow])
    first = entry.flow_of("ids").source.positions[""].next
    entry = core.play(log, ids, rows(*SENT[first:], (44, 6)))
    found = state(entry, ids)
    assert {*found} == {1, 2, 3, 4, 5, 6}
    assert found.count(5) == 1
    # What was read again is known from now on: a message below the clock counts no more.
    core.start(log, [ids, slow])
    entry = core.play(log, slow, rows((31, 1), (44, 6)))
    first = core.start(log, [ids, slow]).flow_of("ids").source.positions[""].next
    entry = core.play(log, ids, rows(*[*SENT, (44, 6)][first:]))
    assert state(entry, ids).count(5) == 1


def test_after_a_rewind_another_delivery_takes_in_nothing_late() -> None:
    log, plans = with_a_late_message_above_the_clock()
    rewound(log, 30)
    ids, slow = (replace(plan, delivery=EXACTLY_ONCE) for plan in plans)
    assert restore.without_late(newest(log), [ids, slow]) == [ids, slow]
    assert restore.without_late(newest(log), plans) == []
    first = core.start(log, [ids, slow]).flow_of("ids").source.positions[""].next
    entry = core.play(log, ids, rows(*SENT[first:], (44, 6)))
    assert (state(entry, ids), entry.late_rows_of("ids").counts()) == ([1, 2, 3, 6], {})


def test_at_most_once_a_start_goes_on_behind_what_was_about_to_be_read() -> None:
    plan = planned(Ids(), AT_MOST_ONCE)
    log = started(plan)
    core.play(log, plan, rows((5, 1), (12, 2)))
    entry = commits.announce(log, 1, "ids", Reach({"": 5}, journal=("read to 5",)), 0, core.new_id)
    # Asked once more it is the same, as the source's line is kept by now.
    assert commits.announce(log, 1, "ids", Reach({"": 5}), 0, core.new_id) == entry
    assert entry.flow_of("ids").source.planned == {"": 5}
    flow = core.start(log, [plan]).flow_of("ids")
    assert (flow.source.positions[""].next, flow.source.planned, flow.progress.clock) == (5, {}, 10)
    assert lists.read(log.files, flow.source.journal) == ["read to 5"]
    assert state(core.play(log, plan, rows((14, 6))), plan) == [1, 2, 6]


def test_a_micro_batch_that_was_committed_is_not_planned_any_more() -> None:
    plan = planned(Ids(), AT_MOST_ONCE)
    log = started(plan)
    commits.announce(log, 1, "ids", Reach({"": 2}), 0, core.new_id)
    source = core.play(log, plan, rows((5, 1), (12, 2))).flow_of("ids").source
    assert (source.planned, source.positions[""].next) == ({}, 2)


def test_at_most_once_starts_like_exactly_once_where_spark_plans() -> None:
    plan = planned(Ids(), AT_MOST_ONCE, by_spark=True)
    log = started(plan)
    core.play(log, plan, rows((5, 1), (12, 2)))
    log = Log(log.files, "app")
    like = planned(Ids(), EXACTLY_ONCE, log)
    assert replace(core.start(log, [plan]), number=0, epoch=0, previous="") == replace(
        core.start(log, [like]), number=0, epoch=0, previous=""
    )


@pytest.mark.parametrize("delivery", [AT_LEAST_ONCE, AT_MOST_ONCE])
def test_another_interval_cuts_nothing_that_is_kept(delivery: str) -> None:
    plan = planned(Ids(), delivery)
    log = started(plan)
    core.play(log, plan, rows((5, 1), (31, 2), (38, 3)))
    assert newest(log).flow_of("ids").progress.clock == 30
    plan = planned(Ids(), delivery, log, interval=15)
    core.start(log, [plan])
    again = rows((31, 2), (38, 3)) if delivery == AT_LEAST_ONCE else rows()
    core.play(log, plan, again)
    # Of the clocks 30 and 45 none but the first is a multiple of both, nor is there one below 40, where the last row ends.
    entry = core.play(log, plan, rows((39, 4), (41, 5)))
    assert entry.clock == 30
    entry = core.play(log, plan, rows((46, 6)))
    assert entry.clock == 45
    assert [id for id in state(entry, plan, 45) if id in (4, 5, 6)] == [4, 5]


def test_the_delivery_may_change_at_any_start() -> None:
    plan = planned(Ids(), EXACTLY_ONCE)
    log = started(plan)
    core.play(log, plan, rows((5, 1), (12, 2)))
    core.start(log, [replace(plan, delivery=AT_LEAST_ONCE)])
    entry = core.play(log, replace(plan, delivery=AT_LEAST_ONCE), rows((12, 2), (24, 3)))
    assert state(entry, plan) == [1, 2, 2, 3]
    core.start(log, [replace(plan, delivery=AT_MOST_ONCE)])
    entry = core.start(log, [plan])
    assert (entry.clock, state(entry, plan)) == (20, [1, 2, 2])
    entry = core.play(log, plan, rows((24, 3)))
    assert state(entry, plan) == [1, 2, 2, 3]


def test_a_cut_takes_back_what_a_start_at_least_once_had_accounted_for() -> None:
    """What is below a task's own clock is not read again at least once where late is late; after a cut below it, it is."""
    plan, slow = planned(Remembered(), AT_LEAST_ONCE), planned(Times(), AT_LEAST_ONCE)
    slow = replace(slow, files=plan.files)
    log = Log(plan.files, "app")
    core.start(log, [plan, slow])
    core.play(log, slow, rows((21, 1)))
    sent = (22, 1), (31, 2), (42, 3), (57, 4)
    core.play(log, plan, rows(*sent))
    assert (newest(log).clock, newest(log).flow_of("remembered").progress.clock) == (20, 50)
    core.start(log, [plan, slow])
    # It is killed before it has read anything again, is left out, and comes back; or exactly once follows.
    core.start(log, [slow])
    core.start(log, [replace(each, delivery=EXACTLY_ONCE) for each in (plan, slow)])
    entry = core.play(log, replace(plan, delivery=EXACTLY_ONCE), rows(*sent))
    assert (state(entry, plan), entry.late_rows_of("remembered").counts()) == (22 + 31 + 42 + 57, {})


def test_at_most_once_nothing_is_taken_in_that_a_start_at_least_once_was_about_to_read_again() -> None:
    plan, slow = planned(Ids(), AT_LEAST_ONCE), planned(Times(), AT_LEAST_ONCE)
    slow = replace(slow, files=plan.files)
    log = Log(plan.files, "app")
    core.start(log, [plan, slow])
    core.play(log, slow, rows((21, 1)))
    core.play(log, plan, rows((5, 1), (22, 2), (47, 3)))
    assert core.start(log, [plan, slow]).flow_of("ids").source.positions[""].next < 3
    flow = core.start(log, [replace(each, delivery=AT_MOST_ONCE) for each in (plan, slow)]).flow_of("ids")
    assert flow.source.positions[""].next == 3


def test_at_most_once_what_a_start_exactly_once_was_about_to_read_again_is_not_lost() -> None:
    plan = planned(Ids(), EXACTLY_ONCE)
    log = started(plan)
    core.play(log, plan, rows((5, 1), (12, 2), (14, 3)))
    core.start(log, [plan])
    plan = replace(plan, delivery=AT_MOST_ONCE)
    core.start(log, [plan])
    entry = core.play(log, plan, rows((5, 1), (12, 2), (14, 3)))
    assert (state(entry, plan), entry.late_rows_of("ids").counts()) == ([1, 2, 3], {})


def given_above_the_global_clock() -> tuple[Log, list[Plan], list[Due]]:
    """A log in which a sink has been given values at clocks that the global one has not reached."""
    plan, slow = planned(Ids(), AT_LEAST_ONCE), planned(Times(), AT_LEAST_ONCE)
    plan, slow = replace(plan, outputs=("out",)), replace(slow, files=plan.files)
    log = Log(plan.files, "app")
    core.start(log, [plan, slow])
    core.play(log, slow, rows((21, 1)))
    core.play(log, plan, rows((5, 1), (22, 2), (35, 3), (57, 4)))
    given: list[Due] = []
    giver = Giver(log, "ids", "out", lambda _: None, lambda _, due: given.append(due), lambda: 0, AT_LEAST_ONCE)
    while giver.give_next(1):
        pass
    assert (newest(log).clock, given[-1].clock) == (20, 50)
    return log, [plan, slow], given


def test_a_sink_that_was_given_what_a_start_has_cut_away_is_given_everything_with_the_next_clock() -> None:
    log, plans, _ = given_above_the_global_clock()
    plan, slow = (replace(plan, delivery=EXACTLY_ONCE) for plan in plans)
    entry = core.start(log, [plan, slow])
    record = entry.tasks["ids"].outputs["out"]
    assert (record.delivered, record.right_up_to) == (50, 20)
    core.play(log, plan, rows((5, 1), (22, 2), (35, 3), (57, 4), (78, 5)))
    entry = core.play(log, slow, rows((61, 2), (83, 3)))
    given: list[Due] = []
    giver = Giver(log, "ids", "out", lambda _: 50, lambda _, due: given.append(due), lambda: 0)
    while giver.give_next(entry.epoch):
        pass
    assert (50 in entry.retained, given) == (False, [Due(70, BEGINNING, BEGINNING)])
    assert newest(log).tasks["ids"].outputs["out"].is_right


def test_a_rewind_takes_along_what_a_sink_was_given_above_the_global_clock() -> None:
    log, (plan, slow), _ = given_above_the_global_clock()
    for last in (50, 40):
        # The log may lag behind by a clock.
        record(log, 1, "ids", "out", last, 0)
        planned = core.plan_rewind(log, 20, rewind.RETRACT)
        assert [(each.action, each.furthest) for each in planned.outputs] == [("retract", 50)]
    entry = rewind.rewind(log, planned, writer="somebody", now=0)
    assert entry.owed("ids", "out") == Owed(entry.timeline, 20)
    entry, backs = core.start(log, [plan, slow]), list[int]()
    giver = Giver(
        log, "ids", "out", lambda _: 50, never, lambda: 0, AT_LEAST_ONCE, lambda _, clock: backs.append(clock)
    )
    assert not giver.give_next(entry.epoch)
    assert (backs, newest(log).owes, newest(log).tasks["ids"].outputs.delivered) == ([20], {}, {"out": 20})


def never(*given: Any) -> None:
    raise AssertionError


@pytest.mark.parametrize("recorded", [True, False])
def test_a_sink_is_believed_to_have_what_a_start_has_cut_away(recorded: bool) -> None:
    log, plans, _ = given_above_the_global_clock()
    plan, slow = (replace(plan, delivery=EXACTLY_ONCE) for plan in plans)
    if not recorded:
        # The driver died after the sink had it.
        found = newest(log).tasks["ids"]
        record(log, 1, "ids", "out", 10, 0)
        assert found != newest(log).tasks["ids"]
    core.start(log, [slow])
    entry = core.start(log, [plan, slow])
    giver = Giver(log, "ids", "out", lambda _: 50, lambda _, due: None, lambda: 0)
    giver.open()
    assert not giver.give_next(entry.epoch)
    task = newest(log).tasks["ids"]
    assert (task.outputs.delivered["out"], task.outputs["out"].right_up_to <= 20) == (50, True)
    with pytest.raises(InvalidInputError, match="to which application=app has never come"):
        Giver(log, "ids", "out", lambda _: 60, lambda _, due: None, lambda: 0).open()


@pytest.mark.parametrize("left_out", [True, False])
def test_a_sink_that_answers_after_its_task_has_passed_what_a_start_cut_away_is_given_everything(
    left_out: bool,
) -> None:
    log, plans, _ = given_above_the_global_clock()
    plan, slow = (replace(plan, delivery=EXACTLY_ONCE) for plan in plans)
    # The driver died after the sink had clock 50, before the log said so.
    record(log, 1, "ids", "out", 20, 0)
    if left_out:
        core.start(log, [replace(plan, outputs=()), slow])
    core.start(log, [plan, slow])
    for stamp in (57, 78):
        core.play(log, plan, rows((5, 1), (22, 2), (35, 3), (stamp, 4)))
        entry = core.play(log, slow, rows((21, 1), (stamp, 2)))
    assert (50 in entry.retained, entry.clock) == (True, 70)
    given: list[Due] = []
    giver = Giver(log, "ids", "out", lambda _: 50, lambda _, due: given.append(due), lambda: 0)
    while giver.give_next(entry.epoch):
        pass
    assert given == [Due(70, BEGINNING, BEGINNING)]


def test_an_entry_says_nothing_of_plans_where_there_are_none() -> None:
    entry = entry_of((10, 20), 10)
    data = codec.to_bytes(entry)
    assert b"planned" not in data
    flow = entry.flows["t"]
    told = entry.with_flow("t", flow.with_source(replace(flow.source, planned={"a": 7})))
    assert json.loads(codec.to_bytes(told).splitlines()[0])["flows"]["t"]["inputs"][""]["planned"] == {"a": 7}
    assert [codec.from_bytes(codec.to_bytes(e), "name") for e in (entry, told)] == [entry, told]


def test_an_unknown_delivery_is_refused() -> None:
    with pytest.raises(
        InvalidInputError, match="delivery='twice'; say one of 'exactly-once', 'at-least-once', 'at-most-once'"
    ):
        Application("app", "store", delivery="twice")


def test_at_least_once_the_clocks_of_a_task_are_due_before_the_global_one_has_come_there() -> None:
    entry = entry_of((10, 20), 20, clock=40)
    assert due(entry, "t", "out") is None
    assert due(entry, "t", "out", at_once=True) == Due(40, since=20, recent=20)
    task = entry.tasks["t"]
    entry = entry.with_task("t", replace(task, stored=task.stored.with_cuts([20, 30, 40])))
    assert due(entry, "t", "out", at_once=True) == Due(30, since=20, recent=20)


def test_at_least_once_a_sink_may_have_what_the_global_clock_has_not_reached() -> None:
    log = log_with(entry_of((10, 20), 20, clock=40))
    Giver(log, "t", "out", lambda _: 40, lambda entry, due: None, lambda: 0, AT_LEAST_ONCE).open()
    with pytest.raises(InvalidInputError, match=r"holds clock=.* \(50\)"):
        Giver(log, "t", "out", lambda _: 50, lambda entry, due: None, lambda: 0, AT_LEAST_ONCE).open()


def test_exactly_once_a_sink_above_the_global_clock_is_ahead_of_its_store() -> None:
    log = log_with(entry_of((10, 20), 20, clock=40))
    Giver(log, "t", "out", lambda _: 20, lambda entry, due: None, lambda: 0).open()
    with pytest.raises(InvalidInputError, match=r"holds clock=.* \(30\)"):
        Giver(log, "t", "out", lambda _: 30, lambda entry, due: None, lambda: 0).open()


def test_at_most_once_a_clock_is_recorded_before_it_is_given() -> None:
    log, given = log_with(entry_of((10, 20), BEGINNING)), []

    def write(entry: Entry, due: Due) -> None:
        given.append((due.clock, newest(log).tasks["t"].outputs.delivered["out"]))
        if due.clock == 10:
            raise StoreUnavailableError("no")

    giver = Giver(log, "t", "out", lambda _: None, write, lambda: 0, AT_MOST_ONCE)
    with pytest.raises(StoreUnavailableError):
        giver.give_next(1)
    assert [giver.give_next(1), giver.give_next(1)] == [True, False]
    assert given == [(10, 10), (20, 20)]
