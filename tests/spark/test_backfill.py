"""History in files and a topic of Kafka from a bound on, on a real Spark: each message counts once, whoever is killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from examples.broker import Broker
from persistent_state import read_late_rows, read_state
from persistent_state.store.late_rows import OUTSIDE
from persistent_state.store.verify import verify
from tests.kafka.topics import new_topic, producer
from tests.spark.backfill_driver import NAME, TIMED, Sums
from tests.spark.conftest import Launch
from tests.spark.test_failures import wait_for

START = 1_700_000_000
SECONDS, BOUND = 600, START + 300
"""The length of what there is, and the second at which Kafka takes over."""


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
    for until in (bound - 150_000_000, bound):
        run = launch(*driver, broker.address, topic, str(bound), folder=tmp_path)
        wait_for(lambda until=until: clock() >= until, lambda run=run: run.poll() is None)
        run.kill()
        run.wait()
    end = launch(*driver, broker.address, topic, str(bound), "--to-the-end", folder=tmp_path)
    assert end.wait(timeout=240) == 0, (tmp_path / "log").read_text()[-3000:]
    store = str(tmp_path / "store")
    assert verify(store).problems == ()
    state = {row["k"]: row["value"] for row in read_state(store, NAME, Sums()).to_pylist()}
    assert state == dict(wanted)
    assert read_late_rows(store, NAME, "Sums") == []
    # Kafka's index tells where its second half begins, so that only history has rows beyond the bound.
    assert commits()[-1]["reasons"] == {OUTSIDE: 60}
    record_property(
        "told", f"{len(wanted)} sums of {SECONDS} messages, two drivers killed on the way from files to Kafka"
    )
