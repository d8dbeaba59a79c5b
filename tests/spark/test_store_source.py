"""The data source in real Spark: batch, SQL, filters, changes, streams whose reader is killed, and Spark Connect."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyspark
import pytest

from monoids import Aggregator, Count, List, Map, Max, Min, Monoid, Struct, Sum, Tuple
from persistent_state import NonWindowState, PersistentTask, open_store, read_state
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests import core, page_code
from tests.engine.data_source.test_store_source import apply
from tests.spark import sessions
from tests.test_open_state import STORE, Kept, World, write_shop
from tests.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[2]
ROWS = 40
VERSION = tuple(map(int, pyspark.__version__.split(".")[:2]))
HAS_PUSH_DOWN, ENDS_AT_THE_NEWEST = VERSION >= (4, 1), VERSION >= (4, 2)

TOLD = Aggregator(abs, Sum(), lambda total: f"{total} in all", pa.string())
"""Named by tests as an option does."""


class Longest(Monoid[str]):
    """A monoid of the user's."""

    type = pa.string()
    zero = ""

    def plus(self, a: str, b: str) -> str:
        return max(a, b, key=lambda text: (len(text), text))


class Typed(PersistentTask):
    """A task whose key and values are columns."""

    def __init__(self, name: str, key: str | Sequence[str] | None, value: str, monoid: Monoid[Any]) -> None:
        self.name, self.key, self.value, self.monoid = name, key, value, monoid

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)


def columns() -> dict[str, tuple[pa.DataType, list[Any]]]:
    """Columns of every type that a key or a monoid can be of; every fifth row has a null."""
    some: dict[str, tuple[pa.DataType, Any]] = {
        "number": (pa.int32(), lambda i: i % 7),
        "text": (pa.string(), lambda i: "ab" * (i % 6)),
        "flag": (pa.bool_(), lambda i: i % 2 == 0),
        "double": (pa.float64(), lambda i: (i % 4) / 2),
        "cents": (pa.decimal128(9, 2), lambda i: Decimal(i % 5) / 4),
        "bytes": (pa.binary(), lambda i: bytes([i % 3, 255])),
        "day": (pa.date32(), lambda i: date(1969, 12, 30) + timedelta(days=i % 4)),
        "at": (pa.timestamp("us", "UTC"), lambda i: datetime(1960, 1, 1, 0, 0, i % 5, i, timezone.utc)),
        "local": (pa.timestamp("us"), lambda i: datetime(2020, 2, 29, i % 5)),
        "clock": (pa.time64("us"), lambda i: time_of_day(i % 5, 0, 0, i)),
        "length": (pa.duration("us"), lambda i: timedelta(microseconds=-i)),
        "list": (pa.list_(pa.string()), lambda i: [str(i), None]),
        "unsigned": (pa.uint64(), lambda i: 2**64 - 1 - i % 3),
    }
    return {name: (type, [None if i % 5 == 4 else of(i) for i in range(ROWS)]) for name, (type, of) in some.items()}


def batch() -> pa.RecordBatch:
    arrays = {"ts": pa.array([3 * i for i in range(ROWS)], pa.int64())}
    arrays |= {name: pa.array(values, type) for name, (type, values) in columns().items()}
    pair = pa.StructArray.from_arrays([arrays["number"], arrays["at"]], ["n", "last"])
    arrays["pair"], arrays["tuple"] = pair, pa.StructArray.from_arrays([arrays["number"], arrays["text"]], ["0", "1"])
    entries = [None if i % 5 == 4 else [(date(2020, 1, 1 + i % 3), i)] for i in range(ROWS)]
    return pa.RecordBatch.from_pydict(
        {**arrays, "map": pa.array(entries, pa.map_(pa.date32(), pa.int64()))}  # type: ignore[dict-item]
    )


