"""Parquet files of Spark 2, and of Spark's LEGACY mode, have the calendar that is Julian before 1582-10-15."""

from __future__ import annotations

import io
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from persistent_state.sources import formats

EPOCH = date(1970, 1, 1)
SPARK_2 = {"org.apache.spark.version": "2.4.8"}
LEGACY = {"org.apache.spark.version": "4.0.0", "org.apache.spark.legacyDateTime": ""}
TODAY = {"org.apache.spark.version": "4.0.0", "org.apache.spark.timeZone": "UTC"}
WHY = "column {} has a time before 1900 that is written in the calendar before 1582"


def julian_dates() -> list[date]:
    """The date of today's calendar for each day of the Julian one from the year 1 on, counted day by day."""
    found = []
    for year in range(1, 1583):
        lengths = [31, 29 if year % 4 == 0 else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
        for month, length in enumerate(lengths, 1):
            for day in range(1, length + 1):
                if (year, month, day) < (1582, 10, 5):
                    found.append(date(year, month, 1) + timedelta(day - 1))
    return found


def read(
    table: pa.Table, metadata: dict[str, str], **options: Any
) -> tuple[list[Any], list[tuple[int, str, str | None]]]:
    """The rows, and the line, the reason and the value of each bad row."""
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), out, **options)
    schema = pa.schema(
        [each if each.type != pa.timestamp("ns") else each.with_type(pa.timestamp("us")) for each in table.schema]
    )
    rows: list[Any] = []
    bad: list[tuple[int, str, str | None]] = []
    for piece in formats.read_pieces(io.BytesIO(out.getvalue()), formats.PARQUET, None, schema):
        assert piece.rows.num_rows + len(piece.bad) == piece.count
        rows += piece.rows.to_pylist()
        for record in piece.bad:
            original = piece.original(record.position)
            bad.append((original.line or 0, record.reason, original.value))
    return rows, bad


@pytest.mark.parametrize("metadata", [SPARK_2, LEGACY])
def test_each_day_of_the_old_calendar_is_the_date_of_its_name(metadata: dict[str, str]) -> None:
    dates = julian_dates()
    # Spark wrote -719164 for 0001-01-01, and the 4th of October 1582 is the day before the 15th.
    days = range(-719_164, -719_164 + len(dates))
    assert days[-1] + 1 == (date(1582, 10, 15) - EPOCH).days
    later = [*range(days[-1] + 1, days[-1] + 400), 0, 20_000]
    column = pa.array([*days, *later, None], pa.int32()).cast(pa.date32())
    rows, bad = read(pa.table({"d": column}), metadata)
    assert [row["d"] for row in rows] == [*dates, *(EPOCH + timedelta(day) for day in later), None]
    assert bad == []


@pytest.mark.parametrize("metadata", [TODAY, {}, {"org.apache.spark.legacyDateTime": ""}])
def test_other_files_are_of_todays_calendar(metadata: dict[str, str]) -> None:
    table = pa.table(
        {
            "d": pa.array([date(1, 1, 1)]),
            "t": pa.array([datetime(1, 1, 1)], pa.timestamp("us", "UTC")),
            "s": pa.array([[{"a": date(1500, 1, 1)}]]),
        }
    )
    assert read(table, metadata) == (table.to_pylist(), [])


def test_a_time_of_the_old_calendar_before_1900_makes_its_row_bad() -> None:
    zoned = pa.array([datetime(1899, 12, 31, 23), datetime(1900, 1, 1), None], pa.timestamp("us", "UTC"))
    plain = pa.array([datetime(1, 1, 1)] * 3, pa.timestamp("us"))
    table = pa.table({"t": zoned, "n": plain, "i": [1, 2, 3]})
    bad = [(1, WHY.format("t"), "1899-12-31T23:00:00Z")]
    assert read(table, LEGACY) == (table.slice(1).to_pylist(), bad)


@pytest.mark.parametrize(
    ("metadata", "is_old"),
    [
        (SPARK_2, True),
        ({"org.apache.spark.version": "3.0.1"}, True),
        (TODAY | {"org.apache.spark.legacyINT96": ""}, True),
        (LEGACY, False),
        ({}, False),
    ],
)
def test_int96_says_by_itself_which_calendar_it_is_of(metadata: dict[str, str], is_old: bool) -> None:
    old = datetime(1800, 1, 1)
    table = pa.table({"a.b": pa.array([old, datetime(1950, 1, 1)], pa.timestamp("ns")), "a": [1, 2]})
    rows, bad = read(table, metadata, use_deprecated_int96_timestamps=True)
    assert [row["a"] for row in rows] == ([2] if is_old else [1, 2])
    assert [reason for _, reason, _ in bad] == ([WHY.format("a.b")] if is_old else [])


def test_a_nested_date_of_the_old_calendar_makes_its_row_bad() -> None:
    old, new = date(1582, 10, 4), date(1582, 10, 15)
    table = pa.table(
        {
            "s": pa.array([{"d": [new]}, None, {"d": [new, old]}, {"d": None}, {"d": []}, {"d": [None, new]}]),
            "m": pa.array(
                [[(1, old)], [(1, new)], None, [], [(1, new), (2, new), (3, old)], [(1, None)]],
                pa.map_(pa.int64(), pa.date32()),
            ),
        }
    )
    rows, bad = read(table, LEGACY)
    assert rows == [table.to_pylist()[i] for i in (1, 3, 5)]
    assert [(line, reason) for line, reason, _ in bad] == [
        (1, WHY.format("m")),
        (3, WHY.format("s")),
        (5, WHY.format("m")),
    ]
