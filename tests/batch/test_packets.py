"""What parts are told, and how what they send is known to be whole."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.batch.packets import Answers, Basis, Report, Sender, digest_of_parts, new_notes
from persistent_state.errors import DisagreementError
from persistent_state.event_time.positions import Position
from persistent_state.store.log import Log
from tests import core

ROWS = pa.record_batch({"ts": pa.array([5, 12, 31, 40]), "n": pa.array([1, 2, 4, 8])})


class Total(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def senders(parts: list[int], count: int | None) -> list[Sender]:
    return [Sender("a", 1, 1, "", part, count) for part in parts]


@pytest.mark.parametrize(("parts", "count"), [([0, 2], 3), ([0, 1, 1], 2), ([0, 1, 1, 2], 3), ([1, 1], None)])
def test_a_part_that_is_missing_or_came_twice_is_noticed(parts: list[int], count: int | None) -> None:
    with pytest.raises(DisagreementError, match="flow=a batch=1 was delivered in parts="):
        digest_of_parts(senders(parts, count))


def test_the_digest_of_parts_says_which_there_were_in_any_order() -> None:
    assert digest_of_parts(senders([2, 0], None)) == digest_of_parts(senders([0, 2], None))
    assert digest_of_parts(senders([0, 1], None)) != digest_of_parts(senders([0, 2], None))


def test_a_part_is_told_how_far_its_own_partitions_were_read() -> None:
    positions = {name: Position(next) for next, name in enumerate("pqr")}
    ends = {"p": 7, "q": 8}
    basis = Basis("a", 1, 1, "", 0, 0, (), False, positions, ends)
    told = basis.of_part(1, ["q", "r", "new"])
    assert (told.positions, told.ends) == ({"q": Position(1), "r": Position(2)}, {"q": 8})
    assert basis.of_part(1, None).positions == positions


def test_a_note_of_a_source_is_new_once() -> None:
    sender = Sender("flow", 1, 0, "plan", 0, 1)
    reports = [
        Report(sender, notes={("", "k"): ["one"]}),
        Report(sender, notes={("", "k"): ["two"], ("in", "k"): ["one"]}),
    ]
    noted: dict[tuple[str, str], list[str]] = {}
    assert new_notes(reports, noted) == ["one", "two", "one"]
    assert new_notes([*reports, Report(sender, notes={("", "a"): ["four"]})], noted) == ["four"]
    # Three of a column are enough, also where they come at once.
    more = Report(sender, notes={("", "k"): ["three", "four"], ("", "b"): ["1", "2", "3", "4"]})
    assert new_notes([more], noted) == ["1", "2", "3", "three"]
    unfit = [Report(sender, misfits={"t": "value=1.0"}), Report(sender, misfits={"t": "value=2.0"})]
    assert new_notes(unfit, noted) == ["task=t: an update does not fit, and its row does not count: value=1.0."]
    assert new_notes(unfit, noted) == []


def test_a_commit_needs_the_report_of_each_part_and_shards_that_heard_from_the_same() -> None:
    plan = core.plan_of(Total(), ROWS.schema, shards=2)
    log = Log(plan.files, "app")
    core.start(log, [plan])
    made = core.answers(log, plan, ROWS, parts=2)
    first, second = made.descriptors
    for wrong in (
        Answers(made.reports[:1], made.descriptors),
        Answers(made.reports, [first, replace(second, parts="others")]),
        Answers(made.reports, [first, replace(second, plan="another")]),
        Answers(made.reports, [replace(each, parts="others") for each in made.descriptors]),
    ):
        with pytest.raises(DisagreementError):
            core.commit(log, plan, wrong)
    assert core.state_at(core.commit(log, plan, made), plan, None) == {(): 15}
