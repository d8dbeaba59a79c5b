"""The kernels of monoids beside the calls of numpy that do the same, and merges of HyperLogLog beside a bare loop.

    python -m benchmarks.monoids [--values N] [--segments N] [--sketches N] [--repetitions N] [--json FILE]

Reduced are so many values into so many segments, given by sorted offsets; of one that has parts, beside the calls that make the
parts. Sketches are merged from bytes to bytes. Repetitions take turns; told are medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa

import monoids
from benchmarks.measure import write_json
from monoids import Monoid

Call = Callable[[], object]


def kernels(values: int, segments: int) -> dict[str, tuple[Call, Call]]:
    """By name, a monoid's reduction of a column and what numpy needs for the same."""
    random = np.random.default_rng(1)
    starts = np.append(0, np.sort(random.choice(values - 1, segments - 1, replace=False) + 1))
    longs, floats = random.integers(-(2**40), 2**40, values), random.normal(size=values)
    truths = pa.array(longs % 3 > 0)
    ones = np.ones(values, np.int64)
    spread = [ones, floats, np.zeros(values), np.zeros(values), np.zeros(values)]

    def of(monoid: Monoid[Any], *columns: Any) -> Call:
        (column,) = columns if len(columns) == 1 else [_struct(monoid, columns)]
        return lambda: monoid.reduce(column, starts)

    return {
        "Sum of int64": (of(monoids.Sum(), pa.array(longs)), lambda: np.add.reduceat(longs, starts)),
        "Sum of float64": (
            of(monoids.Sum(pa.float64()), pa.array(floats)),
            lambda: np.add.reduceat(floats, starts),
        ),
        "Product of float64": (
            of(monoids.Product(pa.float64()), pa.array(floats)),
            lambda: np.multiply.reduceat(floats, starts),
        ),
        "Min of int64": (of(monoids.Min(), pa.array(longs)), lambda: np.minimum.reduceat(longs, starts)),
        "Max of float64": (
            of(monoids.Max(pa.float64()), pa.array(floats)),
            lambda: np.maximum.reduceat(floats, starts),
        ),
        "BitOr": (of(monoids.BitOr(), pa.array(longs)), lambda: np.bitwise_or.reduceat(longs, starts)),
        "Any": (
            of(monoids.Any(), truths),
            lambda: np.logical_or.reduceat(truths.to_numpy(zero_copy_only=False), starts),
        ),
        "Average": (
            of(monoids.Average(), ones, floats),
            lambda: (np.add.reduceat(ones, starts), np.add.reduceat(floats, starts)),
        ),
        "Struct of count, sum, min, max": (
            of(
                monoids.Struct(n=monoids.Count(), sum=monoids.Sum(), min=monoids.Min(), max=monoids.Max()),
                *(ones, longs, longs, longs),
            ),
            lambda: [
                call.reduceat(column, starts)
                for call, column in [(np.add, ones), (np.add, longs), (np.minimum, longs), (np.maximum, longs)]
            ],
        ),
        "Moments": (of(monoids.Moments(), *spread), lambda: central_moments(spread, starts)),
    }


def _struct(monoid: Monoid[Any], columns: Any) -> Any:
    return pa.StructArray.from_arrays([pa.array(column) for column in columns], fields=list(monoid.type))


def central_moments(columns: list[Any], starts: Any) -> list[Any]:
    """Central moments of segments from those of their rows, call by call."""
    n, mean, m2, m3, m4 = columns
    count = np.add.reduceat(n, starts)
    middle = np.add.reduceat(n * mean, starts) / count
    away = mean - np.repeat(middle, np.diff(np.append(starts, len(n))))
    far = away * away
    return [
        count,
        middle,
        np.add.reduceat(m2 + n * far, starts),
        np.add.reduceat(m3 + away * (3 * m2 + n * far), starts),
        np.add.reduceat(m4 + away * (4 * m3) + far * (6 * m2 + n * far), starts),
    ]


def merges(count: int, per_segment: int = 10) -> tuple[Call, Call]:
    """HyperLogLog's reduction of sketches of 1,000 items, and a loop over unions, both from a column to a column."""
    monoid = monoids.HyperLogLog(pa.int64())
    some = []
    for first in range(50):
        sketch = datasketches.hll_sketch(12, datasketches.HLL_8)
        for item in range(1000):
            sketch.update(first * 700 + item)
        some.append(sketch.serialize_compact())
    column = pa.array([some[i % len(some)] for i in range(count)], pa.binary())
    starts = np.arange(0, count, per_segment)

    def bare() -> Any:
        merged = []
        rows = column.to_pylist()
        for start in range(0, count, per_segment):
            union = datasketches.hll_union(12)
            for data in rows[start : start + per_segment]:
                union.update(datasketches.hll_sketch.deserialize(data))
            merged.append(union.get_result(datasketches.HLL_8).serialize_compact())
        return pa.array(merged, pa.binary())

    assert bare().equals(monoid.reduce(column, starts))
    return lambda: monoid.reduce(column, starts), bare


def compare(ours: Call, theirs: Call, repetitions: int) -> tuple[float, float]:
    """Median seconds of both, which take turns; the first turn is not counted."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(repetitions + 1):
        for call, seconds in zip((ours, theirs), taken, strict=True):
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return statistics.median(taken[0][1:]), statistics.median(taken[1][1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--values", type=int, default=10_000_000)
    parser.add_argument("--segments", type=int, default=1_000_000)
    parser.add_argument("--sketches", type=int, default=20_000)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json", type=Path, nargs="?", const=Path("/dev/stdout"), help="to a file, or to the output")
    arguments = parser.parse_args()
    results = []
    print(f"{'':<34}{'ours, ms':>10}{'theirs, ms':>12}{'ratio':>8}")

    def tell(name: str, calls: tuple[Call, Call]) -> None:
        print(f"\rmeasuring {name:<30}", end="", flush=True)
        ours, theirs = compare(*calls, arguments.repetitions)
        results.append({"name": name, "ours": ours, "theirs": theirs, "ratio": ours / theirs})
        print(f"\r{name:<34}{ours * 1e3:>10,.1f}{theirs * 1e3:>12,.1f}{ours / theirs:>8.2f}", flush=True)

    for name, calls in kernels(arguments.values, arguments.segments).items():
        tell(name, calls)
    tell("HyperLogLog", merges(arguments.sketches))
    rate = arguments.sketches / results[-1]["ours"]
    print(f"{rate:,.0f} sketches of HyperLogLog merged a second")
    write_json(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
