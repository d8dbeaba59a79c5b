"""Late and bad rows in the store: few files in an entry, whatever can't be settled, and each row once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from monoids import Sum
from persistent_state import NonWindowState, PersistentTask
from persistent_state.errors import DamagedError
from persistent_state.event_time.positions import MOST_SPANS
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store import late_rows
from persistent_state.store.entry import Entry
from persistent_state.store.files import open_files
from persistent_state.store.flow_state import LateRows
from persistent_state.store.log import Log
from persistent_state.store.named_files import SideFile, Stored
from persistent_state.store.verify import verify
from tests.core import collect, plan_of, play, start

ROW = pa.schema([("ts", pa.int64()), ("n", pa.int64())])


class Total(PersistentTask):
    value = "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


def rows_of(*stamps: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"ts": stamp, "n": 1} for stamp in stamps], ROW)


def kept(entry: Entry, log: Log) -> list[int | None]:
    tables = late_rows.read_all(log.files, entry.late_rows_of("Total"))
    return [stamp for table in tables for stamp in table["timestamp"].to_pylist()]


@pytest.mark.parametrize("large", [0, late_rows.LARGE])
def test_a_settled_row_is_never_delivered_again_where_a_slow_channel_catches_up(
    large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More micro-batches than spans are remembered, and then a leap of the clock over many of them."""
    monkeypatch.setattr(late_rows, "LARGE", large)
    rows = pa.schema([*ROW, ("c", pa.string())])
    plan = plan_of(Total(), rows, channel="c")
    log = Log(plan.files, plan.application)
    start(log, [plan])
    sent: list[tuple[int | None, str]] = []

    def go(*some: tuple[int | None, str]) -> Entry:
        sent.extend(some)
        return play(log, plan, pa.RecordBatch.from_pylist([{"ts": ts, "n": 1, "c": c} for ts, c in some], rows))

    go((0, "fast"), (0, "slow"))
    go((None, "fast"))
    go((None, "fast"))
    for n in range(1, MOST_SPANS - 1):
        go((10 * n + 1, "fast"), (None, "fast"))
    go((352, "slow"), (10 * MOST_SPANS - 9, "fast"), (None, "fast"))
    for n in range(3):
        entry = go((10 * (MOST_SPANS + n) + 1, "fast"), (None, "fast"))
    told = {"no timestamp": [ts for ts, _ in sent].count(None)}
    assert entry.late_rows_of("Total").counts() == told
    assert bool(entry.late_rows_of("Total").settled_counts) == (large == 0)
    first = start(log, [plan]).flows["Total"].source.positions[""].next
    assert 0 < first < len(sent)
    again = sent[first:]
    del sent[first:]
    assert go(*again).late_rows_of("Total").counts() == told


def test_a_lost_file_is_named_and_a_task_can_start_anew_without_it(tmp_path: Path) -> None:
    plan = plan_of(Total(), ROW, files=open_files(tmp_path))
    log = Log(plan.files, plan.application)
    start(log, [plan])
    entry = play(log, plan, rows_of(100, None), placed=False)
    lost = tmp_path / entry.late_rows_of("Total").sides[0].file.path
    lost.unlink()
    for n in range(2 * late_rows.MANY):
        entry = play(log, plan, rows_of(100 + n, None), placed=False)
    with pytest.raises(DamagedError, match=rf"{lost.name}.*; bring it back.*, or reset the task"):
        start(log, [plan])
    entry = start(log, [plan], reset=["Total"])
    assert entry.late_rows_of("Total").sides == ()


def test_the_oldest_rows_aside_come_first_and_large_files_are_left_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(Total(), ROW, files=open_files(tmp_path))
    log = Log(plan.files, plan.application)
    start(log, [plan])
    for n in range(40):
        entry = play(log, plan, rows_of(1000 * (n == 0), *[None] * (1 + n % 3)))
    positions = [
        p for table in late_rows.read_all(log.files, entry.late_rows_of("Total")) for p in table["position"].to_pylist()
    ]
    assert len(entry.late_rows_of("Total").sides) <= late_rows.MANY
    assert len(positions) == len(set(positions)) == sum(1 + n % 3 for n in range(40)) + 39
    monkeypatch.setattr(late_rows, "LARGE", 0)
    before = len(entry.late_rows_of("Total").sides)
    for _ in range(20):
        entry = play(log, plan, rows_of(None))
    assert len(entry.late_rows_of("Total").sides) == before + 20


@pytest.mark.rows_in_files
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    plan = plan_of(Total(), ROW, files=open_files(tmp_path))
    log = Log(plan.files, plan.application)
    start(log, [plan])
    for n in range(9):
        entry = play(log, plan, rows_of(n))
    stray = [tmp_path / "app/runs/Total" / name for name in (".DS_Store", "notes-1-2.txt", "000001")]
    for file in stray:
        file.write_text("?")
    assert collect(log, entry.epoch, now=10**15, keeping=Keeping())
    assert all(file.exists() for file in stray)


