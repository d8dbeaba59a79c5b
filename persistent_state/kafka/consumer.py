"""Reading the records of Kafka partitions in a worker, and what they were before they were decoded."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.errors import InvalidInputError, StoreUnavailableError
from persistent_state.kafka.client import is_refusal, library

ORIGIN = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)
"""Where a record stood, and what it holds beside its value."""

PATIENCE = 60.0
"""Seconds until a broker that sends nothing of what it has is said not to answer."""

_ROWS_PER_CALL = 10_000
_WAIT = 0.01
"""Seconds for which a call waits until it has that many."""


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of a partition, from `begin` up to `end`, to be read by one worker; `first` is the first that there is.

    `gap` is what is lost before that, if so, and is told once.
    """

    partition_name: str
    topic: str
    partition: int
    begin: int
    end: int
    first: int
    gap: Mapping[str, Any] | None

    def gap_record(self, positions: NDArray[np.int64]) -> pa.RecordBatch:
        """The gap, as if it were a record."""
        origin = {"topic": self.topic, "partition": self.partition, "offset": self.begin}
        record = pa.array([json.dumps(self.gap).encode()], pa.large_binary())
        return pa.record_batch({"record": record, "origin": pa.array([origin], ORIGIN)})


def records(
    what: str,
    asking: Callable[[], AbstractContextManager[None]],
    options: Mapping[str, Any],
    left: Mapping[tuple[str, int], OffsetRange],
) -> Iterator[tuple[OffsetRange, Sequence[Any]]]:
    """The records of these partitions, as they come, each partition's in its order."""
    kafka = library()
    left = {place: part for place, part in left.items() if part.first < part.end}
    if not left:
        return
    with asking():
        consumer = kafka.Consumer(dict(options))
    try:
        with asking():
            consumer.assign([kafka.TopicPartition(*place, max(part.begin, part.first)) for place, part in left.items()])
        heard, only = time.monotonic(), next(iter(left)) if len(left) == 1 else None
        told = ""
        while left:
            with asking():
                messages = consumer.consume(_ROWS_PER_CALL, timeout=_WAIT)
            if time.monotonic() - heard > PATIENCE and not messages:
                raise StoreUnavailableError(
                    f"{what} sent nothing of {sorted(left)} for {PATIENCE:g} s{told}; mend it, then try again."
                )
            heard = time.monotonic() if messages else heard
            for place, some in _runs([message for message in messages if message.error() is None], only):
                if (part := left.get(place)) is None:
                    continue
                if some[-1].offset() >= part.end - 1:
                    some = [message for message in some if message.offset() < part.end]
                    del left[place]
                    with asking():
                        consumer.pause([kafka.TopicPartition(*place)])
                if some:
                    yield part, some
            for message in messages:
                if (error := message.error()) is None:
                    continue
                topic: str | None = message.topic()
                if error.code() == kafka.KafkaError._PARTITION_EOF:
                    # What lies before the end and never came was no record, but a mark of a transaction or compacted.
                    place = message.topic(), message.partition()
                    if place in left and message.offset() >= left[place].end:
                        del left[place]
                elif error.code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise InvalidInputError(f"{what}: the user may not READ topic={topic!r}; let it.")
                elif error.code() == kafka.KafkaError.GROUP_AUTHORIZATION_FAILED:
                    # The group is only a name.
                    continue
                elif is_refusal(error):
                    with asking():
                        raise kafka.KafkaException(error)
                elif topic is None:
                    # Of a connection, which is made again.
                    told = f", and says {error.str()!r}"
                elif not error.retriable():
                    with asking():
                        raise kafka.KafkaException(error)
    finally:
        consumer.close()


def originals(at: NDArray[np.int64], messages: Sequence[Any], positions: NDArray[np.int64]) -> pa.RecordBatch:
    """Those of these messages, which are `at` these offsets, that are at the positions."""
    found = [messages[place] for place in np.searchsorted(at, positions)]
    origins = [
        {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            # A record without a time has -1.
            "time": None if message.timestamp()[1] < 0 else message.timestamp()[1] * 1000,
            "key": message.key(),
            "headers": [{"name": name, "value": value} for name, value in message.headers() or ()],
        }
        for message in found
    ]
    record = pa.array([message.value() for message in found], pa.large_binary())
    return pa.record_batch({"record": record, "origin": pa.array(origins, ORIGIN)})


def _runs(messages: Sequence[Any], only: tuple[str, int] | None) -> Iterator[tuple[tuple[str, int], Sequence[Any]]]:
    """Messages by their partition, in their order; all are of the `only` one if there is no other."""
    if only is not None:
        if messages:
            yield only, messages
        return
    found: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for message in messages:
        found[message.topic(), message.partition()].append(message)
    yield from found.items()
