"""Late and bad rows as a DataFrame of a Spark session that knows only the store's address."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from monoids import Sum
from persistent_state import open_store
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests import core
from tests.fixtures import write_store
from tests.test_open_state import SCHEMA, Kept

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_late_and_bad_rows_are_a_frame_whose_columns_do_not_depend_on_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_store.write(tmp_path)
    store = str(tmp_path)
    found = spark.read.format("persistent-state").options(application="app", task="Totals", late="true").load(store)
    assert found.schema.simpleString() == (
        "struct<reason:string,timestamp:bigint,partition:string,channel:string,position:bigint,"
        "record:binary,origin:string,row:string>"
    )
    wanted = [row for table in open_store(store).application("app").late_rows("Totals") for row in table.to_pylist()]
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


def test_a_task_without_late_rows_gives_an_empty_frame(spark: SparkSession, tmp_path: Path) -> None:
    plan = core.plan_of(Kept(monoid=Sum()), SCHEMA, files=open_files(str(tmp_path)))
    core.start(Log(plan.files, "app"), [plan])
    assert (
        spark.read.format("persistent-state")
        .options(application="app", task="Kept", late="true")
        .load(str(tmp_path))
        .collect()
        == []
    )
