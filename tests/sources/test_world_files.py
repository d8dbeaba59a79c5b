"""Files as the world writes them are read as what was written, or stand aside, whatever has happened to them.

Each world that shows a fault is small once the fault is known: a test of `test_formats.py` or `test_casts.py` has it then.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import commit, soak_or
from tests.sources.world_files import failures, world_of_spark
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def test_what_spark_wrote_is_read_as_it_was_written() -> None:
    found = [text for seed in range(15) for text in failures(world_of_spark(random.Random(seed)))]
    assert not found, "\n".join(found)


@pytest.mark.soak
def test_what_is_read_of_a_file_is_what_its_program_wrote() -> None:
    # A process of its own, as a damaged file may end it, and polars hangs in a process that forks.
    count = soak_or(ci=30, soak=20_000)
    seed = 0 if soak_or(ci=False, soak=True) else int(commit()[:6] or "0", 16)
    done = subprocess.run(
        [sys.executable, "-m", "tests.sources.world_files", str(seed), str(count)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE + count,
    )
    assert done.returncode == 0, f"{done.stdout[-4_000:]}\n{done.stderr[-4_000:]}"
