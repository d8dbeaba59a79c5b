"""A driver with an output of each kind that a rewind takes back, killed on the way back.

    python -m tests.spark.rewinder FOLDER --postgresql URL [--bug] [--to CLOCK] [--die STEP]

It reads FOLDER/orders to the end, delivers what there is, and ends with exit code 0. With --to it takes the application back to
a clock instead. At a step it is ended by SIGKILL:

    back         the log has gone back, and no sink has
    postgresql   rows are changed and deleted, in a transaction that is not committed
    delta        one file with rows that stay is written, and the commit that names them all is not, or just so
    parquet      the file that takes clocks back is written, and has no name

Sinks behind the one at which the driver dies wait for its death. So each is found as it was before the rewind.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc

from monoids import Sum
from persistent_state import Application, DeltaSink, FileSource, NonWindowState, ParquetSink, PersistentTask, SqlSink
from persistent_state.run import rewinds
from persistent_state.sinks import RecordingSink
from persistent_state.store.files import LocalFiles
from tests.spark.sessions import new_session

NAME = "shop"
SCHEMA = pa.schema([("at", pa.int64()), ("shop", pa.string()), ("price", pa.int64())])
SINKS: dict[str, type[RecordingSink]] = {"postgresql": SqlSink, "delta": DeltaSink, "parquet": ParquetSink}
STEPS = ("back", *SINKS)


class Revenue(PersistentTask):
    """The sum of the prices of each shop. An order without a price is none, but for a bug."""

    key = "shop"

    def __init__(self, with_bug: bool) -> None:
        self.with_bug = with_bug

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_batch(self, rows: pa.RecordBatch) -> pa.Array:
        return pc.fill_null(rows["price"], 1000) if self.with_bug else rows["price"]


def application(folder: Path, postgresql: str, with_bug: bool = False) -> Application:
    app = Application(NAME, str(folder / "store"), checkpoint_interval="10 seconds", retained_checkpoints=50)
    orders = FileSource(folder / "orders", timestamp="at", schema=SCHEMA, max_files_per_batch=1)
    sinks = [SqlSink(postgresql, "revenue"), DeltaSink(folder / "delta"), ParquetSink(folder / "parquet")]
    return app.add(Revenue(with_bug), orders, sinks)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(step: str, folder: Path) -> None:
    """Let this process die at a step."""
    for kind in STEPS[STEPS.index(step) + 1 :]:
        setattr(SINKS[kind], "rewind", wait)  # noqa: B010
    if step == "back":
        after(rewinds.protocol, "rewind", die)
    elif step == "postgresql":
        after(SqlSink, "_delete_above", die)
    elif step == "delta":
        before(
            deltalake.DeltaTable, "delete", lambda *_: threading.Thread(target=die_at_new_file, args=[folder]).start()
        )
    else:
        before(LocalFiles, "_link", lambda _, temporary, target: die() if "_rewinds" in target else None)


def wait(sink: RecordingSink, clock: int, values: Any) -> None:
    threading.Event().wait()


def die_at_new_file(folder: Path) -> None:
    table = folder / "delta"
    known = {*table.rglob("*.parquet")}
    while {*table.rglob("*.parquet")} <= known:
        pass
    die()


def before(owner: Any, name: str, act: Callable[..., object]) -> None:
    function = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        act(*given)
        return function(*given, **named)

    setattr(owner, name, call)


def after(owner: Any, name: str, act: Callable[[], object]) -> None:
    function = getattr(owner, name)

    def call(*given: Any, **named: Any) -> Any:
        function(*given, **named)
        act()

    setattr(owner, name, call)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--postgresql", required=True)
    parser.add_argument("--bug", action="store_true")
    parser.add_argument("--to", type=int)
    parser.add_argument("--die", choices=STEPS)
    told = parser.parse_args()
    if told.die:
        die_at(told.die, told.folder)
    app = application(told.folder, told.postgresql, told.bug)
    if told.to is None:
        app.run(new_session("rewinder"), drain=True)
    else:
        app.rewind(told.to)


if __name__ == "__main__":
    main()
