"""The demo succeeds, and it fails when what it shows is broken on purpose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.spark.conftest import Launch
from tests.spark.sessions import patched

FLIGHTS = 60_000
"""Enough of them that each broken part shows: with 40,000 the late rule does not."""

BROKEN = {
    "restore": """
from persistent_state.store import task_state
assert task_state.cut_runs
task_state.cut_runs = lambda runs, clock, shards: ()
""",
    "replay": """
from persistent_state.store import flow_state
assert flow_state.rewind_position
flow_state.rewind_position = lambda position, clock: position
""",
    "late rule": """
from persistent_state.batch import advance
upstream_min = advance.upstream_min
advance.upstream_min = lambda live, clock, delay: upstream_min(live, clock, 0)
""",
}
"""What every process of the demo does first, by what it breaks."""


@dataclass(frozen=True)
class Shown:
    status: int
    lines: Sequence[str]
    complaints: str

    @property
    def last_line(self) -> str:
        return self.lines[-1]


def show(launch: Launch, folder: Path, *arguments: str, patch: str = "", **env: str) -> Shown:
    """Run the demo in a process of its own, of whose Pythons each begins with the patch."""
    if patch:
        env |= patched(folder, patch)
    status = launch("-m", "examples.exactly_once", *arguments, folder=folder, **env).wait(timeout=300)
    return Shown(status, (folder / "out").read_text().splitlines(), (folder / "log").read_text())


@pytest.fixture(scope="module")
def demos(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Shown]]]:
    """The demo, and one for each part that is broken, two side by side."""

    def broken(patch: str) -> Shown:
        folder = tmp_path_factory.mktemp("broken")
        return show(launch, folder, "--flights", str(FLIGHTS), "--folder", str(folder / "demo"), patch=patch)

    with ThreadPoolExecutor(2) as pool:
        running = {"": pool.submit(show, launch, tmp_path_factory.mktemp("demo"), "--flights", str(FLIGHTS))}
        for part, patch in BROKEN.items():
            running[part] = pool.submit(broken, patch)
        yield running


def test_the_demo_counts_every_flight_once(demos: Mapping[str, Future[Shown]]) -> None:
    demo = demos[""].result()
    assert demo.status == 0, demo.complaints[-4000:]
    assert demo.last_line == f"exactly once: {FLIGHTS} messages, 0 lost, 0 counted twice"


@pytest.mark.parametrize("part", BROKEN)
def test_the_demo_fails_when_a_part_is_broken(demos: Mapping[str, Future[Shown]], part: str) -> None:
    demo = demos[part].result()
    assert demo.status == 1, demo.complaints[-4000:]
    assert re.search(r"^FAILED: \d+ keys differ from pandas\.$", demo.complaints, re.MULTILINE)
    assert ("FAILED: no message was replayed." in demo.complaints) == (part == "replay")
    assert demo.last_line.startswith("exactly once: ")
    assert demo.last_line != f"exactly once: {FLIGHTS} messages, 0 lost, 0 counted twice"
