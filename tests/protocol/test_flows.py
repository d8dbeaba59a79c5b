"""Tasks of one source are read and committed as one flow. They join it and leave it, and each message counts once for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import List, Sum
from persistent_state import Message, NonWindowState, PersistentState, PersistentTask
from persistent_state.batch.packets import Answers, Blob
from persistent_state.batch.plan import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, FAIL
from persistent_state.batch.shard import merge_shard
from persistent_state.errors import DisagreementError, TaskFailedError
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.event_time.positions import Position
from persistent_state.protocol import commits, flows
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.restore import TaskGroup
from persistent_state.show.summary import summary
from persistent_state.sources.base import Chunk, Reach
from persistent_state.store import late_rows, lists
from persistent_state.store import runs as runs_io
from persistent_state.store.entry import Entry
from persistent_state.store.flow_state import INPUT, FlowProgress, FlowState, LateRows, SourceState
from persistent_state.store.log import Log
from persistent_state.store.named_files import Pages, SideFile
from persistent_state.store.task_state import StoredState, TaskState
from tests import core
from tests.core import combine
from tests.local_application import LocalApplication, Rows, batch_of
from tests.soak import soak_or

SCHEMA = pa.schema([("ts", pa.int64()), ("id", pa.int64()), ("at", pa.timestamp("ns"))])
CLOCK = 40
NO_ROWS, NO_LINES = LateRows(), Pages()

Row = tuple[int | None, int]
"""A timestamp, and a time in nanoseconds of which only whole microseconds can be stored."""


class Ids(PersistentTask):
    """The ids of messages in their order."""

    def __init__(self, name: str) -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[list[int]]:
        return NonWindowState(List(pa.int64()))

    def process_message(self, state: PersistentState[list[int]], message: Message) -> None:
        state.update(message.timestamp, [message["id"]])


class ByTime(PersistentTask):
    """The number of messages by a time that may not fit."""

    name, key = "times", "at"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        state.update(message.timestamp, 1)


class Reads(Ids):
    """The ids of messages, each with how many came before it."""

    reads_state = True

    def process_message(self, state: PersistentState[list[int]], message: Message) -> None:
        state.update(message.timestamp, [message["id"], len(state.get())])


class World(LocalApplication):
    """An application, and its one source: a message's id is its position."""

    def __init__(self, *tasks: PersistentTask, delay: int = 0, shards: int = 1, delivery: str = EXACTLY_ONCE) -> None:
        more: Any = {"files": core.memory(), "settings": Settings(10, delay, ahead=2**40), "shards": shards}
        plans = {task.task_name: core.plan_of(task, SCHEMA, delivery=delivery, **more) for task in tasks}
        self.one = Rows(SCHEMA, "")
        super().__init__(plans, dict.fromkeys(plans, self.one))

    def start(self, *wanted: Any, **more: Any) -> Entry:
        # Each character is a task.
        return super().start(*map(tuple, wanted), **more)

    @property
    def batch(self) -> pa.RecordBatch:
        """All rows that have come."""
        return batch_of(self.one.rows, SCHEMA)

    def come(self, *stamps: int | None) -> None:
        """Let messages of these times come."""
        self.come_with([(stamp, 0) for stamp in stamps])

    def come_with(self, rows: Sequence[Row]) -> None:
        first = len(self.one.rows)
        self.one.rows += [(stamp, first + i, time) for i, (stamp, time) in enumerate(rows)]

    def read(self, *names: str, end: int | None = None, parts: int = 1) -> Entry:
        """Read on up to a position, or all there is, in a flow of these tasks."""
        begin = self.newest.flow_of(names[0]).source.next_positions.get("", 0)
        self.one.most, self.parts = (len(self.one.rows) if end is None else end) - begin, parts
        self.play(names[0])
        return self.newest

    def ids(self, name: str, clock: int | None = None) -> list[int]:
        """The ids in a task's state below a clock (None: in all of it)."""
        found: list[int] = core.state_at(self.newest, self.plans[name], clock).get((), [])
        return found

    def aside(self, name: str) -> list[tuple[str, int]]:
        """The reason and position of each row that came late or is bad for a task."""
        tables = late_rows.read_all(self.log.files, self.newest.late_rows_of(name))
        rows = [row for table in tables for row in table.select(["reason", "position"]).to_pylist()]
        return sorted((row["reason"], row["position"]) for row in rows)


def two(**given: Any) -> World:
    """Two tasks that were started as one flow."""
    world = World(Ids("a"), Ids("b"), **given)
    world.start("ab")
    return world


def task_state(flow: str, rows: LateRows = NO_ROWS, clock: int = CLOCK) -> TaskState:
    return TaskState({}, BEGINNING, flow, StoredState((clock,)), late_rows=rows)


def group(
    name: str,
    positions: Mapping[str, Position] | None = None,
    journal: Pages = NO_LINES,
    *,
    clock: int = CLOCK,
    late: LateRows = NO_ROWS,
) -> TaskGroup:
    source = SourceState({name: Channel(None, 0)}, positions or {}, journal)
    return TaskGroup(FlowState(FlowProgress(clock), {INPUT: source}, late), {name: task_state(name, clock=clock)})


