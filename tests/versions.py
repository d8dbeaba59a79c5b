"""Tests on a real Spark under each version of PySpark that setup.cfg allows.

A part of `make soak`.

    python -m tests.versions [--only VERSION] [PYTEST'S OPTIONS]

Each version is the newest patch that pip finds for this Python, in an environment in build/ of which only PySpark is its own.
The exit code is 0 only if all versions could be installed and passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from configparser import ConfigParser
from importlib.metadata import version as installed
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).parents[1]
FILES = (
    "engine",
    "demo",
    "kills",
    "restarts",
    "guarantees",
    "dataframe",
    "outputs",
    "sinks",
    "values",
    "new_sink",
    "kafka",
    "kafka_sink",
    "store_source",
    "run",
    "connect",
    "graph",
    "flows",
    "inputs",
    "joins",
    "reads_state",
    "rewinds",
    "branches",
    "backfill",
)
"""The tests that run: of `tests/spark/`."""

ONE_OF_EACH = (
    "graph.py::test_outputs_beside_derived_tasks_have_each_clock_once_and_a_new_task_is_right_at_once",
    "flows.py::test_three_tasks_of_one_source_are_one_query_and_one_entry_a_micro_batch",
    "inputs.py::test_several_inputs_and_a_task_feed_one_task",
    "joins.py::test_joins_are_those_of_a_loop_over_all_rows",
    "rewinds.py::test_after_a_rewind_every_sink_is_as_if_what_was_above_the_clock_had_never_been",
    "branches.py::test_a_branch_and_its_application_run_on_each_by_itself",
    "backfill.py::test_a_task_in_order_and_a_join_go_on_from_history_as_if_all_had_come_by_one_input",
    "values.py::test_rows_of_every_type_are_read_as_they_are",
)
"""Tests of `tests/spark/` that run under the oldest version in CI, too. That of backfill has ordered tasks."""

SINCE = {"connect": (4, 1)}
"""The version before which tests can't run: a session of Spark Connect can be cloned since 4.1."""


def files_for(version: str) -> list[str]:
    """Return the files of tests that can run under a version of PySpark."""
    known = Version(version).release[:2]
    return [f"tests/spark/test_{name}.py" for name in FILES if SINCE.get(name, known) <= known]


def one_of_each() -> list[str]:
    """Return a test of each feature that runs under the oldest version in CI, too."""
    return [f"tests/spark/test_{name}" for name in ONE_OF_EACH]


def allowed_versions() -> list[str]:
    """Return the newest patch that pip finds of each minor version of PySpark that setup.cfg allows, the newest first."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", "pyspark"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    (found,) = [line for line in lines if line.startswith("Available versions: ")]
    newest: dict[str, str] = {}
    for version in _allowed().filter(found.partition(": ")[2].split(", ")):
        newest.setdefault(version.rpartition(".")[0], version)
    return list(newest.values())


def _allowed() -> SpecifierSet:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    needs = [Requirement(line) for line in config["options"]["install_requires"].split("\n") if line[:1].isalpha()]
    (pyspark,) = [need for need in needs if need.name == "pyspark"]
    return pyspark.specifier


def python_with(version: str) -> Path:
    """Return the Python of an environment that has this version of PySpark, and all else from this one.

    Raises:
        CalledProcessError: pip could not install it.
    """
    if version == installed("pyspark"):
        return Path(sys.executable)
    place = ROOT / "build" / f"spark-{version}"
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        # What stands in a list of places comes after what the environment has itself.
        own = sysconfig.get_path("purelib", vars={"base": str(place)})
        Path(own, "all-else.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--use-pep517"]
        subprocess.run([*install, f"pyspark=={version}"], check=True)
        subprocess.run(
            [str(python), "-m", "persistent_state.engine.spark.archives"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        (place / "ready").touch()
    return python


def outcome(version: str, options: Sequence[str] = ()) -> str:
    """Run the tests under a version of PySpark, and return how that ended."""
    try:
        python = python_with(version)
    except subprocess.CalledProcessError as error:
        return f"left out, it could not be installed: {error}"
    return "failed" if run(python, files_for(version), options) else "passed"


def run(python: Path, tests: Sequence[str], options: Sequence[str] = ()) -> int:
    """Run tests with a Python, and return pytest's exit status."""
    # As in an activated environment: where nobody says otherwise, Spark's workers run the python3 of the PATH.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    env["PATH"] = f"{python.parent}{os.pathsep}{env['PATH']}"
    return subprocess.run([str(python), "-m", "pytest", "-q", *tests, *options], cwd=ROOT, env=env).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the tests under each version, or under that of --only, and print how that ended."""
    if arguments[:1] == ["--only"]:
        versions, options = [arguments[1]], arguments[2:]
    else:
        versions, options = allowed_versions(), arguments
    outcomes = {version: outcome(version, options) for version in versions}
    for version, ended in outcomes.items():
        print(f"PySpark {version}: {ended}")
    return 0 if {*outcomes.values()} == {"passed"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
