"""A restart after a kill, beside Spark's own: how long until the first micro-batch is done, and until all is caught up.

    python -m benchmarks.recovery [--keys N ...] [--contenders files "Local(2)" native rocksdb] [--repetitions N] [--json FILE]

A driver has read first rows of all keys, and then goes on with a tenth of them, at least a million. It is killed (-9) in mid
stream. Another process, whose JVM is warm from passes over a stream of its own, starts again from what is there. Told are
seconds: of the first micro-batch and of one in steady state, from the start until the first is done, and until all is caught
up; and what opening the state at its newest clock takes, in time and in memory that belongs to the process alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks import contenders
from benchmarks.contenders import Setting
from benchmarks.measure import anonymous, write_json
from benchmarks.streams import ROWS_PER_FILE, Workload
from benchmarks.throughput import FILES_PER_BATCH, session
from persistent_state import open_store, read_state

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEFORE, AFTER = 6, 5
"""Micro-batches behind the first rows: those after which the driver is killed in the middle of the next, and the others."""
TOUCHED = 1_000_000
"""Keys that micro-batches touch behind the first rows, at the least."""
OURS = {"files", "Local(1)", "Local(2)"}


@dataclass(frozen=True)
class Restart:
    """Seconds: of the first micro-batch, of a later one, from the start to the end of the first and to that of the last."""

    first: float
    steady: float
    until_first: float
    until_last: float


def workload_of(keys: int) -> Workload:
    rows = batches_of_first_rows(keys) + BEFORE + AFTER
    return Workload(keys, FILES_PER_BATCH * ROWS_PER_FILE * rows, touched=min(keys, max(TOUCHED, keys // 10)))


def batches_of_first_rows(keys: int) -> int:
    return -(-keys // (FILES_PER_BATCH * ROWS_PER_FILE))


def setting_of(spark: SparkSession | None, workload: Workload, place: Path) -> Setting:
    interval = contenders.interval_of(FILES_PER_BATCH * ROWS_PER_FILE, 1)
    return Setting(spark, workload, workload.folder(), False, FILES_PER_BATCH, place, interval)


def kill_in_mid_stream(name: str, workload: Workload, place: Path) -> None:
    """Run a driver until so many micro-batches are done and the next has begun, then kill it with all that it started."""
    arguments = [sys.executable, "-m", "benchmarks.recovery", "--doomed", name, str(workload.keys), str(place)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while batches_done(name, place) < batches_of_first_rows(workload.keys) + BEFORE:
            if process.poll() is not None:
                raise SystemExit(f"the driver to be killed has ended by itself, with {process.returncode}")
            time.sleep(0.02)
    finally:
        with suppress(psutil.NoSuchProcess):
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(family)
        process.wait()


def batches_done(name: str, place: Path) -> int:
    if name in OURS:
        # The first entry is the start's.
        return len(list(place.glob("store/benchmark/log/*.json"))) - 1
    return sum(file.name.isdigit() for file in place.glob("checkpoint/commits/*"))


def restart(name: str, spark: SparkSession | None, workload: Workload, place: Path) -> Restart:
    kill_in_mid_stream(name, workload, place)
    taken = contenders.CONTENDERS[name](setting_of(spark, workload, place))
    return Restart(taken.batches[0], statistics.median(taken.batches[1:]), taken.ends[0], taken.ends[-1])


def open_state(place: Path) -> dict[str, Any]:
    """Seconds to open the state at its newest clock, its keys, and the memory that this added to the process alone."""
    store = str(place / "store")
    before, begin = anonymous(), time.perf_counter()
    state = read_state(store, "benchmark", "Sum", clock=open_store(store).application("benchmark").clocks()[-1])
    return {"seconds": time.perf_counter() - begin, "rows": state.num_rows, "mebibytes": (anonymous() - before) / 2**20}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[1_000_000, 10_000_000])
    choices = [*sorted(OURS), "native", "rocksdb"]
    parser.add_argument("--contenders", choices=choices, nargs="+", default=["files", "Local(2)", "native"])
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--memory", default="6g", help="of the JVM")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--doomed", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.open:
        print(json.dumps(open_state(arguments.open)))
        return 0
    if arguments.doomed:
        name, keys, place = arguments.doomed
        spark = None if name in contenders.WITHOUT_SPARK else session(arguments.memory)
        contenders.CONTENDERS[name](setting_of(spark, workload_of(int(keys)), Path(place)))
        return 0
    names = arguments.contenders
    for keys in arguments.keys:
        workload_of(keys).folder()
    spark = None if {*names} <= contenders.WITHOUT_SPARK else session(arguments.memory)
    results = []
    with tempfile.TemporaryDirectory(prefix="recovery-") as scratch:
        for name in names:
            print(f"\rwarming up, {name:<20}", end="", flush=True)
            contenders.run(name, setting_of(spark, workload_of(arguments.keys[0]), Path(scratch) / name))
        for keys in arguments.keys:
            workload = workload_of(keys)
            taken: dict[str, list[Restart]] = {name: [] for name in names}
            opened = []
            for repetition in range(arguments.repetitions):
                for name in names:
                    print(
                        f"\r{keys:,} keys: pass {repetition + 1} of {arguments.repetitions}, {name:<20}",
                        end="",
                        flush=True,
                    )
                    with tempfile.TemporaryDirectory(dir=scratch) as place:
                        taken[name].append(restart(name, spark, workload, Path(place)))
                        if name in OURS:
                            command = [sys.executable, "-m", "benchmarks.recovery", "--open", place]
                            opened.append(json.loads(subprocess.check_output(command)))
            medians = {
                name: {k: statistics.median(asdict(one)[k] for one in some) for k in asdict(some[0])}
                for name, some in taken.items()
            }
            print(f"\r{keys:,} keys{'first s':>22}{'steady s':>10}{'ratio':>8}{'until first':>13}{'until last':>12}")
            for name, m in medians.items():
                print(
                    f"{name:<24}{m['first']:>10.2f}{m['steady']:>10.2f}{m['first'] / m['steady']:>8.2f}"
                    f"{m['until_first']:>13.2f}{m['until_last']:>12.2f}"
                )
            state = {k: statistics.median(one[k] for one in opened) for k in opened[0]} if opened else None
            if state:
                print("the state of {rows:,} keys opened in {seconds:.2f} s, {mebibytes:.0f} MiB".format(**state))
            print(flush=True)
            results.append({"keys": keys, "restarts": medians, "opened": state})
    write_json(arguments.json, results)
    if spark is not None:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
