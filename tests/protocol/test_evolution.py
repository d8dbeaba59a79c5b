"""Starts with other columns and fields: an ordered task goes on, with what it had by the names that are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from persistent_state import verify
from persistent_state.batch import changes
from persistent_state.batch.as_stored import as_stored
from persistent_state.batch.in_order import EmittedRows, Messages, States
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.batch.process import KeyState, Program, process
from persistent_state.errors import InvalidInputError
from persistent_state.ordered import Context, OrderedTask, Timer
from persistent_state.partials.evolve import misfits
from persistent_state.partials.since import Since
from persistent_state.protocol import deliver, graph
from persistent_state.protocol.commits import Keeping
from persistent_state.sources.tasks import TIMESTAMP, InOrder
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.state_at import find_state, state_at
from persistent_state.task import Message
from tests import core

KEEPING = Keeping(3, 0)
SINK = "sink"


class Sums(OrderedTask):
    """It adds to every field of its state what the message has, and emits that."""

    name, key = "X", "k"

    def __init__(self, state: pa.DataType, emits: pa.Schema) -> None:
        self.state, self.emits = state, emits  # type: ignore[misc]

    def process(self, state: Any, message: Message, context: Context) -> Any:
        if message["v"] is not None and int(float(message["v"])) == 7:
            return None
        context.set_timer(message.timestamp + 11)
        return self._after(state, f"{int(float(message['v'] or 0))}{message.get('w') or ''}", context)

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        return self._after(state, "t", context)

    def _after(self, state: Any, what: str, context: Context) -> Any:
        assert self.state is not None
        assert self.emits is not None
        context.emit(**{field.name: added(field.type, None, what) for field in self.emits})
        return added(self.state, state, what)


def added(type: pa.DataType, value: Any, what: str) -> Any:
    """A value of this type to which one thing more was added. It tells all that was added before, by its fields."""
    if isinstance(type, pa.StructType):
        return {field.name: added(field.type, (value or {}).get(field.name), what) for field in type}
    if isinstance(type, pa.ListType):
        return [*(value or [])[-2:], added(type.value_type, None, what)]
    if pa.types.is_decimal(type):
        return Decimal(value or 0) + len(what)
    if pa.types.is_integer(type):
        return int(value or 0) + len(what)
    return (str(value or "") + what)[-9:]


def turned(value: Any, before: pa.DataType, after: pa.DataType) -> Any:
    """A value as one of another type, in plain Python."""
    if value is None:
        return None
    if isinstance(after, pa.StructType):
        known = {field.name: field.type for field in before}
        return {
            field.name: turned(value[field.name], known[field.name], field.type) if field.name in known else None
            for field in after
        }
    if isinstance(after, pa.ListType):
        return [turned(each, before.value_type, after.value_type) for each in value]
    return Decimal(value) if pa.types.is_decimal(after) else value


number = st.sampled_from([pa.int64(), pa.decimal128(38, 2)])
leaf = number | st.just(pa.string())
fields = {"n": number, "s": leaf}


def struct_of(fields: dict[str, Any]) -> st.SearchStrategy[Any]:
    some = st.lists(st.sampled_from(sorted(fields)), min_size=1, unique=True)
    return some.flatmap(lambda names: st.tuples(*(fields[name] for name in names)).map(
        lambda types: pa.struct(list(zip(names, types, strict=True)))))  # fmt: skip


inner = struct_of(fields)
values = struct_of({**fields, "inner": inner, "items": inner.map(pa.list_), "texts": st.just(pa.list_(pa.string()))})
columns = struct_of({"v": st.sampled_from([pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.large_string(), pa.null()]),
                     "w": st.sampled_from([pa.string(), pa.null()]), "x": values})  # fmt: skip


@dataclass(frozen=True)
class Code:
    """The types of a start."""

    state: Any
    emits: Any
    columns: Any

    @property
    def task(self) -> Sums:
        return Sums(self.state, pa.schema(list(self.emits)))

    @property
    def schema(self) -> pa.Schema:
        columns = {field.name: field.type for field in self.columns}
        return pa.schema([("ts", pa.int64()), ("k", pa.int64()), *({"v": pa.int64()} | columns).items()])

    def row(self, ts: int, k: int, v: int) -> dict[str, Any]:
        """The row of a message as the source has it now."""
        row: dict[str, Any] = {"ts": ts, "k": k}
        for field in list(self.schema)[2:]:
            if pa.types.is_null(field.type) or field.name == "x":
                row[field.name] = None
            else:
                row[field.name] = pa.array([v]).cast(field.type)[0].as_py()
        return row

    def plans(self, world: World, shards: int) -> tuple[Plan, FlowPlan]:
        messages = core.plan_of(Messages(self.task, {"": self.schema}), self.schema, files=world.files, shards=shards)
        source = InOrder(messages.name)
        states, emitted = (fed(messages, task, source) for task in (States(self.task), EmittedRows(self.task)))
        return messages, FlowPlan((states, replace(emitted, outputs=(SINK,))))


def fed(messages: Plan, task: States | EmittedRows, source: InOrder) -> Plan:
    schema = changes.schema_of(messages, source, task)
    upstream = {"upstream": {"": source}, "feeders": {"": messages}}
    plan = replace(messages, task=task, schema=schema, timestamp=TIMESTAMP, timestamp_unit=None, **upstream)
    plan.check()
    changes.check(plan)
    return plan


class World:
    """An application of one ordered task, whose code changes. It knows from which clock on each code has processed."""

    def __init__(self, code: Code) -> None:
        self.files = core.memory()
        self.log = Log(self.files, "app")
        self.sent: list[tuple[int, int, int]] = []
        self.codes: list[tuple[int, Code]] = []
        self.start(code, 2)

    @property
    def newest(self) -> Entry:
        entry = self.log.newest()
        assert entry is not None
        return entry

    @property
    def code(self) -> Code:
        return self.codes[-1][1]

    def start(self, code: Code, shards: int) -> None:
        messages, flow = code.plans(self, shards)
        before = self.log.newest()
        if self.codes and any(misfits(getattr(self.code, what), getattr(code, what)) for what in ("state", "emits")):
            with pytest.raises(
                InvalidInputError, match=r"^task=X(\.rows)?: the field '[a-z.]+' was written as \w.* now, which"
            ):
                core.start(self.log, [messages, flow])
            assert self.log.newest() == before
            return
        entry = core.start(self.log, [messages, flow])
        self.messages, self.flow = messages, flow
        self.codes.append((entry.clock, code))
        self.check()
        read = entry.flow_of(messages.name).source.next_positions.get("", 0)
        again, self.sent = self.sent[read:], self.sent[:read]
        self.play(again)

    def play(self, some: Sequence[tuple[int, int, int]]) -> None:
        rows = [self.code.row(*each) for each in some]
        core.play(self.log, self.messages, pa.RecordBatch.from_pylist(rows, self.code.schema), keeping=KEEPING)
        self.sent += some

    def step(self) -> None:
        while due := graph.due(self.newest):
            core.step(self.log, {self.flow.id: self.flow}, due[0], KEEPING)
        self.check()

    def give(self) -> None:
        """Give the sink the rows that it lacks, of one clock."""
        entry, plan = self.newest, self.flow.tasks[1]
        due = deliver.due(entry, plan.name, SINK)
        if due is None:
            return
        since = Since(due.since, recent=due.recent)
        table = state_at(self.files, "app", entry, plan.name, plan.layout, due.clock, since).read()
        found = [(row["k"], core.micros(row["timestamp"]), row["value"]) for row in table.to_pylist()]
        assert ordered(found) == ordered(row for row in self.expected(due.clock)[1] if row[1] >= due.since)
        deliver.record(self.log, entry.epoch, plan.name, SINK, due.clock, 0)

    def check(self) -> None:
        entry, states = self.newest, self.flow.first
        for clock in entry.retained:
            if entry.is_at(states.name, clock):
                expected = self.expected(clock)[0]
                found = core.state_at(entry, states, clock)
                assert {key: kept["state"] for (key,), kept in found.items() if kept["state"] is not None} == expected
                for task in (states.task, states.name):
                    found = find_state(self.files, "app", task, clock).read()
                    shown = {row["k"]: row["value"]["state"] for row in found.to_pylist()}
                    assert shown == expected

    def expected(self, clock: int) -> tuple[dict[int, Any], list[Any]]:
        """The states at a clock, and all rows that were emitted below it, as the newest code reads them."""
        kept: dict[int, KeyState] = {}
        rows: list[Any] = []
        ends = [*(begin for begin, _ in self.codes[1:]), clock]
        before = self.codes[0][1]
        for (since, code), end in zip(self.codes, ends, strict=True):
            for key, each in kept.items():
                kept[key] = replace(each, state=turned(each.state, before.state, code.state))
            rows = [(key, at, turned(row, before.emits, code.emits)) for key, at, row in rows]
            before, upto = code, min(clock, end)
            program = Program(code.task, as_stored(code.state), as_stored(code.emits))
            for key in {k for _, k, _ in self.sent}:
                some = [Message(ts, code.row(ts, k, v)) for ts, k, v in self.sent if k == key and since <= ts < upto]
                found = process(program, key, kept.get(key, KeyState()), some, upto)
                kept[key] = found.kept
                rows += [(key, row.moment, row.row) for row in found.rows]
        return {key: each.state for key, each in kept.items() if each.state is not None}, rows


def ordered(rows: Any) -> list[Any]:
    return sorted(rows, key=lambda row: row[:2])


codes = st.builds(Code, values, values, columns)
acts = st.one_of(
    st.tuples(st.just("play"), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(4, 7)), max_size=4)),
    st.just(("step",)),
    st.just(("give",)),
    st.tuples(st.just("start"), codes, st.integers(1, 3)),
)  # fmt: skip


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(codes, st.lists(acts, max_size=14))
def test_a_task_goes_on_from_the_fields_whose_names_are_left(code: Code, history: list[Any]) -> None:
    world, now = World(code), 0
    for what, *told in history:
        if what == "start":
            world.start(*told)
        elif what == "play":
            some = []
            for ahead, key, value in told[0]:
                now += 4 * ahead
                some.append((now, key, value))
            world.play(some)
        else:
            getattr(world, what)()
    world.play([(now + 50, 9, 4)])
    world.step()
    for _ in world.newest.retained:
        world.give()
    assert deliver.behind(world.newest, world.flow.tasks[1].name) == {SINK: 0}
    assert verify(world.files.url, "app").problems == ()
