"""However a task says its update, however it is batched, cut and hashed: the state is the fold of its messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from itertools import cycle
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import InputPartition

from monoids import (
    Affine,
    Aggregator,
    Average,
    Count,
    CountMin,
    ExactSum,
    First,
    Histogram,
    HyperLogLog,
    Interval,
    List,
    Map,
    Max,
    MaxBy,
    Min,
    MinHash,
    Monoid,
    MonoidError,
    Optional,
    Set,
    Struct,
    Sum,
    Summary,
    Theta,
    TopK,
    Tuple,
)
from monoids.strategies import values
from persistent_state import (
    InvalidInputError,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    TaskFailedError,
    run_local,
)
from persistent_state.batch import compaction
from persistent_state.batch.packets import Answers
from persistent_state.batch.plan import COLUMN
from persistent_state.batch.shard import merge_shard
from persistent_state.drive.turn import Part
from persistent_state.engine.read.column_source import RowReader, _replaced
from persistent_state.engine.spark.versions import arrow_types, spark_types
from persistent_state.errors import refuse
from persistent_state.event_time.clocks import BEGINNING, END, Settings
from persistent_state.partials import keys
from persistent_state.partials.fold import fold_keys
from persistent_state.protocol.commits import close, plan_batch
from persistent_state.protocol.global_clock import Keeping
from persistent_state.setup.checks import of_update
from persistent_state.sources.base import Chunk, Reach
from persistent_state.store import late_rows
from persistent_state.store import runs as runs_io
from persistent_state.store.log import Log
from persistent_state.store.state_at import seen_below
from tests import core
from tests.core import combine
from tests.soak import soak_or

UTC = timezone.utc
YEAR_1, YEAR_9999 = -62_135_596_800_000_000, 253_402_300_799_999_999
INT64 = st.one_of(st.sampled_from([-(2**63), 2**63 - 1, -1, 0, 1]), st.integers(-(2**63), 2**63 - 1))
INSTANTS = st.one_of(
    st.sampled_from([datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)]),
    st.datetimes(timezones=st.just(UTC)),
)
DECIMALS = st.decimals(-(10**20), 10**20, places=3)

UPDATES: dict[str, tuple[Monoid[Any], st.SearchStrategy[Any]]] = {
    "sum": (Sum(), INT64),
    "count": (Count(), st.integers(0, 5)),
    "decimal": (Sum(pa.decimal128(38, 3)), DECIMALS),
    "float": (Sum(pa.float64()), st.integers(-1000, 1000).map(float)),
    "min": (Min(), INT64),
    "max of instants": (Max(pa.timestamp("us", "UTC")), INSTANTS),
    "min of naive times": (Min(pa.timestamp("us")), INSTANTS.map(lambda t: t.replace(tzinfo=None))),
    "max of decimals": (Max(pa.decimal128(38, 3)), DECIMALS),
    "min of text": (Min(pa.string()), st.text(max_size=3)),
    "struct": (
        Struct(n=Sum(), first=Min(pa.timestamp("us", "UTC"))),
        st.fixed_dictionaries({"n": INT64, "first": st.one_of(st.none(), INSTANTS)}),
    ),
    "tuple": (Tuple(Sum(), Max()), st.tuples(INT64, INT64)),
    "map of structs": (
        Map(pa.string(), Struct(n=Sum(), last=Max(pa.int64()))),
        st.dictionaries(
            st.sampled_from("abc"), st.fixed_dictionaries({"n": INT64, "last": st.one_of(st.none(), INT64)}), max_size=3
        ),
    ),
    "list": (List(pa.int64()), st.lists(st.one_of(st.none(), INT64), max_size=3)),
    "list of text": (List(pa.string()), st.lists(st.text(max_size=2), max_size=2)),
    "map of lists": (
        Map(pa.int64(), List(pa.int64())),
        st.dictionaries(st.integers(0, 3), st.lists(INT64, max_size=2), max_size=2),
    ),
}

SUMMARIES = Struct(
    distinct=Set(pa.string()),
    top=TopK(2, pa.int64(), pa.string()),
    newest=MaxBy(pa.timestamp("us", "UTC"), pa.int64()),
    range=Interval(pa.float64()),
    total=ExactSum(),
    mean=Average(pa.int64()),
    counts=Histogram([0.0, 1.0]),
    often=CountMin(pa.int64(), hashes=1, buckets=5),
    about=Theta(pa.int64(), lg_k=5),
    alike=MinHash(pa.int64(), k=4),
)
IN_ORDER = Tuple(Affine(pa.int64()), First(pa.string()), Optional(List(pa.int64())))
UPDATES["summaries"] = SUMMARIES, values(SUMMARIES)
UPDATES["what does not commute"] = IN_ORDER, values(IN_ORDER)

BITS = st.sampled_from([64, 4, 1, 0])

KEYS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.sampled_from(["", "a", "b", "a\0", "long enough to be several words"])),
    "int64": (pa.int64(), st.sampled_from([-(2**63), 2**63 - 1, 0, 1])),
    "decimal": (pa.decimal128(20, 2), st.sampled_from([Decimal("0.00"), Decimal("-1.25"), Decimal("123456789.01")])),
    "bool": (pa.bool_(), st.booleans()),
    "instant": (
        pa.timestamp("us", "UTC"),
        st.sampled_from([datetime(1, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)]),
    ),
    "date": (pa.date32(), st.sampled_from([date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1)])),
    "float": (pa.float64(), st.sampled_from([0.0, -0.0, math.nan, math.inf, 1.5])),
}


class PerMessage(PersistentTask):
    """One task, said in each of the ways by its subclasses."""

    def __init__(self, monoid: Monoid[Any], key: str | Sequence[str] | None) -> None:
        self.monoid = monoid
        self.key = key

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)


class ByMessage(PerMessage):
    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        value = message["update"]
        # Arrow hands out a map as a list of pairs.
        state.update(message.timestamp, self.monoid.from_arrow(pa.array([value], self.monoid.type))[0])


class ByReading(ByMessage):
    reads_state = True


class ByColumn(PerMessage):
    value = "update"


class ByBatch(PerMessage):
    def process_batch(self, batch: pa.RecordBatch) -> Any:
        return batch.column("update")


WAYS: list[type[PerMessage]] = [ByMessage, ByReading, ByColumn, ByBatch]


@dataclass(frozen=True)
class Case:
    """Messages of one task: their columns by name, and when they happened. The sizes of batches repeat."""

    monoid: Monoid[Any]
    key: tuple[str, ...]
    schema: pa.Schema
    stamps: list[int]
    rows: list[dict[str, Any]]
    delay: int
    sizes: tuple[int, ...]

    @property
    def batch(self) -> pa.RecordBatch:
        columns = [
            self.monoid.to_arrow([row[name] for row in self.rows])
            if name == "update"
            else pa.array([row[name] for row in self.rows], self.schema.field(name).type)
            for name in self.schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @property
    def messages(self) -> list[Message]:
        return [Message(stamp, row) for stamp, row in zip(self.stamps, self.batch.to_pylist(), strict=True)]

    @property
    def batches(self) -> Iterator[slice]:
        first = 0
        for size in cycle(self.sizes):
            if first >= len(self.stamps):
                return
            yield slice(first, first + size)
            first += size

    def late(self) -> list[bool]:
        """Which messages are late: below the clock that was fixed before their batch."""
        late, clock, newest = [], BEGINNING, BEGINNING
        for batch in self.batches:
            stamps = self.stamps[batch]
            late += [stamp < clock for stamp in stamps]
            newest = max([newest, *(stamp for stamp in stamps if stamp >= clock)])
            clock = max(clock, (newest - self.delay) // 10 * 10)
        return late

    def fold(self, below: int) -> dict[Any, Any]:
        """The state at a clock by the definition: updates in order of time and position, one by one."""
        ordered = sorted(
            (stamp, i)
            for i, (stamp, late) in enumerate(zip(self.stamps, self.late(), strict=True))
            if stamp < below and not late
        )
        updates: dict[Any, list[Any]] = {}
        for _, i in ordered:
            if (update := self.rows[i]["update"]) is not None:
                updates.setdefault(tuple(key_form(self.rows[i][name]) for name in self.key), []).append(update)
        # What a monoid keeps of one value alone is what it makes of it as a column.
        return {key: self.kept(reduce(self.monoid.plus, map(self.kept, values))) for key, values in updates.items()}

    def kept(self, value: Any) -> Any:
        return self.monoid.from_arrow(self.monoid.to_arrow([value]))[0]


def key_form(value: Any) -> Any:
    """Keys as the store tells them apart: one zero, and one NaN."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def as_keys(state: Any, columns: int) -> dict[Any, Any]:
    pairs = state.items() if columns != 1 else (((key,), value) for key, value in state.items())
    return {tuple(key_form(part) for part in key): value for key, value in pairs}


