"""What a stepper takes, and what that reads of the log: the jobs of Spark are played by this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from persistent_state import Changes
from persistent_state.batch.packets import DRIVER
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive.turn import Part
from persistent_state.engine.read.arrow_source import blob_batches
from persistent_state.engine.run import jobs as jobs_module
from persistent_state.engine.run import micro_batch
from persistent_state.engine.run.spark_engine import SparkEngine
from persistent_state.engine.spark import connect
from persistent_state.inputs import Input
from persistent_state.outputs import Outputs
from persistent_state.partials.shuffle import labels_of_shards
from persistent_state.protocol import graph
from persistent_state.run import steps
from persistent_state.run.feeds import FedTask
from persistent_state.run.progress import Progress
from persistent_state.run.steps import Stepper
from persistent_state.store.codec import Written
from persistent_state.store.log import Log
from tests import core
from tests.protocol.test_inputs import Both, PerShop, Twice, World, application
from tests.run.test_start_checks import setup_of
from tests.waiting import PATIENCE, until

PARTS = 2
"""How many tasks Spark is said to run at a time."""


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many blobs each job has sent."""
    sent: list[int] = []

    def rows(_: Any, flow: FlowPlan, parts: Sequence[Part], slots: int) -> Any:
        labels, by_label = labels_of_shards(flow.first.shards, slots), dict[int, list[bytes]]()
        for part in parts:
            for batch in blob_batches(part.combine(flow, part.chunks(flow)), labels, 1):
                for row in batch.to_pylist():
                    by_label.setdefault(row["label"], []).append(row["blob"])
        sent.append(sum(len(blobs) for label, blobs in by_label.items() if label != DRIVER))
        answered = [
            {"label": label, "answer": micro_batch.answer_of(flow, label, blobs, {}, 0, 1)[0]}
            for label, blobs in by_label.items()
        ]
        return SimpleNamespace(collect=lambda: answered)

    context = SimpleNamespace(
        setJobGroup=lambda *_, **__: None,
        setLocalProperty=lambda *_: None,
        cancelJobGroup=lambda *_: None,
        defaultParallelism=PARTS,
        master="local[2]",
        getConf=lambda: SimpleNamespace(get=lambda name, default: default),
    )
    conf = SimpleNamespace(set=lambda *_: None)
    monkeypatch.setattr(jobs_module, "_session_of", lambda _: SimpleNamespace(sparkContext=context, conf=conf))
    monkeypatch.setattr(jobs_module, "for_sinks", lambda session: {})
    monkeypatch.setattr(jobs_module, "_rows", rows)
    return sent


class Stepped:
    """A world with a stepper, which does not run yet."""

    def __init__(self, shards: int, **inputs: Any) -> None:
        world = self.world = World(shards=shards)
        own = {"own": world.orders} if "own" in inputs.values() else {}
        fed = {**own, "sums": Input(Changes("PerShop"), value="value")}
        world.become(application((PerShop(), world.others), (Both(), fed), (Twice(), Changes("Both"))))
        # A message moves the clock to 50 microseconds before it.
        for name, plan in world.plans.items():
            if plan.source_inputs or not plan.upstream:
                world.plans[name] = core.changed(plan, settings=replace(plan.settings, delay=50))
        world.start()
        parts = [FedTask(plan, source_of(plan), Outputs((), ())) for plan in world.plans.values()]
        self.heard: list[Progress] = []
        setup = replace(setup_of(parts[0]), parts=parts, shards=shards, on_progress=self.heard.append)
        spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(cancelJobGroup=lambda group: None))
        self.stepper = Stepper(replace(setup, runs_on=SparkEngine(spark)))

    def play(self, task: str, at: int) -> None:
        source: Any = self.world.others if task == "PerShop" else self.world.orders
        source.rows.append((at, at % 7, 1))
        self.world.play(task)

    def settle(self) -> None:
        """Wait until no step is due or under way."""
        self.stepper.wake()
        until(lambda: self.stepper.is_settled or self.stepper.failed is not None, "the end of all steps")
        assert self.stepper.failed is None

    def visited(self) -> list[int]:
        return [self.world.newest.flow_of(name).visited for name in ("Both", "Twice")]


