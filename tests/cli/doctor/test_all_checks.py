"""`persistent-state doctor`: what it prints, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from persistent_state.cli.commands import main
from persistent_state.cli.doctor import machine
from persistent_state.engine.spark.java import java_problem


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark was started before."""
    monkeypatch.setattr(machine, "try_spark", lambda: {"spark": "4.3.0", "pyspark": "4.3.0"})
    monkeypatch.delenv("SPARK_REMOTE", raising=False)


@pytest.mark.usefixtures("quick")
def test_each_check_is_a_line_and_all_good_is_status_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path / "store")]) == 0
    lines = capsys.readouterr().out.splitlines()
    checks = [line[6:25].rstrip() for line in lines if not line[6:].startswith(("extra ", "other "))]
    assert checks == ["packages", "store", "exclusive create", "clock", "python", "java", "spark"]
    assert {line[:6] for line in lines} == {"ok    "}


@pytest.mark.usefixtures("quick")
def test_without_a_store_none_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not {"store", "exclusive create", "clock"} & {check["check"] for check in found}
    assert found[-1] == {"check": "spark", "status": "ok", "text": "version 4.3.0 starts, and its Python workers run"}


def test_what_fails_is_status_1_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["doctor", str(tmp_path / "store"), "--json"]) == 1
    failed = [check for check in json.loads(capsys.readouterr().out) if check["status"] == "fail"]
    assert [(check["check"], check["text"]) for check in failed] == [("java", java_problem())]
    assert main(["doctor", str(tmp_path / "store"), "--local"]) == 0
    lines = capsys.readouterr().out.splitlines()
    checks = [line[6:25].rstrip() for line in lines if not line[6:].startswith(("extra ", "other "))]
    assert checks == ["packages", "store", "exclusive create", "clock", "python"]
    assert "pyspark" not in lines[0]


def test_options_without_a_store_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--storage-options", '{"anon": true}']) == 2
    assert capsys.readouterr().err == (
        "persistent-state: no store is named for --storage-options; name it, or leave them out.\n"
    )
