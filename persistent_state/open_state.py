"""Open a store without Spark: its applications, their tasks, and a task's state at a clock, of all keys or of some."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from monoids import Aggregator, Monoid
from persistent_state.edges.in_order.parts import with_states
from persistent_state.errors import InvalidInputError, NotThereError, StateError
from persistent_state.formatting import Clock, full_clock
from persistent_state.ordered import InOrderTask
from persistent_state.partials.changed import Changed, are_equal
from persistent_state.protocol.naming import clock_named
from persistent_state.show import html
from persistent_state.show.history import history
from persistent_state.show.plot import plot
from persistent_state.store.asked import asked_keys
from persistent_state.store.entries import Entries
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log
from persistent_state.store.net_changes import NetChanges, net_changes
from persistent_state.store.state_at import (
    Answer,
    StateAt,
    entries_of,
    find_applications,
    find_state,
    newest_entry,
)
from persistent_state.task import BaseTask, PersistentTask, instance_of

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

Monoids: TypeAlias = "Sequence[Monoid[Any] | Aggregator[Any, Any, Any]]"

CHANGE_TYPE = "_change_type"
"""The column of changes that says what a row is, in Delta's words."""

CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete")

PART = 1 << 18
"""About how many stored rows are opened at a time where rows are given batch by batch."""

BYTES = 64 << 20
"""About how many bytes of them are opened at the most, and are in a batch."""

ROWS = 1 << 16
"""The most rows of a batch."""


def open_store(url: str, *, storage_options: Mapping[str, Any] | None = None) -> OpenStore:
    """Open a store, to read what its applications keep. Nothing is read before something is asked for.

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
            task = with_states(task)
        if not isinstance(task, (PersistentTask, str)):
            raise InvalidInputError(
                f"task={task!r} is not a task; give its name, or an instance of it, such as {instance_of(task)}."
            )
        return OpenTask(self.files, self.name, task, tuple(monoids), presented)

    def history(self) -> pa.Table:
        """Return how the clocks have moved, as far back as the log has entries: some minutes, and each kept clock.

        Returns:
            A table with a row for each log entry and each task that was part of the application then, the oldest first: when
            the entry was `written`, its number `entry`, the `task`, the task's `clock`, the `global_clock`, and the `timeline`.
            Times and clocks are timestamps in UTC, null while there is none.

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
    """A task of an open store: whoever asks for its state says at which clock.

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


class _Rows(ABC):
    """Rows of an open store, which Arrow's stream interface gives to DuckDB, polars and others, batch by batch."""

    _title: ClassVar[str]
    """The title of them in a notebook."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns and their types."""

    @abstractmethod
    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, within bounded memory."""

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table, in no particular order.

        Raises:
            NotThereError: A clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.
        """
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a pandas DataFrame, as `to_arrow().to_pandas()`.

        Raises:
            NotThereError: A clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.
        """
        return self.to_arrow().to_pandas()

    @abstractmethod
    def _facts(self) -> dict[str, str]:
        """Return whose rows these are, and of when, by name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={fact}' for name, fact in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html.rows(self._title, self._facts())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Give the batches to whoever reads Arrow's streams."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)


@dataclass(repr=False)
class OpenState(_Rows):
    """A task's state at a clock. DuckDB, polars and all that reads Arrow's streams can read it as a table.

    As long as the clock is retained or kept, it is answered exactly, also while the application commits, collects what it has
    rewritten, or is taken back to a clock at or above this one. After that a question is answered exactly, or refused.

    The columns are the key columns and `value`. Of a `WindowState` there is a row for each key and window that is open at the
    clock and holds a message; `window_start` and `window_end`, timestamps in UTC, stand before `value`.

    Args:
        state: Where it is stored.

    Example:
        >>> state = open_store("tests/fixtures/store-v1").application("app").task("Totals").at(160)
        >>> state.clock, state.timeline, state.schema.names
        (160, 0, ['shop', 'item', 'value'])
        >>> sum(batch.num_rows for batch in state.batches()) == state.to_arrow().num_rows
        True
    """

    _title = "State"

    state: StateAt

    @property
    def clock(self) -> int:
        """The clock, in microseconds UTC."""
        return self.state.clock

    @property
    def timeline(self) -> int:
        """The application's timeline. Together with the clock it names the state, for ever unless the task is rebuilt."""
        return self.state.timeline

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types: the key columns, those of the window if there are windows, and `value`."""
        return self.state.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the state in batches, within bounded memory: a range of the keys' hash is read at a time.

        Raises:
            NotThereError: The clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.
        """
        count = _parts(self.state)
        for number in range(count):
            for table in self._answer(partial(_tables_of_part, number=number, parts=count)):
                yield from batches_of(table)

    def to_arrow(self) -> pa.Table:
        """Return the state as a table, a row per key or per window of a key, in no particular order.

        Raises:
            NotThereError: The clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.
        """
        return self._answer(StateAt.table)

    def get(self, key: Any = ()) -> Any:
        """Return the value of a key, as `to_arrow().to_pylist()` has it. Only the blocks of the runs that may hold it are read.

        Args:
            key: The value of the key column; of several columns a tuple in their order, or a mapping by their names. Without
                key columns leave it out.

        Returns:
            The value; None if the key is not there, or has expired. Of a `WindowState` a dictionary of the windows that are
            open and hold a message, the earliest first. The key of a window is its start and end in microseconds UTC.

        Raises:
            InvalidInputError: The key is not of the types of the key columns, or the clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.

        Example:
            >>> state = open_store("tests/fixtures/store-v1").application("app").task("Totals").at(160)
            >>> state.get(("Bergen", 1)) == state.get({"item": 1, "shop": "Bergen"})
            True
            >>> state.get(("Oslo", 1)) is None
            True
        """
        return self.get_many([key])[0]

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """Return the values of keys. A block that several of them need is read once.

        Args:
            keys: The keys, each as `get` takes it.

        Returns:
            What `get` returns of each key, in their order.

        Raises:
            InvalidInputError: As `get`.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.

        Example:
            >>> state = open_store("tests/fixtures/store-v1").application("app").task("Notes").at(160)
            >>> [notes and notes[0] for notes in state.get_many(["Bergen", "Oslo", None])]
            ['n1', None, 'n2']
        """
        asked, places = asked_keys(self.state, [*keys])
        table, spans = self._answer(lambda state: state.of_keys(asked))
        values = table["value"].to_pylist()
        windows = self.state.layout.kind.window_columns
        if not windows:
            return [values[spans[place][0]] if spans[place][0] < spans[place][1] else None for place in places]
        edges = [*zip(*(table[name].cast(pa.int64()).to_pylist() for name in windows), strict=True)]
        return [dict(zip(edges[slice(*spans[place])], values[slice(*spans[place])], strict=True)) for place in places]

    def _facts(self) -> dict[str, str]:
        return {**_names(self.state), "clock": full_clock(self.clock), "timeline": str(self.timeline)}

    def _answer(self, ask: Callable[[StateAt], Answer]) -> Answer:
        """Return the answer of the state, whose runs may have been rewritten since, and remember those that hold it now."""
        answer, self.state = self.state.answer(ask)
        return answer


