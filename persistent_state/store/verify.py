"""Verify a store: check every checksum and reference of its logs, without stopping at the first problem."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from persistent_state import windows
from persistent_state.errors import DamagedError, StateError, StoreRefusedError, StoreUnavailableError
from persistent_state.event_time.clocks import END
from persistent_state.formatting import full_clock
from persistent_state.partials import keys, layout
from persistent_state.partials.evolve import misfits
from persistent_state.partials.kinds import kind_of
from persistent_state.partials.newest import first_due
from persistent_state.partials.type_names import name_of, type_named
from persistent_state.store import inline, kept_entries, late_rows, runs
from persistent_state.store.codec import from_bytes, open_entry, rewritten, side_to_json
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.files.base import Files
from persistent_state.store.flow_state import LateRows
from persistent_state.store.late_rows import PARTITION, SIDE_COLUMNS
from persistent_state.store.log import Log
from persistent_state.store.named_files import Run, SideFile, Stored
from persistent_state.store.state_at import find_applications, no_application
from persistent_state.store.task_state import TaskState

Check: TypeAlias = Callable[[pa.Buffer], Iterable[str]]

UNREADABLE = (StoreRefusedError, StoreUnavailableError)
"""The errors of a store that gives no file: nothing is known to be damaged."""


@dataclass(frozen=True)
class Problem:
    """A file of the store, and what is wrong with it."""

    path: str
    what: str


@dataclass(frozen=True)
class Verified:
    """The result of `verify`: how much was read, and the problems."""

    applications: int
    """Applications that were verified."""

    entries: int
    """Undamaged log entries."""

    files: int
    """Files that entries name."""

    bytes: int
    """Bytes that were read."""

    unreferenced: tuple[str, ...]
    """Files that no log entry names, and entries whose base is gone. They are no problem: see `docs/command-line.md`."""

    problems: tuple[Problem, ...]
    """The problems in the order of their paths; empty for a sound store."""


def verify(
    store: str,
    application: str | None = None,
    *,
    on_file: Callable[[str], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Verified:
    """Read every log entry and every kept clock of an application or of a whole store, and every file that they name.

    All that is read is checked.

    A store may be verified while it is written to: a file that is collected meanwhile is no problem.

    Args:
        store: The store's folder or URL.
        application: The application's name; by default all applications of the store.
        on_file: Called with the path of each file before it is read.
        storage_options: What fsspec needs to open the store.

    Returns:
        What was read, and a list of problems, which is empty for a sound store.

    Raises:
        InvalidInputError: There is no such application.
        StoreUnavailableError: The store does not answer.

    Example:
        >>> verify("memory://an-empty-store")
        Verified(applications=0, entries=0, files=0, bytes=0, unreferenced=(), problems=())
    """
    files = open_files(store, storage_options)
    names = find_applications(files) if application is None else [application]
    done = [verified(files, name, on_file or (lambda path: None)) for name in names]
    return Verified(
        applications=len(done),
        entries=sum(each.entries for each in done),
        files=sum(each.files for each in done),
        bytes=sum(each.bytes for each in done),
        unreferenced=tuple(path for each in done for path in each.unreferenced),
        problems=tuple(problem for each in done for problem in each.problems),
    )


def verified(files: Files, application: str, tell: Callable[[str], None] = lambda path: None) -> Verified:
    """Return what `verify` finds of one application. `tell` is called with the path of each file before it is read."""
    return _Application(files, application, tell).verify()


@dataclass
class _Named:
    """A file that entries name: as what, and which is the newest of them."""

    entry: int
    stored: dict[Stored, None] = field(default_factory=dict)
    checks: dict[Any, Check] = field(default_factory=dict)


class _Application:
    """One application while it is verified."""

    def __init__(self, files: Files, name: str, tell: Callable[[str], None]) -> None:
        self._files = files
        self._log = Log(files, name)
        self._tell = tell
        self._named: dict[str, _Named] = {}
        self._lists: set[Any] = set()
        self._checked: set[tuple[Run, bool]] = set()
        self._kept: dict[int, Entry] = {}
        """The entries of the kept clocks."""
        self._newest: Entry | None = None
        """The newest entry, if it is undamaged."""
        self._problems: dict[Problem, None] = {}
        self._bytes = 0

    def verify(self) -> Verified:
        # Listed before the entries are read: a file that is committed meanwhile is not unreferenced.
        present = self._present()
        entries = self._entries()
        # The newest entry first: what it names is still there if anything is.
        for number in sorted(entries, reverse=True):
            self._entry(self._log.path(number), entries[number])
        self._kept_clocks(entries)
        self._newest = entries.get(self._log.numbers()[-1])
        for path in sorted(self._named):
            self._file(path, self._named[path])
        kept = {each.entry for entry in entries.values() for each in entry.kept.values()}
        known = {*self._named, *map(self._log.path, entries), *(problem.path for problem in self._problems)}
        known |= {kept_entries.path(self._log, number) for number in kept}
        return Verified(
            applications=1,
            entries=len(entries),
            files=len(self._named),
            bytes=self._bytes,
            unreferenced=tuple(path for path in present if path not in known),
            problems=tuple(sorted(self._problems, key=lambda problem: problem.path)),
        )

    def _present(self) -> list[str]:
        runs = f"{self._log.application}/runs"
        folders = [f"{self._log.application}/log", kept_entries.folder(self._log)]
        folders += [f"{runs}/{task}" for task in self._files.list(runs)]
        return [f"{folder}/{name}" for folder in folders for name in self._files.list(folder)]

    def _found(self, path: str, problems: Iterable[str]) -> None:
        self._problems.update((Problem(path, what), None) for what in problems)

    def _read(self, path: str) -> pa.Buffer:
        self._tell(path)
        data = self._files.read(path)
        self._bytes += len(data)
        return data

    def _entries(self) -> dict[int, Entry]:
        """Return the undamaged entries by number."""
        numbers = self._log.numbers()
        if not numbers:
            raise no_application(self._files, self._log.application)
        entries: dict[int, Entry] = {}
        damaged = None
        for number in numbers:
            path, before = self._log.path(number), entries.get(number - 1)
            try:
                written = open_entry(bytes(self._read(path)), path)
                if written.number != number:
                    self._found(path, [f"it says that it is entry {written.number}"])
                elif written.whole is not None:
                    entries[number], damaged = written.entry(None), None
                    if before is not None and before.checksum == written.previous:
                        self._found(path, _change_problems(entries[number], written.entry(before)))
                elif before is not None and before.checksum == written.previous:
                    entries[number] = written.entry(before)
                elif before is not None:
                    self._found(path, [f"it does not go on from entry {number - 1} as that is now"])
                elif damaged is not None:
                    self._found(path, [f"it can't be read without entry {damaged}, which is damaged"])
                elif number == numbers[-1] and number in self._log.numbers():
                    missing = next(n for n in range(written.base, number) if n not in entries)
                    self._found(path, [f"it can't be read without entry {missing}, which is missing"])
            except FileNotFoundError:
                pass  # collected since it was listed
            except UNREADABLE as error:
                self._found(path, [f"it can't be read: {error}"])
            except DamagedError:
                self._found(path, ["it is not what was written, or of a later format"])
            except Exception as error:  # whatever what it says makes of the entry before it
                self._found(path, [f"it is no entry: {error!r}"])
            if damaged is None and number not in entries and any(problem.path == path for problem in self._problems):
                damaged = number
        for number, follower in pairwise(numbers):
            if follower > number + 1:
                gap = (
                    f"it is missing; unless a driver that slept too long wrote entry {number}, which counts for nothing"
                )
                self._found(self._log.path(number + 1), [gap])
                # Nothing keeps what the entries before are about.
                entries = {kept: entry for kept, entry in entries.items() if kept > number}
            elif number in entries and follower in entries:
                self._found(self._log.path(follower), self._chain_problems(entries[number], entries[follower]))
        return entries

    def _kept_clocks(self, entries: Mapping[int, Entry]) -> None:
        """Check the entry of each clock that the newest entry keeps."""
        for clock, kept in entries[max(entries)].kept.items() if entries else ():
            path, found = kept_entries.path(self._log, kept.entry), entries.get(kept.entry)
            needs = f"kept clock={full_clock(clock)} needs it"
            try:
                found = from_bytes(bytes(self._read(path)), path)
                self._entry(path, found)
            except FileNotFoundError:
                if found is None and self._is_left(kept.entry):
                    self._found(path, [f"it is missing, and {needs}"])
            except UNREADABLE as error:
                self._found(path, [f"it can't be read: {error}", needs])
            except DamagedError:
                self._found(path, ["it is not what was written, or of a later format", needs])
            if found is None:
                continue
            if (found.number, found.clock) == (kept.entry, clock):
                self._kept[clock] = found
            else:
                says = f"it says that it is entry {found.number} of clock={full_clock(found.clock)}"
                self._found(path, [says, needs])

    def _is_left(self, number: int) -> bool:
        """Return True if an entry is still in the log, or is still that of a kept clock."""
        if number in self._log.numbers():
            return True
        with suppress(DamagedError):
            newest = self._log.newest()
            return newest is not None and any(number == each.entry for each in newest.kept.values())
        return False

    def _chain_problems(self, entry: Entry, follower: Entry) -> Iterator[str]:
        if follower.previous != entry.checksum and not self._was_rewritten(entry, follower):
            yield f"it does not go on from entry {entry.number} as that is now"
        if follower.epoch < entry.epoch:
            yield f"its epoch={follower.epoch} is below epoch={entry.epoch} of the entry before it"
        # The next backup after a rewind may be of a later start.
        is_rewind = entry.timeline < follower.timeline <= follower.epoch
        if follower.clock < entry.clock and not is_rewind:
            yield f"its clock={follower.clock} is below clock={entry.clock} of the entry before it"
        if follower.epoch != entry.epoch:
            return
        for name, task in entry.tasks.items():
            if task.flow not in entry.flows:
                continue  # which is a problem of that entry
            clock, known = entry.flow_of(name).progress.clock, follower.tasks.get(name)
            flow = follower.flows.get(known.flow) if known else None
            if flow is None or flow.progress.clock < clock:
                yield f"its task {name} is gone, or has a clock below clock={clock} of the entry before it"
            elif known is not None and known.flow != task.flow:
                # Only a start gives a task another flow.
                yield f"its task {name} has flow={known.flow}, and flow={task.flow} in the entry before it"

    def _was_rewritten(self, entry: Entry, follower: Entry) -> bool:
        """Return True if an upgrade within format 1 explains why the first entry of a start names another checksum."""
        if follower.epoch != entry.epoch + 1:
            return False
        try:
            before, after = (bytes(self._files.read(self._log.path(each.number))) for each in (entry, follower))
        except FileNotFoundError:
            return True  # collected since it was read, and then nothing follows from it
        except UNREADABLE:
            return False
        return follower.previous in rewritten(before, after)

    def _entry(self, path: str, entry: Entry) -> None:
        self._found(path, _entry_problems(entry))
        for name, task in entry.tasks.items():
            self._found(path, _task_problems(entry, name, task, f"{self._log.application}/runs/"))
            for run in task.stored.runs:
                is_own = _epoch(run.file.path) == entry.epoch and not inline.was_moved(run.file)
                check = partial(_run_problems, run, is_own, task.identity)
                if run.file.inline:
                    self._inline(path, run, is_own, check)
                else:
                    self._name(entry, run.file, (run, is_own), check)
            self._late_rows(path, entry, f"task {name}", task.late_rows)
        for id, flow in entry.flows.items():
            self._late_rows(path, entry, f"flow {id}", flow.late_rows)
            for source in flow.inputs.values():
                for file in source.journal.files:
                    self._name(entry, file, "list", _list_problems)

    def _late_rows(self, path: str, entry: Entry, whose: str, rows: LateRows) -> None:
        for side in rows.sides:
            self._name(entry, side.file, side_to_json(side), partial(_side_problems, side))
        for file in rows.settled.files:
            self._name(entry, file, "list", _list_problems)
        # Most entries have the list of the one before.
        known = (rows.settled, *sorted(rows.settled_counts.items()))
        if known not in self._lists:
            self._lists.add(known)
            self._settled(path, entry, whose, rows)

    def _inline(self, path: str, run: Run, is_own: bool, check: Check) -> None:
        """Check a run that the entry of this path has. Later entries that name it are not asked again."""
        if (run, is_own) in self._checked:
            return
        self._checked.add((run, is_own))
        try:
            data = run.file.unpacked()
            problems = [*runs.problems(data, run.file)] or [*check(data)]
        except Exception as error:  # whatever its bytes make zlib, Arrow or JSON raise
            problems = [f"it can't be read: {error!r}"]
        self._found(path, (f"its run {run.file.path}: {problem}" for problem in problems))

    def _name(self, entry: Entry, stored: Stored, role: Any, check: Check) -> None:
        named = self._named.setdefault(stored.path, _Named(entry.number))
        named.stored[stored] = None
        named.checks.setdefault(role, check)

    def _settled(self, path: str, entry: Entry, whose: str, rows: LateRows) -> None:
        """Check the files of late and bad rows that the entry names in a list."""
        try:
            settled = late_rows.settled(self._files, rows)
        except (StateError, FileNotFoundError, KeyError, TypeError, ValueError):
            return  # what is wrong with the list is found when its files are verified
        counts: Counter[str] = Counter()
        for side in settled:
            counts.update(side.reasons)
            self._name(entry, side.file, side_to_json(side), partial(_side_problems, side))
        if counts != Counter(rows.settled_counts):
            what = f"{whose}: settled_counts={dict(rows.settled_counts)}, and the settled files hold {dict(counts)}"
            self._found(path, [what])

    def _file(self, path: str, named: _Named) -> None:
        try:
            data = self._read(path)
        except FileNotFoundError:
            # Gone with the last entry that named it, if it was collected.
            if self._is_left(named.entry):
                self._found(path, [f"it is missing, and entry {named.entry} names it", *self._needed_at(path)])
            return
        except UNREADABLE as error:
            self._found(path, [f"it can't be read: {error}", *self._needed_at(path)])
            return
        for stored in named.stored:
            self._found(path, runs.problems(data, stored))
        if any(problem.path == path for problem in self._problems):
            self._found(path, self._needed_at(path))
            return
        for check in named.checks.values():
            try:
                self._found(path, check(data))
            except Exception as error:  # whatever its bytes make Arrow or JSON raise
                self._found(path, [f"it can't be read: {error!r}"])

    def _needed_at(self, path: str) -> Iterator[str]:
        """Yield whether the newest state needs a file, and which of the older kept clocks do, or that none does."""
        newest = self._newest
        is_needed = newest is None or _needs(newest, newest.clock, path)
        if is_needed:
            yield "the newest state needs it"
        older = {clock: entry for clock, entry in self._kept.items() if newest is None or clock != newest.clock}
        found = [full_clock(clock) for clock, entry in older.items() if _needs(entry, clock, path)]
        if len(found) == 1:
            yield f"kept clock={found[0]} needs it"
        elif found:
            yield f"{len(found)} kept clocks need it, from clock={found[0]} to clock={found[-1]}"
        elif newest is None or is_needed:
            return
        elif path in newest.files():
            above = f"rows at or above clock={full_clock(newest.clock)}"
            yield f"no clock needs it: it has only {above}, which a start under exactly-once delivery makes again"
        else:
            yield "no clock needs it: only old log entries name it, which the application deletes in their time"


def _needs(entry: Entry, clock: int, path: str) -> bool:
    """Return whether a start or a reader at a clock reads a file that an entry may name."""
    above = {run.file.path for task in entry.tasks.values() for run in task.stored.runs if run.first >= clock}
    below = {run.file.path for task in entry.tasks.values() for run in task.stored.runs if run.first < clock}
    return path in entry.files() - (above - below)


def _change_problems(entry: Entry, changed: Entry) -> Iterator[str]:
    if entry != changed:
        yield "what it says has changed does not make of the entry before it what it says is there"


def _entry_problems(entry: Entry) -> Iterator[str]:
    for clock, kept in entry.kept.items():
        if clock > entry.clock or kept.entry > entry.number:
            yield f"it keeps clock={clock} by entry {kept.entry}, which it can't know"
    if list(entry.retained) != sorted(set(entry.retained)) or entry.retained[-1:] not in ((), (entry.clock,)):
        yield f"its retained={list(entry.retained)} do not ascend to clock={entry.clock}"
    for name, task in entry.tasks.items():
        if task.flow not in entry.flows:
            yield f"its task {name} has flow={task.flow}, which is not there"
    for id in entry.flows:
        tasks = entry.tasks_of(id)
        if id not in tasks:
            yield f"its flow {id} has no task of that name, but tasks={sorted(tasks)}"
        if len({task.active for task in tasks.values()}) > 1:
            yield f"its flow {id} has tasks={sorted(tasks)} of which some are part of the newest start, and some are not"


def _task_problems(entry: Entry, name: str, task: TaskState, folder: str) -> Iterator[str]:
    for run in task.stored.runs:
        # A file with the runs of several tasks is in the folder of one of them.
        if not run.file.path.startswith(folder if run.file.start else f"{folder}{name}/"):
            yield f"task {name} names {run.file.path}, which is not its own"
    ranges: dict[Stored, list[tuple[int, int]]] = {}
    shards = task.stored.shards
    # A task that was left out of a start keeps the shards that it had.
    if task.active and len(shards) not in (0, entry.shards):
        yield f"task {name} has runs in {len(shards)} shards, not in {entry.shards}"
    for number, shard in enumerate(shards):
        low, high = keys.shard_range(number, len(shards))
        for run in shard.runs:
            ranges.setdefault(run.file, []).append((run.low, run.high))
            if not low <= run.low < run.high <= high:
                yield f"task {name} has {run.file.path} from {run.low} to {run.high}, which is not in shard {number}"
    for file, parts in ranges.items():
        if any(low < high for (_, high), (low, _) in pairwise(sorted(parts))):
            yield f"task {name} has rows of {file.path} twice"


def _run_problems(run: Run, is_own: bool, identity: Mapping[str, Any], data: pa.Buffer) -> Iterator[str]:
    """Yield what is wrong with a run. `is_own` means that no start has cut it yet."""
    table = _table(run.file.within(data))
    types = [column["type"] for column in identity["key"]]
    found = [
        (field.name, _name_of_values(field.type, run, identity) if field.name == "value" else str(field.type))
        for field in table.schema
    ]
    allowed = _run_columns(types, identity)
    if found not in allowed:
        yield f"its columns are {_columns(found)}, not {_columns(allowed[0])}"
        return
    if any(table[name].null_count for name in ("hash", "start", "value")):
        yield "it has nulls"
        return
    if table.num_rows != run.rows:
        yield f"it has {table.num_rows} rows, not {run.rows}"
    if table.num_rows == 0:
        return
    hashes, starts = layout.as_numpy(table, "hash"), layout.as_numpy(table, "start")
    columns = [layout.one_chunk(table[f"key{i}"]) for i in range(len(types))]
    made = keys.hash_keys(columns, len(hashes))
    if layout.CURRENT in table.column_names:
        is_said = table[layout.CURRENT].is_valid().to_numpy()
        if (is_said[:-1] & keys.same_as_previous(columns, len(hashes))[1:]).any():
            yield "it says what is current at a row that is not the last of its key"
    if not np.array_equal(hashes, made):
        yield "its hashes are not those of its keys"
    if (hashes[1:] < hashes[:-1]).any():
        yield "it is not sorted by hash"
    if is_own and not run.low <= int(hashes.min()) <= int(hashes.max()) < run.high:
        yield f"it has hashes that are not from {run.low} to {run.high}"
    if (int(starts.min()), int(starts.max())) != (run.first, run.last):
        yield f"its starts are from {starts.min()} to {starts.max()}, not from {run.first} to {run.last}"
    if layout.DUE in table.column_names:
        yield from _problems_of_times(run, table)


def _problems_of_times(run: Run, table: pa.Table) -> Iterator[str]:
    """Yield what is wrong with the times that stand beside the states of an ordered task: a timer might never be called."""
    values = layout.one_chunk(table["value"])
    for name, column in (("newest", values.field("newest")), (layout.DUE, first_due(values.field("timers")))):
        if not layout.one_chunk(table[name]).equals(column):
            yield f"its column {name} is not that of its values"
    due = layout.as_numpy(table, layout.DUE)
    due = due[due < END]
    found = (int(due.min()), int(due.max())) if len(due) else (None, None)
    if found != (run.due, run.last_due):
        yield f"its timers are due from {found[0]} to {found[1]}, not from {run.due} to {run.last_due}"


def _name_of_values(type: pa.DataType, run: Run, identity: Mapping[str, Any]) -> str:
    """Return the name of the type of a run's values: of values that may get another type, that as which they are read."""
    name: str = identity["monoid"]["type"]
    if not {"passed", "replaced"} & identity.get("window", {}).keys():
        return str(type)
    try:
        return name_of(type) if misfits(type, type_named(name), run.dropped) else name
    except ValueError:
        return name_of(type)