def joined(*groups: TaskGroup, delivery: str = EXACTLY_ONCE) -> list[TaskGroup]:
    world = World(Ids("a"), Ids("b"), Ids("c"), delivery=delivery)
    return flows.together(world.log.files, world.flow("a", "b", "c"), groups)


class TestTogether:
    def test_tasks_of_one_flow_stay_together_in_the_order_that_is_asked_for(self) -> None:
        world = World(*map(Ids, "abcd"))
        entry = world.start("ab", "cd")
        assert flows.divided(entry, ["d", "b", "a"]) == [
            TaskGroup(entry.flows["c"], {"d": entry.tasks["d"]}),
            TaskGroup(entry.flows["a"], {"b": entry.tasks["b"], "a": entry.tasks["a"]}),
        ]
        assert list(flows.divided(entry, ["b", "a"])[0].tasks) == ["b", "a"]

    @pytest.mark.parametrize(
        ("one", "other", "common"),
        [
            (Position(5), Position(5), Position(5)),
            (Position(3, ((5, CLOCK),)), Position(3, ((5, CLOCK),)), Position(3, ((5, CLOCK),))),
            # A replay may begin later where micro-batches were others. Below the clock both are done up to 5.
            (Position(1, ((5, CLOCK),)), Position(3, ((5, CLOCK),)), Position(1, ((5, CLOCK),))),
            (Position(1, ((5, CLOCK),)), Position(5), Position(1, ((5, CLOCK),))),
            # One has read what the other has not.
            (Position(1), Position(3), None),
            (Position(3, ((5, CLOCK),)), Position(3), None),
            (Position(1, ((2, CLOCK),)), Position(3), None),
            (Position(1, ((5, CLOCK),)), Position(3, ((6, CLOCK),)), None),
            (Position(1, ((5, CLOCK), (7, 20))), Position(3, ((5, CLOCK),)), None),
            # A pair of another clock: below 40, one is done with what the other is not.
            (Position(1, ((5, 30),)), Position(3, ((5, 30),)), None),
            (Position(3, ((5, CLOCK),)), Position(3, ((5, 30),)), None),
        ],
    )
    def test_flows_are_one_where_each_message_is_accounted_for_in_both_or_in_none(
        self, one: Position, other: Position, common: Position | None
    ) -> None:
        for first, second in ((one, other), (other, one)):
            found = joined(group("a", {"p": first}), group("b", {"p": second}))
            assert [list(each.tasks) for each in found] == ([["a"], ["b"]] if common is None else [["a", "b"]])
            assert found[0].flow.source.positions == {"p": first if common is None else common}

    @pytest.mark.parametrize(
        ("position", "is_one"), [(Position(0), True), (Position(5), False), (Position(0, ((5, CLOCK),)), False)]
    )
    def test_a_partition_that_a_flow_does_not_name_was_not_read(self, position: Position, is_one: bool) -> None:
        read = {"p": Position(5)}
        for first, second in (({**read, "q": position}, read), (read, {**read, "q": position})):
            assert (len(joined(group("a", first), group("b", second))) == 1) is is_one

    def test_flows_of_other_clocks_or_deliveries_stay_apart(self) -> None:
        assert len(joined(group("a"), group("b", clock=CLOCK + 10))) == 2
        assert len(joined(group("a"), group("b"))) == 1
        for delivery in (AT_LEAST_ONCE, AT_MOST_ONCE):
            assert len(joined(group("a"), group("b"), delivery=delivery)) == 2

    def test_what_came_late_before_stays_with_those_for_whom_it_did(self) -> None:
        (found,) = joined(group("a", late=late("a")), group("b", late=late("b")))
        assert found.flow.late_rows == NO_ROWS
        assert {name: task.late_rows for name, task in found.tasks.items()} == {"a": late("a"), "b": late("b")}

    def test_a_flow_joins_any_before_it(self) -> None:
        found = joined(group("a", {"p": Position(5)}), group("b", {"p": Position(7)}), group("c", {"p": Position(7)}))
        assert [list(each.tasks) for each in found] == [["a"], ["b", "c"]]

    def test_a_flow_knows_the_channels_of_both_and_of_one_that_both_know_what_the_first_does(self) -> None:
        one, other = group("a"), group("b")
        own = {"x": Channel(None, 0, before=5), "y": Channel(None, 0)}
        one = replace(one, flow=one.flow.with_source(SourceState({"x": Channel(None, 0, before=7)})))
        other = replace(other, flow=other.flow.with_source(SourceState(own)))
        (found,) = joined(one, other)
        assert found.flow.source.channels == {"x": Channel(None, 0, before=7), "y": Channel(None, 0)}

    def test_a_journal_may_be_the_beginning_of_the_other(self) -> None:
        world = World(Ids("a"), Ids("b"))
        lines = [f"{i:01000d}" for i in range(5)]

        def written(some: Sequence[str]) -> Pages:
            return lists.append(world.log.files, Pages(), some, core.new_id)

        def is_one(first: Pages, second: Pages) -> list[Pages]:
            groups = group("a", journal=first), group("b", journal=second)
            found = flows.together(world.log.files, world.flow("a", "b"), groups)
            return [each.flow.source.journal for each in found]

        short, long, other = written(lines[:2]), written(lines), written([*lines[:1], "other"])
        # A list may be in the entry or in a file: what counts is what it holds.
        assert (short.files, long.tail) == ((), ())
        assert is_one(short, short) == [short]
        assert [lists.read(world.log.files, pages) for pages in is_one(long, written(lines))] == [lines]
        assert (is_one(short, long), is_one(long, short), is_one(Pages(), long)) == ([long], [long], [long])
        for one, two in ((other, long), (long, other), (short, other)):
            assert is_one(one, two) == [one, two]

    def test_of_other_journals_the_source_makes_one_by_where_the_flows_read_on_or_they_stay_apart(self) -> None:
        world, asked = World(*map(Ids, "abcd")), list[Any]()
        begins = {"x": Pages((), ("x", "1")), "y": Pages((), ("y", "2", "3")), "z": Pages((), ("z",))}

        def merge(one: Sequence[str], other: Sequence[str], replay: Mapping[str, int]) -> list[str] | None:
            asked.append((list(one), list(other), dict(replay)))
            return None if "z" in (*one, *other) else ["both", *one[1:], *other[1:]]

        def of(*groups: TaskGroup) -> list[tuple[list[str], list[str]]]:
            found = flows.together(world.log.files, replace(world.flow(*"abcd"), merge_journals=merge), groups)
            return [([*each.tasks], lists.read(world.log.files, each.flow.source.journal)) for each in found]

        read, more = {"p": Position(5), "q": Position(5)}, {"p": Position(7)}
        x, y = group("a", read, begins["x"]), group("b", read, begins["y"])
        assert of(x, y) == [(["a", "b"], ["both", "1", "2", "3"])]
        assert asked == [(["x", "1"], ["y", "2", "3"], {"p": 5, "q": 5})]
        # Those of one journal are asked for together, by where any of them reads on.
        ahead, alone = group("b", more, begins["y"]), group("d", more, begins["z"])
        asked.clear()
        assert of(x, ahead, group("c", read, begins["x"]), alone) == [
            (["a", "c"], ["both", "1", "2", "3"]),
            (["b"], ["both", "1", "2", "3"]),
            (["d"], ["z"]),
        ]
        assert asked == [
            (["x", "1"], ["y", "2", "3"], {"p": 5, "q": 0}),
            (["both", "1", "2", "3"], ["z"], {"p": 5, "q": 0}),
        ]
        # Those that now have one journal can meet.
        (one, other) = flows.together(world.log.files, replace(world.flow(*"ab"), merge_journals=merge), [x, ahead])
        assert flows.meeting_positions(entry_of(one, other), ["a", "b"]) == {name: {"p": 7, "q": 5} for name in "ab"}
        assert flows.meeting_positions(entry_of(x, ahead), ["a", "b"]) == {}

    def test_the_longer_journal_is_taken_without_asking_the_source(self) -> None:
        world = World(*map(Ids, "ab"))
        long, short = Pages((), ("x", "y")), Pages((), ("x",))
        flow = replace(world.flow(*"ab"), merge_journals=lambda *asked: pytest.fail("asked"))
        (found,) = flows.together(world.log.files, flow, [group("a", journal=short), group("b", journal=long)])
        assert found.flow.source.journal is long

    def test_a_start_reads_each_journal_once_and_none_if_all_are_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world, was_read = World(*map(Ids, "abcd")), list[Pages]()
        monkeypatch.setattr(lists, "read", lambda files, pages: was_read.append(pages) or [*pages.tail])
        one, two, three = (Pages((), ("x", str(i))) for i in range(3))
        groups = [group(name, journal=journal) for name, journal in zip("abcd", (one, two, three, one), strict=True)]
        assert len(flows.together(world.log.files, world.flow(*"abcd"), groups)) == 3
        assert was_read == [one, two, three]
        assert len(flows.together(world.log.files, world.flow(*"ad"), [groups[0], groups[3], group("b")])) == 1
        assert was_read == [one, two, three]


