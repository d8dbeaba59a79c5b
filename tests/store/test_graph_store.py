"""A store of a graph of tasks, with tasks that share a flow and one that processes in order, is sound for this version.

`fixtures/write_graph_store.py` says what is in the store.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from persistent_state import open_store, read_state
from persistent_state.partials.since import Since
from persistent_state.store.files import Files, open_files
from persistent_state.store.log import Log
from persistent_state.store.state_at import seen_below
from persistent_state.store.verify import verify
from tests import core
from tests.fixtures.write_graph_store import (
    APPLICATION,
    KEEPING,
    LARGE,
    LATE,
    QUIET,
    REGIONS,
    WINDOW,
    WITHOUT_TIMESTAMP,
    Graph,
    PerRegion,
    PerShop,
    Slots,
    Visits,
    rows,
)
from tests.store.test_codec import newest_entry, state_rows
from tests.store.test_upgrades import FEW_ROWS, FIXTURES, survive, unpacked

STORES = sorted(path.name for path in FIXTURES.glob("graph-*"))


def go_on(files: Files, upto: int = 80) -> None:
    """Start the application with another number of shards, and read on."""
    graph = Graph(files, 2, 20, ["sink"]).begin()
    graph.read(upto)
    core.collect(graph.log, graph.newest.epoch, now=0, keeping=KEEPING)


def why_aside(task: str, number: int) -> str | None:
    """Why a row does not count for a task; None if it counts."""
    if number in WITHOUT_TIMESTAMP:
        return "no timestamp"
    if number in LATE:
        return "late"
    return "value does not fit" if (task, number) == ("PerShop", LARGE) else None


def below(task: str, clock: int) -> list[dict[str, Any]]:
    """The rows of the state of a task at a clock."""
    return [row for i, row in enumerate(rows()) if why_aside(task, i) is None and row["ts"] < clock]


def per_shop(clock: int) -> dict[Any, Any]:
    wanted: dict[Any, dict[str, int]] = defaultdict(lambda: {"cents": 0, "region": 0})
    for row in below("PerShop", clock):
        of = wanted[row["shop"]]
        of["cents"] += 100 * row["price"]
        of["region"] = max(of["region"], row["ts"] // 150 % REGIONS)
    return wanted


def per_region(clock: int) -> dict[Any, Any]:
    wanted: dict[Any, dict[str, int]] = defaultdict(lambda: {"cents": 0, "shops": 0})
    for shop in per_shop(clock).values():
        of = wanted[shop["region"]]
        of["cents"] += shop["cents"]
        of["shops"] += 1
    return wanted


def slots(clock: int) -> dict[Any, int]:
    wanted: dict[Any, int] = defaultdict(int)
    for row in below("Slots", clock):
        begin = row["ts"] // WINDOW * WINDOW
        if clock < begin + WINDOW:
            wanted[row["shop"], begin] += row["price"]
    return wanted


def visits(clock: int) -> dict[Any, Any]:
    wanted: dict[Any, dict[str, Any]] = {}
    for row in sorted(below("Visits", clock), key=lambda row: row["ts"]):
        of = wanted.setdefault(row["shop"], {"state": {"visits": 0}, "timers": [], "newest": 0})
        of["state"]["visits"] += 1
        of["newest"] = row["ts"]
        if row["ts"] + QUIET >= clock:
            of["timers"].append({"timestamp": row["ts"] + QUIET, "name": ""})
    return wanted


def emitted(clock: int) -> list[tuple[Any, int, int]]:
    """The shop, the moment and the visits of each row that a timer has emitted below a clock."""
    due = {(row["shop"], row["ts"] + QUIET) for row in below("Visits", clock - QUIET)}
    return sorted(((shop, at, visits(at)[shop]["state"]["visits"]) for shop, at in due), key=repr)


def found(files: Files, task: Any, clock: int) -> dict[Any, Any]:
    table = core.whole_times(read_state(files.url, APPLICATION, task, clock))
    names = [name for name in table.column_names if name not in ("value", "window_end")]
    some = {tuple(row[name] for name in names): row["value"] for row in table.to_pylist()}
    return {key if len(names) > 1 else key[0]: value for key, value in some.items()}


ALL: tuple[tuple[Any, Callable[[int], dict[Any, Any]]], ...] = (
    (PerShop(), per_shop),
    (Slots(), slots),
    (PerRegion(), per_region),
    (Visits(), visits),
)


def check(files: Files, read: int) -> None:
    """The store is sound, and each of the rows that were read is in it once."""
    assert verify(files.url).problems == ()
    for clock in open_store(files.url).application(APPLICATION).clocks():
        for task, expected in ALL:
            state = {key: value for key, value in found(files, task, clock).items() if _counts(value)}
            assert state == expected(clock), (task.task_name, clock)
    graph = Graph(files, 2, 20)
    entry, plan = graph.newest, graph.plans["Visits.rows"]
    stored = entry.tasks[plan.name].stored
    told = seen_below(files, stored.runs, plan.layout, entry.clock, Since(stored.floor), stored.floor).to_pylist()
    moments = sorted(((row["key0"], row["timestamp"], row["value"]["visits"]) for row in told), key=repr)
    assert moments == [row for row in emitted(entry.clock) if row[1] >= stored.floor]
    for name in ("PerShop", "Slots", "Visits"):
        aside = [
            row for table in open_store(files.url).application(APPLICATION).late_rows(name) for row in table.to_pylist()
        ]
        wanted = [(why, i) for i in range(read) if (why := why_aside(name, i)) is not None]
        assert sorted((row["reason"], row["position"]) for row in aside) == sorted(wanted)


def _counts(value: Any) -> bool:
    """Whether a region still has shops: one that has none left is there with zeros."""
    return not isinstance(value, dict) or value.get("shops") != 0


@pytest.mark.parametrize("name", STORES)
def test_a_store_of_a_graph_is_sound_before_and_after_this_version_goes_on_from_it(name: str) -> None:
    files = unpacked(name)
    check(files, 60)
    for _ in range(2):
        go_on(files)
        check(files, 80)
    entry = Log(files, APPLICATION).newest()
    assert entry is not None
    assert entry.clock > 700
    assert entry.tasks_of("PerShop").keys() == {"PerShop", "Slots"}


@pytest.mark.soak
@pytest.mark.parametrize("name", STORES)
@FEW_ROWS
def test_whatever_kills_that_the_next_start_cuts_back_and_goes_on(name: str, few: str) -> None:
    files = unpacked(name)
    assert survive(files, lambda mortal: go_on(mortal, 70)) > (4 if few == "in files" else 1)
    check(files, 70)


@pytest.mark.parametrize("name", STORES)
def test_the_store_is_read_by_hand_before_and_after_this_version_goes_on_from_it(name: str, tmp_path: Path) -> None:
    files = unpacked(name, open_files(str(tmp_path)))
    for _ in range(2):
        entry = newest_entry(tmp_path)
        for clock in entry["retained"]:
            cents: dict[Any, int] = defaultdict(int)
            for row in state_rows(tmp_path, entry["tasks"]["PerShop"], clock):
                cents[row["key0"]] += row["value"]["cents"]
            assert cents == {shop: of["cents"] for shop, of in per_shop(clock).items()}
        go_on(files)


@pytest.mark.parametrize("name", STORES)
def test_the_store_holds_what_it_is_about(name: str) -> None:
    files = unpacked(name)
    log = Log(files, APPLICATION)
    entries = {number: json.loads(bytes(files.read(log.path(number))).splitlines()[0]) for number in log.numbers()}
    newest = log.newest()
    assert newest is not None
    assert {entry["format"] for entry in entries.values()} == {4}
    assert newest.base < newest.number
    assert min(entries) > 1
    assert {id: [*newest.tasks_of(id)] for id in newest.flows} == {
        "PerShop": ["PerShop", "Slots"],
        "Visits.messages": ["Visits.messages"],
        "PerRegion": ["PerRegion"],
        "Visits": ["Visits", "Visits.rows"],
    }
    shop, flow = newest.tasks["PerShop"], newest.flows["PerShop"]
    assert shop.late_rows.counts() == {"value does not fit": 1}
    assert flow.late_rows.counts() == {"late": 3, "no timestamp": 2}
    assert shop.outputs.delivered["sink"] in newest.retained[:-1]
    assert any(run.below is not None for task in newest.tasks.values() for run in task.stored.runs)
    assert any(run.due is not None for run in newest.tasks["Visits"].stored.runs)
    assert max(run.last for run in shop.stored.runs) >= newest.clock
