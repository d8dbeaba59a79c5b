"""Whatever comes in by a door makes a row bad or a question refused. It is tried in a process of its own, which must live."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.doors import DOORS
from tests.soak import soak_or

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.parametrize("door", DOORS)
def test_nothing_that_comes_in_ends_the_process_or_counts_as_something_else(door: str, tmp_path: Path) -> None:
    said, examples = tmp_path / "given", soak_or(ci=60, soak=10_000)
    command = [sys.executable, "-m", "tests.hostile", door, str(examples), str(said)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    if done.returncode < 0:
        given = said.read_text()[:2_000] if said.exists() else ""
        name = signal.Signals(-done.returncode).name
        pytest.fail(f"{door}: the process died by {name}, given {given}\n{done.stderr[-3_000:]}")
    assert done.returncode == 0, done.stderr[-6_000:]
