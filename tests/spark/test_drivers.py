"""Drivers in processes of their own: how they are stopped, which Python their workers run, and under another Spark."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from configparser import ConfigParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark import stream
from tests.spark.conftest import Launch
from tests.spark.sessions import ROOT, Jvm
from tests.spark.stream import Stream, check_end
from tests.store.servers import command, installed, needed
from tests.waiting import PATIENCE, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.kills


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_continuous_run_that_is_asked_to_stop_stops_cleanly_and_the_next_goes_on(
    spark: SparkSession, launch: Launch, jvms: Sequence[Jvm], tmp_path: Path, number: signal.Signals
) -> None:
    sent = stream.Stream(tmp_path / "stream", seed=number)
    sent.grow(4)
    driver = launch("-m", "tests.spark.victim", str(tmp_path), "--continuous", folder=tmp_path, **jvms[0].env)
    until(lambda: len(stream.progress(tmp_path)) >= 2, "commits", driver, tmp_path / "log")
    driver.send_signal(number)
    assert driver.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    stream.check_cut(tmp_path, sent)
    sent.grow()
    stream.application(tmp_path, shards=1, interval="15 seconds").run(spark, drain=True)
    stream.check_end(tmp_path, sent)


def test_workers_run_the_interpreter_of_the_driver_whatever_python3_is(launch: Launch, tmp_path: Path) -> None:
    sent = stream.Stream(tmp_path / "stream", seed=3)
    sent.grow()
    for name in ("python", "python3"):
        other = tmp_path / "bin" / name
        other.parent.mkdir(exist_ok=True)
        other.write_text("#!/bin/sh\nexit 1\n")
        other.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    driver = launch("-m", "tests.spark.victim", str(tmp_path), folder=tmp_path, PATH=path, PYSPARK_PYTHON="")
    assert driver.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    stream.check_end(tmp_path, sent)


def oldest_pyspark() -> Path:
    """A folder with the oldest PySpark that this package says it works with, and a PyArrow of its time, installed once."""
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    (wanted,) = [line for line in config["options"]["install_requires"].split("\n") if line.startswith("pyspark")]
    version = wanted.split(">=")[1].split(",")[0] + ".0"
    told = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]

    def install(place: Path) -> None:
        command(sys.executable, *told, "--target", place, f"pyspark=={version}", "pyarrow<26")

    with needed():
        return installed(f"pyarrow-and-pyspark-{version}", install)


DRIVE = """
import pyspark, runpy
print("pyspark", pyspark.__version__, flush=True)
runpy.run_module("tests.spark.victim", run_name="__main__")
"""


@pytest.mark.soak
@pytest.mark.one_in(2)
def test_a_store_goes_on_under_another_version_of_spark(spark: SparkSession, launch: Launch, tmp_path: Path) -> None:
    oldest = oldest_pyspark()
    sent = Stream(tmp_path / "stream", seed=5)
    sent.grow()
    stream.application(tmp_path, shards=2, interval="10 seconds").run(spark)
    sent.grow()
    driver = launch("-c", DRIVE, str(tmp_path), folder=tmp_path, PYTHONPATH=f"{oldest}:{ROOT}")
    assert driver.wait(PATIENCE) == 0, (tmp_path / "log").read_text()[-4000:]
    assert f"pyspark {oldest.name.removeprefix('pyarrow-and-pyspark-')}" in (tmp_path / "out").read_text().splitlines()
    sent.grow()
    stream.application(tmp_path, shards=3, interval="15 seconds").run(spark, drain=True)
    check_end(tmp_path, sent)
