"""Read times of Parquet files of the calendar that has Julian dates before 1582-10-15, as Spark 2 wrote all files.

Spark writes into a file's metadata that its times are of that calendar. Dates become those of the proleptic Gregorian calendar,
as Spark reads them. What a time of day before 1900 stands for depends on the zone of its writer, too, so it is not read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from persistent_state.sources.casts import Unfit, is_list, of_column
from persistent_state.sources.fit import value_shown

_FIRST_DAY = (date(1582, 10, 15) - date(1970, 1, 1)).days
"""The first day that both calendars call by one name."""

_SPARK = b"org.apache.spark."


@dataclass(frozen=True)
class Calendars:
    """The times of a Parquet file that are of the old calendar.

    Attributes:
        is_old: True if its dates, and its timestamps with a zone, are.
        old_int96: The columns whose INT96, which has no zone, are.
    """

    is_old: bool = False
    old_int96: frozenset[str] = frozenset()

    def rebased(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, Unfit]]:
        """Return rows with the dates of today's calendar, and why rows are bad whose times can't be known, by number."""
        bad: dict[int, Unfit] = {}
        if not self.is_old and not self.old_int96:
            return rows, bad
        for i, field in enumerate(rows.schema):
            if self.is_old and field.type == pa.date32():
                rows = rows.set_column(i, field, _gregorian(rows.column(i)))
            else:
                why = of_column(field.name, "has a time before 1900 that is written in the calendar before 1582")
                for row in self._old_rows(rows.column(i), field.name in self.old_int96).tolist():
                    if row not in bad:
                        bad[row] = Unfit(why, value_shown(rows.column(i).slice(row, 1), why))
        return rows, bad

    def _old_rows(self, column: pa.Array[Any], is_old_int96: bool) -> NDArray[np.int64]:
        """Return the numbers of the rows that have a time of the old calendar which depends on it, at any level."""
        type, first = column.type, None
        if pa.types.is_timestamp(type) and (is_old_int96 if type.tz is None else self.is_old):
            first = pa.scalar(datetime(1900, 1, 1), pa.timestamp("s")).cast(pa.timestamp(type.unit)).cast(type)
        elif pa.types.is_date(type) and self.is_old:
            first = pa.scalar(date(1582, 10, 15), type)
        if first is not None:
            return np.flatnonzero(pc.less(column, first).fill_null(False).to_numpy(False))
        if pa.types.is_struct(type):
            return np.concatenate([_NONE, *(self._old_rows(part, is_old_int96) for part in column.flatten())])
        if not is_list(type):
            return _NONE
        if pa.types.is_map(type):
            key = pa.field("key", type.key_type, False)
            column = column.cast(pa.list_(pa.struct([key, pa.field("value", type.item_type)])))
        rows = np.repeat(np.arange(len(column)), pc.list_value_length(column).fill_null(0).to_numpy(False))
        return rows[self._old_rows(column.flatten(), is_old_int96)]


_NONE = np.empty(0, np.int64)


def calendars_of(file: pq.ParquetFile) -> Calendars:
    """Return which times of a Parquet file are of the old calendar: Spark says so since 3.0, and knew no other one before."""
    metadata = file.metadata.metadata or {}
    version = metadata.get(_SPARK + b"version")
    if version is None:
        return Calendars()
    old_int96: frozenset[str] = frozenset()
    if version < b"3.1.0" or _SPARK + b"legacyINT96" in metadata:
        leaves = map(file.schema.column, range(len(file.schema)))
        paths = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
        names = file.schema_arrow.names
        old_int96 = frozenset(name for name in names if any(f"{path}.".startswith(f"{name}.") for path in paths))
    return Calendars(version < b"3.0.0" or _SPARK + b"legacyDateTime" in metadata, old_int96)


def _gregorian(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return dates of the old calendar as those that have the same name today; a 29th of February may become a 1st of March."""
    days = column.cast(pa.int32()).fill_null(0).to_numpy(False).astype(np.int64)
    # Years begin in March, so that a leap day is the last one. The Julian calendar lacks the exceptions of centuries.
    years = (4 * (days + 719_470) + 3) // 1461
    named = np.where(days < _FIRST_DAY, days + 2 - years // 100 + years // 400, days)
    mask = column.is_null().to_numpy(False)
    return pa.array(named.astype(np.int32), pa.int32(), mask=mask).cast(pa.date32())
