"""Late and bad rows in the store: few files in an entry, whatever can't be settled, and each row once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.store import sides
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from persistent_state.verify import verify
from tests.core import plan_of, play, start

ROW = pa.schema([("ts", pa.int64()), ("n", pa.int64())])


class Total(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def rows_of(*stamps: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"ts": stamp, "n": 1} for stamp in stamps], ROW)


def kept(entry: Entry, log: Log) -> list[int | None]:
    tables = sides.read_all(log.files, entry.tasks["Total"])
    return [stamp for table in tables for stamp in table["timestamp"].to_pylist()]


def test_rows_that_never_settle_stand_in_few_files_and_a_start_takes_all_of_them_back(tmp_path: Path) -> None:
    plan = plan_of(Total(), ROW, files=open_files(tmp_path), shards=2)
    log = Log(plan.files, plan.application)
    start(log, [plan])
    count, written = 120, Counter[str]()
    for n in range(count):
        entry = play(log, plan, rows_of(n, None), placed=False)
        listed = entry.tasks["Total"].sides
        assert len(listed) <= sides.MANY
        written.update({side.file.path: sum(side.reasons.values()) for side in listed if side.file.path not in written})
    assert written.total() < 4 * count, "each row is written again a few times, not hundreds of times"
    assert kept(entry, log) == [None] * count
    assert entry.tasks["Total"].counts() == {"no timestamp": count}
    assert verify(str(tmp_path)).problems == ()
    entry = start(log, [plan])
    assert entry.tasks["Total"].counts() == {}
    entry = play(log, plan, rows_of(*range(entry.clock, count), *[None] * count), placed=False)
    assert entry.tasks["Total"].counts() == {"no timestamp": count}
