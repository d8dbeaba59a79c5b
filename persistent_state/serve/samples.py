"""Take samples of the late and bad rows of a task: some of each reason, from the newest files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persistent_state.formatting import cell, plain, printable, show_clock
from persistent_state.store import late_rows
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import Files
from persistent_state.store.named_files import SideFile
from persistent_state.store.state_at import read_listed_side

FILES, BYTES = 4, 4 << 20
"""The most files of a task of which samples are taken, and the most bytes of one of them."""

MOST_SAMPLES = 3
"""The most samples of a reason."""

WIDEST = 200
"""The most characters of a row that are shown."""


@dataclass(frozen=True)
class Sample:
    """A row that did not count.

    Attributes:
        reason: Why it did not count.
        time: Its timestamp as text; "-" if it has none.
        place: Its partition and position, as far as they are known.
        row: What the row holds, as text that may be cut.
    """

    reason: str
    time: str
    place: str
    row: str


def samples(files: Files, application: str, entry: Entry, task: str) -> list[Sample]:
    """Return samples of the late and bad rows of a task, by reason.

    Raises:
        DamagedError: A file is not what was written, or is missing.
        NotThereError: A file was collected meanwhile.
        StoreUnavailableError: The store does not answer.
    """
    rows = entry.late_rows_of(task)
    sides = [*rows.sides] or late_rows.settled(files, rows)
    by_reason: dict[str, list[Sample]] = {}
    for side in _small(reversed(sides)):
        for row in reversed(read_listed_side(files, application, task, side).to_batches()):
            for place in range(row.num_rows - 1, -1, -1):
                scalars = {name: row[name][place] for name in row.schema.names}
                of_reason = by_reason.setdefault(str(scalars["reason"].as_py()), [])
                if len(of_reason) < MOST_SAMPLES:
                    of_reason.append(_sample(scalars))
    return [sample for reason in sorted(by_reason) for sample in by_reason[reason]]


def _small(sides: Iterable[SideFile]) -> list[SideFile]:
    return [side for side in sides if side.file.length <= BYTES][:FILES]


def _sample(row: Mapping[str, pa.Scalar]) -> Sample:
    timestamp, partition, position = (row[name].as_py() for name in ("timestamp", "partition", "position"))
    where = [f"partition {partition}"] if partition else []
    where += [f"position {position:,}"] if position is not None and position >= 0 else []
    return Sample(
        row["reason"].as_py(),
        "-" if timestamp is None else show_clock(timestamp),
        ", ".join(where) or "-",
        _text(row),
    )


def _text(row: Mapping[str, pa.Scalar]) -> str:
    """Return what a row holds: its columns if it was read, else the record as it came, and the value in it that is at fault."""
    for name in ("row", "record"):
        value: Any = row.get(name)
        if value is None or not value.is_valid:
            continue
        text = value.as_py().decode(errors="replace") if name == "record" else cell(value)
        # Python has no times beyond the year 9999, and others may write them.
        origin: Any = plain(row["origin"]) if "origin" in row else None
        if origin and origin.get("value") is not None:
            text = f"{origin['value']} in {text}"
        return printable(text[:WIDEST] + ("…" if len(text) > WIDEST else ""))
    return "-"
