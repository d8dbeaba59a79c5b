"""Refusals of what no start can do after the newest entry, before anything is asked or changed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from persistent_state.batch.part import TaskPart
from persistent_state.batch.plan import Plan, folded
from persistent_state.edges.base import edges
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING, END, checkpoint_clock
from persistent_state.event_time.inputs import INPUT
from persistent_state.formatting import full_clock
from persistent_state.partials.evolve import Evolving
from persistent_state.protocol import evolution, identity
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


def is_made_of_state(plan: Plan) -> bool:
    """Return whether a task is made of the state of the tasks that feed it, so that it can be built again from that."""
    is_fed_changes = all(source.is_of_state for source in plan.upstream.values())
    return is_fed_changes and plan.takes_back and not plan.source_inputs


def begins_with(plan: Plan, clock: int) -> str:
    """Return in words what a derived task begins with that begins at the global clock."""
    return " and ".join(edge.begins_with(plan, full_clock(clock)) for edge in edges(plan).values())


def check(newest: Entry | None, plans: Sequence[Plan], reset: Collection[str], rebuild: Collection[str]) -> None:
    """Refuse what no start can do after the newest entry, before a sink or a source is asked.

    Raises:
        InvalidInputError: A task was written by another monoid or key, a name can't be told from another or is not added, or
            a task is rebuilt and keeps an output.
    """
    for argument, names in (("reset", reset), ("rebuild", rebuild)):
        for name in names:
            if name not in {plan.name for plan in plans}:
                added = ", ".join(dict.fromkeys(plan.named for plan in plans))
                raise InvalidInputError(f"{argument} names task={name}, which is not added; the tasks are {added}.")
    if both := sorted({*reset} & {*rebuild}):
        raise InvalidInputError(f"task={both[0]} is named in reset and in rebuild; name it in one of them.")
    _check_names(newest, plans)
    for plan in plans:
        known = newest.tasks.get(plan.name) if newest else None
        if newest is not None and plan.name not in rebuild:
            _check_history(plan, newest, plan.name in newest.tasks and plan.name not in reset)
        if known is None:
            continue
        if plan.name not in (*reset, *rebuild):
            assert newest is not None
            _check_identity(plan, newest)
            _check_inputs(plan, newest.flow_of(plan.name), known.ended, newest.clock)
        outputs = known.outputs
        before = outputs.with_status(RETIRED, *((ACTIVE, LEFT) if plan.name in rebuild else ()))
        for output in plan.outputs:
            if output in before:
                # A ValuesAtClock would be given the states.
                way = (plan.part or TaskPart).other_name
                raise InvalidInputError(
                    f"task={plan.named} is rebuilt, and sink={output!r} has what it was before; give it another place, or "
                    f"a function another name: {way}."
                )


def _check_names(newest: Entry | None, plans: Sequence[Plan]) -> None:
    """Refuse names that are one to some file systems: there each task would delete the files of the other."""
    known = newest.tasks if newest else {}
    taken = {folded(name): name for name in known}
    for plan in plans:
        other = taken.setdefault(folded(plan.name), plan.name)
        # Where the log has both already, the file system tells them apart.
        if other != plan.name and plan.name not in known:
            raise InvalidInputError(
                f"task={plan.name} and task={other} differ in no more than case or accents' spelling, which some file systems "
                f"do not tell apart; name it {other} again, or give it a name of its own."
            )


def _check_history(plan: Plan, newest: Entry, goes_on: bool) -> None:
    """Refuse history that comes when the clock has passed it, to a task that goes on, or to one that begins now.

    Raises:
        InvalidInputError: All messages of a new input would be late.
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
            raise InvalidInputError(
                f"task={plan.named}: the input {name!r} has only messages below {full_clock(below)}, and the task begins at "
                f"clock={full_clock(clock)}: all of it would be late. Name the task in rebuild=[{plan.named!r}] of run or "
                "start, so that it begins before all messages, or leave the input out."
            )


def _check_bounds(plan: Plan, known: FlowState, clock: int) -> None:
    """Refuse other bounds of an input that was read by its bounds.

    Raises:
        InvalidInputError: A bound is another, and it still matters.
    """
    for name, bounds in plan.bounds.items():
        if name not in known.inputs or not known.inputs[name].positions:
            continue
        before = known.inputs[name].since, known.inputs[name].below
        # Below the clock no message counts any more, whoever has it.
        is_passed = bounds[1] == before[1] and max(bounds[0], before[0]) <= min(clock, known.progress.clock)
        if bounds != before and not is_passed:
            raise InvalidInputError(
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


def _check_inputs(plan: Plan, known: FlowState, ended: Collection[str], clock: int) -> None:
    _check_bounds(plan, known, clock)
    for name in (*plan.source_inputs, *plan.upstream):
        if name in ended:
            raise InvalidInputError(
                f"task={plan.named} is given the input {name!r} again, which has ended for ever, and whose rows are in "
                "the state; leave it out. An input of another name is a new one: rows of it below the global clock "
                "come late."
            )
    for name, input in known.inputs.items():
        # All that one below the clock may have left would be late.
        is_over = input.below <= min(clock, known.progress.clock)
        if name not in plan.source_inputs and name not in plan.without and not is_over:
            raise InvalidInputError(
                f"task={plan.named} had the input {name!r}, and has {', '.join(map(repr, plan.source_inputs))} now; give it "
                f"the input again, or end it for ever by without=[{name!r}] of add. An input of another name is a new one."
            )


def _check_identity(plan: Plan, newest: Entry) -> None:
    evolves, known = isinstance(plan.layout.monoid, Evolving), newest.tasks[plan.name]
    if why := identity.declared_otherwise(plan, newest):
        raise InvalidInputError(f"task={plan.named}: {why}. {ways(plan, newest.clock)}")
    for what in sorted({*plan.identity, *known.identity} - {"declared"}):
        written, wanted = known.identity.get(what), plan.identity.get(what)
        is_same = _without_type(written) == _without_type(wanted) if evolves and what == "monoid" else written == wanted
        if not is_same:
            why = identity.other_part(plan, what, written, wanted)
            raise InvalidInputError(f"task={plan.named}: {why}. {ways(plan, newest.clock)}")
    if evolves and (why := evolution.misfit(plan, newest)):
        raise InvalidInputError(" ".join((why, ways(plan, newest.clock))))


def _without_type(monoid: Any) -> dict[str, Any]:
    return {name: part for name, part in monoid.items() if name != "type"}
