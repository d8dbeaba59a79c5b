"""The commit of one micro-batch or step: Spark calls it on the driver with the control rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame

from persistent_state.batch.plan import Plan
from persistent_state.edges.output_rows import output_rows
from persistent_state.engine.run.micro_batch import answers_of, running_values
from persistent_state.engine.run.values import SparkValues
from persistent_state.engine.run.watch import Watcher
from persistent_state.engine.spark.session import settings
from persistent_state.errors import StateError
from persistent_state.outputs import ARROW, RunningValues
from persistent_state.run.commit import Committer, committing
from persistent_state.run.failures import naming
from persistent_state.sinks.given_types import given_types

_INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling collect: java.lang.InterruptedException"
"""Spark takes an error with this text for its own interrupt. It logs pages of text about any other."""


class Commit:
    """The function of foreachBatch: collect the control rows once, commit them, then call the outputs.

    A commit can be pickled if its parts can.
    """

    def __init__(
        self,
        committer: Committer,
        running: Mapping[str, Sequence[RunningValues]],
        for_sinks: Mapping[str, str | None],
        watch: Watcher | None = None,
    ) -> None:
        self._committer = committer
        self._flow = committer.flow
        self._is_planned_by_spark = self._flow.first.by_spark
        self._for_sinks = for_sinks
        self._running = running
        self._watch = watch

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
        after, made = self._committer.commit(answers)
        for plan in self._flow.tasks:
            if outputs := self._running.get(plan.name):
                values = running_values(rows, plan, after.clock, made[plan.name])
                self._call_outputs(outputs, values, plan, batch)

    def _call_outputs(self, outputs: Sequence[RunningValues], values: DataFrame, plan: Plan, batch: int) -> None:
        with settings(values.sparkSession, self._for_sinks):
            for output in outputs:
                given: Any = (
                    SparkValues(values, given_types(output_rows(plan).schema)) if output.as_ == ARROW else values
                )
                with naming(f"task={plan.name}: a function of RunningValues", StateError):
                    output.function(given, batch)
