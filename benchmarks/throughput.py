"""Throughput beside Spark's own ways to keep state: one session, passes interleaved, medians.

    python -m benchmarks.throughput [--quick] [--keys N ...] [--rows N] [--value-type long|struct] [--key-type long|string]
        [--distribution uniform|zipf|hot|skewed] [--parts N] [--channels N]
        [--source files|dataframe|messages|'Local(1)'|'Local(2)'|'in process' ...] [--peers native ...] [--emit yes|no ...]
        [--intervals N] [--repetitions N] [--json FILE] [--plot FILE]

With --parts a micro-batch has so many files, and there are as many parts, shards and shuffle partitions, whatever the cores.
Local(N) has N workers, and as many parts as workers. Spark starts only if a contender needs it.
--quick compares a million keys, values emitted, with Spark's aggregation, and ends with a line of JSON.

Every contender first has a whole pass that is not timed. The first micro-batch of each pass is not counted either. Processor
seconds are those of this process and all that it started, for the whole pass.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import contenders
from benchmarks.contenders import CONTENDERS, WITHOUT_SPARK, Setting
from benchmarks.measure import Figures, Pass, figures, is_timed, write_json
from benchmarks.streams import DISTRIBUTIONS, ROWS_PER_FILE, Workload

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_PER_BATCH = 2
PARALLELISM = 2
OURS = ("files", "dataframe", "messages", "Local(1)", "Local(2)", "in process")


def session(memory: str, parallelism: int | None = None) -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(f"local[{PARALLELISM}]").appName("benchmark").config("spark.ui.enabled", "false")
    )
    builder = builder.config("spark.driver.memory", memory).config("spark.log.level", "ERROR")
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "200000")
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    if parallelism is not None:
        builder = builder.config("spark.default.parallelism", str(parallelism))
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def compare(
    spark: SparkSession | None,
    workload: Workload,
    names: Sequence[str],
    emits: bool,
    repetitions: int,
    interval: str,
    parallelism: int = PARALLELISM,
) -> dict[str, Figures]:
    """All contenders over one workload."""
    folder, files = workload.folder(), FILES_PER_BATCH * ROWS_PER_FILE // workload.rows_per_file
    passes: dict[str, list[Pass]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        setting = Setting(spark, workload, folder, emits, files, Path(scratch) / "run", interval, parallelism)
        for repetition in range(repetitions + 1):
            for name in names:
                what = f"pass {repetition} of {repetitions}" if repetition else "warming up"
                print(
                    f"\r{workload.name}, {'values' if emits else 'no values'}: {what}, {name:<24}", end="", flush=True
                )
                taken = contenders.run(name, setting)
                if is_timed(repetition, repetitions):
                    passes[name].append(taken)
    print("\r" + " " * 110 + "\r", end="")
    return {name: figures(taken, FILES_PER_BATCH * ROWS_PER_FILE, workload.rows) for name, taken in passes.items()}


def table(title: str, found: Mapping[str, Figures], ours: Sequence[str] = OURS) -> str:
    """The figures of all contenders, and how much faster than each peer ours are; `whole` is of passes with start and end."""
    peers = [name for name in found if name not in ours]
    head = f"{'':<24}{'k rows/s':>10}{'quartiles':>16}{'slowest':>10}{'whole':>10}{'CPU s/M':>10}"
    lines = [title, head + "".join(f"{'x ' + peer:>{max(12, len(peer) + 4)}}" for peer in peers)]
    for name, f in found.items():
        line = f"{name:<24}{1e3 / f.batch:>10,.0f}{1e3 / f.high:>8,.0f}{1e3 / f.low:>8,.0f}"
        line += f"{1e3 / f.slowest:>10,.0f}{1e3 / f.wall:>10,.0f}{f.cpu:>10.2f}"
        for peer in peers:
            ratio = f"{found[peer].batch / f.batch:.2f}" if name in ours else ""
            line += f"{ratio:>{max(12, len(peer) + 4)}}"
        lines.append(line)
    return "\n".join(lines)


def ratios(found: Mapping[str, Figures], ours: Sequence[str] = OURS) -> dict[str, Any]:
    return {
        f"{name} to {peer}": {
            "wall_ratio": round(found[peer].batch / found[name].batch, 3),
            "whole_ratio": round(found[peer].wall / found[name].wall, 3),
            "cpu_ratio": round(found[peer].cpu / found[name].cpu, 3),
        }
        for name in found
        if name in ours
        for peer in found
        if peer not in ours
    }


def plot(results: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Bars of thousands of rows a second, a group for each workload."""
    from matplotlib import pyplot

    _, axes = pyplot.subplots(figsize=(2 + 2 * len(results), 5))
    names = list(results[0]["figures"])
    for i, name in enumerate(names):
        places = [group + 0.8 * i / len(names) for group in range(len(results))]
        axes.bar(places, [1e3 / r["figures"][name]["batch"] for r in results], 0.8 / len(names), label=name)
    labels = [f"{r['keys']:,} keys\n{'values' if r['emits'] else 'no output'}" for r in results]
    axes.set_xticks([group + 0.4 for group in range(len(results))], labels)
    axes.set_ylabel("thousands of rows a second")
    axes.legend()
    pyplot.savefig(file, dpi=120, bbox_inches="tight")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one comparison, whose ratios are the last line, as JSON")
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rows", type=int, default=24_000_000)
    parser.add_argument("--key-type", choices=["long", "string"], default="long")
    parser.add_argument("--distribution", choices=DISTRIBUTIONS, default="uniform")
    parser.add_argument("--parts", type=int, help="parts, shards and shuffle partitions; by default the cores' number")
    parser.add_argument("--channels", type=int, default=0, help="channels, in a column of the rows")
    parser.add_argument("--value-type", choices=["long", "struct"], default="long")
    parser.add_argument("--source", choices=OURS, nargs="*", default=["files", "dataframe", "Local(2)"])
    parser.add_argument("--peers", choices=[n for n in CONTENDERS if n not in OURS], nargs="*", default=["native"])
    parser.add_argument("--emit", choices=["yes", "no"], nargs="+", default=["yes", "no"])
    parser.add_argument(
        "--intervals", type=int, default=1, help="checkpoint intervals in the event time of a micro-batch"
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--memory", default="6g", help="of the JVM")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="a chart as PNG (needs matplotlib)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.keys, arguments.source, arguments.peers = [1_000_000], ["files"], ["native"]
        arguments.emit, arguments.repetitions = ["yes"], 2
    if arguments.repetitions < 0 or arguments.rows < 2 * FILES_PER_BATCH * ROWS_PER_FILE:
        parser.error(
            f"repetitions={arguments.repetitions}, rows={arguments.rows}; give 0 repetitions or more, and at least "
            f"{2 * FILES_PER_BATCH * ROWS_PER_FILE:,} rows, as the first micro-batch of a pass is not counted."
        )
    if arguments.plot and find_spec("matplotlib") is None:
        parser.error("package='matplotlib' is missing for --plot; pip install 'persistent-state[benchmarks]'.")
    if arguments.channels < 0 or (arguments.parts is not None and arguments.parts < 1):
        parser.error(
            f"parts={arguments.parts}, channels={arguments.channels}; give at least one part and no fewer channels than 0."
        )
    names = [*arguments.source, *arguments.peers]
    spark = None if WITHOUT_SPARK.issuperset(names) else session(arguments.memory, arguments.parts)
    rows_per_file = FILES_PER_BATCH * ROWS_PER_FILE // (arguments.parts or FILES_PER_BATCH)
    interval = contenders.interval_of(FILES_PER_BATCH * ROWS_PER_FILE, 1 / arguments.intervals)
    results = []
    for keys in arguments.keys:
        workload = Workload(
            keys,
            arguments.rows,
            arguments.key_type,
            arguments.distribution,
            arguments.value_type,
            channels=arguments.channels,
            rows_per_file=rows_per_file,
        )
        for emits in (word == "yes" for word in arguments.emit):
            parallelism = arguments.parts or PARALLELISM
            found = compare(spark, workload, names, emits, arguments.repetitions, interval, parallelism)
            print(
                table(f"{workload.name}, {'values emitted' if emits else 'no output'}", found), end="\n\n", flush=True
            )
            results.append(
                {
                    **asdict(workload),
                    "emits": emits,
                    "figures": {name: asdict(one) for name, one in found.items()},
                    "ratios": ratios(found),
                }
            )
    write_json(arguments.json, results)
    if arguments.plot:
        plot(results, arguments.plot)
    if spark is not None:
        spark.stop()
    if arguments.quick:
        print(json.dumps(results[0]["ratios"]["files to native"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
