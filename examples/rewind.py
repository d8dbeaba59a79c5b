"""A bug is deployed in July, and found at the end of the year: the application goes back to July, and does it again.

    python -m examples.rewind [--folder DIR] [--json] [--every N]

The flights of a year come in order of delivery. Two tasks add up the minutes of delay: per route, into two SQLite tables, one
with the newest values and one with the values at every clock; and per airport and day, into a Parquet table. In July a version
comes that counts early arrivals as late, so half a year of all three tables is wrong. Then the application is taken back to
1 July, and the mended version reads the rest of the year again.

Both ways of going back are disturbed. The first process is killed with SIGKILL when the log has gone back and the tables have
not, the second in a transaction in which SQLite takes rows back. The example exits 0 only if the tables were wrong
before, half a transaction was never seen, and in the end every row of every table is what pandas makes of the flights.

With --folder, the store and the tables stay there: `persistent-state show FOLDER/store` lists the kept clocks.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Engine, event

from examples import flights
from examples.driven import Key, driver, folder_for, last_words, let_in, local_spark, report, windows_in
from monoids import Sum
from persistent_state import (
    Application,
    FileSource,
    NonWindowState,
    ParquetSink,
    PersistentTask,
    SqlSink,
    TumblingWindow,
    ValuesAtClock,
    WindowState,
    open_store,
)
from persistent_state.formatting import show_clock

DAY = 24 * flights.HOUR_US
DEPLOYED = datetime(2013, 7, 1, tzinfo=timezone.utc)

Minutes = Callable[[pa.Array], pa.Array]


def minutes_late(delay: pa.Array) -> pa.Array:
    """The minutes that a flight was late. One that came early was not, and one that never came has none."""
    return pc.max_element_wise(delay, 0, skip_nulls=False)


def minutes_with_a_bug(delay: pa.Array) -> pa.Array:
    """The version that was deployed in July."""
    return pc.abs(delay)


class Delay(PersistentTask):
    """Adds up minutes of delay, as a version of the code counts them."""

    def __init__(self, minutes: Minutes) -> None:
        self.minutes = minutes

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return self.minutes(batch["arr_delay"])


class DelayPerRoute(Delay):
    """The minutes of delay of each carrier to each destination, so far."""

    key = ("carrier", "dest")

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class DelayPerDay(Delay):
    """The minutes of delay of each airport in each day."""

    key = "origin"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(Sum(), TumblingWindow("1 day"))


def application(folder: Path, minutes: Minutes) -> Application:
    app = Application(
        "flights",
        store=str(folder / "store"),
        checkpoint_interval="1 day",
        allowed_delay="6 hours",
        # A clock of each day of the last year can be gone back to.
        retain=[("1 day", "365 days")],
    )
    departures = FileSource(folder / "stream", timestamp="time_hour", max_files_per_batch=1)
    tables = Tables(folder)
    newest = ValuesAtClock(SqlSink(str(tables.database), "routes"))
    history = ValuesAtClock(SqlSink(str(tables.database), "routes_by_clock", history=True))
    app.add(DelayPerRoute(minutes), departures, sink=[newest, history])
    return app.add(DelayPerDay(minutes), departures, sink=tables.days)


# That was the application. What follows plays the year, kills processes, and checks.

FILES = 26
VERSIONS = {"right": minutes_late, "bug": minutes_with_a_bug}


@dataclass(frozen=True)
class Tables:
    """The tables that the application writes."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "flights.db"

    @property
    def days(self) -> ParquetSink:
        return ParquetSink(self.folder / "days")

    @property
    def in_transaction(self) -> bool:
        """Whether one is under way, or was when its process died: SQLite keeps a journal of what was before."""
        return self.database.with_name(f"{self.database.name}-journal").exists()

    def routes(self, table: str) -> pd.DataFrame:
        with closing(sqlite3.connect(f"{self.database.as_uri()}?mode=rw", uri=True, timeout=60)) as connection:
            rows = pd.read_sql_query(f"SELECT carrier || ' ' || dest AS route, clock, value FROM {table}", connection)
        return rows.assign(clock=pd.to_datetime(rows["clock"], utc=True))


