"""Orders in many currencies, converted with the exchange rates of their time, which come late and out of order.

    python -m examples.currencies [--folder DIR] [--json] [--orders N]

Orders come from one source, exchange rates from another, up to half an hour late. An as-of join waits until the clock has
passed an order, and then gives it the rate that was in force at its time. The task that adds up what each shop has taken is
fed by the joined rows. Amounts are whole cents and rates whole millionths, so that every sum is exact:

    orders ─┬─ Converted ── emitted rows ── Revenue ── a table in SQLite, with the sums at each clock
    rates ──┘

The example kills its driver with SIGKILL on the way, and starts another with other shards. It exits 0 only if the sums at
each clock are, to the millionth of a cent, what pandas makes of the orders before that clock with the rates of their time.
It also says by how much the sums were wrong if each order were converted as it comes. With --folder, all stays there.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from examples.driven import driver, folder_for, last_words, local_spark, report, write_stream
from monoids import Sum
from persistent_state import (
    Application,
    AsOfJoin,
    Emitted,
    FileSource,
    Input,
    NonWindowState,
    PersistentTask,
    SqlSink,
)
from persistent_state.formatting import read_clock, show_clock


class Revenue(PersistentTask):
    """What a shop has taken, in millionths of a euro cent."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pc.multiply(batch["cents"], batch["millionths"])


def application(folder: Path, shards: int) -> Application:
    app = Application(
        "currencies",
        store=str(folder / "store"),
        checkpoint_interval="15 minutes",
        allowed_delay="1 minute",
        shards=shards,
    )
    orders, rates = (
        FileSource(folder / name, timestamp="ts", schema=schema, max_files_per_batch=1)
        for name, schema in (("orders", ORDERS), ("rates", RATES))
    )
    join = AsOfJoin("orders", "rates", key="currency", name="Converted")
    app.add(join, {"orders": orders, "rates": Input(rates, allowed_delay="30 minutes")})
    revenue = SqlSink(str(folder / "currencies.db"), "revenue", history=True)
    return app.add(Revenue(), Emitted("Converted"), sink=revenue)


# That was the application. What follows makes orders and rates, kills a driver, and checks.

SECOND_US = 1_000_000
BEGIN = 1_735_689_600 * SECOND_US
HOURS, SHOPS = 6, 40
FILES = 12
KILL_AT = 3
"""The driver is killed when the table has the sums of this number of clocks."""

TIME = pa.timestamp("us", "UTC")
ORDERS = pa.schema([("shop", pa.string()), ("currency", pa.string()), ("cents", pa.int64()), ("ts", TIME)])
RATES = pa.schema([("currency", pa.string()), ("millionths", pa.int64()), ("ts", TIME)])
CURRENCIES = {"CHF": 1_060_000, "GBP": 1_190_000, "JPY": 6_100, "SEK": 87_000, "USD": 920_000}


