"""Open a store without Spark: its applications, their clocks and late rows, their tasks, and a task's state at a clock."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from monoids import Aggregator, Monoid
from persistent_state.edges.parts import parts
from persistent_state.errors import InvalidInputError, NotThereError, StateError
from persistent_state.formatting import Clock, full_clock
from persistent_state.open_rows import OpenChanges as OpenChanges
from persistent_state.open_rows import OpenState as OpenState
from persistent_state.ordered import InOrderTask
from persistent_state.protocol import backup, branch, naming
from persistent_state.protocol.naming import clock_named
from persistent_state.show import html
from persistent_state.show.history import history
from persistent_state.show.plot import plot
from persistent_state.store.entries import Entries
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log
from persistent_state.store.net_changes import net_changes
from persistent_state.store.state_at import (
    StateAt,
    entries_of,
    find_applications,
    find_state,
    newest_entry,
    read_sides,
)
from persistent_state.task import BaseTask, PersistentTask, instance_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Monoids: TypeAlias = "Sequence[Monoid[Any] | Aggregator[Any, Any, Any]]"


_logger = logging.getLogger("persistent_state")


def open_store(url: str, *, storage_options: Mapping[str, Any] | None = None) -> OpenStore:
    """Open a store: read what its applications keep, keep their clocks by name, and branch them.

    Nothing is read before something is asked for.

    Args:
        url: The store's folder or URL.
        storage_options: What fsspec needs to open the store.

    Returns:
        The store.

    Raises:
        InvalidInputError: The URL is not one of a store, or the package for it is missing.

    Example:
        >>> totals = open_store("tests/fixtures/store-v1").application("app").task("Totals")
        >>> totals.at(160).get(("Bergen", 1))
        {'sales': 4, 'total': 488}
    """
    return OpenStore(open_files(url, storage_options))


def read_state(
    store: str,
    application: str,
    task: BaseTask | str,
    clock: Clock | None = None,
    *,
    monoids: Monoids = (),
    presented: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Return a task's state at a clock, a row per key.

    Nothing of the store is executed. The monoid is that of `task`, and must be the one that the store was written with. If the
    task is only named, the monoid is one of the `monoids` package or of the argument `monoids`: the one whose identity the log
    has.

    Args:
        store: The store's folder or URL.
        application: The application's name.
        task: The task, or its name.
        clock: One of `OpenApplication.clocks`, or the name of a kept clock; by default the newest, which is the global clock.
        monoids: Your own monoids and aggregators, where the task is only named.
        presented: True for values as outputs show them: as a Summary or an Aggregator presents them. If the task is only named,
            give its Aggregator in `monoids`.
        storage_options: What fsspec needs to open the store.

    Returns:
        The key columns and `value`, in no particular order. A `WindowState` gives a row for each key and window that is open at
        the clock and holds a message; `window_start` and `window_end`, timestamps in UTC, stand before `value`.

    Raises:
        InvalidInputError: There is no such application or task, the clock is not retained, the monoid is not known, or its
            values are not of the type that is presented.
        DamagedError: A file is not what was written.
        TaskFailedError: What presents the values raised.

    Example:
        >>> totals = read_state("tests/fixtures/store-v1", "app", "Totals", clock=160)
        >>> totals.column_names
        ['shop', 'item', 'value']
        >>> [row["value"] for row in totals.to_pylist() if (row["shop"], row["item"]) == ("Bergen", 1)]
        [{'sales': 4, 'total': 488}]
    """
    found = open_store(store, storage_options=storage_options).application(application)
    return found.task(task, monoids=monoids, presented=presented).at(clock).to_arrow()


