"""Turns that are gathered are one entry of the log, which says what one entry for each would say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.drive.local import Held
from persistent_state.errors import DisagreementError, FencedError, StoreUnavailableError
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import commits, naming
from persistent_state.protocol.gathered import GatheringLog
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files, MemoryFiles
from persistent_state.store.log import Log
from tests import core
from tests.protocol.test_global_clock import ROW, Total, rows

KEEPING = Keeping(clocks=5)


@dataclass(frozen=True)
class PowerFiles(MemoryFiles):
    """Files in memory of which a power cut takes those that were not synced."""

    is_synced: bool = True
    at_risk: set[str] = field(default_factory=set, compare=False)

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

    def delete(self, path: str) -> None:
        self.at_risk.discard(path)
        super().delete(path)


class Driver:
    """A driver of one task that gathers its turns, and another task of its own, whose turns it does not gather."""

    def __init__(self) -> None:
        self.files = PowerFiles(core.memory().url)
        moves = Settings(10, 0, ahead=2**62)
        self.plans = [core.plan_of(Total(name), ROW, files=self.files, settings=moves) for name in "ab"]
        self.plan, self.other = self.plans
        self.beside = Log(self.files, "app")
        self.first = core.start(self.beside, self.plans)
        self.log, self.held = GatheringLog(self.files, "app", self.first.epoch), Held()

    def gather(self, stamps: list[int]) -> Entry:
        unsynced = FlowPlan((replace(self.plan, files=self.files.unsynced),))
        made = core.answers(self.log, unsynced, rows(stamps), held=self.held)
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


def test_turns_are_one_entry_and_what_none_names_is_gone() -> None:
    driver = Driver()
    driver.play(driver.other, [100])
    newest = core.newest(driver.beside)
    for stamps in ([1, 2], [3], [4, 5, 6]):
        driver.gather(stamps)
        assert core.newest(driver.beside) == newest, "no one else sees them"
        assert driver.log.newest() != newest
    assert len(driver.run_files()) == 3
    entry = driver.log.write()
    assert entry == core.newest(driver.beside)
    assert entry.number == newest.number + 1
    assert entry.flows["a"].progress.batch == 3
    assert core.state_at(entry, driver.plan, None) == {(): 6}
    assert driver.run_files() == {path for path in entry.files() if "/runs/a/" in path}
    assert not driver.files.at_risk


def test_what_others_append_meanwhile_stays() -> None:
    driver = Driver()
    driver.play(driver.other, [100])
    driver.gather([1, 2])
    driver.play(driver.other, [200])
    between = core.newest(driver.beside)
    driver.gather([3])
    entry = driver.log.write()
    assert entry.number == between.number + 1
    assert entry.flows["b"] == between.flows["b"]
    assert core.state_at(entry, driver.other, None) == {(): 2}
    assert core.state_at(entry, driver.plan, None) == {(): 3}


def test_each_clock_that_turns_reach_has_an_entry_in_which_it_is_the_global_clock() -> None:
    driver = Driver()
    driver.play(driver.other, [100])
    for stamp in (15, 25, 26, 35):
        driver.gather([stamp])
    before = core.newest(driver.beside).number
    entry = driver.log.write()
    reached = [driver.beside.read(number).clock for number in range(before + 1, entry.number + 1)]
    assert reached == [10, 20, 30]
    assert [driver.beside.read(kept.entry).clock for kept in entry.kept.values()] == [*entry.kept]
    assert core.state_at(driver.beside.read(before + 2), driver.plan, 20) == {(): 1}


def test_what_is_appended_to_the_same_log_comes_after_the_turns() -> None:
    driver = Driver()
    driver.play(driver.other, [100])
    driver.gather([15])
    driver.gather([16])
    naming.keep(driver.log, 10, "noon", now=0)
    entry = core.newest(driver.beside)
    assert entry.kept[10].names == ("noon",)
    assert entry.flows["a"].progress.batch == 2


def test_a_newer_driver_voids_them() -> None:
    driver = Driver()
    driver.play(driver.other, [100])
    driver.gather([1])
    taken = core.start(driver.beside, driver.plans)
    driver.gather([2])
    with pytest.raises(FencedError):
        driver.log.write()
    assert core.newest(Log(driver.files, "app")) == taken
    assert core.state_at(taken, driver.plan, None) == {}


def test_a_turn_that_does_not_follow_is_refused_and_those_before_it_are_written() -> None:
    driver = Driver()
    driver.play(driver.other, [100])
    made = core.answers(driver.log, driver.plan, rows([1]))
    driver.gather([2])
    with pytest.raises(DisagreementError):
        commits.commit(
            driver.log,
            driver.first.epoch,
            driver.plan.settings,
            made,
            now=0,
            new_id=core.new_id,
            keeping=KEEPING,
            gathers=True,
        )
    assert core.state_at(driver.log.write(), driver.plan, None) == {(): 1}


def test_nothing_is_named_that_could_not_be_made_safe() -> None:
    driver = Driver()
    driver.play(driver.other, [100])
    driver.gather([1])
    before = core.newest(driver.beside)
    for path in driver.run_files():
        driver.files.delete(path)
    with pytest.raises((StoreUnavailableError, FileNotFoundError)):
        driver.log.write()
    assert core.newest(Log(driver.files, "app")) == before
