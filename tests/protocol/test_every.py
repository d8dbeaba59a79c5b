"""Tasks that are fed the changes between fixed times: what they are fed is a function of the messages alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import monoids
from persistent_state import NonWindowState, PersistentTask, SessionWindow, SlidingWindow, TumblingWindow, WindowState
from persistent_state.batch.packets import Step
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.edges import base
from persistent_state.edges.changes import Changes
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.protocol import graph
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.state import KeptState
from tests import core
from tests.local_application import LocalApplication
from tests.soak import soak_or

EVENTS = pa.schema([("ts", pa.int64()), ("shop", pa.int64()), ("amount", pa.int64())])
KEEPING = Keeping(2, 0)
LIFE = 25
Row = tuple[int, int, int]
"""Time, shop, amount."""


class Amounts(PersistentTask):
    """A sum by shop, in a state that is given."""

    key, value, name = "shop", "amount", "Amounts"

    def __init__(self, state: KeptState[Any]) -> None:
        self.state = state

    def persistent_state(self) -> KeptState[Any]:
        return self.state


class History(PersistentTask):
    """All that a shop was fed, in order."""

    key = "shop"

    def __init__(self, name: str) -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.List(pa.string()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([[told(row)] for row in batch.to_pylist()], pa.list_(pa.string()))


class Total(PersistentTask):
    """The sum over all shops of what they have now."""

    value = "value"

    def __init__(self, name: str = "Total") -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


def told(row: dict[str, Any]) -> str:
    before, after = (row[side] and row[side]["value"] for side in ("before", "after"))
    window = [core.micros(row[edge]) for edge in ("window_start", "window_end") if edge in row]
    return f"{core.micros(row['timestamp'])} {window} {before} -> {after}"


STATES: dict[str, KeptState[Any]] = {
    "for ever": NonWindowState(monoids.Sum()),
    "to live": NonWindowState(monoids.Sum(), ttl=core.us(LIFE)),
    "tumbling": WindowState(monoids.Sum(), TumblingWindow(core.us(30))),
    "sliding": WindowState(monoids.Sum(), SlidingWindow(core.us(30), core.us(15))),
    "sessions": WindowState(monoids.Sum(), SessionWindow(core.us(LIFE))),
}


def at_clock(kind: str, rows: Sequence[Row], clock: int) -> dict[tuple[Any, ...], int]:
    """What a task of this state shows at a clock, by shop and window."""
    found: dict[tuple[Any, ...], int] = defaultdict(int)
    sessions: dict[int, list[list[int]]] = {}
    # A key is there as long as its newest message is no older than it may live.
    gap = LIFE + (kind == "to live")
    for time, shop, amount in sorted(row for row in rows if row[0] < clock):
        if kind == "for ever":
            found[shop,] += amount
        elif kind in ("tumbling", "sliding"):
            slide = 30 if kind == "tumbling" else 15
            for start in range(time // slide * slide - 30 + slide, time + 1, slide):
                if start <= time < start + 30 and start + 30 > clock:
                    found[shop, start, start + 30] += amount
        else:
            some = sessions.setdefault(shop, [])
            if not some or time >= some[-1][1] + gap:
                some.append([time, time, 0])
            some[-1][1], some[-1][2] = time, some[-1][2] + amount
    for shop, some in sessions.items():
        first, last, amount = some[-1]
        if last + gap > clock:
            found[(shop,) if kind == "to live" else (shop, first, last + gap)] = amount
    return dict(found)


def fed(kind: str, rows: Sequence[Row], every: int, begun: int, clock: int) -> dict[int, list[str]]:
    """What each shop is fed from when the task began up to a clock."""
    lists: dict[int, list[str]] = defaultdict(list)
    before: dict[Any, int] = {}
    first = [] if begun == BEGINNING else [begun]
    low = min([time for time, *_ in rows], default=0) if begun == BEGINNING else begun
    for now in [*first, *range((low // every + 1) * every, clock + 1, every)]:
        after = at_clock(kind, rows, now)
        for key in sorted({*before, *after}):
            if before.get(key) != after.get(key):
                lists[key[0]].append(f"{now - 1} {[*key[1:]]} {before.get(key)} -> {after.get(key)}")
        before = after
    return dict(lists)


class World(LocalApplication):
    """A task of a state, and tasks that are fed its changes."""

    def __init__(self, kind: str, everys: Sequence[int], interval: int, apart: int, shards: int) -> None:
        self.of, self.shards = Settings(interval, ahead=2**62, every=apart), shards
        upstream = core.plan_of(Amounts(STATES[kind]), EVENTS, settings=self.of, shards=shards)
        super().__init__({"Amounts": upstream}, keeping=KEEPING)
        for every in everys:
            for task in (History(f"History{every}"), Total()):
                plan = self._derived(task, Changes("Amounts", every=core.us(every)))
                self.plans.setdefault(plan.name, plan)

    def _derived(self, task: PersistentTask, source: Changes) -> Plan:
        schema = source.schema(self.plans[source.task], task)
        plan = core.plan_of(
            task,
            schema,
            files=self.files,
            timestamp=TIMESTAMP,
            settings=self.of,
            shards=self.shards,
        )
        plan = core.changed(plan, edge=source, feeders={"": self.plans[source.task]})
        base.check(plan)
        core.check(plan)
        return plan

    def read(self, rows: Sequence[Row] = ()) -> None:
        self.play("Amounts", rows)


rows = st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(-5, 5))
acts = st.one_of(st.lists(rows, min_size=1, max_size=6), st.just("steps"), st.just("start"))


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.soak
@settings(max_examples=soak_or(ci=15, soak=40), deadline=None)
@given(st.lists(acts, max_size=14), st.sampled_from([[20], [40], [20, 30]]), st.integers(1, 2))
def test_what_a_task_is_fed_is_a_function_of_the_messages(
    kind: str, history: list[Any], everys: list[int], shards: int
) -> None:
    world = World(kind, everys, {20: 20, 40: 40, 50: 60}[sum(everys)], {20: 20, 40: 40, 50: 10}[sum(everys)], shards)
    world.start()
    now, sent = 0, list[Row]()
    for act in history:
        if act == "steps":
            world.steps()
        elif act == "start":
            world.start()
            # What is above the global clock is delivered again.
            world.read()
        else:
            some = []
            for ahead, shop, amount in act:
                now += ahead * 2
                some.append((now, shop, amount))
            sent += some
            world.read(some)
    world.drain()
    clock = world.newest.clock
    if clock == BEGINNING:
        return
    for every in everys:
        found = {shop: history for (shop,), history in world.state(f"History{every}").items()}
        assert found == fed(kind, sent, every, BEGINNING, clock)
    total = sum(at_clock(kind, sent, clock).values())
    assert world.state("Total").get((), 0) == total


def test_tasks_that_are_fed_together_are_fed_as_often_as_one_of_them_must_be() -> None:
    world = World("for ever", [], interval=40, apart=20, shards=1)
    source = Changes("Amounts")
    first, second = (world._derived(Total(name), source) for name in ("First", "Second"))
    # Only the second feeds a task that is fed what changes every so often.
    flow = FlowPlan((core.changed(first, settings=replace(world.of, every=None)), second))
    world.start("Amounts", flow)
    world.read([(5, 0, 1), (25, 0, 1), (100, 0, 1)])
    (step,) = graph.due(world.newest)
    assert [span.every for _, span in graph.spans(world.newest, flow, step)] == [20]


def test_a_step_in_which_nothing_came_and_no_window_ended_reads_nothing() -> None:
    world = World("tumbling", [10], interval=10, apart=10, shards=1)
    world.start()
    flow, read = FlowPlan((world.plans["History10"],)), list[int]()
    # Each is a run of its own.
    for time in (5, 34, 78):
        world.read([(time, 0, 1)])
    entry, since = world.newest, 0
    for clock in range(10, 80, 10):
        read += [clock] if graph.spans(entry, flow, Step("History10", since, clock)) else []
        since = clock
    # Something came below 10 and 40, and windows of 30 ended at 30 and 60.
    assert read == [10, 30, 40, 60]


def test_a_task_on_pairs_is_not_begun_anew_unasked() -> None:
    world = World("for ever", [20], interval=20, apart=20, shards=1)
    world.start()
    world.read([(5, 0, 1), (25, 0, 1), (70, 0, 1)])
    world.steps()
    history = world.state("History20")
    way = r"starts over.* Name it in reset=\[\"History20\"\] .* begins with a row for each key of Amounts\."
    with pytest.raises(InvalidInputError, match=f"task=History20 can't go on, as task=Amounts, which feeds it, {way}"):
        world.start(reset=["Amounts"])
    world.start()
    assert world.state("History20") == history
    # The total is the state of what feeds it.
    world.start(reset=["Amounts", "History20"])
    world.steps()
    assert world.state("History20") == world.state("Total") == {}


def test_a_step_after_all_sessions_have_ended_reads_nothing() -> None:
    world = World("sessions", [10], interval=10, apart=10, shards=1)
    world.start()
    flow, read = FlowPlan((world.plans["History10"],)), list[int]()
    for time in (5, 45, 95):
        world.read([(time, 0, 1)])
    entry, since = world.newest, 0
    for clock in range(10, 100, 10):
        read += [clock] if graph.spans(entry, flow, Step("History10", since, clock)) else []
        since = clock
    # Sessions end at 30 and 70. By a run, a message at 0 to 9 could end one at 34, so the step after these reads, too.
    assert read == [10, 30, 40, 50, 70, 80]


def test_a_task_on_pairs_that_left_before_its_first_step_has_missed_what_changed_since() -> None:
    world = World("for ever", [20], interval=20, apart=20, shards=1)
    world.start()
    world.start("Amounts")
    world.read([(5, 0, 1), (25, 0, 1), (70, 0, 1)])
    assert world.newest.clock == 60
    with pytest.raises(InvalidInputError) as raised:
        world.start()
    assert str(raised.value) == (
        "task=History20 left at clock=none yet, and what changed from one time to the next since then is not told apart any "
        'more. Name it in reset=["History20"] of run or start, and it loses what it has and begins with a row for each key of '
        "Amounts."
    )
