"""Every planted bug is found, within as many worlds as stand beside it here."""

from __future__ import annotations

import pytest

from tests.simulation.planted import BUGS, Bug
from tests.simulation.world import World

WORLDS = 400


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: Bug) -> None:
    with bug.planted():
        found = any(is_broken(World(seed, bug.theme)) for seed in range(WORLDS))
    assert found, f"{bug.says} {WORLDS} worlds did not show it."


def is_broken(world: World) -> bool:
    try:
        world.run()
    except Exception:
        return True
    return False
