"""The rows that outputs show of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from persistent_state.batch.plan import Plan
from persistent_state.edges.in_order.rows import EmittedRows, emitted_schema, emitted_table
from persistent_state.sinks.base import CLOCK, VALUE
from persistent_state.store.state_at import with_presented
from persistent_state.windows import FINAL, TIME


@dataclass(frozen=True)
class OutputRows:
    """The values of a task's keys, as outputs show them.

    Attributes:
        plan: The plan of the task.
        is_unique: Whether a key and window has at most one row at a clock.
    """

    plan: Plan
    is_unique: ClassVar[bool] = True

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the key, and of the window if there is one."""
        return (*self.plan.task.key_columns, *(field.name for field in self.plan.layout.window_fields))

    @property
    def schema(self) -> pa.Schema:
        """The columns of running values: the key columns, the columns of the window if there is one, and `value`."""
        keys = map(pa.field, self.plan.task.key_columns, self.plan.layout.key_types)
        return pa.schema([*keys, *self.plan.layout.window_fields, (VALUE, self.plan.state.presented)])

    def schema_at_clock(self, early: bool = False) -> pa.Schema:
        """Return the columns of values at a clock: `clock` stands before `value`. `early` values have `final` (bool), too."""
        more = [pa.field(CLOCK, TIME), *([pa.field(FINAL, pa.bool_())] if early else [])]
        *columns, value = self.schema
        return pa.schema([*columns, *more, value])

    def of(self, table: pa.Table) -> pa.Table:
        """Return what outputs show of a state, whose last column is `value`."""
        return with_presented(table, self.plan.present)


class EmittedOutput(OutputRows):
    """The rows that an ordered task emitted, as outputs show them."""

    is_unique = False

    @property
    def key(self) -> tuple[str, ...]:
        return self.plan.task.key_columns

    @property
    def schema(self) -> pa.Schema:
        return emitted_schema(self.plan)

    def schema_at_clock(self, early: bool = False) -> pa.Schema:
        return self.schema.append(pa.field(CLOCK, TIME))

    def of(self, table: pa.Table) -> pa.Table:
        return emitted_table(self.plan, table)


def output_rows(plan: Plan) -> OutputRows:
    """Return the rows that outputs show of a task."""
    return (EmittedOutput if isinstance(plan.task, EmittedRows) else OutputRows)(plan)