def late(name: str) -> LateRows:
    """A record of a file and of a settled one, of late rows that no start takes back."""
    settled = Pages((runs_io.Stored(f"{name}-page", 1, ""),), (f"{name}-settled",))
    side = SideFile(runs_io.Stored(f"{name}-side", 1, ""), {"late": 2}, 5, {"p": 1})
    return LateRows((side,), settled, {"late": 3})


class TestNew:
    def test_a_new_task_comes_to_the_first_flow_that_has_come_to_the_global_clock(self) -> None:
        behind, at, other = group("a", clock=10), group("b", {"p": Position(5)}, late=late("b")), group("c")
        born: list[int] = []

        def born_at(clock: int) -> dict[str, TaskState]:
            born.append(clock)
            return {"d": task_state("")}

        found = flows.with_new([behind, at, other], CLOCK, born_at)
        assert (found[0], found[2], born) == (behind, other, [CLOCK])
        assert (found[1].flow.source, list(found[1].tasks)) == (at.flow.source, ["b", "d"])
        # What came late before came late for those that were there.
        assert found[1].flow.late_rows == found[1].tasks["d"].late_rows == NO_ROWS
        assert found[1].tasks["b"].late_rows == late("b")

    def test_where_all_are_behind_new_tasks_have_a_flow_of_their_own(self) -> None:
        behind = group("a", {"p": Position(5)}, clock=10)
        found = flows.with_new([behind], CLOCK, lambda clock: {"b": task_state("", clock=clock)})
        own = TaskGroup(FlowState(FlowProgress(CLOCK)), {"b": task_state("", clock=CLOCK)})
        assert found == [behind, own]

    def test_a_task_has_its_own_late_rows_before_those_of_the_flows_that_it_was_in(self) -> None:
        one = group("a", late=late("flow"))
        one = replace(one, tasks={"a": task_state("a", late("own"))})
        rows = one.with_late_rows_apart().tasks["a"].late_rows
        assert [side.file.path for side in rows.sides] == ["own-side", "flow-side"]
        assert [file.path for file in rows.settled.files] == ["own-page", "flow-page"]
        assert (rows.settled.tail, rows.counts()) == (("own-settled", "flow-settled"), {"late": 10})


