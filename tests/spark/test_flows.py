"""Tasks of one source on a real Spark: they are read together, and each is as it would be alone."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monoids import Max, Sum
from persistent_state import (
    Application,
    DataFrameSource,
    FileSource,
    InvalidInputError,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    RunningValues,
    TaskFailedError,
    TumblingWindow,
    ValuesAtClock,
    WindowState,
    open_store,
    read_state,
)
from persistent_state.engine import Progress
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

SECOND = 1_000_000
SCHEMA = pa.schema(
    [("shop", pa.string()), ("item", pa.int64()), ("amount", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
SPARK_SCHEMA = "shop string, item long, amount long, ts timestamp"
UNFIT_ITEM = 13
Row = tuple[str, int, int, int]
"""Shop, item, amount, and time in seconds."""


class ByShop(PersistentTask):
    """A sum by shop; the update is a column."""

    key = "shop"
    value = "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class ByItem(PersistentTask):
    """A sum by item, message by message. One item does not fit."""

    key = "item"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, "x" if message["item"] == UNFIT_ITEM else message["amount"])


class Items(PersistentTask):
    """A sum by item; the update is a column."""

    key = "item"
    value = "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Greatest(PersistentTask):
    """The greatest amount of all, batch by batch."""

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Max())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return batch["amount"]


class ByColumn(PersistentTask):
    """Twice the sum by shop; Spark works out the update."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_column(self, rows: DataFrame) -> Column:
        return rows["amount"] * 2


class ByColumnAndItem(ByColumn):
    key = "item"


class ByWindow(PersistentTask):
    """A sum by shop and window of ten seconds."""

    key = "shop"
    value = "amount"

    def persistent_state(self) -> WindowState[int]:
        return WindowState(Sum(), TumblingWindow(timedelta(seconds=10)))


def sums(rows: Sequence[Row], column: int, times: int = 1) -> dict[Any, int]:
    """The sums of the amounts by what is in a column."""
    found: Counter[Any] = Counter()
    for row in rows:
        found[row[column]] += times * row[2]
    return dict(found)


@dataclass
class Shops:
    """A folder of files, each of which is a micro-batch, and applications over it."""

    spark: SparkSession
    folder: Path

    def write(self, *files: Sequence[Row]) -> None:
        (self.folder / "in").mkdir(exist_ok=True)
        begin = len(list((self.folder / "in").iterdir()))
        for number, rows in enumerate(files, begin):
            columns = list(zip(*rows, strict=True))
            columns[3] = tuple(ts * SECOND for ts in columns[3])
            pq.write_table(pa.table(columns, schema=SCHEMA), self.folder / "in" / f"_{number}")
            (self.folder / "in" / f"_{number}").rename(self.folder / "in" / f"{number}.parquet")

    def source(self, max_files_per_batch: int = 1) -> FileSource:
        return FileSource(self.folder / "in", timestamp="ts", schema=SCHEMA, max_files_per_batch=max_files_per_batch)

    def app(self, source: FileSource | DataFrameSource, *tasks: PersistentTask, **more: Any) -> Application:
        """An application in which one source object feeds these tasks."""
        app = Application("shops", str(self.folder / "store"), checkpoint_interval="10 seconds", shards=2, **more)
        for task in tasks:
            app.add(task, source)
        return app

    @property
    def log(self) -> Log:
        return Log(open_files(str(self.folder / "store")), "shops")

    @property
    def newest(self) -> Entry:
        entry = self.log.newest()
        assert entry is not None
        return entry

    def flows(self) -> list[list[str]]:
        """The tasks of each flow that the newest start reads."""
        entry = self.newest
        tasks = [entry.tasks_of(id) for id in entry.flows]
        return sorted([*some] for some in tasks if all(task.active for task in some.values()))

    def state(self, task: PersistentTask) -> dict[Any, Any]:
        rows = read_state(str(self.folder / "store"), "shops", task).to_pylist()
        return {row[task.key_columns[0]] if task.key_columns else (): row["value"] for row in rows}

    def aside(self, task: PersistentTask) -> list[str]:
        """Why rows do not count for a task."""
        tables = open_store(str(self.folder / "store")).application("shops").late_rows(task.task_name)
        return [reason for table in tables for reason in table["reason"].to_pylist()]


@pytest.fixture
def shops(spark: SparkSession, tmp_path: Path) -> Shops:
    return Shops(spark, tmp_path)


