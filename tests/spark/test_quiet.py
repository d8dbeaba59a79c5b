"""What a run prints: little where it ends well, and where the user's code is at fault, its file and line."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.spark.conftest import Launch
from tests.waiting import PATIENCE, until

SESSION = """
import os, signal, sys, threading, time
from pyspark.sql import SparkSession
from monoids import Sum
from persistent_state import Application, NonWindowState, PersistentTask, RateSource, StateError
from persistent_state.sinks import Sink

# Spark's own level of logging, as a user has it.
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
"""

FAULTY = (
    SESSION
    + """
def parse(text):
    return int(text)  # the fault


class Bug(PersistentTask):
    def persistent_state(self):
        return NonWindowState(Sum())

    def process_message(self, state, message):
        state.update(message.timestamp, parse("abc"))  # calls it


app = Application("app", store=sys.argv[1], checkpoint_interval="1 second")
app.add(Bug(), RateSource(10))
app.start(spark).await_termination()
"""
)

STOPPED = (
    SESSION
    + """
class Slow(PersistentTask):
    def persistent_state(self):
        return NonWindowState(Sum())

    def process_message(self, state, message):
        time.sleep(0.0005)
        state.update(message.timestamp, 1)


class AlsoSlow(Slow):
    pass


class Interrupting(Sink):
    name = "interrupting"

    def open(self, origin):
        os.kill(os.getpid(), signal.SIGINT)

    def write_values(self, values, clock):
        raise NotImplementedError


def send(number):
    # A signal that comes before the run is awaited would end the process.
    while signal.getsignal(number) is HANDLERS[number]:
        time.sleep(0.01)
    os.kill(os.getpid(), number)


HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
app = Application("interrupted", store=sys.argv[1], checkpoint_interval="1 second")
try:
    app.add(Slow(), RateSource(10), sink=Interrupting()).start(spark)
except StateError as error:
    assert str(error) == "application=interrupted was asked to stop before it began; nothing was changed."
else:
    raise AssertionError("it has started")
assert not os.path.exists(sys.argv[1])

for way in ("stop()", "SIGTERM", "SIGINT"):
    app = Application(way[:4], store=sys.argv[1], checkpoint_interval="1 second")
    app.add(Slow(), RateSource(1000)).add(AlsoSlow(), RateSource(1000))
    committed = threading.Event()
    print("==", way, file=sys.stderr, flush=True)
    running = app.start(spark, on_progress=lambda progress: progress.batch > 1 and committed.set())
    committed.wait()
    time.sleep(0.3)  # into the next micro-batch
    if way == "stop()":
        running.stop()
    else:
        threading.Thread(target=send, args=(getattr(signal, way),)).start()
        running.await_termination()
    assert not running.is_active
print("==", "end", file=sys.stderr, flush=True)
"""
)


def run(launch: Launch, folder: Path, program: str) -> tuple[int, str]:
    """Run a program, and return its exit code and what it wrote to standard error."""
    script = folder / "program.py"
    script.write_text(program)
    driver = launch(str(script), str(folder / "store"), folder=folder)
    try:
        code = driver.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        raise AssertionError((folder / "log").read_text()[-4000:]) from None
    return code, (folder / "log").read_text()


def test_an_error_of_the_users_is_told_with_its_file_and_line_and_without_pages_of_traces(
    launch: Launch, tmp_path: Path
) -> None:
    code, printed = run(launch, tmp_path, FAULTY)
    assert code == 1
    lines = FAULTY.splitlines()
    fault, call = (
        1 + next(i for i, line in enumerate(lines) if mark in line) for mark in ("# the fault", "# calls it")
    )
    program = tmp_path / "program.py"
    places = f"at {program}:{fault} in parse, called from {program}:{call} in process_message"
    own = [line for line in printed.splitlines() if "application app has ended" in line]
    assert len(own) == 1
    assert places in own[0]
    # The library's own line is the first that tells of it, and Python's traceback of the program the last.
    assert printed.index(own[0]) < printed.index("Traceback")
    assert len(printed.splitlines()) < 120, printed


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_a_stop_prints_no_pages_however_it_is_asked_for(launch: Launch, tmp_path: Path) -> None:
    code, printed = run(launch, tmp_path, STOPPED)
    assert code == 0, printed[-4000:]
    assert "StackOverflowError" not in printed
    runs = re.split(r"^== .*$", printed, flags=re.MULTILINE)
    assert len(runs) == 5
    for lines in (part.splitlines() for part in runs[1:-1]):
        # Spark may say twice a task that it can't cancel a job that has ended, and once where an interrupt met its writes.
        assert len(lines) < 120, "\n".join(lines)


SLEEPER = (
    SESSION
    + """
class Rows(PersistentTask):
    def persistent_state(self):
        return NonWindowState(Sum())

    def process_message(self, state, message):
        state.update(message.timestamp, 1)


app = Application("app", store=sys.argv[1], checkpoint_interval="1 second")
app.add(Rows(), RateSource(100))
running = app.start(spark, on_progress=lambda progress: print(progress.batch, flush=True))
if sys.argv[2:]:
    running.stop()
else:
    running.await_termination()
"""
)


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_driver_that_slept_and_was_fenced_says_so_and_ends(launch: Launch, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(SLEEPER)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    sleeper = launch(str(script), str(tmp_path / "store"), folder=first)
    out = first / "out"
    until(lambda: len(out.read_text().splitlines()) >= 2, "commits", sleeper, first / "log")
    sleeper.send_signal(signal.SIGSTOP)
    assert launch(str(script), str(tmp_path / "store"), "briefly", folder=second).wait(PATIENCE) == 0
    sleeper.send_signal(signal.SIGCONT)
    assert sleeper.wait(PATIENCE) == 1, (first / "log").read_text()[-4000:]
    printed = (first / "log").read_text()
    assert "FencedError: a newer driver owns app; this one (epoch 1) has stopped." in printed
    assert len([line for line in printed.splitlines() if "application app has ended: a newer driver owns" in line]) == 1