def _run_columns(types: Sequence[str], identity: Mapping[str, Any]) -> list[list[tuple[str, str]]]:
    """Return the lists of columns that runs of a task with these key types may have."""
    kind, window = identity["monoid"]["type"], identity.get("window", {})
    rows = [("hash", "uint64"), *((f"key{i}", type) for i, type in enumerate(types)), ("start", "int64")]
    rows += [(name, "int64") for name in kind_of(windows.from_identity(identity)).columns]
    rows.append(("value", kind))
    ordered = list(zip(layout.ORDER, map(str, layout.ORDER_TYPES), strict=True))
    edges = [(layout.HEAD, kind), (layout.TAIL, kind)]
    if "message_id" in identity:
        with_id = [*rows, (layout.ID, identity["message_id"])]
        found = [[*with_id, ordered[0]], [*with_id, *ordered]]
    else:
        found = [rows, [*rows, *ordered], [*rows, (layout.CURRENT, kind)]]
    return [*found, [*found[0], *edges]] if "size" in window else found


def _side_problems(side: SideFile, data: pa.Buffer) -> Iterator[str]:
    table = _table(data)
    wanted = [(name, str(type)) for name, type in SIDE_COLUMNS.items()]
    found = [(field.name, str(field.type)) for field in table.schema]
    # Older versions kept records as text.
    older = [*wanted[:-1], ("record", "string")]
    *others, (last, _) = found
    if [each for each in others if each[0] not in ("origin", PARTITION)] not in (wanted, older) or last != "row":
        yield f"its columns are {_columns(found)}, not {_columns([*wanted, ('row', 'struct')])}"
        return
    reasons = Counter(late_rows.left(table, side)["reason"].to_pylist())
    if reasons != Counter(side.reasons):
        yield f"it holds {dict(reasons)}, not {dict(side.reasons)}"


def _list_problems(data: pa.Buffer) -> Iterator[str]:
    for number, line in enumerate(bytes(data).splitlines(), 1):
        if not isinstance(json.loads(line), str):
            yield f"its line {number} is no text"


def _table(data: pa.Buffer) -> pa.Table:
    table = pa.ipc.open_file(data).read_all()
    table.validate(full=True)
    return table


def _columns(columns: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {type}" for name, type in columns)


def _epoch(path: str) -> int:
    found = re.fullmatch(r"(\d+)-.*", path.rpartition("/")[2])
    return int(found[1]) if found else 0
