"""The subscription of both Kafka sources: they find the topics and offsets to read, and the offsets that are lost."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from persistent_state.errors import InvalidInputError, StoreUnavailableError
from persistent_state.kafka.client import asking, checked_options, client_options, library
from persistent_state.kafka.topics import (
    DoubtfulError,
    Partition,
    Topic,
    TopicRecord,
    ask_again,
    look_up,
    offsets,
    time_at,
    topic_of,
)
from persistent_state.sources.base import Reach, check_timestamp_unit

EARLIEST, LATEST = "earliest", "latest"
COMMITTED = "read_committed"
GAP = "gap"
"""The key of a journal line that records a loss. Every other line records a topic."""
TOPIC, PARTITION, OFFSET, TIME = "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp"

SETTLING = 10.0
"""Seconds that a run to the end waits for transactions that are open when it begins."""

_T = TypeVar("_T")
_S = TypeVar("_S", bound="Subscription")


@dataclass
class _State:
    """The driver's knowledge of the topics, from `open` on.

    `topics` are the journal's records by topic name, and `is_first_start` says that the journal had none. `journal` holds
    the lines that are committed. `unread` holds by partition the first position that was never committed. `replaced_ids` are
    the ids of deleted topics that others of their name replaced, and `losses` the journal lines of topics that are gone.
    `last_reach` holds the newest reach's journal lines, start and ends. The partitions `held` are not read on, and none is
    read beyond the offsets `within`. `pending` holds for each partition with an open transaction where that begins, and since
    when that is known, by a clock that only counts seconds. `sizes` holds about how many bytes a record of each partition has,
    and when that was asked, by the same clock.
    """

    topics: dict[str, TopicRecord]
    is_first_start: bool
    journal: set[str]
    unread: Mapping[str, int]
    replaced_ids: set[str | None]
    losses: list[str] = field(default_factory=list)
    last_reach: tuple[Sequence[str], Mapping[str, int], Mapping[str, int]] = ((), {}, {})
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    is_frozen: bool = False
    held: frozenset[str] = frozenset()
    within: Mapping[str, int] | None = None
    pending: dict[str, tuple[int, float]] = field(default_factory=dict)
    sizes: dict[str, tuple[float, float]] = field(default_factory=dict)


class Subscription:
    """Topics whose partitions are listed and whose offsets are checked, by the driver.

    A position is an offset. The journal has one line for each topic: its id, and the offset where reading each of its
    partitions began. So a start finds out whether a topic was deleted and made again, and which offsets were lost.
    """

    def __init__(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        bootstrap_servers: str,
        *,
        timestamp: str,
        timestamp_unit: str | None,
        starting_offsets: str | datetime,
        max_offsets_per_batch: int,
        fail_on_data_loss: bool,
        group: str | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        library()
        names = [topics] if isinstance(topics, str) else topics
        if isinstance(names, re.Pattern) and names.flags != re.UNICODE:
            raise InvalidInputError(f"topics={names!r} has flags, which not all clients know; write it without.")
        if not isinstance(names, re.Pattern) and (not names or not all(isinstance(one, str) for one in names)):
            raise InvalidInputError(f"topics={topics!r}; name a topic or several, or give a compiled pattern.")
        if starting_offsets not in (EARLIEST, LATEST) and not (
            isinstance(starting_offsets, datetime) and starting_offsets.tzinfo is not None
        ):
            raise InvalidInputError(f"{starting_offsets=}; say 'earliest', 'latest', or give a time with a zone.")
        if max_offsets_per_batch < 1:
            raise InvalidInputError(f"{max_offsets_per_batch=}; give at least 1.")
        self.topics: Sequence[str] | re.Pattern[str] = names if isinstance(names, re.Pattern) else sorted(set(names))
        self.bootstrap_servers = bootstrap_servers
        self.timestamp = timestamp
        check_timestamp_unit(timestamp_unit)
        self.timestamp_unit = timestamp_unit
        self.starting_offsets = starting_offsets
        self.max_offsets_per_batch = max_offsets_per_batch
        self.fail_on_data_loss = fail_on_data_loss
        self.group = group
        self.options = checked_options(repr(self), options)
        self._opened_state: _State | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._topic_names!r}, {self.bootstrap_servers!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Clients can't be pickled.
        return {name: value for name, value in vars(self).items() if name != "_admin"} | {"_opened_state": None}

    def read_by(self: _S, application: str) -> _S:
        """Return the source with a consumer group of the application's name, unless the user named a group.

        Args:
            application: The application's name.
        """
        source = copy(self)
        source.group = self.group or f"{application} {self._topic_names}"
        return source

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        """Begin a start with the topics that the journal records.

        Args:
            journal: The lines that earlier starts wrote.
            known: By partition: the first position that was never committed.

        Raises:
            InvalidInputError: A topic is not there any more, or was made again, or the journal is another source's.
            StoreUnavailableError: No broker answers.
        """
        try:
            recorded = [record for line in journal if (record := _parse(line))]
        except (TypeError, ValueError):
            recorded = []
        if known and not recorded:
            raise InvalidInputError(
                f"{self!r} is to go on from {dict(known)}, and its journal knows no topic; the task had another source: give "
                "it another name, or reset it."
            )
        newest = {topic.name: topic for topic in recorded}
        replaced_ids = {topic.id for topic in recorded if topic is not newest[topic.name]} - {None}
        replaced_ids -= {topic.id for topic in newest.values()}
        self._opened_state = _State(newest, not recorded, set(journal), dict(known), replaced_ids)
        # Lost offsets are found by `reach`, which knows from where the start reads.
        self._ask_again(lambda: self._check_ends(self._look_up(known, is_whole=True, is_needed=False), known))

    def hold(self, partitions: Collection[str]) -> None:
        """Read no further in these partitions until the next call.

        Args:
            partitions: The names of the partitions.
        """
        self._state.held = frozenset(partitions)

    def stay_within(self, ends: Mapping[str, int]) -> None:
        """Reach no further than these offsets until the next call.

        Args:
            ends: By partition: the offset to stop at. One that is not named is not read.
        """
        self._state.within = dict(ends)

    def amount(self, start: Mapping[str, int], end: Mapping[str, int]) -> tuple[int, str]:
        """Return how many messages there are at most between two offsets, and the word for them.

        Args:
            start: By partition: the first offset.
            end: By partition: the offset before which it ends.
        """
        return sum(max(0, last - start.get(name, 0)) for name, last in end.items()), "messages"

    def places(self, start: Mapping[str, int]) -> dict[str, str]:
        """Return no words for offsets, which everybody knows.

        Args:
            start: By partition: the offset.
        """
        return {}

    def check_again(self, start: Mapping[str, int], journal: Sequence[str], newest: Sequence[str]) -> None:
        """Refuse a rewind if offsets of topics are lost that the source has found since the clock.

        Args:
            start: By partition: the offset from which to read again.
            journal: The lines that the source had written when the clock was the newest.
            newest: All lines that it has written by now.

        Raises:
            InvalidInputError: Offsets, or a topic, are lost.
            StoreUnavailableError: No broker answers.
        """
        known = {record.name for line in journal if (record := _parse(line))}
        later = [line for line in newest if (record := _parse(line)) and record.name not in known]
        if later:
            self.open([*journal, *later], start)
            self.reach(start, everything=True)

    def freeze(self) -> None:
        """Make every later reach end where the partitions end at the next one.

        That one waits a little for transactions that are open then: their records are there.
        """
        self._state.is_frozen = True

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        """Return how far the next micro-batch goes, with the journal lines that are not committed yet.

        Args:
            start: By partition: the offset that the micro-batch starts at.
            everything: True to go to the end of each partition, False to stop at `max_offsets_per_batch`.

        Returns:
            The ends of the micro-batch. They equal `start` if there is nothing to read.

        Raises:
            InvalidInputError: Offsets that are to be read were deleted, or a topic was made again.
            StoreUnavailableError: No broker answers.
        """
        state = self._state
        if not (state.is_frozen and state.partitions):
            state.partitions = (
                self._settled(start) if state.is_frozen else self._ask_again(lambda: self._look_up(start))
            )
            if any(start.get(name, 0) > partition.end for name, partition in state.partitions.items()):
                self._ask_again(lambda: self._check_ends(self._look_up(start, is_whole=True), start))
        # Step over lost offsets at once, so that one micro-batch reports all of a gap.
        begins = {
            name: max(start.get(name, partition.begin), partition.first) for name, partition in state.partitions.items()
        }
        begins.update({name: start[name] for name in state.held & start.keys()})
        lags = {
            name: 0 if name in state.held else max(0, partition.end - begins[name])
            for name, partition in state.partitions.items()
        }
        if state.within is not None:
            # Lost offsets beyond that are not stepped over either, and what has no end there is not begun.
            begins = {
                name: min(at, max(start.get(name, 0), state.within.get(name, 0)))
                for name, at in begins.items()
                if name in state.within or name in start
            }
            lags = {
                name: max(0, min(lag, state.within.get(name, 0) - begins[name]))
                for name, lag in lags.items()
                if name in begins
            }
        lags = lags if everything else {**self._limited(begins, lags)}
        ends = {**start, **{name: begins[name] + lag for name, lag in lags.items()}}
        lines, last_start, last_ends = state.last_reach
        if last_start != last_ends == start:
            # This start is where the last micro-batch ended, so that micro-batch and its lines were committed.
            state.journal.update(lines)
        records = map(_line, state.topics.values())
        lines = tuple(line for line in (*records, *state.losses) if line not in state.journal)
        state.last_reach = lines, dict(start), ends
        lag = {name: max(0, partition.written - ends.get(name, 0)) for name, partition in state.partitions.items()}
        return Reach(
            ends,
            dict.fromkeys(state.partitions, False),
            lines,
            unread=sum(lag.values()),
            lag=lag,
            pending=self._pending(),
        )

    @property
    def partitions(self) -> Mapping[str, Partition]:
        """Return the partitions by name, as they were when a broker was last asked."""
        return self._state.partitions

    @property
    def _state(self) -> _State:
        assert self._opened_state is not None, "open comes first"
        return self._opened_state

    @property
    def _starts(self) -> str | int:
        """The place where the first start begins: a word, or milliseconds by the records' times."""
        return self.starting_offsets if isinstance(self.starting_offsets, str) else _millis(self.starting_offsets)

    @property
    def _topic_names(self) -> str:
        return self.topics.pattern if isinstance(self.topics, re.Pattern) else ", ".join(self.topics)

    def _limited(self, begins: Mapping[str, int], lags: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many offsets of each partition a micro-batch reads, of those that there are from `begins` on."""
        return shared(lags, self.max_offsets_per_batch, sum(lags.values()))

    def _settled(self, start: Mapping[str, int]) -> dict[str, Partition]:
        """Return the partitions as they are when the transactions have ended that are open now, or after `SETTLING`."""
        partitions = self._ask_again(lambda: self._look_up(start))
        written = {name: partition.written for name, partition in partitions.items()}
        deadline = time.monotonic() + SETTLING
        while any(partitions[name].end < end for name, end in written.items() if name in partitions):
            if time.monotonic() >= deadline:
                break
            time.sleep(0.1)
            partitions = self._ask_again(lambda: self._look_up(start))
        # Transactions that have begun meanwhile belong to the next run.
        return {
            name: replace(partition, written=max(partition.end, written.get(name, 0)))
            for name, partition in partitions.items()
        }

    def _pending(self) -> dict[str, float]:
        """Return for how many seconds each partition has held records that can't be read yet."""
        state, now = self._state, time.monotonic()
        waiting = {
            name: partition.end for name, partition in state.partitions.items() if partition.end < partition.written
        }
        known = state.pending.items()
        since = {name: seen for name, (end, seen) in known if waiting.get(name) == end}
        state.pending = {name: (end, since.get(name, now)) for name, end in waiting.items()}
        return {name: now - seen for name, (_, seen) in state.pending.items()}

    def _ask_again(self, ask: Callable[[], _T]) -> _T:
        """Return what `ask` returns. Ask again, by a new client, while an answer may be one of a failover."""
        return ask_again(ask, lambda: vars(self).pop("_admin", None))

    def _look_up(
        self, start: Mapping[str, int], is_whole: bool = False, is_needed: bool = True
    ) -> dict[str, Partition]:
        """Return the partitions as they are now, by name, and update the records of their topics.

        Args:
            start: By partition: the offset at which to go on.
            is_whole: True if partitions end behind all records, also the records of open transactions.
            is_needed: True if all offsets from `start` on must exist.

        Raises:
            InvalidInputError: Offsets or topics that are to be read are not there any more.
        """
        state = self._state
        # A reader of uncommitted records may have read beyond the last committed one.
        is_committed = not is_whole and self.options.get("isolation.level", COMMITTED) == COMMITTED
        with self._asking():
            described = look_up(self._admin, self.topics, is_committed, state.topics)
        losses = []
        for name, record in state.topics.items():
            if name not in described and isinstance(self.topics, re.Pattern) and self.topics.fullmatch(name):
                if self.fail_on_data_loss:
                    raise DoubtfulError(
                        f"topic={name!r} of {self!r} is gone; bring it back, or say fail_on_data_loss=False."
                    )
                losses.append(json.dumps({GAP: {"topic": name, "id": record.id}}))
        records, partitions = dict(state.topics), {}
        for name, topic in described.items():
            record = records[name] = self._record_of(topic, start)
            for number, (first, end) in topic.offsets.items():
                partition_name = record.partition_name(number)
                # A partition that is newer than the record of its topic began at 0.
                begin = start.get(partition_name, record.begins.get(str(number), 0))
                if is_needed and begin < first and self.fail_on_data_loss:
                    raise self._data_loss(name, number, begin, state.unread.get(partition_name, 0), first, end)
                until = record.until.get(str(number))
                partitions[partition_name] = Partition(name, number, begin, first, end, until, topic.written[number])
        state.replaced_ids.update(
            record.id for record in state.topics.values() if records[record.name].generation > record.generation
        )
        state.topics, state.is_first_start = records, False
        state.losses += [line for line in losses if line not in state.losses]
        return partitions

    def _record_of(self, topic: Topic, start: Mapping[str, int]) -> TopicRecord:
        """Return the journal's record of a topic. Make one if the topic is new, or was made again."""
        state = self._state
        record = state.topics.get(topic.name)
        if record is not None and (record.id == topic.id or None in (record.id, topic.id)):
            return record
        if topic.id in state.replaced_ids:
            raise StoreUnavailableError(
                f"topic={topic.name!r} of {self!r} was made again, and a broker still answers for the old one; try again."
            )
        begins = {number: first for number, (first, _) in topic.offsets.items()}
        if record is not None and self.fail_on_data_loss:
            then = {p: start[record.partition_name(p)] for p in topic.offsets if record.partition_name(p) in start}
            raise InvalidInputError(
                f"topic={topic.name!r} of {self!r} was deleted and made again; the old one was to be "
                f"read from the offsets {then} of its partitions, and of the new one the oldest record is "
                f"{self._oldest(topic.name, begins)}. Reset the task, or say fail_on_data_loss=False to go on with the new one."
            )
        if record is None and state.is_first_start and (starts := self._starts) != EARLIEST:
            begins = {number: end for number, (_, end) in topic.offsets.items()}
            if isinstance(starts, int):
                spec = library().admin.OffsetSpec.for_timestamp(starts)
                request = {(topic.name, number): spec for number in topic.offsets}
                with self._asking():
                    timed = offsets(self._admin, request, is_committed=False)
                begins = {
                    p: min(end, timed[topic.name, p]) if timed[topic.name, p] >= 0 else end for p, end in begins.items()
                }
        new_begins = {str(number): begin for number, begin in begins.items()}
        if record is None:
            return TopicRecord(topic.name, topic.id, new_begins)
        # The record lacks partitions that appeared later. `start` says how far these were read.
        read = {str(p): start[name] for p in topic.offsets if (name := record.partition_name(p)) in start}
        return TopicRecord(topic.name, topic.id, new_begins, record.generation + 1, {**record.begins, **read})

    def _check_ends(self, partitions: Mapping[str, Partition], start: Mapping[str, int]) -> None:
        """Refuse to read from behind the end of a partition.

        Kafka would write other records at these offsets, and they would count as read.
        """
        for name, partition in partitions.items():
            if start.get(name, partition.begin) > partition.end:
                raise DoubtfulError(
                    f"topic={partition.topic!r} partition={partition.number} of {self!r} ends at offset {partition.end} and "
                    f"was read up to {start.get(name, partition.begin)}; it is another topic than it was: bring that back, "
                    "or reset the task."
                )

    def _data_loss(self, topic: str, number: int, begin: int, unread: int, first: int, end: int) -> InvalidInputError:
        again = f" ({begin} to {min(unread, first) - 1} again, as the global clock has yet to pass them)"
        return InvalidInputError(
            f"topic={topic!r} partition={number} of {self!r} has lost offsets {begin} to {first - 1}, which are yet to be "
            f"read{again if unread > begin else ''}: Kafka has deleted them, and the oldest record is "
            f"{self._oldest(topic, {number: first})}, the end {end}. Bring them back, reset the task, or say "
            "fail_on_data_loss=False to go on after them."
        )

    def _oldest(self, topic: str, begins: Mapping[int, int]) -> str:
        """Return a text of the oldest record's offset and time, from the first of these partitions that has a record."""
        with self._asking():
            consumer = library().Consumer(self._consumer_options())
            try:
                for number, first in begins.items():
                    if (time := time_at(consumer, topic, number, first)) is not None:
                        return f"offset {first} of partition {number}, time={time}"
            finally:
                consumer.close()
        return "none, it is empty"

    @cached_property
    def _admin(self) -> Any:
        with self._asking():
            return library().admin.AdminClient(client_options(self.bootstrap_servers, self.options))

    @property
    def _group(self) -> str:
        return self.group or self._topic_names

    def _asking(self) -> Any:
        return asking(repr(self), self.options)

    def _consumer_options(self) -> dict[str, Any]:
        return {
            # The log says what was read, and nothing is read by the group's offsets.
            "group.id": self._group,
            "fetch.wait.max.ms": 20,
            "fetch.message.max.bytes": 4 << 20,
            # By default librdkafka stops fetching for a second whenever many records wait.
            "fetch.queue.backoff.ms": 5,
            **client_options(self.bootstrap_servers, self.options),
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }


def shared(lags: Mapping[str, int], most: float, total: float) -> Mapping[str, int]:
    """Return by partition the share of its offsets that makes `most` of a `total`. One that has offsets has at least one."""
    return lags if total <= most else {name: int(-(-lag * most // total)) for name, lag in lags.items()}


def merge_journals(one: Sequence[str], other: Sequence[str], replay: Mapping[str, int]) -> list[str] | None:
    """Return the journal of two flows by their own journals; None if an offset may not mean the same record to both.

    It means the same if both know the same topics by their ids. As Kafka deletes old records, reading a partition may have
    begun at other offsets, if both flows go on from behind these.

    Args:
        one: The lines of one flow.
        other: The lines of the other flow.
        replay: By partition: the lesser of the offsets from which the flows go on.
    """
    try:
        lines = {line: _parse(line) for line in (*one, *other)}
        mine, others = (
            {(record.name, record.generation): record for line in own if (record := lines[line])}
            for own in (one, other)
        )
        # Spark's connector may have read of a topic that it has yet to record.
        if mine.keys() != others.keys() or not {topic_of(partition) for partition in replay} <= mine.keys():
            return None
    except (TypeError, ValueError):
        return None
    merged = [record.merge(others[key], replay) for key, record in mine.items()]
    gaps = [line for line, record in lines.items() if record is None]
    return None if None in merged else [*(_line(record) for record in merged if record), *gaps]


def _millis(time: datetime) -> int:
    # Numbers below 0 mean other places to Kafka, such as -1 the end. A record before 1970 has no time.
    return max(0, round(time.timestamp() * 1000))


def _line(record: TopicRecord) -> str:
    return json.dumps(vars(record))


def _parse(line: str) -> TopicRecord | None:
    """Return the record of a topic that is a line of the journal; None if the line records a loss.

    Raises:
        TypeError, ValueError: The line is another source's.
    """
    values = json.loads(line)
    return None if GAP in values else TopicRecord(**values)
