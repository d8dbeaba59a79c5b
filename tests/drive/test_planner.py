"""Micro-batches are planned one after the other, and none reads again what one before it has read."""

from __future__ import annotations

from collections.abc import Mapping

from persistent_state.drive.planner import Planner
from persistent_state.sources.base import Reach
from persistent_state.store.log import Log
from tests import core
from tests.drive.test_third_executor import SALES, PerShop
from tests.local_application import Rows


class LateListing(Rows):
    """Rows of which a listing that is `late` shows that many fewer."""

    late = 0

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        end = len(self.rows) - self.late
        return Reach({self.partition: end}, {self.partition: end == len(self.rows)})


def test_a_listing_that_is_late_takes_no_flow_back_and_what_it_says_of_channels_still_counts() -> None:
    plan = core.plan_of(PerShop(), SALES)
    log, source = Log(plan.files, "app"), LateListing(SALES)
    entry = core.start(log, [plan])
    source.rows = [(number, 0, 1) for number in range(5)]
    planner = Planner(core.alone(plan), source, entry.epoch, 1)
    offset = planner.latest(planner.first(), lambda: 0)
    assert offset["ends"] == {"p": 5}
    source.late = 2
    late = planner.latest(offset, lambda: 0)
    assert late["ends"] == {"p": 5}
    assert late["tick"] == offset["tick"] + 1, "a channel that has not ended after all"
    (part,) = planner.parts(offset, lambda: 0, core.new_id)
    assert part.reads is None


def test_a_micro_batch_is_planned_by_the_newest_entry_though_an_older_one_was_enough_to_wait() -> None:
    plan = core.plan_of(PerShop(), SALES)
    source, other = LateListing(SALES), Log(plan.files, "app")
    log, epoch = Log(plan.files, "app", lambda: 0.0), core.start(other, [plan]).epoch
    planner = Planner(core.alone(plan), source, epoch, 1, log=log)
    offset = planner.latest(planner.first(), lambda: 0)
    planner.parts(planner.first(), lambda: 0, core.new_id)
    assert planner.latest(offset, lambda: 0) == planner.latest(offset, lambda: 0) == offset
    # Another process writes, and then rows arrive.
    other.append(core.newest(other).follower(0))
    source.rows = [(0, 0, 1)]
    assert planner.latest(offset, lambda: 0) != offset
    assert log.newest(1) != other.newest()
    planner.parts(offset, lambda: 0, core.new_id)
    assert log.newest(1) == other.newest()
