"""Real servers of stores and sinks of every kind, started on loopback when first asked for and stopped with the tests."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from examples.broker import Unavailable
from persistent_state.store.files import Files, open_files
from tests.processes import start_guarded
from tests.waiting import PATIENCE

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "persistent-state-tests"
"""Where servers are installed once, for all runs of the tests."""

AZURITE, FAKE_GCS, HADOOP = "3.37.0", "v1.56.1", "3.4.1"

# Every installation of azurite has this account.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Server(Protocol):
    """A running server. Its clients may be told other ports, for a proxy in between."""

    ports: Sequence[int]

    def make(self, name: str) -> None:
        """Make the bucket of this name."""

    def address(self, name: str, ports: Sequence[int]) -> tuple[str, dict[str, Any]]:
        """The url and the storage options of a bucket."""


@dataclass
class Servers:
    """The servers of one test process."""

    _started: dict[str, Server | Unavailable] = field(default_factory=dict)
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="persistent-state-servers-")))

    def __getitem__(self, kind: str) -> Server:
        if kind not in self._started:
            try:
                self._started[kind] = STARTS[kind](self._folder, self._run)
            except Unavailable as error:
                self._started[kind] = error
        found = self._started[kind]
        if isinstance(found, Unavailable):
            raise found
        return found

    def _run(self, name: str, command: Sequence[str | Path], look: Callable[[], object]) -> None:
        """Start a server and wait until it answers."""
        log = self._folder / f"{len(self._processes)}.log"
        with log.open("wb") as output:
            process = start_guarded(list(map(str, command)), cwd=self._folder, stdout=output, stderr=subprocess.STDOUT)
        self._processes.append(process)
        end = time.monotonic() + PATIENCE
        while True:
            try:
                look()
                return
            except OSError as error:
                if process.poll() is not None or time.monotonic() > end:
                    raise Unavailable(f"{name} does not answer ({error}): {log.read_text()[-500:]}") from error
                time.sleep(0.1)

    def close(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


Run = Callable[..., None]


@dataclass
class S3:
    ports: Sequence[int]

    def make(self, name: str) -> None:
        ask("PUT", f"http://127.0.0.1:{self.ports[0]}/{name}")

    def address(self, name: str, ports: Sequence[int]) -> tuple[str, dict[str, Any]]:
        # The tries of s3fs are enough, and quicker than those of botocore beneath it.
        return f"s3://{name}/store", {
            "key": "key-of-s3",
            "secret": "secret-of-s3",
            "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{ports[0]}", "region_name": "us-east-1"},
            "config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": PATIENCE, "read_timeout": PATIENCE},
        }


def start_s3(folder: Path, run: Run) -> Server:
    port = free_port()
    # One request at a time: what it stands for decides who is first, and it looks before it writes.
    program = f"""
import threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

app, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

def one_by_one(environ, start):
    with lock:
        return list(app(environ, start))

