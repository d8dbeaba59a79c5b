"""How values at a clock get into a topic of Kafka once, whoever is killed on the way; free of Spark.

A clock is written in parts, which are ranges of the key hash, each by a writer of its own and in one transaction or several.
How far that has come stands in another topic, compacted and of one partition, as JSON by key:

    <application>/<task>/<topic>/<bookkeeping>          {"format": 1, "begun": ..., "clock": ..., "previous": ..., "parts": ...}
    <application>/<task>/<topic>/<bookkeeping>/<part>   {"begun": ..., "clock": ..., "through": ..., "rows": ..., "done": ...}

The record of the application says which clock was begun last, after which clock that was whole, and in how many parts.
`begun` is a number that no other beginning has. The record of a part says up to which key hash (16 hexadecimal digits) the
part's rows of that beginning are written, and whether these are all. (A part's record of an older version has no `clock`.)
What keeps each row to one time:

1. A record's key is also the `transactional.id` by which the record is written. A writer first takes that id over
   (`init_transactions`): what was pending under the id is settled, and whoever had it can write nothing more.
2. Only then does a writer read the records, and each reading is proved to be current. The writer writes a mark to the
   bookkeeping topic in a transaction of its own, waits until the brokers tell the mark's offset, and aborts the transaction.
   It then reads what is committed below the mark, all of it, and nothing less will do. So what it finds under its own key is
   the last that others wrote there before it, or ever will.
3. The offset of the mark is `begun`, if the writer begins a clock. No offset is given twice.
4. A part's rows and the record of them are one transaction, and all rows of one hash are in one.
5. A clock is recorded before any of its rows is written. It is finished in the parts that it was begun in, so that a
   writer is fenced by who goes on with its rows, also where that one would have begun it in more or fewer.
6. A part's record counts for a clock if both `begun` and the clock agree.
7. The next clock is begun when all parts are done. Or the last is no more to be had, as when its checkpoint was collected, or
   it was given at least once, above the global clock, and a lower one comes first: then the next has the same number of
   parts, for the sake of those who may still be writing the last. Who finds that another was begun since stops.

Why the mark, and why it holds with several brokers: a broker that is cut off from the controller may have been deposed as the
leader of the bookkeeping topic without knowing. It still answers those who ask it, from its old log, and says that this log
ends where it does. Such a broker can't hide anything here. The mark's offset is told when all replicas in sync have the mark
(`acks=all`), which a deposed leader never gets, as the others do not follow it any more. A broker hands out only what all
replicas in sync have, so a broker that hands out the log up to the mark hands out the log that the mark is in. A deposed leader
ends before the mark: the reader waits there in vain, asks other brokers by new clients, and at last gives up without having
decided anything. That the coordinator of transactions is the right one is Kafka's own: it answers only when all replicas in
sync of its own log have what it did. What all this asks of the brokers is that no acknowledged record is lost: no unclean
elections, and as many replicas in sync (`min.insync.replicas`) as are to outlive the loss of one.

The mark is aborted so that it is never among the records: nobody reads it, and compaction removes it. It is written and
aborted before the reading, not kept pending meanwhile, as nobody can read what is committed behind what is pending.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from persistent_state.errors import DamagedError, InvalidInputError, StoreUnavailableError, raised
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.kafka.client import asking, client_options, is_refusal, library, needing
from persistent_state.kafka.sink_topics import prepare
from persistent_state.partials.keys import Hashes

FORMAT = 1

PATIENCE = 20.0
"""Seconds for which an answer of the brokers is waited for."""

ASKS = 1.0
"""Seconds without news after which another client asks, which may get to another broker; later ones wait longer."""

STEP = 10_000
"""Rows after which it is looked whether the transaction's time is running out."""

TIMEOUT = "transaction.timeout.ms"

Data: TypeAlias = "str | bytes | None"
Encode: TypeAlias = Callable[[pa.RecordBatch], tuple[Sequence[Data], Sequence[Data]]]
"""The keys and the values of the Kafka records for the rows of a batch."""


class Records(NamedTuple):
    """What is committed to the bookkeeping topic below an offset: all of it."""

    offset: int
    found: Mapping[str, Mapping[str, Any]]


