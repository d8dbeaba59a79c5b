"""The log is one truth: entries whole or damaged, one winner for each number, and nothing collected that is needed."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import pickle
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Sum
from persistent_state import (
    CommitUnknownError,
    DamagedError,
    FencedError,
    NonWindowState,
    PersistentTask,
    StateError,
    StoreUnavailableError,
)
from persistent_state.batch.plan import Plan
from persistent_state.errors import ExistsError, StoreRefusedError
from persistent_state.event_time import positions
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, END, Coarse
from persistent_state.event_time.positions import Position
from persistent_state.open_state import read_state
from persistent_state.protocol.collect import LEFTOVER_AGE, Collector
from persistent_state.protocol.commits import close
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import blocks, codec, late_rows, lists
from persistent_state.store import log as logs
from persistent_state.store import runs as runs_io
from persistent_state.store.entry import Entry, Kept, Owed
from persistent_state.store.files import BytesLike, Files, MemoryFiles, Names, open_files
from persistent_state.store.files.base import TRIES
from persistent_state.store.flow_state import FlowProgress, FlowState, LateRows, SourceState, Upstream
from persistent_state.store.log import MOST_KNOWN, Log
from persistent_state.store.named_files import Cut, Pages, Run, ShardRuns, SideFile, Stored, written
from persistent_state.store.output_state import ACTIVE, LEFT, RETIRED, OutputRecord, OutputState, Status
from persistent_state.store.task_state import StoredState, TaskState
from tests import core
from tests.soak import soak_or
from tests.store.counted import CountedFiles

GOLDEN = Path(__file__).parent / "golden_entry-5.json"
GOLDEN_EVERY_FIELD = Path(__file__).parent / "golden_every_field-5.json"
GOLDEN_CHANGES = Path(__file__).parent / "golden_changes-5.json"
GOLDEN_GRAPH = Path(__file__).parent / "golden_graph-5.json"
GOLDEN_1 = Path(__file__).parent / "golden_entry-1.json"
GOLDEN_2 = Path(__file__).parent / "golden_entry-2.json"
GOLDEN_4 = Path(__file__).parent / "golden_entry-4.json"
GOLDEN_EVERY_FIELD_4 = Path(__file__).parent / "golden_every_field-4.json"
GOLDEN_CHANGES_4 = Path(__file__).parent / "golden_changes-4.json"
GOLDEN_GRAPH_4 = Path(__file__).parent / "golden_graph-4.json"
GOLDEN_3 = Path(__file__).parent / "golden_entry-3.json"
GOLDEN_EVERY_FIELD_3 = Path(__file__).parent / "golden_every_field-3.json"
GOLDEN_CHANGES_3 = Path(__file__).parent / "golden_changes-3.json"
GOLDEN_PACKED_3 = Path(__file__).parent / "golden_packed-3.json"


def of_shards(*runs: Run) -> tuple[ShardRuns, ...]:
    """Shards with one run each."""
    return tuple(ShardRuns((run,)) for run in runs)


PLACE = "sql sqlite:///größe.db totals"

FULL = Entry(
    number=7,
    epoch=2,
    writer="w-1",
    time=1_700_000_000_000_000,
    previous="ab" * 32,
    interval=60_000_000,
    shards=2,
    clock=120_000_000,
    retained=(BEGINNING, 60_000_000, 120_000_000),
    flows={
        "totals": FlowState(
            progress=FlowProgress(clock=180_000_000, holds=False, batch=3),
            inputs={
                "": SourceState(
                    channels={"a": Channel(200_000_000, 5), "b": Channel(None, 6, ended=True, beyond=2)},
                    positions={"events/1.csv": Position(9, ((12, 60_000_000),), ((0, 59_000_000), (4, 130_000_000)))},
                    journal=Pages((Stored("app/runs/totals/p", 5, "01" * 32),), ("one", 'two "quoted"\n')),
                )
            },
            late_rows=LateRows(
                sides=(
                    SideFile(
                        Stored("app/runs/totals/c.side.arrow", 7, "23" * 32),
                        {"late": 2, "no timestamp": 1},
                        None,
                        {"events/1.csv": 9},
                        (Cut(60_000_000, {"events/1.csv": 3}),),
                    ),
                ),
                settled=Pages((), ("{}",)),
                settled_counts={"late": 4},
            ),
            coarse=(Coarse(0, 960_000_000, 120_000_000),),
        ),
        "gone": FlowState(FlowProgress(60_000_000)),
    },
    tasks={
        "totals": TaskState(
            identity={
                "state": "NonWindowState",
                "monoid": {"name": "Sum", "parameters": {}, "type": "int64"},
                "key": [{"name": "größe", "type": "string"}],
            },
            born=BEGINNING,
            flow="totals",
            stored=StoredState(
                cuts=(BEGINNING, 120_000_000, 180_000_000),
                shards=of_shards(
                    Run(
                        Stored("app/runs/totals/a.arrow", 900, "cd" * 32), 3, 0, 2**63, 0, 60_000_000, below=120_000_000
                    ),
                    Run(
                        Stored("app/runs/totals/b.arrow", 901, "ef" * 32),
                        4,
                        2**63,
                        2**64,
                        60_000_000,
                        180_000_000,
                        half=240_000_000,
                    ),
                ),
                floor=60_000_000,
            ),
            outputs=OutputState({PLACE: OutputRecord(ACTIVE, 120_000_000), "function f": OutputRecord(ACTIVE)}),
        ),
        "gone": TaskState(identity={}, born=0, flow="gone", stored=StoredState((60_000_000,)), active=False),
    },
)
"""An entry of tasks that share no flow, as entries of every format can say it."""

_totals = FULL.tasks["totals"]
_source = replace(FULL.flows["totals"].source, planned={"events/1.csv": 11}, again=120_000_001)
EVERY_FIELD_OF_ONE = FULL.with_task(
    "totals",
    replace(
        _totals,
        active=False,
        life=2,
        stored=replace(
            _totals.stored,
            shards=of_shards(*(replace(run, file=replace(run.file, index=400)) for run in _totals.stored.runs)),
        ),
        outputs=OutputState(
            {
                PLACE: OutputRecord(ACTIVE, 120_000_000, cut_at=120_000_000),
                "function f": OutputRecord(ACTIVE, right_up_to=60_000_000),
                "parquet p": OutputRecord(LEFT),
                "delta d": OutputRecord(RETIRED),
            },
            furthest=240_000_000,
        ),
    ),
).with_flow("totals", FULL.flows["totals"].with_source(_source))
"""What an entry of format 3 can say of a task, and nothing of it as by default."""

EVERY_FIELD_4 = EVERY_FIELD_OF_ONE.with_task(
    "totals",
    replace(
        EVERY_FIELD_OF_ONE.tasks["totals"],
        late_rows=LateRows(
            (SideFile(Stored("app/runs/totals/d.side.arrow", 8, "45" * 32), {"value does not fit": 1}, None, {}, ()),),
            Pages((Stored("app/runs/totals/q", 6, "67" * 32),), ("{}",)),
            {"key does not fit": 2},
        ),
    ),
).with_task("shops", replace(FULL.tasks["gone"], flow="totals"))
"""Two tasks of one flow. No field of the first, and of the flow, is as it is by default."""

_task, _flow = (some["totals"] for some in (EVERY_FIELD_4.tasks, EVERY_FIELD_4.flows))
EVERY_FIELD = (
    replace(
        EVERY_FIELD_4,
        kept={60_000_000: Kept(3, ("before", "größe")), 120_000_000: Kept(7)},
        timeline=2,
        owes={"totals": {"function f": Owed(2, 60_000_000)}, "came later": {"größe": Owed(2, -5)}},
    )
    .with_task(
        "totals",
        replace(
            _task,
            late_rows=replace(_task.late_rows, outside=3),
            outputs=replace(
                _task.outputs,
                records={
                    **_task.outputs.records,
                    "parquet p": OutputRecord(LEFT, left_at=120_000_000),
                    "function f": OutputRecord(
                        ACTIVE,
                        right_up_to=60_000_000,
                        begun=60_000_000,
                        lacks=(BEGINNING, 60_000_000),
                        had=180_000_000,
                    ),
                },
            ),
        ).end_inputs(["rates", "größe"]),
    )
    .with_flow(
        "totals",
        replace(
            _flow.with_source(replace(_flow.source, since=60_000_000, below=240_000_000)),
            late_rows=replace(_flow.late_rows, outside=2),
        ),
    )
)
"""The same with kept clocks and what outputs owe, which came with format 5, with inputs that have ended, and with bounds."""

_fed = replace(FULL.tasks["gone"], active=True)
GRAPH = replace(
    EVERY_FIELD_4.with_task("per region", replace(_fed, flow="per region"))
    .with_flow(
        "per region",
        FlowState(FlowProgress(120_000_000, batch=2), {}, upstream={"": Upstream("totals", 60_000_000, 2)}),
    )
    .with_task("both", replace(_fed, flow="both"))
    .with_flow(
        "both",
        FlowState(
            FlowProgress(180_000_000),
            {"orders": SourceState(positions={"p": Position(3)}), "": SourceState()},
            upstream={"totals": Upstream("totals", 60_000_000, 2)},
            stepped=120_000_000,
        ),
    ),
    next=240_000_000,
)
"""A task that another feeds, one that sources and a task feed, and a common clock that is to come."""

INTS = st.integers(-(2**63), 2**64)
NAMES = st.text(max_size=6)
CHECKSUMS = st.binary(min_size=2, max_size=2).map(bytes.hex)
STORED = st.builds(Stored, NAMES, INTS, CHECKSUMS, INTS)
NUMBERS = st.lists(INTS, max_size=3).map(tuple)
PAIRS = st.lists(st.tuples(INTS, INTS), max_size=3).map(tuple)
PAGES = st.builds(Pages, st.lists(STORED, max_size=2).map(tuple), st.lists(NAMES, max_size=2).map(tuple))
SIDES = st.builds(
    SideFile,
    STORED,
    st.dictionaries(NAMES, INTS, max_size=2),
    st.one_of(st.none(), INTS),
    st.dictionaries(NAMES, INTS, max_size=2),
    st.lists(st.builds(Cut, INTS, st.dictionaries(NAMES, INTS, max_size=2)), max_size=2).map(tuple),
)
COUNTS = st.dictionaries(NAMES, INTS, max_size=2)
TEXTS = st.lists(NAMES, max_size=2).map(tuple)
RUNS = st.builds(Run, STORED, INTS, INTS, INTS, INTS, INTS, st.one_of(st.none(), INTS), st.one_of(st.none(), INTS))
LATE_ROWS = st.builds(LateRows, st.lists(SIDES, max_size=2).map(tuple), PAGES, COUNTS, INTS)
SOURCES = st.builds(
    SourceState,
    channels=st.dictionaries(
        NAMES, st.builds(Channel, st.one_of(st.none(), INTS), INTS, st.booleans(), INTS), max_size=2
    ),
    positions=st.dictionaries(NAMES, st.builds(Position, INTS, PAIRS, PAIRS), max_size=2),
    journal=PAGES,
    planned=COUNTS,
    again=INTS,
    since=INTS,
    below=INTS,
)
FLOWS = st.builds(
    FlowState,
    progress=st.builds(FlowProgress, INTS, st.booleans(), INTS),
    inputs=st.dictionaries(NAMES, SOURCES, max_size=2),
    late_rows=LATE_ROWS,
    coarse=st.lists(st.builds(Coarse, INTS, INTS, INTS), max_size=2).map(tuple),
)
MAYBE = st.none() | INTS
RECORDS = st.one_of(
    st.builds(OutputRecord, st.just(ACTIVE), INTS, INTS, MAYBE, INTS, INTS, st.none() | st.tuples(INTS, INTS), MAYBE),
    st.builds(OutputRecord, st.sampled_from([LEFT, RETIRED]), cut_at=MAYBE, left_at=INTS, had=MAYBE),
    st.builds(OutputRecord, had=INTS),
)
TASKS = st.builds(
    TaskState,
    identity=st.dictionaries(NAMES, st.one_of(NAMES, st.lists(INTS, max_size=2)), max_size=2),
    born=INTS,
    flow=NAMES,
    stored=st.builds(
        StoredState,
        cuts=NUMBERS,
        shards=st.lists(st.builds(ShardRuns, st.lists(RUNS, max_size=3).map(tuple)), max_size=3).map(tuple),
        floor=INTS,
    ),
    late_rows=LATE_ROWS,
    outputs=st.builds(OutputState, st.dictionaries(NAMES, RECORDS, max_size=3), INTS),
    active=st.booleans(),
    life=INTS,
    ended=TEXTS,
)
ENTRIES = st.builds(
    Entry,
    number=INTS,
    epoch=INTS,
    writer=NAMES,
    time=INTS,
    previous=NAMES,
    interval=INTS,
    shards=INTS,
    clock=INTS,
    retained=NUMBERS,
    kept=st.dictionaries(INTS, st.builds(Kept, INTS, TEXTS), max_size=3),
    timeline=INTS,
    owes=st.dictionaries(
        NAMES, st.dictionaries(NAMES, st.builds(Owed, INTS, INTS), min_size=1, max_size=2), max_size=2
    ),
    flows=st.dictionaries(NAMES, FLOWS, max_size=2),
    tasks=st.dictionaries(NAMES, TASKS, max_size=2),
)


def sealed(record: dict[str, Any]) -> bytes:
    """The bytes of an entry of this record, by hand."""
    body = json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    return body + b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n"


def without_added(data: bytes) -> bytes:
    """An entry of the first format as the first version would have written it."""
    record = json.loads(data.splitlines()[0])
    for task in record["tasks"].values():
        for name in ("delivered", "floor"):
            del task[name]
        for run in task["runs"]:
            del run["half"]
        for channel in task["channels"].values():
            del channel["before"]
    return sealed(record)


OF_FLOWS = ("batch", "clock", "coarse", "holds", "settled", "settled_counts", "sides")
"""The fields of a flow that before format 4 were a task's. So were those of its only input."""


