"""The one log of an application: numbered entries, created one after the other by the driver with the highest epoch.

Invariants:
- An entry says what changed since the entry before it, or is whole, or both. The first entry of an epoch is only whole.
- An entry names its base: the newest whole entry up to it. It is put together from its base and every change since, and each
  entry on the way names the checksum of the one before it.
- An entry is whole too when the changes since the base have become more bytes than the base, or `MOST_CHANGES`, or when the
  base is `MOST_AGE` older.
- The newest entry is the last of those that follow each other from the newest that the store lists. A store may list late what
  it has, for less than the time for which entries stay: so the numbers from there on are asked for by name.
- Entries are collected from the oldest up, and the newest two stay. So who knows an entry asks for the next ones by name, and
  lists nothing: `Log._was_never_collected` says when that is enough.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from persistent_state.errors import (
    CommitUnknownError,
    DamagedError,
    ExistsError,
    FencedError,
    InvalidInputError,
    StoreUnavailableError,
)
from persistent_state.store import inline
from persistent_state.store.codec import LaterVersionError, Written, checksum, open_entry, to_bytes
from persistent_state.store.entry import Entry
from persistent_state.store.files.base import TRIES, Files

STEPS = 16
"""The most entries that a look asks for by name before it lists the log."""

LOOKS = 100
"""A look lists the log when this many came since the last listing. Else a log would never see the entries behind a lost one."""

MOST_CHANGES = 200
"""The most entries after a base that are not whole: a reader that comes new reads them all."""

LEAST_CHANGES = 64 << 10
"""The bytes of changes after a base up to which an entry that has runs is not whole. A whole entry writes its runs to a file,
and a reader that comes new reads all changes."""

MOST_AGE = 60_000_000
"""Microseconds after a base in which entries are not whole. An entry stays as long as one that follows from it, and so do the
files that it names: those that were replaced long ago are to go, and a minute is as often as they are collected."""

MOST_KNOWN, MOST_BYTES = 200, 2**22
"""The most entries that the log of a driver keeps in memory beside the newest, and the most bytes that they have as files."""

RECENT = 10.0
"""Seconds: how old the answer may be of a look that only finds out in time what other processes have done."""


@dataclass(frozen=True)
class _Known:
    """An entry, the bytes of its base and when that was written, and the bytes of the changes since."""

    entry: Entry
    whole: int
    begun: int
    since: int = 0

    @property
    def size(self) -> int:
        """The bytes of what it was put together from, as a measure of its memory."""
        return self.whole + self.since

    def goes_on_with(self, entry: Entry) -> bool:
        """Return True if the entry may say only what changed since this one."""
        follows = entry.previous == self.entry.checksum != ""
        return follows and entry.epoch == self.entry.epoch

    def is_far_from_base(self, now: int, carried: int) -> bool:
        """Return True if the next entry, which is written now, is to be whole."""
        changes = self.entry.number - self.entry.base
        most = max(self.whole, LEAST_CHANGES) if carried else self.whole
        return self.since > most or changes >= MOST_CHANGES or now - self.begun >= MOST_AGE

    def followed_by(self, entry: Entry, length: int) -> _Known:
        """Return what is known of the next entry, whose file has this length."""
        if entry.base == entry.number:
            return _whole(entry, length)
        return replace(self, entry=entry, since=self.since + length)


def _whole(entry: Entry, length: int) -> _Known:
    return _Known(entry, length, entry.time)


class _MissingError(FileNotFoundError):
    """An entry from which another follows is not there."""


def check_name(application: str) -> None:
    """Refuse a name that no application can have.

    Raises:
        InvalidInputError: It can't name a folder.
    """
    if not isinstance(application, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", application):
        raise InvalidInputError(
            f"application name={application!r} can't name a folder; use letters, digits, '_', '.', '-'."
        )


def fenced(application: str, epoch: int | None = None) -> FencedError:
    """Return the error of a driver when a newer one owns the application: of this epoch, or as it appends an entry."""
    stopped = "has stopped and changed nothing" if epoch is None else f"(epoch {epoch}) has stopped"
    return FencedError(f"a newer driver owns {application}; this one {stopped}.")


class Log:
    """The entries of one application, as a process knows them. All threads of a driver share one log.

    What one thread has read or written, the others do not read again. No thread waits for a request of another one. A log that
    is pickled comes back as one that knows nothing.

    The first look at the newest entry lists the log. Later ones ask for what follows the entry that is known, by its number.
    A store may list late what it has: an entry that this log has written or met is not forgotten for that, and one that others
    have written is asked for by its number.

    Args:
        files: The store.
        application: The name of the application.
        seconds: A clock that never goes back, for the age of looks.
        most: The most entries to keep in memory beside the newest.
    """

    def __init__(
        self, files: Files, application: str, seconds: Callable[[], float] = time.monotonic, most: int = 1
    ) -> None:
        self.files = files
        self.application = application
        self._seconds, self._most = seconds, most
        # Held for no request: it guards the fields below.
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        """By number: entries that were read or written, those that were used last at the end."""
        self._highest = 0
        self._newest: Entry | None = None
        """The newest entry at the last look; None if there was none, or no look."""
        self._looked = 0.0
        """When that look began."""
        self._looks = 0
        """The number of looks since the last listing."""

    def __reduce__(self) -> tuple[type[Log], tuple[Files, str]]:
        return Log, (self.files, self.application)

    def numbers(self) -> list[int]:
        """Return the numbers of the entries that exist, ascending."""
        listed = [*self._listed()][::-1]
        # Other threads write meanwhile. Numbers follow each other.
        highest = self._highest
        return [*listed, *range(listed[-1] + 1 if listed else max(highest, 1), highest + 1)]

    def _listed(self) -> Iterator[int]:
        """Yield the numbers that the store lists, descending."""
        for name in reversed(self.files.list(f"{self.application}/log")):
            if found := re.fullmatch(r"(\d{20})\.json", name):
                yield int(found[1])

    def path(self, number: int) -> str:
        return f"{self.application}/log/{number:020d}.json"

    def newest(self, within: float = 0.0) -> Entry | None:
        """Return the newest entry, or None if the application has never been started.

        A look asks the store, unless the last look began less than `within` seconds ago: then this one returns what that one
        has found. Ask the store wherever it matters that no other process has written: before a sink is written to or goes
        back, before a source hears what was passed, before a drain ends, for the entry that a commit follows, and after each
        PUT, won or lost. A thread that only waits, for a newer driver or for a clock, may take the older answer: each commit of
        this process replaces it.

        Raises:
            DamagedError: The newest entry, or one that it follows from, is not what was written, or is missing. An older entry
                is never taken in its place.
        """
        began = self._seconds()
        with self._lock:
            known = self._newest
            # A higher number is known where another thread has come further, or another driver has won it.
            if known and known.number >= self._highest and 0 <= began - self._looked < within:
                return known
            self._looks += 1
            is_listed = self._looks >= LOOKS
        newest = None if is_listed else self._newest_by_name(known)
        if newest is None:
            # If this fails, the next look lists, too.
            self._looks = LOOKS
            newest = self._newest_by_listing()
            self._looks = 0
        with self._lock:
            self._newest, self._looked = newest, began
        return newest

    def _newest_by_name(self, entry: Entry | None) -> Entry | None:
        """Return the last of the entries that follow the known one; None if only a listing shows which is the newest."""
        # Nothing is before the first one.
        if entry is None or not entry.previous:
            return None
        # Where an entry on the way is damaged or missing, the newest may be whole. A listing shows it.
        with suppress(DamagedError, _MissingError):
            for _ in range(STEPS):
                following = self._after(entry)
                if following is None:
                    return entry if self._was_never_collected(entry) else None
                entry = following
        return None

    def _was_never_collected(self, entry: Entry) -> bool:
        """Return True if the entry before this one is in the store now, with the bytes that this one names.

        Entries are collected from the oldest up. So while the entry before this one is there, neither this one nor any later
        one was ever collected. If the store, asked before, had no entry of the next number, there never was one: this entry was
        the newest then. If this entry was created before, no other entry ever had its number: its driver has committed. No
        clock is asked, so that this holds however long the process, or its machine, slept in between.

        A driver that slept may create an entry again whose number was collected. The bytes show that, unless they are the same:
        the store did not answer the driver at first, and another thread or driver went on from the entry meanwhile.
        """
        path = self.path(entry.number - 1)
        try:
            # From the store: what this process remembers may be gone.
            return checksum(bytes(self.files.read(path))) == entry.previous
        except FileNotFoundError:
            return False

    def _newest_by_listing(self) -> Entry | None:
        missing = None
        for _ in range(TRIES):
            listed = next(self._listed(), 0)
            number = max(listed, self._highest)
            if number == 0:
                return self._last_from(None)
            if number > listed:
                # Not listed yet, or collected: only reading it shows which.
                with self._lock:
                    self._known.pop(number, None)
            try:
                return self._last_from(self.read(number))
            except _MissingError as error:
                # Its base may be collected as soon as newer entries follow from another.
                missing = error
            except FileNotFoundError:
                # Collected. While we looked, so a newer one exists, or long ago, and then the listing is right.
                self._highest = 0
        if missing is not None:
            raise DamagedError(
                f"{missing}; bring back the file from a copy of the store, or branch from a kept clock; nothing was changed."
            )
        raise StoreUnavailableError(f"the log of {self.application} changes faster than it can be read; try again.")

    def newest_sound(self) -> tuple[Entry, int]:
        """Return the newest entry that can be read though newer ones are damaged, and how many these are.

        It is no newest entry: no driver may go on from it in this log.

        Raises:
            DamagedError: A later version wrote a newer one, or none can be read.
            StoreUnavailableError: The store did not answer. So it is unknown whether an entry is damaged.
        """
        numbers = self.numbers()
        for number in reversed(numbers):
            with suppress(FileNotFoundError):
                try:
                    # In a log of its own, so that this one takes no older entry for the newest.
                    return Log(self.files, self.application).read(number), numbers[-1] - number
                except LaterVersionError:
                    raise
                except DamagedError:
                    continue
        raise DamagedError(
            f"no entry of the log of {self.application} can be read; bring back its files from a copy of the store."
        )

    def _last_from(self, entry: Entry | None) -> Entry | None:
        """Return the last of the entries that follow this one, or the first one of the log, without a look at the listing."""
        while not self.files.lists_at_once and (following := self._after(entry)):
            entry = following
        return entry

    def _after(self, entry: Entry | None) -> Entry | None:
        """Return the entry after this one, or the first one of the log; None if the store has none of its number."""
        try:
            return self.read(entry.number + 1 if entry else 1)
        except _MissingError:
            raise
        except FileNotFoundError:
            return None

    def read(self, number: int) -> Entry:
        """Return one entry. If all entries are read in their order, each is read once.

        An entry never changes, so one that this log still knows is not read again, even if others have collected it.

        Raises:
            DamagedError: It is not what was written, or does not go on from what it follows.
            FileNotFoundError: It was collected, or never written; or an entry was from which it follows.
        """
        known = self._known.get(number) or self._put_together(self.open(number))
        self._remember(known)
        return known.entry

    def forget_below(self, number: int) -> None:
        """Forget the entries before this one, which were collected."""
        with self._lock:
            self._known = {known: each for known, each in self._known.items() if known >= number}

    def _remember(self, known: _Known) -> None:
        """Keep an entry in memory, and let those go that were used longest ago, but not the newest."""
        number = known.entry.number
        with self._lock:
            self._known.pop(number, None)
            self._known[number] = known
            self._highest = max(self._highest, number)
            size = sum(each.size for each in self._known.values())
            while len(self._known) > self._most + 1 or (len(self._known) > 1 and size > MOST_BYTES):
                oldest = next(number for number in self._known if number != self._highest)
                size -= self._known.pop(oldest).size

    def open(self, number: int) -> Written:
        """Return one entry as it stands in the log.

        Raises:
            DamagedError: It is not what was written.
            FileNotFoundError: It was collected, or never written.
        """
        path = self.path(number)
        written = open_entry(bytes(self.files.read(path)), path)
        if written.number != number:
            raise DamagedError(f"log entry {path} says it is number {written.number}; a file was moved, restore it.")
        return written

    def _put_together(self, written: Written) -> _Known:
        """Return an entry by its base and the changes since, or by what changed since one that is known."""

        def link(number: int) -> Written:
            try:
                return self.open(number)
            except FileNotFoundError:
                raise _MissingError(
                    f"log entry {self.path(number)} is missing, and entry {written.number} follows from it"
                ) from None

        with self._lock:
            numbers = (number for number in self._known if written.base <= number < written.number)
            known = self._known.get(max(numbers, default=0)) if written.changes else None
        first = known.entry.number + 1 if known else written.base
        links = [*self.files.for_each(link, range(first, written.number)), written]
        for each in links:
            entry = each.entry(known.entry if known else None)
            known = known.followed_by(entry, each.length) if known else _whole(entry, each.length)
        assert known is not None
        return known

    def append(self, entry: Entry) -> Entry:
        """Make `entry` the newest of the log, and return it with its runs where they are then. Readers see all of it or none.

        If it is whole, or has many runs itself, these are written to a file first.

        Raises:
            ExistsError: Another entry has its number. Nothing changed; look at it.
            FencedError: A newer driver owns the application, or did while this one slept.
            CommitUnknownError: The store did not answer. Nothing may be deleted; the next start finds out.
            StoreRefusedError: The store may not be written with these credentials, or by this user.
            StoreUnavailableError: The store did not answer. The entry may be written: the next start finds out.
        """
        known = self._known.get(entry.number - 1)
        before = known if known and known.goes_on_with(entry) else None
        is_whole = before is None or before.is_far_from_base(entry.time, entry.inline)
        base = entry.number if before is None or is_whole else before.entry.base
        if is_whole or entry.inline > inline.MOST:
            entry = inline.written_out(self.files, self.application, entry)
        data = to_bytes(entry, before.entry if before else None, base)
        path = self.path(entry.number)
        try:
            self.files.ensure(path, data, TRIES)
        except ExistsError:
            with self._lock:
                self._highest = max(self._highest, entry.number)
            raise
        except StoreUnavailableError as error:
            raise CommitUnknownError(
                f"the store did not say whether entry={entry.number} of {self.application} was written ({error}); start again."
            ) from error
        if entry.number >= self._highest:
            written = replace(entry, checksum=checksum(data), base=base)
            self._remember(before.followed_by(written, len(data)) if before else _whole(written, len(data)))
        # The number may have been used and collected while this driver slept. A look finds that out, by name or by a listing.
        newest = self.newest()
        if newest is None or newest.epoch > entry.epoch:
            raise fenced(self.application)
        # A higher number of its own epoch is another task's. If it does not go on from ours, ours is not part of the log.
        if newest.number > entry.number and not self._goes_on_from(entry.number, data):
            raise CommitUnknownError(
                f"entry {entry.number} of {self.application} came after others of its number; start again."
            )
        return entry

    def _goes_on_from(self, number: int, data: bytes) -> bool:
        """Return True if the next entry names the checksum of these bytes as the entry before it."""
        try:
            return self.open(number + 1).previous == checksum(data)
        except FileNotFoundError:
            return False
