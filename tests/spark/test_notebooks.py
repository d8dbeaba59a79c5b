"""Tasks and monoids of a notebook's cells run, are changed and run again on one store; an interrupt ends a run cleanly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from tests.spark import notebooks
from tests.spark.notebooks import Kernel, shown

pytestmark = pytest.mark.spark

COUNTED = """
taken = opened.task("Taken").at().to_pandas().set_index("station")["value"].to_dict()
lacks = {station: value["lacks"] for station, value in state(Needed()).set_index("station")["value"].items()}
so_far = rides.groupby("station")["change"].cumsum()
print(taken == rides.query("change < 0 and member").groupby("station").size().to_dict())
print(lacks == (-so_far).groupby(rides["station"]).max().clip(lower=0).to_dict())
"""


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_the_tutorial_gives_what_it_shows_and_what_pandas_counts(tmp_path: Path) -> None:
    notebook = nbformat.read(notebooks.TUTORIAL, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    committed = [shown(cell) for cell in code]
    assert sum(map(len, committed)) > 10
    with notebooks.started(tmp_path) as kernel:
        for cell in code:
            kernel.run(cell)
        counted = kernel.run(COUNTED)
    assert [shown(cell) for cell in code] == committed
    assert shown(counted) == ["True\nTrue\n"]
    # The lines of a run stand below its cell, and are those of its end.
    run = next(cell for cell in code if cell.source == "app.run(spark, drain=True)")
    assert re.search(r"bikes: .*, clock 2026-03-0\d.*Taken +200 ", notebooks.html(run), re.DOTALL)
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs)


SETUP = """
import os, threading, time
from pathlib import Path
import pandas as pd, pyarrow as pa
import monoids
from persistent_state import *
from tests.spark.sessions import new_session

spark = new_session("notebook")

def write(name, first, words):
    times = pd.date_range(first, periods=len(words), freq="10s", tz="UTC")
    Path("words").mkdir(exist_ok=True)
    pd.DataFrame({"ts": times, "word": words}).to_parquet(f"words/{name}.parquet")

def state(application, task):
    rows = open_store("store").application(application).task(task).at().to_arrow().to_pylist()
    return dict(sorted((row["word"], row["value"]) for row in rows))

def application(name, task, **options):
    app = Application(name, "store", checkpoint_interval="30 seconds")
    return app.add(task, FileSource("words/", timestamp="ts", **options))
"""

WORDS = """class Merged(monoids.Monoid):
    type, zero = pa.string(), ""
    def plus(self, a, b):
        return {plus}

class Words(PersistentTask):
    key = "word"
    def persistent_state(self):
        return NonWindowState(Merged())
    def process_message(self, state, message):
        state.update(message.timestamp, {update})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def kernel(folder: Path) -> Iterator[Kernel]:
    with notebooks.started(folder) as kernel:
        kernel.run(SETUP)
        yield kernel


def test_a_task_and_a_monoid_that_a_later_cell_redefines_go_on_with_their_state(kernel: Kernel) -> None:
    kernel.run(WORDS.format(plus="max(a, b)", update="'b'"))
    kernel.run("write('0', '2026-01-01', ['to', 'be', 'to'])\napplication('words', Words()).run(spark, drain=True)")
    assert shown(kernel.run("state('words', Words())")) == ["{'be': 'b', 'to': 'b'}"]
    kernel.run(WORDS.format(plus="min(filter(None, (a, b)), default='')", update="'a'"))
    kernel.run("write('1', '2026-01-01 01:00', ['to'])\napplication('words', Words()).run(spark, drain=True)")
    assert shown(kernel.run("state('words', Words())")) == ["{'be': 'b', 'to': 'a'}"]


def failure(kernel: Kernel, source: str) -> str:
    """What a cell of this source raises."""
    with pytest.raises(CellExecutionError) as error:
        kernel.run(source)
    return f"{error.value.ename}: {error.value.evalue}"


