"""Time and processor time of a pass, and medians of several."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil


@dataclass
class Pass:
    """One run of a contender over a stream: seconds of each micro-batch, of the whole, and of processors.

    `ends` are the seconds from the beginning until each micro-batch was done.
    """

    batches: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    wall: float = 0.0
    cpu: float = 0.0


def cpu_seconds() -> float:
    """Processor time of this process and all below it, those included that have ended."""
    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        with suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def anonymous() -> int:
    """Bytes of memory of this process that no file is behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@contextmanager
def measured() -> Iterator[Pass]:
    taken = Pass()
    cpu, wall = cpu_seconds(), time.perf_counter()
    yield taken
    taken.wall, taken.cpu = time.perf_counter() - wall, cpu_seconds() - cpu


def is_timed(turn: int, repetitions: int) -> bool:
    """Return whether a pass counts: all but the first do, which warms up. With 0 repetitions there is only the first."""
    return turn > 0 or repetitions == 0


@dataclass(frozen=True)
class Figures:
    """What the passes of a contender came to: seconds per million rows, by wall clock and by processor."""

    batch: float
    slowest: float
    low: float
    high: float
    wall: float
    cpu: float


def figures(passes: list[Pass], rows_per_batch: int, rows: int) -> Figures:
    """Medians over all passes. The first micro-batch of each is not counted: it starts workers and reads no state."""
    later = [seconds for taken in passes for seconds in taken.batches[1:]]
    million = rows_per_batch / 1e6
    quarters = statistics.quantiles(later, n=4) if len(later) > 1 else [later[0]] * 3
    return Figures(
        batch=statistics.median(later) / million,
        slowest=statistics.median(max(taken.batches[1:]) for taken in passes) / million,
        low=quarters[0] / million,
        high=quarters[2] / million,
        wall=statistics.median(taken.wall for taken in passes) / (rows / 1e6),
        cpu=statistics.median(taken.cpu for taken in passes) / (rows / 1e6),
    )


def write_json(file: Path | None, results: Any) -> None:
    """What a benchmark found, to the file of its --json, if it was given one."""
    if file is not None:
        file.write_text(json.dumps(results, indent=1) + "\n")
