"""Lists that only grow: the newest items stand in the log entry, older ones in checksummed files that it names."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from persistent_state.errors import DamagedError
from persistent_state.store import runs as runs_io
from persistent_state.store.files.base import Files
from persistent_state.store.flow_state import FlowState
from persistent_state.store.named_files import Pages, Stored

TAIL = 2 << 10
"""Bytes of items that stand in the entry at the most."""

LARGE = 4 << 20
"""Bytes of a file that is not written again to make it one with others."""


def append(files: Files, pages: Pages, items: Sequence[str], path: Callable[[], str]) -> Pages:
    """Return the list with these items added. It may write a file, which counts only once an entry names it.

    A file becomes one with what comes after it, unless it is larger than all that together. So the entry names about as many
    files as the logarithm of the list's length, beside the large ones, and an item is written again about as often.
    """
    tail = (*pages.tail, *items)
    data = _lines(tail)
    if len(data) <= TAIL:
        return Pages(pages.files, tail)
    kept = pages.files[: len(pages.files) - not_larger([file.length for file in pages.files], len(data), LARGE)]
    try:
        with runs_io.named_by_newest():
            older = [bytes(runs_io.read_bytes(files, file, anew=True)) for file in pages.files[len(kept) :]]
    except DamagedError:
        # It is named when the list is needed, and does not keep a commit from adding to it.
        kept, older = pages.files, []
    return Pages((*kept, runs_io.write_bytes(files, path(), b"".join([*older, data]))))


def not_larger(lengths: Sequence[int], total: int, large: int) -> int:
    """Return how many of the newest files to join with `total` bytes after them: all up to the first that is larger."""
    for count, length in enumerate(reversed(lengths)):
        if length > total or length >= large:
            return count
        total += length
    return len(lengths)


def write_file(files: Files, path: str, items: Sequence[str]) -> Stored:
    """Write a new file with items of a list, durable when this returns."""
    return runs_io.write_bytes(files, path, _lines(items))


def read(files: Files, pages: Pages) -> list[str]:
    """Return all items, oldest first."""
    items: list[str] = []
    for file in pages.files:
        items += read_file(files, file)
    return [*items, *pages.tail]


def read_journals(files: Files, flow: FlowState) -> dict[str, list[str]]:
    """Return the lines that each input of a flow wrote."""
    return {name: read(files, known.journal) for name, known in flow.inputs.items()}


def read_file(files: Files, file: Stored) -> list[str]:
    """Return the items in one of a list's files."""
    # Decoded as one array, which takes a third of the time. No line has an end of line in it.
    # What is read of a list is written on: it says what a source has read, and which files a collector must leave.
    lines = bytes(runs_io.read_bytes(files, file, anew=True)).removesuffix(b"\n").replace(b"\n", b",")
    items: list[str] = json.loads(b"[%b]" % lines)
    return items


def _lines(items: Sequence[str]) -> bytes:
    return "".join(json.dumps(item) + "\n" for item in items).encode()
