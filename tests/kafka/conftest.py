"""A real broker of Kafka for the tests of one process, which is killed with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from examples.broker import Broker
from tests.processes import start_guarded


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("broker"), launch=start_guarded) as broker:
        yield broker
