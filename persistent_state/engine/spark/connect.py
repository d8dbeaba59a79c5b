"""Recognise a session of Spark Connect, and answer for it what a classic session answers by its JVM.

A client of Spark Connect has no JVM. Its functions run in Pythons of the server, and it hears of them by calls.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from persistent_state.engine.spark import versions
from persistent_state.errors import InvalidInputError
from persistent_state.store.files import Files, LocalFiles

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

ASK_SECONDS = 0.2
"""The time for which an answer of the server about a query holds: each question is a call."""

KEEP_SECONDS = 300.0
"""Time between two calls that keep a session alive on the server."""

ROWS_TO_COUNT_PARTS = 1 << 16
"""The rows of a range, which Spark divides into as many parts as it runs tasks at a time."""

_LOST = ("INVALID_HANDLE.SESSION", "server side session identifier", "on closed channel", "[NO_ACTIVE_SESSION]")
"""Texts of errors of a session that the server does not have any more."""

_parallelism = WeakKeyDictionary[SparkSession, int]()


def is_connect(spark: object) -> bool:
    """Return whether this is a session of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def master(spark: SparkSession) -> str:
    """Return the master of a session's Spark; "" if a platform does not say it."""
    if not is_connect(spark):
        return spark.sparkContext.master or "local"
    with suppress(PySparkException):
        return spark.conf.get("spark.master", None) or ""
    return ""


def is_local(spark: SparkSession) -> bool:
    """Return whether Spark runs in one process, of this machine or of the server's."""
    return master(spark).startswith("local")


def setting(spark: SparkSession, name: str, default: str) -> str:
    """Return a setting of the Spark that a session uses, not of the session."""
    if not is_connect(spark):
        return spark.sparkContext.getConf().get(name, default) or default
    return spark.conf.get(name, None) or default


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at a time."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    if spark not in _parallelism:
        parts = spark.range(ROWS_TO_COUNT_PARTS).select(F.spark_partition_id()).distinct()
        _parallelism[spark] = max(1, parts.count())
    return _parallelism[spark]


def slots(spark: SparkSession, shards: int) -> int:
    """Return how many tasks of Spark share the shards: as many as run at a time, or one each where executors come and go.

    A cluster may have yet to give some of the executors that were asked for.
    """
    if is_local(spark):
        return min(shards, parallelism(spark))
    if setting(spark, "spark.dynamicAllocation.enabled", "false").lower() == "true":
        return shards
    executors, cores, most = (
        int(setting(spark, f"spark.{name}", default))
        for name, default in (("executor.instances", "0"), ("executor.cores", "1"), ("cores.max", "0"))
    )
    return min(shards, max(parallelism(spark), executors * cores, most))


def new_session(spark: SparkSession) -> SparkSession:
    """Return a new session of the same Spark. One of Spark Connect's takes a server that is silent for long for lost.

    Raises:
        InvalidInputError: The client is older than PySpark 4.1.
    """
    if not is_connect(spark):
        return spark.newSession()
    remote: Any = spark
    # A clone has what the user has set. `newSession` came with PySpark 4.3, before which it raises.
    make = getattr(type(remote), "cloneSession", None)
    if make is None:
        raise InvalidInputError(
            f"pyspark={pyspark.__version__} is too old for a client of Spark Connect; install 4.1 or newer."
        )
    session = make(remote)
    try_again(spark)
    session.client.set_retry_policies([_patience()])
    if spark in _parallelism:
        _parallelism[session] = _parallelism[spark]
    return session  # type: ignore[no-any-return, unused-ignore]


def try_again(spark: SparkSession) -> None:
    """Let calls of a session be tried again, after a `RemoteQuery` of it has given the server up.

    They are tried for some 15 seconds, not for the ten minutes of Spark's default: the end of a process may be such a call.
    """
    if is_connect(spark):
        client: Any = spark.client  # type: ignore[attr-defined, unused-ignore]
        if not client.get_retry_policies():
            client.set_retry_policies([_patience()])


def _patience() -> Any:
    """Return how calls are tried again: for some 15 seconds. By default it is ten minutes."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    return DefaultPolicy(max_retries=7, max_backoff=4000)


def release(session: SparkSession) -> None:
    """Let the server forget a session of `new_session`, with all that still runs in it. A classic one is left to Spark."""
    if is_connect(session):
        # It may have forgotten it already, or be gone.
        with suppress(Exception):
            session.client.release_session()  # type: ignore[attr-defined, unused-ignore]


def keep(spark: SparkSession) -> None:
    """Let the server know that a session is in use. It forgets one after an hour without a call."""
    if is_connect(spark):
        spark.conf.get("spark.sql.session.timeZone", None)


def is_lost(error: BaseException) -> bool:
    """Return whether an error says that the server is gone, or has forgotten the session."""
    if not type(error).__module__.startswith(("pyspark.errors.", "grpc")) and not isinstance(error, ValueError):
        return False
    return _code_of(error) == "UNAVAILABLE" or any(text in str(error) for text in _LOST)


def _code_of(error: BaseException) -> str:
    """Return the name of gRPC's status in an error; "" if it has none."""
    code = getattr(error, "getGrpcStatusCode", getattr(error, "code", None))
    with suppress(Exception):
        return str(getattr(code() if callable(code) else None, "name", ""))
    return ""


def one_line(error: BaseException) -> str:
    """Return in one line what an error of a call says. The client's own texts have many lines, and name the cause in one."""
    text = str(error)
    details = re.search(r'details = "([^"]*)"', text)
    return (details[1] if details else text.split("\n")[0]).rstrip(". ")


