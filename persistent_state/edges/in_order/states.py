"""The part of an ordered task that has the states of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import pyarrow as pa

from persistent_state.edges.in_order.part import OrderedPart
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import show_duration
from persistent_state.ordered import InOrderTask, OrderedTask
from persistent_state.partials.newest import Newest
from persistent_state.state import KeptState
from persistent_state.windows import UntilReplaced, length

STATE = "kept state"
"""The column of what a step makes that has the state of a key; null in the row of one that was emitted.

It stands beside the key columns, whose names are the user's."""


class States(OrderedPart):
    """The task that has the states of an ordered task.

    Attributes:
        bound: What bounds the states in time, in words.
    """

    value = STATE
    bound: ClassVar[str] = "ttl"

    def __init__(self, task: InOrderTask) -> None:
        super().__init__(task, task.task_name)

    @property
    def keeps_states(self) -> bool:
        """Return whether keys have a state."""
        return True

    @property
    def opened_as(self) -> States | str:
        """The part, or its name where only the store has the type of its states."""
        return self

    @property
    def ttl(self) -> int | None:
        """The time, in microseconds, for which a key may be silent before it is forgotten; None: for ever."""
        ttl = cast(OrderedTask, self.ordered).ttl
        return None if ttl is None else length("ttl", ttl)

    def other_window(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        lengths = (window["replaced"] for window in (before, now))
        was, is_ = ("none" if length is None else show_duration(length) for length in lengths)
        return f"the store was written with {self.bound}={was}, the task has {is_}"

    def persistent_state(self) -> KeptState[Any]:
        type = self.ordered.state
        if not isinstance(type, pa.DataType):
            raise InvalidInputError(f"task={self.name} has state={type!r}; say the Arrow type of a key's state.")
        return KeptState(Newest(type), UntilReplaced(self.ttl))
