"""One seed is one world: messages, tasks, drivers that live and die, and a store that misbehaves, the same each time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

import numpy as np
from greenlet import getcurrent, greenlet

from persistent_state import driver, keys
from persistent_state.batch import Basis
from persistent_state.clock import Position, Settings
from persistent_state.errors import (
    CommitUnknown,
    Damaged,
    Disagreement,
    Exists,
    Fenced,
    InvalidInput,
    StateError,
    StoreUnavailable,
)
from persistent_state.plan import Plan
from persistent_state.steps import shard as shard_step
from persistent_state.steps.combine import Blob, combine
from persistent_state.steps.shard import Descriptor, merge_shard
from persistent_state.store import pages, sides
from persistent_state.store import run as runs_io
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from tests.simulation.files import Disk, StagedFiles
from tests.simulation.messages import SCHEMA, UNFIT_VALUE, Job, Sent
from tests.simulation.oracle import Oracle, Terms, Violation, must
from tests.simulation.source import Strands, WorldSource

APPLICATION = "app"
START = 1_000_000
MOST_STEPS = 20_000


class Crash(BaseException):
    """The process is killed."""


@dataclass(eq=False)
class Thread:
    """Something that runs until it asks the store for something, and then lets others go first."""

    actor: Actor
    body: Callable[[], Any]
    is_worker: bool
    light: greenlet = field(init=False)
    pending: Callable[[], Any] | None = None
    waiting: list[Thread] = field(default_factory=list)
    wake: int = 0
    done: bool = False
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.body()
        except (Crash, StateError, FileNotFoundError) as error:
            self.error = error
        self.done = True


@dataclass(eq=False)
class Actor:
    """One start of the application: a driver, its workers, and their way to the store."""

    number: int
    world: World
    terms: Terms
    shards: int
    jobs: list[Job]
    closes: bool
    is_last: bool
    epoch: int = 0
    threads: list[Thread] = field(default_factory=list)
    cache: dict[tuple[str, int], Any] = field(default_factory=dict)
    fate: str = "lives"
    fate_step: int = 0
    over: bool = False
    finished: bool = False
    sabotaged: bool = False
    in_flight: dict[str, Basis] = field(default_factory=dict)

    def perform(self, operation: str, path: str, act: Callable[[], Any]) -> Any:
        """Do something to the store, when it is this thread's turn, if it works."""
        world, changes = self.world, operation in ("create", "delete")
        if operation == "create" and "/log/" in path and world.rng.random() < world.nap_rate:
            # The worst moment to fall asleep: all is decided, and the number may be taken before it is written.
            getcurrent().thread.wake = world.step + world.rng.choice([20, 60, 200])
        world.pause(act if changes else None)
        fate = world.fate()
        name = f"{self.number} {operation} {path}"
        if fate == "fails":
            if operation == "create" and world.rng.random() < 0.5:
                world.disk.tear(path, world.now)
            world.note(f"{name} fails")
            raise StoreUnavailable(f"{operation} {path} failed.")
        try:
            result = act()
        except (Exists, FileNotFoundError) as error:
            world.note(f"{name} {type(error).__name__}")
            if fate == "answer lost":
                raise StoreUnavailable(f"{operation} {path} was not answered.") from None
            raise
        world.note(name if fate is None else f"{name} {fate}")
        if fate == "answer lost" and changes:
            raise StoreUnavailable(f"{operation} {path} was not answered.")
        return result


