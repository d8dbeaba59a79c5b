"""Exactly-once state for PySpark streams: Gearpump's persistent tasks, in open files that you own."""

from persistent_state.application import Application
from persistent_state.errors import (
    CommitUnknown,
    Damaged,
    Disagreement,
    Exists,
    Fenced,
    InvalidInput,
    StateError,
    StoreUnavailable,
    TaskFailed,
)
from persistent_state.frames import late_rows_frame, state_frame
from persistent_state.local import LocalRun, run_local
from persistent_state.reader import clocks, read_late_rows, read_state
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.files import FileSource
from persistent_state.sources.rate import RateSource
from persistent_state.state import NonWindowState, PersistentState
from persistent_state.task import Message, PersistentTask

__all__ = [
    "Application",
    "Chunk",
    "CommitUnknown",
    "Damaged",
    "DataFrameSource",
    "Disagreement",
    "Exists",
    "Fenced",
    "FileSource",
    "InvalidInput",
    "LocalRun",
    "Message",
    "NonWindowState",
    "PersistentState",
    "PersistentTask",
    "RateSource",
    "Reach",
    "StateError",
    "StoreUnavailable",
    "TaskFailed",
    "TimeReplayableSource",
    "clocks",
    "late_rows_frame",
    "read_late_rows",
    "read_state",
    "run_local",
    "state_frame",
]
