"""A task is tested without Spark: states and outputs by clock, late and bad rows, and errors that say where."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Aggregator, Average, Count, Last, List, Max, Min, Monoid, Set, Struct, Sum, TopK
from persistent_state import (
    Application,
    Changes,
    ClosedWindows,
    Context,
    FileSource,
    Input,
    InvalidInputError,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentState,
    PersistentTask,
    RateSource,
    TaskFailedError,
    TumblingWindow,
    WindowState,
    run_local,
)
from persistent_state.store.log import Log
from persistent_state.testing import LocalRun
from tests import core

MINUTE = 60_000_000


class Words(PersistentTask):
    """Counts words."""

    key = "word"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, message.get("n", 1))


class Kept(PersistentTask):
    """Keeps values in a state of any monoid, by whatever function is given."""

    def __init__(self, monoid: Monoid[Any], process: Any, key: Any = "word") -> None:
        self.monoid = monoid
        self.process = process
        self.key = key

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        self.process(state, message)


class Longest(PersistentTask):
    """The length of the longest word, in words."""

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Aggregator(len, Max(), lambda length: f"{length} letters"))

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, message["word"])


class Windowed(Words):
    """Counts words by the minute."""

    def persistent_state(self) -> WindowState[Any]:
        return WindowState(Sum(), TumblingWindow("1 minute"))


class Reading(Kept):
    reads_state = True


def said(*words: tuple[int, str]) -> list[Message]:
    return [Message(timestamp, {"word": word}) for timestamp, word in words]


def reasons(run: LocalRun) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in run.late:
        found[row["reason"]] = found.get(row["reason"], 0) + 1
    return found


class Totals(PersistentTask):
    """Adds up a column in any monoid."""

    key, value = "word", "n"

    def __init__(self, monoid: Monoid[Any]) -> None:
        self.monoid = monoid

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)


@pytest.mark.parametrize(
    ("type", "value", "total"),
    [
        (pa.decimal128(5, 2), Decimal("999.99"), Decimal("1999.98")),
        (pa.decimal128(38, 2), Decimal("9" * 36 + ".99"), None),
        (pa.int64(), 2**63 - 1, -2),
    ],
    ids=["beyond the digits of the type", "beyond 38 digits", "beyond int64"],
)
def test_a_sum_that_grows_is_here_what_it_is_in_a_store(type: pa.DataType, value: Any, total: Any) -> None:
    messages = [Message(at, {"word": "a", "n": value}) for at in (1, 2)]
    schema = pa.schema([("ts", pa.int64()), ("word", pa.string()), ("n", type)])
    plan = core.plan_of(Totals(Sum(type)), schema)
    log = Log(plan.files, plan.application)
    core.start(log, [plan])
    rows = pa.RecordBatch.from_pylist([{"ts": message.timestamp, **message} for message in messages], schema)

    def here() -> dict[Any, Any]:
        return dict(run_local(Totals(Sum(type)), messages, schema=schema.remove(0)).state)

    def stored() -> dict[Any, Any]:
        return {key: sum for (key,), sum in core.state_at(core.play(log, plan, rows), plan, None).items()}

    for state in (here, stored):
        if total is not None:
            assert state() == {"a": total}
            continue
        with pytest.raises(TaskFailedError, match=r"a sum has more digits than decimal128\(38, 2\) holds"):
            state()


class TestStates:
    def test_the_state_at_a_clock_holds_what_happened_before_it(self) -> None:
        messages = said((1, "a"), (MINUTE - 1, "b"), (MINUTE, "a"), (2 * MINUTE + 5, "c"))
        run = run_local(Words(), messages, batch_size=1)
        assert run.states == {
            0: {},
            MINUTE: {"a": 1, "b": 1},
            2 * MINUTE: {"a": 2, "b": 1},
            3 * MINUTE: {"a": 2, "b": 1, "c": 1},
        }
        assert run.clocks == [0, MINUTE, 2 * MINUTE, 3 * MINUTE]
        assert run.state == run.states[3 * MINUTE]
        assert run.late == []

    def test_outputs_at_a_clock_are_the_values_of_the_keys_that_changed_since_the_one_before(self) -> None:
        messages = said((1, "a"), (2, "b"), (MINUTE, "a"), (2 * MINUTE, "c"), (3 * MINUTE, "d"))
        run = run_local(Words(), messages, batch_size=1)
        assert run.outputs == {
            0: {},
            MINUTE: {"a": 1, "b": 1},
            2 * MINUTE: {"a": 2},
            3 * MINUTE: {"c": 1},
            4 * MINUTE: {"d": 1},
        }

    def test_outputs_are_what_is_presented_and_states_are_not(self) -> None:
        run = run_local(Longest(), said((1, "a"), (2, "aaa"), (MINUTE, "aa")))
        assert run.states[MINUTE] == {(): 3}
        assert run.outputs[MINUTE] == {(): "3 letters"}

    @pytest.mark.parametrize("batch_size", [1, 2, 10])
    def test_outputs_hold_each_window_once_however_soon_it_closed(self, batch_size: int) -> None:
        messages = said(*((i * MINUTE, "a") for i in range(10)))
        run = run_local(Windowed(), messages, batch_size=batch_size, checkpoint_interval="3 minutes")
        windows = [key for values in run.outputs.values() for key in values]
        assert sorted(windows) == [("a", i * MINUTE, (i + 1) * MINUTE) for i in range(10)]

    @settings(max_examples=30)
    @given(
        st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abc")), max_size=40),
        st.integers(1, 10),
        st.integers(1, 6),
        st.integers(0, 20),
    )
    def test_each_message_is_in_the_states_from_its_clock_on_or_is_late(
        self, words: list[tuple[int, str]], batch_size: int, interval: int, delay: int
    ) -> None:
        run = run_local(
            Words(),
            said(*words),
            batch_size=batch_size,
            checkpoint_interval=f"{interval} microseconds",
            allowed_delay=f"{delay} microseconds",
            schema=pa.schema([("word", pa.string())]),
        )
        late = [(row["timestamp"], row["row"]["word"]) for row in run.late]
        taken = list(words)
        for one in late:
            taken.remove(one)
        for clock, state in run.states.items():
            below = [word for timestamp, word in taken if timestamp < clock]
            assert state == {word: below.count(word) for word in below}
        newest = -1
        for timestamp, word in words:
            if timestamp >= newest - delay:
                assert (timestamp, word) in taken
            newest = max(newest, timestamp)
        if words:
            assert run.clocks[-1] == (newest // interval + 1) * interval

    def test_without_messages_there_is_no_state(self) -> None:
        assert run_local(Words(), []) == LocalRun({}, {}, [])
        assert run_local(Words(), [], schema=pa.schema([("word", pa.string())])) == LocalRun({}, {}, [])
        assert run_local(Words(), []).state == {}
        assert run_local(Words(), []).clocks == []

    def test_a_message_may_update_several_times_or_not_at_all(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            for n in range(len(message["word"])):
                state.update(message.timestamp, n)

        run = run_local(Kept(Sum(), process), said((1, "abc"), (2, ""), (3, "ab"), (4, "abc")))
        assert run.state == {"abc": 6, "ab": 1}

    def test_none_is_no_update(self) -> None:
        messages = [Message(1, {"word": "a", "n": None}), Message(2, {"word": "b", "n": 3})]
        assert run_local(Words(), messages).state == {"b": 3}

    def test_several_key_columns_make_tuples_and_none_makes_one_state(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp, message["n"])

        messages = [
            Message(1, {"word": "a", "n": 2}),
            Message(2, {"word": "a", "n": 2}),
            Message(3, {"word": "a", "n": 5}),
        ]
        assert run_local(Kept(Sum(), process, key=("word", "n")), messages).state == {("a", 2): 4, ("a", 5): 5}
        assert run_local(Kept(Sum(), process, key=None), messages).state == {(): 9}

    def test_keys_that_are_no_number_are_one_key_that_is_found(self) -> None:
        messages = [Message(stamp, {"word": float("nan"), "n": 1}) for stamp in (1, 2, MINUTE)]
        run = run_local(Words(), messages, batch_size=1)
        assert run.state[math.nan] == 3
        assert run.outputs[2 * MINUTE] == {math.nan: 3}

    def test_a_list_is_in_the_order_of_timestamps_and_then_of_positions_and_updates(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp, [message["n"]])
            state.update(message.timestamp, [-message["n"]])

        stamps = [5, 3, 5, 1, 9, 7, 3, 8]
        messages = [Message(stamp, {"word": "a", "n": n}) for n, stamp in enumerate(stamps, 1)]
        for batch_size in (1, 2, 3, 8):
            run = run_local(
                Kept(List(pa.int64()), process),
                messages,
                batch_size=batch_size,
                checkpoint_interval="2 microseconds",
                allowed_delay="8 microseconds",
            )
            assert run.state == {"a": [4, -4, 2, -2, 7, -7, 1, -1, 3, -3, 6, -6, 8, -8, 5, -5]}
            by_clock = {8: [4, -4, 2, -2, 7, -7, 1, -1, 3, -3, 6, -6], 10: run.state["a"]}
            assert {clock: by_clock[clock] for clock in run.clocks if clock > 0} == {
                clock: state["a"] for clock, state in run.states.items() if clock > 0
            }


class TestUpdates:
    """The table of docs/choosing-a-state.md: a message gives a value of the monoid, a column may give its items."""

    @pytest.mark.parametrize(
        ("monoid", "value", "column", "shown"),
        [
            (Count(), 3, 3, 3),
            (Average(), Average().of(4.0), 4.0, 4.0),
            (Struct(n=Count(), mean=Average()), {"n": 1, "mean": Average().of(4.0)}, {"n": 1, "mean": 4.0}, None),
            (Set(pa.string()), {"x"}, "x", 1),
            (TopK(2, pa.int64()), [7], 7, [7]),
            (List(pa.int64()), [7], [7], [7]),
            (Aggregator(len, Max(), str, type=pa.string()), "four", "four", "4"),
        ],
    )
    def test_a_message_updates_with_a_value_and_a_column_with_items(
        self, monoid: Any, value: object, column: object, shown: object
    ) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp, value)

        class Column(Words):
            process_message = PersistentTask.process_message
            value = "n"

            def persistent_state(self) -> NonWindowState[Any]:
                return NonWindowState(monoid)

        messages = [Message(1, {"word": "a", "n": column})]
        by_message, by_column = run_local(Kept(monoid, process), messages), run_local(Column(), messages)
        assert by_message == by_column
        assert by_message.late == []
        assert shown in (None, by_column.outputs[MINUTE]["a"])

    def test_an_item_of_a_summary_is_no_value_of_it(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp, 4.0)

        assert reasons(run_local(Kept(Average(), process), said((1, "a")))) == {"value does not fit": 1}


class TestLateAndBadRows:
    def test_a_late_message_is_kept_as_it_came_and_counted_in_no_state(self) -> None:
        run = run_local(Words(), said((MINUTE, "a"), (3, "b"), (MINUTE + 1, "a")), batch_size=1)
        assert run.state == {"a": 2}
        (row,) = run.late
        assert (row["reason"], row["timestamp"], row["position"], row["channel"]) == ("late", 3, 1, "")
        assert row["partition"] == ""
        assert row["row"] == {"word": "b"}

    def test_a_run_warns_once_of_all_rows_that_did_not_count(self, caplog: pytest.LogCaptureFixture) -> None:
        run_local(Words(), said((1, "a"), (2, "b")))
        assert caplog.messages == []
        run_local(Words(), said((MINUTE, "a"), (3, "b"), (4, "b"), (2**63 - 1, "c")), batch_size=1)
        assert caplog.messages == [
            "task=Words: 3 rows did not count: 2 'late', 1 'timestamp out of range'. See `late` of the run, or stop "
            "at the first with on_bad_row='fail'."
        ]

    def test_a_message_within_the_allowed_delay_is_not_late(self) -> None:
        messages = said((2 * MINUTE, "a"), (MINUTE, "b"), (MINUTE - 1, "c"))
        run = run_local(Words(), messages, batch_size=1, allowed_delay="1 minute")
        assert run.state == {"a": 1, "b": 1}
        assert [row["row"]["word"] for row in run.late] == ["c"]

    def test_a_value_that_the_monoid_cannot_take_is_a_bad_row_and_makes_no_update(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp, 1)
            state.update(message.timestamp, message["n"])

        messages = [Message(i, {"word": "a", "n": n}) for i, n in enumerate([10, 2**63, 20])]
        schema = pa.schema([("word", pa.string()), ("n", pa.decimal128(38, 0))])
        wide = [Message(m.timestamp, {**m}) for m in messages]

        def as_int(state: PersistentState[Any], message: Message) -> None:
            process(state, Message(message.timestamp, {"n": int(message["n"])}))

        for task in (Kept(Sum(), as_int), Reading(Sum(), as_int)):
            run = run_local(task, wide, schema=schema)
            assert run.state == {"a": 32}
            assert reasons(run) == {"value does not fit": 1}
            assert run.late[0]["position"] == 1

    def test_a_column_value_that_does_not_fit_is_a_bad_row(self) -> None:
        class Column(Words):
            process_message = PersistentTask.process_message
            value = "n"

        messages = [Message(i, {"word": "a", "n": n}) for i, n in enumerate([10, 2**63, None, 20])]
        run = run_local(Column(), messages, schema=pa.schema([("word", pa.string()), ("n", pa.uint64())]))
        assert run.state == {"a": 30}
        assert reasons(run) == {"value does not fit": 1}

    def test_a_key_that_cannot_be_stored_is_a_bad_row_and_the_others_go_on(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp, 1)

        # Nanoseconds, of which only whole microseconds are keys.
        schema = pa.schema([("at", pa.timestamp("ns")), ("word", pa.string())])
        at = pa.array([1000, 1001, None, 2000, 1999], pa.timestamp("ns"))
        messages = [Message(i, {"at": stamp, "word": "a"}) for i, stamp in enumerate(at)]
        for kind in (Kept, Reading):
            task = kind(Sum(), process, key=("at", "word"))
            for batch_size in (1, 5):
                run = run_local(task, messages, schema=schema, batch_size=batch_size)
                whole = [datetime(1970, 1, 1, microsecond=n) for n in (1, 2)]
                assert run.state == {(whole[0], "a"): 1, (None, "a"): 1, (whole[1], "a"): 1}
                assert [(row["reason"], row["position"]) for row in run.late] == [
                    ("key does not fit: column at", 1),
                    ("key does not fit: column at", 4),
                ]
            with pytest.raises(TaskFailedError, match=r"met a bad row \(key does not fit: column at\) .* position=1 "):
                run_local(task, messages, schema=schema, on_bad_row="fail")

    def test_a_timestamp_that_no_clock_can_follow_is_a_bad_row(self) -> None:
        for broken in (-(2**63), -(2**63) + 1, 2**63 - 1, 2**62 + 1):
            run = run_local(Words(), said((broken, "a"), (5, "a"), (6, "b")), batch_size=1)
            assert run.state == {"a": 1, "b": 1}
            assert len(run.late) == 1
            assert run.clocks[-1] == MINUTE

    def test_a_bad_row_can_be_made_to_stop_the_run(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp, "two")

        for kind in (Kept, Reading):
            place = f"{__file__}:{kind.process_message.__code__.co_firstlineno} in process_message"
            with pytest.raises(TaskFailedError) as caught:
                run_local(kind(Sum(), process), said((1, "a")), on_bad_row="fail")
            assert str(caught.value) == (
                f"task={kind.__name__} met a bad row (value does not fit, updated at {place}: Sum: value='two' does not fit "
                "int64, which takes integers of 64 bits) at channel='' partition='' position=0 key={'word': 'a'}; correct it, "
                "or set on_bad_row='keep' to put bad rows aside."
            )

    def test_late_rows_do_not_stop_a_run_that_stops_at_bad_ones(self) -> None:
        run = run_local(Words(), said((MINUTE, "a"), (3, "b")), batch_size=1, on_bad_row="fail")
        assert reasons(run) == {"late": 1}


class TestUserCode:
    def test_an_exception_names_channel_position_and_key(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            if message["word"] == "b":
                raise ZeroDivisionError("oh")

        place = f"{__file__}:{process.__code__.co_firstlineno + 2} in process"
        for kind in (Kept, Reading):
            with pytest.raises(TaskFailedError) as caught:
                run_local(kind(Sum(), process), said((1, "a"), (2, "b")))
            assert str(caught.value).startswith(
                f"process_message of task={kind.__name__} raised ZeroDivisionError('oh') at {place}, called from "
            )
            assert str(caught.value).endswith(", at channel='' partition='' position=1 key={'word': 'b'}.")
            assert isinstance(caught.value.__cause__, ZeroDivisionError)

    @pytest.mark.parametrize("batch_size", [1, 2])
    def test_an_exception_in_a_monoid_names_the_monoid(self, batch_size: int) -> None:
        class Broken(Sum[Any]):
            def plus(self, a: Any, b: Any) -> Any:
                raise ValueError("boom")

            def reduce(self, values: pa.Array, starts: Any) -> pa.Array:
                return Monoid.reduce(self, values, starts)

        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp, 1)

        with pytest.raises(
            TaskFailedError,
            match=r"^task=Kept key='a': monoid Broken raised ValueError\('boom'\) .*; correct the monoid\.$",
        ):
            run_local(Kept(Broken(), process), said((1, "a"), (2, "a")), batch_size=batch_size)

    @pytest.mark.parametrize("kind", [Kept, Reading])
    @pytest.mark.parametrize("batch_size", [1, 4])
    def test_a_sum_of_too_many_digits_names_the_task_the_key_and_what_to_do(self, kind: Any, batch_size: int) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp, Decimal("9" * 36) if message["word"] == "b" else Decimal(1))

        task = kind(Sum(pa.decimal128(38, 2)), process)
        with pytest.raises(TaskFailedError) as caught:
            run_local(task, said((1, "a"), (2, "b"), (3, "c"), (4, "b")), batch_size=batch_size)
        sentence = str(caught.value)
        assert f"task={kind.__name__}" in sentence
        assert ("key='b': " if kind is Kept else "key={'word': 'b'}: ") in sentence
        assert "Sum: a sum has more digits than decimal128(38, 2) holds." in sentence
        assert "leave out the ones that are too large in the task's code" in sentence
        assert "rebuild or reset" in sentence

    def test_a_decimal_of_too_many_digits_is_a_bad_row(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp, Decimal(message["word"]))

        run = run_local(
            Kept(Sum(pa.decimal128(38, 2)), process, None),
            said((1, "1.5"), (2, "1e-41"), (3, "1e-999999999"), (4, "2")),
        )
        assert (run.state, reasons(run)) == ({(): Decimal("3.50")}, {"value does not fit": 2})

    def test_an_update_must_be_at_the_timestamp_of_the_message(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp + 1, 1)

        for kind in (Kept, Reading):
            with pytest.raises(
                TaskFailedError, match=r"update\(timestamp=8\) is not the message's 7; pass message.timestamp"
            ):
                run_local(kind(Sum(), process), said((7, "a")))

    def test_reading_the_state_must_be_said(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            state.get()

        with pytest.raises(
            TaskFailedError,
            match=r"task=Kept calls get\(\); set reads_state = True .* never compute an update of it: take a monoid or an Ord",
        ):
            run_local(Kept(Sum(), process), said((7, "a")))

    def test_an_exception_in_a_batch_function_names_where_it_is(self) -> None:
        class Batch(Words):
            process_message = PersistentTask.process_message

            def process_batch(self, batch: pa.RecordBatch) -> Any:
                raise ZeroDivisionError("oh")

        with pytest.raises(TaskFailedError) as caught:
            run_local(Batch(), said((1, "a"), (2, "b")))
        assert "process_batch of task=Batch raised ZeroDivisionError('oh')" in str(caught.value)
        assert "position=0 key={'word': 'a'}" in str(caught.value)
        assert "position=1 key={'word': 'b'}" in str(caught.value)

    def test_a_batch_function_gives_one_update_for_each_row_of_a_type_that_fits(self) -> None:
        class Batch(Words):
            process_message = PersistentTask.process_message

            def __init__(self, updates: Any) -> None:
                self.updates = updates

            def process_batch(self, batch: pa.RecordBatch) -> Any:
                return self.updates

        messages = said((1, "a"), (2, "b"))
        with pytest.raises(TaskFailedError, match=r"gave 1 updates for 2 rows; give one for each, null for none\."):
            run_local(Batch(pa.array([1])), messages)
        with pytest.raises(TaskFailedError, match="in process_batch: Sum: a column of string does not fit int64"):
            run_local(Batch(pa.array(["1", "2"])), messages)
        with pytest.raises(TaskFailedError, match=r"gave a list, not an Arrow array"):
            run_local(Batch([1, 2]), messages)
        assert run_local(Batch(pa.chunked_array([[1], [None]], pa.int64())), messages).state == {"a": 1}

    def test_what_is_read_is_the_fold_of_everything_of_the_key_so_far(self) -> None:
        seen: list[tuple[str, int, Any]] = []

        def process(state: PersistentState[Any], message: Message) -> None:
            before = state.get()
            state.update(message.timestamp, [message["n"]])
            seen.append((message["word"], message["n"], before))
            assert state.get() == [*before, message["n"]]

        words = [(5, "a"), (3, "a"), (5, "b"), (5, "a"), (1, "a"), (9, "b"), (7, "a"), (6, "b")]
        messages = [Message(stamp, {"word": word, "n": n}) for n, (stamp, word) in enumerate(words)]
        task = Reading(List(pa.int64()), process)
        run = run_local(task, messages, batch_size=5, allowed_delay="1 minute")
        # Of each batch, a key's messages come in the order of timestamp and position.
        assert sorted(seen[:5]) == [("a", 0, [4, 1]), ("a", 1, [4]), ("a", 3, [4, 1, 0]), ("a", 4, []), ("b", 2, [])]
        assert sorted(seen[5:]) == [("a", 6, [4, 1, 0, 3]), ("b", 5, [2, 7]), ("b", 7, [2])]
        assert run.state == {"a": [4, 1, 0, 3, 6], "b": [2, 7, 5]}

    def test_the_state_that_is_read_may_be_above_the_clock_and_of_many_batches(self) -> None:
        read: dict[str, Any] = {}

        def process(state: PersistentState[Any], message: Message) -> None:
            state.update(message.timestamp, 1)
            read[message["word"]] = state.get()

        messages = said(*((i, "ab"[i % 2]) for i in range(200)))
        run_local(Reading(Sum(), process), messages, batch_size=7)
        assert read == {"a": 100, "b": 100}

    def test_an_update_may_be_computed_from_what_was_read(self) -> None:
        def process(state: PersistentState[Any], message: Message) -> None:
            if state.get() is None or len(message["word"]) < state.get():
                state.update(message.timestamp, len(message["word"]))

        run = run_local(Reading(Min(), process, key=None), said((1, "abc"), (2, "abcd"), (3, "a"), (4, "ab")))
        assert run.state == {(): 1}


class TestMessages:
    def test_a_message_is_a_mapping_of_its_columns(self) -> None:
        got: list[Mapping[str, Any]] = []

        def process(state: PersistentState[Any], message: Message) -> None:
            got.append(message)
            assert message.timestamp == 7
            assert "word" in message
            assert "other" not in message
            assert message.get("other", 5) == 5
            assert dict(message)["n"] == 2

        run_local(Kept(Sum(), process), [Message(7, {"word": "a", "n": 2})])
        assert len(got) == 1
        assert repr(Message(7, {"word": "a"})) == "Message(7, {'word': 'a'})"

    def test_a_message_has_no_column_but_its_own(self) -> None:
        got: list[dict[str, Any]] = []

        class Again(OrderedTask):
            key, state = "word", pa.int64()
            emits = pa.schema([("word", pa.string()), ("n", pa.int64())])

            def process(self, state: int | None, message: Message, context: Context) -> int:
                context.emit(**message)
                return 1

        run_local(Kept(Sum(), lambda state, message: got.append(dict(message))), [Message(7, {"word": "a", "n": 2})])
        assert got == [{"word": "a", "n": 2}]
        assert run_local(Again(), [Message(7, {"word": "a", "n": 2})]).emitted == [
            {"word": "a", "n": 2, "timestamp": 7}
        ]

    def test_columns_may_hold_anything_and_nothing_is_left_behind(self) -> None:
        import fsspec

        before = set(fsspec.filesystem("memory").find("/"))
        messages = [Message(1, {"word": "a", "n": 1, "tags": [{"x": 1}], "none": None})]
        assert run_local(Words(), messages).state == {"a": 1}
        assert set(fsspec.filesystem("memory").find("/")) == before


def test_clocks_that_a_micro_batch_jumps_over_are_not_given_and_all_are_where_it_spans_an_interval_at_most() -> None:
    messages = [Message(second * 1_000_000, {"word": "a"}) for second in range(0, 200, 10)]
    clocks, totals = {}, {}
    for size in (100, 3, 1):
        run = run_local(Words(), messages, checkpoint_interval="30 seconds", batch_size=size)
        clocks[size] = [clock // 1_000_000 for clock in run.clocks]
        totals[size] = run.state
    assert clocks == {100: [180, 210], 3: list(range(0, 211, 30)), 1: list(range(0, 211, 30))}
    assert list(totals.values()) == [{"a": 20}] * 3


class PerShop(PersistentTask):
    """The revenue of a shop, and the region that it is in."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Struct(revenue=Sum(), region=Last(pa.string())))

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, {"revenue": message["amount"], "region": message["region"]})


