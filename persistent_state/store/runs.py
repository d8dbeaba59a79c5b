"""Immutable files: written whole under a name of their own, and verified when they are read.

Runs are read by blocks. Those that older versions wrote have none, and are verified whole, as lists and late rows are.

A process verifies a mapped file once, and again whenever the file's inode, size or time is another. A bit that flips on the
disk shows in none of them. So what is read to be written on is read `anew`: it is verified however often the process has read
it before. Else a merge would write the damage into a new file, whose checksum is right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.errors import DamagedError
from persistent_state.event_time.clocks import END
from persistent_state.partials import expiry
from persistent_state.partials.evolve import Evolving, as_type
from persistent_state.partials.layout import CURRENT, DUE, HEAD, TAIL, Layout, as_numpy, below, between, with_values
from persistent_state.store import blocks
from persistent_state.store.blocks import read_blocks, write_blocks
from persistent_state.store.files import cache
from persistent_state.store.files.base import Files, Stamp
from persistent_state.store.named_files import WAYS, Run, Stored
from persistent_state.store.shared_file import SharedFile

MOST_VERIFIED = 10_000
"""The most verified files that a process remembers."""

Asked: TypeAlias = Sequence[NDArray[np.uint64]] | None
"""The hashes that are looked for, in sorted arrays; None if all are."""

_verified: set[tuple[str, str, str, Stamp]] = set()


def write_bytes(files: Files, path: str, data: bytes | pa.Buffer) -> Stored:
    """Write a new file, durable when this returns."""
    files.ensure(path, data)
    stored = Stored(path, len(data), hashlib.sha256(data).hexdigest())
    if not files.near:
        cache.keep(stored.checksum, data)
    return stored


def write_table(files: Files, path: str, table: pa.Table) -> Stored:
    """Write a table as a new Arrow IPC file, durable when this returns."""
    # Twice, as the first time shows the size: a buffer that grows is copied more often.
    measured = pa.MockOutputStream()
    _write(measured, table)
    buffer = pa.allocate_buffer(measured.size())
    _write(pa.FixedSizeBufferWriter(buffer), table)
    return write_bytes(files, path, buffer)


def _write(sink: Any, table: pa.Table) -> None:
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def read_bytes(files: Files, stored: Stored, anew: bool = False) -> pa.Buffer:
    """Return the content of a file without blocks that a log entry names.

    Args:
        files: The store.
        stored: The file.
        anew: True verifies it also if this process has verified it before.

    Raises:
        DamagedError: It is not what was written.
        FileNotFoundError: It was collected.
    """
    if not files.near and (kept := cache.find(stored.checksum, anew)) is not None:
        return kept
    stamp = files.stamp(stored.path)
    data = files.read(stored.path)
    known = None if stamp is None else (files.url, stored.path, stored.checksum, stamp)
    if anew or known not in _verified:
        if len(data) != stored.length or hashlib.sha256(data).hexdigest() != stored.checksum:
            raise stored.damage()
        if len(_verified) >= MOST_VERIFIED:
            _verified.clear()
        if known is not None:
            _verified.add(known)
    if not files.near:
        cache.keep(stored.checksum, data)
    return data


def problems(data: pa.Buffer, stored: Stored) -> Iterator[str]:
    """Yield what is wrong with the bytes of a file that a log entry names: nothing if they are what was written.

    Where a range of the file is named, nothing else in the file is looked at.
    """
    data, of_run = stored.within(data), f"the run at its byte {stored.start}: " if stored.start else ""
    if len(data) != stored.length:
        yield f"{of_run}it has {len(data)} bytes, and {stored.length} were written"
    elif stored.index:
        yield from (f"{of_run}{problem}" for problem in blocks.problems(data, stored))
    elif hashlib.sha256(data).hexdigest() != stored.checksum:
        yield f"{of_run}its SHA-256 is not that of what was written"


@contextmanager
def named_by_newest() -> Iterator[None]:
    """Raise DamagedError for a missing file that the newest entry names: it can't have been collected.

    Raises:
        DamagedError: A file is gone.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise missing_of_newest(error) from None


