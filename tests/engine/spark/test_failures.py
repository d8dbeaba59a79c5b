"""What a failed worker tells the driver, and when Spark is to try again."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkException, SparkRuntimeException

from persistent_state import InvalidInputError, StateError, TaskFailedError
from persistent_state.engine.read.dataframe_source import of_opener, update_column
from persistent_state.engine.spark import failures


@pytest.mark.parametrize(("attempt", "is_row"), [(0, False), (2, False), (3, True)])
def test_an_error_is_a_row_where_spark_would_not_try_again(
    monkeypatch: pytest.MonkeyPatch, attempt: int, is_row: bool
) -> None:
    context: Any = SimpleNamespace(get=lambda: SimpleNamespace(attemptNumber=lambda: attempt))
    monkeypatch.setattr(failures, "TaskContext", context)
    error = TaskFailedError("process_message raised")
    if is_row:
        found = failures.error_of(failures.as_row(error, 4))
        assert (type(found), str(found)) == (TaskFailedError, str(error))
    else:
        with pytest.raises(TaskFailedError, match="process_message raised"):
            failures.as_row(error, 4)


def test_a_result_is_no_error() -> None:
    assert failures.error_of(pickle.dumps({"a": 1})) is None


OF_JAVA = """An error occurred while calling o45.load.
: java.io.IOException: Cannot run program "{program}" (in directory "."): error={number}, {why}
\tat java.base/java.lang.ProcessBuilder.start(ProcessBuilder.java:1143)
\tat org.apache.spark.api.python.PythonWorkerFactory.startDaemon(PythonWorkerFactory.scala:231)
Caused by: java.io.IOException: error={number}, {why}
\t... 12 more
"""


@pytest.mark.parametrize(("number", "why"), [(2, "No such file or directory"), (13, "Permission denied")])
def test_a_python_that_can_not_be_run_is_a_wrong_set_up(number: int, why: str) -> None:
    with pytest.raises(InvalidInputError) as refused, failures.naming_spark("application=app"):
        raise PySparkException(OF_JAVA.format(program="/opt/python", number=number, why=why))
    assert str(refused.value) == (
        f"application=app: Spark can't run python='/opt/python' ({why}); let PYSPARK_PYTHON, or spark.pyspark.python, name a "
        "Python that is on every machine of Spark."
    )
    assert refused.value.__cause__ is None


def test_a_python_for_which_there_is_no_memory_now_may_be_run_another_time() -> None:
    error = PySparkException(OF_JAVA.format(program="/opt/python", number=12, why="Cannot allocate memory"))
    made = failures.as_own_error(error, "application=app")
    assert type(made) is StateError
    assert "\tat " not in str(made)
    assert len(str(made).splitlines()) == 3


def test_an_error_of_spark_shows_neither_frames_of_the_jvm_nor_its_plan_of_the_query() -> None:
    text = "[STREAM_FAILED] Query [id = 1] ended: the disk is full\n=== Streaming Query ===\nIdentifier: q\nLogical Plan: ..."
    with pytest.raises(StateError) as raised, failures.naming_spark("application=app"):
        raise PySparkException(text)
    assert str(raised.value) == "application=app: Spark failed: [STREAM_FAILED] Query [id = 1] ended: the disk is full"
    assert isinstance(raised.value.__cause__, PySparkException)


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org...\nCaused by: Accept timed out",
        "[STREAMING_PYTHON_RUNNER_INITIALIZATION_TIMEOUT_FAILURE] Streaming Runner initialization failed. SQLSTATE: XXKST",
    ],
)
def test_a_process_that_did_not_connect_in_time_is_told_from_all_other_failures(text: str) -> None:
    made = failures.as_own_error(PySparkException(text), "task=Words")
    assert failures.is_too_slow(PySparkException(text))
    assert failures.is_too_slow(made)
    assert str(made).startswith(
        "task=Words: this machine is too slow to start: Spark gives a Python process ten seconds"
    )
    assert "\n" not in str(made)
    assert "while no Spark runs on it, run `python -m persistent_state.engine.spark.archives`" in str(made)
    # What a user's code says is no word of Spark.
    assert not failures.is_too_slow(TaskFailedError(f"process_message raised {text}"))
    assert not failures.may_pass(TaskFailedError("Python worker exited unexpectedly"))


def test_a_module_that_makes_a_session_in_a_worker_is_named() -> None:
    error = PySparkException(
        'Job aborted: File "/app/main.py", line 3, in <module>\n  File "/app/tasks.py", line 4, in <module>\n'
        "    spark = SparkSession.builder.getOrCreate()\npyspark.errors.exceptions.base.PySparkRuntimeError: "
        "[CONTEXT_ONLY_VALID_ON_DRIVER] It appears that you are attempting to reference SparkContext from a broadcast variable."
    )
    made = failures.as_own_error(error, "application=app")
    assert (type(made), str(made)) == (
        InvalidInputError,
        "application=app: the module /app/tasks.py makes a SparkSession when it is imported, which only the driver may: put "
        "that under `if __name__ == '__main__':`.",
    )


def test_a_file_of_another_type_than_the_schema_is_not_tried_again_and_spark_says_why_first() -> None:
    why = (
        "[FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] Encountered error while reading file a.parquet. Mismatch."
    )
    java = f"{OF_JAVA.format(program='x', number=1, why='y')}Caused by: org.SparkException: {why} SQLSTATE: KD001"
    made = failures.as_own_error(PySparkException(f"{java}\n\tat org.apache"), "task=Revenue")
    assert (type(made), str(made)) == (
        InvalidInputError,
        f"task=Revenue: {why} Give Spark's schema the type of the file, or write the file again.",
    )


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (IllegalArgumentException("No schema."), InvalidInputError, "IllegalArgumentException: No schema"),
        (AnalysisException("[NO] a\n\nJVM stacktrace:\nb"), InvalidInputError, "AnalysisException: [NO] a"),
        (SparkRuntimeException("[DOWN] busy"), StateError, "SparkRuntimeException: [DOWN] busy"),
        (AnalysisException("a.HiveException: down"), StateError, "AnalysisException: a.HiveException: down"),
        (KeyError("ts"), InvalidInputError, "KeyError('ts')"),
        (ConnectionError("no"), StateError, "ConnectionError('no')"),
    ],
)
def test_an_error_of_the_function_of_a_dataframe_has_the_words_of_spark(
    error: Exception, kind: type[StateError], says: str
) -> None:
    made = of_opener(error)
    assert (type(made), str(made)) == (kind, f"the function of DataFrameSource raised {says}; fix it.")


def test_an_error_of_process_column_lists_the_columns() -> None:
    def process_column(rows: Any) -> Any:
        raise PySparkException("[UNRESOLVED_COLUMN] `costs` cannot be resolved.")

    task: Any = SimpleNamespace(task_name="Turnover", process_column=process_column)
    rows: Any = SimpleNamespace(columns=["shop", "cents"])
    with pytest.raises(InvalidInputError, match=r"resolved\. Its rows have the columns shop, cents\.$"):
        update_column(task, rows)
