"""From a source's rows to updates: late and bad rows step aside, accepted ones become tables of updates or messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from persistent_state.batch.groups import NO_ROWS
from persistent_state.batch.judge import ACCEPTED, ASIDE, REPLAYED_OR_LATE, SKIPPED, UNFIT_KEY, Codes, Sightings, judge
from persistent_state.batch.messages import Basis
from persistent_state.batch.plan import COLUMN, Plan
from persistent_state.batch.rows import MixedChunk, Place, bad_record_table, check_bad_rows, place_of, side_table
from persistent_state.batch.update import update_table, updates_of
from persistent_state.event_time.positions import NO_POSITION, Position
from persistent_state.partials import keys
from persistent_state.partials.layout import ID
from persistent_state.sources.base import Chunk
from persistent_state.store import late_rows

UNREAD = Position()
"""The position of a partition of which nothing was read."""


@dataclass
class Lifted:
    """The result of a part of a micro-batch, which grows chunk by chunk.

    `tables` hold updates, or messages where a task reads its state. `spans` are (partition, first position, newest timestamp),
    and `ends` tell how far the rows of a partition go whose end nobody planned.
    """

    tables: list[pa.Table] = field(default_factory=list)
    sides: list[pa.Table] = field(default_factory=list)
    sightings: Sightings = field(default_factory=Sightings)
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    def put_aside(self, plan: Plan, table: pa.Table) -> None:
        """Keep and count late or bad rows.

        Raises:
            TaskFailedError: The rows are bad, and bad rows are to fail.
        """
        check_bad_rows(plan, table)
        self.sides.append(table)
        self.counts.update(table["reason"].to_pylist())


def lift_chunk(plan: Plan, basis: Basis, chunk: Chunk, lifted: Lifted) -> None:
    """Add the updates, the late and bad rows, and the counts of a chunk to the result of its part.

    Raises:
        TaskFailedError: User code raised, or a row is bad and bad rows are to fail.
        InvalidInputError: The first timestamps are integers of another unit than microseconds.
    """
    place = place_of(plan, chunk)
    before = [basis.positions.get(name, UNREAD) for name in place.partitions.names]
    _note_ends(basis, place, lifted.ends)
    codes = judge(plan, basis, chunk, place, before, lifted.sightings)
    _put_aside(plan, chunk, place, before[0], codes, lifted)
    _count(place, before, codes, lifted.counts)
    accepted = codes == ACCEPTED
    if not accepted.any():
        return
    firsts = _firsts(chunk, place)
    rows, computed = chunk.rows.select(plan.schema.names), None
    if plan.task.update_way == "column":
        computed = chunk.rows.column(COLUMN)
    if not accepted.all():
        mask, place = pa.array(accepted), place.take(accepted)
        rows, computed = rows.filter(mask), None if computed is None else computed.filter(mask)
    times = np.maximum(place.timestamps, basis.clock) if plan.takes_late else place.timestamps
    newest = place.partitions.greatest(times)
    for name, position, first, top in zip(place.partitions.names, before, firsts, newest, strict=True):
        if top != NO_ROWS:
            # What is before the position is accounted for; rows without one come again wherever a replay starts.
            replay = position.next if first == NO_POSITION else max(first, position.next)
            lifted.spans.append((name, replay, top))
    columns = _key_and_order(plan, rows, place, times)
    if plan.task.reads_state:
        row = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
        lifted.tables.append(pa.table({**columns, "row": row}))
        return
    updates = updates_of(plan, rows, place, computed)
    if updates.unfit.any():
        lifted.put_aside(plan, side_table(rows, updates.unfit, late_rows.UNFIT, place))
    lifted.tables.append(update_table(plan, columns, updates))


def _note_ends(basis: Basis, place: Place, ends: dict[str, int]) -> None:
    """Note how far the rows go of each partition whose end nobody planned."""
    if all(name in basis.ends for name in place.partitions.names):
        return
    has_position = place.positions != NO_POSITION
    last = place.partitions.take(has_position).greatest(place.positions[has_position])
    for name, position in zip(place.partitions.names, last, strict=True):
        if name not in basis.ends:
            ends[name] = max(position + 1, ends.get(name, 0))


def _firsts(chunk: Chunk, place: Place) -> list[int]:
    """Return for each partition the position from which a replay that needs the chunk starts."""
    if isinstance(chunk, MixedChunk):
        return place.partitions.least(place.positions)
    return [chunk.first if chunk.replay is None else chunk.replay]


def _put_aside(plan: Plan, chunk: Chunk, place: Place, position: Position, codes: Codes, lifted: Lifted) -> None:
    """Put aside the records that could not be decoded, and the rows that are not accepted."""
    if bad := [record for record in chunk.bad if record.position >= position.next]:
        lifted.put_aside(plan, bad_record_table(plan, chunk, bad))
    if not codes.any():
        return
    rows = chunk.rows.select(plan.schema.names)
    for verdict, reason in ASIDE.items():
        if (aside := codes == verdict).any():
            lifted.put_aside(plan, side_table(rows, aside, reason, place))


def _count(place: Place, before: Sequence[Position], codes: Codes, counts: Counter[str]) -> None:
    """Count the rows that were not read before, and those that come again."""
    skipped, unknown = (int(np.count_nonzero(codes == verdict)) for verdict in (SKIPPED, REPLAYED_OR_LATE))
    counts["skipped"] += skipped
    counts[late_rows.REPLAYED_OR_LATE] += unknown
    counts["messages"] += len(codes) - skipped - unknown
    if any(position.accounted for position in before):
        known = np.array([position.known for position in before])[place.partitions.of]
        is_replayed = (place.positions < known) & ((codes == ACCEPTED) | (codes == UNFIT_KEY))
        counts["replayed"] += int(np.count_nonzero(is_replayed))


def _key_and_order(plan: Plan, rows: pa.RecordBatch, place: Place, times: pa.Array) -> dict[str, pa.Array]:
    """Return the columns that an update has from its row: the key, the time, the id, and the order if that counts."""
    key = [keys.normalise(rows.column(name)) for name in plan.task.key_columns]
    columns = {
        "hash": pa.array(keys.hash_keys(key, rows.num_rows)),
        **{f"key{i}": column for i, column in enumerate(key)},
        "time": pa.array(times),
    }
    if plan.task.message_id is not None:
        columns[ID] = keys.normalise(rows.column(plan.task.message_id))
    if plan.layout.is_ordered or plan.task.reads_state:
        columns["channel"], columns["position"] = place.channels.column(rows.num_rows), pa.array(place.positions)
        columns["strand"] = place.partitions.column(rows.num_rows)
    return columns
