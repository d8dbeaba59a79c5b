"""How tests run: hypothesis with the same examples each time under CI, real Spark in one process, and first."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

settings.register_profile("project", deadline=None, database=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("project")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real Spark takes longest, so it begins first; one process of pytest-xdist runs it, the others do the rest."""
    on_spark = [item for item in items if "spark" in item.path.parts]
    for item in on_spark:
        item.add_marker(pytest.mark.xdist_group("spark"))
    items.sort(key=lambda item: item not in on_spark)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have recorded as worth telling."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "told":
                terminalreporter.write_line(str(text))
