"""Real drivers on a real Spark, killed with SIGKILL at every step they take in the store, at random ones, and as a group.

Each victim is the restart after the one before it, with another number of shards and another checkpoint interval.
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

from persistent_state.clock import Position
from persistent_state.sources.files import ROW_BITS, STRAND
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests.spark.conftest import Launch, Rehearsal
from tests.spark.stream import NAME, Stream, check_cut, check_end, progress

PHASES = ("start", "commit", "collect", "close")
WRITES = ("create", "delete")
GROUP = "group"
CHAINS = 2
"""Chains of victims that run side by side: a start of Spark keeps one core busy."""


@dataclass
class Chain:
    """Drivers one after the other over one store and one growing stream."""

    folder: Path
    seed: int
    launch: Launch
    links: int = 0
    stream: Stream = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.stream = Stream(self.folder / "stream", self.seed)

    def kill(self, point: str) -> None:
        """Start the next driver and see it die: at a step, or with its process group soon after its second commit."""
        self._keep_unread(files=2 if point.startswith("close") else 8)
        if point == GROUP:
            begun = len(progress(self.folder))
            victim = self._start()
            while len(progress(self.folder)) < begun + 2:
                assert victim.poll() is None, self._log()
                time.sleep(0.05)
            time.sleep(random.Random(self.seed).random() / 2)
            os.killpg(victim.pid, signal.SIGKILL)
        else:
            victim = self._start("--die", point, "--from-call", "2" if point.startswith("commit") else "1")
        # Its JVM lives a little longer, and meets the next driver.
        assert victim.wait(timeout=120) == -signal.SIGKILL, f"{point}: {self._log()}"
        check_cut(self.folder, self.stream)

    def finish(self) -> dict[str, int]:
        """Let a last driver come to the end, unharmed."""
        driver = self._start()
        assert driver.wait(timeout=120) == 0, self._log()
        check_cut(self.folder, self.stream)
        return check_end(self.folder, self.stream)

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        shards, interval = self.links % 3 + 1, ("10 seconds", "15 seconds")[self.links % 2]
        self.links += 1
        told = [str(self.folder), "--shards", str(shards), "--interval", interval, *arguments]
        return self.launch("-m", "tests.spark.victim", *told, folder=self.folder)

    def _keep_unread(self, files: int) -> None:
        while self.stream.files - self._read() < files:
            self.stream.grow()

    def _read(self) -> int:
        """How many files both tasks have committed."""
        entry = Log(open_files(str(self.folder / "store")), NAME).newest()
        if entry is None:
            return 0
        positions = [task.positions.get(STRAND, Position()) for task in entry.tasks.values()]
        return min(position.next >> ROW_BITS for position in positions)

    def _log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]


def crash_points(steps: Sequence[str]) -> dict[str, list[str]]:
    """By phase, the steps to kill before, which is after the ones before them: in the order of the record.

    Of a start and a commit these are all; of a collection and a close the first, those that change the store, and those
    right after.
    """
    points: dict[str, dict[str, None]] = {phase: {} for phase in PHASES}
    before: dict[str, str] = {}
    for step in steps:
        call, phase, operation, rest = step.split(" ", 3)
        tells = phase in ("start", "commit") or operation in WRITES or before.get(phase + call, "delete") in WRITES
        before[phase + call] = operation
        if tells:
            points[phase][f"{phase} {operation} {rest}"] = None
    return {phase: list(found) for phase, found in points.items()}


def test_a_store_is_exact_whatever_step_its_drivers_are_killed_at(
    rehearsal: Rehearsal, launch: Launch, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    points = crash_points(rehearsal.steps)
    assert {phase for phase, found in points.items() if any(step.split()[1] in WRITES for step in found)} == {*PHASES}
    chance = random.Random(2013)
    at_random = [str(chance.randrange(10, 50)) for _ in range(2)]
    in_midstream = [*points["commit"], *points["collect"], *at_random, GROUP]
    # A start has something to take back only after a kill in mid-stream.
    plans = [
        [point for pair in zip_longest(in_midstream[i::CHAINS], points["start"][i::CHAINS]) for point in pair if point]
        + points["close"][i::CHAINS]
        for i in range(CHAINS)
    ]
    chains = [Chain(tmp_path / str(seed), seed, launch) for seed in range(1, CHAINS + 1)]
    failed = threading.Event()

    def run(chain: Chain, plan: Sequence[str]) -> dict[str, int]:
        try:
            for point in plan:
                assert not failed.is_set(), "the other chain failed"
                chain.kill(point)
            return chain.finish()
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(CHAINS) as pool:
        ends = list(pool.map(run, chains, plans))
    for chain, end in zip(chains, ends, strict=True):
        replayed = sum(told["replayed"] for told in progress(chain.folder))
        record_property("told", f"{chain.links} drivers, {replayed} messages replayed, and both tasks hold: {end}")
        assert replayed > 0
        assert end["late"] > 0
