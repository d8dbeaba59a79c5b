"""`python -m tests.hostile DOOR EXAMPLES FILE` tries a door, and keeps in a file what it tries, in case the process dies."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from tests.hostile.doors import DOORS
from tests.soak import IS_SOAK

faulthandler.enable()
door, examples, file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
strategy, enter = DOORS[door]


@settings(
    max_examples=examples,
    deadline=None,
    database=None,
    derandomize=not IS_SOAK,
    suppress_health_check=[*HealthCheck],
    # What has killed a process can't be made smaller within it.
    phases=[Phase.generate, Phase.shrink],
)
@given(strategy)
def attempt(given: object) -> None:
    file.write_text(repr(given))
    enter(given)


attempt()
