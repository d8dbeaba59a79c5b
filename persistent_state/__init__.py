"""Exactly-once state for PySpark streams: Gearpump's persistent tasks, in open files that you own."""

from typing import TYPE_CHECKING, Any

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
from persistent_state.kafka.decoders import Avro, Decoded, Decoder, Json, Raw
from persistent_state.kafka.sink import KafkaSink
from persistent_state.kafka.source import KafkaSource
from persistent_state.open_state import OpenApplication, OpenChanges, OpenState, OpenStore, OpenTask, open_store
from persistent_state.ordered import Context, OrderedTask, Timer
from persistent_state.outputs import RunningValues, ValuesAtClock
from persistent_state.protocol.rewind_plan import OutputPlan, ReadAgain, RewindPlan
from persistent_state.reading import clocks, late_rows_frame, read_late_rows, read_state
from persistent_state.sinks.base import Origin, RecordingSink, Sink, arrow_batches
from persistent_state.sinks.console import ConsoleSink
from persistent_state.sinks.delta import DeltaSink
from persistent_state.sinks.parquet import ParquetSink
from persistent_state.sinks.sql import SqlSink
from persistent_state.sources.base import BadRecord, Chunk, Reach, TimeReplayableSource
from persistent_state.sources.csv_lines import CsvOptions
from persistent_state.sources.dataframe import DataFrameSource
from persistent_state.sources.files import FileSource
from persistent_state.sources.rate import RateSource
from persistent_state.state import NonWindowState, PersistentState, WindowState
from persistent_state.store.verify import verify
from persistent_state.task import Message, PersistentTask
from persistent_state.testing import LocalRun, run_local
from persistent_state.timelines import branch_application, keep_clock, release_clock
from persistent_state.windows import SessionWindow, SlidingWindow, TumblingWindow

if TYPE_CHECKING:
    from persistent_state.engine.micro_batch import Progress
    from persistent_state.engine.run import Running

__version__ = "0.1.0"

__all__ = [
    "Application",
    "AsOfJoin",
    "Avro",
    "BadRecord",
    "Changes",
    "Chunk",
    "ClosedWindows",
    "CommitUnknownError",
    "ConsoleSink",
    "Context",
    "CsvOptions",
    "DamagedError",
    "DataFrameSource",
    "Decoded",
    "Decoder",
    "DeltaSink",
    "Emitted",
    "FencedError",
    "FileSource",
    "Input",
    "IntervalJoin",
    "InvalidInputError",
    "Json",
    "KafkaConnectorSource",
    "KafkaSink",
    "KafkaSource",
    "LocalRun",
    "Message",
    "NonWindowState",
    "NotThereError",
    "OpenApplication",
    "OpenChanges",
    "OpenState",
    "OpenStore",
    "OpenTask",
    "OrderedTask",
    "Origin",
    "OutputPlan",
    "ParquetSink",
    "PersistentState",
    "PersistentTask",
    "Progress",
    "RateSource",
    "Raw",
    "Reach",
    "ReadAgain",
    "RecordingSink",
    "RewindPlan",
    "Running",
    "RunningValues",
    "SessionWindow",
    "Sink",
    "SlidingWindow",
    "SqlSink",
    "StateError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "TaskFailedError",
    "TimeReplayableSource",
    "Timer",
    "TumblingWindow",
    "ValuesAtClock",
    "WindowState",
    "arrow_batches",
    "branch_application",
    "clocks",
    "keep_clock",
    "late_rows_frame",
    "open_store",
    "read_late_rows",
    "read_state",
    "release_clock",
    "run_local",
    "verify",
]


def __getattr__(name: str) -> Any:
    # These import Spark.
    if name == "Progress":
        from persistent_state.engine.micro_batch import Progress

        return Progress
    if name == "Running":
        from persistent_state.engine.run import Running

        return Running
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
