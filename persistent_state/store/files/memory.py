"""Files in the memory of this process."""

from __future__ import annotations

import threading
from contextlib import suppress

import fsspec
import pyarrow as pa

from persistent_state.store.files.base import Ages, BytesLike, Files, Names

_memory_lock = threading.Lock()


class MemoryFiles(Files):
    """Files of fsspec's memory file system: of this process, gone with it. For tests."""

    def create(self, path: str, data: BytesLike) -> None:
        place = self._place(self._checked_new(path))
        with self._asking("PUT", path), _memory_lock:
            if self._system.exists(place):
                raise self._taken(path)
            self._system.pipe_file(place, bytes(data))

    def read(self, path: str) -> pa.Buffer:
        with self._asking("GET", path, may_be_absent=True):
            return pa.py_buffer(self._system.cat_file(self._place(self._checked(path))))

    def list(self, folder: str) -> Names:
        place = self._place(self._checked(folder)) if folder else self.url
        with self._asking("LIST", folder), suppress(FileNotFoundError):
            return sorted(name.rpartition("/")[2] for name in self._system.ls(place, detail=False, refresh=True))
        return []

    def delete(self, path: str) -> None:
        with self._asking("DELETE", path), suppress(FileNotFoundError):
            self._system.rm_file(self._place(self._checked(path)))

    def leftovers(self, folder: str, now_us: int) -> Ages:
        return []

    @property
    def _system(self) -> fsspec.AbstractFileSystem:
        # Looked up each time, since an fsspec instance must not be carried over a fork.
        return fsspec.filesystem("memory", **self.options)

    def _place(self, path: str) -> str:
        return f"{self.url}/{path}"
