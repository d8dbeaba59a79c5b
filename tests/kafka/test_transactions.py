"""Values at clocks in a real Kafka: a consumer with read_committed sees each once, whoever is killed, paused or changed."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec

from examples.broker import Broker
from persistent_state.errors import StoreUnavailableError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.kafka import ledger, transactions
from persistent_state.kafka.ledger import NOTHING_READ, Bookkeeping
from persistent_state.kafka.sink import as_json
from persistent_state.kafka.transactions import ClockWriter, OpenClock
from tests.kafka.deliverer import (
    check,
    consume,
    deliver,
    rows_of,
    run_on,
    run_until,
    seen,
    watch,
    write_part,
    writer_of,
)
from tests.kafka.pause import Pause
from tests.sentences import problem
from tests.soak import soak_or
from tests.waiting import PATIENCE, until

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.kafka.deliverer"])

BROKER_KILLS = soak_or(ci=2, soak=5)


def start(function: Callable[..., None], *arguments: Any) -> Any:
    process = processes.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def begin_first(writer: ClockWriter) -> OpenClock:
    """Begin the first clock of a new topic, 10, in one part."""
    writer.prepare()
    begun = writer.begin(10, 1, NOTHING_READ)
    assert begun is not None
    return begun


# Kills


@pytest.mark.soak
def test_each_value_is_seen_once_whatever_step_its_driver_is_killed_at(broker: Broker, topic: str) -> None:
    wanted, kills, stride = range(10, 10_000, 10), 0, soak_or(ci=6, soak=1)
    parts = itertools.cycle((1, 2, 4, 3))
    for step in itertools.count(1, stride):
        last = max(0, writer_of(broker.address, topic).last_clock(1)) if step > 1 else 0
        # Two clocks, one of which may be begun: beyond their steps there is nothing to be killed at.
        process = start(run_until, broker.address, topic, next(parts), [last + 10, last + 20], step)
        process.join(PATIENCE)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
    assert kills > 40 / stride
    last = writer_of(broker.address, topic).last_clock(1)
    deliver(writer_of(broker.address, topic), 2, [last + 10])
    check(seen(broker, topic), [clock for clock in wanted if clock <= last + 10])


def test_each_value_is_seen_once_whenever_its_drivers_are_killed(broker: Broker, topic: str) -> None:
    dice, wanted = random.Random(1), range(10, 400, 10)
    for parts in (3, 1, 2, 4, 2, 5, 1, 3):
        process = start(run_on, broker.address, topic, parts, wanted)
        process.join(dice.uniform(0.3, 1.5))
        process.kill()
        process.join(PATIENCE)
    # On a slow machine all were killed within the first clock.
    last = max(0, writer_of(broker.address, topic).last_clock(1))
    end = last + 20
    deliver(writer_of(broker.address, topic), 2, [clock for clock in wanted if clock <= end], writers=2)
    check(seen(broker, topic), [clock for clock in wanted if clock <= end])


@pytest.mark.soak
def test_each_value_is_seen_once_although_the_broker_is_killed(broker: Broker, topic: str) -> None:
    dice, wanted = random.Random(2), range(10, 150, 10)
    process = start(run_on, broker.address, topic, 2, wanted)
    for _ in range(BROKER_KILLS):
        process.join(dice.uniform(0.5, 1.5))
        broker.kill()
        time.sleep(0.2)
        broker.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    check(seen(broker, topic), wanted)


# Those who were thought dead


@pytest.mark.soak
@pytest.mark.parametrize("step", range(2, 54, soak_or(ci=9, soak=1)))
def test_a_driver_that_was_paused_changes_nothing_when_another_has_gone_on(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    pause = Pause(step)
    monkeypatch.setattr(confluent_kafka, "Producer", watch(pause.come_to))

    def be_old() -> None:
        pause.mine.steps = itertools.count(1)
        deliver(writer_of(broker.address, topic), 2, [10, 20])

    with ThreadPoolExecutor(1) as pool:
        old = pool.submit(be_old)
        assert pause.waits.wait(PATIENCE)
        # With another number of parts, where it may have one.
        deliver(writer_of(broker.address, topic), 1, [10, 20, 30])
        before = seen(broker, topic)
        check(before, [10, 20, 30])
        pause.goes_on.set()
        if error := old.exception(PATIENCE):
            assert isinstance(error, StoreUnavailableError), error
    assert seen(broker, topic) == before
    assert writer_of(broker.address, topic).last_clock(1) == 30


def test_a_writer_that_is_fenced_between_two_batches_is_told_to_ask_again(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ROWS_PER_LOOK", 1)
    writer = writer_of(broker.address, topic, rows=100)
    begun = begin_first(writer)
    count = itertools.count()

    def encode(rows: pa.RecordBatch) -> Any:
        if next(count) == 1:
            with writer._producer(f"{writer.owner}/0"):
                pass
        return as_json(1, rows)

    said = problem(lambda: write_part(writer, begun, rows_of(10), 0, encode), StoreUnavailableError)
    assert "fenced" in said
    write_part(writer, begun, rows_of(10), 0)
    check(seen(broker, topic), [10])


# Parts


def test_a_clock_half_delivered_is_finished_in_the_parts_that_it_was_begun_in(broker: Broker, topic: str) -> None:
    writer = writer_of(broker.address, topic)
    deliver(writer, 3, [10])
    begun = writer.begin(20, 4, NOTHING_READ)
    assert begun is not None
    write_part(writer, begun, rows_of(20), 2)
    assert writer.last_clock(1) == 10
    for parts in (1, 2, 7):
        again = writer.begin(20, parts, NOTHING_READ)
        assert again is not None
        assert (again.clock, again.parts) == (20, 4)
    for part in (3, 0, 2):
        write_part(writer, begun, rows_of(20), part)
        assert writer.last_clock(1) == 10
    write_part(writer, begun, rows_of(20), 1)
    assert writer.last_clock(1) == 20
    # Records of parts above the number are of older clocks, and of no concern.
    deliver(writer, 1, [20, 30])
    deliver(writer, 4, [30, 40])
    deliver(writer, 2, [40, 50])
    assert writer.last_clock(1) == 50
    check(seen(broker, topic), [10, 20, 30, 40, 50])


def test_a_part_goes_on_behind_the_last_key_that_was_written(broker: Broker, topic: str) -> None:
    writer = writer_of(broker.address, topic, rows=1)
    begun = begin_first(writer)
    count = itertools.count()

    def stumble(rows: pa.RecordBatch) -> Any:
        if next(count) == 3:
            raise ValueError("stumbled")
        return as_json(1, rows)

    said = problem(lambda: write_part(writer, begun, rows_of(10, range(0, 8, 2)), 0, stumble))
    assert "encode raised ValueError('stumbled')" in said
    early = {value["key"] for value in seen(broker, topic)}
    assert len(early) == 3
    # Perhaps all keys are given now, where those that changed were before: none comes twice.
    write_part(writer, begun, rows_of(10, range(8)), 0)
    found = seen(broker, topic)
    assert len({value["key"] for value in found}) == len(found)
    assert {value["key"] for value in found} >= {row["key"] for row in rows_of(10, range(0, 8, 2)).to_pylist()}


def test_a_key_whose_value_is_encoded_as_none_gets_a_tombstone(broker: Broker, topic: str) -> None:
    writer, rows = writer_of(broker.address, topic), rows_of(10, range(4))
    begun = begin_first(writer)

    def encode(rows: pa.RecordBatch) -> Any:
        keys, values = as_json(1, rows)
        return keys, [None if row["value"] % 2 else value for row, value in zip(rows.to_pylist(), values, strict=True)]

    write_part(writer, begun, rows, 0, encode)
    found = {json.loads(message.key())["key"]: message.value() for message in consume(broker, topic)}
    assert {key for key, value in found.items() if value is None} == {"key 1", "key 3"}
    assert len(found) == 4


def test_the_rows_of_one_hash_are_in_one_transaction(broker: Broker, topic: str) -> None:
    writer, rows = writer_of(broker.address, topic, rows=2), rows_of(10)
    begun = begin_first(writer)
    sizes = []

    def encode(batch: pa.RecordBatch) -> Any:
        sizes.append(len(batch))
        return as_json(1, batch)

    writer.write_part(begun, 0, rows, np.array([5, 1, 5, 5, 1, 5, 9, 9], np.uint64), encode)
    assert sizes == [2, 4, 2]
    check(seen(broker, topic), [10])


def test_a_clock_that_is_no_more_to_be_had_is_passed_by(broker: Broker, topic: str) -> None:
    writer = writer_of(broker.address, topic)
    deliver(writer, 2, [10])
    begun = writer.begin(20, 3, NOTHING_READ)
    assert begun is not None
    write_part(writer, begun, rows_of(20), 0)
    assert writer.begin(10, 2, NOTHING_READ) is None
    instead = writer.begin(30, 2, NOTHING_READ)
    assert instead is not None
    assert instead.parts == 3, "who may still write the last is fenced part by part"
    assert writer.last_clock(2) == 10
    deliver(writer, 2, [30, 40])
    before = seen(broker, topic)
    said = problem(lambda: write_part(writer, begun, rows_of(20), 1), StoreUnavailableError)
    assert f"clock=40 from begun={begun.begun}, clock=20; ask for that clock again." in said
    assert seen(broker, topic) == before
    check([value for value in before if value["clock"] != 20], [10, 30, 40])


def test_a_lower_clock_may_come_before_one_that_is_written_by_half(broker: Broker, topic: str) -> None:
    """At least once a task's own clock may be given before the global one, and that be another."""
    writer = writer_of(broker.address, topic)
    writer.prepare()
    above = writer.begin(40, 2, NOTHING_READ)
    assert above is not None
    write_part(writer, above, rows_of(40), 0)
    twice = seen(broker, topic)
    deliver(writer, 3, [20])
    problem(lambda: write_part(writer, above, rows_of(40), 1), StoreUnavailableError)
    assert writer.last_clock(3) == 20
    deliver(writer, 3, [40, 50])
    found = seen(broker, topic)
    for value in twice:
        found.remove(value)
    check(found, [20, 40, 50])


