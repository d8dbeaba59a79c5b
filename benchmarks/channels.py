"""The rows a second that a part reads, judges and lifts, by the number of channels in a column of the rows.

    python -m benchmarks.channels [--channels N ...] [--rows N] [--json FILE]

No Spark is used: chunks as of a FileSource, and Arrow batches as of a DataFrame with positions, go through the functions that a
worker calls. "max_jump" is a FileSource's with that limit. Every channel has come already, and none is late or jumps.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.contenders import Sum
from benchmarks.measure import write_json
from benchmarks.plans import plan_of
from benchmarks.streams import SCHEMA, START
from persistent_state.batch.lift import Lifted, Read, lift_chunk
from persistent_state.batch.packets import Basis
from persistent_state.batch.plan import FlowPlan
from persistent_state.engine.read.dataframe_source import chunks_of
from persistent_state.event_time.channels import Channel
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.positions import Position
from persistent_state.protocol import commits, takeover
from persistent_state.sources import Chunk
from persistent_state.sources.base import Reach
from persistent_state.store.files import open_files
from persistent_state.store.log import Log

SECOND = 1_000_000
BATCH = 10_000
"""Rows of an Arrow batch, as Spark cuts them."""

WIDE = SCHEMA.append(pa.field("device", pa.string())).append(pa.field("at", pa.int64()))


def planned(channels: int, jump: int | None) -> tuple[FlowPlan, Basis]:
    """A task whose channels have all come, and its next micro-batch."""
    files = open_files(f"memory://channels-{channels}-{jump}")
    flow = FlowPlan((plan_of("channels", files, Sum(), WIDE, Settings(SECOND, jump=jump), 2, channel="device"),))
    entry = takeover.take_over(Log(files, "channels"), [flow], interval=SECOND, shards=2, writer="benchmark", now=START)
    names = [f"device-{number}" for number in range(channels)]
    basis = commits.plan_batch(entry, flow, Reach({}), START)
    known = {name: Channel(START, START) for name in names}
    return flow, replace(basis, channels=known, positions={name: Position(0, (), ((0, START),)) for name in names})


def batches(channels: int, rows: int) -> list[pa.RecordBatch]:
    """Rows of devices in turn, a micro-second after each other."""
    numbers = np.arange(rows)
    names = pa.array([f"device-{number}" for number in range(channels)])
    columns = [
        pa.array(START + numbers, SCHEMA.field("ts").type),
        pa.array(numbers % 100_000),
        pa.array(np.ones(rows, np.int64)),
        names.take(pa.array(np.random.default_rng(1).permutation(numbers) % channels)),
        pa.array(numbers),
    ]
    made: list[pa.RecordBatch] = pa.Table.from_arrays(columns, schema=WIDE).to_batches(max_chunksize=BATCH)
    return made


def seconds(flow: FlowPlan, basis: Basis, chunks: Callable[[], Iterator[Chunk]]) -> float:
    """The least time of three that it takes to lift chunks."""
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        read, lifted = Read(), Lifted()
        for chunk in chunks():
            lift_chunk(flow, basis, chunk, read, [lifted])
        taken.append(time.perf_counter() - began)
        assert not read.late
        assert not lifted.sides
    return min(taken)


def speeds(channels: int, rows: int) -> dict[str, float]:
    """Rows a second of each way to read the same rows."""
    some = batches(channels, rows)
    whole = pa.Table.from_batches(some).combine_chunks().to_batches(max_chunksize=200_000)
    offsets = np.cumsum([0, *(len(batch) for batch in whole)]).tolist()

    def of_files() -> Iterator[Chunk]:
        return (Chunk("events", first, batch) for first, batch in zip(offsets, whole, strict=False))

    flow, basis = planned(channels, None)
    jumping, from_there = planned(channels, 3600 * SECOND)
    return {
        "FileSource": rows / seconds(flow, basis, of_files),
        "max_jump": rows / seconds(jumping, from_there, of_files),
        "DataFrame": rows / seconds(flow, basis, lambda: chunks_of(some, flow, "device", "at")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, nargs="+", default=[10, 1_000, 10_000])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = []
    for channels in arguments.channels:
        found = speeds(channels, arguments.rows)
        results.append({"channels": channels, **found})
        print(
            f"{channels:>8,} channels",
            *(f"{name} {speed / 1e6:8.3f} M rows/s" for name, speed in found.items()),
            flush=True,
        )
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
