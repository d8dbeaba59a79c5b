"""What each delivery costs: a micro-batch, log entries, and a start over what an earlier one has left above the global clock.

    python -m benchmarks.deliveries [--keys N] [--files N] [--repetitions N] [--json FILE]

Each file holds ten seconds of event time, and messages may be a minute behind, so that a stopped run leaves six files above the
global clock. The first start reads half of the files and stops, the second one reads the rest. Medians; deliveries take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import is_timed, write_json
from benchmarks.streams import ROWS_PER_FILE
from benchmarks.throughput import session
from monoids import Sum
from persistent_state import Application, FileSource, NonWindowState, PersistentTask
from persistent_state.batch.plan import DELIVERIES
from persistent_state.store.files import open_files
from persistent_state.store.log import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persistent_state.run.progress import Progress

ROWS, SPAN = ROWS_PER_FILE // 4, 10_000_000
COLUMNS = ("ms/batch", "entries/batch", "s to 1st commit", "s to the end", "k replayed")


class Totals(PersistentTask):
    key, value = "key", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def write(folder: Path, file: int, keys: int) -> None:
    chance = np.random.default_rng(file)
    stamps = pa.array(file * SPAN + np.sort(chance.integers(0, SPAN, ROWS))).cast(pa.timestamp("us", "UTC"))
    columns = {"ts": stamps, "key": chance.integers(0, keys, ROWS), "amount": chance.integers(0, 9, ROWS)}
    pq.write_table(pa.table(columns), folder / f"_{file:05d}")
    (folder / f"_{file:05d}").rename(folder / f"{file:05d}.parquet")


def measure(spark: SparkSession, delivery: str, place: Path, keys: int, files: int) -> dict[str, float]:
    stream = place / "stream"
    stream.mkdir(parents=True)
    told: list[tuple[float, Progress]] = []

    def run(begin: int, end: int) -> float:
        for file in range(begin, end):
            write(stream, file, keys)
        told.clear()
        app = Application(
            "costs",
            str(place / "store"),
            checkpoint_interval="10 seconds",
            allowed_delay="1 minute",
            shards=2,
            delivery=delivery,
        )
        app.add(Totals(), FileSource(str(stream), timestamp="ts", max_files_per_batch=1))
        started = time.perf_counter()
        app.run(spark, on_progress=lambda progress: told.append((time.perf_counter(), progress)))
        return started

    run(0, files // 2)
    newest = Log(open_files(str(place / "store")), "costs").newest()
    assert newest is not None
    ends = [end for end, _ in told]
    per_batch = statistics.median(after - before for before, after in pairwise(ends[1:]))
    entries = (newest.number - 1) / len(told)
    started = run(files // 2, files)
    first, last = told[0][0] - started, told[-1][0] - started
    replayed = sum(progress.replayed for _, progress in told)
    return dict(zip(COLUMNS, (per_batch * 1e3, entries, first, last, replayed / 1e3), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--files", type=int, default=24)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    spark = session("2g")
    taken: dict[str, list[dict[str, float]]] = defaultdict(list)
    for repetition in range(told.repetitions + 1):
        for delivery in DELIVERIES:
            with tempfile.TemporaryDirectory(prefix="benchmark-") as place:
                found = measure(spark, delivery, Path(place), told.keys, told.files)
            if is_timed(repetition, told.repetitions):
                taken[delivery].append(found)
    medians = {name: {c: statistics.median(one[c] for one in found) for c in COLUMNS} for name, found in taken.items()}
    print(f"{'':<16}" + "".join(f"{column:>17}" for column in COLUMNS))
    for name, found in medians.items():
        print(f"{name:<16}" + "".join(f"{found[column]:>17,.1f}" for column in COLUMNS))
    write_json(told.json, medians)
    spark.stop()


if __name__ == "__main__":
    main()
