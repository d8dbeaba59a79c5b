"""Where a user has set up OpenTelemetry, it is told the metrics of the runs that last, and no run fails by it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import opentelemetry.metrics
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from persistent_state.metrics import measures
from persistent_state.metrics.measures import BUCKETS, Measure, Sample
from persistent_state.metrics.of_run import Work
from persistent_state.metrics.of_store import of_application
from persistent_state.metrics.telemetry import Telemetry, telemetry
from persistent_state.run.monitor import Monitor
from tests.run.test_monitor import Run
from tests.two_tasks import TwoTasks
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
WORK = Work("A", False, 100, 10, 1.5, 0.25, ("",), {"orders-0": 5})


class Collected:
    """What an SDK has collected: metrics by name, and the values of a measure by its labels, without the application."""

    def __init__(self, reader: InMemoryMetricReader) -> None:
        data: Any = reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        self.meters = {scope.scope.name for scope in scopes}
        self.metrics = {metric.name: metric for scope in scopes for metric in scope.metrics}

    def points(self, of: Measure) -> Mapping[tuple[str, ...], Any]:
        points = self.metrics[of.name].data.data_points if of.name in self.metrics else []
        return {tuple(point.attributes[label] for label in of.labels[1:]): point for point in points}

    def values(self, of: Measure) -> Mapping[tuple[str, ...], float]:
        return {labels: point.value for labels, point in self.points(of).items()}


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    """A reader of a provider that the user has set."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(opentelemetry.metrics, "get_meter_provider", lambda: provider)
    return reader


def begin(of_store: Callable[[], Iterable[Sample]]) -> Telemetry:
    """Tell of a run with these samples of its store."""
    found = telemetry(of_store)
    assert found is not None
    return found


def test_it_is_told_what_the_endpoint_answers_with_units_as_it_names_them(reader: InMemoryMetricReader) -> None:
    world = TwoTasks()
    for task in world.plans:
        world.read(task, {"x": 25}, "x")
    monitor = Monitor(world.log, {}, None)
    assert monitor.url is None
    monitor.serve()
    monitor.hear(WORK)
    monitor.hear_delivery("A", "sink", 0.5)
    run = Run()
    run.idle = {"A": True}
    monitor.watch(run)
    found = Collected(reader)
    samples, _ = of_application(world.log)
    assert found.meters == {"persistent_state"}
    assert len(samples) > 20
    for sample in samples:
        assert found.values(sample.of)[sample.labels[1:]] == sample.value
        (application,) = {point.attributes["application"] for point in found.points(sample.of).values()}
        assert application == "app"
    of_job = {*measures.OF_RUN, *measures.OF_PROCESS} - {measures.STEP_SECONDS}
    assert found.metrics.keys() == {each.name for each in {*of_job, *(sample.of for sample in samples)}}
    assert found.values(measures.REQUESTS)["GET",] > 0
    for measure in (*measures.OF_STORE, *of_job):
        if (metric := found.metrics.get(measure.name)) is not None:
            assert metric.unit == {"seconds": "s", "bytes": "By", "": ""}[measure.unit], measure
            assert metric.description == measure.help
    monitor.close()


def test_what_happens_in_a_run_is_counted(reader: InMemoryMetricReader) -> None:
    monitor = Monitor(TwoTasks().log, {}, None)
    assert Collected(reader).values(measures.RESTARTS) == {(): 0}
    monitor.hear(WORK)
    monitor.fail()
    monitor.restart()
    monitor.hear(Work("A", False, 50, 0, 0.5, 0.25, ("",), {"orders-0": 3}))
    monitor.hear(Work("D", True, 7, 0, 2.0, 0.5))
    found = Collected(reader)
    assert found.values(measures.MESSAGES) == {("A",): 150, ("D",): 7}
    assert found.values(measures.REPLAYED) == {("A",): 10, ("D",): 0}
    assert found.values(measures.RESTARTS) == {(): 1}
    assert found.values(measures.UNREAD) == {("A", "", "orders-0"): 3}
    (batches,) = found.points(measures.MICRO_BATCH_SECONDS).values()
    assert (batches.count, batches.sum, batches.explicit_bounds) == (2, 2.0, BUCKETS)
    assert found.points(measures.RECOVERY_SECONDS)[()].count == 2
    monitor.close()


