"""An application that is played by hand, without Spark: for the tests of what is told of a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from persistent_state.event_time.clocks import Settings
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from tests import core
from tests.words import SCHEMA, Words


class TwoTasks:
    """An application with the tasks A and B, a column of channels, an output of A, and an interval of 10 seconds."""

    def __init__(self, outputs: tuple[str, ...] = ("sink",), files: Files | None = None, now: int = 0) -> None:
        self.log = Log(files or core.memory(), "app")
        settings = Settings(10_000_000, ahead=2**62)
        self.plans = {
            name: core.plan_of(Words(name), SCHEMA, files=self.log.files, channel="word", settings=settings)
            for name in "AB"
        }
        self.plans["A"] = replace(self.plans["A"], outputs=outputs)
        self.start(now=now)

    def start(self, *names: str, now: int = 0) -> None:
        core.start(self.log, [self.plans[name] for name in names or self.plans], now=now)

    def play(self, task: str, words: Mapping[str, float], channels: Iterable[str], now: int = 0) -> None:
        rows = [{"ts": int(at * 1_000_000), "word": word} for word, at in words.items()]
        listed = dict.fromkeys(channels, False)
        core.play(self.log, self.plans[task], pa.RecordBatch.from_pylist(rows, SCHEMA), channels=listed, now=now)
