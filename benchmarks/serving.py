"""How long look-ups over HTTP take beside a job that leaves one core: `persistent-state serve`, asked so many times a second.

    python -m benchmarks.serving [--keys N] [--rate N] [--seconds N] [--json FILE]

No Spark is used. The store is that of `benchmarks.lookups`: a task of long keys in three levels of runs, on a local disk. The
job is a process for each core but one, which sorts keys by their hash, again and again; one of them also commits an entry each
second, so that the server has to read the log. Look-ups of random keys are asked at fixed times, whether or not earlier ones
were answered, and a look-up's time is counted from when it should have been asked. A minute is measured after two hundred
look-ups that are not counted. Each answer is checked.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from benchmarks.lookups import SUM, rows_of, store_of
from benchmarks.measure import write_json
from persistent_state.store.files import open_files
from persistent_state.store.log import Log

CLIENTS, WARM = 32, 200


def work(url: str, commits: bool) -> None:
    """Be a job, until the process is ended."""
    pa.set_cpu_count(1)
    rng, log, committed = np.random.default_rng(2), Log(open_files(url), "lookups"), time.monotonic()
    while True:
        rows_of(rng.integers(0, 1 << 40, 200_000), SUM)
        if commits and time.monotonic() - committed >= 1:
            entry = log.newest()
            assert entry is not None
            log.append(entry.follower(time.time_ns() // 1000))
            committed = time.monotonic()


class Client:
    """Asks a server for values, over connections that stay open."""

    def __init__(self, url: str) -> None:
        self._place, self._own = urlsplit(url).netloc, local()

    def ask(self, key: int, due: float) -> tuple[float, str]:
        """Return the seconds since a look-up was due, and what was wrong with its answer; "" if it was right."""
        try:
            if not hasattr(self._own, "connection"):
                self._own.connection = http.client.HTTPConnection(self._place, timeout=30)
            self._own.connection.request("GET", f"/lookup?application=lookups&task=Total&key={key}")
            answer = self._own.connection.getresponse()
            told = json.loads(answer.read())
            wrong = "" if (answer.status, told.get("value")) == (200, key) else f"{answer.status} {told}"
        except OSError as error:
            wrong = repr(error)
        return time.perf_counter() - due, wrong


def measured(url: str, keys: int, rate: int, seconds: int) -> dict[str, Any]:
    """Return what look-ups at this rate took, in seconds."""
    client, rng = Client(url), np.random.default_rng(3)
    for key in rng.integers(0, keys, WARM).tolist():
        client.ask(key, 0.0)
    begun, answers = time.perf_counter(), []
    with ThreadPoolExecutor(CLIENTS) as pool:
        for number, key in enumerate(rng.integers(0, keys, rate * seconds).tolist()):
            due = begun + number / rate
            time.sleep(max(0.0, due - time.perf_counter()))
            answers.append(pool.submit(client.ask, key, due))
    took = sorted(answer.result()[0] for answer in answers)
    errors = [wrong for answer in answers if (wrong := answer.result()[1])]
    return {
        "keys": keys,
        "look-ups": len(took),
        "errors": len(errors),
        "first error": errors[0] if errors else "",
        "median": statistics.median(took),
        "99 %": took[len(took) * 99 // 100],
        "slowest": took[-1],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="serving-") as scratch:
        store = store_of(arguments.keys, Path(scratch) / "store")
        command = [sys.executable, "-m", "persistent_state", "serve", store, "--port", "0", "--json"]
        jobs = [
            multiprocessing.Process(target=work, args=(store, number == 0), daemon=True)
            for number in range(max(1, (os.cpu_count() or 2) - 1))
        ]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            for job in jobs:
                job.start()
            found = measured(url, arguments.keys, arguments.rate, arguments.seconds)
        finally:
            for job in jobs:
                if job.pid is not None:
                    job.kill()
            server.terminate()
            server.wait()
    print(f"{found['look-ups']:,} look-ups of {found['keys']:,} keys, {found['errors']} errors {found['first error']}")
    print("  ".join(f"{name} {found[name] * 1e3:.1f} ms" for name in ("median", "99 %", "slowest")))
    write_json(arguments.json, [found])
    return 1 if found["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
