"""Clocks against naive models: grids nest, and no interval straddles a clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.event_time import clocks
from persistent_state.event_time.clocks import BEGINNING, MOST_CUTS, MOST_IN_BATCH, Coarse, Settings
from tests.event_time.messages import STAMPS, array

INTERVALS = st.integers(1, 7)
COARSE = st.builds(
    lambda low, length, step: Coarse(low, low + length, step),
    st.integers(-60, 60),
    st.integers(0, 60),
    st.integers(1, 9),
)


class TestGrids:
    @given(STAMPS, INTERVALS)
    def test_a_checkpoint_clock_is_the_last_multiple_at_or_below(self, upstream: int, interval: int) -> None:
        assert clocks.checkpoint_clock(upstream, interval) == max(
            c for c in range(-400, 400) if c % interval == 0 and c <= upstream
        )

    @given(STAMPS, INTERVALS)
    def test_the_next_multiple_is_the_first_above(self, timestamp: int, interval: int) -> None:
        assert clocks.next_multiple(timestamp, interval) == min(
            c for c in range(-400, 400) if c % interval == 0 and c > timestamp
        )

    @given(STAMPS, st.integers(1, 3000), INTERVALS, st.integers(1, MOST_CUTS))
    def test_a_grid_is_the_finest_that_has_few_enough_points(
        self, low: int, length: int, interval: int, most: int
    ) -> None:
        step = clocks.grid_step(low, low + length, interval, most)

        def points(step: int) -> int:
            return sum(1 for c in range(low + 1, low + length) if c % step == 0)

        assert points(step) <= most
        assert step == interval or points(step // 2) > most

    @given(st.tuples(STAMPS, st.integers(1, 3000)), st.tuples(STAMPS, st.integers(1, 3000)), INTERVALS)
    def test_of_any_two_grids_the_coarser_is_a_part_of_the_finer(
        self, one: tuple[int, int], other: tuple[int, int], interval: int
    ) -> None:
        steps = sorted(clocks.grid_step(low, low + length, interval) for low, length in (one, other))
        assert steps[1] % steps[0] == 0

    def test_grids_are_found_from_the_beginning_of_time_too(self) -> None:
        step = clocks.grid_step(BEGINNING, 10**15, 60_000_000)
        assert step % 60_000_000 == 0
        assert (10**15 - BEGINNING) // step <= MOST_CUTS + 1


class TestIntervals:
    @given(st.data())
    def test_no_interval_straddles_a_clock_that_is_clean(self, data: st.DataObject) -> None:
        interval = data.draw(INTERVALS)
        # A clock of another interval is not on this grid.
        clock = data.draw(st.one_of(st.just(BEGINNING), st.integers(-50, 50)))
        stamps = data.draw(st.lists(st.integers(max(clock, -200), 300), min_size=1, max_size=60))
        horizon = data.draw(st.integers(max(clock, -250), 350))
        starts, coarse = clocks.split_intervals(array(stamps), clock, horizon, Settings(interval))

        assert all(clock <= start <= stamp for start, stamp in zip(starts.tolist(), stamps, strict=True))
        possible = [c for c in range(-400, 400) if c > clock and c % interval == 0]
        for c in possible:
            if coarse is None or not coarse.straddles(c):
                assert (starts < c).tolist() == [stamp < c for stamp in stamps]
        below = horizon // interval * interval
        assert len({start for start in starts.tolist() if start < below}) <= MOST_IN_BATCH + 1
        for start, stamp in zip(starts.tolist(), stamps, strict=True):
            if stamp >= below:
                assert start == max(clock, stamp // interval * interval)

    @given(st.data())
    def test_intervals_are_as_fine_as_the_checkpoint_interval_where_few_are_possible(self, data: st.DataObject) -> None:
        interval = data.draw(INTERVALS)
        stamps = data.draw(st.lists(st.integers(0, interval * (MOST_IN_BATCH + 1) - 1), min_size=1))
        starts, coarse = clocks.split_intervals(array(stamps), 0, interval * (MOST_IN_BATCH + 1), Settings(interval))
        assert coarse is None
        assert starts.tolist() == [stamp // interval * interval for stamp in stamps]

    def test_no_messages_have_no_intervals(self) -> None:
        starts, coarse = clocks.split_intervals(array([]), 0, 100, Settings(10))
        assert (starts.tolist(), coarse) == ([], None)

    @given(st.integers(-80, 140), st.lists(COARSE, max_size=5))
    def test_a_clean_clock_is_the_latest_that_straddles_nothing(self, clock: int, coarse: list[Coarse]) -> None:
        clean = clocks.clean_clock(clock, coarse)
        assert clean == max(c for c in range(-200, clock + 1) if not any(s.straddles(c) for s in coarse))

    @given(st.integers(-100, 100), st.integers(0, 400), INTERVALS, st.lists(COARSE, max_size=3))
    def test_new_cuts_are_the_clean_points_of_the_grid_and_the_new_clock(
        self, old: int, length: int, interval: int, coarse: list[Coarse]
    ) -> None:
        new = old + length
        cuts = clocks.new_cuts(old, new, interval, coarse)
        if length == 0:
            assert cuts == ()
            return
        step = clocks.grid_step(old, new, interval)
        grid = [c for c in range(old + 1, new) if c % step == 0]
        assert cuts == (*(c for c in grid if not any(s.straddles(c) for s in coarse)), new)
        assert len(cuts) <= MOST_CUTS + 1

    @given(st.lists(STAMPS), STAMPS, st.integers(0, 600), INTERVALS)
    def test_thinning_keeps_both_ends_and_a_handful_between(
        self, cuts: list[int], low: int, length: int, interval: int
    ) -> None:
        clock = low + length
        for global_clock in (low, BEGINNING):
            kept = clocks.thin_cuts(cuts, global_clock, clock, interval)
            assert {global_clock, clock} <= set(kept) <= {*cuts, global_clock, clock}
            assert list(kept) == sorted(set(kept))
            assert all(global_clock <= c <= clock for c in kept)
            assert len(kept) <= MOST_CUTS + 3

    @given(st.lists(STAMPS, min_size=1), st.lists(st.one_of(STAMPS, st.just(BEGINNING))), STAMPS)
    def test_folding_keeps_apart_what_a_cut_below_the_clock_keeps_apart(
        self, starts: list[int], cuts: list[int], clock: int
    ) -> None:
        folded = clocks.fold_starts(array(starts), cuts, clock).tolist()
        for start, after in zip(starts, folded, strict=True):
            assert after <= start
            assert all((start < cut) == (after < cut) for cut in cuts)
            if start >= clock:
                assert after == start
        below = {after for start, after in zip(starts, folded, strict=True) if start < clock}
        assert len(below) <= len({cut for cut in cuts if cut < clock and cut != BEGINNING}) + 1


def test_the_furthest_timestamps_do_not_share_an_interval() -> None:
    furthest = np.array([-(2**62), 2**62])
    starts, coarse = clocks.split_intervals(furthest, BEGINNING, BEGINNING, Settings(1_000_000))
    assert coarse is None
    assert (starts <= furthest).all()
    assert (furthest - starts < 1_000_000).all()


@given(
    st.lists(
        st.builds(clocks.Coarse, st.integers(0, 60), st.integers(0, 60), st.sampled_from([10, 20, 40])), max_size=8
    )
)
def test_segments_that_are_joined_keep_the_same_clocks_apart(segments: list[clocks.Coarse]) -> None:
    few = clocks.joined(segments)
    assert len(few) <= len(set(segments))
    for clock in range(-5, 70):
        assert any(s.straddles(clock) for s in few) == any(s.straddles(clock) for s in segments)


def test_a_clock_that_is_held_gathers_no_segments() -> None:
    few: list[clocks.Coarse] = []
    for high in range(100, 2000, 7):
        few = clocks.joined([*few, clocks.Coarse(0, high, 80)])
    assert few == [clocks.Coarse(0, 1997, 80)]


RULES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 400)), max_size=3)
VISITED = st.lists(st.integers(-300, 300), unique=True)


def kept(visited: Iterable[int], rules: Sequence[tuple[int, int]]) -> set[int]:
    """The clocks of which a rule keeps each."""
    visited = set(visited)
    return set[int]().union(*(clocks.last_of_periods(visited, *rule) for rule in rules))


class TestPeriods:
    @given(VISITED, st.integers(1, 50), st.integers(0, 400))
    def test_the_last_clock_of_each_period_stays_for_its_span(self, visited: list[int], every: int, span: int) -> None:
        expected = set()
        for end in range(-350, 351):
            of_period = [c for c in visited if end - every < c <= end] if end % every == 0 else []
            if of_period and max(visited) - max(of_period) <= span:
                expected.add(max(of_period))
        assert clocks.last_of_periods(visited, every, span) == expected

    @given(VISITED, RULES)
    def test_clocks_that_go_one_by_one_are_those_that_go_at_once(
        self, visited: list[int], rules: list[tuple[int, int]]
    ) -> None:
        left: set[int] = set()
        for clock in sorted(visited):
            left = kept({*left, clock}, rules)
        assert left == kept(visited, rules) == kept(left, rules)
