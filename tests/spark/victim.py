"""A driver to be killed: the tasks of `stream` over the files of a folder, ended by SIGKILL just before a step in its store.

    python -m tests.spark.victim FOLDER [--shards 2] [--interval "10 seconds"] [--die STEP [--from-call 3]] [--continuous]

It ends with exit code 0 when it has read everything and closed, or with --continuous when it was asked to stop. With
--twice it starts again before it closes. FOLDER/progress gets its progress as lines of JSON, and FOLDER/steps the steps
that it takes, each after the number of its call.

A step is one operation of the driver's own process in the store: "PHASE OPERATION KIND NTH", such as "commit create log 1",
or "NUMBER" counted over all. The phases are the functions of `persistent_state.driver`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from persistent_state import application, driver
from persistent_state.driver import Keeping
from persistent_state.engine import query
from persistent_state.store.files import Ages, BytesLike, Files, LocalFiles, Names
from tests.spark import stream
from tests.spark.sessions import new_session

PHASES = ("start", "commit", "collect", "close")
MOST = 2
"""How many operations of one kind in a phase are steps of their own: the others are like the last of these.

A collection looks at many things before it acts; there only what changes the store is told apart.
"""


@dataclass
class Steps:
    """The steps of this process: noted, and at one of them its end."""

    record: Path
    die: str | None
    from_call: int
    operations: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    here: threading.local = field(default_factory=threading.local)

    def phase(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose operations are those of a phase."""

        def call(*arguments: Any, **named: Any) -> Any:
            with self.lock:
                self.calls[name] += 1
                self.here.phase, self.here.call, self.here.taken = name, self.calls[name], Counter()
            try:
                return function(*arguments, **named)
            finally:
                del self.here.phase

        return call

    def take(self, operation: str, path: str) -> None:
        """The moment before an operation. A kill after one is a kill before the next."""
        name = getattr(self.here, "phase", None)
        if name is None:
            return
        kind = path.split("/")[1] if "/" in path else path
        self.here.taken[operation, kind] += 1
        most = MOST if name != "collect" or operation in ("create", "delete") else 1
        step = f"{name} {operation} {kind} {min(self.here.taken[operation, kind], most)}"
        with self.lock:
            self.operations += 1
            with self.record.open("a") as record:
                record.write(f"{self.here.call} {step}\n")
            if self.die == str(self.operations) or (self.die == step and self.here.call >= self.from_call):
                os.kill(os.getpid(), signal.SIGKILL)


class WatchedFiles(LocalFiles):
    """Local files of which each operation is a step, in this process only: a worker gets plain ones."""

    steps: Steps

    def __reduce__(self) -> tuple[type[LocalFiles], tuple[str]]:
        return LocalFiles, (self.url,)

    def create(self, path: str, data: BytesLike) -> None:
        self.steps.take("create", path)
        super().create(path, data)

    def read(self, path: str) -> pa.Buffer:
        self.steps.take("read", path)
        return super().read(path)

    def list(self, folder: str) -> Names:
        self.steps.take("list", folder)
        return super().list(folder)

    def delete(self, path: str) -> None:
        self.steps.take("delete", path)
        super().delete(path)

    def leftovers(self, folder: str, now_us: int) -> Ages:
        self.steps.take("leftovers", folder)
        return super().leftovers(folder, now_us)


def watch(steps: Steps) -> None:
    """Let this process take its steps under watch, and collect early and often."""
    WatchedFiles.steps = steps

    def open_files(url: str, **storage_options: Any) -> Files:
        return WatchedFiles(os.path.abspath(url))

    setattr(application, "open_files", open_files)  # noqa: B010
    setattr(application, "Keeping", partial(Keeping, grace=0))  # noqa: B010
    query.COLLECT_EVERY = 2
    for name in PHASES:
        setattr(driver, name, steps.phase(name, getattr(driver, name)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--interval", default="10 seconds")
    parser.add_argument("--die")
    parser.add_argument("--from-call", type=int, default=1)
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--continuous", action="store_true")
    told = parser.parse_args()
    watch(Steps(told.folder / "steps", told.die, told.from_call))
    app = stream.application(told.folder, shards=told.shards, interval=told.interval)

    def tell(progress: query.Progress) -> None:
        with (told.folder / "progress").open("a") as file:
            file.write(json.dumps(asdict(progress)) + "\n")

    spark = new_session("victim")
    if told.continuous:
        app.start(spark, on_progress=tell).await_end()
    else:
        if told.twice:
            app.run(spark, on_progress=tell)
        app.run(spark, close=True, on_progress=tell)


if __name__ == "__main__":
    main()
