"""Turn what fails in Spark, in its workers and in user code into errors of this package.

A worker hands an error of this package to the driver as a row, because Spark logs pages of text about one that is raised.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.taskcontext import TaskContext

from persistent_state import errors
from persistent_state.engine.spark import connect
from persistent_state.errors import InvalidInputError, StateError, TaskFailedError, naming_cells
from persistent_state.run.failures import NOT_RETRIED, TooSlowError, of_engine

OF_SPARK: tuple[type[Exception], ...] = (PySparkException,)
"""The classes of Spark's errors."""

_OF_JVM: tuple[type[Exception], ...] = (ConnectionError,)
_OF_JAVA: tuple[type[Exception], ...] = ()

# A client of Spark Connect alone has no py4j.
with suppress(ImportError):
    from py4j.protocol import Py4JError, Py4JJavaError

    OF_SPARK = (*OF_SPARK, Py4JError)
    _OF_JVM, _OF_JAVA = (*_OF_JVM, Py4JError), (Py4JJavaError,)

_MARK = b"error "
"""The first bytes of a row that holds an error. A pickled result never begins with them."""

_TRACE = "\n\nJVM stacktrace:"

_QUERY = "\n=== Streaming Query ==="

_TOO_SLOW = "Python worker failed to connect back|STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE"
"""The words of Spark when a Python process that it has started did not connect within ten seconds. No setting changes these."""

_DIED = "Python worker exited unexpectedly|STREAMING_PYTHON_RUNNER_INITIALIZATION_COMMUNICATION_FAILURE"
"""The words of Spark when a Python process has ended in the middle of its work, as for want of memory."""

_NO_PYTHON = r'Cannot run program "([^"]*)"[^\n]*?: error=(?:2|8|13), ([^\n]+)'
"""The words of Java about a program that is not there, is not a program, or may not be run by this user."""

_OF_A_VALUE = r"22(?!000|KD)"
"""SQLSTATEs of a value that an expression can't take, such as a zero to divide by. The next start would meet it again.

The pattern leaves out the states that concern a whole source, such as lost records of Kafka.
"""


_OF_TYPES = "[FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] "
"""The condition of a Parquet file with another type than the schema of a DataFrame says."""


def is_too_slow(error: Exception) -> bool:
    """Return whether an error of Spark says that a Python process did not connect to it in time."""
    return isinstance(error, TooSlowError) or (
        not isinstance(error, StateError) and re.search(_TOO_SLOW, str(error)) is not None
    )


def may_pass(error: Exception) -> bool:
    """Return whether an error of a first start says that another try may get through, although nothing is changed."""
    text = str(error)
    return is_too_slow(error) or (not isinstance(error, NOT_RETRIED) and re.search(_DIED, text) is not None)


