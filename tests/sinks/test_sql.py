"""Values in a table of SQLite and of a real PostgreSQL: each clock as a whole, once, whatever goes wrong."""

from __future__ import annotations

import itertools
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from persistent_state.errors import FencedError, InvalidInputError, StateError, StoreUnavailableError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import plain
from persistent_state.sinks import sql
from persistent_state.sinks.base import Origin
from persistent_state.sinks.sql import CLOCKS, SqlSink
from persistent_state.sinks.values import LocalValues
from tests.sentences import problem
from tests.store.servers import Servers, free_port, needed
from tests.waiting import PATIENCE

Row = tuple[Any, ...]
SCHEMA = pa.schema([("key", pa.string()), ("clock", pa.int64()), ("value", pa.int64())])
ORIGIN = Origin("bank", "Balance", ("key",), SCHEMA)
# Of each test that asks for one, in the server of its process.
numbers = itertools.count()


@dataclass(frozen=True)
class Database:
    kind: str
    url: str
    engine: sa.Engine = field(repr=False)

    def execute(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    def rows(self, statement: str = "SELECT * FROM balances") -> list[Row]:
        """In an order of their own, nulls and all."""
        with self.engine.begin() as connection:
            return sorted(map(tuple, connection.exec_driver_sql(statement)), key=repr)

    def clock(self) -> int:
        ((clock,),) = self.rows(f"SELECT clock FROM {CLOCKS}")
        found: int = clock
        return found


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.stores)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty one."""
    if request.param == "sqlite":
        path = str(tmp_path / "values.db")
        return Database("sqlite", path, sa.create_engine(f"sqlite:///{path}", poolclass=NullPool))
    return new_postgres(request.getfixturevalue("servers"))


@pytest.fixture
def postgres(servers: Servers) -> Database:
    return new_postgres(servers)


def new_postgres(servers: Servers) -> Database:
    with needed():
        server = servers["postgresql"]
    name = f"values{next(numbers)}"
    server.make(name)
    url, _ = server.address(name, server.ports)
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    return Database("postgresql", url, engine)


def given(rows: Iterable[Row], schema: pa.Schema = SCHEMA) -> LocalValues:
    """Values that are read row by row, each a batch of its own, after a batch without rows."""

    def read() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([], schema)
        for row in rows:
            yield pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True))], schema)

    return LocalValues(schema, (read,))


@pytest.mark.parametrize("history", [False, True])
def test_the_table_is_what_was_written_clock_by_clock(database: Database, history: bool) -> None:
    schema = pa.schema([("city", pa.string()), ("value at", pa.int64()), *list(SCHEMA)[1:]])
    origin = Origin("bank", "Balance", ("city", "value at"), schema)
    dice = random.Random(7)
    keys = list(itertools.product([None, "", "Łódź", "東京 🗼", "o'Hara; %s :x"], [None, 0, -(2**63), 2**63 - 1]))
    expected: dict[Row, Row] = {}
    assert SqlSink(database.url, "balances", history=history).open(origin) is None
    for clock in range(10, 60, 10):
        sink = SqlSink(database.url, "balances", history=history)
        rows = [(*key, clock, dice.choice([None, dice.randrange(100)])) for key in dice.sample(keys, 12)]
        sink.write_values(given(rows, schema), clock)
        expected.update({(*row[:2], clock if history else None): row for row in rows})
        assert database.rows() == sorted(expected.values(), key=repr)
        assert sink.open(origin) == clock
    assert len(expected) > len(keys) // 2 + history * len(keys)


def test_one_global_state_is_one_row(database: Database) -> None:
    schema = pa.schema(list(SCHEMA)[1:])
    for history in (False, True):
        sink = SqlSink(database.url, f"total{history}", history=history)
        sink.open(Origin("bank", f"Total{history}", (), schema))
        for clock in (10, 20):
            sink.write_values(given([(clock, clock * 5)], schema), clock)
    assert database.rows('SELECT * FROM "totalFalse"') == [(20, 100)]
    assert database.rows('SELECT * FROM "totalTrue"') == [(10, 50), (20, 100)]


@pytest.mark.parametrize("history", [False, True])
def test_a_clock_at_or_below_the_last_changes_nothing(database: Database, history: bool) -> None:
    sink = SqlSink(database.url, "balances", history=history)
    sink.open(ORIGIN)
    sink.write_values(given([("a", 20, 1)]), 20)
    for clock in (20, 10, BEGINNING):
        sink.write_values(given([("a", clock, 7), ("b", clock, 7)]), clock)
        assert database.rows() == [("a", 20, 1)]
        assert sink.open(ORIGIN) == 20


def test_a_clock_without_values_is_recorded(database: Database) -> None:
    sink = SqlSink(database.url, "balances")
    sink.open(ORIGIN)
    sink.write_values(given([]), 10)
    assert (database.rows(), sink.open(ORIGIN)) == ([], 10)


@pytest.mark.parametrize("history", [False, True])
def test_of_two_writers_of_one_clock_one_writes(database: Database, history: bool) -> None:
    sink = SqlSink(database.url, "balances", history=history)
    sink.open(ORIGIN)
    expected: list[Row] = []
    for clock in range(1, 9):
        ready = threading.Barrier(2)

        def write(writer: int, clock: int = clock, ready: threading.Barrier = ready) -> None:
            ready.wait()
            sink.write_values(given([(key, clock, writer) for key in "abc"]), clock)

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(write, (1, 2)))
        ((winner,),) = database.rows(f"SELECT DISTINCT value FROM balances WHERE clock = {clock}")
        expected = [*(expected if history else []), *((key, clock, winner) for key in "abc")]
        assert database.rows() == sorted(expected, key=repr)


def after_first(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Do something in the middle of a sink's transaction, once: after this step of it."""
    known, acts = getattr(SqlSink, step), iter([act])

    def run(sink: SqlSink, *arguments: Any) -> None:
        known(sink, *arguments)
        next(acts, lambda: None)()

    monkeypatch.setattr(SqlSink, step, run)


def test_a_late_writer_waits_and_then_changes_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = SqlSink(database.url, "balances")
    sink.open(ORIGIN)
    late = threading.Thread(target=sink.write_values, args=(given([("a", 10, 7), ("z", 10, 7)]), 10))

    def start_late() -> None:
        late.start()
        late.join(0.3)
        assert late.is_alive()

    after_first(monkeypatch, "_put", start_late)
    sink.write_values(given([("a", 20, 1), ("b", 20, 1)]), 20)
    late.join(PATIENCE)
    assert not late.is_alive()
    assert database.rows() == [("a", 20, 1), ("b", 20, 1)]


