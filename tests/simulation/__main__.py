"""`python -m tests.simulation FIRST [LAST|THEME]` plays worlds; of one world it prints what happened."""

from __future__ import annotations

import sys

from tests.simulation.world import play

first = int(sys.argv[1])
said = sys.argv[2] if len(sys.argv) > 2 else ""
last = int(said) if said.isdigit() else first + 1
theme = said if said and not said.isdigit() else None
for seed in range(first, last):
    world = play(seed, theme)
    if last == first + 1:
        print(*world.trace, sep="\n")
