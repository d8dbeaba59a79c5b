"""Ask brokers which topics exist, which partitions they have, and the first and end offset of each partition."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from persistent_state.errors import InvalidInputError, StoreUnavailableError
from persistent_state.formatting import show_clock
from persistent_state.kafka.client import answer, library

TIMEOUT = 20.0
"""Seconds to wait for an answer."""

PATIENCE = 30.0
"""Seconds to ask again while answers may be those of a failover."""

_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id of every topic at a broker that gives topics no ids."""

_T = TypeVar("_T")


class DoubtfulError(InvalidInputError):
    """An answer that contradicts the journal. A broker that was cut off may give one, so the source asks again."""


@dataclass(frozen=True)
class Topic:
    """A topic as it is now: its id (None: the broker gives none), and each partition's first and end offset.

    `written` has the end of all records by partition, also of those of open transactions.
    """

    name: str
    id: str | None
    offsets: Mapping[int, tuple[int, int]]
    written: Mapping[int, int]


@dataclass(frozen=True)
class TopicRecord:
    """A topic as a line of the journal records it: its id, and where reading each partition began.

    `generation` counts how often the topic was made again and the source went on. `until` says, by partition, up to where the
    last topic of that name was read. The names of the fields are those of the journal.
    """

    name: str
    id: str | None
    begins: Mapping[str, int]
    generation: int = 0
    until: Mapping[str, int] = field(default_factory=dict)

    def partition_name(self, partition: int) -> str:
        """Return the name of a partition, which is also its channel's."""
        return f"{self.name}-{partition}" + (f"#{self.generation}" if self.generation else "")

    def merge(self, other: TopicRecord, replay: Mapping[str, int]) -> TopicRecord | None:
        """Return the record of two flows by their own records; None if an offset may not mean the same record to both.

        The flow that began later never had the records before, so both must go on from behind them. They go on from `replay`,
        or from later offsets.
        """
        if self.id is None or replace(self, begins={}) != replace(other, begins={}):
            return None
        begins = {
            number: (self.begins.get(number, 0), other.begins.get(number, 0))
            for number in {**self.begins, **other.begins}
        }
        for number, (one, two) in begins.items():
            if one != two and replay.get(self.partition_name(int(number)), 0) < max(one, two):
                return None
        return replace(self, begins={number: max(pair) for number, pair in begins.items()})


def topic_of(partition: str) -> tuple[str, int]:
    """Return the name and the generation of the topic that has a partition of this name."""
    topic, _, number = partition.rpartition("-")
    return topic, int(number.partition("#")[2] or 0)


def number_of(partition: str) -> int:
    """Return the number that a partition of this name has in its topic."""
    return int(partition.rpartition("-")[2].partition("#")[0])


@dataclass(frozen=True)
class Partition:
    """A partition as it is now: where reading begins if the log has no position, the first offset, and the end.

    If the topic was made again, `until` says up to where this partition of the old topic was read. Records up to `written` are
    there. Those from `end` on are in a transaction that is open, or behind one.
    """

    topic: str
    number: int
    begin: int
    first: int
    end: int
    until: int | None
    written: int

    def gap(self, begin: int, is_new: bool) -> Mapping[str, Any] | None:
        """Describe the offsets that a reader at `begin` has lost, or return None. `is_new`: nothing was read here before."""
        if is_new and self.until is not None:
            return {"topic": self.topic, "partition": self.number, "of the old topic from": self.until}
        if begin < self.first:
            return {"topic": self.topic, "partition": self.number, "from": begin, "first": self.first}
        return None


