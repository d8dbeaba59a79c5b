"""Warn of files of a folder, of each once for a start, and look whether known files were written again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from persistent_state.sources.file_reader import FileReader
from persistent_state.sources.folder import Folder
from persistent_state.sources.listing import File

_logger = logging.getLogger("persistent_state")

NAMED = 3
"""The number of files that a message names."""
_WATCHED, _IN_TURN = 100, 900
"""The number of the newest known files of a folder of this machine that each listing looks at, whether they have changed, and
how many of the others it looks at in turn: of 10,000 files a listing takes 25 ms, and to look at each of them takes 0.1 s."""
MOVED = (
    "not read, as it looks like a file that was read under another path, so that its rows would count twice. Move it back, as "
    "it was, or out of the folder; if it is another file, write it again under another name"
)
COPIED = (
    "read, although it looks like a copy of another file that is read. If it is one, its rows count twice: move it out of the "
    "folder, and name the task in rebuild"
)
LINKED = (
    "left out, as a link makes the two one file, which is read once. If its rows are to count twice, put a copy in place of "
    "the link"
)
OTHER_SIZE = (
    "the size has changed since it was listed. What was written since is not read, and a start that has to read the file again "
    "is refused. Write new rows to a new file"
)
WRITTEN_AGAIN = (
    "written again since it was listed. What it holds now counts only for a start that reads it again. Write new rows to a new "
    "file"
)
"""Warnings of files."""


@dataclass
class FileWarnings:
    """The warnings of the files of a folder. Each warning names a file once for a start.

    Attributes:
        folder: The folder.
        is_quiet: Whether nothing is logged: what there is to warn of counts as warned of.
    """

    folder: Folder
    is_quiet: bool
    _warned: set[tuple[str, str]] = field(default_factory=set)
    """The paths of which people were warned, each with why."""

    def warn(self, why: str, paths: Collection[str]) -> None:
        """Warn of files. A mapping has the words for each path."""
        new = [path for path in sorted(paths) if (path, why) not in self._warned]
        self._warned.update((path, why) for path in new)
        if new and not self.is_quiet:
            names = named(new, lambda path: paths[path] if isinstance(paths, Mapping) else repr(path))
            _logger.warning("%s of %r: %s.", names, self.folder, why)


@dataclass
class Watch:
    """The look whether known files were written again: at all that a listing has looked at, else at some of them in turn."""

    reader: FileReader
    warnings: FileWarnings
    _turn: int = 0
    """The number of the known file from which on the next look goes."""

    def look(self, files: Sequence[File], there: Mapping[str, File] | None) -> None:
        """Warn of known files that were written again. `there` are the files that the listing has looked at, if it has."""
        if there is None:
            newest, others = files[-_WATCHED:], files[:-_WATCHED]
            begin = self._turn
            files = [*others[begin : begin + _IN_TURN], *newest]
            self._turn = begin + _IN_TURN if begin + _IN_TURN < len(others) else 0
            folder = self.reader.folder
            there = {file.path: now for file in files if (now := folder.local_file(file.path)) is not None}
        present = [(file, there[file.path]) for file in files if file.path in there]
        present = [(file, now) for file, now in present if self.reader.is_opened(file.path)]
        self.warnings.warn(OTHER_SIZE, [file.path for file, now in present if file.size != now.size])
        self.warnings.warn(WRITTEN_AGAIN, [file.path for file, now in present if is_written_again(file, now)])


def is_written_again(file: File, now: File) -> bool:
    """Return whether a file of the same size has another time now."""
    times = (file.modified, now.modified)
    return file.size == now.size and None not in times and file.modified != now.modified


def named(paths: Sequence[str], words: Callable[[str], str]) -> str:
    """Return the first few of some files for a sentence."""
    more = f" and {len(paths) - NAMED:,} more" if paths[NAMED:] else ""
    return ", ".join(map(words, paths[:NAMED])) + more
