"""Applications that a client without a JVM drives by a real server of Spark Connect, of which anything may be killed."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from examples import flights
from examples.exactly_once import Place, Verdict, check, verdict_of
from tests.soak import soak_or
from tests.spark import pipeline, sessions
from tests.spark.conftest import Rehearsal
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.kills

LOST = "StateError: the Spark Connect server is gone, or has forgotten the session"
FOREACH_BATCH, DAEMON = "foreach_batch_worker", "pyspark.daemon"
"""Modules that the server's Pythons run: the function of foreachBatch, and all else."""

KILLED_AT_RANDOM = soak_or(ci=0, soak=30)

WITHOUT_JAVA = """
sys.modules["py4j"] = None
"""
"""As a part of `sitecustomize`: what makes PySpark one that can't start a JVM."""


@dataclass
class Server:
    """A server of Spark Connect on loopback, which comes again at the same address when it was killed."""

    folder: Path
    java_options: str
    python: str = sys.executable
    home: str = field(default_factory=sessions.spark_home)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> None:
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": self.port,
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.driver.memory": sessions.MEMORY,
        }
        command = [f"{self.home}/bin/spark-submit", "--master", "local[2]", "--class"]
        command += ["org.apache.spark.sql.connect.service.SparkConnectServer"]
        command += [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        env = sessions.environment(self.java_options, SPARK_HOME=self.home, PYSPARK_PYTHON=self.python)
        self.processes.append(sessions.start_command([*command, "spark-internal"], self.folder, env))
        until(self._answers, "the server", self.processes[-1], self.folder / "log")

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def kill(self) -> None:
        self.processes[-1].kill()
        sessions.end_sessions(self.processes)

    def kill_pythons(self, module: str) -> int:
        """Kill the Pythons that run a module, and return how many there were."""
        killed = 0
        for process in psutil.Process(self.processes[-1].pid).children(recursive=True):
            with suppress(psutil.Error):
                if any(word.endswith(module) for word in process.cmdline()):
                    process.kill()
                    killed += 1
        return killed


@pytest.fixture(scope="module")
def server(rehearsal: Rehearsal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("connect") / "server", rehearsal.java_options)
    yield server
    sessions.end_sessions(server.processes)


@dataclass
class Clients:
    """Drivers, one after the other, in which there is no Java and no py4j."""

    folder: Path
    url: str
    python: str = sys.executable
    env: Mapping[str, str] = field(default_factory=dict)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, shards: int, *arguments: str) -> subprocess.Popen[bytes]:
        patched = self.folder / "python"
        patched.mkdir(exist_ok=True)
        env = sessions.environment(**sessions.patched(patched, WITHOUT_JAVA), SPARK_SKIP_CONNECT_COMPAT_TESTS="1")
        env = {name: value for name, value in {**env, **self.env}.items() if not name.startswith(("JAVA_", "PYSPARK_"))}
        command = ["env", "PATH=/none", self.python, "-m", "tests.spark.connect_driver"]
        command += [str(self.folder), self.url, str(shards), *arguments]
        self.processes.append(sessions.start_command(command, self.folder, env))
        return self.processes[-1]

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def told(self) -> list[dict[str, Any]]:
        out = self.folder / "out"
        lines = out.read_text().splitlines() if out.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def await_commits(self, client: subprocess.Popen[bytes], commits: int, above_epoch: int = 0) -> int:
        """Wait until a client was told of so many commits, and return the epoch of the last."""

        def epochs() -> list[int]:
            told = [each for each in self.told() if each["task"] == "FlightsPerRoute" and each["epoch"] > above_epoch]
            return [each["epoch"] for each in told if each["pid"] == client.pid]

        until(lambda: len(epochs()) >= commits, f"{commits} commits", client, self.log)
        return epochs()[-1]

    def end(self, client: subprocess.Popen[bytes]) -> int:
        return client.wait(PATIENCE)


@pytest.fixture
def clients(server: Server, tmp_path: Path) -> Iterator[Clients]:
    (tmp_path / "app").mkdir()
    clients = Clients(tmp_path / "app", server.url)
    yield clients
    sessions.end_sessions(clients.processes)


@dataclass
class Flights:
    """A stream that grows, and what pandas makes of it in the end."""

    folder: Path
    most: int
    files: int

    def __post_init__(self) -> None:
        self.table = flights.write_stream(self.folder / "all", most=self.most, files=self.files)
        self._left = sorted((self.folder / "all").iterdir())
        (self.folder / "stream").mkdir()

    def grow(self, files: int | None = None) -> None:
        files = len(self._left) if files is None else files
        some, self._left = self._left[:files], self._left[files:]
        for file in some:
            file.rename(self.folder / "stream" / file.name)

    def verdict(self) -> Verdict:
        return verdict_of(check(Place(self.folder, str(self.folder / "store"), {}), self.table))


