"""A run's Spark starts from files in the user's folder of caches, and without them as it always has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from persistent_state.cli import fast_start as module
from persistent_state.cli import spark_session
from persistent_state.cli.fast_start import _ELSEWHERE, _OF_JVM, KEPT, FastStart, fast_start
from persistent_state.errors import StateError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings, whose folder of caches is empty."""
    for name in (*_ELSEWHERE, *_OF_JVM):
        monkeypatch.setenv(name, "")  # It is put back afterwards.
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "persistent-state"


def variables(fast: FastStart) -> tuple[str | None, str | None]:
    with fast.used():
        return os.environ.get("SPARK_HOME"), os.environ.get("SPARK_SUBMIT_OPTS")


def second(settings: Mapping[str, str] | None = None) -> FastStart:
    fast_start(settings or {})
    return fast_start(settings or {})


def with_classes(settings: Mapping[str, str] | None = None) -> FastStart:
    making = second(settings)
    assert making.makes
    assert making.classes is not None
    making.classes.touch()
    return fast_start(settings or {})


def test_processes_of_spark_import_the_modules_that_were_compiled_when_they_were_installed(cache: Path) -> None:
    home = fast_start({}).home
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


def test_the_second_run_makes_the_archive_of_classes_and_the_third_uses_it() -> None:
    first, making = fast_start({}), fast_start({})
    assert (first.classes, first.makes, making.makes) == (None, False, True)
    assert variables(first) == (str(first.home), None)
    assert variables(making) == (str(first.home), "-XX:+RecordDynamicDumpInfo -Xlog:cds*=off")
    third = with_classes()
    assert variables(third) == (str(first.home), f"-XX:SharedArchiveFile={making.classes} -Xlog:cds*=off")
    assert "SPARK_HOME" not in os.environ
    assert "SPARK_SUBMIT_OPTS" not in os.environ


def test_options_of_the_user_come_last_and_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xlog:cds=info")
    fast = with_classes()
    assert variables(fast)[1] == f"-XX:SharedArchiveFile={fast.classes} -Xlog:cds*=off -Xlog:cds=info"
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Xlog:cds=info"


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
    assert variables(second(settings)) == (environment.get("SPARK_HOME"), None)
    assert not cache.exists()


