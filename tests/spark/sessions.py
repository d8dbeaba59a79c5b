"""Spark sessions and processes that tests start, and that nothing of them stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.processes import start_guarded
from tests.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM of a few seconds is better off without its second compiler."""
QUICK_PYTHON = ROOT / "tests" / "spark" / "quick"
MEMORY = "512m"


def end_what_is_left() -> None:
    """In a `Jvm`, end what its last driver has left there.

    The JVM tells Python which of the functions that it was given it has let go, by a number, and does not know that those of
    the last driver are not ours: so each driver counts from a number of its own.
    """
    from pyspark import SparkContext

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()
        assert SparkContext._jvm is not None
        assert SparkContext._gateway is not None
        SparkContext._gateway.gateway_property.pool.next_id = os.getpid() << 20
        left = SparkContext._jvm.SparkSession.getDefaultSession()
        if left.isDefined():
            left.get().stop()


FOR_OTHERS = """
import os
if "PYSPARK_GATEWAY_PORT" in os.environ:
    from pyspark.sql import SparkSession
    from tests.spark.sessions import end_what_is_left
    create = SparkSession.Builder.getOrCreate

    def create_first(builder):
        SparkSession.Builder.getOrCreate = create
        end_what_is_left()
        return create(builder)

    SparkSession.Builder.getOrCreate = create_first
"""
"""As `sitecustomize`, what lets a program that knows nothing of these tests run in a `Jvm`; not what that starts."""


def patched(folder: Path, patch: str) -> dict[str, str]:
    """Of the environment of a program, what makes each of its Pythons begin with the patch; it is kept in a folder."""
    (folder / "sitecustomize.py").write_text((QUICK_PYTHON / "sitecustomize.py").read_text() + patch)
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


def new_session(name: str, master: str = "local[2]", settings: Mapping[str, str] | None = None) -> SparkSession:
    """A small session that starts fast."""
    from pyspark.sql import SparkSession

    end_what_is_left()
    builder = SparkSession.builder.master(master).appName(name).config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "ERROR").config("spark.driver.memory", MEMORY)
    builder = builder.config("spark.python.authenticate.socketTimeout", f"{PATIENCE:.0f}s")
    for setting, value in (settings or {}).items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()


def environment(java_options: str = "", **more: str) -> dict[str, str]:
    """The environment of a process that starts a Spark of its own."""
    java = f"{QUICK_JAVA} {java_options}"
    own = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": f"{QUICK_PYTHON}:{ROOT}",
        "JDK_JAVA_OPTIONS": java,
        # The time that Python has to connect to the JVM is a setting for each side.
        "SPARK_AUTH_SOCKET_TIMEOUT": f"{PATIENCE:.0f}",
        # With this Python Spark looks data sources up.
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    return {**os.environ, **own, **more}


def start(arguments: Sequence[str], folder: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a Python program as the head of a process session, by which all that it leaves behind is found.

    What it prints goes to the files `out` and `log` of the folder, and what it would leave in /tmp when killed to `tmp`.
    """
    return start_command([sys.executable, *arguments], folder, env)


def start_command(
    command: Sequence[str], folder: Path, env: Mapping[str, str], ends_with_its_input: bool = False
) -> subprocess.Popen[bytes]:
    """Start any program likewise."""
    scratch = folder / "tmp"
    scratch.mkdir(exist_ok=True)
    java = f"{env['JDK_JAVA_OPTIONS']} -Djava.io.tmpdir={scratch}"
    env = {**env, "TMPDIR": str(scratch), "SPARK_LOCAL_DIRS": str(scratch), "JDK_JAVA_OPTIONS": java}
    with (folder / "out").open("ab") as out, (folder / "log").open("ab") as log:
        if ends_with_its_input:
            return subprocess.Popen(
                command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=out, stderr=log, start_new_session=True
            )
        return start_guarded(command, cwd=ROOT, env=env, stdout=out, stderr=log)


@dataclass(frozen=True)
class Jvm:
    """A JVM that outlives its drivers: one after the other is started with `env` and has a Spark of its own in it.

    So does spark-submit run a Python program; to start only the driver's Python takes a third of the processor time.
    """

    process: subprocess.Popen[bytes]
    env: Mapping[str, str]


def spark_home() -> str:
    from pyspark.find_spark_home import _find_spark_home

    return _find_spark_home()


def start_jvm(folder: Path, env: Mapping[str, str]) -> Jvm:
    """Start a JVM, as the head of a process session, that waits for a driver."""
    told = folder / "connection"
    command = [f"{spark_home()}/bin/spark-submit", "--driver-memory", MEMORY, "pyspark-shell"]
    process = start_command(command, folder, {**env, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)}, True)
    # It is renamed when it is whole.
    until(told.exists, "the JVM", process, folder / "log")
    data = told.read_bytes()
    port, secret = int.from_bytes(data[:4], "big"), data[8:].decode()
    return Jvm(process, {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret})


def end_sessions(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill everything that these processes started, and wait until it is gone.

    A JVM outlives its killed driver, and a worker its JVM; each stands in a process group of its own, but in one session.
    """
    sessions = {process.pid for process in processes}

    def are_gone() -> bool:
        left = [pid for pid in psutil.pids() if _session(pid) in sessions]
        for pid in left:
            _kill(pid)
        for process in processes:
            process.poll()
        return not left

    until(are_gone, f"the end of processes {sorted(sessions)}")


def resume_sessions(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let everything go on that these processes started and that was stopped."""
    sessions = {process.pid for process in processes}
    for pid in [pid for pid in psutil.pids() if _session(pid) in sessions]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _session(pid: int) -> int | None:
    try:
        return None if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE else os.getsid(pid)
    except (psutil.Error, ProcessLookupError, PermissionError):
        return None


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
