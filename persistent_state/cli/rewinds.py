"""Lines of text that tell people what a rewind is going to do, and what it has done."""

from __future__ import annotations

from collections.abc import Iterator

from persistent_state.formatting import full_clock, pairs, shortened, show_clock, table
from persistent_state.protocol.rewind import NONE, RETRACT, OutputPlan, ReadAgain, RewindPlan


def planned(plan: RewindPlan) -> Iterator[str]:
    """Yield the lines that describe a plan: its clock, its tasks, what is read again, and what each output does."""
    yield from pairs(
        {
            "application": plan.application,
            "clock": full_clock(plan.clock),
            "timeline": f"{plan.timeline}, which begins then",
            "tasks": list(plan.tasks),
            **({"came later": [f"{name}, which begins anew" for name in plan.later_tasks]} if plan.later_tasks else {}),
            **(
                {"reset or rebuilt": [f"{name}, which is again what it was before" for name in plan.earlier_lives]}
                if plan.earlier_lives
                else {}
            ),
            **({"names that go": _names(plan)} if plan.names_gone else {}),
        }
    )
    if plan.reads:
        yield ""
        yield from table(
            ("tasks", "read again", "from", "how much"),
            [
                (", ".join(read.tasks), shortened(read.source), shortened(_begins(read)), _amount(read))
                for read in plan.reads
            ],
            right={3},
        )
    if plan.outputs:
        yield ""
        yield from table(
            ("task", "output", "may have", "action", "rows"),
            [
                (each.task, each.output, show_clock(each.furthest), _action(each, plan.clock), _count(each.rows))
                for each in plan.outputs
            ],
            right={4},
        )


def made(plan: RewindPlan) -> Iterator[str]:
    """Yield the lines that tell what a rewind has done."""
    yield ""
    yield f"application={plan.application} is back at clock={full_clock(plan.clock)}, in timeline {plan.timeline}"
    for each in plan.outputs:
        if each.action == RETRACT:
            yield f"task={each.task} sink={each.output!r} {_done(each)}"


def _names(plan: RewindPlan) -> list[str]:
    """Return the names of kept clocks above that of a plan, each with its clock."""
    return [f"{name}, of {full_clock(clock)}" for name, clock in plan.names_gone.items()]


def _action(output: OutputPlan, clock: int) -> str:
    """Return what an output does in a rewind to a clock."""
    if output.action == NONE:
        return "has nothing above the clock"
    if output.clock is None:
        values, clocks = "all that it has", "all clocks"
    elif output.clock == clock:
        values, clocks = "what is above the clock", "the clocks above"
    else:
        at = show_clock(output.clock)
        values, clocks = f"what is above {at}", f"the clocks above {at}"
    return f"takes back {values}" if output.action == RETRACT else f"keeps what it has, and gets {clocks} again"


def _done(output: OutputPlan) -> str:
    return "has gone back" if output.is_done else "goes back at the next start"


def _begins(read: ReadAgain) -> str:
    """Return the positions from which a source is read again, by partition."""
    if not read.positions:
        return "the beginning"
    return ", ".join(f"{name}: {position:,}" if name else f"{position:,}" for name, position in read.positions.items())


def _amount(read: ReadAgain) -> str:
    """Return how much is read again, in the unit of the source."""
    return f"{_count(read.count)} {read.unit}".rstrip()


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"
