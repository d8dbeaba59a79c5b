"""Folding is the sum by key and interval, whatever order the rows come in and however alike their hashes are."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from monoids import Sum
from persistent_state import merge
from persistent_state.merge import Layout

LAYOUT = Layout((pa.int64(),), Sum())
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
    folded = merge.fold([table(rows)], LAYOUT)
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


@given(st.lists(st.tuples(HASHES, st.integers(0, 600)), min_size=1, max_size=600))
def test_the_order_of_fresh_rows_is_by_hash_and_start(rows: list[tuple[int, int]]) -> None:
    hashes, starts = np.array([h for h, _ in rows], np.uint64), np.array([s for _, s in rows], np.int64)
    order = merge.order_by_hash(hashes, starts)
    assert order.tolist() == sorted(range(len(rows)), key=lambda i: (*rows[i], i))


@given(
    st.lists(st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=40), min_size=1, max_size=5), st.integers(0, 1)
)
def test_slices_hold_each_row_once_and_few_at_a_time(of_tables: list[list[int]], half: int) -> None:
    # Levels cover the whole range, and their runs a part of it each.
    tables = [
        table([(hash // 2 + i % 2 * half * 2**63, 0, 0, 1) for hash in sorted(hashes)])
        for i, hashes in enumerate(of_tables)
    ]
    with mock.patch.object(merge, "SLICE", 16):
        slices = merge.slices(tables)
        held = [[merge.between(table, low, high) for table in tables] for low, high in slices]
    assert [(0, *(high for _, high in slices))] == [(*(low for low, _ in slices), 1 << 64)]
    assert sum(part.num_rows for parts in held for part in parts) == sum(map(len, of_tables))
    distinct = [len({hash for part in parts for hash in part["hash"].to_pylist()}) for parts in held]
    assert max(distinct) <= 2 * 16