class World:
    """All that one seed decides. `run` plays it to its end, with the oracle looking on."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.trace: list[str] = []
        self.step = 0
        self.now = START
        self.ids = 0
        self.disk = Disk()
        self.oracle = Oracle(self.disk, APPLICATION)
        self.disk.watch, self.disk.unwatch = self.oracle.hear, self.oracle.gone
        self.delayed: list[Callable[[], Any]] = []
        self.threads: list[Thread] = []
        self.actors: list[Actor] = []
        self.hub: greenlet = getcurrent()

        self.fault_rate = rng.choice([0.0, 0.0, 0.01, 0.04])
        self.faulty = self.fault_rate > 0
        self.sleep_rate = rng.choice([0.0, 0.01])
        self.nap_rate = rng.choice([0.0, 0.0, 0.15])
        self.collect_rate = rng.choice([0.0, 0.3, 1.0])
        self.few_hashes = rng.random() < 0.4
        self.growth = rng.choice([2, 1])
        self.skew = rng.choice([0.0, 0.0, 0.6])
        self.base = rng.choice([-400, 0, None, None])
        self.starts = rng.choice([1, 2, 3, 4])
        self.tick = rng.choice([1, 5, 20])
        self.most_rows = rng.choice([3, 8, 20])
        self.parts = rng.randint(1, 3)
        self.interval = rng.choice([10, 20, 50])
        self.delay = rng.choice([0, 20, 100, 300, 300])
        self.idle_after = rng.choice([200, 1000]) if rng.random() < 0.2 else None
        self.jump = rng.choice([200, 500]) if rng.random() < 0.15 else None
        self.keeping = driver.Keeping(rng.randint(1, 4), rng.choice([0, 0, 0, 50, 500]))
        self.sources = {f"s{i}": self._strands() for i in range(rng.choice([1, 1, 2]))}
        self.by_column = {name: rng.random() < 0.3 for name in self.sources}
        self.jobs = [self._job(i) for i in range(rng.choice([1, 1, 1, 2, 2, 3]))]
        for job in self.jobs:
            self.oracle.expect(job, self.sources[job.source])

    # What there is

    def _strands(self) -> Strands:
        rng = self.rng
        messages = {f"p{i}": self._messages(f"p{i}") for i in range(rng.randint(1, 3))}
        known = messages if rng.random() < 0.7 else ["p0"]
        there = rng.choice([0, 0, 1, 2]) / 3
        return Strands(
            messages=messages,
            visible={strand: int(len(messages[strand]) * there) for strand in known},
            share=rng.choice([1.0, 1.0, 0.7]),
            lists_channels=rng.random() < 0.6,
            ends=rng.random() < 0.5,
            vanishes=rng.random() < 0.2,
            chunk_rows=rng.choice([1, 4, 100]),
        )

    def _messages(self, strand: str) -> list[Sent]:
        """Mostly within the allowed delay of the newest before them in their channel, some late, some bad."""
        rng = self.rng
        pace, gaps, odd = rng.choice([5, 20, 60]), rng.random() < 0.4, rng.random() < 0.6
        tops = {
            f"{strand}c{i}": rng.choice([-400, 0, 0, 50]) if self.base is None else self.base
            for i in range(rng.choice([1, 1, 2]))
        }
        sent = []
        for position in range(rng.randint(3, 14)):
            channel = rng.choice(list(tops))
            top = tops[channel] + rng.randint(0, pace)
            if gaps and rng.random() < 0.1:
                top += rng.choice([300, 2000, 9000])
            behind = rng.choice([0, 0, rng.randint(0, self.delay), self.delay])
            timestamp: int | None = top - behind
            value: int | None = rng.randint(0, 99)
            broken = None
            kind = rng.random() if odd else 1.0
            if kind < 0.12:
                timestamp = top - self.delay - rng.choice([1, 50, 500])
            elif kind < 0.15:
                timestamp = None
            elif kind < 0.18:
                timestamp = rng.choice([10**9, 10**15, START + self.ahead + 100])
            elif kind < 0.22:
                value = UNFIT_VALUE
            elif kind < 0.26:
                value = None
            elif kind < 0.28:
                timestamp, broken = None, "no message"
            elif kind < 0.32:
                timestamp = top + rng.choice([201, 501, 700])
            if timestamp is not None and rng.random() < 0.3:
                timestamp = timestamp // self.interval * self.interval
            if timestamp is not None and timestamp < 10**6:
                tops[channel] = max(tops[channel], timestamp)
            k0 = rng.choice([None, 0, 1, 2, 3])
            k1 = rng.choice([None, "a", "b"])
            sent.append(Sent(strand, position, timestamp, k0, k1, channel, value, broken))
        return sent

    @property
    def ahead(self) -> int:
        return 100_000

    def _job(self, number: int) -> Job:
        rng = self.rng
        kind = rng.choice(["sum", "count", "struct", "map", "list", "list", "list"])
        ways = {"sum": ["value", "batch", "message", "reads"], "list": ["batch", "message", "reads"]}
        way = rng.choice(ways.get(kind, ["batch", "message"]))
        columns = rng.choice([(), (), ("k0",), ("k1",), ("k0", "k1")])
        source = rng.choice(list(self.sources))
        return Job(f"t{number}", source, kind, way, columns, by_strand=not self.by_column[source])

    def _terms(self) -> Terms:
        rng = self.rng
        return Terms(
            interval=rng.choice([self.interval, self.interval, 10, 15, 40]),
            delay=self.delay if rng.random() < 0.8 else rng.choice([0, 50, 200]),
            idle_after=self.idle_after,
            ahead=self.ahead,
            jump=self.jump,
            believe=3,
            keeping=self.keeping,
        )

    # What happens

    def run(self) -> None:
        """Play the world.

        Raises:
            Violation: something that the contract promises is not so.
        """
        runs_io._verified.clear()
        honest = keys.hash_keys

        def few(columns: Any, rows: int) -> Any:
            return honest(columns, rows) & np.uint64(0xF << 60)

        with (
            mock.patch.object(keys, "hash_keys", few if self.few_hashes else honest),
            mock.patch.object(shard_step, "GROWTH", self.growth),
            mock.patch.object(sides, "MANY", 2),
            mock.patch.object(pages, "TAIL", 3),
        ):
            self._play()
            self._audit()

    def _play(self) -> None:
        self._launch()
        while True:
            self.step += 1
            must(self.step < MOST_STEPS, "every world comes to an end", step=self.step)
            self.now += self.rng.randint(0, self.tick)
            if self.delayed and self.rng.random() < 0.05:
                self._late_arrival()
            newest = self.actors[-1]
            if newest.over and not (newest.finished and newest.is_last) and self.rng.random() < 0.3:
                self._launch()
            self.threads = [thread for thread in self.threads if not thread.done]
            ready = [t for t in self.threads if t.wake <= self.step and all(w.done for w in t.waiting)]
            if ready:
                self._disturb()
                self._switch(self.rng.choice(ready))
            elif newest.over and not self.threads:
                if newest.finished and newest.is_last:
                    break
            elif not any(t.wake > self.step for t in self.threads):
                must(newest.over, "no driver waits for ever", threads=len(self.threads))
        while self.delayed:
            self._late_arrival()

    def _switch(self, thread: Thread) -> None:
        if not thread.done:
            thread.light.switch()
        if thread.done and not thread.is_worker and not thread.actor.over:
            self._driver_thread_done(thread)

    def _driver_thread_done(self, thread: Thread) -> None:
        actor = thread.actor
        if thread.error is not None:
            self._check_error(actor, thread.error)
            self._kill(actor)
        elif thread is actor.threads[0]:
            actor.over = actor.finished = True
            self.note(f"{actor.number} finishes")

    def _check_error(self, actor: Actor, error: BaseException) -> None:
        """A driver gives up only for a reason."""
        self.note(f"{actor.number} stops: {type(error).__name__}: {error}")
        newest = self.oracle.newest
        superseded = newest is not None and newest.epoch > actor.epoch
        if isinstance(error, Fenced):
            must(superseded, "only a superseded driver is fenced", error=error)
        elif isinstance(error, Disagreement):
            # A task that does not hold the clock is moved with it, and the micro-batch that it has in flight is refused.
            moved = self.oracle.has_moved(actor.in_flight)
            must(superseded or actor.sabotaged or moved, "shards agree", error=error)
        elif isinstance(error, CommitUnknown):
            # Who sleeps until the entry after its own was collected can't tell any more what became of it.
            must(self.faulty or superseded or self.oracle.has_lost_numbers, "no error without a fault", error=error)
        elif isinstance(error, StoreUnavailable):
            must(self.faulty or superseded, "no error without a fault", error=error)
        elif isinstance(error, FileNotFoundError):
            must(superseded, "what is needed is not collected", error=error)
        elif not isinstance(error, InvalidInput) or actor is self.actors[-1]:
            raise error

    def _launch(self) -> None:
        number = len(self.actors)
        is_last = number + 1 >= self.starts
        if is_last:
            for strands in self.sources.values():
                strands.share = 1.0
        if number + 1 > self.starts:
            self.fault_rate = 0.0
        rng = self.rng
        jobs = [job for job in self.jobs if is_last or rng.random() < 0.9] or self.jobs[:1]
        closes = is_last or rng.random() < 0.3
        shards = self.actors[-1].shards if self.actors and rng.random() < 0.4 else rng.randint(1, 3)
        actor = Actor(number, self, self._terms(), shards, jobs, closes, is_last)
        actor.fate = rng.choice(["killed", "killed", "taken over", "taken over", "lives"])
        actor.fate_step = self.step + rng.choice([rng.randint(0, 60), rng.randint(30, 300)])
        self.actors.append(actor)
        self.note(f"{number} starts: shards={actor.shards} {actor.terms}")
        self._spawn(actor, lambda: self._drive(actor), is_worker=False)

    def _spawn(self, actor: Actor, body: Callable[[], Any], is_worker: bool) -> Thread:
        thread = Thread(actor, body, is_worker)
        thread.light = greenlet(thread.run, parent=self.hub)
        thread.light.thread = thread
        actor.threads.append(thread)
        self.threads.append(thread)
        return thread

    def _join(self, *threads: Thread) -> None:
        me = getcurrent().thread
        me.waiting = list(threads)
        self.hub.switch()
        me.waiting = []

    def pause(self, pending: Callable[[], Any] | None) -> None:
        """Let the others go first. Who is killed meanwhile may still have sent what is pending."""
        me = getcurrent().thread
        me.pending = pending
        self.hub.switch()
        me.pending = None

    def fate(self) -> str | None:
        if self.fault_rate and self.rng.random() < self.fault_rate:
            return self.rng.choice(["fails", "answer lost"])
        return None

    def _disturb(self) -> None:
        actor, rng = self.actors[-1], self.rng
        if actor.over or actor.is_last:
            return
        if self.step >= actor.fate_step and actor.fate == "killed":
            self.note(f"{actor.number} is killed")
            self._kill(actor)
        elif self.step >= actor.fate_step and actor.fate == "taken over":
            if rng.random() < 0.4:
                self._sleep(actor, rng.choice([50, 300, 3000]))
            self._launch()
        elif rng.random() < self.sleep_rate:
            self._sleep(actor, rng.choice([10, 100]))

    def _sleep(self, actor: Actor, steps: int) -> None:
        for thread in actor.threads:
            if not thread.done and self.rng.random() < 0.8:
                thread.wake = self.step + steps

    def _kill(self, actor: Actor) -> None:
        """The driver dies now; its workers now, soon, or when they have done their work."""
        actor.over = True
        for thread in actor.threads:
            if thread.done or (thread.is_worker and self.rng.random() < 0.5):
                if not thread.done:
                    thread.wake = self.step + self.rng.choice([0, 30, 500])
                continue
            if thread.pending is not None and self.rng.random() < 0.5:
                self.delayed.append(thread.pending)
            if thread.light:
                thread.light.throw(Crash)
            thread.done = True

    def _late_arrival(self) -> None:
        """What a killed process had sent reaches the store."""
        act = self.delayed.pop(self.rng.randrange(len(self.delayed)))
        self.note("something arrives late")
        with suppress(Exists):
            act()

    def note(self, text: str) -> None:
        self.trace.append(f"{self.step} {text}")

    def new_id(self) -> str:
        self.ids += 1
        return f"{self.ids:04x}"

    # What a driver does

    def _drive(self, actor: Actor) -> None:
        terms, writer = actor.terms, f"d{actor.number}"
        files = StagedFiles("sim://", disk=self.disk, stage=actor)
        settings = Settings(terms.interval, terms.delay, terms.idle_after, terms.ahead, terms.jump, terms.believe)
        plans: dict[str, Plan] = {}
        for job in actor.jobs:
            channel = None if job.by_strand else "c"
            task = job.task(self.oracle.reader(job.name, writer))
            emits = self.rng.random() < 0.2
            plans[job.name] = Plan(APPLICATION, files, task, SCHEMA, "ts", channel, settings, actor.shards, emits)
        log = Log(files, APPLICATION)
        entry = self._start(actor, log, plans, set())
        actor.epoch = entry.epoch
        threads = [
            self._spawn(actor, lambda j=job: self._read(actor, log, plans[j.name], j), False) for job in actor.jobs
        ]
        self._join(*threads)
        if actor.closes:
            self.oracle.claim(driver.close(log, actor.epoch, now=self.now, keeping=terms.keeping))

    def _start(self, actor: Actor, log: Log, plans: dict[str, Plan], anew: set[str]) -> Entry:
        writer = f"d{actor.number}"
        self.oracle.starting[writer] = actor.terms, plans, anew
        before = self.oracle.newest
        try:
            entry = driver.start(
                log,
                list(plans.values()),
                interval=actor.terms.interval,
                shards=actor.shards,
                writer=writer,
                now=self.now,
                anew=anew,
            )
        except InvalidInput:
            refused = self.oracle.left_behind(plans) - anew
            if not refused and self.oracle.newest is before:
                raise
            return self._start(actor, log, plans, anew | refused)
        self.oracle.claim(entry)
        return entry

    def _read(self, actor: Actor, log: Log, plan: Plan, job: Job) -> None:
        """Read a task's source to the end of what there is."""
        rng, strands = self.rng, self.sources[job.source]
        source = WorldSource(strands, rng, rng.choice([2, self.most_rows]), self.skew, plan.channel)
        entry = self._newest(actor, log)
        state = entry.tasks[job.name]
        source.open(pages.read(log.files, state.journal), {s: p.known for s, p in state.positions.items()})
        self.oracle.opened(job.name, actor.epoch, *source.opened)
        flushed = False
        while True:
            if rng.random() < 0.7:
                strands.grow(rng, self.most_rows)
            entry = self._newest(actor, log)
            positions = entry.tasks[job.name].positions
            start = {strand: positions.get(strand, Position()).next for strand in strands.visible}
            reach = source.reach(start, everything=rng.random() < (0.1 if any(start.values()) else 0.4))
            if reach.ends == start and rng.random() < 0.9:
                if strands.is_complete and start == strands.visible:
                    if flushed or rng.random() < 0.5:
                        return
                    flushed = True
                else:
                    self.now += self.tick
                    continue
            self._micro_batch(actor, log, plan, job, source, entry, start, reach)
            if rng.random() < self.collect_rate:
                for path in driver.collect(log, actor.epoch, now=self.now, keeping=actor.terms.keeping):
                    self.note(f"{actor.number} collected {path}")

    def _newest(self, actor: Actor, log: Log) -> Entry:
        entry = log.newest()
        if entry is None or entry.epoch != actor.epoch:
            raise Fenced("a newer driver owns the application.")
        return entry

    def _micro_batch(
        self, actor: Actor, log: Log, plan: Plan, job: Job, source: WorldSource, entry: Entry, start: Any, reach: Any
    ) -> None:
        basis = driver.plan_batch(entry, job.name, reach, self.now)
        self.oracle.batches[job.name, basis.epoch, basis.batch] = actor.in_flight[job.name] = basis
        worker = self._spawn(actor, lambda: self._work(actor, plan, source, basis, start, reach), is_worker=True)
        self._join(worker)
        if worker.error is not None:
            raise worker.error
        descriptors: list[Descriptor] = worker.result
        self.rng.shuffle(descriptors)
        sabotage = not actor.is_last and self.rng.random() < 0.02
        if sabotage:
            actor.sabotaged = True
            descriptors = descriptors[1:] if self.rng.random() < 0.5 else [*descriptors, self.rng.choice(descriptors)]
        entry = driver.commit(
            log, actor.epoch, descriptors, now=self.now, new_id=self.new_id, keeping=actor.terms.keeping
        )
        must(not sabotage, "a shard too few or too many is refused", shards=[d.shard for d in descriptors])
        self.oracle.claim(entry)
        self.oracle.emitted(job.name, entry, [d.values for d in descriptors if d.values])

    def _work(
        self, actor: Actor, plan: Plan, source: WorldSource, basis: Any, start: Any, reach: Any
    ) -> list[Descriptor]:
        """What the workers do: combine each part, merge each shard, some of them twice."""
        rng = self.rng
        splits = source.splits(start, reach.ends, self.parts) or [[]]
        blobs: list[list[Blob]] = [[] for _ in range(plan.shards)]
        for part, split in enumerate(splits):
            for shard, blob in enumerate(combine(plan, basis, part, len(splits), source.read(split))):
                blobs[shard].append(Blob.from_bytes(blob.to_bytes()) if rng.random() < 0.3 else blob)
        descriptors = []
        for shard, parts in enumerate(blobs):
            attempts = [self._attempt(actor, plan, shard, parts) for _ in range(2 if rng.random() < 0.15 else 1)]
            descriptors.append(rng.choice(attempts))
            if rng.random() < 0.8:
                actor.cache[plan.name, shard] = rng.choice(attempts).runs
        return descriptors

    def _attempt(self, actor: Actor, plan: Plan, shard: int, parts: list[Blob]) -> Descriptor:
        for _ in range(3):
            shuffled = self.rng.sample(parts, len(parts))
            cached = actor.cache.get((plan.name, shard)) if self.rng.random() < 0.8 else None
            try:
                return merge_shard(plan, shard, shuffled, cached, self.new_id)
            except StoreUnavailable as error:
                failed = error
        raise failed

    # What is looked at when all is over

    def _audit(self) -> None:
        """At the end every message is in the state or aside, and damage is never used."""
        self.oracle.finish(self.actors[-1].jobs)
        path = max(path for path in self.disk.files if path.startswith(f"{APPLICATION}/log/"))
        log = Log(self.oracle.files, APPLICATION)
        whole = bytes(self.disk.files[path])
        size = self.rng.randrange(len(whole))
        flipped = bytearray(whole)
        flipped[size] ^= 1 << self.rng.randrange(8)
        for broken in (whole[:size], bytes(flipped)):
            self.disk.files[path] = broken
            try:
                log.newest()
            except Damaged:
                continue
            raise Violation(f"a damaged entry is never used: {path} cut or changed at byte {size}")


def play(seed: int) -> World:
    """Play a world; if something is broken, say which seed shows it and what happened last."""
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        last = "\n".join(world.trace[-30:])
        raise Violation(
            f"seed {seed}: {type(error).__name__}: {error}\n{last}\npython -m tests.simulation {seed}"
        ) from error
    return world
