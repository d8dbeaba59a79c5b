"""Find the state that a start goes on from: by the delivery, that at the global clock, or the newest that was committed.

Invariants, before and after every start, whatever delivery each start had:
- A task's positions say what is in its runs or aside, and nothing else. How much of that a start counts again is `again`. So a
  start that cuts a task back to a clock leaves no pair of a position above that clock.
- All messages before a position's `taken` are in the runs or aside, but for what a delivery may lose. A start under
  at-most-once delivery reads none of them again.
- At-most-once delivery may lose the messages of the micro-batch that was in flight. At-least-once delivery may lose messages
  that came late and that a start cut away. Late and bad rows that a start under at-least-once delivery took back are missing
  until that start has read them again. A start under at-most-once delivery never does: then they stay missing.
- What a sink was given up to the clock `delivered` is what the checkpoints were, unless its output is `voided`. Then the sink's
  values are right up to the clock that stands there, and the sink is given everything with the next clock.
"""

from __future__ import annotations

from dataclasses import replace

from persistent_state.batch.plan import AT_LEAST_ONCE, AT_MOST_ONCE, Plan
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.store import late_rows
from persistent_state.store.files import Files
from persistent_state.store.task_state import SourceState, TaskState


def keeps_all(plan: Plan) -> bool:
    """Return True if a start keeps what a task has committed above the global clock.

    Where Spark plans the micro-batches, nobody knows how far the one in flight was to read. Such a task starts under
    at-most-once delivery as it does under exactly-once delivery.
    """
    return plan.delivery == AT_LEAST_ONCE or (plan.delivery == AT_MOST_ONCE and not plan.by_spark)


def restored(
    files: Files, task: TaskState, plan: Plan, clock: int, intervals: tuple[int, int], shards: int, now: int
) -> TaskState:
    """Return a task as a start at the global `clock` goes on with it.

    `intervals` are the checkpoint intervals of the entry before and of this one.
    """
    if not keeps_all(plan):
        return cut_back(files, task, clock, shards, now)
    own = task.progress.clock
    source, rows = restored_source(task, plan, clock, now), task.late_rows
    if plan.delivery == AT_LEAST_ONCE:
        rows = late_rows.take_back(files, rows, _counts_again_from(task, plan, clock), source.next_positions)
    return replace(
        task,
        progress=task.progress.keep_all(),
        source=source,
        late_rows=rows,
        stored=task.stored.keep_all(own, intervals, shards),
    )


def restored_source(task: TaskState, plan: Plan, clock: int, now: int) -> SourceState:
    """Return the record of the source by which a start at the global `clock` reads on."""
    replay = min(clock, task.progress.clock)
    if not keeps_all(plan):
        return task.source.cut_back(replay, now)
    if plan.delivery == AT_MOST_ONCE:
        return task.source.skip_planned()
    # What a task that was away had taken in late was cut away with the clock that it was taken for.
    again = _counts_again_from(task, plan, clock) if task.active or not plan.takes_late else BEGINNING
    return task.source.read_again(replay, again, now)


def _counts_again_from(task: TaskState, plan: Plan, clock: int) -> int:
    """Return the clock from which a start under at-least-once delivery counts again what was read."""
    # A task that takes no late messages would count a message below its own clock as late.
    return min(clock, task.progress.clock) if plan.takes_late else task.progress.clock


def cut_back(files: Files, task: TaskState, clock: int, shards: int, now: int) -> TaskState:
    """Return a task as it was at `clock`, or at its own clock if that is lower, with the runs of so many shards.

    The task's source is replayed from there.
    """
    own = task.progress.clock
    clock = min(clock, own)
    source = task.source.cut_back(clock, now)
    return replace(
        task,
        progress=task.progress.cut_back(clock),
        source=source,
        late_rows=late_rows.take_back(files, task.late_rows, clock, source.next_positions),
        stored=task.stored.cut_back(clock, shards),
        outputs=task.outputs.cut_back(clock, own),
    )
