"""Where Python or Spark would raise an error of their own, a sentence says what is wrong and what to do."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from monoids import Sum
from persistent_state import (
    Application,
    FileSource,
    Input,
    InvalidInputError,
    Local,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    RateSource,
    RunningValues,
    SqlSink,
    TaskFailedError,
    open_store,
    read_state,
    run_local,
)
from persistent_state.kafka import Json
from persistent_state.run import start_checks
from persistent_state.sources.schemas import arrow_schema
from persistent_state.store.files import open_files
from tests.sentences import problem


class Total(PersistentTask):
    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Sum())

    def process_message(self, state: Any, message: Message) -> None:
        state.update(message.timestamp, 1)


class Last(OrderedTask):
    state = pa.int64()

    def process(self, state: Any, message: Message, context: Any) -> int:
        return 1


class DataFrame:
    """Stands for Spark's, which says of itself where it is defined."""


DataFrame.__module__ = "pyspark.sql.classic.dataframe"


@pytest.mark.parametrize(
    ("task", "source", "words"),
    [
        (Total, RateSource(1), "task=<class '.*Total'> is not a task; give an instance .*, such as Total()."),
        ("Total", RateSource(1), "task='Total' is not a task"),
        (Total(), "data/", "task=Total: source='data/' is not a source; give FileSource('data/', timestamp=...)"),
        (Total(), Path("data"), "give FileSource('data', timestamp=...)"),
        (Total(), DataFrame(), "source=a Spark DataFrame is not a source; give DataFrameSource(stream, timestamp=...)"),
        (Total(), RateSource, "give an instance of it, RateSource(...)."),
        (Total(), 5, "source=5 is not a source"),
        (Total(), [("a", RateSource(1))], 'give several as a mapping from their names, such as {"orders": '),
    ],
    ids=["a class", "a text", "a path as text", "a path", "a DataFrame", "a class of sources", "a number", "pairs"],
)
def test_what_is_no_task_or_no_source_is_refused_at_once(task: Any, source: Any, words: str) -> None:
    said = problem(lambda: Application("a", store="s").add(task, source))
    assert all(part in said for part in words.split(".*")), said


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"key": []}, "task=Odd has key=[]; name a column, or several, or say None for one state of all messages."),
        ({"key": ()}, "task=Odd has key=(); name a column, or several"),
        ({"key": [1]}, "task=Odd has key=[1]; name a column, or several"),
        ({"key": 5}, "task=Odd has key=5; name a column, or several"),
        ({"name": 5}, "has name=5, which is not a text"),
        ({"value": ["v"]}, "task=Odd has value=['v']; name the one column"),
        ({"version": (1, 2)}, "task=Odd has version=(1, 2); give a whole number or a text."),
        ({"version": float("nan")}, "task=Odd has version=nan; give a whole number or a text."),
        ({"version": b"2"}, "task=Odd has version=b'2'; give a whole number or a text."),
    ],
    ids=str,
)
def test_attributes_of_a_task_of_the_wrong_kind_are_refused(attributes: dict[str, Any], words: str) -> None:
    for base in (Total, Last):
        if base is Total or "value" not in attributes:
            odd = type("Odd", (base,), attributes)()
            assert words in problem(lambda odd=odd: Application("a", store="s").add(odd, RateSource(1)))


@pytest.mark.parametrize("name", ["shards", "retained_checkpoints", "max_restarts", "max_files_per_batch"])
def test_a_text_in_place_of_a_number_is_refused(name: str) -> None:
    def give() -> object:
        wrong: Any = {name: "3"}
        return FileSource("in", timestamp="ts", **wrong) if "files" in name else Application("a", store="s", **wrong)

    assert problem(give) == f"{name}='3' is not a whole number; give one, such as {name}=2."


def test_other_arguments_of_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    wrong: Any = 3
    assert "application name=3 can't name a folder" in problem(lambda: Application(wrong, store="s"))
    app = Application("a", store="s").add(Total(), RateSource(1))
    for wrong in (None, "local[2]", Local):
        for start in (app.start, app.run):
            assert f"spark={wrong} is not a session; give one" in problem(lambda start=start, wrong=wrong: start(wrong))
    wrong = Total
    assert "give its name, or an instance of it, such as Total()." in problem(lambda: read_state("s", "a", wrong))
    wrong = 5
    assert "name=5 is not a text" in problem(lambda: open_store("s").application("a").keep(wrong))
    wrong = tmp_path / "a.db"
    assert SqlSink(wrong, "t") == SqlSink(str(wrong), "t")