def source_of(plan: Any) -> Any:
    return next(iter(plan.upstream.values()), plan.name)


@pytest.fixture
def stop() -> Iterator[list[Stepper]]:
    begun: list[Stepper] = []
    yield begun
    for stepper in begun:
        stepper.stop()


@pytest.mark.parametrize("shards", [2, 5])
def test_steps_read_of_the_log_only_what_others_wrote_and_send_few_blobs(
    shards: int, jobs: list[int], stop: list[Stepper], monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = Stepped(shards)
    world, stepper = stepped.world, stepped.stepper
    stop.append(stepper)
    read, here, opened = list[int](), threading.get_ident(), Log.open

    def count(log: Log, number: int) -> Written:
        written = opened(log, number)
        if threading.get_ident() != here:
            read.append(number)
        return written

    monkeypatch.setattr(Log, "open", count)
    stepper.start(world.newest.epoch, ())
    stepped.settle()
    for at in range(100, 180, 10):
        read.clear()
        jobs.clear()
        before = world.newest.number
        stepped.play("PerShop", at)
        others = [*range(before + 1, world.newest.number + 1)]
        stepped.settle()
        # Each step of two tasks has written an entry, too, and that is known.
        assert sorted(read) == others
        assert all(blobs <= PARTS * shards for blobs in jobs)
    assert len(jobs) == 2
    assert stepped.visited() == [120, 120] == [world.newest.clock] * 2
    assert world.state("Twice", 120) == {(): sum(world.state("PerShop", 120).values())}


def test_the_steps_of_a_flow_with_a_source_are_taken_as_soon_as_its_own_query_has_ended(
    jobs: list[int], stop: list[Stepper]
) -> None:
    stepped = Stepped(2, of="own")
    world, stepper = stepped.world, stepped.stepper
    stop.append(stepper)
    stepper.start(world.newest.epoch, {"PerShop", "Both"})
    for at in (1, 100, 155):
        stepped.play("Both", at)
        world.others.rows.append((at, 1, 1))
    world.play("PerShop")
    stepped.settle()
    assert stepped.visited()[1] < 100
    assert [step.flow for step in graph.due(world.newest)] == ["Both"]
    stepper.leave_to_flows({"PerShop"})
    until(lambda: stepped.visited() == [100, 100], "the steps")
    stepped.settle()
    assert world.newest.clock == 100
    assert {each.task for each in stepped.heard} == {"Both", "Twice"}
    assert sum(world.state("Both", 100).values()) == 2


def test_the_session_of_the_steps_is_kept_while_no_step_is_due(
    jobs: list[int], stop: list[Stepper], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(steps, "KEEP_SECONDS", 0)
    monkeypatch.setattr(steps, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(connect, "keep", kept.append)
    stepper = Stepped(2).stepper
    stop.append(stepper)
    stepper.start(1, ())
    until(lambda: len(kept) > 2, "a session that is kept")
    jobs_of_spark: Any = stepper._jobs
    assert {*map(id, kept)} == {id(jobs_of_spark._session)}


def test_parts_have_about_as_many_spans_each_and_every_span_once() -> None:
    spans: Any = [("", number) for number in range(10)]
    for most in (1, 3, 10, 12):
        parts = [part.spans for part in graph.in_parts(spans, most)]
        assert sorted(span for part in parts for span in part) == spans
        assert len(parts) == min(most, 10)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert graph.in_parts([], 3) == []


def test_a_stop_waits_for_the_step_that_is_cancelled_and_not_for_those_that_never_began(
    jobs: list[int], stop: list[Stepper]
) -> None:
    stepper = Stepped(2).stepper
    began, cancelled = threading.Event(), threading.Event()

    def step() -> None:
        began.set()
        assert cancelled.wait(PATIENCE)

    stepper._jobs.cancel = cancelled.set  # type: ignore[method-assign]
    stepper._pool = ThreadPoolExecutor(1)
    stepper._begun = [stepper._pool.submit(each) for each in (step, step)]
    assert began.wait(PATIENCE)
    stopping = threading.Thread(target=stepper.stop, daemon=True)
    stopping.start()
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert [each.cancelled() for each in stepper._begun] == [False, True]
