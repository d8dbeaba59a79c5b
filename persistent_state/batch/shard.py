"""One shard of a micro-batch after the shuffle: blobs and runs become new runs and a descriptor of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from persistent_state.batch import compaction
from persistent_state.batch.packets import (
    Blob,
    Descriptor,
    Ground,
    Sender,
    check_parts,
    digest,
    to_ipc,
    whole_tables,
)
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.batch.update import updates_by_key
from persistent_state.errors import DisagreementError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import expiry, fold, keys
from persistent_state.partials.dedup import without_copies
from persistent_state.partials.layout import Layout, as_numpy, between, where
from persistent_state.partials.lookup import add_current
from persistent_state.store import runs as runs_io
from persistent_state.store.files import Files
from persistent_state.store.late_rows import joined, side_file
from persistent_state.store.log import Log
from persistent_state.store.named_files import Run, SideFile, Stored
from persistent_state.store.shared_file import SharedFile
from persistent_state.windows import WINDOW

FEW = 16 << 10
"""The most bytes of a run, as compressed, that go to the driver rather than to a file. The driver writes them into the entry,
or all of them to one file."""

FEW_OF_TASK = 256 << 10
"""The most bytes of such runs that the shards of a task send to the driver in a micro-batch."""

INLINE = 8 << 20
"""The most bytes of running values that a micro-batch sends to the driver; more are written to files."""


@dataclass(frozen=True)
class Work:
    """The work of a shard of a task in a micro-batch."""

    plan: Plan
    shard: int
    sender: Sender

    parts: str
    """The digest of the parts that the shard has heard from."""

    ground: Ground

    tables: Sequence[pa.Table]
    """The rows that came for the task."""

    sides: Sequence[pa.Table]
    """The rows that are bad for the task."""

    late: Sequence[pa.Table]
    """The rows that are late or bad for every task of the flow."""

    held: tuple[Run, ...]
    """The runs that the shard holds."""

    ids_from: int | None
    """Ids of messages below this time are forgotten. None if ids do not count."""

    shared: SharedFile | None = None
    """The file for the runs of all shards of the worker; None if each run is a file of its own."""

    @property
    def looks_up(self) -> bool:
        """Return whether the state of the keys that came is needed."""
        return self.plan.emits or self.plan.task.reads_state

    def has_expired(self, run: Run) -> bool:
        """Return whether nothing of a run is needed any more."""
        layout = self.plan.layout
        return layout.once is None and layout.kind.has_expired(run.last, self.ground.floor)


@dataclass(frozen=True)
class Fresh:
    """The new rows of a shard, folded; the late and bad rows beside them; and how many messages were copies.

    `older` are the rows that the shard holds of the keys that came, run by run, and others; none where they are not needed.
    Where there is no room for all new rows in memory they stand in `written`, and the table has none.
    """

    table: pa.Table
    sides: Sequence[pa.Table]
    copies: int = 0
    older: Sequence[pa.Table] = ()
    written: Sequence[Run] = ()

    @property
    def rows(self) -> int:
        rows: int = self.table.num_rows + sum(run.rows for run in self.written)
        return rows

    @property
    def size(self) -> int:
        """The bytes of the rows."""
        size: int = self.table.nbytes + sum(run.file.length for run in self.written)
        return size


def merge_shard(
    flow: FlowPlan,
    shard: int,
    blobs: Sequence[Blob],
    cached: Mapping[str, Sequence[Run]],
    new_id: Callable[[], str],
    shared: SharedFile | None = None,
) -> tuple[list[Descriptor], dict[str, tuple[Run, ...]]]:
    """Fold a shard's blobs into new runs of each task, and rewrite older runs where they have become many.

    Args:
        flow: The plans of the flow's tasks.
        shard: The number of the shard.
        blobs: What the parts have sent to the shard, in any order.
        cached: By task: the runs that the shard believes it holds. They are used only if the micro-batch says the same.
        new_id: Makes names of files that no other file has.
        shared: The file for the runs of several shards, which is to be written before the driver hears of the shard.

    Returns:
        What the shard has made for each task, durable: the driver commits it, or it never happened. And by task all runs that
        the shard has then.

    Raises:
        DisagreementError: The blobs are not those of one micro-batch, each part once.
        TaskFailedError: User code raised; a task that reads its state runs here.
    """
    parts = check_parts(shard, blobs)
    descriptors, runs = [], {}
    for plan in flow.tasks:
        late = [table for blob in blobs for table in blob.late] if plan is flow.first else []
        work = _work(plan, shard, blobs, parts, late, cached.get(plan.name), shared)
        descriptor, runs[plan.name] = merge(work, fold_fresh(work), new_id)
        descriptors.append(descriptor)
    return descriptors, runs


def merge(work: Work, fresh: Fresh, new_id: Callable[[], str]) -> tuple[Descriptor, tuple[Run, ...]]:
    """Write the new rows of a shard, and rewrite older runs where they have become many."""
    gone = next((i for i, run in enumerate(work.held) if not work.has_expired(run)), len(work.held))
    keep = gone + compaction.choose(work.held[gone:], fresh.rows, fresh.size, work.ground.floor)
    runs, values = _rewrite(work, fresh, gone, keep, new_id)
    return _descriptor(work, fresh, gone, keep, runs, values, new_id), (*work.held[gone:keep], *runs)


def _work(
    plan: Plan,
    shard: int,
    blobs: Sequence[Blob],
    parts: str,
    late: Sequence[pa.Table],
    cached: Sequence[Run] | None,
    shared: SharedFile | None,
) -> Work:
    sender = blobs[0].sender
    ground = next((blob.grounds[plan.name] for blob in blobs if plan.name in blob.grounds), None)
    if ground is None:
        raise DisagreementError(f"task={plan.name} batch={sender.batch}: its first part did not come; start it again.")
    once = plan.layout.once
    contents = [blob.of(plan.name) for blob in blobs]
    return Work(
        plan=plan,
        shard=shard,
        sender=sender,
        parts=parts,
        ground=ground,
        tables=whole_tables([table for content in contents for table in content.tables]),
        sides=[side for content in contents for side in content.sides],
        late=late,
        held=held_runs(plan, sender, ground, shard, cached),
        # No later message is below the floor, so none has a copy that is further below.
        ids_from=None if once is None else max(BEGINNING, ground.floor - once.horizon),
        shared=shared,
    )


def held_runs(plan: Plan, sender: Sender, ground: Ground, shard: int, cached: Sequence[Run] | None) -> tuple[Run, ...]:
    """Return the runs that the shard holds: those that the planner sent, the cached ones, or those of the log."""
    if ground.held is not None and digest(ground.held, ground.clock) == ground.runs:
        return ground.held
    if cached is not None and digest(cached, ground.clock) == ground.runs:
        return tuple(cached)
    entry = Log(plan.files, plan.application).newest()
    stored = entry.tasks[plan.name].stored.shards if entry and plan.name in entry.tasks else ()
    held = stored[shard].runs if shard < len(stored) else ()
    if digest(held, ground.clock) != ground.runs:
        raise DisagreementError(
            f"task={plan.name} batch={sender.batch}: the log has moved on since it was planned; start again."
        )
    return held


def fold_fresh(work: Work) -> Fresh:
    """Fold the tables that came, without messages that came before. A task that reads its state makes its updates here."""
    plan, tables = work.plan, work.tables
    is_needed = tables and (work.looks_up or plan.layout.once)
    older = _open(plan, work.held, [as_numpy(table, "hash") for table in tables]) if is_needed else ()
    apart = None if plan.layout.folds_early else BEGINNING
    parts, sides, copies = [], [*work.sides], 0
    for low, high in fold.slices(tables, *_bounds(work), asked=tables, levels=older):
        some = [part for table in tables if len(part := between(table, low, high))]
        levels = [between(table, low, high) for table in older]
        if plan.layout.once is not None and some:
            table, found = without_copies(some, levels, plan.layout)
            some, copies = [table] if len(table) else [], copies + found
        if plan.task.reads_state and some:
            table, unfit = updates_by_key(plan.only, some, levels)
            some, sides = [plan.layout.kind.in_state(table)], [*sides, *unfit]
        parts.append(fold.fold(some, plan.layout, _cuts(work, some), work.ground.clock, apart, ids_from=work.ids_from))
    return Fresh(pa.concat_tables(parts), sides, copies, older)


def _rewrite(
    work: Work, fresh: Fresh, gone: int, keep: int, new_id: Callable[[], str]
) -> tuple[list[Run], list[pa.Table]]:
    """Write the new rows, merged with all runs but the `keep` oldest, of which the `gone` oldest are needed no more.

    Returns:
        The runs, and the running values.
    """
    plan, layout = work.plan, work.plan.layout
    if fresh.written and keep == len(work.held):
        return [*fresh.written], []
    opened = [*_opened(plan, work.held[keep:], fresh.older[keep:]), *_open(plan, fresh.written)]
    asked, known = ([fresh.table], fresh.older) if work.looks_up else ([], [])
    runs, values = [], []
    for low, high in fold.slices([*opened, fresh.table], *_bounds(work), asked=asked, levels=known):
        new = between(fresh.table, low, high)
        levels = [between(table, low, high) for table in known]
        if plan.keeps_current and new.num_rows:
            new, now = add_current(new, levels, layout)
            values.append(now)
        elif plan.emits and new.num_rows:
            touched = [*(fold.touched(level, new) for level in levels), new]
            values.append(layout.kind.running(touched, layout, work.ground.clock))
        if opened:
            apart = _apart_from(plan, work.ground.clock, is_all=keep == gone)
            tables = [*(between(table, low, high) for table in opened), new]
            cuts = _cuts(work, tables)
            new = fold.fold(tables, layout, cuts, work.ground.clock, apart, plan.keeps_current, work.ids_from)
            new = expiry.without_expired(new, layout, work.ground.floor, is_all=keep == gone)
        if new.num_rows:
            runs.append(write(work, new, low, high, new_id))
    return runs, values


def write(work: Work, table: pa.Table, low: int, high: int, new_id: Callable[[], str]) -> Run:
    """Write rows of the hashes in [low, high), at least one, as a run of the shard."""
    layout = work.plan.layout
    rows = layout.kind.with_sums(table, layout)
    plan, room = work.plan, min(FEW, FEW_OF_TASK // work.plan.shards)
    return runs_io.write_run(plan.files, _path(work, new_id), rows, layout, low, high, work.shared, room)


def _descriptor(
    work: Work,
    fresh: Fresh,
    gone: int,
    keep: int,
    runs: Sequence[Run],
    values: Sequence[pa.Table],
    new_id: Callable[[], str],
) -> Descriptor:
    """Write the late and bad rows and the running values, and describe all that the shard has made."""
    plan, sender = work.plan, work.sender
    return Descriptor(
        flow=sender.flow,
        task=plan.name,
        epoch=sender.epoch,
        batch=sender.batch,
        plan=sender.plan,
        parts=work.parts,
        shard=work.shard,
        base=digest(work.held, work.ground.clock),
        gone=gone,
        kept=keep,
        runs=tuple(runs),
        side=_write_side(plan, _path(work, new_id, ".side"), fresh.sides),
        late=_write_side(plan, _path(work, new_id, ".late"), work.late),
        values=_write_values(plan, _path(work, new_id, ".values"), values) if plan.emits else None,
        copies=fresh.copies,
    )


def _cuts(work: Work, tables: Sequence[pa.Table]) -> tuple[int, ...]:
    """Return the clocks that must not be folded over in these tables."""
    return work.ground.apart([as_numpy(table, "start") for table in tables])


def _bounds(work: Work) -> tuple[int, int]:
    return keys.shard_range(work.shard, work.plan.shards)


def _path(work: Work, new_id: Callable[[], str], what: str = "") -> str:
    """Return a name for a file of this shard and micro-batch that no other file has."""
    name = f"{work.sender.epoch:06d}-{work.sender.batch:09d}-{work.shard:04d}-{new_id()}{what}.arrow"
    return f"{work.plan.application}/runs/{work.plan.name}/{name}"


def _open(plan: Plan, runs: Sequence[Run], asked: runs_io.Asked = None) -> list[pa.Table]:
    """Return the rows of runs. With `asked`, rows of other hashes than these may be missing."""
    read = runs_io.read_run_with_sums if plan.keeps_current else runs_io.read_run
    with runs_io.named_by_newest():
        return plan.files.for_each(lambda run: read(plan.files, run, asked, plan.layout, anew=True), runs)


def _opened(plan: Plan, runs: Sequence[Run], looked_up: Sequence[pa.Table]) -> list[pa.Table]:
    """Return all rows of runs. A run of which all blocks were looked up is open."""
    whole = {run: table for run, table in zip(runs, looked_up, strict=False) if len(table) == run.rows}
    others = iter(_open(plan, [run for run in runs if run not in whole]))
    return [whole[run] if run in whole else next(others) for run in runs]


def _apart_from(plan: Plan, clock: int, is_all: bool) -> int | None:
    """Return the clock from which on rows stay single messages: all do where an older run may hold one between them."""
    if plan.layout.folds_early:
        return None
    return clock if is_all else BEGINNING


def _write_values(plan: Plan, path: str, folded: Sequence[pa.Table]) -> Stored | bytes | None:
    if not folded:
        return None
    table = pa.concat_tables(folded)
    table = table.select([name for name in table.column_names if name not in ("hash", "start")])
    table = table.rename_columns([*plan.task.key_columns, *table.column_names[len(plan.task.key_columns) :]])
    return to_ipc(table) if table.nbytes <= INLINE // plan.shards else runs_io.write_table(plan.files, path, table)


def read_values(files: Files, values: Stored | bytes, layout: Layout, clock: int) -> pa.Table:
    """Return the running values of a descriptor: the key columns and `value`, without windows that have ended by the clock."""
    table = pa.ipc.open_stream(values).read_all() if isinstance(values, bytes) else runs_io.read_table(files, values)
    return where(table, as_numpy(table, WINDOW[1]) > clock) if WINDOW[1] in layout.kind.window_columns else table


def _write_side(plan: Plan, path: str, sides: Sequence[pa.Table]) -> SideFile | None:
    if not sides:
        return None
    table = joined(sides)
    return side_file(runs_io.write_table(plan.files, path, table), table)
