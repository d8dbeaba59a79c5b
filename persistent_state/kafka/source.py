"""Kafka topics as a source: a channel for each partition, offsets for positions, and nothing missed without a word."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa

from persistent_state.errors import InvalidInputError, StoreUnavailableError, TaskFailedError, raised
from persistent_state.formatting import show_clock
from persistent_state.kafka import consumer, decoders, topics
from persistent_state.kafka.client import asking, client_options, library
from persistent_state.kafka.consumer import Part
from persistent_state.kafka.decoders import Decoder, Raw
from persistent_state.kafka.topics import Doubtful, Noted, Place
from persistent_state.sources.base import BadRecord, Chunk, Reach, TimeReplayableSource
from persistent_state.sources.formats import Transform, one_batch, transformed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_T = TypeVar("_T")
Said: TypeAlias = "Callable[[DataFrame], DataFrame]"

EARLIEST, LATEST = "earliest", "latest"
COMMITTED = "read_committed"
GAP = "gap"
"""What lines of the journal are named that tell of a loss, and of no topic."""
LOST, ANEW = "offsets were deleted before they were read", "the topic was made again before it was read to its end"
TOPIC, PARTITION, OFFSET, TIME = "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp"

_ROWS_PER_CHUNK = 1 << 16


@dataclass
class _Opened:
    """What the driver knows: the topics that were met, whether any start was before, and the partitions by partition.

    `written` are the lines of the journal, `reached` the lines of the newest reach with its start and ends. `past` are the ids
    of topics in whose place others were made, `gone` the lines that tell of those that are not there. `known` says by partition
    up to where was read.
    """

    noted: dict[str, Noted]
    is_first: bool
    written: set[str]
    known: Mapping[str, int]
    past: set[str | None]
    gone: list[str] = field(default_factory=list)
    reached: tuple[Sequence[str], Mapping[str, int], Mapping[str, int]] = ((), {}, {})
    places: Mapping[str, Place] = field(default_factory=dict)
    is_frozen: bool = False


class KafkaSource(TimeReplayableSource):
    """The records of Kafka topics, read by librdkafka and decoded by Arrow: a channel for each partition.

    `topics` is a name, several, or a compiled pattern that whole names match. `value` and `key` say what the bytes hold:
    `Json(schema)`, `Avro(schema)`, `Raw(name, type)`; by default the value is raw, in the column "value", and the key is
    left out. Beside these columns each row has `kafka_topic`, `kafka_partition` and `kafka_offset`. `timestamp` names the
    column of event time; by default it is `kafka_timestamp`, the record's own, which is there only then. Integers of another
    column count in `timestamp_unit`: "s", "ms", "us" or "ns".

    A position is an offset. A restart goes on from the offsets in the log, wherever event time comes from. Where the log has
    none, at the first start, `starting_offsets` says where to begin: "earliest", "latest", or a time with a zone, by the times
    of the records. A topic or partition that appears later is read from its beginning. A micro-batch takes at most
    `max_offsets_per_batch` offsets, more of a partition the more there are.

    Offsets that are to be read and no longer in Kafka, as it has deleted them by age or the topic was made again, stop the
    application; with `fail_on_data_loss=False` they are counted among the bad rows, one for each gap, and it goes on after
    them.

    Where `value` is a function, Spark reads the topics with its own connector, which the session must have. It is given a
    DataFrame of `key`, `value` (both binary), `kafka_topic`, `kafka_partition`, `kafka_offset` and `kafka_timestamp`, and
    returns one of rows and columns made of these, of which it keeps topic, partition and offset.

    `transform` is a stateless, row-wise function of a record batch: select, filter, explode, join to a static table. It
    keeps the column `kafka_offset`, which tells which record a row was made of. `options` go to librdkafka, such as those of
    TLS and SASL, and into no message; `isolation.level` is "read_committed" unless they say otherwise. `group` is the name by
    which brokers know who reads, by default that of the application and of the topics; no offsets are committed to it.
    """

    def __init__(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        bootstrap_servers: str,
        *,
        timestamp: str = TIME,
        timestamp_unit: str | None = None,
        value: Decoder | Said | None = None,
        key: Decoder | None = None,
        starting_offsets: str | datetime = EARLIEST,
        max_offsets_per_batch: int = 2_000_000,
        fail_on_data_loss: bool = True,
        transform: Transform | None = None,
        group: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        library()
        named = [topics] if isinstance(topics, str) else topics
        if isinstance(named, re.Pattern) and named.flags != re.UNICODE:
            raise InvalidInputError(f"topics={named!r} has flags, which not all clients know; write it without.")
        if not isinstance(named, re.Pattern) and (not named or not all(isinstance(one, str) for one in named)):
            raise InvalidInputError(f"topics={topics!r}; name a topic or several, or give a compiled pattern.")
        if starting_offsets not in (EARLIEST, LATEST) and not (
            isinstance(starting_offsets, datetime) and starting_offsets.tzinfo is not None
        ):
            raise InvalidInputError(f"{starting_offsets=}; say 'earliest', 'latest', or give a time with a zone.")
        if max_offsets_per_batch < 1:
            raise InvalidInputError(f"{max_offsets_per_batch=}; give at least 1.")
        self.timestamp = timestamp
        self.timestamp_unit = timestamp_unit
        self.topics: Sequence[str] | re.Pattern[str] = named if isinstance(named, re.Pattern) else sorted(set(named))
        self.bootstrap_servers = bootstrap_servers
        self.group = group
        self.options = dict(options or {})
        self.max_offsets_per_batch = max_offsets_per_batch
        self.accepts_loss = not fail_on_data_loss
        self.said: Said | None = None
        self._decoders: list[Decoder] = [] if key is None else [key]
        if value is None or hasattr(value, "decode"):
            self._decoders.append(cast(Decoder, value or Raw()))
        elif callable(value) and key is None and transform is None:
            self.said = value
        else:
            raise InvalidInputError(
                f"{value=} of {self!r} is no decoder; give one, such as Json(schema), or a function of Spark's DataFrame that "
                "does all, without key= and transform=."
            )
        self._starting_offsets = starting_offsets
        self._transform = transform
        self._has_key = key is not None
        self._opened: _Opened | None = None

    def __repr__(self) -> str:
        return f"KafkaSource({self._named!r}, {self.bootstrap_servers!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Clients can't be taken along.
        return {name: value for name, value in vars(self).items() if name != "_admin"} | {"_opened": None}

    @property
    def _named(self) -> str:
        return self.topics.pattern if isinstance(self.topics, re.Pattern) else ", ".join(self.topics)

    def read_by(self, application: str) -> KafkaSource:
        known = copy(self)
        known.group = self.group or f"{application} {self._named}"
        return known

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the rows that `read` delivers."""
        fields = [field for decoder in self._decoders for field in decoder.schema] + list(self._record)
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise InvalidInputError(f"columns={names} of {self!r} have one name twice; rename what its decoders give.")
        try:
            made = transformed(self._transform, one_batch([], pa.schema(fields))).schema
        except Exception as error:
            raise InvalidInputError(
                f"transform of {self!r} raised {raised(error)}, for a batch without rows."
            ) from error
        if OFFSET not in made.names or made.field(OFFSET).type != pa.int64():
            raise InvalidInputError(f"transform of {self!r} makes columns={made.names}; keep {OFFSET} as it is.")
        return made

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        """Start again, with the topics that the journal knows.

        Raises:
            InvalidInputError: a topic is not there any more, or was made again, or the journal is another source's.
            StoreUnavailableError: no broker answers.
        """
        try:
            lines = [json.loads(line) for line in journal]
            noted = [Noted(**line) for line in lines if GAP not in line]
        except (TypeError, ValueError):
            noted = []
        if known and not noted:
            raise InvalidInputError(
                f"{self!r} is to go on from {dict(known)}, and its journal knows no topic; the task had another source: give "
                "it another name, or reset it."
            )
        newest = {topic.name: topic for topic in noted}
        past = {topic.id for topic in noted if topic is not newest[topic.name]} - {None}
        past -= {topic.id for topic in newest.values()}
        self._opened = _Opened(newest, not noted, set(journal), dict(known), past)
        # What is lost is seen when it is asked for.
        self._asked(lambda: self._check_ends(self._look(known, is_whole=True, is_needed=False), known))

    def freeze(self) -> None:
        self._state.is_frozen = True

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        state = self._state
        if not (state.is_frozen and state.places):
            state.places = self._asked(lambda: self._look(start))
            if any(start.get(partition_name, 0) > place.end for partition_name, place in state.places.items()):
                self._asked(lambda: self._check_ends(self._look(start, is_whole=True), start))
        # What is lost is stepped over at once, so that it is told once.
        begins = {
            partition_name: max(start.get(partition_name, place.begin), place.first)
            for partition_name, place in state.places.items()
        }
        lags = {
            partition_name: max(0, place.end - begins[partition_name]) for partition_name, place in state.places.items()
        }
        total = sum(lags.values())
        if total > self.max_offsets_per_batch and not everything:
            lags = {
                partition_name: -(-lag * self.max_offsets_per_batch // total) for partition_name, lag in lags.items()
            }
        ends = {**start, **{partition_name: begins[partition_name] + lag for partition_name, lag in lags.items()}}
        lines, begun, ended = state.reached
        if begun != ended == start:
            # The micro-batch that went there has been committed, and they with it.
            state.written.update(lines)
        noted = (json.dumps(vars(topic)) for topic in state.noted.values())
        lines = tuple(line for line in (*noted, *state.gone) if line not in state.written)
        state.reached = lines, dict(start), ends
        unread = sum(max(0, place.end - ends[partition_name]) for partition_name, place in state.places.items())
        return Reach(ends, dict.fromkeys(state.places, False), lines, unread=unread)

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        whole = []
        for partition_name, place in sorted(self._state.places.items()):
            begin = start.get(partition_name, place.begin)
            if begin < end.get(partition_name, begin):
                gap = place.gap(begin, partition_name not in start)
                whole.append(
                    Part(partition_name, place.topic, place.partition, begin, end[partition_name], place.first, gap)
                )
        # Of what is lost there is nothing to read.
        firsts = [min(max(part.begin, part.first), part.end) for part in whole]
        total = sum(part.end - first for part, first in zip(whole, firsts, strict=True))
        found: list[list[Part]] = [[] for _ in range(parts)]
        before = 0
        for part, first in zip(whole, firsts, strict=True):
            if first == part.end:
                found[0].append(part)
            # Where in this partition the pieces of equal size begin and end.
            bounds = [first + total * i // parts - before for i in range(parts + 1)]
            for piece, low, high in zip(found, bounds, bounds[1:], strict=False):
                low, high = max(low, first), min(high, part.end)
                if low < high:
                    piece.append(
                        replace(part, end=high) if low == first else replace(part, begin=low, end=high, gap=None)
                    )
            before += part.end - first
        return [tuple(piece) for piece in found if piece]

    def read(self, split: Sequence[Part]) -> Iterator[Chunk]:
        for part in split:
            if part.gap is not None:
                lost = BadRecord(part.begin, LOST if "first" in part.gap else ANEW)
                yield Chunk(part.partition_name, part.begin, one_batch([], self.schema), (lost,), originals=part.told)
        waiting: dict[str, list[Any]] = defaultdict(list)
        left = {(part.topic, part.partition): part for part in split}
        for part, messages in consumer.records(repr(self), self._asking, self._consumer_options(), left):
            held = waiting[part.partition_name]
            held += messages
            if len(held) >= _ROWS_PER_CHUNK:
                yield self._chunk(part, waiting.pop(part.partition_name))
        for part in split:
            if part.partition_name in waiting:
                yield self._chunk(part, waiting.pop(part.partition_name))

    def _chunk(self, part: Part, messages: Sequence[Any]) -> Chunk:
        first, last = messages[0].offset(), messages[-1].offset()
        at = np.arange(first, last + 1)
        if len(at) != len(messages):
            at = np.array([message.offset() for message in messages])
        values = [message.value() for message in messages]
        columns = [[message.key() for message in messages]] if self._has_key else []
        try:
            decoded = [
                decoder.decode(column) for decoder, column in zip(self._decoders, [*columns, values], strict=True)
            ]
        except Exception as error:
            where = f"topic={part.topic!r} partition={part.partition} from offset {first}"
            raise TaskFailedError(f"a decoder of {self!r} raised {raised(error)}, for records of {where}.") from error
        piece = decoded[0] if len(decoded) == 1 else decoders.side_by_side(decoded)
        bad = tuple(replace(record, position=int(at[record.position])) for record in piece.bad)
        good = np.ones(len(at), np.bool_)
        good[[record.position for record in piece.bad]] = False
        originals = partial(consumer.originals, at, messages)
        at = at[good]
        record = [
            pa.repeat(pa.scalar(part.topic), len(at)),
            pa.repeat(pa.scalar(part.partition, pa.int32()), len(at)),
            pa.array(at),
        ]
        if self.timestamp == TIME:
            millis = np.array([message.timestamp()[1] for message in messages], np.int64)[good]
            # A record without a time has -1.
            record.append(pa.array(millis * 1000, mask=millis < 0).cast(self._record.field(TIME).type))
        rows = pa.RecordBatch.from_arrays(
            [*piece.rows.columns, *record], schema=pa.schema([*piece.rows.schema, *self._record])
        )
        if self._transform is not None:
            rows = self._transformed_rows(rows, part)
            at = rows.column(OFFSET).to_numpy()
        return Chunk(part.partition_name, first, rows, bad, at=at, originals=originals)

    def _transformed_rows(self, rows: pa.RecordBatch, part: Part) -> pa.RecordBatch:
        where = f"topic={part.topic!r} partition={part.partition} from offset {rows.column(OFFSET)[0]}"
        try:
            made = transformed(self._transform, rows)
        except Exception as error:
            raise TaskFailedError(f"transform of {self!r} raised {raised(error)}, for rows of {where}.") from error
        if not made.schema.equals(self.schema):
            raise TaskFailedError(
                f"transform of {self!r} made columns={made.schema.names} of {where}, and {self.schema.names} of a batch "
                "without rows; make them and their types alike."
            )
        return made

    def _asked(self, ask: Callable[[], _T]) -> _T:
        """What a broker answers, asked again where that may pass."""
        return topics.asked_again(ask, lambda: vars(self).pop("_admin", None))

    def _look(self, start: Mapping[str, int], is_whole: bool = False, is_needed: bool = True) -> dict[str, Place]:
        """The partitions as they are now, by partition; `start` says from where they are to be read.

        Ends are those of what the source reads, or if `is_whole` of all there is. That what is to be read is there is checked
        if it `is_needed` now.

        Raises:
            InvalidInputError: what is to be read is not there any more.
        """
        state = self._state
        # What is written and not committed yet may have been read, by who asked for it.
        is_committed = not is_whole and self.options.get("isolation.level", COMMITTED) == COMMITTED
        with self._asking():
            found = topics.look(self._admin, self.topics, is_committed, state.noted)
        gone = []
        for name, noted in state.noted.items():
            if name not in found and isinstance(self.topics, re.Pattern) and self.topics.fullmatch(name):
                if not self.accepts_loss:
                    raise Doubtful(
                        f"topic={name!r} of {self!r} is gone; bring it back, or say fail_on_data_loss=False."
                    )
                gone.append(json.dumps({GAP: {"topic": name, "id": noted.id}}))
        noted_now, places = dict(state.noted), {}
        for name, topic in found.items():
            noted = noted_now[name] = self._noted(topic, start)
            for partition, (first, end) in topic.offsets.items():
                partition_name = noted.partition_name(partition)
                # One that is newer than what the journal has of its topic began at 0.
                begin = start.get(partition_name, noted.begins.get(str(partition), 0))
                if is_needed and begin < first and not self.accepts_loss:
                    raise self._gone(name, partition, begin, state.known.get(partition_name, 0), first, end)
                until = noted.until.get(str(partition))
                places[partition_name] = Place(name, partition, begin, first, end, until)
        state.past.update(
            noted.id for noted in state.noted.values() if noted_now[noted.name].generation > noted.generation
        )
        state.noted, state.is_first = noted_now, False
        state.gone += [line for line in gone if line not in state.gone]
        return places

    def _noted(self, topic: topics.Topic, start: Mapping[str, int]) -> Noted:
        """What the journal has of a topic, or is to have."""
        state = self._state
        noted = state.noted.get(topic.name)
        if noted is not None and (noted.id == topic.id or None in (noted.id, topic.id)):
            return noted
        if topic.id in state.past:
            raise StoreUnavailableError(
                f"topic={topic.name!r} of {self!r} is told of as it was before it was made again, by a broker that has yet to "
                "hear of it; try again."
            )
        begins = {partition: first for partition, (first, _) in topic.offsets.items()}
        if noted is not None and not self.accepts_loss:
            then = {p: start[noted.partition_name(p)] for p in topic.offsets if noted.partition_name(p) in start}
            raise InvalidInputError(
                f"topic={topic.name!r} of {self!r} was deleted and made again; the old one was to be "
                f"read from the offsets {then} of its partitions, and of the new one the oldest record is "
                f"{self._oldest(topic.name, begins)}. Reset the task, or say fail_on_data_loss=False to go on with the new one."
            )
        if noted is None and state.is_first and self._starting_offsets != EARLIEST:
            begins = {partition: end for partition, (_, end) in topic.offsets.items()}
            if isinstance(self._starting_offsets, datetime):
                spec = library().admin.OffsetSpec.for_timestamp(round(self._starting_offsets.timestamp() * 1000))
                asked = {(topic.name, partition): spec for partition in topic.offsets}
                with self._asking():
                    timed = topics.offsets(self._admin, asked, is_committed=False)
                begins = {
                    p: min(end, timed[topic.name, p]) if timed[topic.name, p] >= 0 else end for p, end in begins.items()
                }
        from_there = {str(p): begin for p, begin in begins.items()}
        if noted is None:
            return Noted(topic.name, topic.id, from_there)
        # A partition that came later than the topic was met is known by what was read of it.
        until = {
            str(p): start[partition_name] for p in topic.offsets if (partition_name := noted.partition_name(p)) in start
        }
        until = {**noted.begins, **until}
        return Noted(topic.name, topic.id, from_there, noted.generation + 1, until)

    def _check_ends(self, places: Mapping[str, Place], start: Mapping[str, int]) -> None:
        """Refuse to read from behind the end: other records would be written there, and be taken for those that were read."""
        for partition_name, place in places.items():
            if start.get(partition_name, place.begin) > place.end:
                raise Doubtful(
                    f"topic={place.topic!r} partition={place.partition} of {self!r} ends at offset {place.end} and was "
                    f"read up to {start.get(partition_name, place.begin)}; it is another topic than it was: bring that back, "
                    "or reset the task."
                )

    def _gone(self, topic: str, partition: int, begin: int, known: int, first: int, end: int) -> InvalidInputError:
        again = f" ({begin} to {min(known, first) - 1} again, as the global clock has yet to pass them)"
        return InvalidInputError(
            f"topic={topic!r} partition={partition} of {self!r} has lost offsets {begin} to {first - 1}, which are yet to be "
            f"read{again if known > begin else ''}: Kafka has deleted them, and the oldest record is "
            f"{self._oldest(topic, {partition: first})}, the end {end}. Bring them back, reset the task, or say "
            "fail_on_data_loss=False to go on after them."
        )

    def _oldest(self, topic: str, begins: Mapping[int, int]) -> str:
        """The first record of the first of these partitions that has one, and its time."""
        with self._asking():
            consumer = library().Consumer(self._consumer_options())
            try:
                for partition, first in begins.items():
                    if (stamp := topics.time_at(consumer, topic, partition, first)) is not None:
                        return f"offset {first} of partition {partition}, time={show_clock(stamp)}"
            finally:
                consumer.close()
        return "none, it is empty"

    @property
    def places(self) -> Mapping[str, Place]:
        """The partitions as they were when last looked at, by partition."""
        return self._state.places

    @property
    def _record(self) -> pa.Schema:
        """What a row tells of its record beside what this holds."""
        place = pa.schema([(TOPIC, pa.string()), (PARTITION, pa.int32()), (OFFSET, pa.int64())])
        # Python takes as long to tell a record's time as to decode it.
        return place.append(pa.field(TIME, pa.timestamp("us", "UTC"))) if self.timestamp == TIME else place

    @property
    def _state(self) -> _Opened:
        assert self._opened is not None, "open comes first"
        return self._opened

    @cached_property
    def _admin(self) -> Any:
        with self._asking():
            return library().admin.AdminClient(client_options(self.bootstrap_servers, self.options))

    def _asking(self) -> Any:
        return asking(repr(self), self.options)

    def _consumer_options(self) -> dict[str, Any]:
        return {
            # Nothing is committed to it: the log says what was read.
            "group.id": self.group or self._named,
            "fetch.wait.max.ms": 20,
            "fetch.message.max.bytes": 4 << 20,
            # By default it rests for a second whenever much is waiting.
            "fetch.queue.backoff.ms": 5,
            **client_options(self.bootstrap_servers, self.options),
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
