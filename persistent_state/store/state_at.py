"""Find applications, tasks and clocks in a store, and read a task's state at a clock."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from monoids import Aggregator, Monoid, MonoidError, from_identity
from monoids.types import parse_type
from persistent_state import windows
from persistent_state.errors import (
    DamagedError,
    InvalidInputError,
    NotThereError,
    StoreRefusedError,
    StoreUnavailableError,
    TaskFailedError,
    at_definition,
    raised,
)
from persistent_state.event_time.clocks import BEGINNING, is_among
from persistent_state.formatting import COARSER_UNITS, full_clock, show_clock, show_identity
from persistent_state.partials import fold, keys, lookup
from persistent_state.partials.evolve import Evolving, misfits
from persistent_state.partials.kinds import kind_of, monoid_of
from persistent_state.partials.layout import Layout, as_numpy, below, between, one_chunk
from persistent_state.partials.since import Since
from persistent_state.partials.type_names import type_named
from persistent_state.state import KeptState, NonWindowState
from persistent_state.store import kept_entries, late_rows
from persistent_state.store import runs as runs_io
from persistent_state.store.entries import Entries
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import Files
from persistent_state.store.log import Log, check_name
from persistent_state.store.named_files import Run, SideFile
from persistent_state.store.task_state import TaskState
from persistent_state.task import BaseTask, PersistentTask, name_of_messages
from persistent_state.windows import FINAL

Answer = TypeVar("Answer")


class NoClockYetError(NotThereError):
    """A task is being built, and has a state at no clock yet. Ask again later."""


@dataclass(frozen=True)
class StateAt:
    """A task's state at a clock, or the part of it with low <= hash < high: the runs that hold it. Can be pickled.

    With `since` it is what an output is given at the clock instead. With `presents` its values are what that presents.
    `written` names the type of the values in the log. A clock means something within its `timeline` only, unless it is kept by
    the same entry, which is `kept`.
    """

    files: Files
    application: str
    task: str
    clock: int
    shards: int
    key_columns: tuple[str, ...]
    layout: Layout
    runs: tuple[Run, ...]
    born: int
    life: int
    floor: int
    written: str
    timeline: int
    kept: int | None
    since: Since | None = None
    low: int = 0
    high: int = 1 << 64
    presents: KeptState[Any] | None = None

    @property
    def schema(self) -> pa.Schema:
        """The key columns, those of the window if there are windows, and `value`."""
        value = self.layout.schema.field("value")
        if self.presents is not None:
            value = pa.field("value", self.presents.presented)
        final = [pa.field(FINAL, pa.bool_())] if self.since is not None and self.since.early else []
        keys = map(pa.field, self.key_columns, self.layout.key_types)
        return pa.schema([*keys, *self.layout.window_fields, *final, value])

    def part(self, number: int, parts: int) -> StateAt:
        """One of `parts` parts of the state, by the hash of the key."""
        low, high = keys.shard_range(number, parts)
        return replace(self, low=low, high=high).of(self.runs)

    def of(self, runs: Iterable[Run]) -> StateAt:
        """Return the same state, held by those of these runs that have a part of it."""
        cut = (
            replace(run, low=max(self.low, run.low), high=min(self.high, run.high))
            for run in runs
            if run.first < self.clock and run.low < self.high and self.low < run.high
        )
        return replace(self, runs=tuple(cut))

    def read(self) -> pa.Table:
        """One row per key.

        Raises:
            InvalidInputError: the clock is no longer retained, or the type of what is presented is not known.
            DamagedError: a file is not what was written.
        """
        return self.answer(StateAt.table)[0]

    def table(self) -> pa.Table:
        """Return what `read` returns.

        Raises:
            FileNotFoundError: A run was collected.
            DamagedError: A file is not what was written.
        """
        return pa.concat_tables([self.schema.empty_table(), *self.tables()])

    def tables(self) -> Iterator[pa.Table]:
        """Open the runs, and return an iterator of what `read` returns, piece by piece.

        Raises:
            FileNotFoundError: A run was collected. The iterator does not raise this.
            DamagedError: A file is not what was written.
        """
        return map(self._shown, opened_below(self.files, self.runs, self.layout, self.clock, self.since, self.floor))

    def of_keys(self, asked: pa.Table) -> tuple[pa.Table, list[tuple[int, int]]]:
        """Read the runs' blocks that may have some keys.

        Args:
            asked: The columns `hash`, `key0`…: each key once, sorted by all of them.

        Returns:
            Rows of `read`, and of each key that is asked for the numbers [low, high) of its rows.

        Raises:
            FileNotFoundError: A run was collected.
            DamagedError: A file is not what was written.
        """
        hashes = as_numpy(asked, "hash")
        known = hashes.tolist()
        some = self.of(run for run in self.runs if bisect_left(known, run.low) < bisect_left(known, run.high))
        read = partial(runs_io.read_run_with_sums, self.files, asked=[hashes], layout=self.layout)
        levels = [fold.touched(table, asked) for table in self.files.for_each(read, some.runs)]
        found = self.layout.kind.state([below(level, self.clock) for level in levels], self.layout, self.clock)
        return self._shown(found), lookup.rows_of(asked, found, self.layout)

    def answer(self, ask: Callable[[StateAt], Answer]) -> tuple[Answer, StateAt]:
        """Return the answer to a question that reads the runs, and the state with the runs that hold it now.

        The state at a kept clock is in the runs of its own entry, too: it is read of these if a newer run is damaged.

        Raises:
            NotThereError: The clock is no longer retained.
            DamagedError: A file is not what was written, or is missing.
        """
        state, tried = self, list[StateAt]()
        while True:
            try:
                return ask(state), state
            except (FileNotFoundError, DamagedError) as error:
                tried.append(state)
                entry = entry_at(self.files, self.application, self.clock)
                # Runs are rewritten and the old ones deleted, but the state at a clock that is retained or kept is in others.
                other = next((found for found in self._holders(entry) if found not in (None, *tried)), None)
                if other is not None:
                    state = other
                elif isinstance(error, DamagedError):
                    raise
                elif any(found is not None for found in self._holders(entry)):
                    raise runs_io.missing_of_newest(error) from error
                else:
                    raise self._gone(entry) from error

    def _holders(self, entry: Entry) -> Iterator[StateAt | None]:
        """Yield the same state by the entry from which the clock is read; None if it is not there, or no more."""
        yield self.within(entry)
        # It may be of a life that has ended since.
        yield self.within(entry_at(self.files, self.application, self.clock, self.task))
        if (number := _kept_by(entry, self.clock)) is not None:
            with suppress(FileNotFoundError, DamagedError):
                yield self.within(kept_entries.read(Log(self.files, self.application), number))

    def within(self, entry: Entry) -> StateAt | None:
        """Return the same state, held by the runs of an entry; None if these do not hold it."""
        task = entry.tasks.get(self.task)
        return self.of(task.stored.runs) if task is not None and self._is_in(entry, task) else None

    def _gone(self, entry: Entry) -> NotThereError:
        """Return the error for a state that is not in the store any more."""
        clock = f"clock={full_clock(self.clock)} of {self.application} is no longer retained"
        if not self.is_of_timeline(entry):
            return NotThereError(f"{clock}: the application was taken back to a clock before it; open a newer one.")
        return NotThereError(f"{clock}; open a newer one.")

    def _shown(self, table: pa.Table) -> pa.Table:
        """Return the rows as users see them."""
        if self.presents is not None:
            table = with_presented(table, self.present)
        # Within the library a window is whole numbers; users read timestamps.
        return table.drop_columns(["hash"]).rename_columns(self.schema.names).cast(self.schema)

    def _is_in(self, entry: Entry, task: TaskState) -> bool:
        """Return True if the same can be read of an entry."""
        is_same = (task.born, task.life, _written(task)) == (self.born, self.life, self.written)
        return (
            is_same
            and self.is_of_timeline(entry)
            and self.clock in _apart(entry, task)
            and self._is_known_since(entry, task)
        )

    def is_of_timeline(self, entry: Entry) -> bool:
        """Return True if the clock was before the timeline of an entry began, or is in it."""
        return entry.timeline == self.timeline or (_kept_by(entry, self.clock) == self.kept is not None)

    def _is_known_since(self, entry: Entry, task: TaskState) -> bool:
        """Return True if the changes since the clock before are still stored apart."""
        if self.since is None:
            return True
        if not self.layout.kind.expires:
            return self.since.clock in _apart(entry, task)
        is_kept = task.stored.floor <= max(self.since.clock, self.floor)
        return is_kept and self.since.recent in _apart(entry, task)

    def present(self, column: pa.Array) -> pa.Array:
        """Return what is shown of a column of values.

        Raises:
            TaskFailedError: What presents the values raised.
        """
        if self.presents is None:
            return column
        try:
            return self.presents.present(column)
        except Exception as error:
            raise failed_to_present(self.task, self.presents, error) from error


def failed_to_present(task: str, state: KeptState[Any], error: Exception) -> TaskFailedError:
    """Return the error that says what the user's `present` raised, or that it gave another type."""
    present = state.aggregator and state.aggregator.present
    at = at_definition(present) if present and isinstance(error, MonoidError) else ""
    return TaskFailedError(
        f"task={task}: what presents its values{at} raised {raised(error)}; correct it, or its type."
    )