@dataclass(frozen=True)
class OpenStore:
    """A store that was opened by `open_store`.

    Args:
        files: Its files.

    Example:
        >>> open_store("tests/fixtures/store-v1").applications()
        ['app']
    """

    files: Files

    def applications(self) -> list[str]:
        """Return the names of the store's applications.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        return find_applications(self.files)

    def application(self, name: str) -> OpenApplication:
        """Return an application. Whether there is one is known when something is asked of it.

        Args:
            name: The application's name.
        """
        return OpenApplication(self.files, name)

    def _repr_html_(self) -> str:
        return _shown(lambda: html.store(self.files))


@dataclass(frozen=True)
class OpenApplication:
    """An application of an open store. It may run, and what it commits is seen by whatever is asked next.

    Args:
        files: The store's files.
        name: The application's name.

    Example:
        >>> app = open_store("tests/fixtures/store-v1").application("app")
        >>> app.tasks(), app.clocks()
        (['Notes', 'Totals'], [160, 200, 220])
    """

    files: Files
    name: str

    def tasks(self) -> list[str]:
        """Return the names of the application's tasks.

        Raises:
            NotThereError: There is no such application.
        """
        return sorted(newest_entry(self.files, self.name).tasks)

    def clocks(self) -> list[int]:
        """Return the clocks at which the state can be read, in microseconds UTC, ascending. The last is the global clock.

        Raises:
            NotThereError: There is no such application.
        """
        return newest_entry(self.files, self.name).readable

    def task(self, task: BaseTask | str, *, monoids: Monoids = (), presented: bool = False) -> OpenTask:
        """Return a task. Whether there is one is known when its state is asked for.

        Args:
            task: The task, or its name.
            monoids: Your own monoids and aggregators, where the task is only named.
            presented: True for values as outputs show them: as a Summary or an Aggregator presents them. If the task is only
                named, give its Aggregator in `monoids`.

        Raises:
            InvalidInputError: `task` is neither.
        """
        if isinstance(task, InOrderTask):
            task = parts(task)[1].opened_as
        if not isinstance(task, (PersistentTask, str)):
            raise InvalidInputError(
                f"task={task!r} is not a task; give its name, or an instance of it, such as {instance_of(task)}."
            )
        return OpenTask(self.files, self.name, task, tuple(monoids), presented)

    def late_rows(self, task: BaseTask | str) -> list[pa.Table]:
        """Return the late and bad rows of a task, each once.

        Args:
            task: The task, or its name.

        Returns:
            A table per file. Columns are `reason`, `timestamp` (microseconds UTC), `partition`, `channel`, `position`, `record`
            (the bytes as they came, where the source has them), `origin` (a struct of where the record stood, such as its file
            and line; missing if the source does not say) and `row` (a struct of the source's own columns; null for a record
            that could not be decoded). Tables of different versions of the source may have different columns. A column of
            `row` in which Python lacks a value, as a date beyond the year 9999, is text: `to_pylist` converts all rows.

        Raises:
            NotThereError: There is no such application or task.
            DamagedError: A file is not what was written.

        Example:
            >>> tables = open_store("tests/fixtures/store-v1").application("app").late_rows("Totals")
            >>> sorted((row["reason"], row["position"]) for table in tables for row in table.to_pylist())
            [('late', 25), ('no timestamp', 13), ('no timestamp', 47)]
        """
        return read_sides(self.files, self.name, task)

    def keep(self, name: str, clock: Clock | None = None) -> int:
        """Keep a clock by a name, until it is released. The application may run meanwhile.

        Args:
            name: The name. A clock may have several, and a name is that of one clock.
            clock: One of the kept clocks, or a name of it; by default the newest, which is the global clock.

        Returns:
            The clock, in microseconds UTC.

        Raises:
            InvalidInputError: There is no such application, the clock is not kept, or another clock has the name.
            CommitUnknownError: The store did not answer. Do it again.

        Example:
            >>> open_store("tests/fixtures/store-v1").application("app").keep("before the sale", 160)
            Traceback (most recent call last):
            ...
            persistent_state.errors.InvalidInputError: app keeps no clock yet; start it once, and it keeps its newest.
        """
        if not isinstance(name, str):
            raise InvalidInputError(f"name={name!r} is not a text; give one by which to release the clock.")
        log = Log(self.files, self.name)
        return naming.keep(log, _clock_of(log, clock), name, _now_us())

    def release(self, name: str) -> int:
        """Keep a clock no longer by this name. Its files go when nothing else keeps the clock.

        Args:
            name: The name that it was given.

        Returns:
            The clock, in microseconds UTC.

        Raises:
            InvalidInputError: There is no such application or name.
            CommitUnknownError: The store did not answer. Do it again.

        Example:
            >>> open_store("tests/fixtures/store-v1").application("app").release("sale")
            Traceback (most recent call last):
            ...
            persistent_state.errors.InvalidInputError: name='sale' is the name of no kept clock of app; no clock has a name.
        """
        return naming.release(Log(self.files, self.name), name, _now_us())

    def branch(
        self,
        new: str,
        clock: Clock | None = None,
        *,
        to: str | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        to_storage_options: Mapping[str, Any] | None = None,
    ) -> int:
        """Make another application of this one at a kept clock: with its state and its positions, without its outputs.

        The new one has files of its own, and each is verified. The old one may run meanwhile. A call that is interrupted leaves
        no new application, and the next call goes on. A warning names each task that was left out at the clock, and one says
        what the outputs of windows and of emitted rows begin with.

        Args:
            new: The name of the new application.
            clock: One of the kept clocks, or a name of it; by default the newest, which is the global clock.
            to: The folder or URL of the store for the new application, by default the same.
            on_progress: Called after each file with the number of bytes that are copied, and of those that are to be.
            to_storage_options: What fsspec needs to open `to`.

        Returns:
            The clock, in microseconds UTC.

        Raises:
            InvalidInputError: There is no such application, the clock is not kept, or is released meanwhile, or the new name
                can't be used, or is that of an application.
            DamagedError: A file is not what was written.
            StoreUnavailableError: A store does not answer. Do it again.
            CommitUnknownError: The store did not answer. Look whether the new application is there, and else do it again.

        Example:
            >>> open_store("tests/fixtures/store-v1").application("app").branch("app-green", 160)
            Traceback (most recent call last):
            ...
            persistent_state.errors.InvalidInputError: app keeps no clock yet; start it once, and it keeps its newest.
        """
        log, there = Log(self.files, self.name), self.files if to is None else open_files(to, to_storage_options)
        entry = branch.branch(
            log,
            Log(there, new),
            _clock_of(log, clock),
            now=_now_us(),
            new_id=lambda: uuid.uuid4().hex[:16],
            tell=on_progress or (lambda done, size: None),
        )
        for note in branch.notes(entry, new):
            _logger.warning("%s", note)
        return entry.clock

    def backup(
        self,
        to: str,
        last: int = 7,
        *,
        on_progress: Callable[[int, int], None] | None = None,
        to_storage_options: Mapping[str, Any] | None = None,
    ) -> int:
        """Copy the newest clock to a store of backups, as `docs/backup.md` says. Only files that are not there are copied.

        The application may run meanwhile, and its own store is only read. A call that is interrupted leaves no backup, and the
        next one goes on.

        Args:
            to: The folder or URL of the store of backups. There the application has the same name.
            last: How many clocks are kept there. Older ones go.
            on_progress: Called after each file with the number of bytes that are copied, and of those that are to be.
            to_storage_options: What fsspec needs to open `to`.

        Returns:
            The clock, in microseconds UTC.

        Raises:
            InvalidInputError: There is no such application, or no clock yet, or the place has something else than its backups.
            DamagedError: A file is not what was written.
            StoreUnavailableError: A store does not answer. Do it again.
            CommitUnknownError: The store of backups did not answer. Do it again.

        Example:
            >>> open_store("tests/fixtures/store-v1").application("app").backup("memory://backups")
            Traceback (most recent call last):
            ...
            persistent_state.errors.InvalidInputError: app keeps no clock yet; start it once, and it keeps its newest.
        """
        entry = backup.backup(
            Log(self.files, self.name),
            Log(open_files(to, to_storage_options), self.name),
            last,
            now=_now_us(),
            show=on_progress or (lambda done, size: None),
        )
        return entry.clock

    def history(self) -> pa.Table:
        """Return how the clocks have moved, as far back as the log has entries: some minutes, and each kept clock.

        Returns:
            A table with a row for each log entry and each task that was part of the application then, the oldest first: when
            the entry was `written`, its number `entry`, the `task`, the task's `clock`, the `global_clock`, and the `timeline`.
            Times and clocks are timestamps in UTC, null before the first.

        Raises:
            NotThereError: There is no such application.
            DamagedError: The log is not what was written.

        Example:
            >>> history = open_store("tests/fixtures/store-v1").application("app").history()
            >>> history["task"].to_pylist()[-2:], history["clock"].cast("int64").to_pylist()[-2:]
            (['Notes', 'Totals'], [220, 220])
        """
        return history(Log(self.files, self.name))

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot `history` with matplotlib: the clock of each task, and the global clock, over the time of the wall clock.

        A dotted line stands where the application was taken back.

        Args:
            axes: Where to draw; by default axes of a new figure.

        Returns:
            The axes.

        Raises:
            InvalidInputError: There is no such application, or the package matplotlib is not installed.
            DamagedError: The log is not what was written.

        Example:
            >>> open_store("tests/fixtures/store-v1").application("app").plot().get_title()
            'app'
        """
        return plot(self.name, self.history(), axes)

    def _repr_html_(self) -> str:
        return _shown(lambda: html.application(self.files, self.name))


