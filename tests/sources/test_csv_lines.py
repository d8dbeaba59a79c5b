"""CSV as other programs write it is read, or one bad row says what is wrong."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import pickle
from contextlib import suppress
from dataclasses import fields
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state import CsvOptions, FileSource, InvalidInputError
from persistent_state.sources import formats, text_blocks
from tests.sentences import problem

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])


def read(
    content: bytes, schema: pa.Schema = SCHEMA, **options: Any
) -> tuple[list[tuple[Any, ...]], list[tuple[int, str]]]:
    """The rows, and the line and reason of each bad row."""
    rows: list[tuple[Any, ...]] = []
    bad: list[tuple[int, str]] = []
    for piece in formats.read_pieces(io.BytesIO(content), formats.CSV, None, schema, CsvOptions(**options)):  # type: ignore[arg-type]
        assert piece.rows.num_rows + len(piece.bad) == piece.count
        rows += [tuple(row.values()) for row in piece.rows.to_pylist()]
        bad += [(piece.original(record.position).line or 0, record.reason) for record in piece.bad]
    return rows, bad


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize(
    ("content", "rows", "bad"),
    [
        (b"k,v\ra,1\rb,x\r\rc,3\r", [("a", 1), ("c", 3)], [(3, "column v is not int64")]),
        (b"k,v\ra,1\r", [("a", 1)], []),
        (b"k,v\ra,1", [("a", 1)], []),
        (b"\xef\xbb\xbfk,v\ra,1\r\nb,x\nc,3\r", [("a", 1), ("c", 3)], [(3, "column v is not int64")]),
        (b"k,v\r", [], []),
        (b"k,v\r\na,1\r\nb,x\r\n", [("a", 1)], [(3, "column v is not int64")]),
        (b"k,v\na\rb,1\nc,2\n", [("c", 2)], [(2, "a carriage return within a line")]),
    ],
)
def test_lines_may_end_by_carriage_returns_if_the_first_does(
    monkeypatch: pytest.MonkeyPatch, size: int, content: bytes, rows: Any, bad: Any
) -> None:
    if content.startswith(b"\xef\xbb\xbf") and size < 3:
        pytest.skip("no block is that small")
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", size)
    assert read(content) == (rows, bad)


@pytest.mark.parametrize(
    "content",
    [
        "k,v,höhe\na,1,2\n".encode("latin-1"),
        "k,v\na,1\n".encode("utf-16"),
        # Its bytes hold the time, and all processes must collect the same name.
        pytest.param(gzip.compress(b"k,v\na,1\n"), id="gzip"),
        b"\xff\xfe\x00",
        bytes(range(128, 256)) * 10 + b"\n1,2\n",
    ],
)
def test_a_header_that_is_not_utf_8_is_one_bad_row(content: bytes) -> None:
    assert read(content) == ([], [(0, "unreadable file: its header is not UTF-8")])


def test_bytes_that_are_not_utf_8_matter_only_in_columns_that_are_read() -> None:
    # Of the four bytes of a character, three take as much room as what stands in for them.
    assert read(b"k,v\n\xf0\x9f\x98,1\n") == ([], [(2, "column k is not UTF-8")])
    content = b'k,v,note\na,1,\xff\xfe\n\xffb,2,\nc,3,"\xe4,\xf6"\nd,\xff,x\ne,5,\xff,6\nf,6,\xe4\n'
    assert read(content) == (
        [("a", 1), ("c", 3), ("f", 6)],
        [
            (3, "column k is not UTF-8"),
            (5, "column v is not UTF-8"),
            (6, "not as many fields as in the header"),
        ],
    )


@pytest.mark.parametrize(
    ("text", "is_read"), [("0x10", False), ("0X1f", False), ("-0x1", False), (" 7 ", True), ("+5", False)]
)
def test_numbers_are_written_in_decimals(text: str, is_read: bool) -> None:
    expected = ([("a", 7), ("b", 1)], []) if is_read else ([("b", 1)], [(2, "column v is not int64")])
    assert read(f"k,v\na,{text}\nb,1\n".encode()) == expected


@pytest.mark.parametrize(
    "encoding", ["cp1252", "latin-1", "utf-16", "utf-16-le", "utf-32", "utf-8-sig", "UTF8", "cp037"]
)
@pytest.mark.parametrize("size", [3, 1 << 20])
def test_an_encoding_is_read_in_blocks_of_any_size(monkeypatch: pytest.MonkeyPatch, encoding: str, size: int) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", size)
    content = "größe,v\nü,1\nñ,2\n".encode(encoding)
    schema = pa.schema([("größe", pa.string()), ("v", pa.int64())])
    assert read(content, schema, encoding=encoding) == ([("ü", 1), ("ñ", 2)], [])


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii", "utf-8-sig", "UTF8", "gb18030"])
@pytest.mark.parametrize("size", [3, 7, 1 << 20])
def test_a_byte_order_mark_of_utf_8_wins_over_the_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str, size: int
) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", size)
    schema = pa.schema([("größe", pa.string()), ("v", pa.int64())])
    content = "\ufeffgröße,v\nKöln,1\nñ,2\n".encode()
    assert read(content, schema, encoding=encoding) == ([("Köln", 1), ("ñ", 2)], [])
    assert read(content + b"\xf6,3\n", schema, encoding=encoding)[1] == [(4, "column größe is not UTF-8")]


def test_a_byte_order_mark_of_utf_8_is_a_text_where_letters_are_other_bytes() -> None:
    first = b"\xef\xbb\xbf\xbf".decode("utf-16-le")
    schema = pa.schema([(first, pa.string()), ("v", pa.int64())])
    assert read(f"{first},v\na,1\n".encode("utf-16-le"), schema, encoding="utf-16-le") == ([("a", 1)], [])


@pytest.mark.parametrize(("encoding", "broken"), [("cp1252", b"\x81"), ("utf-16-le", b"\x00\xd8"), ("ascii", b"\xe4")])
def test_what_is_no_text_of_the_encoding_is_a_bad_row_and_no_other_text(encoding: str, broken: bytes) -> None:
    mark = "#".encode(encoding)
    content = "k,v\na#,1\nb,2\n".encode(encoding).replace(mark, broken)
    assert read(content, encoding=encoding) == ([("b", 2)], [(2, "column k is not UTF-8")])
    unread = "k,v,n\na,1,#\n".encode(encoding).replace(mark, broken)
    assert read(unread, encoding=encoding) == ([("a", 1)], [])


def test_a_file_of_another_encoding_altogether_is_one_bad_row() -> None:
    assert read(b"k,v\na,1\n", encoding="utf-16") == ([], [(0, "unreadable file: it is not utf-16")])


def test_numbers_may_have_a_decimal_comma() -> None:
    schema = pa.schema([("k", pa.string()), ("f", pa.float64()), ("d", pa.decimal128(10, 2)), ("n", pa.int64())])
    content = b"k;f;d;n\na.b,c;1,5;-2,25;3\nb;1.5;1;1\nc;1e3;1.250,00;1\nd;;;\ne;1;1;1,0\n"
    rows, bad = read(content, schema, delimiter=";", decimal=",")
    assert rows == [("a.b,c", 1.5, Decimal("-2.25"), 3), ("d", None, None, None)]
    assert bad == [
        (3, "column f is not double"),
        (4, "column d is not decimal128(10, 2)"),
        (6, "column n is not int64"),
    ]


def test_a_value_with_a_decimal_comma_is_named_as_it_stands_in_the_file() -> None:
    schema = pa.schema([("f", pa.float64()), ("d", pa.decimal128(10, 2)), ("k", pa.string())])
    texts = [("1.234,50", "1", "a"), ("1", "1.234,50", "b"), ("?1,5", "1", "c"), ("1", "1,2?3.", "d")]
    content = "".join(f"{';'.join(row)}\n" for row in [("f", "d", "k"), *texts]).encode()
    options = CsvOptions(delimiter=";", decimal=",")
    (piece,) = formats.read_pieces(io.BytesIO(content), formats.CSV, None, schema, options)  # type: ignore[arg-type]
    values = [piece.original(record.position).value for record in piece.bad]
    assert values == ["1.234,50", "1.234,50", "?1,5", "1,2?3."]


def test_quotes_escapes_and_nulls_are_those_of_the_options() -> None:
    assert read(b"k|v\n'a|b'|1\n\"c\"|NA\nNA|\n'NA'|4\n", delimiter="|", quote="'", null=("", "NA")) == (
        [("a|b", 1), ('"c"', None), (None, None), ("NA", 4)],
        [],
    )
    assert read(b'k,v\n"a,1\n""b"",2\n', quote=None) == ([('"a', 1), ('""b""', 2)], [])
    assert read(b"k,v\na\\,b,1\n\"c\\\"d\",2\nx\\\ny,3\nz,4\\\n", escape="\\") == (
        [("a,b", 1), ('c"d', 2), ("y", 3)],
        [(4, "not one record in one line"), (6, "not one record in one line")],
    )  # fmt: skip


def test_a_header_may_be_long() -> None:
    assert read(b"k,v," + b"x" * (1 << 21) + b"\na,1,\n") == ([("a", 1)], [])


@pytest.mark.parametrize(("header", "skipped"), [("position", "v,what\n"), ("position", "\xff,\xfe\n"), ("none", "")])
def test_columns_may_go_by_position(header: str, skipped: str) -> None:
    content = skipped.encode("latin-1") + b"a,1\nb,2,3\n,4\n"
    line = 1 + bool(skipped)
    assert read(content, header=header) == (
        [("a", 1), (None, 4)],
        [(line + 1, "not as many fields as columns in the schema")],
    )
    assert read(b"", header=header) == ([], [])


STAMPED = pa.schema([("ts", pa.timestamp("us", "UTC")), *SCHEMA])
NO_COLUMN = "its first line names no column of the schema"


@pytest.mark.parametrize(
    ("content", "options", "why"),
    [
        ("2026-01-01,a,1\n", {}, NO_COLUMN),
        ("2026-01-01,a,1", {}, NO_COLUMN),
        ("\n\r\n2026-01-01,a,1\r\n", {}, NO_COLUMN),
        ("<html>404 not found</html>", {}, NO_COLUMN),
        ('{"ts":"2026-01-01","k":"a","v":1}\n', {}, NO_COLUMN),
        ("PK\x03\x04abc", {}, NO_COLUMN),
        ("ts;k;v\n", {}, NO_COLUMN),
        ("ts,k,v\n", {"delimiter": ";"}, NO_COLUMN),
        ("TS,K,V\n", {}, NO_COLUMN),
        ("time,k,v\n", {}, "its first line does not name the timestamp 'ts'"),
        ("2026-01-01,v,1\n", {}, "its first line does not name the timestamp 'ts'"),
        *[
            (f"ts,k,v{end}2026-01-01,a,1{end}", {}, "its first line goes on behind a line end that is not read as one")
            for end in "\x85\u2028\u2029\x0b\x0c\x1e"
        ],
        ("2026-01-01,a,1\n", {"header": "position"}, "its first line is a record, which header='position' passes over"),
        ("2026-01-01,,\n", {"header": "position"}, "its first line is a record, which header='position' passes over"),
        ("2026-01-01;a;1\n", {"header": "position"}, "its first line: not as many fields as columns in the schema"),
        ('2026-01-01,"a,1\n', {"header": "position"}, "its first line: not one record in one line"),
    ],
)
@pytest.mark.parametrize("more", ["", "x\n"])
def test_a_first_line_that_is_no_header_is_a_bad_row_itself(
    content: str, options: dict[str, Any], why: str, more: str
) -> None:
    pieces = [*formats.read_pieces(io.BytesIO((content.rstrip("\n") + "\n" * bool(more) + more).encode()), formats.CSV, None,
                                   STAMPED, CsvOptions(**options), timestamp="ts")]  # type: ignore[arg-type]  # fmt: skip
    first = pieces[0]
    assert (first.count, [bad.reason for bad in first.bad]) == (1, [why])
    line = len(content) - len(content.lstrip("\r\n"))
    assert first.original(0) == formats.Original(
        content.strip("\r\n").encode(), line - content.count("\r", 0, line) + 1
    )
    assert sum(piece.count for piece in pieces) == 1 + bool(more)


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("ts,k,v\n", {}),
        ("x,ts\n", {}),
        *[(f'ts,"a{end}""b{end}",k\n', {}) for end in "\x85\u2028\x0b\x0c\x1e"],
        ("ts,|a\u2028b|\n", {"quote": "|"}),
        ("Time,Key,Value\n", {"header": "position"}),
        ("a,b,c\n", {"header": "position"}),
        (",,\n", {"header": "position"}),
        ("\n", {}),
        ("", {}),
    ],
)
def test_a_first_line_that_may_be_a_header_is_no_record(content: str, options: dict[str, Any]) -> None:
    pieces = formats.read_pieces(
        io.BytesIO(content.encode()),
        formats.CSV,
        None,
        STAMPED,
        CsvOptions(**options),
        timestamp="ts",  # type: ignore[arg-type]
    )
    assert [piece.count for piece in pieces if piece.count] == []


@pytest.mark.parametrize(
    ("content", "is_header"),
    [(b"k,2024\na,1\n", True), (b'"k","2024"\r\na,1\n', True), (b"k,2025\na,1\n", False), (b"2024,k\na,1\n", True)],
)
def test_names_of_the_schema_are_no_record_although_one_is_a_number(content: bytes, is_header: bool) -> None:
    schema = pa.schema([("k", pa.string()), ("2024", pa.int64())])
    rows, bad = read(content, schema, header="position")
    assert (rows, [line for line, _ in bad]) == ([("a", 1)], [] if is_header else [1])


@pytest.mark.parametrize("content", [b'"a\nb",k,v\n1,a,3\n', b'k,v,"a\r\nb"\r\na,1,2\r\n', b'k,"v', b'"\n'])
def test_a_header_with_a_line_end_in_quotes_is_one_bad_row_that_says_so(content: bytes) -> None:
    assert read(content) == ([], [(0, "unreadable file: a name in its header does not end on the first line")])


@pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())])
def test_texts_alone_do_not_tell_a_record_from_a_header(type: pa.DataType) -> None:
    schema = pa.schema([("k", type), ("v", pa.int64())])
    assert read(b"a,\nb,1\n", schema, header="position")[1] == []
    assert len(read(b"a,7\nb,1\n", schema, header="position")[1]) == 1


ROWS = st.lists(st.tuples(st.text("ab,;|'\"\\ é.", max_size=5), st.integers(-9, 9)), max_size=6)


@given(
    ROWS,
    st.sampled_from(",;|\t"),
    st.sampled_from("\"'"),
    st.sampled_from(["utf-8", "utf-16", "cp1252"]),
    st.integers(1, 50),
)
def test_what_python_writes_is_read_the_same_with_the_same_options(
    rows: list[tuple[str, int]], delimiter: str, quote: str, encoding: str, size: int
) -> None:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quotechar=quote, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    writer.writerows([["k", "v"], *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "BLOCK_BYTES", size)
        assert read(out.getvalue().encode(encoding), delimiter=delimiter, quote=quote, encoding=encoding) == (rows, [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delimiter": ";;"}, "delimiter=';;' of CsvOptions is not one ASCII character"),
        ({"delimiter": None}, "delimiter=None of CsvOptions is not one ASCII character"),
        ({"quote": "\n"}, "quote='\\n' of CsvOptions is not one ASCII character"),
        ({"escape": "é"}, "escape='é' of CsvOptions is not one ASCII character"),
        ({"escape": '"'}, "CsvOptions has one character for two of"),
        ({"encoding": "excel"}, "encoding='excel' of CsvOptions is not an encoding that Python knows"),
        ({"encoding": "hex"}, "encoding='hex' of CsvOptions is not an encoding that Python knows"),
        ({"encoding": None}, "encoding=None of CsvOptions is not an encoding that Python knows"),
        ({"decimal": ";"}, "decimal=';' of CsvOptions; say"),
        ({"null": "NA"}, "null='NA' of CsvOptions is not a tuple of texts"),
        ({"null": None}, "null=None of CsvOptions is not a tuple of texts"),
        ({"null": 0}, "null=0 of CsvOptions is not a tuple of texts"),
        ({"null": (None,)}, "null=(None,) of CsvOptions is not a tuple of texts"),
        ({"null": b"NA"}, "null=b'NA' of CsvOptions is not a tuple of texts"),
        ({"null": (text for text in ["NA"])}, "null=<generator"),
        ({"header": False}, "header=False of CsvOptions; say"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], words: str) -> None:
    assert problem(lambda: CsvOptions(**options)).startswith(words)


WRONG = [
    None,
    0,
    1.5,
    True,
    b",",
    "",
    [","],
    (",",),
    {",": 1},
    {","},
    object(),
    np.array([","]),
    pa.scalar(","),
    "\udc80",
]


@pytest.mark.parametrize("name", [each.name for each in fields(CsvOptions)])
@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
def test_an_option_of_any_type_is_taken_or_refused_in_a_sentence(name: str, value: Any) -> None:
    with suppress(InvalidInputError):
        made = CsvOptions(**{name: value})
        rows, bad = read(b"k,v\na,1\n", **{name: value})
        # The first line is a header, a record or a bad row, and the second one a record or a bad row.
        assert (len(rows) + len(bad), rows) in ((1, [("a", 1)]), (2, [("a", 1)]), (1, []), (2, []))
        assert rows or bad
        assert pickle.loads(pickle.dumps(made)) == made


def test_options_are_those_of_a_copy_for_a_worker(tmp_path: Any) -> None:
    (tmp_path / "a.csv.bz2").write_bytes(bz2.compress("k;v;ts\nä;1;\n".encode("cp1252")))
    options = CsvOptions(delimiter=";", encoding="cp1252")
    schema = SCHEMA.append(pa.field("ts", pa.timestamp("us", "UTC")))
    source = pickle.loads(pickle.dumps(FileSource(tmp_path, timestamp="ts", schema=schema, csv=options)))
    source.open([], {})
    (split,) = source.splits({}, source.reach({}, True).ends, 1)
    assert [chunk.rows.to_pylist() for chunk in source.read(split)] == [[{"k": "ä", "v": 1, "ts": None}]]
    with pytest.raises(InvalidInputError, match="is not a CsvOptions"):
        FileSource(tmp_path, timestamp="ts", csv={"delimiter": ";"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (r"\N", None), (r"\-", None), (r'"\N"', "N"), (r"\\N", r"\N"), ("N", "N"), (r'"a,\N,b"', "a,N,b"), (r"a\,\N", "a,N"),
        (r"\,\N", ",N"), (r"\N\N", "NN"), (r"\Na", "Na"), ("", ""), ('""', ""), ("\ufdd0\ufdd0", "\ufdd0\ufdd0"),
        ('"\ufdd0,\\N,\\\ufdd0\\\ufdd0"', "\ufdd0,N,\ufdd0\ufdd0"), ("x", None), (r"\x", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_null_text_with_the_escape_is_null_as_it_stands(field: str, value: str | None, end: str) -> None:
    content = f"k,v{end}{field},1{end}{field},\\N{end}".encode()
    null = ("\\N", "\\-", "x")
    assert read(content, escape="\\", null=null) == ([(value, 1), (value, None)], [])
    last = pa.schema([("v", pa.int64()), ("k", pa.string())])
    content = f"v,k{end}1,{field}{end}\\N,{field}".encode()
    assert read(content, last, escape="\\", null=null) == ([(1, value), (None, value)], [])


def test_exports_of_mysql_and_hive_are_read() -> None:
    options = {"delimiter": "\t", "quote": None, "escape": "\\", "null": ("\\N",)}
    content = b"k\tv\n\\N\t1\na\\\tb\t\\N\n\\\\N\t2\n\t3\nx\ty\n"
    assert read(content, **options) == (
        [(None, 1), ("a\tb", None), ("\\N", 2), ("", 3)],
        [(6, "column v is not int64")],
    )


@pytest.mark.parametrize(
    ("null", "options"),
    [
        ('""', {}), ("a,b", {}), ("a\nb", {}), ("a\r", {"escape": "\\"}), (r"a\,b,", {"escape": "\\"}),
        ("\\", {"escape": "\\"}), (r'"\N"', {"escape": "\\"}),
    ],
)  # fmt: skip
def test_a_null_text_that_is_no_field_is_refused(null: str, options: dict[str, str]) -> None:
    assert problem(lambda: CsvOptions(null=("", null), **options)) == (
        f"null={null!r} of CsvOptions is never a whole field without quotes; give the text that stands there, or leave it out."
    )


@pytest.mark.parametrize(("null", "field"), [("a,b", r"a\,b"), (r"a\,b", r"a\,b"), ('"', r"\""), (r"\\", r"\\")])
def test_a_null_text_may_be_written_by_escapes(null: str, field: str) -> None:
    assert read(f"k,v\n{field},1\n".encode(), escape="\\", null=(null,)) == ([(None, 1)], [])


@pytest.mark.parametrize("size", [3, 1 << 20])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("null", "header", "rows"),
    [
        (("",), "name", ["a", None, None, "", "b", None]),
        ((r"\N",), "name", ["a", "", "", "", "b", ""]),
        (("",), "position", ["a", None, None, "", "b", None]),
        (("",), "none", ["k", "a", None, None, "", "b", None]),
    ],
)
def test_an_empty_line_of_one_column_is_a_record(
    monkeypatch: pytest.MonkeyPatch, size: int, end: str, null: tuple[str, ...], header: str, rows: list[str | None]
) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", size)
    content = end.join(["k", "a", "", "", '""', "b", "", ""]).encode()
    assert read(content, pa.schema([("k", pa.string())]), null=null, header=header) == ([(row,) for row in rows], [])


def test_an_empty_line_of_one_column_has_its_number() -> None:
    schema = pa.schema([("v", pa.int64())])
    assert read(b"v\n1\n\nx\n\n", schema) == ([(1,), (None,), (None,)], [(4, "column v is not int64")])
    assert read(b"v\n\n", schema, null=("NA",)) == ([], [(2, "column v is not int64")])
    assert read(b"\n\nv\n1", schema) == ([(1,)], [])
    assert read(b"v\n", schema) == ([], [])
    assert read(b"\n\n", schema, header="none") == ([(None,), (None,)], [])


def test_an_empty_line_of_more_columns_is_no_record() -> None:
    assert read(b"k,v\n\na,1\n\n\r\n", pa.schema([("k", pa.string())])) == ([("a",)], [])