def as_of_format_3(entry: Entry) -> Entry:
    """The entry with what format 3 could say of it: each task has a flow of its own, with one input."""
    some = [*entry.flows.values(), FlowState(FlowProgress(0))]
    flows = {
        name: replace(flow, inputs={"": source_of(flow)}, late_rows=replace(flow.late_rows, outside=0))
        for i, name in enumerate(entry.tasks)
        for flow in [some[i % len(some)]]
    }
    tasks = {
        name: replace(task, flow=name, late_rows=LateRows(), outputs=of_format_3(task.outputs))
        for name, task in entry.tasks.items()
    }
    return replace(entry, flows=flows, tasks=tasks, kept={}, timeline=0, owes={})


def of_format_3(outputs: OutputState) -> OutputState:
    records = {
        output: replace(record, begun=BEGINNING, left_at=BEGINNING, lacks=None)
        for output, record in outputs.records.items()
    }
    return replace(outputs, records=records)


def source_of(flow: FlowState) -> SourceState:
    return replace(next(iter(flow.inputs.values()), SourceState()), since=BEGINNING, below=END)


def in_format_3(data: bytes) -> bytes:
    """An entry of tasks with a flow of their own as the library of format 3 would have written it."""
    record = json.loads(data.splitlines()[0])
    if "tasks" in record:
        record = without_flows(record)
    if "changes" in record:
        is_packed = isinstance(record["changes"], str)
        changes = without_flows(unpacked(record["changes"]))
        record["changes"] = packed(changes) if is_packed else changes
    return sealed({**record, "format": 3})


def without_flows(record: dict[str, Any]) -> dict[str, Any]:
    is_packed = isinstance(record.get("tasks"), str)
    flows, tasks = (unpacked(record.pop(field, {})) for field in ("flows", "tasks"))
    for name, flow in flows.items():
        task = tasks.setdefault(name, {})
        if task is not None:
            inputs = flow.pop("inputs", {"": {}})
            assert flow.keys() <= {*OF_FLOWS}
            tasks[name] = {**task, **flow, **inputs[""]}
    for task in tasks.values():
        if task is not None:
            task.pop("flow", None)
    return {**record, **({"tasks": packed(tasks) if is_packed else tasks} if tasks or is_packed else {})}


def unpacked(record: Any) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(record))) if isinstance(record, str) else record


def packed(record: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(record).encode())).decode()


