"""Kafka on a real Spark: both ways to read it under kills of drivers and of the broker, and partitions far apart in time."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
import pytest
from confluent_kafka import Producer
from packaging.version import Version

from examples.broker import Broker, connector_jars
from persistent_state import (
    Application,
    InvalidInputError,
    KafkaSource,
    StoreUnavailableError,
    open_store,
    read_state,
)
from persistent_state.kafka import Json, subscription
from persistent_state.kafka.source import DELETED
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from persistent_state.store.verify import verify
from tests.kafka.security import client_options, secured_broker
from tests.kafka.topics import deleted_before, grow, new_topic, offsets_written, producer
from tests.soak import soak_or
from tests.spark.conftest import Launch
from tests.spark.kafka_driver import NAME, BySpark, Fast
from tests.spark.test_cluster import telling
from tests.store.servers import needed
from tests.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kafka

KILLS = soak_or(ci=2, soak=10)
START = 1_700_000_000_000
HOUR, MINUTE = 3_600_000, 60_000
DRIVER = ("-m", "tests.spark.kafka_driver")


@pytest.fixture(scope="module", autouse=True)
def _connector() -> None:
    with needed():
        connector_jars()


class Shop:
    """Writes to a topic of which partition 0 is an hour behind the others, by transactions of which some are aborted."""

    def __init__(self, broker: Broker, topic: str, partitions: int) -> None:
        self.topic, self.partitions = topic, partitions
        self.chance = random.Random(7)
        self.wanted: Counter[int] = Counter()
        self.rounds = 0
        options = {"bootstrap.servers": broker.address, "transactional.id": topic, "log_level": 0}
        options["topic.metadata.refresh.interval.ms"] = 1000
        self.producer = Producer(options)
        self.producer.init_transactions(60)

    def sell(self, count: int = 150) -> None:
        """A minute's records of every partition, out of order by up to eight minutes."""
        kept: Counter[int] = Counter()
        is_kept = self.chance.random() < 0.8
        self.producer.begin_transaction()
        for _ in range(count):
            partition = self.chance.randrange(self.partitions)
            k, n = self.chance.randrange(20), self.chance.randrange(100)
            now = START + self.rounds * MINUTE - (HOUR if partition == 0 else 0)
            when = now + self.chance.randrange(-8 * MINUTE, 1)
            self.producer.produce(self.topic, json.dumps({"k": k, "n": n}), partition=partition, timestamp=when)
            kept[k] += n
        self.producer.flush(60)
        if is_kept:
            self.producer.commit_transaction(60)
            self.wanted += kept
        else:
            self.producer.abort_transaction(60)
        self.rounds += 1


