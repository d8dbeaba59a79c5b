"""The base of the tasks of the graph that an ordered task is."""

from __future__ import annotations

from typing import ClassVar

from persistent_state.batch.part import TaskPart
from persistent_state.ordered import InOrderTask


class OrderedPart(TaskPart):
    """A task of the graph that has the messages, the states or the rows of an ordered task."""

    fitting: ClassVar[str] = (
        "a state or a row does not fit the types that the task says; on_bad_row='fail' says the first that does not"
    )
    without_updates: ClassVar[str] = (
        ", and process() has returned no state and emitted no row. Let it return the state that is to be kept"
    )

    def __init__(self, task: InOrderTask, name: str) -> None:
        self.name, self.key, self.whole, self.ordered = name, task.key, task.task_name, task
