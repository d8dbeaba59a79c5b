"""Rows of a chunk: where they stand in event time and in their source, and how they step aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.batch.groups import Groups
from persistent_state.batch.plan import FAIL, InputPlan
from persistent_state.errors import TaskFailedError
from persistent_state.event_time.clocks import FURTHEST
from persistent_state.event_time.inputs import UNNAMED, named_in
from persistent_state.event_time.positions import NO_POSITION
from persistent_state.formatting import in_python, shortened
from persistent_state.sources.base import BadRecord, Chunk, Originals
from persistent_state.store.late_rows import LATE, OUTSIDE, PARTITION, SIDE_COLUMNS

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class MixedChunk(Chunk):
    """Rows of several partitions and channels. `at` has the position of each row."""

    partitions: Groups = field(kw_only=True)
    channels: Groups = field(kw_only=True)


@dataclass(frozen=True)
class TakenBack(Chunk):
    """Rows that counted until now. What a task makes of them is taken back."""


@dataclass(frozen=True)
class StepChunk(Chunk):
    """Rows that a step made of messages. `aside` are the messages that were bad, as a side table. `counts` are for the report.

    Chunks come in the order of the hashes of keys: one with another `high` than the chunk before it has no hash below that
    chunk's `high`. All of its own are below its `high`.
    """

    aside: pa.Table | None = None
    high: int = 1 << 64
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """The place of rows in event time and in their source.

    `valid` marks the rows with a timestamp that counts, and `beyond` those with one that is out of range; None: no row has.
    """

    partitions: Groups
    channels: Groups
    positions: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    valid: Mask
    originals: Originals | None = None
    beyond: Mask | None = None

    def take(self, where: Mask) -> Place:
        """Return the place of the rows that a mask picks."""
        picked = np.flatnonzero(where)
        return Place(
            self.partitions.take(picked),
            self.channels.take(picked),
            self.positions[picked],
            self.timestamps[picked],
            self.valid[picked],
            self.originals,
            None if self.beyond is None else self.beyond[picked],
        )


def place_of(plan: InputPlan, chunk: Chunk) -> Place:
    """Return where the rows of a chunk stand."""
    column = chunk.rows.column(plan.timestamp)
    timestamps, valid = microseconds(column, plan.timestamp_unit)
    beyond = None if valid.all() else ~valid & np.asarray(column.is_valid())
    if isinstance(chunk, MixedChunk):
        partitions, channels = chunk.partitions, chunk.channels
    else:
        partitions = channels = Groups([chunk.partition])
        if plan.channel is not None:
            channels = Groups.of_column(chunk.rows.column(plan.channel))
            channels = replace(channels, names=[named_in(plan.input, name) for name in channels.names])
    return Place(partitions, channels, chunk.positions, timestamps, valid, chunk.originals, beyond)


def microseconds(column: pa.Array, unit: str | None) -> tuple[NDArray[np.int64], Mask]:
    """Return a timestamp column as microseconds UTC, and which rows have one.

    Finer units are cut off, and naive times are UTC. Integers count in `unit` (None: microseconds). A timestamp further than
    `FURTHEST` from the epoch counts as missing: clocks are computed from timestamps within 64 bits.
    """
    type = column.type
    per_unit = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
    unit = type.unit if pa.types.is_timestamp(type) else unit or "us"
    scale = per_unit[unit]
    if pa.types.is_date32(type):
        column, scale = column.cast(pa.int32()), 86_400_000_000
    valid = np.ones(len(column), np.bool_) if column.null_count == 0 else np.asarray(column.is_valid())
    ticks = column.cast(pa.int64())
    values = (ticks.fill_null(0) if column.null_count else ticks).to_numpy().astype(np.int64, copy=False)
    if unit == "ns":
        return values // 1_000, valid
    most = FURTHEST // scale
    if len(values) and (values.min() < -most or values.max() > most):
        valid = valid & (values <= most) & (values >= -most)
        values = np.where(valid, values, 0)
    return values if scale == 1 else values * scale, valid


def side_table(
    plan: InputPlan, rows: pa.RecordBatch, where: Mask, reason: str | Sequence[str], place: Place
) -> pa.Table:
    """Return rows as they stand in a file of late and bad rows. Their position is null if their source has no positions.

    Args:
        plan: The plan of the rows.
        rows: Rows, of which a mask `where` picks some.
        where: The mask.
        reason: The reason of all these rows, or that of each.
        place: The place of `rows`.
    """
    picked = pa.array(np.flatnonzero(where))
    count = len(picked)
    stamps = pa.array(place.timestamps, mask=~place.valid).take(picked)
    columns = {
        "reason": pa.array([reason] * count if isinstance(reason, str) else reason, pa.string()),
        "timestamp": stamps,
        "strand": place.partitions.take(where).column(count),
        "channel": place.channels.take(where).column(count),
        "position": pa.array(place.positions, mask=place.positions == NO_POSITION).take(picked),
        **_as_they_came(place.originals, place.positions[where]),
    }
    row = rows.take(picked)
    return pa.table(
        {**columns, "row": _of_input(plan, pa.StructArray.from_arrays(row.columns, fields=list(row.schema)))}
    )


def bad_record_table(plan: InputPlan, chunk: Chunk, records: Sequence[BadRecord]) -> pa.Table:
    """Return records that could not be decoded as they stand in a file of late and bad rows."""
    count = len(records)
    channel = chunk.partition if plan.channel is None else ""
    positions = np.array([record.position for record in records], np.int64)
    row = pa.StructArray.from_arrays(
        [pa.nulls(count, f.type) for f in plan.schema], fields=list(plan.schema), mask=pa.array([True] * count)
    )
    columns = {
        "reason": pa.array([record.reason for record in records], pa.string()),
        "timestamp": pa.nulls(count, pa.int64()),
        "strand": pa.array([chunk.partition] * count, pa.string()),
        "channel": pa.array([channel] * count, pa.string()),
        "position": pa.array(positions),
        **_as_they_came(chunk.originals, positions),
    }
    return pa.table({**columns, "row": _of_input(plan, row)})


def _of_input(plan: InputPlan, row: pa.StructArray) -> pa.StructArray:
    """Return rows as a column of side tables. Where there are several inputs, each has a field of its own in it."""
    return pa.StructArray.from_arrays([row], names=[plan.input or UNNAMED]) if plan.among else row


def _as_they_came(originals: Originals | None, positions: NDArray[np.int64]) -> dict[str, pa.Array]:
    """Return the columns of a side table that hold the records themselves."""
    if originals is None:
        return {"record": pa.nulls(len(positions), SIDE_COLUMNS["record"])}
    came = originals(positions)
    return {"record": came.column("record"), "origin": came.column("origin")}


def check_bad_rows(plan: InputPlan, table: pa.Table, misfit: str = "") -> None:
    """Stop at bad rows if the task is to fail at them. Late rows are not bad, nor are those outside the bounds of their input.

    Args:
        plan: The plan of the rows.
        table: The side table.
        misfit: What did not fit in its first row, if more is known than the reason.

    Raises:
        TaskFailedError: The side table has bad rows, and bad rows are to fail.
    """
    if plan.on_bad_row != FAIL:
        return
    if table["reason"][0].as_py() in (LATE, OUTSIDE):
        return
    raise TaskFailedError(
        f"task={plan.named} met a bad row {reason_of_first(plan, table, misfit)}; correct it, or set on_bad_row='keep' to put "
        "bad rows aside."
    )


def reason_of_first(plan: InputPlan, table: pa.Table, misfit: str = "") -> str:
    """Return why the first row of a side table is there, and where it stood, for people.

    Args:
        plan: The plan of the rows.
        table: The side table.
        misfit: What did not fit in the row, if more is known than the reason.
    """
    reasons = [table["reason"][0].as_py(), misfit or _unread(plan, table)]
    return f"({', '.join(filter(None, reasons))}) at {place_of_first(plan, table)}"


def place_of_first(plan: InputPlan, table: pa.Table) -> str:
    """Return where the first row of a side table stood, and its key if it could be read, for people."""
    strand = PARTITION if PARTITION in table.column_names else "strand"
    channel, partition, position = (table[name][0].as_py() for name in ("channel", strand, "position"))
    place, row = _place(_origin(table), channel, partition, position), _first_row(plan, table)
    if not row.is_valid:
        return place
    key = {name: in_python(row[name]) if name in row.type.names else None for name in plan.task.key_columns}
    return f"{place} key={key}"


def _unread(plan: InputPlan, table: pa.Table) -> str:
    """Return the first record of a side table, or its value that does not fit its column; "" if it could be read."""
    if _first_row(plan, table).is_valid:
        return ""
    value = _origin(table).get("value")
    unread = table["record"][0].as_py() if value is None else value
    text = unread.decode(errors="backslashreplace") if isinstance(unread, bytes) else unread
    return "" if text is None else shortened(repr(text))


def _first_row(plan: InputPlan, table: pa.Table) -> pa.StructScalar:
    """Return the first row of a side table, as its input has it."""
    return table["row"][0][plan.input or UNNAMED] if plan.among else table["row"][0]


def _origin(came: pa.Table | Mapping[str, pa.Array]) -> Mapping[str, Any]:
    """Return where the first record stood; nothing if its source does not say so."""
    names = came.column_names if isinstance(came, pa.Table) else came
    return (came["origin"][0].as_py() if "origin" in names else None) or {}


def describe(plan: InputPlan, rows: pa.RecordBatch, place: Place, i: int) -> str:
    """Return where a row stood, and its key, for people."""
    key = {name: in_python(rows.column(name)[i]) for name in plan.task.key_columns}
    position = int(place.positions[i])
    origin = _origin(_as_they_came(place.originals, place.positions[i : i + 1]))
    known = None if position == NO_POSITION else position
    return f"{_place(origin, place.channels.name(i), place.partitions.name(i), known)} key={key}"


def _place(origin: Mapping[str, Any], channel: str, partition: str, position: int | None) -> str:
    """Return where a record stood: its file and line where they are known, else its partition and position."""
    if (file := origin.get("file")) is None:
        place = "unknown" if position is None else position
        return f"channel={channel!r} partition={partition!r} position={place}"
    line = "" if origin.get("line") is None else f" line={origin['line']}"
    return f"file={file!r}{line}{f' channel={channel!r}' if channel else ''}"