KEYS = ["number", "text", "flag", "double", "cents", "bytes", "day", "at", "local"]
TASKS = [
    Typed("NoKey", None, "number", Sum()),
    Typed("Number", "number", "ts", Sum()),
    Typed("AllKeys", KEYS, "ts", Sum(pa.decimal128(38, 3))),
    Typed("Longest", "flag", "text", Longest()),
    Typed("Nested", "text", "pair", Struct(n=Count(), last=Max(pa.timestamp("us", "UTC")))),
    Typed("Tuple", "day", "tuple", Tuple(Sum(), Min(pa.string()))),
    Typed("Map", "at", "map", Map(pa.date32(), Sum())),
    Typed("List", ("flag", "number"), "list", List(pa.string())),
    Typed("Time", "number", "clock", Max(pa.time64("us"))),
    Typed("Duration", "number", "length", Min(pa.duration("us"))),
    Typed("Unsigned", "unsigned", "number", Sum()),
]
BY_NAME = {task.name: task for task in TASKS}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of all the tasks, written in five micro-batches at three shards."""
    folder = tmp_path_factory.mktemp("store")
    files = open_files(str(folder))
    log = Log(files, "app")
    rows = batch()
    plans = [core.plan_of(task, rows.schema, files=files, shards=3) for task in TASKS]
    core.start(log, plans)
    for begin in range(0, ROWS, 8):
        for plan in plans:
            core.play(log, plan, rows.slice(begin, 8))
    return str(folder)


def by_key(table: pa.Table) -> list[tuple[str, ...]]:
    """The rows in an order that all readers share."""
    return sorted(tuple(map(repr, row.values())) for row in table.to_pylist())


def load(spark: SparkSession, store: str, task: str = "Totals", **options: str) -> DataFrame:
    return spark.read.format("persistent-state").options(application="app", task=task, **options).load(store)


@pytest.fixture
def filters(spark: SparkSession) -> Iterator[None]:
    """The push-down of filters to Python sources, switched on."""
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    yield
    spark.conf.unset(name)


class TestBatch:
    @pytest.mark.parametrize("name", [name for name in BY_NAME if name not in ("Unsigned", "Longest")])
    def test_values_of_each_type_are_those_that_are_read_without_spark(
        self, spark: SparkSession, store: str, name: str
    ) -> None:
        clock = open_store(store).application("app").clocks()[1]
        wanted = read_state(store, "app", BY_NAME[name], clock)
        try:
            found = load(spark, store, name, clock=str(clock)).toArrow()
        except pyspark.errors.AnalysisException as error:
            # Before PySpark 4.1 there is no type for a time of the day.
            if name != "Time" or "Spark has no type for one of int64, time64[us]" not in str(error):
                raise
            return
        assert found.column_names == wanted.column_names
        assert wanted.num_rows > 0
        assert by_key(found.cast(wanted.schema)) == by_key(wanted)

    def test_monoids_of_the_users_and_presented_values_are_named(self, spark: SparkSession, store: str) -> None:
        wanted = read_state(store, "app", BY_NAME["Longest"])
        found = load(spark, store, "Longest", monoids=f"{__name__}:Longest").toArrow()
        assert by_key(found.cast(wanted.schema)) == by_key(wanted)
        wanted = read_state(store, "app", "Number", monoids=[TOLD], presented=True)
        found = load(spark, store, "Number", monoids=f"{__name__}:TOLD", presented="true").toArrow()
        assert by_key(found.cast(wanted.schema)) == by_key(wanted)

    def test_what_is_wrong_is_a_sentence_in_what_spark_raises(self, spark: SparkSession, store: str) -> None:
        error = pyspark.errors.AnalysisException
        with pytest.raises(
            error, match=r"InvalidInputError: task=Unsigned: Spark has no type for one of uint64, int64"
        ):
            load(spark, store, "Unsigned")
        with pytest.raises(error, match=r"NotThereError: clock=.* \(7\) of task=Map is not retained"):
            load(spark, store, "Map", clock="7")

    def test_a_view_of_sql_is_a_state_and_its_clock_that_of_its_making(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        world = World(Kept(), files=open_files(tmp_path))
        while world.newest.clock < 30:
            world.play()
        expected = world.expected(world.newest.clock)
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW kept USING `persistent-state` "
            f"OPTIONS (path '{tmp_path}', application 'app', task 'Kept')"
        )
        world.play()
        world.play()
        assert dict(spark.sql("SELECT key, value FROM kept").collect()) == expected  # type: ignore[arg-type]
        (row,) = spark.sql("SELECT count(*), sum(value) FROM kept WHERE key >= 0").collect()
        assert tuple(row) == (len(expected), sum(expected.values()))

    def test_changes_late_rows_and_lists_are_frames(self, spark: SparkSession) -> None:
        state = {
            (row["shop"], row["item"]): row["value"] for row in read_state(STORE, "app", "Totals", 160).to_pylist()
        }
        after = {
            (row["shop"], row["item"]): row["value"] for row in read_state(STORE, "app", "Totals", 200).to_pylist()
        }
        apply(state, load(spark, STORE, changes="true", startClock="160", endClock="200").toArrow(), [200])
        assert state == after
        late = load(spark, STORE, late="true").toArrow().to_pylist()
        wanted = [
            row for table in open_store(STORE).application("app").late_rows("Totals") for row in table.to_pylist()
        ]
        rows = [sorted((row["reason"], row["position"]) for row in each) for each in (late, wanted)]
        assert rows[0] == rows[1]
        source = spark.read.format("persistent-state")
        assert [row["task"] for row in source.option("list", "tasks").load(STORE).collect()] == ["Notes", "Totals"]
        assert source.option("list", "outputs").load(STORE).collect() == []
        assert [row["microseconds"] for row in source.option("list", "clocks").load(STORE).collect()] == [160, 200, 220]


@pytest.mark.skipif(not HAS_PUSH_DOWN, reason="PySpark 4.0 has no push-down for Python sources")
@pytest.mark.usefixtures("filters")
class TestFilters:
    def test_filters_of_the_key_columns_are_looked_up_and_spark_looks_again(
        self, spark: SparkSession, store: str
    ) -> None:
        wanted = read_state(store, "app", "AllKeys").to_pylist()
        assert len(wanted) > 20
        (columns,) = [BY_NAME["AllKeys"].key]
        for row in (wanted[3], next(row for row in wanted if None in row.values())):
            frame = load(spark, store, "AllKeys", pushFilters="true")
            for name in columns:
                given = row[name] if row[name] is not None else None
                frame = frame.where(frame[name].eqNullSafe(given) if given is not None else frame[name].isNull())
            assert [each["value"] for each in frame.collect()] == [row["value"]]
        one = load(spark, store, "Number", pushFilters="true").where("number IN (1, 3) AND value > 1000")
        assert one.collect() == []

    def test_without_the_option_nothing_is_pushed_down_and_frames_of_one_source_do_not_meet(
        self, spark: SparkSession, store: str
    ) -> None:
        frame = load(spark, store, "Number")
        count = frame.count()
        assert count > 3
        assert frame.where("number = 1").count() == 1
        assert frame.count() == count
        assert frame.where("number = 1").union(frame.where("number = 2")).count() == 2

    def test_spark_keeps_the_partitions_of_the_last_filter(self, spark: SparkSession, store: str) -> None:
        """Why filters are pushed down only where asked for. Once Spark does not, they always can be."""
        frame = load(spark, store, "Number", pushFilters="true")
        assert frame.where("number = 1").count() == 1
        assert frame.count() == 1


class Stream:
    """A streaming query in the shared session that writes down each micro-batch, as often as it is read."""

    def __init__(self, spark: SparkSession, store: str, folder: Path) -> None:
        self.spark, self.store, self.folder = spark, store, folder
        self.batches: dict[int, pa.Table] = {}

    def start(self, **trigger: bool) -> Any:
        def write(frame: DataFrame, number: int) -> None:
            self.batches[number] = frame.toArrow()

        changes = self.spark.readStream.format("persistent-state").options(
            application="app", task="Kept", changes="true"
        )
        stream = changes.load(self.store).writeStream.foreachBatch(write)
        when: Any = trigger or {"processingTime": "100 milliseconds"}
        return stream.option("checkpointLocation", str(self.folder)).trigger(**when).start()

    def state(self) -> tuple[dict[Any, Any], list[int]]:
        """A copy of the state that follows the changes, and their clocks."""
        state: dict[Any, Any] = {}
        seen: list[int] = []
        for _, changes in sorted(self.batches.items()):
            of_batch = sorted({core.micros(clock) for clock in changes["_clock"].to_pylist()})
            apply(state, changes, of_batch)
            seen += of_batch
        return state, seen


def planners() -> set[psutil.Process]:
    """The processes in which Spark plans streams, also those that queries of other tests have left."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any("python_streaming_source_runner" in word for word in process.cmdline()):
                found.add(process)
    return found


