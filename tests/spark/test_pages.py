"""The Python of a page runs as it stands, to what the page says: here of the pages whose code needs Spark.

Where a page has an address of a bucket or a server, the test puts a folder of its own there.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
import types
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import opentelemetry.metrics
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import monoids
from persistent_state import (
    Application,
    FileSource,
    Message,
    NonWindowState,
    ParquetSink,
    PersistentTask,
    SqlSink,
    open_store,
    read_state,
    run_local,
)
from persistent_state.batch.plan import FlowPlan
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests import core, page_code
from tests.metrics.test_server import ask
from tests.test_pages import names
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAYMENTS = pa.schema([("ts", pa.timestamp("us", "UTC")), ("shop", pa.string()), ("cents", pa.int64())])


class Revenue(PersistentTask):
    """What each shop has taken in."""

    key, value = "shop", "cents"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())


def pay(folder: Path, *times: str, cents: int = 100) -> FileSource:
    """Write a file for each payment of a shop, and return a source of them that reads one at a time."""
    folder.mkdir(exist_ok=True)
    for number, at in enumerate(times, len(list(folder.iterdir()))):
        row = {"ts": datetime.fromisoformat(at).replace(tzinfo=timezone.utc), "shop": "Oslo", "cents": cents}
        pq.write_table(pa.Table.from_pylist([row], PAYMENTS), folder / f"{number:02}.parquet")
    return FileSource(str(folder), timestamp="ts", schema=PAYMENTS, max_files_per_batch=1)


def test_choosing_a_state(spark: SparkSession, tmp_path: Path) -> None:
    page = names()
    page_code.run(page_code.text_of("docs/choosing-a-state.md"), page)
    sales = pa.table({"ts": [1, 2], "shop": ["Oslo", "Oslo"], "price": [3, 5], "quantity": [2, 1]})
    (tmp_path / "sales").mkdir()
    pq.write_table(sales, tmp_path / "sales" / "0.parquet")
    app = Application("shop", str(tmp_path / "store"))
    app.add(page["Revenue"](), FileSource(str(tmp_path / "sales"), timestamp="ts", timestamp_unit="us"))
    app.run(spark, drain=True)
    assert read_state(str(tmp_path / "store"), "shop", "Revenue").to_pylist() == [{"shop": "Oslo", "value": 11}]


def test_sources(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    rows = pa.table(
        {
            "paid_at": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
            "shop": ["Oslo", "Oslo", "Bergen"],
            "cents": [1, 2, 4],
        }
    )
    for name, table in {
        "payments": rows,
        "shops": pa.table({"shop": ["Oslo", "Bergen"], "region": ["east", "west"]}),
    }.items():
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "0.parquet")
    app = Application("shop", str(tmp_path / "store"))
    page = names(app=app, F=F, Revenue=Revenue, PAYMENTS="paid_at timestamp, shop string, cents long")
    page_code.run(page_code.text_of("docs/sources.md").replace("/lake", str(tmp_path)), page)
    app.run(spark, drain=True)
    found = read_state(str(tmp_path / "store"), "shop", "Revenue").to_pylist()
    assert {row["shop"]: row["value"] for row in found} == {"Oslo": 3, "Bergen": 4}


def test_outputs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = {"paid_at": [1, 2], "shop": ["Oslo", "Oslo"], "account": ["a", "b"], "cents": [20_000, 5]}
    (tmp_path / "payments").mkdir()
    pq.write_table(pa.table(rows), "payments/0.parquet")
    source = FileSource("payments/", timestamp="paid_at", timestamp_unit="us")
    sent: list[dict[str, str]] = []
    page = names(
        app=Application("shop", "store"),
        spark=spark,
        Revenue=Revenue,
        Spent=type("Spent", (Revenue,), {"key": "account"}),
        password="secret",
        send=lambda **message: sent.append(message),
    )
    text = page_code.text_of("docs/outputs.md")
    for says, here in {
        "postgresql://shop@db/books": "sqlite:///books.db",
        "s3://lake/revenue": "lake",
        '"payments/", timestamp="paid_at"': '"payments/", timestamp="paid_at", timestamp_unit="us"',
        '.mode("overwrite")': f'.mode("overwrite").option("path", "{tmp_path}/now")',
    }.items():
        assert says in text
        text = text.replace(says, here)
    before = {
        "table = ParquetSink": lambda: page["app"].run(spark, drain=True),
        "app.add(Spent()": lambda: page.update(app=Application("spent", "store"), source=source),
    }
    page_code.run(text, page, before)
    page["app"].run(spark, drain=True)
    assert [row["value"] for row in page["table"].latest().to_pylist()] == [20_005]
    with closing(sqlite3.connect("books.db")) as database:
        assert database.execute("SELECT shop, value FROM revenue").fetchall() == [("Oslo", 20_005)]
    assert [row.value for row in spark.table("now").collect()] == [20_005]
    spark.sql("DROP TABLE now")
    clock = open_store("store").application("spent").clocks()[-1]
    assert sent == [{"id": f"a@{clock}", "text": "a is at 20000"}]


def test_kafka(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession as Session
    from pyspark.sql import functions as F

    monkeypatch.setenv("KAFKA_PASSWORD", "secret")

    def post(url: str, **given: Any) -> Any:
        assert (url, given["auth"]) == ("https://provider.example", ("shop", "secret"))
        return types.SimpleNamespace(json=lambda: {"access_token": "token", "expires_in": 60})

    provider = {"requests": types.SimpleNamespace(post=post), "PROVIDER": "https://provider.example"}
    page = names(Revenue=Revenue, SparkSession=Session, F=F, os=os, time=time, CLIENT=("shop", "secret"), **provider)
    page_code.run(page_code.text_of("docs/kafka.md").replace("s3://bucket/apps", "memory://kafka"), page)
    order, place = {"shop": "Oslo", "cents": 5}, {"kafka_topic": "orders", "kafka_partition": 0, "kafka_offset": 7}
    ran = run_local(page["app"], {"Revenue": [Message(1, {**order, **place, "kafka_timestamp": 1})]})
    assert ran["Revenue"].state == {"Oslo": 5}
    stamp = datetime(2026, 1, 1)
    record = {"value": json.dumps(order).encode(), **place, "kafka_timestamp": stamp}
    (row,) = page["decoded"](spark.createDataFrame(pa.Table.from_pylist([record]))).collect()
    assert row.asDict() == {**order, **place, "kafka_timestamp": stamp}
    keys, values = page["encode"](pa.RecordBatch.from_pylist([{"shop": "a", "value": 0}, {"shop": "b", "value": 1}]))
    assert (keys, values) == (['{"shop": "a"}', '{"shop": "b"}'], [None, '{"shop": "b", "value": 1}'])
    assert page["secured"]["oauth_cb"]({})[0] == "token"


def test_going_back(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    orders = pay(tmp_path / "orders", "2025-11-20T13:59:00", "2025-11-20T14:00:05", "2025-11-20T14:30:05")
    given: list[int] = []

    def page_of_alerts(values: Any, clock: int) -> None:
        given.append(clock)

    page_of_alerts.__qualname__ = "page"
    page = names(Revenue=Revenue, orders=orders, PAYMENTS=PAYMENTS, spark=spark)
    books = SqlSink("sqlite:///books.db", "revenue")

    def run_first() -> None:
        page["app"].add(Revenue(), orders, sink=books)
        page["app"].run(spark)

    def run_again() -> None:
        page["app"] = Application("shop", "apps", checkpoint_interval="10 seconds")
        page["app"].add(Revenue(), orders, sink=[books, page_of_alerts]).run(spark)

    def run_ahead() -> None:
        pay(tmp_path / "payments", "2025-11-20T13:59:00", "2025-11-20T14:00:05", "2025-11-25T00:00:00")
        page["payments"] = pay(
            tmp_path / "payments", "2025-11-20T14:00:15", "2025-11-20T14:00:25", "2025-11-20T14:00:40"
        )
        till = Application("till", "apps", checkpoint_interval="10 seconds")
        till.add(Revenue(), page["payments"], sink=SqlSink("sqlite:///till.db", "till")).run(spark)
        late = pa.concat_tables(open_store("apps").application("till").late_rows("Revenue"))
        assert late["reason"].to_pylist() == ["late"] * 3
        assert read_state("apps", "till", "Revenue").to_pylist() == [{"shop": "Oslo", "value": 200}]

    text = page_code.text_of("docs/going-back.md")
    # A row of a day that is yet to come is a bad row.
    for says, here in {
        "s3://bucket/apps": "apps",
        "/data/apps": "other",
        '"postgresql://shop@db/books", "revenue"': '"sqlite:///books.db", "revenue"',
        '"postgresql://shop@db/books", "till"': '"sqlite:///till.db", "till"',
        "2026-": "2025-",
    }.items():
        assert says in text
        text = text.replace(says, here)
    before = {
        "shop.keep(": run_first,
        "read_state(": lambda: open_store("apps").application("shop").keep("before the sale", "2025-11-20T14:00"),
        '"function page"': run_again,
        "max_jump": run_ahead,
        '"history": FileSource': lambda: page.update(app=Application("next", "apps")),
    }
    page_code.run(text, page, before)
    two = datetime(2025, 11, 20, 14, tzinfo=timezone.utc)
    assert page["plan"].clock == core.micros(two)
    for store, app in (("apps", "shop"), ("apps", "shop-next"), ("other", "shop")):
        assert open_store(store).application(app).clocks()[-1] == core.micros(two)
        assert read_state(store, app, "Revenue").to_pylist() == [{"shop": "Oslo", "value": 100}]
    assert max(given) > core.micros(two)
    with closing(sqlite3.connect("books.db")) as database:
        assert database.execute("SELECT shop, value FROM revenue").fetchall() == [("Oslo", 100)]
    # The message of another day counts no more, and those that were late because of it do.
    assert read_state("apps", "till", "Revenue").to_pylist() == [{"shop": "Oslo", "value": 400}]
    with closing(sqlite3.connect("till.db")) as database:
        assert database.execute("SELECT shop, value FROM till").fetchall() == [("Oslo", 400)]
    row = {"shop": "Oslo", "cents": 1, "kafka_topic": "payments", "kafka_partition": 0, "kafka_offset": 0}
    october, november = (datetime(2025, month, 9, tzinfo=timezone.utc) for month in (10, 11))
    both = [Message(at, {**row, "ts": at}) for at in (october, november)]
    history = [Message(at, {"shop": "Oslo", "cents": 10, "ts": at}) for at in (october, november)]
    ran = run_local(page["app"], {"Revenue": {"history": history, "": both}})
    # Of each input what is on its side of the bound.
    assert ran["Revenue"].state == {"Oslo": 11}


@pytest.fixture
def app(tmp_path: Path) -> Application:
    """An application that has two messages to read."""
    source = pay(tmp_path / "in", "2025-01-01T00:00:00", "2025-01-01T00:10:00")
    return Application("shop", str(tmp_path / "store")).add(Revenue(), source, ParquetSink(str(tmp_path / "out")))


def test_running(spark: SparkSession, tmp_path: Path, app: Application) -> None:
    page = names(app=app, spark=spark)

    def stop_soon() -> None:
        threading.Timer(0.1, page["running"].stop).start()

    page_code.run(page_code.text_of("docs/running.md"), page, {"running.await_termination()": stop_soon})
    assert not page["running"].is_active
    assert read_state(str(tmp_path / "store"), "shop", "Revenue").to_pylist() == [{"shop": "Oslo", "value": 200}]


def test_metrics(spark: SparkSession, app: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, page, url = InMemoryMetricReader(), names(app=app, spark=spark), list[str]()
    # The exporter of the page sends what it reads to a collector. A provider can be set once in a process.
    otlp = types.SimpleNamespace(OTLPMetricExporter=lambda: reader)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", otlp)
    for name in ("opentelemetry.exporter", "opentelemetry.exporter.otlp", "opentelemetry.exporter.otlp.proto"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", types.ModuleType("http"))
    monkeypatch.setattr("opentelemetry.sdk.metrics.export.PeriodicExportingMetricReader", lambda exporter: exporter)
    providers: list[Any] = []
    monkeypatch.setattr(opentelemetry.metrics, "set_meter_provider", providers.append)
    monkeypatch.setattr(opentelemetry.metrics, "get_meter_provider", lambda: providers[-1])

    def stop_the_first() -> None:
        url.append(page["running"].metrics_url)
        assert ask(url[0].replace("/metrics", "/health"))[0] == 200
        page["running"].stop()

    text = page_code.text_of("docs/metrics.md").replace("start(spark, metrics=9108)", "start(spark, metrics=0)")
    try:
        page_code.run(text, page, {"metrics.set_meter_provider(": stop_the_first})
        until(lambda: "persistent_state" in str(reader.get_metrics_data()), "a metric of the library")
    finally:
        page["running"].stop()
        for provider in providers:
            provider.shutdown()


class Chance(monoids.Monoid[float]):
    """How likely it is that none of several things happened."""

    type = pa.float64()
    zero = 1.0

    def plus(self, a: float, b: float) -> float:
        return a * b


def test_command_line(spark: SparkSession, tmp_path: Path) -> None:
    files = open_files(str(tmp_path / "apps"))
    schema = pa.schema([("ts", pa.int64()), ("item", pa.string()), ("value", pa.float64())])

    def task_of(name: str, monoid: monoids.Monoid[Any]) -> Any:
        state = {"persistent_state": lambda self: NonWindowState(monoid)}
        return type(name, (Revenue,), {"key": "item", "value": "value", **state})

    kinds = {"Totals": monoids.Sum(pa.float64()), "Odds": Chance(), "Delays": monoids.Average()}
    tasks = {name: task_of(name, monoid) for name, monoid in kinds.items()}
    plans = [replace(core.plan_of(task(), schema, files=files), application="shop") for task in tasks.values()]
    flow, log = FlowPlan(tuple(plans)), Log(files, "shop")
    core.start(log, [flow])
    for ts in (5, 165):
        core.play(log, flow, pa.RecordBatch.from_pylist([{"ts": ts, "item": "tea", "value": 0.5}], schema))
    page = names(spark=spark, Chance=Chance, Delays=tasks["Delays"])
    text = page_code.text_of("docs/command-line.md").replace('"/data/apps"', repr(str(tmp_path / "apps")))
    page_code.run(text, page)
    assert open_store(str(tmp_path / "apps")).application("shop-next").clocks() == [160]
