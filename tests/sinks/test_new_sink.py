"""A sink that only this file knows is exact without Spark, and goes back. `tests/spark/test_new_sink.py` has it under Spark."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from monoids import Sum
from persistent_state import FencedError, NonWindowState, PersistentTask, ValuesAtClock
from persistent_state.drive.output_sink import OutputSink
from persistent_state.protocol import rewind
from persistent_state.protocol.global_clock import Keeping
from persistent_state.protocol.rewind_plan import RETRACT
from persistent_state.sinks import Origin, RecordingSink, Values
from persistent_state.store.log import Log
from tests import core

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


class Totals(PersistentTask):
    key, value = "key", "amount"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def test_a_new_sink_is_exact_without_spark_and_goes_back(tmp_path: Path) -> None:
    sink = Folder(tmp_path / "out")
    schema = pa.schema([("ts", pa.int64()), ("key", pa.string()), ("amount", pa.int64())])
    plan = replace(core.plan_of(Totals(), schema, shards=2), outputs=(sink.name,))
    log, place = Log(plan.files, plan.application), OutputSink(plan, ValuesAtClock(sink))

    core.start(log, [plan])
    for time in (5, 15, 25, 35):
        messages = [{"ts": time, "key": key, "amount": time} for key in ("a", "bc"[time // 10 % 2])]
        core.play(log, plan, pa.RecordBatch.from_pylist(messages, schema), keeping=Keeping(20))
    giver = place.giver(log, place.write_here, lambda: 0)
    while giver.give_next(core.newest(log).epoch):
        pass
    wanted = {10: {"a": 5, "b": 5}, 20: {"a": 20, "c": 15}, 30: {"a": 45, "b": 30}}
    assert {clock: rows for clock, rows in sink.clocks().items() if rows} == wanted
    rewind.rewind(log, core.plan_rewind(log, 20, RETRACT), writer="back", now=0)
    place.giver(log, place.write_here, lambda: 0).follow(core.newest(log).epoch)
    assert max(sink.clocks()) == 20
