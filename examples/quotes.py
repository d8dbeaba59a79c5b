"""Trades with the quotes of their time, each in a Parquet table once, although quotes come late and the driver is killed.

    python -m examples.quotes [--folder DIR] [--json] [--trades N]

A trade is joined with the newest quote of its symbol that is no newer than the trade, and at most five seconds old.
Trades and quotes are streams of their own. Both come out of order, and quotes up to two seconds late: a join of what has come
so far takes an older quote, and another one when it looks again. An as-of join waits until the clock has passed the trade. Then
each trade is joined once, for good.

The example kills its driver with SIGKILL on the way, and starts another with other shards. It exits 0 only if the table has
each trade once, with the quote that `pandas.merge_asof` gives it. It also counts the trades that would have got another
quote if they had been joined as they came. With --folder, all stays there.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from examples.driven import driver, folder_for, last_words, local_spark, report, write_stream
from persistent_state import Application, AsOfJoin, FileSource, ParquetSink
from persistent_state.errors import InvalidInputError
from persistent_state.formatting import show_clock


def application(folder: Path, shards: int) -> Application:
    app = Application(
        "quotes",
        store=str(folder / "store"),
        checkpoint_interval="1 minute",
        allowed_delay="2 seconds",
        shards=shards,
    )
    trades, quotes = (
        FileSource(folder / name, timestamp="ts", schema=schema, max_files_per_batch=1)
        for name, schema in (("trades", TRADES), ("quotes", QUOTES))
    )
    join = AsOfJoin("trades", "quotes", key="symbol", tolerance="5 seconds")
    return app.add(join, {"trades": trades, "quotes": quotes}, sink=ParquetSink(folder / "joined"))


# That was the application. What follows makes trades and quotes, kills a driver, and checks.

SECOND_US = 1_000_000
BEGIN = 1_735_689_600 * SECOND_US
MINUTES, SYMBOLS = 20, 50
QUOTES_PER_TRADE = 3
FILES = 10
KILL_AT = 3
"""The driver is killed when the table has this number of clocks."""
PRINTED = 5

TIME = pa.timestamp("us", "UTC")
TRADES = pa.schema([("symbol", pa.string()), ("ts", TIME), ("trade", pa.int64()), ("price", pa.float64())])
QUOTES = pa.schema([("symbol", pa.string()), ("ts", TIME), ("bid", pa.float64()), ("ask", pa.float64())])


def make_rows(trades: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Trades and quotes as they come, with the time at which they do. Several quotes of a symbol may be of one millisecond."""
    chance = np.random.default_rng(7)

    def times(count: int, late: int) -> dict[str, np.ndarray]:
        ts = BEGIN + np.sort(chance.integers(0, MINUTES * 60_000, count)) * 1_000
        return {"ts": ts, "comes": ts + chance.integers(0, late, count)}

    # The later letters are quoted, and traded, so seldom that a quote is often too old.
    names = np.array([f"{letter}{number}" for letter in "ABCDE" for number in range(SYMBOLS // 5)])
    share = np.repeat([100, 50, 20, 4, 1], SYMBOLS // 5)
    made = pd.DataFrame({"symbol": chance.choice(names, trades, p=share / share.sum()), **times(trades, SECOND_US)})
    made["trade"], made["price"] = np.arange(trades), np.round(chance.normal(100, 5, trades), 2)
    count = QUOTES_PER_TRADE * trades
    quotes = pd.DataFrame({"symbol": chance.choice(names, count, p=share / share.sum()), **times(count, 2 * SECOND_US)})
    quotes["bid"] = np.round(chance.normal(99, 5, count), 2)
    quotes["ask"] = quotes["bid"] + 0.5
    return made.sort_values("comes", ignore_index=True), quotes.sort_values("comes", ignore_index=True)


def write_rows(folder: Path, trades: pd.DataFrame, quotes: pd.DataFrame) -> None:
    for name, schema, rows in (("trades", TRADES, trades), ("quotes", QUOTES, quotes)):
        columns = [pa.array(rows[field.name]).cast(field.type) for field in schema]
        write_stream(folder / name, pa.table(columns, schema=schema), files=FILES)


def wanted(trades: pd.DataFrame, quotes: pd.DataFrame) -> pd.DataFrame:
    """The trades with the quotes that pandas gives them, by number."""
    quotes = quotes.assign(quotes_ts=quotes["ts"]).sort_values("ts", kind="stable")
    joined = pd.merge_asof(
        trades.sort_values("ts", kind="stable"),
        quotes.drop(columns="comes"),
        on="ts",
        by="symbol",
        tolerance=5 * SECOND_US,
    )
    return joined.drop(columns="comes").set_index("trade").sort_index()


def as_they_come(trades: pd.DataFrame, quotes: pd.DataFrame) -> pd.DataFrame:
    """The quotes that the trades get, by number, if each is joined when it comes with the newest quote that has come."""
    quoted = []
    newest = dict[str, tuple[int, float]]()
    events = [(row.comes, False, row) for row in quotes.itertuples()] + [
        (row.comes, True, row) for row in trades.itertuples()
    ]
    for _, is_trade, row in sorted(events, key=lambda event: event[:2]):
        ts, bid = newest.get(row.symbol, (0, np.nan))
        if is_trade:
            quoted.append((row.trade, bid if row.ts - 5 * SECOND_US <= ts <= row.ts else np.nan))
        elif row.ts >= ts:
            newest[row.symbol] = row.ts, row.bid
    return pd.DataFrame(quoted, columns=["trade", "bid"]).set_index("trade").sort_index()


def joined_in(folder: Path) -> pd.DataFrame:
    """The rows of the table, by number of the trade."""
    table = ParquetSink(folder / "joined").dataset().to_table()
    for name in ("ts", "quotes_ts", "timestamp"):
        table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(pa.int64()))
    return table.to_pandas().set_index("trade").sort_index()


def check(actual: pd.DataFrame, right: pd.DataFrame) -> list[str]:
    """What is wrong with the rows of the table, a sentence each."""
    if actual.index.has_duplicates:
        return ["a trade is there more than once"]
    if not actual.index.equals(right.index):
        return [f"{len(right.index.symmetric_difference(actual.index))} trades are missing, or none"]
    problems = []
    if not (actual["timestamp"] == actual["ts"]).all():
        problems.append("a joined row has not the time of its trade")
    if wrong := int((~same(actual[right.columns], right)).any(axis=1).sum()):
        problems.append(f"{wrong} trades have another quote than pandas gives them")
    return problems


def same(one: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    return (one == other) | (one.isna() & other.isna())


def run_twice(folder: Path) -> tuple[int, list[str]]:
    """The last clock that the first driver gave the table, and what went wrong, a sentence each."""
    with driver("examples.quotes", folder, "--drive", "2") as process:
        while len(clocks_in(folder)) < KILL_AT:
            if process.poll() is not None:
                return 0, [f"the first driver ended before it could be killed, and said: {last_words(folder)}"]
            time.sleep(0.01)
        process.kill()
        process.wait()
    killed_at = clocks_in(folder)[-1]
    print(f"Killed when the table was at {show_clock(killed_at)}; the next one starts, with 3 shards.", flush=True)
    with driver("examples.quotes", folder, "--drive", "3") as process:
        if process.wait() != 0:
            return killed_at, [f"the second driver did not come to the end, and said: {last_words(folder)}"]
    return killed_at, []


def clocks_in(folder: Path) -> list[int]:
    """The clocks that the table has been given."""
    try:
        return ParquetSink(folder / "joined").clocks()
    except InvalidInputError:  # the first driver has yet to make it
        return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, help="keep streams, store, table and log here (default: a temporary folder)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as a line of JSON before the last line")
    parser.add_argument("--trades", type=int, default=50_000, metavar="N", help="default: %(default)s")
    parser.add_argument("--drive", type=int, metavar="SHARDS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        application(arguments.folder, arguments.drive).run(local_spark("quotes"), drain=True)
        return 0
    figures: dict[str, int] = {}
    with folder_for("quotes", arguments.folder) as folder:
        trades, quotes = make_rows(arguments.trades)
        print(f"{len(trades):,} trades and {len(quotes):,} quotes; a driver takes seconds to start.", flush=True)
        write_rows(folder, trades, quotes)
        killed_at, problems = run_twice(folder)
        if not problems:
            right, actual = wanted(trades, quotes), joined_in(folder)
            problems = check(actual, right)
            figures = {
                "trades": len(trades),
                "quotes": len(quotes),
                "without": int(right["bid"].isna().sum()),
                "otherwise": int((~same(as_they_come(trades, quotes)[["bid"]], right[["bid"]])).sum().sum()),
            }
            print(actual[["symbol", "price", "bid", "ask"]].head(PRINTED).to_string())
    is_right = report(problems, {**figures, "killed_at": killed_at}, as_json=arguments.json)
    if is_right:
        print(
            "{trades:,} trades in the table, each once and with the quote that pandas gives it; {without:,} have none that is "
            "young enough; {otherwise:,} had got another as they came".format(**figures)
        )
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
