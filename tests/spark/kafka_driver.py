"""A driver whose two tasks read one topic of Kafka, by librdkafka and by Spark's connector; and Spark's own watermark.

    python -m tests.spark.kafka_driver FOLDER SERVERS TOPIC [--to-the-end | --skew] [--options FILE --out TOPIC]

It goes on until it is killed, or with --to-the-end reads what there is, closes and ends. FOLDER/progress gets a line for each
commit. With --skew both tasks read the topic once, and Spark counts by minutes under a watermark of its own; what each of
the three has counted is the last line of FOLDER/out, as JSON. With --options, a file of JSON, all clients are given these; what
the tasks hold goes to the topic --out too, and Spark tells all it does and keeps an event log.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import monoids
from examples.broker import connector_jars
from persistent_state import (
    Application,
    InvalidInputError,
    KafkaConnectorSource,
    KafkaSink,
    KafkaSource,
    NonWindowState,
    PersistentTask,
    read_state,
)
from persistent_state.kafka import Json
from persistent_state.run.progress import Progress
from tests.spark.sessions import new_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "kafka"
DELAY = "10 minutes"
PLACE = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp")


class Fast(PersistentTask):
    """The sum of n by k, from rows that Arrow decodes."""

    key = "k"
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


class BySpark(Fast):
    """The same, from rows that Spark decodes."""


def decoded(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    parsed = F.from_json(F.col("value").cast("string"), "k BIGINT, n BIGINT")
    return records.select(parsed.alias("row"), *PLACE).select("row.*", *PLACE)


def application(
    folder: Path,
    servers: str,
    topic: str,
    per_batch: int,
    out: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Application:
    # A partition an hour behind makes others wait: until it is near, and in a run to the end until it has no more.
    app = Application(
        NAME, str(folder / "store"), checkpoint_interval="1 minute", allowed_delay=DELAY, alignment="50 minutes"
    )
    columns = Json(pa.schema([("k", pa.int64()), ("n", pa.int64())]))
    sink = KafkaSink(out, servers, options=options) if out else None
    app.add(
        Fast(),
        KafkaSource(topic, servers, value=columns, max_offsets_per_batch=per_batch, options=options),
        sink,
    )
    return app.add(
        BySpark(),
        KafkaConnectorSource(topic, servers, decoded, max_offsets_per_batch=per_batch, options=options),
        sink,
    )


def spark_counts(spark: SparkSession, folder: Path, servers: str, topic: str, per_batch: int) -> int:
    """How many records Spark's own aggregation counts under a watermark of the same delay."""
    from pyspark.sql import functions as F

    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    records = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", per_batch).load()
    counts = records.withWatermark("timestamp", DELAY).groupBy(F.window("timestamp", "1 minute")).count()
    writer = counts.writeStream.outputMode("update").format("memory").queryName("counts")
    # By default Spark would keep a state of its own in 200 partitions.
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    newest = spark.table("counts").groupBy("window").agg(F.max("count").alias("count"))
    return int(newest.agg(F.sum("count")).collect()[0][0])


def refused(app: Application, servers: str, topic: str, options: Mapping[str, Any], spark: SparkSession) -> None:
    """Tell what an application says whose decoder Spark can't work out, and to which a key was given as text."""
    keyed = {**options, "ssl.key.pem": f"-----BEGIN {options['sasl.password']} KEY-----"}
    source = KafkaConnectorSource(topic, servers, lambda records: records.select("nothing"), options=keyed)
    try:
        Application("refused", app.store).add(BySpark(), source).run(spark)
    except InvalidInputError:
        traceback.print_exc(file=sys.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("--to-the-end", action="store_true")
    parser.add_argument("--skew", action="store_true")
    parser.add_argument("--options", type=Path)
    parser.add_argument("--out")
    given = parser.parse_args()
    folder, per_batch = given.folder, 200 if given.skew else 500
    settings = {"spark.jars": ",".join(map(str, connector_jars())), "spark.sql.session.timeZone": "UTC"}
    options = None
    if given.options is not None:
        options = json.loads(given.options.read_text())
        (folder / "events").mkdir()
        settings |= {
            "spark.log.level": "INFO",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": f"file:{folder / 'events'}",
        }
    app = application(folder, given.servers, given.topic, per_batch, given.out, options)
    spark = new_session(NAME, settings=settings)

    def note(told: Progress) -> None:
        with (folder / "progress").open("a") as file:
            file.write(json.dumps({"task": told.task, "messages": told.messages, "late": told.late}) + "\n")

    if options is not None:
        refused(app, given.servers, given.topic, options, spark)
    if not (given.to_the_end or given.skew):
        app.start(spark, on_progress=note).await_termination()
        return
    app.run(spark, drain=True, on_progress=note)
    if given.skew:
        store = str(folder / "store")
        counted = {task.task_name: len(read_state(store, NAME, task)) for task in (Fast(), BySpark())}
        counted["spark"] = spark_counts(spark, folder, given.servers, given.topic, per_batch)
        print(json.dumps(counted))


if __name__ == "__main__":
    main()
