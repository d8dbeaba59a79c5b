"""An open store answers exactly at every clock that can be read, of all keys or of some, whatever the application does."""

from __future__ import annotations

import math
import pickle
import random
import re
import shutil
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monoids import Aggregator, Average, Count, List, Struct, Sum
from persistent_state import (
    DamagedError,
    InvalidInputError,
    NonWindowState,
    PersistentTask,
    SessionWindow,
    SlidingWindow,
    TaskFailedError,
    TumblingWindow,
    WindowState,
    open_store,
    read_state,
)
from persistent_state import open_rows as opened
from persistent_state.batch.plan import AT_LEAST_ONCE, EXACTLY_ONCE, FlowPlan, Plan
from persistent_state.drive import local
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.open_state import OpenChanges, OpenState, OpenStore, OpenTask
from persistent_state.partials import keys
from persistent_state.partials.since import Since
from persistent_state.protocol import rewind
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.naming import keep
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.state import KeptState
from persistent_state.store import blocks, net_changes, state_at
from persistent_state.store import runs as runs_io
from persistent_state.store.files import Files, MemoryFiles, cache, open_files
from persistent_state.store.log import Log
from persistent_state.windows import TimeToLive
from tests import core, page_code, windows
from tests.fixtures.write_graph_store import Graph
from tests.local_application import LocalApplication, Rows
from tests.sentences import problem
from tests.soak import soak_or
from tests.store.proxy import Proxy
from tests.store.servers import Servers, files_of, needed
from tests.store.test_graph_store import STORES as GRAPHS
from tests.store.test_upgrades import STORES, unpacked

SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("n", pa.int64())])
STORE = str(Path(__file__).parent / "fixtures" / "store-v1")
KEYS, ABSENT = 8, 99
HOUR = 3_600_000_000

KINDS: dict[str, Any] = {
    "no bound": None,
    "tumbling": SlidingWindow(core.us(20), core.us(20)),
    "sliding": SlidingWindow(core.us(35), core.us(10)),
    "apart": SlidingWindow(core.us(10), core.us(15), gaps=True),
    "sessions": SessionWindow(core.us(7)),
    "ttl": TimeToLive(15),
}


@dataclass(frozen=True)
class FarFiles(MemoryFiles):
    """A store that notes what is read, and keeps copies on the local disk as one behind a network does."""

    near: ClassVar[bool] = False
    asked: list[str] = field(default_factory=list, compare=False)
    fetched: Counter[str] = field(default_factory=Counter, compare=False)
    """By path: the bytes that were read."""

    def read(self, path: str) -> pa.Buffer:
        return self._noted(path, super().read(path))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        data = super().read(path)
        return [self._noted(path, data[begin:end]) for begin, end in ranges]

    def _noted(self, path: str, data: pa.Buffer) -> pa.Buffer:
        self.asked.append(path)
        self.fetched[path] += len(data)
        return data


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    start_process()


def start_process() -> None:
    """Forget all that a process knows, and that there are copies."""
    runs_io._verified.clear()
    blocks._indexes.clear()
    cache._verified.clear()
    for folder in Path(tempfile.gettempdir()).glob("persistent-state-*"):
        shutil.rmtree(folder)


@contextmanager
def small(*, colliding: bool = False) -> Iterator[None]:
    """Blocks, parts and batches of a few rows; and hashes of so few bits that keys share them."""
    honest = keys.hash_keys

    def few(columns: Any, rows: int) -> Any:
        return honest(columns, rows) & np.uint64(0x3 << 62)

    with (
        mock.patch.object(blocks, "BLOCK", 200),
        mock.patch.object(opened, "PART", 7),
        mock.patch.object(opened, "ROWS", 3),
        mock.patch.object(keys, "hash_keys", few if colliding else honest),
    ):
        yield


class Kept(PersistentTask):
    key, value = "key", "n"

    def __init__(self, windowing: Any = None, monoid: Any = None, name: str = "Kept") -> None:
        self.windowing, self.monoid, self.name = windowing, Sum() if monoid is None else monoid, name

    def persistent_state(self) -> KeptState[Any]:
        state: KeptState[Any] = NonWindowState(self.monoid)
        if isinstance(self.windowing, (SlidingWindow, SessionWindow)):
            return WindowState(self.monoid, self.windowing)
        state.windowing = self.windowing
        return state


