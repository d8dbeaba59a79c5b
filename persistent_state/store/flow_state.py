"""The record of one flow in an entry: where its tasks stand in event time and in their source, and which rows came late.

A flow is read once for all of its tasks. A micro-batch changes the parts of a flow by their `after_batch`. A start changes
them by their `cut_back`, which takes back what is at or above a clock, or by a method that keeps everything:
`protocol/restore.py` chooses, by the delivery.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from persistent_state.event_time import clocks
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import BEGINNING, END, Coarse
from persistent_state.event_time.inputs import INPUT, by_input, named_in, together
from persistent_state.event_time.positions import (
    Position,
    forget_spans,
    move_position,
    replay_from,
    reread_position,
    rewind_position,
)
from persistent_state.store.named_files import Pages, Run, SideFile, Stored

OUTSIDE = "outside the bounds of its input"
"""The reason of a row that its input has, and that is not one of its messages."""


@dataclass(frozen=True)
class FlowProgress:
    """The progress of a flow in event time. Clocks are microseconds UTC."""

    clock: int
    """The flow's own clock: the state of its tasks at this clock is durable, and no message below it counts any more."""

    holds: bool = True
    """True if messages can still arrive below the next clock, so that the global clock waits for this flow."""

    batch: int = 0
    """The number of micro-batches that were committed in this epoch."""

    def after_batch(self, clock: int, holds: bool) -> FlowProgress:
        """Return the progress after one more micro-batch, which moved the flow to this clock."""
        return FlowProgress(clock, holds, self.batch + 1)

    def cut_back(self, clock: int) -> FlowProgress:
        """Return the progress for a start that takes back what is at or above the clock: its epoch has no micro-batch yet."""
        return FlowProgress(clock)

    def keep_all(self) -> FlowProgress:
        """Return the progress for a start that takes nothing back: its epoch has no micro-batch yet."""
        return FlowProgress(self.clock)

    def move_to(self, clock: int) -> FlowProgress:
        """Return the progress of a flow that follows the global clock, or that is given its last clock."""
        return replace(self, clock=clock)

    def hold(self) -> FlowProgress:
        """Return the progress of a flow for which the global clock waits."""
        return replace(self, holds=True)


@dataclass(frozen=True)
class SourceState:
    """The record of what a flow has read of one input."""

    channels: Mapping[str, Channel] = field(default_factory=dict)
    """By channel: the newest timestamp and when it last delivered."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    """By partition: how far the source was read."""

    journal: Pages = field(default_factory=Pages)
    """Lines that the source wrote and is given back when it is opened again."""

    planned: Mapping[str, int] = field(default_factory=dict)
    """By partition, under at-most-once delivery: how far the micro-batch that is under way reads."""

    again: int = END
    """The clock from which this start, under at-least-once delivery, counts messages again that earlier starts counted.

    `END` under any other delivery. After a cut of a flow that was under at-least-once delivery it is `BEGINNING`."""

    since: int = BEGINNING
    """The lower bound of the input: its messages have this timestamp or a later one."""

    below: int = END
    """The upper bound of the input: its messages are below it."""

    @property
    def has_begun(self) -> bool:
        """Return whether a message has ever moved a channel."""
        return any(channel.has_delivered for channel in self.channels.values())

    @property
    def lacks_late(self) -> bool:
        """Return whether messages that came late may be missing though positions account for them, as a cut took them away."""
        pairs = (pair for position in self.positions.values() for pair in position.accounted)
        return self.again == BEGINNING and any(BEGINNING < below < END for _, below in pairs)

    @property
    def next_positions(self) -> dict[str, int]:
        """By partition: the position that is read next."""
        return {partition: position.next for partition, position in self.positions.items()}

    @property
    def known_positions(self) -> dict[str, int]:
        """By partition: the first position that no start of the application has ever committed."""
        return {partition: position.known for partition, position in self.positions.items()}

    def announce(self, ends: Mapping[str, int]) -> SourceState:
        """Return the record when the next micro-batch is known to read up to these ends."""
        read = self.next_positions
        ahead = {partition: end for partition, end in ends.items() if end > read.get(partition, 0)}
        return replace(self, planned=ahead)

    def after_batch(self, channels: Mapping[str, Channel], positions: Mapping[str, Position]) -> SourceState:
        """Return the record after a micro-batch that read up to these positions."""
        return replace(self, channels=channels, positions=positions, planned={})

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
        # What came late was taken in above its own time, and may leave though it is below the clock.
        again = END if self.again == END else BEGINNING
        return replace(self, channels=self._channels_cut_back(clock, now), positions=positions, planned={}, again=again)

    def read_again(self, clock: int, again: int, now: int) -> SourceState:
        """Return the record for a start that takes nothing back, and reads again what is at or above `clock`.

        If it reads messages at or above the clock `again` once more, they count once more.
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
        return {name: channel for name, channel in self.channels.items() if channel.has_delivered}


