"""Clocks are read from the same texts on every Python."""

from __future__ import annotations

import math
import re
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state import InvalidInputError
from persistent_state.formatting import beyond_python, in_python, plain, read_clock, readable, to_json, values_in_python

NOON = 1_763_640_000_000_000
"""2025-11-20T12:00:00Z"""

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("2025-11-20", NOON - 12 * 3600 * SECOND),
        ("2025-11-20T12", NOON),
        ("2025-11-20T12Z", NOON),
        ("2025-11-20T12:00", NOON),
        ("2025-11-20 12:00", NOON),
        ("2025-11-20t12:00:00z", NOON),
        ("2025-11-20T12:00:00.25", NOON + SECOND // 4),
        ("2025-11-20T12:00:00,5Z", NOON + SECOND // 2),
        ("2025-11-20T12:00:00.0000019Z", NOON + 1),
        ("20251120T120000", NOON),
        ("20251120T120000.25Z", NOON + SECOND // 4),
        ("20251120T1200+0130", NOON - 5400 * SECOND),
        ("2025-11-20T12:00+01:30", NOON - 5400 * SECOND),
        ("2025-11-20T12:00-01", NOON + 3600 * SECOND),
        ("20251120", 20_251_120),
        (" 20 ", 20),
        ("-7", -7),
    ],
)
def test_a_clock_is_a_number_or_iso_text_that_each_python_takes(text: str, clock: int) -> None:
    assert read_clock(text) == clock


@pytest.mark.parametrize(
    "text",
    [
        "",
        "noon",
        "2025-1120",
        "2025-11-20T",
        "2025-11-20T12:0000",
        "2025-11-20T12:00:00.",
        "2025-11-20T25:00",
        "2025-11-20T12:00+25:00",
        "2025-11-31",
        "0000-01-01",
        "2025-W47-4",
        "2025-11-20_12:00",
        "2025-11-20T12:00 ",
        "\uff12\uff10\uff12\uff15-11-20",
    ],
)
def test_other_texts_are_refused_by_each_python(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a time; give microseconds since 1970, or ISO text"):
        read_clock(text)


DAYS = pa.array([0, -719_528, None], pa.int32()).cast(pa.date32())


def ticks(type: pa.DataType, tick: int) -> pa.Array:
    return pa.array([0, tick, None], pa.int64()).cast(type)


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (DAYS, ["1970-01-01", "0000-01-01", None]),
        (
            ticks(pa.timestamp("s", "Europe/Oslo"), 253_402_300_800),
            ["1970-01-01T00:00:00Z", "10000-01-01T00:00:00Z", None],
        ),
        (ticks(pa.timestamp("us", "PST"), 1), ["1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000001Z", None]),
        (ticks(pa.timestamp("us"), -(2**63)), ["1970-01-01T00:00:00.000000", "-9223372036854775808", None]),
        (ticks(pa.duration("s"), 2**62), ["0 seconds", "4611686018427387904 seconds", None]),
        (pa.ListArray.from_arrays([0, 1, 3], DAYS), ['["1970-01-01"]', '["0000-01-01",null]']),
        (
            pa.MapArray.from_arrays([0, 1, 2], DAYS[:2], DAYS[1:]),
            ['{"1970-01-01":"0000-01-01"}', '{"0000-01-01":null}'],
        ),
    ],
    ids=lambda given: str(given.type) if isinstance(given, pa.Array) else "",
)
def test_a_column_is_text_where_python_lacks_a_value(column: pa.Array, texts: list[str | None]) -> None:
    assert readable(column).to_pylist() == texts
    beside = pa.array(range(len(column)))
    mask = pa.array([False, False, True][: len(column)])
    rows = pa.StructArray.from_arrays([column, beside], names=["d", "n"], mask=mask)
    wanted = [{"d": text, "n": place} for place, text in enumerate(texts)]
    assert readable(rows).to_pylist() == [
        None if hidden else row for hidden, row in zip(mask.to_pylist(), wanted, strict=True)
    ]


@pytest.mark.parametrize(
    ("type", "value", "text"),
    [
        (pa.uuid(), UUID(int=5).bytes, f'"{UUID(int=5)}"'),
        (pa.fixed_shape_tensor(pa.float32(), [2]), [1.5, math.nan], '[1.5,"nan"]'),
        (pa.bool8(), 1, "true"),
    ],
)
def test_a_value_of_an_extension_of_arrow_is_json(type: Any, value: Any, text: str) -> None:
    column = pa.ExtensionArray.from_storage(type, pa.array([value, None], type.storage_type))
    within = pa.ListArray.from_arrays([0, 2], column)
    assert [to_json(plain(each)) for each in (column[0], column[1], within[0])] == [text, "null", f"[{text},null]"]


def test_a_column_stays_as_it_is_where_python_has_all_values() -> None:
    assert readable(DAYS[:1]).type == pa.date32()
    assert readable(DAYS[2:]).equals(DAYS[2:])


TIMES = [
    pa.date32(),
    pa.timestamp("s"),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us", "Europe/Oslo"),
]


@given(st.sampled_from(TIMES), st.integers(-(2**63) + 1, 2**63 - 1))
def test_a_time_that_python_lacks_is_iso_text_from_which_it_is_read(type: pa.DataType, tick: int) -> None:
    ticks = pa.array([tick >> (32 if pa.types.is_date(type) else 0), 0], pa.int64())
    column = ticks.cast(pa.int32() if pa.types.is_date(type) else pa.int64()).cast(type)
    value, known = values_in_python(column)
    assert [value, known] == [in_python(column[0]), column[1].as_py()]
    if isinstance(value, str):
        assert value == plain(column[0])
        assert beyond_python(value, type).equals(column[0])


@pytest.mark.parametrize(
    "text", ["", "NaT", "999999999999-01-01", "10000-13-01", "10000-01-01T00:00+01:00", "2026-01-01T00:00"]
)
def test_other_texts_are_no_times_beyond_python(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text) or "''"):
        beyond_python(text, pa.timestamp("us", "UTC"))
    with pytest.raises(ValueError, match=r"^'2026-01-01' is not date32\[day\], or Python has it"):
        beyond_python("2026-01-01", pa.date32())
