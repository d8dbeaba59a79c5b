"""The core driven by hand, without Spark: one partition of rows, cut into micro-batches, parts and shards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from persistent_state.batch.combine import combine
from persistent_state.batch.messages import Answers, Blob, Report
from persistent_state.batch.plan import Plan
from persistent_state.batch.shard import merge_shard
from persistent_state.event_time.clocks import END, Settings
from persistent_state.event_time.positions import NO_POSITION, Position
from persistent_state.protocol import commits, takeover
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.commits import Keeping
from persistent_state.sinks.base import CLOCK
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log
from persistent_state.store.state_at import seen_below
from persistent_state.task import PersistentTask
from persistent_state.windows import WINDOW

ids = map(str, itertools.count())


def memory() -> Files:
    """An empty store."""
    return open_files(f"memory://core-{next(ids)}")


def us(count: int) -> timedelta:
    """So many microseconds."""
    return timedelta(microseconds=count)


def whole_times(table: pa.Table) -> pa.Table:
    """A table for users with its clocks and the times of its windows as microseconds."""
    for place, name in enumerate(table.column_names):
        if name in (CLOCK, *WINDOW):
            table = table.set_column(place, name, table[name].cast(pa.int64()))
    return table


def new_id() -> str:
    return next(ids)


def plan_of(
    task: PersistentTask,
    schema: pa.Schema,
    *,
    files: Files | None = None,
    timestamp: str = "ts",
    channel: str | None = None,
    settings: Settings | None = None,
    shards: int = 1,
    on_bad_row: str = "keep",
    timestamp_unit: str | None = "us",
) -> Plan:
    """The plan of a task; integers are microseconds, whatever dates they look like."""
    if timestamp in schema.names and not pa.types.is_int64(schema.field(timestamp).type):
        timestamp_unit = None
    return Plan(
        application="app",
        files=files or memory(),
        task=task,
        schema=schema,
        timestamp=timestamp,
        channel=channel,
        settings=settings or Settings(interval=10, ahead=2**62),
        shards=shards,
        on_bad_row=on_bad_row,
        timestamp_unit=timestamp_unit,
    )


def start(
    log: Log, plans: Sequence[Plan], *, now: int = 0, reset: Sequence[str] = (), rebuild: Sequence[str] = ()
) -> Entry:
    settings = plans[0].settings
    return takeover.take_over(
        log,
        plans,
        interval=settings.interval,
        shards=plans[0].shards,
        writer="test",
        now=now,
        reset=reset,
        rebuild=rebuild,
    )


def ways(task: str) -> str:
    """What the refusal of a task that can't go on offers."""
    return (
        f'Name it in rebuild=["{task}"] of run or start, and it is built again from the beginning of its source, while the '
        f'global clock waits. Under another name, or with reset=["{task}"], it starts from zero at the global clock: older '
        "messages are late."
    )


def answers(
    log: Log,
    plan: Plan,
    rows: pa.RecordBatch,
    *,
    parts: int = 1,
    now: int = 0,
    channels: Mapping[str, bool] | None = None,
    placed: bool = True,
) -> Answers:
    """What parts and shards make of the next rows of the only partition, read in so many parts, perhaps without positions."""
    newest = log.newest()
    assert newest is not None
    entry = commits.wake(log, newest.epoch, plan.name, now)
    first = entry.tasks[plan.name].source.positions.get("", Position()).next
    reach = Reach({"": first + rows.num_rows} if placed else {}, channels)
    basis = commits.plan_batch(entry, plan, reach, now)
    bounds = [rows.num_rows * part // parts for part in range(parts + 1)]
    count = parts if placed else None
    sent = [
        combine(plan, basis.of_part(part, None), part, count, [chunk(first + low, rows.slice(low, high - low), placed)])
        for part, (low, high) in enumerate(itertools.pairwise(bounds))
    ]
    return merged(plan, sent)


def merged(plan: Plan, sent: Sequence[tuple[list[Blob], Report]], ids: Callable[[], str] = new_id) -> Answers:
    """What the shards make of what the parts sent, and the parts' reports."""
    made = [
        merge_shard(plan, shard, [Blob.from_bytes(blobs[shard].to_bytes()) for blobs, _ in sent], None, ids)[0]
        for shard in range(plan.shards)
    ]
    return Answers([Report.from_bytes(report.to_bytes()) for _, report in sent], made)


def chunk(first: int, rows: pa.RecordBatch, placed: bool) -> Chunk:
    return Chunk("", first, rows) if placed else Chunk("", 0, rows, at=np.full(rows.num_rows, NO_POSITION))


def commit(
    log: Log, plan: Plan, made: Answers, *, epoch: int | None = None, now: int = 0, keeping: Keeping | None = None
) -> Entry:
    epoch = made.descriptors[0].epoch if epoch is None else epoch
    entry, _ = commits.commit(log, epoch, plan.settings, made, now=now, new_id=new_id, keeping=keeping or Keeping())
    return entry


def play(
    log: Log,
    plan: Plan,
    rows: pa.RecordBatch,
    *,
    parts: int = 1,
    now: int = 0,
    keeping: Keeping | None = None,
    channels: Mapping[str, bool] | None = None,
    placed: bool = True,
) -> Entry:
    """One micro-batch of the task from its planning to its commit."""
    made = answers(log, plan, rows, parts=parts, now=now, channels=channels, placed=placed)
    return commit(log, plan, made, now=now, keeping=keeping)


def play_source(
    log: Log, plan: Plan, source: TimeReplayableSource, *, parts: int = 1, keeping: Keeping | None = None
) -> Entry | None:
    """One micro-batch of what an opened source has next; None if the task has read it to its end."""
    newest = log.newest()
    assert newest is not None
    start = newest.tasks[plan.name].source.next_positions
    reach = source.reach(start, everything=False)
    if reach.ends == start:
        return None
    return play_reach(log, plan, source, start, reach, parts=parts, keeping=keeping)


def play_reach(
    log: Log,
    plan: Plan,
    source: TimeReplayableSource,
    start: Mapping[str, int],
    reach: Reach,
    *,
    parts: int = 1,
    keeping: Keeping | None = None,
) -> Entry:
    """One micro-batch of what an opened source has up to there."""
    newest = log.newest()
    assert newest is not None
    entry = commits.wake(log, newest.epoch, plan.name, 0)
    basis = commits.plan_batch(entry, plan, reach, 0)
    splits = source.splits(start, reach.ends, parts)
    told = [basis.of_part(part, source.partitions_in(split)) for part, split in enumerate(splits)]
    sent = [combine(plan, told[part], part, len(splits), source.read(split)) for part, split in enumerate(splits)]
    return commit(log, plan, merged(plan, sent), keeping=keeping)


def collect(log: Log, epoch: int, *, now: int, keeping: Keeping) -> list[str]:
    """What goes at the first collection of a process."""
    return Collector(log).collect(epoch, now=now, keeping=keeping)


def state_at(entry: Entry, plan: Plan, clock: int | None) -> dict[Any, Any]:
    """The state of a task below a clock (None: of everything); keys are tuples of Python values."""
    table = seen_below(plan.files, entry.tasks[plan.name].stored.runs, plan.layout, END if clock is None else clock)
    names = plan.layout.key_names
    keys = zip(*(table[name].to_pylist() for name in names), strict=True) if names else [()] * table.num_rows
    values = plan.layout.monoid.from_arrow(table["value"].combine_chunks())
    return dict(zip(keys, values, strict=True))
