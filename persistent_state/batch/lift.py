"""From a source's rows to updates: what is accounted for leaves, late and bad rows step aside, the rest become values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from monoids import MonoidError
from persistent_state.batch.messages import Basis
from persistent_state.batch.plan import COLUMN, FAIL, Plan
from persistent_state.batch.recorder import Recorder
from persistent_state.batch.units import check_unit
from persistent_state.errors import InvalidInputError, TaskFailedError, raised
from persistent_state.event_time import clocks
from persistent_state.event_time.channels import beyond_limit
from persistent_state.event_time.positions import NO_POSITION, Position, is_accounted
from persistent_state.partials import fold, keys
from persistent_state.partials.fold import ID
from persistent_state.sources.base import BadRecord, Chunk, Originals
from persistent_state.store.late_rows import (
    AHEAD,
    JUMP,
    LATE,
    NO_TIMESTAMP,
    REPLAYED_OR_LATE,
    SIDE_COLUMNS,
    UNFIT,
    UNFIT_KEY,
)
from persistent_state.task import Message

MOST = 2**62
"""The furthest a timestamp may be from the epoch, in microseconds: 146,000 years."""


@dataclass
class Lifted:
    """What a part of a micro-batch came to: tables of updates or messages, side rows, and what its channels showed."""

    tables: list[pa.Table] = field(default_factory=list)
    sides: list[pa.Table] = field(default_factory=list)
    newest: dict[str, int | None] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    replaying: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)


def microseconds(column: pa.Array, unit: str | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A timestamp column as microseconds UTC, and which rows have one. Finer units are cut off, naive times are UTC.

    Integers count in `unit` (None: microseconds).

    One that is further than `MOST` from the epoch is none: clocks are computed from it within 64 bits.
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
    most = MOST // scale
    if len(values) and (values.min() < -most or values.max() > most):
        valid = valid & (values <= most) & (values >= -most)
        values = np.where(valid, values, 0)
    return values if scale == 1 else values * scale, valid


def side_table(rows: pa.RecordBatch, where: NDArray[np.bool_], reason: str, place: Place) -> pa.Table:
    """Rows on their way to the side file: why, where they stood (null if their source has no positions), and themselves."""
    picked = pa.array(np.flatnonzero(where))
    count = len(picked)
    stamps = pa.array(place.timestamps, mask=~place.valid).take(picked)
    columns = {
        "reason": pa.array([reason] * count, pa.string()),
        "timestamp": stamps,
        "strand": pa.array([place.partition] * count, pa.string()),
        "channel": place.channels.take(picked),
        "position": pa.array(place.positions, mask=place.positions == NO_POSITION).take(picked),
        **_as_they_came(place.originals, place.positions[where]),
    }
    row = rows.take(picked)
    return pa.table({**columns, "row": pa.StructArray.from_arrays(row.columns, fields=list(row.schema))})


def _as_they_came(originals: Originals | None, positions: NDArray[np.int64]) -> dict[str, pa.Array]:
    """The columns of a side table that hold the records themselves."""
    if originals is None:
        return {"record": pa.nulls(len(positions), SIDE_COLUMNS["record"])}
    came = originals(positions)
    return {"record": came.column("record"), "origin": came.column("origin")}


@dataclass(frozen=True)
class Place:
    """Where the rows of a chunk stand in event time and in their source. The partition is the channel if none are `named`."""

    partition: str
    named: pa.Array | None
    positions: NDArray[np.int64]
    timestamps: NDArray[np.int64]
    valid: NDArray[np.bool_]
    originals: Originals | None = None

    @property
    def channels(self) -> pa.Array:
        """The channel of each row."""
        if self.named is None:
            return pa.repeat(pa.scalar(self.partition, pa.string()), len(self.timestamps))
        return self.named

    def take(self, where: NDArray[np.bool_]) -> Place:
        picked = np.flatnonzero(where)
        return Place(
            self.partition,
            None if self.named is None else self.named.take(pa.array(picked)),
            self.positions[picked],
            self.timestamps[picked],
            self.valid[picked],
            self.originals,
        )


def lift_chunk(plan: Plan, basis: Basis, chunk: Chunk, lifted: Lifted) -> None:
    """Add a chunk's updates to what its part of the micro-batch came to.

    Raises:
        TaskFailedError: user code raised, or a row is bad and bad rows are to fail.
        InvalidInputError: the first timestamps are integers of another unit than microseconds.
    """
    rows = chunk.rows.select(plan.schema.names)
    said = chunk.rows.column(COLUMN) if plan.task.update_way == "column" else None
    place = _place(plan, chunk)
    position = basis.positions.get(chunk.partition, Position())
    if chunk.partition not in basis.ends:
        known = place.positions[place.positions != NO_POSITION]
        end = int(known.max(initial=-1)) + 1
        lifted.ends[chunk.partition] = max(end, lifted.ends.get(chunk.partition, 0))
    bad_records = [r for r in chunk.bad if r.position >= position.next]
    if bad_records:
        _side(plan, lifted, _bad_records(plan, chunk, bad_records), "undecodable record")
    # A row without a timestamp was taken back with the clock if it can be delivered again, so only its position counts.
    stamps = place.timestamps if place.valid.all() else np.where(place.valid, place.timestamps, np.iinfo(np.int64).max)
    fresh = ~is_accounted(position, place.positions, stamps, basis.again)
    lifted.counts["skipped"] += int((~fresh).sum())
    unknown = fresh & (place.positions == NO_POSITION) & (stamps < basis.restored)
    lifted.counts[REPLAYED_OR_LATE] += int(unknown.sum())
    fresh &= ~unknown
    check_unit(plan, basis, lifted.newest, place.timestamps[fresh & place.valid])
    if not fresh.all():
        lifted.replaying.update(pc.unique(place.channels.filter(pa.array(~fresh))).to_pylist())
    # No interval begins below the clock, so what is taken in all the same is part of the first one above it.
    is_late = (place.timestamps < basis.clock) & (not plan.takes_late)
    verdicts = [(NO_TIMESTAMP, ~place.valid), (LATE, is_late)]
    verdicts.append((AHEAD, place.timestamps > basis.now + plan.settings.ahead))
    accepted = fresh.copy()
    if (late := fresh & place.valid & is_late).any():
        # A channel is there from its first message on, be it a late one: what follows holds the clock.
        heard = pc.unique(place.channels.filter(pa.array(late))).to_pylist()
        lifted.newest.update({name: None for name in heard if name not in basis.channels and name not in lifted.newest})
    for reason, applies in verdicts:
        if (aside := accepted & applies).any():
            _side(plan, lifted, side_table(rows, aside, reason, place), reason)
            accepted &= ~applies
    _watch_channels(plan, basis, place, accepted, rows, lifted)
    lifted.counts["messages"] += int(fresh.sum())
    lifted.counts["replayed"] += int((accepted & (place.positions < position.known)).sum())
    if not accepted.any():
        return
    unfit = np.zeros(rows.num_rows, np.bool_) if chunk.unfit is None else chunk.unfit
    if not accepted.all():
        rows, said, place = _taken(rows, said, place, accepted)
        unfit = unfit[accepted]
    if (unfit := unfit | unfit_keys(plan, rows)).any():
        _side(plan, lifted, side_table(rows, unfit, UNFIT_KEY, place), UNFIT_KEY)
        rows, said, place = _taken(rows, said, place, ~unfit)
        if rows.num_rows == 0:
            return
    times = np.maximum(place.timestamps, basis.clock) if plan.takes_late else place.timestamps
    replay = chunk.first if chunk.replay is None else chunk.replay
    # What is before the position is accounted for; rows without one come again wherever a replay starts.
    replay = position.next if replay == NO_POSITION else max(replay, position.next)
    lifted.spans.append((chunk.partition, replay, int(times.max())))
    columns = [keys.normalise(rows.column(name)) for name in plan.task.key_columns]
    base = {
        "hash": pa.array(keys.hash_keys(columns, rows.num_rows)),
        **{f"key{i}": column for i, column in enumerate(columns)},
        "time": pa.array(times),
    }
    if plan.task.message_id is not None:
        base[ID] = keys.normalise(rows.column(plan.task.message_id))
    if plan.layout.is_ordered or plan.task.reads_state:
        base["channel"], base["position"] = place.channels, pa.array(place.positions)
        base["strand"] = pa.repeat(pa.scalar(chunk.partition, pa.string()), rows.num_rows)
    if plan.task.reads_state:
        row = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
        lifted.tables.append(pa.table({**base, "row": row}))
        return
    taken, values, unfit = updates(plan, rows, said, place)
    if unfit.any():
        _side(plan, lifted, side_table(rows, unfit, UNFIT, place), UNFIT)
    lifted.tables.append(update_table(plan, base, taken, values))


def _taken(
    rows: pa.RecordBatch, said: pa.Array | None, place: Place, where: NDArray[np.bool_]
) -> tuple[pa.RecordBatch, pa.Array | None, Place]:
    mask = pa.array(where)
    return rows.filter(mask), None if said is None else said.filter(mask), place.take(where)


def update_table(
    plan: Plan, base: Mapping[str, pa.Array], taken: NDArray[np.int64] | None, values: pa.Array
) -> pa.Table:
    """Updates with the key and order of the rows they were taken from (None: one of each); several of one are numbered.

    Where messages count once, those of one are put together: what has come before then leaves as a whole.
    """
    columns = {
        name: c for name, c in base.items() if plan.layout.is_ordered or name not in ("channel", "position", "strand")
    }
    if plan.layout.once is not None and taken is not None and len(taken):
        known = values.is_valid().to_numpy(zero_copy_only=False)
        taken, values = taken[known], values.drop_null()
        begins = np.flatnonzero(np.append(True, taken[1:] != taken[:-1])[: len(taken)])
        values = fold.sums(values, begins, plan.layout) if len(begins) < len(taken) else values
        taken = taken[begins]
    if taken is not None:
        columns = {name: column.take(pa.array(taken)) for name, column in columns.items()}
    if plan.layout.is_ordered:
        number = 0 if taken is None else np.arange(len(taken)) - np.searchsorted(taken, taken)
        columns["number"] = pa.array(np.broadcast_to(number, len(values)).astype(np.int32))
    if plan.layout.gap is not None:
        columns["first"] = columns["last"] = columns["time"]
    table = pa.table({**columns, "value": values})
    return table.filter(values.is_valid()) if values.null_count else table


def updates(
    plan: Plan, rows: pa.RecordBatch, said: pa.Array | None, place: Place
) -> tuple[NDArray[np.int64] | None, pa.Array, NDArray[np.bool_]]:
    """The updates that a task makes of rows: from which row each is, the values, and which rows hold one that can't be.

    There may be one of each row, in their order: None. `said` are the updates that Spark has computed, if it has.
    """
    task, monoid = plan.task, plan.layout.monoid
    recorder = Recorder(plan)
    if task.update_way == "message":
        for i, message in enumerate(messages(rows, place)):
            recorder.process(task, message, i, lambda i=i: describe(plan, rows, place, i))
        return recorder.values(rows.num_rows)
    if said is not None:
        column = said
    elif task.value is not None:
        column = rows.column(task.value)
    else:
        try:
            column = task.process_batch(rows)
        except Exception as error:
            where = f"{describe(plan, rows, place, 0)} to {describe(plan, rows, place, rows.num_rows - 1)}"
            raise TaskFailedError(f"process_batch of task={plan.name} raised {raised(error)}, at {where}.") from error
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        if not isinstance(column, pa.Array):
            raise TaskFailedError(
                f"process_batch of task={plan.name} gave a {type(column).__name__}, not an Arrow array; make it one."
            )
        if len(column) != rows.num_rows:
            raise TaskFailedError(
                f"process_batch of task={plan.name} gave {len(column)} updates for {rows.num_rows} rows; "
                "give one for each, null for none."
            )
    if recorder.prepare is not None:
        recorder.take(column, lambda i: describe(plan, rows, place, i))
        return recorder.values(rows.num_rows)
    try:
        values, unfit = monoid.cast(column)
    except MonoidError as error:
        raise TaskFailedError(f"task={plan.name}: {error}") from error
    return None, values, unfit


def messages(rows: pa.RecordBatch, place: Place) -> Iterator[Message]:
    """The rows as messages; a column is converted when first asked for."""
    columns = _Columns(rows)
    for i, timestamp in enumerate(place.timestamps.tolist()):
        yield _RowMessage(timestamp, columns, i)


def describe(plan: Plan, rows: pa.RecordBatch, place: Place, i: int) -> str:
    """Channel, position and key of a row, for people."""
    key = {name: rows.column(name)[i].as_py() for name in plan.task.key_columns}
    position = place.positions[i] if place.positions[i] != NO_POSITION else "unknown"
    return f"channel={place.channels[i].as_py()!r} partition={place.partition!r} position={position} key={key}"


class _Columns(dict[str, list[Any]]):
    def __init__(self, rows: pa.RecordBatch) -> None:
        self._source = rows

    def __missing__(self, name: str) -> list[Any]:
        values: list[Any] = self._source.column(name).to_pylist()
        self[name] = values
        return values

    @property
    def names(self) -> Sequence[str]:
        names: list[str] = self._source.schema.names
        return names


class _RowMessage(Message):
    __slots__ = ("_columns", "_i")

    def __init__(self, timestamp: int, columns: _Columns, i: int) -> None:
        self.timestamp = timestamp
        self._columns = columns
        self._i = i

    def __getitem__(self, column: str) -> Any:
        return self._columns[column][self._i]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.names)

    def __len__(self) -> int:
        return len(self._columns.names)

    def __repr__(self) -> str:
        return f"Message({self.timestamp}, { {name: self[name] for name in self}!r})"


def _place(plan: Plan, chunk: Chunk) -> Place:
    timestamps, valid = microseconds(chunk.rows.column(plan.timestamp), plan.timestamp_unit)
    named = None if plan.channel is None else chunk.rows.column(plan.channel).cast(pa.string()).fill_null("")
    return Place(chunk.partition, named, chunk.positions, timestamps, valid, chunk.originals)


def unfit_keys(plan: Plan, rows: pa.RecordBatch) -> NDArray[np.bool_]:
    """Which rows have a key or an id that can't be stored, such as a time finer than microseconds."""
    unfit = np.zeros(rows.num_rows, dtype=np.bool_)
    for name in (*plan.task.key_columns, *([plan.task.message_id] if plan.task.message_id else [])):
        column = rows.column(name)
        if not _is_key(column):
            unfit |= [not _is_key(column.slice(i, 1)) for i in range(len(column))]
    return unfit


