"""A value that is read as another type is what it was, or does not fit: judged against Python's own numbers and times."""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistent_state.sources.casts import cast, hopeless, plain_rows, plain_schema
from tests.hostile.texts import NUMBERS, TEXTS, TIMES

REFUSED = (pa.ArrowInvalid, pa.ArrowNotImplementedError)
UTC = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

FLOATS = st.floats(width=64) | st.sampled_from(
    [0.1, 0.5, 1e300, 1e-50, 2.0**53, 16777217.0, 12.345, 12.34, 1.0, 0.0, 2.0**-52]
)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**8) + 1, max_value=10**8 - 1)
TICKS = st.integers(-(10**18), 10**18) | st.sampled_from([0, -1, 86_400 * 10**6, 86_400 * 10**9, 1_500])

GIVEN: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1)
    | st.integers(-3, 300)
    | st.integers(2_040, 2_060)
    | st.integers(65_500, 65_520),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16),
    pa.float32(): st.floats(width=32) | st.floats(width=16),
    pa.float64(): FLOATS,
    pa.decimal128(10, 2): DECIMALS,
    pa.timestamp("s"): st.integers(-(10**9), 10**9),
    pa.timestamp("us"): TICKS,
    pa.timestamp("ns", "UTC"): TICKS,
    pa.timestamp("ms", "Europe/Oslo"): st.integers(-(10**12), 10**12),
    pa.date32(): st.integers(-10_000, 10_000),
}
"""By type: what may be given, times as their ticks."""

WANTED = [
    *GIVEN, pa.int32(), pa.decimal128(5, 1), pa.decimal256(60, 30), pa.decimal128(38, 0), UTC, pa.timestamp("ms"),
    pa.timestamp("ns"), pa.date64(), pa.time64("us"), pa.duration("us"),
]  # fmt: skip


