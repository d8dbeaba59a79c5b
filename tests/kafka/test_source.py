"""The Kafka source on a real broker: each record once however it is cut up, and nothing missed without a word."""

from __future__ import annotations

import json
import logging
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import cloudpickle
import confluent_kafka
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer

from examples.broker import Broker
from persistent_state import (
    InvalidInputError,
    KafkaConnectorSource,
    KafkaSource,
    StoreUnavailableError,
    TaskFailedError,
)
from persistent_state.engine.read import kafka_connector as connector
from persistent_state.event_time.clocks import Settings
from persistent_state.inputs import Inputs
from persistent_state.kafka import Json, Raw, topics
from persistent_state.kafka.source import DELETED, RECREATED
from persistent_state.sources import Chunk
from persistent_state.store.entry import Entry
from tests import core
from tests.engine.read.test_arrow_source import Query
from tests.kafka.security import GUEST, allow, client_options
from tests.kafka.topics import deleted_before, grow, made_anew, new_topic, produce, producer
from tests.run.test_passed import Told, World
from tests.waiting import PATIENCE

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a single broker says is so."""
    monkeypatch.setattr(topics, "PATIENCE", 0.5)


def copied(source: KafkaSource) -> KafkaSource:
    """As it comes to another process."""
    copy: KafkaSource = cloudpickle.loads(cloudpickle.dumps(source))
    return copy


@dataclass
class Reader:
    """Reads a source as an application does: what each micro-batch delivers, with positions and journal as committed."""

    source: KafkaSource
    parts: int = 2
    stays_open: bool = False
    positions: dict[str, int] = field(default_factory=dict)
    journal: list[str] = field(default_factory=list)
    opened: KafkaSource | None = None

    def start(self, back: Mapping[str, int] | None = None) -> Reader:
        """Start again, from the positions that are committed or from others."""
        self.opened = copied(self.source)
        self.opened.open(self.journal, self.positions)
        self.worker = copied(self.source)
        if self.stays_open:
            self.opened.stay_open(3600.0)
            self.worker.stay_open(3600.0)
        self.positions = dict(self.positions if back is None else back)
        return self

    def batch(self, everything: bool = False) -> list[Chunk]:
        """What one micro-batch delivers."""
        assert self.opened is not None, "start comes first"
        reach = self.opened.reach(self.positions, everything)
        splits = self.opened.splits(self.positions, reach.ends, self.parts)
        assert len(splits) <= self.parts
        worker = self.worker if self.stays_open else copied(self.source)
        chunks = [chunk for split in splits for chunk in worker.read(split)]
        for chunk in chunks:
            assert all(
                self.positions.get(chunk.partition, 0) <= p < reach.ends[chunk.partition] for p in chunk.positions
            )
        self.positions, self.channels = dict(reach.ends), reach.channels
        self.journal += reach.journal
        return chunks

    def all(self) -> list[Chunk]:
        """What the micro-batches deliver up to the end."""
        chunks, before = self.batch(), None
        while self.positions != before:
            before = self.positions
            chunks += self.batch()
        return chunks


def numbers(chunks: Sequence[Chunk]) -> list[int]:
    return [n for chunk in chunks for n in chunk.rows.column("n").to_pylist()]


def places(chunks: Sequence[Chunk]) -> Counter[tuple[str, int]]:
    return Counter((chunk.partition, position) for chunk in chunks for position in chunk.positions.tolist())


def bad(chunks: Sequence[Chunk]) -> list[tuple[str, int, str]]:
    return [(chunk.partition, record.position, record.reason) for chunk in chunks for record in chunk.bad]


def originals(chunks: Sequence[Chunk]) -> list[dict[str, Any]]:
    """The bad records as they came."""
    found = []
    for chunk in chunks:
        assert chunk.originals is not None
        found += chunk.originals(np.array([record.position for record in chunk.bad], np.int64)).to_pylist()
    return found


def source(broker: Broker, topics: Any, **options: Any) -> KafkaSource:
    return KafkaSource(topics, broker.address, **{"value": Json(SCHEMA), **options})


@pytest.mark.parametrize(("partitions", "parts", "most"), [(1, 3, 10**6), (3, 2, 97), (5, 2, 10**6), (2, 4, 1)])
def test_each_record_is_read_once_in_its_order_however_it_is_cut_up(
    broker: Broker, partitions: int, parts: int, most: int
) -> None:
    topic, count = new_topic(broker, partitions), 40 if most == 1 else 1500
    produce(broker, topic, range(count), partitions)
    chunks = Reader(source(broker, topic, max_offsets_per_batch=most), parts).start().all()
    assert sorted(numbers(chunks)) == list(range(count))
    assert set(places(chunks).values()) == {1}
    for partition in range(partitions):
        own = [chunk for chunk in chunks if chunk.partition == f"{topic}-{partition}"]
        assert sorted(numbers(own)) == list(range(partition, count, partitions))
        assert all(numbers([chunk]) == sorted(numbers([chunk])) for chunk in own)
        assert all((chunk.positions[1:] > chunk.positions[:-1]).all() for chunk in own)


def test_what_was_read_again_is_the_same(broker: Broker) -> None:
    topic = new_topic(broker, 2)
    produce(broker, topic, range(500), 2)
    reader = Reader(source(broker, topic, max_offsets_per_batch=120)).start()
    first = reader.batch()
    again = reader.start(back={}).batch()
    assert (numbers(first), places(first)) == (numbers(again), places(again))


def test_a_micro_batch_takes_more_of_a_partition_that_holds_more(broker: Broker) -> None:
    topic = new_topic(broker, 2)
    produce(broker, topic, range(900), 1)
    produce(broker, topic, range(100), 1, first=1)
    chunks = Reader(source(broker, topic, max_offsets_per_batch=100)).start().batch()
    assert Counter(partition[-1] for partition, _ in places(chunks)) == {"0": 90, "1": 10}


def test_a_source_that_stays_open_reads_what_is_committed_as_it_comes_and_hears_of_more(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, chance, opened = new_topic(broker, 2), random.Random(3), list[Any]()
    monkeypatch.setattr(
        confluent_kafka, "Consumer", lambda options, make=Consumer: opened.append(options) or make(options)
    )
    writer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    writer.init_transactions()
    reader = Reader(source(broker, topic, max_offsets_per_batch=7), stays_open=True).start()
    wanted: list[int] = []
    read: list[int] = []
    for i in range(60):
        writer.begin_transaction()
        of_transaction = range(10 * i, 10 * i + chance.randint(1, 5))
        for n in of_transaction:
            writer.produce(topic, json.dumps({"n": n}), partition=chance.randrange(2))
        writer.flush()
        is_committed = chance.random() < 0.7
        writer.commit_transaction() if is_committed else writer.abort_transaction()
        wanted += of_transaction if is_committed else ()
        read += numbers(reader.batch() if chance.random() < 0.5 else reader.all())
    end = time.monotonic() + PATIENCE
    while sorted(read) != wanted:
        # A broker shows the end of a transaction a moment later.
        assert time.monotonic() < end, {*wanted} ^ {*read}
        read += numbers(reader.all())
    kept = [options for options in opened if options["statistics.interval.ms"] == 0]
    assert len(kept) <= len(opened) < 20
    assert reader.opened is not None
    news = threading.Thread(target=reader.opened.await_news, args=(3600.0, threading.Event()), daemon=True)
    news.start()
    while news.is_alive():
        assert time.monotonic() < end
        produce(broker, topic, range(2), 2)
        news.join(0.2)
    for each in (reader.opened, reader.worker):
        each.stay_open(0)


def test_several_inputs_wait_until_one_of_them_has_a_record(broker: Broker) -> None:
    names = [new_topic(broker, 2) for _ in range(2)]
    inputs = Inputs({name: KafkaSource(name, broker.address) for name in names})
    inputs.open_each({}, {})
    inputs.stay_open(3600.0)
    positions: Mapping[str, int] = {}
    for place, name in enumerate([*names, *names]):
        positions, stopping, heard = inputs.reach(positions, everything=True).ends, threading.Event(), list[bool]()
        assert not inputs.await_news(0.2, stopping)
        waits = threading.Thread(target=lambda: heard.append(inputs.await_news(3600.0, stopping)))  # noqa: B023
        waits.start()
        produce(broker, name, [place], 1, first=place % 2)
        waits.join(PATIENCE)
        assert heard == [True]
    inputs.stay_open(0)


def test_transactions_are_read_when_and_only_if_they_are_committed(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    writer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    writer.init_transactions()
    chance, wanted = random.Random(5), []
    for i in range(20):
        writer.begin_transaction()
        for _ in range(chance.randint(1, 5)):
            writer.produce(topic, json.dumps({"n": i}))
            if i % 3:
                wanted.append(i)
        # What was not sent yet would not be there to be left out.
        writer.flush()
        writer.commit_transaction() if i % 3 else writer.abort_transaction()
    writer.begin_transaction()
    writer.produce(topic, json.dumps({"n": 100}))
    writer.flush()
    reader = Reader(source(broker, topic, max_offsets_per_batch=7)).start()
    assert sorted(numbers(reader.all())) == wanted
    assert reader.batch() == [], "of an open transaction nothing is read"
    writer.commit_transaction()
    assert numbers(reader.all()) == [100]
    everything = Reader(source(broker, topic, options={"isolation.level": "read_uncommitted"})).start().all()
    assert set(numbers(everything)) == {*range(20), 100}


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_that_hangs_longer_than_idle_after_is_waited_for_and_no_message_of_it_is_late(
    broker: Broker, commits: bool
) -> None:
    topic = new_topic(broker, 2)
    hanging = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    hanging.init_transactions()
    produce(broker, topic, range(4), 2)
    settings = Settings(1_000_000, idle_after=20_000_000, ahead=2**62)
    query = Query(copied(source(broker, topic)), settings)

    def polled() -> Entry:
        # A broker shows the end of a transaction a moment later.
        end = time.monotonic() + 30
        while (entry := query.poll()) is None:
            assert time.monotonic() < end
            time.sleep(0.02)
        return entry

    polled()
    hanging.begin_transaction()
    for n in range(100):
        hanging.produce(topic, json.dumps({"n": n}), partition=1, timestamp=1_700_000_001_000 + n)
    assert hanging.flush(30) == 0
    for minute in range(1, 4):
        # By the time of micro-batches minutes pass.
        query.now += 60_000_000
        produce(broker, topic, [minute], 1, millis=lambda n: 1_700_000_000_000 + n * 60_000)
        entry = polled()
        assert entry.flow_of("Counts").progress.clock == 1_700_000_000_000_000
    hanging.commit_transaction(30) if commits else hanging.abort_transaction(30)
    entry = polled()
    assert entry.late_rows_of("Counts").counts() == {}
    assert core.state_at(entry, query.plan, None) == {(): 107 if commits else 7}
    query.now += 60_000_000
    assert not polled().flow_of("Counts").progress.holds


def test_a_micro_batch_of_great_records_is_bounded_by_their_bytes(broker: Broker) -> None:
    topic = new_topic(broker, 3)
    writer = producer(broker)
    sizes = {0: 200_000, 1: 1_000}
    for partition, size in sizes.items():
        for n in range(40):
            writer.produce(topic, json.dumps({"n": n, "more": "x" * size}), partition=partition)
    assert writer.flush(30) == 0
    opened = copied(source(broker, topic, max_bytes_per_batch=2_000_000))
    opened.open([], {})
    ends = opened.reach({}, everything=False).ends
    read = sum(size * ends[f"{topic}-{partition}"] for partition, size in sizes.items())
    assert 1_500_000 < read < 2_500_000
    # Each record comes once, whatever the sizes are.
    reader = Reader(source(broker, topic, max_bytes_per_batch=2_000_000)).start()
    assert sorted(numbers(reader.all())) == sorted([*range(40), *range(40)])


def test_partitions_and_topics_that_appear_are_read_from_their_beginning(broker: Broker) -> None:
    name = new_topic(broker, 1)
    produce(broker, name, range(10), 1)
    reader = Reader(source(broker, re.compile(f"{name}.*"), starting_offsets="latest")).start()
    assert numbers(reader.all()) == []
    grow(broker, name, 2)
    broker.make(f"{name}-other", 1)
    produce(broker, name, range(100, 110), 1, first=1)
    produce(broker, f"{name}-other", range(200, 210), 1)
    produce(broker, name, range(10, 20), 1)
    assert sorted(numbers(reader.all())) == [*range(10, 20), *range(100, 110), *range(200, 210)]
    assert reader.channels == {f"{name}-0": False, f"{name}-1": False, f"{name}-other-0": False}
    assert numbers(reader.start().all()) == []


def test_a_first_start_begins_where_it_is_told_and_later_ones_where_the_log_says(broker: Broker) -> None:
    topic = new_topic(broker, 2)
    produce(broker, topic, range(100), 2, millis=lambda n: 1_700_000_000_000 + n * 1000)
    when = datetime.fromtimestamp(1_700_000_060, timezone.utc)
    late = Reader(source(broker, topic, starting_offsets="latest")).start()
    timed = Reader(source(broker, topic, starting_offsets=when)).start()
    future = Reader(source(broker, topic, starting_offsets=datetime(2200, 1, 1, tzinfo=timezone.utc))).start()
    assert sorted(numbers(timed.all())) == list(range(60, 100))
    assert numbers(late.all()) == numbers(future.all()) == []
    produce(broker, topic, range(100, 110), 2, millis=lambda n: 1_700_000_000_000)
    for reader in (late, timed, future):
        assert sorted(numbers(reader.start().all())) == list(range(100, 110))
    assert sorted(numbers(timed.start(back={f"{topic}-1": 3}).all()))[:2] == [7, 9], "the log's, not the time's"


def test_a_source_with_a_bound_begins_there_by_the_time_of_records(broker: Broker) -> None:
    topic = new_topic(broker, 2)
    produce(broker, topic, range(100), 2, millis=lambda n: 1_700_000_000_000 + n * 1000)
    bound = 1_700_000_060_000_001
    for starts in (bound, datetime.fromtimestamp(1_700_000_060, timezone.utc), "2023-11-14T22:14:20Z"):
        reader = Reader(source(broker, topic).from_(starts)).start()
        assert sorted(numbers(reader.all())) == list(range(60, 100)), starts
    # By a column nobody knows where the bound is, and the user's own word counts.
    assert len(numbers(Reader(source(broker, topic, timestamp="n").from_(bound)).start().all())) == 100
    assert numbers(Reader(source(broker, topic, starting_offsets="latest").from_(bound)).start().all()) == []


def test_deleted_offsets_stop_it_with_what_is_missing_or_are_counted(broker: Broker) -> None:
    topic = new_topic(broker, 2)
    produce(broker, topic, range(40), 2, millis=lambda n: 1_700_000_000_000 + n * 1000)
    reader = Reader(source(broker, topic)).start()
    reader.all()
    deleted_before(broker, topic, 0, 9)
    words = rf"topic='{topic}' partition=0 .* offsets 5 to 8.* offset 9 .*2023-11-14T22:13:38Z, the end 20"
    for known in ({f"{topic}-0": 5, f"{topic}-1": 20}, {f"{topic}-0": 20, f"{topic}-1": 20}):
        again = Reader(reader.source, journal=reader.journal, positions=known)
        with pytest.raises(InvalidInputError, match=words):
            again.start(back={f"{topic}-0": 5, f"{topic}-1": 20}).batch()
    agreed = Reader(
        source(broker, topic, fail_on_data_loss=False), journal=reader.journal, positions=dict(reader.positions)
    )
    chunks = agreed.start(back={f"{topic}-0": 5, f"{topic}-1": 20}).all()
    assert numbers(chunks) == list(range(18, 40, 2))
    assert bad(chunks) == [(f"{topic}-0", 5, DELETED)]
    deleted_before(broker, topic, 0, 20)
    chunks = agreed.start(back={f"{topic}-0": 5, f"{topic}-1": 20}).all()
    assert (numbers(chunks), bad(chunks)) == ([], [(f"{topic}-0", 5, DELETED)]), "also where nothing is left"
    assert agreed.batch() == []


def test_of_a_new_partition_too_nothing_is_missed(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    produce(broker, topic, range(5), 1)
    reader = Reader(source(broker, topic)).start()
    reader.all()
    grow(broker, topic, 2)
    produce(broker, topic, range(10), 1, first=1)
    deleted_before(broker, topic, 1, 6)
    with pytest.raises(InvalidInputError, match=rf"topic='{topic}' partition=1 .* offsets 0 to 5"):
        reader.start().batch()
    agreed = Reader(source(broker, topic, fail_on_data_loss=False), positions=reader.positions, journal=reader.journal)
    chunks = agreed.start().all()
    assert numbers(chunks) == [6, 7, 8, 9]
    assert bad(chunks) == [(f"{topic}-1", 0, DELETED)]


def test_a_topic_is_noted_though_others_have_read_of_it_before(broker: Broker) -> None:
    """As Spark's connector may, which keeps no journal of what appears while it runs."""
    topic = new_topic(broker, 1)
    produce(broker, topic, range(10), 1)
    other = new_topic(broker, 1)
    reader = Reader(source(broker, [topic])).start()
    reader.all()
    both = Reader(
        source(broker, [topic, other]), positions={**reader.positions, f"{other}-0": 0}, journal=reader.journal
    )
    produce(broker, other, range(20), 1)
    both.start().all()
    assert [json.loads(line)["name"] for line in both.journal] == [topic, other]
    made_anew(broker, other)
    with pytest.raises(InvalidInputError, match="made again"):
        both.start()