class TestOneFlow:
    @pytest.mark.rows_in_files
    def test_tasks_that_start_together_are_one_flow_and_a_commit_moves_both(self) -> None:
        world = two(shards=2)
        entry = world.newest
        assert list(entry.flows) == ["a"]
        assert {name: task.flow for name, task in entry.tasks.items()} == {"a": "a", "b": "a"}
        world.come(5, 12, 31)
        entry = world.read("a", "b", parts=2)
        assert (entry.number, list(entry.flows), entry.clock) == (2, ["a"], 30)
        assert entry.flows["a"].source.positions[""].next == 3
        for name in "ab":
            assert (world.ids(name, 30), world.ids(name)) == ([0, 1], [0, 1, 2])
            assert entry.tasks[name].stored.cuts == (30,)
        # Each task has runs of its own, in the same file.
        runs = [{run.file for run in entry.tasks[name].stored.runs} for name in "ab"]
        assert not runs[0] & runs[1]
        assert len({file.path for files in runs for file in files}) == 1

    def test_each_shard_of_each_task_answers_once_and_for_its_flow(self) -> None:
        world = two(shards=2)
        world.come(5, 31)
        made = core.answers(world.log, world.flow("a", "b"), world.batch)
        before = world.newest
        assert sorted((each.task, each.shard) for each in made.descriptors) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
        a0, a1, b0, b1 = sorted(made.descriptors, key=lambda each: (each.task, each.shard))
        for wrong in (
            [a0, a1, b0],
            [a0, a1],
            [a0, a1, b0, b0],
            [a0, a1, b0, b1, b1],
            [a0, a1, b0, replace(b1, task="a")],
            [a0, a1, b0, replace(b1, task="c")],
            [a0, a1, b0, replace(b1, shard=2)],
            [a0, a1, b0, replace(b1, flow="b")],
            [a0, a1, b0, replace(b1, base=b1.base[::-1])],
        ):
            with pytest.raises(DisagreementError):
                core.commit(world.log, world.flow("a", "b"), Answers(made.reports, wrong))
        assert world.newest == before
        core.commit(world.log, world.flow("a", "b"), Answers(made.reports, [b1, a0, b0, a1]))
        assert (world.ids("a"), world.ids("b")) == ([0, 1], [0, 1])

    def test_a_part_reports_the_lowest_interval_of_any_task(self) -> None:
        world = World(ByTime(), Ids("a"))
        world.start(["times", "a"])
        # The time of the first row does not fit the first task.
        world.come_with([(5, 1), (61, 0)])
        flow = world.flow("times", "a")
        lows = []
        for some in (flow, flow.of(["times"])):
            basis = commits.plan_batch(world.newest, flow, Reach({"": 2}), 0)
            _, report = combine(some, basis, 0, 1, [Chunk("", 0, world.batch)])
            lows.append(report.low)
        assert lows == [0, 60]

    def test_a_part_reports_the_coarsest_intervals_of_any_task(self) -> None:
        world = World(ByTime(), Ids("a"))
        world.start(["times", "a"])
        # No time but the last fits the first task.
        world.come_with([*((stamp, 1) for stamp in range(5, 100_000, 10)), (100_005, 0)])
        flow, rows = world.flow("times", "a"), world.batch
        basis = commits.plan_batch(world.newest, flow, Reach({"": rows.num_rows}), 0)
        of_both, of_times = (
            combine(some, basis, 0, 1, [Chunk("", 0, rows)])[1].coarse for some in (flow, flow.of(["times"]))
        )
        assert of_times is None
        assert of_both is not None

    def test_a_blob_at_another_shard_is_refused(self) -> None:
        world = two(shards=2)
        world.come(5, 31)
        flow = world.flow("a", "b")
        basis = commits.plan_batch(world.newest, flow, Reach({"": 2}), 0)
        blobs, _ = combine(flow, basis, 0, 1, [Chunk("", 0, world.batch)])
        by_shard = [Blob.from_bytes(blob.to_bytes()) for blob in blobs]
        assert [blob.shard for blob in by_shard] == [0, 1]
        for wrong in ([1], [0, 1]):
            with pytest.raises(DisagreementError, match="flow=a shard=0 got what was sent to another"):
                merge_shard(flow, 0, [by_shard[each] for each in wrong], {}, core.new_id)
        descriptors, runs = merge_shard(flow, 0, by_shard[:1], {}, core.new_id)
        assert [(each.flow, each.task, each.shard) for each in descriptors] == [("a", "a", 0), ("a", "b", 0)]
        assert [*runs] == ["a", "b"]

    def test_a_blob_has_as_many_bytes_without_rows_however_many_tasks_there_are(self) -> None:
        sizes = []
        for names in ("a", "abcdefgh"):
            world = World(*map(Ids, names))
            entry = world.start(names)
            basis = commits.plan_part(entry, world.flow(*names), Reach({}), 0)
            blobs, _ = combine(world.flow(*names), basis, 1, 2, [])
            sizes.append([len(blob.to_bytes()) for blob in blobs])
        assert sizes[0] == sizes[1]
        assert max(sizes[0]) < 300

    def test_a_file_that_tasks_share_counts_once_in_what_an_application_has(self) -> None:
        world = two()
        world.come(5, 31)
        world.read("a", "b")
        world.come(2)
        world.read("a", "b")
        assert world.aside("a") == world.aside("b") != []
        found, paths = summary(world.log.files, "app"), world.newest.files()
        assert found["bytes"] == sum(len(world.log.files.read(path)) for path in paths)
        assert found["bytes"] < sum(task["bytes"] for task in found["tasks"])

    def test_a_plan_of_other_tasks_than_the_flow_has_is_refused(self) -> None:
        world = World(*map(Ids, "abc"))
        entry = world.start("ab", "c")
        for names in ("a", "abc"):
            with pytest.raises(DisagreementError, match="one flow no more"):
                commits.plan_batch(entry, world.flow(*names), Reach({}), 0)

    def test_late_rows_are_written_once_and_are_those_of_both(self) -> None:
        world = two(shards=2)
        world.come(31)
        world.read("a", "b")
        world.come(7, None)
        entry = world.read("a", "b", parts=2)
        assert sum(map(len, (side.reasons for side in entry.flows["a"].late_rows.sides))) == 2
        assert [task.late_rows for task in entry.tasks.values()] == [NO_ROWS, NO_ROWS]
        assert world.aside("a") == world.aside("b") == [("late", 1), ("no timestamp", 2)]
        assert len([path for path in entry.files() if path.endswith(".late.arrow")]) == len(
            [file for name in "ab" for file in world.log.files.list(f"app/runs/{name}") if file.endswith(".late.arrow")]
        )

    def test_a_key_that_does_not_fit_a_task_is_bad_for_that_task_only(self) -> None:
        world = World(Ids("a"), ByTime())
        world.start(["a", "times"])
        world.come_with([(5, 1000), (6, 1), (31, 2000)])
        entry = world.read("a", "times")
        assert (world.aside("a"), world.aside("times")) == ([], [("key does not fit: column at", 1)])
        assert entry.flows["a"].late_rows == NO_ROWS
        assert world.ids("a") == [0, 1, 2]
        state = core.state_at(entry, world.plans["times"], None)
        assert sorted(state.values()) == [1, 1]

    def test_bad_rows_fail_where_one_task_wants_that(self) -> None:
        world = two()
        world.plans["b"] = core.changed(world.plans["b"], on_bad_row=FAIL)
        world.start("ab")
        world.come(5, None)
        with pytest.raises(TaskFailedError, match="task=b met a bad row"):
            world.read("a", "b")
        assert world.newest.flows["a"].source.positions == {}


