"""Tests on a real Spark: one shared session for those that need no process of their own, and processes that can be killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persistent_state.engine.spark.java import java_problem
from tests.spark import sessions
from tests.spark.stream import Stream, check_end
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Launch = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    if problem := java_problem():
        if "CI" in os.environ:
            pytest.fail(problem)
        pytest.skip(problem)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pyspark import SparkContext

    with pytest.MonkeyPatch.context() as patch:
        for name, value in sessions.environment().items():
            patch.setenv(name, value)
        # It runs hundreds of queries. With half of this its JVM ran out of memory, as Spark keeps something of each.
        session = sessions.new_session("tests", settings={"spark.driver.memory": "1g"})
        yield session
        session.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()  # a gateway ends with its input
        gateway.proc.wait(PATIENCE)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(autouse=True)
def _jvm_lives(request: pytest.FixtureRequest) -> Iterator[None]:
    """Name the test in which the JVM of all tests ended, and how: the next ones could only say that it is gone."""
    yield
    if "spark" in request.fixturenames:
        from pyspark import SparkContext

        assert SparkContext._gateway is not None
        status = SparkContext._gateway.proc.poll()
        assert status is None, (
            f"the JVM ended with status {status}: 52 is of one without memory, -9 of one that was killed"
        )


@pytest.fixture(autouse=True)
def _sinks_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine, too, a start goes on without a sink only where a test is about that."""
    from persistent_state.run import deliveries

    monkeypatch.setattr(deliveries, "OPEN_SECONDS", PATIENCE)
    monkeypatch.setattr(deliveries, "END_SECONDS", PATIENCE)


@dataclass(frozen=True)
class Rehearsal:
    """A run of the victim that nobody harmed: the steps that it took, and what makes the next JVMs start faster."""

    steps: Sequence[str]
    java_options: str


@pytest.fixture(scope="session")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """One for all processes of pytest-xdist, whose folders stand in one."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder = shared / "rehearsal"
    with (shared / "rehearsal.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "spark.jsa").exists():
            folder.mkdir()
            rehearse(folder)
    return Rehearsal((folder / "steps").read_text().splitlines(), f"-XX:SharedArchiveFile={folder / 'spark.jsa'}")


def rehearse(folder: Path) -> None:
    stream = Stream(folder / "stream", seed=0)
    for _ in range(4):
        stream.grow()
    # The JVM writes down the classes it has loaded, and another of the same class path need not load and verify them.
    archive = folder / "spark.jsa"
    process = sessions.start(
        ["-m", "tests.spark.victim", str(folder), "--twice", "--rows-in-files"],
        folder,
        sessions.environment(f"-XX:ArchiveClassesAtExit={archive}"),
    )
    try:
        assert process.wait(PATIENCE) == 0, (folder / "log").read_text()
    finally:
        sessions.end_sessions([process])
    check_end(folder, stream)


@pytest.fixture(scope="session")
def jvms(rehearsal: Rehearsal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[sessions.Jvm]]:
    """Two JVMs, each for one driver at a time: what `launch` is given as **jvm.env starts and ends in it."""
    env = sessions.environment(rehearsal.java_options)
    with ThreadPoolExecutor(2) as pool:
        started = list(pool.map(lambda name: sessions.start_jvm(tmp_path_factory.mktemp(name), env), ("jvm", "jvm")))
    yield started
    sessions.end_sessions([jvm.process for jvm in started])


@pytest.fixture(scope="module")
def launch(rehearsal: Rehearsal) -> Iterator[Launch]:
    """Start Python programs, of which nothing is left after the tests of a file."""
    processes: list[subprocess.Popen[bytes]] = []

    def launch(*arguments: str, folder: Path, **env: str) -> subprocess.Popen[bytes]:
        process = sessions.start(arguments, folder, sessions.environment(rehearsal.java_options, **env))
        processes.append(process)
        return process

    yield launch
    sessions.end_sessions(processes)