@dataclass(frozen=True)
class Seen:
    """What the tables had at a moment: rows and windows, and how many are not what pandas makes of them.

    `routes` are the rows of the newest values and those at each clock. A transaction of SQLite changes one of the two tables.
    """

    moment: str
    clock: str
    routes: tuple[int, int]
    wrong_routes: int
    days: int
    wrong_days: int

    @property
    def is_right(self) -> bool:
        return self.wrong_routes == self.wrong_days == 0

    def __str__(self) -> str:
        return _LINE.format(self.moment, self.clock, sum(self.routes), self.wrong_routes, self.days, self.wrong_days)


_LINE = "{:<40}{:<12}{:>8}{:>8}{:>7}{:>8}"


def look(tables: Tables, arrived: pd.DataFrame, moment: str) -> Seen:
    """Compare each row of the tables with what pandas makes of the flights that have arrived."""
    newest, history = tables.routes("routes"), tables.routes("routes_by_clock")
    wrong, clock = wrong_routes(newest, history, arrived)
    windows = windows_in(tables.days)
    wanted = minutes_by_day(arrived, max((end for _, _, end in windows), default=0))
    wrong_days = sum(windows.get(key) != [wanted.get(key)] for key in windows.keys() | wanted.keys())
    seen = Seen(moment, f"{clock:%Y-%m-%d}", (len(newest), len(history)), wrong, len(windows), wrong_days)
    print(seen, flush=True)
    return seen


def wrong_routes(newest: pd.DataFrame, history: pd.DataFrame, arrived: pd.DataFrame) -> tuple[int, pd.Timestamp]:
    """Return how many rows of both tables are wrong or missing, and the last clock."""
    clocks = pd.DatetimeIndex(sorted(history["clock"].unique()))
    # The first clock above a flight is the first at which it counts.
    at = clocks.searchsorted(arrived["time_hour"], side="right")
    given = arrived.assign(clock=at)[at < len(clocks)]
    sums = given.pivot_table(index="clock", columns="route", values="minutes", aggfunc="sum")
    totals = sums.reindex(range(len(clocks))).fillna(0).cumsum()
    totals.index = clocks
    then = totals.stack()
    actual = history.set_index(["clock", "route"])["value"]
    changed = then[totals.diff().fillna(totals).stack() != 0].index
    wrong = int((actual != then.reindex(actual.index)).sum()) + len(changed.difference(actual.index))
    now = newest.set_index("route")["value"]
    return wrong + int((now.reindex(totals.columns) != totals.iloc[-1]).sum()), clocks[-1]


def minutes_by_day(arrived: pd.DataFrame, until: int) -> dict[Key, int]:
    """Return what the windows of days hold that end by a time, which is in microseconds."""
    starts = arrived["time_hour"].dt.floor("D").astype("int64")
    sums = arrived.groupby([arrived["origin"], starts])["minutes"].sum()
    windows = {(str(origin), int(start), int(start) + DAY): int(value) for (origin, start), value in sums.items()}
    return {key: value for key, value in windows.items() if key[2] <= until}


def run(folder: Path, version: str, *, files: int, drain: bool) -> str | None:
    """Let files come in, and let a driver of this version read them. Return what it said if it failed."""
    let_in(folder, files)
    with driver("examples.rewind", folder, "--drive", version, *(["--drain"] if drain else [])) as process:
        return None if process.wait() == 0 else f"the driver of the version {version!r} said: {last_words(folder)}"


TABLES, TRANSACTION = "before the tables", "in a transaction"
"""The moments at which a rewind is killed."""


def killed_rewind(folder: Path, moment: str) -> str | None:
    """Let a rewind kill its own process at a moment. Return what was wrong, if it did not."""
    with driver("examples.rewind", folder, "--rewind", moment) as process:
        if process.wait() != -signal.SIGKILL:
            return f"the rewind ended before it was killed, and said: {last_words(folder)}"
    return None


