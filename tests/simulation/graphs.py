"""Tasks of a world that other tasks feed: which there are, their steps, and what must be true of them after every entry.

What a derived task is at a clock follows from what the task that feeds it is there, and in the end from the messages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import monoids
from persistent_state.application import Application
from persistent_state.batch.plan import FlowPlan, InputPlan, Plan
from persistent_state.edges import base
from persistent_state.edges import parts as in_order
from persistent_state.edges.base import Edge
from persistent_state.edges.changes import Changes
from persistent_state.edges.closed_windows import ClosedWindows
from persistent_state.edges.emitted import Emitted
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import keys as hashes
from persistent_state.partials.layout import one_chunk
from persistent_state.protocol import graph
from persistent_state.setup import graph as tasks_graph
from persistent_state.sources.files import FileSource
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.state import NonWindowState, PersistentState, WindowState
from persistent_state.store.entry import Entry
from persistent_state.store.state_at import seen_below
from persistent_state.task import Message, PersistentTask
from persistent_state.windows import WINDOW, SessionWindow, SlidingWindow, TimeToLive, Windowing
from tests import core
from tests.core import micros, us
from tests.simulation import windows
from tests.simulation.files import PlainFiles
from tests.simulation.messages import FED, PAIR, Job, Row, number_of

if TYPE_CHECKING:
    from tests.simulation.oracle import Judge
    from tests.simulation.ordered import Orders, Part

NUMBERS = {"struct": ("count", "min", "max")}
"""By the kind of a task, the columns of its value that can be keys."""

STRUCTS = ("struct", "both", "most")
"""The kinds of tasks whose value is a struct. The others have a column `value`."""

GROUPS = ("rows", "total", "both")
"""The kinds of derived tasks whose monoid is an exact group."""


@dataclass(frozen=True)
class Derived:
    """A task that another task feeds, as the oracle sees it. To the oracle's windows it is a `Job` whose messages are rows.

    `kind` says what it counts: the `rows`, the `total` of their numbers, `both`, or the `most` too; or it is `told` all.
    """

    name: str
    source: Edge
    kind: str
    way: str
    keys: tuple[str, ...]
    windowing: Windowing | None = None
    beside: Edge | None = None
    version: int = 0
    """The version of the code that says what is made of a row."""

    @property
    def inputs(self) -> dict[str, Edge]:
        """By name: what feeds it."""
        return {"": self.source} if self.beside is None else {"one": self.source, "other": self.beside}

    @property
    def upstream(self) -> list[str]:
        """The tasks that feed it."""
        return [source.task for source in self.inputs.values()]

    @property
    def is_made_of_state(self) -> bool:
        """Whether it is a function of the state that feeds it: what it made of rows that are gone was taken back."""
        return isinstance(self.source, Changes) and self.windowing is None and self.kind in GROUPS

    @property
    def is_fed_pairs(self) -> bool:
        """Whether a change is one row to it, with what was before and what is after."""
        return isinstance(self.source, Changes) and not self.is_made_of_state

    @property
    def is_windowed(self) -> bool:
        return isinstance(self.windowing, (SlidingWindow, SessionWindow))

    @property
    def monoid(self) -> monoids.Monoid[Any]:
        if self.kind == "rows":
            return monoids.Count()
        if self.kind == "total":
            return monoids.Sum()
        if self.kind == "told":
            return monoids.Map(pa.string(), monoids.Count())
        parts = {"rows": monoids.Count(), "total": monoids.Sum(), "most": monoids.Max()}
        return monoids.Struct(**{self.column(name): parts[name] for name in self.parts})

    @property
    def zero(self) -> Any:
        return self.monoid.zero

    @property
    def parts(self) -> tuple[str, ...]:
        return ("rows", "total", "most") if self.kind == "most" else ("rows", "total")

    def column(self, part: str) -> str:
        """The name of a part of the value. No other task has it, so that it may be the key of one that this one feeds."""
        return f"{part}_{self.name}"

    def update_of(self, timestamp: int, row: Mapping[str, Any]) -> Any:
        if self.kind == "told":
            return {repr((timestamp, _told({**row, TIMESTAMP: None}))): 1}
        number, count = number_of(row) * (1 + self.version), 1 + self.version
        if self.kind in ("rows", "total"):
            return count if self.kind == "rows" else number
        values = {"rows": count, "total": number, "most": number}
        return {self.column(part): values[part] for part in self.parts}

    # As the oracle's windows ask it

    def key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row.columns[key] for key in self.keys)

    def updates_of(self, row: Row) -> list[Any]:
        return [self.update_of(row.timestamp, row.columns)]

    def fold(self, rows: Iterable[Row]) -> dict[tuple[Any, ...], Any]:
        found: dict[tuple[Any, ...], Any] = {}
        for row in rows:
            key, (value,) = self.key_of(row), self.updates_of(row)
            found[key] = self.monoid.plus(found[key], value) if key in found else value
        return found

    # As a user would write it

    def task(self) -> PersistentTask:
        return (InBatches if self.way == "batch" else ByRow)(self)


def _told(value: Any) -> Any:
    """The same for a row as a task sees it and as the oracle does."""
    if isinstance(value, Mapping):
        return sorted((name, _told(each)) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(map(_told, value))
    return micros(value) if isinstance(value, datetime) else value


class _Fed(PersistentTask):
    def __init__(self, derived: Derived) -> None:
        self.derived, self.name, self.key = derived, derived.name, derived.keys or None
        self.version = derived.version or None

    def persistent_state(self) -> NonWindowState[Any] | WindowState[Any]:
        monoid, windowing = self.derived.monoid, self.derived.windowing
        if windowing is None or isinstance(windowing, TimeToLive):
            return NonWindowState(monoid, ttl=windowing and us(windowing.ttl))
        return WindowState(monoid, windowing)


class InBatches(_Fed):
    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        derived = self.derived
        rows = batch.to_pylist()
        return derived.monoid.to_arrow([derived.update_of(micros(row[TIMESTAMP]), row) for row in rows])


class ByRow(_Fed):
    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, self.derived.update_of(message.timestamp, message))


def drawn(rng: Random, jobs: Sequence[Job]) -> list[Derived]:
    """Tasks that are fed by these and by each other, each after the one that feeds it."""
    every: list[Job | Derived] = [*jobs]
    derived: list[Derived] = []
    for number in range(rng.choice([1, 2, 3, 4])):
        # A chain, or several that read one.
        upstream = every[-1] if derived and rng.random() < 0.4 else rng.choice(every)
        source: Edge = (ClosedWindows if upstream.windowing else Changes)(upstream.name)
        # Those that are given one object are one flow.
        source = next((d.source for d in derived if d.source == source and rng.random() < 0.3), source)
        windowing: Windowing | None = None
        kinds = ["rows", "total", "both", "both"]
        if upstream.windowing:
            kinds.append("most")
            if rng.random() < 0.5:
                length = us(rng.choice([7, 20, 60, 150, 400]))
                windowing = SlidingWindow(length, length) if rng.random() < 0.7 else SessionWindow(length)
        columns = [*upstream.keys, *_number_columns(upstream)]
        if upstream.windowing and windowing is None:
            columns.append("window_start")
        keys = tuple(rng.sample(columns, min(len(columns), rng.choice([0, 1, 1, 2]))))
        way = rng.choice(["batch", "message"])
        derived.append(Derived(f"d{number}", source, rng.choice(kinds), way, keys, windowing))
        every.append(derived[-1])
    return derived


def drawn_every(rng: Random, jobs: Sequence[Job], unit: int) -> list[Derived]:
    """Tasks of which most are fed what changes from one multiple of some `every` to the next."""
    tasks: list[Job | Derived] = [*jobs]
    derived: list[Derived] = []
    for number in range(rng.choice([1, 2, 3, 4])):
        upstream = tasks[-1] if derived and rng.random() < 0.5 else rng.choice(tasks)
        source: Edge = Changes(upstream.name, every=us(unit * rng.choice([1, 1, 2, 3])))
        last = derived[-1].source if derived else source
        if every_in(last) is None and isinstance(last, Changes) and rng.random() < 0.4:
            # Two are fed together whatever changes, and often one of them feeds a task every so often.
            upstream, source = next(task for task in tasks if task.name == last.task), last
        elif upstream.is_windowed and rng.random() < 0.15:
            source = ClosedWindows(upstream.name)
        elif upstream.windowing is None and rng.random() < 0.3:
            source = Changes(upstream.name)
        is_group = source == Changes(upstream.name) or rng.random() < 0.4
        windowing: Windowing | None = None
        if not is_group and rng.random() < 0.6:
            length = rng.choice([7, 20, 60, 150, 400])
            step = rng.choice([length, length // 2 + 1])
            windowing = rng.choice([SlidingWindow(us(length), us(step)), SessionWindow(us(length)), TimeToLive(length)])
        kinds = GROUPS if is_group else ("told", "told", "most", *(GROUPS if windowing else ()))
        kind = rng.choice(kinds)
        columns = columns_of(upstream, is_group or isinstance(source, ClosedWindows))
        if isinstance(windowing, (SlidingWindow, SessionWindow)):
            columns = [column for column in columns if column not in WINDOW]
        keys = tuple(rng.sample(columns, min(len(columns), rng.choice([0, 1, 1, 2]))))
        way = rng.choice(["batch", "message"])
        beside: Edge | None = None
        if isinstance(source, Changes) and rng.random() < 0.3:
            other = rng.choice(tasks)
            is_free = is_group and other.windowing is None and rng.random() < 0.3
            beside = Changes(other.name, None if is_free else us(unit * rng.choice([1, 1, 2, 3])))
            keys = tuple(key for key in keys if key in columns_of(other, is_group))
        source = next((d.source for d in derived if d.source == source and rng.random() < 0.4), source)
        derived.append(Derived(f"d{number}", source, kind, way, keys, windowing, beside))
        tasks.append(derived[-1])
    return derived


def drawn_versions(rng: Random, jobs: Sequence[Job], unit: int) -> list[Derived]:
    """Tasks that are made of state, so that their code may change: each has all that it needs to be built again.

    In most worlds two of them are made of one task, and another of both.
    """
    first = rng.choice(jobs)
    tasks: list[Job | Derived] = [first]
    derived: list[Derived] = []
    shape = rng.choice([[0, 0], [0, 0], [0, 1], [0, 0, 1]])
    for upstream, beside in [*((place, None) for place in shape), (len(shape) - 1, len(shape)), (len(shape) + 1, None)]:
        fed = [tasks[place] for place in (upstream, beside) if place is not None]
        source, *other = (Changes(task.name, rng.choice([None, None, us(unit), us(2 * unit)])) for task in fed)
        columns = [column for column in columns_of(fed[0], True) if all(column in columns_of(t, True) for t in fed)]
        keys = tuple(rng.sample(columns, min(len(columns), rng.choice([0, 1, 1, 2]))))
        way = rng.choice(["batch", "message"])
        name, kind = f"d{len(derived)}", rng.choice(GROUPS)
        derived.append(Derived(name, source, kind, way, keys, beside=other[0] if other else None))
        tasks.append(derived[-1])
    return derived[: rng.choice([len(derived), len(derived) - 1])]


def is_diamond(derived: Derived | Part, tasks: Mapping[str, Derived | Part]) -> bool:
    """Return whether a task is made of two that are made of one, and none of the two of the other."""
    above = {name: of_all(name, tasks) for name in derived.upstream}
    apart = all(one == other or one not in above[other] for one in above for other in above)
    return len(above) > 1 and apart and bool(set.intersection(*above.values()))


def of_all(name: str, tasks: Mapping[str, Derived | Part]) -> set[str]:
    """Return the task and all that it is made of."""
    upstream = tasks[name].upstream if name in tasks else []
    return {name}.union(*(of_all(each, tasks) for each in upstream))


def columns_of(task: Job | Derived, has_numbers: bool) -> list[str]:
    """The columns of the rows of a task that can be keys. In pairs those of the value can't."""
    return [*task.keys, *(WINDOW if task.is_windowed else ()), *(_number_columns(task) if has_numbers else ())]


