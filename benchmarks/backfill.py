"""What bounds cost: the same files as the only input of a task, and as history below a bound beside a live input.

    python -m benchmarks.backfill [--repetitions N] [--json FILE]

It runs without Spark, in one process, on files of Parquet in a local folder: reading, judging, combining and merging.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import monoids
from benchmarks.measure import write_json
from benchmarks.streams import ROWS_PER_FILE
from persistent_state import Application, FileSource, NonWindowState, PersistentTask
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive.local import LocalDriver
from persistent_state.inputs import Inputs, open_source
from persistent_state.protocol import takeover
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources import TimeReplayableSource
from persistent_state.store.files import open_files
from persistent_state.store.log import Log

FILES, ROWS, KEYS, SECOND = 20, ROWS_PER_FILE // 2, 10_000, 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("key", pa.int64()), ("value", pa.int64())])


class Sums(PersistentTask):
    """The sum of values by key."""

    key, value = "key", "value"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


def write(folder: Path) -> None:
    """Write files of a minute each."""
    folder.mkdir()
    chance = np.random.default_rng(1)
    for number in range(FILES):
        stamps = np.sort(chance.integers(number * 60 * SECOND, (number + 1) * 60 * SECOND, ROWS))
        times = pa.array(stamps).cast(SCHEMA.field("ts").type)
        keys, values = chance.integers(0, KEYS, ROWS), chance.integers(0, 100, ROWS)
        pq.write_table(
            pa.table([times, pa.array(keys), pa.array(values)], schema=SCHEMA), folder / f"{number:03d}.parquet"
        )


def columns_of(task: PersistentTask, source: object) -> tuple[FileSource, pa.Schema, None]:
    """Return the source, which is of files, and its columns. Spark computes no updates."""
    assert isinstance(source, FileSource)
    return source, source.schema, None


def seconds(store: str, given: Any, source: TimeReplayableSource) -> float:
    """Return how long it takes to read all files, a file at a time, and to commit each."""
    files = open_files(store)
    app = Application("app", store, checkpoint_interval="10 seconds", max_ahead="100000 days").add(Sums(), given)
    flow = FlowPlan((app._plans(files, 1, columns_of)["Sums"],))
    log, settings = Log(files, "app"), flow.first.settings
    takeover.take_over(log, [flow], interval=settings.interval, shards=1, writer="benchmark", now=0)
    open_source(source, {}, {})
    driver = LocalDriver(
        log, [flow], {flow.id: source}, keeping=Keeping(10), now=lambda: 0, new_id=map(str, itertools.count()).__next__
    )
    begun = time.perf_counter()
    for _ in range(FILES):
        driver.take_turn(flow)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, live, numbers = Path(name) / "archive", Path(name) / "live", itertools.count()
        write(folder)
        live.mkdir()

        def source(path: Path, **options: Any) -> FileSource:
            return FileSource(path, timestamp="ts", schema=SCHEMA, max_files_per_batch=1, **options)

        bound = FILES * 60 * SECOND
        found: dict[str, list[float]] = {"unbounded": [], "bounded": []}
        for _ in range(arguments.repetitions):
            alone = source(folder)
            found["unbounded"].append(seconds(f"{name}/{next(numbers)}", alone, alone))
            both = {"history": source(folder, finite=True).below(bound), "": source(live).from_(bound)}
            found["bounded"].append(seconds(f"{name}/{next(numbers)}", both, Inputs(both)))
        for what, took in found.items():
            print(f"{what}: {FILES * ROWS / min(took) / 1e6:.2f} million rows/s")
        print(f"ratio: {min(found['bounded']) / min(found['unbounded']):.2f}")
        write_json(arguments.json, found)


if __name__ == "__main__":
    main()
