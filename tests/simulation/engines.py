"""Starts by other engines: who plans turns, where their parts and shards run, and what of them outlives a start."""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any

from persistent_state.batch.packets import Advance, Answers, Descriptor
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive import local
from persistent_state.drive.local import Held, Item, LocalDriver, Made, NewId
from persistent_state.drive.planner import Planner
from persistent_state.drive.turn import Part
from persistent_state.inputs import Inputs
from persistent_state.local.turns import Turns
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.gathered import GatheringLog, may_gather
from persistent_state.sources.base import Reach
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from tests.simulation.oracle import Batch, Oracle, Stage
from tests.simulation.source import WorldSource

if TYPE_CHECKING:
    from tests.simulation.actor import Actor
    from tests.simulation.world import World

SPARK, LOCAL, DRIVER = "Spark", "Local", "LocalDriver"
"""Who plans: the world as Spark does, the loops of `Local`, or the driver that takes all turns one after the other."""

DEATHS = 3
"""The tries of a call whose workers die. The last one lives."""


@dataclass
class Engine:
    """The engine of one start. Its calls run in `workers` side by side; with 0 of them the driver makes them itself."""

    planner: str = SPARK
    workers: int = 0
    rng: Random = field(default_factory=Random)
    happened: Counter[str] = field(default_factory=Counter)
    held: dict[str, Held] = field(default_factory=dict)
    gathers: bool = False
    """Whether turns are gathered in memory, and committed together."""

    @property
    def most(self) -> int:
        """The most parts of a turn."""
        return max(self.workers, 1)


@dataclass
class Engines:
    """The engines of a world. Their processes remember the runs that shards held in earlier starts."""

    rng: Random
    held: dict[str, dict[str, Held]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(dict)))
    happened: Counter[str] = field(default_factory=Counter)

    def draw(self, before: str | None) -> Engine:
        """Return the engine of the next start, mostly another than the one before."""
        planner = self.rng.choice([each for each in (SPARK, LOCAL, DRIVER) if each != before] * 3 + [LOCAL])
        workers = self.rng.choice([1, 2, 3]) if planner == LOCAL else self.rng.choice([0, 2])
        self.happened[f"{planner} after {before}"] += before is not None
        gathers = planner == LOCAL and self.rng.random() < 0.9
        return Engine(planner, workers, self.rng, self.happened, self.held[planner], gathers)


