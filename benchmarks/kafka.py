"""Throughput from a Kafka topic beside Spark's aggregation of the same topic: one broker, one session, passes interleaved.

    python -m benchmarks.kafka [--payload json raw] [--keys N ...] [--rows N] [--emit yes no] [--repetitions N] [--json FILE]

A `json` record is {"ts", "k", "v"}, of which v is summed up by k; a `raw` one has its key as text and fifty bytes, and is
counted by key, at its own time. `librdkafka` is KafkaSource, `connector` is KafkaConnectorSource,
`native` Spark's own aggregation behind that connector. The broker takes its share of the two cores in each of them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import monoids
from benchmarks.contenders import drained, queries_of, spark_query, to_nowhere
from benchmarks.measure import Pass, figures, is_timed, write_json
from benchmarks.streams import ROWS_PER_FILE
from benchmarks.throughput import ratios, table
from examples.broker import Broker, connector_jars
from persistent_state import (
    Application,
    KafkaConnectorSource,
    KafkaSource,
    NonWindowState,
    PersistentTask,
    RunningValues,
)
from persistent_state.kafka import Json, Raw

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS = 4
PER_BATCH = ROWS_PER_FILE
START = 1_700_000_000_000
JSON, RAW = "json", "raw"
OURS, NATIVE = ("librdkafka", "connector"), "native"
COLUMNS = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("v", pa.int64())])
PLACE = ("kafka_topic", "kafka_partition", "kafka_offset")


class Sum(PersistentTask):
    key = "k"
    value = "v"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


class Count(PersistentTask):
    key = "k"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Count())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)


@dataclass(frozen=True)
class Setting:
    spark: SparkSession
    servers: str
    payload: str
    emits: bool
    scratch: Path


def fill(broker: Broker, topic: str, payload: str, keys: int, rows: int) -> None:
    """Write the records of a topic, a millisecond of event time for each thousand."""
    from confluent_kafka import Producer

    broker.make(topic, PARTITIONS)
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "linger.ms": 50,
            "batch.num.messages": 100_000,
            "compression.type": "lz4",
        }
    )
    chance = np.random.default_rng(keys)
    filler = bytes(50)
    for first in range(0, rows, PER_BATCH):
        some = range(first, min(first + PER_BATCH, rows))
        for row, k in zip(some, chance.integers(0, keys, len(some)).tolist(), strict=True):
            millis = START + row // 1000
            if payload == JSON:
                value, key = b'{"ts": %d, "k": %d, "v": %d}' % (START * 1000 + row, k, row % 100), None
            else:
                value, key = filler, b"%d" % k
            while True:
                try:
                    producer.produce(topic, value, key, row % PARTITIONS, timestamp=millis)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
        print(f"\rfilling {topic}: {some.stop:,} of {rows:,} records", end="", flush=True)
    producer.flush()
    print("\r" + " " * 80 + "\r", end="")


def ours(setting: Setting, topic: str, by_spark: bool) -> Pass:
    is_json = setting.payload == JSON
    options: dict[str, Any] = {
        "timestamp": "ts" if is_json else "kafka_timestamp",
        "max_offsets_per_batch": PER_BATCH,
    }
    source: KafkaSource | KafkaConnectorSource
    if by_spark:
        source = KafkaConnectorSource(topic, setting.servers, json_columns if is_json else raw_columns, **options)
    elif is_json:
        source = KafkaSource(topic, setting.servers, value=Json(COLUMNS), **options)
    else:
        source = KafkaSource(topic, setting.servers, key=Raw("k", pa.string()), value=Raw("v"), **options)
    interval = f"{PER_BATCH if is_json else PER_BATCH // 1000 * 1000} microseconds"
    app = Application("benchmark", str(setting.scratch / "store"), checkpoint_interval=interval)
    app.add(Sum() if is_json else Count(), source, RunningValues(to_nowhere) if setting.emits else None)

    def start() -> tuple[StreamingQuery, Callable[[], object]]:
        run = app.start(setting.spark)
        (query,) = queries_of(run)
        return query, run.stop

    return drained(start)


def json_columns(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    parsed = F.from_json(F.col("value").cast("string"), "ts BIGINT, k BIGINT, v BIGINT")
    return records.select(parsed.alias("row"), *PLACE).select("row.*", *PLACE)


def raw_columns(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return records.select(F.col("key").cast("string").alias("k"), "kafka_timestamp", *PLACE)


def native(setting: Setting, topic: str) -> Pass:
    from pyspark.sql import functions as F

    session = setting.spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", str(session.sparkContext.defaultParallelism))
    reader = session.readStream.format("kafka").option("kafka.bootstrap.servers", setting.servers)
    reader = reader.option("subscribe", topic).option("startingOffsets", "earliest")
    records = reader.option("maxOffsetsPerTrigger", PER_BATCH).load()
    if setting.payload == JSON:
        parsed = F.from_json(F.col("value").cast("string"), "ts BIGINT, k BIGINT, v BIGINT")
        kept = records.select(parsed.alias("row")).select("row.*").groupBy("k").agg(F.sum("v"))
    else:
        kept = records.select(F.col("key").cast("string").alias("k")).groupBy("k").count()
    return spark_query(setting, kept, "update")


def run(name: str, setting: Setting, topic: str) -> Pass:
    """One pass of a contender, from nothing."""
    shutil.rmtree(setting.scratch, ignore_errors=True)
    setting.scratch.mkdir(parents=True)
    try:
        return native(setting, topic) if name == NATIVE else ours(setting, topic, by_spark=name == "connector")
    finally:
        shutil.rmtree(setting.scratch, ignore_errors=True)


@contextmanager
def session(memory: str) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("benchmark").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", memory).config("spark.log.level", "ERROR")
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "200000")
    builder = builder.config("spark.python.unix.domain.socket.enabled", "true")
    builder = builder.config("spark.jars", ",".join(map(str, connector_jars())))
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    yield spark
    spark.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--payload", choices=[JSON, RAW], nargs="+", default=[JSON, RAW])
    parser.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--emit", choices=["yes", "no"], nargs="+", default=["yes", "no"])
    parser.add_argument("--contenders", choices=[*OURS, NATIVE], nargs="+", default=[*OURS, NATIVE])
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--memory", default="4g", help="of Spark's JVM")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.repetitions < 0 or arguments.rows < 2 * PER_BATCH:
        parser.error(
            f"repetitions={arguments.repetitions}, rows={arguments.rows}; give 0 repetitions or more, and at least "
            f"{2 * PER_BATCH:,} rows, as the first micro-batch of a pass is not counted."
        )
    results = []
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        Broker(Path(folder) / "broker") as broker,
        session(arguments.memory) as spark,
    ):
        for payload in arguments.payload:
            for keys in arguments.keys:
                topic = f"{payload}-{keys}"
                fill(broker, topic, payload, keys, arguments.rows)
                for emits in (word == "yes" for word in arguments.emit):
                    setting = Setting(spark, broker.address, payload, emits, Path(folder) / "run")
                    passes: dict[str, list[Pass]] = {name: [] for name in arguments.contenders}
                    for repetition in range(arguments.repetitions + 1):
                        for name in arguments.contenders:
                            taken = run(name, setting, topic)
                            if is_timed(repetition, arguments.repetitions):
                                passes[name].append(taken)
                    found = {name: figures(taken, PER_BATCH, arguments.rows) for name, taken in passes.items()}
                    title = f"{payload}, {keys:,} keys, {'values emitted' if emits else 'no output'}"
                    print(table(title, found, OURS), end="\n\n", flush=True)
                    told = {name: asdict(one) for name, one in found.items()}
                    results.append(
                        {
                            "payload": payload,
                            "keys": keys,
                            "emits": emits,
                            "figures": told,
                            "ratios": ratios(found, OURS),
                        }
                    )
                broker.delete(topic)
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
