"""`get()` is what plain Python makes of the messages that were processed before, in every kind of state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Count, First, Last, List, Map, Max, Monoid, Struct, Sum
from persistent_state import (
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    SessionWindow,
    SlidingWindow,
    TumblingWindow,
    WindowState,
    run_local,
)
from persistent_state.batch import compaction
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol.commits import close
from persistent_state.protocol.global_clock import Keeping
from persistent_state.state import KeptState
from persistent_state.store.log import Log
from persistent_state.store.state_at import seen_below
from persistent_state.windows import TimeToLive, Windowing
from tests import core
from tests.batch.test_update import few_hashes
from tests.core import us
from tests.soak import soak_or
from tests.windows import lengths

UNFIT = 13
"""A number of which no update is made that fits."""

NONE = 7
"""A number of which no update is made."""


@dataclass(frozen=True)
class Sent:
    """A message: its key, its timestamp, its number, its id and its position; and the updates that were made of it."""

    key: str
    time: int
    n: int
    id: int | None
    position: int
    updates: tuple[Any, ...] = ()


@dataclass
class Past:
    """The messages that updated a key: those of earlier micro-batches, and those of this one so far."""

    before: list[Sent] = field(default_factory=list)
    now: list[Sent] = field(default_factory=list)

    def where(self, is_picked: Callable[[Sent], bool]) -> Past:
        return Past([*filter(is_picked, self.before)], [*filter(is_picked, self.now)])

    def fold(self, monoid: Monoid[Any]) -> Any:
        """All together: earlier micro-batches first, and each in order of time and position."""
        sent = [*sorted(self.before, key=by_time), *sorted(self.now, key=by_time)]
        return monoid.sum(update for message in sent for update in message.updates)


def by_time(sent: Sent) -> tuple[int, int]:
    return sent.time, sent.position


def updates_of(monoid: Monoid[Any], n: int, known: Any) -> list[Any]:
    """The updates of a number, which depend on what was read."""
    if n == NONE:
        return []
    value = n + size_of(known) % 5
    values = [value, -value] if n % 2 else [value]
    if isinstance(monoid, List):
        return [[value] for value in values]
    if isinstance(monoid, Map):
        return [{n: value} for value in values]
    return [{"count": 1, "max": value} for value in values] if isinstance(monoid, Struct) else values


def size_of(value: Any) -> int:
    """A number that depends on all that was read."""
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, list) else value or 0


def read(windowing: Windowing | None, monoid: Monoid[Any], past: Past, time: int) -> Any:
    """What a message at this time reads, of the past of its key."""
    if windowing is None:
        return past.fold(monoid)
    if isinstance(windowing, SlidingWindow):
        size, slide = windowing.size, windowing.slide
        starts = [k * slide for k in range((time - size) // slide - 1, time // slide + 2)]
        return {
            (start, start + size): past.where(lambda sent, start=start: start <= sent.time < start + size).fold(monoid)
            for start in starts
            if start <= time < start + size
        }
    first = last = time
    # Those that a chain of messages ties to this one.
    while joined := [
        s.time for s in [*past.before, *past.now] if first - windowing.gap < s.time < last + windowing.gap
    ]:
        if first <= min(joined) and max(joined) <= last:
            break
        first, last = min(first, *joined), max(last, *joined)
    value = past.where(lambda sent: first <= sent.time <= last).fold(monoid)
    return value if isinstance(windowing, TimeToLive) else {(first, last + windowing.gap): value}


def shown_at(windowing: Windowing | None, monoid: Monoid[Any], sent: Iterable[Sent], clock: int) -> dict[Any, Any]:
    """The state at a clock, of the messages below it."""
    found: dict[Any, Any] = {}
    within = SessionWindow(us(windowing.gap)) if isinstance(windowing, TimeToLive) else windowing
    for message in sent:
        below = Past([other for other in sent if other.key == message.key and other.time < clock])
        if message.time < clock:
            values = read(within, monoid, below, message.time)
            for window, value in [((0, clock + 1), values)] if windowing is None else values.items():
                if window[1] > clock:
                    found[message.key if within is not windowing or windowing is None else (message.key, *window)] = (
                        value
                    )
    return found


def state_in(windowing: Windowing | None, monoid: Monoid[Any]) -> KeptState[Any]:
    if isinstance(windowing, (SlidingWindow, SessionWindow)):
        return WindowState(monoid, windowing)
    return NonWindowState(monoid, None if windowing is None else us(windowing.ttl))


class Reading(PersistentTask):
    """Notes what it reads before and after its updates."""

    name = "Reading"
    key = "key"
    reads_state: ClassVar[bool] = True

    def __init__(self, windowing: Windowing | None, monoid: Monoid[Any], counts_once: bool = False) -> None:
        self.windowing, self.monoid = windowing, monoid
        if counts_once:
            self.message_id, self.horizon = "id", "1 day"
        self.read: dict[int, Any] = {}

    def persistent_state(self) -> KeptState[Any]:
        return state_in(self.windowing, self.monoid)

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        assert message["position"] not in self.read
        before = state.get()
        for update in updates_of(self.monoid, message["n"], before):
            state.update(message.timestamp, update)
        if message["n"] == UNFIT:
            state.update(message.timestamp, "unfit")
            state.update(message.timestamp, updates_of(self.monoid, 2, before)[0])
        self.read[message["position"]] = before, state.get()


SCHEMA = pa.schema(
    [("ts", pa.int64()), ("key", pa.string()), ("n", pa.int64()), ("id", pa.int64()), ("position", pa.int64())]
)


def rows_of(sent: Iterable[Sent]) -> pa.RecordBatch:
    rows = [{"ts": s.time, "key": s.key, "n": s.n, "id": s.id, "position": s.position} for s in sent]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


MONOIDS: list[Monoid[Any]] = [
    Sum(),
    List(pa.int64()),
    Map(pa.int64(), Sum()),
    Struct(count=Count(), max=Max()),
    First(pa.int64()),
    Last(pa.int64()),
]
WINDOWINGS: st.SearchStrategy[Windowing | None] = st.one_of(
    st.builds(SlidingWindow, lengths(1, 40), lengths(1, 20), gaps=st.just(True)),
    st.builds(TumblingWindow, lengths(1, 30)),
    st.builds(SessionWindow, lengths(1, 20)),
    st.builds(TimeToLive, st.integers(1, 20)),
    st.none(),
)
NUMBERS = st.one_of(st.integers(0, 20), st.sampled_from([NONE, UNFIT]))
MESSAGES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(-60, 120), NUMBERS, st.none() | st.integers(0, 3)), max_size=8
)
# How many shards a start has, and the messages of its micro-batches.
STARTS = st.lists(
    st.tuples(st.integers(1, 3), st.lists(MESSAGES.filter(len), min_size=1, max_size=4)), min_size=1, max_size=3
)
BITS = st.sampled_from([64, 64, 2, 0])


class Played:
    """A task that is started again and again. What a start takes back comes again, in micro-batches of another size."""

    def __init__(self, task: Reading, settings: Settings, clocks: int, parts: int) -> None:
        self.task, self.settings, self.parts = task, settings, parts
        self.files, self.keeping = core.memory(), Keeping(clocks=clocks)
        self.sent: list[Sent] = []
        self.past = Past()

    def start(self, shards: int, again: int) -> None:
        self.plan = core.plan_of(self.task, SCHEMA, files=self.files, settings=self.settings, shards=shards)
        core.check(self.plan)
        self.log = Log(self.files, "app")
        self.entry = core.start(self.log, [self.plan])
        clock = self.entry.flow_of("Reading").progress.clock
        # In the state is what is below the clock.
        self.past = Past([sent for sent in [*self.past.before, *self.past.now] if sent.time < clock])
        first = self.entry.flows["Reading"].source.positions
        replayed = self.sent[first[""].next if first else 0 :]
        for low in range(0, len(replayed), again):
            self._play(replayed[low : low + again])

    def play(self, messages: Sequence[tuple[str, int, int, int | None]]) -> None:
        fresh = [Sent(*message, position=i) for i, message in enumerate(messages, len(self.sent))]
        self.sent += fresh
        self._play(fresh)

    def _play(self, fresh: Sequence[Sent]) -> None:
        clock = self.entry.flow_of("Reading").progress.clock
        stored = {sent.position for sent in self.past.before}
        windowing, monoid = self.task.windowing, self.task.monoid
        self.task.read = {}
        self.entry = core.play(self.log, self.plan, rows_of(fresh), parts=self.parts, keeping=self.keeping)
        expected, seen = (
            {},
            {(sent.key, sent.id) for sent in self.past.before if self.task.message_id and sent.id is not None},
        )
        for sent in sorted(fresh, key=by_time):
            if sent.time < clock or sent.position in stored:
                continue
            is_inside = not isinstance(windowing, SlidingWindow) or sent.time % windowing.slide < windowing.size
            if self.task.message_id and sent.id is not None and is_inside:
                if (sent.key, sent.id) in seen:
                    continue
                seen.add((sent.key, sent.id))
            of_key = self.past.where(lambda other, key=sent.key: other.key == key)
            before = after = read(windowing, monoid, of_key, sent.time)
            if sent.n not in (NONE, UNFIT) and is_inside:
                made = replace(sent, updates=tuple(updates_of(monoid, sent.n, before)))
                self.past.now.append(made)
                of_key.now.append(made)
                after = read(windowing, monoid, of_key, sent.time)
            expected[sent.position] = before, after
        assert self.task.read == expected
        self.past = Past([*self.past.before, *self.past.now])
        self.check()

    def check(self) -> None:
        """The state at each clock is the fold of the updates that were made."""
        for clock in self.entry.retained:
            expected = shown_at(self.task.windowing, self.task.monoid, self.past.before, clock)
            assert self.state(clock) == expected

    def state(self, clock: int) -> dict[Any, Any]:
        stored = self.entry.tasks["Reading"].stored.runs
        table = core.whole_times(seen_below(self.files, stored, self.plan.layout, clock))
        columns = [table[name].to_pylist() for name in table.column_names[1:-1]]
        values = self.plan.layout.monoid.from_arrow(table["value"].combine_chunks())
        pairs = zip(zip(*columns, strict=True), values, strict=True)
        return {key[0] if len(key) == 1 else key: value for key, value in pairs}

    def close(self) -> None:
        self.entry = close(self.log, self.entry.epoch, now=0, keeping=self.keeping)
        self.check()


class TestReading:
    @pytest.mark.soak
    @settings(max_examples=soak_or(ci=12, soak=40))
    @given(
        WINDOWINGS,
        st.sampled_from(MONOIDS),
        STARTS,
        st.integers(1, 15),
        st.sampled_from([0, 30, 200]),
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(1, 9),
        BITS,
        st.sampled_from([compaction.LAZY, (1e9, 1)]),
        st.booleans(),
    )
    def test_what_a_message_reads_is_the_fold_of_what_was_processed_before_it_and_goes_with_it(
        self,
        windowing: Windowing | None,
        monoid: Monoid[Any],
        starts: list[tuple[int, list[list[tuple[str, int, int, int | None]]]]],
        interval: int,
        delay: int,
        clocks: int,
        parts: int,
        again: int,
        bits: int,
        rewriting: tuple[float, int],
        counts_once: bool,
    ) -> None:
        played = Played(Reading(windowing, monoid, counts_once), Settings(interval, delay, ahead=2**62), clocks, parts)
        with mock.patch.object(compaction, "LAZY", rewriting), few_hashes(bits):
            for shards, batches in starts:
                played.start(shards, again)
                for batch in batches:
                    played.play(batch)
            played.close()

    def test_each_kind_of_state_reads_as_its_docstring_says(self) -> None:
        messages = [(5, 1), (12, 2), (30, 4), (28, 8), (61, 16)]
        expectations: dict[str, tuple[Windowing | None, list[Any]]] = {
            "plain": (None, [0, 1, 3, 7, 15]),
            "ttl": (TimeToLive(15), [0, 1, 0, 4, 0]),
            "tumbling": (
                TumblingWindow(us(20)),
                [{(0, 20): 0}, {(0, 20): 1}, {(20, 40): 0}, {(20, 40): 4}, {(60, 80): 0}],
            ),
            "sliding": (
                SlidingWindow(us(20), us(10)),
                [
                    {(-10, 10): 0, (0, 20): 0},
                    {(0, 20): 1, (10, 30): 0},
                    {(20, 40): 0, (30, 50): 0},
                    {(10, 30): 2, (20, 40): 4},
                    {(50, 70): 0, (60, 80): 0},
                ],
            ),
            "gaps": (
                SlidingWindow(us(6), us(10), gaps=True),
                [{(0, 6): 0}, {(10, 16): 0}, {(30, 36): 0}, {}, {(60, 66): 0}],
            ),
            "sessions": (
                SessionWindow(us(17)),
                [{(5, 22): 0}, {(5, 29): 1}, {(30, 47): 0}, {(5, 47): 7}, {(61, 78): 0}],
            ),
        }
        for name, (windowing, expected) in expectations.items():
            task = Noting(windowing)
            run_local(
                task,
                [Message(time, {"n": n}) for time, n in messages],
                batch_size=1,
                checkpoint_interval="1 microsecond",
                allowed_delay="10 microseconds",
            )
            assert task.read == expected, name

    def test_what_has_expired_is_not_read_though_it_is_stored(self) -> None:
        task = Noting(TimeToLive(10))
        run_local(task, [Message(time, {"n": 1}) for time in (5, 15, 26, 27)], checkpoint_interval="1 hour")
        assert task.read == [0, 1, 0, 1]

    @pytest.mark.parametrize("batch_size", [1, 10])
    def test_a_message_in_no_window_has_no_copies_but_is_shown(self, batch_size: int) -> None:
        task = Reading(SlidingWindow(us(6), us(10), gaps=True), Sum(), counts_once=True)
        messages = [(8, 1), (9, 1), (12, 1), (13, 1), (21, 2)]
        told = [
            Message(time, {"key": "a", "n": 2, "id": id, "position": position})
            for position, (time, id) in enumerate(messages)
        ]
        run = run_local(task, told, checkpoint_interval="10 microseconds", batch_size=batch_size)
        assert task.read == {
            0: ({}, {}),
            1: ({}, {}),
            2: ({(10, 16): 0}, {(10, 16): 2}),
            4: ({(20, 26): 0}, {(20, 26): 2}),
        }
        assert run.outputs[20] == {("a", 10, 16): 2}

    def test_a_state_that_no_task_is_handed_has_nothing(self) -> None:
        assert NonWindowState(Sum(), ttl="1 day").get() == 0
        assert WindowState(Sum(), TumblingWindow("1 day")).get() == {}


class Noting(PersistentTask):
    """Notes what it reads, message after message, of a task without a key."""

    reads_state: ClassVar[bool] = True

    def __init__(self, windowing: Windowing | None) -> None:
        self.windowing = windowing
        self.read: list[Any] = []

    def persistent_state(self) -> KeptState[Any]:
        return state_in(self.windowing, Sum())

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        self.read.append(state.get())
        state.update(message.timestamp, message["n"])