class World(LocalApplication):
    """An application of one task. Its clock moves by ten with each micro-batch, of some messages of random keys."""

    def __init__(
        self, task: PersistentTask, seed: int = 0, files: Files | None = None, delivery: str = EXACTLY_ONCE
    ) -> None:
        self.task, self.random, self.delivery = task, random.Random(seed), delivery
        self.batch, self.shards, self.sent = 0, 3, list[windows.Sent]()
        self.resets: list[int] = []
        """The clocks at which the task began from zero, in this timeline."""
        super().__init__(*self.planned(files or core.memory()), keeping=Keeping(2, 0, ((30, 10**9),)))
        self.restart()

    @property
    def opened(self) -> OpenTask:
        return OpenStore(self.files).application("app").task(self.task)

    def planned(self, files: Files) -> tuple[dict[str, Plan], dict[str, TimeReplayableSource]]:
        """The plans and the sources by task."""
        plan = core.plan_of(self.task, SCHEMA, files=files, shards=self.shards, delivery=self.delivery)
        return {plan.name: plan}, {plan.name: Rows(SCHEMA, "")}

    def restart(self, *reset: str) -> None:
        self.shards = 5 - self.shards
        self.plans, self.sources = self.planned(self.files)
        self.start(reset=reset)
        self.collector = Collector(self.log)

    def reset(self) -> None:
        """Let the task begin from zero. At the clock itself its state is that of before, as long as that is kept."""
        self.resets.append(self.newest.clock)
        self.restart(self.task.task_name)

    def play(self) -> None:
        name = self.task.task_name
        while len(self.sent) <= self.newest.flow_of(name).source.next_positions.get("", 0):
            times = self.random.choices(range(10), k=self.random.randint(1, 9))
            self.sent += [
                (self.random.randrange(KEYS), 10 * self.batch + time, self.random.randint(-3, 3)) for time in times
            ]
            self.batch += 1
        self.source(name).rows = [(ts, key, n) for key, ts, n in self.sent]
        self.turn(name)

    def collect(self) -> None:
        self.now = self.batch
        super().collect(after=HOUR)

    def keep(self) -> None:
        if self.newest.kept:
            keep(self.log, self.random.choice([*self.newest.kept]), f"name-{self.batch}-{self.random.random()}", 0)

    def rewind(self) -> None:
        """Go back to a kept clock. From there on the source has other messages."""
        if self.newest.kept:
            clock = self.random.choice([*self.newest.kept])
            rewind.rewind(self.log, core.plan_rewind(self.log, clock), writer="test", now=0)
            self.sent = [message for message in self.sent if message[1] < clock]
            self.resets = [reset for reset in self.resets if reset < clock]
            self.batch = clock // 10
            self.restart()

    def expected(self, clock: int) -> dict[Any, Any]:
        """The state at a clock, by key and window."""
        begun = max((reset for reset in self.resets if reset < clock), default=BEGINNING)
        sent = [message for message in self.sent if message[1] >= begun]
        windowing = self.task.windowing if isinstance(self.task, Kept) else None
        if windowing is not None:
            return windows.state_of(windowing, sent, clock)
        wanted: dict[Any, int] = {}
        for key, ts, n in sent:
            if ts < clock:
                wanted[key] = wanted.get(key, 0) + n
        return wanted


def rows_of(table: pa.Table, more: Sequence[str] = ()) -> list[tuple[Any, ...]]:
    """The key of each row, perhaps with its window, the value, and more columns."""
    table = core.whole_times(table)
    names = [name for name in table.column_names if name not in ("value", *more)]
    columns = [table[name].to_pylist() for name in names]
    found = zip(*columns, strict=True) if columns else [()] * len(table)
    told = [key[0] if len(key) == 1 else key for key in found]
    return [*zip(told, *(table[name].to_pylist() for name in ("value", *more)), strict=True)]


def check_state(state: OpenState, expected: Mapping[Any, Any], asked: Sequence[Any]) -> None:
    """All that an open state answers is what is expected."""
    table = state.to_arrow()
    assert table.schema == state.schema
    assert len(table) == len(expected)
    assert dict(rows_of(table)) == expected
    batches = [*state.batches()]
    assert sum(batch.num_rows for batch in batches) == len(table)
    assert dict(rows_of(pa.Table.from_batches(batches, state.schema))) == expected
    assert all(batch.num_rows <= opened.ROWS for batch in batches)
    windowed = len(state.schema) > 2
    wanted = [
        {key[1:]: value for key, value in expected.items() if key[0] == each} if windowed else expected.get(each)
        for each in asked
    ]
    found = state.get_many(asked)
    assert found == wanted
    assert [state.get(key) for key in asked[:2]] == wanted[:2]
    assert not windowed or all([*each] == sorted(each) for each in found)


