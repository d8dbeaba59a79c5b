"""A store is opened by names alone, in parts, and what is gone is said to be gone."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from monoids import Aggregator, Average, Map, Monoid, Sum
from persistent_state import (
    DamagedError,
    InvalidInputError,
    NonWindowState,
    NotThereError,
    PersistentTask,
    TaskFailedError,
    open_store,
    read_state,
)
from persistent_state.show.top import StatusReader
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from persistent_state.store.state_at import find_applications, find_sides, find_state, read_listed_side
from tests import core
from tests.fixtures.write_store import APPLICATION, Notes, Totals

STORE = str(Path(__file__).parent / "fixtures" / "store-v1")


@pytest.mark.parametrize("task", [Totals(), Notes()])
def test_a_task_that_is_only_named_is_read_as_by_itself(task: Totals | Notes) -> None:
    for clock in (None, *open_store(STORE).application(APPLICATION).clocks()):
        named = read_state(STORE, APPLICATION, task.task_name, clock)
        assert named.num_rows > 0
        assert named.equals(read_state(STORE, APPLICATION, task, clock))


def test_a_clock_is_a_number_iso_text_or_a_datetime_with_a_zone() -> None:
    newest = open_store(STORE).application(APPLICATION).clocks()[-1]
    state = read_state(STORE, APPLICATION, "Totals", newest)
    time = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=newest)
    elsewhere = time.astimezone(timezone(timedelta(hours=-8)))
    for clock in (time, elsewhere, time.isoformat(), elsewhere.isoformat(), str(newest)):
        assert read_state(STORE, APPLICATION, "Totals", clock).equals(state)
    naive = time.replace(tzinfo=None)
    assert read_state(STORE, APPLICATION, "Totals", naive.isoformat()).equals(state)
    with pytest.raises(InvalidInputError, match="has no time zone; give it one, such as"):
        read_state(STORE, APPLICATION, "Totals", naive)
    with pytest.raises(InvalidInputError, match="clock='noon' is not a time"):
        read_state(STORE, APPLICATION, "Totals", "noon")
    for number in (True, 1.5):
        with pytest.raises(InvalidInputError, match=f"clock='{number}' is not a time"):
            read_state(STORE, APPLICATION, "Totals", number)  # type: ignore[arg-type]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 50])
@pytest.mark.parametrize("task", ["Totals", "Notes"])
def test_the_parts_of_a_state_hold_each_key_once_and_open_only_runs_of_theirs(task: str, parts: int) -> None:
    for clock in open_store(STORE).application(APPLICATION).clocks():
        state = find_state(open_files(STORE), APPLICATION, task, clock)
        pieces = [state.part(number, parts) for number in range(parts)]
        rows = [row for piece in pieces for row in piece.read().to_pylist()]
        assert sorted(map(repr, rows)) == sorted(map(repr, state.read().to_pylist()))
        assert all(run.low < run.high and run.first < clock for piece in pieces for run in piece.runs)
        opened = sum(len({run.file.path for run in piece.runs}) for piece in pieces)
        assert parts < 50 or opened < parts * len({run.file.path for run in state.runs})


def test_the_object_of_another_task_is_refused_and_another_monoid_changes_nothing() -> None:
    class Other(Totals):
        name = "Notes"

    with pytest.raises(InvalidInputError, match="task=Notes: the store was written with monoid="):
        read_state(STORE, APPLICATION, Other())
    others: list[Monoid[object]] = [Map(pa.string(), Totals().persistent_state().monoid)]
    assert read_state(STORE, APPLICATION, "Notes", monoids=others).equals(read_state(STORE, APPLICATION, Notes()))


def test_late_rows_are_read_of_a_task_or_its_name() -> None:
    assert open_store(STORE).application(APPLICATION).late_rows(Totals()) == open_store(STORE).application(
        APPLICATION
    ).late_rows("Totals")


def test_files_that_are_missing_are_said_to_be_missing_and_not_to_be_of_an_old_clock(tmp_path: Path) -> None:
    store = Path(shutil.copytree(STORE, tmp_path / "store"))
    state = find_state(open_files(str(store)), APPLICATION, "Totals")
    for path in (store / APPLICATION / "runs").rglob("*.arrow"):
        path.unlink()
    with pytest.raises(
        DamagedError, match=r"a file that the newest log entry names is gone \(.*\.arrow'\); bring it back"
    ):
        state.read()
    with pytest.raises(DamagedError, match=r"a file that the newest log entry names is gone \(.*side\.arrow"):
        open_store(str(store)).application(APPLICATION).late_rows("Totals")


def test_a_file_of_late_rows_is_missing_if_the_newest_entry_names_it_and_else_its_rows_are_in_another(
    tmp_path: Path,
) -> None:
    store = Path(shutil.copytree(STORE, tmp_path / "store"))
    files = open_files(str(store))
    side, *_ = find_sides(files, APPLICATION, "Totals")
    (store / side.file.path).unlink()
    with pytest.raises(DamagedError, match=r"a file that the newest log entry names is gone \(.*side\.arrow"):
        read_listed_side(files, APPLICATION, "Totals", side)
    joined = replace(side, file=replace(side.file, path=f"{APPLICATION}/runs/Totals/collected.side.arrow"))
    with pytest.raises(NotThereError, match=r"collected\.side\.arrow is no longer retained"):
        read_listed_side(files, APPLICATION, "Totals", joined)


def test_the_applications_of_a_store_are_its_folders_that_have_a_log(tmp_path: Path) -> None:
    store = shutil.copytree(STORE, tmp_path / "store")
    shutil.copytree(store / APPLICATION, store / "another")
    (store / "notes.txt").write_text("mine")
    (store / "empty" / "log").mkdir(parents=True)
    (store / "other" / "runs").mkdir(parents=True)
    assert find_applications(open_files(str(store))) == ["another", APPLICATION]
    assert find_applications(core.memory()) == []
    assert find_applications(open_files(str(tmp_path / "nothing"))) == []


def test_a_folder_that_may_not_be_read_hides_no_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shutil.copytree(STORE, tmp_path / "store")
    for name in ("lost+found", "secret"):
        (store / name).mkdir()
    known = os.listdir

    def listdir(path: str) -> list[str]:
        # Root, as which tests may run, may read everything.
        if "lost+found" in path or "secret" in path:
            raise PermissionError(13, "Permission denied", path)
        return known(path)

    monkeypatch.setattr(os, "listdir", listdir)
    # Whether the other folder is an application can't be known: whoever opens it is told why.
    assert find_applications(open_files(str(store))) == [APPLICATION, "secret"]
    by_name = {status.name: status for status in StatusReader(open_files(str(store))).look()}
    assert by_name[APPLICATION].error == ""
    assert "Permission denied" in by_name["secret"].error


class Means(PersistentTask):
    """Keeps a Summary, or what the test says."""

    key, value = "key", "n"

    def __init__(self, monoid: Any = None) -> None:
        self.monoid = Average(pa.int64()) if monoid is None else monoid

    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(self.monoid)


def store_of(task: PersistentTask, folder: Path) -> str:
    rows = pa.RecordBatch.from_pydict({"ts": [1, 2, 3, 99], "key": ["a", "a", "b", "b"], "n": [3, 4, 10, 0]})
    plan = core.plan_of(task, rows.schema, files=open_files(str(folder)))
    log = Log(plan.files, "app")
    core.start(log, [plan])
    core.play(log, plan, rows)
    return str(folder)


def presented(store: str, task: PersistentTask | str, *monoids: Any) -> dict[str, Any]:
    table = read_state(store, "app", task, presented=True, monoids=monoids)
    return dict(zip(*(table[name].to_pylist() for name in ("key", "value")), strict=True))


def test_presented_values_are_what_outputs_show(tmp_path: Path) -> None:
    store = store_of(Means(), tmp_path)
    raw = read_state(store, "app", "Means")
    assert sorted(row["value"]["n"] for row in raw.to_pylist()) == [1, 2]
    # Of a Summary it is known by the task's name alone.
    assert presented(store, "Means") == presented(store, Means()) == {"a": 3.5, "b": 10.0}
    plan = core.plan_of(Means(), pa.schema([("ts", pa.int64()), ("key", pa.string()), ("n", pa.int64())]))
    assert read_state(store, "app", "Means", presented=True)["value"].type == plan.state.presented


def test_what_an_aggregator_presents_is_known_of_the_task_or_of_the_aggregator(tmp_path: Path) -> None:
    doubled = Aggregator(abs, Sum(), lambda total: f"{total} in all", pa.string())
    store = store_of(Means(doubled), tmp_path)
    wanted = {"a": "7 in all", "b": "10 in all"}
    assert presented(store, Means(doubled)) == presented(store, "Means", doubled) == wanted
    # By its name alone a sum is shown as it is.
    assert presented(store, "Means") == {"a": 7, "b": 10}
    untyped = Aggregator(abs, Sum(), str)
    with pytest.raises(InvalidInputError, match="the Arrow type of what is presented is not known"):
        presented(store, Means(untyped))
    wrong = Aggregator(abs, Sum(), lambda total: 1 // 0, pa.int64())
    with pytest.raises(TaskFailedError, match=r"task=Means: what presents its values raised ZeroDivisionError"):
        presented(store, Means(wrong))


def test_a_present_that_nobody_would_call_is_refused() -> None:
    class Doubled(Monoid[int]):
        type = pa.int64()
        zero = 0

        def plus(self, a: int, b: int) -> int:
            return a + b

        def present(self, value: int) -> int:
            return 2 * value

    with pytest.raises(InvalidInputError, match="the present of Doubled would never be called, as it is not a Summary"):
        NonWindowState(Doubled())
    assert NonWindowState(Aggregator(abs, Doubled(), Doubled().present, pa.int64())).presented == pa.int64()