def _is_key(column: pa.Array) -> bool:
    try:
        keys.normalise(column)
    except InvalidInputError:
        return False
    return True


def _watch_channels(
    plan: Plan, basis: Basis, place: Place, accepted: NDArray[np.bool_], rows: pa.RecordBatch, lifted: Lifted
) -> None:
    """Note each channel's newest timestamp. A broken one beyond the jump limit steps aside and moves no clock."""
    if not accepted.any():
        return
    for name, of_channel in _by_channel(plan, place, accepted):
        known = basis.channels.get(name)
        newest = lifted.newest.get(name)
        if newest is None and known is not None:
            newest = known.newest
        stamps = place.timestamps if len(of_channel) == len(accepted) else place.timestamps[of_channel]
        if plan.settings.jump is not None:
            streak = lifted.beyond.get(name, known.beyond if known else 0)
            reached = known.before if newest is None and known is not None else newest
            reached = None if reached == clocks.BEGINNING else reached
            jumps, streak = beyond_limit(stamps, reached, streak, plan.settings.jump, plan.settings.believe)
            lifted.beyond[name] = streak
            if jumps.any():
                aside = np.zeros(len(accepted), dtype=np.bool_)
                aside[of_channel[jumps]] = True
                _side(plan, lifted, side_table(rows, aside, JUMP, place), JUMP)
                accepted &= ~aside
                stamps = stamps[~jumps]
        if len(stamps):
            top = int(stamps.max())
            lifted.newest[name] = top if newest is None else max(newest, top)
        else:
            lifted.newest.setdefault(name, None)


