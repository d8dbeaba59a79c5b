"""A driver that meets its end: the tasks of `stream` over a folder, and what happens just before a step in its store.

    python -m tests.spark.victim FOLDER [--master "local[2]"] [--shards 2] [--interval "10 seconds"]
        [--die STEP [--of jvm] [--from-call 3]] [--pause STEP STEP] [--stumble] [--kill-every 9]
        [--store URL --options FILE --scratch FOLDER] [--when FILE] [--continuous | --twice] [--delivery at-least-once]
        [--three | --graph MODULE] [--die-at-run TASK] [--rows-in-files] [--workers 2]

At the step of --die it is ended by SIGKILL, or with --of jvm only its JVM is. At that of --pause all its processes stop
by SIGSTOP; when it was fenced it starts again, for the next of these steps. With --stumble every first attempt of a Spark
task fails, and with --kill-every 9 the worker is killed that is at every ninth operation in the store.

With --when it starts once that file is there. A --store is given what the JSON of --options says, and has no steps. Its Spark
logs all it does, and keeps an event log.

With --three there is a third task, and all of them have one source. With --graph it is the graph of `pipeline` or of `beside`
instead. There --die-at-run ends the driver when a worker is about to write a run of a task.

With --rows-in-files few rows are in files, too, as they are with what needs a file. So all runs take the same steps.

With --workers it runs on this machine alone, without a JVM.

It ends with exit code 0 when it has read everything and closed, or with --continuous when it was asked to stop. With
--twice it starts again before it closes. FOLDER/progress gets its progress as lines of JSON, and FOLDER/steps the steps
that it takes, each after the number of its call.

A step is one operation of the driver's own process in the store: "PHASE OPERATION KIND NTH", such as "commit create log 1",
"PHASE look log after" behind the writing of an entry, or "NUMBER" counted over all. The phases are the functions of
`persistent_state.protocol`; "step" is the commit of a step, and "both" that of a micro-batch with a step in it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from persistent_state import Application, FencedError, Local, Message, PersistentState, PersistentTask, application
from persistent_state.batch import shard
from persistent_state.batch.packets import Answers
from persistent_state.drive import backoff
from persistent_state.protocol import commits, takeover
from persistent_state.protocol.collect import Collector
from persistent_state.run import garbage
from persistent_state.run.progress import Progress
from persistent_state.store.files import Ages, BytesLike, Files, LocalFiles, Names
from tests import core
from tests.spark import beside, pipeline, stream
from tests.spark.faults import FaultyFiles, Schedule, Stumbles, StumblingFiles
from tests.spark.sessions import new_session

PHASES = {
    "start": (takeover, "take_over"),
    "commit": (commits, "commit"),
    "unchanged": (commits, "commit_unchanged"),
    "collect": (Collector, "collect"),
    "close": (commits, "close"),
}
GRAPHS: dict[str, Callable[..., Application]] = {"pipeline": pipeline.application, "beside": beside.application}
MOST = 2
"""How many operations of one kind in a phase are steps of their own: the others are like the last of these.

A collection looks at many things before it acts; there only what changes the store is told apart.
"""


@dataclass
class Steps:
    """The steps of this process: noted, and before the awaited one, when it is met, something happens."""

    record: Path
    awaited: list[str | None]
    from_call: int
    act: Callable[[], None]
    operations: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    here: threading.local = field(default_factory=threading.local)

    def phase(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose operations are those of a phase."""

        def call(*arguments: Any, **named: Any) -> Any:
            reports = [report for each in arguments if isinstance(each, Answers) for report in each.reports]
            steps = [report for report in reports if report.step]
            phase = "step" if steps else name
            if any(report.sender.flow in beside.MIXED for report in steps):
                phase = "both"
            with self.lock:
                self.calls[phase] += 1
                self.here.phase, self.here.call, self.here.taken = phase, self.calls[phase], Counter()
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
        if (operation, kind) == ("list", "log") and name != "collect":
            # A driver lists the log at its first look, and at each hundredth, in whatever phase that comes.
            return
        if (operation, kind, name) == ("read", "log", "start"):
            # The checks before a start may have read all of the log that the start needs.
            return
        self.here.taken[operation, kind] += 1
        most = MOST if name != "collect" or operation in ("create", "delete") else 1
        step = f"{name} {operation} {kind} {min(self.here.taken[operation, kind], most)}"
        if kind == "log" and operation in ("read", "list") and self.here.taken["create", kind]:
            # Who has written an entry looks whether it is the newest: by names, or where the log is short by a listing.
            step = f"{name} look log after"
        with self.lock:
            self.operations += 1
            with self.record.open("a") as record:
                record.write(f"{self.here.call} {step}\n")
            is_due = self.awaited == [step] and self.here.call >= self.from_call
            if is_due or self.awaited == [str(self.operations)]:
                self.awaited = []
                self.act()


def files_of_worker(make: Callable[[str], LocalFiles], url: str, few: int) -> LocalFiles:
    """The files of a worker, in which runs of up to `few` bytes go to the driver."""
    shard.FEW = few
    return make(url)


class WatchedFiles(LocalFiles):
    """Local files of which each operation is a step, in this process only: a worker gets others."""

    steps: Steps
    for_workers: Callable[[str], LocalFiles] = LocalFiles
    few = shard.FEW
    """None in files where what happens is about the files that workers write."""

    def __reduce__(self) -> tuple[Callable[..., LocalFiles], tuple[Any, ...]]:
        return files_of_worker, (type(self).for_workers, self.url, type(self).few)

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


