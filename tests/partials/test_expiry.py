"""What has expired by a clock is in no state at that clock or a later one, and all else is needed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistent_state import SessionWindow, SlidingWindow, TumblingWindow
from persistent_state.partials.expiry import fading, without_expired
from persistent_state.partials.fold import fold
from persistent_state.partials.layout import Once, below
from persistent_state.windows import TimeToLive, Windowing
from tests.core import us
from tests.windows import BOUNDED, CLOCKS, SENT, Sent, layout_of, shown, state_of, table

NEVER = 2**63 - 1


@given(BOUNDED, SENT, CLOCKS, st.integers(0, 30))
def test_what_is_left_is_what_the_state_needs(
    windowing: Windowing, messages: list[Sent], floor: int, more: int
) -> None:
    if isinstance(windowing, SlidingWindow):
        messages = [m for m in messages if m[1] % windowing.slide < windowing.size]
    layout, clock = layout_of(windowing), floor + more
    level = fold([table(layout, messages, [floor, clock])], layout, [floor, clock], clock)
    rows = without_expired(level, layout, floor, is_all=True)
    assert shown(layout.kind.state([below(rows, clock)], layout, clock)) == state_of(windowing, messages, clock)
    needed, state = below(rows, floor), state_of(windowing, messages, floor)
    assert shown(layout.kind.state([needed], layout, floor)) == state
    for row in range(len(needed)):
        others = needed.filter(pa.array(np.arange(len(needed)) != row))
        assert shown(layout.kind.state([others], layout, floor)) != state


@pytest.mark.parametrize(
    ("windowing", "left"),
    [(None, [0, 50]), (TumblingWindow(us(10)), [50]), (SessionWindow(us(10)), [0, 50]), (TimeToLive(10), [0, 50])],
    ids=repr,
)
def test_only_rows_that_expire_by_themselves_go_from_a_part_of_a_key(
    windowing: Windowing | None, left: list[int]
) -> None:
    layout = layout_of(windowing)
    rows = table(layout, [(1, 0, 1), (1, 50, 1)], interval=1)
    assert without_expired(rows, layout, 30, is_all=False)["start"].to_pylist() == left
    assert without_expired(rows, layout, 30, is_all=True)["start"].to_pylist() == (
        [0, 50] if windowing is None else [50]
    )


@pytest.mark.parametrize(
    ("windowing", "expiry"),
    [
        (None, [NEVER, NEVER]),
        (TumblingWindow(us(10)), [10, 60]),
        (SessionWindow(us(10)), [13, 65]),
        (TimeToLive(10), [14, 66]),
    ],
    ids=repr,
)
def test_an_id_is_remembered_for_its_horizon_whatever_has_expired(
    windowing: Windowing | None, expiry: list[int]
) -> None:
    layout = layout_of(windowing, once=Once(pa.int64(), 100))
    rows = [
        {"hash": 1, "key0": 1, "start": time, "first": time, "last": time, "value": 1, "id": id, "time": time}
        for time, id in ((2, 7), (3, None), (55, None))
    ]
    made = pa.Table.from_pylist([{name: row[name] for name in layout.schema.names} for row in rows], layout.schema)
    found = fading(made, layout)
    assert found is not None
    assert found.tolist() == [2 + 100 + 1, *expiry]
    kept = without_expired(made, layout, 30, is_all=True)
    assert kept["time"].to_pylist() == ([2, 3, 55] if windowing is None else [2, 55])


def test_nothing_fades_where_nothing_expires() -> None:
    layout = layout_of(None)
    assert fading(table(layout, [(1, 0, 1)]), layout) is None
