"""Averages over sliding windows, of the arrival delays of real flights; the counterpart of Gearpump's WindowAverage.

    python -m examples.window_average [--folder DIR] [--json] [--flights N]

For each airport of New York City it keeps the average delay of the flights that were to leave within three hours, again
every hour. The flights come up to six hours out of order. A window is given once, when a checkpoint clock is at or above
its end: what comes for it after that is late, so its average is final.

It prints the windows around the worst one, and exits 0 only if every window that has ended is there once, with the average
that plain Python makes of its flights.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import pyarrow as pa

from examples import flights
from examples.driven import Key, differences, folder_for, local_spark, windows_in
from examples.flights import HOUR_US
from monoids import Average, Averaged
from persistent_state import Application, FileSource, ParquetSink, PersistentTask, SlidingWindow, WindowState
from persistent_state.formatting import show_clock, table


class AverageDelay(PersistentTask):
    key, value = "origin", "arr_delay"  # null, where a flight did not arrive, is no update

    def persistent_state(self) -> WindowState[Averaged]:
        return WindowState(Average(pa.int64()), SlidingWindow("3 hours", "1 hour"))


def application(folder: Path) -> Application:
    app = Application(
        "window-average", store=str(folder / "store"), checkpoint_interval="1 hour", allowed_delay="6 hours"
    )
    departures = FileSource(folder / "stream", timestamp="time_hour", max_files_per_batch=3)
    return app.add(AverageDelay(), departures, sink=ParquetSink(folder / "averages"))


# That was the application. What follows checks its table, and prints some of it.

AROUND = 6
"""This number of windows before the worst one is printed, and this number after it."""


def plain_averages(departures: pa.Table, clock: int) -> dict[Key, float]:
    """Those of the windows that have ended at a clock."""
    origins, delays = (departures[name].to_pylist() for name in ("origin", "arr_delay"))
    hours = departures["time_hour"].cast(pa.int64()).to_pylist()  # when they were to leave, in whole hours
    windows = defaultdict[Key, list[int]](list)
    for origin, hour, delay in zip(origins, hours, delays, strict=True):
        for end in (hour + HOUR_US, hour + 2 * HOUR_US, hour + 3 * HOUR_US):
            if delay is not None and end <= clock:
                windows[origin, end - 3 * HOUR_US, end].append(delay)
    return {window: sum(values) / len(values) for window, values in windows.items()}


def check(folder: Path, departures: pa.Table) -> tuple[dict[Key, float], list[str]]:
    """The averages as they must be, and what is wrong with those in the table, a sentence each."""
    averages = ParquetSink(folder / "averages")
    clock = averages.clocks()[-1]
    wanted = plain_averages(departures, clock)
    problems = differences(windows_in(averages), wanted)
    if clock <= max(departures["time_hour"].cast(pa.int64()).to_pylist()):
        problems.append("the last clock is not above all flights")
    return wanted, problems


def show(averages: Mapping[Key, float]) -> None:
    """Print the windows around the one in which all airports together were worst."""
    origins = sorted({origin for origin, _, _ in averages})
    windows = sorted({(start, end) for _, start, end in averages})
    rows = [[averages.get((origin, *window)) for origin in origins] for window in windows]
    worst = max(range(len(rows)), key=lambda place: mean(average or 0 for average in rows[place]))
    shown = slice(max(0, worst - AROUND), worst + AROUND + 1)
    cells = [
        (show_clock(start), show_clock(end), *("" if average is None else f"{average:.1f}" for average in row))
        for (start, end), row in zip(windows[shown], rows[shown], strict=True)
    ]
    print(*table(("from", "to", *(f"{origin}, minutes" for origin in origins)), cells, range(2, 9)), sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keep stream, store and table here (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print the figures as a line of JSON before the last line")
    parser.add_argument(
        "--flights", type=int, default=flights.FLIGHTS, metavar="N", help="only the first N (default: all)"
    )
    arguments = parser.parse_args()
    with folder_for("window-average", arguments.folder) as folder:
        departures = flights.write_stream(folder / "stream", most=arguments.flights)
        print(f"{departures.num_rows:,} flights; Spark takes seconds to start.", flush=True)
        application(folder).run(local_spark("window-average"), drain=True)
        averages, problems = check(folder, departures)
    for problem in problems:
        print(f"FAILED: {problem}.", file=sys.stderr)
    if not problems:
        show(averages)
    if arguments.json:
        print(json.dumps({"flights": departures.num_rows, "windows": len(averages), "right": not problems}))
    if not problems:
        print(f"{len(averages):,} windows of 3 hours, each given once, with the average that plain Python has")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
