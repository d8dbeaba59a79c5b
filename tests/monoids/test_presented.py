"""What summaries present of a whole column is what they present of each value, of the Arrow type that they say."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Aggregator, Average, Averaged, DecayedValue, Max, MonoidError, Set, Summary, TopK
from monoids.strategies import values
from tests.monoids.catalogue import CATALOGUE

SUMMARIES: list[Summary[Any, Any, Any]] = [
    *(monoid for monoid in CATALOGUE if isinstance(monoid, Summary)),
    *(Average(pa.decimal128(38, scale)) for scale in (0, 5, 38)),
]

FLOAT, INT, TEXT = pa.float64(), pa.int64(), pa.string()

PRESENTED: dict[str, pa.DataType] = {
    "Average(struct<n: int64, sum: double>)": FLOAT,
    "Average(struct<n: int64, sum: int64>)": FLOAT,
    "Average(struct<n: int64, sum: decimal128(38, 0)>)": pa.decimal128(38, 4),
    "Average(struct<n: int64, sum: decimal128(38, 2)>)": pa.decimal128(38, 6),
    "Average(struct<n: int64, sum: decimal128(38, 5)>)": pa.decimal128(38, 6),
    "Average(struct<n: int64, sum: decimal128(38, 38)>)": pa.decimal128(38, 38),
    "DecayedValue": FLOAT,
    "ExactSum": FLOAT,
    "Set": INT,
    "BloomFilter": FLOAT,
    "MinHash": FLOAT,
    "CountMin": INT,
    "HyperLogLog": FLOAT,
    "Theta": FLOAT,
    "KLL": pa.list_(FLOAT),
    "REQ": pa.list_(FLOAT),
    "FrequentItems": pa.list_(pa.struct([("item", TEXT), ("low", INT), ("high", INT)])),
    "VarOpt": pa.list_(pa.struct([("item", TEXT), ("weight", FLOAT)])),
}
"""By the name of the monoid, or all of its representation; others present themselves."""


def presented(monoid: Summary[Any, Any, Any]) -> pa.DataType:
    return PRESENTED.get(repr(monoid), PRESENTED.get(monoid.name, monoid.type))


def comparable(said: Any) -> Any:
    """What is said, so that 1 is not 1.0, NaN is itself, and a struct is its fields."""
    if isinstance(said, (tuple, list, dict)):
        return [comparable(part) for part in (said.values() if isinstance(said, dict) else said)]
    return type(said), said if isinstance(said, Decimal) else repr(said)


def kept(said: Any, type: pa.DataType) -> Any:
    """What is said, as a column has it: decimals are rounded, and None if there is no room for them."""
    if not isinstance(said, Decimal):
        return said
    rounded = said.quantize(Decimal(1).scaleb(-type.scale), context=Context(prec=80))
    return rounded if len(rounded.as_tuple().digits) <= 38 else None


@pytest.mark.parametrize("monoid", SUMMARIES, ids=repr)
def test_a_column_is_presented_as_its_values_are(monoid: Summary[Any, Any, Any]) -> None:
    kind = presented(monoid)
    assert monoid.presented == monoid.aggregator.type == kind

    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.none() | values(monoid), max_size=5))
    def holds(some: list[Any]) -> None:
        whole = monoid.to_arrow([None, monoid.zero, *some])
        for column in (whole, whole[1:], whole[:0]):
            said = monoid.present_column(column)
            if type(monoid).present is Summary.present:
                assert said is column
                continue
            each = [None if value is None else kept(monoid.present(value), kind) for value in monoid.from_arrow(column)]
            said.validate(full=True)
            assert said.type == kind
            assert comparable(said.to_pylist()) == comparable(each)
            assert comparable(monoid.aggregator.present_column(column).to_pylist()) == comparable(each)

    holds()


def test_what_is_said_of_floats_beyond_all_is_kept() -> None:
    parts = [(1, math.inf), (2, math.nan), (0, math.nan), (3, -math.inf)]
    column = pa.array(parts, Average().type)
    assert comparable(Average().present_column(column).to_pylist()) == comparable([math.inf, math.nan, None, -math.inf])
    column = pa.array(parts, DecayedValue(timedelta(hours=1)).type)
    said = DecayedValue(timedelta(hours=1)).present_column(column)
    assert comparable(said.to_pylist()) == comparable([math.inf, math.nan, math.nan, -math.inf])


def test_a_mean_of_integers_is_rounded_once() -> None:
    parts = [(n, total) for total in range(2**53 + 1, 2**62, 2**62 // 999) for n in (0, 1, 3, 7)]
    said = Average(pa.int64()).present_column(pa.array(parts, Average(pa.int64()).type))
    assert said.to_pylist() == [total / n if n else None for n, total in parts]


def test_a_null_hides_what_is_below_it() -> None:
    for monoid in (Average(), DecayedValue(timedelta(hours=1))):
        fields = [pa.array([1, 2]), pa.array([0.5, 1.0])]
        column = pa.StructArray.from_arrays(fields, fields=list(monoid.type), mask=pa.array([True, False]))
        assert monoid.present_column(column).is_valid().to_pylist() == [False, True]


def test_a_mean_of_decimals_is_rounded_and_null_where_there_is_no_room() -> None:
    cents = Average(pa.decimal128(38, 2))
    column = cents.to_arrow([Averaged(3, Decimal("2.00")), Averaged(1, Decimal("1E+33")), Averaged(7, Decimal(0))])
    assert cents.present_column(column).to_pylist() == [Decimal("0.666667"), None, Decimal(0)]


def test_an_aggregator_presents_columns_with_its_type() -> None:
    longest = Aggregator(len, Max(), lambda length: "*" * (length or 0), pa.string())
    column = pa.array([3, None, 1])
    assert longest.present_column(column).equals(pa.array(["***", None, "*"]))
    assert longest(["a", "word"]) == "****"


def test_an_aggregator_of_a_summary_presents_what_it_says_itself() -> None:
    average = Average()
    percent = Aggregator(average.of, average, lambda value: round(100 * (average.present(value) or 0.0)), pa.int64())
    column = average.to_arrow([average.of(0.25), None, average.zero])
    assert percent.present_column(column).equals(pa.array([25, None, 0]))
    narrow = Aggregator(average.of, average, average.present, pa.float32())
    assert narrow.present_column(column).equals(pa.array([0.25, None, None], pa.float32()))


def test_a_type_that_is_not_known_or_wrong_is_told() -> None:
    with pytest.raises(MonoidError, match=r"^Aggregator of Max\(int64\): type=None\. Give the .* as type=\.$"):
        Aggregator(len, Max(), str).present_column(pa.array([1]))
    with pytest.raises(MonoidError, match=r"^Max: present gives what is no int64: .*Give its Arrow type\.$"):
        Aggregator(len, Max(), "x".__mul__, pa.int64()).present_column(pa.array([1]))

    class Names(TopK):
        def present(self, value: list[Any]) -> Any:
            return ", ".join(value)

    names = Names(2, pa.string())
    column = names.to_arrow([["b", "a"]])
    assert names.presented is names.aggregator.type is None
    for told in (names, names.aggregator):
        with pytest.raises(MonoidError, match=r"^Names: presented=None\. Set it to the Arrow type"):
            told.present_column(column)

    class TypedNames(Names):
        presented = pa.string()

    assert TypedNames(2, pa.string()).present_column(column).equals(pa.array(["b, a"]))


def test_a_set_presents_how_many_also_of_a_slice() -> None:
    column = Set(pa.string()).to_arrow([frozenset("abc"), None, frozenset(), frozenset("a")])
    assert Set(pa.string()).present_column(column[1:]).equals(pa.array([None, 0, 1]))
