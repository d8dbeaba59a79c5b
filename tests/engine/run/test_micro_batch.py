"""Each shard of a step in place answers for its part, too, and a slot's shards are merged by what the slot has kept of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pandas as pd
import pytest

from persistent_state import TaskFailedError
from persistent_state.batch.packets import DRIVER, Answers
from persistent_state.drive import turn
from persistent_state.engine.read.arrow_source import blob_batches
from persistent_state.engine.run import micro_batch
from persistent_state.partials.shuffle import labels_of_shards
from tests import core
from tests.protocol.test_ordered import InJson, World, told
from tests.test_requests import KEYS, SECOND, Run


def rows_in_place(world: World) -> list[Any]:
    """The control rows of the step that is due, whose last two shards are in one slot."""
    (due,) = world.due()
    rows = []
    first, *others = turn.step(world.newest, due, now=0, most=1)
    for share in ([first], others):
        answers = micro_batch.answers_in_place(due.flow, share, 1)
        labels = DRIVER, share[0].number
        rows += [{"label": label, "answer": answer} for label, answer in zip(labels, answers, strict=True)]
    return rows


@pytest.mark.rows_in_files
def test_each_shard_of_a_step_in_place_answers_for_its_part_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(None)
    world.begin(3)
    world.read([*(told(1, key) for key in range(6)), told(15, 9)])
    answers = micro_batch.answers_of(rows_in_place(world), False)
    assert sorted(report.sender.part for report in answers.reports) == [0, 1, 2]
    assert sum(report.counts.get("messages", 0) for report in answers.reports) == 6
    core.commit(world.log, world.flow(world.states, world.emitted), answers)
    files = dict[int, set[str]]()
    for descriptor in answers.descriptors:
        files.setdefault(descriptor.shard, set()).update(run.file.path for run in descriptor.runs)
    # The first shard is alone in its slot. The others write their runs together.
    assert files[0] & files[1] == set()
    assert (files[1] == files[2], len(files[1])) == (True, 1)
    world.check()
    world.read([told(25, 3), told(35, 9)])

    def process(*_: Any) -> None:
        raise ValueError("no")

    monkeypatch.setattr(InJson, "process", process)
    with pytest.raises(TaskFailedError, match=r"process of task=InJson raised ValueError\('no'\)"):
        micro_batch.answers_of(rows_in_place(world), False)


class State:
    """What Spark keeps of a group."""

    def __init__(self) -> None:
        self.exists, self.get = False, ("",)

    def update(self, value: tuple[str]) -> None:
        self.exists, self.get = True, value

    def getCurrentProcessingTimeMs(self) -> int:
        return 0


class Blobs:
    """The DataFrame of the blobs, which calls the function for each group with what it has kept of it."""

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}

    def groupBy(self, column: str) -> Blobs:
        return self

    def applyInPandasWithState(self, step: Any, *_: Any) -> Blobs:
        self.step = step
        return self

    def rows(self, sent: Mapping[int, Sequence[bytes]]) -> list[Any]:
        frames = [
            frame
            for label, blobs in sent.items()
            for frame in self.step((label,), [pd.DataFrame({"blob": blobs})], self.states.setdefault(label, State()))
        ]
        return [row for frame in frames for row in frame.to_dict("records")]


@pytest.mark.rows_in_files
def test_a_slot_keeps_what_it_knows_of_each_of_its_shards() -> None:
    run, blobs, labels = Run(5, 2), Blobs(), labels_of_shards(5, 2)
    micro_batch.control_rows(cast("Any", blobs), run.flow, 1)

    def batch() -> Answers:
        run.now += SECOND
        run.source.rows += [(run.now, key, 1) for key in range(KEYS)]
        sent: dict[int, list[bytes]] = {}
        newest = run.planner.latest(run.offset, lambda: run.now)
        for part in run.planner.parts(run.offset, lambda: run.now, core.new_id):
            for batches in blob_batches(part.combine(run.flow, part.chunks(run.flow, run.source)), labels, 1):
                for row in batches.to_pylist():
                    sent.setdefault(row["label"], []).append(row["blob"])
        assert {*sent} == {*labels, DRIVER}
        run.offset = newest
        before = Counter(run.files.requests)
        rows = blobs.rows(sent)
        requests.append(run.files.since(before))
        answers = micro_batch.answers_of(rows, False)
        run.committer.commit(answers)
        return answers

    requests: list[dict[str, int]] = []
    for _ in range(3):
        answers = batch()
        assert sorted(descriptor.shard for descriptor in answers.descriptors) == [0, 1, 2, 3, 4]
        assert len({run.file.path for descriptor in answers.descriptors for run in descriptor.runs}) == 2
    # Once a slot knows the runs of its shards, it asks for none, and reads no entry.
    assert requests[-1] == {"PUT": 2}
