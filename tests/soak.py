"""Numbers that are large under `make soak`, which sets SOAK, and small in all other runs of the tests."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

IS_SOAK = "SOAK" in os.environ


def soak_or(*, ci: T, soak: T) -> T:
    """Return what a test repeats under `make soak`, or what proves the same in CI. Such a test has the marker `soak`."""
    return soak if IS_SOAK else ci
