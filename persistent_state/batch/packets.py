"""The packets of a micro-batch: all that its planner, parts, shards and driver send each other."""

from __future__ import annotations

import hashlib
import pickle
import re
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.errors import DisagreementError
from persistent_state.event_time import clocks
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import Coarse
from persistent_state.event_time.positions import Position
from persistent_state.partials import keys, layout
from persistent_state.sources.base import Reach
from persistent_state.store.late_rows import UNFIT
from persistent_state.store.named_files import Run, ShardRuns, SideFile, Stored

DRIVER = -1
"""The driver's place among the numbers of the shards, and its label among theirs: reports go there."""

GATHERED_ROWS, GATHERED_BYTES = 1 << 16, 1 << 25
"""The most rows and bytes of small tables whose hashes are worked out together."""

MOST_NOTES = 3
"""The most texts about one column that people are to read, as of three files."""

_ALIGNED = 8

PROCESSED, ACTED = "processed", "acted"
"""The counts of an ordered task's step: the messages that it has processed, and the keys that had a state or rows by that."""

FIRST = 0
"""The number of the first part, which carries what the planner tells shards and driver. Only a part without rows is lower."""


@dataclass(frozen=True)
class Step:
    """A step of a flow that other tasks feed: it takes what they give from the clock `since` up to `clock`."""

    flow: str
    since: int
    clock: int


class Clocks(tuple[int, ...]):
    """Clocks that ascend. They may be many, and then a pickle of them is small, as the steps between them are mostly equal."""

    @cached_property
    def _packed(self) -> bytes:
        return zlib.compress(np.diff(np.array(self, dtype=np.int64), prepend=0).tobytes(), 1)

    @staticmethod
    def _unpacked(packed: bytes) -> Clocks:
        clocks = Clocks(np.frombuffer(zlib.decompress(packed), dtype=np.int64).cumsum().tolist())
        clocks._packed = packed
        return clocks

    def __reduce__(self) -> tuple[Any, ...]:
        return Clocks._unpacked, (self._packed,)