class DeadlyFiles(LocalFiles):
    """Local files of a worker, which kills the driver just before it writes a run of a task."""

    def __init__(self, url: str, driver: int, task: str) -> None:
        super().__init__(url)
        self._driver, self._task = driver, task

    def ensure(self, path: str, data: BytesLike, tries: int = 2) -> None:
        if f"/runs/{self._task}/" in path:
            os.kill(self._driver, signal.SIGKILL)
        super().ensure(path, data, tries)


def watch(steps: Steps) -> None:
    """Let this process take its steps under watch, and collect early and often."""
    WatchedFiles.steps = steps

    def open_files(url: str, storage_options: Any = None) -> Files:
        return WatchedFiles(os.path.abspath(url))

    setattr(application, "open_files", open_files)  # noqa: B010
    setattr(application, "Keeping", core.keeping_at_once)  # noqa: B010
    garbage.EVERY_SECONDS = 0.3
    for phase, (place, name) in PHASES.items():
        setattr(place, name, steps.phase(phase, getattr(place, name)))


@dataclass
class StumblingBalance(stream.Balance):
    """Fails before the shuffle in a first attempt."""

    stumbles: Stumbles
    name = "Balance"

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        self.stumbles.stumble("process_message", OSError)
        super().process_message(state, message)


@dataclass
class StumblingJournal(stream.Journal):
    """Fails before the shuffle in a first attempt."""

    stumbles: Stumbles
    name = "Journal"

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        self.stumbles.stumble("process_batch", OSError)
        return super().process_batch(batch)


@dataclass
class Jvm:
    """The JVM of this driver."""

    pid: int = 0

    def kill(self) -> None:
        print("the JVM is killed", flush=True)
        os.kill(self.pid, signal.SIGKILL)

    def pause_with_all(self) -> None:
        """Stop this process, last, and the JVM with its workers."""
        of_jvm = psutil.Process(self.pid)
        for process in (of_jvm, *of_jvm.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        psutil.Process().suspend()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--interval", default="10 seconds")
    parser.add_argument("--die")
    parser.add_argument("--of", choices=["driver", "jvm"], default="driver")
    parser.add_argument("--from-call", type=int, default=1)
    parser.add_argument("--pause", nargs="*", default=[])
    parser.add_argument("--stumble", action="store_true")
    parser.add_argument("--kill-every", type=int)
    parser.add_argument("--store")
    parser.add_argument("--options", type=Path)
    parser.add_argument("--scratch")
    parser.add_argument("--when", type=Path)
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--continuous", action="store_true")
    parser.add_argument("--delivery", default="exactly-once")
    parser.add_argument("--three", action="store_true")
    parser.add_argument("--graph", choices=GRAPHS)
    parser.add_argument("--die-at-run", metavar="TASK")
    parser.add_argument("--rows-in-files", action="store_true")
    parser.add_argument("--workers", type=int)
    told = parser.parse_args()
    jvm = Jvm()
    act = jvm.pause_with_all if told.pause else jvm.kill if told.of == "jvm" else _die
    steps = Steps(told.folder / "steps", [told.die], told.from_call, act)
    if told.store is None:
        watch(steps)
    backoff.LONGEST_WAIT = 0.1
    tasks = stream.THREE if told.three else stream.TASKS
    if told.stumble:
        stumbles = Stumbles(told.folder / "stumbles")
        WatchedFiles.for_workers, WatchedFiles.few = partial(StumblingFiles, stumbles=stumbles), 0
        tasks = (StumblingBalance(stumbles), StumblingJournal(stumbles))
    if told.kill_every:
        schedule = Schedule(told.folder, told.kill_every, ("kill before", "kill after"))
        WatchedFiles.for_workers, WatchedFiles.few = partial(FaultyFiles, schedule=schedule), 0
    if told.die_at_run:
        WatchedFiles.for_workers = partial(DeadlyFiles, driver=os.getpid(), task=told.die_at_run)
    if told.die_at_run or told.rows_in_files:
        WatchedFiles.few = 0
    graph = GRAPHS.get(told.graph)
    app = graph(told.folder, told.shards, told.interval) if graph else _of_stream(told, tasks)

    def tell(progress: Progress) -> None:
        with (told.folder / "progress").open("a") as file:
            file.write(json.dumps(asdict(progress)) + "\n")

    workers: int | None = told.workers
    engine: Any = Local(workers) if workers else None
    if engine is None:
        engine = new_session("victim", told.master, _telling_all(told.folder) if told.store else {})
        jvm.pid = engine._jvm.java.lang.ProcessHandle.current().pid()
    if told.when:
        print("ready", flush=True)
        while not told.when.exists():
            time.sleep(0.001)
    for step in told.pause:
        steps.awaited, steps.calls, WatchedFiles.few = [step], Counter(), 0
        try:
            app.start(engine, on_progress=tell).await_termination()
        except FencedError:
            print("fenced", flush=True)
    if told.pause:
        return
    if told.continuous:
        app.start(engine, on_progress=tell).await_termination()
    else:
        if told.twice:
            app.run(engine, on_progress=tell)
        app.run(engine, drain=True, on_progress=tell)


def _of_stream(told: argparse.Namespace, tasks: Sequence[PersistentTask]) -> Application:
    return stream.application(
        told.folder,
        shards=told.shards,
        interval=told.interval,
        tasks=tasks,
        store=told.store,
        storage_options=json.loads(told.options.read_text()) if told.options else {},
        scratch=told.scratch,
        delivery=told.delivery,
        one_source=told.three,
    )


def _telling_all(folder: Path) -> dict[str, str]:
    events = folder / "events"
    events.mkdir(exist_ok=True)
    return {
        "spark.log.level": "INFO",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file:{events}",
        "spark.executor.memory": "512m",
    }


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