def values_of(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """All plain values within a value, with the way to them."""
    if is_dataclass(value):
        steps = [(each.name, getattr(value, each.name)) for each in fields(value)]
    elif isinstance(value, Mapping):
        steps = list(value.items())
    elif isinstance(value, tuple | list):
        steps = list(enumerate(value))
    else:
        yield at, value
        return
    for step, inner in steps:
        yield from values_of(inner, (*at, step))


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """The value with another one at the end of a way."""
    if not at:
        return new
    step, *rest = at
    if is_dataclass(value):
        return replace(value, **{step: replaced(getattr(value, step), tuple(rest), new)})
    if isinstance(value, Mapping):
        return {**value, step: replaced(value[step], tuple(rest), new)}
    return type(value)(replaced(each, tuple(rest), new) if i == step else each for i, each in enumerate(value))


def another(at: tuple[Any, ...], value: Any) -> Any:
    if at[-1] == "lacks":
        return (17, 18)
    if isinstance(value, Status):
        return LEFT if value is RETIRED else RETIRED
    return not value if isinstance(value, bool) else 17 if value is None else value + type(value)(1)


def others_than(entry: Entry) -> Iterator[tuple[tuple[Any, ...], Entry]]:
    """Entries that differ from this one in one value each, with the way to it."""
    for at, value in values_of(entry):
        other = replaced(entry, at, another(at, value))
        records = (each for task in other.tasks.values() for each in task.outputs.records.values())
        # A clock is delivered only of an active output.
        if all(each.status is ACTIVE or each.delivered == BEGINNING for each in records):
            yield at, other


def change_of_full() -> bytes:
    """An entry that says what changed since `FULL`."""
    before = codec.from_bytes(codec.to_bytes(FULL), "before")
    return codec.to_bytes(replace(EVERY_FIELD, number=8, previous=before.checksum), before, 7)


class TestEntries:
    def test_the_bytes_of_an_entry_never_change(self) -> None:
        assert codec.to_bytes(FULL) == GOLDEN.read_bytes()
        assert codec.from_bytes(GOLDEN.read_bytes(), "golden") == FULL

    def test_each_field_of_a_task_and_of_a_flow_keeps_its_name_in_the_bytes(self) -> None:
        assert codec.to_bytes(EVERY_FIELD) == GOLDEN_EVERY_FIELD.read_bytes()
        assert codec.from_bytes(GOLDEN_EVERY_FIELD.read_bytes(), "golden") == EVERY_FIELD
        task, flow = EVERY_FIELD.tasks["totals"], EVERY_FIELD.flows["totals"]
        parts = (task, task.stored, task.late_rows, task.outputs, flow, flow.progress, flow.source, flow.late_rows)
        for part in parts:
            for each in fields(part):
                default = each.default if each.default_factory is MISSING else each.default_factory()
                is_of_sources = each.name in ("upstream", "stepped")
                assert is_of_sources or getattr(part, each.name) != default, f"{type(part).__name__}.{each.name}"
        records = task.outputs.records.values()
        for each in fields(OutputRecord):
            assert any(getattr(record, each.name) != each.default for record in records), f"OutputRecord.{each.name}"

    def test_the_fields_of_a_graph_keep_their_names_in_the_bytes(self) -> None:
        assert codec.to_bytes(GRAPH) == GOLDEN_GRAPH.read_bytes()
        assert codec.from_bytes(GOLDEN_GRAPH.read_bytes(), "golden") == GRAPH

    def test_an_entry_of_the_first_format_is_read_as_it_was_meant(self) -> None:
        assert codec.from_bytes(GOLDEN_1.read_bytes(), "golden") == FULL
        # The first version had none of the fields that were added.
        oldest = without_added(GOLDEN_1.read_bytes())
        entry = codec.from_bytes(oldest, "oldest")
        task = entry.tasks["totals"]
        source = entry.flow_of("totals").source
        assert (task.outputs.delivered, task.stored.floor, source.planned) == ({}, BEGINNING, {})
        assert [run.half for run in task.stored.runs] == [None, None]
        assert [channel.before for channel in source.channels.values()] == [None, None]
        wanted = FULL.tasks["totals"]
        shards = of_shards(*(replace(run, half=None) for run in wanted.stored.runs))
        stored = replace(wanted.stored, floor=BEGINNING, shards=shards)
        assert task == replace(wanted, stored=stored, outputs=OutputState())
        assert entry.flows == FULL.flows

    def test_an_entry_of_the_second_format_is_one_whose_files_have_no_blocks(self) -> None:
        assert codec.from_bytes(GOLDEN_2.read_bytes(), "golden") == FULL
        assert {run.file.index for run in FULL.tasks["totals"].stored.runs} == {0}

    def test_in_an_entry_of_the_third_format_each_task_has_a_flow_of_its_own(self) -> None:
        full = codec.from_bytes(GOLDEN_3.read_bytes(), "golden")
        assert full == FULL
        assert codec.from_bytes(GOLDEN_EVERY_FIELD_3.read_bytes(), "golden") == EVERY_FIELD_OF_ONE
        changed = codec.from_bytes(GOLDEN_CHANGES_3.read_bytes(), "golden", full)
        assert changed == replace(EVERY_FIELD_OF_ONE, number=8, previous=full.checksum)
        # One task is gone, another is new. This entry is whole and says what changed, both compressed.
        new = replace(FULL.tasks["totals"], born=60_000_000, flow="new")
        packed = codec.from_bytes(GOLDEN_PACKED_3.read_bytes(), "golden")
        assert packed == codec.from_bytes(GOLDEN_PACKED_3.read_bytes(), "golden", full)
        assert packed.tasks == {"totals": changed.tasks["totals"], "new": new}
        assert packed.flows == {"totals": changed.flows["totals"], "new": FULL.flows["totals"]}

    def test_an_entry_of_the_fourth_format_keeps_no_clock(self) -> None:
        full = codec.from_bytes(GOLDEN_4.read_bytes(), "golden")
        assert full == FULL
        assert codec.from_bytes(GOLDEN_EVERY_FIELD_4.read_bytes(), "golden") == EVERY_FIELD_4
        assert codec.from_bytes(GOLDEN_GRAPH_4.read_bytes(), "golden") == GRAPH
        changed = codec.from_bytes(GOLDEN_CHANGES_4.read_bytes(), "golden", full)
        assert changed == replace(EVERY_FIELD_4, number=8, previous=full.checksum)

    @settings(max_examples=60)
    @given(st.data(), st.booleans(), st.booleans())
    def test_entries_of_the_third_format_are_read_as_they_were_meant(
        self, data: st.DataObject, is_whole: bool, is_packed: bool
    ) -> None:
        """Tasks come, go and change, in whole entries and in changes, as they are and compressed."""
        one, other = (data.draw(ENTRIES.map(as_of_format_3)) for _ in range(2))
        with mock.patch.object(codec, "LARGE", 0 if is_packed else codec.LARGE):
            before = codec.from_bytes(in_format_3(codec.to_bytes(one)), "before")
            entry = replace(other, previous=before.checksum)
            written = in_format_3(codec.to_bytes(entry, before, entry.number if is_whole else entry.number - 1))
        assert before == one
        assert codec.from_bytes(written, "entry", before) == entry
        if is_whole:
            assert codec.from_bytes(written, "entry") == entry

    @settings(max_examples=60)
    @given(ENTRIES)
    def test_an_entry_comes_back_as_it_was(self, entry: Entry) -> None:
        data = codec.to_bytes(entry)
        back = codec.from_bytes(data, "entry")
        assert back == entry
        assert codec.to_bytes(back) == data

    def test_an_entry_carries_the_checksum_of_the_bytes_that_it_was_read_from(self) -> None:
        for data in (GOLDEN.read_bytes(), GOLDEN_1.read_bytes(), without_added(GOLDEN_1.read_bytes())):
            entry = codec.from_bytes(data, "golden")
            assert entry.checksum == hashlib.sha256(data).hexdigest()
            follower = entry.follower(5)
            assert (follower.previous, follower.checksum) == (entry.checksum, "")
            assert entry.with_task("gone", entry.tasks["totals"]).checksum == ""

    def test_no_attribute_is_forgotten(self) -> None:
        """Every value of an entry, if it is another, makes other bytes, so no field of it is left out."""
        for at, other in others_than(EVERY_FIELD):
            if at not in (("checksum",), ("base",)):
                assert codec.to_bytes(other) != codec.to_bytes(EVERY_FIELD), at
                assert codec.from_bytes(codec.to_bytes(other), "entry") == other, at

    @settings(max_examples=60)
    @given(ENTRIES, ENTRIES, st.booleans(), st.booleans())
    def test_changes_make_an_entry_of_the_one_before_it(
        self, one: Entry, other: Entry, is_whole: bool, is_packed: bool
    ) -> None:
        with mock.patch.object(codec, "LARGE", 0 if is_packed else codec.LARGE):
            before = codec.from_bytes(codec.to_bytes(one), "before")
            entry = replace(other, previous=before.checksum)
            data = codec.to_bytes(entry, before, entry.number if is_whole else entry.number - 1)
        assert codec.from_bytes(data, "entry", before) == entry
        if is_whole:
            assert codec.from_bytes(data, "entry") == entry
        else:
            with pytest.raises(DamagedError, match="log entry entry does not go on from entry"):
                codec.from_bytes(data, "entry")

    def test_a_change_says_all_that_changed_and_nothing_else(self) -> None:
        before = codec.from_bytes(codec.to_bytes(EVERY_FIELD), "before")
        for at, each in others_than(EVERY_FIELD):
            other = replace(each, previous=before.checksum, number=8)
            if at not in (("checksum",), ("base",), ("number",), ("previous",)):
                data = codec.to_bytes(other, before, 7)
                assert codec.from_bytes(data, "entry", before) == other, at
                assert len(data) < 700, at
        assert GOLDEN_CHANGES.read_bytes() == change_of_full()
        full = codec.from_bytes(codec.to_bytes(FULL), "before")
        assert codec.from_bytes(GOLDEN_CHANGES.read_bytes(), "entry", full) == replace(
            EVERY_FIELD, number=8, previous=full.checksum
        )

    def test_a_digest_of_runs_is_of_all_that_is_known_of_them(self) -> None:
        run = FULL.tasks["totals"].stored.runs[0]
        digests = {ShardRuns((run,)).digest, ShardRuns().digest, ShardRuns((run, run)).digest}
        digests |= {ShardRuns((replaced(run, at, another(at, value)),)).digest for at, value in values_of(run)}
        # A range of a file and a run in the entry are one run: it may move from here to there at any time.
        assert len(digests) == 3 + len([*values_of(run)]) - 1

    def test_an_added_field_is_written_only_where_it_is_not_as_before(self) -> None:
        record = json.loads(GOLDEN.read_bytes().splitlines()[0])
        assert not codec.ADDED["task"].keys() & record["tasks"]["gone"].keys()
        assert not codec.ADDED["input"].keys() & record["flows"]["gone"]["inputs"][""].keys()
        flow = FULL.flows["gone"].with_source(SourceState(planned={"a": 7}))
        record = json.loads(codec.to_bytes(FULL.with_flow("gone", flow)).splitlines()[0])
        assert record["flows"]["gone"]["inputs"][""]["planned"]

    @pytest.mark.parametrize(
        ("place", "told"),
        [
            ((), "lives in a log entry"),
            (("tasks", "totals"), "lives in a task"),
            (("flows", "totals"), "lives in a flow"),
            (("flows", "totals", "inputs", ""), "lives in a flow's input"),
            (("tasks", "totals", "shards", 0, "runs", 0), "lives in a run"),
            (("tasks", "totals", "shards", 0), "lives in a shard"),
            (("flows", "totals", "inputs", "", "channels", "a"), "lives in a channel"),
            (("flows", "totals", "inputs", "", "positions", "events/1.csv"), "lives in a position"),
            (("flows", "totals", "sides", 0), "lives in a file of late and bad rows"),
            (("flows", "totals", "sides", 0, "cuts", 0), "lives in a cut of late and bad rows"),
            (("flows", "totals", "inputs", "", "journal"), "lives in a list"),
            (("tasks", "totals", "shards", 0, "runs", 0, "file"), "lives in a stored file"),
            (("flows", "totals", "coarse", 0), "lives in a coarse range of clocks"),
            (("kept", "60000000"), "lives in a kept clock"),
        ],
    )
    def test_a_field_of_a_later_version_is_refused_with_what_to_do(self, place: Sequence[Any], told: str) -> None:
        record = json.loads(GOLDEN_EVERY_FIELD.read_bytes().splitlines()[0])
        at = record
        for step in place:
            at = at[step]
        at["lives"] = 3
        with pytest.raises(
            DamagedError, match=f"^log entry app/log/7 has {told}, which a later version wrote; upgrade"
        ):
            codec.from_bytes(sealed(record), "app/log/7")

    def test_one_flipped_bit_anywhere_is_found(self) -> None:
        data = codec.to_bytes(FULL)
        for i in range(len(data)):
            for bit in (0, 5):
                broken = bytearray(data)
                broken[i] ^= 1 << bit
                with pytest.raises(DamagedError, match="log entry app/log/7 is damaged"):
                    codec.from_bytes(bytes(broken), "app/log/7")

    def test_an_entry_that_is_torn_or_has_more_is_found(self) -> None:
        data = codec.to_bytes(FULL)
        for broken in (*(data[:length] for length in range(0, len(data), 13)), data[:-1], data + b"\n", data + data):
            with pytest.raises(DamagedError):
                codec.from_bytes(broken, "entry")

    def test_a_later_format_is_refused_with_what_to_do(self) -> None:
        with mock.patch.object(codec, "format_of", return_value=codec.FORMAT + 1):
            data = codec.to_bytes(FULL)
        with pytest.raises(DamagedError, match=f"has a format later than {codec.FORMAT}; upgrade persistent-state"):
            codec.from_bytes(data, "entry")


class Faulty(MemoryFiles):
    """A store whose next creations fail before or after they happen, and whose next listings are of before."""

    def __init__(self, url: str, creations: Sequence[str] = (), hidden: Sequence[str] = ()) -> None:
        super().__init__(url)
        object.__setattr__(self, "creations", list(creations))
        object.__setattr__(self, "ghosts", list(hidden))

    creations: list[str]
    ghosts: list[str]

    def create(self, path: str, data: BytesLike) -> None:
        fault = self.creations.pop(0) if self.creations else "none"
        if fault == "before":
            raise StoreUnavailableError("nothing happened")
        super().create(path, data)
        if fault == "after":
            raise StoreUnavailableError("it happened")

    def list(self, folder: str) -> Names:
        return [*super().list(folder), *([self.ghosts.pop(0)] if self.ghosts else [])]


class Late(MemoryFiles):
    """A far store whose listings show the first files only. `asked` are the names that were read."""

    lists_at_once = False

    def __init__(self, url: str, shown: int) -> None:
        super().__init__(url)
        object.__setattr__(self, "shown", shown)
        object.__setattr__(self, "asked", list[str]())

    shown: int
    asked: list[str]

    def list(self, folder: str) -> Names:
        return super().list(folder)[: self.shown]

    def read(self, path: str) -> pa.Buffer:
        self.asked.append(path)
        return super().read(path)


def entry_of(number: int, epoch: int = 1, writer: str = "w") -> Entry:
    return replace(FULL, number=number, epoch=epoch, writer=writer)


def log_of(*written: Entry, creations: Sequence[str] = (), hidden: Sequence[str] = ()) -> Log:
    """A log of these entries, on a store with these faults."""
    url = core.memory().url
    log = Log(open_files(url), "app")
    for entry in written:
        log.files.create(log.path(entry.number), codec.to_bytes(entry))
    return Log(Faulty(url, creations, hidden), "app")


class TestAppending:
    def test_a_number_is_given_once(self) -> None:
        log = log_of(entry_of(1))
        with pytest.raises(ExistsError):
            log.append(entry_of(1, writer="other"))
        assert log.read(1) == entry_of(1)
        log.append(entry_of(2))
        assert log.newest() == entry_of(2)
        assert log.numbers() == [1, 2]

    @pytest.mark.parametrize(
        "faults", [["after"], ["before"], ["before", "after"], ["before"] * 4, ["before"] * 3 + ["after"]]
    )
    def test_an_entry_whose_answer_was_lost_is_recognised(self, faults: list[str]) -> None:
        log = log_of(entry_of(1), creations=faults)
        log.append(entry_of(2))
        assert log.newest() == entry_of(2)

    @pytest.mark.parametrize("happened", [True, False])
    def test_a_store_that_never_answers_leaves_the_commit_unknown(self, happened: bool) -> None:
        first = ["after" if happened else "before"]
        log = log_of(entry_of(1), creations=[*first, *["before"] * (TRIES - 1)])
        with pytest.raises(
            CommitUnknownError, match=r"did not say whether entry=2 of app was written \(.+\); start again"
        ):
            log.append(entry_of(2))
        assert log.newest() == entry_of(2 if happened else 1)

    @pytest.mark.parametrize("call", ["mkdir", "open"])
    @pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
    def test_a_folder_that_may_not_be_written_is_refused_at_once_in_a_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
    ) -> None:
        calls: list[object] = []
        make = getattr(os, call)

        def refuse(path: str, flags: int = os.O_CREAT, *mode: int) -> Any:
            if not flags & os.O_CREAT:
                return make(path, flags, *mode)
            calls.append(path)
            raise OSError(number, os.strerror(number), path)

        files = open_files(str(tmp_path / "store"))
        with monkeypatch.context() as patched:
            patched.setattr(os, call, refuse)
            with pytest.raises(StoreRefusedError) as refused:
                Log(files, "app").append(entry_of(1))
        assert len(calls) == 1
        said = f"path='app/log/{1:020d}.json' in store='{tmp_path}/store' may not be written: [Errno {number}] "
        assert str(refused.value).startswith(said)
        assert str(refused.value).endswith(". Permit this user to write to the store, then start again.")

    @pytest.mark.parametrize(("call", "number"), [("link", errno.EACCES), ("open", errno.ENOSPC)])
    def test_a_failure_of_a_folder_that_may_pass_or_comes_late_leaves_the_commit_unknown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
    ) -> None:
        log = Log(open_files(str(tmp_path / "store")), "app")
        log.append(entry_of(1))
        monkeypatch.setattr(os, call, mock.Mock(side_effect=OSError(number, os.strerror(number))))
        with pytest.raises(CommitUnknownError, match="start again"):
            log.append(entry_of(2))

    def test_a_lost_answer_to_a_number_that_another_took_is_no_success(self) -> None:
        log = log_of(entry_of(1), entry_of(2, writer="other"), creations=["before"])
        with pytest.raises(ExistsError):
            log.append(entry_of(2))

    def test_a_driver_that_slept_until_its_number_was_collected_is_fenced(self) -> None:
        log = log_of(entry_of(5, epoch=2), entry_of(6, epoch=2))
        with pytest.raises(FencedError, match="a newer driver owns app; this one has stopped"):
            log.append(entry_of(3, epoch=1))
        assert log.newest() == entry_of(6, epoch=2)

    def test_an_entry_that_others_of_the_same_driver_went_on_from_is_committed(self) -> None:
        # Ours was written, its answer lost, and another task's follows it.
        log = log_of(
            entry_of(1), entry_of(2), replace(entry_of(3), previous=codec.checksum(codec.to_bytes(entry_of(2))))
        )
        log.append(entry_of(2))
        assert log.numbers() == [1, 2, 3]

    @pytest.mark.parametrize("number", [3, 4])
    def test_an_entry_written_where_another_was_collected_is_no_part_of_the_log(self, number: int) -> None:
        log = log_of(entry_of(number))
        with pytest.raises(CommitUnknownError, match="entry 2 of app came after others of its number; start again"):
            log.append(entry_of(2))
        assert log.newest() == entry_of(number)


