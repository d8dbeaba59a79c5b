"""Make, start and stop the streaming queries of an application, one for each flow."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from persistent_state.batch.plan import FlowPlan
from persistent_state.drive.backoff import Patience
from persistent_state.engine.read import arrow_source, column_source, dataframe_source, kafka_connector
from persistent_state.engine.run import micro_batch
from persistent_state.engine.run.commit import Commit
from persistent_state.engine.run.followed import Follower, Note
from persistent_state.engine.run.watch import Watch
from persistent_state.engine.spark import connect, failures
from persistent_state.engine.spark.connect import RemoteQuery
from persistent_state.engine.spark.session import Scratch, for_queries, for_sinks, own_session, settings
from persistent_state.engine.spark.versions import ends_at_the_end, has_nothing_to_read
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.inputs import AnySource
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.partials.shuffle import labels_of_shards
from persistent_state.protocol import commits
from persistent_state.run.feeds import Feed, flows_of, meetings
from persistent_state.run.reports import Listener
from persistent_state.run.setup import Setup
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.task import PersistentTask

POLL_SECONDS = 0.05
"""Time between two looks at whether a query has stopped."""

AT_ONCE = 4
"""The most queries that start at a time: each starts a Python process, to which Spark gives ten seconds."""

STARTING = "Initializing"
"""The beginning of a query's message until Spark has opened its sources."""

WAITING = "Waiting for"
"""The beginning of a query's message when it has nothing to read, or waits for its trigger."""


def columns_of(
    spark: SparkSession, task: PersistentTask, source: AnySource
) -> tuple[TimeReplayableSource | DataFrameSource, pa.Schema, pa.DataType | None]:
    """Return a source as it is read, its columns, and the type of the updates that Spark computes of them for a task.

    Raises:
        InvalidInputError: Spark or Arrow has no type for a column, or `process_column` failed or returned no Column; or Spark
            plans the rows, which can't be checked by Spark Connect.
    """
    if connect.is_connect(spark):
        _check_remote(task, source)
    read = kafka_connector.frame_for_columns(source) if isinstance(source, KafkaConnectorSource) else source
    assert isinstance(read, (TimeReplayableSource, DataFrameSource)), read
    return read, *dataframe_source.columns_of(spark, task, read)


def _check_remote(task: PersistentTask, source: AnySource) -> None:
    """Refuse rows that Spark plans, if the session is one of Spark Connect.

    Raises:
        InvalidInputError: Spark plans the rows.
    """
    way = "start it by a classic session"
    if isinstance(source, (DataFrameSource, KafkaConnectorSource)):
        raise InvalidInputError(
            f"task={task.task_name} reads {source!r}, whose plan can't be checked by Spark Connect; give it a FileSource, a "
            f"KafkaSource or a source of your own, or {way}."
        )
    if task.update_way == "column":
        raise InvalidInputError(
            f"task={task.task_name} has a process_column, whose plan can't be checked by Spark Connect; give it a "
            f"process_batch, or {way}."
        )


