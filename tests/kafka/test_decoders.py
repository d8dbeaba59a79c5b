"""What decoders make of bytes: the rows that a plain reader of each record gives, and the others apart with reasons."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state import InvalidInputError, KafkaSource
from persistent_state.kafka import Avro, Decoded, Json, Raw
from persistent_state.kafka.consumer import OffsetRange
from persistent_state.kafka.decoders import Decoder, side_by_side

COLUMNS = pa.schema([("n", pa.int64()), ("s", pa.string())])
OBJECTS = st.fixed_dictionaries(
    {},
    optional={"n": st.none() | st.integers(-(2**63), 2**63 - 1), "s": st.none() | st.text(), "other": st.booleans()},
)
SCHEMA = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "kind", "type": {"type": "enum", "name": "kind", "symbols": ["BUY", "SELL"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "side", "type": ["kind", "null"]},
        {
            "name": "place",
            "type": {
                "type": "record",
                "name": "place",
                "fields": [{"name": "x", "type": "double"}, {"name": "c", "type": {"type": "fixed", "name": "f", "size": 2}}],
            },
        },
    ],
}  # fmt: skip
ORDER = {
    "id": 7,
    "name": None,
    "price": Decimal("12.50"),
    "at": datetime(2024, 5, 1, 12, 0, 0, 123, tzinfo=timezone.utc),
    "day": date(2024, 5, 1),
    "kind": "BUY",
    "tags": ["a", "b"],
    "side": "SELL",
    "place": {"x": 0.5, "c": b"\x00\x01"},
}


def written(row: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(SCHEMA), row)
    return data.getvalue()


def come_to(decoder: Decoder, values: list[bytes | None]) -> tuple[list[dict[str, Any]], dict[int, str]]:
    decoded = decoder.decode(values)
    assert decoded.rows.schema == decoder.schema
    assert len(values) == decoded.rows.num_rows + len(decoded.bad)
    return decoded.rows.to_pylist(), {record.position: record.reason for record in decoded.bad}


@given(st.lists(OBJECTS), st.randoms())
def test_json_is_what_python_reads_however_it_is_spaced(objects: list[dict[str, Any]], chance: Any) -> None:
    values: list[bytes | None] = [
        json.dumps(one, indent=chance.choice([None, 1]), ensure_ascii=chance.random() < 0.5).encode(errors="replace")
        for one in objects
    ]
    rows, bad = come_to(Json(COLUMNS), values)
    read = [json.loads(value) for value in values if value is not None]
    assert (rows, bad) == ([{"n": one.get("n"), "s": one.get("s")} for one in read], {})


@given(
    st.lists(st.binary(max_size=12) | st.sampled_from([None, b'{"n": 1}', b' {"n": 2}\n', b'{"n": 3}{"n": 4}', b"{}"]))
)
def test_of_any_bytes_json_gives_each_object_or_says_that_it_is_none(values: list[bytes | None]) -> None:
    rows, bad = come_to(Json(pa.schema([("n", pa.int64())])), values)
    wanted = {b'{"n": 1}': 1, b' {"n": 2}\n': 2, b"{}": None, None: None}
    good = [value for i, value in enumerate(values) if i not in bad]
    assert [row["n"] for row in rows] == [wanted.get(value) for value in good]
    assert not any(value in wanted for i, value in enumerate(values) if i in bad)
    assert b'{"n": 3}{"n": 4}' not in good


def test_json_may_have_a_mark_before_it_as_a_file_may_and_the_number_of_a_schema() -> None:
    mark = b"\xef\xbb\xbf"
    rows, bad = come_to(Json(COLUMNS), [mark + b'{"n": 1}', b'{"s": "' + mark + b'"}', mark, mark + mark + b"{}"])
    assert (rows, sorted(bad)) == ([{"n": 1, "s": None}, {"n": None, "s": "\ufeff"}], [2, 3])
    rows, bad = come_to(Json(COLUMNS, skip=5), [b"\x00\x00\x00\x00\x07" + b'{"n": 1}', None, b'{"n": 1}', b""])
    assert (rows, sorted(bad)) == ([{"n": 1, "s": None}, {"n": None, "s": None}], [2, 3])


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"n": "1"}', "column n is not int64"),
        (b'{"n": 9223372036854775808}', "column n is not int64"),
        (b'{"s": 1}', "column s is not string"),
        (b'{"n": {}, "s": "a"}', "column n is not int64"),
        (b'{"n": 5.0}', "column n is not int64"),
        (b'{"n": 1e3}', "column n is not int64"),
        (b'{"n": 1, "n": 1}', "column n stands twice in it"),
        (b'{"n": 1}{"n": 2}', "several JSON objects in one line"),
        (b'{"n": 1', "not a JSON object"),
        (b'{"n": 01}', "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b'{"N": 1, "s": "a"}', "column n is not in it, but 'N'"),
        (b'{"s": "\xff"}', "column s is not UTF-8"),
        (b'{"s": "\\ud83d"}', "column s is not UTF-8"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_why_a_record_is_bad_is_said_in_words_of_our_own(value: bytes, reason: str) -> None:
    """Reasons are counted, and the library's words change."""
    assert come_to(Json(COLUMNS), [b"{}", value, b"{}"])[1] == {1: reason}


