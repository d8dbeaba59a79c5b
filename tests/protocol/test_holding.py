"""The one sentence on what the global clock waits for is right in each case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import Settings
from persistent_state.formatting import show_clock
from persistent_state.protocol import commits, graph, holding
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.holding import BEHIND, READ, SILENT, STEP, UNHEARD, UNREAD, Holder
from persistent_state.store.entry import Entry
from persistent_state.store.flow_state import SourceState
from tests import core
from tests.local_application import LocalApplication
from tests.protocol.test_graph import Graph
from tests.protocol.test_ordered import World as Ordered
from tests.words import SCHEMA, Words


class World(LocalApplication):
    """Tasks with a column of channels each, and an interval of 10."""

    def __init__(self, *names: str) -> None:
        files, settings = core.memory(), Settings(10, ahead=2**62, delay=3)
        plans = {
            name: core.plan_of(Words(name), SCHEMA, files=files, channel="word", settings=settings) for name in names
        }
        super().__init__(plans)
        self.start()

    def start(self, *wanted: Any, **more: Any) -> Entry:
        entry = super().start(*wanted, **more)
        self.lose()
        return entry

    def read(self, task: str, words: Mapping[str, int], channels: Mapping[str, bool] | None, now: int = 0) -> Entry:
        self.now, self.source(task).channels = now, channels
        return self.play(task, [(at, word) for word, at in words.items()])

    @property
    def held(self) -> Holder | None:
        return holding.holder(self.newest)


def test_a_source_of_which_nothing_was_committed_holds_the_clock() -> None:
    world = World("A", "B")
    assert world.held == Holder("A", "", None, UNREAD, None)
    world.read("A", {"x": 50}, None)
    assert world.held == Holder("B", "", None, UNREAD, None)
    assert holding.sentence(world.held) == (
        "The global clock waits for task=B: nothing of its source was committed since the last start."
    )


def test_a_source_without_any_channel_holds_the_clock() -> None:
    world = World("A")
    world.read("A", {}, None)
    assert world.held == Holder("A", "", None, UNHEARD, None)


def test_the_channel_with_the_least_newest_message_holds_the_clock() -> None:
    world = World("A", "B")
    world.read("A", {"x": 90, "y": 57}, {"x": False, "y": False})
    world.read("B", {"x": 200}, {"x": False})
    assert world.held == Holder("A", "", "y", BEHIND, 57)
    assert holding.sentence(world.held) == (
        f"The global clock waits for task=A: the newest message of channel='y' of its source is of {show_clock(57)}."
    )


def test_a_channel_that_has_never_delivered_holds_the_clock() -> None:
    world = World("A")
    world.read("A", {"x": 90}, {"x": False, "y": False, "z": True})
    assert world.held == Holder("A", "", "y", UNHEARD, None)
    assert holding.sentence(world.held) == (
        "The global clock waits for task=A: channel='y' of its source has never delivered a message; idle_after lets it go."
    )


def test_a_channel_of_which_no_row_counts_is_not_called_silent() -> None:
    world = World("A")
    world.play("A", [(None, "x"), (None, "x")])
    assert world.held is not None
    (why, said) = world.held.why, "its source has delivered 2 rows, none of which counts; see late_rows('A')"
    assert (why, world.held.words, world.held.reason) == (UNHEARD, f"task=A: {said}", f"task=A: {said}")
    # It is unknown of which channel the rows are.
    of_two = replace(world.held, channel="x")
    said = "task=A: channel='x' of its source has never delivered a message that counts; see late_rows('A')"
    assert (of_two.words, of_two.reason) == (f"{said}, or idle_after lets it go", said)


def test_a_channel_that_is_silent_since_the_start_holds_the_clock() -> None:
    world = World("A")
    world.read("A", {"x": 90, "y": 57}, {"x": False, "y": False})
    world.start()
    assert world.held == Holder("A", "", None, UNREAD, None)
    world.read("A", {"x": 120}, {"x": False, "y": False})
    assert world.held == Holder("A", "", "y", SILENT, None)
    assert holding.sentence(world.held) == (
        "The global clock waits for task=A: channel='y' of its source has delivered no message that counts since the last "
        "start; idle_after lets it go."
    )


def test_a_channel_that_is_known_to_be_idle_holds_no_clock() -> None:
    world = World("A")
    channels = {"x": False, "y": False}
    world.read("A", {"x": 90}, channels)
    world.read("A", {"x": 120}, channels, now=50)
    world.read("A", {"x": 150}, channels, now=70)
    assert world.held == Holder("A", "", "y", UNHEARD, None)
    assert holding.holder(world.newest, {"A": Settings(10, idle_after=60)}) == Holder("A", "", "x", BEHIND, 150)
    # The idle time of another task says nothing of its channels.
    assert holding.holder(world.newest, {"B": Settings(10, idle_after=60)}) == Holder("A", "", "y", UNHEARD, None)


def test_all_that_was_read_is_below_the_last_clock() -> None:
    world = World("A")
    world.read("A", {"x": 57}, None)
    commits.close(world.log, world.newest.epoch, now=0, keeping=Keeping())
    assert world.held == Holder("A", "", "x", READ, 57)
    assert holding.sentence(world.held) == (
        "The global clock waits for task=A: its clock is above all that was read of its source; only a newer message moves it."
    )


def test_a_start_that_finds_nothing_new_has_no_silent_channel() -> None:
    world = World("A")
    world.read("A", {"x": 57}, None)
    commits.close(world.log, world.newest.epoch, now=0, keeping=Keeping())
    world.start()
    world.read("A", {}, None)
    assert world.held == Holder("A", "", "x", READ, None)


def test_nothing_holds_the_clock_when_all_channels_have_ended() -> None:
    world = World("A", "B")
    world.read("A", {"x": 57}, {"x": True})
    world.read("B", {"x": 90}, {"x": True})
    assert world.held is None
    assert holding.sentence(None) == "The global clock waits for nothing: all channels have ended or are idle."


def test_a_task_that_is_built_again_holds_the_clock() -> None:
    world = World("A", "B")
    for name in world.plans:
        world.read(name, {"x": 200}, None)
    world.start(rebuild=["B"])
    world.read("A", {"x": 300}, None)
    world.read("B", {"x": 40}, None)
    assert world.held == Holder("B", "", "x", BEHIND, 40)


def test_slow_channels_come_in_the_order_in_which_the_clock_waits_for_them() -> None:
    world = World("A")
    entry = world.read("A", {"x": 100}, None)
    clock = entry.flows["A"].progress.clock
    channels = {
        "far": Channel(clock + 500, 0),
        "ended": Channel(clock + 1, 0, ended=True),
        "idle": Channel(clock - 1, 0),
        "silent": Channel(None, 0, before=clock - 30),
        "unheard": Channel(None, 0),
        "second": Channel(clock + 7, 0),
        "first": Channel(clock + 2, 0),
    }

    def slow(most: int = 9, **state: Channel | None) -> list[tuple[str | None, str]]:
        left = {name: channel for name, channel in {**channels, **state}.items() if channel is not None}
        known = entry.with_flow("A", replace(entry.flows["A"], inputs={"": SourceState(left)}))
        found = holding.slow_channels(known, "A", most)
        assert holding.slowest(known, "A") == found[0]
        return [(each.channel, each.why) for each in found]

    order = [("first", BEHIND), ("second", BEHIND), ("unheard", UNHEARD), ("silent", SILENT), ("far", BEHIND)]
    assert slow() == order
    assert slow(most=2) == order[:2]
    # As the clock goes on, it comes to wait for those that say nothing.
    assert slow(first=None, second=None) == order[2:]
    assert slow(first=None, second=None, unheard=None) == order[3:]
    # Nothing is above the clock.
    left = slow(first=None, second=None, unheard=None, far=None)
    assert left == [("silent", READ), ("idle", READ)]


def test_the_input_is_named_if_there_are_several() -> None:
    world = World("A")
    entry = world.read("A", {"x": 200}, None)
    flow = entry.flows["A"]
    rates = SourceState({"y": Channel(198, 0), "z": Channel(199, 0)})
    held = holding.holder(entry.with_flow("A", replace(flow, inputs={"orders": flow.source, "rates": rates})))
    assert held == Holder("A", "rates", "y", BEHIND, 198)
    assert holding.sentence(held) == (
        f"The global clock waits for task=A: the newest message of channel='y' of input=rates is of {show_clock(198)}."
    )


def test_a_step_that_is_due_holds_the_clock() -> None:
    world = Graph()
    world.start()
    rows = [(5, 1, 10), (65, 2, 20)]
    assert (held := holding.holder(world.newest)) is not None
    assert held.why == UNREAD
    for task in ("PerShop", "Amounts", "PerSlot"):
        world.play(task, rows)
    waited = []
    while due := graph.due(world.newest):
        held = holding.holder(world.newest)
        assert held is not None
        assert (held.why, held.at) == (STEP, 60)
        assert held.task in {step.flow for step in due}
        waited.append(held.task)
        world.turn(held.task)
    assert sorted(waited) == ["PerRegion", "PerTotal", "Slots"]
    assert waited.index("PerRegion") < waited.index("PerTotal")
    assert world.newest.clock == 60
    held = holding.holder(world.newest)
    assert held is not None
    assert (held.why, held.task, held.at) == (BEHIND, "Amounts", 65)


def test_a_step_is_told_with_its_clock() -> None:
    assert holding.sentence(Holder("PerRegion", "", None, STEP, 60)) == (
        f"The global clock waits for task=PerRegion, which has yet to step to {show_clock(60)}."
    )


def test_a_task_in_which_messages_wait_is_named_as_its_user_knows_it() -> None:
    world = Ordered(None)
    world.begin(1)
    held = holding.holder(world.newest)
    assert held == Holder("InJson.messages", "", None, UNHEARD, None, "InJson")
    assert held is not None
    assert held.words == "task=InJson: its source has never delivered a message; idle_after lets it go"


def test_a_channel_whose_messages_can_not_be_read_yet_is_named_with_the_reason() -> None:
    world = World("A")
    entry = world.read("A", {"x": 50, "y": 70}, None)
    held = holding.holder(entry)
    assert held is not None
    assert holding.sentence(holding.among_pending(held, "A", {"x": 3.0})) == (
        "The global clock waits for task=A: messages of channel='x' of its source are in an open transaction, or behind one, "
        "and are read when that ends."
    )
    # Others, of another flow, or of another input.
    assert holding.among_pending(held, "A", {"y": 3.0}) == held
    assert holding.among_pending(held, "B", {"x": 3.0}) == held
    assert holding.among_pending(replace(held, input="more"), "A", {"x": 3.0}) == replace(held, input="more")
    assert holding.among_pending(None, "A", {"x": 3.0}) is None
