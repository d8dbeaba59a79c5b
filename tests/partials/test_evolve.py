"""Values whose type changes: fields are matched by name, and a value comes out alike whatever types it went through."""

from __future__ import annotations

import decimal
import itertools
from datetime import date, datetime, time, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.partials.evolve import as_type, differences, less, plain
from persistent_state.partials.type_names import name_of, type_named

LEAVES = [
    *(pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.date64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    *(pa.decimal128(5, 2), pa.decimal128(19), pa.decimal128(38, 10), pa.decimal256(76, 30), pa.decimal128(3, -2)),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp(unit, tz) for unit in ("s", "ms", "us", "ns") for tz in (None, "UTC", "Europe/Berlin")),
]

leaves = st.sampled_from(LEAVES)
names = st.sampled_from(["a", "b", "c", "two words"])


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from([pa.string(), pa.int16(), pa.int64()])
    return st.one_of(
        st.dictionaries(names, inner, max_size=3).map(lambda fields: pa.struct(list(fields.items()))),
        inner.map(pa.list_),
        st.builds(pa.map_, keys, inner),
    )


types = st.recursive(leaves, nested, max_leaves=5)
structs = st.dictionaries(names, types, max_size=4).map(lambda fields: pa.struct(list(fields.items())))


def wider(type: pa.DataType) -> st.SearchStrategy[Any]:
    """Types that values of a type may get."""
    if pt.is_struct(type):
        of_fields = {field.name: st.none() | wider(field.type) for field in type}
        kept = st.fixed_dictionaries(of_fields).map(lambda of: {name: each for name, each in of.items() if each})
        unused = names.filter(lambda name: name not in of_fields)
        new = st.dictionaries(unused, types, max_size=2) if len(of_fields) < 4 else st.just({})
        return st.builds(lambda kept, new: pa.struct(list({**new, **kept}.items())), kept, new)
    if pt.is_map(type):
        keys = [key for key in (pa.string(), pa.int16(), pa.int64()) if not misfits(type.key_type, key)]
        return st.builds(pa.map_, st.sampled_from(keys), wider(type.item_type))
    if pt.is_list(type):
        return wider(type.value_type).map(pa.list_)
    return st.sampled_from([leaf for leaf in LEAVES if not misfits(type, leaf)])


