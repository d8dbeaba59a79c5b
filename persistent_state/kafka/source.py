"""Kafka topics as a source that librdkafka reads and Arrow decodes."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from persistent_state.errors import InvalidInputError, TaskFailedError, at_definition, raised
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.kafka import consumer, decoders
from persistent_state.kafka.client import needing
from persistent_state.kafka.consumer import OffsetRange
from persistent_state.kafka.decoders import Decoder, Raw
from persistent_state.kafka.subscription import EARLIEST, OFFSET, PARTITION, TIME, TOPIC, Subscription, shared
from persistent_state.kafka.topics import commit_offsets, number_of, topic_of
from persistent_state.sources.base import BadRecord, Chunk, TimeReplayableSource
from persistent_state.sources.casts import plain_rows, plain_schema
from persistent_state.sources.formats import one_batch
from persistent_state.sources.transforms import OF_NO_ROWS, Transform, absent_behind, transformed, what_it_did

DELETED, RECREATED = (
    "offsets were deleted before they were read",
    "the topic was made again before it was read to its end",
)
"""The reasons of the bad rows that stand for a loss."""

_ROWS_PER_CHUNK = 1 << 16
_BYTES_PER_CHUNK = 1 << 25
"""Bytes of all records that wait for their chunk. Decoding takes a few times as many."""

_USUALLY_MOST = 1 << 20
"""Bytes of the greatest record that Kafka takes by default."""

_SIZES_SECONDS = 60.0
"""Seconds after which sizes of records are looked up again."""


class KafkaSource(Subscription, TimeReplayableSource):
    """The records of Kafka topics, read by librdkafka and decoded by Arrow: a channel for each partition.

    Each row has the columns of `key` and `value`, and `kafka_topic`, `kafka_partition` and `kafka_offset`. A position is an
    offset. A restart goes on from the offsets in the log, wherever event time comes from. A topic or partition that appears
    later is read from its beginning.

    Offsets that are to be read and that Kafka has deleted, by age or with their topic, stop the application. With
    `fail_on_data_loss=False` each gap counts as one bad row, and the application goes on after it.

    With `from_` and the records' own time as event time, the first start looks up by Kafka's index of times where to begin, and
    reads no record before. If event time is a column, the place of a time is unknown: the first start reads from the beginning,
    unless `starting_offsets` says more.

    To decode records with Spark's functions, use `KafkaConnectorSource`.

    Args:
        topics: A name, several, or a compiled pattern that whole names match.
        bootstrap_servers: The brokers' addresses, "host:port,host:port".
        timestamp: The column of event time. The default is the record's own time; only then rows have `kafka_timestamp`.
        timestamp_unit: "s", "ms", "us" or "ns", if that column has integers.
        value: The decoder of the values: `Json(schema)`, `Avro(schema)` or `Raw(name, type)`. The default is the bytes, in the
            column "value".
        key: The decoder of the keys. By default keys are left out.
        starting_offsets: Where the first start begins: "earliest", "latest", or a time with a zone, by the records' times.
        max_offsets_per_batch: How many offsets a micro-batch reads at most. A partition's share grows with its lag.
        max_bytes_per_batch: About how many bytes of records a micro-batch reads at most, by the sizes of the next records of
            each partition, with keys and headers. The sizes are looked up once a minute, and only if records of a mebibyte each
            would be too much.
        fail_on_data_loss: Whether offsets that were deleted before they were read stop the application.
        transform: A stateless, row-wise function of a record batch: select, filter, explode, join to a static table. It keeps
            the column `kafka_offset`, the record that a row was made of.
        group: The consumer group that brokers see. The default is the names of the application and of the topics.
        commit_offsets: Whether the offsets that the global clock has passed are committed to the group, so that tools show its
            lag. Nothing is read by them. If a broker refuses, a warning is logged.
        options: librdkafka's options, such as those of TLS and SASL. No message shows them. `isolation.level` is
            "read_committed" unless they set it.

    Raises:
        InvalidInputError: An argument is wrong, or the package confluent_kafka is missing.

    Example:
        >>> import pyarrow as pa
        >>> schema = pa.schema([("shop", pa.string()), ("cents", pa.int64())])
        >>> orders = KafkaSource("orders", "broker:9092", value=Json(schema))
        >>> orders.schema.names
        ['shop', 'cents', 'kafka_topic', 'kafka_partition', 'kafka_offset', 'kafka_timestamp']
    """

    def __init__(
        self,
        topics: str | Sequence[str] | re.Pattern[str],
        bootstrap_servers: str,
        *,
        timestamp: str = TIME,
        timestamp_unit: str | None = None,
        value: Decoder | None = None,
        key: Decoder | None = None,
        starting_offsets: str | datetime = EARLIEST,
        max_offsets_per_batch: int = 2_000_000,
        max_bytes_per_batch: int = 1 << 30,
        fail_on_data_loss: bool = True,
        transform: Transform | None = None,
        group: str | None = None,
        commit_offsets: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            topics,
            bootstrap_servers,
            timestamp=timestamp,
            timestamp_unit=timestamp_unit,
            starting_offsets=starting_offsets,
            max_offsets_per_batch=max_offsets_per_batch,
            fail_on_data_loss=fail_on_data_loss,
            group=group,
            options=options,
        )
        for name, decoder in (("value", value), ("key", key)):
            if decoder is not None and not hasattr(decoder, "decode"):
                raise InvalidInputError(
                    f"{name}={decoder!r} of {self!r} is not a decoder; give one, such as Json(schema). For a function of "
                    "Spark's DataFrame, use KafkaConnectorSource(topics, bootstrap_servers, columns)."
                )
        self._decoders: list[Decoder] = [*([] if key is None else [key]), Raw() if value is None else value]
        if max_bytes_per_batch < 1:
            raise InvalidInputError(f"{max_bytes_per_batch=}; give at least 1.")
        self.max_bytes_per_batch = max_bytes_per_batch
        self._has_key = key is not None
        self.commit_offsets = commit_offsets
        self._transform = transform
        self._reader: consumer.Reader | None = None
        self._news: consumer.Reader | None = None

    def __getstate__(self) -> dict[str, Any]:
        # What is open stays in this process.
        return {**super().__getstate__(), "_reader": None, "_news": None}

    @cached_property
    def schema(self) -> pa.Schema:
        """Return the columns of the rows that `read` delivers.

        Raises:
            InvalidInputError: Two columns have one name, or `transform` raised or changed `kafka_offset`.
        """
        fields = [field for decoder in self._decoders for field in decoder.schema] + list(self._record)
        names = [field.name for field in fields]
        if len(set(names)) < len(names):
            raise InvalidInputError(f"columns={names} of {self!r} have one name twice; rename what its decoders give.")
        try:
            made = transformed(self._transform, one_batch([], plain_schema(pa.schema(fields)))).schema
        except Exception as error:
            raise InvalidInputError(f"transform of {self!r} {what_it_did(error)}, {OF_NO_ROWS}.") from error
        if OFFSET not in made.names or made.field(OFFSET).type != pa.int64():
            raise InvalidInputError(f"transform of {self!r} makes columns={made.names}; keep {OFFSET} as it is.")
        return made

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        """Cut the offsets between two positions into pieces of about equally many offsets.

        Args:
            start: By partition: the first offset.
            end: By partition: the offset before which the last piece ends.
            parts: The most pieces.

        Returns:
            At most `parts` tuples of `OffsetRange`.
        """
        whole = []
        for name, partition in sorted(self.partitions.items()):
            begin = start.get(name, partition.begin)
            if begin < end.get(name, begin):
                gap = partition.gap(begin, name not in start)
                whole.append(
                    OffsetRange(name, partition.topic, partition.number, begin, end[name], partition.first, gap)
                )
        # Lost offsets take no time to read.
        firsts = [min(max(offsets.begin, offsets.first), offsets.end) for offsets in whole]
        total = sum(offsets.end - first for offsets, first in zip(whole, firsts, strict=True))
        pieces: list[list[OffsetRange]] = [[] for _ in range(parts)]
        before = 0
        for offsets, first in zip(whole, firsts, strict=True):
            if first == offsets.end:
                pieces[0].append(offsets)
            low = first
            while low < offsets.end:
                # Count the offsets through all partitions: piece i has those from total * i // parts on.
                i = ((before + 1) * parts - 1) // total
                high = min(offsets.end, low + total * (i + 1) // parts - before)
                pieces[i].append(
                    replace(offsets, end=high) if low == first else replace(offsets, begin=low, end=high, gap=None)
                )
                before, low = before + high - low, high
        return [tuple(piece) for piece in pieces if piece]

    def committed(self, positions: Mapping[str, int]) -> None:
        """Commit offsets to the consumer group.

        Args:
            positions: By partition: the offset to commit.

        Raises:
            InvalidInputError: A broker refuses: the user lacks a permission, or others are members of the group.
            StoreUnavailableError: No broker answers.
        """
        if not self.commit_offsets:
            return
        # If a topic was made again, only the newest has offsets.
        newest: dict[str, int] = {}
        for topic, generation in map(topic_of, positions):
            newest[topic] = max(generation, newest.get(topic, 0))
        places = {
            (topic, number_of(name)): offset
            for name, offset in positions.items()
            for topic, generation in [topic_of(name)]
            if generation == newest[topic]
        }

        def commit() -> None:
            with self._asking(), needing(repr(self), "READ", f"group={self._group!r}"):
                commit_offsets(self._admin, self._group, places)

        # A broker that has just become the group's coordinator does not know the group yet.
        self._ask_again(commit)

    @property
    def _starts(self) -> str | int:
        is_by_record = self.timestamp == TIME and self.starting_offsets == EARLIEST
        if is_by_record and self.bounds.since != BEGINNING:
            # The time of a record has milliseconds. One too early reads a few more records.
            return max(0, self.bounds.since // 1000)
        return super()._starts

    def _limited(self, begins: Mapping[str, int], lags: Mapping[str, int]) -> Mapping[str, int]:
        lags = super()._limited(begins, lags)
        if sum(lags.values()) * _USUALLY_MOST <= self.max_bytes_per_batch:
            return lags
        sizes = self._sizes({name: begins[name] for name, lag in lags.items() if lag})
        return shared(lags, self.max_bytes_per_batch, sum(lags[name] * size for name, size in sizes.items()))

    def _sizes(self, begins: Mapping[str, int]) -> dict[str, float]:
        """Return about how many bytes a record of each partition has, from these offsets on; 0 if no partition has sent any."""
        known, now = self._state.sizes, time.monotonic()
        places = {name: (self.partitions[name].topic, self.partitions[name].number) for name in begins}
        old = [name for name in begins if name not in known or known[name][1] < now - _SIZES_SECONDS]
        if old:
            options = self._consumer_options()
            sizes = consumer.record_sizes(self._asking, options, {places[name]: begins[name] for name in old})
            usual = sum(sizes.values()) / max(1, len(sizes))
            known |= {name: (sizes.get(places[name], usual), now) for name in old}
        return {name: known[name][0] for name in begins}

    def stay_open(self, seconds: float) -> None:
        for reader in (self._reader, self._news):
            if reader is not None:
                reader.close()
        self._reader = self._news = None
        if seconds:
            client, options = (repr(self), self._asking), self._consumer_options()
            self._reader = consumer.Reader(*client, options, seconds)
            # One record is news enough, and a broker may hold a request for longer than a read wants.
            options = {**options, "fetch.wait.max.ms": 500, "fetch.message.max.bytes": 1}
            self._news = consumer.Reader(*client, options, seconds)

    def await_news(self, seconds: float, stopping: threading.Event) -> bool:
        if self._news is None:
            return super().await_news(seconds, stopping)
        ends = {
            (partition.topic, partition.number): (name, partition.end)
            for name, partition in self.partitions.items()
            if name not in self._state.held
        }
        return self._news.await_beyond(ends, seconds, stopping)

    def partitions_in(self, split: Sequence[OffsetRange]) -> Collection[str]:
        return {offsets.partition_name for offsets in split}

    def read(self, split: Sequence[OffsetRange]) -> Iterator[Chunk]:
        for offsets in split:
            if offsets.gap is not None:
                lost = BadRecord(offsets.begin, DELETED if "first" in offsets.gap else RECREATED)
                yield Chunk(
                    offsets.partition_name,
                    offsets.begin,
                    one_batch([], self.schema),
                    (lost,),
                    originals=offsets.gap_record,
                )
        waiting: dict[str, list[Any]] = defaultdict(list)
        sizes: dict[str, int] = defaultdict(int)
        size = 0
        left = {(offsets.topic, offsets.partition): offsets for offsets in split}
        if self._reader is None:
            read = consumer.records(repr(self), self._asking, self._consumer_options(), left)
        else:
            read = self._reader.read(left)
        for offsets, messages in read:
            queue = waiting[offsets.partition_name]
            queue += messages
            came = consumer.size_of(messages)
            sizes[offsets.partition_name] += came
            # Not the sum over all partitions each time: there may be thousands.
            size += came
            if size >= _BYTES_PER_CHUNK:
                yield from self._chunks(split, waiting)
                sizes.clear()
                size = 0
            elif len(queue) >= _ROWS_PER_CHUNK:
                size -= sizes.pop(offsets.partition_name)
                yield self._chunk(offsets, waiting.pop(offsets.partition_name))
        yield from self._chunks(split, waiting)

    def _chunks(self, split: Sequence[OffsetRange], waiting: dict[str, list[Any]]) -> Iterator[Chunk]:
        """Yield a chunk of each partition that has records waiting."""
        for offsets in split:
            if offsets.partition_name in waiting:
                yield self._chunk(offsets, waiting.pop(offsets.partition_name))

    def _chunk(self, offsets: OffsetRange, messages: Sequence[Any]) -> Chunk:
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
            where = f"topic={offsets.topic!r} partition={offsets.partition} from offset {first}"
            raise TaskFailedError(f"a decoder of {self!r} raised {raised(error)}, for records of {where}.") from error
        # A decoder of the user's may make views.
        decoded = [replace(one, rows=plain_rows(one.rows)) for one in decoded]
        joined = decoded[0] if len(decoded) == 1 else decoders.side_by_side(decoded)
        bad = tuple(replace(record, position=int(at[record.position])) for record in joined.bad)
        good = np.ones(len(at), np.bool_)
        good[[record.position for record in joined.bad]] = False
        originals = partial(consumer.originals, at, messages)
        at = at[good]
        record = [
            pa.repeat(pa.scalar(offsets.topic), len(at)),
            pa.repeat(pa.scalar(offsets.partition, pa.int32()), len(at)),
            pa.array(at),
        ]
        if self.timestamp == TIME:
            record.append(consumer.times_of(messages).filter(pa.array(good)))
        rows = pa.RecordBatch.from_arrays(
            [*joined.rows.columns, *record], schema=pa.schema([*joined.rows.schema, *self._record])
        )
        absent = {(name,): instead for one in decoded for name, instead in one.absent.items()}
        before = rows.schema.names
        if self._transform is not None:
            rows = self._transformed_rows(rows, offsets)
            at = rows.column(OFFSET).to_numpy()
        # Which records a chunk has is not the same each time. So its rows count all the same, unless an input begins with them.
        unseen = absent_behind(rows, before, absent, [name for (name,) in absent])
        where = f"topic={offsets.topic!r} partition={offsets.partition} of {self!r}, from offset {first},"
        notes = {
            name: f"{where} has no column {name!r}{instead}: it is null there." for (name,), instead in absent.items()
        }
        return Chunk(offsets.partition_name, first, rows, bad, at=at, originals=originals, unseen=unseen, notes=notes)

    def _transformed_rows(self, rows: pa.RecordBatch, offsets: OffsetRange) -> pa.RecordBatch:
        where = f"topic={offsets.topic!r} partition={offsets.partition} from offset {rows.column(OFFSET)[0]}"
        try:
            made = transformed(self._transform, rows)
        except Exception as error:
            raise TaskFailedError(f"transform of {self!r} {what_it_did(error)}, for rows of {where}.") from error
        if not made.schema.equals(self.schema):
            raise TaskFailedError(
                f"transform of {self!r}{at_definition(self._transform)} made columns={made.schema.names} of {where}, "
                f"and {self.schema.names} of a batch without rows; make them and their types alike."
            )
        return made

    @property
    def _record(self) -> pa.Schema:
        """Return the columns that every row has beside the decoded ones."""
        place = pa.schema([(TOPIC, pa.string()), (PARTITION, pa.int32()), (OFFSET, pa.int64())])
        # The Python client takes as long to return a record's time as to decode the record.
        return place.append(pa.field(TIME, pa.timestamp("us", "UTC"))) if self.timestamp == TIME else place
