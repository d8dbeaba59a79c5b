"""Take a step of an ordered task in one shard: what comes of the shard's messages has their keys, so it stays in the shard.

Nothing is sent from part to shard, and memory does not grow with what the step makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby

import pyarrow as pa

from persistent_state.batch.combine import partial_sums
from persistent_state.batch.lift import Lifted, Read, lift_chunk
from persistent_state.batch.packets import Basis, Descriptor, Report, Sender, short_digest
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.batch.rows import StepChunk
from persistent_state.batch.shard import Fresh, Work, fold_fresh, held_runs, merge, write
from persistent_state.partials import fold, keys
from persistent_state.sources.base import Chunk
from persistent_state.store.named_files import Run
from persistent_state.store.shared_file import SharedFile

ROOM = fold.SLICE_BYTES // 8
"""About how many bytes of rows, for all tasks of a flow, a step keeps before it writes them: a run for each task."""

MOST_BYTES = 4 * ROOM
"""The most bytes of rows that a step keeps of a few keys that go together: else they are in several runs."""


def take_step(
    flow: FlowPlan,
    basis: Basis,
    shard: int,
    chunks: Iterable[Chunk],
    new_id: Callable[[], str],
    shared: SharedFile | None = None,
) -> tuple[Report, list[Descriptor]]:
    """Make new runs of what a step makes of the messages of a shard, and rewrite older ones where they have become many.

    Args:
        flow: The plans of the flow's tasks.
        basis: The basis of the step, as it is given to the part that takes it in this shard.
        shard: The number of the shard. It is also that of the part.
        chunks: What the step makes.
        new_id: Makes names of files that no other file has.
        shared: The file for the runs of several shards, which is to be written before the driver hears of the shard.

    Returns:
        The report of the part, and what the shard has made for each task, durable: the driver commits it, or it never happened.

    Raises:
        DisagreementError: The log has moved on since the step was planned.
        TaskFailedError: User code raised, or a row is bad and bad rows are to fail.
    """
    read, sender = Read(), Sender(basis.flow, basis.epoch, basis.batch, basis.plan, shard, flow.first.shards)
    made = [_Made(plan, basis, sender, new_id, shared) for plan in flow.tasks]
    lifted = [of_task.lifted for of_task in made]
    for high, some in groupby(chunks, _high):
        for chunk in some:
            lift_chunk(flow, basis, chunk, read, lifted)
            for of_task in made:
                of_task.write(high, MOST_BYTES // len(made))
        for of_task in made:
            of_task.end_slice(high, ROOM // len(made))
    report = Report(sender, now=basis.now, counts=dict(read.counts), step=basis.step)
    return report, [of_task.end() for of_task in made]


def _high(chunk: Chunk) -> int:
    assert isinstance(chunk, StepChunk)
    return chunk.high


class _Made:
    """The rows that a step makes in a shard for one task. Where they become many, they are written as runs, by hash."""

    def __init__(
        self, plan: Plan, basis: Basis, sender: Sender, new_id: Callable[[], str], shared: SharedFile | None
    ) -> None:
        self.lifted = Lifted()
        self._plan, self._basis, self._new_id, self._shared = plan, basis, new_id, shared
        (ground,) = basis.grounds[plan.name]
        shard, parts = sender.part, short_digest([*range(plan.shards)])
        held = held_runs(plan, sender, ground, shard, None)
        self._work = Work(plan, shard, sender, parts, ground, (), (), (), held, None)
        self._low, self._end = keys.shard_range(shard, plan.shards)
        self._runs: list[Run] = []

    def write(self, high: int, room: int) -> None:
        """Write the rows that there are, if they have more bytes than this. They are below the hash `high`."""
        if sum(table.nbytes for table in self.lifted.tables) <= room:
            return
        table, high = self._take(), min(high, self._end)
        if len(table):
            self._runs.append(write(self._work, table, self._low, high, self._new_id))

    def end_slice(self, high: int, room: int) -> None:
        """Do as `write` does. What comes after this is not below the hash `high`."""
        self.write(high, room)
        if not self.lifted.tables:
            self._low = min(high, self._end)

    def end(self) -> Descriptor:
        """Write all rows that are left, and describe what was made."""
        if self._runs:
            self.write(self._end, 0)
        fresh = Fresh(self._take(), self.lifted.sides, written=self._runs)
        # Runs that were written for want of room may be read again here, so they stand in files of their own.
        return merge(replace(self._work, shared=self._shared), fresh, self._new_id)[0]

    def _take(self) -> pa.Table:
        """Return the rows that there are, sorted by hash, and keep them no more."""
        tables, self.lifted.tables = self.lifted.tables, []
        table, _, _ = partial_sums(self._plan, self._basis, tables, self._basis.clock)
        return fold_fresh(replace(self._work, tables=[] if table is None else [table])).table
