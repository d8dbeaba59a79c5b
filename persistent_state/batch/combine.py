"""One part of a micro-batch before the shuffle: its rows become one blob for each shard of each task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from persistent_state.batch.lift import Lifted, Read, lift_chunk
from persistent_state.batch.messages import Basis, Blob, Report, Sender
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.event_time import clocks
from persistent_state.partials import fold, keys, layout, sort
from persistent_state.sources.base import Chunk

PIECE_BYTES = 32 << 20
"""About how many bytes of tables a blob has at the most: each is a value in a row of Spark's."""


def combine(
    flow: FlowPlan, basis: Basis, part: int, parts: int | None, chunks: Iterable[Chunk]
) -> tuple[list[Blob], Report]:
    """Lift a part's rows for each task of a flow and fold them as far as no clock can come between.

    Returns:
        One blob per task and shard, empty ones too, in their order, and the report to the driver.

    Raises:
        TaskFailedError: user code raised, or a row is bad and bad rows are to fail.
    """
    pieces: dict[tuple[str, int], list[Blob]] = {}
    report = Report(_sender(basis, part, parts))
    for sent in combine_in_pieces(flow, basis, part, parts, chunks):
        if isinstance(sent, Report):
            report = sent
        else:
            pieces.setdefault((sent.task, sent.shard), []).append(sent)
    blobs = [
        replace(
            some[-1],
            tables=tuple(table for blob in some for table in blob.tables),
            sides=tuple(side for blob in some for side in blob.sides),
            late=tuple(side for blob in some for side in blob.late),
            number=0,
            ground=some[0].ground,
        )
        for plan in flow.tasks
        for some in (pieces[plan.name, shard] for shard in range(plan.shards))
    ]
    return blobs, report


def combine_in_pieces(
    flow: FlowPlan, basis: Basis, part: int, parts: int | None, chunks: Iterable[Chunk]
) -> Iterator[Blob | Report]:
    """Yield the blobs that `combine` returns, but several for a task and shard where they are large. At last comes the report.

    Memory does not grow with the part.

    Raises:
        TaskFailedError: user code raised, or a row is bad and bad rows are to fail.
    """
    read, sender = Read(), _sender(basis, part, parts)
    room = fold.SLICE_BYTES // len(flow.tasks)
    outgoing = [_Outgoing(plan, basis, sender, read, plan is flow.first, room) for plan in flow.tasks]
    lifted = [of_task.lifted for of_task in outgoing]
    for chunk in chunks:
        lift_chunk(flow, basis, chunk, read, lifted)
        for of_task in outgoing:
            yield from of_task.grown()
    for of_task in outgoing:
        yield from of_task.ended()
    yield Report(
        sender=sender,
        now=basis.now,
        seen=tuple(
            (name, newest, read.sightings.beyond.get(name, 0)) for name, newest in read.sightings.newest.items()
        ),
        spans=tuple(read.spans),
        ends=tuple(read.ends.items()),
        replaying=tuple(sorted(read.sightings.replaying)),
        low=min((low for of_task in outgoing for low in of_task.lows), default=None),
        coarse=_joined([coarse for of_task in outgoing for coarse in of_task.coarse]),
        counts=dict(read.counts),
        is_silent=basis.is_silent,
        reach=basis.reach,
    )


class _Outgoing:
    """The rows of a part for one task, on their way to the task's shards. The flow's late rows go with its first task.

    About `room` bytes are kept. `lows` are the lowest starts of intervals so far, and `coarse` how coarse these had to be.
    """

    def __init__(self, plan: Plan, basis: Basis, sender: Sender, read: Read, carries_late: bool, room: int) -> None:
        self.lifted = Lifted()
        self.lows: list[int] = []
        self.coarse: list[clocks.Coarse] = []
        self._plan, self._basis, self._sender, self._read = plan, basis, sender, read
        self._carries_late, self._room = carries_late, room
        self._grounds = basis.grounds.get(plan.name, ())
        self._numbers = [0] * plan.shards
        self._kept: list[pa.Table] = []
        self._sized, self._size = [0, 0, 0], 0

    def grown(self) -> Iterator[Blob]:
        """Fold what was lifted if it is much by now, and yield what is still too much after that."""
        held = [self.lifted.tables, *self._aside()]
        self._size += sum(_bytes(tables[known:]) for tables, known in zip(held, self._sized, strict=True))
        self._sized = [len(tables) for tables in held]
        if self._size <= self._room // 4:
            return
        self._kept += self._sums(self.lifted.tables)
        self.lifted.tables, self._sized[0], self._size = [], 0, 0
        may_fold = _may_fold(self._plan)
        much = self._room // 2 if may_fold else 0
        if self._bytes_kept() <= much:
            return
        self._kept = self._sums(self._kept) if may_fold else self._kept
        # What folding does not make much less is not worth waiting for more.
        if self._bytes_kept() > much // 2:
            yield from self._sent(self._kept, is_end=False)
            self._kept = []

    def ended(self) -> Iterator[Blob]:
        """Yield what is left; each shard is told that no more comes."""
        yield from self._sent(self._sums([*self._kept, *self.lifted.tables]), is_end=True)

    def _aside(self) -> list[list[pa.Table]]:
        return [self.lifted.sides, self._read.late if self._carries_late else []]

    def _bytes_kept(self) -> int:
        return sum(map(_bytes, (self._kept, *self._aside())))

    def _sums(self, tables: Sequence[pa.Table]) -> list[pa.Table]:
        # No clock comes between the rows of what was folded: the beginning of their interval tells as much as their times.
        begun = [t if "start" in t.column_names else t.append_column("start", t["time"]) for t in tables]
        horizon = _horizon(self._plan, self._basis, self._read)
        table, low, step = _partial_sums(self._plan, self._basis, begun, horizon)
        self.lows.extend([] if low is None else [low])
        self.coarse.extend([] if step is None else [step])
        return [] if table is None else [table]

    def _sent(self, tables: Sequence[pa.Table], is_end: bool) -> Iterator[Blob]:
        name, numbers, part = self._plan.name, self._numbers, self._sender.part
        sides, late = ([*tables] for tables in self._aside())
        for tables_aside in self._aside():
            tables_aside.clear()
        self._sized[1:] = [0, 0]
        for shard, of_shard in enumerate(_by_shard(self._plan, tables)):
            # Late and bad rows go to one shard, so that they are written and counted once.
            is_theirs = shard == part % self._plan.shards
            lots = _lots([of_shard, sides if is_theirs else (), late if is_theirs else ()])
            for i, (some, aside, of_flow) in enumerate(lots):
                is_last = is_end and i == len(lots) - 1
                if some or aside or of_flow or is_last:
                    ground = self._grounds[shard] if self._grounds and not numbers[shard] else None
                    contents = tuple(some), tuple(aside), tuple(of_flow)
                    yield Blob(self._sender, name, shard, *contents, numbers[shard], is_last, ground)
                    numbers[shard] += 1


