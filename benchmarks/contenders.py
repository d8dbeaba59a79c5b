"""What is compared: this library, Spark's own ways to keep state, and the bounds of what is below both."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import monoids
from benchmarks.measure import Pass, measured
from benchmarks.plans import plan_of
from benchmarks.streams import CHANNEL, STEP, Workload
from persistent_state import (
    Application,
    DataFrameSource,
    FileSource,
    Local,
    NonWindowState,
    PersistentTask,
    RunningValues,
    SessionWindow,
    SlidingWindow,
    ValuesAtClock,
    WindowState,
)
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive.local import LocalDriver
from persistent_state.engine import Running
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.durations import positive
from persistent_state.partials.shuffle import numbers_of_partitions
from persistent_state.protocol import takeover
from persistent_state.protocol.global_clock import Keeping
from persistent_state.run.progress import Progress
from persistent_state.sinks import Values
from persistent_state.store.files import open_files
from persistent_state.store.log import Log

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STEPS = 10
"""A sliding window is as long as so many checkpoint intervals, which are its steps."""
MEANS = 3
"""A session's gap is so many times the mean time from one message of a key to the next: a session has twenty messages."""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True)
class Setting:
    """Where and how a contender runs. `emits` says that the values of the touched keys, or final windows, go on to a sink.

    `parallelism` is Spark's, and the number of shards. `spark` is None where no contender needs it.
    """

    spark: SparkSession | None
    workload: Workload
    folder: Path
    emits: bool
    max_files_per_batch: int
    scratch: Path
    interval: str
    parallelism: int = 2

    @property
    def window(self) -> SlidingWindow | SessionWindow | None:
        """The windows of the workload, if it has some."""
        if not self.workload.windows:
            return None
        if self.workload.windows == "sessions":
            return SessionWindow(timedelta(microseconds=MEANS * self.workload.keys * STEP))
        step = timedelta(microseconds=positive("interval", self.interval))
        return SlidingWindow(STEPS * step, step)


class HasScratch(Protocol):
    """A setting with a folder for Spark's checkpoint."""

    @property
    def scratch(self) -> Path: ...


Contender = Callable[[Setting], Pass]


def rows_of(setting: Setting, session: SparkSession) -> DataFrame:
    channel = f", {CHANNEL} string" if setting.workload.channels else ""
    reader = session.readStream.schema(f"ts timestamp, k {setting.workload.key_type}, v long{channel}")
    return reader.option("maxFilesPerTrigger", setting.max_files_per_batch).parquet(str(setting.folder))


def spark_of(setting: Setting) -> SparkSession:
    assert setting.spark is not None, "the contender needs Spark"
    return setting.spark


def session_of(setting: Setting, provider: str | None = None) -> SparkSession:
    """A session of a contender's own, perhaps with another state store than the default."""
    session = spark_of(setting).newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(setting.parallelism))
    session.conf.set("spark.sql.session.timeZone", "UTC")
    if provider is not None:
        session.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    return session


def drained(start: Callable[[], tuple[StreamingQuery, Callable[[], object]]]) -> Pass:
    """Run a query to the end of its stream."""
    with measured() as taken:
        begin = time.time()
        query, stop = start()
        query.processAllAvailable()
        progress = [told for told in query.recentProgress if told["numInputRows"]]
        stop()
    taken.batches = [told["batchDuration"] / 1e3 for told in progress]
    begins = [datetime.fromisoformat(told["timestamp"]).timestamp() - begin for told in progress]
    taken.ends = [at + seconds for at, seconds in zip(begins, taken.batches, strict=True)]
    return taken


def queries_of(run: Running) -> list[StreamingQuery]:
    """Return the queries of an application, which does not run on Spark Connect."""
    from pyspark.sql.streaming.query import StreamingQuery

    from persistent_state.engine.run.queries import Queries

    flows = run._supervisor.flows
    assert isinstance(flows, Queries), "benchmarks run on Spark"
    return [query for query in flows.by_flow.values() if isinstance(query, StreamingQuery)]


