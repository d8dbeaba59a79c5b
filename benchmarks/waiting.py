"""The memory of a worker while messages wait above the clock, and while one clock passes all of them.

    python -m benchmarks.waiting [--what process as-of interval] [--rows N] [--keys N] [--shards N] [--json FILE]

So many messages of small rows come in micro-batches of two million, and wait on a local disk. Then one message moves the clock
beyond all of them, and a step takes them. The work of Spark's Python workers is done without Spark, in a process of its own for
each phase. "wait" is the greatest memory of the process that writes what waits, "pass" that of the process that takes the step,
without pages of mapped files, which the system takes back when it needs room. "mapped" is the same with them. Beside them stand
the seconds of each, and the bytes on disk.

Of `process`: the task of `benchmarks.ordered`, which keeps three numbers of a key and emits a row for one message of fifty. Of
`as-of` and `interval`: half of the messages are of each side, and about as many joined rows come out as there are left rows.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import anonymous, write_json
from benchmarks.ordered import High
from benchmarks.streams import SCHEMA, START, STEP
from persistent_state import Application, AsOfJoin, FileSource, IntervalJoin, PersistentTask
from persistent_state.batch.packets import Answers, Blob, Descriptor, Report
from persistent_state.batch.plan import FlowPlan
from persistent_state.batch.shard import merge_shard
from persistent_state.drive import local
from persistent_state.drive.local import Executor, Held, LocalDriver, NewId
from persistent_state.drive.turn import Part
from persistent_state.event_time.inputs import named_in
from persistent_state.protocol import takeover
from persistent_state.protocol.global_clock import Keeping
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.store.files.local import LocalFiles
from persistent_state.store.log import Log

ROWS_OF_A_BATCH, ROWS_OF_A_CHUNK = 2_000_000, 250_000
PAUSE = 0.01
"""Seconds between two looks at the memory."""


@dataclass(frozen=True)
class Size:
    what: str
    rows: int
    keys: int
    shards: int

    @property
    def sides(self) -> list[str]:
        return [""] if self.what == "process" else ["left", "right"]

    @property
    def partitions(self) -> list[str]:
        return [named_in(side, "") for side in self.sides]

    def application(self, folder: str) -> Application:
        # Nothing passes the clock before the last message.
        span = f"{self.rows * STEP} microseconds"
        app = Application("waiting", folder, checkpoint_interval="1 second", allowed_delay=span, max_ahead="36500 days")
        source = FileSource(f"{folder}/in", timestamp="ts", schema=SCHEMA)
        near = f"{self.keys * STEP // 2} microseconds"
        tasks: dict[str, Any] = {
            "process": High(),
            "as-of": AsOfJoin("left", "right", key="k", name="joined"),
            "interval": IntervalJoin("left", "right", key="k", before=near, after="0 seconds", name="joined"),
        }
        app.add(tasks[self.what], source if self.what == "process" else dict.fromkeys(self.sides, source))
        return app


def columns_of(task: PersistentTask, source: object) -> tuple[FileSource, pa.Schema, None]:
    """Return the source, which is of files, and its columns. Spark computes no updates."""
    assert isinstance(source, FileSource)
    return source, SCHEMA, None


def flows_of(size: Size, folder: str) -> tuple[FlowPlan, FlowPlan]:
    """Return the flow of the messages that wait, and that of the task that takes them."""
    waiting, *others = size.application(folder)._plans(LocalFiles(folder), size.shards, columns_of).values()
    return FlowPlan((waiting,)), FlowPlan(tuple(others))


class Messages(TimeReplayableSource):
    """The rows of all sides by turns. At last comes one of each side far above all others: the clock passes them."""

    timestamp, schema = "ts", SCHEMA

    def __init__(self, size: Size) -> None:
        self.size, self.of_side = size, size.rows // len(size.sides)

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        pass

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        first = start.get(self.size.partitions[0], 0)
        end = min(first + ROWS_OF_A_BATCH // len(self.size.sides), self.of_side)
        return Reach(dict.fromkeys(self.size.partitions, end if end > first else self.of_side + 1))

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        first = self.size.partitions[0]
        return [(start.get(first, 0), end[first])]

    def read(self, split: tuple[int, int]) -> Iterator[Chunk]:
        first, end = split
        if first < self.of_side:
            sides = len(self.size.sides)
            yield from chunks(self.size, first * sides, (end - first) * sides)
            return
        last = [
            pa.array([START + 3 * self.size.rows * STEP]).cast(SCHEMA.field("ts").type),
            pa.array([0]),
            pa.array([0]),
        ]
        row = pa.RecordBatch.from_arrays(last, schema=SCHEMA)
        for side in self.size.sides:
            yield Chunk(named_in(side, ""), first, row, input=side)


def chunks(size: Size, first: int, rows: int) -> Iterator[Chunk]:
    """Rows of all sides by turns, from one number to another."""
    random, sides = np.random.default_rng(first), size.sides
    for begin in range(first, first + rows, ROWS_OF_A_CHUNK):
        count = min(ROWS_OF_A_CHUNK, first + rows - begin) // len(sides)
        for number, side in enumerate(sides):
            times = START + STEP * (begin + len(sides) * np.arange(count) + number)
            columns = [pa.array(times).cast(SCHEMA.field("ts").type)]
            columns += [pa.array(random.integers(0, most, count)) for most in (size.keys, 100)]
            rows_of = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            yield Chunk(named_in(side, ""), begin // len(sides), rows_of, input=side)


def by_bytes(
    flow: FlowPlan, parts: Sequence[Part], source: TimeReplayableSource | None, held: Held, new_id: NewId
) -> Answers:
    """Run a turn in which blobs travel as bytes, as between Spark's processes, because the memory is measured."""
    reports, made = list[Report](), list[Descriptor]()
    sent: list[list[bytes]] = [[] for _ in range(flow.first.shards)]
    for message in (message for part in parts for message in part.combine(flow, part.chunks(flow, source))):
        if isinstance(message, Report):
            reports.append(message)
        else:
            sent[message.shard].append(message.to_bytes())
    # One shard after the other, so that the rows of one at a time are tables.
    for shard, blobs in enumerate(sent):
        made += merge_shard(flow, shard, list(map(Blob.from_bytes, blobs)), {}, new_id)[0]
        blobs.clear()
    return Answers(reports, made)


