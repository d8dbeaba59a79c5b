"""Channels against naive models: jumps, idleness, the upstream min clock, and deliveries cut into any parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from persistent_state.event_time.channels import (
    Channel,
    beyond_limit,
    deliver,
    held_back,
    listed_channels,
    live_channels,
    upstream_min,
)
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.store.log import Log
from tests import core
from tests.event_time.messages import ROW, STAMPS, Counts, array, rows

JUMPED = {"timestamp too far ahead of its channel": 1}


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
        for first in (0, 2, 2):
            assert (entry.clock, entry.late_rows_of("Counts").counts()) == (10, JUMPED)
            assert core.state_at(entry, plan, None) == {(): 2}
            at = core.start(log, [plan]).flow_of("Counts").source.positions[""].next
            # The first message is below the clock. A start that has met it lets the next replay begin behind it, and the jump.
            assert at == first
            entry = core.play(log, plan, rows(stamps[at:]))
        # A start that read nothing keeps the reference for the next.
        core.start(log, [plan])
        core.start(log, [plan])
        entry = core.play(log, plan, rows([*stamps, 13, 24][at:]))
        assert (entry.clock, entry.late_rows_of("Counts").counts()) == (20, JUMPED)
        assert core.state_at(entry, plan, None) == {(): 4}


CHANNELS = st.dictionaries(
    st.sampled_from("abcd"),
    st.builds(Channel, st.one_of(st.none(), st.integers(0, 100)), st.integers(0, 50), st.booleans()),
)

IDLE_AFTER = st.one_of(st.none(), st.integers(1, 30))


class TestChannels:
    @given(CHANNELS, st.integers(0, 60), IDLE_AFTER)
    def test_a_channel_holds_the_clock_until_it_ends_or_is_idle(
        self, channels: dict[str, Channel], now: int, idle_after: int | None
    ) -> None:
        live = live_channels(channels, now, idle_after)
        assert live == {
            name: c
            for name, c in channels.items()
            if not c.ended and (idle_after is None or c.active > now - idle_after)
        }

    @given(CHANNELS, st.integers(0, 50), st.integers(0, 60), IDLE_AFTER, st.sets(st.sampled_from("abcd")))
    def test_who_waits_is_live_and_too_far_ahead_and_the_slowest_never_waits(
        self, channels: dict[str, Channel], alignment: int, now: int, idle_after: int | None, exhausted: set[str]
    ) -> None:
        live = live_channels(channels, now, idle_after)
        held = held_back({name: channel.reached for name, channel in live.items()}, alignment, exhausted)
        live = {name: channel for name, channel in live.items() if name not in exhausted}
        came = {name: BEGINNING if c.newest is None else c.newest for name, c in live.items()}
        assert held == {name for name in live if came[name] - min(came.values()) > alignment}
        assert not live or held < live.keys()

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
