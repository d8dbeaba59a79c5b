"""The data source as Spark drives it, without Spark: each clock as `read_state` has it, whatever the application does."""

from __future__ import annotations

import json
import math
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from monoids import Aggregator, Monoid, Sum
from persistent_state import DamagedError, InvalidInputError, StoreRefusedError, open_store, read_state
from persistent_state.engine.data_source import source_options, store_rows, store_source
from persistent_state.engine.data_source.source_options import read_options
from persistent_state.engine.data_source.store_source import StoreSource
from persistent_state.engine.data_source.store_stream import MOST_CLOCKS, StoreStream
from persistent_state.engine.spark.versions import arrow_types, spark_types
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol import rewind
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import log as logs
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests import core
from tests.fixtures.write_graph_store import Graph
from tests.protocol.test_joins import World as Joins
from tests.protocol.test_joins import as_of
from tests.refusing import RefusingFiles
from tests.sentences import problem
from tests.soak import soak_or
from tests.store.servers import Servers, files_of, needed
from tests.store.test_graph_store import STORES as GRAPHS
from tests.store.test_upgrades import STORES, unpacked
from tests.test_open_state import (
    ABSENT,
    KEYS,
    KINDS,
    SCHEMA,
    VALUES,
    Composite,
    FarFiles,
    Kept,
    World,
    changes_of,
    rows_of,
    small,
)

STORE = str(Path(__file__).parents[2] / "fixtures" / "store-v1")
PICKLER = CPickleSerializer()
"""What Spark's Python processes send things by."""

TOTALS = {"path": STORE, "application": "app", "task": "Totals"}


@dataclass(frozen=True)
class EqualTo:
    """A filter as Spark hands it to a source."""

    attribute: tuple[str, ...]
    value: Any


class EqualNullSafe(EqualTo):
    pass


class In(EqualTo):
    pass


class GreaterThan(EqualTo):
    pass


@dataclass(frozen=True)
class IsNull:
    attribute: tuple[str, ...]


@dataclass(frozen=True)
class Not:
    child: Any


PARITY = Aggregator(abs, Sum(), lambda total: f"{total % 2} of two", pa.string())
"""Named by tests as an option does."""


class Longest(Monoid[str]):
    type = pa.string()
    zero = ""

    def plus(self, a: str, b: str) -> str:
        return max(a, b, key=lambda text: (len(text), text))


@contextmanager
def few_rows(*, colliding: bool = False) -> Iterator[None]:
    """Partitions, blocks and batches of a few rows, and hashes of so few bits that keys share them."""
    with (
        small(colliding=colliding),
        mock.patch.object(store_rows, "ROWS_OF_A_PART", 5),
        mock.patch.object(store_rows, "KEYS_OF_A_PART", 2),
        # Of the memory's files only this process has any.
        mock.patch.object(store_source, "MemoryFiles", ()),
    ):
        yield


def sent(thing: Any) -> Any:
    """A thing as another process has it."""
    return PICKLER.loads(PICKLER.dumps(thing))


def loaded(options: Mapping[str, str]) -> tuple[StoreSource, StructType]:
    """What Spark's processes know of a source that was loaded."""
    source = StoreSource(CaseInsensitiveDict(options))
    schema = source.schema()
    return sent(source), schema


def read(options: Mapping[str, str], filters: Sequence[Any] = ()) -> pa.Table:
    return Loaded(options).read(filters)


