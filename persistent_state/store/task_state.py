"""The record of one task in an entry, in parts: what a micro-batch, a start and a sink make of each part stands with the part.

A micro-batch changes a part by `after_batch`. A start changes it by `cut_back`, which takes back what is at or above a clock,
or by a method that keeps everything: `protocol/restore.py` chooses, by the delivery. In the bytes of an entry the fields of all
parts stand side by side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

from persistent_state.event_time import clocks
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, END, Coarse
from persistent_state.event_time.positions import (
    Position,
    forget_spans,
    move_position,
    replay_from,
    reread_position,
    rewind_position,
)
from persistent_state.partials import keys
from persistent_state.store.named_files import Pages, Run, ShardRuns, SideFile, Stored


@dataclass(frozen=True)
class TaskProgress:
    """The progress of a task in event time. Clocks are microseconds UTC."""

    clock: int
    """The task's own clock: its state at this clock is durable and no message below it counts any more."""

    holds: bool = True
    """True if messages can still arrive below the next clock, so that the global clock waits for this task."""

    batch: int = 0
    """The number of micro-batches that were committed in this epoch."""

    def after_batch(self, clock: int, holds: bool) -> TaskProgress:
        """Return the progress after one more micro-batch, which moved the task to this clock."""
        return TaskProgress(clock, holds, self.batch + 1)

    def cut_back(self, clock: int) -> TaskProgress:
        """Return the progress for a start that takes back what is at or above the clock: its epoch has no micro-batch yet."""
        return TaskProgress(clock)

    def keep_all(self) -> TaskProgress:
        """Return the progress for a start that takes nothing back: its epoch has no micro-batch yet."""
        return TaskProgress(self.clock)

    def move_to(self, clock: int) -> TaskProgress:
        """Return the progress of a task that follows the global clock, or that is given its last clock."""
        return replace(self, clock=clock)

    def hold(self) -> TaskProgress:
        """Return the progress of a task for which the global clock waits."""
        return replace(self, holds=True)


@dataclass(frozen=True)
class SourceState:
    """The record of what a task has read of its source."""

    channels: Mapping[str, Channel] = field(default_factory=dict)
    """By channel: the newest timestamp and when it last delivered."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    """By partition: how far the source was read."""

    journal: Pages = field(default_factory=Pages)
    """Lines that the source wrote and is given back when it is opened again."""

    planned: Mapping[str, int] = field(default_factory=dict)
    """By partition, under at-most-once delivery: how far the micro-batch that is under way reads."""

    again: int = END
    """The clock from which this start, under at-least-once delivery, counts messages again that earlier starts counted."""

    @property
    def next_positions(self) -> dict[str, int]:
        """By partition: the position that is read next."""
        return {partition: position.next for partition, position in self.positions.items()}

    @property
    def known_positions(self) -> dict[str, int]:
        """By partition: the first position that no start of the application has ever committed."""
        return {partition: position.known for partition, position in self.positions.items()}

    def announce(self, ends: Mapping[str, int], journal: Pages) -> SourceState:
        """Return the record when the next micro-batch is known to read up to these ends."""
        read = self.next_positions
        ahead = {partition: end for partition, end in ends.items() if end > read.get(partition, 0)}
        return replace(self, planned=ahead, journal=journal)

    def after_batch(
        self, channels: Mapping[str, Channel], positions: Mapping[str, Position], journal: Pages
    ) -> SourceState:
        """Return the record after a micro-batch that read up to these positions."""
        return replace(self, channels=channels, positions=positions, journal=journal, planned={})

    def without_old_spans(self, clock: int) -> SourceState:
        """Return the record without the spans that no start at or above the clock has to read again."""
        positions = {partition: forget_spans(position, clock) for partition, position in self.positions.items()}
        return replace(self, positions=positions)

    def replays_from(self, clock: int) -> dict[str, int]:
        """Return, by partition, the lowest position that may hold a message at or above the clock."""
        return {partition: replay_from(position, clock) for partition, position in self.positions.items()}

    def cut_back(self, clock: int, now: int) -> SourceState:
        """Return the record for a start that takes back what is at or above the clock, and reads it again."""
        positions = {partition: rewind_position(position, clock) for partition, position in self.positions.items()}
        return replace(self, channels=self._channels_cut_back(clock, now), positions=positions, planned={}, again=END)

    def read_again(self, clock: int, again: int, now: int) -> SourceState:
        """Return the record for a start that takes nothing back, and reads again what is at or above `clock`.

        Of what it reads again, messages at or above the clock `again` count once more.
        """
        positions = {partition: reread_position(position, clock) for partition, position in self.positions.items()}
        return replace(self, channels=self._channels_cut_back(clock, now), positions=positions, planned={}, again=again)

    def skip_planned(self) -> SourceState:
        """Return the record for a start that reads nothing again: neither what was read, nor what was about to be."""
        positions = {
            partition: move_position(known, max(known.taken, self.planned.get(partition, 0)), ())
            for partition in {**self.positions, **self.planned}
            for known in [self.positions.get(partition, Position())]
        }
        return replace(self, channels=self._channels_with_messages(), positions=positions, planned={}, again=END)

    def _channels_cut_back(self, clock: int, now: int) -> dict[str, Channel]:
        """Return the channels as a start leaves them that reads again from the clock on."""
        return {name: channel.cut_back(clock, now) for name, channel in self._channels_with_messages().items()}

    def _channels_with_messages(self) -> dict[str, Channel]:
        """Return the channels that are more than a name: one that was named, perhaps wrongly, is there if it is named again."""
        return {n: c for n, c in self.channels.items() if (c.newest, c.before) != (None, None)}


@dataclass(frozen=True)
class LateRows:
    """The record of a task's late and bad rows. `late_rows` reads the files, and takes back what a start does."""

    sides: tuple[SideFile, ...] = ()
    """Files of which a start may still take rows back."""

    settled: Pages = field(default_factory=Pages)
    """Files of which no start takes rows back."""

    settled_counts: Mapping[str, int] = field(default_factory=dict)
    """The number of rows in the settled files, by reason."""

    def counts(self) -> dict[str, int]:
        """Return how many late and bad rows there are, by reason."""
        total = Counter(self.settled_counts)
        for side in self.sides:
            total.update(side.reasons)
        return dict(total)

    def after_batch(self, sides: Iterable[SideFile]) -> LateRows:
        """Return the record after a micro-batch whose shards wrote these files."""
        return replace(self, sides=(*self.sides, *sides))


