"""Read what changed in a task's state between two clocks.

If the runs keep both clocks apart, only the runs that came between them are read, and of the others the blocks of the keys that
changed. The state at a kept clock may be in runs of its own; then both states are read, and held against each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from persistent_state.errors import DamagedError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import fold
from persistent_state.partials.changed import Changed, are_equal, changed, paired
from persistent_state.partials.layout import Kind, Layout, as_numpy, below, between, where
from persistent_state.store import runs as runs_io
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import Files
from persistent_state.store.named_files import Run, rows_of
from persistent_state.store.state_at import StateAt, newest_entry, seen_below

CHANGE_TYPE = "_change_type"
"""The column of changes that says what a row is, in Delta's words."""

CHANGE_TYPES = ("insert", "update_preimage", "update_postimage", "delete")


def runs_from(runs: Sequence[Run], since: int, clock: int) -> list[Run]:
    """Return the runs that may hold rows that start from `since` on, below the clock."""
    return [run for run in runs if run.first < clock and run.last >= since and (run.below is None or run.below > since)]


def ending_runs(runs: Sequence[Run], kind: Kind, since: int, clock: int, ended: int = BEGINNING) -> list[Run]:
    """Return the runs that may hold rows of windows, sessions or keys that end between the clocks, without a message.

    What is of messages below `ended`, which the runs keep apart, had ended by `since`.
    """
    found = []
    for run in runs:
        last = min(run.last, (clock if run.below is None else min(run.below, clock)) - 1)
        if run.first <= last and last >= ended and kind.may_end(run.first, last, since, clock):
            found.append(run)
    return found


def changed_between(
    files: Files,
    layout: Layout,
    runs: Sequence[Run],
    since: int,
    clock: int,
    *,
    every: int | None = None,
    ended: int = BEGINNING,
    anew: bool = False,
) -> Iterator[Changed]:
    """Yield the keys, or windows, that changed between two clocks, which the runs keep apart. All files are opened first.

    Args:
        files: The store.
        layout: The layout of the runs.
        runs: All runs of some hashes, the oldest first.
        since: The clock before.
        clock: The clock after.
        every: Microseconds; each multiple between the clocks is looked at, too. None: none is.
        ended: A clock that the runs keep apart: what is of messages below it had ended by `since`.
        anew: True verifies what is read also if this process has verified it before.

    Raises:
        FileNotFoundError: A run was collected.
        DamagedError: A file is not what was written.
    """
    some = {*runs_from(runs, since, clock), *ending_runs(runs, layout.kind, since, clock, ended)}
    first = [run for run in runs if run in some]
    opened = dict(zip(first, open_runs(files, layout, first, anew=anew), strict=True))
    fresh = [_changed_rows(table, layout, since, clock) for table in opened.values()]
    if not any(map(len, fresh)):
        return
    # Read only the blocks of the other runs that may have the same keys.
    asked = [as_numpy(table, "hash") for table in fresh]
    others = iter(open_runs(files, layout, [run for run in runs if run not in opened], asked, anew))
    levels = [opened[run] if run in opened else next(others) for run in runs]
    for low, high in fold.slices(fresh, asked=fresh, levels=levels):
        # Blocks hold many other keys. What is done to all their rows would take longer, the more keys there are.
        hashes = [as_numpy(between(table, low, high), "hash") for table in fresh]
        changed_keys = pa.table({"hash": np.sort(np.concatenate(hashes))})
        rows = [below(fold.touched(between(table, low, high), changed_keys), clock) for table in levels]
        yield from changed(rows, layout, since, clock, every)


def open_runs(
    files: Files, layout: Layout, runs: Sequence[Run], asked: runs_io.Asked = None, anew: bool = False
) -> list[pa.Table]:
    """Return the rows of runs of one layout, perhaps verified anew. With `asked`, rows of other hashes may be missing."""
    return files.for_each(lambda run: runs_io.read_run(files, run, asked, layout, anew=anew), runs)


