"""The source of docs/write-a-source.md keeps its promises: any pieces give the same rows, and each line counts once."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from monoids import Sum
from persistent_state import InvalidInputError, NonWindowState, PersistentTask
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol import commits
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.log import Log
from tests import core
from tests.sentences import problem

GUIDE = Path(__file__).parents[2] / "docs" / "write-a-source.md"
SECOND = 1_000_000


class Words(PersistentTask):
    key = "word"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: Any, message: Any) -> None:
        state.update(message.timestamp, 1)


def code_of_guide() -> list[str]:
    """Return the guide's smallest source, its complete source, the use of that with Spark, and its test."""
    blocks: list[str] = re.findall(
        r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return blocks


def guide_source(folder: Path) -> Any:
    names: dict[str, Any] = {}
    exec(code_of_guide()[1], names)
    names["LogFiles"].bytes_per_batch = 100
    return names["LogFiles"](str(folder))


def write(file: Path, seconds: range, end: str = "\n") -> None:
    with file.open("a") as stream:
        stream.write("\n".join(f"2026-01-01T00:{s // 60:02}:{s % 60:02}+00:00\tw{s % 3}" for s in seconds) + end)


def test_the_test_of_the_guide_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, source, use, test = code_of_guide()
    names: dict[str, Any] = {}
    exec(source, names)
    exec(use[use.index("Path(") : use.index("class ")], names)
    exec(test, names)


def test_the_smallest_source_of_the_guide_reads_every_number_once() -> None:
    names: dict[str, Any] = {}
    exec(code_of_guide()[0], names)
    source, read = names["Numbers"](), []
    start: dict[str, int] = {}
    while (ends := source.reach(start, everything=False).ends) != start:
        chunks = [chunk for split in source.splits(start, ends, 2) for chunk in source.read(split)]
        read += [
            (at, row["at"]) for chunk in chunks for at, row in zip(chunk.positions, chunk.rows.to_pylist(), strict=True)
        ]
        start = ends
    assert read == [(number, number) for number in range(100)]


def test_the_source_of_the_guide_counts_every_line_once_through_restarts(tmp_path: Path) -> None:
    write(tmp_path / "a.log", range(0, 60))
    write(tmp_path / "b.log", range(0, 60, 2))
    settings = Settings(interval=10 * SECOND, ahead=2**62)
    plan = core.plan_of(Words(), guide_source(tmp_path).schema, timestamp="at", settings=settings)
    log, entry = Log(plan.files, plan.application), None
    for restart in range(4):
        entry = core.start(log, [plan])
        source = guide_source(tmp_path)
        source.open((), entry.flow_of(plan.name).source.known_positions)
        for batch in itertools.count():
            start = entry.flow_of(plan.name).source.next_positions
            reach = source.reach(start, everything=False)
            if dict(reach.ends) == start or (restart < 3 and batch == 5):
                break
            entry = core.play_reach(log, plan, source, start, reach, parts=3)
        write(tmp_path / "a.log", range(60 + restart, 61 + restart))
    assert entry is not None
    closed = commits.close(log, entry.epoch, now=0, keeping=Keeping())
    counts = {(word,): 20 + 10 for word in ("w0", "w1", "w2")}
    for second in (60, 61, 62):
        counts[(f"w{second % 3}",)] += 1
    assert core.state_at(closed, plan, None) == counts


def test_half_a_line_waits(tmp_path: Path) -> None:
    write(tmp_path / "a.log", range(2), end="")
    source = guide_source(tmp_path)
    source.open((), {})
    assert source.reach({}, everything=True).ends == {"a.log": 29}
    write(tmp_path / "a.log", range(0), end="\n")
    assert source.reach({}, everything=True).ends == {"a.log": 58}


def test_lines_that_are_gone_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.log", range(1))
    assert "put it back" in problem(lambda: guide_source(tmp_path).open((), {"a.log": 1000}), InvalidInputError)
