"""The choice of the runs that a shard rewrites together with its new rows: a pure function of their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from persistent_state.store.named_files import Run

LAZY, EAGER = (1.25, 4), (2.5, 2)
"""(growth, least): levels are merged with newer ones that hold 1 / growth of their rows, and at least `least` at a time.

So are the levels of a monoid that does not commute, but their rows stay single messages unless the oldest level is among
them. (`First` and `Last` are folded as a monoid that commutes is.)

Either way a row is rewritten log times, or less. Levels tend to be one or two times as large as what is newer, and a
micro-batch waits for its slowest shard: the quarter more lets all shards rewrite in the same one.
"""

MANY = 12
"""Levels from which on they are merged eagerly, since they must not become more and more."""

SMALL = 64 << 10
"""Bytes that are not worth keeping apart: a run of a few rows has some of its own."""

WIDER = 4
"""The most bytes that a row of a run has for each byte of a new row, where values do not grow."""


def choose(held: Sequence[Run], rows: int, size: int, floor: int) -> int:
    """Return how many of the oldest runs stay as they are. Those after them are merged with the new rows.

    Args:
        held: The shard's runs, oldest level first.
        rows: How many new rows there are.
        size: Their bytes.
        floor: The clock by which what has expired may go.

    Returns:
        A number from 0 (all are rewritten) to the number of runs (none is).
    """
    faded = sum(run.rows for run in held if run.half is not None and run.half <= floor)
    if 2 * faded > sum(run.rows for run in held):
        # At least a quarter of all has expired: what is stored stays within a few times of what has not.
        return 0
    if rows == 0:
        return len(held)
    # Where a level begins: its runs follow each other in the hash.
    begins = [i for i, run in enumerate(held) if i == 0 or run.low < held[i - 1].high]
    growth, least = EAGER if len(begins) >= MANY else LAZY
    keep, levels, size = len(held), 1, size + SMALL
    for begin in reversed(begins):
        level, level_size = (
            sum(some) for some in zip(*((r.rows, r.file.length) for r in held[begin:keep]), strict=True)
        )
        # Few rows may be much to rewrite: those of lists and sets hold what came in all of theirs.
        if level > rows * growth or level_size > size * growth * WIDER:
            break
        keep, rows, size, levels = begin, rows + level, size + level_size, levels + 1
    return keep if levels >= least else len(held)