def test_avro_is_what_was_written() -> None:
    decoder = Avro(SCHEMA)
    assert decoder.schema.field("price").type == pa.decimal128(9, 2)
    assert decoder.schema.field("side").type == pa.string()
    rows, bad = come_to(decoder, [written(ORDER), None, written({**ORDER, "name": "x"})])
    assert (rows, bad) == ([ORDER, dict.fromkeys(ORDER), {**ORDER, "name": "x"}], {})
    # Behind the number of a schema, as text, and pickled.
    rows, bad = come_to(Avro(json.dumps(SCHEMA), skip=5), [b"\x00\x00\x00\x00\x07" + written(ORDER)])
    assert (rows, bad) == ([ORDER], {})


@given(st.lists(st.binary(max_size=40)))
def test_of_any_bytes_avro_gives_a_row_or_a_reason(values: list[bytes]) -> None:
    rows, bad = come_to(Avro(SCHEMA), [*values, written(ORDER)])
    assert rows[-1] == ORDER
    assert all(reason.startswith(("no Avro record", "column ")) for reason in bad.values())


def test_a_value_of_avro_that_does_not_fit_is_named_by_its_column() -> None:
    fields = [
        {"name": name, "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}} for name in "ab"
    ]
    decoder = Avro({"type": "record", "name": "r", "fields": fields})
    fits, too_large = b"\x02\x01", b"\x0a" + b"\x7f" * 5
    rows, bad = come_to(decoder, [fits + too_large, too_large + fits, fits + fits])
    assert bad == {0: "column b is not decimal128(9, 2)", 1: "column a is not decimal128(9, 2)"}
    assert len(rows) == 1


def test_a_value_of_avro_that_can_not_be_read_is_named_by_its_column() -> None:
    data = written(ORDER)
    far = data[:5] + b"\xfe" + b"\xff" * 8 + b"\x01" + data[13:]
    values = [b"", data[:-1], data[:14], data[:16] + b"\x04" + data[17:], far, data + b"\x00", data]
    unread = [f"column {name} can't be read" for name in ("id", "place", "day", "kind", "at")]
    reasons = [f"no Avro record of its schema: {why}" for why in [*unread, "bytes follow its last column"]]
    # Behind the number of a schema too.
    for skip in (0, 5):
        rows, bad = come_to(Avro(SCHEMA, skip=skip), [b"\x00" * skip + value for value in values])
        assert (rows, bad) == ([ORDER], dict(enumerate(reasons)))
    in_union = Avro(json.dumps([SCHEMA]))
    assert come_to(in_union, [b"\x00" + data, b"\x00"]) == ([ORDER], {1: "no Avro record of its schema"})


def test_bytes_of_another_length_than_the_avro_schema_says_are_bad() -> None:
    data = written(ORDER)
    rows, bad = come_to(Avro(SCHEMA), [data[:-1], data + b"\x00", b"", data])
    assert (rows, sorted(bad)) == ([ORDER], [0, 1, 2])


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("{", "can't be read"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "no"}]}, "can't be read"),
        ("long", "can't be read|columns are fields"),
        ({"type": "long"}, "columns are fields"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": ["int", "string"]}]}, "no column of its own"),
    ],
)  # fmt: skip
def test_an_avro_schema_without_columns_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        _ = Avro(schema).schema


def test_raw_is_bytes_or_text() -> None:
    assert come_to(Raw(), [b"\xff", None, b""]) == ([{"value": b"\xff"}, {"value": None}, {"value": b""}], {})
    rows, bad = come_to(Raw("t", pa.string()), [b"\xff", None, "é".encode(), b""])
    assert (rows, bad) == ([{"t": None}, {"t": "é"}, {"t": ""}], {0: "column t is not UTF-8"})
    with pytest.raises(InvalidInputError, match="can't hold raw bytes as int64"):
        _ = Raw("n", pa.int64()).schema


