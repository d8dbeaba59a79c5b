"""The sources of a world: partitions of messages that grow while they are read, by a source's own plan or by Spark's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from persistent_state.batch.groups import Groups
from persistent_state.batch.rows import MixedChunk
from persistent_state.event_time.positions import NO_POSITION
from persistent_state.sources.base import BadRecord, Chunk, Reach, TimeReplayableSource
from tests.simulation.messages import SCHEMA, Sent, batch_of, named

MOVES, NAMES, NO_LINES = "moves", "names", ""
"""The lines that a source writes: how far each micro-batch reads, the partitions as they are found, or none."""


@dataclass
class Partitions:
    """The messages of a source, and how many of each partition there are by now; what the world shares with all readers.

    A partition in `visible` is known. For a while only a `share` of the messages comes. A partition that `ends` has no more,
    one that `vanishes` is not even listed any more. Channels are the partitions, or told apart `by_column`; `known` are
    channels said to come, where none are listed, and `mistaken` one that never does, which is taken back after some starts.

    What is `by_spark` is a streaming DataFrame: each start delivers everything again, or `leaves_out` what is older than its
    clock, nobody knows how far a micro-batch goes, and all is one partition if it has no `positions`.
    """

    messages: dict[str, list[Sent]]
    visible: dict[str, int]
    share: float
    lists_channels: bool
    ends: bool
    vanishes: bool
    chunk_rows: int
    by_column: bool = False
    known: tuple[str, ...] = ()
    mistaken: tuple[str, ...] = ()
    by_spark: bool = False
    positions: bool = True
    leaves_out: bool = False
    journal: str = MOVES
    finite: bool = False
    """Whether all of it is there from the first on, and it ends when all is read."""
    forgets: float = 0.0
    """How often a partition is said to end before where it was read to, as by a listing that is late."""
    transactions: Random | None = None
    """Decides which partitions have an open transaction, behind which nobody reads; None if nobody says how much there is."""
    open: set[str] = field(default_factory=set)
    """The partitions that have one."""

    @property
    def said_to_come(self) -> tuple[str, ...]:
        return self.known + self.mistaken

    @property
    def goes_on(self) -> bool:
        """Whether more may come of every partition once all is read."""
        return not (self.ends or self.vanishes or self.by_spark)

    def go_on(self, rng: Random, timestamp: int, times: int) -> None:
        """Let a message of this timestamp come from each channel, so many times."""
        if self.finite:
            return
        silent = {*self.said_to_come} - {m.channel for sent in self.messages.values() for m in sent}
        for partition, sent in self.messages.items():
            channels = {partition}
            if self.by_column:
                # No two partitions have one channel.
                channels = {m.channel for m in sent} | silent
                silent = set()
            for channel in sorted(channels) * times:
                key = rng.choice([None, 0, 1, 2, 3]), rng.choice([None, "a", "b"])
                sent.append(Sent(partition, len(sent), timestamp, *key, channel, rng.randint(0, 99)))

    @property
    def is_complete(self) -> bool:
        """Whether no more comes for now."""
        return all(self.visible.get(partition, 0) >= self._limit(partition) for partition in self.messages)

    def grow(self, rng: Random, most: int) -> None:
        """Let more messages arrive, and partitions appear."""
        for partition in self.messages:
            visible, limit = self.visible.get(partition), self._limit(partition)
            if self._is_open(partition, visible is not None and visible < limit):
                continue
            if visible is None and limit and rng.random() < 0.3:
                self.visible[partition] = 0
            elif visible is not None and visible < limit:
                self.visible[partition] = min(limit, visible + rng.randint(0, most))

    def _is_open(self, partition: str, has_more: bool) -> bool:
        """Whether the partition has an open transaction now, which is committed at last."""
        if self.transactions is not None and has_more and self.transactions.random() < 0.1:
            self.open ^= {partition}
        return partition in self.open

    def lag(self, ends: Mapping[str, int]) -> dict[str, int]:
        """How much there is beyond the ends of a micro-batch, as far as that is said."""
        visible = self.visible.items() if self.transactions is not None else ()
        return {partition: there - ends[partition] + (partition in self.open) for partition, there in visible}

    def _limit(self, partition: str) -> int:
        return int(len(self.messages[partition]) * self.share)

    def has_ended(self, partition: str) -> bool:
        return self.ends and self.visible[partition] == len(self.messages[partition])

    def is_read(self, positions: Mapping[str, int]) -> bool:
        """Whether all is read by these positions."""
        return all(positions.get(partition, 0) >= len(sent) for partition, sent in self.messages.items())

    def of(self, input: str) -> Partitions:
        """The partitions of an input."""
        assert not input
        return self


class Several:
    """The partitions of several inputs as those of one source, by the names that they have there.

    A channel is told by what its input tells channels by.
    """

    by_spark, positions, leaves_out = False, True, False

    def __init__(self, inputs: Mapping[str, Partitions]) -> None:
        self.inputs = inputs
        self.messages: dict[str, list[Sent]] = {}
        self.look_again()

    def look_again(self) -> None:
        """Note what has come to the inputs since."""
        for input, partitions in self.inputs.items():
            for name, sent in partitions.messages.items():
                known = self.messages.setdefault(named(input, name), [])
                for m in sent[len(known) :]:
                    channel = m.channel if partitions.by_column else m.partition
                    known.append(replace(m, partition=named(input, name), channel=named(input, channel)))

    def of(self, input: str) -> Partitions:
        return self.inputs[input]

    def some(self, inputs: Collection[str]) -> Several:
        """Those of some of the inputs."""
        return Several({input: self.inputs[input] for input in inputs})

    @property
    def visible(self) -> dict[str, int]:
        return {named(input, name): n for input, of in self.inputs.items() for name, n in of.visible.items()}

    @property
    def is_complete(self) -> bool:
        return all(partitions.is_complete for partitions in self.inputs.values())

    def grow(self, rng: Random, most: int) -> None:
        for partitions in self.inputs.values():
            partitions.grow(rng, most)


@dataclass
class WorldSource(TimeReplayableSource):
    """One reader's view of the partitions of a source."""

    partitions: Partitions
    rng: Random
    batch_rows: int
    skew: float = 0.0
    channel: str | None = None
    timestamp: str = "ts"
    opened: tuple[list[str], dict[str, int]] = field(default_factory=lambda: ([], {}))
    held: frozenset[str] = frozenset()
    tells: bool = False
    """Whether it says of which partitions a piece is."""
    timestamp_unit = "us"

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        self.opened = (list(journal), dict(known))

    def hold(self, partitions: Collection[str]) -> None:
        self.held = frozenset(partitions)

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        ends, channels = {}, {}
        for partition, visible in self.partitions.visible.items():
            begin = start.get(partition, 0)
            step = (
                visible if everything else 0 if self.rng.random() < self.skew else self.rng.randint(0, self.batch_rows)
            )
            ends[partition] = begin if partition in self.held else max(begin, min(visible, begin + step))
            if not (self.partitions.vanishes and begin == len(self.partitions.messages[partition])):
                channels[partition] = self.partitions.has_ended(partition) and ends[partition] == visible
            if self.partitions.forgets and ends[partition] == begin and self.rng.random() < self.partitions.forgets:
                ends[partition] = self.rng.randint(0, begin)
        moved = {p: (start.get(p, 0), end) for p, end in ends.items() if end > start.get(p, 0)}
        lines = {
            MOVES: [f"{partition}:{begin}-{end}" for partition, (begin, end) in moved.items()],
            NAMES: [p for p, (begin, _) in moved.items() if begin == 0 and p not in self.opened[0]],
            NO_LINES: [],
        }
        lists = self.partitions.lists_channels and self.channel is None
        return Reach(
            ends,
            channels if lists else None,
            tuple(lines[self.partitions.journal]),
            () if lists else self.partitions.said_to_come,
            lag=self.partitions.lag(ends),
            is_last=self.partitions.is_read(ends) if self.partitions.finite else None,
        )

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        return [split for split in dealt(self.rng, start, end, parts) if split]

    def partitions_in(self, split: Any) -> set[str] | None:
        return {partition for partition, _, _ in split} if self.tells else None

    def read(self, split: Any) -> Iterator[Chunk]:
        for partition, low, high in split:
            yield from chunks(partition, self.partitions.messages[partition][low:high], self.partitions.chunk_rows)


