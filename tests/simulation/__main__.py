"""`python -m tests.simulation FIRST [LAST]` plays worlds; of one world it prints what happened."""

from __future__ import annotations

import sys

from tests.simulation.world import play

first = int(sys.argv[1])
last = int(sys.argv[2]) if len(sys.argv) > 2 else first + 1
for seed in range(first, last):
    world = play(seed)
    if last == first + 1:
        print(*world.trace, sep="\n")
