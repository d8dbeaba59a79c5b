"""Every planted bug is found, within as many worlds as stand beside it here."""

from __future__ import annotations

import pytest

from tests.simulation.planted import BUGS, Bug
from tests.simulation.world import World

WORLDS = 400


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    with bug.planted():
        assert any(is_broken(seed) for seed in range(WORLDS)), f"{bug.says} {WORLDS} worlds did not show it."


def is_broken(seed: int) -> bool:
    try:
        World(seed).run()
    except Exception:
        return True
    return False