def test_a_text_in_place_of_a_list_or_a_sink_is_refused_as_what_it_is() -> None:
    app = Application("a", store="s")
    for task in (Total(), Last()):
        assert "sink='out.db' is not an output; give a Sink, such as ParquetSink('out.db'), a function" in problem(
            lambda t=task: app.add(t, RateSource(1), "out.db")
        )
    app.add(Total(), RateSource(1))
    for argument in ("reset", "rebuild"):
        said = problem(lambda a=argument: app._with_parts(a, "Total"))
        assert said == f"{argument}='Total' is a text; give a list, {argument}=['Total']."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"without": None}, "task=Total: without=None is no list of names of inputs; give one, or leave it out."),
        ({"without": [1]}, "task=Total: without=[1] is no list of names of inputs; give one, or leave it out."),
        ({"source": Input(RateSource(1), value=5)}, "task=Total: input='' has value=5; name the one column"),  # type: ignore[arg-type]
    ],
    ids=["nothing", "a number", "a number as a column"],
)
def test_arguments_of_add_of_the_wrong_kind_are_refused(arguments: dict[str, Any], words: str) -> None:
    given = {"source": RateSource(1), **arguments}
    assert words in problem(lambda: Application("a", store="s").add(Total(), **given))


def test_a_column_that_a_message_lacks_is_told_with_those_that_it_has() -> None:
    class Other(Total):
        def process_message(self, state: Any, message: Message) -> None:
            assert message.get("before", 5) == 5
            state.update(message.timestamp, message["before"])

    said = problem(lambda: run_local(Other(), [Message(1, {"n": 1, "m": 2})]), TaskFailedError)
    assert "the message has no column 'before', but n, m" in said


def test_a_call_that_lacks_an_argument_is_told_by_the_name_that_the_user_knows() -> None:
    class Short(Total):
        def process_message(self, state: Any, message: Message) -> None:
            state.update(1)

    class Reading(Short):
        reads_state = True

    for task in (Short(), Reading()):
        said = problem(lambda t=task: run_local(t, [Message(1, {"n": 1})]), TaskFailedError)
        assert "state.update() missing 1 required positional argument: 'value'" in said


@pytest.mark.parametrize("function", [lambda: None, lambda values: None, lambda values, clock, more: None, 5])
def test_functions_that_can_not_be_called_as_they_will_be_are_refused_at_once(function: Any) -> None:
    def add(sink: Any) -> object:
        return Application("a", store="s").add(Total(), RateSource(1), sink=sink)

    assert "give a" in problem(lambda: add(function))
    assert "give a function of (values, batch)" in problem(lambda: add(RunningValues(function))) or function == 5
    if function != 5:
        assert "give a function of (values, clock)" in problem(lambda: add(function))


def test_on_progress_of_the_wrong_signature_is_refused_before_spark_is_asked_anything() -> None:
    app = Application("a", store="s").add(Total(), RateSource(1))
    wrong: Any = lambda: None  # noqa: E731
    for start in (app.start, app.run):
        said = problem(lambda start=start: start(None, on_progress=wrong))
        assert "on_progress=" in said
        assert "give a function of (progress)" in said


class Locked(Total):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Shared(Total):
    lock = threading.Lock()


def test_a_task_that_can_not_be_sent_names_the_attribute() -> None:
    said = problem(lambda: start_checks.check_task(Locked()))
    assert said.startswith("task=Locked can't be sent to workers for its attribute 'lock', a lock: ")
    # A class that is not imported is sent as it is, with what it holds.
    own = type("Own", (Total,), {"lock": threading.Lock(), "__module__": "__main__"})
    assert "task=Own can't be sent to workers for its attribute 'lock'" in problem(
        lambda: start_checks.check_task(own())
    )
    for task in (Total(), Shared()):
        start_checks.check_task(task)


def test_a_source_that_can_not_be_sent_names_the_attribute(tmp_path: Path) -> None:
    lock = threading.Lock()
    source = FileSource(tmp_path, timestamp="ts", transform=lambda rows: [lock, rows][1])
    assert "for its attribute '_transform', a function: " in problem(lambda: start_checks.check_source("Total", source))


def test_messages_of_run_local_may_have_datetimes_and_are_the_same_as_with_microseconds() -> None:
    at = [datetime(2026, 1, 1, 0, 0, second, second) for second in (1, 2)]
    aware = [stamp.replace(tzinfo=timezone.utc).astimezone(timezone(timedelta(hours=5))) for stamp in at]
    micros = [(stamp - datetime(1970, 1, 1)) // timedelta(microseconds=1) for stamp in at]

    class Seen(Total):
        def process_message(self, state: Any, message: Message) -> None:
            state.update(message.timestamp, message.timestamp)

    for stamps in (at, aware, micros):
        run = run_local(Seen(), [Message(stamp, {"v": 1}) for stamp in stamps])
        assert run.state == {(): sum(micros)}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"timestamp": 5, "v": 1}, "message 0 is {'timestamp': 5, 'v': 1}, a dict; give Message(timestamp, {...})"),
        (Message(1.5, {"v": 1}), "message 0 has timestamp=1.5; give whole microseconds UTC, or a datetime"),  # type: ignore[arg-type]
        (Message(date(2026, 1, 1), {"v": 1}), "message 0 has timestamp=datetime.date(2026, 1, 1)"),  # type: ignore[arg-type]
        (Message(True, {"v": 1}), "message 0 has timestamp=True"),
    ],
    ids=["a dict", "a float", "a date", "a bool"],
)
def test_what_is_no_message_is_refused(message: Any, words: str) -> None:
    assert words in problem(lambda: run_local(Total(), [message]))


