"""Several inputs of one task: each is a source of its own, and has a name.

The channels and the partitions of all inputs stand side by side: `event_time.inputs` says by which names.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import Duration
from persistent_state.event_time.inputs import INPUT, by_input, input_of, named_in, together
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.tasks import TaskSource

TURN_SECONDS = 0.05
"""The longest wait for news of one of several inputs, before the next one has its turn."""

T = TypeVar("T")

AnySource: TypeAlias = TimeReplayableSource | DataFrameSource | KafkaConnectorSource | TaskSource
"""The sources that can feed a task."""


@dataclass(frozen=True)
class Input:
    """One of several inputs of a task, where it differs from the others.

    Args:
        source: Where its messages come from.
        key: The columns that are the task's key in its rows, in the order of the task's `key`; by default those.
        value: The column that holds each row's update, instead of the task's own way.
        batch: A function that returns an update for each row of a batch, instead of the task's own way.
        allowed_delay: As the application has it, for this input alone. A task as input has none.
        idle_after: As the application has it, for this input alone. A task as input has none.
        on_bad_row: As `add` has it, for this input alone.

    Example:
        >>> Input(Changes("Rates", every="1 hour"), key="currency").key
        'currency'
    """

    source: AnySource
    key: str | Sequence[str] | None = None
    value: str | None = None
    batch: Callable[[pa.RecordBatch], pa.Array] | None = None
    allowed_delay: Duration | None = None
    idle_after: Duration | None = None
    on_bad_row: str | None = None


class Inputs(TimeReplayableSource):
    """Several sources as one: its partitions are those of all, by the names that they have there.

    A piece that `splits` returns is a pair of the input's name and the piece of its source.
    """

    timestamp = ""

    def __init__(self, sources: Mapping[str, TimeReplayableSource]) -> None:
        self.sources: dict[str, TimeReplayableSource] = {}
        for name, source in sources.items():
            # One that is given twice is opened twice, each by what its own input has read.
            is_taken = any(source is other for other in self.sources.values())
            self.sources[name] = copy.deepcopy(source) if is_taken else source

    @property
    def schema(self) -> pa.Schema:
        raise InvalidInputError(f"inputs={', '.join(self.sources)} have no schema in common; ask one of them.")

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        self.open_each({INPUT: journal}, known)

    def open_each(self, journals: Mapping[str, Sequence[str]], known: Mapping[str, int]) -> None:
        """Open each source, with the lines that it wrote, by input."""
        positions = self._by_input(known)
        for name, source in self.sources.items():
            source.open(journals.get(name, []), positions[name])

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        positions = self._by_input(start)
        reached = {name: source.reach(positions[name], everything) for name, source in self.sources.items()}
        # A position of an input that is not asked stays.
        ends = {**start, **together({name: reach.ends for name, reach in reached.items()})}
        unread = [reach.unread for reach in reached.values()]
        if INPUT in reached:
            self._check_names(reached[INPUT])
        return Reach(
            ends,
            unread=None if None in unread else sum(more for more in unread if more is not None),
            has_more=any(reach.unread or reach.has_more for reach in reached.values()),
            lag=together({name: reach.lag for name, reach in reached.items()}),
            pending=together({name: reach.pending for name, reach in reached.items()}),
            inputs=reached,
        )

    def read_by(self, application: str) -> Inputs:
        return Inputs({name: source.read_by(application) for name, source in self.sources.items()})

    def hold(self, partitions: Collection[str]) -> None:
        held = self._by_input(dict.fromkeys(partitions))
        for name, source in self.sources.items():
            source.hold(held[name])

    def amount(self, start: Mapping[str, int], end: Mapping[str, int]) -> tuple[int, str] | None:
        starts, ends = self._by_input(start), self._by_input(end)
        of_each = [source.amount(starts[name], ends[name]) for name, source in self.sources.items()]
        known = [each for each in of_each if each is not None]
        counts = ", ".join(sorted({what for _, what in known}))
        return (sum(count for count, _ in known), counts) if len(known) == len(of_each) else None

    def places(self, start: Mapping[str, int]) -> dict[str, str]:
        starts = self._by_input(start)
        return together({name: source.places(starts[name]) for name, source in self.sources.items()})

    def check_each(
        self, start: Mapping[str, int], journals: Mapping[str, Sequence[str]], newest: Mapping[str, Sequence[str]]
    ) -> None:
        """Let each source refuse a rewind, with the lines that it wrote, by input."""
        positions = self._by_input(start)
        for name, source in self.sources.items():
            source.check_again(positions[name], journals.get(name, []), newest.get(name, []))

    def committed(self, positions: Mapping[str, int]) -> None:
        for name, some in self._by_input(positions).items():
            self.sources[name].committed(some)

    def freeze(self) -> None:
        for source in self.sources.values():
            source.freeze()

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        starts, ends = self._by_input(start), self._by_input(end)
        return [
            (name, split)
            for name, source in self.sources.items()
            if starts[name] != ends[name]
            for split in source.splits(starts[name], ends[name], parts)
        ]

    def partitions_in(self, split: tuple[str, Any]) -> Collection[str] | None:
        name, piece = split
        partitions = self.sources[name].partitions_in(piece)
        return partitions if partitions is None else {named_in(name, partition) for partition in partitions}

    def stay_open(self, seconds: float) -> None:
        for source in self.sources.values():
            source.stay_open(seconds)

    def await_news(self, seconds: float, stopping: threading.Event) -> bool:
        hear = [each for each in self.sources.values() if type(each).await_news is not TimeReplayableSource.await_news]
        if not hear:
            return super().await_news(seconds, stopping)
        # A source that has news during the turn of another one says so at once in its own.
        turn = seconds if len(hear) == 1 else min(TURN_SECONDS, seconds / len(hear))
        turns, deadline = cycle(hear), time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not stopping.is_set():
            if next(turns).await_news(min(left, turn), stopping):
                return True
        return False

    def read(self, split: tuple[str, Any]) -> Iterator[Chunk]:
        name, piece = split
        for chunk in self.sources[name].read(piece):
            yield replace(chunk, partition=named_in(name, chunk.partition), input=name)

    def _check_names(self, unnamed: Reach) -> None:
        """Refuse names of the input without a name that look like those of another.

        Raises:
            InvalidInputError: There is such a partition or channel.
        """
        for name in (*unnamed.ends, *(unnamed.channels or ())):
            if other := input_of(name, self.sources):
                raise InvalidInputError(
                    f"partition={name!r} of the input without a name looks like one of input={other!r}; give that another name."
                )

    def _by_input(self, values: Mapping[str, T]) -> dict[str, dict[str, T]]:
        return by_input(values, self.sources)


def sources_of(source: AnySource | Inputs) -> list[AnySource]:
    """Return the sources of the inputs that a source stands for; of an only input the source itself."""
    return [*source.sources.values()] if isinstance(source, Inputs) else [source]


def open_source(source: TimeReplayableSource, journals: Mapping[str, Sequence[str]], known: Mapping[str, int]) -> None:
    """Open a source, which may stand for several inputs.

    Args:
        source: The source.
        journals: By input: the lines that it wrote.
        known: By partition: the first position that no start of the application has committed.
    """
    if isinstance(source, Inputs):
        source.open_each(journals, known)
    else:
        source.open(journals.get(INPUT, []), known)


def check_again(
    source: TimeReplayableSource,
    start: Mapping[str, int],
    journals: Mapping[str, Sequence[str]],
    newest: Mapping[str, Sequence[str]],
) -> None:
    """Let a source, which may stand for several inputs, refuse a rewind.

    Args:
        source: The source, which is not opened.
        start: By partition: the position from which it is to be read again.
        journals: By input: the lines that it had written when the clock was the newest.
        newest: By input: all lines that it has written by now.

    Raises:
        InvalidInputError: Something is gone that was read since.
    """
    if isinstance(source, Inputs):
        source.check_each(start, journals, newest)
    else:
        source.check_again(start, journals.get(INPUT, []), newest.get(INPUT, []))


def reach_of(reach: Reach, input: str) -> Reach:
    """Return the reach of one of the inputs that a source stands for; of an only input it is that of the source."""
    return reach.inputs.get(input, reach)


def journals_of(reach: Reach, inputs: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the new lines of each of these inputs."""
    return {name: reach_of(reach, name).journal for name in inputs}


def without_journals(reach: Reach) -> Reach:
    """Return the same reach without new lines."""
    inputs = {name: replace(each, journal=()) for name, each in reach.inputs.items()}
    return replace(reach, journal=(), inputs=inputs)