@pytest.mark.soak
@pytest.mark.one_in(4)
def test_drivers_and_brokers_are_killed_and_each_record_counts_once_in_both_ways(
    broker: Broker, launch: Launch, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    topic = new_topic(broker, 3)
    shop = Shop(broker, topic, 3)
    progress = tmp_path / "progress"
    chance = random.Random(3)

    def commits() -> int:
        return len(progress.read_text().splitlines()) if progress.exists() else 0

    for kill in range(KILLS):
        driver = launch(*DRIVER, str(tmp_path), broker.address, topic, folder=tmp_path)
        begun, wanted = commits(), chance.randint(2, 8)
        # Until it is well on its way there is always something to read.
        while commits() < begun + wanted:
            assert driver.poll() is None, (tmp_path / "log").read_text()[-3000:]
            shop.sell()
            time.sleep(0.2)
        if kill == 1:
            grow(broker, topic, 4)
            # What has written to the topic must come to know of it.
            until(lambda: len(shop.producer.list_topics(topic, 10).topics[topic].partitions) == 4, "the partitions")
            shop.partitions = 4
        if kill == 0:
            broker.kill()
            time.sleep(0.5)
            broker.start()
            shop.sell()
            begun = commits()
            until(lambda begun=begun: commits() > begun + 1, "commits", driver, tmp_path / "log")
        driver.kill()
        driver.wait()
        shop.sell()
    end = launch(*DRIVER, str(tmp_path), broker.address, topic, "--to-the-end", folder=tmp_path)
    assert end.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-3000:]
    store = str(tmp_path / "store")
    assert verify(store).problems == ()
    for task in (Fast(), BySpark()):
        state = {row["k"]: row["value"] for row in read_state(store, NAME, task).to_pylist()}
        assert state == dict(shop.wanted)
        assert open_store(store).application(NAME).late_rows(task.task_name) == []
    record_property(
        "told", f"{KILLS} drivers and a broker killed, {shop.rounds} transactions of Kafka read by both ways"
    )


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_nothing_is_lost_of_a_partition_an_hour_behind_and_sparks_watermark_drops_it(
    broker: Broker, launch: Launch, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    topic = new_topic(broker, 2)
    writer = producer(broker)
    records = 1000
    for i in range(records):
        when = START + i * 1000 - (HOUR if i % 2 else 0)
        writer.produce(topic, json.dumps({"k": i, "n": 1}), partition=i % 2, timestamp=when)
    writer.flush()
    driver = launch(*DRIVER, str(tmp_path), broker.address, topic, "--skew", folder=tmp_path)
    assert driver.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-3000:]
    counted = json.loads((tmp_path / "out").read_text().splitlines()[-1])
    # Its first micro-batches have no watermark yet.
    assert counted.pop("spark") < records * 0.8
    assert counted == {"Fast": records, "BySpark": records}
    late = [open_store(str(tmp_path / "store")).application(NAME).late_rows(task) for task in ("Fast", "BySpark")]
    assert late == [[], []]
    record_property("told", f"a partition an hour behind: {records} records, and Spark's watermark keeps fewer")