def changes_of(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> list[tuple[Any, Any, str]]:
    """The net changes between two states: key, value and type of each row."""
    wanted = [(key, value, "insert") for key, value in after.items() if key not in before]
    wanted += [(key, value, "delete") for key, value in before.items() if key not in after]
    for key in before.keys() & after.keys():
        if before[key] != after[key]:
            wanted += [(key, before[key], "update_preimage"), (key, after[key], "update_postimage")]
    return wanted


def check_changes(changes: OpenChanges, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> None:
    found = rows_of(changes.to_arrow(), ["_change_type"])
    # Values may be mappings, which have no order.
    assert sorted(found, key=repr) == sorted(changes_of(before, after), key=repr)
    for number, (key, _, kind) in enumerate(found):
        if kind == "update_preimage":
            assert found[number + 1] == (key, after[key], "update_postimage")


ACTIONS = ("play", "play", "play", "collect", "restart", "rewind", "keep")


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=soak_or(ci=4, soak=300),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(st.sampled_from(ACTIONS), min_size=3, max_size=14), st.integers(0, 10**6), st.booleans(), st.booleans())
def test_handles_answer_exactly_or_refuse_while_the_application_commits_collects_and_goes_back(
    kind: str, actions: Sequence[str], seed: int, far: bool, colliding: bool
) -> None:
    with small(colliding=colliding):
        answers_exactly(World(Kept(KINDS[kind]), seed, far_files(far)), actions)


def far_files(far: bool) -> Files | None:
    """A store behind a network, if one is asked for."""
    return FarFiles("memory://" + core.new_id()) if far else None


def answers_exactly(world: World, actions: Sequence[str]) -> None:
    """At each clock that can be read, what is read is what is expected, also by a handle of before; or it is refused."""
    held: list[tuple[OpenState, dict[Any, Any]]] = []
    for action in ("play", *actions, "play"):
        getattr(world, action)()
        readable = OpenStore(world.files).application("app").clocks()
        fresh = [(world.opened.at(clock), world.expected(clock)) for clock in readable]
        for state, expected in fresh:
            check_state(state, expected, world.random.choices([*range(KEYS), ABSENT], k=6))
        for _ in range(2 if fresh else 0):
            (since, before), (until, after) = sorted(world.random.choices(fresh, k=2), key=lambda each: each[0].clock)
            check_changes(world.opened.changes(since.clock, until), before, after)
        for _ in range(2 if held else 0):
            # Copies of what was collected may be there.
            start_process()
            state, expected = world.random.choice(held)
            with may_be_gone(world, state):
                check_state(state, expected, [*range(KEYS)])
            (since, before), (until, after) = sorted(
                (world.random.choice(held), world.random.choice(held + fresh)), key=lambda each: each[0].clock
            )
            with may_be_gone(world, since, until):
                check_changes(world.opened.changes(since, until), before, after)
        held += fresh


@contextmanager
def may_be_gone(world: World, *states: OpenState) -> Iterator[None]:
    """Let states be refused with a sentence that the newest entry does not have any more."""
    entry = world.newest
    is_there = all(state.clock in entry.readable and state.state.is_of_timeline(entry) for state in states)
    try:
        yield
    except InvalidInputError as error:
        if is_there or not re.search(r"is no longer retained|is gone: the application was taken back", str(error)):
            raise


def test_a_handle_goes_on_with_the_runs_that_hold_its_clock_now() -> None:
    with small():
        world = World(Kept())
        # Each shard has files of its own, so that none stays for another shard.
        world.executor = partial(local.run, workers=5)
        world.restart()
        world.keeping = Keeping(20, 0)
        while world.newest.clock < 150:
            world.play()
        state, expected = world.opened.at(40), world.expected(40)
        keep(world.log, 40, "for the test", 0)
        world.keeping = Keeping(1, 0)
        while world.newest.clock < 300:
            world.play()
            world.collect()
        left = {f"app/runs/Kept/{name}" for name in world.files.list("app/runs/Kept")}
        assert {run.file.path for run in state.state.runs if run.first < 40} - left
        start_process()
        check_state(state, expected, [*range(KEYS)])
        # It looks into the log once.
        with mock.patch.object(state_at, "entry_at", side_effect=AssertionError):
            check_state(state, expected, [*range(KEYS)])


def test_changes_go_on_with_the_runs_that_keep_both_clocks_apart_now() -> None:
    with small():
        world = World(Kept())
        world.keeping = Keeping(20, 0)
        while world.newest.clock < 100:
            world.play()

        def trickle(count: int) -> None:
            """Commit messages that do not move the clock."""
            for _ in range(count):
                world.sent += [(key, 105, 1) for key in range(KEYS)]
                world.play()
                world.collect()

        trickle(3)
        changes = world.opened.changes(80, 100)
        assert changes.changes.apart
        trickle(9)
        assert world.newest.clock == 100
        left = {f"app/runs/Kept/{name}" for name in world.files.list("app/runs/Kept")}
        assert {run.file.path for run in changes.until.state.runs} - left
        start_process()
        with mock.patch.object(state_at.StateAt, "answer", side_effect=AssertionError):
            check_changes(changes, world.expected(80), world.expected(100))


class TestTimelines:
    @pytest.fixture
    def world(self) -> World:
        world = World(Kept())
        world.keeping = Keeping(4, 0, ((10, 10**9),))
        while world.newest.clock < 120:
            world.play()
        return world

    def back(self, world: World, to: int) -> None:
        rewind.rewind(world.log, core.plan_rewind(world.log, to), writer="test", now=0)
        world.sent = [message for message in world.sent if message[1] < to]
        world.batch = to // 10
        world.restart()

    @pytest.mark.rows_in_files
    def test_a_clock_that_a_rewind_has_made_void_is_gone_and_never_another_timelines(self, world: World) -> None:
        state, before = world.opened.at(110), world.opened.at(80)
        self.back(world, 90)
        while world.newest.clock < 130:
            world.play()
        world.collect()
        start_process()
        for ask in (state.to_arrow, lambda: state.get(1), lambda: [*state.batches()], state.to_pandas):
            told = problem(ask)
            assert told.startswith(
                "clock=1970-01-01T00:00:00.000110Z (110) of app is no longer retained: the application was"
            )
        timeline = world.newest.timeline
        assert (state.timeline, world.opened.at(110).timeline) == (0, timeline)
        check_state(before, world.expected(80), [0, 1, ABSENT])
        assert problem(lambda: world.opened.at(110, timeline=0)).startswith(
            "clock=1970-01-01T00:00:00.000110Z (110) of timeline=0 of app is gone: the application was taken back"
        )
        assert "is gone: the application was taken back" in problem(lambda: world.opened.changes(state))
        for clock, known in ((80, 0), (80, timeline), (110, timeline)):
            check_state(world.opened.at(clock, timeline=known), world.expected(clock), [0, 1, ABSENT])
        check_changes(world.opened.changes(before), world.expected(80), world.expected(world.newest.clock))
        assert "is gone" in problem(lambda: world.opened.at(80, timeline=timeline + 1))

    def test_of_several_timelines_that_came_to_a_clock_only_the_last_is_there(self, world: World) -> None:
        timelines = [0]
        for to in (90, 50):
            self.back(world, to)
            while world.newest.clock < 120:
                world.play()
            timelines.append(world.newest.timeline)
        for clock, known in ((40, timelines), (80, timelines[2:]), (110, timelines[2:])):
            for timeline in timelines:
                if timeline in known:
                    check_state(world.opened.at(clock, timeline=timeline), world.expected(clock), [1])
                else:
                    assert "is gone" in problem(
                        lambda clock=clock, timeline=timeline: world.opened.at(clock, timeline=timeline)
                    )


@pytest.mark.parametrize("kind", KINDS)
def test_changes_lead_from_every_clock_to_every_later_one_also_where_runs_do_not_keep_it_apart(kind: str) -> None:
    with small():
        world = World(Kept(KINDS[kind]))
        for _ in range(12):
            world.play()
            world.collect()
        clocks = OpenStore(world.files).application("app").clocks()
        apart = {
            (since, until): world.opened.changes(since, until).changes.apart
            for until in clocks
            for since in clocks
            if since <= until
        }
        assert {*apart.values()} == {True, False}
        for since, until in apart:
            changes = world.opened.changes(since, until)
            check_changes(changes, world.expected(since), world.expected(until))


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_task_that_began_anew_is_what_it_was_at_a_clock_of_its_life_before(delivery: str) -> None:
    with small():
        world = World(Kept(), delivery=delivery)
        for reset in ((), ("Kept",)):
            world.start(reset=reset)
            for _ in range(8):
                world.play()
                world.collect()
        app = OpenStore(world.files).application("app")
        before, after = app.clocks()[0], app.clocks()[-1]
        assert world.opened.at(before).to_arrow().num_rows == len(world.expected(before))
        assert world.opened.at(before).state.born < world.opened.at(after).state.born
        check_by_keys(world.opened, app.clocks())


def test_a_clock_and_its_timeline_name_one_state_also_of_a_task_that_is_reset() -> None:
    with small():
        world = World(Kept())
        for _ in range(5):
            world.play()
        before = {clock: world.opened.at(clock) for clock in OpenStore(world.files).application("app").clocks()}
        tables = {clock: by_key(state) for clock, state in before.items()}
        assert all(tables[clock] for clock in [*tables][1:])
        world.start(reset=["Kept"])
        # What reads the newest state reads that of the new life.
        assert world.opened.at().to_arrow().num_rows == 0
        for _ in range(5):
            clocks = {*OpenStore(world.files).application("app").clocks()} & {*tables}
            assert clocks
            for clock in clocks:
                again = world.opened.at(clock, timeline=before[clock].timeline)
                assert by_key(again) == by_key(before[clock]) == tables[clock]
                check_changes(world.opened.changes(clock), tables[clock], by_key(world.opened.at()))
            world.play()
            world.collect()
        last = OpenStore(world.files).application("app").clocks()[-1]
        assert by_key(world.opened.at(last)) == by_key(world.opened.at()) != {}


def by_key(state: OpenState) -> dict[Any, Any]:
    return {row["key"]: row["value"] for row in state.to_arrow().to_pylist()}


def test_an_open_state_is_sent_to_another_process() -> None:
    world = World(Kept())
    for _ in range(4):
        world.play()
    # Of the memory's files only this process has any.
    sent = pickle.loads(pickle.dumps(world.opened.at(30)))
    check_state(sent, world.expected(30), [*range(KEYS), ABSENT])


class TestChanges:
    def test_two_states_are_of_one_task_and_in_order(self) -> None:
        app = open_store(STORE).application("app")
        totals, notes = app.task("Totals"), app.task("Notes")
        assert "since is of task=Notes" in problem(lambda: totals.changes(notes.at(160)))
        assert "give the earlier clock first" in problem(lambda: totals.changes(220, 160))
        assert totals.changes(200, 200).to_arrow().num_rows == 0

    def test_values_are_compared_as_they_are_shown(self) -> None:
        parity = Aggregator(abs, Sum(), lambda total: total % 2, pa.int64())
        world = World(Kept(monoid=parity))
        world.sent = [(1, 1, 1), (2, 2, 2)]
        world.batch = 1
        world.play()
        world.sent += [(1, 11, 2), (2, 12, 3)]
        world.batch = 2
        world.play()
        world.play()
        shown = OpenStore(world.files).application("app").task(world.task, presented=True)
        raw = world.opened
        assert [row[1:] for row in rows_of(raw.changes(10, 20).to_arrow(), ["_change_type"]) if row[0] == 1] == [
            (1, "update_preimage"),
            (3, "update_postimage"),
        ]
        assert rows_of(shown.changes(10, 20).to_arrow(), ["_change_type"]) == [
            (2, 0, "update_preimage"),
            (2, 1, "update_postimage"),
        ]
        assert "has other types" in problem(lambda: raw.changes(shown.at(10)))

    @pytest.mark.rows_in_files
    def test_only_the_runs_that_came_since_and_the_blocks_of_their_keys_are_read(self) -> None:
        files = FarFiles("memory://" + core.new_id())
        plan = core.plan_of(Kept(), SCHEMA, files=files)
        log = Log(files, "app")
        core.start(log, [plan])
        with mock.patch.object(blocks, "BLOCK", 2000), mock.patch.object(blocks, "GAP", 0):
            for rows in ([(5, key) for key in range(5000)], [(15, 7)], [(25, 7)], [(35, 9)]):
                batch = pa.RecordBatch.from_pylist([{"ts": ts, "key": key, "n": 1} for ts, key in rows], SCHEMA)
                core.play(log, plan, batch, keeping=Keeping(10))
            start_process()
            changes = OpenStore(files).application("app").task("Kept").changes(10, 30)
            files.fetched.clear()
            assert rows_of(changes.to_arrow(), ["_change_type"]) == [
                (7, 1, "update_preimage"),
                (7, 3, "update_postimage"),
            ]
        oldest, *between = changes.until.state.runs
        assert {*files.fetched} == {run.file.path for run in (oldest, *between)}
        assert between
        assert max(run.last for run in between) < 30 <= core.newest(log).tasks["Kept"].stored.runs[-1].last
        assert files.fetched[oldest.file.path] < oldest.file.length / 5


@pytest.mark.parametrize("name", [*STORES, *GRAPHS])
def test_stores_of_older_versions_are_opened(name: str) -> None:
    files = unpacked(name)
    app = OpenStore(files).application("app")
    for task in app.tasks():
        check_by_keys(app.task(task), app.clocks())


def test_every_task_of_a_graph_is_looked_up_and_has_changes() -> None:
    with small():
        graph = Graph(core.memory(), 2, 20).begin()
        graph.read(60)
        app = OpenStore(graph.files).application("app")
        assert {"PerShop", "Slots", "PerRegion", "Visits", "Visits.rows", "Visits.messages"} == {*app.tasks()}
        for task in (*app.tasks(), graph.visits):
            check_by_keys(app.task(task), app.clocks())


def check_by_keys(task: OpenTask, clocks: Sequence[int]) -> None:
    """Each key is looked up as all keys are read, and the changes lead from one state to the next."""
    known = []
    for clock in clocks:
        try:
            known.append(task.at(clock))
        except InvalidInputError as error:
            if not re.search(r"had no state at|began, or was rebuilt or reset, after", str(error)):
                raise
    for state in known:
        columns = state.state.key_columns
        table = state.to_arrow()
        asked = [tuple(row[name] for name in columns) for row in table.to_pylist()] + [("Nowhere",) * len(columns)] * (
            table.schema.field(0).type == pa.string() and len(columns) == 1
        )
        bare = [key[0] if len(columns) == 1 else key for key in asked]
        for key, value in zip(bare, state.get_many(bare), strict=True):
            rows = table.filter(pa.array([row == key for row in keys_of(table, columns)], pa.bool_()))
            if state.state.layout.kind.window_columns:
                assert [*value.values()] == rows["value"].to_pylist()
            else:
                assert value == (rows["value"][0].as_py() if len(rows) else None)
    for since in known:
        for until in known:
            if since.clock <= until.clock:
                states = [
                    {repr(key): repr(value) for key, value in rows_of(each.to_arrow())} for each in (since, until)
                ]
                for key, value, kind in rows_of(task.changes(since, until).to_arrow(), ["_change_type"]):
                    if kind in ("delete", "update_preimage"):
                        assert states[0].pop(repr(key)) == repr(value)
                    else:
                        states[0][repr(key)] = repr(value)
                assert states[0] == states[1]


def keys_of(table: pa.Table, columns: Sequence[str]) -> list[Any]:
    found = [*zip(*(table[name].to_pylist() for name in columns), strict=True)] if columns else [()] * len(table)
    return [key[0] if len(columns) == 1 else key for key in found]


class TestRequests:
    """How often a far store is asked."""

    def world(self, files: Files) -> None:
        plan = core.plan_of(Kept(), SCHEMA, files=files)
        log = Log(files, "app")
        core.start(log, [plan])
        with mock.patch.object(blocks, "BLOCK", 2000):
            for ts, count in ((5, 20_000), (15, 4000), (25, 800), (35, 100)):
                some = {"ts": [ts] * count, "key": range(count), "n": range(count)}
                core.play(log, plan, pa.RecordBatch.from_pydict(some, SCHEMA), keeping=Keeping(10))

    def test_a_key_costs_two_requests_a_run_and_then_one_or_none(self) -> None:
        files = FarFiles("memory://" + core.new_id())
        self.world(files)
        start_process()
        state = OpenStore(files).application("app").task("Kept").at(30)
        runs = {run.file.path for run in state.state.runs}
        assert len(runs) >= 2
        files.asked.clear()
        assert state.get(77) == 3 * 77
        assert {*files.asked} <= runs
        assert all(files.asked.count(path) <= 2 for path in runs)
        files.asked.clear()
        assert state.get(77) == 3 * 77
        assert files.asked == []
        assert state.get(19_999) == 19_999
        assert all(files.asked.count(path) <= 1 for path in runs)

    def test_many_keys_cost_no_more_requests_than_blocks(self) -> None:
        files = FarFiles("memory://" + core.new_id())
        self.world(files)
        start_process()
        state = OpenStore(files).application("app").task("Kept").at(10)
        files.asked.clear()
        asked = random.Random(1).sample(range(20_000), 1000)
        assert state.get_many(asked) == asked
        assert len(files.asked) <= 3 * len(state.state.runs)

    def test_no_run_is_read_of_whose_hashes_none_is_asked_for(self) -> None:
        files = core.memory()
        world = World(Kept(), files=files)
        for _ in range(3):
            world.play()
        state = world.opened.at()
        read: list[str] = []
        honest = runs_io.read_run_with_sums

        def noted(files: Files, run: Any, *more: Any, **named: Any) -> pa.Table:
            read.append((run.low, run.high))
            return honest(files, run, *more, **named)

        with mock.patch.object(runs_io, "read_run_with_sums", noted):
            state.get(3)
        hash = int(keys.hash_keys([pa.array([3])], 1)[0])
        assert read
        assert all(low <= hash < high for low, high in read)
        assert len(read) < len(state.state.runs)

    @pytest.mark.rows_in_files
    def test_s3_is_asked_for_two_ranges_of_a_run(self, servers: Servers) -> None:
        with needed():
            server = servers["s3"]
        server.make(name := f"bucket-{uuid.uuid4()}")
        self.world(files_of(server, name))
        start_process()
        with Proxy(server.ports) as proxy:
            state = OpenStore(files_of(server, name, proxy.ports)).application("app").task("Kept").at(30)
            proxy.seen.clear()
            assert state.get(77) == 3 * 77
            seen = [asked for asked, _ in proxy.seen]
            assert {asked.method for asked in seen} == {"GET"}
            for run in (run for run in state.state.runs if run.first < state.clock):
                assert 0 < sum(run.file.path in asked.path for asked in seen) <= 2
            proxy.seen.clear()
            assert state.get(77) == 3 * 77
            assert proxy.seen == []


@pytest.mark.parametrize("far", [False, True])
def test_a_damaged_block_is_named_when_a_key_needs_it_and_others_are_answered(far: bool) -> None:
    files = FarFiles("memory://" + core.new_id()) if far else core.memory()
    TestRequests().world(files)
    state = OpenStore(files).application("app").task("Kept").at(10)
    (run,) = state.state.runs[:1]
    data = bytearray(files.read(run.file.path))
    index = blocks._parsed(pa.py_buffer(bytes(data))[-run.file.index :])
    numbers = range(20_000)
    hashes = keys.hash_keys([pa.array(numbers)], 20_000)
    within = (hashes > index.firsts[1]) & (hashes < index.firsts[2])
    hit, other = int(np.flatnonzero(within)[0]), int(np.flatnonzero(hashes > index.firsts[3])[0])
    data[index.bounds[1] + 100] ^= 1
    files.delete(run.file.path)
    files.create(run.file.path, bytes(data))
    start_process()
    assert state.get(other) == other
    for ask in (
        lambda: state.get(hit),
        lambda: state.get_many([other, hit]),
        state.to_arrow,
        lambda: [*state.batches()],
    ):
        assert f"{run.file.path} is damaged" in problem(ask, DamagedError)  # type: ignore[arg-type]
    # Who reads a stream is told by the library that reads it.
    with pytest.raises(pa.ArrowInvalid, match=f"{run.file.path} is damaged"):
        pa.table(state)


def test_no_more_is_opened_at_a_time_than_a_part() -> None:
    files = core.memory()
    TestRequests().world(files)
    state = OpenStore(files).application("app").task("Kept").at()
    rows: list[int] = []
    honest = state_at.opened_below

    def noted(*given: Any) -> Iterator[pa.Table]:
        rows.append(0)
        return honest(*given)

    def read(files: Files, run: Any, **more: Any) -> pa.Table:
        table = runs_io.read_run(files, run, **more)
        rows[-1] += len(table)
        return table

    with (
        mock.patch.object(opened, "PART", 1000),
        mock.patch.object(state_at, "opened_below", noted),
        mock.patch.object(runs_io, "read_run_with_sums", read),
    ):
        assert sum(batch.num_rows for batch in state.batches()) == 20_000
    assert len(rows) > 15
    assert max(rows) < 2000


class Composite(PersistentTask):
    value = "n"

    def __init__(self, *names: str, monoid: Any = None) -> None:
        self.key, self.monoid, self.name = names, monoid or Sum(), "Composite"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False, None]),
    "int": (pa.int32(), [1, -5, None]),
    "float": (pa.float64(), [0.5, math.inf, None]),
    "text": (pa.string(), ["", "Ålesund", None]),
    "bytes": (pa.binary(), [b"", b"\x00\xff", None]),
    "date": (pa.date32(), [date(2026, 1, 1), date(1969, 1, 1), None]),
    "time": (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, tzinfo=timezone.utc), None]),
    "naive": (pa.timestamp("us"), [datetime(2026, 1, 1, 5), None]),
    "decimal": (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-3"), None]),
}


