"""What a supervisor does when queries end or fail: they are told to by these tests, and so need no Spark."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persistent_state import StateError
from persistent_state.drive import backoff
from persistent_state.engine import Running
from persistent_state.engine.run import spark_engine
from persistent_state.engine.run.queries import Queries
from persistent_state.engine.spark import connect
from persistent_state.engine.spark.failures import TooSlowError
from persistent_state.errors import DamagedError, FencedError, InvalidInputError, StoreUnavailableError, TaskFailedError
from persistent_state.event_time.clocks import END
from persistent_state.run import supervisor
from persistent_state.run.deliveries import Deliveries
from persistent_state.run.feeds import FedTask
from persistent_state.run.garbage import GarbageCollection
from persistent_state.run.reports import Listener
from persistent_state.run.supervisor import Supervisor
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from tests import core
from tests.run.test_lines import PROGRESS
from tests.run.test_start_checks import setup_of
from tests.waiting import PATIENCE, until
from tests.words import SCHEMA, Words

Step = Callable[["Script"], None]


class Script:
    """The application, and what each start of its queries does; `behind` has what those do first that are to meet."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.behind: list[Step] = []
        self.meeting: Any = None
        self.waits = False
        self.alone: list[str] = []
        self.waits_for_machine: float | None = 5.0
        self.plan = core.plan_of(Words(), SCHEMA)
        self.log = Log(self.plan.files, self.plan.application)
        self.queries: Any = None
        source: Any = None
        self.setup = replace(setup_of(FedTask(self.plan, source, source)), max_restarts=2)

    def newest(self) -> Entry:
        return core.newest(self.log)

    def commit(self, *times: int) -> None:
        """Commit a micro-batch, as a query does."""
        rows = pa.RecordBatch.from_pylist([{"ts": time, "word": "a"} for time in times], SCHEMA)
        core.play(self.log, self.plan, rows)
        if self.queries is not None:
            self.queries.committed = True

    def supervise(self) -> Supervisor:
        return Supervisor(self.setup, core.start(self.log, [self.plan]), Deliveries([]), threading.Event())

    def run(self) -> Supervisor:
        """Supervise to the end."""
        found = self.supervise()
        found._thread.join(PATIENCE)
        assert not found.is_alive
        return found


class FakeQueries:
    """The query of one flow, which runs until the script says something else."""

    script: Script

    def __init__(self, *_: Any) -> None:
        self.active_flows: set[str] = set()
        self.failed_commit: tuple[str, Exception] | None = None
        self.failed_flow: tuple[str, Exception] | None = None
        self.is_one_stopped = False
        self.committed = False
        self.looks = 0

    def start_to_meet(self, entry: Entry) -> bool:
        if not self.script.behind:
            return False
        self.active_flows = {"Words"}
        self.script.meeting = self
        return True

    @property
    def are_waited_for(self) -> bool:
        """It does what the script says the second time that somebody looks."""
        self.looks += 1
        if self.looks == 2:
            self.script.behind.pop(0)(self.script)
        return self.looks < 3 or self.script.waits

    def start(self, entry: Entry) -> None:
        self.script.queries = self
        self.active_flows = {"Words"}
        self.script.steps.pop(0)(self.script)

    def start_more(self) -> None: ...

    def start_again(self, flow: str) -> float | None:
        """Start the query alone, as the script says."""
        self.failed_flow = None
        self.script.alone.append(flow)
        self.script.steps.pop(0)(self.script)
        return self.script.waits_for_machine

    def has_committed(self, flow: str) -> bool:
        return self.committed

    def stop(self) -> None:
        self.active_flows = set()


