"""Small worlds of one delivery: drivers that start, one after the other, and are killed after any operation in the store.

They draw from a generator of their own: the worlds of `world.py` stay what they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations
from random import Random
from typing import Any
from unittest import mock

from persistent_state.batch import compaction
from persistent_state.batch.plan import AT_LEAST_ONCE, AT_MOST_ONCE, DELIVERIES, EXACTLY_ONCE, FlowPlan, Plan
from persistent_state.drive import local, turn
from persistent_state.event_time import positions
from persistent_state.event_time.clocks import BEGINNING, END, Settings
from persistent_state.partials import fold
from persistent_state.partials.sessions import Living
from persistent_state.partials.since import Since
from persistent_state.protocol import branch, commits, rewind, takeover
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.deliver import Due, Giver
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.next_entry import newest_own
from persistent_state.store import blocks, kept_entries, late_rows, lists
from persistent_state.store import runs as runs_io
from persistent_state.store.codec import from_bytes
from persistent_state.store.entry import Entry
from persistent_state.store.flow_state import SourceState
from persistent_state.store.late_rows import LATE
from persistent_state.store.log import Log
from persistent_state.store.output_state import OutputState
from persistent_state.store.state_at import seen_below, state_at
from persistent_state.windows import SessionWindow, TimeToLive, TumblingWindow
from tests import core
from tests.core import us
from tests.simulation import windows
from tests.simulation.files import Disk, PlainFiles
from tests.simulation.messages import SCHEMA, Job, Sent
from tests.simulation.oracle import Place as At
from tests.simulation.oracle import as_dict, must
from tests.simulation.source import MOVES, NO_LINES, Partitions, WorldSource

APPLICATION = "app"
DELAY = 30
MIXED = "mixed"
"""A world in which each start may have another delivery, and starts follow each other quickly."""


class Killed(BaseException):
    """The driver is no more."""


@dataclass
class Life:
    """How many operations a driver has left (None: all that it wants)."""

    left: int | None
    before: bool

    def come_to(self, act: Any) -> Any:
        """Do something, unless it is too late; or do it last of all."""
        if self.left is None:
            return act()
        self.left -= 1
        if self.left < 0 and self.before:
            raise Killed
        result = act()
        if self.left < 0:
            raise Killed
        return result


@dataclass(frozen=True)
class MortalFiles(PlainFiles):
    """The store as a driver reaches it while it lives."""

    life: Life = field(default_factory=lambda: Life(None, True), compare=False)

    def _do(self, operation: str, path: str, act: Any) -> Any:
        return self.life.come_to(act)


@dataclass
class Place:
    """Where an output goes: what it was given, and the newest value of each key."""

    given: list[int] = field(default_factory=list)
    mirror: dict[Any, Any] = field(default_factory=dict)
    keeps_record: bool = False


def is_below(less: dict[Any, Any], more: dict[Any, Any]) -> bool:
    """Whether each key of the one has at least as much in the other: a greater sum, or all of its items."""
    return all(
        not Counter(value) - Counter(more.get(key, ())) if isinstance(value, list) else value <= more.get(key, 0)
        for key, value in less.items()
    )


class DeliveryWorld:
    """All that one seed decides. `run` plays it; what is left to compare are `states` and `folds`, by task and key.

    In a world that `goes_back` the application is taken back between its starts, or goes on as a branch. There it has no
    outputs and no windows: worlds of `sinks.py` and `world.py` take those back.
    """

    def __init__(self, seed: int, delivery: str, goes_back: bool = False) -> None:
        self.goes_back, self.application = goes_back, APPLICATION
        self.back = Random(f"back {delivery} {seed}")
        self.rng = rng = Random(f"{delivery} {seed}")
        self.slow = Random(f"slow sinks {seed}")
        self.own = Random(f"own deliveries {seed}")
        self.differs = self.own.random() < 0.4
        self.flows = Random(f"flows {delivery} {seed}")
        self.part_rate = self.flows.choice([0.0, 0.3, 1.0])
        """How many tasks are given a source object that no other has."""
        self.delivery = delivery
        self.deliveries: tuple[str, ...] = (delivery,)
        self.lives = [5, 30, 80, 160]
        self.haste, self.keys = 1, 3
        """How often tasks read, but for the first, which all wait for."""
        if delivery == MIXED:
            self.haste, self.keys = rng.choice([1, 5, 10]), rng.choice([3, 9])
            pairs = [*combinations(DELIVERIES, 2)]
            self.deliveries = rng.choice([DELIVERIES, *pairs, pairs[0]])
            self.lives = [5, 40, 160, 400]
        self.disk = Disk()
        self.files = PlainFiles("sim://", disk=self.disk)
        self.disk.watch = self._made
        self.ids, self.now = 0, 1_000_000
        self.parts = rng.randint(1, 2)
        self.most_rows = rng.choice([3, 6])
        self.keeping = Keeping(rng.choice([1, 2, 5]), 0)
        self.leaves = rng.random() < 0.4
        if self.leaves:
            # One that returns finds its clock.
            self.keeping = Keeping(10_000, 0)
        sent = {f"p{i}": self._messages(f"p{i}") for i in range(rng.randint(1, 3))}
        self.partitions = Partitions(
            messages=sent,
            visible={},
            share=1.0,
            lists_channels=rng.random() < 0.5,
            ends=rng.random() < 0.5,
            vanishes=False,
            chunk_rows=rng.choice([1, 3]),
            known=tuple(sent),
            journal=self.flows.choice([MOVES, NO_LINES]),
        )
        self.partitions.visible = dict.fromkeys(self.partitions.messages, 0)
        self.jobs = [self._job(i) for i in range(rng.randint(2 if self.haste > 1 else 1, 3))]
        self.places = {
            job.name: Place(keeps_record=rng.random() < 0.4 or (delivery == MIXED and self.slow.random() < 0.5))
            for job in self.jobs
        }
        self.layouts = {job.name: self._plan(job, EXACTLY_ONCE, self.files, 10, 1).layout for job in self.jobs}
        self.starts = rng.randint(4, 8) if delivery == MIXED else rng.randint(2, 6)
        self.playing: dict[str, str] = {}
        """By task: the delivery of the newest start."""
        self.given_up: dict[str, set[At]] = {job.name: set() for job in self.jobs}
        """What starts at most once do not read, since it was in flight."""
        self.began: dict[str, int] = {}
        """By flow of the newest epoch: the clock to which its start took it back."""
        self.was: dict[tuple[str, int, int], Any] = {}
        self.newest: Entry | None = None
        self.happened: Counter[str] = Counter()

    def _messages(self, partition: str) -> list[Sent]:
        rng, sent, top = self.rng, [], 0
        for position in range(rng.randint(10, 40)):
            top += rng.choice([0, 1, 5, 5, 20])
            timestamp: int | None = top - rng.choice([0, 0, rng.randint(0, DELAY)])
            broken = None
            lot = rng.random()
            if lot < 0.08:
                timestamp = top - DELAY - rng.choice([1, 20, 100])
            elif lot < 0.1:
                timestamp = None
            elif lot < 0.12:
                timestamp, broken = None, "no message"
            self.ids += 1
            value = rng.randint(1, 9) if self.delivery != MIXED else self.ids
            sent.append(
                Sent(
                    partition,
                    position,
                    timestamp,
                    rng.randint(0, self.keys),
                    "a",
                    partition,
                    value,
                    broken,
                    id=self.ids,
                )
            )
        return sent

    def _job(self, number: int) -> Job:
        rng = self.rng
        kind = rng.choice(["sum", "sum", "list"])
        way = rng.choice({"sum": ["value", "message", "reads"], "list": ["batch"]}[kind])
        windowing = rng.choice([None, None, None, TumblingWindow(us(40)), SessionWindow(us(25)), TimeToLive(60)])
        horizon = rng.choice([None, None, None, 50])
        if self.goes_back or way == "reads" or kind == "list":
            windowing = None
        elif self.delivery == MIXED and rng.random() < 0.3:
            windowing = rng.choice([TumblingWindow(us(40)), TumblingWindow(us(20)), SessionWindow(us(25))])
        return Job(f"t{number}", "s", kind, way, ("k0",), True, windowing, horizon)

    def _plan(self, job: Job, delivery: str, files: PlainFiles, interval: int, shards: int) -> Plan:
        def note(*read: Any) -> None:
            pass

        return core.plan_of(
            job.task(note),
            SCHEMA,
            application=self.application,
            files=files,
            settings=Settings(interval, DELAY, ahead=2**62),
            shards=shards,
            outputs=() if self.goes_back else ("out",),
            delivery=delivery,
        )

    def new_id(self) -> str:
        self.ids += 1
        return str(self.ids)

    # What happens

    def run(self) -> None:
        """Play the world, in which what is many elsewhere is few.

        Raises:
            Violation: a promise is broken.
        """
        runs_io._verified.clear()
        blocks._indexes.clear()
        with (
            mock.patch.object(compaction, "LAZY", (2, 3)),
            mock.patch.object(compaction, "MANY", 4),
            mock.patch.object(blocks, "BLOCK", 128),
            mock.patch.object(fold, "SLICE", 5),
            mock.patch.object(late_rows, "MANY", 2),
            mock.patch.object(positions, "MOST_SPANS", 3),
            mock.patch.object(lists, "TAIL", 3),
        ):
            self._play()

    def _play(self) -> None:
        for number in range(self.starts):
            is_last = number + 1 == self.starts
            if self.goes_back and self.newest and self.newest.kept and self.back.random() < 0.6:
                self._go_back(self.newest)
            delivery = self.rng.choice(self.deliveries) if self.delivery == MIXED else self.delivery
            life = Life(None if is_last else self.rng.choice(self.lives), self.rng.random() < 0.5)
            if life.left is not None:
                life.left = self.rng.randint(1, life.left)
            try:
                self._drive(number, delivery, life, is_last)
            except Killed:
                self.happened["killed"] += 1

    def _go_back(self, newest: Entry) -> None:
        """Take the application back to a kept clock, or go on with a branch of it: often at the newest clock."""
        clock = self.back.choice([*newest.kept, *[newest.clock] * 3])
        log = Log(self.files, self.application)
        if clock not in newest.kept:
            return
        was_complete = all(task.active for task in kept_entries.read(log, newest.kept[clock].entry).tasks.values())
        # What a checkpoint was above the clock means nothing any more.
        self.newest = None
        self.was.clear()
        # A branch retains its own clock alone, so a task that had left at a lower one could not return.
        if was_complete and self.back.random() < 0.3:
            self.happened["branched"] += 1
            self.application = f"{APPLICATION}{self.happened['branched']}"
            branch.branch(log, Log(self.files, self.application), clock, now=self.now, new_id=self.new_id)
        else:
            self.happened["rewound"] += 1
            rewind.rewind(log, core.plan_rewind(log, clock), writer="rewind", now=self.now)

    def _drive(self, number: int, delivery: str, life: Life, is_last: bool) -> None:
        rng = self.rng
        files = MortalFiles("sim://", disk=self.disk, life=life)
        log = Log(files, self.application)
        interval, shards = rng.choice([10, 10, 15, 40]), rng.randint(1, 3)
        jobs = self.jobs
        if self.leaves and not is_last and self.newest and self.newest.clock != BEGINNING and len(jobs) > 1:
            jobs = rng.sample(jobs, len(jobs) - 1)
        deliveries = {job.name: delivery for job in jobs}
        if self.delivery == MIXED and self.differs:
            # A task may have a delivery of its own.
            deliveries = {name: self.own.choice(self.deliveries) for name in deliveries}
        plans = {job.name: self._plan(job, deliveries[job.name], files, interval, shards) for job in jobs}
        if self.delivery == MIXED and not is_last:
            # Without its output, whose sink may hold what this start cuts away.
            left_out = {job.name for job in jobs if job.windowing is None and self.slow.random() < 0.2}
            plans = {name: replace(p, outputs=()) if name in left_out else p for name, p in plans.items()}
        givers = {name: self._giver(log, plan, life) for name, plan in plans.items() if plan.outputs}
        for giver in givers.values():
            # One that is slow to answer is opened with the first that it is given.
            if self.delivery != MIXED or self.slow.random() < 0.5:
                giver.open()
        self.now += 1000
        self.playing = deliveries
        wanted = self._given_together(plans.values())
        entry = takeover.take_over(log, wanted, interval=interval, shards=shards, writer=str(number), now=self.now)
        flows = {id: flow.of(entry.tasks_of(id)) for id in entry.flows for flow in wanted if id in flow.by_name}
        sources = {}
        for id in flows:
            sources[id] = WorldSource(self.partitions, rng, self.most_rows)
            state = entry.flows[id].source
            journal, known = lists.read(files, state.journal), state.known_positions
            noted = dict.fromkeys(self.partitions.messages, 0)
            for partition, _, end in (line.replace("-", ":").split(":") for line in journal):
                noted[partition] = max(noted[partition], int(end))
            is_told = self.partitions.journal == NO_LINES or all(end <= noted[s] for s, end in known.items())
            must(is_told, "a journal tells what was read", journal=journal, known=known)
            sources[id].open(journal, known)
        collector = Collector(log)
        while not is_last or not self._is_read(plans):
            self.partitions.grow(rng, self.most_rows)
            name = rng.choice([name for name in plans for _ in range(1 if name == self.jobs[0].name else self.haste)])
            if rng.random() < 0.7:
                id = entry.tasks[name].flow
                self._batch(log, entry.epoch, flows[id], sources[id])
            if rng.random() < 0.4 and name in givers:
                givers[name].give_next(entry.epoch)
            if rng.random() < 0.1:
                collector.collect(entry.epoch, now=self.now, keeping=self.keeping)
            if not is_last and self._is_read(plans) and rng.random() < 0.1:
                return
        commits.close(log, entry.epoch, now=self.now, keeping=self.keeping)
        for giver in givers.values():
            while giver.give_next(entry.epoch):
                pass

    def _given_together(self, plans: Iterable[Plan]) -> list[FlowPlan]:
        """The flows of a start: of one delivery, with late messages or without, but for tasks with a source of their own."""
        given: dict[Any, list[Plan]] = {}
        for plan in plans:
            object = plan.name if self.flows.random() < self.part_rate else ""
            given.setdefault((plan.delivery, plan.takes_late, object), []).append(plan)
        return [FlowPlan(tuple(some)) for some in given.values()]

    def _is_read(self, plans: dict[str, Plan]) -> bool:
        assert self.newest is not None
        ends = {partition: len(messages) for partition, messages in self.partitions.messages.items()}
        read = [self.newest.flow_of(name).source.next_positions for name in plans]
        return all(one.get(partition, 0) == end for one in read for partition, end in ends.items())

    def _batch(self, log: Log, epoch: int, flow: FlowPlan, source: WorldSource) -> None:
        self.now += 10
        entry = newest_own(log, epoch)
        start = entry.flows[flow.id].source.next_positions
        reach = source.reach(start, everything=False)
        entry, reach = turn.begin(log, epoch, flow, reach, self.now, self.new_id)
        parts = turn.micro_batch(entry, flow, source, start, reach, now=self.now, most=self.parts)
        made = local.run(flow, parts, source, {}, self.new_id)
        commits.commit(log, epoch, flow.first.settings, made, now=self.now, new_id=self.new_id, keeping=self.keeping)

    def _giver(self, log: Log, plan: Plan, life: Life) -> Giver:
        place = self.places[plan.name]

        def opened(timeline: int) -> int | None:
            return max(place.given, default=BEGINNING) if place.keeps_record else None

        def write(entry: Entry, due: Due) -> None:
            since = Since(due.since, False, False, due.recent)
            table = state_at(plan.files, self.application, entry, plan.name, plan.layout, due.clock, since)
            life.come_to(lambda: self._given(plan, due, as_dict(table.read(), plan.layout)))
            assert self.newest is not None
            if life.left is not None and due.clock > self.newest.clock and self.slow.random() < 0.8:
                # Before the log says so.
                raise Killed

        return Giver(log, plan.name, "out", opened, write, lambda: self.now, plan.delivery)

    def _given(self, plan: Plan, due: Due, values: Any) -> None:
        place, entry = self.places[plan.name], self.newest
        assert entry is not None
        last = max(place.given, default=BEGINNING)
        if due.clock <= last and place.keeps_record:
            return
        facts = {"task": plan.name, "clock": due.clock, "given": place.given}
        if self.delivery == AT_MOST_ONCE:
            must(due.clock > last, "at most once no clock is given twice", **facts)
        elif self.delivery == EXACTLY_ONCE:
            must(due.clock >= last, "clocks are given in their order", **facts)
        if due.clock > entry.clock:
            self.happened["given above the global clock"] += 1
            must(plan.delivery == AT_LEAST_ONCE, "what is given above the global clock may be void", **facts)
        if due.clock <= last:
            self.happened["given again"] += 1
        place.given.append(due.clock)
        if due.since == BEGINNING:
            # It is given every key, in place of what it has.
            place.mirror.clear()
        place.mirror.update(values)
        if due.clock < last or AT_MOST_ONCE in self.deliveries:
            return
        state, found = self._state(plan.name, entry, due.clock), place.mirror
        if plan.layout.kind.expires:
            state = self._closed(plan, entry, due.clock)
            found = {key: value for key, value in found.items() if key in state}
        if not isinstance(plan.layout.kind, Living):
            must(found == state, "a sink that was given all changes has it all", state=state, found=found, **facts)

    def _closed(self, plan: Plan, entry: Entry, clock: int) -> Any:
        """By key and window, what has closed at a clock and can still be told."""
        since = Since(BEGINNING, False, False, BEGINNING)
        table = state_at(self.files, self.application, entry, plan.name, plan.layout, clock, since)
        return as_dict(table.read(), plan.layout)

    # What must be true

    def _made(self, path: str) -> None:
        if not path.startswith(f"{self.application}/log/"):
            return
        before, self.newest = self.newest, from_bytes(bytes(self.disk.read(path)), path, self.newest)
        entry = self.newest
        must(before is None or entry.clock >= before.clock, "the global clock never goes back")
        if before is None or entry.epoch > before.epoch:
            self.began = {id: flow.progress.clock for id, flow in entry.flows.items()}
        if self.delivery == EXACTLY_ONCE:
            self._begin_where_needed(entry)
        for name, task in entry.tasks.items():
            flow = entry.flow_of(name)
            voided = {output: each.right_up_to for output, each in task.outputs.records.items() if not each.is_right}
            was = OutputState() if before is None else before.tasks[name].outputs
            self.happened["voided"] += any(last != was[output].right_up_to for output, last in voided.items())
            if self.delivery != MIXED:
                must(
                    self.delivery == AT_MOST_ONCE or not flow.source.planned,
                    "only at most once needs a plan",
                    task=name,
                )
            if self.delivery == AT_MOST_ONCE and before is not None and name in before.tasks and not self.leaves:
                was, now = (self._read(each.flow_of(name).source) for each in (before, entry))
                must(
                    all(end <= now[s] for s, end in was.items()), "at most once nothing is read again", was=was, now=now
                )
            if self.delivery == MIXED and before is not None and name in before.tasks:
                self._read_once(name, before, entry)
            kept = {clock for clock in entry.retained if clock <= min(entry.clock, flow.progress.clock)}
            if self.delivery not in (EXACTLY_ONCE, MIXED) and task.active and not self.leaves:
                # Nothing is ever voided.
                kept.update(clock for clock in task.stored.cuts if clock != BEGINNING)
            if before is not None and name in before.tasks and before.tasks[name].stored.runs == task.stored.runs:
                kept = {clock for clock in kept if (name, task.born, clock) not in self.was}
            for clock in kept:
                state = self._state(name, entry, clock)
                self._check_below(name, state, clock)
                was = self.was.setdefault((name, task.born, clock), state)
                must(state == was, "a checkpoint stays what it is", task=name, clock=clock, was=was, state=state)

    def _begin_where_needed(self, entry: Entry) -> None:
        """A replay begins at a message that the newest start has taken in: none below the clock of that start is one."""
        for id, flow in entry.flows.items():
            for partition, position in flow.source.positions.items():
                for first, _ in position.spans:
                    time = self.partitions.messages[partition][first].timestamp
                    facts = {"flow": id, "partition": partition, "position": position, "clock": self.began[id]}
                    must(time is not None and time >= self.began[id], "a replay begins no further back", **facts)

    def _read_once(self, name: str, before: Entry, entry: Entry) -> None:
        """What is in the state is taken in again by none but a start at least once, and nothing else may be left out."""
        was, now = before.tasks[name], entry.tasks[name]
        job = next(job for job in self.jobs if job.name == name)
        if entry.epoch != before.epoch and now.active and self.playing[name] == AT_MOST_ONCE:
            # All others are to be found in the state, or below its clock, at the end.
            source = before.flow_of(name).source
            for partition, end in source.planned.items():
                read = source.next_positions.get(partition, 0)
                self.given_up[name] |= {(partition, position) for position in range(read, end)}
        elif self.playing.get(name) != AT_LEAST_ONCE and job.kind == "list" and was.stored.runs != now.stored.runs:
            had, has = (self._state(name, each, END) for each in (before, entry))
            known = Counter(value for values in had.values() for value in values)
            added = Counter(value for values in has.values() for value in values) - known
            twice = {value for value in added if value in known or added[value] > 1}
            must(not twice, "what is in the state is not taken in again", task=name, twice=twice, known=known)

    def _check_below(self, name: str, state: Any, clock: int) -> None:
        """Nothing is in a checkpoint that is not below its clock, nor twice where that may not be."""
        job = next(job for job in self.jobs if job.name == name)
        sent = [m for messages in self.partitions.messages.values() for m in messages if m.timestamp is not None]
        below = job.fold(m for m in sent if m.timestamp < clock)
        facts = {"task": job, "clock": clock, "state": state, "below": below}
        if job.windowing is None and AT_LEAST_ONCE not in self.deliveries:
            must(is_below(state, below), "a checkpoint holds messages below its clock, once", **facts)
        elif job.kind == "list":
            must(
                all({*state[key]} <= {*below.get(key, ())} for key in state),
                "a checkpoint is of what is below it",
                **facts,
            )

    @staticmethod
    def _read(source: SourceState) -> dict[str, int]:
        """How far a source was read, or was about to be."""
        read, planned = source.next_positions, source.planned
        return {partition: max(read.get(partition, 0), planned.get(partition, 0)) for partition in {**read, **planned}}

    def _state(self, name: str, entry: Entry, clock: int) -> Any:
        return as_dict(
            seen_below(self.files, entry.tasks[name].stored.runs, self.layouts[name], clock), self.layouts[name]
        )

    def aside(self, job: Job) -> Counter[tuple[str, str, int]]:
        """The rows that were put aside: reason, partition and position, and how often."""
        assert self.newest is not None
        rows = [
            row
            for table in late_rows.read_all(self.files, self.newest.late_rows_of(job.name))
            for row in table.to_pylist()
        ]
        return Counter((row["reason"], row["strand"], row["position"]) for row in rows)

    def good(self, job: Job, on_time_only: bool = False) -> list[Sent]:
        """The messages that are in the state if they are not late, or only those that never are."""
        late = {(partition, at) for reason, partition, at in self.aside(job) if reason == LATE}
        found = []
        for messages in self.partitions.messages.values():
            top = -DELAY
            for m in messages:
                if m.timestamp is not None:
                    is_on_time = m.timestamp >= top - DELAY
                    top = max(top, m.timestamp)
                    if is_on_time if on_time_only else m.place not in late:
                        found.append(m)
        return found

    def total(self, job: Job) -> dict[Any, Any]:
        """By key, what was taken in: of windows, all that were given out and all that are still open."""
        assert self.newest is not None
        state = self._state(job.name, self.newest, self.newest.clock)
        if not job.is_windowed:
            return dict(state)
        found: Counter[Any] = Counter()
        for key, value in {**self.places[job.name].mirror, **state}.items():
            found[key[:1]] += value
        return dict(found)

    def fold(self, job: Job, messages: list[Sent]) -> dict[Any, Any]:
        """What the total is of these messages."""
        assert self.newest is not None
        if isinstance(job.windowing, TimeToLive):
            return windows.state_at(
                job, [m for m in messages if (m.timestamp or 0) < self.newest.clock], self.newest.clock
            )
        return job.fold(messages)
