"""Several tasks on one source: plain sums by other keys, given one source object or one each; passes interleaved, medians.

    python -m benchmarks.sharing [--source files topic] [--tasks N ...] [--own] [--keys N] [--rows N] [--repetitions N]
        [--json FILE]

`shared` tasks are one flow, which is read once. `own` are as many flows, which is what sharing is measured against. A row has
eight keys. A pass reads the whole source, from the application's start to its end, with `drain`; `batch` is the median of a
flow's micro-batches but for the first. `to one` says how many times as long as one task it takes.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import monoids
from benchmarks.contenders import queries_of
from benchmarks.measure import is_timed, measured, write_json
from benchmarks.streams import ROWS_PER_FILE
from benchmarks.throughput import session
from examples.broker import Broker
from persistent_state import Application, FileSource, KafkaSource, NonWindowState, PersistentTask
from persistent_state.kafka import Json
from persistent_state.sources.base import TimeReplayableSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = [f"k{i}" for i in range(8)]
SCHEMA = pa.schema([("ts", pa.int64()), *((key, pa.int64()) for key in KEYS), ("v", pa.int64())])
START = 1_700_000_000_000_000
PER_BATCH = ROWS_PER_FILE
TOPIC = "rows"
PARTITIONS = 4


class Sum(PersistentTask):
    value = "v"

    def __init__(self, number: int) -> None:
        self.name = f"Sum{number}"
        self.key = KEYS[number]

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


@dataclass(frozen=True)
class Found:
    """Seconds of a whole pass and of a flow's micro-batch, and processor seconds: medians."""

    whole: float
    batch: float
    cpu: float


def tables(keys: int, rows: int) -> Iterator[pa.Table]:
    chance = np.random.default_rng(keys)
    for first in range(0, rows, PER_BATCH):
        count = min(PER_BATCH, rows - first)
        columns = [START + first + np.arange(count), *(chance.integers(0, keys, count) for _ in KEYS)]
        yield pa.table([*columns, chance.integers(0, 100, count)], schema=SCHEMA)


def write_files(folder: Path, keys: int, rows: int) -> None:
    folder.mkdir()
    for number, table in enumerate(tables(keys, rows)):
        # A micro-batch has two files, so that each part has one.
        pq.write_table(table.slice(0, len(table) // 2), folder / f"{number:04d}-0.parquet")
        pq.write_table(table.slice(len(table) // 2), folder / f"{number:04d}-1.parquet")


def fill(address: str, keys: int, rows: int) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "compression.type": "lz4"})
    names = ", ".join(f'"{name}": %d' for name in SCHEMA.names)
    text, row = "{" + names + "}", 0
    for table in tables(keys, rows):
        for values in zip(*(column.to_pylist() for column in table.columns), strict=True):
            while True:
                try:
                    producer.produce(TOPIC, text % values, partition=row % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.05)
            row += 1
        producer.poll(0)
        print(f"\rfilling the topic: {row:,} of {rows:,} records", end="", flush=True)
    producer.flush()
    print("\r" + " " * 80 + "\r", end="")


def one_pass(spark: SparkSession, scratch: Path, tasks: int, sources: Sequence[TimeReplayableSource]) -> Found:
    """Read everything, from nothing; the first source is for all tasks if there is one only."""
    shutil.rmtree(scratch, ignore_errors=True)
    app = Application("sharing", str(scratch / "store"), checkpoint_interval="1 second")
    for number in range(tasks):
        app.add(Sum(number), sources[number % len(sources)])
    with measured() as taken:
        run = app.start(spark)
        queries = queries_of(run)
        for query in queries:
            query.processAllAvailable()
        batches = [
            told["batchDuration"] / 1e3
            for query in queries
            for told in [told for told in query.recentProgress if told["numInputRows"]][1:]
        ]
        run.stop()
    return Found(taken.wall, statistics.median(batches), taken.cpu)


def compare(
    spark: SparkSession, make: Callable[[], TimeReplayableSource], counts: Sequence[int], own: bool, repetitions: int
) -> dict[str, Found]:
    """The medians of each number of tasks, by name."""
    contenders = {f"{count} shared": (count, 1) for count in counts}
    contenders |= {f"{count} own": (count, count) for count in counts if own and count > 1}
    passes: dict[str, list[Found]] = {name: [] for name in contenders}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        for repetition in range(repetitions + 1):
            for name, (tasks, objects) in contenders.items():
                print(f"\rpass {repetition} of {repetitions}, {name:<12}", end="", flush=True)
                found = one_pass(spark, Path(scratch) / "run", tasks, [make() for _ in range(objects)])
                if is_timed(repetition, repetitions):
                    passes[name].append(found)
    print("\r" + " " * 60 + "\r", end="")
    return {
        name: Found(*(statistics.median(column) for column in zip(*map(astuple, some), strict=True)))
        for name, some in passes.items()
    }


def table(title: str, found: Mapping[str, Found]) -> str:
    one = next(iter(found.values()))
    lines = [title, f"{'tasks':<12}{'whole s':>9}{'to one':>8}{'batch s':>9}{'to one':>8}{'CPU s':>8}{'to one':>8}"]
    for name, f in found.items():
        line = f"{name:<12}{f.whole:>9.2f}{f.whole / one.whole:>8.2f}{f.batch:>9.2f}{f.batch / one.batch:>8.2f}"
        lines.append(f"{line}{f.cpu:>8.1f}{f.cpu / one.cpu:>8.2f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=["files", "topic"], nargs="+", default=["files", "topic"])
    parser.add_argument("--tasks", type=int, nargs="+", default=[1, 2, 8], help="from 1 on, at the most 8")
    parser.add_argument("--own", action="store_true", help="also give each task a source of its own")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--memory", default="4g", help="of the JVM")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.rows < 2 * PER_BATCH or not set(arguments.tasks) <= {*range(1, len(KEYS) + 1)}:
        parser.error(f"give at least {2 * PER_BATCH:,} rows, and 1 to {len(KEYS)} tasks.")
    spark = session(arguments.memory)
    results = {}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, ExitStack() as stack:
        for kind in arguments.source:
            if kind == "files":
                rows = Path(folder) / "rows"
                write_files(rows, arguments.keys, arguments.rows)
                make: Callable[[], TimeReplayableSource] = partial(
                    FileSource, rows, timestamp="ts", timestamp_unit="us", max_files_per_batch=2
                )
            else:
                broker = stack.enter_context(Broker(Path(folder) / "broker"))
                broker.make(TOPIC, PARTITIONS)
                fill(broker.address, arguments.keys, arguments.rows)
                make = partial(
                    KafkaSource,
                    TOPIC,
                    broker.address,
                    value=Json(SCHEMA),
                    timestamp="ts",
                    timestamp_unit="us",
                    max_offsets_per_batch=PER_BATCH,
                )
            found = compare(spark, make, arguments.tasks, arguments.own, arguments.repetitions)
            what = f"{kind}, {arguments.keys:,} keys, {arguments.rows:,} rows"
            print(table(what, found), end="\n\n", flush=True)
            results[kind] = {name: asdict(one) for name, one in found.items()}
    spark.stop()
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
