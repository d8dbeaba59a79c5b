"""Take over an application: the first entry of a new epoch, which fences every driver before it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from persistent_state.batch.plan import AT_LEAST_ONCE, FlowPlan, Plan
from persistent_state.errors import InvalidInputError, StoreUnavailableError
from persistent_state.event_time.clocks import BEGINNING, END
from persistent_state.formatting import full_clock
from persistent_state.protocol import evolution, flows, graph, refusals, restore
from persistent_state.protocol.fates import LEFT_OUT, NEW, REBUILT, RESET, Fates, Words, decide, groups_that_continue
from persistent_state.protocol.next_entry import append
from persistent_state.protocol.restore import TaskGroup
from persistent_state.store.entry import Entry, Kept
from persistent_state.store.files import Files
from persistent_state.store.flow_state import FlowProgress, FlowState, Upstream
from persistent_state.store.log import Log, fenced
from persistent_state.store.output_state import OutputState
from persistent_state.store.task_state import StoredState, TaskState


@dataclass(frozen=True)
class _Start:
    """The terms of a start: what the application is set up with, who starts it and when, and the fate of each task."""

    interval: int
    shards: int
    writer: str
    now: int
    fates: Fates


def take_over(
    log: Log,
    wanted: Sequence[FlowPlan],
    *,
    interval: int,
    shards: int,
    writer: str,
    now: int,
    reset: Collection[str] = (),
    rebuild: Collection[str] = (),
    after: int | None = None,
) -> Entry:
    """Take the application over: a new epoch in which every task stands at the global clock and nothing is above it.

    Under another delivery than exactly-once, a task stands where `restore.restored` says instead. The entry has a flow for the
    tasks of each of the `wanted` flows, or several where some have to catch up: see `flows`.

    Tasks named in `reset` start from zero at that clock, whatever the store holds of them, and those named in `rebuild` at the
    clock before every message: they read their sources from the beginning, and the global clock waits until they have caught
    up. A driver that starts again says by `after` of which epoch it was.

    Raises:
        InvalidInputError: the store was written by another monoid or key, or a task returns after its clock was left behind, or
            `reset` or `rebuild` names none of these tasks, or a task is rebuilt and keeps an output.
        DamagedError: the newest entry is damaged.
        FencedError: a driver newer than `after` owns the application.
        StoreUnavailableError: the driver starts again, and its log is gone.
    """

    def change(newest: Entry | None) -> Entry:
        if newest is None and after is not None:
            raise StoreUnavailableError(f"the log of application={log.application} is gone; bring the store back.")
        # A start whose answer was lost is its own, too.
        if newest is not None and after is not None and newest.epoch != after and newest.writer != writer:
            raise fenced(log.application, after)
        table = decide(newest, wanted, Words(reset, rebuild))
        refusals.check(table, newest, [plan for flow in wanted for plan in flow.tasks])
        if newest is not None:
            refusals.check_returns(table, newest, wanted)
        start = _Start(interval, shards, writer, now, table)
        return _first_entry(log.files, newest, wanted, start)

    return append(log, log.newest, change)


def _first_entry(files: Files, newest: Entry | None, wanted: Sequence[FlowPlan], start: _Start) -> Entry:
    clock = newest.clock if newest else BEGINNING
    epoch = newest.epoch + 1 if newest else 1
    groups: list[TaskGroup] = []
    for flow in wanted:
        groups += _groups_of(files, newest, flow, groups, start)
    if newest:
        for group in flows.divided(newest, start.fates.names(LEFT_OUT)):
            groups.append(_left_out(files, group, clock, start))
    return Entry(
        number=newest.number + 1 if newest else 1,
        epoch=epoch,
        writer=start.writer,
        time=start.now,
        previous=newest.checksum if newest else "",
        interval=start.interval,
        shards=start.shards,
        clock=clock,
        retained=newest.retained if newest else (),
        kept=_kept(newest),
        timeline=newest.timeline if newest else 0,
        owes=newest.owes if newest else {},
        flows={_id(group): group.flow for group in groups},
        tasks={name: replace(task, flow=_id(group)) for group in groups for name, task in group.tasks.items()},
    )


def _groups_of(
    files: Files, newest: Entry | None, flow: FlowPlan, before: Sequence[TaskGroup], start: _Start
) -> list[TaskGroup]:
    """Return the groups of a flow, given those `before` it, which have the tasks that feed it."""
    clock, plans = newest.clock if newest else BEGINNING, flow.by_name
    groups = _restored(files, newest, flow, start) if newest else []
    rebuilt, new = start.fates.plans(flow, REBUILT), start.fates.plans(flow, NEW, RESET)
    if flow.is_derived:
        # From the state of the tasks that feed them: there is nothing to read again.
        rebuilt, new = [*rebuilt, *new], []
    if new:
        groups = flows.with_new(groups, clock, partial(_born_beside, flow, new, newest, start))
    if rebuilt:
        # They catch up on their own.
        at = {name: group.flow.progress.clock for group in before for name in group.tasks}
        sees_all = flow.is_in_order and all(at[each.task] == BEGINNING for each in flow.first.upstream.values())
        begin = clock if any(start.fates.of[plan.name].kind == RESET for plan in rebuilt) else BEGINNING
        groups = [*groups, _rebuilt(flow, _all_born(rebuilt, newest, start, begin), clock, sees_all)]
    tasks = {name: task for group in before for name, task in group.tasks.items()}
    groups = [_fed(group, flow, graph.upstream_of(flow.first, tasks), clock) for group in groups]
    return [_in_order(group, plans) for group in groups]


def _restored(files: Files, newest: Entry, flow: FlowPlan, start: _Start) -> list[TaskGroup]:
    """Return the groups of the tasks of a flow that go on, restored."""
    intervals, groups = (newest.interval, start.interval), []
    # What is to be reset or rebuilt is not looked at: it may be damaged.
    for group in groups_that_continue(start.fates, newest, flow):
        back = restore.restored(files, group, flow.first, newest.clock, intervals, start.shards, start.now)
        groups.append(_as_planned(back, flow.by_name, newest))
    return flows.together(files, flow, groups) if groups else []


def _kept(newest: Entry | None) -> Mapping[int, Kept]:
    """Return the kept clocks of a start. It keeps the global clock itself where an older version wrote no entry for it."""
    if newest is None or newest.clock == BEGINNING or newest.clock in newest.kept:
        return newest.kept if newest else {}
    return {**newest.kept, newest.clock: Kept(newest.number + 1)}


def _id(group: TaskGroup) -> str:
    """Return the id of a group's flow: the name of its first task, which no other flow has."""
    return next(iter(group.tasks))


