"""Real drivers of a graph of tasks, killed with SIGKILL at the steps that they take in the store.

Each victim is the restart after the one before it, with another number of shards and another checkpoint interval. After each
kill, at each retained clock, each task is made of what feeds it, or is what plain Python makes of the messages.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.soak import drawn, soak_or
from tests.spark import beside, pipeline, stream
from tests.spark.conftest import Launch
from tests.spark.pipeline import grow, newest
from tests.spark.sessions import Jvm
from tests.spark.test_kills import JVM, KILLED, WRITES
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.kills

RUN, TIME = "run:", "any time"
PHASES = ("start", "commit", "step", "unchanged", "collect", "close")
CHAPTER = 60
"""Seconds of messages in a file: a multiple of every checkpoint interval in use, so that nothing is late after a close."""

ALL_STEPS = ("PerRegion", "Total", "Best", "Rares", "Watch", "Said")
OF_A_STEP = [f"{RUN} {task}" for task in soak_or(ci=("PerRegion", "Watch"), soak=ALL_STEPS)]
"""The driver is killed while workers write the runs of a step of these tasks."""

OF_BESIDE = (
    "both create log 1",
    "commit create log 1",
    "step create log 1",
    "both look log after",
    f"{RUN} Both",
    "unchanged create log 1",
    "start create log 1",
    f"{RUN} Gained",
    f"{RUN} Near.messages",
    f"{RUN} Near.rows",
)
"""Where drivers of the graph of `beside` are killed: in tasks that a source and a task feed, of which one is a join,
and in those that see changes."""

CHECKS = {"pipeline": pipeline.check, "beside": beside.check}
"""By graph: what is looked at after each kill."""

AT_ANY_TIME = soak_or(ci=1, soak=40)
CHAINS = 2


@dataclass
class Chain:
    """Drivers one after the other over one store and one growing folder."""

    folder: Path
    seed: int
    launch: Launch
    jvm: Jvm
    graph: str = "pipeline"
    links: int = 0
    files: int = 0
    clocks: int = 0

    def kill(self, point: str) -> None:
        """Start the next driver and see it, or its JVM, die at a point."""
        told: list[str] = []
        if point.startswith(RUN):
            told = ["--die-at-run", point.removeprefix(f"{RUN} ")]
        elif point.startswith(JVM):
            told = ["--die", point.removeprefix(f"{JVM} "), "--of", "jvm"]
        elif point != TIME:
            told = ["--die", point]
        # Of steps not the first, so that some tasks are ahead of others, or a global clock is newer than the start.
        told += ["--from-call", str(2 * (self.links % 3) + 3)] if "step" in point or "both" in point else []
        driver = self._start(*told, alone=point.startswith(JVM))
        if point == TIME:
            self._await_steps(driver)
            driver.kill()
        status = driver.wait(PATIENCE)
        if point.startswith(JVM):
            assert KILLED in (self.folder / "out").read_text()
            assert status == 1, f"{point}: {self._log()}"
            assert "persistent_state.errors.StateError: Spark's JVM is gone" in self._log().splitlines()[-1]
        else:
            assert status == -signal.SIGKILL, f"{point}: {self._log()}"
        self._check()

    def finish(self) -> Sequence[str]:
        """Let a driver come to the end, unharmed. Return the steps that it took."""
        record = self.folder / "steps"
        record.unlink(missing_ok=True)
        driver = self._start()
        assert driver.wait(PATIENCE) == 0, self._log()
        self._check()
        entry = newest(self.folder)
        assert entry.clock == self.files * CHAPTER * 1_000_000
        assert all(entry.is_at(name, entry.clock) for name in entry.tasks)
        return record.read_text().splitlines()

    def _await_steps(self, driver: subprocess.Popen[bytes]) -> None:
        """Wait until a derived task has come to a clock, and a little longer."""
        chance = random.Random(self.seed * 100 + self.links)
        begun = len(stream.progress(self.folder))
        told = lambda: {each["task"] for each in stream.progress(self.folder)[begun:]}  # noqa: E731
        until(lambda: "PerRegion" in told(), "a step", driver, self.folder / "log")
        time.sleep(chance.random() / 2)

    def _check(self) -> None:
        self.clocks += CHECKS[self.graph](self.folder, self.files * CHAPTER)

    def _start(self, *arguments: str, alone: bool = False) -> subprocess.Popen[bytes]:
        for _ in range(2):
            grow(self.folder, self.files, range(self.files * CHAPTER, (self.files + 1) * CHAPTER))
            self.files += 1
        shards, interval = self.links % 3 + 1, ("10 seconds", "15 seconds")[self.links % 2]
        self.links += 1
        told = [str(self.folder), "--graph", self.graph, "--shards", str(shards), "--interval", interval, *arguments]
        return self.launch("-m", "tests.spark.victim", *told, folder=self.folder, **({} if alone else self.jvm.env))

    def _log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]


def points_of(steps: Sequence[str]) -> list[str]:
    """The steps of a record to kill before. In CI those that change the store, and of the steps of tasks those right after."""
    # A commit is tried a second time only where another has come between, which no restart can be made to do.
    found = dict.fromkeys(name for step in steps if "create log 2" not in (name := step.split(" ", 1)[1]))
    assert {step.split()[0] for step in found} == {*PHASES}
    writes = [step for step in found if step.split()[1] in WRITES]
    after = [
        step.replace("create log 1", "look log after") for step in writes if step.startswith(("step", "unchanged"))
    ]
    assert {*after} <= {*found}
    of_jvm = soak_or(ci=["step create log 1"], soak=[step for step in found if step.startswith(("step", "unchanged"))])
    chosen = soak_or(ci=[*writes, *after], soak=[*found])
    return [*chosen, *OF_A_STEP, *([TIME] * AT_ANY_TIME), *(f"{JVM} {step}" for step in of_jvm)]


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_graph_is_one_cut_at_every_clock_whenever_its_driver_is_killed(
    launch: Launch, jvms: Sequence[Jvm], tmp_path: Path
) -> None:
    chains = [Chain(tmp_path / str(seed), seed, launch, jvms[seed]) for seed in range(CHAINS)]
    for chain in chains:
        chain.folder.mkdir()
    with ThreadPoolExecutor(CHAINS) as pool:
        steps, *_ = pool.map(Chain.finish, chains)
    _kill(chains, drawn(points_of(steps), one_in=6))


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_what_changes_between_fixed_times_is_exact_beside_sources_whenever_the_driver_is_killed(
    launch: Launch, jvms: Sequence[Jvm], tmp_path: Path
) -> None:
    chains = [Chain(tmp_path / str(seed), seed, launch, jvms[seed], "beside") for seed in range(CHAINS)]
    for chain in chains:
        chain.folder.mkdir()
    _kill(chains, drawn(OF_BESIDE * soak_or(ci=1, soak=10), one_in=2))


def _kill(chains: Sequence[Chain], points: Sequence[str]) -> None:
    """Let drivers die at these points, and one of each chain come to the end."""
    failed = threading.Event()

    def run(chain: Chain) -> int:
        try:
            for point in points[chain.seed :: CHAINS]:
                assert not failed.is_set(), "the other chain failed"
                chain.kill(point)
            chain.finish()
        except BaseException:
            failed.set()
            raise
        return chain.clocks

    with ThreadPoolExecutor(CHAINS) as pool:
        clocks = list(pool.map(run, chains))
    assert min(clocks) > len(points) // CHAINS