class FakeSteps:
    """A stepper, of which each start does what the script says; `left` has the flows of which it left steps to queries."""

    def __init__(self, *failures: Exception) -> None:
        self.failures, self.left = list(failures), list[Collection[str]]()
        self.failed: tuple[str | None, Exception] | None = None
        self.is_settled = True

    def start(self, epoch: int, active: Collection[str]) -> None:
        self.left.append({*active})
        self.failed = None
        if not active and self.failures:
            self.failed = "Words", self.failures.pop(0)

    def leave_to_flows(self, active: Collection[str]) -> None:
        if active != self.left[-1]:
            self.left.append({*active})

    def wake(self) -> None: ...

    def stop(self) -> None: ...

    def has_committed(self, flow: str | None) -> bool:
        return False


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(spark_engine, "Queries", FakeQueries)
    monkeypatch.setattr(supervisor, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(backoff, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == [], "the scratch space is gone"


def play(*steps: Step, **changes: Any) -> Script:
    script = FakeQueries.script = Script(*steps)
    script.setup = replace(script.setup, **changes)
    return script


def ends(script: Script) -> None:
    script.queries.stop()


def fails(error: Exception, *committed: int) -> Step:
    """A start whose query fails, after a micro-batch with these timestamps."""

    def step(script: Script) -> None:
        if committed:
            script.commit(*committed)
        script.queries.failed_flow = ("Words", error)

    return step


def raises(error: Exception) -> Step:
    """A start that fails itself."""

    def step(script: Script) -> None:
        raise error

    return step


DOWN = StoreUnavailableError("the store is down.")


SLOW = RuntimeError("org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache...")


def test_a_run_ends_when_its_queries_come_to_their_end() -> None:
    run = play(ends).run()
    assert (run.error, run.restarts, run.entry.epoch) == (None, 0, 1)


@pytest.mark.parametrize("pending", [{}, {"t-0": 12.0}, None])
def test_a_run_that_drains_does_not_pass_messages_of_an_open_transaction(
    pending: dict[str, float] | None, caplog: pytest.LogCaptureFixture
) -> None:
    def reads(script: Script) -> None:
        script.commit(5, 25)
        told = replace(PROGRESS, task="Words", epoch=script.newest().epoch, pending={"t-0": 12.0})
        Listener(script.setup.writer, None)(told)
        # A step that asks no source says nothing of it.
        Listener(script.setup.writer, None)(replace(told, pending=pending))
        ends(script)

    script = play(reads, drains=True, to_the_end=True)
    script.run()
    assert script.newest().clock == (30 if pending == {} else 20)
    named = (
        "task=Words: messages of 't-0' for 12 s are in an open transaction, or behind one. They are read when that ends"
    )
    assert (named in caplog.text) is (pending != {})
    assert "run(drain=True)" not in caplog.text


def test_flows_meet_before_each_start_as_a_driver_of_their_own() -> None:
    def meets(script: Script) -> None:
        assert not script.queries or not script.queries.active_flows
        script.commit(5, 25)

    script = play(fails(DOWN), ends)
    script.behind = [meets, lambda script: script.commit(35)]
    run = script.run()
    assert (run.error, run.restarts, run.entry.epoch, run.entry.clock) == (None, 1, 4, 30)
    assert script.meeting.active_flows == set(), "they are stopped"


def test_a_flow_that_fails_to_meet_goes_on_alone(caplog: pytest.LogCaptureFixture) -> None:
    def fails_to_commit(script: Script) -> None:
        script.waits, script.meeting.failed_commit = True, ("Words", DOWN)

    script = play(ends)
    script.behind = [fails_to_commit]
    run = script.run()
    assert (run.error, run.entry.epoch) == (None, 2)
    assert "did not come to where others of its source are, and goes on alone: the store is down." in caplog.text


def test_a_newer_driver_fences_one_whose_flows_meet() -> None:
    def is_taken_over(script: Script) -> None:
        core.start(script.log, [script.plan])

    script = play()
    script.behind = [is_taken_over]
    with pytest.raises(FencedError):
        script.supervise()


def test_a_signal_ends_the_wait_for_flows_that_are_to_meet() -> None:
    script, asked = play(ends), threading.Event()
    script.behind, script.waits = [lambda script: asked.set()], True
    entry = core.start(script.log, [script.plan])
    Supervisor(script.setup, entry, Deliveries([]), asked)._thread.join(PATIENCE)
    assert asked.is_set()


def test_a_run_that_drains_commits_a_clock_above_all_messages_at_its_end() -> None:
    def commits_and_ends(script: Script) -> None:
        script.commit(5)
        script.queries.stop()

    script = play(commits_and_ends, drains=True)
    assert script.run().entry.clock == script.newest().clock == 10


def test_the_handle_of_a_run_shows_its_clock() -> None:
    def commits_and_ends(script: Script) -> None:
        script.commit(5)
        script.queries.stop()

    assert repr(Running(play(ends).run())) == "Running(is_active=False, clock=None)"
    assert repr(Running(play(commits_and_ends, drains=True).run())) == "Running(is_active=False, clock=10)"


def test_after_a_failure_all_queries_start_again_as_a_newer_driver(caplog: pytest.LogCaptureFixture) -> None:
    script = play(fails(DOWN), ends)
    with caplog.at_level(logging.WARNING, "persistent_state"):
        run = script.run()
    assert (run.error, run.restarts, run.entry.epoch) == (None, 1, 2)
    assert script.newest() == run.entry
    assert caplog.records[0].getMessage() == "application app starts again in 0.01 s: the store is down."


def test_a_start_that_fails_is_a_failure_like_any_other() -> None:
    run = play(fails(DOWN), raises(DOWN), raises(OSError("no Spark")), max_restarts=2).run()
    assert run.restarts == 2
    assert isinstance(run.error, StateError)
    assert "no Spark" in str(run.error)


def test_more_failures_in_a_row_than_allowed_end_the_run_with_the_last() -> None:
    last = StoreUnavailableError("still down.")
    run = play(fails(DOWN), fails(DOWN), fails(last), ends, max_restarts=2).run()
    assert (run.error, run.restarts) == (last, 2)


def test_failures_with_a_new_global_clock_between_them_do_not_add_up() -> None:
    run = play(*(fails(DOWN, time) for time in (5, 15, 25, 35)), ends, max_restarts=1).run()
    assert (run.error, run.restarts) == (None, 4)
    # A micro-batch that moves no clock is no success.
    run = play(*(fails(DOWN, 15) for _ in range(3)), max_restarts=1).run()
    assert (run.error, run.restarts) == (DOWN, 1)


def test_a_query_that_the_machine_was_too_slow_for_starts_again_alone(caplog: pytest.LogCaptureFixture) -> None:
    script = play(*[fails(SLOW)] * 5, ends, max_restarts=0)
    run = script.run()
    assert (run.error, run.restarts, run.entry.epoch, script.alone) == (None, 0, 1, ["Words"] * 5)
    assert caplog.records[0].getMessage() == (
        "task=Words: this machine is too slow to start: Spark gives a Python process ten seconds to connect, and one took "
        "longer. Give the machine more cores or less to do, or the application fewer flows (tasks with one source object are "
        "one flow), or, while no Spark runs on it, run `python -m persistent_state.engine.spark.archives` once, after which "
        "these processes start faster. It starts again in 5 s, and other flows go on; the run ends if none starts within 10 "
        "minutes."
    )


def test_a_flow_that_has_committed_is_not_started_again_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "SHORTEST_WAIT_OF_BUSY", 0.001)
    script = play(fails(SLOW, 5), ends, max_restarts=0)
    run = script.run()
    # It does not count as a restart that fails.
    assert (run.error, run.restarts, run.entry.epoch, script.alone) == (None, 1, 2, [])


def test_a_machine_that_stays_too_slow_ends_the_run_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "PATIENCE", -1.0)
    script = play(fails(SLOW), fails(SLOW), max_restarts=1000)
    script.waits_for_machine = None
    run = script.run()
    assert str(run.error).startswith("task=Words: this machine is too slow to start")
    assert (type(run.error), run.restarts) == (TooSlowError, 0)


