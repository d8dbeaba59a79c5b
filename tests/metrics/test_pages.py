"""The page of metrics has each of them as it is, and names no other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from persistent_state.metrics import measures, of_store
from persistent_state.metrics.measures import Measure

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy/prometheus"
PAGE = (ROOT / "docs/metrics.md").read_text("utf-8")


def rows(of: Sequence[Measure]) -> list[str]:
    """The rows of a table of metrics."""
    return [
        f"| `{each.in_queries}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels[1:]) or '-'} "
        f"| {each.help} |"
        for each in of
    ]


def names_in(text: str) -> set[str]:
    """The names of metrics in a text, without what a histogram's samples end with."""
    found = re.findall(rf"\b{measures.PREFIX}[a-z_]*[a-z]", text)
    return {re.sub(r"_(bucket|count|sum)$", "", name) for name in found}


EVERY = [*measures.OF_STORE, *measures.OF_RUN, *measures.OF_PROCESS]


@pytest.mark.parametrize("of", [measures.OF_STORE, [*measures.OF_RUN, *measures.OF_PROCESS]], ids=["store", "job"])
def test_the_page_has_a_row_for_each_metric(of: Sequence[Measure]) -> None:
    assert "\n".join(rows(of)) in PAGE


def test_the_page_names_no_metric_that_there_is_not() -> None:
    assert names_in(PAGE) == {each.in_queries for each in EVERY}


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json"])
def test_alerts_and_dashboard_ask_for_metrics_that_there_are(name: str) -> None:
    names = names_in((DEPLOY / name).read_text("utf-8"))
    assert len(names) > 5
    assert names <= {each.in_queries for each in EVERY}


def test_the_dashboard_asks_for_labels_that_there_are() -> None:
    dashboard = json.loads((DEPLOY / "dashboard.json").read_text("utf-8"))
    by_name = {each.in_queries: each for each in EVERY}
    for target in (target for panel in dashboard["panels"] for target in panel["targets"]):
        labels = set.intersection(*(set(by_name[name].labels) for name in names_in(target["expr"])))
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, target


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed; .ci/run installs it")
def test_alerts_fire_in_what_takes_longer_than_a_test(tmp_path: Path) -> None:
    for file in (DEPLOY / "alerts.yml", Path(__file__).parent / "alerts_test.yml"):
        shutil.copy(file, tmp_path)
    tested = subprocess.run(["promtool", "test", "rules", tmp_path / "alerts_test.yml"], capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.browser
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed; .ci/run installs it")
def test_prometheus_takes_the_alerts() -> None:
    checked = subprocess.run(["promtool", "check", "rules", DEPLOY / "alerts.yml"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_the_page_says_how_many_are_named() -> None:
    assert f"the {of_store.MOST_CHANNELS} slowest channels" in PAGE
    assert f"the {of_store.MOST_REASONS} most frequent reasons" in PAGE
