"""An application at work: its queries in a session of the library's own, how they end, and who else is told."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from persistent_state import driver, errors
from persistent_state.driver import Keeping
from persistent_state.engine import arrow_source, query
from persistent_state.engine.query import Progress, Sink
from persistent_state.errors import Fenced, InvalidInput, StateError
from persistent_state.plan import Plan
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.store import pages
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files, LocalFiles, MemoryFiles
from persistent_state.store.log import Log

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Part:
    """A task of an application with its source and its sink."""

    plan: Plan
    source: TimeReplayableSource
    sink: Sink | None


class Running:
    """A started application. Stop it, wait for it, close it.

    `entry` is the log entry that it began with; `was_asked_to_stop` says that a signal ended it.
    """

    def __init__(
        self, log: Log, entry: Entry, queries: Sequence[StreamingQuery], scratch: str, keeping: Keeping
    ) -> None:
        self.entry = entry
        self.was_asked_to_stop = False
        self._log = log
        self._queries = queries
        self._scratch = scratch
        self._keeping = keeping

    @property
    def is_active(self) -> bool:
        return any(q.isActive for q in self._queries)

    def await_end(self, timeout: float | None = None) -> bool:
        """Wait until every query has ended; whether they have. A failure of one stops all, and so do SIGINT and SIGTERM.

        Raises:
            StateError: what made a query fail, as its own class where it is one of this package.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        with _signals() as asked:
            while True:
                active = self.is_active
                for failed in self._queries:
                    if not failed.isActive and (error := failed.exception()) is not None:
                        self.stop()
                        raise self._cause(error) from error
                if asked.is_set():
                    self.was_asked_to_stop = True
                    self.stop()
                    return True
                if not active:
                    self._tidy()
                    return True
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                asked.wait(POLL_SECONDS)

    def stop(self) -> None:
        """End the queries. What was committed is in the state, what was in flight is replayed by the next start."""
        for running in self._queries:
            running.stop()
        self._tidy()

    def close(self) -> Entry:
        """Stop, and give every task one clock above the newest message, so that everything is checkpointed.

        What arrives below that clock afterwards is late: close when the sources have been read to their end.
        """
        self.stop()
        return driver.close(self._log, self.entry.epoch, now=arrow_source.now_us(), keeping=self._keeping)

    def _cause(self, error: StreamingQueryException) -> StateError:
        """Fenced if a newer driver owns the application, in whatever way its work was in the way; else what failed."""
        own = _as_own_error(error)
        with suppress(StateError):
            newest = self._log.newest()
            if newest is not None and newest.epoch != self.entry.epoch and not isinstance(own, Fenced):
                return Fenced(
                    f"a newer driver owns {self._log.application}; this one (epoch {self.entry.epoch}) has stopped."
                )
        return own

    def _tidy(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)


def start(
    spark: SparkSession,
    application: str,
    files: Files,
    parts: Sequence[Part],
    *,
    interval: int,
    shards: int,
    anew: Sequence[str],
    keeping: Keeping,
    to_the_end: bool,
    on_progress: Callable[[Progress], None] | None,
) -> Running:
    """Take the application over and start a query for each of its tasks.

    Raises:
        InvalidInput: the set-up can't work.
    """
    _check_store(spark, files)
    session = _own_session(spark, shards)
    log = Log(files, application)
    _check_parts(log, parts, anew)
    entry = driver.start(
        log,
        [part.plan for part in parts],
        interval=interval,
        shards=shards,
        writer=query.new_id(),
        now=arrow_source.now_us(),
        anew=anew,
    )
    scratch = tempfile.mkdtemp(prefix="persistent-state-")
    labels = arrow_source.shard_labels(session, shards)
    told = _one_at_a_time(on_progress) if on_progress else None
    queries: list[StreamingQuery] = []
    running = Running(log, entry, queries, scratch, keeping)
    try:
        for part in parts:
            plan = part.plan
            blobs = arrow_source.stream(session, plan, part.source, session.sparkContext.defaultParallelism, labels)
            commit = query.Commit(plan, entry.epoch, keeping, part.sink, told)
            writer = query.control_rows(blobs, plan, labels).writeStream.outputMode("update").foreachBatch(commit)
            writer = writer.option("checkpointLocation", f"{scratch}/{plan.name}").queryName(plan.name)
            queries.append((writer.trigger(availableNow=True) if to_the_end else writer).start())
    except BaseException:
        running.stop()
        raise
    return running


def _check_parts(log: Log, parts: Sequence[Part], anew: Sequence[str]) -> None:
    """Refuse what could only fail in the middle of things, before a driver that works is fenced."""
    newest = log.newest()
    for part in parts:
        if part.plan.emits:
            query.check_values(part.plan)
        known = newest.tasks.get(part.plan.name) if newest and part.plan.name not in anew else None
        # A copy, as the source is to be opened once, by Spark.
        source = cloudpickle.loads(cloudpickle.dumps(part.source))
        if known is None:
            source.open([], {})
        else:
            positions = {strand: position.known for strand, position in known.positions.items()}
            source.open(pages.read(log.files, known.journal), positions)


def _one_at_a_time(tell: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Tasks commit in threads of their own; what they tell comes one after the other."""
    lock = threading.Lock()

    def locked(progress: Progress) -> None:
        with lock:
            tell(progress)

    return locked


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """While this lasts, SIGINT and SIGTERM set an event instead of ending the process in the middle of things."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _own_session(spark: SparkSession, shards: int) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", spark.conf.get("spark.sql.session.timeZone") or "UTC")
    session.conf.set("spark.sql.shuffle.partitions", str(shards))
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    # Each poll of a waiting query lists the source.
    session.conf.set("spark.sql.streaming.pollingDelay", "200ms")
    if not os.environ.get("PYSPARK_PYTHON"):
        # Spark would take the python3 of the PATH; the workers run what this process runs.
        spark.sparkContext.pythonExec = sys.executable
    return session


def _check_store(spark: SparkSession, files: Files) -> None:
    master = spark.sparkContext.master or "local"
    if isinstance(files, MemoryFiles):
        raise InvalidInput("store=memory:// can't be reached by Spark's workers; use a folder, or run_local for tests.")
    if isinstance(files, LocalFiles) and not master.startswith("local"):
        raise InvalidInput(
            f"store={files.url} is a folder of this machine, and master={master} has others; use one all reach."
        )


def _as_own_error(error: StreamingQueryException) -> StateError:
    """The error of this package that made a query fail in another process, or a StateError with Spark's text."""
    text = str(error)
    # The last one raised: others before it are its causes.
    for name, message in reversed(re.findall(r"persistent_state\.errors\.(\w+): (.+)", text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, StateError):
            return kind(message.strip())
    return StateError(f"Spark stopped the application: {text}")
