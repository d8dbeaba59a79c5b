"""The part of an ordered task that has the rows which the task emits."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from persistent_state.batch.plan import Plan
from persistent_state.edges.in_order.part import OrderedPart
from persistent_state.ordered import InOrderTask
from persistent_state.partials.layout import one_chunk
from persistent_state.partials.waiting import Rows
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.state import KeptState
from persistent_state.task import name_of_rows
from persistent_state.windows import TIME, UntilPassed

EMITTED = "emitted row"
"""The column of what a step makes that has an emitted row; null in the row of a state."""

NUMBERS = 40
"""The bits of a row's number among those that were emitted for a key at a moment. Above them stands its rank."""


class EmittedRows(OrderedPart):
    """The task that has the rows which an ordered task emits."""

    value = EMITTED
    other_name = "define it under one"

    def __init__(self, task: InOrderTask) -> None:
        super().__init__(task, name_of_rows(task.task_name))

    @property
    def has_rows(self) -> bool:
        """Return whether the ordered task emits rows."""
        return self.ordered.emits is not None

    def persistent_state(self) -> KeptState[Any]:
        return KeptState(Rows(row_type(self.ordered)), UntilPassed())


def row_type(task: InOrderTask) -> pa.DataType:
    """Return the type of the rows that a task emits."""
    return pa.struct([] if task.emits is None else list(task.emits))


def emitted_schema(plan: Plan) -> pa.Schema:
    """Return the columns of emitted rows, given the plan of the task that has them: the key's, those of `emits`, the moment."""
    emits = [*row_type(cast(EmittedRows, plan.task).ordered)]
    keys = dict(zip(plan.task.key_columns, plan.layout.key_types, strict=True))
    columns = keys | {field.name: field.type for field in emits}
    return pa.schema([*columns.items(), (TIMESTAMP, TIME)])


def emitted_table(plan: Plan, table: pa.Table) -> pa.Table:
    """Return emitted rows in these columns, of a table of their keys, their moments and the rows.

    A key column that `emits` names, too, is as the task emitted it.
    """
    *keys, moments, rows = map(one_chunk, table.columns)
    columns = dict(zip(plan.task.key_columns, keys, strict=True))
    columns |= dict(zip(rows.type.names, rows.flatten(), strict=True))
    return pa.Table.from_arrays([*columns.values(), moments.cast(TIME)], schema=emitted_schema(plan))
