"""A wrong set-up is refused with one sentence that names the value and says what to do."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial, wraps
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import persistent_state
from monoids import List, Map, Max, Monoid, Sum
from persistent_state import (
    Application,
    Changes,
    ClosedWindows,
    DamagedError,
    DataFrameSource,
    Emitted,
    FileSource,
    Input,
    InvalidInputError,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentState,
    PersistentTask,
    RateSource,
    RunningValues,
    StateError,
    errors,
    open_store,
    run_local,
)
from persistent_state.batch.plan import Plan
from persistent_state.engine import run
from persistent_state.event_time.clocks import Settings
from persistent_state.event_time.durations import duration
from persistent_state.formatting import full_clock
from persistent_state.protocol.commits import close
from persistent_state.protocol.global_clock import Keeping
from persistent_state.reading import read_state
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log
from tests import core

SCHEMA = pa.schema(
    [
        ("ts", pa.timestamp("us")),
        ("word", pa.string()),
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("value", pa.int64()),
    ]
)

ROWS = FileSource("rows/", timestamp="ts", schema=SCHEMA)


class Task(PersistentTask):
    """A task that is said to be whatever a test wants wrong."""

    def __init__(
        self,
        *,
        key: Any = "word",
        value: str | None = "n",
        monoid: Any = None,
        name: str = "totals",
    ) -> None:
        self.key = key
        self.value = value
        self.name = name
        self.monoid: Monoid[Any] = Sum() if monoid is None else monoid

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)


class Living(Task):
    """A task whose state lives for an hour."""

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid, ttl="1 hour")


class ByMessage(Task):
    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, 1)


class ByBatch(Task):
    def process_batch(self, batch: pa.RecordBatch) -> Any:
        return batch.column("n")


class ByMessageAndBatch(ByMessage, ByBatch):
    pass


class ReadingColumn(Task):
    reads_state = True


class Visits(OrderedTask):
    """An ordered task that is said to be whatever a test wants wrong."""

    key = "word"
    state = pa.int64()
    emits = pa.schema([("said", pa.string())])

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def process(self, state: Any, message: Any, context: Any) -> Any:
        return (state or 0) + 1


class Idle(OrderedTask):
    state = pa.int64()


class Yielding(Visits):
    def process(self, state: Any, message: Any, context: Any) -> Any:
        yield 1


class Awaiting(Visits):
    async def process(self, state: Any, message: Any, context: Any) -> Any:
        return 1


class AwaitingAndYielding(Visits):
    async def process(self, state: Any, message: Any, context: Any) -> Any:  # type: ignore[override]
        yield 1


class Short(Visits):
    def process(self, state: Any, message: Any) -> Any:  # type: ignore[override]
        return 1


class LongTimer(Visits):
    def on_timer(self, state: Any, timer: Any, context: Any, clock: int) -> Any:  # type: ignore[override]
        return 1


def given_more(function: Any) -> Any:
    """Return a function that is called with one argument more than it is given."""

    @wraps(function)
    def more(self: Any, *given: Any) -> Any:
        return function(self, *given, 1)

    return more


class Decorated(Visits):
    @given_more
    def process(self, state: Any, message: Any, context: Any, step: int) -> Any:
        return (state or 0) + step

    on_timer = staticmethod(lambda *given: given[0])  # type: ignore[assignment]


def line_of(function: Any) -> int:
    return int(function.__code__.co_firstlineno)


class ByColumn(Visits):
    def process_column(self, rows: Any) -> Any:
        return rows["n"]


class Stateless(PersistentTask):
    value = "n"


class NoState(Stateless):
    def persistent_state(self) -> Any:
        return Sum()


def refused(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        call()
    assert str(caught.value) == sentence


def check(task: PersistentTask, **options: Any) -> None:
    core.check(core.plan_of(task, SCHEMA, **options))


class TestTasks:
    def test_what_is_right_is_not_refused(self) -> None:
        for task in (Task(), Task(key=None), Task(key=("word", "n")), ByMessage(value=None), ByBatch(value=None)):
            check(task)
        check(Task(monoid=Max(pa.float64()), value="f"), channel="word")
        for type in (pa.int16(), pa.uint64(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
            core.check(core.plan_of(Task(), SCHEMA.append(pa.field("device", type)), channel="device"))
        for type in (pa.timestamp("ns", "Europe/Paris"), pa.timestamp("s"), pa.int64(), pa.date32()):
            core.check(core.plan_of(Task(), SCHEMA.set(0, pa.field("ts", type))))

    @pytest.mark.parametrize(
        ("task", "options", "sentence"),
        [
            (Task(key="wrod"), {}, "the key column 'wrod' is not in the source; it has "),
            (Task(key=("word", "wrod")), {}, "the key column 'wrod' is not in the source; it has "),
            (Task(value="m"), {}, "the value column 'm' is not in the source; it has "),
            (Task(), {"timestamp": "when"}, "the timestamp column 'when' is not in the source; it has "),
            (Task(), {"channel": "device"}, "the channel column 'device' is not in the source; it has "),
        ],
    )
    def test_an_unknown_column(self, task: PersistentTask, options: dict[str, Any], sentence: str) -> None:
        refused(lambda: check(task, **options), f"task=totals: {sentence}ts, word, n, f, tags, value.")

    @pytest.mark.parametrize(("column", "type"), [("word", "string"), ("f", "double"), ("tags", "list<item: string>")])
    def test_a_timestamp_that_is_none(self, column: str, type: str) -> None:
        refused(
            lambda: check(Task(), timestamp=column),
            f"task=totals: the timestamp column {column!r} is {type}; make it a timestamp, or int64 microseconds UTC.",
        )

    @pytest.mark.parametrize(
        "type", [pa.binary(), pa.struct([("x", pa.int64())]), pa.float64(), pa.dictionary(pa.int8(), pa.binary())]
    )
    def test_a_channel_that_cannot_be_named(self, type: pa.DataType) -> None:
        plan = core.plan_of(Task(), SCHEMA.append(pa.field("device", type)), channel="device")
        refused(
            partial(core.check, plan), f"task=totals: the channel column 'device' is {type}; make it text or integers."
        )

    @pytest.mark.parametrize(
        ("monoid", "column", "holds", "found"),
        [
            (Sum(), "word", "Sum holds int64", "string"),
            (Sum(), "f", "Sum holds int64", "double"),
            (Max(pa.timestamp("us")), "n", "Max holds timestamp[us]", "int64"),
            (List(pa.int64()), "n", "List holds list<item: int64>", "int64"),
            (Map(pa.string(), Sum()), "tags", "Map holds map<string, int64>", "list<item: string>"),
        ],
    )
    def test_a_monoid_that_does_not_fit_its_column(
        self, monoid: Monoid[Any], column: str, holds: str, found: str
    ) -> None:
        refused(
            lambda: check(Task(monoid=monoid, value=column)),
            f"task=totals: {holds} and can't take column {column!r} of {found}; cast the column or choose another monoid.",
        )

    @pytest.mark.parametrize(
        ("task", "ways"), [(Task(value=None), 0), (ByMessage(), 2), (ByBatch(), 2), (ByMessageAndBatch(), 3)]
    )
    def test_an_update_that_is_said_in_no_way_or_in_several(self, task: PersistentTask, ways: int) -> None:
        refused(
            lambda: check(task),
            f"task=totals says its update in {ways} ways; define exactly one of process_message, "
            "process_batch, process_column and value.",
        )

    def test_a_column_update_that_reads_the_state(self) -> None:
        refused(lambda: check(ReadingColumn()), "task=totals reads its state; say its update in process_message.")

    def test_a_task_without_a_state_and_a_state_without_a_monoid(self) -> None:
        refused(lambda: check(Stateless()), "task=Stateless keeps no state; define persistent_state().")
        refused(
            lambda: check(NoState()),
            "task=NoState: persistent_state() gives no state; return one, such as NonWindowState(Sum()).",
        )
        refused(
            lambda: check(Task(monoid=int)),
            "NonWindowState(<class 'int'>) has no monoid; give it an instance, such as monoids.Sum().",
        )

    @pytest.mark.parametrize("name", ["a/b", ".hidden", "two words", "a\n"])
    def test_a_name_that_cannot_name_a_folder(self, name: str) -> None:
        refused(
            lambda: check(Task(name=name)),
            f"task name={name!r} can't name a folder; use letters, digits, '_', '.' and '-'.",
        )
        refused(
            lambda: Application(name, "store"),
            f"application name={name!r} can't name a folder; use letters, digits, '_', '.', '-'.",
        )

    def test_a_key_that_cannot_be_one(self) -> None:
        refused(
            lambda: check(Task(key="tags")),
            "task=totals, column 'tags': key type=list<item: string> cannot be a key; cast the column to a bool, "
            "integer, float, string, binary, date, timestamp or decimal128.",
        )
        refused(
            lambda: check(Task(key="value")),
            "task=totals: the key column 'value' has the name of a column of the state; "
            "rename it in the source's transform.",
        )
        refused(
            lambda: check(Task(key=("word", "n", "word"))),
            "task=totals: the key names column 'word' twice; name it once.",
        )

    def test_what_to_do_with_bad_rows(self) -> None:
        refused(lambda: check(Task(), on_bad_row="skip"), "task=totals: on_bad_row='skip'; say 'keep' or 'fail'.")

    def test_a_local_run_refuses_the_same(self) -> None:
        messages = [Message(1, {"n": 1})]
        refused(
            lambda: run_local(Task(), messages),
            "task=totals: the key column 'word' is not in the source; it has n.",
        )
        task = Task(key=None)
        refused(
            lambda: run_local(task, messages, batch_size=0), "batch_size=0; a micro-batch holds at least one message."
        )
        refused(
            lambda: run_local(task, messages, checkpoint_interval="0 seconds"),
            "checkpoint_interval='0 seconds'; it must be longer than 0.",
        )


class TestApplications:
    @pytest.mark.parametrize(
        "text", ["10", "ten seconds", "1.5 hours", "-1 seconds", "3 fortnights", "", "10s", 10, None]
    )
    def test_a_duration_that_is_none(self, text: Any) -> None:
        names = ["checkpoint_interval", "allowed_delay", "max_ahead"]
        if text is not None:
            names += ["idle_after", "max_jump"]
        for name in names:
            refused(
                partial(Application, "app", "store", **{name: text}),
                f'{name}={text!r} is not a duration; give text such as "10 seconds", a whole number and one of microseconds, '
                "milliseconds, seconds, minutes, hours, days, or a datetime.timedelta.",
            )

    def test_a_duration_is_a_number_and_a_unit(self) -> None:
        said = ("1 microsecond", "10 seconds", " 2 hours ", "0 days", timedelta(hours=2), timedelta(microseconds=1))
        assert [duration("length", each) for each in said] == [1, 10_000_000, 7_200_000_000, 0, 7_200_000_000, 1]

    def test_a_duration_beyond_event_time(self) -> None:
        refused(
            lambda: Application("app", "store", allowed_delay="99999999 days"),
            "allowed_delay='99999999 days'; it must be at least 0 and at most 53375995 days.",
        )
        refused(
            lambda: Application("app", "store", allowed_delay=timedelta(seconds=-1)),
            f"allowed_delay={timedelta(seconds=-1)!r}; it must be at least 0 and at most 53375995 days.",
        )

    @pytest.mark.parametrize("name", ["checkpoint_interval", "idle_after", "max_jump"])
    def test_nothing_where_something_is_needed(self, name: str) -> None:
        refused(
            lambda: Application("app", "store", **{name: "0 seconds"}),  # type: ignore[arg-type]
            f"{name}='0 seconds'; it must be longer than 0.",
        )

    def test_numbers_below_one(self) -> None:
        for shards in (0, -1):
            refused(
                partial(Application, "app", "store", shards=shards), f"shards={shards}; there must be at least one."
            )
        refused(
            lambda: Application("app", "store", retained_checkpoints=0),
            "retained_checkpoints=0; keep at least one, a restart needs it.",
        )

    @pytest.mark.parametrize(
        ("rule", "told"),
        [
            (
                ("1 hour",),
                'retain has (\'1 hour\',); give pairs of durations (every, span), such as ("1 hour", "2 days").',
            ),
            ("1h", 'retain has \'1h\'; give pairs of durations (every, span), such as ("1 hour", "2 days").'),
            (("0 hours", "2 days"), "retain='0 hours'; it must be longer than 0."),
            (
                ("2 days", "1 hour"),
                "retain has ('2 days', '1 hour'), which keeps nothing: the second duration is to be at least the first.",
            ),
        ],
    )
    def test_rules_of_which_clocks_are_kept(self, rule: Any, told: str) -> None:
        refused(lambda: Application("app", "store", retain=[("1 hour", "2 days"), rule]), told)

    def test_two_tasks_of_one_name(self) -> None:
        source = RateSource(1)
        app = Application("app", "store").add(Task(), source)
        refused(
            lambda: app.add(ByMessage(value=None), source),
            "two tasks are named totals; give one a name of its own.",
        )

    def test_no_task_at_all(self) -> None:
        spark: Any = None
        refused(lambda: Application("app", "store").start(spark), "application app has no task; add one.")


class TestGraphs:
    """Tasks that feed tasks, and several inputs of one task."""

    def plans(self, *tasks: tuple[PersistentTask, Any], **options: Any) -> Any:
        app = Application("app", "store", checkpoint_interval="10 seconds", **options)
        for task, source in tasks:
            app.add(task, source)
        return core.compiled(app)

    def derived(self, monoid: Any) -> PersistentTask:
        return Task(monoid=monoid, name="derived", key=None, value="value")

    def refused(self, sentence: str, *tasks: tuple[PersistentTask, Any], **options: Any) -> None:
        refused(lambda: self.plans(*tasks, **options), sentence)

    def test_a_task_that_is_not_there(self) -> None:
        self.refused(
            "task=derived is fed by task=total, which is not added; the tasks are totals, derived.",
            (Task(), ROWS),
            (self.derived(Sum()), Changes("total")),
        )

    def test_a_circle(self) -> None:
        self.refused(
            "tasks feed each other in a circle: derived -> other -> derived; let one of them read a source.",
            (self.derived(Sum()), Changes("other")),
            (Task(name="other"), Changes("derived")),
        )

    @pytest.mark.parametrize(
        ("monoid", "lack"),
        [(Max(), "Max(int64) is no group"), (Sum(pa.float64()), "Sum(double) rounds")],
    )
    def test_what_can_not_be_taken_back(self, monoid: Any, lack: str) -> None:
        task = self.derived(monoid)
        self.refused(
            "task=derived is fed by the changes of task=totals: what it made of a row is taken back when the row changes, and "
            f"{lack}; use Sum, Count, ExactSum, or a Struct of these, or look at fixed times: "
            "Changes('totals', every=\"1 minute\").",
            (Task(), ROWS),
            (task, Changes("totals")),
        )

    def test_bounds_in_time(self) -> None:
        self.refused(
            "task=derived is fed by the changes of task=living, whose state is bounded in time; feed it by the windows that "
            "have closed, ClosedWindows('living'), keep that state without a bound, or look at fixed times: "
            "Changes('living', every=\"1 minute\").",
            (Living(name="living"), ROWS),
            (self.derived(Sum()), Changes("living")),
        )
        self.refused(
            "task=living is fed by the changes of task=totals: what it made of a row is taken back when the row changes. So it "
            "can't have windows, a ttl, a message_id or reads_state; leave these out, or look at fixed times: "
            "Changes('totals', every=\"1 minute\").",
            (Task(), ROWS),
            (Living(name="living", value="value"), Changes("totals")),
        )

    def test_windows_of_a_task_without_windows(self) -> None:
        self.refused(
            "task=derived is fed by the closed windows of task=totals, which keeps no windows; give it Changes('totals'), or "
            "let the task keep a WindowState.",
            (Task(), ROWS),
            (self.derived(Sum()), ClosedWindows("totals")),
        )

    def test_another_delivery(self) -> None:
        self.refused(
            "task=derived is fed by task=totals, and delivery='at-least-once' is said for task=derived; tasks that are "
            "connected are exactly-once: leave it out.",
            (Task(), ROWS),
            (self.derived(Sum()), Changes("totals")),
            delivery="at-least-once",
        )

    def test_times_that_are_no_checkpoints(self) -> None:
        self.refused(
            "task=derived is fed by Changes(task='totals', every='15 seconds'), and checkpoint_interval=10 seconds; make "
            "`every` a multiple of it.",
            (Task(), ROWS),
            (self.derived(Sum()), Changes("totals", every="15 seconds")),
        )

    def test_inputs(self) -> None:
        app = Application("app", "store")
        refused(lambda: app.add(Task(), {}), "task=totals has no input; give it a source.")
        refused(
            lambda: app.add(Task(), {"a b": ROWS}),
            "task=totals: input 'a b' can't be a name; use letters, digits and '_'.",
        )
        refused(
            lambda: app.add(Task(), {"": ROWS, "input": ROWS}),
            "task=totals: input 'input' can't be a name, as late rows call the input without a name so; use another one.",
        )
        stream: Any = None
        refused(
            lambda: app.add(Task(), {"a": ROWS, "b": DataFrameSource(stream, timestamp="ts")}),
            "task=totals: Spark plans the source of input 'b', so it can't be one of several; use a FileSource, a KafkaSource "
            "or one of your own.",
        )
        both = {"a": ROWS, "b": Input(ROWS, key=("word", "n"))}
        self.refused(
            "task=totals: an input has the key ('word', 'n'), and the task 'word'; name as many columns.",
            (Task(), both),
        )
        self.refused(
            "input='b': task=totals: the key has the types int64 here and string in the first input; cast the columns.",
            (Task(), {"a": ROWS, "b": Input(ROWS, key="n")}),
        )


TYPES = "use types such as int64, float64, string or timestamp of us, and lists, structs and maps of these."


class TestOrderedTasks:
    def plans(self, task: Any, source: Any = ROWS, **options: Any) -> Any:
        app = Application("app", "store", checkpoint_interval="10 seconds", **options).add(task, source)
        return core.compiled(app)

    def test_what_is_right_is_not_refused(self) -> None:
        self.plans(Visits())
        self.plans(Visits(emits=None, key=None, state=pa.map_(pa.string(), pa.list_(pa.decimal128(38, 2)))))
        self.plans(Visits(), delivery="exactly-once")
        self.plans(Decorated())
        renamed = FileSource("rows/", timestamp="ts", schema=pa.schema([("ts", pa.int64()), ("state", pa.string())]))
        self.plans(Visits(key="state"), renamed)

    @pytest.mark.parametrize(
        ("task", "sentence"),
        [
            (Idle(), "task=Idle does nothing with its messages; define process()."),
            (Visits(state=None), "task=Visits has state=None; say the Arrow type of a key's state."),
            (
                Yielding(),
                f"task=Yielding: process() at {__file__}:{line_of(Yielding.process)} in process yields; return the state, and "
                "emit rows by context.emit().",
            ),
            *(
                (
                    task,
                    f"task={type(task).__name__}: process() at {__file__}:{line_of(type(task).process)} in process is async, "
                    "and nothing awaits it; define it by def alone.",
                )
                for task in (Awaiting(), AwaitingAndYielding())
            ),
            (
                Short(),
                f"task=Short: process() at {__file__}:{line_of(Short.process)} in process can't be called with a state, a "
                "message and a context: too many positional arguments; define process(self, state, message, context).",
            ),
            (
                LongTimer(),
                f"task=LongTimer: on_timer() at {__file__}:{line_of(LongTimer.on_timer)} in on_timer can't be called with a "
                "state, a timer and a context: missing a required argument: 'clock'; define on_timer(self, state, timer, "
                "context).",
            ),
            (Visits(emits=[]), "task=Visits has emits=[]; give a pyarrow.schema, or None."),
            (
                Visits(emits=pa.schema([])),
                "task=Visits has emits=pa.schema([]), which has no column; name some, or say None.",
            ),
            (
                Visits(emits=pa.schema([("clock", pa.int64())])),
                "task=Visits: emits has a column 'clock', which the library adds to each row; give yours another name.",
            ),
            (
                Visits(emits=pa.schema([("n", pa.int64()), ("n", pa.int64())])),
                "task=Visits: emits has two columns 'n'; give one another name.",
            ),
            (
                Visits(ttl="soon"),
                "ttl='soon' is not a duration; give text such as \"10 seconds\", a whole number and one of microseconds, "
                "milliseconds, seconds, minutes, hours, days, or a datetime.timedelta.",
            ),
            (
                Visits(version=2),
                "task=Visits has version=2, and it can't be made again from the state of others; leave it out, and name the "
                "task in rebuild of start or run when its code changes.",
            ),
            *(
                (
                    task,
                    f"task={type(task).__name__} has {attribute}, which has no effect on an OrderedTask; define process(), "
                    "which gets whole messages and the state, or give it another name.",
                )
                for task, attribute in (
                    (Visits(value="n"), "value"),
                    (Visits(reads_state=True), "reads_state"),
                    (ByColumn(), "process_column"),
                )
            ),
        ],
    )
    def test_what_a_task_can_not_be(self, task: Any, sentence: str) -> None:
        refused(lambda: Application("app", "store").add(task, ROWS), sentence)

    @pytest.mark.parametrize(
        ("type", "what"),
        [
            (pa.int32(), "is int32, which can't be kept as it is; say int64."),
            (pa.float32(), "is float, which can't be kept as it is; say double."),
            (pa.large_string(), "is large_string, which can't be kept as it is; say string."),
            (pa.timestamp("ns"), "is timestamp[ns], which can't be kept as it is; say timestamp[us]."),
            (pa.decimal128(9, 2), "is decimal128(9, 2), which can't be kept as it is; say decimal128(38, 2)."),
            (
                pa.list_(pa.struct([pa.field("n", pa.int64(), nullable=False)])),
                "is list<item: struct<n: int64 not null>>, which can't be kept as it is; say list<item: struct<n: int64>>.",
            ),
            (pa.null(), f"is null, which can't be kept; {TYPES}"),
            (pa.struct([]), f"is struct<>, which can't be kept; {TYPES}"),
        ],
    )
    def test_types_that_can_not_be_kept(self, type: pa.DataType, what: str) -> None:
        app = Application("app", "store")
        refused(lambda: app.add(Visits(state=type), ROWS), f"task=Visits: state {what}")
        emits = pa.schema([("said", pa.string()), ("x", type)])
        refused(lambda: app.add(Visits(emits=emits), ROWS), f"task=Visits: column 'x' of emits {what}")

    def test_a_column_that_is_never_null(self) -> None:
        refused(
            lambda: self.plans(Visits(emits=pa.schema([pa.field("n", pa.int64(), nullable=False)]))),
            "task=Visits: column 'n' of emits is int64 not null, and any may be null; leave nullable=False out.",
        )

    def test_columns_of_messages_that_can_not_be_kept(self) -> None:
        gaps = pa.field("seen", pa.dense_union([pa.field("a", pa.int8())]))
        source = FileSource("rows/", timestamp="ts", schema=SCHEMA.append(gaps))
        what = f"is {gaps.type}, which can't be kept; cast it, or leave it out, in the source's transform."
        refused(lambda: self.plans(Visits(), source), f"task=Visits: column 'seen' of the source {what}")
        refused(
            lambda: self.plans(Visits(), {"a": ROWS, "b": source}), f"task=Visits: column 'seen' of input='b' {what}"
        )

    def test_another_delivery(self) -> None:
        sentence = (
            "task=Visits processes its messages in order, which is exactly-once, and delivery='at-least-once' is said for it; "
            "say delivery='exactly-once' in add()."
        )
        refused(lambda: self.plans(Visits(), delivery="at-least-once"), sentence)
        app = Application("app", "store", delivery="at-least-once")
        refused(lambda: app.add(Visits(), ROWS, delivery="at-least-once"), sentence)
        app.add(Visits(), ROWS, delivery="exactly-once")
        core.compiled(app)

    def test_values_so_far(self) -> None:
        def show(values: Any, batch: int) -> None:
            pass

        output = RunningValues(show)
        refused(
            lambda: Application("app", "store").add(Visits(), ROWS, sink=output),
            f"task=Visits: {output!r} asks for values so far, and an ordered task has none before the clock; give the "
            "function itself, or ValuesAtClock.",
        )

    def test_an_update_of_an_input(self) -> None:
        refused(
            lambda: self.plans(Visits(), {"a": Input(ROWS, value="n"), "b": ROWS}),
            "task=Visits: input='a' has value='n', and it gets whole messages; leave it out.",
        )

    def test_what_it_is_fed_by_and_what_it_feeds(self) -> None:
        def plans(*tasks: tuple[Any, Any]) -> Any:
            app = Application("app", "store", checkpoint_interval="10 seconds")
            for task, source in tasks:
                app.add(task, source)
            return core.compiled(app)

        refused(
            lambda: plans((Task(), ROWS), (Visits(), Changes("totals"))),
            "task=Visits is fed by the changes of task=totals, and an ordered task can't take back what it made of a row; look "
            "at fixed times: Changes('totals', every=\"1 minute\").",
        )
        refused(
            lambda: plans((Visits(), ROWS), (Task(key=None, value="value"), Changes("Visits"))),
            "task=totals is fed by Changes(task='Visits', every=None), and an ordered task feeds others by the rows that it "
            "emits; give it Emitted('Visits').",
        )
        refused(
            lambda: plans((Task(), ROWS), (Visits(), Emitted("totals"))),
            "task=Visits is fed by Emitted(by='totals'), and task=totals emits no rows; give it an OrderedTask, or "
            "Changes('totals').",
        )
        refused(
            lambda: plans((Visits(emits=None), ROWS), (Task(key=None, value=None), Emitted("Visits"))),
            "task=totals is fed by Emitted(by='Visits'), and task=Visits emits no rows; name their columns in its emits.",
        )
        refused(
            lambda: plans((Visits(), Emitted("Visitors"))),
            "task=Visits is fed by task=Visitors, which is not added; the tasks are Visits.",
        )
        for tasks, circle in (
            ([(Visits(), Emitted("Visits"))], "Visits -> Visits"),
            ([(Visits(name="a"), Emitted("b")), (Visits(name="b"), Emitted("a"))], "a -> b -> a"),
        ):
            sentence = f"tasks feed each other in a circle: {circle}; let one of them read a source."
            refused(lambda tasks=tasks: plans(*tasks), sentence)

    def test_two_of_one_name(self) -> None:
        app = Application("app", "store").add(Visits(), ROWS)
        refused(lambda: app.add(Visits(), ROWS), "two tasks are named Visits; give one a name of its own.")
        refused(
            lambda: app.add(Task(name="Visits.rows"), ROWS),
            "task=Visits.rows and task=Visits need the name Visits.rows in the store; give one another name.",
        )

    def test_a_part_of_it(self) -> None:
        app = Application("app", "store").add(Visits(), ROWS)
        for argument, part in (("reset", "Visits.messages"), ("rebuild", "Visits.rows")):
            refused(
                lambda argument=argument, part=part: app._with_parts(argument, ["Visits", part]),
                f"{argument}={part!r} is a part of task=Visits; name that.",
            )
        assert app._with_parts("reset", ["Visits", "other"]) == ["Visits.messages", "Visits", "Visits.rows", "other"]


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "local" else f"memory://{tmp_path}"


ROW = pa.schema([("ts", pa.int64()), ("word", pa.string()), ("n", pa.int64()), ("m", pa.float64())])


def rows(*stamps: int) -> pa.RecordBatch:
    count = len(stamps)
    columns = [pa.array(stamps, pa.int64()), pa.array(["a"] * count), pa.array([1] * count), pa.array([0.5] * count)]
    return pa.RecordBatch.from_arrays(columns, schema=ROW)


class Ran:
    """An application whose tasks have run to a clock."""

    def __init__(self, store: str, *tasks: PersistentTask) -> None:
        self.files = open_files(store)
        self.log = Log(self.files, "app")
        self.keeping = Keeping(clocks=2)
        self.plans = self.start(*tasks)

    def start(self, *tasks: PersistentTask, reset: tuple[str, ...] = ()) -> list[Plan]:
        plans = [core.plan_of(task, ROW, files=self.files) for task in tasks]
        for plan in plans:
            core.check(plan)
        core.start(self.log, plans, reset=reset)
        return plans

    def play(self, *stamps: int) -> None:
        for plan in self.plans:
            entry = core.play(self.log, plan, rows(*stamps), keeping=self.keeping)
        close(self.log, entry.epoch, now=0, keeping=self.keeping)


class TestStores:
    @pytest.mark.parametrize(
        ("task", "what", "was", "now"),
        [
            (
                Task(monoid=Max()),
                "monoid",
                "Sum(int64)",
                "Max(int64)",
            ),
            (
                Task(monoid=Sum(pa.float64()), value="m"),
                "monoid",
                "Sum(int64)",
                "Sum(double)",
            ),
            (Task(key=None), "key", "word: string", "none"),
            (
                Task(key="n"),
                "key",
                "word: string",
                "n: int64",
            ),
            (
                Task(key=("word", "n")),
                "key",
                "word: string",
                "word: string, n: int64",
            ),
        ],
    )
    def test_one_written_by_another_monoid_or_key(self, store: str, task: Task, what: str, was: str, now: str) -> None:
        ran = Ran(store, Task())
        ran.play(5, 25)
        before = ran.log.numbers()
        refused(
            lambda: ran.start(task),
            f"task=totals: the store was written with {what}={was}, the task has {now}. {core.ways('totals')}",
        )
        assert ran.log.numbers() == before
        ran.start(task, reset=("totals",))
        assert ran.log.numbers() == [*before, before[-1] + 1]

    def test_a_monoid_written_by_other_code_is_the_same_monoid(self, store: str) -> None:
        class Total(Sum):  # type: ignore[type-arg]
            name = "Sum"

        Ran(store, Task()).play(5, 25)
        Ran(store, ByMessage(value=None, monoid=Total()))

    def test_a_task_that_returns_after_the_clock_moved_on(self, store: str) -> None:
        ran = Ran(store, Task(), Task(name="other"))
        ran.play(5, 25)
        ran.plans = ran.start(Task(name="other"))
        ran.play(45, 55)
        ran.play(65)
        refused(
            lambda: ran.start(Task(), Task(name="other")),
            f"task=totals left at clock={full_clock(30)}, and the oldest that is retained is "
            f"{full_clock(60)}. {core.ways('totals')}",
        )
        # Gone, it stays readable; reset, it starts from zero at the clock.
        assert read_state(store, "app", Task()).to_pylist() == [{"word": "a", "value": 2}]
        ran.plans = ran.start(Task(), Task(name="other"), reset=("totals",))
        assert read_state(store, "app", Task()).num_rows == 0
        ran.play(85)
        assert read_state(store, "app", Task()).to_pylist() == [{"word": "a", "value": 1}]
        assert read_state(store, "app", Task(name="other")).to_pylist() == [{"word": "a", "value": 6}]

    def test_a_task_that_returns_while_its_clock_is_retained_catches_up(self, store: str) -> None:
        ran = Ran(store, Task(), Task(name="other"))
        ran.play(5, 25)
        (other,) = ran.start(Task(name="other"))
        core.play(ran.log, other, rows(55), keeping=ran.keeping)
        returned, other = ran.start(Task(), Task(name="other"))
        assert open_store(store).application("app").clocks() == [30, 50]
        # Until it is there, the others' clocks move and the global one waits; what it held when it left stays readable.
        entry = core.play(ran.log, other, rows(55, 75), keeping=ran.keeping)
        assert (entry.clock, entry.flow_of("other").progress.clock, entry.flow_of("totals").progress.clock) == (
            50,
            70,
            30,
        )
        entry = core.play(ran.log, returned, rows(45), keeping=ran.keeping)
        assert (entry.clock, entry.flow_of("totals").progress.clock) == (50, 40)
        assert read_state(store, "app", Task()).to_pylist() == [{"word": "a", "value": 2}]
        with pytest.raises(
            InvalidInputError, match=r"task=totals has reached clock=.*Z \(40\); read clock=.*Z \(50\) once"
        ):
            read_state(store, "app", Task(), clock=50)
        # A start in the middle of it takes up where it stands.
        returned, other = ran.start(Task(), Task(name="other"))
        entry = core.play(ran.log, returned, rows(45, 75), keeping=ran.keeping)
        assert (entry.clock, entry.flow_of("totals").progress.clock) == (50, 70)
        assert read_state(store, "app", Task(), clock=50).to_pylist() == [{"word": "a", "value": 3}]
        entry = core.play(ran.log, other, rows(55, 75), keeping=ran.keeping)
        assert entry.clock == 70
        assert read_state(store, "app", Task()).to_pylist() == [{"word": "a", "value": 3}]

    def test_a_task_that_returns_to_the_clock_it_left_at_goes_on(self, store: str) -> None:
        ran = Ran(store, Task(), Task(name="other"))
        ran.play(5, 25)
        ran.start(Task(name="other"))
        ran.plans = ran.start(Task(), Task(name="other"))
        ran.play(45)
        assert read_state(store, "app", Task()).to_pylist() == [{"word": "a", "value": 3}]

    def test_an_unknown_task_to_start_anew(self, store: str) -> None:
        refused(
            lambda: Ran(store, Task()).start(Task(), Task(name="other"), reset=("totale",)),
            "reset names task=totale, which is not added; the tasks are totals, other.",
        )

    def test_a_clock_that_is_not_retained(self, store: str) -> None:
        ran = Ran(store, Task())
        for stamp in (5, 25, 45):
            ran.play(stamp)
        assert open_store(store).application("app").clocks() == [40, 50]
        assert read_state(store, "app", Task(), clock=40).to_pylist() == [{"word": "a", "value": 2}]
        low, high = f"clock={full_clock(40)}", f"clock={full_clock(50)}"
        for clock, nearest in ((10, low), (45, f"{low} or {high}"), (60, high)):
            refused(
                partial(read_state, store, "app", Task(), clock=clock),
                f"clock={full_clock(clock)} of task=totals is not retained; read {nearest}. "
                "open_store(store).application(application).clocks() and `persistent-state show STORE APP` list all.",
            )

    def test_a_clock_before_a_task_was_there(self, store: str) -> None:
        Ran(store, Task()).play(5, 25)
        ran = Ran(store, Task(), Task(name="other"))
        ran.play(45)
        refused(
            lambda: read_state(store, "app", Task(name="other"), clock=10),
            f"clock={full_clock(10)} of task=other is not retained; read clock={full_clock(40)}. "
            "open_store(store).application(application).clocks() and `persistent-state show STORE APP` list all.",
        )
        assert read_state(store, "app", Task(name="other"), clock=40).num_rows == 0

    def test_a_clock_that_is_listed_and_is_from_before_a_task_began(self, store: str) -> None:
        ran = Ran(store, Task())
        ran.play(5)
        ran.play(25)
        ran.start(Task(), Task(name="other"))
        before, began = open_store(store).application("app").clocks()
        refused(
            lambda: read_state(store, "app", Task(name="other"), clock=before),
            f"task=other began, or was rebuilt or reset, after clock={full_clock(before)}; read "
            f"clock={full_clock(began)}.",
        )
        assert read_state(store, "app", Task(name="other"), clock=began).num_rows == 0

    def test_a_clock_from_before_a_task_was_reset(self, store: str) -> None:
        ran = Ran(store, Task())
        ran.play(5)
        ran.play(25)
        before, newest = open_store(store).application("app").clocks()
        states = {clock: read_state(store, "app", Task(), clock=clock).to_pylist() for clock in (before, newest)}
        ran.start(Task(), reset=("totals",))
        for clock, state in states.items():
            assert read_state(store, "app", Task(), clock=clock).to_pylist() == state != []
        assert read_state(store, "app", Task()).num_rows == 0

    def test_an_unknown_application_or_task(self, store: str) -> None:
        ran = Ran(store, Task(), Task(name="other"))
        ran.play(5)
        for read in (
            lambda: read_state(store, "apps", Task()),
            lambda: open_store(store).application("apps").late_rows("totals"),
            lambda: open_store(store).application("apps").clocks(),
        ):
            refused(read, f"there is no application apps in store={ran.files.url}; look at its name and address.")
        sentence = "application app has no task totale; it has other, totals."
        refused(lambda: read_state(store, "app", Task(name="totale")), sentence)
        refused(lambda: open_store(store).application("app").late_rows("totale"), sentence)

    def test_a_reader_with_another_monoid(self, store: str) -> None:
        Ran(store, Task()).play(5)
        refused(
            lambda: read_state(store, "app", Task(monoid=Max())),
            "task=totals: the store was written with monoid=Sum(int64), not Max(int64); "
            "open it with the task that wrote it.",
        )

    def test_a_reader_whose_files_are_gone(self, store: str) -> None:
        ran = Ran(store, Task())
        ran.play(5)
        delete_runs(ran.files)
        with pytest.raises(DamagedError, match=r"^a file that the newest log entry names is gone .*; bring it back "):
            read_state(store, "app", Task())


def delete_runs(files: Files) -> None:
    for name in files.list("app/runs/totals"):
        files.delete(f"app/runs/totals/{name}")


def raised() -> Iterator[tuple[str, str]]:
    """Where each error of the package is raised, and its sentence with a … for every value."""
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, StateError)}
    package = Path(persistent_state.__file__).parent
    for file in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds and node.args:
                text = node.args[0]
                if isinstance(text, ast.Constant):
                    yield f"{file.relative_to(package)}:{node.lineno}", str(text.value)
                elif isinstance(text, ast.JoinedStr):
                    parts = (str(p.value) if isinstance(p, ast.Constant) else "…" for p in text.values)
                    yield f"{file.relative_to(package)}:{node.lineno}", "".join(parts)


def test_every_error_is_a_sentence_with_a_value_and_a_way_out() -> None:
    for place, sentence in raised():
        assert sentence.endswith((".", "…")), place
        assert "\n" not in sentence, place
        if sentence == "…":
            continue
        assert "…" in sentence or "=" in sentence or sentence.startswith("no "), f"{place} names no value"
        # What others raised says its own way out, and a name that is taken is met by code.
        if not sentence.endswith(": …") and "raised …" not in sentence and "is taken" not in sentence:
            assert any(mark in sentence for mark in (";", ". ", ", ")), f"{place} says no way out"


def test_settings_default_to_no_delay_and_no_limits_but_a_day_ahead() -> None:
    assert Settings(5) == Settings(5, delay=0, idle_after=None, ahead=86_400_000_000, jump=None, believe=100)


def test_a_task_has_the_applications_delivery_unless_it_was_added_with_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(run, "start", lambda setup, *others: started.append(setup))
    app = Application("app", str(tmp_path), shards=1, delivery="at-least-once")
    with pytest.raises(InvalidInputError, match="delivery='twice'; say one of 'exactly-once', 'at-least-once'"):
        app.add(Task(value="value", key=None), RateSource(1), delivery="twice")
    app.add(Task(name="a", value="value", key=None), RateSource(1))
    app.add(Task(name="b", value="value", key=None), RateSource(1), delivery="at-most-once")
    app.start(cast("SparkSession", object()))
    assert [part.plan.delivery for part in started[0].parts] == ["at-least-once", "at-most-once"]
