"""Spark sessions and processes that tests start, and that nothing of them stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM of a few seconds is better off without its second compiler."""


def new_session(name: str) -> SparkSession:
    """A small local session that starts fast."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName(name).config("spark.ui.enabled", "false")
    return builder.config("spark.log.level", "ERROR").config("spark.driver.memory", "512m").getOrCreate()


def environment(java_options: str = "", **more: str) -> dict[str, str]:
    """The environment of a process that starts a Spark of its own."""
    java = f"{QUICK_JAVA} {java_options}"
    return {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT), "JDK_JAVA_OPTIONS": java, **more}


def start(arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a Python program as the head of a process session, by which all that it leaves behind is found.

    What it prints goes to the files `out` and `log` of the folder, and what it would leave in /tmp when killed to `tmp`.
    """
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    java = f"{env['JDK_JAVA_OPTIONS']} -Djava.io.tmpdir={scratch}"
    env = {**env, "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch), "JDK_JAVA_OPTIONS": java}
    with (folder / "out").open("ab") as out, (folder / "log").open("ab") as log:
        command = [sys.executable, *arguments]
        return subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True
        )


def end_sessions(processes: Sequence[subprocess.Popen[bytes]], patience: float = 10.0) -> None:
    """Kill everything that these processes started, and wait until it is gone.

    A JVM outlives its killed driver, and a worker its JVM; each stands in a process group of its own, but in one session.
    """
    sessions = {process.pid for process in processes}
    deadline = time.monotonic() + patience
    while left := [pid for pid in psutil.pids() if _session(pid) in sessions]:
        for pid in left:
            _kill(pid)
        for process in processes:
            process.poll()
        if time.monotonic() > deadline:
            raise AssertionError(f"processes {left} did not die")
        time.sleep(0.05)


def _session(pid: int) -> int | None:
    try:
        return None if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else os.getsid(pid)
    except (psutil.Error, ProcessLookupError, PermissionError):
        return None


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
