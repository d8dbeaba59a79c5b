"""Read the values that an output shows of a state. No Spark is needed, and any executor may read a part of them."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from persistent_state.batch.plan import Plan
from persistent_state.edges.output_rows import output_rows
from persistent_state.sinks.base import CLOCK
from persistent_state.sinks.values import LocalValues
from persistent_state.store.state_at import StateAt
from persistent_state.windows import TIME

ROWS_OF_A_PART = 50_000
"""The number of rows of an output for which one more part pays."""

ROWS = 10_000
"""The largest number of rows in an Arrow batch."""


def local_values(state: StateAt, plan: Plan, schema: pa.Schema) -> LocalValues:
    """Return the values that an output shows of a task's state at a clock, read in this process.

    Args:
        state: The state, as the output is to show it.
        plan: The plan of the task.
        schema: The columns of the values, as the sink's origin has them.
    """
    parts = state.shards + sum(run.rows for run in state.runs) // ROWS_OF_A_PART
    read = (partial(_batches_of_part, state.part(number, parts), plan, schema) for number in range(parts))
    return LocalValues(schema, tuple(read))


def _batches_of_part(part: StateAt, plan: Plan, schema: pa.Schema) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = with_clock(part, plan, schema).cast(schema).to_batches(ROWS)
    return batches


def with_clock(state: StateAt, plan: Plan, schema: pa.Schema) -> pa.Table:
    """Return the values of a part of the state as an output with the columns of `schema` shows them."""
    table = state.read()
    clock = pa.array(np.full(table.num_rows, state.clock)).cast(TIME)
    return output_rows(plan).of(table).add_column(schema.get_field_index(CLOCK), CLOCK, clock)
