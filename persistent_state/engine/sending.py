"""Whether what users give can be sent to Spark's workers, and what of it can't."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle

from persistent_state.errors import InvalidInputError
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.sources.base import TimeReplayableSource
from persistent_state.task import PersistentTask


def check_task(task: PersistentTask) -> None:
    """Refuse a task that Spark could not send to its workers.

    Raises:
        InvalidInputError: it can't be pickled; the sentence names the attribute that is at fault.
    """
    _check(f"task={task.task_name}", task)


def check_source(task: str, source: TimeReplayableSource | KafkaConnectorSource) -> None:
    """Refuse a source that Spark could not send to its workers.

    Raises:
        InvalidInputError: it can't be pickled; the sentence names the attribute that is at fault.
    """
    _check(f"task={task}: the source {source!r}", source)


def _check(what: str, given: object) -> None:
    problem = _problem(given)
    if problem is None:
        return
    for name, value in _attributes(given):
        if (own := _problem(value)) is not None:
            raise InvalidInputError(
                f"{what} can't be sent to Spark's workers for its attribute {name!r}, a {type(value).__name__}: {own}; make "
                "it where it is used, or leave it out by __getstate__."
            )
    raise InvalidInputError(f"{what} can't be sent to Spark's workers: {problem}; make what it uses where it is used.")


def _attributes(given: object) -> Iterator[tuple[str, Any]]:
    """What an object holds, and then its own classes: where these can't be imported, cloudpickle sends all that they hold."""
    yield from getattr(given, "__dict__", {}).items()
    for kind in type(given).__mro__:
        if kind.__module__.split(".")[0] not in ("persistent_state", "abc", "builtins"):
            yield from ((name, value) for name, value in vars(kind).items() if not name.startswith(("__", "_abc_")))


def _problem(value: object) -> str | None:
    """In one line why something can't be pickled; None if it can."""
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        text = str(error).strip().split("\n")[0].rstrip(".")
        return text or type(error).__name__
    return None
