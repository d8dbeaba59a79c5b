"""A store is opened by names alone, in parts, and what is gone is said to be gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from monoids import Map, Monoid
from persistent_state import InvalidInput, clocks, read_late_rows, read_state
from persistent_state.reader import find_applications, find_state
from persistent_state.store.files import open_files
from tests import core
from tests.fixtures.write_store import APPLICATION, Notes, Totals

STORE = str(Path(__file__).parent / "fixtures" / "store-v1")


@pytest.mark.parametrize("task", [Totals(), Notes()])
def test_a_task_that_is_only_named_is_read_as_by_itself(task: Totals | Notes) -> None:
    for clock in (None, *clocks(STORE, APPLICATION)):
        named = read_state(STORE, APPLICATION, task.task_name, clock)
        assert named.num_rows > 0
        assert named.equals(read_state(STORE, APPLICATION, task, clock))


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 50])
@pytest.mark.parametrize("task", ["Totals", "Notes"])
def test_the_parts_of_a_state_hold_each_key_once_and_open_only_runs_of_theirs(task: str, parts: int) -> None:
    for clock in clocks(STORE, APPLICATION):
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

    with pytest.raises(InvalidInput, match="task=Notes: the store was written with monoid="):
        read_state(STORE, APPLICATION, Other())
    others: list[Monoid[object]] = [Map(pa.string(), Totals().persistent_state().monoid)]
    assert read_state(STORE, APPLICATION, "Notes", monoids=others).equals(read_state(STORE, APPLICATION, Notes()))


def test_files_that_were_collected_are_said_to_be_gone(tmp_path: Path) -> None:
    store = Path(shutil.copytree(STORE, tmp_path / "store"))
    state = find_state(open_files(str(store)), APPLICATION, "Totals")
    for path in (store / APPLICATION / "runs").rglob("*.arrow"):
        path.unlink()
    with pytest.raises(
        InvalidInput, match=rf"clock=.* \({state.clock}\) of app is no longer retained; open a newer one"
    ):
        state.read()
    with pytest.raises(InvalidInput, match=r"side\.arrow is no longer retained; look for the late rows again"):
        read_late_rows(str(store), APPLICATION, "Totals")


def test_the_applications_of_a_store_are_its_folders_that_have_a_log(tmp_path: Path) -> None:
    store = shutil.copytree(STORE, tmp_path / "store")
    shutil.copytree(store / APPLICATION, store / "another")
    (store / "notes.txt").write_text("mine")
    (store / "empty" / "log").mkdir(parents=True)
    (store / "other" / "runs").mkdir(parents=True)
    assert find_applications(open_files(str(store))) == ["another", APPLICATION]
    assert find_applications(core.memory()) == []
    assert find_applications(open_files(str(tmp_path / "nothing"))) == []
