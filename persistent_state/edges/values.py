"""Values of a task as rows that it gives to others, with what outputs show of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.batch.plan import Plan
from persistent_state.errors import InvalidInputError
from persistent_state.partials.layout import as_numpy, one_chunk
from persistent_state.sources.base import Chunk
from persistent_state.sources.tasks import TIMESTAMP
from persistent_state.windows import TIME


def schema_of(plan: Plan, values: Sequence[pa.Field]) -> pa.Schema:
    """Return the columns of rows that the task of a plan gives: its key, the window, these values, and the moment.

    Raises:
        InvalidInputError: Two columns have one name.
    """
    keys = map(pa.field, plan.task.key_columns, plan.layout.key_types)
    windows = [pa.field(name, TIME) for name in plan.layout.kind.window_columns]
    fields = [*keys, *windows, *values, pa.field(TIMESTAMP, TIME)]
    names = [field.name for field in fields]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidInputError(
            f"task={plan.named} gives two columns {twice!r} to the tasks that it feeds: its key columns, {TIMESTAMP!r} and the "
            "fields of its value need different names; rename the field."
        )
    return pa.schema(fields)


def fields_of(plan: Plan) -> list[pa.Field]:
    """Return the columns of what outputs show of a task's values. Where they are structs there is one for each field."""
    return _fields(plan.state.presented)


def _fields(type: pa.DataType) -> list[pa.Field]:
    return list(type) if pa.types.is_struct(type) else [pa.field("value", type)]


def presented(plan: Plan, values: pa.Array) -> pa.Array:
    """Return what outputs show of a column of values as structs; null where there is no value, and nowhere else."""
    there = values.is_valid()
    shown = plan.present(values.drop_null())
    if not pa.types.is_struct(shown.type):
        shown = pa.StructArray.from_arrays([shown], fields=fields_of(plan))
    elif shown.null_count:
        # A value that is presented as null is there all the same: its fields are null.
        shown = pa.StructArray.from_arrays(shown.flatten(), fields=list(shown.type))
    place = np.cumsum(np.asarray(there)) - 1
    return shown.take(pa.array(place, mask=~np.asarray(there)))


def chunk_of(
    plan: Plan, table: pa.Table, values: pa.StructArray, clocks: NDArray[np.int64], kind: type[Chunk] = Chunk
) -> Chunk:
    """Return a chunk of these values, whose moments are the last ones before their clocks.

    Nobody reads a row of them again, so no position is remembered. It is of the key: so rows of one moment have an order.
    """
    columns = [one_chunk(table[key]) for key in plan.layout.key_names]
    columns += [one_chunk(table[edge]).cast(TIME) for edge in plan.layout.kind.window_columns]
    times = pa.array(clocks - 1).cast(TIME)
    names = [*plan.task.key_columns, *plan.layout.kind.window_columns, *values.type.names, TIMESTAMP]
    rows = pa.RecordBatch.from_arrays([*columns, *values.flatten(), times], names=names)
    return kind(plan.name, 0, rows, at=places(table))


def places(table: pa.Table) -> NDArray[np.int64]:
    """Return what puts rows of one moment in order, by the hash of the key."""
    return (as_numpy(table, "hash") >> np.uint64(1)).astype(np.int64)
