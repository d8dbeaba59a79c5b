"""Edges in words, and the times that a task keeps apart for those that it feeds."""

from __future__ import annotations

import pytest

from persistent_state.edges.base import Edge, in_words, times_apart
from persistent_state.edges.changes import Changes
from persistent_state.edges.closed_windows import ClosedWindows
from persistent_state.edges.emitted import Emitted
from tests.sentences import problem

MINUTE = 60_000_000

EDGES = [Changes("PerShop"), Changes("PerShop", every="1 minute"), ClosedWindows("PerHour"), Emitted("Fraud")]
WORDS = ['Changes("PerShop")', 'Changes("PerShop", every="1 minute")', 'ClosedWindows("PerHour")', 'Emitted("Fraud")']


@pytest.mark.parametrize(("edge", "words"), [*zip(EDGES, WORDS, strict=True)], ids=WORDS)
def test_an_edge_is_shown_as_its_user_writes_it(edge: Edge, words: str) -> None:
    assert in_words({"": edge.identity}) == words
    assert in_words({"of": edge.identity, "more": edge.identity}) == f"of={words} and more={words}"


def test_without_edges_no_other_task_is_shown() -> None:
    assert in_words(None) == in_words({}) == "no other task"


def test_an_edge_of_another_version_is_shown_by_what_the_log_has() -> None:
    assert in_words({"": {"tides": "PerShop", "every": MINUTE}}) == "the tides of PerShop"


def test_a_task_is_known_at_the_times_at_which_another_looks_at_it() -> None:
    plain, each_minute, windows, emitted = EDGES
    assert times_apart(each_minute, "Fed", MINUTE, {7 * MINUTE}) == {MINUTE}
    # What it feeds is made of its changes, and is looked at every so often.
    assert times_apart(plain, "Fed", MINUTE, {7 * MINUTE}) == {7 * MINUTE}
    assert (
        times_apart(windows, "Fed", MINUTE, {7 * MINUTE}) == times_apart(emitted, "Fed", MINUTE, {7 * MINUTE}) == set()
    )
    assert "make `every` a multiple" in problem(lambda: times_apart(each_minute, "Fed", 7 * MINUTE, set()))
