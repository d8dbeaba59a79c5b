"""Rows are sorted by the hash of the key, the key and the time, however alike the hashes are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monoids import List
from persistent_state import SessionWindow
from persistent_state.partials import sort
from persistent_state.partials.layout import ORDER
from persistent_state.windows import Windowing
from tests.core import us
from tests.windows import layout_of

# Hashes that are equal, that differ only in their last bits, and that differ.
HASHES = st.sampled_from([0, 1, 2, 255, 256, 257, 2**63, 2**63 + 1, 2**64 - 1])


@given(st.lists(st.tuples(HASHES, st.integers(0, 600)), min_size=1, max_size=600))
def test_the_order_of_fresh_rows_is_by_hash_and_start(rows: list[tuple[int, int]]) -> None:
    hashes, starts = np.array([h for h, _ in rows], np.uint64), np.array([s for _, s in rows], np.int64)
    order = sort.order_by_hash(hashes, starts)
    assert order.tolist() == sorted(range(len(rows)), key=lambda i: (*rows[i], i))


@given(st.lists(st.tuples(HASHES, st.integers(-(2**63), 2**63 - 1) | st.integers(0, 9)), min_size=1, max_size=60))
def test_sorted_tables_are_merged_to_the_order_that_a_sort_gives(rows: list[tuple[int, int]]) -> None:
    hashes, times = np.array([h for h, _ in rows], np.uint64), np.array([t for _, t in rows], np.int64)
    order = sort.merged(hashes, times)
    if order is None:
        assert times.max() // 2 - times.min() // 2 > 2**50
    else:
        assert order.tolist() == sorted(range(len(rows)), key=lambda i: (*rows[i], i))


@pytest.mark.parametrize("windowing", [None, SessionWindow(us(5))], ids=repr)
@given(rows=st.lists(st.tuples(HASHES, st.integers(0, 2), st.integers(0, 300)), min_size=1, max_size=60))
def test_rows_are_in_the_order_of_hash_key_and_time(
    windowing: Windowing | None, rows: list[tuple[int, int, int]]
) -> None:
    layout = layout_of(windowing)
    columns = ["hash", "key0", layout.kind.in_time]
    # Another time, by which nothing is sorted, runs against it.
    made = [
        {**dict.fromkeys(("start", "first", "last"), -row[2]), **dict(zip(columns, row, strict=True))} for row in rows
    ]
    table = pa.Table.from_pylist([{**row, "value": 1} for row in made], layout.schema)
    order, first = sort.sort(table, layout)
    found = rows if order is None else [rows[i] for i in order]
    assert found == sorted(rows)
    assert first.tolist() == [i == 0 or found[i][:2] != found[i - 1][:2] for i in range(len(found))]


@given(
    st.lists(
        st.tuples(HASHES, st.integers(0, 1), st.integers(0, 3), *[st.sampled_from(["a", "b"]), st.integers(0, 2)] * 2),
        min_size=1,
        max_size=60,
    ),
    st.booleans(),
)
def test_rows_of_an_ordered_monoid_are_in_the_order_of_their_places(
    rows: list[tuple[int, int, int, str, int, str, int]], has_few_keys: bool
) -> None:
    # With one key for each hash only places are to be sorted; else keys too.
    rows = [(row[0], 0, *row[2:]) for row in rows] if has_few_keys else rows
    layout = layout_of(None, List(pa.int64()))
    names = ["hash", "key0", *ORDER]
    made = [{**dict(zip(names, row, strict=True)), "start": -i, "value": [i]} for i, row in enumerate(rows)]
    order, first = sort.sort(pa.Table.from_pylist(made, layout.schema), layout)
    found = rows if order is None else [rows[i] for i in order]
    assert found == sorted(rows)
    assert first.tolist() == [i == 0 or found[i][:2] != found[i - 1][:2] for i in range(len(found))]


def test_rows_of_an_ordered_monoid_are_in_the_order_of_its_updates() -> None:
    layout = layout_of(None, List(pa.int64()))
    places = [(1, "a", 0, "p", 0), (1, "a", 0, "p", 1), (1, "a", 2, "p", 0), (1, "b", 1, "p", 0), (2, "a", 0, "p", 0)]
    rows = [
        {"hash": 7, "key0": 0, "start": -i, "value": [i], **dict(zip(ORDER, place, strict=True))}
        for i, place in enumerate(places)
    ]
    order, _ = sort.sort(pa.Table.from_pylist(rows[::-1], layout.schema), layout)
    assert order is not None
    assert order.tolist() == [4, 3, 2, 1, 0]
