"""A run's Spark starts from a home in the user's folder of caches, and without it as it always has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from persistent_state.cli import fast_start as module
from persistent_state.cli.fast_start import _ELSEWHERE, fast_home, spark_home


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings, whose folder of caches is empty."""
    for name in (*_ELSEWHERE, "SPARK_CONF_DIR"):
        monkeypatch.setenv(name, "")  # It is put back afterwards.
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "persistent-state"


def test_processes_of_spark_import_the_modules_that_were_compiled_when_they_were_installed(cache: Path) -> None:
    home = fast_home({})
    assert home is not None
    assert home.is_relative_to(cache)
    libraries = [*(home / "python/lib").glob("*.zip")]
    program = """if True:
        import pyspark, py4j
        for module in pyspark, py4j:
            print(module.__file__, module.__cached__)
    """
    env = {**os.environ, "PYTHONPATH": ":".join(map(str, libraries))}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    printed = done.stdout.split()
    assert printed[0] == f"{home}/python/lib/pyspark.zip/pyspark/__init__.py"
    assert printed[2].startswith(f"{home}/python/lib/py4j-")
    assert printed[1].endswith(".pyc")
    assert Path(printed[1]).exists()
    assert {"bin", "jars", "conf"} <= {*os.listdir(home)}


def test_the_environment_is_as_before_when_the_jvm_has_started() -> None:
    home = fast_home({})
    with spark_home(home):
        assert os.environ["SPARK_HOME"] == str(home)
    with spark_home(None):
        assert "SPARK_HOME" not in os.environ
    assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        *(({name: "1"}, {}) for name in _ELSEWHERE),
        *(({}, {"spark.master": master}) for master in ("yarn", "spark://a:7077", "local-cluster[1,1,512]")),
        ({}, {"spark.remote": "local"}),
    ],
)
def test_a_spark_that_the_user_names_is_left_alone(
    environment: Mapping[str, str], settings: Mapping[str, str], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert fast_home(settings) is None
    assert not cache.exists()


@pytest.mark.parametrize(
    ("line", "is_left_alone"),
    [
        ("spark.master yarn", True),
        ("spark.remote=sc://a", True),
        ("export SPARK_HOME=/opt/spark", True),
        ("# spark.master  spark://master:7077", False),
        ("spark.ui.enabled false  # SPARK_HOME", False),
    ],
)
def test_so_is_one_of_spark_s_own_files_of_settings(
    line: str, is_left_alone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-env.sh").write_text(line)
    assert (fast_home({}) is None) == is_left_alone


def test_a_spark_beside_the_package_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.find_spark_home._find_spark_home", lambda: "/opt/spark-distribution")
    assert fast_home({}) is None


def test_a_cache_that_can_not_be_used_changes_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    assert fast_home({}) is None
    (tmp_path / "cache").unlink()
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert fast_home({}) is None  # Others may have put a Spark of theirs there.
    cache.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "access", lambda *_: False)
        assert fast_home({}) is None
    with monkeypatch.context() as patch:
        patch.setattr(module.tempfile, "TemporaryDirectory", refuse)
        assert fast_home({}) is None
    for name in ("a b", "josé"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        assert fast_home({}) is None  # Spark's scripts, or Java, can't read such a path.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert fast_home({}) is not None


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("part", ["bin", "python/lib/pyspark.zip/pyspark"])
def test_a_home_of_which_parts_were_cleaned_away_is_made_again(part: str, cache: Path) -> None:
    home = fast_home({})
    assert home is not None
    (home / part).unlink()
    assert fast_home({}) == home
    assert (home / part).exists()
    assert [path.name for path in cache.iterdir()] == [home.name]


def test_processes_that_start_at_once_use_one_home(cache: Path) -> None:
    barrier = Barrier(8)

    def start(_: int) -> Path | None:
        barrier.wait()
        return fast_home({})

    with ThreadPoolExecutor(8) as pool:
        homes = {*pool.map(start, range(8))}
    assert len(homes - {None}) == 1
    assert [cache / path.name for path in cache.iterdir()] == [*homes - {None}]


def test_another_pyspark_has_a_home_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, own = fast_home({}), module._installed("pyspark")
    other = tmp_path / "pyspark"
    for name in os.listdir(own):
        if name != "version.py":
            (other / name).parent.mkdir(exist_ok=True)
            (other / name).symlink_to(own / name)
    shutil.copyfile(own / "version.py", other / "version.py")
    monkeypatch.setattr(module, "_installed", lambda package: other if package == "pyspark" else own.parent / package)
    monkeypatch.setattr("pyspark.find_spark_home._find_spark_home", lambda: str(other))
    assert fast_home({}) not in (None, home)
