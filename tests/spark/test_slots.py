"""Spark's tasks share the shards: what a micro-batch and a step write follows the cores, and not the number of shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from monoids import Sum
from persistent_state import Application, Changes, FileSource, NonWindowState, OrderedTask, PersistentTask, read_state
from persistent_state.store.verify import verify
from tests.spark.files import write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persistent_state import Context, Message

SCHEMA = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
SECOND = 1_000_000
KEYS = Random(1).sample(range(1 << 62), 13_000)
"""Too many, and too different, for a run in an entry, and too few for one with a file of its own."""
FILES = 3
SLOTS = 2
"""The session of the tests has two cores."""


class Totals(PersistentTask):
    key = "key"
    value = "n"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


class Again(PersistentTask):
    """The totals again, as they change."""

    key = "key"
    value = "value"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


class Newest(OrderedTask):
    """The newest number of each key."""

    key = "key"
    state = pa.int64()

    def process(self, state: Any, message: Message, context: Context) -> Any:
        return message["n"]


def application(folder: Path, shards: int) -> Application:
    source = FileSource(folder / "in", timestamp="ts", max_files_per_batch=1)
    app = Application("slots", str(folder / "store"), checkpoint_interval="10 seconds", shards=shards)
    return app.add(Totals(), source).add(Newest(), source).add(Again(), Changes("Totals"))


def number(key: int, file: int) -> int:
    """The number that a file has for a key."""
    return (key >> 12) + file


def grow(folder: Path, first: int) -> None:
    """Write further files, each of all keys."""
    for file in range(first, first + FILES):
        at = (1_700_000_000 + 20 * file) * SECOND
        write(folder / "in", file, [{"key": key, "n": number(key, file), "ts": at} for key in KEYS], SCHEMA)


def written(folder: Path, epoch: int) -> Mapping[str, Counter[str]]:
    """By the name of the first task that it is for: how many files of runs each micro-batch or step of a start has written."""
    counts: dict[str, Counter[str]] = {}
    for path in (folder / "store/slots/runs").glob(f"*/{epoch:06d}-*"):
        counts.setdefault(path.parent.name, Counter())[path.name.split("-")[1]] += 1
    return counts


def check(folder: Path, files: int) -> None:
    def state(task: PersistentTask | OrderedTask) -> dict[Any, Any]:
        return {row["key"]: row["value"] for row in read_state(str(folder / "store"), "slots", task).to_pylist()}

    assert state(Totals()) == state(Again()) == {key: sum(number(key, file) for file in range(files)) for key in KEYS}
    assert {key: kept["state"] for key, kept in state(Newest()).items()} == {
        key: number(key, files - 1) for key in KEYS
    }
    assert verify(str(folder / "store")).problems == ()


def test_a_micro_batch_and_a_step_write_a_file_for_each_slot_whatever_the_number_of_shards(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.sparkContext.defaultParallelism == SLOTS
    turns = 0
    for start, shards in enumerate((32, 21, 32)):
        grow(tmp_path, FILES * start)
        application(tmp_path, shards).run(spark, drain=True)
        check(tmp_path, FILES * (start + 1))
        files = written(tmp_path, start + 1)
        assert {*files} == {"Totals", "Again", "Newest"}
        for of_turns in files.values():
            assert {*of_turns.values()} == {SLOTS}
        turns += sum(map(len, files.values()))
        # A turn makes an entry, too. Those of starts and their ends come on top.
        assert turns < len([*(tmp_path / "store/slots/log").iterdir()]) <= 2 * turns
