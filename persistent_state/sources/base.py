"""What a source is: partitions of rows with positions, that can be read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class BadRecord:
    """A record that could not be made a row: where it stood, and why."""

    position: int
    reason: str


Originals: TypeAlias = "Callable[[NDArray[np.int64]], pa.RecordBatch]"
"""Gives the records at these positions as they came.

A row for each: `record` (large_binary: its bytes, null where its row has all of it) and `origin` (a struct of where it
stood, such as file and line, always of one type).
"""


@dataclass(frozen=True)
class Chunk:
    """Rows of one partition in their order. All of a chunk is read in one micro-batch.

    The rows have the positions `at`, by default those from `first` on that no record of `bad` has. A replay that needs the
    chunk starts at position `replay`; None is `first`. `unfit` are those whose key had no place in the columns as they are
    (None: all had). `originals` gives the records themselves, of rows and of bad ones, where the source has them.
    """

    partition: str
    first: int
    rows: pa.RecordBatch
    bad: tuple[BadRecord, ...] = ()
    replay: int | None = None
    at: NDArray[np.int64] | None = None
    unfit: NDArray[np.bool_] | None = None
    originals: Originals | None = field(default=None, compare=False)

    @property
    def positions(self) -> NDArray[np.int64]:
        """The position of each row."""
        if self.at is not None:
            return self.at
        every = np.arange(self.first, self.first + self.rows.num_rows + len(self.bad))
        return np.delete(every, [record.position - self.first for record in self.bad]) if self.bad else every


@dataclass(frozen=True)
class Reach:
    """How far a micro-batch of a source goes: `ends` by partition (exclusive positions), and what to remember with it.

    `channels` are the channels there are, True for one that has ended; None if they are only known by their messages,
    but for those of `known`, which will come.
    `journal` holds lines that the source is given back, in order, when it is opened again. `unread` is how many positions
    there are beyond the ends, as far as the source knows; None if it does not.
    """

    ends: Mapping[str, int]
    channels: Mapping[str, bool] | None = None
    journal: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    unread: int | None = None


class TimeReplayableSource(ABC):
    """Messages with event timestamps that are delivered again from any recorded position.

    Subclasses are small, picklable and free of Spark. `open` is called once per start, in the driver; `reach` and
    `splits` then say what to read, `read` reads it, in a worker, on a copy of the source as it was before `open`.

    `timestamp` names the column of event time and `channel` that of channels (None: the partitions are). `timestamp_unit` is
    "s", "ms", "us" or "ns" where timestamps are integers; None is microseconds, unless the first ones look like another unit.
    """

    timestamp: str
    channel: str | None = None
    timestamp_unit: str | None = None

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the rows that `read` delivers.

        Raises:
            InvalidInputError: the set-up of the source is wrong.
        """

    @abstractmethod
    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        """Start reset: `journal` is what this source wrote, `known` by partition the first position never committed."""

    @abstractmethod
    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        """The next micro-batch from these positions: as much as one should hold, or all there is.

        The ends equal the start when there is nothing to read.
        """

    def read_by(self, application: str) -> TimeReplayableSource:
        """The source as an application of this name reads it, where it tells others who reads."""
        return self

    def freeze(self) -> None:  # noqa: B027
        """From now on reach no further than what is there now. A source that never grows has nothing to do."""

    @abstractmethod
    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        """What lies between, cut into at most `parts` picklable pieces of about equal size, to be read in parallel."""

    @abstractmethod
    def read(self, split: Any) -> Iterator[Chunk]:
        """The rows of a piece, each exactly once, always the same and in the same order."""
