"""How tests run: hypothesis with the same examples each time under CI, real Spark in one process, and first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.store.servers import Servers

settings.register_profile("project", deadline=None, database=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("project")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Real Spark takes longest, so one process of pytest-xdist begins with it, and the others do the rest.

    The servers of stores are started by one process too.
    """
    from xdist.scheduler import LoadScopeScheduling

    class SparkApart(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((apart for apart in ("/spark/", "test_conformance") if apart in nodeid), nodeid)

    return SparkApart(config, log)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Servers of stores by the name of their extra, started when first asked for."""
    started = Servers()
    yield started
    started.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have recorded as worth telling."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "told":
                terminalreporter.write_line(str(text))
