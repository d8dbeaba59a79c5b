"""What a look-up of few keys costs, by the number of keys that are there: bytes, requests and seconds.

    python -m benchmarks.lookups [--keys N ...] [--touched N] [--block BYTES ...] [--repetitions N] [--json FILE]

No Spark is used: the functions are those that a shard calls for running values, for a task that reads its state, and for
messages with ids. The state is in runs of a million rows on a local disk. "whole" reads the runs as those without blocks are
read, "blocks" only the blocks of the keys. "first" is the first micro-batch of a process, which verifies what it reads; "next"
is the median of those after it, each of other keys. Seconds are those of one processor. "fetched" is what the first micro-batch
gets from a store behind a network of which there are no copies.

A second table has the milliseconds for which a reader waits who opens the store by `open_store`. All keys of its task are in
old runs, a tenth of them in newer ones too, and a hundredth in the newest. "open" is `at()`, "get" asks for one key and
"get_many" for a thousand, random ones each time. "first" is the first of a process, "next" the median of those after it.
"a run" is the most requests that one key makes to a run of a far store of which there are no copies.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import monoids
from benchmarks.measure import write_json
from benchmarks.plans import plan_of
from persistent_state import NonWindowState, PersistentTask, open_store
from persistent_state.batch.plan import FlowPlan
from persistent_state.event_time.clocks import Settings
from persistent_state.open_state import OpenState
from persistent_state.partials import dedup, keys, lookup
from persistent_state.partials.keys import hash_keys
from persistent_state.partials.layout import CURRENT, ID, Layout, Once, as_numpy
from persistent_state.partials.unbounded import Unbounded
from persistent_state.protocol import takeover
from persistent_state.store import blocks, runs
from persistent_state.store.files import Files, LocalFiles, cache, open_files
from persistent_state.store.log import Log
from persistent_state.store.named_files import Run, ShardRuns
from persistent_state.store.state_at import find_state

RUN_ROWS = 1 << 20
BATCHES = 8
HORIZON = 1 << 40

SECOND = 1_000_000
SHARDS = 8
LEVELS = (1, 10, 100)
"""The keys of each level of runs: each of so many numbers, the oldest level first."""

GETS, MANY = 300, 1000


@dataclass(frozen=True)
class FarFiles(LocalFiles):
    """Files of a store behind a network, that counts what is fetched and keeps copies as such a store does."""

    near: ClassVar[bool] = False
    fetched: list[int] = field(default_factory=list, compare=False)
    places: list[str] = field(default_factory=list, compare=False)

    def read(self, path: str) -> pa.Buffer:
        data = super().read(path)
        self.fetched.append(len(data))
        self.places.append(path)
        return data

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        found = super().read(path)
        self.fetched.extend(end - begin for begin, end in ranges)
        self.places.extend(path for _ in ranges)
        return [found[begin:end] for begin, end in ranges]


@dataclass(frozen=True)
class Way:
    """A way to look up keys: the layout of the rows, the columns of a run beside those, and what a shard does."""

    layout: Layout
    more: Callable[[pa.Table], pa.Table]
    look_up: Callable[[pa.Table, Sequence[pa.Table], Layout], Any]


SUM = Layout((pa.int64(),), monoids.Sum(), Unbounded())
ONCE = Layout((pa.int64(),), monoids.Sum(), Unbounded(), Once(pa.int64(), HORIZON))
WAYS = {
    "running values": Way(SUM, lambda table: table.append_column(CURRENT, table["value"]), lookup.add_current),
    "reads_state": Way(SUM, lambda table: table, lookup.current),
    "ids": Way(ONCE, lambda table: table, lambda asked, levels, layout: dedup.without_copies([asked], levels, layout)),
}


def rows_of(keys: NDArray[np.int64], layout: Layout) -> pa.Table:
    """Return a row of each key, sorted by hash."""
    key = pa.array(keys)
    columns = {"hash": hash_keys([key], len(key)), "key0": key, "start": np.zeros(len(key), np.int64), "value": keys}
    if layout.once is not None:
        columns |= {ID: keys, "time": np.zeros(len(key), np.int64)}
    return pa.table(columns).sort_by("hash").combine_chunks().select(layout.schema.names)


def start_process(folder: Path) -> None:
    """Forget what a process has verified, and that there are copies."""
    runs._verified.clear()
    blocks._indexes.clear()
    cache._verified.clear()
    tempfile.tempdir = tempfile.mkdtemp(dir=folder)


def written(files: Files, table: pa.Table, layout: Layout, name: str) -> tuple[list[Run], list[Run]]:
    """Write a table twice: as runs without blocks, and as runs with them."""
    plain, indexed = [], []
    for i, begin in enumerate(range(0, len(table), RUN_ROWS)):
        part = table.slice(begin, RUN_ROWS)
        indexed.append(runs.write_run(files, f"{name}/blocks-{i}", part, layout, 0, 1 << 64))
        with mock.patch.object(
            runs, "write_blocks", lambda files, path, table, *_: runs.write_table(files, path, table)
        ):
            plain.append(runs.write_run(files, f"{name}/whole-{i}", part, layout, 0, 1 << 64))
    return plain, indexed


def look_up(files: Files, some: Sequence[Run], asked: pa.Table, way: Way) -> float:
    """Return the processor's seconds of one look-up."""
    before = time.process_time()
    wanted = [as_numpy(asked, "hash")]
    way.look_up(asked, [runs.read_run_with_sums(files, run, wanted) for run in some], way.layout)
    return time.process_time() - before


