"""Other tasks of an application as sources: what a plan knows of them. `edges` has what they give."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any, ClassVar

from persistent_state.windows import MOMENT

TIMESTAMP = MOMENT
"""The column with the moment of a row: its own, or the last one before the clock at which it is seen, or its window closed."""


class TaskSource(ABC):
    """A source that is another task of the application."""

    kind: ClassVar[str]
    """The kind of what is given, as the identity of a task that is fed by it names it."""

    is_of_state: ClassVar[bool] = False
    """True if what is given follows from the state of the other task, so that it can be given again from that."""

    is_in_order: ClassVar[bool] = False
    """True if it gives messages that wait, to the parts of the ordered task that processes them."""

    if TYPE_CHECKING:
        # A field of some, which a property here would give a default.
        @property
        def task(self) -> str:
            """The name of the other task in the graph."""

    @property
    def named(self) -> str:
        """The name of the other task by which a user knows it."""
        return self.task

    @property
    def every_us(self) -> int | None:
        """The microseconds between the times at which the other task is looked at; None: at each clock of a step.

        Raises:
            InvalidInputError: It is no duration, or none that is longer than 0.
        """
        return None

    def read_by(self, application: str) -> TaskSource:
        """Return the source as an application of this name reads it.

        Args:
            application: The application's name.
        """
        return self

    @property
    def identity(self) -> dict[str, Any]:
        """The part of the identity of a task that is fed by this, as JSON."""
        return {self.kind: self.named}
