"""The folder of a file source, on any file system of fsspec: it is listed, and its files are opened as they were listed."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from persistent_state.errors import InvalidInputError, StateError, StoreUnavailableError, check_path, translating
from persistent_state.redact import shown, without_secrets
from persistent_state.sources.listing import (
    HUDI,
    TABLES,
    File,
    Listing,
    is_ignored,
    local_file,
    local_listing,
    name_of,
    store_listing,
    stored_file,
    table_mark,
)

OR = "or name the task in rebuild, which reads all files as they are now (reset begins at zero)"
"""The way out where a file can't be brought back."""

_WITHOUT_FOLDERS = frozenset({"s3", "gs", "abfs", "memory"})
"""The protocols of stores that have no folders: an empty folder looks like one that never existed."""
_ALIASES = {"local": "file", "s3a": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs"}
"""Other names of protocols."""
_GONE = (FileNotFoundError, NotADirectoryError)
"""The errors of a path that is not there. A folder that it had may be a file by now."""
_END = 1 << 16
"""The number of bytes at each end of a file that are compared with those of another one."""


def absolute(path: str | os.PathLike[str]) -> str:
    """Return the path of a folder from the root, or its URL: workers may stand in another folder.

    Raises:
        InvalidInputError: It is neither a path nor a URL.
    """
    path = os.fspath(path)
    if not path:
        raise InvalidInputError("path='' of a FileSource names no folder; give one, such as '.' for the current one.")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/(?!/)", path) and not path.startswith("file:"):
        raise InvalidInputError(
            f"{path=} is neither a path nor a url; write a url as {path.replace(':/', '://', 1)!r}."
        )
    check_path("path", path)
    is_url = "://" in path or path.startswith("file:")
    return path if is_url else os.path.abspath(os.path.expanduser(path))


@dataclass(frozen=True)
class Folder:
    """A folder and the folders below it. Messages show it as the source that reads it.

    Attributes:
        path: The absolute path, or the URL.
        options: What fsspec needs to open it. They appear in no message.
        order_by: The order of the files that one listing finds: "name" or "modified".
    """

    path: str
    options: Mapping[str, Any]
    order_by: str

    def __repr__(self) -> str:
        return f"FileSource({shown(self.path)!r})"

    def holds(self, place: str) -> bool:
        """Return whether a path or a URL is that of this folder, or of what is read in it."""
        root, place = _same_for_all(self.path), _same_for_all(place)
        return place == root or (place.startswith(f"{root}/") and not is_ignored(place[len(root) + 1 :]))

    def listing(self, known: Collection[str] = ()) -> Listing:
        """List the folder. `known` are the paths of files that are known.

        Raises:
            InvalidInputError: There is no such folder or bucket.
            StoreUnavailableError: The folder can't be listed.
        """
        system, root = self._system()
        with self._asking():
            system.invalidate_cache()
            try:
                kind = system.info(root)["type"]
            except _GONE:
                kind = None
            if kind == "file" or (kind is None and any(mark in self.path for mark in "*?[")):
                instead = "give one: all files in it and below are read, and a transform can leave out rows"
                raise InvalidInputError(f"{self!r} is not a folder; {instead}.")
            if kind is None and not _has_folders(system):
                if not _is_bucket_there(system, root):
                    raise InvalidInputError(
                        f"{self!r} is in a bucket that does not exist; make it first, or correct the path."
                    )
            elif kind != "directory":
                raise InvalidInputError(f"{self!r} is not a folder; create it, or correct the path.")
            if type(system) is LocalFileSystem:
                return local_listing(root, known)
            return store_listing(system, root, known)

    def in_order(self, files: Iterable[File]) -> list[File]:
        """Return the new files of a listing in the order in which they are read."""
        files = [*files]
        if self.order_by == "name":
            return sorted(files, key=lambda file: file.path)
        if any(file.modified is None for file in files):
            raise InvalidInputError(f"{self!r} is on a file system that gives no modification times; order by name.")
        return sorted(files, key=lambda file: (file.modified or 0, file.path))

    def has_folders(self) -> bool:
        """Return whether the file system has folders, and not only files whose names begin alike."""
        return _has_folders(self._system()[0])

    def tables_above(self) -> dict[str, str]:
        """Return the marks of tables that this folder lies in, with what to use instead."""
        system, root = self._system()
        root = os.path.realpath(root) if type(system) is LocalFileSystem else root
        marks: dict[str, str] = {}
        folder, _, name = root.rpartition("/")
        below = [name]
        while folder:
            # Who may read a folder need not be permitted to look at those above it.
            with suppress(OSError):
                # The folders of partitions hold columns, but for Hudi's. Others may lie below a table by chance.
                of_columns = all("=" in name for name in below)
                tables = {name: what for name, what in TABLES.items() if of_columns or name == HUDI}
                marks |= {
                    f"{folder}/{name}": what for name, what in tables.items() if system.exists(f"{folder}/{name}")
                }
                names = system.ls(f"{folder}/metadata", detail=False) if below[0] == "data" else []
                for mark in (table_mark("metadata/" + name_of(name)) for name in names):
                    marks |= {f"{folder}/{path}": what for path, what in mark.items()}
            folder, _, name = folder.rpartition("/")
            below.insert(0, name)
        return {mark: what for mark, what in marks.items() if not f"{root}/".startswith(f"{mark}/")}

    def has(self, path: str) -> bool:
        """Return whether a file is there, be it listed or not."""
        # `exists` of fsspec takes a file for gone where a store fails.
        return self.file(path) is not None

    def file(self, path: str) -> File | None:
        """Return a file as it is now; None if it is gone."""
        system, root = self._system()
        with self._asking(path):
            try:
                if type(system) is LocalFileSystem:
                    return local_file(path, self._local(path))
                return stored_file(path, system.info(f"{root}/{path}"))
            except _GONE:
                return None

    def local_file(self, path: str) -> File | None:
        """Return a file of this machine as a listing says; None if it can't be looked at."""
        with suppress(OSError):
            return local_file(path, self._local(path))
        return None

    def inode(self, path: str) -> tuple[int, int] | None:
        """Return the device and the number of a file of this machine, which all of its names share; None if it is gone."""
        with suppress(OSError):
            status = os.stat(self._local(path))
            return status.st_dev, status.st_ino
        return None

    def ends(self, path: str) -> bytes | None:
        """Return a digest of the first and the last bytes of a file of this machine; None if it can't be read."""
        with suppress(OSError), open(self._local(path), "rb") as file:
            first = file.read(_END)
            file.seek(max(file.seek(0, io.SEEK_END) - _END, 0))
            return hashlib.blake2b(first + file.read()).digest()
        return None

    def _local(self, path: str) -> str:
        return os.path.join(self._system()[1], path)

    def open(
        self, path: str, size: int, is_new: bool = False, gone: Callable[[str], StateError] | None = None
    ) -> StoredFile:
        """Open a file.

        Args:
            path: The path in the folder.
            size: The size that the file had when it was listed.
            is_new: Whether only a listing of this start has the file, and the log does not.
            gone: Makes the error of a file of the log that is gone.

        Raises:
            InvalidInputError: A file of the log is gone, or has another size.
            StoreUnavailableError: The file can't be opened, or a new one is not as it was listed.
        """

        def lost() -> StateError:
            return self._not_as_listed(path, "is gone, and was there") if is_new else (gone or self.gone)(path)

        system, root = self._system()
        if "//" in f"/{path}":
            # By its cache of a listing gcsfs takes a file whose folder has no name for a folder.
            system.invalidate_cache()
        with self._asking(path, lost):
            file = StoredFile(system.open(f"{root}/{path}", "rb"), lambda: self._asking(path, lost))
        if (now := file.seek(0, io.SEEK_END)) != size:
            file.close()
            if is_new:
                raise self._not_as_listed(path, f"has {now} bytes, and had {size}")
            raise self.changed(path, size, now)
        file.seek(0)
        return file

    def gone(self, path: str) -> StateError:
        """Return the error of a file of the log that is gone."""
        return InvalidInputError(f"file={path!r} of {self!r} is gone; bring it back, {OR}.")

    def changed(self, path: str, then: int, now: int) -> StateError:
        """Return the error of a file of the log that had `then` bytes and has `now`."""
        return InvalidInputError(
            f"file={path!r} of {self!r} had {then} bytes and has {now}; bring back what it held, {OR}. A file must "
            "be whole when it appears, and never change."
        )

    def _not_as_listed(self, path: str, what: str) -> StateError:
        # If the log has the file by now, the next start refuses to go on without it.
        return StoreUnavailableError(
            f"file={path!r} of {self!r} {what} when the folder was listed. None of its rows counts yet: the next start "
            "lists the folder again. Write a file under an ignored name, then move it in, and leave it as it is."
        )

    def _system(self) -> tuple[Any, str]:
        # Looked up each time, since an fsspec instance must not be carried over a fork. To fsspec "::" would join two URLs.
        if os.path.isabs(self.path):
            system, root = fsspec.filesystem("file", **self.options), self.path
        else:
            system, root = fsspec.core.url_to_fs(self.path, **self.options)
        return system, root.rstrip("/")

    def _asking(self, path: str = "", lost: Callable[[], StateError] | None = None) -> AbstractContextManager[None]:
        return translating(OSError, partial(self._as_ours, path, lost))

    def _as_ours(self, path: str, lost: Callable[[], StateError] | None, error: OSError) -> StateError:
        if lost is not None and isinstance(error, _GONE):
            return lost()
        what = f"{path!r} of {self!r}" if path else repr(self)
        way = "Put it right"
        if not path and isinstance(error, PermissionError) and error.filename:
            way = "Permit to list it, or move it out of the folder of the source if it is below"
        return StoreUnavailableError(f"{what}: {without_secrets(error, self.options)}. {way}, then try again.")


class StoredFile(io.RawIOBase):
    """A file that raises its own failures apart from damage in its content."""

    def __init__(self, file: Any, asking: Callable[[], AbstractContextManager[None]]) -> None:
        self._file = file
        self._asking = asking

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        with self._asking():
            return bytes(self._file.read(size))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._asking():
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        self._file.close()
        super().close()


def _same_for_all(place: str) -> str:
    """Return a path or a URL as one text, however it is written."""
    protocol, colon, rest = place.partition("://")
    if not colon and (match := re.match("(file|local):", place, re.IGNORECASE)):
        protocol, colon, rest = match[1], ":", place[match.end() :]
    protocol = _ALIASES.get(protocol.lower(), protocol.lower()) if colon else "file"
    if protocol == "file":
        return os.path.realpath(os.path.expanduser(rest if colon else place))
    return f"{protocol}://" + re.sub("//+", "/", rest).strip("/")


def _has_folders(system: Any) -> bool:
    protocols = {system.protocol} if isinstance(system.protocol, str) else {*system.protocol}
    return protocols.isdisjoint(_WITHOUT_FOLDERS)


def _is_bucket_there(system: Any, root: str) -> bool:
    """Return whether the bucket of a place without files is there."""
    if "abfs" in system.protocol:
        # Azure's client lists nothing, and raises nothing, where there is no container.
        return bool(system.exists(root.partition("/")[0]))
    try:
        # Not asked for the bucket itself, since credentials for what is in it may not permit that.
        system.find(root)
    except FileNotFoundError:
        return False
    return True