class TestStarts:
    def test_a_task_that_leaves_takes_a_copy_of_the_flow_and_comes_back_behind(self) -> None:
        world = two()
        world.come(5, 12, 31)
        world.read("a", "b")
        entry = world.start("a")
        assert {name: (task.flow, task.active) for name, task in entry.tasks.items()} == {
            "a": ("a", True),
            "b": ("b", False),
        }
        assert entry.flows["a"] == entry.flows["b"]
        world.come(33, 52)
        assert world.read("a").clock == 50
        entry = world.start("ab")
        assert (list(entry.flows), entry.flows["b"].progress.clock, entry.clock) == (["a", "b"], 30, 50)
        world.come(64)
        for name in "ab":
            world.read(name)
        assert world.newest.clock == 60
        # Both have read the same by now.
        entry = world.start("ab")
        assert list(entry.flows) == ["a"]
        world.read("a", "b")
        assert world.ids("a") == world.ids("b") == [0, 1, 2, 3, 4, 5]
        assert (world.aside("a"), world.aside("b")) == ([], [])

    def test_a_task_that_comes_back_before_anything_was_read_joins_at_once(self) -> None:
        world = two()
        world.come(5, 31)
        world.read("a", "b")
        world.start("a")
        assert list(world.start("ab").flows) == ["a"]

    @pytest.mark.rows_in_files
    def test_a_task_that_is_gone_leaves_no_files_once_it_was_reset_and_left_out_again(self) -> None:
        world = two()
        world.come(5, 31, 7)
        world.read("a", "b", end=2)
        world.read("a", "b")
        world.start("a")
        world.come(62)
        world.read("a")

        def collected() -> list[str]:
            core.collect(world.log, world.newest.epoch, now=10**12, keeping=Keeping(1, 0))
            return world.log.files.list("app/runs/b")

        assert collected() != []
        world.start("ab", reset=["b"])
        world.keeping = Keeping(1)
        for time in (93, 124):
            # Until no clock is kept at which it had a state.
            world.start("a")
            world.come(time)
            world.read("a")
        assert collected() == []
        assert (world.ids("a"), world.aside("a")) == ([0, 1, 3, 4, 5], [("late", 2)])

    def test_tasks_that_leave_together_stay_together(self) -> None:
        world = World(*map(Ids, "abc"))
        world.start("abc")
        entry = world.start("b")
        assert {name: task.flow for name, task in entry.tasks.items()} == {"a": "a", "b": "b", "c": "a"}
        assert {name: task.flow for name, task in world.start("b").tasks.items()} == {"a": "a", "b": "b", "c": "a"}

    def test_a_task_that_joins_begins_at_the_global_clock_and_reads_no_earlier_message(self) -> None:
        world = World(*map(Ids, "ab"))
        world.start("a")
        world.come(5, 31, 7)
        for end in (1, 2, 3):
            world.read("a", end=end)
        assert world.aside("a") == [("late", 2)]
        entry = world.start("ab")
        assert (list(entry.flows), entry.tasks["b"].born, entry.tasks["b"].flow) == (["a"], 30, "a")
        assert entry.flows["a"].source.positions[""].next == 1
        world.come(8, 42)
        world.read("a", "b")
        # What is above the clock comes again, for both. What was late before b was there is not b's.
        assert (world.ids("a"), world.ids("b")) == ([0, 1, 4], [1, 4])
        assert (world.aside("a"), world.aside("b")) == ([("late", 2), ("late", 3)], [("late", 3)])
        assert world.newest.clock == 40
        assert (world.ids("b", 30), world.ids("b", 40)) == ([], [1])

    def test_a_task_that_joins_where_all_are_behind_reads_its_source_from_the_beginning(self) -> None:
        world = World(*map(Ids, "abc"))
        world.start("a", "c")
        world.come(5, 31)
        for name in "ac":
            world.read(name)
        world.start("c")
        world.come(52)
        assert world.read("c").clock == 50
        entry = world.start("ab", "c")
        assert {name: task.flow for name, task in entry.tasks.items()} == {"a": "a", "b": "b", "c": "c"}
        assert (entry.flows["b"].progress.clock, entry.flows["b"].source.positions) == (50, {})
        world.read("b")
        assert (world.ids("b"), world.aside("b")) == ([2], [("late", 0), ("late", 1)])

    def test_tasks_of_one_flow_that_are_given_other_sources_each_take_a_copy(self) -> None:
        world = two()
        world.come(31, 7)
        world.read("a", "b", end=1)
        world.read("a", "b")
        entry = world.start("a", "b")
        assert list(entry.flows) == ["a", "b"]
        assert entry.flows["a"] == entry.flows["b"]
        world.come(42)
        world.read("b")
        world.read("a")
        for name in "ab":
            assert (world.ids(name), world.aside(name)) == ([0, 2], [("late", 1)])
        # Together again, neither has the other's late rows.
        entry = world.start("ab")
        assert (list(entry.flows), world.aside("a"), world.aside("b")) == (["a"], [("late", 1)], [("late", 1)])

    def test_the_first_task_names_the_flow_whoever_was_first_before(self) -> None:
        world = two()
        entry = world.start("ba")
        assert (list(entry.flows), list(entry.tasks)) == (["b"], ["b", "a"])

    def test_a_task_that_is_reset_stays_in_its_flow_from_zero(self) -> None:
        world = two()
        world.come(5, 31, 7)
        world.read("a", "b", end=2)
        world.read("a", "b")
        entry = world.start("ab", reset=["a"])
        assert (list(entry.flows), entry.tasks["a"].born, entry.tasks["b"].born) == (["a"], 30, BEGINNING)
        world.come(42)
        world.read("a", "b")
        assert (world.ids("a"), world.ids("b")) == ([1, 3], [0, 1, 3])
        assert (world.aside("a"), world.aside("b")) == ([], [("late", 2)])

    def test_a_task_that_is_built_again_reads_on_its_own_until_it_has_caught_up(self) -> None:
        world = two()
        world.come(5, 31)
        world.read("a", "b")
        entry = world.start("ab", rebuild=["b"])
        assert (list(entry.flows), entry.flows["b"]) == (["a", "b"], FlowState(FlowProgress(BEGINNING)))
        assert entry.tasks["b"].life == entry.epoch
        world.come(42)
        world.read("a")
        assert world.newest.clock == 30
        world.read("b")
        assert (world.newest.clock, world.ids("b", 30), world.ids("b")) == (40, [0], [0, 1, 2])
        assert list(world.start("ab").flows) == ["a"]

    def test_a_task_that_is_built_again_and_one_that_is_new_do_not_wait_for_each_other(self) -> None:
        world = World(*map(Ids, "abc"))
        world.start("ab")
        world.come(5, 31)
        world.read("a", "b")
        entry = world.start("abc", rebuild=["a"])
        assert {name: task.flow for name, task in entry.tasks.items()} == {"b": "b", "c": "b", "a": "a"}

    def test_flows_that_have_read_the_same_in_other_micro_batches_replay_from_the_earlier_position(self) -> None:
        world = World(*map(Ids, "ab"), delay=20)
        world.start("a", "b")
        world.come(5, 9, None, 36, 31)
        world.read("a")
        for end in (2, 3, 5):
            world.read("b", end=end)
        replays = [position.next for position in world.start("a", "b").flows["b"].source.positions.values()]
        assert (replays, world.aside("b")) == ([3], [("no timestamp", 2)])
        entry = world.start("ab")
        assert (list(entry.flows), entry.clock, entry.flows["a"].source.positions[""].next) == (["a"], 10, 0)
        # The row without a timestamp comes again, so it is in no file any more.
        assert (world.aside("a"), world.aside("b")) == ([], [])
        world.read("a", "b")
        for name in "ab":
            assert (sorted(world.ids(name)), world.aside(name)) == ([0, 1, 3, 4], [("no timestamp", 2)])

    def test_flows_at_one_clock_meet_where_each_partition_is_read_furthest(self) -> None:
        world = World(*map(Ids, "ab"))
        world.start("a", "b")
        world.come(5, 31, 33, 52)
        world.read("a", end=3)
        world.read("b", end=2)
        entry = world.start("a", "b")
        assert flows.meeting_positions(entry, ["a", "b"]) == {"b": {"": 3}}
        world.read("b", end=3)
        entry = world.start("a", "b")
        assert flows.meeting_positions(entry, ["a", "b"]) == {}
        assert list(world.start("ab").flows) == ["a"]
        # Of other clocks, they do not.
        world.start("a")
        world.read("a")
        assert flows.meeting_positions(world.start("a", "b"), ["a", "b"]) == {}

    def test_flows_that_have_each_read_more_of_a_partition_both_read_on(self) -> None:
        entry = entry_of(
            group("a", {"p": Position(5), "q": Position(2)}), group("b", {"p": Position(3), "q": Position(7)})
        )
        assert flows.meeting_positions(entry, ["a", "b"]) == {name: {"p": 5, "q": 7} for name in "ab"}

    def test_flows_of_other_journals_do_not_meet(self) -> None:
        lines = [Pages((), ("x", "y")), Pages((), ("x", "z"))]
        entry = entry_of(group("a", {"p": Position(5)}, lines[0]), group("b", {"p": Position(3)}, lines[1]))
        assert flows.meeting_positions(entry, ["a", "b"]) == {}

    def test_a_flow_takes_the_longer_journal_that_goes_on_from_its_own(self) -> None:
        short, long, other = Pages((), ("x",)), Pages((), ("x", "y")), Pages((), ("z",))
        # One without a journal has yet to find its order.
        found = joined(
            group("a", {"p": Position(5)}, long),
            group("b", {"p": Position(3)}, short),
            group("c", {"p": Position(2)}, other),
            group("d", {"p": Position(1)}),
        )
        assert [each.flow.source.journal for each in found] == [long, long, other, NO_LINES]


