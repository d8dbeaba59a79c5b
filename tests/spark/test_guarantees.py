"""At least once and at most once on a real Spark: under kills of drivers, with sinks that fail, and from a DataFrame."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persistent_state import Application, DataFrameSource, FileSource, open_store
from persistent_state.engine.spark.versions import spark_types
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from persistent_state.store.verify import verify
from tests.spark.conftest import Launch
from tests.spark.sessions import Jvm
from tests.spark.stream import LATE, NAME, SCHEMA, Balance, Journal, Stream, aside, state
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KILLS = (("commit create log 1", "4"), ("start create log 1", "1"), ("commit create log 1", "2"))
"""Steps of drivers, one start after the other, before which they are killed, and from which call of that on."""

DELIVERIES = ("at-least-once", "at-most-once")


def held(folder: Path) -> Counter[int]:
    """How often each message is in the journals."""
    return Counter(id for ids in state(folder, Journal()).values() for id in ids)


@pytest.mark.soak
@pytest.mark.one_in(2)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_killed_drivers_count_messages_as_often_as_their_delivery_says(
    launch: Launch, jvms: Sequence[Jvm], tmp_path: Path, delivery: str
) -> None:
    sent = Stream(tmp_path / "stream", seed=17)
    for link, point in enumerate([*KILLS, None]):
        sent.grow(6)
        told = [str(tmp_path), "--delivery", delivery, "--shards", str(link % 3 + 1)]
        told += ["--interval", ("10 seconds", "15 seconds")[link % 2]]
        told += ["--die", point[0], "--from-call", point[1]] if point else []
        driver = launch("-m", "tests.spark.victim", *told, folder=tmp_path, **jvms[link % 2].env)
        status = driver.wait(PATIENCE)
        assert status == (-signal.SIGKILL if point else 0), (tmp_path / "log").read_text()[-4000:]
    check(tmp_path, sent, delivery)


def check(folder: Path, sent: Stream, delivery: str) -> None:
    """After a close no message is missing and some are there twice, or none is there twice and some are missing."""
    assert verify(str(folder / "store")).problems == ()
    found, rows = held(folder), aside(folder, Journal()).ids
    bad = {m.id: reason for m in sent.sent if (reason := m.problem(Journal())) is not None}
    good = {m.id for m in sent.sent} - bad.keys()
    asides = Counter(id for reason, ids in rows.items() for id in ids if reason != LATE)
    assert found.keys() <= good
    if delivery == "at-least-once":
        assert rows.get(LATE, []) == []
        assert found.keys() == good
        assert max(found.values()) > 1
        assert asides == Counter(bad.keys())
    else:
        assert max(found.values()) == 1
        assert not found.keys() & {*rows.get(LATE, [])}
        assert good - found.keys() - {*rows.get(LATE, [])}
        assert asides <= Counter(bad.keys())


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_dataframe_is_replayed_or_read_once(spark: SparkSession, tmp_path: Path, delivery: str) -> None:
    sent = Stream(tmp_path / "stream", seed=4)

    def opened(spark: SparkSession, clock: int | None) -> DataFrame:
        rows = spark.readStream.schema(spark_types(SCHEMA)).option("maxFilesPerTrigger", 2)
        return rows.parquet(str(tmp_path / "stream"))

    for closes in (False, True):
        sent.grow(4)
        for number, file in enumerate(sorted(sent.folder.iterdir())):
            # Spark reads files by their times, and these have positions that rise.
            os.utime(file, (number, number))
        app = Application(
            NAME,
            str(tmp_path / "store"),
            checkpoint_interval="10 seconds",
            allowed_delay="30 seconds",
            shards=1,
            delivery=delivery,
        )
        app.add(Journal(), DataFrameSource(opened, timestamp="ts", position="id"))
        app.run(spark, drain=closes)
    found, rows = held(tmp_path), aside(tmp_path, Journal()).ids
    good = {m.id for m in sent.sent if m.problem(Journal()) is None}
    assert {*found, *rows.get(LATE, [])} == good
    # Spark does not say beforehand how far it reads: what is not committed is read again, and what is, is told apart.
    assert (max(found.values()) > 1) == (delivery == "at-least-once")


def test_at_most_once_a_sink_that_fails_is_not_given_the_clock_again(spark: SparkSession, tmp_path: Path) -> None:
    Stream(tmp_path / "stream", seed=5).grow(4)
    given: list[int] = []

    def sink(values: DataFrame, clock: int) -> None:
        given.append(clock)
        if len(given) == 1:
            raise OSError("not now")

    app = Application(
        NAME,
        str(tmp_path / "store"),
        checkpoint_interval="10 seconds",
        allowed_delay="30 seconds",
        shards=1,
        delivery="at-most-once",
    )
    app.add(Journal(), source(tmp_path, 1), sink)
    app.run(spark, drain=True)
    assert given == open_store(str(tmp_path / "store")).application(NAME).clocks()


def test_at_least_once_values_do_not_wait_for_the_global_clock(spark: SparkSession, tmp_path: Path) -> None:
    Stream(tmp_path / "stream", seed=6).grow(8)
    log, ahead = Log(open_files(str(tmp_path / "store")), NAME), []

    def sink(values: DataFrame, clock: int) -> None:
        newest = log.newest()
        assert newest is not None
        ahead.append(clock > newest.clock)

    app = Application(
        NAME,
        str(tmp_path / "store"),
        checkpoint_interval="10 seconds",
        allowed_delay="30 seconds",
        shards=1,
        delivery="at-least-once",
    )
    app.add(Journal(), source(tmp_path, 8), sink).add(Balance(), source(tmp_path, 1))
    app.run(spark, drain=True)
    assert {*ahead} == {True, False}


def source(folder: Path, files: int) -> FileSource:
    return FileSource(str(folder / "stream"), timestamp="ts", schema=SCHEMA, max_files_per_batch=files)
