"""Read the records of Kafka partitions in a worker, and keep bad ones as they came."""

from __future__ import annotations

import json
import os
import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
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

_SILENCE = 5.0
"""Seconds without a record of a range after which a consumer that stays open is given up."""

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
    left: Mapping[tuple[str, int], OffsetRange],
) -> Iterator[tuple[OffsetRange, Sequence[Any]]]:
    """Read ranges of offsets, and yield their messages as they come. Messages of one partition come in order.

    Args:
        what: The source, for messages.
        asking: Turns the client's errors into those of this package.
        options: The consumer's options.
        left: The ranges by topic and partition.

    Raises:
        InvalidInputError: The user may not read.
        StoreUnavailableError: The brokers send nothing, not even records of aborted transactions.
    """
    kafka = library()
    left = {place: offsets for place, offsets in left.items() if offsets.first < offsets.end}
    if not left:
        return
    moves = Moves()
    with asking():
        consumer = kafka.Consumer(moves.options(options))
    try:
        with asking():
            consumer.assign(
                [kafka.TopicPartition(*place, max(offsets.begin, offsets.first)) for place, offsets in left.items()]
            )
        last_message, only = moves.last, next(iter(left)) if len(left) == 1 else None
        complaint = ""
        while left:
            with asking():
                messages = consumer.consume(_ROWS_PER_CALL, timeout=_WAIT)
            if not messages and time.monotonic() - max(last_message, moves.last) > PATIENCE:
                raise StoreUnavailableError(
                    f"{what} sent nothing of {sorted(left)} for {PATIENCE:g} s{complaint}; check the brokers, then try again."
                )
            last_message = time.monotonic() if messages else last_message
            failed = [message for message in messages if message.error() is not None]
            came = [message for message in messages if message.error() is None] if failed else messages
            for place, some in _runs(came, only):
                if (offsets := left.get(place)) is None:
                    continue
                if some[-1].offset() >= offsets.end - 1:
                    some = [message for message in some if message.offset() < offsets.end]
                    del left[place]
                    with asking():
                        consumer.pause([kafka.TopicPartition(*place)])
                if some:
                    yield offsets, some
            for message in failed:
                error = message.error()
                topic: str | None = message.topic()
                if error.code() == kafka.KafkaError._PARTITION_EOF:
                    # Offsets before the end that never came are marks of transactions, or were compacted away.
                    place = message.topic(), message.partition()
                    if place in left and message.offset() >= left[place].end:
                        del left[place]
                elif error.code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise InvalidInputError(f"{what}: the user may not READ topic={topic!r}; grant that.")
                elif error.code() == kafka.KafkaError.GROUP_AUTHORIZATION_FAILED:
                    # No offsets are committed to the group, so it needs no permission.
                    continue
                elif is_refusal(error, options):
                    with asking():
                        raise kafka.KafkaException(error)
                elif topic is None:
                    # A connection failed, or there is no token yet, and the client tries again.
                    complaint = f", and says {text_without_secrets(reason_of(error, options), dict(options))!r}"
                elif not error.retriable():
                    with asking():
                        raise kafka.KafkaException(error)
    finally:
        consumer.close()


class _DoubtError(Exception):
    """A consumer that stays open did not hand out just what it was asked for."""


@dataclass
class _Kept:
    """A consumer that stays open, and by topic and partition: the partition's name, and the offset behind all it has given."""

    consumer: Any
    names: dict[Place, str] = field(default_factory=dict)
    far: dict[Place, int] = field(default_factory=dict)


