"""Late and bad rows: files of rows as they came, each with its reason, of which a restart may take some back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, groupby

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state import formatting
from persistent_state.errors import DamagedError
from persistent_state.event_time.positions import LAST_POSITION, NO_POSITION
from persistent_state.partials.evolve import plain
from persistent_state.store import lists, runs
from persistent_state.store.codec import side_from_json, side_to_json
from persistent_state.store.files.base import Files
from persistent_state.store.flow_state import OUTSIDE as OUTSIDE
from persistent_state.store.flow_state import LateRows
from persistent_state.store.named_files import Cut, SideFile, Stored, written

MANY = 16
"""The most files that an entry names one by one; more are joined."""

LARGE = 16 << 20
"""Bytes of a file that is not written again to make it one with others."""


def read(files: Files, side: SideFile) -> pa.Table:
    """Return the rows of a file that no start has taken back."""
    # Many are read to be written into a file with others.
    table = left(runs.read_table(files, side.file, anew=True), side)
    return table.cast(pa.schema(map(_as_kept_now, table.schema)))


def _as_kept_now(field: pa.Field) -> pa.Field:
    """Return the field of a file as it is now. In older versions a record was text, and a row had the types of its source.

    Those may be dictionaries, which differ from file to file, or required fields, which are null in rows that can't be read.
    """
    if field.name == "record":
        return field.with_type(pa.large_binary())
    return field.with_type(plain(field.type)) if field.name == "row" else field


def readable(table: pa.Table) -> pa.Table:
    """Return late and bad rows whose values Python has, as `formatting.readable` does."""
    for place, name in enumerate(table.column_names):
        if name in ("origin", "row"):
            table = table.set_column(place, name, formatting.readable(table[name].combine_chunks()))
    return table


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several tables as one. `origin` is null for rows of a table without it."""
    table = pa.concat_tables(tables, promote_options="permissive")
    return table.select([*(name for name in table.column_names if name != "row"), "row"])


def left(table: pa.Table, side: SideFile) -> pa.Table:
    """Return the rows of a file's whole table that no start has taken back."""
    for cut in side.cuts:
        table = table.filter(pa.array(_stays(table, cut)))
    return table


def read_all(files: Files, rows: LateRows) -> list[pa.Table]:
    """Return all late and bad rows of a record, oldest file first. Files may have different columns."""
    return [read(files, side) for side in all_of(files, rows)]


def all_of(files: Files, rows: LateRows) -> list[SideFile]:
    """Return all files of late and bad rows of a record, oldest first."""
    return [*settled(files, rows), *rows.sides]


def settled(files: Files, rows: LateRows) -> list[SideFile]:
    """Return the files that an entry names in the list `settled`, oldest first."""
    return [side_from_json(line) for line in lists.read(files, rows.settled)]


def take_back(files: Files, rows: LateRows, clock: int, positions: Mapping[str, int]) -> LateRows:
    """Return the late and bad rows of a record after a start at this clock that replays from these positions."""
    sides = (take_back_of_file(files, side, clock, positions) for side in rows.sides)
    return replace(rows, sides=tuple(side for side in sides if side is not None))


def take_back_of_file(files: Files, side: SideFile, clock: int, positions: Mapping[str, int]) -> SideFile | None:
    """Return the file after a start at this clock that replays from these positions, or None if no row is left.

    A row goes if it will be delivered again and judged again: it is not below the clock, nor before the replay.
    """
    if side.is_settled(clock, positions):
        return side
    with runs.named_by_newest():
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
    """Return the record of a file with these rows, for an entry."""
    stamps = table["timestamp"]
    ends: dict[str, int] = {}
    for partition, position in zip(table["strand"].to_pylist(), table["position"].to_pylist(), strict=True):
        ends[partition] = max(ends.get(partition, 0), NO_POSITION if position is None else position + 1)
    return SideFile(
        file=file,
        reasons=dict(Counter(table["reason"].to_pylist())),
        newest=None if stamps.null_count else max(stamps.to_pylist()),
        ends=ends,
    )


def fewer(
    files: Files, listed: Sequence[SideFile], alike: Sequence[SideFile], path: Callable[[], str]
) -> tuple[SideFile, ...]:
    """Return the listed files. Where more than `MANY` have the same columns, join the newer ones of these.

    So are older ones that are not larger than all that come after: a row is written again about as often as the logarithm
    of their number. What is damaged, or large, stays as it is.
    """
    alike = [side for side in alike if side.file.length < LARGE]
    if len(alike) <= MANY:
        return tuple(listed)
    lengths = [side.file.length for side in alike]
    first = MANY // 2 - lists.not_larger(lengths[: MANY // 2], sum(lengths[MANY // 2 :]), LARGE)
    return join(files, listed, alike[first:], path)


