"""One part of a micro-batch before the shuffle: its rows become one blob for each shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from persistent_state.batch.lift import Lifted, Read, lift_chunk
from persistent_state.batch.packets import Basis, Blob, Content, Report, Sender, slim
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.event_time import clocks
from persistent_state.event_time.inputs import input_of
from persistent_state.partials import few, fold, keys, layout, sort
from persistent_state.sources.base import Chunk

PIECE_BYTES = 32 << 20
"""About how many bytes of tables a blob has at the most: each is a value in a row of Spark's."""


def combine(
    flow: FlowPlan, basis: Basis, part: int, parts: int | None, chunks: Iterable[Chunk]
) -> Iterator[Blob | Report]:
    """Lift a part's rows for each task of a flow, fold them as far as no clock can come between, and yield what it sends.

    That is a blob for each shard, empty ones too, and several for a shard where they are large: memory does not grow with the
    part. At last comes the report to the driver.

    Raises:
        TaskFailedError: user code raised, or a row is bad and bad rows are to fail.
    """
    read, post = Read(), _Post(basis, _sender(basis, part, parts), flow.first.shards)
    room = fold.SLICE_BYTES // len(flow.tasks)
    sums = [_Sums(plan, basis, read, room) for plan in flow.tasks]
    lifted = [of_task.lifted for of_task in sums]
    # Late and bad rows go to one shard, so that they are written and counted once.
    home = part % flow.first.shards
    for chunk in chunks:
        lift_chunk(flow, basis, chunk, read, lifted)
        for of_task in sums:
            for shard, content in of_task.too_much(home):
                yield post.blob(shard, {of_task.name: content})
        if read.late_bytes > room // 4:
            yield from post.late(home, read.take_late())
    yield from post.late(home, read.take_late())
    ends = [of_task.rest(home) for of_task in sums]
    for shard in range(flow.first.shards):
        yield from post.rest(shard, {of_task.name: some[shard] for of_task, some in zip(sums, ends, strict=True)})
    yield Report(
        sender=post.sender,
        now=basis.now,
        seen=tuple(
            (name, newest, read.sightings.beyond.get(name, 0)) for name, newest in read.sightings.newest.items()
        ),
        spans=tuple(read.spans),
        ends=tuple(read.ends.items()),
        replaying=tuple(sorted(read.sightings.replaying)),
        low=min((low for of_task in sums for low in of_task.lows), default=None),
        coarse=_coarsest([coarse for of_task in sums for coarse in of_task.coarse]),
        counts=dict(read.counts),
        notes=dict(read.notes),
        misfits={of_task.name: of_task.lifted.misfit for of_task in sums if of_task.lifted.misfit},
        firsts=dict(read.sightings.firsts),
        silent_for=basis.silent_for,
        visited=basis.visited,
        reach=basis.reach,
        step=basis.step,
    )


class _Post:
    """The blobs of a part, numbered by shard. The first to a shard has the grounds that the planner sends there."""

    def __init__(self, basis: Basis, sender: Sender, shards: int) -> None:
        self.sender = sender
        self._grounds = basis.grounds
        self._numbers = [0] * shards

    def blob(
        self, shard: int, contents: Mapping[str, Content], late: Sequence[pa.Table] = (), is_last: bool = False
    ) -> Blob:
        number = self._numbers[shard]
        self._numbers[shard] += 1
        grounds = {} if number else {task: of_shards[shard] for task, of_shards in self._grounds.items()}
        return Blob(self.sender, shard, contents, tuple(late), number, is_last, grounds)

    def late(self, shard: int, tables: Sequence[pa.Table]) -> Iterator[Blob]:
        """Yield late rows for a shard."""
        for content in _pieces((), tables):
            yield self.blob(shard, {}, content.sides)

    def rest(self, shard: int, left: Mapping[str, Sequence[Content]]) -> Iterator[Blob]:
        """Yield what is left for a shard, by task. The last blob says that no more comes."""
        contents, size = dict[str, Content](), 0
        for task, content in ((task, content) for task, some in left.items() for content in some):
            if contents and (task in contents or size + content.size > PIECE_BYTES):
                yield self.blob(shard, contents)
                contents, size = {}, 0
            contents[task] = content
            size += content.size
        yield self.blob(shard, contents, is_last=True)


