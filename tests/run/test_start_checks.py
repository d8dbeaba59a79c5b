"""What is refused before a start takes the application over, and what an error of Spark means, without Spark."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persistent_state import FileSource, InvalidInputError, StateError, TaskFailedError
from persistent_state.engine.run.spark_engine import SparkEngine
from persistent_state.engine.spark.failures import as_own_error
from persistent_state.protocol.collect import Collector
from persistent_state.protocol.fates import Words, decide
from persistent_state.protocol.global_clock import Keeping
from persistent_state.run import garbage
from persistent_state.run.feeds import FedTask
from persistent_state.run.setup import Setup
from persistent_state.run.start_checks import check_start
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from tests import core
from tests.fixtures.write_store import SCHEMA, Totals
from tests.waiting import PATIENCE


def part(folder: Path | str) -> FedTask:
    return FedTask(
        core.plan_of(Totals(), SCHEMA), FileSource(folder, timestamp="ts", schema=SCHEMA, format="parquet"), None
    )


def setup_of(some: FedTask) -> Setup:
    """The set-up of an application with one task. Nobody asks anything of its session."""
    session: Any = object()
    return Setup(
        runs_on=SparkEngine(session),
        application=some.plan.application,
        files=some.plan.files,
        parts=[some],
        interval=10,
        shards=1,
        keeping=Keeping(),
        scratch=None,
        max_restarts=0,
        to_the_end=True,
        drains=False,
        trigger=None,
        on_progress=None,
    )


def check(setup: Setup, newest: Entry | None) -> None:
    """Check a start that names no task."""
    check_start(setup, newest, decide(newest, [feed.plan for feed in setup.feeds], Words()))


def test_a_collection_that_fails_for_any_reason_is_told_of_and_followed_by_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fails, followed = iter([True]), threading.Event()

    def collect(*_: Any, **__: Any) -> list[str]:
        if next(fails, False):
            raise OSError("no such thing")
        followed.set()
        return []

    monkeypatch.setattr(garbage, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(Collector, "collect", collect)
    plan = core.plan_of(Totals(), SCHEMA)
    collected = garbage.GarbageCollection(Log(plan.files, plan.application), Keeping())
    collected.start(lambda: 1)
    assert followed.wait(PATIENCE)
    collected.stop()
    assert "garbage collection failed, the next is in 0.01 s: OSError: no such thing" in caplog.text


def test_a_source_that_can_not_be_opened_is_refused_before_anything_changes(tmp_path: Path) -> None:
    missing = part(tmp_path / "missing")
    files = missing.plan.files
    with pytest.raises(InvalidInputError, match="is not a folder; create it, or correct the path"):
        check(setup_of(missing), None)
    assert Log(files, missing.plan.application).numbers() == []
    check(setup_of(part(tmp_path)), None)


def test_a_prefix_without_files_is_no_reason_to_refuse_a_start_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check(setup_of(part("memory://nothing/yet")), None)
    assert [record.getMessage()[:54] for record in caplog.records] == [
        "FileSource('memory://nothing/yet') holds no file yet. "
    ]


def test_a_journal_of_another_source_is_refused_before_the_working_driver_is_fenced(tmp_path: Path) -> None:
    plan = core.plan_of(Totals(), SCHEMA)
    log = Log(plan.files, plan.application)
    core.start(log, [plan])
    entry = core.play(log, plan, pa.RecordBatch.from_pylist([{"ts": 5, "shop": "a", "item": 1, "price": 1}], SCHEMA))
    setup = setup_of(FedTask(plan, FileSource(tmp_path, timestamp="ts", schema=SCHEMA, format="parquet"), None))
    with pytest.raises(InvalidInputError, match="its journal has only 0 files"):
        check(setup, entry)
    newest = log.newest()
    assert newest is not None
    assert newest.epoch == entry.epoch
    check(setup, None)


BY_ZERO = "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate it."
INVALID = "[CAST_INVALID_INPUT] The value 'a\n[b] c' of the type \"STRING\" can't be cast."
STREAM = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
IN_SINK = f"{STREAM}[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred. Reason: Traceback\n  File x\n"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{STREAM}{BY_ZERO} SQLSTATE: 22012\n == DataFrame ==\n SQLSTATE: XXKST", BY_ZERO),
        (f"{STREAM}{INVALID} SQLSTATE: 22018\n SQLSTATE: XXKST", INVALID),
        (f"{IN_SINK}{BY_ZERO} SQLSTATE: 22012\n\n SQLSTATE: 39000 SQLSTATE: XXKST", BY_ZERO),
        (f"{IN_SINK}{BY_ZERO} SQLSTATE: 22012\n[UNABLE_TO_FETCH] It is away. SQLSTATE: 08000 SQLSTATE: XXKST", None),
        (f"{STREAM}[KAFKA_DATA_LOSS.X] Some data may have\nbeen lost. SQLSTATE: 22000 SQLSTATE: XXKST", None),
        (f"{STREAM}Job aborted: 1 is no 22012 SQLSTATE: XXKST", None),
    ],
)
def test_only_what_spark_can_not_work_out_of_a_value_is_a_failure_of_the_task(text: str, shown: str | None) -> None:
    made = as_own_error(RuntimeError(text), "task=Total")
    if shown is None:
        assert type(made) is StateError
    else:
        assert (type(made), str(made)) == (TaskFailedError, f"task=Total: Spark could not work out a value: {shown}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_asks_to_stop_and_a_second_does_what_it_always_does(number: signal.Signals) -> None:
    program = f"""
