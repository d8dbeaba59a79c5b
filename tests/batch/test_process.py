"""What becomes of a key: as twenty lines of plain Python have it, in however many steps the clock comes there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistent_state.batch import process as processing
from persistent_state.batch.as_stored import as_stored
from persistent_state.batch.process import Emitted, KeyState, Outcome, Program, process
from persistent_state.errors import TaskFailedError
from persistent_state.ordered import Context, OrderedTask, Timer
from persistent_state.task import Message

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
                    timers.discard((now + rest[0], rest[1]))
                elif what == "forget":
                    log, timers = None, set()
                    break
    return (None if log is None else {"log": log, "n": n}), timers, rows


names = st.sampled_from(["", "again", "end"])
acts = st.one_of(
    st.tuples(st.just("emit"), st.integers(0, 9)),
    st.tuples(st.just("set"), st.integers(-2, 12), names),
    st.tuples(st.just("delete"), st.integers(0, 12), names),
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
    assert found.bad == [1]
    assert found.rows == []
    assert found.kept == KeyState({"log": ["1", "3"], "n": 2}, (Timer(6),), 3)


class Broken(Told):
    def process(self, state: Any, message: Message, context: Context) -> Any:
        if message["acts"] == "raise":
            raise ValueError("no")
        if message["acts"] == "column":
            context.emit(sad="x")
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
        ("column", r"process of task=Broken: emits has no column 'sad', but said, n; add it there at .*test_process.py"),
        ("for ever", r"task=Broken key='a': more than \d+ timers were due in one step, the last Timer"),
        ("at once", r"Timer\(timestamp=8, name='at once'\) sets a timer for 8, which is no later time; add to timer.timestamp"),
        ("unfit", r"on_timer of task=Broken returned or emitted what does not fit, at key='a' Timer\(timestamp=8"),
    ],
)  # fmt: skip
def test_what_user_code_does_wrong_is_told(acts: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processing, "MOST_TIMERS", 100)
    with pytest.raises(TaskFailedError, match=said):
        process(program(Broken()), "a", KeyState(), [Message(7, {"acts": acts})], 1000)


def test_rows_of_one_moment_tell_the_input() -> None:
    messages = [Message(1, {"acts": [("set", 1, ""), ("set", -1, "now")]}), Message(2, {"acts": [("emit", 1)]}, "b")]
    found: Outcome = process(program(Told()), 1, KeyState(), messages, 9)
    assert [(row.moment, row.rank, row.row["said"]) for row in found.rows] == [
        (1, 0, "now"),
        (2, -1, ""),
        (2, 1, "at 2"),
    ]
