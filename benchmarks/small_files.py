"""What an hour of small micro-batches leaves behind: the bytes of a log entry and of the log, files, and the driver's memory.

    python -m benchmarks.small_files [--batches N] [--tasks N] [--json FILE]

Two micro-batches a second, each of 10 new files with a row each and of 4 late rows, for so many tasks of one source with an
output each; no Spark, a clock of its own, and a store in the memory of the machine. The driver collects as it would.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks.measure import write_json
from benchmarks.plans import plan_of
from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.drive.local import LocalDriver
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import takeover
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.deliver import Giver
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources import Chunk, Reach, TimeReplayableSource
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
BATCH = SECOND // 2
INTERVAL = 10 * SECOND
KEYS, FILES, PARTS, SHARDS = 1000, 10, 4, 2
KEEPING = Keeping()
COLLECT_EVERY = 20
TOLD = 1200
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int64())])


class Total(PersistentTask):
    key = "k"
    value = "v"

    def __init__(self, name: str) -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def planned(files: Files, name: str) -> Plan:
    return plan_of("small", files, Total(name), SCHEMA, Settings(INTERVAL), SHARDS, outputs=("sink",))


class Folder(TimeReplayableSource):
    """A folder with ten new files of a row each in each micro-batch. After a while the first row of each part is late."""

    timestamp, schema = "ts", SCHEMA

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        pass

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        first = start.get("", 0)
        lines = tuple(
            f'{{"ordinal":{i},"path":"2026/11/22/{i:032x}.jsonl","size":1234}}' for i in range(first, first + FILES)
        )
        return Reach({"": first + FILES}, {"": False}, lines)

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        bounds = [start.get("", 0) + FILES * part // parts for part in range(parts + 1)]
        return [range(*ends) for ends in pairwise(bounds)]

    def read(self, split: range) -> Iterator[Chunk]:
        stamps = [self.now() + i % FILES for i in split]
        if split.start // FILES > INTERVAL // BATCH * 2:
            stamps[0] = START
        rows = pa.record_batch(
            [
                pa.array(stamps, SCHEMA.field("ts").type),
                pa.array([i % KEYS for i in split], pa.int64()),
                pa.array([1] * len(split), pa.int64()),
            ],
            schema=SCHEMA,
        )
        yield Chunk("", split.start, rows)


class Driver:
    """A driver's part of an application: it commits, gives outputs their clocks, and collects."""

    def __init__(self, files: Files, tasks: int) -> None:
        self.flow = FlowPlan(tuple(planned(files, f"Task{i}") for i in range(tasks)))
        self.now, log = START, Log(files, "small")
        self.collector = Collector(Log(files, "small"))
        self.givers = [
            Giver(Log(files, "small"), plan.name, "sink", lambda timeline: None, lambda entry, due: None, self.clock)
            for plan in self.flow.tasks
        ]
        takeover.take_over(log, [self.flow], interval=INTERVAL, shards=SHARDS, writer="benchmark", now=START)
        self.driver = LocalDriver(
            log,
            [self.flow],
            {self.flow.id: Folder(self.clock)},
            keeping=KEEPING,
            now=self.clock,
            new_id=map("{:016x}".format, count()).__next__,
            parts=PARTS,
        )

    def clock(self) -> int:
        return self.now

    def micro_batch(self) -> None:
        """One micro-batch of the source, and a clock for each output that lacks one."""
        self.now += BATCH
        self.driver.take_turn(self.flow)
        for giver in self.givers:
            giver.give_next(1)

    def collect(self) -> float:
        """Collect; the seconds that it took."""
        began = time.perf_counter()
        self.collector.collect(1, now=self.now, keeping=KEEPING)
        return time.perf_counter() - began


def measured(made: Driver, folder: str, collecting: float) -> dict[str, float]:
    gc.collect()
    entries = [file.stat().st_size for file in Path(folder, "small", "log").iterdir()]
    flow = made.driver.entry.flow_of("Task0")
    return {
        "largest_entry_kb": max(entries) / 1e3,
        "log_mb": sum(entries) / 1e6,
        "entries": len(entries),
        "files": sum(len(os.listdir(each)) for each in Path(folder, "small", "runs").iterdir()),
        "listed": len(flow.late_rows.sides) + len(flow.source.journal.files) + len(flow.late_rows.settled.files),
        "driver_mb": psutil.Process().memory_info().rss / 1e6,
        "collect_ms": collecting * 1e3,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=7200)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results, collecting = [], 0.0
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="small-files-", dir=shared) as folder:
        made = Driver(open_files(folder), arguments.tasks)
        for batch in range(arguments.batches):
            made.micro_batch()
            if batch % COLLECT_EVERY == COLLECT_EVERY - 1:
                collecting = made.collect()
            if batch % TOLD == TOLD - 1 or batch == arguments.batches - 1:
                found = {"minutes": (batch + 1) / 120, **measured(made, folder, collecting)}
                results.append(found)
                print("  ".join(f"{name} {value:,.1f}" for name, value in found.items()), flush=True)
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