class PerRegion(PersistentTask):
    key, value = "region", "revenue"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


class OfAll(PersistentTask):
    value = "value"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


class PerMinute(PersistentTask):
    key, value = "shop", "amount"

    def persistent_state(self) -> WindowState[Any]:
        return WindowState(Sum(), TumblingWindow("1 minute"))


class Best(PersistentTask):
    key, value = "shop", "value"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Max())


class Column(PersistentTask):
    key, value = "word", "value"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


class Story(PersistentTask):
    """What has come of a key, in order."""

    def __init__(self, key: str) -> None:
        self.key = key

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(List(pa.string()))

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        if "after" in message:
            before, after = (message[which] and message[which]["value"] for which in ("before", "after"))
            state.update(message.timestamp, [f"{before} to {after}"])
        else:
            state.update(message.timestamp, [f"{message.input} {message['amount']}"])


def files() -> FileSource:
    """A source whose folder is not there."""
    return FileSource("no/such/folder", timestamp="ts")


def shops() -> Application:
    # A store that can't be written.
    return Application("shops", "/dev/null/store")


def orders(*rows: tuple[float, str, str, int]) -> list[Message]:
    return [
        Message(int(minute * MINUTE), {"shop": shop, "region": region, "amount": amount})
        for minute, shop, region, amount in rows
    ]


