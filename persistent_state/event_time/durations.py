"""Convert durations that users give, such as "10 minutes" or a timedelta, to microseconds."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias

from persistent_state.errors import InvalidInputError

Duration: TypeAlias = "str | timedelta"
"""Text such as "10 seconds" or "1 hour", or a `datetime.timedelta`. A bare number has no unit and is refused."""

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


def duration(name: str, given: Duration) -> int:
    """Return the microseconds of a duration; `name` is that of the parameter.

    Raises:
        InvalidInputError: It is neither a whole number and a unit nor a timedelta, or it is negative or too long.
    """
    if isinstance(given, timedelta):
        length = given // timedelta(microseconds=1)
    else:
        found = re.fullmatch(r"\s*(\d{1,20})\s+([a-z]+?)s?\s*", given) if isinstance(given, str) else None
        if not found or found[2] not in UNITS:
            raise InvalidInputError(
                f'{name}={given!r} is not a duration; give text such as "10 seconds", a whole number and one of '
                f"{', '.join(f'{unit}s' for unit in UNITS)}, or a datetime.timedelta."
            )
        length = int(found[1]) * UNITS[found[2]]
    if not 0 <= length <= LONGEST:
        raise InvalidInputError(f"{name}={given!r}; it must be at least 0 and at most {LONGEST // UNITS['day']} days.")
    return length


def positive(name: str, given: Duration) -> int:
    """Return the microseconds of a duration that must be longer than 0.

    Raises:
        InvalidInputError: It is 0, or not a duration.
    """
    length = duration(name, given)
    if length == 0:
        raise InvalidInputError(f"{name}={given!r}; it must be longer than 0.")
    return length


def show_duration(length: int) -> str:
    """Return microseconds as text, in the largest unit of which they are a whole number."""
    name, unit = next((name, unit) for name, unit in reversed(UNITS.items()) if length % unit == 0)
    return f"{length // unit:,} {name}{'' if length == unit else 's'}"
