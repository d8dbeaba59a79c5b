"""The Python of README and of pages of docs runs as it stands, from the first block to the last, to what they say."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persistent_state import Message, run_local
from tests import page_code

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CLICKS = pa.schema(
    [("ts", pa.timestamp("us", "UTC")), ("user", pa.string()), ("action", pa.string()), ("price", pa.int64())]
)


def run_code(page: str) -> tuple[str, dict[str, Any]]:
    """Run the Python of a page; its text, and the names that are there then."""
    text, names = page_code.text_of(page), dict[str, Any]()
    assert page_code.run(text, names) >= 2
    return text, names


def test_the_code_of_readme_gives_what_readme_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, names = run_code("README.md")
    promised = re.findall(r"^\| (\w+) \| (\d+) \|$", text, flags=re.MULTILINE)
    assert len(promised) == 4
    for table in (names["counts"], names["ParquetSink"]("counts/").latest()):
        assert sorted((row["word"], str(row["value"])) for row in table.to_pylist()) == promised


@pytest.mark.parametrize(
    "page", ["first-task", "files", "write-a-source", "delivery", "pipelines", "joins", "ordered", "blue-green"]
)
def test_the_code_of_a_page_gives_what_the_page_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    monkeypatch.chdir(tmp_path)
    run_code(f"docs/{page}.md")


class OnSpark:
    """The rule of the guide as it is written there for Spark, on messages that come in these micro-batches."""

    def __init__(self, spark: SparkSession, rule: Any, folder: Path) -> None:
        self.spark, self.rule, self.folder, self.runs = spark.newSession(), rule, folder, 0
        self.spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        self.spark.conf.set("spark.sql.shuffle.partitions", "1")

    def emitted(self, batches: Sequence[Sequence[Message]]) -> tuple[list[tuple[Any, ...]], int]:
        """Return the rows that are emitted, in their order, and how many rows Spark has dropped as late."""
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir()
        for number, batch in enumerate(batches):
            rows = [{"ts": message.timestamp, **message} for message in batch]
            file = folder / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, CLICKS), file)
            # Spark takes the oldest file first.
            os.utime(file, (10**9 + number, 10**9 + number))
        clicks = self.spark.readStream.schema("ts timestamp, user string, action string, price long")
        made = self.rule(clicks.option("maxFilesPerTrigger", 1).parquet(str(folder)))
        found: list[tuple[Any, ...]] = []
        writer = made.writeStream.foreachBatch(lambda rows, batch: found.extend(map(tuple, rows.collect())))
        writer = writer.option("checkpointLocation", str(self.folder / f"checkpoint {self.runs}"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return found, sum(
            each["numRowsDroppedByWatermark"] for of in query.recentProgress for each in of["stateOperators"]
        )


def test_the_rule_of_the_guide_for_spark_depends_on_how_the_stream_is_cut_and_ours_does_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, names = run_code("docs/ordered.md")
    on_spark = OnSpark(spark, names["abandoned_on_spark"], tmp_path)

    def ours(messages: Sequence[Message], batch_size: int) -> list[tuple[Any, ...]]:
        ran = run_local(
            names["Abandoned"](),
            messages,
            batch_size=batch_size,
            checkpoint_interval="10 minutes",
            allowed_delay="5 minutes",
        )
        assert not ran.late
        return [(row["user"], row["items"], row["total"], row["timestamp"] // 1000) for row in ran.emitted]

    in_order, swapped = names["messages"], names["swapped"]
    anns, bobs = ("ann", 2, 42, 1_860_000), ("bob", 1, 20, 1_920_000)
    for messages in (in_order, swapped):
        assert ours(messages, batch_size=1) == ours(messages, batch_size=10) == [anns]
    # In order of arrival the payment comes to a cart that is not there yet.
    assert on_spark.emitted([[message] for message in in_order]) == ([anns], 0)
    assert on_spark.emitted([[message] for message in swapped]) == ([anns, bobs], 0)
    assert on_spark.emitted([swapped]) == ([anns], 0)


def test_spark_drops_late_rows_of_the_guide_and_ours_keeps_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, names = run_code("docs/ordered.md")
    add, pay = names["add"], names["pay"]
    messages = [add(1, 30), add(70, 5), add(2, 20, "bob"), pay(6, "bob")]
    found, dropped = OnSpark(spark, names["abandoned_on_spark"], tmp_path).emitted([[message] for message in messages])
    # The first late row still comes in: it is judged by the watermark of the micro-batch before.
    assert (found, dropped) == ([("ann", 1, 30, 1_860_000), ("bob", 1, 20, 1_920_000)], 1)
    ran = run_local(
        names["Abandoned"](), messages, batch_size=1, checkpoint_interval="10 minutes", allowed_delay="5 minutes"
    )
    assert [row["user"] for row in ran.emitted] == ["ann"]
    assert len(ran.late) == 2
