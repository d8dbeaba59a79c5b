"""The records of an entry as JSON, field by field: of flows and tasks, and of what their parts name.

A field that is added to the format later is named in `ADDED` with its default, which must mean "as before": a record that lacks
the field has the default, and where it has the default it is not written. So an older library reads what makes no use of the
field, and refuses what does. The names in the JSON are the format's: they stay when an attribute is renamed.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, END, Coarse
from persistent_state.event_time.positions import Position
from persistent_state.store.changes import ByClock, Json, Kind, Listed, Named, Numbered, Parted, Plain, Recast, Record
from persistent_state.store.entry import Entry, Kept, Owed
from persistent_state.store.flow_state import FlowProgress, FlowState, LateRows, SourceState, Upstream
from persistent_state.store.named_files import Cut, Pages, Run, ShardRuns, SideFile, Stored
from persistent_state.store.output_state import ACTIVE, LEFT, RETIRED, OutputRecord, OutputState
from persistent_state.store.task_state import StoredState, TaskState

ADDED: dict[str, dict[str, Json]] = {
    "channel": {"before": None},
    "run": {"half": None, "due": None, "last_due": None, "dropped": []},
    "stored file": {"index": 0, "start": 0, "inline": ""},
    "input": {"planned": {}, "again": END, "since": BEGINNING, "below": END},
    "flow": {"upstream": {}, "stepped": BEGINNING, "outside": 0},
    "kept clock": {"names": []},
    "log entry": {"next": BEGINNING, "kept": {}, "timeline": 0, "owes": {}},
    "task": {
        "delivered": {},
        "floor": BEGINNING,
        "voided": {},
        "furthest": BEGINNING,
        "life": 0,
        "ended": [],
        "retired": [],
        "left": [],
        "left_at": {},
        "begun": {},
        "lacks": {},
        "had": {},
        "cut_at": {},
        "sides": [],
        "settled": {"files": [], "tail": []},
        "settled_counts": {},
        "outside": 0,
    },
}
"""Fields that are younger than the first log, with what an entry has that lacks them."""


def _pairs(json: Json) -> tuple[tuple[Any, Any], ...]:
    return tuple((first, second) for first, second in json)


def _lists(paths: tuple[tuple[str, ...], ...]) -> Json:
    return [list(path) for path in paths]


def _paths(json: Json) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(path) for path in json)


_AS_IT_IS = Plain()
_TUPLE = Plain(list, tuple)
_BY_NAME = Named(_AS_IT_IS)


def _fields(*names: str) -> dict[str, Kind]:
    """Return the kinds of fields whose values stand in the JSON as they are."""
    return dict.fromkeys(names, _AS_IT_IS)


_STORED = Record(
    "stored file",
    Stored,
    {
        **_fields("path", "length", "checksum", "index", "start"),
        "inline": Plain(lambda data: base64.b64encode(data).decode(), base64.b64decode),
    },
    ADDED["stored file"],
)

RUN = Record(
    "run",
    Run,
    {
        "file": _STORED,
        **_fields("rows", "low", "high", "first", "last", "below", "half", "due", "last_due"),
        "dropped": Plain(_lists, _paths),
    },
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

_LATE_ROWS = Record(
    "late rows",
    LateRows,
    {"sides": Listed(SIDE), "settled": _PAGES, "settled_counts": _BY_NAME, "outside": _AS_IT_IS},
)

_INPUT = Record(
    "flow's input",
    SourceState,
    {
        "channels": Named(_CHANNEL),
        "positions": Named(_POSITION),
        "journal": _PAGES,
        "planned": _BY_NAME,
        **_fields("again", "since", "below"),
    },
    ADDED["input"],
)

_UPSTREAM = Record("task that feeds a flow", Upstream, _fields("task", "born", "life"))

_FLOW = Parted(
    Record(
        "flow",
        FlowState,
        {"inputs": Named(_INPUT), "upstream": Named(_UPSTREAM), "coarse": Listed(_COARSE), "stepped": _AS_IT_IS},
        ADDED["flow"],
    ),
    {"progress": Record("flow", FlowProgress, _fields("clock", "holds", "batch")), "late_rows": _LATE_ROWS},
)


_OF_OUTPUTS = {
    "voided": "right_up_to",
    "cut_at": "cut_at",
    "begun": "begun",
    "left_at": "left_at",
    "lacks": "lacks",
    "had": "had",
}
"""By field of a task: the attribute of its outputs' records that the field has by output, where it is not the default."""

_LISTS = {"left": LEFT, "retired": RETIRED}
"""By field of a task: the status of the outputs that the field lists."""


def _fields_of(outputs: OutputState) -> SimpleNamespace:
    """Return the record of a task's outputs as the JSON has it, by field."""
    by_output = {
        field: {
            output: value
            for output, record in outputs.records.items()
            if (value := getattr(record, attribute)) != getattr(OutputRecord, attribute)
        }
        for field, attribute in _OF_OUTPUTS.items()
    }
    lists = {field: tuple(sorted(outputs.with_status(status))) for field, status in _LISTS.items()}
    return SimpleNamespace(delivered=outputs.delivered, furthest=outputs.furthest, **by_output, **lists)


def _outputs_of(delivered: Mapping[str, int], furthest: int, **fields: Any) -> OutputState:
    known: dict[str, dict[str, Any]] = {}
    for output, clock in delivered.items():
        known[output] = {"status": ACTIVE, "delivered": clock}
    for field, status in _LISTS.items():
        for output in fields[field]:
            known.setdefault(output, {"status": status})
    for field, attribute in _OF_OUTPUTS.items():
        for output, value in fields[field].items():
            known.setdefault(output, {})[attribute] = value
    return OutputState({output: OutputRecord(**record) for output, record in known.items()}, furthest)


_OUTPUTS = Recast(
    "task",
    _outputs_of,
    {
        **dict.fromkeys(("delivered", *_OF_OUTPUTS), _BY_NAME),
        **dict.fromkeys(_LISTS, _TUPLE),
        "furthest": _AS_IT_IS,
        "lacks": Named(_TUPLE),
    },
    recast=_fields_of,
)

_TASK = Parted(
    Record(
        "task",
        TaskState,
        {**_fields("identity", "born", "flow", "active", "life"), "ended": _TUPLE},
        ADDED["task"],
    ),
    {
        "late_rows": _LATE_ROWS,
        "stored": Record("task", StoredState, {"cuts": _TUPLE, "shards": Numbered(_SHARD), "floor": _AS_IT_IS}),
        "outputs": _OUTPUTS,
    },
)

_KEPT = Record("kept clock", Kept, {"entry": _AS_IT_IS, "names": _TUPLE}, ADDED["kept clock"])

_OWED = Record("debt of an output", Owed, _fields("timeline", "clock"))

ENTRY = Record(
    "log entry",
    Entry,
    {
        **_fields("number", "epoch", "writer", "time", "previous", "interval", "shards", "clock", "next", "timeline"),
        "retained": Listed(_AS_IT_IS),
        "kept": ByClock(_KEPT),
        "owes": Named(Named(_OWED)),
        "flows": Named(_FLOW),
        "tasks": Named(_TASK),
    },
    ADDED["log entry"],
)
