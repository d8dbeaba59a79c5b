"""A driver without a JVM: it drives the demo's tasks, or a graph of tasks, by a server of Spark Connect.

    python -m tests.spark.connect_driver FOLDER URL SHARDS [--continuous] [--graph | --fail]

FOLDER/stream has the flights, or FOLDER/in the messages of `pipeline`, and FOLDER/store the state. It prints each progress as a
line of JSON, with the process that was told, and ends when everything is read and closed, or with --continuous when it is asked
to stop. The graph has an output of each kind, which write to FOLDER/values, FOLDER/running, FOLDER/rows and FOLDER/out.db. With
--fail a task raises.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from examples.exactly_once import FlightsPerRoute, Place, application
from persistent_state import (
    Application,
    FileSource,
    Message,
    ParquetSink,
    PersistentState,
    RunningValues,
    SqlSink,
    ValuesAtClock,
)
from tests import page_code
from tests.spark import pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from persistent_state.engine import Progress


def session(url: str) -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(url).getOrCreate()  # type: ignore[attr-defined, no-any-return]


def graph(folder: Path, shards: int) -> Application:
    def write(name: str, number: int, values: DataFrame) -> None:
        rows = [[os.getpid(), number, *row] for row in values.collect()]
        with (folder / name).open("a") as file:
            file.write("".join(json.dumps(row, default=str) + "\n" for row in rows))

    outputs: dict[str, Any] = {
        "PerRegion": ValuesAtClock(lambda values, clock: write("values", clock, values), name="values"),
        "Revenue": SqlSink(str(folder / "out.db"), "revenue"),
        "Rare": RunningValues(lambda values, batch: write("running", batch, values)),
        "Watch": ParquetSink(str(folder / "rows")),
    }
    return pipeline.application(folder, shards, outputs=outputs)


class Failing(FlightsPerRoute):
    """A task of this program, whose class is sent to the server, that raises there."""

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        raise KeyError("no such thing")


def failing(folder: Path, shards: int) -> Application:
    source = FileSource(str(folder / "stream"), timestamp="time_hour")
    return Application("failing", str(folder / "store"), shards=shards).add(Failing(), source)


def main() -> None:
    folder, url, shards = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

    def tell(progress: Progress) -> None:
        print(json.dumps({**asdict(progress), "pid": os.getpid()}), flush=True)

    if "--graph" in sys.argv:
        app = graph(folder, shards)
    elif "--fail" in sys.argv:
        app = failing(folder, shards)
    else:
        app = application(Place(folder, str(folder / "store"), {}), shards, files_per_batch=3)
    if "--continuous" in sys.argv:
        app.start(session(url), on_progress=tell).await_termination()
    else:
        # As docs/spark-connect.md says it.
        page = page_code.text_of("docs/spark-connect.md").replace("sc://spark.example.com:15002", url)
        page_code.run(page, {"app": SimpleNamespace(run=partial(app.run, on_progress=tell))})
    assert not {name for name in ("py4j", "py4j.java_gateway") if sys.modules.get(name)}


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    # The client's threads may not end.
    os._exit(0)
