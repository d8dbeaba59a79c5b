"""A store in memory where every operation lets others go first, and may fail, get lost, come late or leave a torn file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Protocol

import pyarrow as pa

from persistent_state.errors import ExistsError
from persistent_state.store.files import Files


class Disk:
    """What is stored. `watch` hears of each file made, `unwatch` of each deleted."""

    def __init__(self) -> None:
        self.files: dict[str, pa.Buffer] = {}
        self.folders: dict[str, set[str]] = {}
        self.torn: dict[str, int] = {}
        self.unsynced: dict[str, Stage | None] = {}
        """The files that a power cut may take, and who has made them."""
        self.tears = 0
        self.watch: Callable[[str], None] = lambda path: None
        self.unwatch: Callable[[str], None] = lambda path: None

    def create(self, path: str, data: bytes) -> None:
        if path in self.files:
            raise ExistsError(f"{path} is taken.")
        folder, _, name = path.rpartition("/")
        self.files[path] = pa.py_buffer(data)
        self.folders.setdefault(folder, set()).add(name)
        self.watch(path)

    def read(self, path: str) -> pa.Buffer:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def list(self, folder: str) -> list[str]:
        return sorted(self.folders.get(folder, ()))

    def delete(self, path: str) -> None:
        if path in self.torn:
            self.unwatch(path)
            del self.torn[path]
        if path in self.files:
            self.unwatch(path)
            self.unsynced.pop(path, None)
            folder, _, name = path.rpartition("/")
            del self.files[path]
            self.folders[folder].discard(name)

    def lose(self, stage: Stage, rng: Random) -> int:
        """Take files of an actor who is killed by a power cut, and return how many."""
        lost = [path for path, by in self.unsynced.items() if by is stage and rng.random() < 0.5]
        for path in lost:
            del self.unsynced[path]
            self.delete(path)
        return len(lost)

    def tear(self, path: str, now: int) -> None:
        """Leave what a writer had written of a file when it was killed."""
        folder, _, _ = path.rpartition("/")
        self.tears += 1
        self.torn[f"{folder}/.tmp-{self.tears}"] = now

    def leftovers(self, folder: str, now: int) -> list[tuple[str, float]]:
        parts = ((path.rpartition("/"), made) for path, made in sorted(self.torn.items()))
        return [(name, (now - made) / 1e6) for (where, _, name), made in parts if where == folder]


class Stage(Protocol):
    """Who decides when an operation happens and how it ends."""

    def perform(self, operation: str, path: str, act: Callable[[], Any]) -> Any: ...


@dataclass(frozen=True)
class PlainFiles(Files):
    """The disk as it is: nothing waits and nothing fails."""

    disk: Disk = field(default_factory=Disk, compare=False)

    def create(self, path: str, data: Any) -> None:
        self._do("create", path, lambda: self.disk.create(path, bytes(data)))

    def read(self, path: str) -> pa.Buffer:
        buffer: pa.Buffer = self._do("read", path, lambda: self.disk.read(path))
        return buffer

    def list(self, folder: str) -> list[str]:
        names: list[str] = self._do("list", folder, lambda: self.disk.list(folder))
        return names

    def delete(self, path: str) -> None:
        self._do("delete", path, lambda: self.disk.delete(path))

    def leftovers(self, folder: str, now_us: int) -> list[tuple[str, float]]:
        return self.disk.leftovers(folder, now_us)

    def _do(self, operation: str, path: str, act: Callable[[], Any]) -> Any:
        return act()


@dataclass(frozen=True)
class StagedFiles(PlainFiles):
    """The disk as one driver and its workers reach it."""

    stage: Stage | None = field(default=None, compare=False, repr=False)
    lists_late: bool = field(default=False, compare=False)
    syncs: bool = True

    @property
    def unsynced(self) -> StagedFiles:
        return replace(self, syncs=False)

    def sync(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._do("sync", path, lambda path=path: self.disk.unsynced.pop(path, None))

    def create(self, path: str, data: Any) -> None:
        super().create(path, data)
        if not self.syncs:
            self.disk.unsynced[path] = self.stage

    @property
    def lists_at_once(self) -> bool:
        return not self.lists_late

    def _do(self, operation: str, path: str, act: Callable[[], Any]) -> Any:
        assert self.stage is not None
        return self.stage.perform(operation, path, act)
