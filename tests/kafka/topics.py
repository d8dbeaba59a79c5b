"""Topics for tests: made, filled, grown, deleted."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import NewPartitions, OffsetSpec

from examples.broker import Broker


def new_topic(broker: Broker, partitions: int) -> str:
    """A topic that no other test has."""
    name = f"t{uuid.uuid4().hex[:8]}"
    broker.make(name, partitions)
    return name


def producer(broker: Broker) -> Producer:
    # Without it what a new topic did not take yet may come behind what was sent after.
    options = {
        "bootstrap.servers": broker.address,
        "enable.idempotence": True,
        "linger.ms": 1,
        "log_level": 0,
    }
    return Producer(options)


def produce(
    broker: Broker,
    topic: str,
    numbers: Iterable[int],
    partitions: int,
    first: int = 0,
    millis: Callable[[int], int] = lambda n: 1_700_000_000_000 + n,
) -> None:
    """Write {"n": number} for each, to `partitions` partitions in turns from the `first` on."""
    writer = producer(broker)
    for i, number in enumerate(numbers):
        value = json.dumps({"n": number})
        writer.produce(topic, value, partition=first + i % partitions, timestamp=millis(number))
    assert writer.flush(30) == 0


def grow(broker: Broker, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""
    admin = broker.admin()
    for done in admin.create_partitions([NewPartitions(topic, partitions)]).values():
        done.result()


def deleted_before(broker: Broker, topic: str, partition: int, offset: int) -> None:
    """Delete the records of a partition before an offset, as retention does."""
    admin = broker.admin()
    for done in admin.delete_records([TopicPartition(topic, partition, offset)]).values():
        done.result()


def offsets_written(broker: Broker, topic: str) -> int:
    """The end of a topic's first partition."""
    place = TopicPartition(topic, 0)
    admin = broker.admin()
    (found,) = admin.list_offsets({place: OffsetSpec.latest()}).values()
    return int(found.result().offset)


def made_anew(broker: Broker, topic: str) -> None:
    """Delete a topic and make another of its name, with one partition."""
    broker.delete(topic)
    end = time.monotonic() + 30
    while True:
        try:
            return broker.make(topic, 1)
        except Exception:
            # The old one is still on its way out.
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
