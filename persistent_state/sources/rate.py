"""The source of numbered rows at a steady rate, each always with the same timestamp: for trying things out, and for load."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.sources.base import Chunk, Reach, TimeReplayableSource

PARTITION = ""
ROWS_PER_CHUNK = 1 << 20
_SECOND = 1_000_000


def wall_clock_us() -> int:
    """Return the time now, in microseconds UTC."""
    return time.time_ns() // 1000


class RateSource(TimeReplayableSource):
    """A source of numbered rows at a steady rate: the columns `timestamp` (a timestamp in UTC) and `value` (int64, from 0 on).

    The row `value` has the timestamp `start` + value / `rows_per_second` seconds. Every start of an application sees the same
    rows, of which a replay takes those from its clock on. There is one partition, in which the value is the position.

    Args:
        rows_per_second: How many rows a second has.
        start: The time of the first row, with a time zone; by default the time of the application's first start. Rows between a
            past start and now are all delivered.
        rows_per_batch: The most rows of a micro-batch.
        now_us: Returns the time now in microseconds UTC.

    Raises:
        InvalidInputError: A number is below 1, or `start` has no time zone.

    Example:
        >>> RateSource(10).schema.names
        ['timestamp', 'value']
    """

    timestamp = "timestamp"

    def __init__(
        self,
        rows_per_second: int,
        *,
        start: datetime | None = None,
        rows_per_batch: int = 10_000_000,
        now_us: Callable[[], int] = wall_clock_us,
    ) -> None:
        if rows_per_second < 1 or rows_per_batch < 1:
            raise InvalidInputError(f"{rows_per_second=}, {rows_per_batch=}; give at least 1 of each.")
        if start is not None and start.tzinfo is None:
            raise InvalidInputError(f"start={start.isoformat()!r} has no time zone; give it one, such as timezone.utc.")
        self._rate = rows_per_second
        self._start = None if start is None else round(start.timestamp() * _SECOND)
        self._most = rows_per_batch
        self._now_us = now_us
        self._is_noted = False
        self._frozen: int | None = None
        self._within = 2**63

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])

    def open(self, journal: Sequence[str], known: Mapping[str, int]) -> None:
        """Begin a start, at the time that the journal holds.

        Args:
            journal: The start and the rate that the application first ran with, or nothing.
            known: Not used.

        Raises:
            InvalidInputError: The application has run with another start or rate, whose rows had other timestamps.
        """
        self._is_noted = bool(journal)
        if journal:
            start, rate = (int(text) for text in journal[0].split())
            if rate != self._rate or self._start not in (None, start):
                raise InvalidInputError(
                    f"rows_per_second={self._rate} start={self._start} (microseconds UTC) are others than the {rate} and "
                    f"{start} that the task has run with; keep them, or reset the task."
                )
            self._start = start
        elif self._start is None:
            self._start = self._now_us()

    def stay_within(self, ends: Mapping[str, int]) -> None:
        self._within = ends.get(PARTITION, 0)

    def freeze(self) -> None:
        self._frozen = self._due()

    def reach(self, start: Mapping[str, int], everything: bool) -> Reach:
        begin = start.get(PARTITION, 0)
        due = self._due() if self._frozen is None else self._frozen
        end = max(begin, min(self._within, due if everything else min(due, begin + self._most)))
        note = (f"{self._start} {self._rate}",) if begin == 0 < end and not self._is_noted else ()
        return Reach({**start, PARTITION: end} if end > begin else dict(start), {PARTITION: False}, note)

    def splits(self, start: Mapping[str, int], end: Mapping[str, int], parts: int) -> list[Any]:
        begin, rows = start.get(PARTITION, 0), end.get(PARTITION, 0) - start.get(PARTITION, 0)
        bounds = [begin + rows * part // parts for part in range(parts + 1)]
        # A worker has a copy of the source as it was before `open`.
        return [(self._start, *bound) for bound in pairwise(bounds) if bound[0] < bound[1]]

    def partitions_in(self, split: Any) -> Collection[str]:
        return (PARTITION,)

    def read(self, split: Any) -> Iterator[Chunk]:
        start, begin, end = split
        for first in range(begin, end, ROWS_PER_CHUNK):
            values = np.arange(first, min(first + ROWS_PER_CHUNK, end))
            seconds, rest = np.divmod(values, self._rate)
            stamps = start + seconds * _SECOND + rest * _SECOND // self._rate
            columns = [pa.array(stamps).cast(self.schema.field("timestamp").type), pa.array(values)]
            yield Chunk(PARTITION, first, pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def _due(self) -> int:
        assert self._start is not None, "open comes first"
        return max(0, (self._now_us() - self._start) * self._rate // _SECOND)
