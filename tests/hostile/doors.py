"""The doors by which somebody else's texts come in: what may be given to each, and what must hold of what it makes of that."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import quote_from_bytes

import numpy as np
import pyarrow as pa
from fastavro import schemaless_writer
from hypothesis import strategies as st

import monoids
from monoids import MonoidError
from monoids.nested import codec_of, kept_type
from monoids.scalars import Scalar
from monoids.types import parse_type
from persistent_state import (
    CsvOptions,
    FileSource,
    InvalidInputError,
    KafkaSource,
    Message,
    PersistentTask,
    SqlSink,
    open_store,
    run_local,
)
from persistent_state.batch.row_messages import UnreadableError, row_messages
from persistent_state.batch.rows import microseconds
from persistent_state.edges.in_order.as_stored import as_stored
from persistent_state.engine.data_source.source_options import read_options
from persistent_state.errors import DamagedError, TaskFailedError
from persistent_state.event_time import durations
from persistent_state.formatting import full_clock, plain, read_clock, show_clock, to_json
from persistent_state.kafka import consumer, read_back
from persistent_state.kafka.client import Moves
from persistent_state.kafka.consumer import OffsetRange
from persistent_state.kafka.decoders import Avro, Json, Raw
from persistent_state.kafka.ledger import NOTHING_READ
from persistent_state.kafka.transactions import ClockWriter
from persistent_state.metrics import server as metrics_server
from persistent_state.partials import keys, type_names
from persistent_state.redact import shown, text_without_secrets
from persistent_state.serve import app, samples
from persistent_state.sources import formats
from persistent_state.sources.schemas import arrow_schema
from persistent_state.state import NonWindowState
from persistent_state.store.asked import key_column, key_value
from persistent_state.store.files import open_files
from tests.hostile import whole_task
from tests.hostile.records import CLOCK, MARK, RECORDS, Log, Record
from tests.hostile.texts import BYTES, DECIMALS, JSON_TEXTS, NUMBERS, NUMBERS_OF_JSON, TEXTS, TIMES, VALUES
from tests.serve.worlds import STORE
from tests.waiting import PATIENCE

CENTS = pa.decimal128(38, 2)

KEY_TYPES = [
    CENTS, pa.decimal128(5, 0), pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.bool_(), pa.date32(),
    pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("s", "Europe/Oslo"), pa.string(), pa.binary(),
]  # fmt: skip

NESTED = pa.struct([("d", CENTS), ("l", pa.list_(pa.struct([("d", pa.decimal128(10, 3)), ("s", pa.string())])))])

COLUMNS = pa.schema([("d", CENTS), ("w", pa.decimal256(76, 70)), ("l", pa.int64()), ("f", pa.float64()), ("b", pa.bool_()),
                     ("day", pa.date32()), ("ts", pa.timestamp("us", "UTC")), ("s", pa.string())])  # fmt: skip


def refused(
    read: Callable[..., Any], *given: Any, by: type[Exception] | tuple[type[Exception], ...] = InvalidInputError
) -> Any:
    """What is read, or None if that is refused as it should be."""
    with suppress(by):
        return read(*given)
    return None


def follow(rows: pa.RecordBatch) -> None:
    """Do with rows what the next steps of a micro-batch, of look-ups and of outputs do."""
    for field, column in zip(rows.schema, rows.columns, strict=True):
        column.validate(full=True)
        for value in column:
            to_json(plain(value))
        with suppress(InvalidInputError):
            keys.hash_keys([keys.normalise(column)], len(column))
        with suppress(MonoidError):
            codec_of(field.type).cast(column)
        if pa.types.is_timestamp(field.type) or pa.types.is_int64(field.type):
            microseconds(column, None)
    for message in row_messages(dict(zip(rows.schema.names, rows.columns, strict=True)), [0] * rows.num_rows, ""):
        # It makes the row a bad one for a task.
        with suppress(UnreadableError):
            dict(message)
        repr(message)


def check(piece: Any, count: int) -> None:
    """Each record that was passed is a row, or aside with its reason."""
    assert piece.rows.num_rows + len(piece.bad) == count
    assert all(record.reason for record in piece.bad)
    assert [record.position for record in piece.bad] == sorted({record.position for record in piece.bad})
    follow(piece.rows)


def records_of(content: bytes) -> list[int]:
    """The numbers of the lines that hold a record, as plain Python counts them."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [number for number, line in enumerate(lines, 1) if line.removesuffix(b"\r")]


