"""JSON lines as other programs write them are read, or each bad line says what is wrong. Kafka's decoder reads the same way."""

from __future__ import annotations

import io
import json
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from persistent_state.kafka.decoders import Json
from persistent_state.sources import formats

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def read(lines: list[bytes], schema: pa.Schema = SCHEMA) -> list[Any]:
    """The row of each line, or the reason why there is none; from a file and from Kafka."""
    content = b"\n".join(lines) + b"\n"
    (piece,) = formats.read_pieces(io.BytesIO(content), formats.JSON, None, schema)  # type: ignore[arg-type]
    assert piece.count == len(lines)
    found = [come(piece.rows, piece.bad), come((decoded := Json(schema).decode(lines)).rows, decoded.bad)]
    assert found[0] == found[1]
    return found[0]


def come(rows: pa.RecordBatch, bad: Any) -> list[Any]:
    reasons, good = {record.position: record.reason for record in bad}, iter(rows.to_pylist())
    return [reasons[i] if i in reasons else next(good) for i in range(rows.num_rows + len(reasons))]


@pytest.mark.parametrize("before", [b"", b" ", b"\t  "])
@pytest.mark.parametrize("behind", [b"", b" ", b"\t", b" \r", b"\r"])
def test_white_space_around_an_object_on_its_line_is_none_of_it(before: bytes, behind: bytes) -> None:
    lines = [before + b'{"k": "a", "v": 1}' + behind, b'{"v": 2}', b' {"v": "x"}\t', b" [1] ", b'  {"v": 3} {"v": 4} ']
    assert read(lines) == [
        {"k": "a", "v": 1}, {"k": None, "v": 2}, "column v is not int64", "not a JSON object",
        "several JSON objects in one line",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "unread",
    [b"1e999", b'"\\ud83d"', b'"\xff\xfe"', b'{"y": [1e999, "\xe4"]}', b"-1e-999999999", b'"\\udc00\\ud800"',
     b"[" * 50 + b"1e999" + b"]" * 50],
)  # fmt: skip
def test_a_member_that_is_not_read_makes_no_line_bad(unread: bytes) -> None:
    lines = [b'{"k": "\xc3\xa9\\n\\"", "x": %b, "v": 1}' % unread, b'{"v": 2}', b'{"x": %b, "v": "3"}' % unread]
    assert read(lines) == [{"k": 'é\n"', "v": 1}, {"k": None, "v": 2}, "column v is not int64"]
    inner = pa.schema([("s", pa.struct({"a": pa.list_(pa.struct({"b": pa.int64()}))})), ("d", pa.decimal128(9, 2))])
    line = b'{"s": {"x": %b, "a": [{"b": 1, "x": %b}, null, {}]}, "d": 1.50}' % (unread, unread)
    assert read([line], inner) == [{"s": {"a": [{"b": 1}, None, {"b": None}]}, "d": Decimal("1.50")}]


@pytest.mark.parametrize("unread", [b'"\xff"', b'"\\ud83d"', b"1e999"])
@pytest.mark.parametrize("number", [b"1e-999999999", b'"1e-999999999"', b"1\\u0065-99999999", b'"1\\u0065-99999999"'])
@pytest.mark.parametrize("count", [1, 2, 50])
def test_a_decimal_beside_a_member_that_is_not_read_is_looked_at_too(unread: bytes, number: bytes, count: int) -> None:
    schema = pa.schema([("d", pa.decimal128(38, 2))])
    lines = [b'{"x": %b, "d": 1}' % unread] * (count - 1) + [b'{"d": %b, "x": %b}' % (number, unread)]
    *good, last = read(lines, schema)
    assert good == [{"d": 1}] * (count - 1)
    assert last in ("column d is not decimal128(38, 2)", "not a JSON object", "not UTF-8")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"v": 5.0}', "column v is not int64"),
        (b'{"v": 1e3}', "column v is not int64"),
        (b'{"v": 9223372036854775808}', "column v is not int64"),
        (b'{"k": 1e999}', "column k is not string"),
        (b'{"k": "\\ud83d"}', "column k is not UTF-8"),
        (b'{"k": "\xff"}', "column k is not UTF-8"),
        (b'{"d": 100000000}', "column d is not decimal128(10, 2)"),
        (b'{"d": "100000000"}', "column d is not decimal128(10, 2)"),
        (b'{"f": 1e300}', "column f is not float"),
        (b'{"g": [{"x": -1e39}]}', "column g is not list<item: struct<x: float>>"),
        (b'{"w": 1e999}', "column w is not double"),
        (b'{"day": 20454}', "column day is not date32[day]"),
        (b'{"at": 5}', "column at is not time64[us]"),
        (b'{"s": {"day": 20454}}', "column s is not struct<day: date32[day], at: timestamp[us, tz=UTC]>"),
        (b'{"s": {"day": "soon"}}', "column s is not struct<day: date32[day], at: timestamp[us, tz=UTC]>"),
        (b'{"ts": 1767225600000}', "column ts is not timestamp[us, tz=UTC]"),
        (b'{"v": 1, "v": 2}', "column v stands twice in it"),
        (b'{"v": 1', "not a JSON object"),
        (b'{"v": 1}{"v": 2}', "several JSON objects in one line"),
        (b'{"v": 1},{"v": 2}', "several JSON objects in one line"),
        (b"\xff\xfe{\x00}\x00", "not UTF-8"),
        (b"{" + b"[" * 100_000, "not a JSON object"),
    ],
)
def test_a_reason_names_the_column(line: bytes, reason: str) -> None:
    schema = pa.schema(
        [("k", pa.string()), ("v", pa.int64()), ("d", pa.decimal128(10, 2)), ("f", pa.float32()), ("w", pa.float64()),
         ("g", pa.list_(pa.struct({"x": pa.float32()}))), ("day", pa.date32()), ("ts", UTC), ("at", pa.time64("us")),
         ("s", pa.struct({"day": pa.date32(), "at": UTC}))]
    )  # fmt: skip
    good = b'{"v": 1}'
    nothing = dict.fromkeys(schema.names)
    assert read([good, line, good], schema) == [{**nothing, "v": 1}, reason, {**nothing, "v": 1}]


