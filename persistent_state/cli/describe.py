"""Describe an application by its newest log entry, as JSON. Clocks and times are microseconds UTC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol import deliver
from persistent_state.store import late_rows
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import Files
from persistent_state.store.state_at import newest_entry


def summary(files: Files, name: str) -> dict[str, Any]:
    """Describe an application, its tasks and their files. `clock` is None while there is no checkpoint.

    Raises:
        InvalidInputError: There is no such application.
    """
    entry = newest_entry(files, name)
    stored = {name: _stored(files, entry, name) for name in sorted(entry.tasks)}
    # The tasks of a flow share some files.
    every = {path: length for of_task in stored.values() for path, length in of_task.items()}
    return {
        "application": name,
        "clock": None if entry.clock == BEGINNING else entry.clock,
        "retained": list(entry.retained),
        "interval": entry.interval,
        "shards": entry.shards,
        "epoch": entry.epoch,
        "entry": entry.number,
        "written": entry.time,
        "bytes": sum(every.values()),
        "tasks": [_task(entry, name, of_task) for name, of_task in stored.items()],
    }


def _stored(files: Files, entry: Entry, name: str) -> dict[str, int]:
    """Return the length of each file of a task and of its flow, by its path."""
    settled = (side.file for side in late_rows.settled(files, entry.late_rows_of(name)))
    return {file.path: file.length for file in (*entry.tasks[name].files(), *entry.flow_of(name).files(), *settled)}


def _task(entry: Entry, name: str, stored: Mapping[str, int]) -> dict[str, Any]:
    task, flow = entry.tasks[name], entry.flow_of(name)
    channels = flow.source.channels
    timed = {channel: state.newest for channel, state in channels.items() if state.newest is not None}
    live = {channel: newest for channel, newest in timed.items() if not channels[channel].ended}
    slowest = min(live, key=lambda channel: live[channel], default=None)
    return {
        "task": name,
        "key": [column["name"] for column in task.identity["key"]],
        "monoid": task.identity["monoid"]["name"],
        "type": task.identity["monoid"]["type"],
        "window": task.identity.get("window"),
        "active": task.active,
        "flow": task.flow,
        "clock": None if flow.progress.clock == BEGINNING else flow.progress.clock,
        "runs": len(task.stored.runs),
        "rows": sum(run.rows for run in {run.file: run for run in task.stored.runs}.values()),
        "files": len(stored),
        "bytes": sum(stored.values()),
        "late_and_bad": entry.late_counts_of(name),
        "outputs": [
            {
                "output": output,
                "clock": found.clock,
                # A task that is not part of the newest start has no clocks to be behind.
                "behind": found.behind if task.active else None,
            }
            for output, found in sorted(deliver.delivered(entry, name).items())
        ],
        "channels": {
            "count": len(channels),
            "ended": sum(channel.ended for channel in channels.values()),
            "silent": sum(channel.newest is None for channel in channels.values()),
            "slowest": slowest,
            "slowest_at": None if slowest is None else live[slowest],
            "newest_at": max(timed.values(), default=None),
        },
    }
