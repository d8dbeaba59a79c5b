"""Every planted bug is found: in the world where it was found last, or within so many worlds. `make soak` searches them all.

`python -m tests.simulation.test_planted` looks for all of them, where they were found last and from the first world on, and
writes down where they are.
"""

from __future__ import annotations

import builtins
import dis
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType

import pytest

from tests.simulation.layers import ROOT, bugs_for_worlds, killers, named
from tests.simulation.planted import BUGS, OF_NO_USE, Bug
from tests.simulation.test_deliveries import BUGS as OF_DELIVERIES
from tests.simulation.test_deliveries import OF_WORLDS_THAT_GO_BACK
from tests.simulation.world import World
from tests.soak import IS_SOAK, drawn, soak_or

WORLDS = soak_or(ci=400, soak=2000)
FOUND = Path(__file__).parent / "found.json"
"""The world where each bug was found last, or null if no world of the first 400 shows it. It is where to look first."""


def known_world(bug: Bug) -> int | None:
    """Return the world where a bug was found last; None if no world is known to show it."""
    seed: int | None = json.loads(FOUND.read_text()).get(bug.name, 0)
    return seed


def worlds_from(known: int | None) -> list[int]:
    """Return the worlds in which to look for a bug, this one first."""
    return [*([] if known is None else [known]), *range(WORLDS)]


def test_every_bug_can_be_planted_and_names_only_what_is_there() -> None:
    for bug in [*BUGS, *(bug for *_, bug in [*OF_DELIVERIES, *OF_WORLDS_THAT_GO_BACK])]:
        with bug.planted():
            missing = (
                globals_of(bug.target.__code__) - vars(sys.modules[bug.target.__module__]).keys() - {*dir(builtins)}
            )
            assert not missing, f"{bug.name} names {missing}"


def globals_of(code: CodeType) -> set[str]:
    """Return the names of globals that a function uses, and the functions within it."""
    own = {str(step.argval) for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return own.union(*(globals_of(each) for each in code.co_consts if isinstance(each, CodeType)))


def test_it_is_known_of_each_bug_which_cheap_test_kills_it() -> None:
    assert list(killers()) == sorted(bug.name for bug in BUGS), "Run python -m tests.simulation.layers."
    for killer in filter(None, killers().values()):
        path, *_, test = killer["test"].partition("[")[0].split("::")
        assert re.search(rf"\b{test}\b", (ROOT / path).read_text()), f"{killer['test']} is not there any more."


@pytest.mark.soak
@pytest.mark.worlds
def test_cheap_tests_kill_their_bugs() -> None:
    # To see all of them kill takes as long as to let worlds look for the bugs. So each commit has its twentieth.
    names = drawn([bug.name for bug in BUGS], one_in=20)
    proof = subprocess.run(
        [sys.executable, "-m", "tests.simulation.layers", "--prove", *names], capture_output=True, text=True, cwd=ROOT
    )
    assert proof.returncode == 0, proof.stdout + proof.stderr


@pytest.mark.soak
@pytest.mark.worlds
@pytest.mark.parametrize("name", drawn([bug.name for bug in (BUGS if IS_SOAK else bugs_for_worlds())], one_in=3))
def test_a_planted_bug_is_found(name: str) -> None:
    (bug,) = named([name])
    known = None if IS_SOAK else known_world(bug)
    found = found_in(bug, worlds_from(known))
    assert found is not None, f"{bug.says} {WORLDS} worlds did not show it."
    assert not IS_SOAK or not is_broken(World(found, bug.theme)), f"World {found} of {bug.theme} is broken without it."


def test_a_cheap_test_kills_what_no_world_shows() -> None:
    assert all(killers()[bug.name] is not None for bug in BUGS if known_world(bug) is None)


def found_in(bug: Bug, seeds: Iterable[int]) -> int | None:
    """Return the first of these worlds that shows a bug."""
    with bug.planted():
        return next((seed for seed in seeds if is_broken(World(seed, bug.theme))), None)


def is_broken(world: World) -> bool:
    try:
        world.run()
    except OF_NO_USE:
        raise
    except Exception:
        return True
    return False


def main() -> None:
    found = {}
    for bug in BUGS:
        known = known_world(bug)
        found[bug.name] = found_in(bug, worlds_from(known))
        if found[bug.name] != known:
            print(f"{bug.name}: {known} -> {found[bug.name]}", flush=True)
    FOUND.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