def test_a_newer_driver_fences_one_whose_machine_is_too_slow() -> None:
    def is_taken_over(script: Script) -> None:
        core.start(script.log, [script.plan])
        fails(SLOW)(script)

    run = play(is_taken_over).run()
    assert isinstance(run.error, FencedError)


@pytest.mark.parametrize(
    "error",
    [
        SLOW,
        RuntimeError("Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"),
        RuntimeError(
            "[STREAMING_PYTHON_RUNNER_INITIALIZATION_COMMUNICATION_FAILURE] Streaming Runner initialization failed"
        ),
    ],
)
def test_a_first_start_that_fails_for_a_process_of_spark_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(backoff, "SHORTEST_WAIT_OF_BUSY", 0.001)
    run = play(raises(error), ends).run()
    assert (run.error, run.restarts, run.entry.epoch) == (None, 1, 2)


@pytest.mark.parametrize("kind", [FencedError, InvalidInputError, TaskFailedError, DamagedError])
def test_what_another_start_would_meet_again_ends_the_run(kind: type[StateError]) -> None:
    error = kind("again and again.")
    run = play(fails(error)).run()
    assert (run.error, run.restarts) == (error, 0)


def test_a_failure_beside_a_newer_driver_is_that_of_a_fenced_one() -> None:
    def is_taken_over(script: Script) -> None:
        core.start(script.log, [script.plan])
        fails(DOWN)(script)

    run = play(is_taken_over).run()
    assert str(run.error) == "a newer driver owns app; this one (epoch 1) has stopped."
    assert isinstance(run.error, FencedError)


