"""Smallest runs of the benchmarks: they measure nothing, but take the way that a large run takes."""

from __future__ import annotations

import json
import math
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.spark.conftest import Launch

WITHOUT_SPARK = {
    "backfill": "--repetitions 1",
    "channels": "--channels 10 --rows 10000",
    "cost": "--keys 1000 --changed 100 --checkpoints 3",
    "folders": "--files 100 --new 10",
    "lookups": "--keys 10000 --repetitions 1",
    "monoids": "--values 10000 --segments 1000 --sketches 100 --repetitions 1",
    "order": "--keys 10",
    "retention": "--keys 1000 --kept 20 --shares 0.1 --repetitions 2",
    "scale": "--size 3 --levels 2 --repetitions 1",
    "serving": "--keys 1000 --seconds 1",
    "small_files": "--batches 60 --tasks 1",
    "waiting": "--rows 2000 --keys 100",
}
"""By name, the arguments of a benchmark."""

IN_A_JVM = {
    "deliveries": "--keys 100 --files 6 --repetitions 0",
    "empty_run": "--repetitions 1",
    "graph": "--keys 1000 --changed 100 --clocks 5 --stages",
    "growth": "--keys 1000 --touched 100 --emit yes --repetitions 0",
    "latency": "--files 5 --rows 10 --every 0.2 --repetitions 0",
    "nexmark": "--queries q7 --events 3000 --rate 20 --repetitions 0",
    "ordered": "--keys 100 --rows 6000 --repetitions 0",
    "outputs": "--keys 1000 --changed 100 --clocks 2",
    "sharing": "--source files --tasks 1 2 --own --keys 100 --rows 3000 --repetitions 0",
    "start": "--repetitions 1",
    "throughput": "--source files dataframe messages 'Local(1)' 'Local(2)' 'in process' --peers native rocksdb"
    " applyInPandasWithState transformWithState scan 'scan to Python and back' pyarrow 'pyarrow, grouped' 'DuckDB, grouped'"
    " combine 'combine and shuffle' --emit yes --keys 100 --rows 4000 --repetitions 0",
    "versions": f"--rows 1000 --keys 100 --batches 3 --repetitions 1 --only {version('pyspark')}",
    "windows": "--source files 'Local(2)' --keys 100 --rows 4000 --emit yes --repetitions 0",
}
"""What can run in a JVM that is there already."""

WITH_OWN_JVMS = {"recovery": "--keys 1000 --repetitions 1"}

WITH_A_BROKER = {
    "graph": "--keys --stages 1 --messages 5 --every 0.3 --repetitions 1",
    "kafka": "--payload json --keys 100 --rows 2000 --emit yes --repetitions 0",
    "topic_latency": "--what count --contenders echo local --rate 50 --warm 3 --seconds 2 --repetitions 1",
    "sharing": "--source topic --tasks 2 --keys 100 --rows 2000 --repetitions 0",
}
"""What starts a broker, and JVMs of its own."""

HELPERS = {"contenders", "measure", "plans", "streams", "nexmark.events", "nexmark.queries"}
"""Modules that measure nothing by themselves."""


def figures_of(launch: Launch, folder: Path, name: str, arguments: str, **env: str) -> list[float]:
    """Run a benchmark to its end, and return all figures that it has written."""
    given = ["-m", f"benchmarks.{name}", *shlex.split(arguments), "--json", str(folder / "json")]
    process = launch(*given, folder=folder, ROWS_PER_FILE="1000", **env)
    try:
        status: int | str = process.wait(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        status = "it did not end"
    assert status == 0, f"{status}: {(folder / 'out').read_text()} {(folder / 'log').read_text()[-4000:]}"
    assert any(map(str.isdigit, (folder / "out").read_text().rstrip().splitlines()[-1]))
    return [*numbers_in(json.loads((folder / "json").read_text()))]


def numbers_in(found: Any) -> Iterator[float]:
    """Yield all numbers of what a benchmark has written as JSON."""
    if isinstance(found, Mapping | list):
        for each in found.values() if isinstance(found, Mapping) else found:
            yield from numbers_in(each)
    elif isinstance(found, int | float):
        yield found


def are_figures(found: list[float]) -> bool:
    return any(found) and all(map(math.isfinite, found))
