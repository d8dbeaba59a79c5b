"""What a plan says of a task that another one feeds, where the user's code or its names do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from monoids import Aggregator, Count, Last, Struct, Sum
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


def region() -> Any:
    return NonWindowState(Last(pa.string()))


def as_struct() -> Any:
    return NonWindowState(Struct(region=Last(pa.string())))


def as_presented() -> Any:
    shown = Aggregator(lambda v: v, Last(pa.string()), lambda v: {"region": v}, pa.struct({"region": pa.string()}))
    return NonWindowState(shown)


def test_a_task_is_keyed_by_the_value_of_another_once_that_is_a_field() -> None:
    said = problem(lambda: fed(Keeps("U", "shop", region, "north"), Changes("U"), Keeps("D", "value", counted)))
    assert said == (
        "task=D: the key column 'value' has the name of a column of the state; let task=U keep or present a Struct, whose "
        "field has another name."
    )
    for kept, update in ((as_struct, {"region": "north"}), (as_presented, "north")):
        assert fed(Keeps("U", "shop", kept, update), Changes("U"), Keeps("D", "region", counted)) == {"north": 1}


def test_a_task_with_windows_is_not_keyed_by_those_of_another() -> None:
    windows = Keeps("U", "shop", by_minute)
    said = problem(lambda: fed(windows, ClosedWindows("U"), Keeps("D", "window_start", by_minute)))
    assert said == (
        "task=D: the key column 'window_start' has the name of a column of the state; keep a NonWindowState, or leave it out "
        "of the key."
    )
    assert [*fed(windows, ClosedWindows("U"), Keeps("D", "window_start", counted)).values()] == [1]
    by_hour = Keeps("D", None, lambda: WindowState(Count(), TumblingWindow("1 hour")))
    assert [*fed(windows, ClosedWindows("U"), by_hour).values()] == [1]


def test_a_key_of_the_state_is_renamed_where_the_column_comes_from() -> None:
    said = problem(
        lambda: fed(
            Keeps("U", "shop", lambda: NonWindowState(Struct(value=Count()))),
            Changes("U"),
            Keeps("D", "value", counted),
        )
    )
    assert said.endswith("; give it another name in task=U.")
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
        (lambda: None, "task=D: persistent_state() gives no state; return one, such as NonWindowState(Sum())."),
        (Sum, "task=D: persistent_state() gives no state; return one, such as NonWindowState(Sum())."),
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
