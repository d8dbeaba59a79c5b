"""Log entries as bytes: one line of JSON, written and read field by field, and one line with its SHA-256.

An entry is written whole, or as what changed since the entry before it. `docs/format.md` describes the bytes. `FORMAT` rises
when what an older library knows changes its meaning. An entry that uses nothing of the newest format has the number of the one
before it, so that an older library reads it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from persistent_state.errors import DamagedError
from persistent_state.event_time.inputs import INPUT
from persistent_state.partials import keys
from persistent_state.store.changes import UnknownFieldError
from persistent_state.store.entry import Entry
from persistent_state.store.named_files import Run, SideFile
from persistent_state.store.records import ADDED, ENTRY, RUN, SIDE

Json: TypeAlias = dict[str, Any]

FORMAT = 6
READABLE = (1, 2, 3, 4, 5, 6)

LARGE = 16 << 10
"""The most characters of JSON about the flows, or the tasks, that stand in an entry as they are. More are compressed."""

_LONG = ("flows", "tasks")
"""The fields of a whole entry that may be long."""

_OF_FLOWS = ("clock", "holds", "batch", "sides", "settled", "settled_counts", "coarse")
_OF_INPUTS = ("channels", "positions", "journal", "planned", "again")
"""The fields of a task that are its flow's, and of them its input's, since format 4."""

_REWRITTEN: tuple[dict[str, tuple[str, ...]], ...] = (
    {"channel": ("before",)},
    {"channel": ("before",), "run": ("half",), "task": ("delivered", "floor")},
)
"""The added fields that each later version of format 1 knew and always wrote."""


class LaterVersionError(DamagedError):
    """An entry is whole, and a later version of the library wrote it: nothing goes past it."""


@dataclass(frozen=True)
class Written:
    """An undamaged entry as it stands in the log: whole, or as what changed since the entry before it, or both.

    `base` is the number of the whole entry from which it follows: its own, if it is whole.
    """

    name: str
    number: int
    previous: str
    base: int
    checksum: str
    length: int
    whole: Json | None
    changes: Json | str | None

    def entry(self, before: Entry | None) -> Entry:
        """Return the entry: what the changes make of the entry `before` it, or the whole that stands here if that is not given.

        Raises:
            DamagedError: It does not go on from that entry, or a later version wrote it.
        """
        try:
            if before is None or self.changes is None:
                entry = self._whole()
            elif before.checksum == self.previous:
                changes = {**_unpacked(self.changes), "number": self.number, "previous": self.previous}
                entry = ENTRY.changed(before, changes)
            else:
                raise self._goes_not_on()
        except UnknownFieldError as error:
            raise LaterVersionError(
                f"log entry {self.name} has {error}, which a later version wrote; upgrade persistent-state."
            ) from None
        read: Entry = replace(entry, checksum=self.checksum, base=self.base)
        return read

    def _whole(self) -> Entry:
        if self.whole is None:
            raise self._goes_not_on()
        whole: Entry = ENTRY.from_json({**self.whole, **{name: _unpacked(self.whole[name]) for name in _LONG}})
        return whole

    def _goes_not_on(self) -> DamagedError:
        return DamagedError(
            f"log entry {self.name} does not go on from entry {self.number - 1} as that is now; bring back both files from a "
            "copy of the store, or branch from a kept clock; nothing was changed."
        )


def to_bytes(entry: Entry, before: Entry | None = None, base: int | None = None) -> bytes:
    """Return the bytes of an entry as they stand in the log.

    Args:
        entry: The entry.
        before: The entry before it, if the entry says what changed since then.
        base: The number of the whole entry from which it follows; by default it is whole itself.
    """
    record: Json = {"number": entry.number, "previous": entry.previous}
    if base in (None, entry.number):
        whole = ENTRY.to_json(entry)
        record |= {**whole, **{name: _packed(whole[name]) for name in _LONG}}
    if before is not None:
        changes = ENTRY.change(before, entry)
        record["changes"] = _packed(
            {name: each for name, each in changes.items() if name not in ("number", "previous")}
        )
    return _sealed({**record, "format": format_of(entry), "base": entry.number if base is None else base})


def format_of(entry: Entry) -> int:
    """Return the format of an entry. The state decides, so an entry has the same format written whole and as changes."""
    return FORMAT if entry.has_parts else 5


def _packed(record: Json) -> Json | str:
    """Return a record, compressed if it is long."""
    text = _dumped(record)
    if len(text) <= LARGE:
        return record
    # At its fastest, which takes as long as to make the JSON.
    return base64.b64encode(zlib.compress(text.encode(), 1)).decode()


def _unpacked(record: Json | str) -> Json:
    """Return a record that may be compressed."""
    if not isinstance(record, str):
        return record
    unpacked: Json = json.loads(zlib.decompress(base64.b64decode(record)))
    return unpacked


def from_bytes(data: bytes, name: str, before: Entry | None = None) -> Entry:
    """Return the entry of these bytes, with their checksum; `before` is the entry before it, which a whole one does not need.

    Raises:
        DamagedError: The bytes are not what was written, do not go on from that entry, or a later version wrote them.
    """
    return open_entry(data, name).entry(before)


def open_entry(data: bytes, name: str) -> Written:
    """Return the entry of these bytes as it stands in the log.

    Raises:
        DamagedError: The bytes are not what was written, or a later version wrote them.
    """
    body, newline, seal = data.partition(b"\n")
    if not newline or seal != _seal(body + newline):
        raise DamagedError(
            f"log entry {name} is damaged; bring back the file from a copy of the store, or branch from a kept clock; nothing "
            "was changed."
        )
    record = json.loads(body)
    format, number = record.pop("format"), record["number"]
    if format not in READABLE:
        raise LaterVersionError(f"log entry {name} has a format later than {FORMAT}; upgrade persistent-state.")
    if format < 3:
        for task in record["tasks"].values():
            task["shards"] = [{"runs": runs} for runs in _grouped(task.pop("runs"), record["shards"])]
    base, changes = record.pop("base", number), record.pop("changes", None)
    whole = record if base == number else None
    if format < 4:
        whole, changes = (None if each is None else _with_flows(each) for each in (whole, changes))
    return Written(name, number, record["previous"], base, checksum(data), len(data), whole, changes)


def checksum(data: bytes) -> str:
    """Return the SHA-256 of a whole entry, as the next entry names it."""
    return hashlib.sha256(data).hexdigest()


def rewritten(before: bytes, after: bytes) -> set[str]:
    """Return the checksums by which an entry of format 1 may name the entry before it, if another version wrote that entry.

    When a version of format 1 started an application, its first entry named not the checksum of the bytes of the newest entry,
    but that of the entry as it would have written it: with all fields that it knew.
    """
    record, follower = (json.loads(data.partition(b"\n")[0]) for data in (before, after))
    if record["format"] != 1 or follower["format"] != 1:
        return set()
    return {checksum(_sealed(_as_written(record, fields))) for fields in _REWRITTEN}


def run_to_json(run: Run) -> str:
    """Return a run as JSON, as it stands in an entry."""
    return _dumped(RUN.to_json(run))


def run_from_json(text: str) -> Run:
    """Return the run of this JSON."""
    run: Run = RUN.from_json(json.loads(text))
    return run


def side_to_json(side: SideFile) -> str:
    """Return a file of late and bad rows as JSON, as it stands in an entry and in a list."""
    return _dumped(SIDE.to_json(side))


def side_from_json(text: str) -> SideFile:
    """Return the file of late and bad rows of this JSON.

    Raises:
        DamagedError: A later version wrote it.
    """
    try:
        side: SideFile = SIDE.from_json(json.loads(text))
    except UnknownFieldError as error:
        raise DamagedError(
            f"a list of late and bad rows has {error}, which a later version wrote; upgrade persistent-state."
        ) from None
    return side


def _sealed(record: Json) -> bytes:
    body = _dumped(record).encode() + b"\n"
    return body + _seal(body)


def _seal(body: bytes) -> bytes:
    return b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n"


def _dumped(record: Json) -> str:
    return json.dumps(record, sort_keys=True, separators=(",", ":"))


def _as_written(body: Json, fields: Mapping[str, tuple[str, ...]]) -> Json:
    """Return the record of an entry with these fields added."""

    def filled(kind: str, record: Json) -> Json:
        return {**{name: ADDED[kind][name] for name in fields.get(kind, ())}, **record}

    tasks = {
        name: {
            **filled("task", task),
            "channels": {name: filled("channel", channel) for name, channel in task["channels"].items()},
            "runs": [filled("run", run) for run in task["runs"]],
        }
        for name, task in body["tasks"].items()
    }
    return {**body, "tasks": tasks}


def _with_flows(record: Json | str) -> Json:
    """Return an entry, or what changed, in which each task has a flow of its own. Before format 4 tasks shared none."""
    record = _unpacked(record)
    tasks = _unpacked(record.pop("tasks", {}))
    flows: Json = {}
    for name, task in tasks.items():
        if task is None:
            flows[name] = None
            continue
        flow = {field: task.pop(field) for field in _OF_FLOWS if field in task}
        if source := {field: task.pop(field) for field in _OF_INPUTS if field in task}:
            flow["inputs"] = {INPUT: source}
        if flow:
            flows[name] = flow
        task["flow"] = name
    return {**record, "flows": flows, "tasks": tasks}


def _grouped(runs: list[Json], shards: int) -> list[list[Json]]:
    """Return the runs of a task by shard. Before format 3 they stood in one list, in the order of the shards."""
    grouped: list[list[Json]] = [[] for _ in range(shards if runs else 0)]
    for run in runs:
        shard = keys.shard_of(run["low"], shards)
        if run["high"] > keys.shard_range(shard, shards)[1]:
            # A task that was left out of a start keeps the shards that it had, and their number was not written.
            return [runs]
        grouped[shard].append(run)
    return grouped
