"""Tasks that feed tasks: at every clock at which both can be read, the one is made of the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import monoids
from persistent_state import (
    Application,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    TumblingWindow,
    WindowState,
)
from persistent_state.batch.plan import FlowPlan
from persistent_state.edges.base import Edge
from persistent_state.edges.changes import Changes
from persistent_state.edges.closed_windows import ClosedWindows
from persistent_state.errors import DisagreementError, InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials.since import Since
from persistent_state.protocol import graph
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.entry import Entry
from persistent_state.store.late_rows import UNFIT
from persistent_state.store.state_at import seen_below
from tests import core
from tests.local_application import LocalApplication, Rows, compiled
from tests.soak import soak_or

EVENTS = pa.schema([("ts", pa.int64()), ("shop", pa.int64()), ("amount", pa.int64())])
KEEPING = Keeping(3, 0)


class PerShop(PersistentTask):
    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Struct(revenue=monoids.Sum(), region=monoids.Max()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        rows = zip(batch["shop"].to_pylist(), batch["ts"].to_pylist(), strict=True)
        region = pa.array([(shop + ts // 40) % 3 for shop, ts in rows])
        return pa.StructArray.from_arrays([batch["amount"], region], names=["revenue", "region"])


class PerRegion(PersistentTask):
    """The revenue of the shops that are in a region now."""

    key = "region"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Struct(total=monoids.Sum(), shops=monoids.Count()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([batch["revenue"], pa.array([1] * len(batch))], names=["total", "shops"])


class PerTotal(PersistentTask):
    """How many regions have the same revenue."""

    key = "total"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Count())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([1] * len(batch))


class Amounts(PersistentTask):
    key, value = "shop", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


class PerSlot(PersistentTask):
    """The amounts of a shop in each slot of 30 microseconds."""

    key, value = "shop", "amount"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(monoids.Sum(), TumblingWindow(core.us(30)))


class Slots(PersistentTask):
    """The greatest amount of a slot, and how many slots had amounts."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Struct(most=monoids.Max(), slots=monoids.Count()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([batch["value"], pa.array([1] * len(batch))], names=["most", "slots"])


class Graph(LocalApplication):
    """Two sources, a task of each, and tasks that these feed."""

    def __init__(self, *more: tuple[PersistentTask, Edge], shards: int = 2) -> None:
        app = Application("app", "memory://graph", checkpoint_interval=core.us(10), max_ahead="100000 days")
        for task in (PerShop(), Amounts(), PerSlot()):
            app.add(task, Rows(EVENTS, ""))
        app.add(PerRegion(), Changes("PerShop")).add(PerTotal(), Changes("PerRegion"))
        app.add(Slots(), ClosedWindows("PerSlot"))
        for derived, source in more:
            app.add(derived, source)
        super().__init__(*compiled(app, core.memory(), shards), KEEPING)
        # An output that is given nothing: windows that have closed stay, so that a test can look at all of them.
        self.plans["PerSlot"] = replace(self.plans["PerSlot"], outputs=("none",))
        self.wanted = [*self.plans]

    def start(self, *wanted: Any, reset: Collection[str] = (), rebuild: Collection[str] = ()) -> Entry:
        """Start these tasks, or the `wanted` ones. Those of these that were left behind are refused, and rebuilt then."""
        if wanted:
            return super().start(*wanted, reset=reset, rebuild=rebuild)
        left = self.left_behind()
        if left - {*reset}:
            with pytest.raises(InvalidInputError, match=f"task=({'|'.join(left)}) left at clock="):
                super().start(*self.wanted, reset=reset)
        return super().start(*self.wanted, reset={*reset, *left})

    def left_behind(self) -> set[str]:
        """The tasks that are wanted and were away while the last clock passed at which they could go on."""
        newest, found = self.log.newest(), set[str]()
        for name in self.wanted if newest else ():
            assert newest is not None
            if name not in newest.tasks or newest.tasks[name].active:
                continue
            own, oldest = newest.flow_of(name).progress.clock, min(newest.retained, default=BEGINNING)
            # Closed windows may be gone. What is made of state and has not begun is made of it as it is then.
            if own < oldest and (name == "Slots" or own > BEGINNING):
                found.add(name)
        return found

    def check(self) -> None:
        """At every clock at which a derived task is, it is made of the state of what feeds it."""
        entry = self.newest
        clocks = {cut for task in entry.tasks.values() for cut in task.stored.cuts} | {*entry.retained}
        for clock in clocks - {BEGINNING}:
            for name, made in (
                ("PerRegion", per_region),
                ("PerTotal", per_total),
                ("Slots", partial(self.slots, clock)),
            ):
                known = entry.tasks.get(name)
                assert known is None or not entry.late_counts_of(name)
                if known is None or not known.active or clock < known.born or not entry.is_at(name, clock):
                    continue
                upstream = self.plans[name].upstream[""].task
                assert entry.is_at(upstream, clock) or clock in entry.retained, (name, clock)
                expected = made(without_zeros(self.state(upstream, clock)))
                assert without_zeros(self.state(name, clock)) == expected, (name, clock)
        # The global clock is one cut: each task that has come there can be read there.
        there = [name for name, task in entry.tasks.items() if task.active and task.born <= entry.clock]
        for name in there if entry.clock > BEGINNING else ():
            assert entry.flow_of(name).visited < entry.clock or entry.is_at(name, entry.clock), name

    def slots(self, clock: int, _: object) -> dict[Any, Any]:
        """What the slots that have closed since the task began come to."""
        entry, plan = self.newest, self.plans["PerSlot"]
        begun = entry.tasks["Slots"].born
        closed = seen_below(plan.files, entry.tasks["PerSlot"].stored.runs, plan.layout, clock, Since(begun))
        found: dict[Any, Any] = {}
        for shop, amount in zip(closed["key0"].to_pylist(), closed["value"].to_pylist(), strict=True):
            known = found.setdefault((shop,), {"most": amount, "slots": 0})
            found[shop,] = {"most": max(known["most"], amount), "slots": known["slots"] + 1}
        return found


