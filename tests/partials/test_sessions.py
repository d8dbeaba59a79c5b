"""The sessions of a key are a monoid, and expire as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from monoids import Monoid
from monoids.laws import monoid_laws
from persistent_state import SessionWindow
from persistent_state.partials.fold import fold_keys
from persistent_state.partials.layout import Once
from tests.core import us
from tests.windows import layout_of, total, windows_of


class Sessions(Monoid[Any]):
    """The sessions of a key: their first and last timestamp and the sum of their values, in the order of time."""

    type = pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64()), ("value", pa.int64())]))

    def __init__(self, gap: int) -> None:
        self.window = SessionWindow(us(gap))
        self.layout = layout_of(self.window)

    @property
    def zero(self) -> Any:
        return []

    def plus(self, a: Any, b: Any) -> Any:
        tables = [self.table(some) for some in (a, b)]
        return fold_keys(tables, self.layout).select(["first", "last", "value"]).to_pylist()

    def table(self, sessions: Any) -> pa.Table:
        rows = [{"hash": 1, "key0": 1, "start": session["first"], **session} for session in sessions]
        return pa.Table.from_pylist(rows, self.layout.schema)

    def of(self, messages: Iterable[tuple[int, int]]) -> Any:
        windows = windows_of(self.window, [(1, time, value) for time, value in messages])
        return [{"first": w[1], "last": some[-1][1], "value": total(some)} for w, some in windows.items()]


GAP = 7
OF_KEY = st.lists(st.tuples(st.integers(-30, 30), st.integers(-5, 5)), max_size=6)

test_the_laws_of_sessions = monoid_laws(Sessions(GAP), OF_KEY.map(Sessions(GAP).of), examples=40)


@given(st.lists(OF_KEY, max_size=5), st.randoms(use_true_random=False))
def test_sessions_are_the_same_however_messages_are_grouped(parts: list[list[tuple[int, int]]], rng: Any) -> None:
    sessions = Sessions(GAP)
    folded = [sessions.of(part) for part in parts]
    while len(folded) > 1:
        one = folded.pop(rng.randrange(len(folded)))
        other = folded.pop(rng.randrange(len(folded)))
        folded.append(sessions.plus(one, other))
    assert sessions.sum(folded) == sessions.of([message for part in parts for message in part])


def test_a_message_between_two_sessions_makes_them_one() -> None:
    sessions = Sessions(GAP)
    apart = sessions.plus(sessions.of([(0, 1)]), sessions.of([(GAP, 2)]))
    assert apart == [{"first": 0, "last": 0, "value": 1}, {"first": GAP, "last": GAP, "value": 2}]
    assert sessions.plus(apart, sessions.of([(1, 4)])) == [{"first": 0, "last": GAP, "value": 7}]
    inside = sessions.plus(sessions.of([(0, 1), (5, 1), (10, 1)]), sessions.of([(20, 1)]))
    assert sessions.plus(inside, sessions.of([(16, 4)])) == [{"first": 0, "last": 20, "value": 8}]


def test_a_message_with_an_id_expires_with_its_session() -> None:
    layout = layout_of(SessionWindow(us(GAP)), once=Once(pa.int64(), 100))
    times = [(1, 5), (1, 0), (2, 0), (1, 20), (1, 10)]
    rows = [
        {"hash": key, "key0": key, "start": 0, "first": time, "last": time, "value": 1, "id": i, "time": time}
        for i, (key, time) in enumerate(times)
    ]
    ends = layout.kind.expiry(pa.Table.from_pylist(rows, layout.schema), layout)
    assert ends is not None
    assert ends.tolist() == [17, 17, 7, 27, 17]
