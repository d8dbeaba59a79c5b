"""The one log of an application: numbered entries, created one after the other by whoever has the highest epoch."""

from __future__ import annotations

import re
from collections.abc import Iterator

from persistent_state.errors import CommitUnknownError, DamagedError, ExistsError, FencedError, StoreUnavailableError
from persistent_state.store.codec import checksum, from_bytes, to_bytes
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import Files

TRIES = 5


class Log:
    """The entries of one application. Only the newest that was met is kept, so that a writer reads only what others wrote.

    A store may list late what it has: an entry that this log has written or met is not forgotten for that.
    """

    def __init__(self, files: Files, application: str) -> None:
        self.files = files
        self.application = application
        self._kept: Entry | None = None
        self._highest = 0

    def numbers(self) -> list[int]:
        """Return the numbers of the entries that exist, ascending."""
        listed = [*self._listed()][::-1]
        return [*listed, self._highest] if self._highest > max(listed, default=0) else listed

    def _listed(self) -> Iterator[int]:
        """Yield the numbers that the store lists, descending."""
        for name in reversed(self.files.list(f"{self.application}/log")):
            if found := re.fullmatch(r"(\d{20})\.json", name):
                yield int(found[1])

    def path(self, number: int) -> str:
        return f"{self.application}/log/{number:020d}.json"

    def newest(self) -> Entry | None:
        """Return the newest entry, or None if the application has never been started.

        Raises:
            DamagedError: The newest entry is not what was written. An older entry is never taken in its place.
        """
        for _ in range(TRIES):
            listed = next(self._listed(), 0)
            number = max(listed, self._highest)
            if number == 0:
                return None
            if number > listed:
                # Not listed yet, or collected: only reading it tells which.
                self._kept = None
            try:
                return self.read(number)
            except FileNotFoundError:
                # Collected. While we looked, so a newer one exists, or long ago, and then the listing is right.
                self._highest = 0
        raise StoreUnavailableError(f"the log of {self.application} changes faster than it can be read; try again.")

    def read(self, number: int) -> Entry:
        """Return one entry.

        Raises:
            DamagedError: It is not what was written.
            FileNotFoundError: It was collected, or never written.
        """
        if self._kept is not None and self._kept.number == number:
            return self._kept
        path = self.path(number)
        entry = from_bytes(bytes(self.files.read(path)), path)
        if entry.number != number:
            raise DamagedError(f"log entry {path} says it is number {entry.number}; a file was moved, restore it.")
        if number >= self._highest:
            self._kept, self._highest = entry, number
        return entry

    def append(self, entry: Entry) -> None:
        """Make `entry` the newest of the log. Readers see all of it or none.

        Raises:
            ExistsError: Another entry has its number. Nothing changed; look at it.
            FencedError: A newer driver owns the application, or did while this one slept.
            CommitUnknownError: The store did not answer. Nothing may be deleted; the next start finds out.
            StoreUnavailableError: The entry was written, and then the store did not list the log. The next start finds out.
        """
        data = to_bytes(entry)
        path = self.path(entry.number)
        try:
            self.files.ensure(path, data, TRIES)
        except ExistsError:
            self._highest = max(self._highest, entry.number)
            raise
        except StoreUnavailableError as error:
            raise CommitUnknownError(
                f"the store did not say whether entry={entry.number} of {self.application} was written ({error}); start again."
            ) from error
        self._highest = max(self._highest, entry.number)
        # The number may have been used and collected while this driver slept.
        newest = self.newest()
        if newest is None or newest.epoch > entry.epoch:
            raise FencedError(f"a newer driver owns {self.application}; this one has stopped and changed nothing.")
        # A higher number of its own epoch is another task's. If it does not go on from ours, ours is not part of the log.
        if newest.number > entry.number and not self._goes_on_from(entry.number, data):
            raise CommitUnknownError(
                f"entry {entry.number} of {self.application} came after others of its number; start again."
            )

    def _goes_on_from(self, number: int, data: bytes) -> bool:
        """Return True if the next entry names the checksum of these bytes as the entry before it."""
        try:
            return self.read(number + 1).previous == checksum(data)
        except FileNotFoundError:
            return False
