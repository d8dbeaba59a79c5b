"""Start a session of Spark for a run, and distinguish what can never start from what may another time."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from persistent_state.cli.doctor.check import FAIL
from persistent_state.cli.doctor.machine import check_java
from persistent_state.cli.fast_start import fast_home, spark_home
from persistent_state.errors import InvalidInputError, StateError
from persistent_state.redact import shown, text_without_secrets, without_secrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_SECONDS = 30.0
"""The time that a server of Spark Connect has to take a connection. PySpark tries for more than ten minutes."""

WITHOUT_SPARK = "or run on this machine alone, without Spark and Java: add --local"

_MASTER = re.compile(
    r"local(\[(\d+|\*)(\s*,\s*\d+)?\])?|local-cluster\[.*\]|yarn|spark://.+|k8s://.+",
)
_MEMORY = re.compile(r"(?i)\s*\d+\s*(b|[kmgtp]b?)?\s*")

_NEVER = re.compile(
    r"java\.lang\.(IllegalArgument|NumberFormat)Exception|Could not parse Master URL|Invalid master URL"
    r"|CONNECT_URL_NOT_SET|INVALID_CONNECT_URL|MASTER_URL_INVALID|CANNOT_CONFIGURE_SPARK"
)
"""Words of Spark about settings with which no session ever starts."""


def start_session(name: str, master: str | None, settings: Sequence[tuple[str, str]]) -> SparkSession:
    """Start a session of Spark.

    Raises:
        InvalidInputError: With these settings, or on this machine, it never starts.
        StateError: It did not start this time.
    """
    if find_spec("pyspark") is None:
        raise InvalidInputError(f"package='pyspark' is missing for Spark; pip install pyspark, {WITHOUT_SPARK}.")
    given = dict(settings) if master is None else {"spark.master": master, **dict(settings)}
    _check(given)
    remote = given.get("spark.remote", os.environ.get("SPARK_REMOTE"))
    if remote is not None and not remote.startswith("local"):
        _check_server(remote, "spark.remote" if "spark.remote" in given else "SPARK_REMOTE", given)
    elif remote is None and _needs_java() and (java := check_java()).status == FAIL:
        raise InvalidInputError(f"{java.text.rstrip('.')}; {WITHOUT_SPARK}.")
    return _started(name, given)


def stop_session(spark: SparkSession) -> None:
    """Stop a session, and raise nothing. A server of Spark Connect that has gone is not waited for."""
    with suppress(Exception, KeyboardInterrupt):
        if type(spark).__module__.startswith("pyspark.sql.connect"):
            from pyspark.sql.connect.client.retries import DefaultPolicy

            spark.client.set_retry_policies([DefaultPolicy(max_retries=1)])  # type: ignore[attr-defined, unused-ignore]
        spark.stop()


def _check(given: dict[str, str]) -> None:
    """Refuse settings with which no session starts.

    Raises:
        InvalidInputError: There are such.
    """
    master = given.get("spark.master")
    if master is not None and not _MASTER.fullmatch(master):
        raise InvalidInputError(
            f"master={shown(master)!r} is no master of Spark; give local[2], spark://HOST:PORT, k8s://URL or yarn."
        )
    if master is not None and ("spark.remote" in given or "SPARK_REMOTE" in os.environ):
        named = "--conf spark.remote" if "spark.remote" in given else "SPARK_REMOTE"
        raise InvalidInputError(f"master={shown(master)!r} and {named} are both given; leave one of them out.")
    for key, value in given.items():
        if key.endswith((".memory", ".memoryOverhead")) and not _MEMORY.fullmatch(value):
            raise InvalidInputError(f"{key}={value} is no size of memory; write it as 2g or 512m.")


def _needs_java() -> bool:
    """Return whether PySpark starts Spark on this machine if no server is named. The package pyspark-client never does."""
    from pyspark.util import is_remote_only

    return not is_remote_only()


def _check_server(remote: str, named: str, given: dict[str, str]) -> None:
    """Connect to a server of Spark Connect, and close the connection again.

    Raises:
        InvalidInputError: The URL is wrong, or a package is missing.
        StateError: The server can't be reached.
    """
    try:
        import grpc
        from pyspark.sql.connect.client import DefaultChannelBuilder
    except ImportError as error:
        why = without_secrets(error, given)
        raise InvalidInputError(f"{named} needs Spark Connect: {why}; pip install 'pyspark[connect]'.") from None
    address, _, parameters = remote.partition(";")
    server = shown(address)
    try:
        channel = DefaultChannelBuilder(remote).toChannel()
    except ValueError as error:
        # What is wrong may be the parameter that has the token.
        why = without_secrets(error, {**given, "secret": parameters}).partition(": ")[2]
        raise InvalidInputError(f"{named}={server} is no URL of a server: {why}; write sc://HOST:PORT.") from None
    try:
        grpc.channel_ready_future(channel).result(timeout=CONNECT_SECONDS)
    except grpc.FutureTimeoutError:
        raise StateError(
            f"the Spark Connect server {server} has taken no connection within {CONNECT_SECONDS:g} s; "
            "look whether it runs and can be reached from here, and start again."
        ) from None
    finally:
        channel.close()


def _started(name: str, given: dict[str, str]) -> SparkSession:
    """Start the session.

    Raises:
        InvalidInputError: Spark refuses a setting.
        StateError: It did not start.
    """
    from pyspark.sql import SparkSession

    # The JVM looks for data sources with this Python. By default it takes the python3 of the PATH, which may lack PyArrow.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ.get("PYSPARK_PYTHON", sys.executable))
    try:
        # Spark's bar of progress has no place in a file, and draws over the lines of a terminal.
        builder = SparkSession.builder.appName(name).config("spark.ui.showConsoleProgress", "false")
        for key, value in given.items():
            builder = builder.config(key, value)
        interrupt = signal.getsignal(signal.SIGINT)
        with spark_home(fast_home(given)):
            spark = builder.getOrCreate()
        # PySpark takes SIGINT for itself, and interrupts a run that ends already if the signal comes twice.
        signal.signal(signal.SIGINT, interrupt)
        return spark
    except Exception as error:
        said = _first_line(error)
        why = text_without_secrets(said, given)
        kind = InvalidInputError if _NEVER.search(said) else StateError
        raise kind(
            f"Spark did not start a session: {why}. Look at what Spark says above, at --master and at --conf."
        ) from error


def _first_line(error: Exception) -> str:
    """Return the line that says what has failed. For an error of the JVM, the first line only says what was called."""
    lines = str(error).strip().split("\n")
    return next((line[2:] for line in lines[:2] if line.startswith(": ")), lines[0] or repr(error))
