"""Sums of keys in windows beside Spark's own `window` and `session_window`: one session, passes interleaved, medians.

    python -m benchmarks.windows [--windows sliding sessions] [--keys N ...] [--rows N]
        [--source files|dataframe|'Local(1)'|'Local(2)' ...] [--peers native|rocksdb ...] [--emit yes|no ...]
        [--repetitions N] [--json FILE]

A sliding window is ten steps long, and a step is the event time of a micro-batch, which is the checkpoint interval too. A
session ends after three times the mean time between two messages of a key, so that it has twenty messages. Given out are final
windows: Spark's in append mode, with output or not, ours at the checkpoint clocks, beside the micro-batches. So look at
`whole` as well: the rows a second of whole passes, from the start until the last window is given out.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks import contenders
from benchmarks.measure import write_json
from benchmarks.streams import ROWS_PER_FILE, Workload
from benchmarks.throughput import FILES_PER_BATCH, compare, ratios, session, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", choices=["sliding", "sessions"], nargs="+", default=["sliding", "sessions"])
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--rows", type=int, default=24_000_000)
    parser.add_argument(
        "--source", choices=["files", "dataframe", "Local(1)", "Local(2)"], nargs="+", default=["files"]
    )
    parser.add_argument("--peers", choices=["native", "rocksdb"], nargs="+", default=["native"])
    parser.add_argument("--emit", choices=["yes", "no"], nargs="+", default=["yes", "no"])
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--memory", default="6g", help="of the JVM")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    spark = session(arguments.memory)
    interval = contenders.interval_of(FILES_PER_BATCH * ROWS_PER_FILE, 1)
    results = []
    for windows in arguments.windows:
        for keys in arguments.keys:
            workload = Workload(keys, arguments.rows, windows=windows)
            for emits in (word == "yes" for word in arguments.emit):
                names = [*arguments.source, *arguments.peers]
                found = compare(spark, workload, names, emits, arguments.repetitions, interval)
                title = f"{workload.name}, {'windows given out' if emits else 'no output'}"
                print(table(title, found), end="\n\n", flush=True)
                figures = {name: asdict(one) for name, one in found.items()}
                results.append({**asdict(workload), "emits": emits, "figures": figures, "ratios": ratios(found)})
    write_json(arguments.json, results)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
