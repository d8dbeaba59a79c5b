"""A store that earlier versions wrote is sound for this one, which goes on from it whatever kills it.

The stores in `fixtures` were written by the commits in their names, one after the other, so that each also holds what a version
wrote over the store of an older one. The first commit made two starts with 40 of the sales of `write_store`, with late and bad
rows in lists, each further commit one start with 10 more. Where a version knew outputs and plans, its newest entry has some.
The last one went back to a kept clock, which outputs owe that are there, left before, and came later. Two
commits wrote a store from its beginning to its end, of format 5 and of format 6. In the latter one worker has merged all
shards, so that runs are ranges of files. A third one wrote all but the last 10 sales, and the rows of each micro-batch are in
its entry.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from persistent_state import open_store, read_state
from persistent_state.event_time.clocks import Settings
from persistent_state.protocol.global_clock import Keeping
from persistent_state.store.files import MemoryFiles
from persistent_state.store.files.base import BytesLike, Files
from persistent_state.store.log import Log
from persistent_state.store.verify import verify
from tests import core
from tests.fixtures.write_store import APPLICATION, SCHEMA, Notes, Totals, batch, rows
from tests.soak import soak_or
from tests.store.test_codec import LATE, WITHOUT_TIMESTAMP, expected_notes, expected_totals

FIXTURES = Path(__file__).parents[1] / "fixtures"
STORES = sorted(path.name for path in FIXTURES.glob("store-*"))


class Killed(BaseException):
    """The process is gone."""


class Mortal(MemoryFiles):
    """Files of a process that dies before its n-th change of the store, which is after the one before."""

    left: int

    def __init__(self, url: str, changes: int) -> None:
        super().__init__(url)
        object.__setattr__(self, "left", changes)

    def create(self, path: str, data: BytesLike) -> None:
        self._step()
        super().create(path, data)

    def delete(self, path: str) -> None:
        self._step()
        super().delete(path)

    def _step(self) -> None:
        object.__setattr__(self, "left", self.left - 1)
        if self.left <= 0:
            raise Killed


STEP = soak_or(ci=3, soak=1)
"""By how many changes of the store each life is longer than the one before it."""


FEW_ROWS = pytest.mark.parametrize("few", ["in entries", pytest.param("in files", marks=pytest.mark.rows_in_files)])
"""Where the few rows of a micro-batch are written: files are more moments to be killed at."""


def survive(files: Files, go_on: Callable[[Files], None], nth: int = 0) -> int:
    """Go on again and again, until no change of the store kills it; return how often. The store is sound after each.

    Calls with another `nth` are killed at other changes, so that all calls together are killed at each.
    """
    for lives in count(1):
        try:
            go_on(Mortal(files.url, STEP * lives - nth % STEP))
        except Killed:
            assert verify(files.url).problems == ()
        else:
            break
    return lives


def unpacked(name: str, files: Files | None = None) -> Files:
    """The store of this name, by default in memory."""
    files, place = files or core.memory(), FIXTURES / name
    if place.is_dir():
        content = {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}
    else:
        with tarfile.open(place) as tar:
            content = {each.name: tar.extractfile(each).read() for each in tar if each.isfile()}
    for path, data in content.items():
        files.create(path, data)
    return files


def go_on(files: Files) -> None:
    """Start the application, and read the sales to their end; what is replaced is kept, as it is verified."""
    log = Log(files, APPLICATION)
    newest = log.newest()
    assert newest is not None
    settings = Settings(interval=20, delay=10, ahead=2**62)
    tasks = [task for task in (Totals(), Notes()) if type(task).__name__ in newest.tasks]
    plans = [core.plan_of(task, SCHEMA, files=files, settings=settings, shards=3) for task in tasks]
    plans = [replace(plan, outputs=tuple(newest.tasks[plan.name].outputs.delivered)) for plan in plans]
    entry = core.start(log, plans)
    keeping = Keeping(clocks=3, grace=10**15)
    for plan in plans:
        while (at := (log.newest() or entry).flow_of(plan.name).source.positions[""].next) < 60:
            entry = core.play(log, plan, batch(rows()[at : at + 10]), parts=2, keeping=keeping)
    core.collect(log, entry.epoch, now=0, keeping=keeping)


def check(files: Files) -> None:
    """The store is sound, and each sale is in it once."""
    assert verify(files.url).problems == ()
    newest = Log(files, APPLICATION).newest()
    assert newest is not None
    for clock in open_store(files.url).application(APPLICATION).clocks():
        totals = read_state(files.url, APPLICATION, Totals(), clock).to_pylist()
        assert {(row["shop"], row["item"]): row["value"] for row in totals} == expected_totals(clock)
        if "Notes" in newest.tasks:
            notes = read_state(files.url, APPLICATION, Notes(), clock).to_pylist()
            assert {row["shop"]: row["value"] for row in notes} == expected_notes(clock)
    for task in newest.tasks:
        late = [
            row for table in open_store(files.url).application(APPLICATION).late_rows(task) for row in table.to_pylist()
        ]
        assert sorted(row["position"] for row in late) == sorted(LATE | WITHOUT_TIMESTAMP)


@pytest.mark.parametrize("name", STORES)
def test_an_earlier_version_s_store_is_sound_before_and_after_this_one_goes_on_from_it(name: str) -> None:
    files = unpacked(name)
    assert verify(files.url).problems == ()
    last = max(Log(files, APPLICATION).numbers())
    go_on(files)
    check(files)
    log = Log(files, APPLICATION)
    before = bytes(files.read(log.path(last)))
    for number in log.numbers()[log.numbers().index(last) + 1 :]:
        assert log.read(number).previous == hashlib.sha256(before).hexdigest()
        before = bytes(files.read(log.path(number)))
    go_on(files)
    check(files)


@pytest.mark.soak
@pytest.mark.parametrize("name", STORES)
@FEW_ROWS
def test_whatever_kills_an_upgrade_the_next_start_goes_on(name: str, few: str) -> None:
    files = unpacked(name)
    assert survive(files, go_on, STORES.index(name)) > (2 if few == "in files" else 1)
    check(files)


def resealed(files: Files, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what an entry says, with a checksum of its own that fits."""
    path = Log(files, APPLICATION).path(number)
    record = json.loads(bytes(files.read(path)).splitlines()[0])
    change(record)
    body = json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    files.delete(path)
    files.create(path, body + b"sha256 " + hashlib.sha256(body).hexdigest().encode() + b"\n")


