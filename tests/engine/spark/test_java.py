"""The check for Java, against made-up `java` programs on a PATH of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from persistent_state.engine.spark import java
from persistent_state.engine.spark.java import java_version, require_java
from persistent_state.errors import InvalidInputError

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a `java` that prints these lines to stderr in a folder's `bin`; the first one is the only thing on PATH."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "home" / "bin"))

    def install(*lines: str, home: str = "home", exit_code: int = 0) -> Path:
        program = tmp_path / home / "bin" / "java"
        program.parent.mkdir(parents=True)
        echoes = [f"echo '{line}' >&2" for line in lines]
        program.write_text("\n".join(["#!/bin/sh", *echoes, f"exit {exit_code}", ""]))
        program.chmod(0o755)
        return program

    return install


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ('java version "1.8.0_392"', 8),
        ('openjdk version "1.8.0_402"', 8),
        ('java version "9"', 9),
        ('openjdk version "10.0.2" 2018-07-17', 10),
        ('openjdk version "11.0.20" 2023-07-18 LTS', 11),
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "17.0.8.1" 2023-08-24', 17),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('java version "21.0.1" 2023-10-17', 21),
        ('openjdk version "25" 2025-09-16', 25),
        ("17", None),
        ("Error: could not find or load the virtual machine", None),
        ('No "version 17" of anything', None),
    ],
)
def test_a_version_is_read_from_the_line_of_every_vendor(install: Install, line: str, version: int | None) -> None:
    assert java_version(str(install(line))) == version


def test_a_version_is_read_below_the_options_that_the_jvm_picked_up(install: Install) -> None:
    program = install(
        'Picked up JAVA_TOOL_OPTIONS: -Dsome.version "11"', 'openjdk version "21.0.1" 2023-10-17', "OpenJDK 64-Bit VM"
    )
    assert java_version(str(program)) == 21


@pytest.mark.parametrize("version", ["17.0.15", "21-ea", "25"])
def test_a_java_of_17_or_newer_is_taken(install: Install, version: str) -> None:
    install(f'openjdk version "{version}"')
    require_java()


def test_an_older_java_is_refused_with_its_path_and_version(install: Install) -> None:
    program = install('openjdk version "11.0.20" 2023-07-18')
    with pytest.raises(InvalidInputError) as refused:
        require_java()
    assert str(refused.value) == (
        f"Java 17 or newer is needed, and {program} is version 11: install one (for example apt-get install "
        "openjdk-17-jre-headless) and let JAVA_HOME, or PATH if that is not set, lead to it."
    )


def test_java_8_is_refused(install: Install) -> None:
    install('java version "1.8.0_392"')
    with pytest.raises(InvalidInputError, match="is version 8:"):
        require_java()


def test_no_java_is_refused(install: Install) -> None:
    with pytest.raises(InvalidInputError, match="there is no java on PATH: install one"):
        require_java()


def test_a_program_that_is_no_java_is_refused(install: Install) -> None:
    program = install("Unable to locate a Java Runtime.", exit_code=1)
    with pytest.raises(InvalidInputError, match=f"{program} does not tell its version: install one"):
        require_java()


def test_a_file_that_does_not_run_is_refused(install: Install) -> None:
    program = install()
    program.write_bytes(b"\x7fELF")
    with pytest.raises(InvalidInputError, match=f"{program} does not tell its version: install one"):
        require_java()


def test_java_home_goes_before_path_as_it_does_for_spark(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install('openjdk version "11.0.20"')
    newer = install('openjdk version "17.0.15"', home="newer")
    monkeypatch.setenv("JAVA_HOME", str(newer.parent.parent))
    require_java()


def test_a_java_home_without_a_java_is_refused_whatever_is_on_path(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install('openjdk version "17.0.15"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidInputError, match=f"JAVA_HOME={tmp_path} has no bin/java: install one"):
        require_java()


@pytest.mark.parametrize(("version", "exit_code"), [("11", 1), ("17", 0)])
def test_the_file_runs_by_its_path_on_nothing_but_the_standard_library(
    install: Install, version: str, exit_code: int
) -> None:
    install(f'openjdk version "{version}"')
    # -I and -S: neither this folder nor an installed package can be imported.
    ran = subprocess.run(
        [sys.executable, "-I", "-S", java.__file__], capture_output=True, text=True, env={"PATH": os.environ["PATH"]}
    )
    assert ran.returncode == exit_code, ran.stderr
    assert ran.stdout == ""
    assert ran.stderr.startswith("Java 17 or newer is needed") if exit_code else ran.stderr == ""
