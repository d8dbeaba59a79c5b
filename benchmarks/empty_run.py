"""What `persistent-state run` costs that has nothing to read, as of a job that runs every five minutes.

    python -m benchmarks.empty_run [--repetitions N] [--json FILE]

A first run reads a hundred files of a thousand rows, and gives a Parquet sink its clocks. Then nothing comes, and the command
is run again and again, each time as a process of its own. Told are medians: the seconds of the whole command, beside those of a
process that only starts a session of Spark and ends; the messages that are read again, as they wait above the clock; and what
the processes ask of the store, by kind: each is a request of an object store.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import write_json
from monoids import Sum
from persistent_state import Application, FileSource, NonWindowState, ParquetSink, PersistentTask
from persistent_state.store.files import LocalFiles

ROWS, FILES, SPAN = 1_000, 100, 10_000_000
OPERATIONS = ("list", "read", "read_ranges", "create", "delete", "leftovers")
SPARK = "from pyspark.sql import SparkSession; SparkSession.builder.master('local[2]').getOrCreate().stop()"
_here = threading.local()


class Totals(PersistentTask):
    key, value = "key", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def app() -> Application:
    place = Path(os.environ["PLACE"])
    app = Application("job", str(place / "store"), checkpoint_interval="1 minute", allowed_delay="1 minute", shards=2)
    return app.add(Totals(), FileSource(place / "in", timestamp="ts"), sink=ParquetSink(place / "out"))


def noted(name: str, operation: Callable[..., Any], file: str) -> Callable[..., Any]:
    """The operation of a store, which writes down each call of it but those by another one."""

    @wraps(operation)
    def note(self: LocalFiles, *arguments: Any, **options: Any) -> Any:
        if getattr(_here, "is_within", False) or not self.url.endswith("/store"):
            return operation(self, *arguments, **options)
        _here.is_within = True
        try:
            # One write of a line is whole, whichever process it is.
            with open(file, "a") as notes:
                notes.write(f"{name}\n")
            return operation(self, *arguments, **options)
        finally:
            _here.is_within = False

    return note


# Workers import this module, too, as they are given its task.
if "OPERATIONS" in os.environ:
    for name in OPERATIONS:
        setattr(LocalFiles, name, noted(name, getattr(LocalFiles, name), os.environ["OPERATIONS"]))


def write(place: Path) -> None:
    (place / "in").mkdir()
    for file in range(FILES):
        chance = np.random.default_rng(file)
        stamps = pa.array(file * SPAN + np.sort(chance.integers(0, SPAN, ROWS))).cast(pa.timestamp("us", "UTC"))
        columns = {"ts": stamps, "key": chance.integers(0, 10_000, ROWS), "amount": chance.integers(0, 9, ROWS)}
        pq.write_table(pa.table(columns), place / "in" / f"{file:05d}.parquet")


def timed(arguments: list[str], env: Mapping[str, str]) -> tuple[float, list[dict[str, Any]]]:
    """The seconds of a process, and the lines of JSON that it printed."""
    begin = time.perf_counter()
    out = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, check=True).stdout
    return time.perf_counter() - begin, [json.loads(line) for line in out.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    told = parser.parse_args()
    command = ["-m", "persistent_state", "run", "benchmarks.empty_run:app", "--master=local[2]"]
    seconds: dict[str, list[float]] = {"spark": [], "command": []}
    operations, replayed, entries = list[Counter[str]](), list[int](), list[int]()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        place, notes = Path(folder), Path(folder) / "operations"
        write(place)
        env = {**os.environ, "PLACE": folder, "OPERATIONS": str(notes)}
        timed(command, env)
        for _ in range(told.repetitions):
            seconds["spark"].append(timed(["-c", SPARK], env)[0])
            notes.unlink()
            before = len(list((place / "store/job/log").glob("*.json")))
            taken, lines = timed(command, env)
            seconds["command"].append(taken)
            operations.append(Counter(notes.read_text().split()))
            progress = [line for line in lines if line["event"] == "progress"]
            assert all(line["messages"] == line["replayed"] for line in progress)
            replayed.append(sum(line["messages"] for line in progress))
            entries.append(len(list((place / "store/job/log").glob("*.json"))) - before)
    found: dict[str, Any] = {
        "seconds": {name: statistics.median(some) for name, some in seconds.items()},
        "replayed": statistics.median(replayed),
        "entries": statistics.median(entries),
        "operations": {name: statistics.median(one[name] for one in operations) for name in OPERATIONS},
    }
    print("a session of Spark {spark:.1f} s, the whole command {command:.1f} s".format(**found["seconds"]))
    print(f"messages read again {found['replayed']:,}, log entries written {found['entries']}")
    print("asked of the store: " + ", ".join(f"{count:g} {name}" for name, count in found["operations"].items()))
    write_json(told.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