def exact(stream: Flights) -> Verdict:
    return Verdict(stream.table.num_rows, 0, 0, 0)


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_each_flight_counts_once_whoever_is_killed(server: Server, clients: Clients, record_property: Any) -> None:
    stream, chance = Flights(clients.folder, 15_000, 21 + 10 * KILLED_AT_RANDOM), random.Random(7)
    stream.grow(6)
    # The client: what it has started goes on in the server, until the next client fences it.
    first = clients.start(2, "--continuous")
    clients.await_commits(first, 2)
    first.kill()
    assert clients.end(first) == -signal.SIGKILL
    stream.grow(6)
    second = clients.start(3, "--continuous")
    epoch = clients.await_commits(second, 1)
    # The server's Pythons: the client starts the queries again, and goes on.
    assert server.kill_pythons(FOREACH_BATCH) > 0
    stream.grow(6)
    epoch = clients.await_commits(second, 1, above_epoch=epoch)
    # The server: the client says so, and ends.
    server.kill()
    assert clients.end(second) == 1
    assert LOST in clients.log.read_text().splitlines()[-1]
    server.start()
    kills = 3
    for link in range(KILLED_AT_RANDOM):
        stream.grow(6)
        client = clients.start(link % 3 + 1, "--continuous")
        clients.await_commits(client, chance.randint(1, 2))
        time.sleep(chance.random())
        what = ("client", FOREACH_BATCH, "server", DAEMON)[link % 4]
        if what == "server":
            server.kill()
            assert clients.end(client) == 1
            server.start()
        elif what != "client":
            told = clients.told()[-1]["epoch"]
            kills += server.kill_pythons(what) - 1
            stream.grow(4)
            clients.await_commits(client, 1, above_epoch=told)
        if client.poll() is None:
            client.kill()
            client.wait()
        kills += 1
    stream.grow()
    assert clients.end(clients.start(2)) == 0, clients.log.read_text()[-4000:]
    assert stream.verdict() == exact(stream)
    replayed = sum(told["replayed"] for told in clients.told())
    assert replayed > 0
    record_property("told", f"{kills} kills, {replayed} messages replayed")


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_graph_with_outputs_of_each_kind_is_exact_after_a_stop(server: Server, clients: Clients) -> None:
    folder, seconds = clients.folder, 120
    for file in range(2):
        pipeline.grow(folder, file, range(file * seconds // 4, (file + 1) * seconds // 4))
    first = clients.start(3, "--graph", "--continuous")
    told_of = lambda: {told["task"] for told in clients.told()}  # noqa: E731
    until(lambda: "PerRegion" in told_of(), "a step", first, clients.log)
    first.terminate()
    assert clients.end(first) == 0, clients.log.read_text()[-4000:]
    for file in range(2, 4):
        pipeline.grow(folder, file, range(file * seconds // 4, (file + 1) * seconds // 4))
    # A client that reads to the end runs the Python of docs/spark-connect.md.
    client = clients.start(2, "--graph")
    assert clients.end(client) == 0, clients.log.read_text()[-4000:]
    assert pipeline.check(folder, seconds) > 0
    entry = pipeline.newest(folder)
    sales = [pipeline.sale(second) for second in range(seconds)]
    # A sink is called in the client, with values that the server has read.
    values = [json.loads(line) for line in (folder / "values").read_text().splitlines()]
    assert {client.pid} <= {pid for pid, *_ in values} <= {first.pid, client.pid}
    newest = {(region,): value for _, _, region, _, value in values}
    wanted = pipeline.per_region(pipeline.per_shop(sales))
    # Regions that all shops have left stay, with nothing in them.
    assert {region: value for region, value in newest.items() if value != [0, 0]} == {
        region: [value["total"], value["shops"]] for region, value in wanted.items()
    }
    # A function of running values is called in a Python of the server.
    running = [json.loads(line) for line in (folder / "running").read_text().splitlines()]
    assert running
    assert not {first.pid, client.pid} & {pid for pid, *_ in running}
    rows = pa.concat_tables(pq.read_table(file) for file in parquet_files(folder / "rows"))
    emitted = sorted(zip(rows["what"].to_pylist(), rows["number"].to_pylist(), strict=True))
    assert emitted == sorted((what, number) for what, number, _ in pipeline.watched(sales, entry.clock)[1])
    with closing(sqlite3.connect(folder / "out.db")) as database:
        assert database.execute("SELECT value FROM revenue").fetchall() == [(sum(sale.amount for sale in sales),)]
    # Of each micro-batch and step a client was told once. The stop of the first client may come between a commit and its note.
    told = [(each["task"], each["epoch"], each["batch"]) for each in clients.told()]
    assert len(told) == len(set(told))
    messages = sum(each["messages"] - each["replayed"] for each in clients.told() if each["task"] == "PerShop")
    assert seconds // 2 <= messages <= seconds


def test_what_code_of_the_user_raises_in_the_server_ends_the_run_with_its_sentence(clients: Clients) -> None:
    stream = Flights(clients.folder, 100, 1)
    stream.grow()
    assert clients.end(clients.start(1, "--fail")) == 1
    last = clients.log.read_text().splitlines()[-1]
    assert last.startswith("TaskFailedError: process_message of task=Failing raised KeyError('no such thing') at ")


def parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.parquet"))


@pytest.mark.soak
def test_a_client_of_nothing_but_pyspark_client_drives_it(server: Server, tmp_path: Path) -> None:
    if "SOAK" not in os.environ:
        pytest.skip("it installs an environment")
    folder = tmp_path / "app"
    folder.mkdir()
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    needs = ["pyspark-client>=4.1,<5", "pandas<3", "pyarrow<27", "numpy<3", "fsspec", "cloudpickle"]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *needs], check=True)
    clients = Clients(folder, server.url, python)
    stream = Flights(folder, 10_000, 4)
    stream.grow()
    try:
        assert clients.end(clients.start(2)) == 0, clients.log.read_text()[-4000:]
    finally:
        sessions.end_sessions(clients.processes)
    assert stream.verdict() == exact(stream)
