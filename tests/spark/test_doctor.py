"""The job of docs/platforms.md that tries a platform, as `spark-submit` runs it there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark import sessions

pytestmark = pytest.mark.spark

PAGE = (sessions.ROOT / "docs" / "platforms.md").read_text(encoding="utf-8")


def test_the_job_that_tries_a_platform_asks_workers_and_the_driver(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(import sys\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    job = tmp_path / "job.py"
    job.write_text(block)
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
