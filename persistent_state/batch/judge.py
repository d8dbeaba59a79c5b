"""The verdict on each row of a chunk: it is accepted, it was read before, or it steps aside for a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from persistent_state.batch.first_rows import check_unit, count_ahead, is_believed, is_first
from persistent_state.batch.groups import NO_ROWS
from persistent_state.batch.packets import Basis, FirstRows
from persistent_state.batch.plan import InputPlan
from persistent_state.batch.rows import Mask, Place
from persistent_state.event_time import clocks
from persistent_state.event_time.channels import beyond_limit
from persistent_state.event_time.clocks import Bounds
from persistent_state.event_time.inputs import input_of
from persistent_state.event_time.positions import NO_POSITION, Position, is_accounted
from persistent_state.partials.sort import running_max
from persistent_state.store import late_rows

ACCEPTED, SKIPPED, REPLAYED_OR_LATE, NO_TIMESTAMP, FOREIGN, OUTSIDE, LATE, AHEAD, JUMP, BEYOND = range(10)
"""The verdicts. A row gets the first that applies, in the order of `judge`."""

ASIDE = {
    NO_TIMESTAMP: late_rows.NO_TIMESTAMP,
    BEYOND: late_rows.BEYOND,
    FOREIGN: late_rows.FOREIGN,
    OUTSIDE: late_rows.OUTSIDE,
    LATE: late_rows.LATE,
    AHEAD: late_rows.AHEAD,
    JUMP: late_rows.JUMP,
}
"""The verdicts with which a row steps aside, and the reasons that are written beside it."""

Codes = NDArray[np.int8]
Times = NDArray[np.int64]


@dataclass
class Sightings:
    """A part's knowledge of its channels, which grows chunk by chunk.

    `newest` holds each channel's newest timestamp (None: only late rows or jumps so far), `beyond` how many jumps in a row a
    channel is at, and `replaying` the channels of which rows came that are none of this micro-batch: they came again, or lie
    outside the bounds of their input. `firsts` counts the rows of each input that begins.
    """

    newest: dict[str, int | None] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)
    replaying: set[str] = field(default_factory=set)
    firsts: dict[str, FirstRows] = field(default_factory=dict)


def judge(
    plan: InputPlan,
    basis: Basis,
    place: Place,
    before: Sequence[Position],
    sightings: Sightings,
    takes_late: bool,
) -> Codes:
    """Return the verdict on each row of a chunk, and note in `sightings` what the rows show of their channels.

    All tasks of a flow share the verdicts; `plan` is that of the first. `before` is how far each of the chunk's partitions was
    read before the micro-batch. `takes_late` tells whether the tasks take in what is late.

    Raises:
        InvalidInputError: The first timestamps are integers of another unit than microseconds.
    """
    codes = np.zeros(len(place.timestamps), np.int8)
    # A row without a timestamp was taken back with the clock if it can be delivered again, so only its position counts.
    stamps = place.timestamps if place.valid.all() else np.where(place.valid, place.timestamps, np.iinfo(np.int64).max)
    _mark(codes, SKIPPED, is_accounted(before, place.partitions.of, place.positions, stamps, basis.again))
    _mark(codes, REPLAYED_OR_LATE, (place.positions == NO_POSITION) & (stamps < basis.restored))
    if plan.is_fed_by_task:
        # Its moments are clocks. They are at or above the one that the flow has taken last, and move no channel.
        return codes
    fresh = codes == ACCEPTED
    if is_first(plan, basis):
        stamps = place.timestamps[fresh & place.valid]
        if not is_believed(plan, sightings.newest):
            check_unit(plan, stamps)
        counted, known = count_ahead(plan, basis, stamps), sightings.firsts.get(plan.input)
        sightings.firsts[plan.input] = counted if known is None else known.plus(counted)
    foreign = [name for name in place.channels.names if not plan.input and input_of(name, plan.among)]
    if not fresh.all():
        sightings.replaying.update({*place.channels.met(~fresh)}.difference(foreign))
    if place.beyond is not None:
        _mark(codes, BEYOND, place.beyond)
    _mark(codes, NO_TIMESTAMP, ~place.valid)
    if foreign:
        # Names of channels are data. Such a row must not move the channel of the other input.
        _mark(codes, FOREIGN, place.channels.are(foreign, len(codes)))
    _judge_bounds(plan.settings.bounds, place, codes, sightings)
    # No interval begins below the clock, so what is taken in all the same is part of the first one above it.
    _mark(codes, LATE, (place.timestamps < basis.clock) & (not takes_late))
    if (late := codes == LATE).any():
        # A channel has delivered from its first message on, be it a late one: what follows holds the clock.
        heard = {name for name, channel in basis.channels.items() if channel.has_delivered} | sightings.newest.keys()
        new = [name for name in place.channels.met(late) if name not in heard]
        sightings.newest.update(dict.fromkeys(new))
    _mark(codes, AHEAD, place.timestamps > basis.now + plan.settings.ahead)
    if plan.settings.jump is not None:
        _judge_jumps(plan, basis, place, codes, sightings, plan.settings.jump)
    _note_newest(basis, place, codes, sightings)
    return codes


def _judge_bounds(bounds: Bounds, place: Place, codes: Codes, sightings: Sightings) -> None:
    """Find the rows outside the bounds of their input. They are none of its messages: they move no channel, and begin none."""
    if bounds.times == (clocks.BEGINNING, clocks.END):
        return
    _mark(codes, OUTSIDE, (place.timestamps < bounds.since) | (place.timestamps >= bounds.below))
    if (outside := codes == OUTSIDE).any():
        sightings.replaying.update(place.channels.met(outside))


def _mark(codes: Codes, verdict: int, applies: Mask) -> None:
    """Give the verdict to the rows to which it applies, and that have no other yet."""
    if applies.any():
        codes[applies & (codes == ACCEPTED)] = verdict


def _note_newest(basis: Basis, place: Place, codes: Codes, sightings: Sightings) -> None:
    """Note each channel's newest timestamp."""
    accepted = codes == ACCEPTED
    if accepted.all():
        tops = place.channels.greatest(place.timestamps)
    else:
        tops = place.channels.take(accepted).greatest(place.timestamps[accepted])
    for name, top in zip(place.channels.names, tops, strict=True):
        if top != NO_ROWS:
            known = _newest_known(basis, sightings, name)
            sightings.newest[name] = top if known is None or top > known else known


