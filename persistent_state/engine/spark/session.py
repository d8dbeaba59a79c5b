"""Prepare Spark for an application: a session, its settings, a store that all machines reach, and scratch space."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from pyspark.sql import SparkSession

from persistent_state.engine.spark import connect
from persistent_state.engine.spark.versions import checkpoint_manager
from persistent_state.errors import InvalidInputError
from persistent_state.store.files import Files, LocalFiles, MemoryFiles


def check_session(spark: SparkSession) -> None:
    """Refuse a session that has been stopped. Spark itself would raise an AttributeError.

    Raises:
        InvalidInputError: It has been stopped.
    """
    # A classic context that is stopped has no Java one any more. A client of Spark Connect says it.
    has_context = getattr(getattr(spark, "_sc", None), "_jsc", "") is not None
    if not has_context or getattr(spark, "is_stopped", False) is True:
        raise InvalidInputError(
            "spark=SparkSession has been stopped; make a new one by SparkSession.builder.getOrCreate(), and give that."
        )


def own_session(spark: SparkSession) -> SparkSession:
    """Return a new session with the user's time zone and limit of Arrow batches."""
    session = connect.new_session(spark)
    if (most := spark.conf.get(_BATCH_BYTES, None)) is not None:
        session.conf.set(_BATCH_BYTES, most)
    # A query that is stopped has not run all shards of its last micro-batch, which Spark would report as an error. The log
    # commits nothing of such a micro-batch.
    session.conf.set("spark.sql.streaming.stateStore.commitValidation.enabled", "false")
    # Without `scratch=` a server keeps its checkpoints in folders for temporary files, also of queries that failed.
    session.conf.set("spark.sql.streaming.forceDeleteTempCheckpointLocation", "true")
    session.conf.set("spark.sql.session.timeZone", spark.conf.get("spark.sql.session.timeZone") or "UTC")
    use_this_python(spark)
    return session


def for_queries(session: SparkSession, slots: int, is_scratch_local: bool, are_rows_small: bool) -> dict[str, str]:
    """Return the settings of a session while a query starts in it. The query keeps them.

    Arrow batches of small rows are limited by the number of rows alone.
    """
    return {
        **({_BATCH_BYTES: session.conf.get(_BATCH_BYTES, None) or _NO_LIMIT} if are_rows_small else {}),
        "spark.sql.shuffle.partitions": str(slots),
        # Streams can't be adaptive, and Spark would warn about it.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # A query that waits lists its source at each poll.
        "spark.sql.streaming.pollingDelay": "200ms",
        # Values for a sink stay in Arrow until it reads them. A local relation of rows costs several times as much.
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        **(_of_local_scratch(session) | _RAW_FILES if is_scratch_local else {}),
    }


# With a limit of bytes, Spark adds up the size of an Arrow batch after each row, which takes longer than to write the row.
# 2147483647 turns this off.
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = str(2**31 - 1)


def _of_local_scratch(session: SparkSession) -> dict[str, str]:
    # For each file of a checkpoint on a local disk, Hadoop starts processes to set and read its mode, and again for the file of
    # its checksum. Scratch files need neither. With these settings there is one file and one process.
    return {
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.streaming.checkpointFileManagerClass": checkpoint_manager(session),
    }


_RAW_FILES = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def for_sinks(session: SparkSession) -> dict[str, str | None]:
    """Return the settings that `for_queries` changes and that a sink must see as they are in this session now."""
    return {name: session.conf.get(name, None) for name in (_BATCH_BYTES, *_RAW_FILES)}


@contextmanager
def settings(session: SparkSession, wanted: Mapping[str, str | None]) -> Iterator[None]:
    """Give a session these settings in this block; None means Spark's default."""
    before = {name: session.conf.get(name, None) for name in wanted}
    _set(session, wanted)
    try:
        yield
    finally:
        _set(session, before)


def _set(session: SparkSession, wanted: Mapping[str, str | None]) -> None:
    for name, value in wanted.items():
        if value is None:
            session.conf.unset(name)
        else:
            session.conf.set(name, value)


def use_this_python(spark: SparkSession) -> None:
    """Let the workers run the Python of this process. Spark would take the python3 of the PATH.

    The workers of Spark Connect run the Python of the server.
    """
    if not connect.is_connect(spark) and not os.environ.get("PYSPARK_PYTHON"):
        spark.sparkContext.pythonExec = sys.executable


