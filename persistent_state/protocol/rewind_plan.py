"""The plan of a rewind: what people read before anything changes, and what the rewind is made by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from persistent_state.formatting import full_clock, pairs, shortened, show_clock, table

RETRACT, AGAIN, NONE, REFUSE = "retract", "again", "none", "refuse"
"""The actions of outputs at a rewind, as `OutputPlan` has them."""


@dataclass(frozen=True)
class OutputPlan:
    """The part of one output in a rewind.

    Attributes:
        task: The task's name.
        output: The output's name.
        action: "retract": what is above `clock` leaves the sink. "again": it stays, and the clocks above come again. "none":
            the sink has nothing above it. "refuse": the sink can't go back, and no rewind is made by the plan.
        furthest: The last clock that the sink may have, in microseconds UTC; None if it has none, or has yet to follow an
            earlier rewind.
        clock: The clock up to which the sink keeps what it has, in microseconds UTC; None if it keeps nothing. It is below that
            of the plan where what the sink has is right no further.
        rows: How many rows of the sink go or change, where it knows.
        is_done: Whether the sink has gone back. If not, it does at the next start.
        is_left_out: Whether the application lacks the output. Then it goes back, or is refused, when it is added again.
        why: The reason of "refuse", and what helps, without an end.
        again_by: The name by which `outputs` may say "again" for it instead; "" where that is refused, too.

    Example:
        >>> OutputPlan("Revenue", "sql shop.db revenue", "retract", furthest=1_700_000_000_000_000, clock=None, rows=12).action
        'retract'
    """

    task: str
    output: str
    action: str
    furthest: int | None
    clock: int | None
    rows: int | None = None
    is_done: bool = False
    is_left_out: bool = False
    why: str = ""
    again_by: str = ""


@dataclass(frozen=True)
class ReadAgain:
    """The part of one source in a rewind: from where on it is read again.

    Attributes:
        tasks: The tasks that the source feeds.
        source: The source.
        positions: By partition: the position from which on it is read again.
        count: How much there is from there on; None if the source does not know.
        unit: The word for what is counted, such as "files" or "messages".
        begins: By partition: the position in words, where the source has some, such as the name of a file.

    Example:
        >>> ReadAgain(("Revenue",), "KafkaSource('orders', 'broker:9092')", {"orders-0": 17}, 230, "messages").count
        230
    """

    tasks: tuple[str, ...]
    source: str
    positions: Mapping[str, int]
    count: int | None = None
    unit: str = ""
    begins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class RewindPlan:
    """A rewind that can be made, or one that was made. `Application.plan_rewind` returns it. Its text is what people read.

    The text of one that was made ends with what was done.

    Attributes:
        application: The application's name.
        clock: The kept clock, in microseconds UTC: the newest at or below the time that was asked for.
        epoch: The epoch that the plan depends on. A start or a rewind that comes between makes the plan void.
        timeline: The timeline that begins.
        tasks: The tasks that go back.
        later_tasks: The tasks that came after the clock, and are as at their first start again.
        outputs: What each output does.
        reads: What is read again.
        earlier_lives: The tasks that were reset or built again since the clock, and are what they were before that.
        rebuilt: The tasks whose code or inputs are others than at the clock. They go back as well, and then the next start
            rebuilds them from the state of the tasks that feed them.
        names_gone: By name: the kept clock, in microseconds UTC, that goes as it is above the clock.
        newest: The global clock before the rewind, in microseconds UTC.
        asked: The time that was asked for, in microseconds UTC.
        left_out: The tasks that the application that is rewound lacks. They go back as well.
        named: By task that is a part of an ordered task, as the log names it: the ordered task. The text names only the ordered
            task.
        is_made: Whether the rewind was made.

    Example:
        >>> RewindPlan("shop", 1_700_000_000_000_000, 7, 8, ("Revenue",), (), ())
        application  shop
        clock        2023-11-14T22:13:20Z (1700000000000000)
        timeline     8, which begins then
        tasks        Revenue
    """

    application: str
    clock: int
    epoch: int
    timeline: int
    tasks: tuple[str, ...]
    later_tasks: tuple[str, ...]
    outputs: tuple[OutputPlan, ...]
    reads: tuple[ReadAgain, ...] = ()
    earlier_lives: tuple[str, ...] = ()
    rebuilt: tuple[str, ...] = ()
    names_gone: Mapping[str, int] = field(default_factory=dict)
    newest: int | None = None
    asked: int | None = None
    left_out: tuple[str, ...] = ()
    named: Mapping[str, str] = field(default_factory=dict)
    is_made: bool = False

    def __repr__(self) -> str:
        return "\n".join([*_lines(self), *(made(self) if self.is_made else ())])


def _name(plan: RewindPlan, task: str) -> str:
    """Return the name by which people know a task."""
    return plan.named.get(task, task)


def _names(plan: RewindPlan, tasks: Iterable[str]) -> list[str]:
    """Return the names by which people know tasks, each once."""
    return list(dict.fromkeys(_name(plan, task) for task in tasks))


def _lines(plan: RewindPlan) -> Iterator[str]:
    """Yield the lines that describe a plan: its clock, its tasks, what is read again, and what each output does."""
    left_out = {*_names(plan, plan.left_out)}
    why = "which the application leaves out, and which goes back as well"
    facts: dict[str, str | list[str]] = {
        "application": plan.application,
        "clock": full_clock(plan.clock) + _which(plan),
        "timeline": f"{plan.timeline}, which begins then",
        "tasks": [f"{name}, {why}" if name in left_out else name for name in _names(plan, plan.tasks)],
        "came later": [f"{name}, which begins anew" for name in _names(plan, plan.later_tasks)],
        "reset or rebuilt": [f"{name}, which is again what it was before" for name in _names(plan, plan.earlier_lives)],
        "rebuilt": [f"{name}, by the next start, from the state that feeds it" for name in _names(plan, plan.rebuilt)],
        "names that go": [f"{name}, of {full_clock(clock)}" for name, clock in plan.names_gone.items()],
    }
    yield from pairs({name: values for name, values in facts.items() if values})
    if plan.reads:
        yield ""
        yield from table(
            ("tasks", "read again", "from", "how much"),
            [
                (", ".join(_names(plan, read.tasks)), shortened(read.source), shortened(_begins(read)), _amount(read))
                for read in plan.reads
            ],
            right={3},
        )
    if plan.outputs:
        yield ""
        yield from table(
            ("task", "output", "may have", "action", "rows"),
            [
                (_name(plan, each.task), each.output, _furthest(each), _action(each, plan.clock), _count(each.rows))
                for each in plan.outputs
            ],
            right={4},
        )
    if notes := [*_notes(plan)]:
        yield ""
        yield from notes


def _which(plan: RewindPlan) -> str:
    """Return in words which of the kept clocks a plan goes to, where that is not plain."""
    if plan.clock == plan.newest:
        return ", which is the newest"
    return "" if plan.asked in (None, plan.clock) else f", the newest kept one below {show_clock(plan.asked)}"


def _notes(plan: RewindPlan) -> Iterator[str]:
    """Yield a line for each thing that the tables do not explain."""
    back = [output for output in plan.outputs if output.action == RETRACT and not output.is_left_out]
    if any(output.rows is not None for output in back):
        yield "rows: how many rows of the sink go or change"
    if any(output.clock != plan.clock for output in back):
        yield (
            "A sink that goes back further than to the clock is right no further. It is given the clocks above that again, as "
            "far as they are there."
        )
    if plan.clock == plan.newest and any(
        output.furthest is not None and output.furthest > plan.clock for output in back
    ):
        yield (
            "Sinks are ahead of the store, as where it was brought back from an older copy. What they have above its newest "
            "clock goes, and is made again of what is read again."
        )
    elif plan.clock == plan.newest:
        yield (
            "The clock is the newest, so none is void. A driver that runs is stopped all the same, and what it has read above "
            "the clock is read again."
        )


def _furthest(output: OutputPlan) -> str:
    """Return the last clock that a sink may have. It is unknown if the sink owes an earlier rewind."""
    return "-" if output.furthest is None and output.action != NONE else show_clock(output.furthest)


def _action(output: OutputPlan, clock: int) -> str:
    """Return what an output does in a rewind to a clock."""
    if output.is_left_out:
        return "left out; goes back, or is refused, when it is added again"
    if output.action == NONE:
        return "has nothing above the clock"
    if output.action == REFUSE:
        return "can't go back"
    at = "the clock" if output.clock == clock else show_clock(output.clock)
    if output.action == AGAIN:
        every = "every clock" if output.clock is None else f"every clock above {show_clock(output.clock)}"
        return f"keeps what it has, and is given {every} again"
    if output.clock is None:
        return "takes back all that it has, and is given everything anew"
    more = "" if output.clock == clock else ", and is given every clock above that again"
    return f"takes back what is above {at}{more}"


def _begins(read: ReadAgain) -> str:
    """Return the positions from which a source is read again, by partition."""
    if not read.positions:
        return "the beginning"
    places = {name: read.begins.get(name, f"{position:,}") for name, position in read.positions.items()}
    return ", ".join(f"{name}: {place}" if name else place for name, place in places.items())


def _amount(read: ReadAgain) -> str:
    """Return how much is read again, in the unit of the source."""
    return f"{_count(read.count)} {read.unit}".rstrip()


def _count(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def made(plan: RewindPlan) -> Iterator[str]:
    """Yield the lines that say what a rewind has done."""
    yield ""
    yield f"application={plan.application} is back at clock={full_clock(plan.clock)}, in timeline {plan.timeline}"
    for each in plan.outputs:
        if each.action != NONE or each.is_left_out:
            yield f"task={_name(plan, each.task)} sink={each.output!r} {_done(each, plan.clock)}"


def _done(output: OutputPlan, clock: int) -> str:
    if output.is_left_out:
        return f"is {_action(output, clock)}"
    if output.action == AGAIN:
        return _action(output, clock)
    return "has gone back" if output.is_done else "goes back at the next start"


def refusals(plan: RewindPlan, again: str = 'outputs={{"{}": "again"}}') -> list[str]:
    """Return a sentence for each output that can't go back, with the form in which the user says that one gets clocks again."""
    return [
        f"{each.why}, or say {again.format(each.again_by)} to have them again." if each.again_by else f"{each.why}."
        for each in plan.outputs
        if each.action == REFUSE
    ]
