"""Tasks are ordered so that each comes after those that feed it."""

from __future__ import annotations

from typing import Any

import pytest

from persistent_state import Application, Changes, Emitted
from persistent_state.setup.added import Added
from persistent_state.setup.graph import common_interval, every, topological
from tests.setup.tasks import ROWS, Task, Visits, compiled, refused


def refuses(sentence: str, *tasks: tuple[Any, Any], **options: Any) -> None:
    """Tasks that do not compile, and why."""
    refused(lambda: compiled(*tasks, **options), sentence)


def added(*tasks: tuple[Any, Any]) -> tuple[Added, ...]:
    app = Application("app", "store", checkpoint_interval="10 seconds")
    for task, source in tasks:
        app.add(task, source)
    return app.added


def test_each_task_comes_after_those_that_feed_it_and_else_as_it_was_added() -> None:
    tasks = added(
        (Task(name="last"), {"a": Changes("middle"), "b": Changes("first")}),
        (Task(name="alone"), ROWS),
        (Task(name="middle"), Changes("first")),
        (Task(name="first"), ROWS),
    )
    assert [each.name for each in topological(tasks)] == ["first", "middle", "last", "alone"]


def test_tasks_come_together_where_all_of_them_have_been_fed() -> None:
    seconds = 1_000_000
    tasks = added(
        (Task(), ROWS),
        (Task(name="a"), Changes("totals", every="20 seconds")),
        (Task(name="b"), Changes("totals", every="30 seconds")),
        (Task(name="c"), Changes("d")),
        (Task(name="d"), Changes("totals")),
        (Task(name="e"), Changes("c", every="50 seconds")),
    )
    times = every(topological(tasks), 10 * seconds)
    assert times == {
        "totals": {20 * seconds, 30 * seconds, 50 * seconds},
        "d": {50 * seconds},
        "c": {50 * seconds},
    }
    assert common_interval(times, 10 * seconds) == 300 * seconds
    assert common_interval({}, 10 * seconds) == 10 * seconds


def test_a_task_that_is_not_there() -> None:
    refuses(
        "task=derived is fed by task=total, which is not added; the tasks are totals, derived.",
        (Task(), ROWS),
        (Task(key=None, value="value", name="derived"), Changes("total")),
    )


def test_a_circle() -> None:
    refuses(
        "tasks feed each other in a circle: derived -> other -> derived; let one of them read a source.",
        (Task(key=None, value="value", name="derived"), Changes("other")),
        (Task(name="other"), Changes("derived")),
    )


def test_times_that_are_no_checkpoints() -> None:
    refuses(
        "task=derived is fed by Changes(task='totals', every='15 seconds'), and checkpoint_interval=10 seconds; make "
        "`every` a multiple of it.",
        (Task(), ROWS),
        (Task(key=None, value="value", name="derived"), Changes("totals", every="15 seconds")),
    )


@pytest.mark.parametrize(
    ("tasks", "circle"),
    [
        ([(Visits(), Emitted("Visits"))], "Visits -> Visits"),
        ([(Visits(name="a"), Emitted("b")), (Visits(name="b"), Emitted("a"))], "a -> b -> a"),
    ],
    ids=["one", "two"],
)
def test_a_circle_of_ordered_tasks(tasks: list[tuple[Any, Any]], circle: str) -> None:
    refuses(f"tasks feed each other in a circle: {circle}; let one of them read a source.", *tasks)
