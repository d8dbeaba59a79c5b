"""What the doctor says of a store: of one that is as it must be, and of each way in which it may not be."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from persistent_state.cli.doctor import store
from persistent_state.cli.doctor.check import FAIL, OK, WARN, Check
from persistent_state.cli.doctor.store import CLOCK, CREATE, NOT_APART, STORE, WRITERS, check_store
from persistent_state.errors import ExistsError, StoreUnavailableError
from persistent_state.store.files import Files
from tests.simulation.files import PlainFiles

ROOT = Path(__file__).parents[3]


def checks_of(monkeypatch: pytest.MonkeyPatch, files: Files, now: Callable[[], float] = time.time) -> dict[str, Check]:
    monkeypatch.setattr(store, "open_files", lambda url, options: files)
    return {check.check: check for check in check_store(files.url, {}, now)}


@dataclass(frozen=True)
class Broken(PlainFiles):
    """A store that breaks one promise."""

    how: str = ""
    made_at: float | None = None

    def create(self, path: str, data: Any) -> None:
        if self.how == "replaces":
            self.delete(path)
        if self.how == "mixes" and not path.endswith("0"):
            data = b"x" * len(bytes(data))
        try:
            super().create(path, data)
        except ExistsError:
            if self.how != "all win" or bytes(data) == b"later":
                raise
        if self.how == "loses answers":
            raise ExistsError(f"{path} is taken.")

    def read(self, path: str) -> pa.Buffer:
        if self.how == "can't be read":
            raise StoreUnavailableError("the store is away. Try again.")
        return super().read(path)

    def delete(self, path: str) -> None:
        if self.how == "keeps all":
            raise StoreUnavailableError(f"path={path!r} can't be deleted. Permit it.")
        super().delete(path)

    def modified(self, path: str) -> float | None:
        return self.made_at


def test_a_folder_is_as_it_must_be_and_is_left_as_it_was(tmp_path: Path) -> None:
    found = list(check_store(str(tmp_path / "not" / "yet"), {}, time.time))
    assert [(check.check, check.status) for check in found] == [(STORE, OK), (CREATE, OK), (CLOCK, OK)]
    assert found[1].text == f"of {WRITERS} writers of this machine at once one wins, 5 times out of 5"
    assert list(tmp_path.iterdir()) == []


def test_a_store_with_applications_is_left_as_it_was(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests" / "fixtures" / "store-v1", tmp_path / "store")
    before = sorted(tmp_path.rglob("*"))
    found = list(check_store(str(tmp_path / "store"), {}, time.time))
    assert {check.status for check in found} == {OK}
    assert (
        found[0].text
        == f"{tmp_path}/store can be listed, written and read: {len(os.listdir(before[0])):,} names are there"
    )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("all win", f"{WRITERS} of {WRITERS} writers at once were told that they made one file; {NOT_APART}"),
        ("mixes", f"a file of {WRITERS} writers at once holds what none of them wrote; {NOT_APART}"),
        (
            "loses answers",
            f"none of {WRITERS} writers at once was told that it made a file that is there; check again, and if it stays so",
        ),
    ],
)
def test_a_store_that_can_not_tell_two_drivers_apart_fails(
    monkeypatch: pytest.MonkeyPatch, how: str, says: str
) -> None:
    found = checks_of(monkeypatch, Broken("broken://", how=how))
    assert found[CREATE].status == FAIL
    assert found[CREATE].text == f"{says} take a store that docs/stores.md lists."
    assert found[STORE].status == OK


def test_a_store_in_which_a_file_is_replaced_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    # One at a time, so that only the last one's answer is wrong.
    monkeypatch.setattr(store, "WRITERS", 1)
    found = checks_of(monkeypatch, Broken("broken://", how="replaces"))
    assert found[CREATE].status == FAIL
    assert found[CREATE].text.startswith("a file was replaced by a later one of its name; ")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("can't be read", "the store is away. Try again."),
        ("keeps all", r"path='doctor-\w+' can't be deleted. Permit it."),
    ],
)
def test_a_store_that_fails_says_so_in_its_own_sentence(monkeypatch: pytest.MonkeyPatch, how: str, says: str) -> None:
    monkeypatch.setattr(store, "open_files", lambda url, options: Broken("broken://", how=how))
    last = list(check_store("broken://", {}, time.time))[-1]
    assert (last.check, last.status) == (STORE, FAIL)
    assert re.fullmatch(says, last.text)


def test_a_folder_that_can_not_be_made_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (found,) = check_store(str(tmp_path / "file" / "store"), {}, time.time)
    assert found.status == FAIL
    assert f"store='{tmp_path}/file/store'" in found.text
    assert found.text.endswith("Put it right, then try again.")


def test_a_store_whose_extra_is_missing_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("persistent_state.store.files.find_spec", lambda name: None)
    (found,) = check_store("s3://bucket/apps", {"key": "hidden"}, time.time)
    assert found.status == FAIL
    assert (
        found.text
        == "package='s3fs' is missing for this store; pip install 'persistent-state[s3]', in a checkout '.[s3]'."
    )
    assert importlib.util.find_spec("s3fs")


@pytest.mark.parametrize(
    ("made_at", "status", "says"),
    [
        (1000.0, OK, "within 5 seconds"),
        (999.0, OK, "within 5 seconds"),
        (994.5, OK, "within 5 seconds"),
        (1004.5, OK, "within 5 seconds"),
        (960.0, WARN, "the store's clock is 39 s behind this machine's; let NTP set both, and look again."),
        (1037.0, WARN, "the store's clock is 37 s ahead of this machine's; let NTP set both, and look again."),
        (None, OK, "this store has none of its own"),
    ],
)
def test_a_clock_that_is_off_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, made_at: float | None, status: str, says: str
) -> None:
    files = replace(Broken("broken://"), made_at=made_at)
    found = checks_of(monkeypatch, files, now=lambda: 1000.0)[CLOCK]
    assert found.status == status
    assert says in found.text