def _changed_rows(table: pa.Table, layout: Layout, since: int, clock: int) -> pa.Table:
    """Return the rows of a table that start between the clocks, and those that may end between them."""
    table = below(table, clock)
    changes = as_numpy(table, "start") >= since
    changes[layout.kind.ends(table, since, clock)[0]] = True
    return where(table, changes)


@dataclass(frozen=True)
class NetChanges:
    """The changes between two states of a task, of the keys with low <= hash < high.

    `apart` says that the runs of `until` hold both states.
    """

    since: StateAt
    until: StateAt
    apart: bool

    @property
    def rows(self) -> int:
        """Return about how many rows are read."""
        layout, until = self.until.layout, self.until
        if not self.apart:
            share = layout.kind.windows_per_row(until.clock, None, BEGINNING)
            return share * rows_of([*self.since.runs, *until.runs])
        clocks = self.since.clock, until.clock
        return rows_of([*runs_from(until.runs, *clocks), *ending_runs(until.runs, layout.kind, *clocks)])

    def part(self, number: int, parts: int) -> NetChanges:
        """One of `parts` parts of the changes, by the hash of the key."""
        return replace(self, since=self.since.part(number, parts), until=self.until.part(number, parts))

    def read(self) -> list[Changed]:
        """Return the keys, or windows, that may have changed, with their values before and after.

        Raises:
            InvalidInputError: A clock is no longer retained.
            DamagedError: A file is not what was written.
        """
        since, until = self.since, self.until
        if self.apart:
            try:
                return [*changed_between(until.files, until.layout, until.runs, since.clock, until.clock)]
            except (FileNotFoundError, DamagedError):
                again = net_changes(since, until)
                if again != self:
                    # The runs were rewritten, and new ones hold both states, or each is in others, as that of a kept clock is.
                    return again.read()
        before, after = (state.answer(_folded)[0] for state in (since, until))
        return [paired(before, after, until.clock)] if len(before) or len(after) else []


def _folded(state: StateAt) -> pa.Table:
    return seen_below(state.files, state.runs, state.layout, state.clock)


def net_changes(since: StateAt, until: StateAt, newest: Entry | None = None) -> NetChanges:
    """Return what changed between two states of a task, held by the runs of the newest entry if these hold both.

    Args:
        since: The state before.
        until: The state after.
        newest: The newest entry, if it has just been read.

    Raises:
        InvalidInputError: There is no such application any more.
        DamagedError: The newest entry is not what was written.
    """
    entry = newest or newest_entry(until.files, until.application)
    before, after = since.within(entry), until.within(entry)
    if before is None or after is None:
        return NetChanges(since, until, False)
    return NetChanges(before, after, True)


def schema_of_changes(state: StateAt) -> pa.Schema:
    """Return the columns of the changes of a state: its own, and the type of the change."""
    return state.schema.append(pa.field(CHANGE_TYPE, pa.string()))


def change_rows(some: Changed, state: StateAt) -> pa.Table:
    """Return changes as users see them. Where nothing differs there is no row, though messages may have come."""
    schema = schema_of_changes(state)
    was, is_there = (np.asarray(values.is_valid()) for values in (some.before, some.after))
    before, after = state.present(some.before), state.present(some.after)
    differs = was & is_there & ~are_equal(before, after)
    counts = np.where(was & is_there, 2 * differs, was | is_there)
    rows = np.repeat(np.arange(len(counts)), counts)
    is_second = np.arange(len(rows)) > np.repeat(np.cumsum(counts) - counts, counts)
    is_after = is_second | ~was[rows]
    kinds = np.where(differs[rows], np.where(is_second, 2, 1), np.where(is_after, 0, 3))
    table = some.rows.drop_columns(["hash"]).take(pa.array(rows))
    values = pa.concat_arrays([before, after]).take(pa.array(rows + len(counts) * is_after))
    columns = [*table.columns, values, pa.array(CHANGE_TYPES).take(pa.array(kinds))]
    return pa.table(columns, names=schema.names).cast(schema)
