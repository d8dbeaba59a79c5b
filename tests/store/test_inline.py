"""Few rows are in the entry of their micro-batch: no file is written for them, and all that reads a state reads them there."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import monoids
from persistent_state import DamagedError, NonWindowState, PersistentTask, open_store, verify
from persistent_state.batch import shard
from persistent_state.batch.plan import FlowPlan
from persistent_state.errors import StoreUnavailableError
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import backup, branch, commits
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import blocks, codec, inline, kept_entries, log
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from persistent_state.store.named_files import Run
from tests import core

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])
SHARDS = 4
KEEPING = Keeping(clocks=2)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """This process knows of no run that it has read or made."""
    blocks._indexes.clear()
    yield
    blocks._indexes.clear()


class Sums(PersistentTask):
    """Sums by key."""

    key, value = "k", "n"

    def __init__(self, name: str) -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


class World:
    """An application of two tasks in one flow, of four shards. Its entries follow each other within a minute."""

    def __init__(self) -> None:
        self.files = core.memory()
        plans = [
            core.plan_of(Sums(name), SCHEMA, files=self.files, settings=Settings(10, ahead=2**62), shards=SHARDS)
            for name in ("a", "b")
        ]
        self.flow, self.log, self.now = FlowPlan(tuple(plans)), Log(self.files, "app"), 0
        core.start(self.log, [self.flow])

    def play(self, stamp: int, ks: list[int], keeping: Keeping = KEEPING) -> Entry:
        core.play(self.log, self.flow, self.rows(stamp, ks), now=self.now, keeping=keeping)
        return core.newest(self.log)

    def rows(self, stamp: int, ks: list[int]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([{"ts": stamp, "k": k, "n": 1} for k in ks], SCHEMA)

    @property
    def runs(self) -> list[str]:
        return [name for task in self.files.list("app/runs") for name in self.files.list(f"app/runs/{task}")]

    def values(
        self, name: str = "a", application: str = "app", files: Files | None = None, clock: int | None = None
    ) -> dict[int, int]:
        table = open_store((files or self.files).url).application(application).task(Sums(name)).at(clock).to_arrow()
        return dict(zip(table["k"].to_pylist(), table["value"].to_pylist(), strict=True))


def in_entry(entry: Entry) -> list[Run]:
    return [run for task in entry.tasks.values() for run in task.stored.runs if run.file.inline]


def said(world: World, entry: Entry) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(bytes(world.files.read(world.log.path(entry.number))).partition(b"\n")[0])
    return record


def test_few_rows_are_in_the_entry_of_their_micro_batch_and_nowhere_else() -> None:
    world = World()
    for stamp in (5, 15, 25):
        entry = world.play(stamp, [*range(30)])
        assert said(world, entry)["format"] == 6
        assert entry.base < entry.number
    assert world.runs == []
    assert in_entry(entry) == [run for task in entry.tasks.values() for run in task.stored.runs]
    assert entry.files() == set()
    assert world.values("a") == world.values("b") == dict.fromkeys(range(30), 2)
    verified = verify(world.files.url)
    assert (verified.problems, verified.files) == ((), 0)
    assert open_store(world.files.url).application("app").task(Sums("a")).at().get(7) == 2
    assert Log(world.files, "app").newest() == entry


def test_more_rows_are_in_files() -> None:
    world = World()
    assert in_entry(world.play(5, [*range(3000)])) == []
    assert len(world.runs) > 0


def test_an_entry_without_few_rows_is_what_it_was() -> None:
    world = World()
    with mock.patch.object(shard, "FEW", 0):
        entry = world.play(5, [1])
    assert said(world, entry)["format"] == 6, "they are ranges"
    assert b"inline" not in bytes(world.files.read(world.log.path(entry.number)))


def test_before_an_entry_is_whole_its_rows_are_written_to_one_file() -> None:
    world = World()
    for stamp in (5, 15):
        world.play(stamp, [*range(30)])
    world.now += log.MOST_AGE
    entry = world.play(25, [*range(30)])
    assert entry.base == entry.number
    assert b"inline" not in bytes(world.files.read(world.log.path(entry.number)))
    (path,) = {run.file.path for task in entry.tasks.values() for run in task.stored.runs}
    assert world.runs == [path.rpartition("/")[2]]
    assert world.values("a") == world.values("b") == dict.fromkeys(range(30), 2)
    assert verify(world.files.url).problems == ()
    # The next ones go on from it.
    assert len(in_entry(world.play(35, [1]))) > 0
    assert len(world.runs) == 1


def test_when_an_entry_would_have_many_rows_it_has_none() -> None:
    world = World()
    for stamp in (5, 15):
        entry = world.play(stamp, [*range(30)])
    with mock.patch.object(inline, "MOST", entry.inline):
        entry = world.play(25, [*range(30)])
    assert (entry.base < entry.number, entry.inline, len(world.runs)) == (True, 0, 1)
    assert world.values() == dict.fromkeys(range(30), 2)


def test_a_micro_batch_that_is_under_way_is_committed_though_the_rows_are_written_to_a_file_meanwhile() -> None:
    world = World()
    world.play(5, [*range(30)])
    answers = core.answers(world.log, world.flow, world.rows(15, [*range(30)]))
    newest = core.newest(world.log)
    # The next entry is whole.
    written = world.log.append(newest.follower(log.MOST_AGE))
    assert (written.inline, len(world.runs)) == (0, 1)
    commits.commit(
        world.log,
        newest.epoch,
        world.flow.first.settings,
        answers,
        now=log.MOST_AGE,
        new_id=core.new_id,
        keeping=KEEPING,
    )
    world.now = log.MOST_AGE
    world.play(25, [1])
    assert world.values()[1] == 2
    assert verify(world.files.url).problems == ()


def test_the_entry_of_a_kept_clock_has_its_rows_for_as_long_as_the_clock_is_kept() -> None:
    world = World()
    world.play(5, [*range(30)])
    first = world.play(15, [*range(30)])
    assert len(in_entry(first)) > 0
    clock = first.clock
    kept = {clock: first.kept[clock]}
    collector = Collector(world.log)
    for stamp in range(25, 200, 10):
        world.now += 1_000_000_000
        newest = world.play(stamp, [1], Keeping(clocks=20))
        collector.collect(newest.epoch, now=world.now, keeping=Keeping(clocks=20))
    assert first.number not in world.log.numbers()
    assert newest.kept[clock] == kept[clock]
    assert in_entry(kept_entries.read_file(world.log, first.number)) == in_entry(first)
    assert world.values(clock=clock) == dict.fromkeys(range(30), 1)
    assert verify(world.files.url).problems == ()
    # Neither a branch nor a backup needs anything of the application's own store.
    elsewhere = core.memory()
    branch.branch(world.log, Log(elsewhere, "green"), clock, now=0, new_id=core.new_id)
    assert world.values("b", "green", elsewhere) == dict.fromkeys(range(30), 1)
    assert verify(elsewhere.url).problems == ()


def test_a_branch_that_is_made_again_keeps_the_rows_that_the_first_try_has_written() -> None:
    world, elsewhere = World(), core.memory()
    for stamp in (5, 15):
        entry = world.play(stamp, [*range(30)])
    with (
        mock.patch.object(log, "to_bytes", side_effect=StoreUnavailableError("no answer")),
        pytest.raises(StoreUnavailableError),
    ):
        branch.branch(world.log, Log(elsewhere, "green"), entry.clock, now=0, new_id=core.new_id)
    (written,) = elsewhere.list("green/runs/a")
    branch.branch(world.log, Log(elsewhere, "green"), entry.clock, now=0, new_id=core.new_id)
    assert elsewhere.list("green/runs/a") == [written]
    assert world.values("b", "green", elsewhere) == dict.fromkeys(range(30), 1)
    assert verify(elsewhere.url).problems == ()


def test_a_backup_of_the_same_entry_is_the_same_and_has_the_rows_in_a_file() -> None:
    world, place = World(), core.memory()
    for stamp in (5, 15):
        world.play(stamp, [*range(30)])
    entries = [backup.backup(world.log, Log(place, "app"), 2, now=0) for _ in range(2)]
    assert entries[0] == entries[1]
    assert entries[0].inline == 0
    assert len(place.list("app/runs/a")) == 1
    assert world.values(files=place) == dict.fromkeys(range(30), 1)
    world.play(25, [*range(30)])
    backup.backup(world.log, Log(place, "app"), 2, now=0)
    assert world.values("b", files=place) == dict.fromkeys(range(30), 2)
    assert verify(place.url).problems == ()


@pytest.mark.parametrize("what", ["a bit", "no zlib", "other rows"])
def test_rows_of_an_entry_are_verified_as_those_of_a_file(what: str) -> None:
    world = World()
    entry = world.play(15, [*range(30)])
    world.play(25, [1])
    run, other = in_entry(entry)[:2]
    damaged = {"a bit": flipped(run), "no zlib": b"rows", "other rows": other.file.inline}[what]
    path = world.log.path(entry.number)
    body = bytes(world.files.read(path)).partition(b"\n")[0].decode()
    before, after = (base64.b64encode(data).decode() for data in (run.file.inline, damaged))
    assert before in body
    # A sound seal: only the rows themselves show the damage.
    record = json.loads(body.replace(before, after))
    later = world.log.path(entry.number + 1)
    files = core.memory()
    for name in (*world.log.numbers(),):
        files.create(world.log.path(name), world.files.read(world.log.path(name)))
    files.delete(path)
    files.create(path, codec._sealed(record))
    follower = json.loads(bytes(files.read(later)).partition(b"\n")[0])
    follower["previous"] = codec.checksum(bytes(files.read(path)))
    files.delete(later)
    files.create(later, codec._sealed(follower))
    blocks._indexes.clear()
    with pytest.raises(DamagedError, match="is damaged: it is not what was written"):
        world.values(files=files)
    verified = verify(files.url)
    # The newest entry that goes on with the run.
    assert {problem.path for problem in verified.problems} == {later}
    assert all(run.file.path in problem.what for problem in verified.problems)


def flipped(run: Run) -> bytes:
    """The compressed bytes of a run of which a bit of a value is another."""
    data = bytearray(run.file.unpacked())
    data[len(data) // 3] ^= 1
    return zlib.compress(bytes(data), 1)


def test_the_same_entry_is_written_out_to_the_same_file() -> None:
    world = World()
    world.play(5, [*range(30)])
    entry = replace(core.newest(world.log), checksum="")
    once, twice = (inline.written_out(world.files, "app", entry) for _ in range(2))
    assert once == twice != entry
    assert len(world.runs) == 1
    assert inline.written_out(world.files, "app", once) is once


def test_an_older_version_refuses_an_entry_with_rows_in_a_sentence() -> None:
    world = World()
    world.play(5, [*range(30)])
    with (
        mock.patch.multiple(codec, FORMAT=5, READABLE=(1, 2, 3, 4, 5)),
        pytest.raises(DamagedError, match=r"has a format later than 5; upgrade persistent-state\."),
    ):
        Log(world.files, "app").newest()
