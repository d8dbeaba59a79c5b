"""Log entries as bytes: one line of JSON, written and read field by field, and one line with its SHA-256.

`docs/format.md` describes the bytes. A field that is added to the format later is named in `ADDED` with its default, which must
mean "as before": an entry that lacks the field has the default, and where it has the default it is not written. So an older
library reads what makes no use of the field, and refuses what does. `FORMAT` rises when what an older library knows changes its
meaning. The names in the JSON are the format's: they stay when an attribute is renamed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from persistent_state.errors import DamagedError
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, END, Coarse
from persistent_state.event_time.positions import Position
from persistent_state.store.entry import Entry
from persistent_state.store.named_files import Cut, Pages, Run, SideFile, Stored
from persistent_state.store.task_state import LateRows, OutputState, SourceState, StoredState, TaskProgress, TaskState

Json: TypeAlias = dict[str, Any]

FORMAT = 3
READABLE = (1, 2, 3)

ADDED: dict[str, Json] = {
    "channel": {"before": None},
    "run": {"half": None},
    "stored file": {"index": 0},
    "task": {
        "delivered": {},
        "floor": BEGINNING,
        "planned": {},
        "voided": {},
        "furthest": BEGINNING,
        "again": END,
        "life": 0,
        "retired": (),
        "left": (),
        "cut_at": {},
    },
}
"""Fields that are younger than the first log, with what an entry has that lacks them."""

_REWRITTEN: tuple[dict[str, tuple[str, ...]], ...] = (
    {"channel": ("before",)},
    {"channel": ("before",), "run": ("half",), "task": ("delivered", "floor")},
)
"""The added fields that each later version of format 1 knew and always wrote."""


def to_bytes(entry: Entry) -> bytes:
    """Return the bytes of an entry as they stand in the log."""
    return _sealed(
        {
            "format": FORMAT,
            "number": entry.number,
            "epoch": entry.epoch,
            "writer": entry.writer,
            "time": entry.time,
            "previous": entry.previous,
            "interval": entry.interval,
            "shards": entry.shards,
            "clock": entry.clock,
            "retained": entry.retained,
            "tasks": {name: _task_record(task) for name, task in entry.tasks.items()},
        }
    )


def from_bytes(data: bytes, name: str) -> Entry:
    """Return the entry of these bytes, with their checksum.

    Raises:
        DamagedError: The bytes are not what was written, or a later version wrote them.
    """
    body, newline, seal = data.partition(b"\n")
    if not newline or seal != _seal(body + newline):
        raise DamagedError(
            f"log entry {name} is damaged; bring back the file from a copy of the store; nothing was changed."
        )
    record = json.loads(body)
    if record.pop("format") not in READABLE:
        raise DamagedError(f"log entry {name} has a format later than {FORMAT}; upgrade persistent-state.")
    try:
        return _entry(record, checksum(data))
    except _UnknownField as error:
        raise DamagedError(
            f"log entry {name} has {error}, which a later version wrote; upgrade persistent-state."
        ) from None


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
    return _dumped(_run_record(run))


def run_from_json(text: str) -> Run:
    """Return the run of this JSON."""
    return _run(json.loads(text))


def side_to_json(side: SideFile) -> str:
    """Return a file of late and bad rows as JSON, as it stands in an entry and in a list."""
    return _dumped(_side_record(side))


def side_from_json(text: str) -> SideFile:
    """Return the file of late and bad rows of this JSON.

    Raises:
        DamagedError: A later version wrote it.
    """
    try:
        return _side(json.loads(text))
    except _UnknownField as error:
        raise DamagedError(
            f"a list of late and bad rows has {error}, which a later version wrote; upgrade persistent-state."
        ) from None


class _UnknownField(Exception):
    """A field that this version does not know."""


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


def _lean(kind: str, record: Json) -> Json:
    """Return the record without the added fields that have their defaults."""
    added = ADDED[kind]
    return {name: value for name, value in record.items() if name not in added or value != added[name]}


def _full(kind: str, record: Json) -> Json:
    """Return the record with the defaults of the added fields that it lacks."""
    return {**ADDED[kind], **record}


def _all_read(kind: str, record: Json) -> None:
    """Refuse a record that has more fields than were taken out of it."""
    if record:
        raise _UnknownField(f"{', '.join(sorted(record))} in a {kind}")


def _entry(record: Json, checksum: str) -> Entry:
    entry = Entry(
        number=record.pop("number"),
        epoch=record.pop("epoch"),
        writer=record.pop("writer"),
        time=record.pop("time"),
        previous=record.pop("previous"),
        interval=record.pop("interval"),
        shards=record.pop("shards"),
        clock=record.pop("clock"),
        retained=tuple(record.pop("retained")),
        tasks={name: _task(task) for name, task in record.pop("tasks").items()},
        checksum=checksum,
    )
    _all_read("log entry", record)
    return entry


def _task_record(task: TaskState) -> Json:
    """Return the record of a task. In the format it has no parts: all their fields stand side by side."""
    source, stored, outputs = task.source, task.stored, task.outputs
    return _lean(
        "task",
        {
            "identity": task.identity,
            "born": task.born,
            "active": task.active,
            "life": task.life,
            "clock": task.progress.clock,
            "holds": task.progress.holds,
            "batch": task.progress.batch,
            "channels": {name: _channel_record(channel) for name, channel in source.channels.items()},
            "positions": {partition: _position_record(position) for partition, position in source.positions.items()},
            "journal": _pages_record(source.journal),
            "planned": dict(source.planned),
            "again": source.again,
            "sides": [_side_record(side) for side in task.late_rows.sides],
            "settled": _pages_record(task.late_rows.settled),
            "settled_counts": dict(task.late_rows.settled_counts),
            "cuts": stored.cuts,
            "runs": [_run_record(run) for run in stored.runs],
            "coarse": [{"low": each.low, "high": each.high, "step": each.step} for each in stored.coarse],
            "floor": stored.floor,
            "delivered": dict(outputs.delivered),
            "voided": dict(outputs.voided),
            "furthest": outputs.furthest,
            "cut_at": dict(outputs.cut_at),
            "left": outputs.left,
            "retired": outputs.retired,
        },
    )


def _task(record: Json) -> TaskState:
    record = _full("task", record)
    task = TaskState(
        identity=record.pop("identity"),
        born=record.pop("born"),
        active=record.pop("active"),
        life=record.pop("life"),
        progress=TaskProgress(
            clock=record.pop("clock"),
            holds=record.pop("holds"),
            batch=record.pop("batch"),
        ),
        source=SourceState(
            channels={name: _channel(channel) for name, channel in record.pop("channels").items()},
            positions={partition: _position(position) for partition, position in record.pop("positions").items()},
            journal=_pages(record.pop("journal")),
            planned=dict(record.pop("planned")),
            again=record.pop("again"),
        ),
        late_rows=LateRows(
            sides=tuple(_side(side) for side in record.pop("sides")),
            settled=_pages(record.pop("settled")),
            settled_counts=record.pop("settled_counts"),
        ),
        stored=StoredState(
            cuts=tuple(record.pop("cuts")),
            runs=tuple(_run(run) for run in record.pop("runs")),
            coarse=tuple(_coarse(each) for each in record.pop("coarse")),
            floor=record.pop("floor"),
        ),
        outputs=OutputState(
            delivered=dict(record.pop("delivered")),
            voided=dict(record.pop("voided")),
            furthest=record.pop("furthest"),
            cut_at=dict(record.pop("cut_at")),
            left=tuple(record.pop("left")),
            retired=tuple(record.pop("retired")),
        ),
    )
    _all_read("task", record)
    return task


def _coarse(record: Json) -> Coarse:
    coarse = Coarse(record.pop("low"), record.pop("high"), record.pop("step"))
    _all_read("coarse range of clocks", record)
    return coarse


def _run_record(run: Run) -> Json:
    return _lean(
        "run",
        {
            "file": _stored_record(run.file),
            "rows": run.rows,
            "low": run.low,
            "high": run.high,
            "first": run.first,
            "last": run.last,
            "below": run.below,
            "half": run.half,
        },
    )


def _run(record: Json) -> Run:
    record = _full("run", record)
    run = Run(
        file=_stored(record.pop("file")),
        rows=record.pop("rows"),
        low=record.pop("low"),
        high=record.pop("high"),
        first=record.pop("first"),
        last=record.pop("last"),
        below=record.pop("below"),
        half=record.pop("half"),
    )
    _all_read("run", record)
    return run


def _channel_record(channel: Channel) -> Json:
    return _lean(
        "channel",
        {
            "newest": channel.newest,
            "active": channel.active,
            "ended": channel.ended,
            "beyond": channel.beyond,
            "before": channel.before,
        },
    )


def _channel(record: Json) -> Channel:
    record = _full("channel", record)
    channel = Channel(
        newest=record.pop("newest"),
        active=record.pop("active"),
        ended=record.pop("ended"),
        beyond=record.pop("beyond"),
        before=record.pop("before"),
    )
    _all_read("channel", record)
    return channel


def _position_record(position: Position) -> Json:
    return {"next": position.next, "accounted": position.accounted, "spans": position.spans}


def _position(record: Json) -> Position:
    position = Position(
        next=record.pop("next"),
        accounted=tuple((before, below) for before, below in record.pop("accounted")),
        spans=tuple((first, newest) for first, newest in record.pop("spans")),
    )
    _all_read("position", record)
    return position


def _side_record(side: SideFile) -> Json:
    return {
        "file": _stored_record(side.file),
        "reasons": dict(side.reasons),
        "newest": side.newest,
        "ends": dict(side.ends),
        "cuts": [{"clock": cut.clock, "positions": dict(cut.positions)} for cut in side.cuts],
    }


def _side(record: Json) -> SideFile:
    side = SideFile(
        file=_stored(record.pop("file")),
        reasons=record.pop("reasons"),
        newest=record.pop("newest"),
        ends=record.pop("ends"),
        cuts=tuple(_cut(cut) for cut in record.pop("cuts")),
    )
    _all_read("file of late and bad rows", record)
    return side


def _cut(record: Json) -> Cut:
    cut = Cut(record.pop("clock"), record.pop("positions"))
    _all_read("cut of late and bad rows", record)
    return cut


def _pages_record(pages: Pages) -> Json:
    return {"files": [_stored_record(file) for file in pages.files], "tail": pages.tail}


def _pages(record: Json) -> Pages:
    pages = Pages(tuple(_stored(file) for file in record.pop("files")), tuple(record.pop("tail")))
    _all_read("list", record)
    return pages


def _stored_record(stored: Stored) -> Json:
    return _lean(
        "stored file",
        {"path": stored.path, "length": stored.length, "checksum": stored.checksum, "index": stored.index},
    )


def _stored(record: Json) -> Stored:
    record = _full("stored file", record)
    stored = Stored(record.pop("path"), record.pop("length"), record.pop("checksum"), record.pop("index"))
    _all_read("stored file", record)
    return stored
