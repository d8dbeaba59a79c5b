"""Name a state so that it is found again later, in another process, or is known to be another one."""

from __future__ import annotations

from dataclasses import dataclass

from persistent_state.errors import NotThereError
from persistent_state.formatting import full_clock
from persistent_state.open_state import OpenState, OpenTask


@dataclass(frozen=True)
class NamedState:
    """The name of a state of a task: its clock within a timeline, and the life of the task, which a reset or a rebuild ends."""

    clock: int
    timeline: int
    born: int
    life: int

    @classmethod
    def of(cls, state: OpenState) -> NamedState:
        """Return the name of a state."""
        return cls(state.clock, state.timeline, state.state.born, state.state.life)

    def open(self, task: OpenTask) -> OpenState:
        """Return the state of this name.

        Raises:
            NotThereError: The clock is not retained, its timeline has ended before it, or the task has begun anew since.
        """
        state = task.at(self.clock, timeline=self.timeline)
        if self.is_of(state):
            return state
        # A task that was reset at the newest clock has two states there, and only who names no clock gets the new one.
        newest = task.at()
        if self.is_of(newest):
            return newest
        raise NotThereError(
            f"clock={full_clock(self.clock)} of task={state.state.task} is another state now, as the task was reset or "
            "rebuilt; load it again."
        )

    def is_of(self, state: OpenState) -> bool:
        """Return whether a state has this name. A clock before the timeline began may be named with an older one."""
        return (self.clock, self.born, self.life) == (state.clock, state.state.born, state.state.life)
