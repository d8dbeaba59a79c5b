"""Read and write a task's records in the bookkeeping topic. `transactions` has the rules that the records keep."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from persistent_state.errors import DamagedError, InvalidInputError, StoreUnavailableError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.kafka.client import Moves, asking, client_options, library, needing
from persistent_state.kafka.read_back import read_range
from persistent_state.sinks.base import check_timeline

FORMATS = (1, 2)
"""The formats of a task's record: that of timeline 0, and that of later ones, which older versions would not heed."""

PATIENCE = 20.0
"""Seconds to wait for an answer of the brokers."""

FIRST_WAIT = 1.0
"""Seconds without a move after which a new client asks, perhaps another broker. Each next client waits twice as long."""

TIMEOUT = "transaction.timeout.ms"


class Bookkeeping(NamedTuple):
    """All records of a task that are committed to the bookkeeping topic below an offset, by key."""

    offset: int
    records: Mapping[str, Mapping[str, Any]]


NOTHING_READ = Bookkeeping(0, {})


@dataclass(frozen=True)
class TaskRecord:
    """The record of a task in the bookkeeping. A new one says that nothing was begun."""

    begun: int = -1
    """The number of this beginning."""

    clock: int = BEGINNING
    """The clock that was begun last."""

    previous: int = BEGINNING
    """The last clock before it that is whole."""

    parts: int = 0
    """The number of parts of the clock; 0 after a rewind, and the clock is whole then."""

    timeline: int = 0

    back: int | None = None
    """The clock to which the sink has yet to go back; None if it has."""

    highest: int = BEGINNING
    """The highest clock of rows in the topic, if it is above `clock`, as of one that was written by half; else `BEGINNING`."""

    deleted: int = BEGINNING
    """The last clock with tombstones. The parts' records have those of `clock` itself."""

    bare: int = BEGINNING
    """The last clock whose rows may have no headers, as an older version has written them."""

    @staticmethod
    def of(record: Mapping[str, Any]) -> TaskRecord:
        """Return the record that these JSON fields are."""
        return TaskRecord(
            record["begun"],
            record["clock"],
            record["previous"],
            record["parts"],
            record.get("timeline", 0),
            record.get("back"),
            record.get("highest", BEGINNING),
            record.get("deleted", BEGINNING),
            record.get("bare", record["clock"]),
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields of the record in JSON."""
        return {
            "format": FORMATS[self.timeline > 0],
            "begun": self.begun,
            "clock": self.clock,
            "previous": self.previous,
            "parts": self.parts,
            "timeline": self.timeline,
            "back": self.back,
            "highest": self.highest,
            "deleted": self.deleted,
            "bare": self.bare,
        }


@dataclass(frozen=True)
class Ledger:
    """The records of one task in the topic `bookkeeping`, of what it has written to `topic`.

    `options` are librdkafka's, for all clients. A transaction has up to `rows`, and fewer when half of its time is over. All
    values are of one timeline.
    """

    application: str
    task: str
    topic: str
    bookkeeping: str
    bootstrap_servers: str
    options: Mapping[str, Any] = field(repr=False)
    rows: int
    timeline: int = 0

    @property
    def name(self) -> str:
        return f"kafka {self.bootstrap_servers} {self.topic}"

    @property
    def owner(self) -> str:
        """Return the key of the task's record, which is also its transactional id."""
        return f"{self.application}/{self.task}/{self.topic}/{self.bookkeeping}"

    def _task_record(self, bookkeeping: Bookkeeping) -> TaskRecord:
        """Return the task's record: which clock was begun last.

        Raises:
            FencedError: It is of a later timeline.
        """
        record = self._parsed(bookkeeping)
        check_timeline(self.name, record.timeline, self)
        return record

    def _parsed(self, bookkeeping: Bookkeeping) -> TaskRecord:
        record = bookkeeping.records.get(self.owner, TaskRecord().fields())
        if record.get("format") not in FORMATS:
            raise InvalidInputError(
                f"topic={self.bookkeeping!r} has format={record.get('format')}, not one of {FORMATS}; upgrade."
            )
        return TaskRecord.of(record)

    def _last_whole(self, bookkeeping: Bookkeeping) -> int:
        """Return the last clock that is written whole."""
        last = self._task_record(bookkeeping)
        return last.clock if self._is_whole(bookkeeping) else last.previous

    def _last_deleted(self, bookkeeping: Bookkeeping) -> int:
        """Return the last clock with tombstones."""
        last = self._parsed(bookkeeping)
        records = (self._part_record(bookkeeping, part) for part in range(last.parts))
        return last.clock if any(record and record.get("deleted") for record in records) else last.deleted

    def _part_record(self, bookkeeping: Bookkeeping, part: int) -> Mapping[str, Any] | None:
        """Return a part's record, if it is of the clock that was begun last."""
        last, record = self._parsed(bookkeeping), bookkeeping.records.get(f"{self.owner}/{part}")
        is_of_last = record and (record["begun"], record.get("clock", last.clock)) == (last.begun, last.clock)
        return record if is_of_last else None

    def _is_whole(self, bookkeeping: Bookkeeping) -> bool:
        """Return whether all parts of the clock that was begun last are done."""
        parts = range(self._parsed(bookkeeping).parts)
        return all((record := self._part_record(bookkeeping, part)) and record["done"] for part in parts)

    def _read(self, producer: Any, known: Bookkeeping, parts: int | None = None) -> Bookkeeping:
        """Return all records as they are now, to a producer that has taken its transactional id over.

        Args:
            producer: The producer, which writes the mark.
            known: The bookkeeping as it was read before.
            parts: If given, settle transactions that writers of this number of parts have left pending.

        Raises:
            StoreUnavailableError: Not all records can be read now.
        """
        (end,) = self._write_marks(producer, self.bookkeeping, [0]).values()
        moves = Moves()
        if end < known.offset:
            raise StoreUnavailableError(
                f"{self.name}: topic={self.bookkeeping!r} ends at offset={end}, and did so at {known.offset} before. If it"
                " stays so, the brokers have lost records, or the topic is another: start again."
            )
        bookkeeping, settled, wait = known, 0, FIRST_WAIT
        while bookkeeping.offset < end:
            if (left := moves.last + PATIENCE - time.monotonic()) < 0:
                raise StoreUnavailableError(
                    f"{self.name}: a transaction of others is pending in topic={self.bookkeeping!r}, or a broker that is cut"
                    f" off leads it: it can be read up to offset={bookkeeping.offset} of {end}. A pending transaction ends"
                    " after its timeout; then try again."
                )
            # A client stays with the broker that it found, even one that is cut off. So each try has a new client.
            with closing(self._consumer(moves)) as consumer:
                bookkeeping = self._read_below(consumer, bookkeeping, end, min(wait, left), moves)
                wait *= 2
            if bookkeeping.offset < end and parts is not None:
                # A writer was killed before its commit, and no one can read behind its transaction. A later clock may have been
                # begun there. But the writer wrote a part of a clock whose record can be read: it is one of these.
                most = max(parts, self._task_record(bookkeeping).parts)
                for part in range(settled, most):
                    with self._producer(f"{self.owner}/{part}"):
                        settled = part + 1
        return bookkeeping

    def _read_below(self, consumer: Any, known: Bookkeeping, end: int, seconds: float, moves: Moves) -> Bookkeeping:
        """Return the records below `end`, or fewer if the consumer does not move for `seconds`."""
        offset, records = known.offset, dict(known.records)
        with self._needing("READ", self.bookkeeping):
            records_below = read_range(consumer, self.bookkeeping, 0, known.offset, end, seconds, moves)
            for offset, message in records_below:  # noqa: B007
                # Those who may write to the topic may write any key.
                key = (message.key() or b"").decode(errors="replace") if message else ""
                if message and f"{key}/".startswith(f"{self.owner}/"):
                    records[key] = self._parse(key, message.value())
        return Bookkeeping(offset, records)

    def _write_marks(self, producer: Any, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """Write a mark that no one reads to each partition, and return the offsets. All that others wrote before lies below.

        Raises:
            StoreUnavailableError: The brokers do not take a mark, or do not say its offset.
        """
        answers: dict[int, Any] = dict.fromkeys(partitions, (None, None))

        def note(partition: int, error: Any, message: Any) -> None:
            answers[partition] = error, message

        with self._transaction(producer, is_kept=False):
            for partition in answers:
                producer.produce(topic, None, "mark", partition=partition, on_delivery=partial(note, partition))
            producer.flush(PATIENCE)
            for error, message in answers.values():
                if error is not None:
                    self._raise_failure(producer, topic, error)
                if message is None or message.offset() < 0:
                    raise StoreUnavailableError(
                        f"{self.name}: topic={topic!r} did not take a record within {PATIENCE:g} s. Check the brokers, then try"
                        " again."
                    )
        return {partition: message.offset() for partition, (_, message) in answers.items()}

    def _parse(self, key: str, value: bytes) -> Mapping[str, Any]:
        try:
            record: Mapping[str, Any] = json.loads(value)
            if record.keys() >= ({"format"} if key == self.owner else {"begun", "through", "rows", "done"}):
                return record
        except (AttributeError, TypeError, ValueError, RecursionError):
            pass
        raise DamagedError(f"record={key!r} of topic={self.bookkeeping!r} is not what was written; restore it.")

    def _raise_failure(self, producer: Any, topic: str, error: Any) -> None:
        """Raise why the brokers did not take a record."""
        with self._needing("WRITE", topic):
            if error.code() in (error._PURGE_QUEUE, error._PURGE_INFLIGHT):
                # The transaction had failed before this record was sent. Committing it raises why.
                producer.commit_transaction(PATIENCE)
            raise library().KafkaException(error)

    def _produce_record(self, producer: Any, key: str, record: Mapping[str, Any]) -> None:
        producer.produce(self.bookkeeping, json.dumps(record), key, partition=0)

    @contextmanager
    def _producer(self, owner: str) -> Iterator[Any]:
        """Give this block the one producer of a transactional id. The last producer is fenced, and its transaction settled."""
        options = {
            # Choose partitions as Java's clients do.
            "partitioner": "murmur2_random",
            # The producer asks for its coordinator when it next wakes up. This wakes it early, else it may sleep half a second.
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
            # The client raises that it was fenced within a callback, which then fails with a SystemError.
            if isinstance(error.__cause__, library().KafkaException):
                raise error.__cause__ from None
            raise

    @contextmanager
    def _transaction(self, producer: Any, is_kept: bool = True, less: str = "") -> Iterator[Callable[[], bool]]:
        """Run a transaction around this block: commit it if `is_kept`, else abort it.

        The block gets a function that returns whether half of the transaction's time is over. `less` is what makes the
        transaction shorter, by default fewer rows.
        """
        exception = library().KafkaException
        began = time.monotonic()
        producer.begin_transaction()
        try:
            yield lambda: time.monotonic() - began > self._seconds / 2
            (producer.commit_transaction if is_kept else producer.abort_transaction)(PATIENCE)
        except BaseException as error:
            # If this fails too, the next producer of this id aborts it, or the brokers do after its timeout.
            with suppress(exception):
                producer.abort_transaction(PATIENCE / 4)
            if isinstance(error, exception) and time.monotonic() - began > self._seconds:
                less = less or f"give it less to do by rows_per_transaction={self.rows}"
                raise StoreUnavailableError(
                    f"{self.name}: a transaction took longer than {TIMEOUT}={self._seconds * 1000:g}. Give it more time by that"
                    f" option, or {less}."
                ) from None
            raise

    @property
    def _seconds(self) -> float:
        """The seconds that a transaction may take."""
        return float(self.options.get(TIMEOUT, 60_000)) / 1000

    def _consumer(self, moves: Moves) -> Any:
        return library().Consumer(
            {
                # No offsets are ever committed to the group.
                "group.id": self.owner,
                "fetch.wait.max.ms": 10,
                **moves.options(client_options(self.bootstrap_servers, self.options)),
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
