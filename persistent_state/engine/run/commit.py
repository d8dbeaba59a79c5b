"""The commit of one micro-batch or step: Spark calls it on the driver with the control rows."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from pyspark.sql import DataFrame

from persistent_state.batch.packets import Advance, Answers, Descriptor, new_notes
from persistent_state.batch.plan import FlowPlan, Plan
from persistent_state.engine.run.micro_batch import answers_of, running_values
from persistent_state.engine.run.progress import Progress, hand_on, progress_of
from persistent_state.engine.run.watch import Watcher
from persistent_state.engine.spark.failures import naming
from persistent_state.engine.spark.session import settings
from persistent_state.engine.spark.wall_clock import new_id, now_us
from persistent_state.errors import StateError
from persistent_state.event_time.clocks import Settings
from persistent_state.metrics.of_run import Work
from persistent_state.outputs import RunningValues
from persistent_state.protocol import commits, holding
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.log import Log

_logger = logging.getLogger("persistent_state")
_here = threading.local()

_INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling collect: java.lang.InterruptedException"
"""Spark takes an error with this text for its own interrupt. It logs pages of text about any other."""


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


class Commit:
    """The function of foreachBatch: collect the control rows once, commit them, then call the outputs.

    A commit can be pickled, and reaches the rest of the application only through the store. Others in this process that write
    to the same `log` take it in `turn`. `on_work` is called with what each commit took.
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
        to_the_end: bool = False,
    ) -> None:
        self._flow = flow
        # The settings of all tasks: the global clock may wait for any of them.
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
        self._to_the_end = to_the_end
        self._noted: dict[tuple[str, str], list[str]] = {}

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
                to_the_end=self._to_the_end,
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
            hand_on(progress_of(entry, after, name, waits_for, copies, made_updates), self._on_progress)
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
