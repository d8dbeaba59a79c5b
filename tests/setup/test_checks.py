"""A wrong set-up is refused with one sentence that names the value and says what to do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, wraps
from typing import Any

import pyarrow as pa
import pytest

from monoids import Count, List, Map, Max, Monoid, Sum
from persistent_state import (
    Application,
    DataFrameSource,
    FileSource,
    Input,
    Message,
    OrderedTask,
    PersistentTask,
    RateSource,
    RunningValues,
    run_local,
)
from persistent_state.errors import at_definition
from persistent_state.setup.checks import of_rows
from persistent_state.task import name_of_messages
from tests import core
from tests.setup.tasks import ROWS, SCHEMA, ByMessage, Task, Visits, compiled, refused


class ByBatch(Task):
    def process_batch(self, batch: pa.RecordBatch) -> Any:
        return batch.column("n")


class ByMessageAndBatch(ByMessage, ByBatch):
    pass


class ReadingColumn(Task):
    reads_state = True


class Stateless(PersistentTask):
    value = "n"


class NoState(Stateless):
    def persistent_state(self) -> Any:
        return Sum()


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
            (Task(key=""), {}, "the key column '' is not in the source; it has "),
            (Task(key=[""]), {}, "the key column '' is not in the source; it has "),
            (Task(value="m"), {}, "the value column 'm' is not in the source; it has "),
            (Task(), {"timestamp": "when"}, "the timestamp column 'when' is not in the source; it has "),
            (Task(), {"channel": "device"}, "the channel column 'device' is not in the source; it has "),
        ],
    )
    def test_an_unknown_column(self, task: PersistentTask, options: dict[str, Any], sentence: str) -> None:
        refused(lambda: check(task, **options), f"task=totals: {sentence}ts, word, n, f, tags, value.")

    def test_a_field_of_a_struct_is_taken_out_by_a_transform(self) -> None:
        schema = SCHEMA.append(pa.field("user", pa.struct([("country", pa.string())])))
        refused(
            lambda: core.check(core.plan_of(Task(key="user.country"), schema)),
            "task=totals: the key column 'user.country' is not in the source; it has ts, word, n, f, tags, value, user; take a "
            "field out of 'user' by the source's transform.",
        )

    @pytest.mark.parametrize(("column", "type"), [("word", "string"), ("f", "double"), ("tags", "list<item: string>")])
    def test_a_timestamp_that_is_none(self, column: str, type: str) -> None:
        refused(
            lambda: check(Task(), timestamp=column),
            f"task=totals: the timestamp column {column!r} is {type}; make it a timestamp, or int64 microseconds UTC, by "
            "its type in the schema or in the source's transform.",
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
            (Count(), "f", "Count holds int64", "double"),
            (Max(pa.timestamp("us")), "n", "Max holds timestamp[us]", "int64"),
            (List(pa.int64()), "n", "List holds list<item: int64>", "int64"),
            (Map(pa.string(), Sum()), "tags", "Map holds map<string, int64>", "list<item: string>"),
        ],
    )
    def test_a_monoid_that_does_not_fit_its_column(
        self, monoid: Monoid[Any], column: str, holds: str, found: str
    ) -> None:
        such_as = ", such as Sum(pa.float64())" if type(monoid) is Sum and column == "f" else ""
        refused(
            lambda: check(Task(monoid=monoid, value=column)),
            f"task=totals: {holds} and can't take column {column!r} of {found}; cast the column or choose another "
            f"monoid{such_as}.",
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
            f"task=NoState: persistent_state(){at_definition(NoState.persistent_state)} gives no state; return one, such as "
            "NonWindowState(Sum()).",
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


def test_two_tasks_of_one_name() -> None:
    source = RateSource(1)
    app = Application("app", "store").add(Task(), source)
    refused(
        lambda: app.add(ByMessage(value=None), source),
        "two tasks are named totals; give one a name of its own.",
    )


def test_inputs() -> None:
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
    refused(
        lambda: compiled((Task(), both)),
        "task=totals: an input has the key ('word', 'n'), and the task 'word'; name as many columns.",
    )
    refused(
        lambda: compiled((Task(), {"a": ROWS, "b": Input(ROWS, key="n")})),
        "input='b': task=totals: the key has the types int64 here and string in the first input; cast the columns.",
    )


TYPES = "use types such as int64, float64, string or timestamp of us, and lists, structs and maps of these."


class TestOrderedTasks:
    def plans(self, task: Any, source: Any = ROWS, **options: Any) -> None:
        compiled((task, source), **options)

    def test_what_is_right_is_not_refused(self) -> None:
        self.plans(Visits())
        self.plans(Visits(emits=None, key=None, state=pa.map_(pa.string(), pa.list_(pa.decimal128(38, 2)))))
        self.plans(Visits(), delivery="exactly-once")
        self.plans(Decorated())
        renamed = FileSource("rows/", timestamp="ts", schema=pa.schema([("ts", pa.int64()), ("state", pa.string())]))
        self.plans(Visits(key="state"), renamed)

    def test_messages_without_an_order_are_refused_by_words_that_a_user_knows(self) -> None:
        plans = compiled((Visits(), ROWS), (Task(monoid=List(pa.string()), value="tags"), ROWS))
        waiting, listing = (plans[name].only for name in (name_of_messages("Visits"), "totals"))
        for plan, needs in (
            (waiting, "Visits: it takes messages in their order"),
            (listing, "totals: List does not commute"),
        ):
            assert [*of_rows(replace(plan, has_positions=False), is_by_spark=False)] == [
                f"task={needs}, and its source gives messages of one time no order; name a column of positions, as in "
                "DataFrameSource(..., position='offset')."
            ]

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

    def test_two_of_one_name(self) -> None:
        app = Application("app", "store").add(Visits(), ROWS)
        refused(lambda: app.add(Visits(), ROWS), "two tasks are named Visits; give one a name of its own.")
        refused(
            lambda: app.add(Task(name="Visits.rows"), ROWS),
            "task=Visits.rows and task=Visits need the name Visits.rows in the store; give one another name.",
        )
