"""An entry names what a start has to read again, and no more."""

from __future__ import annotations

from unittest import mock

from persistent_state.event_time import positions
from tests.protocol.test_global_clock import World


def test_a_task_that_is_ahead_remembers_what_a_start_at_the_global_clock_reads_again() -> None:
    world = World(2, interval=10, delay=0)
    world.read(1, [5])
    for stamp in (5, 15, 25, 45):
        world.read(0, [stamp])
    world.read(1, [21])
    assert (world.entry.clock, world.entry.flow_of("a").progress.clock) == (20, 40)
    assert world.start().flow_of("a").source.positions[""].next == 2


def test_what_no_start_reads_again_is_not_joined_with_what_it_does() -> None:
    world = World(2, interval=10, delay=0)
    with mock.patch.object(positions, "MOST_SPANS", 3):
        world.read(1, [5])
        for stamp in (5, 15, 25):
            world.read(0, [stamp])
        for stamp in (15, 25, 35):
            world.read(1, [stamp])
        world.read(0, [35])
    assert world.entry.clock == 30
    assert world.start().flow_of("a").source.positions[""].next == 3
