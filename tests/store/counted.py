"""A store in memory that counts requests as an object store would see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from persistent_state.store.files import BytesLike, Files, MemoryFiles, Names
from persistent_state.store.files.base import Buffers

PAGE = 1000
"""The names that one answer to a LIST has at most."""


@dataclass(frozen=True)
class CountedFiles(MemoryFiles):
    """Files whose operations cost what they cost on S3, by the client that the library uses.

    `tests/store/test_conformance.py` compares these numbers with the requests that a server of S3 gets.
    """

    near: ClassVar[bool] = False
    requests: Counter[str] = field(default_factory=Counter, compare=False)

    def create(self, path: str, data: BytesLike) -> None:
        self.requests["PUT"] += 1
        super().create(path, data)

    def read(self, path: str) -> pa.Buffer:
        self.requests["GET"] += 1
        return super().read(path)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> Buffers:
        self.requests["GET"] += len(ranges)
        data = super().read(path)
        return [data[begin:end] for begin, end in ranges]

    def copy_from(self, other: Files, path: str, new: str) -> bool:
        return False

    def list(self, folder: str) -> Names:
        names = super().list(folder)
        # Where nothing is listed, the client lists the folder above, too.
        self.requests["LIST"] += max(1, -(-len(names) // PAGE)) if names else 2
        return names

    def delete(self, path: str) -> None:
        self.requests["DELETE"] += 1
        super().delete(path)

    def modified(self, path: str) -> float | None:
        self.requests["HEAD"] += 1
        return super().modified(path)

    def since(self, before: Counter[str]) -> dict[str, int]:
        """Return how many requests of each kind came since the numbers were `before`; without kinds of which none came."""
        return {kind: self.requests[kind] - before[kind] for kind in KINDS if self.requests[kind] > before[kind]}


KINDS = ("PUT", "GET", "LIST", "HEAD", "DELETE")
