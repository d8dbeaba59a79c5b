"""What a micro-batch costs beside its data, by parts, shards and channels: bytes and seconds of each step.

    python -m benchmarks.scale [--size N ...] [--channels N] [--tasks N] [--levels N] [--json FILE]

No Spark is used: the functions are those that planner, parts, shards and driver call. An application has so many tasks of one
source, each with as many shards, and in each shard so many levels of runs. A micro-batch is planned and read in as many parts.
Each part has channels of its own and a row for about each shard. One part is read for all tasks, and one shard of one task is
merged; the other shards are told to say what that one says. "Cluster" is what all parts and shards together send and take: the
header of a blob times parts times shards, and so on.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.contenders import Sum
from benchmarks.measure import write_json
from benchmarks.plans import plan_of
from benchmarks.streams import SCHEMA, START
from persistent_state.batch.packets import Advance, Answers, Basis, Blob, Descriptor, Report
from persistent_state.batch.plan import FlowPlan
from persistent_state.batch.shard import merge_shard
from persistent_state.drive import local
from persistent_state.drive.turn import Part
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.positions import Position
from persistent_state.partials import keys
from persistent_state.protocol import commits, takeover
from persistent_state.protocol.global_clock import Keeping
from persistent_state.run.progress import line_of, progress_of
from persistent_state.run.reports import Reports
from persistent_state.sources import Chunk, Reach
from persistent_state.store import codec
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.flow_state import FlowState
from persistent_state.store.log import Log
from persistent_state.store.named_files import Run, ShardRuns, Stored
from persistent_state.store.task_state import TaskState

SECOND = 1_000_000
LEVEL_ROWS = 100_000
"""Rows of a run that is there before: so many that few new ones do not make a shard rewrite it."""

ids = count()


@dataclass(frozen=True)
class Size:
    """The size of an application: its parts, shards and channels, the levels of runs in a shard, and its tasks."""

    parts: int
    shards: int
    channels: int
    levels: int
    tasks: int


@dataclass(frozen=True)
class Costs:
    """What a micro-batch costs. Bytes of one of each kind, seconds of one processor."""

    partition_bytes: int
    blob_header_bytes: int
    report_bytes: int
    descriptor_bytes: int
    entry_bytes: int
    small_entry_bytes: int
    whole_bytes: int
    plan_seconds: float
    part_seconds: float
    shard_seconds: float
    commit_seconds: float
    small_commit_seconds: float
    progress_bytes: int
    progress_seconds: float
    start_seconds: float


def new_id() -> str:
    return f"{next(ids):016x}"


class Clock:
    """The seconds that blocks took."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began