def test_a_clock_at_or_below_the_last_changes_nothing(broker: Broker, topic: str) -> None:
    writer = writer_of(broker.address, topic)
    writer.prepare()
    assert writer.last_clock(1) == BEGINNING
    deliver(writer, 2, [-10, 0, 10])
    for clock in (10, 0, -10, BEGINNING):
        assert writer.begin(clock, 2, NOTHING_READ) is None
    check(seen(broker, topic), [-10, 0, 10])


# The bookkeeping


def bookkeep(broker: Broker, topic: str, key: str, record: dict[str, Any]) -> None:
    """Write a record of the bookkeeping, as another might."""
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.address, "log_level": 0})
    producer.produce(f"{topic}.clocks", json.dumps(record), key, partition=0)
    assert producer.flush(PATIENCE) == 0


def test_a_clock_that_an_older_version_has_begun_is_finished(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(broker.address, topic, rows=100)
    writer.prepare()
    beginnings = itertools.count(1)

    def record_as_then(producer: Any, key: str, record: dict[str, Any]) -> None:
        then = {name: value for name, value in record.items() if key == writer.owner or name != "clock"}
        then["begun"] = next(beginnings) if key == writer.owner else begun.begun
        producer.produce(writer.bookkeeping, json.dumps(then), key, partition=0)

    with monkeypatch.context() as then:
        then.setattr(ClockWriter, "_produce_record", staticmethod(record_as_then))
        for number, clock, parts in ((1, 10, (0, 1)), (2, 20, (1,))):
            begun = writer.begin(clock, 2, NOTHING_READ)
            assert begun is not None
            begun = begun._replace(begun=number)
            for part in parts:
                write_part(writer, begun, rows_of(clock), part)
    assert writer.last_clock(1) == 10
    deliver(writer, 3, [20, 30])
    check(seen(broker, topic), [10, 20, 30])


def test_the_record_of_a_part_counts_for_no_other_clock(broker: Broker, topic: str) -> None:
    writer = writer_of(broker.address, topic)
    deliver(writer, 1, [10])
    begun = writer.begin(20, 1, NOTHING_READ)
    assert begun is not None
    other = {"begun": begun.begun, "clock": 10, "through": "f" * 16, "rows": 8, "done": True}
    bookkeep(broker, topic, f"{writer.owner}/0", other)
    assert writer.last_clock(1) == 10
    write_part(writer, begun, rows_of(20), 0)
    assert writer.last_clock(1) == 20
    check(seen(broker, topic), [10, 20])


def test_records_that_are_no_more_there_are_asked_for_again(broker: Broker, topic: str) -> None:
    writer = writer_of(broker.address, topic)
    deliver(writer, 1, [10])
    said = problem(lambda: writer.begin(20, 1, Bookkeeping(10_000, {})), StoreUnavailableError)
    assert "and did so at 10000 before" in said
    assert "start again" in said


# Time


def test_a_transaction_is_cut_when_half_of_its_time_is_over(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ROWS_PER_LOOK", 1)
    writer = writer_of(broker.address, topic, 1000, {"transaction.timeout.ms": 60_000})
    begun, now = begin_first(writer), [0.0]
    monkeypatch.setattr(ledger, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def encode(rows: pa.RecordBatch) -> Any:
        now[0] += 12
        return as_json(1, rows)

    write_part(writer, begun, rows_of(10), 0, encode)
    check(seen(broker, topic), [10])


def ends_of(broker: Broker, topic: str) -> int:
    """How many records the partitions of a topic have, with those that are pending and those of brokers."""
    admin = broker.admin()
    places = [TopicPartition(topic, number) for number in admin.list_topics(topic, 10).topics[topic].partitions]
    found = admin.list_offsets({place: OffsetSpec.latest() for place in places})
    return sum(each.result().offset for each in found.values())


def test_a_transaction_that_takes_too_long_is_told_with_what_to_change(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ROWS_PER_LOOK", 4)
    writer = writer_of(broker.address, topic, 1000, {"transaction.timeout.ms": 1000})
    begun = begin_first(writer)
    now, end = [0.0], list[int]()
    monkeypatch.setattr(ledger, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def encode(rows: pa.RecordBatch) -> Any:
        if end:
            # Behind the rows of the first look comes what the broker writes when it ends the transaction.
            until(lambda: ends_of(broker, topic) > end[0], "the end of the transaction")
            now[0] += 10
        end.append(ends_of(broker, topic) + len(rows))
        return as_json(1, rows)

    said = problem(lambda: write_part(writer, begun, rows_of(10), 0, encode), StoreUnavailableError)
    assert "took longer than transaction.timeout.ms=1000" in said
    assert "rows_per_transaction=1000" in said
    assert seen(broker, topic) == []
    deliver(writer_of(broker.address, topic, 1000), 1, [10])
    check(seen(broker, topic), [10])


def test_a_record_behind_a_pending_transaction_is_waited_for(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = writer_of(broker.address, topic, 100)
    begun = begin_first(writer)
    other = confluent_kafka.Producer({"bootstrap.servers": broker.address, "transactional.id": "other", "log_level": 0})
    other.init_transactions(PATIENCE)

    def encode(rows: pa.RecordBatch) -> Any:
        other.begin_transaction()
        other.produce(f"{topic}.clocks", "{}", "of others", partition=0)
        other.flush(PATIENCE)
        return as_json(1, rows)

    write_part(writer, begun, rows_of(10), 0, encode)
    monkeypatch.setattr(ledger, "PATIENCE", 2.0)
    # What it has written stands behind what is pending, where a reader of what is committed would not see it.
    for again in (lambda: write_part(writer, begun, rows_of(10), 0), lambda: writer.last_clock(1)):
        assert "is pending in topic=" in problem(again, StoreUnavailableError)
    other.commit_transaction(PATIENCE)
    write_part(writer, begun, rows_of(10), 0)
    assert writer.last_clock(1) == 10
    check(seen(broker, topic), [10])


@pytest.fixture(autouse=True, scope="module")
def _forkserver() -> Iterator[None]:
    yield
    from multiprocessing import forkserver

    forkserver._forkserver._stop()  # type: ignore[attr-defined]
