"""Files of object stores: a name is given by a conditional PUT, which has one winner and is whole or absent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from inspect import signature
from typing import Any, ClassVar

import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.store.files.base import AT_ONCE, Ages, Buffers, BytesLike, Files, Names
from persistent_state.store.files.remote import RemoteFiles, status

_LARGEST_PUT = 5 * 2**30
"""Bytes that S3 takes in one PUT."""

NAMES_AT_ONCE = 1000
"""The most names in one answer to a LIST. Behind a full one the client asks for the next."""

_IN_ONE_PUT: dict[str, dict[str, Any]] = {
    # If a file comes in parts, not every store that speaks this protocol asks for the condition when it joins them.
    "s3": {"chunksize": _LARGEST_PUT},
    "gs": {"chunksize": _LARGEST_PUT},
    # Its client names the blocks of each upload at random and asks for the condition when it commits them.
    "abfs": {},
}

_IN_ONE_GET = {"max_concurrency": 1}
"""The option by which a client of S3 asks for no size before a file, and for no listing where it is absent.

s3fs has it since 2026.3, and asked for neither before.
"""

_COPYING = ("s3", "gs")
"""The protocols whose clients can let a store copy a file, and wait until it has. Azure's does not wait."""


class ObjectFiles(RemoteFiles):
    """Files of a bucket. A folder is the names that begin with it, so a file may have the name of a folder.

    The clients ask again when an answer is lost, and then find the name taken by themselves.
    """

    form: ClassVar[str] = "{}://bucket/folder"

    def create(self, path: str, data: BytesLike) -> None:
        size = memoryview(data).nbytes
        if size >= _LARGEST_PUT:
            raise InvalidInputError(
                f"path={path!r} has {size} bytes, more than an object store takes at once; use more shards."
            )
        self._checked_new(path)
        with self._asking("PUT", path):
            client, place = self._reach(path)
            try:
                client.pipe_file(place, bytes(data), mode="create", **_IN_ONE_PUT[self.url.partition("://")[0]])
            except Exception as error:
                if isinstance(error, FileExistsError) or status(error) == 412:
                    raise self._taken(path) from None
                if isinstance(error, FileNotFoundError) or status(error) == 404:
                    raise InvalidInputError(
                        f"store={self.url!r} is in a bucket that does not exist; make it first."
                    ) from None
                raise

    def read(self, path: str) -> pa.Buffer:
        self._checked(path)
        with self._asking("GET", path, may_be_absent=True):
            client, place = self._reach(path)
            return pa.py_buffer(client.cat_file(place, **_in_one_get(client)))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Buffers:
        self._checked(path)
        with self._asking("GET", path, may_be_absent=True, requests=len(ranges)):
            client, place = self._reach(path)
            begins, ends = [begin for begin, _ in ranges], [end for _, end in ranges]
            answers = client.cat_ranges([place] * len(ranges), begins, ends, batch_size=AT_ONCE)
            for answer in answers:
                # A range that begins behind the end of the file.
                if isinstance(answer, Exception) and status(answer) != 416:
                    raise answer
        return [pa.py_buffer(b"" if isinstance(answer, Exception) else answer) for answer in answers]

    def copy_from(self, other: Files, path: str, new: str) -> bool:
        protocol, _, _ = self.url.partition("://")
        if not isinstance(other, ObjectFiles) or protocol not in _COPYING:
            return False
        # Other options may mean another server, or other rights.
        if not other.url.startswith(f"{protocol}://") or other.options != self.options:
            return False
        self._checked_new(new)
        with other._asking("PUT", path, may_be_absent=True):
            (client, place), (_, origin) = self._reach(new), other._reach(other._checked(path))
            client.cp_file(origin, place)
        return True

    def list(self, folder: str) -> Names:
        if folder:
            self._checked(folder)
        with self._asking("LIST", folder), suppress(FileNotFoundError):
            client, place = self._reach(folder)
            names = [name.rstrip("/") for name in client.ls(place, detail=False, refresh=True)]
            self._count("LIST", max(0, len(names) - 1) // NAMES_AT_ONCE)
            return sorted({name[len(place) + 1 :] for name in names if name.startswith(f"{place}/")})
        return []

    def leftovers(self, folder: str, now_us: int) -> Ages:
        return []


def _in_one_get(client: Any) -> dict[str, int]:
    """Return the options by which a client reads a file in one request."""
    taken = signature(client._cat_file).parameters if hasattr(client, "_cat_file") else {}
    return _IN_ONE_GET if _IN_ONE_GET.keys() <= taken.keys() else {}
