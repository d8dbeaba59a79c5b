"""A task that two sources and another task feed, on a real Spark: its messages are in one order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from monoids import List, Sum
from persistent_state import Application, Changes, FileSource, NonWindowState, PersistentTask, read_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECOND = 1_000_000
SCHEMA = pa.schema([("shop", pa.int64()), ("amount", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


class Story(PersistentTask):
    """All that came of a shop, in order."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(List(pa.string()))

    def process_message(self, state: Any, message: Any) -> None:
        if message.input == "sums":
            before, after = (message[side] and message[side]["value"] for side in ("before", "after"))
            state.update(message.timestamp, [f"{before} -> {after}"])
        else:
            state.update(message.timestamp, [f"{message.input} {message['amount']}"])


class Amounts(PersistentTask):
    key, value = "shop", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def grow(folder: Path, number: int, rows: list[tuple[int, int, int]]) -> None:
    folder.mkdir(exist_ok=True)
    shops, amounts, seconds = zip(*rows, strict=True)
    times = pa.array([second * SECOND for second in seconds]).cast(pa.timestamp("us", "UTC"))
    table = pa.table([pa.array(shops), pa.array(amounts), times], schema=SCHEMA)
    pq.write_table(table, folder / f"{number:04d}.parquet")


def test_several_inputs_and_a_task_feed_one_task(spark: SparkSession, tmp_path: Path) -> None:
    first, second = [(i % 3, i, i) for i in range(100)], [(i % 3, 1000 + i, i) for i in range(0, 100, 7)]
    grow(tmp_path / "first", 0, first[:50])
    grow(tmp_path / "second", 0, second)

    def app() -> Application:
        app = Application("graph", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=2)
        one, two = (FileSource(str(tmp_path / name), timestamp="ts", schema=SCHEMA) for name in ("first", "second"))
        app.add(Amounts(), FileSource(str(tmp_path / "first"), timestamp="ts", schema=SCHEMA))
        app.add(Story(), {"two": two, "one": one, "sums": Changes("Amounts", every="20 seconds")})
        return app

    app().run(spark)
    grow(tmp_path / "first", 1, first[50:])
    app().run(spark, drain=True)
    told = [(float(at), 0, f"two {amount}", shop) for shop, amount, at in second]
    told += [(float(at), 1, f"one {amount}", shop) for shop, amount, at in first]
    wanted: dict[tuple[int], list[str]] = {}
    sums: dict[int, int] = {}
    for clock in range(20, 121, 20):
        before = dict(sums)
        for shop, amount, at in first:
            if clock - 20 <= at < clock:
                sums[shop] = sums.get(shop, 0) + amount
        for shop, now in sums.items():
            if before.get(shop) != now:
                told.append((clock - 0.000001, 2, f"{before.get(shop)} -> {now}", shop))
    for _, _, said, shop in sorted(told):
        wanted.setdefault((shop,), []).append(said)
    found = read_state(str(tmp_path / "store"), "graph", "Story").to_pylist()
    assert {(row["shop"],): row["value"] for row in found} == wanted
