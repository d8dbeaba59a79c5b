"""Write values at clocks to a Kafka topic so that each value is there once, whichever process is killed. Free of Spark.

A clock is written in parts. A part is a range of the key hash, is written by one writer, and takes one transaction or
several. A second topic, the bookkeeping, records how far the writers have come. It is compacted, has one partition, and holds
JSON by key:

    <application>/<task>/<topic>/<bookkeeping>          {"format": 1, "begun": ..., "clock": ..., "previous": ..., "parts": ...}
    <application>/<task>/<topic>/<bookkeeping>/<part>   {"begun": ..., "clock": ..., "through": ..., "rows": ..., "done": ...}

`TaskRecord` has all fields of the first. The second also says `deleted` if tombstones are among its rows.

The first is the task's record. It names the clock that was begun last, the clock before it that is whole (`previous`), and the
number of parts. `begun` is a number that no other beginning has. The second is a part's record. It says up to which key
hash (`through`, 16 hexadecimal digits) the rows of that beginning are written, and whether these are all (`done`). A part's
record of an older version has no `clock`.

These rules keep each row to one time:

1. A record's key is also the `transactional.id` by which the record is written. A writer first takes that id over
   (`init_transactions`). Kafka then settles the transaction that was pending under the id, and fences the id's last owner,
   which can write nothing more.
2. Only then does a writer read the bookkeeping, and it proves that each reading is current. It writes a mark to the
   bookkeeping topic in a transaction of its own, waits until the brokers say the mark's offset, and aborts the transaction.
   Then it reads all that is committed below the mark; less than all is not accepted. So the record that it finds under its own
   key is the last that any other writer wrote there, or ever will.
3. The offset of the mark is `begun`, if the writer begins a clock. Kafka gives no offset twice.
4. A part's rows and the part's record are one transaction. All rows of one key hash are in one transaction.
5. The task's record of a clock is written before any of the clock's rows. The clock is finished in the number of parts in
   which it was begun, also by a driver that would begin it in more or fewer. So a driver that goes on with a part's rows takes
   over the id of the part's last writer, and fences that writer.
6. A part's record counts for a clock if both `begun` and the clock agree.
7. The next clock is begun when all parts of the last one are done. It is also begun when the last one can't be finished: its
   checkpoint was collected, or at-least-once delivery gave it above the global clock and a lower clock comes first. Then the
   next clock has the same number of parts, because writers of the last one may still be at work. A writer that finds
   another beginning than its own stops.

Why the mark holds with several brokers: a broker that is cut off from the controller may have been deposed as the leader of
the bookkeeping topic without knowing. It still answers from its old log, and says that this log ends where it does. Such a
broker can't hide a record here. Kafka says the mark's offset when all replicas in sync have the mark (`acks=all`). A deposed
leader never gets there, as the other replicas no longer follow it. A broker hands out only records that all replicas in sync
have. So a broker that hands out the log up to the mark hands out the log that has the mark. A deposed leader's log ends before
the mark: the reader waits there in vain, asks other brokers by new clients, and at last gives up without a decision. Kafka
itself makes sure of the coordinator of transactions: it answers only when all replicas in sync of its own log have what it did.
All this needs brokers that lose no acknowledged record: no unclean elections, and as many replicas in sync
(`min.insync.replicas`) as are to outlive the loss of one.

The mark is aborted so that it is never among the records: no one reads it, and compaction removes it. It is written and aborted
before the reading. If it stayed pending, no one could read what others commit behind it.

A rewind of the application to a clock begins a timeline. A topic loses no record, so the sink writes a correction. Each key
that has a record above the clock gets another one: its value at the clock, or a tombstone if it was not there. These rules
keep that to one time, too:

8. The task's record names the timeline. A writer that finds a later timeline than its own stops.
9. A correction begins with a task's record of the new timeline, which says that the sink has yet to go `back`. A writer of a
   part that takes over its id from now on finds this record, and stops. Then the correction takes over the id of each part,
   and so fences the writers that have looked before. From now on no writer adds a row of the timelines that have ended.
10. Only then the correction reads the topic back, up to a mark in each partition (`read_back`).
11. The correction and the task's record that says that the sink has gone back are one transaction. Who is killed before has
   changed nothing that a reader sees, and the next one does all of it again, from rule 9 on.

Why the keys come from the topic and not from the store: the topic shows what readers have really seen, also of a writer that
was paused for long. The store would have to keep the files of each timeline that has ended for as long as a sink is down, to
know the keys that came after the clock. The topic keeps them anyway: compaction leaves the newest record of a key, and it is
above the clock if the key has changed since. Two things may be gone. A tombstone is removed after `delete.retention.ms`, and so
is the last trace of a key: `deleted` is the last clock with tombstones, and below it a correction gives all keys. Retention by
time removes any record: a correction that meets where the log begins now gives all keys, too. It can't delete a key that it
finds nowhere.

A correction to the beginning, where no key was there, is all tombstones, and leaves the clock `BEGINNING`: the next clock has
all that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from persistent_state.errors import InvalidInputError, StoreUnavailableError, raised
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import clock_of_rewind, full_clock
from persistent_state.kafka import ledger
from persistent_state.kafka.client import Moves, client_options, library
from persistent_state.kafka.ledger import NOTHING_READ, Bookkeeping, Ledger, TaskRecord
from persistent_state.kafka.read_back import CLOCK, HIGHEST, TASK, TIMELINE, Above, Headers, keys_above
from persistent_state.kafka.sink_topics import check, prepare
from persistent_state.kafka.topics import offsets
from persistent_state.partials.keys import Hashes

ROWS_PER_LOOK = 10_000
"""Rows after which a writer checks how much of the transaction's time is over."""

