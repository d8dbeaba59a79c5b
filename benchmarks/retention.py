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
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.measure import write_json
from benchmarks.plans import plan_of
from benchmarks.streams import START
from monoids import Sum
from persistent_state import NonWindowState, PersistentTask, read_state
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive import local
from persistent_state.drive.turn import Part
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import commits, takeover
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources import Chunk, Reach
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
        self.plan = plan_of("kept", files, Kept(), SCHEMA, settings, SHARDS, timestamp_unit="us")
        self.flow = FlowPlan((self.plan,))
        self.log, self.position, self.batches = Log(files, "kept"), 0, 0
        # The span reaches back from the newest clock, which is one of them.
        rules = () if kept == FEW else ((SECOND, (kept - 1) * SECOND),)
        self.keeping = Keeping(FEW, grace=0, retain=rules)
        self.collector, self.held, self.rng = Collector(self.log), local.Held(), np.random.default_rng(1)
        takeover.take_over(self.log, [self.flow], interval=SECOND, shards=SHARDS, writer="benchmark", now=START)
        self.play(np.arange(keys))

    @property
    def newest(self) -> Entry:
        entry = self.log.newest()
        assert entry is not None
        return entry

    def play(self, keys: np.ndarray) -> None:
        """One micro-batch of a message for each of these keys, a second after the one before."""
        number, now = self.position, START + SECOND * self.batches
        rows = pa.record_batch([np.full(len(keys), now), keys, keys], schema=SCHEMA)
        self.position += len(keys)
        self.batches += 1
        entry = commits.wake(self.log, 1, self.plan.name, now)
        basis = commits.plan_batch(entry, self.flow, Reach({"events": self.position}), now)
        sent = Part(0, 1, basis).combine(self.flow, [Chunk("events", number, rows)])
        answers = local.merge(self.flow, sent, self.held, new_id)
        commits.commit(self.log, 1, self.plan.settings, answers, now=now, new_id=new_id, keeping=self.keeping)

    def change(self, share: float) -> None:
        """One micro-batch of a share of the keys."""
        self.play(self.rng.integers(0, self.keys, int(self.keys * share)))

    def collect(self) -> None:
        """Delete what is not kept."""
        self.collector.collect(1, now=START + SECOND * (self.batches + 3600), keeping=self.keeping)

    def read(self) -> None:
        """Read the newest state."""
        assert read_state(str(self.folder), "kept", "Kept").num_rows == self.keys

    def read_oldest(self) -> None:
        """Read the state at the oldest kept clock."""
        assert read_state(str(self.folder), "kept", "Kept", next(iter(self.newest.kept))).num_rows == self.keys

    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())


def seconds_of(act: Callable[[], object]) -> tuple[float, float]:
    """The seconds that something takes, by the wall clock and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    act()
    return time.perf_counter() - wall, time.process_time() - cpu


def costs(keys: int, kept: int, share: float, repetitions: int, place: Path | None) -> dict[str, float]:
    """The costs with many kept clocks, and with few: medians of turns, in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="retention-", dir=place) as scratch:
        few, many = (Played(Path(scratch) / str(count), keys, count) for count in (FEW, kept))
        for played in (few, many):
            for _ in range(kept + 1):
                played.change(share)
                played.collect()
        taken: dict[str, list[tuple[float, float]]] = {}
        for turn in range(repetitions):
            for name, played in [("few", few), ("many", many)][:: 1 if turn % 2 else -1]:
                acts: dict[str, Callable[[], object]]
                acts = {"batch": partial(played.change, share), "collect": played.collect, "read": played.read}
                for what, act in acts.items():
                    taken.setdefault(f"{what} {name}", []).append(seconds_of(act))
        found: dict[str, float] = {"keys": keys, "share": share, "kept": len(many.newest.kept)}
        for what, some in taken.items():
            walls, cpus = zip(*some, strict=True)
            found |= {what: 1e3 * statistics.median(walls), f"{what} cpu": 1e3 * statistics.median(cpus)}
        for what in ("batch", "read"):
            for of in ("", " cpu"):
                found[f"{what} ratio{of}"] = found[f"{what} many{of}"] / found[f"{what} few{of}"]
        more = len(many.newest.kept) - len(few.newest.kept)
        found["read oldest"] = 1e3 * seconds_of(many.read_oldest)[0]
        return found | {"MB": few.bytes() / 1e6, "MB a clock": (many.bytes() - few.bytes()) / more / 1e6}


SHOWN = {
    "batch few": 0,
    "batch many": 0,
    "batch ratio": 2,
    "batch ratio cpu": 2,
    "read few": 0,
    "read many": 0,
    "read ratio": 2,
    "read ratio cpu": 2,
    "read oldest": 0,
    "collect few": 1,
    "collect many": 1,
    "MB": 0,
    "MB a clock": 2,
}
"""The columns, with how many digits after the point."""


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
    print(f"{arguments.keys:,} keys, {FEW} and {arguments.kept} kept clocks; milliseconds")
    print("changed", *SHOWN, sep="  ")
    for share in arguments.shares:
        results.append(costs(arguments.keys, arguments.kept, share, arguments.repetitions, arguments.folder))
        cells = [f"{results[-1][name]:>{len(name)}.{digits}f}" for name, digits in SHOWN.items()]
        print(f"{share:>7.1%}", *cells, sep="  ", flush=True)
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
