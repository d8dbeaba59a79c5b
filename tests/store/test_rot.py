"""A file that is damaged after a process has verified it: it is verified again if it changed, and for what is written on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from persistent_state import DamagedError
from persistent_state.batch import shard
from persistent_state.batch.plan import EXACTLY_ONCE
from persistent_state.drive.local import LocalDriver
from persistent_state.edges import base
from persistent_state.edges.changes import Changes
from persistent_state.edges.closed_windows import ClosedWindows
from persistent_state.store import blocks, lists
from persistent_state.store import runs as runs_io
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from persistent_state.store.named_files import Pages
from tests import core
from tests.fixtures.write_graph_store import Graph
from tests.protocol import test_graph, test_joins
from tests.protocol.test_restore import Ids, ReadTimes, Remembered, Windowed, planned, rows
from tests.simulation.planted import Bug
from tests.store.test_blocks import FarFiles, start_process, table_of, written

pytestmark = pytest.mark.rows_in_files


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    (tmp_path / "copies").mkdir()
    yield tmp_path / "copies"
    start_process()


def rot(place: Path, is_seen: bool) -> None:
    """Flip a bit of a value 57 of a file in its place. Where it is seen, the file's time says that it was written to."""
    before = place.stat()
    data = bytearray(place.read_bytes())
    data[max(0, data.find((57).to_bytes(8, "little")))] ^= 1
    with place.open("r+b") as file:
        file.write(data)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns + (10**9 if is_seen else 0)))


@pytest.mark.parametrize("has_blocks", [True, False])
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_run_that_was_verified_is_verified_again_if_it_changed_and_for_what_is_written_on(
    tmp_path: Path, has_blocks: bool, is_seen: bool
) -> None:
    files, table = open_files(str(tmp_path / "store")), table_of(range(60))
    run = written(files, table, 20)
    if not has_blocks:
        run = replace(run, file=runs_io.write_table(files, "a/old.arrow", table))
    assert runs_io.read_run(files, run).to_pylist() == table.to_pylist()
    rot(tmp_path / "store" / run.file.path, is_seen)
    with pytest.raises(DamagedError):
        runs_io.read_run(files, run, anew=True)
    if is_seen:
        for _ in range(2):
            with pytest.raises(DamagedError):
                runs_io.read_run(files, run)
    else:
        # Nothing says that it is another. So a look-up is as fast as it can be.
        assert not runs_io.read_run(files, run).equals(table)


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("asked", [None, [[3]]])
def test_a_copy_that_was_verified_is_fetched_again(copies: Path, asked: Any, is_seen: bool) -> None:
    files, table = FarFiles("memory://" + core.new_id()), table_of(range(600))
    run = written(files, table, 200)
    start_process(copies)
    arrays = None if asked is None else [np.array(some, np.uint64) for some in asked]
    for _ in range(2):
        # Not as a table: that is mapped.
        expected = runs_io.read_run(files, run, arrays).to_pylist()
    files.fetched.clear()
    for copy in copies.rglob("*"):
        if copy.is_file():
            rot(copy, is_seen)
    assert runs_io.read_run(files, run, arrays, anew=not is_seen).to_pylist() == expected
    assert files.fetched


def test_a_copy_in_use_is_not_verified_again_by_every_process(copies: Path) -> None:
    """The time of its use, by which copies leave, is not the time at which it was written to."""
    files = FarFiles("memory://" + core.new_id())
    run = written(files, table_of(range(60)), 20)
    runs_io.read_run(files, run)
    with mock.patch.object(blocks, "_checksum", side_effect=AssertionError("verified again")):
        for _ in range(3):
            runs_io.read_run(files, run)


