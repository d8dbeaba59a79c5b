"""The schedule by which a store fails in tests on Spark, without Spark."""

from __future__ import annotations

from pathlib import Path

from tests.spark.faults import Schedule

MOST = 5


def test_whatever_a_start_does_in_the_store_one_comes_to_its_commit(tmp_path: Path) -> None:
    for steps in range(1, 40):
        folder = tmp_path / str(steps)
        folder.mkdir()
        schedule = Schedule(folder, 7, ("before", "after"), MOST)

        def comes_through(schedule: Schedule = schedule, steps: int = steps) -> bool:
            return all(schedule.next("list") is None for _ in range(steps))

        for _ in range(10):
            assert any(comes_through() for _ in range(MOST + 1)), f"no start of {steps} steps does"
            schedule.go_on()
        assert schedule.told()
