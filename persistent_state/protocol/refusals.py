"""Refusals of a start that can't go on from the newest entry, before a sink or a source is asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from persistent_state.batch.part import TaskPart
from persistent_state.batch.plan import FlowPlan, Plan, without_case
from persistent_state.edges.base import edges
from persistent_state.errors import refuse
from persistent_state.event_time.clocks import BEGINNING, END, checkpoint_clock
from persistent_state.event_time.inputs import INPUT
from persistent_state.formatting import full_clock
from persistent_state.partials.evolve import Evolving
from persistent_state.protocol import evolution, identity
from persistent_state.protocol.fates import CONTINUES, REBUILT, REFUSED, Fates, groups_that_continue, is_made_of_state
from persistent_state.protocol.restore import TaskGroup
from persistent_state.store.entry import Entry
from persistent_state.store.flow_state import FlowState
from persistent_state.store.output_state import ACTIVE, LEFT, RETIRED

WAYS = (
    'Name it in rebuild=["{0}"] of run or start, and it is rebuilt from the beginning of its source, while the global '
    'clock waits. Under another name, or with reset=["{0}"], it starts from zero at the global clock, without older messages.'
)
"""The ways out for a task that a source feeds, and that can't go on."""


def ways(plan: Plan, clock: int) -> str:
    """Return the ways out for a task that can't go on, given the global clock."""
    if plan.source_inputs:
        return WAYS.format(plan.named)
    if plan.is_in_order:
        return ways(plan.feeders[INPUT], clock)
    named = f'Name it in reset=["{plan.named}"] of run or start, and it'
    if is_made_of_state(plan):
        return f"{named} is rebuilt from the state of its upstream tasks."
    return f"{named} loses what it has and begins with {begins_with(plan, clock)}."


def begins_with(plan: Plan, clock: int) -> str:
    """Return in words what a derived task begins with that begins at the global clock."""
    return " and ".join(edge.begins_with(plan, full_clock(clock)) for edge in edges(plan).values())


def check(table: Fates, newest: Entry | None, plans: Sequence[Plan]) -> None:
    """Refuse a start that can't go on from the newest entry, before a sink or a source is asked.

    Raises:
        InvalidInputError: A task can't go on and would lose what it has, was written by another monoid or key, or is rebuilt
            and keeps an output; or two names are one to some file systems, or a name is of no task.
    """
    of_tasks = (_of_task(table, newest, plan) for plan in plans)
    refuse(_of_fates(table, newest, plans), _of_words(table, plans), _of_names(newest, plans), *of_tasks)


