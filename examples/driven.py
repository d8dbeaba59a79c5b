"""What the examples have in common: Spark, a folder, a stream of files, a driver that can be killed, windows in a table."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from persistent_state import ParquetSink
from persistent_state.engine.spark.java import java_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Key: TypeAlias = "tuple[str, int, int]"
"""A key and its window: from when to when, in microseconds UTC."""


def local_spark(name: str) -> SparkSession:
    """Spark on this machine, on two cores."""
    if problem := java_problem():
        sys.exit(problem)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName(name)
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    return builder.config("spark.log.level", "ERROR").getOrCreate()


@contextmanager
def folder_for(name: str, given: Path | None = None) -> Iterator[Path]:
    """The folder that was given, which must be empty or new, and stays; or a temporary one."""
    if given is None:
        # A JVM that outlives its killed driver may write until it notices.
        with tempfile.TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as temporary:
            yield Path(temporary)
        return
    given.mkdir(parents=True, exist_ok=True)
    if any(given.iterdir()):
        sys.exit(f"{given} is not empty: name another folder.")
    yield given.resolve()


def write_stream(folder: Path, messages: pa.Table, files: int) -> None:
    """Write the messages as Parquet files whose names sort in the order of the rows."""
    folder.mkdir()
    bounds = [messages.num_rows * file // files for file in range(files + 1)]
    for file, start in enumerate(bounds[:-1]):
        pq.write_table(messages.slice(start, bounds[file + 1] - start), folder / f"{file:04d}.parquet")


def let_in(folder: Path, files: int) -> bool:
    """Let the first `files` files of FOLDER/later come into FOLDER/stream. Return False if all were there before."""
    later, come = sorted((folder / "later").iterdir()), len([*(folder / "stream").iterdir()])
    for file in later[: max(0, files - come)]:
        file.rename(folder / "stream" / file.name)
    return bool(later)


@contextmanager
def driver(module: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process of its own, which is over in the end. What it says goes to FOLDER/driver.log.

    `kill()` sends it SIGKILL; its JVM, which is not killed, goes on for a moment and then ends by itself.
    """
    command = [sys.executable, "-m", module, "--folder", str(folder), *arguments]
    with (folder / "driver.log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.kill()


def last_words(folder: Path) -> str:
    """What the last driver said in the end."""
    lines = (folder / "driver.log").read_text(errors="replace").splitlines()
    return lines[-1].rstrip(".") if lines else "nothing"


def report(problems: Sequence[str], figures: Mapping[str, Any], *, as_json: bool) -> bool:
    """Print what was wrong, a sentence each, and the figures as a line of JSON if wanted. Return whether all is right."""
    for problem in problems:
        print(f"FAILED: {problem}.", file=sys.stderr)
    if as_json:
        print(json.dumps({**figures, "right": not problems}))
    return not problems


def windows_in(table: ParquetSink) -> dict[Key, list[Any]]:
    """The values that a table has of each key and window: one, if each window was given once."""
    values = defaultdict[Key, list[Any]](list)
    for row in in_microseconds(table.dataset().to_table()).to_pylist():
        key, start, end, _, value = row.values()
        values[key, start, end].append(value)
    return values


def in_microseconds(rows: pa.Table) -> pa.Table:
    """Rows with the times of their windows, which are the second and the third column, as numbers to reckon with."""
    for place in (1, 2):
        rows = rows.set_column(place, rows.field(place).name, rows.column(place).cast(pa.int64()))
    return rows


def differences(actual: Mapping[Key, list[Any]], wanted: Mapping[Key, Any]) -> list[str]:
    """What is wrong with the windows of a table, a sentence each."""
    counts = {
        "are missing": len(wanted.keys() - actual.keys()),
        "are none": len(actual.keys() - wanted.keys()),
        "are there more than once": sum(len(values) > 1 for values in actual.values()),
        "have another value": sum(wanted[key] not in actual[key] for key in wanted.keys() & actual.keys()),
    }
    return [f"{count} windows {what}" for what, count in counts.items() if count]