def test_sinks_of_one_database_do_not_wait_for_each_others_rows(database: Database) -> None:
    one, other = SqlSink(database.url, "balances"), SqlSink(database.url, "others")
    for sink in (one, other):
        sink.open(ORIGIN)

    def values() -> Iterator[Row]:
        yield "a", 10, 1
        with ThreadPoolExecutor(1) as threads:
            # A job of Spark's makes these rows. Meanwhile the other table takes a clock, and goes back.
            threads.submit(other.write_values, given([("b", 10, 2)]), 10).result(20)
        yield "c", 10, 3

    one.write_values(given(values()), 10)
    assert database.rows() == [("a", 10, 1), ("c", 10, 3)]
    one.open(replace(ORIGIN, timeline=1))
    other.open(replace(ORIGIN, timeline=1))

    def values_then() -> Iterator[Row]:
        yield from ()
        with ThreadPoolExecutor(1) as threads:
            threads.submit(other.rewind, 5, given([])).result(20)

    one.rewind(5, given(values_then()))
    assert (database.rows(), database.rows("SELECT * FROM others")) == ([], [])


def test_a_lock_is_told_with_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sql._PATIENCE, "sqlite", {"timeout": 0.1})
    path = tmp_path / "values.db"
    one, other = SqlSink(path, "balances"), SqlSink(f"sqlite:///{path}", "others")
    for sink in (one, other):
        sink.open(ORIGIN)
    said: list[str] = []

    def ask() -> None:
        said.append(problem(lambda: other.write_values(given([("b", 10, 2)]), 10), StoreUnavailableError))

    after_first(monkeypatch, "_put", ask)
    one.write_values(given([("a", 10, 1)]), 10)
    locked, then_try = (
        f"{other.name}: OperationalError: database is locked",
        "is writing. Try again when that has ended.",
    )
    assert said == [f"{locked}: {one.name} of this process {then_try}"]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        ask()
    assert said[1] == f"{locked}: another process or connection {then_try}"
    other.write_values(given([("b", 10, 2)]), 10)
    assert not sql._holders


def test_a_lock_of_postgresql_is_told_as_one(postgres: Database) -> None:
    sink = SqlSink(f"{postgres.url}?options=-c%20lock_timeout%3D100", "balances")
    sink.open(ORIGIN)
    with postgres.engine.begin() as connection:
        connection.exec_driver_sql(f"LOCK TABLE {CLOCKS}")
        told = problem(lambda: sink.write_values(given([("a", 10, 1)]), 10), StoreUnavailableError)
    assert "lock timeout" in told
    assert told.endswith(": another process or connection is writing. Try again when that has ended.")


def test_two_starts_at_once_make_one_table(database: Database) -> None:
    sink = SqlSink(database.url, "balances")
    for _ in range(8):
        ready = threading.Barrier(2)

        def start(ready: threading.Barrier = ready) -> int:
            ready.wait()
            return sink.open(ORIGIN)

        with ThreadPoolExecutor(2) as threads:
            assert [start.result() for start in [threads.submit(start) for _ in range(2)]] == [None] * 2
        assert database.clock() == BEGINNING
        database.execute("DROP TABLE balances", f"DROP TABLE {CLOCKS}")


UTC = timezone.utc
TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, 127]),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.float32(), [0.1, float("inf")]),
    (pa.float64(), [0.1, 5e-324, 1.7976931348623157e308, -0.0, float("-inf")]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["", "naïve 🦉", "\\N'\"%(x)s", "x" * 100_000]),
    (pa.binary(), [b"", bytes(range(256))]),
    (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)]),
    (pa.timestamp("us", "UTC"), [datetime(1, 1, 2, tzinfo=UTC), datetime(2024, 3, 31, 2, 30, 0, 1, tzinfo=UTC)]),
    (pa.timestamp("us"), [datetime(1, 1, 2), datetime(2024, 3, 31, 2, 30, 0, 1)]),
    (pa.decimal128(38, 10), [Decimal("0E-10"), Decimal("-1234567890123456789012345678.0123456789")]),
    (pa.list_(pa.int64()), [[], [1, None, 2**53 + 1]]),
    (pa.struct([("näme", pa.string()), ("x", pa.float64())]), [{"näme": "é\0", "x": float("nan")}]),
    (pa.map_(pa.string(), pa.decimal128(4, 2)), [[("a", Decimal("1.50")), ("b", None)]]),
]
"""Types and values at their edges; a null is tried with each."""


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize(
    ("row", "column"), [(("ann", 10, "a\0b"), "value"), (("a\0", 10, "b"), "key"), (("a", 10, "\0"), "value")]
)
def test_a_text_that_postgresql_does_not_take_is_named_with_table_column_and_key(
    postgres: Database, history: bool, row: Row, column: str
) -> None:
    schema = pa.schema([("key", pa.string()), ("clock", pa.int64()), ("value", pa.large_string())])
    sink = SqlSink(postgres.url, "balances", history=history)
    sink.open(Origin("bank", "Balance", ("key",), schema))
    told = problem(lambda: sink.write_values(given([("bob", 10, None), ("cid", 10, "x"), row], schema), 10))
    assert told.startswith(
        f"column={column!r} of {sink.name} has a text with the character U+0000 at key={ {'key': row[0]} }, and PostgreSQL"
    )
    sink.write_values(given([("bob", 10, "b\\0")], schema), 10)
    assert [(key, value) for key, _, value in postgres.rows()] == [("bob", "b\\0")]


def read_back(database: Database, kind: pa.DataType, value: Any) -> Any:
    """What a reader by SQLAlchemy finds, but for what SQLite has no types for."""
    if database.kind == "sqlite" and value is not None:
        if pa.types.is_decimal(kind):
            return Decimal(value)
        if pa.types.is_timestamp(kind) and kind.tz:
            return value.replace(tzinfo=UTC)
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=lambda case: str(case) if isinstance(case, pa.DataType) else "")
def test_values_are_kept_exactly(database: Database, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("key", pa.int64()), ("clock", pa.int64()), ("value", kind)])
    sink = SqlSink(database.url, "balances")
    sink.open(Origin("bank", "Balance", ("key",), schema))
    rows = [(number, 10, value) for number, value in enumerate([None, *values])]
    sink.write_values(given(rows, schema), 10)
    with database.engine.begin() as connection:
        table = sa.Table("balances", sa.MetaData(), autoload_with=connection)
        found = [
            read_back(database, kind, value) for value in connection.scalars(sa.select(table.c.value).order_by("key"))
        ]
    expected = pa.array([None, *values], kind)
    assert found == ([plain(value) for value in expected] if pa.types.is_nested(kind) else expected.to_pylist())
    assert database.rows("SELECT count(*) FROM balances WHERE value IS NULL") == [(1,)]


