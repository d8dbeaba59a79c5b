"""A real broker of Kafka for the tests of one process, which is killed with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.broker import Broker
from tests.processes import start_guarded
from tests.store.servers import needed


@pytest.fixture(scope="session")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("broker"), launch=start_guarded)
    with needed():
        broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def broker(_broker: Broker) -> Broker:
    """The one broker, in which each test makes topics of its own; running, also after a test that killed it."""
    if not _broker.is_running:
        _broker.start()
    return _broker
