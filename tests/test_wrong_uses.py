"""What people try at first, and is wrong: it ends with one sentence that names the place and the way out, or with a warning."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monoids import Aggregator, Last, List, Map, Max, Min, Monoid, MonoidError, Optional, Semigroup, Set, Struct, Sum
from persistent_state import (
    Application,
    Changes,
    Context,
    DataFrameSource,
    FileSource,
    KafkaSource,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    SlidingWindow,
    TaskFailedError,
    TumblingWindow,
    WindowState,
    open_store,
    run_local,
)
from persistent_state.batch.update import _copied
from persistent_state.cli.commands import main
from persistent_state.edges.in_order.process import _warn_of_ttl, _warn_of_unit
from persistent_state.errors import at_definition
from persistent_state.kafka.decoders import Json
from persistent_state.open_state import OpenApplication
from persistent_state.store.files import open_files
from persistent_state.windows import from_identity
from tests.sentences import problem
from tests.two_tasks import TwoTasks

STORE = "tests/fixtures/store-v1"


class Task(PersistentTask):
    """It does with a message what a test says."""

    key: Any = "k"

    def __init__(self, process: Callable[[Any, Any], Any], monoid: Any = None) -> None:
        self.process, self.monoid = process, Sum() if monoid is None else monoid

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)

    def process_message(self, state: Any, message: Message) -> Any:
        return self.process(state, message)


class Reading(Task):
    reads_state = True


class Column(PersistentTask):
    key, value = "k", "v"

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())


MESSAGES = [Message(1, {"k": "a", "v": 1}), Message(2, {"k": "b", "v": 2})]


def failure(task: PersistentTask | OrderedTask) -> str:
    return problem(lambda: run_local(task, MESSAGES), TaskFailedError)


# Updates that are none


class Yielding(Column):
    value = None

    def process_message(self, state: Any, message: Message) -> Iterator[int]:  # type: ignore[override]
        yield 1


class Awaiting(Column):
    value = None

    async def process_message(self, state: Any, message: Message) -> None:  # type: ignore[override]
        state.update(message.timestamp, 1)


class Short(Column):
    value = None

    def process_message(self, state: Any) -> None:  # type: ignore[override]
        state.update(1, 1)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (Yielding, "yields; call state.update(message.timestamp, value) for each update."),
        (Awaiting, "is async, and nothing awaits it; define it by def alone."),
        (Short, "can't be called with a state and a message: too many positional arguments; define "
                "process_message(self, state, message)."),
    ],
)  # fmt: skip
def test_a_function_that_could_make_no_update_is_refused_when_the_task_is_added(task: type[Column], said: str) -> None:
    app, line = Application("app", "memory://none"), task.process_message.__code__.co_firstlineno
    place = f"task={task.__name__}: process_message() at {__file__}:{line} in process_message "
    assert problem(lambda: app.add(task(), FileSource("a", timestamp="ts"))) == place + said


@pytest.mark.parametrize("kind", [Task, Reading])
def test_a_returned_value_is_an_error_with_the_file_and_the_line(kind: type[Task]) -> None:
    line = Task.process_message.__code__.co_firstlineno
    said = failure(kind(lambda state, message: 3))
    assert (
        f"process_message of task={kind.__name__} at {__file__}:{line} in process_message returned 3, which has" in said
    )
    assert said.endswith("call state.update(message.timestamp, value), and return nothing.")
    assert " returned a list, " in failure(kind(lambda state, message: ["secret"]))
    # What update itself returns may be returned.
    ran = run_local(kind(lambda state, message: state.update(message.timestamp, 1)), MESSAGES)
    assert ran.state == {"a": 1, "b": 1}


def set_value(state: Any, message: Message) -> None:
    state.value = 3


def set_monoid(state: Any, message: Message) -> None:
    state.monoid = 3


def set_update(state: Any, message: Message) -> None:
    state.update = 3


def add_to_value(state: Any, message: Message) -> None:
    state.total += 3


@pytest.mark.parametrize("kind", [Task, Reading])
@pytest.mark.parametrize(
    ("process", "name"),
    [(set_value, "value"), (add_to_value, "total"), (set_monoid, "monoid"), (set_update, "update")],
)
def test_an_attribute_of_the_state_is_an_error_with_the_file_and_the_line(
    kind: type[Task], process: Callable[[Any, Any], None], name: str
) -> None:
    said = failure(kind(process))
    place = f"{__file__}:{process.__code__.co_firstlineno + 1} in {process.__name__}"
    assert said.startswith(f"process_message of task={kind.__name__} at {place}")
    assert f"attribute={name!r} of the state can't be read or set; call state.update(message.timestamp, value)" in said


@pytest.mark.parametrize("kind", [Task, Reading])
@pytest.mark.parametrize(
    "use", [lambda state: state + 1, lambda state: state["n"], lambda state: int(state), len, iter]
)
def test_a_state_that_is_taken_for_a_value_is_an_error_with_the_file_and_the_line(
    kind: type[Task], use: Callable[[Any], Any]
) -> None:
    def process(state: Any, message: Message) -> None:
        use(state)

    error = failure(kind(process))
    assert f"{__file__}:{process.__code__.co_firstlineno + 1} in process" in error
    assert (
        ": the state is not a value; call state.update(message.timestamp, value) to add a value, or state.get()"
        in error
    )
    assert "Recorder" not in error


class Processing(OrderedTask):
    key, state = "k", pa.struct([("n", pa.int64())])

    def __init__(self, act: Callable[[Any, Any], Any]) -> None:
        self.act = act

    def process(self, state: Any, message: Message, context: Context) -> Any:
        return self.act(state, message)


def test_a_column_that_is_taken_for_an_attribute_of_the_message_is_an_error_with_what_to_write() -> None:
    for task in (Task(lambda state, message: message.v), Processing(lambda state, message: message.v)):
        error = failure(task)
        assert "raised AttributeError(\"a message has no attribute 'v'; write message['v']\") at " in error
        assert "of the state" not in error
    assert getattr(Message(1, {"v": 2}), "v", 3) == 3
    assert (
        copy.deepcopy(Message(1, {"v": 2}, "in")) == pickle.loads(pickle.dumps(Message(1, {"v": 2}, "in"))) == {"v": 2}
    )


@pytest.mark.parametrize(
    "use",
    [lambda state, message: state["n"], lambda state, message: state + 1, lambda state, message: state.update(n=1)],
)
def test_a_state_that_a_key_does_not_have_yet_is_named(use: Callable[[Any, Any], Any]) -> None:
    error = failure(Processing(use))
    assert error.endswith(" The state is None, as the key has none: let process return the first one.")


def test_an_error_of_another_kind_says_nothing_of_the_state() -> None:
    error = failure(Processing(lambda state, message: message["v"] + "x"))
    assert "TypeError" in error
    assert "The state" not in error


def test_windows_of_a_state_without_windows_are_refused_with_what_to_write() -> None:
    window = TumblingWindow("1 hour")
    wrong: Any = window
    assert problem(lambda: NonWindowState(Sum(), wrong)) == (
        f"NonWindowState(..., {window!r}) has no windows; write WindowState(..., {window!r})."
    )


def no_update(state: Any, message: Message) -> None:
    pass


def test_a_run_without_any_update_warns(caplog: pytest.LogCaptureFixture) -> None:
    def warnings(task: Any, messages: list[Message], **options: Any) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "persistent_state"):
            run_local(task, messages, **options)
        return [record.getMessage() for record in caplog.records]

    assert warnings(Task(no_update), MESSAGES) == ["task=Task: 2 messages read, and none of them made an update."]
    nulls = [Message(1, {"k": "a", "v": None})]
    assert warnings(Column(), nulls, schema="k string, v long") == [
        "task=Column: 1 message read, and none of them made an update: its value column 'v' is null in all of them."
    ]
    # One update is enough, and so are reasons that a warning has told already.
    assert (
        warnings(Task(lambda s, m: s.update(m.timestamp, 1) if m["k"] == "b" else None), MESSAGES, batch_size=1) == []
    )
    (warning,) = warnings(Task(lambda s, m: s.update(m.timestamp, "1")), MESSAGES)
    place = f"{__file__}:{Task.process_message.__code__.co_firstlineno} in process_message"
    assert warning == (
        f"task=Task: 2 rows did not count: 2 'value does not fit' (updated at {place}: Sum: value='1' does not fit int64, "
        "which takes integers of 64 bits, at channel='' partition='' position=0 key={'k': 'a'}). See `late` of the run, or "
        "stop at the first with on_bad_row='fail'."
    )
    (warning,) = warnings(Reading(lambda s, m: s.update(m.timestamp, "1")), MESSAGES, batch_size=1)
    assert "2 'value does not fit' (Sum holds int64)." in warning
    assert warnings(Task(no_update), []) == []


@pytest.mark.parametrize("kind", [Task, Reading])
@pytest.mark.parametrize(
    ("update", "said"),
    [
        (
            {"n": 1, "totl": 5},
            "Struct: unknown field 'totl': value={'n': 1, 'totl': 5} does not fit struct<n: int64, total",
        ),
        (
            {"n": 1, "total": 2.5},
            "Struct: field 'total': Sum: value=2.5 does not fit int64, which takes integers of 64 bits)",
        ),
    ],
)
def test_an_update_that_does_not_fit_is_named_with_the_task_that_made_it(
    kind: type[Task], update: Any, said: str
) -> None:
    task = kind(lambda s, m: s.update(m.timestamp, update if m["k"] == "b" else {"n": 1}), Struct(n=Sum(), total=Sum()))
    place = f"updated at {__file__}:{Task.process_message.__code__.co_firstlineno} in process_message: "
    error = problem(lambda: run_local(task, MESSAGES, on_bad_row="fail"), TaskFailedError)
    assert f"met a bad row (value does not fit, {place}{said}" in error
    assert " at channel='' partition='' position=1 key={'k': 'b'};" in error


def test_a_column_of_updates_names_the_first_that_does_not_fit() -> None:
    class OfBatch(Column):
        value = None

        def process_batch(self, batch: pa.RecordBatch) -> Any:
            return batch["v"]

    messages = [Message(1, {"k": "a", "v": 1}), Message(2, {"k": "b", "v": 2**63})]
    place = f"updated at {__file__}:{OfBatch.process_batch.__code__.co_firstlineno} in process_batch"
    for task, made in ((Column(), "column 'v'"), (OfBatch(), place)):
        error = problem(
            lambda task=task: run_local(task, messages, schema=pa.schema([("k", pa.string()), ("v", pa.uint64())]),
                                        on_bad_row="fail"),
            TaskFailedError,
        )  # fmt: skip
        assert (
            f"(value does not fit, {made}: Sum: value={2**63} does not fit int64, which takes integers of 64 bits)"
            in error
        )


class OfColumn(Column):
    value = None

    def process_message(self, state: Any, message: Message) -> None:
        pass


def test_a_run_of_an_application_warns_of_the_task_that_makes_no_update(caplog: pytest.LogCaptureFixture) -> None:
    app = Application("app", "memory://none", checkpoint_interval="1 minute")
    app.add(Column(), FileSource("a", timestamp="ts"))
    app.add(OfColumn(), Changes("Column", every="1 minute"))
    run_local(app, {"Column": MESSAGES})
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == "task=OfColumn: 2 messages read, and none of them made an update."


class Rule(OrderedTask):
    """It does with a message what a test says."""

    key, state, emits = "k", pa.int64(), pa.schema([("v", pa.int64())])

    def __init__(self, process: Callable[[Any, Any, Any], Any]) -> None:
        self._process = process

    def process(self, state: Any, message: Message, context: Context) -> Any:
        return self._process(state, message, context)


NO_EFFECT = ", and process() has returned no state and emitted no row. Let it return the state that is to be kept."


@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize(
    ("process", "warns"),
    [
        (lambda state, message, context: None, True),
        (lambda state, message, context: state, True),
        (lambda state, message, context: context.set_timer(timedelta(1)), True),
        (lambda state, message, context: context.emit(v=1), False),
        (lambda state, message, context: context.emit(v=1) if message["k"] == "b" else None, False),
        (lambda state, message, context: 1 if message["k"] == "b" else None, False),
        # Pairs of messages that begin and end something leave nothing at a clock.
        (lambda state, message, context: None if state else 1, False),
    ],
    ids=["nothing", "the state", "a timer", "rows", "a row", "a state", "pairs"],
)
def test_a_run_warns_of_an_ordered_task_whose_messages_had_no_effect(
    process: Callable[[Any, Any, Any], Any], warns: bool, batch_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    pairs = [Message(at, {"k": key}) for at, key in enumerate("aabb")]
    with caplog.at_level(logging.WARNING, "persistent_state"):
        run_local(Rule(process), pairs, batch_size=batch_size)
    assert caplog.messages == ["task=Rule: 4 messages read" + NO_EFFECT] * warns


def test_a_run_says_of_bad_rows_that_they_are_bad_and_not_that_they_had_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def warnings(process: Callable[[Any, Any, Any], Any]) -> list[str]:
        caplog.clear()
        run_local(Rule(process), MESSAGES)
        return [message.partition(":")[2][:24] for message in caplog.messages]

    assert warnings(lambda state, message, context: "text") == [" 2 rows did not count: 2"]
    text_of_a = lambda state, message, context: "text" if message["k"] == "a" else None  # noqa: E731
    assert warnings(text_of_a) == [" 1 row did not count: 1 ", " 2 messages read, and pr"]


def test_a_timer_with_a_name_that_is_to_be_forgotten_without_it_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class Forgets(Rule):
        def on_timer(self, state: Any, timer: Any, context: Any) -> Any:
            return state

    def process(state: Any, message: Message, context: Context) -> Any:
        context.set_timer(timedelta(microseconds=10), message["name"])
        context.delete_timer(message.timestamp + 11)
        context.delete_timer(message.timestamp + 10)
        return 1

    run_local(Forgets(process), [Message(at, {"k": "a", "name": ""}) for at in range(3)])
    assert caplog.messages == []
    run_local(Forgets(process), [Message(at, {"k": "a", "name": "bell"}) for at in range(3)])
    assert caplog.messages == [
        "task=Forgets: delete_timer() of a time forgot nothing, as the timer of this time has name='bell'; give the name, too."
    ]


@pytest.mark.parametrize(
    ("timer", "ttl", "said"),
    [
        (lambda moment: moment + 3600, None, "less than a second after the moment in hand. A number is microseconds"),
        (lambda moment: moment, None, ""),
        (lambda moment: moment + 1_000_000, None, ""),
        (lambda moment: timedelta(milliseconds=5), None, ""),
        (lambda moment: timedelta(hours=1, microseconds=1), "1 hour", "later than the ttl after its message"),
        (lambda moment: timedelta(hours=1), "1 hour", ""),
    ],
)
@pytest.mark.parametrize("act", ["set", "replace"])
def test_a_timer_that_was_hardly_meant_so_has_a_warning_once(
    timer: Callable[[int], Any], ttl: str | None, said: str, act: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Timers(Rule):
        def on_timer(self, state: Any, timer: Any, context: Any) -> Any:
            # The last of a chain is beyond the ttl, and meant so.
            context.set_timer(timedelta(hours=2))
            return state

    def process(state: Any, message: Message, context: Context) -> Any:
        if act == "set":
            context.set_timer(timer(message.timestamp))
        else:
            context.replace_timer("", timer(message.timestamp))
        return 1

    _warn_of_unit.cache_clear()
    _warn_of_ttl.cache_clear()
    rule = Timers(process)
    rule.ttl = ttl
    run_local(rule, [Message(at, {"k": "a"}) for at in range(3)])
    warned = [text for text in caplog.messages if said in text]
    assert (len(caplog.messages), len(warned)) == ((1, 1) if said else (0, 0))


# Messages without a key


class Ordered(Rule):
    def __init__(self) -> None:
        super().__init__(lambda state, message, context: (state or 0) + message["v"])


@pytest.mark.parametrize("task", [Column, Ordered])
@pytest.mark.parametrize("schema", [None, "k string, v long"])
def test_a_run_warns_of_messages_without_a_key_column(
    task: Callable[[], Any], schema: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings(*rows: dict[str, Any]) -> list[str]:
        caplog.clear()
        ran = run_local(task(), [Message(at, row) for at, row in enumerate(rows, 1)], schema=schema)
        assert ran.state == {row.get("k"): row["v"] for row in rows}
        return caplog.messages

    given = {"k": "a", "v": 1}
    assert warnings(given, {"k": None, "v": 2}) == []
    name = task().task_name
    assert warnings(given, {"K": "b", "v": 2}) == [
        f"task={name}: 1 of 2 messages has no key column 'k' and counts under None: message 1 has K, v. Give each message the "
        "column, if only with None."
    ]


def test_a_run_of_an_application_warns_of_messages_without_the_key_column_of_an_input(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def file(name: str) -> FileSource:
        return FileSource(name, timestamp="ts", schema="ts timestamp, k string, v long")

    app = Application("app", "memory://none", checkpoint_interval="1 minute")
    app.add(Column(), {"x": file("x"), "y": file("y")}).add(OfColumn(), Changes("Column", every="1 minute"))
    stamp = datetime(2026, 1, 1)
    rows: list[dict[str, Any]] = [{"k": "a", "v": 1}, {"v": 2}, {"v": 3}]
    x, y = ([Message(stamp, {"ts": stamp, **row}) for row in some] for some in (rows[:1], rows))
    run_local(app, {"Column": {"x": x, "y": y}})
    assert [message for message in caplog.messages if "key column" in message] == [
        "input 'y' of task=Column: 2 of 3 messages have no key column 'k' and count under None: message 1 has ts, v. Give each "
        "message the column, if only with None."
    ]


@pytest.mark.parametrize("schema", [None, "k string, v long"])
def test_a_run_warns_of_messages_without_the_value_column(schema: str | None, caplog: pytest.LogCaptureFixture) -> None:
    def warnings(*rows: dict[str, Any]) -> list[str]:
        caplog.clear()
        assert run_local(Column(), [Message(at, row) for at, row in enumerate(rows, 1)], schema=schema).state == {
            "a": 1
        }
        return caplog.messages

    given = {"k": "a", "v": 1}
    assert warnings(given, {"k": "b", "v": None}) == []
    end = "Give each message the column, if only with None."
    assert warnings(given, {"k": "b"}) == [
        f"task=Column: 1 of 2 messages has no value column 'v' and makes no update: message 1 has k. {end}"
    ]
    assert warnings({"k": "b"}, given, {"k": "c"}) == [
        f"task=Column: 2 of 3 messages have no value column 'v' and make no update: message 0 has k. {end}"
    ]


class Cart(OrderedTask):
    """A cart whose state is what a test says."""

    key = "k"
    state = pa.struct([("items", pa.int64()), ("total", pa.int64())])

    def __init__(self, after: Callable[[Any], Any]) -> None:
        self.after = after

    def process(self, state: Any, message: Message, context: Context) -> Any:
        return self.after(state)


def test_a_field_that_a_state_leaves_out_is_null_and_one_that_it_has_not_is_refused_by_name() -> None:
    rows = [Message(at, {"k": "a"}) for at in (1, 2)]
    left_out = Cart(lambda state: {"items": 1} if state else {"items": 1, "total": 5})
    assert run_local(left_out, rows).state == {"a": {"items": 1, "total": None}}
    kept = Cart(lambda state: {**(state or {"total": 5}), "items": 1})
    assert run_local(kept, rows).state == {"a": {"items": 1, "total": 5}}
    misspelt = Cart(lambda state: {"items": 1, "totl": 5})
    assert run_local(misspelt, rows).state == {}
    assert "'totl'" in problem(lambda: run_local(misspelt, rows, on_bad_row="fail"), TaskFailedError)


def test_a_run_has_the_columns_of_all_messages_whichever_comes_first() -> None:
    rows = [{"k": "a"}, {"k": "a", "n": 2}, {"n": 3, "k": "a", "more": "x"}]
    process = lambda state, message: state.update(1, (message["n"] or 0) + len(message["more"] or ""))  # noqa: E731
    assert run_local(Task(process), [Message(1, row) for row in rows]).state == {"a": 6}


WRITE_IT = " A message has the columns that you write: if this is the column of the source's timestamps, write it, too."


@pytest.mark.parametrize("column", ["ts", "V"])
def test_a_task_alone_that_looks_at_a_column_which_messages_lack_is_told_whose_columns_it_has(column: str) -> None:
    def run(process: Callable[[Any, Any], Any]) -> str:
        return problem(lambda: run_local(Task(process), [Message(1, {"k": "a", "v": 1})]), TaskFailedError)

    told = run(lambda state, message: state.update(1, message[column]))
    assert f"the message has no column {column!r}, but k, v" in told
    assert told.endswith(WRITE_IT)
    assert "A message has" not in run(lambda state, message: {}["v"])


def test_a_column_that_is_nearly_one_of_the_message_is_not_taken_for_that_of_timestamps() -> None:
    misspelt = Task(lambda state, message: state.update(1, message["amuont"]))
    sentence = problem(lambda: run_local(misspelt, [Message(1, {"k": "a", "amount": 1})]), TaskFailedError)
    assert "the message has no column 'amuont', but k, amount" in sentence
    assert "A message has" not in sentence


def test_an_application_whose_source_tells_no_schema_is_told_to_write_the_column_of_timestamps() -> None:
    task = Task(lambda state, message: state.update(message.timestamp, message["ts"].hour))
    message = Message(datetime(2026, 1, 1, 3), {"k": "a"})

    def run(schema: str | None) -> Any:
        app = Application("app", "memory://none").add(task, FileSource("f", timestamp="ts", schema=schema))
        return run_local(app, {"Task": [message]})["Task"].state

    assert problem(lambda: run(None), TaskFailedError).endswith(WRITE_IT)
    assert run("ts timestamp, k string") == {"a": 3}


def test_a_task_of_batches_alone_that_looks_at_a_column_which_messages_lack_is_told_so() -> None:
    class Hours(PersistentTask):
        key = "k"

        def persistent_state(self) -> NonWindowState[int]:
            return NonWindowState(Sum())

        def process_batch(self, batch: pa.RecordBatch) -> Any:
            return batch.column("ts")

    told = problem(lambda: run_local(Hours(), [Message(1, {"k": "a"})]), TaskFailedError)
    assert told.endswith(WRITE_IT)


# Updates that are changed later

values = st.recursive(
    st.integers() | st.text() | st.sets(st.integers()) | st.just(None),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@given(values)
def test_a_copy_of_a_value_is_the_value_and_shares_nothing_that_can_change(value: Any) -> None:
    copied, before = _copied(value), repr(value)
    assert copied == value
    assert repr(copied) == before or isinstance(value, (set, list, dict, tuple))

    def empty(value: Any) -> None:
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            empty(inner)
        if isinstance(value, (list, dict, set)):
            value.clear()

    empty(copied)
    assert repr(value) == before


@pytest.mark.parametrize("kind", [Task, Reading])
@pytest.mark.parametrize(
    ("monoid", "held", "grow"),
    [
        (List(pa.int64()), [], lambda held: held.append(1)),
        (Map(pa.string(), List(pa.int64())), {"a": []}, lambda held: held["a"].append(1)),
        (Struct(all=List(pa.int64())), {"all": []}, lambda held: held["all"].append(1)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_an_update_is_what_was_given_whatever_the_task_does_with_it_later(
    kind: type[Task], monoid: Any, held: Any, grow: Callable[[Any], None]
) -> None:
    def process(state: Any, message: Message) -> None:
        own = {name: [*some] for name, some in held.items()} if isinstance(held, dict) else [*held]
        grow(own)
        state.update(message.timestamp, own)
        (own["a"] if "a" in own else own["all"] if isinstance(own, dict) else own).clear()

    expected = [1] if isinstance(held, list) else {name: [1] for name in held}
    assert run_local(kind(process, monoid), MESSAGES).state == {"a": expected, "b": expected}


# Monoids


class Adding(Monoid[Any]):
    zero: Any = 0

    def plus(self, a: Any, b: Any) -> Any:
        return a + b


class OfText(Adding):
    type = "int64"


class Forgetful(Adding):
    type = pa.int64()

    def plus(self, a: Any, b: Any) -> Any:
        a + b


class ForgetfulOfNone(Forgetful):
    zero = None


class Untyped(Semigroup[Any]):
    def plus(self, a: Any, b: Any) -> Any:
        return a


@pytest.mark.parametrize(
    ("monoid", "said"),
    [
        (Adding, "monoid=Adding has no type; give it the Arrow type of its values, such as type = pa.int64()."),
        (OfText, "monoid=OfText has type='int64', which is a text; give an Arrow type, such as type = pa.int64()."),
        (Forgetful, f"monoid=Forgetful: plus at {__file__}:{Forgetful.plus.__code__.co_firstlineno} in plus returns None, as "
                    "of its zero and its zero; return the sum."),
    ],
)  # fmt: skip
def test_a_monoid_without_a_type_or_a_sum_is_refused(monoid: type[Adding], said: str) -> None:
    assert problem(lambda: NonWindowState(monoid())) == said
    assert problem(lambda: run_local(Task(no_update, monoid()), MESSAGES)) == said
    assert problem(lambda: NonWindowState(Aggregator(int, monoid(), int))) == said


def test_none_may_be_a_sum_where_it_is_the_zero() -> None:
    for monoid in (Min(), Max(), Last(pa.int64()), ForgetfulOfNone()):
        NonWindowState(monoid)


@pytest.mark.parametrize(
    "use", [lambda: Map(pa.string(), Adding()), lambda: Optional(Untyped()), lambda: Adding().sum([1])]
)
def test_a_monoid_without_a_type_is_a_sentence_wherever_it_is_used(use: Callable[[], Any]) -> None:
    with pytest.raises(MonoidError, match=r"(Adding|Untyped) has no type\. Give it the Arrow type of its values"):
        use()


def test_a_type_without_its_brackets_is_refused_where_it_is_written() -> None:
    with pytest.raises(MonoidError, match=r"^Unbracketed\.type is a function; call it, as in type = pa\.int64\(\)\.$"):

        class Unbracketed(Adding):
            type = pa.int64


def test_a_type_that_is_a_text_is_a_sentence_where_values_become_a_column() -> None:
    with pytest.raises(
        MonoidError, match=r"^OfText: type='int64' is a text\. Use an Arrow type, such as pa\.int64\(\)"
    ):
        OfText().sum([1])
    assert Set(pa.string()).sum([frozenset("a")]) == frozenset("a")


# Windows


def test_windows_with_gaps_need_a_word_and_are_the_same_in_the_store() -> None:
    said = problem(lambda: SlidingWindow("1 minute", "5 minutes"))
    assert said.startswith("SlidingWindow(size='1 minute', slide='5 minutes') has gaps between its windows")
    assert said.endswith("or gaps=True if you mean that.")
    sampling = SlidingWindow("1 minute", "5 minutes", gaps=True)
    assert repr(sampling) == "SlidingWindow('1 minute', '5 minutes', gaps=True)"
    assert sampling.identity() == {"size": 60_000_000, "step": 300_000_000}
    assert from_identity({"window": sampling.identity()}) == sampling
    # The word is no part of windows that have no gaps.
    assert SlidingWindow("5 minutes", "1 minute", gaps=True) == SlidingWindow("5 minutes", "1 minute")
    assert repr(SlidingWindow("5 minutes", "1 minute", gaps=True)) == "SlidingWindow('5 minutes', '1 minute')"
    assert WindowState(Sum(), sampling).identity()["window"] == {"size": 60_000_000, "step": 300_000_000}


# Sources, messages, stores and clocks


def test_a_transform_that_returns_no_batch_is_a_sentence(tmp_path: Path) -> None:
    def to_pandas(rows: Any) -> Any:
        return rows.to_pandas()

    def to_list(rows: Any) -> Any:
        return rows.to_pylist() if rows.num_rows else rows

    pq.write_table(pa.table({"ts": [1], "k": ["a"]}), tmp_path / "0.parquet")
    source = FileSource(tmp_path, timestamp="ts", transform=to_pandas)
    assert problem(lambda: source.schema) == (
        f"transform of {source!r} returned a DataFrame{at_definition(to_pandas)} and not a pyarrow.RecordBatch as "
        "pa.RecordBatch.from_pandas(frame, schema=...) makes, for a batch without rows, which it is given at "
        "the start to learn its columns."
    )
    late = FileSource(tmp_path, timestamp="ts", transform=to_list)
    late.open([], {})
    reach = late.reach({}, everything=True)
    (split,) = late.splits({}, reach.ends, 1)
    assert problem(lambda: [*late.read(split)], TaskFailedError) == (
        f"transform of {late!r} returned a list{at_definition(to_list)} and not a pyarrow.RecordBatch, for rows of "
        "file='0.parquet'."
    )


def test_half_a_character_in_a_message_is_a_sentence() -> None:
    assert problem(lambda: run_local(Column(), [Message(1, {"k": "\ud83d", "v": 1})])) == (
        "messages=1 have '\\ud83d', which is not Unicode text; correct it, or leave it out."
    )


def test_a_key_of_another_type_is_named() -> None:
    state = open_store(STORE).application("app").task("Notes").at(160)
    said = "key of task=Notes: {} of column 'shop' is not string; give a value of shop (string)."
    assert problem(lambda: state.get(5)) == said.format(5)
    assert problem(lambda: state.get_many(["Oslo", 1.5, "Bergen"])) == said.format(1.5)


def test_a_clock_in_another_unit_names_the_unit_and_the_kept_clocks() -> None:
    world, begin = TwoTasks(), 1_767_225_600
    for at in (5, 15, 25):
        for task in "AB":
            world.read(task, {"x": begin + at}, "x")
    task = OpenApplication(world.log.files, "app").task("A")
    said = (
        "clock={} of task=A is not retained, and clocks are microseconds; in {} it would be 2026-01-01T00:00:10Z: read "
        "clock=2026-01-01T00:00:00Z (1767225600000000) to clock=2026-01-01T00:00:20Z (1767225620000000)."
    )
    assert problem(lambda: task.at(begin + 10)) == said.format(begin + 10, "seconds")
    assert problem(lambda: task.at((begin + 10) * 1000)) == said.format((begin + 10) * 1000, "milliseconds")
    assert problem(lambda: task.at((begin + 1000) * 1_000_000)).startswith(
        "clock=2026-01-01T00:16:40Z (1767226600000000) of"
    )


@pytest.mark.parametrize("path", ["$NOWHERE/apps", "apps/${NOWHERE}", "$NOWHERE", "/$NOWHERE/apps"])
def test_a_variable_in_a_path_is_refused_unless_a_folder_is_called_so(path: str, tmp_path: Path) -> None:
    variable = "${NOWHERE}" if "{" in path else "$NOWHERE"
    ways = "and variables are not expanded; give os.path.expandvars({}), or make a folder of this name first."
    assert problem(lambda: open_files(path)) == f"url=... has {variable}, {ways.format('url')}"
    assert problem(lambda: FileSource(path, timestamp="ts")) == f"path=... has {variable}, {ways.format('path')}"
    own = tmp_path / path.lstrip("/")
    own.mkdir(parents=True)
    assert open_files(str(own)).url == str(own)
    open_files(str(tmp_path / "costs-$5"))
    open_files("memory://$NOWHERE/apps")


def test_a_server_of_a_folder_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing")
    assert [main([command, missing]) for command in ("serve", "verify")] == [2, 2]
    said = f"there is no application in store={missing}; look at its address."
    assert [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines() if line] == [said, said]


class InOrder(OrderedTask):
    key = "k"
    state = pa.struct({"messages": pa.int64(), "more": pa.struct({"n": pa.int64()})})
    emits = pa.schema([("n", pa.int64())])

    def __init__(self, act: Callable[[Context], Any]) -> None:
        self.act = act

    def process(self, state: Any, message: Message, context: Context) -> Any:
        return self.act(context)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda context: context.emit(n=1, timestamp=3), "the row gets 'timestamp' by itself; leave it out."),
        (lambda context: context.delete_timer("silent"), "was given a name for a time; write name='silent'."),
        (lambda context: {"message": 1}, "unknown field 'message': value={'message': 1} does not fit struct<messages: int64, "),
        (lambda context: {"more": {"m": 1}}, "field 'more': unknown field 'm': value={'m': 1} does not fit struct<n: int64>"),
    ],
)  # fmt: skip
def test_what_an_ordered_task_does_wrong_is_named(act: Callable[[Context], Any], said: str) -> None:
    assert said in problem(lambda: run_local(InOrder(act), MESSAGES, on_bad_row="fail"), TaskFailedError)


def test_what_does_not_fit_an_ordered_task_has_a_way_to_be_named(caplog: pytest.LogCaptureFixture) -> None:
    run_local(InOrder(lambda context: {"message": 1}), MESSAGES)
    assert "on_bad_row='fail' says the first that does not" in caplog.text


@pytest.mark.parametrize(
    ("rows", "schema", "said"),
    [
        ([{"k": b"x", "v": 1}, {"k": b"y", "v": 1}, {"k": 5}], None, "message 2 has k=5: "),
        ([{"k": "a", "n": {"a": 1}}, {"k": "b", "n": {"a": "x"}}], None, "message 1 has n={'a': 'x'}: "),
        ([{"k": "a", "v": 1}, {"k": "b", "v": "x"}], "k string, v long", "message 1 has v='x': "),
        ([{"k": "a"}, {"k": "b", "v": Decimal("1.5")}], "k string, v decimal(5, 0)", "message 1 has v=Decimal('1.5'): "),
    ],
)  # fmt: skip
def test_the_message_whose_value_does_not_fit_its_column_is_named(
    rows: list[Any], schema: str | None, said: str
) -> None:
    messages = [Message(1, row) for row in rows]
    assert said in problem(lambda: run_local(Column(), messages, schema=schema))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (None, "key type=null cannot be a key: no value tells its type; give schema=, which says it."),
        (pa.schema([("k", pa.uuid()), ("v", pa.int64())]),
         "key type=extension<arrow.uuid> cannot be a key; give schema=, and say binary for it there."),
    ],
)  # fmt: skip
def test_a_key_whose_type_the_schema_must_say_is_refused_with_what_to_say(schema: Any, said: str) -> None:
    assert problem(lambda: run_local(Column(), [Message(1, {"k": None, "v": 1})], schema=schema)).endswith(said)


def test_a_unit_of_timestamps_that_is_none_is_refused_where_it_is_written() -> None:
    said = "timestamp_unit='sec'; say one of 's', 'ms', 'us', 'ns'."
    assert problem(lambda: FileSource("a", timestamp="ts", timestamp_unit="sec")) == said
    assert problem(lambda: KafkaSource("t", "a:1", timestamp_unit="sec")) == said
    assert problem(lambda: DataFrameSource(lambda spark, clock: None, "ts", timestamp_unit="sec")) == said  # type: ignore[arg-type, return-value]
    takes = "takes (spark): too many positional arguments; give a function of (spark, clock)."
    assert takes in problem(lambda: DataFrameSource(lambda spark: None, "ts"))  # type: ignore[arg-type, misc]


@pytest.mark.parametrize("type", [pa.map_(pa.string(), pa.string()), pa.list_(pa.map_(pa.string(), pa.int64()))])
def test_a_map_of_json_is_refused_with_what_is_read(type: pa.DataType) -> None:
    said = f"column 'm' is {type}. A map can't be read from JSON: name the members in a struct."
    assert problem(lambda: Json(pa.schema([("m", type)])).schema) == said