NO_YEAR = -719_528 * 86_400
"""The second with which the year 0 begins, which is 1 BC."""

BEYOND: list[tuple[pa.DataType, list[tuple[int, str, str]]]] = [
    (
        pa.date32(),
        [
            (0, "1970-01-01", "1970-01-01"),
            (-719_528, "0000-01-01", "0001-01-01 BC"),
            (-735_160, "-0043-03-15", "0044-03-15 BC"),
            (2_932_897, "10000-01-01", "10000-01-01"),
        ],
    ),
    (
        pa.timestamp("us", "UTC"),
        [
            (10**6, "1970-01-01 00:00:01.000000", "1970-01-01 00:00:01"),
            (NO_YEAR * 10**6 + 1, "0000-01-01 00:00:00.000001", "0001-01-01 00:00:00.000001 BC"),
            (-(10**17), "-1199-02-15 14:13:20.000000", "1200-02-15 14:13:20 BC"),
            (2**63 - 1, "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775807"),
        ],
    ),
    (
        pa.timestamp("ms"),
        [
            (0, "1970-01-01 00:00:00.000000", "1970-01-01 00:00:00"),
            (NO_YEAR * 1000, "0000-01-01 00:00:00.000", "0001-01-01 00:00:00 BC"),
            # Microseconds do not reach so far.
            (9_224_318_015_999_000, "294276-12-31 23:59:59.000", "294276-12-31 23:59:59"),
        ],
    ),
]
"""Dates and times, most of them such that Python lacks them, and how SQLite and PostgreSQL show them."""


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize(
    ("kind", "moments"), BEYOND, ids=lambda case: str(case) if isinstance(case, pa.DataType) else ""
)
def test_a_date_or_time_that_python_lacks_is_a_value_and_a_key_that_is_found_again(
    database: Database, kind: pa.DataType, moments: list[tuple[int, str, str]], history: bool
) -> None:
    schema = pa.schema([("key", kind), ("clock", pa.int64()), ("value", kind)])
    origin = Origin("bank", "Balance", ("key",), schema)
    ticks = pa.array([tick for tick, _, _ in moments], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)

    def at(clock: int, of: pa.Array) -> LocalValues:
        return LocalValues.of(pa.table([of, pa.array([clock] * len(of), pa.int64()), of], schema=schema))

    utc = " AT TIME ZONE 'UTC'" if database.kind == "postgresql" and kind == pa.timestamp("us", "UTC") else ""
    shown = f"SELECT clock, CAST(key{utc} AS TEXT), CAST(value{utc} AS TEXT) FROM balances"
    texts = [in_sqlite if database.kind == "sqlite" else in_postgres for _, in_sqlite, in_postgres in moments]
    first, changed = [(10, text, text) for text in texts], [(20, text, text) for text in texts[1:]]
    sink = SqlSink(database.url, "balances", history=history)
    sink.open(origin)
    sink.write_values(at(10, ticks), 10)
    assert database.rows(shown) == sorted(first, key=repr)
    sink.write_values(at(20, ticks[1:]), 20)
    assert database.rows(shown) == sorted([*(first if history else first[:1]), *changed], key=repr)
    back = SqlSink(database.url, "balances", history=history)
    back.open(replace(origin, timeline=1))
    back.rewind(10, at(10, ticks))
    assert database.rows(shown) == sorted(first, key=repr)


def test_a_date_that_postgresql_lacks_is_refused_with_its_text(postgres: Database) -> None:
    schema = pa.schema([("key", pa.date32()), *list(SCHEMA)[1:]])
    sink = SqlSink(postgres.url, "balances")
    sink.open(Origin("bank", "Balance", ("key",), schema))
    rows = LocalValues.of(pa.table([pa.array([-(2**31)], pa.int32()).cast(pa.date32()), [10], [1]], schema=schema))
    refused = problem(lambda: sink.write_values(rows, 10))
    assert refused.startswith(f"{sink.name} does not take this: ")
    assert 'date out of range: "5877642-06-23 BC"' in refused


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_time_with_digits_below_a_microsecond_is_refused_for_that(database: Database, column: str) -> None:
    nanos = pa.timestamp("ns", "UTC")
    schema = SCHEMA.set(SCHEMA.get_field_index(column), pa.field(column, nanos))
    sink = SqlSink(database.url, "balances")
    sink.open(Origin("bank", "Balance", ("key",), schema))
    whole, odd = ({"key": "a", "clock": 10, "value": 1} | {column: ticks} for ticks in (1_000, 1_001))
    sink.write_values(LocalValues.of(pa.Table.from_pylist([whole], schema)), 10)
    said = problem(lambda: sink.write_values(LocalValues.of(pa.Table.from_pylist([odd], schema)), 20))
    assert f"column={column!r} of {sink.name} has a time with digits below a microsecond" in said
    assert "9999" not in said


def test_a_clock_beyond_the_year_9999_is_a_whole_number_or_refused(database: Database) -> None:
    schema = pa.schema([("key", pa.string()), ("clock", pa.timestamp("us", "UTC")), ("value", pa.int64())])
    sink = SqlSink(database.url, "balances")
    sink.open(Origin("bank", "Balance", ("key",), schema))
    rows = LocalValues.of(pa.table([["a"], pa.array([2**60]).cast(schema.field("clock").type), [1]], schema=schema))
    assert "takes no times beyond the years 1 to 9999" in problem(lambda: sink.write_values(rows, 2**60))


def test_what_is_not_a_number(database: Database) -> None:
    """SQLite knows no NaN: it is null there."""
    schema = pa.schema([("key", pa.string()), ("clock", pa.int64()), ("value", pa.float64())])
    sink = SqlSink(database.url, "balances")
    sink.open(Origin("bank", "Balance", ("key",), schema))
    sink.write_values(given([("a", 10, float("nan"))], schema), 10)
    assert repr(database.rows()) == repr([("a", 10, float("nan") if database.kind == "postgresql" else None)])


