"""Measure a run itself: what its commits took, and what happened since it began."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from persistent_state.event_time.inputs import by_input
from persistent_state.metrics import measures
from persistent_state.metrics.measures import Sample


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
        lag: By partition: how many positions there were beyond the micro-batch when it was planned. If there are several
            inputs, names of partitions begin with the input's.
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
    """The metrics of one run of an application: what happens in it, as samples.

    Times are seconds of any one clock. `begin_recovery` says from when on a recovery counts; the next commit ends it. Each of
    `recorders` gets each sample as it happens: how much a counter grows, how long something took, or what a gauge shows from
    now on.
    """

    def __init__(self, application: str, recorders: Sequence[Callable[[Sample], None]]) -> None:
        self._application, self._recorders = application, recorders
        self._lock = threading.Lock()
        self._recovers_since: float | None = None
        self._flows = set[str]()
        # So that the first is no jump from nothing.
        self._record(measures.RESTARTS.at(0, application))

    def begin_recovery(self, now: float) -> None:
        """Record that the run begins, or that something failed: from now on it recovers."""
        with self._lock:
            if self._recovers_since is None:
                self._recovers_since = now

    def record_idle(self, idle: Mapping[str, bool]) -> None:
        """Record by flow whether it is idle now. A flow that is missing here is not."""
        self._flows |= idle.keys()
        for flow in sorted(self._flows):
            self._record(measures.IDLE.at(idle.get(flow, False), self._application, flow))

    def record_restart(self) -> None:
        """Record a start after a failure."""
        self._record(measures.RESTARTS.at(1, self._application))

    def record_commit(self, work: Work, now: float) -> None:
        """Record a commit."""
        at = (self._application, work.flow)
        seconds = measures.STEP_SECONDS if work.is_step else measures.MICRO_BATCH_SECONDS
        self._record(seconds.at(work.seconds, *at))
        self._record(measures.COMMIT_SECONDS.at(work.commit_seconds, *at))
        self._record(measures.MESSAGES.at(work.messages, *at))
        self._record(measures.REPLAYED.at(work.replayed, *at))
        for input, lag in by_input(work.lag, work.inputs).items():
            for partition, count in lag.items():
                self._record(measures.UNREAD.at(count, *at, input, partition))
        with self._lock:
            since, self._recovers_since = self._recovers_since, None
        if since is not None:
            self._record(measures.RECOVERY_SECONDS.at(now - since, self._application))

    def record_delivery(self, task: str, output: str, seconds: float) -> None:
        """Record that the sink of an output has a clock, and how long that took."""
        self._record(measures.DELIVERY_SECONDS.at(seconds, self._application, task, output))

    def _record(self, sample: Sample) -> None:
        for record in self._recorders:
            record(sample)
