"""A task that processes its messages in order: what it is at each clock, and all its rows, are those of a fold in order."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import zip_longest
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import monoids
from persistent_state import (
    Application,
    FileSource,
    Input,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    TaskFailedError,
    run_local,
)
from persistent_state.batch import in_place
from persistent_state.drive import local, turn
from persistent_state.edges import base
from persistent_state.edges.changes import Changes
from persistent_state.edges.emitted import Emitted
from persistent_state.edges.in_order import step as in_order
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.ordered import Context, Timer
from persistent_state.partials import fold
from persistent_state.partials.since import Since
from persistent_state.protocol import fates
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import blocks
from persistent_state.store.late_rows import UNFIT, UNFIT_KEY
from persistent_state.store.named_files import ShardRuns
from persistent_state.store.state_at import seen_below
from persistent_state.store.verify import verify
from persistent_state.task import Message, name_of_messages, name_of_rows
from persistent_state.task import names_of_parts as names
from persistent_state.testing import LocalRun
from tests import core
from tests.edges.in_order.test_process import Told, oracle, streams
from tests.local_application import LocalApplication, Rows, compiled
from tests.soak import soak_or

SCHEMA = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("acts", pa.string())])
KEEPING = Keeping(3, 0)


class InJson(Told):
    """The same, told in JSON."""

    def process(self, state: Any, message: Message, context: Context) -> Any:
        return super().process(state, Message(message.timestamp, {"acts": json.loads(message["acts"])}), context)


class World(LocalApplication):
    """An application of one ordered task."""

    def __init__(self, ttl: int | None) -> None:
        self.ttl, self.sent, self.rows = ttl, list[Message](), list[Any]()
        self.task = InJson()
        self.task.ttl = None if ttl is None else core.us(ttl)
        self.messages, self.states, self.emitted = names(self.task.task_name)
        self.given = BEGINNING
        super().__init__(*compiled(self.application, core.memory()), KEEPING)

    @property
    def application(self) -> Application:
        app = Application("app", "memory://ordered", checkpoint_interval=core.us(10), max_ahead="100000 days")
        return app.add(self.task, Rows(SCHEMA, ""))

    def begin(self, shards: int, rebuild: Sequence[str] = ()) -> None:
        """Start with so many shards, and read again what the source delivers again."""
        sent = self.source(self.messages).rows
        self.become(self.application, shards)
        self.source(self.messages).rows = sent
        self.start(rebuild=rebuild)
        self.play(self.messages)

    def read(self, some: Sequence[Message]) -> None:
        self.sent += some
        self.play(self.messages, [(m.timestamp, m["k"], json.dumps(m["acts"])) for m in some])

    def check(self) -> None:
        entry = self.newest
        for clock in entry.retained:
            if entry.is_at(self.states, clock):
                assert self.kept(clock) == self.expected(clock)
        visited = entry.flow_of(self.states).visited
        bad = sum(is_unfit(m) for m in self.sent if m.timestamp < visited)
        assert entry.late_counts_of(self.states) == ({UNFIT: bad} if bad else {})
        if entry.clock > self.given:
            runs, floor = entry.tasks[self.emitted].stored.runs, Since(self.given)
            found = seen_below(self.files, runs, self.plans[self.emitted].layout, entry.clock, floor)
            for row in found.to_pylist():
                self.rows.append((row["key0"], row["timestamp"], row["value"]["said"], row["value"]["n"]))
            self.given = entry.clock
            assert sorted(self.rows, key=lambda row: row[:2]) == self.all_rows(entry.clock)

    def kept(self, clock: int) -> dict[Any, Any]:
        """The state and the timers of each key."""
        found = {}
        for (key,), kept in self.state(self.states, clock).items():
            if kept["state"] is not None and (self.ttl is None or kept["newest"] >= clock - self.ttl):
                timers = {(timer["timestamp"], timer["name"]) for timer in kept["timers"]}
                found[key] = kept["state"], timers
        return found

    def expected(self, clock: int) -> dict[Any, Any]:
        found = {}
        for key in {m["k"] for m in self.sent}:
            some = self.of_key(key, clock)
            if not some:
                continue
            state, timers, _ = oracle(some, clock, self.ttl)
            newest = max((m.timestamp for m in some if not is_unfit(m)), default=0)
            if state is not None and (self.ttl is None or newest >= clock - self.ttl):
                found[key] = state, timers
        return found

    def all_rows(self, clock: int) -> list[Any]:
        found = []
        for key in {m["k"] for m in self.sent}:
            found += [(key, *row) for row in oracle(self.of_key(key, clock), clock, self.ttl)[2]]
        return sorted(found, key=lambda row: row[:2])

    def of_key(self, key: int, clock: int) -> list[Message]:
        some = [m for m in self.sent if m["k"] == key and m.timestamp < clock]
        return sorted(some, key=lambda m: m.timestamp)


def is_unfit(message: Message) -> bool:
    return any(what == "unfit" for what, *_ in message["acts"])


acts = st.one_of(
    st.tuples(st.just("play"), streams.map(lambda some: some[:4]), st.integers(0, 3)),
    st.just(("step",)),
    st.tuples(st.just("start"), st.integers(1, 3)),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(acts, max_size=12),
    st.none() | st.integers(1, 25),
    st.sampled_from([1, 4, in_order.MESSAGES_AT_A_TIME]),
    st.sampled_from([(0, 0), (0, in_place.MOST_BYTES), (in_place.ROOM, in_place.MOST_BYTES)]),
)
def test_state_and_rows_are_those_of_a_fold_in_order(
    history: list[Any], ttl: int | None, most: int, room: tuple[int, int]
) -> None:
    with (
        mock.patch.object(in_order, "MESSAGES_AT_A_TIME", most),
        mock.patch.object(in_place, "ROOM", room[0]),
        mock.patch.object(in_place, "MOST_BYTES", room[1]),
    ):
        play(history, ttl)


@pytest.mark.soak
@settings(max_examples=soak_or(ci=15, soak=200), deadline=None)
@given(
    st.lists(st.tuples(acts, st.booleans()), max_size=12),
    st.none() | st.integers(1, 25),
    st.sampled_from([16, 48, 200]),
    st.sampled_from([100, fold.SLICE_BYTES]),
)
def test_state_and_rows_are_the_same_by_small_blocks_and_whichever_version_wrote_a_run(
    history: list[Any], ttl: int | None, block: int, slice_bytes: int
) -> None:
    with mock.patch.object(blocks, "BLOCK", block), mock.patch.object(fold, "SLICE_BYTES", slice_bytes):
        play([act for act, _ in history], ttl, [is_older for _, is_older in history])


def play(history: list[Any], ttl: int | None, by_older: Sequence[bool] = ()) -> None:
    world, now = World(ttl), 0
    world.begin(2)
    for (what, *told), is_older in zip_longest(history, by_older):
        with as_an_older_version() if is_older else nullcontext():
            if what == "start":
                world.begin(told[0])
            elif what == "step":
                world.steps()
            else:
                stream, key = told
                some = []
                for number, (ahead, of_message) in enumerate(stream):
                    now += 4 * ahead
                    some.append(Message(now, {"k": (key + number) % 4, "acts": of_message}))
                world.read(some)
    world.read([Message(now + 100, {"k": 9, "acts": []})])
    world.steps()
    assert world.newest.clock == (now + 100) // 10 * 10
    assert not verify(world.files.url).problems


def as_an_older_version() -> AbstractContextManager[Any]:
    """Have runs written as by a version that did not write the timers behind the blocks."""
    return mock.patch.object(blocks, "_timers_of", return_value=np.array([], blocks._TIMER))


def told(timestamp: int, key: int, *acts: Any) -> Message:
    return Message(timestamp, {"k": key, "acts": acts})


def test_a_timer_is_due_though_no_message_comes_to_its_shard() -> None:
    world = World(None)
    world.begin(3)
    world.read([told(1, key, ("set", 12, "")) for key in range(6)])
    for timestamp in (15, 35):
        world.read([told(timestamp, 9)])
        # The world looks at the state of all keys.
        world.steps()
    entry = world.newest
    assert entry.clock == 30
    assert [row[1:] for row in world.rows if row[0] < 6] == [(13, "", 1)] * 6
    # Who has no timer, and no message, is not asked.
    world.read([told(55, 9)])
    (due,) = world.due()
    assert len(due.spans) == 1


@pytest.mark.parametrize("is_older", [False, True])
def test_a_step_reads_the_blocks_of_the_keys_whose_timers_are_due_and_no_others(is_older: bool) -> None:
    """In each block there are keys whose timers were called, and others whose timers will be called later."""
    world, count = World(None), 600
    world.begin(1)
    with mock.patch.object(blocks, "BLOCK", 4096), as_an_older_version() if is_older else nullcontext():
        world.read([told(1, key, ("set", 30 * key + 20, "")) for key in range(count)])
        world.read([told(15, 1000)])
        world.steps()
        for key in range(3):
            world.read([told(30 * key + 35, 1000)])
            (due,) = world.due()
            ((_, span),) = due.spans
            with mock.patch.object(blocks, "_table", side_effect=blocks._table) as table:
                chunks = [*base.read_span(world.plans[world.states], "", span)]
            states = [chunk.rows for chunk in chunks if chunk.rows[in_order.STATE].null_count == 0]
            assert {row["k"] for rows in states for row in rows.to_pylist()} == {key, 1000}
            opened = sum(sum(call.args[1].rows[i] for i in call.args[0]) for call in table.call_args_list)
            assert opened >= count if is_older else opened < count / 4
            world.steps()


def test_messages_of_keys_with_large_states_are_processed_a_few_keys_at_a_time() -> None:
    world = World(None)
    world.begin(1)
    world.read([told(at, key) for at in range(100) for key in range(4)])
    world.read([told(115, 9)])
    world.steps()
    world.read([told(117, key, ("emit", key)) for key in range(4)])
    world.read([told(135, 9)])
    opened = in_order.open_runs
    # The states of a key are about 2,000 bytes, and its message is about 100.
    size = 8 * 1500
    with (
        mock.patch.object(fold, "SLICE_BYTES", size),
        mock.patch.object(in_order, "open_runs", side_effect=opened) as open_runs,
        mock.patch.object(in_order, "_processed", side_effect=in_order._processed) as processed,
    ):
        world.steps()
    # The messages were one slice.
    assert len(open_runs.call_args_list) == 2
    assert len(processed.call_args_list) == 4
    assert sorted(row for row in world.rows if row[1] == 117) == [(key, 117, "at 117", key) for key in range(4)]


@pytest.mark.rows_in_files
def test_a_run_that_says_other_times_of_timers_than_it_has_is_damaged() -> None:
    world = World(None)
    world.begin(1)
    world.read([told(5, 1, ("set", 40, "later"))])
    world.read([told(25, 1)])
    world.steps()
    name, newest = world.states, world.newest
    assert not verify(world.files.url).problems
    task = newest.tasks[name]
    wrong = [replace(run, due=run.due and run.due + 1) for run in task.stored.runs]
    forged = replace(task, stored=replace(task.stored, shards=(ShardRuns(tuple(wrong)),)))
    world.log.append(newest.follower(newest.time, tasks={**newest.tasks, name: forged}))
    assert "its timers are due from 45 to 45, not from 46 to 45" in {
        problem.what for problem in verify(world.files.url).problems
    }


def test_rows_of_one_moment_are_in_the_order_in_which_they_were_emitted() -> None:
    world = World(None)
    world.begin(2)
    world.read(
        [told(3, 1, ("emit", 2), ("emit", 1), ("set", 0, "now")), told(3, 1, ("emit", 0)), told(3, 2, ("emit", 5))]
    )
    world.read([told(25, 9)])
    world.steps()
    assert [row for row in world.rows if row[0] == 1] == [
        (1, 3, "at 3", 2), (1, 3, "at 3", 1), (1, 3, "now", 1), (1, 3, "at 3", 0)
    ]  # fmt: skip


def test_messages_above_the_clock_wait() -> None:
    world = World(None)
    world.begin(2)
    world.read([told(3, 1), told(12, 1), told(12, 2), told(25, 1)])
    world.steps()
    assert world.newest.clock == 20
    assert world.kept(20) == {
        1: ({"log": ["3", "12"], "n": 2}, set()),
        2: ({"log": ["12"], "n": 1}, set()),
    }
    runs = world.newest.tasks[world.messages].stored.runs
    assert max(run.last for run in runs) == 25


def test_the_plan_of_a_rewind_tells_the_names_that_people_know() -> None:
    world = World(None)
    world.begin(2)
    world.read([told(5, 1), told(25, 1)])
    world.steps()
    name = world.task.task_name
    planned = core.plan_rewind(world.log, world.newest.clock)
    assert {*planned.tasks} == {name_of_messages(name), name, name_of_rows(name)}
    assert f"tasks        {name}\n" in repr(planned)
    assert name_of_messages(name) not in repr(planned)
    assert name_of_rows(name) not in repr(planned)


def test_a_forgotten_key_does_not_come_back_from_an_older_run() -> None:
    world = World(None)
    world.begin(1)
    world.read([told(1, key) for key in range(60)])
    # The steps after the first are small: their runs are merged with each other, and not with that of all keys.
    for end in range(15, 115, 10):
        forget = [told(end, 1, ("forget",))] if end == 25 else []
        world.read([told(end, 100), *forget])
        # The world looks at the state of all keys.
        world.steps()
    states = world.newest.tasks[world.states].stored.runs
    assert states[0].rows == 60
    assert len(states) < 5


class Twice(OrderedTask):
    """Emits a row, and the same again with a minus."""

    key = "k"
    state = pa.int64()
    emits = pa.schema([("n", pa.int64())])

    def process(self, state: Any, message: Message, context: Context) -> Any:
        context.emit(n=message["n"])
        context.emit(n=-message["n"])
        return None


class InTurn(OrderedTask):
    """All rows of all keys, in their order."""

    state = pa.list_(pa.int64())

    def process(self, state: Any, message: Message, context: Context) -> Any:
        return [*(state or []), message["n"]]


def test_rows_of_one_moment_have_a_place_each_for_the_task_that_they_feed() -> None:
    schema = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])
    app = Application("app", "memory://none", checkpoint_interval=core.us(10))
    app.add(Twice(), Rows(schema)).add(InTurn(), Emitted("Twice"))
    played, places = LocalApplication(*compiled(app, core.memory(), 1), KEEPING), list[int]()
    played.start()
    played.play("Twice.messages", [(5, k, 10 * k + n) for n in (1, 2) for k in range(1, 9)] + [(25, 1, 0)])
    while due := played.due():
        for _, span in due[0].spans if due[0].flow.id == "InTurn.messages" else ():
            given = base.read_span(played.plans["InTurn.messages"], "", span)
            places += [place for chunk in given for place in chunk.at.tolist()]
        played.turn(due[0].flow.id)
    assert len(places) == len({*places}) == 32
    ((kept),) = played.state("InTurn", 20).values()
    of_each = {k: [n for n in kept["state"] if abs(n) // 10 == k] for k in range(1, 9)}
    assert of_each == {k: [10 * k + 1, -10 * k - 1, 10 * k + 2, -10 * k - 2] for k in range(1, 9)}
    # Keys come one after the other, whatever order the pieces of the step had.
    assert [abs(n) // 10 for n in kept["state"]] == [
        k for k in dict.fromkeys(abs(n) // 10 for n in kept["state"]) for _ in range(4)
    ]


def test_rows_of_one_moment_come_by_the_inputs_of_their_messages_and_those_of_timers_first() -> None:
    schema = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])
    app = Application("app", "memory://none", checkpoint_interval=core.us(10))
    inputs = {name: FileSource("events", timestamp="ts", schema=schema) for name in ("first", "second")}
    app.add(Timed(), inputs).add(InTurn(), Emitted("Timed"))
    some = [Message(5, {"k": k, "n": k}) for k in range(1, 9)]
    sent = {
        "second": some,
        "first": [Message(1, {"k": 1, "n": 0}), *(Message(5, {"k": m["k"], "n": -m["n"]}) for m in some)],
    }
    (found,) = run_local(app, {"Timed": sent})["InTurn"].state.values()
    assert found[:2] == [0, 100]
    assert [n < 0 for n in found[2:]] == [True] * 8 + [False] * 8
    assert found[2:10] == [-n for n in found[10:]]


class Positive(Twice):
    """Has no state for what is negative."""

    def process(self, state: Any, message: Message, context: Context) -> Any:
        return message["n"] if message["n"] >= 0 else f"none for {message['n']}"


def positive(inputs: Any, messages: Any, on_bad_row: str = "keep") -> LocalRun:
    app = Application("app", "memory://none", checkpoint_interval=core.us(10))
    return run_local(app.add(Positive(), inputs, on_bad_row=on_bad_row), {"Positive": messages})["Positive"]


SOURCE = FileSource(
    "events", timestamp="ts", schema=pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])
)
BAD, GOOD = Message(3, {"k": 1, "n": -1}), Message(4, {"k": 1, "n": 1})


def test_a_bad_message_tells_where_it_came_from() -> None:
    row = {"ts": 3, "k": 1, "n": -1}
    (aside,) = positive(SOURCE, [GOOD, BAD]).late
    assert aside["row"] == row
    assert (aside["reason"], aside["partition"], aside["channel"], aside["position"]) == (UNFIT, "", "", 1)
    (aside,) = positive({"": SOURCE, "more": copy.copy(SOURCE)}, {"": [BAD], "more": [GOOD]}).late
    assert aside["row"] == {"input": row, "more": None}
    assert (aside["partition"], aside["channel"]) == ("", "")
    (aside,) = positive({"": SOURCE, "more": copy.copy(SOURCE)}, {"": [GOOD], "more": [BAD]}).late
    assert aside["row"] == {"input": None, "more": row}
    assert (aside["partition"], aside["channel"]) == ("more:", "more:")


def test_each_input_says_what_becomes_of_its_bad_messages() -> None:
    strict = {"": SOURCE, "more": Input(copy.copy(SOURCE), on_bad_row="fail")}
    assert len(positive(strict, {"": [BAD], "more": [GOOD]}).late) == 1
    said = (
        r"task=Positive met a bad row \(value does not fit, returned at .*test_ordered.py:\d+ in process: value='none for -2' "
        r"does not fit .*int64.*\) at channel='more:' partition='more:' position=0 key={'k': 1}"
    )
    worse = Message(3, {"k": 1, "n": -2})
    for others in ([GOOD], [BAD]):
        with pytest.raises(TaskFailedError, match=said):
            positive(strict, {"": others, "more": [worse]})
    mild = {"": SOURCE, "more": Input(copy.copy(SOURCE), on_bad_row="keep")}
    assert len(positive(mild, {"": [GOOD], "more": [BAD]}, on_bad_row="fail").late) == 1
    with pytest.raises(TaskFailedError, match="partition='' position=0"):
        positive(mild, {"": [BAD], "more": [GOOD]}, on_bad_row="fail")
    with pytest.raises(TaskFailedError, match="partition='' position=1"):
        positive(SOURCE, [GOOD, BAD], on_bad_row="fail")


class Timed(Twice):
    """Emits each message, and a row of a timer."""

    def process(self, state: Any, message: Message, context: Context) -> Any:
        context.emit(n=message["n"])
        if message["n"] == 0:
            context.set_timer(5)
        return 0

    def on_timer(self, state: Any, timer: Timer, context: Context) -> Any:
        context.emit(n=100)
        return state


class Totals(PersistentTask):
    key, value = "k", "n"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(monoids.Sum())


class Seen(OrderedTask):
    key = "k"
    state = pa.list_(pa.int64())

    def process(self, state: Any, message: Message, context: Context) -> Any:
        return [*(state or []), message["after"]["value"]]


def test_a_task_that_is_new_is_given_all_that_feeds_it_by_its_state() -> None:
    schema = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])
    app = Application("app", "memory://none", checkpoint_interval=core.us(10))
    app.add(Totals(), Rows(schema)).add(Seen(), Changes("Totals", every=core.us(10)))
    played = LocalApplication(*compiled(app, core.memory()), KEEPING)
    played.start("Totals")
    played.play("Totals", [(1, 1, 5), (2, 2, 6), (12, 1, 7), (25, 3, 0)])
    played.start()
    played.play("Totals", [(35, 2, 1), (45, 3, 0)])
    played.steps()
    assert played.clock == 40
    found = played.state("Seen", 40)
    assert {key: kept["state"] for (key,), kept in found.items()} == {1: [12], 2: [6, 7], 3: [0]}
    # A reset builds its messages of that state again, and so it and its rows begin anew, too.
    parts = set(names("Seen"))
    table = fates.decide(played.newest, played.flows, fates.Words(parts))
    assert (table.names(fates.RESET), {*table.names(fates.REBUILT)}) == ([], parts)


def test_messages_that_are_read_again_wait_for_a_task_that_is_rebuilt() -> None:
    world = World(None)
    world.begin(2)
    for timestamp in (3, 15, 25, 35, 45, 55):
        world.read([told(timestamp, 1)])
        world.steps()
    assert world.newest.clock == 50
    world.begin(2, rebuild=[world.messages, world.states, world.emitted])
    # Several micro-batches come before the step.
    for timestamp in (65, 66, 67):
        world.read([told(timestamp, 2)])
    world.steps()
    assert world.kept(world.clock) == world.expected(world.newest.clock)
    assert world.kept(world.clock)[1][0]["n"] == 6


class PerDay(OrderedTask):
    key = ("day", "at")
    state = pa.int64()

    def process(self, state: Any, message: Message, context: Context) -> Any:
        return (state or 0) + message["n"]


def test_a_key_that_python_does_not_have_is_a_bad_row() -> None:
    at = pa.timestamp("us", "UTC")
    schema = pa.schema([("ts", pa.int64()), ("day", pa.date32()), ("at", at), ("n", pa.int64())])
    app = Application("app", "memory://none", checkpoint_interval=core.us(10))
    played = LocalApplication(*compiled(app.add(PerDay(), Rows(schema)), core.memory()))
    played.start()
    days, times = [0, 10**7, 0, None, 0], [0, 0, 10**18, None, 0]
    columns = [pa.array(days, pa.int32()).cast(pa.date32()), pa.array(times, pa.int64()).cast(at)]
    played.play("PerDay.messages", [*zip([1, 2, 3, 4, 25], *columns, [1, 1, 1, 1, 1], strict=True)])
    played.steps()
    assert played.newest.late_counts_of("PerDay.messages") == {
        f"{UNFIT_KEY}: column day": 1,
        f"{UNFIT_KEY}: column at": 1,
    }
    states = played.state("PerDay", 20)
    assert sorted(kept["state"] for kept in states.values()) == [1, 1]


class Filter(OrderedTask):
    """It keeps no state, and gives out some of its messages."""

    key = "k"
    emits = pa.schema([("n", pa.int64())])
    state = pa.bool_()

    def process(self, state: Any, message: Message, context: Context) -> Any:
        if message["n"] > 1:
            context.emit(n=message["n"])


class Rolled(Filter):
    """What it makes of a message is left to chance."""

    state = pa.float64()
    emits = pa.schema([("n", pa.float64())])

    def process(self, state: Any, message: Message, context: Context) -> Any:
        rolled = random.random()
        context.emit(n=rolled)
        return rolled


class Ran(LocalApplication):
    """An application of one ordered task without Spark."""

    schema = pa.schema([("ts", pa.int64()), ("k", pa.int64()), ("n", pa.int64())])

    def __init__(self, task: OrderedTask) -> None:
        app = Application("app", "memory://none", checkpoint_interval=core.us(10))
        self.name = task.task_name
        super().__init__(*compiled(app.add(task, Rows(self.schema, "")), core.memory()))
        self.start()

    def read(self, *rows: tuple[int, int, int]) -> None:
        self.play(name_of_messages(self.name), rows)

    def emitted(self, low: int, high: int) -> list[tuple[int, Any]]:
        """The rows that an output is given at the clock `high`, which had those below `low`."""
        name = name_of_rows(self.name)
        runs, layout = self.newest.tasks[name].stored.runs, self.plans[name].layout
        found = seen_below(self.files, runs, layout, high, Since(low))
        return [(row["timestamp"], row["value"]["n"]) for row in found.to_pylist()]


def test_a_key_that_never_has_a_state_is_written_nowhere() -> None:
    world = Ran(Filter())
    world.read((1, 1, 1), (2, 2, 2), (3, 1, 5), (25, 1, 0))
    world.steps()
    assert sorted(world.emitted(BEGINNING, 20)) == [(2, 2), (3, 5)]
    assert world.newest.tasks["Filter"].stored.runs == ()


def test_what_is_left_to_chance_is_given_out_once_all_the_same() -> None:
    world = Ran(Rolled())
    world.read((1, 1, 0), (2, 2, 0), (5, 1, 0), (25, 1, 0))
    # Attempts whose answers never come to a commit.
    (due,) = world.due()
    for _ in range(2):
        local.run(due.flow, turn.step(world.newest, due, now=0, most=1), None, {}, core.new_id)
    world.steps()
    given = world.emitted(BEGINNING, 20)
    states = world.state("Rolled", 20)
    assert [moment for moment, _ in sorted(given)] == [1, 2, 5]
    # What is given out is what is kept.
    assert {kept["state"] for kept in states.values()} == {n for moment, n in given if moment > 1}
    # A start takes back what is above the global clock only: nothing below it comes again, or is otherwise.
    world.start()
    world.read((35, 2, 0), (45, 1, 0))
    world.steps()
    assert world.state("Rolled", 20) == states
    assert [moment for moment, _ in sorted(world.emitted(BEGINNING, 40))] == [25, 35]
