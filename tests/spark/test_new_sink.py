"""A sink that only this file knows: under Spark, whose workers write it, and without. Its former interface still works."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from persistent_state import Application, FencedError, FileSource, ValuesAtClock
from persistent_state.drive.output_values import local_values
from persistent_state.engine.places import Place
from persistent_state.protocol import rewind
from persistent_state.protocol.deliver import Due
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.rewind_plan import RETRACT
from persistent_state.sinks import LocalValues, Origin, RecordingSink, Values, arrow_batches
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from tests import core
from tests.spark.test_outputs import SECOND, START, Totals, expected, grow, rows_of, totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTS = 3


class Folder(RecordingSink):
    """A folder: each part of a clock is a file that a worker writes, and the driver then writes one that names them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def name(self) -> str:
        return f"folder {self.folder}"

    def open(self, origin: Origin) -> int | None:
        self.folder.mkdir(exist_ok=True)
        self.origin = origin
        self._check()
        return max(self.clocks(), default=None)

    def clocks(self) -> dict[int, dict[str, int]]:
        """Return the values at each clock."""
        return {
            int(marker.stem): {
                row["key"]: row["value"]
                for name in json.loads(marker.read_text())
                for row in json.loads((self.folder / name).read_text())
            }
            for marker in self.folder.glob("*.clock")
        }

    def write_values(self, values: Values, clock: int) -> None:
        folder = self.folder

        def store(part: int, batches: Iterator[pa.RecordBatch]) -> str:
            rows = [row for batch in batches for row in batch.to_pylist()]
            # Two attempts at a part write two files. One of them is named.
            name = f"{part}-of-{os.getpid()}-{uuid.uuid4().hex}"
            (folder / name).write_text(json.dumps(rows, default=str))
            return name

        names = values.map_parts(store, parts=PARTS, by=self.origin.key_columns)
        assert [int(name[0]) for name in names] == [*range(PARTS)]
        draft = folder / uuid.uuid4().hex
        draft.write_text(json.dumps(names))
        self._check()
        with suppress(FileExistsError):
            os.link(draft, folder / f"{clock}.clock")

    def rewind(self, clock: int, values: Values) -> None:
        for each in self.clocks():
            if each > clock:
                (self.folder / f"{each}.clock").unlink()
        (self.folder / f"{self.origin.timeline}.timeline").touch()

    def _check(self) -> None:
        recorded = max((int(file.stem) for file in self.folder.glob("*.timeline")), default=0)
        if recorded > self.origin.timeline:
            raise FencedError(f"{self.name} has values of timeline={recorded}; start the application again.")


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


def test_a_new_sink_is_exact_without_spark_and_goes_back(tmp_path: Path) -> None:
    sink = Folder(tmp_path / "out")
    schema = pa.schema([("ts", pa.int64()), ("key", pa.string()), ("amount", pa.int64())])
    plan = replace(core.plan_of(Totals(), schema, shards=2), outputs=(sink.name,))
    log, place = Log(plan.files, plan.application), Place(plan, ValuesAtClock(sink))

    def write(entry: Entry, due: Due) -> None:
        place.sink.write_values(local_values(place.state(entry, due), plan, place.origin().schema), due.clock)

    core.start(log, [plan])
    for time in (5, 15, 25, 35):
        messages = [{"ts": time, "key": key, "amount": time} for key in ("a", "bc"[time // 10 % 2])]
        core.play(log, plan, pa.RecordBatch.from_pylist(messages, schema), keeping=Keeping(20))
    giver = place.giver(write)
    while giver.give_next(core.newest(log).epoch):
        pass
    wanted = {10: {"a": 5, "b": 5}, 20: {"a": 20, "c": 15}, 30: {"a": 45, "b": 30}}
    assert {clock: rows for clock, rows in sink.clocks().items() if rows} == wanted
    rewind.rewind(log, core.plan_rewind(log, 20, RETRACT), writer="back", now=0)
    place.giver(write).follow(core.newest(log).epoch)
    assert max(sink.clocks()) == 20


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