def test_offsets_that_are_gone_stop_a_start_before_it_changes_anything(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic, store = new_topic(broker, 1), str(tmp_path / "store")
    log = Log(open_files(store), NAME)

    def application(**options: bool) -> Application:
        columns = pa.schema([("k", pa.int64()), ("n", pa.int64())])
        source = KafkaSource(topic, broker.address, value=Json(columns), max_offsets_per_batch=30, **options)
        return Application(NAME, store, checkpoint_interval="10 seconds").add(Fast(), source)

    writer = producer(broker)
    for n in range(100):
        writer.produce(topic, json.dumps({"k": 0, "n": n}), timestamp=START + n * 1000)
    writer.flush()
    application().run(spark)
    before = log.newest()
    assert before is not None
    # The clock is at 90 seconds: what is replayed begins there.
    deleted_before(broker, topic, 0, 95)
    with pytest.raises(InvalidInputError, match=rf"topic='{topic}' partition=0 .* has lost offsets 90 to 94"):
        application().run(spark)
    assert log.newest() == before
    application(fail_on_data_loss=False).run(spark, drain=True)
    (row,) = read_state(store, NAME, Fast()).to_pylist()
    assert row["value"] == sum(range(90)) + sum(range(95, 100))
    (lost,) = (row for rows in open_store(store).application(NAME).late_rows("Fast") for row in rows.to_pylist())
    assert (lost["reason"], lost["position"]) == (DELETED, 90)
    assert json.loads(lost["record"]) == {"topic": topic, "partition": 0, "from": 90, "first": 95}


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_drain_leaves_messages_of_an_open_transaction_to_the_next_run(
    spark: SparkSession,
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(subscription, "SETTLING", 1.0)
    topic, store = new_topic(broker, 2), str(tmp_path / "store")
    hanging = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    hanging.init_transactions()
    writer = producer(broker)

    def write(client: Producer, partition: int, first: int) -> None:
        for n in range(first, first + 50):
            value = json.dumps({"k": 0, "n": 1})
            client.produce(topic, value, partition=partition, timestamp=START + n * 1000)
        assert client.flush(30) == 0

    def drained() -> int:
        columns = pa.schema([("k", pa.int64()), ("n", pa.int64())])
        app = Application(NAME, store, checkpoint_interval="10 seconds", idle_after="1 second")
        app.add(Fast(), KafkaSource(topic, broker.address, value=Json(columns))).run(spark, drain=True)
        return sum(row["value"] for row in read_state(store, NAME, Fast()).to_pylist())

    write(writer, 0, 0)
    write(writer, 1, 0)
    assert drained() == 100
    hanging.begin_transaction()
    write(hanging, 1, 100)
    write(writer, 0, 200)
    # Twice: the second time there is nothing that can be read.
    for _ in range(2):
        caplog.clear()
        assert drained() == 100
        assert f"task=Fast: messages of '{topic}-1' for" in caplog.text
    hanging.commit_transaction(30)
    caplog.clear()
    assert drained() == 200
    assert "open transaction" not in caplog.text
    assert open_store(store).application(NAME).late_rows("Fast") == []


def test_a_first_drain_of_a_few_records_is_refused_if_none_has_the_key(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    topic, store = new_topic(broker, 2), str(tmp_path / "store")
    client = producer(broker)
    columns = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    app = Application(NAME, store, checkpoint_interval="10 seconds")
    app.add(Fast(), KafkaSource(topic, broker.address, value=Json(columns)))

    def write(value: dict[str, int]) -> None:
        for partition in range(2):
            client.produce(topic, json.dumps(value), partition=partition, timestamp=START)
        assert client.flush(30) == 0

    write({"key": 1, "n": 1})
    for _ in range(2):
        with pytest.raises(
            InvalidInputError, match="task=Fast: none of the first 2 rows has the column 'k', without which"
        ):
            app.run(spark, drain=True)
        assert open_store(store).application(NAME).clocks() == []
    write({"k": 1, "n": 1})
    app.run(spark, drain=True)
    # Beside records that have the column, those without it count.
    assert {row["k"]: row["value"] for row in read_state(store, NAME, Fast()).to_pylist()} == {None: 2, 1: 2}


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_tls_and_sasl_reach_every_client_and_no_file_tells_the_password(
    launch: Launch, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    apart, folder = tmp_path_factory.mktemp("secured"), tmp_path / "run"
    folder.mkdir()
    password = f"password-{uuid.uuid4().hex}"
    with needed(), secured_broker(apart / "broker", password) as broker:
        for topic in ("in", "out"):
            broker.make(topic, 1)
        writer = producer(broker)
        for n in range(100):
            writer.produce("in", json.dumps({"k": n % 4, "n": n}), timestamp=START + n * 1000)
        writer.flush()
        options = client_options(apart / "broker", password)
        (apart / "options.json").write_text(json.dumps(options))
        secured = f"127.0.0.1:{broker.ports[2]}"
        told = ("--to-the-end", "--out", "out", "--options", str(apart / "options.json"))
        driver = launch(*DRIVER, str(folder), secured, "in", *told, folder=folder)
        assert driver.wait(PATIENCE) == 0, (folder / "log").read_text()[-3000:]
        source = KafkaSource("in", secured, options={**options, "sasl.password": f"no {password}"})
        with pytest.raises((InvalidInputError, StoreUnavailableError)) as refused:
            source.open([], {})
        assert password not in f"{refused.value!r} {refused.value.__cause__!r} {source!r}"
        assert offsets_written(broker, "out") > 0
    store = str(folder / "store")
    for task in (Fast(), BySpark()):
        state = {row["k"]: row["value"] for row in read_state(store, NAME, task).to_pylist()}
        assert state == {k: sum(range(k, 100, 4)) for k in range(4)}
    assert b"SparkListenerTaskEnd" in next((folder / "events").rglob("events_*")).read_bytes()
    assert "raised AnalysisException" in (folder / "out").read_text()
    if Version(pyspark.__version__) >= Version("4.2"):  # Before, Spark hides no options of a plan that it prints.
        assert telling(password, folder) == []
