"""What a shard rewrites of its runs."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from persistent_state.clock import BEGINNING
from persistent_state.steps import shard
from persistent_state.store.entry import Run, Stored

FILE = Stored("", 0, "")


@given(st.lists(st.integers(1, 10**6), max_size=300))
@example(list(range(300, 0, -1)))
def test_levels_stay_few_and_a_row_is_seldom_rewritten(sizes: list[int]) -> None:
    plan: Any = SimpleNamespace(layout=SimpleNamespace(is_ordered=False))
    held: list[Run] = []
    written = 0
    for size in sizes:
        keep = shard._keep(plan, held, size, BEGINNING)
        # As if all keys were others: nothing is folded. A level of two runs is one level.
        rows = size + sum(run.rows for run in held[keep:])
        held[keep:] = [Run(FILE, rows - rows // 2, 0, 50, 0, 0), Run(FILE, rows // 2, 50, 100, 0, 0)]
        written += rows
    few = 2 * math.log2(sum(sizes) + 2)
    assert len(held) <= 2 * (shard.MANY + few)
    assert written <= sum(sizes) * (few + 1)
