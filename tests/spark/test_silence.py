"""A stream that Spark reads and that falls silent does not hold the clock of other tasks for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from monoids import Sum
from persistent_state import Application, DataFrameSource, FileSource, NonWindowState, PersistentTask, read_state
from persistent_state.protocol.commits import wake
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests.spark import files as stream
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND = 1_000_000
SCHEMA = pa.schema([("n", pa.int64()), ("lane", pa.string()), ("ts", pa.timestamp("us", "UTC"))])


class Busy(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


class Quiet(Busy):
    pass


class Never(Busy):
    pass


def write(folder: Path, number: int, stamps: range) -> None:
    rows = [{"n": 1, "lane": "a", "ts": stamp * SECOND} for stamp in stamps]
    stream.write(folder, number, rows, SCHEMA)


def newest(folder: Path) -> Entry:
    entry = Log(open_files(str(folder / "store")), "app").newest()
    assert entry is not None
    return entry


def application(spark: SparkSession, folder: Path) -> Application:
    def quiet(name: str) -> Callable[[SparkSession, int | None], DataFrame]:
        columns = "n long, lane string, ts timestamp"
        return lambda session, clock: session.readStream.schema(columns).parquet(str(folder / name))

    app = Application("app", str(folder / "store"), checkpoint_interval="1 second", idle_after="1 second", shards=1)
    app.add(Busy(), FileSource(str(folder / "busy"), timestamp="ts", schema=SCHEMA))
    app.add(Quiet(), DataFrameSource(quiet("quiet"), timestamp="ts"))
    return app.add(Never(), DataFrameSource(quiet("never"), timestamp="ts", channel="lane"))


@contextmanager
def started(spark: SparkSession, folder: Path) -> Iterator[None]:
    running = application(spark, folder).start(spark)
    try:
        yield
    finally:
        running.stop()


def test_the_global_clock_goes_on_without_streams_that_are_silent(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("busy", "quiet", "never"):
        (tmp_path / name).mkdir()
    write(tmp_path / "quiet", 0, range(100, 105))
    write(tmp_path / "busy", 0, range(100, 200))
    with started(spark, tmp_path):
        until(lambda: newest(tmp_path).clock >= 199 * SECOND, "the first clock")
        assert not any(newest(tmp_path).flow_of(name).progress.holds for name in ("Quiet", "Never"))
        # One that wakes it after that, as an attempt that nobody waits for may, holds it for a while at the most.
        wake(Log(open_files(str(tmp_path / "store")), "app"), newest(tmp_path).epoch, "Quiet", 0)
        write(tmp_path / "busy", 1, range(200, 300))
        until(lambda: newest(tmp_path).clock >= 299 * SECOND, "the second clock")
        # What comes then counts, from the clock on.
        write(tmp_path / "quiet", 1, range(290, 310))
        until(lambda: newest(tmp_path).flow_of("Quiet").progress.clock >= 309 * SECOND, "what came late")
    assert newest(tmp_path).late_rows_of("Quiet").counts() == {"late": 9}
    # After a start they deliver nothing: the clock goes on all the same.
    write(tmp_path / "busy", 2, range(310, 400))
    with started(spark, tmp_path):
        until(lambda: newest(tmp_path).clock >= 399 * SECOND, "the clock after a start")
    # A run to the end neither waits for silence nor fails to see the end.
    write(tmp_path / "busy", 3, range(400, 410))
    application(spark, tmp_path).run(spark, drain=True)
    state = read_state(str(tmp_path / "store"), "app", Busy())
    assert state["value"].to_pylist() == [300]
