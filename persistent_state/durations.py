"""Durations as people say them, such as "10 minutes", and as microseconds."""

from __future__ import annotations

import re

from persistent_state.errors import InvalidInput

UNITS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}

LONGEST = 2**62
"""The longest duration in microseconds; event time is 64 bits."""


def duration(text: str) -> int:
    """Microseconds of a duration such as "10 seconds" or "1 hour".

    Raises:
        InvalidInput: the text is not a whole number and a unit.
    """
    found = re.fullmatch(r"\s*(\d+)\s+([a-z]+?)s?\s*", str(text))
    if not found or found[2] not in UNITS:
        raise InvalidInput(f"duration={text!r}; say a whole number and one of {', '.join(UNITS)}s.")
    length = int(found[1]) * UNITS[found[2]]
    if length > LONGEST:
        raise InvalidInput(f"duration={text!r} is longer than {LONGEST // UNITS['day']} days; say less.")
    return length


def positive(name: str, text: str) -> int:
    """Microseconds of a duration that can't be nothing.

    Raises:
        InvalidInput: it is, or the text is no duration.
    """
    length = duration(text)
    if length == 0:
        raise InvalidInput(f"{name}={text!r}; it must be longer than nothing.")
    return length


def show_duration(length: int) -> str:
    """Microseconds in the largest unit of which they are a whole number."""
    name, unit = next((name, unit) for name, unit in reversed(UNITS.items()) if length % unit == 0)
    return f"{length // unit:,} {name}{'' if length == unit else 's'}"
