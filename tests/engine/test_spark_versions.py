"""The differences between versions of Spark, by the version of the session and by what PySpark says of a query."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from persistent_state.engine import spark_versions


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
    assert spark_versions.version_of(spark) == known
    assert spark_versions.ends_at_the_end(spark) == ends
    manager = f"org.apache.spark.sql.execution.{package}.FileSystemBasedCheckpointFileManager"
    assert spark_versions.checkpoint_manager(spark) == manager


@pytest.mark.parametrize(
    ("message", "has_nothing"),
    [
        ("Waiting for data to arrive", True),
        ("Waiting for next trigger", False),
        ("Getting offsets from persistent-state app Counts", False),
    ],
)
def test_only_a_query_that_has_asked_its_sources_in_vain_has_nothing_to_read(message: str, has_nothing: bool) -> None:
    assert spark_versions.has_nothing_to_read({"message": message}) == has_nothing
