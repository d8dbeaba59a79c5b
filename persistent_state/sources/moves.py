"""Find files of a folder that are other files under another path: moved, copied, linked, or compressed in place.

Nothing but its name, size and time says that a file was moved. So two files have `Look`s, and where they have one in common,
the rest of what is known of them decides. A link, or a copy with the same bytes, shows as long as both files are there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TypeAlias

from persistent_state.sources.file_reader import FileReader
from persistent_state.sources.formats import BY_ENDING, CODECS, Codec
from persistent_state.sources.listing import File, name_of

Look: TypeAlias = "tuple[int, int, str, str]"
"""The kind of the look, the size or the second of a file, what else is asked for, and the folders that hold columns."""

Kind: TypeAlias = "tuple[str | None, Codec | None]"
"""The format and the compression of a file, by its name."""

SAME_FILE, SAME_TIME, SAME_NAME, SAME_TEXT = range(4)
"""Kinds of looks, by what two files have in common: size, name and time; size and time; size, and the whole path of one at the
end of that of the other; name and time of a text that is compressed otherwise.
"""


def moved_and_copied(
    reader: FileReader,
    known: Sequence[File],
    listed: Sequence[File],
    is_gone: Callable[[File], bool],
    before: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the new files that are other files under another path, and those that may be copies of other files.

    Each comes with the path of the other file.

    Args:
        reader: The reader of all of them.
        known: The files that are read.
        listed: The files that are there and were not known.
        is_gone: Returns whether a known file is no longer there, or another one is in its place.
        before: The files that had been moved at an earlier listing of this start. They stay so until the next start, since the
            other file may be brought back by a copy.
    """
    moved = {file.path: before[file.path] for file in listed if file.path in before}
    copies: dict[str, str] = {}
    in_order = sorted(listed, key=lambda file: file.path)
    new = {file.path: file for file in in_order if file.size and file.path not in moved}
    if not new:
        return moved, copies
    by_look: dict[Look, list[File]] = {}
    for file in new.values():
        for look in _looks_of_new(reader, file):
            by_look.setdefault(look, []).append(file)
    compared: set[tuple[Look, bool, int, Kind]] = set()
    for other in (*_near(known, [*new.values()]), *new.values()):
        if other.path in copies or not reader.is_opened(other.path) or not reader.is_fit(other.path):
            continue
        looks = [look for look in _looks_of_known(reader, other) if look in by_look]
        has_gone = bool(looks) and other.path not in new and is_gone(other)
        if not has_gone:
            # What has less in common with a file that is still there is no copy of it.
            looks = [look for look in looks if look[0] in (SAME_FILE, SAME_TEXT)]
        keys = {look: (look, has_gone, other.size, reader.kind(other.path)) for look in looks}
        pairs = [(look, file) for look in looks if keys[look] not in compared for file in by_look[look]]
        compared.update(keys.values())
        for look, file in pairs:
            if file is other or not _is_like(reader, look, other, file):
                continue
            if not has_gone:
                copies.setdefault(file.path, other.path)
            # One file at most is taken for a file that is gone if the two have no more than a name and a size in common.
            elif file.path not in moved and (look[0] != SAME_NAME or other.path not in moved.values()):
                moved[file.path] = other.path
    is_copy = {path: path not in moved and reader.is_opened(path) for path in copies}
    return moved, {path: other for path, other in copies.items() if is_copy[path]}


def alike_by(
    mark: Callable[[File], Hashable], reader: FileReader, known: Sequence[File], new: Sequence[File]
) -> dict[str, str]:
    """Return the new files that have the mark of another file of their kind, each with the path of that file.

    Args:
        mark: Returns what only a file and its links have, or its copies; None if it can't be known.
        reader: The reader of all of them.
        known: The files that are read.
        new: Files that are there and were not known.
    """
    first: dict[Hashable, str] = {}
    others: dict[str, str] = {}
    for file in (*known, *new):
        if reader.is_opened(file.path) and (its := mark(file)) is not None:
            other = first.setdefault((reader.kind(file.path), its), file.path)
            if other != file.path:
                others[file.path] = other
    return {file.path: others[file.path] for file in new if file.path in others}


def _looks_of_known(reader: FileReader, file: File) -> Iterator[Look]:
    yield from _looks(file, [*{None, *CODECS.values()} - {reader.kind(file.path)[1]}])
    yield SAME_NAME, file.size, file.path, columns(file)


