"""What is repeated often under `make soak`, which sets SOAK, and seldom in all other runs of the tests."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

IS_SOAK = "SOAK" in os.environ


def soak_or(*, ci: T, soak: T) -> T:
    """Return what a test repeats under `make soak`, or what proves the same in CI. Such a test has the marker `soak`."""
    return soak if IS_SOAK else ci


def drawn(things: Iterable[T], *, one_in: int) -> list[T]:
    """Return all things under `make soak`, else those that this commit draws, in their order: one in so many, at least one.

    `str` of a thing decides whether it is drawn, so it must be the same in each process.

    So CI tries each of them now and then, and the same ones whenever it runs a commit again. Such a test has the marker `soak`.
    """
    found = list(things)
    if IS_SOAK:
        return found
    places = sorted(range(len(found)), key=lambda place: rank(f"{place} {found[place]}", commit()))
    return [found[place] for place in sorted(places[: -(-len(found) // one_in)])]


def is_run(test: str, one_in: int) -> bool:
    """Return whether this commit runs a test with the marker `one_in`: of so many commits about one does, and `make soak`.

    It is for tests that take long and show again what others show at each commit. Such a test has the marker `soak`, too.
    """
    return IS_SOAK or int(rank(test, commit()), 16) % one_in == 0


def rank(name: str, commit: str) -> str:
    """Return a text by which names are in another order at each commit."""
    return hashlib.sha256(f"{commit} {name}".encode()).hexdigest()


@cache
def commit() -> str:
    """Return the hash of the commit; "" where there is no git, no repository or no commit."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()