def entry_of(*groups: TaskGroup) -> Entry:
    """An entry with these flows."""
    entry = core.start(Log(core.memory(), "app"), [core.plan_of(Ids("a"), SCHEMA)])
    return replace(entry, flows={next(iter(each.tasks)): each.flow for each in groups})


STAMPS = st.lists(st.none() | st.integers(0, 90), max_size=24)
NEARLY_IN_ORDER = st.lists(st.none() | st.integers(-10, 10), min_size=1, max_size=24).map(
    lambda steps: [None if step is None else 50 + 5 * i + step for i, step in enumerate(steps)]
)
ENDS = st.lists(st.integers(0, 24), max_size=6)


@pytest.mark.soak
@settings(max_examples=soak_or(ci=15, soak=40))
@given(st.data(), STAMPS, st.integers(0, 30), st.integers(1, 3))
def test_each_task_of_a_flow_has_what_it_has_alone(
    data: st.DataObject, stamps: list[int | None], delay: int, shards: int
) -> None:
    tasks = data.draw(st.permutations([Ids("a"), Reads("b"), ByTime()]))[: data.draw(st.integers(2, 3))]
    names = [task.task_name for task in tasks]
    rows = [(stamp, data.draw(st.sampled_from([0, 1, 1000]))) for stamp in stamps]
    worlds = [World(*tasks, delay=delay, shards=shards), *(World(task, delay=delay, shards=shards) for task in tasks)]
    flow, alone = worlds[0], dict(zip(names, worlds[1:], strict=True))
    for world in worlds:
        world.come_with(rows)
    for ends in data.draw(st.lists(ENDS, min_size=1, max_size=3)):
        for world in worlds:
            world.start([*world.plans])
        begin = flow.newest.flows[names[0]].source.next_positions.get("", 0)
        for end in (*sorted(end for end in ends if begin < end < len(rows)), len(rows)):
            parts = data.draw(st.integers(1, 2))
            for world in worlds:
                world.read(*world.plans, end=end, parts=parts)
    entry = flow.newest
    for name, world in alone.items():
        other = world.newest
        assert (entry.clock, entry.retained) == (other.clock, other.retained)
        assert entry.flow_of(name).progress == other.flow_of(name).progress
        assert entry.flow_of(name).source == other.flow_of(name).source
        for clock in (*entry.retained, None):
            of_flow, of_world = (core.state_at(each.newest, each.plans[name], clock) for each in (flow, world))
            assert of_flow == of_world
        assert flow.aside(name) == world.aside(name)