class Queries:
    """The queries of one start, by the id of their flow.

    `AT_ONCE` of them start at a time, or only one once the machine was too slow. `start_more` starts those that wait for that.
    A query whose Python process the machine was too slow for can start again alone, by `start_again`.

    It keeps Spark's own checkpoints in `scratch`. `on_commit` is called after a commit that another process has made. The run's
    reports hear of those of this process.
    `patience` is how long a machine may be too slow, over all starts of a run.
    """

    def __init__(
        self,
        spark: SparkSession,
        setup: Setup,
        scratch: Scratch,
        on_commit: Callable[[], None] = lambda: None,
        patience: Patience | None = None,
    ) -> None:
        self.by_flow: dict[str, StreamingQuery | RemoteQuery] = {}
        self._patience = patience or Patience()
        self._spark, self._setup, self._scratch = spark, setup, scratch
        self._start_of: dict[str, Callable[[], None]] = {}
        self._waiting: list[str] = []
        self._starting: set[str] = set()
        self._unproven: set[str] = set()
        self._not_started: dict[str, Exception] = {}
        self._tries: Counter[str] = Counter()
        self._was_active: set[str] = set()
        self._session: SparkSession | None = None
        self._listener = Listener(setup.writer, setup.on_progress)
        self._follower: Follower | None = None
        if connect.is_connect(spark):
            self._follower = Follower(setup.log, spark, self._listener, on_commit)
        self._watch = Watch()
        self._commits = self._follower or self._watch
        self._endless: set[str] = set()
        self._at_end: set[str] = set()

    def start(self, entry: Entry) -> None:
        """Start the first queries of those of the flows, from where the entry says.

        If a query does not start, the queries before it run, so call `stop`.
        """
        session = self._session = own_session(self._spark)
        for feed in self._setup.feeds:
            for id in flows_of(feed, entry) if not feed.plan.is_derived else ():
                self._start_of[id] = partial(self._start, session, feed, entry, id)
        self._start_first(entry)

    def start_to_meet(self, entry: Entry) -> bool:
        """Start a query for each flow that need only read on to be where another of its source is; it ends there.

        Returns:
            True if there is any such flow.
        """
        for feed, id, ends in meetings(self._setup.feeds, entry):
            self._session = self._session or own_session(self._spark)
            self._start_of[id] = partial(self._start, self._session, feed, entry, id, ends)
        self._start_first(entry)
        return bool(self._start_of)

    def _start_first(self, entry: Entry) -> None:
        self._waiting = [*self._start_of]
        if self._follower is not None and self._waiting:
            self._follower.follow(entry.epoch, self._waiting)
        self.start_more()

    def start_more(self) -> None:
        """Start the queries that wait, as far as no more start at a time than may.

        Raises:
            Exception: A query does not start, and the machine is not too slow for it. The others run, so call `stop`.
        """
        for flow in [*self._starting]:
            query = self.by_flow[flow]
            if query.isActive and query.status["message"].startswith(STARTING):
                continue
            self._starting.remove(flow)
            self._unproven.add(flow)
        # A start alone is no success: the workers of the first micro-batch may be too slow, too.
        for flow in [flow for flow in self._unproven if self._has_got_through(flow)]:
            self._unproven.remove(flow)
            self._patience.succeed()
        most = 1 if self._patience.was_needed else AT_ONCE
        while self._waiting and len(self._starting) < most and not self._patience.is_waiting:
            flow = self._waiting[0]
            try:
                self._start_of[flow]()
                self._starting.add(flow)
            except Exception as error:
                # With Spark Connect it is this call that fails. In a classic session the query starts, and then fails.
                if not failures.is_too_slow(error):
                    raise
                self._not_started[flow] = error
            self._waiting.remove(flow)

    def _has_got_through(self, flow: str) -> bool:
        """Return whether a query has committed, found nothing to read, or come to its end."""
        query = self.by_flow[flow]
        if not query.isActive:
            return query.exception() is None
        return self.has_committed(flow) or _is_idle(query)

    def start_again(self, flow: str) -> float | None:
        """Let the query of a flow start again, after the machine was too slow for it. The flow must have committed nothing.

        Returns:
            The seconds to wait for that; None if there is to be no further try.
        """
        seconds = self._patience.fail()
        if seconds is not None:
            self.by_flow.pop(flow, None)
            self._not_started.pop(flow, None)
            self._starting.discard(flow)
            self._unproven.discard(flow)
            self._tries[flow] += 1
            self._waiting.append(flow)
        return seconds

    def _start(
        self,
        session: SparkSession,
        feed: Feed,
        entry: Entry,
        id: str,
        until: Mapping[str, int] | None = None,
    ) -> None:
        setup, flow = self._setup, feed.plan.of(entry.tasks_of(id))
        slots, attempts = connect.slots(session, setup.shards), failures.attempts(self._spark)
        labels = labels_of_shards(setup.shards, slots)
        to_the_end = setup.to_the_end or until is not None
        blobs = _blobs(self._spark, setup, session, flow, feed.source, entry, labels, attempts, until, to_the_end)
        # Where commits are made, if not here, there is no run that could hear of them.
        note = None if self._follower is None else Note(setup.files, setup.application)
        commit = Commit(
            setup.committer(flow, entry.epoch, note or self._listener),
            setup.running_of(flow),
            for_sinks(blobs.sparkSession),
            note or self._watch,
        )
        rows = micro_batch.control_rows(blobs, flow, attempts)
        writer = (
            rows.writeStream.outputMode("update")
            .foreachBatch(commit)
            .queryName(f"{setup.application} {flow.id} {entry.epoch}")
        )
        if (folder := self._scratch.folder(entry.epoch)) is not None:
            # A checkpoint of its own for each try: an earlier one may have begun to plan a micro-batch.
            writer = writer.option("checkpointLocation", f"{folder}/{flow.id}-{self._tries[flow.id]}")
        if to_the_end and not flow.first.by_spark and not ends_at_the_end(session):
            self._endless.add(id)
        elif to_the_end:
            writer = writer.trigger(availableNow=True)
        elif setup.trigger is not None:
            writer = writer.trigger(processingTime=f"{setup.trigger / 1e6:f} seconds")
        rows_cross_spark = flow.first.by_spark or bool(dataframe_source.with_column(flow))
        are_rows_small = rows_cross_spark and dataframe_source.are_small(flow)
        wanted = for_queries(blobs.sparkSession, slots, self._scratch.is_local, are_rows_small)
        with settings(blobs.sparkSession, wanted):
            query = writer.start()
        self.by_flow[flow.id] = query if self._follower is None else RemoteQuery(query, (session, self._spark))

    @property
    def active_flows(self) -> set[str]:
        """The flows whose queries have neither come to their end nor been stopped. Some may have yet to start."""
        active = {flow for flow, query in self.by_flow.items() if flow not in self._at_end and query.isActive}
        self._at_end |= {flow for flow in self._endless & active if has_nothing_to_read(self.by_flow[flow].status)}
        active -= self._at_end
        if self._follower is not None and self._was_active - active:
            # What an ended query has committed is heard before its end is.
            self._follower.look()
        self._was_active = active
        return {*active, *self._waiting}

    @property
    def are_waited_for(self) -> bool:
        """Return whether a query has neither ended nor committed a micro-batch."""
        return any(not self.has_committed(flow) for flow in self.active_flows)

    @property
    def under_way(self) -> Mapping[str, float]:
        """By flow: since when its micro-batch is under way, if one is."""
        return {**self._commits.under_way}

    @property
    def idle(self) -> dict[str, bool]:
        """By flow: whether its query waits for messages, or for its trigger."""
        return {flow: _is_idle(query) for flow, query in [*self.by_flow.items()]}

    @property
    def unheard(self) -> list[str]:
        """The flows whose queries have neither committed since the start nor found that there is nothing to read."""
        queries = [(flow, query) for flow, query in [*self.by_flow.items()] if not self.has_committed(flow)]
        return [*self._waiting, *self._not_started, *(flow for flow, query in queries if not _is_idle(query))]

    @property
    def failed_commit(self) -> tuple[str, Exception] | None:
        """The flow whose commit failed first, and its error; None if no commit failed."""
        return self._commits.failed

    @property
    def failed_flow(self) -> tuple[str, Exception] | None:
        """A flow whose query did not start or ended with an error, and the error; None if there is no such flow."""
        for flow, not_started in self._not_started.items():
            return flow, not_started
        for flow, query in self.by_flow.items():
            if not query.isActive and (error := query.exception()) is not None:
                return flow, error
        return None

    @property
    def is_one_stopped(self) -> bool:
        """Return whether a query was stopped through Spark before it has read all.

        That is known of queries that do not end by themselves. One that reads to the end of its source ends by itself from
        Spark 4.2 on, and a stopped one looks the same.
        """
        running = self._endless - self._at_end if self._setup.to_the_end else {*self.by_flow}
        queries = [query for flow, query in self.by_flow.items() if flow in running]
        return any(not query.isActive and query.exception() is None for query in queries)

    def has_committed(self, flow: str) -> bool:
        """Return whether a micro-batch of the flow was committed and handed to its outputs since this start."""
        return flow in self._commits.finished

    def stop(self) -> None:
        """Stop all queries at the same time, and wait until they have stopped."""
        queries, self.by_flow, self._was_active = list(self.by_flow.values()), {}, set()
        self._waiting, self._starting, self._unproven, self._not_started = [], set(), set(), {}
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
        if self._session is not None:
            connect.release(self._session)


