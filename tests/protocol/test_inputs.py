"""A task with several inputs: its clock is the least of theirs, and its state is made of the messages of all."""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import monoids
from persistent_state import (
    Application,
    Changes,
    ClosedWindows,
    Input,
    InvalidInputError,
    NonWindowState,
    PersistentTask,
    TumblingWindow,
    WindowState,
)
from persistent_state.batch.packets import Answers
from persistent_state.drive import local, turn
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.inputs import TURN_SECONDS, Inputs
from persistent_state.protocol import commits, deliver, graph
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources import Reach
from persistent_state.store import lists
from tests import core
from tests.local_application import LocalApplication, Rows, compiled
from tests.soak import soak_or

KEEPING = Keeping(3, 0)
ORDERS = pa.schema([("ts", pa.int64()), ("shop", pa.int64()), ("amount", pa.int64())])
RATES = pa.schema([("at", pa.int64()), ("of", pa.int32()), ("rate", pa.string())])


class Story(PersistentTask):
    """All that came of a shop, in order."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.List(pa.string()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([[f"amount {amount}"] for amount in batch["amount"].to_pylist()], pa.list_(pa.string()))


class PerShop(PersistentTask):
    key, value = "shop", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


class PerTen(PersistentTask):
    key, value = "shop", "amount"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(monoids.Sum(), TumblingWindow(core.us(10)))


class Both(PersistentTask):
    """The amounts that came, and the sums of another task."""

    key, value = "shop", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


class Twice(PersistentTask):
    """The sums of a task that sources and tasks feed."""

    value = "value"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


def rates(batch: pa.RecordBatch) -> pa.Array:
    return pa.array([[f"rate {rate}"] for rate in batch["rate"].to_pylist()], pa.list_(pa.string()))


def application(*added: tuple[PersistentTask, Any], without: Sequence[str] = ()) -> Application:
    """An application of these tasks and their inputs."""
    app = Application("app", "memory://inputs", checkpoint_interval=core.us(10), max_ahead="100000 days")
    for task, source in added:
        app.add(task, source, without=without)
    return app


class World(LocalApplication):
    """Tasks of two inputs: of two sources, and of a source and a task."""

    def __init__(self, shards: int = 2, sources: Sequence[Rows] = ()) -> None:
        self.orders, self.rates, self.others = sources or (Rows(ORDERS), Rows(RATES), Rows(ORDERS))
        app = (
            application()
            .add(Story(), {"rates": self.given_rates, "orders": Input(self.orders, allowed_delay=core.us(5))})
            .add(PerShop(), self.others)
            .add(Both(), {"own": self.orders, "sums": Input(Changes("PerShop"), value="value")})
            .add(Twice(), Changes("Both"))
        )
        super().__init__(*compiled(app, core.memory(), shards), KEEPING, parts=2)

    @property
    def given_rates(self) -> Input:
        return Input(self.rates, key="of", batch=rates)

    def start_without(self, *away: str) -> None:
        """Start all tasks but those that are away. Those that were for too long are refused, and left out then."""
        names = {*self.plans} - {*away}
        names -= {"Twice"} if "Both" not in names else set()
        left = names & self.left_behind()
        if left:
            with pytest.raises(InvalidInputError, match=f"task=({'|'.join(left)}) left at clock="):
                self.start(*(name for name in self.plans if name in names))
        # What another feeds is away with it.
        names -= left | ({"Twice"} if "Both" in left else set())
        self.start(*(name for name in self.plans if name in names))

    def left_behind(self) -> set[str]:
        """The tasks that were away while the last clock passed at which they could go on."""
        newest, found = self.log.newest(), set[str]()
        for name, task in newest.tasks.items() if newest else ():
            assert newest is not None
            flow, oldest = newest.flow_of(name), min(newest.retained, default=BEGINNING)
            clocks = {flow.progress.clock, flow.stepped if flow.upstream and flow.inputs else flow.progress.clock}
            if not task.active and any(BEGINNING < clock < oldest for clock in clocks):
                found.add(name)
        return found

    def answers(self, task: str, takes_all: bool) -> Answers:
        """What a micro-batch makes that is not committed yet; with a step that changes nothing if it `takes_all`.

        It is played by hand, as something is committed while it is under way.
        """
        entry = commits.wake(self.log, self.newest.epoch, task, 0)
        flow, source = self.flow(task), self.sources[task]
        start = entry.flows[task].source.next_positions
        reach = source.reach(start, everything=True)
        parts = turn.micro_batch(entry, flow, source, start, reach, now=0, most=2)
        if takes_all and parts[0].basis.step is None:
            basis = commits.plan_batch(entry, flow, reach, 0, graph.step_of(entry, flow))
            parts = turn.parts(basis, source.splits(start, reach.ends, 2), source)
        return local.run(flow, parts, source, {}, core.new_id)

    def check(self) -> None:
        entry = self.newest
        cuts = {cut for task in entry.tasks.values() for cut in task.stored.cuts if cut >= task.born}
        for clock in {*cuts, *entry.retained} - {BEGINNING}:
            if "Story" in entry.tasks and entry.is_at("Story", clock):
                assert self.state("Story", clock) == self.story(clock), clock
            if "Both" in entry.tasks and entry.is_at("Both", clock):
                sums = per_shop(self.others, clock)
                for shop, amount in per_shop(self.orders, clock).items():
                    sums[shop] = sums.get(shop, 0) + amount
                assert {k: v for k, v in self.state("Both", clock).items() if v} == {
                    k: v for k, v in sums.items() if v
                }, clock
            if "Twice" in entry.tasks and entry.is_at("Twice", clock):
                assert self.state("Twice", clock).get((), 0) == sum(self.state("Both", clock).values()), clock
        for name in entry.tasks:
            assert not entry.late_counts_of(name)

    def story(self, clock: int) -> dict[Any, list[str]]:
        found: dict[Any, list[str]] = defaultdict(list)
        told = [(at, 0, i, of, f"rate {rate}") for i, (at, of, rate) in enumerate(self.rates.rows)]
        told += [(ts, 1, i, shop, f"amount {amount}") for i, (ts, shop, amount) in enumerate(self.orders.rows)]
        for at, *_, shop, said in sorted(told):
            if at < clock:
                found[shop,].append(said)
        return dict(found)


class Unchecked(World):
    """One in which rows may come late."""

    def check(self) -> None: ...


def per_shop(source: Rows, clock: int) -> dict[Any, int]:
    sums: dict[Any, int] = {}
    for ts, shop, amount in source.rows:
        if ts < clock and amount is not None:
            sums[shop,] = sums.get((shop,), 0) + amount
    return sums


def test_the_clock_is_the_least_of_all_inputs() -> None:
    world = World()
    world.start()
    world.orders.rows = [(5, 1, 1), (28, 2, 2), (23, 1, 7)]
    world.play("Story")
    # Nothing came of the rates yet.
    assert world.newest.flow_of("Story").progress.clock == BEGINNING
    world.rates.rows = [(5, 1, "x"), (29, 1, "y")]
    world.play("Story")
    assert world.newest.flow_of("Story").progress.clock == 20
    assert world.state("Story", 20) == {(1,): ["rate x", "amount 1"]}
    assert lists.read_journals(world.files, world.newest.flow_of("Story")) == {
        "rates": ["up to: 2"],
        "orders": ["up to: 3"],
    }
    assert {*world.newest.flow_of("Story").inputs} == {"rates", "orders"}
    # Each is given back what it wrote, and nothing of the other.
    world.start()
    assert world.rates.opened == [[], ["up to: 2"]]
    assert ["up to: 3"] in world.orders.opened


times = st.tuples(st.integers(0, 12), st.integers(0, 2))
acts = st.one_of(
    st.tuples(st.sampled_from(["orders", "rates", "others"]), st.lists(times, min_size=1, max_size=4)),
    st.sampled_from(["Story", "PerShop", "Both", "step", "start"]),
    st.sampled_from(["Story", "PerShop", "Both", "step"]),
    st.sets(st.sampled_from(["Story", "Both", "Twice"])),
)


@pytest.mark.soak
@settings(max_examples=soak_or(ci=12, soak=40), deadline=None)
@given(st.lists(acts, max_size=25))
def test_at_every_clock_the_state_is_made_of_all_inputs(history: list[Any]) -> None:
    world, now = World(), {"orders": 0, "rates": 0, "others": 0}
    world.start()
    for act in history:
        if act == "start":
            world.start_without()
        elif act == "step":
            world.steps()
        elif isinstance(act, set):
            world.start_without(*act)
        elif isinstance(act, str):
            world.play(act)
        else:
            name, some = act
            source = getattr(world, name)
            for ahead, shop in some:
                now[name] += ahead
                number = len(source.rows)
                source.rows.append((now[name], shop, f"r{number}" if name == "rates" else number))
    world.start_without()
    # The clock moves on as long as sources go on.
    for end in range(200, 300, 20):
        for name in now:
            getattr(world, name).rows.append((end, 1, "end" if name == "rates" else 1))
        for task in world.sources:
            world.play(task)
        world.steps()
    entry = world.newest
    assert entry.clock >= 200
    assert all(entry.is_at(name, entry.clock) for name, task in entry.tasks.items() if task.active)


@pytest.mark.parametrize("takes_all", [False, True])
def test_a_step_without_changes_may_come_while_a_micro_batch_is_under_way(takes_all: bool) -> None:
    world = World()
    world.start_without("Story")
    # No message changes the task that feeds it, whose clock goes on.
    world.others.rows, world.orders.rows = [(25, 1, None)], [(5, 1, 1), (25, 1, 2)]
    world.play("PerShop")
    world.play("Both")
    (due,) = world.due()
    assert (due.step.flow, due.step.clock, due.asks_nothing) == ("Both", 20, True)
    world.orders.rows.append((47, 1, 4))
    answers = world.answers("Both", takes_all)
    world.steps()
    assert world.newest.flow_of("Both").visited == 20
    entry = core.commit(world.log, world.plans["Both"], answers, keeping=KEEPING)
    assert (entry.flow_of("Both").stepped, entry.flow_of("Both").progress.clock) == (20, 40)
    world.steps()
    assert world.newest.clock == 20
    world.check()
    world.others.rows += [(30, 1, 8), (47, 1, 16)]
    for name in ("PerShop", "Both"):
        world.play(name)
    world.steps()
    assert world.newest.clock == 40
    assert world.state("Both", 40) == {(1,): 11}


def test_a_step_that_a_micro_batch_has_taken_is_not_taken_again() -> None:
    world = World()
    world.start_without("Story")
    world.others.rows, world.orders.rows = [(25, 1, None)], [(5, 1, 1), (25, 1, 2)]
    world.play("PerShop")
    world.play("Both")
    (due,) = world.due()
    core.commit(world.log, world.plans["Both"], world.answers("Both", takes_all=True), keeping=KEEPING)
    entry = world.newest
    assert entry.flow_of("Both").stepped == 20
    assert commits.commit_unchanged(world.log, entry.epoch, [due.step], now=0, keeping=KEEPING)[1] == []
    assert world.newest == entry


def test_a_step_beside_no_source_does_not_make_it_idle() -> None:
    world, second = World(), 1_000_000
    own = Input(world.orders, idle_after="1 second")
    both = {"own": own, "sums": Input(Changes("PerShop"), value="value")}
    world.become(application((PerShop(), world.others), (Both(), both)))
    # What a part has read is one span, of which nothing goes as the clock moves.
    world.parts = 1
    world.start()
    world.others.rows, world.orders.rows = [(5, 1, 3), (25, 1, 4)], [(5, 1, 1), (25, 1, 2)]
    world.play("PerShop")
    world.play("Both")
    before = world.newest.flow_of("Both")
    # Its query has come to its end long ago, and nobody has asked whether there is more since then.
    made = core.answers_of_step(world.log, world.plans, graph.due(world.newest)[0], now=100 * second)
    entry = core.commit(world.log, world.plans["Both"], made, now=100 * second, keeping=KEEPING)
    flow = entry.flow_of("Both")
    assert (flow.stepped, entry.clock) == (20, 20)
    assert (flow.progress.clock, flow.progress.holds, flow.inputs) == (20, True, before.inputs)
    # So what it has is not late.
    world.orders.rows.append((26, 1, 8))
    world.start()
    world.play("Both")
    assert not world.newest.late_counts_of("Both")


@pytest.mark.parametrize("is_derived", [False, True])
def test_a_task_that_was_away_before_its_first_step_does_not_come_back_without_the_windows(is_derived: bool) -> None:
    world = World()
    beside = Input(Changes("PerShop"), value="value") if is_derived else Input(world.orders)
    both = {"beside": beside, "tens": Input(ClosedWindows("PerTen"), value="value")}
    world.become(application((PerShop(), world.others), (PerTen(), world.others), (Both(), both)))
    feeding = ["PerShop", "PerTen"]
    world.start(feeding, "Both")
    world.start(feeding)
    world.others.rows = [(5, 1, 1), (45, 1, 2)]
    world.play("PerShop")
    assert world.newest.clock == 40
    with pytest.raises(InvalidInputError, match="task=Both left at clock=none yet, and the oldest that is retained is"):
        world.start(feeding, "Both")


def test_a_sink_that_has_a_clock_of_before_a_reset_is_given_what_other_tasks_have_at_it() -> None:
    world = Unchecked()
    world.plans["Both"] = replace(world.plans["Both"], outputs=("out",))
    world.start_without("Story")
    world.others.rows, world.orders.rows = [(5, 1, 3), (25, 1, 4)], [(5, 1, 1), (25, 1, 2)]
    world.play("PerShop")
    for _ in range(2):
        world.play("Both")
    world.steps()
    assert world.newest.clock == 20
    # It was away before, when its sink was not asked.
    world.start("PerShop")
    world.start("PerShop", "Both", "Twice", reset=["Both", "Twice"])
    for source, each in ((world.others, "PerShop"), (world.orders, "Both")):
        source.rows.append((47, 1, 8))
        world.play(each)
    assert world.newest.flow_of("Both").stepped == 20
    assert world.state("Both", 20) == {(1,): 3}
    entry = deliver.believe(world.log, world.newest.epoch, "Both", "out", 20, 0)
    # It has all of its keys again with the next clock.
    assert entry.tasks["Both"].outputs["out"].right_up_to == BEGINNING


def test_an_input_comes_to_a_task_and_goes() -> None:
    world = World()
    world.become(application((Story(), world.orders)))
    world.start()
    world.orders.rows = [(5, 1, 1), (25, 2, 2)]
    world.play("Story")
    assert world.newest.clock == 20
    world.become(application((Story(), {"": world.orders, "rates": world.given_rates})))
    world.start()
    assert {*world.newest.flow_of("Story").inputs} == {"", "rates"}
    world.rates.rows = [(21, 2, "x"), (45, 1, "y")]
    world.orders.rows.append((47, 1, 3))
    world.play("Story")
    assert world.newest.flow_of("Story").progress.clock == 40
    assert world.state("Story", 40) == {(1,): ["amount 1"], (2,): ["rate x", "amount 2"]}
    rest = (Story(), {"rates": world.given_rates})
    world.become(application(rest))
    with pytest.raises(InvalidInputError, match=r"task=Story had the input '', and has 'rates' now"):
        world.start()
    world.become(application(rest, without=[""]))
    world.start()
    assert {*world.newest.flow_of("Story").inputs} == {"rates"}


def test_bad_rows_of_an_input_that_has_left_stay() -> None:
    world = Unchecked()
    world.become(application((Story(), {"rates": world.given_rates, "orders": world.orders})))
    world.start()
    world.orders.rows = [(25, 2, 2)]
    for row in ((None, 1, "no time"), (25, 1, "x")):
        world.rates.rows.append(row)
        world.play("Story")
    assert world.newest.clock == 20
    world.become(application((Story(), {"orders": world.orders}), without=["rates"]))
    for _ in range(3):
        world.start()
        assert world.newest.late_counts_of("Story") == {"no timestamp": 1}


def test_an_input_that_has_ended_is_not_given_again() -> None:
    world = Unchecked()
    rest = (Story(), {"orders": world.orders})
    both = application((Story(), {"rates": world.given_rates, "orders": world.orders}))
    world.become(both)
    world.start()
    world.orders.rows, world.rates.rows = [(5, 1, 1), (25, 2, 2)], [(7, 1, "x"), (28, 1, "y")]
    world.play("Story")
    assert world.newest.clock == 20
    for one in (application(rest, without=["rates"]), application(rest)):
        world.become(one)
        world.start()
        assert world.newest.tasks["Story"].ended == ("rates",)
        world.become(both)
        with pytest.raises(InvalidInputError) as refused:
            world.start()
        assert str(refused.value) == (
            "task=Story is given the input 'rates' again, which has ended for ever, and whose rows are in the state; "
            "leave it out. An input of another name is a new one: rows of it below the global clock come late."
        )
    # Of a state that starts from zero nothing has ended.
    world.start(reset=["Story"])
    assert world.newest.tasks["Story"].ended == ()


class NewBoth(Both):
    """The same by newer code."""

    name, version = "Both", 2


def with_new_code(world: World) -> None:
    """Let the task that a source feeds beside a task have another version."""
    world.plans["Both"] = core.changed(world.plans["Both"], task=NewBoth())


@pytest.mark.parametrize("is_new_code", [False, True])
def test_a_task_that_a_source_feeds_too_is_not_built_again_unasked(is_new_code: bool) -> None:
    world = without_story()
    world.start()
    for _ in range(3):
        go_on(world, "PerShop", "Both")
    assert world.newest.clock > BEGINNING
    if is_new_code:
        with_new_code(world)
    reset = [] if is_new_code else ["PerShop"]
    why = "the store was written with another version" if is_new_code else "task=PerShop, which feeds it, starts over"
    with pytest.raises(InvalidInputError) as refused:
        world.start(reset=reset)
    assert str(refused.value) == f"task=Both can't go on, as {why}. {core.ways('Both')}"
    world.start(reset=[*reset, "Both"])
    # It has nothing now, so it begins with what feeds it, whoever that is.
    world.start(reset=["PerShop"])


def test_a_task_that_a_source_feeds_too_and_that_has_nothing_yet_begins_as_a_new_one() -> None:
    world = World()
    world.start()
    world.start(reset=["PerShop"])
    with_new_code(world)
    world.start()
    assert world.newest.tasks["Both"].identity["version"] == 2
    world.others.rows = [(5, 1, 4), (25, 1, 4)]
    world.orders.rows = [(5, 1, 3), (29, 2, 3)]
    world.rates.rows = [(45, 1, "y")]
    for _ in range(3):
        for task in world.sources:
            world.play(task)
        world.steps()
    assert world.newest.clock == 20
    assert world.state("Both", 20) == {(1,): 7}
    # One that was away has missed what its source gave.
    world = without_story()
    world.start()
    world.start("PerShop")
    go_on(world, "PerShop")
    with_new_code(world)
    with pytest.raises(InvalidInputError, match="task=Both can't go on, as the store was written with another version"):
        world.start()


def without_story() -> World:
    """The tasks but that of two sources, which nobody waits for then."""
    world = World()
    world.plans.pop("Story")
    world.sources.pop("Story")
    return world


def test_what_a_task_feeds_steps_though_its_own_source_begins_later() -> None:
    world = without_story()
    world.start()
    world.others.rows = [(5, 1, 4), (29, 1, 4)]
    world.orders.rows = [(55, 1, 3)]
    for _ in range(3):
        for task in world.sources:
            world.play(task)
        world.steps()
    assert world.newest.clock == 20
    assert world.state("Twice", 20) == {(): 4}


def go_on(world: World, *tasks: str) -> None:
    """Let rows come for a clock more, and these tasks take them."""
    number = len(world.others.rows)
    for ahead in (0, 9):
        world.others.rows.append((number * 10 + ahead, 1, 1))
        world.orders.rows.append((number * 10 + ahead, 1, 1))
    for task in tasks * 2:
        world.play(task)
    world.steps()


def test_a_task_that_was_away_twice_is_judged_by_the_clock_that_it_has_visited() -> None:
    world = without_story()
    world.start()

    for _ in range(3):
        go_on(world, "PerShop", "Both")
    world.start("PerShop")
    for _ in range(2):
        go_on(world, "PerShop")
    world.start()
    # Its source comes to the global clock, and no step is taken yet.
    world.play("Both")
    world.start("PerShop")
    go_on(world, "PerShop")
    known = world.newest
    assert known.flow_of("Both").visited < known.retained[0] <= known.flow_of("Both").progress.clock
    with pytest.raises(InvalidInputError, match="task=Both left at clock="):
        world.start("PerShop", "Both")


def test_a_task_that_a_source_fed_does_not_become_derived_unasked() -> None:
    world = without_story()
    world.start("PerShop")
    for _ in range(3):
        go_on(world, "PerShop")
    fed = (PerShop(), Input(Changes("Amounts"), value="value"))
    world.become(application((Amounts(), world.others), fed))
    why = "task=PerShop can't go on, as it was fed by no other task when the store was written, and is fed by Changes("
    with pytest.raises(InvalidInputError, match=re.escape(why)):
        world.start()


class Amounts(PerShop):
    """The same under another name."""


def test_names_of_the_input_without_a_name_may_not_look_like_those_of_another() -> None:
    class Named(Rows):
        def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
            return Reach({"rates:p": 1})

    both = Inputs({"": Named(ORDERS), "rates": Rows(RATES)})
    with pytest.raises(InvalidInputError, match="partition='rates:p' of the input without a name looks like one of"):
        both.reach({}, everything=True)


def test_sources_of_several_inputs_stay_open() -> None:
    heard: list[tuple[Any, float]] = []

    class Hears(Rows):
        def stay_open(self, seconds: float) -> None:
            heard.append((self, seconds))

    sources = {"orders": Hears(ORDERS), "rates": Hears(RATES)}
    Inputs(sources).stay_open(7.0)
    assert heard == [(sources["orders"], 7.0), (sources["rates"], 7.0)]


def test_inputs_wait_for_the_first_that_has_news_and_ask_only_those_that_can_say() -> None:
    waits: list[tuple[str, float]] = []

    class Hears(Rows):
        news = 10**9

        def await_news(self, seconds: float, stopping: threading.Event) -> bool:
            waits.append((self.partition, seconds))
            self.news -= 1
            return self.news < 0

    one, other, mute = Hears(ORDERS, "one"), Hears(ORDERS, "other"), Rows(RATES)
    other.news = 2
    assert Inputs({"a": one, "b": other, "c": mute}).await_news(3600.0, threading.Event())
    assert waits == [("one", TURN_SECONDS), ("other", TURN_SECONDS)] * 3
    waits.clear()
    one.news = 0
    assert Inputs({"a": mute, "b": one}).await_news(3600.0, threading.Event())
    ((_, seconds),) = waits
    assert seconds == pytest.approx(3600.0, abs=60)
    waits.clear()
    (stopping := threading.Event()).set()
    for sources in ({"a": one, "b": other}, {"a": mute, "b": mute}):
        assert not Inputs(sources).await_news(3600.0, stopping)
    assert waits == []
    one.news = other.news = 10**9
    assert not Inputs({"a": one, "b": other}).await_news(0.01, threading.Event())
    assert {partition for partition, _ in waits} == {"one", "other"}


@pytest.mark.parametrize("backlog", [{"unread": 1}, {"has_more": True}, {"unread": 0}])
def test_inputs_have_more_if_one_of_them_has(backlog: Mapping[str, Any]) -> None:
    class Limited(Rows):
        def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
            return Reach({"p": 1}, **backlog)

    reach = Inputs({"a": Limited(ORDERS), "b": Rows(RATES)}).reach({}, everything=False)
    assert (reach.unread, reach.has_more) == (None, backlog != {"unread": 0})


def test_each_input_begins_with_timestamps_of_its_own_unit() -> None:
    class Unsaid(Rows):
        timestamp_unit = None  # type: ignore[assignment]

    world = World(sources=(Rows(ORDERS), Unsaid(RATES), Rows(ORDERS)))
    world.start("Story")
    world.orders.rows = [(5, 1, 1)]
    world.play("Story")
    world.rates.rows = [(1_700_000_000_000, 1, "x")]
    with pytest.raises(InvalidInputError, match="begins with the timestamp 1700000000000; an int64 is microseconds"):
        world.play("Story")


class Times(PersistentTask):
    """The times of all that came, in order."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.List(pa.int64()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        times = batch["timestamp" if "timestamp" in batch.schema.names else "ts"].cast(pa.int64())
        return pa.array([[time] for time in times.to_pylist()], pa.list_(pa.int64()))


