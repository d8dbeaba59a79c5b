"""The engine end to end on a real Spark, against plain Python: what comes out, what is refused, how it stops."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monoids import Count, Max, Struct, Sum
from persistent_state import (
    Application,
    FencedError,
    FileSource,
    InvalidInputError,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    RunningValues,
    StateError,
    TaskFailedError,
    open_store,
    read_state,
)
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from persistent_state.run.progress import Progress

SECOND = 1_000_000
SCHEMA = pa.schema(
    [("shop", pa.string()), ("item", pa.int64()), ("amount", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]
)
Row = tuple["str | None", int, "int | None", "int | None"]


class Sales(PersistentTask):
    """Several key columns; the update said message by message."""

    key = ("shop", "item")

    def persistent_state(self) -> NonWindowState[dict[str, Any]]:
        return NonWindowState(Struct(sales=Count(), best=Max()))

    def process_message(self, state: PersistentState[dict[str, Any]], message: Message) -> None:
        state.update(message.timestamp, {"sales": 1, "best": message["amount"]})


class Turnover(PersistentTask):
    """No key at all; the update is a column."""

    value = "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class ShopTurnover(PersistentTask):
    """One key column, which may be null; the update is a function of a batch."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return batch["amount"]


class FirstThree(PersistentTask):
    """Counts up to three of an item, by reading the state: in whatever order they come, as many."""

    key = "item"
    reads_state: ClassVar[bool] = True

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        if state.get() < 3:
            state.update(message.timestamp, 1)


def write(folder: Path, name: str, rows: Iterable[Row]) -> None:
    """A new file of the source, whole when it appears. Times are in seconds."""
    folder.mkdir(exist_ok=True)
    columns = list(zip(*rows, strict=True))
    columns[3] = tuple(None if ts is None else ts * SECOND for ts in columns[3])
    pq.write_table(pa.table(columns, schema=SCHEMA), folder / "_unfinished")
    (folder / "_unfinished").rename(folder / name)


def table(app: Application, task: PersistentTask) -> dict[Any, Any]:
    """The state of a task at the global clock, by key."""
    rows = read_state(app.store, app.name, task).to_pylist()
    return {tuple(row[name] for name in task.key_columns): row["value"] for row in rows}


def expected(rows: Iterable[Row]) -> dict[str, dict[Any, Any]]:
    """The states of the four tasks in plain Python."""
    sales: dict[Any, dict[str, Any]] = {}
    turnover: dict[Any, int] = {}
    by_shop: dict[Any, int] = {}
    items: Counter[int] = Counter()
    for shop, item, amount, _ in rows:
        held = sales.setdefault((shop, item), {"sales": 0, "best": None})
        held["sales"] += 1
        items[item] += 1
        if amount is not None:
            held["best"] = amount if held["best"] is None else max(held["best"], amount)
            turnover[()] = turnover.get((), 0) + amount
            by_shop[shop,] = by_shop.get((shop,), 0) + amount
    return {
        "Sales": sales,
        "Turnover": turnover,
        "ShopTurnover": by_shop,
        "FirstThree": {(item,): min(3, count) for item, count in items.items()},
    }


FIRST: list[list[Row]] = [
    [("a", 1, 10, 100), ("b", 1, 5, 95), (None, 2, 7, 101), ("a", 1, None, 103)],
    [("a", 2, 2**62, 111), ("b", 1, 1, 104), ("b", 1, 5, 111), ("", 3, -4, 120)],
]
SECOND_START: dict[str, list[Row]] = {
    "c.parquet": [("c", 9, 1, 131), ("a", 1, 30, 128)],
    # An old name, and old messages: one within the allowed delay, one beyond it.
    "a-forgotten.parquet": [("c", 9, 2, 122), ("a", 1, 1000, 60), ("a", 1, 1000, None)],
}
LATE: list[Row] = [("a", 1, 1000, 60)]


