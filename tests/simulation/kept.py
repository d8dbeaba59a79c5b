"""What must be true of kept clocks: which there are, and that each is read as it was when it was the newest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials.layout import Layout
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import kept_entries, late_rows
from persistent_state.store.codec import from_bytes
from persistent_state.store.entry import Entry, Kept
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from persistent_state.store.state_at import state_at

Values = Callable[[str, pa.Table], Any]


@dataclass(frozen=True)
class Then:
    """An application at a kept clock, when that was the newest: by task the state, and the rows aside."""

    entry: Entry
    names: frozenset[str]
    """All files that could be reached from the entry."""
    layouts: Mapping[str, Layout]
    states: Mapping[str, Any]
    aside: Mapping[str, Counter[str]]


@dataclass
class KeptClocks:
    """What the oracle knows of kept clocks: `hear` is called with every entry, `made` and `gone` with files of theirs."""

    log: Log
    layouts: Mapping[str, Layout]
    values: Values
    named_by: Callable[[Entry], Iterable[str]]
    must: Any
    visited: dict[int, int] = field(default_factory=dict)
    """By clock that was ever the global one: the number of the entry in which it became that."""
    then: dict[int, Then] = field(default_factory=dict)
    """By the number of the entry."""
    entries: dict[int, Entry] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)

    @property
    def files(self) -> Files:
        return self.log.files

    def hear(self, before: Entry | None, entry: Entry, keeping: Keeping) -> None:
        """An entry was written."""
        if before is not None and entry.timeline != before.timeline:
            kept = {clock: kept for clock, kept in before.kept.items() if clock <= entry.clock}
            self.must(entry.kept == kept, "a rewind keeps what is kept at or below its clock", kept=entry.kept)
            # Nobody can say any more which clocks there were beside these.
            self.visited = {clock: kept.entry for clock, kept in entry.kept.items()}
        elif before is not None and entry.clock == before.clock:
            names = names_of(entry.kept)
            is_same = {c: replace(kept, names=()) for c, kept in entry.kept.items()} == {
                c: replace(kept, names=()) for c, kept in before.kept.items()
            }
            self.must(is_same, "clocks are kept while the clock stands", kept=entry.kept, before=before.kept)
            changed = dict(names.items() ^ names_of(before.kept).items())
            self.must(len(changed) < 2, "one name at a time is given or taken", changed=changed)
        elif entry.clock == BEGINNING:
            self.must(not entry.kept, "nothing is kept before the first clock", kept=entry.kept)
        else:
            self.visited[entry.clock] = entry.number
            named = {*names_of(before.kept).values()} if before else set()
            stay = {*sorted(self.visited)[-keeping.clocks :], *named}
            stay |= {clock for clock in self.visited if any(self._is_last(clock, *rule) for rule in keeping.retain)}
            found = {clock: kept.entry for clock, kept in entry.kept.items()}
            expected = {clock: self.visited[clock] for clock in sorted(stay)}
            self.must(found == expected, "clocks are kept by the rules", found=found, expected=expected)
            is_named = before is None or names_of(entry.kept) == names_of(before.kept)
            self.must(is_named, "a named clock stays", kept=entry.kept)
            self.then[entry.number] = self._now(entry)
        self.must([*entry.kept] == sorted(entry.kept), "kept clocks ascend", kept=entry.kept)
        every = [name for kept in entry.kept.values() for name in kept.names]
        self.must(len(every) == len({*every}), "a name is that of one clock", names=every)
        self.entries[entry.number] = entry

    def _is_last(self, clock: int, every: int, span: int) -> bool:
        """Whether a clock is the last of a period, and not too old."""
        period = [c for c in self.visited if (c - 1) // every == (clock - 1) // every]
        return max(period) == clock and max(self.visited) - clock <= span

    def _now(self, entry: Entry) -> Then:
        clock = entry.clock
        there = [name for name, task in entry.tasks.items() if has_come(entry, name) and task.born <= clock]
        return Then(
            entry,
            frozenset(self.named_by(entry)),
            {name: self.layouts[name] for name in there},
            {name: self._state(self.files, entry, name, clock, self.layouts[name]) for name in there},
            {name: aside(self.files, entry, name) for name in entry.tasks},
        )

    def _state(
        self,
        files: Files,
        entry: Entry,
        name: str,
        clock: int,
        layout: Layout,
        meanwhile: Callable[[], None] | None = None,
    ) -> Any:
        found = state_at(files, self.log.application, entry, name, layout, clock)
        if meanwhile is not None:
            meanwhile()
        return self.values(name, found.read())

    def made(self, path: str, data: bytes) -> None:
        """A file of a kept clock was made."""
        entry = from_bytes(data, path)
        self.happened["an entry left the log"] += 1
        known = self.then.get(entry.number)
        self.must(
            known is not None and known.entry == entry, "a file has the entry of a kept clock", entry=entry.number
        )

    def gone(self, path: str, newest: Entry) -> None:
        """A file is about to be deleted."""
        for number in {kept.entry for entry in self._left(newest) for kept in entry.kept.values()}:
            is_needed = path in self.then[number].names
            self.must(not is_needed, "no file is deleted that a kept clock needs", entry=number, path=path)
        for clock, kept in newest.kept.items():
            file = kept_entries.path(self.log, kept.entry)
            self.must(path != file, "the entry of a kept clock stays", clock=clock)
            if path == self.log.path(kept.entry):
                self.must(self._has(file), "the entry of a kept clock leaves the log once it has a file", clock=clock)

    def _left(self, newest: Entry) -> list[Entry]:
        """The entries that are in the log, and have been since they were written."""
        there, left = {*self.log.numbers()}, [newest]
        while left[-1].number - 1 in there:
            left.append(self.entries[left[-1].number - 1])
        return left

    def _has(self, path: str) -> bool:
        try:
            self.files.read(path)
        except FileNotFoundError:
            return False
        return True

    def check(
        self, entry: Entry, files: Files, clock: int, name: str, meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Somebody reads a task at a kept clock by an entry: it is as it was when the clock was the newest."""
        number = entry.kept[clock].entry if clock in entry.kept else self.visited.get(clock)
        if number is None:
            return
        then = self.then[number]
        task, was = entry.tasks.get(name), then.entry.tasks.get(name)
        if task is None or was is None or name not in then.states or (task.born, task.life) != (was.born, was.life):
            return
        found = self._state(files, entry, name, clock, then.layouts[name], meanwhile)
        facts = {"task": name, "clock": clock, "found": found, "then": then.states[name]}
        self.must(found == then.states[name], "the state at a kept clock never changes", **facts)
        if entry.number == then.entry.number:
            self.must(entry == then.entry, "the entry of a kept clock never changes", clock=clock)
            self.must(aside(files, entry, name) == then.aside[name], "rows aside stay", task=name, clock=clock)
            self.happened["an entry of old was read"] += 1
        self.happened["a kept clock was read"] += 1

    def finish(self, newest: Entry) -> None:
        """All is over: every kept clock can be read."""
        for clock, kept in newest.kept.items():
            log = Log(self.files, self.log.application)
            entry = kept_entries.read(log, kept.entry)
            self.must(entry == self.then[kept.entry].entry, "the entry of a kept clock never changes", clock=clock)
            for name in entry.tasks:
                self.check(entry, self.files, clock, name)


def names_of(kept: Mapping[int, Kept]) -> dict[str, int]:
    """By name: the clock that it keeps."""
    return {name: clock for clock, each in kept.items() for name in each.names}


def has_come(entry: Entry, name: str) -> bool:
    return entry.flow_of(name).visited >= entry.clock


def aside(files: Files, entry: Entry, name: str) -> Counter[str]:
    """The rows of a task that are late or bad."""
    rows = late_rows.read_all(files, entry.late_rows_of(name))
    return Counter(repr(row) for table in rows for row in table.to_pylist())