ORDERS = orders(
    (0.1, "Ada", "north", 10),
    (0.9, "Bob", "north", 20),
    (1.5, "Cid", "south", 40),
    (2.5, "Ada", "south", 5),
    (3.5, "Bob", "north", 1),
)


def by_minute(values: Mapping[int, Mapping[Any, Any]]) -> dict[int, Mapping[Any, Any]]:
    return {clock // MINUTE: some for clock, some in values.items() if clock > 0}


class TestApplications:
    def test_messages_are_microseconds_even_shortly_after_1970(self) -> None:
        app = shops().add(PerShop(), files())
        messages = [Message(20 * MINUTE, {"shop": "a", "region": "north", "amount": 3})]
        assert [*run_local(app, {"PerShop": messages})["PerShop"].outputs] == [20 * MINUTE, 21 * MINUTE]

    def test_a_chain_of_changes_agrees_at_every_clock(self) -> None:
        app = shops().add(PerShop(), files()).add(PerRegion(), Changes("PerShop")).add(OfAll(), Changes("PerRegion"))
        ran = run_local(app, {"PerShop": ORDERS}, batch_size=1)
        assert [*ran] == ["PerShop", "PerRegion", "OfAll"]
        assert by_minute(ran["PerRegion"].states) == {
            1: {"north": 30},
            2: {"north": 30, "south": 40},
            3: {"north": 20, "south": 55},
            4: {"north": 21, "south": 55},
        }
        assert by_minute(ran["PerRegion"].outputs) == {
            1: {"north": 30},
            2: {"south": 40},
            3: {"north": 20, "south": 55},
            4: {"north": 21},
        }
        assert by_minute(ran["OfAll"].states) == {1: {(): 30}, 2: {(): 70}, 3: {(): 75}, 4: {(): 76}}
        assert {tuple(run.clocks) for run in ran.values()} == {(0, MINUTE, 2 * MINUTE, 3 * MINUTE, 4 * MINUTE)}

    @settings(max_examples=30, deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 20), st.sampled_from("abc"), st.sampled_from("ns")), max_size=20),
        st.lists(st.tuples(st.integers(0, 20), st.sampled_from("ns")), max_size=20),
        st.integers(1, 10),
    )
    def test_at_every_clock_a_task_is_made_of_what_feeds_it(
        self, sold: list[tuple[int, str, str]], named: list[tuple[int, str]], batch_size: int
    ) -> None:
        app = Application(
            "shops", "/dev/null/store", checkpoint_interval="4 microseconds", allowed_delay="3 microseconds"
        )
        shop, word = "ts long, shop string, region string, amount long", "ts long, word string, value long"
        app.add(
            Column(),
            {"sums": Input(Changes("PerRegion"), key="region"), "own": FileSource("no", timestamp="ts", schema=word)},
        )
        app.add(PerRegion(), Changes("PerShop")).add(PerShop(), FileSource("no", timestamp="ts", schema=shop))
        messages = {
            "PerShop": [Message(ts, {"shop": name, "region": region, "amount": 1}) for ts, name, region in sold],
            "Column": [Message(ts, {"word": word, "value": 100}) for ts, word in named],
        }
        ran = run_local(app, messages, batch_size=batch_size)
        assert ran["PerShop"].clocks == ran["PerRegion"].clocks == ran["Column"].clocks
        late = [row["timestamp"] for row in ran["Column"].late]
        for clock, per_region in ran["PerRegion"].states.items():
            regions: Counter[str] = Counter()
            for value in ran["PerShop"].states[clock].values():
                regions[value["region"]] += value["revenue"]
            assert Counter(per_region) == regions
            own = sum(ts < clock for ts, _ in named) - sum(ts < clock for ts in late)
            assert sum(ran["Column"].states[clock].values()) == 100 * own + regions.total()

    def test_whoever_is_added_first_a_task_comes_after_what_feeds_it(self) -> None:
        app = shops().add(PerRegion(), Changes("PerShop")).add(PerShop(), files())
        assert run_local(app, {"PerShop": ORDERS})["PerRegion"].state == {"north": 21, "south": 55}

    @pytest.mark.parametrize("batch_size", [1, 2, 100])
    def test_closed_windows_feed_a_task_once_however_soon_they_closed(self, batch_size: int) -> None:
        app = shops().add(PerMinute(), files()).add(Best(), ClosedWindows("PerMinute"))
        ran = run_local(app, {"PerMinute": ORDERS}, batch_size=batch_size)
        assert ran["Best"].state == {"Ada": 10, "Bob": 20, "Cid": 40}
        closed = [key for values in ran["PerMinute"].outputs.values() for key in values]
        assert sorted(closed) == [
            ("Ada", 0, MINUTE),
            ("Ada", 2 * MINUTE, 3 * MINUTE),
            ("Bob", 0, MINUTE),
            ("Bob", 3 * MINUTE, 4 * MINUTE),
            ("Cid", MINUTE, 2 * MINUTE),
        ]

    @pytest.mark.parametrize("batch_size", [1, 2, 100])
    def test_changes_between_fixed_times_are_a_function_of_the_messages(self, batch_size: int) -> None:
        app = shops().add(PerShop(), files()).add(PerRegion(), Changes("PerShop"))
        app.add(Story("region"), Changes("PerRegion", every="2 minutes"))
        # All in one micro-batch, they jump over several of these times.
        messages = [*ORDERS, *orders((6.5, "Cid", "south", 2))]
        ran = run_local(app, {"PerShop": messages}, batch_size=batch_size)
        assert ran["Story"].state == {
            "north": ["None to 30", "30 to 21"],
            "south": ["None to 40", "40 to 55", "55 to 57"],
        }
        assert all(clock % (2 * MINUTE) == 0 for clock in ran["PerShop"].clocks)

    @pytest.mark.parametrize("batch_size", [1, 2, 100])
    def test_messages_of_one_time_come_in_the_order_of_the_inputs(self, batch_size: int) -> None:
        def rates(batch: pa.RecordBatch) -> pa.Array:
            return pa.array([[f"rate {rate}"] for rate in batch["rate"].to_pylist()])

        app = shops().add(
            Story("shop"),
            {"rates": Input(files(), key="of", batch=rates), "orders": Input(files(), allowed_delay="1 minute")},
        )
        given = {
            "orders": orders((1, "Ada", "", 1), (2, "Ada", "", 2), (1, "Ada", "", 3), (4, "Ada", "", 4)),
            "rates": [Message(minute * MINUTE, {"of": "Ada", "rate": minute}) for minute in (1, 2, 4)],
        }
        run = run_local(app, {"Story": given}, batch_size=batch_size)["Story"]
        assert run.state == {
            "Ada": ["rate 1", "orders 1", "orders 3", "rate 2", "orders 2", "rate 4", "orders 4"],
        }
        assert run.late == []

    def test_a_late_row_tells_its_input(self) -> None:
        app = shops().add(Story("shop"), {"old": files(), "new": files()})
        late = orders((3, "Ada", "", 1), (1, "Ada", "", 2), (3, "Ada", "", 3))
        new = orders((3, "Ada", "", 4))
        (row,) = run_local(app, {"Story": {"old": late, "new": new}}, batch_size=1)["Story"].late
        assert (row["reason"], row["partition"], row["position"]) == ("late", "old:", 1)
        assert row["row"] == {"old": {"shop": "Ada", "region": "", "amount": 2}}

    def test_a_task_is_an_input_beside_a_source(self) -> None:
        def hundred(batch: pa.RecordBatch) -> pa.Array:
            return pa.array([100] * batch.num_rows)

        app = shops().add(Words(), files())
        app.add(Column(), {"own": Input(files(), batch=hundred), "words": Changes("Words")})
        messages = {
            "Words": said((1, "a"), (2 * MINUTE, "b"), (4 * MINUTE, "a")),
            "Column": said((MINUTE, "a"), (3 * MINUTE, "b")),
        }
        ran = run_local(app, messages, batch_size=1)
        assert ran["Column"].state == {"a": 2 + 100, "b": 1 + 100}
        assert run_local(app, {**messages, "Column": {"own": messages["Column"]}}, batch_size=1) == ran
        for clock in ran["Column"].clocks:
            own = {m["word"] for m in messages["Column"] if m.timestamp < clock}
            words = ran["Words"].states[clock]
            sums = {word: words.get(word, 0) + 100 * (word in own) for word in {*words, *own}}
            assert ran["Column"].states[clock] == sums

    def test_tasks_that_share_a_source_share_its_messages(self) -> None:
        source = files()
        app = shops().add(PerShop(), source).add(PerMinute(), source).add(Story("shop"), {"a": source, "b": source})
        for messages in ({"PerShop": ORDERS}, {"PerMinute": ORDERS}, {"Story": {"b": ORDERS}}):
            ran = run_local(app, messages)
            assert ran["PerShop"].state["Bob"] == {"revenue": 21, "region": "north"}
            assert len([key for values in ran["PerMinute"].outputs.values() for key in values]) == 5
            assert ran["Story"].state["Cid"] == ["a 40", "b 40"]

    def test_the_settings_are_those_of_the_application(self) -> None:
        app = Application("words", "/dev/null/store", checkpoint_interval="2 minutes", allowed_delay="1 minute")
        app.add(Words(), files(), on_bad_row="fail")
        run = run_local(app, {"Words": said((3 * MINUTE, "a"), (2 * MINUTE, "b"), (0, "c"))}, batch_size=1)["Words"]
        assert run.clocks == [2 * MINUTE, 4 * MINUTE]
        assert reasons(run) == {"late": 1}
        with pytest.raises(TaskFailedError, match="task=Words met a bad row"):
            run_local(app, {"Words": said((2**63 - 1, "a"))})

    def test_columns_have_the_types_of_the_source(self) -> None:
        class Typed(Words):
            def process_message(self, state: PersistentState[Any], message: Message) -> None:
                assert message["ts"] == datetime(1970, 1, 1, 0, 0, 0, 1, timezone.utc)
                state.update(message.timestamp, message["n"] or 0)

        source = FileSource("no/such/folder", timestamp="ts", schema="ts timestamp, word string, n int")
        app = shops().add(Typed(), source)
        assert run_local(app, {"Typed": said((1, "a"))})["Typed"].state == {"a": 0}
        columns = r"\(ts: timestamp\[us, tz=UTC\], word: string, n: int32\)"
        with pytest.raises(InvalidInputError, match=f"messages=1 are no rows of the same columns {columns}: "):
            run_local(app, {"Typed": [Message(1, {"word": 5})]})

    def test_an_empty_list_holds_nobody_up(self) -> None:
        shut = FileSource("no/such/folder", timestamp="ts", schema="ts timestamp, region string, revenue long")
        app = shops().add(Words(), files()).add(OfAll(), RateSource(1))
        app.add(PerRegion(), {"none": shut, "words": Input(Changes("Words"), key="word", value="value")})
        ran = run_local(
            app, {"OfAll": [], "PerRegion": [], "Words": said((1, "a"), (MINUTE, "b"), (2 * MINUTE, "a"))}, batch_size=1
        )
        assert ran["Words"].clocks == [0, MINUTE, 2 * MINUTE, 3 * MINUTE]
        assert by_minute(ran["PerRegion"].states) == {1: {"a": 1}, 2: {"a": 1, "b": 1}, 3: {"a": 2, "b": 1}}
        assert ran["OfAll"].state == {}
        nothing = run_local(shops().add(OfAll(), RateSource(1)), {"OfAll": []})
        assert nothing == {"OfAll": LocalRun({}, {}, [])}

    def test_nothing_is_left_behind(self) -> None:
        import fsspec

        before = set(fsspec.filesystem("memory").find("/"))
        app = shops().add(PerShop(), files()).add(PerRegion(), Changes("PerShop"))
        run_local(app, {"PerShop": ORDERS})
        assert set(fsspec.filesystem("memory").find("/")) == before

    @pytest.mark.parametrize(
        ("messages", "sentence"),
        [
            (
                [],
                "messages of application=shops are given as a list; give a mapping from the name of each task that a source "
                "feeds to its messages.",
            ),
            (
                {"Shop": []},
                "messages are given to task=Shop, which no source feeds; give them to those of PerShop, PerMinute, "
                "Story.",
            ),
            (
                {"OfAll": []},
                "messages are given to task=OfAll, which no source feeds; give them to those of PerShop, PerMinute, "
                "Story.",
            ),
            (
                {"PerShop": ORDERS, "PerMinute": ORDERS},
                "task=PerMinute shares its source with task=PerShop; give messages to one of them.",
            ),
            ({"PerShop": {"a": ORDERS}}, "messages of task=PerShop are given to input 'a'; give them as a list."),
            (
                {"Story": ORDERS},
                "messages of task=Story are given as one list; give them by the names of inputs, 'a', 'b'.",
            ),
            (
                {"Story": {"c": ORDERS}},
                "messages of task=Story are given to input 'c'; give them by the names of inputs, 'a', 'b'.",
            ),
            (
                {"PerShop": ORDERS, "Story": {"a": ORDERS}},
                "input 'b' of task=Story got no messages; give it some, or [] for none.",
            ),
            (
                {"PerShop": []},
                "task=PerShop has no messages, and its source tells no schema; give it a message, or the source a "
                "schema.",
            ),
        ],
    )
    def test_messages_that_do_not_fit_the_application_are_refused(self, messages: Any, sentence: str) -> None:
        source = files()
        app = shops().add(PerShop(), source).add(PerMinute(), source).add(PerRegion(), Changes("PerShop"))
        app.add(OfAll(), Changes("PerRegion")).add(Story("shop"), {"a": files(), "b": files()})
        with pytest.raises(InvalidInputError) as caught:
            run_local(app, messages)
        assert str(caught.value) == sentence

    def test_history_and_a_live_input_take_turns_at_the_bound(self) -> None:
        history = FileSource("none/", timestamp="ts", schema="word string, ts timestamp", finite=True).below(60_000_000)
        live = FileSource("none/", timestamp="ts", schema="word string, ts timestamp").from_(60_000_000)
        app = shops().add(Words(), {"history": history, "": live})
        told = said((1, "a"), (59_999_999, "b"), (60_000_000, "c"), (130_000_000, "d"))
        ran = run_local(app, {"Words": {"history": told[:3], "": told}}, batch_size=1)["Words"]
        assert sum(ran.state.values()) == 4
        assert ran.late == []
        assert sum(ran.states[60_000_000].values()) == 2
        kept = {"history": history.below(60_000_000, keep=True), "": live}
        ran = run_local(shops().add(Words(), kept), {"Words": {"history": told, "": told}})["Words"]
        assert [(row["reason"], row["timestamp"]) for row in ran.late] == [
            ("outside the bounds of its input", 60_000_000),
            ("outside the bounds of its input", 130_000_000),
        ]

    def test_what_an_application_says_itself_is_refused(self) -> None:
        app = shops().add(Words(), files())
        said_twice = {
            "checkpoint_interval": "1 minute",
            "allowed_delay": "0 seconds",
            "schema": "word string",
            "on_bad_row": "keep",
            "timestamp_unit": "s",
        }
        for name, value in said_twice.items():
            with pytest.raises(InvalidInputError) as caught:
                run_local(app, {"Words": said((1, "a"))}, **{name: value})  # type: ignore[call-overload]
            assert str(caught.value) == (
                f"{name}={value!r} is for a task alone; application=shops says that itself, so leave it out."
            )

    def test_an_application_without_tasks_and_a_column_of_spark_are_refused(self) -> None:
        class BySpark(Words):
            process_message = PersistentTask.process_message

            def process_column(self, frame: Any) -> Any:
                raise AssertionError

        with pytest.raises(InvalidInputError, match=r"^application shops has no task; add one\.$"):
            run_local(shops(), {})
        with pytest.raises(
            InvalidInputError, match=r"^task=BySpark says its update in process_column, which needs Spark; "
        ):
            run_local(shops().add(BySpark(), files()), {"BySpark": said((1, "a"))})