def make_rows(count: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Orders and rates as they come, with the time at which they do. A currency has a rate each minute."""
    chance = np.random.default_rng(7)
    ts = BEGIN + np.sort(chance.integers(1, HOURS * 3600 * SECOND_US, count))
    orders = pd.DataFrame(
        {
            "shop": [f"shop {number:02d}" for number in chance.integers(0, SHOPS, count)],
            "currency": chance.choice([*CURRENCIES], count),
            "cents": chance.integers(100, 100_000, count),
            "ts": ts,
            "comes": ts + chance.integers(0, 60 * SECOND_US, count),
        }
    )
    minutes = BEGIN + np.arange(HOURS * 60) * 60 * SECOND_US
    walks = [
        pd.DataFrame(
            {
                "currency": name,
                "millionths": first + chance.integers(-first // 500, first // 500, len(minutes)).cumsum(),
                "ts": minutes,
            }
        )
        for name, first in CURRENCIES.items()
    ]
    rates = pd.concat(walks)
    rates["comes"] = rates["ts"] + chance.integers(0, 1800 * SECOND_US, len(rates))
    # No order is before the first rates.
    rates.loc[rates["ts"] == BEGIN, "comes"] = BEGIN
    by = ["comes", "currency"]
    return orders.sort_values("comes", ignore_index=True), rates.sort_values(by, ignore_index=True)


def write_rows(folder: Path, orders: pd.DataFrame, rates: pd.DataFrame) -> None:
    for name, schema, rows in (("orders", ORDERS, orders), ("rates", RATES, rates)):
        columns = [pa.array(rows[field.name]).cast(field.type) for field in schema]
        write_stream(folder / name, pa.table(columns, schema=schema), files=FILES)


def converted(orders: pd.DataFrame, rates: pd.DataFrame) -> pd.DataFrame:
    """The orders with what pandas makes of each with the rate of its time."""
    rates = rates[["currency", "millionths", "ts"]].sort_values("ts")
    joined = pd.merge_asof(orders.sort_values("ts"), rates, on="ts", by="currency")
    return joined.assign(value=joined["cents"] * joined["millionths"])


def as_they_come(orders: pd.DataFrame, rates: pd.DataFrame) -> pd.Series:
    """What each shop has taken if each order is converted when it comes, with the newest rate that has come."""
    rates = rates.assign(newest=rates.groupby("currency")["ts"].cummax())
    rates = rates[rates["ts"] == rates["newest"]][["currency", "millionths", "comes"]]
    joined = pd.merge_asof(orders, rates, on="comes", by="currency")
    return joined.assign(value=joined["cents"] * joined["millionths"]).groupby("shop")["value"].sum()


def rows_in(folder: Path) -> list[tuple[int, str, int]]:
    """The rows of the table: clock, shop and value. None, while the first driver has yet to make it."""
    database = folder / "currencies.db"
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=60)) as connection:
            rows = connection.execute("SELECT clock, shop, value FROM revenue ORDER BY clock").fetchall()
    except sqlite3.OperationalError:
        return []
    return [(read_clock(clock), shop, int(value)) for clock, shop, value in rows]


def check(rows: list[tuple[int, str, int]], right: pd.DataFrame) -> tuple[int, list[str]]:
    """How many clocks the table has, and what is wrong with the sums at them, a sentence each."""
    state, problems = dict[str, int](), []
    clocks = sorted({clock for clock, _, _ in rows})
    for clock in clocks:
        state |= {shop: value for at, shop, value in rows if at == clock}
        wanted = right[right["ts"] < clock].groupby("shop")["value"].sum()
        if state != wanted.to_dict():
            problems.append(f"the sums at {show_clock(clock)} are not those of pandas")
    if not clocks or right["ts"].max() >= clocks[-1]:
        problems.append("the last clock is not above all orders")
    return len(clocks), problems


def run_twice(folder: Path) -> tuple[int, list[str]]:
    """The last clock that the first driver gave the table, and what went wrong, a sentence each."""

    def clocks() -> list[int]:
        return sorted({clock for clock, _, _ in rows_in(folder)})

    with driver("examples.currencies", folder, "--drive", "2") as process:
        while len(clocks()) < KILL_AT:
            if process.poll() is not None:
                return 0, [f"the first driver ended before it could be killed, and said: {last_words(folder)}"]
            time.sleep(0.05)
        process.kill()
        process.wait()
    killed_at = clocks()[-1]
    print(f"Killed when the table was at {show_clock(killed_at)}; the next one starts, with 3 shards.", flush=True)
    with driver("examples.currencies", folder, "--drive", "3") as process:
        if process.wait() != 0:
            return killed_at, [f"the second driver did not come to the end, and said: {last_words(folder)}"]
    return killed_at, []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="keep streams, store, table and log here (default: a temporary folder)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as a line of JSON before the last line")
    parser.add_argument("--orders", type=int, default=30_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--drive", type=int, metavar="SHARDS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        application(arguments.folder, arguments.drive).run(local_spark("currencies"), drain=True)
        return 0
    figures: dict[str, Any] = {}
    with folder_for("currencies", arguments.folder) as folder:
        orders, rates = make_rows(arguments.orders)
        print(f"{len(orders):,} orders and {len(rates):,} rates; a driver takes seconds to start.", flush=True)
        write_rows(folder, orders, rates)
        killed_at, problems = run_twice(folder)
        if not problems:
            right = converted(orders, rates)
            clocks, problems = check(rows_in(folder), right)
            wrong = (as_they_come(orders, rates) - right.groupby("shop")["value"].sum()).abs().sum()
            figures = {
                "orders": len(orders),
                "rates": len(rates),
                "clocks": clocks,
                "euros": f"{right['value'].sum() / 1e8:,.2f}",
                "otherwise": f"{wrong / 1e8:,.2f}",
            }
    is_right = report(problems, {**figures, "killed_at": killed_at}, as_json=arguments.json)
    if is_right:
        print(
            "{orders:,} orders are {euros} euros, and the sums of all shops are exact at each of {clocks} clocks; converted as "
            "they came, they were wrong by {otherwise} euros".format(**figures)
        )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