@dataclass(frozen=True)
class LateRows:
    """The record of late and bad rows. `late_rows` reads the files, and takes back what a start does."""

    sides: tuple[SideFile, ...] = ()
    """Files of which a start may still take rows back."""

    settled: Pages = field(default_factory=Pages)
    """Files of which no start takes rows back."""

    settled_counts: Mapping[str, int] = field(default_factory=dict)
    """The number of rows in the settled files, by reason."""

    outside: int = 0
    """The number of rows outside the bounds of their input, of which nothing else is kept."""

    def counts(self) -> dict[str, int]:
        """Return how many late and bad rows there are, by reason."""
        return dict(self._counts)

    @cached_property
    def _counts(self) -> Counter[str]:
        # Each shard may write a file in each micro-batch, and every task of a flow counts the flow's files.
        total = Counter(self.settled_counts)
        if self.outside:
            total[OUTSIDE] += self.outside
        for side in self.sides:
            total.update(side.reasons)
        return total

    def after_batch(self, sides: Iterable[SideFile], outside: int = 0) -> LateRows:
        """Return the record after a micro-batch whose shards wrote these files.

        `outside` is its number of new rows outside the bounds of their input that are in no file.
        """
        return replace(self, sides=(*self.sides, *sides), outside=self.outside + outside)

    def plus(self, other: LateRows) -> LateRows:
        """Return a record of these rows and of those of another record, which has none of this one's files."""
        mine, others = self.settled, other.settled
        return LateRows(
            (*self.sides, *other.sides),
            Pages((*mine.files, *others.files), (*mine.tail, *others.tail)),
            dict(Counter(self.settled_counts) + Counter(other.settled_counts)),
            self.outside + other.outside,
        )

    def files(self) -> Iterator[Stored]:
        """Yield every file that the record names directly."""
        yield from (side.file for side in self.sides)
        yield from self.settled.files


@dataclass(frozen=True)
class Upstream:
    """The record of a task that feeds a flow: which one it was when the flow was built from its state."""

    task: str
    """The name of the task."""

    born: int
    """The clock at which the task had started from zero."""

    life: int
    """The epoch of the start that had built the task again; 0 if none had."""