def spark_query(setting: HasScratch, frame: DataFrame, mode: str = "append") -> Pass:
    """A query of Spark's own, whose rows go to nowhere."""

    def start() -> tuple[StreamingQuery, Callable[[], object]]:
        writer = frame.writeStream.outputMode(mode).format("noop")
        query = writer.option("checkpointLocation", str(setting.scratch / "checkpoint")).start()
        return query, query.stop

    return drained(start)


# This library


class Sum(PersistentTask):
    key = "k"
    value = "v"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


class Summary(PersistentTask):
    """Count, sum, least and greatest, from one struct of columns."""

    key = "k"

    def persistent_state(self) -> NonWindowState[dict[str, Any]]:
        return NonWindowState(
            monoids.Struct(count=monoids.Count(), sum=monoids.Sum(), least=monoids.Min(), most=monoids.Max())
        )

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        v = batch["v"]
        ones = pa.repeat(pa.scalar(1, pa.int64()), len(v))
        return pa.StructArray.from_arrays([ones, v, v, v], names=["count", "sum", "least", "most"])


class MessageSum(PersistentTask):
    """The same sum, said message by message."""

    name = "Sum"
    key = "k"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())

    def process_message(self, state: Any, message: Any) -> None:
        state.update(message.timestamp, message["v"])


class WindowSum(PersistentTask):
    """The sum of each key and window."""

    key = "k"
    value = "v"

    def __init__(self, window: SlidingWindow | SessionWindow) -> None:
        self.window = window

    def persistent_state(self) -> WindowState[int]:
        return WindowState(monoids.Sum(), self.window)


def task_of(setting: Setting) -> PersistentTask:
    if setting.window is not None:
        return WindowSum(setting.window)
    return Sum() if setting.workload.value_type == "long" else Summary()


def files_of(setting: Setting) -> FileSource:
    channel = CHANNEL if setting.workload.channels else None
    most = setting.max_files_per_batch
    return FileSource(setting.folder, timestamp="ts", channel=channel, max_files_per_batch=most)


def ours(setting: Setting, source: str, task: PersistentTask | None = None) -> Pass:
    app = Application("benchmark", str(setting.scratch / "store"), checkpoint_interval=setting.interval)
    if source == "files":
        read: Any = files_of(setting)
    else:
        channel = CHANNEL if setting.workload.channels else None
        read = DataFrameSource(rows_of(setting, session_of(setting)), "ts", channel=channel)
    output = RunningValues(to_nowhere) if setting.window is None else ValuesAtClock(to_nowhere)
    app.add(task or task_of(setting), read, output if setting.emits else None)

    def start() -> tuple[StreamingQuery, Callable[[], object]]:
        run = app.start(spark_of(setting))
        # Only Spark knows how long a whole micro-batch took.
        (query,) = queries_of(run)
        # Windows are given out beside the micro-batches: the pass ends when all are.
        return query, run.stop if setting.window is None or not setting.emits else run.drain

    return drained(start)


def locally(setting: Setting, workers: int) -> Pass:
    """This library on this machine alone, without Spark: `workers` processes, which start and end within the pass."""
    app = Application(
        "benchmark", str(setting.scratch / "store"), checkpoint_interval=setting.interval, shards=setting.parallelism
    )
    output: Any = RunningValues if setting.window is None else ValuesAtClock
    app.add(task_of(setting), files_of(setting), output(arrow_to_nowhere, as_="arrow") if setting.emits else None)
    with measured() as taken:
        begin = time.perf_counter()

        def committed(progress: Progress) -> None:
            if progress.messages:
                taken.ends.append(time.perf_counter() - begin)

        # As under Spark, windows are given out beside the micro-batches.
        drains = setting.window is not None and setting.emits
        app.run(Local(workers), drain=drains, on_progress=committed, show_progress=False)
    taken.batches = [end - begin for begin, end in pairwise([0.0, *taken.ends])]
    return taken


def arrow_to_nowhere(values: Values, batch: int) -> None:
    for _ in values.batches():
        pass


