"""Sources are told what the global clock has passed: what no restart reads again, once, and by none that is fenced."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from persistent_state.event_time import positions
from persistent_state.event_time.clocks import Settings
from persistent_state.inputs import Inputs
from persistent_state.run import passed
from persistent_state.run.feeds import FedTask
from persistent_state.run.passed import PassedPositions
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from tests import core
from tests.local_application import LocalApplication
from tests.run.test_start_checks import setup_of
from tests.soak import soak_or
from tests.waiting import PATIENCE
from tests.words import SCHEMA, Words


class Told(TimeReplayableSource):
    """A source that keeps what it is told; `errors` are raised instead, one after the other."""

    timestamp, schema = "ts", SCHEMA

    def __init__(self, errors: Sequence[Exception] = ()) -> None:
        # Shared with the copy that is told.
        self.told: list[Mapping[str, int]] = []
        self.errors = [*errors]

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None: ...

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        raise NotImplementedError

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        raise NotImplementedError

    def read(self, split: Any) -> Iterator[Chunk]:
        raise NotImplementedError

    def committed(self, positions: Mapping[str, int]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.told.append({**positions})


class Deaf(Told):
    committed = TimeReplayableSource.committed


class World(LocalApplication):
    """The tasks A and B of an application with an interval of 10, which one source feeds, but each in a flow of its own."""

    def __init__(self, told: Told | None = None) -> None:
        files, settings = core.memory(), Settings(10, ahead=2**62)
        super().__init__({name: core.plan_of(Words(name), SCHEMA, files=files, settings=settings) for name in "AB"})
        self.start()
        self.told, outputs = told or Told(), cast(Any, None)
        parts = [FedTask(plan, self.told, outputs) for plan in self.plans.values()]
        self.setup = replace(setup_of(parts[0]), parts=parts)
        # All parts of a run share it.
        vars(self.setup)["log"] = self.log

    def start(self, *wanted: Any, **more: Any) -> Entry:
        entry = super().start(*wanted, **more)
        self.epoch = entry.epoch
        return entry

    def read(self, task: str, *times: int) -> None:
        self.play(task, [(at, "a") for at in times])

    def telling(self) -> PassedPositions:
        telling = PassedPositions(self.setup)
        telling._epoch = lambda: self.epoch
        return telling


def test_a_source_is_told_what_no_flow_of_its_tasks_reads_again() -> None:
    world = World()
    telling = world.telling()

    def told() -> list[Mapping[str, int]]:
        telling.tell()
        found, world.told.told[:] = [*world.told.told], []
        return found

    assert told() == [], "there is no clock yet"
    world.read("A", 1, 12)
    world.read("A", 23)
    assert told() == []
    world.read("B", 1, 12)
    # The clock is 10, and the first micro-batches have messages above it.
    assert told() == [{"": 0}]
    world.read("B", 23, 34)
    # Of A's messages, that of 23 is above the clock.
    assert told() == [{"": 2}]
    assert told() == [], "it knows that"
    world.read("A", 34, 45)
    world.read("B", 45)
    assert told() == [{"": 3}]


def test_what_is_told_is_where_a_start_replays() -> None:
    world = World()
    telling = world.telling()
    for times in ((1, 12), (23,), (34, 45), (56,)):
        for task in "AB":
            world.read(task, *times)
    telling.tell()
    world.start()
    entry = world.newest
    assert world.told.told == [{"": entry.flows["A"].source.positions[""].next}]
    assert entry.flows["A"].source.positions[""].next == 5


# B moves the clock, and then A joins spans on both sides of it.
@example([1, 1, 1, 8, 1, 19, 1, 19], [("A", 3), ("A", 2), ("A", 2), ("B", 5), ("B", 1), ("A", 1)])
@pytest.mark.soak
@settings(max_examples=soak_or(ci=40, soak=500))
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=60),
    st.lists(st.tuples(st.sampled_from(["A", "B", "start"]), st.integers(1, 5)), max_size=40),
)
def test_no_restart_reads_again_what_was_told_whichever_flow_moves_the_clock(
    steps: Sequence[int], history: Sequence[tuple[str, int]]
) -> None:
    times = list(accumulate(steps))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "MOST_SPANS", 2)
        world, told = World(), 0
        # At last a start shows where it begins.
        for who, count in [*history, ("start", 0)]:
            if who == "start":
                world.start()
            else:
                source = world.source(who)
                source.rows, source.most = [(at, "a") for at in times], count
                world.turn(who)
            entry = world.newest
            at = passed.passed(entry, world.setup.feeds[0]).get("", 0)
            assert at >= told
            told = at
            starts = [flow.source.next_positions.get("", 0) for flow in entry.flows.values()]
            assert min(starts) >= told


def test_what_a_start_reads_again_does_not_grow_by_a_micro_batch_after_another_flow_has_moved_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Spans are joined from the third on.
    monkeypatch.setattr(positions, "MOST_SPANS", 2)
    world = World()
    for times in ((1, 2), (11, 12), (31,)):
        world.read("A", *times)
    # B moves the global clock to 30, while A commits nothing.
    world.read("B", 1, 2, 11, 12)
    world.read("B", 31)
    telling = world.telling()
    telling.tell()
    assert world.told.told == [{"": 4}]
    # The spans below the clock are of no use to a start: were they joined with that of 31, it would begin at 0.
    world.read("A", 51)
    world.start()
    assert world.newest.flows["A"].source.next_positions == {"": 4}


@pytest.mark.parametrize("knows", [True, False])
def test_a_driver_that_is_fenced_tells_nothing(knows: bool) -> None:
    world = World()
    telling = world.telling()
    epoch = world.epoch
    for task in "AB":
        world.read(task, 1, 12)
    if knows:
        world.start()
        world.epoch = epoch
    else:
        # Another process has started. The last look of this one is recent.
        Log(world.log.files, "app").append(core.newest(world.log).follower(0, epoch=epoch + 1))
    telling.tell()
    assert world.told.told == []


def test_a_source_that_raises_is_told_again_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    world = World(Told([OSError("not now"), ValueError("nor now")]))
    telling = world.telling()
    for task in "AB":
        world.read(task, 1, 12)
    with caplog.at_level(logging.WARNING, "persistent_state"):
        for _ in range(4):
            telling.tell()
    assert world.told.told == [{"": 0}]
    assert any("not now" in message for message in caplog.messages)
    assert len(caplog.records) == 1


def test_a_thread_tells_until_the_end_and_only_if_somebody_wants_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed, "POLL_SECONDS", PATIENCE)
    monkeypatch.setattr(passed, "STOP_SECONDS", PATIENCE)
    world, heard = World(), threading.Event()
    world.told.told = Heard(heard.set)
    telling = PassedPositions(world.setup)
    telling.start(lambda: world.epoch)
    for task in "AB":
        world.read(task, 1, 12)
    telling.wake()
    assert heard.wait(PATIENCE)
    for task in "AB":
        world.read(task, 23)
    telling.stop()
    assert world.told.told == [{"": 0}, {"": 2}]
    assert not telling._worker.is_alive

    world = World(Deaf())
    telling = PassedPositions(world.setup)
    telling.start(lambda: world.epoch)
    assert not telling._worker.is_alive
    telling.stop()


def test_each_of_several_inputs_is_told_its_own() -> None:
    orders, rates, deaf = Told(), Told(), Deaf()
    inputs = Inputs({"": orders, "rates": rates, "deaf": deaf})
    assert passed._wants_to_know(inputs)
    assert not passed._wants_to_know(Inputs({"": deaf}))
    passed.copied(inputs).committed({"orders-0": 5, "rates:rates-0": 7})
    assert (orders.told, rates.told, deaf.told) == ([{"orders-0": 5}], [{"rates-0": 7}], [])


class Heard(list[Mapping[str, int]]):
    """A list that tells when something is appended."""

    def __init__(self, on_append: Callable[[], None]) -> None:
        self._on_append = on_append

    def append(self, item: Mapping[str, int]) -> None:
        super().append(item)
        self._on_append()
