"""A driver that follows the state of a store by the data source, and writes each micro-batch to a file of its own.

    python -m tests.spark.follower FOLDER [--once | --connect]

FOLDER/store has the store, FOLDER/checkpoint the query's own, FOLDER/batches the rows of each micro-batch. With --once it ends
after what is there. With --connect it reads, and follows once, by Spark Connect, and prints as JSON what it found.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import core
from tests.spark.sessions import new_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OPTIONS = {"application": "app", "task": "Kept"}


def follow(folder: Path, once: bool) -> None:
    spark = new_session("follower")

    def write(frame: DataFrame, number: int) -> None:
        rows = [{**row.asDict(), "_clock": core.micros(row["_clock"].astimezone())} for row in frame.collect()]
        part = folder / "batches" / f"{number}.part"
        part.write_text(json.dumps(rows))
        part.rename(part.with_suffix(".json"))

    changes = spark.readStream.format("persistent-state").options(**OPTIONS, changes="true").load(str(folder / "store"))
    stream = changes.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": "100 milliseconds"}
    stream.trigger(**trigger).start().awaitTermination()


def connect(folder: Path) -> None:
    from pyspark.sql import SparkSession

    spark: SparkSession = SparkSession.builder.remote("local[2]").getOrCreate()  # type: ignore[attr-defined]
    store = str(folder / "store")

    def rows(frame: DataFrame) -> list[list[Any]]:
        return sorted([*row][:2] + [*row][2:3] for row in frame.collect())

    source = spark.read.format("persistent-state").options(**OPTIONS)
    found = {"batch": rows(source.load(store))}
    named = f"path '{store}', application 'app', task 'Kept'"
    spark.sql(f"CREATE TEMPORARY VIEW kept USING `persistent-state` OPTIONS ({named})").collect()
    found["view"] = rows(spark.sql("SELECT * FROM kept"))
    found["key"] = rows(source.option("key", json.dumps({"key": found["batch"][0][0]})).load(store))
    changes = spark.readStream.format("persistent-state").options(**OPTIONS, changes="true").load(store)
    stream = changes.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    stream.trigger(availableNow=True).start(str(folder / "copy")).awaitTermination()
    found["stream"] = rows(spark.read.parquet(str(folder / "copy")))
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if "--connect" in sys.argv:
        connect(place)
    else:
        follow(place, "--once" in sys.argv)
    # The JVM may have threads that do not end.
    os._exit(0)