def with_presented(table: pa.Table, present: Callable[[pa.Array], pa.Array]) -> pa.Table:
    """Return a table whose last column is `value`, with the values presented."""
    # Piece by piece: all of it may be more than Arrow holds in one.
    pieces = table["value"].chunks or [one_chunk(table["value"])]
    return table.set_column(table.num_columns - 1, "value", pa.chunked_array([present(piece) for piece in pieces]))


def _apart(entry: Entry, task: TaskState) -> tuple[int, ...]:
    """Return the clocks at which a task's state is kept. Under at-least-once delivery they may be above the global clock."""
    return (*entry.retained, entry.clock, *task.stored.cuts, BEGINNING)


def seen_below(
    files: Files,
    runs: Sequence[Run],
    layout: Layout,
    clock: int,
    since: Since | None = None,
    floor: int = BEGINNING,
    *,
    anew: bool = False,
) -> pa.Table:
    """Return what the rows of these runs below the clock add up to: the state, or the values since another clock."""
    return pa.concat_tables(opened_below(files, runs, layout, clock, since, floor, anew=anew))


def opened_below(
    files: Files,
    runs: Sequence[Run],
    layout: Layout,
    clock: int,
    since: Since | None = None,
    floor: int = BEGINNING,
    *,
    anew: bool = False,
) -> Iterator[pa.Table]:
    """Open the runs, and return an iterator of what `seen_below` returns, piece by piece: at least one.

    With `anew` what is read is verified also if this process has verified it before.

    Raises:
        FileNotFoundError: A run was collected. The iterator does not raise this.
        DamagedError: A file is not what was written.
    """
    # A run that begins at the clock or above it has nothing to say, even if it is damaged.
    runs = [run for run in runs if run.first < clock]
    if since is not None and not layout.kind.expires and all(run.last < since.clock for run in runs):
        runs = ()
    read = files.for_each(partial(runs_io.read_run_with_sums, files, layout=layout, anew=anew), runs)
    tables = [layout.schema.empty_table(), *(below(table, clock) for table in read)]

    def fold_slice(low: int, high: int) -> pa.Table:
        levels = [between(table, low, high) for table in tables]
        if since is None:
            return layout.kind.state(levels, layout, clock)
        return layout.kind.values(levels, layout, since, clock, floor)

    # A row that is in many windows makes many rows.
    return starmap(fold_slice, fold.slices(tables, share=layout.kind.windows_per_row(clock, since, floor)))


