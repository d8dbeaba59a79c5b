"""What the doctor says of Python, Java and Spark, against made-up programs; tests/spark/ has the real ones."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from persistent_state.cli.doctor import machine
from persistent_state.cli.doctor.check import FAIL, OK, WARN
from persistent_state.cli.doctor.machine import check_java, check_machine, check_spark


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_REMOTE", "SPARK_HOME", "JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)


def install_java(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> Path:
    """Make a `java` that prints this line the only program on PATH."""
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho '{line}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return java


def spark_tells(monkeypatch: pytest.MonkeyPatch, told: dict[str, Any]) -> None:
    monkeypatch.setattr(machine, "try_spark", lambda: told)


def test_the_java_that_spark_will_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = install_java(tmp_path, monkeypatch, 'openjdk version "21.0.1" 2023-10-17')
    found = check_java()
    assert (found.status, found.text) == (OK, f"version 21, {java}")


def test_without_a_java_spark_is_not_tried_and_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_java(tmp_path, monkeypatch, 'openjdk version "11.0.20" 2023-07-18')
    monkeypatch.setattr(machine, "try_spark", lambda: pytest.fail("Spark was tried"))
    python, java, spark = check_machine()
    assert (python.status, python.text) == (OK, f"{platform.python_version()}, {sys.executable}")
    assert java.status == FAIL
    assert "is version 11: install one" in java.text
    assert (spark.status, spark.text) == (WARN, "not tried, as it needs Java; see above.")


def test_a_server_of_spark_needs_no_java_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002/;token=hidden")
    spark_tells(monkeypatch, {"spark": "4.3.0", "pyspark": "4.2.1"})
    _, java, spark = check_machine()
    assert (java.status, java.text) == (OK, "not needed here: SPARK_REMOTE=sc://host:15002/ is another process")
    assert (spark.status, spark.text) == (OK, "a server of version 4.3.0, with PySpark 4.2.1 here")


def test_another_spark_than_pysparks_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    spark_tells(monkeypatch, {"spark": "4.1.4", "pyspark": "4.3.0"})
    found = check_spark()
    assert found.status == FAIL
    assert found.text == (
        "Spark is of version 4.1.4, of SPARK_HOME=/opt/spark, and PySpark of 4.3.0; unset SPARK_HOME, or pip install "
        "pyspark==4.1.4."
    )


@pytest.mark.parametrize("version", ["4.0.2-amzn-0", "4.0.2"])
def test_the_words_that_a_platform_adds_to_the_version_are_no_difference(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    spark_tells(monkeypatch, {"spark": version, "pyspark": "4.0.2"})
    assert check_spark().status == OK
    spark_tells(monkeypatch, {"spark": version, "pyspark": "4.0.20"})
    assert check_spark().text.endswith("or pip install pyspark==4.0.2.")


def test_a_spark_that_does_not_start_says_how_to_see_why(monkeypatch: pytest.MonkeyPatch) -> None:
    spark_tells(monkeypatch, {"error": "Spark does not start: [JAVA_GATEWAY_EXITED] It has ended."})
    found = check_spark()
    assert found.status == FAIL
    assert found.text == (
        "Spark does not start: [JAVA_GATEWAY_EXITED] It has ended; `python -m persistent_state.engine.trial` shows all "
        "that Spark says of it: mend that."
    )


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("print('noise'); print('{\"spark\": \"4.3.0\"}')", {"spark": "4.3.0"}),
        ("import os; os._exit(7)", {"error": "Spark does not start, and its process ended with status 7"}),
        ("import time; time.sleep(60)", {"error": "Spark has not started and run a job within 1 seconds"}),
    ],
)
def test_what_the_process_tells_is_its_last_line(
    monkeypatch: pytest.MonkeyPatch, program: str, told: dict[str, Any]
) -> None:
    run = subprocess.run
    monkeypatch.setattr(machine, "PATIENCE", 1 if "sleep" in program else 60)
    monkeypatch.setattr(subprocess, "run", lambda command, **how: run([sys.executable, "-c", program], **how))
    assert json.dumps(machine.try_spark()) == json.dumps(told)
