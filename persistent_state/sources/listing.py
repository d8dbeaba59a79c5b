"""The listing of a folder: its files, those that are left out, and the marks of tables that lie in it."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from persistent_state.formatting import iso_time

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

_OF_HDFS = "modificationTime"
_MODIFIED = ("mtime", "LastModified", "last_modified", "updated", "modified", _OF_HDFS, "created")
"""The names under which file systems give the time at which a file was modified: WebHDFS in milliseconds, others in seconds."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a source's folder: its path in the folder, its bytes, and the time it was modified in microseconds UTC."""

    path: str
    size: int
    modified: int | None


@dataclass
class Listing:
    """The files that are read and were not known, what is left out and why, and the marks of tables with what to use instead.

    `there` has all files, known ones too; None where the listing does not look at those. `linked` has the paths of new files
    that may have other names, by hard links or as links, each with whether it is a link.
    """

    files: list[File] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    there: dict[str, File] | None = None
    linked: dict[str, bool] = field(default_factory=dict)


def local_listing(root: str, known: Container[str]) -> Listing:
    """List a folder of this machine and the folders below it, without a look at the files whose paths in it are known.

    fsspec asks for size and time of every file, and makes a dict of them: 8 µs for each that is known. This takes 1 µs.

    Raises:
        OSError: A folder can't be listed.
    """
    listing = Listing()
    folders = [""]
    while folders:
        folder = folders.pop()
        # A folder may go while it is listed.
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(os.path.join(root or "/", folder)) as entries:
            for entry in entries:
                path = folder + entry.name
                if is_left_out(entry.name):
                    if entry.name in TABLES:
                        listing.tables[path] = TABLES[entry.name]
                elif entry.is_dir(follow_symlinks=False):
                    if not _is_of_file_system(entry):
                        folders.append(path + "/")
                elif path not in known:
                    _add(listing, root, path, entry)
    return listing


def store_listing(system: Any, root: str, known: Container[str]) -> Listing:
    """List a folder of any file system of fsspec. It has known files too, since a store lists all with their sizes and times.

    Raises:
        OSError: It can't be listed.
    """
    infos = system.find(root, detail=True)
    names = ((name[len(root) + 1 :], info) for name, info in infos.items())
    there = {path: stored_file(path, info) for path, info in names}
    new = [file for path, file in there.items() if path not in known]
    marks = {file.path: mark for file in new if (mark := table_mark(file.path))}
    tables = {path: what for mark in marks.values() for path, what in mark.items()}
    files = [file for file in new if not is_ignored(file.path) and file.path not in marks]
    return Listing(files, {}, tables, there)


def _is_of_file_system(entry: os.DirEntry[str]) -> bool:
    """Return whether a folder is the one in which ext4 and others keep what a repair finds. Only root may list it."""
    return entry.name == "lost+found" and os.path.ismount(os.path.dirname(entry.path))


def _add(listing: Listing, root: str, path: str, entry: os.DirEntry[str]) -> None:
    if mark := table_mark(path):
        listing.tables |= mark
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
        listing.left_out[path] = why
    else:
        listing.files.append(file)
        if entry.is_symlink() or entry.stat().st_nlink > 1:
            listing.linked[path] = entry.is_symlink()


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
    """Return what a listing says of the file at a place. A link has the size of its file, and the later time of the two.

    Raises:
        OSError: There is no such file, or it links to nothing.
    """
    own = os.lstat(place)
    file = os.stat(place) if stat.S_ISLNK(own.st_mode) else own
    return File(path, file.st_size, microseconds(max(own.st_mtime, file.st_mtime)))


def stored_file(path: str, info: Mapping[str, Any]) -> File:
    """Return a file of which fsspec gives the size, and its time by any name and in any form that a file system has."""
    times = (_seconds(name, info[name]) for name in _MODIFIED if name in info)
    time = next((time for time in times if time is not None), None)
    return File(path, int(info.get("size") or 0), None if time is None else microseconds(time))


def _seconds(name: str, time: Any) -> float | None:
    """Return a time as a file system gives it under this name, in seconds since 1970; None if it is in no known form."""
    if isinstance(time, str):
        try:
            time = iso_time(time)
        except ValueError:
            return None
    if isinstance(time, datetime):
        return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp()
    if not isinstance(time, (int, float)):
        return None
    return time / 1000 if name == _OF_HDFS else time


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
    # EMR marks the folder x of a bucket by a file x_$folder$ beside it.
    return name[:1] in (".", "_") or name == "tmp" or name.endswith((".tmp", "_$folder$"))


def name_of(path: str) -> str:
    """Return the name of the file at a path, without its folders."""
    return path.rpartition("/")[2]


def microseconds(seconds: float) -> int:
    """Return seconds as whole microseconds."""
    return int(seconds * 1_000_000)
