"""How the time of a micro-batch grows with the state: with as many keys as there are, and with few of them touched.

    python -m benchmarks.growth [--keys N ...] [--touched N] [--emit yes|no ...] [--repetitions N] [--json FILE]

Every stream first brings one row of each key, or several where the keys are few. Timed are the micro-batches after that, of two
million rows each: of all keys, and of only so many.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import contenders
from benchmarks.contenders import Setting
from benchmarks.measure import is_timed, write_json
from benchmarks.streams import ROWS_PER_FILE, Workload
from benchmarks.throughput import FILES_PER_BATCH, session

BATCHES = 10


def workload_of(keys: int, touched: int) -> Workload:
    loading = -(-keys // (FILES_PER_BATCH * ROWS_PER_FILE))
    return Workload(keys, (loading + BATCHES) * FILES_PER_BATCH * ROWS_PER_FILE, touched=touched)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000])
    parser.add_argument("--touched", type=int, default=100_000)
    parser.add_argument("--emit", choices=["yes", "no"], nargs="+", default=["yes", "no"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--memory", default="4g", help="of the JVM")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    fewest = min(arguments.keys)
    kinds = [(keys, touched) for touched in (0, arguments.touched) for keys in arguments.keys]
    workloads = {(keys, touched): workload_of(keys, min(touched or keys, keys)) for keys, touched in kinds}
    for workload in workloads.values():
        workload.folder()
    spark = session(arguments.memory)
    interval = contenders.interval_of(FILES_PER_BATCH * ROWS_PER_FILE, 1)
    results = []
    print(f"{'keys':>12}{'touched':>12}{'values':>8}{'s':>8}{'least':>8}{'most':>8}{'x fewest keys':>15}")
    with tempfile.TemporaryDirectory(prefix="growth-") as scratch:
        for emits in (word == "yes" for word in arguments.emit):
            taken: dict[tuple[int, int], list[float]] = {kind: [] for kind in kinds}
            for repetition in range(arguments.repetitions + 1):
                counts = is_timed(repetition, arguments.repetitions)
                for kind, workload in workloads.items():
                    what = f"pass {repetition} of {arguments.repetitions}" if repetition else "warming up"
                    print(f"\r{what}, {workload.name:<60}", end="", flush=True)
                    setting = Setting(
                        spark, workload, workload.folder(), emits, FILES_PER_BATCH, Path(scratch) / "run", interval
                    )
                    if counts or workload.keys == fewest:
                        batches = contenders.run("files", setting).batches
                        taken[kind] += batches[-BATCHES + 1 :] if counts else []
            print("\r" + " " * 90, end="\r")
            for (keys, touched), seconds in taken.items():
                median, of_fewest = statistics.median(seconds), statistics.median(taken[fewest, touched])
                found = {
                    "keys": keys,
                    "touched": touched or keys,
                    "emits": emits,
                    "seconds": median,
                    "ratio": median / of_fewest,
                }
                results.append(found)
                print(
                    f"{keys:>12,}{touched or keys:>12,}{'yes' if emits else 'no':>8}{found['seconds']:>8.2f}"
                    f"{min(seconds):>8.2f}{max(seconds):>8.2f}{found['ratio']:>15.2f}",
                    flush=True,
                )
    write_json(arguments.json, results)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
