"""Drivers and readers that are paused at any request to the log, for longer than entries stay, and a check of each look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING
from unittest import mock

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
    """Check that each look at the log of a world sees what was written before it."""
    look = Log.newest

    def newest(log: Log) -> Entry | None:
        is_of_world = isinstance(log.files, PlainFiles) and log.files.disk is world.disk
        before = world.oracle.newest if is_of_world and log.application == world.oracle.application else None
        entry = look(log)
        is_newest = before is None or (entry is not None and entry.number >= before.number)
        must(is_newest, "a look at the log sees what was written before it", entry=entry and entry.number)
        return entry

    with mock.patch.object(Log, "newest", newest):
        yield
