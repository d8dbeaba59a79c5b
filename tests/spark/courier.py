"""A driver whose tasks give values at clocks and emitted rows to Kafka, and which is killed at a step of that.

    python -m tests.spark.courier FOLDER --servers 127.0.0.1:9092 [--partitions 2] [--die STEP [--nth 2]] [--drain]

It reads FOLDER/stream to its end, delivers what there is, and ends with exit code 0. The nth time that it or one of its workers
comes to the step the driver is ended by SIGKILL. Its steps are:

    begin, begun   around the record that a clock is written from now on
    put            before rows are sent by a worker
    commit, committed   around the end of a worker's transaction
    given, record  when the sink has all of a clock, and before the log says so
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from persistent_state import Application, FileSource, KafkaSink, OrderedTask
from persistent_state.kafka import sink as kafka
from persistent_state.kafka.ledger import Bookkeeping
from persistent_state.kafka.transactions import ClockWriter, OpenClock
from persistent_state.protocol import deliver
from tests.spark.sessions import new_session
from tests.spark.teller import Totals

NAME, TOPIC, EMITTED = "told", "totals", "marks"
SECRET = "hunter-22"
"""An option of the sink, which no file may have."""


@dataclass(frozen=True)
class Deadly:
    """By files, since workers are many: who makes the nth kills the driver."""

    folder: Path
    driver: int
    dies_at: str | None
    nth: int

    def come_to(self, step: str) -> None:
        if step != self.dies_at:
            return
        for number in range(1, self.nth + 1):
            with suppress(FileExistsError), open(self.folder / f"step.{self.driver}-{number}", "x"):
                if number == self.nth:
                    os.kill(self.driver, signal.SIGKILL)
                return


@dataclass(frozen=True)
class WatchedWriter(ClockWriter):
    deadly: Any = None

    def begin(self, clock: int, parts: int, known: Bookkeeping) -> OpenClock | None:
        self.deadly.come_to("begin")
        begun = super().begin(clock, parts, known)
        self.deadly.come_to("begun")
        return begun

    def _produce_rows(self, *arguments: Any) -> bool:
        self.deadly.come_to("put")
        return super()._produce_rows(*arguments)

    @contextmanager
    def _transaction(self, producer: Any, is_kept: bool = True, less: str = "") -> Iterator[Any]:
        is_watched = is_kept and os.getpid() != self.deadly.driver
        with super()._transaction(producer, is_kept, less) as is_half_over:
            yield is_half_over
            if is_watched:
                self.deadly.come_to("commit")
        if is_watched:
            self.deadly.come_to("committed")


class Marks(OrderedTask):
    """Emits a row for some messages, with how many their key has had by then."""

    key = "key"
    state = pa.int64()
    emits = pa.schema([("nth", pa.int64()), ("amount", pa.int64())])

    def process(self, state: Any, message: Any, context: Any) -> Any:
        nth = (state or 0) + 1
        if is_marked(message["amount"]):
            context.emit(nth=nth, amount=message["amount"])
        return nth


def is_marked(amount: int) -> bool:
    return amount % 3 == 0


class WatchedSink(KafkaSink):
    deadly: Any = None

    def write_values(self, values: Any, clock: int) -> None:
        super().write_values(values, clock)
        self.deadly.come_to("given")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--die")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--drain", action="store_true")
    told = parser.parse_args()
    deadly = Deadly(told.folder, os.getpid(), told.die, told.nth)
    WatchedSink.deadly = deadly
    record = deliver.record

    def writer(*arguments: Any) -> ClockWriter:
        return WatchedWriter(*arguments, deadly)

    def watched_record(*arguments: Any) -> Any:
        deadly.come_to("record")
        return record(*arguments)

    setattr(kafka, "ClockWriter", writer)  # noqa: B010
    setattr(deliver, "record", watched_record)  # noqa: B010
    options = {"client.id": SECRET}
    sinks = [
        WatchedSink(topic, told.servers, options=options, partitions=told.partitions, rows_per_transaction=2)
        for topic in (TOPIC, EMITTED)
    ]
    app = Application(NAME, str(told.folder / "store"), checkpoint_interval="10 seconds", shards=2)
    source = FileSource(str(told.folder / "stream"), timestamp="ts", max_files_per_batch=1)
    app.add(Totals(), source, sinks[0]).add(Marks(), source, sinks[1])
    events = told.folder / "events"
    events.mkdir(exist_ok=True)
    logged = {"enabled": "true", "dir": f"file://{events.absolute()}", "compress": "false"}
    session = new_session("courier", settings={f"spark.eventLog.{name}": value for name, value in logged.items()})
    app.run(session, drain=told.drain)


if __name__ == "__main__":
    main()
