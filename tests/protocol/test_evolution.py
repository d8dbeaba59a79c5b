"""Starts with other columns and fields: an ordered task goes on, with what it had by the names that are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import monoids
from persistent_state import Application, NonWindowState, PersistentTask, verify
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive.local import flows_of
from persistent_state.edges.in_order.as_stored import as_stored
from persistent_state.edges.in_order.process import KeyState, Program, process
from persistent_state.edges.in_order.states import States
from persistent_state.edges.in_order.step import OrderedMessages
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.ordered import Context, OrderedTask, Timer
from persistent_state.partials.evolve import misfits
from persistent_state.partials.since import Since
from persistent_state.protocol import deliver, evolution
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.log import Log
from persistent_state.store.state_at import find_state, state_at
from persistent_state.task import Message
from tests import core
from tests.local_application import LocalApplication, Rows, compiled
from tests.soak import soak_or

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


def application(code: Code) -> Application:
    app = Application("app", "memory://evolution", checkpoint_interval=core.us(10), max_ahead="100000 days")
    return app.add(code.task, Rows(code.schema, ""))


class World(LocalApplication):
    """An application of one ordered task, whose code changes. It knows from which clock on each code has processed."""

    def __init__(self, code: Code) -> None:
        self.sent: list[tuple[int, int, int]] = []
        self.codes: list[tuple[int, Code]] = []
        super().__init__(*compiled(application(code), core.memory()), KEEPING)
        self.begin(code, 2)

    @property
    def code(self) -> Code:
        return self.codes[-1][1]

    def begin(self, code: Code, shards: int) -> None:
        """Start with this code, or be refused, and read what the source delivers again."""
        before, plans, sources = self.log.newest(), self.plans, self.sources
        self.become(application(code), shards)
        self.plans["X.rows"] = replace(self.plans["X.rows"], outputs=(SINK,))
        if self.codes and any(misfits(getattr(self.code, what), getattr(code, what)) for what in ("state", "emits")):
            with pytest.raises(
                InvalidInputError, match=r"^task=X(\.rows)?: the field '[a-z.]+' was written as \w.* now, which"
            ):
                self.start()
            assert self.log.newest() == before
            self.plans, self.sources = plans, sources
            return
        self.codes.append((before.clock if before else BEGINNING, code))
        self.start()
        self.read()

    def read(self, some: Sequence[tuple[int, int, int]] = ()) -> None:
        """Let these messages come, and read all that there is, with the columns of the newest code."""
        self.sent += some
        self.source("X.messages").rows = [tuple(self.code.row(*each).values()) for each in self.sent]
        self.play("X.messages")

    def give(self) -> None:
        """Give the sink the rows that it lacks, of one clock."""
        entry, plan = self.newest, self.plans["X.rows"]
        due = deliver.due(entry, plan.name, SINK)
        if due is None:
            return
        since = Since(due.since, recent=due.recent)
        table = state_at(self.files, "app", entry, plan.name, plan.layout, due.clock, since).read()
        found = [(row["k"], core.micros(row["timestamp"]), row["value"]) for row in table.to_pylist()]
        assert ordered(found) == ordered(row for row in self.expected(due.clock)[1] if row[1] >= due.since)
        deliver.record(self.log, entry.epoch, plan.name, SINK, due.clock, 0)

    def check(self) -> None:
        entry, states = self.newest, self.plans["X"]
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
    st.just(("steps",)),
    st.just(("give",)),
    st.tuples(st.just("start"), codes, st.integers(1, 3)),
)  # fmt: skip


@pytest.mark.soak
@settings(max_examples=soak_or(ci=20, soak=60), deadline=None)
@given(codes, st.lists(acts, max_size=14))
def test_a_task_goes_on_from_the_fields_whose_names_are_left(code: Code, history: list[Any]) -> None:
    world, now = World(code), 0
    for what, *told in history:
        if what == "start":
            world.begin(*told)
        elif what == "play":
            some = []
            for ahead, key, value in told[0]:
                now += 4 * ahead
                some.append((now, key, value))
            world.read(some)
        else:
            getattr(world, what)()
    world.read([(now + 50, 9, 4)])
    world.steps()
    for _ in world.newest.retained:
        world.give()
    assert deliver.behind(world.newest, "X.rows") == {SINK: 0}
    assert verify(world.files.url, "app").problems == ()


def struct(**types: Any) -> Any:
    return pa.struct(list(types.items()))


NUMBER, TEXT = pa.int64(), pa.string()
COUNT, COUNT_AND_TEXT = struct(n=NUMBER), struct(n=NUMBER, s=TEXT)


def code(state: Any = COUNT, emits: Any = COUNT, v: Any = NUMBER) -> Code:
    return Code(state, emits, struct(v=v))


def test_a_field_that_comes_back_is_new_in_runs_that_were_not_rewritten_too() -> None:
    world = World(code(COUNT_AND_TEXT, COUNT_AND_TEXT))
    world.read([*((1, key, 4) for key in range(300)), (25, 0, 4)])
    world.steps()
    before = world.newest
    world.begin(code(COUNT), 2)
    assert evolution.dropped_from_states(before, world.newest) == {"X": ["s"]}
    assert evolution.dropped_from_states(world.newest, world.newest) == {}
    world.read([(35, 1, 4)])
    world.steps()
    world.begin(code(COUNT_AND_TEXT, COUNT_AND_TEXT), 3)
    world.read([(45, 2, 4), (55, 0, 4)])
    world.steps()
    states, _ = world.expected(world.newest.clock)
    assert [states[key]["s"] for key in (2, 7)] == ["4", None]
    entry = Log(world.files, "app").newest()
    assert entry is not None
    runs = entry.tasks["X"].stored.runs
    assert {run.dropped for run in runs} == {(), (("state", "s"),)}
    assert verify(world.files.url, "app").problems == ()


def planned(world: World, code: Code) -> list[FlowPlan]:
    """The flows that a start with this code has."""
    return flows_of(compiled(application(code), world.files)[0])


def refusal(world: World, code: Code) -> str:
    before = world.newest
    with pytest.raises(InvalidInputError) as refused:
        core.start(world.log, planned(world, code))
    assert world.newest == before
    return str(refused.value)


def test_a_type_that_lacks_values_is_refused_by_the_field_and_both_types() -> None:
    world = World(code(struct(inner=pa.list_(COUNT_AND_TEXT)), COUNT_AND_TEXT))
    assert refusal(world, code(struct(inner=pa.list_(struct(s=NUMBER))), COUNT)) == (
        "task=X: the field 'state.inner.item.s' was written as string, and is int64 now, which does not have all these values; "
        f"give the field another name. {core.ways('X')}"
    )
    assert refusal(world, code(struct(inner=pa.list_(COUNT)), struct(n=pa.list_(NUMBER)))) == (
        "task=X: the field 'n' was written as int64, and is list<item: int64> now, which does not have all these values; "
        f"give the field another name. {core.ways('X')}"
    )


class Ticks(PersistentTask):
    """A task that moves the global clock while the ordered one is away."""

    key = None

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Count())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.array([1] * len(batch))


def behind(columns: Any) -> World:
    """A world whose task was away, and is behind the global clock: messages below it have come, and wait."""
    world = World(code(v=columns))
    ticks = core.plan_of(Ticks(), pa.schema([("ts", NUMBER)]), files=world.files, shards=2)
    ordered: Any = ["X.messages", ("X", "X.rows")]
    world.start(*ordered, ticks)
    world.play("Ticks", [(15,)])
    world.read([(5, 1, 4), (15, 1, 5)])
    world.steps()
    assert world.newest.clock == 10
    world.start("Ticks")
    world.play("Ticks", [(45,)])
    world.start(*ordered, "Ticks")
    world.read([(35, 2, 6)])
    assert (world.newest.clock, world.newest.flow_of("X.messages").progress.clock) == (40, 30)
    assert world.newest.flow_of("X").visited == 10
    return world


def test_messages_that_wait_come_with_the_columns_of_the_newest_code() -> None:
    world = behind(pa.int32())
    wider = Code(COUNT, COUNT, struct(v=NUMBER, w=TEXT))
    world.become(application(wider), 3)
    world.codes.append((10, wider))
    # The oracle has all messages with the columns of the newest code.
    world.check = lambda: None  # type: ignore[method-assign]
    entry = world.start()
    assert (entry.flow_of("X.messages").progress.clock, entry.flow_of("X").visited) == (30, 10)
    world.read([(55, 2, 4)])
    world.steps()
    assert world.newest.clock == 50
    # A message each, and their timers. The message that waited has no text in the column that it lacks; the other has "6".
    states = world.state("X", 40)
    assert {key: kept["state"] for key, kept in states.items()} == {(1,): {"n": 4}, (2,): {"n": 2}}
    assert verify(world.files.url, "app").problems == ()


def test_a_column_of_messages_may_get_any_type_unless_some_wait_that_have_another() -> None:
    world = behind(NUMBER)
    assert refusal(world, code(v=TEXT)) == (
        "task=X: the field 'v' was written as int64, and is string now, which does not have all these values; give "
        f"the field another name, or let the code of before process the messages that wait. {core.ways('X')}"
    )
    without = core.plan_of(OrderedMessages(code().task, {"b": world.code.schema}), world.code.schema, files=world.files)
    assert evolution.misfit(without, world.newest) == (
        "task=X: messages of input='' wait; give the task this input until it has them all."
    )
    world.read([(55, 2, 4)])
    world.steps()
    assert core.start(world.log, planned(world, code(v=TEXT))).epoch == 5


def test_a_reader_may_have_other_fields_than_the_store() -> None:
    world = World(code(COUNT_AND_TEXT))
    world.read([(1, 1, 4), (15, 1, 4)])
    world.steps()

    def read(state: Any) -> Any:
        return find_state(world.files, "app", States(code(state).task)).read()["value"].to_pylist()[0]["state"]

    assert read(COUNT) == {"n": 1}
    assert read(struct(n=pa.decimal128(38), more=TEXT)) == {"n": Decimal(1), "more": None}
    with pytest.raises(InvalidInputError, match="open it with the task that wrote it"):
        read(struct(s=NUMBER))


@pytest.mark.rows_in_files
def test_a_reader_is_not_shown_nulls_where_the_fields_went_after_it_looked() -> None:
    world = World(code(COUNT_AND_TEXT))
    world.read([(1, 1, 4), (15, 1, 4)])
    world.steps()
    state = find_state(world.files, "app", "X")
    # As if the runs had been rewritten, and collected.
    gone = replace(state, runs=tuple(replace(run, file=replace(run.file, path="app/gone")) for run in state.runs))
    was = state.read()
    assert gone.read() == was
    world.begin(code(COUNT), 2)
    assert state.read() == was
    # The entry of the kept clock has the fields.
    assert gone.read() == was
    for clock in range(25, 405, 20):
        world.read([(clock, 1, 4)])
        world.steps()
    assert state.clock not in world.newest.kept
    with pytest.raises(InvalidInputError, match="no longer retained; open a newer one"):
        gone.read()


def test_fields_may_have_any_names() -> None:
    odd = struct(**{"a, b: int64": TEXT, "<": NUMBER, 'a "c': NUMBER, "n": NUMBER})
    world = World(Code(odd, odd, struct(v=NUMBER)))
    world.read([(1, 1, 4), (15, 1, 4)])
    world.steps()
    world.begin(code(struct(**{"a, b: int64": TEXT, "n": pa.decimal128(38)})), 2)
    world.read([(25, 1, 4)])
    world.steps()
    assert verify(world.files.url, "app").problems == ()
