"""The messages of a micro-batch: everything that its planner, parts, shards and driver tell each other."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from persistent_state.errors import DisagreementError
from persistent_state.event_time import clocks
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import Coarse
from persistent_state.event_time.positions import Position
from persistent_state.partials import keys, layout
from persistent_state.store.codec import run_to_json
from persistent_state.store.named_files import Run, SideFile, Stored


@dataclass(frozen=True)
class Basis:
    """The ground of one micro-batch of one task, read from the newest log entry when the micro-batch is planned.

    `now` is the batch time. `clock` is fixed: a message below it is late. `low` is where the first stored interval starts,
    `is_listed` whether the source says which channels there are, `is_behind` whether the task has yet to catch up with
    the global clock. `ends` says where each partition will have been read to (one that is not named, as far as its rows
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
    """The report of one part of a micro-batch. Every part reports to every shard.

    `parts` is how many there are; None where only Spark knows. `seen` holds (channel, newest timestamp or None, jumps in
    a row), `spans` (partition, first position, newest timestamp), `ends` (partition, position after the last row), `replaying`
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
    """The clock, channels and positions of a task after a micro-batch. All shards must say the same.

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


@dataclass(frozen=True)
class Blob:
    """The rows of a part for one shard, or a piece of it: `tables` of partial sums, or of messages if a task reads its state.

    Pieces are numbered. Only the last one's report tells what the part saw.
    """

    basis: Basis
    report: Report
    tables: tuple[pa.Table, ...] = ()
    sides: tuple[pa.Table, ...] = ()
    number: int = 0
    is_last: bool = True

    def to_bytes(self) -> bytes:
        tables, sides = [to_ipc(_slim(table)) for table in self.tables], [to_ipc(side) for side in self.sides]
        return pickle.dumps((self.basis, self.report, tables, sides, self.number, self.is_last), protocol=5)

    @classmethod
    def from_bytes(cls, data: bytes) -> Blob:
        basis, report, tables, sides, number, is_last = pickle.loads(data)
        tables, sides = ([pa.ipc.open_stream(stream).read_all() for stream in some] for some in (tables, sides))
        return cls(basis, report, tuple(map(_whole, tables)), tuple(sides), number, is_last)


def reports(basis: Basis, blobs: Sequence[Blob]) -> list[Report]:
    """Return the report of each part, once all pieces of its blob are at a shard.

    Raises:
        DisagreementError: a piece is missing or came twice.
    """
    lasts = [blob for blob in blobs if blob.is_last]
    wanted = Counter((last.report.part, number) for last in lasts for number in range(last.number + 1))
    if wanted != Counter((blob.report.part, blob.number) for blob in blobs):
        raise DisagreementError(
            f"task={basis.task} batch={basis.batch}: not all of what a part sent came to a shard, or some came twice; "
            "start it again."
        )
    return [last.report for last in lasts]


def _slim(table: pa.Table) -> pa.Table:
    """Return a table without what is soon worked out again: a byte costs more on its way through Spark."""
    return _replaced(table, hash=pa.nulls(table.num_rows), start=table["start"].dictionary_encode())


def _whole(slim: pa.Table) -> pa.Table:
    columns = [layout.one_chunk(slim[name]) for name in slim.column_names if re.fullmatch(r"key\d+", name)]
    return _replaced(slim, hash=pa.array(keys.hash_keys(columns, slim.num_rows)), start=slim["start"].cast(pa.int64()))


def _replaced(table: pa.Table, **columns: pa.Array | pa.ChunkedArray) -> pa.Table:
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def to_ipc(table: pa.Table) -> bytes:
    """Return a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@dataclass(frozen=True)
class Descriptor:
    """A shard's account of a micro-batch. Its files are durable; the driver commits it, or it never happened.

    `base` is the digest of the runs and the clock that the shard started from, `runs` what it should have afterwards.
    `values` are the running values for a sink, in a file or, where they are few, as they are; `copies` counts the messages that
    had come before.
    """

    task: str
    epoch: int
    batch: int
    shard: int
    base: str
    advance: Advance
    journal: tuple[str, ...]
    runs: tuple[Run, ...]
    side: SideFile | None = None
    values: Stored | bytes | None = None
    copies: int = 0


def digest(runs: Sequence[Run], clock: int) -> str:
    """Return a digest of the runs of a shard and of its clock."""
    text = json.dumps([clock, *map(run_to_json, runs)])
    return hashlib.sha256(text.encode()).hexdigest()


def runs_by_shard(runs: Sequence[Run], shards: int) -> list[tuple[Run, ...]]:
    """Return the runs of each shard, in their order: those within its range of the hash."""
    of_shards: list[list[Run]] = [[] for _ in range(shards)]
    for run in runs:
        shard = keys.shard_of(run.low, shards)
        if run.high <= keys.shard_range(shard, shards)[1]:
            of_shards[shard].append(run)
    return [tuple(some) for some in of_shards]
