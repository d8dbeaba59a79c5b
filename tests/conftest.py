"""How tests run: hypothesis with the same examples each time under CI, real Spark in two processes, and first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from examples.broker import Broker
from tests.processes import start_guarded
from tests.store.servers import Servers, needed

if TYPE_CHECKING:
    from tests.kafka.cluster import Cluster

settings.register_profile("project", deadline=None, database=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("project")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What shares a Spark, drivers or servers stays in one process of pytest-xdist; what takes longest begins."""
    from xdist.scheduler import LoadScopeScheduling

    class Scopes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((name for name, _ in TOGETHER[rank(nodeid) :]), nodeid)

    config.option.loadscopereorder = False
    return Scopes(config, log)


TOGETHER = (
    ("drivers", tuple(f"/spark/test_{name}.py" for name in ("kills", "failures", "drivers", "cluster", "deliveries"))),
    ("kafka", ("/kafka/", "test_kafka")),
    ("spark", ("/spark/",)),
    ("servers", ("test_conformance.py",)),
)
"""Tests that run in one process: a name, and what marks their files."""


def rank(nodeid: str) -> int:
    """The place of a test's group in `TOGETHER`; the number of groups if it is in none."""
    return next((i for i, (_, marks) in enumerate(TOGETHER) if any(mark in nodeid for mark in marks)), len(TOGETHER))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Servers of stores by the name of their extra, started when first asked for."""
    started = Servers()
    yield started
    started.close()


@pytest.fixture(scope="session")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    # What takes too long is looked for more often than each ten seconds.
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    broker = Broker(tmp_path_factory.mktemp("broker"), settings, launch=start_guarded)
    with needed():
        broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def broker(_broker: Broker) -> Broker:
    """A real broker of Kafka, in which each test makes topics of its own; it runs, also after a test that killed it."""
    if not _broker.is_running:
        _broker.start()
    return _broker


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from tests.kafka.cluster import Cluster

    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), settings)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(_cluster: Cluster) -> Cluster:
    """Three real brokers of Kafka, in which each test makes topics of its own; all run, also after a test that killed some."""
    with needed():
        return _cluster.start()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have recorded as worth telling."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "told":
                terminalreporter.write_line(str(text))
