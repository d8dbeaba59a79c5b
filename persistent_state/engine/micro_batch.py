"""One micro-batch of a flow: merge its blobs in Spark tasks for its shards, then commit on the driver."""

from __future__ import annotations

import json
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from persistent_state.batch.messages import (
    ACTED,
    DRIVER,
    PROCESSED,
    Advance,
    Answers,
    Blob,
    Descriptor,
    Report,
    new_notes,
)
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.batch.shard import merge_shard, read_values
from persistent_state.drive.turn import Part
from persistent_state.edges.output_rows import output_rows
from persistent_state.engine import failures
from persistent_state.engine.arrow_source import freeze_imports, new_id, now_us
from persistent_state.engine.failures import naming
from persistent_state.engine.frames import NO_SINK, types_of
from persistent_state.engine.session import settings
from persistent_state.engine.spark_versions import spark_types
from persistent_state.errors import StateError
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.metrics.of_run import Work
from persistent_state.outputs import RunningValues
from persistent_state.protocol import commits, deliver, holding
from persistent_state.protocol.deliver import Delivered
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.codec import run_from_json, run_to_json
from persistent_state.store.entry import Entry
from persistent_state.store.late_rows import LATE, OUTSIDE, REPLAYED_OR_LATE
from persistent_state.store.log import Log
from persistent_state.store.named_files import Run, Stored

_logger = logging.getLogger("persistent_state")
_progress = logging.getLogger("persistent_state.progress")
_progress_lock = threading.Lock()
_here = threading.local()
ANSWERS = "label int, answer binary"
"""The columns of control rows."""

_INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling collect: java.lang.InterruptedException"
"""Spark takes an error with this text for its own interrupt. It logs pages of text about any other."""


@dataclass(frozen=True)
class Progress:
    """One committed micro-batch of a task, or one step of a task that other tasks feed. All clocks are microseconds UTC.

    Attributes:
        task: The task's name.
        epoch: The number of the application's start that committed it.
        batch: The number of the micro-batch in this epoch.
        messages: The messages of the micro-batch.
        replayed: How many of these messages an earlier start had read before.
        skipped: Rows of the micro-batch that were delivered again and did not count, by their positions.
        replayed_or_late: Rows from below the clock of the start, of a source without positions. Nobody can tell which of the
            two a row is.
        copies: Messages of the micro-batch with an id that an earlier message had.
        late: All late rows of the task so far.
        bad: All bad rows of the task so far.
        reasons: By reason: the number of all late and bad rows so far, and of those outside the bounds of their input.
        upstream_min: The upstream min clock; None if no channel is live.
        clock: The task's checkpoint clock, -2**63 while there is none.
        global_clock: The global clock, -2**63 while there is none.
        outputs: By output at clocks: the last clock that its sink has, and how many clocks it is behind.
        unread: How many positions, such as Kafka's offsets, the source had beyond the micro-batch when it was planned; None if
            the source does not know.
        slowest: The live channel that is furthest behind: the clock follows it. None if no channel is live.
        waits_for: What the global clock waits for, after this commit, as a sentence.
        made_updates: True if any message of the micro-batch made an update, and after a step. After a step of an `OrderedTask`
            that processed messages: True if a key had a state, or a row was emitted.
        processed: After a step of an `OrderedTask`: how many messages it processed. None otherwise.
        pending: By partition: for how many seconds it has had positions that can't be read yet, as those of a transaction that
            is open. None after a step that asked no source.

    Example:
        >>> def warn(progress):
        ...     if progress.late + progress.bad:
        ...         print(f"{progress.task}: {dict(progress.reasons)} rows did not count")

        `app.start(spark, on_progress=warn)` calls the function after each commit.
    """

    task: str
    epoch: int
    batch: int
    messages: int
    replayed: int
    skipped: int
    replayed_or_late: int
    copies: int
    late: int
    bad: int
    reasons: Mapping[str, int]
    upstream_min: int | None
    clock: int
    global_clock: int
    outputs: Mapping[str, Delivered]
    unread: int | None = None
    slowest: str | None = None
    waits_for: str = ""
    pending: Mapping[str, float] | None = None
    made_updates: bool = True
    processed: int | None = None


def is_committing() -> bool:
    """Return whether this thread runs a commit, or a function that a commit calls."""
    return getattr(_here, "is_committing", False)


