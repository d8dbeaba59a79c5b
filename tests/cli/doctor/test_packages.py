"""What the doctor says of the packages that are installed, read from the metadata that pip reads."""

from __future__ import annotations

import re
import sys
from configparser import ConfigParser
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from persistent_state.cli.doctor import packages
from persistent_state.cli.doctor.check import FAIL, OK, WARN, Check
from persistent_state.cli.doctor.packages import OF_A_CHECKOUT, Need, check_packages, read_need, within
from persistent_state.engine.spark import versions

ROOT = Path(__file__).parents[3]

NEEDS = [
    "pyspark<5,>=4.2",
    "fsspec>=2025.2",
    'sqlalchemy<3,>=2.0.31; extra == "sql"',
    'persistent-state[sql]; extra == "postgresql"',
    'psycopg[binary]<4,>=3.2; extra == "postgresql"',
    'rich<16,>=13; extra == "terminal"',
    'pytest<10,>=8.2; extra == "test"',
]


def checks_of(monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], with_spark: bool = True) -> dict[str, Check]:
    """What is found where these packages are installed, and no others."""

    def version(name: str) -> str:
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "requires", lambda name: NEEDS)
    monkeypatch.setattr(metadata, "version", version)
    return {check.check: check for check in check_packages(with_spark)}


def test_what_is_installed_is_told_by_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    all_there = {"pyspark": "4.3.0", "fsspec": "2026.9.0", "sqlalchemy": "2.1.9", "psycopg": "3.3.9", "pytest": "9.2"}
    found = checks_of(monkeypatch, all_there)
    assert {name: (check.status, check.text) for name, check in found.items()} == {
        "packages": (OK, "pyspark 4.3.0, fsspec 2026.9.0"),
        "extra sql": (OK, "sqlalchemy 2.1.9"),
        "extra postgresql": (OK, "sqlalchemy 2.1.9, psycopg 3.3.9"),
        "other extras": (OK, "not installed: terminal"),
    }


def test_an_extra_is_there_only_with_all_of_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks_of(monkeypatch, {"pyspark": "4.3.0", "fsspec": "2026.9.0", "psycopg": "3.3.9"})
    assert found["other extras"].text == "not installed: sql, postgresql, terminal"


def test_versions_outside_the_bounds_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks_of(monkeypatch, {"pyspark": "4.3.0", "fsspec": "2024.6.1", "sqlalchemy": "3.0", "rich": "12.6.0"})
    assert {name: check.status for name, check in found.items() if name != "other extras"} == {
        "packages": WARN,
        "extra sql": WARN,
        "extra terminal": WARN,
    }
    assert found["extra terminal"].text == ("rich 12.6.0 is outside <16,>=13; pip install 'rich<16,>=13'.")


def test_a_package_that_is_always_needed_and_missing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    found = checks_of(monkeypatch, {"pyspark": "4.3.0"})["packages"]
    assert (found.status, found.text) == (FAIL, "fsspec can't be imported; pip install 'fsspec>=2025.2'.")
    on_spark = checks_of(monkeypatch, {"fsspec": "2026.9.0"})["packages"]
    assert (on_spark.status, on_spark.text) == (FAIL, "pyspark can't be imported; pip install 'pyspark<5,>=4.2'.")
    local = checks_of(monkeypatch, {"fsspec": "2026.9.0"}, with_spark=False)["packages"]
    assert (local.status, local.text) == (OK, "fsspec 2026.9.0")


@pytest.mark.parametrize(
    ("version", "status", "says"),
    [
        ("4.2.1", OK, "pyspark 4.2.1, fsspec 2026.9.0"),
        ("4.2.1-amzn-0", OK, "pyspark 4.2.1-amzn-0, fsspec 2026.9.0"),
        (
            "3.5.5",
            WARN,
            "pyspark 3.5.5 is outside <5,>=4.2, and pip did not install it; take a platform that has another.",
        ),
        ("unknown", WARN, "pyspark does not tell its version; see that it is within <5,>=4.2."),
    ],
)
def test_a_package_that_a_platform_brings_tells_its_version_itself(
    monkeypatch: pytest.MonkeyPatch, version: str, status: str, says: str
) -> None:
    monkeypatch.setattr("pyspark.__version__", version)
    found = checks_of(monkeypatch, {"fsspec": "2026.9.0"})["packages"]
    assert (found.status, found.text) == (status, says)


def test_a_pyspark_and_a_pyarrow_that_a_start_refuses_fail_with_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"pyspark": "4.2.0", "fsspec": "2026.9.0"}
    monkeypatch.setattr("pyspark.__version__", "4.1.0")
    monkeypatch.setattr("pyarrow.__version__", "26.0.1")
    monkeypatch.setattr(versions, "state_serializer", lambda: 'num_data_rows = state_info_col["numRows"]')
    found = checks_of(monkeypatch, installed)["packages"]
    assert (found.status, found.text) == (
        FAIL,
        "pyspark=4.1.0 does not work with pyarrow=26.0.1; install 'pyarrow<26', or the newest patch of PySpark.",
    )
    # A client sends its functions to workers of the server.
    monkeypatch.setenv("SPARK_REMOTE", "sc://host:15002")
    assert checks_of(monkeypatch, installed)["packages"].status == OK


def test_where_this_package_was_not_installed_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    (found,) = check_packages(with_spark=True)
    assert found.status == WARN
    assert found.text.endswith("pip install it.")


@pytest.mark.parametrize(
    ("version", "bounds", "is_within"),
    [
        ("4.2", ">=4.2,<5", True),
        ("4.2.0", "<5,>=4.2", True),
        ("4.2", ">=4.2.0", True),
        ("4.10.1", ">=4.2,<5", True),
        ("5.0.0", ">=4.2,<5", False),
        ("5.0.0.dev1", ">=4.2,<5", False),
        ("4.1.4", ">=4.2,<5", False),
        ("26.10.19.post1", "<27,>=18", True),
        ("1.2.3+local.7", "<1.2.3", False),
        ("4.2.1-amzn-0", "<5,>=4.2", True),
        ("4.1.4-amzn-0", "<5,>=4.2", False),
        ("1", "", True),
    ],
)
def test_a_version_is_compared_by_its_numbers(version: str, bounds: str, is_within: bool) -> None:
    assert within(version, SpecifierSet(bounds)) is is_within


def test_every_need_of_this_package_is_understood() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    by_extra = {None: config["options"]["install_requires"], **config["options.extras_require"]}
    for extra, text in by_extra.items():
        for line in re.findall(r"^\s*([^#\s].*)$", text, re.MULTILINE):
            need = read_need(f'{line}; extra == "{extra}"' if extra else line)
            assert need.extra == extra
            assert line.startswith(need.package)
            assert all(str(bound) in line for bound in need.bounds)
    assert {*OF_A_CHECKOUT} <= {*config["options.extras_require"]}


def test_a_need_is_read_as_pip_writes_it() -> None:
    assert read_need('psycopg[binary]<4,>=3.2; extra == "postgresql"') == Need(
        "psycopg", SpecifierSet("<4,>=3.2"), "postgresql", {"binary"}
    )
    assert read_need("persistent-state[sql,plots] ; extra == 'x'") == Need(
        "persistent-state", SpecifierSet(), "x", {"sql", "plots"}
    )
    assert read_need("fsspec (>=2025.2)") == Need("fsspec", SpecifierSet(">=2025.2"), None, set())


def test_a_doctor_without_packaging_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    assert checks_of(monkeypatch, {}) == {
        "packages": Check("packages", FAIL, "packaging can't be imported; pip install packaging.")
    }
