"""Each shard of a step in place answers for its part, too."""

from __future__ import annotations

from typing import Any

import pytest

from persistent_state import TaskFailedError
from persistent_state.batch.packets import DRIVER
from persistent_state.drive import turn
from persistent_state.engine.run import micro_batch
from tests import core
from tests.protocol.test_ordered import InJson, World, told


def rows_in_place(world: World) -> list[Any]:
    """The control rows of the step that is due."""
    (due,) = world.due()
    rows = []
    for part in turn.step(world.newest, due, now=0, most=1):
        answers = micro_batch.answers_in_place(due.flow, part, 1)
        labels = DRIVER, part.number
        rows += [{"label": label, "answer": answer} for label, answer in zip(labels, answers, strict=True)]
    return rows


def test_each_shard_of_a_step_in_place_answers_for_its_part_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(None)
    world.begin(3)
    world.read([*(told(1, key) for key in range(6)), told(15, 9)])
    answers = micro_batch.answers_of(rows_in_place(world), False)
    assert sorted(report.sender.part for report in answers.reports) == [0, 1, 2]
    assert sum(report.counts.get("messages", 0) for report in answers.reports) == 6
    core.commit(world.log, world.flow(world.states, world.emitted), answers)
    world.check()
    world.read([told(25, 3), told(35, 9)])

    def process(*_: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr(InJson, "process", process)
    with pytest.raises(TaskFailedError, match=r"process of task=InJson raised ValueError\('no'\)"):
        micro_batch.answers_of(rows_in_place(world), False)
