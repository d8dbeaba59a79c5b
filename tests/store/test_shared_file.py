"""Runs of several shards in one file: each is read, copied and kept as a range of it, and no byte of another range is used."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

import monoids
from persistent_state import DamagedError, NonWindowState, PersistentTask, open_store, verify
from persistent_state.batch.plan import FlowPlan
from persistent_state.event_time.clocks import Settings
from persistent_state.metrics import measures
from persistent_state.metrics.of_store import of_files
from persistent_state.partials import keys
from persistent_state.partials.layout import Layout
from persistent_state.partials.unbounded import Unbounded
from persistent_state.protocol import backup, branch
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.global_clock import Keeping
from persistent_state.show.summary import summary
from persistent_state.store import blocks, codec, shared_file
from persistent_state.store import runs as runs_io
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files, MemoryFiles, cache
from persistent_state.store.log import Log
from persistent_state.store.named_files import Run, Stored
from persistent_state.store.shared_file import ALIGNED, HEAD, SharedFile
from tests import core
from tests.store.test_blocks import FarFiles

LAYOUT = Layout((pa.int64(),), monoids.Sum(), Unbounded())
SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])
SHARDS = 4
KEEPING = Keeping(clocks=2)


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Copies of what is read are in a folder of this test, and each file has several blocks."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(blocks, "BLOCK", 400)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """Let this process know of no file that it has read."""
    blocks._indexes.clear()
    cache._verified.clear()


def table(first: int, count: int = 50) -> pa.Table:
    """Sums of keys, sorted by hash."""
    numbers = pa.array(range(first, first + count), pa.int64())
    hashes = keys.hash_keys([numbers], count)
    columns = {"hash": hashes, "key0": numbers, "start": pa.array([first] * count), "value": numbers}
    return pa.table(columns).sort_by("hash")


def written(files: Files, tables: list[pa.Table], shared: SharedFile | None) -> list[Run]:
    """Runs of these tables."""
    runs = [
        runs_io.write_run(files, f"app/runs/a/{i}.arrow", each, LAYOUT, 0, 1 << 64, shared)
        for i, each in enumerate(tables)
    ]
    if shared is not None:
        shared.write()
    forget()
    return runs


@pytest.mark.parametrize("kind", [MemoryFiles, FarFiles])
def test_each_run_is_read_as_if_it_had_a_file_of_its_own(kind: type[MemoryFiles], copies: Path) -> None:
    files, tables = kind(core.memory().url), [table(0), table(100, 3), table(200, 400)]
    together = written(files, tables, SharedFile(files))
    alone = written(files, tables, None)
    assert files.list("app/runs/a") == ["0.arrow", "0.runs", "1.arrow", "2.arrow"]
    whole = bytes(files.read("app/runs/a/0.runs"))
    assert whole.startswith(HEAD)
    for run, own, rows in zip(together, alone, tables, strict=True):
        assert (run.file.path, run.file.start % ALIGNED) == ("app/runs/a/0.runs", 0)
        assert run.file.start > 0, "no range is taken for a whole file"
        assert replace(run, file=replace(run.file, path=own.file.path, start=0)) == own
        assert whole[run.file.start : run.file.start + run.file.length] == bytes(files.read(own.file.path))
        # No copy of it is there.
        for copy in copies.rglob("*"):
            if copy.is_file():
                copy.unlink()
        one = [rows["hash"].to_numpy()[1:2]]
        few = runs_io.read_run(files, run, one)
        assert rows["key0"][1].as_py() in few["key0"].to_pylist()
        assert len(few) < len(rows) or len(rows) == 3
        assert runs_io.read_run(files, run) == rows


def test_of_a_far_file_no_more_than_the_range_is_fetched(copies: Path) -> None:
    files = FarFiles(core.memory().url)
    first, *_ = written(files, [table(0), table(100, 4000)], SharedFile(files))
    for copy in copies.rglob("*"):
        if copy.is_file():
            copy.unlink()
    files.fetched.clear()
    assert len(runs_io.read_run(files, first)) == 50
    assert sum(files.fetched) <= first.file.length + first.file.index


def test_ranges_of_the_same_bytes_are_verified_each() -> None:
    files = core.memory()
    runs = written(files, [table(0), table(0)], SharedFile(files))
    path, at = runs[0].file.path, runs[1].file.start + 40
    data = bytearray(files.read(path))
    data[at] ^= 1
    files.delete(path)
    files.create(path, data)
    with mock.patch.object(MemoryFiles, "stamp", return_value=(1, 2, 3)):
        assert runs_io.read_run(files, runs[0]) == table(0)
        with pytest.raises(DamagedError, match=rf"{path} is damaged"):
            runs_io.read_run(files, runs[1])


def test_a_full_file_is_written_and_a_large_run_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    files = core.memory()
    size = len(blocks._encoded(table(0), "0.arrow")[0])
    monkeypatch.setattr(shared_file, "ROOM", 3 * size)
    monkeypatch.setattr(blocks, "MOST_SHARED", size)
    runs = written(files, [table(0), table(0), table(100, 1000), table(0), table(0)], SharedFile(files))
    paths = [run.file.path.rpartition("/")[2] for run in runs]
    assert paths == ["0.runs", "0.runs", "2.arrow", "3.runs", "3.runs"]
    assert runs[2].file.start == 0
    assert all(len(runs_io.read_run(files, run)) in (50, 1000) for run in runs)


def test_nothing_is_written_where_nothing_was_added() -> None:
    files = core.memory()
    shared = SharedFile(files)
    shared.write()
    assert files.list("") == []


class Sums(PersistentTask):
    """Sums by key."""

    key, value = "k", "n"

    def __init__(self, name: str) -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


class World:
    """An application of two tasks in one flow, of four shards that one worker merges."""

    def __init__(self) -> None:
        self.files = core.memory()
        plans = [
            core.plan_of(Sums(name), SCHEMA, files=self.files, settings=Settings(10, ahead=2**62), shards=SHARDS)
            for name in ("a", "b")
        ]
        self.flow, self.log = FlowPlan(tuple(plans)), Log(self.files, "app")
        self.entry = core.start(self.log, [self.flow])
        self.collector, self.now = Collector(self.log), 0

    def play(self, stamp: int, ks: list[int]) -> Entry:
        rows = pa.RecordBatch.from_pylist([{"ts": stamp, "k": k, "n": 1} for k in ks], SCHEMA)
        # Later than the one before by more than the grace.
        self.now += 1_000_000_000
        self.entry = core.play(self.log, self.flow, rows, now=self.now, keeping=KEEPING)
        return self.entry

    def collect(self) -> list[str]:
        return self.collector.collect(self.entry.epoch, now=self.now, keeping=KEEPING)

    def values(self, name: str = "a", application: str = "app", files: Files | None = None) -> dict[int, int]:
        app = open_store((files or self.files).url).application(application)
        table = app.task(Sums(name)).at().to_arrow()
        return dict(zip(table["k"].to_pylist(), table["value"].to_pylist(), strict=True))


def of_shard(shard: int, shards: int = SHARDS) -> int:
    """A key of this shard."""
    candidates = pa.array(range(100), pa.int64())
    return next(k for k, h in enumerate(keys.hash_keys([candidates], 100)) if keys.shard_of(int(h), shards) == shard)


def ranges(entry: Entry) -> list[Stored]:
    return [run.file for task in entry.tasks.values() for run in task.stored.runs]


def test_a_worker_writes_the_runs_of_all_its_shards_and_tasks_into_one_file() -> None:
    world = World()
    entry = world.play(5, [*range(30)])
    named = ranges(entry)
    assert len(named) == 2 * SHARDS
    assert len({file.path for file in named}) == 1
    assert [*world.files.list("app/runs/a"), *world.files.list("app/runs/b")] == [named[0].path.rpartition("/")[2]]
    spans = sorted((file.start, file.start + file.length) for file in named)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    # What is shown counts the bytes of the ranges, and each file once.
    shown = summary(world.files, "app")
    assert (shown["bytes"], [task["files"] for task in shown["tasks"]]) == (sum(file.length for file in named), [1, 1])
    counted = {sample.of: sample.value for sample in of_files(world.files, "app", entry) if not sample.labels[1:]}
    assert (counted[measures.STORE_BYTES], counted[measures.STORE_FILES]) == (shown["bytes"], 1)
    world.play(25, [*range(30)])
    assert world.values("a") == world.values("b") == dict.fromkeys(range(30), 1)
    assert verify(world.files.url).problems == ()


def test_a_file_stays_while_one_of_its_ranges_is_named_and_goes_once() -> None:
    world = World()
    keys_of = [of_shard(shard) for shard in range(SHARDS)]
    first = {file.path for file in ranges(world.play(5, keys_of))}
    (path,) = first
    # The runs of all shards but one are merged, and theirs of the first file are named no more.
    gone = list[str]()
    for stamp in range(15, 400, 10):
        world.play(stamp, keys_of[1:])
        gone += world.collect()
    left = [file for file in ranges(world.entry) if file.path == path]
    assert 0 < len(left) < 2 * SHARDS
    assert path not in gone
    assert world.values()[keys_of[0]] == 1
    for stamp in range(405, 900, 10):
        world.play(stamp, keys_of)
        gone += world.collect()
    assert path not in world.entry.files()
    assert gone.count(path) == 1
    assert verify(world.files.url).problems == ()
    assert world.values()[keys_of[0]] == 50


@pytest.mark.rows_in_files
def test_what_a_worker_has_written_that_failed_is_collected() -> None:
    world = World()
    rows = pa.RecordBatch.from_pylist([{"ts": 5, "k": k, "n": 1} for k in range(30)], SCHEMA)
    core.answers(world.log, world.flow, rows)
    (left,) = world.files.list("app/runs/a")
    named = {file.path for file in ranges(world.play(5, [*range(30)]))}
    world.play(15, [1])
    assert f"app/runs/a/{left}" in {*world.collect()} - named
    assert {*world.files.list("app/runs/a")} >= {path.rpartition("/")[2] for path in named}


class Counting(MemoryFiles):
    """A store in memory that notes what is made."""

    made: list[str]

    def __init__(self, url: str) -> None:
        super().__init__(url)
        object.__setattr__(self, "made", [])

    def create(self, path: str, data: object) -> None:
        super().create(path, data)  # type: ignore[arg-type]
        self.made.append(path)


def test_a_branch_and_a_backup_copy_a_file_once() -> None:
    world = World()
    world.play(5, [*range(30)])
    world.play(25, [*range(30)])
    count = len({file.path for file in ranges(world.entry)})
    assert count < len(ranges(world.entry))
    elsewhere = Counting(core.memory().url)
    branch.branch(world.log, Log(elsewhere, "green"), None, now=0, new_id=core.new_id)
    # What is above the clock does not come along.
    assert sum("/runs/" in path for path in elsewhere.made) == count - 1
    assert world.values("b", "green", elsewhere) == world.values("b")
    assert verify(elsewhere.url).problems == ()
    place = Counting(core.memory().url)
    backup.backup(world.log, Log(place, "app"), 2, now=0)
    assert sum("/runs/" in path for path in place.made) == count
    world.play(45, [*range(30)])
    backup.backup(world.log, Log(place, "app"), 2, now=0)
    assert len({*place.made}) == len(place.made), "nothing is copied twice"
    assert world.values("b", files=place) == world.values("b")
    assert verify(place.url).problems == ()


@pytest.mark.parametrize("is_named", [True, False])
def test_damage_counts_where_a_range_is_named(is_named: bool) -> None:
    world = World()
    world.play(5, [*range(30)])
    entry = world.play(25, [*range(30)])
    file = max(ranges(entry), key=lambda file: file.start)
    data = bytearray(world.files.read(file.path))
    data[file.start + 40 if is_named else 30] ^= 1
    world.files.delete(file.path)
    world.files.create(file.path, data)
    target = Log(core.memory(), "app")
    if is_named:
        (path,) = {problem.path for problem in verify(world.files.url).problems}
        assert path == file.path
        with pytest.raises(DamagedError, match=file.path):
            backup.backup(world.log, target, 2, now=0)
    else:
        assert verify(world.files.url).problems == ()
        assert backup.backup(world.log, target, 2, now=0).number == 1


@pytest.mark.rows_in_files
def test_an_entry_says_the_new_format_only_while_a_run_is_a_range() -> None:
    world = World()
    formats = [format_in(world, world.entry)]
    for stamp in range(5, 45, 10):
        formats.append(format_in(world, world.play(stamp, [*range(30)])))
    assert formats == [5, *[codec.FORMAT] * 4]
    assert codec.FORMAT == 6
    # One worker for each shard writes as before.
    alone = FlowPlan(tuple(replace(plan, shards=1) for plan in world.flow.tasks))
    world.flow = alone
    world.entry = core.start(world.log, [alone])
    assert format_in(world, world.entry) == 6
    for stamp in range(45, 900, 10):
        world.play(stamp, [*range(30)])
    assert format_in(world, world.entry) == 5
    assert not world.entry.has_parts
    assert world.values()[of_shard(0)] == 88


def format_in(world: World, entry: Entry) -> int:
    """What an entry says in the log, which is what all its forms say."""
    data = bytes(world.files.read(world.log.path(entry.number)))
    said: int = json.loads(data.partition(b"\n")[0])["format"]
    assert json.loads(codec.to_bytes(entry).partition(b"\n")[0])["format"] == said
    assert b'"start":0' not in data
    return said


def test_an_older_version_refuses_an_entry_with_ranges_in_a_sentence() -> None:
    world = World()
    before = world.entry
    entry = world.play(5, [*range(30)])
    with mock.patch.object(codec, "FORMAT", 5), mock.patch.object(codec, "READABLE", (1, 2, 3, 4, 5)):
        with pytest.raises(DamagedError, match=r"has a format later than 5; upgrade persistent-state\."):
            Log(world.files, "app").newest()
        assert Log(world.files, "app").read(before.number) == before
    assert Log(world.files, "app").newest() == entry
