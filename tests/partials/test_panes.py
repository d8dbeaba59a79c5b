"""Rows of windows are kept apart by panes, and wide windows keep sums from which a window is put together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monoids import Affine, List, Max, Monoid, Set, Struct, Sum
from persistent_state import SlidingWindow
from persistent_state.partials.layout import HEAD, TAIL
from persistent_state.partials.panes import WIDE, Panes
from tests.core import us
from tests.windows import Sent, layout_of, lengths, table

WINDOWS = st.builds(SlidingWindow, lengths(1, 30), lengths(1, 12), gaps=st.just(True))
TIMES = st.lists(st.integers(-40, 60), min_size=1, max_size=20)


@given(WINDOWS, TIMES)
def test_only_updates_in_a_window_are_in_the_state(window: SlidingWindow, times: list[int]) -> None:
    updates = pa.table({"start": times})
    found = Panes(window).in_state(updates)["start"].to_pylist()
    assert found == [time for time in times if time % window.slide < window.size]


@given(WINDOWS, TIMES, st.integers(1, 40))
def test_rows_of_one_interval_and_pane_are_in_the_same_windows(
    window: SlidingWindow, times: list[int], interval: int
) -> None:
    times = [time for time in times if time % window.slide < window.size]
    starts = np.array(times, np.int64) // interval * interval
    found = Panes(window).begin_apart(starts, np.array(times, np.int64))
    assert all(start <= begin <= time for start, begin, time in zip(starts, found, times, strict=True))
    for begin, time in zip(found.tolist(), times, strict=True):
        windows = [(at // window.slide, (at - window.size) // window.slide) for at in (begin, time)]
        assert windows[0] == windows[1]


@given(WINDOWS, st.integers(-40, 60))
def test_a_row_expires_when_its_last_window_closes(window: SlidingWindow, time: int) -> None:
    layout = layout_of(window)
    (expiry,) = layout.kind.expiry(table(layout, [(1, time, 1)], interval=1), layout).tolist()  # type: ignore[union-attr]
    ends = [k * window.slide + window.size for k in range(-80, 80) if k * window.slide <= time]
    assert expiry == max(ends)


@pytest.mark.parametrize(
    ("monoid", "value", "slides", "has_sums"),
    [
        (Sum(), 1, WIDE + 1, True),
        (Sum(), 1, WIDE, False),
        (Struct(sum=Sum(), max=Max()), {"sum": 1, "max": 1}, WIDE + 1, True),
        (Sum(pa.decimal128(38, 0)), 1, WIDE + 1, False),
        (Set(pa.int64()), [1], WIDE + 1, False),
        (List(pa.int64()), [1], WIDE + 1, False),
        (Affine(), {"slope": 1.0, "intercept": 0.0}, WIDE + 1, False),
    ],
    ids=repr,
)
def test_wide_windows_of_numbers_in_any_order_keep_sums(
    monoid: Monoid[Any], value: Any, slides: int, has_sums: bool
) -> None:
    layout = layout_of(SlidingWindow(us(5 * slides), us(5)), monoid)
    row = {"hash": 1, "key0": 1, "start": 0, "value": value}
    found = layout.kind.with_sums(pa.Table.from_pylist([row], layout.schema), layout)
    assert {HEAD, TAIL} & {*found.column_names} == ({HEAD, TAIL} if has_sums else set())


def test_the_sums_of_a_row_reach_from_its_block_up_to_it_and_from_it_to_the_end() -> None:
    layout = layout_of(SlidingWindow(us(170), us(10)))
    sent: list[Sent] = [(1, 0, 1), (1, 10, 2), (1, 160, 4), (1, 170, 8), (1, 180, 16), (2, 180, 32)]
    found = layout.kind.with_sums(table(layout, sent), layout)
    sums = {row["value"]: (row[HEAD], row[TAIL]) for row in found.to_pylist()}
    assert sums == {1: (1, 7), 2: (3, 6), 4: (7, 4), 8: (8, 24), 16: (24, 16), 32: (32, 32)}
