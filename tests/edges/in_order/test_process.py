"""What becomes of a key: as twenty lines of plain Python have it, in however many steps the clock comes there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistent_state.batch.row_messages import row_messages
from persistent_state.edges.in_order import process as processing
from persistent_state.edges.in_order.as_stored import as_stored
from persistent_state.edges.in_order.process import Bad, Emitted, KeyState, Outcome, Program, process
from persistent_state.errors import TaskFailedError
from persistent_state.ordered import Context, OrderedTask, Timer
from persistent_state.task import Message
from persistent_state.testing import run_local
from tests.core import micros

STATE = pa.struct([("log", pa.list_(pa.string())), ("n", pa.int64())])
ROW = pa.schema([("said", pa.string()), ("n", pa.int64())])
UNFIT = "unfit"


class Told(OrderedTask):
    """It does what its messages say, and keeps a record of all that it was called with."""

    key = "k"
    state = STATE
    emits = ROW

    def process(self, state: Any, message: Message, context: Context) -> Any:
        # In its place, as user code may.
        state = state or {"log": [], "n": 0}
        state["log"].append(f"{message.timestamp}")
        state["n"] += 1
        for what, *rest in message["acts"]:
            if what == "emit":
                context.emit(said=f"at {message.timestamp}", n=rest[0])
            elif what == "set":
                context.set_timer(message.timestamp + rest[0], rest[1])
            elif what == "delete":
                context.delete_timer(message.timestamp + rest[0], rest[1])
            elif what == "replace":
                context.replace_timer(rest[1], timedelta(microseconds=rest[0]))
            elif what == "delete all":
                context.delete_timer(name=rest[0])
            elif what == "forget":
                return None
            elif what == UNFIT:
                return {"log": 5, "n": 1}
        return state

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        state["log"].append(f"{timer.name}@{timer.timestamp}")
        context.emit(said=timer.name, n=state["n"])
        if timer.name == "again":
            context.set_timer(timer.timestamp + 3, "once")
        return None if timer.name == "end" else state


def program(task: OrderedTask, ttl: int | None = None) -> Program:
    assert task.state is not None
    assert task.emits is not None
    row = pa.struct(list(task.emits))
    return Program(task, as_stored(task.state), as_stored(row), {"": 0, "b": 1}, ttl)


def oracle(messages: Sequence[Message], upto: int, ttl: int | None) -> tuple[Any, set[Any], list[Any]]:
    """The state, the timers and the rows of a key at a clock."""
    log, n, timers, newest, rows = None, 0, set[tuple[int, str]](), 0, list[Any]()
    for message in [*messages, Message(upto - 1, {"acts": None})]:
        now, acts = message.timestamp, message["acts"]
        for due_now in (False, True):
            while log is not None and (
                due := [t for t in timers if t[0] <= now and (ttl is None or t[0] <= newest + ttl)]
            ):
                at, name = min(due)
                timers.remove((at, name))
                log.append(f"{name}@{at}")
                rows.append((at, name, n))
                timers |= {(at + 3, "once")} if name == "again" else set()
                if name == "end":
                    log, timers = None, set()
            if due_now or acts is None or any(what == UNFIT for what, *_ in acts):
                continue
            if log is None or (ttl is not None and now > newest + ttl):
                log, n, timers = [], 0, set()
            log, n, newest = [*log, f"{now}"], n + 1, now
            for what, *rest in acts:
                if what == "emit":
                    rows.append((now, f"at {now}", rest[0]))
                elif what == "set":
                    timers.add((now + max(rest[0], 0), rest[1]))
                elif what == "delete":
                    timers.discard((now + max(rest[0], 0), rest[1]))
                elif what == "replace":
                    timers = {t for t in timers if t[1] != rest[1]} | {(now + max(rest[0], 0), rest[1])}
                elif what == "delete all":
                    timers = {t for t in timers if t[1] != rest[0]}
                elif what == "forget":
                    log, timers = None, set()
                    break
    return (None if log is None else {"log": log, "n": n}), timers, rows


names = st.sampled_from(["", "again", "end"])
acts = st.one_of(
    st.tuples(st.just("emit"), st.integers(0, 9)),
    st.tuples(st.just("set"), st.integers(-2, 12), names),
    st.tuples(st.just("delete"), st.integers(-2, 12), names),
    st.tuples(st.just("replace"), st.integers(-2, 12), names),
    st.tuples(st.just("delete all"), names),
    st.tuples(st.just("forget")),
    st.tuples(st.just(UNFIT)),
)
some_acts = st.lists(acts, max_size=3).map(lambda some: until_forgotten(some))
streams = st.lists(st.tuples(st.integers(0, 6), some_acts), max_size=12)


def until_forgotten(acts: list[Any]) -> list[Any]:
    """What comes before the key is forgotten, and that."""
    return acts[: acts.index(("forget",)) + 1] if ("forget",) in acts else acts


@settings(deadline=None)
@given(streams, st.lists(st.integers(1, 60), max_size=4), st.none() | st.integers(1, 8))
def test_a_key_is_what_plain_python_makes_of_it_in_however_many_steps(
    stream: Any, clocks: list[int], ttl: int | None
) -> None:
    messages, now = [], 0
    for ahead, some in stream:
        now += ahead
        messages.append(Message(now, {"acts": some}))
    kept, rows, since = KeyState(), list[Emitted](), 0
    for clock in sorted({*clocks, now + 30}):
        found = process(
            program(Told(), ttl), 1, through_arrow(kept), [m for m in messages if since <= m.timestamp < clock], clock
        )
        kept, since = found.kept, clock
        rows += found.rows
        state, timers, _ = oracle([m for m in messages if m.timestamp < clock], clock, ttl)
        assert kept.state == state
        reachable = {(t.timestamp, t.name) for t in kept.timers}
        assert reachable == timers
    assert [(row.moment, row.row["said"], row.row["n"]) for row in rows] == oracle(messages, now + 30, ttl)[2]
    order = [(row.moment, row.rank) for row in rows]
    assert order == sorted(order)


def through_arrow(kept: KeyState) -> KeyState:
    (state,) = pa.array([kept.state], STATE).to_pylist()
    return KeyState(state, kept.timers, kept.newest)


def test_a_bad_message_leaves_no_trace() -> None:
    good, bad = Message(1, {"acts": [("set", 5, "")]}), Message(2, {"acts": [("emit", 1), ("set", 7, ""), (UNFIT,)]})
    found = process(program(Told()), 1, KeyState(), [good, bad, Message(3, {"acts": []})], 4)
    assert [*found.bad] == [1]
    assert found.rows == []
    assert found.kept == KeyState({"log": ["1", "3"], "n": 2}, (Timer(6),), 3)


class Tags(OrderedTask):
    """It changes what a message holds in its place, as user code may."""

    state, emits = pa.int64(), pa.schema([("n", pa.int64())])

    def process(self, state: Any, message: Message, context: Context) -> Any:
        tags = message["tags"]
        tags.append("seen")
        context.emit(n=len(message["tags"]))
        return "no number" if "bad" in tags else (state or 0) + len(tags)


def test_messages_before_a_bad_one_are_as_they_came() -> None:
    rows = {"tags": pa.array([["a"], ["bad"], []])}
    found = process(program(Tags()), 1, KeyState(), list(row_messages(rows, [1, 2, 3], "")), 4)
    assert (found.kept.state, [*found.bad]) == (3, [1])
    assert [row.row["n"] for row in found.rows] == [2, 1]


class Echo(OrderedTask):
    """It sets as many timers as its message says: at once, or one after the other."""

    state = pa.int64()

    def process(self, state: Any, message: Message, context: Context) -> Any:
        for i in range(message["at once"]):
            context.set_timer(message.timestamp + 10, f"{i}")
        if message["chain"]:
            context.set_timer(message.timestamp + 1, "chain")
        return (state or 0) + 1

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        if timer.name == "chain":
            context.set_timer(timer.timestamp + 1, "chain")
        return state + 1


def echo(task: OrderedTask) -> Program:
    assert task.state is not None
    return Program(task, as_stored(task.state), dict, interval=100)


def test_timers_that_messages_set_are_called_however_many_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "MOST_TIMERS", 50)
    messages = [Message(i, {"at once": 30, "chain": False}) for i in range(5)]
    assert process(echo(Echo()), 1, KeyState(), messages, 100).kept.state == 5 * 31


def test_timers_that_timers_set_are_counted_by_the_interval_whichever_steps_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = Message(0, {"at once": 0, "chain": True})
    for most, passes in ((99, True), (97, False)):
        monkeypatch.setattr(processing, "MOST_TIMERS", most)
        for clocks in ([1000], [500, 1000], [*range(100, 1001, 100)]):
            kept, some, told = KeyState(), [message], ""
            try:
                for clock in clocks:
                    kept, some = process(echo(Echo()), 1, kept, some, clock).kept, []
            except TaskFailedError as error:
                told = str(error)
            assert passes == (not told)
            assert kept.state == 1000 or not passes
            # The first interval is enough to see it.
            assert passes or "Timer(timestamp=98, name='chain')" in told


def test_a_message_ends_a_chain_of_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "MOST_TIMERS", 50)
    messages = [Message(at, {"at once": 0, "chain": True}) for at in (0, 40, 80)]
    assert process(echo(Echo()), 1, KeyState(), messages, 99).kept.newest == 80


class Fan(OrderedTask):
    """A message sets as many timers as it says, each of which sets so many for the next interval, and these, too."""

    state = pa.int64()

    def __init__(self, each: int) -> None:
        self.each = each

    def process(self, state: Any, message: Message, context: Context) -> Any:
        for i in range(message["at once"]):
            context.set_timer(message.timestamp + 1, f"{i}")
        return 0

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        for i in range(self.each):
            context.set_timer(timer.timestamp + 100, f"{timer.name}{i}")
        return state + 1


# If they were not seen, there would be a thousand timers in the end.
@pytest.mark.parametrize(("each", "end"), [(2, 1000), (10, 300)])
@pytest.mark.parametrize("steps", [1, 2, 100])
def test_timers_that_set_several_each_end_before_they_fill_the_memory(
    each: int, end: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processing, "MOST_TIMERS", 50)
    kept, messages, called = KeyState(), [Message(0, {"at once": 1})], 0
    said = ""
    try:
        for clock in range(end // steps, end + 1, end // steps):
            kept, messages = process(echo(Fan(each)), 1, kept, messages, clock).kept, []
            assert len(kept.timers) <= 2 * 50
            called = kept.state
    except TaskFailedError as error:
        said = str(error)
    assert "task=Fan key=1: without a message, on_timer set over 50 timers more than were called, up to Timer(" in said
    assert called <= 2 * 50


@pytest.mark.parametrize("step", [100, 1000])
def test_many_timers_that_each_set_one_go_on(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "MOST_TIMERS", 50)
    kept, messages = KeyState(), [Message(0, {"at once": 200})]
    for clock in range(step, 1001, step):
        kept, messages = process(echo(Fan(1)), 1, kept, messages, clock).kept, []
    assert (kept.state, len(kept.timers)) == (2000, 200)


class Later(OrderedTask):
    """Each message sets a timer and deletes the one before."""

    state = pa.int64()

    def process(self, state: Any, message: Message, context: Context) -> Any:
        context.set_timer(message.timestamp + 10**6)
        if state is not None and message["deletes"]:
            context.delete_timer(state + 10**6)
        return message.timestamp

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        return state


@pytest.mark.parametrize("deletes", [False, True])
def test_what_a_timer_costs_does_not_grow_with_those_that_are_set(deletes: bool) -> None:
    """Timers are compared so often as a heap of them asks for, not as a list."""
    count = 20_000
    messages = [Message(i, {"deletes": deletes}) for i in range(count)]
    calls = 0

    def count_calls(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += 1

    task = echo(Later())
    sys.setprofile(count_calls)
    try:
        kept = process(task, 1, KeyState(), messages, count).kept
        kept = process(task, 1, kept, [], 2 * 10**6).kept
    finally:
        sys.setprofile(None)
    assert (kept.state, kept.timers) == (count - 1, ())
    assert calls < 100 * count


def test_a_timer_that_was_called_is_not_called_again_in_the_next_step() -> None:
    first = process(program(Told()), 1, KeyState(), [Message(1, {"acts": [("set", 4, "")]})], 6)
    assert [row.moment for row in first.rows] == [5]
    assert process(program(Told()), 1, first.kept, [], 9).rows == []


def test_what_is_set_for_a_time_before_is_deleted_by_that_time() -> None:
    acts = [("set", -3, "a"), ("set", 0, "b"), ("delete", -3, "a"), ("delete", -1, "b")]
    found = process(program(Told()), 1, KeyState(), [Message(5, {"acts": acts})], 9)
    assert found.kept == KeyState({"log": ["5"], "n": 1}, (), 5)


BEYOND = pa.array([10**18, 0]).cast(pa.timestamp("us", "UTC"))
"""The first is no time for Python."""


class Times(OrderedTask):
    state = pa.int64()
    emits = pa.schema([("n", pa.int64())])

    def process(self, state: Any, message: Message, context: Context) -> Any:
        context.emit(n=message["n"])
        return message["at"].year


def test_a_message_with_a_value_that_python_does_not_have_is_bad_and_alone() -> None:
    first, second = row_messages({"at": BEYOND, "n": pa.array([1, 2])}, [1, 2], "")
    assert process(echo(Times()), "a", KeyState(), [second], 9).kept.state == 1970
    outcome = process(echo(Times()), "a", KeyState(), [first], 9)
    assert outcome.bad == {0: Bad("value beyond what Python has: column at", "")}
    assert (outcome.kept, outcome.rows) == (KeyState(), [])
    assert repr(first) == "Message(1, {'at': <timestamp[us, tz=UTC]>, 'n': 1})"


def test_a_key_that_is_forgotten_as_before_has_not_changed() -> None:
    nothing = KeyState()
    assert not KeyState(newest=5).differs(nothing)
    assert KeyState(5).differs(nothing)
    assert KeyState(newest=5).differs(KeyState(5))
    assert KeyState(5, newest=6).differs(KeyState(5, newest=5))


class Mute(OrderedTask):
    """It emits no rows, and has nothing for timers."""

    state = pa.int64()

    def process(self, state: Any, message: Message, context: Context) -> Any:
        if message["emits"]:
            context.emit(n=1)
        context.set_timer(message.timestamp)
        return 1


@pytest.mark.parametrize(
    ("emits", "said"),
    [
        (True, r"process of task=Mute at .*, at key='a' message=.*: task=Mute emits a row; name its columns in emits\.$"),
        (False, r"on_timer of task=Mute, at key='a' Timer\(.*: task=Mute sets timers, and has no on_timer\(\); define it\.$"),
    ],
)  # fmt: skip
def test_what_a_task_lacks_is_told(emits: bool, said: str) -> None:
    with pytest.raises(TaskFailedError, match=said):
        process(echo(Mute()), "a", KeyState(), [Message(7, {"emits": emits})], 9)


class Broken(Told):
    def process(self, state: Any, message: Message, context: Context) -> Any:
        if message["acts"] == "raise":
            raise ValueError("no")
        if message["acts"] == "column":
            context.emit(sad="x")
        if message["acts"] == "key":
            context.emit(k="a")
        if message["acts"] == "unnamed":
            context.emit("yes")
        if message["acts"] == "beyond":
            context.set_timer(2**63)
        if message["acts"] == "no text":
            context.delete_timer(9, "\ud800")
        if message["acts"] == "no time":
            context.set_timer(1.5)  # type: ignore[arg-type]
        context.set_timer(message.timestamp + 1, message["acts"])
        return {"log": [], "n": 0}

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        if timer.name == "for ever":
            context.set_timer(timer.timestamp + 1, timer.name)
        elif timer.name == "at once":
            context.set_timer(timer.timestamp, timer.name)
        elif timer.name == "unfit":
            return 5
        return state


@pytest.mark.parametrize(
    ("acts", "said"),
    [
        ("raise", r"process of task=Broken raised ValueError\('no'\) at .*test_process.py:\d+ in process, at key='a' "
                  r"message=.* timestamp=7\."),
        ("column", r"of task=Broken at .*test_process.py:\d+ in process, at key='a' message=.* timestamp=7: emits has no "
                   r"column 'sad', but said, n; add it there\.$"),
        ("key", r"timestamp=7: context\.emit\(k=\.\.\.\): the row gets the key columns by itself; leave it "
                r"out, or name it in emits\.$"),
        ("unnamed", r": context.emit\(\) was given 'yes' without a name; give columns by name, said=...\.$"),
        ("for ever", r"task=Broken key='a': timers set more than 100 timers for one checkpoint interval, without a "
                     r"message, the last of them Timer\(timestamp=108, name='for ever'\); let on_timer"),
        ("at once", r"Timer\(timestamp=8, name='at once'\) sets a timer for 8, which is no later time; add to timer.timestamp"),
        ("beyond", r"process of task=Broken at .*test_process.py:\d+ in process, at key='a' message=.*: a timer has "
                   r"timestamp=9223372036854775808, which is beyond 64 bits; give microseconds UTC\."),
        ("no text", r"process of task=Broken at .*: a timer has name='\\ud800', which is not Unicode text; give a text\."),
        ("no time", r"process of task=Broken at .*: a timer has timestamp=1.5 and name=''; give whole microseconds, a datetime "
                    r"or a timedelta, and a text\."),
        ("unfit", r"on_timer of task=Broken returned or emitted what does not fit, at key='a' Timer\(timestamp=8, "
                  r"name='unfit'\): returned at .*test_process.py:\d+ in on_timer: .*value=5.* does not fit struct.*\.$"),
    ],
)  # fmt: skip
def test_what_user_code_does_wrong_is_told(acts: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "MOST_TIMERS", 100)
    with pytest.raises(TaskFailedError, match=said):
        process(program(Broken()), "a", KeyState(), [Message(7, {"acts": acts})], 1000)


class Sets(OrderedTask):
    """It does with its context what a test says, at each message, and at timers what another function says."""

    key, state, emits = "k", pa.int64(), pa.schema([("said", pa.string())])

    def __init__(
        self, act: Callable[[Context], None], at_timer: Callable[[Context], None] = lambda context: None
    ) -> None:
        self.act, self.at_timer = act, at_timer

    def process(self, state: Any, message: Message, context: Context) -> Any:
        self.act(context)
        return 1

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        context.emit(said=timer.name)
        self.at_timer(context)
        return state


MOMENT = 1_767_225_600_000_000
"""2026-01-01T00:00:00Z."""
SECOND = 1_000_000


def called(task: Sets, *moments: int, upto: int = MOMENT + 3600 * SECOND) -> list[tuple[int, str]]:
    """The timers that were called, in seconds from the moment, with their names."""
    messages = [Message(MOMENT + moment * SECOND, {}) for moment in moments]
    rows = process(program(task), 1, KeyState(), messages, upto).rows
    return [((row.moment - MOMENT) // SECOND, row.row["said"]) for row in rows]


def test_a_timer_is_a_datetime_of_any_zone_or_is_told_from_the_moment() -> None:
    zone = timezone(timedelta(hours=2))
    assert called(Sets(lambda context: context.set_timer(timedelta(seconds=7))), 0, 3) == [(7, ""), (10, "")]
    assert called(Sets(lambda context: context.set_timer(datetime(2026, 1, 1, 2, 0, 9, tzinfo=zone))), 0) == [(9, "")]

    def set_and_delete(context: Context) -> None:
        context.set_timer(timedelta(seconds=7), "a")
        context.set_timer(timedelta(seconds=7), "b")
        context.delete_timer(datetime(2026, 1, 1, 0, 0, 7, tzinfo=timezone.utc), "a")

    assert called(Sets(set_and_delete), 0) == [(7, "b")]


def test_a_timer_that_is_replaced_is_called_once_at_its_last_time() -> None:
    silent = Sets(lambda context: context.replace_timer("silent", timedelta(seconds=60)))
    assert called(silent, 0, 30, 200) == [(90, "silent"), (260, "silent")]

    def set_both(context: Context) -> None:
        context.set_timer(timedelta(seconds=5), "a")
        context.replace_timer("b", timedelta(seconds=9))

    # Timers of another name stay.
    assert called(Sets(set_both), 0, 1) == [(5, "a"), (6, "a"), (10, "b")]


class Silent(OrderedTask):
    """Keys of which nothing came for 10 microseconds."""

    key, state, emits = "k", pa.int64(), pa.schema([("n", pa.int64())])

    def process(self, state: Any, message: Message, context: Context) -> Any:
        if message["ends"]:
            context.delete_timer(name="silent")
        else:
            context.replace_timer("silent", timedelta(microseconds=10))
        return (state or 0) + 1

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        context.emit(n=state)
        return state


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.booleans()), min_size=1, max_size=20),
    st.integers(1, 9),
    st.integers(3, 40),
)
def test_a_rule_of_silence_is_what_plain_python_makes_of_it(
    stream: list[tuple[int, bool]], batch_size: int, interval: int
) -> None:
    messages = [Message(at, {"k": "a", "ends": ends}) for at, ends in sorted(stream)] + [
        Message(99, {"k": "a", "ends": True})
    ]
    expected = [
        {"k": "a", "n": number, "timestamp": message.timestamp + 10}
        for number, (message, later) in enumerate(pairwise(messages), 1)
        if not message["ends"] and message.timestamp + 10 <= later.timestamp
    ]
    interval_of = timedelta(microseconds=interval)
    assert run_local(Silent(), messages, batch_size=batch_size, checkpoint_interval=interval_of).emitted == expected


def test_a_timer_may_replace_itself() -> None:
    chain = Sets(
        lambda context: context.set_timer(timedelta(seconds=1), "next"),
        lambda context: context.replace_timer("next", timedelta(seconds=20)),
    )
    assert called(chain, 0, upto=MOMENT + 50 * SECOND) == [(1, "next"), (21, "next"), (41, "next")]


def refusal(act: Callable[[Context], None], *moments: int) -> str:
    """The sentence that refuses what a task does with its context at the last of these moments."""
    with pytest.raises(TaskFailedError) as caught:
        called(Sets(act), *moments)
    return str(caught.value).split(": ", 1)[1]


LATER = MOMENT + 120 * SECOND
OTHER_UNITS = {"seconds": LATER // SECOND, "milliseconds": LATER // 1000, "nanoseconds": LATER * 1000}
"""One time in the units that are not meant."""

ACTS: dict[str, Callable[[Context, Any], None]] = {
    "set": lambda context, time: context.set_timer(time),
    "replace": lambda context, time: context.replace_timer("", time),
    "delete": lambda context, time: context.delete_timer(time),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("unit", OTHER_UNITS)
def test_a_timer_of_another_unit_is_refused_with_what_was_meant(unit: str, act: str) -> None:
    given = OTHER_UNITS[unit]
    is_what = "is beyond the year 9999" if unit == "nanoseconds" else "is over a year before the moment in hand, {}"
    said = (
        f"a timer has timestamp={given}, which {is_what}; give microseconds UTC, or a timedelta from the moment (in {unit} "
        "this would be 2026-01-01T00:02:00Z)."
    )
    assert refusal(lambda context: ACTS[act](context, given), 60) == said.format("2026-01-01T00:01:00Z")


def test_a_timer_that_can_not_be_meant_is_refused() -> None:
    last = micros(datetime.max.replace(tzinfo=timezone.utc))
    far = "a timer has timestamp={}, which is beyond the year 9999; give microseconds UTC, or a timedelta from the moment."
    for time in (last + 1, 2**63 - 1):
        assert refusal(lambda context, time=time: context.set_timer(time), 0) == far.format(time)
        assert refusal(lambda context, time=time: context.replace_timer("", time), 0) == far.format(time)
    assert refusal(lambda context: context.set_timer(60 * SECOND), 60) == (
        f"a timer has timestamp={60 * SECOND}, which is over a year before the moment in hand, 2026-01-01T00:01:00Z; give "
        "microseconds UTC, or a timedelta from the moment."
    )
    assert "has no zone; give one" in refusal(lambda context: context.set_timer(datetime(2026, 1, 1)), 0)
    assert "timestamp=True" in refusal(lambda context: context.set_timer(True), 0)


def test_a_timer_that_may_be_meant_is_taken() -> None:
    # What is a little before is due at once, and so is all that a test with small numbers sets.
    assert called(Sets(lambda context: context.set_timer(timedelta(days=-365))), 0) == [(0, "")]
    early = Sets(lambda context: context.set_timer(context.timestamp - 10**9))
    assert len(process(program(early), 1, KeyState(), [Message(10, {})], 20).rows) == 1
    never = datetime.max.replace(tzinfo=timezone.utc)
    assert called(Sets(lambda context: context.set_timer(never)), 0) == []
    # Where the messages are beyond the year 9999, timers are, too.
    beyond = Sets(lambda context: context.set_timer(context.timestamp + 1))
    assert len(process(program(beyond), 1, KeyState(), [Message(2**61, {})], 2**62).rows) == 1
    # The time of a timer that was called long ago, or that can't be set, deletes nothing.
    for time in (1, MOMENT - 3 * 366 * 86_400 * SECOND, 2**63 - 1):
        assert called(Sets(lambda context, time=time: context.delete_timer(time)), 0) == []


class Unfit(Told):
    """It returns or emits what does not fit."""

    def process(self, state: Any, message: Message, context: Context) -> Any:
        if message["acts"] != "state":
            context.emit(said=5)
        return {"n": "many"} if message["acts"] != "row" else state


def test_what_did_not_fit_is_told_with_its_line() -> None:
    row = rf"^emitted at .*test_process.py:{line_of(Unfit.process) + 2} in process: field 'said': value=5 does not fit string"
    state = rf"^returned at .*test_process.py:{line_of(Unfit.process)} in process: field 'n': value='many' does not fit int64"
    messages = [Message(i, {"acts": acts}) for i, acts in enumerate(["row", "state", "both"])]
    bad = process(program(Unfit()), 1, KeyState(), messages, 9).bad
    assert [*bad] == [0, 1, 2]
    for said, misfit in zip((row, state, row), bad.values(), strict=True):
        assert re.search(said, misfit.misfit)


def line_of(function: Any) -> int:
    return int(function.__code__.co_firstlineno)


class Keeper(Told):
    """It does what it does by the context of the first key."""

    kept: Context

    def process(self, state: Any, message: Message, context: Context) -> Any:
        if message["acts"] == "keep":
            self.kept = context
        elif message["acts"] == "emit":
            self.kept.emit(n=1)
        elif message["acts"] == "set":
            self.kept.set_timer(9)
        else:
            self.kept.delete_timer(9)
        return state


@pytest.mark.parametrize("acts", ["emit", "set", "delete"])
def test_a_context_of_another_key_is_refused(acts: str) -> None:
    task = Keeper()
    process(program(task), 1, KeyState(), [Message(1, {"acts": "keep"})], 9)
    with pytest.raises(
        TaskFailedError, match=r"test_process.py:\d+ in process, at key=2 .*: no context has an effect after"
    ):
        process(program(task), 2, KeyState(), [Message(1, {"acts": acts})], 9)


def test_rows_of_one_moment_tell_the_input() -> None:
    messages = [Message(1, {"acts": [("set", 1, ""), ("set", -1, "now")]}), Message(2, {"acts": [("emit", 1)]}, "b")]
    found: Outcome = process(program(Told()), 1, KeyState(), messages, 9)
    assert [(row.moment, row.rank, row.row["said"]) for row in found.rows] == [
        (1, 0, "now"),
        (2, -1, ""),
        (2, 1, "at 2"),
    ]