def test_keys_of_every_type_are_found_again(database: Database) -> None:
    kinds = {
        f"k{number}": (kind, values)
        for number, (kind, values) in enumerate(TYPES)
        if not pa.types.is_floating(kind) and not pa.types.is_nested(kind)
    }
    assert len(kinds) == 9
    schema = pa.schema([*((name, kind) for name, (kind, _) in kinds.items()), *list(SCHEMA)[1:]])
    sink = SqlSink(database.url, "balances")
    sink.open(Origin("bank", "Balance", tuple(kinds), schema))
    # The index of PostgreSQL takes no longer ones.
    cases = [[None, *(value for value in values if len(str(value)) < 2000)] for _, values in kinds.values()]
    keys = [tuple(case[number % len(case)] for case in cases) for number in range(12)]
    for clock in (10, 20):
        rows = [(*key, clock, number) for number, key in enumerate(keys) if clock == 10 or number % 2]
        sink.write_values(given(rows, schema), clock)
    found = database.rows("SELECT clock, value FROM balances")
    assert found == sorted(((20 if number % 2 else 10, number) for number in range(12)), key=repr)


@pytest.mark.parametrize("rejected", [pa.float64(), pa.list_(pa.int64())])
def test_keys_that_can_not_be_found_for_sure_are_refused(database: Database, rejected: pa.DataType) -> None:
    schema = pa.schema([("key", rejected), *list(SCHEMA)[1:]])
    told = problem(lambda: SqlSink(database.url, "balances").open(Origin("bank", "Balance", ("key",), schema)))
    assert "key='key'" in told
    assert database.rows(TABLES[database.kind]) == []


TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table'",
    "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = 'public'",
}


@pytest.mark.parametrize("rejected", [pa.uint64(), pa.duration("us"), pa.null()])
def test_types_that_sql_lacks_are_refused(database: Database, rejected: pa.DataType) -> None:
    origin = Origin("bank", "Balance", ("key",), SCHEMA.set(2, pa.field("value", rejected)))
    assert "column='value'" in problem(lambda: SqlSink(database.url, "balances").open(origin))
    assert database.rows(TABLES[database.kind]) == []


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("key TEXT, value BIGINT", "clock"),
        ("key TEXT, clock BIGINT", "value"),
        ("clock BIGINT, value BIGINT", "key"),
        ("key BIGINT, clock BIGINT, value BIGINT", "key"),
        ("key TEXT, clock TIMESTAMP, value BIGINT", "clock"),
        ("key TEXT, clock BIGINT, value FLOAT", "value"),
        ("key TEXT, clock BIGINT, value NUMERIC(9, 0)", "value"),
        ("key TEXT, clock BIGINT, value BOOLEAN", "value"),
    ],
)
def test_a_table_of_another_schema_is_refused(database: Database, columns: str, named: str) -> None:
    database.execute(f"CREATE TABLE balances ({columns})")
    assert f"column={named!r}" in problem(lambda: SqlSink(database.url, "balances").open(ORIGIN))
    assert database.rows(TABLES[database.kind]) == [("balances",)]


def test_a_column_that_would_shift_times_is_refused(postgres: Database) -> None:
    origin = Origin("bank", "Balance", ("key",), SCHEMA.set(2, pa.field("value", pa.timestamp("us", "UTC"))))
    postgres.execute("CREATE TABLE balances (key TEXT, clock BIGINT, value TIMESTAMP)")
    assert "column='value'" in problem(lambda: SqlSink(postgres.url, "balances").open(origin))
    postgres.execute("ALTER TABLE balances ALTER COLUMN value TYPE TIMESTAMPTZ")
    assert SqlSink(postgres.url, "balances").open(origin) is None


def with_type(kind: pa.DataType, column: str) -> Origin:
    return replace(ORIGIN, schema=SCHEMA.set(SCHEMA.get_field_index(column), pa.field(column, kind)))


@pytest.mark.parametrize(
    "declared", ["TEXT COLLATE NOCASE", "VARCHAR COLLATE RTRIM", "TEXT COLLATE nocase PRIMARY KEY"]
)
def test_a_key_of_sqlite_that_takes_different_texts_for_equal_is_refused(tmp_path: Path, declared: str) -> None:
    path = tmp_path / "values.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE balances (key {declared}, clock BIGINT, value BIGINT)")
        connection.execute(f"CREATE TABLE others (key TEXT, clock BIGINT, value {declared})")
    told = problem(lambda: SqlSink(path, "balances").open(ORIGIN))
    assert told == problem(lambda: SqlSink(path, "balances").rows_above(0, ORIGIN))
    assert told.startswith(f"column='key' of sql {path} balances takes different texts for equal")
    # A history finds no row by its key, and a value is kept as it is.
    sink = SqlSink(path, "others")
    assert sink.open(with_type(pa.string(), "value")) is None
    if "PRIMARY" not in declared:
        assert SqlSink(path, "balances", history=True).open(ORIGIN) is None


@pytest.mark.parametrize("declared", ['TEXT COLLATE "loose"', 'TEXT COLLATE "alike"', "CITEXT"])
def test_a_key_of_postgresql_that_takes_different_texts_for_equal_is_refused(postgres: Database, declared: str) -> None:
    postgres.execute(
        "CREATE EXTENSION citext",
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        # It takes only texts for equal that are one text to a reader, as two ways to write an é.
        "CREATE COLLATION alike (provider = icu, locale = 'und', deterministic = false)",
        "CREATE COLLATION exact (provider = icu, locale = 'und')",
        f"CREATE TABLE balances (key {declared}, clock BIGINT, value BIGINT)",
        f"CREATE TABLE others (key TEXT COLLATE exact, clock BIGINT, value {declared})",
    )
    told = problem(lambda: SqlSink(postgres.url, "balances").open(ORIGIN))
    assert "column='key' of sql postgresql" in told
    assert "takes different texts for equal" in told
    assert SqlSink(postgres.url, "balances", history=True).open(ORIGIN) is None
    assert SqlSink(postgres.url, "others").open(with_type(pa.string(), "value")) is None


def test_a_null_key_gets_no_number_of_sqlite_s_own(tmp_path: Path) -> None:
    path, origin = tmp_path / "values.db", with_type(pa.int64(), "key")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE balances (key INTEGER PRIMARY KEY, clock BIGINT, value BIGINT)")
    sink = SqlSink(path, "balances")
    sink.open(origin)
    sink.write_values(given([(7, 10, 1)], origin.schema), 10)
    refused = given([(None, 10, 1)], origin.schema)
    assert "make it an INTEGER UNIQUE" in problem(lambda: sink.write_values(refused, 20))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT key FROM balances").fetchall() == [(7,)]