def ask_again(ask: Callable[[], _T], renew: Callable[[], None]) -> _T:
    """Return what `ask` returns. If brokers may be in a failover, call `renew`, which makes a new client, and ask again.

    Raises:
        StoreUnavailableError: No broker answers.
        InvalidInputError: A broker refuses, or brokers go on contradicting the journal.
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
    """Return topics by name.

    Args:
        admin: An admin client.
        wanted: Names, or a pattern that whole names match.
        is_committed: Partitions end before the first open transaction, instead of behind all records.
        known: The names of topics that were there before.

    Raises:
        InvalidInputError: One of the names is no topic; DoubtfulError if it is `known` to have been one.
        KafkaException: The broker does not answer, or refuses.
    """
    kafka = library()
    names = wanted if not isinstance(wanted, re.Pattern) else _matching(admin, wanted)
    if not names:
        return {}
    described = admin.describe_topics(kafka.TopicCollection(list(names)), request_timeout=TIMEOUT)
    descriptions = {}
    for name, future in described.items():
        try:
            descriptions[name] = _result(future, name)
        except kafka.KafkaException as error:
            if error.args[0].code() != kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            if not isinstance(wanted, re.Pattern):
                kind = DoubtfulError if name in known else InvalidInputError
                raise kind(f"topic={name!r} is not there; make it, or correct the name.") from None
    places = [(name, one.id) for name, topic in descriptions.items() for one in topic.partitions]
    spec = kafka.admin.OffsetSpec
    # The brokers answer these two at the same time.
    first_of = ask_offsets(admin, dict.fromkeys(places, spec.earliest()), is_committed)
    written_of = ask_offsets(admin, dict.fromkeys(places if is_committed else (), spec.latest()), False)
    first, written = first_of(), written_of()
    # Ask for the end afterwards: what is written between the two questions would look like an open transaction.
    end = offsets(admin, dict.fromkeys(places, spec.latest()), is_committed)
    return {
        name: Topic(
            name,
            None if str(topic.topic_id) == _NO_ID else str(topic.topic_id),
            {one.id: (first[name, one.id], end[name, one.id]) for one in topic.partitions},
            {one.id: max(end[name, one.id], written.get((name, one.id), 0)) for one in topic.partitions},
        )
        for name, topic in descriptions.items()
    }


def offsets(admin: Any, specs: Mapping[tuple[str, int], Any], is_committed: bool) -> dict[tuple[str, int], int]:
    """Return the offset that each `OffsetSpec` asks for, by topic and partition; -1 if no record is of that time or later.

    Raises:
        KafkaException: The broker does not answer, or refuses.
    """
    return ask_offsets(admin, specs, is_committed)()


def ask_offsets(
    admin: Any, specs: Mapping[tuple[str, int], Any], is_committed: bool
) -> Callable[[], dict[tuple[str, int], int]]:
    """Ask for what `offsets` returns, and return the function that waits for the answer and returns it."""
    kafka = library()
    level = kafka.IsolationLevel.READ_COMMITTED if is_committed else kafka.IsolationLevel.READ_UNCOMMITTED
    request = {kafka.TopicPartition(*place): spec for place, spec in specs.items()}
    futures = admin.list_offsets(request, isolation_level=level, request_timeout=TIMEOUT) if request else {}

    def wait() -> dict[tuple[str, int], int]:
        offset_by_place = {}
        for place, future in futures.items():
            offset = int(_result(future, place.topic).offset)
            is_timed = isinstance(request[place], type(kafka.admin.OffsetSpec.for_timestamp(0)))
            # While a partition has no leader, the library returns -1001 and no error.
            if offset < (-1 if is_timed else 0):
                raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError.LEADER_NOT_AVAILABLE))
            offset_by_place[place.topic, place.partition] = offset
        return offset_by_place

    return wait


def commit_offsets(admin: Any, group: str, places: Mapping[tuple[str, int], int]) -> None:
    """Commit offsets, by topic and partition, to a consumer group that has no members.

    Raises:
        InvalidInputError: The group has members.
        KafkaException: The broker does not answer, or refuses.
    """
    kafka = library()
    if not places:
        return
    wanted = [kafka.TopicPartition(*place, offset) for place, offset in places.items()]
    request = [kafka.ConsumerGroupTopicPartitions(group, wanted)]
    (future,) = admin.alter_consumer_group_offsets(request, request_timeout=TIMEOUT).values()
    for one in answer(future, 2 * TIMEOUT).topic_partitions:
        if one.error is not None and one.error.code() == kafka.KafkaError.UNKNOWN_MEMBER_ID:
            raise InvalidInputError(f"group={group!r} has members, and only they may commit; name another group.")
        if one.error is not None:
            raise kafka.KafkaException(one.error)


def time_at(consumer: Any, topic: str, partition: int, offset: int) -> str | None:
    """Return the time of the first record at or after an offset as text; None if there is no such record."""
    kafka = library()
    consumer.assign([kafka.TopicPartition(topic, partition, offset)])
    message = consumer.poll(TIMEOUT)
    if message is None or message.error() is not None:
        return None
    millis: int = message.timestamp()[1]
    return "none" if millis < 0 else show_clock(millis * 1000)


def _result(future: Future[Any], topic: str) -> Any:
    kafka = library()
    try:
        return answer(future, 2 * TIMEOUT)
    except kafka.KafkaException as error:
        if error.args[0].code() != kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise
        raise InvalidInputError(f"the user may not DESCRIBE topic={topic!r}; grant that.") from None


def _matching(admin: Any, pattern: re.Pattern[str]) -> list[str]:
    names = admin.list_topics(timeout=TIMEOUT).topics
    return sorted(name for name in names if pattern.fullmatch(name) and not name.startswith("__"))
