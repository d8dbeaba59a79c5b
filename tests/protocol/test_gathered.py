"""Turns that are gathered are one entry of the log, which says what one entry for each would say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from monoids import Count
from persistent_state import Message, NonWindowState, PersistentState, PersistentTask
from persistent_state.batch.packets import Answers
from persistent_state.batch.plan import DELIVERIES, EXACTLY_ONCE, FlowPlan, Plan
from persistent_state.drive.local import Held
from persistent_state.errors import DisagreementError, FencedError
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import commits, naming
from persistent_state.protocol.gathered import GatheringLog, may_gather
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files, MemoryFiles
from persistent_state.store.log import Log
from tests import core
from tests.protocol.test_global_clock import ROW, Total, rows

KEEPING = Keeping(clocks=5)
KEYED = pa.schema([("ts", pa.int64()), ("k", pa.int64())])


class PerKey(PersistentTask):
    """Counts messages by key."""

    key = "k"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Count())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        state.update(message.timestamp, 1)


@dataclass(frozen=True)
class PowerFiles(MemoryFiles):
    """Files in memory of which a power cut takes those that were not synced."""

    is_synced: bool = True
    at_risk: set[str] = field(default_factory=set, compare=False)
    synced: list[str] = field(default_factory=list, compare=False)

    @property
    def unsynced(self) -> Files:
        return replace(self, is_synced=False)

    def create(self, path: str, data: object) -> None:
        super().create(path, data)  # type: ignore[arg-type]
        if not self.is_synced:
            self.at_risk.add(path)

    def sync(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.read(path)
            self.at_risk.discard(path)
            self.synced.append(path)

    def delete(self, path: str) -> None:
        self.at_risk.discard(path)
        super().delete(path)


class Driver:
    """A driver that gathers the turns of a task. Another task by itself may be there, whose turns are committed at once."""

    def __init__(self, *others: str) -> None:
        self.files = PowerFiles(core.memory().url)
        moves = Settings(10, 0, ahead=2**62)
        self.plan, *self.others = [
            core.plan_of(Total(name), ROW, files=self.files, settings=moves) for name in ("a", *others)
        ]
        self.beside = Log(self.files, "app")
        self.first = core.start(self.beside, [self.plan, *self.others])
        self.log, self.held = GatheringLog(Log(self.files, "app"), self.first.epoch), Held()

    def answers(self, stamps: list[int]) -> Answers:
        unsynced = FlowPlan((replace(self.plan, files=self.files.unsynced),))
        return core.answers(self.log, unsynced, rows(stamps), held=self.held)

    def gather(self, stamps: list[int], made: Answers | None = None) -> Entry:
        made = made or self.answers(stamps)
        entry, _ = commits.commit(
            self.log,
            self.first.epoch,
            self.plan.settings,
            made,
            now=0,
            new_id=core.new_id,
            keeping=KEEPING,
            gathers=True,
        )
        return entry

    def play(self, plan: Plan, stamps: list[int]) -> Entry:
        return core.play(self.beside, plan, rows(stamps), keeping=KEEPING)

    def run_files(self) -> set[str]:
        return {f"app/runs/a/{name}" for name in self.files.list("app/runs/a")}


@pytest.mark.rows_in_files
def test_turns_are_one_entry_and_what_none_names_is_gone() -> None:
    driver, merged = Driver(), set[str]()
    driver.play(driver.plan, [1])
    newest = core.newest(driver.beside)
    for stamp in range(1, 9):
        driver.gather([stamp])
        assert core.newest(driver.beside) == newest, "no one else sees them"
        assert driver.log.newest() != newest
        merged |= driver.run_files()
    entry = driver.log.write()
    assert entry == core.newest(driver.beside)
    assert entry.number == newest.number + 1
    assert entry.flows["a"].progress.batch == 9
    assert core.state_at(entry, driver.plan, None) == {(): 9}
    assert driver.run_files() == {path for path in {*entry.files(), *newest.files()} if "/runs/a/" in path}
    assert len(merged - driver.run_files()) > 2, "runs were merged before they were committed"
    assert not driver.files.at_risk


@pytest.mark.rows_in_files
def test_a_file_with_the_runs_of_several_shards_is_made_safe_once() -> None:
    files, held = PowerFiles(core.memory().url), Held()
    plan = core.plan_of(PerKey(), KEYED, files=files, settings=Settings(10, 0, ahead=2**62), shards=4)
    unsynced = FlowPlan((replace(plan, files=files.unsynced),))
    core.start(Log(files, "app"), [plan])
    log = GatheringLog(Log(files, "app"), 1)
    for stamp in range(5):
        batch = pa.RecordBatch.from_pylist([{"ts": stamp, "k": k} for k in range(20)], KEYED)
        made = core.answers(log, unsynced, batch, held=held)
        commits.commit(log, 1, plan.settings, made, now=0, new_id=core.new_id, keeping=KEEPING, gathers=True)
    entry = log.write()
    runs = [run.file for run in entry.tasks["PerKey"].stored.runs]
    assert {*files.synced} == {file.path for file in runs}
    assert len(files.synced) == len({*files.synced}) < len(runs)
    assert not files.at_risk
    assert {f"app/runs/PerKey/{name}" for name in files.list("app/runs/PerKey")} == {*files.synced}
    assert core.state_at(entry, plan, None) == {(k,): 5 for k in range(20)}


def test_what_others_append_meanwhile_stays() -> None:
    driver = Driver()
    driver.play(driver.plan, [15])
    driver.gather([16, 17])
    naming.keep(driver.beside, 10, "noon", now=0)
    between = core.newest(driver.beside)
    driver.gather([18])
    entry = driver.log.write()
    assert entry.number == between.number + 1
    assert entry.kept[10].names == ("noon",)
    assert core.state_at(entry, driver.plan, None) == {(): 4}


def test_turns_that_have_folded_over_a_clock_which_others_reach_meanwhile_are_void() -> None:
    driver = Driver("b")
    (other,) = driver.others
    driver.play(driver.plan, [15, 25, 35])
    driver.play(other, [15])
    assert core.newest(driver.beside).clock == 10
    # Far ahead a task keeps fewer of the clocks that the other has yet to reach.
    driver.gather([2000])
    for stamp in range(2001, 2008):
        driver.gather([stamp])
    entry = driver.play(other, [35])
    assert entry.clock == 30
    assert not may_gather(entry, FlowPlan((driver.plan,)))
    with pytest.raises(DisagreementError, match="folded over a clock that others have committed since"):
        driver.log.write()
    assert core.newest(driver.beside) == entry
    assert core.state_at(entry, driver.plan, 30) == {(): 2}


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_turns_are_gathered_where_nothing_else_moves_the_clock(delivery: str) -> None:
    driver = Driver()
    plan = core.changed(driver.plan, delivery=delivery)
    assert may_gather(driver.first, FlowPlan((plan,))) is (delivery == EXACTLY_ONCE)


def test_each_clock_that_turns_reach_has_an_entry_in_which_it_is_the_global_clock() -> None:
    driver = Driver()
    driver.play(driver.plan, [1])
    for stamp in (15, 25, 26, 35):
        driver.gather([stamp])
    before = core.newest(driver.beside).number
    entry = driver.log.write()
    reached = [driver.beside.read(number).clock for number in range(before + 1, entry.number + 1)]
    assert reached == [10, 20, 30]
    assert [driver.beside.read(kept.entry).clock for kept in entry.kept.values()] == [*entry.kept]
    assert core.state_at(driver.beside.read(before + 2), driver.plan, 20) == {(): 2}


def test_what_is_appended_to_the_same_log_comes_after_the_turns() -> None:
    driver = Driver()
    driver.play(driver.plan, [1])
    driver.gather([15])
    driver.gather([16])
    naming.keep(driver.log, 10, "noon", now=0)
    entry = core.newest(driver.beside)
    assert entry.kept[10].names == ("noon",)
    assert entry.flows["a"].progress.batch == 3


def test_a_newer_driver_voids_them() -> None:
    driver = Driver()
    driver.play(driver.plan, [1])
    driver.gather([1])
    taken = core.start(driver.beside, [driver.plan])
    driver.gather([2])
    with pytest.raises(FencedError):
        driver.log.write()
    assert core.newest(Log(driver.files, "app")) == taken


def test_a_turn_that_does_not_follow_is_refused_and_those_before_it_are_written() -> None:
    driver = Driver()
    driver.play(driver.plan, [1])
    made = driver.answers([2])
    driver.gather([2])
    with pytest.raises(DisagreementError):
        driver.gather([2], made)
    assert core.state_at(driver.log.write(), driver.plan, None) == {(): 2}


@pytest.mark.rows_in_files
def test_nothing_is_named_that_could_not_be_made_safe() -> None:
    driver = Driver()
    driver.play(driver.plan, [1])
    before, safe = core.newest(driver.beside), driver.run_files()
    driver.gather([1])
    for path in driver.run_files() - safe:
        driver.files.delete(path)
    with pytest.raises(FileNotFoundError):
        driver.log.write()
    assert core.newest(Log(driver.files, "app")) == before
