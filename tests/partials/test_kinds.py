"""Whatever way a state lies in time, what is seen of it is what plain Python makes of the messages."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistent_state import SessionWindow, SlidingWindow, TumblingWindow
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials.kinds import kind_of
from persistent_state.partials.layout import Kind, as_numpy, below
from persistent_state.partials.panes import Panes
from persistent_state.partials.sessions import Living, Sessions
from persistent_state.partials.since import Since
from persistent_state.partials.unbounded import Unbounded
from persistent_state.windows import TimeToLive, Windowing
from tests.core import us
from tests.windows import (
    BOUNDED,
    CLOCKS,
    SENT,
    Sent,
    given_at,
    layout_of,
    shown,
    state_of,
    table,
    total,
    totals,
    windows_of,
)


@pytest.mark.parametrize(
    ("windowing", "kind"),
    [
        (None, Unbounded()),
        (TumblingWindow(us(9)), Panes(TumblingWindow(us(9)))),
        (SlidingWindow(us(9), us(3)), Panes(SlidingWindow(us(9), us(3)))),
        (SessionWindow(us(9)), Sessions(9)),
        (TimeToLive(9), Living(10)),
    ],
    ids=repr,
)
def test_each_state_is_of_a_kind_that_travels(windowing: Windowing | None, kind: Kind) -> None:
    layout = layout_of(windowing)
    assert type(layout.kind) is type(kind)
    assert layout.kind == kind
    assert pickle.loads(pickle.dumps(layout)).kind == kind
    assert kind_of(windowing) == kind != kind_of(TimeToLive(8))


@settings(max_examples=200)
@given(st.data(), BOUNDED, SENT, st.lists(CLOCKS, min_size=3, max_size=3), st.integers(1, 20))
def test_what_is_seen_is_what_plain_python_makes_of_the_messages(
    data: st.DataObject, windowing: Windowing, messages: list[Sent], clocks: list[int], interval: int
) -> None:
    floor, before, clock = sorted(clocks)
    floor = data.draw(st.sampled_from([BEGINNING, floor]))
    since = Since(
        data.draw(st.sampled_from([BEGINNING, before])),
        all=isinstance(windowing, TimeToLive) and data.draw(st.booleans()),
        early=isinstance(windowing, SlidingWindow) and data.draw(st.booleans()),
    )
    since = replace(since, recent=since.clock)
    if isinstance(windowing, SlidingWindow):
        messages = [m for m in messages if m[1] % windowing.slide < windowing.size]
    parts: list[list[Sent]] = [[], [], []]
    for message in messages:
        parts[data.draw(st.integers(0, 2))].append(message)
    layout = layout_of(windowing)
    # The clocks that are asked for are retained: no interval reaches over them.
    levels = [below(table(layout, part, [before, clock], interval), clock) for part in parts if part]
    levels.append(layout.schema.empty_table())
    assert shown(layout.kind.state(levels, layout, clock)) == state_of(windowing, messages, clock)
    found = shown(layout.kind.values(levels, layout, since, clock, floor))
    assert found == given_at(windowing, messages, since, clock, floor)


@given(BOUNDED, SENT, CLOCKS)
def test_windows_given_clock_by_clock_are_each_given_once(
    windowing: Windowing, messages: list[Sent], clock: int
) -> None:
    if isinstance(windowing, TimeToLive):
        windowing = SessionWindow(us(windowing.ttl))
    if isinstance(windowing, SlidingWindow):
        messages = [m for m in messages if m[1] % windowing.slide < windowing.size]
    layout = layout_of(windowing)
    clocks = [BEGINNING, clock, clock + 7, 200]
    levels = [table(layout, messages, clocks)]
    given: list[tuple[Any, int]] = []
    for since, upto in pairwise(clocks):
        given += shown(layout.kind.values([below(levels[0], upto)], layout, Since(since), upto, BEGINNING)).items()
    assert len(given) == len(dict(given))
    assert dict(given) == totals(windows_of(windowing, messages))


@given(BOUNDED, SENT)
def test_running_values_are_of_all_messages_that_came(windowing: Windowing, messages: list[Sent]) -> None:
    if isinstance(windowing, SlidingWindow):
        messages = [m for m in messages if m[1] % windowing.slide < windowing.size]
    layout = layout_of(windowing)
    found = shown(layout.kind.running([table(layout, messages)], layout, 10))
    windows = windows_of(windowing, messages)
    if isinstance(windowing, TimeToLive):
        # The newest session of a key is its state, whether it has ended or not.
        assert found == {key: total(some) for (key, _, _), some in windows.items()}
    else:
        assert found == totals({window: some for window, some in windows.items() if window[2] > 10})


@given(BOUNDED, st.integers(-40, 60), st.lists(CLOCKS, min_size=3, max_size=3), st.booleans())
def test_one_row_is_in_no_more_windows_than_is_said(
    windowing: Windowing, time: int, clocks: list[int], early: bool
) -> None:
    floor, before, clock = sorted(clocks)
    layout = layout_of(windowing)
    row = below(table(layout, [(1, time, 1)], clocks), clock)
    since = Since(before, early=early and layout.kind.gives_early, recent=before)
    state = layout.kind.state([row], layout, clock)
    assert state.num_rows <= layout.kind.windows_per_row(clock, None, floor)
    values = layout.kind.values([row], layout, since, clock, floor)
    assert values.num_rows <= layout.kind.windows_per_row(clock, since, floor)


@given(BOUNDED, SENT, st.integers(1, 20))
def test_rows_are_sorted_by_the_column_that_the_kind_names(
    windowing: Windowing, messages: list[Sent], interval: int
) -> None:
    layout = layout_of(windowing)
    rows = table(layout, messages, interval=interval).select(["hash", "key0", layout.kind.in_time]).to_pylist()
    assert rows == sorted(rows, key=lambda row: tuple(row.values()))


@given(BOUNDED, SENT, st.integers(1, 20), st.tuples(CLOCKS, CLOCKS))
def test_a_run_in_which_nothing_may_end_has_nothing_that_ends(
    windowing: Windowing, sent: list[Sent], interval: int, clocks: tuple[int, int]
) -> None:
    layout, (after, upto) = layout_of(windowing), sorted(clocks)
    rows = layout.kind.in_state(table(layout, sent, (), interval))
    starts = as_numpy(rows, "start").tolist()
    of, ends = layout.kind.ends(rows, after, upto)
    assert all(after < end <= upto for end in ends)
    if starts and not layout.kind.may_end(min(starts), max(starts), after, upto):
        assert len(of) == 0
    if isinstance(layout.kind, Panes):
        # Of one pane it is known.
        assert {*of.tolist()} == {i for i, at in enumerate(starts) if layout.kind.may_end(at, at, after, upto)}
