"""The Parquet streams that every contender reads: made once, the same for the same workload."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from persistent_state.partials.keys import hash_keys, shard_range

ROWS_PER_FILE = int(os.environ.get("ROWS_PER_FILE", 1_000_000))
"""Rows of a file, of which most benchmarks read two in a micro-batch. With few, a benchmark only shows that it runs."""
START = 1_700_000_000_000_000
STEP = 1_000
"""Microseconds of event time from one row to the next."""
ZIPF = 1.1
"""The exponent of the skewed distribution: the most frequent key has a tenth of all rows, or nearly."""
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("v", pa.int64())])
"""Of all streams but those with strings for keys, or with channels."""
CHANNEL = "c"
DISTRIBUTIONS = ("uniform", "zipf", "hot", "skewed")
SKEWED_SHARDS = 64
"""A skewed stream has half of its keys in the first of so many shards."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "persistent-state-benchmarks"


@dataclass(frozen=True)
class Workload:
    """What the rows hold: so many rows and keys, of which type, how often each, and what is kept of its values.

    With `touched` there are first rows of every key, as many files as that takes, and then only of so many keys.
    Values are kept over all time, or in `windows`: "sliding" or "sessions". With `channels` there is a column of so many.
    Of a "hot" stream half of all rows have one key; of a "skewed" one half of all keys are in one shard of 64.
    """

    keys: int
    rows: int = 24_000_000
    key_type: str = "long"
    distribution: str = "uniform"
    value_type: str = "long"
    touched: int = 0
    windows: str = ""
    channels: int = 0
    rows_per_file: int = ROWS_PER_FILE

    @property
    def name(self) -> str:
        keys = f"{self.keys:,} {self.key_type} keys"
        touched = f", {self.touched:,} touched" if self.touched else ""
        windows = f", {self.windows}" if self.windows else ""
        windows += f", {self.channels:,} channels" if self.channels else ""
        kept = "sum" if self.value_type == "long" else self.value_type
        return f"{keys}, {self.distribution}{touched}{windows}, {kept}"

    @property
    def files(self) -> int:
        return -(-self.rows // self.rows_per_file)

    def folder(self) -> Path:
        """The stream's folder, made if it is not there. The columns are `ts`, `k` and `v`."""
        place = CACHE / f"{self.keys}-{self.rows}-{self.key_type}-{self.distribution}"
        place = place.with_name(f"{place.name}-{self.touched}") if self.touched else place
        if self.channels or self.rows_per_file != 1_000_000:
            place = place.with_name(f"{place.name}-{self.channels}-{self.rows_per_file}")
        if not place.exists():
            partial = place.with_name(place.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            for number, table in enumerate(self._tables()):
                pq.write_table(table, partial / f"{number:04d}.parquet")
                print(f"\rmaking {self.name}: {number + 1} of {self.files} files", end="", flush=True)
            print(flush=True)
            partial.rename(place)
        return place

    def _tables(self) -> Iterator[pa.Table]:
        chance = np.random.default_rng(self.keys)
        for number in range(self.files):
            first = number * self.rows_per_file
            count = min(self.rows_per_file, self.rows - first)
            places = first + np.arange(count)
            table = pa.table(
                {
                    "ts": pa.array(START + places * STEP, pa.timestamp("us", "UTC")),
                    "k": self._keys(chance, first, count),
                    "v": chance.integers(0, 100, count),
                }
            )
            yield table.append_column(CHANNEL, self._channels.take(places % self.channels)) if self.channels else table

    @cached_property
    def _channels(self) -> pa.Array:
        return pa.array([f"device-{number:05d}" for number in range(self.channels)])

    @cached_property
    def _skewed_keys(self) -> np.ndarray[Any, Any]:
        """As many keys as there are. The first half of them is in the first shard."""
        some = np.arange(self.keys * SKEWED_SHARDS)
        is_first = hash_keys([pa.array(some)], len(some)) < shard_range(0, SKEWED_SHARDS)[1]
        return np.concatenate([some[is_first][: self.keys // 2], some[~is_first][: self.keys - self.keys // 2]])

    def _keys(self, chance: np.random.Generator, first: int, count: int) -> Any:
        if self.touched and first < self.keys:
            keys = (first + np.arange(count)) % self.keys
        elif self.touched:
            keys = chance.integers(0, self.touched, count) * (self.keys // self.touched)
        elif self.distribution == "zipf":
            # By the inverse of the distribution's integral, which needs no table of the keys.
            share = chance.random(count)
            top = self.keys ** (1 - ZIPF)
            keys = ((1 - share * (1 - top)) ** (1 / (1 - ZIPF))).astype(np.int64) - 1
        else:
            keys = chance.integers(0, self.keys, count)
        if self.distribution == "hot":
            keys[chance.random(count) < 0.5] = 0
        elif self.distribution == "skewed":
            keys = self._skewed_keys[keys]
        return keys if self.key_type == "long" else pa.array([f"customer-{key:08d}" for key in keys.tolist()])
