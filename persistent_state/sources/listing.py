"""The listing of a folder of this machine: its files, those that are left out, and the marks of tables that lie in it."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

_FOLDER_OF_SPARK = "a DataFrameSource over it"
HUDI = ".hoodie"
TABLES: Mapping[str, str] = {
    "_delta_log": f"those of a Delta table, which writes its rows to new files again. Use {_FOLDER_OF_SPARK}",
    HUDI: f"those of a Hudi table, which writes its rows to new files again. Use {_FOLDER_OF_SPARK}",
    "_spark_metadata": f"those of Spark's file sink, of which some do not count. Use {_FOLDER_OF_SPARK}",
    "_table.json": "those of a ParquetSink, of which a rewind deletes some. Feed the task by the task of that sink",
}
"""By the name that marks the folder of a table: what lies there, and what to use instead."""

_ICEBERG = f"those of an Iceberg table, which writes its rows to new files again. Use {_FOLDER_OF_SPARK}"

UNREADABLE = "reading is not permitted; permit it, and it is read"


@dataclass(frozen=True, slots=True)
class File:
    """A file of a source's folder: its path in the folder, its bytes, and the time it was modified in microseconds UTC."""

    path: str
    size: int
    modified: int | None


@dataclass
class Listing:
    """The files that are read and were not known, what is left out and why, and the marks of tables with what to use instead.

    `there` has all files, known ones too; None where the listing does not look at those.
    """

    files: list[File] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    there: dict[str, File] | None = None


def local_listing(root: str, known: Container[str]) -> Listing:
    """List a folder of this machine and the folders below it, without a look at the files whose paths in it are known.

    fsspec asks for size and time of every file, and makes a dict of them: 8 µs for each that is known. This takes 1 µs.

    Raises:
        OSError: A folder can't be listed.
    """
    found = Listing()
    folders = [""]
    while folders:
        folder = folders.pop()
        # A folder may go while it is listed.
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(os.path.join(root or "/", folder)) as entries:
            for entry in entries:
                path = folder + entry.name
                if is_left_out(entry.name):
                    if entry.name in TABLES:
                        found.tables[path] = TABLES[entry.name]
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(path + "/")
                elif path not in known:
                    _add(found, root, path, entry)
    return found


def _add(found: Listing, root: str, path: str, entry: os.DirEntry[str]) -> None:
    if mark := table_mark(path):
        found.tables |= mark
        return
    try:
        file = local_file(path, entry.path)
        why = _why_left_out(root, entry)
    except FileNotFoundError:
        if not entry.is_symlink():
            return
        why = "a link to nothing"
    except PermissionError:
        why = UNREADABLE
    except OSError as error:
        why = "a link in a circle" if error.errno == errno.ELOOP else str(error)
    if why:
        found.left_out[path] = why
    else:
        found.files.append(file)


def _why_left_out(root: str, entry: os.DirEntry[str]) -> str:
    """Return why an entry that is not a folder is not read; "" if it is read.

    Raises:
        OSError: It links to nothing, or in a circle.
    """
    mode = entry.stat().st_mode
    if stat.S_ISDIR(mode):
        return "a link to a folder; give the source that folder itself"
    if not stat.S_ISREG(mode):
        return "a pipe, a socket or a device"
    if entry.is_symlink():
        root, target = os.path.realpath(root), os.path.realpath(entry.path)
        if target.startswith(f"{root}/") and not is_ignored(target[len(root) + 1 :]):
            return f"a link to {target[len(root) + 1 :]!r}, which is read itself"
    return "" if os.access(entry.path, os.R_OK) else UNREADABLE


def local_file(path: str, place: str) -> File:
    """Return what a listing says of the file at a place. Of a link it is the link's time, and the size of what it links to.

    Raises:
        OSError: There is no such file, or it links to nothing.
    """
    own = os.lstat(place)
    size = os.stat(place).st_size if stat.S_ISLNK(own.st_mode) else own.st_size
    return File(path, size, microseconds(own.st_mtime))


_METADATA = re.compile(r"(v\d+|\d+-[0-9a-f]{8}-[0-9a-f-]{27})(\.gz)?\.metadata\.json")
"""The names of the files that say what an Iceberg table is, of catalogs and of bare folders."""


def table_mark(path: str) -> dict[str, str]:
    """Return the mark of a table that a file is or lies in, with what to use instead; nothing if there is none."""
    names = path.split("/")
    if names[-2:-1] == ["metadata"] and _METADATA.fullmatch(names[-1]):
        return {path.removesuffix(f"/{names[-1]}"): _ICEBERG}
    return next(({"/".join(names[: i + 1]): TABLES[name]} for i, name in enumerate(names) if name in TABLES), {})


def is_ignored(path: str) -> bool:
    """Return whether a name of a path is one that is not read."""
    # An object store marks a folder by a file with an empty name. There a folder may have such a name, too, as in "in//0.csv".
    return path.endswith("/") or any(map(is_left_out, path.split("/")))


def is_left_out(name: str) -> bool:
    """Return whether files and folders of this name are not read."""
    return name[:1] in (".", "_") or name == "tmp" or name.endswith(".tmp")


def name_of(path: str) -> str:
    """Return the name of the file at a path, without its folders."""
    return path.rpartition("/")[2]


def microseconds(seconds: float) -> int:
    """Return seconds as whole microseconds."""
    return int(seconds * 1_000_000)
