"""Deliveries of values at clocks to Kafka, and rewinds, free of Spark, by processes that can be killed at any step.

What is delivered is known beforehand: `rows_of` a clock. What was is what `seen` says a consumer with read_committed sees.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import confluent_kafka
import pyarrow as pa

from examples.broker import Topics
from persistent_state.errors import StoreUnavailableError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.kafka.ledger import NOTHING_READ
from persistent_state.kafka.sink import as_json
from persistent_state.kafka.transactions import ClockWriter, Encode, OpenClock
from persistent_state.partials.keys import hash_keys, normalise
from persistent_state.sinks.values import LocalValues
from tests.waiting import PATIENCE

STEPS = ("init_transactions", "begin_transaction", "produce", "flush", "commit_transaction", "abort_transaction")
KEYS = 12

Value = dict[str, Any]


def writer_of(
    address: str,
    topic: str,
    rows: int = 2,
    options: dict[str, Any] | None = None,
    timeline: int = 0,
    task: str = "Totals",
) -> ClockWriter:
    return ClockWriter("shop", task, topic, f"{topic}.clocks", address, options or {}, rows, timeline)


def rows_of(clock: int, keys: Iterable[int] | None = None) -> pa.Table:
    """The values at a clock, of some of the keys, in any order."""
    some = random.Random(clock).sample(range(KEYS), KEYS * 2 // 3) if keys is None else list(keys)
    names = [f"key {key}" if key else None for key in some]
    return pa.table(
        {"key": pa.array(names, pa.string()), "clock": [clock] * len(some), "value": [clock * 1000 + k for k in some]}
    )


def write_part(writer: ClockWriter, begun: OpenClock, rows: pa.Table, part: int, encode: Encode | None = None) -> None:
    def of_part(number: int, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(batches, rows.schema)

    own = LocalValues.of(rows).map_parts(of_part, parts=begun.parts, by=["key"])[part]
    writer.write_part(begun, part, own, hash_keys([normalise(own["key"])], len(own)), encode or partial(as_json, 1))


def deliver(writer: ClockWriter, parts: int, wanted: Iterable[int], writers: int = 1) -> None:
    """What one driver does: those of the wanted clocks that are above the last."""
    writer.prepare()
    last, known = writer.last_clock(parts), NOTHING_READ
    for clock in wanted:
        if clock > last and (begun := writer.begin(clock, parts, known)):
            known = begun.bookkeeping
            write = partial(write_part, writer, begun, rows_of(clock))
            parts_of_clock = range(begun.parts)
            if writers == 1:
                list(map(write, parts_of_clock))
            else:
                with ThreadPoolExecutor(writers) as pool:
                    list(pool.map(write, parts_of_clock))


def go_back(writer: ClockWriter, clock: int, values: pa.Table, encode: Encode | None = None) -> None:
    """Let what one driver has given go back to a clock, at which these are the values."""
    writer.rewind(clock, 1, lambda: iter(values.to_batches(5)), encode or partial(as_json, 1))


def watch(come_to: Callable[[str], None]) -> type:
    """A producer of which each thing that is asked is a step."""

    def step(name: str) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            come_to(name)
            return getattr(super(Watched, self), name)(*arguments, **named)

        return call

    Watched = type("Watched", (confluent_kafka.Producer,), {name: step(name) for name in STEPS})
    return Watched


def run_until(address: str, topic: str, parts: int, wanted: Sequence[int], die: int) -> None:
    """In a process of its own: deliver, and die before this step, if it has so many."""
    die_at(die)
    deliver(writer_of(address, topic, rows=3), parts, wanted)


def go_back_until(address: str, topic: str, timeline: int, clock: int, values: pa.Table, die: int) -> None:
    """In a process of its own: go back to a clock in a new timeline, and die before this step, if it has so many."""
    die_at(die)
    go_back(writer_of(address, topic, timeline=timeline), clock, values)


def die_at(step: int) -> None:
    """Kill this process before this step of its producers."""
    steps = iter(range(1, 1_000_000))

    def come_to(name: str) -> None:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(confluent_kafka, "Producer", watch(come_to))  # noqa: B010


def run_on(address: str, topic: str, parts: int, wanted: Sequence[int]) -> None:
    """In a process of its own: deliver all, by several writers at once, however often the broker is away."""
    while True:
        try:
            return deliver(writer_of(address, topic), parts, wanted, writers=parts)
        except StoreUnavailableError:
            time.sleep(0.1)


def consume(broker: Topics, topic: str, **options: str) -> list[Any]:
    """The messages of a topic, as a consumer with read_committed sees them: one partition after the other.

    It reads up to what was written last, for which it waits until nothing is pending any more.
    """
    settings = {
        "bootstrap.servers": broker.address,
        "group.id": "seen",
        "enable.partition.eof": True,
        **options,
    }
    looking = confluent_kafka.Consumer({**settings, "isolation.level": "read_uncommitted"})
    consumer = confluent_kafka.Consumer({**settings, "isolation.level": "read_committed", "fetch.wait.max.ms": 10})
    partitions = looking.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
    places = [confluent_kafka.TopicPartition(topic, number, 0) for number in partitions]
    missing = {place.partition: looking.get_watermark_offsets(place, timeout=PATIENCE)[1] for place in places}
    looking.close()
    consumer.assign(places)
    found, end = [], time.monotonic() + PATIENCE
    while missing:
        assert time.monotonic() < end, f"a transaction is pending in {missing}"
        message = consumer.poll(0.1)
        if message is None:
            continue
        if message.error() is None:
            found.append(message)
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
            if message.offset() >= missing.get(message.partition(), 0):
                missing.pop(message.partition(), None)
    consumer.close()
    return sorted(found, key=lambda message: message.partition())


def seen(broker: Topics, topic: str) -> list[Value]:
    """The values of a topic that a consumer with read_committed sees."""
    found = []
    for message in consume(broker, topic):
        found.append(json.loads(message.value()))
        assert json.loads(message.key()) == {"key": found[-1]["key"]}
    return found


def newest(broker: Topics, topic: str) -> dict[str, Any]:
    """What a consumer that keeps the newest value of each key has, by the key's only column: a tombstone takes the key away."""
    found: dict[str, Any] = {}
    for message in consume(broker, topic):
        (key,) = json.loads(message.key()).values()
        found.pop(key, None)
        if message.value() is not None:
            found[key] = json.loads(message.value())
    return found


def check(found: Sequence[Value], wanted: Iterable[int]) -> None:
    """Each value at each of these clocks is there once, and of each key one clock after the other."""
    expected = {(row["key"], clock): row for clock in wanted for row in rows_of(clock).to_pylist()}
    last: dict[str | None, int] = {}
    for value in found:
        assert value == expected.get((value["key"], value["clock"])), "a value is another, or not of these clocks"
        assert last.get(value["key"], BEGINNING) < value["clock"], f"{value} is seen twice, or late"
        last[value["key"]] = value["clock"]
    assert len(found) == len(expected)