def as_own_error(error: Exception, of: str) -> StateError:
    """Return the error of this package that is behind an error of Spark, or a StateError with Spark's text.

    `of` names what failed.
    """
    text = naming_cells(str(error))
    if is_too_slow(error):
        return TooSlowError(
            f"{of}: this machine is too slow to start: Spark gives a Python process ten seconds to connect, and one took "
            "longer. Give the machine more cores or less to do, or the application fewer flows (tasks with one source object "
            "are one flow), or, while no Spark runs on it, run `python -m persistent_state.engine.spark.archives` once, after "
            "which these processes start faster."
        )
    if found := re.search(_NO_PYTHON, text):
        return InvalidInputError(
            f"{of}: Spark can't run python={found[1]!r} ({found[2].strip()}); let PYSPARK_PYTHON, or spark.pyspark.python, "
            "name a Python that is on every machine of Spark."
        )
    # The text names causes first, and the error that was raised last at the end.
    for name, message in reversed(re.findall(r"persistent_state\.errors\.(\w+): (.+)", text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, StateError):
            return kind(message.strip())
    if "CONTEXT_ONLY_VALID_ON_DRIVER" in text:
        modules = re.findall(r'File "([^"]+)", line \d+, in <module>', text)
        which = f"the module {modules[-1]}" if modules else "a module of a task"
        return InvalidInputError(
            f"{of}: {which} makes a SparkSession when it is imported, which only the driver may: put that under "
            "`if __name__ == '__main__':`."
        )
    # A condition belongs to the next SQLSTATE, if there is no other condition between the two.
    conditions = re.findall(
        r"(\[[A-Z][A-Z0-9_.]+\] (?:(?!\[[A-Z][A-Z0-9_.]+\] ).)*?) SQLSTATE: (\w{5})", text, re.DOTALL
    )
    if wrong := [condition for condition, _ in conditions if condition.startswith(_OF_TYPES)]:
        return InvalidInputError(
            f"{of}: {wrong[-1]} Give Spark's schema the type of the file, or write the file again."
        )
    if conditions and re.match(_OF_A_VALUE, conditions[-1][1]):
        return TaskFailedError(f"{of}: Spark could not work out a value: {conditions[-1][0]}")
    # The trace of the JVM stays in the error that caused this one.
    return StateError(f"{of}: Spark failed: {without_trace(text) or repr(error)}")


def without_trace(text: str) -> str:
    """Return what an error of Spark says, without the JVM's frames and without Spark's plan of the query."""
    lines = text.split(_TRACE)[0].split(_QUERY)[0].splitlines()
    return "\n".join(line for line in lines if not re.match(r"\t(at |\.\.\. \d+ more)", line)).strip()


@contextmanager
def naming_spark(of: str) -> Iterator[None]:
    """Raise an error of Spark in this block as an error of this package that names what failed by `of`."""
    try:
        yield
    except OF_SPARK as error:
        if is_lost_jvm(error):
            raise
        own = as_own_error(error, of)
        # Of an error with a class of its own, Spark's error would only add pages about its way through Spark.
        raise own from (error if type(own) is StateError else None)


for _kind in OF_SPARK:
    of_engine.register(_kind)(as_own_error)


@contextmanager
def naming_a_lost_jvm() -> Iterator[None]:
    """Raise an error that means a lost JVM, or a lost server of Spark Connect, in this block as a StateError that says so."""
    try:
        yield
    except StateError:
        raise
    except Exception as error:
        if connect.is_lost(error):
            raise StateError(
                f"the Spark Connect server is gone, or has forgotten the session ({connect.one_line(error)}); start again with "
                "a new session."
            ) from error
        if not is_lost_jvm(error):
            raise
        raise StateError(f"Spark's JVM is gone ({error}); start the application in a new process.") from error


def is_lost_jvm(error: Exception) -> bool:
    """Return whether Spark is gone.

    Without its JVM, the first call fails with Py4JError, later ones with ConnectionError.
    """
    return connect.is_lost(error) or (isinstance(error, _OF_JVM) and not isinstance(error, _OF_JAVA))


def attempts(spark: SparkSession) -> int:
    """Return how many times Spark tries a task before it fails the job."""
    master = connect.master(spark)
    if master.startswith("local") and not master.startswith("local-cluster"):
        number = re.search(r", *(\d+) *\]", master)
        return int(number[1]) if number else 1
    return int(connect.setting(spark, "spark.task.maxFailures", "4"))


def as_row(error: StateError, attempts: int) -> bytes:
    """Return an error as a row that stands in place of a result, if this is Spark's last attempt at the task.

    Raises:
        StateError: Spark will try the task again. The error has no traceback, because Spark would log it several times.
    """
    context = TaskContext.get()
    if context is not None and context.attemptNumber() + 1 < attempts:
        raise error.with_traceback(None) from None
    return _MARK + pickle.dumps(error)


def error_of(row: bytes) -> StateError | None:
    """Return the error that a row holds in place of a result, or None."""
    if not row.startswith(_MARK):
        return None
    error: StateError = pickle.loads(row[len(_MARK) :])
    return error