class TestLateListings:
    @pytest.mark.parametrize("shown", range(5))
    def test_a_process_that_comes_new_gets_the_newest_entry_however_late_a_listing_is(self, shown: int) -> None:
        written = log_of(*map(entry_of, range(1, 5)))
        log = Log(Late(written.files.url, shown), "app")
        assert log.newest() == entry_of(4)
        # Another process writes on, and a listing shows nothing of it.
        written.append(entry_of(5))
        assert log.newest() == entry_of(5)
        log.append(entry_of(6))
        assert Log(Late(written.files.url, shown), "app").newest() == entry_of(6)

    def test_a_log_that_is_not_there_is_asked_for_once(self) -> None:
        files = Late(core.memory().url, 0)
        assert Log(files, "app").newest() is None
        assert files.asked == [Log(files, "app").path(1)]


class Paused(CountedFiles):
    """A store behind a network. Before each of the next requests something happens once, and it counts and names requests."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        object.__setattr__(self, "due", list[Callable[[], object]]())
        object.__setattr__(self, "asked", list[str]())

    due: list[Callable[[], object]]
    asked: list[str]

    def before(self, *happens: Callable[[], object]) -> None:
        """Let this happen before the next request, and that before the one after it, and so on."""
        self.due.extend(happens)

    def create(self, path: str, data: BytesLike) -> None:
        self._ask("PUT", path)
        super().create(path, data)

    def read(self, path: str) -> pa.Buffer:
        self._ask("GET", path)
        return super().read(path)

    def list(self, folder: str) -> Names:
        self._ask("LIST", folder)
        return super().list(folder)

    def _ask(self, kind: str, path: str) -> None:
        if self.due:
            self.due.pop(0)()
        self.asked.append(f"{kind} {int(path[-25:-5])}" if path.endswith(".json") else kind)


def chain_of(count: int, epoch: int = 1, after: Entry | None = None) -> list[Entry]:
    """Entries that follow each other, each whole, with the checksums of their bytes."""
    chain = list[Entry]()
    for _ in range(count):
        previous, number = (after.checksum, after.number + 1) if after else ("", 1)
        entry = replace(entry_of(number, epoch), previous=previous)
        after = replace(entry, checksum=codec.checksum(codec.to_bytes(entry)))
        chain.append(after)
    return chain


def nothing() -> None: ...


class TestAskingByName:
    """A process that has looked at the log at first, and is paused before any later request, while others write and collect."""

    @pytest.fixture
    def known(self) -> list[Entry]:
        return chain_of(3)

    @pytest.fixture
    def files(self, known: list[Entry]) -> Paused:
        """The store of three entries."""
        return Paused(log_of(*known).files.url)

    @pytest.fixture
    def log(self, files: Paused, known: list[Entry]) -> Log:
        """A log that has seen the newest of them."""
        log = Log(files, "app")
        assert log.newest() == known[-1]
        files.asked.clear()
        return log

    def go_on(self, log: Log, written: Sequence[Entry], left: int = 2) -> None:
        """Another driver writes these entries, and collects all but the newest ones."""
        files = MemoryFiles(log.files.url)
        for entry in written:
            files.create(log.path(entry.number), codec.to_bytes(entry))
        for number in Log(files, "app").numbers()[:-left]:
            files.delete(log.path(number))

    def test_who_knows_an_entry_asks_for_the_next_one_and_looks_whether_the_one_before_is_there(
        self, log: Log, files: Paused, known: list[Entry]
    ) -> None:
        assert log.newest() == known[-1]
        assert files.asked == ["GET 4", "GET 2"]
        files.asked.clear()
        self.go_on(log, after := chain_of(2, after=known[-1]))
        assert log.newest() == after[-1]
        assert files.asked == ["GET 4", "GET 5", "GET 6", "GET 4"]

    def test_an_entry_is_appended_without_a_listing(self, log: Log, files: Paused, known: list[Entry]) -> None:
        log.append(known[-1].follower(0))
        assert files.asked == ["PUT 4", "GET 5", "GET 3"]

    def test_a_disk_is_asked_by_name_as_a_store_behind_a_network_is(self, tmp_path: Path) -> None:
        files = open_files(tmp_path)
        log = Log(files, "app")
        log.append(entry_of(1))
        log.append(core.newest(log).follower(0))
        with mock.patch.object(type(files), "list", side_effect=AssertionError):
            log.append(core.newest(log).follower(0))

    @pytest.mark.parametrize("requests", range(4))
    @pytest.mark.parametrize("written", [1, 2, 3, 5, 40])
    @pytest.mark.parametrize("epoch", [1, 2])
    def test_a_look_sees_what_was_written_before_it_wherever_it_is_paused(
        self, log: Log, files: Paused, known: list[Entry], epoch: int, written: int, requests: int
    ) -> None:
        after = chain_of(written, epoch, known[-1])
        later = chain_of(4, epoch, after[-1])
        self.go_on(log, after)
        files.before(*[nothing] * requests, lambda: self.go_on(log, later))
        assert core.newest(log).number >= after[-1].number
        while files.due:
            log.newest()
        assert log.newest() == later[-1]

    @pytest.mark.parametrize("written", [2, 3, 5, 40])
    @pytest.mark.parametrize("epoch", [1, 2])
    def test_a_driver_that_was_paused_until_its_number_was_collected_has_not_committed(
        self, log: Log, files: Paused, known: list[Entry], epoch: int, written: int
    ) -> None:
        others = chain_of(written, epoch, known[-1])
        files.before(lambda: self.go_on(log, others, left=min(2, written - 1)))
        with pytest.raises(FencedError if epoch == 2 else CommitUnknownError):
            log.append(known[-1].follower(7))
        assert log.newest() == others[-1]

    @pytest.mark.parametrize("requests", [1, 2])
    @pytest.mark.parametrize("written", [1, 5])
    def test_a_driver_that_was_paused_after_its_entry_was_written_has_committed(
        self, log: Log, files: Paused, known: list[Entry], written: int, requests: int
    ) -> None:
        def go_on() -> None:
            self.go_on(log, chain_of(written, after=Log(MemoryFiles(log.files.url), "app").read(4)), left=100)

        files.before(*[nothing] * requests, go_on)
        log.append(known[-1].follower(7))
        assert core.newest(log).number == 4 + written

    def test_an_entry_that_was_written_again_after_it_was_collected_is_not_the_newest(
        self, log: Log, known: list[Entry]
    ) -> None:
        # A driver that slept writes the entry after the known one. It is fenced, and its entry stays for a while.
        others = chain_of(5, 2, known[-1])
        self.go_on(log, others)
        ghost = known[-1].follower(7)
        MemoryFiles(log.files.url).create(log.path(4), codec.to_bytes(ghost))
        assert log.newest() == others[-1]

    def test_an_entry_that_was_written_in_the_place_of_the_one_before_proves_nothing(
        self, log: Log, known: list[Entry]
    ) -> None:
        others = chain_of(5, 2, known[-1])
        self.go_on(log, others)
        MemoryFiles(log.files.url).create(log.path(2), codec.to_bytes(replace(known[1], time=7)))
        assert log.newest() == others[-1]

    def test_who_is_far_behind_lists_the_log(self, log: Log, files: Paused, known: list[Entry]) -> None:
        self.go_on(log, after := chain_of(logs.STEPS, after=known[-1]), left=100)
        assert log.newest() == after[-1]
        assert files.asked.count("LIST") == 1

    def test_a_log_of_one_entry_is_listed(self) -> None:
        (first,) = chain_of(1)
        files = Paused(log_of(first).files.url)
        log = Log(files, "app")
        assert log.newest() == first
        files.asked.clear()
        assert log.newest() == first
        assert files.asked == ["LIST", "GET 2"]

    @pytest.mark.parametrize("fault", ["lost", "damaged"])
    def test_a_fault_of_an_entry_in_the_middle_is_noticed_by_those_who_know_the_one_before(
        self, log: Log, known: list[Entry], fault: str
    ) -> None:
        after = chain_of(2, after=known[-1])
        self.go_on(log, after, left=100)
        log.files.delete(log.path(4))
        if fault == "damaged":
            log.files.create(log.path(4), b"damaged")
        seen = [log.newest() for _ in range(logs.LOOKS)]
        # It is whole itself, so that the lost one is not needed.
        assert seen[-1] == after[-1]
        assert fault == "lost" or seen[0] == after[-1]

    def test_once_the_log_is_known_to_be_damaged_no_look_takes_an_older_entry(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "LOOKS", 2)
        other = Log(MemoryFiles(log.files.url), "app")
        for _ in range(2):
            other.append(core.newest(other).follower(0))
        other.files.delete(other.path(4))
        log.newest()
        for _ in range(3):
            with pytest.raises(DamagedError, match="is missing, and entry 5 follows from it"):
                log.newest()

    def test_what_was_appended_where_an_entry_was_lost_is_no_part_of_the_log(
        self, log: Log, known: list[Entry]
    ) -> None:
        self.go_on(log, chain_of(2, after=known[-1]), left=100)
        log.files.delete(log.path(4))
        with pytest.raises(CommitUnknownError, match="came after others of its number"):
            log.append(known[-1].follower(7))


class TestSharing:
    """Threads of a driver share a log, and each of them asks the store for no more than it needs."""

    @pytest.fixture
    def files(self) -> Paused:
        """The store of three entries."""
        return Paused(log_of(*chain_of(3)).files.url)

    @pytest.fixture
    def log(self, files: Paused) -> Log:
        """A log that has seen the newest of them, by a clock that stands still."""
        log = Log(files, "app", lambda: 0.0, MOST_KNOWN)
        log.newest()
        files.asked.clear()
        return log

    def test_what_one_thread_has_read_or_written_the_others_do_not_read_again(self, log: Log, files: Paused) -> None:
        for _ in range(2):
            log.append(core.newest(log).follower(0))
        files.asked.clear()
        assert log.newest(1) == log.read(5)
        assert [log.read(number).number for number in (3, 4)] == [3, 4]
        assert files.asked == []
        assert core.newest(log).number == 5
        assert files.asked == ["GET 6", "GET 4"]

    def test_a_look_begins_where_the_last_one_ended_whatever_was_read_since(self, log: Log, files: Paused) -> None:
        def asked() -> list[str]:
            files.asked.clear()
            assert core.newest(log).number == 3
            return [*files.asked]

        log.newest()
        before = asked()
        log.read(1)
        assert asked() == before

    def test_an_answer_may_be_as_old_as_the_look_and_no_older(self, files: Paused) -> None:
        now = [0.0]
        log, other = Log(files, "app", lambda: now[0]), Log(MemoryFiles(files.url), "app")
        log.newest()
        # The second look takes a while. Its answer is as old as its first request.
        now[0] = 5.0
        files.before(nothing, lambda: now.__setitem__(0, 7.0))
        assert core.newest(log).number == 3
        other.append(core.newest(other).follower(0))
        for now[0], number in ((14.0, 3), (15.0, 4)):
            newest = log.newest(10)
            assert newest is not None
            assert newest.number == number

    def test_a_look_that_another_thread_has_overtaken_takes_nothing_back(self, log: Log, files: Paused) -> None:
        # Another thread appends an entry after this one was answered that it is not there.
        following = core.newest(log).follower(0)
        files.before(nothing, lambda: log.append(following))
        log.newest()
        newest = log.newest(1)
        assert newest is not None
        assert newest.number == 4

    def test_after_a_number_is_lost_to_another_process_no_older_answer_will_do(self, log: Log, files: Paused) -> None:
        other = Log(MemoryFiles(files.url), "app")
        known = core.newest(log)
        other.append(known.follower(0))
        with pytest.raises(ExistsError):
            log.append(known.follower(7))
        newest = log.newest(1)
        assert newest is not None
        assert newest.number == 4

    def test_entries_in_memory_are_few_and_the_newest_is_among_them(
        self, files: Paused, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for most, most_bytes, kept in ((1, 1 << 20, [3, 2]), (9, len(codec.to_bytes(FULL)), [3])):
            monkeypatch.setattr(logs, "MOST_BYTES", most_bytes)
            log = Log(files, "app", most=most)
            for number in (3, 1, 2):
                log.read(number)
            assert [*log._known] == kept
            files.asked.clear()
            log.read(3)
            assert files.asked == []

    def test_what_other_threads_write_while_the_log_is_listed_is_no_gap(self) -> None:
        log = Log(Late(log_of(*chain_of(3)).files.url, 2), "app")
        for _ in range(3):
            log.append(core.newest(log).follower(0))
        assert log.numbers() == [1, 2, 3, 4, 5, 6]

    def test_a_log_that_went_to_another_process_knows_nothing(self, log: Log) -> None:
        log = Log(open_files(log.files.url), "app")
        log.newest()
        copied = pickle.loads(pickle.dumps(log))
        assert (copied.application, copied._newest, copied._known) == ("app", None, {})
        assert copied.newest() == log.newest()


class TestReading:
    def test_an_application_that_was_never_started_has_no_newest_entry(self) -> None:
        assert log_of().newest() is None
        assert log_of().numbers() == []

    def test_an_entry_collected_while_it_is_looked_for_is_looked_for_again(self) -> None:
        ghost = "00000000000000000009.json"
        assert log_of(entry_of(1), hidden=[ghost] * 2).newest() == entry_of(1)
        with pytest.raises(StoreUnavailableError, match="the log of app changes faster than it can be read; try again"):
            log_of(entry_of(1), hidden=[ghost] * TRIES).newest()

    def test_a_damaged_newest_entry_is_not_replaced_by_an_older_truth(self) -> None:
        log = log_of(entry_of(1))
        log.files.create(log.path(2), codec.to_bytes(entry_of(2))[:-9])
        with pytest.raises(DamagedError, match=r"log entry app/log/0{19}2\.json is damaged"):
            log.newest()

    def test_an_entry_under_the_number_of_another_is_damage(self) -> None:
        log = log_of(entry_of(1))
        log.files.create(log.path(2), codec.to_bytes(entry_of(1)))
        with pytest.raises(DamagedError, match="says it is number 1; a file was moved, restore it"):
            log.newest()

    def test_what_is_no_entry_is_not_read_as_one(self) -> None:
        log = log_of(entry_of(1))
        for name in (
            "notes.txt",
            "notes.json",
            "2.json",
            "copy of 00000000000000000002.json",
            "00000000000000000002.json~",
        ):
            log.files.create(f"app/log/{name}", b"mine")
        assert log.numbers() == [1]
        assert log.newest() == entry_of(1)


class TestPages:
    @settings(max_examples=40)
    @given(st.lists(st.lists(st.text(max_size=3), max_size=7), max_size=6))
    def test_a_list_is_what_was_added_in_order_wherever_it_stands(self, added: list[list[str]]) -> None:
        files, known = core.memory(), Pages()
        with mock.patch.object(lists, "TAIL", 4):
            for items in added:
                known = lists.append(files, known, items, lambda: f"app/{core.new_id()}")
                assert len(known.tail) <= 4
        assert lists.read(files, known) == [item for items in added for item in items]
        assert codec.from_bytes(codec.to_bytes(with_journal(known)), "e") == with_journal(known)

    def test_a_damaged_page_is_named(self) -> None:
        files = core.memory()
        known = lists.append(files, Pages(), ["item"] * (lists.TAIL + 1), lambda: "app/page")
        flip(files, "app/page", 3)
        with pytest.raises(DamagedError, match="app/page is damaged"):
            lists.read(files, known)


def with_journal(known: Pages) -> Entry:
    flow = FULL.flows["totals"]
    return FULL.with_flow("totals", flow.with_source(replace(flow.source, journal=known)))


def with_settled(entry: Entry, page: Stored) -> FlowState:
    flow = entry.flows["totals"]
    settled = replace(flow.late_rows.settled, files=(page, *flow.late_rows.settled.files[1:]))
    return replace(flow, late_rows=replace(flow.late_rows, settled=settled))


def flip(files: Files, path: str, byte: int) -> None:
    """Turn one bit of a file over, behind everyone's back."""
    data = bytearray(bytes(files.read(path)))
    data[byte % len(data)] ^= 4
    files.delete(path)
    files.create(path, bytes(data))


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["late", "no timestamp", "value does not fit"]),
        st.one_of(st.none(), st.integers(0, 6)),
        st.sampled_from("ab"),
        st.integers(0, 5),
    ),
    min_size=1,
    max_size=12,
)