def measured(keys: int, touched: int, block: int, repetitions: int, folder: Path) -> Iterator[dict[str, Any]]:
    near = LocalFiles(str(folder / "store"))
    rng = np.random.default_rng(1)
    for name, way in WAYS.items():
        table = way.more(rows_of(np.arange(keys), way.layout))
        with mock.patch.object(blocks, "BLOCK", block):
            by_kind = dict(
                zip(("whole", "blocks"), written(near, table, way.layout, f"{keys}-{block}-{name}"), strict=True)
            )
        asked = [rows_of(rng.choice(keys, touched, replace=False), way.layout) for _ in range(BATCHES)]
        taken: dict[str, list[list[float]]] = {kind: [] for kind in by_kind}
        for _ in range(repetitions):
            for kind, some in by_kind.items():
                start_process(folder)
                taken[kind].append([look_up(near, some, each, way) for each in asked])
        for kind, some in by_kind.items():
            start_process(folder)
            far = FarFiles(near.url)
            look_up(far, some, asked[0], way)
            yield {
                "way": name,
                "keys": keys,
                "touched": touched,
                "read": kind,
                "block": block,
                "stored": sum(run.file.length for run in some),
                "first": min(each[0] for each in taken[kind]),
                "next": statistics.median(second for each in taken[kind] for second in each[1:]),
                "fetched": sum(far.fetched),
                "requests": len(far.fetched),
            }


class Total(PersistentTask):
    """A task with many keys."""

    key, value = "key", "n"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Sum())


def store_of(count: int, folder: Path) -> str:
    """Write a store of a task with so many keys, each with its own number as its value, in several levels of runs."""
    files = open_files(folder)
    settings, schema = Settings(SECOND), pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("n", pa.int64())])
    plan = plan_of("lookups", files, Total(), schema, settings, SHARDS)
    log = Log(files, "lookups")
    entry = takeover.take_over(log, [FlowPlan((plan,))], interval=SECOND, shards=SHARDS, writer="benchmark", now=0)
    shards: list[list[Run]] = [[] for _ in range(SHARDS)]
    for level, every in enumerate(LEVELS):
        table = rows_of(np.arange(0, count, every), plan.layout)
        # The levels of a key add up to its number.
        several = sum((table["key0"].to_numpy() % each == 0).astype(np.int64) for each in LEVELS)
        share = table["key0"].to_numpy() // several
        left = table["key0"].to_numpy() - share * (several - 1)
        table = table.set_column(table.schema.get_field_index("value"), "value", pa.array(share if level else left))
        bounds = keys.shard_bounds(as_numpy(table, "hash"), SHARDS)
        for shard in range(SHARDS):
            low, high = keys.shard_range(shard, SHARDS)
            some = table.slice(bounds[shard], bounds[shard + 1] - bounds[shard])
            for number, begin in enumerate(range(0, len(some), RUN_ROWS)):
                path = f"lookups/runs/Total/{level}-{shard}-{number}.arrow"
                shards[shard].append(runs.write_run(files, path, some.slice(begin, RUN_ROWS), plan.layout, low, high))
    task = entry.tasks["Total"]
    task = replace(task, stored=replace(task.stored, shards=tuple(ShardRuns(tuple(some)) for some in shards)))
    flows = {id: flow.move_to(SECOND) for id, flow in entry.flows.items()}
    log.append(entry.follower(0, clock=SECOND, retained=(SECOND,), tasks={"Total": task}, flows=flows))
    return str(folder)


