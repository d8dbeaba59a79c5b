"""Clocks are read from the same texts on every Python."""

from __future__ import annotations

import pytest

from persistent_state import InvalidInputError
from persistent_state.formatting import read_clock

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