class Loaded:
    """A source that was loaded, and is read as often as one likes, by processes that know only what Spark hands on."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.source, self.schema = loaded(options)

    def planned(self, filters: Sequence[Any] = ()) -> tuple[Any, list[Any]]:
        reader = sent(self.source).reader(self.schema)
        if filters:
            assert [*reader.pushFilters([*filters])] == [*filters]
        return sent(reader), [sent(part) for part in reader.partitions()]

    def read(self, filters: Sequence[Any] = ()) -> pa.Table:
        reader, parts = self.planned(filters)
        return self.table(reader, parts)

    def table(self, reader: Any, parts: Sequence[Any]) -> pa.Table:
        types = arrow_types(self.schema)
        batches = [batch for part in parts for batch in reader.read(part)]
        assert all(batch.schema == types for batch in batches)
        return pa.Table.from_batches(batches, types)


def in_order(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def options_of(world: World, **more: Any) -> dict[str, str]:
    return {
        "path": world.files.url,
        "application": "app",
        "task": "Kept",
        **{name: str(value) for name, value in more.items()},
    }


ACTIONS = ("play", "play", "play", "collect", "restart", "rewind", "keep")


class TestStates:
    @pytest.mark.soak
    @pytest.mark.parametrize("kind", KINDS)
    @settings(max_examples=soak_or(ci=4, soak=200), deadline=None)
    @given(st.lists(st.sampled_from(ACTIONS), min_size=3, max_size=12), st.integers(0, 10**6), st.booleans())
    def test_every_clock_is_read_as_without_spark_while_the_application_commits_collects_and_goes_back(
        self, kind: str, actions: Sequence[str], seed: int, colliding: bool
    ) -> None:
        with few_rows(colliding=colliding):
            world = World(Kept(KINDS[kind]), seed)
            held: list[tuple[int, int, Loaded, tuple[Any, list[Any]], dict[Any, Any]]] = []
            for action in ("play", *actions, "play"):
                getattr(world, action)()
                for clock in world.newest.readable:
                    expected = world.expected(clock)
                    source = Loaded(options_of(world, clock=clock))
                    assert dict(rows_of(source.read())) == expected
                    assert len(source.read()) == len(expected)
                    check_keys(world, clock, expected)
                    timeline = world.opened.at(clock).timeline
                    held.append((clock, timeline, source, source.planned(), expected))
                for clock, timeline, source, planned, expected in world.random.choices(held, k=3 if held else 0):
                    for again in (source.read, lambda source=source, planned=planned: source.table(*planned)):
                        with may_be_gone(world, clock, timeline):
                            assert dict(rows_of(again())) == expected

    @pytest.mark.parametrize("name", [*STORES, *GRAPHS])
    def test_stores_of_older_versions_are_read(self, name: str) -> None:
        with few_rows():
            assert check_tasks(unpacked(name).url) > 1

    def test_every_task_of_a_graph_is_read_and_has_changes(self) -> None:
        with few_rows():
            graph = Graph(core.memory(), 2, 20).begin()
            graph.read(60)
            assert check_tasks(graph.files.url) > 12

    def test_the_rows_of_a_join_are_read(self) -> None:
        with few_rows():
            joins = Joins(as_of(None))
            joins.start()
            for time in range(0, 60, 4):
                joins.come((key := "abc"[time % 3], time, True), (key, time + 1, False))
                joins.read()
                joins.steps()
            assert check_tasks(joins.files.url) > 6

    def test_the_clock_is_settled_when_the_source_is_loaded(self) -> None:
        with few_rows():
            world = World(Kept())
            for _ in range(4):
                world.play()
            clock = world.newest.clock
            source, expected = Loaded(options_of(world)), world.expected(clock)
            world.play()
            world.play()
            assert world.newest.clock > clock
            assert dict(rows_of(source.read())) == expected

    def test_a_clock_is_a_number_or_iso_text(self) -> None:
        for clock in ("160", "1970-01-01T00:00:00.000160Z", "1970-01-01T00:00:00.000160"):
            assert in_order(read({**TOTALS, "clock": clock})) == in_order(read_state(STORE, "app", "Totals", 160))

    def test_values_are_raw_or_presented_and_monoids_are_imported_by_name(self) -> None:
        with few_rows():
            world = World(Kept())
            for _ in range(3):
                world.play()
            clock = world.newest.clock
            named = {**options_of(world, clock=clock), "monoids": f"{__name__}:PARITY"}
            assert dict(rows_of(read(named))) == world.expected(clock)
            wanted = {key: f"{value % 2} of two" for key, value in world.expected(clock).items()}
            assert dict(rows_of(read({**named, "presented": "true"}))) == wanted

    def test_a_monoid_of_the_users_is_named_as_a_class_or_an_object(self) -> None:
        with few_rows():
            schema = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("n", pa.string())])
            plan = core.plan_of(Kept(monoid=Longest()), schema)
            log = Log(plan.files, "app")
            core.start(log, [plan])
            for ts, text in ((1, "a"), (2, "bb"), (99, "c")):
                core.play(log, plan, pa.RecordBatch.from_pylist([{"ts": ts, "key": 1, "n": text}], schema))
            options = {"path": plan.files.url, "application": "app", "task": "Kept"}
            assert read({**options, "monoids": f"{__name__}:Longest"})["value"].to_pylist() == ["bb"]
            assert "give an instance" in problem(lambda: read(options))

    def test_there_are_as_many_partitions_as_serve_and_none_reads_two_shards(self) -> None:
        plan = core.plan_of(Kept(), SCHEMA, shards=3)
        log = Log(plan.files, "app")
        core.start(log, [plan])
        rows = [{"ts": 5, "key": key, "n": 1} for key in range(100)] + [{"ts": 99, "key": 0, "n": 1}]
        core.play(log, plan, pa.RecordBatch.from_pylist(rows, SCHEMA))
        state = open_store(plan.files.url).application("app").task("Kept").at().state
        assert len(store_rows.parts_of_state(state)) == 1
        for each, count in ((60, 2), (30, 6), (20, 6), (12, 9)):
            with mock.patch.object(store_rows, "ROWS_OF_A_PART", each):
                parts = store_rows.parts_of_state(state)
                assert len(parts) == count
                assert all(len({run.file for run in part.state.runs}) == 1 for part in parts if count > 3)  # type: ignore[attr-defined]
        with mock.patch.object(store_rows, "BYTES_OF_A_PART", 1 + sum(run.file.length for run in state.runs) // 4):
            assert len(store_rows.parts_of_state(state)) == 6


def check_tasks(url: str) -> int:
    """Every task of an application is read at each clock as without Spark, and so are changes; return how many states are."""
    app, count = open_store(url).application("app"), 0
    for task in app.tasks():
        options = {"path": url, "application": "app", "task": task}
        for clock in app.clocks():
            try:
                wanted = app.task(task).at(clock).to_arrow()
            except InvalidInputError as error:
                told = str(error)
                with pytest.raises(InvalidInputError, match=re.escape(told)):
                    read({**options, "clock": str(clock)})
                continue
            count += 1
            assert in_order(read({**options, "clock": str(clock)})) == in_order(wanted)
            changes = read({**options, "changes": "true", "startClock": str(clock)})
            net = app.task(task).changes(clock).to_arrow()
            assert in_order(changes.drop_columns(["_clock"])) == in_order(net)
    return count


@contextmanager
def may_be_gone(world: World, clock: int, timeline: int) -> Iterator[None]:
    """Let a clock be refused with a sentence that cannot be opened in its timeline any more."""
    try:
        yield
    except InvalidInputError as error:
        if is_of(world, clock, timeline) or not re.search(r"no(t| longer) retained|is gone|no state", str(error)):
            raise


def is_of(world: World, clock: int, timeline: int) -> bool:
    try:
        world.opened.at(clock, timeline=timeline)
    except InvalidInputError:
        return False
    return True


def check_keys(world: World, clock: int, expected: Mapping[Any, Any]) -> None:
    """Keys that are asked for, by an option or by filters, have the rows that they have among all."""
    asked = world.random.sample([*range(KEYS), ABSENT], k=3)
    windowed = any(isinstance(key, tuple) for key in expected)
    wanted = {key: value for key, value in expected.items() if (key[0] if windowed else key) in asked}
    by_option = read(options_of(world, clock=clock, key=str([{"key": key} for key in asked]).replace("'", '"')))
    assert dict(rows_of(by_option)) == wanted
    assert len(by_option) == len(wanted)
    pushed = Loaded(options_of(world, clock=clock, pushFilters="true"))
    found = pushed.read([In(("key",), tuple(asked)), GreaterThan(("key",), -1)])
    assert dict(rows_of(found)) == wanted


class TestFilters:
    def store_of(self, *names: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
        """Options for a state with these key columns, and its rows: every combination of their values has a number."""
        combined: list[dict[str, Any]] = [{}]
        for name in names:
            combined = [{**row, name: value} for row in combined for value in VALUES[name][1]]
        schema = pa.schema([("ts", pa.int64()), *((name, VALUES[name][0]) for name in names), ("n", pa.int64())])
        rows = [{**row, "ts": 1, "n": number} for number, row in enumerate(combined)]
        plan = core.plan_of(Composite(*names), schema)
        log = Log(plan.files, "app")
        core.start(log, [plan])
        core.play(log, plan, pa.RecordBatch.from_pylist(rows, schema))
        core.play(log, plan, pa.RecordBatch.from_pylist([{**rows[0], "ts": 99}], schema))
        options = {"path": plan.files.url, "application": "app", "task": "Composite", "pushFilters": "true"}
        return options, combined

    @pytest.mark.parametrize("name", VALUES)
    def test_a_filter_of_each_type_finds_its_row(self, name: str) -> None:
        with few_rows():
            options, rows = self.store_of(name)
            for number, row in enumerate(rows):
                value = row[name]
                filters = [IsNull((name,))] if value is None else [EqualTo((name,), value), Not(IsNull((name,)))]
                (found,) = read(options, filters)["value"].to_pylist()
                assert found == number
                assert read(options, [EqualNullSafe((name,), value)])["value"].to_pylist() == [number]

    def test_equal_floats_are_found_however_they_are_written(self) -> None:
        with few_rows():
            plan = core.plan_of(
                Composite("float"), pa.schema([("ts", pa.int64()), ("float", pa.float64()), ("n", pa.int64())])
            )
            log = Log(plan.files, "app")
            core.start(log, [plan])
            rows = [{"ts": 1, "float": value, "n": n} for n, value in enumerate((0.0, math.nan, 1.5))]
            core.play(log, plan, pa.RecordBatch.from_pylist(rows, plan.only.schema))
            core.play(log, plan, pa.RecordBatch.from_pylist([{**rows[0], "ts": 99}], plan.only.schema))
            options = {"path": plan.files.url, "application": "app", "task": "Composite", "pushFilters": "true"}
            for value, number in ((-0.0, 0), (0.0, 0), (math.nan, 1), (1.5, 2)):
                assert read(options, [EqualTo(("float",), value)])["value"].to_pylist() == [number]
                both = [EqualTo(("float",), value), In(("float",), (value, 7.0))]
                assert read(options, both)["value"].to_pylist() == [number]

    def test_some_key_columns_leave_fewer_rows_and_all_of_them_are_looked_up(self) -> None:
        with few_rows():
            options, rows = self.store_of("text", "int")
            one = read(options, [In(("text",), ("", "Oslo"))])
            assert {*one["text"].to_pylist()} == {""}
            assert len(one) == 3
            source = Loaded(options)
            _, parts = source.planned([In(("text",), ("", "Oslo")), IsNull(("int",))])
            assert [type(part.value) for part in parts] == [store_rows.KeysPart]
            assert [
                *zip(*(source.read([EqualTo(("text",), ""), IsNull(("int",))]).to_pydict().values()), strict=True)
            ] == [("", None, rows.index({"text": "", "int": None}))]
            # Whatever else Spark asks for, it looks for itself.
            for filter in (
                EqualTo(("int",), "x"),
                EqualTo(("value",), 1),
                EqualTo(("a", "b"), 1),
                GreaterThan(("int",), 9),
            ):
                assert len(read(options, [filter])) == len(rows)

    def test_of_too_many_keys_all_rows_are_read_that_may_be_theirs(self) -> None:
        with few_rows(), mock.patch.object(store_rows, "MOST_KEYS", 3):
            options, _ = self.store_of("text", "int")
            source = Loaded(options)
            wanted = [In(("text",), ("", "Ålesund")), In(("int",), (1, -5))]
            _, parts = source.planned(wanted)
            assert {type(part.value) for part in parts} == {store_rows.StatePart}
            assert len(source.read(wanted)) == 4

    def test_a_key_is_looked_up_in_the_blocks_of_its_runs_alone(self, tmp_path: Path) -> None:
        plan = core.plan_of(Kept(), SCHEMA, files=open_files(tmp_path), shards=4)
        log = Log(plan.files, "app")
        core.start(log, [plan])
        rows = [{"ts": 5, "key": key, "n": 1} for key in range(400)] + [{"ts": 99, "key": 0, "n": 1}]
        core.play(log, plan, pa.RecordBatch.from_pylist(rows, SCHEMA))
        options = {"path": str(tmp_path), "application": "app", "task": "Kept"}
        assert len({run.file for run in open_store(tmp_path).application("app").task("Kept").at().state.runs}) >= 4
        for more, filters in ({"key": '{"key": 7}'}, []), ({"pushFilters": "true"}, [EqualTo(("key",), 7)]):
            reader, parts = Loaded({**options, **more}).planned(filters)
            (part,) = parts
            assert len(part.value.state.runs) == 1
            assert [row for batch in reader.read(part) for row in batch.to_pylist()] == [{"key": 7, "value": 1}]

    def test_filters_are_refused_where_spark_has_no_push_down(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not hasattr(type(Loaded(TOTALS).source.reader(Loaded(TOTALS).schema)), "push")
        monkeypatch.delattr(store_source.DataSourceReader, "pushFilters", raising=False)
        assert "needs PySpark 4.1 or newer; name keys by key=..." in problem(
            lambda: read({**TOTALS, "pushFilters": "true"})
        )
        assert len(read(TOTALS)) == 6


class TestKeyOption:
    def test_values_that_json_has_not_are_texts(self) -> None:
        with few_rows():
            names = ("date", "time", "naive", "decimal", "bytes")
            plan = core.plan_of(
                Composite(*names),
                pa.schema([("ts", pa.int64()), *((name, VALUES[name][0]) for name in names), ("n", pa.int64())]),
            )
            key = {
                "date": date(2026, 1, 1),
                "time": datetime(2026, 1, 1, 5, tzinfo=timezone.utc),
                "naive": datetime(2026, 1, 1, 5),
                "decimal": Decimal("1.50"),
                "bytes": b"\x00\xff",
            }
            log = Log(plan.files, "app")
            core.start(log, [plan])
            for ts in (1, 99):
                core.play(log, plan, pa.RecordBatch.from_pylist([{**key, "ts": ts, "n": 7}], plan.only.schema))
            options = {"path": plan.files.url, "application": "app", "task": "Composite"}
            text = (
                '{"date": "2026-01-01", "time": "2026-01-01T06:00:00+01:00", "naive": "2026-01-01T05:00:00", '
                '"decimal": "1.5", "bytes": "AP8="}'
            )
            for zone in ("+01:00", ""):
                # Without a zone a time is UTC.
                named = text.replace("06:00:00+01:00", f"0{6 if zone else 5}:00:00{zone}")
                (row,) = read({**options, "key": named}).to_pylist()
                assert row["value"] == 7
            for wrong in (text.replace("2026-01-01", "yesterday", 1), text.replace("AP8=", "?")):
                assert re.search(
                    r"^'.*' of column '(date|bytes)' of task=Composite is not ",
                    problem(lambda w=wrong: read({**options, "key": w})),
                )

    def test_a_wrong_key_is_refused_when_the_source_is_loaded(self) -> None:
        for key, told in {
            '{"shop": "Bergen"}': "has other columns; give a tuple of shop (string), item (int64)",
            '{"shop": "Bergen", "item": "x"}': "'x' of column 'item' of task=Totals is not int64",
            '{"shop": "Bergen", "item": 1.5}': "of column 'item' is not int64",
            '["Bergen", 1]': "is not a JSON object, nor a list of some",
            "Bergen": "is not a JSON object, nor a list of some",
        }.items():
            assert told in problem(lambda key=key: StoreSource({**TOTALS, "key": key}).schema())

    def test_null_is_a_key_and_one_that_is_not_there_has_no_row(self) -> None:
        keys = '[{"shop": null, "item": 1}, {"shop": "Nowhere", "item": 1}, {"shop": null, "item": 1}]'
        (row,) = read({**TOTALS, "key": keys}).to_pylist()
        assert row == {"shop": None, "item": 1, "value": {"sales": 7, "total": 879}}


class TestChanges:
    @pytest.mark.parametrize("kind", KINDS)
    def test_changes_between_any_two_clocks_lead_from_one_state_to_the_other(self, kind: str) -> None:
        with few_rows():
            world = World(Kept(KINDS[kind]))
            for _ in range(12):
                world.play()
                world.collect()
            clocks = world.newest.readable
            parts = 0
            for since in clocks:
                for until in [clock for clock in clocks if clock >= since]:
                    options = options_of(world, changes="true", startClock=since, endClock=until)
                    state = world.expected(since)
                    source = Loaded(options)
                    parts = max(parts, len(source.planned()[1]))
                    apply(state, source.read(), [until])
                    assert state == world.expected(until)
            assert parts > 1

    def test_without_a_first_clock_everything_is_inserted(self) -> None:
        changes = read({**TOTALS, "changes": "true", "endClock": "160"})
        assert {*changes["_change_type"].to_pylist()} == {"insert"}
        assert in_order(changes.drop_columns(["_change_type", "_clock"])) == in_order(
            read_state(STORE, "app", "Totals", 160)
        )
        assert {core.micros(clock) for clock in changes["_clock"].to_pylist()} == {160}
        assert len(read({**TOTALS, "changes": "true", "startClock": "latest"})) == 0

    def test_clocks_that_are_not_there_or_in_the_wrong_order_are_refused(self) -> None:
        changes = {**TOTALS, "changes": "true"}
        for more, told in (
            ({"startClock": "170"}, "is not retained"),
            ({"endClock": "170"}, "is not retained"),
            ({"startClock": "200", "endClock": "160"}, "give the earlier clock first"),
            ({"startClock": "noon"}, "startClock='noon' is not a time"),
            ({"endClock": "noon"}, "endClock='noon' is not a time"),
        ):
            assert told in problem(lambda more=more: read({**changes, **more}))

    def test_nothing_is_read_where_nothing_came(self) -> None:
        changes = open_store(STORE).application("app").task("Totals").changes(160, 200).changes
        assert len(store_rows.parts_of_changes(changes)) == 1
        older = [run for run in changes.until.runs if run.last < 160]
        assert older
        assert store_rows.parts_of_changes(replace(changes, until=changes.until.of(older))) == []


def apply(state: dict[Any, Any], changes: pa.Table, clocks: Sequence[int]) -> None:
    """Change a copy of a state as the rows say, in order of their clocks."""
    rows = rows_of(changes, ["_change_type", "_clock"])
    found = [core.micros(clock) if isinstance(clock, datetime) else clock for *_, clock in rows]
    assert {*found} <= {*clocks}
    for _, (key, value, kind, _) in sorted(zip(found, rows, strict=True), key=lambda each: each[0]):
        if kind in ("delete", "update_preimage"):
            assert state.pop(key) == value
        else:
            assert kind in ("insert", "update_postimage")
            assert key not in state
            state[key] = value


def rows_between(world: World, since: int | None, until: int) -> list[tuple[Any, ...]]:
    """What a stream gives from one clock to another, by folds of the messages; from nothing, a snapshot."""
    readable = [clock for clock in world.newest.readable if is_there(world, clock)]
    clocks = [until] if since is None else [clock for clock in readable if since <= clock <= until]
    states = [{} if since is None else world.expected(since)] + [world.expected(clock) for clock in clocks]
    steps = zip(states, states[1:], clocks, strict=False)
    return [(clock, *row) for before, after, clock in steps for row in changes_of(before, after)]


def is_there(world: World, clock: int) -> bool:
    """Whether the task has a state at a clock: one of before a reset has it in the entry that keeps the clock alone."""
    is_older = any(clock <= reset for reset in world.resets)
    return clock in (world.newest.kept if is_older else world.newest.readable)


def is_gone(world: World, clock: int, rewinds: Sequence[int]) -> bool:
    """Whether a state can't be found any more, after the application was taken back to these clocks."""
    if not rewinds:
        return not is_there(world, clock)
    # A clock that had gone may be retained again after a rewind. Nobody can tell then of which timeline it is.
    return clock not in world.newest.kept or min(rewinds) < clock


