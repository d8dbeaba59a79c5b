"""Local files that fail on a schedule, or in every first attempt of a task, in whatever process they are used."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import pyarrow as pa

from persistent_state.errors import StoreUnavailableError
from persistent_state.store.files import BytesLike, LocalFiles, Names

T = TypeVar("T")
Kind = Literal["before", "after", "kill before", "kill after"]
MOST_KILLED = 2
"""Attempts of one Spark task that are killed; the third goes through."""


@dataclass(frozen=True)
class Schedule:
    """Each `every`-th of an operation, of all processes together, is a fault, of these kinds in turn, before or after its work.

    Only tasks of Spark are killed. What happened is told in `folder`; while it holds a file `off`, nothing happens. After
    `most` faults nothing happens until `go_on`: if each start ends at a fault, so does the next, which takes the same steps.
    """

    folder: Path
    every: int
    kinds: tuple[Kind, ...]
    most: int | None = None

    def next(self, operation: str) -> Kind | None:
        if self.off.exists():
            return None
        number = _append(self.folder / f"{operation}s", ".")
        if number % self.every or (self.most is not None and _size(self._in_a_row) >= self.most):
            return None
        kind = self.kinds[number // self.every % len(self.kinds)]
        attempt = attempt_number()
        if kind.startswith("kill") and (attempt is None or attempt >= MOST_KILLED):
            return None
        _append(self.folder / "faults", f"{kind}, {'driver or planner' if attempt is None else 'task'}, {operation}\n")
        _append(self._in_a_row, ".")
        return kind

    def go_on(self) -> None:
        """Be told that what is under test came on, so that there may be faults again."""
        self._in_a_row.unlink(missing_ok=True)

    @property
    def _in_a_row(self) -> Path:
        return self.folder / "in_a_row"

    @property
    def off(self) -> Path:
        return self.folder / "off"

    def told(self) -> Counter[str]:
        """How many faults there were of each kind, in which processes, in which operation."""
        faults = self.folder / "faults"
        return Counter(faults.read_text().splitlines() if faults.exists() else ())


@dataclass(frozen=True)
class FaultyFiles(LocalFiles):
    """Local files with the faults of a schedule."""

    schedule: Schedule | None = None

    def create(self, path: str, data: BytesLike) -> None:
        self._do("create", lambda: LocalFiles.create(self, path, data))

    def read(self, path: str) -> pa.Buffer:
        return self._do("read", lambda: LocalFiles.read(self, path))

    def list(self, folder: str) -> Names:
        return self._do("list", lambda: LocalFiles.list(self, folder))

    def delete(self, path: str) -> None:
        self._do("delete", lambda: LocalFiles.delete(self, path))

    def _do(self, operation: str, work: Callable[[], T]) -> T:
        kind = self.schedule.next(operation) if self.schedule else None
        if kind is None:
            return work()
        if kind.endswith("after"):
            work()
        if kind.startswith("kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        raise StoreUnavailableError(f"a fault {kind} {operation}.")


@dataclass(frozen=True)
class Stumbles:
    """Makes the first attempt of each Spark task fail, and tells in a file where."""

    record: Path

    def stumble(self, where: str, error: type[Exception]) -> None:
        if attempt_number() == 0:
            _append(self.record, f"{where}\n")
            raise error("the first attempt fails.")

    def told(self) -> Counter[str]:
        return Counter(self.record.read_text().splitlines())


@dataclass(frozen=True)
class StumblingFiles(LocalFiles):
    """Local files whose `create` does its work and fails all the same, in the first attempt of a task."""

    stumbles: Stumbles | None = None

    def create(self, path: str, data: BytesLike) -> None:
        LocalFiles.create(self, path, data)
        if self.stumbles:
            self.stumbles.stumble("create", StoreUnavailableError)


def attempt_number() -> int | None:
    """Which attempt of a Spark task this is, from 0; None if this process runs none."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return None if context is None else context.attemptNumber()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _append(file: Path, text: str) -> int:
    """Append a few bytes, all at once; the size of the file then."""
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(opened, text.encode())
        return os.lseek(opened, 0, os.SEEK_CUR)
    finally:
        os.close(opened)
