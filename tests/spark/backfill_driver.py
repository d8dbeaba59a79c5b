"""A driver whose task has history in files up to a bound, and goes on from a topic of Kafka there.

    python -m tests.spark.backfill_driver FOLDER SERVERS TOPIC BOUND [--to-the-end]

BOUND is in microseconds UTC. It goes on until it is killed, or with --to-the-end reads what there is, closes and ends.
FOLDER/progress gets a line of JSON for each commit: the clock, or null.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow as pa

import monoids
from persistent_state import Application, FileSource, KafkaSource, NonWindowState, PersistentTask
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.kafka.decoders import Json
from persistent_state.run.progress import Progress
from tests.spark.sessions import new_session

NAME = "backfill"
COLUMNS = pa.schema([("k", pa.int64()), ("n", pa.int64())])
TIMED = COLUMNS.append(pa.field("ts", pa.timestamp("us", "UTC")))


class Sums(PersistentTask):
    """The sum of n by k."""

    key = "k"
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


def application(folder: Path, servers: str, topic: str, bound: int) -> Application:
    app = Application(NAME, str(folder / "store"), checkpoint_interval="10 seconds", shards=2)
    history = FileSource(
        folder / "archive", timestamp="ts", schema=TIMED, order_by="name", max_files_per_batch=2, finite=True
    )
    live = KafkaSource(topic, servers, value=Json(COLUMNS), max_offsets_per_batch=40)
    return app.add(Sums(), {"history": history.below(bound), "": live.from_(bound)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("bound", type=int)
    parser.add_argument("--to-the-end", action="store_true")
    given = parser.parse_args()
    app, spark = application(given.folder, given.servers, given.topic, given.bound), new_session(NAME)

    def note(told: Progress) -> None:
        with (given.folder / "progress").open("a") as file:
            clock = None if told.global_clock == BEGINNING else told.global_clock
            file.write(json.dumps({"clock": clock, "reasons": dict(told.reasons)}) + "\n")

    if given.to_the_end:
        app.run(spark, drain=True, on_progress=note)
    else:
        app.start(spark, on_progress=note).await_termination()


if __name__ == "__main__":
    main()
