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
from persistent_state.edges.changes import Changes
from persistent_state.edges.closed_windows import ClosedWindows
from persistent_state.edges.emitted import Emitted
from persistent_state.edges.joins.as_of import AsOfJoin
from persistent_state.edges.joins.interval import IntervalJoin
from persistent_state.errors import (
    CommitUnknownError,
    DamagedError,
    FencedError,
    InvalidInputError,
    NotThereError,
    StateError,
    StoreRefusedError,
    StoreUnavailableError,
    TaskFailedError,
)
from persistent_state.inputs import Input
from persistent_state.kafka.connector import KafkaConnectorSource
from persistent_state.kafka.sink import KafkaSink
from persistent_state.kafka.source import KafkaSource
from persistent_state.local.settings import Local
from persistent_state.open_state import open_store, read_state
from persistent_state.ordered import Context, OrderedTask, Timer
from persistent_state.outputs import RunningValues, ValuesAtClock
from persistent_state.sinks.console import ConsoleSink
from persistent_state.sinks.delta import DeltaSink
from persistent_state.sinks.parquet import ParquetSink
from persistent_state.sinks.sql import SqlSink
from persistent_state.sources.csv_lines import CsvOptions
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.files import FileSource
from persistent_state.sources.rate import RateSource
from persistent_state.state import NonWindowState, PersistentState, WindowState
from persistent_state.store.verify import verify
from persistent_state.task import Message, PersistentTask
from persistent_state.testing import run_local
from persistent_state.windows import SessionWindow, SlidingWindow, TumblingWindow

__version__ = "0.1.0"

__all__ = [
    "Application",
    "AsOfJoin",
    "Changes",
    "ClosedWindows",
    "CommitUnknownError",
    "ConsoleSink",
    "Context",
    "CsvOptions",
    "DamagedError",
    "DataFrameSource",
    "DeltaSink",
    "Emitted",
    "FencedError",
    "FileSource",
    "Input",
    "IntervalJoin",
    "InvalidInputError",
    "KafkaConnectorSource",
    "KafkaSink",
    "KafkaSource",
    "Local",
    "Message",
    "NonWindowState",
    "NotThereError",
    "OrderedTask",
    "ParquetSink",
    "PersistentState",
    "PersistentTask",
    "RateSource",
    "RunningValues",
    "SessionWindow",
    "SlidingWindow",
    "SqlSink",
    "StateError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "TaskFailedError",
    "Timer",
    "TumblingWindow",
    "ValuesAtClock",
    "WindowState",
    "open_store",
    "read_state",
    "run_local",
    "verify",
]