class Begun(NamedTuple):
    """A clock that is being delivered, in so many parts; the records are of when it was begun."""

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
    bootstrap_servers: str
    options: Mapping[str, Any] = field(repr=False)
    rows: int

    @property
    def name(self) -> str:
        return f"kafka {self.bootstrap_servers} {self.topic}"

    @property
    def owner(self) -> str:
        return f"{self.application}/{self.task}/{self.topic}/{self.bookkeeping}"

    def prepare(self) -> None:
        """Look for the topics, and make that of the bookkeeping if it is missing.

        Raises:
            InvalidInputError: the topic of the values is missing, or that of the bookkeeping might lose records.
            StoreUnavailableError: the brokers do not answer now.
        """
        with self._asking():
            prepare(self.name, self.topic, self.bookkeeping, self.bootstrap_servers, self.options, PATIENCE)

    def last(self, parts: int) -> int:
        """The last clock that is written whole; a driver that is to write next would do so in so many `parts`."""
        with self._asking(), self._producing(self.owner) as producer:
            records = self._read(producer, Records(0, {}), parts)
        last = self._begun(records)
        found: int = last["clock" if self._is_done(records) else "previous"]
        return found

    def begin(self, clock: int, parts: int, known: Records) -> Begun | None:
        """Record that a clock is written from now on, in so many `parts`, unless it was begun in others; None: it is whole.

        Raises:
            StoreUnavailableError: the brokers do not answer now, or another driver has taken over.
        """
        with self._asking(), self._producing(self.owner) as producer:
            records = self._read(producer, known, parts)
            last = self._begun(records)
            is_done = self._is_done(records)
            previous = last["clock"] if is_done else last["previous"]
            if clock <= previous:
                return None
            if clock == last["clock"]:
                return Begun(last["begun"], clock, last["parts"], records)
            begun = Begun(records.offset, clock, parts if is_done else last["parts"], records)
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
            InvalidInputError: it can't be written, ever.
            StoreUnavailableError: it was not written now; what was pending is undone.
        """
        owner = f"{self.owner}/{part}"
        order = np.argsort(hashes, kind="stable")
        hashes, rows = hashes[order], rows.take(pa.array(order))
        with self._asking(), self._producing(owner) as producer:
            records = self._read(producer, begun.records)
            last = self._begun(records)
            if (last["begun"], last["clock"]) != (begun.begun, begun.clock):
                raise StoreUnavailableError(
                    f"{self.name}: another driver has gone on to begun={last['begun']}, clock={last['clock']} from"
                    f" begun={begun.begun}, clock={begun.clock}; ask for that clock again."
                )
            start, count, is_done = 0, 0, False
            if own := self._part(records, part):
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
                    told = {
                        "begun": begun.begun,
                        "clock": begun.clock,
                        "through": through,
                        "rows": count,
                        "done": is_done,
                    }
                    self._record(producer, owner, told)
                    start = end

    def _begun(self, records: Records) -> Mapping[str, Any]:
        """The record of the clock that was begun last."""
        nothing = {"format": FORMAT, "begun": -1, "clock": BEGINNING, "previous": BEGINNING, "parts": 0}
        found = records.found.get(self.owner, nothing)
        if found.get("format") != FORMAT:
            raise InvalidInputError(
                f"topic={self.bookkeeping!r} has format={found.get('format')}, not {FORMAT}; upgrade."
            )
        return found

    def _part(self, records: Records, part: int) -> Mapping[str, Any] | None:
        """The record of a part of the clock that was begun last, if it has one."""
        last, found = self._begun(records), records.found.get(f"{self.owner}/{part}")
        is_of_it = found and (found["begun"], found.get("clock", last["clock"])) == (last["begun"], last["clock"])
        return found if is_of_it else None

    def _is_done(self, records: Records) -> bool:
        of_parts = (self._part(records, part) for part in range(self._begun(records)["parts"]))
        return all(part and part["done"] for part in of_parts)

    def _read(self, producer: Any, known: Records, parts: int | None = None) -> Records:
        """All records as they are now, to a producer that has taken its name over.

        Who tells its `parts` may settle what others have left pending in them.

        Raises:
            StoreUnavailableError: the records can't be had now, or not with the proof that they are all.
        """
        end, deadline = self._mark(producer), time.monotonic() + PATIENCE
        if end < known.offset:
            raise StoreUnavailableError(
                f"{self.name}: topic={self.bookkeeping!r} ends at offset={end}, and did so at {known.offset} before. If it"
                " stays so, the brokers have lost records, or the topic is another: start again."
            )
        records, settled, wait = known, 0, ASKS
        while records.offset < end:
            if (left := deadline - time.monotonic()) < 0:
                raise StoreUnavailableError(
                    f"{self.name}: a transaction of others is pending in topic={self.bookkeeping!r}, or a broker that is cut"
                    f" off leads it: it can be read up to offset={records.offset} of {end}. That ends with its time, then try"
                    " again."
                )
            # A client that has found its way to a broker that is cut off stays there: each try has one of its own.
            with closing(self._consumer()) as consumer:
                records, wait = self._read_on(consumer, records, end, min(wait, left)), 2 * wait
            if records.offset < end and parts is not None:
                # Somebody was killed between a record and its commit. The last clock that is to be seen may
                # not be the last, but whoever stands in the way of seeing more wrote a part of one that is.
                most = max(parts, self._begun(records)["parts"])
                for part in range(settled, most):
                    with self._producing(f"{self.owner}/{part}"):
                        settled = part + 1
        return records

    def _read_on(self, consumer: Any, known: Records, end: int, seconds: float) -> Records:
        """The records below `end`, or those of them that come until no more has come for so many seconds."""
        kafka = library()
        offset, found = known.offset, dict(known.found)
        consumer.assign([kafka.TopicPartition(self.bookkeeping, 0, offset)])
        deadline = time.monotonic() + seconds
        while offset < end and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None:
                continue
            now, error = message.offset(), message.error()
            if error is None:
                if now < end and f"{(key := message.key().decode())}/".startswith(f"{self.owner}/"):
                    found[key] = self._parsed(key, message.value())
                now += 1
            elif is_refusal(error) and error.code() != kafka.KafkaError.GROUP_AUTHORIZATION_FAILED:
                with self._needing("READ", self.bookkeeping):
                    raise kafka.KafkaException(error)
            elif error.code() != kafka.KafkaError._PARTITION_EOF:
                # The broker that was asked may not be the right one any more; and the group is one in name only.
                continue
            if now > offset:
                offset, deadline = min(now, end), time.monotonic() + seconds
        return Records(offset, found)

    def _mark(self, producer: Any) -> int:
        """The offset of a record that is written now, which nobody is to read: below it is all that others wrote before.

        Raises:
            StoreUnavailableError: the brokers do not take it, or do not say where it stands.
        """
        told: list[Any] = []
        with self._transaction(producer, is_kept=False):
            producer.produce(
                self.bookkeeping, None, "mark", partition=0, on_delivery=lambda *answer: told.append(answer)
            )
            producer.flush(PATIENCE)
            error, message = told[0] if told else (None, None)
            if error is not None:
                self._fail(producer, self.bookkeeping, error)
            if message is None or message.offset() < 0:
                raise StoreUnavailableError(
                    f"{self.name}: topic={self.bookkeeping!r} did not take a record within {PATIENCE:g} s. Mend it, then try"
                    " again."
                )
        offset: int = message.offset()
        return offset

    def _parsed(self, key: str, value: bytes) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = json.loads(value)
            if found.keys() >= ({"format"} if key == self.owner else {"begun", "through", "rows", "done"}):
                return found
        except (TypeError, ValueError):
            pass
        raise DamagedError(f"record={key!r} of topic={self.bookkeeping!r} is not what was written; restore it.")

    def _put(self, producer: Any, rows: pa.Table, encode: Encode) -> None:
        (batch,) = rows.combine_chunks().to_batches()
        try:
            keys, values = encode(batch)
        except Exception as error:
            raise InvalidInputError(f"{self.name}: encode raised {raised(error)}; mend it, nothing is lost.") from None
        if len(keys) != len(rows) or len(values) != len(rows):
            raise InvalidInputError(
                f"{self.name}: encode gave {len(keys)} keys and {len(values)} values for rows={len(rows)}; give one each."
            )
        failed: list[tuple[Any, Data, Data]] = []

        def note(error: Any, message: Any) -> None:
            if error is not None:
                failed.append((error, message.key(), message.value()))

        for key, value in zip(keys, values, strict=True):
            while not failed:
                try:
                    producer.produce(self.topic, value, key, on_delivery=note)
                    break
                except BufferError:
                    producer.poll(0.1)
                except library().KafkaException as error:
                    failed.append((error.args[0], key, value))
                except TypeError:
                    raise InvalidInputError(
                        f"{self.name}: encode gave key={type(key).__name__} and value={type(value).__name__}; give text, bytes "
                        "or None."
                    ) from None
        producer.flush(self._seconds)
        if failed:
            too_large = [(key, value) for error, key, value in failed if error.code() == error.MSG_SIZE_TOO_LARGE]
            if too_large:
                key, value = max(too_large, key=_size)
                raise InvalidInputError(
                    f"{self.name}: the record of key={key!r:.200} has size={_size((key, value))} bytes, and it or the batch"
                    f" that it was in is too large. Give topic={self.topic!r} a greater max.message.bytes, and the sink"
                    " options={'message.max.bytes': ...} that are not greater (1000000 by default); or make less of it by"
                    " encode."
                )
            # To the transaction each failure is the same.
            self._fail(producer, self.topic, failed[0][0])

    def _fail(self, producer: Any, topic: str, error: Any) -> None:
        """Raise what a record was not written for."""
        with self._needing("WRITE", topic):
            if error.code() in (error._PURGE_QUEUE, error._PURGE_INFLIGHT):
                # It was not sent, as the transaction has failed before, and that tells by what.
                producer.commit_transaction(PATIENCE)
            raise library().KafkaException(error)

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
            **client_options(self.bootstrap_servers, self.options),
            "transactional.id": owner,
        }
        producer = library().Producer(options)
        with needing(self.name, "WRITE", f"transactional.id={owner!r}"):
            producer.init_transactions(PATIENCE)
        try:
            yield producer
        except SystemError as error:
            # The client raises that it was fenced while it calls back, and then the callback fails by that.
            if isinstance(error.__cause__, library().KafkaException):
                raise error.__cause__ from None
            raise

    @contextmanager
    def _transaction(self, producer: Any, is_kept: bool = True) -> Iterator[Callable[[], bool]]:
        """What is produced in here is seen as a whole, if it is kept, or never; gives whether half of its time is over."""
        exception = library().KafkaException
        began = time.monotonic()
        producer.begin_transaction()
        try:
            yield lambda: time.monotonic() - began > self._seconds / 2
            (producer.commit_transaction if is_kept else producer.abort_transaction)(PATIENCE)
        except BaseException as error:
            # If this fails too, who comes next under its name does it, or the brokers do in time.
            with suppress(exception):
                producer.abort_transaction(PATIENCE / 4)
            if isinstance(error, exception) and time.monotonic() - began > self._seconds:
                raise StoreUnavailableError(
                    f"{self.name}: a transaction took longer than {TIMEOUT}={self._seconds * 1000:g}. Give it more time by that"
                    f" option, or less to do by rows_per_transaction={self.rows}."
                ) from None
            raise

    @property
    def _seconds(self) -> float:
        """How long a transaction may take."""
        return float(self.options.get(TIMEOUT, 60_000)) / 1000

    def _consumer(self) -> Any:
        return library().Consumer(
            {
                # Of a group in name only: nothing is ever committed to it.
                "group.id": self.owner,
                "fetch.wait.max.ms": 10,
                **client_options(self.bootstrap_servers, self.options),
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
            }
        )

    def _needing(self, operation: str, topic: str) -> Any:
        return needing(self.name, operation, f"topic={topic!r}")

    def _asking(self) -> Any:
        return asking(self.name, self.options)


def _size(record: tuple[Data, Data]) -> int:
    return sum(len(data.encode() if isinstance(data, str) else data or b"") for data in record)


def _end_of(hashes: Hashes, start: int, rows: int) -> int:
    """Where some `rows` from `start` on end, and with them all of the last one's hash."""
    end = min(len(hashes), start + rows)
    return int(np.searchsorted(hashes, hashes[end - 1], "right")) if end > start else end
