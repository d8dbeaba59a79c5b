"""An application that is played by hand, without Spark: for the tests of what is told of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from persistent_state.event_time.clocks import Settings
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from tests import core
from tests.local_application import LocalApplication
from tests.words import SCHEMA, Words


class TwoTasks(LocalApplication):
    """An application with the tasks A and B, a column of channels, an output of A, and an interval of 10 seconds."""

    def __init__(self, outputs: tuple[str, ...] = ("sink",), files: Files | None = None, now: int = 0) -> None:
        files, settings = files or core.memory(), Settings(10_000_000, ahead=2**62)
        plans = {
            name: core.plan_of(Words(name), SCHEMA, files=files, channel="word", settings=settings) for name in "AB"
        }
        super().__init__(plans | {"A": replace(plans["A"], outputs=outputs)})
        self.start(now=now)

    def start(self, *names: str, now: int = 0, **more: Any) -> Entry:
        """Start, without what was read above the global clock: only what is sent from here on comes."""
        self.now = now
        entry = super().start(*names, **more)
        self.lose()
        return entry

    def read(self, task: str, words: Mapping[str, float], channels: Iterable[str], now: int = 0) -> None:
        """Read these words, each of the time in seconds, of a source that has these channels."""
        self.now, self.source(task).channels = now, dict.fromkeys(channels, False)
        self.play(task, [(int(at * 1_000_000), word) for word, at in words.items()])
