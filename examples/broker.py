"""A Kafka broker on this machine, from Maven's jars: started, killed and started again by examples, tests and benchmarks."""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

VERSION = "4.1.0"
PATIENCE = 600.0
"""Seconds until a broker that does not answer never will."""

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>persistent-state</groupId><artifactId>jars</artifactId><version>1</version><dependencies>{}</dependencies></project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class Unavailable(Exception):
    """A broker, or another server, can't be had here; it says why."""


def jars(name: str, artifacts: Sequence[str], are_alone: bool = False) -> Path:
    """A folder of jars ("group:artifact:version"), with what they depend on or alone, brought by Maven once for all.

    Raises:
        Unavailable: there is no Maven, or it can't bring them.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "persistent-state"
    cache.mkdir(parents=True, exist_ok=True)
    place, partial = cache / name, cache / f"{name}.partial"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.exists():
            return place
        if shutil.which("mvn") is None:
            raise Unavailable("mvn is not installed, and it brings the jars")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        only = _ALONE if are_alone else ""
        dependencies = (_DEPENDENCY.format(*artifact.split(":"), only) for artifact in artifacts)
        (partial / "pom.xml").write_text(_POM.format("".join(dependencies)))
        command = ["mvn", "-B", "-q", "dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
        done = subprocess.run(command, cwd=partial, capture_output=True, text=True)
        if done.returncode:
            raise Unavailable(f"Maven does not bring {name}: {done.stdout[-300:]}")
        partial.rename(place)
    return place


def broker_jars() -> Path:
    """The folder of a broker's jars."""
    return jars(f"kafka-{VERSION}", [f"org.apache.kafka:kafka_2.13:{VERSION}"])


def connector_jars() -> list[Path]:
    """Spark's connector to Kafka, for `spark.jars`: a set that works with the PySpark that is installed.

    That of 4.2 works with 4.3, too. Users give spark.jars.packages instead; Maven's mirrors lack a part of it now and then.
    """
    minor = version("pyspark").rpartition(".")[0]
    of = f"{minor}.0" if minor in ("4.0", "4.1") else "4.2.0"
    spark = "org.apache.spark:spark-{}_2.13:{}"
    artifacts = [spark.format("sql-kafka-0-10", of), spark.format("token-provider-kafka-0-10", "4.0.0")]
    artifacts += ["org.apache.kafka:kafka-clients:3.9.2", "org.apache.commons:commons-pool2:2.13.1"]
    return sorted(jars(f"spark-kafka-{of}", artifacts, are_alone=True).glob("*.jar"))


class Topics:
    """What is made and deleted where clients find the brokers, which is `address`."""

    address: str

    def make(self, topic: str, partitions: int = 1, **settings: str) -> None:
        """Make a topic; the dots of a setting's name are underscores here."""
        from confluent_kafka.admin import NewTopic

        config = {name.replace("_", "."): value for name, value in settings.items()}
        admin = self.admin()
        for made in admin.create_topics([NewTopic(topic, partitions, -1, config=config)]).values():
            made.result()
        end = time.monotonic() + PATIENCE
        while admin.list_topics(topic, 10).topics[topic].error is not None and time.monotonic() < end:
            time.sleep(0.02)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        admin = self.admin()
        for deleted in admin.delete_topics([topic]).values():
            deleted.result()

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.address, "log_level": "0"})


@dataclass
class Broker(Topics):
    """One broker that is its own controller (KRaft), with all it holds in `folder`; `address` is where clients find it.

    `start` waits until it answers. `settings` are further ones of a broker. `launch` starts the process.
    """

    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    launch: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
    ports: Sequence[int] = field(default_factory=lambda: free_ports(2))
    memory: str = "512m"
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.address = f"127.0.0.1:{self.ports[0]}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Broker:
        """Start it, for the first time or again.

        Raises:
            Unavailable: the jars can't be had, or it does not come up.
        """
        place = broker_jars()
        self.folder.mkdir(parents=True, exist_ok=True)
        java = [
            "java",
            f"-Xmx{self.memory}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{self.folder}:{place}/*",
        ]
        config = self.folder / "server.properties"
        if not config.exists():
            config.write_text("".join(f"{name}={value}\n" for name, value in self._configuration().items()))
            (self.folder / "log4j2.properties").write_text("rootLogger.level = ERROR\n")
            self._format([*java, "kafka.tools.StorageTool", "format", "--config", str(config)])
        with (self.folder / "broker.log").open("ab") as log:
            self._process = self.launch([*java, "kafka.Kafka", str(config)], cwd=self.folder, stdout=log, stderr=log)
        self._wait()
        return self

    def kill(self) -> None:
        """End it by SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.kill()

    def _format(self, tool: Sequence[str], *more: str) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With "=", as it may begin with a dash.
        command = [*tool, *(more or (f"--cluster-id={cluster}", "--standalone"))]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Unavailable(f"the broker's folder can't be formatted: {done.stdout[-300:]}{done.stderr[-300:]}")

    def _configuration(self) -> dict[str, str]:
        broker, controller = self.ports[:2]
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "4",
            # Records have event time, which may be years ago.
            "log.retention.ms": "-1",
            "auto.create.topics.enable": "false",
            # Killed, it may come back as soon as it is taken for dead.
            "broker.heartbeat.interval.ms": "200",
            "broker.session.timeout.ms": "1000",
            **self.settings,
        }

    def _wait(self) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            assert self._process is not None
            try:
                with socket.create_connection(("127.0.0.1", self.ports[0]), timeout=1):
                    break
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    said = (self.folder / "broker.log").read_text(errors="replace")[-500:]
                    raise Unavailable(f"the broker does not come up: {said}") from None
                time.sleep(0.05)


def free_ports(count: int) -> Sequence[int]:
    """Ports of the loopback interface at which no process listens."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
