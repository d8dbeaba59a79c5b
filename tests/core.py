"""The core driven by hand, without Spark: one partition of rows, cut into micro-batches, parts and shards."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa

from persistent_state.application import Application
from persistent_state.batch.packets import Answers, Basis, Blob, Content, Report, Step
from persistent_state.batch.plan import FlowPlan, InputPlan, Plan
from persistent_state.drive import local, turn
from persistent_state.drive.local import Held
from persistent_state.drive.turn import DueStep, Part
from persistent_state.errors import InvalidInputError, refuse
from persistent_state.event_time.clocks import END, Settings
from persistent_state.event_time.inputs import INPUT
from persistent_state.event_time.positions import NO_POSITION, Position
from persistent_state.protocol import commits, graph, rewind, takeover
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.rewind import Choice
from persistent_state.protocol.rewind_plan import RewindPlan
from persistent_state.setup.checks import of_plan
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


def micros(time: datetime) -> int:
    """A time as microseconds."""
    return (time - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


def whole_times(table: pa.Table) -> pa.Table:
    """A table for users with its clocks and the times of its windows as microseconds."""
    for place, name in enumerate(table.column_names):
        if name in (CLOCK, *WINDOW):
            table = table.set_column(place, name, table[name].cast(pa.int64()))
    return table


def newest(log: Log) -> Entry:
    """The newest entry of an application that there is."""
    entry = log.newest()
    assert entry is not None
    return entry


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
    application: str = "app",
    **more: Any,
) -> Plan:
    """The plan of a task with one input; integers are microseconds, whatever dates they look like."""
    if timestamp in schema.names and not pa.types.is_int64(schema.field(timestamp).type):
        timestamp_unit = None
    settings = settings or Settings(interval=10, ahead=2**62)
    rows = InputPlan(
        INPUT, task, schema, timestamp, channel, settings, timestamp_unit=timestamp_unit, on_bad_row=on_bad_row
    )
    return Plan(application, files or memory(), task, {INPUT: rows}, settings, shards, **more)


def changed(plan: Plan, **changes: Any) -> Plan:
    """The plan with other fields, and if its input has no name, with other fields of this."""
    if plan.has_names:
        return replace(plan, **changes)
    of_rows = {name: changes[name] for name in changes.keys() & {each.name for each in fields(InputPlan)}}
    of_task = {name: change for name, change in changes.items() if name not in of_rows or name in ("task", "settings")}
    return replace(plan, **of_task, inputs={INPUT: replace(plan.only, **of_rows)})


def compiled(app: Application, files: Files | None = None, shards: int = 1) -> dict[str, Plan]:
    """The plans of an application whose sources tell their columns without Spark."""
    return app._plans(files or memory(), shards, lambda _, source: (source, source.schema, None))


def check(plan: Plan) -> None:
    """Refuse a plan of a task that can never work."""
    refuse(of_plan(plan))


def alone(plan: Plan | FlowPlan) -> FlowPlan:
    """The flow of one task; a flow as it is."""
    return plan if isinstance(plan, FlowPlan) else FlowPlan((plan,))


def start(
    log: Log,
    plans: Sequence[Plan | FlowPlan],
    *,
    now: int = 0,
    reset: Sequence[str] = (),
    rebuild: Sequence[str] = (),
) -> Entry:
    """Take over with flows, of which a task by itself is one."""
    flows = [alone(plan) for plan in plans]
    return takeover.take_over(
        log,
        flows,
        interval=flows[0].first.settings.interval,
        shards=flows[0].first.shards,
        writer="test",
        now=now,
        reset=reset,
        rebuild=rebuild,
    )


def ways(task: str) -> str:
    """What the refusal of a task that can't go on offers."""
    return (
        f'Name it in rebuild=["{task}"] of run or start, and it is rebuilt from the beginning of its source, while the '
        f'global clock waits. Under another name, or with reset=["{task}"], it starts from zero at the global clock, '
        "without older messages."
    )


