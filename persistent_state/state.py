"""States that a task can keep: `persistent_state()` returns one, and `process_message` is handed one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import pyarrow as pa

from monoids import Aggregator, Monoid, MonoidError, Summary
from persistent_state.errors import InvalidInputError, at_definition
from persistent_state.event_time.durations import Duration
from persistent_state.windows import SessionWindow, SlidingWindow, TimeToLive, Windowing, length

T = TypeVar("T")


class PersistentState(ABC, Generic[T]):
    """One monoid value per key, updated at event times. A task calls only `get` and `update`.

    Example:
        >>> from persistent_state import PersistentTask
        >>> class WordCount(PersistentTask):
        ...     key = "word"
        ...
        ...     def persistent_state(self):
        ...         return NonWindowState(Sum())
        ...
        ...     def process_message(self, state, message):
        ...         state.update(message.timestamp, 1)
    """

    __slots__ = ()

    @property
    @abstractmethod
    def monoid(self) -> Monoid[T]:
        """The monoid of the values."""

    @abstractmethod
    def update(self, timestamp: int, value: T | None) -> None:
        """Add a value to the state.

        Args:
            timestamp: The message's timestamp in microseconds UTC.
            value: A value of the monoid. It is an item, which the Aggregator prepares, if the state was given an Aggregator.
                None is no update. It is taken as it is now: what you do later with a list, dictionary or set changes nothing.
        """

    @abstractmethod
    def get(self) -> T:
        """Return the fold of the updates of the key so far, as far as they go together with the message in hand.

        So far are all messages of earlier micro-batches, those above the checkpoint clock too, and those of this micro-batch
        that are before the message in time (then by channel and position), with the message's own updates. These of them count:

        - all, of a `NonWindowState` without a `ttl`;
        - those of the life that the message is in, of a `NonWindowState` with a `ttl`. What has expired at the message's
          timestamp does not count, and neither does a later life that the message does not reach;
        - by window, those of each window that the message is in, of a `WindowState`.

        A `WindowState` gives a mapping for each kind of window, though a message is in one tumbling window only: the code that
        reads a value says of which window it is, and can't take it for the value of all. The key of a window is its start and
        end in microseconds UTC, as in what `run_local` returns. Each window that the message is in is there, the earliest
        first; a message in a gap between windows is in none. The window of a session is the session as it is with this message:
        a later message may still make it longer.

        The value is not a function of the messages alone: after a restart micro-batches are cut elsewhere, and what was so far
        may be other messages. Use it to notify someone, not to compute updates.

        Returns:
            A value of the monoid, its zero if there is no update yet; of a `WindowState` a dictionary of such values.

        Raises:
            InvalidInputError: The task does not set `reads_state = True`.

        Example:
            >>> from monoids import Count
            >>> from persistent_state import Message, PersistentTask, TumblingWindow, run_local
            >>> class Logins(PersistentTask):
            ...     key, reads_state = "user", True
            ...
            ...     def persistent_state(self):
            ...         return WindowState(Count(), TumblingWindow("1 minute"))
            ...
            ...     def process_message(self, state, message):
            ...         for (start, end), count in state.get().items():
            ...             print(message["user"], "before:", count, "since", start)
            ...         state.update(message.timestamp, 1)
            >>> ran = run_local(Logins(), [Message(second * 1_000_000, {"user": "ann"}) for second in (58, 59, 61)])
            ann before: 0 since 0
            ann before: 1 since 0
            ann before: 0 since 60000000
        """


class KeptState(PersistentState[T]):
    """The common base of `NonWindowState` and `WindowState`: a monoid, and how its values are prepared and presented.

    A state that is given an Aggregator has its monoid, prepares updates by it and presents values by it in outputs. Only the
    monoid and the windows or time to live are the state's identity: an Aggregator may change from start to start.

    Attributes:
        aggregator: What presents values in outputs: the Aggregator that was given, or a Summary's own. None if outputs show
            the values as they are.
        windowing: The windows or the time to live of the values; None if there is neither.
    """

    def __init__(self, monoid: Monoid[T] | Aggregator[Any, T, Any], windowing: Windowing | None) -> None:
        aggregator = monoid if isinstance(monoid, Aggregator) else None
        own = monoid if aggregator is None else aggregator.monoid
        if not isinstance(own, Monoid):
            raise InvalidInputError(
                f"{type(self).__name__}({monoid!r}) has no monoid; give it an instance, such as monoids.Sum()."
            )
        if aggregator is None and hasattr(own, "present") and not isinstance(own, Summary):
            raise InvalidInputError(
                f"{type(self).__name__}({monoid!r}): the present of {type(own).__name__} would never be called, as it is not a "
                "Summary; make it a subclass of Summary, or give the state an Aggregator with this present."
            )
        _check_monoid(own)
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
        """The function that makes a value of an update that is an item; None if updates are values."""
        return self._prepare

    @property
    def presented(self) -> pa.DataType:
        """The Arrow type of a value in outputs.

        Raises:
            InvalidInputError: The type is not known.
        """
        found = self._monoid.type if self.aggregator is None else self.aggregator.type
        if found is None:
            raise InvalidInputError(
                f"{type(self).__name__}({self._monoid!r}): the Arrow type of what is presented is not known; "
                "give it, as type= of the Aggregator or presented of the Summary."
            )
        return found

    def present(self, column: pa.Array) -> pa.Array:
        """Present each value of a column as outputs show it.

        An Aggregator or a Summary presents the values. Values of any other monoid are shown as they are.

        Args:
            column: An array of the monoid's Arrow type.

        Returns:
            An array of the type `presented`; null where `column` is null.

        Raises:
            MonoidError: The type of what is presented is not known, or is another one.
        """
        return column if self.aggregator is None else self.aggregator.present_column(column)

    def identity(self) -> dict[str, Any]:
        """Return what the log records of the state: a store that was written with another identity is refused."""
        window = {} if self.windowing is None else {"window": self.windowing.identity()}
        return {"state": type(self).__name__, "monoid": self._monoid.identity, **window}


def _check_monoid(monoid: Monoid[Any]) -> None:
    """Refuse a monoid that has no Arrow type, or whose `plus` returns nothing.

    Raises:
        InvalidInputError: It is one.
    """
    try:
        type: object = monoid.type
    except MonoidError:
        raise InvalidInputError(
            f"monoid={monoid.name} has no type; give it the Arrow type of its values, such as type = pa.int64()."
        ) from None
    if not isinstance(type, pa.DataType):
        kind = "a text" if isinstance(type, str) else "no Arrow type"
        raise InvalidInputError(
            f"monoid={monoid.name} has type={type!r}, which is {kind}; give an Arrow type, such as type = pa.int64()."
        )
    zero = monoid.zero
    # None is the zero of some, and then a sum as well.
    if zero is None:
        return
    both: object = zero
    # Another error of the user's code comes with the messages that meet it.
    with suppress(Exception):
        both = monoid.plus(zero, zero)
    if both is None:
        raise InvalidInputError(
            f"monoid={monoid.name}: plus{at_definition(monoid.plus)} returns None, as of its zero and its zero; return the sum."
        )


class NonWindowState(KeptState[T]):
    """One monoid value per key, over all time, or until the key has had no message for longer than `ttl`.

    The state at clock T holds every on-time update with timestamp < T, once. With a `ttl`, it holds the updates since the last
    gap between two messages of the key that is longer than `ttl`, and is zero if the newest message is older than T - ttl. So
    it depends on timestamps only. Expired values take no room.

    Args:
        monoid: How values are added, such as `monoids.Sum()`; or an Aggregator, which also prepares and presents values.
        ttl: The time to live: a text such as "30 days", or a `timedelta`. By default values are kept for ever.

    Raises:
        InvalidInputError: `monoid` is not a monoid, or the time to live is not longer than 0.

    Example:
        >>> from monoids import Sum
        >>> NonWindowState(Sum(), ttl="30 days").monoid
        Sum(int64)
    """

    def __init__(self, monoid: Monoid[T] | Aggregator[Any, T, Any], ttl: Duration | None = None) -> None:
        if isinstance(ttl, (SlidingWindow, SessionWindow)):
            raise InvalidInputError(f"NonWindowState(..., {ttl!r}) has no windows; write WindowState(..., {ttl!r}).")
        super().__init__(monoid, None if ttl is None else TimeToLive(length("ttl", ttl)))


class WindowState(KeptState[T]):
    """One monoid value per key and window of event time: a `TumblingWindow`, a `SlidingWindow` or a `SessionWindow`.

    A window closes at the first checkpoint clock at or above its end, and its value is final: outputs are given each window
    once, when it closes. The state at a clock has the windows that are open then and hold a message. Messages that no open
    window needs take no room.

    Args:
        monoid: How values are added, such as `monoids.Sum()`; or an Aggregator, which also prepares and presents values.
        window: The windows of event time.

    Raises:
        InvalidInputError: `monoid` is not a monoid, or `window` is not a window.

    Example:
        >>> from monoids import Average
        >>> from persistent_state import SlidingWindow
        >>> WindowState(Average(), SlidingWindow("3 hours", "1 hour")).windowing
        SlidingWindow('3 hours', '1 hour')
    """

    def __init__(self, monoid: Monoid[T] | Aggregator[Any, T, Any], window: SlidingWindow | SessionWindow) -> None:
        if not isinstance(window, (SlidingWindow, SessionWindow)):
            raise InvalidInputError(
                f"window={window!r} is not a window; give a TumblingWindow, a SlidingWindow or a SessionWindow."
            )
        super().__init__(monoid, window)

    def get(self) -> dict[tuple[int, int], T]:  # type: ignore[override]
        return {}