def in_process(setting: Setting) -> Pass:
    """This library without Spark: parts and shards run one after the other in this process, and sinks are given nothing."""
    files, interval = open_files(str(setting.scratch / "store")), positive("interval", setting.interval)
    source, channel = files_of(setting), CHANNEL if setting.workload.channels else None
    settings, shards = Settings(interval), setting.parallelism
    task, emits = task_of(setting), setting.emits and setting.window is None
    plan = plan_of("benchmark", files, task, source.schema, settings, shards, channel=channel, emits=emits)
    flow, log = FlowPlan((plan,)), Log(files, "benchmark")

    def now() -> int:
        return time.time_ns() // 1_000

    with measured() as taken:
        takeover.take_over(log, [flow], interval=interval, shards=shards, writer="benchmark", now=now())
        source.open([], {})
        driver = LocalDriver(
            log, [flow], {flow.id: source}, keeping=Keeping(), now=now, new_id=lambda: uuid.uuid4().hex[:8]
        )
        while True:
            with measured() as batch:
                answers = driver.take_turn(flow)
            if answers is None:
                break
            taken.batches.append(batch.wall)
    return taken


def to_nowhere(values: DataFrame, batch: int) -> None:
    values.write.mode("overwrite").format("noop").save()


# Spark's own


def aggregates(setting: Setting) -> list[Column]:
    from pyspark.sql import functions as F

    total = F.sum("v").alias("sum")
    if setting.workload.value_type == "long":
        return [total]
    return [F.count("v").alias("count"), total, F.min("v").alias("least"), F.max("v").alias("most")]


def native(setting: Setting, provider: str | None = None) -> Pass:
    frame = rows_of(setting, session_of(setting, provider))
    if setting.window is None:
        return spark_query(setting, frame.groupBy("k").agg(*aggregates(setting)), "update")
    # Only windows that have closed are given out; the stream's rows are in order.
    by_window = frame.withWatermark("ts", "0 seconds").groupBy(window_column(setting.window), "k")
    return spark_query(setting, by_window.agg(*aggregates(setting)), "append")


def window_column(window: SlidingWindow | SessionWindow) -> Column:
    from pyspark.sql import functions as F

    if isinstance(window, SessionWindow):
        return F.session_window("ts", f"{window.gap} microseconds")
    return F.window("ts", f"{window.size} microseconds", f"{window.slide} microseconds")


