"""The metrics of a run: counted once for a flow, with recoveries from a failure to the next commit."""

from __future__ import annotations

import shutil
import subprocess

import prometheus_client
import pytest

from persistent_state.metrics import measures
from persistent_state.metrics.exposition import Counts
from persistent_state.metrics.measures import Measure
from persistent_state.metrics.of_run import RunMetrics, Work


class Run(RunMetrics):
    """The metrics of a run, counted by the library."""

    def __init__(self) -> None:
        counts = Counts()
        super().__init__("app", [counts.record])
        self.collect = counts.collect


def values(run: Run, of: Measure, suffix: str = "") -> dict[tuple[str, ...], float]:
    """The values of a metric by its labels, without the application."""
    name = of.in_queries + suffix
    samples = [sample for metric in run.collect() for sample in metric.samples if sample.name == name]
    return {tuple(sample.labels[label] for label in of.labels[1:]): sample.value for sample in samples}


def test_commits_are_counted_by_flow() -> None:
    run = Run()
    run.record_commit(Work("A", False, 100, 10, 1.5, 0.25), 0)
    run.record_commit(Work("A", False, 50, 0, 0.5, 0.25), 1)
    run.record_commit(Work("D", True, 7, 0, 2.0, 0.5), 2)
    assert values(run, measures.MESSAGES) == {("A",): 150, ("D",): 7}
    assert values(run, measures.REPLAYED) == {("A",): 10, ("D",): 0}
    assert values(run, measures.MICRO_BATCH_SECONDS, "_sum") == {("A",): 2}
    assert values(run, measures.MICRO_BATCH_SECONDS, "_count") == {("A",): 2}
    assert values(run, measures.STEP_SECONDS, "_sum") == {("D",): 2}
    assert values(run, measures.COMMIT_SECONDS, "_sum") == {("A",): 0.5, ("D",): 0.5}


def test_the_lag_is_that_of_the_newest_micro_batch_by_input_and_partition() -> None:
    run = Run()
    run.record_commit(Work("A", False, 1, 0, 1, 1, ("",), {"orders-0": 5, "orders-1": 7}), 0)
    run.record_commit(Work("A", False, 1, 0, 1, 1, ("",), {"orders-0": 3, "orders-1": 0}), 0)
    run.record_commit(Work("B", False, 1, 0, 1, 1, ("", "rates"), {"orders-0": 1, "rates:rates-0": 2}), 0)
    assert values(run, measures.UNREAD) == {
        ("A", "", "orders-0"): 3,
        ("A", "", "orders-1"): 0,
        ("B", "", "orders-0"): 1,
        ("B", "rates", "rates-0"): 2,
    }


def test_deliveries_are_counted_by_task_and_output_from_five_milliseconds_to_ten_minutes() -> None:
    run = Run()
    for seconds in (0.004, 0.007, 590):
        run.record_delivery("A", "sink", seconds)
    run.record_delivery("B", "sink", 700)
    assert values(run, measures.DELIVERY_SECONDS, "_count") == {("A", "sink"): 3, ("B", "sink"): 1}
    assert values(run, measures.DELIVERY_SECONDS, "_sum") == {("A", "sink"): 590.011, ("B", "sink"): 700}
    name = f"{measures.DELIVERY_SECONDS.in_queries}_bucket"
    buckets = [sample for metric in run.collect() for sample in metric.samples if sample.name == name]
    of_a = {float(sample.labels["le"]): sample.value for sample in buckets if sample.labels["task"] == "A"}
    assert (of_a[0.005], of_a[0.01], of_a[300], of_a[600]) == (1, 2, 2, 3)


def test_a_recovery_is_from_the_first_failure_to_the_next_commit() -> None:
    run, work = Run(), Work("A", False, 1, 0, 1, 1)
    assert values(run, measures.RESTARTS) == {(): 0}
    run.begin_recovery(10)
    run.record_commit(work, 14)
    run.record_commit(work, 20)
    assert values(run, measures.RECOVERY_SECONDS, "_sum") == {(): 4}
    run.begin_recovery(30)
    run.record_restart()
    run.begin_recovery(33)
    run.record_restart()
    run.record_commit(work, 36)
    assert values(run, measures.RECOVERY_SECONDS, "_sum") == {(): 10}
    assert values(run, measures.RECOVERY_SECONDS, "_count") == {(): 2}
    assert values(run, measures.RESTARTS) == {(): 2}


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed; .ci/run installs it")
def test_promtool_has_nothing_against_it() -> None:
    run, registry = Run(), prometheus_client.CollectorRegistry()
    run.begin_recovery(0)
    for is_step in (False, True):
        run.record_commit(Work("A", is_step, 100, 10, 1.5, 0.25, ("",), {"orders-0": 5}), 1)
    run.record_delivery("A", "sink", 0.5)
    registry.register(run)
    text = prometheus_client.generate_latest(registry)
    names = {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE")}
    assert names == {measure.in_queries for measure in measures.OF_RUN}
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
