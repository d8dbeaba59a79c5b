"""The demo: 336,776 real flights through two tasks, two drivers killed with SIGKILL on the way, every key checked.

    python -m examples.exactly_once [--folder DIR] [--json] [--flights N] [--store URL [--storage-options JSON]]

It streams the flights by three drivers, one after the other, on one store. The first runs on this machine alone, and is killed
after some checkpoints. The second goes on from the store on Spark, with another number of shards, and is killed, too. The third
comes to the end without Spark. Both tasks are compared with pandas, and a table shows what was killed, replayed and compared.
The demo exits 0 only if nothing was lost or counted twice.

The state is kept in the folder, or below any store of docs/stores.md: in a folder of its own, which stays.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc

from examples import flights
from examples.driven import local_spark
from monoids import Count, Struct, Sum
from persistent_state import (
    Application,
    FileSource,
    Local,
    NonWindowState,
    PersistentState,
    PersistentTask,
    formatting,
    read_state,
)
from persistent_state.engine.spark.java import require_java
from persistent_state.errors import StateError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.show.text import width
from persistent_state.task import Message

NAME = "flights"
FILES_PER_BATCH = 1
KILL_AT = 0.4
"""The share of its messages after which a driver is killed."""
LOCAL, SPARK = "Local", "Spark"
OPTIONS = "STORAGE_OPTIONS"
"""The environment variable that may hold the storage options."""


class FlightsPerRoute(PersistentTask):
    """How many flights each carrier made to each destination."""

    key = ("carrier", "dest")

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Count())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        state.update(message.timestamp, 1)


class DelayPerOrigin(PersistentTask):
    """How many arrival delays each airport caused, and their minutes. A flight that never arrived has none."""

    key = "origin"

    def persistent_state(self) -> NonWindowState[dict[str, Any]]:
        return NonWindowState(Struct(delays=Count(), minutes=Sum()))

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        minutes = batch["arr_delay"]
        ones = pa.array([1] * batch.num_rows, pa.int64())
        return pa.StructArray.from_arrays([ones, minutes], names=["delays", "minutes"], mask=minutes.is_null())


@dataclass(frozen=True)
class Place:
    """Where the demo works: the folder of the stream and the logs, and the store with its options."""

    folder: Path
    store: str
    options: dict[str, Any] = field(repr=False)


def application(place: Place, shards: int, files_per_batch: int = FILES_PER_BATCH) -> Application:
    app = Application(
        NAME,
        store=place.store,
        storage_options=place.options,
        checkpoint_interval="1 day",
        allowed_delay="6 hours",
        shards=shards,
    )
    # One source object for both tasks: it is read once.
    departures = FileSource(str(place.folder / "stream"), timestamp="time_hour", max_files_per_batch=files_per_batch)
    return app.add(FlightsPerRoute(), departures).add(DelayPerOrigin(), departures)


@dataclass(frozen=True)
class Start:
    """A start of the application: its number, the engine on which it runs, its shards, and whether its driver is killed."""

    number: int
    engine: str
    shards: int
    is_killed: bool

    def __str__(self) -> str:
        return f"driver {self.number} on {self.engine}"


STARTS = (Start(1, LOCAL, 2, True), Start(2, SPARK, 3, True), Start(3, LOCAL, 2, False))


def drive(place: Place, engine: str, shards: int) -> None:
    """Run the application to the end of the stream, and print its progress as lines of JSON. This process gets killed."""

    def report(progress: Any) -> None:
        # Each line waits until the one before it was read: else a fast driver might have ended before it is killed.
        sys.stdin.readline()
        print(json.dumps(asdict(progress)), flush=True)

    where = Local(workers=2) if engine == LOCAL else local_spark(NAME)
    application(place, shards).run(where, drain=True, on_progress=report)


TASKS = ("FlightsPerRoute", "DelayPerOrigin")


def nothing_yet() -> dict[str, int]:
    return dict.fromkeys(TASKS, 0)


@dataclass
class Drive:
    """What a driver did: where it began, its messages and the replayed ones by task, its newest clocks, and how it ended."""

    start: Start
    restarted_at: int | None = None
    messages: dict[str, int] = field(default_factory=nothing_yet)
    replayed: dict[str, int] = field(default_factory=nothing_yet)
    checkpoint: int | None = None
    clock: int | None = None
    killed: bool = False
    status: int | None = None

    def add(self, progress: Mapping[str, Any]) -> None:
        """Count a committed micro-batch of a task."""
        self.messages[progress["task"]] += progress["messages"]
        self.replayed[progress["task"]] += progress["replayed"]
        self.checkpoint, self.clock = progress["clock"], progress["global_clock"]

    @property
    def done(self) -> int:
        """The messages that both tasks have."""
        return min(self.messages.values())

    def line(self, total: int) -> str:
        """How far the driver is. It fits into 80 characters."""
        # Rounded down: 100% means all.
        done = f"{self.done:,} of {total:,} messages ({100 * self.done // total}%)"
        return f"  {done}, checkpoint {show(self.checkpoint)}, global {show(self.clock)}"


class LiveLine:
    """The progress of a driver: one line that is rewritten in a terminal, elsewhere a line for each quarter of the messages."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._quarters = file, 0
        self._is_live = file.isatty() and os.environ.get("TERM") != "dumb"

    def show(self, line: str, share: float = 0.0) -> None:
        quarters = int(4 * share)
        if self._is_live:
            print(f"\r\x1b[K{formatting.cut(line, width())}", end="", file=self._file, flush=True)
        elif quarters > self._quarters:
            print(line, file=self._file, flush=True)
        self._quarters = quarters

    def close(self) -> None:
        """Leave the line as it is, and go on below it."""
        if self._is_live:
            print(file=self._file, flush=True)


