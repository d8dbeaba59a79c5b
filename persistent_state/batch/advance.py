"""The clock and the positions that follow from the reports of a micro-batch: the same for every shard and retry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from persistent_state.batch.messages import Advance, Basis, Report
from persistent_state.errors import DisagreementError
from persistent_state.event_time import clocks
from persistent_state.event_time.channels import deliver, live_channels, upstream_min
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.positions import Position, move_position, newest_read


def advance(basis: Basis, reports: Sequence[Report], settings: Settings) -> Advance:
    """Return where the task stands after the micro-batch of these reports.

    Raises:
        DisagreementError: a part of the batch is missing or came twice.
    """
    parts = tuple(sorted(report.part for report in reports))
    whole = {None: tuple(sorted(set(parts))), len(reports): tuple(range(len(reports)))}
    if any(whole.get(report.parts) != parts for report in reports):
        raise DisagreementError(
            f"task={basis.task} batch={basis.batch} was delivered in parts={parts}; start it again."
        )
    # Parts arrive in any order, and all shards must say the same. One channel may stand in several: its streak is the last's.
    reports = sorted(reports, key=lambda report: report.part)
    seen = [sight for report in reports for sight in report.seen]
    channels = dict(basis.channels)
    if basis.batch == 1:
        # Nobody was asked before now, so nobody was silent.
        channels = {name: replace(channel, active=basis.now) for name, channel in channels.items()}
    is_silent = settings.idle_after is not None and any(report.is_silent for report in reports)
    if is_silent and settings.idle_after is not None:
        since = basis.now - settings.idle_after
        channels = {name: replace(channel, active=min(channel.active, since)) for name, channel in channels.items()}
    for name in {name for report in reports for name in report.replaying} & channels.keys():
        # It is on its way back to where it was: it is not silent.
        channels[name] = replace(channels[name], active=basis.now)
    channels = deliver(channels, seen, basis.now)
    coarse = clocks.joined([*basis.coarse, *(report.coarse for report in reports if report.coarse)])
    positions = _positions(basis, reports)
    live = live_channels(channels, basis.now, settings.idle_after)
    upstream: int | None = None
    clock = basis.clock
    if live:
        upstream = upstream_min(live, basis.clock, settings.delay)
        if upstream > basis.clock:
            clock = max(clock, clocks.clean_clock(clocks.checkpoint_clock(upstream, settings.interval), coarse))
    elif (
        all(channel.ended for channel in channels.values()) and (newest := newest_read(positions.values())) is not None
    ):
        # Above what channels delivered that have disappeared, too: below it nothing is told apart.
        clock = max(clock, clocks.next_multiple(newest, settings.interval))
    # Before there is a first clock, the cuts begin where the messages do.
    lows = [low for low in (basis.low, *(report.low for report in reports)) if low is not None]
    low = basis.clock if basis.clock != clocks.BEGINNING else min(lows, default=clock)
    cuts = (*clocks.new_cuts(low, clock, settings.interval, coarse), clock)
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    return Advance(
        parts=parts,
        clock=clock,
        cuts=tuple(sorted(set(cuts))),
        coarse=tuple(segment for segment in coarse if segment.high > clock),
        channels=channels,
        positions=positions,
        holds=bool(live) or not (channels or basis.is_listed or is_silent),
        upstream_min=upstream,
        counts=dict(counts),
        unread=basis.unread,
    )


def _positions(basis: Basis, reports: Sequence[Report]) -> dict[str, Position]:
    """Return how far each partition is read after the micro-batch of the reports."""
    ends = {partition: position.next for partition, position in basis.positions.items()}
    for partition, end in (found for report in reports for found in report.ends):
        ends[partition] = max(end, ends.get(partition, 0))
    ends.update(basis.ends)
    spans: dict[str, set[tuple[int, int]]] = {}
    for partition, first, newest in (span for report in reports for span in report.spans):
        spans.setdefault(partition, set()).add((first, newest))
    return {
        partition: move_position(basis.positions.get(partition, Position()), end, spans.get(partition, ()))
        for partition, end in ends.items()
    }


def cuts_to_keep(bases: Iterable[Basis], after: Advance) -> tuple[int, ...]:
    """Return the clocks below the task's own that folding must keep apart."""
    return (*(clock for basis in bases for clock in basis.apart), *after.cuts)
