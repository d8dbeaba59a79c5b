"""Read a topic of values back, to find the keys that have records above a clock.

Each row of a `KafkaSink` has headers:

    task       <application>/<task>, with the topic of the bookkeeping if that has a name of its own
    timeline   the timeline of the writer
    clock      the clock of the row, in microseconds UTC; of a correction the clock of the rewind
    highest    the highest clock that was written before the row, if that is above `clock`

In a partition, the rows of a task come in the order of (timeline, clock), and where a timeline begins, all that was above its
clock has been corrected. So if a row is at or below a clock, nothing before it can be above the clock that was not corrected
since. Reading from the end backwards ends there, and costs what was written since. One case is other: under at-least-once
delivery a clock may be written by half, and a lower one come then. Such rows have `highest`, and the reading ends only at a row
of which that is at or below the clock, too.

A correction to the beginning has the clock `BEGINNING`. All rows of a task are above that, so the reading ends at such a
correction, or where the topic begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple, TypeAlias

from persistent_state.errors import StoreUnavailableError
from persistent_state.kafka.client import Moves, headers_of, is_refusal, library

TASK, TIMELINE, CLOCK, HIGHEST = "task", "timeline", "clock", "highest"

Headers: TypeAlias = "list[tuple[str, bytes]]"

FIRST_SPAN = 10_000
"""Offsets of a partition that are read first. Each time after, twice as many before them are read."""

MOST_SPAN = 1_000_000

WAIT = 2.0
"""Seconds without a move after which a new client asks, perhaps another broker."""

_ROWS_PER_CALL = 10_000


class Above(NamedTuple):
    """The keys of a task that have records above a clock. If not `is_all`, retention may have deleted records of others."""

    keys: set[bytes | None]
    is_all: bool


def keys_above(
    consumer_of: Callable[[Moves], Any],
    name: str,
    topic: str,
    ends: Mapping[int, int],
    task: str,
    clock: int,
    patience: float,
) -> Above:
    """Return the keys of a task that have records above a clock.

    Args:
        consumer_of: Makes a consumer of what is committed, which notes its moves.
        name: The sink, for messages.
        topic: The topic of the values.
        ends: By partition, the offset up to which to read.
        task: The header that names the task.
        clock: The clock.
        patience: Seconds without a move after which to give up.

    Raises:
        StoreUnavailableError: Not all records can be read now.
        KafkaException: The brokers refuse.
    """
    keys: set[bytes | None] = set()
    is_all = True
    for partition, end in ends.items():
        span, is_enough, begin = FIRST_SPAN, False, end
        while not is_enough:
            place = library().TopicPartition(topic, partition)
            with closing(consumer_of(Moves())) as consumer:
                first, _ = consumer.get_watermark_offsets(place, timeout=patience)
            if begin <= first:
                is_all = is_all and first == 0
                break
            begin, end = max(first, begin - span), begin
            found, is_enough = _in_range(consumer_of, name, place, begin, end, task, clock, patience)
            keys |= found
            span = min(2 * span, MOST_SPAN)
    return Above(keys, is_all)


def _in_range(
    consumer_of: Callable[[Moves], Any],
    name: str,
    place: Any,
    begin: int,
    end: int,
    task: str,
    clock: int,
    patience: float,
) -> tuple[set[bytes | None], bool]:
    """Return the keys above the clock in a range of offsets, and whether nothing before can be above it."""
    keys: set[bytes | None] = set()
    mark, is_enough, offset = task.encode(), False, begin
    moves = Moves()
    while offset < end:
        if time.monotonic() > moves.last + patience:
            raise StoreUnavailableError(
                f"{name}: a transaction is pending in topic={place.topic!r}, or a broker that is cut off leads it: partition="
                f"{place.partition} can be read up to offset={offset} of {end}. A pending transaction ends after its timeout;"
                " then try again."
            )
        # A client stays with the broker that it found, even one that is cut off. So each try has a new client.
        with closing(consumer_of(moves)) as consumer:
            for after, message in read_range(consumer, place.topic, place.partition, offset, end, WAIT, moves):
                offset = after
                # A message without a value, or with an empty one, is false.
                clocks = None if message is None else _clocks(message, mark)
                if clocks is None:
                    continue
                at, highest = clocks
                if max(at, highest) <= clock:
                    keys.clear()
                    is_enough = True
                elif at > clock:
                    keys.add(message.key())
    return keys, is_enough


def _clocks(message: Any, mark: bytes) -> tuple[int, int] | None:
    """Return the clock of a row of the task, and the highest clock before it; None if others wrote the record."""
    headers: dict[str, Any] = dict(headers_of(message) or ())
    if headers.get(TASK) != mark:
        return None
    try:
        at = int(headers[CLOCK])
        return at, int(headers.get(HIGHEST, at))
    except (KeyError, TypeError, ValueError):
        return None


def read_range(
    consumer: Any, topic: str, partition: int, begin: int, end: int, seconds: float, moves: Moves
) -> Iterator[tuple[int, Any]]:
    """Yield each record between two offsets of a partition, with the offset after it, in order.

    None stands for a record where offsets are passed that have none. It ends before `end` if the consumer does not move for
    `seconds`. `moves` are those of the consumer.

    Raises:
        KafkaException: The brokers refuse.
    """
    kafka = library()
    consumer.assign([kafka.TopicPartition(topic, partition, begin)])
    offset, began = begin, time.monotonic()
    while offset < end and time.monotonic() < max(began, moves.last) + seconds:
        first = consumer.poll(0.1)
        for message in () if first is None else (first, *consumer.consume(_ROWS_PER_CALL, 0)):
            now, error = message.offset(), message.error()
            if error is None:
                now += 1
            elif is_refusal(error, {}) and error.code() != kafka.KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise kafka.KafkaException(error)
            elif error.code() != kafka.KafkaError._PARTITION_EOF:
                # Ask again: the partition's leader may have moved. The group is only a name, and needs no permission.
                continue
            if now > offset:
                offset, moves.last = min(now, end), time.monotonic()
                yield offset, message if error is None and now <= end else None
            if offset >= end:
                return
