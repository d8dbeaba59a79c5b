"""Collecting garbage: old log entries, and the files that no entry names any more and no commit can come to name.

Entries stay as long as the files that only they name: they are the record of who may still be reading what, also for the next
process, and being small they cost little. The entry of a kept clock leaves the log with the others of its time, once it has a
file of its own: see `kept_entries`. What it names stays as long as the newest entry, or one that is still in the log, keeps the
clock.

Entries go from the oldest up, one after the other, and the newest two stay. So whenever a collection breaks off, and also while
two drivers collect, what is left is the end of the log, without a gap. `Log.newest` relies on that: while an entry is
there, no later one was collected.

A file may have the runs of several shards and tasks. It stays until no place of any of these entries names it or a range of it.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import chain, takewhile, zip_longest

from persistent_state.errors import DamagedError
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import kept_entries, lists
from persistent_state.store.codec import side_from_json
from persistent_state.store.entry import Entry
from persistent_state.store.flow_state import FlowState, LateRows
from persistent_state.store.log import RECENT, Log
from persistent_state.store.named_files import ShardRuns, Stored, written
from persistent_state.store.task_state import TaskState

LEFTOVER_AGE = 3600.0
"""Seconds after which a temporary file has no writer any more."""

_logger = logging.getLogger("persistent_state")


class Collector:
    """Deletes what no reader and no commit of an application can ask for any more.

    It reads each entry once, and each file of a list of settled rows, which never changes. It remembers the time and the base
    of an entry. For a file it remembers the first entry that named it, and the last one if that is not the newest.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._newest: Entry | None = None
        """The newest entry that was looked at."""
        self._named: Counter[str] = Counter()
        """By file: the number of places in the newest entry that name it."""
        self._tasks: set[str] = set()
        """The tasks that were ever met: a rewind leaves out those that came later."""
        self._times: dict[int, int] = {}
        self._bases: dict[int, int] = {}
        self._first_named: dict[str, int] = {}
        self._last_named: dict[str, int] = {}
        self._last_kept: dict[int, int] = {}
        """By the entry of a clock that the newest entry does not keep any more: the last entry that did."""
        self._pinned: set[int] = set()
        """The entries of kept clocks of which it is known what they name."""
        self._unpinned: set[int] = set()
        """The entries of kept clocks that can't be read."""
        self._listed: dict[str, list[str]] = {}
        """The files that each file of a list of settled rows names."""
        self._unread: set[str] = set()
        """The files of such lists that can't be read."""
        self._due: float = 0
        """The time until which nothing that an entry has named can go, unless an entry is written."""

    def collect(self, epoch: int, *, now: int, keeping: Keeping) -> list[str]:
        """Delete what can go, if the application is still this driver's; the paths that went.

        Entries go `keeping.grace` after a newer one was written, except the newest two: those let a driver that slept find its
        number taken. What an entry follows from stays as long as the entry. A file goes when no entry that is left names it and
        its micro-batch can't be committed any more. The entries of kept clocks are among those that are left.
        """
        log, files = self._log, self._log.files
        seen = log.newest(RECENT)
        if seen is not None and self._newest is not None and seen.number == self._newest.number and now < self._due:
            return []
        self._due = 0
        numbers = log.numbers()
        for number in numbers:
            self._look_at(number)
        newest = self._newest
        if not numbers or newest is None or newest.epoch != epoch or newest.number < numbers[-1]:
            # The newest may be another driver's, or damaged, and then it is unknown what it names.
            return []
        known = [number for number in numbers if number in self._times]
        overdue = list(takewhile(lambda number: self._times[number] <= now - keeping.grace, known))
        first = min([numbers[-2:][0], *overdue[-1:]]) if overdue else numbers[0]
        first = min(self._bases.get(number, number) for number in numbers if number >= first)
        old = [number for number in numbers if number < first]
        kept, in_files = self._kept_by(numbers[len(old)]), kept_entries.numbers(log)
        if not self._pin(kept, old, in_files):
            return []
        gone = [log.path(number) for number in old]
        # Not several at a time: the one before an entry is to be gone before the entry is.
        for path in gone:
            files.delete(path)
        left = numbers[len(old) :]
        if not self._times.keys() >= set(left):
            # What an entry names that can't be read is not known: its files stay until it goes itself.
            return gone
        self._forget_below(left[0], kept)
        settled = set(chain.from_iterable(self._listed.values()))
        unnamed = []
        names = [*newest.tasks, *sorted(self._tasks - newest.tasks.keys())]
        under_way = {name: newest.flow_of(name).progress.batch for name in newest.tasks}
        for name in names:
            folder, unsure = f"{log.application}/runs/{name}", self._unsure(newest, name)
            for file in files.list(folder):
                path = f"{folder}/{file}"
                is_named = self._is_named(path) or path in settled
                batch = written(file)
                if not is_named and unsure < batch < (newest.epoch, under_way.get(name, 0)):
                    unnamed.append(path)
        # What another driver keeps since has a higher number.
        unnamed += [
            kept_entries.path(log, number) for number in in_files if number < newest.number and number not in kept
        ]
        runs = (f"{log.application}/runs/{name}" for name in names)
        for folder in (f"{log.application}/log", kept_entries.folder(log), *runs):
            leftovers = files.leftovers(folder, now)
            unnamed += [f"{folder}/{file}" for file, age in leftovers if age > LEFTOVER_AGE]
        files.for_each(files.delete, unnamed)
        self._due = min(time + keeping.grace for time in (*self._times.values(), now) if time >= now - keeping.grace)
        return [*gone, *unnamed]

    def _look_at(self, number: int) -> None:
        """Know what an entry names, unless it is gone or damaged: an old one that is damaged stops no work."""
        if number in self._times:
            return
        with suppress(FileNotFoundError, DamagedError):
            entry = self._log.read(number)
            if self._newest is None or number > self._newest.number:
                self._know(entry)
            else:
                # A driver that slept has written a number again that was collected, or the store has listed the entry late.
                self._pin_files(entry)
            self._times[number], self._bases[number] = entry.time, entry.base

    def _kept_by(self, first: int) -> list[int]:
        """Return the entries of the clocks that the newest entry keeps, or one from the entry `first` on, ascending."""
        assert self._newest is not None
        late = (number for number, last in self._last_kept.items() if last >= first)
        return sorted({*late, *(kept.entry for kept in self._newest.kept.values())})

    def _pin(self, kept: Sequence[int], old: Collection[int], in_files: Collection[int]) -> bool:
        """Know what the entries of kept clocks name, and write the files of those that leave the log.

        Return False if one can't be read: then it is unknown what it names, and nothing may go.
        """
        assert self._newest is not None
        for number in kept:
            # What has a file has left the log. If it is there, a driver that slept has written the number again.
            is_known = number in self._pinned or (number in self._times and number not in in_files)
            is_leaving = number in old and number not in in_files
            try:
                entry = kept_entries.read(self._log, number) if is_leaving or not is_known else None
            except (FileNotFoundError, DamagedError) as error:
                if number not in {each.entry for each in self._newest.kept.values()}:
                    # Its last reader has gone, by the grace of another driver.
                    continue
                if number not in self._unpinned:
                    _logger.warning("nothing is collected until the entry of a kept clock can be read: %s", error)
                    self._unpinned.add(number)
                return False
            if entry is not None and is_leaving:
                kept_entries.write(self._log, entry)
            if entry is not None and not is_known:
                self._pin_files(entry)
            self._pinned.add(number)
        self._pinned &= {*kept}
        return True

    def _pin_files(self, entry: Entry) -> None:
        """Know what an entry names that may be older than those that were looked at."""
        self._know_lists(entry)
        for path in _changed_files(None, entry)[1]:
            self._first_named[path] = min(entry.number, self._first_named.get(path, entry.number))
            if path not in self._named:
                self._last_named[path] = max(entry.number, self._last_named.get(path, entry.number))

    def _know_lists(self, entry: Entry) -> None:
        holders: Sequence[TaskState | FlowState] = (*entry.tasks.values(), *entry.flows.values())
        for holder in holders:
            self._know_list(holder.late_rows)

    def _know(self, entry: Entry) -> None:
        # Know the lists of every entry: a driver that slept through a takeover holds an old one for the newest.
        self._know_lists(entry)
        self._tasks |= entry.tasks.keys()
        before, after = _changed_files(self._newest, entry)
        self._named.update(after)
        self._named.subtract(before)
        for path in before:
            if not self._named[path]:
                del self._named[path]
                self._last_named[path] = self._newest.number if self._newest else 0
        for path in after:
            self._first_named.setdefault(path, entry.number)
            self._last_named.pop(path, None)
        if self._newest is not None and self._newest.kept is not entry.kept:
            for clock, kept in self._newest.kept.items():
                if not kept_entries.is_kept(entry.kept, clock, kept.entry):
                    self._last_kept[kept.entry] = self._newest.number
        self._newest = entry

    def _know_list(self, rows: LateRows) -> None:
        for file in rows.settled.files:
            if file.path not in self._listed:
                self._listed[file.path] = self._read_list(file)

    def _read_list(self, file: Stored) -> list[str]:
        """Return the files that a file of a list names: none if it can't be read, which is remembered."""
        try:
            return [side_from_json(line).file.path for line in lists.read_file(self._log.files, file)]
        except (FileNotFoundError, DamagedError) as error:
            self._unread.add(file.path)
            _logger.warning("files of late and bad rows that %s may name are kept: %s", file.path, error)
            return []

    def _unsure(self, newest: Entry, task: str) -> tuple[int, float]:
        """Return the last epoch and micro-batch of a task of which a list that can't be read may name a file.

        What is no younger than that stays until no entry names the list.
        """
        kept: tuple[int, float] = (-1, 0)
        for path in self._unread:
            epoch, batch = written(path)
            if epoch < newest.epoch:
                # It is not known any more which tasks had one flow then.
                kept = max(kept, (epoch, math.inf))
            else:
                flows = [newest.tasks[name].flow for name in (path.split("/")[-2], task) if name in newest.tasks]
                kept = max(kept, (epoch, batch if len(flows) == 2 and len({*flows}) == 1 else 0))
        return kept

    def _forget_below(self, number: int, kept: Sequence[int]) -> None:
        """Forget the entries before this one that are not of kept clocks, and the files that only they name."""
        self._log.forget_below(number)
        self._times = {known: time for known, time in self._times.items() if known >= number}
        self._bases = {known: base for known, base in self._bases.items() if known >= number}
        self._last_kept = {entry: last for entry, last in self._last_kept.items() if last >= number}
        for path, last in [*self._last_named.items()]:
            pin = bisect_left(kept, self._first_named[path])
            if last < number and not (pin < len(kept) and kept[pin] <= last):
                del self._first_named[path], self._last_named[path]
        self._listed = {path: listed for path, listed in self._listed.items() if self._is_named(path)}
        self._unread = {path for path in self._unread if self._is_named(path)}

    def _is_named(self, path: str) -> bool:
        return path in self._named or path in self._last_named


