"""Real drivers on a real Spark, killed with SIGKILL at every step they take in the store, at random ones, and as a group.

Of most only the Python is killed, and of some only the JVM, which the Python then tells before it ends.

Each victim is the restart after the one before it, with another number of shards and another checkpoint interval. Where three
tasks have one source, a driver is killed at any moment, too.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import pytest

from persistent_state.event_time.positions import Position
from persistent_state.sources.files import PARTITION, ROW_BITS
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests.soak import IS_SOAK, drawn, soak_or
from tests.spark.conftest import Launch, Rehearsal
from tests.spark.sessions import Jvm
from tests.spark.stream import NAME, Stream, check_clocks, check_cut, check_end, progress
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.kills

PHASES = ("start", "commit", "collect", "close")
WRITES = ("create", "delete")
GROUP, JVM = "group", "jvm:"
KILLED = "the JVM is killed"
OF_JVM = ("start", "commit")
"""The JVM is killed before each write of these phases, in a soak before each step; of the others before the first write."""

AT_RANDOM = soak_or(ci=1, soak=40)
"""Drivers that are killed at any step."""

OF_THREE = soak_or(ci=3, soak=40)
"""Drivers of three tasks that are killed at any moment."""

OF_BOTH = soak_or(ci=4, soak=40)
"""Drivers that are killed at any moment, each on the other engine than the one before it."""

TRIES = 4
"""The most drivers that are started until one writes or deletes a file of a kept clock, and dies there."""

CHAINS = 2
"""Chains of victims that run side by side: a start of Spark keeps one core busy."""


def tries(point: str) -> range:
    """Return as many numbers as there are tries to meet a step.

    How many files of kept clocks a collection writes and deletes depends on those of the drivers before it.
    """
    return range(TRIES if " kept" in point else 1)


@dataclass
class Chain:
    """Drivers one after the other over one store and one growing stream."""

    folder: Path
    seed: int
    launch: Launch
    jvm: Jvm
    links: int = 0
    stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.stream = Stream(self.folder / "stream", self.seed)

    def kill(self, point: str) -> None:
        """Start the next driver and see it die at a step, or as the point says."""
        if point == GROUP:
            return self.kill_group()
        if point.startswith(JVM):
            return self.kill_jvm(point.removeprefix(f"{JVM} "))
        for _ in tries(point):
            self._prepare(point)
            status = self._start("--die", point, *self._from_call(point)).wait(PATIENCE)
            if status != 0:
                break
        assert status == -signal.SIGKILL, f"{point}: {self._log()}"
        check_cut(self.folder, self.stream)

    def kill_group(self) -> None:
        """Start the next driver and kill it with its process group soon after its second commit."""
        self._prepare(GROUP)
        begun = len(progress(self.folder))
        victim = self._start(alone=True)
        until(lambda: len(progress(self.folder)) >= begun + 2, "commits", victim, self.folder / "log")
        time.sleep(random.Random(self.seed).random() / 2)
        os.killpg(victim.pid, signal.SIGKILL)
        # Its JVM lives a little longer, and meets the next driver.
        assert victim.wait(PATIENCE) == -signal.SIGKILL, self._log()
        check_cut(self.folder, self.stream)

    def kill_jvm(self, point: str) -> None:
        """Start the next driver, see its JVM die at a step, and the driver end and say why."""
        out = self.folder / "out"
        killed = out.read_text().count(KILLED) if out.exists() else 0

        def is_killed() -> bool:
            return out.exists() and out.read_text().count(KILLED) > killed

        for _ in tries(point):
            self._prepare(point)
            victim = self._start("--die", point, "--of", "jvm", *self._from_call(point), alone=True)
            until(lambda victim=victim: is_killed() or victim.poll() is not None, f"{point}: the end of the JVM")
            if is_killed():
                break
        assert is_killed(), f"{point}: {self._log()}"
        status = victim.wait(PATIENCE)
        # Only what is done after all queries have ended needs no JVM. The last collection of a run is.
        if not point.startswith("close") and not (point.startswith("collect") and status == 0):
            assert status == 1, f"{point}: {self._log()}"
            assert "persistent_state.errors.StateError: Spark's JVM is gone" in self._log().splitlines()[-1]
        check_cut(self.folder, self.stream)

    def finish(self) -> dict[str, int]:
        """Let a last driver come to the end, unharmed."""
        driver = self._start()
        assert driver.wait(PATIENCE) == 0, self._log()
        check_cut(self.folder, self.stream)
        return check_end(self.folder, self.stream)

    def _prepare(self, point: str) -> None:
        self._keep_unread(files=2 if point.startswith("close") else 8)

    @staticmethod
    def _from_call(point: str) -> Sequence[str]:
        return ("--from-call", "2" if point.startswith("commit") else "1")

    def _start(self, *arguments: str, alone: bool = False) -> subprocess.Popen[bytes]:
        """Start the next driver, in a JVM that is there or with one of its own."""
        shards, interval = self.links % 3 + 1, ("10 seconds", "15 seconds")[self.links % 2]
        self.links += 1
        told = [str(self.folder), "--shards", str(shards), "--interval", interval, "--rows-in-files", *arguments]
        return self.launch("-m", "tests.spark.victim", *told, folder=self.folder, **({} if alone else self.jvm.env))

    def _keep_unread(self, files: int) -> None:
        while self.stream.files - self._read() < files:
            self.stream.grow()

    def _read(self) -> int:
        """How many files all tasks have committed."""
        entry = Log(open_files(str(self.folder / "store")), NAME).newest()
        if entry is None:
            return 0
        positions = [flow.source.positions.get(PARTITION, Position()) for flow in entry.flows.values()]
        return min(position.next >> ROW_BITS for position in positions)

    def _log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]


def crash_points(steps: Sequence[str]) -> dict[str, list[str]]:
    """By phase, the steps to kill before, which is after the ones before them: in the order of the record.

    These are the first, those that change the store, and those right after: a kill at another step leaves the store as one of
    these does. A soak takes all of a start and a commit.
    """
    points: dict[str, dict[str, None]] = {phase: {} for phase in PHASES}
    before: dict[str, str] = {}
    for step in steps:
        call, phase, operation, rest = step.split(" ", 3)
        is_whole = phase in soak_or(ci=(), soak=("start", "commit"))
        is_one = is_whole or operation in WRITES or before.get(phase + call, "delete") in WRITES
        before[phase + call] = operation
        if is_one:
            points[phase][f"{phase} {operation} {rest}"] = None
    return {phase: list(found) for phase, found in points.items()}


@pytest.mark.soak
def test_a_store_is_exact_whatever_step_its_drivers_are_killed_at(
    rehearsal: Rehearsal,
    launch: Launch,
    jvms: Sequence[Jvm],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    points = crash_points(rehearsal.steps)
    assert {phase for phase, found in points.items() if any(step.split()[1] in WRITES for step in found)} == {*PHASES}
    chance = random.Random(2013)
    at_random = [str(chance.randrange(10, 50)) for _ in range(AT_RANDOM)]
    for phase in PHASES:
        points[phase] = found = drawn(points[phase], one_in=4)
        writes = [point for point in found if point.split()[1] in WRITES]
        of_jvm = soak_or(ci=writes, soak=[*found]) if phase in OF_JVM else writes[:1]
        found += [f"{JVM} {point}" for point in of_jvm]
    # What collects need not die in mid-stream: it also comes at the end of a run, and before the first commit.
    anywhere = [*points["commit"], *points["collect"], *at_random, *[GROUP] * CHAINS]
    plans = [
        [
            point
            for kill, start in zip_longest(anywhere[i::CHAINS], points["start"][i::CHAINS])
            # A start has something to take back, and reads it, only after a kill in mid-stream.
            for point in (kill, GROUP if start and "read runs" in start else None, start)
            if point is not None
        ]
        + points["close"][i::CHAINS]
        for i in range(CHAINS)
    ]
    chains = [Chain(tmp_path / str(seed), seed, launch, jvms[seed - 1]) for seed in range(1, CHAINS + 1)]
    failed = threading.Event()

    def run(chain: Chain, plan: Sequence[str]) -> dict[str, int]:
        try:
            for point in plan:
                if failed.is_set():
                    # The other chain says why.
                    return {}
                chain.kill(point)
            return chain.finish()
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(CHAINS) as pool:
        ends = list(pool.map(run, chains, plans))
    replayed = [sum(told["replayed"] for told in progress(chain.folder)) for chain in chains]
    for chain, again, end in zip(chains, replayed, ends, strict=True):
        record_property(
            "told", f"{chain.links - 1} drivers killed, {again} messages replayed, and both tasks hold: {end}"
        )
        assert end["late"] > 0
    # Of the few kills of a commit, those of one chain may all come when nothing is under way.
    assert all(replayed) if IS_SOAK else any(replayed)


@pytest.mark.soak
def test_three_tasks_of_one_source_are_exact_at_every_clock_whenever_their_driver_is_killed(
    launch: Launch, jvms: Sequence[Jvm], tmp_path: Path
) -> None:
    chance, sent, clocks = random.Random(3), Stream(tmp_path / "stream", seed=3), 0

    def driver(link: int, *arguments: str) -> subprocess.Popen[bytes]:
        sent.grow(6)
        told = ["--three", "--shards", str(link % 3 + 1), "--interval", ("10 seconds", "15 seconds")[link % 2]]
        return launch(
            "-m", "tests.spark.victim", str(tmp_path), *told, *arguments, folder=tmp_path, **jvms[link % 2].env
        )

    def lines(name: str) -> int:
        return len((tmp_path / name).read_text().splitlines()) if (tmp_path / name).exists() else 0

    for link in range(OF_THREE):
        # Each commit tells of three tasks. The steps come before the first commit.
        file, more = ("steps", 1) if link % 3 == 2 else ("progress", 3 * chance.randint(1, 2))
        begun = lines(file)
        victim = driver(link, "--continuous")
        wanted = begun + more
        until(lambda file=file, wanted=wanted: lines(file) >= wanted, file, victim, tmp_path / "log")
        time.sleep(chance.random())
        victim.kill()
        assert victim.wait(PATIENCE) == -signal.SIGKILL
        clocks += check_clocks(tmp_path, sent)
    last = driver(OF_THREE)
    assert last.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    assert clocks + check_clocks(tmp_path, sent) > OF_THREE
    assert check_end(tmp_path, sent)["late"] > 0
    assert sum(told["replayed"] for told in progress(tmp_path)) > 0


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_starts_by_both_engines_in_turns_are_exact_at_every_clock_whenever_their_driver_is_killed(
    launch: Launch, jvms: Sequence[Jvm], tmp_path: Path
) -> None:
    chance, sent, clocks = random.Random(41), Stream(tmp_path / "stream", seed=41), 0

    def driver(link: int, *arguments: str) -> subprocess.Popen[bytes]:
        sent.grow(6)
        options = ["--three", "--shards", str(link % 3 + 1), "--interval", ("10 seconds", "15 seconds")[link // 2 % 2]]
        by_spark, workers = link % 2 == 0, ("--workers", str(link % 4 // 2 + 1))
        engine, env = ((), jvms[link // 2 % 2].env) if by_spark else (workers, {})
        return launch("-m", "tests.spark.victim", str(tmp_path), *options, *engine, *arguments, folder=tmp_path, **env)

    for link in range(OF_BOTH):
        # Each commit has three lines.
        wanted = len(progress(tmp_path)) + 3 * chance.randint(1, 3)
        victim = driver(link, "--continuous")
        until(lambda wanted=wanted: len(progress(tmp_path)) >= wanted, "commits", victim, tmp_path / "log")
        time.sleep(chance.random() / 2)
        victim.kill()
        assert victim.wait(PATIENCE) == -signal.SIGKILL
        clocks += check_clocks(tmp_path, sent)
    for link in (OF_BOTH, OF_BOTH + 1):
        last = driver(link)
        assert last.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
        clocks += check_clocks(tmp_path, sent)
        assert check_end(tmp_path, sent)["late"] > 0
    assert clocks > OF_BOTH
    assert sum(each["replayed"] for each in progress(tmp_path)) > 0
