"""Which deliveries look at the log after a commit, and what none can deliver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from persistent_state import ConsoleSink, ValuesAtClock
from persistent_state.engine.run.spark_engine import SparkEngine
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.run.deliveries import Deliveries, Delivery
from persistent_state.run.progress import Progress
from persistent_state.store.log import Log
from tests import core
from tests.sentences import problem
from tests.words import Words


@dataclass
class Fake:
    """A delivery that counts how often it looks."""

    task: str
    waits_for_all: bool = True
    looks: int = 0

    def wake(self) -> None:
        self.looks += 1


class Looks:
    """Deliveries of two outputs of "A", and of one of "B", which does not wait for the global clock."""

    def __init__(self) -> None:
        self.fakes = [Fake("A"), Fake("A"), Fake("B", waits_for_all=False)]
        fakes: Any = self.fakes
        self.all = Deliveries(fakes)

    def after(self, task: str, clock: int, global_clock: int) -> list[int]:
        """How often each looks after a commit."""
        for fake in self.fakes:
            fake.looks = 0
        nothing: Any = {}
        counts = dict.fromkeys(("messages", "replayed", "skipped", "replayed_or_late", "copies", "late", "bad"), 0)
        progress = Progress(
            task, 1, 1, reasons={}, upstream_min=None, clock=clock, global_clock=global_clock, outputs=nothing, **counts
        )
        self.all.hear(progress)
        return [fake.looks for fake in self.fakes]


def test_a_new_global_clock_wakes_all_deliveries_once() -> None:
    looks = Looks()
    assert looks.after("A", 10, BEGINNING) == [0, 0, 0]
    assert looks.after("B", 10, 10) == [1, 1, 1]
    # Three tasks that one commit has moved are told of one after the other.
    assert looks.after("A", 10, 10) == looks.after("C", 10, 10) == [0, 0, 0]
    assert looks.after("A", 20, 10) == [0, 0, 0]


def test_a_commit_above_the_global_clock_wakes_only_what_does_not_wait_for_that() -> None:
    looks = Looks()
    looks.after("A", 10, 10)
    looks.after("B", 10, 10)
    assert looks.after("A", 30, 10) == [0, 0, 0]
    assert looks.after("B", 30, 10) == [0, 0, 1]


def test_a_task_that_was_behind_wakes_its_own_deliveries_until_it_has_caught_up() -> None:
    looks = Looks()
    looks.after("B", 100, 100)
    assert looks.after("A", 40, 100) == [1, 1, 0]
    assert looks.after("A", 70, 100) == [1, 1, 0]
    assert looks.after("A", 120, 100) == [1, 1, 0]
    assert looks.after("A", 130, 100) == [0, 0, 0]


def test_an_output_whose_type_spark_lacks_is_refused_before_its_sink_is_opened() -> None:
    task = Words("words")
    session: Any = None
    plan = core.plan_of(task, pa.schema([("ts", pa.int64()), ("word", pa.uint64())]))
    log = Log(plan.files, plan.application)
    refused = problem(lambda: Delivery(SparkEngine(session), plan, ValuesAtClock(ConsoleSink()), log, tries=1))
    assert refused.startswith("task=words: Spark has no type for one of uint64, timestamp[us, tz=UTC], int64 (")
    assert refused.endswith("); leave the sink out.")