@dataclass
class Stream:
    """What Spark reads of the partitions for one start of the application, which restored `clock`."""

    partitions: Partitions
    rng: Random
    batch_rows: int
    skew: float
    channel: str | None
    clock: int
    start: dict[str, int] = field(default_factory=dict)

    @property
    def reach(self) -> Reach:
        """What is known of a micro-batch beforehand."""
        return Reach({}, {"": False} if self.channel is None else None, known=self.partitions.said_to_come)

    def ends(self, everything: bool) -> dict[str, int]:
        """How far the next micro-batch goes."""
        ends = {}
        for partition, visible in self.partitions.visible.items():
            step = 0 if self.rng.random() < self.skew else self.rng.randint(0, self.batch_rows)
            ends[partition] = visible if everything else min(visible, self.start.get(partition, 0) + step)
        return ends

    def split(self, end: Mapping[str, int], parts: int) -> list[list[Sent]]:
        """The messages of a micro-batch by part, of which some may have none."""
        return [
            [
                m
                for partition, low, high in split
                for m in self.partitions.messages[partition][low:high]
                if not self._is_out(m)
            ]
            for split in dealt(self.rng, self.start, end, parts)
        ]

    def _is_out(self, sent: Sent) -> bool:
        return self.partitions.leaves_out and sent.timestamp is not None and sent.timestamp < self.clock

    def read(self, split: Sequence[Sent]) -> Iterator[Chunk]:
        """Messages as chunks: of one partition for all that have no positions, else of several."""
        for i in range(0, len(split), self.partitions.chunk_rows):
            piece = split[i : i + self.partitions.chunk_rows]
            at = np.array([m.position if m.placed else NO_POSITION for m in piece], dtype=np.int64)
            if self.partitions.positions:
                partitions = Groups.of_column(pa.array([m.partition for m in piece]))
                channels = (
                    partitions if self.channel is None else Groups.of_column(pa.array([m.channel for m in piece]))
                )
                yield MixedChunk("", int(at.min()), batch_of(piece), at=at, partitions=partitions, channels=channels)
            else:
                yield Chunk("", 0, batch_of(piece), at=at)