def _by_channel(plan: Plan, place: Place, accepted: NDArray[np.bool_]) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """Each channel of a chunk's accepted rows, and which they are."""
    if plan.channel is None:
        yield place.partition, np.flatnonzero(accepted)
        return
    some = np.flatnonzero(accepted)
    codes = pc.dictionary_encode(place.channels.take(pa.array(some)))
    index = codes.indices.to_numpy()
    # Sorted once: to look for each of many channels in all rows takes longer the more there are.
    some = some[np.argsort(index, kind="stable")]
    ends = np.cumsum(np.bincount(index, minlength=len(codes.dictionary)))
    yield from zip(codes.dictionary.to_pylist(), np.split(some, ends[:-1]), strict=True)


def _bad_records(plan: Plan, chunk: Chunk, records: Sequence[BadRecord]) -> pa.Table:
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
    return pa.table({**columns, "row": row})


def _side(plan: Plan, lifted: Lifted, table: pa.Table, reason: str) -> None:
    if reason != LATE:
        check_bad_rows(plan, table)
    lifted.sides.append(table)
    lifted.counts.update(table["reason"].to_pylist())


def check_bad_rows(plan: Plan, table: pa.Table) -> None:
    """Stop at bad rows where that is wanted.

    Raises:
        TaskFailedError: bad rows are to fail.
    """
    if plan.on_bad_row == FAIL:
        first = table.slice(0, 1).to_pylist()[0]
        row = first["row"] or {}
        key = {name: row.get(name) for name in plan.task.key_columns}
        raise TaskFailedError(
            f"task={plan.name} met a bad row ({first['reason']}) at channel={first['channel']!r} "
            f"partition={first['strand']!r} position={first['position']} key={key}; mend it, or keep bad rows aside."
        )
