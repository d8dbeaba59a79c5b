"""Decimals of CSV, JSON and Parquet are exactly what their texts say, or stand aside. `tests/hostile/` has worse texts."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.sources.formats import CSV, PARQUET, json_piece, read_pieces

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
