"""Positions against a naive model: batches, restarts and replays lose nothing and account for nothing twice."""

from __future__ import annotations

from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.event_time import positions
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.positions import NO_POSITION, Position
from persistent_state.protocol import commits
from persistent_state.sources.base import Chunk, Reach
from persistent_state.store.log import Log
from tests import core
from tests.core import combine
from tests.event_time.messages import ROW, Counts, array, rows


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
            fresh = ~positions.is_accounted([self.position], 0, numbers, stamps)
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

    def test_a_message_is_accounted_for_by_the_position_of_its_own_partition(self) -> None:
        known = [Position(next=2), Position(next=5, accounted=((9, 30),)), Position()]
        partitions, numbers = array([0, 0, 1, 1, 1, 2]), array([1, 2, 4, 6, 7, 0])
        done = positions.is_accounted(known, partitions, numbers, array([10, 10, 10, 29, 30, 10]))
        assert done.tolist() == [True, False, True, True, False, False]

    @pytest.mark.parametrize("at", [[0, 1, 2], [NO_POSITION] * 3, [0, 1, NO_POSITION]], ids=str)
    def test_a_stream_that_starts_over_takes_no_replay_back_and_puts_none_off(self, at: list[int]) -> None:
        files = core.memory()
        log, plan = Log(files, "app"), core.plan_of(Counts(), ROW, files=files)
        core.start(log, [plan])
        core.play(log, plan, rows([5, 25]))
        entry = core.start(log, [plan])
        assert entry.flow_of("Counts").source.positions[""].next == 0
        core.play(log, plan, rows([5, 25]))
        # All comes again, in one chunk with what is new.
        newest = log.newest()
        assert newest is not None
        basis = commits.plan_batch(newest, core.alone(plan), Reach({}), now=0)
        sent = combine(core.alone(plan), basis, 0, None, [Chunk("", min(at), rows([5, 25, 45]), at=array(at))])
        core.commit(log, plan, core.merged(plan, [sent]))
        assert core.start(log, [plan]).flow_of("Counts").source.positions[""].next == 2