def side_of(files: Files, rows: list[tuple[str, int | None, str, int]]) -> SideFile:
    columns = list(zip(*rows, strict=True))
    types = (pa.string(), pa.int64(), pa.string(), pa.int64())
    arrays = [pa.array(column, type) for column, type in zip(columns, types, strict=True)]
    stored = runs_io.write_table(
        files, f"app/{core.new_id()}", pa.table(arrays, names=["reason", "timestamp", "strand", "position"])
    )
    stamps = [timestamp for _, timestamp, _, _ in rows if timestamp is not None]
    return SideFile(
        stored,
        {reason: sum(row[0] == reason for row in rows) for reason in {row[0] for row in rows}},
        max(stamps) if len(stamps) == len(rows) else None,
        {partition: max(p + 1 for _, _, s, p in rows if s == partition) for partition in {row[2] for row in rows}},
    )


class TestSides:
    @settings(max_examples=60)
    @given(ROWS, st.lists(st.tuples(st.integers(0, 7), st.integers(0, 6), st.integers(0, 6)), max_size=3))
    def test_a_start_takes_back_what_is_delivered_again_and_nothing_else(
        self, rows: list[tuple[str, int | None, str, int]], starts: list[tuple[int, int, int]]
    ) -> None:
        files = core.memory()
        side: SideFile | None = side_of(files, rows)
        for clock, *replays in starts:
            assert side is not None
            positions = dict(zip("ab", replays, strict=True))
            stay = [row for row in rows if row[3] < positions[row[2]] or (row[1] is not None and row[1] < clock)]
            if side.is_settled(clock, positions):
                assert stay == rows
            rows, side = stay, late_rows.take_back_of_file(files, side, clock, positions)
            if not rows:
                assert side is None
                return
            assert side is not None
            assert [tuple(row.values()) for row in late_rows.read(files, side).to_pylist()] == rows
            assert side.reasons == {reason: sum(row[0] == reason for row in rows) for reason in {r[0] for r in rows}}
            assert codec.side_from_json(codec.side_to_json(side)) == side


