"""Files of a folder that a start knows, by ordinal: it numbers new ones, and sees changes of the others.

A file is known by its path, and must stay where it is, as it was. So each listing looks for known files that were written
again, and for new files that are known ones under another path. A file that is to be read again must be there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial

from persistent_state.errors import InvalidInputError, StateError, StoreUnavailableError
from persistent_state.sources import moves
from persistent_state.sources.file_reader import FileReader
from persistent_state.sources.file_warnings import (
    COPIED,
    LINKED,
    MOVED,
    NAMED,
    WRITTEN_AGAIN,
    FileWarnings,
    Watch,
    is_written_again,
    named,
)
from persistent_state.sources.folder import OR, Folder
from persistent_state.sources.listing import UNREADABLE, File, Listing


@dataclass
class KnownFiles:
    """The driver's view of a folder.

    Attributes:
        reader: The reader of the files.
        files: The files that are read, by ordinal.
        finite: Whether the source is finite.
        is_whole: Whether the journal has all files of a finite source.
        is_copy: Whether the source is a copy in a process of Spark's, which does not repeat what a start has warned of.
        journalled: The number of files in the journal.
        warnings: The warnings of the folder's files.
        watch: The look whether known files were written again.
    """

    reader: FileReader = field(compare=False)
    files: list[File]
    finite: bool
    is_whole: bool
    is_copy: InitVar[bool]
    journalled: int = field(init=False)
    warnings: FileWarnings = field(init=False)
    watch: Watch = field(init=False)
    present: dict[str, File] | None = field(default_factory=dict)
    """The files that the newest listing looked at, while files of the journal are replayed."""
    places: dict[str, str] = field(default_factory=dict)
    """The paths under which files are read that are gone from their own."""
    is_frozen: bool = False
    """True if the start takes no more files."""
    most: int | None = None
    """The number of files to stay within."""
    last_reach: dict[str, int] | None = None
    """The ends of the newest reach of a finite source, if that had anything to read."""
    _paths: set[str] = field(init=False)
    _moved: dict[str, str] = field(default_factory=dict)
    """Files that are not read, each with the path under which it was read before."""
    _links: dict[tuple[str, tuple[int, int] | None], str] = field(default_factory=dict)
    """Paths that are left out as links, and their inodes, each with the path under which the file is read."""
    _stamps: dict[tuple[int, int | None], list[File]] = field(default_factory=dict)
    _is_opening: bool = True

    def __post_init__(self, is_copy: bool) -> None:
        self.journalled = len(self.files)
        self.warnings = FileWarnings(self.folder, is_copy)
        self.watch = Watch(self.reader, self.warnings)
        self._paths = {file.path for file in self.files}

    @property
    def folder(self) -> Folder:
        """The folder of the files."""
        return self.reader.folder

    def open(self) -> None:
        """List the folder for the first time in this start.

        Raises:
            InvalidInputError: As `take` does.
            StoreUnavailableError: As `take` does.
        """
        self.take()
        self._is_opening = self.warnings.is_quiet = False

    def take(self) -> None:
        """List the folder, and number the files that are new. A finite source that has its files takes no new one.

        Raises:
            InvalidInputError: There is no such folder, or a start that has read nothing finds the folder of a table.
            StoreUnavailableError: The folder can't be listed, or a finite source may not read one of its files.
        """
        listing = self.folder.listing(self._paths)
        self._check_tables(listing.tables, "has")
        if self._is_opening:
            self._check_tables(self.folder.tables_above(), "lies below the folder of")
        if self.present is not None:
            self.present = listing.there or {}
        self.watch.look(self.files, listing.there)
        links = self._left_out_links(listing)
        new = [file for file in listing.files if file.path not in links]
        is_gone = partial(self._is_gone, listing)
        self._moved, copies = moves.moved_and_copied(self.reader, self.files, new, is_gone, self._moved)
        self.warnings.warn(MOVED, {path: f"{path!r} (read as {then!r})" for path, then in self._moved.items()})
        if self.is_whole:
            return
        new = [file for file in new if file.path not in self._moved]
        if listing.there is None:
            copies |= self._copies(new)
        self.warnings.warn(COPIED, {path: f"{path!r} (as {other!r})" for path, other in copies.items()})
        self.warnings.warn(LINKED, {path: f"{path!r} (as {other!r})" for path, other in links.items()})
        unreadable = [path for path, why in listing.left_out.items() if why == UNREADABLE]
        if self.finite and unreadable:
            raise StoreUnavailableError(
                f"file={unreadable[0]!r} of {self.folder!r} may not be read. Permit that, then try again."
            )
        for why in dict.fromkeys(listing.left_out.values()):
            self.warnings.warn(f"left out: {why}", [path for path, other in listing.left_out.items() if other == why])
        new = self.folder.in_order(new)
        self.files += new
        self._paths.update(file.path for file in new)

    def _left_out_links(self, listing: Listing) -> dict[str, str]:
        """Return the new files that are one with another file by a link, each with the path under which that is read."""
        linked = self.folder.in_order(file for file in listing.files if file.path in listing.linked)
        # The file itself is read, rather than a link, which may soon lead to another one.
        linked.sort(key=lambda file: listing.linked[file.path])
        names = {file.path: (file.path, self.folder.inode(file.path)) for file in linked}
        new = [file for file in linked if names[file.path] not in self._links]
        sizes = {file.size for file in new}
        # Another file may be in the place of a known one, and its rows were never read.
        known = [file for file in self.files if file.size in sizes and self.folder.local_file(file.path) == file]

        def mark(file: File) -> Hashable:
            inode = self.folder.inode(file.path)
            return inode and (inode, *self.reader.folder_columns(file.path))

        self._links |= {names[path]: other for path, other in moves.alike_by(mark, self.reader, known, new).items()}
        return {path: self._links[name] for path, name in names.items() if name in self._links}

    def _copies(self, new: Sequence[File]) -> dict[str, str]:
        """Return the new files of this machine that have the size, the time and the bytes of another file, with its path."""
        new = self.folder.in_order(file for file in new if file.size)
        near = {(file.size, file.modified) for file in new}
        known = [file for file in self.files if (file.size, file.modified) in near] if near else []
        # Most files share size and time with no other one, and are not opened.
        shared = {stamp for stamp, files in moves.by_stamp([*known, *new]).items() if len(files) > 1}
        new = [file for file in new if (file.size, file.modified) in shared]

        def mark(file: File) -> Hashable:
            ends = self.folder.ends(file.path)
            return ends and (file.size, file.modified, ends, moves.columns(file))

        return moves.alike_by(mark, self.reader, known, new)

    def _check_tables(self, tables: Mapping[str, str], where: str) -> None:
        """Refuse to begin with a folder that is a table. A source that has begun goes on, with a warning."""
        for path, what in tables.items():
            if self._is_opening and not self.files:
                raise InvalidInputError(f"{self.folder!r} {where} {path!r}, so its files are {what}.")
            self.warnings.warn(f"its files are {what}", [path])

    def _is_gone(self, listing: Listing, known: File) -> bool:
        """Return whether a known file is no longer there, or another one is in its place."""
        return known != (self.folder.local_file(known.path) if listing.there is None else listing.there.get(known.path))

    def check_replayed(self, file: File) -> None:
        """Look for a file that is to be read again, under its path or the one that it has by now.

        Raises:
            InvalidInputError: It is gone, or has another size.
        """
        if not self.reader.is_opened(file.path):
            return
        # Some listings leave out files that they could not look at.
        now = (self.present or {}).get(file.path) or self.folder.file(file.path)
        if now is None:
            self._stamps = self._stamps or moves.by_stamp(self.files)
            if (place := _stand_in(self.reader, file, self._stamps)) is None:
                raise self.gone(file.path)
            self.places[file.path] = place
            return
        if now.size != file.size:
            raise self.folder.changed(file.path, file.size, now.size)
        if is_written_again(file, now):
            self.warnings.warn(WRITTEN_AGAIN, [file.path])

    def gone(self, path: str) -> StateError:
        """Return the error of a file of the log that is gone. It names a file that may be the same one."""
        what = f"file={path!r} of {self.folder!r} is gone"
        if new := next((new for new, then in self._moved.items() if then == path), None):
            return InvalidInputError(f"{what}, and file={new!r} looks like it; move that back, as it was, {OR}.")
        if (other := self._later_one(path)) is not None:
            return InvalidInputError(f"{what}, and {other}. Else bring it back.")
        return self.folder.gone(path)

    def _later_one(self, gone: str) -> str | None:
        """Return in words which later file may be one that is gone, and what to do then; None if none may be."""
        place = next((i for i, file in enumerate(self.files) if file.path == gone), None)
        if place is None:
            return None
        twice = f"{OR.removeprefix('or ')}: brought back, it would count twice"
        read, new = self.files[place + 1 : self.journalled], self.files[self.journalled :]
        for later, what, way in ((read, "was read", twice), (new, "is new", f"move it back, {OR}")):
            like = (file.path for file in moves.alike(self.files[place], later) if self.folder.has(file.path))
            if (path := next(like, None)) is not None:
                return f"file={path!r}, which {what}, looks like it. If that is the same one, {way}"
        return None


def check_again(reader: FileReader, first: int, known: Sequence[File], read: Sequence[File], is_whole: bool) -> None:
    """Refuse a rewind if files are gone, or have changed, that are to be read again.

    Args:
        reader: The reader of the files.
        first: The ordinal of the first file that is to be read again.
        known: The files that had been read when the clock was the newest.
        read: The files that have been read by now. The state at the clock has no rows of those that were first read after it,
            so these are read as they are now.
        is_whole: Whether `known` are all files of a finite source.

    Raises:
        InvalidInputError: Files are gone, or have changed of which the state at the clock may have rows.
    """
    folder = reader.folder
    again = [file for file in known[first:] if reader.is_opened(file.path)]
    sizes = {file.path: file.size for file in again}
    taken = {file.path for file in known}
    if not is_whole:
        again += [file for file in read if file.path not in taken and reader.is_opened(file.path)]
    if not again:
        return
    listed = folder.listing().files
    there = {file.path: file.size for file in listed}
    # Some listings leave out files that they could not look at.
    missing = [file for file in again if file.path not in there and not folder.has(file.path)]
    stamps = moves.by_stamp(read) if missing else {}
    lost = [file for file in missing if _stand_in(reader, file, stamps) is None]
    later = [file for file in listed if file.path not in taken]
    now = {file.path: other.path for file in lost[:NAMED] for other in moves.alike(file, later)}
    gone = [file.path for file in lost]
    changed = [path for path, size in sizes.items() if there.get(path, size) != size]
    for paths, what in ((gone, "are gone"), (changed, "have another size than they had")):
        if paths:
            names = named(paths, lambda path: f"{path!r} (perhaps {now[path]!r} now)" if path in now else repr(path))
            empty = ", put files without rows in their place" if sizes.keys().isdisjoint(paths) else ""
            raise InvalidInputError(
                f"{len(paths):,} of the {len(again):,} files of {folder!r} that are to be read again {what}: {names}. "
                f"Bring back what they were{empty}, or go back to a later clock."
            )


def _stand_in(reader: FileReader, gone: File, stamps: Mapping[tuple[int, int | None], list[File]]) -> str | None:
    """Return the path of the file that a file that is gone has become under its right name or folder, if there is one."""
    there = (file.path for file in moves.stand_ins(reader, gone, stamps) if reader.folder.has(file.path))
    return next(there, None)