FIRST: list[Row] = [("a", 1, 10, 100), ("b", 2, 5, 105), ("a", UNFIT_ITEM, 7, 107)]
THEN: list[Row] = [("b", 1, 20, 118), ("c", 3, 1, 112), ("a", 2, 4, 119)]
LAST: list[Row] = [("c", 2, 30, 131), ("a", 1, 2, 128)]
MORE: list[Row] = [("b", 3, 50, 150), ("a", 2, 1, 145)]
ALL = [*FIRST, *THEN, *LAST]


def test_three_tasks_of_one_source_are_one_query_and_one_entry_a_micro_batch(shops: Shops) -> None:
    shops.write(FIRST, THEN, LAST)
    source, told, queries, given = shops.source(), list[Progress](), set[tuple[str, ...]](), dict[Any, int]()
    touched: list[dict[Any, int]] = []

    def running(values: DataFrame, batch: int) -> None:
        touched.append({row["item"]: row["value"] for row in values.collect()})

    def at_clock(values: DataFrame, clock: int) -> None:
        given.update({(clock, row["shop"]): row["value"] for row in values.collect()})

    app = Application("shops", str(shops.folder / "store"), checkpoint_interval="10 seconds", shards=2)
    app.add(ByShop(), source, ValuesAtClock(at_clock))
    app.add(ByItem(), source, RunningValues(running))
    app.add(Greatest(), source, on_bad_row="fail")
    run = app.start(shops.spark, on_progress=told.append)
    try:

        def is_read() -> bool:
            queries.add(tuple(run._supervisor.flows.by_flow))
            return len(touched) >= 3

        until(is_read, "micro-batches", lambda: not run.await_termination(0))
    finally:
        run.stop()
    assert queries == {("ByShop",)}
    assert [(progress.batch, progress.task) for progress in told] == [
        (batch, task) for batch in (1, 2, 3) for task in ("ByShop", "ByItem", "Greatest")
    ]
    batches = [shops.log.read(number).flow_of("Greatest").progress.batch for number in shops.log.numbers()]
    assert [batches.index(batch) for batch in range(4)] == sorted({*map(batches.index, batches)})
    commits = [number for number, batch in enumerate(batches) if number and batch != batches[number - 1]]
    assert len(commits) == 3
    assert touched == [{1: 10, 2: 5}, {1: 30, 3: 1, 2: 9}, {2: 39, 1: 32}]
    run.drain()
    assert shops.flows() == [["ByItem", "ByShop", "Greatest"]]
    assert shops.state(ByShop()) == sums(ALL, 0)
    assert shops.state(ByItem()) == sums([row for row in ALL if row[1] != UNFIT_ITEM], 1)
    assert shops.state(Greatest()) == {(): 30}
    # The row that does not fit one task is bad for that one only.
    assert [shops.aside(task) for task in (ByShop(), ByItem(), Greatest())] == [[], ["value does not fit"], []]
    assert {shop: value for (_, shop), value in sorted(given.items())} == sums(ALL, 0)


def test_a_bad_row_fails_all_only_if_it_is_bad_for_a_task_that_says_so(shops: Shops) -> None:
    shops.write(FIRST)
    source = shops.source()
    app = shops.app(source, ByShop()).add(ByItem(), source, on_bad_row="fail")
    with pytest.raises(TaskFailedError, match="ByItem"):
        app.run(shops.spark)
    assert shops.newest.flow_of("ByShop").source.positions == {}
    shops.app(source, ByShop(), ByItem()).run(shops.spark, drain=True)
    assert shops.state(ByShop()) == sums(FIRST, 0)


def test_running_values_go_to_each_task_in_turn(shops: Shops) -> None:
    shops.write(FIRST, THEN)
    source, given = shops.source(), list[tuple[str, int, dict[Any, int]]]()

    def to(name: str) -> RunningValues:
        def show(values: DataFrame, batch: int) -> None:
            given.append((name, batch, {row[0]: row["value"] for row in values.collect()}))

        return RunningValues(show)

    app = Application("shops", str(shops.folder / "store"), checkpoint_interval="10 seconds", shards=2)
    app.add(ByShop(), source, to("shop")).add(ByItem(), source, to("item")).run(shops.spark)
    assert given == [
        ("shop", 0, {"a": 17, "b": 5}),
        ("item", 0, {1: 10, 2: 5}),
        ("shop", 1, {"a": 21, "b": 25, "c": 1}),
        ("item", 1, {1: 30, 2: 9, 3: 1}),
    ]