def taken(work: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    clock = Clock()
    with clock.running():
        work()
    return clock.seconds


def channel(number: int) -> str:
    return f"events-{number}"


def planned(size: Size) -> FlowPlan:
    """The plan of the tasks: equal tasks by other names, on one source."""
    files = open_files(f"memory://scale-{new_id()}")

    def task(number: int) -> Sum:
        made = Sum()
        made.name = f"task-{number:04d}"
        return made

    settings = Settings(SECOND)
    plans = [plan_of("scale", files, task(i), SCHEMA, settings, size.shards) for i in range(size.tasks)]
    return FlowPlan(tuple(plans))


def with_channels(flow: FlowState, size: Size) -> FlowState:
    """A flow's record with all channels at one second."""
    names = [channel(number) for number in range(size.channels)]
    known = next(iter(flow.source.channels.values()))
    source = replace(
        flow.source,
        channels=dict.fromkeys(names, known),
        positions={name: Position(1000, (), ((900, START),)) for name in names},
    )
    return flow.with_source(source)


def with_runs(name: str, state: TaskState, size: Size) -> TaskState:
    """A task's record with all levels of runs in each shard."""
    shards = []
    for shard in range(size.shards):
        shards.append(ShardRuns(tuple(run_of(name, shard, size, level + 1) for level in range(size.levels))))
    return replace(state, stored=replace(state.stored, shards=tuple(shards)))


def run_of(name: str, shard: int, size: Size, batch: int) -> Run:
    """A run that a micro-batch might have written."""
    low, high = keys.shard_range(shard, size.shards)
    id = hashlib.sha256(new_id().encode()).hexdigest()
    file = Stored(f"scale/runs/{name}/000001-{batch:09d}-{shard:04d}-{id[:16]}.arrow", LEVEL_ROWS * 16, id[::-1])
    return Run(file, LEVEL_ROWS, low, high, START - SECOND, START - SECOND)


def started(size: Size) -> tuple[Log, FlowPlan, Entry]:
    """An application that has read every channel once, and whose log says what `with_channels` and `with_runs` make of that."""
    flow = planned(size)
    log = Log(flow.first.files, "scale")
    entry = takeover.take_over(log, [flow], interval=SECOND, shards=size.shards, writer="benchmark", now=START)
    # One row in one channel, so that there is a channel to copy.
    basis = commits.plan_batch(entry, flow, Reach({channel(0): 1}), START)
    sent = Part(0, 1, basis).combine(flow, [Chunk(channel(0), 0, rows(np.array([0]), START))])
    entry, _ = committed(log, flow, local.merge(flow, sent, {}, new_id))
    full = entry.follower(
        START,
        flows={id: with_channels(state, size) for id, state in entry.flows.items()},
        tasks={name: with_runs(name, task, size) for name, task in entry.tasks.items()},
    )
    log.append(full)
    newest = log.newest()
    assert newest is not None
    return log, flow, newest


def rows(some: np.ndarray, at: int) -> pa.RecordBatch:
    """A message at this time for each of these keys."""
    stamps = pa.array(np.full(len(some), at), SCHEMA.field("ts").type)
    return pa.record_batch([stamps, some, np.ones(len(some), np.int64)], schema=SCHEMA)


def names(size: Size, part: int) -> list[str]:
    """The channels of a part."""
    return [channel(number) for number in range(part % size.channels, size.channels, size.parts)] or [channel(0)]


def committed(log: Log, flow: FlowPlan, answers: Answers) -> tuple[Entry, Advance]:
    return commits.commit(log, 1, flow.first.settings, answers, now=START, new_id=new_id, keeping=Keeping())


def chunks(size: Size, part: int) -> list[Chunk]:
    """The rows of a part: a row for about each shard, spread over the part's own channels."""
    own = names(size, part)
    shares = np.array_split(np.arange(size.shards, dtype=np.int64), len(own))
    return [Chunk(name, 1000, rows(some, START + SECOND)) for name, some in zip(own, shares, strict=True)]


def blobs_of(sent: Iterable[Blob | Report]) -> list[Blob]:
    """The blobs among what parts send."""
    return [each for each in sent if isinstance(each, Blob)]


def costs(size: Size) -> Costs:
    """Play one micro-batch of all tasks."""
    log, flow, _ = started(size)
    plan, store = flow.first, flow.first.files
    ends = {channel(number): 1000 + size.shards for number in range(size.channels)}
    planning = Clock()
    with planning.running():
        entry = commits.wake(log, 1, flow.id, START)
        basis = commits.plan_batch(entry, flow, Reach(ends), START)
        parts = [Part(part, size.parts, basis.of_part(part, names(size, part))) for part in range(size.parts)]
        partitions = [len(pickle.dumps(part)) for part in parts]

    reading = Clock()
    with reading.running():
        own = blobs_of(parts[-1].combine(flow, chunks(size, size.parts - 1)))
        for blob in own:
            blob.to_bytes()
    header = len(replace(own[-1], contents={}, late=()).to_bytes())

    sent = [each for part in parts for each in part.combine(flow, chunks(size, part.number))]
    arrived = [blob.to_bytes() for blob in blobs_of(sent) if blob.shard == 0]
    reports = [each.to_bytes() for each in sent if isinstance(each, Report)]
    merging = Clock()
    with merging.running():
        first, _ = merge_shard(flow, 0, [Blob.from_bytes(data) for data in arrived], held(entry, size), new_id)
        described = pickle.dumps(first)
    answers = [pickle.dumps(each) for each in answers_of(first[0], entry, basis, size, [*shards_of(flow, size)])]
    committing = Clock()
    with committing.running():
        said: list[Descriptor] = [each for answer in answers for each in pickle.loads(answer)]
        entry, after = committed(log, flow, Answers(list(map(Report.from_bytes, reports)), said))
    reporting = Clock()
    with reporting.running():
        lines = progress_lines(flow, entry, after, said)

    # Another micro-batch, whose only row is for one shard.
    basis = commits.plan_batch(entry, flow, Reach(ends), START)
    *sent, report = Part(0, 1, basis).combine(flow, [])
    assert isinstance(report, Report), "it comes last"
    first, _ = merge_shard(flow, 0, blobs_of(sent)[:1], held(entry, size), new_id)
    answers = [pickle.dumps(each) for each in answers_of(first[0], entry, basis, size, [(plan.name, 0)])]
    small_committing = Clock()
    with small_committing.running():
        said = [each for answer in answers for each in pickle.loads(answer)]
        small_entry, _ = committed(log, flow, Answers([report], said))
    return Costs(
        partition_bytes=sum(partitions) // size.parts,
        blob_header_bytes=header,
        report_bytes=sum(map(len, reports)) // size.parts,
        descriptor_bytes=len(described),
        entry_bytes=length(log, entry.number),
        small_entry_bytes=length(log, small_entry.number),
        whole_bytes=len(codec.to_bytes(entry)),
        plan_seconds=planning.seconds,
        part_seconds=reading.seconds,
        shard_seconds=merging.seconds,
        commit_seconds=committing.seconds,
        small_commit_seconds=small_committing.seconds,
        progress_bytes=len(lines[0]),
        progress_seconds=reporting.seconds,
        start_seconds=taken(lambda: Log(store, "scale").newest()),
    )


def progress_lines(flow: FlowPlan, entry: Entry, after: Advance, said: Sequence[Descriptor]) -> list[str]:
    """What is logged of a commit: a line for each task."""
    by_task: dict[str, list[Descriptor]] = {plan.name: [] for plan in flow.tasks}
    for each in said:
        by_task[each.task].append(each)
    reports = Reports("scale", flow.tasks, entry, False, lambda progress: None)
    told = [progress_of(entry, after, name, "", sum(each.copies for each in some)) for name, some in by_task.items()]
    for one in told:
        reports.hear(one)
    reports.close()
    return [line_of(one) for one in told]


def held(entry: Entry, size: Size) -> dict[str, tuple[Run, ...]]:
    """The runs that the first shard holds of each task."""
    return {name: task.stored.in_shards(size.shards)[0].runs for name, task in entry.tasks.items()}


def shards_of(flow: FlowPlan, size: Size) -> Iterator[tuple[str, int]]:
    """The shards of all tasks."""
    return ((plan.name, shard) for plan in flow.tasks for shard in range(size.shards))


def answers_of(
    first: Descriptor, entry: Entry, basis: Basis, size: Size, written: Collection[tuple[str, int]]
) -> Iterator[list[Descriptor]]:
    """What all shards answer for all tasks that say what the first one says, if these wrote a run each."""
    for shard in range(size.shards):
        answer = []
        for name, task in entry.tasks.items():
            new = [run_of(name, shard, size, first.batch)] if (name, shard) in written else []
            base, kept = basis.grounds[name][shard].runs, len(task.stored.in_shards(size.shards)[shard].runs)
            answer.append(replace(first, task=name, shard=shard, base=base, kept=kept, runs=tuple(new)))
        yield answer


def length(log: Log, number: int) -> int:
    """The bytes of an entry in the store."""
    return len(bytes(log.files.read(log.path(number))))


def cluster(size: Size, cost: Costs) -> dict[str, float]:
    """What the whole cluster sends, and how many seconds of processors it spends, in one micro-batch."""
    return {
        "bytes": size.parts * (cost.partition_bytes + cost.report_bytes + size.shards * cost.blob_header_bytes)
        + size.shards * cost.descriptor_bytes
        + cost.entry_bytes,
        "seconds": cost.plan_seconds
        + size.parts * cost.part_seconds
        + size.shards * cost.shard_seconds
        + cost.commit_seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, nargs="+", default=[64, 200], help="parts, shards and channels, each")
    parser.add_argument("--channels", type=int, help="as many instead")
    parser.add_argument("--tasks", type=int, default=1)
    parser.add_argument("--levels", type=int, default=12, help="of runs in each shard")
    parser.add_argument("--repetitions", type=int, default=3, help="medians of so many")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    for number in arguments.size:
        size = Size(number, number, arguments.channels or number, arguments.levels, arguments.tasks)
        runs = []
        for repetition in range(arguments.repetitions):
            print(f"\r{number}: {repetition + 1} of {arguments.repetitions}", end="\r", flush=True)
            runs.append(asdict(costs(size)))
        cost = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        whole = cluster(size, Costs(**cost))
        results.append({**asdict(size), **cost, **{f"cluster_{name}": value for name, value in whole.items()}})
        show(size, Costs(**cost), whole)
    write_json(arguments.json, results)
    return 0


def show(size: Size, cost: Costs, whole: dict[str, float]) -> None:
    """Print a table of one size."""
    print(
        f"{size.parts:,} parts, {size.shards:,} shards, {size.channels:,} channels, {size.levels} levels, {size.tasks} tasks"
    )
    lines = [
        ("plan", cost.partition_bytes, "a part's assignment", cost.plan_seconds),
        ("part", cost.blob_header_bytes, "the header of a blob", cost.part_seconds),
        ("", cost.report_bytes, "a part's report", 0.0),
        ("shard", cost.descriptor_bytes, "an answer", cost.shard_seconds),
        ("commit", cost.entry_bytes, "a run in all shards", cost.commit_seconds),
        ("", cost.small_entry_bytes, "a run in one shard", cost.small_commit_seconds),
        ("progress", cost.progress_bytes, "a line", cost.progress_seconds),
        ("start", cost.whole_bytes, "a whole entry", cost.start_seconds),
    ]
    for name, size_of, what, seconds in lines:
        print(f"  {name:<8}{size_of:>14,} bytes, {what:<22}{seconds * 1000:>12,.1f} ms")
    print(f"  {'cluster':<8}{whole['bytes']:>14,.0f} bytes a micro-batch    {whole['seconds']:>12,.2f} s of processors")


if __name__ == "__main__":
    sys.exit(main())
