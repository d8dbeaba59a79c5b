"""A task as the rows of one of its inputs update it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.inputs import Input
from persistent_state.state import KeptState, PersistentState
from persistent_state.task import Message, PersistentTask


class OfInput(PersistentTask):
    """The task, with the key and the update that one of its inputs has."""

    def __init__(self, task: PersistentTask, input: Input) -> None:
        self.name = task.task_name
        self.message_id, self.horizon, self.version = task.message_id, task.horizon, task.version
        self.reads_state = task.reads_state  # type: ignore[misc]
        self.key: str | Sequence[str] | None = task.key if input.key is None else input.key
        self.value = input.value if input.batch is None and input.value is not None else None
        self._task, self._batch = task, input.batch
        if len(self.key_columns) != len(task.key_columns):
            raise InvalidInputError(
                f"task={self.name}: an input has the key {input.key!r}, and the task {task.key!r}; name as many columns."
            )
        if input.value is not None and input.batch is not None:
            raise InvalidInputError(
                f"task={self.name}: an input has value={input.value!r} and a batch function; give one."
            )
        if self.value is None and self._batch is None:
            self.value = task.value

    def persistent_state(self) -> KeptState[Any]:
        return self._task.persistent_state()

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        self._task.process_message(state, message)

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return self._task.process_batch(batch) if self._batch is None else self._batch(batch)

    @property
    def update_way(self) -> str:
        if self._batch is not None:
            return "batch"
        return "value" if self.value is not None else self._task.update_way
