"""One numbered entry of the log: everything that is true of an application. `codec` makes bytes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from persistent_state.event_time import clocks
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import Coarse
from persistent_state.event_time.positions import Position


@dataclass(frozen=True)
class Stored:
    """A file that an entry names: its path below the store, its length in bytes and its SHA-256."""

    path: str
    length: int
    checksum: str


@dataclass(frozen=True)
class Run:
    """A range of a run file: the rows with low <= hash < high and start < `below` are part of the state."""

    file: Stored

    rows: int
    """Rows of the whole file."""

    low: int
    high: int

    first: int
    """The least start of an interval in the file, in microseconds UTC."""

    last: int
    """The greatest start of an interval in the file, in microseconds UTC."""

    below: int | None = None
    """The clock at which a start cut this run or an older one; None if none did. Its column `current` is out of date then."""

    half: int | None = None
    """The clock by which half of the rows have expired, or can be added to others of their key. None: no such clock."""


@dataclass(frozen=True)
class Cut:
    """A start took back the rows of a file of late and bad rows that are neither below `clock` nor before `positions`."""

    clock: int
    positions: Mapping[str, int]


@dataclass(frozen=True)
class SideFile:
    """A file of late and bad rows, and what a start may still take back of it."""

    file: Stored

    reasons: Mapping[str, int]
    """The number of its rows that count, by reason."""

    newest: int | None
    """The greatest timestamp of a row; None if a row has no timestamp."""

    ends: Mapping[str, int]
    """By partition: the position after the last row."""

    cuts: tuple[Cut, ...] = ()
    """The rows of the file that starts have taken back."""

    def is_settled(self, clock: int, positions: Mapping[str, int]) -> bool:
        """Return True if no start at or above the clock that replays from these positions or later takes a row back."""
        if self.newest is not None and self.newest < clock:
            return True
        return all(end <= positions.get(partition, 0) for partition, end in self.ends.items())


@dataclass(frozen=True)
class Pages:
    """A list that only grows: its newest items here, its older ones in files of JSON lines."""

    files: tuple[Stored, ...] = ()
    tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskState:
    """The record of one task in an entry. Clocks are microseconds UTC."""

    identity: Mapping[str, Any]
    """The task's key columns, its monoid and its windows: what must stay as long as the state is kept."""

    clock: int
    """The task's own clock: its state at this clock is durable and no message below it counts any more."""

    born: int
    """The clock at which the task started from zero."""

    cuts: tuple[int, ...]
    """The clocks that the runs keep apart, ascending: the state can be read at each."""

    coarse: tuple[Coarse, ...] = ()
    """Ranges of time whose messages were folded into longer intervals than the checkpoint interval."""

    runs: tuple[Run, ...] = ()
    """The state: partial sums in run files, in the order of the shards."""

    channels: Mapping[str, Channel] = field(default_factory=dict)
    """By channel: the newest timestamp and when it last delivered."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    """By partition: how far the source was read."""

    journal: Pages = Pages()
    """Lines that the source wrote and is given back when it is opened again."""

    sides: tuple[SideFile, ...] = ()
    """Files of late and bad rows of which a start may still take rows back."""

    settled: Pages = Pages()
    """Files of late and bad rows of which no start takes rows back."""

    settled_counts: Mapping[str, int] = field(default_factory=dict)
    """The number of rows in the settled files, by reason."""

    batch: int = 0
    """The number of micro-batches that were committed in this epoch."""

    holds: bool = True
    """True if messages can still arrive below the next clock, so that the global clock waits for this task."""

    active: bool = True
    """True if the task is part of the newest start."""

    delivered: Mapping[str, int] = field(default_factory=dict)
    """By output: the last clock that its sink is known to have; `BEGINNING` if it has none."""

    floor: int = clocks.BEGINNING
    """The clock by which expired values may be gone from the runs: no output needs them any more."""

    planned: Mapping[str, int] = field(default_factory=dict)
    """By partition, under at-most-once delivery: how far the micro-batch that is under way reads."""

    voided: Mapping[str, int] = field(default_factory=dict)
    """By output whose sink was given clocks that a start has cut away since: the clock up to which its values are right."""

    furthest: int = clocks.BEGINNING
    """A bound of what sinks were given: none was given a clock above both the task's own and this one."""

    again: int = clocks.END
    """The clock from which this start, under at-least-once delivery, counts messages again that earlier starts counted."""

    life: int = 0
    """The epoch of the start that built the task again from the beginning of its source; 0 if none did."""

    retired: tuple[str, ...] = ()
    """The outputs that the task had before it was built again: their names stay taken."""

    left: tuple[str, ...] = ()
    """The outputs that the task has had since, and that the newest start with the task does not have."""

    cut_at: Mapping[str, int] = field(default_factory=dict)
    """By output: the lowest clock to which starts have cut the task back since its sink last answered.

    What the sink has above that clock may be void.
    """

    def counts(self) -> dict[str, int]:
        """Return how many late and bad rows there are, by reason."""
        total = Counter(self.settled_counts)
        for side in self.sides:
            total.update(side.reasons)
        return dict(total)

    def is_at(self, clock: int) -> bool:
        """Return True if the state at this clock can be read from what is stored."""
        if clock in self.cuts:
            return True
        # The state is zero at a clock below everything that is stored.
        if clock <= self.clock and all(run.first >= clock for run in self.runs):
            return True
        # Nothing can arrive below a clock that the task does not hold back.
        return not self.holds and clock > self.clock and clocks.clean_clock(clock, self.coarse) == clock


@dataclass(frozen=True)
class Entry:
    """Everything that is true of an application after one commit."""

    number: int

    epoch: int
    """The number of the start that wrote the entry. A higher epoch fences every lower one."""

    writer: str
    """A name for that start's driver, for people."""

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

    tasks: Mapping[str, TaskState]

    checksum: str = field(default="", compare=False)
    """The SHA-256 of the bytes that the entry was read from; "" if it was not read. It is never computed from the values."""

    def follower(self, time: int, **changes: Any) -> Entry:
        """Return the entry after this one, which must have been read from the log."""
        return replace(self, number=self.number + 1, previous=self.checksum, checksum="", time=time, **changes)

    def with_task(self, name: str, task: TaskState) -> Entry:
        """Return the entry with this record of a task."""
        return replace(self, tasks={**self.tasks, name: task}, checksum="")

    def files(self) -> set[str]:
        """Return the path of every file that this entry names."""
        return {stored.path for task in self.tasks.values() for stored in task_files(task)}


def task_files(task: TaskState) -> Iterable[Stored]:
    """Yield every file that an entry names directly for a task."""
    yield from (run.file for run in task.runs)
    yield from (side.file for side in task.sides)
    yield from task.journal.files
    yield from task.settled.files


def global_clock(tasks: Mapping[str, TaskState], previous: int) -> int:
    """Return the newest clock at which every active task has a durable checkpoint, and at least the previous one."""
    active = [task for task in tasks.values() if task.active]
    bound = min([task.clock for task in active if task.holds], default=None)
    candidates = {cut for task in active for cut in task.cuts if cut > previous and (bound is None or cut <= bound)}
    return max([c for c in candidates if all(task.is_at(c) for task in active)], default=previous)