def instant(column: pa.Array) -> Fraction:
    """Microseconds UTC of the only time in a column."""
    type = column.type
    if pa.types.is_date(type):
        return Fraction(column.cast(pa.date32()).cast(pa.int32())[0].as_py() * 86_400 * 10**6)
    return Fraction(
        column.cast(pa.int64())[0].as_py() * 10**6, {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[type.unit]
    )


@given(st.data(), st.sampled_from(list(GIVEN)), st.sampled_from(WANTED))
def test_no_number_and_no_time_changes_without_a_word(
    data: st.DataObject, given: pa.DataType, wanted: pa.DataType
) -> None:
    value = data.draw(GIVEN[given])
    is_time = pa.types.is_temporal(given)
    stored = pa.int32() if pa.types.is_date32(given) else pa.int64()
    before = pa.array([value], stored).cast(given) if is_time else pa.array([value], given)
    try:
        after = cast(before, wanted)
    except REFUSED:
        return
    assert after.type == wanted
    assert is_time == pa.types.is_temporal(wanted), "a number is no time"
    if is_time:
        unit = (
            Fraction(10**6, {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[wanted.unit])
            if pa.types.is_timestamp(wanted)
            else 1
        )
        exact = instant(before)
        assert instant(after) == (exact // unit) * unit
    else:
        came, made = before[0].as_py(), after[0].as_py()
        if isinstance(came, float) and not math.isfinite(came):
            assert str(made) == str(came)
        elif isinstance(came, Decimal) and isinstance(made, float):
            bits = 10 if wanted == pa.float16() else 23
            assert abs(Fraction(made) - Fraction(came)) <= abs(Fraction(came)) / 2**bits + Fraction(1, 2**25), (
                "the nearest"
            )
        elif isinstance(came, float) and isinstance(made, Decimal):
            assert {pa.float16(): np.float16, pa.float32(): np.float32}.get(given, float)(made) == came
            assert abs(came) < 2**24 or came % 1 or int(made) == int(came), "a whole number is that number"
        else:
            assert Fraction(int(made) if isinstance(made, bool) else made) == Fraction(came)


@pytest.mark.parametrize(
    ("values", "given", "wanted", "read"),
    [
        ([1, 0, None], pa.int64(), pa.bool_(), [True, False, None]),
        ([0.5, None], pa.float64(), pa.float32(), [0.5, None]),
        ([3.0], pa.float64(), pa.int64(), [3]),
        ([2048, 65504, None], pa.int64(), pa.float16(), [2048.0, 65504.0, None]),
        (["0.1", "65504", "inf"], pa.string(), pa.float16(), [0.0999755859375, 65504.0, math.inf]),
        ([0.1, 65504.0, None], pa.float16(), pa.float32(), [0.0999755859375, 65504.0, None]),
        ([0.1, 2.5], pa.float16(), pa.string(), ["0.0999755859375", "2.5"]),
        ([0.1, 2.5], pa.float16(), pa.decimal128(20, 15), [Decimal("0.099975585937500"), Decimal("2.5")]),
        ([True, False, None], pa.bool_(), pa.float16(), [1.0, 0.0, None]),
        ([1.0, 0.0], pa.float16(), pa.bool_(), [True, False]),
        ([True, None], pa.bool_(), pa.decimal128(3, 1), [Decimal(1), None]),
        ([Decimal(1), Decimal(0), None], pa.decimal128(10, 2), pa.bool_(), [True, False, None]),
        ([date(1, 1, 1), date(9999, 12, 31)], pa.date32(), pa.string(), ["0001-01-01", "9999-12-31"]),
        ([datetime(9999, 12, 31, 23, 59, 59)], UTC, pa.string(), ["9999-12-31 23:59:59.000000Z"]),
        ([None], pa.timestamp("ns"), pa.string(), [None]),
        ([12.34], pa.float64(), pa.decimal128(10, 2), [Decimal("12.34")]),
        ([date(2026, 1, 1)], pa.date32(), UTC, [datetime(2026, 1, 1, tzinfo=timezone.utc)]),
        ([datetime(2026, 1, 1)], pa.timestamp("ns"), pa.date32(), [date(2026, 1, 1)]),
        ([EPOCH - timedelta(microseconds=1)], UTC, pa.timestamp("ms", "UTC"), [EPOCH - timedelta(milliseconds=1)]),
        ([5, None], pa.int64(), pa.string(), ["5", None]),
        ([b"ab"], pa.binary(), pa.string(), ["ab"]),
        ([[1, 2], None, []], pa.list_(pa.int64()), pa.large_list(pa.int8()), [[1, 2], None, []]),
        ([[1, 2], None], pa.list_(pa.int64()), pa.list_(pa.int8(), 2), [[1, 2], None]),
        ([[1, 2], None], pa.list_view(pa.int64()), pa.list_(pa.int64()), [[1, 2], None]),
        ([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int8()), [[("a", 1)], None, []]),
        (
            [{"a": "2026-01-01", "b": [{"c": "2026-01-01T00:00:00.1234567Z"}]}, None],
            pa.struct({"a": pa.string(), "b": pa.list_(pa.struct({"c": pa.string()}))}),
            pa.struct({"b": pa.list_(pa.struct({"c": UTC, "d": pa.int64()})), "a": pa.date32()}),
            [{"b": [{"c": datetime(2026, 1, 1, 0, 0, 0, 123456, timezone.utc), "d": None}], "a": date(2026, 1, 1)}, None],
        ),
        ([{"a": 1}, None], pa.struct({"a": pa.int64()}), pa.struct([]), [{}, None]),
        (["09:05", "23:59:59.1234567", None], pa.string(), pa.time64("us"), [time(9, 5), time(23, 59, 59, 123456), None]),
        (["x", None], pa.dictionary(pa.int8(), pa.string()), pa.string(), ["x", None]),
        (["x", None], pa.string(), pa.dictionary(pa.int8(), pa.string()), ["x", None]),
    ],
)  # fmt: skip
def test_what_is_read(values: list[Any], given: pa.DataType, wanted: pa.DataType, read: list[Any]) -> None:
    column = pa.array([None, *values, None], given)
    for part in (column.slice(1, len(values)), pa.array(values, given)):
        made = cast(part, wanted)
        made.validate(full=True)
        assert (made.type, made.to_pylist()) == (wanted, read)


LIKELY = [
    "tRuE", "F", "yes", "0", "1", "-inf", "+Infinity", "nan", "NaN(1)", "-nan", "1e5", ".5", "5.", "+1", "2026-02-29",
    "2024-02-29", "2026-02-30", "2026-04-31", "2026-12-31", "2026-13-01", "2026-01-01T24", "2026-01-01 23:59:60",
    "2026-01-01T0900", "2026-01-01T090000", "2026-01-01 09-0330", "2026-01-01T09:00:00.5+01", "0000-01-01",
]  # fmt: skip


@settings(max_examples=100)
@given(
    TEXTS | TIMES | NUMBERS | st.sampled_from(LIKELY) | st.text("0123456789-+:.,TZz eEUTC", max_size=32),
    st.sampled_from([" ", "\xa0", ""]),
)
def test_a_text_that_can_be_read_is_never_hopeless(text: str, space: str) -> None:
    column = pa.array([f"{space}{text.encode(errors='replace').decode()}{space}", None])
    for type in (
        pa.int64(),
        pa.uint8(),
        pa.decimal128(38, 2),
        pa.date32(),
        UTC,
        pa.timestamp("ns"),
        pa.float64(),
        pa.bool_(),
    ):
        mask = hopeless(column, type)
        if mask is not None and mask[0].as_py():
            with pytest.raises(pa.ArrowInvalid):
                cast(column, type)
        assert mask is None or mask[1].as_py() is False


def test_texts_that_look_like_nothing_are_hopeless() -> None:
    column = pa.array(["soon", "01.02.2026", "1,5", "2026-01-01 09:00:00"])
    for text, type in [("1,5", pa.float32()), ("yes", pa.bool_()), ("2026-13-45", UTC), ("2026-02-30", pa.date32())]:
        assert hopeless(pa.array([text]), type)[0].as_py()
    for type, expected in {
        UTC: [1, 1, 1, 0],
        pa.int64(): [1, 1, 1, 1],
        pa.date32(): [1, 1, 1, 1],
        pa.string(): None,
    }.items():
        mask = hopeless(column, type)
        assert (None if mask is None else [int(one.as_py()) for one in mask]) == expected


def nested(type: pa.DataType) -> list[pa.DataType]:
    return [
        type,
        pa.struct({"x": type}),
        pa.list_(type),
        pa.large_list(pa.struct({"x": type})),
        pa.map_(pa.string(), type),
    ]


@pytest.mark.parametrize("level", range(5))
@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (UTC, pa.int64()),
        (pa.timestamp("ms"), pa.int64()),
        (pa.int64(), UTC),
        (pa.int32(), pa.date32()),
        (pa.date32(), pa.int32()),
        (pa.duration("us"), pa.int64()),
        (UTC, pa.time64("us")),
        (pa.binary(16), pa.string()),
        (pa.list_(pa.int64()), pa.int64()),
    ],
)
def test_types_that_never_fit_are_refused_at_every_level(given: pa.DataType, wanted: pa.DataType, level: int) -> None:
    with pytest.raises(pa.ArrowNotImplementedError):
        cast(pa.nulls(0, nested(given)[level]), nested(wanted)[level])


class Ticks(int):
    """A time that Python has not, as the number that Arrow has."""


def in_memory(value: Any, stored: pa.DataType, type: pa.DataType) -> pa.Array:
    """An array of a value, whose memory is taken for another type."""
    column = pa.array([value], stored)
    return column if type == stored else column.view(type)


@pytest.mark.parametrize("level", range(5))
@pytest.mark.parametrize(
    ("value", "given", "wanted"),
    [
        (2, pa.int64(), pa.bool_()),
        (float("nan"), pa.float32(), pa.bool_()),
        (0.1, pa.float64(), pa.float32()),
        (1e300, pa.float64(), pa.float32()),
        (1e-50, pa.float64(), pa.float32()),
        (2**53 + 1, pa.int64(), pa.float64()),
        (12.345, pa.float64(), pa.decimal128(10, 2)),
        (datetime(2026, 1, 1, 9), pa.timestamp("us"), pa.date32()),
        (b"\xff", pa.binary(), pa.string()),
        ("0x10", pa.string(), pa.int64()),
        ("1e300", pa.string(), pa.float32()),
        ("1e999", pa.string(), pa.float64()),
        ("2026-01-01T24:00:00Z", pa.string(), UTC),
        ("09:00:00+02:00", pa.string(), pa.time32("s")),
        ("9", pa.string(), pa.time32("s")),
        ("2026-01-01T00:00:00.1234567891Z", pa.string(), UTC),
        (2049, pa.int64(), pa.float16()),
        (65505, pa.int64(), pa.float16()),
        (0.1, pa.float32(), pa.float16()),
        (65520.0, pa.float64(), pa.float16()),
        ("65520", pa.string(), pa.float16()),
        (0.5, pa.float16(), pa.int64()),
        (0.5, pa.float16(), pa.bool_()),
        (Decimal("0.5"), pa.decimal128(3, 1), pa.bool_()),
        (Decimal(2), pa.decimal256(70, 1), pa.bool_()),
        (Ticks(2**63 - 1), pa.timestamp("us"), pa.string()),
        (Ticks(-(2**62)), UTC, pa.string()),
        (Ticks(2**62), pa.timestamp("ms", "Europe/Oslo"), pa.string()),
        (Ticks(-62_135_596_801), pa.timestamp("s"), pa.string()),
        (Ticks(253_402_300_800), pa.timestamp("s"), pa.large_string()),
        (Ticks(-719_163), pa.date32(), pa.string()),
        (Ticks(2**31 - 1), pa.date32(), pa.string()),
        (Ticks(2_932_897 * 86_400_000), pa.date64(), pa.string()),
        (Ticks(86_400), pa.time32("s"), pa.string()),
        (Ticks(-1), pa.time64("us"), pa.string()),
    ],
)
def test_values_that_do_not_fit_are_refused_at_every_level_but_not_under_a_null(
    value: Any, given: pa.DataType, wanted: pa.DataType, level: int
) -> None:
    whole = [value, {"x": value}, [value], [{"x": value}], [("k", value)]][level]
    stored = (pa.int32() if given.bit_width == 32 else pa.int64()) if isinstance(value, Ticks) else given
    with pytest.raises(pa.ArrowInvalid):
        cast(in_memory(whole, nested(stored)[level], nested(given)[level]), nested(wanted)[level])
    hidden = pa.StructArray.from_arrays([in_memory(value, stored, given)], names=["x"], mask=pa.array([True]))
    assert cast(hidden, pa.struct({"x": wanted})).to_pylist() == [None]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        (".1234567Z", 123_456),
        (".123456789", 123_456), (",25Z", 250_000), (",123456789+00:00", 123_456), ("z", 0), (" UTC", 0),
        ("UTC", 0),
        (".5 UTC", 500_000), (".999999999Z", 999_999), ("+00:00", 0), ("", 0), (" ", 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_read_as_people_write_them_and_cut_to_the_unit(text: str, micros: int, unit: str) -> None:
    given = f"1969-12-31T23:59:59{text}"
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    (ticks,) = cast(pa.array([given]), pa.timestamp(unit, "UTC")).cast(pa.int64()).to_pylist()
    assert ticks // max(1, per // 10**6) == (micros - 10**6) * per // 10**6 // max(1, per // 10**6)
    # A text that is read beside others is read as it is alone.
    beside = pa.array([given, "2026-01-01", None, "2026-01-01 00:00:00+01:00"])
    assert cast(beside, pa.timestamp(unit, "UTC")).cast(pa.int64())[0].as_py() == ticks


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (pa.string_view(), "a"),
        (pa.binary_view(), b"a"),
        (pa.list_view(pa.string_view()), ["a", "b"]),
        (pa.large_list_view(pa.int64()), [1, 2]),
        (pa.list_(pa.string_view(), 2), ["a", "b"]),
        (pa.large_list(pa.struct({"x": pa.binary_view()})), [{"x": b"a"}]),
        (pa.map_(pa.string_view(), pa.list_(pa.string_view())), [("a", ["b"])]),
        (pa.struct({"x": pa.string_view()}), {"x": "a"}),
    ],
)
def test_views_become_plain_at_every_level_and_can_be_picked_from(type: pa.DataType, value: Any) -> None:
    rows = pa.record_batch({"k": pa.array([None, value, value, None], type), "n": [0, 1, 2, 3]}).slice(1)
    plain = plain_rows(rows)
    assert plain.schema == plain_schema(rows.schema)
    assert "view" not in str(plain.schema)
    plain.validate(full=True)
    assert plain.to_pylist() == rows.to_pylist()
    assert plain.take(pa.array([2, 0])).to_pylist() == [{"k": None, "n": 3}, {"k": value, "n": 1}]


