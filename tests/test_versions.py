"""What `make soak` runs the tests under: the newest patch of each version of Spark that setup.cfg allows."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from tests import versions


def test_each_allowed_minor_version_is_tried_once_by_its_newest_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    def index(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        found = "4.3.1, 4.3.0, 4.2.10, 4.2.9, 4.1.2, 4.0.10, 4.0.9, 3.5.0"
        known = f"pyspark (4.3.1)\nAvailable versions: {found}\n  LATEST: 4.3.1\n"
        return subprocess.CompletedProcess(command, 0, known)

    monkeypatch.setattr(subprocess, "run", index)
    assert versions.allowed_versions() == ["4.3.1", "4.2.10", "4.1.2", "4.0.10"]


def test_each_version_runs_the_tests_that_it_can() -> None:
    assert versions.files_for("4.1.4") == versions.files_for("4.3.1")
    assert all((versions.ROOT / file).exists() for file in versions.files_for("4.3.1"))
    assert {*versions.files_for("4.1.4")} - {*versions.files_for("4.0.5")} == {"tests/spark/test_connect.py"}


def test_a_version_that_fails_or_is_left_out_makes_the_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = {"4.3.1": "passed", "4.2.10": "passed", "4.1.2": "passed"}
    asked: list[str] = []

    def outcome(version: str, options: Sequence[str]) -> str:
        asked.append(f"{version} {' '.join(options)}")
        return outcomes[version]

    monkeypatch.setattr(versions, "allowed_versions", lambda: list(outcomes))
    monkeypatch.setattr(versions, "outcome", outcome)
    assert versions.main(["-x"]) == 0
    assert asked == ["4.3.1 -x", "4.2.10 -x", "4.1.2 -x"]
    outcomes["4.2.10"] = "left out, it could not be installed: no network"
    assert versions.main([]) == 1
    assert versions.main(["--only", "4.1.2"]) == 0