def answers(
    log: Log,
    plan: Plan | FlowPlan,
    rows: pa.RecordBatch,
    *,
    parts: int = 1,
    now: int = 0,
    channels: Mapping[str, bool] | None = None,
    placed: bool = True,
    held: Held | None = None,
) -> Answers:
    """What parts and shards make of the next rows of the only partition, read in so many parts, perhaps without positions."""
    flow, newest = alone(plan), log.newest()
    assert newest is not None
    entry = commits.wake(log, newest.epoch, flow.id, now)
    first = entry.flows[flow.id].source.positions.get("", Position()).next
    reach = Reach({"": first + rows.num_rows} if placed else {}, channels)
    basis = commits.plan_batch(entry, flow, reach, now)
    bounds = [rows.num_rows * part // parts for part in range(parts + 1)]
    count = parts if placed else None
    sent = [
        combine(flow, basis.of_part(part, None), part, count, [chunk(first + low, rows.slice(low, high - low), placed)])
        for part, (low, high) in enumerate(itertools.pairwise(bounds))
    ]
    return merged(flow, sent, held)


def merged(plan: Plan | FlowPlan, sent: Sequence[tuple[list[Blob], Report]], held: Held | None = None) -> Answers:
    """What the shards, which may remember what they hold, make of what the parts sent, and the parts' reports."""
    messages = (through_bytes(each) for blobs, report in sent for each in (*blobs, report))
    return local.merge(alone(plan), messages, {} if held is None else held, new_id)


def through_bytes(sent: Blob | Report) -> Blob | Report:
    """What arrives where a part sends it."""
    return type(sent).from_bytes(sent.to_bytes())


def combine(
    flow: FlowPlan, basis: Basis, part: int, parts: int | None, chunks: Iterable[Chunk]
) -> tuple[list[Blob], Report]:
    """What a part sends: a blob for each shard, in one piece, and its report."""
    pieces: list[list[Blob]] = [[] for _ in range(flow.first.shards)]
    *blobs, report = Part(part, parts, basis).combine(flow, chunks)
    for blob in blobs:
        pieces[blob.shard].append(blob)
    return [_joined(some) for some in pieces], report


def _joined(pieces: Sequence[Blob]) -> Blob:
    """All pieces of a blob as one."""
    contents: dict[str, Content] = {}
    for task, content in ((task, content) for blob in pieces for task, content in blob.contents.items()):
        contents[task] = contents.get(task, Content()).plus(content)
    late = tuple(table for blob in pieces for table in blob.late)
    return replace(pieces[-1], contents=contents, late=late, number=0, grounds=pieces[0].grounds)


def sent_by(
    flow: FlowPlan, parts: Sequence[Part], source: TimeReplayableSource | None = None
) -> list[tuple[list[Blob], Report]]:
    """What the parts of a turn send."""
    return [combine(flow, part.basis, part.number, part.parts, part.chunks(flow, source)) for part in parts]


def chunk(first: int, rows: pa.RecordBatch, placed: bool) -> Chunk:
    return Chunk("", first, rows) if placed else Chunk("", 0, rows, at=np.full(rows.num_rows, NO_POSITION))


def commit(
    log: Log,
    plan: Plan | FlowPlan,
    made: Answers,
    *,
    epoch: int | None = None,
    now: int = 0,
    keeping: Keeping | None = None,
    to_the_end: bool = False,
) -> Entry:
    epoch = made.descriptors[0].epoch if epoch is None else epoch
    settings = alone(plan).first.settings
    entry, _ = commits.commit(
        log, epoch, settings, made, now=now, new_id=new_id, keeping=keeping or Keeping(), to_the_end=to_the_end
    )
    return entry


def play(
    log: Log,
    plan: Plan | FlowPlan,
    rows: pa.RecordBatch,
    *,
    parts: int = 1,
    now: int = 0,
    keeping: Keeping | None = None,
    channels: Mapping[str, bool] | None = None,
    placed: bool = True,
) -> Entry:
    """One micro-batch of a task, or of a flow, from its planning to its commit."""
    made = answers(log, plan, rows, parts=parts, now=now, channels=channels, placed=placed)
    return commit(log, plan, made, now=now, keeping=keeping)


def play_source(
    log: Log,
    plan: Plan | FlowPlan,
    source: TimeReplayableSource,
    *,
    parts: int = 1,
    keeping: Keeping | None = None,
) -> Entry | None:
    """One micro-batch of what an opened source has next; None if it was read to its end."""
    newest = log.newest()
    assert newest is not None
    start = newest.flows[alone(plan).id].source.next_positions
    reach = source.reach(start, everything=False)
    if reach.ends == start:
        return None
    return play_reach(log, plan, source, start, reach, parts=parts, keeping=keeping)


def play_reach(
    log: Log,
    plan: Plan | FlowPlan,
    source: TimeReplayableSource,
    start: Mapping[str, int],
    reach: Reach,
    *,
    parts: int = 1,
    now: int = 0,
    keeping: Keeping | None = None,
) -> Entry:
    """One micro-batch of what an opened source has up to there."""
    flow, newest = alone(plan), log.newest()
    assert newest is not None
    entry = commits.wake(log, newest.epoch, flow.id, now)
    of_turn = turn.micro_batch(entry, flow, source, start, reach, now=now, most=parts)
    return commit(log, plan, local.run(flow, of_turn, source, {}, new_id), now=now, keeping=keeping)


def answers_of_step(log: Log, plans: Mapping[str, Plan] | Mapping[str, FlowPlan], step: Step, now: int = 0) -> Answers:
    """What the parts and shards of a step make. A part reads a shard of a task that feeds it."""
    entry = log.newest()
    assert entry is not None
    flow = alone(plans[step.flow])
    spans = tuple(graph.spans(entry, flow, step))
    return local.run(flow, turn.step(entry, DueStep(flow, step, spans), now=now, most=len(spans)), None, {}, new_id)


def plan_rewind(log: Log, to: int, action: str | None = None) -> RewindPlan:
    """A rewind in which each output that has something above the clock does this; None refuses it."""

    def choose(task: str, output: str, more: str) -> Choice:
        if action is None:
            raise InvalidInputError(f"task={task}: sink={output!r} {more}.")
        return Choice(action)

    return rewind.plan(log, to, choose)


def keeping_at_once(clocks: int, *, grace: int, retain: tuple[tuple[int, int], ...]) -> Keeping:
    """What an application keeps, but for the time for which replaced files stay: they may go at once."""
    return Keeping(clocks, 0, retain)


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
