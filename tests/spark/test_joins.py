"""Joins on a real Spark, over a restart with other shards: each row of their tables is that of a loop over all rows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from monoids import Count
from persistent_state import (
    Application,
    AsOfJoin,
    Emitted,
    FileSource,
    Input,
    IntervalJoin,
    Local,
    NonWindowState,
    ParquetSink,
    PersistentTask,
    ValuesAtClock,
    read_state,
)
from persistent_state.edges.joins.interval import Bounds
from tests.edges.test_joins import QUOTE, TRADE, Row, as_of_oracle, interval_oracle, value

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000
TIME = pa.timestamp("us", "UTC")


class Notes(PersistentTask):
    """How many joined rows have a note of the quote, by key."""

    key = "k"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Count())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.is_valid(batch["quotes_note"]).cast(pa.int64())


def make_rows(count: int, shift: int, first: int) -> list[Row]:
    """Rows as they come, up to five seconds out of order."""
    chance = random.Random(shift)
    times = [(shift + number * 60 // count) * SECOND + chance.randrange(5 * SECOND) for number in range(count)]
    return [
        (chance.choice(["a", "b", "c", None]), time, chance.random() < 0.5, first + number)
        for number, time in enumerate(times)
    ]


def grow(folder: Path, number: int, rows: list[Row]) -> None:
    for input, schema in (("trades", TRADE), ("quotes", QUOTE)):
        (folder / input).mkdir(exist_ok=True)
        own = [value(row)[input] for row in rows if row[2] == (input == "quotes")]
        table = pa.Table.from_pylist(own, schema)
        pq.write_table(table.set_column(1, "ts", table["ts"].cast(TIME)), folder / input / f"{number:04d}.parquet")


def application(folder: Path, shards: int) -> Application:
    app = Application(
        "market", str(folder / "store"), checkpoint_interval="10 seconds", allowed_delay="6 seconds", shards=shards
    )
    inputs: dict[str, Any] = {name: FileSource(str(folder / name), timestamp="ts") for name in ("trades", "quotes")}
    inputs["quotes"] = Input(inputs["quotes"], key="symbol")
    as_of = AsOfJoin("trades", "quotes", key="k", tolerance="8 seconds", name="AsOf")
    near = IntervalJoin("trades", "quotes", "4 seconds", "7 seconds", key="k", how="left", name="Near")
    app.add(as_of, inputs, [ParquetSink(folder / "as_of"), ValuesAtClock(ParquetSink(folder / "newest"))])
    app.add(near, inputs, ParquetSink(folder / "near"))
    return app.add(Notes(), Emitted("Near"))


def rows_in(folder: Path) -> list[Any]:
    """The rows of a table as an oracle has them."""
    table = ParquetSink(folder).dataset().to_table().drop_columns(["clock"])
    for name in ("ts", "quotes_ts", "timestamp"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.int64()))
    return [(row.pop("timestamp"), row["k"], row) for row in table.to_pylist()]


def in_any_order(rows: list[Any]) -> list[str]:
    return sorted(map(repr, rows))


def test_joins_are_those_of_a_loop_over_all_rows(spark: SparkSession, tmp_path: Path) -> None:
    check_joins(spark, tmp_path)


def check_joins(engine: SparkSession | Local, tmp_path: Path) -> None:
    """Join on an engine, over a restart with other shards, and compare with a loop over all rows."""
    first, second = make_rows(300, 0, 0), make_rows(300, 60, 300)
    grow(tmp_path, 0, first)
    application(tmp_path, 2).run(engine)
    grow(tmp_path, 1, second)
    application(tmp_path, 3).run(engine, drain=True)
    rows = first + second
    clock = 130 * SECOND
    near = interval_oracle(rows, Bounds(4 * SECOND, 7 * SECOND, True), clock)
    assert in_any_order(rows_in(tmp_path / "as_of")) == in_any_order(as_of_oracle(rows, 8 * SECOND))
    assert in_any_order(rows_in(tmp_path / "near")) == in_any_order(near)
    notes: dict[Any, int] = {}
    for _, key, row in near:
        notes[key] = notes.get(key, 0) + (row["quotes_note"] is not None)
    store = str(tmp_path / "store")
    assert {row["k"]: row["value"] for row in read_state(store, "market", "Notes").to_pylist()} == notes
    quotes = sorted((row for row in rows if row[2]), key=lambda row: (row[1], row[3]))
    newest = {row[0]: row[3] / 4 for row in quotes if row[1] >= clock - 8 * SECOND}
    state = read_state(store, "market", "AsOf", presented=True)
    assert {row["k"]: row["value"]["bid"] for row in state.to_pylist()} == newest
