"""What else fails on a real Spark than its driver: workers, first attempts, the store, the disk, and drivers that meet.

The state and the late and bad rows come to what plain Python makes of the stream each time, and the store is whole.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from persistent_state import StateError, application
from persistent_state.drive import backoff
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.protocol.global_clock import Keeping
from persistent_state.run import garbage
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log
from persistent_state.store.verify import verify
from tests import core
from tests.soak import soak_or
from tests.spark import sessions, stream
from tests.spark.conftest import Launch
from tests.spark.faults import FaultyFiles, Schedule, Stumbles
from tests.spark.stream import NAME, Stream, check_cut, check_end, progress
from tests.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persistent_state.run.progress import Progress

pytestmark = pytest.mark.kills

KILLS = soak_or(ci=8, soak=60)
AT_STORE = soak_or(ci=16, soak=200)
FAULTS = soak_or(ci=12, soak=100)
FAULTS_IN_A_ROW = 5
"""Faults of the store from one commit to the next: every start takes some twenty steps there to come to a commit."""
Tell = Callable[[str, object], None]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are short, and collections of the tests' own drivers many."""
    monkeypatch.setattr(backoff, "LONGEST_WAIT", 0.1)
    monkeypatch.setattr(garbage, "EVERY_SECONDS", 0.3)
    monkeypatch.setattr(application, "Keeping", core.keeping_at_once)


def newest(folder: Path) -> Entry:
    entry = Log(open_files(str(folder / "store")), NAME).newest()
    assert entry is not None
    return entry


def check_store(folder: Path, sent: Stream) -> None:
    """The state at the global clock is right, and every file that the store names is whole."""
    check_cut(folder, sent)
    assert verify(str(folder / "store")).problems == ()


def finish(spark: SparkSession, folder: Path, sent: Stream) -> dict[str, int]:
    """Let an unharmed driver come to the end."""
    stream.application(folder, shards=3, interval="15 seconds").run(spark, drain=True)
    check_store(folder, sent)
    return check_end(folder, sent)


def is_planner(process: psutil.Process) -> bool:
    """Whether a process of Spark's Python plans the micro-batches of a source."""
    with suppress(psutil.Error):
        return "pyspark.sql.streaming.python_streaming_source_runner" in process.cmdline()
    return False


