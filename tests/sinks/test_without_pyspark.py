"""The library's sinks, and what opens, writes and takes them back, run where PySpark is not installed."""

from __future__ import annotations

import subprocess
import sys

RUNS = """
import sys
sys.modules.update(dict.fromkeys(["pyspark", "py4j"]))
import pytest
from persistent_state.kafka import sink
sys.exit(pytest.main([*sys.argv[1:], "-q", "-p", "no:cacheprovider", "-n", "0"]))
"""


def test_sinks_are_given_clocks_and_go_back_where_pyspark_is_not_installed() -> None:
    tests = [
        "tests/drive/test_output_values.py",
        "tests/sinks/test_values.py",
        "tests/sinks/test_former.py",
        "tests/sinks/test_new_sink.py",
        "tests/sinks/test_going_back.py::test_a_key_that_expired_and_came_again_is_in_the_table_after_two_rewinds",
    ]
    ran = subprocess.run([sys.executable, "-c", RUNS, *tests], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
