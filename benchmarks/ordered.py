"""Messages processed in order of event time by Python, and joins, beside what Spark has for both.

    python -m benchmarks.ordered [--what process as-of interval ...] [--keys N] [--rows N] [--repetitions N] [--json FILE]

Of `process`: a Python loop over the messages of each key keeps their number, their sum and the greatest, and emits a row for
one of fifty, in an `OrderedTask`, in `applyInPandasWithState` and in `transformWithStateInPandas`, both by the user's key. A
micro-batch has two million rows; with 100,000 keys these are twenty of each. Of `as-of`: an `AsOfJoin` of two streams with as
many rows each, both counted. Of `interval`: an `IntervalJoin`, and Spark's join of two streams with watermarks; each row of the
one stream has two of the other, in the mean. Both streams have the same rows.

Passes take turns, after one of each that is not timed. Rows a second are those after the first micro-batch, by the time from
its end to the end of the pass; of this library that is when all messages have been processed.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.contenders import ROCKSDB, spark_query
from benchmarks.measure import Pass, is_timed, measured, write_json
from benchmarks.streams import ROWS_PER_FILE, STEP, Workload
from benchmarks.throughput import session
from persistent_state import Application, AsOfJoin, FileSource, IntervalJoin, OrderedTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES = 2
"""The files of a micro-batch, of each stream."""
COLUMNS = "ts timestamp, k long, v long"
HIGH = 98
"""Greater values are emitted."""


class High(OrderedTask):
    """How many values a key had, their sum and the greatest; a row for each that is high."""

    key = "k"
    state = pa.struct([("count", pa.int64()), ("sum", pa.int64()), ("most", pa.int64())])
    emits = pa.schema([("v", pa.int64())])

    def process(self, state: Any, message: Any, context: Any) -> Any:
        value = message["v"]
        if value >= HIGH:
            context.emit(v=value)
        if state is None:
            return {"count": 1, "sum": value, "most": value}
        return {"count": state["count"] + 1, "sum": state["sum"] + value, "most": max(state["most"], value)}


@dataclass(frozen=True)
class Setting:
    """Where a contender runs, and the folder of its stream."""

    spark: SparkSession
    folder: Path
    keys: int
    scratch: Path

    @property
    def interval(self) -> str:
        """A checkpoint clock for each micro-batch."""
        return f"{FILES * ROWS_PER_FILE * STEP} microseconds"

    @property
    def reach(self) -> int:
        """The most microseconds between two rows that are joined: half of the time from a row of a key to the next."""
        return self.keys * STEP // 2


Contender = Callable[[Setting], Pass]


def rows_of(setting: Setting, provider: str | None = None) -> DataFrame:
    own = setting.spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", str(own.sparkContext.defaultParallelism))
    own.conf.set("spark.sql.session.timeZone", "UTC")
    if provider is not None:
        own.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    return own.readStream.schema(COLUMNS).option("maxFilesPerTrigger", FILES).parquet(str(setting.folder))


def ours(setting: Setting, task: Callable[[Setting], Any], inputs: Callable[[Setting], Any]) -> Pass:
    app = Application("benchmark", str(setting.scratch / "store"), checkpoint_interval=setting.interval)
    app.add(task(setting), inputs(setting))

    with measured() as taken:
        begin, ends = time.monotonic(), list[float]()
        app.run(setting.spark, drain=True, on_progress=lambda progress: ends.append(time.monotonic() - begin))
    taken.ends = ends
    return taken


def files(folder: Path) -> FileSource:
    return FileSource(folder, timestamp="ts", max_files_per_batch=FILES)


def both(setting: Setting) -> dict[str, FileSource]:
    return {"left": files(setting.folder), "right": files(setting.folder)}


def as_of(setting: Setting) -> AsOfJoin:
    return AsOfJoin("left", "right", key="k", name="joined")


def interval(setting: Setting) -> IntervalJoin:
    near = f"{setting.reach} microseconds"
    return IntervalJoin("left", "right", key="k", before=near, after=near, name="joined")


# Spark's own


def by_key(setting: Setting) -> Pass:
    """`applyInPandasWithState`, one group for each key, which goes through its rows as they came."""
    import pandas as pd

    def step(key: tuple[Any], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        count, total, most = state.get if state.exists else (0, 0, -1)
        high = []
        for frame in frames:
            for value in frame["v"].tolist():
                count, total, most = count + 1, total + value, max(most, value)
                if value >= HIGH:
                    high.append(value)
        state.update((count, total, most))
        yield pd.DataFrame({"k": [key[0]] * len(high), "v": high})

    frame = rows_of(setting).groupBy("k")
    made = frame.applyInPandasWithState(
        step, "k long, v long", "count long, sum long, most long", "append", "NoTimeout"
    )
    return spark_query(setting, made)


def transform(setting: Setting) -> Pass:
    """The same in `transformWithStateInPandas`, which needs RocksDB."""
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Highs(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.kept = handle.getValueState("kept", "count long, sum long, most long")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timer: Any) -> Iterator[pd.DataFrame]:
            count, total, most = (self.kept.get() if self.kept.exists() else None) or (0, 0, -1)
            high = []
            for frame in rows:
                for value in frame["v"].tolist():
                    count, total, most = count + 1, total + value, max(most, value)
                    if value >= HIGH:
                        high.append(value)
            self.kept.update((count, total, most))
            yield pd.DataFrame({"k": [key[0]] * len(high), "v": high})

        def close(self) -> None: ...

    frame = rows_of(setting, ROCKSDB).groupBy("k")
    return spark_query(setting, frame.transformWithStateInPandas(Highs(), "k long, v long", "append", "None"))


def native_join(setting: Setting, provider: str | None = None) -> Pass:
    """Spark's join of two streams, inner, by the same times."""
    from pyspark.sql import functions as F

    left = rows_of(setting, provider).withWatermark("ts", "0 seconds")
    reader = left.sparkSession.readStream.schema(COLUMNS).option("maxFilesPerTrigger", FILES)
    right = reader.parquet(str(setting.folder)).toDF("ts2", "k2", "v2").withWatermark("ts2", "0 seconds")
    near = F.expr(f"INTERVAL {setting.reach / 1e6:f} SECONDS")
    is_pair = (F.col("k") == F.col("k2")) & (F.col("ts2") >= F.col("ts") - near) & (F.col("ts2") <= F.col("ts") + near)
    return spark_query(setting, left.join(right, is_pair))


