"""What a run answers to who asks whether it is ready, and which metrics it tells."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from persistent_state.errors import StateError, StoreUnavailableError
from persistent_state.event_time.clocks import Settings
from persistent_state.metrics.of_run import Work
from persistent_state.run.monitor import LONG_SECONDS, Monitor
from persistent_state.store.files.base import KINDS
from persistent_state.store.log import Log
from tests import core
from tests.metrics.test_of_store import parsed
from tests.metrics.test_server import ask
from tests.refusing import RefusingFiles
from tests.two_tasks import TwoTasks


class Run:
    """A run of which a test says how it fares."""

    def __init__(self) -> None:
        self.failure: StateError | None = None
        self.under_way: Mapping[str, float] = {}
        self.unheard: Sequence[str] = ()
        self.idle: Mapping[str, bool] = {}


@pytest.fixture
def world() -> TwoTasks:
    return TwoTasks()


@pytest.fixture
def monitor(world: TwoTasks) -> Iterator[Monitor]:
    monitor = Monitor(world.log, {"A": Settings(10_000_000, idle_after=5_000_000)}, ("127.0.0.1", 0))
    monitor.serve()
    yield monitor
    monitor.close()


def values_at(monitor: Monitor) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of each metric by its labels, in the order of their names, without the application."""
    status, _, text = ask(f"{monitor.url}/metrics", "application/openmetrics-text")
    assert status == 200
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for sample in (sample for family in parsed(text).values() for sample in family.samples):
        labels = tuple(value for label, value in sorted(sample.labels.items()) if label != "application")
        found.setdefault(sample.name.removeprefix("persistent_state_"), {})[labels] = sample.value
    return found


def test_a_run_is_ready_if_it_commits_or_has_nothing_to_read(monitor: Monitor) -> None:
    def ready() -> tuple[int, str]:
        status, _, text = ask(f"{monitor.url}/ready")
        return status, text.strip()

    assert ready() == (503, "application=app is starting.")
    run = Run()
    monitor.watch(run)
    assert ready() == (200, "application=app is ready.")
    run.unheard = ["task=A", "task=B"]
    assert ready() == (503, "application=app: the first micro-batch of task=A since the start has yet to be committed.")
    run.unheard = ()
    run.under_way = {"the micro-batch of task=A": time.monotonic()}
    assert ready()[0] == 200
    run.under_way = {"the step of task=D": time.monotonic() - LONG_SECONDS - 1}
    assert ready() == (
        503,
        "application=app: the step of task=D has been under way for 601 s; look at what its workers do.",
    )
    run.failure = StoreUnavailableError("the store is away; try again.")
    assert ready() == (503, "application=app starts again after a failure: the store is away; try again.")


def test_it_tells_the_metrics_of_the_run_and_of_its_store(monitor: Monitor, world: TwoTasks) -> None:
    assert "global_clock_seconds" not in values_at(monitor)
    for task in world.plans:
        world.read(task, {"x": 25}, "x")
    monitor.hear(Work("A", False, 100, 10, 1.5, 0.25))
    monitor.fail()
    monitor.restart()
    monitor.hear(Work("A", False, 100, 10, 1.5, 0.25))
    told = values_at(monitor)
    assert told["global_clock_seconds"] == {(): 20}
    assert told["messages_total"] == {("A",): 200}
    assert told["restarts_total"] == {(): 1}
    # From its beginning to the first commit, and from the failure to the second.
    assert told["recovery_seconds_count"] == {(): 2}


def test_it_counts_deliveries_and_the_requests_of_its_process_to_its_own_store(
    monitor: Monitor, world: TwoTasks
) -> None:
    before, files = values_at(monitor), world.log.files
    assert before["store_requests_total"].keys() == {(kind,) for kind in KINDS}
    assert "delivery_seconds_count" not in before
    for name in ("x/1", "x/2", "x/3"):
        files.create(name, b"")
    core.memory().create("x/1", b"")
    files.delete("x/1")
    monitor.hear_delivery("A", "sink", 1.5)
    after = values_at(monitor)
    grown = {kind: after["store_requests_total"][kind,] - before["store_requests_total"][kind,] for kind in KINDS}
    assert (grown["PUT"], grown["DELETE"], grown["HEAD"]) == (3, 1, 0)
    # The look at the log that answers is counted, too.
    assert grown["LIST"] >= 1
    assert after["delivery_seconds_sum"] == {("sink", "A"): 1.5}


def test_it_tells_which_queries_wait_for_messages(monitor: Monitor) -> None:
    assert "idle" not in values_at(monitor)
    run = Run()
    monitor.watch(run)
    run.idle = {"A": True, "B": False}
    assert values_at(monitor)["idle"] == {("A",): 1, ("B",): 0}
    run.idle = {"B": True}
    assert values_at(monitor)["idle"] == {("A",): 0, ("B",): 1}
    run.failure = StoreUnavailableError("the store is away; try again.")
    assert values_at(monitor)["idle"] == {("A",): 0, ("B",): 0}


def test_a_spark_that_is_lost_hides_nothing(monitor: Monitor) -> None:
    class Lost(Run):
        @property  # type: ignore[misc]
        def idle(self) -> Mapping[str, bool]:
            raise ConnectionError

        @idle.setter
        def idle(self, idle: Mapping[str, bool]) -> None:
            pass

    monitor.watch(Lost())
    assert values_at(monitor)["readable"] == {(): 1}


def test_a_channel_that_is_idle_by_the_settings_holds_nothing(monitor: Monitor, world: TwoTasks) -> None:
    world.read("B", {"x": 100}, "x")
    world.read("A", {"x": 25, "y": 31}, "xy")
    world.read("A", {"x": 35}, "xy", now=1_000_000)
    assert values_at(monitor)["waits_for"] == {("y", "", "A", "behind"): 1}
    world.read("A", {"x": 45}, "xy", now=9_000_000)
    assert values_at(monitor)["waits_for"] == {("x", "", "A", "behind"): 1}


def test_a_store_that_is_damaged_leaves_what_the_run_knows(monitor: Monitor, world: TwoTasks) -> None:
    newest = core.newest(world.log)
    world.log.files.delete(world.log.path(newest.number))
    world.log.files.create(world.log.path(newest.number), b"{}")
    monitor.hear(Work("A", False, 100, 10, 1.5, 0.25))
    told = values_at(monitor)
    assert told["readable"] == {(): 0}
    assert told["messages_total"] == {("A",): 100}


def test_a_store_that_refuses_leaves_what_the_run_knows(world: TwoTasks) -> None:
    files = RefusingFiles(world.log.files.url)
    monitor = Monitor(Log(files, "app"), {}, ("127.0.0.1", 0))
    monitor.serve()
    try:
        assert values_at(monitor)["readable"] == {(): 1}
        files.refused[:] = [""]
        monitor.hear(Work("A", False, 100, 10, 1.5, 0.25))
        told = values_at(monitor)
        assert told["readable"] == {(): 0}
        assert told["messages_total"] == {("A",): 100}
    finally:
        monitor.close()