def test_a_dictionary_of_views_becomes_its_plain_values() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.int8()), pa.array(["a", "b"], pa.string_view()))
    (plain,) = plain_rows(pa.record_batch([column], ["k"])).columns
    assert plain.type == pa.string()
    assert plain.take(pa.array([2, 1])).to_pylist() == ["b", None]


@pytest.mark.parametrize(
    "type", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.field("element", pa.int64())), pa.uuid(), pa.json_(),
             pa.bool8(), pa.struct([])]
)  # fmt: skip
def test_a_plain_type_stays_what_it_is(type: pa.DataType) -> None:
    schema = pa.schema([pa.field("k", type, metadata={"a": "b"})], {"c": "d"})
    assert plain_schema(schema).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("type", "plain"),
    [
        (pa.list_(pa.field("element", pa.int64(), False)), pa.list_(pa.field("element", pa.int64()))),
        (pa.struct([pa.field("x", pa.dictionary(pa.int8(), pa.string()), False)]), pa.struct([("x", pa.string())])),
        (pa.map_(pa.string(), pa.field("value", pa.int64(), False)), pa.map_(pa.string(), pa.int64())),
    ],
)
def test_what_a_type_requires_may_be_null_but_for_the_keys_of_maps(type: pa.DataType, plain: pa.DataType) -> None:
    assert plain_schema(pa.schema([pa.field("k", type, False)])).equals(pa.schema([("k", plain)]))


def test_a_whole_number_is_a_decimal_of_as_few_digits_as_it_has() -> None:
    # pyarrow asks for ten digits for each int32.
    for type in (pa.int8(), pa.int32(), pa.int64(), pa.uint64()):
        made = cast(pa.array([99, None], type), pa.decimal128(5, 2))
        assert made.to_pylist() == [Decimal(99), None]
    with pytest.raises(pa.ArrowInvalid):
        cast(pa.array([1_000], pa.int32()), pa.decimal128(5, 2))
    assert cast(pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0)).to_pylist() == [2**64 - 1]


def test_a_decimal_is_the_nearest_float() -> None:
    texts = ["-17634992.49", "14216808.20", "0.01", "99999999.99"]
    column = pa.array([Decimal(text) for text in texts], pa.decimal128(10, 2))
    assert cast(column, pa.float64()).to_pylist() == [float(text) for text in texts]
    # Rounding to a double first, and then to a float, would give the next float.
    assert cast(pa.array([Decimal("16777217.0000000001")]), pa.float32()).to_pylist() == [16777218.0]
