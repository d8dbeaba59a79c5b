"""Three brokers of Kafka and their controller on this machine, which tests kill, cut off from each other and start again."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import ElectionType, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from examples.broker import VERSION, Broker, Topics, free_ports, jars
from tests.processes import start_guarded
from tests.waiting import until

NAME = "persistent-state-tests"
BROKERS = (1, 2, 3)
CONTROLLER = 4
SESSION_MS = 2000
"""The time after which the controller takes a silent broker for dead."""


class Link:
    """The way to the controller, at the port `target`, through a port of its own: for each broker it can be cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._cut: set[int] = set()
        self._sockets: dict[socket.socket, int] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, *ids: int) -> None:
        """End all connections of these brokers, and let no more come through."""
        with self._lock:
            self._cut |= {*ids}
            ended = [one for one, id in self._sockets.items() if id in ids]
        for one in ended:
            _end(one)

    def heal(self, *ids: int) -> None:
        """Let connections of these brokers through again."""
        with self._lock:
            self._cut -= {*ids}

    def close(self) -> None:
        self.cut(*BROKERS, CONTROLLER)
        _end(self._listener)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        try:
            # Length, API, version and number of the first request, and its client's name: "raft-client-1", or "1".
            head = near.recv(14, socket.MSG_WAITALL)
            name = near.recv(int.from_bytes(head[12:], "big"), socket.MSG_WAITALL)
            id = int(name.rpartition(b"-")[2])
            far = socket.create_connection(("127.0.0.1", self._target))
            far.sendall(head + name)
        except (OSError, ValueError):
            return _end(near)
        with self._lock:
            self._sockets |= {near: id, far: id}
            is_cut = id in self._cut
        if is_cut:
            _end(near)
        threading.Thread(target=self._pass_on, args=(far, near), daemon=True).start()
        self._pass_on(near, far)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for one in (source, sink):
            with self._lock:
                self._sockets.pop(one, None)
            _end(one)


def leaders(port: int, topic: str) -> dict[int, int]:
    """Who leads each partition of a topic, as just the broker at this port says: a client of the library may ask another."""

    def text(data: str) -> bytes:
        return struct.pack(">h", len(data)) + data.encode()

    request = struct.pack(">hhi", 3, 8, 1) + text("tests") + struct.pack(">i", 1) + text(topic) + bytes(3)
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        file = connection.makefile("rb")

        def take(form: str) -> int:
            (value,) = struct.unpack(f">{form}", file.read(struct.calcsize(f">{form}")))
            return int(value)

        def take_text() -> bytes:
            return file.read(max(0, take("h")))

        for _ in ("length", "number", "throttled"):
            take("i")
        for _ in range(take("i")):
            take("i"), take_text(), take("i"), take_text()
        take_text()
        take("i"), take("i"), take("h"), take_text(), take("b")
        found = {}
        for _ in range(take("i")):
            _, partition, leader, _ = take("h"), take("i"), take("i"), take("i")
            found[partition] = leader
            for _ in ("replicas", "in sync", "offline"):
                file.read(4 * take("i"))
        return found


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@dataclass
class Node(Broker):
    """A broker or the controller of a cluster: of its two ports one is its own, and by the other the controller is reached."""

    id: int = 0

    def _configuration(self) -> dict[str, str]:
        mine = f"127.0.0.1:{self.ports[0]}"
        if self.id == CONTROLLER:
            role = {"process.roles": "controller", "listeners": f"CONTROLLER://{mine}"}
            role["advertised.listeners"] = f"CONTROLLER://127.0.0.1:{self.ports[1]}"
        else:
            role = {"process.roles": "broker", "listeners": f"PLAINTEXT://{mine}"}
        common = {name: value for name, value in super()._configuration().items() if "bootstrap" not in name}
        return {
            **common,
            **role,
            "node.id": str(self.id),
            "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{self.ports[1]}",
            "broker.session.timeout.ms": str(SESSION_MS),
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "replica.lag.time.max.ms": "3000",
            # Else 128 MB of a small heap.
            "log.cleaner.dedupe.buffer.size": str(1 << 21),
            # Leaders move when a test moves them.
            "auto.leader.rebalance.enable": "false",
            "controlled.shutdown.enable": "false",
            **self.settings,
        }

    def _format(self, tool: Sequence[str], *more: str) -> None:
        if self.id == CONTROLLER:
            return super()._format(tool, f"--cluster-id={NAME}")
        # All that a broker needs, without the second that the tool takes.
        (self.folder / "data").mkdir()
        (self.folder / "data" / "meta.properties").write_text(f"version=1\ncluster.id={NAME}\nnode.id={self.id}\n")


