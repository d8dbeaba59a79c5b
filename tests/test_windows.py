"""Windows, sessions and what expires are what plain Python makes of the messages, and take few additions and little room."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Aggregator, Average, List, Map, Monoid, Sum
from persistent_state import (
    InvalidInputError,
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
from persistent_state.batch.plan import Plan
from persistent_state.event_time.clocks import BEGINNING, Settings
from persistent_state.open_state import read_state
from persistent_state.partials import keys
from persistent_state.partials.since import Since
from persistent_state.protocol.commits import close
from persistent_state.protocol.global_clock import Keeping
from persistent_state.state import KeptState
from persistent_state.store import runs as runs_io
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from persistent_state.store.state_at import seen_below
from persistent_state.store.task_state import TaskState
from persistent_state.testing import LocalRun
from persistent_state.windows import TimeToLive, Windowing
from tests import core
from tests.core import us
from tests.soak import soak_or
from tests.windows import SENT, Counting, Sent, lengths, shown, state_of, totals, windows_of

SECOND = 1_000_000
YEAR = 365 * 86_400 * SECOND

LENGTHS = st.integers(1, 12) | st.integers(1, 2**61)
TIMES = st.integers(-60, 60) | st.integers(-(2**62), 2**62)


# Panes


class TestPanes:
    @given(LENGTHS, LENGTHS, st.lists(TIMES, min_size=1))
    def test_a_pane_begins_at_the_last_edge_of_a_window_before_a_timestamp(
        self, size: int, step: int, times: list[int]
    ) -> None:
        panes = SlidingWindow(us(size), us(step), gaps=True).pane(np.array(times)).tolist()
        assert panes == [max(t - t % step, t - (t - size) % step) for t in times]

    @given(LENGTHS, LENGTHS, st.lists(TIMES, min_size=1))
    def test_windows_hold_whole_panes(self, size: int, step: int, times: list[int]) -> None:
        window, stamps = SlidingWindow(us(size), us(step), gaps=True), np.array(times)
        panes = window.pane(stamps)
        for of in (window.first, window.last, window.is_met, window.pane):
            assert of(panes).tolist() == of(stamps).tolist()

    @given(LENGTHS, LENGTHS, st.lists(TIMES, min_size=1))
    def test_the_first_and_the_last_window_of_a_timestamp(self, size: int, step: int, times: list[int]) -> None:
        window, stamps = SlidingWindow(us(size), us(step), gaps=True), np.array(times)
        found = zip(
            times, window.first(stamps).tolist(), window.last(stamps).tolist(), window.is_met(stamps), strict=True
        )
        for time, first, last, is_met in found:
            assert first % step == last % step == 0
            assert first - step + size <= time < first + size
            assert last <= time < last + step
            assert is_met == (first <= time < last + size) == (first <= last)

    @given(st.integers(1, 12), st.integers(1, 12), st.integers(-60, 60))
    def test_a_timestamp_is_in_the_windows_that_say_so(self, size: int, step: int, time: int) -> None:
        window, stamp = SlidingWindow(us(size), us(step), gaps=True), np.array([time])
        holding = [k * step for k in range(-100, 100) if k * step <= time < k * step + size]
        assert bool(window.is_met(stamp)[0]) == bool(holding)
        found = range(window.first(stamp)[0], window.last(stamp)[0] + 1, step)
        assert list(found) == holding

    def test_windows_are_given_as_text_or_as_timedeltas(self) -> None:
        assert TumblingWindow("1 minute") == TumblingWindow(us(60_000_000))
        assert SlidingWindow("1 minute", "60 seconds").identity() == TumblingWindow("1 minute").identity()
        assert repr(SlidingWindow("1 hour", "10 minutes")) == "SlidingWindow('1 hour', '10 minutes')"
        assert repr(SessionWindow("30 minutes")) == "SessionWindow('30 minutes')"


# No interval straddles the edge of a window, or a checkpoint clock


class Kept(PersistentTask):
    """Keeps the column `n` in whatever state it is given."""

    key = "key"
    value: str | None = "n"

    def __init__(self, state: KeptState[Any], message_id: str | None = None, horizon: str | None = None) -> None:
        self.state = state
        self.message_id = message_id
        self.horizon = horizon

    def persistent_state(self) -> KeptState[Any]:
        return self.state


ROW = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("n", pa.int64()), ("id", pa.int64())])


class Ran:
    """A task that runs in micro-batches and keeps few checkpoints."""

    def __init__(self, task: PersistentTask, *, interval: int = 10, delay: int = 0, clocks: int = 1, shards: int = 1):
        files = core.memory()
        times = Settings(interval, delay, ahead=2**62)
        self.plan: Plan = core.plan_of(task, ROW, files=files, settings=times, shards=shards)
        core.check(self.plan)
        self.log = Log(files, "app")
        self.keeping = Keeping(clocks=clocks)
        self.start()

    def start(self) -> Entry:
        self.entry = core.start(self.log, [self.plan])
        return self.entry

    def play(self, *messages: tuple[Any, ...]) -> Entry:
        """A micro-batch of (key, timestamp, value) and perhaps id."""
        padded = [(*message, None)[:4] for message in messages]
        rows = [{"ts": time, "key": key, "n": n, "id": id} for key, time, n, id in padded]
        batch = pa.RecordBatch.from_pylist(rows, ROW)
        self.entry = core.play(self.log, self.plan, batch, keeping=self.keeping)
        return self.entry

    def close(self) -> Entry:
        self.entry = close(self.log, self.entry.epoch, now=0, keeping=self.keeping)
        return self.entry

    @property
    def task(self) -> TaskState:
        return self.entry.tasks[self.plan.name]

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.task.stored.runs)

    def stored(self) -> Iterator[dict[str, Any]]:
        for run in self.task.stored.runs:
            yield from runs_io.read_run(self.plan.files, run).to_pylist()

    def state(self, clock: int | None = None) -> dict[Any, int]:
        table = core.whole_times(read_state(self.plan.files.url, "app", self.plan.task, clock))
        columns = [table[name].to_pylist() for name in table.column_names]
        found = {key[0] if len(key) == 1 else tuple(key): value for *key, value in zip(*columns, strict=True)}
        assert len(found) == table.num_rows
        return found


class Numbers(Kept):
    """Keeps which messages there were."""

    value = None

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, {message["n"]: 1})


WINDOWINGS = st.one_of(
    st.builds(SlidingWindow, lengths(1, 40), lengths(1, 20), gaps=st.just(True)),
    st.builds(SessionWindow, lengths(1, 20)),
    st.builds(TimeToLive, st.integers(1, 20)),
    st.none(),
)


def state_in(windowing: Windowing | None, monoid: Monoid[Any]) -> KeptState[Any]:
    if isinstance(windowing, (SlidingWindow, SessionWindow)):
        return WindowState(monoid, windowing)
    return NonWindowState(monoid, None if windowing is None else us(windowing.ttl))


@settings(max_examples=30)
@given(
    WINDOWINGS,
    st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(-80, 80)), min_size=1, max_size=8), max_size=8),
    st.integers(1, 15),
    st.integers(0, 200),
    st.integers(1, 3),
    st.sampled_from([compaction.LAZY, (1e9, 1)]),
)
def test_no_interval_reaches_over_the_edge_of_a_window_or_a_clock(
    windowing: Windowing | None,
    batches: list[list[tuple[int, int]]],
    interval: int,
    delay: int,
    clocks: int,
    rewriting: tuple[float, int],
) -> None:
    task = Numbers(state_in(windowing, Map(pa.int64(), Sum())))
    ran = Ran(task, interval=interval, delay=delay, clocks=clocks)
    accepted: dict[int, Sent] = {}
    count = 0
    with mock.patch.object(compaction, "LAZY", rewriting):
        for batch in batches:
            fixed, fresh = ran.entry.flow_of(ran.plan.name).progress.clock, []
            for number, (key, time) in enumerate(batch, count):
                fresh.append((key, time, number))
                in_window = not isinstance(windowing, SlidingWindow) or time % windowing.slide < windowing.size
                if time >= fixed and in_window:
                    accepted[number] = fresh[-1]
            count += len(batch)
            ran.play(*fresh)
            check_rows(ran, windowing, accepted)


def check_rows(ran: Ran, windowing: Windowing | None, accepted: Mapping[int, Sent]) -> None:
    """What is stored is each message that may still be needed, once, and in intervals of which none reaches over an edge."""
    clocks = {*ran.entry.retained, *ran.task.stored.cuts, ran.entry.flow_of(ran.plan.name).progress.clock}
    stored: Counter[int] = Counter()
    for row in ran.stored():
        stored.update(dict(row["value"]))
        some = [accepted[number] for number, _ in row["value"]]
        times = [time for _, time, _ in some]
        assert {key for key, _, _ in some} == {row["key0"]}
        assert row["start"] <= min(times)
        assert not any(min(times) < clock <= max(times) for clock in clocks)
        if isinstance(windowing, SlidingWindow):
            edges = [(t - t % windowing.slide, t - (t - windowing.size) % windowing.slide) for t in times]
            assert len({max(edge) for edge in edges}) == 1
            assert row["start"] >= max(edges[0])
        elif windowing is not None:
            assert (row["first"], row["last"]) == (min(times), max(times))
            assert len(windows_of(windowing, some)) == 1
    assert set(stored.values()) <= {1}
    needed = set(accepted)
    if windowing is not None:
        windows = windows_of(windowing, accepted.values())
        needed = {n for window, some in windows.items() if window[2] > ran.task.stored.floor for _, _, n in some}
    assert needed <= stored.keys()


# How much a stream adds


@pytest.mark.soak
@pytest.mark.parametrize("panes", [30, soak_or(ci=90, soak=200)])
def test_a_stream_of_sliding_windows_takes_log_additions_for_each_pane_however_long_they_are(panes: int) -> None:
    counting = Counting()
    ran = Ran(Kept(WindowState(counting, SlidingWindow(us(10 * panes), us(10)))), clocks=2)
    before, given = BEGINNING, {}
    for pane in range(3 * panes):
        ran.play((1, 10 * pane + 5, 1))
        since = Since(before)
        given.update(
            shown(
                seen_below(
                    ran.plan.files, ran.task.stored.runs, ran.plan.layout, ran.entry.clock, since, ran.task.stored.floor
                )
            )
        )
        before = ran.entry.clock
    # Each window was given, when its last pane was closed by a message of the next.
    assert given == {(1, end - 10 * panes, end): min(panes, end // 10) for end in range(10, before + 10, 10)}
    assert counting.additions <= 3 * math.log2(panes) * 3 * panes


# What a local run gives


def ran_local(state: KeptState[Any], messages: Iterable[Sent], batch_size: int = 100, **options: Any) -> LocalRun:
    """The messages of (key, timestamp, value), with checkpoints 10 microseconds apart unless said otherwise."""
    told = [Message(time, {"key": key, "n": n}) for key, time, n in messages]
    schema = pa.schema([("key", pa.int64()), ("n", pa.int64())])
    options = {"checkpoint_interval": "10 microseconds", **options}
    return run_local(Kept(state), told, schema=schema, batch_size=batch_size, **options)


class TestLocalRuns:
    def test_tumbling_windows_are_given_when_they_close(self) -> None:
        messages = [(1, 3, 1), (2, 14, 1), (1, 24, 2), (1, 25, 4), (1, 41, 8), (1, 60, 16)]
        run = ran_local(WindowState(Sum(), TumblingWindow(us(25))), messages, batch_size=1)
        assert run.outputs == {
            0: {},
            10: {},
            20: {},
            40: {(1, 0, 25): 3, (2, 0, 25): 1},
            60: {(1, 25, 50): 12},
            70: {},
        }
        assert run.states[20] == {(1, 0, 25): 1, (2, 0, 25): 1}
        assert run.states[40] == {(1, 25, 50): 4}
        assert run.states[70] == {(1, 50, 75): 16}

    def test_windows_that_slide_share_messages(self) -> None:
        run = ran_local(
            WindowState(Sum(), SlidingWindow(us(10), us(4))), [(1, 5, 1), (1, 9, 2), (1, 30, 0)], batch_size=1
        )
        assert run.outputs[30] == {(1, -4, 6): 1, (1, 0, 10): 3, (1, 4, 14): 3, (1, 8, 18): 2}

    def test_windows_with_gaps_between_them_sample(self) -> None:
        messages = [(1, time, 1) for time in range(-20, 40)]
        run = ran_local(WindowState(Sum(), SlidingWindow(us(3), us(10), gaps=True)), messages, batch_size=7)
        given = {window: n for values in run.outputs.values() for window, n in values.items()}
        assert given == {(1, begin, begin + 3): 3 for begin in range(-20, 40, 10)}
        assert run.late == []

    def test_sessions_are_given_when_they_have_ended(self) -> None:
        messages = [(1, 3, 1), (1, 12, 1), (2, 14, 1), (1, 22, 1), (1, 21, 1), (1, 60, 5)]
        run = ran_local(
            WindowState(Sum(), SessionWindow(us(10))), messages, batch_size=1, allowed_delay="5 microseconds"
        )
        assert run.outputs == {-10: {}, 0: {}, 10: {}, 50: {(1, 3, 32): 4, (2, 14, 24): 1}, 70: {(1, 60, 70): 5}}
        assert run.states[10] == {(1, 3, 13): 1}

    def test_a_state_lives_until_its_key_was_silent_for_longer(self) -> None:
        messages = [(1, 5, 1), (1, 15, 2), (1, 28, 4), (2, 41, 1), (2, 100, 1)]
        run = ran_local(NonWindowState(Sum(), ttl="10 microseconds"), messages, batch_size=1)
        assert run.states == {0: {}, 10: {1: 1}, 20: {1: 3}, 40: {}, 100: {}, 110: {2: 1}}
        assert run.outputs == {0: {}, 10: {1: 1}, 20: {1: 3}, 40: {1: 0}, 100: {}, 110: {2: 1}}

    def test_a_state_lives_to_the_microsecond(self) -> None:
        def at_ten(time: int) -> Mapping[Any, Any]:
            run = ran_local(NonWindowState(Sum(), ttl=us(10)), [(1, time, 1), (2, 20, 1)], batch_size=1)
            return run.states[20]

        assert (at_ten(10), at_ten(9)) == ({1: 1}, {})

    def test_windows_that_close_by_the_first_clock_are_given_too(self) -> None:
        messages = [(1, time, 1) for time in (5, 15, 28, 100)]
        windows = [
            (WindowState(Sum(), TumblingWindow(us(10))), {(1, 0, 10): 1, (1, 10, 20): 1, (1, 20, 30): 1}),
            (WindowState(Sum(), SessionWindow(us(11))), {(1, 5, 26): 2, (1, 28, 39): 1}),
        ]
        for state, expected in windows:
            run = ran_local(state, messages)
            assert run.clocks == [100, 110]
            assert run.outputs[100] == expected

    @settings(max_examples=30)
    @given(
        st.builds(SlidingWindow, lengths(1, 30), lengths(1, 12), gaps=st.just(True))
        | st.builds(SessionWindow, lengths(1, 15)),
        SENT,
        st.integers(1, 8),
        st.integers(1, 15),
    )
    def test_each_window_is_given_once_at_the_first_clock_at_or_above_its_end(
        self, window: SlidingWindow | SessionWindow, messages: list[Sent], batch_size: int, interval: int
    ) -> None:
        run = ran_local(
            WindowState(Sum(), window),
            messages,
            batch_size=batch_size,
            checkpoint_interval=f"{interval} microseconds",
            allowed_delay="200 microseconds",
        )
        assert run.late == []
        windows = windows_of(window, messages)
        expected: dict[int, dict[Any, int]] = {clock: {} for clock in run.clocks}
        for name, value in totals(windows).items():
            if name[2] <= (run.clocks or [BEGINNING])[-1]:
                expected[min(clock for clock in run.clocks if clock >= name[2])][name] = value
        assert run.outputs == expected
        for clock, state in run.states.items():
            assert state == state_of(window, messages, clock)

    @settings(max_examples=30)
    @given(st.integers(1, 15), SENT.map(lambda sent: sorted(sent, key=lambda m: m[1])), st.integers(1, 15))
    def test_what_lives_depends_on_timestamps_only(self, ttl: int, messages: list[Sent], interval: int) -> None:
        whole: dict[int, Mapping[Any, Any]] = {}
        for batch_size in (2, 100):
            run = ran_local(
                NonWindowState(Sum(), ttl=us(ttl)),
                messages,
                batch_size=batch_size,
                checkpoint_interval=f"{interval} microseconds",
            )
            for clock, state in run.states.items():
                assert state == state_of(TimeToLive(ttl), messages, clock)
                assert whole.setdefault(clock, state) == state

    @pytest.mark.parametrize(
        ("windowing", "given"),
        [
            (TumblingWindow(us(SECOND)), 4),
            (SlidingWindow(us(SECOND), us(SECOND // 10)), 41),
            (SessionWindow(us(SECOND)), 4),
            (TimeToLive(SECOND), 0),
        ],
    )
    def test_a_jump_of_years_makes_no_window_that_holds_nothing(self, windowing: Windowing, given: int) -> None:
        times = [-50 * YEAR, 5, 50 * YEAR, 50 * YEAR + SECOND // 10, 50 * YEAR + 2 * SECOND]
        messages = [(1, time, 1) for time in times]
        run = ran_local(state_in(windowing, Sum()), messages, batch_size=1, checkpoint_interval="1 second")
        assert len(run.clocks) <= len(times) + 1
        if isinstance(windowing, TimeToLive):
            assert run.outputs[run.clocks[-1]] == {1: 1}
            return
        closed = totals({w: some for w, some in windows_of(windowing, messages).items() if w[2] <= run.clocks[-1]})
        assert {w: n for values in run.outputs.values() for w, n in values.items()} == closed
        assert len(closed) == given

    def test_a_jump_of_years_takes_no_rows(self) -> None:
        for windowing in (
            TumblingWindow(us(SECOND)),
            SlidingWindow(us(SECOND), us(7)),
            SessionWindow(us(SECOND)),
            TimeToLive(SECOND),
        ):
            ran = Ran(Kept(state_in(windowing, Sum())), interval=SECOND)
            for time in (-50 * YEAR, 5, 50 * YEAR):
                ran.play((1, time, 1))
                assert ran.rows <= 3
            assert len(ran.task.stored.cuts) <= 12

    def test_times_as_far_as_they_go(self) -> None:
        times = [-(2**62), 5, 2**62]
        for window in (TumblingWindow(us(2**61)), SessionWindow(us(2**61))):
            run = ran_local(WindowState(Sum(), window), [(1, t, 1) for t in times], batch_size=1)
            windows = totals(windows_of(window, [(1, t, 1) for t in times]))
            given = {w: n for values in run.outputs.values() for w, n in values.items()}
            assert {**given, **run.state} == windows
            assert run.late == []
        sampled = ran_local(WindowState(Sum(), SlidingWindow(us(10), us(2**61), gaps=True)), [(1, t, 1) for t in times])
        assert {w: n for values in sampled.outputs.values() for w, n in values.items()} == {
            (1, -(2**62), 10 - 2**62): 1,
            (1, 0, 10): 1,
        }

    def test_what_is_presented_of_a_window(self) -> None:
        state = WindowState(Aggregator(abs, Sum(), lambda n: f"{n} in all", pa.string()), TumblingWindow(us(10)))
        run = run_local(
            Numbered(state),
            [Message(t, {"key": 1, "n": -2}) for t in (1, 2, 30)],
            checkpoint_interval="10 microseconds",
        )
        assert run.outputs[30] == {(1, 0, 10): "4 in all"}
        average = run_local(
            Kept(WindowState(Average(), TumblingWindow(us(10)))),
            [Message(t, {"key": 1, "n": t}) for t in (1, 4, 30)],
            checkpoint_interval="10 microseconds",
        )
        assert average.outputs[30] == {(1, 0, 10): 2.5}

    def test_a_list_in_a_window_is_in_the_order_of_time(self) -> None:
        for window, expected in (
            (SlidingWindow(us(20), us(10)), {(1, -10, 10): [3, 5], (1, 0, 20): [3, 5, 11], (1, 10, 30): [11]}),
            (SessionWindow(us(8)), {(1, 3, 19): [3, 5, 11]}),
        ):
            for batch_size in (1, 2, 10):
                run = run_local(
                    Listed(WindowState(List(pa.int64()), window)),
                    [Message(t, {"key": 1, "n": t}) for t in (5, 3, 11, 40)],
                    checkpoint_interval="10 microseconds",
                    allowed_delay="8 microseconds",
                    batch_size=batch_size,
                )
                given = {w: n for values in run.outputs.values() for w, n in values.items() if w[2] <= 40}
                assert given == expected


class Numbered(Kept):
    value = None

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, message["n"])


class Listed(Kept):
    value = None

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, [message["n"]])


# What is stored


@pytest.mark.parametrize(
    ("windowing", "once"),
    [
        (TumblingWindow(us(30)), False),
        (SlidingWindow(us(30), us(10)), False),
        (SessionWindow(us(8)), False),
        (TimeToLive(20), False),
        (None, True),
        (TumblingWindow(us(30)), True),
        (SessionWindow(us(8)), True),
        (TimeToLive(20), True),
    ],
)
def test_what_is_stored_is_within_a_few_times_of_what_is_needed(windowing: Windowing | None, once: bool) -> None:
    # Keys come and go, but where nothing else is forgotten.
    named = {"message_id": "id", "horizon": "40 microseconds"} if once else {}
    ran = Ran(Kept(state_in(windowing, Sum()), **named))
    sent: list[Sent] = []
    most = 0
    for batch in range(40):
        fresh = [(1 if windowing is None else batch // 3 * 5 + i % 5, batch * 4 + i % 4, 1) for i in range(10)]
        floor, levels = ran.task.stored.floor, len(ran.task.stored.runs)
        sent += fresh
        ran.play(*[(*message, 10 * batch + i) for i, message in enumerate(fresh)])
        needed = 1 if windowing is None else 0
        for (_, _, end), some in windows_of(windowing or TimeToLive(10**9), sent).items():
            needed += sum(
                (once and time + 40 >= floor) or (end > floor and windowing is not None) for _, time, _ in some
            )
        # Of what a shard keeps without rewriting it at least a quarter is needed. Each may end with what has just come.
        assert ran.rows <= 4 * needed + len(fresh)
        most = max(most, ran.rows)
        assert levels <= 3 * (compaction.MANY + 6)
    assert len(sent) == 400
    assert most < 300


# Messages that come again


class Repeated(Kept):
    """Each message updates twice."""

    value = None

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, message["n"])
        state.update(message.timestamp, 10 * message["n"])


def once(state: KeptState[Any] | None = None, kind: type[Kept] = Kept, horizon: int = 100) -> Kept:
    return kind(state or NonWindowState(Sum()), "id", f"{horizon} microseconds")


@pytest.fixture(params=[False, True], ids=["honest", "colliding"])
def hashes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hashes as they are, and so few that keys and ids share them."""
    honest = keys.hash_keys

    def few(columns: Any, rows: int) -> Any:
        return honest(columns, rows) & np.uint64(0xF << 60)

    with mock.patch.object(keys, "hash_keys", few if request.param else honest):
        yield