@pytest.mark.soak
@settings(max_examples=soak_or(ci=25, soak=60))
@given(st.data(), NEARLY_IN_ORDER, st.integers(0, 30))
def test_tasks_that_part_and_join_anyhow_have_each_message_once(
    data: st.DataObject, stamps: list[int | None], delay: int
) -> None:
    """Flows read in micro-batches of their own, and lists of late rows are settled as soon as may be."""
    world = World(*map(Ids, "abc"), delay=delay)
    world.come(*stamps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(late_rows, "MANY", 0)
        world.start("a", "b", "c")
        for last in data.draw(st.lists(st.integers(1, len(stamps)), min_size=1, max_size=4)):
            for flow in [[*world.newest.tasks_of(id)] for id in world.newest.flows]:
                begin = world.newest.flows[flow[0]].source.next_positions.get("", 0)
                for end in sorted({end for end in (*data.draw(ENDS), last) if begin < end <= last}):
                    world.read(*flow, end=end)
            world.start(*data.draw(st.sampled_from([("abc",), ("ab", "c"), ("a", "bc"), ("a", "b", "c"), ("bca",)])))
        for flow in [[*world.newest.tasks_of(id)] for id in world.newest.flows]:
            world.read(*flow)
    for name in world.plans:
        counted = Counter([*world.ids(name), *(position for _, position in world.aside(name))])
        assert counted == Counter(range(len(stamps)))


def test_flows_stay_apart_while_the_common_replay_would_read_settled_rows_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(late_rows, "MANY", 0)
    monkeypatch.setattr(lists, "TAIL", 0)
    world = World(*map(Ids, "ab"), delay=20)
    world.start("a", "b")
    world.come(5, None, None, 36, 31)
    # In one chunk, which begins with a message that counts.
    world.read("a")
    for _ in range(2):
        for end in (3, 5):
            if end > world.newest.flows["b"].source.next_positions.get("", 0):
                world.read("b", end=end)
        world.start("a", "b")
    # From position 3 on b reads again, so that what is bad before it is settled. For a it is not.
    b, a = (world.newest.flows[name] for name in "ba")
    assert (b.source.positions[""].next, b.late_rows.settled_counts) == (3, {"no timestamp": 2})
    assert (a.source.positions[""].next, a.late_rows.settled_counts) == (0, {})
    assert list(world.start("ab").flows) == ["a", "b"]
    (page,) = b.late_rows.settled.files
    kept = world.log.files.read(page.path)
    world.log.files.delete(page.path)
    assert list(world.start("ab").flows) == ["a", "b"]
    world.log.files.create(page.path, kept)
    world.come(62)
    for name in "ab":
        world.read(name, end=5)
        world.read(name)
    assert list(world.start("ab").flows) == ["a"]
    world.read("a", "b")
    for name in "ab":
        assert (sorted(world.ids(name)), world.aside(name)) == (
            [0, 3, 4, 5],
            [("no timestamp", 1), ("no timestamp", 2)],
        )
