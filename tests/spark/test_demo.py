"""The demo succeeds, and it fails when what it shows is broken on purpose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.soak import drawn
from tests.spark.conftest import Launch
from tests.spark.sessions import patched
from tests.waiting import PATIENCE

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

PARTS = drawn(BROKEN, one_in=3)


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
    status = launch("-m", "examples.exactly_once", *arguments, folder=folder, **env).wait(PATIENCE)
    return Shown(status, (folder / "out").read_text().splitlines(), (folder / "log").read_text())


@pytest.fixture(scope="module")
def demos(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Future[Shown]]]:
    """The demo, and one for each part that is broken, two side by side."""

    def broken(patch: str) -> Shown:
        folder = tmp_path_factory.mktemp("broken")
        return show(launch, folder, "--flights", str(FLIGHTS), "--folder", str(folder / "demo"), patch=patch)

    with ThreadPoolExecutor(2) as pool:
        running = {"": pool.submit(show, launch, tmp_path_factory.mktemp("demo"), "--flights", str(FLIGHTS))}
        for part in PARTS:
            running[part] = pool.submit(broken, BROKEN[part])
        yield running


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_the_demo_counts_every_flight_once(demos: Mapping[str, Future[Shown]]) -> None:
    demo = demos[""].result()
    assert demo.status == 0, demo.complaints[-4000:]
    assert demo.last_line == f"exactly once: {FLIGHTS} messages, 0 lost, 0 counted twice"


def test_the_demo_shows_few_lines_in_a_pipe_and_what_was_killed_replayed_and_compared(
    demos: Mapping[str, Future[Shown]],
) -> None:
    lines = demos[""].result().lines
    progress = [line for line in lines if "%), checkpoint " in line]
    # At most one for each quarter, of each driver.
    assert 3 <= len(progress) <= 12
    assert "(100%)" in progress[-1]
    assert not any("\x1b" in line or "\r" in line for line in lines)
    starts = [line.split(" with ")[0] for line in lines if re.match(r"Driver \d starts", line)]
    assert starts == ["Driver 1 starts on Local", "Driver 2 starts on Spark", "Driver 3 starts on Local"]
    assert sum(line.endswith("was killed with SIGKILL.") for line in lines) == 2
    # A line without a name of its own belongs to that above it.
    facts, first = dict[str, list[str]](), ""
    for line in lines:
        if line[10:42].strip():
            first = line[:9].rstrip() or first
            facts[f"{first} {line[10:42].rstrip()}"] = line[42:].split()
    assert facts["compared keys"] == ["258", "3"]
    assert facts["compared messages counted"] == facts["compared messages by pandas"] == [f"{FLIGHTS:,}", "57,498"]
    assert all(int(count.replace(",", "")) > 0 for count in facts["replayed messages"])
    # What a driver committed last, it may not have printed.
    assert facts["killed at global clock"] <= facts["replayed by driver 3 on Local from clock"]
    for what in ("lost", "counted twice", "wrong keys"):
        assert facts[f"compared {what}"] == ["0", "0"]


@pytest.mark.soak
@pytest.mark.parametrize("part", PARTS)
def test_the_demo_fails_when_a_part_is_broken(demos: Mapping[str, Future[Shown]], part: str) -> None:
    demo = demos[part].result()
    assert demo.status == 1, demo.complaints[-4000:]
    assert re.search(r"^FAILED: \d+ keys differ from pandas\.$", demo.complaints, re.MULTILINE)
    assert ("replayed no message." in demo.complaints) == (part == "replay")
    assert demo.last_line.startswith("exactly once: ")
    assert demo.last_line != f"exactly once: {FLIGHTS} messages, 0 lost, 0 counted twice"