@dataclass(frozen=True)
class OpenTask:
    """A task of an open store. Its state is read at the clock that you name.

    Args:
        files: The store's files.
        application: The application's name.
        task: The task, or its name.
        monoids: The user's own monoids and aggregators.
        presented: Whether values are shown as outputs show them.
        entries: The entries of the log, for many questions about one moment. By default each question reads the log.

    Example:
        >>> notes = open_store("tests/fixtures/store-v1").application("app").task("Notes")
        >>> notes.at("1970-01-01T00:00:00.000160Z").get("Bergen")[:3]
        ['n1', 'n4', 'n7']
    """

    files: Files = field(repr=False)
    application: str
    task: PersistentTask | str
    monoids: tuple[Monoid[Any] | Aggregator[Any, Any, Any], ...] = ()
    presented: bool = False
    entries: Entries | None = field(default=None, repr=False, compare=False)

    def at(self, clock: Clock | None = None, *, timeline: int | None = None) -> OpenState:
        """Return the task's state at a clock. Nothing of the store is executed.

        The state is settled now: whatever the application does meanwhile, it is given as it is at this clock, or refused.

        Args:
            clock: A clock of `OpenApplication.clocks`: microseconds, ISO text, a `datetime` with a zone, or the name of a kept
                clock. By default the newest, which is the global clock.
            timeline: The `timeline` of a state that was read at this clock before. If the application was taken back since, to
                a clock before this one, the state at the clock is another, and is refused. By default it is given. A task that
                was rebuilt since is read as what it is now, as long as the clock is among the newest.

        Raises:
            NotThereError: There is no such application or task, the clock is not retained, or its timeline has ended before it.
            InvalidInputError: The monoid is not known, or the type of what is presented is not.
            DamagedError: The log is not what was written.
        """
        entries = self.entries or entries_of(Log(self.files, self.application))
        at = None if clock is None else clock_named(entries.log, clock)
        state = find_state(self.files, self.application, self.task, at, self.monoids, self.presented, entries)
        if timeline is not None and timeline != state.timeline:
            _check_timeline(state, timeline, entries)
        # Whether its type is known is said now, and not when it is read.
        _ = state.schema
        return OpenState(state)

    def changes(self, since: Clock | OpenState, until: Clock | OpenState | None = None) -> OpenChanges:
        """Return what changed in the state between two clocks: the net changes of each key, or of each window of a key.

        A key that comes and goes between the clocks is no change, and neither is a value that is the same at both. Values are
        compared as they are shown; 0.0 and -0.0 are the same, and NaN is the same as NaN.

        Args:
            since: The clock before, or the state then. A state names its timeline, and is refused if that has ended before it.
            until: The clock after, or the state then; by default the newest clock.

        Raises:
            NotThereError: As `at`; or a state is of another timeline.
            InvalidInputError: As `at`; or `since` is None or after `until`, or a state is another task's, or the values at the
                two clocks have two types.
            DamagedError: The log is not what was written.

        Example:
            >>> totals = open_store("tests/fixtures/store-v1").application("app").task("Totals")
            >>> for row in totals.changes(200, 220).to_arrow().to_pylist():
            ...     if row["shop"] == "Bergen":
            ...         print(row["item"], row["value"], row["_change_type"])
            None {'sales': 7, 'total': 872} update_preimage
            None {'sales': 8, 'total': 1024} update_postimage
        """
        if since is None:
            raise InvalidInputError("since=None is not a clock; give one, or read at(), where every key is new.")
        last = until if isinstance(until, OpenState) else self.at(until)
        first = since if isinstance(since, OpenState) else self.at(since)
        newest = None if self.entries is None else self.entries.newest
        return OpenChanges(net_changes(*_checked(first.state, last.state), newest))

    def _repr_html_(self) -> str:
        name = self.task if isinstance(self.task, str) else self.task.task_name
        return _shown(lambda: html.task(self.files, self.application, name))


