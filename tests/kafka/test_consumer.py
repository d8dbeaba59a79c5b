"""How the reader of Kafka bears with brokers that send no records for long, with tokens that fail, and with great records.

No broker runs here: consumers do what these tests say.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from persistent_state import (
    InvalidInputError,
    KafkaConnectorSource,
    KafkaSink,
    KafkaSource,
    StateError,
    StoreUnavailableError,
)
from persistent_state.engine.read import kafka_connector
from persistent_state.kafka import client, consumer, read_back, source
from persistent_state.kafka.client import Moves, TokenFunction
from persistent_state.kafka.consumer import OffsetRange
from persistent_state.run.start_checks import copied
from tests.kafka.test_subscription import World, arrange, message
from tests.sentences import problem
from tests.waiting import PATIENCE, until

END = 1_000
statistics: list[str] = []


class Time:
    """A clock that the consumers of these tests move on."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    for module in (client, consumer, read_back, source):
        monkeypatch.setattr(module, "time", made)
    return made


class Aborted:
    """A consumer of a partition of aborted records, of which it fetches so many a second, and one record behind them."""

    def __init__(self, time: Time, rate: float, options: dict[str, Any]) -> None:
        self.time, self.rate, self.options = time, rate, options
        self.at, self.is_read = 0.0, False
        self.pause: Callable[[Any], None] = lambda places: None
        self.close: Callable[[], None] = lambda: None

    def assign(self, places: Any) -> None:
        self.at = float(places[0].offset)

    def consume(self, count: int, timeout: float) -> list[Any]:
        if timeout:
            self.time.now += 1
            self.at = min(float(END), self.at + self.rate)
            told = {"topics": {"t": {"partitions": {"0": {"next_offset": int(self.at)}}}}}
            self.options["stats_cb"](json.dumps(told))
        if self.at < END or self.is_read:
            return []
        self.is_read = True
        return [message("t", None, END - 1)]

    def poll(self, timeout: float) -> Any:
        return next(iter(self.consume(1, timeout)), None)


@pytest.fixture
def consumers(time: Time, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[Aborted]]:
    """Lets consumers fetch at a rate, and returns those that were made."""
    made: list[Aborted] = []

    def fetch(rate: float) -> list[Aborted]:
        def consumer_of(options: dict[str, Any]) -> Aborted:
            made.append(Aborted(time, rate, options))
            return made[-1]

        monkeypatch.setattr(confluent_kafka, "Consumer", consumer_of)
        return made

    return fetch


PART = OffsetRange("t-0", "t", 0, 0, END, 0, None)


def test_a_reader_bears_with_aborted_records_for_as_long_as_it_gets_on(
    time: Time, consumers: Callable[[float], list[Aborted]]
) -> None:
    made = consumers(1.0)
    told = KafkaSource("t", "nowhere:9", options={"stats_cb": statistics.append})
    (chunk,) = told.read([PART])
    assert chunk.positions.tolist() == [END - 1]
    assert (time.now, len(made)) == (END, 1)
    assert len(statistics) == END, "a callback of the user's is called, too"
    consumers(0.0)
    with pytest.raises(StoreUnavailableError, match=r"sent nothing of .* for 60 s; check the brokers"):
        list(told.read([PART]))
    assert time.now < END + 65


def test_who_reads_back_bears_with_aborted_records_by_one_client(
    time: Time, consumers: Callable[[float], list[Aborted]]
) -> None:
    made = consumers(1.0)

    def of(moves: Moves) -> Any:
        return confluent_kafka.Consumer(moves.options({}))

    found = list(read_back.read_range(of(moves := Moves()), "t", 0, 0, END, 2.0, moves))
    assert [(after, held.offset()) for after, held in found] == [(END, END - 1)]
    assert len(made) == 1
    # One that does not move is left for another soon, and all together give up.
    made.clear()
    consumers(0.0)
    began, place = time.now, confluent_kafka.TopicPartition("t", 0)
    with pytest.raises(StoreUnavailableError, match=r"can be read up to offset=0 of 1000"):
        read_back._in_range(of, "sink", place, 0, END, "task", 0, 20.0)
    assert 20 <= time.now - began < 30
    assert len(made) > 5


