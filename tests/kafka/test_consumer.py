"""How the reader of Kafka bears with brokers that send no records for long, with tokens that fail, and with great records.

No broker runs here: consumers do what these tests say.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from persistent_state import InvalidInputError, KafkaConnectorSource, KafkaSink, KafkaSource, StoreUnavailableError
from persistent_state.engine.read import kafka_connector
from persistent_state.kafka import client, consumer, read_back, source
from persistent_state.kafka.client import Moves, TokenFunction
from persistent_state.kafka.consumer import OffsetRange
from persistent_state.run.start_checks import copied
from tests.kafka.test_subscription import World, arrange, message
from tests.sentences import problem
from tests.waiting import PATIENCE

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
