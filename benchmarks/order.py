"""What it costs that a monoid does not commute: bytes through the shuffle, rows that are rewritten, and rows that are kept.

    python -m benchmarks.order [--keys N ...] [--json FILE]

No Spark is used: the functions are those that parts, shards and driver call. For each monoid a task first has each key once.
"few" are then micro-batches of 100 messages of keys at random, "many" micro-batches of 100,000.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import write_json
from benchmarks.plans import plan_of
from benchmarks.streams import ROWS_PER_FILE, START
from monoids import First, Last, List, Monoid, Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.batch.packets import Blob
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive import local
from persistent_state.drive.turn import Part
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import commits, takeover
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources import Chunk, Reach
from persistent_state.store.files import open_files
from persistent_state.store.log import Log

SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])
MONOIDS = [Sum(), First(pa.int64()), Last(pa.int64()), List(pa.int64())]
ids = itertools.count()


def new_id() -> str:
    return f"{next(ids):016x}"


class Kept(PersistentTask):
    key = "key"

    def __init__(self, monoid: Monoid[Any]) -> None:
        self.monoid = monoid

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        values = batch.column("value")
        if self.monoid.name != "List":
            return values
        return pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1, dtype=np.int32)), values)


class Played:
    """A task of one shard and one partition, and what its micro-batches have cost so far."""

    def __init__(self, monoid: Monoid[Any]) -> None:
        files = open_files(f"memory://order-{new_id()}")
        settings = Settings(SECOND)
        self.plan = plan_of("order", files, Kept(monoid), SCHEMA, settings, 1, timestamp_unit="us")
        self.log, self.position, self.sent = Log(files, "order"), 0, 0
        takeover.take_over(self.log, [FlowPlan((self.plan,))], interval=SECOND, shards=1, writer="benchmark", now=START)
        self.known: set[str] = set()
        self.rewritten = self.held = 0

    def play(self, keys: np.ndarray) -> None:
        """One micro-batch of a message for each of these keys, a second after the one before."""
        number = self.position
        times = START + SECOND * len(self.known) + np.arange(len(keys)) % SECOND
        rows = pa.record_batch([times, keys, keys], schema=SCHEMA)
        self.position += len(keys)
        entry = commits.wake(self.log, 1, self.plan.name, START)
        flow = FlowPlan((self.plan,))
        basis = commits.plan_batch(entry, flow, Reach({"events": self.position}), START)
        sent, held = [*Part(0, 1, basis).combine(flow, [Chunk("events", number, rows)])], local.Held()
        made = local.merge(flow, sent, held, new_id)
        commits.commit(self.log, 1, self.plan.settings, made, now=START, new_id=new_id, keeping=Keeping())
        fresh = made.descriptors[0].runs
        self.known.update(run.file.path for run in fresh)
        self.sent += sum(len(blob.to_bytes()) for blob in sent if isinstance(blob, Blob))
        self.rewritten += sum(run.rows for run in fresh)
        self.held = sum(run.rows for run in held[flow.id, 0][self.plan.name])


def costs(monoid: Monoid[Any], keys: int, rows: int, batches: int) -> dict[str, float]:
    """The costs of each message of so many micro-batches, after one that has each key."""
    played, rng = Played(monoid), np.random.default_rng(1)
    played.play(np.arange(keys))
    played.play(rng.integers(0, keys, rows))
    played.sent = played.rewritten = 0
    began = time.perf_counter()
    for _ in range(batches):
        played.play(rng.integers(0, keys, rows))
    seconds, messages = time.perf_counter() - began, rows * batches
    return {
        "messages_per_second": messages / seconds,
        "bytes_sent": played.sent / messages,
        "rows_written": played.rewritten / messages,
        "rows_held_per_key": played.held / keys,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1, 10_000, 1_000_000])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    for keys, (name, rows, batches) in itertools.product(
        arguments.keys, [("few", 100, 60), ("many", ROWS_PER_FILE // 10, 20)]
    ):
        print(f"{keys:,} keys, {batches} micro-batches of {rows:,} messages")
        for monoid in MONOIDS:
            cost = costs(monoid, keys, rows, batches)
            results.append({"keys": keys, "micro_batches": name, "monoid": monoid.name, **cost})
            print(
                f"  {monoid.name:<6}{cost['messages_per_second']:>12,.0f} messages/s{cost['bytes_sent']:>8.1f} bytes sent"
                f"{cost['rows_written']:>8.2f} rows written of each{cost['rows_held_per_key']:>8.2f} rows held of each key",
                flush=True,
            )
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
