"""Values of files are exactly what is written there, or stand aside: decimals first. `tests/hostile/` has worse texts."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import uuid
from contextlib import suppress
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.errors import InvalidInputError
from persistent_state.sources import fit, formats, json_lines, text_blocks
from persistent_state.sources.files import FileSource
from persistent_state.sources.formats import CSV, PARQUET, json_piece, read_pieces
from persistent_state.sources.schemas import arrow_schema

TYPES = [pa.decimal128(38, 2), pa.decimal128(10, 2), pa.decimal256(76, 5), pa.decimal128(38, 0), pa.decimal64(18, 2)]

DIGITS = st.text("0159", max_size=45) | st.text("0", max_size=60)
TEXTS = st.builds(
    lambda sign, whole, point, part, exponent: f"{sign}{whole}{point}{part if point else ''}{exponent}",
    st.sampled_from(["", "-", "+"]),
    DIGITS,
    st.sampled_from(["", "."]),
    DIGITS,
    st.just("") | st.builds("{}{:+}".format, st.sampled_from("eE"), st.integers(-300, 300)),
)
"""Texts of decimals, and texts that are nearly some."""


def is_exact(text: str, type: pa.DataType) -> bool:
    """Whether a text is a decimal of a type, by whole numbers of any length."""
    try:
        _, digits, exponent = Decimal(text).as_tuple()
    except ArithmeticError:
        return False
    number, places = int("".join(map(str, digits))), int(exponent) + type.scale
    unscaled = number * 10 ** max(0, places)
    rest = number % 10 ** max(0, -places)
    return rest == 0 and unscaled // 10 ** max(0, -places) < 10**type.precision


def csv(texts: list[str], type: pa.DataType) -> list[Any]:
    content = "".join(f"{text}\n" for text in ["a,b", *(f"{text},1" for text in texts)]).encode()
    (piece,) = read_pieces(io.BytesIO(content), CSV, None, pa.schema([("a", type)]))  # type: ignore[arg-type]
    return in_place(piece, len(texts))


def json(texts: list[str], type: pa.DataType, written: str) -> list[Any]:
    values = [f'{{"a": {written.format(text)}, "b": "e-99"}}'.encode() for text in texts]
    return in_place(json_piece(values, pa.schema([("a", type)])), len(texts))


def in_place(piece: Any, count: int) -> list[Any]:
    bad, values = {record.position for record in piece.bad}, iter(piece.rows["a"].to_pylist())
    return ["bad" if place in bad else next(values) for place in range(count)]


@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from(TYPES))
def test_a_text_of_csv_is_exactly_the_decimal_that_it_says_or_is_bad(texts: list[str], type: pa.DataType) -> None:
    expected = [None if not text else Decimal(text) if is_exact(text, type) else "bad" for text in texts]
    assert csv(texts, type) == expected


@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from(TYPES), st.sampled_from(['"{}"', "{}"]))
def test_a_decimal_of_json_is_exactly_what_is_written_or_is_bad(
    texts: list[str], type: pa.DataType, written: str
) -> None:
    for text, value in zip(texts, json(texts, type, written), strict=True):
        # More digits than Arrow knows are bad, also where they are zeros; and JSON knows fewer forms of numbers.
        assert value == "bad" or value == Decimal(text)


@given(st.integers(-(10**9), 10**9), st.integers(0, 30), st.sampled_from(['"{}"', "{}"]))
def test_decimals_of_json_with_few_digits_are_read(number: int, places: int, written: str) -> None:
    type = pa.decimal128(38, 20)
    for text in (f"{Decimal(number).scaleb(-places):f}", f"{number}e-{places}", f"{number}E{-places:+03}"):
        expected = Decimal(text) if is_exact(text, type) else "bad"
        assert json([text, "1"], type, written) == [expected, 1]


@pytest.mark.parametrize(
    "text", ["0.7e37", "7e36", "9" * 37, "194352661581230730732507851364635770880", "1" + "0" * 38]
)
def test_a_number_that_is_too_large_is_never_another_one(text: str) -> None:
    assert csv(["1", text], TYPES[0]) == [Decimal(1), "bad"]
    for written in ("{}", '"{}"'):
        assert json(["1", text], TYPES[0], written) == [Decimal(1), "bad"]


@given(st.integers(0, 10**40), st.integers(-40, 40), st.integers(0, 38))
def test_numbers_of_any_size_are_exact_or_bad_at_any_scale(number: int, exponent: int, scale: int) -> None:
    type = pa.decimal128(38, scale)
    texts = [f"{number}", f"{number}e{exponent}", f"{Decimal(number).scaleb(-abs(exponent)):f}"]
    expected = [Decimal(text) if is_exact(text, type) else "bad" for text in texts]
    assert csv(texts, type) == expected
    for value, right in zip(json(texts, type, "{}"), expected, strict=True):
        # More digits than Arrow knows are bad in JSON, also where they are zeros.
        assert value in (right, "bad")


@pytest.mark.parametrize(
    "exponent", ["1e-41", "1e-999999999", "0e-999999999", "1e999999999", "1e-99999999999999999999"]
)
def test_an_exponent_beyond_all_digits_stands_aside_and_its_neighbours_do_not(exponent: str) -> None:
    texts, type = ["1", exponent, "1.50"], TYPES[0]
    expected = [Decimal(1), Decimal(0) if exponent.startswith("0") else "bad", Decimal("1.5")]
    assert csv(texts, type) == expected
    escaped = exponent.replace("e", "\\u0065")
    for written, each in (("{}", exponent), ('"{}"', exponent), ('"{}"', escaped)):
        assert json(["1", each, "1.50"], type, written) == [Decimal(1), "bad", Decimal("1.5")]


@pytest.mark.parametrize("written", ["{}", '"{}"'])
def test_zeros_behind_the_point_are_no_digits_of_a_decimal_of_json(written: str) -> None:
    texts = ["65504.0", "99999", "-10000.000", "6550.4e1", "100000", "1.5", "0.10"]
    expected = [65504, 99999, -10000, 65504, "bad", "bad", "bad"]
    assert json(texts, pa.decimal128(5, 0), written) == expected
    assert json(["65504.0"], pa.decimal128(5, 0), f"[{written}]") == ["bad"]


@pytest.mark.parametrize("written", ["{}", '"{}"'])
@pytest.mark.parametrize(
    ("type", "most"),
    [(pa.decimal128(10, 2), 38), (pa.decimal128(38, 0), 38), (pa.decimal64(18, 2), 18), (pa.decimal256(50, 2), 50)],
)
def test_a_decimal_of_json_is_written_with_as_many_digits_as_the_page_says(
    type: pa.DataType, most: int, written: str
) -> None:
    texts = ["1." + "0" * (most - 1), "1." + "0" * most, "0." + "0" * most, "0." + "0" * (most + 1)]
    assert json(texts, type, written) == [1, "bad", 0, "bad"]


def test_decimals_within_lists_and_records_of_json_are_looked_at_too() -> None:
    type = pa.struct([("b", pa.list_(TYPES[0]))])
    good, bad = '{{"b": [1, {}]}}', '{{"b": [1, 2e-99999999]}}'
    assert json(["3"], type, good) == [{"b": [1, 3]}]
    assert json(["3"], type, bad) == ["bad"]
    # Of a member that stands twice, each is looked at.
    assert in_place(json_piece([b'{"a": 1e-99999999, "a": 2}'], pa.schema([("a", TYPES[0])])), 1) == ["bad"]


@pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_texts_of_parquet_are_read_as_those_of_csv(type: pa.DataType) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": pa.array(["1.5", "1e-999999999", "2"], type)}), buffer)
    (piece,) = read_pieces(io.BytesIO(buffer.getvalue()), PARQUET, None, pa.schema([("a", TYPES[0])]))  # type: ignore[arg-type]
    assert in_place(piece, 3) == [Decimal("1.5"), "bad", 2]


def test_decimals_within_lists_of_parquet_are_read_as_those_of_json() -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": [["1.5", "1e1"], ["1e-999999999"], None]}), buffer)
    schema = pa.schema([("a", pa.list_(TYPES[0]))])
    (piece,) = read_pieces(io.BytesIO(buffer.getvalue()), PARQUET, None, schema)  # type: ignore[arg-type]
    assert in_place(piece, 3) == [[Decimal("1.5"), 10], "bad", None]


@pytest.mark.parametrize("number", [7 * 10**36, 7 * 10**37, 10**36 - 1])
def test_a_decimal_of_parquet_with_fewer_digits_after_the_point_is_exact_or_bad(number: int) -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": pa.array([Decimal(number), Decimal(1)], pa.decimal128(38, 0))}), buffer)
    (piece,) = read_pieces(io.BytesIO(buffer.getvalue()), PARQUET, None, pa.schema([("a", TYPES[0])]))  # type: ignore[arg-type]
    assert in_place(piece, 2) == [Decimal(number) if number < 10**36 else "bad", 1]


def pieces(
    content: bytes, format: str | None, codec: Any = None, **types: pa.DataType
) -> tuple[list[Any], list[tuple[int, str]]]:
    """Values of the only column, and place and reason of each bad record."""
    values: list[Any] = []
    bad: list[tuple[int, str]] = []
    first = 0
    for piece in read_pieces(io.BytesIO(content), format, codec, pa.schema(types)):  # type: ignore[arg-type]
        assert piece.rows.num_rows + len(piece.bad) == piece.count
        values += piece.rows.column(0).to_pylist()
        bad += [(first + record.position, record.reason) for record in piece.bad]
        first += piece.count
    return values, bad


def parquet(column: pa.Array, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": column}), buffer, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("type", [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.timestamp("ms", "UTC")])
def test_int96_of_every_year_is_the_time_that_it_says(type: pa.DataType) -> None:
    years = [
        datetime(year, 12, 31, 23, 59, 59, tzinfo=timezone.utc)
        for year in (1, 1600, 1677, 1970, 2026, 2262, 2263, 9999)
    ]
    ticks = pa.array(years, pa.timestamp("us", "UTC"))
    content = parquet(ticks.cast(pa.timestamp("us")), use_deprecated_int96_timestamps=True)
    values, bad = pieces(content, PARQUET, a=type)
    assert (pa.array(values, type).cast(pa.timestamp("us", "UTC")), bad) == (ticks, [])


def test_int96_finer_than_microseconds_is_cut() -> None:
    column = pa.array([1_500, -1_500, None], pa.timestamp("ns"))
    values, bad = pieces(parquet(column, use_deprecated_int96_timestamps=True), PARQUET, a=pa.timestamp("us"))
    assert (pa.array(values, pa.timestamp("us")).cast(pa.int64()).to_pylist(), bad) == ([1, -2, None], [])


@pytest.mark.parametrize(
    ("column", "type"),
    [
        (pa.array([0], pa.timestamp("ms", "UTC")), pa.int64()),
        (pa.array([1767225600000]), pa.timestamp("us", "UTC")),
        (pa.array([b"0123456789abcdef"], pa.binary(16)), pa.string()),
        (pa.array([0], pa.duration("us")), pa.int64()),
        (pa.array([[0]], pa.list_(pa.date32())), pa.list_(pa.int32())),
        (pa.array([{"x": 1}]), pa.int64()),
    ],
)
def test_a_file_whose_type_is_never_read_as_the_schema_s_is_one_bad_record(column: pa.Array, type: pa.DataType) -> None:
    assert pieces(parquet(column), PARQUET, a=type) == (
        [],
        [(0, f"unreadable file: column a is {read_type(column)}, not {type}")],
    )


def read_type(column: pa.Array) -> str:
    return str(column.type).replace("item", "element")


def test_values_that_would_change_are_bad_records_by_themselves() -> None:
    assert pieces(parquet(pa.array([0.5, 0.1, 1e300, 1e-50, None])), PARQUET, a=pa.float32()) == (
        [0.5, None],
        [(place, "column a is not float") for place in (1, 2, 3)],
    )
    times = pa.array([0, 86_400_000, 86_400_001], pa.timestamp("ms"))
    assert pieces(parquet(times), PARQUET, a=pa.date32()) == (
        [date(1970, 1, 1), date(1970, 1, 2)],
        [(2, "column a is not date32[day]")],
    )


def test_one_flipped_bit_in_a_page_with_a_checksum_is_found() -> None:
    content = parquet(pa.array(range(1000)), write_page_checksum=True, use_dictionary=False, compression="none")
    assert pieces(content, PARQUET, a=pa.int64()) == (list(range(1000)), [])
    at = content.index((777).to_bytes(8, "little"))
    flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    assert pieces(flipped, PARQUET, a=pa.int64()) == ([], [(0, "unreadable file: damaged, or not parquet")])


def test_a_file_with_a_type_that_pyarrow_does_not_read_is_not_called_damaged() -> None:
    out = io.BytesIO()
    pl.DataFrame({"a": [1, 2], "other": pl.Series([1, 2**100], dtype=pl.Int128)}).write_parquet(out)
    good, [(place, why)] = pieces(out.getvalue(), PARQUET, a=pa.int64())
    assert (good, place) == ([], 0)
    assert why.startswith("unreadable file: it has a type that pyarrow does not read: Integers with more than 64 bits")


class OpenKms(encryption.KmsClient):
    """Keeps keys as they are."""

    def wrap_key(self, key: bytes, name: str) -> str:
        return base64.b64encode(key).decode()


@pytest.mark.parametrize("plain_footer", [True, False])
def test_an_encrypted_file_is_said_to_be_encrypted(plain_footer: bool) -> None:
    keys = encryption.EncryptionConfiguration("footer", column_keys={"column": ["a"]}, plaintext_footer=plain_footer)
    factory = encryption.CryptoFactory(lambda _: OpenKms())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), keys)
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, pa.schema([("a", pa.int64())]), encryption_properties=properties) as writer:
        writer.write_table(pa.table({"a": [1]}))
    assert pieces(buffer.getvalue(), PARQUET, a=pa.int64()) == ([], [(0, "unreadable file: it is encrypted")])


@pytest.mark.parametrize("codec", ["gzip", "bz2", "zstd"])
@pytest.mark.parametrize("size", [100, 1 << 24])
def test_of_a_compressed_file_that_ends_early_all_lines_before_are_read(
    monkeypatch: pytest.MonkeyPatch, codec: Any, size: int
) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", size)
    numbers = [(n * 7919) % 100_003 for n in range(5_000)]
    whole = "".join(f"{n}\n" for n in ["a", *numbers]).encode()
    # A block that is cut off gives nothing, and those of bzip2 and zstd are large.
    small = [whole[i : i + 999] for i in range(0, len(whole), 999)]
    content = {"gzip": lambda: gzip.compress(whole), "bz2": lambda: b"".join(map(bz2.compress, small))}.get(
        codec, lambda: b"".join(pa.compress(part, "zstd", asbytes=True) for part in small)
    )()
    for end in (len(content) // 3, len(content) - 1):
        values, bad = pieces(content[:end], CSV, codec, a=pa.int64())
        assert values == numbers[: len(values)]
        assert values or end < len(content) - 1
        assert bad == [(len(values), "unreadable file: damaged, or not csv")]
        stream = pa.CompressedInputStream(pa.BufferReader(content[:end]), codec)
        came = b""
        with suppress(OSError):
            while byte := stream.read(1):
                came += byte
        assert len(values) == max(0, came.count(b"\n") - 1), "each line that came whole"
    assert pieces(content, CSV, codec, a=pa.int64()) == (numbers, [])


@pytest.mark.parametrize("codec", ["gzip", "bz2", "zstd"])
@pytest.mark.parametrize("behind", [bytes(20), b"garbage"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_what_stands_behind_a_compressed_text_is_one_bad_record(codec: Any, behind: bytes, end: str) -> None:
    whole = ("a\n1\n2" + end).encode()
    content = {"gzip": gzip.compress, "bz2": bz2.compress}.get(
        codec, lambda text: pa.compress(text, "zstd", asbytes=True)
    )(whole)
    # A last line without its end may go on in what can't be read.
    values = [1, 2] if end else [1]
    reason = "unreadable file: damaged, or not csv"
    assert pieces(content + behind, CSV, codec, a=pa.int64()) == (values, [(len(values), reason)])


PACK: dict[str, Any] = {
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "zstd": lambda text: pa.compress(text, "zstd", asbytes=True),
}


@pytest.mark.parametrize("codec", [*PACK])
@pytest.mark.parametrize("format", ["csv", "json"])
@pytest.mark.parametrize("size", [3, 1 << 24])
def test_a_line_over_two_compressed_parts_of_which_one_is_damaged_is_no_other_line(
    monkeypatch: pytest.MonkeyPatch, codec: str, format: str, size: int
) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", size)
    first, second = {"csv": ("a\n7\n12", "34\n5\n"), "json": ('{"a":7}\n{"a":12}', ' \n{"a":5}\n')}[format]
    one, two = PACK[codec](first.encode()), PACK[codec](second.encode())
    whole = {"csv": [7, 1234, 5], "json": [7, 12, 5]}[format]
    assert pieces(one + two, format, codec, a=pa.int64()) == (whole, [])
    for at in range(len(two)):
        flipped = two[:at] + bytes([two[at] ^ 0x5A]) + two[at + 1 :]
        # The first part alone looks whole, and zstd has a mark of four bytes and no checksum.
        for damaged in two[: at or -1], *([flipped, two[:at] + bytes(20)] if codec != "zstd" or at < 4 else []):
            values, bad = pieces(one + damaged, format, codec, a=pa.int64())
            assert values == whole[: len(values)], f"{at}: {damaged!r}"
            assert len(values) == 3 or bad, f"{at}: {damaged!r}"


@pytest.mark.parametrize("behind", [bytes(20), b"garbage"])
def test_what_stands_behind_an_empty_text_of_bzip2_is_one_bad_record(behind: bytes) -> None:
    # To pyarrow that is an unknown error.
    content = bz2.compress(b"a\n1\n") + bz2.compress(b"") + behind
    assert pieces(content, CSV, "bz2", a=pa.int64()) == ([1], [(1, "unreadable file: damaged, or not csv")])


@pytest.mark.parametrize("codec", [*PACK])
@pytest.mark.parametrize("size", [3, 1 << 24])
def test_parts_of_a_compressed_file_may_be_empty(monkeypatch: pytest.MonkeyPatch, codec: str, size: int) -> None:
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", size)
    many = b"".join(b"%d\n" % number for number in range(300))
    for texts in ([b"a\n1", b"", b"2\n", b"3\n"], [b"", b"", b"a\n12\n3\n"], [b"a\n12\n3\n", b"", b""]):
        packed = [PACK[codec](text) for text in texts]
        assert pieces(b"".join(packed), CSV, codec, a=pa.int64()) == ([12, 3], [])
        reason = "unreadable file: damaged, or not csv"
        assert pieces(b"".join([*packed, b"garbage"]), CSV, codec, a=pa.int64()) == ([12, 3], [(2, reason)])
        assert pieces(b"".join([*packed, PACK[codec](many)]), CSV, codec, a=pa.int64()) == ([12, 3, *range(300)], [])
        values, bad = pieces(b"".join([*packed, PACK[codec](many)[:-4]]), CSV, codec, a=pa.int64())
        assert (values, bad) == ([12, 3, *range(len(values) - 2)], [(len(values), reason)])


def test_a_parquet_file_with_a_name_that_is_not_utf_8_is_one_bad_record() -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": [1], "unused": [2]}), buffer, store_schema=False)
    content = buffer.getvalue().replace(b"unused", b"un\xf5sed")
    reason = "unreadable file: the name of a column in it is not UTF-8"
    assert pieces(content, PARQUET, a=pa.int64()) == ([], [(0, reason)])


def test_rows_that_pyarrow_passes_over_are_a_bad_record() -> None:
    # pyarrow 26 passes over the only list of booleans of a page V2, and raises nothing.
    values, bad = pieces(
        parquet(pa.array([[True]]), data_page_version="2.0", data_page_size=64), PARQUET, a=pa.list_(pa.bool_())
    )
    reason = "unreadable file: not as many rows are in it as it says"
    assert (values, bad) in (([], [(0, reason)]), ([[True]], []))


@pytest.mark.parametrize("lines", [["\ufeff", "\ufeffx", "y"], ["y", '"', "\ufeff", "\ufeff\ufeff"]])
def test_a_byte_order_mark_within_a_csv_file_is_of_its_value(lines: list[str]) -> None:
    content = "\n".join(["\ufeffa", *lines]).encode()
    values, bad = pieces(content, CSV, a=pa.string())
    assert values == [line for line in lines if line != '"']
    assert [place for place, _ in bad] == [place for place, line in enumerate(lines) if line == '"']


def test_what_a_checksum_refuses_is_not_read() -> None:
    # The damage may be anywhere before the checksum, so that a number may be another one.
    content = bytearray(gzip.compress(b"a\n1\n2\n"))
    content[-6] ^= 1
    assert pieces(bytes(content), CSV, "gzip", a=pa.int64()) == ([], [(0, "unreadable file: damaged, or not csv")])


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_compressed_file_of_no_bytes_is_no_empty_text(format: str) -> None:
    assert pieces(b"", format, "gzip", a=pa.int64()) == ([], [(0, "unreadable file: it has no bytes, and is not gzip")])
    assert pieces(gzip.compress(b""), format, "gzip", a=pa.int64()) == ([], [])
    assert pieces(b"", format, None, a=pa.int64()) == ([], [])


@pytest.mark.parametrize(
    ("format", "line", "type"),
    [
        (CSV, "1;5", pa.float64()),
        (CSV, "yes", pa.bool_()),
        (CSV, "2026-13-45", pa.date32()),
        (CSV, "2026-02-30", pa.timestamp("us")),
        (CSV, "2026-01-01T25:00:00Z", pa.timestamp("us", "UTC")),
        (formats.JSON, '{"a": 1.0}', pa.int64()),
        (formats.JSON, '{"a": 1}{"a": 2}', pa.int64()),
        (formats.JSON, '{"a": "x"}', pa.bool_()),
        (formats.JSON, '{"a": "1,5"}', pa.float32()),
        (formats.JSON, '{"a": [{"b": 1}, {"b": 1.5}]}', pa.list_(pa.struct({"b": pa.int8()}))),
    ],
)
def test_rows_that_do_not_fit_are_not_asked_for_one_by_one(
    monkeypatch: pytest.MonkeyPatch, format: str, line: str, type: pa.DataType
) -> None:
    count, calls = 512, []

    def counted(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(function)
            return function(*args, **options)

        return call

    monkeypatch.setattr(fit, "cast", counted(fit.cast))
    monkeypatch.setattr(json_lines.pa_json, "read_json", counted(json_lines.pa_json.read_json))
    content = f"{'a' if format == CSV else ''}\n" + f"{line}\n" * count
    (piece,) = read_pieces(io.BytesIO(content.encode()), format, None, pa.schema([("a", type)]))  # type: ignore[arg-type]
    assert len(piece.bad) == count
    assert len(calls) < count / 8


def test_lines_that_are_no_objects_do_not_part_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    read_json = json_lines.pa_json.read_json
    monkeypatch.setattr(
        json_lines.pa_json, "read_json", lambda *given, **by: calls.append(1) or read_json(*given, **by)
    )
    odd = ['{"a": 1', "[1]", '"a": 1}', " ", "1"] * 60
    content = "".join(f'{line}\n{{"a": {number}}}\n' for number, line in enumerate(odd))
    (piece,) = read_pieces(io.BytesIO(content.encode()), formats.JSON, None, pa.schema([("a", pa.int64())]))
    assert piece.rows.column(0).to_pylist() == [*range(300)]
    assert {record.position: record.reason for record in piece.bad} == {2 * i: "not a JSON object" for i in range(300)}
    assert len(calls) < 5


def test_bad_rows_of_parquet_are_shown_together_but_those_that_can_not_be_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = []
    plain_values = formats.plain_values
    monkeypatch.setattr(formats, "plain_values", lambda column: shown.append(1) or plain_values(column))
    texts = [b"\xff" if i % 100 == 7 else f"t{i}".encode() for i in range(300)]
    table = pa.table(
        {"t": pa.array(texts, pa.binary()).view(pa.string()), "n": [f"{i}x" * (i % 3) for i in range(300)]}
    )
    out = io.BytesIO()
    pq.write_table(table, out)
    (piece,) = read_pieces(out, formats.PARQUET, None, pa.schema([("t", pa.string()), ("n", pa.int64())]))
    bad = {record.position for record in piece.bad}
    assert bad == {*range(300)}
    for i in range(300):
        known = formats.to_json({"t": f"t{i}", "n": f"{i}x" * (i % 3)}).encode()
        assert piece.original(i).record == (None if i % 100 == 7 else known)
    assert len(shown) < 100


@pytest.mark.parametrize(
    "type", [pa.string(), pa.large_string(), pa.binary(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
@pytest.mark.parametrize("is_typed", [True, False])
@pytest.mark.parametrize("group", [17, 1000])
@pytest.mark.parametrize("most", [1 << 14, 1 << 17])
def test_a_great_text_that_a_dictionary_has_once_is_read_in_pieces_of_bounded_size(
    monkeypatch: pytest.MonkeyPatch, type: pa.DataType, is_typed: bool, group: int, most: int
) -> None:
    monkeypatch.setattr(formats, "_PIECE_BYTES", most)
    texts = ["x" * (1 << 12), None, "y" * 100, "z" * (1 << 15)]
    values = [texts[i % 3] for i in range(600)] + texts * 5
    made = pa.array(values).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
    table = pa.table(
        {"k": made if pa.types.is_dictionary(type) else pa.array(values).cast(type), "n": range(len(values))}
    )
    out = io.BytesIO()
    pq.write_table(table, out, store_schema=is_typed, row_group_size=group)
    assert 2 * len(out.getvalue()) < sum(len(text or "") for text in values)
    pieces = [*formats.read_pieces(out, formats.PARQUET, None, pa.schema({"n": pa.int64(), "k": pa.string()}))]
    rows = [row for piece in pieces for row in piece.rows.to_pylist()]
    assert [(row["n"], row["k"]) for row in rows] == [*enumerate(values)]
    # A text more than its share, and the numbers and places beside the texts.
    assert max(piece.rows.nbytes for piece in pieces) < most + (1 << 15) + 16 * 600


def test_texts_that_are_stored_as_they_are_are_not_looked_for_in_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "_PIECE_BYTES", 1 << 14)
    monkeypatch.setattr(formats, "_DICTIONARY_BYTES", 1 << 11)
    own, same = [f"{i}" * 20 for i in range(5000)], [f"{i % 9}" for i in range(5000)]
    out = io.BytesIO()
    options: dict[str, Any] = {"dictionary_pagesize_limit": 1 << 10, "compression": "none"}
    pq.write_table(pa.table({"own": own, "same": same, "n": range(5000)}), out, **options)
    assert formats._repeated(pq.read_metadata(out), ["own", "same"]) == ["same"]


@pytest.mark.parametrize(
    "type", [pa.map_(pa.string(), pa.int8()), pa.list_(pa.struct({"x": pa.map_(pa.int8(), pa.int8())}))]
)
def test_the_column_that_is_named_for_a_map_has_one(type: pa.DataType) -> None:
    schema = pa.schema({"a": pa.struct({"map<": pa.int64()}), "b": pa.float16(), "m": type})
    with pytest.raises(InvalidInputError, match=r"column 'm' is .* A map can't be read from JSON"):
        formats.check_text(formats.JSON, schema)


BYTES = b"x\xe9"


def shown(format: str, content: bytes, schema: pa.Schema) -> list[tuple[str, str | None]]:
    """Return the reason of each bad row, and the value that is shown of it."""
    pieces = formats.read_pieces(io.BytesIO(content), format, None, schema)
    return [(record.reason, piece.original(record.position).value) for piece in pieces for record in piece.bad]


@pytest.mark.parametrize(
    ("column", "type"),
    [
        (pa.array([BYTES]), pa.string()),
        (pa.array([BYTES]).view(pa.string()), pa.string()),
        (pa.array([BYTES]).dictionary_encode(), pa.string()),
        (pa.array([[b"a", BYTES]]), pa.list_(pa.string())),
        (
            pa.array([{"a": None, "b": [{"c": BYTES}]}]),
            pa.struct({"a": pa.null(), "b": pa.list_(pa.struct({"c": pa.string()}))}),
        ),
        (pa.array([[("a", BYTES)]], pa.map_(pa.string(), pa.binary())), pa.map_(pa.string(), pa.string())),
        (pa.array([[(BYTES, 1)]], pa.map_(pa.binary(), pa.int8())), pa.map_(pa.string(), pa.int8())),
    ],
)
def test_a_text_of_parquet_that_is_not_utf_8_is_shown(column: pa.Array, type: pa.DataType) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"k": column}), out)
    assert shown(PARQUET, out.getvalue(), pa.schema({"k": type})) == [("column k is not UTF-8", "x\\xe9")]


def test_what_does_not_fit_in_a_line_is_shown() -> None:
    schema = pa.schema({"k": pa.string(), "d": pa.decimal128(4, 1), "l": pa.list_(pa.decimal128(4, 1))})
    long = "9" * 500
    for line, reason, value in (
        (b'{"k": "x\xe9"}', "column k is not UTF-8", '"x\\udce9"'),
        (b'{"k": "a", "k": [1, "b"], "x": 1, "x": 2}', "column k stands twice in it", '"a", [1,"b"]'),
        (f'{{"d": {long}}}'.encode(), "column d is not decimal128(4, 1)", None),
        (f'{{"l": [1.5, {long}]}}'.encode(), "column l is not list<item: decimal128(4, 1)>", None),
    ):
        for neighbour in (b"", b'{"k": "b"}\n'):
            ((why, came),) = shown(formats.JSON, neighbour + line, schema)
            assert why == reason
            assert came is not None
            assert len(came) < 200
            assert came == value or (value is None and came.lstrip("[1.5,").startswith("999"))
    assert shown(CSV, b"k,d,l\nx\xe9,1,\n", schema.remove(2)) == [("column k is not UTF-8", "x\ufffd")]


def test_a_row_that_does_not_fit_is_kept_with_a_uuid_beside_it() -> None:
    given, out = uuid.UUID(int=5), io.BytesIO()
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([given.bytes], pa.binary(16)))
    pq.write_table(pa.table({"id": ids, "n": [300]}), out)
    (piece,) = formats.read_pieces(out, PARQUET, None, pa.schema({"id": pa.binary(), "n": pa.int8()}))
    assert [record.reason for record in piece.bad] == ["column n is not int8"]
    assert piece.original(0).record == f'{{"id":"{given}","n":300}}'.encode()


def test_a_byte_order_mark_before_an_object_of_json_is_of_no_value_as_in_files_that_were_joined() -> None:
    schema, mark = pa.schema({"k": pa.string(), "n": pa.int64()}), b"\xef\xbb\xbf"
    content = b"".join(mark + b'{"k": "%c"}\n' % letter for letter in b"abc") + b'{"k": "%b"}' % mark
    (piece,) = formats.read_pieces(io.BytesIO(content), formats.JSON, None, schema)
    assert piece.rows.column("k").to_pylist() == ["a", "b", "c", "\ufeff"]
    assert (piece.count, piece.bad, piece.lacks) == (4, (), ("n",))


def test_objects_of_json_that_carriage_returns_keep_apart_are_several_in_one_line() -> None:
    content = b'{"k": "a"}\r{"k": "b"}\r'
    assert shown(formats.JSON, content, pa.schema({"k": pa.string()})) == [("several JSON objects in one line", None)]


def test_a_member_that_the_schema_requires_may_be_missing() -> None:
    required = pa.schema([pa.field("k", pa.string(), False), pa.field("n", pa.int64(), False)])
    lines = [b'{"k": "a"}', b'{"n": 1}', b'{"k": null, "n": "x"}']
    source = FileSource(".", timestamp="k", schema=required)
    for columns in (source.schema, arrow_schema(required)):
        piece = json_piece(lines, columns)
        assert piece.rows.to_pylist() == [{"k": "a", "n": None}, {"k": None, "n": 1}]
        assert [record.reason for record in piece.bad] == ["column n is not int64"]


def test_a_zstd_window_that_is_too_large_is_named() -> None:
    # What `zstd --long=28` made of small lines.
    packed = b"(\xb5/\xfd\x04\x90]\x00\x00 abc\n\x01\x00\xf1\xd4\x11\x01M\xc4\xb6\x8c"
    schema = pa.schema([("abc", pa.string())])
    (piece,) = formats.read_pieces(io.BytesIO(packed), formats.CSV, "zstd", schema)
    assert [record.reason for record in piece.bad] == [
        "unreadable file: its zstd window is too large: compress it without --long"
    ]