@dataclass(repr=False)
class OpenChanges(_Rows):
    """The net changes of a task's state between two clocks, in the words of Delta's change data feed.

    The columns are those of the state, and `_change_type`, a text. A key, or a window of a key, that is there at the later
    clock only has one row, `insert`; one that is there at the earlier clock only has one row, `delete`, with the value that it
    had. One whose value is another has two rows, one behind the other: `update_preimage` with the value at the earlier clock,
    and `update_postimage` with that at the later one. A window that closed between the clocks, and a key that expired, is
    deleted.

    Args:
        changes: Where they are stored.

    Example:
        >>> totals = open_store("tests/fixtures/store-v1").application("app").task("Totals")
        >>> changes = totals.changes(160)
        >>> changes.since.clock, changes.until.clock, changes.schema.names
        (160, 220, ['shop', 'item', 'value', '_change_type'])
    """

    _title = "Changes"

    changes: NetChanges

    @property
    def since(self) -> OpenState:
        """The state at the earlier clock."""
        return OpenState(self.changes.since)

    @property
    def until(self) -> OpenState:
        """The state at the later clock."""
        return OpenState(self.changes.until)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the state and their types, and `_change_type`."""
        return schema_of_changes(self.changes.until)

    def _facts(self) -> dict[str, str]:
        since, until = self.changes.since, self.changes.until
        clocks = {"since": full_clock(since.clock), "until": full_clock(until.clock)}
        return {**_names(until), **clocks, "timeline": str(until.timeline)}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes in batches, within bounded memory: a range of the keys' hash is read at a time.

        Raises:
            NotThereError: A clock is no longer retained.
            DamagedError: A file is not what was written.
            TaskFailedError: What presents the values raised.
        """
        count = 1 + self.changes.rows // PART
        for number in range(count):
            for some in self.changes.part(number, count).read():
                yield from batches_of(change_rows(some, self.changes.until))


def _names(state: StateAt) -> dict[str, str]:
    return {"application": state.application, "task": state.task}


def _parts(state: StateAt) -> int:
    """Return the number of parts in which a state is read within bounded memory."""
    # Starts cut a file into many runs, of which each tells the rows of the whole file.
    of_files = {run.file.path: run for run in state.runs}.values()
    return 1 + max(sum(run.rows for run in of_files) // PART, sum(run.file.length for run in of_files) // BYTES)


def _tables_of_part(state: StateAt, number: int, parts: int) -> Iterator[pa.Table]:
    return state.part(number, parts).tables()


def batches_of(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Return the rows of a table in batches that are not too large."""
    rows = max(1, min(ROWS, BYTES * len(table) // max(1, table.nbytes)))
    return iter(table.to_batches(rows))


def _check_timeline(state: StateAt, timeline: int, entries: Entries) -> None:
    """Refuse a state that is another than that at its clock in this timeline.

    Raises:
        NotThereError: It is another.
    """
    origin = entries.newest.timeline
    if state.kept is not None:
        # The clock may have gone, and its entry with it: then nobody can tell.
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


def schema_of_changes(state: StateAt) -> pa.Schema:
    """Return the columns of the changes of a state: its own, and the type of the change."""
    return state.schema.append(pa.field(CHANGE_TYPE, pa.string()))


def change_rows(some: Changed, state: StateAt) -> pa.Table:
    """Return changes as users see them. Where nothing differs there is no row, though messages may have come."""
    schema = schema_of_changes(state)
    was, is_there = (np.asarray(values.is_valid()) for values in (some.before, some.after))
    before, after = state.present(some.before), state.present(some.after)
    differs = was & is_there & ~are_equal(before, after)
    counts = np.where(was & is_there, 2 * differs, was | is_there)
    rows = np.repeat(np.arange(len(counts)), counts)
    is_second = np.arange(len(rows)) > np.repeat(np.cumsum(counts) - counts, counts)
    is_after = is_second | ~was[rows]
    kinds = np.where(differs[rows], np.where(is_second, 2, 1), np.where(is_after, 0, 3))
    table = some.rows.drop_columns(["hash"]).take(pa.array(rows))
    values = pa.concat_arrays([before, after]).take(pa.array(rows + len(counts) * is_after))
    columns = [*table.columns, values, pa.array(CHANGE_TYPES).take(pa.array(kinds))]
    return pa.table(columns, names=schema.names).cast(schema)
