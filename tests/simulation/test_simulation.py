"""The core keeps its contract in every world that a seed makes, and a seed always makes the same world.

`SIMULATION_WORLDS` says how many worlds; `python -m tests.simulation SEED` plays one and prints what happened.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from persistent_state.edges.changes import Changes
from persistent_state.edges.closed_windows import ClosedWindows
from persistent_state.edges.emitted import Emitted
from persistent_state.edges.in_order.edge import InOrder
from persistent_state.windows import SessionWindow, SlidingWindow, TimeToLive
from tests.simulation.engines import DRIVER, LOCAL, SPARK
from tests.simulation.graphs import clock_of, every_in, is_diamond
from tests.simulation.sinks import GO_BACK
from tests.simulation.world import (
    BACKFILL,
    BRANCHED,
    ENGINES,
    EVERY,
    FLOWS,
    GRAPH,
    IN_ORDER,
    INPUTS,
    JOINS,
    KEPT,
    PAUSED,
    READING_WINDOWS,
    REBUILT,
    REWOUND,
    REWOUND_BACKFILL,
    REWOUND_BACKFILL_OUTPUTS,
    REWOUND_FURTHER,
    REWOUND_GRAPH_OUTPUTS,
    REWOUND_GRAPHS,
    REWOUND_LATE,
    REWOUND_ORDER_OUTPUTS,
    REWOUND_OUTPUTS,
    VERSIONS,
    World,
    play,
)
from tests.soak import soak_or

pytestmark = pytest.mark.worlds

WORLDS = int(os.environ.get("SIMULATION_WORLDS") or soak_or(ci=300, soak=5000))
STRIDE = 20
REBUILT_WORLDS = soak_or(ci=15, soak=300)
FLOWS_WORLDS = soak_or(ci=20, soak=1000)
READING_WORLDS = soak_or(ci=12, soak=1000)
GRAPH_WORLDS = soak_or(ci=20, soak=2000)
INPUTS_WORLDS = soak_or(ci=20, soak=1000)
BACKFILL_WORLDS = soak_or(ci=20, soak=1000)
REWOUND_WORLDS = soak_or(ci=20, soak=2000)
REWOUND_OUTPUTS_WORLDS = soak_or(
    ci={
        REWOUND_OUTPUTS: 40,
        REWOUND_GRAPH_OUTPUTS: 20,
        REWOUND_LATE: 15,
        REWOUND_ORDER_OUTPUTS: 10,
        REWOUND_BACKFILL_OUTPUTS: 10,
        REWOUND_FURTHER: 6,
    },
    soak={
        REWOUND_OUTPUTS: 2000,
        REWOUND_GRAPH_OUTPUTS: 45,
        REWOUND_LATE: 500,
        REWOUND_ORDER_OUTPUTS: 200,
        REWOUND_BACKFILL_OUTPUTS: 200,
        REWOUND_FURTHER: 200,
    },
)
PAUSED_WORLDS = soak_or(ci=20, soak=2000)
REWOUND_GRAPH_WORLDS = soak_or(ci=6, soak=1000)
KEPT_WORLDS = soak_or(ci=24, soak=2000)
BRANCHED_WORLDS = soak_or(ci=20, soak=2000)
IN_ORDER_WORLDS = soak_or(ci=20, soak=2000)
EVERY_WORLDS = soak_or(ci=range(85, 98), soak=range(1000))
JOINS_WORLDS = soak_or(ci=range(3, 12), soak=range(2000))
"""In CI few in which all happens that is to happen."""

ENGINES_WORLDS = soak_or(ci=6, soak=1000)

VERSIONS_WORLDS = soak_or(ci=range(10), soak=range(1000))

GRAPH_EVENTS = {"step", "built of state that there was", "built again", "came back behind", "would lose what it has"}


def play_until(
    wanted: Collection[str], least: int, theme: str, events_of: Callable[[World], Mapping[str, int]]
) -> list[World]:
    """Play so many worlds of a theme, and more of them until all that is wanted has happened in one of them."""
    worlds, missing = list[World](), {*wanted}
    while len(worlds) < least or (missing and len(worlds) < 20 * least):
        worlds.append(play(len(worlds), theme))
        missing -= {event for event, count in events_of(worlds[-1]).items() if count}
    assert not missing
    return worlds


@pytest.mark.soak
@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", range(0, WORLDS, STRIDE))
def test_every_world_keeps_the_contract(first: int) -> None:
    for seed in range(first, min(first + STRIDE, WORLDS)):
        play(seed)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_a_task_that_is_built_again_keeps_the_contract() -> None:
    worlds = [play(seed, REBUILT) for seed in range(REBUILT_WORLDS)]
    assert any("again" in line for world in worlds for line in world.trace)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_drivers_and_readers_that_are_paused_for_longer_than_entries_stay_keep_the_contract() -> None:
    for seed in range(PAUSED_WORLDS):
        play(seed, PAUSED)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_tasks_that_part_and_come_together_keep_the_contract() -> None:
    happened = sum((play(seed, FLOWS).oracle.flows.happened for seed in range(FLOWS_WORLDS)), Counter[str]())
    assert happened.keys() == {"came together", "came to a flow", "parted"}


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_tasks_that_feed_tasks_keep_the_contract() -> None:
    worlds = [play(seed, GRAPH) for seed in range(GRAPH_WORLDS)]
    happened = sum((world.oracle.graphs.happened for world in worlds), Counter[str]())
    assert happened.keys() == GRAPH_EVENTS
    assert any("the clock has moved" in line for world in worlds for line in world.trace)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_tasks_of_several_inputs_keep_the_contract() -> None:
    worlds = [play(seed, INPUTS) for seed in range(INPUTS_WORLDS)]
    happened = sum((world.oracle.happened for world in worlds), Counter[str]())
    steps = {"a step beside no source", "a step without changes beside its sources"}
    inputs = {"an input came", "an input left", "an input held the clock", "another task fed"}
    assert happened.keys() - {"a run is a range of a file"} == inputs | steps
    # Tasks that sources and a task feed see changes in each way, and closed windows.
    fed = {(type(job.fed), job.is_fed_pairs) for world in worlds for job in world.jobs if job.fed}
    assert fed == {(Changes, True), (Changes, False), (ClosedWindows, False)}
    graph_events = sum((world.oracle.graphs.happened for world in worlds), Counter[str]()).keys()
    assert graph_events >= {"built of state that there was", "would lose what it has"}
    assert any("the clock has moved" in line for world in worlds for line in world.trace)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_tasks_with_history_and_a_live_input_keep_the_contract() -> None:
    worlds = [play(seed, BACKFILL) for seed in range(BACKFILL_WORLDS)]
    happened = sum((world.oracle.happened for world in worlds), Counter[str]())
    assert {"a message outside its bounds", "history held the clock", "an input left"} <= happened.keys()
    assert any("the clock has moved" in line for world in worlds for line in world.trace)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_tasks_that_are_fed_what_changes_between_fixed_times_keep_the_contract() -> None:
    worlds = [play(seed, EVERY) for seed in EVERY_WORLDS]
    happened = sum((world.oracle.graphs.happened for world in worlds), Counter[str]())
    assert happened.keys() == GRAPH_EVENTS | {"missed what has changed", "step over several multiples"}
    assert any(len(derived.inputs) > 1 for world in worlds for derived in world.derived)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_tasks_whose_code_changes_and_those_made_of_two_that_are_made_of_one_keep_the_contract() -> None:
    worlds = [play(seed, VERSIONS) for seed in VERSIONS_WORLDS]
    happened = sum((world.oracle.graphs.happened for world in worlds), Counter[str]())
    assert happened["built by other code"]
    diamonds = [
        (world, each)
        for world in worlds
        for each in world.derived
        if is_diamond(each, {derived.name: derived for derived in world.derived})
    ]
    # Two ways of different pace come together.
    assert any(len({*map(every_in, each.inputs.values())}) > 1 for _, each in diamonds)
    for world, each in diamonds:
        assert world.oracle.newest is not None
        assert clock_of(world.oracle.newest, each.name) == world.oracle.newest.clock


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_tasks_that_process_in_order_keep_the_contract() -> None:
    worlds = [play(seed, IN_ORDER) for seed in range(IN_ORDER_WORLDS)]
    happened = sum((world.oracle.orders.happened for world in worlds), Counter[str]())
    names = ("", "again", "chain", "end", "far", "late", "now", "once", "past", "quiet")
    assert happened.keys() == {"bad", "expired", "forgotten", *(f"timer {name}" for name in names)}
    # Few worlds have a task that comes back behind the others, or one that must be named.
    graph_events = GRAPH_EVENTS - {"came back behind", "would lose what it has"}
    assert sum((world.oracle.graphs.happened for world in worlds), Counter[str]()).keys() >= graph_events
    assert any("the clock has moved" in line for world in worlds for line in world.trace)
    fed = {type(source) for world in worlds for each in world.derived for source in each.inputs.values()}
    assert fed >= {Emitted, InOrder}
    assert any(job.ordered and job.fed for world in worlds for job in world.jobs)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_tasks_that_join_two_inputs_keep_the_contract() -> None:
    worlds = [play(seed, JOINS) for seed in JOINS_WORLDS]
    happened = sum((world.oracle.orders.happened for world in worlds), Counter[str]())
    assert happened.keys() >= {"as of", "none before", "too old", "near", "near, older", "none near"}
    fed = {type(source) for world in worlds for each in world.derived for source in each.inputs.values()}
    assert fed >= {Emitted, InOrder}


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_old_clocks_that_are_read_and_named_keep_the_contract() -> None:
    worlds = [play(seed, KEPT) for seed in range(KEPT_WORLDS)]
    happened = sum((world.oracle.kept.happened for world in worlds), Counter[str]())
    assert happened.keys() == {"a kept clock was read", "an entry of old was read", "an entry left the log"}
    notes = [line for world in worlds for line in world.trace]
    assert all(any(what in line for line in notes) for what in ("is kept as", "is released", "is not kept, so"))


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_applications_that_are_branched_keep_the_contract() -> None:
    worlds = [play(seed, BRANCHED) for seed in range(BRANCHED_WORLDS)]
    happened = sum((world.branches.happened for world in worlds if world.branches), Counter[str]())
    # A clock that is released meanwhile is rare here.
    assert happened.keys() - {"released"} == {"branched", "went on"}


@pytest.mark.soak
@pytest.mark.one_in(3)
@pytest.mark.parametrize("theme", [REWOUND, *REWOUND_GRAPHS])
def test_applications_that_go_back_keep_the_contract(theme: str) -> None:
    worlds = [play(seed, theme) for seed in range(REWOUND_WORLDS if theme == REWOUND else REWOUND_GRAPH_WORLDS)]
    happened = sum((world.oracle.happened for world in worlds), Counter[str]())
    assert happened["rewind"] > 1
    assert theme != REWOUND_BACKFILL or {"back in history", "back behind it"} <= happened.keys()


@pytest.mark.soak
@pytest.mark.one_in(3)
@pytest.mark.parametrize("theme", [*REWOUND_OUTPUTS_WORLDS])
def test_applications_that_go_back_take_their_outputs_along(theme: str) -> None:
    of_theme = {
        REWOUND_OUTPUTS: {f"{kind} went back" for kind in GO_BACK},
        REWOUND_GRAPH_OUTPUTS: {f"{kind} went back" for kind in GO_BACK},
        REWOUND_LATE: {"a write landed after its sink went back"},
        # One world in sixty shows it.
        REWOUND_FURTHER: soak_or(ci=set(), soak={"a key came back"}),
    }
    wanted = {"a sink went back"} | of_theme.get(theme, set())
    play_until(wanted, REWOUND_OUTPUTS_WORLDS[theme], theme, lambda world: world.oracle.happened)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_tasks_that_read_what_time_bounds_keep_the_contract() -> None:
    worlds = [play(seed, READING_WINDOWS) for seed in range(READING_WORLDS)]
    kinds = {type(judge.job.windowing) for world in worlds for judge in world.oracle.judges.values()}
    assert kinds == {SlidingWindow, SessionWindow, TimeToLive}


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_starts_by_one_engine_after_the_other_keep_the_contract() -> None:
    turns = {f"{after} after {before}" for before in (SPARK, LOCAL, DRIVER) for after in (SPARK, LOCAL, DRIVER)}
    wanted = turns - {f"{SPARK} after {SPARK}", f"{DRIVER} after {DRIVER}"} | {"a call was made again"}
    worlds = play_until(
        wanted, ENGINES_WORLDS, ENGINES, lambda world: world.engines.happened if world.engines else Counter()
    )
    shards = {actor.shards for world in worlds for actor in world.actors}
    assert len(shards) > 1
    assert sum(world.oracle.happened["a run is a range of a file"] for world in worlds)


def test_a_seed_is_one_world() -> None:
    seeds = range(10)
    here = [trace_of(seed) for seed in seeds]
    assert here == [trace_of(seed) for seed in seeds]
    program = f"from tests.simulation.test_simulation import trace_of\nprint([trace_of(seed) for seed in {seeds!r}])"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    root = Path(__file__).parents[2]
    there = subprocess.run(
        [sys.executable, "-c", program], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    assert there.stdout == f"{here}\n"


def test_worlds_are_rich() -> None:
    worlds = [World(seed) for seed in range(60)]
    for world in worlds:
        world.run()
    happened = {event for world in worlds for line in world.trace for event in EVENTS if event in line}
    assert happened == set(EVENTS)
    verdicts = {verdict for w in worlds for judge in w.oracle.judges.values() for verdict in judge.verdicts.values()}
    assert len(verdicts) == 9, verdicts


EVENTS = (
    "a listing of",
    "answer lost",
    "arrives late",
    "asked again",
    "collected",
    "ExistsError",
    "fails",
    "is damaged",
    "FileNotFoundError",
    "is killed",
    "-pages-",
    "stops: DisagreementError",
    "stops: FencedError",
    "stops: StoreUnavailableError",
)


def trace_of(seed: int) -> list[str]:
    world = World(seed)
    world.run()
    return world.trace
