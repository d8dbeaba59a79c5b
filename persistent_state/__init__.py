"""Exactly-once state for PySpark streams: Gearpump's persistent tasks, in open files that you own."""

import monoids

if not hasattr(monoids, "MonoidError"):
    # A file of that name in the user's folder.
    raise ImportError(
        f"file={monoids.__file__!r} is imported in the place of the package monoids, which persistent_state needs; "
        "rename it.",
        name="monoids",
        path=monoids.__file__,
    )

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
from persistent_state.kafka.decoders import Avro, Json, Raw
from persistent_state.kafka.sink import KafkaSink
from persistent_state.kafka.source import KafkaSource
from persistent_state.outputs import RunningValues, ValuesAtClock
from persistent_state.reading import clocks, late_rows_frame, read_late_rows, read_state, state_frame
from persistent_state.sinks.base import Origin, Sink, arrow_batches
from persistent_state.sinks.console import Console
from persistent_state.sinks.delta import DeltaTable
from persistent_state.sinks.parquet import ParquetTable
from persistent_state.sinks.sql import SqlTable
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.files import FileSource
from persistent_state.sources.rate import RateSource
from persistent_state.state import NonWindowState, PersistentState, WindowState
from persistent_state.task import Message, PersistentTask
from persistent_state.testing import LocalRun, run_local
from persistent_state.windows import SessionWindow, Window

__version__ = "0.1.0"

__all__ = [
    "Application",
    "Avro",
    "Chunk",
    "CommitUnknown",
    "Console",
    "Damaged",
    "DataFrameSource",
    "DeltaTable",
    "Disagreement",
    "Exists",
    "Fenced",
    "FileSource",
    "InvalidInput",
    "Json",
    "KafkaSink",
    "KafkaSource",
    "LocalRun",
    "Message",
    "NonWindowState",
    "Origin",
    "ParquetTable",
    "PersistentState",
    "PersistentTask",
    "RateSource",
    "Raw",
    "Reach",
    "RunningValues",
    "SessionWindow",
    "Sink",
    "SqlTable",
    "StateError",
    "StoreUnavailable",
    "TaskFailed",
    "TimeReplayableSource",
    "ValuesAtClock",
    "Window",
    "WindowState",
    "arrow_batches",
    "clocks",
    "late_rows_frame",
    "read_late_rows",
    "read_state",
    "run_local",
    "state_frame",
]