def every_of(interval: int, jobs: Sequence[Job], derived: Sequence[Derived | Part]) -> tuple[int, dict[str, int]]:
    """The time between the clocks of an application of these tasks, and by task that of the clocks that it keeps apart."""
    application = Application("app", "memory://", checkpoint_interval=us(interval))
    for job in jobs:
        source = FileSource("events", timestamp="ts")
        inputs = {"": source, FED: job.fed} if isinstance(job.fed, Changes) else source
        application.add(job.task(lambda *read: None), inputs)
    for each in derived:
        application.add(each.task(), each.source if len(each.inputs) == 1 else each.inputs)
    times = tasks_graph.every(tasks_graph.topological(application.added), interval)
    apart = {name: math.gcd(*own) for name, own in times.items() if own}
    return tasks_graph.common_interval(times, interval), apart


def _number_columns(task: Job | Derived) -> tuple[str, ...]:
    if isinstance(task, Job):
        return NUMBERS.get(task.kind, ())
    return tuple(map(task.column, task.parts)) if task.kind in STRUCTS else ()


def with_upstream(derived: Sequence[Derived | Part], names: Collection[str]) -> list[Derived | Part]:
    """Those of them whose upstream is there, given the names of the tasks that sources feed."""
    there, found = {*names}, []
    for each in derived:
        if there.issuperset(each.upstream):
            there.add(each.name)
            found.append(each)
    return found


