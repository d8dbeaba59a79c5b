"""What must be true of branches: each is there whole or not at all, and is what its application was at a kept clock."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa

from persistent_state.protocol import branch
from persistent_state.store.entry import Entry, Kept
from persistent_state.store.flow_state import FlowState
from persistent_state.store.log import Log
from persistent_state.store.output_state import OutputState
from persistent_state.store.state_at import state_at
from persistent_state.store.verify import verified
from tests.simulation.files import Disk, PlainFiles, StagedFiles
from tests.simulation.kept import KeptClocks, aside, names_of


@dataclass(frozen=True)
class FarFiles(StagedFiles):
    """Another store, as somebody reaches it. It fails as the first one does, but leaves no torn files and lists at once.

    It is slow: `wait` is called before something is written.
    """

    wait: Callable[[], None] = field(default=lambda: None, compare=False, repr=False)

    def create(self, path: str, data: Any) -> None:
        self.wait()
        self._do("write", path, lambda: self.disk.create(path, bytes(data)))

    def read(self, path: str) -> pa.Buffer:
        buffer: pa.Buffer = self._do("read elsewhere", path, lambda: self.disk.read(path))
        return buffer

    def list(self, folder: str) -> list[str]:
        names: list[str] = self._do("list elsewhere", folder, lambda: names_in(self.disk, folder))
        return names


def names_in(disk: Disk, folder: str) -> list[str]:
    """The names of the files and folders in a folder."""
    begin = f"{folder}/"
    return sorted({path.removeprefix(begin).partition("/")[0] for path in disk.files if path.startswith(begin)})


@dataclass
class Branches:
    """All that was tried to branch, with what the oracle knows of kept clocks."""

    kept: KeptClocks
    must: Any
    disk: Disk = field(default_factory=Disk)
    tried: defaultdict[str, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """By the name of a branch and the clock: the number of the entry of the kept clock."""
    happened: Counter[str] = field(default_factory=Counter)

    @property
    def names(self) -> list[str]:
        """Names for a branch: one that is free, which may have been tried before, and most likely one that is taken."""
        free = next(name for name in map("b{}".format, count()) if not names_in(self.disk, f"{name}/log"))
        return [free, free, free, "b0"]

    def make(
        self, source: Log, files: FarFiles, name: str, newest: Entry, clock: int, now: int, new_id: Callable[[], str]
    ) -> Entry:
        """Do what somebody does who branches the application, given the newest entry."""
        if clock in newest.kept:
            self.tried[name][clock] = newest.kept[clock].entry
        if names_in(self.disk, f"{name}/runs") and not names_in(self.disk, f"{name}/log"):
            self.happened["went on"] += 1
        entry = branch.branch(source, Log(files, name), clock, now=now, new_id=new_id)
        self.happened["branched"] += 1
        self.check(name)
        return entry

    def finish(self) -> None:
        """All is over: there is no half branch."""
        for name in self.tried:
            if names_in(self.disk, f"{name}/log"):
                self.check(name)

    def check(self, name: str) -> None:
        """A branch is sound, and is what its application was."""
        files = PlainFiles("sim://elsewhere", disk=self.disk)
        found = verified(files, name)
        self.must(found.problems == (), "a branch is sound", name=name, problems=found.problems)
        entry = Log(files, name).newest()
        assert entry is not None
        clock, then = entry.clock, self.kept.then[self.tried[name][entry.clock]]
        is_new = (entry.number, entry.retained, entry.kept) == (1, (clock,), {clock: Kept(1)})
        self.must(is_new and not names_of(entry.kept), "a branch has one clock", entry=entry)
        self.must(entry.timeline == entry.epoch > then.entry.epoch, "a branch has a timeline of its own", entry=entry)
        is_none = all(task.outputs == OutputState() for task in entry.tasks.values())
        self.must(is_none and not entry.owes, "a branch has no outputs", entry=entry)
        self.must(entry.tasks.keys() == then.entry.tasks.keys(), "a branch has all tasks", entry=entry)
        for task, state in then.states.items():
            is_at = self.kept.values(task, state_at(files, name, entry, task, then.layouts[task], clock).read())
            self.must(is_at == state, "the state of a branch is that of its clock", task=task, found=is_at, then=state)
            beyond = aside(files, entry, task) - then.aside[task]
            self.must(not beyond, "a branch has no rows aside of its own", task=task, beyond=beyond)
        for id, flow in then.entry.flows.items():
            is_active = any(task.active for task in then.entry.tasks_of(id).values())
            expected = positions_at(flow, clock) if is_active else flow.source.positions
            here = entry.flows[id]
            self.must(here.source.positions == expected, "a branch has the positions of its clock", flow=id)
            self.must(journals(here) == journals(flow), "a branch has the journals of its clock", flow=id)


def positions_at(flow: FlowState, clock: int) -> Any:
    """The positions from which a flow is read again at a clock."""
    return flow.source.cut_back(min(clock, flow.progress.clock), 0).positions


def journals(flow: FlowState) -> Any:
    """What the files of the journals of a flow hold, and what is not in files."""
    return {
        name: ([file.checksum for file in source.journal.files], source.journal.tail)
        for name, source in flow.inputs.items()
    }
