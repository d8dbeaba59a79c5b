"""Check the Python, the Java and the Spark of this machine."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from persistent_state.cli.doctor.check import FAIL, OK, WARN, Check
from persistent_state.cli.doctor.server import server_problem, server_url

PATIENCE = 120
"""Seconds that Spark has to start and to run a job."""

TRIAL = "persistent_state.engine.spark.trial"
"""The module that starts Spark, in a process of its own: a session in this one would look like the user's."""


def check_machine(with_spark: bool) -> Iterator[Check]:
    """Yield a check of Python, and with Spark one of Java and one of Spark."""
    yield Check("python", OK, f"{platform.python_version()}, {sys.executable}")
    if not with_spark:
        return
    java = check_java()
    yield java
    yield Check("spark", WARN, "not tried, as it needs Java; see above.") if java.status == FAIL else check_spark()


def check_java() -> Check:
    """Check that Spark finds a Java on which it can run."""
    # Not at the top, since what imports the engine waits for Spark.
    from persistent_state.engine.spark.java import find_java, java_problem, java_version

    if url := server_url():
        return Check("java", OK, f"not needed here: SPARK_REMOTE={url} is another process")
    if problem := java_problem():
        return Check("java", FAIL, problem)
    java = find_java()
    assert java is not None
    return Check("java", OK, f"version {java_version(java)}, {java}")


def check_spark() -> Check:
    """Check that Spark starts, that it is of PySpark's version, and that its Python workers run.

    A server's client would ask one that is not there for minutes, so a connection is tried first.
    """
    url = server_url()
    if url and (problem := server_problem(url)):
        return Check("spark", FAIL, problem)
    result = try_spark()
    if "error" in result and url:
        text = (
            f"SPARK_REMOTE={url} takes connections, and {result['error'].rstrip('.')}; `python -m {TRIAL}` shows more."
        )
        return Check("spark", FAIL, text)
    if "error" in result:
        text = f"{result['error'].rstrip('.')}; `python -m {TRIAL}` shows all that Spark says of it: mend that."
        return Check("spark", FAIL, text)
    spark, pyspark = result["spark"], result["pyspark"]
    if url:
        return Check("spark", OK, f"a server of version {spark}, with PySpark {pyspark} here")
    if _numbers(spark) != _numbers(pyspark):
        home = os.environ.get("SPARK_HOME")
        text = f"Spark is of version {spark}, of SPARK_HOME={home}, and PySpark of {pyspark}; unset SPARK_HOME, or"
        return Check("spark", FAIL, f"{text} pip install pyspark=={'.'.join(_numbers(spark))}.")
    return Check("spark", OK, f"version {spark} starts, and its Python workers run")


def try_spark() -> dict[str, Any]:
    """Start Spark in a process of its own, and return what that process printed: two versions, or an error."""
    # In a job of spark-submit these name the JVM of the job, whose Spark is not to be stopped.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY_")}
    try:
        ran = subprocess.run(
            [sys.executable, "-m", TRIAL],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return {"error": f"Spark has not started and run a job within {PATIENCE} seconds"}
    try:
        result: dict[str, Any] = json.loads(ran.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return {"error": f"Spark does not start, and its process ended with status {ran.returncode}"}
    return result


def _numbers(version: str) -> list[str]:
    """Return the three numbers of a version. Platforms add words of theirs, as in "4.0.2-amzn-0"."""
    return re.findall(r"\d+", version)[:3]
