"""Runs that are in the entry itself, as they are few bytes: no file is written for them, until an entry is whole."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from persistent_state.errors import ExistsError
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files, cache
from persistent_state.store.files.base import TRIES
from persistent_state.store.named_files import Run, ShardRuns, Stored
from persistent_state.store.shared_file import SharedFile
from persistent_state.store.task_state import TaskState

MOST = 64 << 10
"""The most bytes of runs that an entry has. When there are more, they are written to a file. A process that reads the state
for the first time reads all of them with the log, and the entry of a kept clock has them for as long as the clock is kept."""

_MOVED = "-rows-"
"""In the name of a file that has runs which were in entries."""


def was_moved(stored: Stored) -> bool:
    """Return whether a run was in an entry, and went to its file later: a start may have cut it before."""
    return _MOVED in stored.path.rpartition("/")[2]


def written_out(files: Files, application: str, entry: Entry) -> Entry:
    """Write all runs that an entry has to one file, durable when this returns, and return the entry that names the file.

    The same entry makes the same file, so that it may be called again.

    Raises:
        DamagedError: The file is there, with other bytes.
        StoreUnavailableError: The store failed.
    """
    holders = [name for name, task in sorted(entry.tasks.items()) if any(shard.inline for shard in task.stored.shards)]
    if not holders:
        return entry
    # A start cuts one run into many.
    inline = dict.fromkeys(run.file for name in holders for run in entry.tasks[name].stored.runs if run.file.inline)
    mark = hashlib.sha256("".join(stored.checksum for stored in inline).encode()).hexdigest()[:16]
    # As of the next micro-batch of the folder's task: no collection takes the file before that is committed.
    batch = entry.flow_of(holders[0]).progress.batch + 1
    name = f"{application}/runs/{holders[0]}/{entry.epoch:06d}-{batch:09d}{_MOVED}{entry.number:04d}-{mark}"
    shared, moved = SharedFile(files, TRIES), dict[Stored, Stored]()
    for number, stored in enumerate(inline):
        data = stored.unpacked()
        path, start = shared.add(f"{name}-{number}.arrow", data)
        moved[stored] = replace(stored, path=path, start=start, inline=b"")
        if not files.near:
            cache.keep(stored.checksum, data)
    try:
        shared.write()
    except ExistsError:
        raise next(iter(moved.values())).damage() from None

    def in_file(run: Run) -> Run:
        return replace(run, file=moved.get(run.file, run.file))

    def with_files(task: TaskState) -> TaskState:
        shards = (ShardRuns(tuple(map(in_file, shard.runs))) if shard.inline else shard for shard in task.stored.shards)
        return replace(task, stored=replace(task.stored, shards=tuple(shards)))

    return replace(entry, tasks={**entry.tasks, **{name: with_files(entry.tasks[name]) for name in holders}})
