"""The entries of kept clocks, which outlive the log.

An entry of a kept clock stands in the log for as long as all entries of its time do. Before a collection deletes it there, it
writes the entry, whole, into a file of its own. Invariants:

- A clock that the newest entry keeps has its entry in the log, or in its file, or in both.
- The file is right if it is there. The log may be wrong: a driver that slept may write a number again that was collected.

So a reader looks into the log first, and believes the file if there is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from persistent_state.errors import DamagedError, ExistsError
from persistent_state.event_time.clocks import is_among
from persistent_state.store.codec import from_bytes, to_bytes
from persistent_state.store.entry import Entry, Kept
from persistent_state.store.files.base import TRIES
from persistent_state.store.log import Log


def folder(log: Log) -> str:
    """Return the folder of the files."""
    return f"{log.application}/kept"


def path(log: Log, number: int) -> str:
    """Return the path of the file of the entry with this number."""
    return f"{folder(log)}/{number:020d}.json"


def numbers(log: Log) -> list[int]:
    """Return the numbers of the entries that have a file, ascending."""
    found = (re.fullmatch(r"(\d{20})\.json", name) for name in log.files.list(folder(log)))
    return [int(name[1]) for name in found if name]


def write(log: Log, entry: Entry) -> None:
    """Write the file of an entry, unless it is there."""
    # Another version may have written it, in its own words.
    with suppress(ExistsError):
        log.files.ensure(path(log, entry.number), to_bytes(entry), TRIES)


def read(log: Log, number: int) -> Entry:
    """Return the entry of a kept clock.

    Raises:
        DamagedError: It is not what was written.
        FileNotFoundError: It is neither in the log nor in a file: the clock is kept no more.
    """
    found: Entry | DamagedError | FileNotFoundError
    try:
        found = log.read(number)
    except (DamagedError, FileNotFoundError) as error:
        found = error
    try:
        return read_file(log, number)
    except FileNotFoundError:
        if isinstance(found, Entry):
            return found
        raise found from None


def read_file(log: Log, number: int) -> Entry:
    """Return the entry of a kept clock from its file.

    Raises:
        DamagedError: It is not what was written.
        FileNotFoundError: It has no file.
    """
    place = path(log, number)
    entry = from_bytes(bytes(log.files.read(place)), place)
    if entry.number != number:
        raise DamagedError(f"{place} says it is entry {entry.number}; a file was moved, restore it.")
    return entry


def entry_at(
    log: Log, clock: int, task: str | None = None, *, newest: Entry | None = None, older: Log | None = None
) -> Entry | None:
    """Return the entry from which the state at a clock is read; the newest if the clock is neither retained nor kept.

    It is the newest entry if its runs keep the clock apart, else that of the kept clock. A `task` that may have begun from
    zero since the clock was the newest is read from that of the kept clock, too. None if the log is empty.

    Args:
        log: The log.
        clock: The clock.
        task: The task that is read.
        newest: The newest entry, if it has just been read.
        older: The log that reads the entry of a kept clock; by default `log`.

    Raises:
        DamagedError: The entry is not what was written, or is missing.
    """
    for _ in range(TRIES):
        newest = newest or log.newest()
        if newest is None or clock not in newest.kept:
            return newest
        if is_among(newest.retained, clock) and not _may_have_begun_since(newest, task, clock):
            return newest
        number = newest.kept[clock].entry
        try:
            entry = read(older or log, number)
        except FileNotFoundError:
            newest = None
            continue
        # The clock may have gone meanwhile, and its entry with it, and then the log says nothing.
        if (newest := log.newest()) and is_kept(newest.kept, clock, number):
            return entry
    raise missing(log, clock, number)


def _may_have_begun_since(newest: Entry, task: str | None, clock: int) -> bool:
    """Return whether a task may have begun from zero since a kept clock was the newest, and so lacks what was below it."""
    # A task that others feed is born just below the clock at which it begins.
    return task is not None and task in newest.tasks and newest.tasks[task].born >= clock - 1


def missing(log: Log, clock: int, number: int) -> DamagedError:
    """Return the error for the entry of a kept clock that is neither in the log nor in a file."""
    return DamagedError(
        f"the entry of clock={clock} is missing: bring back {path(log, number)} from a copy of the store, or release the clock."
    )


def is_kept(kept: Mapping[int, Kept], clock: int, number: int) -> bool:
    """Return whether a clock is kept by the entry of this number."""
    return clock in kept and kept[clock].entry == number
