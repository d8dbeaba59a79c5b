"""What windows and sessions are, in plain Python, and tables of partial sums to hold against that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from monoids import Monoid, Sum
from persistent_state import SessionWindow, SlidingWindow
from persistent_state.partials import keys
from persistent_state.partials.fold import fold
from persistent_state.partials.kinds import kind_of
from persistent_state.partials.layout import Layout, Once
from persistent_state.partials.since import Since
from persistent_state.windows import TimeToLive, Windowing
from tests.core import us

Sent = tuple[int, int, int]
"""A message: its key, timestamp and value."""

Named = tuple[int, int, int]
"""A window of a key: the key, its beginning and its end."""


def lengths(least: int, most: int) -> st.SearchStrategy[timedelta]:
    """Durations of so many microseconds."""
    return st.integers(least, most).map(us)


BOUNDED = st.one_of(
    st.builds(SlidingWindow, lengths(1, 30), lengths(1, 12), gaps=st.just(True)),
    st.builds(SessionWindow, lengths(1, 15)),
    st.builds(TimeToLive, st.integers(1, 15)),
)
SENT = st.lists(st.tuples(st.integers(0, 2), st.integers(-40, 60), st.integers(1, 9)), max_size=25)
CLOCKS = st.integers(-50, 80)


def windows_of(windowing: Windowing, messages: Iterable[Sent]) -> dict[Named, list[Sent]]:
    """The messages of each window of each key."""
    found: dict[Named, list[Sent]] = {}
    for message in sorted(messages, key=lambda m: m[:2]):
        key, time, _ = message
        if isinstance(windowing, SlidingWindow):
            begin = time // windowing.slide * windowing.slide
            while time < begin + windowing.size:
                found.setdefault((key, begin, begin + windowing.size), []).append(message)
                begin -= windowing.slide
            continue
        last = next(reversed(found), None)
        before = found.pop(last) if last and last[0] == key and time < last[2] else []
        first = last[1] if last and before else time
        found[key, first, time + windowing.gap] = [*before, message]
    return found


def total(messages: Iterable[Sent]) -> int:
    return sum(value for _, _, value in messages)


def totals(windows: Mapping[Named, Sequence[Sent]]) -> dict[Any, int]:
    return {window: total(some) for window, some in windows.items()}


def state_of(windowing: Windowing, messages: Iterable[Sent], clock: int) -> dict[Any, int]:
    """What is open at the clock, of the messages below it."""
    below = [m for m in messages if m[1] < clock]
    opened = {w: some for w, some in windows_of(windowing, below).items() if w[2] > clock}
    return {w[0] if isinstance(windowing, TimeToLive) else w: total(some) for w, some in opened.items()}


def given_at(windowing: Windowing, messages: Iterable[Sent], since: Since, clock: int, floor: int) -> dict[Any, int]:
    """What an output is given at the clock."""
    below = [m for m in messages if m[1] < clock]
    if isinstance(windowing, TimeToLive):
        now, before = state_of(windowing, below, clock), state_of(windowing, below, since.clock)
        touched = {key for key, time, _ in below if time >= since.clock}
        changed = {key: value for key, value in now.items() if since.all or key in touched}
        return {**dict.fromkeys(before.keys() - now.keys(), 0), **changed}
    windows = windows_of(windowing, below)
    closed = totals({w: some for w, some in windows.items() if max(since.clock, floor) < w[2] <= clock})
    if not since.early:
        return closed
    recent = {w: s for w, s in windows.items() if w[2] > clock and any(time >= since.recent for _, time, _ in s)}
    finals = {(*w, True): value for w, value in closed.items()}
    return {**finals, **{(*w, False): value for w, value in totals(recent).items()}}


def layout_of(windowing: Windowing | None, monoid: Monoid[Any] | None = None, once: Once | None = None) -> Layout:
    return Layout((pa.int64(),), monoid or Sum(), kind_of(windowing), once)


def table(layout: Layout, messages: Sequence[Sent], clocks: Sequence[int] = (), interval: int = 10) -> pa.Table:
    """Partial sums of messages, in intervals that reach over none of these clocks."""
    key = pa.array([key for key, _, _ in messages], pa.int64())
    times = np.array([time for _, time, _ in messages], np.int64)
    starts = times // interval * interval
    for clock in clocks:
        starts = np.where(times >= clock, np.maximum(starts, clock), starts)
    starts = layout.kind.begin_apart(starts, times)
    columns = {"hash": pa.array(keys.hash_keys([key], len(times))), "key0": key, "start": pa.array(starts)}
    columns.update(dict.fromkeys(layout.kind.columns, pa.array(times)))
    columns["value"] = pa.array([n for _, _, n in messages], pa.int64())
    return fold([pa.table(columns).select(layout.schema.names)], layout)


def shown(found: pa.Table) -> dict[Any, Any]:
    columns = [found[name].to_pylist() for name in found.column_names[1:]]
    rows = {key[0] if len(key) == 1 else tuple(key): value for *key, value in zip(*columns, strict=True)}
    assert len(rows) == found.num_rows
    return rows


class Counting(Sum[Any]):
    """A sum that counts its additions."""

    def __init__(self) -> None:
        super().__init__()
        self.additions = 0

    def reduce(self, values: pa.Array, starts: Any) -> pa.Array:
        self.additions += len(values) - len(starts)
        return super().reduce(values, starts)
