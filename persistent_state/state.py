"""The states a task can keep: what users name in `persistent_state()` and are handed in `process_message`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from monoids import Monoid
from persistent_state.errors import InvalidInput

T = TypeVar("T")


class PersistentState(ABC, Generic[T]):
    """One monoid value per key, updated at event times. A task calls only `get` and `update`."""

    @property
    @abstractmethod
    def monoid(self) -> Monoid[T]:
        """The monoid of the values."""

    @abstractmethod
    def update(self, timestamp: int, value: T | None) -> None:
        """Add a value at a message's timestamp (microseconds UTC). None is no update."""

    @abstractmethod
    def get(self) -> T:
        """The fold of everything of this key processed so far, above the checkpoint clock too.

        Raises:
            InvalidInput: the task does not say `reads_state = True`.
        """


class NonWindowState(PersistentState[T]):
    """One monoid value per key, over all time.

    The state at clock T holds every on-time update with timestamp < T, once.
    """

    def __init__(self, monoid: Monoid[T]) -> None:
        if not isinstance(monoid, Monoid):
            raise InvalidInput(
                f"NonWindowState({monoid!r}) is given no monoid; give an instance, such as monoids.Sum()."
            )
        self._monoid = monoid

    @property
    def monoid(self) -> Monoid[T]:
        return self._monoid

    def update(self, timestamp: int, value: T | None) -> None:
        raise NotImplementedError("A state is updated through the one handed to process_message.")

    def get(self) -> T:
        return self._monoid.zero

    def identity(self) -> dict[str, Any]:
        """What a store must have been written with to be this state."""
        return {"state": "NonWindowState", "monoid": self._monoid.identity}
