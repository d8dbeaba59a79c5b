"""What a shard rewrites of its runs."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monoids import First, Last, List, Max, Monoid, Set
from persistent_state import NonWindowState, PersistentTask
from persistent_state.batch import compaction
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.store.log import Log
from persistent_state.store.named_files import Run, Stored
from tests import core


def run_of(rows: int, low: int = 0, high: int = 100, length: int = 0) -> Run:
    return Run(Stored("", length, ""), rows, low, high, 0, 0)


@given(st.lists(st.integers(1, 10**6), max_size=300))
@example(list(range(300, 0, -1)))
def test_levels_stay_few_and_a_row_is_seldom_rewritten(sizes: list[int]) -> None:
    held: list[Run] = []
    written = 0
    for size in sizes:
        keep = compaction.choose(held, size, 0, BEGINNING)
        # As if all keys were others: nothing is folded. A level of two runs is one level.
        rows = size + sum(run.rows for run in held[keep:])
        held[keep:] = [run_of(rows - rows // 2, 0, 50), run_of(rows // 2, 50, 100)]
        written += rows
    few = 2 * math.log2(sum(sizes) + 2)
    assert len(held) <= 2 * (compaction.MANY + few)
    assert written <= sum(sizes) * (few + 1)


class Kept(PersistentTask):
    key = "key"
    value = "value"

    def __init__(self, monoid: Monoid[object]) -> None:
        self.monoid = monoid

    def persistent_state(self) -> NonWindowState[object]:
        return NonWindowState(self.monoid)


def written(task: Kept, batches: list[pa.RecordBatch]) -> tuple[int, int]:
    """How many rows and bytes are written, by the micro-batches after the first, that the run before did not hold."""
    plan = core.plan_of(task, batches[0].schema)
    log = Log(plan.files, "app")
    core.start(log, [plan])
    seen: set[str] = set()
    sums = [(0, 0)]
    for batch in batches:
        entry = core.play(log, plan, batch)
        fresh = [run for run in entry.tasks[plan.name].stored.runs if run.file.path not in seen]
        seen.update(run.file.path for run in fresh)
        sums.append((sum(run.rows for run in fresh), sum(run.file.length for run in fresh)))
    rows, sizes = zip(*sums[2:], strict=True)
    return sum(rows), sum(sizes)


@pytest.mark.parametrize("monoid", [Max(pa.int64()), Last(pa.int64())], ids=["commutes", "does not"])
def test_small_micro_batches_leave_a_large_state_as_it_is(monoid: Monoid[object]) -> None:
    def batch(first: int, count: int) -> pa.RecordBatch:
        numbers = pa.array(range(first, first + count))
        return pa.record_batch({"ts": numbers, "key": pa.array([n % 20_000 for n in range(count)]), "value": numbers})

    batches = [batch(0, 20_000), *(batch(20_000 + 50 * i, 50) for i in range(40))]
    rows, _ = written(Kept(monoid), batches)
    # 2,000 came: each is rewritten a few times.
    assert rows < 10_000


@pytest.mark.parametrize("monoid", [Max(pa.int64()), First(pa.int64()), Last(pa.int64())], ids=["max", "first", "last"])
def test_many_messages_of_few_keys_become_few_rows_before_they_are_sent(monoid: Monoid[object]) -> None:
    def batch(first: int) -> pa.RecordBatch:
        numbers = pa.array(range(first, first + 1000))
        return pa.record_batch(
            {"ts": pa.array([first] * 1000), "key": pa.array([n % 10 for n in range(1000)]), "value": numbers}
        )

    rows, _ = written(Kept(monoid), [batch(1000 * i) for i in range(20)])
    # Ten keys a micro-batch, each rewritten a few times; 18,000 came.
    assert rows < 18 * 10 * 8


@pytest.mark.parametrize("monoid", [List(pa.int64()), Set(pa.int64())], ids=["list", "set"])
def test_a_few_large_values_are_not_rewritten_for_a_few_items_more(monoid: Monoid[object]) -> None:
    def batch(first: int, items: int) -> pa.RecordBatch:
        keys = range(10)
        values = monoid.to_arrow([monoid_value(range(first, first + items)) for _ in keys])
        return pa.record_batch({"ts": pa.array([first] * 10), "key": pa.array(keys), "value": values})

    monoid_value = list if isinstance(monoid, List) else set
    batches = [batch(0, 50_000), *(batch(50_000 + 10 * i, 10) for i in range(40))]
    _, size = written(Kept(monoid), batches)
    first = 10 * 50_000 * 8
    assert size < first