def watch(place: Place, start: Start, restarted_at: int | None, total: int) -> Drive:
    """Run a driver in a process of its own and show its progress; kill it after a share of the messages if it is to be."""
    command = [sys.executable, "-m", "examples.exactly_once", "--drive", start.engine, "--shards", str(start.shards)]
    command += ["--folder", str(place.folder), "--store", place.store]
    # Not in its arguments, which everyone on the machine can read.
    environment = {**os.environ, OPTIONS: json.dumps(place.options)}
    with (
        closing(LiveLine(sys.stdout)) as live,
        (place.folder / "driver.log").open("ab") as log,
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=log, env=environment) as process,
    ):
        seen = Drive(start, restarted_at)
        live.show(f"  {start.engine} starts")
        assert process.stdin is not None
        assert process.stdout is not None
        let_go_on(process.stdin)
        for line in process.stdout:
            if not line.startswith(b"{"):
                continue
            seen.add(json.loads(line))
            live.show(seen.line(total), seen.done / total)
            if not seen.killed and start.is_killed and seen.done >= total * KILL_AT and seen.clock != BEGINNING:
                os.kill(process.pid, signal.SIGKILL)
                seen.killed = True
            let_go_on(process.stdin)
        seen.status = process.wait()
    return seen


def let_go_on(driver: IO[bytes]) -> None:
    """Let a driver print another line, if it lives."""
    with suppress(BrokenPipeError):
        driver.write(b"\n")
        driver.flush()


def show(clock: int | None) -> str:
    """The day of a clock, which is a whole one as the checkpoint interval is."""
    if clock is None or clock == BEGINNING:
        return "none yet"
    return f"{datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=clock):%Y-%m-%d}"


@dataclass(frozen=True)
class Compared:
    """How the state of a task differs from pandas: in messages, and in keys that are wrong in any way."""

    keys: int
    messages: int
    by_pandas: int
    lost: int
    twice: int
    wrong_keys: int


