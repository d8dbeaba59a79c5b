"""The demo: 336,776 real flights through two tasks, the driver killed with SIGKILL on the way, every key checked.

    python -m examples.exactly_once [--folder DIR] [--json] [--flights N] [--store URL [--storage-options JSON]]

It streams the flights, kills its own driver after some checkpoints, starts it again with another number of shards and a
fresh Spark checkpoint, and compares both tasks with pandas. A table shows what was killed, replayed and compared. It exits 0
only if nothing was lost or counted twice.

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
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc

from examples import flights
from monoids import Count, Struct, Sum
from persistent_state import (
    Application,
    FileSource,
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
FILES_PER_BATCH = 3
KILL_AT = 0.4
"""The share of the messages after which the driver is killed."""
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


def application(place: Place, shards: int) -> Application:
    app = Application(
        NAME,
        store=place.store,
        storage_options=place.options,
        checkpoint_interval="1 day",
        allowed_delay="6 hours",
        shards=shards,
    )
    # One source object for both tasks: it is read once.
    departures = FileSource(str(place.folder / "stream"), timestamp="time_hour", max_files_per_batch=FILES_PER_BATCH)
    return app.add(FlightsPerRoute(), departures).add(DelayPerOrigin(), departures)


def drive(place: Place, shards: int) -> None:
    """Run the application to the end of the stream, and print its progress as lines of JSON. This process gets killed."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .appName(NAME)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )

    def report(progress: Any) -> None:
        print(json.dumps(asdict(progress)), flush=True)

    application(place, shards).run(spark, drain=True, on_progress=report)


TASKS = ("FlightsPerRoute", "DelayPerOrigin")


def nothing_yet() -> dict[str, int]:
    return dict.fromkeys(TASKS, 0)


@dataclass
class Drive:
    """What a driver did: its messages and the replayed ones by task, its newest clocks, and how it ended."""

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


def watch(place: Place, shards: int, total: int, kill_at: float | None) -> Drive:
    """Run a driver in a process of its own and show its progress; kill it after a share of the messages."""
    command = [sys.executable, "-m", "examples.exactly_once", "--drive", str(shards)]
    command += ["--folder", str(place.folder), "--store", place.store]
    # Not in its arguments, which everyone on the machine can read.
    environment = {**os.environ, OPTIONS: json.dumps(place.options)}
    with (
        closing(LiveLine(sys.stdout)) as live,
        (place.folder / "driver.log").open("ab") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment) as process,
    ):
        seen = Drive()
        live.show("  Spark starts")
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith(b"{"):
                continue
            seen.add(json.loads(line))
            live.show(seen.line(total), seen.done / total)
            is_due = kill_at is not None and seen.done >= total * kill_at
            if is_due and seen.clock != BEGINNING and not seen.killed:
                os.kill(process.pid, signal.SIGKILL)
                seen.killed = True
        seen.status = process.wait()
    return seen


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


STORY = (
    ("killed", "driver 1 after messages"),
    ("", "at global clock"),
    ("replayed", "by driver 2 from clock"),
    ("", "messages"),
    ("compared", "keys"),
    ("", "messages counted"),
    ("", "messages by pandas"),
    ("", "lost"),
    ("", "counted twice"),
    ("", "wrong keys"),
)


def story(first: Drive, restarted_at: int | None, second: Drive, compared: Mapping[str, Compared]) -> Iterator[str]:
    """A table of what was killed, what was replayed and what was compared, with a column for each task."""

    def cells(task: str) -> list[str]:
        counts = [f"{count:,}" for count in asdict(compared[task]).values()]
        killed, replayed = f"{first.messages[task]:,}", f"{second.replayed[task]:,}"
        return [killed, show(first.clock), show(restarted_at), replayed, *counts]

    rows = [(*what, *row) for what, *row in zip(STORY, *map(cells, TASKS), strict=True)]
    return formatting.table(("", "", *TASKS), rows, right={2, 3})


def last_words(place: Place) -> str:
    """What the last driver has said in the end."""
    lines = (place.folder / "driver.log").read_text(errors="replace").splitlines()
    return lines[-1].rstrip(".") if lines else "nothing"


def failures(second: Drive, verdict: Verdict, total: int) -> Iterator[str]:
    """Why the demo did not show what it is to show, a sentence each."""
    if not all(second.replayed.values()):
        yield "no message was replayed"
    if verdict.wrong_keys or verdict.lost or verdict.twice or verdict.messages != total:
        yield f"{verdict.wrong_keys} keys differ from pandas"


def demo(place: Place, as_json: bool, most: int) -> int:
    require_java()
    print(f"Writing {most:,} flights in files, shuffled within the allowed delay of 6 hours.", flush=True)
    table = flights.write_stream(place.folder / "stream", most=most)
    total = table.num_rows
    print(f"Driver 1 starts with 2 shards; it will be killed after {KILL_AT:.0%} of the messages.", flush=True)
    first = watch(place, 2, total, KILL_AT)
    if not first.killed:
        print(f"FAILED: the driver ended before it could be killed, and said: {last_words(place)}.", file=sys.stderr)
        return 1
    restarted_at = global_clock(place)
    print("Driver 1 was killed with SIGKILL. Driver 2 starts with 3 shards and a fresh")
    print(f"Spark checkpoint, and reads the messages from clock {show(restarted_at)} on.", flush=True)
    second = watch(place, 3, from_clock(table, restarted_at), None)
    if second.status != 0:
        print(f"FAILED: the second driver did not come to the end, and said: {last_words(place)}.", file=sys.stderr)
        return 1
    compared = check(place, table)
    verdict = verdict_of(compared)
    print("", *story(first, restarted_at, second, compared), "", sep="\n", flush=True)
    wrong = list(failures(second, verdict, total))
    if restarted_at is None:
        wrong.append("there was no checkpoint to restart at")
    for sentence in wrong:
        print(f"FAILED: {sentence}.", file=sys.stderr)
    if as_json:
        figures = {
            **asdict(verdict),
            "restarted_at": restarted_at,
            "replayed": second.replayed,
            "killed": {"messages": first.messages, "clock": first.clock},
            "tasks": {task: asdict(each) for task, each in compared.items()},
        }
        print(json.dumps(figures))
    print(f"exactly once: {verdict.messages} messages, {verdict.lost} lost, {verdict.twice} counted twice", flush=True)
    return 1 if wrong else 0


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
    parser.add_argument("--drive", type=int, metavar="SHARDS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive:
        drive(Place(arguments.folder, arguments.store, arguments.storage_options), arguments.drive)
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
