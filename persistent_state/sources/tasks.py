"""Other tasks of an application as sources: what they give from one common clock to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from persistent_state.event_time.durations import Duration, positive
from persistent_state.task import rows_of
from persistent_state.windows import MOMENT

TIMESTAMP = MOMENT
"""The column with the moment of a row: its own, or the last one before the clock at which it is seen, or its window closed."""


@dataclass(frozen=True)
class Changes:
    """The changes of another task's state, as a source of a task.

    At each clock that all tasks have in common, the downstream task sees each key of the upstream task whose value changed: a
    row with the key columns, the columns of the presented value (one for each field of a struct, else `value`), and
    `timestamp`, the last microsecond before the clock. The library takes back what the task made of the row as it was before.
    So its state is always made of the values that the upstream task has now, and its monoid must be a group whose sums are
    exact: `Sum`, `Count` or `ExactSum`, or a `Struct` of these.

    With `every` the changes are those from each multiple of it to the next, whatever clocks there are. They are a function of
    the messages then. So the downstream task may keep any state, and the upstream task may keep windows or a time to live. A
    task whose monoid is no such group, or that has windows, a ttl or a `message_id`, sees one row for each change. It has the
    key columns, the structs `before` and `after` in place of the value's columns, and `timestamp`. A struct is null where the
    key was not there, or is not there any more.

    Args:
        task: The name of the upstream task. Without `every` it keeps its state without windows and without a time to live.
        every: A text such as "1 minute", or a `timedelta`: a multiple of the application's checkpoint interval. All checkpoints
            of the application are at multiples of it.

    Example:
        >>> Changes("PerShop", every="1 minute")
        Changes(task='PerShop', every='1 minute')
    """

    task: str
    every: Duration | None = None

    kind: ClassVar[str] = "changes"

    @property
    def identity(self) -> dict[str, Any]:
        """The part of the identity of a task that is fed by this, as JSON."""
        return {self.kind: self.task, **({} if self.every is None else {"every": self.microseconds})}

    @property
    def microseconds(self) -> int | None:
        """`every` in microseconds.

        Raises:
            InvalidInputError: It is no duration, or none that is longer than 0.
        """
        return None if self.every is None else positive("every", self.every)


@dataclass(frozen=True)
class ClosedWindows:
    """The windows and sessions of another task that have closed, as a source of a task.

    The downstream task sees each of them once: a row with the key columns, `window_start` and `window_end`, the columns of the
    presented value (one for each field of a struct, else `value`), and `timestamp`, the last microsecond of the window.

    Args:
        task: The name of the upstream task, which keeps a `WindowState`.

    Example:
        >>> ClosedWindows("PerHour")
        ClosedWindows(task='PerHour')
    """

    task: str

    kind: ClassVar[str] = "closed windows"

    @property
    def identity(self) -> dict[str, Any]:
        """The part of the identity of a task that is fed by this, as JSON."""
        return {self.kind: self.task}


@dataclass(frozen=True)
class Emitted:
    """The rows that an `OrderedTask` emits, as a source of a task.

    The downstream task sees each of them once: a row with the key columns of the ordered task, the columns of its `emits`, and
    `timestamp`, the moment of the row.

    Args:
        by: The name of the ordered task.

    Example:
        >>> Emitted("Fraud")
        Emitted(by='Fraud')
    """

    by: str

    kind: ClassVar[str] = "emitted rows"

    @property
    def task(self) -> str:
        """The task of the graph in which these rows are."""
        return rows_of(self.by)

    @property
    def identity(self) -> dict[str, Any]:
        """The part of the identity of a task that is fed by this, as JSON."""
        return {self.kind: self.by}


@dataclass(frozen=True)
class InOrder:
    """The messages that wait in another task, as the source of the task that processes them in order."""

    task: str

    kind: ClassVar[str] = "in order"

    @property
    def identity(self) -> dict[str, Any]:
        """The part of the identity of a task that is fed by this, as JSON."""
        return {self.kind: self.task}


TaskSource: TypeAlias = Changes | ClosedWindows | Emitted | InOrder
"""A source that is another task of the application."""

TASK_SOURCES = (Changes, ClosedWindows, Emitted, InOrder)
"""The classes of these sources."""
