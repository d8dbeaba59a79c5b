"""Outputs of a task: running values of each micro-batch, or values at each checkpoint clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from persistent_state.errors import InvalidInputError, check_takes
from persistent_state.sinks.base import Sink
from persistent_state.sinks.function import Function
from persistent_state.sinks.values import Values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


DATAFRAME, ARROW = "dataframe", "arrow"
"""The forms in which a function is given values: a DataFrame of Spark, or `Values`, which are Arrow under any engine."""


def check_form(as_: str) -> None:
    """Refuse a form of values that is not one.

    Raises:
        InvalidInputError: It is another.
    """
    if as_ not in (DATAFRAME, ARROW):
        raise InvalidInputError(f"as_={as_!r}; say {DATAFRAME!r} or {ARROW!r}.")


@dataclass(frozen=True)
class RunningValues:
    """The values so far of the keys that a micro-batch touched, at once and provisional.

    After a restart the values above the global clock come again, and `batch` counts from 0 again. If the function raises, the
    application starts again.

    Args:
        function: Called as function(values, batch) after each micro-batch, which `Local` may commit a little later. `values` is
            a DataFrame of the key columns and `value`, `batch` the number of the micro-batch. With Spark Connect it runs in a
            Python of the server.
        as_: "arrow" lets the function be given `Values` in place of a DataFrame. Without Spark there is no DataFrame.

    Raises:
        InvalidInputError: `as_` is neither "dataframe" nor "arrow".

    Example:
        >>> def show(values, batch):
        ...     values.show()
        >>> output = RunningValues(show)
    """

    function: Callable[[DataFrame, int], None] | Callable[[Values, int], None]
    as_: str = DATAFRAME

    def __post_init__(self) -> None:
        check_form(self.as_)


@dataclass(frozen=True)
class ValuesAtClock:
    """The values at each checkpoint clock, exact: read from the durable checkpoint once the global clock has reached it.

    The sink is given one clock after the other, each until the log records that the sink has it. A clock that fails is tried
    again; neither the state nor another sink waits for it. A checkpoint stays retained until all sinks have it. Multiples of
    the interval that a commit jumps over, as in a backlog, are no checkpoints.

    Values are of the keys that changed since the clock before. The first values that a sink is given are of every key. A key
    whose state has outlived its `ttl` has the zero. Values of a `WindowState` are those of the windows that have closed since
    the clock before, each once and final.

    Args:
        sink: A `Sink`, or a function of (values, clock); the clock is in microseconds UTC.
        all: Give the values of every key at each clock.
        name: The name under which the log records what the sink has, by default the sink's own. Under another name the sink is
            given everything again.
        early: Give also the open windows of a `WindowState` that have changed. A column `final` says whether a value is final:
            the final value of a window comes under the same key, `window_start` and `window_end` as its early ones. A session
            has no early values, as its end is not known before it closes.
        on_rewind: For a function: called as on_rewind(clock) after a rewind of the application, before the next clock. It takes
            back what the function did with values above the clock, which is -2**63 if nothing may stay. A call may come again,
            and one of a process that was fenced may come late. Without it such a rewind is refused, unless the clocks above are
            to come again.
        as_: For a function: "arrow" lets it be given `Values`, as a `Sink` is, in place of a DataFrame. Without Spark there is
            no DataFrame.

    Raises:
        InvalidInputError: `on_rewind` is not a function of the clock, or `sink` is not a function, or `as_` is neither
            "dataframe" nor "arrow".

    Example:
        >>> ValuesAtClock(ConsoleSink(), all=True).output_name
        'console'
    """

    sink: Sink | Callable[[DataFrame, int], None] | Callable[[Values, int], None]
    all: bool = False
    name: str | None = None
    early: bool = False
    on_rewind: Callable[[int], None] | None = None
    as_: str = DATAFRAME

    def __post_init__(self) -> None:
        check_form(self.as_)
        if self.as_ == ARROW and isinstance(self.sink, Sink):
            raise InvalidInputError(
                f"sink={self.sink!r} is given with as_={ARROW!r}, which is for a function; leave it out, a Sink is given Arrow."
            )
        if self.on_rewind is not None:
            check_takes("on_rewind", self.on_rewind, "clock")
            if isinstance(self.sink, Sink):
                raise InvalidInputError(
                    f"sink={self.sink!r} is given with on_rewind, which is for a function; leave it out, or define rewind() in "
                    "the sink."
                )

    @property
    def place(self) -> Sink:
        """The sink; a function is wrapped as one."""
        return self.sink if isinstance(self.sink, Sink) else Function(self.sink, self.on_rewind, self.as_ == ARROW)

    @property
    def output_name(self) -> str:
        """The name under which the log records what the sink has."""
        return self.name or self.place.name


Output: TypeAlias = "RunningValues | ValuesAtClock | Sink | Callable[[DataFrame, int], None]"


@dataclass(frozen=True)
class Outputs:
    """The outputs of one task, by kind."""

    running: tuple[RunningValues, ...]
    at_clock: tuple[ValuesAtClock, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs at clocks."""
        return tuple(output.output_name for output in self.at_clock)