def dealt(
    rng: Random, start: Mapping[str, int], end: Mapping[str, int], parts: int
) -> list[list[tuple[str, int, int]]]:
    """Stretches of partitions, dealt out to the parts; one partition may be cut across several."""
    stretches = []
    for partition, high in sorted(end.items()):
        low = start.get(partition, 0)
        if low < high:
            cuts = sorted({low, high, *(rng.randint(low, high) for _ in range(parts - 1))})
            stretches += [(partition, a, b) for a, b in pairwise(cuts)]
    splits: list[list[tuple[str, int, int]]] = [[] for _ in range(parts)]
    for i, stretch in enumerate(stretches):
        splits[min(i * parts // len(stretches), parts - 1)].append(stretch)
    return splits


def chunks(partition: str, sent: Sequence[Sent], most: int) -> Iterator[Chunk]:
    """Messages as chunks of at most so many rows; a broken record ends the chunk that it stands in."""
    rows: list[Sent] = []
    for message in sent:
        if message.broken is None:
            rows.append(message)
            if len(rows) < most:
                continue
        first = rows[0].position if rows else message.position
        bad = () if message.broken is None else (BadRecord(message.position, message.broken),)
        yield Chunk(partition, first, batch_of(rows), bad)
        rows = []
    if rows:
        yield Chunk(partition, rows[0].position, batch_of(rows))