def _newest_known(basis: Basis, sightings: Sightings, name: str) -> int | None:
    """Return the newest timestamp of a channel before the rows in hand; None if it has none since the start."""
    newest = sightings.newest.get(name)
    if newest is None and name in basis.channels:
        return basis.channels[name].newest
    return newest


def _judge_jumps(plan: InputPlan, basis: Basis, place: Place, codes: Codes, sightings: Sightings, jump: int) -> None:
    """Find the rows beyond the jump limit. They are broken: they step aside and move no clock."""
    accepted = np.flatnonzero(codes == ACCEPTED)
    channels = place.channels.take(accepted)
    order, names, begins = channels.together(len(accepted))
    rows, ends = accepted[order], [*begins[1:].tolist(), len(accepted)]
    reached = [_reached(basis, sightings, name) for name in names]
    streaks = dict.fromkeys(names, 0)
    for i in _jumping(place.timestamps[rows], begins, reached, jump):
        name, of_channel = names[i], rows[begins[i] : ends[i]]
        known = basis.channels.get(name)
        streak = sightings.beyond.get(name, known.beyond if known else 0)
        stamps = place.timestamps[of_channel]
        is_jump, streaks[name] = beyond_limit(stamps, reached[i], streak, jump, plan.settings.believe)
        codes[of_channel[is_jump]] = JUMP
        # The channel is there, be it with jumps only.
        sightings.newest.setdefault(name, None)
    sightings.beyond.update(streaks)


def _reached(basis: Basis, sightings: Sightings, name: str) -> int | None:
    """Return the timestamp from which a channel's next jump is measured, or None if it is unknown."""
    reached = _newest_known(basis, sightings, name)
    if reached is None and name in basis.channels:
        reached = basis.channels[name].before
    return None if reached == clocks.BEGINNING else reached


def _jumping(stamps: Times, begins: NDArray[np.intp], reached: Sequence[int | None], jump: int) -> list[int]:
    """Return the numbers of the channels that have a jump. Their rows follow each other, those of each from one of `begins`."""
    if len(stamps) == 0:
        return []
    first = np.zeros(len(stamps), np.bool_)
    first[begins] = True
    # The first message of a channel is measured from itself.
    start = [stamp if at is None else at for stamp, at in zip(stamps[begins].tolist(), reached, strict=True)]
    limit = np.repeat(np.array(start), np.diff(np.append(begins, len(stamps))))
    limit[1:] = np.where(first[1:], limit[1:], np.maximum(limit[1:], running_max(stamps, first)[:-1]))
    jumps = np.logical_or.reduceat(stamps > limit + jump, begins)
    return np.flatnonzero(jumps).tolist()
