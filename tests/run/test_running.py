"""What the log lines of a start say of tasks, without Spark: they follow from what the start makes of each."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from persistent_state.drive.local import flows_of
from persistent_state.protocol.fates import Words, decide
from persistent_state.run import running
from persistent_state.run.feeds import Feed
from tests.protocol.test_graph import Graph


def played(*wanted: str) -> Graph:
    """Tasks that have read messages: windows of `PerSlot` feed `Slots`, and the state of `PerShop` feeds `PerRegion`."""
    world = Graph()
    world.wanted = [*wanted]
    world.start()
    for task in ("PerShop", "PerSlot"):
        world.play(task, [(5, 1, 10), (35, 1, 2), (75, 1, 1)])
    world.steps()
    assert world.clock == 70
    return world


def lines(
    world: Graph, caplog: pytest.LogCaptureFixture, *wanted: str, reset: Collection[str] = ()
) -> list[tuple[str, str]]:
    """The levels and texts of what a start logs of the tasks that others feed, and of those that it lacks."""
    flows = flows_of({name: world.plans[name] for name in wanted})
    table = decide(world.newest, flows, Words(reset))
    setup: Any = SimpleNamespace(feeds=[Feed(flow, None) for flow in flows])  # type: ignore[arg-type]
    caplog.clear()
    with caplog.at_level("INFO", "persistent_state"):
        running._tell_of_fed_tasks(world.newest, setup, table)
        running._warn_of_absent_tasks(world.newest, table)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


FEEDING = ("PerShop", "PerSlot", "PerRegion")


def test_a_task_that_is_rebuilt_is_named_with_what_it_has_then(caplog: pytest.LogCaptureFixture) -> None:
    world = played(*FEEDING, "Slots")
    assert lines(world, caplog, *world.wanted) == []
    assert lines(world, caplog, *world.wanted, reset=["PerShop", "PerSlot", "Slots"]) == [
        ("INFO", "task=PerRegion is rebuilt from the state of PerShop"),
        (
            "WARNING",
            "task=Slots loses what it had, and begins with the windows of PerSlot that close after "
            "clock=1970-01-01T00:00:00.000070Z (70)",
        ),
    ]


def test_a_new_task_that_lacks_what_has_gone_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(played("PerShop", "PerSlot"), caplog, *FEEDING, "Slots") == [
        (
            "INFO",
            "task=Slots begins with the windows of PerSlot that close after clock=1970-01-01T00:00:00.000070Z (70)",
        )
    ]


def test_an_output_that_lacks_clocks_is_named_when_its_task_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    world = played(*FEEDING, "Slots")
    absent = (
        "WARNING",
        "task=PerSlot is not part of this start. Its sink='none' still lacks 1 clocks; clocks that are collected before the "
        "task returns are lost to it.",
    )
    assert lines(world, caplog, "PerShop", "PerRegion") == [absent]
    world.start("PerShop", "PerRegion")
    # It was absent before.
    assert lines(world, caplog, "PerShop", "PerRegion") == []
