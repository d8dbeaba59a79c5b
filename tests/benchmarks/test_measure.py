"""Processor seconds are those of all processes that a pass has started, however they end."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.measure import measured

BUSY = """
import time
while time.process_time() < 0.5:
    pass
print(flush=True)
time.sleep(3600)
"""


def test_a_process_that_is_killed_within_a_pass_counts() -> None:
    with measured() as taken:
        child = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        child.kill()
        child.wait()
        child.stdout.close()
    # The system counts in hundredths of a second.
    assert taken.cpu >= 0.48