def _of_fates(table: Fates, newest: Entry | None, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the refusals of tasks that can't go on, and would lose what they can't be given again."""
    by_name = {plan.name: plan for plan in plans}
    for name in table.names(REFUSED):
        assert newest is not None
        plan, why = by_name[name], table.of[name].why
        yield f"task={plan.named} can't go on, as {why}. {ways(plan, newest.clock)}"


def _of_words(table: Fates, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the refusals of names in `reset` and `rebuild` that are not of tasks, or stand in both."""
    words = table.words
    for argument, names in (("reset", words.reset), ("rebuild", words.rebuild)):
        for name in names:
            if name not in {plan.name for plan in plans}:
                added = ", ".join(dict.fromkeys(plan.named for plan in plans))
                yield f"{argument} names task={name}, which is not added; the tasks are {added}."
    for name in sorted({*words.reset} & {*words.rebuild}):
        yield f"task={name} is named in reset and in rebuild; name it in one of them."


def _of_task(table: Fates, newest: Entry | None, plan: Plan) -> Iterator[str]:
    """Yield why one task can't go on, or begin, as it is."""
    if newest is None:
        return
    kind, known = table.of[plan.name].kind, newest.tasks.get(plan.name)
    if kind != REBUILT:
        yield from _of_history(plan, newest, goes_on=kind == CONTINUES)
    if known is None:
        return
    if kind == CONTINUES:
        yield from _of_identity(plan, newest)
        yield from _of_inputs(plan, newest.flow_of(plan.name), known.ended, newest.clock)
    before = known.outputs.with_status(RETIRED, *((ACTIVE, LEFT) if kind == REBUILT else ()))
    for output in plan.outputs:
        if output in before:
            # A ValuesAtClock would be given the states.
            way = (plan.part or TaskPart).other_name
            yield (
                f"task={plan.named} is rebuilt, and sink={output!r} has what it was before; give it another place, or "
                f"a function another name: {way}."
            )


def _of_names(newest: Entry | None, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the refusals of names that are one to some file systems: there each task would delete the files of the other."""
    known = newest.tasks if newest else {}
    taken = {without_case(name): name for name in known}
    for plan in plans:
        other = taken.setdefault(without_case(plan.name), plan.name)
        # Where the log has both already, the file system tells them apart.
        if other != plan.name and plan.name not in known:
            yield (
                f"task={plan.name} and task={other} differ in no more than case or accents' spelling, which some file systems "
                f"do not tell apart; name it {other} again, or give it a name of its own."
            )


def _of_history(plan: Plan, newest: Entry, goes_on: bool) -> Iterator[str]:
    """Yield the refusals of history that comes when the clock has passed it: all its messages would be late.

    The task goes on, or begins now.
    """
    clock, had = newest.clock, set[str]()
    if goes_on:
        flow = newest.flow_of(plan.name)
        clock, had = min(clock, flow.progress.clock), {*flow.inputs, *newest.tasks[plan.name].ended}
    for name, (_, below) in plan.bounds.items():
        if (
            name not in had
            and below != END
            and clock > BEGINNING
            and checkpoint_clock(below, plan.settings.interval) <= clock
        ):
            yield (
                f"task={plan.named}: the input {name!r} has only messages below {full_clock(below)}, and the task begins at "
                f"clock={full_clock(clock)}: all of it would be late. Name the task in rebuild=[{plan.named!r}] of run or "
                "start, so that it begins before all messages, or leave the input out."
            )


def _of_bounds(plan: Plan, known: FlowState, clock: int) -> Iterator[str]:
    """Yield the refusals of other bounds of an input that was read by its bounds, where they still matter."""
    for name, bounds in plan.bounds.items():
        if name not in known.inputs or not known.inputs[name].positions:
            continue
        before = known.inputs[name].since, known.inputs[name].below
        # Below the clock no message counts any more, whoever has it.
        is_passed = bounds[1] == before[1] and max(bounds[0], before[0]) <= min(clock, known.progress.clock)
        if bounds != before and not is_passed:
            yield (
                f"task={plan.named}: the input {name!r} was read with {_show_bounds(*before)}, and has {_show_bounds(*bounds)} "
                "now; what was left out would be missing, or what was read be there twice. Keep the bounds. "
                f"{ways(plan, clock)}"
            )


def _show_bounds(since: int, below: int) -> str:
    words = [
        *([f"from_({full_clock(since)})"] if since != BEGINNING else []),
        *([f"below({full_clock(below)})"] if below != END else []),
    ]
    return " and ".join(words) or "no bounds"


def _of_inputs(plan: Plan, known: FlowState, ended: Collection[str], clock: int) -> Iterator[str]:
    """Yield the refusals of inputs that have other bounds, come back after their end, or are missing."""
    yield from _of_bounds(plan, known, clock)
    for name in (*plan.source_inputs, *plan.upstream):
        if name in ended:
            yield (
                f"task={plan.named} is given the input {name!r} again, which has ended for ever, and whose rows are in "
                "the state; leave it out. An input of another name is a new one: rows of it below the global clock "
                "come late."
            )
    for name, input in known.inputs.items():
        # All that one below the clock may have left would be late.
        is_over = input.below <= min(clock, known.progress.clock)
        if name not in plan.source_inputs and name not in plan.without and not is_over:
            yield (
                f"task={plan.named} had the input {name!r}, and has {', '.join(map(repr, plan.source_inputs))} now; give it "
                f"the input again, or end it for ever by without=[{name!r}] of add. An input of another name is a new one."
            )


def _of_identity(plan: Plan, newest: Entry) -> Iterator[str]:
    """Yield why a task is not the one that the store was written by."""
    evolves, known = isinstance(plan.layout.monoid, Evolving), newest.tasks[plan.name]
    if why := identity.declared_otherwise(plan, newest):
        yield f"task={plan.named}: {why}. {ways(plan, newest.clock)}"
    for what in sorted({*plan.identity, *known.identity} - {"declared"}):
        written, wanted = known.identity.get(what), plan.identity.get(what)
        is_same = _without_type(written) == _without_type(wanted) if evolves and what == "monoid" else written == wanted
        if not is_same:
            why = identity.other_part(plan, what, written, wanted)
            yield f"task={plan.named}: {why}. {ways(plan, newest.clock)}"
    if evolves and (why := evolution.misfit(plan, newest)):
        yield " ".join((why, ways(plan, newest.clock)))


def _without_type(monoid: Any) -> dict[str, Any]:
    return {name: part for name, part in monoid.items() if name != "type"}


def check_returns(table: Fates, newest: Entry, wanted: Sequence[FlowPlan]) -> None:
    """Refuse tasks that come back after what they missed has gone, before anything is read of them.

    Raises:
        InvalidInputError: Their clock is no longer retained, or the times that they missed are not apart any more.
    """
    for flow in wanted:
        for group in groups_that_continue(table, newest, flow):
            refuse(_left_behind(newest, group, flow), _missed_times(newest, group, flow))


def _left_behind(newest: Entry, group: TaskGroup, flow: FlowPlan) -> Iterator[str]:
    """Yield the refusals of tasks that come back after their clock was left behind.

    The source delivers again what they missed. But what they once read is not remembered for ever. One that has read nothing
    yet can do without, but if it is fed by windows or emitted rows: those are gone.
    """
    own, oldest = group.flow.visited, min(newest.retained, default=BEGINNING)
    # A flow that sources and tasks feed may have come further by its sources.
    is_left_behind = any(BEGINNING < at < oldest for at in (own, group.flow.progress.clock))
    stands = own if flow.is_fed_by_windows else _stands(group)
    if any(not source.is_of_state for source in flow.first.upstream.values()):
        is_left_behind |= stands < oldest
    for name, task in group.tasks.items():
        if not task.active and is_left_behind:
            yield (
                f"task={flow.by_name[name].named} left at clock={full_clock(own)}, and the oldest that is retained is "
                f"{full_clock(oldest)}. {ways(flow.by_name[name], newest.clock)}"
            )


def _missed_times(newest: Entry, group: TaskGroup, flow: FlowPlan) -> Iterator[str]:
    """Yield the refusal of a task that returns below the global clock and is fed what changes from one time to the next."""
    clock, stands = newest.clock, _stands(group)
    sees_each = any(source.every_us for source in flow.first.upstream.values())
    if sees_each and not flow.first.takes_back and stands < clock:
        yield (
            f"{flow.title} left at clock={full_clock(stands)}, and what changed from one time to the next since then is not "
            f"told apart any more. {ways(flow.first, clock)}"
        )


def _stands(group: TaskGroup) -> int:
    """Return the clock up to which a group has all that other tasks gave."""
    own, born = group.flow.visited, min(task.born for task in group.tasks.values())
    # Before its first step, it stands where it was to be built from state: at the global clock that there was.
    return own if own > BEGINNING or born == BEGINNING else born + 1
