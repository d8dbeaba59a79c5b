"""The records of an entry as JSON, field by field: of a task, and of what its parts name.

A field that is added to the format later is named in `ADDED` with its default, which must mean "as before": a record that lacks
the field has the default, and where it has the default it is not written. So an older library reads what makes no use of the
field, and refuses what does. The names in the JSON are the format's: they stay when an attribute is renamed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, END, Coarse
from persistent_state.event_time.positions import Position
from persistent_state.store.changes import Json, Kind, Listed, Named, Numbered, Plain, Record, all_read, lean
from persistent_state.store.entry import Entry
from persistent_state.store.named_files import Cut, Pages, Run, ShardRuns, SideFile, Stored
from persistent_state.store.task_state import LateRows, OutputState, SourceState, StoredState, TaskProgress, TaskState

ADDED: dict[str, dict[str, Json]] = {
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
        "retired": [],
        "left": [],
        "cut_at": {},
    },
}
"""Fields that are younger than the first log, with what an entry has that lacks them."""


def _pairs(json: Json) -> tuple[tuple[Any, Any], ...]:
    return tuple((first, second) for first, second in json)


_AS_IT_IS = Plain()
_TUPLE = Plain(list, tuple)
_BY_NAME = Named(_AS_IT_IS)


def _fields(*names: str) -> dict[str, Kind]:
    """Return the kinds of fields whose values stand in the JSON as they are."""
    return dict.fromkeys(names, _AS_IT_IS)


_STORED = Record("stored file", Stored, _fields("path", "length", "checksum", "index"), ADDED["stored file"])

RUN = Record(
    "run",
    Run,
    {"file": _STORED, **_fields("rows", "low", "high", "first", "last", "below", "half")},
    ADDED["run"],
)

_CUT = Record("cut of late and bad rows", Cut, {"clock": _AS_IT_IS, "positions": _BY_NAME})

SIDE = Record(
    "file of late and bad rows",
    SideFile,
    {"file": _STORED, "reasons": _BY_NAME, "newest": _AS_IT_IS, "ends": _BY_NAME, "cuts": Listed(_CUT)},
)

_CHANNEL = Record("channel", Channel, _fields("newest", "active", "ended", "beyond", "before"), ADDED["channel"])

_POSITION = Record(
    "position", Position, {"next": _AS_IT_IS, "accounted": Plain(list, _pairs), "spans": Listed(Plain(list, tuple))}
)

_PAGES = Record("list", Pages, {"files": Listed(_STORED), "tail": Listed(_AS_IT_IS)})

_COARSE = Record("coarse range of clocks", Coarse, _fields("low", "high", "step"))

_SHARD = Record("shard", ShardRuns, {"runs": Listed(RUN)})

_OWN = Record("task", TaskState, _fields("identity", "born", "active", "life"))

_PARTS = {
    "progress": Record("task", TaskProgress, _fields("clock", "holds", "batch")),
    "source": Record(
        "task",
        SourceState,
        {
            "channels": Named(_CHANNEL),
            "positions": Named(_POSITION),
            "journal": _PAGES,
            "planned": _BY_NAME,
            "again": _AS_IT_IS,
        },
    ),
    "late_rows": Record("task", LateRows, {"sides": Listed(SIDE), "settled": _PAGES, "settled_counts": _BY_NAME}),
    "stored": Record(
        "task",
        StoredState,
        {"cuts": _TUPLE, "shards": Numbered(_SHARD), "coarse": Listed(_COARSE), "floor": _AS_IT_IS},
    ),
    "outputs": Record(
        "task",
        OutputState,
        {
            "delivered": _BY_NAME,
            "voided": _BY_NAME,
            "furthest": _AS_IT_IS,
            "cut_at": _BY_NAME,
            "left": _TUPLE,
            "retired": _TUPLE,
        },
    ),
}


@dataclass(frozen=True)
class _Task:
    """Records of tasks. In the JSON the fields of all parts stand side by side."""

    def to_json(self, task: TaskState) -> Json:
        record = _OWN.to_json(task)
        for name, part in _PARTS.items():
            record |= part.to_json(getattr(task, name))
        return lean(record, ADDED["task"])

    def from_json(self, json: Json) -> TaskState:
        json = {**ADDED["task"], **json}
        parts = {name: part.from_json(_taken(json, part)) for name, part in _PARTS.items()}
        own = {name: kind.from_json(json.pop(name)) for name, kind in _OWN.fields.items()}
        all_read("task", json)
        return TaskState(**own, **parts)

    def change(self, before: TaskState, after: TaskState) -> Json:
        change = _OWN.change(before, after)
        for name, part in _PARTS.items():
            if (was := getattr(before, name)) is not (now := getattr(after, name)):
                change |= part.change(was, now)
        return change

    def changed(self, before: TaskState, json: Json) -> TaskState:
        json = dict(json)
        parts = {name: part.changed(getattr(before, name), _taken(json, part)) for name, part in _PARTS.items()}
        after: TaskState = replace(_OWN.changed(before, json), **parts)
        return after


def _taken(json: Json, part: Record) -> Json:
    """Take the fields of a part out of the record of a task."""
    return {name: json.pop(name) for name in part.fields if name in json}


ENTRY = Record(
    "log entry",
    Entry,
    {
        **_fields("number", "epoch", "writer", "time", "previous", "interval", "shards", "clock"),
        "retained": Listed(_AS_IT_IS),
        "tasks": Named(_Task()),
    },
)
