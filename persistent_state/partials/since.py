"""The question for a task's values at a clock."""

from __future__ import annotations

from dataclasses import dataclass

from persistent_state.event_time.clocks import BEGINNING


@dataclass(frozen=True)
class Since:
    """A question for values at a clock: those that changed since an earlier clock, `clock`.

    For a state without windows these are the values of the keys that changed, with `all` of every key; a key whose state has
    expired has the zero. For windows and sessions they are those that closed since; with `early` also windows that are open and
    changed since `recent`, a clock that is retained, and a column `final` (bool) says which are final.
    """

    clock: int = BEGINNING
    all: bool = False
    early: bool = False
    recent: int = BEGINNING