def test_tasks_with_a_column_are_a_flow_of_their_own(shops: Shops) -> None:
    shops.write(FIRST, THEN, LAST)
    tasks = (ByShop(), ByColumn(), Greatest(), ByColumnAndItem())
    shops.app(shops.source(), *tasks).run(shops.spark, drain=True)
    assert shops.flows() == [["ByColumn", "ByColumnAndItem"], ["ByShop", "Greatest"]]
    assert shops.state(ByShop()) == sums(ALL, 0)
    assert shops.state(Greatest()) == {(): 30}
    assert shops.state(ByColumn()) == sums(ALL, 0, times=2)
    assert shops.state(ByColumnAndItem()) == sums(ALL, 1, times=2)


def test_a_task_that_leaves_and_comes_back_misses_nothing(shops: Shops) -> None:
    source, all_tasks, flows = shops.source(), (ByShop(), Items(), Greatest()), []
    for rows, tasks in ((FIRST, all_tasks), (THEN, (ByShop(), Greatest())), (LAST, all_tasks), (MORE, all_tasks)):
        shops.write(rows)
        shops.app(source, *tasks).run(shops.spark, drain=rows == MORE)
        flows.append(shops.flows())
    # It reads what it has missed by itself, and is then one of them again.
    alone, one = [["ByShop", "Greatest"], ["Items"]], [["ByShop", "Greatest", "Items"]]
    assert flows == [one, [["ByShop", "Greatest"]], alone, one]
    assert shops.state(ByShop()) == sums([*ALL, *MORE], 0)
    assert shops.state(Items()) == sums([*ALL, *MORE], 1)
    assert shops.state(Greatest()) == {(): 50}
    assert [shops.aside(task) for task in all_tasks] == [[], [], []]


def test_a_task_that_has_read_less_at_the_same_clock_meets_the_others_before_a_start(shops: Shops) -> None:
    shops.write([("a", 1, 1, 5)], [("a", 2, 2, 31)])
    shops.app(shops.source(max_files_per_batch=9), ByShop(), Items()).run(shops.spark)
    # No clock passes these, so that both are at one clock.
    shops.write([("b", 1, 4, 32), ("c", 1, 16, 33)])
    shops.app(shops.source(max_files_per_batch=9), ByShop()).run(shops.spark)
    before = shops.newest
    assert [flow.progress.clock for flow in before.flows.values()] == [30 * SECOND] * 2
    shops.write([("b", 2, 8, 34)])
    shops.app(shops.source(max_files_per_batch=9), ByShop(), Items()).run(shops.spark, drain=True)
    # The first start is for the meeting: one micro-batch has the replay, and what the other has read.
    assert (shops.flows(), shops.newest.epoch) == ([["ByShop", "Items"]], before.epoch + 2)
    assert shops.state(Items()) == {1: 21, 2: 10}
    assert shops.state(ByShop()) == {"a": 3, "b": 12, "c": 16}
    assert shops.aside(Items()) == []


def test_a_task_that_is_added_later_begins_where_the_others_stand(shops: Shops) -> None:
    source, told = shops.source(), list[Progress]()
    shops.write(FIRST, THEN)
    shops.app(source, ByShop()).run(shops.spark)
    clock = shops.newest.clock // SECOND
    shops.write(LAST)
    shops.app(source, ByShop(), Items()).run(shops.spark, drain=True, on_progress=told.append)
    assert clock == 110
    assert shops.flows() == [["ByShop", "Items"]]
    assert shops.state(ByShop()) == sums(ALL, 0)
    # What is above the clock comes again for all, and what is below is not late for the new task: it is never read.
    assert shops.state(Items()) == sums([row for row in ALL if row[3] >= clock], 1)
    assert shops.aside(Items()) == []
    by_task = {
        name: [(p.batch, p.messages, p.replayed) for p in told if p.task == name] for name in ("ByShop", "Items")
    }
    assert by_task["ByShop"] == by_task["Items"]
    assert sum(messages for _, messages, _ in by_task["ByShop"]) == len(THEN) + len(LAST)