class PerSlot(PerShop):
    def persistent_state(self) -> WindowState[int]:  # type: ignore[override]
        return WindowState(monoids.Sum(), TumblingWindow(core.us(10)))


@pytest.mark.soak
@pytest.mark.parametrize("first", soak_or(ci=[11, 47], soak=[11, 23, 31, 47]))
@pytest.mark.parametrize("last", [55, 95, 200])
def test_a_source_that_is_far_ahead_is_apart_from_what_a_step_adds_below_it(first: int, last: int) -> None:
    world = without_story()
    world.start()
    for at in (first, first + 7, last, last):
        world.orders.rows += [(at, 1, 100)] if at not in [ts for ts, *_ in world.orders.rows] else []
        world.play("Both")
    for at in (5, 29):
        world.others.rows.append((at, 1, 4))
        world.play("PerShop")
    for at in (None, None, None, 210, 230, 250, 270):
        if at is not None:
            world.orders.rows.append((at, 1, 100))
            world.others.rows.append((at, 1, 4))
        # The world looks at each retained clock after each commit.
        world.play("Both")
        world.play("PerShop")
        world.steps()
    assert world.newest.clock >= 200


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_what_a_step_gives_stands_in_its_order_among_what_a_source_gave(at_once: int) -> None:
    world = World(shards=1)
    world.become(
        application((PerSlot(), world.others), (Times(), {"slots": ClosedWindows("PerSlot"), "own": world.orders}))
    )
    world.start()
    world.others.rows = [(at, 1, 1) for at in range(0, 305, 10)]
    rows = [(at, 1, 1) for at in range(3, 305, 10)]
    for begin in range(0, len(rows), at_once):
        world.orders.rows += rows[begin : begin + at_once]
        world.play("Times")
    for _ in range(4):
        world.play("PerSlot")
        world.play("Times")
    (times,) = world.state("Times", 300).values()
    assert times == sorted([*range(3, 300, 10), *range(9, 300, 10)])


