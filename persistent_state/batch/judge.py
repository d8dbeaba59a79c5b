"""The verdict on each row of a chunk: it is accepted, it was read before, or it steps aside for a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persistent_state.batch.messages import Basis
from persistent_state.batch.plan import Plan
from persistent_state.batch.rows import Mask, Place
from persistent_state.batch.units import check_unit
from persistent_state.errors import InvalidInputError
from persistent_state.event_time import clocks
from persistent_state.event_time.channels import beyond_limit
from persistent_state.event_time.positions import NO_POSITION, Position, is_accounted
from persistent_state.partials import keys
from persistent_state.sources.base import Chunk
from persistent_state.store import late_rows

ACCEPTED, SKIPPED, REPLAYED_OR_LATE, NO_TIMESTAMP, LATE, AHEAD, JUMP, UNFIT_KEY = range(8)
"""The verdicts. A row gets the first that applies, in the order of `judge`."""

ASIDE = {
    NO_TIMESTAMP: late_rows.NO_TIMESTAMP,
    LATE: late_rows.LATE,
    AHEAD: late_rows.AHEAD,
    JUMP: late_rows.JUMP,
    UNFIT_KEY: late_rows.UNFIT_KEY,
}
"""The verdicts with which a row steps aside, and the reasons that are written beside it."""

Codes = NDArray[np.int8]


@dataclass
class Sightings:
    """A part's knowledge of its channels, which grows chunk by chunk.

    `newest` holds each channel's newest timestamp (None: only late rows or jumps so far), `beyond` how many jumps in a row a
    channel is at, and `replaying` the channels of which rows came again.
    """

    newest: dict[str, int | None] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)
    replaying: set[str] = field(default_factory=set)


def judge(plan: Plan, basis: Basis, chunk: Chunk, place: Place, position: Position, sightings: Sightings) -> Codes:
    """Return the verdict on each row of a chunk, and note in `sightings` what the rows tell of their channels.

    `position` is how far the chunk's partition was read before the micro-batch.

    Raises:
        InvalidInputError: The first timestamps are integers of another unit than microseconds.
    """
    codes = np.zeros(len(place.timestamps), np.int8)
    # A row without a timestamp was taken back with the clock if it can be delivered again, so only its position counts.
    stamps = place.timestamps if place.valid.all() else np.where(place.valid, place.timestamps, np.iinfo(np.int64).max)
    _mark(codes, SKIPPED, is_accounted(position, place.positions, stamps, basis.again))
    _mark(codes, REPLAYED_OR_LATE, (place.positions == NO_POSITION) & (stamps < basis.restored))
    fresh = codes == ACCEPTED
    check_unit(plan, basis, sightings.newest, place.timestamps[fresh & place.valid])
    if not fresh.all():
        sightings.replaying.update(pc.unique(place.channels.filter(pa.array(~fresh))).to_pylist())
    _mark(codes, NO_TIMESTAMP, ~place.valid)
    # No interval begins below the clock, so what is taken in all the same is part of the first one above it.
    _mark(codes, LATE, (place.timestamps < basis.clock) & (not plan.takes_late))
    if (late := codes == LATE).any():
        # A channel is there from its first message on, be it a late one: what follows holds the clock.
        heard = pc.unique(place.channels.filter(pa.array(late))).to_pylist()
        new = [name for name in heard if name not in basis.channels and name not in sightings.newest]
        sightings.newest.update(dict.fromkeys(new))
    _mark(codes, AHEAD, place.timestamps > basis.now + plan.settings.ahead)
    if plan.settings.jump is not None:
        _judge_jumps(plan, basis, place, codes, sightings, plan.settings.jump)
    else:
        _note_newest(plan, basis, place, codes, sightings)
    _judge_keys(plan, chunk, codes)
    return codes


def _mark(codes: Codes, verdict: int, applies: Mask) -> None:
    """Give the verdict to the rows to which it applies, and that have no other yet."""
    if applies.any():
        codes[applies & (codes == ACCEPTED)] = verdict


def _note_newest(plan: Plan, basis: Basis, place: Place, codes: Codes, sightings: Sightings) -> None:
    """Note each channel's newest timestamp."""
    accepted = codes == ACCEPTED
    if not accepted.any():
        return
    stamps = place.timestamps if accepted.all() else place.timestamps[accepted]
    if plan.channel is None:
        tops = {place.partition: int(stamps.max())}
    else:
        channels = place.channels if accepted.all() else place.channels.filter(pa.array(accepted))
        rows = pa.table({"channel": channels, "time": pa.array(stamps)})
        newest = rows.group_by("channel", use_threads=False).aggregate([("time", "max")])
        tops = dict(zip(newest["channel"].to_pylist(), newest["time_max"].to_pylist(), strict=True))
    for name, top in tops.items():
        known = _newest_known(basis, sightings, name)
        sightings.newest[name] = top if known is None or top > known else known


