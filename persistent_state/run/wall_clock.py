"""The wall clock and ids, which are arguments of everything outside the engine."""

from __future__ import annotations

import time
import uuid


def now_us() -> int:
    """Return the wall clock in microseconds UTC."""
    return time.time_ns() // 1000


def new_id() -> str:
    """Return a random name for a file or a writer."""
    return uuid.uuid4().hex[:16]
