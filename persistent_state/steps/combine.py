"""One part of a micro-batch before the shuffle: its rows become one blob per shard."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from persistent_state import clock as clocks
from persistent_state import keys, merge
from persistent_state.batch import Basis, Report
from persistent_state.plan import Plan
from persistent_state.sources.base import Chunk
from persistent_state.steps.lift import Lifted, lift_chunk


@dataclass(frozen=True)
class Blob:
    """What a part sends to one shard. `table` holds partial sums, or messages for a task that reads its state."""

    basis: Basis
    report: Report
    table: pa.Table | None
    sides: tuple[pa.Table, ...] = ()

    def to_bytes(self) -> bytes:
        streams = [to_ipc(table) for table in [*([_slim(self.table)] if self.table is not None else []), *self.sides]]
        return pickle.dumps((self.basis, self.report, self.table is not None, streams), protocol=5)

    @classmethod
    def from_bytes(cls, data: bytes) -> Blob:
        basis, report, has_table, streams = pickle.loads(data)
        tables = [pa.ipc.open_stream(stream).read_all() for stream in streams]
        table = _whole(tables.pop(0)) if has_table else None
        return cls(basis, report, table, tuple(tables))


def _slim(table: pa.Table) -> pa.Table:
    """A table without what is soon worked out again: a byte costs more on its way through Spark."""
    return _replaced(table, hash=pa.nulls(table.num_rows), start=table["start"].dictionary_encode())


def _whole(slim: pa.Table) -> pa.Table:
    columns = [merge.one_chunk(slim[name]) for name in slim.column_names if re.fullmatch(r"key\d+", name)]
    return _replaced(slim, hash=pa.array(keys.hash_keys(columns, slim.num_rows)), start=slim["start"].cast(pa.int64()))


def _replaced(table: pa.Table, **columns: pa.Array | pa.ChunkedArray) -> pa.Table:
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def to_ipc(table: pa.Table) -> bytes:
    """A table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def combine(plan: Plan, basis: Basis, part: int, parts: int | None, chunks: Iterable[Chunk]) -> list[Blob]:
    """Lift a part's rows and fold them as far as no clock can come between: one blob per shard, empty ones too.

    Raises:
        TaskFailed: user code raised, or a row is bad and bad rows are to fail.
    """
    lifted = Lifted()
    for chunk in chunks:
        lift_chunk(plan, basis, chunk, lifted)
    table, low, coarse = _partial_sums(plan, basis, lifted)
    report = Report(
        part=part,
        parts=parts,
        seen=tuple((name, newest, lifted.beyond.get(name, 0)) for name, newest in lifted.newest.items()),
        spans=tuple(lifted.spans),
        ends=tuple(lifted.ends.items()),
        replaying=tuple(sorted(lifted.replaying)),
        low=low,
        coarse=coarse,
        counts=dict(lifted.counts),
    )
    pieces: list[pa.Table | None] = [None] * plan.shards
    if table is not None and table.num_rows:
        bounds = keys.shard_bounds(merge.as_numpy(table, "hash"), plan.shards).tolist()
        pieces = [table.slice(low, high - low) for low, high in pairwise(bounds)]
    # Late and bad rows go to one shard, so that they are written and counted once.
    sides = tuple(lifted.sides)
    return [
        Blob(
            basis,
            report,
            piece if piece is not None and piece.num_rows else None,
            sides if i == part % plan.shards else (),
        )
        for i, piece in enumerate(pieces)
    ]


def _partial_sums(plan: Plan, basis: Basis, lifted: Lifted) -> tuple[pa.Table | None, int | None, clocks.Coarse | None]:
    if not any(table.num_rows for table in lifted.tables):
        return None, None, None
    table = pa.concat_tables(lifted.tables).combine_chunks()
    times, panes = merge.as_numpy(table, "time"), plan.layout.panes
    if panes and panes.step > panes.size and not (is_met := panes.is_met(times)).all():
        table, times = table.filter(pa.array(is_met)), times[is_met]
        if len(times) == 0:
            return None, None, None
    starts, coarse = clocks.split_intervals(times, basis.clock, _horizon(plan, basis, lifted), plan.settings.interval)
    if basis.is_behind:
        # The clocks that it passes while it catches up are retained, and need not be on today's grid.
        starts = clocks.begin_apart(starts, times, basis.apart)
    if panes:
        starts = np.maximum(starts, panes.pane(times))
    table = table.add_column(0, "start", pa.array(starts))
    low = int(starts.min())
    if plan.task.reads_state:
        return table.take(pa.array(np.argsort(merge.as_numpy(table, "hash"), kind="stable"))), low, coarse
    table = table.select(plan.layout.schema.names)
    if plan.layout.is_ordered or plan.layout.once is not None:
        order, _ = merge.sort(table, plan.layout)
        return (table if order is None else table.take(pa.array(order))), low, coarse
    return merge.fold([table], plan.layout), low, coarse


def _horizon(plan: Plan, basis: Basis, lifted: Lifted) -> int:
    """How far the clock could move by the channels of this part alone; the others can only hold it further back."""
    newest = [timestamp for timestamp in lifted.newest.values() if timestamp is not None]
    if not newest or basis.is_behind:
        return basis.clock
    return max(basis.clock, min(newest) - plan.settings.delay)
