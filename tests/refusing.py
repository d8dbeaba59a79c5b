"""Files of a store that refuses what it is asked, as S3 does with a token that has expired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from persistent_state.errors import StoreRefusedError
from persistent_state.store.files import MemoryFiles


@dataclass(frozen=True)
class RefusingFiles(MemoryFiles):
    """Files of which those in some folders are refused, and one question by its number."""

    refused: list[str] = field(default_factory=list, compare=False)
    """Beginnings of paths; "" is that of all."""

    questions: list[str] = field(default_factory=list, compare=False)
    """The paths that were asked for."""

    numbers: list[int] = field(default_factory=list, compare=False)
    """The places in `questions` of those that are refused."""

    def read(self, path: str) -> pa.Buffer:
        self._ask(path)
        return super().read(path)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        data = self.read(path)
        return [data[begin:end] for begin, end in ranges]

    def list(self, folder: str) -> list[str]:
        self._ask(folder)
        return super().list(folder)

    def _ask(self, path: str) -> None:
        self.questions.append(path)
        if len(self.questions) - 1 in self.numbers or any(map(path.startswith, self.refused)):
            raise StoreRefusedError(f"path={path!r} in store={self.url!r} is refused: the token has expired. Renew it.")
