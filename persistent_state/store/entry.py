"""One numbered entry of the log: everything that is true of an application. `codec` makes bytes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from persistent_state.store.task_state import TaskState


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

    base: int = field(default=0, compare=False)
    """The number of the whole entry in the log from which the bytes of this one follow; 0 if it was not read."""

    def follower(self, time: int, **changes: Any) -> Entry:
        """Return the entry after this one, which must have been read from the log."""
        return replace(self, number=self.number + 1, previous=self.checksum, checksum="", base=0, time=time, **changes)

    def with_task(self, name: str, task: TaskState) -> Entry:
        """Return the entry with this record of a task."""
        return replace(self, tasks={**self.tasks, name: task}, checksum="", base=0)

    def files(self) -> set[str]:
        """Return the path of every file that this entry names."""
        return {stored.path for task in self.tasks.values() for stored in task.files()}


def global_clock(tasks: Mapping[str, TaskState], previous: int) -> int:
    """Return the newest clock at which every active task has a durable checkpoint, and at least the previous one."""
    active = [task for task in tasks.values() if task.active]
    bound = min([task.progress.clock for task in active if task.progress.holds], default=None)
    cuts = {cut for task in active for cut in task.stored.cuts}
    candidates = [cut for cut in cuts if cut > previous and (bound is None or cut <= bound)]
    return max([c for c in candidates if all(task.is_at(c) for task in active)], default=previous)