CHANGED: list[tuple[str, pa.DataType, tuple[str, ...]]] = [
    ("CHAR(3)", pa.string(), ("key", "value")),
    ('"char"', pa.string(), ("key", "value")),
    ("NAME", pa.string(), ("key", "value")),
    ("NUMERIC(5, 1)", pa.decimal128(9, 2), ("key", "value")),
    ("NUMERIC(9)", pa.decimal128(9, 2), ("key", "value")),
    ("REAL", pa.float64(), ("value",)),
    ("TIMESTAMPTZ(3)", pa.timestamp("us", "UTC"), ("key", "clock", "value")),
    ("TIMESTAMP(0)", pa.timestamp("us"), ("key", "value")),
]


@pytest.mark.parametrize(("declared", "kind", "changed"), CHANGED, ids=str)
def test_a_column_that_would_change_values_in_silence_is_refused(
    postgres: Database, declared: str, kind: pa.DataType, changed: tuple[str, ...]
) -> None:
    for column in changed:
        columns = {"key": "TEXT", "clock": "BIGINT", "value": "BIGINT"} | {column: declared}
        postgres.execute(f"CREATE TABLE {column}s ({', '.join(map(' '.join, columns.items()))})")
        for history in (False, True):
            sink = SqlSink(postgres.url, f"{column}s", history=history)
            told = problem(lambda sink=sink, column=column: sink.open(with_type(kind, column)))
            assert told.startswith(f"column={column!r} of {sink.name} is ")
            assert "; make it " in told


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ("NUMERIC", pa.decimal128(9, 2)),
        ("NUMERIC(20, 2)", pa.decimal128(9, 2)),
        ("REAL", pa.float32()),
        ("VARCHAR(9)", pa.string()),
        ("TIMESTAMPTZ(6)", pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
def test_a_column_that_holds_values_as_they_are_is_taken(postgres: Database, declared: str, kind: pa.DataType) -> None:
    postgres.execute(f"CREATE TABLE balances (key TEXT, clock BIGINT, value {declared})")
    assert SqlSink(postgres.url, "balances").open(with_type(kind, "value")) is None


@pytest.mark.parametrize("column", ["key", "value"])
def test_a_text_is_not_cut_to_a_column_s_length(postgres: Database, column: str) -> None:
    """PostgreSQL cuts spaces from the end, so that two keys may become one."""
    columns = {"key": "TEXT", "clock": "BIGINT", "value": "TEXT"} | {column: "VARCHAR(3)"}
    postgres.execute(f"CREATE TABLE balances ({', '.join(map(' '.join, columns.items()))})")
    origin = with_type(pa.string(), "value")
    sink = SqlSink(postgres.url, "balances")
    sink.open(origin)

    def write(text: str, clock: int) -> None:
        row = {"key": "a", "clock": clock, "value": "a"} | {column: text}
        sink.write_values(given([tuple(row.values())], origin.schema), clock)

    write("łó ", 10)
    assert f"column={column!r} of {sink.name} takes 3 characters" in problem(lambda: write("łód ", 20))
    assert len(postgres.rows()) == 1


def test_tables_that_the_sink_makes_hold_values_as_they_are(database: Database) -> None:
    kinds = {f"k{number}": kind for number, (kind, _) in enumerate(TYPES)} | {'a "Key": of %(x)s': pa.string()}
    schema = pa.schema([*kinds.items(), *list(SCHEMA)[1:]])
    keys = tuple(
        name for name, kind in kinds.items() if not pa.types.is_floating(kind) and not pa.types.is_nested(kind)
    )
    sink, origin = SqlSink(database.url, "The balances"), Origin("bank", "Balance", keys, schema)
    for _ in range(2):
        # The second start looks at the table that the first has made.
        assert sink.open(origin) is None


def test_a_table_of_ones_own_is_taken_as_it_is(database: Database) -> None:
    database.execute(
        "CREATE TABLE balances (note TEXT DEFAULT 'new', value INTEGER, key VARCHAR(5) NOT NULL, clock BIGINT)",
        "INSERT INTO balances VALUES ('old', 1, 'a', 0), ('old', 1, 'b', 0)",
    )
    sink = SqlSink(database.url, "balances")
    assert sink.open(ORIGIN) is None
    sink.write_values(given([("a", 10, 7), ("c", 10, 8)]), 10)
    assert database.rows() == [("new", 7, "a", 10), ("new", 8, "c", 10), ("old", 1, "b", 0)]
    assert "does not take this" in problem(lambda: sink.write_values(given([("d", 20, 1), (None, 20, 9)]), 20))
    assert (len(database.rows()), sink.open(ORIGIN)) == (3, 10)


def test_a_table_of_somebody_else_is_refused(database: Database) -> None:
    sink = SqlSink(database.url, "balances")
    sink.open(ORIGIN)
    for other in (Origin("shop", "Balance", ("key",), SCHEMA), Origin("bank", "Other", ("key",), SCHEMA)):
        assert "task=Balance of application=bank" in problem(lambda other=other: sink.open(other))
    assert "history=False" in problem(lambda: SqlSink(database.url, "balances", history=True).open(ORIGIN))
    assert sink.open(ORIGIN) is None


def test_names_that_sqlite_takes_for_one_are_one(tmp_path: Path) -> None:
    place = str(tmp_path / "values.db")
    SqlSink(place, "Balances").open(ORIGIN)
    with pytest.raises(InvalidInputError, match="has the values of task=Balance"):
        SqlSink(place, "balances").open(Origin("bank", "Other", ("key",), SCHEMA))
    assert SqlSink(place, "balances").open(ORIGIN) is None


def test_mistakes_are_refused_where_sqlite_calls_them_operational(tmp_path: Path) -> None:
    place = str(tmp_path / "values.db")
    with pytest.raises(InvalidInputError, match="reserved"):
        SqlSink(place, "sqlite_values").open(ORIGIN)
    with pytest.raises(InvalidInputError, match="is where clocks are recorded"):
        SqlSink(place, CLOCKS)
    with pytest.raises(StoreUnavailableError, match="unable to open"):
        SqlSink(str(tmp_path / "missing" / "values.db"), "balances").open(ORIGIN)


def test_a_table_that_was_lost_is_not_made_again_in_silence(database: Database) -> None:
    sink = SqlSink(database.url, "balances")
    sink.open(ORIGIN)
    sink.write_values(given([("a", 10, 1)]), 10)
    database.execute("DROP TABLE balances")
    assert "1970-01-01T00:00:00.000010Z" in problem(lambda: sink.open(ORIGIN))
    with pytest.raises(StateError):
        sink.write_values(given([("a", 20, 1)]), 20)
    database.execute(f"DELETE FROM {CLOCKS}")
    assert CLOCKS in problem(lambda: sink.write_values(given([("a", 20, 1)]), 20))
    assert sink.open(ORIGIN) is None
    assert database.rows() == []


@pytest.mark.parametrize("history", [False, True])
def test_values_that_break_off_leave_nothing(database: Database, history: bool) -> None:
    sink = SqlSink(database.url, "balances", history=history)
    sink.open(ORIGIN)
    sink.write_values(given([("a", 10, 1)]), 10)
    rows = [("a", 20, 2), ("b", 20, 2)]

    def broken() -> Iterator[Row]:
        yield from rows
        raise ValueError("the second half is not to be had")

    with pytest.raises(ValueError, match="the second half is not to be had"):
        sink.write_values(given(broken()), 20)
    assert (database.rows(), database.clock()) == ([("a", 10, 1)], 10)
    sink.write_values(given(rows), 20)
    assert database.rows() == [*([("a", 10, 1)] if history else []), ("a", 20, 2), ("b", 20, 2)]


def test_a_server_that_ends_half_way_leaves_nothing(postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = SqlSink(postgres.url, "balances")
    sink.open(ORIGIN)
    sink.write_values(given([("a", 10, 1)]), 10)
    values = [("a", 20, 2), ("b", 20, 2)]

    def end() -> None:
        ended = postgres.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert ended == [(True,)]

    after_first(monkeypatch, "_put", end)
    problem(lambda: sink.write_values(given(values), 20), StoreUnavailableError)
    assert (postgres.rows(), postgres.clock()) == ([("a", 10, 1)], 10)
    sink.write_values(given(values), 20)
    assert postgres.rows() == [("a", 20, 2), ("b", 20, 2)]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tests:s3cr?t-here@127.0.0.1:{port}/x",
        "postgresql://tests:s3cr%40t-here@127.0.0.1:{port}/x?connect_timeout=5&application_name=t-here",
        "postgresql+psycopg://127.0.0.1:{port}/x?user=tests&password=t-here",
        "/nowhere/at/all.db",
    ],
)
def test_a_database_that_is_down_is_tried_again(url: str) -> None:
    sink = SqlSink(url.format(port=free_port()), "balances")
    assert_no_secret(sink, lambda: sink.open(ORIGIN), StoreUnavailableError)
    assert_no_secret(sink, lambda: sink.write_values(given([("a", 10, 1)]), 10), StoreUnavailableError)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://tests:s3cr@t-here@127.0.0.1/x",
        "postgresql://tests:t-here@127.0.0.1:port/x",
        "postgresql://tests:t-here@127.0.0.1:{port}/x?password=t-here&t-here=t-here",
        "nonsense://tests:t-here@127.0.0.1/x",
        "mysql+none://tests:t-here@127.0.0.1/x",
        "mssql+pyodbc:///?odbc_connect=DRIVER=none;PWD=t-here",
        "://t-here@",
        "sqlite://",
        "sqlite:///:memory:",
        __file__,
    ],
)
def test_a_url_of_no_database_is_refused(url: str) -> None:
    sink = SqlSink(url.format(port=free_port()), "balances")
    assert_no_secret(sink, lambda: sink.open(ORIGIN), InvalidInputError)


