"""Each row gets the first verdict that applies, and a part learns of its channels what the rows tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask, TumblingWindow, WindowState
from persistent_state.batch.judge import (
    ACCEPTED,
    AHEAD,
    BEYOND,
    FOREIGN,
    JUMP,
    LATE,
    NO_TIMESTAMP,
    OUTSIDE,
    REPLAYED_OR_LATE,
    SKIPPED,
    Sightings,
    judge,
)
from persistent_state.batch.packets import Basis
from persistent_state.batch.plan import AT_LEAST_ONCE, Plan
from persistent_state.batch.rows import place_of
from persistent_state.event_time.channels import Channel, beyond_limit, deliver
from persistent_state.event_time.clocks import FURTHEST, Bounds, Settings
from persistent_state.event_time.positions import NO_POSITION, Position
from persistent_state.protocol.commits import plan_batch
from persistent_state.sources.base import Chunk, Reach
from persistent_state.state import KeptState
from persistent_state.store.log import Log
from tests import core
from tests.core import us

SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("channel", pa.string()), ("n", pa.int64())])
CLOCK, NOW = 100, 10_000


class Kept(PersistentTask):
    key = "key"
    value = "n"

    def __init__(self, state: KeptState[Any] | None = None) -> None:
        self.state = state or NonWindowState(Sum())

    def persistent_state(self) -> KeptState[Any]:
        return self.state


def planned(task: PersistentTask | None = None, **settings: Any) -> tuple[Plan, Basis]:
    times = Settings(10, **{"ahead": 1000, **settings})
    plan = core.plan_of(task or Kept(), SCHEMA, settings=times, channel="channel")
    entry = core.start(Log(plan.files, "app"), [plan])
    return plan, replace(plan_batch(entry, core.alone(plan), Reach({}), NOW), clock=CLOCK)


def judged(plan: Plan, basis: Basis, rows: Sequence[tuple[Any, ...]], sightings: Sightings | None = None) -> list[int]:
    """The verdicts on rows of (timestamp, position, channel); the last may be left out."""
    padded = [(*row, *("a",)[len(row) - 2 :]) for row in rows]
    stamps, positions, channels = (list(column) for column in zip(*padded, strict=True))
    columns = [pa.array(stamps, pa.int64()), pa.array(positions), pa.array(channels), pa.array(positions)]
    at = np.array(positions, np.int64)
    chunk = Chunk("p", int(at.min()), pa.record_batch(columns, schema=SCHEMA), at=at)
    position = basis.positions.get("p", Position())
    return judge(
        plan.only, basis, place_of(plan.only, chunk), [position], sightings or Sightings(), plan.takes_late
    ).tolist()


def test_a_channel_that_is_named_as_one_of_another_input_is_none() -> None:
    plan, basis = planned()
    plan, basis = core.changed(plan, among=("", "history")), replace(basis, positions={"p": Position(next=1)})
    rows = [(300, 0, "history:x"), (200, 1, "a"), (400, 2, "history:x"), (None, 3, "history:x"), (150, 4, "other:x")]
    sightings = Sightings()
    assert judged(plan, basis, rows, sightings) == [SKIPPED, ACCEPTED, FOREIGN, NO_TIMESTAMP, ACCEPTED]
    # The other input's channel of that name is neither moved nor kept from falling silent.
    assert sightings == Sightings({"a": 200, "other:x": 150})
    named = core.changed(plan, input="history")
    assert judged(named, basis, [(400, 2, "x"), (400, 3, "history:x")]) == [ACCEPTED, ACCEPTED]


@pytest.mark.parametrize("known", [{}, {"a": Channel(None, NOW)}])
def test_a_channel_has_delivered_from_its_first_message_on_be_it_late(known: dict[str, Channel]) -> None:
    plan, basis = planned()
    sightings = Sightings()
    assert judged(plan, replace(basis, channels=known), [(CLOCK - 1, 0)], sightings) == [LATE]
    assert deliver(known, [("a", newest, 0) for newest in sightings.newest.values()], NOW)["a"].has_delivered


def test_each_verdict() -> None:
    plan, basis = planned(jump=500)
    basis = replace(basis, positions={"p": Position(next=10, accounted=((20, 150),))}, restored=120)
    rows = {
        (200, 9): SKIPPED,
        (149, 19): SKIPPED,
        (150, 19): ACCEPTED,
        (119, NO_POSITION): REPLAYED_OR_LATE,
        (120, NO_POSITION): ACCEPTED,
        (None, 20): NO_TIMESTAMP,
        (FURTHEST + 1, 20): BEYOND,
        (-(2**63), 20): BEYOND,
        (2**63 - 1, 9): SKIPPED,
        (-(2**63), NO_POSITION): BEYOND,
        (CLOCK - 1, 21): LATE,
        (CLOCK, 22): ACCEPTED,
        (NOW + 1001, 23): AHEAD,
        (150 + 500, 24): ACCEPTED,
        (650 + 501, 25): JUMP,
    }
    assert dict(zip(rows, judged(plan, basis, [*rows]), strict=True)) == rows


def test_a_row_gets_the_first_verdict_that_applies() -> None:
    plan, basis = planned(jump=500)
    basis = replace(basis, positions={"p": Position(next=10)}, restored=90)
    rows = {
        (None, 9): SKIPPED,
        (50, NO_POSITION): REPLAYED_OR_LATE,
        (None, 10): NO_TIMESTAMP,
        (CLOCK - 1, 11): LATE,
        (CLOCK, 12): ACCEPTED,
        (NOW + 2000, 13): AHEAD,
        (CLOCK + 501, 14): JUMP,
    }
    assert dict(zip(rows, judged(plan, basis, [*rows]), strict=True)) == rows


def test_an_input_has_the_messages_from_its_lower_bound_up_to_its_upper_bound() -> None:
    plan, basis = planned(bounds=Bounds(since=120, below=150))
    rows = {(CLOCK - 1, 0): OUTSIDE, (119, 1): OUTSIDE, (120, 2): ACCEPTED, (149, 3): ACCEPTED, (150, 4): OUTSIDE}
    assert dict(zip(rows, judged(plan, basis, [*rows]), strict=True)) == rows


def test_a_timestamp_may_be_a_little_ahead_of_the_batch_time() -> None:
    plan, basis = planned(ahead=1000)
    assert judged(plan, basis, [(NOW + 1000, 0), (NOW + 1001, 1)]) == [ACCEPTED, AHEAD]


@pytest.mark.parametrize(
    ("task", "verdict"),
    [
        (Kept(), ACCEPTED),
        (Kept(NonWindowState(Sum(), ttl="1 second")), LATE),
        (Kept(WindowState(Sum(), TumblingWindow(us(10)))), LATE),
    ],
    ids=["unbounded", "ttl", "windows"],
)
def test_at_least_once_takes_late_messages_where_time_does_not_bound_the_state(
    task: PersistentTask, verdict: int
) -> None:
    plan, basis = planned(task)
    assert judged(plan, basis, [(CLOCK - 1, 0)]) == [LATE]
    assert judged(replace(plan, delivery=AT_LEAST_ONCE), basis, [(CLOCK - 1, 0)]) == [verdict]


class TestSightings:
    def test_the_newest_timestamp_of_a_channel_is_that_of_its_accepted_rows(self) -> None:
        plan, basis = planned()
        sightings = Sightings()
        rows = [(110, 0, "a"), (130, 1, "b"), (120, 2, "a"), (NOW + 2000, 3, "a")]
        judged(plan, basis, rows, sightings)
        assert sightings.newest == {"a": 120, "b": 130}
        judged(plan, basis, [(115, 4, "a")], sightings)
        assert sightings.newest == {"a": 120, "b": 130}

    def test_a_channel_begins_with_its_newest_timestamp_of_the_batch_before(self) -> None:
        plan, basis = planned()
        basis = replace(basis, channels={"a": Channel(140, 0)})
        sightings = Sightings()
        judged(plan, basis, [(110, 0, "a")], sightings)
        assert sightings.newest == {"a": 140}

    def test_a_new_channel_with_late_rows_only_holds_the_clock(self) -> None:
        plan, basis = planned()
        basis = replace(basis, channels={"known": Channel(200, 0)})
        sightings = Sightings()
        judged(plan, basis, [(CLOCK - 1, 0, "new"), (CLOCK - 1, 1, "known")], sightings)
        assert sightings.newest == {"new": None}

    def test_a_channel_of_which_rows_come_again_is_replaying(self) -> None:
        plan, basis = planned()
        basis = replace(basis, positions={"p": Position(next=10)})
        sightings = Sightings()
        judged(plan, basis, [(110, 9, "a"), (110, 10, "b")], sightings)
        assert sightings.replaying == {"a"}

    def test_a_jump_moves_no_clock_until_its_channel_is_believed(self) -> None:
        plan, basis = planned(jump=50, believe=3)
        sightings = Sightings()
        assert judged(plan, basis, [(110, 0), (300, 1), (301, 2)], sightings) == [ACCEPTED, JUMP, JUMP]
        assert (sightings.newest, sightings.beyond) == ({"a": 110}, {"a": 2})
        assert judged(plan, basis, [(302, 3)], sightings) == [ACCEPTED]
        assert (sightings.newest, sightings.beyond) == ({"a": 302}, {"a": 0})

    def test_a_jump_is_measured_from_where_a_start_cut_the_channel_back(self) -> None:
        plan, basis = planned(jump=50)
        basis = replace(basis, channels={"a": Channel(None, 0, before=110)})
        sightings = Sightings()
        assert judged(plan, basis, [(161, 0)], sightings) == [JUMP]
        assert sightings.newest == {"a": None}

    @given(
        st.lists(st.tuples(st.integers(CLOCK, 900), st.sampled_from("abc")), max_size=40),
        st.lists(st.integers(1, 15), min_size=1),
        st.sampled_from([1, 60, 1000]),
        st.dictionaries(st.sampled_from("abc"), st.builds(Channel, st.none() | st.integers(CLOCK, 300), st.just(0))),
    )
    def test_jumps_of_many_channels_are_those_of_each_by_itself(
        self, rows: list[tuple[int, str]], sizes: list[int], jump: int, channels: dict[str, Channel]
    ) -> None:
        plan, basis = planned(jump=jump, believe=3)
        basis = replace(basis, channels=channels)
        sightings, found, begin = Sightings(), list[int](), 0
        for size in [*sizes, len(rows)]:
            if some := rows[begin : begin + size]:
                found += judged(
                    plan, basis, [(time, begin + i, name) for i, (time, name) in enumerate(some)], sightings
                )
            begin += size
        for name in {name for _, name in rows}:
            places = [i for i, (_, of) in enumerate(rows) if of == name]
            stamps = np.array([rows[i][0] for i in places])
            before = channels[name].newest if name in channels else None
            is_jump, streak = beyond_limit(stamps, before, 0, jump, 3)
            assert [found[i] for i in places] == np.where(is_jump, JUMP, ACCEPTED).tolist()
            assert sightings.beyond[name] == streak
            tops = [*stamps[~is_jump].tolist(), *([] if before is None else [before])]
            assert sightings.newest.get(name) == (max(tops) if not is_jump.all() else None)
