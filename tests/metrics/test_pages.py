"""The page of metrics has each of them as it is, and names no other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from persistent_state.metrics import measures, of_store
from persistent_state.metrics.measures import Measure

ROOT = Path(__file__).parents[2]
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


EVERY = [*measures.OF_STORE, *measures.OF_RUN]


@pytest.mark.parametrize("of", [measures.OF_STORE, measures.OF_RUN], ids=["store", "run"])
def test_the_page_has_a_row_for_each_metric(of: Sequence[Measure]) -> None:
    assert "\n".join(rows(of)) in PAGE


def test_the_page_names_no_metric_that_there_is_not() -> None:
    assert names_in(PAGE) == {each.in_queries for each in EVERY}


def test_the_page_says_how_many_are_named() -> None:
    assert f"the {of_store.MOST_CHANNELS} slowest channels" in PAGE
    assert f"the {of_store.MOST_REASONS} most frequent reasons" in PAGE