def test_what_is_written_on_of_a_list_is_verified(tmp_path: Path) -> None:
    files, names = open_files(str(tmp_path)), iter(range(100))
    pages = Pages()
    for number in range(3):
        items = [f"{number} {i} {'x' * 90}" for i in range(40)]
        pages = lists.append(files, pages, items, lambda: f"a/{next(names)}")
    whole = lists.read(files, pages)
    rot(tmp_path / pages.files[-1].path, is_seen=False)
    more = lists.append(files, pages, ["y" * 90] * 100, lambda: f"a/{next(names)}")
    # It is named when somebody needs it, and is in no new file.
    assert pages.files[-1] in more.files
    with pytest.raises(DamagedError):
        lists.read(files, more)
    assert len(whole) == 120


@pytest.mark.parametrize("task", [Ids(), ReadTimes(), Remembered(), Windowed()], ids=lambda task: type(task).__name__)
def test_a_micro_batch_writes_nothing_on_damage(tmp_path: Path, task: Any) -> None:
    """A reader in the same process has verified all runs. Then bits flip, and nothing says so."""
    plan = replace(planned(task, EXACTLY_ONCE), files=open_files(str(tmp_path)))
    log = Log(plan.files, "app")
    core.start(log, [plan])
    entry = core.play(log, plan, rows((5, 57), (57, 57), (1005, 2)))
    core.state_at(entry, plan, None)
    (run, *_) = entry.tasks[plan.name].stored.runs
    rot(tmp_path / run.file.path, is_seen=False)

    def go_on() -> None:
        for number in range(3, 40):
            core.play(log, plan, rows((1000 + number, number)))

    with pytest.raises(DamagedError, match=run.file.path):
        go_on()


def nothing_read_without_verifying(play: Callable[[], Any]) -> int:
    """Play, and return how often a micro-batch or a step read a run."""
    reads, writing = 0, 0
    read_blocks = runs_io.read_blocks

    def read(files: Any, stored: Any, *which: Any) -> pa.Table:
        nonlocal reads
        reads += bool(writing)
        assert not writing or which[3], "what is written on is read without being verified"
        return read_blocks(files, stored, *which)

    def at_work(act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any, **more: Any) -> Any:
            nonlocal writing
            writing += 1
            try:
                return act(*given, **more)
            finally:
                writing -= 1

        return wrapped

    with (
        mock.patch.object(runs_io, "read_blocks", read),
        mock.patch.object(LocalDriver, "take_turn", at_work(LocalDriver.take_turn)),
    ):
        play()
    return reads


def closed_windows() -> None:
    """Let windows close that feed a task."""
    world = test_graph.Graph()
    world.wanted = ["PerSlot", "Slots"]
    world.start()
    for time in range(5, 305, 10):
        world.play("PerSlot", [(time, shop, 1) for shop in range(8)])
        world.steps()


def graph() -> None:
    """Let tasks feed tasks by what changes and by emitted rows, one of them in order and with timers."""
    Graph(core.memory(), 2, 20).begin().read(60)


JOINED = [[("a", 5, True), ("a", 9, False), ("b", 12, False)], "play", "step", [("a", 30, True), ("a", 40, False)]] * 3


@pytest.mark.parametrize(
    "play",
    [
        graph,
        closed_windows,
        lambda: test_joins.play(test_joins.as_of(20), JOINED, 2),
        lambda: test_joins.play(test_joins.interval(10, 10, "left"), JOINED, 2),
    ],
    ids=["graph", "closed windows", "as of", "interval"],
)
def test_every_merge_and_every_step_verifies_what_it_reads(play: Callable[[], Any]) -> None:
    assert nothing_read_without_verifying(play) > 10


@pytest.mark.parametrize(
    ("target", "right", "play"),
    [
        (shard._open, "anew=True", graph),
        (base.open_runs, ", anew=True", graph),
        (Changes.read, "every=span.every, ended=span.ended, anew=True", graph),
        (ClosedWindows.read, "span.clock, since, anew=True", closed_windows),
    ],
)
def test_a_merge_or_a_step_that_believes_what_was_verified_before_is_found(
    target: Any, right: str, play: Callable[[], Any]
) -> None:
    wrong = right.replace("anew=True", "anew=False")
    with Bug("old", "old", target, ((right, wrong),)).planted(), pytest.raises(AssertionError, match="being verified"):
        nothing_read_without_verifying(play)