@dataclass(frozen=True)
class StoredState:
    """The record of what is stored of a task's state, and of the clocks at which it can be read."""

    cuts: tuple[int, ...]
    """The clocks that the runs keep apart, ascending: the state can be read at each."""

    shards: tuple[ShardRuns, ...] = ()
    """The state: partial sums in run files, by shard; empty as long as nothing was ever stored."""

    coarse: tuple[Coarse, ...] = ()
    """Ranges of time whose messages were folded into longer intervals than the checkpoint interval."""

    floor: int = BEGINNING
    """The clock by which expired values may be gone from the runs: no output needs them any more."""

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """All runs, in the order of the shards."""
        return tuple(chain.from_iterable(shard.runs for shard in self.shards))

    @cached_property
    def first(self) -> int | None:
        """The least start of an interval in the runs, in microseconds UTC; None without runs."""
        return min((shard.first for shard in self.shards if shard.first is not None), default=None)

    def in_shards(self, shards: int) -> tuple[ShardRuns, ...]:
        """Return the runs of each of so many shards."""
        return self.shards or (ShardRuns(),) * shards

    def after_batch(
        self, changes: Sequence[tuple[int, Sequence[Run]]], cuts: Iterable[int], coarse: Iterable[Coarse]
    ) -> StoredState:
        """Return the record after a micro-batch that changed the shards, whose runs keep these clocks apart too.

        A change says how many of a shard's oldest runs stay, and which new ones come after them.
        """
        before = self.in_shards(len(changes))
        shards = tuple(shard.changed(*change) for shard, change in zip(before, changes, strict=True))
        return replace(self, shards=shards, cuts=(*self.cuts, *cuts), coarse=tuple(coarse))

    def with_cuts(self, cuts: Iterable[int]) -> StoredState:
        """Return the record with these clocks kept apart from now on, and no others."""
        return replace(self, cuts=tuple(sorted(cuts)))

    def with_floor(self, floor: int) -> StoredState:
        """Return the record when what has expired by this clock may go. A floor never falls."""
        return replace(self, floor=max(self.floor, floor))

    def close(self, clock: int) -> StoredState:
        """Return the record of a task that is given its last clock, which is above all that is stored."""
        return replace(self, cuts=(*self.cuts, clock), coarse=())

    def cut_back(self, clock: int, shards: int) -> StoredState:
        """Return the record for a start that takes back what is at or above the clock, with the runs of so many shards."""
        return replace(self, cuts=(clock,), shards=cut_runs(self.runs, clock, shards), coarse=())

    def keep_all(self, clock: int, intervals: tuple[int, int], shards: int) -> StoredState:
        """Return the record for a start that takes nothing back, with the runs of so many shards.

        `clock` is the task's own. `intervals` are the checkpoint intervals before the start and from it on.
        """
        coarse = self._coarse_on(clock, *intervals)
        return replace(self, shards=cut_runs(self.runs, END, shards), coarse=coarse)

    def _coarse_on(self, clock: int, before: int, interval: int) -> tuple[Coarse, ...]:
        """Return how coarse the intervals above the task's clock are, when the next clocks are multiples of another interval.

        Old rows and new ones lie on different grids there: only what is a multiple of both straddles neither.
        """
        if before == interval:
            return self.coarse
        last = max((run.last for run in self.runs), default=clock)
        fine = Coarse(clock, clocks.next_multiple(last, before), before)
        segments = (*self.coarse, *([fine] if last >= clock and self.runs else []))
        return tuple(replace(segment, step=math.lcm(segment.step, interval)) for segment in segments)