@st.composite
def cases(draw: st.DrawFn, kind: str) -> Case:
    monoid, updates = UPDATES[kind]
    kinds = draw(st.lists(st.sampled_from(sorted(KEYS)), max_size=2))
    fields = {f"k{i}": KEYS[kind] for i, kind in enumerate(kinds)}
    stamps = draw(
        st.lists(st.one_of(st.integers(0, 300), st.integers(0, 300), st.sampled_from([YEAR_1, YEAR_9999])), max_size=25)
    )
    rows = [
        {
            **{name: draw(st.one_of(st.none(), values)) for name, (_, values) in fields.items()},
            "update": draw(st.one_of(st.none(), updates, updates)),
        }
        for _ in stamps
    ]
    schema = pa.schema([*((name, type) for name, (type, _) in fields.items()), ("update", monoid.type)])
    return Case(
        monoid,
        tuple(fields),
        schema,
        stamps,
        rows,
        delay=draw(st.sampled_from([0, 50])),
        sizes=(draw(st.sampled_from([1, 3, 8, 100])),),
    )


@contextmanager
def few_hashes(bits: int) -> Iterator[None]:
    """Hashes of few bits, so that different keys have the same."""
    real: Callable[..., Any] = keys.hash_keys
    mask = np.uint64(2**64 - 2 ** (64 - bits))
    with mock.patch.object(keys, "hash_keys", lambda columns, rows: real(columns, rows) & mask):
        yield


