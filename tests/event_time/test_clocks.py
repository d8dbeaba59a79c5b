"""Event time against naive models: grids nest, no interval straddles a clock, and a replay loses and doubles nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from monoids import Count
from persistent_state import Message, NonWindowState, PersistentState, PersistentTask
from persistent_state.batch.combine import combine
from persistent_state.batch.shard import merge_shard
from persistent_state.event_time import clocks, positions
from persistent_state.event_time.channels import (
    Channel,
    beyond_limit,
    deliver,
    listed_channels,
    live_channels,
    upstream_min,
)
from persistent_state.event_time.clocks import BEGINNING, MOST_CUTS, MOST_IN_BATCH, Coarse, Settings
from persistent_state.event_time.positions import NO_POSITION, Position
from persistent_state.protocol import commits
from persistent_state.sources.base import Chunk, Reach
from persistent_state.store.log import Log
from tests import core

ROW = pa.schema([("ts", pa.int64())])
JUMPED = {"timestamp too far ahead of its channel": 1}

STAMPS = st.integers(-300, 300)
INTERVALS = st.integers(1, 7)
COARSE = st.builds(
    lambda low, length, step: Coarse(low, low + length, step),
    st.integers(-60, 60),
    st.integers(0, 60),
    st.integers(1, 9),
)


class Counts(PersistentTask):
    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Count())

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, 1)


def rows(stamps: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(stamps, pa.int64())], schema=ROW)


def array(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


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
        starts, coarse = clocks.split_intervals(array(stamps), clock, horizon, interval)

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
        starts, coarse = clocks.split_intervals(array(stamps), 0, interval * (MOST_IN_BATCH + 1), interval)
        assert coarse is None
        assert starts.tolist() == [stamp // interval * interval for stamp in stamps]

    def test_no_messages_have_no_intervals(self) -> None:
        starts, coarse = clocks.split_intervals(array([]), 0, 100, 10)
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


class Partition:
    """A naive model: which messages a task has in its state or counted as late, and where its source stands."""

    def __init__(self, stamps: list[int], delay: int) -> None:
        self.stamps = stamps
        self.delay = delay
        self.clock = BEGINNING
        self.newest: int | None = None
        self.position = Position()
        self.state: list[int] = []
        self.late: list[int] = []

    def batch(self, sizes: list[int], oldest: int) -> None:
        """Read chunks of these sizes as one micro-batch, then move the clock as far as it goes."""
        begin, spans = self.position.next, []
        for size in sizes:
            end = min(begin + size, len(self.stamps))
            numbers = array(list(range(begin, end)))
            stamps = array(self.stamps[begin:end])
            fresh = ~positions.is_accounted(self.position, numbers, stamps)
            taken = fresh & (stamps >= self.clock)
            self.state += numbers[taken].tolist()
            self.late += numbers[fresh & ~taken].tolist()
            if taken.any():
                top = int(stamps[taken].max())
                spans.append((begin, top))
                self.newest = top if self.newest is None else max(self.newest, top)
            begin = end
        self.position = positions.forget_spans(positions.move_position(self.position, begin, spans), oldest)
        if self.newest is not None:
            self.clock = max(self.clock, self.newest - self.delay)

    def restart(self, clock: int) -> None:
        """What a start at this clock leaves: what is below it, and what it will not read again."""
        self.position = positions.rewind_position(self.position, clock)
        self.state = [n for n in self.state if self.stamps[n] < clock]
        self.late = [n for n in self.late if self.stamps[n] < clock or n < self.position.next]
        self.clock, self.newest = clock, None

    def check(self) -> None:
        accounted = sorted(self.state + self.late)
        assert len(accounted) == len(set(accounted)), "a message was accounted for twice"
        missing = set(range(self.position.next)) - set(accounted)
        assert not missing, f"messages {missing} are lost"
        for n in self.late:
            # Within the delay of the newest before it: never late, on a first run or a replay.
            before = max(self.stamps[:n], default=BEGINNING)
            assert self.stamps[n] < before - self.delay


class TestPositions:
    @given(st.data())
    def test_batches_and_restarts_lose_nothing_and_account_for_nothing_twice(self, data: st.DataObject) -> None:
        partition = Partition(data.draw(st.lists(st.integers(0, 12), max_size=30)), delay=data.draw(st.integers(0, 4)))
        oldest = BEGINNING
        with mock.patch.object(positions, "MOST_SPANS", data.draw(st.sampled_from([1, 2, 3, 64]))):
            for _ in range(data.draw(st.integers(0, 10))):
                if data.draw(st.integers(0, 2)):
                    partition.batch(data.draw(st.lists(st.integers(1, 5), max_size=4)), oldest)
                else:
                    # The global clock: anything up to the task's own, never back.
                    oldest = (
                        data.draw(st.integers(max(oldest, -1), partition.clock)) if partition.clock >= 0 else oldest
                    )
                    known = partition.position.known
                    partition.restart(oldest)
                    assert partition.position.known == known
                partition.check()
            partition.batch([len(partition.stamps)], oldest)
            partition.check()
            assert len(partition.state) + len(partition.late) == len(partition.stamps)

    @given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4), min_size=1, max_size=12), st.integers(0, 31))
    def test_a_replay_starts_at_the_first_chunk_that_holds_a_message_at_or_above_the_clock(
        self, chunks: list[list[int]], clock: int
    ) -> None:
        position, first, firsts = Position(), 0, []
        for chunk in chunks:
            position = positions.move_position(position, first + len(chunk), [(first, max(chunk))])
            firsts.append(first)
            first += len(chunk)
        wanted = [first for first, chunk in zip(firsts, chunks, strict=True) if max(chunk) >= clock]
        assert positions.replay_from(position, clock) == (wanted[0] if wanted else first)

    @given(st.lists(st.tuples(st.integers(1, 4), st.integers(-2, 9)), max_size=60), st.integers(0, 200))
    def test_few_spans_are_remembered_and_a_replay_never_starts_too_late(
        self, chunks: list[tuple[int, int]], clock: int
    ) -> None:
        position, first, newest, wanted = Position(), 0, 0, None
        with mock.patch.object(positions, "MOST_SPANS", 4):
            for length, step in chunks:
                newest += step
                if wanted is None and newest >= clock:
                    wanted = first
                position = positions.move_position(position, first + length, [(first, newest)])
                assert len(position.spans) <= 4
                first += length
        assert positions.replay_from(position, clock) <= (first if wanted is None else wanted)

    def test_what_no_retained_clock_can_ask_for_is_forgotten(self) -> None:
        position = positions.forget_spans(
            positions.move_position(Position(), 30, [(0, 5), (10, 15), (20, 25)]), clock=15
        )
        assert position.spans == ((10, 15), (20, 25))

    def test_accounts_are_settled_once_the_source_has_been_read_past_them(self) -> None:
        position = positions.rewind_position(Position(next=50, spans=((0, 9), (20, 19), (40, 29))), clock=15)
        assert position == Position(next=20, accounted=((50, 15),))
        assert position.known == 50
        assert positions.move_position(position, 49, []).accounted == ((50, 15),)
        assert positions.move_position(position, 50, []).accounted == ()

    @pytest.mark.parametrize("at", [[0, 1, 2], [NO_POSITION] * 3, [0, 1, NO_POSITION]], ids=str)
    def test_a_stream_that_starts_over_takes_no_replay_back_and_puts_none_off(self, at: list[int]) -> None:
        files = core.memory()
        log, plan = Log(files, "app"), core.plan_of(Counts(), ROW, files=files)
        core.start(log, [plan])
        core.play(log, plan, rows([5, 25]))
        entry = core.start(log, [plan])
        assert entry.tasks["Counts"].source.positions[""].next == 0
        core.play(log, plan, rows([5, 25]))
        # All comes again, in one chunk with what is new.
        newest = log.newest()
        assert newest is not None
        basis = commits.plan_batch(newest, plan.name, Reach({}), now=0)
        blobs = combine(plan, basis, 0, None, [Chunk("", min(at), rows([5, 25, 45]), at=array(at))])
        core.commit(log, [merge_shard(plan, 0, blobs, None, core.new_id)])
        assert core.start(log, [plan]).tasks["Counts"].source.positions[""].next == 2


class TestJumps:
    @given(
        st.lists(st.integers(0, 60), max_size=25),
        st.one_of(st.none(), st.integers(0, 60)),
        st.integers(0, 20),
        st.integers(1, 5),
        st.integers(0, 25),
    )
    def test_bad_ones_are_those_beyond_the_newest_believed_until_enough_in_a_row_are(
        self, stamps: list[int], newest: int | None, jump: int, believe: int, cut: int
    ) -> None:
        bad, streak = beyond_limit(array(stamps), newest, 0, jump, believe)
        believed, row = newest, 0
        for stamp, is_bad in zip(stamps, bad.tolist(), strict=True):
            beyond = believed is not None and stamp > believed + jump
            row = row + 1 if beyond else 0
            assert is_bad == (0 < row < believe)
            if not is_bad:
                row = 0
                believed = stamp if believed is None else max(believed, stamp)
        assert streak == row

        # A batch may end anywhere.
        first, streak_between = beyond_limit(array(stamps[:cut]), newest, 0, jump, believe)
        good = [stamp for stamp, is_bad in zip(stamps, first.tolist(), strict=False) if not is_bad]
        between = max([*good, *([newest] if newest is not None else [])], default=None)
        second, at_end = beyond_limit(array(stamps[cut:]), between, streak_between, jump, believe)
        assert ([*first.tolist(), *second.tolist()], at_end) == (bad.tolist(), streak)

    def test_one_broken_timestamp_does_not_move_what_is_believed(self) -> None:
        bad, streak = beyond_limit(array([10, 9_999, 11, 12]), None, 0, jump=100, believe=2)
        assert (bad.tolist(), streak) == ([False, True, False, False], 0)

    def test_a_jump_is_set_aside_again_after_a_restart_and_the_clock_stays_where_it_was(self) -> None:
        plan = core.plan_of(Counts(), ROW, settings=Settings(interval=10, ahead=2**62, jump=100))
        log, stamps = Log(plan.files, "app"), [5, 1_000_000, 12]
        core.start(log, [plan])
        entry = core.play(log, plan, rows(stamps))
        for _ in range(3):
            assert (entry.clock, entry.tasks["Counts"].late_rows.counts()) == (10, JUMPED)
            assert core.state_at(entry, plan, None) == {(): 2}
            at = core.start(log, [plan]).tasks["Counts"].source.positions[""].next
            # The first message is below the clock: the replay begins with it, yet it is not judged again.
            assert at == 0
            entry = core.play(log, plan, rows(stamps[at:]))
        # A start that read nothing keeps the reference for the next.
        core.start(log, [plan])
        core.start(log, [plan])
        entry = core.play(log, plan, rows([*stamps, 13, 24]))
        assert (entry.clock, entry.tasks["Counts"].late_rows.counts()) == (20, JUMPED)
        assert core.state_at(entry, plan, None) == {(): 4}


CHANNELS = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(Channel, st.one_of(st.none(), st.integers(0, 100)), st.integers(0, 50), st.booleans()),
)


class TestChannels:
    @given(CHANNELS, st.integers(0, 60), st.one_of(st.none(), st.integers(1, 30)))
    def test_a_channel_holds_the_clock_until_it_ends_or_is_idle(
        self, channels: dict[str, Channel], now: int, idle_after: int | None
    ) -> None:
        live = live_channels(channels, now, idle_after)
        assert live == [
            c for c in channels.values() if not c.ended and (idle_after is None or c.active > now - idle_after)
        ]

    @given(CHANNELS, st.integers(0, 100), st.integers(0, 30))
    def test_the_upstream_min_clock_is_the_slowest_channels_and_never_goes_back(
        self, channels: dict[str, Channel], clock: int, delay: int
    ) -> None:
        assume(channels)
        got = upstream_min(channels.values(), clock, delay)
        assert got >= clock
        if any(c.newest is None for c in channels.values()):
            assert got == clock
        else:
            assert got == max(clock, min(c.newest - delay for c in channels.values() if c.newest is not None))

    @given(st.one_of(st.none(), STAMPS), st.one_of(st.none(), STAMPS), st.one_of(st.just(BEGINNING), STAMPS))
    def test_a_channel_that_is_cut_back_keeps_for_jumps_what_it_had_reached_below_the_clock(
        self, newest: int | None, before: int | None, clock: int
    ) -> None:
        cut = Channel(newest, 3, ended=True, beyond=2, before=before).cut_back(clock, now=9)
        reached = before if newest is None else min(newest, clock)
        assert cut == Channel(None, 9, before=reached)
        assert cut.cut_back(clock, now=12) == Channel(None, 12, before=reached)

    def test_a_listed_channel_is_there_before_it_delivers_and_gone_when_no_longer_listed(self) -> None:
        known = {"gone": Channel(5, 1), "kept": Channel(7, 2, beyond=3), "ending": Channel(8, 2)}
        assert listed_channels(known, {"kept": False, "new": False, "ending": True}, (), now=9) == {
            "kept": Channel(7, 2, beyond=3),
            "new": Channel(None, 9),
            "ending": Channel(8, 2, ended=True),
        }
        assert listed_channels(known, None, (), now=9) == known
        assert listed_channels(known, None, ("kept", "to come"), now=9) == {**known, "to come": Channel(None, 9)}

    @pytest.mark.parametrize("parts", [1, 2, 3])
    def test_deliveries_are_the_same_however_a_batch_was_cut_into_parts(self, parts: int) -> None:
        stamps = [4, 9, 2, 7, 1, 8]
        seen = [("a", max(stamps[i::parts]), 0) for i in range(parts)]
        assert deliver({}, seen, now=50) == {"a": Channel(9, 50, before=BEGINNING)}
        known = {"a": Channel(20, 10, before=15)}
        assert deliver(known, seen, now=50) == {"a": Channel(20, 50, before=15)}

    def test_a_channel_whose_messages_were_all_set_aside_is_not_active(self) -> None:
        before = {"a": Channel(20, 10, before=BEGINNING)}
        assert deliver(before, [("a", None, 2)], now=50) == {"a": replace(before["a"], beyond=2)}
        assert deliver({}, [("b", None, 1)], now=50) == {"b": Channel(None, 50, beyond=1, before=BEGINNING)}


def test_the_furthest_timestamps_do_not_share_an_interval() -> None:
    furthest = np.array([-(2**62), 2**62])
    starts, coarse = clocks.split_intervals(furthest, BEGINNING, BEGINNING, 1_000_000)
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