@dataclass
class Cluster(Topics):
    """Brokers 1, 2 and 3 and a controller (KRaft), with all they hold in `folder`; topics have three replicas.

    `address` names all three brokers. Two replicas must have what is written (`min.insync.replicas`).
    """

    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    launch: Callable[..., subprocess.Popen[bytes]] = start_guarded

    def __post_init__(self) -> None:
        *ports, last = free_ports(len(BROKERS) + 1)
        self.link = Link(last)
        self.controller = self._node(CONTROLLER, last)
        self.brokers = {id: self._node(id, port) for id, port in zip(BROKERS, ports, strict=True)}
        self.address = ",".join(node.address for node in self.brokers.values())

    def start(self) -> Cluster:
        """Start what does not run, restore the link, and wait until all know each broker and all replicas are in sync."""
        self.link.heal(*BROKERS)
        nodes = [node for node in (self.controller, *self.brokers.values()) if not node.is_running]
        with ThreadPoolExecutor(CONTROLLER) as pool:
            list(pool.map(Node.start, nodes))
        self.wait_until(self._is_whole, "all brokers and replicas are there")
        return self

    def close(self) -> None:
        """Kill all, and end the link."""
        for node in (*self.brokers.values(), self.controller):
            node.kill()
        self.link.close()

    def cut(self, id: int) -> None:
        """Cut off a broker from the controller, but from nobody else."""
        self.link.cut(id)

    def heal(self, id: int) -> None:
        """Let a broker reach the controller again."""
        self.link.heal(id)

    def make(self, topic: str, partitions: int = 1, **settings: str) -> None:
        super().make(topic, partitions, **settings)
        self._wait_for(topic)

    def place(self, topic: str, replicas: Sequence[Sequence[int]], **settings: str) -> None:
        """Make a topic with these replicas of each partition, of which the first leads."""
        config = {name.replace("_", "."): value for name, value in settings.items()}
        new = NewTopic(topic, len(replicas), replica_assignment=list(map(list, replicas)), config=config)
        admin = self.admin()
        for made in admin.create_topics([new]).values():
            made.result()
        self._wait_for(topic)

    def leader(self, topic: str, partition: int = 0, by: int | None = None) -> int:
        """The id of the broker that leads a partition, as any broker says or this one; -1 if none does."""
        if by is not None:
            return leaders(self.brokers[by].ports[0], topic).get(partition, -1)
        found = self.admin().list_topics(topic, 10).topics[topic].partitions
        return int(found[partition].leader) if partition in found else -1

    def lead(self, topic: str, partition: int = 0) -> None:
        """Let the first of a partition's replicas lead it, if it is in sync."""

        def is_elected() -> bool:
            admin = self.admin()
            with suppress(KafkaException):
                admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, partition)]).result(10)
            found = admin.list_topics(topic, 10).topics[topic].partitions[partition]
            return bool(found.leader == found.replicas[0])

        self.wait_until(is_elected, f"the first replica of {topic} {partition} leads")

    def move(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Give a partition other replicas, of which the first is to lead when it is asked to by `lead`."""
        plan = {"topic": topic, "partition": partition, "replicas": list(replicas)}
        file = self.folder / "move.json"
        file.write_text(json.dumps({"version": 1, "partitions": [plan]}))
        place = jars(f"kafka-{VERSION}", [f"org.apache.kafka:kafka_2.13:{VERSION}"])
        tools = jars(f"kafka-tools-{VERSION}", [f"org.apache.kafka:kafka-tools:{VERSION}"], are_alone=True)
        tool = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{place}/*:{tools}/*"]
        tool += ["org.apache.kafka.tools.reassign.ReassignPartitionsCommand", "--bootstrap-server", self.address]
        tool += ["--reassignment-json-file", str(file), "--execute"]
        done = subprocess.run(tool, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stdout + done.stderr

        def is_moved() -> bool:
            found = self.admin().list_topics(topic, 10).topics[topic].partitions[partition]
            return list(found.replicas) == list(replicas) and {*found.isrs} == {*replicas}

        self.wait_until(is_moved, f"{topic} {partition} is at {replicas}")

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds of the cluster, also while it does not answer, and for long where all is slow."""

        def does_hold() -> bool:
            with suppress(KafkaException, OSError):
                return holds()
            return False

        until(does_hold, what)

    def _node(self, id: int, port: int) -> Node:
        ports = (port, self.link.port)
        return Node(self.folder / str(id), self.settings, self.launch, ports, memory="192m", id=id)

    def _wait_for(self, topic: str) -> None:
        self.wait_until(lambda: all(self.leader(topic, by=id) > 0 for id in BROKERS), f"all know {topic}")

    def _is_whole(self) -> bool:
        for node in self.brokers.values():
            found = AdminClient({"bootstrap.servers": node.address, "log_level": "0"}).list_topics(timeout=10)
            places = [place for topic in found.topics.values() for place in topic.partitions.values()]
            if len(found.brokers) < len(BROKERS) or any(len(one.isrs) < len(one.replicas) for one in places):
                return False
        return True
