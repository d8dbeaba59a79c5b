"""Each feature on the oldest Spark, and one store that several versions go on with, one after the other."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import versions
from tests.soak import soak_or
from tests.spark import sessions
from tests.spark.stream import Stream, check_end
from tests.waiting import PATIENCE

pytestmark = pytest.mark.kills


class Turns:
    """Drivers of one store, each in a Python of its own; nothing of them stays behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stream = Stream(folder / "stream", seed=25)
        self.processes: list[subprocess.Popen[bytes]] = []

    def drive(self, version: str, *arguments: str) -> list[dict[str, object]]:
        """Let a driver of this version read to the end, or to its own, and return its progress."""
        python = versions.python_with(version)
        told = self.folder / "progress"
        told.write_text("")
        env = sessions.environment(PYSPARK_DRIVER_PYTHON=str(python))
        command = [str(python), "-m", "tests.spark.victim", str(self.folder), *arguments]
        process = sessions.start_command(command, self.folder, env)
        self.processes.append(process)
        expected = -9 if "--die" in arguments else 0
        assert process.wait(PATIENCE) == expected, (version, (self.folder / "log").read_text()[-3000:])
        return [json.loads(line) for line in told.read_text().splitlines()]


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[Turns]:
    made = Turns(tmp_path)
    yield made
    sessions.end_sessions(made.processes)


def turns_of_versions() -> list[str]:
    """The newest version, older ones, and the newest again, all of which are installed then."""
    try:
        newest, *older = versions.allowed_versions()
        taken = [newest, *soak_or(ci=older[-1:], soak=older), newest]
        for version in taken:
            versions.python_with(version)
    except subprocess.CalledProcessError as error:
        if "CI" in os.environ:
            raise
        pytest.skip(f"pip can't install other versions of Spark here: {error}")
    return taken


def test_each_feature_runs_on_the_oldest_spark() -> None:
    *_, oldest = turns_of_versions()[:-1]
    assert versions.run(versions.python_with(oldest), versions.one_of_each(), ["-p", "no:cacheprovider"]) == 0


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_every_version_of_spark_goes_on_with_one_store_though_it_is_killed(turns: Turns) -> None:
    taken, shards = turns_of_versions(), 2
    for version in taken:
        for _ in range(3):
            turns.stream.grow()
        if version != taken[0]:
            turns.drive(version, "--die", "commit create log 1", "--from-call", "2", "--shards", str(shards))
            shards += 1
        progress = turns.drive(version, "--shards", str(shards))
        # It read to the end in bounded micro-batches, whatever Spark makes of `availableNow`.
        batches = [each for each in progress if each["task"] == "Balance" and each["messages"]]
        assert len(batches) > 1, (version, progress)
        check_end(turns.folder, turns.stream)
