"""What a folder of many files costs: the first listing, a start, a look for new files, and the memory of who plans.

    python -m benchmarks.folders [--files N ...] [--new N] [--json FILE]

The files are real and nearly empty: hard links to a few Parquet files, a thousand in a folder. No Spark is used; the functions
are those that Spark's process for planning calls. Seconds are of the processor, and memory belongs to the process alone.
"""

from __future__ import annotations

import argparse
import gc
import io
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import anonymous, write_json
from benchmarks.streams import SCHEMA, START
from persistent_state import FileSource
from persistent_state.store import lists
from persistent_state.store.files import open_files
from persistent_state.store.named_files import Pages

A_FOLDER = 1_000
"""Files in one folder."""
PARTS = 64


def add_files(root: Path, first: int, some: int) -> None:
    """Make files of a folder for each thousand, with the bytes of one file each, at times of their own."""
    for number in range(first, first + some):
        folder = root / f"day-{number // A_FOLDER:05d}"
        if number == first or number % A_FOLDER == 0:
            folder.mkdir(parents=True, exist_ok=True)
            columns = [pa.array([START], SCHEMA.field("ts").type), [number], [1]]
            pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), seed := io.BytesIO())
        file = folder / f"part-{number % A_FOLDER:05d}-{first}.parquet"
        file.write_bytes(seed.getbuffer())
        # Files of one size and time are compared, as they may be copies.
        os.utime(file, (number + 1, number + 1))


@contextmanager
def taken(found: dict[str, float], what: str) -> Iterator[None]:
    """Note processor seconds under this name."""
    began = time.process_time()
    yield
    found[what] = time.process_time() - began


def measure(place: Path, some: int, new: int) -> dict[str, float]:
    root, found = place / "in", dict[str, float](files=some)
    add_files(root, 0, some)
    store = open_files(str(place / "store"))
    gc.collect()
    before = anonymous()

    def opened(journal: list[str], read: int) -> FileSource:
        source = FileSource(root, timestamp="ts", schema=SCHEMA, max_files_per_batch=max(1_000, new))
        source.open(journal, {"": read << 32})
        return source

    with taken(found, "first listing"):
        source = opened([], 0)
    with taken(found, "plan"):
        source.splits({}, source.reach({}, False).ends, PARTS)
    reach = source.reach({}, True)
    numbers = count()
    pages = lists.append(store, Pages(), reach.journal, lambda: f"journal-{next(numbers)}")
    del source
    gc.collect()
    with taken(found, "start"):
        source = opened(lists.read(store, pages), some)
        source.reach(reach.ends, False)
    with taken(found, "nothing new"):
        assert source.reach(reach.ends, False).ends == reach.ends
    add_files(root, some, new)
    with taken(found, "some new"):
        assert len(source.reach(reach.ends, False).journal) == new
    del reach
    gc.collect()
    found["mebibytes"] = (anonymous() - before) / 2**20
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--new", type=int, default=100, help="files that are added after the start")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    for some in arguments.files:
        with tempfile.TemporaryDirectory(prefix="folders-") as place:
            found = measure(Path(place), some, arguments.new)
        results.append({**found, "new": arguments.new})
        print(
            f"{some:>10,} files",
            *(f"{what} {cost:.3g}" for what, cost in found.items() if what != "files"),
            sep="   ",
            flush=True,
        )
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
