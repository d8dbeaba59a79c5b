"""Small files that are delivered in order, to a source of this package and to Spark's own alike."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def write(folder: Path, number: int, rows: Iterable[Mapping[str, Any]], schema: pa.Schema) -> None:
    """The file of a number, whole when it appears: Spark takes them by time, and a `FileSource` by name."""
    folder.mkdir(exist_ok=True)
    rows = list(rows)
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    unfinished = folder / "_unfinished"
    pq.write_table(pa.table(arrays, schema=schema), unfinished)
    os.utime(unfinished, (1_700_000_000 + number, 1_700_000_000 + number))
    unfinished.rename(folder / f"{number:04d}.parquet")