def _shown(show: Callable[[], str]) -> str:
    """Return what a notebook shows; a sentence if the store can't be read, as it is asked for nothing but a look."""
    try:
        return show()
    except (StateError, OSError) as error:
        return html.sentence(str(error))


def _check_timeline(state: StateAt, timeline: int, entries: Entries) -> None:
    """Refuse a state that is another than that at its clock in this timeline.

    Raises:
        NotThereError: It is another.
    """
    origin = entries.newest.timeline
    if state.kept is not None:
        # The clock may have gone, and its entry with it: then it is unknown.
        with suppress(FileNotFoundError):
            origin = entries.kept(state.kept).timeline
    if not origin <= timeline <= entries.newest.timeline:
        raise NotThereError(
            f"clock={full_clock(state.clock)} of timeline={timeline} of {state.application} is gone: the application was taken "
            "back to a clock before it; open the clock without a timeline, and read its state anew."
        )


def _checked(since: StateAt, until: StateAt) -> tuple[StateAt, StateAt]:
    """Return two states, if one can be held against the other.

    Raises:
        NotThereError: The timeline of one has ended before its clock.
        InvalidInputError: They are of two tasks, in the wrong order, or of two types.
    """
    named = [f"task={state.task} of {state.application} in store={state.files.url}" for state in (since, until)]
    if named[0] != named[1]:
        raise InvalidInputError(f"since is of {named[0]}, and until of {named[1]}; give two states of one task.")
    first, last = full_clock(since.clock), full_clock(until.clock)
    if since.clock > until.clock:
        raise InvalidInputError(f"since={first} is after until={last}; give the earlier clock first.")
    types = [(state.schema, state.layout.monoid.type, state.presents is None) for state in (since, until)]
    if types[0] != types[1]:
        raise InvalidInputError(
            f"the state of task={until.task} at clock={first} has other types than at clock={last}; give the task itself, not "
            "its name, or read both states."
        )
    if since.timeline != until.timeline:
        newest = newest_entry(until.files, until.application)
        if gone := next((state for state in (since, until) if not state.is_of_timeline(newest)), None):
            raise NotThereError(
                f"clock={full_clock(gone.clock)} of timeline={gone.timeline} of {gone.application} is gone: the application "
                "was taken back to a clock before it; read its state anew."
            )
    return since, until


def _clock_of(log: Log, clock: Clock | None) -> int | None:
    return None if clock is None else clock_named(log, clock)


def _now_us() -> int:
    return time.time_ns() // 1000  # noqa: TID251 - people call this, on no machine of a world that is played
