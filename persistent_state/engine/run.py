"""An application at work: its queries, how they end or are started again, and who else is told."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from persistent_state.batch.plan import Plan
from persistent_state.engine import (
    arrow_source,
    dataframe_source,
    deliveries,
    failures,
    kafka_connector,
    micro_batch,
    sending,
)
from persistent_state.engine.backoff import Backoff
from persistent_state.engine.deliveries import Deliveries, Delivery
from persistent_state.engine.failures import as_own_error, is_lost_jvm, naming_a_lost_jvm
from persistent_state.engine.garbage import GarbageCollection
from persistent_state.engine.micro_batch import Progress, Watch
from persistent_state.engine.reports import Listener, Reports
from persistent_state.engine.session import (
    Scratch,
    check_scratch,
    check_store,
    for_queries,
    for_sinks,
    own_session,
    settings,
)
from persistent_state.engine.signals import asked_to_stop
from persistent_state.errors import FencedError, InvalidInputError, StateError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.outputs import Outputs
from persistent_state.protocol import commits, deliver, refusals, restore, takeover
from persistent_state.protocol.commits import Keeping
from persistent_state.sinks.base import shard_labels
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.store import lists
from persistent_state.store.entry import Entry, TaskState
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from persistent_state.store.runs import named_by_newest

POLL_SECONDS = 0.05
LOOK_SECONDS = 5.0
"""How often the log is asked whether another driver owns the application."""

_logger = logging.getLogger("persistent_state")


@dataclass(frozen=True)
class Part:
    """A task of an application with its source and its outputs."""

    plan: Plan
    source: TimeReplayableSource | DataFrameSource | KafkaConnectorSource
    outputs: Outputs


@dataclass(frozen=True)
class Setup:
    """All that a start of an application needs, the first one and those after a failure.

    `trigger` is Spark's processing time (None: as fast as it goes), `to_the_end` ends the run where the sources end now, and
    with `drains` all is checkpointed then.
    After `max_restarts` failures in a row without a new global clock the last one is raised.
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

    def take_over(
        self, log: Log, *, reset: Sequence[str] = (), rebuild: Sequence[str] = (), after: int | None = None
    ) -> Entry:
        """The entry of a new start."""
        return takeover.take_over(
            log,
            [part.plan for part in self.parts],
            interval=self.interval,
            shards=self.shards,
            writer=self.writer,
            now=arrow_source.now_us(),
            reset=reset,
            rebuild=rebuild,
            after=after,
        )