WSGIRequestHandler.protocol_version = "HTTP/1.1"
run_simple("127.0.0.1", {port}, one_by_one, threaded=True)
"""
    run("moto's server", [sys.executable, "-c", program], lambda: ask("GET", f"http://127.0.0.1:{port}/"))
    return S3([port])


@dataclass
class Azure:
    ports: Sequence[int]

    def make(self, name: str) -> None:
        import fsspec

        _, options = self.address(name, self.ports)
        fsspec.filesystem("abfs", **options).mkdir(name)

    def address(self, name: str, ports: Sequence[int]) -> tuple[str, dict[str, Any]]:
        connection = (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{ports[0]}/{ACCOUNT};"
        )
        return f"abfs://{name}/store", {"connection_string": connection}


def start_azure(folder: Path, run: Run) -> Server:
    need("node", "npm")

    def install(place: Path) -> None:
        command("npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", place, f"azurite@{AZURITE}")

    place = installed(f"azurite-{AZURITE}", install)
    port = free_port()
    run(
        "azurite",
        [
            *("node", place / "node_modules/azurite/dist/src/blob/main.js", "--silent", "--inMemoryPersistence"),
            *("--blobHost", "127.0.0.1", "--blobPort", str(port), "--skipApiVersionCheck", "--disableTelemetry"),
        ],
        lambda: ask("GET", f"http://127.0.0.1:{port}/"),
    )
    return Azure([port])


@dataclass
class Gcs:
    ports: Sequence[int]

    def make(self, name: str) -> None:
        ask("POST", f"http://127.0.0.1:{self.ports[0]}/storage/v1/b?project=test", b'{"name": "%s"}' % name.encode())

    def address(self, name: str, ports: Sequence[int]) -> tuple[str, dict[str, Any]]:
        return f"gs://{name}/store", {"endpoint_url": f"http://127.0.0.1:{ports[0]}", "token": "anon"}


def start_gcs(folder: Path, run: Run) -> Server:
    need("go")

    def install(place: Path) -> None:
        command(
            "go", "install", f"github.com/fsouza/fake-gcs-server@{FAKE_GCS}", GOBIN=str(place), GOFLAGS="-ldflags=-w"
        )

    place = installed(f"fake-gcs-server-{FAKE_GCS}", install)
    port = free_port()
    run(
        "fake-gcs-server",
        [
            *(place / "fake-gcs-server", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
            *("-backend", "memory", "-log-level", "error", "-data", folder / "none"),
        ],
        lambda: ask("GET", f"http://127.0.0.1:{port}/storage/v1/b?project=test"),
    )
    return Gcs([port])


@dataclass
class Hdfs:
    """Ports of the name node and of the data node."""

    ports: Sequence[int]

    def make(self, name: str) -> None: ...

    def address(self, name: str, ports: Sequence[int]) -> tuple[str, dict[str, Any]]:
        options: dict[str, Any] = {"user": "somebody"}
        if ports != self.ports:
            options["data_proxy"] = {f"127.0.0.1:{self.ports[1]}": f"127.0.0.1:{ports[1]}"}
        return f"webhdfs://127.0.0.1:{ports[0]}/{name}/store", options


def start_hdfs(folder: Path, run: Run) -> Server:
    need("java", "mvn")
    place = installed(f"hadoop-{HADOOP}", install_hdfs)
    ports = [free_port(), free_port()]
    own = folder / "hdfs"
    own.mkdir()
    # A name node that was formatted when it was installed.
    shutil.copytree(place / "name", own / "name")
    configure(
        own,
        {
            "fs.defaultFS": f"hdfs://127.0.0.1:{free_port()}",
            "dfs.namenode.http-address": f"127.0.0.1:{ports[0]}",
            "dfs.datanode.http.address": f"127.0.0.1:{ports[1]}",
            "dfs.datanode.address": "127.0.0.1:0",
            "dfs.datanode.ipc.address": "127.0.0.1:0",
            "dfs.datanode.hostname": "127.0.0.1",
            "dfs.datanode.data.dir": str(own / "data"),
            "dfs.namenode.name.dir": str(own / "name"),
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": "0",
            "dfs.permissions.enabled": "false",
            "dfs.replication": "1",
            "dfs.heartbeat.interval": "1",
        },
    )

    def joined() -> None:
        told = ask("GET", f"http://127.0.0.1:{ports[0]}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
        if b'"NumLiveDataNodes" : 1' not in told:
            raise OSError("no data node has joined")

    run("the name node", java(own, place, "namenode.NameNode"), lambda: None)
    run("the data node", java(own, place, "datanode.DataNode"), joined)
    return Hdfs(ports)


def install_hdfs(place: Path) -> None:
    # Hadoop needs it, and Maven would take an older one that stands nearer.
    names = [("com.fasterxml.jackson.core", "jackson-core", "2.12.7")]
    names += [("org.apache.hadoop", name, HADOOP) for name in ("hadoop-common", "hadoop-hdfs", "hadoop-hdfs-client")]
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in names
    )
    (place / "pom.xml").write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>tests</groupId>'
        f"<artifactId>hdfs</artifactId><version>1</version><dependencies>{dependencies}</dependencies></project>"
    )
    command(
        "mvn",
        "-B",
        "-q",
        "-f",
        place / "pom.xml",
        "dependency:copy-dependencies",
        f"-DoutputDirectory={place / 'jars'}",
    )
    for node in ("hdfs", "datanode"):
        (place / "webapps" / node / "WEB-INF").mkdir(parents=True)
        (place / "webapps" / node / "WEB-INF/web.xml").write_text("<web-app/>")
    # Formatted under the name that it will never have again: the folder is renamed when it is whole.
    configure(place, {"fs.defaultFS": "hdfs://127.0.0.1:1", "dfs.namenode.name.dir": str(place / "name")})
    command(*java(place, place, "namenode.NameNode"), "-format", "-force", "-nonInteractive")


def configure(folder: Path, properties: dict[str, str]) -> None:
    text = "\n".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()
    )
    for name in ("core-site.xml", "hdfs-site.xml"):
        (folder / name).write_text(f"<configuration>\n{text}\n</configuration>\n")
    (folder / "log4j.properties").write_text(
        "log4j.rootLogger=ERROR,stderr\nlog4j.appender.stderr=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.stderr.layout=org.apache.log4j.SimpleLayout\n"
    )


def java(configuration: Path, place: Path, node: str) -> list[str]:
    return [
        *(
            "java",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "--add-opens",
            "java.base/java.lang=ALL-UNNAMED",
        ),
        *("-cp", f"{configuration}:{place}:{place}/jars/*", f"org.apache.hadoop.hdfs.server.{node}"),
    ]


@dataclass
class Postgres:
    ports: Sequence[int]
    password: str

    def make(self, name: str) -> None:
        self.execute(f'CREATE DATABASE "{name}"')

    def address(self, name: str, ports: Sequence[int]) -> tuple[str, dict[str, Any]]:
        return f"postgresql://tests:{self.password}@127.0.0.1:{ports[0]}/{name}", {}

    def execute(self, statement: str) -> None:
        import psycopg

        try:
            with psycopg.connect(self.address("postgres", self.ports)[0], autocommit=True) as connection:
                connection.execute(statement.encode())
        except psycopg.OperationalError as error:
            raise OSError(str(error)) from error


def start_postgres(folder: Path, run: Run) -> Server:
    # Debian keeps a server's programs apart, one folder for each version.
    found = [shutil.which("postgres"), *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin/postgres")))]
    programs = next((Path(path).resolve().parent for path in found if path), None)
    if programs is None:
        raise Unavailable("postgres is not installed")
    data, password = folder / "postgres", folder / "password"
    data.mkdir(0o700)
    password.write_text(secrets.token_hex())
    user: list[str] = []
    if os.geteuid() == 0:
        # It refuses to run as root.
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        folder.chmod(0o711)
        for path in (data, password):
            shutil.chown(path, "postgres", "postgres")
    settings = (
        "--username=tests",
        f"--pwfile={password}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
    )
    command(*user, programs / "initdb", "-D", data, *settings, "--no-sync")
    server = Postgres([free_port()], password.read_text())
    run(
        "postgres",
        [
            *(*user, programs / "postgres", "-D", data, "-p", str(server.ports[0]), "-c", "listen_addresses=127.0.0.1"),
            *("-c", "unix_socket_directories=", "-c", "fsync=off"),
        ],
        lambda: server.execute("SELECT 1"),
    )
    return server


STARTS: dict[str, Callable[[Path, Run], Server]] = {
    "s3": start_s3,
    "azure": start_azure,
    "gcs": start_gcs,
    "hdfs": start_hdfs,
    "postgresql": start_postgres,
}


def files_of(server: Server, name: str, ports: Sequence[int] | None = None) -> Files:
    """The files of a bucket that was made, perhaps through other ports."""
    url, options = server.address(name, ports or server.ports)
    return open_files(url, options)


def installed(name: str, install: Callable[[Path], None]) -> Path:
    """The folder of this name in the cache, whole: made by one process while others wait for it."""
    CACHE.mkdir(parents=True, exist_ok=True)
    place, partial = CACHE / name, CACHE / f"{name}.partial"
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            install(partial)
            partial.rename(place)
    return place


@contextmanager
def needed() -> Iterator[None]:
    """What a test can't do without: it is skipped with the reason where that can't be had, and fails under CI."""
    try:
        yield
    except Unavailable as error:
        (pytest.fail if "CI" in os.environ else pytest.skip)(str(error))


def need(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")


def command(*words: str | Path, **environment: str) -> None:
    done = subprocess.run(
        list(map(str, words)),
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise Unavailable(f"{' '.join(map(str, words[:3]))} failed: {(done.stderr or done.stdout).strip()[-500:]}")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def ask(method: str, url: str, body: bytes | None = None) -> bytes:
    """What a server answers, be it an error of its own."""
    request = urllib.request.Request(url, body, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=PATIENCE) as answer:
            text: bytes = answer.read()
            return text
    except urllib.request.HTTPError as error:
        return error.read()