@pytest.mark.parametrize(
    ("value", "type"),
    [
        ("[1,[2]]", pa.int64()),
        ("[1,[2]]", pa.list_(pa.int64())),
        ('{"x":1,"y":[{"z":1e5}]}', pa.int64()),
        ('{"x":{"y":-0.50},"a":"b"}', pa.struct({"a": pa.int64()})),
        ('[{"a":true,"b":[]}]', pa.list_(pa.struct({"a": pa.string()}))),
        ('{"é":"\\ud83d"}', pa.string()),
        ("9223372036854775808", pa.int64()),
        ('"soon"', pa.int64()),
    ],
)
def test_the_value_that_is_shown_is_the_one_of_the_file(value: str, type: pa.DataType) -> None:
    content = f'{{"x": 1, "c": {value}}}\n'.encode()
    (piece,) = formats.read_pieces(io.BytesIO(content), formats.JSON, None, pa.schema({"c": type}))  # type: ignore[arg-type]
    assert [(record.reason, piece.original(0).value) for record in piece.bad] == [(f"column c is not {type}", value)]


@pytest.mark.parametrize("depth", [100, 400, 900, 3_000, 100_000])
@pytest.mark.parametrize("name", [b"v", b"x", b"V"])
def test_arrays_within_each_other_make_one_bad_row_however_deep(depth: int, name: bytes) -> None:
    found = read([b'{"v": 1}', b'{"%b": %b%b}' % (name, b"[" * depth, b"]" * depth), b'{"v": 2}'])
    assert (found[0], found[2]) == ({"k": None, "v": 1}, {"k": None, "v": 2})


def test_times_within_structs_and_lists_are_texts_as_those_of_columns_are() -> None:
    schema = pa.schema([("s", pa.struct({"day": pa.date32(), "at": pa.list_(UTC)})), ("ts", pa.timestamp("ms", "UTC"))])
    line = b'{"s": {"day": "2026-01-01", "at": ["2026-01-01T00:00:00.1234567z", null]}, "ts": "2026-01-01 00:00:00,1239 UTC"}'
    moment = datetime(2026, 1, 1, 0, 0, 0, 123456, timezone.utc)
    assert read([line, b"{}"], schema) == [
        {"s": {"day": date(2026, 1, 1), "at": [moment, None]}, "ts": moment.replace(microsecond=123_000)},
        {"s": None, "ts": None},
    ]


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize(
    "beside",
    [
        b'{"f": "x"}', b'{"f": 1} {"f": 2}', b"{", b"[1]", b'{"x": "\xff", "f": []}', b'{"x": 1e999, "f": 1}', b'{"F": 1}',
        b'{"D": 1, "f": 2}',
    ],
)  # fmt: skip
def test_a_line_is_read_beside_bad_ones_as_it_is_alone(beside: bytes, count: int) -> None:
    schema = pa.schema([("f", pa.float64()), ("d", pa.decimal128(10, 2))])
    deep = b'{"f": 1.5, "x": %b%b}' % (b"[" * 2_000, b"]" * 2_000)
    lines = [
        b'{"f": Inf}', b'{"f": -Inf, "d": 1.50}', b'{"x": Inf, "f": 1}', b'{"x": Inf, "d": 1e-99999999}', deep, b'{"F": 2}',
        b'{"x": Inf, "F": 1}',
    ]  # fmt: skip
    alone = [read([line], schema)[0] for line in [*lines, beside]]
    assert alone[0] == {"f": float("inf"), "d": None}
    assert read([*lines, *[beside] * count, *lines] * 2, schema) == [*alone[:-1], *alone[-1:] * count, *alone[:-1]] * 2