def compare(state: Mapping[Any, tuple[int, ...]], wanted: Mapping[Any, tuple[int, ...]]) -> Compared:
    """Compare the values of all keys, of which the first part is a number of messages."""
    keys, none = state.keys() | wanted.keys(), (0,)
    differences = [state.get(key, none)[0] - wanted.get(key, none)[0] for key in keys]
    return Compared(
        keys=len(keys),
        messages=sum(count for count, *_ in state.values()),
        by_pandas=sum(count for count, *_ in wanted.values()),
        lost=-sum(difference for difference in differences if difference < 0),
        twice=sum(difference for difference in differences if difference > 0),
        wrong_keys=sum(state.get(key) != wanted.get(key) for key in keys),
    )


def check(place: Place, table: pa.Table) -> dict[str, Compared]:
    """Compare every key of both tasks with a plain computation over the same flights."""
    wanted = flights.expected(table)
    routes = read_state(place.store, NAME, FlightsPerRoute(), storage_options=place.options).to_pylist()
    delays = read_state(place.store, NAME, DelayPerOrigin(), storage_options=place.options).to_pylist()
    return {
        "FlightsPerRoute": compare(
            {(row["carrier"], row["dest"]): (row["value"],) for row in routes},
            {route: (count,) for route, count in wanted.flights.items()},
        ),
        "DelayPerOrigin": compare(
            {row["origin"]: (row["value"]["delays"], row["value"]["minutes"]) for row in delays}, wanted.delays
        ),
    }


@dataclass(frozen=True)
class Verdict:
    """How the states differ from pandas: flights lost and counted twice, and keys of both tasks that are wrong in any way."""

    messages: int
    lost: int
    twice: int
    wrong_keys: int


def verdict_of(compared: Mapping[str, Compared]) -> Verdict:
    """Sum up what was compared."""
    # Only this task counts each message: a flight that never arrived has no delay.
    routes = compared["FlightsPerRoute"]
    wrong = sum(each.wrong_keys for each in compared.values())
    return Verdict(routes.messages, routes.lost, routes.twice, wrong)


COMPARED = (
    ("compared", "keys"),
    ("", "messages counted"),
    ("", "messages by pandas"),
    ("", "lost"),
    ("", "counted twice"),
    ("", "wrong keys"),
)


def story(drives: Sequence[Drive], compared: Mapping[str, Compared]) -> Iterator[str]:
    """A table of what was killed, what was replayed and what was compared, with a column for each task."""
    rows: list[tuple[str, ...]] = []
    for seen in drives:
        if seen.start.number > 1:
            rows.append(("replayed", f"by {seen.start} from clock", *[show(seen.restarted_at)] * len(TASKS)))
            rows.append(("", "messages", *(f"{seen.replayed[task]:,}" for task in TASKS)))
        if seen.killed:
            rows.append(("killed", f"{seen.start} after messages", *(f"{seen.messages[task]:,}" for task in TASKS)))
            rows.append(("", "at global clock", *[show(seen.clock)] * len(TASKS)))
    counts = [[f"{count:,}" for count in asdict(compared[task]).values()] for task in TASKS]
    rows += [(*what, *row) for what, *row in zip(COMPARED, *counts, strict=True)]
    return formatting.table(("", "", *TASKS), rows, right={2, 3})


def last_words(place: Place) -> str:
    """What the last driver has said in the end."""
    lines = (place.folder / "driver.log").read_text(errors="replace").splitlines()
    return lines[-1].rstrip(".") if lines else "nothing"


def failures(drives: Sequence[Drive], verdict: Verdict, total: int) -> Iterator[str]:
    """Why the demo did not show what it is to show, a sentence each."""
    for seen in drives[1:]:
        if seen.restarted_at is None:
            yield f"there was no checkpoint at which {seen.start} could begin"
        if not all(seen.replayed.values()):
            yield f"{seen.start} replayed no message"
    if verdict.wrong_keys or verdict.lost or verdict.twice or verdict.messages != total:
        yield f"{verdict.wrong_keys} keys differ from pandas"