@dataclass(frozen=True)
class FlowState:
    """The record of one flow in an entry: all that its tasks share. Clocks are microseconds UTC.

    A flow is fed by sources, or by other tasks of the application: then it is derived. A derived flow stands at the clocks that
    its steps have visited, and at no other.
    """

    progress: FlowProgress

    inputs: Mapping[str, SourceState] = field(default_factory=lambda: {INPUT: SourceState()})
    """By the name of an input: what was read of it; empty if only tasks feed the flow."""

    late_rows: LateRows = field(default_factory=LateRows)
    """The rows that came late or are bad for every task, since the flow has had the tasks that it has."""

    coarse: tuple[Coarse, ...] = ()
    """Ranges of time whose messages were folded into longer intervals than the checkpoint interval."""

    upstream: Mapping[str, Upstream] = field(default_factory=dict)
    """By the name of an input: the task that feeds the flow; empty if only sources do."""

    stepped: int = BEGINNING
    """If sources and tasks feed the flow: the clock up to which it has taken what the tasks give."""

    @property
    def is_derived(self) -> bool:
        """Return whether tasks feed the flow, and no source."""
        return bool(self.upstream) and not self.inputs

    @property
    def visited(self) -> int:
        """The clock up to which the flow has taken all that it is fed."""
        return min(self.progress.clock, self.stepped) if self.upstream and self.inputs else self.progress.clock

    @property
    def source(self) -> SourceState:
        """The record of all inputs as one. That of several has no journal, and names of channels begin with the input's."""
        if [*self.inputs] == [INPUT]:
            return self.inputs[INPUT]
        known = self.inputs
        return SourceState(
            together({name: known[name].channels for name in known}),
            together({name: known[name].positions for name in known}),
            planned=together({name: known[name].planned for name in known}),
            again=min((each.again for each in known.values()), default=END),
        )

    def with_source(self, source: SourceState) -> FlowState:
        """Return the flow with this record of all inputs as one. Several keep their journals."""
        if [*self.inputs] == [INPUT]:
            return replace(self, inputs={INPUT: source})
        channels, positions = by_input(source.channels, self.inputs), by_input(source.positions, self.inputs)
        planned = by_input(source.planned, self.inputs)
        return replace(
            self,
            inputs={
                name: replace(
                    known,
                    channels=channels[name],
                    positions=positions[name],
                    planned=planned[name],
                    again=source.again,
                )
                for name, known in self.inputs.items()
            },
        )

    def with_journals(self, journals: Mapping[str, Pages]) -> FlowState:
        """Return the flow with these journals of inputs."""
        inputs = {
            name: replace(known, journal=journals.get(name, known.journal)) for name, known in self.inputs.items()
        }
        return replace(self, inputs=inputs)

    def with_inputs(self, bounds: Mapping[str, tuple[int, int]]) -> FlowState:
        """Return the flow with inputs of these names and bounds. One that is new begins."""
        inputs = {
            name: replace(self.inputs.get(name, SourceState()), since=since, below=below)
            for name, (since, below) in bounds.items()
        }
        return replace(self, inputs=inputs)

    def with_steps(self, positions: Mapping[str, int]) -> dict[str, int]:
        """Return the positions from which a start reads again, with those of what other tasks give.

        A step reads all of that again: it remembers no position.
        """
        return {**{named_in(name, each.task): 0 for name, each in self.upstream.items()}, **positions}

    def hold(self) -> FlowState:
        """Return the flow when the global clock waits for it; itself if it does already."""
        return self if self.progress.holds else replace(self, progress=self.progress.hold())

    def move_to(self, clock: int) -> FlowState:
        """Return the flow when it follows the global clock, or is given its last clock."""
        return replace(self, progress=self.progress.move_to(clock))

    def coarse_on(self, runs: Sequence[Run], before: int, interval: int) -> tuple[Coarse, ...]:
        """Return how coarse the intervals of `runs` above the clock are, once clocks are multiples of another interval.

        Old rows and new ones lie on different grids there: only what is a multiple of both straddles neither.
        """
        if before == interval:
            return self.coarse
        clock = self.progress.clock
        last = max((run.last for run in runs), default=clock)
        fine = Coarse(clock, clocks.next_multiple(last, before), before)
        segments = (*self.coarse, *([fine] if last >= clock and runs else []))
        return tuple(replace(segment, step=math.lcm(segment.step, interval)) for segment in segments)

    def files(self) -> Iterator[Stored]:
        """Yield every file that an entry names directly for the flow."""
        yield from self.late_rows.files()
        for source in self.inputs.values():
            yield from source.journal.files
