"""The messages that wait in one part of an ordered task, as what feeds the parts that have its states and its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

import pyarrow as pa

from persistent_state.batch.plan import Plan
from persistent_state.batch.rows import StepChunk
from persistent_state.edges.base import Edge, Span
from persistent_state.edges.in_order.messages import messages_part
from persistent_state.edges.in_order.part import OrderedPart
from persistent_state.edges.in_order.rows import EMITTED, row_type
from persistent_state.edges.in_order.states import STATE
from persistent_state.edges.in_order.step import timed_runs
from persistent_state.partials.newest import Newest
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.store.task_state import IN_ORDER
from persistent_state.task import PersistentTask
from persistent_state.windows import TIME


@dataclass(frozen=True)
class InOrder(Edge):
    """The messages that wait in another task, as the source of the task that processes them in order."""

    task: str

    kind: ClassVar[str] = IN_ORDER
    is_in_order: ClassVar[bool] = True

    def misfit(self, tasks: Mapping[str, PersistentTask]) -> None:
        return None

    def schema(self, plan: Plan, fed: PersistentTask) -> pa.Schema:
        task = cast(OrderedPart, fed).ordered
        assert task.state is not None
        keys = map(pa.field, plan.task.key_columns, plan.layout.key_types)
        made = [(STATE, Newest(task.state).type), (EMITTED, row_type(task)), (TIMESTAMP, TIME)]
        return pa.schema([*keys, *(pa.field(*each) for each in made)])

    def may_give(self, plan: Plan, span: Span) -> bool:
        return bool(span.runs_from(messages_part(plan).reaches_back(span)) or timed_runs(span))

    def read(self, plan: Plan, fed: Plan, span: Span) -> Iterator[StepChunk]:
        return messages_part(plan).read(plan, fed, span)

    def begins_with(self, fed: Plan, clock: str) -> str:
        return f"the messages after clock={clock}"