def test_an_error_of_a_cell_names_the_cell_and_the_line(kernel: Kernel) -> None:
    cell = kernel.run(WORDS.format(plus="a or b", update="1 / 0"))
    place = f" at Cell In[{cell.execution_count}]:11 in process_message, "
    for run in ("application('failing', Words()).run(spark)", "run_local(Words(), [Message(1, {'word': 'to'})])"):
        found = failure(kernel, run)
        assert found.startswith("TaskFailedError: process_message of task=Words raised ZeroDivisionError")
        assert place in found


def test_an_interrupt_ends_a_run_cleanly_and_the_next_cell_goes_on(kernel: Kernel, folder: Path) -> None:
    kernel.run("""
class Slow(PersistentTask):
    key = "word"
    def persistent_state(self):
        return NonWindowState(monoids.Count())
    def process_message(self, state, message):
        if message["word"] == "slow" and not os.path.exists("go-on"):
            Path("is-read").touch()
            time.sleep(0.5)
        state.update(message.timestamp, 1)

for number in range(2, 5):
    write(str(number), f"2026-01-02 0{number}:00", ["slow"] * 60)
app = application("slow", Slow(), max_files_per_batch=1)
""")
    ended = kernel.run_and_interrupt(
        "try:\n    app.run(spark, drain=True)\nexcept KeyboardInterrupt:\n    print('interrupted')", folder / "is-read"
    )
    assert [output["text"] for output in ended.outputs if output["output_type"] == "stream"] == ["interrupted\n"]
    # The run's queries are of a session of their own, so Spark's jobs and threads tell whether one goes on.
    left = kernel.run("""
names = [thread.getName() for thread in spark._jvm.java.lang.Thread.getAllStackTraces().keySet()]
queries = [name for name in names if name.startswith("stream execution thread")]
own = [thread.name for thread in threading.enumerate() if "persistent-state" in thread.name]
own, queries, [*spark.sparkContext.statusTracker().getActiveJobsIds()]
""")
    assert shown(left) == ["([], [], [])"]
    # What was committed before stays, and nothing of what was under way is in it.
    assert shown(kernel.run("state('slow', Slow())")) == ["{'be': 1, 'to': 2}"]
    kernel.run("Path('go-on').touch()\napp.run(spark, drain=True)")
    assert shown(kernel.run("state('slow', Slow())")) == ["{'be': 1, 'slow': 180, 'to': 3}"]


def test_a_cell_that_starts_an_application_and_is_executed_again_takes_over(kernel: Kernel) -> None:
    kernel.run("before = running = app.start(spark)")
    kernel.run("running = app.start(spark)")
    found = failure(kernel, "before.await_termination(600)")
    assert found.startswith("FencedError: a newer driver owns slow")
    assert shown(kernel.run("running.stop()\nbefore.is_active, running.await_termination()")) == ["(False, True)"]


HELPED = """
import importlib, sys
Path("helper.py").write_text("AMOUNT = {amount}\\n")
importlib.invalidate_caches()
if "helper" in sys.modules:
    importlib.reload(helper)
else:
    import helper

class Helped(PersistentTask):
    key = "word"
    def persistent_state(self):
        return NonWindowState(monoids.Sum())
    def process_message(self, state, message):
        state.update(message.timestamp, helper.AMOUNT)

write("helped {amount}", "2026-02-0{day}", ["helped"] * 3)
application("helped", Helped()).run(spark, drain=True)
"""


def test_an_edited_module_counts_in_a_new_session_and_a_stopped_one_is_refused(kernel: Kernel) -> None:
    kernel.run(HELPED.format(amount=1, day=1))
    kernel.run("spark.stop()")
    found = failure(kernel, "application('helped', Helped()).run(spark, drain=True)")
    assert found.startswith("InvalidInputError: spark=SparkSession has been stopped; make a new one by ")
    kernel.run("spark = new_session('notebook')")
    kernel.run(HELPED.format(amount=1000, day=2))
    assert shown(kernel.run("state('helped', Helped())['helped']")) == ["3003"]
