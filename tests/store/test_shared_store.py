"""A store of three tasks on one folder, two of them alike, is sound for this version, which goes on from it.

`fixtures/write_shared_store.py` says what is in the store.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persistent_state import PersistentTask, open_store, read_state
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log
from persistent_state.store.verify import verify
from tests import core
from tests.fixtures.write_folder_store import APPLICATION, KEEPING, Totals, Windows, add_files, read_all, start
from tests.fixtures.write_shared_store import LARGE, LATE, NO_NUMBER, WITHOUT_TIMESTAMP, Counts, rows
from tests.store.test_codec import late_by_hand, newest_entry, runs_of, totals_by_hand
from tests.store.test_folder_store import expected_totals, expected_windows, flows_of, found_totals, found_windows
from tests.store.test_upgrades import FIXTURES, survive, unpacked

STORES = sorted(path.name for path in FIXTURES.glob("shared-*"))
BORN = 160
"""The clock at which "Counts" started from zero."""


def go_on(files: Files, events: Path, upto: int, as_one: bool = False) -> None:
    """Start the application with another number of shards, and read the files up to this one, new ones too."""
    add_files(events, rows(), 15)
    log, sources = start(files, events, [Totals(), Windows(), Counts()], 2, 20, ["sink"], as_one=as_one)
    add_files(events, rows(), upto)
    read_all(log, sources)
    newest = log.newest()
    assert newest is not None
    core.collect(log, newest.epoch, now=0, keeping=KEEPING)


def go_on_for_a_while(files: Files, events: Path, tasks: Sequence[PersistentTask], as_one: bool = False) -> None:
    """Start the application with these tasks only, and read one file for each flow."""
    add_files(events, rows(), 15)
    log, sources = start(files, events, tasks, 3, 20, [], as_one=as_one)
    for flow, source in sources:
        core.play_source(log, flow, source, parts=2, keeping=KEEPING)


def why_aside(task: str, number: int) -> str | None:
    """Why a row does not count for a task; None if it counts."""
    if number == NO_NUMBER:
        return "column price is not int64"
    if number in WITHOUT_TIMESTAMP:
        return "no timestamp"
    if number in LATE or (task == "Counts" and rows()[number]["ts"] < BORN):
        return "late"
    return "value does not fit" if (task, number) == ("Counts", LARGE) else None


def counted(task: str) -> list[dict[str, Any]]:
    """The rows that count for a task."""
    return [row for i, row in enumerate(rows()) if why_aside(task, i) is None]


def expected_counts(clock: int) -> dict[Any, int]:
    first: dict[Any, dict[str, Any]] = {}
    for row in counted("Counts"):
        first.setdefault((row["shop"], row["price"]), row)
    wanted: dict[Any, int] = defaultdict(int)
    for row in first.values():
        if row["ts"] < clock:
            wanted[row["shop"]] += 100 * row["price"]
    return wanted


def expected_aside(task: str, read: int) -> list[tuple[str, bytes]]:
    """The late and bad rows of a task, with their reasons, after so many rows."""
    wanted = [(why, row) for i, row in enumerate(rows()[:read]) if (why := why_aside(task, i)) is not None]
    return sorted((why, json.dumps(row).encode()) for why, row in wanted)


def check(files: Files, read: int) -> None:
    """The store is sound, and each of the rows that were read is in it once."""
    assert verify(files.url).problems == ()
    for clock in open_store(files.url).application(APPLICATION).clocks():
        assert found_totals(files, clock) == expected_totals(counted("Totals"), clock)
        assert found_windows(files, clock) == expected_windows(counted("Windows"), clock)
        counts = read_state(files.url, APPLICATION, Counts(), clock).to_pylist()
        assert {row["shop"]: row["value"] for row in counts} == expected_counts(clock)
    for task in ("Totals", "Windows", "Counts"):
        aside = [
            row for table in open_store(files.url).application(APPLICATION).late_rows(task) for row in table.to_pylist()
        ]
        assert sorted((row["reason"], row["record"]) for row in aside) == expected_aside(task, read)


@pytest.mark.parametrize("as_one", [False, True])
@pytest.mark.parametrize("name", STORES)
def test_a_store_of_tasks_that_read_a_folder_alike_is_gone_on_from(name: str, as_one: bool, tmp_path: Path) -> None:
    """The tasks that have read alike become one flow if they are wanted in one. The third has read in another order."""
    files = unpacked(name)
    check(files, 75)
    assert flows_of(files) == {task: {task} for task in ("Totals", "Windows", "Counts")}
    for _ in range(2):
        go_on(files, tmp_path, 20, as_one)
        check(files, 100)
        if as_one:
            assert flows_of(files) == {"Totals": {"Totals", "Windows"}, "Counts": {"Counts"}}
    assert open_store(files.url).application(APPLICATION).clocks()[-1] > 800


@pytest.mark.soak
@pytest.mark.one_in(2)
@pytest.mark.parametrize("as_one", [False, True])
@pytest.mark.parametrize("name", STORES)
def test_whatever_kills_that_the_next_start_cuts_back_and_goes_on(name: str, as_one: bool, tmp_path: Path) -> None:
    files = unpacked(name)
    assert survive(files, lambda mortal: go_on(mortal, tmp_path, 17, as_one), nth=as_one) > 4
    check(files, 85)


@pytest.mark.parametrize(
    ("tasks", "as_one"),
    [([Windows(), Counts()], False), ([Totals(), Counts()], True), ([Windows()], True)],
    ids=["Totals", "Windows of one flow", "Totals and Counts of one flow"],
)
@pytest.mark.parametrize("name", STORES)
def test_a_task_that_is_left_out_comes_back(
    name: str, tasks: Sequence[PersistentTask], as_one: bool, tmp_path: Path
) -> None:
    files = unpacked(name)
    go_on_for_a_while(files, tmp_path, [Totals(), Windows(), Counts()], as_one)
    go_on_for_a_while(files, tmp_path, tasks, as_one)
    check(files, 75)
    assert flows_of(files) == {task: {task} for task in ("Totals", "Windows", "Counts")}
    go_on(files, tmp_path, 20, as_one)
    check(files, 100)


@pytest.mark.parametrize("name", STORES)
def test_tasks_that_shared_a_flow_take_a_copy_of_it_each_where_they_are_wanted_apart(name: str, tmp_path: Path) -> None:
    files = unpacked(name)
    go_on(files, tmp_path, 17, as_one=True)
    go_on(files, tmp_path, 20, as_one=False)
    check(files, 100)
    assert flows_of(files) == {task: {task} for task in ("Totals", "Windows", "Counts")}


@pytest.mark.parametrize("name", STORES)
@pytest.mark.rows_in_files
def test_the_store_is_read_by_hand_before_and_after_this_version_goes_on_from_it(name: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    files = unpacked(name, open_files(str(store)))
    for format, read in ((3, 75), (6, 100)):
        entry = newest_entry(store)
        assert entry["format"] == format
        for clock in entry["retained"]:
            totals = totals_by_hand(store, clock)
            assert {shop: value for (shop,), value in totals.items()} == expected_totals(counted("Totals"), clock)
        for task in ("Totals", "Windows", "Counts"):
            aside = [(row["reason"], row["record"]) for row in late_by_hand(store, task)]
            assert sorted(aside) == expected_aside(task, read)
        go_on(files, tmp_path / "events", 20, as_one=True)
    assert newest_entry(store)["tasks"]["Windows"]["flow"] == "Totals"


@pytest.mark.parametrize("name", STORES)
def test_the_store_holds_what_it_is_about(name: str) -> None:
    files = unpacked(name)
    log = Log(files, APPLICATION)
    entries = {number: json.loads(bytes(files.read(log.path(number))).splitlines()[0]) for number in log.numbers()}
    newest = entries[max(entries)]
    assert {entry["format"] for entry in entries.values()} == {3}
    assert newest["base"] < newest["number"]
    # The first entry of a start is whole.
    whole = entries[newest["base"]]
    assert whole["epoch"] == 3
    totals, windows, counts = (whole["tasks"][task] for task in ("Totals", "Windows", "Counts"))
    for field in ("clock", "channels", "positions", "journal"):
        assert totals[field] == windows[field]
    for field in ("positions", "journal"):
        assert totals[field] != counts[field]
    assert counts["born"] == BORN
    assert totals["delivered"]["sink"] in whole["retained"][:-1]
    runs = [run for task in (totals, windows, counts) for run in runs_of(task)]
    assert any(run["below"] is not None for run in runs)
    assert any(pa.ipc.open_file(files.read(run["file"]["path"])).num_record_batches > 1 for run in runs)
