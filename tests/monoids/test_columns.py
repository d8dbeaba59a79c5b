"""What becomes a column of updates and what is refused: Python values, and columns of other types."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Average, Count, List, Map, Max, Min, Monoid, MonoidError, Set, Struct, Sum, TopK, Tuple

UTC = timezone.utc
BERLIN = timezone(timedelta(hours=2))
CENTS = Sum(pa.decimal128(38, 2))
INSTANT = Max(pa.timestamp("us", "UTC"))
MICROSECOND = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("monoid", "values", "expected"),
    [
        (Sum(), [1, None, np.int64(2), np.uint8(3), -(2**63), 2**63 - 1], [1, None, 2, 3, -(2**63), 2**63 - 1]),
        (Sum(pa.float64()), [1, np.float32(0.5), 2.5, 2**53, None], [1.0, 0.5, 2.5, 2.0**53, None]),
        (Max(pa.float64()), [float("inf"), float("-inf")], [float("inf"), float("-inf")]),
        (
            CENTS,
            [1, Decimal("2.5"), Decimal("3.500"), Decimal("1E+3")],
            [Decimal(n) for n in ("1", "2.5", "3.5", "1000")],
        ),
        (CENTS, [Decimal("9" * 36 + ".99"), -(10**36) + 1], [Decimal("9" * 36 + ".99"), Decimal("-" + "9" * 36)]),
        (Min(pa.binary()), [b"a", bytearray(b"b")], [b"a", b"b"]),
        (Min(pa.bool_()), [True, np.bool_(False)], [True, False]),
        (INSTANT, [datetime(2020, 1, 1, 2, tzinfo=BERLIN)], [datetime(2020, 1, 1, tzinfo=UTC)]),
        (INSTANT, [datetime(1, 1, 1, 2, tzinfo=BERLIN)], [datetime(1, 1, 1, tzinfo=UTC)]),
        (INSTANT, [datetime.max.replace(tzinfo=UTC)], [datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)]),
        (INSTANT, [pd.Timestamp("2020-01-01T00:00:00.000001Z")], [datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC)]),
        (
            Struct(a=Count(), b=Min()),
            [{}, {"a": None}, {"b": 1}, None],
            [{"a": 0, "b": None}] * 2 + [{"a": 0, "b": 1}, None],
        ),
        (Tuple(Count(), Min()), [(None, None), (1, 2)], [(0, None), (1, 2)]),
        (Map(pa.string(), Count()), [{"b": 1, "a": None}, {}, None], [{"a": 0, "b": 1}, {}, None]),
        (Map(pa.string(), Struct(a=Count())), [{"b": {}}, {"b": None}], [{"b": {"a": 0}}] * 2),
        (List(pa.int64()), [[1, None], [], None], [[1, None], [], None]),
    ],
    ids=repr,
)
def test_a_value_that_fits_is_kept_whole(monoid: Monoid[Any], values: list[Any], expected: list[Any]) -> None:
    column = monoid.to_arrow(values)
    column.validate(full=True)
    assert column.type == monoid.type
    assert monoid.from_arrow(column) == expected
    assert [type(value) for value in monoid.from_arrow(column)] == [type(value) for value in expected]


INT = "which takes integers of 64 bits."
FLOAT = "which takes floats, and integers to 2**53, no NaN"


@pytest.mark.parametrize(
    ("monoid", "value", "sentence"),
    [
        (Sum(), True, f"Sum: value=True does not fit int64, {INT}"),
        (Sum(), np.bool_(True), f"Sum: value={np.bool_(True)!r} does not fit int64, {INT}"),
        (Sum(), "5", f"Sum: value='5' does not fit int64, {INT}"),
        (Sum(), 1.0, f"Sum: value=1.0 does not fit int64, {INT}"),
        (Sum(), 1.5, f"Sum: value=1.5 does not fit int64, {INT}"),
        (Sum(), Decimal(1), f"Sum: value=Decimal('1') does not fit int64, {INT}"),
        (Sum(), 2**63, f"Sum: value=9223372036854775808 does not fit int64, {INT}"),
        (Sum(), -(2**63) - 1, f"Sum: value=-9223372036854775809 does not fit int64, {INT}"),
        (Sum(), "x" * 200, f"Sum: value='{'x' * 96}... does not fit int64, {INT}"),
        (Sum(), np.timedelta64(1, "s"), f"Sum: value={np.timedelta64(1, 's')!r} does not fit int64, {INT}"),
        (Count(), False, f"Count: value=False does not fit int64, {INT}"),
        (Sum(pa.float64()), float("nan"), f"Sum: value=nan does not fit double, {FLOAT} and no infinity."),
        (Sum(pa.float64()), float("-inf"), f"Sum: value=-inf does not fit double, {FLOAT} and no infinity."),
        (Sum(pa.float64()), True, f"Sum: value=True does not fit double, {FLOAT} and no infinity."),
        (Min(pa.float64()), float("nan"), f"Min: value=nan does not fit double, {FLOAT}."),
        (Min(pa.float64()), 2**53 + 1, f"Min: value=9007199254740993 does not fit double, {FLOAT}."),
        (CENTS, 1.5, "Sum: value=1.5 does not fit decimal128(38, 2), which takes decimals of 38 digits."),
        (CENTS, Decimal("0.001"), "value=Decimal('0.001') does not fit decimal128(38, 2)"),
        (CENTS, Decimal("NaN"), "value=Decimal('NaN') does not fit decimal128(38, 2)"),
        (CENTS, Decimal("Infinity"), "value=Decimal('Infinity') does not fit decimal128(38, 2)"),
        (CENTS, 10**36, f"value={10**36} does not fit decimal128(38, 2)"),
        (CENTS, False, "value=False does not fit decimal128(38, 2)"),
        (Min(pa.bool_()), 1, "Min: value=1 does not fit bool, which takes True and False."),
        (Min(pa.string()), b"x", "Min: value=b'x' does not fit string, which takes Unicode text."),
        (Min(pa.string()), "\ud800", "Min: value='\\ud800' does not fit string, which takes Unicode text."),
        (Min(pa.binary()), "x", "Min: value='x' does not fit binary, which takes bytes."),
        (Min(pa.date32()), datetime(2020, 1, 1), "does not fit date32[day], which takes dates."),
        (INSTANT, datetime(2020, 1, 1), "does not fit timestamp[us, tz=UTC], which takes datetimes with a zone."),
        (INSTANT, datetime(1, 1, 1, tzinfo=BERLIN), "does not fit timestamp[us, tz=UTC]"),
        (INSTANT, pd.Timestamp("2020-01-01T00:00:00.000000001Z"), "does not fit timestamp[us, tz=UTC]"),
        (INSTANT, pd.NaT, "Max: value=NaT does not fit timestamp[us, tz=UTC]"),
        (INSTANT, 0, "Max: value=0 does not fit timestamp[us, tz=UTC]"),
        (Min(pa.timestamp("us")), datetime(2020, 1, 1, tzinfo=UTC), "which takes datetimes without a zone."),
        (Min(pa.time64("us")), time(1, tzinfo=UTC), "does not fit time64[us], which takes times without a zone."),
        (Min(pa.duration("us")), timedelta.max, "does not fit duration[us], which takes timedeltas."),
        (List(pa.int64()), (1, 2), "List: value=(1, 2) does not fit list<item: int64>, which takes lists."),
        (List(pa.int64()), "ab", "List: value='ab' does not fit list<item: int64>, which takes lists."),
        (List(pa.int64()), [1, "b"], f"List: item: value='b' does not fit int64, {INT}"),
        (
            Struct(a=Sum()),
            {"b": 1},
            "Struct: unknown field 'b': value={'b': 1} does not fit struct<a: int64>, which takes dictionaries with",
        ),
        (
            Struct(a=Sum()),
            1,
            "Struct: value=1 does not fit struct<a: int64>, which takes dictionaries with the keys a.",
        ),
        (Struct(a=Sum()), {"a": True}, f"Struct: field 'a': Sum: value=True does not fit int64, {INT}"),
        (Tuple(Sum()), (1, 2), "Tuple: value=(1, 2) does not fit struct<0: int64>, which takes tuples of 1."),
        (Tuple(Sum()), [1], "Tuple: value=[1] does not fit struct<0: int64>, which takes tuples of 1."),
        (Map(pa.string(), Sum()), {1: 1}, "Map: key: value=1 does not fit string, which takes Unicode text."),
        (Map(pa.string(), Sum()), {"a": 1.5}, f"Map: value: Sum: value=1.5 does not fit int64, {INT}"),
        (Map(pa.string(), Sum()), {None: 1}, "Map: value={None: 1} does not fit map<string, int64>, which takes"),
        (Map(pa.float64(), Sum()), {float("nan"): 1}, f"Map: key: value=nan does not fit double, {FLOAT}."),
        (Map(pa.string(), Sum()), [("a", 1)], "Map: value=[('a', 1)] does not fit map<string, int64>"),
    ],
    ids=repr,
)
def test_a_value_that_does_not_fit_is_named(monoid: Monoid[Any], value: Any, sentence: str) -> None:
    good = monoid.zero
    with pytest.raises(MonoidError) as raised:
        monoid.to_arrow([good, None, value, good])
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Sum(pa.string()), "Sum: type=string is not a number. Use an integer, float or decimal type."),
        (lambda: Sum(pa.bool_()), "Sum: type=bool is not a number. Use an integer, float or decimal type."),
        (lambda: Sum(int), "Sum: type=<class 'int'> is not a primitive Arrow type. Use one such as pa.int64() or"),
        (lambda: Sum(pa.decimal256(60, 50)), "Sum: type=decimal256(60, 50) has a scale out of 0 to 38."),
        (lambda: Sum(pa.decimal128(10, -2)), "Sum: type=decimal128(10, -2) has a scale out of 0 to 38."),
        (lambda: Min(pa.list_(pa.int64())), "Min: type=list<item: int64> is not a primitive Arrow type."),
        (lambda: Min(pa.null()), "Min: type=null is not a primitive Arrow type."),
        (lambda: Map(pa.list_(pa.int64()), Sum()), "Map: type=list<item: int64> is not a primitive Arrow type."),
        (lambda: Map(pa.string(), Sum), "Map: monoid=<class 'monoids.numeric.Sum'> is not a monoid. Use an instance"),
        (lambda: Struct(a=Sum), "Struct: monoid=<class 'monoids.numeric.Sum'> is not a monoid. Use an instance"),
        (lambda: Tuple(1), "Tuple: monoid=1 is not a monoid. Use an instance, such as Sum()."),
        (lambda: Struct(), "Struct: there is no part. Give at least one."),
        (lambda: Tuple(), "Tuple: there is no part. Give at least one."),
        (lambda: List(pa.int32()), "List: type=int32 is not what monoids keep. Use int64."),
        (lambda: List(pa.dictionary(pa.int32(), pa.string())), "List: type=dictionary<"),
        (lambda: List(pa.struct([pa.field("a", pa.int64(), nullable=False)])), "Use struct<a: int64>."),
    ],
)
def test_a_monoid_that_can_not_be_is_refused(make: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(MonoidError) as raised:
        make()
    assert sentence in str(raised.value)


def ticks(type: pa.DataType, *values: int | None) -> Any:
    storage = pa.int64() if type.bit_width == 64 else pa.int32()
    return pa.array(values, storage).view(type)


SECOND_YEAR_1 = -62_135_596_800
SECOND_YEAR_10000 = 253_402_300_800


@pytest.mark.parametrize(
    ("monoid", "column", "expected", "bad"),
    [
        (Sum(), pa.array([1, None, -3], pa.int8()), [1, None, -3], []),
        (Sum(), pa.array([2**32 - 1], pa.uint32()), [2**32 - 1], []),
        (
            Sum(),
            pa.array([2**63 - 1, None, 2**63, 2**64 - 1, 0], pa.uint64()),
            [2**63 - 1, None, None, None, 0],
            [2, 3],
        ),
        (Sum(), pa.array([7, 2**63, None, 1], pa.uint64())[1:], [None, None, 1], [0]),
        (Sum(), pa.array([5, None, 5, 6]).dictionary_encode()[1:], [None, 5, 6], []),
        (Sum(), pa.array([2**63, 1], pa.uint64()).dictionary_encode(), [None, 1], [0]),
        (Sum(), pa.nulls(2), [None, None], []),
        (
            Sum(pa.float64()),
            pa.array([2**53, 2**53 + 1, -(2**53), -(2**60), None]),
            [2.0**53, None, -(2.0**53), None, None],
            [1, 3],
        ),
        (Sum(pa.float64()), pa.array([2**64 - 1, 3], pa.uint64()), [None, 3.0], [0]),
        (
            Sum(pa.float64()),
            pa.array([0.5, None, float("nan"), float("inf")], pa.float32()),
            [0.5, None, None, None],
            [2, 3],
        ),
        (Sum(pa.float64()), pa.array([np.float16(0.5), None, np.float16("nan")], pa.float16()), [0.5, None, None], [2]),
        (Min(pa.float64()), pa.array([0.5, None, float("nan"), float("inf")]), [0.5, None, None, float("inf")], [2]),
        (CENTS, pa.array([1, None, -(2**63)]), [Decimal(1), None, Decimal(-(2**63))], []),
        (CENTS, pa.array([2**64 - 1], pa.uint64()), [Decimal(2**64 - 1)], []),
        (
            Sum(pa.decimal128(38, 30)),
            pa.array([10**8 - 1, 10**8, None, -(10**8)]),
            [Decimal(10**8 - 1), None, None, None],
            [1, 3],
        ),
        (CENTS, pa.array([Decimal("1.5"), None], pa.decimal128(5, 1)), [Decimal("1.5"), None], []),
        (CENTS, pa.array([Decimal("1.5"), None], pa.decimal256(60, 1)), [Decimal("1.5"), None], []),
        (
            CENTS,
            pa.array([10**36, 10**36 - 1, -(10**36), None], pa.decimal128(38, 0)),
            [None, Decimal(10**36 - 1), None, None],
            [0, 2],
        ),
        (CENTS, pa.array([10**60, Decimal("9" * 36)], pa.decimal256(70, 0)), [None, Decimal("9" * 36)], [0]),
        (Min(pa.string()), pa.array(["a", None], pa.large_string()), ["a", None], []),
        (Min(pa.string()), pa.array(["a", None], pa.string_view()), ["a", None], []),
        (Min(pa.string()), pa.array(["b", "a", None, "b"]).dictionary_encode()[1:], ["a", None, "b"], []),
        (Min(pa.binary()), pa.array([b"abc", None], pa.binary(3)), [b"abc", None], []),
        (Min(pa.binary()), pa.array([b"abc", None], pa.large_binary()), [b"abc", None], []),
        (Min(pa.date32()), pa.array([date.min, date.max, None]), [date.min, date.max, None], []),
        (Min(pa.date32()), ticks(pa.date32(), 2**31 - 1, 0, -719_163), [None, date(1970, 1, 1), None], [0, 2]),
        (Min(pa.date32()), ticks(pa.date64(), 86_400_000, 1, None), [date(1970, 1, 2), None, None], [1]),
        (Min(pa.time64("us")), pa.array([time(1, 2, 3), None], pa.time32("s")), [time(1, 2, 3), None], []),
        (
            Min(pa.time64("us")),
            ticks(pa.time64("ns"), 1000, 1001, -1000, 86_400 * 10**9),
            [time(0, 0, 0, 1), None, None, None],
            [1, 2, 3],
        ),
        (Min(pa.duration("us")), ticks(pa.duration("s"), 1, 2**62, None), [timedelta(seconds=1), None, None], [1]),
        (
            Min(pa.duration("us")),
            ticks(pa.duration("s"), -(2**63 // 10**6)),
            [timedelta(seconds=-(2**63 // 10**6))],
            [],
        ),
        (Min(pa.duration("us")), ticks(pa.duration("s"), -(2**63 // 10**6) - 1), [None], [0]),
        (Min(pa.duration("us")), ticks(pa.duration("ns"), -1000, 1), [-MICROSECOND, None], [1]),
        (INSTANT, ticks(pa.timestamp("s", "Europe/Berlin"), 0, None), [datetime(1970, 1, 1, tzinfo=UTC), None], []),
        (
            INSTANT,
            ticks(
                pa.timestamp("s", "+05:00"),
                SECOND_YEAR_1,
                SECOND_YEAR_1 - 1,
                SECOND_YEAR_10000 - 1,
                SECOND_YEAR_10000,
                2**62,
            ),
            [datetime(1, 1, 1, tzinfo=UTC), None, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC), None, None],
            [1, 3, 4],
        ),
        (
            INSTANT,
            ticks(
                pa.timestamp("us", "UTC"), SECOND_YEAR_1 * 10**6, SECOND_YEAR_1 * 10**6 - 1, SECOND_YEAR_10000 * 10**6
            ),
            [datetime(1, 1, 1, tzinfo=UTC), None, None],
            [1, 2],
        ),
        (
            INSTANT,
            ticks(pa.timestamp("ns", "UTC"), -1000, -1),
            [datetime(1970, 1, 1, tzinfo=UTC) - MICROSECOND, None],
            [1],
        ),
        (Min(pa.timestamp("us")), ticks(pa.timestamp("ms"), 1), [datetime(1970, 1, 1, 0, 0, 0, 1000)], []),
        (
            List(pa.int64()),
            pa.array([[1], None, [], [2, None]], pa.large_list(pa.int8())),
            [[1], None, [], [2, None]],
            [],
        ),
        (List(pa.int64()), pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [[1, 2], None], []),
        (
            List(pa.int64()),
            pa.array([[9], [1, 2**63], None, [2], []], pa.list_(pa.uint64()))[1:],
            [None, None, [2], []],
            [0],
        ),
        (
            Struct(n=Count(), least=Min(pa.float64())),
            pa.array(
                [{"least": 1.5, "n": 1}, {"least": None, "n": None}, None, {"least": float("nan"), "n": 2}],
                pa.struct([("least", pa.float32()), ("n", pa.int16())]),
            ),
            [{"n": 1, "least": 1.5}, {"n": 0, "least": None}, None, None],
            [3],
        ),
        (Struct(n=Count(), m=Count()), pa.array([{"m": 2}, None]), [{"n": 0, "m": 2}, None], []),
        (Tuple(Sum(), Min()), pa.array([{"1": 2, "0": 1}, {"1": None, "0": None}]), [(1, 2), (0, None)], []),
        (
            Map(pa.string(), Count()),
            pa.array(
                [[("b", 1), ("a", None)], [("a", 1), ("b", 2), ("a", 3)], None, [], [("c", 2**63)]],
                pa.map_(pa.large_string(), pa.uint64()),
            ),
            [{"a": 0, "b": 1}, None, None, {}, None],
            [1, 4],
        ),
        (
            Map(pa.float64(), Count()),
            pa.array(
                [[(9.0, 9)], [(float("nan"), 1)], [(0.0, 1), (-0.0, 2)], [(1.5, 3)]], pa.map_(pa.float32(), pa.int64())
            )[1:],
            [None, None, {1.5: 3}],
            [0, 1],
        ),
        (
            Map(pa.string(), Struct(least=Min())),
            pa.array([[("a", {"least": None}), ("b", None)]], pa.map_(pa.string(), pa.struct([("least", pa.int32())]))),
            [{"a": {"least": None}, "b": {"least": None}}],
            [],
        ),
    ],
    ids=lambda value: repr(value).split(" object at ")[0],
)
def test_a_column_is_cast_to_updates_and_its_misfits_are_told(
    monoid: Monoid[Any], column: Any, expected: list[Any], bad: list[int]
) -> None:
    updates, mask = monoid.cast(column)
    updates.validate(full=True)
    assert updates.type == monoid.type
    assert mask.dtype == bool
    assert monoid.from_arrow(updates) == expected
    assert np.flatnonzero(mask).tolist() == bad
    assert updates.equals(monoid.to_arrow(expected))
    assert monoid.accepts(column.type)


def test_what_a_null_row_hides_is_not_bad() -> None:
    hidden, mask = pa.array([1, 2**63], pa.uint64()), pa.array([False, True])
    offsets = pa.array([0, 1, 2], pa.int32())
    for monoid, column, first in [
        (List(pa.int64()), pa.ListArray.from_arrays(offsets, hidden, mask=mask), [1]),
        (Struct(a=Sum()), pa.StructArray.from_arrays([hidden], ["a"], mask=mask), {"a": 1}),
        (Set(pa.int64()), pa.ListArray.from_arrays(offsets, pa.array([1, None]), mask=mask), frozenset([1])),
        (TopK(1, pa.int64()), pa.ListArray.from_arrays(offsets, pa.array([1, None]), mask=mask), [1]),
        (
            Average(),
            pa.StructArray.from_arrays([pa.array([1, -1]), pa.array([1.0, None])], ["n", "sum"], mask=mask),
            (1, 1.0),
        ),
        (Map(pa.string(), Sum()), pa.MapArray.from_arrays(offsets, ["k", "k"], hidden, mask=mask), {"k": 1}),
    ]:
        updates, bad = monoid.cast(column)
        assert monoid.from_arrow(updates) == [first, None]
        assert not bad.any()


def struct(*fields: tuple[str, Any]) -> Any:
    return pa.struct([pa.field(name, type) for name, type in fields])


@pytest.mark.parametrize(
    ("monoid", "types", "sentence"),
    [
        (
            Sum(),
            [
                pa.string(),
                pa.bool_(),
                pa.float64(),
                pa.decimal128(5, 0),
                pa.date32(),
                pa.duration("us"),
                pa.list_(pa.int64()),
            ],
            "Sum: a column of {} does not fit int64. Convert it, or choose another monoid.",
        ),
        (Sum(), [pa.dictionary(pa.int8(), pa.string())], "Sum: a column of string does not fit int64."),
        (
            Sum(),
            [pa.uuid(), pa.month_day_nano_interval(), pa.run_end_encoded(pa.int32(), pa.int64())],
            "Sum: a column of {} ",
        ),
        (Sum(pa.float64()), [pa.string(), pa.bool_(), pa.decimal128(5, 2)], "Sum: a column of {} does not fit double."),
        (
            CENTS,
            [pa.float64(), pa.bool_(), pa.decimal128(5, 3), pa.string()],
            "Sum: a column of {} does not fit decimal128(38, 2).",
        ),
        (Min(pa.string()), [pa.binary(), pa.int64()], "Min: a column of {} does not fit string."),
        (Min(pa.binary()), [pa.string()], "Min: a column of {} does not fit binary."),
        (Min(pa.bool_()), [pa.int8()], "Min: a column of {} does not fit bool."),
        (Min(pa.date32()), [pa.timestamp("us"), pa.int32()], "Min: a column of {} does not fit date32[day]."),
        (
            INSTANT,
            [pa.timestamp("us"), pa.date32(), pa.int64()],
            "Max: a column of {} does not fit timestamp[us, tz=UTC].",
        ),
        (Min(pa.timestamp("us")), [pa.timestamp("us", "UTC")], "Min: a column of {} does not fit timestamp[us]."),
        (
            List(pa.int64()),
            [pa.int64(), pa.map_(pa.string(), pa.int64())],
            "List: a column of {} does not fit list<item: int64>.",
        ),
        (List(pa.int64()), [pa.list_(pa.string())], "List: item: a column of string does not fit int64."),
        (
            Struct(a=Sum()),
            [
                struct(("b", pa.int64())),
                struct(("a", pa.int64()), ("b", pa.int64())),
                struct(*[("a", pa.int64())] * 2),
                pa.int64(),
            ],
            "Struct: a column of {} does not fit struct<a: int64>.",
        ),
        (
            Struct(a=Sum()),
            [struct(("a", pa.string()))],
            "Struct: field 'a': Sum: a column of string does not fit int64.",
        ),
        (
            Map(pa.string(), Sum()),
            [struct(("a", pa.int64())), pa.string()],
            "Map: a column of {} does not fit map<string, int64>.",
        ),
        (
            Map(pa.string(), Sum()),
            [pa.map_(pa.int64(), pa.int64())],
            "Map: key: a column of int64 does not fit string.",
        ),
        (
            Map(pa.string(), Sum()),
            [pa.map_(pa.string(), pa.string())],
            "Map: value: Sum: a column of string does not fit int64.",
        ),
    ],
    ids=repr,
)
def test_a_column_of_another_meaning_is_refused(monoid: Monoid[Any], types: list[Any], sentence: str) -> None:
    for type in types:
        assert not monoid.accepts(type)
        with pytest.raises(MonoidError) as raised:
            monoid.cast(pa.nulls(1, type))
        assert sentence.format(type) in str(raised.value)


INT32 = st.integers(-(2**31), 2**31 - 1)
SECONDS = st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.replace(microsecond=0))


@pytest.mark.parametrize(
    ("monoid", "type", "values"),
    [
        (Sum(), pa.int32(), INT32),
        (Sum(pa.float64()), pa.int32(), INT32),
        (Sum(pa.float64()), pa.float32(), st.floats(width=32, allow_nan=False, allow_infinity=False)),
        (
            Sum(pa.decimal128(38, 20)),
            pa.decimal128(30, 15),
            st.integers(-(10**30) + 1, 10**30 - 1).map(lambda n: Decimal(f"{n}E-15")),
        ),
        (Min(pa.string()), pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", ""])),
        (INSTANT, pa.timestamp("s", "America/New_York"), SECONDS),
        (List(pa.date32()), pa.large_list(pa.date64()), st.lists(st.none() | st.dates())),
        (
            Map(pa.int64(), Struct(n=Count(), at=INSTANT)),
            pa.map_(pa.int32(), struct(("at", pa.timestamp("s", "UTC")), ("n", pa.int8()))),
            st.dictionaries(INT32, st.fixed_dictionaries({"n": st.integers(-128, 127), "at": st.none() | SECONDS})),
        ),
    ],
    ids=repr,
)
def test_a_cast_column_equals_the_same_values_from_python(monoid: Monoid[Any], type: Any, values: Any) -> None:
    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.none() | values, min_size=1))
    def equal(updates: list[Any]) -> None:
        column, bad = monoid.cast(pa.array(updates, type)[1:])
        assert column.equals(monoid.to_arrow(updates[1:]))
        assert not bad.any()

    equal()


def test_monoids_need_neither_spark_nor_the_rest_of_the_library() -> None:
    heavy = "{'pyspark', 'pandas', 'hypothesis', 'persistent_state'}"
    program = f"import monoids, sys; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", program], check=True)
