"""History in files, and a topic of Kafka or other files from a bound on, on a real Spark: each message counts once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples.broker import Broker
from persistent_state import Application, AsOfJoin, Emitted, FileSource, ParquetSink, open_store, read_state
from persistent_state.store.late_rows import OUTSIDE
from persistent_state.store.verify import verify
from tests.core import micros, us
from tests.kafka.topics import new_topic, producer
from tests.protocol.test_backfill import Row, Visits, visits
from tests.protocol.test_bounds import SCHEMA
from tests.spark.backfill_driver import NAME, TIMED, Sums
from tests.spark.conftest import Launch
from tests.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = 1_700_000_000
SECONDS, BOUND = 600, START + 300
"""The length of what there is, and the second at which Kafka takes over."""


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_a_driver_that_dies_while_kafka_takes_over_from_history_counts_each_message_once(
    broker: Broker, launch: Launch, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    topic, bound = new_topic(broker, 2), BOUND * 1_000_000
    # Both have what is around the bound.
    archive, wanted = tmp_path / "archive", Counter[int]()
    archive.mkdir()
    seconds = range(START, START + SECONDS)
    for number, first in enumerate(range(0, 360, 20)):
        some = seconds[first : first + 20]
        times = pa.array([second * 1_000_000 for second in some]).cast(pa.timestamp("us", "UTC"))
        table = pa.table([[s % 7 for s in some], [1 + s % 50 for s in some], times], schema=TIMED)
        pq.write_table(table, archive / f"{number:03d}.parquet")
    writer = producer(broker)
    for second in seconds[240:]:
        row = {"k": second % 7, "n": 1 + second % 50}
        writer.produce(topic, json.dumps(row), partition=second % 2, timestamp=second * 1000)
    writer.flush()
    for second in seconds:
        wanted[second % 7] += 1 + second % 50
    progress, driver = tmp_path / "progress", ("-m", "tests.spark.backfill_driver", str(tmp_path))

    def commits() -> list[dict[str, Any]]:
        return list(map(json.loads, progress.read_text().splitlines())) if progress.exists() else []

    def clock() -> int:
        return max((each["clock"] or 0 for each in commits()), default=0)

    # In the middle of history, and when the clock has just come to the bound.
    for moment in (bound - 150_000_000, bound):
        run = launch(*driver, broker.address, topic, str(bound), folder=tmp_path)
        until(lambda moment=moment: clock() >= moment, "the clock", run, tmp_path / "log")
        run.kill()
        run.wait()
    end = launch(*driver, broker.address, topic, str(bound), "--to-the-end", folder=tmp_path)
    assert end.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-3000:]
    store = str(tmp_path / "store")
    assert verify(store).problems == ()
    state = {row["k"]: row["value"] for row in read_state(store, NAME, Sums()).to_pylist()}
    assert state == dict(wanted)
    assert open_store(store).application(NAME).late_rows("Sums") == []
    # Kafka's index tells where its second half begins, so that only history has rows beyond the bound.
    assert commits()[-1]["reasons"] == {OUTSIDE: 60}
    record_property(
        "told", f"{len(wanted)} sums of {SECONDS} messages, two drivers killed on the way from files to Kafka"
    )


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_task_in_order_and_a_join_go_on_from_history_as_if_all_had_come_by_one_input(
    spark: SparkSession, tmp_path: Path
) -> None:
    bound, live = 100, [(90 + 4 * number, f"l{number}", "ab"[number % 2]) for number in range(24)]
    history = [(5 * number, f"h{number}", "abb"[number % 3]) for number in range(24)]
    trades = [(7 * number, f"t{number}", "ab"[number % 2]) for number in range(26)]

    def let_in(folder: str, rows: Sequence[Row]) -> None:
        (tmp_path / folder).mkdir(exist_ok=True)
        for first in range(0, len(rows), 4):
            lines = "".join(
                json.dumps(dict(zip(SCHEMA.names, row, strict=True))) + "\n" for row in rows[first : first + 4]
            )
            (tmp_path / folder / f"{rows[first][0]:04d}.json").write_text(lines)

    def source(folder: str, finite: bool = False) -> FileSource:
        files = {"timestamp": "ts", "timestamp_unit": "us", "schema": SCHEMA, "max_files_per_batch": 2}
        return FileSource(tmp_path / folder, **files, order_by="name", finite=finite)

    def application() -> Application:
        app = Application("visits", str(tmp_path / "store"), checkpoint_interval=us(10), shards=2)
        inputs = {"history": source("history", finite=True).below(bound), "": source("live").from_(bound)}
        app.add(Visits(), inputs, ParquetSink(tmp_path / "visits"))
        others = {"trades": source("trades"), "visits": Emitted("Visits")}
        return app.add(AsOfJoin("trades", "visits", key="c"), others, ParquetSink(tmp_path / "joined"))

    # The join holds the clock below the bound.
    for name, rows in (("history", history), ("live", live[:4]), ("trades", trades[:12])):
        let_in(name, rows)
    first = application().start(spark)
    until(lambda: (first.clock or 0) >= 40, "the clock", lambda: first.is_active)
    first.stop()
    assert first.clock is not None
    assert first.clock < bound
    let_in("trades", trades[12:])
    application().run(spark)
    let_in("live", live[4:])
    application().run(spark, drain=True)
    store = str(tmp_path / "store")
    assert verify(store).problems == ()
    end = open_store(store).application("visits").clocks()[-1]
    own = [row for row in history if row[0] < bound] + [row for row in live if row[0] >= bound]
    _, said = visits(own, end)

    def given(table: str, *names: str) -> list[Any]:
        rows = ParquetSink(tmp_path / table).dataset().to_table().to_pylist()
        return sorted((micros(row["timestamp"]), row["c"], *(row[name] for name in names)) for row in rows)

    assert given("visits", "said") == sorted(said)
    before = {(time, key): [what for at, of, what in said if of == key and at <= time] for time, _, key in trades}
    assert given("joined", "name", "said") == sorted(
        (time, key, name, before[time, key][-1] if before[time, key] else None) for time, name, key in trades
    )