def state_of(*names: str, monoid: Any = None) -> OpenState:
    """The state of a task with these key columns, in which every combination of their values has a number of its own."""
    combined: list[dict[str, Any]] = [{}]
    for name in names:
        combined = [{**row, name: value} for row in combined for value in VALUES[name][1]]
    schema = pa.schema([("ts", pa.int64()), *((name, VALUES[name][0]) for name in names), ("n", pa.int64())])
    rows = [{**row, "ts": 1, "n": number} for number, row in enumerate(combined)]
    task = Composite(*names, monoid=monoid)
    plan = core.plan_of(task, schema)
    log = Log(plan.files, "app")
    core.start(log, [plan])
    core.play(log, plan, pa.RecordBatch.from_pylist(rows, schema))
    core.play(log, plan, pa.RecordBatch.from_pylist([{**rows[0], "ts": 99}], schema))
    return OpenStore(plan.files).application("app").task(task).at()


class TestKeys:
    @pytest.mark.parametrize("name", VALUES)
    def test_a_key_of_each_type_is_found_as_the_state_shows_it(self, name: str) -> None:
        state = state_of(name)
        shown = state.to_arrow().to_pylist()
        assert len(shown) == len(VALUES[name][1])
        for row in shown:
            assert state.get(row[name]) == state.get({name: row[name]}) == row["value"]

    def test_keys_of_several_columns_are_tuples_or_mappings(self) -> None:
        state = state_of("text", "int")
        wanted = {(row["text"], row["int"]): row["value"] for row in state.to_arrow().to_pylist()}
        assert state.get_many(wanted) == [*wanted.values()]
        assert state.get({"int": 1, "text": ""}) == wanted["", 1]
        assert state.get(("", 7)) is None
        assert state.get_many([]) == []
        assert state.get_many([("", 1)] * 3) == [wanted["", 1]] * 3

    def test_a_task_without_key_columns_has_one_value(self) -> None:
        state = state_of()
        assert state.get() == state.get(()) == state.get({}) == 0
        assert state.get_many([(), ()]) == [0, 0]

    def test_zeros_and_nans_are_one_key_each(self) -> None:
        schema = pa.schema([("ts", pa.int64()), ("float", pa.float32()), ("n", pa.int64())])
        plan = core.plan_of(Composite("float"), schema)
        log = Log(plan.files, "app")
        core.start(log, [plan])
        rows = [{"ts": ts, "float": value, "n": 1} for ts, value in ((1, -0.0), (2, math.nan), (3, 0.0), (99, 1.0))]
        core.play(log, plan, pa.RecordBatch.from_pylist(rows, schema))
        state = OpenStore(plan.files).application("app").task("Composite").at()
        assert state.get_many([0.0, -0.0, 0, math.nan, np.float64("nan"), 1.0]) == [2, 2, 2, 1, 1, None]

    @pytest.mark.parametrize(
        ("names", "key"),
        [
            (["int"], "1"),
            (["int"], 1.5),
            (["int"], 2**70),
            (["int"], (1,)),
            (["text"], b""),
            (["text"], 1),
            (["bytes"], ""),
            (["date"], datetime(2026, 1, 1, 5)),
            (["time"], datetime(2026, 1, 1)),
            (["naive"], datetime(2026, 1, 1, tzinfo=timezone.utc)),
            (["decimal"], Decimal("1.505")),
            (["text", "int"], "a"),
            (["text", "int"], ("a",)),
            (["text", "int"], ["a", 1]),
            (["text", "int"], {"text": "a"}),
            (["text"], {"word": "a"}),
            ([], "a"),
        ],
        ids=repr,
    )
    def test_a_key_of_other_types_or_columns_is_refused(self, names: Sequence[str], key: Any) -> None:
        told = problem(lambda: state_of(*names).get(key))
        assert told.startswith("key of task=Composite: ")
        assert all(name in told for name in names)


