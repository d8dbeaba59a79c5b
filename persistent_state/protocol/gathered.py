"""Gather turns of a flow in memory, and append them to the log as one entry.

A turn is cheap. That its entry and its files survive a power cut is not. So turns may be gathered: each is planned from what
the one before it has made, and none is in the log, so that a crash, a newer driver or another start voids all of them. Others
may append entries meanwhile. That is why a turn is kept as its change of an entry: it is made again of the newest one.

Invariants:
- All files that an entry names survive a power cut before the entry is appended.
- The global clock moves at most once from one entry of the log to the next: a kept clock is read by the entry that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from persistent_state.batch.packets import Descriptor
from persistent_state.errors import ExistsError, StoreUnavailableError
from persistent_state.protocol import next_entry
from persistent_state.protocol.next_entry import newest_own
from persistent_state.store.entry import Entry
from persistent_state.store.files import Files
from persistent_state.store.log import Log
from persistent_state.store.named_files import Stored

Change: TypeAlias = Callable[[Entry], Entry]
"""Returns the entry that a turn makes of the newest one."""


class GatheringLog(Log):
    """The log as the driver of an epoch sees it: the newest entry is that of the turns that are gathered, if there are any."""

    def __init__(self, files: Files, application: str, epoch: int) -> None:
        super().__init__(files, application)
        self._epoch = epoch
        self._changes: list[Change] = []
        self._made: Entry | None = None
        """The entry that the changes have made, in the place of the newest one."""
        self._runs: set[str] = set()
        """The runs of these turns. Later turns replace most of them."""
        self._sides: set[str] = set()
        self._values: set[str] = set()

    def newest(self) -> Entry | None:
        return super().newest() if self._made is None else self._made

    def append(self, entry: Entry) -> None:
        if self._changes:
            # It follows from turns that are not in the log.
            self.write()
            raise ExistsError(
                f"entry={entry.number} of {self.application} was made before the turns that it follows; again."
            )
        self._make_durable(entry)
        super().append(entry)

    def gather(self, change: Change, made: Sequence[Descriptor]) -> Entry:
        """Take in what a turn changes, and the files that its shards have made; return the entry as it would be.

        Raises:
            DisagreementError: The turn does not follow from the newest entry.
            FencedError: A newer driver owns the application, if nothing was gathered before.
        """
        newest = newest_own(self, self._epoch)
        entry = change(newest)
        self._changes.append(change)
        self._made = _standing_for(newest, entry)
        self._runs |= {run.file.path for each in made for run in each.runs}
        self._sides |= {side.file.path for each in made for side in (each.side, each.late) if side is not None}
        self._values |= {each.values.path for each in made if isinstance(each.values, Stored)}
        return entry

    def write(self) -> Entry:
        """Append the turns that were gathered, and return the newest entry. Files that none names now are deleted.

        Raises:
            FencedError: A newer driver owns the application.
            DisagreementError: What others have appended since voids the turns.
            StateError: The store failed.
        """
        changes, self._changes, self._made = self._changes, [], None
        newest, count = partial(newest_own, self, self._epoch), 0
        if not changes:
            return newest()

        def follow(newest: Entry) -> Entry:
            """Return what the changes make of an entry, up to the one by which the global clock would move a second time."""
            nonlocal count
            entry, count = newest, 0
            for change in changes:
                following = change(_standing_for(newest, entry))
                if newest.clock != entry.clock != following.clock:
                    break
                entry, count = following, count + 1
            return entry

        while changes:
            entry = next_entry.append(self, newest, follow)
            changes = changes[count:]
        self._delete_unnamed()
        return entry

    def _make_durable(self, entry: Entry) -> None:
        """Let the new files survive a power cut that the entry names, or that a list names which it has."""
        runs = self._runs & entry.files() if self._runs else set()
        self.files.sync([*sorted(runs), *sorted(self._sides)])
        self._runs -= runs
        self._sides = set()

    def _delete_unnamed(self) -> None:
        """Delete the files that no entry has ever named, so that no reader needs them. If that fails, a collection does it."""
        unnamed, self._runs, self._values = [*self._runs, *self._values], set(), set()
        with suppress(StoreUnavailableError):
            self.files.for_each(self.files.delete, unnamed)


def _standing_for(newest: Entry, entry: Entry) -> Entry:
    """Return an entry that is not in the log in the place of the newest one, whose number it takes: others follow from it."""
    return replace(entry, number=newest.number, previous=newest.previous, checksum=newest.checksum, base=newest.base)
