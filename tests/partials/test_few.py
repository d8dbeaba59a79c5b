"""Updates of few keys fold to the same as they come as they do sorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Average, Count, Last, Max, Min, Monoid, Struct, Sum
from persistent_state.partials import few, fold, keys
from persistent_state.partials.kinds import kind_of
from persistent_state.partials.layout import Layout, Once, one_chunk
from persistent_state.windows import SessionWindow, SlidingWindow, TimeToLive
from tests.soak import soak_or
from tests.windows import layout_of

INT = pa.int64()
WHOLE = st.sampled_from([0, 1, -1, 7, 2**63 - 1, -(2**63)])
KEYS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): WHOLE,
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]),
    pa.string(): st.sampled_from(["", "a", "long enough for two words", "\0"]),
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 2): st.sampled_from([0, 1, -1]),
}
RECORD = Struct(n=Count(), sum=Sum(), range=Struct(least=Min(), most=Max()))


def layout(monoid: Monoid[Any]) -> Layout:
    return Layout((INT,), monoid, kind_of(None))


def column(monoid: Monoid[Any], numbers: list[int]) -> pa.Array:
    if monoid is RECORD:
        return monoid.to_arrow([{"n": n, "sum": n, "range": {"least": n, "most": n}} for n in numbers])
    return monoid.to_arrow(numbers)


def updates(key: Sequence[pa.Array], starts: Sequence[int], values: pa.Array) -> pa.Table:
    named = {f"key{i}": column for i, column in enumerate(key)}
    return pa.table({**named, "start": pa.array(starts, INT), "value": values})


def fold_all(updates: pa.Table, layout: Layout) -> pa.Table:
    columns = [one_chunk(updates[name]) for name in layout.key_names]
    hashes = keys.hash_keys(columns, len(updates))
    return fold.fold([updates.append_column("hash", pa.array(hashes))], layout)


@pytest.mark.parametrize("type", KEYS, ids=str)
@pytest.mark.parametrize("monoid", [Sum(), Count(), Min(), Max(), RECORD], ids=repr)
@pytest.mark.soak
@settings(max_examples=soak_or(ci=40, soak=200))
@given(st.data())
def test_updates_fold_to_the_same_rows_as_they_come(
    monoid: Monoid[Any], type: pa.DataType, data: st.DataObject
) -> None:
    some = st.tuples(st.one_of(st.none(), KEYS[type]), st.integers(-2, 2), WHOLE, st.booleans())
    rows = data.draw(st.lists(some, min_size=1, max_size=40))
    more = data.draw(st.integers(0, 2))
    key = [keys.normalise(pa.array([row[0] for row in rows], type)), pa.array([row[3] for row in rows])]
    key = [[], key[:1], key][more]
    given = updates(key, [row[1] for row in rows], column(monoid, [row[2] for row in rows]))
    # So often that there are enough rows for each sum, be there one of each key and start.
    often = data.draw(st.sampled_from([np.tile, np.repeat]))
    given = given.take(pa.array(often(np.arange(len(rows)), 140)))
    of = Layout(tuple(column.type for column in key), monoid, kind_of(None))
    found = few.fold_few(given, of)
    assert found is not None
    again = fold.fold([found.select(of.schema.names)], of)
    assert len(found) == len(again)
    # NaN is no equal of itself.
    assert repr(again.to_pylist()) == repr(fold_all(given, of).to_pylist())


@pytest.mark.parametrize(
    ("distinct", "starts", "folds"),
    [(10, 1, True), (10, 40, True), (10, 60, False), (400, 1, True), (600, 1, False)],
    ids=["few keys", "some intervals", "many intervals", "many keys", "few rows for a key"],
)
@pytest.mark.parametrize("apart", [1, 10**12], ids=["dense", "far apart"])
def test_only_few_keys_and_intervals_are_folded(distinct: int, starts: int, folds: bool, apart: int) -> None:
    numbers = np.arange(1_000)
    given = updates([pa.array(numbers % distinct * apart)], (numbers % starts * apart).tolist(), pa.array(numbers))
    assert (few.fold_few(given, layout(Sum())) is not None) == folds


def test_a_sample_tells_whether_keys_may_be_few() -> None:
    numbers = np.arange(16_000)
    few_keys, many_keys = (updates([pa.array(some)], numbers, pa.array(numbers)) for some in (numbers % 100, numbers))
    assert few.may_fold(few_keys, layout(Sum()))
    assert not few.may_fold(many_keys, layout(Sum()))


def test_updates_of_which_some_are_null_are_sorted() -> None:
    nulls = updates([pa.array([1] * 9)], [0] * 9, pa.array([None, *range(8)], INT))
    assert few.fold_few(nulls, layout(Sum())) is None
    assert few.fold_few(nulls.slice(0, 0), layout(Sum())) is None


def may_fold(layout: Layout) -> bool:
    """Whether rows of a layout may be folded where keys are few."""
    columns = [pa.array([None] * 9, type) for type in layout.key_types]
    return few.may_fold(updates(columns, [0] * 9, pa.nulls(9, layout.monoid.type)), layout)


@pytest.mark.parametrize(
    "monoid", [Sum(pa.float64()), Min(pa.string()), Average(), Last(pa.int64()), Struct(a=Average())]
)
def test_what_depends_on_order_or_is_no_whole_number_is_sorted(monoid: Monoid[Any]) -> None:
    assert not may_fold(layout(monoid))


def test_a_subclass_may_add_otherwise() -> None:
    class Odd(Sum[int]):
        def plus(self, a: int, b: int) -> int:
            return super().plus(a, b) | 1

    assert may_fold(layout(Sum()))
    assert not may_fold(layout(Odd()))


def test_sessions_and_messages_with_ids_are_sorted() -> None:
    assert not may_fold(Layout((INT,), Sum(), kind_of(None), Once(INT, 5)))
    assert not may_fold(layout_of(SessionWindow("10 seconds")))
    assert not may_fold(layout_of(TimeToLive(10)))
    assert may_fold(layout_of(SlidingWindow("10 seconds", "5 seconds")))
    assert may_fold(Layout((INT, INT), Sum(), kind_of(None)))
    assert may_fold(Layout((), Sum(), kind_of(None)))