def test_clients_that_fetch_the_same_again_do_not_get_on(time: Time) -> None:
    moves = Moves()

    def told(offset: int) -> None:
        statistics = {"topics": {"t": {"partitions": {"0": {"next_offset": offset}, "-1": {"next_offset": -1001}}}}}
        moves.options({})["stats_cb"](json.dumps(statistics))

    for now, offset, last in ((1, -1001, 0), (2, 10, 2), (3, 10, 2), (4, 5, 2), (5, 10, 2), (6, 11, 6)):
        time.now = now
        told(offset)
        assert moves.last == last


def test_a_chunk_ends_at_a_number_of_bytes_of_all_partitions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_BYTES_PER_CHUNK", 1000)
    monkeypatch.setattr(source, "_ROWS_PER_CHUNK", 50)
    parts = [OffsetRange(f"t-{p}", "t", p, 0, 60, 0, None) for p in range(3)]
    held = [0]

    def records(*_: Any) -> Iterator[Any]:
        for first in range(0, 60, 5):
            for part in parts:
                # Partition 0 has small records, 1 greater ones, and each of 2 is a chunk of its own.
                size = (1, 40, 1500)[part.partition]
                some = [message("t", None, first + i, part.partition, bytes(size)) for i in range(5)]
                held[0] += 5
                yield part, some

    monkeypatch.setattr(consumer, "records", records)
    read: dict[str, list[int]] = {}
    for chunk in KafkaSource("t", "nowhere:9").read(parts):
        read.setdefault(chunk.partition, []).extend(chunk.positions.tolist())
        assert sum(map(len, chunk.rows["value"].to_pylist())) <= 1000 + 5 * 1500
        held[0] -= chunk.rows.num_rows
        assert held[0] <= 15
    assert read == {f"t-{p}": list(range(60)) for p in range(3)}


def test_a_micro_batch_reads_about_so_many_bytes_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = World(), list[set[int]]()
    arrange(monkeypatch, world)
    now = [0.0]
    monkeypatch.setattr(source, "time", SimpleNamespace(monotonic=lambda: now[0]))
    world.make("t", 3, records=4_000)

    def sizes(asking: Any, options: Any, begins: Any) -> Any:
        asked.append({partition for _, partition in begins})
        # Nothing comes of partition 2: it counts as the others do.
        return {(topic, p): (1000.0, 3000.0)[p] for topic, p in begins if p < 2}

    monkeypatch.setattr(consumer, "record_sizes", sizes)
    made = KafkaSource("t", "nowhere:9", max_bytes_per_batch=6_000_000)
    made.open([], {})
    ends = made.reach({}, everything=False).ends
    assert ends == {"t-0": 1000, "t-1": 1000, "t-2": 1000}
    assert sum(size * end for size, end in zip((1000, 3000, 2000), ends.values(), strict=True)) == 6_000_000
    assert made.reach({}, everything=True).ends == dict.fromkeys(ends, 4_000)
    # They are known for a minute.
    now[0] = 59
    assert made.reach(ends, everything=False).ends == dict.fromkeys(ends, 2_000)
    assert asked == [{0, 1, 2}]
    now[0] = 61
    world.logs["t"].partitions[0][1] = 1000
    made.reach(ends, everything=False)
    assert asked == [{0, 1, 2}, {1, 2}]
    # So few records are never too much.
    few = {"t-0": 1000, "t-1": 3998, "t-2": 3998}
    now[0] = 200
    assert made.reach(few, everything=False).ends == {"t-0": 1000, "t-1": 4_000, "t-2": 4_000}
    assert len(asked) == 2
    with pytest.raises(InvalidInputError, match="max_bytes_per_batch=0; give at least 1"):
        KafkaSource("t", "nowhere:9", max_bytes_per_batch=0)


def test_where_no_size_is_known_offsets_alone_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    arrange(monkeypatch, world)
    world.make("t", 2, records=4_000)
    monkeypatch.setattr(consumer, "record_sizes", lambda *_: {})
    made = KafkaSource("t", "nowhere:9", max_bytes_per_batch=1, max_offsets_per_batch=100)
    made.open([], {})
    assert made.reach({}, everything=False).ends == {"t-0": 50, "t-1": 50}


