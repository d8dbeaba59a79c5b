"""Read an Arrow source in Spark's Python workers, and combine its rows there, so that no row crosses the JVM."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from persistent_state.batch.alignment import aligned_reach
from persistent_state.batch.packets import DRIVER, Blob, Report
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive import turn
from persistent_state.drive.turn import Part
from persistent_state.engine.read.packed import packed_source
from persistent_state.engine.spark import failures
from persistent_state.engine.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from persistent_state.engine.spark.wall_clock import new_id, now_us
from persistent_state.errors import StateError
from persistent_state.event_time.inputs import by_input, together
from persistent_state.inputs import open_source, reach_of
from persistent_state.protocol import commits, graph
from persistent_state.protocol.next_entry import newest_own
from persistent_state.sources.base import Reach, TimeReplayableSource
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.flow_state import FlowState
from persistent_state.store.log import Log

T = TypeVar("T")
_has_frozen_imports = False
SCHEMA = "label int, blob binary"

HUNG = 60.0
"""Seconds after which people hear of a transaction that stays open, also where nothing else arrives."""

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

    If making a blob fails, the error goes to each shard and the driver in place of what was still to come.
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
        some = [(label, row) for label in (*labels, DRIVER)]
    freeze_imports()
    if some:
        yield _batch(some)


def _batch(blobs: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    labels, data = zip(*blobs, strict=True)
    return pa.record_batch({"label": pa.array(labels, pa.int32()), "blob": pa.array(data, pa.binary())})


class ArrowReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader that plans micro-batches in Spark's source process, from the newest log entry, and reads them in workers.

    It reads for a flow. A micro-batch has at most `parts` parts, and serves the driver of this `epoch`. Spark tries a part
    `attempts` times. With `until` it goes up to these positions. With `to_the_end` it goes up to the end that the source has
    when Spark first asks, and once it is there nothing is new any more.

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
        self._until = until
        self.source = source
        self._epoch = epoch
        self._parts = parts
        self.labels = labels
        self.attempts = attempts
        self._error: StateError | None = None
        self._log = Log(flow.first.files, flow.first.application)
        self._reach = Reach({})
        self._listed: dict[str, bool] = {}
        self._ended: set[str] = set()
        self._moved: dict[str, int] = {}
        self._moving: set[str] = set()
        self._idle_for: dict[str, int] = {}
        self._hung: set[str] = set()
        self._opened = False
        self._to_the_end = to_the_end
        self._is_at_end = False
        self._planned: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        def ends() -> dict[str, int]:
            return self._known().source.next_positions

        if self._planned is None:
            self._planned = {"ends": self._tried(ends) or {}, "tick": 0}
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
            self._open()
            if self._until is not None:
                self.source.stay_within(self._until)
            entry = self._newest()
            self._reach = aligned_reach(
                self.flow.first,
                self.source,
                commits.flow_by(entry, self.flow).source,
                before["ends"],
                everything=isinstance(limit, ReadAllAvailable),
                is_ending=self._to_the_end,
                now=now_us(),
                more={name for name, left in self._reach.lag.items() if left},
            )
            step, _ = graph.changed_step(entry, self.flow)
            tick = max(self._tick(before["ends"]), int(step is not None))
            return {"ends": dict(self._reach.ends), "tick": before["tick"] + tick}

        if self._is_at_end and not self._is_fenced():
            return before
        newest = self._tried(latest) or {"ends": before["ends"], "tick": before["tick"] + 1}
        # A query that was seen to have nothing to read must not begin another micro-batch while it is being stopped.
        self._is_at_end = self._to_the_end and newest == before
        return newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._planned = end
        return self._tried(lambda: self._partitions(start)) or [InputPartition(self._error)]

    def _partitions(self, start: dict[str, Any]) -> Sequence[InputPartition]:
        entry, self._reach = turn.begin(self._log, self._epoch, self.flow, self._reach, now_us(), new_id)
        now = now_us()
        # A channel can become idle only after its source was first asked for rows.
        self._moved |= dict.fromkeys(self._moving, now)
        parts = turn.micro_batch(
            entry,
            self.flow,
            self.source,
            start["ends"],
            self._reach,
            now=now,
            most=self._parts,
            silent_for=self._idle_for,
        )
        return list(map(InputPartition, parts))

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

    def _is_fenced(self) -> bool:
        # A query that is being stopped does not fail for a store that does not answer now.
        with suppress(StateError):
            newest = self._log.newest()
            return newest is not None and newest.epoch > self._epoch
        return False

    def _newest(self) -> Entry:
        # A killed client of Spark Connect stops none of its queries. Without this look at the epoch, one that has nothing to
        # read would ask its source for ever after a newer driver has started.
        return newest_own(self._log, self._epoch)

    def _known(self) -> FlowState:
        return commits.flow_by(self._newest(), self.flow)

    def _open(self) -> None:
        if not self._opened:
            flow = self._known()
            known = flow.source
            open_source(self.source, lists.read_journals(self._log.files, flow), known.known_positions)
            self._listed = dict.fromkeys(known.channels, False)
            if self._to_the_end:
                self.source.freeze()
            self._opened = True

    def _tick(self, start: dict[str, int]) -> int:
        """Return 1 if a micro-batch is due although nothing arrived.

        The channels changed, those of an input became idle, or people are to hear of a transaction that stays open.
        """
        reached = {name: reach_of(self._reach, name) for name in self.flow.first.source_inputs}
        settings, now = self.flow.first.settings, now_us()
        lists = {name: reach.channels for name, reach in reached.items() if reach.channels is not None}
        listed = together(lists) if lists else self._listed
        ended = {name for name, reach in reached.items() if reach.is_last}
        changed = listed != self._listed or ended != self._ended
        self._listed, self._ended = listed, ended
        starts, was_idle, self._moving = by_input(start, reached), {*self._idle_for}, set()
        for name, reach in reached.items():
            idle_after = settings.of(name).idle_after
            if changed or dict(reach.ends) != starts[name] or name not in self._moved:
                self._moving.add(name)
                self._moved[name] = now
                self._idle_for.pop(name, None)
            elif reach.is_last is None and idle_after is not None and idle_after <= now - self._moved[name]:
                self._idle_for[name] = idle_after
        pending, was_hung = self._reach.pending.items(), self._hung
        self._hung = {name for name, seconds in pending if self._to_the_end or seconds >= HUNG}
        is_news = changed or bool({*self._idle_for} - was_idle) or bool(self._hung - was_hung)
        has_moved = dict(self._reach.ends) != start
        return int(not has_moved and is_news)


def freeze_imports() -> None:
    """Keep the garbage collector from what the first task of a Python worker leaves in memory, which saves 30 ms a task.

    Nearly all of that is imports. Only the first call in a process does something. Cycles that are garbage by then stay.
    """
    global _has_frozen_imports
    if not _has_frozen_imports:
        gc.freeze()
        _has_frozen_imports = True
