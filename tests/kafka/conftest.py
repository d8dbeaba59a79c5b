"""A topic for each test."""

from __future__ import annotations

import itertools

import pytest

from examples.broker import Broker

numbers = itertools.count()


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of two partitions."""
    name = f"values{next(numbers)}"
    broker.make(name, 2)
    return name
