"""One file for the runs of several shards. They stand one after the other, and an entry names each as a range of the file."""

from __future__ import annotations

import pyarrow as pa

from persistent_state.store.files.base import Files

ROOM = 8 << 20
"""The most bytes of runs that stand in one file."""

MOST_SHARED = 1 << 18
"""The most bytes of a run that stands in a file with others. The file stays as long as one of them is named."""

ALIGNED = 64
"""Each run begins at a multiple of this number of bytes, as Arrow wants what is mapped."""

HEAD = b"runs of persistent-state\n".ljust(ALIGNED)
"""The beginning of such a file. No run begins with the file, so a record of one can't be taken for that of a whole file."""


class SharedFile:
    """A file that is to have the runs of several shards, which one worker makes. They are in memory until it is written.

    When it is full, it is written, and a further one begins.
    """

    def __init__(self, files: Files, tries: int = 2) -> None:
        self._files = files
        self._tries = tries
        self._path = ""
        self._pieces: list[bytes | pa.Buffer] = []
        self._size = 0

    def add(self, path: str, data: pa.Buffer) -> tuple[str, int]:
        """Add a run, and return the path of the file that has it, and where in the file it begins.

        Args:
            path: A name that no other file has. The first run gives its name to the file.
            data: The bytes of the run.
        """
        if self._size + len(data) > ROOM:
            self.write()
        if not self._pieces:
            self._path, self._pieces, self._size = f"{path.removesuffix('.arrow')}.runs", [HEAD], len(HEAD)
        filled = -self._size % ALIGNED
        start = self._size + filled
        self._pieces += [bytes(filled), data]
        self._size = start + len(data)
        return self._path, start

    def write(self) -> None:
        """Write the runs that were added, durable when this returns; nothing if there are none."""
        if self._pieces:
            self._files.ensure(self._path, b"".join(self._pieces), self._tries)
        self._pieces, self._size = [], 0
