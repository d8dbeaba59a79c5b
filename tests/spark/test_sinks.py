"""Functions of running values on a real Spark: whatever a user does with what they are handed, the state is the same."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monoids import Max, Sum
from persistent_state import (
    Application,
    DataFrameSource,
    FileSource,
    NonWindowState,
    PersistentTask,
    RunningValues,
    read_state,
)
from persistent_state.drive import backoff
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests.spark.files import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from persistent_state.run.progress import Progress

SECOND = 1_000_000
START = 1_700_000_010 * SECOND
SCHEMA = pa.schema([("key", pa.string()), ("amount", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
# By file: of a few keys, on time, and within the delay of the file before.
FILES: list[list[dict[str, Any]]] = [
    [
        {
            "key": "abcdefg"[(i * (file + 1)) % (7 - file)],
            "amount": 10**file + i,
            "ts": START + (20 * file + i) * SECOND,
        }
        for i in range(24)
    ]
    for file in range(3)
]


class Total(PersistentTask):
    """The sum of each key's amounts."""

    key = "key"
    value = "amount"

    def __init__(self, name: str) -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def totals(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for row in rows:
        found[row["key"]] += row["amount"]
    return dict(found)


def as_totals(rows: Sequence[Any]) -> dict[str, int]:
    found = {row["key"]: row["value"] for row in rows}
    assert len(found) == len(rows), "a key is handed out once"
    return found


@dataclass
class Sinks:
    """Sinks by name, what each has seen by (epoch, batch), and what the commits before told."""

    folder: Path
    told: dict[str, list[Progress]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[str, dict[tuple[int, int], Any]] = field(default_factory=lambda: defaultdict(dict))
    raised: threading.Event = field(default_factory=threading.Event)

    def tell(self, progress: Progress) -> None:
        self.told[progress.task].append(progress)

    def of(self, name: str) -> Callable[[DataFrame, int], None]:
        def sink(values: DataFrame, batch: int) -> None:
            at = self.told[name][-1].epoch, batch
            self.seen[name][at] = getattr(self, name)(values, at)

        return sink

    def asks_before_it_writes(self, values: DataFrame, at: tuple[int, int]) -> dict[str, int]:
        return {} if values.isEmpty() else self._written(values, "asked", at)

    def writes_twice(self, values: DataFrame, at: tuple[int, int]) -> dict[str, int]:
        once, twice = (self._written(values, name, at) for name in ("once", "twice"))
        assert once == twice
        return once

    def reads_three_rows(self, values: DataFrame, at: tuple[int, int]) -> dict[str, int]:
        return as_totals(values.take(3))

    def reads_nothing(self, values: DataFrame, at: tuple[int, int]) -> None:
        return None

    def raises_half_way(self, values: DataFrame, at: tuple[int, int]) -> dict[str, int]:
        if at[1] == 1 and not self.raised.is_set():
            self.raised.set()
            values.take(1)
            raise RuntimeError("the sink is down")
        return as_totals(values.collect())

    def _written(self, values: DataFrame, name: str, at: tuple[int, int]) -> dict[str, int]:
        path = self.folder / f"{name}-{at[0]}-{at[1]}"
        values.write.parquet(str(path))
        return as_totals(pq.read_table(path).to_pylist())

    def expected(self, name: str, at: tuple[int, int], first_epoch: int, restored: int) -> dict[str, int]:
        """The running values of the keys that a micro-batch touched, by the messages that came so far."""
        epoch, batch = at
        if epoch == first_epoch:
            before: list[dict[str, Any]] = []
            fresh = FILES
        else:
            read = sum(progress.epoch == first_epoch for progress in self.told[name])
            before = [row for rows in FILES[:read] for row in rows if row["ts"] < restored]
            fresh = [[row for row in rows if row["ts"] >= restored] for rows in FILES]
            if name in OF_FILES:
                # Their replay begins with the first file that has a message at or above the clock.
                fresh = fresh[next((i for i, rows in enumerate(fresh[:read]) if rows), read) :]
        so_far = totals([*before, *(row for rows in fresh[: batch + 1] for row in rows)])
        return {row["key"]: so_far[row["key"]] for row in fresh[batch]}


OF_FILES = ["asks_before_it_writes", "raises_half_way"]
OF_FRAMES = ["writes_twice", "reads_three_rows", "reads_nothing"]
NAMES = [*OF_FILES, *OF_FRAMES]


def test_whatever_a_sink_does_with_the_running_values_the_state_is_the_fold_of_the_messages(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from persistent_state.engine.spark.versions import spark_types

    monkeypatch.setattr(backoff, "LONGEST_WAIT", 0.01)
    for number, rows in enumerate(FILES):
        write(tmp_path / "in", number, rows, SCHEMA)
    sinks = Sinks(tmp_path)
    app = Application(
        "sinks", str(tmp_path / "store"), checkpoint_interval="5 seconds", allowed_delay="10 seconds", shards=1
    )
    for name in OF_FILES:
        source = FileSource(tmp_path / "in", timestamp="ts", schema=SCHEMA, max_files_per_batch=1)
        app.add(Total(name), source, RunningValues(sinks.of(name)))
    for name in OF_FRAMES:
        frame = spark.readStream.schema(spark_types(SCHEMA)).option("maxFilesPerTrigger", 1)
        source = DataFrameSource(frame.parquet(str(tmp_path / "in")), "ts")
        app.add(Total(name), source, RunningValues(sinks.of(name)))
    running = app.run(spark, drain=True, on_progress=sinks.tell)

    assert sinks.raised.is_set()
    assert running.restarts == 1
    log = Log(open_files(app.store), app.name)
    entries = [log.read(number) for number in log.numbers()]
    last = entries[-1].epoch
    restored = min(entry.clock for entry in entries if entry.epoch == last)
    every = [row for rows in FILES for row in rows]
    for name in NAMES:
        assert as_totals(read_state(app.store, app.name, Total(name)).to_pylist()) == totals(every)
        for at, values in sinks.seen[name].items():
            wanted = sinks.expected(name, at, last - 1, restored)
            if name == "reads_three_rows":
                assert values.items() <= wanted.items()
                assert len(values) == min(3, len(wanted))
            elif values is not None:
                assert values == wanted, f"{name} at {at}"
        # Every micro-batch of the start that came to its end was handed out.
        assert [batch for epoch, batch in sinks.seen[name] if epoch == last] == list(
            range(sum(progress.epoch == last for progress in sinks.told[name]))
        )


class Longest(PersistentTask):
    """The greatest of each key's texts."""

    key = "key"
    value = "text"

    def persistent_state(self) -> NonWindowState[str]:
        return NonWindowState(Max(pa.string()))


def test_values_too_large_for_the_driver_come_from_files(spark: SparkSession, tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.string()), ("text", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
    files = [
        [{"key": f"{i}", "text": f"{file}{i:>20000}", "ts": START + file * SECOND} for i in range(number)]
        for file, number in enumerate([600, 3])
    ]
    for number, rows in enumerate(files):
        write(tmp_path / "in", number, rows, schema)
    seen: list[tuple[dict[str, str], int]] = []

    def sink(values: DataFrame, batch: int) -> None:
        values.limit(1).write.parquet(str(tmp_path / f"out-{batch}"))
        stored = len(list((tmp_path / "store").rglob(f"*-{batch + 1:09d}-*.values.arrow")))
        seen.append(({row["key"]: row["value"] for row in values.collect()}, stored))

    app = Application("large", str(tmp_path / "store"), checkpoint_interval="5 seconds", shards=2)
    source = FileSource(tmp_path / "in", timestamp="ts", schema=schema, max_files_per_batch=1)
    app.add(Longest(), source, RunningValues(sink))
    app.run(spark)
    # Only Spark's scratch does without Hadoop's checksums.
    assert all(list((tmp_path / f"out-{batch}").glob(".*.crc")) for batch in range(2))
    assert seen == [
        ({row["key"]: row["text"] for row in rows}, stored) for rows, stored in zip(files, (2, 0), strict=True)
    ]


def test_a_sink_finds_the_settings_of_the_user(spark: SparkSession, tmp_path: Path) -> None:
    # Small rows, for which the library sets more than for others.
    schema = pa.schema([("key", pa.int64()), ("amount", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    write(tmp_path / "in", 0, [{"key": 1, "amount": 2, "ts": START}], schema)
    mine = spark.newSession()
    mine.conf.set("fs.file.impl", "org.apache.hadoop.fs.LocalFileSystem")
    rows = mine.readStream.schema("key long, amount long, ts timestamp").parquet(str(tmp_path / "in"))
    names = ("fs.file.impl", "fs.file.impl.disable.cache", "spark.sql.execution.arrow.maxBytesPerBatch")
    seen = []

    def sink(values: DataFrame, batch: int) -> None:
        seen.append([values.sparkSession.conf.get(name, None) for name in names])

    app = Application("settings", str(tmp_path / "store"), checkpoint_interval="5 seconds", shards=2)
    app.add(Total("settings"), DataFrameSource(rows, timestamp="ts"), RunningValues(sink))
    app.run(mine)
    assert seen == [["org.apache.hadoop.fs.LocalFileSystem", None, None]]
    assert [mine.conf.get(name, None) for name in names] == seen[0]
