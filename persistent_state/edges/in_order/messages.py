"""The part of an ordered task in which its messages wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.batch.plan import InputPlan, Plan
from persistent_state.batch.row_messages import row_messages
from persistent_state.edges.joins.columns import kept_columns, on_inputs
from persistent_state.edges.joins.interval import IntervalJoin
from persistent_state.edges.joins.pair import Join, is_moved, waiting_rows
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import show_duration
from persistent_state.event_time.inputs import INPUT
from persistent_state.ordered import InOrderTask, OrderedPart
from persistent_state.partials.evolve import Difference, plain
from persistent_state.partials.keys import normal_type
from persistent_state.partials.type_names import name_of, named
from persistent_state.partials.waiting import Rows
from persistent_state.state import KeptState
from persistent_state.task import LOCAL_TIMESTAMP, Message, messages_of
from persistent_state.windows import UntilPassed

Key: TypeAlias = str | Sequence[str] | None


class Messages(OrderedPart):
    """The task in which the messages of an ordered task wait.

    A message is a struct with a field for each input of the task, all null but one, which is its row. So inputs come and leave
    as fields of a type do. `schemas` are those of the inputs, by name. `input` is the one whose rows this task is given.
    """

    def __init__(
        self, task: InOrderTask, schemas: Mapping[str, pa.Schema], input: str = INPUT, key: Key | None = None
    ) -> None:
        self.name, self.key, self.ordered = messages_of(task.task_name), task.key if key is None else key, task
        self.message_id, self.horizon = task.message_id, task.horizon
        self.rows = {name: pa.struct(list(schema)) for name, schema in schemas.items()}
        self._input = input
        join = task if isinstance(task, Join) else None
        self.hands_keys, self.sides = join is None, {} if join is None else {join.left: "left", join.right: "right"}
        self.keeps = "any, in order" if join is None else f"rows of {type(join).__name__}"

    def other_window(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        was, is_ = (show_duration(window.get("back", 0)) for window in (before, now))
        return (
            f"rows waited for {was} after the clock had passed them when the store was written, and wait for {is_} by the "
            "bounds that the join has now"
        )

    def other_type(self, named: str, other: Difference) -> str | None:
        """Return the sentence that says why messages which wait can't get another type; None if that is for no such reason.

        Args:
            named: The name by which a user knows the task.
            other: A difference that values can't have.
        """
        if len(other.path) != 1 or other.after is not None:
            return None
        if not isinstance(self.ordered, Join):
            given = f"input={other.path[0]!r}"
            return f"task={named}: messages of {given} wait; give the task this input until it has them all."
        if not is_moved(self.ordered.pair, other.path[0]):
            return None
        return (
            f"task={named}: rows wait, and their inputs have other columns now; give them those of before until "
            "all are joined."
        )

    @property
    def back(self) -> int:
        """The microseconds for which a message is still needed after the clock has passed it."""
        return self.ordered.bounds.back if isinstance(self.ordered, IntervalJoin) else 0

    @property
    def is_unnamed(self) -> bool:
        """Return whether there is one input, which has no name."""
        return [*self.rows] == [INPUT]

    def persistent_state(self) -> KeptState[Any]:
        type = pa.struct([*self.rows.items()])
        if isinstance(self.ordered, Join) and self.rows:
            type = self.ordered.pair.waiting
        return KeptState(Rows(type), UntilPassed(self.back))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        if isinstance(self.ordered, Join):
            return waiting_rows(self.ordered.pair, self._input, batch)
        rows = pa.StructArray.from_arrays(batch.columns, fields=list(self.rows[self._input]))
        columns = [rows if name == self._input else pa.nulls(len(rows), type) for name, type in self.rows.items()]
        return pa.StructArray.from_arrays(columns, names=[*self.rows])

    def messages(self, times: NDArray[np.int64], values: pa.Array) -> Iterator[Message]:
        """Return an iterator of rows of this task as the messages that they are.

        One after the other, since Python looks at all objects that are alive again and again.
        """
        if len(self.rows) == 1:
            (name,) = self.rows
            return row_messages(_columns(values.field(name)), times.tolist(), name)
        inputs, of_each = np.zeros(len(times), np.intp), []
        for number, name in enumerate(self.rows):
            rows = values.field(name)
            own = np.asarray(rows.is_valid())
            inputs[own] = number
            of_each.append(row_messages(_columns(rows.drop_null()), times[own].tolist(), name))
        return (next(of_each[number]) for number in inputs.tolist())


def _columns(rows: pa.StructArray) -> dict[str, pa.Array]:
    columns = dict(zip(rows.type.names, rows.flatten(), strict=True))
    columns.pop(LOCAL_TIMESTAMP, None)
    return columns


def messages_in(plan: Plan) -> Messages | None:
    """Return the part in which messages wait, if that is the task of a plan."""
    return plan.task if isinstance(plan.task, Messages) else None


def messages_part(plan: Plan) -> Messages:
    """Return the task of a plan, which is the part in which messages wait."""
    return cast(Messages, plan.task)


def with_schemas(task: InOrderTask, inputs: Mapping[str, InputPlan]) -> tuple[Messages, dict[str, InputPlan]]:
    """Return the task in which messages of these inputs wait, and the plan of each input, once their schemas are known."""
    schemas = {name: plan.schema for name, plan in inputs.items()}
    for name, schema in schemas.items():
        _check_columns(task, name, schema)
    if isinstance(task, Join):
        schemas = {name: kept_columns(task, name, _without_local(plan)) for name, plan in inputs.items()}
        keys = {name: plan.task.key_columns for name, plan in inputs.items()}
        task = on_inputs(task, schemas, keys, {name: _beside(plan, schemas[name]) for name, plan in inputs.items()})
    tasks = {name: Messages(task, schemas, name, plan.task.key) for name, plan in inputs.items()}
    return Messages(task, schemas), {name: replace(plan, task=tasks[name]) for name, plan in inputs.items()}


def _check_columns(task: InOrderTask, input: str, columns: pa.Schema) -> None:
    """Refuse columns that can't wait.

    Raises:
        InvalidInputError: There is one.
    """
    for field in columns:
        type = plain(field.type)
        try:
            can_wait = named(name_of(type)) == type
        except ValueError:
            can_wait = False
        if not can_wait:
            where = f"input={input!r}" if input else "the source"
            raise InvalidInputError(
                f"task={task.task_name}: column {field.name!r} of {where} is {field.type}, which can't be kept; cast it, or "
                "leave it out, in the source's transform."
            )


def _without_local(plan: InputPlan) -> pa.Schema:
    """Return the columns of an input's rows without that which `run_local` adds to messages."""
    is_own = [name != LOCAL_TIMESTAMP or name != plan.timestamp for name in plan.schema.names]
    return pa.schema([field for field, own in zip(plan.schema, is_own, strict=True) if own])


def _beside(plan: InputPlan, kept: pa.Schema) -> dict[str, str]:
    """Return the columns of an input of a join that stand beside its rows as they are kept: of the key, and the timestamp."""
    found = {}
    for number, column in enumerate(plan.task.key_columns):
        type = kept.field(column).type if column in kept.names else None
        # Of floats a key has one zero and one NaN.
        if type is not None and not pa.types.is_floating(type) and normal_type(type) == type:
            found[column] = f"key{number}"
    if plan.timestamp in kept.names:
        type = plan.schema.field(plan.timestamp).type
        is_whole = pa.types.is_int64(type) and plan.timestamp_unit in (None, "us")
        if is_whole or pa.types.is_timestamp(type):
            found[plan.timestamp] = "start"
    return found
