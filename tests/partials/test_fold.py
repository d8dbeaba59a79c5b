"""Folding is the sum by key and interval, whatever order the rows come in and however alike their hashes are."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monoids import First, Last, List, Monoid, Sum
from persistent_state.partials import fold
from persistent_state.partials.layout import ORDER, Layout, below, between
from persistent_state.partials.unbounded import Unbounded

LAYOUT = Layout((pa.int64(),), Sum(), Unbounded())
# Hashes that are equal, that differ only in their last bits, and that differ.
HASHES = st.sampled_from([0, 1, 2, 255, 256, 257, 2**63, 2**63 + 1, 2**64 - 1])
ROWS = st.lists(st.tuples(HASHES, st.integers(0, 2), st.integers(0, 300), st.integers(-9, 9)), min_size=1, max_size=60)


def table(rows: list[tuple[int, int, int, int]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(LAYOUT.schema.names, row, strict=True)) for row in rows], LAYOUT.schema)


@given(ROWS, st.integers(1, 300), st.booleans())
def test_a_fold_is_the_sum_by_key_and_interval(
    rows: list[tuple[int, int, int, int]], step: int, is_sorted: bool
) -> None:
    rows = sorted(rows) if is_sorted else rows
    rows = [(hash, key, start // step * step, value) for hash, key, start, value in rows]
    folded = fold.fold([table(rows)], LAYOUT)
    sums: Counter[tuple[int, int, int]] = Counter()
    for hash, key, start, value in rows:
        sums[hash, key, start] += value
    found = {(row["hash"], row["key0"], row["start"]): row["value"] for row in folded.to_pylist()}
    assert found == dict(sums)
    assert folded.num_rows == len(found)
    order = list(zip(folded["hash"].to_pylist(), folded["key0"].to_pylist(), strict=True))
    assert [hash for hash, _ in order] == sorted(hash for hash, _ in order)
    keys = [key for i, key in enumerate(order) if i == 0 or key != order[i - 1]]
    assert len(keys) == len(set(keys)), "the rows of a key stand together"


@pytest.mark.parametrize("monoid", [First(pa.int64()), Last(pa.int64())], ids=["first", "last"])
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.sampled_from("ab")), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 40)), st.integers(2, 4)), max_size=6),
    st.integers(0, 40),
)
def test_first_and_last_are_folded_in_any_order_and_are_right_at_each_clock_that_was_kept_apart(
    monoid: Monoid[int], rows: list[tuple[int, int, str]], steps: list[tuple[int, list[int], int]], clock: int
) -> None:
    layout = Layout((pa.int64(),), monoid, Unbounded())
    assert layout.folds_early
    # Messages lie in tables one by one, then some of these are folded together, again and again.
    tables = [
        pa.Table.from_pylist(
            [{"hash": key, "key0": key, "start": time, "value": i, "strand": "", "number": 0}
             | dict(zip(ORDER, (time, channel, i), strict=False))],
            layout.schema,
        )
        for i, (key, time, channel) in enumerate(rows)
    ]  # fmt: skip
    for below_clock, cuts, every in steps:
        picked, rest = tables[::every], [table for i, table in enumerate(tables) if i % every]
        tables = [fold.fold(picked, layout, (*cuts, clock), max(below_clock, clock)), *rest]
    found = fold.fold_keys([below(table, clock) for table in tables], layout).to_pylist()
    expected: dict[int, int] = {}
    for i in sorted(range(len(rows)), key=lambda i: (*rows[i][1:], i)):
        key, time, _ = rows[i]
        if time < clock and (monoid.name == "Last" or key not in expected):
            expected[key] = i
    assert {row["key0"]: row["value"] for row in found} == expected
    # A sum stands in the order of messages where the message stands that it is of.
    for row in (row for table in tables for row in table.to_pylist()):
        assert (row["key0"], row["time"], row["channel"]) == rows[row["value"]]


@given(
    st.lists(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=40), min_size=1, max_size=5), st.integers(0, 1)
)
def test_slices_hold_each_row_once_and_few_at_a_time(of_tables: list[list[int]], half: int) -> None:
    # Levels cover the whole range, and their runs a part of it each.
    tables = [
        table([(hash // 2 + i % 2 * half * 2**63, 0, 0, 1) for hash in sorted(hashes)])
        for i, hashes in enumerate(of_tables)
    ]
    with mock.patch.object(fold, "SLICE", 16):
        slices = fold.slices(tables)
        held = [[between(table, low, high) for table in tables] for low, high in slices]
    assert [(0, *(high for _, high in slices))] == [(*(low for low, _ in slices), 1 << 64)]
    assert sum(part.num_rows for parts in held for part in parts) == sum(map(len, of_tables))
    distinct = [len({hash for part in parts for hash in part["hash"].to_pylist()}) for parts in held]
    assert max(distinct) <= 2 * 16


@given(st.lists(st.integers(0, 40), max_size=60), st.lists(st.integers(0, 40), min_size=1, max_size=40))
def test_touched_rows_are_those_of_the_same_hashes(stored: list[int], fresh: list[int]) -> None:
    table, other = (pa.table({"hash": pa.array(sorted(hashes), pa.uint64())}) for hashes in (stored, fresh))
    found = fold.touched(table, other)["hash"].to_pylist()
    assert found == [hash for hash in sorted(stored) if hash in fresh]


class TestSlicesOfBytes:
    @given(
        st.lists(st.tuples(st.integers(0, 2**64 - 1), st.sampled_from([0, 10, 3000])), min_size=1, max_size=60),
        st.integers(1, 3),
        st.sampled_from([1, 4]),
    )
    def test_slices_hold_few_bytes_however_they_are_spread(
        self, rows: list[tuple[int, int]], levels: int, share: int
    ) -> None:
        layout = Layout((), List(pa.int64()), Unbounded())
        tables = [
            pa.table({"hash": pa.array(hashes, pa.uint64()), "start": pa.array([0] * len(some)), "value": values})
            for i in range(levels)
            for some in [sorted(rows[i::levels])]
            for hashes, values in [([h for h, _ in some], layout.monoid.to_arrow([[1] * (n // 8) for _, n in some]))]
        ]
        with mock.patch.object(fold, "SLICE_BYTES", 8000):
            slices = fold.slices(tables, share=share)
        assert [low for low, _ in slices[1:]] == [high for _, high in slices[:-1]]
        held = [[row for row in rows if low <= row[0] < high] for low, high in slices]
        assert sum(map(len, held)) == len(rows)
        for some in held:
            of_hashes = Counter[int]()
            for hash, size in some:
                of_hashes[hash] += size + 20
            # One hash is never cut, and a slice may be that much larger.
            assert sum(of_hashes.values()) <= 8000 / share + 2 * max(of_hashes.values(), default=0)

    def test_what_is_stored_of_the_keys_that_are_asked_for_counts_too(self) -> None:
        layout = Layout((), List(pa.int64()), Unbounded())
        stored = pa.table(
            {
                "hash": pa.array(range(100), pa.uint64()),
                "start": pa.array([0] * 100),
                "value": layout.monoid.to_arrow([[1] * (200 if hash % 10 == 0 else 1) for hash in range(100)]),
            }
        )
        few, large = (stored.select(["hash"]).filter(pa.array(np.arange(100) % 10 == i)) for i in (1, 0))
        with mock.patch.object(fold, "SLICE_BYTES", 4000):
            assert len(fold.slices([few], asked=[few], levels=[stored])) == 1
            assert len(fold.slices([large], asked=[large], levels=[stored])) >= 3