def refuses(config: str) -> Any:
    raise RuntimeError("the identity provider says no to hunter22")


def gives(config: str) -> Any:
    return "token", 2e9


NOT_SET = KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "OAuth token not set within 10 seconds timeout")
NOT_ACQUIRED = KafkaError(KafkaError._AUTHENTICATION, "Failed to acquire SASL OAUTHBEARER token: whatever")
NOT_TAKEN = KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED, "SASL authentication error: invalid token")


@pytest.mark.parametrize("error", [NOT_SET, NOT_ACQUIRED, NOT_TAKEN])
def test_a_call_for_a_token_that_failed_is_no_refusal_and_says_why(error: KafkaError) -> None:
    options = client.checked_options("a source", {"oauth_cb": refuses, "sasl.password": "hunter22"})
    with pytest.raises(RuntimeError):
        options["oauth_cb"]("")

    def fails() -> None:
        with client.asking("a source", options):
            raise KafkaException(error)

    said = problem(fails, StoreUnavailableError)
    assert "oauth_cb raised RuntimeError('the identity provider says no to ***')" in said
    assert f"{__file__}:" in said
    # It is asked again, and what it said before is forgotten.
    options["oauth_cb"].function = gives
    assert options["oauth_cb"]("") == ("token", 2e9)
    # A token that was given, and that the brokers refuse, is refused for good.
    assert "raised" not in problem(fails, InvalidInputError if error is NOT_TAKEN else StoreUnavailableError)


@pytest.mark.kafka  # The client waits for ten seconds.
def test_the_client_says_in_these_words_that_it_has_no_token() -> None:
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": refuses,
        "log_level": 0,
    }
    made = KafkaSource("t", "127.0.0.1:1", options=login)
    said = problem(lambda: made._admin, StoreUnavailableError)
    assert f"{NOT_SET.str()}: oauth_cb raised RuntimeError('the identity provider says no to hunter22')" in said


def test_a_function_that_does_not_return_in_time_is_named() -> None:
    options = client.checked_options("a source", {"oauth_cb": gives})
    token, called, seen = options["oauth_cb"], threading.Event(), threading.Event()

    def waits(config: str) -> None:
        called.set()
        seen.wait(PATIENCE)

    token.function = waits
    thread = threading.Thread(target=token, args=("",))
    thread.start()
    assert called.wait(PATIENCE)
    assert client.reason_of(NOT_SET, options).endswith(": oauth_cb has not returned")
    seen.set()
    thread.join()
    assert client.reason_of(NOT_SET, options) == NOT_SET.str()