def _is_idle(query: StreamingQuery | RemoteQuery) -> bool:
    message: str = query.status["message"]
    return message.startswith(WAITING)


def _blobs(
    spark: SparkSession,
    setup: Setup,
    session: SparkSession,
    flow: FlowPlan,
    source: AnySource,
    entry: Entry,
    labels: Sequence[int],
    attempts: int,
    until: Mapping[str, int] | None,
    to_the_end: bool,
) -> DataFrame:
    """Return the streaming DataFrame of a flow's blobs, read from where the entry says."""
    known, lines = commits.flow_by(entry, flow), tuple[str, ...]()
    if isinstance(source, KafkaConnectorSource):
        journal, positions = lists.read(setup.files, known.source.journal), known.source.known_positions
        source, lines = kafka_connector.frame_from(source, journal, positions, known.source.next_positions)
    if isinstance(source, DataFrameSource):
        clock = min(entry.clock, known.progress.clock)
        # Under at-least-once delivery a replay brings what is below the flow's own clock, and only some tasks fold it.
        restored = (clock if flow.first.takes_late else known.progress.clock) if known.source.positions else BEGINNING
        rows = dataframe_source.opened(spark, source, clock)
        place = entry.epoch, restored, labels, attempts
        return dataframe_source.blobs_of_dataframe(rows, flow, source, *place, lines, to_the_end)
    assert isinstance(source, TimeReplayableSource), source
    parts = connect.parallelism(session)
    what = flow, source, entry.epoch, parts, labels, attempts, until, to_the_end
    if dataframe_source.with_column(flow):
        return column_source.blobs_of_source(session, column_source.RowReader(*what))
    return arrow_source.load(session, flow, arrow_source.ArrowReader(*what))
