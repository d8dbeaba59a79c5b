"""Channels that are behind, silent, late to appear or at their end: nothing within the delay is lost, on a run or a replay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from monoids import Count, List
from persistent_state import Application, DataFrameSource, NonWindowState, PersistentTask, open_store, read_state
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from tests.spark.files import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from persistent_state.run.progress import Progress

SECOND, HOUR = 1_000_000, 3_600_000_000
START = 1_700_000_040 * SECOND
DELAY = 30 * SECOND
SCHEMA = pa.schema(
    [("number", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("device", pa.string()), ("one", pa.int64())]
)
Row = dict[str, Any]

# By file: which devices deliver, and how far behind the first ones.
STEADY = {"a": 0, "b": 5 * SECOND, "an hour behind": HOUR}
DELIVERIES = [
    {**STEADY, "silent": 10 * SECOND},
    STEADY,
    {**STEADY, "new": HOUR // 2},
    {**STEADY, "new": HOUR // 2, "silent": 10 * SECOND},
]
ENDS_AFTER = 12
"""How many messages the device an hour behind has, where it ends."""


def files() -> list[list[Row]]:
    found: list[list[Row]] = []
    number = 0
    for file, devices in enumerate(DELIVERIES):
        rows = []
        for place in range(6):
            for device, behind in devices.items():
                # The silent one comes back with what it had to say in the meantime.
                since = 60 if device == "silent" and file == 3 else 60 * file
                # As far behind the one before it as the delay allows.
                ts = START + (since + 10 * place) * SECOND - (place % 2) * DELAY - behind
                rows.append({"number": number, "ts": ts, "device": device, "one": 1})
                number += 1
        found.append(rows)
    return found


class Journal(PersistentTask):
    """Each device's messages in their order."""

    key = "device"

    def persistent_state(self) -> NonWindowState[list[int]]:
        return NonWindowState(List(pa.int64()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(range(batch.num_rows + 1), pa.int32()), batch["number"])


class Tally(PersistentTask):
    """How many messages of each device there were."""

    key = "device"
    value = "one"

    def __init__(self, name: str) -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Count())


@dataclass
class Devices(TimeReplayableSource):
    """Rows of devices that are known from the start, each a channel; those with all their `total` rows have ended."""

    rows: Mapping[str, Sequence[Row]]
    total: Mapping[str, int]
    timestamp: str = "ts"
    channel: str | None = None
    known: dict[str, int] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        self.known = dict(known)

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        ends = {device: min(len(rows), start.get(device, 0) + 9) for device, rows in self.rows.items()}
        return Reach(ends, {device: end == self.total[device] for device, end in ends.items()})

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        return [(device, start.get(device, 0), stop) for device, stop in end.items() if start.get(device, 0) < stop]

    def read(self, split: Any) -> Iterator[Chunk]:
        device, begin, end = split
        rows = pa.RecordBatch.from_pylist(
            [{**row, "ts": pa.scalar(row["ts"], SCHEMA.field("ts").type)} for row in self.rows[device][begin:end]],
            SCHEMA,
        )
        yield Chunk(device, begin, rows)


def devices(sent: Sequence[Sequence[Row]]) -> Devices:
    """The devices with what they have sent so far, of all that they ever will."""
    every = [row for rows in files() for row in rows]
    total = Counter(row["device"] for row in every)
    by_device = {name: [row for rows in sent for row in rows if row["device"] == name] for name in total}
    by_device["an hour behind"] = by_device["an hour behind"][:ENDS_AFTER]
    return Devices(by_device, {**total, "an hour behind": ENDS_AFTER})


def counted_by_spark(spark: SparkSession, rows: DataFrame, checkpoints: Path) -> Counter[str]:
    """Messages by device as Spark's own windows behind a watermark of the same delay count them."""
    from pyspark.sql import functions as F

    found: dict[Any, int] = {}

    def keep(counts: DataFrame, batch: int) -> None:
        found.update({(row["window"], row["device"]): row["count"] for row in counts.collect()})

    windows = rows.withWatermark("ts", "30 seconds").groupBy(F.window("ts", "1 minute"), "device").count()
    writer = windows.writeStream.outputMode("update").foreachBatch(keep).trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(checkpoints)).start().awaitTermination(120)
    total: Counter[str] = Counter()
    for (_, device), count in found.items():
        total[device] += count
    return total


def test_nothing_within_the_delay_is_lost_where_sparks_watermark_drops_what_one_channel_sends(
    spark: SparkSession, tmp_path: Path
) -> None:
    from persistent_state.engine.spark.versions import spark_types

    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    folder = tmp_path / "in"
    sent = files()

    def stream() -> DataFrame:
        reader = session.readStream.schema(spark_types(SCHEMA)).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(folder))

    def run(files: int, shards: int) -> tuple[Application, list[Progress]]:
        for number in range(files):
            if not (folder / f"{number:04d}.parquet").exists():
                write(folder, number, sent[number], SCHEMA)
        app = Application(
            "skew", str(tmp_path / "store"), checkpoint_interval="1 minute", allowed_delay="30 seconds", shards=shards
        )
        app.add(Journal(), DataFrameSource(stream(), "ts", "device", ["new"], position="number"))
        app.add(Tally("Tally"), DataFrameSource(stream(), "ts", "device", ["new"]))
        app.add(Tally("Ending"), devices(sent[:files]))
        told: list[Progress] = []
        app.run(session, drain=files == len(sent), on_progress=told.append)
        return app, told

    app, told = run(3, shards=1)
    for name in ("Journal", "Tally"):
        # The one that has yet to appear holds the clock.
        assert [p.clock == BEGINNING for p in told if p.task == name] == [True, True, False]
    # The one that ends holds it until then, and the next goes on from the others.
    behind = max(row["ts"] for row in devices(sent).rows["an hour behind"])
    first, *_, last = (p.clock for p in told if p.task == "Ending")
    assert first <= behind < behind + HOUR // 4 < last
    app, told = run(4, shards=2)

    every = [row for rows in sent for row in rows]
    journal: dict[str, list[int]] = {}
    for row in sorted(every, key=lambda row: (row["ts"], row["number"])):
        journal.setdefault(row["device"], []).append(row["number"])
    counts = Counter(row["device"] for row in every)
    for task, wanted in (
        (Journal(), journal),
        (Tally("Tally"), counts),
        (Tally("Ending"), {**counts, "an hour behind": ENDS_AFTER}),
    ):
        table = read_state(app.store, app.name, task)
        assert {row["device"]: row["value"] for row in table.to_pylist()} == wanted, task.task_name
        assert open_store(app.store).application(app.name).late_rows(task.task_name) == []

    by_spark = counted_by_spark(session, stream(), tmp_path / "checkpoints")
    lost = counts - by_spark
    assert lost["an hour behind"] >= 6
    assert lost["new"] >= 6
    assert lost["a"] == lost["b"] == 0
