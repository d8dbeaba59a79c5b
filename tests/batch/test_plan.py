"""What a plan says of a task that another one feeds, where the user's code or its names do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from monoids import Count, Last, Sum
from persistent_state import (
    Application,
    Changes,
    ClosedWindows,
    FileSource,
    Input,
    Message,
    NonWindowState,
    PersistentTask,
    TumblingWindow,
    WindowState,
    run_local,
)
from tests.sentences import problem

SHOPS = FileSource("shops/", timestamp="ts", schema=pa.schema([("ts", pa.int64()), ("shop", pa.string())]))
MINUTE = "1 minute"


class Keeps(PersistentTask):
    """A task with such a name, key and state, to which every message is one of its region."""

    def __init__(self, name: str, key: str | None, state: Callable[[], Any], update: Any = 1) -> None:
        self.name, self.key, self.state, self.update = name, key, state, update

    def persistent_state(self) -> Any:
        return self.state()

    def process_message(self, state: Any, message: Message) -> None:
        state.update(message.timestamp, self.update)


def fed(upstream: PersistentTask, source: Any, task: PersistentTask) -> Any:
    """What a task has at the end that is fed by another, which has one message."""
    app = Application("app", "memory://plan", checkpoint_interval=MINUTE).add(upstream, SHOPS).add(task, source)
    return run_local(app, {upstream.name: [Message(1, {"shop": "Ada"})]})[task.name].state


def counted() -> Any:
    return NonWindowState(Count())


def by_minute() -> Any:
    return WindowState(Count(), TumblingWindow(MINUTE))


def by_hour() -> Any:
    return WindowState(Count(), TumblingWindow("1 hour"))


def region() -> Any:
    return NonWindowState(Last(pa.string()))


@pytest.mark.parametrize(
    ("upstream", "source", "key"),
    [
        (("U", "shop", region, "north"), Changes("U"), "value"),
        (("U", "shop", by_minute), ClosedWindows("U"), "value"),
        (("U", "shop", by_minute), ClosedWindows("U"), "window_start"),
    ],
)
def test_a_key_of_the_name_of_a_column_of_the_state_has_another_name_of_an_input(
    upstream: Any, source: Any, key: str
) -> None:
    kept = by_hour if key == "window_start" else counted
    said = problem(lambda: fed(Keeps(*upstream), source, Keeps("D", key, kept)))
    named = f"{{'of': Input({source!r}, key={key!r})}}"
    assert said == (
        f"task=D: the key column {key!r} has the name of a column of the state; name its input, as in {named}, and give the "
        "key of the task another name."
    )
    state = fed(Keeps(*upstream), {"of": Input(source, key=key)}, Keeps("D", "other", kept))
    assert [*state.values()] == [1]
    if key == "window_start":
        assert [*fed(Keeps(*upstream), source, Keeps("D", key, counted)).values()] == [1]


def test_a_key_of_a_source_is_renamed_in_it_or_by_an_input() -> None:
    source = FileSource("in/", timestamp="ts", schema=pa.schema([("ts", pa.int64()), ("value", pa.string())]))
    app = Application("app", "memory://plan").add(Keeps("U", "value", counted), source)
    assert problem(lambda: run_local(app, {"U": []})).endswith("; rename it in the source's transform.")
    inputs = {name: Input(each, key="shop") for name, each in (("one", SHOPS), ("other", Changes("U")))}
    said = problem(lambda: fed(Keeps("U", "shop", counted), inputs, Keeps("D", "value", counted)))
    assert (
        "task=D: the key column 'value' has the name of a column of the state; give the key of the task another name"
        in said
    )


def raises() -> Any:
    raise ValueError("no state")


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (lambda: None, " in persistent_state gives no state; return one, such as NonWindowState(Sum())."),
        (Sum, " in persistent_state gives no state; return one, such as NonWindowState(Sum())."),
        (raises, "persistent_state of task=D raised ValueError('no state')"),
    ],
    ids=["nothing", "a monoid", "an error"],
)
@pytest.mark.parametrize(
    "source",
    [SHOPS, Changes("U"), Changes("U", every=MINUTE), {"one": Changes("U"), "other": Input(SHOPS)}],
    ids=["a source", "changes", "changes at times", "both"],
)
def test_a_wrong_state_is_told_alike_whatever_feeds_the_task(source: Any, kept: Callable[[], Any], words: str) -> None:
    said = problem(lambda: fed(Keeps("U", "shop", counted), source, Keeps("D", None, kept)))
    assert words in said