def missing_of_newest(error: Exception) -> DamagedError:
    """Return the error for a file that is missing though the newest entry names it."""
    return DamagedError(f"a file that the newest log entry names is gone ({error}); {WAYS}.")


def read_table(files: Files, stored: Stored, anew: bool = False) -> pa.Table:
    """Return the table of an Arrow file without blocks, without a copy where the file system can map it."""
    return pa.ipc.open_file(read_bytes(files, stored, anew)).read_all()


def read_run(
    files: Files, run: Run, asked: Asked = None, layout: Layout | None = None, *, anew: bool = False
) -> pa.Table:
    """Return the rows of a run that are part of the state, sorted by hash.

    With `asked`, which are sorted arrays of hashes, rows of other hashes may be missing. With `layout`, values that were
    written when they had another type come as values of the layout's. With `anew` all that is read is verified.
    """
    table = _rows(files, run, asked, layout, anew)
    return table.drop_columns([name for name in (CURRENT, HEAD, TAIL) if name in table.column_names])


def read_run_with_sums(
    files: Files, run: Run, asked: Asked = None, layout: Layout | None = None, *, anew: bool = False
) -> pa.Table:
    """Return the rows of `read_run`, with `current`, `head` and `tail` if no start has cut this run or an older one."""
    is_whole = run.below is None
    return _rows(files, run, asked, layout, anew) if is_whole else read_run(files, run, asked, layout, anew=anew)


def read_due(files: Files, run: Run, since: int, clock: int, *, anew: bool = False) -> NDArray[np.uint64]:
    """Return the sorted hashes of a run's keys whose first timer is due from `since` to below `clock`.

    A row of another run may be newer, or a start may have cut off the row that has the timer. With `anew` all that is read is
    verified.
    """
    hashes = blocks.read_due(files, run.file, since, clock, anew) if run.file.index else None
    if hashes is not None:
        return hashes[(hashes >= run.low) & (hashes <= run.high - 1)]
    table = read_run(files, run, anew=anew)
    due = as_numpy(table, DUE)
    return as_numpy(table, "hash")[(due >= since) & (due < clock)]


def _rows(files: Files, run: Run, asked: Asked, layout: Layout | None, anew: bool) -> pa.Table:
    stored = run.file
    is_by_blocks = bool(stored.index)
    table = (
        read_blocks(files, stored, run.low, run.high, asked, anew) if is_by_blocks else read_table(files, stored, anew)
    )
    table = below(between(table, run.low, run.high), run.below)
    return table if layout is None else _of_type(table, run, layout)


def _of_type(table: pa.Table, run: Run, layout: Layout) -> pa.Table:
    """Return the rows of a run with values of the layout's type."""
    column, type = table["value"], layout.monoid.type
    if not isinstance(layout.monoid, Evolving) or (column.type == type and not run.dropped):
        return table
    return with_values(table, pa.chunked_array([as_type(piece, type, run.dropped) for piece in column.chunks], type))


def write_run(
    files: Files,
    path: str,
    table: pa.Table,
    layout: Layout,
    low: int,
    high: int,
    shared: SharedFile | None = None,
    room: int = 0,
) -> Run:
    """Write partial sums of the hashes in [low, high), at least one, as a run, in the place that `write_blocks` says."""
    starts, fading = as_numpy(table, "start"), expiry.fading(table, layout)
    middle = (table.num_rows - 1) // 2
    half = None if fading is None else int(np.partition(fading, middle)[middle])
    file = write_blocks(files, path, table, shared, room)
    due = as_numpy(table, DUE) if DUE in layout.kind.columns else np.array([], np.int64)
    due = due[due < END]
    run = Run(file, table.num_rows, low, high, int(starts.min()), int(starts.max()), half=half)
    return replace(run, due=int(due.min()), last_due=int(due.max())) if len(due) else run
