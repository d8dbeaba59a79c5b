"""The states a task can keep: what users name in `persistent_state()` and are handed in `process_message`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pyarrow as pa

from monoids import Aggregator, Monoid, Summary
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import Duration
from persistent_state.windows import SessionWindow, SlidingWindow, TimeToLive, Windowing, length

T = TypeVar("T")


class PersistentState(ABC, Generic[T]):
    """One monoid value per key, updated at event times. A task calls only `get` and `update`."""

    @property
    @abstractmethod
    def monoid(self) -> Monoid[T]:
        """The monoid of the values."""

    @abstractmethod
    def update(self, timestamp: int, value: T | None) -> None:
        """Add a value at a message's timestamp (microseconds UTC). None is no update.

        It is an item, and prepared, where the state is given as an Aggregator.
        """

    @abstractmethod
    def get(self) -> T:
        """The fold of everything of this key processed so far, above the checkpoint clock too.

        Raises:
            InvalidInputError: the task does not say `reads_state = True`.
        """


class KeptState(PersistentState[T]):
    """What `NonWindowState` and `WindowState` have in common: a monoid, and how its values are prepared and presented.

    Given an Aggregator, its monoid is the state's, updates are items that it prepares, and outputs show what it presents. Only
    the monoid and what bounds it in time are the state's identity: what prepares and presents may change from start to start.

    `aggregator` is what presents values in outputs: the one that was given, or a Summary's own; None: they are shown as they
    are. `windowing` is what bounds values in time, if anything does.
    """

    def __init__(self, monoid: Monoid[T] | Aggregator[Any, T, Any], windowing: Windowing | None) -> None:
        aggregator = monoid if isinstance(monoid, Aggregator) else None
        own = monoid if aggregator is None else aggregator.monoid
        if not isinstance(own, Monoid):
            raise InvalidInputError(
                f"{type(self).__name__}({monoid!r}) is given no monoid; give an instance, such as monoids.Sum()."
            )
        if aggregator is None and hasattr(own, "present") and not isinstance(own, Summary):
            raise InvalidInputError(
                f"{type(self).__name__}({monoid!r}): the present of {type(own).__name__} would never be called, as it is no "
                "Summary; make it a subclass of Summary, or give the state an Aggregator with this present."
            )
        self._monoid = own
        self.windowing = windowing
        self._prepare = None if aggregator is None else aggregator.prepare
        self.aggregator = own.aggregator if isinstance(own, Summary) and aggregator is None else aggregator

    @property
    def monoid(self) -> Monoid[T]:
        return self._monoid

    def update(self, timestamp: int, value: T | None) -> None:
        raise NotImplementedError("A state is updated through the one handed to process_message.")

    def get(self) -> T:
        return self._monoid.zero

    @property
    def prepare(self) -> Callable[[Any], T] | None:
        """What makes a value of an update, which is then an item; None where updates are values."""
        return self._prepare

    @property
    def presented(self) -> pa.DataType:
        """The Arrow type of what outputs show of a value.

        Raises:
            InvalidInputError: it is not known.
        """
        found = self._monoid.type if self.aggregator is None else self.aggregator.type
        if found is None:
            raise InvalidInputError(
                f"{type(self).__name__}({self._monoid!r}): the Arrow type of what is presented is not known; "
                "give it, as type= of the Aggregator or presented of the Summary."
            )
        return found

    def present(self, column: pa.Array) -> pa.Array:
        """What outputs show of each value of a column of the monoid's type; null of null.

        It is what an Aggregator or a Summary presents, and the value itself of any other monoid.

        Raises:
            MonoidError: the type is not known, or is not that of what is presented.
        """
        return column if self.aggregator is None else self.aggregator.present_column(column)

    def identity(self) -> dict[str, Any]:
        """What a store must have been written with to be this state."""
        window = {} if self.windowing is None else {"window": self.windowing.identity()}
        return {"state": type(self).__name__, "monoid": self._monoid.identity, **window}


class NonWindowState(KeptState[T]):
    """One monoid value per key, over all time, or until the key has had no message for longer than `ttl`.

    The state at clock T holds every on-time update with timestamp < T, once. With a `ttl`, such as "30 days" or a timedelta, it
    holds those since the last gap between two messages of the key that is longer, and is zero if the newest is older than
    T - ttl: what it is depends on timestamps only. What has expired takes no room.

    Raises:
        InvalidInputError: there is no monoid, or the time to live is not longer than nothing.
    """

    def __init__(self, monoid: Monoid[T] | Aggregator[Any, T, Any], ttl: Duration | None = None) -> None:
        super().__init__(monoid, None if ttl is None else TimeToLive(length("ttl", ttl)))


class WindowState(KeptState[T]):
    """One monoid value per key and window of event time: a `TumblingWindow`, a `SlidingWindow` or a `SessionWindow`.

    A window closes at the first checkpoint clock at or above its end, and its value is final: outputs are given each window
    once, when it closes. The state at a clock is that of the windows which are open then and hold a message. What no open
    window needs takes no room.

    Raises:
        InvalidInputError: there is no monoid, or no window.
    """

    def __init__(self, monoid: Monoid[T] | Aggregator[Any, T, Any], window: SlidingWindow | SessionWindow) -> None:
        if not isinstance(window, (SlidingWindow, SessionWindow)):
            raise InvalidInputError(
                f"window={window!r} is not a window; give a TumblingWindow, a SlidingWindow or a SessionWindow."
            )
        super().__init__(monoid, window)