HAS_LIMITS = hasattr(DataSourceStreamReader, "getDefaultReadLimit")


class Query:
    """A streaming query as Spark runs it: it writes down what a micro-batch reads before it does, and goes on from there."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = {**options, "changes": "true"}
        self.offsets: list[dict[str, Any]] = []
        self.state: dict[Any, Any] = {}
        self.clocks: list[int] = []
        self.rows: list[tuple[Any, ...]] = []
        self.restart()

    def restart(self) -> None:
        self.loaded = Loaded(self.options)
        self.reader = sent(self.loaded.source).streamReader(self.loaded.schema)
        self.is_read = len(self.offsets) < 2 or self.is_read

    def plan(self) -> bool:
        """Write down what the next micro-batch reads; return whether there is something."""
        if not self.offsets:
            self.offsets.append(self.reader.initialOffset())
            self.is_read = True
        if self.is_read:
            # From PySpark 4.2 on Spark says where the micro-batch begins, and which limit it has.
            limited = (self.offsets[-1], self.reader.getDefaultReadLimit()) if HAS_LIMITS else ()
            end = sent(self.reader.latestOffset(*limited))
            if end == self.offsets[-1]:
                return False
            self.offsets.append(end)
            self.is_read = False
        return True

    def read(self) -> None:
        """Read the micro-batch that is written down, and change the copy of the state by it."""
        start, end = self.offsets[-2:]
        parts = [sent(part) for part in self.reader.partitions(start, end)]
        changes = self.loaded.table(sent(self.reader), parts)
        names = changes.schema.names
        clocks = sorted({core.micros(clock) for clock in changes["_clock"].to_pylist()})
        assert names[-2:] == ["_change_type", "_clock"]
        self.rows = [
            (core.micros(clock), key, value, kind)
            for key, value, kind, clock in rows_of(changes, ["_change_type", "_clock"])
        ]
        assert not clocks or not self.clocks or clocks[0] > self.clocks[-1]
        for clock in clocks:
            apply(
                self.state,
                changes.filter(pa.array([core.micros(c) == clock for c in changes["_clock"].to_pylist()])),
                [clock],
            )
            self.clocks.append(clock)
        self.is_read = True


class TestStreams:
    @pytest.mark.soak
    @pytest.mark.parametrize("kind", KINDS)
    @settings(max_examples=soak_or(ci=6, soak=200), deadline=None)
    @given(
        st.lists(
            st.sampled_from((*ACTIONS, "reset", "read", "read", "kill", "plan and kill")), min_size=4, max_size=16
        ),
        st.integers(0, 10**6),
        st.booleans(),
        st.sampled_from((1, 2, 100)),
    )
    def test_every_row_is_that_of_a_fold_of_the_messages_or_the_clock_is_told_to_be_gone(
        self, kind: str, actions: Sequence[str], seed: int, colliding: bool, most: int
    ) -> None:
        with few_rows(colliding=colliding), mock.patch.object(store_source, "MOST_CLOCKS", most):
            world = World(Kept(KINDS[kind]), seed)
            world.play()
            query = Query(options_of(world))
            # To which clocks the application was taken back, and how often before each offset of the query was planned.
            rewinds: list[int] = []
            before: list[int] = []
            for action in (*actions, "read"):
                if action == "kill":
                    query.restart()
                elif action in ("read", "plan and kill"):
                    is_planned = query.plan()
                    before += [len(rewinds)] * (len(query.offsets) - len(before))
                    if not is_planned:
                        continue
                    if action == "plan and kill":
                        query.restart()
                        continue
                    planned = zip(query.offsets[-2:], before[-2:], strict=True)
                    if any(offset and is_gone(world, offset["clock"], rewinds[since:]) for offset, since in planned):
                        assert re.search(r"can't go on .* with a new checkpoint", problem(query.read))
                        query, before = Query(options_of(world)), []
                        continue
                    query.read()
                    start, end = query.offsets[-2:]
                    assert sorted(query.rows) == sorted(rows_between(world, start.get("clock"), end["clock"]))
                    assert query.state == world.expected(end["clock"])
                else:
                    timeline = world.newest.timeline
                    getattr(world, action)()
                    if world.newest.timeline != timeline:
                        rewinds.append(10 * world.batch)

    def world(self) -> World:
        world = World(Kept())
        world.keeping = Keeping(30, 0)
        for _ in range(4):
            world.play()
        return world

    def test_each_clock_is_given_once_also_those_that_came_while_nobody_looked(self) -> None:
        with few_rows():
            world = self.world()
            query = Query(options_of(world))
            assert query.plan()
            query.read()
            first = world.newest.clock
            assert query.clocks == [first]
            for _ in range(5):
                world.play()
            assert query.plan()
            query.read()
            assert query.clocks == [clock for clock in world.newest.readable if clock >= first]
            assert len(query.clocks) > 4
            assert not query.plan()

    @pytest.mark.skipif(not HAS_LIMITS, reason="before PySpark 4.2 Spark tells no limit")
    @pytest.mark.parametrize("is_ending", [False, True])
    def test_a_micro_batch_has_no_more_clocks_than_it_may_and_all_come_in_their_turn(self, is_ending: bool) -> None:
        with few_rows(), mock.patch.object(store_source, "MOST_CLOCKS", 3):
            world = self.world()
            start = world.newest.clock
            query = Query(options_of(world, startClock=start))
            query.state = world.expected(start)
            for _ in range(8):
                world.play()
            if is_ending:
                query.reader.prepareForTriggerAvailableNow()
            newest, clocks = world.newest.clock, [clock for clock in world.newest.readable if clock > start]
            ends = []
            while query.plan():
                if is_ending and not ends:
                    world.play()
                query.read()
                ends.append(query.offsets[-1]["clock"])
            assert len(clocks) == 8
            assert ends == [clocks[2], clocks[5], clocks[7]]
            assert query.state == world.expected(newest)

    @pytest.mark.skipif(not HAS_LIMITS, reason="before PySpark 4.2 Spark tells no limit")
    @pytest.mark.parametrize("is_new", [False, True])
    def test_a_query_that_ends_by_itself_ends_below_its_last_clock_if_that_goes_meanwhile(self, is_new: bool) -> None:
        with few_rows(), mock.patch.object(store_source, "MOST_CLOCKS", 3):
            world = World(Kept())
            world.keeping = Keeping(2, 0, ((30, 10**9),))
            for _ in range(5 if is_new else 4):
                world.play()
            query = Query(options_of(world))
            if not is_new:
                assert query.plan()
                query.read()
                for _ in range(40):
                    world.play()
            query.restart()
            query.reader.prepareForTriggerAvailableNow()
            last, ends = world.newest.clock, []
            if is_new:
                for _ in range(3):
                    world.play()
            while query.plan():
                query.read()
                ends.append(query.offsets[-1]["clock"])
                for _ in range(2):
                    world.play()
            assert last not in world.newest.readable
            assert ends[-1] == max(clock for clock in world.newest.readable if clock < last)
            assert len(ends) == 1 if is_new else len(ends) > 3
            assert query.state == world.expected(ends[-1])
            # The next run goes on from there.
            query.restart()
            query.reader.prepareForTriggerAvailableNow()
            newest = world.newest.clock
            while query.plan():
                query.read()
            assert query.state == world.expected(newest)

    @pytest.mark.skipif(not HAS_LIMITS, reason="before PySpark 4.2 Spark does not say where a micro-batch begins")
    def test_a_query_that_ends_by_itself_reads_nothing_if_no_clock_up_to_its_last_one_is_left(self) -> None:
        with few_rows():
            world = self.world()
            world.keeping = Keeping(1, 0)
            query = Query(options_of(world))
            query.offsets.append(query.reader.initialOffset())
            query.reader.prepareForTriggerAvailableNow()
            for _ in range(3):
                world.play()
            assert not query.plan()
            query.restart()
            assert query.plan()
            query.read()
            assert query.state == world.expected(world.newest.clock)

    def test_the_page_says_how_many_clocks_a_micro_batch_has(self) -> None:
        page = (Path(__file__).parents[3] / "docs/spark-source.md").read_text("utf-8")
        assert f"Several may come in one micro-batch, at most {MOST_CLOCKS};" in page

    def test_where_spark_does_not_say_where_it_begins_a_micro_batch_has_all_clocks(self) -> None:
        with few_rows(), mock.patch.object(store_source, "MOST_CLOCKS", 1):
            world = self.world()
            reader = Query(options_of(world)).reader
            start = reader.latestOffset()
            for _ in range(4):
                world.play()
            assert reader.latestOffset()["clock"] == world.newest.clock
            assert reader.latestOffset(start, object())["clock"] == world.newest.clock

    @pytest.mark.parametrize(
        ("keeping", "most"), [(Keeping(10**6, 0), 0), (Keeping(2, 0, ((10, 10**9),)), 3)], ids=["retained", "kept"]
    )
    def test_a_plan_of_many_clocks_reads_the_log_once(self, keeping: Keeping, most: int) -> None:
        files = FarFiles("memory://" + core.new_id())
        world = World(Kept(), files=files)
        world.keeping = keeping
        for _ in range(4):
            world.play()
        stream = StoreStream(world.opened, None, lambda _: None)
        start = stream.newest()
        for _ in range(60):
            world.play()
        end = stream.newest()
        files.asked.clear()
        parts = stream.parts(start, end)
        assert len({part.changes.until.clock for part in parts if isinstance(part, store_rows.ChangesPart)}) > 50
        # Each look reads the entry before the newest, to see that it is still there.
        before = Log(files, "app").path(world.newest.number - 1)
        assert len([path for path in files.asked if path != before]) <= most * 60
        files.asked.clear()
        assert stream.newest() == end
        assert files.asked == [before]

    def test_a_stream_begins_with_a_snapshot_or_after_a_clock_or_with_what_comes(self) -> None:
        with few_rows():
            world = self.world()
            clock, newest = world.newest.readable[0], world.newest.clock
            queries = {start: Query(options_of(world, startClock=start)) for start in (clock, "latest")}
            queries[clock].state, queries["latest"].state = world.expected(clock), world.expected(newest)
            assert not queries["latest"].plan()
            for _ in range(2):
                for query in queries.values():
                    if query.plan():
                        query.read()
                        assert query.state == world.expected(world.newest.clock)
                world.play()
            assert queries[clock].clocks[0] == world.newest.readable[1]

    def test_a_stream_goes_on_when_the_clock_at_which_it_began_is_gone(self) -> None:
        with few_rows():
            world = self.world()
            start = world.newest.readable[0]
            query = Query(options_of(world, startClock=start))
            query.state = world.expected(start)
            query.plan()
            query.read()
            world.keeping = Keeping(2, 0)
            world.play()
            world.collect()
            assert start not in world.newest.readable
            query.restart()
            assert query.plan()
            query.read()
            assert query.state == world.expected(world.newest.clock)
            assert "is not retained" in problem(Query(options_of(world, startClock=start)).plan)

    def test_a_stream_of_a_task_without_a_clock_waits_for_the_first(self) -> None:
        with few_rows():
            world = World(Kept())
            queries = [Query(options_of(world, **start)) for start in ({}, {"startClock": "latest"})]
            assert [query.plan() for query in queries] == [False, False]
            world.play()
            world.play()
            assert world.newest.clock != BEGINNING
            for query in queries:
                assert query.plan()
                query.read()
                assert query.state == world.expected(world.newest.clock)

    def test_a_query_that_ends_by_itself_goes_up_to_the_clock_that_was_the_newest(self) -> None:
        with few_rows():
            world = self.world()
            query = Query(options_of(world))
            query.reader.prepareForTriggerAvailableNow()
            newest = world.newest.clock
            world.play()
            world.play()
            assert query.plan()
            query.read()
            assert query.state == world.expected(newest)
            assert not query.plan()

    def test_a_store_that_refuses_a_question_skips_no_clock_and_is_told_as_it_is(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # A look that lists the log would ask other questions.
        monkeypatch.setattr(logs, "LOOKS", 10**9)
        with few_rows():
            files = RefusingFiles("memory://" + core.new_id())
            world = World(Kept(), files=files)
            world.keeping = Keeping(2, 0, ((10, 10**9),))
            world.play()
            world.play()
            stream = StoreStream(world.opened, None, lambda _: None)
            start = stream.newest()
            for _ in range(8):
                world.play()
            end = stream.newest()

            def ask(number: int | None = None) -> int:
                """Plan a micro-batch, with one question refused; return how many clocks it has."""
                files.questions.clear()
                files.numbers[:] = [] if number is None else [number]
                assert stream.within(start, end, 3)["clock"] < end["clock"]
                parts = stream.parts(start, end)
                return len({part.changes.until.clock for part in parts if isinstance(part, store_rows.ChangesPart)})

            assert ask() > 5
            for number in range(len(files.questions)):
                told = problem(lambda number=number: ask(number), StoreRefusedError)
                assert told.endswith("the token has expired. Renew it.")
                assert "new checkpoint" not in told

    def test_a_clock_that_is_gone_is_told_and_no_snapshot_taken(self) -> None:
        with few_rows():
            world = self.world()
            query = Query(options_of(world))
            query.plan()
            query.read()
            world.keeping = Keeping(1, 0)
            for _ in range(4):
                world.play()
                world.collect()
            assert query.plan()
            told = problem(query.read)
            assert re.match(r"the stream of task=Kept can't go on from or to clock=.*: clock=.* is not retained", told)
            query.restart()
            assert problem(query.read) == told

    def test_a_clock_whose_timeline_has_ended_is_told_and_one_before_that_goes_on(self) -> None:
        with few_rows():
            world = self.world()
            world.keeping = Keeping(30, 0, ((10, 10**9),))
            for _ in range(3):
                world.play()
            early, late = Query(options_of(world, startClock=20)), Query(options_of(world))
            early.state = world.expected(20)
            assert late.plan()
            late.read()
            world.sent = [message for message in world.sent if message[1] < 40]
            rewind.rewind(world.log, core.plan_rewind(world.log, 40), writer="test", now=0)
            world.batch = 4
            world.restart()
            for _ in range(6):
                world.play()
            assert late.plan()
            assert "is gone: the application was taken back to a clock before it" in problem(late.read)
            early.plan()
            early.read()
            assert early.state == world.expected(world.newest.clock)

    def test_an_offset_of_an_earlier_timeline_goes_on_below_the_clock_of_a_rewind(self) -> None:
        with few_rows():
            world = World(Kept())
            world.keeping = Keeping(30, 0)
            for _ in range(4):
                world.play()
            query = Query(options_of(world))
            assert query.plan()
            query.read()
            offset = query.offsets[-1]
            for _ in range(4):
                world.play()
            rewind.rewind(world.log, core.plan_rewind(world.log, 50), writer="test", now=0)
            assert offset["clock"] < 50
            world.sent = [message for message in world.sent if message[1] < 50]
            world.batch = 5
            world.restart()
            for _ in range(4):
                world.play()
            assert query.plan()
            query.read()
            assert query.state == world.expected(world.newest.clock)
            assert offset["timeline"] < query.offsets[-1]["timeline"]

    def test_a_task_that_is_reset_is_followed_into_its_next_life(self) -> None:
        with few_rows():
            world = self.world()
            query = Query(options_of(world))
            begun = world.newest.clock
            world.start(reset=["Kept"])
            late = Query(options_of(world))
            for each in (query, late):
                assert each.plan()
                each.read()
                # There are two states at this clock, and by its name the one of before is meant.
                assert each.state == world.expected(begun)
                assert not each.plan()
            for _ in range(3):
                world.play()
            for each in (query, late):
                assert each.plan()
                each.read()
                assert each.state == dict(rows_of(world.opened.at().to_arrow()))

    def test_a_task_that_is_rebuilt_is_another_and_its_stream_told_so(self) -> None:
        with few_rows():
            world = self.world()
            query, batch = Query(options_of(world)), Loaded(options_of(world))
            query.plan()
            query.read()
            world.start(rebuild=["Kept"])
            assert query.plan()
            for ask in (batch.read, query.read):
                assert "is rebuilt and has reached no clock yet" in problem(ask)
            world.play()
            assert world.opened.at().to_arrow().num_rows > 0
            told = "is another state now, as the task was reset or rebuilt; load it again"
            assert told in problem(batch.read)
            assert re.match(rf"the stream of task=Kept can't go on .*{told}", problem(query.read))

    def test_what_is_no_stream_is_refused(self) -> None:
        changes = {**TOTALS, "changes": "true"}
        for options, told in (
            (TOTALS, "a stream is one of changes; add .option('changes', 'true')"),
            ({**TOTALS, "late": "true"}, "a stream is one of changes"),
            ({**changes, "endClock": "220"}, "endClock=... says nothing of a stream"),
        ):
            source, schema = loaded(options)
            assert told in problem(lambda source=source, schema=schema: source.streamReader(schema))

    def test_a_state_of_other_types_than_the_stream_is_refused(self) -> None:
        source, schema = loaded({**TOTALS, "changes": "true"})
        other = StructType([*schema.fields[:-3], schema.fields[0], *schema.fields[-2:]])
        reader = source.streamReader(other)
        assert "has other types than the stream" in problem(lambda: reader.partitions({}, reader.latestOffset()))


class TestLateRowsAndLists:
    def test_late_and_bad_rows_are_those_that_are_read_without_spark(self) -> None:
        found = read({**TOTALS, "late": "true"})
        wanted = [
            row for table in open_store(STORE).application("app").late_rows("Totals") for row in table.to_pylist()
        ]
        assert sorted((row["reason"], row["position"]) for row in found.to_pylist()) == sorted(
            (row["reason"], row["position"]) for row in wanted
        )
        assert len(found) == 3
        with mock.patch.object(store_rows, "BYTES_OF_A_PART", 1):
            source = Loaded({**TOTALS, "late": "true"})
            assert len(source.planned()[1]) == len(open_store(STORE).application("app").late_rows("Totals"))
            assert in_order(source.read()) == in_order(found)

    def test_without_partitions_there_are_no_rows(self) -> None:
        with few_rows():
            world = World(Kept())
            source = Loaded(options_of(world, late="true"))
            reader, parts = source.planned()
            assert parts == []
            # What Spark makes of it, before PySpark 4.2 and since.
            for made in (None, InputPartition(None)):
                assert [*reader.read(made)] == []

    def test_lists_tell_what_a_store_has(self) -> None:
        world = Graph(core.memory(), 2, 20).begin()
        world.read(60)
        with few_rows():
            app = open_store(world.files.url).application("app")
            everything = {what: read({"path": world.files.url, "list": what}) for what in source_options.LISTS}
            assert everything["applications"]["application"].to_pylist() == ["app"]
            assert everything["applications"]["microseconds"].to_pylist() == [app.clocks()[-1]]
            assert everything["clocks"]["microseconds"].to_pylist() == app.clocks()
            assert [core.micros(clock) for clock in everything["clocks"]["clock"].to_pylist()] == app.clocks()
            assert everything["tasks"]["task"].to_pylist() == app.tasks()
            for row in everything["tasks"].to_pylist():
                assert row["microseconds"] == app.task(row["task"]).at().clock
                assert row["key"] == [*app.task(row["task"]).at().state.key_columns]
            entry = core.newest(Log(world.files, "app"))
            assert {(row["task"], row["output"]): row["microseconds"] for row in everything["outputs"].to_pylist()} == {
                (name, output): None if clock == BEGINNING else clock
                for name, task in entry.tasks.items()
                for output, clock in task.outputs.delivered.items()
            }
            for what in source_options.LISTS[1:]:
                assert read({"path": world.files.url, "list": what, "application": "app"}) == everything[what]
                assert "there is no application nobody" in problem(
                    lambda what=what: read({"path": world.files.url, "list": what, "application": "nobody"})
                )

    def test_names_of_kept_clocks_are_listed(self) -> None:
        with few_rows():
            world = World(Kept())
            for _ in range(6):
                world.play()
            world.keep()
            named = read({"path": world.files.url, "list": "clocks"}).to_pylist()
            assert {row["microseconds"]: tuple(row["names"]) for row in named if row["names"]} == {
                clock: kept.names for clock, kept in world.newest.kept.items() if kept.names
            }
            assert any(row["names"] for row in named)


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"path": None}, "path=... is not one store; name its folder or URL"),
            ({"paths": '["a", "b"]'}, "path=... is not one store"),
            ({"application": None}, "application=... is missing; name one"),
            (
                {"task": None},
                "task=... is missing; name one, as in .option('task', ...). .option('list', 'tasks') lists all.",
            ),
            ({"task": ""}, "task=... is missing"),
            (
                {"tsk": "x"},
                "option 'tsk' is not one of the data source persistent-state; write task, if that is meant.",
            ),
            ({"startingVersion": "1"}, "option 'startingversion' is not one"),
            ({"quux": "x"}, "there are application, task, clock, key"),
            ({"clock": "noon"}, "clock='noon' is not a time"),
            ({"presented": "yes"}, "presented='yes' is neither true nor false"),
            ({"startClock": "160"}, "startClock=... says nothing of a state; leave it out"),
            ({"changes": "true", "clock": "160"}, "clock=... says nothing of changes=true; leave it out"),
            ({"changes": "true", "key": "{}"}, "key=... says nothing of changes=true"),
            ({"late": "true", "clock": "160"}, "clock=... says nothing of late=true"),
            (
                {"late": "true", "changes": "true"},
                "changes=true and late=true are asked for at once; read them one by one",
            ),
            ({"list": "tasks"}, "task=... says nothing of list=tasks"),
            ({"list": "task"}, "list='task' is not a list; take one of applications, tasks, clocks, outputs"),
            ({"monoids": "nowhere:Sum"}, "monoids='nowhere:Sum' can't be imported"),
            ({"monoids": "math"}, "monoids='math' can't be imported"),
            ({"monoids": "math:pi"}, "monoids='math:pi' is neither a monoid nor an aggregator; name one."),
            ({"path": "memory://nowhere"}, "store=memory:// can't be reached by Spark's workers; use a folder."),
            ({"application": "nobody"}, "there is no application nobody"),
            ({"task": "Nothing"}, "has no task Nothing; it has Notes, Totals"),
        ],
    )
    def test_a_wrong_option_is_a_sentence(self, options: Mapping[str, str | None], told: str) -> None:
        given = {name: text for name, text in {**TOTALS, **options}.items() if text is not None}
        assert told in problem(lambda: StoreSource(given).schema())

    def test_storage_options_have_a_prefix_and_are_hidden(self) -> None:
        given = {
            **TOTALS,
            "storage.key": "12345678",
            "STORAGE.anon": "false",
            "storage.client_kwargs": '{"endpoint_url": "http://127.0.0.1:1", "verify": false}',
            "storage.secret": "{oddly",
        }
        asked = read_options(given)
        assert asked.storage == {
            "key": "12345678",
            "anon": False,
            "client_kwargs": {"endpoint_url": "http://127.0.0.1:1", "verify": False},
            "secret": "{oddly",
        }
        assert "12345678" not in repr(asked)
        assert "oddly" not in repr(asked)
        told = problem(lambda: StoreSource(given).schema())
        assert "12345678" not in told
        assert "oddly" not in told

    def test_a_store_behind_a_network_is_opened_by_them(self, servers: Servers) -> None:
        with needed():
            server = servers["s3"]
        server.make(name := f"bucket-{uuid.uuid4()}")
        world = World(Kept(), files=files_of(server, name))
        for _ in range(3):
            world.play()
        url, options = server.address(name, server.ports)
        given = {
            f"storage.{key}": value if isinstance(value, str) else json.dumps(value) for key, value in options.items()
        }
        asked = {"path": url, "application": "app", "task": "Kept", **given}
        assert dict(rows_of(read(asked))) == world.expected(world.newest.clock)
        assert len(given) > 2

    def test_a_schema_that_a_user_names_is_that_of_the_source_or_refused(self) -> None:
        source, schema = loaded(TOTALS)
        given = StoreSource(TOTALS)
        assert len([*given.reader(schema).partitions()]) == 1
        other = spark_types(pa.schema([("shop", pa.string())]))
        assert "the schema is not struct<shop:string" in problem(lambda: source.reader(other))

    def test_types_that_spark_does_not_have_are_refused(self) -> None:
        schema = pa.schema([("ts", pa.int64()), ("big", pa.uint64()), ("n", pa.int64())])
        plan = core.plan_of(Composite("big"), schema)
        log = Log(plan.files, "app")
        core.start(log, [plan])
        with few_rows():
            told = problem(StoreSource({"path": plan.files.url, "application": "app", "task": "Composite"}).schema)
        assert re.search(r"task=Composite: Spark has no type for one of uint64, int64 .* open it with read_state", told)

    def test_a_worker_learns_nothing_but_types_and_partitions(self) -> None:
        reader, _ = Loaded(TOTALS).planned()
        assert vars(reader).keys() == {"_types"}
        source, schema = loaded({**TOTALS, "changes": "true"})
        assert vars(sent(source.streamReader(schema))).keys() == {"_types"}


def test_late_rows_of_a_file_that_is_missing_are_said_to_be_missing(tmp_path: Path) -> None:
    store = Path(shutil.copytree(STORE, tmp_path / "store"))
    parts = store_source.planned(
        read_options({"path": str(store), "application": "app", "task": "Notes", "late": "true"})
    )
    for path in (store / "app/runs/Notes").glob("*.side.arrow"):
        path.unlink()
    with pytest.raises(DamagedError, match=r"a file that the newest log entry names is gone \(.*side\.arrow"):
        [*parts[0].batches()]