def test_a_log_that_was_cut_off_while_it_is_read_is_noticed(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    produce(broker, topic, range(5), 1)
    reader = Reader(source(broker, topic)).start()
    reader.all()
    reader.positions = {f"{topic}-0": 9}
    with pytest.raises(InvalidInputError, match="ends at offset 5 and was read up to 9"):
        reader.batch()


def test_a_topic_made_anew_stops_it_or_is_another_one(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    produce(broker, topic, range(30), 1)
    reader = Reader(source(broker, topic)).start()
    reader.all()
    running = Reader(reader.source, positions=reader.positions, journal=reader.journal).start()
    made_anew(broker, topic)
    produce(broker, topic, range(100, 150), 1, millis=lambda n: 1_700_000_000_000)
    words = rf"topic='{topic}' .* made again; .*\{{0: 30\}}.* offset 0 of partition 0, time=2023-11-14T22:13:20Z"
    with pytest.raises(InvalidInputError, match=words):
        running.batch()
    with pytest.raises(InvalidInputError, match=words):
        reader.start()
    agreed = Reader(source(broker, topic, fail_on_data_loss=False), positions=reader.positions, journal=reader.journal)
    chunks = agreed.start().all()
    assert numbers(chunks) == list(range(100, 150))
    assert bad(chunks) == [(f"{topic}-0#1", 0, RECREATED)]
    assert agreed.channels == {f"{topic}-0#1": False}
    assert numbers(agreed.start(back={f"{topic}-0": 30, f"{topic}-0#1": 10}).all()) == list(range(110, 150))
    (told,) = (original["record"] for original in originals(chunks))
    assert json.loads(told) == {"topic": topic, "partition": 0, "of the old topic from": 30}
    grow(broker, topic, 2)
    produce(broker, topic, [150], 1, first=1)
    chunks = agreed.start().all()
    assert (numbers(chunks), bad(chunks)) == ([150], []), "of a partition that is new nothing is lost"
    made_anew(broker, topic)
    produce(broker, topic, [7], 1)
    chunks = agreed.start().all()
    assert (numbers(chunks), bad(chunks)) == ([7], [(f"{topic}-0#2", 0, RECREATED)])


def test_a_topic_that_is_not_there_or_is_gone_is_named(broker: Broker) -> None:
    with pytest.raises(InvalidInputError, match="topic='nowhere' is not there"):
        Reader(source(broker, ["nowhere"])).start()
    topic = new_topic(broker, 1)
    produce(broker, topic, range(3), 1)
    reader = Reader(source(broker, re.compile(topic))).start()
    reader.all()
    broker.delete(topic)
    with pytest.raises(InvalidInputError, match=rf"topic='{topic}' .* is gone"):
        reader.start()
    agreed = Reader(
        source(broker, re.compile(topic), fail_on_data_loss=False), positions=reader.positions, journal=reader.journal
    )
    assert agreed.start().batch() == []
    assert agreed.channels == {}
    assert [json.loads(line)["gap"]["topic"] for line in agreed.journal if "gap" in line] == [topic]
    assert agreed.start().batch() == []


def test_a_journal_of_another_source_and_positions_beyond_the_end_are_refused(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    produce(broker, topic, range(3), 1)
    with pytest.raises(InvalidInputError, match="had another source"):
        Reader(source(broker, topic), positions={"": 5}).start()
    with pytest.raises(InvalidInputError, match="had another source"):
        Reader(source(broker, topic), positions={"": 5}, journal=["a/file.parquet 7"]).start()
    reader = Reader(source(broker, topic)).start()
    reader.all()
    with pytest.raises(
        InvalidInputError, match=rf"topic='{topic}' partition=0 .* ends at offset 3 and was read up to 9"
    ):
        Reader(reader.source, positions={f"{topic}-0": 9}, journal=reader.journal).start()


def test_records_that_can_not_be_decoded_are_bad_and_tombstones_are_nulls(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    writer = producer(broker)
    for value in (b'{"n": 1}', b"{", None, b"", b'{"n": "x"}', b'{"n": 2}'):
        writer.produce(topic, value, key=b"\xff" if value == b'{"n": 2}' else b"k", timestamp=1_700_000_000_000)
    writer.flush()
    chunks = Reader(source(broker, topic, key=Raw("k", pa.string()))).start().all()
    assert [row for chunk in chunks for row in chunk.rows.select(["k", "n", "kafka_offset"]).to_pylist()] == [
        {"k": "k", "n": 1, "kafka_offset": 0},
        {"k": "k", "n": None, "kafka_offset": 2},
    ]
    assert [(at, reason[:14]) for _, at, reason in bad(chunks)] == [
        (1, "not a JSON obj"), (3, "not a JSON obj"), (4, "column n is no"), (5, "column k is no"),
    ]  # fmt: skip


def test_a_record_is_kept_as_it_came_with_its_key_headers_and_time(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    writer = producer(broker)
    sent: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (b'{"n": "' + b"x" * 20_000 + b'"}', b"\x00k", [("trace", b"\xff"), ("trace", None)]),
        (b"\xff\xfe", None, []),
        (b'\xef\xbb\xbf{"n": 1}', b"marked", []),
        (None, b"gone", []),
        (b"{", b"", [("a", b"")]),
    ]
    for i, (value, key, headers) in enumerate(sent):
        writer.produce(topic, value, key=key, headers=headers, timestamp=1_700_000_000_000 + i)
    writer.flush()
    chunks = Reader(source(broker, topic), parts=1).start().all()
    assert numbers(chunks) == [1, None]
    assert [reason for _, _, reason in bad(chunks)] == ["column n is not int64", "not UTF-8", "not a JSON object"]
    (chunk,) = chunks
    assert chunk.originals is not None
    for i, original in enumerate(chunk.originals(np.arange(len(sent))).to_pylist()):
        value, key, headers = sent[i]
        assert original["record"] == value
        assert original["origin"] == {
            "topic": topic,
            "partition": 0,
            "offset": i,
            "time": datetime(2023, 11, 14, 22, 13, 20, i * 1000, tzinfo=timezone.utc),
            "key": key,
            "headers": [{"name": name, "value": held} for name, held in headers],
        }


def test_a_row_tells_its_record(broker: Broker) -> None:
    topic = new_topic(broker, 2)
    writer = producer(broker)
    writer.produce(topic, b"\x00\xff", partition=1, timestamp=1_700_000_000_123)
    writer.flush()
    (chunk,) = Reader(KafkaSource(topic, broker.address)).start().all()
    when = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=timezone.utc)
    assert chunk.rows.to_pylist() == [
        {"value": b"\x00\xff", "kafka_topic": topic, "kafka_partition": 1, "kafka_offset": 0, "kafka_timestamp": when}
    ]
    assert chunk.rows.schema == KafkaSource(topic, broker.address).schema
    assert "kafka_timestamp" not in source(broker, topic, timestamp="n").schema.names


def test_a_transform_makes_rows_that_keep_their_offsets(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    produce(broker, topic, range(20), 1)

    def odd_twice(rows: pa.RecordBatch) -> pa.RecordBatch:
        odd = rows.filter(pc.equal(pc.bit_wise_and(rows.column("n"), 1), 1))
        return odd.take(pa.array([i for i in range(odd.num_rows) for _ in range(2)], pa.int64()))

    chunks = Reader(source(broker, topic, transform=odd_twice)).start().all()
    assert numbers(chunks) == [n for n in range(1, 20, 2) for _ in range(2)]
    assert [p for chunk in chunks for p in chunk.positions] == numbers(chunks)
    with pytest.raises(InvalidInputError, match="keep kafka_offset"):
        _ = source(broker, topic, transform=lambda rows: rows.select(["n"])).schema
    with pytest.raises(InvalidInputError, match=r"raised .* for a batch without rows"):
        _ = source(broker, topic, transform=lambda rows: 1 / 0).schema

    def fails(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows if rows.num_rows == 0 else rows.select([5])

    with pytest.raises(TaskFailedError, match=f"topic='{topic}' partition=0 from offset 0"):
        Reader(source(broker, topic, transform=fails)).start().all()


def test_a_bounded_run_ends_where_the_topics_ended_when_it_began(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    produce(broker, topic, range(10), 1)
    reader = Reader(source(broker, topic, max_offsets_per_batch=4)).start()
    assert reader.opened is not None
    reader.opened.freeze()
    chunks = reader.batch()
    produce(broker, topic, range(10, 20), 1)
    assert numbers(chunks + reader.all()) == list(range(10))


def test_spark_is_given_a_pattern_of_the_same_topics(broker: Broker) -> None:
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    for pattern in ("a|bc", ".*"):
        wanted = re.compile(pattern)
        given = connector._options(KafkaConnectorSource(wanted, broker.address, lambda records: records), spark)[
            "subscribePattern"
        ]
        for name in ("a", "ab", "bc", "abc", "x.y", "__a", "__consumer_offsets"):
            is_meant = wanted.fullmatch(name) is not None and not name.startswith("__")
            # Spark searches names for it.
            assert (re.search(given, name) is not None) == is_meant


def test_a_wrong_set_up_is_refused_with_a_sentence(broker: Broker) -> None:
    for wrong in ([], [1], {}):
        with pytest.raises(InvalidInputError, match="name a topic or several"):
            KafkaSource(wrong, broker.address)
    with pytest.raises(InvalidInputError, match="has flags"):
        KafkaSource(re.compile("a", re.IGNORECASE), broker.address)
    for start in ("first", datetime(2024, 1, 1), None):
        with pytest.raises(InvalidInputError, match="'earliest', 'latest', or give a time with a zone"):
            KafkaSource("a", broker.address, starting_offsets=start)
    with pytest.raises(InvalidInputError, match="give at least 1"):
        KafkaSource("a", broker.address, max_offsets_per_batch=0)
    function: Any = lambda records: records  # noqa: E731
    for name in ("value", "key"):
        with pytest.raises(InvalidInputError, match=rf"{name}=.* is not a decoder; .* use KafkaConnectorSource\("):
            KafkaSource("a", broker.address, **{name: function})
    decoder: Any = Json(SCHEMA)
    with pytest.raises(InvalidInputError, match=r"is not a function of Spark's DataFrame; .* use KafkaSource\("):
        KafkaConnectorSource("a", broker.address, decoder)
    with pytest.raises(InvalidInputError, match="one name twice"):
        _ = KafkaSource("a", broker.address, value=Raw("v"), key=Raw("v")).schema
    with pytest.raises(InvalidInputError, match="no-such-option"):
        Reader(KafkaSource("a", broker.address, options={"no-such-option": 1})).start()


def test_a_broker_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TIMEOUT", 0.5)
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:9"):
        Reader(KafkaSource("a", "127.0.0.1:9", options={"socket.timeout.ms": 300})).start()


def committed(broker: Broker, group: str) -> dict[tuple[str, int], int]:
    """The offsets of a consumer group, as tools see them."""
    admin = broker.admin()
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {(one.topic, one.partition): one.offset for one in future.result(PATIENCE).topic_partitions}


def test_offsets_are_committed_to_its_group(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    # The broker may have yet to make its topic of offsets.
    monkeypatch.setattr(topics, "PATIENCE", PATIENCE)
    topic = new_topic(broker, 2)
    produce(broker, topic, range(10), 2)
    reader = source(broker, topic).read_by("shops")
    reader.committed({f"{topic}-0": 3, f"{topic}-1": 5})
    group = f"shops {topic}"
    assert committed(broker, group) == {(topic, 0): 3, (topic, 1): 5}
    # It goes where the source is read, though it has asked a broker.
    copied(reader).committed({f"{topic}-0": 4})
    assert committed(broker, group) == {(topic, 0): 4, (topic, 1): 5}
    # Of a topic that was made again the old partitions are gone.
    reader.committed({f"{topic}-0": 9, f"{topic}-1": 9, f"{topic}-0#1": 1})
    assert committed(broker, group) == {(topic, 0): 1, (topic, 1): 5}
    reader.committed({})
    source(broker, topic, commit_offsets=False, group="none").committed({f"{topic}-0": 3})
    assert committed(broker, "none") == {}


def test_offsets_that_a_broker_refuses_are_one_warning_and_no_failed_start(
    secured: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = new_topic(secured, 1), "nobody's"
    produce(secured, topic, range(4), 1)
    for operation in ("DESCRIBE", "READ"):
        allow(secured, operation, "topic", topic)
    options = client_options(secured.folder, "hunter22", GUEST)
    guest = KafkaSource(topic, f"127.0.0.1:{secured.ports[2]}", timestamp="time", group=group, options=options)
    end = time.monotonic() + PATIENCE

    def reading() -> list[Chunk]:
        while True:
            try:
                return Reader(guest).start().all()
            except InvalidInputError:
                # The broker may not have heard yet of what was allowed.
                assert time.monotonic() < end
                time.sleep(0.1)

    assert sum(len(chunk.positions) for chunk in reading()) == 4

    class Guest(Told):
        """A source of one partition, whose offsets go to the broker."""

        def committed(self, positions: Mapping[str, int]) -> None:
            guest.committed({f"{topic}-0": positions[""]})
            super().committed(positions)

    world = World(Guest())
    telling = world.telling()
    for task in "AB":
        world.read(task, 1, 12)
        world.read(task, 23)
    with caplog.at_level(logging.WARNING, "persistent_state"):
        for _ in range(3):
            telling.tell()
    (warning,) = caplog.records
    assert f"the user lacks READ on group={group!r}" in warning.getMessage()
    assert world.told.told == []
    allow(secured, "READ", "group", group)
    while not world.told.told:
        assert time.monotonic() < end
        telling.tell()
    assert committed(secured, group) == {(topic, 0): 2}
    assert caplog.records == [warning]


def test_a_group_that_has_members_refuses_offsets(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    produce(broker, topic, range(2), 1)
    group = f"of others {topic}"
    member = Consumer({"bootstrap.servers": broker.address, "group.id": group, "auto.offset.reset": "earliest"})
    member.subscribe([topic])
    try:
        assert member.poll(PATIENCE) is not None
        with pytest.raises(InvalidInputError, match=f"group='{group}' has members, and only they may commit"):
            source(broker, topic, group=group).committed({f"{topic}-0": 1})
    finally:
        member.close()
