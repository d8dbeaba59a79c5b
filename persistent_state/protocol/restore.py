"""Find the state that a start goes on from: by the delivery, that at the global clock, or the newest that was committed.

Invariants, before and after every start, whatever delivery each start had:
- A flow's positions say what is in the runs of its tasks or aside, and nothing else. How much of that a start counts again is
  `again`. So a start that cuts a flow back to a clock leaves no pair of a position above that clock.
- All messages before a position's `taken` are in the runs or aside, but for what a delivery may lose. A start under
  at-most-once delivery reads none of them again.
- At-most-once delivery may lose the messages of the micro-batch that was in flight. Late and bad rows that a start under
  at-least-once delivery took back are missing until that start has read them again. A start under at-most-once delivery never
  does: then they stay missing.
- A flow under at-least-once delivery has messages that came late in the first interval above its clock of then. A cut takes
  away those that are above the cut, while the pair of the cut says that they are accounted for: nothing distinguishes them from
  the others. So a cut of such a flow (a rewind, a branch, a start without its tasks) leaves `again` at the beginning. The next
  start under at-least-once delivery counts again all that it reads again, and so does each start after it until that is read. A
  start under another delivery believes the pair: then those messages are lost.
- What a sink was given up to the clock `delivered` is what the checkpoints were, unless its output is `voided`. Then the sink's
  values are right up to the clock that stands there, and the sink is given everything with the next clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from persistent_state.batch.plan import AT_LEAST_ONCE, AT_MOST_ONCE, Plan
from persistent_state.event_time.clocks import BEGINNING, END
from persistent_state.store import late_rows
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.flow_state import FlowState, LateRows, SourceState
from persistent_state.store.named_files import Run
from persistent_state.store.task_state import TaskState


def keeps_all(plan: Plan) -> bool:
    """Return True if a start keeps what a task has committed above the global clock.

    Where Spark plans the micro-batches, it is unknown how far the one in flight was to read. There a task starts under
    at-most-once delivery as it does under exactly-once delivery.
    """
    return plan.delivery == AT_LEAST_ONCE or (plan.delivery == AT_MOST_ONCE and not plan.by_spark)


@dataclass(frozen=True)
class TaskGroup:
    """Tasks with the flow that feeds them, as a start goes on with them. In the entry each group has a flow of its own."""

    flow: FlowState
    tasks: Mapping[str, TaskState]

    @property
    def runs(self) -> list[Run]:
        """The runs of all tasks."""
        return [run for task in self.tasks.values() for run in task.stored.runs]

    @property
    def late_rows(self) -> list[LateRows]:
        """The records of late and bad rows of the flow and of all tasks."""
        return [self.flow.late_rows, *(task.late_rows for task in self.tasks.values())]

    def with_late_rows_apart(self) -> TaskGroup:
        """Return the group in which each task has for its own what came late before. Others may join it then."""
        late = self.flow.late_rows
        tasks = {name: replace(task, late_rows=task.late_rows.plus(late)) for name, task in self.tasks.items()}
        return TaskGroup(replace(self.flow, late_rows=LateRows()), tasks)

    def with_rows_taken_back(self, files: Files, clock: int) -> TaskGroup:
        """Return the group without the late and bad rows that its source delivers again from the clock on."""

        def left(rows: LateRows) -> LateRows:
            return late_rows.take_back(files, rows, clock, self.flow.with_steps(self.flow.source.next_positions))

        tasks = {name: replace(task, late_rows=left(task.late_rows)) for name, task in self.tasks.items()}
        return TaskGroup(replace(self.flow, late_rows=left(self.flow.late_rows)), tasks)


def restored(
    files: Files, group: TaskGroup, plan: Plan, clock: int, intervals: tuple[int, int], shards: int, now: int
) -> TaskGroup:
    """Return a flow and its tasks as a start at the global `clock` goes on with them, by the plan of any of the tasks.

    `intervals` are the checkpoint intervals of the entry before and of this one.
    """
    if not keeps_all(plan):
        back = cut_back(files, group, clock, shards, now)
        return replace(back, flow=back.flow.with_source(restored_source(group, plan, clock, now)))
    source = restored_source(group, plan, clock, now)
    flow = replace(
        group.flow,
        progress=group.flow.progress.keep_all(),
        coarse=group.flow.coarse_on(group.runs, *intervals),
    ).with_source(source)
    tasks = {
        name: replace(task, stored=task.stored.keep_all(shards), active=True) for name, task in group.tasks.items()
    }
    kept = TaskGroup(flow, tasks)
    if plan.delivery == AT_LEAST_ONCE:
        return kept.with_rows_taken_back(files, source.again)
    return kept


def restored_source(group: TaskGroup, plan: Plan, clock: int, now: int) -> SourceState:
    """Return the record of the source by which a start at the global `clock` reads on."""
    source = group.flow.source
    replay = min(clock, group.flow.progress.clock)
    if not keeps_all(plan):
        return replace(source.cut_back(replay, now), again=END)
    if plan.delivery == AT_MOST_ONCE:
        return source.skip_planned()
    return source.read_again(replay, _counts_again_from(group, plan, clock), now)


def _counts_again_from(group: TaskGroup, plan: Plan, clock: int) -> int:
    """Return the clock from which a start under at-least-once delivery counts again what was read."""
    own = group.flow.progress.clock
    if not plan.takes_late:
        # It would count a message below its own clock as late.
        return own
    # An older version left no mark on tasks that a start was without.
    if group.flow.source.lacks_late or not all(task.active for task in group.tasks.values()):
        return BEGINNING
    return min(clock, own)


def without_late(before: Entry, plans: Iterable[Plan]) -> list[Plan]:
    """Return the tasks that lack late messages, which a rewind or a branch took away, and whose delivery brings none back."""
    known = (plan for plan in plans if plan.name in before.tasks)
    return [plan for plan in known if not plan.takes_late and before.flow_of(plan.name).source.lacks_late]


def all_cut_back(files: Files, entry: Entry, now: int) -> Entry:
    """Return what an entry says of its flows and tasks, cut back to its global clock, whatever the delivery of each."""
    groups = {id: TaskGroup(flow, entry.tasks_of(id)) for id, flow in entry.flows.items()}
    # Tasks that were not part of that start have nothing above the clock.
    groups |= {
        id: cut_back(files, group, entry.clock, entry.shards, now)
        for id, group in groups.items()
        if any(task.active for task in group.tasks.values())
    }
    tasks = {name: task for group in groups.values() for name, task in group.tasks.items()}
    return replace(
        entry,
        flows={id: group.flow for id, group in groups.items()},
        tasks={name: tasks[name] for name in entry.tasks},
        next=BEGINNING,
    )


def cut_back(files: Files, group: TaskGroup, clock: int, shards: int, now: int) -> TaskGroup:
    """Return a flow and its tasks as they were at `clock`, or at the flow's own clock if that is lower.

    Their runs are cut into `shards` shards, and the source is replayed from there.
    """
    own = group.flow.progress.clock
    clock = min(clock, own)
    flow = replace(
        group.flow, progress=group.flow.progress.cut_back(clock), coarse=(), stepped=min(group.flow.stepped, clock)
    )
    tasks = {
        name: replace(
            task,
            active=True,
            stored=task.stored.cut_back(clock, shards),
            outputs=task.outputs.cut_back(clock, own),
        )
        for name, task in group.tasks.items()
    }
    back = TaskGroup(flow.with_source(group.flow.source.cut_back(clock, now)), tasks)
    return back.with_rows_taken_back(files, clock)
