"""From a file's arrival to its committed value in a sink, with small micro-batches: this library beside Spark's aggregation.

    python -m benchmarks.latency [--files N] [--rows N] [--every SECONDS] [--json FILE]

Files arrive one by one at a steady pace. A value is there when the sink has it: each message holds the number of its file, the
state is the greatest of them, and the sink looks at it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import monoids
from benchmarks.measure import is_timed, write_json
from benchmarks.streams import SCHEMA, START
from benchmarks.throughput import session
from persistent_state import Application, FileSource, NonWindowState, PersistentTask, RunningValues

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEYS = 1_000


class Newest(PersistentTask):
    key = "k"
    value = "v"

    def persistent_state(self) -> NonWindowState[int | None]:
        return NonWindowState(monoids.Max())


@dataclass
class Arrivals:
    """Files that come to a folder, when each came, and when its value was seen."""

    folder: Path
    files: int
    rows: int
    every: float
    came: list[float] = field(default_factory=list)
    seen: dict[int, float] = field(default_factory=dict)

    def write(self, number: int) -> None:
        chance = np.random.default_rng(number)
        ts = START + (number * self.rows + np.arange(self.rows)) * 1_000
        table = pa.table([ts, chance.integers(0, KEYS, self.rows), np.full(self.rows, number)], schema=SCHEMA)
        pq.write_table(table, self.folder / "_unfinished")
        (self.folder / "_unfinished").rename(self.folder / f"{number:06d}.parquet")

    def come(self) -> None:
        begin = time.perf_counter()
        for number in range(self.files):
            time.sleep(max(0.0, begin + number * self.every - time.perf_counter()))
            self.write(number)
            self.came.append(time.perf_counter())

    def look(self, value: str) -> Callable[[DataFrame, int], None]:
        def sink(values: DataFrame, batch: int) -> None:
            newest = max((row[value] for row in values.select(value).collect()), default=-1)
            now = time.perf_counter()
            for number in range(newest + 1):
                self.seen.setdefault(number, now)

        return sink

    def latencies(self) -> list[float]:
        """Seconds for each file but the first ones, which wait for the query to start."""
        return [self.seen[number] - self.came[number] for number in range(self.files // 5, self.files)]


def ours(spark: SparkSession, arrivals: Arrivals, scratch: Path) -> Callable[[], None]:
    app = Application("latency", str(scratch / "store"), checkpoint_interval="10 seconds")
    source = FileSource(arrivals.folder, timestamp="ts", schema=SCHEMA)
    app.add(Newest(), source, RunningValues(arrivals.look("value")))
    return app.start(spark).stop


def native(spark: SparkSession, arrivals: Arrivals, scratch: Path) -> Callable[[], None]:
    from pyspark.sql import functions as F

    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "2")
    rows = own.readStream.schema("ts timestamp, k long, v long").parquet(str(arrivals.folder))
    made = rows.groupBy("k").agg(F.max("v").alias("value")).writeStream.outputMode("update")
    return (
        made.option("checkpointLocation", str(scratch / "checkpoint")).foreachBatch(arrivals.look("value")).start().stop
    )


CONTENDERS: dict[str, Callable[[SparkSession, Arrivals, Path], Callable[[], None]]] = {"files": ours, "native": native}


def measure(name: str, spark: SparkSession, arguments: Any) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="latency-") as place:
        folder = Path(place) / "in"
        folder.mkdir()
        arrivals = Arrivals(folder, arguments.files, arguments.rows, arguments.every)
        stop = CONTENDERS[name](spark, arrivals, Path(place))
        coming = threading.Thread(target=arrivals.come)
        coming.start()
        coming.join()
        deadline = time.monotonic() + 60
        while len(arrivals.seen) < arguments.files:
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} has shown {len(arrivals.seen)} of {arguments.files} files after a minute")
            time.sleep(0.01)
        stop()
        shutil.rmtree(folder)
        return arrivals.latencies()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--every", type=float, default=1.0, help="seconds from one file to the next")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    spark = session("2g")
    taken: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for repetition in range(arguments.repetitions + 1):
        for name in CONTENDERS:
            print(f"\rpass {repetition} of {arguments.repetitions}, {name:<10}", end="", flush=True)
            found = measure(name, spark, arguments)
            if is_timed(repetition, arguments.repetitions):
                taken[name] += found
    results = {}
    print(f"\r{'':<12}{'p50 s':>8}{'p95 s':>8}{'p99 s':>8}{' ' * 20}")
    for name, values in taken.items():
        cuts = statistics.quantiles(values, n=100)
        results[name] = {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}
        print(f"{name:<12}{cuts[49]:>8.2f}{cuts[94]:>8.2f}{cuts[98]:>8.2f}", flush=True)
    write_json(arguments.json, results)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