def local(task: Kept, *messages: tuple[int, int, int, int | None], batch_size: int = 100) -> LocalRun:
    schema = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("id", pa.int64())])
    told = [Message(time, {"key": key, "n": n, "id": id}) for key, time, n, id in messages]
    return run_local(
        task,
        told,
        schema=schema,
        batch_size=batch_size,
        checkpoint_interval="10 microseconds",
        allowed_delay="1000 microseconds",
    )


@pytest.mark.usefixtures("hashes")
class TestCopies:
    @pytest.mark.parametrize("batch_size", [1, 2, 100])
    def test_a_message_counts_once_within_the_horizon_and_per_key(self, batch_size: int) -> None:
        messages = [(1, 5, 1, 7), (1, 5, 1, 7), (2, 5, 1, 7), (1, 5, 1, 8), (1, 105, 2, 7), (1, 106, 4, 7)]
        ran = local(once(), *messages, batch_size=batch_size)
        assert (ran.state, ran.copies) == ({1: 1 + 1 + 4, 2: 1}, 2)

    @pytest.mark.parametrize("batch_size", [1, 3])
    def test_a_message_without_an_id_always_counts(self, batch_size: int) -> None:
        assert local(once(), *[(1, 5, 1, None)] * 3, (1, 5, 1, 0), batch_size=batch_size).state == {1: 4}

    @pytest.mark.parametrize("batch_size", [1, 2, 100])
    def test_the_updates_of_one_message_stay_together(self, batch_size: int) -> None:
        messages = [(1, 5, 1, 7), (1, 6, 2, 8), (1, 5, 1, 7), (1, 6, 2, 8)]
        assert local(once(kind=Repeated), *messages, batch_size=batch_size).state == {1: 33}

    @pytest.mark.parametrize("batch_size", [1, 100])
    def test_the_first_in_a_batch_is_the_earliest_and_a_copy_of_a_copy_is_none(self, batch_size: int) -> None:
        # By time 100 is a copy of 0, and 150 of none that counts.
        messages = [(1, 0, 1, 7), (1, 100, 2, 7), (1, 150, 4, 7), (1, 260, 8, 7)]
        assert local(once(), *messages, batch_size=batch_size).state == {1: 1 + 4 + 8}
        assert local(once(), *reversed(messages), batch_size=4).state == {1: 1 + 4 + 8}

    def test_a_copy_may_be_earlier_than_what_was_accepted(self) -> None:
        assert local(once(), (1, 105, 1, 7), (1, 5, 2, 7), (1, 4, 4, 7), batch_size=1).state == {1: 1 + 4}

    def test_a_message_without_an_update_leaves_no_id(self) -> None:
        none: Any = None
        assert local(once(), (1, 5, none, 7), (1, 6, 1, 7), (1, 7, 2, 7), batch_size=1).state == {1: 1}

    def test_a_task_that_reads_its_state_is_not_shown_copies(self) -> None:
        seen: list[int] = []

        class Reading(Numbered):
            reads_state = True

            def process_message(self, state: PersistentState[Any], message: Message) -> None:
                seen.append(state.get())
                state.update(message.timestamp, message["n"])

        run = local(once(kind=Reading), (1, 5, 1, 7), (1, 6, 2, 8), (1, 5, 1, 7), (1, 9, 4, 9), batch_size=2)
        assert (run.state, seen) == ({1: 7}, [0, 1, 3])

    def test_copies_are_found_across_restarts(self) -> None:
        ran = Ran(once(), delay=20)
        ran.play((1, 5, 1, 7), (1, 20, 2, 8))
        ran.play((1, 45, 4, 9), (1, 60, 8, 10))
        assert ran.entry.clock == 40
        ran.start()
        # What is above the clock comes again, and so do copies of what is below it.
        ran.play((1, 45, 4, 9), (1, 60, 8, 10), (1, 45, 4, 9), (1, 50, 16, 7), (1, 41, 32, 8))
        ran.close()
        assert ran.state() == {1: 1 + 2 + 4 + 8}

    def test_ids_are_forgotten_beyond_the_horizon_and_not_before(self) -> None:
        for rewriting in (compaction.LAZY, (1e9, 1)):
            with mock.patch.object(compaction, "LAZY", rewriting):
                ran = Ran(once(horizon=50))
                ran.play((1, 5, 1, 7))
                for time in range(15, 50, 10):
                    ran.play((1, time, 10, time))
                ran.play((1, 55, 100, 7))
                ran.play((1, 56, 1000, 7))
                for time in range(65, 300, 10):
                    ran.play((1, time, 0, time))
                assert ran.state() == {1: 1041}
                assert ran.rows < 30

    @pytest.mark.parametrize(
        "windowing", [TumblingWindow(us(10)), SlidingWindow(us(20), us(10)), SessionWindow(us(25)), TimeToLive(25)]
    )
    def test_messages_with_an_id_are_in_their_windows_and_remembered_after_them(self, windowing: Windowing) -> None:
        counted = [(1, time, 2**i) for i, time in enumerate((3, 20, 31, 41, 62, 70, 99, 120))]
        for rewriting in (compaction.LAZY, (1e9, 1)):
            with mock.patch.object(compaction, "LAZY", rewriting):
                ran = Ran(once(state_in(windowing, Sum()), horizon=1000))
                for i, (key, time, n) in enumerate(counted):
                    ran.play((key, time, n, i), *((key, time + j, n, j) for j in range(i)))
                    below = [m for m in counted[: i + 1] if m[1] < ran.entry.clock]
                    assert ran.state() == state_of(windowing, below, ran.entry.clock)
                    assert sorted(row["id"] for row in ran.stored()) == list(range(i + 1))


