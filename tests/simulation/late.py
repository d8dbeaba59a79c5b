"""Drivers that stop just before they write to a sink: what they hold lands when the sink has followed a rewind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from persistent_state.errors import FencedError

if TYPE_CHECKING:
    from tests.simulation.sinks import WorldSink
    from tests.simulation.world import World

LONGEST = 1000
"""The steps after which a driver that was not killed meanwhile goes on."""


@dataclass(frozen=True)
class Held:
    """What a driver of a timeline is about to write to a sink."""

    sink: WorldSink
    timeline: int
    clock: int
    act: Callable[[], None]


@dataclass
class Writes:
    """The writes that are held in a world."""

    rng: Random
    held: list[Held] = field(default_factory=list)

    def hold(self, world: World, sink: WorldSink, timeline: int, clock: int, act: Callable[[], None]) -> None:
        """Have the driver stop now, about half of the time. If it is killed meanwhile, what it holds stays."""
        if self.rng.random() < 0.5:
            held = Held(sink, timeline, clock, act)
            self.held.append(held)
            end = world.step + self.rng.choice([100, LONGEST])
            while world.step < end and sink.timeline <= timeline:
                world._nap(10)
            if held in self.held:
                self.held.remove(held)

    def land(self, world: World) -> None:
        """Write what was held for a sink that has gone back since, at a moment of its own."""
        for held in [held for held in self.held if held.sink.timeline > held.timeline]:
            if self.rng.random() < 0.1:
                self.held.remove(held)
                is_new = held.clock > held.sink.applied
                world.oracle.happened["a write landed after its sink went back"] += is_new
                world.note(f"{held.sink.task} {held.sink.output} {held.clock} lands late")
                with suppress(FencedError):
                    held.act()
