"""What a failed commit tells the driver, that it waits for its query to end, and the line of a progress."""

from __future__ import annotations

import json
import pickle
import threading
from dataclasses import asdict, replace
from typing import Any

import pytest

from persistent_state import StateError, TaskFailedError
from persistent_state.batch.messages import DRIVER
from persistent_state.drive import turn
from persistent_state.engine import Progress, micro_batch
from persistent_state.engine.micro_batch import Watch, line_of
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol.deliver import Delivered
from tests import core
from tests.protocol.test_ordered import InJson, World, told
from tests.waiting import PATIENCE, until


def failing(watch: Watch, task: str, error: Exception) -> threading.Thread:
    """A commit that fails, in a thread of its own."""
    thread = threading.Thread(target=watch.fail, args=(task, error), daemon=True)
    thread.start()
    return thread


def test_the_first_commit_that_fails_is_told_and_all_wait_for_the_end() -> None:
    watch, first = Watch(), TaskFailedError("first")
    threads = [failing(watch, "A", first)]
    until(lambda: watch.failed, "the failure")
    threads.append(failing(watch, "B", StateError("second")))
    threads[1].join(0.05)
    assert watch.failed == ("A", first)
    assert all(thread.is_alive() for thread in threads)
    watch.end()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)


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


def test_the_line_of_a_progress_has_null_for_a_clock_that_is_not_there_yet() -> None:
    first = Progress(
        task="A", epoch=1, batch=1, messages=2, replayed=0, skipped=0, replayed_or_late=0, copies=0, late=0, bad=0,
        reasons={}, upstream_min=None, clock=BEGINNING, global_clock=BEGINNING, outputs={"sink": Delivered(None, 0)},
    )  # fmt: skip
    assert json.loads(line_of(first)) == {**asdict(first), "clock": None, "global_clock": None}
    ahead = replace(first, upstream_min=25, clock=20)
    assert json.loads(line_of(ahead)) == {**asdict(ahead), "global_clock": None}


def test_a_commit_that_a_stop_interrupts_is_no_failure() -> None:
    watch = Watch()
    watch.stop()
    thread = failing(watch, "A", StateError("interrupted"))
    watch.end()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert watch.failed is None


def test_nobody_watches_in_another_process() -> None:
    assert pickle.loads(pickle.dumps(Watch())) is None
