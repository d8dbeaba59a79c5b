"""States that are replaced: what a key is at a clock is the newest of its rows, in however many runs they stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from persistent_state.event_time.clocks import BEGINNING, END
from persistent_state.partials import expiry, fold, keys
from persistent_state.partials.layout import Layout, below
from persistent_state.partials.newest import Newest, Versions
from persistent_state.partials.since import Since

STEP = 10
"""From clock to clock."""

kept = st.tuples(
    st.none() | st.integers(0, 9), st.lists(st.integers(0, 99), max_size=2, unique=True), st.integers(0, 9)
)
histories = st.lists(st.dictionaries(st.integers(0, 3), kept, max_size=4), min_size=1, max_size=6)
"""At one clock after the other: the keys that changed, with their state, their timers, and how old the newest message is."""


def layout(ttl: int | None) -> Layout:
    return Layout((pa.int64(),), Newest(pa.int64()), Versions(ttl))


def run_of(number: int, changed: Mapping[int, Any], layout: Layout) -> pa.Table:
    """What a step to a clock writes: rows of the moment before it."""
    moment = STEP * (number + 1) - 1
    key = pa.array(list(changed), pa.int64())
    values = [
        {
            "state": state,
            "timers": [{"timestamp": at, "name": ""} for at in sorted(timers) if state is not None],
            "newest": moment - age,
        }
        for state, timers, age in changed.values()
    ]
    columns = {"hash": keys.hash_keys([key], len(key)), "key0": key, "start": pa.array([moment] * len(key), pa.int64())}
    times = dict.fromkeys(("newest", "due"), columns["start"])
    table = pa.table({**columns, **times, "value": pa.array(values, layout.monoid.type)}).cast(layout.schema)
    return fold.fold([layout.kind.in_state(table)], layout)


def states(history: list[Any], clock: int, ttl: int | None) -> dict[int, int]:
    """The states at a clock, in plain Python."""
    found: dict[int, Any] = {}
    for number, changed in enumerate(history):
        moment = STEP * (number + 1) - 1
        if moment < clock:
            found |= {key: (state, moment - age) for key, (state, _, age) in changed.items()}
    return {k: s for k, (s, newest) in found.items() if s is not None and (ttl is None or newest >= clock - ttl)}


def shown(table: pa.Table) -> dict[int, Any]:
    return dict(zip(table["key0"].to_pylist(), table["value"].combine_chunks().field("state").to_pylist(), strict=True))


@given(histories, st.none() | st.integers(1, 25), st.data())
def test_a_key_is_its_newest_row(history: list[Any], ttl: int | None, data: st.DataObject) -> None:
    of = layout(ttl)
    runs = [run_of(number, changed, of) for number, changed in enumerate(history)]
    # Some runs are merged, and what no clock needs any more is dropped.
    most = len(runs)
    floor = STEP * data.draw(st.integers(0, most))
    count = data.draw(st.integers(0, most))
    clock = STEP * most
    cuts = [STEP * n for n in range(floor // STEP, most + 1)]
    merged = fold.fold(runs[:count], of, cuts, clock)
    merged = expiry.without_expired(merged, of, floor, is_all=True)
    levels = [merged, *runs[count:]]
    since = STEP * data.draw(st.integers(floor // STEP, most))
    for at in range(max(floor, STEP), clock + 1, STEP):
        some = [below(level, at) for level in levels]
        assert shown(of.kind.state(some, of, at)) == states(history, at, ttl)
        if at <= since:
            continue
        before, after = states(history, since, ttl), states(history, at, ttl)
        touched = {k for number in range(since // STEP, at // STEP) for k in history[number]}
        expected = {
            k: after.get(k) for k in before.keys() | after.keys() if k in touched or before.get(k) != after.get(k)
        }
        assert shown(of.kind.values(some, of, Since(since), at, floor)) == expected
        everything = of.kind.values(some, of, Since(since, all=True), at, floor)
        assert shown(everything) == after | dict.fromkeys(before.keys() - after.keys())


@given(histories)
def test_a_row_tells_its_first_timer(history: list[Any]) -> None:
    of = layout(None)
    table = fold.fold_keys([run_of(number, changed, of) for number, changed in enumerate(history)], of)
    newest = {key: told for changed in history for key, told in changed.items()}
    expected = {
        key: min(timers, default=END) if state is not None else END for key, (state, timers, _) in newest.items()
    }
    assert dict(zip(table["key0"].to_pylist(), table["due"].to_pylist(), strict=True)) == expected


def test_nothing_is_there_before_the_first_row() -> None:
    of = layout(5)
    assert shown(of.kind.values([], of, Since(BEGINNING), 10, BEGINNING)) == {}
    assert shown(of.kind.state([], of, 10)) == {}