UPGRADED = "store-f1d0879-50f4224.tar.xz"
AT = 13
"""The first entry of that store that the second of its versions wrote."""


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(writer="another"),
        lambda record: record["tasks"]["Totals"].update(floor=0),
        lambda record: record["tasks"]["Totals"].update(delivered={"sink": 3}),
        lambda record: record["tasks"]["Totals"]["channels"][""].update(before=7),
        lambda record: record.update(format=2),
    ],
    ids=["writer", "floor", "delivered", "before", "format"],
)
def test_what_an_upgrade_within_the_first_format_explains_is_that_fields_came_to_it_and_nothing_else(
    change: Callable[[dict[str, Any]], None],
) -> None:
    files = unpacked(UPGRADED)
    resealed(files, AT - 1, change)
    told = [(problem.path[-7:], problem.what) for problem in verify(files.url).problems]
    assert (f"{AT:02d}.json", f"it does not go on from entry {AT - 1} as that is now") in told
    assert len(told) == 1


def test_what_an_upgrade_explains_it_explains_of_a_start_of_the_first_format_only() -> None:
    for change in (lambda record: record.update(format=2), lambda record: record.update(epoch=2)):
        files = unpacked(UPGRADED)
        resealed(files, AT, change)
        told = [problem.what for problem in verify(files.url).problems]
        assert f"it does not go on from entry {AT - 1} as that is now" in told


def test_the_stores_hold_what_an_upgrade_is_about() -> None:
    """Or going on from them would prove little."""
    entry = Log(unpacked(UPGRADED), APPLICATION).newest()
    assert entry is not None
    assert entry.flow_of("Totals").source.planned
    assert entry.tasks["Totals"].outputs.delivered["sink"] in entry.retained
    assert all(flow.late_rows.settled.files and flow.late_rows.sides for flow in entry.flows.values())
    newest = {name: Log(unpacked(name), APPLICATION).newest() for name in STORES}
    assert {entry.has_parts for entry in newest.values() if entry} == {True, False}
    assert {entry.inline > 0 for entry in newest.values() if entry} == {True, False}
