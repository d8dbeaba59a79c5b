"""An application is compiled to the plans of its tasks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from monoids import Max, Sum
from persistent_state import (
    Changes,
    ClosedWindows,
    Emitted,
    FileSource,
    Input,
    PersistentTask,
)
from persistent_state.event_time.clocks import Bounds
from tests.setup.tasks import ROWS, SCHEMA, Living, Task, Visits, compiled, refused


def derived(monoid: Any) -> PersistentTask:
    return Task(monoid=monoid, name="derived", key=None, value="value")


def refuses(sentence: str, *tasks: tuple[Any, Any], **options: Any) -> None:
    """Tasks that do not compile, and why."""
    refused(lambda: compiled(*tasks, **options), sentence)


@pytest.mark.parametrize(
    ("monoid", "lack"),
    [(Max(), "Max(int64) is no group"), (Sum(pa.float64()), "Sum(double) rounds")],
)
def test_what_can_not_be_taken_back(monoid: Any, lack: str) -> None:
    task = derived(monoid)
    refuses(
        "task=derived is fed by the changes of task=totals: what it made of a row is taken back when the row changes, and "
        f"{lack}; use Sum, Count, ExactSum, or a Struct of these, or look at fixed times: "
        "Changes('totals', every=\"1 minute\").",
        (Task(), ROWS),
        (task, Changes("totals")),
    )


def test_bounds_in_time() -> None:
    refuses(
        "task=derived is fed by the changes of task=living, whose state is bounded in time; feed it by the windows that "
        "have closed, ClosedWindows('living'), keep that state without a bound, or look at fixed times: "
        "Changes('living', every=\"1 minute\").",
        (Living(name="living"), ROWS),
        (derived(Sum()), Changes("living")),
    )
    refuses(
        "task=living is fed by the changes of task=totals: what it made of a row is taken back when the row changes. So it "
        "can't have windows, a ttl, a message_id or reads_state; leave these out, or look at fixed times: "
        "Changes('totals', every=\"1 minute\").",
        (Task(), ROWS),
        (Living(name="living", value="value"), Changes("totals")),
    )


def test_windows_of_a_task_without_windows() -> None:
    refuses(
        "task=derived is fed by the closed windows of task=totals, which keeps no windows; give it Changes('totals'), or "
        "let the task keep a WindowState.",
        (Task(), ROWS),
        (derived(Sum()), ClosedWindows("totals")),
    )


def test_another_delivery() -> None:
    refuses(
        "task=derived is fed by task=totals, and delivery='at-least-once' is said for task=derived; tasks that are "
        "connected are exactly-once: leave it out.",
        (Task(), ROWS),
        (derived(Sum()), Changes("totals")),
        delivery="at-least-once",
    )


def test_what_an_ordered_task_is_fed_by_and_what_it_feeds() -> None:
    refused(
        lambda: compiled((Task(), ROWS), (Visits(), Changes("totals"))),
        "task=Visits is fed by the changes of task=totals, and an ordered task can't take back what it made of a row; look "
        "at fixed times: Changes('totals', every=\"1 minute\").",
    )
    refused(
        lambda: compiled((Visits(), ROWS), (Task(key=None, value="value"), Changes("Visits"))),
        "task=totals is fed by Changes(task='Visits', every=None), and an ordered task feeds others by the rows that it "
        "emits; give it Emitted('Visits').",
    )
    refused(
        lambda: compiled((Task(), ROWS), (Visits(), Emitted("totals"))),
        "task=Visits is fed by Emitted(by='totals'), and task=totals emits no rows; give it an OrderedTask, or "
        "Changes('totals').",
    )
    refused(
        lambda: compiled((Visits(emits=None), ROWS), (Task(key=None, value=None), Emitted("Visits"))),
        "task=totals is fed by Emitted(by='Visits'), and task=Visits emits no rows; name their columns in its emits.",
    )
    refused(
        lambda: compiled((Visits(), Emitted("Visitors"))),
        "task=Visits is fed by task=Visitors, which is not added; the tasks are Visits.",
    )


KEY = [{"name": "word", "type": "string"}]


@pytest.mark.parametrize(
    ("task", "source", "identity"),
    [
        (Task(), ROWS, {"key": KEY}),
        (Task(), {"": Input(ROWS, key="n")}, {"key": [{"name": "n", "type": "int64"}]}),
        (
            Task(),
            {"a": Input(ROWS, key="n")},
            {"key": [{"name": "word", "type": "int64"}], "declared": {"a": {"key": ["n"]}}},
        ),
        (
            Task(),
            {"a": ROWS, "b": Input(ROWS, key="word", value="value")},
            {"key": KEY, "declared": {"a": {"key": ["word"]}, "b": {"key": ["word"]}}},
        ),
    ],
    ids=["source", "input", "named input", "inputs"],
)
def test_the_identity_of_a_task_says_what_its_inputs_declare(task: Task, source: Any, identity: dict[str, Any]) -> None:
    of_state = task.persistent_state().identity()
    assert compiled((task, source))["totals"].identity == {**of_state, **identity}


def test_the_identity_of_a_task_that_is_fed_by_a_task_says_what_it_takes_back() -> None:
    fed, by = Task(name="fed", key="word", value="value"), Changes("totals")
    plans = compiled((Task(), ROWS), (fed, {"": Input(by, key="word"), "a": ROWS}))
    assert plans["fed"].identity == {
        **fed.persistent_state().identity(),
        "key": KEY,
        "inputs": {"": by.identity},
        "declared": {"": {"key": ["word"], "value": "value"}, "a": {"key": ["word"]}},
    }
    assert compiled((Task(), ROWS), (fed, by))["fed"].identity == {
        **fed.persistent_state().identity(),
        "key": KEY,
        "inputs": {"": by.identity},
        "declared": {"": {"value": "value"}},
    }


def test_a_plan_of_several_inputs_has_one_of_each() -> None:
    source = FileSource("rows/", timestamp="ts", schema=SCHEMA).from_("2026-11-01")
    app_delay = {"allowed_delay": "1 minute"}
    inputs = {"a": Input(ROWS, on_bad_row="fail", allowed_delay="1 second"), "b": source}
    plan = compiled((Task(), inputs), **app_delay)["totals"]
    settings = {name: plan.settings.of(name) for name in ("a", "b")}
    assert [of.delay for of in settings.values()] == [1_000_000, 60_000_000]
    assert [of.on_bad_row for of in plan.inputs.values()] == ["fail", "keep"]
    assert {name: of.settings for name, of in plan.inputs.items()} == settings
    assert plan.bounds == {"a": Bounds().times, "b": source.bounds.times}
