"""Clocks that together say how much time has passed, also while the process or the machine slept."""

from __future__ import annotations

import time
from typing import TypeAlias

Clocks: TypeAlias = "tuple[float, ...]"
"""Seconds by each clock."""

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The clock that goes on while the machine sleeps. Where it has no name of its own, the monotonic clock does so."""


def clocks() -> Clocks:
    """Return the seconds by the wall clock, which may be set, and since the machine was booted."""
    return time.time(), time.clock_gettime(_BOOT)


def are_within(seconds: float, before: Clocks, now: Clocks) -> bool:
    """Return whether by each clock less than these `seconds` have passed. A clock that was set back says no."""
    return all(0 <= there - then < seconds for then, there in zip(before, now, strict=True))


def between(before: Clocks, now: Clocks) -> float:
    """Return the seconds that have passed, by the clock that says the most."""
    return max(there - then for then, there in zip(before, now, strict=True))