def find_state(
    files: Files,
    application: str,
    task: PersistentTask | str,
    clock: int | None = None,
    monoids: Sequence[Monoid[Any] | Aggregator[Any, Any, Any]] = (),
    presented: bool = False,
    entries: Entries | None = None,
) -> StateAt:
    """Find what `read_state` reads. With `entries`, only what these have not read yet is read."""
    name = task if isinstance(task, str) else task.task_name
    entries = entries or entries_of(Log(files, application))
    newest = entries.newest
    entry = newest if clock is None else entries.at(clock, name)
    if entry is None:
        raise no_application(files, application)
    if entry.number < newest.number and clock in newest.retained and name not in entry.tasks:
        # It is new since then, and has never been another.
        entry = newest
    if entry.number < newest.number and (name not in entry.tasks or entry.flow_of(name).visited < entry.clock):
        find_task(newest, application, name)
        raise NotThereError(
            f"task={name} had no state at clock={full_clock(entry.clock)} yet when that was the newest; read a later clock."
        )
    found = find_task(entry, application, name)
    at = check_clock(entry, found, name, clock)
    try:
        kept = _named(found.identity, monoids) if isinstance(task, str) else _checked(task, found.identity)
        columns = found.identity["key"]
        types = tuple(parse_type(column["type"]) for column in columns)
        layout = Layout(types, kept.monoid, kind_of(windows.from_identity(found.identity)), task=name)
    except MonoidError as error:
        raise InvalidInputError(f"task={name}: {error}") from error
    state = state_at(files, application, entry, name, layout, at)
    return replace(state, presents=kept) if presented and kept.aggregator is not None else state


