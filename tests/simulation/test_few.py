"""A world of each theme, and a few planted bugs: what of the simulation belongs to the fast lane.

The bugs are those of files that differ from main's, and some others. Which ones changes with the commit, so that each is tried
now and then by people, too.
"""

from __future__ import annotations

import inspect
import subprocess
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.simulation import world
from tests.simulation.planted import BUGS, Bug
from tests.simulation.test_planted import WORLDS, found_in, known_world, worlds_from
from tests.soak import commit, rank

ROOT = Path(__file__).parents[2]
MOST_OF_CHANGES, OTHERS = 12, 3
"""The most bugs of files that differ from main's, and how many of the others."""

THEMES = (
    None,
    *world.THEMES,
    world.REBUILT,
    world.DAMAGED,
    world.READING,
    world.READING_WINDOWS,
    world.FLOWS,
    *world.GRAPHS,
    *world.SEVERAL,
    world.BRANCHED,
    world.KEPT,
    world.PAUSED,
    world.REWOUND,
    *world.REWOUND_GRAPHS,
    *world.WITH_SINKS,
    world.ENGINES,
)


def git(*words: str) -> str:
    """Return what git prints; nothing where there is no git, no repository, or no such commit."""
    try:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def changed_files() -> set[str]:
    """Return the files whose text differs from main's: of the newest main that is known here."""
    main = git("rev-parse", "--verify", "--quiet", "origin/main") or git("rev-parse", "--verify", "--quiet", "main")
    return {*git("diff", "--name-only", main.strip()).splitlines()} if main else set()


SHOWN = [bug for bug in BUGS if known_world(bug) is not None]
"""The bugs that worlds show."""


def bugs_of(changed: Collection[str], commit: str, bugs: Sequence[Bug] = SHOWN) -> list[Bug]:
    """Return the bugs to try: some of those in the changed files, and some others, chosen by the commit."""
    drawn = sorted(bugs, key=lambda bug: rank(bug.name, commit))
    touched = [bug for bug in drawn if file_of(bug) in changed][:MOST_OF_CHANGES]
    return touched + [bug for bug in drawn if bug not in touched][:OTHERS]


@cache
def file_of(bug: Bug) -> str:
    return str(Path(inspect.getsourcefile(bug.target) or "").relative_to(ROOT))


@pytest.mark.parametrize("theme", THEMES, ids=str)
def test_a_world_of_each_theme_keeps_the_contract(theme: str | None) -> None:
    world.play(0, theme)


@pytest.mark.parametrize("bug", bugs_of(changed_files(), commit()), ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_soon(bug: Bug) -> None:
    assert found_in(bug, worlds_from(known_world(bug))) is not None, (
        f"{bug.says} {WORLDS} worlds did not show it; `.venv/bin/python -m tests.simulation.test_planted` looks "
        "for another one and keeps it in found.json."
    )


def test_bugs_of_changed_files_are_tried_first_and_no_more_than_is_said() -> None:
    file = "persistent_state/protocol/commits.py"
    of_file = [bug for bug in BUGS if file_of(bug) == file]
    chosen = bugs_of([file], "a commit")
    assert len(of_file) > MOST_OF_CHANGES
    assert {*chosen[:MOST_OF_CHANGES]} < {*of_file}
    assert len(chosen) == len({*chosen}) == MOST_OF_CHANGES + OTHERS
    assert len(bugs_of([], "a commit")) == OTHERS


def test_each_bug_is_tried_at_one_of_few_commits() -> None:
    tried = {bug.name for commit in range(1500) for bug in bugs_of([], str(commit))}
    assert tried == {bug.name for bug in SHOWN}
