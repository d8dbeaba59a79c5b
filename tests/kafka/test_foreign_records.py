"""Records of clients that write what Kafka's client for Python does not: names that are not UTF-8, and any time.

The C library writes them to a broker within this process, and the Python client reads them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest

from persistent_state.kafka import consumer
from persistent_state.kafka.client import headers_of
from persistent_state.kafka.topics import time_at
from tests.hostile.records import Log, Record
from tests.waiting import PATIENCE

WRITTEN = [
    Record(None, b"a", [(b"bad\xff", b"v"), (b"good", b"w")], 1_732_600_000_000),
    Record(b"k", b"b", [(b"good", b"w"), (b"bad\xff", None), (b"\xfe", b"")], 2**62 + 1_732_600_000_000),
    Record(b"", b"", [(b"", b""), (b"nul\0l", None), (b"\xc3\xa9", b"\xff")], 1),
    Record(b"\xff", None, [], 2**63 - 1),
    Record(None, b"{", [], -5),
    Record(None, b"\0", [], 2**62 // 1000),
]

_END, _TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIME, _HEADERS, _COPY = 0, 1, 3, 4, 5, 7, 8, 10, 2
"""What the arguments of `rd_kafka_producev` are, and the flag by which it copies what it is given."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a broker that has these records."""
    if not (files := [*Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka-*")]):
        pytest.skip("the client has no C library of its own here")
    library, pointer, text, number = ctypes.CDLL(str(files[0])), ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name in ("conf_new", "new", "handle_mock_cluster", "headers_new"):
        getattr(library, f"rd_kafka_{name}").restype = pointer
    library.rd_kafka_mock_cluster_bootstraps.restype = text
    options = pointer(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(options, b"test.mock.num.brokers", b"1", None, 0)
    producer = pointer(library.rd_kafka_new(0, options, None, 0))

    def sized(piece: bytes | None) -> tuple[Any, Any]:
        return text(piece), ctypes.c_ssize_t(-1 if piece is None else len(piece))

    for record in WRITTEN:
        headers = pointer(library.rd_kafka_headers_new(ctypes.c_size_t(4)))
        for name, value in record.written_headers:
            library.rd_kafka_header_add(headers, *sized(name), *sized(value))
        given: list[Any] = [number(_TOPIC), text(b"t"), number(_PARTITION), number(0), number(_FLAGS), number(_COPY)]
        for kind, piece in ((_KEY, record.written_key), (_VALUE, record.written_value)):
            given += [] if piece is None else [number(kind), *sized(piece)]
        given += [number(_TIME), ctypes.c_int64(record.millis), number(_HEADERS), headers, number(_END)]
        assert library.rd_kafka_producev(producer, *given) == 0
    assert library.rd_kafka_flush(producer, round(PATIENCE * 1000)) == 0
    yield library.rd_kafka_mock_cluster_bootstraps(pointer(library.rd_kafka_handle_mock_cluster(producer))).decode()
    library.rd_kafka_destroy(producer)


@pytest.fixture
def came(address: str) -> list[Any]:
    """The records as the client returns them."""
    reader = confluent_kafka.Consumer({"bootstrap.servers": address, "group.id": "g"})
    try:
        reader.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        messages = reader.consume(len(WRITTEN), PATIENCE)
    finally:
        reader.close()
    assert [message.error() for message in messages] == [None] * len(WRITTEN)
    return messages


def test_the_records_of_these_tests_are_what_the_client_returns(came: list[Any]) -> None:
    for real, ours in zip(came, WRITTEN, strict=True):
        assert (len(real), real.key(), real.value()) == (len(ours), ours.key(), ours.value())
        assert (real.timestamp(), real.offset()) == (ours.timestamp(), WRITTEN.index(ours))
        if ours.readable_headers is not None:
            assert real.headers() == ours.headers()
            continue
        for message in (real, ours):
            with pytest.raises(SystemError, match="returned a result with an exception set"):
                message.headers()
            # To look at what it returns now would end the process.
            message.set_headers(WRITTEN)
            assert message.headers() is WRITTEN


def test_headers_that_are_not_text_and_times_that_are_none_are_null(came: list[Any]) -> None:
    at, places = np.arange(len(came)), np.array([0, 0, *range(len(came))])
    for _ in range(100):
        # Python calls such a method directly by then, and no longer looks whether the client has left an error behind.
        headers_of(came[2])
    assert [headers_of(came[place]) for place in (0, 0)] == [None, None]
    for _ in range(2):
        kept = consumer.originals(at, came, places)
        assert kept["record"].to_pylist() == [WRITTEN[place].written_value for place in places]
        origins = kept["origin"]
        assert origins.field("key").to_pylist() == [WRITTEN[place].written_key for place in places]
        assert origins.field("time").cast(pa.int64()).to_pylist() == [
            1_732_600_000_000_000, 1_732_600_000_000_000, 1_732_600_000_000_000, None, 1000, None, None, 2**62 // 1000 * 1000
        ]  # fmt: skip
        headers = origins.field("headers").to_pylist()
        assert headers[:4] == [None] * 4
        assert [[tuple(one.values()) for one in some] for some in headers[4:]] == [
            [("", b""), ("nul", None), ("é", b"\xff")],
            [],
            [],
            [],
        ]


@pytest.mark.parametrize(
    ("millis", "text"), [(-1, "none"), (1_700_000_000_000, "2023-11-14T22:13:20Z"), (2**62, f"{2**62 * 1000}")]
)
def test_the_oldest_record_is_named_with_any_time(millis: int, text: str) -> None:
    assert time_at(Log([Record(None, b"v", [], millis)]), "t", 0, 0) == text
    assert time_at(Log([]), "t", 0, 0) is None


def test_the_size_of_records_has_keys_headers_and_tombstones() -> None:
    def size(key: bytes | None, value: bytes | None, headers: list[Any], count: int = 1) -> int:
        return consumer.size_of([Record(key, value, headers, 0) for _ in range(count)])

    least = size(None, None, [])
    assert least > 0
    assert size(None, None, [], 1000) == 1000 * least
    assert size(b"key", b"value", []) == least + 8
    assert size(b"k", None, [(b"name", b"held"), (b"n", None)], 10) == 10 * (least + 10)
    assert size(b"k", b"v", [(b"\xff", b"v")]) == least + 2