@pytest.mark.parametrize(
    ("type", "unit", "shown"),
    [
        ("timestamp", None, datetime(1970, 1, 1, 0, 1, 0, 5_000, timezone.utc)),
        ("bigint", None, MINUTE + 5_000), ("bigint", "ms", 60_005), ("bigint", "s", 60),
        ("date", None, date(1970, 1, 1)),
    ],
)  # fmt: skip
def test_a_message_without_its_sources_timestamp_column_has_its_time_there(
    type: str, unit: str | None, shown: Any
) -> None:
    seen = Kept(List(pa.string()), lambda state, message: state.update(message.timestamp, [str(message["ts"])]))
    source = FileSource("none/", timestamp="ts", schema=f"ts {type}, word string", timestamp_unit=unit)
    app = Application("told", "memory://unused", checkpoint_interval="1 minute").add(seen, source)
    for moment in (MINUTE + 5_000, datetime(1970, 1, 1, 0, 1, 0, 5_000)):
        messages = [Message(moment, {"word": "a"}), Message(moment, {"word": "b", "ts": None})]
        assert run_local(app, {"Kept": messages})["Kept"].state == {"a": [str(shown)], "b": ["None"]}


@given(st.lists(st.dates() | st.datetimes() | st.none(), min_size=1, max_size=4), st.booleans())
def test_a_date_stays_one_and_a_datetime_too_or_is_refused(values: list[Any], is_nested: bool) -> None:
    messages = [
        Message(i, {"word": "a", "at": [{"x": value}] if is_nested else value}) for i, value in enumerate(values)
    ]

    class Given(Words):
        def process_message(self, state: PersistentState[Any], message: Message) -> None:
            value = message["at"][0]["x"] if is_nested else message["at"]
            assert (type(value), value) == (type(values[message.timestamp]), values[message.timestamp])
            state.update(message.timestamp, 1)

    with suppress(InvalidInputError):
        assert run_local(Given(), messages).state == {"a": len(values)}
        return
    assert len({type(value) for value in values}) > 1


def test_a_datetime_for_a_date_of_the_schema_is_midnight_or_is_refused() -> None:
    schema = pa.schema([("word", pa.string()), ("on", pa.map_(pa.string(), pa.date32()))])
    message = Message(1, {"word": "a", "on": {"x": datetime(2026, 1, 1)}})
    assert run_local(Words(), [message], schema=schema).state == {"a": 1}
    message = Message(1, {"word": "a", "on": {"x": datetime(2026, 1, 1, 5)}})
    with pytest.raises(
        InvalidInputError, match=r"^message 0 has on=\{.*\}, and the column is map<.*>: the time would be cut; give"
    ):
        run_local(Words(), [message], schema=schema)


@given(st.integers() | st.datetimes() | st.floats() | st.text(max_size=3) | st.just(pd.NaT) | st.just([("word", "a")]))
def test_any_timestamp_and_any_row_is_taken_or_refused_in_a_sentence(given: Any) -> None:
    for message in (Message(given, {"word": "a"}), Message(1, given)):
        with suppress(InvalidInputError):
            run = run_local(Words(), [message])
            assert run.late or run.state == {"a": 1}
