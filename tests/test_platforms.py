"""The page on platforms names what the library needs, and says of each statement whether it was tried."""

from __future__ import annotations

import re
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")


def config() -> ConfigParser:
    found = ConfigParser()
    found.read(ROOT / "setup.cfg")
    return found


def test_the_packages_to_install_beside_a_spark_are_those_that_the_library_needs() -> None:
    needed = re.findall(r"^[a-z].*$", config()["options"]["install_requires"], re.MULTILINE)
    needed += re.findall(r"^s3fs.*$", config()["options.extras_require"]["s3"], re.MULTILINE)
    (block,) = [
        block for block in re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE) if "--no-deps" in block
    ]
    assert set(re.findall(r"'([^']+)'", block)) == {need for need in needed if not need.startswith("pyspark")}


def test_each_package_that_the_library_needs_has_an_upper_bound() -> None:
    # Every tool of Python's packages needs `packaging`, so that a bound of ours would stop theirs.
    of_extras = [packages for extra, packages in config()["options.extras_require"].items() if extra != "test"]
    for packages in (config()["options"]["install_requires"], *of_extras):
        for package in re.findall(r"^(?!persistent-state\[)[a-z].*$", packages, re.MULTILINE):
            assert "<" in package or package == "packaging>=22", package


def test_the_versions_of_python_are_those_of_the_library() -> None:
    of_library = re.findall(r"Python :: (3\.\d+)$", config()["metadata"]["classifiers"], re.MULTILINE)
    said = re.search(r"Python (3\.\d+) to (3\.\d+)", PAGE)
    assert said is not None
    assert said.groups() == (of_library[0], of_library[-1])


def test_each_statement_in_a_table_of_marks_has_one() -> None:
    rows = 0
    for table in re.findall(r"^\| what \| how \| mark \|\n\| --- \| --- \| --- \|\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        for row in table.splitlines():
            rows += 1
            assert re.search(r"\b(tried|read|inferred)\b", row.rsplit(" | ", 1)[1]), row
    assert rows > 30
