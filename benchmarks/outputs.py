"""What it takes to give a sink the values at one clock, against the keys that changed since the clock before.

    python -m benchmarks.outputs [--keys N] [--changed N ...] [--clocks N] [--json FILE]

A state of so many keys is on a local disk, in two shards, with some checkpoints in each of which so many keys changed. Each
sink is given them one after the other, by turns. "nothing" reads the values and writes them nowhere.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.cost import checkpoints, planned
from benchmarks.measure import write_json
from benchmarks.throughput import session
from persistent_state import ParquetSink, SqlSink, ValuesAtClock
from persistent_state.drive.output_sink import origin
from persistent_state.partials.since import Since
from persistent_state.sinks import Origin, Values
from persistent_state.store.files.local import LocalFiles
from persistent_state.store.log import Log
from persistent_state.store.state_at import state_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Write = Callable[[Values, int], Any]


def sinks(folder: Path, of: Origin) -> dict[str, Write]:
    parquet, sqlite = ParquetSink(folder / "parquet", files=2), SqlSink(str(folder / "out.db"), "totals")
    for sink in (parquet, sqlite):
        sink.open(of)

    def nothing(values: Values, clock: int) -> None:
        values.to_spark().write.format("noop").mode("overwrite").save()

    return {"nothing": nothing, "parquet": parquet.write_values, "sqlite": sqlite.write_values}


def measure(spark: SparkSession, folder: Path, keys: int, changed: int, clocks: int) -> dict[str, list[float]]:
    """Seconds that each sink took for each clock but the first."""
    from persistent_state.engine.run import frames

    made = checkpoints(str(folder / "store"), keys, changed, emits=False)
    for _ in range(clocks + 2):
        next(made)
    plan = planned(LocalFiles(str(folder / "store")), emits=False)
    entry = Log(plan.files, plan.application).newest()
    assert entry is not None
    retained = entry.retained[-clocks - 1 :]
    taken: dict[str, list[float]] = {}
    for number, (since, clock) in enumerate(pairwise(retained)):
        for name, write in sinks(folder, origin(plan, ValuesAtClock(print))).items():
            state = state_at(plan.files, plan.application, entry, plan.name, plan.layout, clock, Since(since))
            begin = time.perf_counter()
            write(frames.of_values(spark, state, plan), clock)
            if number:
                taken.setdefault(name, []).append(time.perf_counter() - begin)
        print(f"\r{number + 1} of {clocks}", end="\r", file=sys.stderr, flush=True)
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000, help="in the state")
    parser.add_argument("--changed", type=int, nargs="+", default=[100, 10_000, 100_000, 1_000_000])
    parser.add_argument("--clocks", type=int, default=6, help="of which the first is not counted; 9 at the most")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    spark = session("4g")
    results: list[dict[str, Any]] = []
    for changed in arguments.changed:
        with tempfile.TemporaryDirectory(prefix="outputs-") as folder:
            taken = measure(spark, Path(folder), arguments.keys, changed, arguments.clocks)
        if not results:
            print(f"{'keys changed':>14}" + "".join(f"{name:>12}" for name in taken))
        medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
        print(f"{changed:>14,}" + "".join(f"{seconds:>10.2f} s" for seconds in medians.values()), flush=True)
        results.append({"changed": changed, "keys": arguments.keys, "seconds": medians})
    spark.stop()
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
