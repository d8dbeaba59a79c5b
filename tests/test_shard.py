"""What a shard rewrites of its runs, and what it looks up in them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from persistent_state.steps import shard
from persistent_state.store.entry import Run, Stored

FILE = Stored("", 0, "")


@pytest.mark.parametrize("emits", [True, False])
@given(st.lists(st.integers(1, 10**6), max_size=300))
@example(list(range(300, 0, -1)))
def test_levels_stay_few_and_a_row_is_seldom_rewritten(emits: bool, sizes: list[int]) -> None:
    task, layout = SimpleNamespace(reads_state=False), SimpleNamespace(is_ordered=False)
    plan: Any = SimpleNamespace(emits=emits, task=task, layout=layout)
    held: list[Run] = []
    written = 0
    for size in sizes:
        keep = shard._keep(plan, held, size)
        # As if all keys were others: nothing is folded. A level of two runs is one level.
        rows = size + sum(run.rows for run in held[keep:])
        held[keep:] = [Run(FILE, rows - rows // 2, 0, 50, 0, 0), Run(FILE, rows // 2, 50, 100, 0, 0)]
        written += rows
    few = 2 * math.log2(sum(sizes) + 2)
    assert len(held) <= 2 * (shard.MANY + few)
    assert written <= sum(sizes) * (few + 1)


@given(st.lists(st.integers(0, 40), max_size=60), st.lists(st.integers(0, 40), min_size=1, max_size=40))
def test_touched_rows_are_those_of_the_same_hashes(stored: list[int], fresh: list[int]) -> None:
    table, other = (pa.table({"hash": pa.array(sorted(hashes), pa.uint64())}) for hashes in (stored, fresh))
    found = shard._touched(table, other)["hash"].to_numpy()
    assert found.tolist() == [hash for hash in sorted(stored) if np.isin(hash, fresh)]