def per_region(shops: dict[Any, Any]) -> dict[Any, Any]:
    totals: dict[Any, Any] = {}
    for shop in shops.values():
        total = totals.setdefault((shop["region"],), {"total": 0, "shops": 0})
        total["total"] += shop["revenue"]
        total["shops"] += 1
    return totals


def per_total(regions: dict[Any, Any]) -> dict[Any, Any]:
    return dict(Counter((region["total"],) for region in regions.values()))


def without_zeros(state: dict[Any, Any]) -> dict[Any, Any]:
    """What a key that nothing is left of has is the zero."""
    return {key: value for key, value in state.items() if value not in (0, {"total": 0, "shops": 0})}


def test_a_derived_task_is_at_the_global_clock_made_of_the_task_that_feeds_it() -> None:
    graph = Graph()
    graph.start()
    graph.play("PerShop", [(5, 1, 10), (12, 2, 20), (45, 1, 1)])
    graph.play("Amounts", [(5, 1, 10), (60, 2, 20)])
    graph.play("PerSlot", [(5, 1, 10), (60, 2, 20)])
    assert graph.newest.clock == BEGINNING
    assert graph.newest.next == 40
    graph.steps()
    assert graph.newest.clock == 40
    assert without_zeros(graph.state("PerRegion", 40)) == per_region(graph.state("PerShop", 40)) != {}


def test_a_task_that_was_away_visits_each_clock_at_which_it_can_be_read() -> None:
    world = Graph()
    world.wanted = ["PerShop", "PerRegion"]
    world.start()
    world.play("PerShop", [(12, 2, 20)])
    world.steps()
    world.wanted = ["PerShop"]
    world.start()
    for time in (25, 35):
        world.play("PerShop", [(time, 1, 1)])
    world.wanted = ["PerShop", "PerRegion"]
    world.start()
    assert world.newest.retained == (10, 20, 30)
    world.play("PerShop", [(36, 1, 1)])
    for clock in (20, 30):
        world.turn(graph.due(world.newest)[0].flow)
        assert world.newest.flow_of("PerRegion").progress.clock == clock
        assert without_zeros(world.state("PerRegion", clock)) == per_region(world.state("PerShop", clock))


