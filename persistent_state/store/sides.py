"""Late and bad rows: files of rows as they came, each with its reason, of which a restart may take some back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.errors import Damaged
from persistent_state.sources.base import NO_POSITION
from persistent_state.store import pages, run
from persistent_state.store.base import Files
from persistent_state.store.codec import side_from_json
from persistent_state.store.entry import Cut, SideFile, Stored, TaskState

MANY = 16
"""How many files stand in a log entry one by one; beyond, those that nothing can take back are listed apart."""

LARGE = 16 << 20
"""Bytes of a file that is not written again to make it one with others."""


def read(files: Files, side: SideFile) -> pa.Table:
    """The rows of a file that were not taken back."""
    table = left(run.read_table(files, side.file), side)
    # Older versions kept text.
    fields = (field.with_type(pa.large_binary()) if field.name == "record" else field for field in table.schema)
    return table.cast(pa.schema(fields))


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of several tables; `origin` is null where only others tell it."""
    table = pa.concat_tables(tables, promote_options="default")
    return table.select([*(name for name in table.column_names if name != "row"), "row"])


def left(table: pa.Table, side: SideFile) -> pa.Table:
    """The rows of a file's whole table that were not taken back."""
    for cut in side.cuts:
        table = table.filter(pa.array(_stays(table, cut)))
    return table


def read_all(files: Files, task: TaskState) -> list[pa.Table]:
    """All late and bad rows of a task, oldest file first. Files may have different columns."""
    return [read(files, side) for side in all_of(files, task)]


def all_of(files: Files, task: TaskState) -> list[SideFile]:
    """All files of late and bad rows of a task, oldest first."""
    return [*settled(files, task), *task.sides]


def settled(files: Files, task: TaskState) -> list[SideFile]:
    """The files that a task's entry does not name one by one any more, oldest first."""
    return [side_from_json(line) for line in pages.read(files, task.settled)]


def take_back(files: Files, side: SideFile, clock: int, positions: Mapping[str, int]) -> SideFile | None:
    """The file after a start at this clock, which replays from these positions; None if no row is left.

    A row goes if it will be delivered again and judged anew: it is not below the clock, nor before the replay.
    """
    if side.is_settled(clock, positions):
        return side
    with run.named_by_newest():
        table = read(files, side)
    cut = Cut(clock, dict(positions))
    stays = _stays(table, cut)
    if stays.all():
        return side
    table = table.filter(pa.array(stays))
    if table.num_rows == 0:
        return None
    return replace(side_file(side.file, table), cuts=(*side.cuts, cut))


def side_file(file: Stored, table: pa.Table) -> SideFile:
    """What an entry says of a file with these rows."""
    stamps = table["timestamp"]
    ends: dict[str, int] = {}
    for strand, position in zip(table["strand"].to_pylist(), table["position"].to_pylist(), strict=True):
        ends[strand] = max(ends.get(strand, 0), NO_POSITION if position is None else position + 1)
    return SideFile(
        file=file,
        reasons=dict(Counter(table["reason"].to_pylist())),
        newest=None if stamps.null_count else max(stamps.to_pylist()),
        ends=ends,
    )


def fewer(files: Files, listed: Sequence[SideFile], alike: Sequence[SideFile], path: str) -> tuple[SideFile, ...]:
    """The listed files; where more than `MANY` are alike in columns, the smaller half of those are one.

    So a row is written again about as often as the logarithm of their number. What is damaged, or large, stays as it is.
    """
    alike = [side for side in alike if side.file.length < LARGE]
    if len(alike) <= MANY:
        return tuple(listed)
    small = sorted(alike, key=lambda side: side.file.length)[: MANY // 2 + 1]
    try:
        with run.named_by_newest():
            table = joined([read(files, side) for side in listed if side in small])
    except Damaged:
        return tuple(listed)
    one = side_file(run.write_table(files, path, table), table)
    first = min(listed.index(side) for side in small)
    return tuple(one if i == first else side for i, side in enumerate(listed) if i == first or side not in small)


def _stays(table: pa.Table, cut: Cut) -> NDArray[np.bool_]:
    stays = [
        (position is not None and position < cut.positions.get(strand, 0))
        or (timestamp is not None and timestamp < cut.clock)
        for strand, position, timestamp in zip(
            table["strand"].to_pylist(), table["position"].to_pylist(), table["timestamp"].to_pylist(), strict=True
        )
    ]
    return np.array(stays, dtype=np.bool_)