# The part of the driver and its workers


def plans_of(
    derived: Sequence[Derived | Part],
    plans: Mapping[str, Plan],
    outputs: Callable[[Derived | Part], tuple[str, ...]],
    apart: Mapping[str, int],
) -> dict[str, Plan]:
    """The plans of derived tasks, by the plans of those that sources feed. Each keeps the multiples of its time `apart`."""
    every, found = dict(plans), {}
    like = next(iter(plans.values()))
    for each in derived:
        # No clock is broken.
        settings = replace(like.settings, ahead=2**62, jump=None, every=apart.get(each.name))
        plan = replace(
            like, task=each.task(), inputs={}, settings=settings, emits=False, outputs=outputs(each), without=(),
            feeders={name: every[source.task] for name, source in each.inputs.items()},
        )  # fmt: skip
        plan = in_order.on_feeders(plan)
        of_inputs: Mapping[str, InputPlan] = {
            name: InputPlan(
                name, plan.task, source.schema(plan.feeders[name], plan.task), TIMESTAMP, None, settings, edge=source
            )
            for name, source in each.inputs.items()
        }
        plan, of_inputs = in_order.on_inputs(plan, of_inputs)
        if len(of_inputs) == 1:
            plan = replace(plan, task=of_inputs[""].task, inputs=of_inputs)
        else:
            inputs = {name: replace(of, among=tuple(of_inputs)) for name, of in of_inputs.items()}
            plan = replace(plan, inputs=inputs, settings=replace(settings, inputs=dict.fromkeys(inputs, settings)))
        # What is worked out of a plan once stays with it.
        core.check(plan)
        base.check(plan)
        every[each.name] = found[each.name] = plan
    return found