# What is refused


def refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        call()
    assert str(caught.value) == sentence


class TestRefused:
    @pytest.mark.parametrize(
        ("make", "what", "said"),
        [
            (lambda: TumblingWindow(us(2**61 + 1)), "size", repr(us(2**61 + 1))),
            (lambda: SlidingWindow("1 hour", us(2**61 + 1)), "slide", repr(us(2**61 + 1))),
            (lambda: NonWindowState(Sum(), ttl=us(2**61 + 1)), "ttl", repr(us(2**61 + 1))),
            (lambda: SessionWindow("30000000 days"), "gap", "'30000000 days'"),
        ],
    )
    def test_a_length_of_too_much(self, make: Callable[[], Any], what: str, said: str) -> None:
        refused(make, f"{what}={said}; it must be at most {2**61} microseconds.")

    @pytest.mark.parametrize("bare", [10, 5.5, True, "10", None])
    def test_a_number_without_a_unit(self, bare: Any) -> None:
        task = Kept(NonWindowState(Sum()), "id", bare)
        tries: list[tuple[str, Callable[[], Any]]] = [
            ("size", lambda: TumblingWindow(bare)),
            ("gap", lambda: SessionWindow(bare)),
        ]
        if bare is not None:
            tries += [
                ("slide", lambda: SlidingWindow("1 hour", bare)),
                ("ttl", lambda: NonWindowState(Sum(), ttl=bare)),
                ("horizon", partial(core.check, core.plan_of(task, ROW))),
            ]
        for name, call in tries:
            refused(
                call,
                f'{name}={bare!r} is not a duration; give text such as "10 seconds", a whole number and one of microseconds, '
                "milliseconds, seconds, minutes, hours, days, or a datetime.timedelta.",
            )

    def test_a_duration_of_nothing(self) -> None:
        refused(lambda: TumblingWindow("0 seconds"), "size='0 seconds'; it must be longer than 0.")
        refused(lambda: SlidingWindow("1 hour", "0 seconds"), "slide='0 seconds'; it must be longer than 0.")
        refused(lambda: SessionWindow("0 days"), "gap='0 days'; it must be longer than 0.")
        refused(lambda: NonWindowState(Sum(), ttl="0 seconds"), "ttl='0 seconds'; it must be longer than 0.")
        refused(lambda: TumblingWindow(us(0)), "size=datetime.timedelta(0); it must be longer than 0.")
        with pytest.raises(InvalidInputError, match=r"^size='an hour' is not a duration; give text such as "):
            TumblingWindow("an hour")

    def test_a_window_that_is_none(self) -> None:
        for window in ("1 hour", TimeToLive(5), None):
            wrong: Any = window
            refused(
                partial(WindowState, Sum(), wrong),
                f"window={window!r} is not a window; give a TumblingWindow, a SlidingWindow or a SessionWindow.",
            )

    def test_ids_without_a_horizon_and_a_horizon_without_ids(self) -> None:
        state: KeptState[Any] = NonWindowState(Sum())
        for named in (("id", None), (None, "1 day")):
            refused(
                partial(core.check, core.plan_of(Kept(state, *named), ROW)),
                f"task=Kept: message_id={named[0]!r} and horizon={named[1]!r} go together; give both or neither.",
            )
        refused(
            partial(core.check, core.plan_of(Kept(state, "uid", "1 day"), ROW)),
            "task=Kept: the message id column 'uid' is not in the source; it has ts, key, n, id.",
        )
        refused(
            partial(core.check, core.plan_of(Kept(state, "id", "0 days"), ROW)),
            "horizon='0 days'; it must be longer than 0.",
        )
        schema = ROW.set(3, pa.field("id", pa.list_(pa.int64())))
        refused(
            partial(core.check, core.plan_of(Kept(state, "id", "1 day"), schema)),
            "task=Kept, message id 'id': key type=list<item: int64> cannot be a key; cast the column to a bool, integer, "
            "float, string, binary, date, timestamp or decimal128.",
        )

    def test_a_key_with_the_name_of_a_column_of_the_window(self) -> None:
        schema = ROW.set(1, pa.field("window_start", pa.int64()))

        class Named(Kept):
            key = "window_start"

        for windowing in (TumblingWindow(us(10)), SessionWindow(us(10))):
            refused(
                partial(core.check, core.plan_of(Named(state_in(windowing, Sum())), schema)),
                "task=Named: the key column 'window_start' has the name of a column of the state; "
                "rename it in the source's transform.",
            )
        core.check(core.plan_of(Named(NonWindowState(Sum(), ttl=us(10))), schema))

    @pytest.mark.parametrize(
        ("was", "now", "what", "written", "wanted"),
        [
            (
                TumblingWindow(us(10)),
                TumblingWindow(us(20)),
                "window",
                "size=10 microseconds, slide=10 microseconds",
                "size=20 microseconds, slide=20 microseconds",
            ),
            (
                TumblingWindow(us(10)),
                SlidingWindow(us(10), us(5)),
                "window",
                "size=10 microseconds, slide=10 microseconds",
                "size=10 microseconds, slide=5 microseconds",
            ),
            (SessionWindow(us(10)), SessionWindow(us(11)), "window", "gap=10 microseconds", "gap=11 microseconds"),
            (
                TumblingWindow(us(10)),
                SessionWindow(us(10)),
                "window",
                "size=10 microseconds, slide=10 microseconds",
                "gap=10 microseconds",
            ),
            (None, TimeToLive(10), "window", "none", "ttl=10 microseconds"),
            (TimeToLive(10), None, "window", "ttl=10 microseconds", "none"),
            (TimeToLive(10), TimeToLive(9), "window", "ttl=10 microseconds", "ttl=9 microseconds"),
            (TumblingWindow(us(10)), None, "state", "WindowState", "NonWindowState"),
        ],
    )
    def test_a_store_written_with_other_windows(
        self, was: Windowing | None, now: Windowing | None, what: str, written: str, wanted: str
    ) -> None:
        ran = Ran(Kept(state_in(was, Sum())))
        ran.play((1, 5, 1), (1, 25, 1))
        other = Kept(state_in(now, Sum()))
        plan = core.plan_of(other, ROW, files=ran.plan.files)
        refused(
            lambda: core.start(ran.log, [plan]),
            f"task=Kept: the store was written with {what}={written}, the task has {wanted}. {core.ways('Kept')}",
        )
        refused(
            lambda: read_state(ran.plan.files.url, "app", other),
            f"task=Kept: the store was written with {what}={written}, not {wanted}; open it with the task that wrote it.",
        )
        core.start(ran.log, [plan], reset=["Kept"])

    def test_a_store_written_with_ids_of_another_kind_or_none(self) -> None:
        state: KeptState[Any] = NonWindowState(Sum())
        ran = Ran(Kept(state, "id", "1 day"))
        ran.play((1, 5, 1, 7), (1, 25, 1, 8))
        refused(
            lambda: core.start(ran.log, [core.plan_of(Kept(state), ROW, files=ran.plan.files)]),
            "task=Kept: the store was written with message_id=int64, the task has none. " + core.ways("Kept"),
        )
        # How long ids are remembered may change, and who reads need not know of them.
        core.start(ran.log, [core.plan_of(Kept(state, "id", "2 days"), ROW, files=ran.plan.files)])
        assert read_state(ran.plan.files.url, "app", Kept(state)).to_pylist() == [{"key": 1, "value": 1}]

    def test_a_state_is_opened_with_its_windows_by_the_name_of_its_task(self) -> None:
        messages = [(1, 5, 1), (1, 14, 2), (2, 17, 4), (1, 26, 8)]
        for windowing in (TumblingWindow(us(10)), SlidingWindow(us(30), us(7)), SessionWindow(us(12)), TimeToLive(12)):
            kept = [
                m
                for m in messages
                if not isinstance(windowing, SlidingWindow) or m[1] % windowing.slide < windowing.size
            ]
            ran = Ran(Kept(state_in(windowing, Sum())), clocks=3)
            for message in messages:
                ran.play(message)
            for clock in ran.entry.retained:
                named, given = (read_state(ran.plan.files.url, "app", task, clock) for task in ("Kept", ran.plan.task))
                assert named.equals(given)
                assert ran.state(clock) == state_of(windowing, kept, clock)
                windows = [] if isinstance(windowing, TimeToLive) else ["window_start", "window_end"]
                assert named.column_names == ["key", *windows, "value"]
                assert all(named[name].type == pa.timestamp("us", "UTC") for name in windows)
