"""Let a monitoring system ask a run how it fares: its metrics, whether it is alive, and whether it commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from persistent_state.errors import StateError
from persistent_state.event_time.clocks import Settings
from persistent_state.metrics import measures
from persistent_state.metrics.exposition import Counts, Samples
from persistent_state.metrics.measures import Sample
from persistent_state.metrics.of_run import RunMetrics, Work
from persistent_state.metrics.of_store import of_application
from persistent_state.metrics.server import Server
from persistent_state.metrics.telemetry import telemetry
from persistent_state.store.log import Log

LONG_SECONDS = 600.0
"""The time after which a micro-batch or a step that is still under way is no sign of a run that commits."""


class Watched(Protocol):
    """The supervisor of a run, as a monitor looks at it."""

    @property
    def failure(self) -> StateError | None:
        """The failure after which the run has yet to start again."""

    @property
    def under_way(self) -> Mapping[str, float]:
        """By the name of a micro-batch or a step that is under way: since when."""

    @property
    def idle(self) -> Mapping[str, bool]:
        """By flow: whether it waits for messages, or for its trigger."""

    @property
    def unheard(self) -> Iterable[str]:
        """The flows that have neither committed since the start nor found that there is nothing to read."""


class Monitor:
    """A monitor reports one run until `close`: to OpenTelemetry, if it is installed, and from `serve` on at an endpoint.

    `endpoint` is the host and the port; None if there is to be none.

    Raises:
        InvalidInputError: The port is in use, or there is to be an endpoint and prometheus-client is not installed.
    """

    def __init__(self, log: Log, settings: Mapping[str, Settings], endpoint: tuple[str, int] | None) -> None:
        # A log of its own reports what other processes can read. The run's log has entries in memory, which may be damaged now.
        self._log, self._settings, self._turn = Log(log.files, log.application), settings, threading.Lock()
        self._run: Watched | None = None
        recorders = list[Callable[[Sample], None]]()
        self._server: Server | None = None
        if endpoint is not None:
            counts = Counts()
            recorders.append(counts.record)
            collectors = [Samples(self._of_store), counts]
            self._server = Server(log.application, *endpoint, collectors, self._not_ready)
        self._telemetry = telemetry(self._of_store)
        if self._telemetry is not None:
            recorders.append(self._telemetry.record)
        self._metrics = RunMetrics(log.application, recorders)
        self._metrics.begin_recovery(time.monotonic())

    @property
    def url(self) -> str | None:
        """The address of the endpoint; None without an endpoint."""
        return None if self._server is None else self._server.url

    def serve(self) -> None:
        """Answer from now on. Until there is a run to `watch`, it is not ready."""
        if self._server is not None:
            self._server.serve()

    def watch(self, run: Watched) -> None:
        """Look at this run from now on."""
        self._run = run

    def hear(self, work: Work) -> None:
        """Take in a commit."""
        self._metrics.record_commit(work, time.monotonic())

    def hear_delivery(self, task: str, output: str, seconds: float) -> None:
        """Take in that the sink of an output has a clock."""
        self._metrics.record_delivery(task, output, seconds)

    def fail(self) -> None:
        """Take in a failure after which the run starts again."""
        self._metrics.begin_recovery(time.monotonic())

    def restart(self) -> None:
        """Take in a start after a failure."""
        self._metrics.record_restart()

    def close(self) -> None:
        """Report nothing more, and free the port."""
        if self._telemetry is not None:
            self._telemetry.close()
        if self._server is not None:
            self._server.close()

    def _of_store(self) -> Iterable[Sample]:
        with self._turn:
            self._metrics.record_idle(self._idle())
            samples, _ = of_application(self._log, self._settings)
        requests = self._log.files.requests_by_kind().items()
        return [*samples, *(measures.REQUESTS.at(count, self._log.application, kind) for kind, count in requests)]

    def _idle(self) -> Mapping[str, bool]:
        if self._run is None or self._run.failure is not None:
            return {}
        try:
            return self._run.idle
        except Exception:
            # The engine may end at any moment. Then no flow waits for anything, and the answer has all else.
            return {}

    def _not_ready(self) -> str:
        """Return why the run neither commits nor waits for rows, as a sentence; "" if it does."""
        of = f"application={self._log.application}"
        if self._run is None:
            return f"{of} is starting."
        if (failure := self._run.failure) is not None:
            return f"{of} starts again after a failure: {failure}"
        now = time.monotonic()
        for work, since in self._run.under_way.items():
            if now - since > LONG_SECONDS:
                return f"{of}: {work} has been under way for {now - since:.0f} s; look at what its workers do."
        for flow in self._run.unheard:
            return f"{of}: the first micro-batch of {flow} since the start has yet to be committed."
        return ""
