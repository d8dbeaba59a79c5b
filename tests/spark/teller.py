"""A driver with four tasks of different speed and eleven or twelve outputs, which is killed at a step of a delivery.

    python -m tests.spark.teller FOLDER --postgresql URL [--die STEP [--nth 2]] [--inexact Users] [--shards 2]
        [--interval "10 seconds"] [--checkpoints 2] [--other-code] [--drain]

It reads FOLDER/stream to its end, delivers what there is, and ends with exit code 0. Before the nth time that it comes to the
step it is ended by SIGKILL. One of its tasks fails once, and all start again within the process. Its steps are:

    open KIND, write KIND, written KIND   around what is asked of a sink; KIND is parquet, sqlite or postgresql
    file, filed                           around the creation of a data file of a Parquet table, by a worker
    mark, marked                          around the creation of the marker that makes a clock visible
    insert KIND, commit KIND              within a transaction of a database
    record, recorded                      around the log entry that says how far was delivered
    close                                 when all has been checkpointed, before the last values are delivered
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from monoids import Average, HyperLogLog, Sum
from persistent_state import (
    Application,
    FileSource,
    NonWindowState,
    ParquetSink,
    PersistentTask,
    RunningValues,
    SessionWindow,
    SlidingWindow,
    SqlSink,
    ValuesAtClock,
    WindowState,
)
from persistent_state.drive import backoff
from persistent_state.protocol import commits, deliver
from persistent_state.sinks import Origin, RecordingSink, Sink, parquet
from persistent_state.store.files import BytesLike, Files, LocalFiles
from tests.spark.sessions import new_session

NAME = "told"
SECOND = 1_000_000
START = 1_700_000_000 * SECOND
ROWS, KEYS = 24, 9
SPAN = 10 * SECOND
"""Of event time in a file."""

Row = tuple[int, int, int, float, str]


def rows_of(file: int) -> list[Row]:
    """(key, timestamp, amount, share, user) of each row of a file: in order, and of some of the keys."""
    rows = []
    for i in range(ROWS):
        number = file * ROWS + i
        key = (number * number + file) % (KEYS - file % 3)
        rows.append((key, START + file * SPAN + i * SPAN // ROWS, number % 50 + 1, number / 7, f"u{number * 31 % 400}"))
    return rows


def id_of(timestamp: int) -> int:
    """The id of a message: others of its key that come shortly after have the same."""
    return timestamp // (4 * SECOND)


def write(folder: Path, file: int) -> None:
    names = ("key", "ts", "amount", "share", "user")
    table = pa.table(dict(zip(names, map(list, zip(*rows_of(file), strict=True)), strict=True)))
    table = table.append_column("id", pa.array([id_of(row[1]) for row in rows_of(file)]))
    table = table.set_column(1, "ts", table["ts"].cast(pa.timestamp("us", "UTC")))
    (folder / "stream").mkdir(exist_ok=True)
    pq.write_table(table, folder / "stream" / f"_{file:06d}")
    (folder / "stream" / f"_{file:06d}").rename(folder / "stream" / f"{file:06d}.parquet")


class Totals(PersistentTask):
    key, value = "key", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class TotalsByBatch(Totals):
    """The same in other code."""

    name, value = "Totals", None

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return batch["amount"]


class Shares(PersistentTask):
    """A state of floats, whose sums depend on their grouping."""

    key, value = "key", "share"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Average())


class Users(PersistentTask):
    """A state of sketches, which depend on their grouping."""

    key, value = "key", "user"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(HyperLogLog())


class Sliding(PersistentTask):
    """Windows that slide, of messages that count once."""

    key, value = "key", "amount"
    message_id, horizon = "id", "5 seconds"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(Sum(), SlidingWindow("15 seconds", "5 seconds"))


class Visits(PersistentTask):
    """Sessions, some of which reach over clocks and kills."""

    key, value = "key", "amount"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(Sum(), SessionWindow("6 seconds"))


TASKS: tuple[PersistentTask, ...] = (Totals(), Shares(), Users())
WINDOWED: tuple[PersistentTask, ...] = (Sliding(), Visits())
KINDS = ("parquet", "sqlite", "postgresql")
KINDS_OF_WINDOWS = ("parquet", "postgresql")


def tasks_of(inexact: str) -> list[PersistentTask]:
    """The tasks of a driver that keeps one of the two states which depend on their grouping."""
    return [task for task in TASKS if task.task_name in ("Totals", inexact)]


def sink_of(kind: str, folder: Path, postgresql: str, task: str) -> Any:
    if kind == "parquet":
        return ParquetSink(str(folder / "tables" / task), files=2)
    url = f"sqlite:///{folder / 'out.db'}" if kind == "sqlite" else postgresql
    return SqlSink(url, task.lower(), history=True)


@dataclass
class Deadly:
    """The steps of this process: before the nth of the awaited ones it dies."""

    awaited: str | None
    nth: int
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def come_to(self, step: str) -> None:
        with self.lock:
            self.counts[step] += 1
            if step == self.awaited and self.counts[step] == self.nth:
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Watched(RecordingSink):
    """A sink of which each thing that is asked is a step."""

    sink: Sink
    kind: str
    deadly: Deadly

    @property
    def name(self) -> str:
        return self.sink.name

    def open(self, origin: Origin) -> int | None:
        self.deadly.come_to(f"open {self.kind}")
        return self.sink.open(origin)

    def write_values(self, values: Any, clock: int) -> None:
        self.deadly.come_to(f"write {self.kind}")
        self.sink.write_values(values, clock)
        self.deadly.come_to(f"written {self.kind}")


@dataclass(frozen=True)
class FilesOfTable(LocalFiles):
    """Where a Parquet table is: workers kill the driver at the file that they are told."""

    driver: int = 0
    dies_at: str | None = None
    nth: int = 1

    def create(self, path: str, data: BytesLike) -> None:
        marks = "_clocks" in path
        self._come_to("mark" if marks else "file" if path.endswith(".parquet") else "other")
        super().create(path, data)
        self._come_to("marked" if marks else "filed" if path.endswith(".parquet") else "other")

    def _come_to(self, step: str) -> None:
        if step != self.dies_at:
            return
        # Workers are many: who makes the nth file is the nth.
        for number in range(1, self.nth + 1):
            with suppress(FileExistsError), open(f"{self.url}.{self.driver}-{number}", "x"):
                if number == self.nth:
                    os.kill(self.driver, signal.SIGKILL)
                return


@dataclass
class Stumbling:
    """A function of running values that raises once."""

    is_over: bool = False

    def __call__(self, values: Any, batch: int) -> None:
        if batch == 1 and not self.is_over:
            self.is_over = True
            raise RuntimeError("stumbled")


def watch(deadly: Deadly) -> None:
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def open_files(url: str, storage_options: Any = None) -> Files:
        return FilesOfTable(os.path.abspath(url), {}, os.getpid(), deadly.awaited, deadly.nth)

    setattr(parquet, "open_files", open_files)  # noqa: B010

    def kind(connection: Any) -> str:
        return "sqlite" if connection.dialect.name == "sqlite" else "postgresql"

    def execute(connection: Any, cursor: Any, statement: str, *more: Any) -> None:
        if statement.startswith("INSERT"):
            deadly.come_to(f"insert {kind(connection)}")

    event.listen(Engine, "before_cursor_execute", execute)
    event.listen(Engine, "commit", lambda connection: deadly.come_to(f"commit {kind(connection)}"))

    def around(function: Callable[..., Any], before: str | None, after: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if before:
                deadly.come_to(before)
            result = function(*arguments, **named)
            deadly.come_to(after)
            return result

        return call

    setattr(deliver, "record", around(deliver.record, "record", "recorded"))  # noqa: B010
    setattr(commits, "close", around(commits.close, None, "close"))  # noqa: B010


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--postgresql", required=True)
    parser.add_argument("--die")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--inexact", choices=[task.task_name for task in TASKS[1:]], default="Shares")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--interval", default="10 seconds")
    parser.add_argument("--checkpoints", type=int, default=10_000)
    parser.add_argument("--other-code", action="store_true")
    parser.add_argument("--drain", action="store_true")
    told = parser.parse_args()
    deadly = Deadly(told.die, told.nth)
    watch(deadly)
    backoff.LONGEST_WAIT = 0.1
    app = Application(
        NAME,
        str(told.folder / "store"),
        checkpoint_interval=told.interval,
        retained_checkpoints=told.checkpoints,
        shards=told.shards,
    )
    for speed, task in enumerate(
        (TotalsByBatch() if told.other_code else Totals(), *tasks_of(told.inexact)[1:]), start=1
    ):
        sinks: list[Any] = [
            ValuesAtClock(Watched(sink_of(kind, told.folder, told.postgresql, task.task_name), kind, deadly))
            for kind in KINDS
        ]
        if task.task_name == told.inexact:
            sinks.append(RunningValues(Stumbling()))
        if isinstance(task, Totals):
            sinks.append(Watched(SqlSink(str(told.folder / "out.db"), "newest"), "newest", deadly))
        app.add(task, FileSource(str(told.folder / "stream"), timestamp="ts", max_files_per_batch=speed), sinks)
    for task in WINDOWED:
        outputs = [sink_of(kind, told.folder, told.postgresql, task.task_name) for kind in KINDS_OF_WINDOWS]
        app.add(task, FileSource(str(told.folder / "stream"), timestamp="ts", max_files_per_batch=3), outputs)
    app.run(new_session("teller"), drain=told.drain)


if __name__ == "__main__":
    main()