def _fed(group: TaskGroup, plan: FlowPlan, upstream: Mapping[str, Upstream], clock: int) -> TaskGroup:
    """Return the group with the inputs that it has in this start at the global `clock`.

    A source that is new is read from its beginning. What lies below the clock of the flow comes late.

    Raises:
        InvalidInputError: The group would lack what its upstream tasks gave.
    """
    if group.flow.is_derived and not plan.is_derived:
        group = _with_sources(group, clock)
    flow = group.flow
    if flow.upstream and plan.is_derived and flow.visited < flow.progress.clock:
        raise InvalidInputError(
            f"{plan.title} has yet to take what other tasks gave up to clock={full_clock(flow.progress.clock)}; start it with "
            "the inputs that it had until it has, and end them then."
        )
    flow = flow.with_inputs(plan.first.bounds)
    if plan.first.delivery == AT_LEAST_ONCE and flow.source.again == END:
        # It has counted nothing yet. A later cut sees by this that late messages may be above the clock.
        flow = flow.with_source(replace(flow.source, again=flow.progress.clock))
    return replace(group, flow=replace(flow, upstream=upstream))


def _with_sources(group: TaskGroup, clock: int) -> TaskGroup:
    """Return a derived group as one that sources feed, too, given the global clock."""
    stepped = group.flow.progress.clock
    if stepped > BEGINNING:
        # Its clock was that of its steps. From now on sources may take it further than these.
        return replace(group, flow=replace(group.flow, stepped=stepped))
    # It has yet to be built from state. As for any new task, what its sources have below the global clock is late.
    tasks = {name: replace(task, stored=StoredState((clock,))) for name, task in group.tasks.items()}
    return TaskGroup(replace(group.flow, progress=FlowProgress(clock)), _readable_at(clock, tasks))