class TestValues:
    def test_presented_values_are_what_outputs_show(self) -> None:
        world = World(Kept(monoid=Average(pa.int64())))
        world.play()
        world.play()
        app = OpenStore(world.files).application("app")
        raw, shown = app.task("Kept").at(), app.task("Kept", presented=True).at()
        assert shown.schema.field("value").type == pa.float64()
        for row in raw.to_arrow().to_pylist():
            assert raw.get(row["key"]) == row["value"]
            assert shown.get(row["key"]) == pytest.approx(row["value"]["sum"] / row["value"]["n"])

    def test_what_presents_them_may_fail(self) -> None:
        wrong = Aggregator(abs, Sum(), lambda total: 1 // 0, pa.int64())
        world = World(Kept(monoid=wrong))
        world.play()
        world.play()
        state = OpenStore(world.files).application("app").task(world.task, presented=True).at()
        for ask in (state.to_arrow, lambda: state.get(world.sent[0][0]), lambda: [*state.batches()]):
            assert "what presents its values raised ZeroDivisionError" in problem(ask, TaskFailedError)  # type: ignore[arg-type]

    def test_ordered_values_are_in_the_order_of_messages(self) -> None:
        with small(colliding=True):
            world = World(Listed())
            for _ in range(6):
                world.play()
            for clock in OpenStore(world.files).application("app").clocks():
                wanted: dict[int, list[int]] = {}
                for key, ts, n in sorted(world.sent, key=lambda message: message[1]):
                    if ts < clock:
                        wanted.setdefault(key, []).append(n)
                check_state(world.opened.at(clock), wanted, [*range(KEYS), ABSENT])


class Listed(PersistentTask):
    key = "key"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(List(pa.int64()))

    def process_message(self, state: Any, message: Any) -> None:
        state.update(message.timestamp, [message["n"]])


SALES = [
    ("12:30", "Bergen", "tea", 100),
    ("13:10", "Oslo", "tea", 400),
    ("13:40", "Oslo", "tea", 500),
    ("14:10", "Oslo", "coffee", 1350),
    ("14:35", "Oslo", "coffee", 1),
]


class Totals(PersistentTask):
    key = ("shop", "item")

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Struct(sales=Count(), cents=Sum()))

    def process_message(self, state: Any, message: Any) -> None:
        state.update(message.timestamp, {"sales": 1, "cents": message["cents"]})