def test_it_is_quiet_after_the_end_and_told_again_of_the_next_run(reader: InMemoryMetricReader) -> None:
    world = TwoTasks()
    gauges = (measures.READABLE, measures.ENTRIES, measures.UNREAD)

    def told() -> list[bool]:
        found = Collected(reader)
        return [bool(found.values(measure)) for measure in gauges]

    for count in (1, 2):
        monitor = Monitor(world.log, {}, None)
        monitor.hear(WORK)
        assert told() == [True] * len(gauges)
        monitor.close()
        monitor.close()
        assert told() == [False] * len(gauges)
        # What was counted in this process goes on.
        assert Collected(reader).values(measures.MESSAGES) == {("A",): 100 * count}


def test_runs_beside_each_other_are_told_apart_and_each_store_is_asked_once(reader: InMemoryMetricReader) -> None:
    asked: list[str] = []

    def of(name: str) -> Iterable[Sample]:
        asked.append(name)
        return [measures.STARTS.at(len(name), name), measures.READABLE.at(1, name)]

    runs = [begin(lambda: of("one")), begin(lambda: of("three"))]

    def starts() -> dict[str, float]:
        points = Collected(reader).metrics[measures.STARTS.name].data.data_points
        return {point.attributes["application"]: point.value for point in points}

    assert starts() == {"one": 3, "three": 5}
    assert asked == ["one", "three"]
    runs[0].close()
    assert starts() == {"three": 5}
    assert asked == ["one", "three", "three"]
    runs[1].close()


def test_a_store_that_fails_hides_neither_the_other_runs_nor_what_the_run_knows(
    reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> Iterable[Sample]:
        raise OSError("the disk is away")

    runs = [begin(fails), begin(lambda: [measures.READABLE.at(1, "app")])]
    runs[0].record(measures.MESSAGES.at(5, "app", "A"))
    for _ in range(2):
        found = Collected(reader)
        assert found.values(measures.READABLE) == {(): 1}
        assert found.values(measures.MESSAGES) == {("A",): 5}
    assert caplog.messages == ["OpenTelemetry was not told a metric; this is said once: OSError('the disk is away')"]
    for run in runs:
        run.close()


def test_a_run_waits_for_no_store_that_is_asked(reader: InMemoryMetricReader) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hangs() -> Iterable[Sample]:
        asked.set()
        assert answer.wait(PATIENCE)
        return [measures.READABLE.at(1, "app")]

    run, found = begin(hangs), list[Collected]()
    export = threading.Thread(target=lambda: found.append(Collected(reader)))
    export.start()
    assert asked.wait(PATIENCE)
    # In this thread, while that one hangs.
    run.record(measures.MESSAGES.at(5, "app", "A"))
    run.close()
    assert found == []
    answer.set()
    export.join(PATIENCE)
    assert found[0].values(measures.READABLE) == {}, "it has ended meanwhile"


def test_an_sdk_that_raises_fails_no_run(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def get_meter(self, name: str) -> Any:
            raise RuntimeError("no meters today")

    class Breaks(MeterProvider):
        """Its counters can't count."""

        def get_meter(self, *args: Any, **more: Any) -> Any:
            meter = super().get_meter(*args, **more)

            def add(*args: Any) -> None:
                raise RuntimeError("no counts today")

            monkeypatch.setattr(meter, "create_counter", lambda *about: type("Counter", (), {"add": add}))
            return meter

    for provider, said in (
        (Broken(), "OpenTelemetry is not told the metrics of this run: RuntimeError('no meters today')"),
        (Breaks(), "OpenTelemetry was not told a metric; this is said once: RuntimeError('no counts today')"),
    ):
        monkeypatch.setattr(opentelemetry.metrics, "get_meter_provider", lambda provider=provider: provider)
        caplog.clear()
        monitor = Monitor(TwoTasks().log, {}, None)
        monitor.hear(WORK)
        monitor.restart()
        monitor.close()
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [said]


PROGRAM = """
import opentelemetry.metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from persistent_state.metrics import measures
from tests.metrics.test_telemetry import Collected, begin

def run(value):
    return begin(lambda: [measures.STARTS.at(value, "app")])

first, reader = run(1), InMemoryMetricReader()
first.record(measures.MESSAGES.at(1, "app", "A"))
opentelemetry.metrics.set_meter_provider(MeterProvider([reader]))
first.record(measures.MESSAGES.at(5, "app", "A"))
assert Collected(reader).values(measures.STARTS) == {(): 1}
first.close()
second = run(2)
second.record(measures.MESSAGES.at(5, "app", "A"))
found = Collected(reader)
assert found.values(measures.STARTS) == {(): 2}
assert found.values(measures.MESSAGES) == {("A",): 10}
"""


def test_a_provider_may_be_set_after_the_start() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_package_nothing_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert telemetry(lambda: []) is None
    monitor = Monitor(TwoTasks().log, {}, None)
    monitor.hear(WORK)
    monitor.close()
    assert caplog.records == []
