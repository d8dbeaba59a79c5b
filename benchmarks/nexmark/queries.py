"""The queries: what each keeps of the bids, what it gives out, and the same in SQL over the same files.

Given out are windows that have closed by the last clock, each once. Two things are not as in Nexmark: of bids of the same
highest price query 7 tells the newest, not all; and query 12, whose windows are of processing time, takes the time of ingestion
that the generator gives each event, since a state knows event time only: so it has one result, whenever it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

import monoids
from benchmarks.nexmark.events import BID, DISORDER, bids
from persistent_state import (
    Application,
    FileSource,
    ParquetSink,
    PersistentTask,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
    WindowState,
)
from persistent_state.sinks import LocalValues, Values


class _Count(PersistentTask):
    """How many bids."""

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)


class HotItems(_Count):
    """Query 5: how many bids each auction had in the last ten seconds, every two seconds."""

    key = "auction"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(monoids.Count(), SlidingWindow("10 seconds", "2 seconds"))


class Hottest(ParquetSink):
    """And which had the most: a window closes at one clock for all its keys, so all its counts come together."""

    def write_values(self, values: Values, clock: int) -> None:
        rows = pa.Table.from_batches(values.batches(), values.schema)
        with_most = rows.join(rows.group_by("window_start").aggregate([("value", "max")]), "window_start")
        most = with_most.filter(pc.equal(with_most["value"], with_most["value_max"])).select(rows.column_names)
        super().write_values(LocalValues.of(most.cast(values.schema)), clock)


class HighestBid(PersistentTask):
    """Query 7: the highest bid of each ten seconds, its price and its number."""

    def persistent_state(self) -> WindowState[Any]:
        return WindowState(monoids.MaxBy(pa.int64(), pa.int64()), TumblingWindow("10 seconds"))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_arrays([batch["price"], batch["number"]], names=["by", "value"])


class UserSessions(_Count):
    """Query 11: how many bids a user made in each session, which ends ten seconds after its last bid."""

    key = "bidder"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(monoids.Count(), SessionWindow("10 seconds"))


class UserWindows(_Count):
    """Query 12: how many bids a user made in each ten seconds, by when they were ingested."""

    key = "bidder"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(monoids.Count(), TumblingWindow("10 seconds"))


BIDS = f"""
    SELECT number, epoch_us(happened) AS happened, epoch_us(ingested) AS ingested, bid.auction, bid.bidder, bid.price
    FROM read_parquet($files) WHERE kind = {BID}
"""

HOT_ITEMS = """
    SELECT auction, window_start, window_start + 10_000_000 AS window_end, count(*) AS value
    FROM (
        SELECT auction, unnest(range(happened // 2_000_000 - 4, happened // 2_000_000 + 1)) * 2_000_000 AS window_start
        FROM bids
    )
    GROUP BY auction, window_start QUALIFY value = max(value) OVER (PARTITION BY window_start)
"""

HIGHEST_BID = """
    SELECT happened // 10_000_000 * 10_000_000 AS window_start, window_start + 10_000_000 AS window_end,
        {'by': max(price), 'value': arg_max(number, {'price': price, 'number': number})} AS value
    FROM bids GROUP BY window_start
"""

USER_SESSIONS = """
    SELECT bidder, min(happened) AS window_start, max(happened) + 10_000_000 AS window_end, count(*) AS value
    FROM (
        SELECT bidder, happened, count(*) FILTER (begins) OVER (PARTITION BY bidder ORDER BY happened) AS session
        FROM (SELECT *, happened >= lag(happened) OVER (PARTITION BY bidder ORDER BY happened) + 10_000_000 AS begins FROM bids)
    )
    GROUP BY bidder, session
"""

USER_WINDOWS = """
    SELECT bidder, ingested // 10_000_000 * 10_000_000 AS window_start, window_start + 10_000_000 AS window_end,
        count(*) AS value
    FROM bids GROUP BY bidder, window_start
"""


@dataclass(frozen=True)
class Query:
    """A task, the table of what it gives out, the column of its time, and what it is to be in SQL, of the view `bids`."""

    task: PersistentTask
    sql: str
    timestamp: str = "happened"
    table: type[ParquetSink] = ParquetSink


QUERIES: Mapping[str, Query] = {
    "q5": Query(HotItems(), HOT_ITEMS, table=Hottest),
    "q7": Query(HighestBid(), HIGHEST_BID),
    "q11": Query(UserSessions(), USER_SESSIONS),
    "q12": Query(UserWindows(), USER_WINDOWS, timestamp="ingested"),
}


def application(
    names: Sequence[str], events: Path, scratch: Path, interval: str, max_files_per_batch: int
) -> tuple[Application, dict[str, ParquetSink]]:
    """An application of these queries, and their tables."""
    app = Application(
        "nexmark", str(scratch / "store"), checkpoint_interval=interval, allowed_delay=f"{DISORDER} microseconds"
    )
    tables = {name: QUERIES[name].table(scratch / name) for name in names}
    for name, table in tables.items():
        query = QUERIES[name]
        source = FileSource(events, timestamp=query.timestamp, transform=bids, max_files_per_batch=max_files_per_batch)
        app.add(query.task, source, table)
    return app, tables


def results(table: ParquetSink) -> pa.Table:
    """All windows of a table, in microseconds, without the clocks at which they came."""
    rows = table.dataset().to_table().drop_columns("clock")
    whole = [field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field for field in rows.schema]
    return rows.cast(pa.schema(whole))


def differences(name: str, events: Path, found: pa.Table, clock: int) -> list[tuple[Any, ...]]:
    """The rows that a query has and DuckDB lacks, or the other way round, of windows that have closed by the clock."""
    with duckdb.connect() as database:
        files = sorted(map(str, events.glob("*.parquet")))
        database.execute(f"CREATE TABLE bids AS {BIDS}", {"files": files})
        database.register("found", found)
        wanted = f"SELECT * FROM ({QUERIES[name].sql}) WHERE window_end <= {clock}"
        only = "(SELECT '{}', * FROM ({} EXCEPT ALL {}))"
        both = [("found", "FROM found", wanted), ("wanted", wanted, "FROM found")]
        return database.sql(" UNION ALL ".join(only.format(*each) for each in both)).fetchall()
