"""Drivers on this machine alone are killed at any moment, their workers too, and paused: nothing is lost, doubled or left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from persistent_state import ParquetSink
from persistent_state.cli.run import DONE, FENCED
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests.local.test_command import Command, state
from tests.local.test_engine import expected, without_spark, write
from tests.soak import soak_or
from tests.spark import stream
from tests.spark.stream import Stream
from tests.waiting import PATIENCE, until

LIVES = soak_or(ci=4, soak=80)
"""Drivers that are killed."""

MAIN = "from tests.local.driver import main; import sys; main(*sys.argv[1:])"


def start(folder: Path, how: str, workers: int, shards: int, kind: str = "stream") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", MAIN, kind, str(folder), how, str(workers), str(shards)]
    return subprocess.Popen(command, env=without_spark(folder), cwd=folder)


def workers_of(pid: int) -> set[int]:
    """The workers of a driver, also of one that is gone: each is started with the id of its driver."""
    pids = set[int]()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if len(words) > 5 and "persistent_state.local.worker" in words[2] and words[4] == str(pid):
                pids.add(process.pid)
    return pids


def entries(folder: Path) -> int:
    """The number of the newest entry of a store."""
    entry = Log(open_files(str(folder / "store")), stream.NAME).newest() if (folder / "store").exists() else None
    return entry.number if entry else 0


@pytest.mark.soak
def test_a_store_is_exact_by_any_number_of_workers_and_shards_whatever_is_killed_when(tmp_path: Path) -> None:
    chance, sent, killed = random.Random(41), Stream(tmp_path / "stream", seed=41), list[int]()
    for life in range(LIVES):
        sent.grow(files=6)
        driver = start(tmp_path, "start", life % 3 + 1, chance.randint(1, 3), ("running", "stream")[life % 2])
        try:
            until(lambda driver=driver: workers_of(driver.pid), "the workers", driver)
            wanted = entries(tmp_path) + chance.randrange(8)
            until(lambda wanted=wanted: entries(tmp_path) >= wanted, "entries", driver)
            workers = sorted(workers_of(driver.pid))
            for worker in chance.sample(workers, chance.randint(0, len(workers))):
                killed.append(worker)
                os.kill(worker, signal.SIGKILL)
            time.sleep(chance.random() / 3)
        finally:
            driver.kill()
            driver.wait()
        until(lambda driver=driver: not workers_of(driver.pid), "the end of the workers")
        stream.check_cut(tmp_path, sent)
        if entries(tmp_path):
            stream.check_clocks(tmp_path, sent)
    assert killed
    last = start(tmp_path, "drain", 2, 2)
    assert last.wait(PATIENCE) == 0
    assert not workers_of(last.pid)
    stream.check_clocks(tmp_path, sent)
    assert min(stream.check_end(tmp_path, sent).values()) > 0
    for task in stream.THREE:
        given = ParquetSink(tmp_path / "out" / task.task_name).latest()
        assert dict(zip(given["key"].to_pylist(), given["value"].to_pylist(), strict=True)) == stream.state(
            tmp_path, task
        )


@pytest.mark.soak
@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(soak_or(ci=1, soak=20)))
def test_a_driver_that_was_paused_while_another_took_over_ends_fenced_and_changes_nothing(
    tmp_path: Path, seed: int
) -> None:
    for file in range(12):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
    paused = Command(tmp_path, "shops:app", "--follow")
    try:
        until(lambda: '"batch":2,' in (tmp_path / "out").read_text(), "a commit", paused.process)
        time.sleep(random.Random(seed).random() / 4)
        paused.process.send_signal(signal.SIGSTOP)
        write(tmp_path / "in", 12, range(120, 130))
        assert Command(tmp_path, "shops:app", "--drain", out="second").ended()[0] == DONE
        before = kept(tmp_path)
        assert before["state"] == before["given"] == expected(130)
        paused.process.send_signal(signal.SIGCONT)
        status, last = paused.ended()
    finally:
        paused.process.kill()
    assert (status, last["result"]) == (FENCED, "fenced")
    assert not workers_of(paused.process.pid)
    assert kept(tmp_path) == before


def kept(folder: Path) -> dict[str, Any]:
    """All that a driver which was fenced must leave as it is."""
    given = ParquetSink(folder / "written").latest()
    return {
        "state": state(folder),
        "given": dict(zip(given["shop"].to_pylist(), given["value"].to_pylist(), strict=True)),
        "rows": sorted(map(str, ParquetSink(folder / "written").paths())),
        # One that is paused while it writes an entry has a file beside it.
        "log": {path.name: path.read_bytes() for path in (folder / "store" / "shops" / "log").glob("*.json")},
    }
