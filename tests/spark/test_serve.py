"""The page while an application runs whose clock a silent channel holds, while it is dead, and when it goes on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import start_guarded
from tests.serve.worlds import ROOT, Served
from tests.spark import sessions
from tests.spark.files import write as write_rows
from tests.waiting import until
from tests.words import SCHEMA

pytestmark = pytest.mark.spark


def write(folder: Path, number: int, words: dict[str, tuple[int, ...]]) -> None:
    rows = [{"ts": second * 1_000_000, "word": word} for word, seconds in words.items() for second in seconds]
    write_rows(folder, number, rows, SCHEMA)


def await_text(served: Served, text: str) -> None:
    until(lambda: text in served.page().text, f"{text!r} on the page")


@contextmanager
def driver(folder: Path) -> Iterator[None]:
    """A driver that runs, and is killed at the end with all that it has started."""
    command = [sys.executable, "-m", "tests.spark.silent_driver", str(folder)]
    with (folder / "log").open("ab") as log:
        running = start_guarded(command, cwd=ROOT, stdout=log, stderr=log, env={**os.environ, **sessions.environment()})
    try:
        yield
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def test_the_page_tells_who_holds_the_clock_whether_or_not_the_job_is_there(tmp_path: Path) -> None:
    write(tmp_path / "in", 0, {"a": (5, 25), "b": (5, 25)})
    (tmp_path / "store").mkdir()
    served = Served(tmp_path / "store")
    assert "There is nothing to show yet." in served.page().text
    asked = {"application": "words", "task": "Words", "word": "b"}
    with driver(tmp_path):
        await_text(served, "clock1970-01-01T00:00:20Z")
        assert served.lookup(**asked)["value"] == 1
        write(tmp_path / "in", 1, {"a": (45, 65)})
        await_text(
            served, "The global clock waits for task=Words: the newest message of channel='b' of its source is of 1970"
        )
    # It was killed, and the page tells the same.
    page = served.page()
    assert "channel='b' of its source" in page.text
    with driver(tmp_path):
        await_text(served, " of start 2")
        await_text(
            served, "The global clock waits for task=Words: the newest message of channel='b' of its source is of 1970"
        )
        assert served.lookup(**asked)["clock"] == 20_000_000
        # It goes on when the channel does.
        write(tmp_path / "in", 2, {"b": (70,)})
        await_text(served, "clock1970-01-01T00:01:00Z")
        assert served.lookup(**asked)["value"] == 2
        assert served.lookup(**asked, clock="20000000")["value"] == 1
    assert [row[0] for row in served.page().tables["The clocks at which the state can be read"][1:]] == [
        "1970-01-01T00:01:00Z",
        "1970-01-01T00:00:20Z",
    ]
