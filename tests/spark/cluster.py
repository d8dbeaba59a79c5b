"""A real standalone cluster on loopback, from the pip package: a master, workers, and their executors."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.soak import soak_or
from tests.spark import sessions
from tests.store.servers import free_port
from tests.waiting import until

WORKERS = soak_or(ci=2, soak=4)


@dataclass(frozen=True)
class Cluster:
    """A running cluster; it has one core for each of its workers. Its folder has all that it writes."""

    url: str
    folder: Path
    workers: Sequence[subprocess.Popen[bytes]]

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks, and that the workers start again when they die."""
        return [
            child
            for worker in self.workers
            for child in psutil.Process(worker.pid).children()
            if child.status() != psutil.STATUS_ZOMBIE and "CoarseGrainedExecutorBackend" in " ".join(child.cmdline())
        ]


@contextmanager
def standalone(folder: Path, env: Mapping[str, str]) -> Iterator[Cluster]:
    """Start a cluster, and end all of it."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    command = f"{sessions.spark_home()}/bin/spark-class"
    deploy, local = "org.apache.spark.deploy", ["--host", "127.0.0.1", "--webui-port", "0"]
    started: list[subprocess.Popen[bytes]] = []

    def run(name: str, *arguments: str) -> None:
        place = folder / name
        place.mkdir(parents=True)
        started.append(sessions.start_command([command, *arguments, *local], place, env))

    try:
        run("master", f"{deploy}.master.Master", "--port", str(port))
        _await(port, started[0])
        for number in range(WORKERS):
            work = ["--work-dir", str(folder / f"worker-{number}" / "work")]
            run(f"worker-{number}", f"{deploy}.worker.Worker", url, "--cores", "1", "--memory", "1500m", *work)
        yield Cluster(url, folder, started[1:])
    finally:
        sessions.end_sessions(started)


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    until(listens, "the master", process)
