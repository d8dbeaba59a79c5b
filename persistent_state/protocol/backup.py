"""Back up an application: copy its newest log entry to another store, with the files that the entry names.

The place of the backups is a store. Its application has the same name, and a log with an entry for each backup. Invariants:

- An entry is what the application's own newest entry was, but for its number and its kept clocks. So a start of the backup goes
  on as a start of the application would have then.
- All files that an entry names are in the place, and verified, before the entry is written. Until then there is no backup, but
  files that no entry names. The next backup takes those of them that it needs, and deletes the others.
- A file's name is never used twice. So a file that an entry of the place names is not copied again. A range of it that no
  entry of the place has named is verified.
- A file of the newest entry stays in the application's store for the grace of its collector. If one is gone, the newest entry
  of now is copied instead, and what was copied stays.
- The clocks of the newest backups are kept, each by a whole entry in the log. Where the application went back since, only those
  are kept that it keeps itself: what was above the clock to which it went back is void.
- Nothing is written where the application was started, and nothing in the application's own store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from persistent_state.errors import DamagedError, ExistsError, FencedError, InvalidInputError, StoreUnavailableError
from persistent_state.formatting import full_clock
from persistent_state.protocol.branch import by_path, copy_file, listed_files
from persistent_state.protocol.collect import LEFTOVER_AGE
from persistent_state.protocol.naming import none_kept
from persistent_state.store import inline, kept_entries, lists
from persistent_state.store.entry import Entry, Kept
from persistent_state.store.files import Files
from persistent_state.store.files.base import TRIES
from persistent_state.store.flow_state import FlowState
from persistent_state.store.log import Log
from persistent_state.store.named_files import Stored, length_of, written
from persistent_state.store.state_at import no_application
from persistent_state.store.task_state import TaskState

BACKUP = "backup"
"""The writer of a backup's entry. That of a start is random."""


def backup(
    source: Log, target: Log, last: int, *, now: int, show: Callable[[int, int], None] = lambda done, size: None
) -> Entry:
    """Copy the newest entry of an application and what it names, and return the entry of the backup.

    The application may run meanwhile. What ends this early leaves no backup, and the next call goes on.

    Args:
        source: The log of the application.
        target: The log of its backups, of the same name in another store.
        last: The number of clocks that are kept.
        now: The time by the wall clock.
        show: Called after each file with the new bytes that are copied, and all that are needed, by one thread at a time.

    Raises:
        InvalidInputError: There is no such application or no clock yet, or the place has something else than its backups.
        DamagedError: A file is not what was written, or is missing.
        StoreUnavailableError: A store did not answer. Do it again.
        CommitUnknownError: The store did not answer. Do it again.
    """
    if last < 1:
        raise InvalidInputError(f"{last=} is less than 1; keep at least one backup.")
    if source.files == target.files:
        raise InvalidInputError(
            f"store={target.files.url} is the application's own; name another place for its backups."
        )
    before, newest = target.newest(), source.newest()
    if newest is None:
        raise no_application(source.files, source.application)
    for left in reversed(range(TRIES)):
        if newest.clock not in newest.kept:
            raise none_kept(source.application, newest)
        _check_place(target, before, newest)
        try:
            _copy(source.files, target, before, newest, show)
            break
        except (DamagedError, FileNotFoundError) as error:
            after = source.newest()
            if left and after is not None and after.number > newest.number:
                # The file may have gone with what named it, and what was copied stays.
                newest = after
                continue
            if isinstance(error, DamagedError):
                raise
            raise DamagedError(
                f"a file of the newest entry is gone ({error}); if persistent-state verify finds the store sound, back up "
                "again: what is copied stays."
            ) from None
    # As the log of the backup would do, so that the entry is compared with the one before as that is there.
    newest = inline.written_out(target.files, target.application, newest)
    entry = _entry(before, newest, last, {} if before is None else _valid(source, before, newest))
    if entry != before:
        try:
            # In a log of its own, which knows no entry before it, so that this one is whole.
            Log(target.files, target.application).append(entry)
        except (ExistsError, FencedError):
            raise InvalidInputError(
                f"another backup of application={source.application} to store={target.files.url} came first; back up again."
            ) from None
    _tidy(target, entry, now)
    return entry


