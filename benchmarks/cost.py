"""What a checkpoint costs in storage: objects and bytes written, against the keys that changed since the one before.

    python -m benchmarks.cost [--keys N] [--changed N ...] [--checkpoints N] [--json FILE]

A state of so many keys is on a local disk, in two shards. Each micro-batch changes so many keys, moves the clock, and is one
checkpoint; rewriting older runs is part of it. No Spark is used: it writes none of this.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.contenders import Sum
from benchmarks.measure import write_json
from benchmarks.plans import plan_of
from benchmarks.streams import SCHEMA, START
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.drive import local
from persistent_state.drive.turn import Part
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import commits, takeover
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources import Chunk, Reach
from persistent_state.store.files.base import BytesLike
from persistent_state.store.files.local import LocalFiles
from persistent_state.store.log import Log

SECOND = 1_000_000
SHARDS = 2


class CountedFiles(LocalFiles):
    """A local store that notes the size of all that is created in it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sizes: list[int] = []

    def create(self, path: str, data: BytesLike) -> None:
        super().create(path, data)
        self.sizes.append(memoryview(data).nbytes)


def planned(files: LocalFiles, emits: bool) -> Plan:
    return plan_of("cost", files, Sum(), SCHEMA, Settings(SECOND), SHARDS, emits=emits)


def checkpoints(folder: str, keys: int, changed: int, emits: bool) -> Iterator[list[int]]:
    """The sizes of the objects of each checkpoint; first that of the whole state."""
    files = CountedFiles(folder)
    plan = planned(files, emits)
    log, ids, chance = Log(files, "cost"), count(), np.random.default_rng(1)
    flow = FlowPlan((plan,))
    entry = takeover.take_over(log, [flow], interval=SECOND, shards=SHARDS, writer="benchmark", now=START)
    position = 0
    for batch in count():
        some = np.arange(keys) if batch == 0 else chance.choice(keys, changed, replace=False)
        # The last message is at the end of its second: the clock comes to the second's beginning.
        stamps = pa.array(START + batch * SECOND + np.arange(len(some)) * SECOND // len(some), SCHEMA.field("ts").type)
        rows = pa.record_batch([stamps, some, np.ones(len(some), np.int64)], schema=SCHEMA)
        reach = Reach({"": position + len(some)}, {"": False})
        basis = commits.plan_batch(entry, flow, reach, START + batch * SECOND)
        sent = Part(0, 1, basis).combine(flow, [Chunk("", position, rows)])
        answers = local.merge(flow, sent, {}, lambda: f"{next(ids):016x}")
        entry, _ = commits.commit(
            log,
            entry.epoch,
            plan.settings,
            answers,
            now=START,
            new_id=lambda: f"{next(ids):016x}",
            keeping=Keeping(),
        )
        position += len(some)
        yield list(files.sizes)
        files.sizes.clear()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000, help="in the state")
    parser.add_argument("--changed", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--checkpoints", type=int, default=100, help="of each kind")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    print(f"{'keys changed':>14}{'values':>8}{'objects':>9}{'most':>6}{'bytes':>14}{'most':>14}{'bytes a key':>13}")
    for changed in arguments.changed:
        for emits in (False, True):
            with tempfile.TemporaryDirectory(prefix="cost-") as folder:
                made = checkpoints(folder, arguments.keys, changed, emits)
                next(made)
                taken = []
                for number in range(arguments.checkpoints):
                    taken.append(next(made))
                    print(f"\r{number + 1} of {arguments.checkpoints}", end="\r", flush=True)
            objects, sizes = [len(one) for one in taken], [sum(one) for one in taken]
            found = {
                "changed": changed,
                "emits": emits,
                "objects": statistics.mean(objects),
                "most_objects": max(objects),
                "bytes": statistics.mean(sizes),
                "most_bytes": max(sizes),
            }
            results.append(found)
            print(
                f"{changed:>14,}{'yes' if emits else 'no':>8}{found['objects']:>9.1f}{max(objects):>6}"
                f"{found['bytes']:>14,.0f}{max(sizes):>14,}{found['bytes'] / changed:>13,.1f}",
                flush=True,
            )
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