def values_of(type: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, some at the ends of what it has."""
    if pt.is_struct(type):
        found: Any = st.fixed_dictionaries({field.name: values_of(field.type) for field in type})
    elif pt.is_map(type):
        entries = st.dictionaries(
            values_of(type.key_type).filter(lambda key: key is not None), values_of(type.item_type)
        )
        found = entries.map(lambda entries: list(entries.items()))
    elif pt.is_list(type):
        found = st.lists(values_of(type.value_type), max_size=3)
    else:
        found = st.sampled_from(ends_of(type))
    return st.none() | found


def ends_of(type: pa.DataType) -> list[Any]:
    if pt.is_null(type):
        return [None]
    if pt.is_boolean(type):
        return [True, False]
    if pt.is_integer(type):
        bits = type.bit_width
        return [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1] if pt.is_signed_integer(type) else [0, 2**bits - 1]
    if pt.is_floating(type):
        return [0.1, -0.0, float("inf"), 1e-7]
    if pt.is_decimal(type):
        return [decimal.Decimal((sign, (9,) * type.precision, -type.scale)) for sign in (0, 1)]
    zone = timezone.utc if pt.is_timestamp(type) and type.tz else None
    if pt.is_timestamp(type) and type.unit == "ns":
        return [datetime(2262, 4, 11, tzinfo=zone), datetime(1677, 9, 22, tzinfo=zone)]
    if pt.is_duration(type) and type.unit == "ns":
        return [timedelta(days=106_751), timedelta(days=-106_751)]
    by_kind = {
        pt.is_timestamp: [datetime(1, 1, 2, tzinfo=zone), datetime(9999, 12, 30, tzinfo=zone)],
        pt.is_duration: [timedelta(days=99_999_999), timedelta(days=-99_999_999)],
        pt.is_date: [date.min, date.max],
        pt.is_time: [time(0), time(23, 59, 59)],
        pt.is_string: ["", "é"],
        pt.is_binary: [b"", b"\xff"],
    }
    return next(some for is_kind, some in by_kind.items() if is_kind(type))


def column(data: st.DataObject, type: pa.DataType) -> pa.Array:
    items = data.draw(st.lists(values_of(type), max_size=4))
    drawn = pa.array([None, *items], type)
    return drawn.slice(data.draw(st.integers(0, 1)))


def misfits(before: pa.DataType, after: pa.DataType) -> list[Any]:
    return [each for each in differences(before, after) if each.after is not None]


def dropped(before: pa.DataType, after: pa.DataType) -> list[Any]:
    return [each.path for each in differences(before, after) if each.after is None]


@given(types)
def test_a_type_has_the_name_that_arrow_gives_it_and_comes_back_from_it(type: pa.DataType) -> None:
    assert name_of(type) == str(type)
    assert type_named(name_of(type)) == type


@given(st.lists(st.text('ab<>:,"\n é', max_size=5), unique=True, max_size=3), st.data())
def test_a_name_tells_a_type_from_all_others_whatever_its_fields_are_named(fields: list[str], data: Any) -> None:
    type = pa.struct([(name, pa.struct([(name, data.draw(leaves))])) for name in fields])
    assert type_named(name_of(type)) == type


def test_a_name_that_no_type_has_is_refused() -> None:
    arrows = [pa.dense_union([pa.field("a", pa.int8())]), pa.run_end_encoded(pa.int32(), pa.int8()), pa.large_string()]
    for name in ("", "int", "struct<", "struct<a>", "struct<a int8>", "list<item: int8", "int8>", "map<int8>", "struct<a: int8",
                 "timestamp[us, tz=]", "decimal128(99, 2)", "list<item: >", 'struct<"a: int8>', *map(str, arrows)):  # fmt: skip
        with pytest.raises(ValueError, match=r"\w"):
            type_named(name)


@given(structs, st.data())
def test_fields_are_matched_by_name_and_values_stay_what_they_are(before: Any, data: Any) -> None:
    after = data.draw(wider(before))
    assert not misfits(before, after)
    values = column(data, before)
    cast = as_type(values, after)
    assert cast.type == after
    cast.validate(full=True)
    for value, found in zip(values, cast, strict=True):
        assert_same(value, found)


def assert_same(before: Any, after: Any) -> None:
    """Compare two scalars, those of structs by the fields that both have."""
    if pt.is_null(after.type) or not before.is_valid:
        assert not after.is_valid
        return
    assert after.is_valid
    if pt.is_struct(after.type):
        for field in after.type:
            if before.type.get_field_index(field.name) < 0:
                assert not after[field.name].is_valid
            else:
                assert_same(before[field.name], after[field.name])
    elif pt.is_list(after.type) or pt.is_map(after.type):
        assert len(before) == len(after)
        for each, other in zip(before.values, after.values, strict=True):
            assert_same(each, other)
    elif pt.is_date(after.type) or not pt.is_temporal(after.type):
        assert before.as_py() == after.as_py()
    else:
        # Python has no nanoseconds.
        unit = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
        assert before.value * unit[after.type.unit] == after.value * unit[before.type.unit]


@given(structs, st.data())
def test_a_value_comes_out_alike_whatever_types_it_went_through(first: Any, data: Any) -> None:
    between = data.draw(wider(first))
    last = data.draw(wider(between))
    values = column(data, first)
    without = dropped(first, between)
    assert as_type(values, last, less((), without)) == as_type(as_type(values, between), last)


def test_a_type_that_follows_one_that_follows_a_third_follows_that() -> None:
    for first, between, last in itertools.product(LEAVES, repeat=3):
        if not [*differences(first, between), *differences(between, last)]:
            assert not [*differences(first, last)], (first, between, last)


def test_a_wider_type_has_all_values_of_the_other_and_the_other_not_all_of_its() -> None:
    pairs = [pair for pair in itertools.permutations(LEAVES, 2) if not [*differences(*pair)]]
    assert (pa.int64(), pa.float64()) not in pairs
    for before, after in pairs:
        values = pa.array(ends_of(before), before)
        wide = as_type(pa.StructArray.from_arrays([values], ["a"]), pa.struct([("a", after)])).field("a")
        assert wide.type == after
        if not pt.is_null(before):
            assert wide.cast(before) == values
        # Zones are alike.
        assert [*differences(after, before)] or after == pa.timestamp(before.unit, after.tz)


def test_a_field_that_was_dropped_is_null_though_a_later_type_has_its_name_again() -> None:
    type = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.int64()), ("d", pa.int64())])))])
    values = pa.array([{"a": 1, "b": [{"c": 2, "d": 3}]}], type)
    without = [("a",), ("b", "item", "d")]
    assert as_type(values, type, without).to_pylist() == [{"a": None, "b": [{"c": 2, "d": None}]}]
    text = pa.struct([("a", pa.string()), ("b", pa.list_(pa.struct([("d", pa.string())])))])
    assert as_type(values, text, without).to_pylist() == [{"a": None, "b": [{"d": None}]}]
    assert as_type(values, type, [()]).to_pylist() == [{"a": None, "b": None}]


def test_a_field_that_has_nothing_but_nulls_is_dropped() -> None:
    some, none = pa.struct([("a", pa.list_(pa.int64()))]), pa.struct([("a", pa.null())])
    assert dropped(some, none) == [("a",)]
    assert as_type(pa.array([{"a": [1]}], some), none).to_pylist() == [{"a": None}]


def test_a_null_struct_stays_null_and_gets_no_fields() -> None:
    values = pa.array([{"a": {"b": 1}}, {"a": None}], pa.struct([("a", pa.struct([("b", pa.int8())]))]))
    wider = pa.struct([("a", pa.struct([("b", pa.int64()), ("c", pa.int64())]))])
    assert as_type(values, wider).to_pylist() == [{"a": {"b": 1, "c": None}}, {"a": None}]


def test_differences_name_the_field_and_both_types() -> None:
    before = pa.struct(
        [("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string())]))), ("m", pa.map_(pa.int8(), pa.int64()))]
    )
    after = pa.struct([("b", pa.list_(pa.struct([("c", pa.int64())]))), ("m", pa.map_(pa.int16(), pa.int8()))])
    found = [(each.path, each.before, each.after) for each in differences(before, after)]
    assert found == [
        (("a",), pa.int64(), None),
        (("b", "item", "c"), pa.string(), pa.int64()),
        (("m", "value"), pa.int64(), pa.int8()),
    ]
    keys = pa.struct([("m", pa.map_(pa.string(), pa.int8()))])
    assert [each.path for each in differences(after, keys)] == [("b",), ("m",)]


def test_what_does_not_count_is_listed_without_what_is_within_it() -> None:
    assert less([("a", "b"), ("c",)], [("a",), ("c",), ("c", "item")]) == (("a",), ("c",))
    assert less([("a",)], [()]) == ((),)
    assert less([], []) == ()


@given(types)
def test_a_plain_type_is_its_own_plain_type(type: pa.DataType) -> None:
    assert plain(type) == type


def test_values_have_one_plain_type_in_whatever_way_arrow_has_them() -> None:
    text = pa.array(["a", None])
    for type in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.large_string())):
        assert plain(type) == pa.string()
        assert text.cast(pa.string()).cast(type).cast(plain(type)) == text
    assert plain(pa.binary(4)) == plain(pa.large_binary()) == plain(pa.binary_view()) == pa.binary()
    item = pa.field("element", pa.large_string(), nullable=False)
    for type in (pa.list_(item), pa.large_list(item), pa.list_(item, 2)):
        assert plain(type) == pa.list_(pa.string())
        assert plain(type).value_field.nullable
    assert plain(pa.struct([pa.field("a", pa.int8(), nullable=False)])) == pa.struct([("a", pa.int8())])
    assert plain(pa.map_(pa.large_string(), item.type)) == pa.map_(pa.string(), pa.string())