def flows_of(plans: Mapping[str, Plan]) -> list[FlowPlan]:
    """The flows of derived tasks: those that are given one object, and the same rows of it, are one."""
    given: dict[Any, list[Plan]] = {}
    for plan in plans.values():
        shared = plan.name if plan.has_names else (id(plan.upstream[""]), plan.takes_back)
        given.setdefault(shared, []).append(plan)
    return [FlowPlan(tuple(some)) for some in given.values()]


def in_their_order(flows: Sequence[FlowPlan]) -> list[FlowPlan]:
    """These flows so that each comes after those that feed it."""
    found: list[FlowPlan] = []
    while len(found) < len(flows):
        there = {name for flow in found for name in flow.by_name}
        fed = (flow for flow in flows if flow not in found)
        found.append(next(f for f in fed if there.issuperset(source.task for source in f.first.upstream.values())))
    return found


# The part of the oracle


@dataclass(frozen=True)
class Made:
    """Of which life of its upstream a derived task is made, and from when on its windows are.

    An ordered task may begin with messages that are from before: with those from `first` on.
    """

    born: int
    of: Any
    life: object
    first: int


class Graphs:
    """What the oracle knows of derived tasks: `hear` is called with every entry, after all else is judged."""

    def __init__(self, judges: Mapping[str, Judge], files: PlainFiles, must: Callable[..., None]) -> None:
        self.judges = judges
        self.files = files
        self.must = must
        self.derived: dict[str, Any] = {}
        self.orders: Orders
        self.made: dict[str, Made] = {}
        self.lives: dict[str, Any] = {}
        """By task that sources feed, from which clock on it has its messages, in a life of its own if it was built again."""
        self.layouts: dict[str, Any] = {}
        self.found: dict[Any, Any] = {}
        """What was read of a task's runs at a clock."""
        self.values: dict[Any, Any] = {}
        """What tasks are at clocks by the messages, as long as no start takes back any, and all have caught up."""
        self.happened: Counter[str] = Counter()
        self.mixed: dict[str, Job] = {}
        """By name: the tasks that sources and another task feed."""

    def fed_by_sources(self, names: Iterable[str]) -> list[str]:
        """Those of these tasks that sources feed."""
        return [name for name in names if name not in self.derived]

    def is_made_of_state(self, name: str) -> bool:
        return (name in self.derived or name in self.mixed) and bool(self.job(name).is_made_of_state)

    def is_fed_by_windows(self, name: str) -> bool:
        if name in self.mixed:
            return not isinstance(self.mixed[name].fed, Changes)
        if name not in self.derived:
            return False
        return not any(isinstance(source, Changes) for source in self.derived[name].inputs.values())

    def missed(self, names: Iterable[str], newest: Entry) -> set[str]:
        """The tasks that can't go on, since clocks have passed without them at which there was something to be told."""
        found = set()
        for name in (name for name in names if name in newest.tasks and name in {*self.derived, *self.mixed}):
            is_fed_pairs = (self.mixed.get(name) or self.derived[name]).is_fed_pairs
            if is_fed_pairs and self.stands(name, newest) < newest.clock:
                found.add(name)
                self.happened["missed what has changed"] += 1
        return found

    def stands(self, name: str, entry: Entry) -> int:
        """The clock up to which a task has all that other tasks gave."""
        own = entry.flow_of(name).visited
        return self.made[name].born if own == BEGINNING else own

    def lost(self, names: Collection[str], newest: Entry | None, named: Collection[str]) -> set[str]:
        """The tasks that a start would build again unasked, and which nobody can give again what they were given.

        `named` are those that the start names. Whoever feeds a task is named for itself only.
        """
        return {name for name, loses in self._begin_anew(names, newest, named).items() if loses}

    def unasked(self, names: Collection[str], newest: Entry | None, named: Collection[str]) -> set[str]:
        """The tasks of several inputs that a start lets begin anew unasked, as they have nothing yet."""
        begin = self._begin_anew(names, newest, named)
        return {name for name, loses in begin.items() if name in self.mixed and not loses}

    def _begin_anew(self, names: Collection[str], newest: Entry | None, named: Collection[str]) -> dict[str, bool]:
        """The known tasks that a start lets begin anew though it does not name them, and whether each would lose something."""
        known_before = newest.tasks if newest else {}
        found, anew = dict[str, bool](), {name for name in names if name not in known_before or name in named}
        for name in self._in_order(names):
            known, upstream = self.made.get(name), self._upstream_of(name)
            of = [*map(self._life_of, upstream)] if known else []
            if newest is None or known is None or name in anew or (known.of == of and anew.isdisjoint(upstream)):
                continue
            anew.add(name)
            if name in self.mixed:
                # What a source gave can't be given again unasked, nor what it gives while the task is away.
                is_away = not newest.tasks[name].active
                found[name] = newest.clock != BEGINNING and (is_away or newest.flow_of(name).visited != BEGINNING)
            else:
                has_something = BEGINNING not in (newest.clock, clock_of(newest, name))
                found[name] = has_something and not self.is_made_of_state(name)
        return found

    def common(self, entry: Entry) -> int:
        """The clock at which all tasks that sources feed can be read, and which all others have come to or step to."""
        return max(entry.clock, entry.next) if self._active(entry) or self.mixed else entry.clock

    def is_waiting(self, entry: Entry) -> bool:
        """Whether a derived task has yet to come to the common clock."""
        names = [
            *self._active(entry),
            *(name for name in self.mixed if name in entry.tasks and entry.tasks[name].active),
        ]
        return any(entry.flow_of(name).visited < self.common(entry) for name in names)

    def _active(self, entry: Entry) -> list[str]:
        return [name for name in self.derived if self._is_active(entry, name)]

    def _is_active(self, entry: Entry, name: str) -> bool:
        return name in entry.tasks and entry.tasks[name].active

    # What happens

    def begun_anew(
        self,
        before: Entry | None,
        entry: Entry,
        plans: Mapping[str, Plan],
        new: Collection[str],
        rebuilt: Collection[str],
    ) -> set[str]:
        """The derived tasks that a start builds of the state that there is. `new` and `rebuilt` are what it was told."""
        clock = before.clock if before else BEGINNING
        for name in self.fed_by_sources(plans):
            if name in rebuilt:
                self.lives[name] = BEGINNING, entry.epoch
            elif name in new:
                self.lives[name] = clock, entry.epoch if clock == BEGINNING else self.lives.get(name, (0, 0))[1]
        anew = set()
        for name in self._in_order(plans):
            if name in self.mixed:
                if name in new:
                    is_made = self.is_made_of_state(name) and clock != BEGINNING
                    self.happened["built of state that there was"] += is_made
                    of = [*map(self._life_of, self._upstream_of(name))]
                    self.made[name] = Made(clock, of, object(), clock)
                continue
            self.layouts[name] = plans[name].layout
            upstream = self.derived[name].upstream
            known, of = self.made.get(name), [*map(self._life_of, upstream)]
            is_other = self._is_of_other_code(name, plans[name].task)
            if known is None or known.of != of or not {name, *upstream}.isdisjoint({*new, *rebuilt, *anew}) or is_other:
                anew.add(name)
                self.happened["built by other code"] += is_other and known is not None
                self.happened["built of state that there was"] += clock != BEGINNING
                self.happened["built again"] += known is not None
                self.made[name] = Made(clock, of, object(), self.orders.first_of(name, clock, rebuilt))
        return anew

    def _is_of_other_code(self, name: str, task: PersistentTask) -> bool:
        """Whether the code of a task is another than it was. From now on it is this."""
        if not isinstance(task, _Fed) or task.derived == self.derived[name]:
            return False
        self.derived[name] = task.derived
        return True

    def goes_on(self, name: str) -> bool:
        """Whether all that a task is made of has not begun anew since."""
        if name not in self.derived and name not in self.mixed:
            return True
        upstream = self._upstream_of(name)
        return bool(self.made[name].of == [*map(self._life_of, upstream)]) and all(map(self.goes_on, upstream))

    def _in_order(self, names: Collection[str]) -> list[str]:
        """Those of these tasks that other tasks feed, each after those that feed it."""
        left, found = [name for name in (*self.mixed, *self.derived) if name in names], list[str]()
        while left:
            found.append(next(name for name in left if {*left}.isdisjoint(self._upstream_of(name))))
            left.remove(found[-1])
        return found

    def _upstream_of(self, name: str) -> list[str]:
        """The tasks that feed a task."""
        mixed = self.mixed.get(name)
        return [mixed.fed.task] if mixed is not None and mixed.fed is not None else self.derived[name].upstream

    def _life_of(self, name: str) -> Any:
        return self.made[name].life if name in self.derived else self.lives[name]

    def hear_start(self, before: Entry | None, entry: Entry, anew: Collection[str]) -> None:
        """A start takes derived tasks back as it does others, and those that it builds `anew` stand before all."""
        self.values.clear()
        for name in self._active(entry):
            own = clock_of(entry, name)
            expected = self.made[name].first if self.is_fed_by_windows(name) else BEGINNING
            if name not in anew:
                assert before is not None
                expected = min(entry.clock, clock_of(before, name))
                self.happened["came back behind"] += own < entry.clock
            facts = {"task": name, "clock": own, "expected": expected}
            self.must(own == expected, "a derived task begins before all, or goes on", **facts)

    def hear(self, before: Entry | None, entry: Entry) -> None:
        if before is None or self._is_any_behind(before):
            self.values.clear()
        if before is not None and before.epoch == entry.epoch:
            for name in self.derived.keys() & entry.tasks.keys():
                self._moved(name, before, entry)
            self._on_grid(before, entry)
        self._not_stuck(entry)
        for name in self.derived:
            if name in entry.tasks:
                self._check(name, entry)

    def _is_any_behind(self, entry: Entry) -> bool:
        """Whether a task that a source feeds has yet to catch up."""
        fed = (name for name in self.fed_by_sources(entry.tasks) if entry.tasks[name].active)
        return any(clock_of(entry, name) < entry.clock for name in fed)

    def _moved(self, name: str, before: Entry, entry: Entry) -> None:
        task, flow, was = entry.tasks[name], entry.flow_of(name), before.flow_of(name)
        if (task, flow) == (before.tasks[name], was):
            return
        own, since = flow.progress.clock, was.progress.clock
        facts = {"task": name, "clock": own, "since": since, "global": before.clock, "next": before.next}
        self.must(task.active, "a task that is gone stays as it was", **facts)
        visited = {*before.tasks[name].stored.cuts, own}
        self.must({*task.stored.cuts} <= visited, "only what was visited is a clock", **facts)
        if own != since:
            self.happened["step"] += 1
            every = [*filter(None, map(every_in, self.derived[name].inputs.values()))]
            self.happened["step over several multiples"] += (
                bool(every) and since != BEGINNING and own - since > min(every)
            )
            self.must(flow.progress.batch == was.progress.batch + 1, "only a step moves a derived task", **facts)
            common = {*before.retained, self.common(before)}
            self.must(own > since and own in common, "a step goes to a common clock", **facts)
            fed = all(own <= clock_of(before, each) for each in self.derived[name].upstream)
            self.must(fed, "nobody steps before those that feed it", **facts)

    def _on_grid(self, before: Entry, entry: Entry) -> None:
        """Tasks come together at multiples of each `every` only."""
        every = {every_in(source) for name in self._active(entry) for source in self.derived[name].inputs.values()}
        every |= {every_in(job.fed) for name, job in self.mixed.items() if self._is_active(entry, name)}
        for clock in (clock for clock in (entry.clock, entry.next) if clock > before.clock):
            fine = all(clock % each == 0 for each in every if each is not None)
            self.must(fine, "all clocks are multiples of each every", clock=clock, every=every)

    def _not_stuck(self, entry: Entry) -> None:
        """As long as a derived task has yet to come to the common clock, someone can move."""
        if not self.is_waiting(entry):
            return
        clocks = {name: clock_of(entry, name) for name in entry.tasks}
        facts = {"clocks": clocks, "clock": entry.clock, "next": entry.next}
        self.must(
            self._is_any_behind(entry) or bool(graph.due(entry)), "as long as someone waits, someone can move", **facts
        )

    def finish(self, entry: Entry) -> list[str]:
        """All is over. Return the tasks that are there."""
        for name in self._active(entry):
            clock = clock_of(entry, name)
            self.must(clock == entry.clock, "a drain takes all to the last clock", task=name, clock=clock)
        return self._active(entry)

    # What must be true

    def _check(self, name: str, entry: Entry) -> None:
        """At each clock that it can be read at, a task is made of what feeds it."""
        if not self.goes_on(name):
            # What feeds it has begun anew since it left.
            return
        if self.orders.is_part(name):
            self.orders.check(name, entry)
            return
        self.must(not entry.late_counts_of(name), "nothing is late for a derived task", task=name)
        for clock in self.readable(name, entry):
            found = self._read(name, entry, clock)
            expected = self._values(name, clock)
            both = {key: (found.get(key), expected.get(key)) for key in {*found, *expected}}
            differ = {key: values for key, values in both.items() if values[0] != values[1]}
            facts = {"task": name, "clock": clock, "global": entry.clock, "differ (found, expected)": differ}
            self.must(not differ, "a derived task is made of what feeds it", **facts)

    def readable(self, name: str, entry: Entry) -> list[int]:
        """The clocks at which a task can be read."""
        own, born = clock_of(entry, name), self.made[name].born
        # The log may say of any clock of another task that this one can be read there too.
        said = {clock for each in entry.tasks.values() for clock in each.stored.cuts if entry.is_at(name, clock)}
        clocks = {*said, *(clock for clock in entry.retained if clock <= own)} - {BEGINNING}
        return [clock for clock in clocks if clock >= born]

    def _read(self, name: str, entry: Entry, clock: int) -> dict[Any, Any]:
        """The state of a task as it is stored."""
        runs, layout = entry.tasks[name].stored.runs, self.layouts[name]
        if (name, clock, runs) not in self.found:
            table = seen_below(self.files, runs, layout, clock)
            columns = [_plain(table[name]) for name in table.column_names if name not in ("hash", "value")]
            values = layout.monoid.from_arrow(one_chunk(table["value"]))
            state = dict(zip(zip(*columns, strict=True) if columns else [()] * len(values), values, strict=True))
            self.must(len(state) == table.num_rows, "a key has one row", task=name, clock=clock)
            self.found[name, clock, runs] = self._without_zeros(name, state)
        found: dict[Any, Any] = self.found[name, clock, runs]
        return found

    def with_zeros(self, name: str, clock: int, keys: Iterable[Any]) -> dict[Any, Any]:
        """The values of these keys at a clock: zero where nothing is left."""
        values, zero = self._values(name, clock), self.job(name).zero
        return {key: values.get(key, zero) for key in keys}

    def _without_zeros(self, name: str, state: dict[Any, Any]) -> dict[Any, Any]:
        # Nothing may be left of what was once added.
        zero = self.job(name).zero
        return {key: value for key, value in state.items() if not (self.is_made_of_state(name) and value == zero)}

    def _values(self, name: str, clock: int, visited: int | None = None) -> dict[Any, Any]:
        """The state of a task at a clock, by the messages. All tasks were at the clock `visited`, or are at this one."""
        if (name, clock, visited) not in self.values:
            state = windows.state_at(self.job(name), self.fed(name, clock, visited), clock)
            self.values[name, clock, visited] = self._without_zeros(name, state)
        found: dict[Any, Any] = self.values[name, clock, visited]
        return found

    def job(self, name: str) -> Any:
        return self.derived.get(name) or self.judges[name].job

    def fed(self, name: str, clock: int, visited: int | None = None) -> list[Any]:
        """All that feeds a task below a clock. All tasks were at the clock `visited`, or are at this one."""
        if name in self.mixed:
            return [*self.judges[name].in_state(clock), *self.rows_for(self.mixed[name], clock, visited)]
        if name not in self.derived:
            return self.judges[name].in_state(clock)
        derived = self.derived[name]
        return [row for source in derived.inputs.values() for row in self.fed_by(derived, source, clock, visited)]

    def rows_for(self, job: Job, clock: int, visited: int | None = None) -> list[Row]:
        """All that another task gives below a clock to one that sources feed, too. Before it was born there is nothing."""
        assert job.fed is not None
        if job.ordered is not None or clock == BEGINNING or clock < self.made[job.name].born:
            return []
        return self.fed_by(job, job.fed, clock, visited)

    def fed_by(self, derived: Derived | Part | Job, source: Edge, clock: int, visited: int | None = None) -> list[Row]:
        """All that one of the tasks that feed another gives it below a clock."""
        born = self.made[derived.name].born if derived.name in self.made else BEGINNING
        if derived.is_made_of_state:
            return self._rows_now(source, clock, clock if visited is None else visited)
        if isinstance(source, Changes):
            return self._pairs(source, clock, born)
        if isinstance(source, Emitted):
            return self.orders.rows(self.orders.of[source.by], born, clock)
        return self._closed(source, clock, born)

    def _rows_now(self, source: Edge, clock: int, visited: int) -> list[Row]:
        """The rows of a task, as one has seen them that is fed its changes: at the last multiple of `every`."""
        job, every = self.job(source.task), every_in(source) or 1
        seen = max(visited, clock // every * every)
        state = self._values(source.task, seen, visited)
        return [Row(seen - 1, _columns(job, columns_of(job, False), key, value)) for key, value in state.items()]

    def _pairs(self, source: Edge, clock: int, born: int) -> list[Row]:
        """What a task gives that is looked at where another was born, and at all multiples of `every` after that."""
        job, every = self.job(source.task), every_in(source)
        assert every is not None
        names = columns_of(job, False)
        times = {
            time for time in _next_multiples(self._changes(source.task, clock, born), every) if born < time <= clock
        }
        rows, before = [], dict[Any, Any]()
        for seen in sorted(times | {born} - {BEGINNING}):
            after = self._values(source.task, seen, born)
            for key in {**before, **after}:
                both = before.get(key), after.get(key)
                if both[0] != both[1]:
                    sides = zip(PAIR, (value if value is None else _shown(job, value) for value in both), strict=True)
                    columns = {**dict(zip(names, key, strict=True)), **dict(sides)}
                    rows.append(Row(seen - 1, columns, place_of(key[: len(job.keys)])))
            before = after
        return rows

    def _closed(self, source: Edge, clock: int, born: int) -> list[Row]:
        """The windows of a task that have closed since another was born."""
        job = self.job(source.task)
        closed = windows.windows_of(job, self.fed(source.task, clock))
        return [
            Row(
                window[-1] - 1,
                _columns(job, columns_of(job, False), window, windows.value_of(job, some)),
                place_of(window[:-2]),
            )
            for window, some in closed.items()
            if born < window[-1] <= clock
        ]

    def _changes(self, name: str, clock: int, visited: int) -> set[int]:
        """The clocks at which the state of a task may be another than just before. It is the same at all others."""
        if name in self.derived and self.derived[name].is_made_of_state:
            of_inputs = (
                _next_multiples(self._changes(source.task, clock, visited), every_in(source) or 1)
                for source in self.derived[name].inputs.values()
            )
            return {time for times in of_inputs for time in times}
        job, rows = self.job(name), self.fed(name, clock)
        if name in self.mixed and job.is_made_of_state:
            own = {message.timestamp + 1 for message in self.judges[name].in_state(clock)}
            return own | _next_multiples(self._changes(job.fed.task, clock, visited), every_in(job.fed) or 1)
        ends = {window[-1] for window in windows.windows_of(job, rows)} if job.windowing else set()
        return {row.timestamp + 1 for row in rows} | ends


def every_in(source: Edge | None) -> int | None:
    """The time after which one is fed what has changed; None: that depends on the clocks there are."""
    return source.every_us if isinstance(source, Changes) else None


def place_of(key: Sequence[Any]) -> int:
    """The place of a key's rows among those of one moment, where another task sees them."""
    types = {str: pa.string(), int: pa.int64(), type(None): pa.int64()}
    columns = [hashes.normalise(pa.array([value], types[type(value)])) for value in key]
    return int(hashes.hash_keys(columns, 1)[0]) >> 1


def _next_multiples(times: Iterable[int], every: int) -> set[int]:
    """The first multiple at or above each time."""
    return {-(-time // every) * every for time in times}


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """The values of a key column; times as microseconds."""
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


def _columns(job: Job | Derived, names: Sequence[str], key: Sequence[Any], value: Any) -> dict[str, Any]:
    """A row as a task sees it that this one feeds."""
    return {**dict(zip(names, key, strict=True)), **_shown(job, value)}


def _shown(job: Job | Derived, value: Any) -> Any:
    """The columns of a value."""
    return value if job.kind in STRUCTS else {"value": value}


def clock_of(entry: Entry, name: str) -> int:
    """The clock of a task's flow."""
    return entry.flow_of(name).progress.clock