def test_a_wrong_password_is_told_without_it(postgres: Database) -> None:
    sink = SqlSink(str(sa.make_url(postgres.url).set(password="***")).replace("***", "t-here"), "balances")
    assert "password authentication failed" in problem(lambda: sink.open(ORIGIN), StoreUnavailableError)
    assert_no_secret(sink, lambda: sink.open(ORIGIN), StoreUnavailableError)


def assert_no_secret(sink: SqlSink, call: Callable[[], object], kind: type[StateError]) -> None:
    problem(call, kind)
    with pytest.raises(StateError) as caught:
        call()
    shown = "".join(traceback.format_exception(caught.value))
    assert "t-here" not in f"{sink!r} {sink} {sink.name} {shown}"


@pytest.mark.parametrize(("package", "extra"), [("sqlalchemy", "sql"), ("psycopg", "postgresql")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, package: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    sink = SqlSink("postgresql://tests:t-here@127.0.0.1/x", "balances")
    assert f"pip install 'persistent-state[{extra}]', in a checkout '.[{extra}]'." in problem(lambda: sink.open(ORIGIN))
    assert_no_secret(sink, lambda: sink.open(ORIGIN), InvalidInputError)


def test_nothing_is_imported_before_it_is_used() -> None:
    program = "import sys, persistent_state.sinks.sql; assert not {'sqlalchemy', 'pyspark'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_sink_has_one_name_wherever_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    sink = SqlSink("values.db", "balances")
    monkeypatch.chdir("/")
    assert sink.name == f"sql {tmp_path}/values.db balances"
    assert pickle.loads(pickle.dumps(sink)) == sink
    assert SqlSink("postgresql://me:t-here@db:5432/bank?sslmode=require", "t").name == "sql postgresql://db:5432/bank t"


def test_a_table_of_newest_values_refuses_emitted_rows(tmp_path: Path) -> None:
    path, origin = str(tmp_path / "values.db"), replace(ORIGIN, task="Fraud", is_unique=False)
    assert problem(lambda: SqlSink(path, "alerts").open(origin)) == (
        f"task=Fraud: sql {path} alerts keeps the newest row of each key, and emitted rows of one key stay apart; say "
        "history=True."
    )
    assert not Path(path).exists()
    assert SqlSink(path, "alerts", history=True).open(origin) is None


def in_timeline(database: Database, timeline: int, history: bool) -> SqlSink:
    sink = SqlSink(database.url, "balances", history=history)
    sink.open(replace(ORIGIN, timeline=timeline))
    return sink


def test_a_plan_refuses_what_a_start_would_and_changes_nothing(database: Database) -> None:
    sink, others = SqlSink(database.url, "balances", history=True), SqlSink(database.url, "others")
    assert (sink.rows_above(10, ORIGIN), sa.inspect(database.engine).get_table_names()) == (0, [])
    sink.open(ORIGIN)
    sink.write_values(given([("ann", 20, 1)]), 20)
    database.execute("CREATE TABLE others AS SELECT * FROM balances")
    as_text = replace(ORIGIN, schema=SCHEMA.set(2, pa.field("value", pa.string())))
    as_newest = SqlSink(database.url, "balances")
    for each, other in (
        (sink, replace(ORIGIN, application="shop")),
        (sink, replace(ORIGIN, task="Other")),
        (sink, as_text),
        (as_newest, ORIGIN),
        (as_newest, replace(ORIGIN, is_unique=False)),
    ):
        said = problem(lambda each=each, other=other: each.open(other))
        assert problem(lambda each=each, other=other: each.rows_above(10, other)) == said
    # What is recorded nowhere stays.
    assert (others.rows_above(10, ORIGIN), sink.rows_above(10, ORIGIN)) == (0, 1)
    others.open(replace(ORIGIN, timeline=3))
    others.rewind(10, given([]))
    assert others.rows_above(10, ORIGIN) == len(database.rows("SELECT * FROM others")) == 1
    database.execute("DROP TABLE balances")
    assert "is gone, with the values up to" in problem(lambda: sink.rows_above(10, ORIGIN))


def test_a_plan_makes_no_file_of_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "values.db"
    for url in (path, f"sqlite:///{path}", f"sqlite:///file:{path}?uri=true"):
        assert (SqlSink(url, "balances").rows_above(10, ORIGIN), [*tmp_path.iterdir()]) == (0, [])
    SqlSink(path, "balances").open(ORIGIN)
    assert "of task=Balance" in problem(lambda: SqlSink(path, "balances").rows_above(10, replace(ORIGIN, task="Other")))


def record(database: Database) -> Row:
    (row,) = database.rows(f"SELECT timeline, clock FROM {CLOCKS}")
    return row


@pytest.mark.parametrize("history", [False, True])
def test_a_rewind_takes_back_what_is_above_its_clock_once(database: Database, history: bool) -> None:
    old = in_timeline(database, 0, history)
    old.write_values(given([("ann", 10, 1), (None, 10, 2), ("bob", 10, 3)]), 10)
    old.write_values(given([("ann", 20, 4), (None, 20, None), ("eve", 20, 5)]), 20)
    assert old.rows_above(10, ORIGIN) == 3
    new = in_timeline(database, 7, history)
    new.rewind(10, given([("ann", 10, 1), (None, 10, 2), ("bob", 10, 3)]))
    as_then = [("ann", 10, 1), ("bob", 10, 3), (None, 10, 2)]
    assert (database.rows(), record(database), new.rows_above(10, ORIGIN)) == (as_then, (7, 10), 0)
    # A writer of the timeline that has ended changes nothing, at whatever clock, nor does one that is asked again.
    for clock in (10, 20, 30):
        with pytest.raises(FencedError, match="was rewound"):
            old.write_values(given([("ann", clock, 9)]), clock)
    with pytest.raises(FencedError):
        old.rewind(5, given([]))
    new.write_values(given([("eve", 20, 6)]), 20)
    new.rewind(10, given([]))
    assert (database.rows(), record(database)) == (sorted([*as_then, ("eve", 20, 6)], key=repr), (7, 20))
    with pytest.raises(FencedError):
        in_timeline(database, 3, history)
    assert in_timeline(database, 8, history).open(replace(ORIGIN, timeline=8)) == 20


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us", "UTC")], ids=["whole", "times"])
def test_a_rewind_to_the_beginning_takes_all_of_this_output_and_nothing_else(
    database: Database, history: bool, kind: pa.DataType
) -> None:
    schema = SCHEMA.set(1, pa.field("clock", kind))
    what = replace(ORIGIN, schema=schema)

    def opened(table: str, timeline: int) -> tuple[SqlSink, int | None]:
        sink = SqlSink(database.url, table, history=history)
        return sink, sink.open(replace(what, timeline=timeline))

    def rows_of(*rows: Row) -> LocalValues:
        columns = zip(*rows, strict=True)
        arrays = [pa.array(each, field.type) for each, field in zip(columns, SCHEMA, strict=True)]
        return LocalValues.of(pa.table(arrays, schema=SCHEMA).cast(schema))

    (old, _), (other, _) = opened("balances", 0), opened("early", 0)
    for sink in (old, other):
        sink.write_values(rows_of(("ann", -10, 1), (None, -10, 2)), -10)
        sink.write_values(rows_of(("ann", 20, 3), ("bob", 20, None)), 20)
    others, count = database.rows("SELECT * FROM early"), len(database.rows())
    # A rewind before, which the table has followed.
    first, _ = opened("balances", 3)
    first.rewind(-10, rows_of(("ann", -10, 1), (None, -10, 2)))
    first.write_values(rows_of(("eve", 20, 4)), 20)
    assert (first.rows_above(BEGINNING, what), count) == (3, 4 if history else 3)
    new, last = opened("balances", 7)
    assert last == 20
    new.rewind(BEGINNING, given([]))
    record = f"SELECT timeline, clock FROM {CLOCKS} WHERE table_name = 'balances'"
    assert (database.rows(), database.rows(record), new.rows_above(BEGINNING, what)) == ([], [(7, BEGINNING)], 0)
    # Writers of both timelines that have ended change nothing, at whatever clock.
    for ended, clock in itertools.product((old, first), (-20, 20, 30)):
        with pytest.raises(FencedError, match="was rewound"):
            ended.write_values(rows_of(("ann", clock, 9)), clock)
    assert opened("balances", 7)[1] is None
    new.write_values(rows_of(("ann", -10, 5)), -10)
    # Asked again, it takes nothing back.
    new.rewind(BEGINNING, given([]))
    assert [(key, value) for key, _, value in database.rows()] == [("ann", 5)]
    assert (database.rows(record), database.rows("SELECT * FROM early")) == ([(7, -10)], others)
    # An empty table goes back too, and so its writers are fenced.
    for timeline in (8, 9):
        opened("balances", timeline)[0].rewind(BEGINNING, given([]))
        assert (database.rows(), database.rows(record)) == ([], [(timeline, BEGINNING)])
    with pytest.raises(FencedError):
        new.write_values(rows_of(("ann", 10, 5)), 10)


def test_a_rewind_to_the_beginning_keeps_rows_of_ones_own_that_are_at_no_clock(database: Database) -> None:
    database.execute("CREATE TABLE balances (key VARCHAR, clock BIGINT, value BIGINT)")
    sink = in_timeline(database, 0, True)
    database.execute("INSERT INTO balances VALUES ('mine', NULL, 7)")
    sink.write_values(given([("ann", 10, 1)]), 10)
    in_timeline(database, 7, True).rewind(BEGINNING, given([]))
    assert database.rows() == [("mine", None, 7)]


def test_emitted_rows_go_at_a_rewind_to_the_beginning(database: Database) -> None:
    origin = replace(ORIGIN, is_unique=False)
    sink = SqlSink(database.url, "balances", history=True)
    sink.open(origin)
    sink.write_values(given([("ann", 10, 1), ("ann", 10, 1)]), 10)
    sink.open(replace(origin, timeline=2))
    sink.rewind(BEGINNING, given([]))
    assert (database.rows(), sink.open(replace(origin, timeline=2))) == ([], None)


@pytest.mark.parametrize("history", [False, True])
def test_a_clock_that_a_late_writer_has_written_below_the_rewind_is_not_written_again(
    database: Database, history: bool
) -> None:
    in_timeline(database, 0, history).write_values(given([("ann", 10, 1)]), 10)
    new = in_timeline(database, 7, history)
    new.write_values(given([("ann", 10, 1)]), 10)
    assert (database.rows(), record(database)) == ([("ann", 10, 1)], (0, 10))
    new.rewind(30, given([]))
    assert record(database) == (7, 10)


@pytest.mark.parametrize("history", [False, True])
def test_nobody_sees_half_a_rewind_and_one_that_fails_changes_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch, history: bool
) -> None:
    old = in_timeline(database, 0, history)
    old.write_values(given([("ann", 10, 1)]), 10)
    old.write_values(given([("ann", 20, 2), ("eve", 20, 3)]), 20)
    before, seen = database.rows(), list[list[Row]]()

    def fail() -> None:
        seen.append(database.rows())
        raise StoreUnavailableError("killed")

    after_first(monkeypatch, "_delete_above", fail)
    new = in_timeline(database, 7, history)
    with pytest.raises(StoreUnavailableError):
        new.rewind(10, given([("ann", 10, 1)]))
    assert [database.rows(), *seen] == [before, before]
    assert record(database) == (0, 20)
    new.rewind(10, given([("ann", 10, 1)]))
    assert database.rows() == [("ann", 10, 1)]


def test_a_table_of_an_older_version_is_taken_over(database: Database) -> None:
    in_timeline(database, 0, False).write_values(given([("ann", 10, 1)]), 10)
    database.execute(f"ALTER TABLE {CLOCKS} DROP COLUMN timeline")
    with ThreadPoolExecutor(3) as pool:
        [*pool.map(lambda _: in_timeline(database, 0, False), range(3))]
    sink = in_timeline(database, 4, False)
    sink.write_values(given([("ann", 20, 2)]), 20)
    assert (database.rows(), record(database)) == ([("ann", 20, 2)], (4, 20))


def test_windows_that_are_given_early_are_one_row_each_and_go_back(database: Database) -> None:
    schema = pa.schema([("start", pa.int64()), ("clock", pa.int64()), ("final", pa.bool_()), ("value", pa.int64())])
    origin = Origin("bank", "Balance", ("start",), schema)

    sink = SqlSink(database.url, "balances")
    sink.open(origin)
    sink.write_values(given([(1, 10, False, 5)], schema), 10)
    later = given([(1, 20, True, 6), (2, 20, False, 1)], schema)
    sink.write_values(later, 20)
    assert [row[:2] for row in database.rows()] == [(1, 20), (2, 20)]
    sink.open(replace(origin, timeline=2))
    sink.rewind(10, given([(1, 10, False, 5)], schema))
    ((start, clock, final, value),) = database.rows()
    assert (start, clock, bool(final), value) == (1, 10, False, 5)
    # One that closes comes under the same key, and goes with the others.
    sink.write_values(later, 20)
    sink.open(replace(origin, timeline=3))
    sink.rewind(BEGINNING, given([]))
    assert (database.rows(), record(database)) == ([], (3, BEGINNING))


def test_rows_of_every_type_that_a_rewind_brings_back_are_as_they_were_written(database: Database) -> None:
    kinds = {f'k "{number}": %(x)s': kind for number, (kind, _) in enumerate(TYPES)}
    cases = [[None, *(value for value in values if len(str(value)) < 2000)] for _, values in TYPES]
    keys = tuple(
        name for name, kind in kinds.items() if not pa.types.is_floating(kind) and not pa.types.is_nested(kind)
    )
    schema = pa.schema([*kinds.items(), ("clock", pa.int64()), ("value", pa.int64())])

    def rows(clock: int) -> LocalValues:
        columns = [[case[number % len(case)] for number in range(6)] for case in cases]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=False)]
        return LocalValues.of(pa.table([*arrays, pa.array([clock] * 6), pa.array(range(6))], schema=schema))

    def opened(timeline: int) -> SqlSink:
        sink = SqlSink(database.url, "balances")
        sink.open(Origin("bank", "Balance", keys, schema, timeline=timeline))
        return sink

    opened(0).write_values(rows(10), 10)
    written = database.rows()
    opened(0).write_values(rows(20), 20)
    opened(1).rewind(10, rows(10))
    assert database.rows() == written
    # As after a rewind to a clock at which some of the keys were not there.
    database.execute("DELETE FROM balances WHERE value < 3", f"UPDATE {CLOCKS} SET clock = 15")
    opened(2).rewind(10, rows(10))
    assert (len(written), database.rows()) == (6, written)