def test_a_run_that_does_nothing_sees_that_a_newer_driver_owns_the_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 0)
    monkeypatch.setattr(supervisor, "RECENT", 0.01)

    def is_taken_over(script: Script) -> None:
        core.start(script.log, [script.plan])

    assert isinstance(play(is_taken_over).run().error, FencedError)


def test_a_stop_ends_a_run_and_leaves_what_is_above_the_clock() -> None:
    script = play(lambda script: script.commit(5), drains=True)
    run = script.supervise()
    run.stop()
    run.join()
    assert (run.error, run.restarts, script.newest().clock < END) == (None, 0, True)


def test_a_stop_ends_the_wait_before_another_start(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = threading.Event()

    def fail(tries: backoff.Backoff) -> float:
        waits.set()
        return 600

    monkeypatch.setattr(backoff.Backoff, "fail", fail)
    run = play(fails(DOWN)).supervise()
    assert waits.wait(PATIENCE)
    run.stop()
    run._thread.join(PATIENCE)
    assert (run.is_alive, run.error, run.restarts) == (False, None, 0)


def test_a_query_that_somebody_stopped_through_spark_ends_the_run_as_a_stop_does() -> None:
    def is_stopped(script: Script) -> None:
        script.queries.stop()
        script.queries.failed_commit = ("Words", InterruptedError())

    run = play(is_stopped).run()
    assert (run.error, run.restarts, run.was_flow_stopped) == (None, 0, True)


def test_a_query_that_somebody_stopped_between_commits_leaves_what_is_above_the_clock() -> None:
    def is_stopped(script: Script) -> None:
        script.commit(5)
        script.queries.stop()
        script.queries.is_one_stopped = True

    script = play(is_stopped, drains=True)
    running = Running(script.supervise())
    assert running.await_termination(PATIENCE)
    assert (script.newest().clock < END, running.clock, running.was_asked_to_stop) == (True, None, True)
    running = Running(play(ends).supervise())
    assert running.await_termination(PATIENCE)
    assert not running.was_asked_to_stop


class Stream:
    """A query of Spark's, and how it ended if it has."""

    def __init__(self, is_active: bool, error: Exception | None = None) -> None:
        self.isActive, self.error = is_active, error
        self.status = {"message": "Waiting for data to arrive"}

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive = False


def of_two_flows(monkeypatch: pytest.MonkeyPatch, *queries: Stream, to_the_end: bool) -> Supervisor:
    """What a run becomes of which two flows have these queries."""

    class Two(Queries):
        def start_to_meet(self, entry: Entry) -> bool:
            return False

        def start(self, entry: Entry) -> None:
            for name, query in zip(("Words", "Others"), queries, strict=True):
                self.by_flow[name] = query  # type: ignore[assignment]

    monkeypatch.setattr(spark_engine, "Queries", Two)
    run = play(to_the_end=to_the_end, max_restarts=0).supervise()
    run._thread.join(1 if to_the_end else PATIENCE)
    return run


def test_a_run_that_goes_on_ends_as_a_whole_when_somebody_stops_one_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on = Stream(is_active=True)
    run = of_two_flows(monkeypatch, goes_on, Stream(is_active=False), to_the_end=False)
    assert (run.is_alive, run.error, run.was_flow_stopped, goes_on.isActive) == (False, None, True, False)
    assert caplog.messages == ["application app ends, as somebody stopped a query of it through Spark."]


def test_a_run_that_goes_on_fails_with_the_error_of_one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    run = of_two_flows(monkeypatch, Stream(False, DOWN), Stream(is_active=True), to_the_end=False)
    assert (run.is_alive, run.error, run.was_flow_stopped) == (False, DOWN, False)


def test_a_run_to_the_end_waits_for_the_others_when_one_query_has_come_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = Stream(is_active=True)
    run = of_two_flows(monkeypatch, goes_on, Stream(is_active=False), to_the_end=True)
    assert (run.is_alive, run.was_flow_stopped) == (True, False)
    goes_on.stop()
    run._thread.join(PATIENCE)
    assert (run.is_alive, run.error, run.was_flow_stopped) == (False, None, False)


@pytest.mark.parametrize("is_asked", [False, True])
def test_sinks_are_told_of_a_stop_first_and_only_an_end_by_itself_collects_once_more(
    monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    done: list[str] = []

    class Sinks(Deliveries):
        def drain(self, asked_to_stop: threading.Event) -> None:
            done.append("sinks get the rest")

        def stop(self, patience: float) -> None:
            done.append("sinks stop")

    class Collection(GarbageCollection):
        def _collect(self) -> None:
            done.append("collects")

    def stops(queries: FakeQueries) -> None:
        done.append("queries stop")
        queries.active_flows = set()

    monkeypatch.setattr(supervisor, "GarbageCollection", Collection)
    script = play((lambda script: None) if is_asked else ends)
    entry = core.start(script.log, [script.plan])
    monkeypatch.setattr(FakeQueries, "stop", stops)
    run = Supervisor(script.setup, entry, Sinks([]), threading.Event())
    if is_asked:
        run.stop()
    run._thread.join(PATIENCE)
    assert (run.is_alive, run.error) == (False, None)
    # The queries that are to meet stop before the start, and all stops are repeated at the end.
    first = [each for each, before in zip(done, ["", *done], strict=False) if each != before]
    assert first[0] == "queries stop"
    if is_asked:
        assert first[1:3] == ["sinks stop", "queries stop"]
        assert not {"collects", "sinks get the rest"} & {*done}
    else:
        assert first[1:3] == ["sinks get the rest", "collects"]


def test_all_that_a_stop_waits_for_ends_in_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    patience: list[float] = []

    class Sinks(Deliveries):
        def stop(self, seconds: float) -> None:
            patience.append(seconds)

    def stops(queries: FakeQueries) -> None:
        if queries.active_flows:
            time.sleep(0.3)
        queries.active_flows = set()

    script = play(lambda script: None)
    entry = core.start(script.log, [script.plan])
    monkeypatch.setattr(FakeQueries, "stop", stops)
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.4)
    run = Supervisor(script.setup, entry, Sinks([]), threading.Event())
    run.stop()
    run._thread.join(PATIENCE)
    # The micro-batch that was under way has taken most of it.
    assert patience[0] == 0.0
    assert 0.0 <= patience[-1] <= 0.1


def test_the_session_of_the_user_is_tried_again_once_the_run_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions: list[object] = []
    monkeypatch.setattr(connect, "try_again", sessions.append)
    script = play(fails(FencedError("a newer driver owns app.")))
    script.run()
    assert sessions == [script.setup.engine.spark]  # type: ignore[attr-defined]


def test_a_first_start_that_fails_raises_and_leaves_nothing_running() -> None:
    with pytest.raises(StoreUnavailableError):
        play(raises(DOWN)).supervise()


def test_an_error_that_is_not_of_this_package_ends_the_run_with_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(script: Script) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(supervisor.Reports, "end", lambda *arguments, **named: breaks(FakeQueries.script))
    run = play(ends).run()
    assert str(run.error) == "application app stopped at ZeroDivisionError(). Fix the cause, then start it again."
    assert isinstance(run.error.__cause__ if run.error else None, ZeroDivisionError)


def test_a_drain_whose_steps_fail_tries_them_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def drained(*failures: StateError) -> tuple[Script, Running]:
        fake = FakeSteps(*failures)
        monkeypatch.setattr(supervisor, "Stepper", lambda setup: fake)
        script = play(lambda script: script.commit(5), max_restarts=2)
        return script, Running(script.supervise())

    script, running = drained(DOWN, StoreUnavailableError("an executor was lost."))
    assert running.drain() == script.newest().clock == 10
    # No new start: nobody reads again what is above the global clock.
    assert script.newest().epoch == 1
    assert [record.getMessage() for record in caplog.records] == [
        "application app goes on to drain in 0.01 s: the store is down.",
        "application app goes on to drain in 0.01 s: an executor was lost.",
    ]
    last = StoreUnavailableError("still down.")
    with pytest.raises(StoreUnavailableError, match="still down"):
        drained(DOWN, DOWN, last)[1].drain()
    with pytest.raises(TaskFailedError, match="no such region"):
        drained(TaskFailedError("no such region"))[1].drain()


@pytest.mark.parametrize("answers", [True, False])
def test_a_drain_asks_the_sources_what_they_hold_back_and_warns_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, answers: bool
) -> None:
    def pending(*_: Any) -> dict[str, float]:
        if not answers:
            raise DOWN
        return {"t-0": 3.0}

    monkeypatch.setattr(supervisor, "pending", pending)
    script = play(lambda script: script.commit(5))
    assert Running(script.supervise()).drain() == 10
    warned = "messages of 't-0' for 3 s are in an open transaction, or behind one." in caplog.text
    assert warned == ("The drain passes them" in caplog.text) == answers


