"""Run the steps of derived tasks as batch jobs of Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from persistent_state.batch.packets import DRIVER
from persistent_state.batch.plan import FlowPlan
from persistent_state.drive import turn
from persistent_state.drive.turn import DueStep, Part
from persistent_state.engine.read.arrow_source import SCHEMA, blob_batches, freeze_imports
from persistent_state.engine.run import micro_batch
from persistent_state.engine.run.commit import Commit
from persistent_state.engine.spark import connect, failures
from persistent_state.engine.spark.session import for_sinks, own_session
from persistent_state.partials.shuffle import labels_of_shards
from persistent_state.run.commit import Committer
from persistent_state.run.setup import Setup
from persistent_state.run.wall_clock import now_us
from persistent_state.store.entry import Entry

POOL = "persistent-state steps"
"""The pool of Spark's fair scheduler in which steps run. There a large step takes no more than its share from the queries."""


class SparkJobs:
    """The `Jobs` of a run on Spark. They run in a session of their own, which a server of Spark Connect forgets at `close`."""

    def __init__(self, spark: SparkSession, setup: Setup) -> None:
        self._spark, self._setup = spark, setup
        self._session: SparkSession | None = None
        self._slots = 1
        self._group = f"persistent-state {setup.application} {setup.writer} steps"

    def open(self) -> None:
        """Make the session, unless there is one, with as many partitions as there are slots now."""
        self._session = self._session or _session_of(self._spark)
        self._slots = connect.slots(self._session, self._setup.shards)
        self._session.conf.set("spark.sql.shuffle.partitions", str(self._slots))

    def take(self, entry: Entry, due: DueStep, committer: Committer) -> None:
        """Take a step by a job, and commit it, as `Jobs.take` does."""
        session, flow, step = self._session, due.flow, due.step
        assert session is not None, "it is open"
        connect.name_work(session, self._group, f"{flow.title}: step to clock {step.clock}", POOL)
        commit = Commit(committer, self._setup.running_of(flow), for_sinks(session))
        # No more parts than there are tasks at a time: each sends a blob to each shard, also if that has little.
        parts = turn.step(entry, due, now=now_us(), most=connect.parallelism(session))
        commit(_rows(session, flow, parts, self._slots), step.clock)

    def cancel(self) -> None:
        """Cancel the jobs that run."""
        connect.cancel(self._session or self._spark, self._group)

    def keep(self) -> None:
        """Let a server know that the session is in use."""
        if self._session is not None:
            connect.keep(self._session)

    def close(self) -> None:
        """Let a server forget the session: it keeps what it is not asked to forget."""
        if self._session is not None and connect.is_connect(self._session):
            connect.release(self._session)
            self._session = None


def _session_of(spark: SparkSession) -> SparkSession:
    session = own_session(spark)
    # A partition for each slot, and no fewer.
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


def _rows(session: SparkSession, flow: FlowPlan, parts: Sequence[Part], slots: int) -> DataFrame:
    """Return the control rows of a step: those of a micro-batch whose parts read what other tasks have given.

    The parts of ordered tasks make the rows of their own shards. Those that Spark gives to one task are a slot.
    """
    labels, attempts = labels_of_shards(flow.first.shards, slots), failures.attempts(session)

    def parts_in(batches: Iterable[pa.RecordBatch]) -> list[Part]:
        return [pickle.loads(row) for batch in batches for row in batch.column(0).to_pylist()]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts_in(batches):
            yield from blob_batches(part.combine(flow, part.chunks(flow)), labels, attempts)

    def take(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if share := parts_in(batches):
            answers = micro_batch.answers_in_place(flow, share, attempts)
            freeze_imports()
            yield pa.record_batch({"label": pa.array([DRIVER, share[0].number], pa.int32()), "answer": answers})

    def merge(key: tuple[int], frame: pd.DataFrame) -> pd.DataFrame:
        answer = micro_batch.answer_of(flow, int(key[0]), list(frame["blob"]), {}, 0, attempts)[0]
        freeze_imports()
        return pd.DataFrame({"label": [int(key[0])], "answer": [answer]})

    # What a part needs comes with its row, so that nothing is sent to each part of all others. As an Arrow table, since Spark
    # takes longer for rows.
    sent = pa.array([pickle.dumps(part, protocol=5) for part in parts], pa.binary())
    rows = session.createDataFrame(pa.table({"part": sent}))
    if flow.is_in_order:
        return rows.mapInArrow(take, micro_batch.ANSWERS)
    return rows.mapInArrow(read, SCHEMA).groupBy("label").applyInPandas(merge, micro_batch.ANSWERS)
