"""A store opened in a Spark session that knows only its address, against what is read without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from monoids import Aggregator, Count, List, Map, Max, Min, Monoid, Struct, Sum, Tuple
from persistent_state import (
    InvalidInputError,
    NonWindowState,
    PersistentTask,
    clocks,
    late_rows_frame,
    read_late_rows,
    read_state,
    state_frame,
)
from persistent_state.partials import fold
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests import core
from tests.fixtures import write_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 40


class Longest(Monoid[str]):
    """A monoid of the user's."""

    type = pa.string()
    zero = ""

    def plus(self, a: str, b: str) -> str:
        return max(a, b, key=lambda text: (len(text), text))


class Kept(PersistentTask):
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
        "clock": (pa.time64("us"), lambda i: time(i % 5, 0, 0, i)),
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
    Kept("NoKey", None, "number", Sum()),
    Kept("Number", "number", "ts", Sum()),
    Kept("AllKeys", KEYS, "ts", Sum(pa.decimal128(38, 3))),
    Kept("Longest", "flag", "text", Longest()),
    Kept("Nested", "text", "pair", Struct(n=Count(), last=Max(pa.timestamp("us", "UTC")))),
    Kept("Tuple", "day", "tuple", Tuple(Sum(), Min(pa.string()))),
    Kept("Map", "at", "map", Map(pa.date32(), Sum())),
    Kept("List", ("flag", "number"), "list", List(pa.string())),
    Kept("Time", "number", "clock", Max(pa.time64("us"))),
    Kept("Duration", "number", "length", Min(pa.duration("us"))),
    Kept("Unsigned", "unsigned", "number", Sum()),
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
    """The rows in an order that both readers share."""
    return sorted(tuple(map(repr, row.values())) for row in table.to_pylist())


@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "Unsigned"])
def test_the_frame_of_a_state_is_what_is_read_without_spark(spark: SparkSession, store: str, name: str) -> None:
    retained = clocks(store, "app")
    assert len(retained) > 3
    for clock in (None, retained[1]):
        wanted = read_state(store, "app", BY_NAME[name], clock)
        found = state_frame(spark, store, "app", name, clock, monoids=[Longest()]).toArrow()
        assert found.column_names == wanted.column_names
        assert wanted.num_rows > 0
        assert by_key(found.cast(wanted.schema)) == by_key(wanted)


def test_the_frame_of_a_state_presents_what_read_state_presents(spark: SparkSession, store: str) -> None:
    told = Aggregator(abs, Sum(), lambda total: f"{total} in all", pa.string())
    wanted = read_state(store, "app", "Number", monoids=[told], presented=True)
    assert wanted["value"].type == pa.string()
    found = state_frame(spark, store, "app", "Number", monoids=[told], presented=True)
    assert by_key(found.toArrow().cast(wanted.schema)) == by_key(wanted)


def test_each_part_is_read_by_a_task_of_its_own_and_no_key_by_two(spark: SparkSession, store: str) -> None:
    frame = state_frame(spark, store, "app", BY_NAME["Number"])
    assert frame.rdd.getNumPartitions() == 3
    shown = frame.selectExpr("number", "value", "spark_partition_id() AS part").collect()
    assert len({row["number"] for row in shown}) == len(shown) == 8
    assert len({row["part"] for row in shown}) > 1


def test_a_part_with_many_rows_is_read_piece_by_piece(
    spark: SparkSession, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = by_key(state_frame(spark, store, "app", "Number").toArrow())
    monkeypatch.setattr(fold, "SLICE", 2)
    assert by_key(state_frame(spark, store, "app", "Number").toArrow()) == wanted


def test_types_that_spark_does_not_have_and_monoids_that_nobody_gave_are_refused(
    spark: SparkSession, store: str
) -> None:
    assert read_state(store, "app", "Unsigned")["unsigned"].type == pa.uint64()
    with pytest.raises(
        InvalidInputError, match=r"task=Unsigned: Spark has no type for one of uint64, int64 .* read_state"
    ):
        state_frame(spark, store, "app", "Unsigned")
    with pytest.raises(InvalidInputError, match=r"task=Longest: monoid=Longest of string .* give an instance"):
        state_frame(spark, store, "app", "Longest")
    with pytest.raises(InvalidInputError, match=r"clock=.* \(7\) of task=Map is not retained"):
        state_frame(spark, store, "app", "Map", 7)
    plan = core.plan_of(BY_NAME["Number"], batch().schema)
    core.start(Log(plan.files, "app"), [plan])
    with pytest.raises(InvalidInputError, match="memory:// can't be reached"):
        state_frame(spark, plan.files.url, "app", "Number")


def test_the_clock_is_settled_when_the_frame_is_made_and_a_clock_that_was_collected_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    files = open_files(str(tmp_path))
    rows = batch()
    plan = core.plan_of(BY_NAME["Number"], rows.schema, files=files, shards=2)
    log = Log(files, "app")
    core.start(log, [plan])
    core.play(log, plan, rows.slice(0, 20))
    (clock,) = clocks(str(tmp_path), "app")
    wanted = read_state(str(tmp_path), "app", "Number").to_pylist()
    frame = state_frame(spark, str(tmp_path), "app", "Number")
    core.play(log, plan, rows.slice(20))
    assert clocks(str(tmp_path), "app")[-1] > clock
    assert sorted(row["value"] for row in frame.collect()) == sorted(row["value"] for row in wanted)
    for path in (tmp_path / "app" / "runs" / "Number").glob("*.arrow"):
        path.unlink()
    with pytest.raises(
        Exception, match=rf"InvalidInputError: clock=.* \({clock}\) of app is no longer retained; open a newer one"
    ):
        frame.collect()


def test_late_and_bad_rows_are_a_frame_whose_columns_do_not_depend_on_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_store.write(tmp_path)
    store = str(tmp_path)
    found = late_rows_frame(spark, store, "app", "Totals")
    assert found.schema.simpleString() == (
        "struct<reason:string,timestamp:bigint,partition:string,channel:string,position:bigint,"
        "record:binary,origin:string,row:string>"
    )
    wanted = [row for table in read_late_rows(store, "app", "Totals") for row in table.to_pylist()]
    assert len(wanted) == 3
    rows = sorted(found.collect(), key=lambda row: row["position"])
    for row, kept in zip(rows, sorted(wanted, key=lambda row: int(row["position"])), strict=True):
        source = kept.pop("row")
        shown = json.loads(row["row"])
        stamp = source["ts"] and source["ts"].isoformat().replace("+00:00", "Z")
        assert shown == {**source, "ts": stamp}
        assert {name: row[name] for name in kept} == kept
    parsed = found.selectExpr("from_json(row, 'ts timestamp, shop string, notes array<string>') AS row").collect()
    assert {tuple(row["row"]["notes"]) for row in parsed} == {("n13",), ("n25",), ("n47",)}
    assert sum(row["row"]["ts"] is None for row in parsed) == 2


def test_a_task_without_late_rows_or_any_state_gives_empty_frames(spark: SparkSession, tmp_path: Path) -> None:
    plan = core.plan_of(BY_NAME["Nested"], batch().schema, files=open_files(str(tmp_path)))
    core.start(Log(plan.files, "app"), [plan])
    assert late_rows_frame(spark, str(tmp_path), "app", "Nested").collect() == []
    empty = state_frame(spark, str(tmp_path), "app", "Nested")
    assert empty.columns == ["text", "value"]
    assert empty.collect() == []
