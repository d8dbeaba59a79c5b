"""Drivers and readers that are paused at any request to the log, for longer than entries stay, and a check of each look."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING
from unittest import mock
from weakref import WeakKeyDictionary

from greenlet import getcurrent

from persistent_state.errors import StateError
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from tests.simulation.files import PlainFiles
from tests.simulation.oracle import must

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass(frozen=True)
class Pauses:
    """The pauses of a world. Its machines may stop with all their clocks, so that no process knows that time has passed."""

    rng: Random

    def before(self, world: World, path: str) -> None:
        """Pause the thread that asks for this file or folder, some of the time, if it is of the log."""
        if "/log" in path and self.rng.random() < 0.08:
            thread = getcurrent().thread
            thread.wake = max(thread.wake, world.step + self.rng.choice([20, 100, 400]))

    def follow(self, world: World, files: Files, application: str) -> None:
        """Look at the newest entry again and again, as a reader does that goes along with a run."""
        log = Log(files, application)
        for _ in range(15):
            with suppress(StateError, FileNotFoundError):
                log.newest()
            thread = getcurrent().thread
            thread.wake = world.step + self.rng.choice([1, 10, 40])
            world.pause(None)


@contextmanager
def checked_looks(world: World) -> Iterator[None]:
    """Check that each look at the log of a world sees what was written before it.

    One that may be older sees what was written that long before it, and all that its own driver has seen.
    """
    look = Log.newest
    times, numbers, own = list[float](), [0], WeakKeyDictionary[Log, int]()

    def newest(log: Log, within: float = 0.0) -> Entry | None:
        is_of_world = isinstance(log.files, PlainFiles) and log.files.disk is world.disk
        before = world.oracle.newest if is_of_world and log.application == world.oracle.application else None
        if before is None:
            return look(log, within)
        times.append(world.now)
        numbers.append(before.number)
        least = max(numbers[bisect_right(times, world.now - within)], own.get(log, 0))
        entry = look(log, within)
        is_newest = entry is not None and entry.number >= least
        must(is_newest, "a look at the log sees what was written before it", entry=entry and entry.number)
        own[log] = max(own.get(log, 0), entry.number if entry else 0)
        return entry

    with mock.patch.object(Log, "newest", newest):
        yield
