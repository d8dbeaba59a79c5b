"""The examples in docstrings that need a session of Spark are true."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from persistent_state.engine.spark.session import use_this_python
from tests.docstrings import MODULES, ROOT, examples_of, failures_of, needs_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_examples_with_a_session_are_true(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    # An example that starts nothing has the python3 of the PATH.
    use_this_python(spark)
    examples = [example for module in MODULES for example in examples_of(module) if needs_spark(example)]
    assert examples
    assert failures_of(examples, spark=spark) == 0
