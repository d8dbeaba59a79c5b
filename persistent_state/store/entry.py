"""One numbered entry of the log: everything that is true of an application. `codec` makes bytes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from persistent_state.event_time.clocks import BEGINNING
from persistent_state.store.flow_state import FlowState, LateRows
from persistent_state.store.task_state import TaskState
from persistent_state.task import names_of_parts

LOCAL = "local-"
"""The mark of `Local`: the beginning of the `writer` of a start on that engine. Spark has none."""
# It is no field of its own: an older version refuses an entry with a field that it does not know, and may well go on from here.


@dataclass(frozen=True)
class Kept:
    """The record of a kept clock: what a reader, and a start that goes back to the clock, need of it."""

    entry: int
    """The number of the entry in which the clock became the global clock. A start right after it is a start at the clock."""

    names: tuple[str, ...] = ()
    """The names by which users keep the clock; without one it goes when no rule keeps it any more."""


@dataclass(frozen=True)
class Owed:
    """The debt of an output since rewinds: its sink has yet to go back, and is given no clock until it has."""

    timeline: int
    """The timeline that the sink is to be in: that of the last of these rewinds."""

    clock: int
    """The clock above which the sink has nothing then: the lowest of these rewinds."""


@dataclass(frozen=True)
class Entry:
    """Everything that is true of an application after one commit."""

    number: int

    epoch: int
    """The number of the start that wrote the entry. A higher epoch fences every lower one."""

    writer: str
    """The name of that start's driver: random, behind the mark of its engine."""

    time: int
    """When the driver wrote the entry by its own wall clock, microseconds UTC. It decides only how long old files are kept."""

    previous: str
    """The checksum of the entry before this one."""

    interval: int
    """The checkpoint interval in microseconds."""

    shards: int

    clock: int
    """The global clock, at which every task has a durable checkpoint, in microseconds UTC."""

    retained: tuple[int, ...]
    """The checkpoint clocks that can be read, ascending; the last is `clock`."""

    flows: Mapping[str, FlowState]
    """By id: the flows that feed the tasks. The tasks of one flow are all part of the newest start, or none is."""

    tasks: Mapping[str, TaskState]

    kept: Mapping[int, Kept] = field(default_factory=dict)
    """By clock, ascending: the clocks that can be read and gone back to. `kept_entries` finds their entries."""

    timeline: int = 0
    """The epoch that began the present timeline; 0 if the application was never rewound, and is no branch."""

    owes: Mapping[str, Mapping[str, Owed]] = field(default_factory=dict)
    """By task and output: what outputs owe. A task may be gone that came after the clock, and its sink has yet to go back."""

    next: int = BEGINNING
    """The next common clock, at which tasks that other tasks feed have yet to arrive; at or below `clock` if no such clock is
    ahead."""

    checksum: str = field(default="", compare=False)
    """The SHA-256 of the bytes that the entry was read from; "" if it was not read. It is never computed from the values."""

    base: int = field(default=0, compare=False)
    """The number of the whole entry in the log from which the bytes of this one follow; 0 if it was not read."""

    @property
    def mark(self) -> str:
        """The mark of the engine of the newest start: "" for Spark, and where an older version has written."""
        return LOCAL if self.writer.startswith(LOCAL) else ""

    @property
    def readable(self) -> list[int]:
        """The clocks at which the state can be read, ascending: those that the newest runs keep apart, and the kept ones."""
        return sorted({*self.retained, *self.kept})

    @cached_property
    def part_of(self) -> Mapping[str, str]:
        """By name: the ordered tasks that tasks of the graph are parts of. The part that has the states has their own name."""
        # The log does not say it: it follows from the names of the parts.
        ordered = [name for name, task in self.tasks.items() if task.processes is not None]
        return {part: name for name in ordered for part in names_of_parts(name) if part in self.tasks and part != name}

    def follower(self, time: int, **changes: Any) -> Entry:
        """Return the entry after this one, which must have been read from the log."""
        return replace(self, number=self.number + 1, previous=self.checksum, checksum="", base=0, time=time, **changes)

    def with_task(self, name: str, task: TaskState) -> Entry:
        """Return the entry with this record of a task."""
        return replace(self, tasks={**self.tasks, name: task}, checksum="", base=0)

    def with_flow(self, id: str, flow: FlowState) -> Entry:
        """Return the entry with this record of a flow."""
        return replace(self, flows={**self.flows, id: flow}, checksum="", base=0)

    def flow_of(self, task: str) -> FlowState:
        """Return the flow that feeds the task of this name."""
        return self.flows[self.tasks[task].flow]

    def tasks_of(self, flow: str) -> dict[str, TaskState]:
        """Return the tasks of the flow with this id, by name."""
        return {name: task for name, task in self.tasks.items() if task.flow == flow}

    def owed(self, task: str, output: str) -> Owed | None:
        """Return what an output owes; None if it owes nothing."""
        return self.owes.get(task, {}).get(output)

    def with_owed(self, task: str, output: str, owed: Owed | None) -> Entry:
        """Return the entry in which an output owes this, or nothing."""
        of_task = {name: each for name, each in self.owes.get(task, {}).items() if name != output}
        of_task |= {} if owed is None else {output: owed}
        owes = {name: each for name, each in self.owes.items() if name != task}
        return replace(self, owes={**owes, **({task: of_task} if of_task else {})}, checksum="", base=0)

    def is_at(self, task: str, clock: int) -> bool:
        """Return True if the task's state at this clock can be read from what is stored."""
        return self.tasks[task].is_at(clock, self.flow_of(task))

    def late_rows_of(self, task: str) -> LateRows:
        """Return the record of all rows that came late or are bad for the task."""
        return self.tasks[task].late_rows.plus(self.flow_of(task).late_rows)

    def late_counts_of(self, task: str) -> dict[str, int]:
        """Return how many rows came late or are bad for the task, by reason. The flow's are counted once for all its tasks."""
        return dict(Counter(self.tasks[task].late_rows.counts()) + Counter(self.flow_of(task).late_rows.counts()))

    @property
    def has_parts(self) -> bool:
        """Return whether a run is a range of a file, or in the entry."""
        return any(shard.has_parts for task in self.tasks.values() for shard in task.stored.shards)

    @property
    def inline(self) -> int:
        """Return how many bytes of runs are in the entry, rather than in files."""
        return sum(task.stored.inline for task in self.tasks.values())

    def files(self) -> set[str]:
        """Return the path of every file that this entry names."""
        of_flows = (stored.path for flow in self.flows.values() for stored in flow.files())
        return {*of_flows, *(stored.path for task in self.tasks.values() for stored in task.files())}


def common_clock(entry: Entry, above: int) -> int:
    """Return the newest clock above this one at which each active task that sources feed has a durable checkpoint.

    It is `above` itself if there is no other.
    """
    active = {name: task for name, task in entry.tasks.items() if task.active and not entry.flow_of(name).is_derived}
    flows = {task.flow: entry.flows[task.flow] for task in active.values()}
    bound = min([flow.progress.clock for flow in flows.values() if flow.progress.holds], default=None)
    cuts = {cut for task in active.values() for cut in task.stored.cuts}
    candidates = [cut for cut in cuts if cut > above and (bound is None or cut <= bound)]
    kept = (c for c in candidates if all(task.keeps_apart(c, entry.flows[task.flow]) for task in active.values()))
    return max(kept, default=above)
