"""List what a store has, as tables: applications, tasks, clocks and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from persistent_state.event_time.clocks import or_none
from persistent_state.formatting import show_identity
from persistent_state.protocol import deliver
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import Files
from persistent_state.store.state_at import find_applications, newest_entry
from persistent_state.windows import TIME

_CLOCK = [("clock", TIME), ("microseconds", pa.int64())]

SCHEMAS: Mapping[str, pa.Schema] = {
    "applications": pa.schema([("application", pa.string()), *_CLOCK, ("timeline", pa.int64())]),
    "tasks": pa.schema(
        [
            ("application", pa.string()),
            ("task", pa.string()),
            ("key", pa.list_(pa.string())),
            ("state", pa.string()),
            ("window", pa.string()),
            ("active", pa.bool_()),
            *_CLOCK,
        ]
    ),
    "clocks": pa.schema([("application", pa.string()), *_CLOCK, ("names", pa.list_(pa.string()))]),
    "outputs": pa.schema(
        [("application", pa.string()), ("task", pa.string()), ("output", pa.string()), *_CLOCK, ("behind", pa.int64())]
    ),
}
"""By list: its columns. A clock is null before the first."""


def listed(files: Files, what: str, application: str = "") -> pa.Table:
    """Return a list.

    Args:
        files: The store.
        what: One of `SCHEMAS`.
        application: The application whose tasks, clocks or outputs are listed; by default those of all.

    Raises:
        InvalidInputError: There is no such application.
        DamagedError: A log is not what was written.
    """
    names = [application] if application else find_applications(files)
    rows = ({"application": name, **row} for name in names for row in _ROWS[what](newest_entry(files, name)))
    return pa.Table.from_pylist([*rows], SCHEMAS[what])


def _applications(entry: Entry) -> Iterator[dict[str, Any]]:
    yield {**_clock(or_none(entry.clock)), "timeline": entry.timeline}


def _tasks(entry: Entry) -> Iterator[dict[str, Any]]:
    for name, task in sorted(entry.tasks.items()):
        yield {
            "task": name,
            "key": [column["name"] for column in task.identity["key"]],
            "state": show_identity(task.identity["monoid"]),
            "window": show_identity(window) if (window := task.identity.get("window")) else None,
            "active": task.active,
            **_clock(or_none(min(entry.clock, entry.flow_of(name).visited))),
        }


def _clocks(entry: Entry) -> Iterator[dict[str, Any]]:
    for clock in entry.readable:
        kept = entry.kept.get(clock)
        yield {**_clock(or_none(clock)), "names": [] if kept is None else [*kept.names]}


def _outputs(entry: Entry) -> Iterator[dict[str, Any]]:
    for name, task in sorted(entry.tasks.items()):
        for output, found in sorted(deliver.delivered(entry, name).items()):
            # A task that is not part of the newest start has no clocks to be behind.
            behind = found.behind if task.active else None
            yield {"task": name, "output": output, **_clock(found.clock), "behind": behind}


def _clock(clock: int | None) -> dict[str, Any]:
    return {"clock": clock, "microseconds": clock}


_ROWS: Mapping[str, Callable[[Entry], Iterable[dict[str, Any]]]] = {
    "applications": _applications,
    "tasks": _tasks,
    "clocks": _clocks,
    "outputs": _outputs,
}