def _sender(basis: Basis, part: int, parts: int | None) -> Sender:
    return Sender(basis.flow, basis.epoch, basis.batch, basis.plan, part, parts)


def _bytes(tables: Sequence[pa.Table]) -> int:
    return sum(table.nbytes for table in tables)


def _joined(coarse: Sequence[clocks.Coarse]) -> clocks.Coarse | None:
    """Return how coarse the intervals are at the most; of two steps, one is a multiple of the other."""
    if not coarse:
        return None
    return clocks.Coarse(min(c.low for c in coarse), max(c.high for c in coarse), max(c.step for c in coarse))


def _may_fold(plan: Plan) -> bool:
    """Return whether rows of a part may be folded before the rows of other parts are there."""
    return not plan.task.reads_state and plan.layout.folds_early and plan.layout.once is None


def _by_shard(plan: Plan, tables: Sequence[pa.Table]) -> list[list[pa.Table]]:
    """Return the rows of sorted tables that each shard is sent."""
    of_shards: list[list[pa.Table]] = [[] for _ in range(plan.shards)]
    for table in tables:
        bounds = keys.shard_bounds(layout.as_numpy(table, "hash"), plan.shards).tolist()
        for shard, (low, high) in enumerate(pairwise(bounds)):
            of_shards[shard] += [table.slice(low, high - low)] if low < high else []
    return of_shards


def _lots(kinds: Sequence[Sequence[pa.Table]]) -> list[list[list[pa.Table]]]:
    """Return tables of several kinds, as many at a time as a blob may have."""
    lots: list[list[list[pa.Table]]] = [[[] for _ in kinds]]
    size = 0
    for kind, tables in enumerate(kinds):
        for piece in (piece for table in tables for piece in _cut(table)):
            if size and size + piece.nbytes > PIECE_BYTES:
                lots.append([[] for _ in kinds])
                size = 0
            lots[-1][kind].append(piece)
            size += piece.nbytes
    return lots


def _cut(table: pa.Table) -> list[pa.Table]:
    rows = -(-len(table) // max(1, -(-table.nbytes // PIECE_BYTES)))
    return [table.slice(first, rows) for first in range(0, len(table), max(1, rows))]


def _partial_sums(
    plan: Plan, basis: Basis, tables: Sequence[pa.Table], horizon: int
) -> tuple[pa.Table | None, int | None, clocks.Coarse | None]:
    """Tables of updates or messages as one, sorted by hash and folded where that may be, if the clock can move to `horizon`.

    Each row of `tables` has its time, or the beginning of its interval, as `start`. With the table come the lowest start of an
    interval, and how coarse intervals below the horizon had to be.
    """
    if not any(table.num_rows for table in tables):
        return None, None, None
    columns = tables[0].column_names if plan.task.reads_state else plan.layout.schema.names
    kind = plan.layout.kind
    table = kind.in_state(pa.concat_tables([table.select(columns) for table in tables]).combine_chunks())
    if table.num_rows == 0:
        return None, None, None
    times = layout.as_numpy(table, "start")
    starts, coarse = clocks.split_intervals(times, basis.clock, horizon, plan.settings.interval)
    if basis.is_behind:
        # The clocks that it passes while it catches up are retained, and need not be on today's grid.
        starts = clocks.begin_apart(starts, times, basis.apart)
    starts = kind.begin_apart(starts, times)
    table = table.set_column(table.schema.get_field_index("start"), "start", pa.array(starts))
    low = int(starts.min())
    if plan.task.reads_state:
        return table.take(pa.array(np.argsort(layout.as_numpy(table, "hash"), kind="stable"))), low, coarse
    if not _may_fold(plan):
        order, _ = sort.sort(table, plan.layout)
        return (table if order is None else table.take(pa.array(order))), low, coarse
    return fold.fold([table], plan.layout), low, coarse


def _horizon(plan: Plan, basis: Basis, read: Read) -> int:
    """Return how far the clock could move by the channels of this part alone. Other parts can only hold it further back."""
    newest = [timestamp for timestamp in read.sightings.newest.values() if timestamp is not None]
    if not newest or basis.is_behind:
        return basis.clock
    return max(basis.clock, min(newest) - plan.settings.delay)