def name_work(session: SparkSession, group: str, title: str, pool: str) -> None:
    """Let `cancel` know the jobs of this thread by their group. Classic Spark also shows a title, and uses a pool."""
    if is_connect(session):
        session.addTag(group)
        return
    session.sparkContext.setJobGroup(group, title, interruptOnCancel=True)
    session.sparkContext.setLocalProperty("spark.scheduler.pool", pool)


def cancel(session: SparkSession, group: str) -> None:
    """Cancel the jobs of a group."""
    if is_connect(session):
        session.interruptTag(group)
    else:
        session.sparkContext.cancelJobGroup(group)


def check_server(spark: SparkSession, files: Files) -> None:
    """Refuse a client or a server that can't make new sessions, and a server whose workers can't do what a run needs.

    Raises:
        InvalidInputError: One of these holds. The message says what to install.
    """
    try:
        release(new_session(spark))
    except Exception as error:
        # The client lets this error of gRPC through as it is.
        if _code_of(error) == "UNIMPLEMENTED":
            raise InvalidInputError(
                f"the Spark Connect server is of Spark {spark.version}, which can't clone a session; use one of 4.1 or newer."
            ) from error
        raise
    with _marked(files) as mark:
        _check_worker(spark, files.url, mark)


def _check_worker(spark: SparkSession, url: str, mark: str | None) -> None:
    """Refuse a server whose workers lack this library, have another version or unfit packages, or don't see these files.

    Raises:
        InvalidInputError: One of these holds.
    """
    own = _version()

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            version, unfit = _version(), ""
            is_there = mark is None or os.path.exists(mark)
            try:
                # Another version of the library may have no such check, and is refused for that.
                if version == own:
                    versions.check_pyarrow(pyspark.__version__, pa.__version__, versions.state_serializer)
            except InvalidInputError as error:
                unfit = str(error)
            answer = {"version": version, "unfit": unfit, "is_there": is_there}
            yield pa.RecordBatch.from_pylist([answer])

    try:
        types = "version string, unfit string, is_there boolean"
        (there,) = spark.range(0, 1, 1, 1).mapInArrow(look, types).collect()
    except PySparkException as error:
        if is_lost(error):
            raise
        text = str(error)
        for sign, (why, way) in _MISSING.items():
            if sign in text:
                raise InvalidInputError(f"the Spark Connect server's Python {why}; {way}.") from error
        raise
    if there["version"] != own:
        raise InvalidInputError(
            f"the Python of the Spark Connect server has persistent-state {there['version']}, and this one {own}; install the "
            "same version on both."
        )
    if there["unfit"]:
        raise InvalidInputError(f"the Python of the Spark Connect server can't run this: {there['unfit']}")
    if not there["is_there"]:
        raise InvalidInputError(
            f"store={url} is a folder of this machine, and the Spark Connect server has another there; use one both reach."
        )


_MISSING = {
    "No module named 'persistent_state'": (
        "has no persistent-state",
        "install this one's version there, for its driver and its workers",
    ),
    "No module named": ("lacks a module that this one has", "install the same packages there"),
    "PYTHON_VERSION_MISMATCH": ("has another minor version than this one", "use the same on both"),
}


def _version() -> str:
    # The root of the package, which imports all others.
    version: str = sys.modules["persistent_state"].__dict__["__version__"]
    return version


@contextmanager
def _marked(files: Files) -> Iterator[str | None]:
    """Give the path of an empty file, in the store's folder or the first above it that is there; None without a folder.

    Two machines may have folders of one path that are not the same. Only one of them gets the file, whose name is random.

    Raises:
        InvalidInputError: No file can be made there.
    """
    if not isinstance(files, LocalFiles):
        yield None
        return
    folder = next(path for path in (Path(files.url), *Path(files.url).parents) if path.exists())
    try:
        made, mark = tempfile.mkstemp(prefix=".persistent-state-", dir=folder)
    except OSError as error:
        raise InvalidInputError(
            f"store={files.url} can't be written to: {error.strerror}; let this process write there, or use another."
        ) from error
    os.close(made)
    try:
        yield mark
    finally:
        with suppress(OSError):
            os.unlink(mark)


class RemoteQuery:
    """A streaming query of a server, which is asked seldom.

    Once the server is lost, no call of these `sessions` is tried again, until `try_again`. Else the end of the run would wait
    for each.
    """

    def __init__(
        self, query: StreamingQuery, sessions: Sequence[Any], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._query, self._sessions, self._now = query, sessions, now
        self._is_active, self._asked = True, now()
        self._lock = threading.Lock()
        self._error: tuple[Exception | None] | None = None
        self._status: dict[str, Any] | None = None
        self._status_asked = 0.0

    @property
    def isActive(self) -> bool:
        with self._lock, self._giving_up():
            if self._is_active and self._now() >= self._asked + ASK_SECONDS:
                self._is_active = self._query.isActive
                self._asked = self._now()
            return self._is_active

    @property
    def status(self) -> dict[str, Any]:
        with self._lock, self._giving_up():
            is_fresh = not self._is_active or self._now() < self._status_asked + ASK_SECONDS
            if self._status is None or not is_fresh:
                self._status = self._query.status
                self._status_asked = self._now()
            return self._status

    def exception(self) -> Exception | None:
        with self._lock, self._giving_up():
            if self._error is not None:
                return self._error[0]
            error = self._query.exception()
            if not self._is_active:
                self._error = (error,)
            return error

    def stop(self) -> None:
        # The server forgets a query an hour after its end, and would refuse this.
        if not self._is_active:
            return
        with self._giving_up():
            self._query.stop()

    @contextmanager
    def _giving_up(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if is_lost(error):
                for session in self._sessions:
                    session.client.set_retry_policies([])
            raise
