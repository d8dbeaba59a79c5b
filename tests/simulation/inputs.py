"""Tasks of a world that have several inputs: which they have at each start, and their plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa

from persistent_state.application import Application
from persistent_state.batch.plan import Plan
from persistent_state.edges.changes import Changes
from persistent_state.edges.closed_windows import ClosedWindows
from persistent_state.event_time.clocks import BEGINNING, END, Bounds, Settings
from persistent_state.inputs import Input
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.task import PersistentTask
from persistent_state.windows import SessionWindow, SlidingWindow, TimeToLive, Windowing
from tests import core
from tests.core import us
from tests.simulation.messages import FED, GROUPS, MONOIDS, ORDERED, Job
from tests.simulation.source import Partitions, Several, WorldSource

if TYPE_CHECKING:
    from tests.simulation.actor import Actor

NAMES = ("", "a", "b")
"""The names of inputs. Their order in a task is not this one."""

HISTORY = "a"
"""The name of an input that is history."""


class Coming:
    """The inputs of tasks: they come at a start, and some leave at one."""

    def __init__(self, rng: Random, sources: Mapping[str, Partitions]) -> None:
        self.rng = rng
        self.sources = sources
        self.of: dict[str, Several] = {}
        """By task: the partitions of all inputs that it may ever have."""
        self.since: dict[str, dict[str, int]] = {}
        """By task and input: the start from which on it is there."""
        self.left: dict[str, set[str]] = {}
        """By task: the inputs that have left for ever."""
        self.stay: set[str] = set()
        """The tasks whose inputs never leave."""
        self.bounds: dict[str, Bounds] = {}
        """By input: its bounds, where inputs have some."""
        self.over: dict[str, set[str]] = {}
        """By task: the inputs that are left out since the clock has passed their bound."""
        self.unbound: set[str] = set()
        """The tasks whose inputs have lost their bounds since the clock has passed them."""

    def given(self, job: Job, comes: bool = True) -> Job:
        """The task with inputs, if it has several. They come and leave, or are all there from the first start on."""
        rng = self.rng
        if self.of and rng.random() < 0.3:
            return job
        names = rng.sample(NAMES, rng.choice([2, 2, 3]))
        # One source may be two inputs.
        self.of[job.name] = Several({name: self.sources[rng.choice([*self.sources])] for name in names})
        first = rng.choice(names)
        self.since[job.name] = {name: 0 if name == first else rng.choice([0, 0, 0, 1, 2]) for name in names}
        self.left[job.name] = set()
        if not comes:
            self.since[job.name], self.stay = dict.fromkeys(names, 0), {*self.stay, job.name}
        by_partition = not any(partitions.by_column for partitions in self.of[job.name].inputs.values())
        if rng.random() < 0.5:
            job = replace(job, kind=rng.choice(ORDERED), way="batch" if job.way == "value" else job.way)
        return replace(job, source=job.name, inputs=tuple(names), by_partition=by_partition)

    def paired(self, job: Job, names: Sequence[str]) -> Job:
        """The task with inputs of these names, which are there in each start. In which order it is given them says nothing."""
        given = self.rng.sample(names, len(names))
        self.of[job.name] = Several({name: self.sources[self.rng.choice([*self.sources])] for name in given})
        self.since[job.name], self.left[job.name] = dict.fromkeys(given, 0), set()
        self.stay |= {job.name}
        by_partition = not any(partitions.by_column for partitions in self.of[job.name].inputs.values())
        return replace(job, source=job.name, inputs=tuple(names), by_partition=by_partition)

    def backfilled(self, job: Job) -> Job:
        """The task with history and an input that goes on from a bound on."""
        rng, names = self.rng, self.rng.sample(("", HISTORY), 2)
        history, live = self.sources.values()
        self.of[job.name] = Several({name: history if name == HISTORY else live for name in names})
        self.since[job.name], self.left[job.name], self.over[job.name] = dict.fromkeys(names, 0), set(), set()
        self.stay |= {job.name}
        if rng.random() < 0.5:
            job = replace(job, kind=rng.choice(ORDERED), way="batch" if job.way == "value" else job.way)
        by_partition = not (history.by_column or live.by_column)
        return replace(job, source=job.name, inputs=tuple(names), by_partition=by_partition)

    def draw_bound(self, interval: int) -> None:
        """Let the first source be history up to some time, and the other one go on from there."""
        rng, (history, live) = self.rng, self.sources.values()
        history.finite, history.share, history.forgets = True, 1.0, 0.0
        history.visible = {partition: len(sent) for partition, sent in history.messages.items()}
        for each in (history, live):
            each.ends = each.vanishes = False
        sent = [m for each in (history, live) for some in each.messages.values() for m in some]
        bound = rng.choice([m.timestamp for m in sent if m.timestamp is not None and m.timestamp < 10**6])
        bound = bound // interval * interval if rng.random() < 0.3 else bound + rng.choice([0, 0, 1])
        keep = rng.random() < 0.5
        self.bounds = {HISTORY: Bounds(below=bound, keep=keep), "": Bounds(since=bound, keep=keep)}

    def bounds_of(self, task: str, input: str) -> Bounds:
        """The bounds of an input in a start."""
        return Bounds() if task in self.unbound else self.bounds.get(input, Bounds())

    def pass_bound(self, newest: Entry | None) -> None:
        """Leave out history that the clock has passed, in the starts that follow, and then the bound of what goes on.

        Below its bound history is given again: the application went back.
        """
        for task, over in self.over.items():
            if newest is None or task not in newest.tasks:
                continue
            clock = min(newest.clock, newest.flow_of(task).progress.clock)
            if self._is_below(task, newest):
                over.clear()
                self.unbound.discard(task)
            elif clock >= self.bounds[""].since and self.rng.random() < 0.4:
                self.unbound |= {task} if over and self.rng.random() < 0.5 else set()
                over.add(HISTORY)

    def lacks_history(self, newest: Entry | None) -> bool:
        """Whether history is left out of which something is to be read: the application went back below its bound."""
        return newest is not None and any(over and self._is_below(task, newest) for task, over in self.over.items())

    def _is_below(self, task: str, newest: Entry) -> bool:
        """Whether the log says that a task has history, and is below its bound."""
        flow = newest.flow_of(task) if task in newest.tasks else None
        return (
            flow is not None
            and HISTORY in flow.inputs
            and min(newest.clock, flow.progress.clock) < self.bounds[""].since
        )

    def is_in_history(self, newest: Entry) -> bool:
        """Whether the global clock has yet to come to the bound of history."""
        return newest.clock < self.bounds[""].since

    @property
    def is_over(self) -> bool:
        """Whether history is left out of some task."""
        return any(self.over.values())

    def with_fed(self, jobs: Sequence[Job], unit: int, few_hashes: bool) -> list[Job]:
        """The tasks, of which the last may be fed by the first, too. Fixed times are multiples of a unit."""
        first, last, rng = jobs[0], jobs[-1], self.rng
        if first is last or rng.random() < 0.3:
            return [*jobs]
        if not last.inputs:
            self.of[last.name] = Several({"": self.sources[last.source]})
            self.since[last.name], self.left[last.name] = {"": 0}, set()
        every = Changes(first.name, every=us(unit * rng.choice([1, 1, 2, 3])))
        what = rng.choice(["now", "every", "pairs", "pairs", *(["closed", "closed"] if first.is_windowed else [])])
        if what == "now":
            first = replace(first, windowing=None)
        windowing: Windowing | None = None
        kinds = [*GROUPS]
        if what in ("pairs", "closed"):
            length = rng.choice([7, 20, 60, 150, 400])
            windowing = rng.choice(
                [SlidingWindow(us(length), us(length)), SessionWindow(us(length)), TimeToLive(length)]
            )
            # Of the windows of a key that change at one time, none is the first.
            is_ordered = what == "closed" or not first.is_windowed
            kinds += ORDERED if is_ordered else ()
            if rng.random() < 0.5 and (what == "closed" or is_ordered):
                windowing, kinds = None, kinds if what == "closed" else [*ORDERED]
        kind = rng.choice(kinds)
        # Keys of one hash have no order.
        all_keys = few_hashes and kind in ORDERED
        fed = replace(
            last,
            inputs=last.inputs or ("",),
            fed={"now": Changes(first.name), "closed": ClosedWindows(first.name)}.get(what, every),
            kind=kind,
            way=rng.choice(["batch", "message"]),
            keys=first.keys if all_keys else tuple(rng.sample(first.keys, rng.randint(0, len(first.keys)))),
            windowing=windowing,
            horizon=None,
        )
        return [first, *jobs[1:-1], fed]

    def with_source(self, job: Job) -> Job:
        """The task as one that may have several inputs, of which its source is one."""
        if job.inputs:
            return job
        self.of[job.name] = Several({"": self.sources[job.source]})
        self.since[job.name], self.left[job.name], self.stay = {"": 0}, set(), {*self.stay, job.name}
        return replace(job, source=job.name, inputs=("",))

    def terms(self) -> dict[str, tuple[int | None, int | None]]:
        """By input: its own allowed delay and its own idle time at a start, or None."""
        rng = self.rng
        return {name: (rng.choice([None, 0, 20, 300]), rng.choice([None, None, None, 50, 400])) for name in NAMES}

    def at_start(self, number: int, is_alone: bool) -> dict[str, tuple[str, ...]]:
        """By task: the inputs that it has at a start. An input leaves only if nobody else is there who still has it."""
        found = {}
        for task, since in self.since.items():
            there = [name for name, start in since.items() if start <= number and name not in self.left[task]]
            if number and is_alone and task not in self.stay and len(there) > 1 and self.rng.random() < 0.3:
                self.left[task].add(self.rng.choice(there))
            gone = self.left[task] | self.over.get(task, set())
            found[task] = tuple(name for name in there if name not in gone)
        return found


def plan_of(
    job: Job, task: PersistentTask, coming: Coming, actor: Actor, files: Files, settings: Settings, emits: bool
) -> Plan:
    """The plan of a task, as an application makes it of the inputs that a start gives it."""
    name, of = job.name, inputs_of(job, coming, actor)
    application = Application(
        "app",
        "memory://none",
        checkpoint_interval=us(actor.interval or settings.interval),
        allowed_delay=us(settings.delay),
        idle_after=settings.idle_after and us(settings.idle_after),
        alignment=settings.alignment and us(settings.alignment),
        max_ahead=us(settings.ahead),
        max_jump=settings.jump and us(settings.jump),
    )
    if job.fed:
        upstream = next(each for each in actor.jobs if is_of(job.fed.task, each))
        task_of = upstream.ordered.task() if upstream.ordered else upstream.task(lambda *_: None)
        application.add(task_of, inputs_of(upstream, coming, actor))
        of[FED] = Input(job.fed, batch=None if job.ordered else partial(updates_of, job))
        emits = False
    if job.ordered is not None:
        application.add(job.ordered.task(), of, without=[*coming.left[name]])
    else:
        application.add(task, of, without=[*coming.left[name]])
    plan = core.compiled(application, files, actor.shards)[name]
    # The clocks that its world keeps apart, and what no application can say.
    own = {"believe": settings.believe, "interval": settings.interval, "every": settings.every}
    inputs = {input: replace(each, settings=replace(each.settings, **own)) for input, each in plan.inputs.items()}
    of_each = {input: each.settings for input, each in inputs.items()} if plan.has_names else {}
    return replace(plan, inputs=inputs, emits=emits, settings=replace(plan.settings, **own, inputs=of_each))


def is_of(task: str, job: Job) -> bool:
    """Whether a task of the graph is this one, or of the ordered task whose messages wait in this one."""
    return task == job.name or (job.ordered is not None and task in job.ordered.parts)


def inputs_of(job: Job, coming: Coming, actor: Actor) -> dict[str, Input]:
    """The sources that a start gives a task."""
    found: dict[str, Input] = {}
    for name in actor.inputs.get(job.name, ("",)):
        partitions = coming.of[job.name].of(name) if job.inputs else coming.sources[job.source]
        source = WorldSource(partitions, coming.rng, 0, channel="c" if partitions.by_column else None)
        bounds = coming.bounds_of(job.name, name)
        source = source if bounds.since == BEGINNING else source.from_(bounds.since, keep=bounds.keep)
        source = source if bounds.below == END else source.below(bounds.below, keep=bounds.keep)
        delay, idle_after = actor.terms.inputs[name] if job.inputs else (None, None)
        found[name] = Input(
            source,
            allowed_delay=None if delay is None else us(delay),
            idle_after=None if idle_after is None else us(idle_after),
        )
    return found


def updates_of(job: Job, batch: pa.RecordBatch) -> pa.Array:
    """What a task makes of the rows of a task that feeds it."""
    return MONOIDS[job.kind].to_arrow([job.update_of(row) for row in batch.to_pylist()])
