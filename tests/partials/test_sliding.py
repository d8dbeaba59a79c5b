"""Ranges that overlap are summed with few additions, each as it would be by itself."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monoids import List, Sum
from persistent_state import SlidingWindow, TaskFailedError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.partials import sliding
from persistent_state.partials.since import Since
from tests.core import us
from tests.windows import Counting, layout_of, shown, table


@st.composite
def some_ranges(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 40))
    ends = st.tuples(st.integers(0, count), st.integers(0, count)).filter(lambda pair: pair[0] != pair[1])
    return count, [(min(pair), max(pair)) for pair in draw(st.lists(ends, max_size=40))]


@given(some_ranges())
def test_ranges_are_summed_as_each_would_be_by_itself(asked: tuple[int, list[tuple[int, int]]]) -> None:
    count, some = asked
    lows, highs = (np.array([pair[i] for pair in some], np.int64) for i in (0, 1))
    numbers, lists = pa.array([3**i % 1000 for i in range(count)]), pa.array([[i] for i in range(count)])
    ways = [sliding.fold_ranges, sliding._by_doubling] if some else [sliding.fold_ranges]
    for fold_ranges in ways:
        sums = fold_ranges(numbers, lows, highs, layout_of(None))
        assert sums.to_pylist() == [sum(numbers.to_pylist()[low:high]) for low, high in some]
        joined = fold_ranges(lists, lows, highs, layout_of(None, List(pa.int64())))
        assert joined.to_pylist() == [list(range(low, high)) for low, high in some]


@given(some_ranges(), st.booleans())
def test_ranges_take_few_additions(asked: tuple[int, list[tuple[int, int]]], is_part: bool) -> None:
    count, some = asked
    some = some or [(0, count)]
    lows, highs = (np.array([pair[i] for pair in some], np.int64) for i in (0, 1))
    counting = Counting()
    values = pa.array([0, *range(count)])[1:] if is_part else pa.array(range(count))
    sliding.fold_ranges(values, lows, highs, layout_of(None, counting))
    longest = max(high - low for low, high in some)
    assert counting.additions <= int(math.log2(longest)) * (count + len(some))


def test_sliding_windows_take_log_additions_for_each_pane_and_window() -> None:
    counting = Counting()
    layout = layout_of(SlidingWindow(us(500), us(1)), counting)
    levels = [table(layout, [(key, time, 1) for time in range(1000)]) for key in range(4)]
    counting.additions = 0
    windows = shown(layout.kind.values(levels, layout, Since(), 2000, BEGINNING))
    assert len(windows) == 4 * 1499
    assert windows[2, 100, 600] == 500
    assert windows[2, -499, 1] == windows[2, 999, 1499] == 1
    assert counting.additions <= 8 * 4 * (1000 + 1499)
    assert counting.additions < 4 * 500 * 1000 / 10


def test_values_that_no_range_holds_together_are_never_added() -> None:
    # Any two of the large ones have too many digits.
    large, width = Decimal(9 * 10**37), 64
    layout = layout_of(None, Sum(pa.decimal128(38, 0)))
    numbers = [large, *[Decimal(1)] * width, large, *[Decimal(1)] * width, large]
    lows = [low for low in range(len(numbers)) if low + width < len(numbers)]
    highs = [low + width for low in lows]
    for fold_ranges in (sliding.fold_ranges, sliding._by_doubling):
        sums = fold_ranges(pa.array(numbers, layout.monoid.type), np.array(lows), np.array(highs), layout)
        assert [int(found) for found in sums.to_pylist()] == [
            sum(map(int, numbers[low:high])) for low, high in zip(lows, highs, strict=True)
        ]
    with pytest.raises(TaskFailedError):
        sliding.fold_ranges(pa.array(numbers, layout.monoid.type), np.array([0]), np.array([width + 2]), layout)