def pythons(spark: SparkSession) -> list[psutil.Process]:
    """The processes that plan for Spark and that work for it, but not those that only fork them."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    found = []
    for child in psutil.Process(gateway.proc.pid).children():
        with suppress(psutil.Error):
            found += [child] if is_planner(child) else child.children(recursive=True)
    return found


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_workers_and_planners_killed_at_random_moments_lose_and_double_no_message(
    spark: SparkSession, tmp_path: Path, record_property: Tell
) -> None:
    sent = Stream(tmp_path / "stream", seed=31)
    for _ in range(4):
        sent.grow()
    told: list[Progress] = []
    app = stream.application(tmp_path, shards=2, interval="10 seconds", max_restarts=KILLS)
    run = app.start(spark, on_progress=told.append)
    chance = random.Random(31)
    killed: Counter[str] = Counter()
    try:
        while killed.total() < KILLS:
            begun = len(told)
            sent.grow()
            until(lambda begun=begun: len(told) > begun, "a commit", lambda: run.is_active)
            time.sleep(chance.random() / 2)
            kind = "planner" if killed.total() % 4 == 0 else "worker"
            victims = [victim for victim in pythons(spark) if is_planner(victim) == (kind == "planner")]
            # A query can't do without its planner, but of the workers some are idle: all of them at once are one kill.
            hit = False
            for victim in victims[:1] if kind == "planner" else victims:
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
                    hit = True
            killed[kind] += hit
    finally:
        run.stop()
    run.await_termination()
    check_store(tmp_path, sent)
    assert min(killed["planner"], killed["worker"], run.restarts) > KILLS // 8
    end = finish(spark, tmp_path, sent)
    record_property("told", f"killed: {dict(killed)}, {run.restarts} restarts by itself, and both tasks hold: {end}")


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_a_store_that_fails_on_a_schedule_costs_restarts_and_no_message(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Tell
) -> None:
    sent = Stream(tmp_path / "stream", seed=32)
    for _ in range(4):
        sent.grow()
    schedule = Schedule(tmp_path, 7, ("before", "after", "kill before", "kill after"), FAULTS_IN_A_ROW)
    schedule.off.touch()

    def open_faulty(url: str, storage_options: Any = None) -> Files:
        return FaultyFiles(url, schedule=schedule)

    told: list[Progress] = []

    def tell(progress: Progress) -> None:
        told.append(progress)
        schedule.go_on()

    with monkeypatch.context() as patch:
        patch.setattr(application, "open_files", open_faulty)
        app = stream.application(tmp_path, shards=2, interval="10 seconds", max_restarts=1000)
        run = app.start(spark, on_progress=tell)
    schedule.off.unlink()
    try:
        while not is_met(schedule.told()):
            begun = len(told)
            sent.grow()
            until(lambda begun=begun: len(told) > begun, "a commit", lambda: run.is_active)
        schedule.off.touch()
    finally:
        run.stop()
    run.await_termination()
    check_store(tmp_path, sent)
    assert run.restarts > 0
    end = finish(spark, tmp_path, sent)
    faults = schedule.told()
    killed = sum(count for fault, count in faults.items() if fault.startswith("kill"))
    record_property(
        "told",
        f"{faults.total()} faults of the store, {killed} of them kills of workers at it, {run.restarts} restarts by itself, "
        f"and both tasks hold: {end}",
    )


def is_met(faults: Counter[str]) -> bool:
    """Whether there were faults of all that has to be done in the store, and many."""
    met = {tuple(fault.split(", ")[1:]) for fault in faults}
    own = {("driver or planner", operation) for operation in ("create", "read", "list")}
    return met >= own | {("task", "create"), ("task", "read")} and faults.total() >= FAULTS


def test_a_full_disk_ends_the_run_with_its_cause_and_with_room_the_next_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is collected, and what was written stays.
    monkeypatch.setattr(application, "Keeping", Keeping)
    sent = Stream(tmp_path / "stream", seed=33)
    for _ in range(8):
        sent.grow()
    with small_disk(tmp_path / "store", "300k"):
        app = stream.application(tmp_path, shards=2, interval="10 seconds", max_restarts=1)
        with pytest.raises(StateError) as failed:
            app.run(spark, drain=True)
        assert "No space left on device" in f"{failed.value} {failed.value.__cause__}"
        entry = newest(tmp_path)
        assert entry.clock > BEGINNING
        check_store(tmp_path, sent)
        subprocess.run(["mount", "-o", "remount,size=64m", str(tmp_path / "store")], check=True)
        finish(spark, tmp_path, sent)
        assert newest(tmp_path).number > entry.number


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        problem = f"no disk can be mounted here: {done.stderr.strip()}"
        if "CI" in os.environ:
            pytest.fail(problem)
        pytest.skip(problem)
    try:
        yield
    finally:
        # What is still mapped from it goes with the last who maps it.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_of_two_drivers_started_at_once_one_survives_and_the_other_is_fenced(
    spark: SparkSession, launch: Launch, jvms: Sequence[sessions.Jvm], tmp_path: Path
) -> None:
    sent = Stream(tmp_path / "stream", seed=34)
    for times in range(2):
        sent.grow()
        now = tmp_path / f"now-{times}"
        folders = [tmp_path / f"{times}-{i}" for i in range(2)]
        both = []
        for folder, jvm in zip(folders, jvms, strict=True):
            folder.mkdir()
            options = ["--continuous", "--shards", "1", "--when", str(now)]
            both.append(launch("-m", "tests.spark.victim", str(tmp_path), *options, folder=folder, **jvm.env))
        until(lambda folders=folders: all("ready" in (folder / "out").read_text() for folder in folders), "both")
        now.touch()
        until(lambda both=both: any(driver.poll() is not None for driver in both), "the end of one")
        (fenced,) = [i for i in range(2) if both[i].poll() is not None]
        assert both[fenced].wait() == 1
        assert "persistent_state.errors.FencedError: " in (folders[fenced] / "log").read_text().splitlines()[-1]
        begun, other = len(progress(tmp_path)), both[1 - fenced]
        sent.grow()
        until(lambda begun=begun: len(progress(tmp_path)) > begun, "a commit", other)
        other.terminate()
        assert other.wait(PATIENCE) == 0, (folders[1 - fenced] / "log").read_text()[-4000:]
        assert {told["epoch"] for told in progress(tmp_path)[begun:]} == {newest(tmp_path).epoch}
        check_store(tmp_path, sent)
    finish(spark, tmp_path, sent)


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_driver_paused_through_a_takeover_and_its_collection_is_fenced_and_changes_nothing(
    spark: SparkSession, launch: Launch, jvms: Sequence[sessions.Jvm], tmp_path: Path
) -> None:
    sent = Stream(tmp_path / "stream", seed=35)
    steps = ["commit create log 1", "commit look log after", "collect delete runs 1"]
    options = ["--pause", *steps, "--from-call", "2"]
    for _ in range(3):
        sent.grow()
    paused = launch("-m", "tests.spark.victim", str(tmp_path), *options, folder=tmp_path, **jvms[0].env)

    def is_paused() -> bool:
        return psutil.Process(paused.pid).status() == psutil.STATUS_STOPPED

    for times in range(1, len(steps) + 1):
        until(is_paused, "the pause", paused)
        epoch = newest(tmp_path).epoch
        sent.grow()
        stream.application(tmp_path, shards=3, interval="15 seconds").run(spark)
        entry = newest(tmp_path)
        assert entry.epoch > epoch
        check_store(tmp_path, sent)
        # So many that runs are rewritten, and there is something to delete.
        for _ in range(12):
            sent.grow()
        # Once fenced it starts again, as the newest driver, but for the last time.
        sessions.resume_sessions([paused, jvms[0].process])
        until(lambda times=times: (tmp_path / "out").read_text().count("fenced") == times, "the fence", paused)
    assert paused.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    assert newest(tmp_path) == entry
    finish(spark, tmp_path, sent)


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_the_second_attempt_of_a_task_commits_and_the_first_leaves_no_trace(
    launch: Launch, jvms: Sequence[sessions.Jvm], tmp_path: Path
) -> None:
    sent = Stream(tmp_path / "stream", seed=36)
    for _ in range(3):
        sent.grow()
    # Were it the run that starts again and not Spark, each first attempt would fail again.
    options = ["--master", "local[2,4]", "--stumble"]
    driver = launch("-m", "tests.spark.victim", str(tmp_path), *options, folder=tmp_path, **jvms[0].env)
    assert driver.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    stumbled = Stumbles(tmp_path / "stumbles").told()
    assert min(stumbled[where] for where in ("process_message", "process_batch", "create")) > 0
    check_store(tmp_path, sent)
    check_end(tmp_path, sent)


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_workers_killed_at_the_store_are_replaced_and_their_tasks_retried_by_spark(
    launch: Launch, jvms: Sequence[sessions.Jvm], tmp_path: Path, record_property: Tell
) -> None:
    sent = Stream(tmp_path / "stream", seed=37)
    for _ in range(3):
        sent.grow()
    options = ["--master", "local[2,4]", "--kill-every", "5", "--continuous"]
    driver = launch("-m", "tests.spark.victim", str(tmp_path), *options, folder=tmp_path, **jvms[1].env)
    schedule = Schedule(tmp_path, 5, ())
    while schedule.told().total() < AT_STORE:
        begun = len(progress(tmp_path))
        sent.grow()
        until(lambda begun=begun: len(progress(tmp_path)) > begun, "a commit", driver, tmp_path / "log")
    driver.terminate()
    assert driver.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    check_store(tmp_path, sent)
    schedule.off.touch()
    options = ["--master", "local[2,4]"]
    driver = launch("-m", "tests.spark.victim", str(tmp_path), *options, folder=tmp_path, **jvms[1].env)
    assert driver.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    check_store(tmp_path, sent)
    end = check_end(tmp_path, sent)
    killed = schedule.told()
    # Each of the two drivers started once, and seldom again.
    assert newest(tmp_path).epoch - 2 < AT_STORE // 5
    assert {fault.split(", ")[0] for fault in killed} == {"kill before", "kill after"}
    record_property("told", f"{killed.total()} workers killed whose tasks Spark retried, and both tasks hold: {end}")
