"""Tell how the clocks of an application have moved, by the entries of its log that are still there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from persistent_state.event_time.clocks import BEGINNING
from persistent_state.store import kept_entries
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.state_at import no_application

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
            "clock": _clock(entry.flow_of(name).visited),
            "global_clock": _clock(entry.clock),
            "timeline": entry.timeline,
        }
        for entry in _entries(log)
        for name, task in sorted(entry.tasks.items())
        if task.active
    ]
    if not rows and log.newest() is None:
        raise no_application(log.files, log.application)
    return pa.Table.from_pylist(rows, SCHEMA)


def _entries(log: Log) -> Iterator[Entry]:
    """Yield the entries that are there, ascending: those of kept clocks, and those that no collection has deleted."""
    kept, listed = {*kept_entries.numbers(log)}, log.numbers()
    for number in sorted({*kept, *listed}):
        # What is collected meanwhile is left out.
        with suppress(FileNotFoundError):
            yield kept_entries.read_file(log, number) if number in kept else log.read(number)


def _clock(clock: int) -> int | None:
    return None if clock == BEGINNING else clock
