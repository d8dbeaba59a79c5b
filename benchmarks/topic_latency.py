"""From a record's own time to a value that counts it, and from a clock to the exact values at it, through a Kafka topic.

    python -m benchmarks.topic_latency [--what count rule ordered] [--contenders echo local spark native] [--rate N]
        [--warm S] [--seconds S] [--repetitions N] [--json FILE]

A producer, a process of its own, writes records at a steady rate, each with the wall clock as its time. `count` counts them by
1,000 keys in tumbling windows of two seconds, `rule` keeps a sum by 50,000 keys, `ordered` is a task that processes these in
order. Both have running values, and all have values at clocks, at an interval of 100 ms and with no allowed delay. A value is
there when a function in the process of the application is handed it, in all contenders.

`echo` is a consumer of the same topic that does nothing: the floor. `native` is Spark's own aggregation by micro-batches, which
has no exact values. Each contender is a process of its own, with a topic of its own at one broker, and they take turns.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa

import monoids
from benchmarks.measure import write_json
from examples.broker import Broker, connector_jars
from persistent_state import (
    Application,
    KafkaSource,
    Local,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    RunningValues,
    TumblingWindow,
    ValuesAtClock,
    WindowState,
)
from persistent_state.kafka import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COUNT, RULE, ORDERED = "count", "rule", "ordered"
ECHO, LOCAL, SPARK, NATIVE = "echo", "local", "spark", "native"
KEYS = {COUNT: 1_000, RULE: 50_000, ORDERED: 50_000}
PARTITIONS = 2
WINDOW = "2 seconds"
COLUMNS = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])

_COUNTING = """
import os
_fsync, _log = os.fsync, os.open({file!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def fsync(file):
    os.write(_log, b".")
    _fsync(file)
os.fsync = fsync
"""
"""What each Python process does at its start: it counts its syncs, as bytes of a file."""


class Count(PersistentTask):
    """The number of records of a key in each window, and the newest one's number."""

    key = "k"

    def persistent_state(self) -> WindowState[dict[str, Any]]:
        return WindowState(monoids.Struct(count=monoids.Count(), newest=monoids.Max()), TumblingWindow(WINDOW))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
        return pa.StructArray.from_arrays([ones, batch["n"]], names=["count", "newest"])


class Rule(PersistentTask):
    """The same for a key without windows."""

    key = "k"

    def persistent_state(self) -> NonWindowState[dict[str, Any]]:
        return NonWindowState(monoids.Struct(count=monoids.Count(), newest=monoids.Max()))

    process_batch = Count.process_batch


class Ordered(OrderedTask):
    """The number of records of a key and the newest one, by a program that sees one after the other."""

    key = "k"
    state = pa.struct([("count", pa.int64()), ("newest", pa.int64())])

    def process(self, state: Any, message: Any, context: Any) -> Any:
        return {"count": 1 + (state["count"] if state else 0), "newest": message["n"]}


@dataclass
class Seen:
    """What functions of outputs were handed, and when, in microseconds UTC."""

    running: list[tuple[int, list[int]]] = field(default_factory=list)
    exact: list[tuple[int, int, int]] = field(default_factory=list)

    def take(self, newest: Sequence[int]) -> None:
        self.running.append((now(), list(newest)))

    def look(self, values: Any, number: int) -> None:
        """Take running values, in Arrow."""
        at = now()
        newest = [n for batch in values.batches() for n in batch["value"].field("newest").to_pylist()]
        self.running.append((at, newest))

    def look_at_clock(self, values: Any, clock: int) -> None:
        """Take the values at a clock, in Arrow. They are there when they have been read."""
        rows = sum(batch.num_rows for batch in values.batches())
        self.exact.append((now(), clock, rows))


def now() -> int:
    return time.time_ns() // 1000


def application(what: str, servers: str, topic: str, seen: Seen, folder: Path) -> Application:
    source = KafkaSource(topic, servers, value=Json(COLUMNS), timestamp="ts", starting_offsets="latest")
    app = Application("latency", str(folder / "store"), checkpoint_interval="100 milliseconds")
    outputs: list[Any] = [ValuesAtClock(seen.look_at_clock, as_="arrow", name="clocks")]
    if what != ORDERED:
        outputs.append(RunningValues(seen.look, as_="arrow"))
    task: dict[str, PersistentTask | OrderedTask] = {COUNT: Count(), RULE: Rule(), ORDERED: Ordered()}
    return app.add(task[what], source, outputs)


def local(what: str, servers: str, topic: str, seen: Seen, folder: Path) -> Callable[[], object]:
    return application(what, servers, topic, seen, folder).start(Local()).stop


def spark_session() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("benchmark").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "2g").config("spark.log.level", "ERROR")
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    builder = builder.config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.jars", ",".join(map(str, connector_jars())))
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def spark(what: str, servers: str, topic: str, seen: Seen, folder: Path) -> Callable[[], object]:
    return application(what, servers, topic, seen, folder).start(spark_session()).stop


def native(what: str, servers: str, topic: str, seen: Seen, folder: Path) -> Callable[[], object]:
    from pyspark.sql import functions as F

    session = spark_session()
    reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    records = reader.option("subscribe", topic).option("startingOffsets", "latest").load()
    parsed = F.from_json(F.col("value").cast("string"), "ts BIGINT, k BIGINT, n BIGINT")
    rows = records.select(parsed.alias("row")).select("row.*").withColumn("at", F.timestamp_micros("ts"))
    rows = rows.withWatermark("at", "0 seconds")
    by = [F.window("at", WINDOW), "k"] if what == COUNT else ["k"]
    made = rows.groupBy(*by).agg(F.count("*").alias("count"), F.max("n").alias("newest"))

    def look(values: DataFrame, batch: int) -> None:
        seen.take([row["newest"] for row in values.select("newest").collect()])

    query = made.writeStream.outputMode("update").option("checkpointLocation", str(folder / "checkpoint"))
    stop: Callable[[], object] = query.foreachBatch(look).start().stop
    return stop


def echo(what: str, servers: str, topic: str, seen: Seen, folder: Path) -> Callable[[], object]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "echo", "fetch.wait.max.ms": 20})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    stopping = threading.Event()

    def consume() -> None:
        while not stopping.is_set():
            if message := consumer.poll(0.1):
                seen.take([json.loads(message.value() or b"")["n"]])
        consumer.close()

    thread = threading.Thread(target=consume)
    thread.start()

    def stop() -> None:
        stopping.set()
        thread.join()

    return stop


