"""What an application needs of Spark beside its queries: a session, its settings, a store that all reach, scratch space."""

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

from persistent_state.errors import InvalidInputError
from persistent_state.store.files import Files, LocalFiles, MemoryFiles


def own_session(spark: SparkSession) -> SparkSession:
    """A session of the library's own, with the user's time zone and bound of Arrow batches."""
    session = spark.newSession()
    if (most := spark.conf.get(_BATCH_BYTES, None)) is not None:
        session.conf.set(_BATCH_BYTES, most)
    # A query that is stopped has not run all shards of its last micro-batch. That nothing is committed of it, the log sees to.
    session.conf.set("spark.sql.streaming.stateStore.commitValidation.enabled", "false")
    session.conf.set("spark.sql.session.timeZone", spark.conf.get("spark.sql.session.timeZone") or "UTC")
    use_this_python(spark)
    return session


def for_queries(session: SparkSession, shards: int, is_scratch_local: bool, are_rows_small: bool) -> dict[str, str]:
    """What a session is set to while a query starts in it, which keeps that; small rows are bounded by their number alone."""
    return {
        **({_BATCH_BYTES: session.conf.get(_BATCH_BYTES, None) or _NO_LIMIT} if are_rows_small else {}),
        "spark.sql.shuffle.partitions": str(shards),
        # A stream can't have it, and Spark would warn of that.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # Each poll of a waiting query lists the source.
        "spark.sql.streaming.pollingDelay": "200ms",
        # What a sink is handed stays in Arrow until it is read; as a relation of rows it costs several times as much.
        "spark.sql.execution.arrow.localRelationThreshold": "0",
        **(_OF_LOCAL_SCRATCH | _RAW_FILES if is_scratch_local else {}),
    }


# To keep to a number of bytes Spark adds up an Arrow batch at every row, which takes longer than to write it. Not to this one.
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_NO_LIMIT = str(2**31 - 1)

# For a file of a checkpoint on a local disk, Hadoop starts a process to set its mode and others to look at it, and as much for
# files of checksums beside it. What is scratch needs neither: this way there is one file and one process.
_OF_LOCAL_SCRATCH = {
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
}
_RAW_FILES = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def for_sinks(session: SparkSession) -> dict[str, str | None]:
    """What a query's session is set to while a sink runs, from the one that it is about to start in: as it was there."""
    return {name: session.conf.get(name, None) for name in (_BATCH_BYTES, *_RAW_FILES)}


@contextmanager
def settings(session: SparkSession, wanted: Mapping[str, str | None]) -> Iterator[None]:
    """While this lasts, a session, which may be the user's, has these settings; None is a default."""
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
    """Let the workers run what this process runs; Spark would take the python3 of the PATH."""
    if not os.environ.get("PYSPARK_PYTHON"):
        spark.sparkContext.pythonExec = sys.executable


def check_store(spark: SparkSession, files: Files) -> None:
    """Refuse a store that Spark's workers can't reach.

    Raises:
        InvalidInputError: they can't.
    """
    if isinstance(files, MemoryFiles):
        raise InvalidInputError(
            "store=memory:// can't be reached by Spark's workers; use a folder, or run_local for tests."
        )
    if isinstance(files, LocalFiles) and not _is_local(spark):
        raise InvalidInputError(
            f"store={files.url} is a folder of this machine, and master={spark.sparkContext.master} has others; "
            "use one all reach."
        )


def check_scratch(spark: SparkSession, scratch: str | None) -> None:
    """Refuse to do without scratch space that all machines reach.

    Raises:
        InvalidInputError: there are others, and none is given.
    """
    if scratch is None and not _is_local(spark):
        raise InvalidInputError(
            f"master={spark.sparkContext.master} has other machines, which must reach Spark's own checkpoints; give "
            "scratch=, a folder on a file system that Spark knows and all reach. Nothing in it is needed for long."
        )


def _is_local(spark: SparkSession) -> bool:
    return (spark.sparkContext.master or "local").startswith("local")


SCRATCH_KEPT = 24 * 3600.0
"""Seconds without a change after which the scratch space of a killed driver is taken away."""


class Scratch:
    """Where Spark keeps its own checkpoints: a fresh folder for each start, below `parent` or this machine's own.

    A folder of this machine is locked as long as this process lives, so that a later start can tell what a killed one has left.
    """

    def __init__(self, spark: SparkSession, parent: str | None, now_us: int) -> None:
        self._spark = spark
        name = f"persistent-state-{uuid.uuid4().hex}"
        self.is_local = parent is None
        self._lock: int | None = None
        if parent is not None:
            self._root = f"{parent.rstrip('/')}/{name}"
            return
        collect_scratch(tempfile.gettempdir(), now_us)
        self._root = os.path.join(tempfile.gettempdir(), name)
        os.mkdir(self._root, 0o700)
        self._lock = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        # Where folders can't be locked, their age tells.
        with suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def folder(self, epoch: int) -> str:
        return f"{self._root}/{epoch}"

    def remove(self) -> None:
        """Delete all of it, as far as that can be done."""
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
    """Delete the scratch space in a folder of drivers of this user that were killed a while ago."""
    found: list[str] = []
    with suppress(OSError):
        found = [name for name in os.listdir(folder) if re.fullmatch("persistent-state-[0-9a-f]{32}", name)]
    for name in found:
        # Another start may collect at the same time.
        with suppress(OSError):
            _collect(os.path.join(folder, name), now_us)


def _collect(root: str, now_us: int) -> None:
    """Delete scratch space that is old and that nobody locks; raise an OSError if a driver that lives does."""
    # A link that somebody has put there is not followed.
    file = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(file).st_uid != os.getuid():
            return
        newest_ns = max((os.stat(place).st_mtime_ns for place, _, _ in os.walk(root)), default=now_us * 1000)
        if now_us - newest_ns // 1000 > SCRATCH_KEPT * 1e6:
            # Only now: one that has just been made is for its driver to lock.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(root, ignore_errors=True)
    finally:
        os.close(file)
