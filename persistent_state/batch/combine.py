"""One part of a micro-batch before the shuffle: its rows become one blob per shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from persistent_state.batch.lift import Lifted, lift_chunk
from persistent_state.batch.messages import DRIVER, Basis, Blob, Report, Sender
from persistent_state.batch.plan import Plan
from persistent_state.event_time import clocks
from persistent_state.partials import fold, keys, layout, sort
from persistent_state.sources.base import Chunk

PIECE_BYTES = 32 << 20
"""About how many bytes of tables a blob has at the most: each is a value in a row of Spark's."""


def combine(
    plan: Plan, basis: Basis, part: int, parts: int | None, chunks: Iterable[Chunk]
) -> tuple[list[Blob], Report]:
    """Lift a part's rows and fold them as far as no clock can come between.

    Returns:
        One blob per shard, empty ones too, and the report to the driver.

    Raises:
        TaskFailedError: user code raised, or a row is bad and bad rows are to fail.
    """
    pieces: list[list[Blob]] = [[] for _ in range(plan.shards)]
    report = Report(_sender(basis, part, parts))
    for shard, sent in combine_in_pieces(plan, basis, part, parts, chunks):
        if isinstance(sent, Report):
            report = sent
        else:
            pieces[shard].append(sent)
    blobs = [
        replace(
            some[-1],
            tables=tuple(table for blob in some for table in blob.tables),
            sides=tuple(side for blob in some for side in blob.sides),
            number=0,
            ground=some[0].ground,
        )
        for some in pieces
    ]
    return blobs, report


def combine_in_pieces(
    plan: Plan, basis: Basis, part: int, parts: int | None, chunks: Iterable[Chunk]
) -> Iterator[tuple[int, Blob | Report]]:
    """Yield (shard, blob), as `combine` returns them, but several blobs of a shard where they are large.

    Memory does not grow with the part. At last comes (`DRIVER`, report).

    Raises:
        TaskFailedError: user code raised, or a row is bad and bad rows are to fail.
    """
    lifted, kept, size = Lifted(), list[pa.Table](), 0
    lows, coarse = list[int](), list[clocks.Coarse]()
    numbers, sender = [0] * plan.shards, _sender(basis, part, parts)

    def sums(tables: Sequence[pa.Table]) -> list[pa.Table]:
        # No clock comes between the rows of what was folded: the beginning of their interval tells as much as their times.
        begun = [t if "start" in t.column_names else t.append_column("start", t["time"]) for t in tables]
        table, low, step = _partial_sums(plan, basis, begun, _horizon(plan, basis, lifted))
        lows.extend([] if low is None else [low])
        coarse.extend([] if step is None else [step])
        return [] if table is None else [table]

    def sent(tables: Sequence[pa.Table], is_end: bool = False) -> Iterator[tuple[int, Blob]]:
        sides, lifted.sides = lifted.sides, []
        for shard, of_shard in enumerate(_by_shard(plan, tables)):
            # Late and bad rows go to one shard, so that they are written and counted once.
            lots = _lots(of_shard, sides if shard == part % plan.shards else ())
            for i, (some, aside) in enumerate(lots):
                is_last = is_end and i == len(lots) - 1
                if some or aside or is_last:
                    ground = basis.grounds[shard] if basis.grounds and not numbers[shard] else None
                    yield shard, Blob(sender, tuple(some), tuple(aside), numbers[shard], is_last, ground)
                    numbers[shard] += 1

    for chunk in chunks:
        known = len(lifted.tables), len(lifted.sides)
        lift_chunk(plan, basis, chunk, lifted)
        size += sum(table.nbytes for table in (*lifted.tables[known[0] :], *lifted.sides[known[1] :]))
        if size <= fold.SLICE_BYTES // 4:
            continue
        kept += sums(lifted.tables)
        lifted.tables, size = [], 0
        much = fold.SLICE_BYTES // 2 if _may_fold(plan) else 0
        if _bytes([*kept, *lifted.sides]) <= much:
            continue
        kept = sums(kept) if _may_fold(plan) else kept
        # What folding does not make much less is not worth waiting for more.
        if _bytes([*kept, *lifted.sides]) > much // 2:
            yield from sent(kept)
            kept = []
    kept = sums([*kept, *lifted.tables])
    yield from sent(kept, is_end=True)
    report = Report(
        sender=sender,
        now=basis.now,
        seen=tuple(
            (name, newest, lifted.sightings.beyond.get(name, 0)) for name, newest in lifted.sightings.newest.items()
        ),
        spans=tuple(lifted.spans),
        ends=tuple(lifted.ends.items()),
        replaying=tuple(sorted(lifted.sightings.replaying)),
        low=min(lows, default=None),
        coarse=_joined(coarse),
        counts=dict(lifted.counts),
        is_silent=basis.is_silent,
        reach=basis.reach,
    )
    yield DRIVER, report


def _sender(basis: Basis, part: int, parts: int | None) -> Sender:
    return Sender(basis.task, basis.epoch, basis.batch, basis.plan, part, parts)


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


def _lots(tables: Sequence[pa.Table], sides: Sequence[pa.Table]) -> list[tuple[list[pa.Table], list[pa.Table]]]:
    """Tables and side rows, as many at a time as a blob may have."""
    lots: list[tuple[list[pa.Table], list[pa.Table]]] = [([], [])]
    size = 0
    for is_side, some in ((False, tables), (True, sides)):
        for piece in (piece for table in some for piece in _cut(table)):
            if size and size + piece.nbytes > PIECE_BYTES:
                lots.append(([], []))
                size = 0
            lots[-1][is_side].append(piece)
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


def _horizon(plan: Plan, basis: Basis, lifted: Lifted) -> int:
    """Return how far the clock could move by the channels of this part alone. Other parts can only hold it further back."""
    newest = [timestamp for timestamp in lifted.sightings.newest.values() if timestamp is not None]
    if not newest or basis.is_behind:
        return basis.clock
    return max(basis.clock, min(newest) - plan.settings.delay)
