"""What a Kafka sink refuses, what it waits for, and that it tells no secret."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest

from examples.broker import Broker
from persistent_state.errors import InvalidInputError, StateError, StoreUnavailableError
from persistent_state.kafka import ledger, sink_topics
from persistent_state.kafka.ledger import NOTHING_READ
from persistent_state.kafka.sink import KafkaSink
from persistent_state.kafka.transactions import ClockWriter
from persistent_state.sinks.base import Origin
from persistent_state.sinks.values import LocalValues
from tests.kafka.deliverer import check, consume, deliver, go_back, newest, rows_of, seen, write_part, writer_of
from tests.kafka.security import GUEST, allow, client_options
from tests.sentences import problem
from tests.waiting import PATIENCE

ORIGIN = Origin("shop", "Totals", ("key",), rows_of(0).schema)
SCHEMA = pa.schema([("city", pa.string()), ("a.b", pa.int64()), ("clock", pa.int64()), ("value", pa.float64())])
CITIES = Origin("shop", "Sales", ("city", "a.b"), SCHEMA)


def test_a_topic_that_is_missing_is_refused(broker: Broker) -> None:
    said = problem(lambda: KafkaSink("nowhere", broker.address).open(ORIGIN))
    assert said == f"topic='nowhere' is not at bootstrap_servers={broker.address!r}; make it, or name another."


def test_a_time_that_the_broker_does_not_grant_is_refused(broker: Broker, topic: str) -> None:
    sink = KafkaSink(topic, broker.address, options={"transaction.timeout.ms": 3_600_000})
    assert "timeout" in problem(lambda: sink.open(ORIGIN))


def test_the_bookkeeping_is_made_and_refused_if_it_might_lose_records(broker: Broker, topic: str) -> None:
    assert KafkaSink(topic, broker.address).open(ORIGIN) is None
    admin = confluent_kafka.admin
    resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, f"{topic}.clocks")
    client = broker.admin()
    assert client.describe_configs([resource])[resource].result(PATIENCE)["cleanup.policy"].value == "compact"
    for policy in ("delete", "compact,delete"):
        name = f"{topic}.{policy.replace(',', '.')}"
        broker.make(name, cleanup_policy=policy)
        said = problem(lambda name=name: KafkaSink(topic, broker.address, bookkeeping=name).open(ORIGIN))
        assert f"topic={name!r} has cleanup.policy=" in said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"topic": "a b"}, "topic='a b' can't be one of Kafka"),
        ({"bookkeeping": "t"}, "topic='t' has the values"),
        ({"partitions": 0}, "partitions=0"),
        ({"rows_per_transaction": 0}, "partitions=1, rows_per_transaction=0"),
        ({"options": {"transactional.id": "x"}}, "options=['transactional.id'] of a KafkaSink are not yours to set"),
        ({"options": {"transaction.timeout.ms": "soon"}}, "transaction.timeout.ms='soon' is not a time"),
    ],
)
def test_what_can_not_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    assert problem(lambda: KafkaSink(**{"topic": "t", "bootstrap_servers": "localhost", **wrong})).startswith(said)


def test_what_the_brokers_or_clients_can_not_take_is_said(broker: Broker, topic: str) -> None:
    small = f"small-{topic}"
    broker.make(small, 1, max_message_bytes="500")
    writer = writer_of(broker.address, small)
    writer.prepare()
    begun = writer.begin(10, 1, NOTHING_READ)
    assert begun is not None

    def encoded(key: Any, value: Any) -> str:
        return problem(
            lambda: write_part(writer, begun, rows_of(10), 0, lambda rows: ([key] * len(rows), [value] * len(rows)))
        )

    for size in (5_000, 5_000_000):
        said = encoded(b"k", bytes(size))
        assert f"the record of key=b'k' has size={size + 1} bytes" in said
        assert f"Give topic={small!r} a greater max.message.bytes" in said
    assert "encode gave key=int and value=bytes; give text, bytes or None" in encoded(1, b"")
    write_part(writer, begun, rows_of(10), 0)
    check(seen(broker, small), [10])


def test_a_broker_that_does_not_answer_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "PATIENCE", 0.5)
    said = problem(lambda: KafkaSink("t", "127.0.0.1:9").open(ORIGIN), StoreUnavailableError)
    assert said.startswith("kafka 127.0.0.1:9 t: ")


def test_brokers_that_fail_over_are_asked_again_at_once(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = confluent_kafka.KafkaError
    codes = [error.LEADER_NOT_AVAILABLE, error.NOT_LEADER_FOR_PARTITION, error.FENCED_LEADER_EPOCH]
    ask = sink_topics.cleanup_policy

    def fail_first(*arguments: Any) -> str:
        if codes:
            raise confluent_kafka.KafkaException(error(codes.pop()))
        return ask(*arguments)

    monkeypatch.setattr(sink_topics, "cleanup_policy", fail_first)
    assert KafkaSink(topic, broker.address).open(ORIGIN) is None
    assert not codes


def test_a_topic_that_is_made_is_awaited_and_its_absence_told(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, created = [False, False, False, True], list[str]()
    monkeypatch.setattr(sink_topics, "check", lambda *_: answers.pop(0) if answers else False)
    monkeypatch.setattr(sink_topics, "create", lambda name, admin, topic, patience: created.append(topic))
    monkeypatch.setattr(ledger, "PATIENCE", PATIENCE)
    writer = writer_of("127.0.0.1:9", "t")
    writer.prepare()
    assert (answers, created) == ([], ["t.clocks"] * 2)
    monkeypatch.setattr(ledger, "PATIENCE", 0.5)
    said = problem(writer.prepare, StoreUnavailableError)
    assert "topic='t.clocks' was created, and is not there yet" in said


def test_options_are_in_no_text(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ledger, "PATIENCE", 0.5)
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    for name in ("sasl.password", "ssl.ca.location", "acks"):
        sink = KafkaSink("t", "127.0.0.1:9", options={**options, name: "hunter22"})
        with pytest.raises(StateError) as caught:
            sink.open(ORIGIN)
        writer: ClockWriter = sink._writer()
        text = f"{sink!r} {sink.name} {writer!r} {caught.getrepr(style='native')}"
        assert "hunter22" not in text
    assert "hunter22" not in "".join(capfd.readouterr())


def test_tls_and_sasl_reach_every_client_and_their_secrets_no_text(
    secured: Broker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = client_options(secured.folder, "hunter22")
    secured.make("values", 2)
    servers = f"127.0.0.1:{secured.ports[2]}"
    deliver(writer_of(servers, "values", options=options), 2, [10, 20])
    check(seen(secured, "values"), [10, 20])
    monkeypatch.setattr(ledger, "PATIENCE", 3.0)
    for wrong in (
        {"sasl.password": "hunter23"},
        {"ssl.ca.location": "/hunter2/none"},
        {"security.protocol": "PLAINTEXT"},
    ):
        with pytest.raises(StateError) as caught:
            KafkaSink("values", servers, options={**options, **wrong}).open(ORIGIN)
        assert "hunter2" not in str(caught.getrepr(style="native"))
    assert "hunter2" not in "".join(capfd.readouterr())


def test_who_allows_what_each_error_names_has_allowed_all_that_is_needed(secured: Broker) -> None:
    secured.make("guarded", 2)
    options = client_options(secured.folder, "hunter22", GUEST)
    writer = writer_of(f"127.0.0.1:{secured.ports[2]}", "guarded", options=options)
    allowed, end = [], time.monotonic() + PATIENCE

    def refusal(ask: Callable[[], None]) -> str | None:
        try:
            ask()
        except InvalidInputError as error:
            return str(error)
        return None

    for ask in (lambda: deliver(writer, 2, [10]), lambda: go_back(replace(writer, timeline=1), 0, rows_of(0, ()))):
        while said := refusal(ask):
            found = re.search(r"the user lacks (\w+) on ([\w.]+)='(.*?)'", said)
            assert found, said
            # The broker may not have heard yet of what was allowed.
            assert time.monotonic() < end, said
            if found.groups() not in allowed:
                allowed.append(found.groups())
                allow(secured, *found.groups())
    assert allowed == [
        ("DESCRIBE", "topic", "guarded"),
        ("DESCRIBE", "topic", "guarded.clocks"),
        ("CREATE", "topic", "guarded.clocks"),
        ("DESCRIBE_CONFIGS", "topic", "guarded.clocks"),
        ("WRITE", "transactional.id", "shop/Totals/guarded/guarded.clocks"),
        ("WRITE", "topic", "guarded.clocks"),
        ("READ", "topic", "guarded.clocks"),
        ("WRITE", "topic", "guarded"),
        ("READ", "topic", "guarded"),
    ]
    assert newest(secured, "guarded") == {}


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_record_has_the_key_and_the_row_as_json(broker: Broker, partitions: int) -> None:
    topic = f"cities{partitions}"
    broker.make(topic, 3)
    wanted = []
    for clock, count in ((10, 20), (20, 0), (2_000_000, 1), (3_000_000, 9)):
        sink = KafkaSink(topic, broker.address, partitions=partitions, rows_per_transaction=4)
        sink.open(CITIES)
        rows = [(f"Łódź {i}" if i else None, i % 7, clock, i / 4 if i else float("nan")) for i in range(count)]
        table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)
        for _ in range(2):
            sink.write_values(LocalValues.of(table, parts=2), clock)
        assert sink.open(CITIES) == clock
        for city, number, _, value in rows:
            key = {"city": city, "a.b": number}
            shown = value if city else "nan"
            wanted.append((key, {**key, "clock": clock, "value": shown}))
    found = [(json.loads(m.key()), json.loads(m.value())) for m in consume(broker, topic)]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


def test_one_global_state_has_an_empty_key_and_encode_says_others(broker: Broker) -> None:
    schema = pa.schema(list(SCHEMA)[2:])
    broker.make("global")
    for clock, encode in ((10, None), (20, lambda rows: ([None], [b"\x00"])), (30, lambda rows: ([], []))):
        sink = KafkaSink("global", broker.address, encode=encode)
        sink.open(Origin("shop", "Total", (), schema))
        values = LocalValues.of(pa.table([[clock], [0.5]], schema=schema))
        if clock < 30:
            sink.write_values(values, clock)
        else:
            with pytest.raises(InvalidInputError, match="encode gave 0 keys and 0 values for rows=1; give one each"):
                sink.write_values(values, clock)
    found = [(message.key(), message.value()) for message in consume(broker, "global")]
    assert found == [(b"{}", b'{"clock":10,"value":0.5}'), (None, b"\x00")]