class Newer(Both):
    name, version = "Both", 2


def test_a_task_on_windows_and_changes_is_not_begun_anew_unasked() -> None:
    world = World(shards=1)
    inputs = {"sums": Input(Changes("PerShop"), value="value"), "slots": Input(ClosedWindows("PerSlot"), value="value")}
    upstream = (PerShop(), world.others), (PerSlot(), world.orders)
    world.become(application(*upstream, (Both(), inputs)))
    world.check = lambda: None  # type: ignore[method-assign]
    world.start()
    world.others.rows, world.orders.rows = [(5, 1, 4), (45, 1, 0)], [(3, 1, 100), (13, 1, 100), (45, 1, 0)]
    for _ in range(3):
        world.play("PerShop")
        world.play("PerSlot")
        world.steps()
    assert world.state("Both", 40) == {(1,): 204}
    world.become(application(*upstream, (Newer(), inputs)))
    with pytest.raises(
        InvalidInputError,
        match=r"task=Both .* another version, .* begins with the state of PerShop and the windows of PerSlot that close after",
    ):
        world.start()
    world.start(rebuild=["Both"])
    world.steps()
    assert world.state("Both", 40) == {(1,): 4}


@pytest.mark.parametrize("name", ["", "sums"])
def test_a_derived_task_goes_on_from_its_clock_when_it_gets_a_source(name: str) -> None:
    world = World()
    changes_only = {name: Input(Changes("PerShop"), value="value")}
    world.become(application((PerShop(), world.others), (Both(), changes_only)))
    world.start()
    world.others.rows = [(5, 1, 4), (15, 2, 6), (29, 1, 1)]
    world.play("PerShop")
    world.steps()
    assert world.state("Both", 20) == {(1,): 4, (2,): 6}
    world.become(application((PerShop(), world.others), (Both(), {**changes_only, "own": world.orders})))
    world.start()
    world.orders.rows = [(25, 3, 100), (41, 3, 1000)]
    world.others.rows.append((47, 1, 5))
    for _ in range(3):
        world.play("PerShop")
        world.play("Both")
    assert world.newest.clock == 40
    assert world.state("Both", 40) == {(1,): 5, (2,): 6, (3,): 100}