import os
from persistent_state.run.running import asked_to_stop
with asked_to_stop() as asked:
    assert not asked.is_set()
    os.kill(os.getpid(), {int(number)})
    assert asked.is_set()
    print("asked", flush=True)
    os.kill(os.getpid(), {int(number)})
    print("not reached")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("asked\n", -number)


def test_a_signal_that_the_program_ignores_stays_ignored() -> None:
    program = """
import os, signal
from persistent_state.run.running import asked_to_stop
signal.signal(signal.SIGINT, signal.SIG_IGN)
with asked_to_stop() as asked:
    os.kill(os.getpid(), signal.SIGINT)
    print(asked.is_set())
    os.kill(os.getpid(), signal.SIGTERM)
    print(asked.is_set(), signal.getsignal(signal.SIGINT) == signal.SIG_IGN)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("False\nTrue True\n", 0)


STARTED = """
import os, signal, sys
from types import SimpleNamespace
from persistent_state import StateError
from persistent_state.engine.run.spark_engine import SparkEngine
from persistent_state.run import running

def start(*_):
    with running.asked_to_stop() as asked:
        supervisor = SimpleNamespace(is_alive=True, error=None, was_flow_stopped={is_flow_stopped}, join=lambda: None)
        supervisor.stop = lambda: setattr(supervisor, "is_alive", False)
        begun = running.Running(supervisor)
    {how}
    return begun

running.start = start
{before}
try:
    setup = SimpleNamespace(application="app", engine=SparkEngine(None))
    print(running.run(setup, (), ()).was_asked_to_stop, "goes on", flush=True)
except StateError as error:
    print(error)
finally:
    print("puts its things right", flush=True)
"""


def ended(how: str, before: str = "", is_flow_stopped: bool = False) -> tuple[str, int]:
    """Run a program in which a run ends so, and return what it printed and its exit status."""
    program = STARTED.format(how=how, before=before, is_flow_stopped=is_flow_stopped)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout, done.returncode


def test_a_program_whose_run_a_signal_has_ended_does_not_go_on_as_if_all_were_read() -> None:
    """Also if the signal comes between the start and the wait."""
    kill = "os.kill(os.getpid(), signal.{})"
    assert ended(kill.format("SIGTERM")) == ("puts its things right\n", 143)
    text, status = ended(kill.format("SIGINT"))
    # Python ends so by its KeyboardInterrupt.
    assert (text, status) == ("puts its things right\n", -signal.SIGINT)


def test_a_program_with_a_handler_of_its_own_learns_of_the_signal_by_that() -> None:
    before = "signal.signal(signal.SIGTERM, lambda number, frame: print('heard', int(number)))"
    text, status = ended("os.kill(os.getpid(), signal.SIGTERM)", before)
    assert (text, status) == (f"heard {int(signal.SIGTERM)}\nTrue goes on\nputs its things right\n", 0)


def test_a_program_whose_query_somebody_stopped_does_not_go_on_as_if_all_were_read() -> None:
    text, status = ended("supervisor.stop()", is_flow_stopped=True)
    assert text == (
        "somebody stopped a query of application=app through Spark before all was read; the next run goes on from there.\n"
        "puts its things right\n"
    )
    assert status == 0