class _Sums:
    """The rows of a part for one task, folded as far as may be. About `room` bytes are kept.

    `lows` are the lowest starts of intervals so far, and `coarse` how coarse these had to be.
    """

    def __init__(self, plan: Plan, basis: Basis, read: Read, room: int) -> None:
        self.lifted = Lifted()
        self.lows: list[int] = []
        self.coarse: list[clocks.Coarse] = []
        self._plan, self._basis, self._read, self._room = plan, basis, read, room
        self._kept: list[pa.Table] = []
        self._sized, self._size = [0, 0], 0

    @property
    def name(self) -> str:
        return self._plan.name

    def too_much(self, home: int) -> Iterator[tuple[int, Content]]:
        """Fold what was lifted if it is much by now, and yield by shard what is still too much after that."""
        held = [self.lifted.tables, self.lifted.sides]
        self._size += sum(_bytes(tables[known:]) for tables, known in zip(held, self._sized, strict=True))
        self._sized = [len(tables) for tables in held]
        if self._size <= self._room // 4:
            return
        self._kept += self._folded(self.lifted.tables)
        self.lifted.tables, self._sized[0], self._size = [], 0, 0
        may_fold = _may_fold(self._plan)
        much = self._room // 2 if may_fold else 0
        if self._bytes_kept() <= much:
            return
        self._kept = self._folded(self._kept) if may_fold else self._kept
        # What folding does not make much less is not worth waiting for more.
        if self._bytes_kept() > much // 2:
            for shard, contents in enumerate(self._taken(home)):
                yield from ((shard, content) for content in contents)

    def rest(self, home: int) -> list[list[Content]]:
        """Return what is left, by shard."""
        self._kept = self._folded([*self._kept, *self.lifted.tables])
        return self._taken(home)

    def _bytes_kept(self) -> int:
        return _bytes([*self._kept, *self.lifted.sides])

    def _folded(self, tables: Sequence[pa.Table]) -> list[pa.Table]:
        # No clock comes between the rows of what was folded: the beginning of their interval says as much as their times.
        horizon = _horizon(self._plan, self._basis, self._read)
        table, low, step = partial_sums(self._plan, self._basis, tables, horizon)
        self.lows.extend([] if low is None else [low])
        self.coarse.extend([] if step is None else [step])
        return [] if table is None else [table]

    def _taken(self, home: int) -> list[list[Content]]:
        """Return what is kept by shard, in pieces that a blob may have, and keep it no more."""
        kept, sides = self._kept, self.lifted.sides
        self._kept, self.lifted.sides, self._sized[1] = [], [], 0
        by_shard = enumerate(_by_shard(self._plan, kept))
        return [_pieces(tables, sides if shard == home else ()) for shard, tables in by_shard]


def _sender(basis: Basis, part: int, parts: int | None) -> Sender:
    return Sender(basis.flow, basis.epoch, basis.batch, basis.plan, part, parts)


def _bytes(tables: Sequence[pa.Table]) -> int:
    return sum(table.nbytes for table in tables)


def _coarsest(coarse: Sequence[clocks.Coarse]) -> clocks.Coarse | None:
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


def _pieces(tables: Sequence[pa.Table], sides: Sequence[pa.Table]) -> list[Content]:
    """Return tables and bad rows, as many at a time as a blob may have."""
    cut = [Content(tables=(slim(piece),), size=size) for table in tables for piece, size in _cut(table)]
    cut += [Content(sides=(piece,), size=size) for side in sides for piece, size in _cut(side)]
    pieces: list[Content] = []
    for content in cut:
        if pieces and pieces[-1].size + content.size <= PIECE_BYTES:
            pieces[-1] = pieces[-1].plus(content)
        else:
            pieces.append(content)
    return pieces


