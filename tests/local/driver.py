"""A driver on this machine alone, for tests that run it in a process of its own, or kill it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from persistent_state import Local, ParquetSink, RunningValues
from tests.spark import pipeline, stream


def of_stream(folder: Path, shards: int = 2, running: bool = False, **more: Any) -> Any:
    """Three tasks over the stream in a folder, which share a source."""
    app = stream.application(folder, shards=shards, interval="10 seconds", tasks=(), **more)
    source = stream.FileSource(folder / "stream", timestamp="ts", schema=stream.SCHEMA, max_files_per_batch=2)
    for task in stream.THREE:
        sinks: list[Any] = [ParquetSink(folder / "out" / task.task_name)]
        app.add(task, source, sink=[*sinks, RunningValues(nothing, as_="arrow")] if running else sinks)
    return app


def of_running(folder: Path, shards: int = 2) -> Any:
    """The tasks of `of_stream`, of which each has running values: their micro-batches are gathered between commits."""
    return of_stream(folder, shards, running=True)


def of_graph(folder: Path, shards: int = 2) -> Any:
    """A graph with derived and ordered tasks, of which two have sinks."""
    sinks = {name: ParquetSink(folder / "out" / name) for name in ("PerRegion", "Watch")}
    return pipeline.application(folder, shards, outputs=sinks)


def nothing(values: Any, batch: int) -> None:
    """Take running values."""


def main(kind: str, folder: str, how: str, workers: str = "2", shards: str = "2") -> None:
    app = {"stream": of_stream, "running": of_running, "graph": of_graph}[kind](Path(folder), int(shards))
    if how == "start":
        print("starts", flush=True)
        app.start(Local(int(workers))).await_termination()
    else:
        app.run(Local(int(workers)), drain=how == "drain")
    assert "pyspark" not in sys.modules
    assert "py4j" not in sys.modules


if __name__ == "__main__":
    main(*sys.argv[1:])
