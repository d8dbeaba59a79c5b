"""Any streaming DataFrame on a real Spark, beside other sources of the same files, and plain Python: all give one state."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import partial, reduce
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from monoids import List, Map, Max, Min, Monoid, Struct, Sum
from persistent_state import (
    Application,
    DataFrameSource,
    FileSource,
    InvalidInputError,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    RateSource,
    TaskFailedError,
    open_store,
    read_state,
)
from persistent_state.engine.read.dataframe_source import columns_of
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests.spark import files as stream

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from persistent_state.run.progress import Progress
    from persistent_state.sources.base import TimeReplayableSource

UTC = timezone.utc
SECOND = 1_000_000
START = 1_700_000_010 * SECOND
DELAY, INTERVAL = 10 * SECOND, 15 * SECOND
YEAR_1, YEAR_9999 = -62_135_596_800_000_000, 253_402_300_799_999_999
LATE, AHEAD, NO_TIMESTAMP, UNFIT = "late", "timestamp ahead of the batch time", "no timestamp", "value does not fit"
LANES = ["north", "south", None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A monoid, the column of its updates, what keys it is kept by, and which source feeds the task of each way."""

    monoid: Monoid[Any]
    type: pa.DataType
    update: Callable[[Random], Any]
    keys: tuple[tuple[pa.DataType, Sequence[Any]], ...]
    time_zone: str
    sources: Sequence[str]


def instant(chance: Random) -> datetime:
    far = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)]
    return chance.choice(
        [*far, datetime(2020, 3, 8, 2, 30, tzinfo=UTC) + timedelta(microseconds=chance.randrange(9**9))]
    )


MONEY = pa.decimal128(38, 3)
INSTANT = pa.timestamp("us", "UTC")
EVERYTHING = Struct(n=Sum(), money=Sum(MONEY), first=Min(INSTANT), names=Map(pa.string(), Max(pa.date32())))
DAYS = [date(1, 1, 1), date(9999, 12, 31)]


def everything(chance: Random) -> Any:
    return {
        "n": chance.randrange(-(2**63), 2**63),
        "money": Decimal(chance.randrange(-(10**18), 10**18)) / 100,
        "first": chance.choice([None, instant(chance)]),
        "names": {name: chance.choice(DAYS) for name in chance.sample("abc", 2)},
    }


KINDS = {
    "structs": Kind(
        EVERYTHING,
        EVERYTHING.type,
        everything,
        ((pa.float64(), [0.0, -0.0, math.nan, 1.5]), (pa.date32(), DAYS), (pa.bool_(), [True, False])),
        "America/New_York",
        ["files", "frame", "opened", "placed", "frame", "placed"],
    ),
    "floats of which some do not fit": Kind(
        Sum(pa.float64()),
        pa.float64(),
        lambda chance: chance.choice([math.nan, math.inf, *map(float, range(-9, 9))]),
        (
            (pa.string(), ["", "a", "a\0", "long enough for words"]),
            (INSTANT, [datetime(1, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)]),
            (pa.decimal128(20, 2), [Decimal("0.00"), Decimal("-1.25")]),
        ),
        "UTC",
        ["opened", "placed", "frame", "placed", "files", "files"],
    ),
}


class Kept(PersistentTask):
    """One task, said in each of the ways by its subclasses."""

    def __init__(self, name: str, monoid: Monoid[Any], key: Sequence[str] | None) -> None:
        self.name, self.monoid, self.key = name, monoid, key

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)


class ByMessage(Kept):
    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        # Arrow hands out a map as a list of pairs.
        state.update(message.timestamp, kept(self.monoid, message["update"]))


class ByReading(ByMessage):
    reads_state: ClassVar[bool] = True


class ByBatch(Kept):
    def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
        return batch["update"]


class ByValue(Kept):
    value = "update"


class ByColumn(Kept):
    def process_column(self, rows: DataFrame) -> Column:
        return rows["update"]


