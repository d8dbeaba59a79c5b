"""A branch and the application that it was run on, each by itself, on a real Spark: each is what plain Python makes of it."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persistent_state import SqlSink, open_store, verify
from tests.spark.pipeline import NAME, application, check, grow, newest, per_shop, sale

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = 50
"""How many seconds a file has."""


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_branch_and_its_application_run_on_each_by_itself(spark: SparkSession, tmp_path: Path) -> None:
    folders = blue, green = tmp_path / "blue", tmp_path / "green"

    def run(folder: Path, first: int, end: int, shards: int) -> None:
        for file in range(first, end):
            grow(folder, file, range(FILE * file, FILE * (file + 1)))
        table = SqlSink(str(tmp_path / "sales.db"), folder.name)
        application(folder, shards, outputs={"PerShop": table}).run(spark, drain=True)

    for folder in folders:
        folder.mkdir()
    run(blue, 0, 4, shards=2)
    *_, clock, _ = newest(blue).kept
    open_store(str(blue / "store")).application(NAME).branch(NAME, clock, to=str(green / "store"))
    assert check(green, FILE * 4) == 1
    shutil.copytree(blue / "in", green / "in")
    run(blue, 4, 6, shards=2)
    run(green, 4, 7, shards=3)
    for folder, files in ((blue, 6), (green, 7)):
        assert check(folder, FILE * files) > 1
        assert verify(str(folder / "store")).problems == ()
        with closing(sqlite3.connect(tmp_path / "sales.db")) as database:
            found = dict(database.execute(f"SELECT shop, value ->> 'revenue' FROM {folder.name}"))
        expected = per_shop([sale(second) for second in range(FILE * files)])
        assert found == {shop: value["revenue"] for (shop,), value in expected.items()}
    assert newest(green).clock > newest(blue).clock
