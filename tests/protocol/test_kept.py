"""Kept clocks: which there are, that they are read as they were, who may name them, and what they cost."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import InvalidInputError, NonWindowState, PersistentTask, open_store, read_state, verify
from persistent_state.errors import DamagedError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol import naming
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import kept_entries
from persistent_state.store.codec import to_bytes
from persistent_state.store.entry import Kept
from persistent_state.store.log import Log
from tests import core
from tests.local_application import LocalApplication
from tests.store.test_upgrades import Killed, Mortal, unpacked

SCHEMA = pa.schema([("ts", pa.int64()), ("shop", pa.int64()), ("price", pa.int64())])
HOUR = 3_600_000_000


class Prices(PersistentTask):
    key, value = "shop", "price"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Times(PersistentTask):
    """A task that comes later."""

    key, value = "shop", "ts"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class World(LocalApplication):
    """An application of one task whose global clock moves by ten with each micro-batch of three rows."""

    def __init__(self, keeping: Keeping) -> None:
        self.plan = core.plan_of(Prices(), SCHEMA, files=core.memory(), shards=2)
        super().__init__({"Prices": self.plan}, keeping=keeping)
        self.played = 0
        self.start()

    def rows(self, batch: int) -> list[dict[str, int]]:
        return [{"ts": 10 * batch + 3 * i, "shop": i + batch % 2, "price": batch} for i in range(3)]

    def come(self) -> None:
        """Let the rows of the next micro-batch come."""
        self.send("Prices", [tuple(row.values()) for row in self.rows(self.played)])
        self.played += 1

    def read(self, batches: int) -> None:
        for _ in range(batches):
            self.now = self.played
            self.come()
            self.turn("Prices")

    def collect(self, after: int = HOUR) -> list[str]:
        return super().collect(after)

    def expected(self, clock: int) -> dict[int, int]:
        wanted: dict[int, int] = {}
        for batch in range(self.played):
            for row in self.rows(batch):
                if row["ts"] < clock:
                    wanted[row["shop"]] = wanted.get(row["shop"], 0) + row["price"]
        return wanted

    def check_kept(self, *expected: int) -> None:
        """These clocks can be read, and no others; the store is sound, and holds nothing beside what they need."""
        assert open_store(self.files.url).application("app").clocks() == [*expected]
        for clock in expected:
            rows = read_state(self.files.url, "app", "Prices", clock).to_pylist()
            assert {row["shop"]: row["value"] for row in rows} == self.expected(clock)
        assert verify(self.files.url).problems == ()

    def in_files(self) -> list[int]:
        return kept_entries.numbers(self.log)


@pytest.mark.rows_in_files
def test_the_newest_clocks_and_the_last_of_each_period_are_kept_and_read_as_they_were() -> None:
    world = World(Keeping(2, 0, ((30, 200), (100, 1000))))
    for _ in range(25):
        world.read(1)
        world.collect()
    assert world.newest.clock == 240
    world.check_kept(0, 60, 90, 100, 120, 150, 180, 200, 210, 230, 240)
    assert world.newest.retained == (230, 240)
    for clock in (70, 300):
        with pytest.raises(InvalidInputError, match=f"clock=.*{clock}.* is not retained; read clock="):
            read_state(world.files.url, "app", "Prices", clock)


@pytest.mark.rows_in_files
def test_what_is_not_kept_is_deleted() -> None:
    world = World(Keeping(2, 0, ((50, 100),)))
    for _ in range(40):
        world.read(1)
        world.collect()
    world.collect()
    left = [world.log.read(number) for number in world.log.numbers()]
    kept = {each.entry for entry in left for each in entry.kept.values()}
    assert {kept.entry for kept in world.newest.kept.values()} - {*world.log.numbers()} <= {*world.in_files()} <= kept
    assert len(kept) < 10
    named = set().union(*(kept_entries.read(world.log, number).files() for number in kept))
    named = named.union(*(entry.files() for entry in left))
    there = {f"app/runs/Prices/{file}" for file in world.files.list("app/runs/Prices")}
    # The last micro-batch may still be committed again by a driver that sleeps.
    last = {path for path in there if f"-{world.played:09d}-" in path}
    assert there - last == named - last


def test_a_clock_is_kept_by_name_until_it_is_released() -> None:
    world = World(Keeping(1, 0))
    world.read(5)
    assert open_store(world.files.url).application("app").keep("before", "40") == 40
    assert open_store(world.files.url).application("app").keep("again") == 40
    # Nothing changes: no entry is written.
    number = world.newest.number
    assert open_store(world.files.url).application("app").keep("again", 40) == 40
    assert world.newest.number == number
    world.read(5)
    world.collect()
    world.check_kept(40, 90)
    assert world.newest.kept[40].names == ("again", "before")
    assert open_store(world.files.url).application("app").release("before") == 40
    world.read(2)
    world.collect()
    world.check_kept(40, 110)
    assert open_store(world.files.url).application("app").release("again") == 40
    world.read(2)
    world.collect()
    world.check_kept(130)
    assert [*world.newest.kept] == [130]
    world.read(2)
    world.collect()
    assert world.in_files() == []


def test_a_name_is_that_of_one_kept_clock() -> None:
    world = World(Keeping(2, 0))
    world.read(4)
    open_store(world.files.url).application("app").keep("before", 20)
    world.read(3)
    url = world.files.url
    with pytest.raises(InvalidInputError, match=r"name='before' keeps clock=.*\(20\) already; take another name"):
        open_store(url).application("app").keep("before", 60)
    with pytest.raises(InvalidInputError, match=r"clock=.*\(40\) is not kept.*name clock=.*\(20\) or clock=.*\(50\)\."):
        open_store(url).application("app").keep("other", 40)
    with pytest.raises(
        InvalidInputError, match="name='other' is the name of no kept clock of app; there are before\\."
    ):
        open_store(url).application("app").release("other")
    with pytest.raises(InvalidInputError, match="is not a name"):
        open_store(url).application("app").keep(" ")
    gone = open_store(url).application("nobody")
    for act in (gone.keep, gone.release):
        with pytest.raises(InvalidInputError, match="there is no application nobody"):
            act("name")


def test_a_driver_goes_on_beside_who_names_clocks() -> None:
    world = World(Keeping(2, 0))
    world.read(3)
    made = core.answers(world.log, world.plan, pa.RecordBatch.from_pylist(world.rows(3), SCHEMA))
    naming.keep(Log(world.files, "app"), None, "before", 0)
    core.commit(world.log, world.plan, made, keeping=world.keeping)
    world.come()
    world.read(2)
    world.check_kept(20, 40, 50)


def test_the_clock_of_an_older_store_is_kept_from_its_first_start_on() -> None:
    files = unpacked("graph-d73cdc9.tar.xz")
    with pytest.raises(InvalidInputError, match="app keeps no clock yet; start it once, and it keeps its newest"):
        open_store(files.url).application("app").keep("before")
    from tests.store.test_graph_store import go_on

    go_on(files, 60)
    newest = Log(files, "app").newest()
    assert newest is not None
    assert [*newest.kept] == [newest.clock]
    assert open_store(files.url).application("app").keep("before") == newest.clock


def test_a_task_is_read_as_it_was() -> None:
    world = World(Keeping(1, 0))
    world.read(3)
    open_store(world.files.url).application("app").keep("early")
    later = core.plan_of(Times(), SCHEMA, files=world.files, shards=2)
    world.start(world.plan, later)
    world.played = 8
    for plan in (world.plan, later):
        source = world.source(plan.name)
        source.rows = [tuple(row.values()) for batch in range(world.played) for row in world.rows(batch)]
        source.most = 3
    for _ in range(8):
        for plan in (world.plan, later):
            world.turn(plan.name)
    world.check_kept(20, 70)
    with pytest.raises(
        InvalidInputError, match=r"task=Times had no state at clock=.*\(20\) yet .*; read a later clock"
    ):
        read_state(world.files.url, "app", "Times", 20)
    with pytest.raises(InvalidInputError, match="application app has no task Nobody"):
        read_state(world.files.url, "app", "Nobody", 20)
    world.start(reset=["Prices"])
    rows = read_state(world.files.url, "app", "Prices", 20).to_pylist()
    assert {row["shop"]: row["value"] for row in rows} == world.expected(20)


@pytest.mark.rows_in_files
def test_what_is_kept_is_whole_whenever_a_collection_is_killed() -> None:
    for lives in itertools.count(1):
        world = World(Keeping(1, 0, ((40, 400),)))
        world.read(10)
        mortal = Log(Mortal(world.files.url, lives), "app")
        try:
            core.collect(mortal, world.newest.epoch, now=HOUR, keeping=world.keeping)
        except Killed:
            world.check_kept(0, 40, 80, 90)
            world.collect()
            world.check_kept(0, 40, 80, 90)
        else:
            break
    assert lives > 10


@pytest.mark.rows_in_files
def test_nothing_is_deleted_while_the_entry_of_a_kept_clock_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    world = World(Keeping(1, 0, ((40, 400),)))
    world.read(10)
    world.collect()
    path = kept_entries.path(world.log, world.newest.kept[40].entry)
    right = bytes(world.files.read(path))
    world.files.delete(path)
    world.files.create(path, right[:-3])
    with pytest.raises(DamagedError, match=path):
        read_state(world.files.url, "app", "Prices", 40)
    world.read(5)
    # A new process.
    world.collector = Collector(world.log)
    assert world.collect() == []
    assert world.collect() == []
    assert [path in record.getMessage() for record in caplog.records] == [True]
    told = [problem.what for problem in verify(world.files.url).problems if problem.path == path]
    assert told == [
        "it is not what was written, or of a later format",
        "kept clock=1970-01-01T00:00:00.000040Z (40) needs it",
    ]
    world.files.delete(path)
    assert world.collect() == []
    with pytest.raises(DamagedError, match="bring back"):
        read_state(world.files.url, "app", "Prices", 40)
    world.files.create(path, right)
    assert world.collect()
    world.check_kept(0, 40, 80, 120, 140)


@pytest.mark.rows_in_files
def test_damage_of_a_file_tells_the_kept_clocks_that_need_it() -> None:
    world = World(Keeping(1, 0, ((40, 400),)))
    world.read(10)
    world.collect()
    newest = world.newest
    of_40, of_80 = (kept_entries.read(world.log, newest.kept[clock].entry).files() for clock in (40, 80))
    path = sorted(of_40 - of_80 - newest.files())[0]
    world.files.delete(path)
    told = [(problem.path, problem.what) for problem in verify(world.files.url).problems]
    assert (path, "kept clock=1970-01-01T00:00:00.000040Z (40) needs it") in told
    assert any(what.startswith("it is missing, and entry ") for _, what in told)
    assert {problem for problem, _ in told} == {path}


@pytest.mark.parametrize("what", ["missing", "another"])
@pytest.mark.rows_in_files
def test_verify_finds_what_is_wrong_with_the_entry_of_a_kept_clock(what: str) -> None:
    world = World(Keeping(1, 0, ((40, 400),)))
    world.read(14)
    world.collect()
    first, second = (kept_entries.path(world.log, number) for number in world.in_files()[:2])
    other = bytes(world.files.read(second))
    world.files.delete(first)
    if what == "another":
        world.files.create(first, other)
    told = {problem.path: problem.what for problem in verify(world.files.url).problems}
    assert [*told] == [first]
    assert "it is missing, and kept clock=" in told[first] or "kept clock=" in told[first]


@pytest.mark.rows_in_files
def test_the_file_of_a_kept_clock_is_believed_and_not_what_a_sleeper_wrote_into_the_log() -> None:
    world = World(Keeping(1, 0, ((40, 400),)))
    world.read(13)
    at = world.newest.kept[40].entry
    world.collect()
    assert at in world.in_files()
    first = kept_entries.read(world.log, world.newest.kept[0].entry)
    world.files.create(world.log.path(at), to_bytes(replace(first, number=at)))
    rows = read_state(world.files.url, "app", "Prices", 40).to_pylist()
    assert {row["shop"]: row["value"] for row in rows} == world.expected(40)
    # So does a process that comes new.
    world.collector = Collector(Log(world.files, "app"))
    for _ in range(2):
        world.read(2)
        world.collect()
    assert world.log.path(at) not in world.files.list("app/log")
    world.check_kept(0, 40, 80, 120, 160)


def test_a_commit_says_what_changed_of_the_kept_clocks_and_no_more() -> None:
    world = World(Keeping(3, 0, ((20, 100_000),)))
    world.read(60)
    assert len(world.newest.kept) > 30
    sizes: list[int] = []
    for _ in range(8):
        before = world.newest
        world.read(1)
        written = world.log.open(world.newest.number)
        assert isinstance(written.changes, dict)
        told = written.changes["kept"]
        assert {int(clock) for clock in told} == before.kept.keys() ^ world.newest.kept.keys()
        assert len(told) <= 2
        sizes.append(len(json.dumps(told)))
    assert max(sizes) < 80


def test_an_application_that_has_no_clock_keeps_none() -> None:
    world = World(Keeping(1, 0))
    assert (world.newest.clock, world.newest.kept) == (BEGINNING, {})
    with pytest.raises(InvalidInputError, match="keeps no clock yet"):
        open_store(world.files.url).application("app").keep("before")


def numbers(kept: Sequence[Kept]) -> list[int]:
    return [each.entry for each in kept]


def test_a_clock_is_kept_by_the_entry_in_which_it_became_the_global_one() -> None:
    world = World(Keeping(100, 10**15))
    world.read(3)
    world.start()
    world.read(3)
    first: dict[int, int] = {}
    for number in world.log.numbers():
        first.setdefault(world.log.read(number).clock, number)
    first.pop(BEGINNING)
    assert dict(zip(world.newest.kept, numbers([*world.newest.kept.values()]), strict=True)) == first
