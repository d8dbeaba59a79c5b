"""What a micro-batch starts from, what its parts saw, and the clock that follows: the same for every shard and retry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from persistent_state import clock as clocks
from persistent_state.clock import Channel, Coarse, Position, Settings
from persistent_state.errors import Disagreement


@dataclass(frozen=True)
class Basis:
    """What one micro-batch of one task starts from, read from the newest log entry when it is planned.

    `now` is the batch time. `clock` is fixed: a message below it is late. `low` is where the first stored interval starts,
    `is_listed` whether the source says which channels there are, `is_behind` whether the task has yet to catch up with
    the global clock. `ends` says where each strand will have been read to (one that is not named, as far as its rows
    go), `journal` what the source wants remembered with that, `digests` what runs each shard starts from. Below `restored`,
    the clock that a start restored, rows without a position may be replayed or late: nobody can tell. From `again` on rows that
    earlier starts have accounted for count once more. `unread` positions were there beyond the ends, if that is known.

    `apart` are the clocks that folding must keep apart. Parts may be planned from different entries, as other tasks
    commit meanwhile; nothing else of a task can differ between those but the `floor`, the clock by which what has expired may
    go. One part may be told that the source `is_silent`: none of its channels has delivered for as long as makes it idle.
    """

    task: str
    epoch: int
    batch: int
    now: int
    clock: int
    low: int | None
    coarse: tuple[Coarse, ...]
    channels: Mapping[str, Channel]
    is_listed: bool
    is_behind: bool
    positions: Mapping[str, Position]
    ends: Mapping[str, int]
    journal: tuple[str, ...]
    digests: tuple[str, ...]
    apart: tuple[int, ...] = field(compare=False)
    restored: int = clocks.BEGINNING
    floor: int = field(default=clocks.BEGINNING, compare=False)
    again: int = clocks.END
    is_silent: bool = field(default=False, compare=False)
    unread: int | None = None


@dataclass(frozen=True)
class Report:
    """What one part of a micro-batch saw; every shard is told by every part.

    `parts` is how many there are; None where only Spark knows. `seen` holds (channel, newest timestamp or None, jumps in
    a row), `spans` (strand, first position, newest timestamp), `ends` (strand, position after the last row), `replaying`
    the channels of which rows came again.
    `low` is the lowest start of an interval, `is_silent` what it was told of its source. `counts` has "messages", "replayed"
    and "late", and the bad rows by reason.
    """

    part: int
    parts: int | None
    seen: tuple[tuple[str, int | None, int], ...] = ()
    spans: tuple[tuple[str, int, int], ...] = ()
    ends: tuple[tuple[str, int], ...] = ()
    replaying: tuple[str, ...] = ()
    low: int | None = None
    coarse: Coarse | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    is_silent: bool = False


@dataclass(frozen=True)
class Advance:
    """Where a task stands after a micro-batch: what all shards must say alike.

    `parts` says which parts there were. `cuts` are the clocks that its runs keep apart from now on. `holds` is False when
    no channel is live: the task does not hold back the global clock.
    """

    parts: tuple[int, ...]
    clock: int
    cuts: tuple[int, ...]
    coarse: tuple[Coarse, ...]
    channels: Mapping[str, Channel]
    positions: Mapping[str, Position]
    holds: bool
    upstream_min: int | None
    counts: Mapping[str, int]
    unread: int | None = None


def advance(basis: Basis, reports: Sequence[Report], settings: Settings) -> Advance:
    """Where the task stands after the micro-batch of these reports.

    Raises:
        Disagreement: a part of the batch is missing or came twice.
    """
    parts = tuple(sorted(report.part for report in reports))
    whole = {None: tuple(sorted(set(parts))), len(reports): tuple(range(len(reports)))}
    if any(whole.get(report.parts) != parts for report in reports):
        raise Disagreement(f"task={basis.task} batch={basis.batch} was delivered in parts={parts}; start it again.")
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
    channels = clocks.deliver(channels, seen, basis.now)
    coarse = clocks.joined([*basis.coarse, *(report.coarse for report in reports if report.coarse)])
    positions = _positions(basis, reports)
    live = clocks.live_channels(channels, basis.now, settings.idle_after)
    upstream: int | None = None
    clock = basis.clock
    if live:
        upstream = clocks.upstream_min(live, basis.clock, settings.delay)
        if upstream > basis.clock:
            clock = max(clock, clocks.clean_clock(clocks.checkpoint_clock(upstream, settings.interval), coarse))
    elif (
        all(channel.ended for channel in channels.values())
        and (newest := clocks.newest_read(positions.values())) is not None
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
    """How far each strand has been read after the reports' micro-batch."""
    ends = {strand: position.next for strand, position in basis.positions.items()}
    for strand, end in (found for report in reports for found in report.ends):
        ends[strand] = max(end, ends.get(strand, 0))
    ends.update(basis.ends)
    spans: dict[str, set[tuple[int, int]]] = {}
    for strand, first, newest in (span for report in reports for span in report.spans):
        spans.setdefault(strand, set()).add((first, newest))
    return {
        strand: clocks.move_position(basis.positions.get(strand, Position()), end, spans.get(strand, ()))
        for strand, end in ends.items()
    }


def cuts_to_keep(bases: Iterable[Basis], after: Advance) -> tuple[int, ...]:
    """The clocks that folding must keep apart below the task's own."""
    return (*(clock for basis in bases for clock in basis.apart), *after.cuts)
