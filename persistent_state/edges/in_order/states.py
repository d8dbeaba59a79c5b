"""The part of an ordered task that has the states of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from persistent_state.edges.joins.as_of import AsOfJoin
from persistent_state.edges.joins.interval import IntervalJoin
from persistent_state.edges.joins.pair import Join
from persistent_state.errors import InvalidInputError
from persistent_state.event_time.durations import show_duration
from persistent_state.ordered import InOrderTask, OrderedPart, OrderedTask
from persistent_state.partials.newest import Newest
from persistent_state.state import KeptState
from persistent_state.windows import UntilReplaced, length

STATE = "kept state"
"""The column of what a step makes that has the state of a key; null in the row of one that was emitted.

It stands beside the key columns, whose names are the user's."""


class States(OrderedPart):
    """The task that has the state of an ordered task."""

    value = STATE

    def __init__(self, task: InOrderTask) -> None:
        self.name, self.key, self.ordered = task.task_name, task.key, task

    def other_window(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        what = "tolerance" if isinstance(self.ordered, Join) else "ttl"
        lengths = (window["replaced"] for window in (before, now))
        was, is_ = ("none" if length is None else show_duration(length) for length in lengths)
        return f"the store was written with {what}={was}, the task has {is_}"

    def persistent_state(self) -> KeptState[Any]:
        task = self.ordered
        if not isinstance(task.state, pa.DataType):
            raise InvalidInputError(f"task={self.name} has state={task.state!r}; say the Arrow type of a key's state.")
        return KeptState(Newest(task.state), UntilReplaced(time_to_live(task)))


def keeps_state(task: InOrderTask) -> bool:
    """Return whether the keys of a task have a state."""
    return not isinstance(task, IntervalJoin)


def time_to_live(task: InOrderTask) -> int | None:
    """Return the time, in microseconds, for which a key may be silent before it is forgotten; None: for ever."""
    if isinstance(task, OrderedTask):
        return None if task.ttl is None else length("ttl", task.ttl)
    return task.tolerance if isinstance(task, AsOfJoin) else None
