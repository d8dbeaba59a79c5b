"""The interface of a source: partitions of rows with positions, that can be read again."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import Bounds
from persistent_state.formatting import Clock, full_clock, read_clock

_S = TypeVar("_S", bound="TimeReplayableSource")


TIMESTAMP_UNITS = ("s", "ms", "us", "ns")


def check_timestamp_unit(unit: str | None) -> None:
    """Refuse a unit of integer timestamps that is not one.

    Raises:
        InvalidInputError: It is another.
    """
    if unit not in (None, *TIMESTAMP_UNITS):
        raise InvalidInputError(f"timestamp_unit={unit!r}; say one of {', '.join(map(repr, TIMESTAMP_UNITS))}.")


@dataclass(frozen=True)
class BadRecord:
    """A record that could not be made a row.

    Attributes:
        position: The record's position in its partition.
        reason: Why the record is bad. Equal reasons have equal words, because they are counted.

    Example:
        >>> BadRecord(7, "not a JSON object")
        BadRecord(position=7, reason='not a JSON object')
    """

    position: int
    reason: str


Originals: TypeAlias = "Callable[[NDArray[np.int64]], pa.RecordBatch]"
"""Gives the records at these positions as they came.

A row for each: `record` (large_binary: its bytes, null where its row has all of it) and `origin` (a struct of where it
stood, such as file and line, always of one type).
"""


@dataclass(frozen=True)
class Chunk:
    """Rows of one partition in their order. All rows of a chunk are read in one micro-batch.

    Attributes:
        partition: The partition's name.
        first: The position of the first record.
        rows: The rows, with the source's schema.
        bad: The records that could not be made rows.
        replay: The position from which a replay that needs any row of the chunk starts; None is the position of the first row
            that it needs.
        at: The position of each row (int64); by default the positions from `first` on that no record of `bad` has.
        originals: Returns the records at given positions as they came, of rows and of bad ones; None if the source has none.
        input: The name of the task's input that the rows are of. A source leaves it out.
        lacks: The columns that are null because what the source reads does not have them at all. The rows are bad for a task
            whose key, value or message id is one of them, and for all tasks if the source's channel is.
        unseen: The columns that no record of the chunk has, where each record has members of its own, as JSON has. A value that
            is one of them is only null, whatever `lacks` says. A first micro-batch is refused if no row of it has a task's key,
            value or message id.
        notes: By column: a sentence that people are to read in the log. A start logs three different ones of a column at most.

    Example:
        >>> rows = pa.RecordBatch.from_pylist([{"word": "to"}, {"word": "be"}])
        >>> chunk = Chunk("words-0", 40, rows, bad=(BadRecord(41, "not UTF-8"),))
        >>> chunk.positions.tolist()
        [40, 42]
    """

    partition: str
    first: int
    rows: pa.RecordBatch
    bad: tuple[BadRecord, ...] = ()
    replay: int | None = None
    at: NDArray[np.int64] | None = None
    originals: Originals | None = field(default=None, compare=False)
    input: str = ""
    lacks: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def positions(self) -> NDArray[np.int64]:
        """The position of each row."""
        if self.at is not None:
            return self.at
        every = np.arange(self.first, self.first + self.rows.num_rows + len(self.bad))
        return np.delete(every, [record.position - self.first for record in self.bad]) if self.bad else every


@dataclass(frozen=True)
class Reach:
    """The end of a micro-batch of a source, and what the log keeps with it.

    Attributes:
        ends: By partition: the position before which the micro-batch ends.
        channels: The channels that exist, True for a channel that has ended. None if channels are known only from messages.
        journal: Lines that the log keeps with the commit, and that `open` is given at the next start, in order.
        known: If `channels` is None: channels that will come and hold the clock until they do.
        unread: How many positions there are beyond the ends; None if the source does not know.
        has_more: True if there are such positions, where `unread` can't say how many.
        lag: The same by partition. A source that does not know, or has one partition, leaves it out. A channel of the same name
            is not silent while there is more of it.
        pending: By partition: for how many seconds it has had positions that can't be read yet, as those of a transaction that
            is open. `lag` counts them.
        is_last: For a source that ends: True if this micro-batch reads all that is left, so that all channels end with it.
            Until then none of its channels is idle. None: the source does not end, or its channels say when.
        held: The partitions that `hold` has named: they wait, and are not silent.
        inputs: Where one source stands for several inputs: what each of them has said. A source of your own leaves it out.

    Example:
        >>> Reach({"words-0": 43, "words-1": 40}, channels={"words-0": False, "words-1": True}).ends["words-0"]
        43
    """

    ends: Mapping[str, int]
    channels: Mapping[str, bool] | None = None
    journal: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    unread: int | None = None
    has_more: bool = False
    lag: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, float] = field(default_factory=dict)
    is_last: bool | None = None
    held: frozenset[str] = frozenset()
    inputs: Mapping[str, Reach] = field(default_factory=dict)


class TimeReplayableSource(ABC):
    """A source whose messages have event timestamps and can be read again from any position; subclass it for your own.

    A subclass is small, picklable and free of Spark. The driver calls `open` once per start, then `reach` and `splits` to plan
    each micro-batch. Workers call `read`, on a copy of the source as it was before `open`.

    Attributes:
        timestamp: The column of event time.
        channel: The column of channels; None if the partitions are the channels.
        timestamp_unit: The unit of integer timestamps, "s", "ms", "us" or "ns". None is microseconds, and a first start whose
            timestamps look like another unit is refused.
        bounds: Which rows count, by their timestamps; `from_` and `below` set it.

    Example:
        >>> class Numbers(TimeReplayableSource):
        ...     timestamp = "at"
        ...     schema = pa.schema([("at", pa.int64())])
        ...
        ...     def open(self, journal, known):
        ...         pass
        ...
        ...     def reach(self, start, everything):
        ...         return Reach({"numbers": 100 if everything else min(100, start.get("numbers", 0) + 10)})
        ...
        ...     def splits(self, start, end, parts):
        ...         return [range(start.get("numbers", 0), end["numbers"])]
        ...
        ...     def read(self, split):
        ...         yield Chunk("numbers", split.start, pa.record_batch([pa.array(split, pa.int64())], self.schema))
        >>> source = Numbers()
        >>> source.reach({"numbers": 20}, everything=False).ends
        {'numbers': 30}
        >>> [chunk.rows.num_rows for split in source.splits({}, {"numbers": 7}, 1) for chunk in source.read(split)]
        [7]
    """

    timestamp: str
    channel: str | None = None
    timestamp_unit: str | None = None
    bounds: Bounds = Bounds()

    def below(self: _S, time: Clock, *, keep: bool = False) -> _S:
        """Return this source with an upper bound: only rows with timestamps below it count.

        The clock passes the bound when the source has ended, as one with `finite=True` does, or when its input is left out.

        Args:
            time: The bound: a text, which is UTC if it has no zone, microseconds UTC, or a `datetime` with a zone.
            keep: True keeps the rows outside the bounds aside, beside late ones. By default they are only counted.

        Raises:
            InvalidInputError: It is not a time, or is not above the lower bound.
        """
        return self._bounded(Bounds(self.bounds.since, read_clock(time), keep or self.bounds.keep))

    def from_(self: _S, time: Clock, *, keep: bool = False) -> _S:
        """Return this source with a lower bound: only rows with timestamps at or above it count.

        Until it has rows, the source counts as having come to the bound: it does not hold the clock below.

        Args:
            time: The bound: a text, which is UTC if it has no zone, microseconds UTC, or a `datetime` with a zone.
            keep: True keeps the rows outside the bounds aside, beside late ones. By default they are only counted.

        Raises:
            InvalidInputError: It is not a time, or is not below the upper bound.
        """
        return self._bounded(Bounds(read_clock(time), self.bounds.below, keep or self.bounds.keep))

    def _bounded(self: _S, bounds: Bounds) -> _S:
        if bounds.since >= bounds.below:
            since, below = map(full_clock, bounds.times)
            raise InvalidInputError(
                f"no time is at or above {since} and below {below}; correct the bounds of {self!r}."
            )
        source = copy(self)
        # A source of the user's may be a frozen dataclass.
        object.__setattr__(source, "bounds", bounds)
        return source

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows that `read` delivers.

        Raises:
            InvalidInputError: The set-up of the source is wrong.
        """

    @abstractmethod
    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        """Begin a start, forgetting everything that was read before.

        Args:
            journal: The lines that this source has given to the log, in order.
            known: By partition: the first position that no start of the application has committed.
        """

    @abstractmethod
    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        """Return how far the next micro-batch goes.

        Args:
            start: By partition: the position that it starts at.
            everything: True to go to the end of what there is, False for as much as one micro-batch should hold.

        Returns:
            The ends of the micro-batch. They equal `start` if there is nothing to read.
        """

    def read_by(self, application: str) -> TimeReplayableSource:
        """Return the source as an application of this name reads it. A source that names its reader to a server overrides it.

        Args:
            application: The application's name.
        """
        return self

    def hold(self, partitions: Collection[str]) -> None:  # noqa: B027
        """Read no further in these partitions until the next call. By default nothing is held, and `alignment` has no effect.

        Args:
            partitions: The partitions that have come too far ahead. Each is a channel of this name.
        """

    def stay_within(self, ends: Mapping[str, int]) -> None:  # noqa: B027
        """Reach no further than these positions until the next call. By default nothing is done.

        A start lets tasks that share the source and have read differently far meet at one place, so that it is read once for
        all of them from then on. Without this method a task goes on alone until the positions happen to be equal.

        Args:
            ends: By partition: the position to stop at. One that is not named is not read.
        """

    def freeze(self) -> None:  # noqa: B027
        """Reach no further from now on than what is there now. A source that never grows has nothing to do."""

    def committed(self, positions: Mapping[str, int]) -> None:  # noqa: B027
        """Hear that the global clock has passed these positions. By default nothing is done.

        All rows before them are in a checkpoint or aside, and no restart reads one of them again. So the source may acknowledge
        them to a server. Only a rewind, a branch or a rebuild reads from before.

        The driver calls this while the application runs and at the end of the run, on a copy of the source that was not opened.
        A start calls it again with what earlier calls were given. If this raises, a warning is logged and the run goes on.

        Args:
            positions: By partition: the position that was passed.
        """

    @abstractmethod
    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        """Cut what lies between two positions into pieces that are read in parallel.

        Args:
            start: By partition: the first position.
            end: By partition: the position before which the last piece ends.
            parts: The most pieces.

        Returns:
            Picklable pieces of about equal size.
        """

    def amount(self, start: Mapping[str, int], end: Mapping[str, int]) -> tuple[int, str] | None:
        """Return how much there is to read between two positions: a number, and what it counts, as in (230, "messages").

        A plan of a rewind shows it. By default it is unknown.

        Args:
            start: By partition: the first position.
            end: By partition: the position before which it ends.
        """
        return None

    def places(self, start: Mapping[str, int]) -> Mapping[str, str]:
        """Return positions in words for people, such as the name of a file, by partition. By default there are none.

        A plan of a rewind shows them.

        Args:
            start: By partition: the position.
        """
        return {}

    def check_again(self, start: Mapping[str, int], journal: Sequence[str], newest: Sequence[str]) -> None:  # noqa: B027
        """Refuse a rewind if something is gone that was read since the clock, and that `reach` would not miss.

        A plan of a rewind calls it before anything changes, on a copy of the source that is not opened. After the rewind the
        source is opened with `journal`, so that it knows nothing of what it has found since. By default nothing is checked.

        Args:
            start: By partition: the position from which the source is to be read again.
            journal: The lines that the source had given to the log when the clock was the newest.
            newest: All lines that it has given to the log by now.

        Raises:
            InvalidInputError: Something is gone. The message names it, and says what to do.
        """

    def partitions_in(self, split: Any) -> Collection[str] | None:
        """Return the partitions of which a piece may have rows. The worker that reads it is given their positions only.

        Args:
            split: One of the pieces that `splits` returned.

        Returns:
            Their names. None, by default: any partition.
        """
        return None

    def stay_open(self, seconds: float) -> None:  # noqa: B027
        """Keep open what `read` and `await_news` open, for their next calls. By default nothing is done.

        `Local` calls it for the object by which its driver plans, and for those by which its workers read. Spark never does.

        Args:
            seconds: The time without a call after which all is closed. 0 closes all at once, and nothing stays open any more.
        """

    def await_news(self, seconds: float, stopping: threading.Event) -> bool:
        """Wait until there may be more than `reach` has last seen. By default wait for all of the time.

        The driver of `Local` calls it when there was nothing to read, and then `reach`, whatever ended the wait. Several inputs
        of a task have short waits in turns.

        Args:
            seconds: The most seconds to wait.
            stopping: Ends the wait when it is set.

        Returns:
            Whether there may be more.
        """
        stopping.wait(seconds)
        return False

    @abstractmethod
    def read(self, split: Any) -> Iterator[Chunk]:
        """Yield the rows of a piece, each exactly once, always the same rows in the same order.

        Args:
            split: One of the pieces that `splits` returned.
        """