def state_at(
    files: Files, application: str, entry: Entry, name: str, layout: Layout, clock: int, since: Since | None = None
) -> StateAt:
    """Return a task's state at a clock that an entry retains, or what an output is given at it."""
    task = entry.tasks[name]
    columns = tuple(column["name"] for column in task.identity["key"])
    return StateAt(
        files,
        application,
        name,
        clock,
        entry.shards,
        columns,
        layout,
        task.stored.runs,
        task.born,
        task.life,
        task.stored.floor,
        _written(task),
        entry.timeline,
        _kept_by(entry, clock),
        since,
    )


def _kept_by(entry: Entry, clock: int) -> int | None:
    """Return the number of the entry by which an entry keeps a clock; None if it does not."""
    return entry.kept[clock].entry if clock in entry.kept else None


def _written(task: TaskState) -> str:
    """Return the name of the type that a task's values have in the log."""
    name: str = task.identity["monoid"]["type"]
    return name


def _named(identity: Mapping[str, Any], given: Sequence[Monoid[Any] | Aggregator[Any, Any, Any]]) -> KeptState[Any]:
    """Return a state with the monoid of this identity, and with the Aggregator of it if one is given."""
    if (hidden := monoid_of(windows.from_identity(identity), identity["monoid"]["type"])) is not None:
        return NonWindowState(hidden)
    own = [each.monoid if isinstance(each, Aggregator) else each for each in given]
    monoid = from_identity(identity["monoid"], own)
    return NonWindowState(next((each for each, other in zip(given, own, strict=True) if other is monoid), monoid))


def _checked(task: PersistentTask, identity: Mapping[str, Any]) -> KeptState[Any]:
    kept = task.persistent_state()
    own = kept.identity()
    for what in sorted({*own, *identity} - {"key", "message_id", "inputs", "version", "declared"}):
        if identity.get(what) != own.get(what) and not (
            what == "monoid" and _goes_on_from(kept.monoid, identity[what])
        ):
            raise InvalidInputError(
                f"task={task.task_name}: the store was written with {what}={show_identity(identity.get(what))}, not "
                f"{show_identity(own.get(what))}; open it with the task that wrote it."
            )
    return kept


