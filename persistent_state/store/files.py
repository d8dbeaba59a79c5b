"""The one thing that differs between file systems: how to create a file whole or not at all, with one winner."""

from __future__ import annotations

import errno
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import fsspec
import pyarrow as pa

from persistent_state.errors import Exists, InvalidInput, StoreUnavailable

BytesLike: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
Names: TypeAlias = list[str]
Ages: TypeAlias = list[tuple[str, float]]

_TEMPORARY = ".tmp-"
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)

_durable_folders: set[str] = set()
_memory_lock = threading.Lock()


@dataclass(frozen=True)
class Files(ABC):
    """The files below one url. A path is relative to it: "a/b/c"; the folder "" is the url itself.

    A value that can be pickled and sent to workers. Its storage options, which may be secret, are in no repr and no
    message. Every method raises InvalidInput for a path that leads out of the url, and StoreUnavailable when the store
    fails.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @abstractmethod
    def create(self, path: str, data: BytesLike) -> None:
        """Make a file of these bytes. Everyone sees all of it or none; of several creators of a name one wins.

        Once it has returned, or said Exists, what has the name survives a power cut. Folders are made as needed.

        Raises:
            Exists: the name is taken. What stands there was not changed.
            StoreUnavailable: the store failed. The file is absent or whole; look before you try again.
            InvalidInput: this store cannot promise the above.
        """

    @abstractmethod
    def read(self, path: str) -> pa.Buffer:
        """The bytes of a file; on a local disk they are mapped, not loaded, and outlive its deletion.

        Raises:
            FileNotFoundError: there is no such file.
        """

    @abstractmethod
    def list(self, folder: str) -> Names:
        """The names of the files and folders that are directly in a folder now, sorted; none if it is missing.

        Temporary files are left out.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove a file, which may be absent or temporary."""

    @abstractmethod
    def leftovers(self, folder: str, now_us: int) -> Ages:
        """Name and age in seconds of the temporary files directly in a folder, whose writers are at work or killed."""

    def _checked(self, path: str) -> str:
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise InvalidInput(f"path={path!r} is not one inside the store; write it as 'a/b/c'.")
        return path

    def _checked_new(self, path: str) -> str:
        if path.rpartition("/")[2].startswith(_TEMPORARY):
            raise InvalidInput(f"path={path!r} has a temporary file's name; begin it with something else.")
        return self._checked(path)

    @contextmanager
    def _asking(self, path: str, may_be_absent: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if may_be_absent and isinstance(error, FileNotFoundError):
                raise
            raise StoreUnavailable(f"path={path!r} in store={self.url!r}: {error}. Mend it, then try again.") from error

    def _taken(self, path: str) -> Exists:
        return Exists(f"path={path!r} in store={self.url!r} is taken.")


class LocalFiles(Files):
    """Files of a local disk; the url is an absolute path. The file system must have hard links."""

    def create(self, path: str, data: BytesLike) -> None:
        target = os.path.join(self.url, self._checked_new(path))
        folder = os.path.dirname(target)
        temporary = os.path.join(folder, _TEMPORARY + secrets.token_hex(8))
        with self._asking(path):
            _make_folder(folder)
            try:
                _write(temporary, data)
                won = self._link(temporary, target)
            finally:
                with suppress(OSError):
                    os.unlink(temporary)
            # The loser too: it will act on what stands there, which the winner may not live to make durable.
            _sync_folder(folder)
        if not won:
            raise self._taken(path)

    def read(self, path: str) -> pa.Buffer:
        with self._asking(path, may_be_absent=True):
            return pa.memory_map(os.path.join(self.url, self._checked(path))).read_buffer()

    def list(self, folder: str) -> Names:
        return [name for name in self._names(folder) if not name.startswith(_TEMPORARY)]

    def delete(self, path: str) -> None:
        with self._asking(path), suppress(FileNotFoundError):
            os.unlink(os.path.join(self.url, self._checked(path)))

    def leftovers(self, folder: str, now_us: int) -> Ages:
        found = []
        for name in self._names(folder):
            if name.startswith(_TEMPORARY):
                with self._asking(folder), suppress(FileNotFoundError):
                    modified_ns = os.stat(os.path.join(self.url, folder, name)).st_mtime_ns
                    found.append((name, (now_us - modified_ns // 1000) / 1e6))
        return found

    def _names(self, folder: str) -> Names:
        place = os.path.join(self.url, self._checked(folder)) if folder else self.url
        with self._asking(folder), suppress(FileNotFoundError):
            return sorted(os.listdir(place))
        return []

    def _link(self, temporary: str, target: str) -> bool:
        """Give the name to the file, unless it is taken."""
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            raise InvalidInput(
                f"store={self.url!r} is on a file system without hard links, where two writers cannot be told apart;"
                " put it on another."
            ) from error
        return True


class MemoryFiles(Files):
    """Files of fsspec's memory file system: of this process, gone with it. For tests."""

    def create(self, path: str, data: BytesLike) -> None:
        place = self._place(self._checked_new(path))
        with self._asking(path), _memory_lock:
            if self._system.exists(place):
                raise self._taken(path)
            self._system.pipe_file(place, bytes(data))

    def read(self, path: str) -> pa.Buffer:
        with self._asking(path, may_be_absent=True):
            return pa.py_buffer(self._system.cat_file(self._place(self._checked(path))))

    def list(self, folder: str) -> Names:
        place = self._place(self._checked(folder)) if folder else self.url
        with self._asking(folder), suppress(FileNotFoundError):
            return sorted(name.rpartition("/")[2] for name in self._system.ls(place, detail=False, refresh=True))
        return []

    def delete(self, path: str) -> None:
        with self._asking(path), suppress(FileNotFoundError):
            self._system.rm_file(self._place(self._checked(path)))

    def leftovers(self, folder: str, now_us: int) -> Ages:
        return []

    @property
    def _system(self) -> fsspec.AbstractFileSystem:
        # Looked up each time, since an fsspec instance must not be carried over a fork.
        return fsspec.filesystem("memory", **self.options)

    def _place(self, path: str) -> str:
        return f"{self.url}/{path}"


