"""Some tests on a real Spark under every version that setup.cfg allows, and of the data source under older ones too.

A part of `make soak`.

    python -m tests.versions [PYTEST'S OPTIONS]

Each version is the newest patch that pip finds for this Python, in a virtual environment of its own in build/. The exit code
is 0 only if all versions could be installed and passed.
"""

from __future__ import annotations

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
FILES = ("engine", "restarts", "dataframe", "outputs", "guarantees", "store_source")
"""The tests that run: of `tests/spark/`."""

OLDER = SpecifierSet(">=4.0,<4.2")
"""Versions under which a store is only read: those of platforms on which nobody can choose."""
FILES_OF_OLDER = ("store_source",)


def allowed_versions() -> list[str]:
    """Return the newest patch of each minor version of PySpark that setup.cfg allows, the newest first."""
    return newest_patches(_allowed())


def newest_patches(specifier: SpecifierSet) -> list[str]:
    """Return the newest patch that pip finds of each minor version of PySpark, the newest first."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", "pyspark"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    (found,) = [line for line in lines if line.startswith("Available versions: ")]
    newest: dict[str, str] = {}
    for version in specifier.filter(found.partition(": ")[2].split(", ")):
        newest.setdefault(version.rpartition(".")[0], version)
    return list(newest.values())


def _allowed() -> SpecifierSet:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    needs = [Requirement(line) for line in config["options"]["install_requires"].split("\n") if line[:1].isalpha()]
    (pyspark,) = [need for need in needs if need.name == "pyspark"]
    return pyspark.specifier


def python_with(version: str) -> Path:
    """Return the Python of an environment that has this version of PySpark.

    Raises:
        CalledProcessError: pip could not install it.
    """
    place = ROOT / "build" / f"spark-{version}"
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--use-pep517"]
        ours, theirs = ["-e", f"{ROOT}[test]"], [f"pyspark=={version}"]
        if version in OLDER:
            # pip would not install both at once.
            subprocess.run([*install, *ours], check=True)
            ours = ["--no-deps"]
        subprocess.run([*install, *ours, *theirs], check=True)
        (place / "ready").touch()
    return python


def outcome(version: str) -> str:
    """Run the tests under a version of PySpark, and return how that ended."""
    try:
        python = python_with(version)
    except subprocess.CalledProcessError as error:
        return f"left out, it could not be installed: {error}"
    files = [f"tests/spark/test_{name}.py" for name in (FILES_OF_OLDER if version in OLDER else FILES)]
    done = subprocess.run([str(python), "-m", "pytest", "-q", *files, *sys.argv[1:]], cwd=ROOT)
    return "failed" if done.returncode else "passed"


def main() -> int:
    outcomes = {version: outcome(version) for version in (*allowed_versions(), *newest_patches(OLDER))}
    for version, ended in outcomes.items():
        print(f"PySpark {version}: {ended}")
    return 0 if {*outcomes.values()} == {"passed"} else 1


if __name__ == "__main__":
    sys.exit(main())
