"""Derived tasks that closed windows feed beside another task: each clock has all that both gave below it, and no more."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import monoids
from persistent_state import (
    Changes,
    ClosedWindows,
    Message,
    NonWindowState,
    PersistentTask,
    TumblingWindow,
    WindowState,
)
from tests import core
from tests.local_application import LocalApplication, Rows, compiled
from tests.protocol.test_inputs import KEEPING, ORDERS, PerShop, application, per_shop
from tests.soak import soak_or

SLOT, EVERY = 30, 20


class Sums(PerShop):
    """The same under another name."""


class Slots(PersistentTask):
    key, value = "shop", "amount"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(monoids.Sum(), TumblingWindow(core.us(SLOT)))


class Totals(PersistentTask):
    """What all sums, and all slots that have closed, come to, and how many there are."""

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Struct(total=monoids.Sum(), rows=monoids.Count()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([batch["value"], pa.array([1] * len(batch))], names=["total", "rows"])


class Deep(Totals):
    """What the totals, and all slots that have closed, come to: the totals stand a step further down than the slots."""

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        total = batch["total"] if "total" in batch.schema.names else batch["value"]
        return pa.StructArray.from_arrays([total, pa.array([1] * len(batch))], names=["total", "rows"])


class Told(PersistentTask):
    """All that came of a shop, in order."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.List(pa.string()))

    def process_message(self, state: Any, message: Message) -> None:
        what = f"{message['before']} -> {message['after']}" if message.input == "sums" else f"{message['value']}"
        state.update(message.timestamp, [f"{message.input}: {what}"])


class Doubled(Told):
    """The same windows as two inputs."""


class Beside(LocalApplication):
    """Two sources with a task each, and tasks that closed windows feed beside something else."""

    def __init__(self) -> None:
        slots = ClosedWindows("Slots")
        app = application(
            (Sums(), Rows(ORDERS)),
            (Slots(), Rows(ORDERS)),
            (Totals(), {"sums": Changes("Sums"), "slots": slots}),
            (Deep(), {"totals": Changes("Totals"), "slots": slots}),
            (Told(), {"sums": Changes("Sums", every=core.us(EVERY)), "slots": slots}),
            (Doubled(), {"one": slots, "other": slots}),
        )
        super().__init__(*compiled(app, core.memory()), KEEPING, parts=2)

    def steps(self) -> None:
        # The last that can be taken: those that feed it must have come there before, in any order.
        while due := self.due():
            self.turn(due[-1].flow.id)

    def sums(self, clock: int) -> dict[Any, int]:
        return per_shop(self.source("Sums"), clock)

    def closed(self, clock: int) -> dict[tuple[Any, int], int]:
        """The slots that have closed by a clock, by shop and end."""
        found: dict[tuple[Any, int], int] = defaultdict(int)
        for ts, shop, amount in self.source("Slots").rows:
            if (end := ts // SLOT * SLOT + SLOT) <= clock:
                found[(shop,), end] += amount
        return found

    def told(self, clock: int) -> dict[Any, list[str]]:
        """What each shop has come to by a clock: what changed from multiple to multiple, and the slots."""
        events = [(end, 1, shop, f"slots: {amount}") for (shop, end), amount in self.closed(clock).items()]
        for at in range(EVERY, clock + 1, EVERY):
            before, after = self.sums(at - EVERY), self.sums(at)
            events += [
                (at, 0, shop, f"sums: {_shown(before.get(shop))} -> {_shown(sum)}")
                for shop, sum in after.items()
                if before.get(shop) != sum
            ]
        found = defaultdict(list)
        for *_, shop, what in sorted(events):
            found[shop].append(what)
        return dict(found)

    def check(self) -> None:
        entry = self.newest
        for name in ("Totals", "Deep", "Told", "Doubled"):
            for clock in self.clocks_of(name):
                assert self.state(name, clock) == self.wanted(name, clock), (name, clock)
            assert not entry.late_counts_of(name)

    def wanted(self, name: str, clock: int) -> dict[Any, Any]:
        if name == "Told":
            return self.told(clock)
        if name in ("Totals", "Deep"):
            values = [*self.sums(clock).values(), *self.closed(clock).values()]
            if name == "Deep" and values:
                values = [sum(values), *self.closed(clock).values()]
            return {(): {"total": sum(values), "rows": len(values)}} if values else {}
        found = defaultdict(list)
        for (shop, _), amount in sorted(self.closed(clock).items(), key=lambda slot: slot[0][1]):
            found[shop] += [f"one: {amount}", f"other: {amount}"]
        return dict(found)


def _shown(sum: int | None) -> dict[str, int] | None:
    return None if sum is None else {"value": sum}


rows = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 2), st.integers(-2, 2)), min_size=1, max_size=4)
acts = st.one_of(
    st.tuples(st.sampled_from(["Sums", "Slots"]), rows),
    st.sampled_from(["Sums", "Slots", "step", "start"]),
    st.sampled_from(["Sums", "Slots", "step"]),
)


@pytest.mark.soak
@settings(max_examples=soak_or(ci=8, soak=20), deadline=None)
@given(st.lists(acts, max_size=20))
def test_a_task_has_the_windows_and_what_it_has_beside_them_up_to_one_clock(history: list[Any]) -> None:
    world, now = Beside(), {"Sums": 0, "Slots": 0}
    world.start()
    for act in history:
        if act == "start":
            world.start()
        elif act == "step":
            world.steps()
        elif isinstance(act, str):
            world.play(act)
        else:
            name, some = act
            for ahead, shop, amount in some:
                now[name] += ahead
                world.send(name, [(now[name], shop, amount)])
    world.start()
    # The clock moves on as long as sources go on.
    for end in range(max(now.values()) + 100, max(now.values()) + 200, 40):
        for name in now:
            world.play(name, [(end, 1, 1)])
        world.steps()
    entry = world.newest
    assert entry.clock >= max(now.values()) + 100
    assert all(entry.is_at(name, entry.clock) for name in entry.tasks)