class Hourly(PersistentTask):
    key, value = "shop", "cents"

    def persistent_state(self) -> WindowState[Any]:
        return WindowState(Sum(), TumblingWindow("1 hour"))


def write_shop(folder: Path) -> None:
    """Write the store of docs/open-state.md, with clocks at 13:00, 14:00 and 14:30."""
    schema = pa.schema(
        [("ts", pa.timestamp("us", "UTC")), ("shop", pa.string()), ("item", pa.string()), ("cents", pa.int64())]
    )
    files, minutes = open_files(folder), 60_000_000
    plans = [
        replace(
            core.plan_of(task, schema, files=files, settings=Settings(30 * minutes, ahead=2**62)), application="shop"
        )
        for task in (Totals(), Hourly())
    ]
    flow, log = FlowPlan(tuple(plans)), Log(files, "shop")
    core.start(log, [flow])
    for some in (SALES[:1], SALES[1:2], SALES[2:4], SALES[4:]):
        rows = [
            {"ts": datetime.fromisoformat(f"2026-11-20T{time}+00:00"), "shop": shop, "item": item, "cents": cents}
            for time, shop, item, cents in some
        ]
        core.play(log, flow, pa.RecordBatch.from_pylist(rows, schema))


def test_the_code_of_the_page_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shop(tmp_path / "apps")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert page_code.run(page_code.text_of("docs/open-state.md"), names) > 10
    assert {(key, kind) for key, _, kind in rows_of(names["changes"].to_arrow(), ["_change_type"])} == {
        (("Oslo", "tea"), "insert"),
        (("Oslo", "coffee"), "insert"),
    }


