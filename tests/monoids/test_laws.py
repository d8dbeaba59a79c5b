"""Every monoid keeps the laws, and the check of the laws finds those that do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

import monoids
from monoids import Count, Group, List, Map, Max, Min, Monoid, MonoidError, Struct, Sum, Tuple
from tests.monoids.laws import check_laws, pickled

INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), -1, 0, 1, 2**63 - 1])
ORDERED = {
    "int64": (pa.int64(), INT64),
    "float64": (pa.float64(), st.floats(allow_nan=False)),
    "decimal": (pa.decimal128(38, 4), st.integers(1 - 10**38, 10**38 - 1).map(lambda n: Decimal(f"{n}E-4"))),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=5)),
    "binary": (pa.binary(), st.binary(max_size=5)),
    "date": (pa.date32(), st.dates() | st.sampled_from([date.min, date.max])),
    "instant": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(timezone.utc))),
    "local": (pa.timestamp("us"), st.datetimes() | st.sampled_from([datetime.min, datetime.max])),
    "time": (pa.time64("us"), st.times() | st.just(time.max)),
    "duration": (pa.duration("us"), st.timedeltas(timedelta(microseconds=-(2**63)), timedelta(microseconds=2**63 - 1))),
}
SMALL = st.integers(-9, 9)
SHORT = st.lists(SMALL, max_size=2)
FEW = st.sampled_from(["", "a", "b", "ü"])
CENTS = st.integers(-(10**35), 10**35).map(lambda n: Decimal(f"{n}E-2"))
NESTED = Map(
    pa.string(), Struct(least=Min(pa.timestamp("us", "UTC")), days=Map(pa.date32(), Sum()), log=List(pa.string()))
)
NESTED_VALUES = st.dictionaries(
    FEW,
    st.fixed_dictionaries(
        {
            "least": st.none() | ORDERED["instant"][1],
            "days": st.dictionaries(st.sampled_from([date.min, date(1970, 1, 1), date.max]), INT64),
            "log": st.lists(st.none() | FEW, max_size=2),
        }
    ),
    max_size=3,
)


def nearly(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(nearly, a, b))
    return a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6)


@pytest.mark.parametrize("type", ORDERED)
@pytest.mark.parametrize("extreme", [Min, Max])
def test_min_and_max_keep_the_laws_for_every_ordered_type(extreme: type[Min] | type[Max], type: str) -> None:
    arrow_type, values = ORDERED[type]
    check_laws(extreme(arrow_type), values, examples=25)


@pytest.mark.parametrize("type", ORDERED)
def test_lists_and_maps_keep_the_laws_for_every_type(type: str) -> None:
    arrow_type, values = ORDERED[type]
    check_laws(List(arrow_type), st.lists(st.none() | values, max_size=3), examples=15)
    check_laws(Map(arrow_type, Count()), st.dictionaries(values, SMALL, max_size=3), examples=15)


@pytest.mark.parametrize(
    ("monoid", "values"),
    [
        (Sum(), INT64),
        (Count(), INT64),
        (Sum(pa.decimal128(38, 2)), CENTS),
        (Tuple(Sum(), Max(pa.string())), st.tuples(INT64, st.none() | FEW)),
        (Struct(n=Count(), last=Max(pa.date32())), st.fixed_dictionaries({"n": SMALL, "last": st.none() | st.dates()})),
        (Map(pa.int64(), Min()), st.dictionaries(SMALL, st.none() | INT64, max_size=4)),
        (Map(pa.string(), List(pa.int64())), st.dictionaries(FEW, st.lists(SMALL, max_size=2), max_size=3)),
        (Map(pa.string(), Map(pa.bool_(), Sum())), st.dictionaries(FEW, st.dictionaries(st.booleans(), INT64))),
        (List(pa.list_(pa.int64())), st.lists(st.none() | st.lists(st.none() | SMALL, max_size=2), max_size=3)),
        (
            List(pa.struct([("at", pa.timestamp("us", "UTC")), ("tags", pa.map_(pa.string(), pa.int64()))])),
            st.lists(
                st.fixed_dictionaries(
                    {
                        "at": st.none() | ORDERED["instant"][1],
                        "tags": st.none() | st.dictionaries(FEW, st.none() | SMALL),
                    }
                ),
                max_size=3,
            ),
        ),
        (NESTED, NESTED_VALUES),
    ],
    ids=repr,
)
def test_a_monoid_keeps_the_laws(monoid: Monoid[Any], values: st.SearchStrategy[Any]) -> None:
    check_laws(monoid, values)


def test_sums_of_floats_keep_the_laws_up_to_the_last_digits() -> None:
    floats = st.floats(-1e6, 1e6)
    check_laws(Sum(pa.float64()), floats, nearly)
    check_laws(Tuple(Sum(pa.float64()), Count()), st.tuples(floats, SMALL), nearly)


class Product(Monoid[int]):
    type = pa.int64()
    zero = 1

    def plus(self, a: int, b: int) -> int:
        return a * b


class Bits(Monoid[frozenset[int]]):
    """A value that is no Arrow value: kept as a list."""

    type = pa.list_(pa.int64())
    zero: frozenset[int] = frozenset()

    def plus(self, a: frozenset[int], b: frozenset[int]) -> frozenset[int]:
        return a | b

    def to_arrow(self, values: Any) -> Any:
        return super().to_arrow([None if value is None else sorted(value) for value in values])  # type: ignore[misc]

    def from_arrow(self, array: Any) -> Any:
        return [None if value is None else frozenset(value) for value in super().from_arrow(array)]


def test_a_monoid_of_five_lines_keeps_the_laws() -> None:
    check_laws(Product(), st.sampled_from([-1, 0, 1, 2]))
    assert Product().identity == {"name": "Product", "parameters": {}, "type": "int64"}


def test_a_monoid_may_keep_its_values_in_its_own_way_also_within_others() -> None:
    sets = st.frozensets(SMALL, max_size=3)
    check_laws(Bits(), sets)
    check_laws(Map(pa.string(), Bits()), st.dictionaries(FEW, sets, max_size=3))
    check_laws(Struct(bits=Bits()), st.fixed_dictionaries({"bits": sets}))


class Difference(Sum[int]):
    def plus(self, a: int, b: int) -> int:
        return a - b


class Average(Monoid[float]):
    type = pa.float64()
    zero = 0.0

    def plus(self, a: float, b: float) -> float:
        return a if b == self.zero else b if a == self.zero else (a + b) / 2


class FromOne(Sum[int]):
    @property
    def zero(self) -> int:
        return 1


class Growing(List):
    def plus(self, a: list[Any], b: list[Any]) -> list[Any]:
        a.extend(b)
        return a


class Commuting(List):
    commutative = True


class HalfInverse(Sum[int]):
    def minus(self, a: int, b: int) -> int:
        return a


class OffByOne(Sum[int]):
    def reduce(self, values: Any, starts: Any) -> Any:
        return super().reduce(values[:-1], np.minimum(starts, len(values) - 2)) if len(values) > 1 else values


class WholeBuffer(Sum[int]):
    def reduce(self, values: Any, starts: Any) -> Any:
        unsliced = np.frombuffer(values.buffers()[1], np.int64) if len(values) else np.zeros(0, np.int64)
        return super().reduce(pa.array(unsliced[: len(values)]), starts)


class Unordered(List):
    commutative = False

    def reduce(self, values: Any, starts: Any) -> Any:
        return self.to_arrow([sorted(value) for value in self.from_arrow(super().reduce(values, starts))])


class Lossy(Sum[int]):
    def from_arrow(self, array: Any) -> Any:
        return [None if value is None else value % 7 for value in super().from_arrow(array)]


class Unreadable(Sum[int]):
    @property
    def parameters(self) -> dict[str, Any]:
        return {"type": self.type}


@pytest.mark.parametrize(
    ("broken", "values", "law"),
    [
        (Difference, SMALL, "associativity"),
        (Average, st.floats(1, 100), "associativity"),
        (FromOne, SMALL, "identity"),
        (lambda: Growing(pa.int64()), SHORT, "mutation"),
        (lambda: Commuting(pa.int64()), SHORT, "commutativity"),
        (HalfInverse, SMALL, "inverse"),
        (OffByOne, SMALL, "reduce"),
        (WholeBuffer, SMALL, "reduce: not the fold"),
        (lambda: Unordered(pa.int64()), SHORT, "reduce"),
        (Lossy, SMALL, "round trip"),
        (Unreadable, SMALL, "JSON"),
    ],
)
def test_the_laws_catch_a_broken_monoid(broken: Callable[[], Monoid[Any]], values: Any, law: str) -> None:
    with pytest.raises((AssertionError, TypeError), match=law):
        check_laws(broken(), values)


@pytest.mark.parametrize(
    "monoid", [Sum(), Sum(pa.decimal128(38, 2)), Min(pa.string()), NESTED, Tuple(Count())], ids=repr
)
def test_a_monoid_reaches_other_processes(monoid: Monoid[Any]) -> None:
    assert pickled(monoid).identity == monoid.identity
    assert pickled(monoid).type == monoid.type


def test_the_public_names() -> None:
    assert sorted(monoids.__all__) == [
        "Count",
        "Group",
        "List",
        "Map",
        "Max",
        "Min",
        "Monoid",
        "MonoidError",
        "Struct",
        "Sum",
        "Tuple",
        "from_identity",
    ]
    assert issubclass(MonoidError, Exception)
    assert issubclass(Sum, Group)
    assert issubclass(Count, Group)
