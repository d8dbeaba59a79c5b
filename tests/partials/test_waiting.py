"""Rows that wait: each is given once, at the first clock above its time, in order, in however many runs they stand."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import expiry, fold, keys
from persistent_state.partials.evolve import plain
from persistent_state.partials.layout import Layout, below
from persistent_state.partials.since import Since
from persistent_state.partials.waiting import Rows, Waiting

LAYOUT = Layout((pa.int64(),), Rows(pa.string()), Waiting())
row = st.tuples(st.integers(0, 2), st.integers(0, 30), st.sampled_from("ab"))


def run_of(numbered: list[tuple[int, Any]]) -> pa.Table:
    key = pa.array([k for _, (k, _, _) in numbered], pa.int64())
    times = pa.array([at for _, (_, at, _) in numbered], pa.int64())
    columns = {
        "hash": keys.hash_keys([key], len(key)), "key0": key, "start": times, "time": times,
        "value": pa.array([f"m{number}" for number, _ in numbered], pa.string()),
        "channel": pa.array([channel for _, (_, _, channel) in numbered], pa.string()),
        "position": pa.array([number for number, _ in numbered], pa.int64()),
        "strand": pa.array([""] * len(key)), "number": pa.array([0] * len(key), pa.int32()),
    }  # fmt: skip
    return fold.fold([pa.table(columns).select(LAYOUT.schema.names).cast(LAYOUT.schema)], LAYOUT, apart_from=BEGINNING)


@given(st.lists(row, max_size=20), st.lists(st.integers(0, 20), max_size=3), st.data())
def test_each_row_is_given_once_and_in_order(rows: list[Any], splits: list[int], data: st.DataObject) -> None:
    numbered = data.draw(st.permutations(list(enumerate(rows))))
    edges = [0, *sorted(min(split, len(rows)) for split in splits), len(rows)]
    levels = [run_of(numbered[low:high]) for low, high in pairwise(edges)]
    floor = data.draw(st.integers(0, 10))
    merged = fold.fold(levels[:2], LAYOUT, [floor], floor, BEGINNING)
    levels = [expiry.without_expired(merged, LAYOUT, floor, is_all=True), *levels[2:]]
    clocks = sorted({floor, *data.draw(st.lists(st.integers(floor, 32), max_size=3)), 32})
    given: dict[int, list[str]] = {}
    for since, clock in pairwise(clocks):
        some = [below(level, clock) for level in levels]
        assert LAYOUT.kind.state(some, LAYOUT, clock).num_rows == 0
        for found in LAYOUT.kind.values(some, LAYOUT, Since(since), clock, floor).to_pylist():
            given.setdefault(found["key0"], []).append(found["value"])
    expected: dict[int, list[str]] = {}
    for number, (key, at, _) in sorted(enumerate(rows), key=lambda each: (each[1][1], each[1][2], each[0])):
        if at >= floor:
            expected.setdefault(key, []).append(f"m{number}")
    assert given == expected


FORMS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.large_list(pa.int32()), [[1, 2], None, [], [None]]),
    (pa.list_(pa.field("item", pa.int32(), nullable=False)), [[1, 2], None, []]),
    (pa.list_(pa.int32(), 2), [[1, 2], None]),
    (pa.large_list(pa.struct([pa.field("a", pa.large_string(), nullable=False)])), [[{"a": "x"}], None, []]),
    (pa.map_(pa.large_string(), pa.large_list(pa.int8())), [[("a", [1])], None, []]),
    (pa.list_(pa.dictionary(pa.int32(), pa.string())), [["a", "b"], None]),
    (pa.binary(2), [b"ab", None]),
    (pa.string_view(), ["a", None]),
    (pa.decimal256(50, 2), [Decimal("1.50"), None]),
]


@pytest.mark.parametrize(("type", "values"), FORMS, ids=lambda given: str(given))
def test_rows_wait_whatever_form_their_values_have(type: pa.DataType, values: list[Any]) -> None:
    outer = pa.struct([("row", type), pa.field("n", pa.int16(), nullable=False)])
    rows = [{"row": value, "n": 1} for value in values]
    found, misfits = Rows(outer).cast(pa.array(rows, outer))
    assert found.type == plain(outer)
    assert found.to_pylist() == pa.array(rows, outer).to_pylist()
    assert not misfits.any()
