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
from itertools import count
from pathlib import Path

import psutil
import pyarrow as pa

from benchmarks.measure import write_json
from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.batch.messages import Blob, Report
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.drive import local
from persistent_state.drive.turn import Part
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import commits, takeover
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.deliver import Giver
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources import Chunk, Reach
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
BATCH = SECOND // 2
INTERVAL = 10 * SECOND
KEYS, FILES, PARTS, SHARDS = 1000, 10, 4, 2
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


def plan_of(files: Files, name: str) -> Plan:
    return Plan("small", files, Total(name), SCHEMA, "ts", None, Settings(INTERVAL), SHARDS, outputs=("sink",))


class Driver:
    """A driver's part of an application: it commits, gives outputs their clocks, and collects."""

    def __init__(self, files: Files, tasks: int) -> None:
        self.flow = FlowPlan(tuple(plan_of(files, f"Task{i}") for i in range(tasks)))
        self.keeping = Keeping()
        self.now = START
        self.log = Log(files, "small")
        self.collector = Collector(Log(files, "small"))
        self.givers = [
            Giver(Log(files, "small"), plan.name, "sink", lambda timeline: None, lambda entry, due: None, self.clock)
            for plan in self.flow.tasks
        ]
        self.ids = count()
        self.entry = takeover.take_over(
            self.log,
            [self.flow],
            interval=INTERVAL,
            shards=SHARDS,
            writer="benchmark",
            now=START,
        )

    def clock(self) -> int:
        return self.now

    def new_id(self) -> str:
        return f"{next(self.ids):016x}"

    def micro_batch(self, batch: int) -> Entry:
        """One micro-batch of the source; the first row of each part is late."""
        self.now += BATCH
        flow = self.flow
        entry = commits.wake(self.log, 1, flow.id, self.now)
        lines = tuple(
            f'{{"ordinal":{FILES * batch + i},"path":"2026/11/22/{FILES * batch + i:032x}.jsonl","size":1234}}'
            for i in range(FILES)
        )
        first = entry.flows[flow.id].source.positions[""].next if batch else 0
        reach = Reach({"": first + FILES}, {"": False}, lines)
        basis = commits.plan_batch(entry, flow, reach, self.now)
        sent: list[Blob | Report] = []
        for part in range(PARTS):
            low, high = (FILES * p // PARTS for p in (part, part + 1))
            stamps = [self.now + i for i in range(low, high)]
            if batch > INTERVAL // BATCH * 2:
                stamps[0] = START
            rows = pa.record_batch(
                [
                    pa.array(stamps, SCHEMA.field("ts").type),
                    pa.array([(FILES * batch + i) % KEYS for i in range(low, high)], pa.int64()),
                    pa.array([1] * (high - low), pa.int64()),
                ],
                schema=SCHEMA,
            )
            sent += Part(part, PARTS, basis.of_part(part, None)).combine(flow, [Chunk("", first + low, rows)])
        answers = local.merge(flow, sent, {}, self.new_id)
        self.entry, _ = commits.commit(
            self.log, 1, flow.first.settings, answers, now=self.now, new_id=self.new_id, keeping=self.keeping
        )
        for giver in self.givers:
            giver.give_next(1)
        return self.entry

    def collect(self) -> float:
        """Collect; the seconds that it took."""
        began = time.perf_counter()
        self.collector.collect(1, now=self.now, keeping=self.keeping)
        return time.perf_counter() - began


def measured(made: Driver, folder: str, collecting: float) -> dict[str, float]:
    gc.collect()
    entries = [file.stat().st_size for file in Path(folder, "small", "log").iterdir()]
    flow = made.entry.flow_of("Task0")
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
            made.micro_batch(batch)
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