def _cut(table: pa.Table) -> Iterator[tuple[pa.Table, int]]:
    """Yield the rows of a table in pieces that fit into a blob, each with about its bytes."""
    size, rows = table.nbytes, table.num_rows
    count = -(-size // PIECE_BYTES)
    if count <= 1:
        yield table, size
        return
    some = -(-rows // count)
    for first in range(0, rows, some):
        yield table.slice(first, some), size // count


def partial_sums(
    plan: Plan, basis: Basis, tables: Sequence[pa.Table], horizon: int
) -> tuple[pa.Table | None, int | None, clocks.Coarse | None]:
    """Return tables of updates or messages as one, sorted by hash and folded as far as the clock can move to `horizon`.

    Each row of `tables` has its time, or a hash and the beginning of its interval as `start`, as rows that were returned before
    have. With the table come the lowest start of an interval, and how coarse intervals below the horizon had to be.
    """
    hashed = [_hashed(plan, basis, table, horizon) for table in tables]
    if not any(table.num_rows for table in hashed):
        return None, None, None
    columns = hashed[0].column_names if plan.task.reads_state else plan.layout.schema.names
    table = pa.concat_tables([table.select(columns) for table in hashed]).combine_chunks()
    table, coarse = _with_starts(plan, basis, table, horizon)
    if table.num_rows == 0:
        return None, None, None
    low = int(layout.as_numpy(table, "start").min())
    if plan.task.reads_state:
        return table.take(pa.array(np.argsort(layout.as_numpy(table, "hash"), kind="stable"))), low, coarse
    if not _may_fold(plan):
        order, _ = sort.sort(table, plan.layout)
        return (table if order is None else sort.rows_of(table, order)), low, coarse
    return fold.fold([table], plan.layout), low, coarse


def _hashed(plan: Plan, basis: Basis, table: pa.Table, horizon: int) -> pa.Table:
    """Return rows with the hashes of their keys: where the keys are few, a row is the sum of those of an interval."""
    if "hash" in table.column_names:
        return table
    table = table.append_column("start", table["time"])
    if _may_fold(plan) and few.may_fold(table, plan.layout):
        # All tables together span no less, so that their intervals have to be as coarse again.
        table, _ = _with_starts(plan, basis, table, horizon)
        if (folded := few.fold_few(table, plan.layout)) is not None:
            return folded
    columns = [layout.one_chunk(table[name]) for name in plan.layout.key_names]
    return table.append_column("hash", pa.array(keys.hash_keys(columns, table.num_rows)))


def _with_starts(plan: Plan, basis: Basis, table: pa.Table, horizon: int) -> tuple[pa.Table, clocks.Coarse | None]:
    """Return the rows that count, each with the beginning of its interval as `start`, and how coarse intervals had to be."""
    # A message in no window does not count in the state, but a task that reads its state has yet to see it.
    table = table if plan.task.reads_state else plan.layout.kind.in_state(table)
    times = layout.as_numpy(table, "start")
    starts, coarse = clocks.split_intervals(times, basis.clock, horizon, plan.settings)
    if basis.is_behind:
        # The clocks that it passes while it catches up are retained, and need not be on today's grid.
        starts = clocks.begin_apart(starts, times, basis.apart)
    starts = plan.layout.kind.begin_apart(starts, times)
    return table.set_column(table.schema.get_field_index("start"), "start", pa.array(starts)), coarse


def _horizon(plan: Plan, basis: Basis, read: Read) -> int:
    """Return how far the clock could move by the channels of this part alone. Other parts can only hold it further back."""
    settings, inputs = plan.settings, plan.inputs
    reached = [
        newest - settings.of(input_of(name, inputs)).delay
        for name, newest in read.sightings.newest.items()
        if newest is not None
    ]
    if not reached or basis.is_behind:
        return basis.clock
    return max(basis.clock, min(reached))