def _in_order(group: TaskGroup, plans: Mapping[str, Plan]) -> TaskGroup:
    """Return the group with its tasks in the order in which they were added."""
    return replace(group, tasks={name: group.tasks[name] for name in plans if name in group.tasks})


def _as_planned(group: TaskGroup, plans: Mapping[str, Plan], newest: Entry) -> TaskGroup:
    """Return the group with the outputs, and the types of values, that its tasks have in this start."""
    tasks = {}
    for name, task in group.tasks.items():
        flow = newest.flow_of(name)
        own = max(flow.progress.clock, flow.visited)
        outputs = task.outputs.at_restart(plans[name].outputs, newest.retained, own)
        gone = (input for input in flow.inputs if input not in plans[name].source_inputs)
        tasks[name] = replace(task, outputs=outputs).end_inputs(gone)
    return replace(group, tasks={name: evolution.evolved(plans[name], task, newest) for name, task in tasks.items()})


def _left_out(files: Files, group: TaskGroup, clock: int, start: _Start) -> TaskGroup:
    """Return a group whose tasks are not part of the start."""
    if not any(task.active for task in group.tasks.values()):
        return group
    back = restore.cut_back(files, group, clock, start.shards, start.now)
    return replace(back, tasks={name: replace(task, active=False) for name, task in back.tasks.items()})


def _all_born(
    plans: Sequence[Plan], newest: Entry | None, start: _Start, clock: int, born: int | None = None
) -> dict[str, TaskState]:
    """Return tasks that start from zero at a clock, or at the one just below it where they were `born`."""
    return {plan.name: _born(plan, newest, clock, start.fates.of[plan.name].kind == REBUILT, born) for plan in plans}


def _born_beside(
    flow: FlowPlan, plans: Sequence[Plan], newest: Entry | None, start: _Start, clock: int
) -> dict[str, TaskState]:
    """Return tasks that start from zero in a flow that sources feed, at its clock."""
    # A task that others feed, too, takes all that they have at this clock, and can be read there then. What its sinks have of
    # this clock is of before it started from zero.
    born = _just_below(clock) if flow.first.upstream else None
    return _all_born(plans, newest, start, clock, born)


def _rebuilt(flow: FlowPlan, tasks: Mapping[str, TaskState], clock: int, sees_all: bool) -> TaskGroup:
    """Return tasks that begin before all messages as a group, given the global clock.

    `sees_all` tells that their upstream tasks are given all again that has passed.
    """
    if flow.is_fed_by_windows and not sees_all:
        # Windows that have closed are gone: the tasks see those that close from now on.
        tasks = {name: replace(task, born=clock, stored=StoredState((clock,))) for name, task in tasks.items()}
        return TaskGroup(FlowState(FlowProgress(clock)), tasks)
    if flow.first.upstream:
        # The first step of tasks that are made of state goes to the global clock. They can't be read at earlier ones.
        tasks = _readable_at(clock, tasks)
    return TaskGroup(FlowState(FlowProgress(BEGINNING)), tasks)


def _readable_at(clock: int, tasks: Mapping[str, TaskState]) -> dict[str, TaskState]:
    """Return tasks that begin as ones that can be read at this clock, and at none before it."""
    return {name: replace(task, born=_just_below(clock)) for name, task in tasks.items()}


def _just_below(clock: int) -> int:
    return max(BEGINNING, clock - 1)


def _born(plan: Plan, newest: Entry | None, clock: int, is_rebuilt: bool, born: int | None) -> TaskState:
    born = clock if born is None else born
    life, outputs = 0, OutputState().at_restart(plan.outputs, (newest.clock,) if newest else ())
    if newest is not None and plan.name in newest.tasks:
        known, own = newest.tasks[plan.name], newest.flow_of(plan.name).progress.clock
        # A task that starts from zero before all messages is another one to those that it feeds.
        life = newest.epoch + 1 if clock == BEGINNING else known.life
        was, begun = known.outputs, newest.clock
        outputs = (
            was.at_rebuild(plan.outputs, begun, own) if is_rebuilt else was.at_reset(plan.outputs, begun, born, own)
        )
    return TaskState(plan.identity, born, "", StoredState((clock,)), outputs=outputs, life=life)