@dataclass
class Calls:
    """The calls of one start's turns, made by its engine. A worker may die of one, which is made again."""

    world: World
    actor: Actor
    engine: Engine

    @property
    def workers(self) -> int:
        """The number of workers that merge shards."""
        return self.engine.most

    def each(self, function: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
        """Call a function for each item, and return what the calls return, in this order."""
        sent = [pickle.loads(pickle.dumps(item)) if self.engine.rng.random() < 0.3 else item for item in items]
        if not self.engine.workers:
            return [function(item) for item in sent]
        answers: list[list[Made]] = [[] for _ in sent]
        threads = [
            self.world._spawn(self.actor, lambda to=to, item=item: self._call(function, item, to), True)
            for to, item in zip(answers, sent, strict=True)
        ]
        self.world._join(*threads)
        for thread in threads:
            if thread.error is not None:
                raise thread.error
        return [answer for answered in answers for answer in answered]

    def _call(self, function: Callable[[Item], Made], item: Item, answered: list[Made]) -> None:
        """Make a call, and make it again if its worker dies: before its work is done, or before it can say so."""
        tries = 0
        while True:
            worker = self.world._spawn(self.actor, lambda: function(item), True)
            tries += 1
            dies = tries < DEATHS and self.engine.rng.random() < 0.15
            if dies and self.engine.rng.random() < 0.5:
                self.world._nap(self.engine.rng.choice([1, 4, 12]))
                # The world goes on with another thread, and comes back to this one.
                self.world._end(worker)
            else:
                self.world._join(worker)
            if dies:
                self.engine.happened["a call was made again"] += 1
                continue
            if worker.error is not None:
                raise worker.error
            answered.append(worker.result)
            return


class Gathering(GatheringLog):
    """A log that gathers turns, and lets the oracle know what each makes of the entry before it."""

    def __init__(self, log: Log, epoch: int, oracle: Oracle) -> None:
        super().__init__(log, epoch)
        self._oracle = oracle
        self._stages: list[Stage] = []

    def gather(self, change: Callable[[Entry], Entry], made: Sequence[Descriptor]) -> Entry:
        stage: Stage

        def noted(newest: Entry) -> Entry:
            stage.entry = change(newest)
            return stage.entry

        stage = Stage(super().newest())
        entry = super().gather(noted, made)
        self._stages.append(stage)
        return entry

    def judged_by(self, judge: Callable[[Entry], None]) -> None:
        """Let the turn that was gathered last be judged by this when it is in the log."""
        self._stages[-1].judge = judge

    def append(self, entry: Entry) -> Entry:
        last = next((i for i, stage in enumerate(self._stages) if stage.entry is entry), None)
        if last is not None:
            self._oracle.gathered[entry.number].append(self._stages[: last + 1])
        written = super().append(entry)
        if last is not None:
            del self._stages[: last + 1]
        return written


@dataclass
class Committer:
    """Commits the turns of a flow in a world, in the place of a run's."""

    world: World
    actor: Actor
    log: Log
    flow: FlowPlan
    is_batch: bool

    def commit(self, answers: Answers) -> tuple[Advance, Mapping[str, list[Descriptor]]]:
        """Commit what the parts and shards of a turn have answered."""
        entry, after = self.world._commit(self.actor, self.log, self.flow, answers)
        self.world.oracle.claim(entry)
        self._judge(entry, after, answers)
        return after, {}

    def gather(self, answers: Answers) -> tuple[Advance, Mapping[str, list[Descriptor]]]:
        """Gather what the parts and shards of a turn have answered."""
        assert isinstance(self.log, Gathering)
        _, after = self.world._commit(self.actor, self.log, self.flow, answers, gathers=True)
        self.log.judged_by(lambda entry: self._judge(entry, after, answers))
        return after, {}

    def _judge(self, entry: Entry, after: Advance, answers: Answers) -> None:
        oracle = self.world.oracle
        if self.is_batch:
            oracle.counted(self.flow, entry, after.counts)
        for name in self.flow.by_name:
            values = [each.values for each in answers.descriptors if each.task == name and each.values]
            oracle.emitted(name, entry, after.clock, values)


def turns_of(world: World, actor: Actor, log: Log, flow: FlowPlan, source: WorldSource | Inputs | None) -> Turns:
    """Return the turns of a flow as `Local` takes them. Its shards remember what they held in earlier starts."""
    committer = Committer(world, actor, log, flow, source is not None)
    calls: Any = Calls(world, actor, actor.engine)
    gathers = isinstance(log, Gathering)
    if gathers:
        flow = replace(flow, tasks=tuple(replace(plan, files=plan.files.unsynced) for plan in flow.tasks))
    turns = Turns(calls, flow, committer.gather if gathers else committer.commit, source, {})
    turns._held = actor.engine.held[flow.id]
    return turns


def read_by_planner(world: World, actor: Actor, log: Log, flow: FlowPlan) -> None:
    """Read a flow's source to the end of what there is, as a loop of `Local` does."""
    source, partitions = world._source(flow, world.rng.choice([2, world.most_rows]))
    collector, gathered = Collector(log), None
    entry = log.newest()
    if actor.engine.gathers and entry is not None and may_gather(entry, flow):
        log = gathered = Gathering(log, actor.epoch, world.oracle)
    planner = Planner(flow, source, actor.epoch, actor.engine.most, log=log)
    turns, offset, number = turns_of(world, actor, log, flow, source), planner.first(), 0
    while True:
        partitions.grow(world.rng, world.most_rows)
        planner.to_the_end = partitions.is_complete
        newest = planner.latest(offset, lambda: world.now)
        if gathered is not None and (newest == offset or actor.engine.rng.random() < 0.3):
            world.oracle.claim(gathered.write())
        if newest == offset:
            if partitions.is_complete and offset["ends"] == partitions.visible:
                return
            world.now += world.tick
            continue
        turns.take(planner.parts(offset, lambda: world.now, world.new_id), number)
        offset, number = newest, number + 1
        world._collect(actor, collector)


def driver_of(world: World, actor: Actor, log: Log, wanted: Sequence[FlowPlan], entry: Entry) -> LocalDriver | None:
    """Return the driver that takes all turns of a start one after the other, if it is made by such an engine."""
    if actor.engine.planner != DRIVER:
        return None
    flows = [flow.of(entry.tasks_of(id)) for flow in wanted for id in entry.flows if id in flow.by_name]
    rows = world.rng.choice([2, world.most_rows])
    sources = {flow.id: world._opened(actor, log, flow, rows)[0] for flow in flows if not flow.is_derived}
    calls, held = Calls(world, actor, actor.engine), actor.engine.held

    def run(flow: FlowPlan, parts: Sequence[Part], source: Any, _: Held, new_id: NewId) -> Answers:
        return local.run(flow, parts, source, held[flow.id], new_id, calls.each, calls.workers)

    return LocalDriver(
        log,
        flows,
        sources,
        keeping=actor.terms.keeping,
        now=lambda: world.now,
        new_id=world.new_id,
        parts=actor.engine.most,
        executor=run,
    )


def read_by_driver(world: World, actor: Actor, log: Log, driver: LocalDriver) -> None:
    """Let the flows take turns until the sources are read to the end of what there is."""
    collector, read = Collector(log), {id: world.oracle.judges[id].partitions for id in driver._sources}
    while True:
        for partitions in read.values():
            partitions.grow(world.rng, world.most_rows)
        taken = 0
        for flow in driver._flows:
            # Others write to the log, too: those who deliver.
            driver.entry = world._newest(actor, log)
            if driver.take_turn(flow) is not None:
                taken += 1
                world.oracle.claim(driver.entry)
                world._collect(actor, collector)
        ends = {id: driver.entry.flows[id].source.next_positions for id in read}
        is_read = all(ends[id].get(name, 0) == n for id, p in read.items() for name, n in p.visible.items())
        if not taken and is_read and all(partitions.is_complete for partitions in read.values()):
            return
        world.now += world.tick


def drain(world: World, actor: Actor, log: Log, driver: LocalDriver) -> None:
    """Take all tasks to one clock above all messages."""
    driver.entry = world._newest(actor, log)
    for _ in driver.drain():
        world.oracle.claim(driver.entry)
        driver.entry = world._newest(actor, log)


def noting(oracle: Oracle, plan: Callable[..., list[Part]]) -> Callable[..., list[Part]]:
    """Return the planning of micro-batches, of each of which the oracle learns."""

    def planned(entry: Entry, flow: FlowPlan, source: Any, start: Any, reach: Reach, **more: Any) -> list[Part]:
        parts = plan(entry, flow, source, start, reach, **more)
        basis = parts[0].basis
        oracle.batches[flow.id, basis.epoch, basis.batch] = Batch(entry.flows[flow.id], reach, more["now"])
        return parts

    return planned