MIXED = pa.schema([
    ("ts", UTC), ("k", pa.string()), ("v", pa.int64()), ("i", pa.int32()), ("day", pa.date32()), ("d", pa.decimal128(10, 2)),
    ("g", pa.struct({"c": pa.string(), "v": pa.int64()})), ("items", pa.list_(pa.struct({"sku": pa.string()}))),
])  # fmt: skip
GOOD = b'{"ts":"2026-01-01T00:00:30Z","k":"good","v":1}'
MEMBERS = [
    b'"v":1', b'"v":"x"', b'"V":1', b'"v ":1', b'"\\u0056":1', b'"v":null,"V":1', b'"K":"a"', b'"k":5', b'"k":"a","k":"b"',
    b'"k":"\\ud83d"', b'"k":"\\u0000"', b'"i":3000000000', b'"I":1', b'"day":"2026-01-01"', b'"day":5', b'"ts":"x"',
    b'"ts":null', b'"TS":"2026-01-01"', b'"d":1.505', b'"d":1e5', b'"D":1', b'"g":{"c":"x"}', b'"g":{"C":"x"}',
    b'"g":{"c":"x","V":1}',
    b'"g":{}', b'"g":"{}"', b'"g":null', b'"G":{}', b'"items":[]', b'"items":[{"sku":"a"},{"Sku":"b"}]',
    b'"items":[null,{"sku":1}]', b'"items":[{},{}]', b'"x":1e999', b'"x":Inf', b'"x":{"v":1,"v":2}',
]  # fmt: skip
LINES = [
    GOOD, b"{}", b"{bad", b"[]", b"1", b"null", b"  ", GOOD + GOOD, GOOD + b" " + GOOD, GOOD + b" x", GOOD[:-1], b"\xff",
    b" " + GOOD + b"\r", GOOD.replace(b"}", b',"x":"\xff"}'),
]  # fmt: skip


@cache
def beside_a_good_line(line: bytes) -> Any:
    good, found = read([GOOD, line], MIXED)
    assert good["k"] == "good"
    return found


@given(
    st.lists(
        st.sampled_from(LINES)
        | st.lists(st.sampled_from(MEMBERS), max_size=2).map(
            lambda members: b'{"k":"a",%b}' % b",".join(members or [b'"v":2'])
        ),
        min_size=2,
        max_size=20,
    )
)
@example([b'{"v":"x"}', b'{"V":1}', b"{}"])
@example([GOOD + GOOD, b'{"items":[{"Sku":"a"}]}', GOOD, b'{"ts":"x"}', b'{"g":{"C":"x"}}', GOOD])
def test_what_a_line_is_does_not_depend_on_its_neighbours(lines: list[bytes]) -> None:
    assert read([GOOD, *lines], MIXED)[1:] == [*map(beside_a_good_line, lines)]


def test_an_infinite_number_is_one_where_it_is_written() -> None:
    schema = pa.schema([("f", pa.float32()), ("n", pa.int64())])
    assert read([b'{"f": Infinity}', b'{"f": -1e39}', b'{"f": 1.5}'], schema) == [
        {"f": float("inf"), "n": None}, "column f is not float", {"f": 1.5, "n": None},
    ]  # fmt: skip


@pytest.mark.parametrize("name", [b"K", b" k", b"\\u004b", b"k\\u200b"])
@pytest.mark.parametrize(
    "unread",
    [
        b"Inf", b"-Inf", b"-NaN", b"[Inf, {}]", b"%b%b" % (b"[" * 3_000, b"]" * 3_000),
        b"%b1%b" % (b'{"k": ' * 3_000, b"}" * 3_000), b'[Inf, {"k": "\\"k\\": 1"}, "k"]',
    ],
    ids=["Inf", "-Inf", "-NaN", "in an array", "arrays", "objects", "names elsewhere"],
)  # fmt: skip
def test_another_name_is_seen_in_a_line_that_pyarrow_reads_and_python_does_not(name: bytes, unread: bytes) -> None:
    line = b'{"%b": "a", "x": %b, "v": 1}' % (name, unread)
    other = json.loads(b'"%b"' % name)
    assert read([line, b'{"k": null, "x": %b}' % unread, b'{"k": "b"}']) == [
        f"column k is not in it, but {other!a}", {"k": None, "v": None}, {"k": "b", "v": None},
    ]  # fmt: skip