@dataclass
class Shown:
    """What the sinks and the progress of an application were given."""

    counts: list[int] = field(default_factory=list)
    values: dict[int, dict[Any, Any]] = field(default_factory=lambda: defaultdict(dict))
    ignored: list[int] = field(default_factory=list)
    progress: list[Progress] = field(default_factory=list)

    def use(self, values: DataFrame, batch: int) -> None:
        """Acts on the values twice, and once more for nothing."""
        self.counts.append(values.count())
        once, twice = ({(row["shop"], row["item"]): row["value"] for row in values.collect()} for _ in range(2))
        assert once == twice
        self.values[batch].update({key: value.asDict() for key, value in once.items()})

    def ignore(self, values: DataFrame, batch: int) -> None:
        self.ignored.append(batch)


@dataclass(frozen=True)
class Ran:
    """An application after two runs, the second closed, with another number of shards and another interval."""

    app: Application
    first: Shown
    between: Mapping[str, dict[Any, Any]]
    second: Shown


TASKS = (Sales(), Turnover(), ShopTurnover(), FirstThree())


@pytest.fixture(scope="module")
def ran(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("shops")

    def application(shown: Shown, shards: int, interval: str) -> Application:
        app = Application(
            "shops", str(folder / "store"), checkpoint_interval=interval, allowed_delay="10 seconds", shards=shards
        )
        for task, function in zip(TASKS, (shown.use, shown.ignore, None, None), strict=True):
            running = RunningValues(function) if function else None
            app.add(task, FileSource(folder / "in", timestamp="ts", max_files_per_batch=1), running)
        return app

    for i, rows in enumerate(FIRST):
        write(folder / "in", f"b-{i}.parquet", rows)
    first, second = Shown(), Shown()
    app = application(first, 3, "10 seconds")
    app.run(spark, on_progress=first.progress.append)
    between = {task.task_name: table(app, task) for task in TASKS}
    for name, rows in SECOND_START.items():
        write(folder / "in", name, rows)
    app = application(second, 2, "4 seconds")
    app.run(spark, drain=True, on_progress=second.progress.append)
    return Ran(app, first, between, second)


def test_the_state_at_the_global_clock_is_the_fold_of_the_messages_below_it(ran: Ran) -> None:
    assert ran.between == expected(row for rows in FIRST for row in rows if row[3] is not None and row[3] < 110)


def test_every_message_is_in_the_state_of_each_task_after_another_start_and_a_close(ran: Ran) -> None:
    on_time = [
        row for rows in [*FIRST, *SECOND_START.values()] for row in rows if row not in LATE and row[3] is not None
    ]
    assert {task.task_name: table(ran.app, task) for task in TASKS} == expected(on_time)
    assert open_store(ran.app.store).application(ran.app.name).clocks()[-1] == 132 * SECOND


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_name)
def test_late_and_bad_rows_are_kept_and_counted(ran: Ran, task: PersistentTask) -> None:
    kept = [
        row
        for rows in open_store(ran.app.store).application(ran.app.name).late_rows(task.task_name)
        for row in rows.to_pylist()
    ]
    assert sorted((row["reason"], row["timestamp"]) for row in kept if row["reason"] == "late") == [
        ("late", 60 * SECOND)
    ]
    assert Counter(row["reason"] for row in kept) == {"late": 1, "no timestamp": 1}
    assert all(row["channel"] == "" and row["row"].get("amount", 1000) == 1000 for row in kept)
    last = [progress for progress in ran.second.progress if progress.task == task.task_name][-1]
    assert (last.late, last.bad) == (1, 1)


def test_a_sink_gets_the_running_values_of_the_touched_keys_whatever_it_does_with_them(ran: Ran) -> None:
    so_far: list[Row] = []
    for batch, rows in enumerate(FIRST):
        so_far += rows
        touched = {(shop, item) for shop, item, _, _ in rows}
        running = {key: value for key, value in expected(so_far)["Sales"].items() if key in touched}
        assert ran.first.values[batch] == running
        assert ran.first.counts[batch] == len(running)
    assert ran.first.ignored == [0, 1]


def test_progress_tells_what_each_commit_came_to(ran: Ran) -> None:
    for task in TASKS:
        told = [p for p in ran.first.progress if p.task == task.task_name]
        assert [(p.batch, p.messages, p.replayed, p.late, p.bad) for p in told] == [(1, 4, 0, 0, 0), (2, 4, 0, 0, 0)]
        assert [(p.upstream_min, p.clock) for p in told] == [(93 * SECOND, 90 * SECOND), (110 * SECOND, 110 * SECOND)]
        # Only what stands at or above the clock comes again.
        assert sum(p.replayed for p in ran.second.progress if p.task == task.task_name) == 3
    assert max(p.global_clock for p in ran.first.progress) == 110 * SECOND