KILLED = """
import os, signal, sys
from dataclasses import replace
from tests.sinks.test_sql import ORIGIN, SqlSink, given

def delete_and_die(sink, *arguments):
    delete(sink, *arguments)
    os.kill(os.getpid(), signal.SIGKILL)

delete, SqlSink._delete_above = SqlSink._delete_above, delete_and_die
sink = SqlSink(sys.argv[1], "balances")
sink.open(replace(ORIGIN, timeline=7))
sink.rewind(int(sys.argv[2]), given([("ann", 10, 1)] * (int(sys.argv[2]) == 10)))
"""


@pytest.mark.parametrize("to", [10, BEGINNING])
def test_a_driver_that_is_killed_in_the_middle_of_a_rewind_has_changed_nothing(database: Database, to: int) -> None:
    old = in_timeline(database, 0, False)
    old.write_values(given([("ann", 10, 1)]), 10)
    old.write_values(given([("ann", 20, 2), ("eve", 20, 3)]), 20)
    before = database.rows()
    found = subprocess.run([sys.executable, "-c", KILLED, database.url, str(to)], check=False)
    assert (found.returncode, database.rows(), record(database)) == (-signal.SIGKILL, before, (0, 20))
    # It may come again, and a driver of before may still write in between.
    old.write_values(given([("bob", 30, 4)]), 30)
    as_then = [("ann", 10, 1)] if to == 10 else []
    in_timeline(database, 7, False).rewind(to, given(as_then))
    assert (database.rows(), record(database)) == (as_then, (7, to))
