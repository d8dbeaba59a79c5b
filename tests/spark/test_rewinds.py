"""A rewind on a real Spark: after a bug was deployed, state and every sink are as if it had never been."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest
import sqlalchemy as sa

from monoids import Sum
from persistent_state import (
    Application,
    DeltaSink,
    FileSource,
    InvalidInputError,
    NonWindowState,
    ParquetSink,
    PersistentTask,
    SqlSink,
    ValuesAtClock,
    open_store,
    read_state,
    verify,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECOND = 1_000_000
SCHEMA = pa.schema([("at", pa.int64()), ("shop", pa.string()), ("price", pa.int64())])
FILES = 6


class Revenue(PersistentTask):
    key = "shop"

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_batch(self, rows: pa.RecordBatch) -> pa.Array:
        return pa.array([self.factor * price for price in rows["price"].to_pylist()])


def orders() -> list[list[dict[str, Any]]]:
    """By file, ten seconds of orders each: some shops are in all of them, and some come with each."""
    return [
        [
            {"at": (10 * file + second) * SECOND, "shop": shop, "price": 1 + file + second}
            for second in (1, 4, 7)
            for shop in ("north", f"new {file}", f"every {second}")
        ]
        for file in range(FILES)
    ]


def expected(factor_of: Any) -> dict[str, int]:
    """The sums, each order times a factor by its time."""
    found: dict[str, int] = {}
    for order in (order for file in orders() for order in file):
        found[order["shop"]] = found.get(order["shop"], 0) + factor_of(order["at"]) * order["price"]
    return found


class World:
    """An application with a sink of each kind."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.database = folder, str(folder / "sinks.db")
        self.calls: list[tuple[str, int]] = []
        (folder / "orders").mkdir()
        for number, file in enumerate(orders()):
            lines = "\n".join(json.dumps(order) for order in file)
            (folder / "orders" / f"{number}.json").write_text(lines + "\n")

    def application(self, factor: int) -> Application:
        def given(values: DataFrame, clock: int) -> None:
            self.calls.append(("given", clock))

        app = Application("shop", str(self.folder / "store"), checkpoint_interval="10 seconds", retained_checkpoints=50)
        source = FileSource(self.folder / "orders", timestamp="at", schema=SCHEMA, max_files_per_batch=1)
        sinks = [
            SqlSink(self.database, "newest"),
            SqlSink(self.database, "history", history=True),
            ParquetSink(self.folder / "parquet"),
            DeltaSink(self.folder / "delta"),
            ValuesAtClock(given, name="function", on_rewind=lambda clock: self.calls.append(("back", clock))),
        ]
        return app.add(Revenue(factor), source, sinks)

    def state(self, clock: int | None = None) -> dict[str, int]:
        return by_shop(read_state(str(self.folder / "store"), "shop", "Revenue", clock).to_pylist())

    def check(self) -> None:
        """Every sink has what the state is, and at each clock what it was there."""
        store = str(self.folder / "store")
        assert verify(store).problems == ()
        with sa.create_engine(f"sqlite:///{self.database}").connect() as connection:
            newest = connection.exec_driver_sql("SELECT shop, value FROM newest").all()
            history = connection.exec_driver_sql("SELECT shop, clock, value FROM history").all()
        assert dict(map(tuple, newest)) == self.state()
        parquet = ParquetSink(self.folder / "parquet")
        delta = deltalake.DeltaTable(self.folder / "delta").to_pyarrow_table()
        tables = [
            [(row["shop"], row["clock"].timestamp() * SECOND, row["value"]) for row in table.to_pylist()]
            for table in (parquet.dataset().to_table(), delta)
        ]
        tables.append([(shop, seconds(clock), value) for shop, clock, value in history])
        assert parquet.clocks() == open_store(store).application("shop").clocks()
        for table in tables:
            assert len(table) == len({(shop, clock) for shop, clock, _ in table})
            for clock in open_store(store).application("shop").clocks():
                below = sorted((at, shop, value) for shop, at, value in table if at <= clock)
                assert {shop: value for _, shop, value in below} == self.state(clock)


def by_shop(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["shop"]: row["value"] for row in rows}


def seconds(text: str) -> int:
    """The microseconds of a time of day in SQLite."""
    hours, minutes, rest = text.split()[1].split(":")
    return int((int(hours) * 3600 + int(minutes) * 60 + float(rest)) * SECOND)


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_after_a_rewind_every_sink_is_as_if_what_was_above_the_clock_had_never_been(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(tmp_path)
    world.application(2).run(spark, drain=True)
    world.check()
    to = 20 * SECOND
    app = world.application(3)
    plan = app.plan_rewind("1970-01-01T00:00:23")
    assert plan.clock == to
    assert {each.action for each in plan.outputs} == {"retract"}
    assert all(each.rows for each in plan.outputs if "function" not in each.output)
    (reads,) = plan.reads
    assert (reads.tasks, reads.count, reads.unit) == (("Revenue",), FILES - 2, "files")
    done = app.rewind(plan)
    assert all(each.is_done for each in done.outputs)
    assert world.state() == world.state(to)
    world.check()
    assert world.calls[-1] == ("back", to)
    app.run(spark, drain=True)
    world.check()
    assert world.state() == expected(lambda at: 2 if at < to else 3)
    # Again, to a clock of the first timeline, when a sink does not answer.
    Path(world.database).rename(tmp_path / "away.db")
    Path(world.database).mkdir()
    done = world.application(5).rewind(10 * SECOND)
    assert [each.is_done for each in done.outputs if each.output.startswith("sql")] == [False, False]
    Path(world.database).rmdir()
    (tmp_path / "away.db").rename(world.database)
    world.application(5).run(spark, drain=True)
    world.check()
    assert world.state() == expected(lambda at: 2 if at < 10 * SECOND else 5)


def test_an_application_whose_function_can_t_go_back_is_refused_and_runs_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = World(tmp_path)

    def page(values: DataFrame, clock: int) -> None:
        world.calls.append(("given", clock))

    app = Application("shop", str(tmp_path / "store"), checkpoint_interval="10 seconds")
    source = FileSource(tmp_path / "orders", timestamp="at", schema=SCHEMA, max_files_per_batch=1)
    app.add(Revenue(2), source, page)
    app.run(spark, drain=True)
    name = "function test_an_application_whose_function_can_t_go_back_is_refused_and_runs_on.page"
    with pytest.raises(
        InvalidInputError,
        match="give it on_rewind by ValuesAtClock, or say outputs=",
    ):
        app.rewind(20 * SECOND)
    assert world.state() == expected(lambda at: 2)
    world.calls.clear()
    app.rewind(20 * SECOND, outputs={name: "again"})
    app.run(spark, drain=True)
    assert world.state() == expected(lambda at: 2)
    assert world.calls == [
        ("given", clock)
        for clock in open_store(str(tmp_path / "store")).application("shop").clocks()
        if clock > 20 * SECOND
    ]
