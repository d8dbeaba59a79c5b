"""A Kafka topic as a sink: transactions that also record the clock, so that each clock is written once."""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.formatting import plain_values, to_json
from persistent_state.kafka.client import check_sent, checked_options
from persistent_state.kafka.ledger import NOTHING_READ, TIMEOUT
from persistent_state.kafka.transactions import ClockWriter, Encode
from persistent_state.partials.keys import Hashes, hash_keys, normalise
from persistent_state.sinks.base import Origin, RecordingSink, known_clock
from persistent_state.sinks.values import Values, reader_of

_OURS = {"bootstrap.servers", "transactional.id", "isolation.level"}


class KafkaSink(RecordingSink):
    """A Kafka topic to which each clock adds its values, once.

    A consumer that reads with `isolation.level=read_committed` sees each value once, whichever process is killed. The topic
    must exist. It may have any number of partitions, and other writers.

    A record's key is a JSON object of the key columns. Its value is a JSON object of all columns, with `clock` (microseconds
    UTC) and `value`. Its timestamp is the time of writing, and its partition is the one that Java's clients choose for its key.
    Its headers are `task`, `timeline` and `clock`.

    A rewind is one transaction. It gives each key that has a record above the clock another one: the key's value at the clock,
    or none (a tombstone) if the key was not there. The driver holds these keys in memory. Rows that an `OrderedTask` emits have
    no unique key, so they can't be taken back.

    Args:
        topic: The topic of the values.
        bootstrap_servers: The brokers' addresses, "host:port,host:port".
        options: librdkafka's options for all clients, such as those of TLS and SASL and `transaction.timeout.ms`.
        partitions: The number of parts that each clock is written in, by the hash of the key. A worker writes a part, and
            holds its rows in memory. The number may change at any start.
        bookkeeping: The compacted topic that records how far the sink has come; made if it is missing. The default is the
            topic's name and ".clocks".
        rows_per_transaction: How many rows a transaction has at most.
        encode: A function of an Arrow batch that returns a list of keys and a list of values, each text, bytes or None. Workers
            run it, and at a rewind the driver. The default makes JSON. A rewind needs a key of its own for each row.

    Raises:
        InvalidInputError: An argument or an option is wrong.

    Example:
        >>> KafkaSink("revenue", "broker:9092", partitions=4)
        KafkaSink('revenue', 'broker:9092', partitions=4)
    """

    def __init__(
        self,
        topic: str,
        bootstrap_servers: str,
        *,
        options: Mapping[str, Any] | None = None,
        partitions: int = 1,
        bookkeeping: str | None = None,
        rows_per_transaction: int = 100_000,
        encode: Encode | None = None,
    ) -> None:
        self.topic = topic
        self.bootstrap_servers = bootstrap_servers
        self.partitions = partitions
        self.bookkeeping = bookkeeping or f"{topic}.clocks"
        self.rows_per_transaction = rows_per_transaction
        self._options = checked_options(f"KafkaSink({topic!r})", options)
        self._encode = encode
        check_sent(f"encode of KafkaSink({topic!r})", encode)
        for name in (self.topic, self.bookkeeping):
            if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
                raise InvalidInputError(f"topic={name!r} can't be one of Kafka; use letters, digits, '.', '_', '-'.")
        if self.bookkeeping == topic:
            raise InvalidInputError(f"{topic=} has the values; name another for bookkeeping.")
        if partitions < 1 or rows_per_transaction < 1:
            raise InvalidInputError(f"{partitions=}, {rows_per_transaction=} of a KafkaSink; give at least 1 of each.")
        if ours := _OURS & self._options.keys():
            raise InvalidInputError(f"options={sorted(ours)} of a KafkaSink are not yours to set; leave them out.")
        if not re.fullmatch(r"[1-9]\d*", str(self._options.get(TIMEOUT, 1))):
            raise InvalidInputError(f"{TIMEOUT}={self._options[TIMEOUT]!r} is not a time; give milliseconds.")
        self._origin: Origin | None = None
        self._known = NOTHING_READ

    def __repr__(self) -> str:
        return f"KafkaSink({self.topic!r}, {self.bootstrap_servers!r}, partitions={self.partitions})"

    @property
    def name(self) -> str:
        return f"kafka {self.bootstrap_servers} {self.topic}"

    def records(self, task: str) -> frozenset[Hashable]:
        # Tasks may share a topic, as each has its own records. Two sinks that share one server write to one cluster.
        return frozenset(
            (server.strip(), self.bookkeeping, self.topic, task) for server in self.bootstrap_servers.split(",")
        )

    def open(self, origin: Origin) -> int | None:
        # A topic's records are JSON, and compaction compares the bytes of their keys. So times stay int64 microseconds.
        self._origin, self._known = origin.with_whole(origin.times), NOTHING_READ
        writer = self._writer()
        writer.prepare()
        return known_clock(writer.last_clock(self.partitions))

    def write_values(self, values: Values, clock: int) -> None:
        origin, writer = self._origin, self._writer()
        assert origin is not None, "open comes first"
        open_clock = writer.begin(clock, self.partitions, self._known)
        if open_clock is None:
            return
        self._known = open_clock.bookkeeping
        encode, schema = self._encoder, values.schema

        def store(part: int, batches: Iterator[pa.RecordBatch]) -> None:
            rows = pa.Table.from_batches(batches, schema).cast(origin.schema)
            writer.write_part(open_clock, part, rows, _hashes(origin, rows), encode)

        # A part without rows is written too: its record says that it is done.
        values.map_parts(store, parts=open_clock.parts, by=origin.key_columns)

    def can_rewind(self, origin: Origin) -> bool:
        return origin.is_unique

    def rewind(self, clock: int, values: Values) -> None:
        origin, writer, read = self._origin, self._writer(), reader_of(values)
        assert origin is not None, "open comes first"
        if not origin.is_unique:
            raise InvalidInputError(
                f"{self.name} has rows that a task emits, which have no unique key and can't be taken back; name another topic."
            )

        def at_clock() -> Iterator[pa.RecordBatch]:
            for batch in read():
                yield batch.cast(origin.schema)

        self._known = NOTHING_READ
        writer.rewind(clock, self.partitions, at_clock, self._encoder)

    def rows_above(self, clock: int, origin: Origin) -> int | None:
        sink = copy.copy(self)
        sink._origin = origin
        return sink._writer().count_above(clock)

    def last_clock(self, origin: Origin) -> int | None:
        sink = copy.copy(self)
        sink._origin = origin
        return sink._writer().highest_clock()

    @property
    def _encoder(self) -> Encode:
        assert self._origin is not None, "open comes first"
        return self._encode or partial(as_json, len(self._origin.key_columns))

    def _writer(self) -> ClockWriter:
        origin = self._origin
        assert origin is not None, "open comes first"
        return ClockWriter(
            origin.application,
            origin.task,
            self.topic,
            self.bookkeeping,
            self.bootstrap_servers,
            self._options,
            self.rows_per_transaction,
            origin.timeline,
        )


def as_json(keys: int, rows: pa.RecordBatch) -> tuple[list[str], list[str]]:
    """Return rows as two lists of JSON objects: of the key's columns, which are the first `keys` ones, and of all columns."""
    columns = [plain_values(column) for column in rows.columns]
    names = rows.schema.names
    objects = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return [to_json({name: row[name] for name in names[:keys]}) for row in objects], list(map(to_json, objects))


def _hashes(origin: Origin, rows: pa.RecordBatch | pa.Table) -> Hashes:
    return hash_keys([normalise(rows.column(place)) for place in range(len(origin.key_columns))], len(rows))
