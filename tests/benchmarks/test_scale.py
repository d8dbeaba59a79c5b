"""The benchmark of fixed costs plays real micro-batches."""

from __future__ import annotations

import pytest

from benchmarks.scale import Costs, Size, cluster, costs, started


def test_every_step_of_a_micro_batch_costs_bytes_and_time() -> None:
    cost = costs(Size(parts=3, shards=4, channels=5, levels=2, tasks=2))
    assert all(vars(cost).values())


def test_an_application_has_what_its_size_says() -> None:
    size = Size(parts=3, shards=4, channels=5, levels=2, tasks=2)
    _, flow, entry = started(size)
    assert [plan.name for plan in flow.tasks] == list(entry.tasks) == ["task-0000", "task-0001"]
    source = entry.flows[flow.id].source
    assert (len(source.channels), len(source.positions)) == (5, 5)
    for task in entry.tasks.values():
        assert len(task.stored.runs) == 4 * 2


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_cluster_sends_a_blob_from_each_part_to_each_shard_for_all_tasks(tasks: int) -> None:
    size = Size(parts=3, shards=4, channels=1, levels=1, tasks=tasks)
    cost = Costs(10, 100, 20, 1000, 10_000, 500, 90_000, 1.0, 0.5, 0.25, 2.0, 1.0, 700, 0.01, 9.0)
    assert cluster(size, cost) == {
        "bytes": 3 * (10 + 20 + 4 * 100) + 4 * 1000 + 10_000,
        "seconds": 1 + 3 * 0.5 + 4 * 0.25 + 2,
    }
