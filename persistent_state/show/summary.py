"""Describe an application by its newest log entry, as JSON. Clocks and times are microseconds UTC."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from persistent_state.event_time.clocks import or_none
from persistent_state.protocol import deliver, holding
from persistent_state.store.all_files import files_of_flow, files_of_task, with_lists
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import Files
from persistent_state.store.log import Log
from persistent_state.store.named_files import Stored, count_of, length_of
from persistent_state.store.state_at import no_application


def summary(files: Files, name: str) -> dict[str, Any]:
    """Describe an application, its tasks and their files. `clock` is None while there is no checkpoint.

    Raises:
        InvalidInputError: There is no such application.
        DamagedError: The log, or a list of files, is not what was written.
    """
    return of_log(Log(files, name))


def of_log(log: Log) -> dict[str, Any]:
    """Describe an application as `summary` does, by the newest entry of its log.

    Raises:
        InvalidInputError: There is no such application.
        DamagedError: The log, or a list of files, is not what was written.
    """
    entry = log.newest()
    if entry is None:
        raise no_application(log.files, log.application)
    return with_lists(log, entry, lambda entry: of_entry(log.files, log.application, entry))


def of_entry(files: Files, name: str, entry: Entry) -> dict[str, Any]:
    """Describe an application as `summary` does, by an entry.

    Raises:
        DamagedError: A list of files is not what was written.
        FileNotFoundError: It was collected.
    """
    shared = {id: files_of_flow(files, flow) for id, flow in entry.flows.items()}
    stored = {name: files_of_task(files, task) | shared[task.flow] for name, task in sorted(entry.tasks.items())}
    holder = holding.holder(entry)
    return {
        "application": name,
        "clock": or_none(entry.clock),
        "next": entry.next if entry.next > entry.clock else None,
        "waits_for": None if holder is None else {**asdict(holder), "words": holder.words},
        "retained": list(entry.retained),
        "kept": [{"clock": clock, "names": list(kept.names)} for clock, kept in entry.kept.items()],
        "timeline": entry.timeline,
        "interval": entry.interval,
        "shards": entry.shards,
        "epoch": entry.epoch,
        "entry": entry.number,
        "written": entry.time,
        # The tasks of a flow share some files.
        "bytes": length_of(set[Stored]().union(*stored.values())),
        "tasks": [_task(entry, name, of_task) for name, of_task in stored.items()],
    }


def _task(entry: Entry, name: str, stored: set[Stored]) -> dict[str, Any]:
    task, flow = entry.tasks[name], entry.flow_of(name)
    inputs = {input: source.channels for input, source in flow.inputs.items() if input not in flow.upstream}
    channels = [channel for some in inputs.values() for channel in some.values()]
    timed = [channel.newest for channel in channels if channel.newest is not None]
    slowest = holding.slowest(entry, name)
    # The newest clock that a sink may have.
    due = min(entry.clock, flow.visited)
    return {
        "task": name,
        "key": [column["name"] for column in task.identity["key"]],
        "monoid": task.identity["monoid"]["name"],
        "type": task.identity["monoid"]["type"],
        "window": task.identity.get("window"),
        "inputs": {
            **{input: {"channels": len(some)} for input, some in inputs.items()},
            **{input: task.identity["inputs"][input] for input in flow.upstream},
        },
        "active": task.active,
        "flow": task.flow,
        "clock": or_none(flow.visited),
        "runs": len(task.stored.runs),
        "rows": sum(run.rows for run in {run.file: run for run in task.stored.runs}.values()),
        "files": count_of(stored),
        "bytes": length_of(stored) + task.stored.inline,
        "late_and_bad": entry.late_counts_of(name),
        "outputs": [
            {
                "output": output,
                "clock": found.clock,
                # A task that is not part of the newest start has no clocks to be behind.
                "behind": found.behind if task.active else None,
                "lag": max(0, due - found.clock) if task.active and found.clock is not None else None,
                "back_to": None if (owed := entry.owed(name, output)) is None else owed.clock,
            }
            for output, found in sorted(deliver.delivered(entry, name).items())
        ],
        "channels": {
            "count": len(channels),
            "ended": sum(channel.ended for channel in channels),
            "silent": len(channels) - len(timed),
            "slowest": None if slowest is None else slowest.channel,
            "slowest_input": None if slowest is None else slowest.input,
            "slowest_at": None if slowest is None else slowest.at,
            "newest_at": max(timed, default=None),
        },
    }