def test_a_task_that_windows_were_to_feed_is_refused_when_they_have_closed() -> None:
    world = Graph()
    world.wanted = ["PerSlot", "Slots"]
    world.start()
    world.wanted = ["PerSlot"]
    world.start()
    world.play("PerSlot", [(5, 1, 10), (95, 1, 10)])
    world.wanted = ["PerSlot", "Slots"]
    plans = [world.plans[name] for name in world.wanted]
    with pytest.raises(InvalidInputError, match="task=Slots left at clock="):
        world.start(*plans)
    world.start(*plans, reset=["Slots"])
    assert world.newest.flow_of("Slots").progress.clock == world.newest.clock == 90


def test_a_step_in_which_no_window_closes_reads_nothing() -> None:
    world = Graph()
    world.wanted = ["PerSlot", "Slots"]
    world.start()
    flow, read = FlowPlan((world.plans["Slots"],)), dict[int, list[range]]()
    for time in range(5, 125, 10):
        world.play("PerSlot", [(time, shop, 1) for shop in range(8)])
        for step in graph.due(world.newest):
            spans = graph.spans(world.newest, flow, step)
            runs = [run for _, span in spans for run in span.closed_runs(world.plans["PerSlot"])]
            read[step.clock] = [range(run.first // 30, run.last // 30 + 1) for run in runs]
            world.turn(step.flow)
    # Windows of 30 close at these clocks, and only runs with rows of theirs are read.
    assert [clock for clock, runs in read.items() if runs] == [30, 60, 90]
    assert all(clock // 30 - 1 in slots for clock, runs in read.items() for slots in runs)
    assert world.state("Slots", 90) == {(shop,): {"most": 3, "slots": 3} for shop in range(8)}


def test_a_key_of_which_nothing_is_left_feeds_nobody() -> None:
    world = Graph()
    world.wanted = ["PerShop", "PerRegion", "PerTotal"]
    world.start()
    for time in (5, 15, 55, 65):
        # The region of a shop changes with the time.
        world.play("PerShop", [(time, 1, 0)])
        world.steps()
    assert len(world.state("PerRegion", world.newest.clock)) == 2
    assert world.state("PerTotal", world.newest.clock) == {(0,): 1}


class Other(PerRegion):
    """The same by another code."""

    name, version = "PerRegion", 2

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([pa.array([0] * len(batch)), batch["revenue"]], names=["total", "shops"])


def test_a_task_of_another_version_is_built_again_from_the_state_of_what_feeds_it() -> None:
    world = Graph()
    world.wanted = ["PerShop", "PerRegion"]
    world.start()
    world.play("PerShop", [(12, 2, 20), (25, 1, 7)])
    world.steps()
    assert world.newest.clock == 20
    plans = [world.plans["PerShop"], core.changed(world.plans["PerRegion"], task=Other())]
    # The other code makes something else of the shops.
    world.check = lambda: None  # type: ignore[method-assign]
    world.start(*plans)
    (step,) = graph.due(world.newest)
    assert (step.since, step.clock) == (BEGINNING, 20)
    world.turn(step.flow)
    # Of all that the shop has.
    assert world.state("PerRegion", 20) == {(2,): {"total": 0, "shops": 20}}
    # The same version goes on.
    world.start(*plans)
    assert graph.due(world.newest) == []


class OtherSlots(Slots):
    """The same as a newer version."""

    name, version = "Slots", 2


def with_slots() -> Graph:
    """A graph in which windows have closed that a task was given."""
    world = Graph()
    world.wanted = ["PerSlot", "Slots"]
    world.start()
    world.play("PerSlot", [(5, 1, 10), (35, 1, 2), (75, 1, 1)])
    world.steps()
    assert world.state("Slots", 70) == {(1,): {"most": 10, "slots": 2}}
    return world


def test_a_task_that_has_taken_windows_is_not_begun_anew_unasked() -> None:
    world = with_slots()
    plans, number = [world.plans["PerSlot"], world.plans["Slots"]], world.newest.number
    other = [plans[0], core.changed(plans[1], task=OtherSlots())]
    way = (
        "and what it has taken can't be given to it again. Name it in "
        'reset=["Slots"] of run or start, and it loses what it has and begins with the windows of PerSlot that close after '
        "clock=1970-01-01T00:00:00.000070Z (70)."
    )
    with pytest.raises(InvalidInputError) as raised:
        world.start(*other)
    assert str(raised.value) == f"task=Slots can't go on, as the store was written with another version, {way}"
    for words in ({"reset": ["PerSlot"]}, {"rebuild": ["PerSlot"]}):
        # A word for the task that feeds it is none for it.
        with pytest.raises(InvalidInputError) as raised:
            world.start(replace(plans[0], outputs=("new",)), plans[1], **words)
        assert str(raised.value) == f"task=Slots can't go on, as task=PerSlot, which feeds it, starts over, {way}"
    assert world.newest.number == number
    world.start(*plans)
    assert world.state("Slots", 70) == {(1,): {"most": 10, "slots": 2}}
    world.start(*other, reset=["Slots"])
    assert world.newest.flow_of("Slots").progress.clock == 70
    assert world.state("Slots", 70) == {}


def test_a_task_that_has_taken_windows_does_not_go_on_with_those_of_another_life() -> None:
    world = with_slots()
    plans = [world.plans["PerSlot"], world.plans["Slots"]]
    world.start(plans[0], reset=["PerSlot"])
    with pytest.raises(
        InvalidInputError, match="task=Slots can't go on, as a task that feeds it has started over without"
    ):
        world.start(*plans)
    world.start(*plans, rebuild=["Slots"])


def test_a_task_that_has_taken_nothing_that_stays_begins_anew_unasked() -> None:
    world = Graph()
    world.wanted = ["PerSlot", "Slots"]
    world.start()
    plans = [world.plans["PerSlot"], world.plans["Slots"]]
    world.start(plans[0], core.changed(plans[1], task=OtherSlots()))
    world.start(*plans, reset=["PerSlot"])
    world.play("PerSlot", [(5, 1, 10), (35, 1, 2), (75, 1, 1)])
    world.steps()
    assert world.state("Slots", 70) == {(1,): {"most": 10, "slots": 2}}


def test_what_a_task_feeds_begins_anew_with_it() -> None:
    world = Graph()
    world.wanted = ["PerShop", "PerRegion", "PerTotal"]
    world.start()
    world.play("PerShop", [(12, 2, 20), (25, 1, 7)])
    world.steps()
    assert world.state("PerTotal", 20) == {(20,): 1}
    world.start(reset=["PerShop"])
    assert [step.clock for step in graph.due(world.newest)] == [20]
    world.steps()
    assert world.state("PerRegion", 20) == world.state("PerTotal", 20) == {}


def test_a_step_is_committed_although_others_are_while_it_is_under_way() -> None:
    world = Graph()
    world.start()
    for task in ("PerShop", "Amounts", "PerSlot"):
        world.play(task, [(5, 1, 10), (12, 2, 20), (45, 1, 1)])
    under_way = {step.flow: core.answers_of_step(world.log, world.plans, step) for step in graph.due(world.newest)}
    assert {*under_way} == {"PerRegion", "Slots"}
    world.play("PerShop", [(50, 1, 10), (75, 3, 2)])
    core.commit(world.log, world.plans["Slots"], under_way["Slots"], keeping=KEEPING)
    world.play("Amounts", [(80, 2, 20)])
    world.play("PerSlot", [(80, 2, 20)])
    core.commit(world.log, world.plans["PerRegion"], under_way["PerRegion"], keeping=KEEPING)
    with pytest.raises(DisagreementError):
        core.commit(world.log, world.plans["PerRegion"], under_way["PerRegion"], keeping=KEEPING)
    world.check()
    world.steps()
    assert world.newest.clock > 40


events = st.tuples(st.integers(0, 25), st.integers(0, 3), st.integers(-5, 5))
acts = st.one_of(
    st.lists(events, min_size=1, max_size=4),
    st.lists(events, min_size=1, max_size=4),
    st.just("step"),
    st.just("step"),
    st.sets(st.sampled_from(["PerRegion", "PerTotal", "Slots"])),
)


@pytest.mark.soak
@settings(max_examples=soak_or(ci=10, soak=25), deadline=None)
@given(st.lists(acts, min_size=8, max_size=20), st.randoms(use_true_random=False))
def test_at_every_clock_a_derived_task_is_made_of_the_task_that_feeds_it(history: list[Any], random: Any) -> None:
    world, derived = Graph(), ["PerRegion", "PerTotal", "Slots"]
    world.wanted = [name for name in world.plans if name not in derived or random.random() < 0.3]
    if "PerRegion" not in world.wanted and "PerTotal" in world.wanted:
        world.wanted.remove("PerTotal")
    world.start()
    now = 0
    for act in history:
        if act == "step":
            if due := graph.due(world.newest):
                world.turn(random.choice(due).flow)
        elif isinstance(act, set):
            left = {"PerTotal", *act} if "PerRegion" in act else act
            world.wanted = [name for name in world.plans if name not in left]
            world.start()
        else:
            for task in ("PerShop", "Amounts", "PerSlot"):
                world.play(task, [(now + ahead, shop, amount) for ahead, shop, amount in act])
            now += max(ahead for ahead, _, _ in act)
    world.wanted = [*world.plans]
    world.start()
    world.steps()
    entry = world.newest
    assert all(entry.is_at(name, entry.clock) for name in entry.tasks)


class Picky(PersistentTask):
    """The sum of what shops have taken, but of those that have taken 13."""

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        state.update(message.timestamp, "unfit" if message["value"] == 13 else message["value"])


def test_a_key_that_messages_leave_as_it_was_is_no_change() -> None:
    world = Graph((Picky(), Changes("Amounts")))
    world.wanted = ["Amounts", "Picky"]
    world.start()
    world.play("Amounts", [(2, 1, 13), (15, 2, 1)])
    world.steps()
    for time in (25, 45, 65):
        world.play("Amounts", [(time, 1, 5), (time + 1, 1, -5), (time + 10, 2, 1)])
        world.steps()
        assert world.state("Amounts", world.newest.clock)[1,] == 13
        assert world.newest.late_counts_of("Picky") == {UNFIT: 1}
    assert world.newest.clock == 70
    world.play("Amounts", [(77, 1, 2), (85, 2, 1)])
    world.steps()
    assert world.state("Picky", 80) == {(): 19}
    world.play("Amounts", [(87, 1, -2), (95, 2, 1)])
    world.steps()
    assert world.newest.late_counts_of("Picky") == {UNFIT: 2}


def test_bad_rows_of_a_step_that_is_taken_back_are_taken_back() -> None:
    world = Graph((Picky(), Changes("Amounts")))
    world.wanted = ["PerShop", "Amounts", "PerRegion", "Picky"]
    world.start()
    for task in ("PerShop", "Amounts"):
        world.play(task, [(2, 1, 13), (3, 2, 4), (15, 2, 1), (29, 2, 1)])
    for _ in range(2):
        # The other derived task does not come there, so that the global clock stays below the step.
        (step,) = [step for step in graph.due(world.newest) if step.flow == "Picky"]
        world.turn(step.flow)
        assert world.newest.clock == BEGINNING
        assert world.newest.late_counts_of("Picky") == {UNFIT: 1}
        world.start()
        assert world.newest.late_counts_of("Picky") == {}
        for task in ("PerShop", "Amounts"):
            world.play(task)


def test_the_ways_out_of_a_derived_task_are_its_own() -> None:
    world = Graph()
    # Without its output no clock is retained for it.
    world.plans["PerSlot"] = replace(world.plans["PerSlot"], outputs=())
    world.wanted = ["PerShop", "PerRegion", "PerSlot", "Slots"]
    world.start()
    world.play("PerShop", [(12, 2, 20)])
    world.play("PerSlot", [(12, 2, 20)])
    world.steps()
    world.start("PerShop", "PerSlot")
    for at in range(25, 165, 10):
        world.play("PerShop", [(at, 1, 1)])
        world.play("PerSlot", [(at, 1, 1)])
    said = {
        "PerRegion": "it is rebuilt from the state of its upstream tasks.",
        "Slots": "it loses what it has and begins with the windows of PerSlot that close after "
        "clock=1970-01-01T00:00:00.000150Z (150).",
    }
    for name, way in said.items():
        others = [world.plans[other] for other in ("PerShop", "PerSlot", name)]
        with pytest.raises(InvalidInputError) as refused:
            world.start(*others)
        assert str(refused.value).endswith(f'Name it in reset=["{name}"] of run or start, and {way}')
