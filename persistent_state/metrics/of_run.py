"""Measure a run itself: what its commits took, and what happened since it began."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from persistent_state.event_time.inputs import by_input
from persistent_state.metrics import measures
from persistent_state.metrics.exposition import library
from persistent_state.metrics.measures import COUNTER, HISTOGRAM, Measure

if TYPE_CHECKING:
    from prometheus_client import Metric

BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
"""The upper bounds of the buckets of times, in seconds."""


@dataclass(frozen=True)
class Work:
    """One micro-batch or step of a flow that was committed.

    Attributes:
        flow: The id of the flow.
        is_step: True for a step, which asks no source.
        messages: The messages that it read.
        replayed: How many of these messages an earlier start had read.
        seconds: The time from when it was planned to when it was committed.
        commit_seconds: How much of this the driver took for the log entry, once parts and shards had answered.
        inputs: The names of the flow's inputs that sources feed.
        lag: By partition: how many positions there were beyond the micro-batch when it was planned. Of several inputs, names
            of partitions begin with the input's.
    """

    flow: str
    is_step: bool
    messages: int
    replayed: int
    seconds: float
    commit_seconds: float
    inputs: tuple[str, ...] = ()
    lag: Mapping[str, int] = field(default_factory=dict)


class RunMetrics:
    """The metrics of one run of an application: a collector of the library prometheus-client.

    Times are seconds of any one clock. `begin` says from when on a recovery counts; the next commit ends it.

    Raises:
        InvalidInputError: The package prometheus-client is not installed.
    """

    def __init__(self, application: str) -> None:
        self._application = application
        self._of = {measure: _instrument(measure) for measure in measures.OF_RUN}
        self._lock = threading.Lock()
        self._recovers_since: float | None = None
        # So that the first is no jump from nothing.
        self._of[measures.RESTARTS].labels(application)

    def begin(self, now: float) -> None:
        """Take in that the run begins, or that something failed: from now on it recovers."""
        with self._lock:
            if self._recovers_since is None:
                self._recovers_since = now

    def restart(self) -> None:
        """Take in a start after a failure."""
        self._of[measures.RESTARTS].labels(self._application).inc()

    def hear(self, work: Work, now: float) -> None:
        """Take in a commit."""
        at = (self._application, work.flow)
        seconds = measures.STEP_SECONDS if work.is_step else measures.MICRO_BATCH_SECONDS
        self._of[seconds].labels(*at).observe(work.seconds)
        self._of[measures.COMMIT_SECONDS].labels(*at).observe(work.commit_seconds)
        self._of[measures.MESSAGES].labels(*at).inc(work.messages)
        self._of[measures.REPLAYED].labels(*at).inc(work.replayed)
        for input, lag in by_input(work.lag, work.inputs).items():
            for partition, count in lag.items():
                self._of[measures.UNREAD].labels(*at, input, partition).set(count)
        with self._lock:
            since, self._recovers_since = self._recovers_since, None
        if since is not None:
            self._of[measures.RECOVERY_SECONDS].labels(self._application).observe(now - since)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as the library has them."""
        for instrument in self._of.values():
            for metric in instrument.collect():
                # When each series began is known by the one of the process.
                metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
                yield metric


def _instrument(measure: Measure) -> Any:
    """Return what the library counts a metric with. It belongs to no registry."""
    made, more = library().Gauge, dict[str, Any]()
    if measure.kind == COUNTER:
        made = library().Counter
    elif measure.kind == HISTOGRAM:
        made, more = library().Histogram, {"buckets": BUCKETS}
    return made(measure.name, measure.help, measure.labels, unit=measure.unit, registry=None, **more)
