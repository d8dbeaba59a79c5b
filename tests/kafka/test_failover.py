"""The Kafka source while brokers of a real cluster are killed: what it is told is so, and no failover ends it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from persistent_state import KafkaSource
from persistent_state.kafka import Json
from tests.kafka.cluster import BROKERS, Cluster
from tests.kafka.test_source import SCHEMA, Reader, numbers
from tests.kafka.topics import produce
from tests.soak import soak_or

RECORDS = 999
TOPIC = "killed"
KILLED = soak_or(ci=BROKERS[:1], soak=BROKERS * 3)


def source(cluster: Cluster, start: str = "earliest") -> KafkaSource:
    return KafkaSource(TOPIC, cluster.address, value=Json(SCHEMA), starting_offsets=start)


@pytest.mark.soak
def test_every_look_is_right_while_leaders_are_killed(
    cluster: Cluster, record_property: Callable[[str, object], None]
) -> None:
    cluster.place(TOPIC, [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    produce(cluster, TOPIC, range(RECORDS), 3)
    wanted = {f"{TOPIC}-{p}": RECORDS // 3 for p in range(3)}
    running = Reader(source(cluster)).start()
    assert sorted(numbers(running.all())) == list(range(RECORDS))
    stays_open = Reader(source(cluster), stays_open=True).start()
    assert sorted(numbers(stays_open.all())) == list(range(RECORDS))
    assert running.opened is not None
    looks = 0
    for id in KILLED:
        cluster.lead(TOPIC, id - 1)
        cluster.brokers[id].kill()
        for _ in range(2):
            assert running.opened.reach(running.positions, everything=False).ends == wanted
            again = Reader(source(cluster), positions=wanted, journal=running.journal).start()
            assert again.batch() == []
            latest = Reader(source(cluster, "latest")).start()
            assert (latest.batch(), latest.positions) == ([], wanted)
            looks += 5
        stays_open.positions = {}
        for reader in (stays_open, Reader(source(cluster)).start()):
            assert sorted(numbers(reader.all())) == list(range(RECORDS))
        cluster.start()
    record_property("told", f"{looks} looks at topics while leaders were killed, each of them right")
