"""Where the time goes from `app.run` to the first commit, part by part, and what each setting that a user has saves.

    python -m benchmarks.start [--repetitions N] [--json FILE]

An application reads ten files of a thousand rows, in a process of its own each time, with Spark on two cores. Told are medians
of the wall seconds of each part, and of the processor seconds of Spark's JVM and its Python processes up to the first commit.
The settings take turns. Each is one that a user has:

- `as it comes`: none;
- `archives`: the modules in PySpark's archives are compiled. Without that, each Python process does it by itself;
- `classes`: so, and the JVM maps the classes that an earlier run had loaded;
- `one compiler`: so, and the JVM compiles with its first compiler only, which is for runs of seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import write_json
from persistent_state.engine.spark.archives import compile_archives

ROWS, FILES, SPAN = 1_000, 10, 10_000_000
PARTS = ("imports", "session", "checks", "source", "query", "plan", "rows", "commit")
"""The parts in their order. `source` is Spark's look for data sources and the making of ours, `query` the start of the query,
`plan` the process that asks the source for offsets and Spark's plan, `rows` the workers, the shuffle and the state."""
PROCESSES = {
    "lookup_data_sources": "looks for data sources",
    "create_data_source": "makes the source",
    "plan_data_source_read": "plans the source",
    "python_streaming_source_runner": "asks for offsets",
    "pyspark.worker": "workers",
}


def write(place: Path) -> None:
    (place / "in").mkdir(parents=True)
    for file in range(FILES):
        chance = np.random.default_rng(file)
        stamps = pa.array(file * SPAN + np.sort(chance.integers(0, SPAN, ROWS))).cast(pa.timestamp("us", "UTC"))
        columns = {"ts": stamps, "key": chance.integers(0, 10_000, ROWS), "amount": chance.integers(0, 9, ROWS)}
        pq.write_table(pa.table(columns), place / "in" / f"{file:05d}.parquet")


class Processor:
    """What each process below this one has used so far. It looks often, as some of them end soon."""

    def __init__(self) -> None:
        self._used: dict[int, tuple[str, float]] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> dict[str, float]:
        """Return processor seconds by what the processes do."""
        self._ended.set()
        self._thread.join()
        seconds: dict[str, float] = {}
        for what, used in self._used.values():
            seconds[what] = seconds.get(what, 0.0) + used
        return seconds

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    name, times = " ".join(process.cmdline()), process.cpu_times()
                    found = (told for sign, told in PROCESSES.items() if sign in name)
                    what = "JVM" if "java" in process.name() else next(found, "others")
                    self._used[process.pid] = what, times.user + times.system


def run_once(place: Path) -> dict[str, Any]:
    """Start the application, and return when each part ended, in seconds since this process began."""
    ends: dict[str, float] = {}
    born = psutil.Process().create_time()
    processor = Processor()

    def end(part: str) -> None:
        ends.setdefault(part, time.time() - born)

    def ending(owner: Any, name: str, part: str, before: str | None = None) -> None:
        """Let a part end when a function returns, and the one before it when the function is called."""
        function = getattr(owner, name)

        @wraps(function)
        def noted(*arguments: Any, **options: Any) -> Any:
            if before is not None:
                end(before)
            result = function(*arguments, **options)
            end(part)
            return result

        setattr(owner, name, noted)

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from monoids import Sum
    from persistent_state import Application, FileSource, NonWindowState, PersistentTask
    from persistent_state.engine.read import arrow_source
    from persistent_state.engine.run import commit

    class Totals(PersistentTask):
        key, value = "key", "amount"

        def persistent_state(self) -> NonWindowState[int]:
            return NonWindowState(Sum())

    ending(arrow_source, "load", "source", before="checks")
    ending(DataStreamWriter, "start", "query")
    ending(commit, "answers_of", "rows")
    ending(commit.Commit, "__call__", "commit", before="plan")
    end("imports")
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    end("session")
    used: dict[str, float] = {}

    def committed(progress: object) -> None:
        end("commit")
        used.update(processor.end())

    app = Application("job", str(place / "store"), checkpoint_interval="1 minute", allowed_delay="1 minute", shards=2)
    app.add(Totals(), FileSource(place / "in", timestamp="ts")).run(spark, on_progress=committed, show_progress=False)
    spark.stop()
    begins = [0.0, *(ends[part] for part in PARTS)]
    return {"parts": {part: ends[part] - begins[number] for number, part in enumerate(PARTS)}, "processor": used}


def compiled_home(folder: Path) -> Path:
    """Return a home of Spark like PySpark's own, whose pyspark.zip has compiled modules."""
    import pyspark

    own, home = Path(pyspark.__file__).parent, folder / "home"
    home.mkdir()
    for entry in own.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    shutil.copytree(own / "python/lib", home / "python/lib")
    compile_archives(home)
    return home


def once(place: Path, env: Mapping[str, str]) -> dict[str, Any]:
    """Run a process of its own, in a store of its own."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        (Path(folder) / "in").symlink_to(place / "in")
        command = [sys.executable, "-m", "benchmarks.start", "--once", folder]
        done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        told: dict[str, Any] = json.loads(Path(folder, "told").read_text())
        return told


def medians(told: list[dict[str, Any]], kind: str) -> dict[str, float]:
    names = dict.fromkeys(name for one in told for name in one[kind])
    return {name: statistics.median(one[kind].get(name, 0.0) for one in told) for name in names}


def print_table(found: Mapping[str, Mapping[str, Mapping[str, float]]], kind: str, title: str) -> None:
    rows = dict.fromkeys(name for figures in found.values() for name in figures[kind])
    print(f"{title:>24} " + " ".join(f"{name:>16}" for name in found))
    for row in rows:
        print(f"{row:>24} " + " ".join(f"{figures[kind].get(row, 0.0):>16.2f}" for figures in found.values()))
    print(f"{'sum':>24} " + " ".join(f"{sum(figures[kind].values()):>16.2f}" for figures in found.values()) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.once:
        (told.once / "told").write_text(json.dumps(run_once(told.once)))
        return 0
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        place = Path(folder)
        write(place)
        # By default Spark runs the python3 of the PATH to look for data sources.
        python = {"PYSPARK_PYTHON": sys.executable}
        archives = {**python, "SPARK_HOME": str(compiled_home(place))}
        file = place / "classes.jsa"
        once(place, {**archives, "JDK_JAVA_OPTIONS": f"-XX:ArchiveClassesAtExit={file}"})
        classes = {**archives, "JDK_JAVA_OPTIONS": f"-XX:SharedArchiveFile={file}"}
        ways: dict[str, Mapping[str, str]] = {
            "as it comes": python,
            "archives": archives,
            "classes": classes,
            "one compiler": {**classes, "JDK_JAVA_OPTIONS": f"{classes['JDK_JAVA_OPTIONS']} -XX:TieredStopAtLevel=1"},
        }
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
        for number in range(told.repetitions):
            for name, way in ways.items():
                print(f"{number + 1} of {told.repetitions}: {name}", file=sys.stderr)
                runs[name].append(once(place, way))
    found = {name: {kind: medians(some, kind) for kind in ("parts", "processor")} for name, some in runs.items()}
    print_table(found, "parts", "seconds")
    print_table(found, "processor", "processor seconds")
    write_json(told.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
