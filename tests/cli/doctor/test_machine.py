"""What the doctor says of Python, Java and Spark, against made-up programs; tests/spark/ has the real ones."""

from __future__ import annotations

import json
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from persistent_state.cli.doctor import machine
from persistent_state.cli.doctor.check import FAIL, OK, WARN
from persistent_state.cli.doctor.machine import check_java, check_machine, check_spark
from tests.waiting import PATIENCE


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
    python, java, spark = check_machine(with_spark=True)
    assert (python.status, python.text) == (OK, f"{platform.python_version()}, {sys.executable}")
    assert java.status == FAIL
    assert "is version 11: install one" in java.text
    assert (spark.status, spark.text) == (WARN, "not tried, as it needs Java; see above.")


def test_a_server_of_spark_needs_no_java_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    spark_tells(monkeypatch, {"spark": "4.3.0", "pyspark": "4.2.1"})
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"sc://127.0.0.1:{server.getsockname()[1]}/"
        monkeypatch.setenv("SPARK_REMOTE", f"{url};token=hidden")
        _, java, spark = check_machine(with_spark=True)
    assert (java.status, java.text) == (OK, f"not needed here: SPARK_REMOTE={url} is another process")
    assert (spark.status, spark.text) == (OK, "a server of version 4.3.0, with PySpark 4.2.1 here")


def test_a_server_that_takes_no_connection_is_named_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "try_spark", lambda: pytest.fail("Spark was tried"))
    with socket.socket() as bound:
        # A bound port that nobody listens at refuses, and no other process takes it.
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        monkeypatch.setenv("SPARK_REMOTE", f"sc://127.0.0.1:{port}/;token=hidden")
        found = check_spark()
    assert found.status == FAIL
    assert found.text == (
        f"SPARK_REMOTE=sc://127.0.0.1:{port}/ takes no connection at 127.0.0.1, port {port}: Connection refused; start the "
        "server, let this machine reach it, or name another."
    )


def test_a_server_that_runs_no_job_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spark_tells(monkeypatch, {"error": "Spark has not started and run a job within 120 seconds"})
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"sc://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("SPARK_REMOTE", f"{url}/;token=hidden")
        found = check_spark()
    assert found.status == FAIL
    assert found.text == (
        f"SPARK_REMOTE={url}/ takes connections, and Spark has not started and run a job within 120 seconds; "
        "`python -m persistent_state.engine.spark.trial` shows more."
    )


@pytest.mark.parametrize("remote", ["sc://", "sc://:15002", "sc://host:port"])
def test_what_is_no_address_of_a_server_is_refused(monkeypatch: pytest.MonkeyPatch, remote: str) -> None:
    monkeypatch.setenv("SPARK_REMOTE", remote)
    assert check_spark().text == f"SPARK_REMOTE={remote} is not an address; give one such as sc://host:15002."


def test_a_url_without_a_port_is_of_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(address: tuple[str, int], seconds: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setenv("SPARK_REMOTE", "sc://spark.example.com")
    assert "at spark.example.com, port 15002: no answer within 5 seconds; " in check_spark().text


def test_a_server_that_pyspark_starts_here_needs_a_java_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "local[2]")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_java().status == FAIL


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
        "Spark does not start: [JAVA_GATEWAY_EXITED] It has ended; `python -m persistent_state.engine.spark.trial` shows all "
        "that Spark says of it: mend that."
    )


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("print('noise'); print('{\"spark\": \"4.3.0\"}')", {"spark": "4.3.0"}),
        ("import os; print('{\"jvm\": %d}' % ('PYSPARK_GATEWAY_PORT' in os.environ))", {"jvm": 0}),
        ("import os; os._exit(7)", {"error": "Spark does not start, and its process ended with status 7"}),
        ("import time; time.sleep(3600)", {"error": "Spark has not started and run a job within 1 seconds"}),
    ],
)
def test_what_the_process_tells_is_its_last_line(
    monkeypatch: pytest.MonkeyPatch, program: str, told: dict[str, Any]
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "25333")
    run = subprocess.run
    monkeypatch.setattr(machine, "PATIENCE", 1 if "sleep" in program else PATIENCE)
    monkeypatch.setattr(subprocess, "run", lambda command, **how: run([sys.executable, "-c", program], **how))
    assert json.dumps(machine.try_spark()) == json.dumps(told)
