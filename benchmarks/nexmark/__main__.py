"""Nexmark's queries 5, 7, 11 and 12: events a second, and whether DuckDB finds the same.

    python -m benchmarks.nexmark [--queries q5 ...] [--events N] [--rate N] [--seed N] [--repetitions N] [--json FILE]

The queries take turns. Each reads all events from Parquet files of half a million, two a micro-batch, with a checkpoint
interval of ten seconds, and writes its windows as Parquet. Events a second are counted from the end of the first micro-batch
until all windows are there, and for `whole` from the start; events of all kinds, also those that a query leaves out. If DuckDB
finds other windows they are told, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure import is_timed, measured, write_json
from benchmarks.nexmark import events, queries
from benchmarks.streams import CACHE, ROWS_PER_FILE
from benchmarks.throughput import FILES_PER_BATCH, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS_PER_FILE = ROWS_PER_FILE // 2


def taken(spark: SparkSession, name: str, folder: Path, count: int) -> dict[str, Any]:
    """A pass of a query: seconds per million events, the windows that came of it, and how many are not as DuckDB's."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory(prefix="nexmark-") as scratch:
        app, tables = queries.application([name], folder, Path(scratch), "10 seconds", FILES_PER_BATCH)
        with measured() as whole:
            app.run(spark, drain=True, on_progress=lambda _: ends.append(time.perf_counter()))
            steady = time.perf_counter() - ends[0]
        found, clock = queries.results(tables[name]), tables[name].clocks()[-1]
    different = queries.differences(name, folder, found, clock)
    for row in different[:10]:
        print(f"\n{name}: {row}", file=sys.stderr)
    return {
        "steady": steady / (count - FILES_PER_BATCH * EVENTS_PER_FILE) * 1e6,
        "whole": whole.wall / count * 1e6,
        "cpu": whole.cpu / count * 1e6,
        "windows": found.num_rows,
        "different": len(different),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", choices=queries.QUERIES, nargs="+", default=list(queries.QUERIES))
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--rate", type=int, default=100_000, help="events in a second of event time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--memory", default="4g", help="of the JVM")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.repetitions < 0 or arguments.events < 2 * FILES_PER_BATCH * EVENTS_PER_FILE:
        parser.error(
            f"repetitions={arguments.repetitions}, events={arguments.events}; give 0 repetitions or more, and at least "
            f"{2 * FILES_PER_BATCH * EVENTS_PER_FILE:,} events, as the first micro-batch of a pass is not counted."
        )
    folder = CACHE / f"nexmark-{arguments.events}-{arguments.rate}-{arguments.seed}-{EVENTS_PER_FILE}"
    if not folder.exists():
        print("making the events", flush=True)
        events.write(folder, arguments.events, arguments.rate, arguments.seed, EVENTS_PER_FILE)
    spark = session(arguments.memory)
    passes: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.queries}
    for repetition in range(arguments.repetitions + 1):
        for name in arguments.queries:
            what = f"pass {repetition} of {arguments.repetitions}" if repetition else "warming up"
            print(f"\r{what}, {name:<6}", end="", flush=True)
            one = taken(spark, name, folder, arguments.events)
            if is_timed(repetition, arguments.repetitions):
                passes[name].append(one)
    spark.stop()
    head = f"{'':<8}{'k events/s':>12}{'whole':>10}{'CPU s/M':>10}{'windows':>12}{'different':>12}"
    print("\r" + head + " " * 20, flush=True)
    results = {}
    for name, all_of in passes.items():
        found = {what: statistics.median(one[what] for one in all_of) for what in ("steady", "whole", "cpu", "windows")}
        found["different"] = max(one["different"] for one in all_of)
        results[name] = found
        line = f"{name:<8}{1e3 / found['steady']:>12,.0f}{1e3 / found['whole']:>10,.0f}{found['cpu']:>10.2f}"
        print(f"{line}{found['windows']:>12,.0f}{found['different']:>12,}")
    write_json(arguments.json, results)
    return int(any(found["different"] for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