def _newest_known(basis: Basis, sightings: Sightings, name: str) -> int | None:
    """Return the newest timestamp of a channel before the rows in hand; None if it has none since the start."""
    newest = sightings.newest.get(name)
    if newest is None and name in basis.channels:
        return basis.channels[name].newest
    return newest


def _judge_jumps(plan: Plan, basis: Basis, place: Place, codes: Codes, sightings: Sightings, jump: int) -> None:
    """Note each channel's newest timestamp. One beyond the jump limit is broken: its row steps aside and moves no clock."""
    accepted = codes == ACCEPTED
    if not accepted.any():
        return
    for name, of_channel in _by_channel(plan, place, accepted):
        known, newest = basis.channels.get(name), _newest_known(basis, sightings, name)
        stamps = place.timestamps if len(of_channel) == len(accepted) else place.timestamps[of_channel]
        streak = sightings.beyond.get(name, known.beyond if known else 0)
        reached = known.before if newest is None and known is not None else newest
        reached = None if reached == clocks.BEGINNING else reached
        jumps, streak = beyond_limit(stamps, reached, streak, jump, plan.settings.believe)
        sightings.beyond[name] = streak
        if jumps.any():
            codes[of_channel[jumps]] = JUMP
            stamps = stamps[~jumps]
        if len(stamps):
            top = int(stamps.max())
            sightings.newest[name] = top if newest is None else max(newest, top)
        else:
            sightings.newest.setdefault(name, None)


def _by_channel(plan: Plan, place: Place, accepted: Mask) -> Iterator[tuple[str, NDArray[np.intp]]]:
    """Return each channel of the accepted rows, and which rows are of it."""
    some = np.flatnonzero(accepted)
    if plan.channel is None:
        yield place.partition, some
        return
    codes = pc.dictionary_encode(place.channels.take(pa.array(some)))
    index = codes.indices.to_numpy()
    # Sorted once: to look for each of many channels in all rows takes longer the more there are.
    some = some[np.argsort(index, kind="stable")]
    ends = np.cumsum(np.bincount(index, minlength=len(codes.dictionary)))
    yield from zip(codes.dictionary.to_pylist(), np.split(some, ends[:-1]), strict=True)


def _judge_keys(plan: Plan, chunk: Chunk, codes: Codes) -> None:
    """Find keys and ids that can't be stored. Only accepted rows are looked at, as it takes long to find which do not fit."""
    if chunk.unfit is not None:
        _mark(codes, UNFIT_KEY, chunk.unfit)
    names = key_columns(plan)
    accepted = np.flatnonzero(codes == ACCEPTED)
    if len(accepted) == 0:
        return
    columns = [chunk.rows.column(name) for name in names]
    if len(accepted) < len(codes):
        columns = [column.take(pa.array(accepted)) for column in columns]
    if (unfit := unfit_keys(columns, len(accepted))).any():
        codes[accepted[unfit]] = UNFIT_KEY


def key_columns(plan: Plan) -> list[str]:
    """Return the names of the columns that are stored as they come: those of the key, and of the message id."""
    return [*plan.task.key_columns, *([plan.task.message_id] if plan.task.message_id else [])]


def unfit_keys(columns: Sequence[pa.Array], rows: int) -> Mask:
    """Return which of so many rows have a value that can't be stored, such as a time finer than microseconds."""
    unfit = np.zeros(rows, dtype=np.bool_)
    for column in columns:
        if not _is_key(column):
            unfit |= [not _is_key(column.slice(i, 1)) for i in range(len(column))]
    return unfit


def _is_key(column: pa.Array) -> bool:
    try:
        keys.normalise(column)
    except InvalidInputError:
        return False
    return True
