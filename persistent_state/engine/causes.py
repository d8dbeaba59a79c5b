"""Why something of Spark failed, as an error of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from persistent_state import errors
from persistent_state.errors import StateError, TaskFailedError, places, raised

_TRACE = "\n\nJVM stacktrace:"

_OF_A_VALUE = r"22(?!000|KD)"
"""SQLSTATEs of a value that an expression can't take, such as a zero to divide by: the next start would meet it again.

Left out are those of whole data, such as Kafka's that is gone.
"""


def as_own_error(error: Exception, of: str) -> StateError:
    """The error of this package that made a query fail in another process, or one with Spark's text."""
    text = str(error)
    # The last one raised: others before it are its causes.
    for name, message in reversed(re.findall(r"persistent_state\.errors\.(\w+): (.+)", text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, StateError):
            return kind(message.strip())
    # The last one has no other condition between its own and its state.
    conditions = re.findall(
        r"(\[[A-Z][A-Z0-9_.]+\] (?:(?!\[[A-Z][A-Z0-9_.]+\] ).)*?) SQLSTATE: (\w{5})", text, re.DOTALL
    )
    if conditions and re.match(_OF_A_VALUE, conditions[-1][1]):
        return TaskFailedError(f"{of}: Spark could not work out a value: {conditions[-1][0]}")
    # The JVM's own trace is in the error behind this one.
    return StateError(f"{of}: Spark failed: {text.split(_TRACE)[0] or repr(error)}")


@contextmanager
def naming(what: str, kind: type[StateError]) -> Iterator[None]:
    """Let an error of user code say whose it is and where it was raised, as one of this kind; Spark's as it says itself."""
    try:
        yield
    except StateError:
        raise
    except (PySparkException, Py4JError) as error:
        raise as_own_error(error, f"{what}{places(error)}") from error
    except Exception as error:
        raise kind(f"{what} raised {raised(error)}; mend it.") from error


@contextmanager
def naming_a_lost_jvm() -> Iterator[None]:
    """Let an error that comes of Spark's JVM being gone say so."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if not is_lost_jvm(error):
            raise
        raise StateError(f"Spark's JVM is gone ({error}); start the application in a new process.") from error


def is_lost_jvm(error: Exception) -> bool:
    """Return whether Spark's JVM is gone: the first call after that fails with Py4JError, later ones with ConnectionError."""
    return isinstance(error, (Py4JError, ConnectionError)) and not isinstance(error, Py4JJavaError)
