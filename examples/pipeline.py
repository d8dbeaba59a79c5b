"""A pipeline: tasks that feed tasks, in one application with one clock, whose tables agree at every clock, through kills too.

    python -m examples.pipeline [--folder DIR] [--json] [--orders N] [--kills N]

Shops take orders, and move from region to region in mid-stream. Two tasks read the orders, three more read these tasks:

    orders ── PerShop ────────── changes ───────── PerRegion              what each shop, and each region, has taken so far
           └─ PerShopAndHour ─── closed windows ── PerRegionAndHour       what they took in each hour that is over
                                                   └─ closed windows ── TopTen      the best ten regions of each hour

When a shop moves, all that it has ever taken moves with it: the library takes it back from the one region and gives it to
the other. Each task has a table in SQLite. The global clock is one cut through all of them, so at each clock the regions
are the sum of the shops, the top ten are those of the regions, and each table is what pandas makes of the orders before
that clock.

The example kills its driver with SIGKILL at one stage after the other, starts another with other shards, and looks into
SQLite after each. In the end it takes the orders away, and adds a task to what feeds tasks: built from the state, it is
right at once. It exits 0 only if all that is so. With --folder, pipeline.db stays there, with a picture of the graph.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from examples.driven import driver, folder_for, last_words, let_in, local_spark, report, write_stream
from monoids import Count, Last, Struct, Sum, TopK
from persistent_state import (
    Application,
    Changes,
    ClosedWindows,
    FileSource,
    NonWindowState,
    PersistentTask,
    SqlSink,
    TumblingWindow,
    WindowState,
)
from persistent_state.cli.commands import main as persistent_state
from persistent_state.formatting import read_clock, show_clock

TEN = 10


def struct(**columns: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([*columns.values()], names=[*columns])


class PerShop(PersistentTask):
    """What a shop has taken, and the region that it is in."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Struct(revenue=Sum(), region=Last(pa.string())))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return struct(revenue=batch["amount"], region=batch["region"])


