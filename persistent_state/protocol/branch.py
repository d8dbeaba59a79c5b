"""Branch an application: make another one of it as it was at a kept clock, in the same store or in another one.

The first entry of a branch says what a rewind to the clock would say, but for what sinks have. Invariants:

- Every file is copied and verified before the entry is written, and the entry is written only if the name is free. Until then
  there is no application of that name, but files that no entry names.
- A file of which ranges are named is copied once, as a whole. Each range that the entry names is verified in the copy.
- A copy has the name of its file, in the folders of the branch. A name is never used twice, so what an earlier try has copied
  is a copy of the same file. A list of files names them by their paths, so it is written again, under a name of its own.
- The epoch of a branch is above that of each file, as above that of each file of the application that it was. So its collector
  deletes what an earlier try has left, and no life of a task is taken for another one.
- A file of a kept clock stays as long as the clock is kept. If one is missing, the clock may have gone.
- It is the way past a newest entry that is damaged. Nothing goes on in that log: what the entries that can't be read had
  changed is unknown, such as what sinks were given, or which epoch it is. A branch needs none of it. It is of a clock that the
  newest sound entry keeps, and that was named: no older clock is taken in place of the newest by itself. Each entry begins at
  most one epoch, so that the branch's is above all of them. Files of the clock may have gone since: then there is no branch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from persistent_state import windows
from persistent_state.errors import (
    DamagedError,
    ExistsError,
    FencedError,
    InvalidInputError,
    StoreUnavailableError,
)
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import full_clock
from persistent_state.protocol import restore
from persistent_state.protocol.naming import none_kept
from persistent_state.store import kept_entries, lists, runs
from persistent_state.store.codec import side_from_json, side_to_json
from persistent_state.store.entry import Entry, Kept
from persistent_state.store.files import Files
from persistent_state.store.files.base import TRIES
from persistent_state.store.flow_state import FlowState, LateRows
from persistent_state.store.log import Log, check_name
from persistent_state.store.named_files import Pages, ShardRuns, Stored, length_of
from persistent_state.store.output_state import OutputState
from persistent_state.store.state_at import nearest_clocks, no_application
from persistent_state.store.task_state import TaskState
from persistent_state.task import name_of_rows


def branch(
    source: Log,
    target: Log,
    clock: int | None,
    *,
    now: int,
    new_id: Callable[[], str],
    tell: Callable[[int, int], None] = lambda done, size: None,
) -> Entry:
    """Make another application of one as it was at a kept clock, and return its first entry.

    The application may run meanwhile. Whatever ends this early leaves no branch, and it can be done again. The newest entry of
    the log may be damaged if the clock is given.

    Args:
        source: The log of the application.
        target: The log that the branch will have.
        clock: The kept clock; None for the global one.
        now: The time by the wall clock.
        new_id: Makes a part of a file's name that was never used.
        tell: Called after each file with the bytes that are copied, and all that are needed, by one thread at a time.

    Raises:
        InvalidInputError: There is no such application, the clock is not kept or no longer kept, or the new name can't be used.
        DamagedError: A file is not what was written, or is missing.
        StoreUnavailableError: A store did not answer. Do it again.
        CommitUnknownError: The store did not answer. Look whether the branch is there, and else do it again.
    """
    check_name(target.application)
    newest = _newest(source, is_clock_given=clock is not None)
    _check_free(target)
    at = newest.clock if clock is None else clock
    if at not in newest.kept:
        if not newest.kept:
            raise none_kept(source.application, newest)
        raise InvalidInputError(
            f"clock={full_clock(at)} is not kept, so nothing can branch from it; take {nearest_clocks(newest.kept, at)}."
        )
    number = newest.kept[at].entry
    try:
        back = restore.all_cut_back(source.files, kept_entries.read(source, number), now)
        copies = _Copies(source, target, back, newest.epoch + 1, new_id)
        entry = _first_entry(copies.renamed(), newest.epoch + 1, f"branch of {source.application}", now)
        copies.make(tell)
    except (FileNotFoundError, DamagedError) as error:
        still = _newest(source, is_clock_given=True)
        if not kept_entries.is_kept(still.kept, at, number):
            raise InvalidInputError(
                f"clock={full_clock(at)} of application={source.application} was released, or taken back, before all was "
                f"copied, and {target.application} was not made; keep a clock by a name, and branch from it."
            ) from None
        if isinstance(error, FileNotFoundError):
            raise DamagedError(
                f"a file of kept clock={full_clock(at)} is gone ({error}); bring it back from a copy of the store, or branch "
                "from another clock."
            ) from None
        raise
    _check_free(target)
    try:
        entry = target.append(entry)
    except (ExistsError, FencedError):
        raise _taken(target) from None
    # What an earlier try has left. If it can't be deleted now, the collector of the branch will.
    with suppress(StoreUnavailableError):
        target.files.for_each(target.files.delete, sorted(copies.left_before - entry.files()))
    return entry


def _newest(source: Log, is_clock_given: bool) -> Entry:
    """Return the newest entry. If it is damaged, return the newest sound one, with the highest epoch that there may be.

    Raises:
        InvalidInputError: There is no such application.
        DamagedError: The newest entry is damaged, and no clock is given; or no entry can be read.
    """
    try:
        newest = source.newest()
    except DamagedError as error:
        sound, lost = source.newest_sound()
        if not is_clock_given:
            raise DamagedError(
                f"{str(error).rstrip('.')}. Name the clock to branch from: those of the newest sound entry are "
                f"{', '.join(map(full_clock, sorted(sound.kept, reverse=True))) or 'none'}."
            ) from None
        return replace(sound, epoch=sound.epoch + lost)
    if newest is None:
        raise no_application(source.files, source.application)
    return newest


def left_out(entry: Entry) -> dict[str, int]:
    """Return the tasks that were left out when the clock of a branch was the newest, each with the clock at which it left.

    `entry` is the first entry of the branch. A part of an ordered task counts as that task.
    """
    named = entry.part_of
    return {
        name: entry.flows[task.flow].visited
        for name, task in entry.tasks.items()
        if not task.active and name not in named
    }


def begin_with(entry: Entry) -> dict[str, int]:
    """Return the tasks whose outputs are given each window or row once, each with the clock after which these ended or came.

    An output of the branch begins with them, and perhaps with some from before: with all that are still there. The clock is
    `BEGINNING` if nothing has gone. `entry` is the first entry of the branch.
    """
    named = entry.part_of
    found = dict[str, int]()
    for name, task in entry.tasks.items():
        kind = windows.from_identity(task.identity)
        is_rows = name == name_of_rows(named.get(name, ""))
        if is_rows or isinstance(kind, (windows.SlidingWindow, windows.SessionWindow)):
            found[named.get(name, name)] = task.stored.floor
    return found


def notes(entry: Entry, application: str) -> list[str]:
    """Return in sentences what a user of a branch may not expect, by its first entry."""
    at = full_clock(entry.clock)
    return [
        *(
            f"task={name} was left out when clock={at} was the newest, so it is in application={application} as it left, at "
            f"clock={full_clock(clock)}; name it in reset or rebuild of the first start that has it."
            for name, clock in left_out(entry).items()
            if clock != BEGINNING
        ),
        *(
            f"task={name}: each output of application={application} begins with what closed or was emitted after "
            f"clock={full_clock(clock)}, and perhaps with some from before; a sink that acts on rows acts on these again."
            if clock != BEGINNING
            else f"task={name}: each output of application={application} begins with all that ever closed or was emitted; a "
            "sink that acts on rows acts on these again."
            for name, clock in begin_with(entry).items()
        ),
    ]


def _check_free(target: Log) -> None:
    """Refuse a name that an application has.

    Raises:
        InvalidInputError: There is an application of that name.
    """
    if target.numbers():
        raise _taken(target)


def _taken(target: Log) -> InvalidInputError:
    return InvalidInputError(
        f"application={target.application} is already there in store={target.files.url}; take another name."
    )


def _first_entry(back: Entry, epoch: int, writer: str, now: int) -> Entry:
    """Return the first entry of a branch, given what is true of it at its clock."""
    return replace(
        back,
        number=1,
        epoch=epoch,
        writer=writer,
        time=now,
        previous="",
        retained=(back.clock,),
        kept={back.clock: Kept(1)},
        timeline=epoch,
        owes={},
        # No sink was given anything of the branch, and none of its names is taken.
        tasks={name: replace(task, outputs=OutputState()) for name, task in back.tasks.items()},
        checksum="",
        base=0,
    )


class _Copies:
    """The files of a branch: copies of those of an application at a clock, under other paths."""

    def __init__(self, source: Log, target: Log, back: Entry, epoch: int, new_id: Callable[[], str]) -> None:
        """Find the files of the entry `back`, and write its lists for a branch of this epoch."""
        self._source = source
        self._target = target
        self._back = back
        self._there = self._find()
        holders: list[TaskState | FlowState] = [*back.tasks.values(), *back.flows.values()]
        files = [file for holder in holders for file in holder.files()]
        settled = [holder.late_rows.settled for holder in holders]
        self._lists: dict[str, Stored] = {}
        """By the path of a list of files: the list of their copies."""
        for page in dict.fromkeys(file for pages in settled for file in pages.files):
            items = lists.read_file(source.files, page)
            files += listed_files(items)
            self._lists[page.path] = self._write_list(page.path, items, epoch, new_id)
        for pages in settled:
            files += listed_files(pages.tail)
        self._files = by_path(file for file in files if file.path not in self._lists)

    @property
    def left_before(self) -> set[str]:
        """The paths of what an earlier try has left that is no copy of these files. The branch may name some all the same."""
        return self._there - {self._path(path) for path in self._files}

    def make(self, tell: Callable[[int, int], None]) -> None:
        """Copy all files, and verify each copy."""
        size, done, lock = sum(map(length_of, self._files.values())), 0, threading.Lock()

        def copy(named: Sequence[Stored]) -> None:
            nonlocal done
            path = self._path(named[0].path)
            copy_file(self._source.files, self._target.files, named, path, path in self._there)
            with lock:
                done += length_of(named)
                tell(done, size)

        far = self._target.files if self._source.files.near else self._source.files
        far.for_each(copy, [*self._files.values()])

    def renamed(self) -> Entry:
        """Return the entry that names the copies."""
        return replace(
            self._back,
            flows={id: self._flow(flow) for id, flow in self._back.flows.items()},
            tasks={name: self._task(task) for name, task in self._back.tasks.items()},
        )

    def _find(self) -> set[str]:
        """Return the paths of the files that are in the folders of the branch."""
        runs, files = f"{self._target.application}/runs", self._target.files
        folders = [f"{runs}/{task}" for task in files.list(runs)]
        return {f"{folder}/{name}" for folder in folders for name in files.list(folder)}

    def _write_list(self, path: str, items: Sequence[str], epoch: int, new_id: Callable[[], str]) -> Stored:
        folder = self._path(path).rpartition("/")[0]
        new = f"{folder}/{epoch:06d}-{0:09d}-pages-{new_id()}"
        return lists.write_file(self._target.files, new, [self._item(item) for item in items])

    def _path(self, path: str) -> str:
        return f"{self._target.application}/{path.removeprefix(f'{self._source.application}/')}"

    def _copy_of(self, file: Stored) -> Stored:
        return replace(file, path=self._path(file.path))

    def _item(self, item: str) -> str:
        side = side_from_json(item)
        return side_to_json(replace(side, file=self._copy_of(side.file)))

    def _late_rows(self, rows: LateRows) -> LateRows:
        sides = tuple(replace(side, file=self._copy_of(side.file)) for side in rows.sides)
        files = tuple(self._lists[file.path] for file in rows.settled.files)
        return replace(rows, sides=sides, settled=Pages(files, tuple(self._item(item) for item in rows.settled.tail)))

    def _flow(self, flow: FlowState) -> FlowState:
        journals: Mapping[str, Pages] = {
            name: replace(source.journal, files=tuple(map(self._copy_of, source.journal.files)))
            for name, source in flow.inputs.items()
        }
        return replace(flow.with_journals(journals), late_rows=self._late_rows(flow.late_rows))

    def _task(self, task: TaskState) -> TaskState:
        shards = tuple(
            ShardRuns(tuple(replace(run, file=self._copy_of(run.file)) for run in shard.runs))
            for shard in task.stored.shards
        )
        return replace(task, stored=replace(task.stored, shards=shards), late_rows=self._late_rows(task.late_rows))


def listed_files(items: Iterable[str]) -> list[Stored]:
    """Return the files that items of a list name."""
    return [side_from_json(item).file for item in items]


def by_path(files: Iterable[Stored]) -> dict[str, list[Stored]]:
    """Return what is named of each file, by its path: the file, or ranges of it."""
    named: dict[str, list[Stored]] = {}
    for file in dict.fromkeys(files):
        named.setdefault(file.path, []).append(file)
    return named


def copy_file(source: Files, target: Files, named: Sequence[Stored], path: str, is_there: bool) -> None:
    """Copy a file, and verify the copy. One that is there already is only verified.

    Args:
        source: The store of the file.
        target: The store of the copy.
        named: What entries name of the file: all of it, or ranges, of which each is verified.
        path: The path of the copy.
        is_there: True if there is a file of this path.

    Raises:
        DamagedError: The file is not what was written, or what is there is not a copy of it.
        FileNotFoundError: The file is gone.
    """
    first = named[0]
    if is_there or target.copy_from(source, first.path, path):
        with suppress(FileNotFoundError):
            if _is_sound(target.read(path), named):
                return
            if _is_sound(source.read(first.path), named):
                # It is not replaced: another call may be writing the entry that names it.
                raise DamagedError(f"{path} is no copy of {first.path}; delete it, and do it again.")
            raise first.damage()
    data = source.read(first.path)
    if not _is_sound(data, named):
        raise first.damage()
    target.ensure(path, data, TRIES)


def _is_sound(data: pa.Buffer, named: Sequence[Stored]) -> bool:
    return not any(True for stored in named for _ in runs.problems(data, stored))
