"""Append the next entry to a log: what a change makes of the newest entry, and again as long as others are faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from persistent_state.errors import ExistsError, StoreUnavailableError
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log, fenced

N = TypeVar("N")


def append(log: Log, newest: Callable[[], N], change: Callable[[N], Entry]) -> Entry:
    """Append the entry that `change` makes of the newest one, and return it.

    If `change` returns the newest entry itself, nothing is appended. If another entry is appended meanwhile, by a flow, a sink,
    a rewind or a driver, what was made is void: `newest` and `change` are called again.

    Raises:
        FencedError: A newer driver owns the application.
        CommitUnknownError: The store did not answer.
    """
    while True:
        before = newest()
        entry = change(before)
        if entry is before:
            return entry
        try:
            return log.append(entry)
        except ExistsError:
            continue


def amend(log: Log, epoch: int, change: Callable[[Entry], Entry], now: int, within: float = 0.0) -> Entry:
    """Change something that no micro-batch changes, and return the entry that says so: the newest, if `change` returns that.

    The first change is of the entry that a look has shown which began less than `within` seconds ago.

    Raises:
        FencedError: A newer driver owns the application.
    """

    def follow(newest: Entry) -> Entry:
        changed = change(newest)
        if changed is newest:
            return newest
        return newest.follower(now, flows=changed.flows, tasks=changed.tasks, kept=changed.kept, owes=changed.owes)

    return append(log, partial(newest_own, log, epoch, within), follow)


def newest_own(log: Log, epoch: int, within: float = 0.0) -> Entry:
    """Return the newest entry, as `Log.newest` does, if the application is still this driver's.

    Raises:
        FencedError: A newer driver owns the application.
        StoreUnavailableError: The store does not list this driver's own entries yet.
    """
    newest = log.newest(within)
    if newest is None or newest.epoch < epoch:
        raise StoreUnavailableError(
            f"the store does not list what epoch {epoch} of {log.application} wrote yet; try again."
        )
    if newest.epoch > epoch:
        raise fenced(log.application, epoch)
    return newest