class TestRecipes:
    def test_duckdb_reads_a_state_and_changes_as_tables(self) -> None:
        totals = open_store(STORE).application("app").task("Totals")
        state, changes = totals.at(200), totals.changes(160, 200)
        (found,) = duckdb.sql("SELECT sum(value.total) FROM state WHERE shop = 'Bergen'").fetchall()
        wanted = [row["value"]["total"] for row in state.to_arrow().to_pylist() if row["shop"] == "Bergen"]
        assert found == (sum(wanted),)
        counted = duckdb.sql("SELECT _change_type, count(*) FROM changes GROUP BY ALL").fetchall()
        assert sum(count for _, count in counted) == changes.to_arrow().num_rows > 0

    def test_polars_reads_a_state_and_changes(self) -> None:
        totals = open_store(STORE).application("app").task("Totals")
        frame = pl.DataFrame(totals.at(200))
        assert sorted(map(repr, frame.to_dicts())) == sorted(map(repr, totals.at(200).to_arrow().to_pylist()))
        changes = pl.DataFrame(totals.changes(160, 200))
        assert {*changes["_change_type"]} <= {*net_changes.CHANGE_TYPES}

    def test_pandas_reads_a_state(self) -> None:
        state = open_store(STORE).application("app").task("Notes").at()
        frame = state.to_pandas()
        assert isinstance(frame, pd.DataFrame)
        assert [*frame.columns] == state.schema.names
        assert len(frame) == state.to_arrow().num_rows

    def test_windows_have_times_in_tables_and_microseconds_in_look_ups(self) -> None:
        world = World(Kept(KINDS["tumbling"]))
        for _ in range(4):
            world.play()
        state = world.opened.at(30)
        row = state.to_arrow().to_pylist()[0]
        key = (core.micros(row["window_start"]), core.micros(row["window_end"]))
        assert state.get(row["key"])[key] == row["value"]