@dataclass(frozen=True)
class OutputState:
    """The record of what each output's sink has, and of what starts have made void of it."""

    delivered: Mapping[str, int] = field(default_factory=dict)
    """By output: the last clock that its sink is known to have; `BEGINNING` if it has none."""

    voided: Mapping[str, int] = field(default_factory=dict)
    """By output whose sink was given clocks that a start has cut away since: the clock up to which its values are right."""

    furthest: int = BEGINNING
    """A bound of what sinks were given: none was given a clock above both the task's own and this one."""

    cut_at: Mapping[str, int] = field(default_factory=dict)
    """By output: the lowest clock to which starts have cut the task back since its sink last answered.

    What the sink has above that clock may be void.
    """

    left: tuple[str, ...] = ()
    """The outputs that the task has had since it was built, and that the newest start with the task does not have."""

    retired: tuple[str, ...] = ()
    """The outputs that the task had before it was built again: their names stay taken."""

    def record_given(self, output: str, clock: int) -> OutputState:
        """Return the record when the output's sink has every checkpoint up to this clock, and none above."""
        return replace(
            self,
            delivered={**self.delivered, output: clock},
            voided=_without(self.voided, output),
            cut_at=_without(self.cut_at, output),
        )

    def believe_sink(self, output: str, clock: int, own: int) -> OutputState:
        """Return the record by the sink's own: it has come to this clock. `own` is the task's clock."""
        voided = dict(self.voided)
        # A start of an older version did not say where it cut the task back.
        cut = self.cut_at.get(output, own)
        if clock > cut:
            # A driver gave the sink that clock before a start cut the task back, and died before the log said so.
            voided.setdefault(output, min(self.delivered[output], cut))
        delivered = {**self.delivered, output: clock}
        return replace(self, delivered=delivered, voided=voided, cut_at=_without(self.cut_at, output))

    def cut_back(self, clock: int, own: int) -> OutputState:
        """Return the record when a start takes the task back from its own clock to this one."""
        beyond = (output for output, last in self.delivered.items() if last > clock)
        return replace(
            self,
            voided={**dict.fromkeys(beyond, clock), **self.voided},
            furthest=max(self.furthest, own) if own > clock else self.furthest,
            # A sink may have been given more than the log says. The first of several cuts is the lowest.
            cut_at={**dict.fromkeys((*self.delivered, *self.left), clock), **self.cut_at},
        )

    def at_restart(self, outputs: Collection[str]) -> OutputState:
        """Return the record for a start in which the task has these outputs."""
        delivered = {output: self.delivered.get(output, BEGINNING) for output in outputs}
        # An output that is left out is not given what it lacks, and is new when it comes back: its sink then says what it has.
        cut_at = {output: last for output, last in self.voided.items() if output not in delivered}
        return replace(
            self,
            delivered=delivered,
            voided={output: last for output, last in self.voided.items() if output in delivered},
            cut_at={**self.cut_at, **cut_at},
            left=self._left_by(outputs),
        )

    def at_reset(self, outputs: Collection[str], clock: int, own: int) -> OutputState:
        """Return the record for a start in which the task begins at the clock from zero. `own` is the clock that it had."""
        return OutputState(
            delivered=dict.fromkeys(outputs, BEGINNING),
            furthest=max(self.furthest, own),
            cut_at={**dict.fromkeys((*outputs, *self.delivered, *self.left), clock), **self.cut_at},
            left=self._left_by(outputs),
            retired=self.retired,
        )

    def at_rebuild(self, outputs: Collection[str], own: int) -> OutputState:
        """Return the record for a start that builds the task again from the beginning of its source."""
        return OutputState(
            delivered=dict.fromkeys(outputs, BEGINNING),
            furthest=max(self.furthest, own),
            retired=tuple(sorted({*self.retired, *self.delivered, *self.left})),
        )

    def _left_by(self, outputs: Collection[str]) -> tuple[str, ...]:
        """Return the outputs that the task has had since it was built, and that are not among these."""
        return tuple(sorted({*self.left, *self.delivered} - {*outputs}))


