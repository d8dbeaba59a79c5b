"""What an older version of Spark costs: the same runs under each version, each in an environment of its own, in turns.

    python -m benchmarks.versions [--rows N] [--keys N] [--batches N] [--repetitions N]
        [--only VERSION ...] [--json FILE]

`tests/versions.py` makes the environments, in which only PySpark differs. A process starts Spark and runs an application over
small files, one in a micro-batch, twice, then one over large files, and one over small files once more when one is new. The
figures are medians. Processor seconds are those of a whole run, divided by its micro-batches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import cpu_seconds, write_json
from benchmarks.throughput import session
from monoids import Sum
from persistent_state import Application, DataFrameSource, FileSource, NonWindowState, PersistentTask
from tests import versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persistent_state.run.progress import Progress

SMALL, SPAN = 1_000, 10_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("key", pa.int64()), ("amount", pa.int64())])
COLUMNS = (
    "s to 1st commit",
    "s of a small batch",
    "processor s",
    "s of a run for one file",
    "s of a large batch",
    "processor s of it",
    "s of one of a DataFrame",
)


class Totals(PersistentTask):
    """Sums by key."""

    key, value = "key", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def write(folder: Path, file: int, rows: int, keys: int) -> None:
    """Write a file of ten seconds of event time."""
    folder.mkdir(exist_ok=True)
    chance = np.random.default_rng(file)
    stamps = pa.array(file * SPAN + np.sort(chance.integers(0, SPAN, rows))).cast(SCHEMA.field("ts").type)
    columns = [stamps, pa.array(chance.integers(0, keys, rows)), pa.array(chance.integers(0, 9, rows))]
    pq.write_table(pa.table(columns, schema=SCHEMA), folder / f"_{file}")
    (folder / f"_{file}").rename(folder / f"{file:05d}.parquet")


def times_of(spark: SparkSession, folder: Path, store: str, *, by_spark: bool = False) -> list[float]:
    """Run an application to the end of a folder, a file a micro-batch. Return the seconds to each commit and to the end."""
    told: list[Progress] = []
    seconds: list[float] = []

    def tell(progress: Progress) -> None:
        told.append(progress)
        seconds.append(time.monotonic() - began)

    app = Application("versions", store, checkpoint_interval="10 seconds", shards=2)
    if by_spark:
        rows = spark.readStream.schema("ts timestamp, key bigint, amount bigint").option("maxFilesPerTrigger", 1)
        app.add(Totals(), DataFrameSource(rows.parquet(str(folder)), "ts"))
    else:
        app.add(Totals(), FileSource(str(folder), timestamp="ts", schema=SCHEMA, max_files_per_batch=1))
    began = time.monotonic()
    app.run(spark, on_progress=tell)
    return [*seconds, time.monotonic() - began]


def between(seconds: Sequence[float]) -> float:
    """Return the median time from one commit to the next, without the last time, which is that of the end."""
    return statistics.median(after - before for before, after in pairwise(seconds[:-1]))


def measure(place: Path, rows: int, keys: int, batches: int) -> dict[str, float]:
    """Return the figures of this process's version."""
    spark = session("2g")
    for file in range(batches):
        write(place / "small", file, SMALL, keys)
        write(place / "large", file, rows, keys)
    first = times_of(spark, place / "small", str(place / "first store"))
    before = cpu_seconds()
    small = times_of(spark, place / "small", str(place / "store"))
    middle = cpu_seconds()
    large = times_of(spark, place / "large", str(place / "store of large"))
    after = cpu_seconds()
    frame = times_of(spark, place / "large", str(place / "store of frame"), by_spark=True)
    write(place / "small", batches, SMALL, keys)
    again = times_of(spark, place / "small", str(place / "store"))
    spark.stop()
    of_small = between(small), (middle - before) / batches
    of_large = between(large), (after - middle) / batches
    return dict(zip(COLUMNS, (first[0], *of_small, again[-1], *of_large, between(frame)), strict=True))


def main() -> None:
    """Measure each version in turn, or in a process of its own the one that it has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of a large file")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", nargs="+", help="these versions of PySpark, and not all that setup.cfg allows")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.here:
        (told.here / "figures").write_text(json.dumps(measure(told.here, told.rows, told.keys, told.batches)))
        return
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    pythons = {version: versions.python_with(version) for version in told.only or versions.allowed_versions()}
    for _ in range(told.repetitions):
        for version, python in pythons.items():
            with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
                sizes = [f"--{name}={getattr(told, name)}" for name in ("rows", "keys", "batches")]
                command = [str(python), "-m", "benchmarks.versions", *sizes, "--here", scratch]
                env = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
                subprocess.run(command, env=env, check=True, stderr=subprocess.DEVNULL)
                found[version].append(json.loads(Path(scratch, "figures").read_text()))
            print(version, found[version][-1], file=sys.stderr, flush=True)
    medians = {v: {c: statistics.median(each[c] for each in some) for c in COLUMNS} for v, some in found.items()}
    print("| Spark |", " | ".join(COLUMNS), "|")
    print("| --- |" + " --- |" * len(COLUMNS))
    for version, figures in medians.items():
        print(f"| {version} |", " | ".join(f"{figures[column]:.2f}" for column in COLUMNS), "|")
    write_json(told.json, medians)


if __name__ == "__main__":
    main()
