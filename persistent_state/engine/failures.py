"""Errors of this package on their way to the driver: as rows, since Spark makes pages of text of what a worker raises."""

from __future__ import annotations

import pickle
import re
import threading

from pyspark import TaskContext
from pyspark.sql import SparkSession

from persistent_state.errors import StateError

_MARK = b"error "
"""How a row begins that holds an error; what else goes in its place is pickled, and begins otherwise."""


def attempts(spark: SparkSession) -> int:
    """Return how often Spark tries a task before it gives up."""
    master = spark.sparkContext.master or "local"
    if master.startswith("local") and not master.startswith("local-cluster"):
        told = re.search(r", *(\d+) *\]", master)
        return int(told[1]) if told else 1
    return int(spark.sparkContext.getConf().get("spark.task.maxFailures", "4") or 4)


def as_row(error: StateError, attempts: int) -> bytes:
    """Return what goes in the place of a result. An attempt that Spark would make again raises the error instead.

    Raises:
        StateError: the error, without where it was raised, as Spark shows that several times.
    """
    context = TaskContext.get()
    if context is not None and context.attemptNumber() + 1 < attempts:
        raise error.with_traceback(None) from None
    return _MARK + pickle.dumps(error)


def error_of(row: bytes) -> StateError | None:
    """Return the error that a row holds in the place of a result, if it holds one."""
    if not row.startswith(_MARK):
        return None
    error: StateError = pickle.loads(row[len(_MARK) :])
    return error


class Watch:
    """What the commits of one start tell the driver that watches them, and what it tells them.

    A commit that fails tells the driver here and waits until its query is about to end. To raise would make Spark log pages
    about it. A copy in another process is None: nobody watches there.
    """

    def __init__(self) -> None:
        self.failed: tuple[str, Exception] | None = None
        self.finished: set[str] = set()
        self.is_stopping = False
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()

    def fail(self, task: str, error: Exception) -> None:
        """Tell the driver that a task's commit failed, and wait until its query goes on to no other micro-batch."""
        with self._lock:
            if self.failed is None and not self.is_stopping:
                self.failed = task, error
        self._ended.wait()

    def finish(self, task: str) -> None:
        """Tell the driver that a micro-batch of a task was committed and handed out."""
        self.finished.add(task)

    def stop(self) -> None:
        """From now on commits fail because their queries are stopped."""
        with self._lock:
            self.is_stopping = True

    def end(self) -> None:
        """Let go of the commits that failed: Spark knows that their queries have ended."""
        self._ended.set()
