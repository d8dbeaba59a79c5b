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
from persistent_state.engine import connect
from persistent_state.errors import (
    DamagedError,
    FencedError,
    InvalidInputError,
    StateError,
    TaskFailedError,
    naming_cells,
    places,
    raised,
)

FINAL = (FencedError, InvalidInputError, TaskFailedError, DamagedError)
"""The errors that another try would meet again."""

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

_OF_A_VALUE = r"22(?!000|KD)"
"""SQLSTATEs of a value that an expression can't take, such as a zero to divide by. The next start would meet it again.

The pattern leaves out the states that concern a whole source, such as lost records of Kafka.
"""


def as_own_error(error: Exception, of: str) -> StateError:
    """Return the error of this package that is behind an error of Spark, or a StateError with Spark's text.

    `of` names what failed.
    """
    text = naming_cells(str(error))
    # The text names causes first, and the error that was raised last at the end.
    for name, message in reversed(re.findall(r"persistent_state\.errors\.(\w+): (.+)", text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, StateError):
            return kind(message.strip())
    # A condition belongs to the next SQLSTATE, if there is no other condition between the two.
    conditions = re.findall(
        r"(\[[A-Z][A-Z0-9_.]+\] (?:(?!\[[A-Z][A-Z0-9_.]+\] ).)*?) SQLSTATE: (\w{5})", text, re.DOTALL
    )
    if conditions and re.match(_OF_A_VALUE, conditions[-1][1]):
        return TaskFailedError(f"{of}: Spark could not work out a value: {conditions[-1][0]}")
    # The trace of the JVM stays in the error that caused this one.
    return StateError(f"{of}: Spark failed: {text.split(_TRACE)[0] or repr(error)}")


@contextmanager
def naming(what: str, kind: type[StateError]) -> Iterator[None]:
    """Raise an error of user code in this block as an error of `kind` that names `what` raised it, and where."""
    try:
        yield
    except StateError:
        raise
    except OF_SPARK as error:
        raise as_own_error(error, f"{what}{places(error)}") from error
    except Exception as error:
        raise kind(f"{what} raised {raised(error)}; fix it.") from error


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
