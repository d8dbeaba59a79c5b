"""README's ten lines on a real Spark: the driver is killed in the middle, and a second start counts every word once."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from persistent_state import StateError, open_store
from tests.processes import start_guarded
from tests.spark import sessions
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.fast

FILES, WORDS_A_FILE, KILLED_AFTER = 16, 50, 3
"""The stream, and the checkpoints after which the driver is killed."""

PRINTED = """
import json, sys
json.dump(dict(zip(*(counts[name].to_pylist() for name in ("word", "value")))), sys.stdout)
"""


def program_of_readme() -> str:
    """Return README's ten lines, which read one file in a micro-batch."""
    text = (sessions.ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(
        r"^```python\n(import monoids\n.*?^class MessageCount.*?)^```$", text, re.DOTALL | re.MULTILINE
    )
    source = 'FileSource("events/", timestamp="ts"'
    assert block.count(source) == 1
    return block.replace(source, f"{source}, max_files_per_batch=1") + PRINTED


def start(folder: Path, program: str) -> subprocess.Popen[bytes]:
    with (folder / "out").open("wb") as out, (folder / "log").open("ab") as log:
        return start_guarded(
            [sys.executable, "-c", program], cwd=folder, env=sessions.environment(), stdout=out, stderr=log
        )


def checkpoints(folder: Path) -> int:
    try:
        return len(open_store(str(folder / "apps")).application("word-count").clocks())
    except StateError:
        return 0


def test_every_word_counts_once_though_the_driver_is_killed(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    begin, chance, sent = pd.Timestamp("2026-01-01"), random.Random(7), Counter[str]()
    for file in range(FILES):
        words = chance.choices(["to", "be", "or", "not"], k=WORDS_A_FILE)
        sent.update(words)
        times = pd.date_range(begin + pd.Timedelta(minutes=file), periods=WORDS_A_FILE, freq="s")
        pd.DataFrame({"ts": times, "word": words}).to_parquet(tmp_path / "events" / f"{file:02}.parquet")
    program = program_of_readme()
    # The victim does not end by itself, however late it is killed.
    drained, endless = (
        "app.run(SparkSession.builder.getOrCreate(), drain=True)",
        "app.start(SparkSession.builder.getOrCreate())",
    )
    assert program.count(drained) == 1
    victim = start(tmp_path, program.replace(drained, f"{endless}.await_termination()"))
    try:
        log = tmp_path / "log"
        until(lambda: checkpoints(tmp_path) >= KILLED_AFTER, "checkpoints", victim, log)
    finally:
        sessions.end_sessions([victim])
    assert victim.wait(PATIENCE) == -signal.SIGKILL
    assert not (tmp_path / "out").read_text()
    second = start(tmp_path, program)
    try:
        assert second.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    finally:
        sessions.end_sessions([second])
    assert json.loads((tmp_path / "out").read_text()) == sent
