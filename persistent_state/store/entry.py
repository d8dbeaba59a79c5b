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
    """A file that an entry names: its path in the application's folder, length in bytes and SHA-256."""

    path: str
    length: int
    checksum: str


@dataclass(frozen=True)
class Run:
    """A range of a run file. Only rows with low <= hash < high, and start < `below` (None: all), are part of the state.

    `below` also says that a start has cut this run or an older one: what it calls current is not any more. By the clock `half`
    at least half of its rows have expired, or are no single messages any more (None: never).
    """

    file: Stored
    rows: int
    low: int
    high: int
    first: int
    last: int
    below: int | None = None
    half: int | None = None


@dataclass(frozen=True)
class Cut:
    """What a start took back of a file of late and bad rows: those not below `clock` and at or after `positions`."""

    clock: int
    positions: Mapping[str, int]


@dataclass(frozen=True)
class SideFile:
    """A file of late and bad rows: how many by reason, and what a restart may still take back.

    `newest` is the greatest timestamp (None: a row has none), `ends` how far the rows reach in each partition.
    """

    file: Stored
    reasons: Mapping[str, int]
    newest: int | None
    ends: Mapping[str, int]
    cuts: tuple[Cut, ...] = ()

    def is_settled(self, clock: int, positions: Mapping[str, int]) -> bool:
        """No start at or above the clock, replaying from these positions or later, can take a row back."""
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
    """One task: what it is (`identity`), its clock, the clocks it keeps apart, its runs and how far its source was read.

    `born` is the clock at which it started from zero. `batch` counts the micro-batches of this epoch. `sides` are files of
    late and bad rows; those that nothing can take back any more move into `settled`, counted in `settled_counts`.
    `delivered` says of each output up to which clock its sink has it (`BEGINNING`: none yet). What expired by the clock `floor`
    may be gone: nobody can ask for it any more. `planned` says how far the micro-batch that is under way reads in each
    partition, where that is to be known (at most once). `voided` names the outputs whose sinks were given clocks that a start
    has cut away since: what each has is right up to the clock that stands there. No sink was given a clock above both the
    task's own and `furthest`. From the clock `again` on this start takes in again what others have (at least once). `life` is
    the epoch of the start that built the task again from the beginning of its source (0: none did), `retired` names the outputs
    before that. `left` names the outputs that it had since, and that the last start with the task left out. `cut_at` says of an
    output the lowest clock that starts have cut the task back to since its sink last answered: what the sink has above that may
    be void.
    """

    identity: Mapping[str, Any]
    clock: int
    born: int
    cuts: tuple[int, ...]
    coarse: tuple[Coarse, ...] = ()
    runs: tuple[Run, ...] = ()
    channels: Mapping[str, Channel] = field(default_factory=dict)
    positions: Mapping[str, Position] = field(default_factory=dict)
    journal: Pages = Pages()
    sides: tuple[SideFile, ...] = ()
    settled: Pages = Pages()
    settled_counts: Mapping[str, int] = field(default_factory=dict)
    batch: int = 0
    holds: bool = True
    active: bool = True
    delivered: Mapping[str, int] = field(default_factory=dict)
    floor: int = clocks.BEGINNING
    planned: Mapping[str, int] = field(default_factory=dict)
    voided: Mapping[str, int] = field(default_factory=dict)
    furthest: int = clocks.BEGINNING
    again: int = clocks.END
    life: int = 0
    retired: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    cut_at: Mapping[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Late and bad rows by reason."""
        total = Counter(self.settled_counts)
        for side in self.sides:
            total.update(side.reasons)
        return dict(total)

    def is_at(self, clock: int) -> bool:
        """Whether the state at this clock can be told from what is stored."""
        if clock in self.cuts:
            return True
        # It is the zero where all that is stored begins later.
        if clock <= self.clock and all(run.first >= clock for run in self.runs):
            return True
        # Nothing can arrive below a clock that the task does not hold back.
        return not self.holds and clock > self.clock and clocks.clean_clock(clock, self.coarse) == clock


@dataclass(frozen=True)
class Entry:
    """The whole truth about an application after one commit. `clock` is the global minimum checkpoint clock.

    `time` (microseconds UTC) is the writer's and decides nothing but how long old files are kept. `checksum` is the SHA-256 of
    the bytes that it was read from, and "" where it was not read: it is never worked out from the values.
    """

    number: int
    epoch: int
    writer: str
    time: int
    previous: str
    interval: int
    shards: int
    clock: int
    retained: tuple[int, ...]
    tasks: Mapping[str, TaskState]
    checksum: str = field(default="", compare=False)

    def follower(self, time: int, **changes: Any) -> Entry:
        """The entry after this one, which was read."""
        return replace(self, number=self.number + 1, previous=self.checksum, checksum="", time=time, **changes)

    def with_task(self, name: str, task: TaskState) -> Entry:
        return replace(self, tasks={**self.tasks, name: task}, checksum="")

    def files(self) -> set[str]:
        """The path of every file that this entry names."""
        return {stored.path for task in self.tasks.values() for stored in task_files(task)}


def task_files(task: TaskState) -> Iterable[Stored]:
    yield from (run.file for run in task.runs)
    yield from (side.file for side in task.sides)
    yield from task.journal.files
    yield from task.settled.files


def global_clock(tasks: Mapping[str, TaskState], previous: int) -> int:
    """The newest clock at which every task has a durable checkpoint; never before the previous one."""
    active = [task for task in tasks.values() if task.active]
    bound = min([task.clock for task in active if task.holds], default=None)
    candidates = {cut for task in active for cut in task.cuts if cut > previous and (bound is None or cut <= bound)}
    return max([c for c in candidates if all(task.is_at(c) for task in active)], default=previous)
