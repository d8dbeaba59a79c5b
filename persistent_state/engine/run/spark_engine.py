"""Spark as the engine of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

from persistent_state.batch.plan import Plan
from persistent_state.drive.backoff import Patience
from persistent_state.engine.read import dataframe_source
from persistent_state.engine.run import frames, micro_batch, queries
from persistent_state.engine.run.jobs import SparkJobs
from persistent_state.engine.run.queries import Queries
from persistent_state.engine.run.values import SparkValues
from persistent_state.engine.spark import connect, failures
from persistent_state.engine.spark.session import Scratch, check_scratch, check_store
from persistent_state.engine.spark.versions import check_pyarrow, state_serializer
from persistent_state.errors import StateError
from persistent_state.inputs import AnySource
from persistent_state.outputs import ValuesAtClock
from persistent_state.run.feeds import FedTask
from persistent_state.run.setup import Setup
from persistent_state.run.start_checks import check_pickles
from persistent_state.run.wall_clock import now_us
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.store.log import Log
from persistent_state.store.state_at import StateAt
from persistent_state.task import PersistentTask

_logger = logging.getLogger("persistent_state")


def of_active_session() -> SparkEngine | None:
    """Return the engine of the session that there is; None without one."""
    spark = SparkSession.getActiveSession()
    return None if spark is None else SparkEngine(spark)


class SparkEngine:
    """The `Engine` of a Spark session. Queries and jobs of Spark run parts and shards in its workers."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._scratch: Scratch | None = None

    @property
    def mark(self) -> str:
        """The beginning of the names of its starts in the log, which is empty, as it has always been."""
        return ""

    def shards(self, log: Log) -> int:
        """Return Spark's parallelism; the number that the store has if the newest start was on another engine."""
        parallelism, newest = connect.parallelism(self.spark), log.newest()
        if newest is None or newest.mark == self.mark:
            return parallelism
        if newest.shards != parallelism:
            _logger.warning(
                "application %s keeps shards=%d, which it has from its runs on Local; Spark's parallelism is %d. Give "
                "Application(..., shards=%d) to change it. Without shards= the next start on Spark takes its parallelism.",
                log.application,
                newest.shards,
                parallelism,
                parallelism,
            )
        return newest.shards

    def columns_of(
        self, task: PersistentTask, source: AnySource
    ) -> tuple[TimeReplayableSource | DataFrameSource, pa.Schema, pa.DataType | None]:
        """Return a source as it is read, its columns, and the type of the updates that Spark computes of them for a task.

        Raises:
            InvalidInputError: As `queries.columns_of` says.
        """
        return queries.columns_of(self.spark, task, source)

    def check(self, setup: Setup) -> None:
        """Refuse a store or scratch space that Spark's workers can't reach, and packages that can't run what they are sent.

        Raises:
            InvalidInputError: The workers can't reach one of them, packages don't go together, or a server lacks something.
        """
        is_remote = connect.is_connect(self.spark)
        if not is_remote:
            check_pyarrow(pyspark.__version__, pa.__version__, state_serializer)
        check_store(self.spark, setup.files)
        check_scratch(self.spark, setup.scratch)
        if is_remote:
            connect.check_server(self.spark, setup.files)

    def check_task(self, part: FedTask) -> None:
        """Refuse a task if Spark has no type for its values, or can't send its functions of running values to a server.

        Raises:
            InvalidInputError: It is so.
        """
        if part.plan.emits:
            micro_batch.check_values(part.plan)
        for output in part.outputs.running if connect.is_connect(self.spark) else ():
            check_pickles(f"task={part.plan.named}: the function of {output!r}", output.function)

    def check_output(self, plan: Plan, output: ValuesAtClock) -> None:
        """Refuse an output at clocks if Spark has no type for what it gives.

        Raises:
            InvalidInputError: Spark has no type for a key column or for the value.
        """
        frames.check_types(plan, output)

    def check_opens(self, source: DataFrameSource, clock: int) -> None:
        """Refuse a source that gives no DataFrame at a clock.

        Raises:
            InvalidInputError: It gives none.
        """
        dataframe_source.opened(self.spark, source, clock)

    def open(self, setup: Setup) -> None:
        """Do nothing: Spark is there, and the first flows make scratch space."""

    def flows(self, setup: Setup, on_commit: Callable[[], None], patience: Patience) -> Queries:
        """Return the queries of a start."""
        if self._scratch is None:
            self._scratch = Scratch(self.spark, setup.scratch, now_us())
        return Queries(self.spark, setup, self._scratch, on_commit, patience)

    def jobs(self, setup: Setup) -> SparkJobs:
        """Return the jobs of a run's steps."""
        return SparkJobs(self.spark, setup)

    def values(self, state: StateAt, plan: Plan) -> SparkValues:
        """Return the values that an output shows of a task's state at a clock, which Spark's workers read."""
        return frames.of_values(self.spark, state, plan)

    def stopped(self, of: str) -> str:
        """Return in words that a query `of` an application was stopped, and not by its run."""
        return f"somebody stopped a query of {of} through Spark"

    def own_error(self, error: Exception, of: str) -> StateError:
        """Return the error of this package that is behind an error of Spark, or a StateError with Spark's text."""
        return failures.as_own_error(error, of)

    def may_pass(self, error: Exception) -> bool:
        """Return whether another try may get through after an error of a first start, although nothing is changed."""
        return failures.may_pass(error)

    def is_lost(self, error: Exception) -> bool:
        """Return whether Spark's JVM, or the server of Spark Connect, is gone."""
        return failures.is_lost_jvm(error)

    def is_out_of_reach(self, error: BaseException) -> bool:
        """Return whether the server of Spark Connect is gone, or has forgotten the session."""
        return connect.is_lost(error)

    def naming_a_loss(self) -> AbstractContextManager[None]:
        """Raise an error that means a lost JVM or server in the block as a StateError that says so."""
        return failures.naming_a_lost_jvm()

    def naming_errors(self, of: str) -> AbstractContextManager[None]:
        """Raise an error of Spark in the block as an error of this package that names what failed by `of`."""
        return failures.naming_spark(of)

    def close(self) -> None:
        """Delete the scratch space. The session is the user's, and stays."""
        if self._scratch is not None:
            # Without a JVM it fails.
            with suppress(Exception):
                self._scratch.remove()
            self._scratch = None
        with suppress(Exception):
            connect.try_again(self.spark)
