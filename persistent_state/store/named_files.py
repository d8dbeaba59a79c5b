"""The files that an entry of the log names: runs, files of late and bad rows, and lists."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from persistent_state.errors import DamagedError
from persistent_state.event_time.positions import LAST_POSITION
from persistent_state.partials.evolve import Path

WAYS = (
    "bring it back from a copy of the store, read or go back to a kept clock that does not need it, or reset the task"
)
"""The ways out, in an error, for who needs a file that is damaged or missing."""


@dataclass(frozen=True)
class Stored:
    """Bytes that an entry names: a file, a range of one, or bytes that the entry has itself; their length and SHA-256."""

    path: str
    """The path of the file below the store. Bytes that the entry has: the path that their own file would have."""

    length: int

    checksum: str
    """The SHA-256 of the bytes, or of the last `index` of them if they have blocks."""

    index: int = 0
    """The bytes of the index of blocks and of all behind it, at the end of the file. 0: the file has no blocks."""

    start: int = 0
    """The first byte of a range of a file that has several runs. 0: it is the whole file."""

    inline: bytes = field(default=b"", repr=False)
    """The bytes themselves, compressed by zlib, if the entry has them; empty if they are in a file."""

    @property
    def is_part(self) -> bool:
        """Return whether the bytes are a range of a file, or are in the entry, and then may be written to a file."""
        return bool(self.start or self.inline)

    def unpacked(self) -> pa.Buffer:
        """Return the bytes that the entry has. They may not be what was written: a reader verifies them as those of a file.

        Raises:
            DamagedError: They can't be decompressed.
        """
        try:
            return pa.py_buffer(zlib.decompressobj().decompress(self.inline, self.length + 1))
        except zlib.error:
            raise self.damage() from None

    def within(self, data: pa.Buffer) -> pa.Buffer:
        """Return the bytes of the range in those of the file."""
        return data[self.start : self.start + self.length] if self.start else data

    def damage(self) -> DamagedError:
        """Return the error for a file that is not what was written."""
        return DamagedError(f"{self.path} is damaged: it is not what was written; {WAYS}.")


def length_of(files: Iterable[Stored]) -> int:
    """Return how many bytes these files and ranges of files have."""
    return sum(file.length for file in files)


def rows_of(runs: Iterable[Run]) -> int:
    """Return how many rows the files and ranges of these runs have.

    Starts cut a file into many runs, each of which counts the rows of the whole file.
    """
    return sum({run.file: run.rows for run in runs}.values())


def count_of(files: Iterable[Stored]) -> int:
    """Return how many files these files and ranges of files are."""
    return len({file.path for file in files})


@dataclass(frozen=True)
class Run:
    """A range of a run file: the rows with low <= hash < high and start < `below` are part of the state."""

    file: Stored

    rows: int
    """Rows of the whole file, or of the whole range of one."""

    low: int
    high: int

    first: int
    """The least start of an interval in the file, in microseconds UTC."""

    last: int
    """The greatest start of an interval in the file, in microseconds UTC."""

    below: int | None = None
    """The clock at which a start cut this run or an older one; None if none did. Its column `current` is out of date then."""

    half: int | None = None
    """The clock by which half of the rows have expired, or can be added to others of their key. None: no such clock."""

    due: int | None = None
    """The earliest time of a first timer of a key in the file, in microseconds UTC; None if it has no timers."""

    last_due: int | None = None
    """The latest time of a first timer of a key in the file, in microseconds UTC; None if it has no timers."""

    dropped: tuple[Path, ...] = ()
    """The fields of values that starts have dropped since the file was written. A later type may have their names again."""


@dataclass(frozen=True)
class ShardRuns:
    """The runs of one shard, the oldest first. While the shard does not change, entries share the object."""

    runs: tuple[Run, ...] = ()

    def changed(self, stay: tuple[int, int], runs: Sequence[Run]) -> ShardRuns:
        """Return the shard when runs from one number to another stay, and these come after them; itself if nothing changes."""
        return self if stay == (0, len(self.runs)) and not runs else ShardRuns((*self.runs[slice(*stay)], *runs))

    @cached_property
    def first(self) -> int | None:
        """The least start of an interval, in microseconds UTC; None without runs."""
        return min((run.first for run in self.runs), default=None)

    @cached_property
    def has_parts(self) -> bool:
        """True if a run is a range of a file, or in the entry."""
        return any(run.file.is_part for run in self.runs)

    def files(self) -> Iterable[Stored]:
        """Yield the files of the runs, and ranges of files, without what is in the entry."""
        return (run.file for run in self.runs if not run.file.inline)

    @cached_property
    def inline(self) -> int:
        """The bytes of the runs that are in the entry."""
        return sum(len(run.file.inline) for run in self.runs)

    @cached_property
    def digest(self) -> str:
        """A digest of everything that an entry says of the runs."""
        return hashlib.sha256("\n".join(map(_text, self.runs)).encode()).hexdigest()


def _text(run: Run) -> str:
    timers = {run.due, run.last_due} - {None}
    file, due = run.file, f" {run.due} {run.last_due}" if timers else ""
    # Bytes that an entry has are written to a file at any time: a micro-batch that is under way then has the same runs. The
    # index of a run has its name, so that no other has its checksum.
    place = "" if file.is_part else f"{file.path} "
    dropped = f" {[*map(list, run.dropped)]}" if run.dropped else ""
    return (
        f"{place}{file.length} {file.checksum} {file.index} {run.rows} {run.low} {run.high} "
        f"{run.first} {run.last} {run.below} {run.half}{due}{dropped}"
    )


@dataclass(frozen=True)
class Cut:
    """A start took back the rows of a file of late and bad rows that are neither below `clock` nor before `positions`."""

    clock: int
    positions: Mapping[str, int]


@dataclass(frozen=True)
class SideFile:
    """A file of late and bad rows, and what a start may still take back of it."""

    file: Stored

    reasons: Mapping[str, int]
    """The number of its rows that count, by reason."""

    newest: int | None
    """The greatest timestamp of a row; None if a row has no timestamp."""

    ends: Mapping[str, int]
    """By partition: the position after the last row."""

    cuts: tuple[Cut, ...] = ()
    """The rows of the file that starts have taken back."""

    def is_settled(self, clock: int, positions: Mapping[str, int]) -> bool:
        """Return True if no start at or above the clock that replays from these positions or later takes a row back."""
        if self.newest is not None and self.newest < clock:
            return True
        return all(end <= positions.get(partition, LAST_POSITION) for partition, end in self.ends.items())


@dataclass(frozen=True)
class Pages:
    """A list that only grows: its newest items here, its older ones in files of JSON lines."""

    files: tuple[Stored, ...] = ()
    tail: tuple[str, ...] = ()


def path_of(application: str, task: str, epoch: int, batch: int, what: str, new_id: Callable[[], str]) -> str:
    """Return a name for a file of a task that no other file has."""
    return f"{application}/runs/{task}/{epoch:06d}-{batch:09d}-{what}-{new_id()}"


def written(path: str) -> tuple[int, int]:
    """Return the epoch and the micro-batch in which a file of `runs` was written; (-1, -1) if its name is not one of ours."""
    name = re.match(r"(\d+)-(\d+)-", path.rpartition("/")[2])
    return (int(name[1]), int(name[2])) if name else (-1, -1)