def play_in_parts(case: Case, way: type[PerMessage], parts: int, shards: int) -> dict[int, dict[Any, Any]]:
    """The state at every retained clock, by way of blobs, shards and runs."""
    schema = case.schema.append(pa.field("ts", pa.int64()))
    moves = Settings(interval=10, delay=case.delay, ahead=2**62)
    plan = core.plan_of(way(case.monoid, case.key or None), schema, settings=moves, shards=shards)
    core.check(plan)
    log = Log(plan.files, "app")
    core.start(log, [plan])
    rows = case.batch
    stamped = pa.RecordBatch.from_arrays([*rows.columns, pa.array(case.stamps, pa.int64())], schema=schema)
    keeping = Keeping(clocks=1000)
    entry = log.newest()
    assert entry is not None
    for batch in case.batches:
        entry = core.play(log, plan, stamped[batch], parts=parts, keeping=keeping)
    entry = close(log, entry.epoch, now=0, keeping=keeping)
    return {clock: as_keys_of(core.state_at(entry, plan, clock)) for clock in entry.retained}


def as_keys_of(state: dict[Any, Any]) -> dict[Any, Any]:
    return {tuple(key_form(part) for part in key): value for key, value in state.items()}


@pytest.mark.parametrize("kind", sorted(UPDATES))
class TestEveryWay:
    @pytest.mark.soak
    @settings(max_examples=soak_or(ci=4, soak=12))
    @given(st.data())
    def test_gives_the_fold_of_the_messages_locally(self, kind: str, data: st.DataObject) -> None:
        case = data.draw(cases(kind))
        with few_hashes(data.draw(BITS)):
            for way in WAYS:
                run = run_local(
                    way(case.monoid, case.key or None),
                    case.messages,
                    checkpoint_interval="10 microseconds",
                    allowed_delay=f"{case.delay} microseconds",
                    batch_size=case.sizes[0],
                    schema=case.schema,
                )
                for clock, state in run.states.items():
                    assert as_keys(state, len(case.key)) == case.fold(clock), f"{way.__name__} at {clock}"
                assert len(run.late) == sum(case.late())
                assert bool(run.states) == bool(case.stamps)

    @pytest.mark.soak
    @settings(max_examples=soak_or(ci=4, soak=12))
    @given(st.data())
    def test_gives_the_fold_of_the_messages_through_parts_and_shards(self, kind: str, data: st.DataObject) -> None:
        case = data.draw(cases(kind))
        parts, shards = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
        with few_hashes(data.draw(BITS)):
            for way in WAYS:
                states = play_in_parts(case, way, parts, shards)
                for clock, state in states.items():
                    assert state == case.fold(clock), f"{way.__name__} at {clock}"
                assert bool(states) == bool(case.stamps)


