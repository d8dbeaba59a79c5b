"""Read the records of Kafka partitions in a worker, and keep bad ones as they came."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from persistent_state.errors import InvalidInputError, StoreUnavailableError
from persistent_state.event_time.clocks import FURTHEST
from persistent_state.kafka.client import Moves, headers_of, is_refusal, library, reason_of
from persistent_state.redact import text_without_secrets

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
"""The `origin` of a record: where it stood, and all that it holds beside its value.

`headers` is null if the name of one is not UTF-8, and `time` if the record has none that can be.
"""

Place: TypeAlias = tuple[str, int]
"""A topic and the number of a partition."""

PATIENCE = 60.0
"""Seconds after which the reader gives up if it comes no further."""

_BYTES_BESIDE = 64
"""Bytes that a record takes at least, as a tombstone without a key does: its offset, its time and the client's object."""

_ROWS_PER_CALL = 10_000
_WAIT = 0.01
"""Seconds that a call waits for that many rows."""

_GOING_ON = 1.0
"""Seconds without a record after which a consumer that went on from an earlier read is replaced by a new one."""

_IDLE = 60.0
"""Seconds between two reads after which the consumer is replaced: its token may have expired, for example."""

_STOP_WAIT = 0.1
"""Seconds of a wait for news after which it is looked whether the wait is to end."""

_SAMPLE_ROWS, _SAMPLE_BYTES, _SAMPLE_WAIT, _SAMPLE_SECONDS = 100, 1 << 16, 0.05, 2.0
"""The most records whose size is looked at, the bytes that a partition sends for that, and the seconds that it may take."""


@dataclass(frozen=True)
class OffsetRange:
    """Offsets of a partition that one worker reads: from `begin` up to `end`, which is not read.

    `first` is the partition's first offset that Kafka still has. `gap` describes the offsets that are lost before it, if this
    range is the one that reports them.
    """

    partition_name: str
    topic: str
    partition: int
    begin: int
    end: int
    first: int
    gap: Mapping[str, Any] | None

    def gap_record(self, positions: NDArray[np.int64]) -> pa.RecordBatch:
        """Return the gap as the original of a bad record."""
        origin = {"topic": self.topic, "partition": self.partition, "offset": self.begin}
        record = pa.array([json.dumps(self.gap).encode()], pa.large_binary())
        return pa.record_batch({"record": record, "origin": pa.array([origin], ORIGIN)})


def records(
    what: str,
    asking: Callable[[], AbstractContextManager[None]],
    options: Mapping[str, Any],
    ranges: Mapping[tuple[str, int], OffsetRange],
) -> Iterator[tuple[OffsetRange, Sequence[Any]]]:
    """Read ranges of offsets, as `Reader.read` does, by a consumer that is closed at the end."""
    with closing(Reader(what, asking, options)) as reader:
        yield from reader.read(ranges)