def check_places(tasks: Mapping[str, Outputs]) -> None:
    """Refuse outputs that would take each other's clocks for their own.

    Raises:
        InvalidInputError: Two outputs, of one task or of two, write to a place that keeps one record for both.
    """
    known: dict[Hashable, str] = {}
    for task, outputs in tasks.items():
        for output in outputs.at_clock:
            named = f"task={task}" if output.name is None else f"task={task}, sink={output.name!r}"
            for record in output.place.records(task):
                if record in known:
                    raise InvalidInputError(
                        f"{named} writes to the place of {known[record]}, {output.place.name}, where one record tells which "
                        "clocks were written: each would leave out rows of the other; give each a place of its own."
                    )
            known |= dict.fromkeys(output.place.records(task), named)


def _listed(given: Output | Sequence[Output] | None) -> list[Output]:
    # A text, which is not an output, is a sequence too.
    several = isinstance(given, Sequence) and not isinstance(given, str)
    return [] if given is None else list(given) if several else [given]  # type: ignore[arg-type, list-item]


def outputs_of_ordered(task: str, given: Output | Sequence[Output] | None, emits: bool) -> tuple[Outputs, Outputs]:
    """Sort the outputs that a user gives an ordered task: those of its states, and those of the rows that it emits.

    Raises:
        InvalidInputError: One is not an output of such a task, or two have the same name.
    """
    found = outputs_of(task, given)
    if found.running:
        raise InvalidInputError(
            f"task={task}: {found.running[0]!r} asks for values so far, and an ordered task has none before the clock; give "
            "the function itself, or ValuesAtClock."
        )
    listed = _listed(given)
    of_rows = [not isinstance(each, ValuesAtClock) and emits for each in listed]
    states, rows = (
        Outputs(
            (),
            tuple(output for output, is_of_rows in zip(found.at_clock, of_rows, strict=True) if is_of_rows == wanted),
        )
        for wanted in (False, True)
    )
    return states, rows


def outputs_of(task: str, given: Output | Sequence[Output] | None) -> Outputs:
    """Sort the outputs that a user gives a task. A sink or a function alone is given values at each clock.

    Raises:
        InvalidInputError: One is not an output, or two have the same name.
    """
    listed = _listed(given)
    running, at_clock = [], []
    for output in listed:
        chosen = output if isinstance(output, (RunningValues, ValuesAtClock)) else ValuesAtClock(output)
        given_to: Any = chosen.function if isinstance(chosen, RunningValues) else chosen.sink
        # A class is a function too, but only by mistake.
        if isinstance(given_to, type) or not (callable(given_to) or isinstance(given_to, Sink)):
            such_as = f", such as ParquetSink({given_to!r})" if isinstance(given_to, str) else ""
            raise InvalidInputError(
                f"task={task}: sink={given_to!r} is not an output; give a Sink{such_as}, a function of (values, clock), "
                "ValuesAtClock or RunningValues."
            )
        if not isinstance(given_to, Sink):
            check_takes(
                f"task={task}: sink", given_to, "values", "batch" if isinstance(chosen, RunningValues) else "clock"
            )
        if isinstance(chosen, RunningValues):
            running.append(chosen)
        else:
            at_clock.append(chosen)
    found = Outputs(tuple(running), tuple(at_clock))
    for name, count in Counter(found.names).items():
        if count > 1:
            raise InvalidInputError(
                f"task={task}: {count} outputs are named {name!r}; give them names, ValuesAtClock(name=...)."
            )
    return found