CONTENDERS = {ECHO: echo, LOCAL: local, SPARK: spark, NATIVE: native}


def contend(name: str, what: str, servers: str, topic: str, folder: Path) -> None:
    """Run a contender until standard input ends, and write what it has seen."""
    seen = Seen()
    stop = CONTENDERS[name](what, servers, topic, seen, folder)
    print("started", flush=True)
    sys.stdin.read()
    taken = {"running": [*seen.running], "exact": [*seen.exact]}
    stop()
    (folder / "seen.json").write_text(json.dumps(taken))


def produce(servers: str, topic: str, keys: int, rate: float, seconds: float) -> None:
    """Write records at a steady rate, and their times, as 8 bytes each, to standard output at the end."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": 1})
    chance = np.random.default_rng(7).permutation(keys).tolist()
    begin, times = time.perf_counter(), []
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
        times.append(now())
        value = b'{"ts": %d, "k": %d, "n": %d}' % (times[-1], chance[number % keys], number)
        producer.produce(topic, value, partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush()
    sys.stdout.buffer.write(np.array(times, np.int64).tobytes())


@dataclass(frozen=True)
class Taken:
    """One pass: milliseconds of each running and each exact value, and what was used a second or a minute."""

    running: Sequence[float]
    exact: Sequence[float]
    rates: Mapping[str, float]


def tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def used(process: psutil.Process, folder: Path) -> dict[str, float]:
    """Return what a contender has used since its start."""
    cpu = written = 0.0
    for each in tree(process):
        try:
            times, io = each.cpu_times(), each.io_counters()
        except psutil.Error:
            continue
        cpu += times.user + times.system
        written += io.write_bytes
    syncs = folder / "syncs"
    entries = folder / "store" / "latency" / "log"
    newest = max(map(int, (name.stem for name in entries.glob("*.json"))), default=0)
    stored = sum(file.stat().st_size for file in (folder / "store").rglob("*") if file.is_file())
    return {
        "at": time.monotonic(),
        "cpu": cpu,
        "written": written,
        "syncs": syncs.stat().st_size if syncs.exists() else 0,
        "entries": newest,
        "stored": stored,
    }


def measure(name: str, what: str, broker: Broker, topic: str, rate: float, warm: float, seconds: float) -> Taken:
    broker.make(topic, PARTITIONS)
    keys = KEYS[what]
    with tempfile.TemporaryDirectory(prefix="latency-") as place:
        folder = Path(place)
        (folder / "sitecustomize.py").write_text(_COUNTING.format(file=str(folder / "syncs")))
        env = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}:{os.getcwd()}"}
        me = [sys.executable, "-m", __spec__.name]
        command = [*me, "contend", name, what, broker.address, topic, str(folder)]
        contender = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert contender.stdin is not None
        assert contender.stdout is not None
        contender.stdout.readline()
        command = [*me, "produce", broker.address, topic, str(keys), str(rate), str(warm + seconds)]
        producer = subprocess.Popen(command, stdout=subprocess.PIPE)
        process = psutil.Process(contender.pid)
        time.sleep(warm)
        before = used(process, folder)
        out, _ = producer.communicate()
        after = used(process, folder)
        time.sleep(3)
        contender.stdin.close()
        if contender.wait() != 0:
            raise SystemExit(f"{name} failed")
        seen = json.loads((folder / "seen.json").read_text())
    times = np.frombuffer(out, np.int64)
    span = after["at"] - before["at"]
    a_second = {each: (after[each] - before[each]) / span for each in before}
    begun = times[0] + warm * 1e6
    turns = sum(begun <= at <= times[-1] for at, _ in seen["running"])
    rates = {
        "turns/s": turns / span,
        "cpu": a_second["cpu"],
        "syncs/s": a_second["syncs"],
        "entries/min": 60 * a_second["entries"],
        "MB/min written": 60 * a_second["written"] / 1e6,
        "MB/min kept": 60 * a_second["stored"] / 1e6,
    }
    return Taken(running(seen["running"], times, keys, begun), exact(seen["exact"], begun, times[-1]), rates)


def running(values: Sequence[tuple[int, Sequence[int]]], times: Any, keys: int, begun: float) -> list[float]:
    """Return the milliseconds of each record: to the first value that counts it or a later one of its key."""
    seen: dict[int, int] = {}
    result = []
    for at, newest in values:
        for number in newest:
            place = number % keys
            for each in range(seen.get(place, place - keys) + keys, number + 1, keys):
                if times[each] >= begun:
                    result.append((at - times[each]) / 1e3)
            seen[place] = max(number, seen.get(place, place - keys))
    return result


def exact(values: Sequence[tuple[int, int, int]], begun: float, end: float) -> list[float]:
    return [(at - clock) / 1e3 for at, clock, rows in values if begun <= clock <= end and rows]


def row(name: str, passes: Sequence[Taken]) -> dict[str, Any]:
    """Return the medians over passes."""
    result: dict[str, Any] = {"contender": name}
    for title in ("running", "exact"):
        each = [getattr(taken, title) for taken in passes]
        each = [statistics.quantiles(values, n=100) for values in each if len(values) > 1]
        for cut in (50, 99):
            result[f"{title} p{cut}"] = statistics.median(cuts[cut - 1] for cuts in each) if each else None
    for title in passes[0].rates:
        result[title] = statistics.median(taken.rates[title] for taken in passes)
    return result


def shown(value: str | float | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.1f}"


def main() -> int:
    if sys.argv[1:2] == ["contend"]:
        name, what, servers, topic, folder = sys.argv[2:]
        contend(name, what, servers, topic, Path(folder))
        return 0
    if sys.argv[1:2] == ["produce"]:
        servers, topic, keys, rate, seconds = sys.argv[2:]
        produce(servers, topic, int(keys), float(rate), float(seconds))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=[*KEYS], nargs="+", default=[COUNT, RULE])
    parser.add_argument("--contenders", choices=[*CONTENDERS], nargs="+", default=[*CONTENDERS])
    parser.add_argument("--rate", type=float, default=1_000.0)
    parser.add_argument("--warm", type=float, default=15.0, help="seconds before those that are measured")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    taken: dict[tuple[str, str], list[Taken]] = {}
    with tempfile.TemporaryDirectory(prefix="broker-") as folder, Broker(Path(folder) / "broker") as broker:
        for repetition in range(arguments.repetitions or 1):
            for what in arguments.what:
                for name in arguments.contenders:
                    topic = f"{what}-{name}-{repetition}"
                    print(f"\rpass {topic:<30}", end="", flush=True, file=sys.stderr)
                    result = measure(name, what, broker, topic, arguments.rate, arguments.warm, arguments.seconds)
                    taken.setdefault((what, name), []).append(result)
    print("\r" + " " * 40 + "\r", end="", flush=True, file=sys.stderr)
    results = [{"what": what, **row(name, passes)} for (what, name), passes in taken.items()]
    print("  ".join(f"{title:>14}" for title in results[0]))
    for each in results:
        print("  ".join(f"{shown(value):>14}" for value in each.values()))
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
