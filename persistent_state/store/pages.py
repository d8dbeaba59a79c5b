"""Lists that only grow: the newest items stand in the log entry, older ones in checksummed files that it names."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from persistent_state.store import run as runs_io
from persistent_state.store.base import Files
from persistent_state.store.entry import Pages

TAIL = 1000
"""How many items stand in the entry at the most."""


def append(files: Files, pages: Pages, items: Sequence[str], path: Callable[[], str]) -> Pages:
    """The list with these items added; it may write a file, which counts only when an entry names it."""
    tail = (*pages.tail, *items)
    if len(tail) <= TAIL:
        return Pages(pages.files, tail)
    data = "".join(json.dumps(item) + "\n" for item in tail).encode()
    return Pages((*pages.files, runs_io.write_bytes(files, path(), data)))


def read(files: Files, pages: Pages) -> list[str]:
    """All items, oldest first."""
    items: list[str] = []
    for file in pages.files:
        items += [json.loads(line) for line in bytes(runs_io.read_bytes(files, file)).splitlines()]
    return [*items, *pages.tail]