class Running:
    """A started application. Stop it, wait for it, close it.

    A query that fails is started again with all others, from the global clock; that the driver is fenced, the set-up is
    wrong, user code raised or the store is damaged ends the run. `restarts` is how often it was started again, `progress` the
    newest of each task; `was_asked_to_stop` says that a signal ended it.
    """

    def __init__(self, setup: Setup, log: Log, entry: Entry, deliveries: Deliveries) -> None:
        self._entry = entry
        self.restarts = 0
        self.was_asked_to_stop = False
        self._setup = setup
        self._log = log
        self._deliveries = deliveries
        self._reports = Reports(
            setup.writer, [part.plan for part in setup.parts], entry, setup.to_the_end, deliveries.wake
        )
        self._scratch = Scratch(setup.spark, setup.scratch, arrow_source.now_us())
        self._garbage = GarbageCollection(setup.files, setup.application, setup.keeping)
        self._queries: list[StreamingQuery] = []
        self._commits = Watch()
        self._error: StateError | None = None
        self._had_finished = False
        self._asked = threading.Event()
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        self._deliveries.start(lambda: self._entry.epoch)
        self._garbage.start(lambda: self._entry.epoch)
        self._watcher = threading.Thread(target=self._watch, name=f"persistent-state {setup.application}", daemon=True)
        self._watcher.start()

    @property
    def is_active(self) -> bool:
        return self._watcher.is_alive()

    @property
    def clock(self) -> int | None:
        """The global clock (microseconds UTC) as this run knows it; None while there is no checkpoint."""
        clock = max(self._entry.clock, *(known.global_clock for known in self.progress.values()), BEGINNING)
        return None if clock == BEGINNING else clock

    @property
    def progress(self) -> Mapping[str, Progress]:
        """The newest progress of each task that has committed since this start."""
        return dict(self._reports.newest)

    def await_termination(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended; whether it has. SIGINT and SIGTERM end it cleanly.

        Raises:
            StateError: what made it fail, as its own class where it is one of this package.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with asked_to_stop() as asked:
            while self._watcher.is_alive():
                if asked.is_set():
                    self.was_asked_to_stop = True
                    self.stop()
                    break
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                asked.wait(POLL_SECONDS)
        self._watcher.join()
        if self._error is not None:
            # From here on: where in its own thread the library found out tells a user nothing.
            raise self._error.with_traceback(None)
        return True

    def stop(self) -> None:
        """End the queries. What was committed is in the state, what was in flight is replayed by the next start.

        So is what sinks have yet to be given. Called by a sink or a report on progress, it does not wait for the end.
        """
        self._asked.set()
        if not _is_called_back():
            self._watcher.join()

    def drain(self) -> int:
        """Stop, and give every task one clock above the newest message, so that everything is checkpointed and delivered.

        What arrives below that clock afterwards is late: drain when the sources have been read to their end.

        Returns:
            That clock (microseconds UTC).

        Raises:
            StateError: what made the run fail; it has not read them to their end. Or a sink did not take all.
        """
        if _is_called_back():
            raise InvalidInputError(
                f"drain() was called by {threading.current_thread().name!r}, for a sink or a report on progress; call stop() "
                "there, and drain after."
            )
        self.stop()
        if self._error is not None:
            raise self._error
        entry = self._close()
        self._deliveries.drain(threading.Event())
        return entry.clock

    def _close(self) -> Entry:
        return commits.close(self._log, self._entry.epoch, now=arrow_source.now_us(), keeping=self._setup.keeping)

    def _begin(self) -> None:
        """Start a query for each task, from where the entry says."""
        setup = self._setup
        session = own_session(setup.spark)
        labels = shard_labels(session, setup.shards)
        scratch = self._scratch.folder(self._entry.epoch)
        attempts = failures.attempts(setup.spark)
        self._commits = Watch()
        for part in setup.parts:
            plan = part.plan
            blobs = _blobs(setup, session, part, self._entry, labels, attempts)
            usual = for_sinks(blobs.sparkSession)
            running = part.outputs.running
            listener = Listener(setup.writer, setup.on_progress)
            commit = micro_batch.Commit(
                plan, self._entry.epoch, setup.keeping, running, listener, plan.by_spark, usual, self._commits
            )
            writer = micro_batch.control_rows(blobs, plan, labels, attempts).writeStream.outputMode("update")
            writer = (
                writer.foreachBatch(commit)
                .option("checkpointLocation", f"{scratch}/{plan.name}")
                .queryName(f"{setup.application} {plan.name} {self._entry.epoch}")
            )
            if setup.to_the_end:
                writer = writer.trigger(availableNow=True)
            elif setup.trigger is not None:
                writer = writer.trigger(processingTime=setup.trigger)
            are_rows_small = dataframe_source.are_small(plan) and (plan.by_spark or plan.task.update_way == "column")
            wanted = for_queries(blobs.sparkSession, setup.shards, self._scratch.is_local, are_rows_small)
            with settings(blobs.sparkSession, wanted):
                self._queries.append(writer.start())

    def _watch(self) -> None:
        """See to it that the run goes on until it is to end."""
        try:
            with naming_a_lost_jvm():
                self._go_on()
                self._stop_queries()
                if not self._asked.is_set():
                    if self._setup.drains:
                        self._close()
                    self._deliveries.drain(self._asked)
            self._garbage.collect(self._entry.epoch)
            self._reports.end(self._newest(), is_whole=self._setup.to_the_end and not self._asked.is_set())
        except StateError as error:
            self._error = error
            if isinstance(error, failures.FINAL):
                _logger.error("application %s has ended: %s", self._setup.application, error)
        except BaseException as error:
            self._error = StateError(f"the application stopped at {error!r}; mend that, then start it again.")
            self._error.__cause__ = error
        finally:
            self._end()

    def _go_on(self) -> None:
        backoff, clock = Backoff(), self._entry.clock
        failure = self._failure()
        while failure is not None:
            if isinstance(failure, failures.FINAL):
                raise failure
            # Of the failure before, not of the newest start: it may be the store that keeps all others from starting.
            before, clock = clock, self._global_clock(clock)
            if clock > before and self._had_finished:
                backoff.succeed()
            wait = backoff.fail()
            if backoff.failures > self._setup.max_restarts:
                raise failure
            _logger.warning("application %s starts again in %g s: %s", self._setup.application, wait, failure)
            if self._asked.wait(wait):
                return
            failure = self._start_again() or self._failure()

    def _failure(self) -> StateError | None:
        """Wait until the queries end: why one failed, or None if all have come to their end or were asked to stop."""
        looked = time.monotonic()
        while not self._asked.is_set():
            active = self._active_tasks()
            if time.monotonic() > looked + LOOK_SECONDS:
                looked = time.monotonic()
                if fenced := self._fenced():
                    return fenced
            if self._commits.failed is not None:
                task, failed = self._commits.failed
                if not isinstance(failed, StateError) and task not in self._active_tasks():
                    # Somebody has stopped its query through Spark, else that would wait for its commit: all is to stop.
                    self._asked.set()
                    break
                self._had_finished = task in self._commits.finished
                return self._cause(task, failed)
            for part, ended in zip(self._setup.parts, self._queries, strict=True):
                if not ended.isActive and (error := ended.exception()) is not None:
                    self._had_finished = part.plan.name in self._commits.finished
                    return self._cause(part.plan.name, error)
            if not active:
                break
            self._asked.wait(POLL_SECONDS)
        return None

    def _active_tasks(self) -> set[str]:
        """Return the tasks whose queries have neither ended nor been stopped."""
        queries = zip(self._setup.parts, self._queries, strict=True)
        return {part.plan.name for part, query in queries if query.isActive}

    def _start_again(self) -> StateError | None:
        """Start all queries again, from the global clock; what kept the store from it, if something did."""
        setup = self._setup
        self._stop_queries()
        self.restarts += 1
        try:
            self._entry = setup.take_over(self._log, after=self._entry.epoch)
            self._begin()
        except StateError as error:
            return error
        except Exception as error:
            if is_lost_jvm(error):
                raise
            return as_own_error(error, f"application={setup.application}")
        return None

    def _global_clock(self, known: int) -> int:
        """The global clock; `known` if the store does not tell."""
        newest = self._newest()
        return known if newest is None else newest.clock

    def _newest(self) -> Entry | None:
        """The newest entry; None if the store does not tell."""
        with suppress(StateError):
            return self._log.newest()
        return None

    def _cause(self, task: str, error: Exception) -> StateError:
        """FencedError if a newer driver owns the application, in whatever way its work was in the way; else what failed."""
        own = error if isinstance(error, StateError) else as_own_error(error, f"task={task}")
        if type(own) is StateError and own is not error:
            # What else Spark has to say of an error that is known by its class is where it passed through.
            own.__cause__ = error
        return own if isinstance(own, FencedError) else self._fenced() or own

    def _fenced(self) -> FencedError | None:
        """That a newer driver owns the application, if it does."""
        newest = self._newest()
        if newest is None or newest.epoch == self._entry.epoch:
            return None
        return FencedError(
            f"a newer driver owns {self._log.application}; this one (epoch {self._entry.epoch}) has stopped."
        )

    def _stop_queries(self) -> None:
        """Stop the queries, all at once. A commit that failed is let go once its query can't go on to another micro-batch."""
        queries, self._queries = self._queries, []
        self._commits.stop()
        with ThreadPoolExecutor(max(1, len(queries))) as pool:
            stops = [pool.submit(query.stop) for query in queries]
            try:
                while any(query.isActive for query in queries):
                    time.sleep(POLL_SECONDS)
            finally:
                self._commits.end()
        for stop in stops:
            stop.result()

    def _end(self) -> None:
        ends = (
            self._stop_queries,
            # What a fenced driver's sinks are in the middle of is another's now.
            partial(self._deliveries.stop, 0.0 if isinstance(self._error, FencedError) else deliveries.STOP_SECONDS),
            self._garbage.stop,
            self._scratch.remove,
            self._reports.close,
        )
        for end in ends:
            # One that fails, as all do through a JVM that is gone, keeps no other from its end.
            with suppress(Exception):
                end()


def start(setup: Setup, reset: Sequence[str], rebuild: Sequence[str]) -> Running:
    """Take the application over and start a query for each of its tasks. If a signal came meanwhile, they are stopped.

    Raises:
        InvalidInputError: the set-up can't work.
    """
    with asked_to_stop() as asked, naming_a_lost_jvm():
        check_store(setup.spark, setup.files)
        check_scratch(setup.spark, setup.scratch)
        log = Log(setup.files, setup.application)
        newest = log.newest()
        # Before a sink, too, finds fault with what follows from another monoid.
        refusals.check(newest, [part.plan for part in setup.parts], reset, rebuild)
        all_deliveries = Deliveries(
            [
                Delivery(setup.spark, part.plan, output, setup.max_restarts)
                for part in setup.parts
                for output in part.outputs.at_clock
            ]
        )
        if newest is None:
            check_parts(setup.files, setup.parts, {}, BEGINNING)
        else:
            known = {name: task for name, task in newest.tasks.items() if name not in (*reset, *rebuild)}
            check_parts(setup.files, setup.parts, known, newest.clock)
            check_frames(setup, known, newest.clock, rebuild)
        all_deliveries.open()
        all_deliveries.check_empty(rebuild)
        if asked.is_set():
            raise StateError(f"application={setup.application} was asked to stop before it began; nothing was changed.")
        entry = setup.take_over(log, reset=reset, rebuild=rebuild)
        _warn_of_what_is_left(newest, entry)
        running = Running(setup, log, entry, all_deliveries)
        if asked.is_set():
            running.was_asked_to_stop = True
            running.stop()
        return running


def _is_called_back() -> bool:
    """Whether this thread is one of the library's, in a sink or in a report on progress: it can't wait for itself."""
    return micro_batch.is_committing() or deliveries.is_delivering()


def _warn_of_what_is_left(before: Entry | None, entry: Entry) -> None:
    """Tell of outputs that a task which is left out now takes with it."""
    for name, task in before.tasks.items() if before else ():
        for output, count in deliver.behind(before, name).items() if before and task.active else ():
            if count and not entry.tasks[name].active:
                _logger.warning(
                    "task=%s is left out, and sink=%r has yet to be given %d clocks: what is collected of them before the task "
                    "is back, it never gets.",
                    name,
                    output,
                    count,
                )


def _blobs(
    setup: Setup, session: SparkSession, part: Part, entry: Entry, labels: Sequence[int], attempts: int
) -> DataFrame:
    plan, source = part.plan, part.source
    task, lines = entry.tasks[plan.name], tuple[str, ...]()
    if isinstance(source, KafkaConnectorSource):
        start = {partition: position.next for partition, position in task.positions.items()}
        source, lines = kafka_connector.frame_from(source, lists.read(setup.files, task.journal), _known(task), start)
    if isinstance(source, DataFrameSource):
        clock = min(entry.clock, task.clock)
        # At least once what is below the task's own clock comes again, and only some tasks take it in.
        restored = (clock if plan.takes_late else task.clock) if task.positions else BEGINNING
        frame = dataframe_source.opened(setup.spark, source, clock)
        return dataframe_source.blobs_of_dataframe(frame, plan, source, entry.epoch, restored, labels, attempts, lines)
    parts = session.sparkContext.defaultParallelism
    if plan.task.update_way == "column":
        return dataframe_source.blobs_of_source(
            session, dataframe_source.RowReader(plan, source, entry.epoch, parts, labels, attempts)
        )
    reader = arrow_source.ArrowReader(plan, source, entry.epoch, parts, labels, attempts)
    return arrow_source.load(session, plan, reader)


def check_parts(files: Files, parts: Sequence[Part], known: Mapping[str, TaskState], clock: int) -> None:
    """Refuse what could only fail in the middle of things, before a driver that works is fenced.

    Tasks that are `known` go on from what the store holds of them, at the global `clock`.
    """
    for part in parts:
        sending.check_task(part.plan.task)
        if not isinstance(part.source, DataFrameSource):
            sending.check_source(part.plan.name, part.source)
        if part.plan.emits:
            micro_batch.check_values(part.plan)
        if isinstance(part.source, DataFrameSource):
            continue
        task = known.get(part.plan.name)
        # A copy, as the source is to be opened once, by Spark.
        source = cloudpickle.loads(cloudpickle.dumps(part.source))
        if task is None:
            source.open([], {})
        else:
            with named_by_newest():
                journal = lists.read(files, task.journal)
            source.open(journal, _known(task))
            # What is to be replayed must be there.
            back = restore.positions(task, part.plan, clock)
            source.reach({partition: position.next for partition, position in back.items()}, everything=False)


def _known(task: TaskState) -> dict[str, int]:
    """By partition, the first position that was never committed."""
    return {partition: position.known for partition, position in task.positions.items()}


def check_frames(setup: Setup, known: Mapping[str, TaskState], clock: int, rebuild: Sequence[str]) -> None:
    """Refuse a function that makes no DataFrame to replay from where its task stands; it is new if it is not `known`."""
    for part in setup.parts:
        if isinstance(part.source, DataFrameSource):
            task = known.get(part.plan.name)
            begin = BEGINNING if part.plan.name in rebuild else clock
            dataframe_source.opened(setup.spark, part.source, begin if task is None else min(clock, task.clock))
