"""A store of two tasks that read one folder in different orders is sound for this version, which goes on from it.

`fixtures/write_folder_store.py` says what is in the store.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from persistent_state import open_store, read_state
from persistent_state.store import lists
from persistent_state.store.files.base import Files
from persistent_state.store.log import Log
from persistent_state.store.verify import verify
from tests import core
from tests.fixtures.write_folder_store import (
    APPLICATION,
    KEEPING,
    LATE,
    WINDOW,
    Totals,
    Windows,
    add_files,
    read_all,
    rows,
    start,
)
from tests.store.test_upgrades import FIXTURES, survive, unpacked

STORES = sorted(path.name for path in FIXTURES.glob("folder-*"))
BORN = 160
"""The clock at which the second task started from zero."""


def go_on(files: Files, events: Path, as_one: bool = False) -> None:
    """Start the application with another number of shards, and read new files too."""
    add_files(events, rows(), 15)
    log, sources = start(files, events, [Totals(), Windows()], 2, 20, ["sink"], as_one=as_one)
    add_files(events, rows(), 20)
    read_all(log, sources)
    newest = log.newest()
    assert newest is not None
    core.collect(log, newest.epoch, now=0, keeping=KEEPING)


def is_late(task: str, number: int) -> bool:
    return number == LATE or (task == "Windows" and rows()[number]["ts"] < BORN)


def counted(task: str) -> list[dict[str, Any]]:
    """The rows that count for a task."""
    return [row for i, row in enumerate(rows()) if not is_late(task, i)]


def expected_totals(sales: Iterable[dict[str, Any]], clock: int) -> dict[Any, dict[str, int]]:
    wanted: dict[Any, dict[str, int]] = defaultdict(lambda: {"sales": 0, "total": 0})
    for row in sales:
        if row["ts"] < clock:
            wanted[row["shop"]]["sales"] += 1
            wanted[row["shop"]]["total"] += row["price"]
    return wanted


def expected_windows(sales: Iterable[dict[str, Any]], clock: int) -> dict[Any, int]:
    wanted: dict[Any, int] = defaultdict(int)
    for row in sales:
        begin = row["ts"] // WINDOW * WINDOW
        if row["ts"] < clock < begin + WINDOW:
            wanted[row["shop"], begin] += row["price"]
    return wanted


def found_totals(files: Files, clock: int) -> dict[Any, dict[str, int]]:
    totals = read_state(files.url, APPLICATION, Totals(), clock).to_pylist()
    return {row["shop"]: row["value"] for row in totals}


def found_windows(files: Files, clock: int) -> dict[Any, int]:
    windows = core.whole_times(read_state(files.url, APPLICATION, Windows(), clock)).to_pylist()
    return {(row["shop"], row["window_start"]): row["value"] for row in windows}


def check(files: Files, read: int) -> None:
    """The store is sound, and each of the rows that were read is in it once."""
    assert verify(files.url).problems == ()
    for clock in open_store(files.url).application(APPLICATION).clocks():
        assert found_totals(files, clock) == expected_totals(counted("Totals"), clock)
        assert found_windows(files, clock) == expected_windows(counted("Windows"), clock)
    for task in ("Totals", "Windows"):
        late = [
            row["row"]
            for table in open_store(files.url).application(APPLICATION).late_rows(task)
            for row in table.to_pylist()
        ]
        assert sorted(row["price"] for row in late) == [i for i in range(read) if is_late(task, i)]


def flows_of(files: Files) -> dict[str, set[str]]:
    """The tasks of each flow, by its id."""
    entry = Log(files, APPLICATION).newest()
    assert entry is not None
    return {id: set(entry.tasks_of(id)) for id in entry.flows}


@pytest.mark.parametrize("as_one", [False, True])
@pytest.mark.parametrize("name", STORES)
def test_a_store_of_two_tasks_that_read_a_folder_in_different_orders_is_gone_on_from(
    name: str, as_one: bool, tmp_path: Path
) -> None:
    """The tasks never share a flow, though they may be wanted in one: a position means different files to them."""
    files = unpacked(name)
    check(files, 75)
    for _ in range(2):
        go_on(files, tmp_path, as_one)
        check(files, 100)
        assert flows_of(files) == {"Totals": {"Totals"}, "Windows": {"Windows"}}
    assert open_store(files.url).application(APPLICATION).clocks()[-1] > 800


@pytest.mark.soak
@pytest.mark.one_in(2)
@pytest.mark.parametrize("as_one", [False, True])
@pytest.mark.parametrize("name", STORES)
def test_whatever_kills_that_the_next_start_cuts_back_and_goes_on(name: str, as_one: bool, tmp_path: Path) -> None:
    files = unpacked(name)
    assert survive(files, lambda mortal: go_on(mortal, tmp_path, as_one), nth=as_one) > 4
    check(files, 100)


@pytest.mark.parametrize("name", STORES)
def test_the_store_holds_what_it_is_about(name: str) -> None:
    files = unpacked(name)
    entry = Log(files, APPLICATION).newest()
    assert entry is not None
    totals, windows = entry.tasks["Totals"], entry.tasks["Windows"]
    orders = [
        [json.loads(line)["path"] for line in lists.read(files, entry.flow_of(task).source.journal)]
        for task in ("Totals", "Windows")
    ]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    assert windows.born == BORN
    assert totals.outputs.delivered["sink"] in entry.retained[:-1]
    assert any(run.below is not None for task in (totals, windows) for run in task.stored.runs)
    assert max(run.last for run in totals.stored.runs) >= entry.clock
