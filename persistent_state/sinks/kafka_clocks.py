"""How values at a clock get into a topic of Kafka once, whoever is killed on the way; free of Spark.

A clock is written in parts, which are ranges of the key hash, each by a writer of its own and in one transaction or several.
How far that has come stands in another topic, compacted and of one partition, as JSON by key:

    <application>/<task>/<topic>/<bookkeeping>          {"format": 1, "begun": ..., "clock": ..., "previous": ..., "parts": ...}
    <application>/<task>/<topic>/<bookkeeping>/<part>   {"begun": ..., "through": ..., "rows": ..., "done": ...}

The first says which clock was begun last and as which in order, after which one that was whole, and in how many parts; the
second, up to which key hash (16 hexadecimal digits) a part's rows of what was begun then are written, and whether that is all.
What keeps each row to one time:

1. A record's key is also the `transactional.id` by which it is written. A writer first takes that over (`init_transactions`),
   which settles what was pending and fences whoever had it, and only then reads the records, up to the topic's very end: what
   it finds under its own key is the last that was or ever will be written by others before it.
2. A part's rows and the record of them are one transaction, and all rows of one hash are in one.
3. A clock is recorded before any of its rows is written. It is finished in the parts that it was begun in, so that a
   writer is fenced by who goes on with its rows, also where that one would have begun it in more or fewer.
4. The next clock is begun when all parts are done. Or the last is no more to be had, as when its checkpoint was collected, or
   it was given at least once, above the global clock, and a lower one comes first: then the next has the same number of
   parts, for the sake of those who may still be writing the last. Who finds that another was begun since stops.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from persistent_state.clock import BEGINNING
from persistent_state.errors import Damaged, InvalidInput, StoreUnavailable
from persistent_state.kafka import answer, asking, client_options, library
from persistent_state.keys import Hashes
from persistent_state.raised import raised

FORMAT = 1

PATIENCE = 20.0
"""Seconds for which an answer of the brokers is waited for."""

STEP = 10_000
"""Rows after which it is looked whether the transaction's time is running out."""

TIMEOUT = "transaction.timeout.ms"

Data: TypeAlias = "str | bytes | None"
Encode: TypeAlias = Callable[[pa.RecordBatch], tuple[Sequence[Data], Sequence[Data]]]
"""The keys and the values of the Kafka records for the rows of a batch."""


class Records(NamedTuple):
    """What is committed to the bookkeeping topic below an offset."""

    offset: int
    found: Mapping[str, Mapping[str, Any]]


class Begun(NamedTuple):
    """A clock that is being delivered, begun as the `begun`-th, in so many parts; the records are as they were then."""

    begun: int
    clock: int
    parts: int
    records: Records


