"""Find the files of the store that a task and a flow have. Some are named in lists, which are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from persistent_state.errors import DamagedError
from persistent_state.store import late_rows
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import Files
from persistent_state.store.flow_state import FlowState, LateRows
from persistent_state.store.log import Log
from persistent_state.store.named_files import Stored
from persistent_state.store.task_state import TaskState

T = TypeVar("T")


def with_lists(log: Log, entry: Entry, read: Callable[[Entry], T]) -> T:
    """Return what is read of the newest entry and of its lists of files; of a newer entry if a list was collected meanwhile.

    Args:
        log: The log.
        entry: The newest entry that is known.
        read: Reads an entry and its lists. Raises a FileNotFoundError if a list is gone.

    Raises:
        DamagedError: A list is gone, and no newer entry names another.
    """
    while True:
        try:
            return read(entry)
        except FileNotFoundError as error:
            newest = log.newest()
            if newest is None or newest.number == entry.number:
                raise DamagedError(
                    f"a list of files that the newest log entry of {log.application} names is gone ({error}); restore it."
                ) from None
        entry = newest


def files_of_task(files: Files, task: TaskState) -> set[Stored]:
    """Return the files of a task, and its ranges of files. It has none in common with its flow.

    Raises:
        DamagedError: A list of files is not what was written.
        FileNotFoundError: It was collected.
    """
    return {*task.files(), *_settled(files, task.late_rows)}


def files_of_flow(files: Files, flow: FlowState) -> set[Stored]:
    """Return the files that the tasks of a flow share.

    Raises:
        DamagedError: A list of files is not what was written.
        FileNotFoundError: It was collected.
    """
    return {*flow.files(), *_settled(files, flow.late_rows)}


def _settled(files: Files, rows: LateRows) -> Iterable[Stored]:
    return (side.file for side in late_rows.settled(files, rows))