@contextmanager
def committing() -> Iterator[None]:
    """Let `is_committing` be true in this block."""
    _here.is_committing = True
    try:
        yield
    finally:
        _here.is_committing = False


def control_rows(blobs: DataFrame, flow: FlowPlan, labels: Sequence[int], attempts: int) -> DataFrame:
    """Return the rows (label, answer) of a micro-batch: the descriptors of each shard, and one row of all parts' reports.

    Running it writes the runs that the descriptors name. If a part or a shard fails, an error stands in place of an answer.
    """

    def step(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        label = int(key[0])
        sent = [blob for frame in frames for blob in frame["blob"]]
        # What Spark keeps is a cache: merge_shard uses it only if the log says the same.
        kept = json.loads(state.get[0]) if state.exists else {}
        cached = {task: list(map(run_from_json, runs)) for task, runs in kept.items()}
        now = state.getCurrentProcessingTimeMs() * 1000
        answer, runs = answer_of(flow, labels, label, sent, cached, now, attempts)
        if runs is not None:
            state.update((json.dumps({task: list(map(run_to_json, some)) for task, some in runs.items()}),))
        freeze_imports()
        yield pd.DataFrame({"label": [label], "answer": [answer]})

    return blobs.groupBy("label").applyInPandasWithState(
        step, ANSWERS, "runs string", "update", GroupStateTimeout.NoTimeout
    )


def answer_of(
    flow: FlowPlan,
    labels: Sequence[int],
    label: int,
    sent: Sequence[bytes],
    cached: Mapping[str, Sequence[Run]],
    now: int,
    attempts: int,
) -> tuple[bytes, Mapping[str, Sequence[Run]] | None]:
    """Return the answer of the shard with this label to what it was sent, and the runs that it has then.

    The reports to the driver are their own answer. Instead of an answer there may be the error of a part, or that of the shard.
    """
    if failed := next((blob for blob in sent if failures.error_of(blob)), None):
        return failed, None
    if label == DRIVER:
        return pickle.dumps((now, sent)), None
    try:
        made, runs = merge_shard(flow, labels.index(label), list(map(Blob.from_bytes, sent)), cached, new_id)
    except StateError as error:
        return failures.as_row(error, attempts), None
    return pickle.dumps(made), runs


def answers_in_place(flow: FlowPlan, part: Part, attempts: int) -> list[bytes]:
    """Return the answers of the part that takes a step in its shard: its report, and what the shard has made.

    Instead of both there may be an error.
    """
    try:
        report, made = part.take(flow, new_id)
    except StateError as error:
        return [failures.as_row(error, attempts)] * 2
    return [pickle.dumps((0, [report.to_bytes()])), pickle.dumps(made)]


def answers_of(rows: Sequence[Row], is_planned_by_spark: bool) -> Answers:
    """Return the reports of the parts and the descriptors of the shards that the rows of a micro-batch hold.

    Raises:
        StateError: A part or a shard failed.
    """
    reports: list[Report] = []
    descriptors: list[Descriptor] = []
    for row in rows:
        if error := failures.error_of(row["answer"]):
            raise error
        if row["label"] == DRIVER:
            now, sent = pickle.loads(row["answer"])
            some = list(map(Report.from_bytes, sent))
            # Parts without rows do not know the batch time, where Spark plans them.
            reports += [replace(report, now=now) for report in some] if is_planned_by_spark else some
        else:
            descriptors += pickle.loads(row["answer"])
    return Answers(reports, descriptors)


class Watcher(Protocol):
    """The one whom a commit tells how a micro-batch of a flow fares."""

    def begin(self, flow: str) -> None:
        """Report that a micro-batch of a flow begins."""

    def fail(self, flow: str, error: Exception) -> None:
        """Report that the commit of a flow failed."""

    def finish(self, flow: str) -> None:
        """Report that a micro-batch of a flow was committed and handed to its outputs."""


class Watch:
    """The meeting point of the commits of one start and the supervisor that watches them.

    A commit that fails says so here, and waits until its query is about to end; if it raised, Spark would log pages of text.
    In another process, where there is no supervisor, a copy of a watch is None.
    """

    def __init__(self) -> None:
        self.failed: tuple[str, Exception] | None = None
        self.finished: set[str] = set()
        self.under_way: dict[str, float] = {}
        self.is_stopping = False
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def begin(self, flow: str) -> None:
        """Report that a micro-batch of a flow begins."""
        self.under_way[flow] = time.monotonic()

    def fail(self, flow: str, error: Exception) -> None:
        """Report that the commit of a flow failed, and wait until its query can begin no other micro-batch."""
        with self._lock:
            if self.failed is None and not self.is_stopping:
                self.failed = flow, error
        self._ended.wait()

    def finish(self, flow: str) -> None:
        """Report that a micro-batch of a flow was committed and handed to its outputs."""
        self.finished.add(flow)
        self.under_way.pop(flow, None)

    def stop(self) -> None:
        """Ignore commits that fail from now on: their queries are being stopped."""
        with self._lock:
            self.is_stopping = True

    def end(self) -> None:
        """Let the commits that failed return: Spark knows that their queries have ended."""
        self._ended.set()


class Commit:
    """The function of foreachBatch: collect the control rows once, commit them, then call the outputs.

    A commit can be pickled, and reaches the rest of the application only through the store. Others in this process that write
    to the same `log` take it in `turn`. `on_work` is told what each commit took.
    """

    def __init__(
        self,
        flow: FlowPlan,
        epoch: int,
        keeping: Keeping,
        running: Mapping[str, Sequence[RunningValues]],
        on_progress: Callable[[Progress], None] | None,
        for_sinks: Mapping[str, str | None],
        settings: Mapping[str, Settings],
        watch: Watcher | None = None,
        log: Log | None = None,
        turn: AbstractContextManager[object] | None = None,
        on_work: Callable[[Work], None] | None = None,
    ) -> None:
        self._flow = flow
        # Of all tasks: the global clock may wait for any of them.
        self._settings = settings
        self._is_planned_by_spark = flow.first.by_spark
        self._for_sinks = for_sinks
        self._epoch = epoch
        self._keeping = keeping
        self._running = running
        self._on_progress = on_progress
        self._watch = watch
        self._log = log or Log(flow.first.files, flow.first.application)
        self._turn = turn or nullcontext()
        self._on_work = on_work
        self._noted: set[tuple[str, str]] = set()

    def __call__(self, rows: DataFrame, batch: int) -> None:
        # Spark's plan must not leave this method: if it ran twice, or in part, the state would fork.
        if self._watch is not None:
            self._watch.begin(self._flow.id)
        try:
            with committing():
                self._run(rows, batch)
        except Exception as error:
            if self._watch is None:
                raise
            self._watch.fail(self._flow.id, error)
            if self._is_planned_by_spark:
                # In a session of the user, Spark checks that all shards have run.
                raise RuntimeError(_INTERRUPTED) from None
        else:
            if self._watch is not None:
                self._watch.finish(self._flow.id)

    def _run(self, rows: DataFrame, batch: int) -> None:
        answers = answers_of(rows.collect(), self._is_planned_by_spark)
        if not answers.descriptors and self._is_planned_by_spark:
            # Spark found nothing to read, and ran no part.
            return
        with self._turn:
            began = time.monotonic()
            entry, after = commits.commit(
                self._log,
                self._epoch,
                self._flow.first.settings,
                answers,
                now=now_us(),
                new_id=new_id,
                keeping=self._keeping,
            )
        for note in new_notes(answers.reports, self._noted):
            _logger.warning("%s", note)
        if self._on_work is not None:
            self._on_work(_work(self._flow, answers, after, now_us(), time.monotonic() - began))
        by_task: dict[str, list[Descriptor]] = {plan.name: [] for plan in self._flow.tasks}
        for descriptor in answers.descriptors:
            by_task[descriptor.task].append(descriptor)
        holder = holding.holder(entry, self._settings)
        waits_for = holding.sentence(holding.among_pending(holder, self._flow.id, after.pending or ()))
        for name, some in by_task.items():
            copies = sum(descriptor.copies for descriptor in some)
            # What is new in a shard is in its runs.
            made_updates = any(descriptor.runs for descriptor in some)
            hand_on(progress(entry, after, name, waits_for, copies, made_updates), self._on_progress)
        for plan in self._flow.tasks:
            if outputs := self._running.get(plan.name):
                values = running_values(rows, plan, after.clock, by_task[plan.name])
                self._call_outputs(outputs, values, plan, batch)

    def _call_outputs(self, outputs: Sequence[RunningValues], values: DataFrame, plan: Plan, batch: int) -> None:
        with settings(values.sparkSession, self._for_sinks):
            for output in outputs:
                with naming(f"task={plan.name}: a function of RunningValues", StateError):
                    output.function(values, batch)


def _work(flow: FlowPlan, answers: Answers, after: Advance, now: int, commit_seconds: float) -> Work:
    """Return what a micro-batch or a step has taken that was committed now."""
    planned = max(report.now for report in answers.reports)
    return Work(
        flow=flow.id,
        is_step=all(report.reach is None for report in answers.reports),
        messages=after.counts.get("messages", 0),
        replayed=after.counts.get("replayed", 0),
        seconds=max(0, now - planned) / 1e6,
        commit_seconds=commit_seconds,
        inputs=tuple(flow.first.source_inputs),
        lag=after.lag,
    )


def hand_on(committed: Progress, on_progress: Callable[[Progress], None] | None) -> None:
    """Log the line of a progress, and call the function of progress."""
    _progress.info("%s", line_of(committed))
    if on_progress is not None:
        # Flows commit in threads of their own; the function of progress is called by one at a time.
        with _progress_lock:
            on_progress(committed)


def progress(
    entry: Entry, after: Advance, name: str, waits_for: str, copies: int = 0, made_updates: bool = True
) -> Progress:
    """Return the progress of a task whose flow a micro-batch or a step has moved, by the entry that commits it."""
    flow, counts = entry.flow_of(name), after.counts
    processed = counts.get(PROCESSED)
    reasons = entry.late_counts_of(name)
    late = reasons.get(LATE, 0)
    return Progress(
        task=name,
        epoch=entry.epoch,
        batch=flow.progress.batch,
        messages=counts.get("messages", 0),
        replayed=counts.get("replayed", 0),
        skipped=counts.get("skipped", 0),
        replayed_or_late=counts.get(REPLAYED_OR_LATE, 0),
        copies=copies,
        late=late,
        bad=sum(reasons.values()) - late - reasons.get(OUTSIDE, 0),
        reasons=reasons,
        upstream_min=after.upstream_min,
        clock=flow.visited,
        global_clock=entry.clock,
        outputs=deliver.delivered(entry, name),
        unread=after.unread,
        slowest=after.slowest,
        waits_for=waits_for,
        pending=after.pending,
        made_updates=made_updates if not processed else counts.get(ACTED, 0) > 0,
        processed=processed,
    )


def line_of(progress: Progress) -> str:
    """Return the progress as a line of JSON, in which a clock that is not there yet is null."""
    fields = asdict(progress)
    absent = [name for name in ("clock", "global_clock") if fields[name] == BEGINNING]
    return json.dumps(fields | dict.fromkeys(absent))


def running_values(rows: DataFrame, plan: Plan, clock: int, descriptors: Sequence[Descriptor]) -> DataFrame:
    """Return the values of the keys that a micro-batch changed, from its descriptors or the files that these name.

    Of windows those that are open at the clock.
    """
    values_by_shard = [descriptor.values for descriptor in descriptors if descriptor.values]
    shown, session = output_rows(plan), rows.sparkSession
    schema = shown.schema

    def read(values: Stored | bytes) -> pa.Table:
        return read_values(plan.files, values, plan.layout, clock)

    if all(isinstance(values, bytes) for values in values_by_shard):
        tables = [shown.of(table).cast(schema) for table in map(read, values_by_shard)]
        table = pa.concat_tables([schema.empty_table(), *tables])
        return session.createDataFrame(table, spark_types(schema)).coalesce(max(1, len(values_by_shard)))

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from shown.of(read(values_by_shard[number])).cast(schema).to_batches()

    # A partition for each shard, and nothing to shuffle.
    numbers = session.range(0, len(values_by_shard), 1, len(values_by_shard))
    return numbers.mapInArrow(unpack, spark_types(schema))


def check_values(plan: Plan) -> None:
    """Refuse a task with outputs if Spark has no type for its values.

    Raises:
        InvalidInputError: Spark has no type for a key column or for the value.
    """
    types_of(plan.name, output_rows(plan).schema, NO_SINK)