def check_store(spark: SparkSession, files: Files) -> None:
    """Refuse a store that Spark's workers can't reach.

    Raises:
        InvalidInputError: The store is in memory, or a folder of this machine while Spark uses others.
    """
    if isinstance(files, MemoryFiles):
        raise InvalidInputError(
            "store=memory:// can't be reached by Spark's workers; use a folder, or run_local for tests."
        )
    if isinstance(files, LocalFiles) and not connect.is_local(spark):
        raise InvalidInputError(
            f"store={files.url} is a folder of this machine, and master={connect.master(spark)} has others; "
            "use one all reach."
        )


def check_scratch(spark: SparkSession, scratch: str | None) -> None:
    """Require scratch space if Spark uses other machines. Refuse a folder of this machine that Spark could not write.

    Raises:
        InvalidInputError: Spark uses other machines, and `scratch` is None; or the folder can't be written.
    """
    if scratch is None and not connect.is_local(spark):
        raise InvalidInputError(
            f"master={connect.master(spark)} has other machines, which must reach Spark's own checkpoints; give "
            "scratch=, a folder on a file system that Spark knows and all reach. Nothing in it is needed for long."
        )
    there = None if scratch is None else _local_folder(spark, scratch)
    while there is not None and not os.path.exists(there):
        there = os.path.dirname(there)
    if there is not None and not (os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)):
        why = "may not be written by this user" if os.path.isdir(there) else "is not a folder"
        raise InvalidInputError(
            f"{scratch=} can't hold Spark's own checkpoints, since {there!r} {why}; put that right, or give another folder."
        )


def _local_folder(spark: SparkSession, scratch: str) -> str | None:
    """Return the path on this machine of a folder that Spark knows by this name; None if it is elsewhere."""
    # A server knows folders of its own machine.
    match = None if connect.is_connect(spark) else re.fullmatch(r"(file:(?://)?)?(/.*)", scratch)
    if match is None:
        return None
    # On some platforms a path without a scheme is one of a store.
    scheme = match[1] or spark.sparkContext._jsc.hadoopConfiguration().get("fs.defaultFS")
    return match[2] if scheme.startswith("file:") else None


SCRATCH_KEPT = 24 * 3600.0
"""Seconds without a change after which a start deletes the scratch space of a killed driver."""


class Scratch:
    """The folder of Spark's own checkpoints, with a new folder for each start, in `parent` or the folder for temporary files.

    A folder of this machine is locked while this process lives, so that a later start knows which ones killed drivers left.
    """

    def __init__(self, spark: SparkSession, parent: str | None, now_us: int) -> None:
        self._spark = spark
        name = f"persistent-state-{uuid.uuid4().hex}"
        self.is_local = parent is None
        self._lock: int | None = None
        if parent is not None:
            self._root: str | None = f"{parent.rstrip('/')}/{name}"
            return
        if connect.is_connect(spark):
            # The server may be another machine. It makes folders of its own.
            self._root = None
            return
        collect_scratch(tempfile.gettempdir(), now_us)
        self._root = os.path.join(tempfile.gettempdir(), name)
        os.mkdir(self._root, 0o700)
        self._lock = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        # Some file systems can't lock folders. There the age alone decides.
        with suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def folder(self, epoch: int) -> str | None:
        """Return the folder for the start of this epoch; None if Spark is to make one."""
        return None if self._root is None else f"{self._root}/{epoch}"

    def remove(self) -> None:
        """Delete the scratch space, as far as possible. A folder that only a server of Spark Connect knows stays."""
        if self._root is None or connect.is_connect(self._spark):
            return
        if self.is_local:
            shutil.rmtree(self._root, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
            return
        jvm, context = self._spark.sparkContext._jvm, self._spark.sparkContext._jsc
        assert jvm is not None
        path = jvm.org.apache.hadoop.fs.Path(self._root)
        path.getFileSystem(context.hadoopConfiguration()).delete(path, True)


def collect_scratch(folder: str, now_us: int) -> None:
    """Delete the scratch space that killed drivers of this user left in a folder, if it is old."""
    names: list[str] = []
    with suppress(OSError):
        names = [name for name in os.listdir(folder) if re.fullmatch("persistent-state-[0-9a-f]{32}", name)]
    for name in names:
        # Another start may collect at the same time.
        with suppress(OSError):
            _collect(os.path.join(folder, name), now_us)


def _collect(root: str, now_us: int) -> None:
    """Delete one scratch space if it is old and unlocked; raise an OSError if a living driver holds its lock."""
    # O_NOFOLLOW: another user may have put a link there.
    file = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(file).st_uid != os.getuid():
            return
        newest_ns = max((os.stat(place).st_mtime_ns for place, _, _ in os.walk(root)), default=now_us * 1000)
        if now_us - newest_ns // 1000 > SCRATCH_KEPT * 1e6:
            # Lock only an old folder: a new one is for its own driver to lock.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(root, ignore_errors=True)
    finally:
        os.close(file)