class BySpark(PerMessage):
    def process_column(self, rows: Any) -> Any:
        raise NotImplementedError("Its updates are a column here.")


def ended(task: PerMessage, rows: pa.RecordBatch) -> tuple[dict[Any, Any], list[Any]]:
    """The state when all rows have been read, and the reason and position of each bad row."""
    by_spark = isinstance(task, BySpark)
    schema = arrow_types(spark_types(rows.schema)) if by_spark else rows.schema
    plan = core.plan_of(task, schema)
    log = Log(plan.files, "app")
    entry = core.start(log, [plan])
    basis = plan_batch(entry, core.alone(plan), Reach({"": len(rows)}), 0)
    chunks = [Chunk("", 0, rows)]
    if by_spark:
        source: Any = SimpleNamespace(read=lambda split: chunks)
        reader = RowReader(core.alone(plan), source, entry.epoch, 1, {}, 1)
        _, *sent = reader.read(InputPartition(Part(0, 1, basis, "all")))
        chunks = list(_replaced(map(said_by_spark, sent), core.alone(plan)))
    entry = core.commit(log, plan, core.merged(plan, [combine(core.alone(plan), basis, 0, 1, chunks)]))
    aside = late_rows.read_all(plan.files, entry.late_rows_of(plan.name))
    bad = [
        (row["reason"], row["position"]) for table in aside for row in table.select(["reason", "position"]).to_pylist()
    ]
    table = seen_below(plan.files, entry.tasks[plan.name].stored.runs, plan.layout, END)
    # Python has no value for some of these times.
    keys = table["key0"].cast(pa.int64()).to_pylist()
    return dict(zip(keys, table["value"].to_pylist(), strict=True)), sorted(bad)


def said_by_spark(batch: pa.RecordBatch) -> pa.RecordBatch:
    column = COLUMN + BySpark.__name__
    return pa.RecordBatch.from_arrays([*batch.columns, batch.column("update")], [*batch.schema.names, column])


@settings(max_examples=50)
@given(
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.sampled_from([None, "UTC"]),
    st.lists(st.one_of(INT64, st.integers(-(10**7), 10**7), st.none()), max_size=12),
)
def test_times_of_every_unit_are_the_same_keys_in_every_way(
    unit: str, zone: str | None, ticks: list[int | None]
) -> None:
    times = pa.array(ticks, pa.int64()).view(pa.timestamp(unit, zone))
    count = pa.array(range(len(ticks)), pa.int64())
    rows = pa.record_batch({"ts": count, "k": times, "update": count})
    said = [ended(way(Sum(), "k"), rows) for way in (*WAYS, BySpark)]
    assert all(one == said[0] for one in said)
    assert len(said[0][0]) + len(said[0][1]) >= bool(ticks)


