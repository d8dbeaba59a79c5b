"""A task is tested without Spark: states and outputs by clock, late and bad rows, and errors that say where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Aggregator, Average, Count, List, Max, Min, Monoid, Set, Struct, Sum, TopK
from persistent_state import (
    LocalRun,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    TaskFailedError,
    TumblingWindow,
    WindowState,
    run_local,
)

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
            "task=Words: 3 rows did not count: 2 'late', 1 'no timestamp'. See `late` of the run."
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
                    ("key does not fit", 1),
                    ("key does not fit", 4),
                ]
            with pytest.raises(TaskFailedError, match=r"met a bad row \(key does not fit\) .* position=1 "):
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
            with pytest.raises(TaskFailedError) as caught:
                run_local(kind(Sum(), process), said((1, "a")), on_bad_row="fail")
            assert str(caught.value) == (
                f"task={kind.__name__} met a bad row (value does not fit) at channel='' partition='' position=0 "
                "key={'word': 'a'}; correct it, or set on_bad_row='keep' to put bad rows aside."
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
            TaskFailedError, match=r"^monoid Broken raised ValueError\('boom'\) .*; correct the monoid\.$"
        ):
            run_local(Kept(Broken(), process), said((1, "a"), (2, "a")), batch_size=batch_size)

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
            TaskFailedError, match=r"task=Kept calls get\(\); set reads_state = True to read the state\."
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
        with pytest.raises(TaskFailedError, match="task=Batch: Sum: a column of string does not fit int64"):
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