@dataclass(frozen=True)
class Clocks:
    """The delivery of one task's values to `topic`, with its record in the topic `bookkeeping`.

    The options are those of all clients. A transaction has up to `rows`, and less when half of its time is over.
    """

    application: str
    task: str
    topic: str
    bookkeeping: str
    servers: str
    options: Mapping[str, Any] = field(repr=False)
    rows: int

    @property
    def name(self) -> str:
        return f"kafka {self.servers} {self.topic}"

    @property
    def owner(self) -> str:
        return f"{self.application}/{self.task}/{self.topic}/{self.bookkeeping}"

    def prepare(self) -> None:
        """Look for the topics, and make that of the bookkeeping if it is missing.

        Raises:
            InvalidInput: the topic of the values is missing, or that of the bookkeeping might lose records.
            StoreUnavailable: the brokers do not answer now.
        """
        with self._asking():
            admin = self._admin()
            if not self._exists(admin, self.topic):
                raise InvalidInput(
                    f"topic={self.topic!r} is not at servers={self.servers!r}; make it, or name another."
                )
            if not self._exists(admin, self.bookkeeping):
                self._make(admin)
            policy = self._policy(admin)
        if policy != "compact":
            raise InvalidInput(
                f"topic={self.bookkeeping!r} has cleanup.policy={policy}, and would forget what was delivered; make that"
                " compact, or name another for bookkeeping."
            )

    def last(self, parts: int) -> int:
        """The last clock that is written whole; a driver that is to write next would do so in so many `parts`."""
        with self._asking(), self._producing(self.owner):
            records = self._read(Records(0, {}), parts)
        last = self._begun(records)
        found: int = last["clock" if self._is_done(records) else "previous"]
        return found

    def begin(self, clock: int, parts: int, known: Records) -> Begun | None:
        """Record that a clock is written from now on, in so many `parts`, unless it was begun in others; None: it is whole.

        Raises:
            StoreUnavailable: the brokers do not answer now, or another driver has taken over.
        """
        with self._asking(), self._producing(self.owner) as producer:
            records = self._read(known, parts)
            last = self._begun(records)
            is_done = self._is_done(records)
            previous = last["clock"] if is_done else last["previous"]
            if clock <= previous:
                return None
            if clock == last["clock"]:
                return Begun(last["begun"], clock, last["parts"], records)
            begun = Begun(last["begun"] + 1, clock, parts if is_done else last["parts"], records)
            with self._transaction(producer):
                record = {
                    "format": FORMAT,
                    "begun": begun.begun,
                    "clock": clock,
                    "previous": previous,
                    "parts": begun.parts,
                }
                self._record(producer, self.owner, record)
            return begun

    def write(self, begun: Begun, part: int, rows: pa.Table, hashes: Hashes, encode: Encode) -> None:
        """Write what is missing of a part: `hashes` are those of its rows' keys, in any order.

        Raises:
            InvalidInput: it can't be written, ever.
            StoreUnavailable: it was not written now; what was pending is undone.
        """
        owner = f"{self.owner}/{part}"
        order = np.argsort(hashes, kind="stable")
        hashes, rows = hashes[order], rows.take(pa.array(order))
        with self._asking(), self._producing(owner) as producer:
            records = self._read(begun.records)
            if (since := self._begun(records)["begun"]) != begun.begun:
                raise StoreUnavailable(
                    f"{self.name}: another driver has gone on to begun={since} from {begun.begun}, clock={begun.clock}; ask for"
                    " that clock again."
                )
            own = records.found.get(owner, {"begun": 0})
            start, count, is_done = 0, 0, False
            if own["begun"] == begun.begun:
                if own["done"]:
                    return
                start = int(np.searchsorted(hashes, np.uint64(int(own["through"], 16)), "right"))
                count = own["rows"]
            while not is_done:
                with self._transaction(producer) as is_half_over:
                    end, most = start, _end_of(hashes, start, self.rows)
                    while end < most and (end == start or not is_half_over()):
                        begin, end = end, min(most, _end_of(hashes, end, STEP))
                        self._put(producer, rows[begin:end], encode)
                    count, is_done = count + end - start, end == len(hashes)
                    through = f"{int(hashes[end - 1]) if end else 0:016x}"
                    # Last and alone: as long as it is pending, nobody can read the records behind it.
                    told = {"begun": begun.begun, "through": through, "rows": count, "done": is_done}
                    self._record(producer, owner, told)
                    start = end

    def _begun(self, records: Records) -> Mapping[str, Any]:
        """The record of the clock that was begun last."""
        nothing = {"format": FORMAT, "begun": 0, "clock": BEGINNING, "previous": BEGINNING, "parts": 0}
        found = records.found.get(self.owner, nothing)
        if found.get("format") != FORMAT:
            raise InvalidInput(f"topic={self.bookkeeping!r} has format={found.get('format')}, not {FORMAT}; upgrade.")
        return found

    def _is_done(self, records: Records) -> bool:
        begun = self._begun(records)
        nothing = {"begun": 0, "done": False}
        of_parts = (records.found.get(f"{self.owner}/{part}", nothing) for part in range(begun["parts"]))
        return all(part["begun"] == begun["begun"] and part["done"] for part in of_parts)

    def _read(self, known: Records, parts: int | None = None) -> Records:
        """All records as they are now; who tells its `parts` may settle what others have left pending in them."""
        kafka = library()
        place = kafka.TopicPartition(self.bookkeeping, 0, known.offset)
        # To one that reads what is committed, the end would be where the first transaction is pending.
        looking = self._consumer({"isolation.level": "read_uncommitted"})
        try:
            _, end = looking.get_watermark_offsets(place, timeout=PATIENCE)
        finally:
            looking.close()
        offset, found = known.offset, dict(known.found)
        if offset > end:
            raise Damaged(
                f"topic={self.bookkeeping!r} ends at offset={end}, and did so at {offset} before; restore it, or start again."
            )
        if offset == end:
            return known
        consumer = self._consumer({"isolation.level": "read_committed"})
        try:
            consumer.assign([place])
            deadline, settled = time.monotonic() + PATIENCE, 0
            while offset < end:
                message = consumer.poll(0.2)
                if message is None:
                    if time.monotonic() > deadline:
                        raise StoreUnavailable(
                            f"{self.name}: a transaction of others is pending in topic={self.bookkeeping!r}. It ends with its"
                            " time, then try again."
                        )
                    # Somebody was killed between a record and its commit. The last clock that is to be seen may
                    # not be the last, but whoever stands in the way of seeing more wrote a part of one that is.
                    most = 0 if parts is None else max(parts, self._begun(Records(offset, found))["parts"])
                    for part in range(settled, most):
                        with self._producing(f"{self.owner}/{part}"):
                            settled = part + 1
                elif message.error() is None:
                    key, value = message.key().decode(), message.value()
                    if key == self.owner or key.startswith(f"{self.owner}/"):
                        found[key] = self._parsed(key, value)
                    offset = message.offset() + 1
                elif message.error().code() == kafka.KafkaError._PARTITION_EOF:
                    offset = message.offset()
                else:
                    raise kafka.KafkaException(message.error())
        finally:
            consumer.close()
        return Records(offset, found)

    def _parsed(self, key: str, value: bytes) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = json.loads(value)
            if found.keys() >= ({"format"} if key == self.owner else {"begun", "through", "rows", "done"}):
                return found
        except (TypeError, ValueError):
            pass
        raise Damaged(f"record={key!r} of topic={self.bookkeeping!r} is not what was written; restore it.")

    def _put(self, producer: Any, rows: pa.Table, encode: Encode) -> None:
        (batch,) = rows.combine_chunks().to_batches()
        try:
            keys, values = encode(batch)
        except Exception as error:
            raise InvalidInput(f"{self.name}: encode raised {raised(error)}; mend it, nothing is lost.") from None
        if len(keys) != len(rows) or len(values) != len(rows):
            raise InvalidInput(
                f"{self.name}: encode gave {len(keys)} keys and {len(values)} values for rows={len(rows)}; give one each."
            )
        failed: list[Any] = []

        def note(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        for key, value in zip(keys, values, strict=True):
            while True:
                try:
                    producer.produce(self.topic, value, key, on_delivery=note)
                    break
                except BufferError:
                    producer.poll(0.1)
                except TypeError:
                    raise InvalidInput(
                        f"{self.name}: encode gave key={type(key).__name__} and value={type(value).__name__}; give text, bytes "
                        "or None."
                    ) from None
        producer.flush(self._seconds)
        if failed:
            # To the transaction each failure is the same.
            raise library().KafkaException(failed[0])

    def _record(self, producer: Any, key: str, record: Mapping[str, Any]) -> None:
        producer.produce(self.bookkeeping, json.dumps(record), key, partition=0)

    @contextmanager
    def _producing(self, owner: str) -> Iterator[Any]:
        """The one producer of this name: whoever was it is fenced, and what it left pending is settled."""
        options = {
            # As Java's clients do it.
            "partitioner": "murmur2_random",
            # It asks for its coordinator when it next wakes, for which this is a reason; else it may take half a second.
            "topic.metadata.refresh.interval.ms": 100,
            **client_options(self.servers, self.options),
            "transactional.id": owner,
        }
        producer = library().Producer(options)
        producer.init_transactions(PATIENCE)
        yield producer

    @contextmanager
    def _transaction(self, producer: Any) -> Iterator[Callable[[], bool]]:
        """What is produced in here is seen as a whole or never; gives whether half of its time is over."""
        exception = library().KafkaException
        began = time.monotonic()
        producer.begin_transaction()
        try:
            yield lambda: time.monotonic() - began > self._seconds / 2
            producer.commit_transaction(PATIENCE)
        except BaseException as error:
            # If this fails too, who comes next under its name does it, or the brokers do in time.
            with suppress(exception):
                producer.abort_transaction(PATIENCE / 4)
            if isinstance(error, exception) and time.monotonic() - began > self._seconds:
                raise StoreUnavailable(
                    f"{self.name}: a transaction took longer than {TIMEOUT}={self._seconds * 1000:g}. Give it more time by that"
                    f" option, or less to do by rows_per_transaction={self.rows}."
                ) from None
            raise

    @property
    def _seconds(self) -> float:
        """How long a transaction may take."""
        return float(self.options.get(TIMEOUT, 60_000)) / 1000

    def _consumer(self, more: Mapping[str, Any]) -> Any:
        return library().Consumer(
            {
                # Of a group in name only: nothing is ever committed to it.
                "group.id": self.owner,
                "fetch.wait.max.ms": 10,
                **client_options(self.servers, self.options),
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                **more,
            }
        )

    def _admin(self) -> Any:
        return library().admin.AdminClient(client_options(self.servers, self.options))

    def _exists(self, admin: Any, topic: str) -> bool:
        kafka = library()
        try:
            asked = admin.describe_topics(kafka.TopicCollection([topic]), request_timeout=PATIENCE)
            answer(asked[topic], 2 * PATIENCE)
        except kafka.KafkaException as error:
            if error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                return False
            raise
        return True

    def _make(self, admin: Any) -> None:
        kafka = library()
        # What is not yet compacted is read at each start.
        config = {"cleanup.policy": "compact", "segment.bytes": str(1 << 24)}
        topic = kafka.admin.NewTopic(self.bookkeeping, 1, -1, config=config)
        try:
            admin.create_topics([topic], operation_timeout=PATIENCE, request_timeout=PATIENCE)[
                self.bookkeeping
            ].result()
        except kafka.KafkaException as error:
            if error.args[0].code() != kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        deadline = time.monotonic() + PATIENCE
        while not self._exists(admin, self.bookkeeping) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _policy(self, admin: Any) -> str:
        kafka = library()
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResource.Type.TOPIC, self.bookkeeping)
        found = answer(admin.describe_configs([resource], request_timeout=PATIENCE)[resource], 2 * PATIENCE)
        policy: str = found["cleanup.policy"].value
        return policy

    def _asking(self) -> Any:
        return asking(self.name, self.options)


def _end_of(hashes: Hashes, start: int, rows: int) -> int:
    """Where some `rows` from `start` on end, and with them all of the last one's hash."""
    end = min(len(hashes), start + rows)
    return int(np.searchsorted(hashes, hashes[end - 1], "right")) if end > start else end
