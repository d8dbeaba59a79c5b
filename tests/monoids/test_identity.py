"""A monoid comes back from its identity as it was, by itself or within others, and nothing else does."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monoids import Count, List, Map, Max, Min, Monoid, MonoidError, Struct, Sum, Tuple, from_identity
from monoids.strategies import items, values
from monoids.types import parse_type
from tests.monoids.catalogue import ORDERED
from tests.monoids.test_laws import Bits, Xor

TYPES = st.sampled_from(list(ORDERED.values()))
NUMBERS = st.sampled_from([pa.int64(), pa.float64(), pa.decimal128(38, 0), pa.decimal128(38, 9)])
NAMES = st.sampled_from(["a", "b", "total", "self", "größe", "a b", "a: int64", "x, y"]) | st.text(
    min_size=1, max_size=3
)
CLEAN_NAMES = st.text("abc_ü 1", min_size=1, max_size=3)
OWN = (Xor(), Bits())

ITEMS = st.recursive(
    TYPES,
    lambda types: (
        types.map(pa.list_)
        | st.dictionaries(CLEAN_NAMES, types, min_size=1, max_size=3).map(
            lambda fields: pa.struct(list(fields.items()))
        )
        | st.builds(pa.map_, TYPES, types)
    ),
    max_leaves=4,
)
MONOIDS: st.SearchStrategy[Monoid[Any]] = st.recursive(
    st.just(Count())
    | st.builds(Sum, NUMBERS)
    | st.builds(Min, TYPES)
    | st.builds(Max, TYPES)
    | st.builds(List, ITEMS)
    | st.sampled_from(OWN),
    lambda parts: (
        st.builds(Map, TYPES, parts)
        | st.dictionaries(NAMES, parts, min_size=1, max_size=4).map(lambda named: Struct(**named))
        | st.lists(parts, min_size=1, max_size=12).map(lambda some: Tuple(*some))
    ),
    max_leaves=6,
)


def as_the_log_keeps_it(monoid: Monoid[Any]) -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(json.dumps(monoid.identity, sort_keys=True))
    return kept


@given(ITEMS)
def test_a_type_comes_back_from_its_name(type: pa.DataType) -> None:
    assert parse_type(str(type)) == type


@given(MONOIDS, st.data())
def test_a_monoid_comes_back_from_its_identity_and_folds_alike(monoid: Monoid[Any], data: st.DataObject) -> None:
    again = from_identity(as_the_log_keeps_it(monoid), OWN)
    assert again.identity == monoid.identity
    assert again.type == monoid.type
    assert type(again) is type(monoid)
    assert (again.commutative, again.exact) == (monoid.commutative, monoid.exact)
    assert again.zero == monoid.zero
    column = monoid.to_arrow([data.draw(value_of(monoid.type, monoid)) for _ in range(4)])
    starts = np.array([0, 1], np.int64)
    assert again.reduce(column, starts).equals(monoid.reduce(column, starts))


def value_of(type: pa.DataType, monoid: Monoid[Any] | None = None) -> st.SearchStrategy[Any]:
    """A small value of a monoid, or of a type."""
    if isinstance(monoid, (Struct, Tuple)):
        fields = [value_of(part.type, part) for part in monoid.monoids.values()]
        made = st.tuples(*fields)
        return (
            made
            if isinstance(monoid, Tuple)
            else made.map(lambda fields: dict(zip(monoid.monoids, fields, strict=True)))
        )
    if isinstance(monoid, Map):
        return st.dictionaries(value_of(type.key_type), value_of(type.item_type, monoid.monoid), max_size=2)
    if isinstance(monoid, Bits):
        return st.frozensets(st.integers(-9, 9), max_size=2)
    if pa.types.is_decimal(type):
        return st.integers(-9, 9)  # no sum of which leaves the type
    return values(monoid) if isinstance(monoid, Sum) else items(type)


def test_parts_come_back_in_their_places() -> None:
    """Although JSON sorts them, and 10 before 2."""
    parts = [Count(), Max(), Min(), Sum(), *(Sum(pa.decimal128(38, scale)) for scale in range(8))]
    several = Tuple(*parts)
    again = from_identity(as_the_log_keeps_it(several))
    assert again.identity == several.identity
    named = Struct(z=Count(), a=Max(), m=Sum())
    assert from_identity(as_the_log_keeps_it(named)).type == named.type


@pytest.mark.parametrize(
    "identity",
    [
        Xor().identity,
        Map(pa.string(), Struct(n=Count(), xor=Xor())).identity,
        {**Sum().identity, "type": "int32"},
        {**Sum().identity, "parameters": {"modulo": 7}},
        {**Count().identity, "name": "monoids.Count"},
        {**Struct(a=Count(), b=Sum()).identity, "type": "struct<a: int64>"},
        {"name": "Struct", "parameters": {}, "type": "struct<>"},
        {"name": "Tuple", "parameters": {"1": Count().identity}, "type": "struct<1: int64>"},
        {"name": "List", "parameters": {}, "type": "int64"},
        {"name": "Sum", "parameters": None},
        {"name": "DecayedValue", "parameters": {"half_life": 10**30}, "type": "struct<at: int64, value: double>"},
        [],
        None,
    ],
    ids=str,
)
def test_what_is_not_known_is_asked_for(identity: dict[str, Any]) -> None:
    with pytest.raises(MonoidError, match=r"give|[Uu]pgrade"):
        from_identity(identity)


def test_a_monoid_of_the_user_comes_before_one_of_the_package() -> None:
    class Own(Sum[int]):
        name = "Sum"

    own = Own()
    found = from_identity(Tuple(Sum(), Sum(pa.float64())).identity, [own])
    assert isinstance(found, Tuple)
    assert found.monoids["0"] is own
    assert found.monoids["1"] is not own
