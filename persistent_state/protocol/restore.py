"""The state that a start goes on from: that at the global clock, or the newest that was committed, by the delivery.

Invariants, before and after every start, whatever the deliveries were:
- Positions say what is in the runs or aside, and nothing else: how much of it this start takes in again is `again`. So a cut
  leaves no pair above its clock. All before a position's `taken` is there; at most once none of it is read again. Only what a
  delivery may lose is missing: what was in flight (at most once), what came late and was cut away (at least once), and late and
  bad rows that a start at least once took back, until it has read them again. At most once that is never: they stay missing.
- What a sink was given up to the clock `delivered` is what the checkpoints were, unless its output is `voided`: then so much
  is right as stands there, and with the next clock it is given everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from persistent_state.batch.plan import AT_LEAST_ONCE, AT_MOST_ONCE, Plan
from persistent_state.event_time import clocks
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, END, Coarse
from persistent_state.event_time.positions import Position, move_position, reread_position, rewind_position
from persistent_state.partials import keys
from persistent_state.partials.at_clock import LAST
from persistent_state.store import late_rows
from persistent_state.store.entry import Run, TaskState
from persistent_state.store.files import Files


def goes_on(plan: Plan) -> bool:
    """Return whether a start keeps what a task has committed above the global clock.

    Where Spark plans the micro-batches nobody knows how far one was to read. At most once then starts like exactly once.
    """
    return plan.delivery == AT_LEAST_ONCE or (plan.delivery == AT_MOST_ONCE and not plan.by_spark)


def positions(task: TaskState, plan: Plan, clock: int) -> dict[str, Position]:
    """From where a start at the global `clock` reads on."""
    if plan.delivery == AT_MOST_ONCE and goes_on(plan):
        return {
            partition: move_position(known, max(known.taken, task.planned.get(partition, 0)), ())
            for partition in {**task.positions, **task.planned}
            for known in [task.positions.get(partition, Position())]
        }
    replay = min(clock, task.clock)
    if not goes_on(plan):
        return {partition: rewind_position(known, replay) for partition, known in task.positions.items()}
    return {partition: reread_position(known, replay) for partition, known in task.positions.items()}


def restored(
    files: Files, task: TaskState, plan: Plan, clock: int, intervals: tuple[int, int], shards: int, now: int
) -> TaskState:
    """Return a task as a start at the global `clock` goes on with it.

    `intervals` are the checkpoint intervals of the entry before and of this one.
    """
    if not goes_on(plan):
        return cut_back(files, task, clock, shards, now)
    kept = replace(
        task,
        coarse=_coarse(task, *intervals),
        runs=tuple(cut_runs(task.runs, LAST, shards)),
        positions=positions(task, plan, clock),
        planned={},
        batch=0,
        holds=True,
        again=END,
    )
    if plan.delivery == AT_MOST_ONCE:
        return replace(kept, channels=_heard(task))
    replay = min(clock, task.clock)
    replays = {partition: position.next for partition, position in kept.positions.items()}
    left = (late_rows.take_back(files, side, _accounted_below(task, plan, replay), replays) for side in task.sides)
    return replace(
        kept,
        channels=_channels(task, replay, now),
        sides=tuple(side for side in left if side is not None),
        # What a task that was away had taken in late was cut away with the clock that it was taken for.
        again=_accounted_below(task, plan, replay) if task.active or not plan.takes_late else BEGINNING,
    )


def _accounted_below(task: TaskState, plan: Plan, replay: int) -> int:
    """Return the clock below which an at-least-once start needs nothing again that was read."""
    # What takes nothing in below its clock would hold it for late.
    return replay if plan.takes_late else task.clock


def _coarse(task: TaskState, before: int, interval: int) -> tuple[Coarse, ...]:
    """Return how coarse the intervals above a task's clock are, when the next clocks are multiples of another interval.

    Old rows and new ones lie on different grids there: only what is a multiple of both straddles neither.
    """
    last = max((run.last for run in task.runs), default=task.clock)
    if before == interval:
        return task.coarse
    fine = Coarse(task.clock, clocks.next_multiple(last, before), before)
    segments = (*task.coarse, *([fine] if last >= task.clock and task.runs else []))
    return tuple(replace(segment, step=math.lcm(segment.step, interval)) for segment in segments)


def cut_back(files: Files, task: TaskState, clock: int, shards: int, now: int) -> TaskState:
    """Return a task as it was at `clock`, or at its own clock if it is behind, laid out for so many shards.

    Its source is replayed from there.
    """
    clock = min(clock, task.clock)
    positions = {partition: rewind_position(position, clock) for partition, position in task.positions.items()}
    replays = {partition: position.next for partition, position in positions.items()}
    kept = (late_rows.take_back(files, side, clock, replays) for side in task.sides)
    return replace(
        task,
        clock=clock,
        cuts=(clock,),
        coarse=(),
        runs=tuple(cut_runs(task.runs, clock, shards)),
        channels=_channels(task, clock, now),
        positions=positions,
        sides=tuple(side for side in kept if side is not None),
        planned={},
        batch=0,
        holds=True,
        again=END,
        voided={**dict.fromkeys((o for o, last in task.delivered.items() if last > clock), clock), **task.voided},
        furthest=max(task.furthest, task.clock) if task.clock > clock else task.furthest,
        # A sink may have been given more than the log says. The first of several cuts is the lowest.
        cut_at={**dict.fromkeys((*task.delivered, *task.left), clock), **task.cut_at},
    )


def _channels(task: TaskState, clock: int, now: int) -> dict[str, Channel]:
    return {name: channel.cut_back(clock, now) for name, channel in _heard(task).items()}


def _heard(task: TaskState) -> dict[str, Channel]:
    # One that was only named, and perhaps wrongly, is there again if it is named again.
    return {n: c for n, c in task.channels.items() if (c.newest, c.before) != (None, None)}


def cut_runs(runs: Sequence[Run], clock: int, shards: int) -> list[Run]:
    """Return the runs below the clock, cut at the bounds of the shards and in their order."""
    cut = []
    for shard in range(shards):
        low, high = keys.shard_range(shard, shards)
        losing: list[Run] = []
        for whole in runs:
            run = replace(whole, low=max(low, whole.low), high=min(high, whole.high))
            if run.low >= run.high:
                continue
            if run.last >= clock and (run.below is None or run.below > clock):
                losing.append(run)
            if run.first < clock:
                # What a run calls current holds the rows that it or an older one loses.
                is_stale = any(one.low < run.high and run.low < one.high for one in losing)
                limits = [limit for limit in (run.below, clock if is_stale else None) if limit is not None]
                cut.append(replace(run, below=min(limits, default=None)))
    return cut