def taken(ask: Callable[[], Any]) -> float:
    before = time.perf_counter()
    ask()
    return time.perf_counter() - before


def read(count: int, repetitions: int, folder: Path) -> dict[str, Any]:
    """Return the seconds, and the requests, of one who opens a store of so many keys and looks keys up."""
    url, rng = store_of(count, folder / f"open-{count}"), np.random.default_rng(1)
    task = open_store(url).application("lookups").task("Total")
    found: dict[str, Any] = {"keys": count, "runs": len(find_state(open_files(url), "lookups", "Total").runs)}

    def ask(state: OpenState, many: int) -> None:
        asked = rng.integers(0, count, many).tolist()
        assert state.get_many(asked) == asked

    for name, many in (("get", 1), ("get_many", MANY)):
        times: list[list[float]] = []
        for _ in range(repetitions):
            start_process(folder)
            state = task.at()
            times.append([taken(partial(ask, state, many)) for _ in range(GETS // many + BATCHES)])
        found[f"{name} first"] = statistics.median(each[0] for each in times)
        found[f"{name} next"] = statistics.median(second for each in times for second in each[1:])
    found["open"] = statistics.median(taken(task.at) for _ in range(BATCHES))
    far = FarFiles(url)
    state = OpenState(find_state(far, "lookups", "Total"))
    most = 0
    for key in rng.integers(0, count, BATCHES).tolist():
        start_process(folder)
        far.places.clear()
        assert state.get(key) == key
        most = max(most, *Counter(far.places).values())
    found["a run"] = most
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--touched", type=int, default=100)
    parser.add_argument("--block", type=int, nargs="+", default=[blocks.BLOCK])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    print(
        f"{'':<16}{'keys':>12}{'read':>8}{'block':>8}{'first ms':>10}{'next ms':>10}{'fetched MB':>12}{'requests':>10}"
    )
    with tempfile.TemporaryDirectory(prefix="lookups-") as scratch:
        for keys in arguments.keys:
            for block in arguments.block:
                for found in measured(keys, arguments.touched, block, arguments.repetitions, Path(scratch)):
                    results.append(found)
                    print(
                        f"{found['way']:<16}{keys:>12,}{found['read']:>8}{block >> 10:>7}K{found['first'] * 1e3:>10.1f}"
                        f"{found['next'] * 1e3:>10.1f}{found['fetched'] / 1e6:>12.1f}{found['requests']:>10}",
                        flush=True,
                    )
        print(f"\n{'keys':>12}{'runs':>8}{'open':>10}{'get first':>12}{'next':>10}", end="")
        print(f"{'get_many first':>16}{'next':>10}{'a run':>8}")
        for count in arguments.keys:
            found = read(count, arguments.repetitions, Path(scratch))
            results.append(found)
            parts = [("open", 10), ("get first", 12), ("get next", 10), ("get_many first", 16), ("get_many next", 10)]
            times = "".join(f"{found[name] * 1e3:>{width}.2f}" for name, width in parts)
            print(f"{count:>12,}{found['runs']:>8}{times}{found['a run']:>8}", flush=True)
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