class Journal(Kept):
    """The numbers of the messages in their order, which does not commute."""

    def process_column(self, rows: DataFrame) -> Column:
        from pyspark.sql import functions as F

        return F.array(rows["number"])


WAYS: list[type[Kept]] = [ByMessage, ByReading, ByBatch, ByValue, ByColumn]


@dataclass
class Delivery:
    """A source of the test's files, and what its rows can be told apart by."""

    source: TimeReplayableSource | DataFrameSource
    channel: bool = False
    positions: bool = True
    leaves_out: bool = False


def frame(spark: SparkSession, folder: Path, schema: pa.Schema, files: int = 1) -> DataFrame:
    from persistent_state.engine.spark.versions import spark_types

    reader = spark.readStream.schema(spark_types(schema)).option("maxFilesPerTrigger", files)
    return reader.parquet(str(folder))


@dataclass
class Opener:
    """Makes the DataFrame again at each start, without what is older than the clock, and with all that may precede a task."""

    folder: Path
    schema: pa.Schema
    clocks: list[int | None] = field(default_factory=list)

    def __call__(self, spark: SparkSession, clock: int | None) -> DataFrame:
        from pyspark.sql import functions as F

        self.clocks.append(clock)
        rows = frame(spark, self.folder, self.schema)
        if clock is not None:
            rows = rows.where(F.col("ts").isNull() | (F.col("ts") >= F.timestamp_micros(F.lit(clock))))
        # An aggregate of a table that stands still is none of the stream.
        once = spark.createDataFrame([(0,), (1,), (1,)], "copy int").groupBy("copy").count().where("count = 1")
        twice = rows.withColumn("copy", F.explode(F.array(F.lit(0), F.lit(1))))
        return twice.join(F.broadcast(once), "copy").drop("copy", "count").repartition(3)


def messages(chance: Random, kind: Kind, file: int, count: int = 24) -> list[Row]:
    """A file's rows: out of order within the allowed delay or beyond it, some of them far late, some bad."""
    rows: list[Row] = []
    for place in range(count):
        ts: int | None = START + (30 * file + chance.randrange(30)) * SECOND + chance.choice([0, 0, 123_456])
        lot = chance.randrange(12)
        if lot == 0:
            ts = START - 20 * SECOND
        elif lot == 1:
            ts = chance.choice([None, YEAR_9999])
        keys = {f"k{i}": chance.choice([None, *values]) for i, (_, values) in enumerate(kind.keys)}
        update = None if lot == 2 else kind.update(chance)
        rows.append({"number": file * count + place, "ts": ts, "lane": chance.choice(LANES), **keys, "update": update})
    return rows


def key_form(value: Any) -> Any:
    """Keys as the store tells them apart: one zero, and one NaN."""
    return ("NaN" if math.isnan(value) else value + 0.0) if isinstance(value, float) else value


@dataclass
class Outcome:
    """What a run makes of the files, by the contract: which rows it keeps, which not and why, and its clock at the end."""

    kept: list[Row] = field(default_factory=list)
    aside: list[tuple[str, Row]] = field(default_factory=list)
    unknown: int = 0
    clock: int = BEGINNING

    def below(self, clock: int) -> Outcome:
        """What stays of it when the next start goes back to a clock; all else is delivered again."""
        aside = [(reason, row) for reason, row in self.aside if row["ts"] is not None and row["ts"] < clock]
        return Outcome([row for row in self.kept if row["ts"] < clock], aside)


