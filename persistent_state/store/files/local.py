"""Files of a local disk: written aside, made durable, and linked to their name."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import ClassVar

import pyarrow as pa

from persistent_state.errors import InvalidInputError, StoreRefusedError, translating
from persistent_state.store.files.base import TEMPORARY, Ages, BytesLike, Files, Names, Stamp

_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)

_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""The errors of a user who may not write, or of a file system that takes nothing."""

_durable_folders: set[str] = set()


class LocalFiles(Files):
    """Files of a local disk; the url is an absolute path. The file system must have hard links."""

    _syncs: ClassVar[bool] = True
    """False if files need not survive a power cut yet."""

    @property
    def unsynced(self) -> Files:
        return UnsyncedFiles(self.url)

    def sync(self, paths: Sequence[str]) -> None:
        for path in paths:
            with self._asking("PUT", path, requests=0):
                _sync(os.path.join(self.url, self._checked(path)))
        for folder in {os.path.dirname(path) for path in paths}:
            with self._asking("PUT", folder, requests=0):
                _sync(os.path.join(self.url, folder))

    def create(self, path: str, data: BytesLike) -> None:
        target = os.path.join(self.url, self._checked_new(path))
        folder = os.path.dirname(target)
        temporary = os.path.join(folder, TEMPORARY + secrets.token_hex(8))
        with self._asking("PUT", path):
            try:
                with translating(OSError, partial(self._before_link, path)):
                    _make_folder(folder)
                    _write(temporary, data, self._syncs)
                won = self._link(temporary, target)
            finally:
                with suppress(OSError):
                    os.unlink(temporary)
            # The loser syncs the folder as well: it relies on the winner's file, and the winner may die before its own sync.
            if self._syncs:
                _sync(folder)
        if not won:
            raise self._taken(path)

    def read(self, path: str) -> pa.Buffer:
        with self._asking("GET", path, may_be_absent=True):
            return pa.memory_map(os.path.join(self.url, self._checked(path))).read_buffer()

    def stamp(self, path: str) -> Stamp:
        with self._asking("HEAD", path, may_be_absent=True):
            return stamp_of(os.stat(os.path.join(self.url, self._checked(path))))

    def list(self, folder: str) -> Names:
        return [name for name in self._names(folder) if not name.startswith(TEMPORARY)]

    def delete(self, path: str) -> None:
        with self._asking("DELETE", path), suppress(FileNotFoundError):
            os.unlink(os.path.join(self.url, self._checked(path)))

    def leftovers(self, folder: str, now_us: int) -> Ages:
        found = []
        for name in self._names(folder):
            if name.startswith(TEMPORARY):
                with self._asking("HEAD", folder), suppress(FileNotFoundError):
                    modified_ns = os.stat(os.path.join(self.url, folder, name)).st_mtime_ns
                    found.append((name, (now_us - modified_ns // 1000) / 1e6))
        return found

    def modified(self, path: str) -> float:
        with self._asking("HEAD", path, may_be_absent=True):
            return os.stat(os.path.join(self.url, self._checked(path))).st_mtime

    def _names(self, folder: str) -> Names:
        place = os.path.join(self.url, self._checked(folder)) if folder else self.url
        with self._asking("LIST", folder), suppress(FileNotFoundError):
            return sorted(os.listdir(place))
        return []

    def _before_link(self, path: str, error: OSError) -> Exception:
        """Return the error of a file that was never given its name. Where writing is not permitted, trying again is no help."""
        if error.errno not in _NOT_PERMITTED:
            return error
        ours = StoreRefusedError(
            f"path={path!r} in store={self.url!r} may not be written: {error}. Permit this user to write to the store,"
            " then start again."
        )
        ours.__cause__ = error
        return ours

    def _link(self, temporary: str, target: str) -> bool:
        """Give the name to the file, unless it is taken."""
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            raise InvalidInputError(
                f"store={self.url!r} is on a file system without hard links, where two writers cannot be told apart;"
                " put it on another."
            ) from error
        return True


class UnsyncedFiles(LocalFiles):
    """Files of a local disk of which a power cut may take those that are made here, until `sync`."""

    _syncs = False


def stamp_of(found: os.stat_result) -> Stamp:
    """Return what changes when the file is written to."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def _write(place: str, data: BytesLike, syncs: bool) -> None:
    """Make a new file of these bytes; if it `syncs`, on the disk when this returns."""
    file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        left = memoryview(data).cast("B")
        while left:
            # Some file systems take one large piece ten times slower than many small ones.
            left = left[os.write(file, left[: 1 << 20]) :]
        if syncs:
            os.fsync(file)
    finally:
        os.close(file)


def _sync(place: str) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    file = os.open(place, os.O_RDONLY)
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
        _sync(parent)
    _durable_folders.add(folder)