def test_rows_that_never_settle_stand_in_few_files_and_a_start_takes_all_of_them_back(tmp_path: Path) -> None:
    plan = plan_of(Total(), ROW, files=open_files(tmp_path), shards=2)
    log = Log(plan.files, plan.application)
    start(log, [plan])
    count, written = 120, Counter[str]()
    for n in range(count):
        entry = play(log, plan, rows_of(n, None), placed=False)
        listed = entry.late_rows_of("Total").sides
        assert len(listed) <= late_rows.MANY
        written.update({side.file.path: sum(side.reasons.values()) for side in listed if side.file.path not in written})
    assert written.total() < 4 * count, "each row is written again a few times, not hundreds of times"
    assert kept(entry, log) == [None] * count
    assert entry.late_rows_of("Total").counts() == {"no timestamp": count}
    assert verify(str(tmp_path)).problems == ()
    entry = start(log, [plan])
    assert entry.late_rows_of("Total").counts() == {}
    entry = play(log, plan, rows_of(*range(entry.clock, count), *[None] * count), placed=False)
    assert entry.late_rows_of("Total").counts() == {"no timestamp": count}


def test_late_rows_of_many_starts_stand_in_one_file_for_each(tmp_path: Path) -> None:
    plan = plan_of(Total(), ROW, files=open_files(tmp_path))
    log, sent, starts = Log(plan.files, plan.application), list[int](), 5
    for n in range(starts):
        positions = start(log, [plan]).flows["Total"].source.positions
        if positions:
            play(log, plan, rows_of(*sent[positions[""].next :]))
        for stamp in (1000 * (n + 1), *range(late_rows.MANY)):
            sent.append(stamp)
            entry = play(log, plan, rows_of(stamp))
    rows = entry.late_rows_of("Total")
    assert len(rows.sides) <= late_rows.MANY
    assert len(late_rows.settled(log.files, rows)) == starts - 1
    assert sorted(filter(None, kept(entry, log))) == sorted(starts * [*range(1, late_rows.MANY)])
    assert rows.counts() == {"late": starts * late_rows.MANY}
    assert verify(str(tmp_path)).problems == ()


@pytest.mark.parametrize(
    "field", [pa.field("x", pa.dictionary(pa.int8(), pa.string())), pa.field("x", pa.string(), False)], ids=str
)
def test_files_of_an_older_version_are_joined_and_taken_back_whatever_types_their_rows_have(field: pa.Field) -> None:
    """In those the rows of a source had its own types, as they have here, where the rows come past the door of sources."""
    rows = pa.schema([*ROW, field])
    plan = plan_of(Total(), rows)
    log = Log(plan.files, plan.application)
    start(log, [plan])
    texts = [f"k{n}" for n in range(10 * (late_rows.MANY + 4))]
    for first in range(0, len(texts), 10):
        column = pa.array([*texts[first : first + 9], None], pa.string())
        column = column.dictionary_encode().cast(field.type) if pa.types.is_dictionary(field.type) else column
        nulls = pa.nulls(10, pa.int64())
        entry = play(log, plan, pa.RecordBatch.from_arrays([nulls, nulls, column], schema=rows), placed=False)
    side = entry.late_rows_of("Total")
    assert len(side.sides) <= late_rows.MANY
    read = [row["x"] for table in late_rows.read_all(log.files, side) for row in table["row"].to_pylist()]
    assert sorted(map(str, read)) == sorted(["None" if n % 10 == 9 else text for n, text in enumerate(texts)])
    assert start(log, [plan]).late_rows_of("Total").counts() == {}


def test_the_late_rows_of_a_flow_are_counted_once_for_all_its_tasks() -> None:
    class Counted(dict[str, int]):
        """The reasons of a file, which note that they are counted."""

        def items(self) -> Any:
            counted.append(1)
            return super().items()

    counted: list[int] = []
    plan = plan_of(Total(), ROW)
    entry = start(Log(plan.files, plan.application), [plan])
    side = SideFile(Stored("late", 1, "0" * 64), Counted(late=2), None, {})
    (flow,) = entry.flows.values()
    entry = entry.with_flow("Total", replace(flow, late_rows=LateRows((side, side), settled_counts={"late": 5})))
    task = entry.tasks["Total"]
    own = replace(task, late_rows=LateRows((SideFile(side.file, {"no timestamp": 1}, None, {}),)))
    for name in ("Total", "Other", "Third"):
        entry = entry.with_task(name, own)
    for name in entry.tasks:
        assert entry.late_counts_of(name) == {"late": 9, "no timestamp": 1} == entry.late_rows_of(name).counts()
    # One time for each file, and once more each time that `late_rows_of` makes a record of both.
    assert len(counted) == 2 + 3 * 2
