"""Exactly-once state for PySpark streams: Gearpump's persistent tasks, in open files that you own."""

from persistent_state import _monoids as _monoids
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
from persistent_state.outputs import RunningValues, ValuesAtClock
from persistent_state.reader import clocks, read_late_rows, read_state
from persistent_state.sinks.base import Origin, Sink, arrow_batches
from persistent_state.sinks.console import Console
from persistent_state.sinks.delta import DeltaTable
from persistent_state.sinks.kafka import KafkaSink
from persistent_state.sinks.parquet import ParquetTable
from persistent_state.sinks.sql import SqlTable
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.decoders import Avro, Json, Raw
from persistent_state.sources.files import FileSource
from persistent_state.sources.kafka import KafkaSource
from persistent_state.sources.rate import RateSource
from persistent_state.state import NonWindowState, PersistentState, WindowState
from persistent_state.task import Message, PersistentTask
from persistent_state.version import __version__ as __version__
from persistent_state.windows import SessionWindow, Window

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
