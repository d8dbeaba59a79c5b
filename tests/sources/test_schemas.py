"""A column has one name of its own, wherever a schema comes from; where two have one name, a sentence says which."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from monoids import Sum
from persistent_state import FileSource, Message, NonWindowState, PersistentTask, run_local
from persistent_state.errors import at_definition
from persistent_state.kafka import Json
from persistent_state.sources.schemas import arrow_schema, name_twice
from tests import core
from tests.sentences import problem
from tests.sources.test_files import SCHEMA, STAMP, bad, read_all, source, table, values, write

TWICE = pa.struct([("x", pa.int64()), ("x", pa.int64())])


class Task(PersistentTask):
    key, value = "key", "value"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


@pytest.mark.parametrize(
    ("type", "name"),
    [
        (TWICE, "s.x"),
        (pa.list_(TWICE), "s.item.x"),
        (pa.map_(pa.string(), TWICE), "s.entries.value.x"),
        (pa.dictionary(pa.int8(), pa.string()), None),
        (pa.struct([("x", pa.int64()), ("y", TWICE)]), "s.y.x"),
        (pa.struct([("s", pa.int64()), ("k", pa.int64())]), None),
    ],
)
def test_the_path_of_a_name_that_stands_twice_is_returned(type: pa.DataType, name: str | None) -> None:
    assert name_twice(pa.schema([("k", pa.string()), ("s", type)])) == name
    assert name_twice(pa.schema([("s", type), ("k", pa.string()), ("k", pa.int64())])) == (name or "k")


class Struct:
    """A StructType of Spark."""

    def jsonValue(self) -> Any:
        return {"type": "struct", "fields": [{"name": "x", "type": type} for type in ("string", "long")]}


@pytest.mark.parametrize("give", [arrow_schema, Json, lambda schema: FileSource(".", timestamp="ts", schema=schema)])
@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ("ts timestamp, k string, k string", "k"),
        ("ts timestamp, s struct<x:int,x:int>", "s.x"),
        (pa.schema([("ts", STAMP), ("k", pa.string()), ("k", pa.string())]), "k"),
        (Struct(), "x"),
    ],
)
def test_a_schema_that_names_a_column_twice_is_refused(give: Callable[[Any], object], schema: Any, name: str) -> None:
    assert problem(lambda: give(schema)).startswith(f"schema has {name!r} twice; ")


def test_a_source_of_a_user_that_names_a_column_twice_is_refused() -> None:
    for schema, name in ((SCHEMA.append(SCHEMA[1]), "key"), (SCHEMA.append(pa.field("s", TWICE)), "s.x")):
        plan = core.plan_of(Task(), schema)
        assert (
            problem(partial(core.check, plan))
            == f"task=Task: the source has {name!r} twice; give each column, and each field of a struct, a name of its own."
        )
    messages = [Message(1, {"key": "a", "value": 1})]
    assert run_local(Task(), messages).state == {"a": 1}


def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.append_column("more", rows.column("value")).rename_columns([*rows.schema.names, "value"])


def test_a_transform_that_names_a_column_twice_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", table(0, 2))
    twice = source(tmp_path, transform=doubled)
    assert problem(lambda: twice.schema) == (
        f"transform of {twice!r} returned 'value' twice{at_definition(doubled)} and not each column once, for a batch without "
        "rows, which it is given at the start to learn its columns."
    )


def test_of_the_first_parquet_file_columns_that_stand_twice_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = table(0, 2)
    pair = pa.StructArray.from_arrays([rows["value"].combine_chunks()] * 2, names=["x", "x"])
    twice = pa.table([*rows.columns, rows["key"], rows["key"], pair], names=[*SCHEMA.names, "more", "more", "pair"])
    write(tmp_path, "a.parquet", twice)
    write(tmp_path, "b.parquet", table(2, 2).append_column("more", [["x", "y"]]))
    with caplog.at_level(logging.WARNING):
        chunks = read_all(tmp_path, schema=None)
    assert chunks[0].rows.schema == SCHEMA
    assert values(chunks) == [0, 1, 2, 3]
    # A worker's copy of this process says it, too.
    assert {record.getMessage() for record in caplog.records} == {
        f"file='a.parquet' of FileSource({str(tmp_path)!r}) has 'more' and 'pair.x' twice: columns that hold them are not read."
    }


@pytest.mark.parametrize("name", ["ts", "key"])
def test_a_timestamp_or_channel_that_stands_twice_in_the_first_parquet_file_is_refused(
    tmp_path: Path, name: str
) -> None:
    rows = table(0, 1)
    write(tmp_path, "a.parquet", pa.table([*rows.columns, rows[name]], names=[*SCHEMA.names, name]))
    made = source(tmp_path, schema=None, channel="key")
    assert problem(lambda: made.schema) == (
        f"file='a.parquet' of {made!r} has {name!r} twice; give it once, or choose another column by schema=."
    )


def encoded(rows: pa.RecordBatch) -> pa.RecordBatch:
    ends = pc.run_end_encode(rows.column("key"))
    return rows.set_column(1, "key", ends).append_column("s", pa.StructArray.from_arrays([ends], names=["x"]))


def test_run_end_encoded_columns_of_a_transform_become_plain_at_every_level(tmp_path: Path) -> None:
    write(tmp_path, "a.parquet", table(0, 5))
    (chunk,) = read_all(tmp_path, transform=encoded)
    assert chunk.rows.schema == SCHEMA.append(pa.field("s", pa.struct({"x": pa.string()})))
    picked = chunk.rows.take(pa.array([4, 0]))
    assert picked.column("key").to_pylist() == ["k1", "k0"]
    assert picked.column("s").to_pylist() == [{"x": "k1"}, {"x": "k0"}]


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_a_file_that_has_a_column_twice_is_one_bad_row_that_names_it(tmp_path: Path, name: str) -> None:
    rows = table(0, 3)
    write(tmp_path, name, pa.table([*rows.columns, rows["key"]], names=[*SCHEMA.names, "key"]))
    assert [reason for _, reason, _ in bad(read_all(tmp_path))] == ["unreadable file: column key stands twice in it"]


def test_folders_that_say_a_column_twice_make_each_row_bad(tmp_path: Path) -> None:
    write(tmp_path, "x=1/x=2/key=a/key=b/0.csv", table(0, 2))
    write(tmp_path, "key=a/other=b/1.csv", table(0, 1))
    chunks = read_all(tmp_path)
    assert [reason for _, reason, _ in bad(chunks)] == ["column key stands twice in its folders' names"] * 2
    assert values(chunks, "key") == ["a"]