def rewind_to_death(folder: Path, moment: str) -> None:
    """Take the application back, and kill this process when it has, and the tables have not, or have in part."""
    store, tables = str(folder / "store"), Tables(folder)
    newest = open_store(store).application("flights").clocks()[-1]

    def die(_: object) -> None:
        is_moment = (
            tables.in_transaction
            if moment == TRANSACTION
            else open_store(store).application("flights").clocks()[-1] < newest
        )
        if is_moment:
            os.kill(os.getpid(), signal.SIGKILL)

    # Before SQLite commits, or before it is asked for anything.
    event.listen(Engine, "commit" if moment == TRANSACTION else "begin", die)
    application(folder, minutes_late).rewind(DEPLOYED)


def play(folder: Path, arrived: pd.DataFrame, before: int) -> tuple[list[Seen], list[str]]:
    """Return what was seen at each moment, and what was wrong, a sentence each."""
    tables = Tables(folder)
    print(_LINE.format("", "clock", "routes", "wrong", "days", "wrong"), flush=True)
    seen = list[Seen]()

    def after(moment: str, problem: str | None) -> None:
        if problem is not None:
            raise Stopped(problem)
        seen.append(look(tables, arrived, moment))

    try:
        after("July, and all is well", run(folder, "right", files=before, drain=False))
        after("the end of the year, with a bug", run(folder, "bug", files=FILES, drain=True))
        plan = application(folder, minutes_late).plan_rewind(DEPLOYED)
        for output in plan.outputs:
            rows = "" if output.rows is None else f"{output.rows:,} rows: "
            print(f"  plan: back to {show_clock(plan.clock)}, {rows}{output.action} {output.output.rpartition('/')[2]}")
        after(f"the rewind, killed {TABLES}", killed_rewind(folder, TABLES))
        after(f"again, killed {TRANSACTION}", killed_rewind(folder, TRANSACTION))
        after("the end of the year, mended", run(folder, "right", files=FILES, drain=True))
    except Stopped as stopped:
        return seen, [str(stopped)]
    return seen, list(problems(seen))


class Stopped(Exception):
    """A process did not do what it was to do."""


def problems(seen: list[Seen]) -> Iterator[str]:
    """Yield why the example did not show what it is to show, a sentence each."""
    first, with_bug, *_, last = seen
    for each in (first, last):
        if not each.is_right:
            yield f"rows are not what pandas makes of the flights: {each}"
    if with_bug.is_right:
        yield "the bug did no harm"
    if last.clock != with_bug.clock or last.days != with_bug.days:
        yield f"the year did not come to its end again: {last}"


def flights_of(folder: Path, every: int) -> tuple[pd.DataFrame, int]:
    """Write the stream to FOLDER/later. Return the flights that arrived, and how many files come before the deployment."""
    table = flights.write_stream(folder / "later", files=FILES, every=every)
    frame = table.to_pandas()
    frame = frame.assign(route=frame["carrier"] + " " + frame["dest"], minutes=frame["arr_delay"].clip(lower=0))
    before = int((frame["time_hour"] < pd.Timestamp(DEPLOYED)).sum()) * FILES // len(frame)
    return frame.dropna(subset=["arr_delay"]), before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="keep stream, store, tables and log here (default: a temporary folder)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print what was seen as a line of JSON before the last line"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth flight (default: all)")
    parser.add_argument("--drive", choices=VERSIONS, help=argparse.SUPPRESS)
    parser.add_argument("--drain", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rewind", choices=(TABLES, TRANSACTION), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        application(arguments.folder, VERSIONS[arguments.drive]).run(local_spark("rewind"), drain=arguments.drain)
        return 0
    if arguments.rewind:
        rewind_to_death(arguments.folder, arguments.rewind)
        return 0
    with folder_for("rewind", arguments.folder) as folder:
        (folder / "stream").mkdir()
        arrived, before = flights_of(folder, arguments.every)
        print(f"{len(arrived):,} flights in {FILES} files; {before} come before the bug is deployed.", flush=True)
        seen, wrong = play(folder, arrived, before)
    is_right = report(wrong, {"seen": [asdict(each) for each in seen]}, as_json=arguments.json)
    if is_right:
        print("each row of each table is what pandas makes of the flights, as if the bug had never been")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