CONTENDERS: Mapping[str, Mapping[str, Contender]] = {
    "process": {
        "OrderedTask": partial(ours, task=lambda setting: High(), inputs=lambda setting: files(setting.folder)),
        "applyInPandasWithState": by_key,
        "transformWithState": transform,
    },
    "as-of": {"AsOfJoin": partial(ours, task=as_of, inputs=both)},
    "interval": {
        "IntervalJoin": partial(ours, task=interval, inputs=both),
        "Spark": native_join,
        "Spark on RocksDB": partial(native_join, provider=ROCKSDB),
    },
}


@dataclass(frozen=True)
class Found:
    """Thousands of rows a second, the median of the passes, and how many processor seconds a million rows took."""

    rate: float
    cpu: float


def compare(spark: SparkSession, what: str, keys: int, rows: int, repetitions: int) -> dict[str, Found]:
    folder = Workload(keys, rows).folder()
    sides = 1 if what == "process" else 2
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS[what]}
    cpu: dict[str, list[float]] = {name: [] for name in CONTENDERS[what]}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        for repetition in range(repetitions + 1):
            for name, contender in CONTENDERS[what].items():
                turn = f"pass {repetition} of {repetitions}" if repetition else "warming up"
                print(f"\r{what}: {turn}, {name:<24}", end="", flush=True)
                place = Path(scratch) / "run"
                shutil.rmtree(place, ignore_errors=True)
                place.mkdir()
                taken = contender(Setting(spark, folder, keys, place))
                if is_timed(repetition, repetitions):
                    later = sides * (rows - FILES * ROWS_PER_FILE)
                    rates[name].append(later / (taken.wall - taken.ends[0]) / 1e3)
                    cpu[name].append(taken.cpu / (sides * rows / 1e6))
    print("\r" + " " * 80 + "\r", end="")
    return {name: Found(statistics.median(rates[name]), statistics.median(cpu[name])) for name in rates}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=CONTENDERS, nargs="+", default=[*CONTENDERS])
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=12_000_000, help="of each stream")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--memory", default="6g", help="of the JVM")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    spark, results = session(arguments.memory), {}
    for what in arguments.what:
        found = compare(spark, what, arguments.keys, arguments.rows, arguments.repetitions)
        first = next(iter(found.values()))
        print(f"{what:<24}{'k rows/s':>10}{'CPU s/M':>10}{'x this':>10}")
        for name, each in found.items():
            print(f"{name:<24}{each.rate:>10,.0f}{each.cpu:>10.2f}{first.rate / each.rate:>10.2f}")
        print(flush=True)
        results[what] = {name: asdict(each) for name, each in found.items()}
    write_json(arguments.json, results)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
