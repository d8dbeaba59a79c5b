"""What a failed worker tells the driver, and when Spark is to try again."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from persistent_state import TaskFailedError
from persistent_state.engine import failures


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
