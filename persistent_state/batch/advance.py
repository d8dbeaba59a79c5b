"""The clock and the positions that follow from the reports of a micro-batch: the driver works them out once, at the commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from persistent_state.batch.packets import Advance, Report
from persistent_state.errors import DisagreementError
from persistent_state.event_time import clocks
from persistent_state.event_time.channels import Channel, deliver, listed_channels, live_channels, upstream_min
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.inputs import by_input, input_of, together
from persistent_state.event_time.positions import Position, move_position, newest_read
from persistent_state.inputs import journals_of, reach_of
from persistent_state.sources.base import Reach
from persistent_state.store.flow_state import FlowState, SourceState


def advance(flow: FlowState, first: int | None, reports: Sequence[Report], settings: Settings) -> Advance:
    """Return where a flow stands after the micro-batch of these reports, of which each part sent one.

    `first` is the least start of an interval in the runs of its tasks, None without runs.

    Raises:
        DisagreementError: The first part did not report.
    """
    # Parts report in any order. One channel may stand in several reports: its streak is the last's.
    reports = sorted(reports, key=lambda report: report.sender.part)
    sender, now, reach = reports[0].sender, reports[0].now, reports[0].reach
    if reach is None:
        raise DisagreementError(
            f"flow={sender.flow} batch={sender.batch}: its first part did not report; start it again."
        )
    silent_for = {name: length for report in reports for name, length in report.silent_for.items()}
    reaches = {name: reach_of(reach, name) for name in flow.inputs}
    inputs = {name: _listed(known, reaches[name], now) for name, known in flow.inputs.items()}
    channels = together(inputs)
    if flow.progress.batch == 0:
        # No channel was asked before now, so none was silent.
        channels = {name: replace(channel, active=now) for name, channel in channels.items()}
    silent = {name for name in inputs if _is_silent(settings.of(name), silent_for.get(name, 0))}
    for name, channel in channels.items():
        if (input := input_of(name, inputs)) in silent:
            channels[name] = replace(channel, active=min(channel.active, now - (settings.of(input).idle_after or 0)))
    more = {name for name, left in reach.lag.items() if left}
    for name in {*reach.held, *more, *(name for report in reports for name in report.replaying)} & channels.keys():
        # It waits for others, has more than was read, or is on its way back to where it was: it is not silent.
        channels[name] = replace(channels[name], active=now)
    channels = deliver(channels, (sight for report in reports for sight in report.seen), now)
    for name, channel in channels.items():
        if (is_last := reaches[input_of(name, inputs)].is_last) is not None:
            # There is more of it until its end.
            channels[name] = replace(channel, active=now, ended=channel.ended or is_last)
    coarse = clocks.joined([*flow.coarse, *(report.coarse for report in reports if report.coarse)])
    positions = _positions(flow.source.positions, reach.ends, reports)
    live: dict[str, Channel] = {}
    before = clock = flow.progress.clock
    reached, holds = [], False
    for name, some in by_input(channels, inputs).items():
        of = settings.of(name)
        # An input brings nothing below its bound, and stands there from the first.
        at = max(before, of.bounds.since)
        if alive := live_channels(some, now, of.idle_after):
            live |= together({name: alive})
            reached.append(upstream_min(alive.values(), at, of.delay))
        elif reaches[name].is_last or (some and all(channel.ended for channel in some.values())):
            continue
        elif not (some or reaches[name].channels is not None or name in silent):
            # It is unknown yet what comes of this input. Others wait for it.
            holds = True
            reached += [at] if len(inputs) > 1 or at > before else []
        elif at > before:
            reached.append(at)
    slowest = min(live, key=lambda name: live[name].reached, default=None)
    upstream: int | None = None
    if reached:
        upstream = min(reached)
        if upstream > before:
            clock = max(before, clocks.clean_clock(clocks.checkpoint_clock(upstream, settings.interval), coarse))
    elif (
        all(channel.ended for channel in channels.values()) and (newest := newest_read(positions.values())) is not None
    ):
        # Above what channels delivered that have disappeared, too: below it rows are not kept apart.
        clock = max(before, clocks.next_multiple(newest, settings.interval))
    low = before if before != clocks.BEGINNING else _lowest(first, reports, clock)
    cuts = (*clocks.new_cuts(low, clock, settings.interval, coarse), clock)
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    return Advance(
        clock=clock,
        cuts=tuple(sorted(set(cuts))),
        coarse=tuple(segment for segment in coarse if segment.high > clock),
        channels=channels,
        positions=positions,
        holds=bool(live) or holds,
        upstream_min=upstream,
        counts=dict(counts),
        journals=journals_of(reach, inputs),
        unread=reach.unread,
        lag=reach.lag,
        pending=reach.pending,
        slowest=slowest,
    )


def _listed(known: SourceState, reach: Reach, now: int) -> dict[str, Channel]:
    """Return the channels of an input that count, by what its source lists."""
    return listed_channels(known.channels, reach.channels, reach.known, now)


def _is_silent(settings: Settings, silent_for: int) -> bool:
    """Return whether nothing has come of an input for as long as makes it idle."""
    return settings.idle_after is not None and 0 < settings.idle_after <= silent_for


def _lowest(first: int | None, reports: Iterable[Report], clock: int) -> int:
    """Return where the messages begin: before there is a first clock, the cuts begin there."""
    lows = [low for low in (first, *(report.low for report in reports)) if low is not None]
    return min(lows, default=clock)


def _positions(
    known: Mapping[str, Position], planned: Mapping[str, int], reports: Sequence[Report]
) -> dict[str, Position]:
    """Return how far each partition is read after the micro-batch of the reports; `planned` ends are known beforehand."""
    ends = {partition: position.next for partition, position in known.items()}
    found = (end for report in reports for end in report.ends)
    for partition, end in (*found, *planned.items()):
        # Positions never fall.
        ends[partition] = max(end, ends.get(partition, 0))
    spans: dict[str, set[tuple[int, int]]] = {}
    for partition, first, newest in (span for report in reports for span in report.spans):
        spans.setdefault(partition, set()).add((first, newest))
    return {
        partition: move_position(known.get(partition, Position()), end, spans.get(partition, ()))
        for partition, end in ends.items()
    }