def _goes_on_from(monoid: Monoid[Any], identity: Mapping[str, Any]) -> bool:
    """Return whether values of the monoid with this identity can be read as those of another, which has other fields."""
    if not isinstance(monoid, Evolving) or {**identity, "type": ""} != {**monoid.identity, "type": ""}:
        return False
    try:
        return not misfits(type_named(identity["type"]), monoid.type)
    except ValueError:
        return False


def find_sides(files: Files, application: str, task: BaseTask | str) -> list[SideFile]:
    """Return the files of a task's late and bad rows, oldest first."""
    entry, name = newest_entry(files, application), task if isinstance(task, str) else task.task_name
    find_task(entry, application, name)
    # Late messages of an ordered task are with the task in which its messages wait.
    waiting = name_of_messages(name)
    names = [waiting, name] if entry.part_of.get(waiting) == name else [name]
    return [side for each in names for side in late_rows.all_of(files, entry.late_rows_of(each))]


def read_sides(files: Files, application: str, task: BaseTask | str) -> list[pa.Table]:
    """Return the late and bad rows of a task, oldest file first. Python has each of their values.

    Raises:
        NotThereError: There is no such application or task.
        DamagedError: A file is not what was written, or is missing.
    """
    sides = find_sides(files, application, task)
    while True:
        try:
            return [late_rows.readable(read_side(files, side)) for side in sides]
        except FileNotFoundError as error:
            # Files are joined and the old ones deleted, but the rows are in others then.
            if (again := find_sides(files, application, task)) == sides:
                raise runs_io.missing_of_newest(error) from error
            sides = again


def read_listed_side(files: Files, application: str, task: str, side: SideFile) -> pa.Table:
    """Return the late and bad rows of one of the files that `find_sides` returned.

    Raises:
        NotThereError: Its rows are in another file now.
        DamagedError: It is not what was written, or is missing.
    """
    try:
        return read_side(files, side)
    except FileNotFoundError as error:
        if side in find_sides(files, application, task):
            raise runs_io.missing_of_newest(error) from error
        raise NotThereError(f"{side.file.path} is no longer retained; look for the late rows again.") from error


def read_side(files: Files, side: SideFile) -> pa.Table:
    """Return the late and bad rows of one file.

    The format names `strand` what users read as `partition`, unless the partition stands beside it.

    Raises:
        FileNotFoundError: The file was collected, or is missing.
        DamagedError: It is not what was written.
    """
    rows = late_rows.read(files, side)
    if late_rows.PARTITION in rows.column_names:
        partition = pc.coalesce(rows[late_rows.PARTITION], rows["strand"])
        rows = rows.drop_columns([late_rows.PARTITION])
        rows = rows.set_column(rows.column_names.index("strand"), "strand", partition)
    return rows.rename_columns(["partition" if name == "strand" else name for name in rows.column_names])


def find_applications(files: Files) -> list[str]:
    """Return the applications of a store: its folders that have a log, or of which the store refuses to say that."""
    return [name for name in files.list("") if _has_log(files, name)]


def _has_log(files: Files, folder: str) -> bool:
    try:
        check_name(folder)
    except InvalidInputError:
        # A folder of others, such as a disk's lost+found.
        return False
    try:
        # Anybody may have a folder of this name.
        return bool(Log(files, folder).numbers())
    except StoreRefusedError:
        # A look into it raises that. The others are there all the same.
        return True
    except StoreUnavailableError as error:
        if isinstance(error.__cause__, NotADirectoryError):
            return False
        if isinstance(error.__cause__, PermissionError):
            return True
        raise


def newest_entry(files: Files, application: str) -> Entry:
    """Return the newest entry of an application's log.

    Raises:
        NotThereError: There is no such application.
        DamagedError: The entry is not what was written.
    """
    return entries_of(Log(files, application)).newest


def entries_of(log: Log) -> Entries:
    """Return the entries of an application as they are now.

    Raises:
        NotThereError: There is no such application.
        DamagedError: The newest entry is not what was written.
    """
    newest = log.newest()
    if newest is None:
        raise no_application(log.files, log.application)
    return Entries(log, newest)