def _looks_of_new(reader: FileReader, file: File) -> Iterator[Look]:
    yield from _looks(file, [reader.kind(file.path)[1]])
    # Any folders may stand before the whole path of a known one. Its name alone does not say which it is, as those of days may
    # all be `orders.csv`.
    parts = file.path.split("/")
    yield from ((SAME_NAME, file.size, "/".join(parts[i:]), columns(file)) for i in range(1, len(parts)))


def _looks(file: File, codecs: Sequence[Codec | None]) -> Iterator[Look]:
    """Yield what a file has in common with itself under another path, by its time. `codecs` are those of the new file."""
    if file.modified is None:
        return
    name = name_of(file.path)
    yield SAME_FILE, file.size, f"{file.modified} {name}", columns(file)
    # Many files may be of one second, such as those of an archive that was unpacked.
    if _has_fraction(file):
        yield SAME_TIME, file.size, str(file.modified), ""
    # Some programs that compress a file give the result its time without a fraction.
    yield from ((SAME_TEXT, _second(file), f"{codec} {_unpacked(name)}", columns(file)) for codec in codecs)


def columns(file: File) -> str:
    """Return the folders of a file that hold columns. Other values of these make other rows."""
    return "/".join(folder for folder in file.path.split("/")[:-1] if "=" in folder)


def _is_like(reader: FileReader, look: Look, other: File, new: File) -> bool:
    """Return whether a file that has a look in common with another one, which has had records, may be what that was."""
    then, now = reader.kind(other.path), reader.kind(new.path)
    if look[0] != SAME_TEXT:
        # Under the name of another kind the same bytes have had other records, or none.
        return then == now or not reader.is_opened(new.path)
    # With the same bytes it was renamed, unless by chance.
    is_packed = other.size != new.size or (now[1] is not None and reader.text_size(new, now[1]) == other.size)
    return then[0] == now[0] and is_packed


def stand_ins(reader: FileReader, gone: File, known: Mapping[tuple[int, int | None], Sequence[File]]) -> Iterator[File]:
    """Yield the files, of those `by_stamp`, that a file that is gone may have become under its right name or folder."""
    for other in known.get((gone.size, gone.modified), ()):
        is_like = _has_fraction(gone) or _title(gone.path) == _title(other.path)
        is_other = reader.kind(gone.path) != reader.kind(other.path) or not reader.is_fit(gone.path)
        if is_like and is_other and other.path != gone.path and reader.is_opened(other.path):
            yield other


def by_stamp(files: Sequence[File]) -> dict[tuple[int, int | None], list[File]]:
    """Return files by their size and time."""
    stamps: dict[tuple[int, int | None], list[File]] = {}
    for file in files:
        stamps.setdefault((file.size, file.modified), []).append(file)
    return stamps


def alike(gone: File, others: Sequence[File]) -> Iterator[File]:
    """Yield the files that may be one that is gone, although they have too little in common with it to be taken for that."""
    for other in others:
        # Some file systems know no times.
        is_of_a_time = gone.modified is not None and other.modified == gone.modified
        if other.size == gone.size and (is_of_a_time or name_of(other.path) == name_of(gone.path)):
            yield other


def _near(files: Sequence[File], new: Sequence[File]) -> list[File]:
    """Return the files that may have a look in common with a new one. It takes little time for each file that has none."""
    stamps = {(file.size, file.modified) for file in new}
    sizes, seconds = {file.size for file in new}, {_second(file) for file in new}
    plain = {_unpacked(name_of(file.path)) for file in new}
    names = {name_of(file.path) for file in new} | plain | {f"{name}.{codec}" for name in plain for codec in CODECS}
    return [
        file
        for file in files
        if (file.size in sizes and (file.size, file.modified) in stamps)
        or ((file.size in sizes or (file.modified or 0) // 1_000_000 in seconds) and name_of(file.path) in names)
    ]


def _unpacked(name: str) -> str:
    """Return the name of a file without the ending of a compression."""
    rest, _, ending = name.rpartition(".")
    return rest if rest and ending.lower() in CODECS else name


def _title(path: str) -> str:
    """Return the name of a file without the endings of its format and compression."""
    name = _unpacked(name_of(path))
    rest, _, ending = name.rpartition(".")
    return rest if ending.lower() in BY_ENDING else name


def _has_fraction(file: File) -> bool:
    """Return whether the time of a file says more than a second, so that hardly another file has it."""
    return file.modified is not None and file.modified % 1_000_000 != 0


def _second(file: File) -> int:
    return -1 if file.modified is None else file.modified // 1_000_000
