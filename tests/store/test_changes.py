"""Entries of the log say what changed: what a commit writes, what a reader reads, and what is found if one is damaged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import DamagedError, NonWindowState, PersistentTask
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import log as logs
from persistent_state.store.changes import Kind, Listed, Named, Numbered, Plain, Record
from persistent_state.store.files import MemoryFiles
from persistent_state.store.log import Log
from persistent_state.store.named_files import ShardRuns
from persistent_state.store.verify import verify
from tests import core
from tests.local_application import LocalApplication

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])
SHARDS = 16


class Totals(PersistentTask):
    key = "k"
    value = "n"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


@dataclass(frozen=True)
class CountedFiles(MemoryFiles):
    """Files that note which are read."""

    reads: list[str] = field(default_factory=list, compare=False)

    def read(self, path: str) -> pa.Buffer:
        self.reads.append(path)
        return super().read(path)


class World(LocalApplication):
    """A task with some runs in each shard."""

    def __init__(self) -> None:
        files = CountedFiles(core.memory().url)
        plan = core.plan_of(Totals(), SCHEMA, files=files, shards=SHARDS)
        super().__init__({plan.name: plan}, keeping=Keeping(clocks=2, grace=50))
        self.name, self.entry = plan.name, self.start()
        for _ in range(3):
            self.read(*range(200))

    def read(self, *keys: int) -> None:
        """A micro-batch of these keys, one time step later."""
        self.now += 10
        self.entry = self.play(self.name, [(self.now, key, 1) for key in keys])

    def record(self, number: int) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(bytes(self.files.read(self.log.path(number))).splitlines()[0])
        return record


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    # Whole after so many entries, however long they are.
    monkeypatch.setattr(logs._Known, "is_far_from_base", lambda known, now, carried: known.entry.number % 20 == 10)
    return World()


SHARDS_OF_RUNS = [("ab", "c"), ("ab", "d"), ("", "cd"), ("b", "cd"), ("b",), ()]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Named(Plain()), [{}, {"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": 2}]),
        (Listed(Plain()), [(), (1,), (2,), (1, 2), (2, 1), (2, 3), (1, 2, 3)]),
        (
            Numbered(Record("shard", ShardRuns, {"runs": Listed(Plain())})),
            [tuple(ShardRuns(tuple(runs)) for runs in shards) for shards in SHARDS_OF_RUNS],
        ),
    ],
    ids=["named", "listed", "numbered"],
)
def test_a_change_makes_the_later_value_of_the_earlier_one(kind: Kind, values: Sequence[Any]) -> None:
    for before, after in product(values, repeat=2):
        assert kind.changed(before, json.loads(json.dumps(kind.change(before, after)))) == after


def test_an_entry_says_what_changed_and_nothing_else(world: World) -> None:
    world.read(7)
    changes = world.record(world.entry.number)["changes"]
    assert changes.keys() <= {"time", "clock", "retained", "kept", "flows", "tasks"}
    (flow,), (task,) = changes["flows"].values(), changes["tasks"].values()
    assert flow.keys() <= {"clock", "batch", "inputs"}
    assert flow["inputs"][""].keys() == {"channels", "positions"}
    assert task.keys() <= {"cuts", "shards", "floor"}
    assert len(task["shards"]) == 1


def test_one_changed_shard_costs_no_more_beside_many_others(world: World) -> None:
    world.read(7)
    alone = len(bytes(world.files.read(world.log.path(world.entry.number))))
    world.read(*range(200))
    all_of_them = len(bytes(world.files.read(world.log.path(world.entry.number))))
    assert alone < 1500
    assert all_of_them > 5 * alone


def asked(world: World, *numbers: int) -> bool:
    """Whether these entries were asked for, and nothing else."""
    return world.files.reads == [world.log.path(number) for number in numbers]


def test_who_wrote_the_newest_entry_does_not_read_it(world: World) -> None:
    world.files.reads.clear()
    assert world.log.newest() == world.entry
    newest = world.entry.number
    assert asked(world, newest + 1, newest - 1)


def test_who_follows_reads_each_entry_once(world: World) -> None:
    other = Log(world.files, "app")
    assert other.newest() == world.entry
    for _ in range(15):
        world.read(7)
        world.files.reads.clear()
        assert other.newest() == world.entry
        newest = world.entry.number
        # That the one before is still there shows that no other was collected.
        assert asked(world, newest, newest + 1, newest - 1)


def test_who_comes_new_reads_from_the_base_on(world: World) -> None:
    for _ in range(15):
        world.read(7)
        base = world.record(world.entry.number)["base"]
        world.files.reads.clear()
        fresh = Log(world.files, "app").newest()
        assert fresh == world.entry
        read = {path for path in world.files.reads if "/log/" in path}
        assert read == {world.log.path(number) for number in range(base, world.entry.number + 1)}


def test_a_start_writes_a_whole_entry(world: World) -> None:
    entry = world.start()
    record = world.record(entry.number)
    assert record["base"] == entry.number
    assert "changes" not in record


def test_every_entry_that_is_left_can_be_read(world: World) -> None:
    collector = Collector(Log(world.files, "app"))
    for _ in range(35):
        world.read(7)
        collector.collect(1, now=world.now, keeping=Keeping(clocks=2, grace=50))
        left = world.log.numbers()
        fresh = Log(world.files, "app")
        assert [fresh.read(number).number for number in left] == left
        assert len(left) <= 20 + 7
    assert left[0] > 15


@pytest.mark.parametrize("fault", ["gone", "damaged", "of another log"])
@pytest.mark.parametrize("back", [1, 4])
def test_an_entry_that_others_follow_from_is_never_passed_over(world: World, fault: str, back: int) -> None:
    for _ in range(4):
        world.read(7)
    number = world.entry.base + back - (fault != "of another log")
    path = world.log.path(number)
    assert number < world.entry.number
    data = bytes(world.files.read(path))
    world.files.delete(path)
    if fault == "damaged":
        world.files.create(path, data[:50] + b"x" + data[51:])
    elif fault == "of another log":
        other = World()
        for _ in range(4):
            other.read(8)
        world.files.create(path, bytes(other.files.read(path)))
    with pytest.raises(
        DamagedError, match=f"{path if fault != 'of another log' else 'log entry'}.* nothing was changed"
    ):
        Log(world.files, "app").newest()
    told = {problem.path for problem in verify(world.files.url).problems}
    assert world.log.path(world.entry.number) in told
    assert fault != "damaged" or path in told


def test_changes_that_make_another_entry_than_the_whole_are_found(world: World) -> None:
    while world.record(world.entry.number)["base"] != world.entry.number:
        world.read(7)
    record = world.record(world.entry.number)
    record["changes"]["clock"] = 3
    path = world.log.path(world.entry.number)
    body = json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    world.files.delete(path)
    world.files.create(path, body + b"sha256 " + logs.checksum(body).encode() + b"\n")
    told = [problem.what for problem in verify(world.files.url).problems]
    assert "what it says has changed does not make of the entry before it what it says is there" in told
