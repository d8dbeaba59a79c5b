"""A stream of people, auctions and bids like Nexmark's, the same for the same seed, as Parquet files.

Of fifty events the first is a new person, the next three are new auctions, and all others are bids. Half of the bids go to the
hot auction and three quarters come from the hot person, the newest whose number is a multiple of a hundred; all others are of
one of the newest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

PERSON, AUCTION, BID = 0, 1, 2
PERIOD, AUCTIONS = 50, 3
"""Of so many events one is a person, and so many are auctions."""
HOT, NEWEST_AUCTIONS, NEWEST_PEOPLE = 100, 100, 1_000
START = 1_700_000_000_000_000
SECOND = 1_000_000
DISORDER = SECOND
"""An event arrives at most so many microseconds after it happened, so it is at most so far behind any before it."""

_TIME = pa.timestamp("us", "UTC")
_PEOPLE = pa.struct([("id", pa.int64()), ("name", pa.string()), ("city", pa.string())])
_AUCTIONS = pa.struct([("id", pa.int64()), ("seller", pa.int64()), ("category", pa.int64()), ("expires", _TIME)])
_BIDS = pa.struct([("auction", pa.int64()), ("bidder", pa.int64()), ("price", pa.int64())])
SCHEMA = pa.schema(
    [
        ("number", pa.int64()),
        ("kind", pa.int8()),
        ("happened", _TIME),
        ("ingested", _TIME),
        ("person", _PEOPLE),
        ("auction", _AUCTIONS),
        ("bid", _BIDS),
    ]
)
"""`ingested` rises from event to event; `happened` is when it did. Of the last three columns one is not null."""

_NAMES = pa.array(["Ada", "Blaise", "Carl", "Emmy", "Kurt", "Leonhard", "Sofia"])
_CITIES = pa.array(["Basel", "Bern", "Genf", "Luzern", "Zug"])


def write(folder: Path, events: int, rate: int, seed: int, per_file: int) -> None:
    """So many events, of which `rate` happen in a second, in files whose names sort in the order of arrival.

    The folder is there when all of them are.
    """
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for file, table in enumerate(tables(events, rate, seed, per_file)):
        pq.write_table(table, partial / f"{file:04d}.parquet")
    os.rename(partial, folder)


def tables(events: int, rate: int, seed: int, per_file: int) -> Iterator[pa.Table]:
    for first in range(0, events, per_file):
        yield _table(np.arange(first, min(first + per_file, events)), rate, np.random.default_rng([seed, first]))


def bids(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The bids among some events, as rows of numbers and times."""
    some = batch.filter(pc.equal(batch["kind"], BID))
    said = dict(zip(_BIDS.names, some["bid"].flatten(), strict=True))
    return pa.record_batch({name: some[name] for name in ("number", "happened", "ingested")} | said)


def _table(number: Any, rate: int, chance: np.random.Generator) -> pa.Table:
    count, place = len(number), number % PERIOD
    kind = np.select([place == 0, place <= AUCTIONS], [PERSON, AUCTION], BID)
    people = number // PERIOD + 1
    auctions = number // PERIOD * AUCTIONS + np.minimum(place, AUCTIONS)
    ingested = START + DISORDER + number * SECOND // rate
    happened = ingested - chance.integers(0, DISORDER + 1, count)
    someone = _chosen(chance, people, 0.75, NEWEST_PEOPLE)
    person = [people - 1, _NAMES.take(pa.array(number % len(_NAMES))), _CITIES.take(pa.array(number % len(_CITIES)))]
    expires = pa.array(happened + chance.integers(1, 60 * SECOND, count), _TIME)
    auction = [auctions - 1, someone, chance.integers(0, 5, count), expires]
    # Prices from 1 to a million, each order of magnitude as often as any other, in hundredths.
    price = np.round(10 ** chance.uniform(0, 6, count) * 100).astype(np.int64)
    bid = [_chosen(chance, auctions, 0.5, NEWEST_AUCTIONS), someone, price]
    fields = [(PERSON, _PEOPLE, person), (AUCTION, _AUCTIONS, auction), (BID, _BIDS, bid)]
    columns = [
        pa.StructArray.from_arrays([pa.array(part) for part in parts], fields=list(type), mask=pa.array(kind != of))
        for of, type, parts in fields
    ]
    times = [pa.array(happened, _TIME), pa.array(ingested, _TIME)]
    return pa.table([pa.array(number), pa.array(kind.astype(np.int8)), *times, *columns], schema=SCHEMA)


def _chosen(chance: np.random.Generator, born: Any, hot: float, newest: int) -> Any:
    """One of those that are born: with this chance the hot one, else any of the newest."""
    others = born - 1 - chance.integers(0, np.clip(born, 1, newest))
    return np.where(chance.random(len(born)) < hot, (born - 1) // HOT * HOT, others)
