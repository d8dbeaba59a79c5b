"""Tell which files of the store a task and a flow have, and how long they are."""

from __future__ import annotations

from collections.abc import Iterable

from persistent_state.store import late_rows
from persistent_state.store.files.base import Files
from persistent_state.store.flow_state import FlowState, LateRows
from persistent_state.store.named_files import Stored
from persistent_state.store.task_state import TaskState


def lengths_of_task(files: Files, task: TaskState) -> dict[str, int]:
    """Return the length of each file of a task, by its path. It has none in common with its flow.

    Raises:
        DamagedError: A list of files is not what was written.
        FileNotFoundError: It was collected.
    """
    return _lengths(files, task.files(), task.late_rows)


def lengths_of_flow(files: Files, flow: FlowState) -> dict[str, int]:
    """Return the length of each file that the tasks of a flow share, by its path.

    Raises:
        DamagedError: A list of files is not what was written.
        FileNotFoundError: It was collected.
    """
    return _lengths(files, flow.files(), flow.late_rows)


def _lengths(files: Files, named: Iterable[Stored], rows: LateRows) -> dict[str, int]:
    settled = (side.file for side in late_rows.settled(files, rows))
    return {file.path: file.length for file in (*named, *settled)}