def test_a_derived_task_that_gets_a_source_before_its_first_step_begins_at_the_global_clock() -> None:
    world = Unchecked()
    world.become(application((PerShop(), world.others)))
    world.start()
    world.others.rows = [(5, 1, 4), (15, 2, 6), (29, 1, 1)]
    world.play("PerShop")
    assert world.newest.clock == 20
    changes_only = {"sums": Input(Changes("PerShop"), value="value")}
    world.become(application((PerShop(), world.others), (Both(), changes_only)))
    world.start()
    world.become(application((PerShop(), world.others), (Both(), {**changes_only, "own": world.orders})))
    world.start()
    assert world.newest.flow_of("Both").progress.clock == 20
    world.orders.rows = [(3, 3, 1000), (25, 3, 100), (41, 3, 10)]
    world.others.rows.append((47, 1, 5))
    for _ in range(3):
        world.play("PerShop")
        world.play("Both")
    assert world.newest.clock == 40
    assert world.newest.late_counts_of("Both") == {"late": 1}
    assert world.state("Both", 20) == {(1,): 4, (2,): 6}
    assert world.state("Both", 40) == {(1,): 5, (2,): 6, (3,): 100}


def test_a_task_that_lacks_what_others_gave_can_not_become_derived_yet() -> None:
    world = without_story()
    world.start()

    go_on(world, "PerShop", "Both")
    world.start("PerShop")
    go_on(world, "PerShop")
    world.start()
    world.play("Both")
    changes_only = {"sums": Input(Changes("PerShop"), value="value")}
    app = application((PerShop(), world.others)).add(Both(), changes_only, without=["own"])
    world.become(app)
    with pytest.raises(InvalidInputError, match="task=Both has yet to take what other tasks gave up to clock="):
        world.start()