class Totals(PersistentTask):
    key = "k"
    value = "n"

    def __init__(self, name: str = "totals") -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


ROW = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])


def rows_of(*stamps: int | None) -> pa.RecordBatch:
    columns = [pa.array(values, pa.int64()) for values in (stamps, [(s or 0) % 3 for s in stamps], [1] * len(stamps))]
    return pa.RecordBatch.from_arrays(columns, schema=ROW)


@pytest.fixture(params=["local", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return open_files(str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path}")


def started(files: Files, *names: str) -> tuple[Log, list[Plan]]:
    log = Log(files, "app")
    plans = [core.plan_of(Totals(name), ROW, files=files, shards=2) for name in names or ("totals",)]
    core.start(log, plans)
    return log, plans


class TestApplications:
    def test_entries_form_a_chain(self, files: Files) -> None:
        log, (plan,) = started(files)
        for stamp in (5, 25, 45):
            core.play(log, plan, rows_of(stamp))
        log, (plan,) = started(files)
        core.play(log, plan, rows_of(65))
        close(log, 2, now=0, keeping=Keeping())
        fresh = Log(files, "app")
        chain = [fresh.read(number) for number in fresh.numbers()]
        assert [entry.number for entry in chain] == list(range(1, len(chain) + 1))
        assert [entry.epoch for entry in chain] == [1, 1, 1, 1, 2, 2, 2]
        assert [entry.previous for entry in chain] == ["", *(entry.checksum for entry in chain[:-1])]

    def test_late_rows_are_kept_once_when_they_are_many_and_starts_come_between(self, files: Files) -> None:
        with mock.patch.object(late_rows, "MANY", 2), mock.patch.object(lists, "TAIL", 3):
            log, (plan,) = started(files)
            history = [100, *(stamp for n in range(30) for stamp in (n, 101 + 10 * n))]
            batch, at = 0, 0
            while at < len(history):
                batch += 1
                entry = core.play(log, plan, rows_of(*history[at : at + (1 if batch == 1 else 2 + batch % 2)]))
                if batch % 6 == 5:
                    log, (plan,) = started(files)
                    entry = log.newest() or entry
                at = entry.flow_of("totals").source.positions[""].next
        late = entry.late_rows_of("totals")
        assert len(late.sides) < 15
        assert late.settled.files
        stamps = [stamp for table in late_rows.read_all(files, late) for stamp in table["timestamp"].to_pylist()]
        assert sorted(stamps) == list(range(30))
        assert late.counts() == {"late": 30}
        assert sum(core.state_at(entry, plan, None).values()) == 31

    @pytest.mark.parametrize("large", [0, late_rows.LARGE])
    @pytest.mark.soak
    @pytest.mark.parametrize("batches", soak_or(ci=[22, 41], soak=[22, 27, 41, 56]))
    def test_a_settled_bad_row_is_never_delivered_again_even_where_spans_were_joined(
        self, batches: int, large: int
    ) -> None:
        # Every micro-batch holds one row without a timestamp, which only its position can tell from a new one.
        stream = [stamp for n in range(batches) for stamp in (7 * n // 10, None)]
        with (
            mock.patch.object(positions, "MOST_SPANS", 4),
            mock.patch.object(late_rows, "MANY", 2),
            mock.patch.object(late_rows, "LARGE", large),
        ):
            log, (plan,) = started(core.memory())
            for at in range(0, len(stream), 2):
                entry = core.play(log, plan, rows_of(*stream[at : at + 2]))
            late = entry.late_rows_of("totals")
            assert bool(late.settled_counts) == (large == 0)
            settled = sum(late_rows.read(plan.files, side).num_rows for side in late_rows.settled(plan.files, late))
            for _ in range(2):
                entry = core.start(log, [plan])
                at = entry.flow_of("totals").source.positions[""].next
                # What stayed is what is not delivered again, no more and no less.
                assert entry.late_rows_of("totals").counts() == {"no timestamp": stream[:at].count(None)}
                assert stream[:at].count(None) >= settled
                entry = core.play(log, plan, rows_of(*stream[at:]))
                late = entry.late_rows_of("totals")
                assert late.counts() == {"no timestamp": batches}
                tables = late_rows.read_all(plan.files, late)
                kept = [position for table in tables for position in table["position"].to_pylist()]
                assert sorted(kept) == list(range(1, len(stream), 2))
                assert sum(core.state_at(entry, plan, None).values()) == batches

    @settings(max_examples=25)
    @given(byte=st.integers(0, 10**6))
    @pytest.mark.rows_in_files
    def test_a_run_with_one_flipped_bit_is_named_and_never_used(self, byte: int) -> None:
        files = core.memory()
        log, (plan,) = started(files)
        core.play(log, plan, rows_of(5, 25))
        entry = close(log, 1, now=0, keeping=Keeping())
        assert read_state(files.url, "app", Totals()).num_rows == 2
        stored = entry.tasks["totals"].stored.runs[0].file
        path = stored.path
        flip(files, path, stored.start + byte % stored.length)
        # A process that has not read the run yet.
        blocks._indexes.clear()
        with pytest.raises(DamagedError, match=f"{path} is damaged"):
            read_state(files.url, "app", Totals())

    def test_a_copy_of_a_store_is_verified_for_itself(self, tmp_path: Path) -> None:
        one, other = open_files(tmp_path / "one"), open_files(tmp_path / "other")
        stored = runs_io.write_bytes(one, "a/b", b"data")
        assert bytes(runs_io.read_bytes(one, stored)) == b"data"
        other.create("a/b", b"date")
        with pytest.raises(DamagedError):
            runs_io.read_bytes(other, stored)


class TestCollection:
    KEEPING = Keeping(clocks=2, grace=100)

    def run_files(self, files: Files, task: str = "totals") -> set[str]:
        return {f"app/runs/{task}/{name}" for name in files.list(f"app/runs/{task}")}

    def test_what_no_kept_entry_names_goes_and_every_retained_clock_stays_readable(
        self, files: Files, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "MOST_CHANGES", 0)
        log, plans = started(files, "totals", "other")
        counted = 0
        for i in range(30):
            for plan in plans:
                entry = core.play(log, plan, rows_of(10 * i, 10 * i + 1), now=i * 50, keeping=self.KEEPING)
            counted += 2
            gone = core.collect(log, 1, now=i * 50, keeping=self.KEEPING)
            assert not set(gone) & entry.files()
            assert log.newest() == entry
            for clock in entry.retained:
                for plan in plans:
                    state = core.state_at(entry, plan, clock)
                    assert sum(state.values()) == clock // 10 * 2
        assert len(log.numbers()) <= 8
        fresh = Log(files, "app")
        named = {path for number in fresh.numbers() for path in fresh.read(number).files()}
        assert named <= self.run_files(files) | self.run_files(files, "other")
        assert len(self.run_files(files)) < 30

    def test_what_was_replaced_goes_though_entries_say_only_what_changed(
        self, files: Files, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "MOST_AGE", 200)
        log, (plan,) = started(files)
        most = 0
        for i in range(60):
            core.play(log, plan, rows_of(*range(10 * i, 10 * i + 9)), now=i * 50, keeping=self.KEEPING)
            core.collect(log, 1, now=i * 50, keeping=self.KEEPING)
            most = max(most, len(log.numbers()))
        # What stays for a time of 100 follows from a base that is older by 200 at the most.
        assert 4 < most <= (100 + 200) // 50 + 2
        assert any(log.open(number).base != number for number in log.numbers())

    def test_entries_stay_for_a_time_after_they_were_followed_and_the_newest_two_for_ever(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logs, "MOST_CHANGES", 0)
        log, (plan,) = started(core.memory())
        for i in range(5):
            core.play(log, plan, rows_of(10 * i), now=1000 * i)
        # Entry 4 is of 2000, 5 of 3000, 6 of 4000.
        core.collect(log, 1, now=2099, keeping=self.KEEPING)
        assert log.numbers() == [3, 4, 5, 6]
        core.collect(log, 1, now=2100, keeping=self.KEEPING)
        assert log.numbers() == [4, 5, 6]
        core.collect(log, 1, now=10**9, keeping=self.KEEPING)
        assert log.numbers() == [5, 6]

    @pytest.mark.parametrize("count", range(1, 6))
    def test_a_collection_that_breaks_off_leaves_the_end_of_the_log_without_a_gap(
        self, monkeypatch: pytest.MonkeyPatch, count: int
    ) -> None:
        monkeypatch.setattr(logs, "MOST_CHANGES", 0)
        log, (plan,) = started(core.memory())
        for i in range(8):
            core.play(log, plan, rows_of(10 * i), now=i)
        before, deleted, delete = log.numbers(), list[str](), type(log.files).delete

        def break_off(files: Files, path: str) -> None:
            if len(deleted) == count:
                raise StoreUnavailableError("the driver is killed")
            deleted.append(path)
            delete(files, path)

        monkeypatch.setattr(type(log.files), "delete", break_off)
        with pytest.raises(StoreUnavailableError):
            core.collect(log, 1, now=10**9, keeping=self.KEEPING)
        assert log.numbers() == before[count:]

    @pytest.mark.rows_in_files
    def test_runs_of_a_batch_that_may_still_be_committed_stay(self) -> None:
        log, (plan,) = started(core.memory())
        for i in range(4):
            core.play(log, plan, rows_of(10 * i), now=0, keeping=self.KEEPING)
        made = core.answers(log, plan, rows_of(41, 42))
        lost = core.answers(log, plan, rows_of(41, 42))
        core.collect(log, 1, now=10**9, keeping=self.KEEPING)
        entry = core.commit(log, plan, made, keeping=self.KEEPING)
        assert core.state_at(entry, plan, None) == {(0,): 3, (1,): 1, (2,): 2}
        core.play(log, plan, rows_of(50), now=0, keeping=self.KEEPING)
        core.play(log, plan, rows_of(60), now=0, keeping=self.KEEPING)
        entries_after = {path for number in log.numbers() for path in log.read(number).files()}
        gone = core.collect(log, 1, now=10**9, keeping=self.KEEPING)
        # Its batch was committed by the other attempt: these can go.
        written = {run.file.path for descriptor in lost.descriptors for run in descriptor.runs} - entries_after
        assert written
        assert written <= set(gone)

    @pytest.mark.rows_in_files
    def test_runs_of_an_earlier_start_that_were_never_committed_go(self) -> None:
        log, (plan,) = started(core.memory())
        core.play(log, plan, rows_of(5))
        made = core.answers(log, plan, rows_of(25))
        named = log.newest()
        assert named is not None
        started(log.files)
        gone = core.collect(Log(log.files, "app"), 2, now=0, keeping=self.KEEPING)
        orphans = {run.file.path for descriptor in made.descriptors for run in descriptor.runs} - named.files()
        assert orphans
        assert orphans <= set(gone)

    def test_a_driver_that_is_not_the_newest_collects_nothing(self) -> None:
        log, (plan,) = started(core.memory())
        for i in range(5):
            core.play(log, plan, rows_of(10 * i))
        started(log.files)
        before = log.numbers()
        assert core.collect(log, 1, now=10**9, keeping=self.KEEPING) == []
        assert log.numbers() == before

    @pytest.mark.rows_in_files
    def test_a_damaged_old_entry_stops_no_collection_and_files_stay_until_it_goes(self) -> None:
        log, (plan,) = started(core.memory())
        for i in range(12):
            entry = core.play(log, plan, rows_of(10 * i), now=1000 * i, keeping=Keeping(2))
        kept = self.run_files(log.files)
        flip(log.files, log.path(4), 20)
        fresh = Log(log.files, "app")
        assert core.collect(fresh, entry.epoch, now=0, keeping=self.KEEPING) == []
        assert self.run_files(log.files) == kept
        gone = core.collect(fresh, entry.epoch, now=10**9, keeping=self.KEEPING)
        assert log.path(4) in gone
        assert set(gone) & kept
        assert entry.files() <= self.run_files(log.files)

    def test_late_rows_that_only_a_list_names_stay(self) -> None:
        with (
            mock.patch.object(late_rows, "MANY", 2),
            mock.patch.object(lists, "TAIL", 3),
            mock.patch.object(late_rows, "LARGE", 0),
        ):
            log, (plan,) = started(core.memory())
            core.play(log, plan, rows_of(100), keeping=self.KEEPING)
            for i in range(20):
                entry = core.play(log, plan, rows_of(i, 101 + 10 * i), now=i, keeping=self.KEEPING)
            core.collect(log, 1, now=10**9, keeping=self.KEEPING)
        listed = late_rows.settled(log.files, entry.flows["totals"].late_rows)
        assert len(listed) > 10
        assert {side.file.path for side in listed} <= self.run_files(log.files)

    @pytest.mark.parametrize("fault", ["damaged", "gone", "later"])
    def test_a_settled_list_that_cannot_be_read_keeps_what_it_may_name_and_nothing_else(
        self, fault: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with (
            mock.patch.object(late_rows, "MANY", 2),
            mock.patch.object(lists, "TAIL", 3),
            mock.patch.object(late_rows, "LARGE", 0),
        ):
            log, (plan, other) = started(core.memory(), "totals", "other")
            files = log.files
            entry = core.play(log, plan, rows_of(100), keeping=self.KEEPING)
            for i in range(12):
                core.play(log, other, rows_of(101 + 10 * i), now=i, keeping=self.KEEPING)
                entry = core.play(log, plan, rows_of(i, 101 + 10 * i), now=i, keeping=self.KEEPING)
            (page, *_) = entry.flows["totals"].late_rows.settled.files
            named = {json.loads(line)["file"]["path"] for line in lists.read_file(files, page)}
            content = bytes(files.read(page.path)).replace(b'{\\"cuts', b'{\\"lives\\":3,\\"cuts')
            if fault == "damaged":
                flip(files, page.path, 3)
            else:
                files.delete(page.path)
            if fault == "later":
                files.create(page.path, content)
                later = replace(page, length=len(content), checksum=hashlib.sha256(content).hexdigest())
                log.append(entry.follower(12, flows={**entry.flows, "totals": with_settled(entry, later)}))
            runs_io._verified.clear()
            collector = Collector(Log(files, "app"))
            for i in range(12, 26):
                for each in (plan, other):
                    core.play(log, each, rows_of(101 + 10 * i), now=1000 * i, keeping=self.KEEPING)
                collector.collect(1, now=1000 * i, keeping=self.KEEPING)
        assert log.numbers()[0] > entry.number
        assert named <= self.run_files(files)
        left = {path for number in log.numbers() for path in log.read(number).files()}
        unnamed = {path for path in self.run_files(files) - left if ".late." not in path}
        assert all(written(path) <= written(page.path) for path in unnamed)
        # The list is of another flow's micro-batches.
        assert self.run_files(files, "other") <= left
        told = caplog.messages
        assert [page.path in message for message in told] == [True]

    def test_temporary_files_of_killed_writers_go_once_they_are_old(self, tmp_path: Path) -> None:
        files = open_files(tmp_path)
        log, _ = started(files)
        old, young = tmp_path / "app/log/.tmp-old", tmp_path / "app/log/.tmp-young"
        for file, age in ((old, LEFTOVER_AGE + 1), (young, LEFTOVER_AGE - 1)):
            file.write_bytes(b"half")
            os.utime(file, (10_000 - age, 10_000 - age))
        assert core.collect(log, 1, now=10_000_000_000, keeping=self.KEEPING) == ["app/log/.tmp-old"]
        assert not old.exists()
        assert young.exists()

    def test_an_error_is_one_of_this_package_and_pickles(self) -> None:
        import pickle

        for kind in StateError.__subclasses__():
            error = pickle.loads(pickle.dumps(kind("text=1; do this.")))
            assert type(error) is kind
            assert str(error) == "text=1; do this."