def _changed_files(before: Entry | None, entry: Entry) -> tuple[list[str], list[str]]:
    """Return the files that stand where the entries differ, in the one and in the other. One file may stand in many places."""
    was: list[str] = []
    now: list[str] = []
    tasks = before.tasks if before else {}
    for name in tasks.keys() | entry.tasks.keys():
        one, other = tasks.get(name), entry.tasks.get(name)
        if one is other:
            continue
        shards = (task.stored.shards if task else () for task in (one, other))
        for some, others in zip_longest(*shards, fillvalue=ShardRuns()):
            if some is not others:
                was += [file.path for file in some.files()]
                now += [file.path for file in others.files()]
        was += _late(one)
        now += _late(other)
    flows = before.flows if before else {}
    for id in flows.keys() | entry.flows.keys():
        was_flow, is_flow = flows.get(id), entry.flows.get(id)
        if was_flow is not is_flow:
            was += _late(was_flow) + _journal(was_flow)
            now += _late(is_flow) + _journal(is_flow)
    return was, now


def _late(holder: TaskState | FlowState | None) -> list[str]:
    """Return the files of late and bad rows, with those in the newest items of their list."""
    if holder is None:
        return []
    rows = holder.late_rows
    settled = [side_from_json(line).file.path for line in rows.settled.tail]
    return [*(file.path for file in rows.files()), *settled]


def _journal(flow: FlowState | None) -> list[str]:
    return [] if flow is None else [file.path for source in flow.inputs.values() for file in source.journal.files]
