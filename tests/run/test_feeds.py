"""The flows that an application is to have, and the sources that look as if one would do, without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import (
    ClosedWindows,
    FileSource,
    KafkaConnectorSource,
    KafkaSource,
    PersistentTask,
    TumblingWindow,
    WindowState,
)
from persistent_state.batch.plan import DELIVERIES
from persistent_state.kafka.subscription import merge_journals
from persistent_state.outputs import outputs_of
from persistent_state.run.feeds import FedTask, equal_sources, feeds_of
from tests import core
from tests.words import SCHEMA, Words


class InWindows(PersistentTask):
    key = "word"
    value = "ts"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(Sum(), TumblingWindow(core.us(10)))


def part(task: PersistentTask, source: Any, delivery: str = "exactly-once") -> FedTask:
    return FedTask(core.plan_of(task, SCHEMA, delivery=delivery), source, outputs_of(task.task_name, None))


def flows(*parts: FedTask) -> list[list[str]]:
    return [[plan.name for plan in feed.plan.tasks] for feed in feeds_of(parts)]


def files(folder: Path, **more: Any) -> FileSource:
    return FileSource(folder, timestamp="ts", schema=SCHEMA, **more)


def test_tasks_are_fed_together_that_have_one_source_object_and_one_delivery(tmp_path: Path) -> None:
    one, other = files(tmp_path), files(tmp_path)
    parts = [part(Words("A"), one), part(Words("B"), other), part(Words("C"), one)]
    assert flows(*parts) == [["A", "C"], ["B"]]
    parts = [part(Words(delivery), one, delivery) for delivery in DELIVERIES]
    assert flows(*parts, part(Words("Last"), one)) == [["exactly-once", "Last"], ["at-least-once"], ["at-most-once"]]


def test_a_task_with_a_delay_of_its_own_is_fed_apart(tmp_path: Path) -> None:
    one = files(tmp_path)
    parts = [part(Words("A"), one), part(Words("B"), one), part(Words("C"), one)]
    plan = parts[1].plan
    parts[1] = replace(parts[1], plan=core.changed(plan, settings=replace(plan.settings, delay=30)))
    assert flows(*parts) == [["A", "C"], ["B"]]
    parts[1] = replace(parts[1], plan=core.changed(plan, settings=replace(plan.settings, idle_after=30)))
    assert flows(*parts) == [["A", "C"], ["B"]]


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_task_for_which_late_is_late_is_apart_from_one_that_takes_late_messages(
    tmp_path: Path, delivery: str
) -> None:
    source = files(tmp_path)
    found = flows(part(Words("A"), source, delivery), part(InWindows(), source, delivery))
    assert found == ([["A"], ["InWindows"]] if delivery == "at-least-once" else [["A", "InWindows"]])


def test_the_flows_of_kafka_make_one_journal_of_two_and_no_others_do(tmp_path: Path) -> None:
    kafka = [KafkaSource("t", "nowhere:9"), KafkaConnectorSource("t", "nowhere:9", lambda records: records)]
    for source in kafka:
        (feed,) = feeds_of([part(Words("A"), source), part(Words("B"), source)])
        assert feed.plan.merge_journals is feed.plan.of(["B"]).merge_journals is merge_journals
    (feed,) = feeds_of([part(Words("A"), files(tmp_path))])
    assert feed.plan.merge_journals is None


@dataclass
class OwnSource:
    """A source that holds something which has no single answer to whether it is equal."""

    held: Any = field(default_factory=lambda: np.arange(3))


def test_equal_sources_that_are_not_one_object_are_found(tmp_path: Path) -> None:
    one, other, third = files(tmp_path), files(tmp_path), files(tmp_path / "elsewhere")
    parts = [part(Words("A"), one), part(Words("B"), third), part(Words("C"), other), part(Words("D"), one)]
    assert [[each.plan.name for each in group] for group in equal_sources(parts)] == [["A", "C", "D"]]
    assert equal_sources([parts[0], parts[1], parts[3]]) == []
    assert equal_sources([part(Words("A"), one), part(Words("B"), files(tmp_path, max_files_per_batch=1))]) == []


def test_equal_sources_that_are_tasks_are_no_source_that_is_read_twice() -> None:
    parts = [part(Words(name), ClosedWindows("Hourly")) for name in ("A", "B")]
    parts = [replace(each, plan=core.changed(each.plan, edge=ClosedWindows("Hourly"))) for each in parts]
    assert equal_sources(parts) == []


def test_sources_that_can_not_be_compared_are_not_equal() -> None:
    assert equal_sources([part(Words("A"), OwnSource()), part(Words("B"), OwnSource())]) == []
    assert equal_sources([part(Words("A"), object()), part(Words("B"), object())]) == []
    (found,) = equal_sources([part(Words("A"), OwnSource(pa.array([1]))), part(Words("B"), OwnSource(pa.array([1])))])
    assert len(found) == 2