class TestOrder:
    @settings(max_examples=60)
    @given(
        st.lists(st.tuples(st.integers(0, 25), st.sampled_from("aab")), min_size=8, max_size=30),
        st.sampled_from([0, 8, 25]),
        st.lists(st.integers(1, 9), min_size=1, max_size=4),
        st.tuples(st.sampled_from([0.3, 1, 1.25, 1e9]), st.integers(1, 4)),
        st.integers(1, 3),
    )
    def test_a_list_is_in_order_whenever_its_runs_are_merged(
        self, messages: list[tuple[int, str]], delay: int, sizes: list[int], rewriting: tuple[float, int], parts: int
    ) -> None:
        case = Case(
            List(pa.int64()),
            ("k",),
            pa.schema([("k", pa.string()), ("update", pa.list_(pa.int64()))]),
            [stamp for stamp, _ in messages],
            [{"k": key, "update": [n]} for n, (_, key) in enumerate(messages)],
            delay,
            tuple(sizes),
        )
        with mock.patch.object(compaction, "LAZY", rewriting):
            for clock, state in play_in_parts(case, ByColumn, parts, 1).items():
                assert state == case.fold(clock)

    def test_messages_that_came_late_are_not_folded_before_those_of_an_older_run_between_them(self) -> None:
        stamps = [1, 3, 5, 7, 9, 11, 13, 15, 2, 4, 60]
        case = Case(
            List(pa.int64()),
            (),
            pa.schema([("update", pa.list_(pa.int64()))]),
            stamps,
            [{"update": [stamp]} for stamp in stamps],
            delay=25,
            sizes=(8, 1, 2, 1),
        )
        states = play_in_parts(case, ByColumn, 1, 1)
        assert states[30] == {(): [1, 2, 3, 4, 5, 7, 9, 11, 13, 15]}

    @pytest.mark.parametrize("way", [ByColumn, ByMessage, ByReading, ByBatch])
    @pytest.mark.parametrize("order", [(0, 1), (1, 0)])
    def test_of_equal_times_and_positions_in_one_channel_the_order_is_that_of_the_partitions(
        self, way: type[PerMessage], order: tuple[int, int]
    ) -> None:
        schema = pa.schema([("ts", pa.int64()), ("device", pa.string()), ("update", pa.list_(pa.string()))])
        plan = core.plan_of(way(List(pa.string()), None), schema, channel="device")
        log = Log(plan.files, "app")
        partitions = ["p", "q"]
        chunks = [
            Chunk(s, 0, pa.RecordBatch.from_pylist([{"ts": 5, "device": "x", "update": [s]}], schema))
            for s in partitions
        ]
        for parts in ([[chunks[i]] for i in order], [[chunks[i] for i in order]]):
            entry = core.start(log, [plan], reset=[plan.name])
            basis = plan_batch(entry, core.alone(plan), Reach(dict.fromkeys(partitions, 1)), 0)
            sent = [combine(core.alone(plan), basis, i, len(parts), part) for i, part in enumerate(parts)]
            blobs = [blob for (blob,), _ in sent]
            for arrived in (blobs, blobs[::-1]):
                made, runs = merge_shard(core.alone(plan), 0, arrived, {}, core.new_id)
                rows = [runs_io.read_run(plan.files, run) for run in runs[plan.name]]
                state = fold_keys(rows, plan.layout)
                assert state["value"].to_pylist() == [partitions]
            entry = core.commit(log, plan, Answers([report for _, report in sent], made))
            assert core.state_at(entry, plan, None) == {(): partitions}


