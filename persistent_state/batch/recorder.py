"""The state that user code is handed: it records updates, each as that of the row which is being processed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from monoids import MonoidError
from persistent_state.batch.plan import Plan
from persistent_state.errors import InvalidInputError, TaskFailedError, places, raised
from persistent_state.state import PersistentState
from persistent_state.task import Message, PersistentTask


class Recorder(PersistentState[Any]):
    """The state that `process_message` is handed before the shuffle: it only records."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.prepare = plan.state.prepare
        self._rows: list[int] = []
        self._values: list[Any] = []
        self._row = 0
        self._timestamp = 0

    @property
    def monoid(self) -> Any:
        return self._plan.layout.monoid

    def update(self, timestamp: int, value: Any) -> None:
        if timestamp != self._timestamp:
            raise InvalidInputError(
                f"update(timestamp={timestamp}) is not the message's {self._timestamp}; pass message.timestamp."
            )
        try:
            value = value if self.prepare is None or value is None else self.prepare(value)
        except MonoidError as error:
            value = error
        self._rows.append(self._row)
        self._values.append(value)

    def get(self) -> Any:
        raise InvalidInputError(f"task={self._plan.name} calls get(); set reads_state = True to read the state.")

    def process(self, task: PersistentTask, message: Message, row: int, where: Any) -> None:
        """Let the task process a message, recording its updates as those of a row."""
        self._row, self._timestamp = row, message.timestamp
        try:
            task.process_message(self, message)
        except InvalidInputError as error:
            of = f"{self._plan.name}{places(error)}"
            raise TaskFailedError(f"process_message of task={of}, at {where()}: {error}") from error
        except Exception as error:
            found = raised(error)
            raise TaskFailedError(f"process_message of task={self._plan.name} raised {found}, at {where()}.") from error

    def take(self, items: pa.Array, where: Callable[[int], str]) -> None:
        """Record each item of a column as the update of its row."""
        for i, item in enumerate(items):
            self._row = i
            try:
                value = item.as_py()
            except (OverflowError, ValueError) as error:
                # A time beyond those of Python, for one.
                self._rows.append(i)
                self._values.append(MonoidError(str(error)))
                continue
            try:
                self.update(self._timestamp, value)
            except Exception as error:
                found = raised(error)
                raise TaskFailedError(f"prepare of task={self._plan.name} raised {found}, at {where(i)}.") from error

    def values(self, rows: int) -> tuple[NDArray[np.int64], pa.Array, NDArray[np.bool_]]:
        """The recorded updates as `updates` gives them. A row with one that can't be makes none."""
        taken = np.array(self._rows, dtype=np.int64)
        unfit = np.zeros(rows, dtype=np.bool_)
        try:
            return taken, self.column(self._values), unfit
        except MonoidError:
            unfit[[row for row, value in zip(self._rows, self._values, strict=True) if not self._fits(value)]] = True
        keep = ~unfit[taken]
        values = [value for value, kept in zip(self._values, keep, strict=True) if kept]
        return taken[keep], self.column(values), unfit

    def column(self, values: Sequence[Any]) -> pa.Array:
        """Recorded values as a column; one that could not be prepared is the error that said so, and is raised."""
        for value in values:
            if isinstance(value, MonoidError):
                raise value
        return self.monoid.to_arrow(values)

    def _fits(self, value: Any) -> bool:
        try:
            self.column([value])
        except MonoidError:
            return False
        return True
