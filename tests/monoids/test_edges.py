"""What monoids do at the edges of their types, and with parts that are missing."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Count, List, Map, Max, Min, Monoid, MonoidError, Struct, Sum, Tuple

LOWEST, HIGHEST = -(2**63), 2**63 - 1
WHOLE = Sum(pa.decimal128(38, 0))
CENTS = Sum(pa.decimal128(38, 2))
LARGEST, SMALLEST = Decimal("9" * 38), Decimal("-" + "9" * 38)


def total(monoid: Monoid[Any], values: list[Any]) -> Any:
    return monoid.from_arrow(monoid.reduce(monoid.to_arrow(values), np.zeros(1, np.int64)))[0]


@pytest.mark.parametrize("monoid", [Sum(), Count()])
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([HIGHEST, 1], LOWEST),
        ([LOWEST, -1], HIGHEST),
        ([HIGHEST] * 3, HIGHEST - 2),
        ([HIGHEST, 1, LOWEST, LOWEST], LOWEST),
    ],
)
def test_integers_are_added_modulo_2_to_the_64(monoid: Sum[int], values: list[int], expected: int) -> None:
    assert total(monoid, values) == expected
    assert reduce(monoid.plus, values) == expected
    assert monoid.minus(monoid.plus(LOWEST, LOWEST), LOWEST) == LOWEST


def test_totals_beyond_64_bits_are_exact_as_decimals() -> None:
    assert total(WHOLE, [HIGHEST] * 10) == 10 * HIGHEST
    assert WHOLE.plus(Decimal(HIGHEST), Decimal(HIGHEST)) == 2 * HIGHEST


@pytest.mark.parametrize(
    "values",
    [[LARGEST, Decimal(1)], [SMALLEST, Decimal(-1)], [LARGEST] * 2, [LARGEST] * 4, [SMALLEST] * 4, [LARGEST] * 40],
)
def test_a_sum_of_more_than_38_digits_is_an_error(values: list[Decimal]) -> None:
    sentence = r"Sum: a sum has more digits than decimal128\(38, 0\) holds. Use fewer after the point."
    with pytest.raises(MonoidError, match=sentence):
        total(WHOLE, values)
    with pytest.raises(MonoidError, match=sentence):
        reduce(WHOLE.plus, values)
    with pytest.raises(MonoidError, match=sentence):
        WHOLE.minus(values[0], values[1].copy_negate())


@pytest.mark.parametrize(
    "text", ["1e-3", "1e-41", "1e-77", "1e-999999999", "1e37", "1e999999999", "NaN", "sNaN", "-Infinity"]
)
def test_a_decimal_that_is_not_exactly_one_of_the_type_does_not_fit(text: str) -> None:
    with pytest.raises(MonoidError, match=r"does not fit decimal128\(38, 2\), which takes decimals of 38 digits"):
        CENTS.to_arrow([Decimal(text)])


def test_zeros_after_the_point_may_be_many() -> None:
    exact = [Decimal("1." + "0" * 60), Decimal("0e-999999999"), Decimal("-0e-50")]
    assert CENTS.to_arrow(exact).to_pylist() == [1, 0, 0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(10**36), 10**36) | st.integers(1 - 10**38, 10**38 - 1), min_size=1), st.data())
def test_decimals_of_38_digits_are_added_as_integers_are(units: list[int], data: st.DataObject) -> None:
    padding = data.draw(st.integers(0, 2))
    column = CENTS.to_arrow([Decimal(f"{unit}E-2") for unit in [1] * padding + units])[padding:]
    starts = np.array(sorted(data.draw(st.sets(st.integers(0, len(units) - 1))) | {0}), np.int64)
    expected = [sum(units[i:j]) for i, j in zip(starts, [*starts[1:], len(units)], strict=True)]
    if all(abs(unit) < 10**38 for unit in expected):
        assert CENTS.from_arrow(CENTS.reduce(column, starts)) == [Decimal(f"{unit}E-2") for unit in expected]
    else:
        with pytest.raises(MonoidError):
            CENTS.reduce(column, starts)


def test_decimals_of_38_digits_are_added_one_by_one_without_rounding() -> None:
    for largest in (LARGEST, SMALLEST):
        assert WHOLE.plus(WHOLE.zero, largest) == largest
        assert WHOLE.minus(largest, WHOLE.zero) == largest
    assert WHOLE.plus(LARGEST, SMALLEST) == 0
    assert WHOLE.plus(LARGEST, Decimal(-1)) == WHOLE.minus(LARGEST, Decimal(1)) == Decimal("9" * 37 + "8")


def test_a_sum_beyond_all_floats_is_infinite() -> None:
    column = pa.array([1e308, 1e308])
    assert Sum(pa.float64()).reduce(column, np.zeros(1, np.int64)).to_pylist() == [float("inf")]
    assert Sum(pa.float64()).plus(1e308, 1e308) == float("inf")


@pytest.mark.parametrize("monoid", [Min(pa.float64()), Max(pa.float64())])
def test_the_two_zeros_of_floats_are_one_value(monoid: Monoid[Any]) -> None:
    for column in (monoid.to_arrow([-0.0, 0.0]), monoid.cast(pa.array([-0.0, 0.0], pa.float32()))[0]):
        assert np.signbit(column.to_numpy()).tolist() == [False, False]


def test_the_least_and_the_greatest_instants_are_those_of_the_years_1_and_9999() -> None:
    moments = [datetime(2013, 1, 1), datetime.min, datetime.max]
    utc = [moment.replace(tzinfo=timezone.utc) for moment in moments]
    assert total(Min(pa.timestamp("us", "UTC")), utc) == utc[1]
    assert total(Max(pa.timestamp("us", "UTC")), utc) == utc[2]
    assert total(Map(pa.timestamp("us"), Max(pa.date32())), [{moment: moment.date()} for moment in moments]) == {
        datetime.min: date.min,
        datetime(2013, 1, 1): date(2013, 1, 1),
        datetime.max: date.max,
    }


@pytest.mark.parametrize(
    ("given_type", "kept"),
    [
        (pa.int8(), pa.int64()),
        (pa.uint64(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(38, 2)),
        (pa.decimal256(60, 2), pa.decimal128(38, 2)),
    ],
)
def test_sums_of_one_kind_of_number_are_one_monoid(given_type: pa.DataType, kept: pa.DataType) -> None:
    assert Sum(given_type).identity == Sum(kept).identity == {"name": "Sum", "parameters": {}, "type": str(kept)}
    assert Min(given_type).type == kept


@pytest.mark.parametrize(
    ("given_type", "kept"),
    [
        (pa.large_string(), pa.string()),
        (pa.binary(3), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.time32("ms"), pa.time64("us")),
        (pa.duration("s"), pa.duration("us")),
    ],
)
def test_extremes_keep_one_type_of_a_kind(given_type: pa.DataType, kept: pa.DataType) -> None:
    assert Min(given_type).type == kept
    assert Map(given_type, Count()).type == pa.map_(kept, pa.int64())


def test_monoids_that_differ_in_a_part_differ_in_identity() -> None:
    every = [
        Sum(),
        Count(),
        Min(),
        Max(),
        Min(pa.string()),
        Tuple(Min()),
        Tuple(Max()),
        Struct(a=Min()),
        Struct(a=Max()),
        Struct(b=Min()),
        Map(pa.string(), Min()),
        Map(pa.string(), Max()),
        Map(pa.int64(), Min()),
        List(pa.int64()),
        List(pa.string()),
    ]
    assert len({str(monoid.identity) for monoid in every}) == len(every)
    assert Map(pa.string(), Struct(n=Count())).identity == {
        "name": "Map",
        "type": "map<string, struct<n: int64>>",
        "parameters": {
            "key": "string",
            "value": {
                "name": "Struct",
                "type": "struct<n: int64>",
                "parameters": {"n": {"name": "Count", "type": "int64", "parameters": {}}},
            },
        },
    }


def test_a_subclass_is_another_monoid_unless_it_says_its_name() -> None:
    class Total(Sum[int]):
        pass

    class Renamed(Sum[int]):
        name = "Sum"

    assert Total().identity["name"] == "Total"
    assert Renamed().identity == Sum().identity


def test_a_compound_commutes_and_is_exact_when_all_its_parts_do_and_are() -> None:
    floats, texts = Sum(pa.float64()), List(pa.string())
    for compound in (lambda part: Tuple(Sum(), part), lambda part: Struct(a=part), lambda part: Map(pa.string(), part)):
        assert [compound(part).exact for part in (Sum(), floats, texts)] == [True, False, True]
        assert [compound(part).commutative for part in (Sum(), floats, texts)] == [True, True, False]


def test_plus_takes_a_missing_part_for_its_zero() -> None:
    both = Struct(n=Count(), at=Max(), log=List(pa.string()))
    assert both.plus({"n": 1}, {"at": 2, "n": None}) == {"n": 1, "at": 2, "log": []}
    assert Tuple(Count(), Max()).plus((None, 1), (2, None)) == (2, 1)
    assert Map(pa.string(), Count()).plus({"a": None}, {"b": None}) == {"a": 0, "b": 0}
    with pytest.raises(MonoidError, match=r"Struct: unknown field 'm': value=\{'m': 1\} does not fit"):
        both.plus({"n": 1}, {"m": 1})


def test_a_segment_whose_parts_are_all_missing_comes_to_the_zero() -> None:
    struct = Struct(least=Min(), n=Count())
    column = struct.to_arrow([{"n": 1}, {"n": 2}, {"least": 5}, {"least": 4}, {}])
    reduced = struct.reduce(column, np.array([0, 2, 4]))
    assert struct.from_arrow(reduced) == [{"least": None, "n": 3}, {"least": 4, "n": 0}, {"least": None, "n": 0}]
    assert total(Tuple(Min()), [(None,), (None,)]) == (None,)
    nulls = pa.array([{"least": None, "n": None}, {"least": None, "n": 2}, {"least": None, "n": None}], struct.type)
    assert struct.reduce(nulls, np.array([0, 2])).to_pylist() == [{"least": None, "n": 2}, {"least": None, "n": 0}]


def test_a_map_is_one_column_in_whatever_order_it_was_written() -> None:
    counts = Map(pa.string(), Count())
    written = [{"b": 1, "a": 2, "ü": 3, "B": 4}, {}]
    assert counts.to_arrow(written).equals(counts.to_arrow([dict(sorted(written[0].items())), {}]))
    backwards = pa.array([[("b", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    assert counts.cast(backwards)[0].equals(counts.to_arrow([{"a": 2, "b": 1}]))


def test_a_key_stays_in_a_map_when_its_value_comes_to_the_zero() -> None:
    counts = Map(pa.string(), Count())
    assert counts.plus({"a": 1}, {"a": -1}) == {"a": 0}
    assert total(counts, [{"a": 1}, {"a": -1}]) == {"a": 0}


def test_lists_within_maps_are_put_together_in_order() -> None:
    logs = Map(pa.string(), List(pa.int64()))
    assert total(logs, [{"b": [1]}, {"a": [2], "b": [3, 1]}, {"b": [0]}]) == {"a": [2], "b": [1, 3, 1, 0]}
