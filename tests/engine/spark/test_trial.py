"""Of the long texts of Spark's errors, the line that names the cause."""

from __future__ import annotations

import pytest

from persistent_state.engine.spark.trial import reason

OF_A_JOB = """\
An error occurred while calling o45.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abort(DAGScheduler.scala:1)
Caused by: java.io.IOException: Cannot run program "/nonexistent": error=2, No such file or directory
\t... 12 more
"""

OF_A_WORKER = """\
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 1, in main
    check_python_version(infile)
pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has another version.
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (OF_A_JOB, 'java.io.IOException: Cannot run program "/nonexistent": error=2, No such file or directory'),
        (
            OF_A_WORKER,
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has another "
            "version.",
        ),
        (
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.\nmore",
            "[JAVA_GATEWAY_EXITED] Java gateway process exited.",
        ),
        ("", ""),
    ],
)
def test_the_line_that_names_the_cause_is_told(text: str, says: str) -> None:
    assert reason(text) == says