def check_all(pieces: Sequence[Any], count: int) -> None:
    """Each record of a text is a row, or aside with its reason, unless the rest of the text can't be read and is said to be."""
    for piece in pieces:
        check(piece, piece.count)
    reasons = [record.reason for piece in pieces[-1:] for record in piece.bad]
    if not any(reason.startswith("unreadable file") for reason in reasons):
        assert sum(piece.count for piece in pieces) == count


def exact(text: str, scale: int) -> bool:
    """Whether a text is a decimal with at most so many digits after the point."""
    with suppress(ArithmeticError):
        return bool(Decimal(text).is_finite()) and max(0, -int(Decimal(text).normalize().as_tuple().exponent)) <= scale
    return False


def csv(lines: Sequence[Sequence[str]]) -> None:
    header = ",".join(COLUMNS.names)
    content = "\n".join([header, *(",".join(line) for line in lines), ""]).encode("utf-8", "surrogatepass")
    pieces = list(formats.read_pieces(io.BytesIO(content), formats.CSV, None, COLUMNS))  # type: ignore[arg-type]
    check_all(pieces, len(records_of(content)) - 1)
    for piece in pieces:
        for place in range(piece.count):
            piece.original(place)
    texts = [text for line in lines for text in line if not set(text) & set('",\r\n') and text]
    for text in texts:
        (piece,) = formats.read_pieces(
            io.BytesIO(f"d\n{text}\n".encode("utf-8", "surrogatepass")), formats.CSV, None, COLUMNS
        )  # type: ignore[arg-type]
        if piece.rows.num_rows and (value := piece.rows["d"][0].as_py()) is not None:
            assert value == Decimal(text), f"{text[:100]!r} counts as {value}"


def csv_bytes(content: bytes, codec: formats.Codec | None, given: dict[str, Any]) -> None:
    options = refused(lambda: CsvOptions(**given))
    if options is None:
        return
    pieces = list(formats.read_pieces(io.BytesIO(content), formats.CSV, codec, COLUMNS, options))  # type: ignore[arg-type]
    again = list(formats.read_pieces(io.BytesIO(content), formats.CSV, codec, COLUMNS, options))  # type: ignore[arg-type]
    assert [(piece.rows.to_pylist(), piece.bad) for piece in pieces] == [
        (piece.rows.to_pylist(), piece.bad) for piece in again
    ]
    if codec is None and "encoding" not in given:
        # As on old Macs, if the first line ends so.
        end = re.search(rb"\r\n|\n|\r(?=[^\n])", content)
        if end is not None and end[0] == b"\r":
            content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        has_header = options.header != "none"
        count = len(records_of(content.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n") if has_header else content))
        is_bad = any(record.reason.startswith("its first line") for piece in pieces[:1] for record in piece.bad)
        check_all(pieces, count - (has_header and not is_bad and count > 0))
    for piece in pieces:
        check(piece, piece.count)
        for place in range(piece.count):
            original = piece.original(place)
            assert original.value is None or original.value.encode()


JSON_COLUMNS = pa.schema([*COLUMNS, ("a", NESTED)])


def json_values(values: Sequence[str]) -> None:
    written = [value.encode("utf-8", "surrogatepass") for value in values]
    decoded = Json(JSON_COLUMNS).decode(written)
    check(decoded, len(written))
    content = b"".join(value.replace(b"\n", b" ") + b"\n" for value in written)
    pieces = list(formats.read_pieces(io.BytesIO(content), formats.JSON, None, JSON_COLUMNS))  # type: ignore[arg-type]
    check_all(pieces, len(records_of(content)))
    for piece in pieces:
        for place in range(piece.count):
            original = piece.original(place)
            assert original.value is None or original.value.encode()
    bad = {record.position for record in decoded.bad}
    good = [value for place, value in enumerate(values) if place not in bad]
    for text, row in zip(good, decoded.rows["d"].to_pylist(), strict=True):
        said = None
        with suppress(ValueError, RecursionError):
            said = json.loads(text, parse_float=str, parse_int=str).get("d")
        if isinstance(said, str):
            assert row == Decimal(said), f"{said[:100]!r} counts as {row}"


AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 5}},
        {"name": "n", "type": ["null", {"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 18}]},
        {"name": "l", "type": "long"},
        {"name": "i", "type": "int"},
        {"name": "f", "type": ["null", "double"]},
        {"name": "s", "type": "string"},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "list", "type": {"type": "array", "items": "bytes"}},
    ],
}  # fmt: skip