def test_a_reader_whose_token_can_not_be_renewed_reads_on(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    told = [[message(None, NOT_ACQUIRED)], [message("t", None, 0)], [message("t", None, END - 1)]]

    class Consumer:
        def __init__(self, options: Any) -> None:
            self.assign = self.pause = lambda places: None
            self.close = lambda: None

        def consume(self, count: int, timeout: float) -> Any:
            time.now += 61 * (not told)
            return told.pop(0) if told else []

    monkeypatch.setattr(confluent_kafka, "Consumer", Consumer)
    reader = KafkaSource("t", "nowhere:9", options={"oauth_cb": refuses})
    assert [row for chunk in reader.read([PART]) for row in chunk.positions.tolist()] == [0, END - 1]
    # If it never can, the error says why.
    told.append([message(None, NOT_ACQUIRED)])
    with pytest.raises(RuntimeError):
        reader.options["oauth_cb"]("")
    with pytest.raises(StoreUnavailableError, match=r"for 60 s, and says .*oauth_cb raised RuntimeError"):
        list(reader.read([PART]))


class Provider:
    """Gives tokens, and can't be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def token(self, config: str) -> Any:
        return "token", 2e9

    def encode(self, rows: pa.RecordBatch) -> Any:
        return [], []


@pytest.mark.parametrize(
    "make",
    [
        lambda: KafkaSource("t", "nowhere:9", options={"oauth_cb": Provider().token}),
        lambda: KafkaSink("t", "nowhere:9", options={"oauth_cb": Provider().token}),
        lambda: KafkaSink("t", "nowhere:9", encode=Provider().encode),
    ],
)
def test_a_function_that_can_not_be_sent_to_workers_is_refused(make: Callable[[], Any]) -> None:
    assert "can't be sent to workers: cannot pickle '_thread.lock' object" in problem(make)


def test_a_function_of_tokens_comes_to_workers_without_what_it_failed_by() -> None:
    import cloudpickle

    made = KafkaSource("t", "nowhere:9", options={"oauth_cb": gives})
    assert isinstance(made.options["oauth_cb"], TokenFunction)
    copy = cloudpickle.loads(cloudpickle.dumps(made))
    assert copy.options["oauth_cb"]("") == ("token", 2e9)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"oauth_cb": gives, "sasl.mechanisms": "OAUTHBEARER"}, "['oauth_cb', 'sasl.mechanism=OAUTHBEARER']"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "['sasl.mechanism=OAUTHBEARER']"),
        ({"sasl.oauthbearer.method": "oidc"}, "['sasl.oauthbearer.method']"),
        ({"sasl.oauthbearer.config": "principal=me"}, "['sasl.oauthbearer.config']"),
        (
            {"sasl.mechanism": "GSSAPI", "sasl.kerberos.keytab": "/k"},
            "['sasl.kerberos.keytab', 'sasl.mechanism=GSSAPI']",
        ),
        ({"error_cb": gives}, "['error_cb']"),
        ({"ssl.crl.location": "/crl"}, "['ssl.crl.location']"),
    ],
)
def test_options_that_java_does_not_have_are_refused_for_sparks_connector(options: dict[str, Any], named: str) -> None:
    said = problem(lambda: KafkaConnectorSource("t", "nowhere:9", lambda records: records, options=options))
    assert said.startswith(f"options={named} of KafkaConnectorSource('t', 'nowhere:9')")


@pytest.mark.parametrize("mechanism", ["PLAIN", "scram-sha-256", "SCRAM-SHA-512"])
def test_options_that_java_has_too_are_taken_for_sparks_connector(mechanism: str) -> None:
    options = {"sasl.mechanisms": mechanism, "sasl.username": "me", "ssl.ca.location": "/ca", "debug": "all"}
    KafkaConnectorSource("t", "nowhere:9", lambda records: records, options=options)


def test_a_source_that_can_not_be_sent_to_workers_is_refused_where_it_is_copied() -> None:
    lock = threading.Lock()
    made = KafkaSource("t", "nowhere:9", transform=lambda rows: rows.slice(int(lock.locked())))
    assert "'_transform'" in problem(lambda: copied(made))


def test_the_columns_of_sparks_connector_stay_in_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, world = threading.Lock(), World()
    arrange(monkeypatch, world)
    world.make("t", 2, records=5)
    made = KafkaConnectorSource("t", "nowhere:9", lambda records: records if lock else None)
    frame, lines = kafka_connector.frame_from(made, [], {}, {})
    assert (frame.channels, len(lines)) == (("t-0", "t-1"), 1)
    # It may be opened again, as the source itself is not.
    assert kafka_connector.frame_from(made, [], {}, {})[1] == lines


@dataclass
class Brokers:
    """Partitions of the topic t: by partition the offsets of records, and its end. Nothing comes of those that are stuck.

    The next calls of consumers are given `errors` first. Consumers that hoard hand out what they fetched for an earlier
    assignment: at once, or not before they are assigned partitions again.
    """

    time: Time
    offsets: dict[int, list[int]]
    ends: dict[int, int]
    hoard: str = "no"
    id: str = "first"
    reads: int = 0
    stuck: set[int] = field(default_factory=set)
    errors: list[Any] = field(default_factory=list)
    opened: list[Fetching] = field(default_factory=list)

    def consumer(self, options: dict[str, Any]) -> Fetching:
        self.opened.append(Fetching(self, options))
        return self.opened[-1]

    @property
    def open(self) -> list[Fetching]:
        return [one for one in self.opened if not one.is_closed]


class Fetching:
    """A consumer of `Brokers`. It fetches all that there is from where its partitions begin, and says where they end.

    The value of a record is the id that the topic had when the consumer was made, and the number of the read.
    """

    def __init__(self, brokers: Brokers, options: dict[str, Any]) -> None:
        self.brokers, self.options, self.id = brokers, options, brokers.id
        self.is_closed = False
        self.at: dict[int, int] = {}
        self.queue: list[Any] = []

    def assign(self, places: Any) -> None:
        self.at = {place.partition: place.offset for place in places}

    def unassign(self) -> None:
        self.fetch()
        self.at = {}
        if self.brokers.hoard == "no":
            self.queue.clear()

    def pause(self, places: Any) -> None:
        for place in places:
            del self.at[place.partition]

    def fetch(self) -> None:
        assert not self.is_closed
        for partition, at in self.at.items():
            end = self.brokers.ends[partition]
            if at < end and partition not in self.brokers.stuck:
                value = f"{self.id} {self.brokers.reads}".encode()
                new = [offset for offset in self.brokers.offsets[partition] if offset >= at]
                self.queue += [message("t", None, offset, partition, value) for offset in new]
                self.queue.append(message("t", KafkaError(KafkaError._PARTITION_EOF), end, partition))
                self.at[partition] = end

    def consume(self, count: int, timeout: float) -> list[Any]:
        self.brokers.time.now += timeout
        assert self.brokers.time.now < 10_000, "it waits for ever"
        self.fetch()
        if self.brokers.errors:
            if isinstance(error := self.brokers.errors.pop(0), Exception):
                raise error
            return [error]
        if self.brokers.hoard == "later" and not self.at:
            return []
        came, self.queue = self.queue[:count], self.queue[count:]
        return came

    def poll(self, timeout: float) -> Any:
        return next(iter(self.consume(1, timeout)), None)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def brokers(time: Time, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers(time, {p: [*range(100)] for p in range(3)}, dict.fromkeys(range(3), 100))
    monkeypatch.setattr(confluent_kafka, "Consumer", made.consumer)
    return made


def stays_open(seconds: float = 3600.0) -> KafkaSource:
    made = KafkaSource("t", "nowhere:9")
    made.stay_open(seconds)
    return made


def part_of(partition: int, begin: int, end: int, name: str = "t-{}") -> OffsetRange:
    return OffsetRange(name.format(partition), "t", partition, begin, end, 0, None)


def read(made: KafkaSource, *ranges: OffsetRange) -> list[tuple[int, int, str]]:
    """The partition, the offset and the value of each record that a read gives."""
    return [
        (row["kafka_partition"], row["kafka_offset"], row["value"].decode())
        for chunk in made.read(ranges)
        for row in chunk.rows.to_pylist()
    ]


def offsets_of(made: KafkaSource, *ranges: OffsetRange) -> list[int]:
    return [offset for _, offset, _ in read(made, *ranges)]


@pytest.mark.parametrize("hoard", ["no", "at once", "later"])
@pytest.mark.parametrize("seed", range(10))
def test_a_consumer_that_stays_open_gives_each_read_its_own_records_and_nothing_of_an_earlier_read(
    brokers: Brokers, seed: int, hoard: str
) -> None:
    made, chance, at = stays_open(), random.Random(seed), dict.fromkeys(range(3), 0)
    brokers.hoard = hoard
    brokers.offsets, brokers.ends = {p: [] for p in at}, dict.fromkeys(at, 0)
    for _ in range(40):
        for partition, end in [*brokers.ends.items()]:
            new = range(end, end + chance.choice([0, 0, 1, 5, 30]))
            # The other offsets are marks of transactions, or were compacted away.
            brokers.offsets[partition] += [offset for offset in new if chance.random() < 0.8]
            brokers.ends[partition] = new.stop
        if chance.random() < 0.3:
            # A worker has read on, or the run was started again from before.
            again = chance.randrange(3)
            at[again] = chance.randint(0, brokers.ends[again])
        ranges = [part_of(p, at[p], chance.randint(at[p], end)) for p, end in brokers.ends.items()]
        ranges = [each for each in ranges if each.begin < each.end]
        brokers.reads += 1
        given = read(made, *ranges)
        wanted = [(r.partition, o) for r in ranges for o in brokers.offsets[r.partition] if r.begin <= o < r.end]
        assert sorted((p, o) for p, o, _ in given) == wanted
        # What was left over behind an earlier read, and begins where this one does, is the same.
        assert hoard == "later" or {value for *_, value in given} <= {f"first {brokers.reads}"}
        for partition in at:
            own = [offset for p, offset, _ in given if p == partition]
            assert own == sorted(own)
        at.update({each.partition: each.end for each in ranges})
        for kept in brokers.open:
            # What is fetched, or counted, while no one asks is kept in memory for ever.
            assert not kept.at
            assert kept.options["statistics.interval.ms"] == 0
    assert len(brokers.open) <= 1
    assert hoard != "no" or len(brokers.opened) < 60


def test_reads_that_follow_each_other_open_one_consumer_if_the_source_stays_open(brokers: Brokers) -> None:
    made = KafkaSource("t", "nowhere:9")
    for seconds, opened in ((None, 10), (3600.0, 11), (0.0, 21)):
        if seconds is not None:
            made.stay_open(seconds)
        for begin in range(0, 100, 10):
            assert offsets_of(made, part_of(0, begin, begin + 10)) == [*range(begin, begin + 10)]
        assert (len(brokers.opened), len(brokers.open)) == (opened, int(bool(seconds)))
    # Lost offsets are not asked for.
    made.stay_open(3600.0)
    assert offsets_of(made, OffsetRange("t-0", "t", 0, 0, 10, 5, None)) == [*range(5, 10)]
    threads = {*threading.enumerate()}
    for _ in range(9):
        read(made, part_of(0, 10, 20))
    until(lambda: len({*threading.enumerate()} - threads) <= 1, "the end of timers of earlier reads")
    made.stay_open(0.01)
    read(made, part_of(0, 0, 10))
    until(lambda: not brokers.open, "the end of a consumer that is not used")
    assert offsets_of(made, part_of(0, 10, 20)) == [*range(10, 20)]


def test_a_long_read_is_one_of_a_consumer_of_its_own(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "_ROWS_PER_CALL", 60)
    made = stays_open()
    assert len(read(made, *(part_of(p, 0, 20) for p in range(3)))) == 60
    assert len(brokers.open) == 1
    assert len(read(made, *(part_of(p, 0, 21) for p in range(3)))) == 63
    assert ["stats_cb" in each.options for each in brokers.opened] == [False, True]


def test_a_partition_that_is_stuck_is_given_up_as_soon_and_in_the_same_words_as_by_a_new_consumer(
    brokers: Brokers,
) -> None:
    made = stays_open()
    brokers.stuck = {1}
    said = {}
    for one in (KafkaSource("t", "nowhere:9"), made):
        begun = brokers.time.now
        said[one] = problem(lambda one=one: read(one, part_of(0, 0, 10), part_of(1, 0, 10)), StoreUnavailableError)
        assert 60 <= brokers.time.now - begun < 66
    assert len({*said.values()}) == 1
    assert not brokers.open
    # One that is only slow is waited for.
    brokers.stuck = set()
    read(made, part_of(0, 0, 10))
    (kept,) = brokers.open

    def slowly(count: int, timeout: float) -> list[Any]:
        brokers.time.now += 4
        return Fetching.consume(kept, 1, 0.0)

    kept.consume = slowly  # type: ignore[method-assign]
    assert offsets_of(made, part_of(0, 10, 20)) == [*range(10, 20)]
    assert brokers.open == [kept]
    made.stay_open(3600.0)
    # If only the consumer that stays open is stuck, as after a failover, a new one goes on.
    read(made, part_of(0, 0, 10))
    (kept,) = brokers.open
    kept.fetch = lambda: None  # type: ignore[method-assign]
    begun = brokers.time.now
    assert offsets_of(made, part_of(0, 10, 20)) == [*range(10, 20)]
    assert brokers.time.now - begun < 6
    assert kept.is_closed


def test_a_topic_that_was_made_again_is_not_read_as_the_old_one(brokers: Brokers) -> None:
    made = stays_open()
    assert {value for *_, value in read(made, part_of(0, 0, 10))} == {"first 0"}
    brokers.id = "second"
    for begin in (10, 20):
        assert {value for *_, value in read(made, part_of(0, begin, begin + 10, "t-{}#1"))} == {"second 0"}
    assert len(brokers.opened) == 2


GONE = message(None, KafkaError(KafkaError._ALL_BROKERS_DOWN))
EXPIRED = message(None, KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED))
FORBIDDEN = message("t", KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
FATAL = KafkaException(KafkaError(KafkaError._FATAL))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (GONE, StoreUnavailableError),
        (FATAL, StoreUnavailableError),
        (EXPIRED, InvalidInputError),
        (FORBIDDEN, InvalidInputError),
    ],
    ids=["gone", "fatal", "expired", "forbidden"],
)
@pytest.mark.parametrize("calls", [1, 2], ids=["before a read", "in a read"])
def test_a_consumer_with_an_error_is_closed_and_the_error_is_that_of_a_new_one(
    brokers: Brokers, error: Any, kind: type[StateError], calls: int
) -> None:
    made = stays_open()
    read(made, part_of(0, 0, 10))
    (kept,) = brokers.open
    silent = message(None, KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    brokers.errors = [silent] * (calls - 1) + [error]
    assert offsets_of(made, part_of(0, 10, 20)) == [*range(10, 20)]
    assert (kept.is_closed, len(brokers.opened)) == (True, 2)
    # Where a new one meets it, too, the words are the same.
    said = []
    for one in (KafkaSource("t", "nowhere:9"), made):
        brokers.errors, brokers.stuck = [error] * 3, {0}
        said.append(problem(lambda one=one: read(one, part_of(0, 0, 10)), kind))
    assert said[0] == said[1]
    assert not brokers.open


def test_threads_share_no_consumer_and_what_is_open_stays_in_its_process(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stays_open()
    reads = [made.read([part_of(p, 0, 10)]) for p in range(2)]
    monkeypatch.setattr(source, "_ROWS_PER_CHUNK", 1)
    assert [next(each).partition for each in reads] == ["t-0", "t-1"]
    assert [each.at for each in brokers.open] == [{0: 100}, {1: 100}]
    assert [[*each] for each in reads] == [[], []]
    (kept,) = brokers.open
    # A process that was forked opens its own, and leaves alone what is open.
    monkeypatch.setattr(consumer, "os", SimpleNamespace(getpid=lambda: 0))
    assert offsets_of(made, part_of(0, 10, 20)) == [*range(10, 20)]
    made.stay_open(0)
    assert (len(brokers.opened), brokers.open) == (3, [kept]), "to close it in a forked process takes for ever"
    monkeypatch.undo()
    for copy in (copied(stays_open()), stays_open().read_by("app")):
        assert (copy._reader, copy._news) == (None, None)


def test_a_read_that_is_left_in_the_middle_leaves_no_consumer_open(brokers: Brokers, monkeypatch: Any) -> None:
    made = stays_open()
    monkeypatch.setattr(source, "_ROWS_PER_CHUNK", 1)
    for _ in range(2):
        rows = made.read([part_of(0, 0, 10), part_of(1, 0, 10)])
        next(rows)
        rows.close()  # type: ignore[attr-defined]
        assert not brokers.open


def test_a_source_that_is_idle_waits_for_a_record_behind_its_ends_and_hears_of_no_other(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, stopping, time = World(), threading.Event(), brokers.time
    arrange(monkeypatch, world)
    log = world.make("t", 3, records=100)
    made = stays_open()
    monkeypatch.setattr(stopping, "wait", lambda seconds: setattr(time, "now", time.now + seconds))

    def waits() -> float:
        begun = time.now
        made.await_news(1.0, stopping)
        assert not any(one.at for one in brokers.open)
        return time.now - begun

    made.open([], {})
    made.reach({}, everything=False)
    assert waits() == pytest.approx(1.0)
    brokers.offsets[1].append(100)
    brokers.ends[1] = 101
    assert waits() <= 0.2
    # What waits, as its channel is far ahead, is not news.
    made.hold({"t-1"})
    assert waits() == pytest.approx(1.0)
    made.hold(())
    log.partitions[1][1] = 101
    made.reach({}, everything=False)
    assert waits() == pytest.approx(1.0)
    assert len(brokers.opened) == 1
    # Neither is an error, which ends the consumer.
    brokers.errors = [message("t", None, 101), GONE]
    assert waits() == pytest.approx(1.0)
    assert not brokers.open
    monkeypatch.undo()
    stopping.set()
    for each in (made, stays_open(0)):
        each._opened_state = made._opened_state
        each.await_news(PATIENCE, stopping)
