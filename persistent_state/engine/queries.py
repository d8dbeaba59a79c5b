"""Make, start and stop the streaming queries of an application, one for each task."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from persistent_state.batch.plan import Plan
from persistent_state.engine import (
    arrow_source,
    column_source,
    dataframe_source,
    failures,
    kafka_connector,
    micro_batch,
)
from persistent_state.engine.micro_batch import Progress, Watch
from persistent_state.engine.reports import Listener
from persistent_state.engine.session import Scratch, for_queries, for_sinks, own_session, settings
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.outputs import Outputs
from persistent_state.partials.shuffle import numbers_of_partitions
from persistent_state.protocol import takeover
from persistent_state.protocol.commits import Keeping
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.log import Log

POLL_SECONDS = 0.05
"""Time between two looks at whether a query has stopped."""


@dataclass(frozen=True)
class Part:
    """A task of an application with its source and its outputs."""

    plan: Plan
    source: TimeReplayableSource | DataFrameSource | KafkaConnectorSource
    outputs: Outputs


@dataclass(frozen=True)
class Setup:
    """The set-up of an application, which its first start and each start after a failure use.

    `trigger` is Spark's processing time; None begins each micro-batch when the one before it ends. With `to_the_end` the run
    ends at the present end of the sources, and with `drains` it then checkpoints and delivers all messages. After
    `max_restarts` failures in a row without a new global clock the run raises the last failure.
    """

    spark: SparkSession
    application: str
    files: Files
    parts: Sequence[Part]
    interval: int
    shards: int
    keeping: Keeping
    scratch: str | None
    max_restarts: int
    to_the_end: bool
    drains: bool
    trigger: str | None
    on_progress: Callable[[Progress], None] | None
    writer: str = field(default_factory=arrow_source.new_id)

    @property
    def plans(self) -> list[Plan]:
        """The plan of each task."""
        return [part.plan for part in self.parts]

    def take_over(
        self, log: Log, *, reset: Sequence[str] = (), rebuild: Sequence[str] = (), after: int | None = None
    ) -> Entry:
        """Write the entry of a new start, which fences every driver before it, and return the entry."""
        return takeover.take_over(
            log,
            self.plans,
            interval=self.interval,
            shards=self.shards,
            writer=self.writer,
            now=arrow_source.now_us(),
            reset=reset,
            rebuild=rebuild,
            after=after,
        )


class Queries:
    """The queries of one start, by the name of their task."""

    def __init__(self, setup: Setup) -> None:
        self.by_task: dict[str, StreamingQuery] = {}
        self._setup = setup
        self._commits = Watch()

    def start(self, entry: Entry, scratch: Scratch) -> None:
        """Start a query for each task, from where the entry says.

        If a query does not start, the queries before it run, so call `stop`.
        """
        setup = self._setup
        session = own_session(setup.spark)
        labels = numbers_of_partitions(setup.shards)
        attempts = failures.attempts(setup.spark)
        for part in setup.parts:
            plan = part.plan
            blobs = _blobs(setup, session, part, entry, labels, attempts)
            commit = micro_batch.Commit(
                plan,
                entry.epoch,
                setup.keeping,
                part.outputs.running,
                Listener(setup.writer, setup.on_progress),
                plan.by_spark,
                for_sinks(blobs.sparkSession),
                self._commits,
            )
            rows = micro_batch.control_rows(blobs, plan, labels, attempts)
            writer = (
                rows.writeStream.outputMode("update")
                .foreachBatch(commit)
                .option("checkpointLocation", f"{scratch.folder(entry.epoch)}/{plan.name}")
                .queryName(f"{setup.application} {plan.name} {entry.epoch}")
            )
            if setup.to_the_end:
                writer = writer.trigger(availableNow=True)
            elif setup.trigger is not None:
                writer = writer.trigger(processingTime=setup.trigger)
            rows_cross_spark = plan.by_spark or plan.task.update_way == "column"
            are_rows_small = rows_cross_spark and dataframe_source.are_small(plan)
            wanted = for_queries(blobs.sparkSession, setup.shards, scratch.is_local, are_rows_small)
            with settings(blobs.sparkSession, wanted):
                self.by_task[plan.name] = writer.start()

    @property
    def active_tasks(self) -> set[str]:
        """The tasks whose queries have neither ended nor been stopped."""
        return {task for task, query in self.by_task.items() if query.isActive}

    @property
    def failed_commit(self) -> tuple[str, Exception] | None:
        """The task whose commit failed first, and its error; None if no commit failed."""
        return self._commits.failed

    @property
    def failed_query(self) -> tuple[str, Exception] | None:
        """A task whose query ended with an error, and the error; None if there is no such task."""
        for task, query in self.by_task.items():
            if not query.isActive and (error := query.exception()) is not None:
                return task, error
        return None

    def has_committed(self, task: str) -> bool:
        """Return whether a micro-batch of the task was committed and handed to its outputs since this start."""
        return task in self._commits.finished

    def stop(self) -> None:
        """Stop all queries at the same time, and wait until they have stopped."""
        queries, self.by_task = list(self.by_task.values()), {}
        self._commits.stop()
        with ThreadPoolExecutor(max(1, len(queries))) as pool:
            stops = [pool.submit(query.stop) for query in queries]
            try:
                while any(query.isActive for query in queries):
                    time.sleep(POLL_SECONDS)
            finally:
                # Do this last: if a commit returned earlier, its query would go on to another micro-batch.
                self._commits.end()
        for stop in stops:
            stop.result()


def _blobs(
    setup: Setup, session: SparkSession, part: Part, entry: Entry, labels: Sequence[int], attempts: int
) -> DataFrame:
    """Return the streaming DataFrame of a task's blobs, read from where the entry says."""
    plan, source = part.plan, part.source
    task, lines = entry.tasks[plan.name], tuple[str, ...]()
    if isinstance(source, KafkaConnectorSource):
        start = task.source.next_positions
        journal, known = lists.read(setup.files, task.source.journal), task.source.known_positions
        source, lines = kafka_connector.frame_from(source, journal, known, start)
    if isinstance(source, DataFrameSource):
        clock = min(entry.clock, task.progress.clock)
        # Under at-least-once delivery a replay brings what is below the task's own clock, and only some tasks fold it.
        restored = (clock if plan.takes_late else task.progress.clock) if task.source.positions else BEGINNING
        rows = dataframe_source.opened(setup.spark, source, clock)
        return dataframe_source.blobs_of_dataframe(rows, plan, source, entry.epoch, restored, labels, attempts, lines)
    parts = session.sparkContext.defaultParallelism
    if plan.task.update_way == "column":
        return column_source.blobs_of_source(
            session, column_source.RowReader(plan, source, entry.epoch, parts, labels, attempts)
        )
    reader = arrow_source.ArrowReader(plan, source, entry.epoch, parts, labels, attempts)
    return arrow_source.load(session, plan, reader)
