"""A sink that no other file of the library knows under Spark, whose workers write it. Its former interface still works."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from persistent_state import Application, FileSource
from persistent_state.sinks import LocalValues, arrow_batches
from tests.sinks.test_new_sink import Folder
from tests.spark.test_outputs import SECOND, START, Totals, expected, grow, rows_of, totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


with pytest.warns(DeprecationWarning, match=r"^Former\.write\(\) is given a DataFrame"):

    class Former(Folder):
        """The same in one part, as people wrote it before there were `Values`."""

        seen = 0

        def write(self, values: DataFrame, clock: int) -> None:
            assert values.selectExpr("*", "unix_micros(clock) AS at").where(f"at <> {clock}").isEmpty()
            rows = [row for batch in arrow_batches(values) for row in batch.to_pylist()]
            super().write_values(LocalValues.of(pa.Table.from_pylist(rows, self.origin.schema)), clock)

        def rewind(self, clock: int, values: Any) -> None:
            Former.seen = sum(batch.num_rows for batch in values())
            super().rewind(clock, values)


TO = START + 20 * SECOND


@pytest.mark.filterwarnings(r"ignore:values\(\) is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", [Folder, Former])
def test_a_new_sink_is_exact_under_spark_and_goes_back(spark: SparkSession, tmp_path: Path, kind: type[Folder]) -> None:
    def application() -> Application:
        app = Application(
            "new", str(tmp_path / "store"), checkpoint_interval="10 seconds", retained_checkpoints=50, shards=2
        )
        source = FileSource(tmp_path / "in", timestamp="ts", max_files_per_batch=1)
        return app.add(Totals(), source, kind(tmp_path / "out"))

    sink = kind(tmp_path / "out")
    for files in (2, 4):
        grow(tmp_path, files - 2, files)
        application().run(spark, drain=True)
    assert sink.clocks() == expected(4, totals)
    written = {path.name.split("-")[2] for path in (tmp_path / "out").glob("*-of-*")}
    assert (str(os.getpid()) in written) == (kind is Former), "workers write it"
    application().rewind(application().plan_rewind(TO))
    assert sink.clocks() == {clock: rows for clock, rows in expected(4, totals).items() if clock <= TO}
    application().run(spark, drain=True)
    assert sink.clocks() == expected(4, totals)
    if kind is Former:
        assert Former.seen == len(totals([*rows_of(0), *rows_of(1)]))