def play(
    files: Sequence[Sequence[Row]],
    how: Delivery,
    fits: Callable[[Any], bool],
    before: Outcome | None = None,
    restored: int = BEGINNING,
    read: int = 0,
) -> Outcome:
    """The files one after the other from the clock `restored`; `read` of them had been read then, with the outcome `before`."""
    out = before.below(restored) if before else Outcome()
    newest: dict[str, int | None] = {}
    if before and how.channel:
        late = (row for reason, row in before.aside if reason == LATE)
        newest = dict.fromkeys(row["lane"] or "" for row in (*before.kept, *late))
    out.clock = restored
    for number, rows in enumerate(files):
        clock = out.clock
        for row in rows:
            ts = row["ts"]
            if ts is not None and ts < restored and (how.leaves_out or not how.positions or number < read):
                out.unknown += not how.leaves_out and not how.positions
            elif ts is None or ts < clock or ts == YEAR_9999:
                if how.channel and ts is not None and ts < clock:
                    newest.setdefault(row["lane"] or "", None)
                out.aside.append((NO_TIMESTAMP if ts is None else LATE if ts < clock else AHEAD, row))
            else:
                channel = (row["lane"] or "") if how.channel else ""
                newest[channel] = max(ts, newest.get(channel) or ts)
                if fits(row["update"]):
                    out.kept.append(row)
                else:
                    out.aside.append((UNFIT, row))
        if newest and None not in newest.values():
            upstream = min(ts for ts in newest.values() if ts is not None) - DELAY
            out.clock = max(clock, upstream // INTERVAL * INTERVAL)
    return out


def fold(rows: Iterable[Row], task: Kept) -> dict[Any, Any]:
    """The state of a task by the definition: its rows one by one, in order of time, channel and position."""
    updates: dict[Any, list[Any]] = {}
    for row in sorted(rows, key=lambda row: (row["ts"], row["lane"] or "", row["number"])):
        update = [row["number"]] if isinstance(task, Journal) else row["update"]
        if update is not None:
            updates.setdefault(tuple(key_form(row[name]) for name in task.key_columns), []).append(update)
    monoid = task.monoid
    return {key: reduce(monoid.plus, (kept(monoid, value) for value in values)) for key, values in updates.items()}


def kept(monoid: Monoid[Any], value: Any) -> Any:
    """What a monoid makes of one value alone, as a column."""
    return monoid.from_arrow(pa.array([value], monoid.type))[0]


def fits_finite(update: Any) -> bool:
    return not isinstance(update, float) or math.isfinite(update)


def state(app: Application, task: Kept) -> dict[Any, Any]:
    """The state of a task at the global clock."""
    table = read_state(app.store, app.name, task)
    values = task.monoid.from_arrow(table["value"].combine_chunks())
    keys = zip(*(table[name].to_pylist() for name in task.key_columns), strict=True)
    found = {tuple(map(key_form, key)): value for key, value in zip(keys, values, strict=True)}
    assert len(found) == table.num_rows, "a key is there once"
    return found


def aside(app: Application, task: PersistentTask) -> list[tuple[str, int]]:
    """The rows that a task's store keeps aside, by reason and number."""
    rows = (
        row
        for table in open_store(app.store).application(app.name).late_rows(task.task_name)
        for row in table.to_pylist()
    )
    return sorted((row["reason"], row["row"]["number"]) for row in rows)


@dataclass
class Case:
    """The same files through several sources to tasks of each kind, and what must come of it."""

    folder: Path
    kind: Kind
    deliveries: Mapping[str, Delivery]
    tasks: list[tuple[Kept, str]]
    files: list[list[Row]] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    clock: int = BEGINNING

    def application(self, shards: int) -> Application:
        app = Application(
            "ways",
            str(self.folder / "store"),
            checkpoint_interval="15 seconds",
            allowed_delay="10 seconds",
            shards=shards,
        )
        for task, delivery in self.tasks:
            app.add(task, self.deliveries[delivery].source)
        return app

    def play(self, read: int) -> None:
        """Let the model run once, from the global clock, after so many files."""
        self.outcomes = {
            task.name: play(
                self.files,
                self.deliveries[delivery],
                (lambda update: True) if isinstance(task, Journal) else fits_finite,
                self.outcomes.get(task.name),
                self.clock,
                read,
            )
            for task, delivery in self.tasks
        }
        self.clock = min(outcome.clock for outcome in self.outcomes.values())

    def check(self, app: Application, clock: int, told: Sequence[Progress]) -> None:
        for task, delivery in self.tasks:
            outcome = self.outcomes[task.name]
            what = f"{task.name} of {delivery}"
            assert state(app, task) == fold(outcome.below(clock).kept, task), what
            assert aside(app, task) == sorted((reason, row["number"]) for reason, row in outcome.aside), what
            mine = [progress for progress in told if progress.task == task.name and progress.epoch == told[-1].epoch]
            reasons = Counter(reason for reason, _ in outcome.aside)
            assert dict(mine[-1].reasons) == dict(reasons), what
            assert (mine[-1].late, mine[-1].bad) == (reasons[LATE], reasons.total() - reasons[LATE]), what
            assert sum(progress.replayed_or_late for progress in mine) == outcome.unknown, what


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_the_source_and_however_a_task_says_its_update_its_state_is_the_fold_of_the_messages(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    chance, of = Random(kind), KINDS[kind]
    keys = [(f"k{i}", type) for i, (type, _) in enumerate(of.keys)]
    schema = pa.schema([("number", pa.int64()), ("ts", INSTANT), ("lane", pa.string()), *keys, ("update", of.type)])
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", of.time_zone)
    session.conf.set("spark.sql.shuffle.partitions", "7")
    settings = session.conf.getAll
    folder = tmp_path / "in"
    folder.mkdir()
    rows = frame(session, folder, schema)
    opener = Opener(folder, schema)
    deliveries = {
        "files": Delivery(FileSource(folder, timestamp="ts", schema=schema, max_files_per_batch=1)),
        "frame": Delivery(DataFrameSource(rows, "ts"), positions=False),
        "placed": Delivery(DataFrameSource(rows, "ts", channel="lane", position="number"), channel=True),
        "opened": Delivery(DataFrameSource(opener, "ts"), positions=False, leaves_out=True),
    }
    names = [name for name, _ in keys]
    every = [*(way(way.__name__, of.monoid, names) for way in WAYS), Journal("Journal", List(pa.int64()), names)]
    tasks = list(zip(every, of.sources, strict=True))
    case = Case(tmp_path, of, deliveries, tasks)

    def deliver() -> None:
        case.files.append(messages(chance, of, len(case.files)))
        stream.write(folder, len(case.files), case.files[-1], schema)

    for _ in range(2):
        deliver()
    told: list[Progress] = []
    case.play(read=0)
    app = case.application(shards=2)
    app.run(session, on_progress=told.append)
    assert open_store(app.store).application(app.name).clocks()[-1:] == [case.clock]
    case.check(app, case.clock, told)

    deliver()
    told.clear()
    first = case.clock
    case.play(read=2)
    app = case.application(shards=3)
    running = app.run(session, on_progress=told.append)
    assert open_store(app.store).application(app.name).clocks()[-1] == case.clock > first
    case.check(app, case.clock, told)
    assert running.drain() == running.clock == open_store(app.store).application(app.name).clocks()[-1]
    case.check(app, YEAR_9999, told)

    reasons = {reason for outcome in case.outcomes.values() for reason, _ in outcome.aside}
    assert reasons >= {LATE, AHEAD, NO_TIMESTAMP} | ({UNFIT} if of.type == pa.float64() else set())
    assert any(outcome.unknown for outcome in case.outcomes.values())
    assert opener.clocks[0] is None
    assert set(opener.clocks) == {None, first}
    assert session.conf.getAll == settings


class Totals(PersistentTask):
    """The number of messages by some key, or what else is to be told of it."""

    def __init__(self, name: str, key: str | Sequence[str] | None, value: str, monoid: Monoid[Any]) -> None:
        self.name, self.key, self.value, self.monoid = name, key, value, monoid

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)


class ColumnTotals(Kept):
    """The sum of a column whose name is none that SQL takes as it is."""

    def process_column(self, rows: DataFrame) -> Column:
        return rows["`up.``date s`"]


def test_odd_names_times_and_partitions_come_out_right(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    schema = pa.schema(
        [
            ("number", pa.int64()),
            ("ts", INSTANT),
            ("local", pa.timestamp("us")),
            ("far", INSTANT),
            ("lane", pa.string()),
        ]
    )
    rows = [
        {"number": n, "ts": START + n * SECOND + 123_456, "local": START + n * SECOND, "lane": LANES[n % 3]}
        for n in range(12)
    ]
    for row, far in zip(rows, [YEAR_1, *range(10), YEAR_9999], strict=True):
        row["far"] = far
    folder = tmp_path / "in"
    for file in range(3):
        stream.write(folder, file, rows[file * 4 : file * 4 + 4], schema)
    (tmp_path / "empty").mkdir()
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    plain = frame(session, folder, schema, files=2)
    odd = plain.select(
        F.col("number").alias("num.ber"), F.col("ts").alias("t`s"), F.col("lane").alias("the lane"),
        F.col("number").alias("up.`date s"),
    )  # fmt: skip
    # A literal makes a field that Spark's type requires, and the struct around it is null here and there.
    struct = F.when(F.col("number") > 9, F.struct(F.lit(1).alias("x")))
    later = plain.where("number >= 8").repartition(3).withColumn("some", F.array(struct)).withColumn("one", struct)
    tasks: list[tuple[PersistentTask, DataFrameSource]] = [
        (ColumnTotals("Odd", Sum(), ["the lane", "t`s"]), DataFrameSource(odd, "t`s", "the lane", position="num.ber")),
        (Totals("Local", "local", "ts", Max(INSTANT)), DataFrameSource(plain, "local")),
        (Totals("Far", "lane", "far", Min(INSTANT)), DataFrameSource(plain, "far")),
        (Totals("Later", "number", "local", Max(pa.timestamp("us"))), DataFrameSource(later, "ts")),
        (Totals("Nothing", None, "number", Sum()), DataFrameSource(plain.where(F.lit(False)), "ts")),
        (
            Totals("Empty", None, "number", Sum()),
            DataFrameSource(frame(session, tmp_path / "empty", schema), "ts"),
        ),
    ]
    app = Application("odd", str(tmp_path / "store"), checkpoint_interval="1 day", max_ahead="10000000 days", shards=2)
    for task, source in tasks:
        app.add(task, source)
    app.run(session, drain=True)

    def instant(us: int) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)

    found = {}
    for task, _ in tasks:
        table = read_state(app.store, app.name, task).to_pylist()
        found[task.task_name] = {tuple(row[name] for name in task.key_columns): row["value"] for row in table}
        assert open_store(app.store).application(app.name).late_rows(task.task_name) == []
    far: dict[Any, datetime] = {}
    for row in rows[::-1]:
        far[row["lane"],] = min(instant(row["far"]), far.get((row["lane"],), instant(YEAR_9999)))
    assert found == {
        "Odd": {(row["lane"], instant(row["ts"])): row["number"] for row in rows},
        "Local": {(instant(row["local"]).replace(tzinfo=None),): instant(row["ts"]) for row in rows},
        "Far": far,
        "Later": {(row["number"],): instant(row["local"]).replace(tzinfo=None) for row in rows[8:]},
        "Nothing": {},
        "Empty": {},
    }


def test_a_row_without_a_position_makes_no_other_be_taken_for_read_and_a_negative_one_stops(
    spark: SparkSession, tmp_path: Path
) -> None:
    schema = pa.schema([("number", pa.int64()), ("ts", INSTANT), ("lane", pa.string())])
    folder = tmp_path / "in"
    task = Totals("Lanes", "lane", "number", Max())

    def run(file: int, *rows: tuple[int | None, int]) -> tuple[list[Any], Progress]:
        lane = [{"number": number, "ts": START + seconds * SECOND, "lane": "north"} for number, seconds in rows]
        stream.write(folder, file, lane, schema)
        told: list[Progress] = []
        app = Application(
            "places", str(tmp_path / "store"), checkpoint_interval="15 seconds", allowed_delay="10 seconds", shards=1
        )
        app.add(task, DataFrameSource(frame(spark, folder, schema), "ts", "lane", position="number"))
        app.run(spark, on_progress=told.append)
        return read_state(app.store, app.name, task)["value"].to_pylist(), told[-1]

    assert run(0, (None, 0), (None, 10), (None, 30)) == ([], mock.ANY)
    state, told = run(1, (5, 31), (6, 32), (7, 60))
    assert state == [6]
    assert (told.messages, told.replayed, told.late) == (3, 0, 0)
    with pytest.raises(TaskFailedError, match="task=Lanes: position=-1 of column 'number' is negative; count from 0"):
        run(2, (8, 70), (-1, 80))


def test_a_file_of_another_type_than_spark_is_to_read_ends_the_run_at_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    # As pandas writes times.
    rows = pa.table({"ts": pa.array([START * 1000], pa.timestamp("ns"))})
    pq.write_table(rows, tmp_path / "in" / "0.parquet")
    app = Application("nanoseconds", str(tmp_path / "store"), shards=1)
    frames = spark.readStream.schema("ts timestamp").parquet(str(tmp_path / "in"))
    app.add(Totals("Times", None, "ts", Max(INSTANT)), DataFrameSource(frames, "ts"))
    sentence = (
        r"^task=Times: \[FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH\] .*0.parquet.*Give Spark's schema the type"
    )
    with pytest.raises(InvalidInputError, match=f"(?s){sentence}"):
        app.run(spark)
    assert "starts again" not in caplog.text


class MostRecent(Kept):
    """The greatest number, said as a Column."""

    def process_column(self, rows: DataFrame) -> Column:
        return rows["value"]


def test_a_rate_goes_on_where_it_was_after_another_start(spark: SparkSession, tmp_path: Path) -> None:
    begin = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    tasks = [Totals("Total", None, "value", Sum()), MostRecent("MostRecent", Max(), None)]

    def run(seconds: int, shards: int) -> list[Any]:
        now = int(begin.timestamp() + seconds) * SECOND
        app = Application(
            "rate", str(tmp_path / "store"), checkpoint_interval="10 seconds", allowed_delay="1 second", shards=shards
        )
        for task in tasks:
            app.add(task, RateSource(10, start=begin, rows_per_batch=250, now_us=partial(int, now)))
        app.run(spark)
        assert [open_store(app.store).application(app.name).late_rows(task.task_name) for task in tasks] == [[], []]
        return [read_state(app.store, app.name, task)["value"].to_pylist() for task in tasks]

    # The newest message is a tenth of a second old, the clock a second behind it, on a multiple of ten.
    assert run(34, shards=2) == [[sum(range(300))], [299]]
    assert run(52, shards=1) == [[sum(range(500))], [499]]


class Says(Kept):
    """Its update is whatever it is given to say."""

    def __init__(self, said: Callable[[DataFrame], Any], monoid: Monoid[Any]) -> None:
        super().__init__("Says", monoid, None)
        self.said = said

    def process_column(self, rows: DataFrame) -> Column:
        said: Column = self.said(rows)
        return said


def row_number(rows: DataFrame) -> Column:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    return F.row_number().over(Window.partitionBy("lane").orderBy("ts"))


def counted_with_state(rows: DataFrame) -> DataFrame:
    return rows.groupBy("lane").applyInPandasWithState(
        lambda key, frames, state: frames, "ts timestamp", "n int", "update", "NoTimeout"
    )


def of_the_whole_lane(rows: DataFrame) -> DataFrame:
    return rows.groupBy("lane").applyInPandas(lambda frame: frame, rows.schema)


def static(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.createDataFrame([("north",)], "lane string")


STATEFUL = "a restart does not bring again; do that in a task, with a monoid"
FRAMES: dict[str, tuple[Callable[[DataFrame], Any], str]] = {
    "aggregation": (lambda rows: rows.groupBy("ts").count(), rf"stateful Aggregate .*{STATEFUL}"),
    "windows": (
        lambda rows: rows.withWatermark("ts", "1 second").groupBy("ts").count(),
        rf"stateful Aggregate .*{STATEFUL}",
    ),
    "duplicates": (lambda rows: rows.dropDuplicates(["lane"]), rf"stateful Deduplicate .*{STATEFUL}"),
    "distinct": (lambda rows: rows.select("ts").distinct(), rf"stateful D\w+ .*{STATEFUL}"),
    "below": (lambda rows: rows.union(rows.dropDuplicates(["lane"])).where("number > 1"), "stateful Deduplicate "),
    "limit": (lambda rows: rows.limit(3), rf"stateful GlobalLimit .*{STATEFUL}"),
    "two streams": (lambda rows: rows.join(rows.selectExpr("lane"), "lane"), rf"stateful Join .*{STATEFUL}"),
    "own state": (counted_with_state, rf"stateful FlatMapGroupsInPandasWithState .*{STATEFUL}"),
    "groups": (of_the_whole_lane, rf"stateful FlatMapGroupsInPandas .*{STATEFUL}"),
    "sorted": (lambda rows: rows.orderBy("ts"), "a DataFrame that Spark can't run as a stream: .*[Ss]ort"),
    "outer join": (lambda rows: static(rows).join(rows, "lane", "left"), "that Spark can't run as a stream: "),
    "static": (lambda rows: static(rows), "not a streaming DataFrame; make one with spark.readStream"),
    "nothing": (lambda rows: lambda spark, clock: None, "DataFrameSource has None, not a streaming DataFrame"),
    "no schema": (
        lambda rows: lambda spark, clock: spark.readStream.parquet(str(Path(__file__).parent)),
        r"the function of DataFrameSource raised IllegalArgumentException: Schema must be specified [^\n]* at [^\n]*/"
        r"test_dataframe.py:\d+ in <lambda>; fix it\.$",
    ),
    "same names": (lambda rows: rows.select("ts", "lane", "ts"), "columns of the same name, .*; rename them"),
    "no type": (
        lambda rows: rows.selectExpr("*", "make_interval(1, 2) AS gap"),
        "column 'gap' of its source is interval, which can't go through both Spark and Arrow: .*; cast it, or leave it out",
    ),
    "one name twice": (
        lambda rows: rows.selectExpr("*", "array(named_struct('n', 1, 'n', 2)) AS pairs"),
        "column 'pairs' of its source has a struct with two fields named 'n'; rename one, or leave it out",
    ),
    "our name": (
        lambda rows: rows.withColumnRenamed("lane", "_persistent_state_now"),
        "the name of column '_persistent_state_now' is this package's own; rename it",
    ),
}
COLUMNS: dict[str, tuple[Callable[[DataFrame], Any], str]] = {
    "no column": (lambda rows: "number", "process_column of task=Says gave 'number', not a Spark Column; make it one"),
    "unknown": (
        lambda rows: rows["nowhere"],
        "process_column of task=Says can't be worked out at .*test_dataframe.*nowhere",
    ),
    "aggregate": (lambda rows: functions().sum("number"), "process_column of task=Says can't be worked out: "),
    "several": (
        lambda rows: functions().explode(functions().array("number")),
        "process_column of task=Says can't be worked out: .*GENERATOR",
    ),
    "window": (row_number, "process_column of task=Says can't be worked out: "),
    "type": (lambda rows: rows["lane"], "Sum holds int64 and can't take the column of string; cast the column"),
}


def functions() -> Any:
    from pyspark.sql import functions as F

    return F


PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown position": ({"position": "nowhere"}, "position='nowhere', which is not in it; name a column of integers"),
    "position of text": ({"position": "lane"}, "position='lane', which is string; name a column of integers"),
    "channels of no column": ({"channels": ["north"]}, r"channels=\['north'\] and no channel column; name it"),
    "no order": ({}, "List does not commute, and its source gives messages of one time no order; name a column of po"),
}


@pytest.fixture(scope="module")
def shut(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[DataFrame, Path]:
    """A streaming DataFrame of no rows, and a folder for what nothing may be written to."""
    folder = tmp_path_factory.mktemp("shut")
    (folder / "in").mkdir()
    return frame(
        spark, folder / "in", pa.schema([("number", pa.int64()), ("ts", INSTANT), ("lane", pa.string())])
    ), folder


def refused(shut: tuple[DataFrame, Path], task: PersistentTask, source: Any, sentence: str) -> None:
    app = Application("refused", str(shut[1] / "store")).add(task, source)
    with pytest.raises(InvalidInputError, match=f"(?s){sentence}"):
        app.run(shut[0].sparkSession)
    assert Log(open_files(app.store), app.name).newest() is None


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_that_could_not_be_replayed_is_refused_before_anything_is_written(
    shut: tuple[DataFrame, Path], name: str
) -> None:
    make, sentence = FRAMES[name]
    refused(shut, Totals("Total", None, "ts", Max(INSTANT)), DataFrameSource(make(shut[0]), "ts"), sentence)


class Once(Totals):
    message_id, horizon = "lane", "1 day"


@pytest.mark.parametrize("collation", ["UTF8_LCASE", "UNICODE_CI", "UTF8_BINARY_RTRIM"])
def test_a_key_or_an_id_that_spark_compares_loosely_is_refused_and_any_other_column_is_taken(
    shut: tuple[DataFrame, Path], collation: str
) -> None:
    rows = shut[0].withColumn("lane", functions().collate("lane", collation))
    sentence = rf"'lane' has the collation {collation}, .* take F.collate\('lane', 'UTF8_BINARY'\)"
    refused(shut, Totals("Total", "lane", "ts", Max(INSTANT)), DataFrameSource(rows, "ts"), f"its key {sentence}")
    once = Once("Total", None, "ts", Max(INSTANT))
    refused(shut, once, DataFrameSource(rows, "ts"), f"its message id {sentence}")
    exact = rows.withColumn("lane", functions().collate("lane", "UTF8_BINARY"))
    columns_of(rows.sparkSession, once, DataFrameSource(exact, "ts"))
    for key, taken in ((None, rows), ("lane", exact)):
        columns_of(rows.sparkSession, Totals("Total", key, "ts", Max(INSTANT)), DataFrameSource(taken, "ts"))


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("kind", [DataFrameSource, FileSource], ids=lambda kind: kind.__name__)
def test_a_column_that_is_not_one_update_of_each_row_is_refused_before_anything_is_written(
    shut: tuple[DataFrame, Path], name: str, kind: type
) -> None:
    rows, folder = shut
    make, sentence = COLUMNS[name]
    schema = pa.schema([("number", pa.int64()), ("ts", INSTANT), ("lane", pa.string())])
    source = (
        DataFrameSource(rows, "ts")
        if kind is DataFrameSource
        else FileSource(folder / "in", timestamp="ts", schema=schema)
    )
    refused(shut, Says(make, Sum()), source, sentence)


@pytest.mark.parametrize("name", PLACES)
def test_positions_and_channels_that_are_none_are_refused_before_anything_is_written(
    shut: tuple[DataFrame, Path], name: str
) -> None:
    where, sentence = PLACES[name]
    source = DataFrameSource(shut[0], "ts", **where)
    refused(shut, Says(lambda rows: functions().array(rows["number"]), List(pa.int64())), source, sentence)


def test_columns_that_only_case_tells_apart_are_refused_where_spark_is_to_compute_the_update(
    shut: tuple[DataFrame, Path],
) -> None:
    schema = pa.schema([("n", pa.int64()), ("N", pa.int64()), ("ts", INSTANT)])
    source = FileSource(shut[1] / "in", timestamp="ts", schema=schema)
    sentence = r"process_column can't tell columns=\['n', 'N', 'ts'\] apart, .*; rename them by transform="
    refused(shut, Says(lambda rows: functions().lit(1), Sum()), source, sentence)
