"""One shard of a micro-batch after the shuffle: blobs and runs become new runs and a descriptor of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from monoids import MonoidError
from persistent_state.batch.advance import advance, cuts_to_keep
from persistent_state.batch.lift import (
    Place,
    check_bad_rows,
    describe,
    messages,
    microseconds,
    side_table,
    update_table,
)
from persistent_state.batch.messages import Advance, Basis, Blob, Descriptor, digest, reports, runs_by_shard, to_ipc
from persistent_state.batch.plan import Plan
from persistent_state.batch.recorder import Recorder
from persistent_state.errors import DisagreementError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import at_clock, fold, keys, sliding
from persistent_state.partials.dedup import without_copies
from persistent_state.partials.fold import Layout
from persistent_state.partials.lookup import add_current, current
from persistent_state.store import runs as runs_io
from persistent_state.store.entry import Run, SideFile, Stored
from persistent_state.store.files import Files
from persistent_state.store.late_rows import UNFIT, joined, side_file
from persistent_state.store.log import Log

LAZY, EAGER = (1.25, 4), (2.5, 2)
"""(growth, least): levels are merged with newer ones that hold 1 / growth of their rows, and at least so many at a time.

The levels of a monoid that does not commute too, without being folded; all are folded when the oldest is among them.

Either way a row is rewritten log times, or less. Levels tend to be one or two times as large as what is newer, and a
micro-batch waits for its slowest shard: the quarter more lets all shards rewrite in the same one.
"""

MANY = 12
"""Levels from which on they are merged eagerly, since they must not become more and more."""

INLINE = 8 << 20
"""How many bytes of running values a micro-batch sends to the driver at the most; more are written to files."""

SMALL = 64 << 10
"""Bytes that are not worth keeping apart: a run of a few rows has some of its own."""

WIDER = 4
"""How many times as many bytes a row of a run has as one that has just come, at the most, where values do not grow."""


def merge_shard(
    plan: Plan, shard: int, blobs: Sequence[Blob], cached: Sequence[Run] | None, new_id: Callable[[], str]
) -> Descriptor:
    """Fold a shard's blobs into new runs, rewriting older runs where they have become many.

    `cached` are the runs that the shard believes it has; they are used only if the batch says the same.

    Raises:
        DisagreementError: the blobs are not those of one micro-batch, each part once.
        TaskFailedError: user code raised (a task that reads its state runs here).
    """
    basis = blobs[0].basis
    if any(blob.basis != basis for blob in blobs):
        raise DisagreementError(
            f"task={plan.name} batch={basis.batch}: parts were planned from different entries; start again."
        )
    after = advance(basis, reports(basis, blobs), plan.settings)
    held = _held_runs(plan, basis, shard, cached)

    def new_path(what: str = "") -> str:
        name = f"{basis.epoch:06d}-{basis.batch:09d}-{shard:04d}-{new_id()}{what}.arrow"
        return f"{plan.application}/runs/{plan.name}/{name}"

    tables = [table for blob in blobs for table in blob.tables]
    sides = [side for blob in blobs for side in blob.sides]
    once, copies = plan.layout.once, 0
    bounds = keys.shard_range(shard, plan.shards)
    looks_up = plan.emits or plan.task.reads_state
    older = _open(plan, held) if tables and (looks_up or once) else None
    cuts = cuts_to_keep([blob.basis for blob in blobs], after)
    apart = BEGINNING if plan.layout.is_ordered else None
    floor = min(blob.basis.floor for blob in blobs)
    # No later message is below it, so none has a copy that is further below.
    ids_from = None if once is None else max(BEGINNING, floor - once.horizon)
    parts = []
    for low, high in fold.slices(tables, *bounds, asked=tables, levels=older or ()):
        some = [part for table in tables if len(part := fold.between(table, low, high))]
        levels = [fold.between(table, low, high) for table in older or ()]
        if once is not None and some:
            table, found = without_copies(some, levels, plan.layout)
            some, copies = [table] if len(table) else [], copies + found
        if plan.task.reads_state and some:
            some, unfit = _process(plan, some, levels)
            sides += unfit
        parts.append(fold.fold(some, plan.layout, cuts, after.clock, apart, ids_from=ids_from))
    fresh = pa.concat_tables(parts)
    keep = _keep(held, fresh.num_rows, fresh.nbytes, floor)
    opened, kept = (_open(plan, held[keep:]), 0) if older is None else (older, keep)
    runs, values = [], []
    asked, known = ([fresh], opened) if looks_up else ([], [])
    for low, high in fold.slices([*opened[kept:], fresh], *bounds, asked=asked, levels=known):
        new = fold.between(fresh, low, high)
        levels = [fold.between(table, low, high) for table in opened]
        if plan.keeps_current and new.num_rows:
            new, now = add_current(new, levels, plan.layout)
            values.append(now)
        elif plan.emits and new.num_rows:
            values.append(at_clock.running(new, levels, plan.layout, after.clock))
        if rewritten := levels[kept:]:
            new = fold.fold(
                [*rewritten, new],
                plan.layout,
                cuts,
                after.clock,
                _apart_from(plan, after, is_all=keep == 0),
                plan.keeps_current,
                ids_from,
            )
            new = _without_expired(new, plan.layout, floor, is_all=keep == 0)
        if new.num_rows:
            new = sliding.with_edges(new, plan.layout)
            runs.append(runs_io.write_run(plan.files, new_path(), new, plan.layout, low, high))
    return Descriptor(
        task=plan.name,
        epoch=basis.epoch,
        batch=basis.batch,
        shard=shard,
        base=digest(held, basis.clock),
        advance=after,
        journal=basis.journal,
        runs=(*held[:keep], *runs),
        side=_write_side(plan, new_path(".side"), sides),
        values=_write_values(plan, new_path(".values"), values) if plan.emits else None,
        copies=copies,
    )


def _held_runs(plan: Plan, basis: Basis, shard: int, cached: Sequence[Run] | None) -> tuple[Run, ...]:
    if cached is not None and digest(cached, basis.clock) == basis.digests[shard]:
        return tuple(cached)
    entry = Log(plan.files, plan.application).newest()
    runs = entry.tasks[plan.name].runs if entry and plan.name in entry.tasks else ()
    held = runs_by_shard(runs, plan.shards)[shard]
    if digest(held, basis.clock) != basis.digests[shard]:
        raise DisagreementError(
            f"task={plan.name} batch={basis.batch}: the log has moved on since it was planned; start again."
        )
    return held


def _open(plan: Plan, runs: Sequence[Run]) -> list[pa.Table]:
    read = runs_io.read_run_with_sums if plan.keeps_current else runs_io.read_run
    with runs_io.named_by_newest():
        return [read(plan.files, run) for run in runs]


def _apart_from(plan: Plan, after: Advance, is_all: bool) -> int | None:
    """The clock from which on rows stay single messages: all do where an older run may hold one that goes between."""
    if not plan.layout.is_ordered:
        return None
    return after.clock if is_all else BEGINNING


def _without_expired(table: pa.Table, layout: Layout, floor: int, is_all: bool) -> pa.Table:
    """The rows that have not expired by the clock `floor`; of sessions only where the table has all rows of its keys.

    A message that has an id is needed until that is forgotten, as its copies may still come.
    """
    expiry = fold.expiry(table, layout)
    if expiry is None or (layout.gap is not None and not is_all):
        return table
    needed = expiry > floor
    if layout.once is not None:
        needed |= np.asarray(fold.one_chunk(table[fold.ID]).is_valid())
    return table.filter(pa.array(needed))


def _keep(held: Sequence[Run], rows: int, size: int, floor: int) -> int:
    """How many of the oldest runs stay as they are; those after them are merged with the new rows, of `size` bytes."""
    faded = sum(run.rows for run in held if run.half is not None and run.half <= floor)
    if 2 * faded > sum(run.rows for run in held):
        # At least a quarter of all has expired: what is stored stays within a few times of what has not.
        return 0
    if rows == 0:
        return len(held)
    # Where a level begins: its runs follow each other in the hash.
    begins = [i for i, run in enumerate(held) if i == 0 or run.low < held[i - 1].high]
    growth, least = EAGER if len(begins) >= MANY else LAZY
    keep, levels, size = len(held), 1, size + SMALL
    for begin in reversed(begins):
        level, level_size = (
            sum(some) for some in zip(*((r.rows, r.file.length) for r in held[begin:keep]), strict=True)
        )
        # Few rows may be much to rewrite: those of lists and sets hold what came in all of theirs.
        if level > rows * growth or level_size > size * growth * WIDER:
            break
        keep, rows, size, levels = begin, rows + level, size + level_size, levels + 1
    return keep if levels >= least else len(held)


def _process(
    plan: Plan, tables: Sequence[pa.Table], older: Sequence[pa.Table]
) -> tuple[list[pa.Table], list[pa.Table]]:
    """Let a task that reads its state process its messages in order; partial sums and side rows of it."""
    table = pa.concat_tables(tables).combine_chunks()
    by = ["hash", *plan.layout.key_names, "time", "channel", "position", "strand"]
    table = table.sort_by([(name, "ascending") for name in by])
    first = ~keys.same_as_previous([fold.one_chunk(table[name]) for name in ("hash", *plan.layout.key_names)])
    struct = fold.one_chunk(table["row"])
    rows = pa.RecordBatch.from_arrays(struct.flatten(), schema=plan.schema)
    # Not those of the table: what is taken in late has the clock's.
    times, _ = microseconds(rows.column(plan.timestamp), plan.timestamp_unit)
    place = Place(
        partition="",
        named=fold.one_chunk(table["channel"]),
        positions=fold.as_numpy(table, "position"),
        timestamps=times,
        valid=np.ones(len(times), dtype=np.bool_),
    )
    asked = table.select(["hash", *plan.layout.key_names]).filter(pa.array(first))
    before = plan.layout.monoid.from_arrow(current(asked, older, plan.layout))
    # A zero for each, as user code may change the one it is given.
    recorder = Reader(plan, [plan.layout.monoid.zero if value is None else value for value in before])
    key = -1
    for i, (message, begins) in enumerate(zip(messages(rows, place), first.tolist(), strict=True)):
        key += begins
        recorder.turn_to(key)
        recorder.process(plan.task, message, i, lambda i=i: describe(plan, rows, place, i))
    taken, values, unfit = recorder.values(len(times))
    sides = []
    if unfit.any():
        for partition in dict.fromkeys(table["strand"].to_pylist()):
            of_partition = unfit & np.array([s == partition for s in table["strand"].to_pylist()])
            if of_partition.any():
                spot = Place(partition, place.named, place.positions, place.timestamps, place.valid)
                sides.append(side_table(rows, of_partition, UNFIT, spot))
                check_bad_rows(plan, sides[-1])
    columns = [name for name in table.column_names if name != "row"]
    base = {name: fold.one_chunk(table[name]) for name in columns}
    return [update_table(plan, base, taken, values).select(plan.layout.schema.names)], sides


class Reader(Recorder):
    """The state that `process_message` is handed after the shuffle: it records, and reads what it has recorded."""

    def __init__(self, plan: Plan, current: list[object]) -> None:
        super().__init__(plan)
        self._current = current
        self.turn_to(0)

    def turn_to(self, key: int) -> None:
        """The next message is one of this key."""
        self._key = key
        self._before = self._current[key]
        self._is_fit = True

    def update(self, timestamp: int, value: object) -> None:
        super().update(timestamp, value)
        try:
            (known,) = self.monoid.from_arrow(self.column(self._values[-1:]))
        except MonoidError:
            # The whole message is a bad row, and so are updates that it made before.
            self._is_fit = False
            self._current[self._key] = self._before
            return
        if known is not None and self._is_fit:
            self._current[self._key] = self.monoid.plus(self._current[self._key], known)

    def get(self) -> object:
        return self._current[self._key]


def _write_values(plan: Plan, path: str, folded: Sequence[pa.Table]) -> Stored | bytes | None:
    if not folded:
        return None
    table = pa.concat_tables(folded)
    table = table.select([name for name in table.column_names if name not in ("hash", "start")])
    table = table.rename_columns([*plan.task.key_columns, *table.column_names[len(plan.task.key_columns) :]])
    return to_ipc(table) if table.nbytes <= INLINE // plan.shards else runs_io.write_table(plan.files, path, table)


def read_values(files: Files, values: Stored | bytes) -> pa.Table:
    """The running values of a descriptor: the key columns and `value`."""
    return pa.ipc.open_stream(values).read_all() if isinstance(values, bytes) else runs_io.read_table(files, values)


def _write_side(plan: Plan, path: str, sides: Sequence[pa.Table]) -> SideFile | None:
    if not sides:
        return None
    table = joined(sides)
    return side_file(runs_io.write_table(plan.files, path, table), table)
