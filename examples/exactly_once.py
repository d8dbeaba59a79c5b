"""The demo: 336,776 real flights through two tasks, the driver killed with SIGKILL on the way, every key checked.

    python -m examples.exactly_once [--folder DIR] [--json] [--flights N] [--store URL [--storage-options JSON]]

It streams the flights, kills its own driver after some checkpoints, starts it again with another number of shards and a
fresh Spark checkpoint, and compares both tasks with pandas. It exits 0 only if nothing was lost or counted twice.

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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

from examples import flights
from monoids import Count, Struct, Sum
from persistent_state import Application, FileSource, NonWindowState, PersistentState, PersistentTask, read_state
from persistent_state.engine.java import require_java
from persistent_state.errors import StateError
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
    """Run the application to the end of the stream, telling its progress as lines of JSON. This process gets killed."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .appName(NAME)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )

    def tell(progress: Any) -> None:
        print(json.dumps(asdict(progress)), flush=True)

    application(place, shards).run(spark, drain=True, on_progress=tell)


@dataclass
class Drive:
    """What a driver told while it ran."""

    messages: dict[str, int] = field(default_factory=dict)
    replayed: dict[str, int] = field(default_factory=dict)
    clock: int | None = None
    killed: bool = False
    status: int | None = None


def watch(place: Place, shards: int, total: int, kill_at: float | None) -> Drive:
    """Run a driver in a process of its own and show its progress; kill it after a share of the messages."""
    command = [sys.executable, "-m", "examples.exactly_once", "--drive", str(shards)]
    command += ["--folder", str(place.folder), "--store", place.store]
    # Not in its arguments, which everyone on the machine can read.
    environment = {**os.environ, OPTIONS: json.dumps(place.options)}
    with (
        (place.folder / "driver.log").open("ab") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment) as process,
    ):
        seen = Drive()
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith(b"{"):
                continue
            told = json.loads(line)
            task = told["task"]
            seen.messages[task] = seen.messages.get(task, 0) + told["messages"]
            seen.replayed[task] = seen.replayed.get(task, 0) + told["replayed"]
            seen.clock = told["global_clock"]
            print(
                f"  {task:<16} {seen.messages[task]:>7,} messages  upstream min {show(told['upstream_min'])}  "
                f"checkpoint {show(told['clock'])}  global {show(told['global_clock'])}",
                flush=True,
            )
            reached = min(seen.messages.values()) >= total * (kill_at or 2) and len(seen.messages) == 2
            if reached and told["global_clock"] > -(2**63) and not seen.killed:
                os.kill(process.pid, signal.SIGKILL)
                seen.killed = True
        seen.status = process.wait()
    return seen


def show(clock: int | None) -> str:
    """A clock for people; before the first there is none."""
    if clock is None or clock == -(2**63):
        return f"{'none yet':<16}"
    return (datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=clock)).strftime("%Y-%m-%d %H:%M")


@dataclass(frozen=True)
class Verdict:
    """How the states differ from pandas: messages lost and counted twice, and keys that are wrong in any way."""

    messages: int
    lost: int
    twice: int
    wrong_keys: int


def check(place: Place, table: pa.Table) -> Verdict:
    """Compare every key of both tasks with a plain computation over the same flights."""
    wanted = flights.expected(table)
    routes = read_state(place.store, NAME, FlightsPerRoute(), storage_options=place.options).to_pylist()
    delays = read_state(place.store, NAME, DelayPerOrigin(), storage_options=place.options).to_pylist()
    found = {(row["carrier"], row["dest"]): row["value"] for row in routes}
    found_delays = {row["origin"]: (row["value"]["delays"], row["value"]["minutes"]) for row in delays}
    differences = [found.get(key, 0) - wanted.flights.get(key, 0) for key in found.keys() | wanted.flights.keys()]
    wrong = sum(difference != 0 for difference in differences)
    wrong += sum(found_delays.get(key) != wanted.delays.get(key) for key in found_delays.keys() | wanted.delays.keys())
    return Verdict(
        messages=sum(found.values()),
        lost=-sum(difference for difference in differences if difference < 0),
        twice=sum(difference for difference in differences if difference > 0),
        wrong_keys=wrong,
    )


def last_words(place: Place) -> str:
    """What the last driver has said in the end."""
    lines = (place.folder / "driver.log").read_text(errors="replace").splitlines()
    return lines[-1].rstrip(".") if lines else "nothing"


def failures(second: Drive, verdict: Verdict, total: int) -> Iterator[str]:
    """Why the demo did not show what it is to show, a sentence each."""
    if not all(second.replayed.values()) or not second.replayed:
        yield "no message was replayed"
    if verdict.wrong_keys or verdict.lost or verdict.twice or verdict.messages != total:
        yield f"{verdict.wrong_keys} keys differ from pandas"


def demo(place: Place, as_json: bool, most: int) -> int:
    require_java()
    print(f"Writing the stream: {most:,} flights in files, shuffled within the allowed delay of 6 hours.", flush=True)
    table = flights.write_stream(place.folder / "stream", most=most)
    total = table.num_rows
    print(f"Starting a driver with 2 shards; it will be killed after {KILL_AT:.0%} of the messages.", flush=True)
    first = watch(place, 2, total, KILL_AT)
    if not first.killed:
        print(f"FAILED: the driver ended before it could be killed, and said: {last_words(place)}.", file=sys.stderr)
        return 1
    print("Killed with SIGKILL. Starting another with 3 shards and a fresh Spark checkpoint.", flush=True)
    restarted_at = global_clock(place)
    second = watch(place, 3, total, None)
    replayed = " and ".join(f"{count:,} messages to {task}" for task, count in sorted(second.replayed.items()))
    print(f"Restarted at clock {show(restarted_at)} and replayed {replayed or 'nothing'}.", flush=True)
    if second.status != 0:
        print(f"FAILED: the second driver did not come to the end, and said: {last_words(place)}.", file=sys.stderr)
        return 1
    verdict = check(place, table)
    wrong = list(failures(second, verdict, total))
    if restarted_at is None:
        wrong.append("there was no checkpoint to restart at")
    for sentence in wrong:
        print(f"FAILED: {sentence}.", file=sys.stderr)
    if as_json:
        print(json.dumps({**asdict(verdict), "restarted_at": restarted_at, "replayed": second.replayed}))
    print(f"exactly once: {verdict.messages} messages, {verdict.lost} lost, {verdict.twice} counted twice", flush=True)
    return 1 if wrong else 0


def global_clock(place: Place) -> int | None:
    """The clock that the next start will restore."""
    from persistent_state import clocks

    try:
        retained = clocks(place.store, NAME, storage_options=place.options)
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