def open_files(url: str | os.PathLike[str], **storage_options: Any) -> Files:
    """The files below a local path, a file: url or a memory: url. Nothing is made or looked at.

    Raises:
        InvalidInput: another protocol, a file: url without an absolute path, or options for a local path.
    """
    url = os.fspath(url)
    protocol, colon, path = url.partition("://")
    if protocol == "memory":
        return MemoryFiles("memory://" + path.strip("/"), storage_options)
    if url.startswith("file:"):
        path = path if colon else url[len("file:") :]
        if not path.startswith("/"):
            raise InvalidInput(f"url={url!r} has no absolute path; write it as 'file:///a/b'.")
    elif colon:
        raise InvalidInput(f"url={url!r} has protocol={protocol!r}, which is not supported; use a local path.")
    elif not url:
        raise InvalidInput("url='' names no folder; give a path.")
    else:
        path = os.path.expanduser(url)
    if storage_options:
        raise InvalidInput(f"storage options {sorted(storage_options)} mean nothing for url={url!r}; leave them out.")
    return LocalFiles(os.path.abspath(path))


def _write(place: str, data: BytesLike) -> None:
    """Make a new file of these bytes, on the disk when this returns."""
    file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        left = memoryview(data).cast("B")
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    finally:
        os.close(file)


def _sync_folder(folder: str) -> None:
    """Make the names in a folder survive a power cut."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _make_folder(folder: str) -> None:
    """Make a folder and its parents, up to the mount point, and their names survive a power cut.

    Also one that exists, the first time in this process: who made it may have been killed before its name was safe.
    """
    if os.path.ismount(folder) or (folder in _durable_folders and os.path.isdir(folder)):
        return
    parent = os.path.dirname(folder)
    _make_folder(parent)
    with suppress(FileExistsError):
        os.mkdir(folder)
    # A parent that may not be read was there long before the store.
    with suppress(PermissionError):
        _sync_folder(parent)
    _durable_folders.add(folder)
