"""Values at clocks in a Kafka of several brokers: each is seen once, whichever is cut off, killed or led elsewhere."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import confluent_kafka
import pytest

from persistent_state.errors import StoreUnavailableError
from persistent_state.kafka import ledger
from tests.kafka.cluster import Cluster
from tests.kafka.deliverer import check, deliver, run_on, seen, writer_of
from tests.soak import soak_or

numbers = itertools.count()

LEADERS = soak_or(ci=1, soak=20)
"""Leaders of the bookkeeping that are killed, one after the other."""


def new_topics(cluster: Cluster, replicas: list[list[int]], bookkeeping: list[int]) -> str:
    """A topic with these replicas of its partitions, and that of its bookkeeping with these."""
    name = f"led{next(numbers)}"
    cluster.place(name, replicas)
    cluster.place(f"{name}.clocks", [bookkeeping], cleanup_policy="compact")
    return name


def bootstrapped_by(kind: type, choose: Callable[[], str]) -> type:
    """A client that has its first word of the brokers from one of them alone, as any may by chance."""

    def __init__(self: Any, options: dict[str, Any]) -> None:
        super(Chosen, self).__init__({**options, "bootstrap.servers": choose()})

    Chosen = type("Chosen", (kind,), {"__init__": __init__})
    return Chosen


def test_each_value_is_seen_once_although_a_broker_that_is_cut_off_goes_on_leading_the_bookkeeping(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topics(cluster, [[2, 3, 1], [3, 2, 1]], [1, 2, 3])
    dice = random.Random(1)

    def reader() -> str:
        return cluster.brokers[dice.choice((1, 2, 3))].address

    def writer() -> str:
        # What is written by way of the broker that is cut off is never acknowledged, which only takes long.
        return cluster.brokers[dice.choice((2, 3))].address

    monkeypatch.setattr(confluent_kafka, "Consumer", bootstrapped_by(confluent_kafka.Consumer, reader))
    monkeypatch.setattr(confluent_kafka, "Producer", bootstrapped_by(confluent_kafka.Producer, writer))
    monkeypatch.setattr(ledger, "FIRST_WAIT", 0.3)
    wanted = range(10, 110, 10)
    deliver(writer_of(cluster.address, topic), 2, wanted[:2])
    cluster.cut(1)
    cluster.wait_until(lambda: cluster.leader(f"{topic}.clocks", by=2) in (2, 3), "another leads")
    for end in range(4, len(wanted) + 1, 2):
        # As under a supervisor: a driver after the other, each of which delivers what is there by then.
        run_on(cluster.address, topic, 2, wanted[:end])
    assert cluster.leader(f"{topic}.clocks", by=1) == 1, "it takes itself for the leader to the end"
    monkeypatch.undo()
    check(seen(cluster.start(), topic), wanted)


@pytest.mark.soak
def test_each_value_is_seen_once_although_leaders_and_the_controller_are_killed_and_partitions_moved(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topics(cluster, [[1, 2, 3], [2, 3, 1]], [1, 2, 3])
    bookkeeping = f"{topic}.clocks"
    monkeypatch.setattr(ledger, "PATIENCE", 6.0)
    is_over, asked = threading.Event(), [0]

    def clocks() -> Iterator[int]:
        for clock in itertools.count(10, 10):
            if is_over.is_set():
                return
            asked[0] = max(asked[0], clock)
            yield clock

    def deliver_all() -> None:
        while not is_over.is_set():
            with suppress(StoreUnavailableError):
                deliver(writer_of(cluster.address, topic), 2, clocks(), writers=2)

    def see_it_go_on() -> None:
        before = asked[0]
        cluster.wait_until(lambda: asked[0] > before + 10, "more clocks are delivered")

    with ThreadPoolExecutor(1) as pool:
        delivering = pool.submit(deliver_all)
        try:
            see_it_go_on()
            for _ in range(LEADERS):
                cluster.brokers[cluster.leader(bookkeeping)].kill()
                see_it_go_on()
                cluster.start()
            cluster.controller.kill()
            cluster.brokers[cluster.leader(topic)].kill()
            cluster.start()
            see_it_go_on()
            cluster.move(bookkeeping, 0, [2, 3])
            cluster.move(topic, 1, [3, 1])
            see_it_go_on()
            cluster.lead(topic, 0)
            see_it_go_on()
        finally:
            is_over.set()
        delivering.result()
    last = writer_of(cluster.address, topic).last_clock(2)
    assert last >= asked[0] - 10
    wanted = range(10, last + 20, 10)
    deliver(writer_of(cluster.address, topic), 2, wanted)
    check(seen(cluster, topic), wanted)