def values(letters: str, names: list[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(letters, max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(names), inner, max_size=3),
        max_leaves=5,
    )  # fmt: skip


def records(letters: str, names: list[str]) -> st.SearchStrategy[list[dict[str, Any]]]:
    one = st.dictionaries(st.sampled_from(names), values(letters, names), max_size=4)
    return st.lists(one, min_size=1, max_size=5)


@given(records('k:{é"\\', ["k", "K", "v", "s", "\\", '"k":']), st.booleans())
def test_a_member_that_python_does_not_read_changes_no_judgement(records: list[dict[str, Any]], is_ascii: bool) -> None:
    schema = pa.schema([*SCHEMA, ("s", pa.struct({"k": pa.string(), "v": pa.int64()}))])
    lines = [json.dumps({**record, "x": []}, ensure_ascii=is_ascii).encode() for record in records]
    found = read([line.replace(b'"x": []', b'"x": Inf') for line in lines], schema)
    for got, right in zip(found, read(lines, schema), strict=True):
        # Of a value that does not fit, nothing names the column then.
        assert got == right or (got == "not a JSON object" and right.startswith("column ") and "but" not in right)


@given(records('ab\ud83dé"\\', ["k", "v", "s", "x"]))
def test_members_that_are_read_decide_alone(records: list[dict[str, Any]]) -> None:
    schema = pa.schema([*SCHEMA, ("s", pa.struct({"k": pa.string(), "v": pa.int64()}))])
    found = read([json.dumps(record).encode() for record in records], schema)

    def kept(value: Any, type: pa.DataType) -> Any:
        if isinstance(value, dict) and pa.types.is_struct(type):
            return {field.name: kept(value.get(field.name), field.type) for field in type}
        return value

    for record, got in zip(records, found, strict=True):
        whole = kept(record, pa.struct(list(schema)))
        assert isinstance(got, str) or got == whole
        alone = read([json.dumps(whole).encode()], schema)[0]
        assert got == alone


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (b'{"k": "a\nb", "v": 1}', {"k": "a\nb", "v": 1}),
        (b'\n {\n"k":\r\n "a\r\n\\"\n\t\\n\xc3\xa9",\n"v"\n:\n1\n}\n', {"k": 'a\r\n"\n\t\né', "v": 1}),
        (b'{"k": "a\\\\\n",\n"v": 1}', {"k": "a\\\n", "v": 1}),
        (b'{"k": "a\r"}', {"k": "a\r", "v": None}),
        (b'{"k": "a\\\nb"}', "not a JSON object"),
        (b'{"k": "a\n}', "not a JSON object"),
        (b'{"k": "a"\n\\}', "not a JSON object"),
        (b'\x0b{"k": "a"}', "not a JSON object"),
        (b"\n", "not a JSON object"),
    ],
)
@pytest.mark.parametrize("beside", [[], [b'{"v": 5}'], [b'{"v": 5}', b'\n{"v":\n5}', b' {"v": 5}']])
def test_a_line_feed_in_a_kafka_record_is_a_part_of_a_text_or_white_space(
    value: bytes, row: Any, beside: list[bytes]
) -> None:
    decoded = Json(SCHEMA).decode([*beside, value, *beside])
    others = [{"k": None, "v": 5}] * len(beside)
    assert come(decoded.rows, decoded.bad) == [*others, row, *others]


@given(
    st.dictionaries(st.text('a\n\r\t\\"{}é', max_size=5), st.text('a\n\r\t\\"{}é', max_size=9), max_size=3),
    st.booleans(),
)
def test_texts_of_kafka_records_stay_what_they_are_over_several_lines(record: dict[str, str], is_raw: bool) -> None:
    written = json.dumps({**record, "v": 1}, indent=1)
    if is_raw:
        written = written.replace("\\\\", "\0").replace("\\n", "\n").replace("\0", "\\\\")
    name = next(iter(record), "k")
    decoded = Json(pa.schema({name: pa.string(), "v": pa.int64()})).decode([written.encode()])
    assert decoded.rows.to_pylist() == [{name: record.get(name), "v": 1}]