@dataclass(frozen=True)
class Ground:
    """The ground of a shard: all of it is fixed before the micro-batch, and the first part takes it along from the planner."""

    clock: int
    """Rows below it are folded: up to this clock the task has been given all that feeds it."""

    cuts: tuple[int, ...]
    """The clocks that stay apart all the same."""

    floor: int
    """State that has expired by this clock may go."""

    runs: str
    """The digest of the runs that the shard starts from."""

    grid: tuple[int, int] | None = None
    """A clock and a length in microseconds: from the clock on each multiple of the length stays apart, too."""

    held: tuple[Run, ...] | None = None
    """The runs themselves, where a shard can't know them from the micro-batch before; None where it may."""

    def apart(self, starts: Sequence[NDArray[np.int64]]) -> tuple[int, ...]:
        """Return the clocks that rows with these starts of intervals must not be folded over."""
        starts = [each for each in starts if len(each)]
        if not starts:
            return ()
        # Of clocks below all rows, or above them, there may be many.
        low, high = (bisect_right(self.cuts, at) for at in (min(map(np.min, starts)), max(map(np.max, starts))))
        cuts = self.cuts[low:high]
        if self.grid is None:
            return cuts
        since, length = self.grid
        every = [np.unique(each[each >= since] // length * length) for each in starts]
        return tuple({*cuts, *(clock for some in every for clock in some.tolist())})


@dataclass(frozen=True)
class Basis:
    """The basis of the parts of a flow's micro-batch, read from the newest log entry when the micro-batch is planned.

    The first part also carries what the planner tells others: to each task's shards their grounds, and to the driver the
    source's reach.
    """

    flow: str
    epoch: int
    batch: int

    plan: str
    """The digest of what was planned: all that belongs to one micro-batch has the same."""

    now: int
    """The batch time in microseconds UTC; 0 in a part that does not know it."""

    clock: int
    """The flow's clock, which is fixed: a message below it is late."""

    begun: tuple[str, ...]
    """The inputs of which a message has ever moved a channel."""

    is_behind: bool
    """True if the flow has yet to catch up with the global clock."""

    positions: Mapping[str, Position]
    """By partition that the part reads: how far it was read before."""

    ends: Mapping[str, int]
    """By partition: the position to which it will have been read. One that is not named goes as far as its rows do."""

    channels: Mapping[str, Channel] = field(default_factory=dict)
    """The channels, where jumps are measured from them."""

    apart: tuple[int, ...] = ()
    """The clocks that a flow which is behind must not fold over."""

    restored: int = clocks.BEGINNING
    """The clock that a start restored. Below it rows without a position may be replayed or late: nobody can tell."""

    again: int = clocks.END
    """The clock from which on rows that earlier starts have accounted for count once more."""

    silent_for: Mapping[str, int] = field(default_factory=dict)
    """By input: for how many microseconds nothing has come of it, where that makes its channels idle."""

    grounds: Mapping[str, tuple[Ground, ...]] = field(default_factory=dict)

    visited: int = clocks.BEGINNING
    """The clock by which shards fold: up to it the flow has taken all that it is fed."""

    reach: Reach | None = None
    """The end of what is read of the sources; None if none of them is asked."""

    step: Step | None = None

    def of_part(self, part: int, partitions: Collection[str] | None) -> Basis:
        """Return what this part is told, which reads these partitions; None if it may read any."""
        basis = self if part <= FIRST else replace(self, grounds={}, reach=None, step=None)
        if partitions is None:
            return basis
        positions = {name: self.positions[name] for name in partitions if name in self.positions}
        return replace(
            basis, positions=positions, ends={name: self.ends[name] for name in partitions if name in self.ends}
        )

    def of_shard(self, shard: int) -> Basis:
        """Return what the part is told that takes a step in this shard alone."""
        grounds = {task: (of_shards[shard],) for task, of_shards in self.grounds.items()}
        return replace(self, positions={}, ends={}, grounds=grounds)


@dataclass(frozen=True)
class Sender:
    """The part that sends something: of which micro-batch, by which plan, one of how many (None: only Spark knows)."""

    flow: str
    epoch: int
    batch: int
    plan: str
    part: int
    parts: int | None


@dataclass(frozen=True)
class FirstRows:
    """Counts of the first rows of an input, before any of them is committed.

    Attributes:
        task: The task that an error names.
        rows: How many rows there are.
        ahead: How many of them are ahead of the wall clock.
        example: The timestamp of one of these; None without any.
        unseen: By task and column that it needs: how many of the rows were read beside no record that has the column.
        unfit: By task: how many of the rows hold an update that does not fit.
        unread: How many records beside the rows have no time that counts, or a value that does not fit its column.
        first_unread: Why and where the first of these is a bad row, in sentences; "" without any.
    """

    task: str
    rows: int
    ahead: int
    example: int | None
    unseen: Mapping[tuple[str, str], int] = field(default_factory=dict)
    unfit: Mapping[str, int] = field(default_factory=dict)
    unread: int = 0
    first_unread: str = ""

    def plus(self, other: FirstRows) -> FirstRows:
        """Return the counts of these rows and of others, as of one chunk."""
        example = self.example if self.example is not None else other.example
        return FirstRows(
            self.task,
            self.rows + other.rows,
            self.ahead + other.ahead,
            example,
            unseen=Counter(self.unseen) + Counter(other.unseen),
            unfit=Counter(self.unfit) + Counter(other.unfit),
            unread=self.unread + other.unread,
            first_unread=self.first_unread or other.first_unread,
        )


@dataclass(frozen=True)
class Report:
    """The report of one part to the driver, which works out from all reports how far the flow comes."""

    sender: Sender
    now: int = 0

    seen: tuple[tuple[str, int | None, int], ...] = ()
    """For each channel: its name, its newest timestamp or None, and how many jumps in a row it has seen."""

    spans: tuple[tuple[str, int, int], ...] = ()
    """For each partition: its name, its first position, and the newest timestamp."""

    ends: tuple[tuple[str, int], ...] = ()
    """For each partition: its name, and the position after its last row."""

    replaying: tuple[str, ...] = ()
    """The channels of which rows came that do not belong to this micro-batch."""

    low: int | None = None
    """The lowest start of an interval of any task."""

    coarse: Coarse | None = None
    """The coarsest step of the intervals of any task."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """The numbers of "messages" and "replayed" ones, of late and bad rows of the flow by reason, and as "outside" of new rows
    outside their bounds, which are not kept. After a step of an ordered task also `PROCESSED` and `ACTED`."""

    notes: Mapping[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    """By input and column: texts of the source that people should read."""

    misfits: Mapping[str, str] = field(default_factory=dict)
    """By task: the first update that does not fit, and where its row stood, in words."""

    firsts: Mapping[str, FirstRows] = field(default_factory=dict)
    """By input that begins: the counts of its first rows."""

    silent_for: Mapping[str, int] = field(default_factory=dict)
    """As in the basis of the part, like `now` and the next three."""

    visited: int = clocks.BEGINNING
    reach: Reach | None = None
    step: Step | None = None

    def to_bytes(self) -> bytes:
        return pickle.dumps(self, protocol=5)

    @classmethod
    def from_bytes(cls, data: bytes) -> Report:
        report: Report = pickle.loads(data)
        return report


def add_notes(noted: list[str], notes: Iterable[str]) -> list[str]:
    """Add notes about one column to those that are known, up to `MOST_NOTES`, and return those that were added."""
    new = [note for note in dict.fromkeys(notes) if note not in noted][: MOST_NOTES - len(noted)]
    noted += new
    return new


def new_notes(reports: Sequence[Report], noted: dict[tuple[str, str], list[str]]) -> list[str]:
    """Return what sources want people to read, and updates that do not fit, if that was not noted before, and note it."""
    notes = sorted((about, texts) for report in reports for about, texts in report.notes.items())
    new = [note for about, texts in notes for note in add_notes(noted.setdefault(about, []), texts)]
    for task, misfit in (each for report in reports for each in report.misfits.items()):
        if not (known := noted.setdefault((UNFIT, task), [])):
            new += add_notes(known, [f"task={task}: an update does not fit, and its row does not count: {misfit}."])
    return new


@dataclass(frozen=True)
class Advance:
    """The clock, channels and positions of a flow after a micro-batch."""

    clock: int

    cuts: tuple[int, ...]
    """The clocks that the runs of its tasks keep apart from now on."""

    coarse: tuple[Coarse, ...]
    channels: Mapping[str, Channel]
    positions: Mapping[str, Position]

    holds: bool
    """False when no channel is live: the flow does not hold back the global clock."""

    upstream_min: int | None
    counts: Mapping[str, int]
    journals: Mapping[str, Sequence[str]] = field(default_factory=dict)
    unread: int | None = None
    lag: Mapping[str, int] = field(default_factory=dict)

    pending: Mapping[str, float] | None = None
    """The `pending` of the reach; None if no source was asked."""

    slowest: str | None = None
    """The live channel that is furthest behind."""

    stepped: int | None = None
    """The clock up to which the flow has taken what other tasks give; None if it took nothing from them."""


@dataclass(frozen=True)
class Content:
    """The rows of a part for one shard of a task: `tables` of partial sums, or of messages if the task reads its state.

    The tables are as `slim` leaves them. `sides` are rows that are bad for the task. `size` is about how many bytes of memory
    the rows take; 0 where nobody asks.
    """

    tables: tuple[pa.Table, ...] = ()
    sides: tuple[pa.Table, ...] = ()
    size: int = 0

    def plus(self, other: Content) -> Content:
        """Return these rows and those of another."""
        return Content((*self.tables, *other.tables), (*self.sides, *other.sides), self.size + other.size)


@dataclass(frozen=True)
class Blob:
    """The message of a part to a shard of its flow, or a piece of it: the `contents` by task, those that are not empty.

    `late` are rows that are late or bad for every task. Pieces are numbered, and each part sends each shard one that is the
    last. The first part's first piece has the `grounds`, by task.
    """

    sender: Sender
    shard: int
    contents: Mapping[str, Content] = field(default_factory=dict)
    late: tuple[pa.Table, ...] = ()
    number: int = 0
    is_last: bool = True
    grounds: Mapping[str, Ground] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle of a slice of a table would hold the whole table.
        return Blob.from_bytes, (self.to_bytes(),)

    def of(self, task: str) -> Content:
        """Return the rows for a task."""
        return self.contents.get(task, Content())

    def to_bytes(self) -> bytes:
        """Return the blob as bytes."""
        return b"".join(self.to_buffers())

    def to_buffers(self) -> list[bytes | pa.Buffer]:
        """Return the bytes of the blob in pieces.

        There are parts times shards of blobs, so what comes before the tables has few bytes.
        """
        tables: list[pa.Buffer] = []

        def lengths(some: Iterable[pa.Table]) -> list[int]:
            new = list(map(_to_ipc, some))
            tables.extend(new)
            return list(map(len, new))

        contents = {task: (lengths(content.tables), lengths(content.sides)) for task, content in self.contents.items()}
        grounds = {task: _fields(ground) for task, ground in self.grounds.items()}
        place = self.shard, self.number, self.is_last
        head = pickle.dumps((_fields(self.sender), place, contents, lengths(self.late), grounds), protocol=5)
        # Tables begin at a multiple of 8, as Arrow wants it of memory that it reads in place.
        head += bytes(-len(head) % _ALIGNED)
        return [len(head).to_bytes(_ALIGNED, "little"), head, *tables]

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Blob:
        """Return the blob of these bytes. Its tables lie in them."""
        view = memoryview(data)
        end = _ALIGNED + int.from_bytes(view[:_ALIGNED], "little")
        sender, (shard, number, is_last), sizes, late_sizes, told = pickle.loads(view[_ALIGNED:end])

        def tables(lengths: Sequence[int]) -> tuple[pa.Table, ...]:
            nonlocal end
            some = []
            for length in lengths:
                some.append(_from_ipc(view[end : end + length]))
                end += length
            return tuple(some)

        contents = {task: Content(tables(of_tables), tables(of_sides)) for task, (of_tables, of_sides) in sizes.items()}
        grounds = {task: Ground(*ground) for task, ground in told.items()}
        return cls(Sender(*sender), shard, contents, tables(late_sizes), number, is_last, grounds)


def check_parts(shard: int, blobs: Sequence[Blob]) -> str:
    """Return the digest of the parts whose blobs are at a shard, once all pieces of all parts are there.

    Raises:
        DisagreementError: Something is missing, came twice, or is of another micro-batch, plan or shard.
    """
    first = blobs[0].sender
    if any(blob.shard != shard for blob in blobs):
        raise DisagreementError(f"flow={first.flow} shard={shard} got what was sent to another; start it again.")
    check_plan([blob.sender for blob in blobs])
    lasts = [blob for blob in blobs if blob.is_last]
    wanted = Counter((last.sender.part, number) for last in lasts for number in range(last.number + 1))
    if wanted != Counter((blob.sender.part, blob.number) for blob in blobs):
        raise DisagreementError(
            f"flow={first.flow} batch={first.batch}: not all of what a part sent came to a shard, or some came twice; "
            "start it again."
        )
    return digest_of_parts([last.sender for last in lasts])


def check_plan(senders: Sequence[Sender]) -> None:
    """Refuse parts that are not all of one micro-batch and plan.

    Raises:
        DisagreementError: They are not.
    """
    first = senders[0]
    if any(replace(sender, part=first.part) != first for sender in senders):
        raise DisagreementError(f"flow={first.flow} batch={first.batch}: parts have different plans; start again.")


def digest_of_parts(senders: Sequence[Sender]) -> str:
    """Return a digest that says which parts there were, if each was there once.

    Raises:
        DisagreementError: A part is missing or came twice.
    """
    first, parts = senders[0], sorted(sender.part for sender in senders)
    if parts != (sorted({*parts}) if first.parts is None else [*range(first.parts)]):
        raise DisagreementError(f"flow={first.flow} batch={first.batch} was delivered in {parts=}; start it again.")
    return short_digest(parts)


def short_digest(value: object) -> str:
    """Return a digest of the `repr` of a value, long enough to tell plans apart."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:32]


def _fields(value: Sender | Ground) -> tuple[Any, ...]:
    return tuple(vars(value).values())


def slim(table: pa.Table) -> pa.Table:
    """Return a table without what is soon worked out again: a byte costs more on its way through Spark."""
    # Times of messages nearly all differ, so that a dictionary of them would be as long and take time.
    is_time = "time" in table.column_names and table["start"].equals(table["time"])
    start = pa.nulls(table.num_rows) if is_time else table["start"].dictionary_encode()
    return _replaced(table, hash=pa.nulls(table.num_rows), start=start)


def whole_tables(sent: Sequence[pa.Table]) -> list[pa.Table]:
    """Return tables with what `slim` has left out."""
    whole: list[pa.Table] = []
    for some in _gathered(sent):
        # Of many small tables, what is left out is worked out for all rows at a time. The values stay where they are.
        names = [name for name in some[0].column_names if re.fullmatch(r"key\d+", name)]
        keyed = pa.concat_tables([table.select(names) for table in some]).combine_chunks()
        columns = [layout.one_chunk(keyed[name]) for name in names]
        hashes, first = pa.array(keys.hash_keys(columns, sum(map(len, some)))), 0
        for table in some:
            rows = table.num_rows
            start = table["time"] if pa.types.is_null(table["start"].type) else table["start"].cast(pa.int64())
            whole.append(_replaced(table, hash=hashes.slice(first, rows), start=start))
            first += rows
    return whole


def _gathered(tables: Sequence[pa.Table]) -> Iterator[list[pa.Table]]:
    """Yield tables in groups of neither many rows nor many bytes, unless one table has that many."""
    some, rows, size = list[pa.Table](), 0, 0
    for table in tables:
        more = table.nbytes
        if some and (rows + table.num_rows > GATHERED_ROWS or size + more > GATHERED_BYTES):
            yield some
            some, rows, size = [], 0, 0
        some.append(table)
        rows, size = rows + table.num_rows, size + more
    if some:
        yield some


def _replaced(table: pa.Table, **columns: pa.Array | pa.ChunkedArray) -> pa.Table:
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def to_ipc(table: pa.Table) -> bytes:
    """Return a table as an Arrow IPC stream."""
    data: bytes = _to_ipc(table).to_pybytes()
    return data


def _to_ipc(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _from_ipc(data: memoryview) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


@dataclass(frozen=True)
class Descriptor:
    """The account of a shard of a task in a micro-batch. Its files are durable; the driver commits it, or it never was."""

    flow: str
    task: str
    epoch: int
    batch: int

    plan: str
    """The digest of what was planned."""

    parts: str
    """The digest of the parts that the shard has heard from."""

    shard: int

    base: str
    """The digest of the runs and the clock that the shard started from."""

    gone: int
    """The number of the oldest of these runs that go."""

    kept: int
    """The number of the oldest of these runs that were not written again. They stay, but for those that are `gone`."""

    runs: tuple[Run, ...]
    """The new runs, which come after the kept ones."""

    side: SideFile | None = None
    """The rows that are bad for the task."""

    late: SideFile | None = None
    """The rows that are late or bad for the flow."""

    values: Stored | bytes | None = None
    """The running values for an output: the file that has them, or the bytes themselves where they are few."""

    copies: int = 0
    """The number of messages that had come before."""


@dataclass(frozen=True)
class Answers:
    """The answers to the driver in a micro-batch, in any order: a report of each part, a descriptor of each task's shards."""

    reports: Sequence[Report]
    descriptors: Sequence[Descriptor]


def digest(runs: Sequence[Run], clock: int) -> str:
    """Return a digest of the runs of a shard and of its clock."""
    return digest_at(clock, ShardRuns(tuple(runs)))


def digest_at(clock: int, runs: ShardRuns) -> str:
    """Return what `digest` does, of runs whose own digest may be known."""
    return f"{clock} {runs.digest}"
