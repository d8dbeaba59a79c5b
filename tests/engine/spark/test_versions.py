"""The differences between versions of Spark, by the version of the session and by what PySpark says of a query."""

from __future__ import annotations

import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from persistent_state.engine.run.queries import WAITING
from persistent_state.engine.spark import versions
from persistent_state.errors import InvalidInputError


@pytest.mark.parametrize(
    ("version", "known", "ends", "package"),
    [
        ("4.0.5", (4, 0), False, "streaming"),
        ("4.1.4-amzn-0", (4, 1), False, "streaming.checkpointing"),
        ("4.2.1", (4, 2), True, "streaming.checkpointing"),
        ("4.10.0.dev1", (4, 10), True, "streaming.checkpointing"),
    ],
)
def test_the_version_of_the_session_tells_what_it_can_do(
    version: str, known: tuple[int, int], ends: bool, package: str
) -> None:
    spark: Any = SimpleNamespace(version=version)
    assert versions.version_of(spark) == known
    assert versions.ends_at_the_end(spark) == ends
    manager = f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
    assert versions.checkpoint_manager(spark) == manager


def test_the_message_of_a_query_that_has_nothing_to_read_is_the_one_that_spark_gives_it() -> None:
    """Spark promises no such text. Under another one, a run before Spark 4.2 would never find its end."""
    (jar,) = Path(pyspark.__file__).parent.glob("jars/spark-sql_2*.jar")
    with zipfile.ZipFile(jar) as classes:
        (name,) = [name for name in classes.namelist() if name.endswith("/MicroBatchExecution.class")]
        assert versions.NOTHING_TO_READ.encode() in classes.read(name)
    assert versions.has_nothing_to_read({"message": versions.NOTHING_TO_READ})
    assert not versions.has_nothing_to_read({"message": "Waiting for next trigger"})
    assert versions.NOTHING_TO_READ.startswith(WAITING)


@pytest.mark.parametrize(
    ("pyspark_version", "pyarrow_version", "line", "goes"),
    [
        ("4.0.0", "26.0.1", 'num_data_rows = state_info_col["numRows"]', False),
        ("4.1.3", "27.0.0", 'num_data_rows = state_info_col["numRows"]', False),
        ("4.0.5", "26.0.1", 'num_data_rows = int(state_info_col["numRows"])', True),
        ("4.0.0", "25.0.0", 'num_data_rows = state_info_col["numRows"]', True),
        ("4.2.1", "26.0.1", 'num_data_rows = state_info_col["numRows"]', True),
        ("4.0.0", "26.0.1", None, True),
    ],
)
def test_a_pyspark_that_cuts_batches_at_floats_is_refused_with_a_pyarrow_that_takes_none(
    pyspark_version: str, pyarrow_version: str, line: str | None, goes: bool
) -> None:
    with nullcontext() if goes else pytest.raises(InvalidInputError, match=f"pyspark={pyspark_version} does not work"):
        versions.check_pyarrow(pyspark_version, pyarrow_version, lambda: line)


def test_a_pyspark_without_its_source_text_is_refused_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def getsource(kind: type) -> str:
        raise OSError("source code not available")

    class Serializer: ...

    monkeypatch.setattr(versions, "getsource", getsource)
    # PySpark 4.2 has another one.
    monkeypatch.setattr("pyspark.sql.pandas.serializers.ApplyInPandasWithStateSerializer", Serializer, raising=False)
    assert versions.state_serializer() is None
    versions.check_pyarrow("4.0.0", "26.0.1", versions.state_serializer)