@cache
def _good_avro() -> bytes:
    plain_types = json.loads(json.dumps(AVRO).replace('"logicalType"', '"was"'))
    record = {"d": b"\x05", "n": b"\x00" * 8, "l": 1, "i": 2, "f": 0.5, "s": "a", "e": "A", "day": 3, "at": 4, "ts": 5, "ms": 6,
              "local": 7, "list": [b"x"]}  # fmt: skip
    buffer = io.BytesIO()
    schemaless_writer(buffer, plain_types, record)
    return buffer.getvalue()


def mutated(changes: Sequence[tuple[int, bytes]]) -> bytes:
    data = _good_avro()
    for at, piece in changes:
        place = at % (len(data) + 1)
        data = data[:place] + piece + data[place + len(piece) // 2 :]
    return data


def avro(values: Sequence[Sequence[tuple[int, bytes]] | bytes]) -> None:
    written = [value if isinstance(value, bytes) else mutated(value) for value in values]
    check(Avro(AVRO).decode(written), len(written))


def raw(values: Sequence[bytes]) -> None:
    for decoder in (Raw("v", pa.string()), Raw("v")):
        check(decoder.decode(values), len(values))


def kafka_records(given: Sequence[Record]) -> None:
    """Read records as a source does, as a rewind of a sink does, and as the bookkeeping of a sink."""
    for offset, record in enumerate(given):
        record.at = offset
    part = OffsetRange("t-0", "t", 0, 0, len(given), 0, None)
    source = KafkaSource("t", "nowhere:9", value=Json(COLUMNS), key=Raw("k", pa.string()))
    with mock.patch.object(consumer, "records", return_value=iter([(part, list(given))])):
        (chunk,) = source.read([part])
    check(SimpleNamespace(rows=chunk.rows, bad=chunk.bad), len(given))
    times = [record.millis * 1000 if 0 <= record.millis <= 2**62 // 1000 else None for record in given]
    counted = dict(
        zip(chunk.positions.tolist(), chunk.rows["kafka_timestamp"].cast(pa.int64()).to_pylist(), strict=True)
    )
    assert counted == {offset: times[offset] for offset in counted}
    assert chunk.originals is not None
    # A record of which several rows are late or bad is looked at more than once.
    for _ in range(2):
        kept = chunk.originals(np.array([0, *range(len(given))], np.int64))
        for record, value, origin in zip([given[0], *given], kept["record"], kept["origin"], strict=True):
            to_json(plain(origin))
            samples._text({"record": value, "origin": origin, "row": origin})
            headers = record.readable_headers
            assert value.as_py() == record.written_value
            assert origin["key"].as_py() == record.written_key
            assert origin["time"].value == times[record.at]
            assert origin["headers"].as_py() == (headers and [{"name": name, "value": held} for name, held in headers])
    _go_back(given)


def _go_back(given: Sequence[Record]) -> None:
    own = Record(b"own", b"1", [(b"task", MARK.encode()), (b"clock", str(CLOCK + 1).encode())], 0, len(given))
    log, moves = Log([*given, own]), Moves()
    above = read_back.keys_above(lambda _: log, "sink", "t", {0: len(log.records)}, MARK, CLOCK, 1.0)
    assert b"own" in above.keys
    writer = ClockWriter("app", "Totals", "t", "t.clocks", "nowhere:9", {}, 1)
    known = refused(writer._read_below, log, NOTHING_READ, len(log.records), 1.0, moves, by=DamagedError)
    assert known is None or known.offset == len(log.records)


def files(contents: Sequence[tuple[bytes, str, str]]) -> None:
    folder = os.fsencode(tempfile.mkdtemp())
    lines: dict[str, list[int]] = {}
    try:
        for name, ending, content in contents:
            name = bytes(byte for byte in name if byte not in b"/\0")[:200]
            if name.strip(b". "):
                with open(os.path.join(folder, name + ending.encode()), "wb") as file:
                    file.write(content.encode("utf-8", "surrogatepass"))
                # The first line of CSV names the columns.
                numbers = records_of(content.encode("utf-8", "surrogatepass"))
                shown_name = os.fsdecode(name + ending.encode()).encode(errors="backslashreplace").decode()
                lines[shown_name] = numbers[1:] if ending == ".csv" else numbers
        _read_folder(os.fsdecode(folder), lines)
    finally:
        shutil.rmtree(folder)


def _read_folder(folder: str, lines: dict[str, list[int]]) -> None:
    """Read a folder as a source does, with all lines of its CSV and JSON files; `lines` has those by the name of the file."""
    read: dict[str, list[int]] = {}
    source = FileSource(folder, timestamp="ts", schema=COLUMNS)
    source.open([], {"": 0})
    reach = source.reach({}, True)
    for line in reach.journal:
        line.encode()
        repr(line)
    for split in source.splits({}, reach.ends, 2):
        for chunk in source.read(split):
            follow(chunk.rows)
            assert chunk.originals is not None
            at = [*chunk.positions.tolist(), *(record.position for record in chunk.bad)]
            origins = chunk.originals(np.array(at, np.int64))["origin"].to_pylist()
            to_json([str(origin) for origin in origins])
            for origin in origins:
                read.setdefault(os.path.basename(origin["file"]), []).append(origin["line"])
    for name, numbers in lines.items():
        if name.endswith((".csv", ".json")) and not name.startswith((".", "_")):
            assert sorted(read.get(name, [])) == numbers, name
    again = FileSource(folder, timestamp="ts", schema=COLUMNS)
    again.open(list(reach.journal), reach.ends)
    assert again.reach(reach.ends, True).ends == reach.ends


def looked_up(type: pa.DataType, given: Any) -> None:
    """Ask for a key as a look-up does: by text or JSON, and then as a user of `OpenState` does."""
    type = keys.normal_type(type)
    layout = SimpleNamespace(key_types=[type])
    state: Any = SimpleNamespace(key_columns=["k"], layout=layout, task="T")
    value = refused(key_value, "T", "k", given, type)
    if refused(key_column, state, 0, [value]) is not None:
        to_json(plain(pa.scalar(value, type)))
    refused(key_column, state, 0, [given])


@cache
def _served(host: str, token: str | None) -> Any:
    return app.application(open_store(str(STORE)), host, token, time.monotonic, lambda: 0)


def asked(method: str, path: str, query: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Ask as a client over HTTP may: nobody gets past the token, and whoever may ask is answered in words."""
    statuses = [_ask(_served("0.0.0.0", "a-long-secret"), method, path, query, headers)]
    assert statuses[0] in (401, 405, 413) or path in ("/health", "/login"), statuses
    statuses.append(_ask(_served("127.0.0.1", None), method, path, query, headers))
    statuses.append(_ask(_served("127.0.0.1", None), "GET", path, query, [(b"host", b"localhost")]))
    assert all(status < 500 for status in statuses), statuses


def _ask(served: Any, method: str, path: str, query: bytes, headers: Sequence[tuple[bytes, bytes]]) -> int:
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path, "root_path": "",
             "scheme": "http", "query_string": query, "headers": [*headers], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)}  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": query, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        await served(scope, receive, send)

    asyncio.run(run())
    assert b"a-long-secret" not in b"".join(message.get("body", b"") for message in sent)
    return int(sent[0]["status"])


KEYS = st.sampled_from([b"application=app", b"task=Totals", b"task=Notes", b"shop=", b"item=", b"key.item=", b"key=", b"clock=", b"null=",
                        b"token=", b"x"])  # fmt: skip
QUERIES = st.lists(st.tuples(KEYS, BYTES), max_size=6).map(
    lambda pairs: b"&".join(
        [b"application=app", b"task=Totals", *(name + quote_from_bytes(value).encode() for name, value in pairs)]
    )
) | st.binary(max_size=60)  # fmt: skip
PATHS = st.sampled_from(["/", "/lookup", "/metrics", "/health", "/login", "//", "/health/", "*", ""]) | TEXTS
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "OPTIONS", "", "get"])
NAMES = st.sampled_from(
    [
        b"host",
        b"authorization",
        b"cookie",
        b"content-length",
        b"x-forwarded-host",
        b"x-forwarded-for",
        b"range",
        b"accept",
    ]
)
HEADERS = st.lists(
    st.tuples(
        NAMES,
        BYTES
        | st.sampled_from([b"localhost", b"x/health?", b"Bearer ", b"Bearer a", b"persistent-state-=", b"a=b; c"]),
    ),
    max_size=5,
)


@cache
def _ports() -> tuple[int, int]:
    """The ports of a real server of a store and of one of metrics, which last as long as the process."""
    from persistent_state.serve import connections

    listening, is_up = socket.create_server(("127.0.0.1", 0)), threading.Event()
    served = connections.server(_served("0.0.0.0", "a-long-secret"), is_up.set)
    threading.Thread(target=served.run, args=([listening],), daemon=True).start()
    assert is_up.wait(PATIENCE)
    metrics = metrics_server.Server("app", "127.0.0.1", 0, [], str)
    metrics.serve()
    return listening.getsockname()[1], int(metrics.url.rpartition(":")[2])


def sent(pieces: Sequence[bytes]) -> None:
    """Send bytes over real connections; who asks afterwards is answered."""
    for port in _ports():
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client, suppress(OSError):
            for piece in pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
            said = b""
            while piece := client.recv(1 << 16):
                said += piece
            assert b'"total":' not in said
            assert b"Traceback" not in said
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=PATIENCE) as answer:
            assert answer.status == 200


REQUESTS = st.lists(
    st.sampled_from([b"GET / HTTP/1.1\r\n", b"GET /lookup?application=app&task=Totals&shop=Bergen&item=1 HTTP/1.1\r\n", b"Host: x/health?\r\n", b"Host: x\r\n",
                     b"Content-Length: ", b"Transfer-Encoding: chunked\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"\r\n",
                     b"\r\n\r\n", b"POST /login HTTP/1.1\r\n", b"token=", b"Expect: 100-continue\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
    | BYTES,
    max_size=8,
)  # fmt: skip


def clocks(text: str) -> None:
    clock = refused(read_clock, text)
    if clock is not None:
        assert isinstance(clock, int)
        full_clock(clock), show_clock(clock)
        assert refused(read_clock, str(clock)) in (clock, None)
    for read in (durations.duration, durations.positive):
        length = refused(read, "allowed_delay", text)
        assert length is None or 0 <= length < 2**63


OPTION_NAMES = st.sampled_from(["path", "application", "task", "clock", "startClock", "endClock", "key", "pushFilters", "presented", "list",
                                "changes", "late", "readChangeFeed", "storage.key", "paths"])  # fmt: skip


def options(text: str, given: dict[str, str]) -> None:
    schema = refused(arrow_schema, text)
    assert schema is None or isinstance(schema, pa.Schema)
    refused(parse_type, text, by=MonoidError)
    refused(type_names.type_named, text, by=ValueError)
    for precision, scale in ((text, 2), (5, text), (len(text), -len(text)), (39, 0), (10, 11)):
        decimal = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
        refused(
            lambda written: Avro(written).schema,
            {"type": "record", "name": "R", "fields": [{"name": "d", "type": decimal}]},
        )
    refused(lambda: Avro(text).schema)
    refused(metrics_server.address, text)
    refused(read_options, given)
    refused(open_files, text)
    shown(text), text_without_secrets(text, {"password": text, "x": [given]})
    refused(lambda: repr(FileSource(text, timestamp="ts")))
    for url in (text, f"postgresql://ann:{text}@host/x", f"sqlite:///{text}"):
        sink = refused(lambda url=url: SqlSink(url, "t"), by=InvalidInputError)
        if sink is not None:
            repr(sink), sink.name, sink.records("T")


def values(type: pa.DataType, value: Any) -> None:
    """Give a value as a user's code may: it does not fit, or it is kept as what it is."""
    for monoid in (monoids.Last(type), monoids.List(type)):
        column = refused(monoid.to_arrow, [value], by=MonoidError)
        if column is not None:
            column.validate(full=True)
            _same(monoid.from_arrow(column)[0], value)
    kept = refused(as_stored(type), value, by=MonoidError)
    _same(kept, value)
    with suppress(TaskFailedError, InvalidInputError):
        run = run_local(Keeps(type), [Message(1, {"v": value})], schema=pa.schema([("v", type)]))
        assert run.late or value is None or run.state


def _same(kept: Any, given: Any) -> None:
    if isinstance(kept, Decimal) and isinstance(given, (Decimal, int)):
        assert kept == given, f"{given!r} counts as {kept}"


class Keeps(PersistentTask):
    def __init__(self, type: pa.DataType) -> None:
        self.type = type

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Last(self.type))

    def process_message(self, state: Any, message: Message) -> None:
        state.update(message.timestamp, message["v"])


VALUE_TYPES = [
    *dict.fromkeys(Scalar(type).type for type in KEY_TYPES),
    *map(kept_type, (NESTED, pa.list_(CENTS), pa.map_(pa.string(), CENTS))),
]

ALONE = st.builds(
    lambda place, text: [text if i == place else "" for i in range(8)], st.integers(0, 7), TEXTS
) | TIMES.map(lambda time: ["", "", "", "", "", time, "", ""])
"""A line with one text, which is a good row if the text fits its column."""

LINES = st.lists(ALONE | st.lists(TEXTS | TEXTS.map(lambda text: f'"{text}"'), min_size=8, max_size=8), max_size=4)
TIMES_OF_JSON = st.builds(lambda name, time: json.dumps({name: time}), st.sampled_from(["day", "ts"]), TIMES)
CONTENTS = st.lists(LINES, max_size=1).map(
    lambda some: "\n".join([",".join(COLUMNS.names), *(",".join(line) for lines in some for line in lines), ""])
)

CSV_OPTIONS = st.fixed_dictionaries({}, optional={
    "delimiter": st.sampled_from([",", ";", "\t", "|", " "]) | TEXTS, "quote": st.sampled_from(["'", None, '"']) | TEXTS,
    "escape": st.sampled_from(["\\", None]) | TEXTS, "decimal": st.sampled_from([",", "."]), "null": st.lists(TEXTS, max_size=2),
    "encoding": st.sampled_from(["utf-16", "cp1252", "utf-7", "utf-32-le", "shift_jis", "punycode", "idna", "ascii"]) | TEXTS,
    "header": st.sampled_from(["name", "position", "none"]),
})  # fmt: skip
CSV_BYTES = st.lists(
    BYTES | st.sampled_from([b"d,w,l,f,b,day,ts,s\n", b"\n", b"\r", b",", b";", b'"', b"\\", b"1,5"])
).map(b"".join)
CSV_BYTES |= CSV_BYTES.map(lambda lines: b"d,w,l,f,b,day,ts,s\n" + lines)
"""Any bytes, and as many that begin with a header."""

DOORS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], None]]] = {
    "csv": (LINES, csv),
    "csv options": (
        st.tuples(CSV_BYTES, st.sampled_from([None, None, None, "gzip", "bz2", "zstd"]), CSV_OPTIONS),
        lambda given: csv_bytes(*given),
    ),
    "json decimals": (st.lists(NUMBERS_OF_JSON, min_size=1, max_size=4), json_values),
    "json": (
        st.lists(NUMBERS_OF_JSON | JSON_TEXTS | TEXTS, max_size=4) | st.lists(TIMES_OF_JSON, max_size=4),
        json_values,
    ),
    "avro": (
        st.lists(st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=12)), max_size=3) | BYTES, max_size=4),
        avro,
    ),
    "raw bytes": (st.lists(BYTES, max_size=4), raw),
    "kafka records": (RECORDS, kafka_records),
    "files": (
        st.lists(st.tuples(BYTES, st.sampled_from([".csv", ".json", ".csv.gz", ".parquet", ""]), CONTENTS), max_size=3),
        files,
    ),
    "whole task": (whole_task.GIVEN, lambda given: whole_task.play(*given)),
    "keys": (
        st.tuples(st.sampled_from(KEY_TYPES), TEXTS | VALUES) | st.tuples(st.just(CENTS), NUMBERS | DECIMALS),
        lambda given: looked_up(*given),
    ),
    "requests": (st.tuples(METHODS, PATHS, QUERIES, HEADERS), lambda given: asked(*given)),
    "connections": (REQUESTS, sent),
    "clocks": (TEXTS, clocks),
    "options": (st.tuples(TEXTS, st.dictionaries(OPTION_NAMES, TEXTS, max_size=4)), lambda given: options(*given)),
    "values": (
        st.tuples(st.sampled_from(VALUE_TYPES), VALUES) | st.tuples(st.just(CENTS), DECIMALS),
        lambda given: values(*given),
    ),
}
"""By its name: what may be given to a door, and what is done with it. What is done raises what no user should meet."""
