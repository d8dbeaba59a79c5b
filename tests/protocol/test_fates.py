"""What a start makes of each task, and why: one row for each rule. Nothing is started for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

import monoids
from persistent_state import (
    Application,
    Changes,
    ClosedWindows,
    Input,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    TumblingWindow,
    WindowState,
)
from persistent_state.drive.local import flows_of
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.inputs import Inputs
from persistent_state.protocol.fates import CONTINUES, LEFT_OUT, NEW, REBUILT, REFUSED, RESET, Words, decide
from persistent_state.store.entry import Entry
from persistent_state.task import names_of_parts
from tests import core
from tests.local_application import LocalApplication, Rows, compiled
from tests.protocol.test_inputs import KEEPING

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])


class Sums(PersistentTask):
    key = "k"

    def __init__(self, name: str, value: str = "value", version: int | None = None) -> None:
        self.name, self.value, self.version = name, value, version

    def persistent_state(self) -> Any:
        return NonWindowState(monoids.Sum())


class PerTen(Sums):
    def persistent_state(self) -> Any:
        return WindowState(monoids.Sum(), TumblingWindow(core.us(10)))


class InOrder(OrderedTask):
    key, state = "k", pa.list_(pa.int64())

    def __init__(self, name: str) -> None:
        self.name = name

    def process(self, state: Any, message: Any, context: Any) -> Any:
        return state


def tasks() -> dict[str, tuple[Any, Any]]:
    """The tasks of an application, by their names, and what feeds each."""
    return {
        "Totals": (Sums("Totals", "n"), Rows(SCHEMA)),
        "Derived": (Sums("Derived"), Changes("Totals")),
        "Mixed": (Sums("Mixed", "n"), {"own": Rows(SCHEMA), "totals": Input(Changes("Totals"), value="value")}),
        "Windows": (PerTen("Windows", "n"), Rows(SCHEMA)),
        "Closed": (Sums("Closed"), ClosedWindows("Windows")),
        "Below": (Sums("Below"), Changes("Closed")),
        "Waiting": (InOrder("Waiting"), Rows(SCHEMA)),
        "Pairs": (InOrder("Pairs"), Changes("Totals", every=core.us(10))),
    }


def application(given: Mapping[str, tuple[Any, Any]], without: Sequence[str] = ()) -> Application:
    """An application of these tasks. Inputs that have ended are those of the task `Mixed`."""
    app = Application("app", "memory://fates", checkpoint_interval=core.us(10), max_ahead="100000 days")
    for name, (task, source) in given.items():
        app.add(task, source, without=without if name == "Mixed" else ())
    return app


def started(*starts: Collection[str]) -> LocalApplication:
    """An application after starts, each without these tasks."""
    world = LocalApplication(*compiled(application(tasks()), core.memory()), KEEPING)
    for away in starts:
        start(world, away)
    return world


def start(world: LocalApplication, away: Collection[str] = (), reset: Collection[str] = ()) -> None:
    world.become(application({name: given for name, given in tasks().items() if name not in away}))
    world.start(reset=reset)


@cache
def after(*starts: str, reads: bool = True) -> Entry:
    """The newest entry after starts, each without a task, once the last of them has read its sources."""
    world = started(*([away] for away in starts))
    for task, source in world.sources.items() if reads else ():
        assert isinstance(source, Inputs)
        for name in source.sources:
            world.source(task, name).rows += [(5, 1, 1), (15, 1, 2), (35, 1, 4)]
    world.drain()
    return world.newest


def fates(
    newest: Entry | None,
    given: Mapping[str, tuple[Any, Any]] | None = None,
    *,
    away: Collection[str] = (),
    reset: Collection[str] = (),
    rebuild: Collection[str] = (),
    without: Sequence[str] = (),
) -> dict[str, str]:
    """What a start makes of each task that does not go on, and why. Some tasks are given otherwise than before."""
    here = {name: task for name, task in (tasks() | (given or {})).items() if name not in away}
    plans, _ = compiled(application(here, without), core.memory())
    table = decide(newest, flows_of(plans), Words(reset, rebuild))
    made = {name: f"{fate.kind}: {fate.why}" if fate.why else fate.kind for name, fate in table.of.items()}
    return {name: fate for name, fate in made.items() if fate != CONTINUES}


IN_RESET, IN_REBUILD = ": it is named in reset", ": it is named in rebuild"
VERSION = ": the store was written with another version"
GONE = ", and what it has taken can't be given to it again"


def starts_over(task: str) -> str:
    return f": task={task}, which feeds it, starts over"


def newer(*names: str) -> dict[str, tuple[Any, Any]]:
    """These tasks by the code of another version."""
    return {name: (Sums(name, task.value, version=2), source) for name in names for task, source in [tasks()[name]]}


def test_a_task_is_new_where_the_log_does_not_have_it_and_goes_on_where_it_does() -> None:
    assert {*fates(None).values()} == {NEW}
    assert fates(after("")) == fates(after("", reads=False)) == {}


def test_a_new_task_that_is_named_begins_as_its_word_says() -> None:
    named = {"Totals": RESET + IN_RESET, "Derived": RESET + IN_RESET, "Mixed": REBUILT + IN_REBUILD}
    assert fates(None, reset=["Totals", "Derived"], rebuild=["Mixed"]) == {**fates(None), **named}


def test_a_task_of_the_log_that_a_start_lacks_is_left_out() -> None:
    assert fates(after(""), away=["Below", "Mixed"]) == {"Mixed": LEFT_OUT, "Below": LEFT_OUT}


@pytest.mark.parametrize("word", ["reset", "rebuild"])
def test_what_is_made_of_state_starts_over_with_what_feeds_it_and_what_is_not_is_refused(word: str) -> None:
    made = fates(after(""), **{word: ["Totals"]})
    assert made == {
        "Totals": RESET + IN_RESET if word == "reset" else REBUILT + IN_REBUILD,
        "Derived": REBUILT + starts_over("Totals"),
        "Mixed": REFUSED + starts_over("Totals"),
        # What it feeds is decided as if it went on: a task that is refused does not start over.
        "Pairs.messages": REFUSED + starts_over("Totals") + GONE,
    }
    made = fates(after(""), **{word: ["Windows"]})
    assert made["Closed"] == REFUSED + starts_over("Windows") + GONE
    assert "Below" not in made


def test_a_task_that_has_nothing_yet_is_not_refused() -> None:
    assert fates(after("", reads=False), reset=["Totals", "Windows"]) == {
        "Totals": RESET + IN_RESET,
        "Derived": REBUILT + starts_over("Totals"),
        "Mixed": RESET + starts_over("Totals"),
        "Windows": RESET + IN_RESET,
        "Closed": REBUILT + starts_over("Windows"),
        "Below": REBUILT + starts_over("Closed"),
        "Pairs.messages": REBUILT + starts_over("Totals"),
        "Pairs": REBUILT + starts_over("Pairs.messages"),
        "Pairs.rows": REBUILT + starts_over("Pairs.messages"),
    }


def test_a_task_that_has_nothing_is_refused_if_it_was_away_while_its_source_gave() -> None:
    newest = after("", "Mixed")
    assert newest.flow_of("Mixed").visited == BEGINNING < newest.clock
    assert fates(newest) == {}
    assert fates(newest, reset=["Totals"])["Mixed"] == REFUSED + starts_over("Totals")


def test_a_derived_task_that_is_named_in_reset_is_built_again() -> None:
    assert fates(after(""), reset=["Derived", "Mixed", "Closed"]) == {
        "Derived": REBUILT + IN_RESET,
        "Mixed": RESET + IN_RESET,
        "Closed": REBUILT + IN_RESET,
        "Below": REBUILT + starts_over("Closed"),
    }


def test_an_ordered_task_is_reset_only_with_messages_that_a_source_feeds() -> None:
    for name, kind in (("Waiting", RESET), ("Pairs", REBUILT)):
        assert fates(after(""), reset=names_of_parts(name)) == dict.fromkeys(names_of_parts(name), kind + IN_RESET)
        assert fates(after(""), rebuild=names_of_parts(name)) == dict.fromkeys(
            names_of_parts(name), REBUILT + IN_REBUILD
        )


def test_other_code_is_a_reason_for_tasks_that_others_feed() -> None:
    assert fates(after(""), newer("Totals", "Derived", "Mixed", "Closed")) == {
        "Derived": REBUILT + VERSION,
        "Mixed": REFUSED + VERSION,
        "Closed": REFUSED + VERSION + GONE,
    }


def test_another_column_that_is_taken_back_is_a_reason() -> None:
    given = {"Derived": (Sums("Derived", "k"), Changes("Totals"))}
    why = ": it had value='value' when the store was written, and has value='k' now"
    assert fates(after(""), given) == {"Derived": REBUILT + why}


def test_other_tasks_that_feed_it_are_a_reason() -> None:
    given = {"Derived": (Sums("Derived"), Changes("Below"))}
    (why,) = fates(after(""), given).values()
    assert why.startswith(f"{REBUILT}: it was fed by ")


def test_what_has_started_over_while_a_task_was_away_is_a_reason() -> None:
    world = started([])
    start(world, away=["Derived"], reset=["Totals"])
    assert fates(world.newest) == {"Derived": REBUILT + ": a task that feeds it has started over without it"}


def test_a_task_that_gets_or_had_a_source_is_not_made_of_state_alone() -> None:
    totals = Input(Changes("Totals"), value="value")
    more = {"Derived": (Sums("Derived", "n"), {"own": Rows(SCHEMA), "": totals})}
    less = {"Mixed": (tasks()["Mixed"][0], {"totals": totals})}
    assert fates(after(""), more, reset=["Totals"])["Derived"] == REFUSED + starts_over("Totals")
    assert fates(after(""), less, reset=["Totals"], without=["own"])["Mixed"] == REFUSED + starts_over("Totals")
    assert fates(after("", reads=False), less, reset=["Totals"])["Mixed"] == REBUILT + starts_over("Totals")
