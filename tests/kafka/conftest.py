"""A topic for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from examples.broker import Broker
from tests.kafka.security import secured_broker
from tests.store.servers import needed

numbers = itertools.count()


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of two partitions."""
    name = f"values{next(numbers)}"
    broker.make(name, 2)
    return name


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that wants TLS and a password ("hunter22"), and knows who may do what."""
    with needed(), secured_broker(tmp_path_factory.mktemp("secured") / "broker", "hunter22") as broker:
        yield broker
