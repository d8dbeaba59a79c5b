"""Make a micro-batch when a stream that Spark reads is idle, so that its flow lets the global clock go on.

Spark plans no micro-batch while nothing arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from persistent_state.batch.packets import Basis
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive.turn import Part
from persistent_state.engine.read.arrow_source import blob_batches
from persistent_state.event_time.inputs import INPUT
from persistent_state.protocol import commits
from persistent_state.run.wall_clock import now_us
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log

PART = -1
"""The number of the part of an idle micro-batch. Spark counts the other parts from 0."""

MARGIN = 10_000
"""Microseconds that are added to `idle_after`, because Spark truncates the batch time to milliseconds."""

AGAIN = 5_000_000
"""Microseconds between two looks at the log for whether an idle flow holds the global clock."""


class IdleReader(DataSourceStreamReader):
    """A source without rows beside a stream. Its offset moves when all channels of the stream are idle.

    The channels are idle when none has delivered for `idle_after`. If the flow then holds the global clock, a micro-batch is
    due that lets the clock go on. `basis` returns what the micro-batch starts from, as for the stream's own parts.
    """

    def __init__(self, flow: FlowPlan, epoch: int, basis: Callable[[Entry, int], Basis], labels: Sequence[int]) -> None:
        self.flow = flow
        self._epoch = epoch
        self._basis = basis
        self._labels = labels
        self._log = Log(flow.first.files, flow.first.application)
        self._opened: int | None = None
        self._next = 0
        self._tick = 0

    def initialOffset(self) -> dict[str, Any]:
        return {"tick": self._tick}

    # Before PySpark 4.2 it is called without arguments.
    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        return {"tick": self._tick + int(self._is_due())}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._tick = end["tick"]
        entry = commits.wake(self._log, self._epoch, self.flow.id, now_us())
        silent_for = {INPUT: self.flow.first.settings.idle_after or 0}
        return [InputPartition(Part(PART, None, replace(self._basis(entry, PART), silent_for=silent_for)))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from blob_batches(partition.value.combine(self.flow, ()), self._labels, 1)

    def _is_due(self) -> bool:
        now, idle_after = now_us(), self.flow.first.settings.idle_after
        # The first call begins the time for which channels must be silent.
        self._opened = now if self._opened is None else self._opened
        self._next = max(self._next, self._opened + (idle_after or 0) + MARGIN)
        if idle_after is None or now < self._next:
            return False
        entry = self._log.newest()
        if entry is not None and entry.epoch > self._epoch:
            # A newer driver owns the application. The planning of a micro-batch raises that, which ends the query.
            return True
        flow = entry.flows.get(self.flow.id) if entry is not None and entry.epoch == self._epoch else None
        if flow is None or not flow.progress.holds:
            self._next = now + AGAIN
            return False
        last = max([channel.active for channel in flow.source.channels.values()], default=self._opened)
        self._next = last + idle_after + MARGIN
        return now >= self._next