def test_a_drain_that_a_newer_driver_has_fenced_is_not_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    script = play(lambda script: script.commit(5))
    running = Running(script.supervise())
    core.start(script.log, [script.plan])
    with pytest.raises(FencedError):
        running.drain()
    assert not caplog.records


def test_steps_are_left_to_the_queries_that_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeSteps()
    monkeypatch.setattr(supervisor, "Stepper", lambda setup: fake)

    def two(script: Script) -> None:
        script.queries.active_flows = {"Words", "Others"}

    script = play(two)
    run = script.supervise()
    for left in ({"Words"}, set[str]()):
        script.queries.active_flows = left
        until(lambda left=left: fake.left[-1] == left, "the steps")
    run.join()
    assert fake.left == [{"Words", "Others"}, {"Words"}, set()]
    assert run.error is None


def test_a_monitor_hears_of_failures_and_is_closed_at_the_end() -> None:
    told: list[str] = []

    class Told:
        """A monitor that asks the run at each of its starts whether it is ready."""

        def watch(self, run: Supervisor) -> None:
            self.run = run

        def hear(self, work: Any) -> None: ...

        def fail(self) -> None:
            told.append(f"fails: {self.run.failure}")

        def restart(self) -> None:
            told.append("starts again")

        def close(self) -> None:
            told.append(f"ends: {self.run.failure}")

    def recovers(script: Script) -> None:
        script.commit(25)
        script.queries.stop()

    script, monitor = play(fails(DOWN), raises(DOWN), recovers), Told()
    watch: Any = monitor
    entry = core.start(script.log, [script.plan])
    run = Supervisor(script.setup, entry, Deliveries([]), threading.Event(), watch)
    run._thread.join(PATIENCE)
    assert told == [*["fails: the store is down.", "starts again"] * 2, "ends: None"]