class TestLargeBatches:
    @pytest.mark.parametrize("way", WAYS)
    def test_a_large_batch_gives_the_same_as_small_ones(self, way: type[PerMessage]) -> None:
        rng = np.random.default_rng(1)
        stamps = np.sort(rng.integers(0, 10**6, 3000)).tolist()
        rows = [{"k": int(k), "update": int(v)} for k, v in rng.integers(0, 50, (3000, 2))]
        schema = pa.schema([("k", pa.int64()), ("update", pa.int64())])
        states = [
            run_local(
                way(Sum(), "k"),
                [Message(stamp, row) for stamp, row in zip(stamps, rows, strict=True)],
                checkpoint_interval="1 millisecond",
                batch_size=size,
                schema=schema,
            ).state
            for size in (150, 3000)
        ]
        wanted: dict[int, int] = {}
        for row in rows:
            wanted[row["k"]] = wanted.get(row["k"], 0) + row["update"]
        assert states == [wanted, wanted]

    def test_a_clock_may_be_at_the_edges_of_the_calendar(self) -> None:
        messages = [Message(stamp, {"k": "a", "update": 1}) for stamp in (YEAR_1, 0, YEAR_9999)]
        run = run_local(ByColumn(Sum(), "k"), messages, batch_size=1, checkpoint_interval="1 day")
        assert run.clocks[-1] == YEAR_9999 + 1
        assert run.state == {"a": 3}
        assert datetime(1, 1, 1) - datetime(1970, 1, 1) == timedelta(microseconds=YEAR_1)


@pytest.mark.parametrize("monoid", [Average(), HyperLogLog(), TopK(2, pa.string())], ids=repr)
def test_a_column_of_items_is_summarised(monoid: Summary[Any, Any, Any]) -> None:
    items = [4.0, 1.0, None, 2.5] if isinstance(monoid, Average) else ["b", "a", None, "a"]
    schema = pa.schema([("k", pa.int64()), ("update", monoid.items.type)])
    messages = [Message(i, {"k": i % 2, "update": item}) for i, item in enumerate(items)]
    run = run_local(ByColumn(monoid, "k"), messages, schema=schema, checkpoint_interval="1 second")
    expected = {0: items[0::2], 1: items[1::2]}
    assert {key: monoid.present(value) for key, value in run.state.items()} == {
        key: monoid.aggregator(item for item in some if item is not None) for key, some in expected.items()
    }


SECRET, TOO_LONG = "secret", "too long"


def prepared(word: str) -> list[Any]:
    """A list of the word, of what is no text for one word, none for another."""
    if word == SECRET:
        raise MonoidError("the word is secret")
    if word == "raise":
        raise ZeroDivisionError("oh")
    return [len(word)] if word == TOO_LONG else [word.upper()]


SHOUTED = Aggregator(prepared, List(pa.string()), len, pa.int64())


class Prepared(PersistentTask):
    """One task whose state is given as an aggregator, said in each of the ways by its subclasses."""

    key = "k"

    def __init__(self, given: Any = SHOUTED) -> None:
        self.given = given

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.given)


class PreparedByMessage(Prepared):
    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, message["update"])


class PreparedByReading(PreparedByMessage):
    reads_state = True

    def __init__(self, given: Any = SHOUTED) -> None:
        super().__init__(given)
        self.read: list[Any] = []

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        super().process_message(state, message)
        self.read.append(state.get())


class PreparedByColumn(Prepared):
    value = "update"


class PreparedByBatch(Prepared):
    def process_batch(self, batch: pa.RecordBatch) -> Any:
        return batch.column("update")


class PreparedBySpark(Prepared):
    def process_column(self, rows: Any) -> Any:
        raise NotImplementedError("Its values are in the chunks here.")


PREPARED = [PreparedByMessage, PreparedByReading, PreparedByColumn, PreparedByBatch, PreparedBySpark]