def entry_at(files: Files, application: str, clock: int, task: str | None = None) -> Entry:
    """Return the entry from which the state at a clock is read: the newest, or that of a kept clock.

    A `task` that began from zero since is read as it was before.

    Raises:
        NotThereError: There is no such application.
        DamagedError: The entry is not what was written, or is missing.
    """
    entry = kept_entries.entry_at(Log(files, application), clock, task)
    if entry is None:
        raise no_application(files, application)
    return entry


def no_application(files: Files, application: str) -> NotThereError:
    """Return the error for an application that the store does not have."""
    there = find_applications(files)
    has = f"it has {', '.join(sorted(there))}" if there else "look at its name and address"
    return NotThereError(f"there is no application {application} in store={files.url}; {has}.")


def find_task(entry: Entry, application: str, name: str) -> TaskState:
    """Return what an entry records of a task.

    Raises:
        NotThereError: There is no such task.
    """
    if name not in entry.tasks:
        raise NotThereError(f"application {application} has no task {name}; it has {', '.join(sorted(entry.tasks))}.")
    return entry.tasks[name]


_YEARS = range(1900, 2101)
"""The numbers that a person means as a year, and not as microseconds."""


def check_clock(entry: Entry, task: TaskState, name: str, clock: int | None) -> int:
    """Return the clock to read at, a retained one at which the task existed. A stopped task is read at its own clock."""
    newest = min(entry.clock, entry.flows[task.flow].visited)
    at = newest if clock is None else clock
    if at == BEGINNING < entry.clock:
        raise NoClockYetError(
            f"task={name} is being built and has reached no clock yet; read it once it has caught up with "
            f"clock={full_clock(entry.clock)}."
        )
    if at != newest and not (task.born <= at <= newest and is_among(entry.retained, at)):
        readable = [c for c in entry.retained if task.born <= c <= newest]
        if task.active and at in entry.retained and at > newest:
            how = "is rebuilt and has" if task.life else "has"
            reached = "no clock yet" if newest == BEGINNING else f"clock={full_clock(newest)}"
            raise NotThereError(
                f"task={name} {how} reached {reached}; read clock={full_clock(at)} once it has caught up."
            )
        if at < task.born and at in (*entry.retained, *entry.kept):
            before = "" if at in entry.kept else ", which is not kept with what the task was before"
            nearest = nearest_clocks({*readable, newest, *(() if at in entry.kept else entry.kept)}, at)
            raise NotThereError(
                f"task={name} began, or was rebuilt or reset, after clock={full_clock(at)}{before}; read {nearest}."
            )
        kept = {*readable, newest, *(c for c in entry.kept if c >= task.born)}
        for unit, factor in COARSER_UNITS.items() if newest != BEGINNING else ():
            if at and min(kept) // factor <= at <= max(kept) // factor:
                raise NotThereError(
                    f"clock={at} of task={name} is not retained, and clocks are microseconds; in {unit} it would be "
                    f"{show_clock(at * factor)}: read clock={full_clock(min(kept))} to clock={full_clock(max(kept))}."
                )
        nearest = nearest_clocks(kept, at)
        as_year = f" ({at} is taken for microseconds; write {at}-01-01 for the year)" if at in _YEARS else ""
        raise NotThereError(
            f"clock={full_clock(at)} of task={name} is not retained{as_year}; read {nearest}. "
            "open_store(store).application(application).clocks() and `persistent-state show STORE APP` list all."
        )
    return at


def nearest_clocks(clocks: Collection[int], clock: int) -> str:
    """Return the clocks just below and above one that is not among them, as a message names them."""
    below, above = (
        max((c for c in clocks if c < clock), default=None),
        min((c for c in clocks if c > clock), default=None),
    )
    return " or ".join(f"clock={full_clock(c)}" for c in (below, above) if c is not None)
