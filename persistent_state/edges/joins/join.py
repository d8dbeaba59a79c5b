"""The base of joins, and of the tasks of the graph in which the rows of both inputs wait and the right ones are kept."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeVar

import pyarrow as pa

from monoids import MonoidError
from monoids.nested import kept_type
from persistent_state.batch.plan import InputPlan, Plan
from persistent_state.batch.rows import StepChunk
from persistent_state.edges.base import Span, open_runs
from persistent_state.edges.in_order.messages import Messages, cant_wait
from persistent_state.edges.in_order.rows import EMITTED
from persistent_state.edges.in_order.states import States
from persistent_state.edges.in_order.step import cut, step_chunk
from persistent_state.edges.joins.pair import Columns, Pair, is_moved, pair_of, waiting_rows
from persistent_state.edges.joins.sides import Joined
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import Duration, duration
from persistent_state.ordered import InOrderTask
from persistent_state.partials import fold
from persistent_state.partials.keys import normal_type
from persistent_state.partials.layout import Levels, below, between, from_clock, one_chunk
from persistent_state.task import LOCAL_TIMESTAMP
from persistent_state.windows import LONGEST

T = TypeVar("T")

SHARE = 4
"""The part of a slice that is joined at a time: a message may be joined with several."""


class Join(InOrderTask):
    """The base of joins. It has the types of its state and its rows once the columns of both inputs are known."""

    # It emits rows, whose columns are known later.
    emits = pa.schema([])
    keeps_states: ClassVar[bool] = True
    waits_in: ClassVar[type[JoinMessages]]
    tolerance: int | None = None
    pair: Pair

    def __init__(self, left: str, right: str, key: str | Sequence[str] | None, name: str | None) -> None:
        for side, input in (("left", left), ("right", right)):
            if not isinstance(input, str) or not re.fullmatch(r"\w+", input):
                raise InvalidInputError(f"{side}={input!r} can't be the name of an input; use letters, digits and '_'.")
        if left == right:
            raise InvalidInputError(f"left={left!r} and right={right!r} are one name; give each input its own.")
        self.left, self.right, self.key = left, right, key
        self.name = f"{left}_{right}" if name is None else name


class JoinStates(States):
    """The task that has the newest right row of each key."""

    bound = "tolerance"
    ordered: Join

    @property
    def keeps_states(self) -> bool:
        return self.ordered.keeps_states

    @property
    def opened_as(self) -> str:
        # The type of the state is that of the right rows.
        return self.name

    @property
    def ttl(self) -> int | None:
        return self.ordered.tolerance


class JoinMessages(Messages):
    """The base of tasks in which the rows of both inputs of a join wait.

    Attributes:
        shares: Whether a column of the left and one of the right share a place: see `Pair`.
    """

    ordered: Join
    shares: ClassVar[bool]

    @property
    def keeps(self) -> str:
        return f"rows of {type(self.ordered).__name__}"

    @property
    def sides(self) -> dict[str, str]:
        return {self.ordered.left: "left", self.ordered.right: "right"}

    @property
    def waiting(self) -> pa.StructType:
        return self.ordered.pair.waiting if self.rows else pa.struct([])

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return waiting_rows(self.ordered.pair, self._input, batch)

    def arranged(self, inputs: Mapping[str, T]) -> Mapping[str, T]:
        left, right = self.sides
        if {*inputs} != {left, right}:
            given = ", ".join(map(repr, inputs))
            raise InvalidInputError(
                f"task={self.whole} joins the inputs {left!r} and {right!r}, and its inputs are {given}; give both: "
                f"{{{left!r}: ..., {right!r}: ...}}."
            )
        return {left: inputs[left], right: inputs[right]}

    def _learned(self, inputs: Mapping[str, InputPlan]) -> tuple[Join, dict[str, pa.Schema]]:
        join = copy.copy(self.ordered)
        left, right = (self._columns(name, inputs[name]) for name in self.sides)
        join.pair = pair_of(left, right, join.key_columns, self.shares)
        join.emits = pa.schema(list(join.pair.type))
        # Where no states are kept, no row has this type.
        join.state = pa.struct(list(right.schema)) if join.keeps_states else pa.bool_()
        return join, {name: join.pair.by_input[name].schema for name in inputs}

    def _columns(self, input: str, plan: InputPlan) -> Columns:
        """Return the columns of an input with the types in which joined rows have their values."""
        kept = []
        for field in _without_local(plan):
            try:
                kept.append(pa.field(field.name, kept_type(field.type)))
            except MonoidError:
                raise cant_wait(self.ordered, input, field) from None
        schema = pa.schema(kept)
        return Columns(input, schema, plan.task.key_columns, _beside(plan, schema))

    def _gone(self, field: str) -> str | None:
        if not is_moved(self.ordered.pair, field):
            return None
        return (
            f"task={self.whole}: rows wait, and their inputs have other columns now; give them those of before until "
            "all are joined."
        )

    def read(self, plan: Plan, fed: Plan, span: Span) -> Iterator[StepChunk]:
        since = self.reaches_back(span)
        waiting = open_runs(plan, span.runs_from(since))
        for low, high in fold.slices(waiting, share=SHARE):
            came = [below(from_clock(between(table, low, high), since), span.clock) for table in waiting]
            if any(map(len, came)):
                yield from (replace(chunk, high=high) for chunk in self.join(plan, fed, span, came))

    def join(self, plan: Plan, fed: Plan, span: Span, came: Levels) -> Iterator[StepChunk]:
        """Yield what a step makes of the rows of some keys: see `read`."""
        raise NotImplementedError


def clocks_between(came: Levels, span: Span) -> list[int]:
    """Return clocks from the first to the last of a span. A key alone may have more messages than there is room for."""
    return cut(came, span, max(1, 2 * fold.SLICE // SHARE))


def joined_chunk(plan: Plan, fed: Plan, messages: pa.Table, rows: Joined) -> StepChunk:
    """Return joined rows of these messages as a chunk."""
    of = pa.array(rows.rows)
    keys = [one_chunk(messages[key]).take(of) for key in plan.layout.key_names]
    return step_chunk(plan, fed, keys, {EMITTED: rows.values}, rows.moments, rows.numbers)


def length_of(name: str, given: Duration) -> int:
    """Return the microseconds of a duration that bounds a join; it may be 0.

    Raises:
        InvalidInputError: It is not a duration, or far too long.
    """
    found = duration(name, given)
    # The greatest is added to the same again, and to timestamps, within 64 bits.
    if found > LONGEST // 2:
        raise InvalidInputError(f"{name}={given!r}; it must be at most {LONGEST // 2} microseconds.")
    return found


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
