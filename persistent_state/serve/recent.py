"""Measure the last entries of an application's log: where its clocks were, how far they lagged, and how much was read.

The store counts no messages. How much a source has read shows in its positions, such as Kafka's offsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from persistent_state.event_time.clocks import or_none
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log

MOST_ENTRIES = 200
"""The most entries that are measured."""


@dataclass(frozen=True)
class Point:
    """An application in one entry of its log. Times and clocks are microseconds UTC, None before the first.

    Attributes:
        entry: The number of the entry.
        written: When it was written, by the wall clock.
        epoch: The start that wrote it.
        timeline: The timeline that it is of.
        clock: The global clock.
        tasks: The clocks of the tasks that are part of the start, by name.
        newest: The newest timestamp that a source has delivered since the start.
        read: Where each partition is read next, by flow, input and partition. A source that keeps a journal, such as one of
            files, leaves numbers out: how far it is does not show how much was read.
    """

    entry: int
    written: int
    epoch: int
    timeline: int
    clock: int | None
    tasks: Mapping[str, int | None]
    newest: int | None
    read: Mapping[tuple[str, str, str], int]

    @property
    def lag(self) -> int | None:
        """By how much the global clock is behind the newest message, in event time."""
        return None if self.clock is None or self.newest is None else max(0, self.newest - self.clock)


def point(entry: Entry) -> Point:
    """Return the point of an entry."""
    active = {name: entry.flow_of(name) for name, task in sorted(entry.tasks.items()) if task.active}
    flows = {task.flow: entry.flows[task.flow] for task in entry.tasks.values() if task.active}
    inputs = {(id, name): source for id, flow in flows.items() for name, source in flow.inputs.items()}
    timed = [
        channel.newest
        for source in inputs.values()
        for channel in source.channels.values()
        if channel.newest is not None
    ]
    return Point(
        entry.number,
        entry.time,
        entry.epoch,
        entry.timeline,
        or_none(entry.clock),
        {name: or_none(flow.visited) for name, flow in active.items()},
        max(timed, default=None),
        {
            (*place, partition): position.next
            for place, source in inputs.items()
            if not (source.journal.files or source.journal.tail)
            for partition, position in source.positions.items()
        },
    )


class Recent:
    """The last entries of a log, of which each is read once."""

    def __init__(self, log: Log) -> None:
        self._log, self._points = log, dict[int, Point]()

    def look(self) -> list[Point]:
        """Return the points of the last entries, ascending, without those that were collected meanwhile.

        Raises:
            DamagedError: An entry is not what was written.
            StoreUnavailableError: The store does not answer.
        """
        numbers = self._log.numbers()[-MOST_ENTRIES:]
        points = {number: self._points[number] for number in numbers if number in self._points}
        for number in numbers:
            if number not in points:
                try:
                    points[number] = point(self._log.read(number))
                except FileNotFoundError:
                    continue
        self._points = {number: points[number] for number in sorted(points)}
        return [*self._points.values()]


@dataclass(frozen=True)
class Pace:
    """The speed at which sources are read.

    Attributes:
        written: When it was measured, microseconds UTC.
        read: The positions that were read since it was measured before.
        seconds: How long ago that was.
    """

    written: int
    read: int
    seconds: float

    @property
    def positions(self) -> float:
        """The positions that were read a second."""
        return self.read / self.seconds


def paces(points: Sequence[Point]) -> list[Pace]:
    """Return how fast the sources were read from entry to entry of each start."""
    result, since, read = list[Pace](), points[0].written if points else 0, 0
    for before, after in pairwise(points):
        if after.epoch != before.epoch:
            since, read = after.written, 0
            continue
        # Two flows may commit within a microsecond.
        read += _read(before, after)
        if after.written > since:
            result.append(Pace(after.written, read, (after.written - since) / 1_000_000))
            since, read = after.written, 0
    return result


def pace(points: Sequence[Point]) -> float | None:
    """Return how many positions a second were read over all points, without the time between starts; None if unknown."""
    some = paces(points)
    seconds = sum(each.seconds for each in some)
    return sum(each.read for each in some) / seconds if seconds else None


def _read(before: Point, after: Point) -> int:
    """Return the positions that were read between two points. Where a new partition began is unknown."""
    return sum(max(0, end - before.read.get(place, end)) for place, end in after.read.items())
