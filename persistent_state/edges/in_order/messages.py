"""The part of an ordered task in which its messages wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar, cast

import pyarrow as pa

from persistent_state.batch.plan import InputPlan, Plan
from persistent_state.batch.rows import StepChunk
from persistent_state.edges.base import Span
from persistent_state.edges.in_order.part import OrderedPart
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.durations import show_duration
from persistent_state.event_time.inputs import INPUT
from persistent_state.ordered import InOrderTask
from persistent_state.partials.evolve import Difference, plain
from persistent_state.partials.type_names import name_of, type_named
from persistent_state.partials.waiting import Rows
from persistent_state.state import KeptState
from persistent_state.task import name_of_messages
from persistent_state.windows import UntilPassed

Key: TypeAlias = str | Sequence[str] | None
T = TypeVar("T")


class Messages(OrderedPart):
    """The base of tasks in which the messages of an ordered task wait.

    Args:
        task: The ordered task.
        schemas: The columns of its inputs, by name.
        input: The input whose rows this task is given.
        key: The key of these rows, by default that of the ordered task.
    """

    def __init__(
        self, task: InOrderTask, schemas: Mapping[str, pa.Schema], input: str = INPUT, key: Key | None = None
    ) -> None:
        OrderedPart.__init__(self, task, name_of_messages(task.task_name))
        self.key = task.key if key is None else key
        self.message_id, self.horizon = task.message_id, task.horizon
        self.rows = {name: pa.struct(list(schema)) for name, schema in schemas.items()}
        self._input = input

    @property
    def back(self) -> int:
        """The microseconds for which a message is still needed after the clock has passed it."""
        return 0

    @property
    def waiting(self) -> pa.StructType:
        """The type of a message that waits: a struct with a field for each input, all null but one.

        So inputs come and leave as fields of a type do.
        """
        return pa.struct([*self.rows.items()])

    def persistent_state(self) -> KeptState[Any]:
        return KeptState(Rows(self.waiting), UntilPassed(self.back))

    def read(self, plan: Plan, fed: Plan, span: Span) -> Iterator[StepChunk]:
        """Yield what the ordered task makes of the messages that the clock has passed.

        Args:
            plan: The plan of the task in which the messages wait.
            fed: The plan of the task that has the states.
            span: The runs of a shard of both.
        """
        raise NotImplementedError

    def reaches_back(self, span: Span) -> int:
        """Return the time of the first messages that the task still has for a step."""
        return max(BEGINNING, span.since - self.back)

    def arranged(self, inputs: Mapping[str, T]) -> Mapping[str, T]:
        """Return what is given by the names of the task's inputs in their order.

        Raises:
            InvalidInputError: The inputs are others than the task has.
        """
        return inputs

    def on_inputs(self, inputs: Mapping[str, InputPlan]) -> tuple[Messages, dict[str, InputPlan]]:
        """Return the task, and the plans of its inputs, once their columns are known."""
        for name, plan in inputs.items():
            _check_columns(self.ordered, name, plan.schema)
        task, schemas = self._learned(inputs)
        tasks = {name: type(self)(task, schemas, name, plan.task.key) for name, plan in inputs.items()}
        return type(self)(task, schemas), {name: replace(plan, task=tasks[name]) for name, plan in inputs.items()}

    def _learned(self, inputs: Mapping[str, InputPlan]) -> tuple[InOrderTask, dict[str, pa.Schema]]:
        """Return the ordered task with what it learns from its inputs, and the columns of these as they are kept."""
        return self.ordered, {name: plan.schema for name, plan in inputs.items()}

    def other_window(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        was, is_ = (show_duration(window.get("back", 0)) for window in (before, now))
        return (
            f"rows waited for {was} after the clock had passed them when the store was written, and wait for {is_} by the "
            "bounds that the join has now"
        )

    def other_type(self, other: Difference) -> str | None:
        """Return the sentence that says why messages which wait can't get another type; None if that is for no such reason.

        Args:
            other: A difference that values can't have.
        """
        return self._gone(other.path[0]) if len(other.path) == 1 and other.after is None else None

    def _gone(self, field: str) -> str | None:
        """Return the sentence that says why messages which wait need a field; None if they do not."""
        return f"task={self.whole}: messages of input={field!r} wait; give the task this input until it has them all."


def messages_in(plan: Plan) -> Messages | None:
    """Return the part in which messages wait, if that is the task of a plan."""
    return plan.task if isinstance(plan.task, Messages) else None


def messages_part(plan: Plan) -> Messages:
    """Return the task of a plan, which is the part in which messages wait."""
    return cast(Messages, plan.task)


def _check_columns(task: InOrderTask, input: str, columns: pa.Schema) -> None:
    """Refuse columns that can't wait.

    Raises:
        InvalidInputError: There is one.
    """
    for field in columns:
        type = plain(field.type)
        try:
            can_wait = type_named(name_of(type)) == type
        except ValueError:
            can_wait = False
        if not can_wait:
            raise cant_wait(task, input, field)


def cant_wait(task: InOrderTask, input: str, column: pa.Field) -> InvalidInputError:
    """Return the error that refuses a column whose values can't wait."""
    where = f"input={input!r}" if input else "the source"
    return InvalidInputError(
        f"task={task.task_name}: column {column.name!r} of {where} is {column.type}, which can't be kept; cast it, or leave it "
        "out, in the source's transform."
    )