def take_turns(flow: FlowPlan, source: TimeReplayableSource | None, executor: Executor) -> None:
    """Let a flow of the application take all its turns."""
    driver = LocalDriver(
        Log(flow.first.files, "waiting"),
        [flow],
        {} if source is None else {flow.id: source},
        keeping=Keeping(2, 0),
        now=lambda: START,
        new_id=lambda: uuid.uuid4().hex,
        executor=executor,
    )
    while driver.take_turn(flow) is not None:
        pass


def wait(size: Size, folder: str) -> None:
    flows, log = flows_of(size, folder), Log(LocalFiles(folder), "waiting")
    interval = flows[0].first.settings.interval
    takeover.take_over(log, flows, interval=interval, shards=size.shards, writer="benchmark", now=START)
    take_turns(flows[0], Messages(size), by_bytes)


def pass_all(size: Size, folder: str) -> None:
    take_turns(flows_of(size, folder)[1], None, local.run)


@dataclass(frozen=True)
class Found:
    """The greatest memory of a process in MB, without mapped files and with them, and its seconds."""

    memory: float
    mapped: float
    seconds: float


def _in_process(work: Callable[[Size, str], None], size: Size, folder: str, found: Any) -> None:
    most, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(PAUSE):
            most[0] = max(most[0], anonymous())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    begin = time.perf_counter()
    work(size, folder)
    seconds = time.perf_counter() - begin
    is_over.set()
    watcher.join()
    mapped = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found.send(Found(most[0] / 1e6, mapped / 1e6, seconds))


def measured(work: Callable[[Size, str], None], size: Size, folder: str) -> Found:
    """Do this work in a new process."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_in_process, args=(work, size, folder, send))
    process.start()
    send.close()
    found: Found = receive.recv()
    process.join()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = ["process", "as-of", "interval"]
    parser.add_argument("--what", choices=tasks, nargs="+", default=tasks)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {}
    print(f"{'':<12}{'':>8}{'MB':>8}{'mapped':>8}{'s':>8}")
    for what in arguments.what:
        size = Size(what, arguments.rows, arguments.keys, arguments.shards)
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            for name, work in (("wait", wait), ("pass", pass_all)):
                found = measured(work, size, folder)
                print(
                    f"{what:<12}{name:>8}{found.memory:>8,.0f}{found.mapped:>8,.0f}{found.seconds:>8,.1f}", flush=True
                )
                results[f"{what} {name}"] = asdict(found)
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
