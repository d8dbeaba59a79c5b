"""Read an Arrow source in Spark's Python workers, and combine its rows there, so that no row crosses the JVM."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from persistent_state.batch.packets import DRIVER, Blob, Report
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive.planner import Planner
from persistent_state.drive.turn import Part
from persistent_state.engine.read.packed import packed_source
from persistent_state.engine.spark import failures
from persistent_state.engine.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from persistent_state.errors import StateError
from persistent_state.run.wall_clock import new_id, now_us
from persistent_state.sources.base import TimeReplayableSource

T = TypeVar("T")
_has_frozen_imports = False
SCHEMA = "label int, blob binary"

BATCH_BYTES = 64 << 20
"""Blobs go to Spark as soon as they are this many bytes, while the task makes more."""


def load(
    session: SparkSession, flow: FlowPlan, reader: DataSourceStreamReader, schema: StructType | str = SCHEMA
) -> DataFrame:
    """Return what a reader reads as a streaming DataFrame; by default its rows are (label, blob)."""
    source = packed_source(f"persistent-state {flow.first.application} {flow.id}", flow.title, reader, schema)
    session.dataSource.register(source)
    return session.readStream.format(source.name()).load()


def blob_batches(sent: Iterable[Blob | Report], labels: Sequence[int], attempts: int) -> Iterator[pa.RecordBatch]:
    """Yield blobs and a report as the rows that Spark shuffles, in batches of about `BATCH_BYTES`.

    If making a blob fails, the error goes to each slot and the driver in place of what was still to come.
    """
    some, size = list[tuple[int, bytes]](), 0
    try:
        for message in sent:
            data = message.to_bytes()
            if some and size + len(data) > BATCH_BYTES:
                yield _batch(some)
                some, size = [], 0
            some.append((DRIVER if isinstance(message, Report) else labels[message.shard], data))
            size += len(data)
    except StateError as error:
        row = failures.as_row(error, attempts)
        some = [(label, row) for label in {*labels, DRIVER}]
    freeze_imports()
    if some:
        yield _batch(some)


def _batch(blobs: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    labels, data = zip(*blobs, strict=True)
    return pa.record_batch({"label": pa.array(labels, pa.int32()), "blob": pa.array(data, pa.binary())})


class ArrowReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader that plans micro-batches in Spark's source process, from the newest log entry, and reads them in workers.

    It reads for a flow, as its `Planner` says. Spark tries a part `attempts` times.

    If planning fails, the micro-batch has one part that holds the error: Spark logs pages of text about a raised one.
    """

    def __init__(
        self,
        flow: FlowPlan,
        source: TimeReplayableSource,
        epoch: int,
        parts: int,
        labels: Sequence[int],
        attempts: int,
        until: Mapping[str, int] | None = None,
        to_the_end: bool = False,
    ) -> None:
        self.flow = flow
        self.source = source
        self.labels = labels
        self.attempts = attempts
        self._planner = Planner(flow, source, epoch, parts, until, to_the_end)
        self._error: StateError | None = None
        self._is_at_end = False
        self._planned: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        if self._planned is None:
            self._planned = self._tried(self._planner.first) or {"ends": {}, "tick": 0}
        return self._planned

    def getDefaultReadLimit(self) -> ReadLimit:
        # Do not say "all available", because the source's own limits decide.
        return ReadMaxRows(2**31 - 1)

    def prepareForTriggerAvailableNow(self) -> None:
        pass  # It was made with `to_the_end`, because Spark says it only from version 4.2 on.

    # Before PySpark 4.2 it is called without arguments, for the first time before `initialOffset`.
    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        before = self.initialOffset() if start is None else start

        def latest() -> dict[str, Any]:
            return self._planner.latest(before, now_us, everything=isinstance(limit, ReadAllAvailable))

        if self._is_at_end and not self._planner.is_fenced():
            return before
        newest = self._tried(latest) or {"ends": before["ends"], "tick": before["tick"] + 1}
        # A query that was seen to have nothing to read must not begin another micro-batch while it is being stopped.
        self._is_at_end = self._planner.to_the_end and newest == before
        return newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._planned = end

        def parts() -> list[InputPartition]:
            return list(map(InputPartition, self._planner.parts(start, now_us, new_id)))

        return self._tried(parts) or [InputPartition(self._error)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        attempts = 1 if isinstance(partition.value, StateError) else self.attempts
        yield from blob_batches(self._blobs(partition), self.labels, attempts)

    def _blobs(self, partition: InputPartition) -> Iterator[Blob | Report]:
        if isinstance(partition.value, StateError):
            raise partition.value
        part: Part = partition.value
        yield from part.combine(self.flow, part.chunks(self.flow, self.source))

    def _tried(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work`, or None if it or an earlier call failed; `partitions` then hands on the error."""
        if self._error is None:
            try:
                return work()
            except StateError as error:
                self._error = error
        return None


def freeze_imports() -> None:
    """Keep the garbage collector from what the first task of a Python worker leaves in memory, which saves 30 ms a task.

    Nearly all of that is imports. Only the first call in a process does something. Cycles that are garbage by then stay.
    """
    global _has_frozen_imports
    if not _has_frozen_imports:
        gc.freeze()
        _has_frozen_imports = True