class TestNames:
    def test_what_is_not_there_is_refused_with_a_sentence(self) -> None:
        store = open_store(STORE)
        assert "there is no application nobody" in problem(store.application("nobody").tasks)
        assert "there is no application nobody" in problem(store.application("nobody").clocks)
        assert "there is no application nobody" in problem(store.application("nobody").task("Totals").at)
        app = store.application("app")
        assert "has no task Nothing; it has Notes, Totals" in problem(app.task("Nothing").at)
        assert "is not retained; read clock=" in problem(lambda: app.task("Totals").at(170))
        assert "is not a task" in problem(lambda: app.task(7))  # type: ignore[arg-type]
        assert "is not a time" in problem(lambda: app.task("Totals").at("noon"))

    def test_an_open_state_is_what_read_state_reads(self) -> None:
        app = open_store(STORE).application("app")
        for task in app.tasks():
            for clock in app.clocks():
                assert app.task(task).at(clock).to_arrow().equals(read_state(STORE, "app", task, clock))
        assert app.task("Totals").at("1970-01-01T00:00:00.000160Z").clock == 160
        assert app.task("Totals").at().clock == 220

    def test_values_of_outputs_are_no_part_of_a_state(self) -> None:
        """`Since` is the outputs' question, and the state is another."""
        world = World(Kept())
        world.play()
        world.play()
        found = world.opened.at().state
        assert found.since is None
        assert Since() != found.since


def test_a_state_and_changes_show_whose_they_are_and_of_when() -> None:
    totals = open_store(STORE).application("app").task("Totals")
    first, last = (f"1970-01-01T00:00:00.000{clock}Z ({clock})" for clock in (160, 220))
    state, changes = totals.at(160), totals.changes(160)
    assert repr(state) == f"OpenState(application=app, task=Totals, clock={first}, timeline=0)"
    assert repr(changes) == f"OpenChanges(application=app, task=Totals, since={first}, until={last}, timeline=0)"
    for shown, title in ((state, "State"), (changes, "Changes")):
        told = shown._repr_html_()
        assert f"<strong>{title}</strong>" in told
        assert all(text in told for text in ("Totals", first))


def test_changes_since_nothing_are_refused() -> None:
    totals = open_store(STORE).application("app").task("Totals")
    told = problem(lambda: totals.changes(None))  # type: ignore[arg-type]
    assert told == "since=None is not a clock; give one, or read at(), where every key is new."
