"""A thread that looks at the log when it is woken, and every so often, so that no other thread waits for what it does."""

from __future__ import annotations

import threading
from collections.abc import Callable


class LogWorker:
    """A thread that calls `look` when it is woken, and after `every` seconds in which it was not, until it is stopped.

    The first call comes when the worker is first woken, or after `every` seconds. No two calls run at a time. It can be started
    again after it was stopped.

    Args:
        name: The name of the thread.
        look: Looks at the log, and does what is due. It handles its own errors: one that it raises ends the thread.
        every: Seconds from the end of a call to the next one, or a function that returns them at the end of each.
        looks_last: If True, it is called once more after a stop was asked for.
    """

    def __init__(
        self, name: str, look: Callable[[], object], every: float | Callable[[], float], looks_last: bool = False
    ) -> None:
        self._name, self._look, self._every, self._looks_last = name, look, every, looks_last
        self._woken = threading.Event()
        self._is_stopping = False
        self._thread = threading.Thread()

    def start(self) -> None:
        """Start the thread."""
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether it was started, and its thread has not ended since."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """Let it look at the log now: something was committed."""
        self._woken.set()

    def stop(self, patience: float | None = None) -> bool:
        """Let it look no more, wait `patience` seconds for a call that is under way, and return whether it has ended."""
        self._is_stopping = True
        self._woken.set()
        if self.is_alive:
            self._thread.join(patience)
        return not self.is_alive

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._woken.wait(self._every() if callable(self._every) else self._every)
            self._woken.clear()
            # A stop that is asked for from here on has another turn.
            is_last = self._is_stopping
            if not is_last or self._looks_last:
                self._look()
