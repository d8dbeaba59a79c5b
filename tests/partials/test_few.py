"""Updates of few keys fold to the same as they come as they do sorted."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Average, Count, Last, Max, Min, Monoid, Struct, Sum
from persistent_state.event_time import clocks
from persistent_state.event_time.clocks import Settings
from persistent_state.partials import few, fold, keys
from persistent_state.partials.kinds import kind_of
from persistent_state.partials.layout import Layout, Once
from tests.soak import soak_or
from tests.windows import layout_of

INT = pa.int64()
INTERVAL = 10
WHOLE = st.sampled_from([0, 1, -1, 7, 2**63 - 1, -(2**63)])
KEYS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): WHOLE,
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")]),
    pa.string(): st.sampled_from(["", "a", "long enough for two words", "\0"]),
    pa.bool_(): st.booleans(),
    pa.decimal128(38, 2): st.sampled_from([0, 1, -1]),
}
RECORD = Struct(n=Count(), sum=Sum(), range=Struct(least=Min(), most=Max()))


def layout(monoid: Monoid[Any], type: pa.DataType = INT) -> Layout:
    return Layout((type,), monoid, kind_of(None))


def column(monoid: Monoid[Any], numbers: list[int]) -> pa.Array:
    if monoid is RECORD:
        return monoid.to_arrow([{"n": n, "sum": n, "range": {"least": n, "most": n}} for n in numbers])
    return monoid.to_arrow(numbers)


def fold_all(key: pa.Array, times: list[int], values: pa.Array, layout: Layout, clock: int) -> pa.Table:
    starts, _ = clocks.split_intervals(np.array(times), clock, clock, Settings(INTERVAL))
    hashes = keys.hash_keys([key], len(key))
    updates = pa.table({"hash": hashes, "key0": key, "start": starts, "value": values}).cast(layout.schema)
    return fold.fold([updates], layout)


@pytest.mark.parametrize("type", KEYS, ids=str)
@pytest.mark.parametrize("monoid", [Sum(), Count(), Min(), Max(), RECORD], ids=repr)
@pytest.mark.soak
@settings(max_examples=soak_or(ci=40, soak=200))
@given(st.data())
def test_updates_fold_to_the_same_rows_as_they_come(
    monoid: Monoid[Any], type: pa.DataType, data: st.DataObject
) -> None:
    some = st.tuples(st.one_of(st.none(), KEYS[type]), st.integers(3, 39), WHOLE)
    rows = data.draw(st.lists(some, min_size=1, max_size=40))
    clock = data.draw(st.sampled_from([clocks.BEGINNING, 0, 3]))
    key = keys.normalise(pa.array([row[0] for row in rows], type))
    times, values = [row[1] for row in rows], column(monoid, [row[2] for row in rows])
    of = layout(monoid, type)
    with mock.patch.multiple(few, EVERY=1, MOST_DISTINCT=1, ROWS_OF_A_KEY=0):
        found = few.fold_few(key, np.array(times), values, of, clock, Settings(INTERVAL))
    assert found is not None
    assert len(found) == len({(repr(key[i].as_py()), row[1] // INTERVAL) for i, row in enumerate(rows)})
    again = fold.fold([found.cast(of.schema)], of)
    # NaN is no equal of itself.
    assert repr(again.to_pylist()) == repr(fold_all(key, times, values, of, clock).to_pylist())


@pytest.mark.parametrize(
    ("distinct", "spread", "folds"),
    [(10, 1, True), (10, 39, True), (10, 500, False), (200, 1, False), (1_000, 1, False)],
    ids=["few keys", "four intervals", "many intervals", "few rows for a key", "many keys"],
)
def test_only_few_keys_and_intervals_are_folded(distinct: int, spread: int, folds: bool) -> None:
    numbers = np.arange(1_000)
    values = pa.array(numbers)
    found = few.fold_few(pa.array(numbers % distinct), numbers % spread, values, layout(Sum()), 0, Settings(INTERVAL))
    assert (found is not None) == folds


@pytest.mark.parametrize(
    "monoid", [Sum(pa.float64()), Min(pa.string()), Average(), Last(pa.int64()), Struct(a=Average())]
)
def test_what_depends_on_order_or_is_no_whole_number_is_sorted(monoid: Monoid[Any]) -> None:
    assert not few.can_fold(layout(monoid))


def test_a_subclass_may_add_otherwise() -> None:
    class Odd(Sum[int]):
        def plus(self, a: int, b: int) -> int:
            return super().plus(a, b) | 1

    assert few.can_fold(layout(Sum()))
    assert not few.can_fold(layout(Odd()))


def test_windows_ids_and_several_key_columns_are_sorted() -> None:
    assert not few.can_fold(Layout((pa.int64(),), Sum(), kind_of(None), Once(pa.int64(), 5)))
    assert not few.can_fold(Layout((pa.int64(), pa.int64()), Sum(), kind_of(None)))
    assert not few.can_fold(Layout((), Sum(), kind_of(None)))
    assert few.can_fold(layout_of(None))