def play_prepared(
    task: Prepared, items: pa.Array, words: list[str], sizes: list[int], on_bad_row: str = "keep"
) -> tuple[dict[Any, Any], list[Any]]:
    """The state in the end, and the reason and position of each bad row."""
    schema = pa.schema([("ts", pa.int64()), ("k", pa.string()), ("update", items.type)])
    plan = core.plan_of(task, schema, on_bad_row=on_bad_row)
    core.check(plan)
    refuse(of_update(plan.only, items.type))
    log = Log(plan.files, "app")
    entry = core.start(log, [plan])
    stamps = pa.array(range(len(items)), pa.int64())
    rows = pa.record_batch([stamps, pa.array(words, pa.string()), items, items], [*schema.names, plan.only.column])
    first = 0
    for size in cycle(sizes):
        if first >= len(items):
            break
        entry = core.play(log, plan, rows.slice(first, size))
        first += size
    tables = [
        table.select(["reason", "position"]) for table in late_rows.read_all(plan.files, entry.late_rows_of(plan.name))
    ]
    bad = [(row["reason"], row["position"]) for table in tables for row in table.to_pylist()]
    return core.state_at(entry, plan, None), sorted(bad)


class TestAggregators:
    @pytest.mark.soak
    @settings(max_examples=soak_or(ci=10, soak=30))
    @given(
        st.lists(
            st.tuples(st.sampled_from("ab"), st.sampled_from(["x", "yes", "", None, SECRET, TOO_LONG])), max_size=12
        ),
        st.lists(st.integers(1, 5), min_size=1, max_size=3),
    )
    def test_every_way_gives_the_fold_of_the_items_prepared(
        self, messages: list[tuple[str, str | None]], sizes: list[int]
    ) -> None:
        expected: dict[Any, list[str]] = {}
        for key, item in messages:
            if item not in (None, SECRET, TOO_LONG):
                expected.setdefault((key,), []).append(str(item).upper())
        bad = [("value does not fit", i) for i, (_, item) in enumerate(messages) if item in (SECRET, TOO_LONG)]
        items = pa.array([item for _, item in messages], pa.string())
        for way in PREPARED:
            assert play_prepared(way(), items, [key for key, _ in messages], sizes) == (expected, bad), way.__name__
            assert play_prepared(way(), items.dictionary_encode(), [key for key, _ in messages], sizes)[0] == expected

    def test_a_state_that_is_read_is_the_value_of_the_monoid(self) -> None:
        items = pa.array(["x", SECRET, None, "y", TOO_LONG])
        task = PreparedByReading()
        play_prepared(task, items, ["a"] * 5, [5])
        assert task.read == [["X"], ["X"], ["X"], ["X", "Y"], ["X", "Y"]]

    def test_a_message_with_one_item_that_does_not_fit_makes_no_update(self) -> None:
        class Twice(PreparedByMessage):
            def process_message(self, state: PersistentState[Any], message: Message) -> None:
                state.update(message.timestamp, "before")
                super().process_message(state, message)

        class TwiceReading(Twice):
            reads_state = True

        for way in (Twice, TwiceReading):
            state, bad = play_prepared(way(), pa.array([SECRET, "x"]), ["a", "a"], [2])
            assert state == {("a",): ["BEFORE", "X"]}
            assert bad == [("value does not fit", 0)]

    def test_an_update_whose_preparation_the_task_catches_is_none(self) -> None:
        class Careful(PreparedByMessage):
            def process_message(self, state: PersistentState[Any], message: Message) -> None:
                with suppress(ZeroDivisionError):
                    super().process_message(state, message)

        assert play_prepared(Careful(), pa.array(["x", "raise", "y"]), ["a", "a", "b"], [5])[0] == {
            ("a",): ["X"],
            ("b",): ["Y"],
        }

    @pytest.mark.parametrize("way", PREPARED)
    def test_what_prepare_raises_is_told_with_channel_position_and_key(self, way: type[Prepared]) -> None:
        with pytest.raises(TaskFailedError) as caught:
            play_prepared(way(), pa.array(["x", None, "raise"]), ["a", "b", "c"], [5])
        said = "process_message" if way in (PreparedByMessage, PreparedByReading) else "prepare"
        assert str(caught.value).startswith(
            f"{said} of task={way.__name__} raised ZeroDivisionError('oh') at {__file__}:"
        )
        assert str(caught.value).endswith(", at channel='' partition='' position=2 key={'k': 'c'}.")

    @pytest.mark.parametrize("way", PREPARED)
    def test_a_bad_row_stops_where_that_is_wanted(self, way: type[Prepared]) -> None:
        with pytest.raises(
            TaskFailedError,
            match=r"\(value does not fit, .*: the word is secret\) .* position=1 key=\{'k': 'b'\}",
        ):
            play_prepared(way(), pa.array(["x", SECRET]), ["a", "b"], [5], on_bad_row="fail")

    def test_items_are_of_any_type(self) -> None:
        spans = Aggregator(lambda span: span["end"] - span["begin"], Max(), str)
        items = pa.array([{"begin": 1, "end": 5}, None, {"begin": 2, "end": 4}])
        for way in PREPARED:
            assert play_prepared(way(spans), items, ["a", "b", "a"], [5]) == ({("a",): 4}, [])

    def test_an_item_that_python_has_no_value_for_is_a_bad_row(self) -> None:
        hours = Aggregator(lambda time: time.hour, Max(), str)
        items = pa.array([3_600_000_000, 2**62], pa.timestamp("us"))
        for way in (PreparedByColumn, PreparedByBatch):
            state, bad = play_prepared(way(hours), items, ["a", "a"], [2])
            assert (state, bad) == ({("a",): 1}, [("value does not fit", 1)])

    def test_an_aggregator_of_a_summary_takes_its_items(self) -> None:
        average = Average(pa.int64())
        for way in PREPARED:
            state, bad = play_prepared(way(average.aggregator), pa.array([2, None, 5]), ["a", "a", "a"], [2])
            assert state == {("a",): (2, 7)}
            assert not bad

    def test_run_local_gives_values_of_the_monoid(self) -> None:
        messages = [Message(i, {"k": "a", "update": word}) for i, word in enumerate(["x", SECRET, "y"])]
        for way in PREPARED[:-1]:
            run = run_local(way(), messages, checkpoint_interval="1 second")
            assert run.state == {"a": ["X", "Y"]}
            assert [row["position"] for row in run.late] == [1]

    def test_a_monoid_and_its_aggregators_are_one_identity(self) -> None:
        average = Average()
        others = [average.aggregator, Aggregator(float, average, str)]
        assert all(NonWindowState(other).identity() == NonWindowState(average).identity() for other in others)
        assert all(NonWindowState(other).monoid is average for other in others)

    def test_a_state_says_what_is_shown_of_it(self) -> None:
        average, column = Average(), pa.array([(4, 6.0), None], Average().type)
        shown = NonWindowState(average)
        assert (shown.presented, shown.present(column), shown.prepare) == (pa.float64(), pa.array([1.5, None]), None)
        text = NonWindowState(Aggregator(average.of, average, lambda value: f"{value.sum:.1f}", pa.string()))
        assert (text.presented, text.present(column)) == (pa.string(), pa.array(["6.0", None]))
        whole = NonWindowState(Struct(mean=average))
        assert whole.presented == whole.monoid.type
        assert whole.present(column) is column

    def test_what_is_shown_has_a_type(self) -> None:
        with pytest.raises(
            InvalidInputError, match=r"^NonWindowState\(Max\(int64\)\): the Arrow type .* type= of the Aggregator"
        ):
            _ = NonWindowState(Aggregator(len, Max(), str)).presented
        with pytest.raises(InvalidInputError, match="has no monoid"):
            NonWindowState(Aggregator(len, len, str))  # type: ignore[arg-type]
