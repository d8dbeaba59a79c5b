"""Clocks and the times of windows are timestamps in tables; a table that has them as whole numbers keeps its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from persistent_state import DeltaSink, InvalidInputError, ParquetSink, SqlSink
from persistent_state.sinks import Origin, Sink
from persistent_state.sinks.values import LocalValues
from persistent_state.windows import TIME
from tests.store.servers import Servers, needed

SECOND = 1_000_000
HOUR = 3600 * SECOND
FIRST = 1_767_225_600 * SECOND  # 2026-01-01T00:00:00Z
SCHEMA = pa.schema(
    [("key", pa.string()), ("window_start", TIME), ("window_end", TIME), ("clock", TIME), ("value", pa.int64())]
)
ORIGIN = Origin("app", "Task", ("key", "window_start", "window_end"), SCHEMA, ("window_start", "window_end"))
OLD = replace(
    ORIGIN, schema=pa.schema([field.with_type(pa.int64()) if field.type == TIME else field for field in SCHEMA])
)
"""What the versions before this one told their sinks."""

Rows = list[tuple[Any, ...]]
Made = tuple[Callable[[], Sink], Callable[[], Rows]]


@pytest.fixture(params=["parquet", "delta", "sqlite", pytest.param("postgresql", marks=pytest.mark.stores)])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Made]:
    """What makes a sink of one place, and what reads the rows there."""
    names = SCHEMA.names
    if request.param == "parquet":
        yield (
            lambda: ParquetSink(tmp_path / "table"),
            lambda: rows_of(ParquetSink(tmp_path / "table").dataset().to_table()),
        )
    elif request.param == "delta":
        import deltalake

        yield (
            lambda: DeltaSink(tmp_path / "table"),
            lambda: rows_of(pa.table(deltalake.DeltaTable(str(tmp_path / "table")).to_pyarrow_table()).select(names)),
        )
    else:
        url = f"sqlite:///{tmp_path}/values.db"
        if request.param == "postgresql":
            servers: Servers = request.getfixturevalue("servers")
            with needed():
                server = servers["postgresql"]
            name = f"times{abs(hash(tmp_path.name))}"
            server.make(name)
            url, _ = server.address(name, server.ports)
            url = url.replace("postgresql://", "postgresql+psycopg://")
        engine = sa.create_engine(url, poolclass=NullPool)

        def read() -> Rows:
            table = sa.Table("windows", sa.MetaData(), autoload_with=engine)
            with engine.connect() as connection:
                return sorted(map(tuple, connection.execute(sa.select(*(table.c[name] for name in names)))))

        yield lambda: SqlSink(url, "windows", history=True), read


def rows_of(table: pa.Table) -> Rows:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def values(clock: int, schema: pa.Schema = SCHEMA) -> tuple[LocalValues, Rows]:
    """What a sink is given at a clock, one window, and that in microseconds."""
    row = ("a", clock - HOUR, clock, clock, 7)
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True))], OLD.schema)
    return LocalValues.of(table.cast(schema)), [row]


def as_times(rows: Rows, zone: timezone | None) -> Rows:
    return [
        tuple(
            datetime.fromtimestamp(each / SECOND, timezone.utc).replace(tzinfo=zone) if each in row[1:4] else each
            for each in row
        )
        for row in rows
    ]


def test_a_new_table_has_timestamps(made: Made) -> None:
    sink, read = made[0](), made[1]
    assert sink.open(ORIGIN) is None
    wanted: Rows = []
    for clock in (FIRST, FIRST + HOUR):
        given, rows = values(clock)
        sink.write_values(given, clock)
        wanted += rows
    found = read()
    zone = found[0][3].tzinfo
    assert [
        tuple(v.astimezone(timezone.utc) if getattr(v, "tzinfo", None) else v for v in row) for row in found
    ] == as_times(wanted, zone and timezone.utc)
    assert zone is not None or "sqlite" in str(sink)
    # And it is the same table at the next start.
    assert made[0]().open(ORIGIN) == FIRST + HOUR


def test_a_table_of_an_older_version_keeps_its_columns(made: Made) -> None:
    make, read = made
    old = make()
    old.open(OLD)
    # As it came then.
    before, rows = values(FIRST, OLD.schema)
    old.write_values(before, FIRST)
    assert read() == rows
    new = make()
    assert new.open(ORIGIN) == FIRST
    given, more = values(FIRST + HOUR)
    new.write_values(given, FIRST + HOUR)
    assert read() == rows + more
    again = make()
    assert again.open(ORIGIN) == FIRST + HOUR
    # What comes again changes nothing here either.
    again.write_values(given, FIRST + HOUR)
    assert read() == rows + more


def test_a_key_column_is_none_of_the_library_s_times(made: Made) -> None:
    """Keys of timestamps that happen to be called as the times of windows are not written as whole numbers."""
    keys = ("window_start", "window_end")
    schema = pa.schema([("window_start", TIME), ("window_end", TIME), ("clock", TIME), ("value", pa.int64())])
    whole = schema.set(0, pa.field("window_start", pa.int64()))
    made[0]().open(Origin("app", "Task", keys, whole))
    with pytest.raises(InvalidInputError):
        made[0]().open(Origin("app", "Task", keys, schema))