@dataclass(frozen=True)
class TaskState:
    """The record of one task in an entry. Clocks are microseconds UTC."""

    identity: Mapping[str, Any]
    """The task's key columns, its monoid and its windows: what must stay as long as the state is kept."""

    born: int
    """The clock at which the task started from zero."""

    progress: TaskProgress
    stored: StoredState
    source: SourceState = SourceState()
    late_rows: LateRows = LateRows()
    outputs: OutputState = OutputState()

    active: bool = True
    """True if the task is part of the newest start."""

    life: int = 0
    """The epoch of the start that built the task again from the beginning of its source; 0 if none did."""

    def is_at(self, clock: int) -> bool:
        """Return True if the state at this clock can be read from what is stored."""
        own, stored = self.progress, self.stored
        if clock in stored.cuts:
            return True
        # The state is zero at a clock below everything that is stored.
        if clock <= own.clock and (stored.first is None or stored.first >= clock):
            return True
        # Nothing can arrive below a clock that the task does not hold back.
        return not own.holds and clock > own.clock and clocks.clean_clock(clock, stored.coarse) == clock

    def files(self) -> Iterable[Stored]:
        """Yield every file that an entry names directly for the task."""
        yield from (run.file for run in self.stored.runs)
        yield from self.files_beside_runs()

    def files_beside_runs(self) -> Iterable[Stored]:
        """Yield every file that an entry names directly for the task, but for its runs."""
        yield from (side.file for side in self.late_rows.sides)
        yield from self.source.journal.files
        yield from self.late_rows.settled.files


def cut_runs(runs: Sequence[Run], clock: int, shards: int) -> tuple[ShardRuns, ...]:
    """Return the runs below the clock, cut at the bounds of so many shards."""
    parts: list[list[Run]] = [[] for _ in range(shards)]
    for whole in runs:
        for shard in range(keys.shard_of(whole.low, shards), keys.shard_of(whole.high - 1, shards) + 1):
            low, high = keys.shard_range(shard, shards)
            parts[shard].append(replace(whole, low=max(low, whole.low), high=min(high, whole.high)))
    return tuple(ShardRuns(tuple(_cut_at(clock, some))) for some in parts)


def _cut_at(clock: int, runs: Sequence[Run]) -> Iterator[Run]:
    """Yield the runs of a shard as they are below the clock."""
    losing: list[Run] = []
    for run in runs:
        if run.last >= clock and (run.below is None or run.below > clock):
            losing.append(run)
        if run.first < clock:
            # What a run calls current holds the rows that it or an older one loses.
            is_stale = any(one.low < run.high and run.low < one.high for one in losing)
            limits = [limit for limit in (run.below, clock if is_stale else None) if limit is not None]
            yield replace(run, below=min(limits, default=None))


def _without(clocks: Mapping[str, int], output: str) -> dict[str, int]:
    return {name: clock for name, clock in clocks.items() if name != output}