@pytest.mark.parametrize("line", ["spark.master yarn", "spark.remote=sc://a", "export SPARK_HOME=/opt/spark"])
def test_so_is_one_of_spark_s_own_files_of_settings(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    (tmp_path / "spark-env.sh").write_text(line)
    assert variables(second()) == (None, None)


@pytest.mark.parametrize("option", ["-XX:SharedArchiveFile=/a", "-XX:ArchiveClassesAtExit=/a", "-Xshare:off"])
def test_a_user_who_decides_about_archives_of_classes_is_left_to_it(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fast_start({}).home
    assert variables(second({"spark.driver.extraJavaOptions": option})) == (str(home), None)
    for name in ("JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, option)
            assert variables(fast_start({})) == (str(home), None)
    (tmp_path / "spark-defaults.conf").write_text(f"spark.driver.defaultJavaOptions {option}")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert variables(fast_start({})) == (str(home), None)


def test_a_cache_that_can_not_be_used_changes_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_nothing() -> bool:
        return variables(second()) == (None, None)

    (tmp_path / "cache").write_text("a file")
    assert is_nothing()
    (tmp_path / "cache").unlink()
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert is_nothing()  # Others may have put a Spark of theirs there.
    cache.chmod(0o700)
    with monkeypatch.context() as patch:
        patch.setattr(module.os, "access", lambda *_: False)
        assert is_nothing()
    with monkeypatch.context() as patch:
        patch.setattr(module.tempfile, "TemporaryDirectory", refuse)
        assert is_nothing()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a b"))
    assert is_nothing()  # Spark's scripts take a path apart at spaces.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert not is_nothing()


def refuse(*_: object, **__: object) -> None:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("part", ["bin", "python/lib/pyspark.zip/pyspark"])
def test_a_home_of_which_parts_were_cleaned_away_is_not_used(part: str) -> None:
    home = fast_start({}).home
    assert home is not None
    (home / part).unlink()
    assert variables(fast_start({})) == (None, None)


def test_processes_that_start_at_once_use_one_home(cache: Path) -> None:
    barrier = Barrier(8)

    def start(_: int) -> Path | None:
        barrier.wait()
        return fast_start({}).home

    with ThreadPoolExecutor(8) as pool:
        homes = {*pool.map(start, range(8))}
    assert len(homes) == 1
    assert [path.name for path in cache.iterdir()] == [next(iter(homes - {None})).parent.name]  # type: ignore[union-attr]


def test_another_pyspark_has_a_home_and_another_jvm_an_archive_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = with_classes()
    stamps = module._stamps
    assert second({"spark.driver.memory": "40g"}).classes != fast.classes
    assert second({"spark.executor.memory": "40g"}).classes == fast.classes
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Djava.io.tmpdir=/tmp/1")
    one = second().classes
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Djava.io.tmpdir=/tmp/2")
    assert second().classes == one
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseZGC")
    assert second().classes != one
    monkeypatch.delenv("JDK_JAVA_OPTIONS")
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert second().classes != fast.classes
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(module, "_stamps", lambda paths: [*stamps(paths), "another"])
    assert fast_start({}).home not in (None, fast.home)


class Builder:
    """Instead of Spark's: a JVM that does not start with some options."""

    def __init__(self, refused: str) -> None:
        self.refused, self.tried = refused, list[str]()

    def config(self, key: str, value: str) -> Builder:
        return self

    appName = lambda self, name: self  # noqa: E731

    def getOrCreate(self) -> str:
        self.tried.append(os.environ.get("SPARK_SUBMIT_OPTS", ""))
        if self.refused in self.tried[-1]:
            raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")
        return "a session"


def test_a_jvm_that_can_not_note_its_classes_starts_without_and_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fast_start({})
    builder = Builder("RecordDynamicDumpInfo")
    monkeypatch.setattr(SparkSession, "builder", builder)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    for _ in range(2):
        assert spark_session._started("name", {}) == "a session"
    assert [*map(bool, builder.tried)] == [True, False, False]


def test_a_jvm_that_does_not_start_for_another_reason_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder("")
    monkeypatch.setattr(SparkSession, "builder", builder)
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    with pytest.raises(StateError, match="JAVA_GATEWAY_EXITED"):
        spark_session._started("name", {})
    assert len(builder.tried) == 1


def test_the_archive_is_whole_or_none_one_process_makes_it_and_old_ones_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", "the JVM")
    making = second()
    assert making.classes is not None
    old = making.classes.with_name("classes-of-old.jsa")
    old.touch()
    os.utime(old, (0, module.now_us() / 1e6 - KEPT - 60))
    seen: list[Any] = []

    def dump(gateway: Any, path: Path) -> None:
        path.write_text("classes")
        seen.append((gateway, making.classes is not None and making.classes.exists()))
        with monkeypatch.context() as patch:
            patch.setattr(module.os, "getpid", lambda: 1)
            making.keep_classes()  # As another run would.

    monkeypatch.setattr(module, "_dump", dump)
    FastStart(making.home).keep_classes()
    making.keep_classes()
    assert seen == [("the JVM", False)]
    left = {path.name for path in making.classes.parent.glob("classes-*")}
    assert left == {making.classes.name, making.classes.with_suffix(".lock").name}
    used = fast_start({})
    assert (used.classes, used.makes) == (making.classes, False)
    used.keep_classes()
    assert len(seen) == 1


def test_a_jvm_that_can_not_write_the_archive_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", "the JVM")
    monkeypatch.setattr(module, "_dump", refuse)
    making = second()
    making.keep_classes()
    after = fast_start({})
    assert (after.home, after.classes) == (making.home, None)
