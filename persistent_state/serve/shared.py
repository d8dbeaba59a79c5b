"""Share an answer of the store between all who ask for it at about the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

AGE = 1.0
"""The seconds for which an answer serves everybody who asks."""


class Shared(Generic[T]):
    """An answer that is asked for when it is wanted, and not more often than once in `AGE` seconds.

    A caller that comes while it is asked for waits for it. A call that raises is no answer: the next one asks again.

    Args:
        ask: Returns the answer.
        seconds: A clock that does not go back.
    """

    def __init__(self, ask: Callable[[], T], seconds: Callable[[], float]) -> None:
        self._ask, self._seconds, self._lock = ask, seconds, threading.Lock()
        self._answer: T
        self._until = float("-inf")

    def get(self) -> T:
        """Return the answer of now, or of a moment ago."""
        with self._lock:
            if self._seconds() >= self._until:
                self._answer = self._ask()
                self._until = self._seconds() + AGE
            return self._answer
