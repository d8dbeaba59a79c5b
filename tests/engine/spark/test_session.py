"""What killed drivers leave on a disk is taken away by later starts, and nothing of one that lives, or of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from persistent_state import InvalidInputError, ParquetSink
from persistent_state.engine.spark import session
from persistent_state.engine.spark.session import SCRATCH_KEPT, Scratch, collect_scratch
from persistent_state.sinks import Origin

CLASSIC, OF_CONNECT = SimpleNamespace(_sc=SimpleNamespace(_jsc=object())), SimpleNamespace(is_stopped=False)
STOPPED = [SimpleNamespace(_sc=SimpleNamespace(_jsc=None)), SimpleNamespace(is_stopped=True)]
"""Sessions as PySpark leaves them; tests/spark/test_notebooks.py stops a real one."""

NOW = time.time_ns() // 1000
LATER = NOW + int(SCRATCH_KEPT * 1e6) + 3600 * 1_000_000

DRIVER = """
import sys, tempfile
from persistent_state.engine.spark.session import Scratch
tempfile.tempdir = sys.argv[1]
scratch = Scratch(None, None, int(sys.argv[2]))
import os
os.makedirs(scratch.folder(1) + "/Task/offsets")
print("there", flush=True)
sys.stdin.read()
"""


def driver(folder: Path) -> subprocess.Popen[str]:
    """A process that has scratch space in a folder, until it is killed."""
    command = [sys.executable, "-c", DRIVER, str(folder), str(NOW)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


def test_a_session_that_was_stopped_is_refused() -> None:
    open_ones: list[Any] = [CLASSIC, OF_CONNECT]
    for spark in open_ones:
        session.check_session(spark)
    stopped: list[Any] = STOPPED
    for spark in stopped:
        with pytest.raises(InvalidInputError, match=r"^spark=SparkSession has been stopped; make a new one by "):
            session.check_session(spark)


def of_file_system(default: str) -> Any:
    """A local session whose paths without a scheme are of this file system."""
    hadoop = SimpleNamespace(get={"fs.defaultFS": default}.get)
    return SimpleNamespace(
        sparkContext=SimpleNamespace(master="local[2]", _jsc=SimpleNamespace(hadoopConfiguration=lambda: hadoop))
    )


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
@pytest.mark.parametrize("below", ["", "/deep/down"])
def test_scratch_space_on_this_machine_that_can_not_be_written_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, below: str
) -> None:
    local, other = of_file_system("file:///"), of_file_system("hdfs://namenode")
    scratch = f"{scheme}{tmp_path}/scratch{below}"
    session.check_scratch(local, scratch)
    (tmp_path / "scratch").write_text("")
    with pytest.raises(InvalidInputError) as refused:
        session.check_scratch(local, scratch)
    assert str(refused.value) == (
        f"scratch='{scratch}' can't hold Spark's own checkpoints, since '{tmp_path}/scratch' is not a folder; put that right, "
        "or give another folder."
    )
    (tmp_path / "scratch").unlink()
    # Root, as which tests may run, may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InvalidInputError, match=f"'{tmp_path}' may not be written by this user; put that right"):
        session.check_scratch(local, scratch)
    for elsewhere in ("s3a://bucket/scratch", "scratch", *(["/scratch"] if not scheme else [])):
        session.check_scratch(other, elsewhere)


def test_the_scratch_of_a_killed_driver_goes_after_a_while_and_that_of_a_live_one_never(tmp_path: Path) -> None:
    for name in ("persistent-state-1000", f"persistent-state-{'g' * 32}", "persistent-state-tests", "a" * 32):
        (tmp_path / name).mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"persistent-state-{'a' * 32}").symlink_to(elsewhere)
    others = set(tmp_path.iterdir())
    process = driver(tmp_path)
    try:
        (scratch,) = set(tmp_path.iterdir()) - others
        collect_scratch(str(tmp_path), LATER)
        assert (scratch / "1" / "Task" / "offsets").is_dir()
    finally:
        process.kill()
        process.communicate()
    # It may have been a moment ago: what runs beside it has yet to end.
    collect_scratch(str(tmp_path), NOW)
    assert scratch.is_dir()
    collect_scratch(str(tmp_path), LATER)
    assert set(tmp_path.iterdir()) == others


def test_a_change_anywhere_in_it_keeps_scratch_space(tmp_path: Path) -> None:
    """As of a driver of an older version, which locks nothing."""
    root = tmp_path / f"persistent-state-{'0' * 32}"
    deep = root / "1" / "Task" / "offsets"
    deep.mkdir(parents=True)
    for folder in (root, root / "1", root / "1" / "Task"):
        os.utime(folder, (0, 0))
    collect_scratch(str(tmp_path), NOW)
    assert deep.is_dir()
    os.utime(deep, (0, 0))
    collect_scratch(str(tmp_path), NOW)
    assert not root.exists()


def test_a_start_collects_and_its_own_scratch_goes_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.tempfile, "tempdir", str(tmp_path))
    killed = driver(tmp_path)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    spark: Any = None
    scratch = Scratch(spark, None, LATER)
    (own,) = tmp_path.iterdir()
    assert scratch.folder(3) == f"{own}/3"
    scratch.remove()
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_of_a_parquet_table_go_at_a_start_once_they_are_old(tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.string()), ("clock", pa.timestamp("us", "UTC")), ("value", pa.int64())])
    origin = Origin("app", "Task", ("key",), schema)
    ParquetSink(tmp_path).open(origin)
    (tmp_path / "_clocks").mkdir()
    old, young = [tmp_path / ".tmp-1", tmp_path / "_clocks" / ".tmp-2"], [tmp_path / ".tmp-3"]
    others = [tmp_path / "mine.tmp", tmp_path / "of-nobody.parquet"]
    for path in (*old, *young, *others):
        path.write_text("half")
    for path in (*old, *others):
        os.utime(path, (0, 0))
    ParquetSink(tmp_path).open(origin)
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in (*young, *others, tmp_path / "_table.json"))
