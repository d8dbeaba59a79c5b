"""A branch is the application as it was at a kept clock, goes on by itself, and is there whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from persistent_state import DamagedError, InvalidInputError, open_store, read_state, verify
from persistent_state.batch.plan import AT_LEAST_ONCE
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import full_clock
from persistent_state.protocol import branch, deliver
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files, MemoryFiles
from persistent_state.store.log import Log
from persistent_state.store.named_files import length_of
from persistent_state.store.output_state import ACTIVE, OutputRecord, OutputState
from tests import core
from tests.fixtures.write_graph_store import Graph
from tests.local_application import LocalApplication
from tests.protocol.test_rewind import SCHEMA, Total, World
from tests.store.test_graph_store import check
from tests.store.test_upgrades import Killed, Mortal

LATER = 10**17
"""A time after all others, in microseconds."""


class Branch(World):
    """A branch of an application, which reads on what the application reads."""

    def __init__(
        self, world: World, clock: int | None, name: str = "green", files: Files | None = None, shards: int = 2
    ) -> None:
        to = files or world.files
        self.plan = replace(world.plan, application=name, files=to, shards=shards)
        LocalApplication.__init__(self, {"total": self.plan}, keeping=world.keeping)
        # One that is there is gone on with.
        self.entry = self.log.newest() or branched(world.files, to, name, clock)


def branched(
    source: Files, target: Files, name: str, clock: int | None, new_id: Callable[[], str] = core.new_id
) -> Entry:
    """The first entry of a branch of the application `app`."""
    return branch.branch(Log(source, "app"), Log(target, name), clock, now=0, new_id=new_id)


def files_of(files: Files, name: str) -> dict[str, bytes]:
    """What is stored of an application, by path."""
    folders = [f"{name}/log", f"{name}/kept", *(f"{name}/runs/{task}" for task in files.list(f"{name}/runs"))]
    paths = [f"{folder}/{file}" for folder in folders for file in files.list(folder)]
    return {path: bytes(files.read(path)) for path in paths}


def expected(world: World, clock: int, upto: int, value: int = 1) -> int:
    """The sum of what counts below the newest clock, of which what is at or above a clock has this value."""
    return sum(1 if row["ts"] < clock else value for row in world.rows(upto) if 0 < row["ts"] < upto * 10 - 10)


@pytest.mark.parametrize("shards", [2, 3])
def test_a_branch_and_its_application_go_on_each_by_itself(shards: int) -> None:
    world = World()
    world.read(20)
    green = Branch(world, 90, shards=shards)
    assert (green.value(), open_store(world.files.url).application("green").clocks()) == (world.value(90), [90])
    assert verify(world.files.url).problems == ()
    before = files_of(world.files, "app")
    green.start()
    green.read(30, value=100)
    assert files_of(world.files, "app") == before
    assert (green.newest.clock, green.value()) == (290, expected(world, 90, 30, 100))
    assert green.newest.late_counts_of("total") == {"late": len([i for i in (4, 8, 12, 16) if i < 20])}
    world.read(30)
    assert world.value() == expected(world, 90, 30)
    assert verify(world.files.url).problems == ()
    # What an application deletes is its own.
    for path in files_of(world.files, "app"):
        world.files.delete(path)
    assert green.value() == expected(world, 90, 30, 100)
    assert verify(world.files.url, "green").problems == ()


def test_a_branch_has_one_clock_a_timeline_of_its_own_and_no_outputs() -> None:
    world = World()
    world.plan = replace(world.plan, outputs=("sink", "other"))
    world.start(world.plan)
    world.read(12)
    for clock in (70, 110):
        deliver.record(world.log, world.newest.epoch, "total", "sink", clock, 0)
    # An output that has left, and one with values above the clock.
    world.plan = replace(world.plan, outputs=("sink",))
    world.start(world.plan)
    world.read(20)
    green = Branch(world, 150)
    entry = green.entry
    assert (entry.number, entry.clock, entry.retained, [*entry.kept]) == (1, 150, (150,), [150])
    assert entry.timeline == entry.epoch == world.newest.epoch + 1
    assert entry.tasks["total"].outputs == OutputState()
    started = green.start()
    assert started.tasks["total"].outputs == OutputState({"sink": OutputRecord(ACTIVE, BEGINNING, begun=150)})
    # As to any sink that is new, all keys at the clock that is there.
    assert deliver.due(started, "total", "sink") == deliver.Due(150, BEGINNING, BEGINNING)


def test_a_branch_branches_and_goes_back_as_any_application() -> None:
    world = World()
    world.read(20)
    green = Branch(world, 90)
    green.start()
    green.read(20, value=2)
    blue = branch.branch(green.log, Log(world.files, "blue"), 130, now=0, new_id=core.new_id)
    assert (blue.clock, blue.epoch) == (130, green.newest.epoch + 1)
    assert read_state(world.files.url, "blue", "total").to_pylist() == [{"value": green.value(130)}]
    back = green.back(90)
    assert (back.clock, back.timeline) == (90, back.epoch)
    green.start()
    green.read(20, value=3)
    assert green.value() == expected(world, 90, 20, 3)
    assert verify(world.files.url).problems == ()


def test_a_branch_of_what_counts_at_least_once_has_nothing_above_its_clock() -> None:
    world = World(delivery=AT_LEAST_ONCE)
    world.read(20)
    green = Branch(world, 90)
    green.start()
    green.read(20, value=100)
    assert green.value() == 9 + 100 * 10


@pytest.mark.parametrize("shards", [2, 3])
def test_a_graph_branches_to_another_store_at_any_kept_clock(shards: int) -> None:
    files = core.memory()
    graph = Graph(files, 2, 20).begin()
    graph.read(60)
    for clock in graph.newest.kept:
        there = core.memory()
        branched(files, there, "app", clock)
        assert open_store(there.url).application("app").clocks() == [clock]
        green = Graph(there, shards, 20).begin()
        green.read(80)
        check(there, 80)
    check(files, 60)


def test_a_task_that_was_left_out_is_read_at_its_clock_and_begins_again_if_it_returns() -> None:
    world = World()
    other = core.plan_of(Total("other"), SCHEMA, files=world.files, shards=2)
    world.start(world.plan, other)
    for plan in (world.plan, other):
        world.read(8, plan=plan)
    left = world.newest.clock
    world.start(world.plan)
    world.read(16)
    green = Branch(world, 150)
    assert verify(world.files.url).problems == ()
    assert green.value(left, "other") == world.value(left, "other")
    other = replace(other, application="green")
    with pytest.raises(
        InvalidInputError, match=r"task=other left at clock=.*, and the oldest that is retained is .* Name it"
    ):
        green.start(green.plan, other)
    green.start(green.plan, other, reset=["other"])
    for plan in (green.plan, other):
        green.read(20, plan=plan)
    since = sum(150 <= row["ts"] < 190 for row in world.rows(20))
    assert (green.value(), green.value(task="other")) == (expected(world, 0, 20), since)
    assert verify(world.files.url).problems == ()


def test_a_branch_warns_of_a_task_that_was_left_out_at_its_clock_also_if_it_has_come_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    other = core.plan_of(Total("other"), SCHEMA, files=world.files, shards=2)
    world.start(world.plan, other)
    for plan in (world.plan, other):
        world.read(8, plan=plan)
    left = world.newest.clock
    world.start(world.plan)
    world.read(10)
    clock = world.newest.clock
    world.start(world.plan, other)
    for plan in (world.plan, other):
        world.read(12, plan=plan)
    assert open_store(world.files.url).application("app").branch("green", clock) == clock
    assert caplog.messages == [
        f"task=other was left out when clock={full_clock(clock)} was the newest, so it is in application=green as it left, at "
        f"clock={full_clock(left)}; name it in reset or rebuild of the first start that has it."
    ]
    caplog.clear()
    open_store(world.files.url).application("app").branch("blue")
    assert caplog.messages == []


def test_a_branch_says_what_the_outputs_of_windows_and_emitted_rows_begin_with() -> None:
    files = core.memory()
    graph = Graph(files, 2, 20).begin()
    graph.read(60)
    for clock in graph.newest.kept:
        entry = branched(files, core.memory(), "app", clock)
        begin = branch.begin_with(entry)
        assert begin.keys() == {"Slots", "Visits"}
        assert all(BEGINNING <= since <= clock for since in begin.values())
        told = branch.notes(entry, "app")
        for name, since in begin.items():
            part = "Visits.rows" if name == "Visits" else name
            # Nothing from after it has gone: what the first clock of an output has is all of that.
            assert entry.tasks[part].stored.floor == since
            (note,) = (note for note in told if note.startswith(f"task={name}:"))
            assert ("all that ever closed" if since == BEGINNING else f"after clock={full_clock(since)}") in note


def settled(world: World, monkeypatch: pytest.MonkeyPatch, ends: tuple[int, ...]) -> None:
    """Play until a list in a file names files of late rows."""
    monkeypatch.setattr("persistent_state.store.late_rows.MANY", 1)
    monkeypatch.setattr("persistent_state.store.lists.TAIL", 150)
    for end in ends:
        world.start(world.plan)
        world.read(end)


def test_lists_of_late_rows_name_the_branch_s_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    settled(world, monkeypatch, (6, 10, 14, 18, 20))
    late = world.newest.flow_of("total").late_rows
    assert late.settled.files
    assert late.sides
    green = Branch(world, world.newest.clock)
    for path in files_of(world.files, "app"):
        world.files.delete(path)
    assert verify(world.files.url, "green").problems == ()
    rows = [
        row
        for table in open_store(world.files.url).application("green").late_rows("total")
        for row in table.to_pylist()
    ]
    assert sorted(row["position"] for row in rows) == [4, 8, 12, 16]
    # The first list is too short to have left the entry.
    for pages in (green.entry.flow_of("total").late_rows.settled,):
        assert all("green/runs/total/" in item for item in lists.read(green.files, pages))


def test_a_name_that_is_taken_is_refused() -> None:
    world = World()
    world.read(12)
    Branch(world, 90)
    before = files_of(world.files, "green")
    for name in ("green", "app"):
        with pytest.raises(
            InvalidInputError, match=f"application={name} is already there in store=.*take another name"
        ):
            open_store(world.files.url).application("app").branch(name, 70)
    assert files_of(world.files, "green") == before
    with pytest.raises(InvalidInputError, match="can't name a folder"):
        open_store(world.files.url).application("app").branch("a/b", 70)


def test_a_clock_that_is_not_kept_is_refused() -> None:
    world = World(Keeping(2))
    with pytest.raises(InvalidInputError, match="app keeps no clock yet"):
        open_store(world.files.url).application("app").branch("green")
    world.read(12)
    with pytest.raises(InvalidInputError, match=r"clock=.*\(50\) is not kept, so .*; take clock=.*\(100\)\."):
        open_store(world.files.url).application("app").branch("green", 50)
    with pytest.raises(InvalidInputError, match="there is no application nobody"):
        open_store(world.files.url).application("nobody").branch("green")
    assert files_of(world.files, "green") == {}
    assert open_store(world.files.url).application("app").branch("green") == 110


@pytest.mark.rows_in_files
def test_progress_is_told_in_bytes() -> None:
    world, shown, there = World(), [], core.memory()
    world.read(12)
    clock = (
        open_store(world.files.url)
        .application("app")
        .branch("app", to=there.url, on_progress=lambda done, size: shown.append((done, size)))
    )
    assert clock == 110
    entry = core.newest(Log(there, "app"))
    size = length_of({*entry.tasks["total"].files(), *entry.flow_of("total").files()})
    assert shown[-1] == (size, size)
    assert shown == sorted(shown)


class Busy(MemoryFiles):
    """Files of which every read lets the application go on first."""

    def __init__(self, url: str, meanwhile: Callable[[str], None]) -> None:
        super().__init__(url)
        object.__setattr__(self, "meanwhile", meanwhile)

    meanwhile: Callable[[str], None]

    def read(self, path: str) -> pa.Buffer:
        self.meanwhile(path)
        return super().read(path)


def test_the_application_goes_on_and_collects_while_a_clock_is_copied_that_has_a_name() -> None:
    world, at = World(Keeping(2, 0)), [12]
    world.read(12)
    open_store(world.files.url).application("app").keep("green", 100)

    def meanwhile(path: str) -> None:
        at[0] += 2
        world.read(at[0])
        core.collect(world.log, world.newest.epoch, now=LATER, keeping=world.keeping)

    busy = Busy(world.files.url, meanwhile)
    expected = world.value(100)
    branch.branch(Log(busy, "app"), Log(world.files, "green"), 100, now=0, new_id=core.new_id)
    assert at[0] > 16
    assert read_state(world.files.url, "green", "total").to_pylist() == [{"value": expected}]
    assert verify(world.files.url).problems == ()


@pytest.mark.parametrize("folder", ["app/kept/", "app/runs/"])
@pytest.mark.rows_in_files
def test_a_clock_that_is_released_meanwhile_leaves_no_half_branch(folder: str) -> None:
    """Before its entry is read, and before its first file is."""
    world, released = World(Keeping(1, 0)), list[str]()
    world.read(12)
    open_store(world.files.url).application("app").keep("green")
    world.read(20)
    core.collect(world.log, world.newest.epoch, now=LATER, keeping=world.keeping)

    def meanwhile(path: str) -> None:
        if path.startswith(folder) and not released:
            released.append(path)
            open_store(world.files.url).application("app").release("green")
            for end in (40, 60):
                world.start(world.plan)
                world.read(end)
                core.collect(world.log, world.newest.epoch, now=LATER, keeping=world.keeping)

    busy = Busy(world.files.url, meanwhile)
    sentence = (
        "application=app was released, or taken back, before all was copied, and green was not made; keep a clock by"
    )
    with pytest.raises(InvalidInputError, match=sentence):
        branch.branch(Log(busy, "app"), Log(world.files, "green"), 110, now=0, new_id=core.new_id)
    assert Log(world.files, "green").numbers() == []
    # What is left of it is no obstacle.
    branched(world.files, world.files, "green", None)
    assert verify(world.files.url).problems == ()


class Attentive(Mortal):
    """Files of which none is to be made that is there."""

    def create(self, path: str, data: Any) -> None:
        with pytest.raises(FileNotFoundError):
            self.read(path)
        super().create(path, data)


@pytest.mark.rows_in_files
def test_whatever_kills_it_there_is_no_branch_or_all_of_it_and_the_next_call_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    settled(world, monkeypatch, (6, 10, 14, 18, 20))
    clock, lives = world.newest.clock, 0
    there = core.memory()
    while not Log(there, "green").numbers():
        lives += 1
        with suppress(Killed):
            branched(world.files, Attentive(there.url, lives), "green", clock)
    assert lives > 3
    assert verify(there.url, "green").problems == ()
    green = Branch(world, clock, files=there)
    for end in (24, 28):
        green.start()
        green.read(end)
        core.collect(green.log, green.newest.epoch, now=LATER, keeping=Keeping(1, 0))
    assert green.value() == expected(world, clock, 28)
    assert verify(there.url, "green") == replace(verify(there.url, "green"), problems=(), unreferenced=())


def test_what_an_earlier_try_has_left_is_deleted() -> None:
    world = World()
    other = core.plan_of(Total("other"), SCHEMA, files=world.files, shards=2)
    world.read(8)
    world.start(world.plan, other)
    for plan in (world.plan, other):
        world.read(16, plan=plan)
    there = core.memory()
    with suppress(Killed):
        branched(world.files, Mortal(there.url, 5), "green", 140)
    assert there.list("green/runs/other") or there.list("green/runs/total")
    branched(world.files, there, "green", 60)
    assert verify(there.url, "green") == replace(verify(there.url, "green"), problems=(), unreferenced=())


def test_what_two_calls_write_at_once_is_one_branch() -> None:
    world, there = World(), core.memory()
    world.read(20)
    calls = [0]

    def meanwhile(path: str) -> None:
        calls[0] += 1
        if calls[0] == 6:
            branched(world.files, there, "green", 70)

    with pytest.raises(InvalidInputError, match="application=green is already there"):
        branch.branch(Log(Busy(world.files.url, meanwhile), "app"), Log(there, "green"), 150, now=0, new_id=core.new_id)
    assert open_store(there.url).application("green").clocks() == [70]
    assert verify(there.url, "green").problems == ()


@pytest.mark.parametrize("what", ["source", "copy"])
@pytest.mark.rows_in_files
def test_damage_is_named_and_never_copied(what: str) -> None:
    world, there = World(), core.memory()
    world.read(20)
    entry = world.newest
    stored = next(iter(entry.tasks["total"].files()))
    whole = bytes(world.files.read(stored.path))
    at = stored.start + stored.length - 9
    broken = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    if what == "source":
        world.files.delete(stored.path)
        world.files.create(stored.path, broken)
        path, says = stored.path, "it is not what was written"
    else:
        path, says = stored.path.replace("app/", "green/"), "delete it, and do it again"
        there.create(path, broken)
    with pytest.raises(DamagedError, match=says) as refused:
        branched(world.files, there, "green", entry.clock)
    assert path in str(refused.value)
    assert not Log(there, "green").numbers()
    (there if what == "copy" else world.files).delete(path)
    if what == "source":
        with pytest.raises(
            DamagedError, match=r"is gone .*; bring it back from a copy of the store, or branch from another"
        ):
            branched(world.files, there, "green", entry.clock)
        world.files.create(path, whole)
    assert branched(world.files, there, "green", entry.clock).clock == entry.clock
    assert verify(there.url).problems == ()