def test_datetimes_and_integers_do_not_mix() -> None:
    messages = [Message(5, {"v": 1}), Message(datetime(2026, 1, 1), {"v": 1})]
    assert "choose one" in problem(lambda: run_local(Total(), messages))


@pytest.mark.parametrize("url", ["dbfs:/x", "s3:/bucket/x", "dbfs://x"])
def test_a_store_of_a_scheme_that_is_not_known_is_no_local_folder(url: str) -> None:
    said = problem(lambda: open_files(url))
    assert said.startswith(
        f"the store's protocol={url.partition(':')[0]!r} is not supported: use a local path, s3://, "
    )


def test_a_path_may_hold_a_colon(tmp_path: Path) -> None:
    assert open_files(tmp_path / "a:b").url == str(tmp_path / "a:b")


@pytest.mark.parametrize("name", ["a.csv", "*.csv", "[ab].csv"])
def test_a_file_or_a_pattern_is_no_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.csv").write_text("ts\n1\n")
    source = FileSource(tmp_path / name, timestamp="ts", schema="ts long")
    assert "is not a folder; give one: all files in it and below are read" in problem(lambda: source.open([], {}))


def test_a_url_with_one_slash_is_no_path() -> None:
    assert "write a url as 's3://bucket/x'" in problem(lambda: FileSource("s3:/bucket/x", timestamp="ts"))


DDL = """k STRING NOT NULL, `a b` bigint COMMENT 'a, b', ts timestamp, n timestamp_ntz, d date, x decimal(12, 3), y decimal,
    b binary, t boolean, f float, g double, i int, s smallint, c tinyint, v varchar(10), l array<map<string, bigint>>,
    o struct<p: int, q: struct<r string>>"""
MEANT = spark.StructType(
    [
        spark.StructField("k", spark.StringType(), nullable=False),
        spark.StructField("a b", spark.LongType()),
        spark.StructField("ts", spark.TimestampType()),
        spark.StructField("n", spark.TimestampNTZType()),
        spark.StructField("d", spark.DateType()),
        spark.StructField("x", spark.DecimalType(12, 3)),
        spark.StructField("y", spark.DecimalType(10, 0)),
        spark.StructField("b", spark.BinaryType()),
        spark.StructField("t", spark.BooleanType()),
        spark.StructField("f", spark.FloatType()),
        spark.StructField("g", spark.DoubleType()),
        spark.StructField("i", spark.IntegerType()),
        spark.StructField("s", spark.ShortType()),
        spark.StructField("c", spark.ByteType()),
        spark.StructField("v", spark.StringType()),
        spark.StructField("l", spark.ArrayType(spark.MapType(spark.StringType(), spark.LongType()))),
        spark.StructField(
            "o",
            spark.StructType(
                [
                    spark.StructField("p", spark.IntegerType()),
                    spark.StructField("q", spark.StructType([spark.StructField("r", spark.StringType())])),
                ]
            ),
        ),
    ]
)


def test_a_schema_in_ddl_is_what_spark_has_of_it() -> None:
    from persistent_state.engine.spark.versions import arrow_types

    said = arrow_schema(DDL)
    assert said == arrow_schema(MEANT) == arrow_schema(said)
    of_spark = arrow_types(MEANT)
    assert said.names == of_spark.names
    assert [str(type).replace(" not null", "") for type in said.types] == [
        str(type).replace(" not null", "").replace("element", "item") for type in of_spark.types
    ] or said.types == of_spark.types


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "k",
        "k strin",
        "k string,",
        "k string v int",
        "x decimal(1",
        "l array<int",
        "k string; v int",
        5,
        {"k": "int"},
    ],
)
def test_what_is_no_schema_is_refused_in_the_constructor(schema: Any, tmp_path: Path) -> None:
    said = problem(lambda: FileSource(tmp_path, timestamp="ts", schema=schema))
    assert said.startswith("schema=")
    assert problem(lambda: Json(schema)) == said


def test_json_and_run_local_take_any_schema_too() -> None:
    assert Json("k string, v int").schema == pa.schema([("k", pa.string()), ("v", pa.int32())])  # type: ignore[arg-type]
    run = run_local(Total(), [Message(5, {"v": 1})], schema="v bigint")
    assert run.state == {(): 1}


def test_a_module_of_the_user_that_is_named_monoids_is_told_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "monoids.py").write_text("def mine(): ...\n")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import persistent_state"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: file={str(tmp_path / 'monoids.py')!r} is imported in the place of the package monoids, which "
        "persistent_state needs; rename it."
    )


def test_the_version_is_told_in_one_way() -> None:
    import persistent_state

    done = subprocess.run([sys.executable, "-m", "persistent_state", "--version"], capture_output=True, text=True)
    assert done.stdout == f"persistent-state {persistent_state.__version__}\n"


def test_a_refusal_is_an_invalid_input() -> None:
    with pytest.raises(InvalidInputError):
        arrow_schema(None)
