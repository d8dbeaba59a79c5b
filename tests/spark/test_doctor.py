"""The job of docs/platforms.md that tries a platform, as `spark-submit` runs it there."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persistent_state import Application, read_state
from tests.page_code import blocks_of, run, text_of
from tests.spark import sessions
from tests.spark.test_pages import Revenue, pay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.soak
@pytest.mark.one_in(3)
def test_the_job_that_tries_a_platform_asks_workers_and_the_driver(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(blocks_of(text_of("docs/platforms.md"))[0])
    env = sessions.environment(PYSPARK_PYTHON=sys.executable)
    # As on a platform, which decides where a job's Spark runs.
    command = [f"{sessions.spark_home()}/bin/spark-submit", "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    ran = subprocess.run([*command, str(job), str(tmp_path / "store")], env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    workers, *checks = [line for line in ran.stdout.splitlines() if line.startswith(("{(", "ok ", "warn", "fail"))]
    assert f"{sys.version_info[:2]}, " in workers
    assert {line[:4] for line in checks} == {"ok  "}
    # A Spark of its own: the job's is of another process, and goes on.
    assert "starts, and its Python workers run" in checks[-1]


def test_the_job_that_runs_an_application(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pay(tmp_path / "in", "2025-01-01T00:00:00", "2025-01-01T00:10:00")
    app = Application("shop", str(tmp_path / "store"), scratch=str(tmp_path / "scratch")).add(Revenue(), source)
    monkeypatch.setitem(sys.modules, "shop", types.ModuleType("shop"))
    monkeypatch.setitem(sys.modules, "shop.streams", types.SimpleNamespace(app=app))
    _, job = blocks_of(text_of("docs/platforms.md"))
    run(f"```python\n{job}```", {})
    assert read_state(str(tmp_path / "store"), "shop", "Revenue").to_pylist() == [{"shop": "Oslo", "value": 100}]