class TestStreams:
    def test_a_stream_gives_each_clock_once_also_after_its_reader_is_killed(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        world = World(Kept(), files=open_files(tmp_path / "store"))
        world.keeping = type(world.keeping)(50, 0)
        while world.newest.clock < 30:
            world.play()
        stream = Stream(spark, str(tmp_path / "store"), tmp_path / "checkpoint")
        others = planners()
        query = stream.start()
        try:
            until(lambda: len(stream.batches) == 1, "the first micro-batch")
            for _ in range(3):
                world.play()
                until(lambda: stream.state()[0] == world.expected(world.newest.clock), "the newest clock")
            (planner,) = planners() - others
            planner.kill()
            world.play()
            world.play()
            until(lambda: not query.isActive, "the end of the query")
            assert query.exception() is not None
            query = stream.start()
            until(lambda: stream.state()[0] == world.expected(world.newest.clock), "the newest clock")
        finally:
            query.stop()
        _, seen = stream.state()
        assert seen == [clock for clock in world.newest.readable if clock >= seen[0]]
        assert len(seen) > 4

    def test_a_query_that_ends_by_itself_reads_all_clocks_some_at_a_time(
        self, spark: SparkSession, tmp_path: Path
    ) -> None:
        world = World(Kept(), files=open_files(tmp_path / "store"))
        world.keeping = type(world.keeping)(1000, 0)
        while world.newest.clock < 30:
            world.play()
        stream = Stream(spark, str(tmp_path / "store"), tmp_path / "checkpoint")
        begun = world.newest.clock
        stream.start(availableNow=True).awaitTermination()
        while len([clock for clock in world.newest.readable if clock > begun]) < 105:
            world.play()
        stream.start(availableNow=True).awaitTermination()
        assert stream.state()[0] == world.expected(world.newest.clock)
        # Before PySpark 4.2 nobody says where a micro-batch begins.
        assert len(stream.batches) == (3 if ENDS_AT_THE_NEWEST else 2)

    def test_a_clock_that_is_gone_ends_the_query_with_a_sentence(self, spark: SparkSession, tmp_path: Path) -> None:
        world = World(Kept(), files=open_files(tmp_path / "store"))
        while world.newest.clock < 30:
            world.play()
        stream = Stream(spark, str(tmp_path / "store"), tmp_path / "checkpoint")
        query = stream.start()
        until(lambda: len(stream.batches) == 1, "the first micro-batch")
        query.stop()
        world.keeping = type(world.keeping)(1, 0)
        for _ in range(4):
            world.play()
            world.collect()
        query = stream.start()
        until(lambda: not query.isActive, "the end of the query")
        told = r"NotThereError: the stream of task=Kept can't go on from or to clock=.* with a new checkpoint"
        assert re.search(told, str(query.exception()))
        assert len(stream.batches) == 1

    @pytest.mark.spark
    @pytest.mark.soak
    @pytest.mark.one_in(2)
    def test_a_driver_that_is_killed_goes_on_where_it_was(self, tmp_path: Path) -> None:
        world = World(Kept(), files=open_files(tmp_path / "store"))
        world.keeping = type(world.keeping)(50, 0)
        while world.newest.clock < 30:
            world.play()

        def written() -> dict[int, Any]:
            files = (tmp_path / "batches").glob("*.json")
            return {int(file.stem): json.loads(file.read_text()) for file in files}

        (tmp_path / "batches").mkdir()
        follower = ["-m", "tests.spark.follower", str(tmp_path)]
        process = sessions.start(follower, tmp_path, sessions.environment())
        try:
            until(lambda: len(written()) > 0, "a micro-batch", process, tmp_path / "log")
            world.play()
            world.play()
            time.sleep(world.random.random() / 2)
        finally:
            sessions.end_sessions([process])
        world.play()
        # Before PySpark 4.2 the micro-batch that was not finished is all that a query does which ends by itself.
        for _ in range(1 if ENDS_AT_THE_NEWEST else 2):
            process = sessions.start([*follower, "--once"], tmp_path, sessions.environment())
            try:
                assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
            finally:
                sessions.end_sessions([process])
        state: dict[int, int] = {}
        seen: list[int] = []
        for _, rows in sorted(written().items()):
            clocks_of = sorted({row["_clock"] for row in rows})
            seen += clocks_of
            for row in sorted(rows, key=lambda row: row["_clock"]):
                if row["_change_type"] in ("delete", "update_preimage"):
                    assert state.pop(row["key"]) == row["value"]
                else:
                    state[row["key"]] = row["value"]
        assert state == world.expected(world.newest.clock)
        assert seen == [clock for clock in world.newest.readable if clock >= seen[0]]


@pytest.mark.spark
def test_spark_connect_reads_and_follows(tmp_path: Path) -> None:
    world = World(Kept(), files=open_files(tmp_path / "store"))
    while world.newest.clock < 30:
        world.play()
    process = sessions.start(
        ["-m", "tests.spark.follower", str(tmp_path), "--connect"], tmp_path, sessions.environment()
    )
    try:
        assert process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    finally:
        sessions.end_sessions([process])
    told = json.loads((tmp_path / "out").read_text().splitlines()[-1])
    expected = sorted(map(list, world.expected(world.newest.clock).items()))
    assert told == {
        "batch": expected,
        "view": expected,
        "key": expected[:1],
        "stream": [[*row, "insert"] for row in expected],
    }


@pytest.mark.skipif(not HAS_PUSH_DOWN, reason="the page pushes filters down")
@pytest.mark.usefixtures("filters")
def test_the_code_of_the_page_does_what_it_says(spark: SparkSession, tmp_path: Path) -> None:
    write_shop(tmp_path / "apps")
    page = page_code.text_of("docs/spark-source.md").replace('"/data/apps"', repr(str(tmp_path / "apps")))
    assert page_code.run(page.replace('"/data/', f'"{tmp_path}/'), {"spark": spark}) > 12