class PerRegion(PersistentTask):
    """What the shops have taken that are in a region now, and how many these are."""

    key = "region"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Struct(revenue=Sum(), shops=Count()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return struct(revenue=batch["revenue"], shops=pa.array([1] * len(batch)))


class PerShopAndHour(PerShop):
    """The same for each hour."""

    def persistent_state(self) -> WindowState[Any]:  # type: ignore[override]
        return WindowState(Struct(revenue=Sum(), region=Last(pa.string())), TumblingWindow("1 hour"))


class PerRegionAndHour(PersistentTask):
    """What the shops took in an hour that were in a region at its end."""

    key, value = "region", "revenue"

    def persistent_state(self) -> WindowState[int]:
        # A row of a window that has closed is of the window's last microsecond.
        return WindowState(Sum(), TumblingWindow("1 hour"))


class TopTen(PersistentTask):
    """The regions that took most in an hour."""

    def persistent_state(self) -> WindowState[Any]:
        return WindowState(TopK(TEN, pa.int64(), pa.string()), TumblingWindow("1 hour"))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return struct(by=batch["value"], value=batch["region"])


class Country(PersistentTask):
    """What all regions have taken, and how many shops are in them."""

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Struct(revenue=Sum(), shops=Sum()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return struct(revenue=batch["revenue"], shops=batch["shops"])


def application(folder: Path, shards: int, with_country: bool = False) -> Application:
    app = Application(
        "pipeline",
        store=str(folder / "store"),
        checkpoint_interval="30 minutes",
        allowed_delay="1 minute",
        shards=shards,
    )
    orders = FileSource(folder / "stream", timestamp="ts", schema=SCHEMA, max_files_per_batch=1)

    def table(name: str, history: bool = False) -> SqlSink:
        return SqlSink(str(folder / "pipeline.db"), name, history=history)

    app.add(PerShop(), orders, sink=table("shops", history=True))
    app.add(PerRegion(), Changes("PerShop"), sink=table("regions", history=True))
    app.add(PerShopAndHour(), orders, sink=table("shop_hours"))
    app.add(PerRegionAndHour(), ClosedWindows("PerShopAndHour"), sink=table("region_hours"))
    app.add(TopTen(), ClosedWindows("PerRegionAndHour"), sink=table("top_ten"))
    if with_country:
        app.add(Country(), Changes("PerRegion"), sink=table("country"))
    return app


# That was the application. What follows makes orders, kills drivers, and checks.

SCHEMA = pa.schema(
    [("shop", pa.string()), ("region", pa.string()), ("amount", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
HOUR = 3_600_000_000
BEGIN = int(datetime(2025, 1, 1, tzinfo=timezone.utc).timestamp()) * 1_000_000
HOURS, SHOPS, REGIONS = 8, 150, 16
TABLES = ("shops", "shop_hours", "regions", "region_hours", "top_ten")


def make_orders(count: int) -> pd.DataFrame:
    """As they come, which is up to half a minute late. A shop moves to the next region every few hours."""
    chance = np.random.default_rng(7)
    ts = BEGIN + np.arange(count, dtype=np.int64) * (HOURS * HOUR // count) + chance.integers(0, 1_000, count)
    shop = (SHOPS * chance.random(count) ** 2).astype(np.int64)
    moves = (ts - BEGIN) // (HOUR * (2 + shop // REGIONS % 3))
    orders = pd.DataFrame(
        {
            "shop": [f"shop {number:03d}" for number in shop],
            "region": [f"region {number:02d}" for number in (shop + moves) % REGIONS],
            "amount": chance.integers(100, 100_000, count),
            "ts": ts,
        }
    )
    return orders.iloc[np.argsort(ts + chance.integers(0, 30_000_000, count))]


def write_orders(folder: Path, orders: pd.DataFrame) -> None:
    """Write a file for each half hour. `come_in` lets them come into the stream."""
    columns = [pa.array(orders[field.name]).cast(field.type) for field in SCHEMA]
    write_stream(folder / "later", pa.table(columns, schema=SCHEMA), files=2 * HOURS)
    (folder / "stream").mkdir()


def come_in(folder: Path, upto: int) -> bool:
    """Let orders come into the stream until it has those before a time. Return False if there are no more of them."""
    return let_in(folder, (upto - BEGIN) // (HOUR // 2))


State = Mapping[Any, Any]


def wanted(orders: pd.DataFrame, clock: int) -> dict[str, State]:
    """What pandas makes of the orders before a clock: the rows of each table."""
    before = orders[orders["ts"] < clock].sort_values("ts")
    shops = before.groupby("shop").agg(revenue=("amount", "sum"), region=("region", "last"))
    regions = shops.groupby("region").agg(revenue=("revenue", "sum"), shops=("revenue", "size"))
    closed = before[before["ts"] < clock // HOUR * HOUR]
    hours = closed.assign(hour=closed["ts"] // HOUR * HOUR).groupby(["shop", "hour"])
    shop_hours = hours.agg(revenue=("amount", "sum"), region=("region", "last"))
    region_hours = shop_hours.groupby(["region", "hour"])["revenue"].sum()
    best = region_hours.reset_index().sort_values(["revenue", "region"], ascending=False).groupby("hour").head(TEN)
    return {
        "shops": shops.to_dict("index"),
        "regions": regions.to_dict("index"),
        "shop_hours": shop_hours.to_dict("index"),
        "region_hours": region_hours.to_dict(),
        "top_ten": {
            hour: [{"by": row.revenue, "value": row.region} for row in rows.itertuples()]
            for hour, rows in best.groupby("hour")
        },
    }


@dataclass(frozen=True)
class Tables:
    """The tables of the pipeline as they are in SQLite."""

    path: Path

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=rw", uri=True, timeout=60)) as database:
            return database.execute(query).fetchall()

    def clocks(self) -> dict[str, int]:
        """The last clock of each table; without those that are not there yet."""
        try:
            return dict(self.ask("SELECT table_name, clock FROM persistent_state_clocks"))
        except sqlite3.OperationalError:  # the first driver has yet to make the file
            return {}

    def common(self) -> int:
        """The clock that all tables have come to, or the time of the first orders."""
        clocks = self.clocks()
        return max(BEGIN, min(clocks.get(name, BEGIN) for name in TABLES))

    def states(self) -> Iterator[tuple[int, dict[str, State]]]:
        """Each clock that all tables have come to, with the rows of each table at that clock."""
        rows = {name: self.rows(name) for name in TABLES}
        common, states = self.common(), dict[str, dict[Any, Any]]((name, {}) for name in TABLES)
        for clock in sorted({clock for of_task in rows.values() for clock, _, _ in of_task if clock <= common}):
            for name, of_task in rows.items():
                states[name].update((key, value) for at, key, value in of_task if at == clock)
            # A region without shops has nothing left.
            regions = {key: value for key, value in states["regions"].items() if value["shops"]}
            yield clock, {**states, "regions": regions}

    def rows(self, name: str) -> list[tuple[int, Any, Any]]:
        """The rows of a table: clock, key and value."""
        columns = {
            "shop_hours": "shop, window_start,",
            "region_hours": "region, window_start,",
            "top_ten": "window_start,",
        }
        key = columns.get(name, f"{name[:-1]},")
        rows = []
        for clock, *keys, value in self.ask(f"SELECT clock, {key} value FROM {name} ORDER BY clock"):
            if name in columns:
                keys[-1] = read_clock(keys[-1])
            rows.append((read_clock(clock), keys[0] if len(keys) == 1 else tuple(keys), value_of(value)))
        return rows


def value_of(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Look:
    """What SQLite held when a driver was gone: at how many clocks, and at how many of these a table was wrong."""

    driver: str
    shards: int
    clock: int
    clocks: int
    regions: int
    moved: int
    wrong: int

    def __str__(self) -> str:
        return _LINE.format(
            self.driver, self.shards, show_clock(self.clock), self.clocks, self.regions, self.moved, self.wrong
        )


_LINE = "{:<34}{:>7}  {:<21}{:>7}{:>9}{:>7}{:>7}"


def look(tables: Tables, orders: pd.DataFrame, driver: str, shards: int) -> Look:
    """Compare all tables at each clock with pandas, and with each other."""
    clocks, wrong, regions, moved = [], 0, 0, set[str]()
    before: dict[str, str] = {}
    for clock, states in tables.states():
        clocks.append(clock)
        right = states == wanted(orders, clock) and agree(states)
        wrong += not right
        regions = len(states["regions"])
        now = {shop: value["region"] for shop, value in states["shops"].items()}
        moved |= {shop for shop, region in before.items() if now[shop] != region}
        before = now
    seen = Look(driver, shards, max(clocks), len(clocks), regions, len(moved), wrong)
    print(seen, flush=True)
    return seen


def agree(states: Mapping[str, State]) -> bool:
    """Whether what a table has is the sum of what the table has that feeds it."""
    running = [sum(row["revenue"] for row in states[name].values()) for name in ("shops", "regions")]
    by_hour = [sum(row["revenue"] for row in states["shop_hours"].values()), sum(states["region_hours"].values())]
    regions, hours = states["region_hours"], states["top_ten"]
    best = all(regions[each["value"], hour] == each["by"] for hour, top in hours.items() for each in top)
    return len({*running}) == len({*by_hour}) == 1 and best and {hour for _, hour in regions} == hours.keys()


def kill(process: subprocess.Popen[bytes], folder: Path, table: str) -> bool:
    """Kill a driver that has brought all tables to a new clock, and this one to one more; False if it ended before."""
    tables = Tables(folder / "pipeline.db")
    before = tables.common()
    common, clock = before, tables.clocks().get(table)
    # Orders come in as the tables take them: a slow driver must not be at the end before it is killed.
    while come_in(folder, tables.common() + 2 * HOUR) and (common <= before or tables.clocks().get(table) == clock):
        if process.poll() is not None:
            return False
        if common <= before and (common := tables.common()) > before:
            clock = tables.clocks()[table]
        time.sleep(0.03)
    process.kill()
    process.wait()
    return True


def stage(number: int, kills: int) -> str:
    """The table at whose clock the driver of this number is killed. A single kill is in the middle."""
    return TABLES[(2 * number + 1) * len(TABLES) // (2 * kills)]


def watch(folder: Path, orders: pd.DataFrame, kills: int) -> tuple[list[Look], list[str]]:
    """What was seen after each driver, and what was wrong, a sentence each."""
    tables, looks = Tables(folder / "pipeline.db"), list[Look]()
    print(_LINE.format("driver", "shards", "clock of all tables", "clocks", "regions", "moved", "wrong"), flush=True)
    for number in range(kills + 1):
        shards = 1 + number % 3
        to_the_end = ["--to-the-end"] if number == kills else []
        if to_the_end:
            come_in(folder, BEGIN + HOURS * HOUR)
        with driver("examples.pipeline", folder, "--drive", str(shards), *to_the_end) as process:
            if to_the_end:
                if process.wait() != 0:
                    return looks, [f"the last driver did not come to the end, and said: {last_words(folder)}"]
                how = "came to the end"
            elif kill(process, folder, table := stage(number, kills)):
                how = f"killed at a clock of {table}"
            else:
                return looks, [f"the driver ended before it could be killed, and said: {last_words(folder)}"]
        looks.append(look(tables, orders, how, shards))
    problems = [f"a table is not what pandas makes of the orders: {seen}" for seen in looks if seen.wrong]
    if (clocks := [seen.clock for seen in looks]) != sorted(clocks):
        problems.append("the clock went back")
    if orders["ts"].max() >= clocks[-1]:
        problems.append("the last clock is not above all orders")
    return looks, problems


def add_country(folder: Path, orders: pd.DataFrame) -> tuple[str, list[str]]:
    """Take the orders away, and start with one more task. Return what its table holds, and what is wrong."""
    for file in (folder / "stream").iterdir():
        file.unlink()
    with driver("examples.pipeline", folder, "--drive", "2", "--to-the-end", "--country") as process:
        if process.wait() != 0:
            return "", [f"the driver with one more task did not come to the end, and said: {last_words(folder)}"]
    tables = Tables(folder / "pipeline.db")
    actual = tables.ask("SELECT clock, value FROM country")
    (clock,) = {*tables.clocks().values()}
    right = [(clock, {"revenue": int(orders["amount"].sum()), "shops": orders["shop"].nunique()})]
    if [(read_clock(at), value_of(value)) for at, value in actual] != right:
        return str(actual), ["the task that was added is not made of all orders"]
    return f"{actual[0][1]} at {show_clock(clock)}", []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="keep stream, store, tables, picture and log here (default: a temporary folder)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print what was seen as a line of JSON before the last line"
    )
    parser.add_argument("--orders", type=int, default=20_000, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--kills", type=int, default=len(TABLES), metavar="N", help="default: one at each stage, %(default)s"
    )
    parser.add_argument("--drive", type=int, metavar="SHARDS", help=argparse.SUPPRESS)
    parser.add_argument("--to-the-end", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--country", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        app, spark = application(arguments.folder, arguments.drive, arguments.country), local_spark("pipeline")
        if arguments.to_the_end:
            app.run(spark, drain=True)
        else:
            # At most half an hour of orders each second.
            app.start(spark, trigger="1 second").await_termination()
        return 0
    with folder_for("pipeline", arguments.folder) as folder:
        print(
            f"{arguments.orders:,} orders in {HOURS} hours, of {SHOPS} shops that move between {REGIONS} regions; "
            f"{arguments.kills} kills; a driver takes seconds to start.",
            flush=True,
        )
        orders = make_orders(arguments.orders)
        write_orders(folder, orders)
        looks, problems = watch(folder, orders, arguments.kills)
        country = ""
        if not problems:
            country, problems = add_country(folder, orders)
        if not problems:
            print(f"without the orders, one more task: Country is {country}\n")
            persistent_state(["graph", str(folder / "store"), "--svg", str(folder / "pipeline.svg")])
            show_best(Tables(folder / "pipeline.db"))
    is_right = report(
        problems, {"drivers": [asdict(seen) for seen in looks], "country": country}, as_json=arguments.json
    )
    if is_right:
        print(f"\nall tables agree at each of {looks[-1].clocks} clocks, after {arguments.kills} kills")
    return 0 if is_right else 1


def show_best(tables: Tables) -> None:
    """Print the best regions of the last hour."""
    _, hour, best = max(tables.rows("top_ten"), key=lambda row: row[1])
    print(f"\nthe best regions from {show_clock(hour)} on:")
    for each in best[:3]:
        print(f"  {each['value']}  {each['by'] / 100:>12,.2f}")


if __name__ == "__main__":
    sys.exit(main())
