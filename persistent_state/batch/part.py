"""A task of the graph that is a part of a task of a user's: what the kernel knows of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from persistent_state.task import BaseTask, PersistentTask


class TaskPart(PersistentTask):
    """The base of tasks of the graph that are parts of a task of a user's.

    Attributes:
        whole: The name of the user's task.
        hands_keys: Whether user code is handed the keys of what waits in the part.
        fitting: The kind of values that fit, in words.
        without_updates: The end of a sentence about messages that had no effect.
        other_name: What gives a function that is an output of a task, or of the part, another name.
    """

    whole: str
    hands_keys: ClassVar[bool] = False
    fitting: ClassVar[str]
    without_updates: ClassVar[str]
    other_name: ClassVar[str] = "ValuesAtClock(function, name=...)"

    @property
    def keeps(self) -> str:
        """The messages or values that the part keeps, in words."""
        return "-"

    @property
    def sides(self) -> Mapping[str, str]:
        """By input of a join that waits in the part: the side that it is, "left" or "right"."""
        return {}

    def other_window(self, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
        """Return in words how that which bounds the part's values in time was another, by the identity in the log."""
        raise NotImplementedError


def part_of(task: object) -> TaskPart | None:
    """Return the task itself if it is a part of one; None if it is whole."""
    return task if isinstance(task, TaskPart) else None


def named(task: BaseTask) -> str:
    """Return the name by which a user knows a task; of a part that of the whole."""
    part = part_of(task)
    return task.task_name if part is None else part.whole
