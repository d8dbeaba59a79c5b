"""Opening a store without Spark: a task's state at a clock, its late and bad rows, and which clocks there are."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from persistent_state.errors import InvalidInput
from persistent_state.merge import Layout
from persistent_state.store import run as runs_io
from persistent_state.store import sides
from persistent_state.store.entry import Entry, TaskState
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log
from persistent_state.task import PersistentTask

_TYPES = {
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "double": pa.float64(),
    "bool": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date32[day]": pa.date32(),
    "timestamp[us]": pa.timestamp("us"),
    "timestamp[us, tz=UTC]": pa.timestamp("us", "UTC"),
}


def read_state(
    store: str, application: str, task: PersistentTask, clock: int | None = None, **storage_options: Any
) -> pa.Table:
    """A task's state at a clock, by default the newest global one: its key columns and `value`, one row per key.

    `clock` is microseconds UTC and must be one of `clocks`. The rows are in no particular order. Nothing of the store is
    executed: the monoid is that of `task`, and must be the one that the store was written with.

    Raises:
        InvalidInput: there is no such application or task, or the clock is not retained.
        Damaged: a file is not what was written.
    """
    files = open_files(store, **storage_options)
    entry = newest_entry(files, application)
    found = find_task(entry, application, task.task_name)
    at = check_clock(entry, found, task.task_name, clock)
    identity = task.persistent_state().identity()
    for what, wanted in identity.items():
        if found.identity[what] != wanted:
            raise InvalidInput(
                f"task={task.task_name}: the store was written with {what}={found.identity[what]}, not {wanted}; "
                "open it with the task that wrote it."
            )
    columns = found.identity["key"]
    layout = Layout(tuple(parse_type(column["type"]) for column in columns), task.persistent_state().monoid)
    try:
        table = runs_io.state_below(files, found.runs, layout, at)
    except FileNotFoundError as error:
        raise InvalidInput(f"clock={at} of {application} is no longer retained; open a newer one.") from error
    names = [column["name"] for column in columns]
    return table.select([*layout.key_names, "value"]).rename_columns([*names, "value"])


def read_late_rows(store: str, application: str, task: str, **storage_options: Any) -> list[pa.Table]:
    """The late and bad rows of a task, each once, with `reason`, `timestamp`, `strand`, `channel`, `position` and `row`.

    There is a table per file; tables of different versions of the source may have different rows.
    """
    files = open_files(store, **storage_options)
    return sides.read_all(files, find_task(newest_entry(files, application), application, task))


def clocks(store: str, application: str, **storage_options: Any) -> list[int]:
    """The retained checkpoint clocks of an application, ascending; the last is the global one. At first there is none."""
    return list(newest_entry(open_files(store, **storage_options), application).retained)


def newest_entry(files: Files, application: str) -> Entry:
    entry = Log(files, application).newest()
    if entry is None:
        raise InvalidInput(f"there is no application {application} in store={files.url}; look at its name and address.")
    return entry


def find_task(entry: Entry, application: str, name: str) -> TaskState:
    if name not in entry.tasks:
        raise InvalidInput(f"application {application} has no task {name}; it has {', '.join(sorted(entry.tasks))}.")
    return entry.tasks[name]


def check_clock(entry: Entry, task: TaskState, name: str, clock: int | None) -> int:
    """The clock to read at: a retained one at which the task was there; one that is gone is read at its last."""
    newest = entry.clock if task.active else task.clock
    at = newest if clock is None else clock
    readable = [c for c in entry.retained if task.born <= c <= newest]
    if at not in (*readable, newest):
        oldest = readable[0] if readable else newest
        raise InvalidInput(
            f"clock={at} of task={name} is not retained; the retained clocks go from {oldest} to {newest}, use one of them."
        )
    return at


def parse_type(text: str) -> pa.DataType:
    """The type of a key column by its name in the log."""
    if found := re.fullmatch(r"decimal128\((\d+), (-?\d+)\)", text):
        return pa.decimal128(int(found[1]), int(found[2]))
    return _TYPES[text]