class Reader:
    """A reader of ranges of offsets by one consumer, which fetches on from one read to the next.

    So the records of the next ranges are here as soon as the broker has them, if these begin where the last ones ended. The
    consumer is closed after a read that fails or that has many rows, and the next read opens another one. No two threads read
    at a time.

    Args:
        what: The source, for messages.
        asking: Turns the client's errors into those of this package.
        options: The consumer's options.
    """

    def __init__(
        self, what: str, asking: Callable[[], AbstractContextManager[None]], options: Mapping[str, Any]
    ) -> None:
        self._what, self._asking, self._options = what, asking, options
        self._consumer: Any = None
        self._moves = Moves()
        self._used = 0.0
        # By topic and partition: where the next read goes on, what came from there on, and the end that the consumer has met.
        self._next: dict[Place, tuple[str, int]] = {}
        self._ahead: dict[Place, list[Any]] = {}
        self._ends: dict[Place, int] = {}

    def close(self) -> None:
        """Close the consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def read(self, ranges: Mapping[Place, OffsetRange]) -> Iterator[tuple[OffsetRange, Sequence[Any]]]:
        """Read ranges of offsets, and yield their messages as they come. Messages of one partition come in order.

        Args:
            ranges: The ranges by topic and partition.

        Raises:
            InvalidInputError: The user may not read.
            StoreUnavailableError: The brokers send nothing, not even records of aborted transactions.
        """
        left = {place: offsets for place, offsets in ranges.items() if offsets.first < offsets.end}
        if not left:
            return
        is_large, is_read = sum(offsets.end - offsets.begin for offsets in left.values()) > _ROWS_PER_CALL, False
        try:
            yield from self._read(left, is_large)
            is_read = True
        finally:
            self._used = time.monotonic()
            # Records of partitions that are not asked for must not gather.
            if is_large or not is_read or sum(map(len, self._ahead.values())) > _ROWS_PER_CALL:
                self.close()
                self._next = {}

    def _read(self, left: dict[Place, OffsetRange], is_large: bool) -> Iterator[tuple[OffsetRange, Sequence[Any]]]:
        at = {place: (offsets.partition_name, max(offsets.begin, offsets.first)) for place, offsets in left.items()}
        kafka, goes_on = library(), self._goes_on_at(at)
        if not goes_on:
            self._begin(at)
        came = [message for place in at for message in self._ahead.pop(place, ())]
        complaint, last_message = "", time.monotonic() if goes_on else self._moves.last
        while True:
            for place, messages in _runs(came, next(iter(self._next)) if len(self._next) == 1 else None):
                if place not in left:
                    if not is_large:
                        self._ahead.setdefault(place, []).extend(messages)
                    continue
                offsets = left[place]
                if messages[-1].offset() >= offsets.end:
                    self._ahead[place] = [message for message in messages if message.offset() >= offsets.end]
                    messages = [message for message in messages if message.offset() < offsets.end]
                if messages:
                    self._next[place] = offsets.partition_name, messages[-1].offset() + 1
                    yield offsets, messages
            for place, offsets in [*left.items()]:
                # Offsets before the end that never came are marks of transactions, or were compacted away.
                is_behind = bool(self._ahead.get(place)) or self._ends.get(place, 0) >= offsets.end
                if is_behind or self._next[place][1] >= offsets.end:
                    self._next[place] = offsets.partition_name, offsets.end
                    del left[place]
                    if is_large:
                        with self._asking():
                            self._consumer.pause([kafka.TopicPartition(*place)])
            if not left:
                return
            wanted = sum(offsets.end - self._next[place][1] for place, offsets in left.items())
            with self._asking():
                fetched = self._consumer.consume(min(wanted, _ROWS_PER_CALL), timeout=_WAIT)
            now = time.monotonic()
            if fetched:
                last_message = now
            elif goes_on and now - last_message > _GOING_ON:
                # A new client starts from nothing that this one may have wrong, as after a failover.
                goes_on = False
                self._begin({})
            elif now - max(last_message, self._moves.last) > PATIENCE:
                raise StoreUnavailableError(
                    f"{self._what} sent nothing of {sorted(left)} for {PATIENCE:g} s{complaint}; check the brokers, then try "
                    "again."
                )
            failed = [message for message in fetched if message.error() is not None]
            came = [message for message in fetched if message.error() is None] if failed else fetched
            for message in failed:
                complaint = self._complaint_of(message) or complaint

    def _goes_on_at(self, at: Mapping[Place, tuple[str, int]]) -> bool:
        """Return whether the consumer is where these partitions are to be read from, and was not left alone for long."""
        is_near = self._consumer is not None and time.monotonic() <= self._used + _IDLE
        return is_near and at.items() <= self._next.items()

    def _begin(self, at: Mapping[Place, tuple[str, int]]) -> None:
        """Open a consumer that fetches from these offsets on, and in other partitions from where they were read to."""
        kafka = library()
        self.close()
        self._moves, self._next, self._ahead, self._ends = Moves(), {**self._next, **at}, {}, {}
        with self._asking():
            self._consumer = kafka.Consumer(self._moves.options(self._options))
            self._consumer.assign([kafka.TopicPartition(*place, offset) for place, (_, offset) in self._next.items()])

    def _complaint_of(self, message: Any) -> str:
        """Take in an error of the client, and return what it complains of, for the error that gives up.

        Raises:
            StateError: It is of no use to try again.
        """
        kafka = library()
        error = message.error()
        topic: str | None = message.topic()
        if error.code() == kafka.KafkaError._PARTITION_EOF:
            self._ends[message.topic(), message.partition()] = message.offset()
        elif error.code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise InvalidInputError(f"{self._what}: the user may not READ topic={topic!r}; grant that.")
        elif error.code() == kafka.KafkaError.GROUP_AUTHORIZATION_FAILED:
            # No offsets are committed to the group, so it needs no permission.
            pass
        elif is_refusal(error, self._options):
            with self._asking():
                raise kafka.KafkaException(error)
        elif topic is None:
            # A connection failed, or there is no token yet, and the client tries again.
            return f", and says {text_without_secrets(reason_of(error, self._options), dict(self._options))!r}"
        elif not error.retriable():
            with self._asking():
                raise kafka.KafkaException(error)
        return ""


class News:
    """A consumer that waits for records behind ends of partitions. It fetches nothing but while it waits.

    Args:
        asking: Turns the client's errors into those of this package.
        options: The consumer's options.
    """

    def __init__(self, asking: Callable[[], AbstractContextManager[None]], options: Mapping[str, Any]) -> None:
        self._asking = asking
        # The first record is the news. Brokers hold a request for longer than a reader wants, and so are asked less often.
        self._options = {**options, "fetch.message.max.bytes": 1, "fetch.wait.max.ms": 500}
        self._consumer: Any = None
        self._at: Mapping[Place, int] = {}

    def await_beyond(self, ends: Mapping[Place, int], seconds: float, stopping: threading.Event) -> None:
        """Wait until there is a record at or behind one of these offsets, for so many seconds at most, or until `stopping`.

        Raises:
            InvalidInputError: The options are wrong.
            StoreUnavailableError: No client can be made now.
        """
        kafka, deadline = library(), time.monotonic() + seconds
        with self._asking():
            if self._consumer is None:
                self._consumer = kafka.Consumer(self._options)
            if ends != self._at:
                self._consumer.assign([kafka.TopicPartition(*place, end) for place, end in ends.items()])
                self._at = {**ends}
            while (left := deadline - time.monotonic()) > 0 and not stopping.is_set():
                message = self._consumer.poll(min(left, _STOP_WAIT))
                # The next look at the source raises the errors of brokers.
                if message is not None and message.error() is None:
                    self._consumer.unassign()
                    self._at = {}
                    return


def record_sizes(
    asking: Callable[[], AbstractContextManager[None]],
    options: Mapping[str, Any],
    begins: Mapping[tuple[str, int], int],
) -> dict[tuple[str, int], float]:
    """Return about how many bytes an offset of each partition has, by a few records from an offset on.

    A partition that sends none in a short time is left out.

    Args:
        asking: Turns the client's errors into those of this package.
        options: The consumer's options.
        begins: By topic and partition: the offset.

    Raises:
        InvalidInputError: The options are wrong.
        StoreUnavailableError: No client can be made now.
    """
    kafka = library()
    with asking():
        # Brokers send a greater record by itself.
        consumer = kafka.Consumer({**options, "fetch.message.max.bytes": _SAMPLE_BYTES})
    sizes: dict[tuple[str, int], float] = {}
    deadline = time.monotonic() + _SAMPLE_SECONDS
    try:
        with asking():
            consumer.assign([kafka.TopicPartition(*place, begin) for place, begin in begins.items()])
            while len(sizes) < len(begins) and time.monotonic() < deadline:
                messages = consumer.consume(_SAMPLE_ROWS, timeout=_SAMPLE_WAIT)
                for place, sample in _runs([message for message in messages if message.error() is None], None):
                    if place not in sizes:
                        sizes[place] = size_of(sample) / (sample[-1].offset() + 1 - sample[0].offset())
                        consumer.pause([kafka.TopicPartition(*place)])
    finally:
        consumer.close()
    return sizes


def size_of(messages: Sequence[Any]) -> int:
    """Return about how many bytes these records of a partition take: keys, values, headers, and what stands beside these.

    The headers of the first stand for those of all, since the client needs long to return them.
    """
    keys = sum([len(key) for message in messages if (key := message.key())])
    headers = sum(len(name) + len(value or b"") for name, value in headers_of(messages[0]) or ())
    return sum(map(len, messages)) + keys + (headers + _BYTES_BESIDE) * len(messages)


def times_of(messages: Sequence[Any]) -> pa.Array:
    """Return the time of each record; null if it has none, or one that no clock can be computed from."""
    millis = np.array([message.timestamp()[1] for message in messages], np.int64)
    # A record without a time has -1. Producers may write any number.
    is_time = (millis >= 0) & (millis <= FURTHEST // 1000)
    return pa.array(np.where(is_time, millis, 0) * 1000, mask=~is_time).cast(ORIGIN["time"].type)


def originals(at: NDArray[np.int64], messages: Sequence[Any], positions: NDArray[np.int64]) -> pa.RecordBatch:
    """Return the messages at these positions as they came. `at` are the offsets of `messages`."""
    some = [messages[place] for place in np.searchsorted(at, positions)]
    origins = [
        {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "time": time.value,
            "key": message.key(),
            "headers": None if headers is None else [{"name": name, "value": value} for name, value in headers],
        }
        for message, time, headers in zip(some, times_of(some), map(headers_of, some), strict=True)
    ]
    record = pa.array([message.value() for message in some], pa.large_binary())
    return pa.record_batch({"record": record, "origin": pa.array(origins, ORIGIN)})


def _runs(messages: Sequence[Any], only: tuple[str, int] | None) -> Iterator[tuple[tuple[str, int], Sequence[Any]]]:
    """Yield messages by partition, in their order. If only one partition is read, `only` is that one."""
    if only is not None:
        if messages:
            yield only, messages
        return
    by_partition: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for message in messages:
        by_partition[message.topic(), message.partition()].append(message)
    yield from by_partition.items()
