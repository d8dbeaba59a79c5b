"""The rate source: the same rows with the same timestamps in every start, whatever the micro-batches."""

from __future__ import annotations

import copy
import math
from datetime import datetime, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state import InvalidInputError, RateSource
from persistent_state.sources.rate import PARTITION

SECOND = 1_000_000


class Wall:
    """A wall clock that is set by hand."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def read(source: RateSource, opened: RateSource, begin: int, end: int, parts: int) -> list[tuple[int, int, int]]:
    """(position, microseconds, value) of the rows between two positions, read by copies as they were before `open`."""
    rows = []
    for split in opened.splits({PARTITION: begin}, {PARTITION: end}, parts):
        for chunk in copy.deepcopy(source).read(split):
            stamps = chunk.rows["timestamp"].cast("int64").to_pylist()
            rows += zip(chunk.positions.tolist(), stamps, chunk.rows["value"].to_pylist(), strict=True)
    return rows


@given(
    rate=st.integers(1, 3_000_000),
    start=st.integers(0, 2 * 10**15),
    pauses=st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=6),
    restart_after=st.integers(0, 6),
    most=st.integers(1, 2000),
    parts=st.integers(1, 4),
)
def test_every_start_sees_the_same_rows_whatever_its_micro_batches(
    rate: int, start: int, pauses: list[int], restart_after: int, most: int, parts: int
) -> None:
    wall = Wall(start)
    source = RateSource(rate, rows_per_batch=most, now_us=wall)
    opened, begun, journal, position, rows = copy.deepcopy(source), start, [], 0, []
    opened._now_us = wall
    opened.open([], {})
    for i, pause in enumerate(pauses):
        wall.now += pause
        if i == restart_after:
            opened = copy.deepcopy(source)
            opened._now_us = wall
            opened.open(journal, {PARTITION: position})
            # What was never committed need not be the same.
            begun = begun if journal else wall.now
        # Asked twice, as Spark may: what counts is the last answer.
        opened.reach({PARTITION: position}, everything=False)
        reach = opened.reach({PARTITION: position}, everything=False)
        due = (wall.now - begun) * rate // SECOND
        assert reach.ends.get(PARTITION, 0) == max(position, min(due, position + most))
        journal += reach.journal
        if reach.ends.get(PARTITION, 0) > position:
            rows += read(source, opened, position, reach.ends[PARTITION], parts)
        position = reach.ends.get(PARTITION, 0)
    assert rows == [(v, begun + math.floor(Fraction(v * SECOND, rate)), v) for v in range(position)]
    assert len(journal) == (position > 0)
    assert all(stamp <= wall.now for _, stamp, _ in rows)


def test_an_end_is_what_is_due_when_the_source_is_frozen() -> None:
    wall = Wall(5 * SECOND)
    source = RateSource(10, start=datetime(1970, 1, 1, tzinfo=timezone.utc), now_us=wall)
    source.open([], {})
    source.freeze()
    wall.now = 100 * SECOND
    assert source.reach({}, everything=True).ends == {PARTITION: 50}
    assert source.reach({PARTITION: 50}, everything=False).ends == {PARTITION: 50}


def test_a_source_that_is_to_stay_within_a_position_does_not_pass_it() -> None:
    wall = Wall(0)
    source = RateSource(10, now_us=wall)
    source.open([], {})
    wall.now = 100 * SECOND
    source.stay_within({PARTITION: 7})
    assert source.reach({}, everything=True).ends == {PARTITION: 7}
    assert source.reach({PARTITION: 7}, everything=False).ends == {PARTITION: 7}
    assert source.reach({PARTITION: 9}, everything=False).ends == {PARTITION: 9}
    source.stay_within({})
    assert source.reach({}, everything=True).ends == {}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (RateSource(11), r"rows_per_second=11 start=None .* are others than the 10 and 7000000 that"),
        (RateSource(10, start=datetime(1970, 1, 1, 0, 0, 8, tzinfo=timezone.utc)), "start=8000000 "),
    ],
)
def test_other_rows_than_those_of_the_first_start_are_refused(other: RateSource, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        other.open(["7000000 10"], {PARTITION: 3})


def test_what_can_not_be_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"rows_per_second=0, rows_per_batch=\d+; give at least 1 of each"):
        RateSource(0)
    with pytest.raises(InvalidInputError, match="has no time zone"):
        RateSource(1, start=datetime(2024, 1, 1))