def settle(
    files: Files,
    rows: LateRows,
    replays: Mapping[str, int],
    epoch: int,
    clock: int,
    page: Callable[[], str],
    path: Callable[[], str],
) -> LateRows:
    """Return late and bad rows with fewer files in the entry.

    Files of this epoch become fewer. An older file, or a large one, leaves the entry once nothing can take back any of it: no
    start goes back below the clock, or reads again what is before the positions `replays`.
    """

    def epoch_of(side: SideFile) -> int:
        return written(side.file.path)[0]

    done = tuple(
        side
        for side in rows.sides
        if (epoch_of(side) < epoch or side.file.length >= LARGE) and side.is_settled(clock, replays)
    )
    counts = Counter(rows.settled_counts)
    for side in done:
        counts.update(side.reasons)
    stay = tuple(side for side in rows.sides if side not in done)
    for _, alike in groupby([side for side in done if side.file.length < LARGE], epoch_of):
        done = join(files, done, list(alike), path)
    # Those of one epoch have the same columns.
    stay = fewer(files, stay, [side for side in stay if epoch_of(side) == epoch], path)
    listed = lists.append(files, rows.settled, [side_to_json(side) for side in done], page)
    return replace(rows, sides=stay, settled=listed, settled_counts=dict(counts))


def join(
    files: Files, listed: Sequence[SideFile], alike: Sequence[SideFile], path: Callable[[], str]
) -> tuple[SideFile, ...]:
    """Return the listed files, with those of `alike`, which have the same columns, joined to one or several large ones."""
    left = list(alike)
    while left:
        count = sum(total <= LARGE for total in accumulate(side.file.length for side in left))
        group, left = left[: max(count, 1)], left[max(count, 1) :]
        found = zip(group, files.for_each(partial(_read_or_none, files), group), strict=True)
        readable = [(side, table) for side, table in found if table is not None]
        if len(readable) < 2:
            continue
        whole = [side for side, _ in readable]
        stamps, ends = [side.newest for side in whole if side.newest is not None], dict[str, int]()
        for side in whole:
            ends.update({partition: max(end, ends.get(partition, 0)) for partition, end in side.ends.items()})
        one = SideFile(
            file=runs.write_table(files, path(), joined([table for _, table in readable])),
            reasons=dict(sum((Counter(side.reasons) for side in whole), Counter[str]())),
            newest=max(stamps) if len(stamps) == len(whole) else None,
            ends=ends,
        )
        listed = [one if side is whole[0] else side for side in listed if side is whole[0] or side not in whole]
    return tuple(listed)


def _read_or_none(files: Files, side: SideFile) -> pa.Table | None:
    """Return the rows of a file, or None if it is damaged or gone: the error is raised when its rows are needed."""
    try:
        return read(files, side)
    except (DamagedError, FileNotFoundError):
        return None


def _stays(table: pa.Table, cut: Cut) -> NDArray[np.bool_]:
    stays = [
        (position is not None and position < cut.positions.get(partition, LAST_POSITION))
        or (timestamp is not None and timestamp < cut.clock)
        for partition, position, timestamp in zip(
            table["strand"].to_pylist(), table["position"].to_pylist(), table["timestamp"].to_pylist(), strict=True
        )
    ]
    return np.array(stays, dtype=np.bool_)


LATE = "late"
REPLAYED_OR_LATE = "replayed or late"

NO_TIMESTAMP = "no timestamp"
BEYOND = "timestamp out of range"
AHEAD = "timestamp ahead of the batch time"
JUMP = "timestamp too far ahead of its channel"
FOREIGN = "channel named as one of another input"
UNFIT = "value does not fit"
UNFIT_KEY = "key does not fit"
UNREADABLE = "value beyond what Python has"
NO_COLUMN = "its file has no column "

SIDE_COLUMNS = {
    "reason": pa.string(),
    "timestamp": pa.int64(),
    "strand": pa.string(),
    "channel": pa.string(),
    "position": pa.int64(),
    "record": pa.large_binary(),
}
"""The columns of a file of late and bad rows before `origin`, which is missing if the source has none, and `row`."""

PARTITION = "partition"
"""The column that has the partition where `strand` names another: that of the step in which a message was bad."""