def by_key(setting: Setting) -> Pass:
    """A sum in `applyInPandasWithState`, one group for each key."""
    import pandas as pd

    def step(key: tuple[Any], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        total = (state.get[0] if state.exists else 0) + sum(int(frame["v"].sum()) for frame in frames)
        state.update((total,))
        yield pd.DataFrame({"k": [key[0]], "sum": [total]})

    frame = rows_of(setting, session_of(setting)).groupBy("k")
    made = frame.applyInPandasWithState(
        step, f"k {setting.workload.key_type}, sum long", "sum long", "update", "NoTimeout"
    )
    return spark_query(setting, made, "update")


def transform(setting: Setting) -> Pass:
    """The same in `transformWithStateInPandas`, which needs RocksDB."""
    import pandas as pd
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

    class Total(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.total = handle.getValueState("total", "sum long")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timer: Any) -> Iterator[pd.DataFrame]:
            (total,) = (self.total.get() if self.total.exists() else None) or (0,)
            total += sum(int(frame["v"].sum()) for frame in rows)
            self.total.update((total,))
            yield pd.DataFrame({"k": [key[0]], "sum": [total]})

        def close(self) -> None: ...

    frame = rows_of(setting, session_of(setting, ROCKSDB)).groupBy("k")
    made = frame.transformWithStateInPandas(Total(), f"k {setting.workload.key_type}, sum long", "update", "None")
    return spark_query(setting, made, "update")


# Bounds


def scan(setting: Setting) -> Pass:
    """Spark reads the stream, and that is all."""
    return spark_query(setting, rows_of(setting, session_of(setting)))


def blobs_of(setting: Setting) -> DataFrame:
    """What this library shuffles: rows read and combined, as one blob for each shard and part of a micro-batch."""
    from persistent_state.engine.read import arrow_source

    shards = setting.parallelism
    files, interval = open_files(str(setting.scratch / "store")), positive("interval", setting.interval)
    source = FileSource(setting.folder, timestamp="ts", max_files_per_batch=setting.max_files_per_batch)
    task = task_of(setting)
    flow = FlowPlan((plan_of("benchmark", files, task, source.schema, Settings(interval), shards),))
    entry = takeover.take_over(
        Log(files, "benchmark"), [flow], interval=interval, shards=shards, writer="benchmark", now=1
    )
    session = session_of(setting)
    labels = numbers_of_partitions(shards)
    return arrow_source.load(session, flow, arrow_source.ArrowReader(flow, source, entry.epoch, shards, labels, 1))


def combined(setting: Setting) -> Pass:
    """This library reads and combines, and what is to be shuffled goes to nowhere."""
    return spark_query(setting, blobs_of(setting))


def shuffled(setting: Setting) -> Pass:
    """The same, shuffled."""
    frame = blobs_of(setting)
    return spark_query(setting, frame.repartition(setting.parallelism, "label"))


def to_python_and_back(setting: Setting) -> Pass:
    """Spark reads the stream, and each row goes to a Python worker and back."""

    def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    frame = rows_of(setting, session_of(setting)).select("k", "v")
    return spark_query(setting, frame.mapInArrow(same, frame.schema))


def by_files(setting: Setting, work: Callable[[list[Path]], object]) -> Pass:
    """Work on the files of each micro-batch in this process."""
    files = sorted(setting.folder.glob("*.parquet"))
    with measured() as taken:
        for first in range(0, len(files), setting.max_files_per_batch):
            with measured() as batch:
                work(files[first : first + setting.max_files_per_batch])
            taken.batches.append(batch.wall)
    return taken


def read_by_pyarrow(files: list[Path]) -> pa.Table:
    """Read files by as many threads as pyarrow likes."""
    return pa.concat_tables(pq.read_table(file, columns=["ts", "k", "v"]) for file in files)


def grouped_by_pyarrow(files: list[Path]) -> pa.Table:
    """Read and group files, and keep nothing."""
    return read_by_pyarrow(files).group_by("k").aggregate([("v", "sum")])


def grouped_by_duckdb(files: list[Path]) -> pa.Table:
    """The same by DuckDB, which reads the timestamps too."""
    with duckdb.connect() as database:
        read = database.read_parquet([*map(str, files)])
        return read.aggregate("k, sum(v) AS v_sum, max(ts) AS newest", "k").to_arrow_table()


CONTENDERS: Mapping[str, Contender] = {
    "files": partial(ours, source="files"),
    "dataframe": partial(ours, source="dataframe"),
    "native": native,
    "rocksdb": partial(native, provider=ROCKSDB),
    "applyInPandasWithState": by_key,
    "transformWithState": transform,
    "messages": partial(ours, source="files", task=MessageSum()),
    "Local(1)": partial(locally, workers=1),
    "Local(2)": partial(locally, workers=2),
    "in process": in_process,
    "scan": scan,
    "scan to Python and back": to_python_and_back,
    "pyarrow": partial(by_files, work=read_by_pyarrow),
    "pyarrow, grouped": partial(by_files, work=grouped_by_pyarrow),
    "DuckDB, grouped": partial(by_files, work=grouped_by_duckdb),
    "combine": combined,
    "combine and shuffle": shuffled,
}


WITHOUT_SPARK = {"Local(1)", "Local(2)", "in process", "pyarrow", "pyarrow, grouped", "DuckDB, grouped"}


def run(name: str, setting: Setting) -> Pass:
    """One pass of a contender, from nothing."""
    shutil.rmtree(setting.scratch, ignore_errors=True)
    setting.scratch.mkdir(parents=True)
    try:
        return CONTENDERS[name](setting)
    finally:
        shutil.rmtree(setting.scratch, ignore_errors=True)


def interval_of(rows_per_batch: int, share: float) -> str:
    """A checkpoint interval that is this share of a micro-batch's event time."""
    return f"{int(rows_per_batch * STEP * share)} microseconds"
