"""A rewind makes of an application what it was at a kept clock, and refuses before anything changes what it can't take back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import (
    FencedError,
    InvalidInputError,
    NonWindowState,
    PersistentTask,
    open_store,
    read_state,
    verify,
)
from persistent_state.batch.plan import AT_LEAST_ONCE, Plan
from persistent_state.protocol import deliver, rewind
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.state_at import find_state
from tests import core
from tests.fixtures.write_graph_store import Graph
from tests.local_application import LocalApplication
from tests.store.test_graph_store import check

SCHEMA = pa.schema([("ts", pa.int64()), ("n", pa.int64())])


LATE = (4, 8, 12, 16)


class Total(PersistentTask):
    value = "n"

    def __init__(self, name: str = "total") -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class World(LocalApplication):
    """An application whose messages have the timestamps 5, 15, 25, … and some value each; late ones come between."""

    def __init__(self, keeping: Keeping | None = None, **options: Any) -> None:
        self.plan = core.plan_of(Total(), SCHEMA, files=core.memory(), shards=2, **options)
        super().__init__({"total": self.plan}, keeping=keeping or Keeping(20))
        self.start()

    def rows(self, end: int, value: int = 1) -> list[dict[str, int]]:
        return [{"ts": 0 if i in LATE else 10 * i + 5, "n": value} for i in range(end)]

    def read(self, end: int, value: int = 1, plan: Plan | None = None) -> None:
        """Read the source up to there, a message in a micro-batch."""
        name = (plan or self.plan).name
        source = self.source(name)
        source.rows, source.most = [(row["ts"], row["n"]) for row in self.rows(end, value)], 1
        while self.turn(name) is not None:
            pass

    def back(self, to: int, writer: str = "somebody") -> Entry:
        return rewind.rewind(self.log, core.plan_rewind(self.log, to), writer=writer, now=0)

    def value(self, clock: int | None = None, task: str = "total") -> int:
        """What people read of a task."""
        (row,) = read_state(self.files.url, self.log.application, task, clock).to_pylist() or [{"value": 0}]
        value: int = row["value"]
        return value


def test_an_application_goes_back_and_reads_on_with_what_the_source_has_now() -> None:
    world = World()
    world.read(20)
    before, late = world.newest, world.newest.late_counts_of("total")
    assert (before.clock, before.timeline) == (190, 0)
    entry = world.back(95)
    assert (entry.clock, entry.timeline, entry.epoch) == (90, 2, 2)
    assert [*entry.kept] == [clock for clock in before.kept if clock <= 90]
    # A driver of before is fenced, and what it knew is void.
    with pytest.raises(FencedError):
        deliver.record(world.log, before.epoch, "total", "sink", 100, 0)
    assert world.value() == sum(1 for row in world.rows(20) if 0 < row["ts"] < 90)
    assert verify(world.files.url).problems == ()
    world.start(world.plan)
    world.read(20, value=100)
    assert (world.newest.clock, world.newest.timeline) == (190, 2)
    assert world.newest.late_counts_of("total") == late
    assert world.value(90) == 7
    assert world.value() == 7 + 100 * sum(1 for row in world.rows(20) if 90 <= row["ts"] < 190)
    assert verify(world.files.url).problems == ()
    assert open_store(world.files.url).application("app").clocks() == [*before.kept]


def test_it_goes_back_again_and_further_and_to_clocks_of_either_timeline() -> None:
    world = World()
    world.read(20)
    for to, value in ((150, 2), (90, 3), (90, 4), (130, 5), (50, 6)):
        kept = [clock for clock in world.newest.kept if clock <= to]
        assert world.back(to).clock == to
        assert [*world.newest.kept] == kept
        world.start(world.plan)
        world.read(20, value)
        core.collect(world.log, world.newest.epoch, now=10**12, keeping=Keeping(20, 0))
        assert verify(world.files.url).problems == ()
    expected = sum(1 if row["ts"] < 50 else 6 for row in world.rows(20) if 0 < row["ts"] < 190)
    assert world.value() == expected


def test_a_rewind_is_of_the_epoch_of_its_plan() -> None:
    world = World()
    world.read(12)
    planned = core.plan_rewind(world.log, 70)
    world.start(world.plan)
    number = world.newest.number
    with pytest.raises(FencedError, match="was started or taken back since the plan was made; plan again"):
        rewind.rewind(world.log, planned, writer="somebody", now=0)
    assert world.newest.number == number
    planned = core.plan_rewind(world.log, 70)
    # What a driver commits meanwhile is above the clock.
    world.read(14)
    entry = rewind.rewind(world.log, planned, writer="somebody", now=0)
    # An answer that was lost.
    assert rewind.rewind(world.log, planned, writer="somebody", now=0) == entry
    with pytest.raises(FencedError):
        rewind.rewind(world.log, planned, writer="somebody else", now=0)


def test_a_clock_that_is_not_kept_is_refused() -> None:
    world = World(Keeping(2))
    with pytest.raises(InvalidInputError, match="app keeps no clock yet; let it run until it has its first checkpoint"):
        core.plan_rewind(world.log, 5)
    world.read(12)
    oldest = next(iter(world.newest.kept))
    with pytest.raises(InvalidInputError, match=rf"is kept; the oldest kept one is clock=.*\({oldest}\)"):
        core.plan_rewind(world.log, oldest - 1)
    planned = core.plan_rewind(world.log, oldest)
    world.read(16)
    with pytest.raises(InvalidInputError, match="is kept no more; plan again"):
        rewind.rewind(world.log, planned, writer="somebody", now=0)
    with pytest.raises(InvalidInputError, match="there is no application nobody"):
        core.plan_rewind(Log(world.files, "nobody"), 5)


@pytest.mark.rows_in_files
def test_a_clock_whose_entry_goes_while_a_rewind_is_planned_is_not_called_missing() -> None:
    world = World(Keeping(2))
    world.read(12)
    oldest, before = next(iter(world.newest.kept)), world.newest
    collector = Collector(world.log)
    for end in (16, 20):
        world.read(end)
        collector.collect(world.newest.epoch, now=10**12, keeping=world.keeping)
    with (
        mock.patch.object(Log, "newest", side_effect=[before, world.newest]),
        pytest.raises(InvalidInputError, match=r"is kept no more; plan again"),
    ):
        core.plan_rewind(world.log, oldest)


@pytest.mark.parametrize(("delivered", "refused"), [(None, True), (50, False), (60, True), (70, True)])
def test_an_output_that_may_have_values_above_the_clock_is_refused(delivered: int | None, refused: bool) -> None:
    """A sink may have one clock more than the log says."""
    world = World()
    world.plan = replace(world.plan, outputs=("sink",))
    world.start(world.plan)
    world.read(12)
    if delivered is not None:
        deliver.record(world.log, world.newest.epoch, "total", "sink", delivered, 0)
    if delivered is None:
        # The first that it is given is the oldest retained one.
        assert core.plan_rewind(world.log, 60).clock == 60
        with pytest.raises(InvalidInputError, match="no clock at or below"):
            core.plan_rewind(world.log, -10)
    elif refused:
        with pytest.raises(InvalidInputError, match=r"task=total: sink='sink' may have values at clock=.*, which is"):
            core.plan_rewind(world.log, 60)
    else:
        entry = world.back(60)
        assert entry.tasks["total"].outputs.delivered == {"sink": 50}
        assert deliver.due(entry, "total", "sink") == deliver.Due(60, 50, 50)


def test_an_output_that_was_left_out_is_refused_too() -> None:
    world = World()
    world.start(replace(world.plan, outputs=("sink",)))
    world.read(12)
    world.start(world.plan)
    with pytest.raises(InvalidInputError, match="sink='sink' may have values"):
        core.plan_rewind(world.log, 60)


def test_an_output_that_has_come_back_is_refused_until_it_was_given_again_what_it_may_have() -> None:
    """Its sink keeps no record, so that nobody knows what it has."""
    world = World()
    given = replace(world.plan, outputs=("sink",))
    world.start(given)
    world.read(12)
    deliver.record(world.log, world.newest.epoch, "total", "sink", world.newest.clock, 0)
    world.start(world.plan)
    world.start(given)
    for clock in (20, 40, 60):
        with pytest.raises(InvalidInputError, match="sink='sink' may have values"):
            core.plan_rewind(world.log, 60)
        deliver.record(world.log, world.newest.epoch, "total", "sink", clock, 0)


def test_an_output_of_a_life_before_is_refused_below_what_it_had_then() -> None:
    world = World()
    world.plan = replace(world.plan, outputs=("sink",))
    world.start(world.plan)
    world.read(12)
    deliver.record(world.log, world.newest.epoch, "total", "sink", 60, 0)
    world.start(world.plan, reset=("total",))
    planned = core.plan_rewind(world.log, 100, rewind.AGAIN)
    rewind.rewind(world.log, planned, writer="somebody", now=0)
    with pytest.raises(InvalidInputError, match="sink='sink' may have values"):
        core.plan_rewind(world.log, 40)


def test_a_task_that_came_later_is_as_at_its_first_start() -> None:
    world = World()
    world.read(8)
    other = core.plan_of(Total("other"), SCHEMA, files=world.files, shards=2)
    world.start(world.plan, other)
    for plan in (world.plan, other):
        world.read(16, plan=plan)
    assert "other" not in world.back(60).tasks
    entry = world.start(world.plan, other)
    assert (entry.tasks["other"].born, entry.flow_of("other").source.next_positions) == (60, {})
    for plan in (world.plan, other):
        world.read(16, plan=plan)
    assert world.value() == sum(1 for row in world.rows(16) if 0 < row["ts"] < 150)
    assert world.value(task="other") == sum(1 for row in world.rows(16) if 60 <= row["ts"] < 150)
    assert verify(world.files.url).problems == ()


def test_what_a_task_wrote_that_came_later_is_deleted() -> None:
    world = World()
    world.read(8)
    other = core.plan_of(Total("other"), SCHEMA, files=world.files, shards=2)
    world.start(world.plan, other)
    for plan in (world.plan, other):
        world.read(16, plan=plan)
    world.back(60)
    world.keeping = Keeping(1)
    collector = Collector(world.log)
    for end in (16, 18, 20):
        entry = world.start(world.plan)
        world.read(end)
        collector.collect(entry.epoch, now=10**12, keeping=Keeping(1, 0))
    assert world.files.list("app/runs/other") == []
    assert verify(world.files.url).problems == ()


def test_a_rewind_cuts_back_what_counts_at_least_once() -> None:
    world = World(delivery=AT_LEAST_ONCE)
    world.read(20)
    world.back(90)
    world.start(world.plan)
    world.read(20, value=100)
    # Under this delivery late messages count, too.
    assert world.value() == 9 + 100 * 10


@pytest.mark.rows_in_files
def test_who_has_found_a_clock_is_never_given_another_timeline_s() -> None:
    world = World(Keeping(3))
    world.read(12)
    found = find_state(world.files, "app", "total", 110)
    world.back(90)
    world.start(world.plan)
    world.keeping = Keeping(2, 0)
    world.read(12, value=100)
    assert world.value(110) != 9
    assert found.read().to_pylist() == [{"value": 9}]
    for _ in range(2):
        world.start(world.plan)
        core.collect(world.log, world.newest.epoch, now=10**12, keeping=Keeping(2, 0))
    with pytest.raises(InvalidInputError, match="no longer retained"):
        found.read()
    assert world.value(110) != 9


def test_a_graph_goes_back_with_windows_timers_and_rows_that_are_late() -> None:
    files = core.memory()
    graph = Graph(files, 2, 20).begin()
    graph.read(60)
    check(files, 60)
    log = Log(files, "app")
    for to in (graph.newest.clock, [*graph.newest.kept][1]):
        planned = core.plan_rewind(log, to)
        assert rewind.rewind(log, planned, writer="somebody", now=0).clock == to
        assert verify(files.url).problems == ()
        graph = Graph(files, 3, 20).begin()
        graph.read(60)
        check(files, 60)
