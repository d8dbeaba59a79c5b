"""Show how the clocks of an application have moved, by the entries of its log that are still there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pyarrow as pa

from persistent_state.event_time.clocks import or_none
from persistent_state.store import kept_entries
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.state_at import no_application

T = TypeVar("T")

TIME = pa.timestamp("us", "UTC")

SCHEMA = pa.schema(
    [
        ("written", TIME),
        ("entry", pa.int64()),
        ("task", pa.string()),
        ("clock", TIME),
        ("global_clock", TIME),
        ("timeline", pa.int64()),
    ]
)


def history(log: Log) -> pa.Table:
    """Return the clocks of the tasks that were part of the application, a row for each entry and task, the oldest first.

    Raises:
        InvalidInputError: There is no such application.
        DamagedError: An entry is not what was written.
    """
    rows = [
        {
            "written": entry.time,
            "entry": entry.number,
            "task": name,
            "clock": or_none(entry.flow_of(name).visited),
            "global_clock": or_none(entry.clock),
            "timeline": entry.timeline,
        }
        for entry in _entries(log)
        for name, task in sorted(entry.tasks.items())
        if task.active
    ]
    if not rows and log.newest() is None:
        raise no_application(log.files, log.application)
    return pa.Table.from_pylist(rows, SCHEMA)


def _entries(log: Log) -> list[Entry]:
    """Return the entries that are there, ascending: those that no collection has deleted, and those of kept clocks."""
    kept = log.files.for_each(partial(_if_there, partial(kept_entries.read_file, log)), kept_entries.numbers(log))
    # If there is a file of an entry, the log may be wrong.
    found = {entry.number: entry for entry in (*_in_log(log), *kept) if entry is not None}
    return [found[number] for number in sorted(found)]


def _in_log(log: Log) -> Iterator[Entry]:
    """Yield the entries of the log. Their files are read several at a time if the store answers over a network."""
    before: Entry | None = None
    for written in log.files.for_each(partial(_if_there, log.open), log.numbers()):
        if written is None or before is None or written.number != before.number + 1:
            before = None
        # What follows from an entry that is gone can't be put together.
        if written is not None and (before is not None or written.whole is not None):
            before = written.entry(before)
            yield before


def _if_there(read: Callable[[int], T], number: int) -> T | None:
    """Return what is read; None if it was collected meanwhile."""
    try:
        return read(number)
    except FileNotFoundError:
        return None
