"""What a broker says of topics: which there are, their partitions, and from and to which offsets these hold records."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from persistent_state.errors import InvalidInputError, StoreUnavailableError
from persistent_state.kafka.client import answer, library

TIMEOUT = 20.0
"""Seconds until an answer will not come."""

PATIENCE = 30.0
"""Seconds for which brokers are asked again whose answers may be those of a moment, as while leaders move."""

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""What a broker says that gives topics no ids."""


_T = TypeVar("_T")


class DoubtfulError(InvalidInputError):
    """What can't be so if the broker knows how things stand, which one that has been cut off for a while does not."""


@dataclass(frozen=True)
class Topic:
    """A topic as it is now: its id (None: the broker gives none), and (first, end) of the offsets of each partition."""

    name: str
    id: str | None
    offsets: Mapping[int, tuple[int, int]]


@dataclass(frozen=True)
class TopicRecord:
    """A topic as the journal has it: its id, and where its partitions began.

    `generation` says how often it was made again, and that accepted; `until` up to where the one before was read.
    """

    name: str
    id: str | None
    begins: Mapping[str, int]
    generation: int = 0
    until: Mapping[str, int] = field(default_factory=dict)

    def partition_name(self, partition: int) -> str:
        return f"{self.name}-{partition}" + (f"#{self.generation}" if self.generation else "")


@dataclass(frozen=True)
class Partition:
    """A partition as it is now: where reading it begins if nothing is known, its first offset, and its end.

    `until` is up to where the partition of a topic that is gone was read, if this one was made again in its place.
    """

    topic: str
    number: int
    begin: int
    first: int
    end: int
    until: int | None

    def gap(self, begin: int, is_new: bool) -> Mapping[str, Any] | None:
        """What is lost to who is to read from `begin` on, if something is; one that is new has not read of it."""
        if is_new and self.until is not None:
            return {"topic": self.topic, "partition": self.number, "of the old topic from": self.until}
        if begin < self.first:
            return {"topic": self.topic, "partition": self.number, "from": begin, "first": self.first}
        return None


def ask_again(ask: Callable[[], _T], renew: Callable[[], None]) -> _T:
    """What a broker answers. An answer that may be of a moment is asked for again, after `renew` by another client.

    Raises:
        StoreUnavailableError: it does not answer.
        InvalidInputError: it refuses, or stays with what is doubtful.
    """
    end, pause = time.monotonic() + PATIENCE, 0.1
    while True:
        try:
            return ask()
        except (StoreUnavailableError, DoubtfulError) as error:
            if time.monotonic() + pause > end:
                if isinstance(error, DoubtfulError):
                    raise InvalidInputError(str(error)) from None
                raise
        time.sleep(pause)
        pause = min(2 * pause, 2.0)
        renew()


def look_up(
    admin: Any, wanted: Sequence[str] | re.Pattern[str], is_committed: bool, known: Container[str] = ()
) -> dict[str, Topic]:
    """The topics of these names, or all whose name the pattern matches. Ends are of what was committed, or of all.

    Raises:
        InvalidInputError: one of these names is no topic; DoubtfulError if it is `known` to have been one.
        KafkaException: the broker does not answer, or refuses.
    """
    kafka = library()
    names = wanted if not isinstance(wanted, re.Pattern) else _matching(admin, wanted)
    if not names:
        return {}
    described = admin.describe_topics(kafka.TopicCollection(list(names)), request_timeout=TIMEOUT)
    found = {}
    for name, future in described.items():
        try:
            found[name] = _granted(future, name)
        except kafka.KafkaException as error:
            if error.args[0].code() != kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            if not isinstance(wanted, re.Pattern):
                kind = DoubtfulError if name in known else InvalidInputError
                raise kind(f"topic={name!r} is not there; make it, or mend the name.") from None
    places = [(name, one.id) for name, topic in found.items() for one in topic.partitions]
    spec = kafka.admin.OffsetSpec
    first = offsets(admin, dict.fromkeys(places, spec.earliest()), is_committed)
    end = offsets(admin, dict.fromkeys(places, spec.latest()), is_committed)
    return {
        name: Topic(
            name,
            None if str(topic.topic_id) == _NO_ID else str(topic.topic_id),
            {one.id: (first[name, one.id], end[name, one.id]) for one in topic.partitions},
        )
        for name, topic in found.items()
    }


def offsets(admin: Any, asked: Mapping[tuple[str, int], Any], is_committed: bool) -> dict[tuple[str, int], int]:
    """The offsets of partitions that are asked for by an `OffsetSpec` each; -1 where there is no record of a time.

    Raises:
        KafkaException: the broker does not answer, or refuses.
    """
    kafka = library()
    level = kafka.IsolationLevel.READ_COMMITTED if is_committed else kafka.IsolationLevel.READ_UNCOMMITTED
    request = {kafka.TopicPartition(*place): spec for place, spec in asked.items()}
    futures = admin.list_offsets(request, isolation_level=level, request_timeout=TIMEOUT) if request else {}
    found = {}
    for place, future in futures.items():
        offset = int(_granted(future, place.topic).offset)
        is_timed = isinstance(request[place], type(kafka.admin.OffsetSpec.for_timestamp(0)))
        # Where a leader has just gone, the library gives -1001 and no error.
        if offset < (-1 if is_timed else 0):
            raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError.LEADER_NOT_AVAILABLE))
        found[place.topic, place.partition] = offset
    return found


def time_at(consumer: Any, topic: str, partition: int, offset: int) -> int | None:
    """The time (microseconds UTC) of the first record at or after an offset, None if there is none."""
    kafka = library()
    consumer.assign([kafka.TopicPartition(topic, partition, offset)])
    message = consumer.poll(TIMEOUT)
    if message is None or message.error() is not None:
        return None
    millis: int = message.timestamp()[1]
    return None if millis < 0 else millis * 1000


def _granted(future: Future[Any], topic: str) -> Any:
    kafka = library()
    try:
        return answer(future, 2 * TIMEOUT)
    except kafka.KafkaException as error:
        if error.args[0].code() != kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        raise InvalidInputError(f"the user may not DESCRIBE topic={topic!r}; let it.") from None


def _matching(admin: Any, pattern: re.Pattern[str]) -> list[str]:
    names = admin.list_topics(timeout=TIMEOUT).topics
    return sorted(name for name in names if pattern.fullmatch(name) and not name.startswith("__"))
