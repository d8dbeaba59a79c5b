"""The interface of a file system: create a file whole or not at all, with one winner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar

import pyarrow as pa

from persistent_state.errors import ExistsError, InvalidInputError, StoreUnavailableError, translating

BytesLike: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
Buffers: TypeAlias = list[pa.Buffer]
Names: TypeAlias = list[str]
Stamp: TypeAlias = tuple[int, int, int]
"""The inode of a file, its size, and when it was written to last, in nanoseconds."""
Ages: TypeAlias = list[tuple[str, float]]

Item = TypeVar("Item")
Result = TypeVar("Result")

TRIES = 5
"""The tries to write a file without which a driver can't go on."""

AT_ONCE = 16
"""The most requests at once to a store behind a network."""

TEMPORARY = ".tmp-"
"""The first characters of a temporary file's name."""

KINDS = ("PUT", "GET", "LIST", "HEAD", "DELETE")
"""The kinds of requests to a store, by the words of object stores: make, read, list, look at and delete a file."""

_counts: defaultdict[tuple[str, str], int] = defaultdict(int)
"""By url and kind: how many requests this process has made."""


@dataclass(frozen=True)
class Files(ABC):
    """The files below one url. A path is relative to it: "a/b/c"; the folder "" is the url itself.

    A value that can be pickled and sent to workers. Its storage options, which may be secret, are in no repr and no
    message. Every method raises InvalidInputError for a path that leads out of the url, and StoreUnavailableError when the
    store fails. Where a name can be a file's and a folder's at once, as on object stores, nothing prevents that.
    """

    near: ClassVar[bool] = True
    """True if reading is as fast as from a local disk, so that a copy there would gain nothing."""

    _foreign: ClassVar[type[Exception]] = OSError
    """The error that a client raises when its store fails."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @property
    def lists_at_once(self) -> bool:
        """Return whether a listing shows every file that was made before it. Where it may not, a file is asked for by name."""
        return self.near

    @property
    def unsynced(self) -> Files | None:
        """The same files, of which a power cut may take those that are made, until `sync`; None if all are safe at once."""
        return None

    def sync(self, paths: Sequence[str]) -> None:
        """Let files that `unsynced` has made survive a power cut.

        Raises:
            StoreUnavailableError: The store failed, or one of them is gone.
        """
        assert not paths, f"all files of {self!r} are safe at once"

    @abstractmethod
    def create(self, path: str, data: BytesLike) -> None:
        """Make a file of these bytes. Everyone sees all of it or none; of several creators of a name one wins.

        Once it has returned or raised ExistsError, the file of this name survives a power cut. Folders are made as needed.

        Raises:
            ExistsError: The name is taken. The file was not changed. It may be this call's own, if the store's client lost an
                answer and asked again.
            StoreUnavailableError: The store failed. The file is absent or whole; look before you try again.
            InvalidInputError: This store cannot promise the above.
        """

    @abstractmethod
    def read(self, path: str) -> pa.Buffer:
        """Return the bytes of a file. On a local disk they are mapped, not loaded, and outlive its deletion.

        Raises:
            FileNotFoundError: There is no such file.
        """

    def stamp(self, path: str) -> Stamp | None:
        """Return what changes when a file that is mapped is written to; None if the store can't say.

        Raises:
            FileNotFoundError: There is no such file.
        """
        return None

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Buffers:
        """Return the bytes [begin, end) of a file for each pair of bounds; fewer where the file is shorter.

        Raises:
            FileNotFoundError: There is no such file.
        """
        data = self.read(path)
        return [data[begin:end] for begin, end in ranges]

    def ensure(self, path: str, data: BytesLike, tries: int = 2) -> None:
        """Create a file whose bytes only its creator knows. If it exists with these bytes, an earlier try created it.

        Raises:
            ExistsError: The name is taken by other bytes. The file was not changed.
            StoreUnavailableError: The store failed `tries` times. The file is absent or whole.
        """
        for left in reversed(range(tries)):
            try:
                return self.create(path, data)
            except ExistsError:
                try:
                    if self.read(path).equals(pa.py_buffer(data)):
                        return
                except FileNotFoundError:
                    pass
                raise
            except StoreUnavailableError:
                if not left:
                    raise

    def copy_from(self, other: Files, path: str, new: str) -> bool:
        """Let the store copy a file of another url, or of this one, to a new name, and return whether it can do that.

        Everyone sees all of the copy or none. A file that has the name is replaced, so it must be a copy of the same file.

        Raises:
            FileNotFoundError: There is no such file.
        """
        return False

    def for_each(self, do: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return `do` of each item, in their order. Several run at a time if the store answers over a network."""
        if self.near or len(items) < 2:
            return [do(item) for item in items]
        with ThreadPoolExecutor(min(AT_ONCE, len(items))) as pool:
            return list(pool.map(do, items))

    @abstractmethod
    def list(self, folder: str) -> Names:
        """List the names of the files and folders directly in a folder, sorted; none if it is missing.

        Temporary files are left out.
        """

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file, which may be absent or temporary."""

    @abstractmethod
    def leftovers(self, folder: str, now_us: int) -> Ages:
        """Return the name and the age in seconds of each temporary file in a folder. Its writer is at work or was killed."""

    def modified(self, path: str) -> float | None:
        """Return when a file was made, in seconds since 1970 by the clock of the store; None if the store has none of its own.

        Raises:
            FileNotFoundError: There is no such file.
        """
        return None

    def requests_by_kind(self) -> Mapping[str, int]:
        """Return how many requests of each of `KINDS` this process has made below this url, since it began.

        A request that a client makes again by itself counts once.
        """
        return {kind: _counts.get((self.url, kind), 0) for kind in KINDS}

    def _count(self, kind: str, requests: int) -> None:
        # Without a lock: the interpreter switches threads where something is called, and nothing is called here.
        _counts[self.url, kind] += requests

    def _checked(self, path: str) -> str:
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise InvalidInputError(f"path={path!r} is not one inside the store; write it as 'a/b/c'.")
        return path

    def _checked_new(self, path: str) -> str:
        if path.rpartition("/")[2].startswith(TEMPORARY):
            raise InvalidInputError(f"path={path!r} has a temporary file's name; begin it with something else.")
        return self._checked(path)

    def _asking(
        self, kind: str, path: str, may_be_absent: bool = False, requests: int = 1
    ) -> AbstractContextManager[None]:
        """Count requests of a kind, and translate what their client raises: every method of a store asks within this."""
        self._count(kind, requests)
        return translating(self._foreign, partial(self._as_ours, path, may_be_absent))

    def _as_ours(self, path: str, may_be_absent: bool, error: Exception) -> Exception:
        if may_be_absent and isinstance(error, FileNotFoundError):
            return error
        ours = StoreUnavailableError(f"path={path!r} in store={self.url!r}: {error}. Put it right, then try again.")
        # The system's own error shows no secrets.
        ours.__cause__ = error
        return ours

    def _taken(self, path: str) -> ExistsError:
        return ExistsError(f"path={path!r} in store={self.url!r} is taken.")