@given(st.lists(st.tuples(st.sampled_from([b"\xff", b"a", None]), st.sampled_from([b'{"n": 1}', b"x", None]))))
def test_a_record_is_bad_if_its_key_or_its_value_is(records: list[tuple[bytes | None, bytes | None]]) -> None:
    keys, values = [key for key, _ in records], [value for _, value in records]
    decoded = [Raw("k", pa.string()).decode(keys), Json(pa.schema([("n", pa.int64())])).decode(values)]
    joined = side_by_side(decoded)
    wanted = {b"a": "a", None: None}, {b'{"n": 1}': 1, None: None}
    good = [i for i, (key, value) in enumerate(records) if key in wanted[0] and value in wanted[1]]
    assert joined.rows.to_pylist() == [{"k": wanted[0][keys[i]], "n": wanted[1][values[i]]} for i in good]
    assert sorted({*good, *(record.position for record in joined.bad)}) == list(range(len(records)))
    assert all(record.reason == "column k is not UTF-8" for record in joined.bad if keys[record.position] == b"\xff")


class Views:
    """A decoder of a user's that makes views."""

    schema = pa.schema([("k", pa.string_view()), ("l", pa.list_(pa.binary_view()))])

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        texts = [value and value.decode() for value in values]
        lists = pa.array([[value] for value in values], self.schema.field(1).type)
        return Decoded(pa.record_batch([pa.array(texts, pa.string_view()), lists], self.schema))


class Record:
    """A record as the client gives it, of which only a few methods are asked."""

    def __init__(self, offset: int, key: bytes, value: bytes) -> None:
        self.offset, self.key, self.value = (lambda: offset), (lambda: key), (lambda: value)


@pytest.mark.parametrize(
    "transform", [None, lambda rows: rows.append_column("v", rows.column("k").cast(pa.string_view()))]
)
def test_views_that_a_decoder_makes_become_plain(transform: Any) -> None:
    source = KafkaSource("t", "localhost:1", timestamp="n", key=Views(), value=Json(COLUMNS), transform=transform)
    records = [Record(7, b"a", b'{"n": 1}'), Record(8, b"b", b"x"), Record(9, b"c", b'{"n": 3}')]
    chunk = source._chunk(OffsetRange("t-0", "t", 0, 7, 10, 0, None), records)
    assert chunk.rows.schema == source.schema
    assert "view" not in str(source.schema)
    late = chunk.rows.take(pa.array([1]))
    assert late.select(["k", "l", "n"]).to_pylist() == [{"k": "c", "l": [b"c"], "n": 3}]
    assert [(record.position, record.reason) for record in chunk.bad] == [(8, "not a JSON object")]


def test_a_column_that_no_record_of_a_chunk_has_is_named_and_its_rows_count() -> None:
    source = KafkaSource("t", "localhost:1", timestamp="n", value=Json(COLUMNS))
    records = [Record(7, b"", b'{"n": 1, "x": {"s": "a"}}'), Record(8, b"", b'{"n": 2}')]
    chunk = source._chunk(OffsetRange("t-0", "t", 0, 7, 9, 0, None), records)
    # A chunk of a replay has other records. So no row may stand aside for what its chunk lacks.
    assert (chunk.lacks, chunk.unseen, chunk.rows.num_rows) == ((), ("s",), 2)
    assert chunk.notes == {
        "s": f"topic='t' partition=0 of {source!r}, from offset 7, has no column 's' in any of 2 good records, the first of "
        "which have 'n', 'x': it is null there."
    }


@pytest.mark.parametrize(
    ("transform", "unseen"),
    [
        (lambda rows: rows.rename_columns(["n", "key", *rows.schema.names[2:]]), ("key",)),
        (lambda rows: rows.set_column(1, "s", pa.array(["z"] * rows.num_rows, pa.string())), ()),
    ],
)
def test_what_a_transform_makes_of_a_column_that_no_record_has_is_unseen(
    transform: Any, unseen: tuple[str, ...]
) -> None:
    source = KafkaSource("t", "localhost:1", timestamp="n", value=Json(COLUMNS), transform=transform)
    offsets = OffsetRange("t-0", "t", 0, 7, 9, 0, None)
    chunk = source._chunk(offsets, [Record(7, b"", b'{"n": 1}'), Record(8, b"", b'{"n": 2}')])
    assert (chunk.unseen, [*chunk.notes]) == (unseen, ["s"])
    chunk = source._chunk(offsets, [Record(7, b"", b'{"n": 1}'), Record(8, b"", b'{"n": 2, "s": null}')])
    assert (chunk.unseen, chunk.notes) == ((), {})
