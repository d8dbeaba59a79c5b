"""`persistent-state run --local` where there is no PySpark and no Java: it runs, ends by signals, and says so by its status."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from persistent_state import Local, read_state
from persistent_state.cli.run import DONE, MEND
from tests import page_code
from tests.local.test_engine import SECOND, START, children, expected, without_spark, write
from tests.local.test_pool import alive
from tests.waiting import PATIENCE, until

RUN = "app.run(SparkSession.builder.getOrCreate(), drain=True)"

APPLICATION = """
from pathlib import Path
from monoids import Sum
from persistent_state import Application, FileSource, NonWindowState, ParquetSink, PersistentTask

class PerShop(PersistentTask):
    key, value = "shop", "amount"

    def persistent_state(self):
        return NonWindowState(Sum())

here = Path(__file__).parent
app = Application("shops", str(here / "store"), checkpoint_interval="10 seconds")
app.add(PerShop(), FileSource(here / "in", timestamp="ts", max_files_per_batch=1), ParquetSink(here / "written"))
refused = Application("shops", "memory://no/folder").add(PerShop(), FileSource(here / "in", timestamp="ts"))
"""


class Command:
    """The command in a process of its own, in a folder with an application."""

    def __init__(self, folder: Path, *options: str, out: str = "out") -> None:
        (folder / "shops.py").write_text(APPLICATION)
        self._out = folder / out
        program = [sys.executable, "-m", "persistent_state", "run", *options, "--local", "--workers", "2"]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(program, cwd=folder, env=without_spark(folder), stdout=out)

    def ended(self) -> tuple[int, dict[str, Any]]:
        """The exit status, and the last line."""
        status = self.process.wait(PATIENCE)
        return status, json.loads(self._out.read_text().splitlines()[-1])


def state(folder: Path) -> dict[str, int]:
    return {row["shop"]: row["value"] for row in read_state(str(folder / "store"), "shops", "PerShop").to_pylist()}


def test_the_command_runs_an_application_to_its_end(tmp_path: Path) -> None:
    write(tmp_path / "in", 0, range(30))
    status, last = Command(tmp_path, "shops:app", "--drain").ended()
    assert (status, last["result"]) == (DONE, "done")
    assert state(tmp_path) == expected(30)
    status, last = Command(tmp_path, "shops:refused").ended()
    assert (status, last["error"][:44]) == (MEND, "store=memory:// can't be reached by workers,")


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_an_application_goes_back_and_on_again(tmp_path: Path) -> None:
    for file in range(3):
        write(tmp_path / "in", file, range(10 * file, 10 * file + 10))
        assert Command(tmp_path, "shops:app", "--drain").ended()[0] == DONE
    to = str(START + 10 * SECOND)
    rewind = [sys.executable, "-m", "persistent_state", "rewind", "shops:app", "--to", to, "--yes"]
    ran = subprocess.run(rewind, cwd=tmp_path, env=without_spark(tmp_path), capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert state(tmp_path) == expected(10)
    assert Command(tmp_path, "shops:app", "--drain").ended()[0] == DONE
    assert state(tmp_path) == expected(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_that_goes_on_and_no_worker_stays(tmp_path: Path, number: signal.Signals) -> None:
    write(tmp_path / "in", 0, range(30))
    command = Command(tmp_path, "shops:app", "--follow")
    until(lambda: '"batch":1,' in (tmp_path / "out").read_text(), "a commit", command.process)
    workers = children(command.process.pid)
    assert len(workers) == 2
    command.process.send_signal(number)
    status, last = command.ended()
    assert (status, last["result"]) == (DONE, "done")
    assert not any(map(alive, workers))
    assert state(tmp_path) == expected(20)


def program_of_readme() -> str:
    """README's first program as README says that it runs without Spark. It prints the counts."""
    events, program, local = page_code.blocks_of(page_code.text_of("README.md"))[:3]
    for line in ("from pyspark.sql import SparkSession\n", RUN):
        assert program.count(line) == 1
    program = program.replace("from pyspark.sql import SparkSession\n", "").replace(RUN, local)
    return f"{events}{program}print(dict(zip(*(counts[name].to_pylist() for name in ('word', 'value')))))\n"


def test_the_program_of_the_readme_runs_in_the_same_way(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", program_of_readme()],
        cwd=tmp_path, env=without_spark(tmp_path), capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ast.literal_eval(ran.stdout) == {"be": 2, "not": 1, "or": 1, "to": 2}, ran.stderr


def test_the_first_task_is_the_same_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page_code.text_of("docs/first-task.md")
    for line in ("from pyspark.sql import SparkSession\n", "spark = SparkSession.builder.getOrCreate()\n"):
        assert text.count(line) == 1
        text = text.replace(line, "")
    assert page_code.run(text, {"spark": Local()}) >= 5
