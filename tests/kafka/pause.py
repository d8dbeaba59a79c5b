"""A thread that waits before one of its steps, as one that is thought dead does, until a test lets it go on."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from tests.waiting import PATIENCE


@dataclass
class Pause:
    """Where the one thread that is `mine` waits: before its step of this number, until another lets it go on."""

    step: int
    mine: threading.local = field(default_factory=threading.local)
    waits: threading.Event = field(default_factory=threading.Event)
    goes_on: threading.Event = field(default_factory=threading.Event)

    def come_to(self, name: str) -> None:
        if hasattr(self.mine, "steps") and next(self.mine.steps) == self.step:
            self.waits.set()
            assert self.goes_on.wait(PATIENCE)
