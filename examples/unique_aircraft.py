"""Distinct counts by window: how many aircraft flew to each destination on each day, by HyperLogLog.

    python -m examples.unique_aircraft [--folder DIR] [--json] [--flights N]

Who counts distinct aircraft must know those that were counted. Here a sketch does, of about 256 bytes for a destination
and day however many there are, whose standard error is 6.5 percent: while there are few it knows each, and makes none. A
day is one of UTC, and its count is given once, when a checkpoint clock is at or above its end.

It prints one day's estimates beside the exact counts, and exits 0 only if each day of each destination is there once, with
the estimate of a sketch that is shown its aircraft at once, and the errors are no larger than promised.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from examples import flights
from examples.driven import Key, differences, folder_for, local_spark, windows_in
from examples.flights import HOUR_US
from monoids import HyperLogLog
from persistent_state import Application, FileSource, ParquetSink, PersistentTask, TumblingWindow, WindowState
from persistent_state.formatting import show_clock, table

LG_K = 8
SKETCH = HyperLogLog(pa.string(), LG_K)


class UniqueAircraft(PersistentTask):
    key, value = "dest", "tailnum"  # null, where the aircraft is not known, is no update

    def persistent_state(self) -> WindowState[bytes]:
        return WindowState(SKETCH, TumblingWindow("1 day"))


def application(folder: Path) -> Application:
    app = Application(
        "unique-aircraft", store=str(folder / "store"), checkpoint_interval="1 day", allowed_delay="6 hours"
    )
    departures = FileSource(folder / "stream", timestamp="time_hour", max_files_per_batch=3)
    return app.add(UniqueAircraft(), departures, sink=ParquetSink(folder / "aircraft"))


# That was the application. What follows checks its table, and prints some of it.

DAY_US = 24 * HOUR_US
PROMISED = 1.04 / math.sqrt(2**LG_K)
"""The standard error."""

PRINTED = 12
"""This number of destinations is printed."""


def aircraft(departures: pa.Table) -> tuple[dict[Key, int], dict[Key, float]]:
    """How many flew to each destination on each day, and what a sketch says that is shown them at once."""
    days = pc.divide(departures["time_hour"].cast(pa.int64()), DAY_US)
    known = departures.select(["dest", "tailnum"]).append_column("day", days).drop_null()
    groups = known.group_by(["dest", "day"]).aggregate([("tailnum", "distinct")]).combine_chunks()
    keys = [
        (dest, day * DAY_US, (day + 1) * DAY_US)
        for dest, day in zip(groups["dest"].to_pylist(), groups["day"].to_pylist(), strict=True)
    ]
    (distinct,) = groups["tailnum_distinct"].chunks
    sketches, _ = SKETCH.cast(distinct.flatten())
    estimates = SKETCH.present_column(SKETCH.reduce(sketches, np.asarray(distinct.offsets)[:-1]))
    exact = pc.list_value_length(distinct)
    return dict(zip(keys, exact.to_pylist(), strict=True)), dict(zip(keys, estimates.to_pylist(), strict=True))


def check(folder: Path, departures: pa.Table) -> tuple[dict[Key, int], dict[Key, float], list[str]]:
    """The exact counts, the estimates as they must be, and what is wrong with those in the table, a sentence each."""
    exact, estimates = aircraft(departures)
    problems = differences(windows_in(ParquetSink(folder / "aircraft")), estimates)
    if (error := typical_error(exact, estimates)) > PROMISED:
        problems.append(f"the estimates are off by {error:.1%}, and no more than {PROMISED:.1%} was promised")
    return exact, estimates, problems


def typical_error(exact: Mapping[Key, int], estimates: Mapping[Key, float]) -> float:
    """The root of the mean square of the shares by which estimates are off."""
    return math.sqrt(mean((estimates[key] / exact[key] - 1) ** 2 for key in exact))


def show(exact: Mapping[Key, int], estimates: Mapping[Key, float]) -> None:
    """Print the destinations to which most aircraft flew, on the day when most flew."""
    by_day = Counter[int]()
    for (_, start, _), count in exact.items():
        by_day[start] += count
    ((busiest, _),) = by_day.most_common(1)
    shown = sorted((key for key in exact if key[1] == busiest), key=lambda key: (-exact[key], key))[:PRINTED]
    cells = [
        (
            key[0],
            show_clock(busiest),
            f"{exact[key]}",
            f"{estimates[key]:.1f}",
            f"{estimates[key] / exact[key] - 1:+.1%}",
        )
        for key in shown
    ]
    print(*table(("to", "day", "aircraft", "estimate", "error"), cells, right={2, 3, 4}), sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keep stream, store and table here (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print the figures as a line of JSON before the last line")
    parser.add_argument(
        "--flights", type=int, default=flights.FLIGHTS, metavar="N", help="only the first N (default: all)"
    )
    arguments = parser.parse_args()
    with folder_for("unique-aircraft", arguments.folder) as folder:
        departures = flights.write_stream(folder / "stream", most=arguments.flights)
        print(f"{departures.num_rows:,} flights; Spark takes seconds to start.", flush=True)
        application(folder).run(local_spark("unique-aircraft"), drain=True)
        exact, estimates, problems = check(folder, departures)
    error = typical_error(exact, estimates)
    for problem in problems:
        print(f"FAILED: {problem}.", file=sys.stderr)
    if not problems:
        show(exact, estimates)
    if arguments.json:
        figures = {"flights": departures.num_rows, "windows": len(exact), "aircraft": sum(exact.values())}
        print(json.dumps({**figures, "error": error, "promised": PROMISED, "right": not problems}))
    if not problems:
        print(f"{len(exact):,} days of destinations, each given once; off by {error:.1%}, promised are {PROMISED:.1%}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
