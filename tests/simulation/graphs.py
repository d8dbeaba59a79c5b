"""Tasks of a world that other tasks feed: which there are, their steps, and what must be true of them after every entry.

What a derived task is at a clock follows from what the task that feeds it is there, and in the end from the messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

import monoids
from persistent_state.batch import changes
from persistent_state.batch.changes import Span
from persistent_state.batch.combine import combine
from persistent_state.batch.messages import Basis, Blob, Report
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials.layout import one_chunk
from persistent_state.protocol import graph
from persistent_state.sources.tasks import Changes, ClosedWindows, TaskSource
from persistent_state.state import NonWindowState, PersistentState, WindowState
from persistent_state.store.entry import Entry
from persistent_state.store.state_at import seen_below
from persistent_state.task import Message, PersistentTask
from persistent_state.windows import WINDOW, SessionWindow, SlidingWindow, Windowing
from tests.core import us
from tests.simulation import windows
from tests.simulation.files import PlainFiles
from tests.simulation.messages import Job

if TYPE_CHECKING:
    from tests.simulation.oracle import Judge

NUMBERS = {"struct": ("count", "min", "max")}
"""By the kind of a task, the columns of its value that can be keys."""


@dataclass(frozen=True)
class Row:
    """A row that a task gives to those that it feeds."""

    timestamp: int
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Derived:
    """A task that another task feeds, as the oracle sees it. To the oracle's windows it is a `Job` whose messages are rows.

    `kind` says what it counts: the `rows`, the `total` of their numbers, `both`, or also the `most` of them.
    """

    name: str
    source: TaskSource
    kind: str
    way: str
    keys: tuple[str, ...]
    windowing: Windowing | None = None

    @property
    def is_made_of_state(self) -> bool:
        """Whether it is a function of the state that feeds it, and of no window that closed before."""
        return isinstance(self.source, Changes)

    @property
    def is_windowed(self) -> bool:
        return self.windowing is not None

    @property
    def monoid(self) -> monoids.Monoid[Any]:
        if self.kind == "rows":
            return monoids.Count()
        if self.kind == "total":
            return monoids.Sum()
        parts = {"rows": monoids.Count(), "total": monoids.Sum(), "most": monoids.Max()}
        return monoids.Struct(**{self.column(name): parts[name] for name in self.parts})

    @property
    def parts(self) -> tuple[str, ...]:
        return ("rows", "total", "most") if self.kind == "most" else ("rows", "total")

    def column(self, part: str) -> str:
        """The name of a part of the value. No other task has it, so that it may be the key of one that this one feeds."""
        return f"{part}_{self.name}"

    def update_of(self, row: Mapping[str, Any]) -> Any:
        number = number_of(row)
        if self.kind in ("rows", "total"):
            return 1 if self.kind == "rows" else number
        values = {"rows": 1, "total": number, "most": number}
        return {self.column(part): values[part] for part in self.parts}

    def is_zero(self, value: Any) -> bool:
        """Whether nothing may be left of what was once added."""
        return self.is_made_of_state and value == self.monoid.zero

    # As the oracle's windows ask it

    def key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row.columns[key] for key in self.keys)

    def updates_of(self, row: Row) -> list[Any]:
        return [self.update_of(row.columns)]

    def fold(self, rows: Iterable[Row]) -> dict[tuple[Any, ...], Any]:
        found: dict[tuple[Any, ...], Any] = {}
        for row in rows:
            key, value = self.key_of(row), self.update_of(row.columns)
            found[key] = self.monoid.plus(found[key], value) if key in found else value
        return found

    # As a user would write it

    def task(self) -> PersistentTask:
        return (InBatches if self.way == "batch" else ByRow)(self)


def number_of(row: Mapping[str, Any]) -> int:
    """A number that every column of a row but its times has a part in."""
    return sum(_number(value) for name, value in row.items() if name not in (changes.TIMESTAMP, *WINDOW))


def _number(value: Any) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, Mapping):
        return _number([*value.items()])
    if isinstance(value, (list, tuple)):
        return sum(_number(each) for each in value)
    return len(value) if isinstance(value, str) else 0


class _Fed(PersistentTask):
    def __init__(self, derived: Derived) -> None:
        self.derived, self.name, self.key = derived, derived.name, derived.keys or None

    def persistent_state(self) -> NonWindowState[Any] | WindowState[Any]:
        if self.derived.windowing is None:
            return NonWindowState(self.derived.monoid)
        return WindowState(self.derived.monoid, self.derived.windowing)


class InBatches(_Fed):
    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        derived = self.derived
        return derived.monoid.to_arrow([derived.update_of(row) for row in batch.to_pylist()])


class ByRow(_Fed):
    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, self.derived.update_of(message))


def drawn(rng: Random, jobs: Sequence[Job]) -> list[Derived]:
    """Tasks that are fed by these and by each other, each after the one that feeds it."""
    every: list[Job | Derived] = [*jobs]
    derived: list[Derived] = []
    for number in range(rng.choice([1, 2, 3, 4])):
        # A chain, or several that read one.
        upstream = every[-1] if derived and rng.random() < 0.4 else rng.choice(every)
        source: TaskSource = (ClosedWindows if upstream.windowing else Changes)(upstream.name)
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


def _number_columns(task: Job | Derived) -> tuple[str, ...]:
    if isinstance(task, Job):
        return NUMBERS.get(task.kind, ())
    return () if task.kind in ("rows", "total") else tuple(map(task.column, task.parts))


def with_upstream(derived: Sequence[Derived], names: Collection[str]) -> list[Derived]:
    """Those of them whose upstream is there, given the names of the tasks that sources feed."""
    there, found = {*names}, []
    for each in derived:
        if each.source.task in there:
            there.add(each.name)
            found.append(each)
    return found


# The part of the driver and its workers


def plans_of(
    derived: Sequence[Derived], plans: Mapping[str, Plan], outputs: Callable[[Derived], tuple[str, ...]]
) -> dict[str, Plan]:
    """The plans of derived tasks, by the plans of those that sources feed."""
    every, found = dict(plans), {}
    like = next(iter(plans.values()))
    # No clock is broken.
    settings = replace(like.settings, ahead=2**62, jump=None)
    for each in derived:
        upstream, task = every[each.source.task], each.task()
        plan = replace(
            like, task=task, schema=changes.schema_of(upstream, each.source, task), timestamp=changes.TIMESTAMP,
            channel=None, settings=settings, emits=False, outputs=outputs(each), timestamp_unit=None,
            upstream={"": each.source}, feeders={"": upstream},
        )  # fmt: skip
        # What is worked out of a plan once stays with it.
        plan.check()
        changes.check(plan)
        every[each.name] = found[each.name] = plan
    return found


def flows_of(plans: Mapping[str, Plan]) -> list[FlowPlan]:
    """The flows of derived tasks: those that are given one object are one."""
    given: dict[int, list[Plan]] = {}
    for plan in plans.values():
        given.setdefault(id(plan.upstream[""]), []).append(plan)
    return [FlowPlan(tuple(some)) for some in given.values()]


Part: TypeAlias = tuple[str, Span]
"""What a part of a step reads: an input of the flow, and a shard of the task that feeds it, between two clocks."""


def sent_by(flow: FlowPlan, basis: Basis, parts: Sequence[Part]) -> list[tuple[list[Blob], Report]]:
    """What the parts of a step send."""
    return [
        combine(flow, basis.of_part(i, None), i, len(parts), changes.read(flow.first, input, span))
        for i, (input, span) in enumerate(parts)
    ]


# The part of the oracle


@dataclass(frozen=True)
class Made:
    """Of which life of its upstream a derived task is made, and from when on its windows are."""

    born: int
    of: Any
    life: object


class Graphs:
    """What the oracle knows of derived tasks: `hear` is called with every entry, after all else is judged."""

    def __init__(self, judges: Mapping[str, Judge], files: PlainFiles, must: Callable[..., None]) -> None:
        self.judges = judges
        self.files = files
        self.must = must
        self.derived: dict[str, Derived] = {}
        self.made: dict[str, Made] = {}
        self.lives: dict[str, Any] = {}
        """By task that sources feed, from which clock on it has its messages, in a life of its own if it was built again."""
        self.layouts: dict[str, Any] = {}
        self.found: dict[Any, Any] = {}
        """What was read of a task's runs at a clock."""
        self.happened: Counter[str] = Counter()
        self.also_fed: set[str] = set()
        """Tasks that sources and another task feed."""

    def fed_by_sources(self, names: Iterable[str]) -> list[str]:
        """Those of these tasks that sources feed."""
        return [name for name in names if name not in self.derived]

    def is_made_of_state(self, name: str) -> bool:
        return name in self.derived and self.derived[name].is_made_of_state

    def is_fed_by_windows(self, name: str) -> bool:
        return name in self.derived and not self.derived[name].is_made_of_state

    def common(self, entry: Entry) -> int:
        """The clock at which all tasks that sources feed can be read, and which all others have come to or step to."""
        return max(entry.clock, entry.next) if self._active(entry) or self.also_fed else entry.clock

    def is_waiting(self, entry: Entry) -> bool:
        """Whether a derived task has yet to come to the common clock."""
        names = [*self._active(entry), *(self.also_fed & entry.tasks.keys())]
        return any(entry.flow_of(name).visited < self.common(entry) for name in names)

    def _active(self, entry: Entry) -> list[str]:
        return [name for name in self.derived if name in entry.tasks and entry.tasks[name].active]

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
        for name in (name for name in self.derived if name in plans):
            self.layouts[name] = plans[name].layout
            upstream = self.derived[name].source.task
            known, of = self.made.get(name), self._life_of(upstream)
            if known is None or known.of != of or not {name, upstream}.isdisjoint({*new, *rebuilt, *anew}):
                anew.add(name)
                self.happened["built of state that there was"] += clock != BEGINNING
                self.happened["built again"] += known is not None
                self.made[name] = Made(clock, of, object())
        return anew

    def goes_on(self, name: str) -> bool:
        """Whether all that a task is made of has not begun anew since."""
        if name not in self.derived:
            return True
        upstream = self.derived[name].source.task
        return bool(self.made[name].of == self._life_of(upstream)) and self.goes_on(upstream)

    def _life_of(self, name: str) -> Any:
        return self.made[name].life if name in self.derived else self.lives[name]

    def hear_start(self, before: Entry | None, entry: Entry, anew: Collection[str]) -> None:
        """A start takes derived tasks back as it does others, and those that it builds `anew` stand before all."""
        for name in self._active(entry):
            derived, own = self.derived[name], clock_of(entry, name)
            expected = BEGINNING if derived.is_made_of_state else entry.clock
            if name not in anew:
                assert before is not None
                expected = min(entry.clock, clock_of(before, name))
                self.happened["came back behind"] += own < entry.clock
            facts = {"task": name, "clock": own, "expected": expected}
            self.must(own == expected, "a derived task begins before all, or goes on", **facts)

    def hear(self, before: Entry | None, entry: Entry) -> None:
        if before is not None and before.epoch == entry.epoch:
            for name in self.derived.keys() & entry.tasks.keys():
                self._moved(name, before, entry)
        self._not_stuck(entry)
        for name in self.derived:
            if name in entry.tasks:
                self._check(name, entry)

    def _moved(self, name: str, before: Entry, entry: Entry) -> None:
        task, flow, was = entry.tasks[name], entry.flow_of(name), before.flow_of(name)
        if (task, flow) == (before.tasks[name], was):
            return
        own, since, upstream = flow.progress.clock, was.progress.clock, self.derived[name].source.task
        facts = {"task": name, "clock": own, "since": since, "global": before.clock, "next": before.next}
        self.must(task.active, "a task that is gone stays as it was", **facts)
        visited = {*before.tasks[name].stored.cuts, own}
        self.must({*task.stored.cuts} <= visited, "only what was visited is a clock", **facts)
        if own != since:
            self.happened["step"] += 1
            self.must(flow.progress.batch == was.progress.batch + 1, "only a step moves a derived task", **facts)
            common = {*before.retained, self.common(before)}
            self.must(own > since and own in common, "a step goes to a common clock", **facts)
            self.must(own <= clock_of(before, upstream), "nobody steps before the one that feeds it", **facts)

    def _not_stuck(self, entry: Entry) -> None:
        """As long as a derived task has yet to come to the common clock, someone can move."""
        if not self.is_waiting(entry):
            return
        fed = (name for name in self.fed_by_sources(entry.tasks) if entry.tasks[name].active)
        is_behind = any(clock_of(entry, name) < entry.clock for name in fed)
        clocks = {name: clock_of(entry, name) for name in entry.tasks}
        facts = {"clocks": clocks, "clock": entry.clock, "next": entry.next}
        self.must(is_behind or bool(graph.due(entry)), "as long as someone waits, someone can move", **facts)

    def finish(self, entry: Entry) -> list[str]:
        """All is over. Return the tasks that are there."""
        for name in self._active(entry):
            clock = clock_of(entry, name)
            self.must(clock == entry.clock, "a drain takes all to the last clock", task=name, clock=clock)
        return self._active(entry)

    # What must be true

    def _check(self, name: str, entry: Entry) -> None:
        """At each clock that it can be read at, a task is made of what feeds it."""
        own, made = clock_of(entry, name), self.made[name]
        self.must(not entry.late_counts_of(name), "nothing is late for a derived task", task=name)
        if not self.goes_on(name):
            # What feeds it has begun anew since it left.
            return
        # The log may say of any clock of another task that this one can be read there too.
        said = {clock for each in entry.tasks.values() for clock in each.stored.cuts if entry.is_at(name, clock)}
        for clock in {*said, *(clock for clock in entry.retained if clock <= own)} - {BEGINNING}:
            if clock < made.born:
                continue
            found = self._read(name, entry, clock)
            expected = self._values(name, clock)
            both = {key: (found.get(key), expected.get(key)) for key in {*found, *expected}}
            differ = {key: values for key, values in both.items() if values[0] != values[1]}
            facts = {"task": name, "clock": clock, "global": entry.clock, "differ (found, expected)": differ}
            self.must(not differ, "a derived task is made of what feeds it", **facts)

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
        values, zero = self._values(name, clock), self.derived[name].monoid.zero
        return {key: values.get(key, zero) for key in keys}

    def _without_zeros(self, name: str, state: dict[Any, Any]) -> dict[Any, Any]:
        return {key: value for key, value in state.items() if not self.derived[name].is_zero(value)}

    def _values(self, name: str, clock: int) -> dict[Any, Any]:
        """The state of a task at a clock, by the messages."""
        if name not in self.derived:
            return windows.state_at(self.judges[name].job, self.judges[name].in_state(clock), clock)
        return self._without_zeros(name, windows.state_at(self.job(name), self.fed(name, clock), clock))

    def rows_of(self, name: str, clock: int) -> list[Row]:
        """The state of a task at a clock as rows that it gives."""
        job = self.job(name)
        return [Row(clock - 1, _columns(job, job.keys, *each)) for each in self._values(name, clock).items()]

    def job(self, name: str) -> Any:
        return self.derived.get(name) or self.judges[name].job

    def fed(self, name: str, clock: int) -> list[Any]:
        """All that feeds a task below a clock."""
        if name not in self.derived:
            return self.judges[name].in_state(clock)
        source = self.derived[name].source
        job = self.job(source.task)
        if isinstance(source, Changes):
            state = self._values(source.task, clock)
            return [Row(clock - 1, _columns(job, job.keys, key, value)) for key, value in state.items()]
        born, names = self.made[name].born, (*job.keys, *WINDOW)
        closed = windows.windows_of(job, self.fed(source.task, clock))
        return [
            Row(window[-1] - 1, _columns(job, names, window, windows.value_of(job, some)))
            for window, some in closed.items()
            if born < window[-1] <= clock
        ]


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """The values of a key column; times as microseconds."""
    return (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()


def _columns(job: Job | Derived, names: Sequence[str], key: Sequence[Any], value: Any) -> dict[str, Any]:
    """A row as a task sees it that this one feeds."""
    shown = value if job.kind in ("struct", "both", "most") else {"value": value}
    return {**dict(zip(names, key, strict=True)), **shown}


def clock_of(entry: Entry, name: str) -> int:
    """The clock of a task's flow."""
    return entry.flow_of(name).progress.clock