KeyOrValue: TypeAlias = "str | bytes | None"
Encode: TypeAlias = Callable[[pa.RecordBatch], tuple[Sequence[KeyOrValue], Sequence[KeyOrValue]]]
"""Returns the keys and the values of the Kafka records for the rows of a batch."""


class OpenClock(NamedTuple):
    """A clock that was begun and is being written, the number of its parts, and the bookkeeping when it was begun."""

    begun: int
    clock: int
    parts: int
    bookkeeping: Bookkeeping


@dataclass(frozen=True)
class ClockWriter(Ledger):
    """Writes the values of one task to `topic`, clock by clock, and keeps its records in the topic `bookkeeping`."""

    @property
    def mark_of_rows(self) -> str:
        """Return the text by which the headers of rows say whose they are."""
        other = "" if self.bookkeeping == f"{self.topic}.clocks" else f"/{self.bookkeeping}"
        return f"{self.application}/{self.task}{other}"

    def prepare(self) -> None:
        """Check the topics, and create the topic of the bookkeeping if it is missing.

        Raises:
            InvalidInputError: The topic of the values is missing, or the topic of the bookkeeping might lose records.
            StoreUnavailableError: The brokers do not answer now.
        """
        with self._asking():
            prepare(self.name, self.topic, self.bookkeeping, self.bootstrap_servers, self.options, ledger.PATIENCE)

    def last_clock(self, parts: int) -> int:
        """Return the last clock that is written whole, to a driver that would write the next one in `parts` parts."""
        with self._asking(), self._producer(self.owner) as producer:
            bookkeeping = self._read(producer, NOTHING_READ, parts)
        return self._last_whole(bookkeeping)

    def begin(self, clock: int, parts: int, known: Bookkeeping) -> OpenClock | None:
        """Record that a clock is being written from now on.

        Args:
            clock: The clock to write.
            parts: The number of parts, if the clock was not begun in another number.
            known: The bookkeeping as this driver read it last.

        Returns:
            The clock as it was begun, now or before; None if it is whole already.

        Raises:
            StoreUnavailableError: The brokers do not answer now, or another driver has taken over.
            FencedError: A rewind has ended this timeline.
        """
        with self._asking(), self._producer(self.owner) as producer:
            bookkeeping = self._read(producer, known, parts)
            last, is_whole = self._task_record(bookkeeping), self._is_whole(bookkeeping)
            previous = self._last_whole(bookkeeping)
            if last.back is not None:
                raise StoreUnavailableError(
                    f"{self.name} has yet to go back to clock={clock_of_rewind(last.back)}; start again, which lets it."
                )
            if clock <= previous:
                return None
            if clock == last.clock:
                return OpenClock(last.begun, clock, last.parts, bookkeeping)
            highest = last.highest if is_whole else max(last.highest, last.clock)
            record = TaskRecord(
                bookkeeping.offset,
                clock,
                previous,
                parts if is_whole else last.parts,
                self.timeline,
                highest=highest if highest > clock else BEGINNING,
                deleted=self._last_deleted(bookkeeping),
                bare=last.bare,
            )
            with self._transaction(producer):
                self._produce_record(producer, self.owner, record.fields())
            return OpenClock(record.begun, clock, record.parts, bookkeeping)

    def write_part(self, open_clock: OpenClock, part: int, rows: pa.Table, hashes: Hashes, encode: Encode) -> None:
        """Write the rows of a part that are not written yet.

        Args:
            open_clock: The clock, as `begin` returned it.
            part: The part's number.
            rows: All rows of the part, in any order.
            hashes: The hash of each row's key.
            encode: Makes the keys and values of the Kafka records.

        Raises:
            InvalidInputError: The rows can't be written, and never will.
            StoreUnavailableError: The rows were not written now; Kafka drops the pending transaction.
            FencedError: A rewind has ended this timeline.
        """
        owner = f"{self.owner}/{part}"
        order = np.argsort(hashes, kind="stable")
        hashes, rows = hashes[order], rows.take(pa.array(order))
        with self._asking(), self._producer(owner) as producer:
            bookkeeping = self._read(producer, open_clock.bookkeeping)
            last = self._task_record(bookkeeping)
            if (last.begun, last.clock) != (open_clock.begun, open_clock.clock):
                raise StoreUnavailableError(
                    f"{self.name}: another driver has gone on to begun={last.begun}, clock={last.clock} from"
                    f" begun={open_clock.begun}, clock={open_clock.clock}; ask for that clock again."
                )
            headers = self._headers(open_clock.clock, last.highest)
            start, count, is_done, has_deleted = 0, 0, False, False
            if part_record := self._part_record(bookkeeping, part):
                if part_record["done"]:
                    return
                start = int(np.searchsorted(hashes, np.uint64(int(part_record["through"], 16)), "right"))
                count, has_deleted = part_record["rows"], part_record.get("deleted", False)
            while not is_done:
                with self._transaction(producer) as is_half_over:
                    end, limit = start, _end_of(hashes, start, self.rows)
                    while end < limit and (end == start or not is_half_over()):
                        begin, end = end, min(limit, _end_of(hashes, end, ROWS_PER_LOOK))
                        has_deleted |= self._produce_rows(producer, rows[begin:end], encode, headers)
                    count, is_done = count + end - start, end == len(hashes)
                    through = f"{int(hashes[end - 1]) if end else 0:016x}"
                    # Produce the record last: while it is pending, no one can read the records behind it.
                    record = {
                        "begun": open_clock.begun,
                        "clock": open_clock.clock,
                        "through": through,
                        "rows": count,
                        "done": is_done,
                        **({"deleted": True} if has_deleted else {}),
                    }
                    self._produce_record(producer, owner, record)
                    start = end

    def rewind(self, clock: int, parts: int, values: Callable[[], Iterator[pa.RecordBatch]], encode: Encode) -> None:
        """Take back what is above a clock, by one transaction that also records the timeline; once for each timeline.

        Args:
            clock: The clock to which the application was taken back.
            parts: The number of parts in which this driver would write a clock.
            values: Returns all values at the clock, in the columns that `encode` takes.
            encode: Makes the keys and values of the Kafka records.

        Raises:
            InvalidInputError: Rows above the clock have no keys, or don't have their clock.
            StoreUnavailableError: Nothing was taken back now.
            FencedError: Another rewind has ended this timeline.
        """
        with self._asking(), self._producer(self.owner) as producer:
            bookkeeping = self._read(producer, NOTHING_READ, parts)
            last, whole = self._task_record(bookkeeping), self._last_whole(bookkeeping)
            if last.timeline == self.timeline and last.back is None:
                return
            if last.back is None and max(last.clock, last.highest) <= clock:
                # A clock that is written by half is below, and is finished as it was begun.
                with self._transaction(producer):
                    self._produce_record(producer, self.owner, replace(last, timeline=self.timeline).fields())
                return
            self._check_headers(last, clock)
            begun = TaskRecord(
                bookkeeping.offset,
                whole,
                whole,
                last.parts,
                self.timeline,
                back=clock,
                highest=max(last.highest, last.clock),
                deleted=self._last_deleted(bookkeeping),
                bare=last.bare,
            )
            with self._transaction(producer):
                self._produce_record(producer, self.owner, begun.fields())
            for part in range(last.parts):
                with self._producer(f"{self.owner}/{part}"):
                    pass
            partitions = producer.list_topics(self.topic, ledger.PATIENCE).topics[self.topic].partitions
            above = self._keys_above(self._write_marks(producer, self.topic, partitions), clock)
            self._check_keys(above)
            gives_all = clock < begun.deleted or not above.is_all
            given = {
                key: value
                for batch in values()
                for key, value in self._encoded(batch, encode)
                if key in above.keys or (gives_all and key is not None)
            }
            given |= dict.fromkeys(above.keys - given.keys())
            done = replace(
                begun,
                clock=min(whole, clock),
                previous=min(whole, clock),
                parts=0,
                back=None,
                # Keys that are given their values at the clock have them before the clock itself comes.
                highest=clock if whole < clock else BEGINNING,
                deleted=clock if None in given.values() else min(begun.deleted, clock),
            )
            with self._transaction(producer, less="go back to a later clock"):
                self._produce_all(producer, given.items(), self._headers(clock, BEGINNING))
                self._produce_record(producer, self.owner, done.fields())

    def count_above(self, clock: int) -> int | None:
        """Return how many keys `rewind` would give another value; None if that is unknown. Nothing is changed by that.

        Raises:
            InvalidInputError: The topic is missing, or that of the bookkeeping might lose records; or rows above the clock have
                no keys, or don't have their clock.
            StoreUnavailableError: The brokers do not answer now.
        """
        kafka = library()
        with self._asking():
            admin = kafka.admin.AdminClient(client_options(self.bootstrap_servers, self.options))
            if not check(self.name, admin, self.topic, self.bookkeeping, self.bootstrap_servers, ledger.PATIENCE):
                return 0
            moves = Moves()
            with closing(self._consumer(moves)) as consumer:
                partitions = consumer.list_topics(self.topic, ledger.PATIENCE).topics[self.topic].partitions
            places = [(self.bookkeeping, 0), *((self.topic, partition) for partition in partitions)]
            found = offsets(admin, dict.fromkeys(places, kafka.admin.OffsetSpec.latest()), is_committed=True)
            bookkeeping = self._bookkeeping_below(found.pop((self.bookkeeping, 0)), moves)
            last = self._parsed(bookkeeping)
            if max(last.clock, last.highest) <= clock:
                return 0
            self._check_headers(last, clock)
            above = self._keys_above({partition: end for (_, partition), end in found.items()}, clock)
            self._check_keys(above)
            gives_all = clock < self._last_deleted(bookkeeping) or not above.is_all
            # At the beginning there is no value to give.
            return None if gives_all and clock != BEGINNING else len(above.keys)

    def highest_clock(self) -> int:
        """Return the highest clock of rows in the topic; `BEGINNING` if it has no rows. Nothing is changed by that.

        Raises:
            FencedError: The task's record is of a later timeline.
            InvalidInputError: The topic is missing, or that of the bookkeeping might lose records.
            StoreUnavailableError: The brokers do not answer now.
        """
        kafka, place = library(), (self.bookkeeping, 0)
        with self._asking():
            admin = kafka.admin.AdminClient(client_options(self.bootstrap_servers, self.options))
            if not check(self.name, admin, self.topic, self.bookkeeping, self.bootstrap_servers, ledger.PATIENCE):
                return BEGINNING
            end = offsets(admin, {place: kafka.admin.OffsetSpec.latest()}, is_committed=True)[place]
            last = self._task_record(self._bookkeeping_below(end, Moves()))
        return max(last.clock, last.highest)

    def _bookkeeping_below(self, end: int, moves: Moves) -> ledger.Bookkeeping:
        """Return the records that are committed below an offset of the bookkeeping."""
        with closing(self._consumer(moves)) as consumer:
            return self._read_below(consumer, NOTHING_READ, end, ledger.PATIENCE, moves)

    def _keys_above(self, ends: Mapping[int, int], clock: int) -> Above:
        with self._needing("READ", self.topic):
            return keys_above(self._consumer, self.name, self.topic, ends, self.mark_of_rows, clock, ledger.PATIENCE)

    def _check_headers(self, last: TaskRecord, clock: int) -> None:
        """Refuse to go back to a clock above which an older version has written rows."""
        if clock < last.bare:
            raise InvalidInputError(
                f"{self.name} has rows of an older version up to clock={full_clock(last.bare)}, without headers that tell the "
                "clock; go back to that clock or a later one, or name another topic."
            )

    def _check_keys(self, above: Above) -> None:
        """Refuse to take back rows without keys."""
        if None in above.keys:
            raise InvalidInputError(
                f"{self.name} has rows above the clock without keys, which can't be taken back; go back to a later clock, or "
                "name another topic, and let encode give keys."
            )

    def _headers(self, clock: int, highest: int) -> Headers:
        """Return the headers of rows at a clock."""
        headers = {TASK: self.mark_of_rows, TIMELINE: str(self.timeline), CLOCK: str(clock)}
        headers |= {HIGHEST: str(highest)} if highest > clock else {}
        return [(name, value.encode()) for name, value in headers.items()]

    def _produce_rows(self, producer: Any, rows: pa.Table, encode: Encode, headers: Headers) -> bool:
        """Produce a record for each row, and return whether tombstones are among them."""
        (batch,) = rows.combine_chunks().to_batches()
        encoded = self._encoded(batch, encode)
        self._produce_all(producer, encoded, headers)
        return any(value is None for _, value in encoded)

    def _encoded(self, batch: pa.RecordBatch, encode: Encode) -> list[tuple[bytes | None, KeyOrValue]]:
        """Return the key and the value of the Kafka record for each row.

        Raises:
            InvalidInputError: `encode` does not return what it should.
        """
        try:
            keys, values = encode(batch)
        except Exception as error:
            raise InvalidInputError(
                f"{self.name}: encode raised {raised(error)}; correct it and start again, nothing is lost."
            ) from None
        if len(keys) != len(batch) or len(values) != len(batch):
            raise InvalidInputError(
                f"{self.name}: encode gave {len(keys)} keys and {len(values)} values for rows={len(batch)}; give one each."
            )
        encoded: list[tuple[bytes | None, KeyOrValue]] = []
        for key, value in zip(keys, values, strict=True):
            if not isinstance(key, (str, bytes, type(None))) or not isinstance(value, (str, bytes, type(None))):
                raise InvalidInputError(
                    f"{self.name}: encode gave key={type(key).__name__} and value={type(value).__name__}; give text, bytes or "
                    "None."
                )
            encoded.append((key.encode() if isinstance(key, str) else key, value))
        return encoded

    def _produce_all(self, producer: Any, records: Iterable[tuple[bytes | None, KeyOrValue]], headers: Headers) -> None:
        """Produce these records, and wait until the brokers have them."""
        failed: list[tuple[Any, KeyOrValue, KeyOrValue]] = []

        def note(error: Any, message: Any) -> None:
            if error is not None:
                failed.append((error, message.key(), message.value()))

        for key, value in records:
            while not failed:
                try:
                    producer.produce(self.topic, value, key, on_delivery=note, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
                except library().KafkaException as error:
                    failed.append((error.args[0], key, value))
        producer.flush(self._seconds)
        if failed:
            too_large = [(key, value) for error, key, value in failed if error.code() == error.MSG_SIZE_TOO_LARGE]
            if too_large:
                record = max(too_large, key=_size)
                raise InvalidInputError(
                    f"{self.name}: the record of key={record[0]!r:.200} has size={_size(record)} bytes, and it or the batch"
                    f" that it was in is too large. Give topic={self.topic!r} a greater max.message.bytes, and the sink"
                    " options={'message.max.bytes': ...} that are not greater (1000000 by default); or make less of it by"
                    " encode."
                )
            # Every failure ends the transaction, so raise the first.
            self._raise_failure(producer, self.topic, failed[0][0])


def _size(record: tuple[KeyOrValue, KeyOrValue]) -> int:
    return sum(len(data.encode() if isinstance(data, str) else data or b"") for data in record)


def _end_of(hashes: Hashes, start: int, rows: int) -> int:
    """Return the end of `rows` rows from `start` on, together with all further rows of the last one's hash."""
    end = min(len(hashes), start + rows)
    return int(np.searchsorted(hashes, hashes[end - 1], "right")) if end > start else end
