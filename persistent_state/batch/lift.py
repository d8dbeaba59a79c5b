"""From a source's rows to updates: late and bad rows step aside, accepted ones become tables of updates or messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from monoids.scalars import Scalar
from persistent_state.batch.first_rows import is_first, is_unread, unit_note
from persistent_state.batch.groups import NO_ROWS
from persistent_state.batch.judge import (
    ACCEPTED,
    ASIDE,
    NO_TIMESTAMP,
    OUTSIDE,
    REPLAYED_OR_LATE,
    SKIPPED,
    Codes,
    Sightings,
    Times,
    judge,
)
from persistent_state.batch.packets import Basis, add_notes
from persistent_state.batch.plan import FlowPlan, InputPlan
from persistent_state.batch.rows import (
    Mask,
    Place,
    StepChunk,
    TakenBack,
    bad_record_table,
    check_bad_rows,
    place_of,
    place_of_first,
    reason_of_first,
    side_table,
)
from persistent_state.batch.update import update_table, updates_of
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.positions import NO_POSITION, Position
from persistent_state.partials import fold, keys
from persistent_state.partials.layout import ID, one_chunk, with_values
from persistent_state.sources.base import Chunk
from persistent_state.store import late_rows

UNREAD = Position()
"""The position of a partition of which nothing was read."""


@dataclass
class Lifted:
    """The result of a part of a micro-batch for one task, which grows chunk by chunk.

    `tables` hold updates, or messages where a task reads its state, and `sides` rows that are bad for the task. `misfit` says
    what did not fit first, and where.
    """

    tables: list[pa.Table] = field(default_factory=list)
    sides: list[pa.Table] = field(default_factory=list)
    misfit: str = ""

    def put_aside(self, plan: InputPlan, table: pa.Table, misfit: str = "") -> None:
        """Keep rows that are bad for the task. `misfit` is what did not fit in the first of them, if it is known.

        Raises:
            TaskFailedError: Bad rows are to fail.
        """
        check_bad_rows(plan, table, misfit)
        self.sides.append(table)
        if misfit and not self.misfit:
            self.misfit = f"{misfit}, at {place_of_first(plan, table)}"


class Inverses(Lifted):
    """The updates that a task once made of rows, of which the inverses are wanted. Rows that are bad for the task made none."""

    def put_aside(self, plan: InputPlan, table: pa.Table, misfit: str = "") -> None:
        """Leave such rows out: they were put aside when they came."""


@dataclass
class Read:
    """The result of a part of a micro-batch for all tasks of its flow, which grows chunk by chunk.

    `late` holds rows that are late or bad for every task, `late_bytes` of them. `spans` are (partition, first position, newest
    timestamp), and `ends` tell how far the rows of a partition go whose end nobody planned. `notes` are the first of the
    chunks, by input and column.
    """

    late: list[pa.Table] = field(default_factory=list)
    late_bytes: int = 0
    sightings: Sightings = field(default_factory=Sightings)
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    notes: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def put_aside(self, plans: Sequence[InputPlan], table: pa.Table) -> None:
        """Keep and count rows that are late or bad for every task.

        Raises:
            TaskFailedError: The rows are bad, and bad rows are to fail for a task.
        """
        for plan in plans:
            check_bad_rows(plan, table)
        self.late.append(table)
        self.late_bytes += table.nbytes
        reasons = table["reason"].to_pylist()
        self.counts.update(reasons)
        self._count_unread(plans[0], table, reasons)

    def _count_unread(self, plan: InputPlan, table: pa.Table, reasons: Sequence[str]) -> None:
        """Count the first records of an input that have no time that counts, or a value that does not fit its column."""
        if (first := self.sightings.firsts.get(plan.input)) is None:
            return
        unread = [is_unread(reason) for reason in reasons]
        if not any(unread):
            return
        example = first.first_unread
        if not example:
            example = f"One is a bad row {reason_of_first(plan, table.filter(pa.array(unread)))}."
            if late_rows.NO_TIMESTAMP in reasons:
                # A transform may have made it of a column of another name.
                of_input = [
                    note for about, notes in sorted(self.notes.items()) if about[0] == plan.input for note in notes
                ]
                example = " ".join([example, *self.notes.get((plan.input, plan.timestamp), of_input)])
        self.sightings.firsts[plan.input] = replace(first, unread=first.unread + sum(unread), first_unread=example)

    def take_late(self) -> list[pa.Table]:
        """Return the late rows that were kept so far, and keep them no more."""
        late, self.late, self.late_bytes = self.late, [], 0
        return late


@dataclass(frozen=True)
class Accepted:
    """The accepted rows of a chunk, with all columns that were read, their place, and the times at which they count.

    What they were read from does not have the columns of `lacks`. The records beside them do not have those of `unseen`.
    """

    rows: pa.RecordBatch
    place: Place
    times: Times
    lacks: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    def take(self, where: Mask) -> Accepted:
        """Return the rows that a mask picks."""
        rows, place = self.rows.filter(pa.array(where)), self.place.take(where)
        return replace(self, rows=rows, place=place, times=self.times[where])


def lift_chunk(flow: FlowPlan, basis: Basis, chunk: Chunk, read: Read, lifted: Sequence[Lifted]) -> None:
    """Add a chunk to the result of its part: what it tells of the source, once, and the updates of each task.

    Raises:
        TaskFailedError: User code raised, or a row is bad and bad rows are to fail.
        InvalidInputError: The first timestamps are integers of another unit than microseconds.
    """
    plans, takes_late = flow.rows(chunk.input), flow.first.takes_late
    first = plans[0]
    if isinstance(chunk, StepChunk):
        read.counts.update(chunk.counts)
        if chunk.aside is not None:
            # The step has asked whether they are to fail: their inputs say that.
            lifted[0].sides.append(chunk.aside)
    for column, note in chunk.notes.items():
        add_notes(read.notes.setdefault((chunk.input, column), []), [note])
    place = place_of(first, chunk)
    reasons = ASIDE
    if first.channel in chunk.lacks:
        # All rows would be of one channel, which is none. Like rows without a timestamp they move no clock.
        place = replace(place, valid=np.zeros(len(place.valid), np.bool_))
        reasons = {**ASIDE, NO_TIMESTAMP: late_rows.NO_COLUMN + repr(first.channel)}
    before = [basis.positions.get(name, UNREAD) for name in place.partitions.names]
    if not first.is_fed_by_task:
        _note_ends(basis, place, read.ends)
    codes = judge(first, basis, place, before, read.sightings, takes_late)
    if is_first(first, basis) and (note := unit_note(first, place.timestamps[place.valid])):
        add_notes(read.notes.setdefault((chunk.input, first.timestamp), []), [note])
    _count_unseen(plans, chunk, place, codes, read.sightings)
    _put_aside(plans, chunk, place, before[0], codes, reasons, read)
    if not first.settings.bounds.keep:
        _count_outside(place, before, codes, read.counts)
    if not isinstance(chunk, TakenBack):
        _count(place, before, codes, read.counts)
    is_accepted = codes == ACCEPTED
    if not is_accepted.any():
        return
    times = np.maximum(place.timestamps, basis.clock) if takes_late else place.timestamps
    accepted = Accepted(chunk.rows, place, times, chunk.lacks, chunk.unseen)
    if not is_accepted.all():
        accepted = accepted.take(is_accepted)
    if not first.is_fed_by_task:
        _note_spans(before, chunk.replay, accepted, read.spans)
    for plan, result in zip(plans, lifted, strict=True):
        if isinstance(chunk, TakenBack):
            _take_back(plan, basis, accepted, result)
        elif unfit := _lift_task(plan, basis, accepted, result):
            _count_unfit(plan, unfit, read.sightings)


def _take_back(plan: InputPlan, basis: Basis, accepted: Accepted, lifted: Lifted) -> None:
    """Add the inverses of the updates that a task makes of rows."""
    once = Inverses()
    _lift_task(plan, basis, accepted, once)
    for table in once.tables:
        lifted.tables.append(with_values(table, fold.inverses(one_chunk(table["value"]), plan.layout)))


def _lift_task(plan: InputPlan, basis: Basis, accepted: Accepted, lifted: Lifted) -> int:
    """Add the updates that a task makes of rows to its result, and the rows that are bad for it.

    Returns:
        How many rows hold an update that does not fit.
    """
    lacked = lacked_columns(plan, accepted.lacks, accepted.unseen)
    if unfit := unfit_rows(plan, accepted.rows, lacked):
        rows = accepted.rows.select(plan.schema.names)
        for reason, where in unfit.items():
            lifted.put_aside(plan, side_table(plan, rows, where, reason, accepted.place))
        accepted = accepted.take(~np.any([*unfit.values()], axis=0))
    if accepted.rows.num_rows == 0:
        return 0
    rows, place = accepted.rows.select(plan.schema.names), accepted.place
    key = [keys.normalise(rows.column(name)) for name in plan.task.key_columns]
    if plan.task.reads_state:
        columns = _key_and_order(plan, key, rows, place, accepted.times)
        row = pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
        lifted.tables.append(pa.table({**columns, "row": row}))
        return 0
    computed = accepted.rows.column(plan.column) if plan.update_way == "column" else None
    updates = updates_of(plan, rows, place, computed)
    if updates.unfit.any():
        lifted.put_aside(plan, side_table(plan, rows, updates.unfit, updates.reasons, place), updates.misfit)
    lifted.tables.append(update_table(plan, _key_and_order(plan, key, rows, place, accepted.times), updates))
    return int(np.count_nonzero(updates.unfit)) if updates.misfit else 0


def lacked_columns(plan: InputPlan, lacks: Collection[str], unseen: Collection[str]) -> list[str]:
    """Return the columns that rows `lacks` and without which no row of a task can count.

    A record that has members of its own may be without a value, as another one beside it may have it.
    """
    return [name for name in _needed(plan) if name in lacks and not (name == plan.task.value and name in unseen)]


def _needed(plan: InputPlan) -> list[str]:
    return [name for name in (*plan.task.key_columns, plan.task.value, plan.task.message_id) if name is not None]


def _count_unseen(plans: Sequence[InputPlan], chunk: Chunk, place: Place, codes: Codes, sightings: Sightings) -> None:
    """Count the first rows of an input that would count although no record beside them has a column that a task needs."""
    if (first := sightings.firsts.get(chunk.input)) is None or not chunk.unseen:
        return
    rows = int(np.count_nonzero(place.valid & (codes != SKIPPED) & (codes != REPLAYED_OR_LATE)))
    unseen = Counter(first.unseen)
    for plan in plans:
        lacked = lacked_columns(plan, chunk.lacks, chunk.unseen)
        unseen.update(
            {(plan.named, name): rows for name in _needed(plan) if name in chunk.unseen and name not in lacked}
        )
    sightings.firsts[chunk.input] = replace(first, unseen=dict(unseen))


def _count_unfit(plan: InputPlan, rows: int, sightings: Sightings) -> None:
    """Count the first rows of an input that hold an update of a task which does not fit."""
    if (first := sightings.firsts.get(plan.input)) is not None:
        sightings.firsts[plan.input] = replace(first, unfit=Counter(first.unfit) + Counter({plan.name: rows}))


def unfit_rows(plan: InputPlan, rows: pa.RecordBatch, lacked: Sequence[str] = ()) -> dict[str, Mask]:
    """Return by reason which rows can't count for a task; a row has one reason.

    Their key or id can't be stored, such as a time finer than microseconds. Where user code is handed the key, a time that
    Python does not have does not fit either. No row counts without a column that the task needs, as `lacked_columns` returns
    them.
    """
    if lacked:
        return {late_rows.NO_COLUMN + repr(lacked[0]): np.ones(rows.num_rows, np.bool_)}
    has_reasons = rows.schema.get_field_index(plan.unfit_column) >= 0
    sent = rows.column(plan.unfit_column) if has_reasons else pa.nulls(0)
    unfit = dict[str, Mask]()
    for number, name in enumerate(_stored(plan)):
        column, reason = rows.column(name), f"{late_rows.UNFIT_KEY}: column {name}"
        is_bad = np.zeros(rows.num_rows, np.bool_)
        if not _is_key(column):
            is_bad |= [not _is_key(column.slice(i, 1)) for i in range(len(column))]
        type, is_handed = keys.normal_type(column.type), plan.hands_keys and number < len(plan.task.key_columns)
        if is_handed and pa.types.is_temporal(type):
            is_bad |= Scalar(type).cast(column)[1]
        if sent.null_count < len(sent):
            is_bad |= pc.equal(sent, reason).fill_null(False).to_numpy(zero_copy_only=False)
        for known in unfit.values():
            is_bad &= ~known
        if is_bad.any():
            unfit[reason] = is_bad
    return unfit


def _stored(plan: InputPlan) -> list[str]:
    """Return the columns whose values are stored beside a state: those of the key, and that of the id."""
    return [*plan.task.key_columns, *([plan.task.message_id] if plan.task.message_id else [])]


def _is_key(column: pa.Array) -> bool:
    try:
        keys.normalise(column)
    except InvalidInputError:
        return False
    return True


def _note_spans(
    before: Sequence[Position], replay: int | None, accepted: Accepted, spans: list[tuple[str, int, int]]
) -> None:
    """Note how new the accepted rows of each partition are, and from where a replay that needs them starts.

    It starts at the first of them, unless the source says from which position on it can read them. Rows before the first are
    accounted for. If a replay began at them, it would begin there after each start, as the first chunk of a start begins where
    the replay did: a chain of short runs would read all again each time.
    """
    partitions = accepted.place.partitions
    newest, firsts = partitions.greatest(accepted.times), partitions.least(accepted.place.positions)
    for name, position, first, top in zip(partitions.names, before, firsts, newest, strict=True):
        if top != NO_ROWS:
            # What is before the position is accounted for; rows without one come again wherever a replay starts.
            begin = position.next if first == NO_POSITION else max(first if replay is None else replay, position.next)
            spans.append((name, begin, top))


def _note_ends(basis: Basis, place: Place, ends: dict[str, int]) -> None:
    """Note how far the rows go of each partition whose end nobody planned."""
    if all(name in basis.ends for name in place.partitions.names):
        return
    has_position = place.positions != NO_POSITION
    last = place.partitions.take(has_position).greatest(place.positions[has_position])
    for name, position in zip(place.partitions.names, last, strict=True):
        if name not in basis.ends:
            ends[name] = max(position + 1, ends.get(name, 0))


def _put_aside(
    plans: Sequence[InputPlan],
    chunk: Chunk,
    place: Place,
    position: Position,
    codes: Codes,
    reasons: Mapping[int, str],
    read: Read,
) -> None:
    """Put aside the records that could not be decoded, and the rows that are not accepted."""
    if bad := [record for record in chunk.bad if record.position >= position.next]:
        read.put_aside(plans, bad_record_table(plans[0], chunk, bad))
    if not codes.any():
        return
    rows = chunk.rows.select(plans[0].schema.names)
    for verdict, reason in reasons.items():
        if (aside := codes == verdict).any() and (verdict != OUTSIDE or plans[0].settings.bounds.keep):
            read.put_aside(plans, side_table(plans[0], rows, aside, reason, place))


def _count(place: Place, before: Sequence[Position], codes: Codes, counts: Counter[str]) -> None:
    """Count the rows that were not read before, and those that come again."""
    skipped, unknown = (int(np.count_nonzero(codes == verdict)) for verdict in (SKIPPED, REPLAYED_OR_LATE))
    counts["skipped"] += skipped
    counts[late_rows.REPLAYED_OR_LATE] += unknown
    counts["messages"] += len(codes) - skipped - unknown
    if any(position.accounted for position in before):
        known = np.array([position.known for position in before])[place.partitions.of]
        is_replayed = (place.positions < known) & (codes == ACCEPTED)
        counts["replayed"] += int(np.count_nonzero(is_replayed))


def _count_outside(place: Place, before: Sequence[Position], codes: Codes, counts: Counter[str]) -> None:
    """Count the rows outside the bounds of their input that no start has read before. Nothing else is kept of them."""
    if (outside := codes == OUTSIDE).any():
        known = np.array([position.known for position in before])[place.partitions.of]
        counts["outside"] += int(np.count_nonzero(outside & (place.positions >= known)))


def _key_and_order(
    plan: InputPlan, key: Sequence[pa.Array], rows: pa.RecordBatch, place: Place, times: Times
) -> dict[str, pa.Array]:
    """Return the columns that an update has from its row: the key, the time, the id, and the order if that counts."""
    columns = {**{f"key{i}": column for i, column in enumerate(key)}, "time": pa.array(times)}
    if plan.task.message_id is not None:
        columns[ID] = keys.normalise(rows.column(plan.task.message_id))
    if plan.layout.is_ordered or plan.task.reads_state:
        channels = place.channels
        if plan.among:
            # Of messages of one time, those of the first input come first.
            place_of_input = f"{plan.among.index(plan.input):04d}"
            channels = replace(channels, names=[f"{place_of_input}:{name}" for name in channels.names])
        columns["channel"], columns["position"] = channels.column(rows.num_rows), pa.array(place.positions)
        columns["strand"] = place.partitions.column(rows.num_rows)
    return columns