def _check_place(target: Log, before: Entry | None, newest: Entry) -> None:
    """Refuse a place that has something else than older backups of the application.

    Raises:
        InvalidInputError: It has.
    """
    if before is None:
        return
    place = f"application={target.application} in store={target.files.url}"
    if before.writer.removeprefix(before.mark) != BACKUP:
        raise InvalidInputError(f"{place} is no backup: it was started, or is a branch; name another place.")
    is_later = before.clock > newest.clock and before.timeline == newest.timeline
    if before.epoch > newest.epoch or before.timeline > newest.timeline or is_later:
        raise InvalidInputError(
            f"{place} has a backup at clock={full_clock(before.clock)}, which is later than the newest one here, as where this "
            "store was brought back from an older backup; name another place."
        )


def _copy(source: Files, target: Log, before: Entry | None, newest: Entry, show: Callable[[int, int], None]) -> None:
    """Copy the files that an entry names, but for those of the backup before.

    Raises:
        DamagedError: A file is not what was written.
        FileNotFoundError: A file is gone.
    """
    there = _files_there(target)
    known = {file for file in _named(target.files, before) if file.path in there} if before else set[Stored]()
    # A range that no backup has named yet is verified, also where its file is there.
    new = [*by_path(_named(source, newest) - known).values()]
    size, done, lock = sum(map(length_of, new)), 0, threading.Lock()

    def copy(named: Sequence[Stored]) -> None:
        nonlocal done
        path = named[0].path
        copy_file(source, target.files, named, path, path in there)
        with lock:
            done += length_of(named)
            show(done, size)

    (target.files if source.near else source).for_each(copy, new)


def _valid(source: Log, before: Entry, newest: Entry) -> Mapping[int, Kept]:
    """Return the kept clocks of the backup before that no rewind has made void since.

    Raises:
        DamagedError: An entry of the application's kept clocks is not what was written.
    """
    if before.timeline == newest.timeline:
        return before.kept
    valid = {}
    for clock in before.kept.keys() & newest.kept.keys():
        # The application may have come to such a clock again.
        with suppress(FileNotFoundError):
            if kept_entries.read(source, newest.kept[clock].entry).timeline <= before.timeline:
                valid[clock] = before.kept[clock]
    return dict(sorted(valid.items()))


def _entry(before: Entry | None, newest: Entry, last: int, older: Mapping[int, Kept]) -> Entry:
    """Return the entry of a backup, given the older clocks that stay: the one before, if nothing has changed since."""
    number = 1 if before is None else before.number + 1
    kept = {clock: each for clock, each in older.items() if clock != newest.clock}
    entry = replace(
        newest,
        number=number,
        writer=f"{newest.mark}{BACKUP}",
        previous="" if before is None else before.checksum,
        kept=dict([*kept.items(), (newest.clock, Kept(number))][-last:]),
        checksum="",
        base=0,
    )
    same = before is not None and replace(entry, number=before.number, previous=before.previous, kept=before.kept)
    return before if before is not None and same == before else entry


def _named(files: Files, entry: Entry) -> set[Stored]:
    """Return the files, and ranges of files, that an entry names, also by its lists."""
    holders: list[TaskState | FlowState] = [*entry.tasks.values(), *entry.flows.values()]
    named = {file for holder in holders for file in holder.files()}
    for settled in [holder.late_rows.settled for holder in holders]:
        for page in settled.files:
            named.update(listed_files(lists.read_file(files, page)))
        named.update(listed_files(settled.tail))
    return named


def _folders(log: Log) -> list[str]:
    runs = f"{log.application}/runs"
    return [f"{runs}/{task}" for task in log.files.list(runs)]


def _files_there(log: Log) -> set[str]:
    """Return the paths of the files of all tasks."""
    return {f"{folder}/{name}" for folder in _folders(log) for name in log.files.list(folder)}


def _tidy(target: Log, entry: Entry, now: int) -> None:
    """Delete the entries before those of the kept clocks, and what no entry names. A backup that is under way names it later.

    The newest two entries stay, so that a slower backup finds its number taken. What can't be deleted now is left to the next
    backup.
    """
    files = target.files
    with suppress(StoreUnavailableError, DamagedError, FileNotFoundError):
        numbers = target.numbers()
        first = min([*numbers[-2:-1], *(kept.entry for kept in entry.kept.values())])
        for number in numbers:
            if number < first:
                files.delete(target.path(number))
        named = {file.path for number in numbers if number >= first for file in _named(files, target.read(number))}
        under_way = {name: entry.flow_of(name).progress.batch for name in entry.tasks}
        gone = [
            path
            for path in sorted(_files_there(target) - named)
            if written(path) < (entry.epoch, under_way.get(path.split("/")[-2], 0))
        ]
        for folder in (f"{target.application}/log", *_folders(target)):
            gone += [f"{folder}/{name}" for name, age in files.leftovers(folder, now) if age > LEFTOVER_AGE]
        files.for_each(files.delete, gone)
