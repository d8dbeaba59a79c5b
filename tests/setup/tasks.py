"""Tasks that are whatever a test wants wrong, and how they are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from monoids import Monoid, Sum
from persistent_state import (
    Application,
    FileSource,
    InvalidInputError,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentState,
    PersistentTask,
)
from persistent_state.batch.plan import Plan
from tests import core

SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us")),
        ("word", pa.string()),
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("value", pa.int64()),
    ]
)

ROWS = FileSource("rows/", timestamp="ts", schema=SCHEMA)


class Task(PersistentTask):
    """A task that is said to be whatever a test wants wrong."""

    def __init__(
        self,
        *,
        key: Any = "word",
        value: str | None = "n",
        monoid: Any = None,
        name: str = "totals",
    ) -> None:
        self.key = key
        self.value = value
        self.name = name
        self.monoid: Monoid[Any] = Sum() if monoid is None else monoid

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)


class Living(Task):
    """A task whose state lives for an hour."""

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid, ttl="1 hour")


class ByMessage(Task):
    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, 1)


class Visits(OrderedTask):
    """An ordered task that is said to be whatever a test wants wrong."""

    key = "word"
    state = pa.int64()
    emits = pa.schema([("said", pa.string())])

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def process(self, state: Any, message: Any, context: Any) -> Any:
        return (state or 0) + 1


def compiled(*tasks: tuple[Any, Any], **options: Any) -> dict[str, Plan]:
    """The plans of an application of these tasks, each with what feeds it."""
    app = Application("app", "store", checkpoint_interval="10 seconds", **options)
    for task, source in tasks:
        app.add(task, source)
    return core.compiled(app)


def refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        call()
    assert str(caught.value) == sentence