class Stumbles(PersistentTask):
    """Raises at one message, before the shuffle."""

    key = "shop"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        if message["item"] == 13:
            raise ValueError("thirteen")
        state.update(message.timestamp, message["amount"])


class StumblesReading(Stumbles):
    """Raises at one message, after the shuffle."""

    name = "Stumbles"
    reads_state: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("task", "row", "on_bad_row", "words"),
    [
        (Stumbles(), ("z", 13, 1, 150), "keep", ["ValueError('thirteen')", "file='1.parquet' line=3"]),
        (
            StumblesReading(),
            ("z", 13, 1, 150),
            "keep",
            ["ValueError('thirteen')", "channel='' partition='' position=2"],
        ),
        (Stumbles(), ("z", 1, 1, None), "fail", ["bad row", "no timestamp", "file='1.parquet' line=3"]),
    ],
    ids=["before the shuffle", "after the shuffle", "bad row"],
)
def test_a_failing_task_names_the_message_and_leaves_the_state_as_it_was(
    spark: SparkSession, tmp_path: Path, task: PersistentTask, row: Row, on_bad_row: str, words: list[str]
) -> None:
    write(tmp_path / "in", "1.parquet", [("a", 1, 10, 100), ("b", 1, 5, 130), row])
    app = Application("fails", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1)
    app.add(task, FileSource(tmp_path / "in", timestamp="ts"), on_bad_row=on_bad_row)
    with pytest.raises(TaskFailedError) as failed:
        app.run(spark)
    for word in [*words, "Stumbles", "'shop': 'z'"]:
        assert word in str(failed.value)
    entry = Log(open_files(app.store), app.name).newest()
    assert entry is not None
    assert (entry.number, entry.tasks["Stumbles"].stored.runs, entry.flow_of("Stumbles").source.positions) == (
        1,
        (),
        {},
    )
    # The next start reads what the failed one did not commit.
    (tmp_path / "in" / "1.parquet").unlink()
    write(tmp_path / "in", "2.parquet", [("a", 1, 10, 100), ("b", 1, 5, 130)])
    app.run(spark, drain=True)
    assert table(app, task) == {("a",): 10, ("b",): 5}


def test_a_store_in_memory_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "1.parquet", [("a", 1, 10, 100)])
    app = Application("memory", "memory://apps").add(Turnover(), FileSource(tmp_path / "in", timestamp="ts"))
    with pytest.raises(InvalidInputError, match=r"^store=memory:// can't be reached by Spark's workers; use a folder"):
        app.run(spark)


def test_a_second_driver_fences_the_first_which_changes_nothing_more(spark: SparkSession, tmp_path: Path) -> None:
    def application() -> Application:
        app = Application("fenced", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1)
        return app.add(ShopTurnover(), FileSource(tmp_path / "in", timestamp="ts"))

    write(tmp_path / "in", "1.parquet", [("a", 1, 10, 100)])
    first = application().start(spark)
    try:
        second = application().run(spark)
        write(tmp_path / "in", "2.parquet", [("a", 1, 5, 130)])
        with pytest.raises(FencedError):
            first.await_termination(PATIENCE)
        assert not first.is_active
        with pytest.raises(FencedError):
            first.drain()
    finally:
        first.stop()
    app = application()
    entry = Log(open_files(app.store), app.name).newest()
    assert entry is not None
    assert entry.epoch == second._supervisor.entry.epoch
    app.run(spark, drain=True)
    assert table(app, ShopTurnover()) == {("a",): 15}


def test_an_error_of_spark_itself_is_an_error_of_this_package(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "in", "1.parquet", [("a", 1, 10, 100)])

    def sink(values: DataFrame, batch: int) -> None:
        values.select("no such column").collect()

    app = Application("broken", str(tmp_path / "store"), checkpoint_interval="10 seconds", shards=1, max_restarts=0)
    app.add(Turnover(), FileSource(tmp_path / "in", timestamp="ts"), RunningValues(sink))
    with pytest.raises(StateError, match="no such column"):
        app.run(spark)