class Reader:
    """A reader by a consumer that stays open from one read to the next.

    The consumer is trusted as long as it hands out just what it was asked for. After anything else it is closed, and `records`
    reads what is left by another one: so all errors, and all waits, are those of `records`.

    Between two reads the consumer has no partitions and makes no statistics, as it would queue both. Threads share none.

    Args:
        what: The source, for messages.
        asking: Turns the client's errors into those of this package.
        options: The consumer's options.
        seconds: The time after a read at which the consumer is closed.
    """

    def __init__(
        self,
        what: str,
        asking: Callable[[], AbstractContextManager[None]],
        options: Mapping[str, Any],
        seconds: float,
    ) -> None:
        self._what, self._asking, self._options, self._seconds = what, asking, options, seconds
        # By process, as one that was forked has none of the consumer's threads, and to close it there would take for ever.
        self._kept: dict[int, _Kept] = {}
        self._timer = threading.Timer(seconds, self.close)

    def close(self) -> None:
        """Close the consumer, unless a read has it."""
        if kept := self._kept.pop(os.getpid(), None):
            kept.consumer.close()

    def read(self, ranges: Mapping[Place, OffsetRange]) -> Iterator[tuple[OffsetRange, Sequence[Any]]]:
        """Read ranges of offsets, and yield their messages, as `records` does and with its errors."""
        left = {
            place: replace(offsets, begin=max(offsets.begin, offsets.first))
            for place, offsets in ranges.items()
            if offsets.first < offsets.end
        }
        # To open a consumer takes no time beside a long read, in which partitions that are read to their end must be paused.
        if 0 < _length(left) <= _ROWS_PER_CALL:
            yield from self._read_soon(left)
        yield from records(self._what, self._asking, self._options, left)

    def await_beyond(self, ends: Mapping[Place, tuple[str, int]], seconds: float, stopping: threading.Event) -> bool:
        """Wait until a partition has a record at or behind its offset, the time is over, or `stopping` is set.

        Return whether there is a record. The next look at the source raises the errors of brokers.
        """
        deadline = time.monotonic() + seconds
        with suppress(_DoubtError, library().KafkaException), self._lent(ends) as kept:
            while (left := deadline - time.monotonic()) > 0 and not stopping.is_set():
                message = kept.consumer.poll(min(left, _STOP_WAIT))
                if message is not None and _is_record(message):
                    return True
        stopping.wait(max(0.0, deadline - time.monotonic()))
        return False

    def _read_soon(self, left: dict[Place, OffsetRange]) -> Iterator[tuple[OffsetRange, Sequence[Any]]]:
        """Read by the consumer that stays open, as far as it can be trusted, and keep in `left` what is left to read."""
        at = {place: (offsets.partition_name, offsets.begin) for place, offsets in left.items()}
        heard = time.monotonic()
        with suppress(_DoubtError, library().KafkaException), self._lent(at) as kept:
            # A record or an end that lies further on may be left over from an earlier read, and those before it be missing.
            unsure = {place for place, offsets in left.items() if offsets.begin < kept.far.get(place, 0)}
            while left:
                messages = kept.consumer.consume(_length(left), timeout=_WAIT)
                for place, run in _runs([message for message in messages if _is_record(message)], None):
                    came = [message.offset() for message in run]
                    kept.far[place] = came[-1] + 1
                    if (offsets := left.get(place)) is None:
                        continue
                    is_next = came[0] == offsets.begin or (came[0] > offsets.begin and place not in unsure)
                    if not is_next or any(later <= one for one, later in pairwise(came)):
                        raise _DoubtError
                    unsure.discard(place)
                    left[place] = replace(offsets, begin=came[-1] + 1)
                    if came[-1] >= offsets.end - 1:
                        del left[place]
                    if own := run[: bisect_left(came, offsets.end)]:
                        yield offsets, own
                    heard = time.monotonic()
                for message in messages:
                    place = message.topic(), message.partition()
                    if message.error() is not None and place in left and message.offset() >= left[place].end:
                        # Offsets before the end that never came are marks of transactions, or were compacted away.
                        if place in unsure:
                            raise _DoubtError
                        del left[place]
                if time.monotonic() - heard > _SILENCE:
                    raise _DoubtError

    @contextmanager
    def _lent(self, at: Mapping[Place, tuple[str, int]]) -> Iterator[_Kept]:
        """Lend the consumer, which begins at these offsets. It is kept if the block ends well, and else closed."""
        kafka, kept = library(), self._kept.pop(os.getpid(), None)
        self._timer.cancel()
        # A topic that was made again has other names of partitions.
        is_other = kept and any(kept.names.get(place, name) != name for place, (name, _) in at.items())
        if kept and (is_other or not _is_silent(kept.consumer)):
            kept.consumer.close()
            kept = None
        kept = kept or _Kept(kafka.Consumer({**self._options, "statistics.interval.ms": 0}))
        try:
            kept.consumer.assign([kafka.TopicPartition(*place, offset) for place, (_, offset) in at.items()])
            yield kept
            kept.consumer.unassign()
        except BaseException:
            kept.consumer.close()
            raise
        kept.names.update({place: name for place, (name, _) in at.items()})
        if self._kept.setdefault(os.getpid(), kept) is not kept:
            # Another thread has read meanwhile.
            kept.consumer.close()
        self._timer = threading.Timer(self._seconds, self.close)
        self._timer.daemon = True
        self._timer.start()


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


def _length(left: Mapping[Place, OffsetRange]) -> int:
    return sum(offsets.end - offsets.begin for offsets in left.values())


def _is_record(message: Any) -> bool:
    """Return whether a message is a record, and not a partition's end.

    Raises:
        _DoubtError: It is an error.
    """
    codes = library().KafkaError
    # No offsets are committed to the group, so it needs no permission.
    if (error := message.error()) is not None and error.code() not in (
        codes._PARTITION_EOF,
        codes.GROUP_AUTHORIZATION_FAILED,
    ):
        raise _DoubtError
    return error is None


def _is_silent(consumer: Any) -> bool:
    """Return whether a consumer without partitions has nothing to say: neither an error, nor a record of an earlier read."""
    with suppress(_DoubtError, library().KafkaException):
        return not any(map(_is_record, consumer.consume(_ROWS_PER_CALL, timeout=0)))
    return False


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