def test_a_task_is_reset_and_another_is_built_again_beside_one_that_goes_on(shops: Shops) -> None:
    source, tasks = shops.source(), (ByShop(), Items(), Greatest())
    shops.write(FIRST, THEN)
    shops.app(source, *tasks).run(shops.spark)
    shops.write(LAST)
    shops.app(source, *tasks).run(shops.spark, drain=True, reset=["Items"], rebuild=["Greatest"])
    assert shops.flows() == [["ByShop", "Items"], ["Greatest"]]
    assert shops.state(ByShop()) == sums(ALL, 0)
    assert shops.state(Items()) == sums([row for row in ALL if row[3] >= 110], 1)
    assert shops.state(Greatest()) == {(): 30}
    # It has come to where the others are, and is one of them from the next start on.
    shops.write(MORE)
    shops.app(source, *tasks).run(shops.spark, drain=True)
    assert shops.flows() == [["ByShop", "Greatest", "Items"]]
    assert shops.state(ByShop()) == sums([*ALL, *MORE], 0)
    assert shops.state(Items()) == sums([row for row in [*ALL, *MORE] if row[3] >= 110], 1)
    assert shops.state(Greatest()) == {(): 50}
    assert [shops.aside(task) for task in tasks] == [[], [], []]


@pytest.mark.parametrize("is_one", [True, False])
def test_equal_sources_that_are_not_one_are_read_on_their_own_with_a_warning(
    shops: Shops, caplog: pytest.LogCaptureFixture, is_one: bool
) -> None:
    shops.write(FIRST, THEN)
    source = shops.source()
    app = shops.app(source, ByShop()).add(Greatest(), source if is_one else shops.source())
    with caplog.at_level(logging.WARNING, "persistent_state"):
        app.run(shops.spark, drain=True)
    warnings = [record.getMessage() for record in caplog.records if "equal sources" in record.getMessage()]
    wanted = "tasks=ByShop, Greatest have equal sources, each of which is read on its own; give the tasks one source object, "
    assert warnings == ([] if is_one else [f"{wanted}and it is read once for all."])
    assert shops.flows() == ([["ByShop", "Greatest"]] if is_one else [["ByShop"], ["Greatest"]])
    assert (shops.state(ByShop()), shops.state(Greatest())) == (sums([*FIRST, *THEN], 0), {(): 20})


def test_a_dataframe_is_read_once_for_all_ways_to_update(shops: Shops) -> None:
    def stream(spark: SparkSession, clock: int | None) -> DataFrame:
        return spark.readStream.schema(SPARK_SCHEMA).parquet(str(shops.folder / "in"))

    source, tasks, told = DataFrameSource(stream, "ts"), (ByColumn(), ByItem(), Greatest()), list[Progress]()
    shops.write(ALL)
    shops.app(source, *tasks).run(shops.spark, drain=True, on_progress=told.append)
    assert shops.flows() == [["ByColumn", "ByItem", "Greatest"]]
    assert [progress.task for progress in told if progress.batch == 1] == ["ByColumn", "ByItem", "Greatest"]
    assert shops.state(ByColumn()) == sums(ALL, 0, times=2)
    assert shops.state(ByItem()) == sums([row for row in ALL if row[1] != UNFIT_ITEM], 1)
    assert shops.state(Greatest()) == {(): 30}
    assert [shops.aside(task) for task in tasks] == [[], ["value does not fit"], []]


def test_a_task_with_another_delivery_is_a_flow_of_its_own(shops: Shops) -> None:
    shops.write(FIRST, THEN)
    source = shops.source()
    app = shops.app(source, ByShop()).add(Items(), source, delivery="at-most-once").add(Greatest(), source)
    app.run(shops.spark, drain=True)
    assert shops.flows() == [["ByShop", "Greatest"], ["Items"]]
    assert shops.state(ByShop()) == sums([*FIRST, *THEN], 0)
    assert shops.state(Items()) == sums([*FIRST, *THEN], 1)
    with pytest.raises(InvalidInputError, match="delivery='often'"):
        shops.app(source).add(ByShop(), source, delivery="often")


def test_at_least_once_a_late_message_counts_for_the_task_that_can_take_it(shops: Shops) -> None:
    late: list[Row] = [("a", 1, 100, 101)]
    shops.write(FIRST, THEN, late)
    app = shops.app(shops.source(), ByShop(), ByWindow(), Items(), delivery="at-least-once")
    app.run(shops.spark, drain=True)
    assert shops.flows() == [["ByShop", "Items"], ["ByWindow"]]
    assert shops.state(ByShop()) == sums([*FIRST, *THEN, *late], 0)
    assert [shops.aside(task) for task in (ByShop(), Items(), ByWindow())] == [[], [], ["late"]]