def demo(place: Place, as_json: bool, most: int) -> int:
    require_java()
    print(f"Writing {most:,} flights in files, shuffled within the allowed delay of 6 hours.", flush=True)
    table = flights.write_stream(place.folder / "stream", most=most)
    drives: list[Drive] = []
    for start in STARTS:
        restarted_at = global_clock(place) if drives else None
        print(*announced(start, restarted_at), sep="\n", flush=True)
        seen = watch(place, start, restarted_at, from_clock(table, restarted_at))
        if seen.killed != start.is_killed or not (seen.killed or seen.status == 0):
            what = "ended before it could be killed" if start.is_killed else "did not come to the end"
            print(f"FAILED: {start} {what}, and its log ends so: {last_words(place)}.", file=sys.stderr)
            return 1
        drives.append(seen)
    compared = check(place, table)
    verdict = verdict_of(compared)
    print("", *story(drives, compared), "", sep="\n", flush=True)
    wrong = list(failures(drives, verdict, table.num_rows))
    for sentence in wrong:
        print(f"FAILED: {sentence}.", file=sys.stderr)
    if as_json:
        figures = {
            **asdict(verdict),
            "drivers": [asdict(seen) for seen in drives],
            "tasks": {task: asdict(each) for task, each in compared.items()},
        }
        print(json.dumps(figures))
    print(f"exactly once: {verdict.messages} messages, {verdict.lost} lost, {verdict.twice} counted twice", flush=True)
    return 1 if wrong else 0


def announced(start: Start, restarted_at: int | None) -> Iterator[str]:
    """What is printed before a start: what happened to the driver before, what this one does, and what will happen to it."""
    if start.number > 1:
        yield f"Driver {start.number - 1} was killed with SIGKILL."
    how = f"Driver {start.number} starts on {start.engine} with {start.shards} shards"
    yield f"{how}." if start.number == 1 else f"{how}, and reads the messages from clock {show(restarted_at)} on."
    if start.is_killed:
        yield f"It will be killed after {KILL_AT:.0%} of its messages."


def from_clock(table: pa.Table, clock: int | None) -> int:
    """How many flights there are from a clock on."""
    times = table["time_hour"].cast(pa.int64())
    return table.num_rows if clock is None else int(pc.sum(pc.greater_equal(times, clock)).as_py())


def global_clock(place: Place) -> int | None:
    """The clock that the next start will restore."""
    from persistent_state import open_store

    try:
        retained = open_store(place.store, storage_options=place.options).application(NAME).clocks()
    except StateError:
        return None
    return retained[-1] if retained else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keep stream, store and logs here (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print the figures as a line of JSON before the last line")
    parser.add_argument(
        "--flights", type=int, default=flights.FLIGHTS, metavar="N", help="only the first N (default: all)"
    )
    parser.add_argument("--store", metavar="URL", help="keep the state below this store (default: in the folder)")
    parser.add_argument(
        "--storage-options",
        type=json.loads,
        default=os.environ.get(OPTIONS, "{}"),
        metavar="JSON",
        help=f"options of the store's client (default: the variable {OPTIONS}, and those that the client itself reads)",
    )
    parser.add_argument("--drive", choices=(LOCAL, SPARK), help=argparse.SUPPRESS)
    parser.add_argument("--shards", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        place = Place(arguments.folder, arguments.store, arguments.storage_options)
        drive(place, arguments.drive, arguments.shards)
        return 0
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="exactly-once-"))
    folder.mkdir(parents=True, exist_ok=True)
    store = str(folder / "store")
    if arguments.store:
        store = f"{arguments.store.rstrip('/')}/exactly-once-{secrets.token_hex(4)}"
        print(f"The state will be in {store}, and stays there.", flush=True)
    try:
        return demo(Place(folder, store, arguments.storage_options), arguments.json, arguments.flights)
    except StateError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
