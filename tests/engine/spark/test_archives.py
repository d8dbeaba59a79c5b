"""Archives of PySpark whose modules need not be compiled at each start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from persistent_state.engine.spark import archives
from persistent_state.engine.spark.archives import compile_archives

MODULES = {
    "shop/__init__.py": "",
    "shop/orders.py": "WHY = 'compiled'\n",
    "shop/names.json": "{}",
    "shop/orders.pyc": "?",
    "shop/sold.pyc": "?",
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "python/lib").mkdir(parents=True)
    with ZipFile(tmp_path / "python/lib/shop.zip", "w") as archive:
        for name, text in MODULES.items():
            archive.writestr(name, text)
    return tmp_path


def told(archive: Path, program: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(archive)}
    return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout


def test_modules_are_imported_compiled_and_all_else_is_as_it_was(home: Path) -> None:
    (archive,) = compile_archives(home)
    with ZipFile(archive) as made:
        assert sorted(made.namelist()) == sorted([*MODULES, "shop/__init__.pyc"])
        assert {made.read(name) for name in ("shop/names.json", "shop/sold.pyc")} == {b"{}", b"?"}
        assert made.read("shop/orders.py").decode() == MODULES["shop/orders.py"]
    printed = told(archive, "import shop.orders as orders; print(orders.WHY, orders.__file__)")
    assert printed.split() == ["compiled", f"{archive}/shop/orders.pyc"]
    assert [*home.glob("python/lib/*")] == [archive]


def test_each_page_that_names_compiled_archives_says_that_no_spark_may_run_meanwhile() -> None:
    root = Path(__file__).parents[3]
    pages = {path.name: path.read_text() for path in (root / "docs").glob("*.md") if "archives](" in path.read_text()}
    pages["operating.md"] = (root / "docs" / "operating.md").read_text()
    assert f"python -m {archives.__name__}" in pages["operating.md"]
    assert sorted(pages) == ["operating.md", "running.md"]
    assert all("while no Spark session" in text for text in pages.values())


def test_it_can_be_done_again(home: Path) -> None:
    (archive,) = compile_archives(home)
    once = {*ZipFile(archive).namelist()}
    compile_archives(home)
    assert [*sorted(ZipFile(archive).namelist())] == [*sorted(once)]


def test_another_python_goes_on_with_the_source_text(home: Path) -> None:
    (archive,) = compile_archives(home)
    other = home / "other.zip"
    with ZipFile(archive) as made, ZipFile(other, "w") as changed:
        for name in made.namelist():
            data = made.read(name)
            changed.writestr(name, b"\0\0\0\0" + data[4:] if name.endswith(".pyc") else data)
    assert told(other, "import shop.orders; print(shop.orders.WHY, shop.orders.__file__)").split() == [
        "compiled",
        f"{other}/shop/orders.py",
    ]


def test_the_archives_are_those_of_the_spark_that_would_start(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(home))
    assert archives.main() == 0
    assert capsys.readouterr().out == f"{home}/python/lib/shop.zip\n"


def test_a_home_that_is_not_ours_is_a_sentence(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "lib")

    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setattr(archives.os, "replace", refuse)
    assert archives.main() == 1
    assert capsys.readouterr().err == (
        f"SPARK_HOME={home}: [Errno 13] Permission denied: 'lib'; let this user write there, or run it as one who may.\n"
    )
