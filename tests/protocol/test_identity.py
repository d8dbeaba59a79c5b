"""A start sees that a task declares its inputs otherwise than when the store was written, and says it in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import monoids
from persistent_state import (
    Application,
    AsOfJoin,
    Changes,
    ClosedWindows,
    Input,
    IntervalJoin,
    InvalidInputError,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    TumblingWindow,
    WindowState,
)
from persistent_state.ordered import InOrderTask
from persistent_state.protocol import graph
from persistent_state.task import name_of_messages, name_of_rows
from tests import core
from tests.local_application import LocalApplication, Rows, compiled
from tests.protocol.test_inputs import KEEPING

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])


class PerKey(PersistentTask):
    """Ten times the sum of each key beside the sum."""

    key = "k"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Struct(once=monoids.Sum(), tenfold=monoids.Sum()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        tenfold = pa.array([10 * n for n in batch["n"].to_pylist()], pa.int64())
        return pa.StructArray.from_arrays([batch["n"], tenfold], names=["once", "tenfold"])


class PerTen(PersistentTask):
    key = "k"

    def persistent_state(self) -> WindowState[Any]:
        return WindowState(monoids.Struct(total=monoids.Sum()), TumblingWindow(core.us(10)))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([batch["n"]], names=["total"])


class Sums(PersistentTask):
    """What is added up of one column."""

    key = "k"

    def __init__(self, value: str | None = "once") -> None:
        self.value = value

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


class ByCode(Sums):
    """The same, where code says the column."""

    name = "Sums"

    def __init__(self) -> None:
        super().__init__(None)

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return batch["once"]


class InOrder(OrderedTask):
    """All numbers of a key, in order."""

    name, key, state = "InOrder", "k", pa.list_(pa.int64())

    def __init__(self, ttl: Any = None) -> None:
        self.ttl = ttl

    def process(self, state: Any, message: Any, context: Any) -> Any:
        return [*(state or []), message["n"]]


Added = Sequence[tuple[Any, Any]]


class World(LocalApplication):
    """An application whose tasks may be declared otherwise at each start."""

    def __init__(self) -> None:
        self.one, self.other = Rows(SCHEMA), Rows(SCHEMA)
        self.two = {"one": self.one, "other": self.other}
        super().__init__(*compiled(self.application((PerKey(), self.one)), core.memory()), KEEPING)

    def application(self, *added: tuple[Any, Any], sink: Any = None) -> Application:
        """These tasks and their inputs; the last of them has the sink."""
        app = Application("app", "memory://identity", checkpoint_interval=core.us(10), max_ahead="100000 days")
        for number, (task, inputs) in enumerate(added):
            app.add(task, inputs, sink if number == len(added) - 1 else None)
        return app

    def begin(self, *added: tuple[Any, Any], sink: Any = None, reset: Sequence[str] = ()) -> None:
        self.become(self.application(*added, sink=sink))
        self.start(reset=reset)

    def read(self, *rows: tuple[int, int, int]) -> None:
        """Let these rows come in both sources, and take the steps that are due."""
        for source in (self.one, self.other):
            source.rows += rows
        for _ in range(2):
            for name in self.sources:
                self.turn(name)
            self.steps()

    def refused(self, *added: tuple[Any, Any], sink: Any = None) -> str:
        """The sentence by which a start is refused. It changes nothing."""
        before = self.newest.number
        with pytest.raises(InvalidInputError) as raised:
            self.begin(*added, sink=sink)
        assert self.newest.number == before
        return str(raised.value)

    def as_older(self) -> None:
        """Let the log be as a version wrote it that records nothing of what tasks declare."""
        newest = self.newest
        tasks = {
            name: replace(task, identity={part: value for part, value in task.identity.items() if part != "declared"})
            for name, task in newest.tasks.items()
        }
        self.log.append(replace(newest, number=newest.number + 1, previous=newest.checksum, tasks=tasks))


ROWS = [(5, 1, 3), (6, 2, 4), (15, 1, 0)]
MORE = [(16, 1, 1), (35, 9, 0)]


def some(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """The keys of which something is left."""
    return {key: value for key, value in state.items() if value}


def fed(world: World, sums: Any, inputs: Any) -> Added:
    return [(PerKey(), world.one), (sums, inputs)]


@pytest.mark.parametrize("before", ["once", None])
def test_a_task_that_adds_up_another_column_of_changes_is_built_again(before: str | None) -> None:
    world, changes = World(), Input(Changes("PerKey"))
    world.begin(*fed(world, ByCode() if before is None else Sums(), changes))
    world.read(*ROWS)
    assert world.state("Sums") == {(1,): 3, (2,): 4}
    # The same goes on.
    world.begin(*fed(world, ByCode() if before is None else Sums(), changes))
    assert graph.due(world.newest) == []
    world.begin(*fed(world, Sums("tenfold"), changes))
    world.read(*MORE)
    assert some(world.state("Sums")) == {(1,): 40, (2,): 40}
    # A place of its own is needed, as at every rebuild.
    world.begin(*fed(world, Sums("tenfold"), changes), sink=print)
    said = world.refused(*fed(world, Sums("once"), changes), sink=print)
    assert said.startswith("task=Sums is rebuilt, and sink='function print' has what it was before; give it another")


@pytest.mark.parametrize(
    "other",
    [{"key": "tenfold"}, {"value": "tenfold"}, {"batch": lambda batch: batch["tenfold"]}],
    ids=["key", "value", "batch"],
)
def test_a_task_on_several_changes_is_built_again_if_one_declares_otherwise(other: dict[str, Any]) -> None:
    def inputs(**declared: Any) -> dict[str, Any]:
        return {"a": Input(Changes("PerKey"), key="once", **declared), "b": Changes("PerKey")}

    world = World()
    world.begin(*fed(world, Sums(), inputs()))
    world.read(*ROWS)
    # By key, and by what the sum is.
    assert world.state("Sums") == {(1,): 3, (2,): 4, (3,): 3, (4,): 4}
    world.begin(*fed(world, Sums(), {**inputs(), "a": Input(Changes("PerKey"), **{"key": "once", **other})}))
    world.read(*MORE)
    by_sum = {(40,): 8} if "key" in other else {(4,): 80}
    wanted = {(1,): 4, (2,): 4}
    assert some(world.state("Sums")) == wanted | by_sum


def test_what_an_older_version_has_not_recorded_is_no_difference_and_recorded_from_then_on() -> None:
    world = World()
    inputs = {"a": Input(Changes("PerKey"), key="once"), "b": Changes("PerKey")}
    tasks = [*fed(world, Sums(), inputs), (InOrder(), {**world.two, "other": Input(world.other, key="n")})]
    world.begin(*tasks)
    world.read(*ROWS)
    written, state = {name: task.identity for name, task in world.newest.tasks.items()}, world.state("Sums")
    assert written["Sums"]["declared"] == {
        "a": {"key": ["once"], "value": "once"},
        "b": {"key": ["k"], "value": "once"},
    }
    assert written["InOrder.messages"]["declared"] == {"one": {"key": ["k"]}, "other": {"key": ["n"]}}
    assert {name for name, identity in written.items() if "declared" in identity} == {"Sums", "InOrder.messages"}
    world.as_older()
    world.begin(*tasks)
    assert graph.due(world.newest) == []
    assert world.state("Sums") == state
    assert {name: task.identity for name, task in world.newest.tasks.items()} == written


def test_what_is_added_of_a_source_may_become_another_column() -> None:
    world = World()
    world.begin((Sums("n"), world.one))
    world.read(*ROWS)
    world.begin((Sums("k"), world.one))
    world.read(*MORE)
    # What was above the clock is read again.
    assert world.state("Sums") == {(1,): 3 + 1 + 1, (2,): 4}


def test_a_task_that_a_source_feeds_too_is_refused_if_changes_are_declared_otherwise() -> None:
    world = World()
    own = {"own": Input(world.other, value="n"), "sums": Changes("PerKey")}
    world.begin(*fed(world, Sums(), own))
    world.read(*ROWS)
    assert world.refused(*fed(world, Sums("tenfold"), own)) == (
        "task=Sums can't go on, as input='sums' had value='once' when the store was written, "
        f"and has value='tenfold' now. {core.ways('Sums')}"
    )
    # What comes of the source is not taken back.
    world.begin(*fed(world, Sums(), {**own, "own": Input(world.other, value="k")}))
    said = world.refused(*fed(world, Sums(), {**own, "own": Input(world.other, key="n", value="k")}))
    assert said.startswith(
        "task=Sums: input='own' had key='k' when the store was written, and has key='n' now. Name it"
    )


def test_a_task_that_has_taken_windows_is_refused_if_its_changes_are_declared_otherwise() -> None:
    world, windows = World(), {"windows": Input(ClosedWindows("PerTen"), value="total")}
    tasks: Added = [(PerKey(), world.one), (PerTen(), world.other)]
    world.begin(*tasks, (Sums(), {"sums": Changes("PerKey"), **windows}))
    world.read(*ROWS, *MORE)
    assert world.refused(*tasks, (Sums("tenfold"), {"sums": Changes("PerKey"), **windows})).startswith(
        "task=Sums can't go on, as input='sums' had value='once' when the store was written, and has value='tenfold' now, and "
        "what it has taken can't be given to it again."
    )
    other = {"windows": Input(ClosedWindows("PerTen"), key="total", value="total")}
    assert world.refused(*tasks, (Sums(), {"sums": Changes("PerKey"), **other})).startswith(
        "task=Sums: input='windows' had key='k' when the store was written, and has key='total' now."
    )


@pytest.mark.parametrize(
    "task", [InOrder(), AsOfJoin("one", "other", key="k", name="Joined"), Sums("n")], ids=["ordered", "as of", "summed"]
)
def test_another_key_of_one_of_several_inputs_is_refused(task: Any) -> None:
    world = World()
    by_n = {**world.two, "other": Input(world.other, key="n")}
    world.begin((task, world.two))
    world.read(*ROWS)
    said = f"task={task.task_name}: input='other' had key='k' when the store was written, and has key='n' now."
    assert world.refused((task, by_n)) == f"{said} {core.ways(task.task_name)}"
    if isinstance(task, InOrderTask):
        names = [name_of_messages(task.task_name), task.task_name, name_of_rows(task.task_name)]
        world.begin((task, by_n), reset=[name for name in names if name in world.plans])
    else:
        world.begin((task, by_n), reset=[task.task_name])


def test_an_input_that_comes_is_no_difference_and_an_only_one_keeps_its_key_beside_others() -> None:
    world = World()
    world.begin((Sums("n"), world.one))
    world.read(*ROWS)
    said = "task=Sums: it had key='k' when the store was written, and has key='n' now."
    by_n = {"": Input(world.one, key="n"), "other": world.other}
    assert world.refused((Sums("n"), by_n)).startswith(said)
    world.begin((Sums("n"), {"": world.one, "other": Input(world.other, key="n")}))
    world.read(*MORE)
    assert world.refused((Sums("n"), by_n)).startswith(said)


def test_sides_of_a_join_are_recorded_by_the_first_start_after_an_older_version() -> None:
    def join(left: str, right: str) -> AsOfJoin:
        return AsOfJoin(left, right, key="k", name="Joined")

    world = World()
    world.begin((join("one", "other"), world.two))
    world.read(*ROWS)
    world.as_older()
    world.begin((join("one", "other"), world.two))
    assert "input='other' was the right side" in world.refused((join("other", "one"), world.two))
    world.begin((join("other", "one"), world.two), reset=["Joined.messages", "Joined", "Joined.rows"])


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (InOrder(), InOrder(core.us(7)), "the store was written with ttl=none, the task has 7 microseconds."),
        (InOrder("2 days"), InOrder(), "the store was written with ttl=2 days, the task has none."),
        (
            AsOfJoin("one", "other", key="k", tolerance="5 seconds", name="InOrder"),
            AsOfJoin("one", "other", key="k", tolerance="1 minute", name="InOrder"),
            "the store was written with tolerance=5 seconds, the task has 1 minute.",
        ),
        (
            IntervalJoin("one", "other", "5 seconds", "0 seconds", key="k", name="InOrder"),
            IntervalJoin("one", "other", "5 seconds", "1 minute", key="k", name="InOrder"),
            "rows waited for 5 seconds after the clock had passed them when the store was written, and wait for 1 minute by "
            "the bounds that the join has now.",
        ),
    ],
)
def test_what_bounds_a_state_in_time_is_refused_in_the_words_of_users(before: Any, now: Any, said: str) -> None:
    world = World()
    world.begin((before, world.two))
    world.read(*ROWS)
    assert world.refused((now, world.two)) == f"task=InOrder: {said} {core.ways('InOrder')}"


def test_what_feeds_a_task_is_refused_in_the_words_of_users() -> None:
    class Plain(Sums):
        name = "InOrder"

    world = World()
    world.begin((InOrder(), world.one))
    world.read(*ROWS)
    assert world.refused((Plain("n"), world.one)) == (
        f"task=InOrder: the store has an ordered task or join of this name, and it is none now. {core.ways('InOrder')}"
    )
    world = World()
    world.begin((Plain("n"), world.one))
    world.read(*ROWS)
    assert world.refused((InOrder(), world.one)) == (
        "task=InOrder can't go on, as the store has no ordered task or join of this name, and "
        f"it is one now. {core.ways('InOrder')}"
    )
    world = World()
    world.begin(*fed(world, Sums(), {"sums": Changes("PerKey", every=core.us(10))}))
    world.read(*ROWS)
    assert world.refused((PerKey(), world.one), (Sums("n"), world.other)).startswith(
        'task=Sums: it was fed by sums=Changes("PerKey", every="10 microseconds") when the store was written, and is fed by no '
        "other task now. Name it in"
    )
