"""The cost of kept clocks: of a micro-batch and of reading the newest state, with many and with few of them, and their bytes.

    python -m benchmarks.retention [--keys N] [--kept N] [--shares S ...] [--repetitions N] [--folder PATH] [--json FILE]

No Spark is used: the functions are those that parts, shards and driver call, on files of a local folder. A task first has each
key once. Then each micro-batch moves the clock, and changes a share of the keys at random. One application keeps the ten newest
clocks, another one many more. Once it has as many as it is to have, both take turns: a micro-batch, and a read of all keys.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import write_json
from benchmarks.streams import START
from monoids import Sum
from persistent_state import Chunk, NonWindowState, PersistentTask, Reach, read_state
from persistent_state.batch.combine import combine
from persistent_state.batch.messages import Answers, Blob
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.batch.shard import merge_shard
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import commits, takeover
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.commits import Keeping
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.log import Log

SECOND = 1_000_000
SHARDS = 2
FEW = 10
SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("value", pa.int64())])
ids = itertools.count()


def new_id() -> str:
    return f"{next(ids):016x}"


class Kept(PersistentTask):
    key, value = "key", "value"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Played:
    """An application that keeps so many clocks: its ten newest, and the others by a rule."""

    def __init__(self, folder: Path, keys: int, kept: int) -> None:
        self.folder, self.keys = folder, keys
        files = open_files(str(folder))
        settings = Settings(SECOND, ahead=2**62)
        self.plan = Plan("kept", files, Kept(), SCHEMA, "ts", None, settings, SHARDS, timestamp_unit="us")
        self.flow = FlowPlan((self.plan,))
        self.log, self.position, self.batches = Log(files, "kept"), 0, 0
        # The span reaches back from the newest clock, which is one of them.
        rules = () if kept == FEW else ((SECOND, (kept - 1) * SECOND),)
        self.keeping = Keeping(FEW, grace=0, retain=rules)
        self.collector, self.cached, self.rng = Collector(self.log), dict[int, Any](), np.random.default_rng(1)
        takeover.take_over(self.log, [self.flow], interval=SECOND, shards=SHARDS, writer="benchmark", now=START)
        self.play(np.arange(keys))

    @property
    def newest(self) -> Entry:
        entry = self.log.newest()
        assert entry is not None
        return entry

    def play(self, keys: np.ndarray) -> float:
        """One micro-batch of a message for each of these keys, a second after the one before; its seconds."""
        number, now = self.position, START + SECOND * self.batches
        rows = pa.record_batch([np.full(len(keys), now), keys, keys], schema=SCHEMA)
        self.position += len(keys)
        self.batches += 1
        began = time.perf_counter()
        entry = commits.wake(self.log, 1, self.plan.name, now)
        basis = commits.plan_batch(entry, self.flow, Reach({"events": self.position}), now)
        blobs, report = combine(self.flow, basis, 0, 1, [Chunk("events", number, rows)])
        said = []
        for shard, blob in enumerate(blobs):
            some, self.cached[shard] = merge_shard(
                self.flow, shard, [Blob.from_bytes(blob.to_bytes())], self.cached.get(shard, {}), new_id
            )
            said += some
        commits.commit(
            self.log, 1, self.plan.settings, Answers([report], said), now=now, new_id=new_id, keeping=self.keeping
        )
        return time.perf_counter() - began

    def change(self, share: float) -> float:
        """One micro-batch of a share of the keys; its seconds."""
        return self.play(self.rng.integers(0, self.keys, int(self.keys * share)))

    def collect(self) -> float:
        """Delete what is not kept; the seconds of that."""
        began = time.perf_counter()
        self.collector.collect(1, now=START + SECOND * (self.batches + 3600), keeping=self.keeping)
        return time.perf_counter() - began

    def read(self) -> float:
        """Read the newest state; the seconds of that."""
        began = time.perf_counter()
        table = read_state(str(self.folder), "kept", "Kept")
        seconds = time.perf_counter() - began
        assert table.num_rows == self.keys
        return seconds

    def read_oldest(self) -> float:
        """Read the state at the oldest kept clock; the seconds of that."""
        clock = next(iter(self.newest.kept))
        began = time.perf_counter()
        read_state(str(self.folder), "kept", "Kept", clock)
        return time.perf_counter() - began

    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


def costs(keys: int, kept: int, share: float, repetitions: int, place: Path | None) -> dict[str, float]:
    """The costs with many kept clocks, and with few."""
    with tempfile.TemporaryDirectory(prefix="retention-", dir=place) as scratch:
        few, many = (Played(Path(scratch) / str(count), keys, count) for count in (FEW, kept))
        for played in (few, many):
            for _ in range(kept + 1):
                played.change(share)
                played.collect()
        taken: dict[tuple[Played, str], list[float]] = {}
        for turn in range(repetitions):
            for played in (few, many) if turn % 2 else (many, few):
                for what, act in (
                    ("batch", lambda p=played: p.change(share)),
                    ("collect", played.collect),
                    ("read", played.read),
                ):
                    taken.setdefault((played, what), []).append(act())
        seconds = {(played is many, what): statistics.median(some) for (played, what), some in taken.items()}
        more = len(many.newest.kept) - len(few.newest.kept)
        return {
            "keys": keys,
            "share": share,
            "kept": len(many.newest.kept),
            **{f"{what}_few": seconds[False, what] for what in ("batch", "read", "collect")},
            **{f"{what}_many": seconds[True, what] for what in ("batch", "read", "collect")},
            "batch_ratio": seconds[True, "batch"] / seconds[False, "batch"],
            "read_ratio": seconds[True, "read"] / seconds[False, "read"],
            "read_oldest": many.read_oldest(),
            "bytes": few.bytes(),
            "bytes_per_clock": (many.bytes() - few.bytes()) / more,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--kept", type=int, default=200, help="how many clocks the one keeps (default: 200)")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.001, 0.01, 0.1])
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="where the stores are made (default: that of temporary files)")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    print(
        f"{arguments.keys:,} keys, {FEW} and {arguments.kept} kept clocks\n"
        f"{'changed':>8}{'batch, ms':>12}{'many':>8}{'ratio':>7}{'read, ms':>10}{'many':>8}{'ratio':>7}{'oldest':>8}"
        f"{'collect, ms':>13}{'many':>8}{'MB':>8}{'MB a clock':>12}"
    )
    for share in arguments.shares:
        one = costs(arguments.keys, arguments.kept, share, arguments.repetitions, arguments.folder)
        results.append(one)
        print(
            f"{share:>8.1%}{1e3 * one['batch_few']:>12.1f}{1e3 * one['batch_many']:>8.1f}{one['batch_ratio']:>7.2f}"
            f"{1e3 * one['read_few']:>10.0f}{1e3 * one['read_many']:>8.0f}{one['read_ratio']:>7.2f}"
            f"{1e3 * one['read_oldest']:>8.0f}{1e3 * one['collect_few']:>13.1f}{1e3 * one['collect_many']:>8.1f}"
            f"{one['bytes'] / 1e6:>8.1f}{one['bytes_per_clock'] / 1e6:>12.2f}",
            flush=True,
        )
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
